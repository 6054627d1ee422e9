/* SPDX-License-Identifier: MIT */
/*
 * The policy plug-in interface, version 1.
 *
 * A policy is a shared object with one exported symbol, `pcptune_policy_v1`, a constant
 * struct pcptune_policy. It is pure: decide() turns its state and one sample into a decision, and
 * touches no clock, file, log, random source or global. The daemon, `pcptune eval` and
 * `pcptune verify` call the same code with the same structs, so a replay of a log gives the same
 * decisions, bit for bit. To keep that true, compute in integers.
 *
 * State is one flat block of memory that the host allocates, zeroes and owns. It must hold no
 * pointers: the host may copy it, write it to the log and load it again. There is nothing to
 * destroy.
 *
 * Growth: each struct that crosses the interface starts with its size, or comes with a stride,
 * and only grows at its end. Walk arrays with the accessors below, never with [].
 *
 * Threads: the host calls one policy instance from one thread at a time.
 * Errors: init() and decide() return 0 or a negative errno; a decision is ignored then and the
 * breach is counted. Three breaches bench the policy and a fallback takes over.
 */
#ifndef PCPTUNE_POLICY_H
#define PCPTUNE_POLICY_H

#include <stddef.h>
#include <stdint.h>
#include <pcptune/segment.h>
#include <pcptune/tracker.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PCPTUNE_POLICY_ABI 1u

/* ---- what the host tells about a target, once ---- */
struct pcptune_shape {
	uint32_t size;
	uint32_t n_zones;   /* 1 .. PCPTUNE_MAX_ZONES */
	uint32_t n_cpus;    /* slots per zone, 1 .. PCPTUNE_MAX_CPUS */
	uint32_t host_cpus; /* CPUs that can run at the same time, for the default budget; >= 1 */
	uint64_t managed_pages;	  /* of all zones together */
	uint64_t low_wmark_pages; /* of all zones together */
	uint64_t budget_pages; /* the host clamps the sum of high of a target to it; 0: no bound */
	uint32_t high_limit;   /* pages, ring capacity of one CPU: high is never above */
	uint32_t interval_ms;  /* nominal sampling interval */
};

/* ---- one sample: the whole target, all CPUs ---- */
enum pcptune_cpu_flags {
	PCPTUNE_CPU_ACTIVE = 1u << 0,	/* some counter moved in the interval */
	PCPTUNE_CPU_SETTLING = 1u << 1, /* changed lately: a change now would be dropped */
	PCPTUNE_CPU_UNKNOWN = 1u << 2, /* counters went backwards or could not be read: no deltas */
	PCPTUNE_CPU_HELD = 1u << 3, /* pinned by the operator or changed by a stranger: dropped */
	/* active, and of its counters only alloc_pages and free_pages moved: all others are 0 */
	PCPTUNE_CPU_LISTS_ONLY = 1u << 4,
};

struct pcptune_cpu {
	uint32_t zone;
	uint32_t cpu;
	uint32_t flags; /* enum pcptune_cpu_flags */
	uint32_t count; /* pages on the lists at the end of the interval */
#define PCPTUNE_GAUGE(field, unit, line, para) uint32_t field;
#include <pcptune/counters.def>
#define PCPTUNE_LIST(field, unit, line, para) uint64_t field;
#define PCPTUNE_ZCTR(field, unit, line, para) uint64_t field;
#define PCPTUNE_PCTR(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
	/* counters are differences over the interval; gauges are the values at its end */
};

enum pcptune_sample_flags {
	PCPTUNE_SAMPLE_FIRST = 1u << 0, /* first of this policy instance */
	PCPTUNE_SAMPLE_GAP = 1u << 1,	/* dt is much longer than asked for: suspend, stall */
};

/*
 * What the lists of one CPU did since its record before: the swings of their net position, from
 * which the traffic at any `high` follows (pcptune/tracker.h). Records come now and then, with a
 * sample of an active CPU, to policies that ask for them (record_ms); they follow each other
 * without a hole, each beginning where the one before ended, unless PCPTUNE_RECORD_BROKEN is set.
 */
enum pcptune_record_flags {
	PCPTUNE_RECORD_BROKEN = 1u << 0, /* something before this record is missing */
};

struct pcptune_record {
	uint32_t index;	   /* into the cpus of the sample */
	uint32_t flags;	   /* enum pcptune_record_flags */
	uint64_t dt_us;	   /* time that it covers, up to the end of this sample */
	uint64_t refills;  /* over that time: runs of pages taken from the zone */
	uint64_t refilled; /* ... and their pages */
	uint64_t drains;   /* runs of pages given back */
	uint64_t drained;
	struct pcptune_band band;
};

struct pcptune_sample {
	uint32_t size;
	uint32_t flags;		/* enum pcptune_sample_flags */
	uint64_t seq;		/* 1, 2, 3 ... within a target */
	uint64_t time_us;	/* CLOCK_BOOTTIME at the end of the interval */
	uint64_t dt_us;		/* length of the interval; idle stretches may be merged into one */
	uint64_t cpu_us;	/* CPU time that the target used in the interval; 0: not known */
	uint64_t mem_available; /* pages the system can still give; 0: not known */
	uint32_t n_cpus; /* entries of cpus: n_zones * n_cpus of the shape; index zone*n_cpus+cpu */
	uint32_t cpu_size; /* stride of cpus */
	const void *cpus;
	const uint32_t *active; /* indexes of the entries with PCPTUNE_CPU_ACTIVE, ascending */
	uint32_t n_active;
	uint32_t reserved;
	/* Members from here on: only where `size` covers them, see the accessors. */
	uint32_t n_records;   /* 0 in most samples */
	uint32_t record_size; /* stride of records */
	const void *records;  /* struct pcptune_record, ascending index */
	/* Holds of the zone locks in the interval that took 65536 ns or longer. Counted only under
	 * a guard or a canary: 0 says nothing. */
	uint64_t long_holds;
};

#define PCPTUNE_SAMPLE_HAS(s, member) \
	((s)->size >= offsetof(struct pcptune_sample, member) + sizeof((s)->member))

static inline const struct pcptune_cpu *pcptune_sample_cpu(const struct pcptune_sample *s,
							   uint32_t i)
{
	return (const struct pcptune_cpu *)((const char *)s->cpus + (size_t)i * s->cpu_size);
}

/* What every sample has. */
#define PCPTUNE_SAMPLE_MIN_SIZE offsetof(struct pcptune_sample, n_records)

static inline uint32_t pcptune_sample_n_records(const struct pcptune_sample *s)
{
	return PCPTUNE_SAMPLE_HAS(s, records) ? s->n_records : 0;
}

static inline uint64_t pcptune_sample_long_holds(const struct pcptune_sample *s)
{
	return PCPTUNE_SAMPLE_HAS(s, long_holds) ? s->long_holds : 0;
}

static inline const struct pcptune_record *pcptune_sample_record(const struct pcptune_sample *s,
								 uint32_t i)
{
	return (const struct pcptune_record *)((const char *)s->records +
					       (size_t)i * s->record_size);
}

/* ---- the decision ---- */

/* One proposed change of one CPU. PCPTUNE_KEEP leaves a value alone. */
struct pcptune_change {
	uint32_t index; /* into the cpus of the sample */
	uint32_t high;
	uint32_t high_min;
	uint32_t high_max;
	uint32_t batch;
	uint32_t scale_max;
	uint32_t rules;
	uint32_t reason; /* id of a reason of this policy */
	int64_t arg[4];	 /* for the sentence of the reason */
};

struct pcptune_decision {
	uint32_t size;
	uint32_t change_size; /* stride of changes */
	uint32_t max_changes; /* room in changes; at least one for each entry of the sample */
	uint32_t n_changes;   /* out */
	struct pcptune_change *changes; /* out; at most one per index, ascending index */
	uint32_t reason;		/* out: the answer as a whole; needed when n_changes is 0 */
	uint32_t rest_ms; /* out: while nothing moves, do not ask again for so long; 0: ask */
	int64_t arg[4];	  /* out: for the sentence of `reason` */
};

/* Next free change of a decision with every value PCPTUNE_KEEP; NULL when there is no room. */
static inline struct pcptune_change *pcptune_decision_add(struct pcptune_decision *d,
							  uint32_t index, uint32_t reason)
{
	struct pcptune_change *c;

	if (d->n_changes >= d->max_changes)
		return NULL;
	c = (struct pcptune_change *)((char *)d->changes + (size_t)d->n_changes * d->change_size);
	d->n_changes++;
	c->index = index;
	c->high = c->high_min = c->high_max = PCPTUNE_KEEP;
	c->batch = c->scale_max = c->rules = PCPTUNE_KEEP;
	c->reason = reason;
	c->arg[0] = c->arg[1] = c->arg[2] = c->arg[3] = 0;
	return c;
}

/* ---- the descriptor ---- */
enum pcptune_param_type {
	PCPTUNE_PARAM_INT = 1,	/* min .. max */
	PCPTUNE_PARAM_BOOL = 2, /* 0, 1 */
	PCPTUNE_PARAM_ENUM = 3, /* index into choices */
};

struct pcptune_param {
	const char *name; /* [a-z][a-z0-9_]* */
	uint32_t type;
	uint32_t reserved;
	int64_t min;
	int64_t max;
	int64_t def;
	const char *unit;	    /* "pages", "ms", "permille", "" */
	const char *text;	    /* one line */
	const char *const *choices; /* ENUM: NULL-terminated names; else NULL */
};

/*
 * A reason is a short name and a sentence. In the sentence {a} {b} {c} {d} stand for arg[0..3]
 * and {old} {new} for high before and after. A suffix gives the unit: {a:pages}, {a:ms},
 * {a:permille} (printed as per cent), {a:ppm} (printed as per cent), {a:rate} (per second),
 * {a:rules} (the name of a rule generation).
 */
struct pcptune_reason {
	uint32_t id;   /* 1 .. 65535, unique, never reused */
	uint32_t kind; /* 0: a change, 1: no change */
	const char *name;
	const char *sentence;
};

/* Functions of the host; append-only. A plug-in links to nothing. */
struct pcptune_host {
	uint32_t size;
	uint32_t abi;
	/* debug text, rate-limited by the host; never needed for a result */
	void (*trace)(void *cookie, const char *text);
	void *cookie;
};

struct pcptune_policy {
	uint32_t abi;	      /* PCPTUNE_POLICY_ABI */
	uint32_t size;	      /* of this struct */
	uint32_t sample_size; /* sizeof(struct pcptune_sample) the policy was built with */
	uint32_t cpu_size;    /* sizeof(struct pcptune_cpu) */
	uint32_t decision_size;
	uint32_t change_size;
	const char *name; /* [a-z][a-z0-9_-]*, at most 31 bytes; the file is NAME.so */
	const char *version;
	const char *summary; /* one line */
	const struct pcptune_param *params;
	uint32_t n_params; /* at most 64 */
	uint32_t param_size;
	const struct pcptune_reason *reasons;
	uint32_t n_reasons; /* 1 .. 256 */
	uint32_t reason_size;
	/* Bytes of state for this shape; 0: none. At most 64 MiB. params are in table order. */
	size_t (*state_size)(const struct pcptune_shape *shape, const int64_t *params);
	/* state is zeroed. Returns 0 or -errno (-EINVAL: these parameters do not go together). */
	int (*init)(void *state, const struct pcptune_shape *shape, const int64_t *params);
	/* See the top of this file. */
	int (*decide)(void *state, const struct pcptune_shape *shape, const int64_t *params,
		      const struct pcptune_sample *sample, struct pcptune_decision *decision,
		      const struct pcptune_host *host);
	/*
	 * Optional: NULL, or a size that ends before it. Why init() gives -EINVAL for these
	 * parameters, as one line for people ("high is 4 pages and more, or 0"): static text, NULL
	 * for nothing to say. Called after such an init() only, with the same arguments.
	 */
	const char *(*refusal)(const struct pcptune_shape *shape, const int64_t *params);
	/*
	 * Optional: 0, or a size that ends before it. The policy wants records, about one in so
	 * many milliseconds for each active CPU; the host may take longer. Each costs the host some
	 * 2 KiB to read, so ask for no more than a decision needs.
	 */
	uint32_t record_ms;
	uint32_t reserved;
};

/* What every descriptor has; members after it are asked for only where its size covers them. */
#define PCPTUNE_POLICY_MIN_SIZE offsetof(struct pcptune_policy, refusal)

#define PCPTUNE_POLICY_SIZES                                                                      \
	.abi = PCPTUNE_POLICY_ABI, .size = sizeof(struct pcptune_policy),                         \
	.sample_size = sizeof(struct pcptune_sample), .cpu_size = sizeof(struct pcptune_cpu),     \
	.decision_size = sizeof(struct pcptune_decision),                                         \
	.change_size = sizeof(struct pcptune_change), .param_size = sizeof(struct pcptune_param), \
	.reason_size = sizeof(struct pcptune_reason)

/* The one symbol a policy exports. */
extern __attribute__((visibility("default"))) const struct pcptune_policy pcptune_policy_v1;

#ifdef __cplusplus
}
#endif
#endif
