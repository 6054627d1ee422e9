/* SPDX-License-Identifier: MIT */
/*
 * The plug-in host: finds, checks and loads policies, turns parameters into numbers, runs an
 * instance, and bounds what it proposes.
 *
 * Everything that stands between a policy's proposal and a change is a pure function here
 * (host_filter), used by the daemon and by the evaluation alike; verify re-derives the changes of a
 * log with it.
 */
#ifndef PCPTUNE_POLICIES_HOST_H
#define PCPTUNE_POLICIES_HOST_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>

/*
 * Every parameter array has POLICY_MAX_PARAMS slots: those of a policy, in table order, and from
 * POLICY_OWN_PARAMS on those of the host: of the guard, then of the canary. All 0 there: neither.
 */
#define POLICY_OWN_PARAMS    64u
#define POLICY_GUARD_PARAMS  3u
#define POLICY_CANARY_PARAMS 3u
#define POLICY_HOST_PARAMS   (POLICY_GUARD_PARAMS + POLICY_CANARY_PARAMS)
#define POLICY_MAX_PARAMS    (POLICY_OWN_PARAMS + POLICY_HOST_PARAMS)
#define POLICY_WHY	     256u /* bytes of a cause text */

#define POLICY_NAME_MAX 31u /* bytes of a name */

#define POLICY_HIGH_LEAST 4u /* pages: no CPU gets less */

struct policy_module; /* a loaded plug-in; shared by instances, reference counted */

/* Which file it is: one that was written anew differs. */
struct policy_file_id {
	uint64_t dev, ino, size;
	int64_t mtime_ns;
};

/* A policy's file, found and checked, not loaded. */
struct policy_file {
	char path[PATH_MAX]; /* the real one */
	char name[POLICY_NAME_MAX + 1];
	struct policy_file_id id;
	bool foreign; /* not one of ours at its place (host_find.c): not for the daemon's process */
};

/*
 * As policy_load(), up to where code of the policy would run: the path is checked, and the
 * descriptor's version and sizes are read from the file.
 */
int policy_find(const char *name, const char *path, struct policy_file *ret, char *why);
int policy_load_file(const struct policy_file *f, struct policy_module **ret, char *why);
bool policy_file_same(const struct policy_file_id *a, const struct policy_file_id *b);
const struct policy_file_id *policy_file_id(const struct policy_module *m);
/* Does its code run in a process of its own? Then it has no functions here (host_remote.h). */
bool policy_remote(const struct policy_module *m);
/* The same policy of the same file? */
bool policy_same(const struct policy_module *a, const struct policy_module *b);

/*
 * name: a bare name, looked up in the directories of path (colon-separated; NULL: the default,
 * $PCPTUNE_POLICY_PATH, else the installed place), or a path with a slash. Owner (root or us) and
 * mode (not writable by others) of the file and of each directory above it are checked before
 * dlopen(RTLD_NOW|RTLD_LOCAL); the descriptor is checked in full after. why: POLICY_WHY bytes.
 */
int policy_load(const char *name, const char *path, struct policy_module **ret, char *why);
/* The same of a policy that a log names: says, too, what to do where it is not found. */
int policy_load_logged(const char *name, const char *path, struct policy_module **ret, char *why);
struct policy_module *policy_ref(struct policy_module *m);
void policy_unref(struct policy_module *m); /* the code stays mapped: see host.c */
const struct pcptune_policy *policy_desc(const struct policy_module *m);
/* The policy wants a record of each active CPU about once in so many ms; 0: none. */
uint32_t policy_record_ms(const struct policy_module *m);
const char *policy_file(const struct policy_module *m);

/* Can a policy have this name? A letter, then letters, digits, - and _; at most 31; lower case. */
bool policy_name_ok(const char *name);

/* Names of all policies found on path, sorted, freed with policy_list_free(). */
int policy_list(const char *path, char ***ret_names, size_t *ret_n);
void policy_list_free(char **names, size_t n);
/* The search path in force (static storage). */
const char *policy_default_path(void);
/* Where ours are (static storage). */
const char *policy_installed_path(void);

/* A parameter of the policy; NULL: no more. */
const struct pcptune_param *policy_param(const struct policy_module *m, uint32_t i);
/* The host's parameter in slot POLICY_OWN_PARAMS + i: every policy has them. NULL: no more. */
const struct pcptune_param *policy_host_param(uint32_t i);
/* Is it of a guard or a canary that is asked for? The others are neither shown nor logged. */
bool policy_host_param_used(const int64_t *params, uint32_t i);
/* Is a guard asked for? */
bool policy_guarded(const int64_t *params);
/* The share of CPUs that get a new policy first, permille; 0: it begins on all. */
int64_t policy_canary(const int64_t *params);
void policy_canary_set(int64_t *params, int64_t permille);
/* What became of a canary, as a line: canary_reason and canary_arg of an answer. As snprintf(). */
int policy_canary_text(uint32_t reason, const int64_t arg[4], char *buf, size_t n);
/* A reason of the policy, or of the host (ids above 65535); NULL: none. */
const struct pcptune_reason *policy_reason(const struct policy_module *m, uint32_t id);

/* Parameters: defaults, then one "key", "value" at a time. Nearest name in why for a wrong key. */
void policy_params_default(const struct policy_module *m, int64_t *params);
int policy_params_set(const struct policy_module *m, int64_t *params, const char *key,
		      const char *value, char *why);
/* "key=value key=value", all parameters, in table order; snprintf-like return. */
int policy_params_text(const struct policy_module *m, const int64_t *params, char *buf, size_t n);
/* Parses that text back (log -> replay). */
int policy_params_parse(const struct policy_module *m, const char *text, int64_t *params,
			char *why);

/*
 * The sentence of a reason with its arguments filled in; snprintf-like return. old_high and
 * new_high for {old} and {new}.
 */
int policy_sentence(const char *sentence, const int64_t arg[4], uint32_t old_high,
		    uint32_t new_high, char *buf, size_t n);

/* ---- instances ---- */
struct policy_instance;

/* A target of a small machine: good enough to find parameters that clash before there is one. */
extern const struct pcptune_shape policy_trial_shape;

/* values of the control words of one CPU; the same fields as a change */
struct limits {
	uint32_t high, high_min, high_max, batch, scale_max, rules;
};

struct host_change {
	uint32_t index, zone, cpu;
	uint32_t reason;
	int64_t arg[4];
	struct limits old;	/* as sampled */
	struct limits proposed; /* as the policy said; KEEP filled in from old */
	struct limits clamped;	/* what may be applied */
};

struct host_answer {
	uint32_t reason; /* for the whole answer; 0 when the policy proposed changes */
	int64_t arg[4];
	uint32_t rest_ms;
	uint32_t n_changes;
	uint32_t n_dropped; /* settling, held or no-op proposals */
	/* What became of a canary in this sample: 0: nothing; else a reason, with arguments. */
	uint32_t canary_reason;
	int64_t canary_arg[4];
	bool canary_spread;		   /* every CPU has the policy */
	bool canary_over;		   /* it went back: the policy changes nothing any more */
	const struct host_change *changes; /* owned by the instance until the next decide */
};

int policy_instance_new(struct policy_module *m, const struct pcptune_shape *shape,
			const int64_t *params, struct policy_instance **ret, char *why);
void policy_instance_free(struct policy_instance *pi);
struct policy_module *policy_instance_module(const struct policy_instance *pi);

/*
 * Runs decide() and host_filter(). 0; -EPROTO: the policy broke its contract (why says how; the
 * answer is empty); -ESTALE: benched after three breaches, nothing was called.
 */
int policy_instance_decide(struct policy_instance *pi, const struct pcptune_sample *s,
			   struct host_answer *ret, char *why);
/* Has it a guard or a canary, which look at long_holds of a sample? */
bool policy_instance_wants_holds(const struct policy_instance *pi);
/*
 * Takes s in and returns what the policy shall see of it: s, or a copy that is good until the next
 * one. policy_instance_decide() does it; for a policy that runs elsewhere it comes before
 * policy_instance_take() of the same s.
 */
const struct pcptune_sample *policy_instance_view(struct policy_instance *pi,
						  const struct pcptune_sample *s);
/*
 * The same for a policy whose code runs elsewhere (host_remote.h): the size of its state, and what
 * its decide() gave back, wherever that lies. Its state stays there, too, and is looked at here by
 * nobody but the log: policy_instance_fetch() copies it.
 */
struct policy_reply {
	int r;
	const void *decision; /* struct pcptune_decision */
	const void *changes;  /* n_changes of them, by the descriptor's stride */
};
int policy_instance_new_remote(struct policy_module *m, const struct pcptune_shape *shape,
			       const int64_t *params, size_t state_size,
			       struct policy_instance **ret, char *why);
void policy_instance_fetch(struct policy_instance *pi, const void *state);
int policy_instance_take(struct policy_instance *pi, const struct pcptune_sample *s,
			 const struct policy_reply *reply, struct host_answer *ret, char *why);
bool policy_instance_benched(const struct policy_instance *pi);

/*
 * State as bytes, for the log; of a policy that runs elsewhere, as it was fetched last. load
 * refuses another size with -EINVAL.
 */
const void *policy_instance_state(const struct policy_instance *pi, size_t *ret_size);
int policy_instance_state_load(struct policy_instance *pi, const void *state, size_t size);

/*
 * Pure: bounds one proposed change. high within [4 .. high_limit], high_min <= high <= high_max
 * (high wins over its bounds where the policy set it), batch 1 .. PCPTUNE_MAX_BATCH and at most
 * high, scale_max, rules known. sum_high: of the target before the change; budget 0: no bound; only
 * raises are cut by the budget. Returns false for a change that changes nothing (no-op).
 */
bool host_clamp(const struct pcptune_shape *shape, const struct limits *old, uint64_t sum_high,
		const struct limits *proposed, struct limits *ret_clamped);

/*
 * Pure but for pending: bounds a whole decision, whose contract was checked. Drops changes of CPUs
 * that are settling or held, and no-ops; the raises that are left share the budget in ascending
 * order of index. pending: one word for each entry of the sample, the high that was given and is
 * not yet taken over (0: none); read for the budget, and updated. out: room for d->n_changes.
 */
void host_filter(const struct pcptune_shape *shape, const struct pcptune_sample *s,
		 const struct pcptune_decision *d, uint32_t *pending, struct host_change *out,
		 uint32_t *ret_n, uint32_t *ret_dropped);

/*
 * Where debug text of policies goes; NULL (the default): nowhere. At most four lines a decision
 * are passed on. Process-wide; call it before the first decide.
 */
typedef void (*policy_trace_fn)(void *cookie, const char *policy, const char *text);
void policy_set_trace(policy_trace_fn fn, void *cookie);

#endif
