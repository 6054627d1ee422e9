/* SPDX-License-Identifier: MIT */
/*
 * A policy at work on one target.
 *
 * The instance owns the flat state of the policy, followed by the host's own few words (breaches,
 * raises on their way) and those of the guard and of the canary, where there are such, in one
 * block: what is written to the log and loaded again is that block, so that a replay that begins in
 * the middle decides as the daemon did.
 *
 * A decision is read as if it came from a stranger: the host keeps its own copies of everything the
 * policy could overwrite (room, strides, the array), and checks counts, order, indexes, reasons and
 * values before it looks at one of them.
 *
 * One thread at a time; nothing here blocks.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "lib/lines.h"
#include "policies/host_canary.h"
#include "policies/host_internal.h"

#define BREACHES_MAX	  3u
#define TRACES_PER_DECIDE 4u
#define LAZY_STATE \
	(1u << 20) /* bytes of a state from which on it is not touched before it is used */

/* The tail of the state block. */
struct host_words {
	uint32_t breaches;
	uint32_t n;
	uint32_t pending[]; /* high that was given, 0: nothing is on its way */
};

const struct pcptune_shape policy_trial_shape = {
	.size = sizeof(struct pcptune_shape),
	.n_zones = 1,
	.n_cpus = 3,
	.host_cpus = 2,
	.managed_pages = 1u << 20,
	.low_wmark_pages = 4096,
	.budget_pages = 1u << 17,
	.high_limit = 1u << 20,
	.interval_ms = 100,
};

struct policy_instance {
	struct policy_module *module;
	const struct pcptune_policy *desc;
	struct pcptune_shape shape;
	int64_t params[POLICY_MAX_PARAMS];
	uint32_t n;	    /* entries of a sample */
	size_t policy_size; /* of the policy's part, padded */
	size_t remote_size; /* the same, not padded, of a policy that runs elsewhere */
	size_t state_size;
	char *state;
	struct host_words *words;      /* in state */
	struct guard_cpu *guard;       /* in state; NULL: no guard */
	struct canary *canary;	       /* in state; NULL: no canary */
	struct pcptune_change *merged; /* what the guard left of the changes */
	struct pcptune_change *shared; /* what the canary left of them */
	struct pcptune_cpu *view;      /* with a canary: the CPUs as the policy sees them */
	struct pcptune_sample seen;
	uint32_t canary_reason; /* of the sample that was seen */
	size_t change_size;
	char *changes;		    /* n x change_size */
	struct pcptune_decision *d; /* as large as the policy thinks it is */
	struct host_change *out;
	struct pcptune_host host;
	uint32_t traces;
};

static policy_trace_fn trace_fn;
static void *trace_cookie;

void policy_set_trace(policy_trace_fn fn, void *cookie)
{
	trace_fn = fn;
	trace_cookie = cookie;
}

static void on_trace(void *cookie, const char *text)
{
	struct policy_instance *pi = cookie;

	if (trace_fn && text && pi->traces < TRACES_PER_DECIDE) {
		pi->traces++;
		trace_fn(trace_cookie, pi->desc->name, text);
	}
}

/* ---- life ---- */

static int check_shape(const struct pcptune_shape *shape, char *why)
{
	if (shape->n_zones < 1 || shape->n_zones > PCPTUNE_MAX_ZONES || shape->n_cpus < 1 ||
	    shape->n_cpus > PCPTUNE_MAX_CPUS || shape->host_cpus < 1)
		return host_why(
			why, -EINVAL,
			"shape: %u zones of %u CPUs on %u; right are 1..%u, 1..%u, 1 or more",
			shape->n_zones, shape->n_cpus, shape->host_cpus, PCPTUNE_MAX_ZONES,
			PCPTUNE_MAX_CPUS);
	return 0;
}

/* size: of the policy's own part */
static int alloc_state(struct policy_instance *pi, size_t size, char *why)
{
	const struct pcptune_policy *p = pi->desc;
	size_t words = sizeof(struct host_words) + (size_t)pi->n * sizeof(uint32_t);
	bool guarded = policy_guarded(pi->params), canary = policy_canary(pi->params) != 0;
	size_t guard = guarded ? pi->n * sizeof(struct guard_cpu) : 0;
	size_t more = canary ? sizeof(*pi->canary) + pi->n * sizeof(struct canary_cpu) : 0;

	if (size > HOST_STATE_MAX)
		return host_why(why, -EPROTO,
				"policy \"%s\": wants %zu bytes of state, at most %llu", p->name,
				size, (unsigned long long)HOST_STATE_MAX);
	pi->policy_size = (size + 15) & ~(size_t)15;
	if (guarded || canary)
		words = (words + 15) & ~(size_t)15;
	pi->state_size = pi->policy_size + words + guard + more;
	/* memory that a policy asks for and does not use shall cost nothing */
	pi->state = pi->state_size < LAZY_STATE ? lines_calloc(1, pi->state_size)
						: calloc(1, pi->state_size);
	if (!pi->state)
		return -ENOMEM;
	pi->words = (struct host_words *)(pi->state + pi->policy_size);
	pi->words->n = pi->n;
	if (guarded)
		pi->guard = (struct guard_cpu *)(pi->state + pi->policy_size + words);
	if (canary)
		pi->canary = (struct canary *)(pi->state + pi->policy_size + words + guard);
	return 0;
}

static int alloc_rest(struct policy_instance *pi)
{
	size_t decision = pi->desc->decision_size;

	pi->change_size = pi->desc->change_size;
	pi->changes = calloc(pi->n, pi->change_size);
	pi->d = calloc(1, decision > sizeof(*pi->d) ? decision : sizeof(*pi->d));
	pi->out = calloc(pi->n, sizeof(*pi->out));
	if (pi->guard)
		pi->merged = calloc(pi->n, sizeof(*pi->merged));
	if (pi->canary) {
		pi->shared = calloc(pi->n, sizeof(*pi->shared));
		pi->view = calloc(pi->n, sizeof(*pi->view));
	}
	return pi->changes && pi->d && pi->out && !pi->guard == !pi->merged &&
			       !pi->canary == !(pi->shared && pi->view)
		       ? 0
		       : -ENOMEM;
}

const char *host_refusal(const struct pcptune_policy *p, const struct pcptune_shape *shape,
			 const int64_t *params)
{
	const char *text = NULL;

	if (HOST_HAS(p, refusal) && p->refusal)
		text = p->refusal(shape, params);
	return text ? text : "these parameters do not go together";
}

static int take_memory(struct policy_instance *pi, size_t policy_size, char *why)
{
	int r = alloc_state(pi, policy_size, why);

	if (!r)
		r = alloc_rest(pi);
	if (r == -ENOMEM)
		host_why(why, r, "no memory for an instance of policy \"%s\"", pi->desc->name);
	return r;
}

static int init_instance(struct policy_instance *pi, char *why)
{
	int r = take_memory(pi, pi->desc->state_size(&pi->shape, pi->params), why);

	if (r)
		return r;
	r = pi->desc->init(pi->state, &pi->shape, pi->params);
	if (r > 0)
		r = -EPROTO;
	if (r)
		return host_why(why, r, "policy \"%s\": %.160s", pi->desc->name,
				r == -EINVAL ? host_refusal(pi->desc, &pi->shape, pi->params)
					     : strerror(-r));
	return 0;
}

static int make(struct policy_module *m, const struct pcptune_shape *shape, const int64_t *params,
		struct policy_instance **ret, char *why)
{
	struct policy_instance *pi;
	int r = check_shape(shape, why);

	if (r)
		return r;
	pi = calloc(1, sizeof(*pi));
	if (!pi)
		return host_why(why, -ENOMEM, "no memory for a policy instance");
	pi->module = policy_ref(m);
	pi->desc = policy_desc(m);
	pi->shape = *shape;
	pi->shape.size = sizeof(pi->shape);
	pi->n = shape->n_zones * shape->n_cpus;
	memcpy(pi->params, params, pi->desc->n_params * sizeof(*params));
	memcpy(pi->params + POLICY_OWN_PARAMS, params + POLICY_OWN_PARAMS,
	       POLICY_HOST_PARAMS * sizeof(*params));
	pi->host = (struct pcptune_host){sizeof(pi->host), PCPTUNE_POLICY_ABI, on_trace, pi};
	*ret = pi;
	return 0;
}

int policy_instance_new(struct policy_module *m, const struct pcptune_shape *shape,
			const int64_t *params, struct policy_instance **ret, char *why)
{
	struct policy_instance *pi = NULL;
	int r;

	if (policy_remote(m))
		return host_why(why, -ENOTSUP, "policy \"%s\" runs in a process of its own",
				policy_desc(m)->name);
	r = make(m, shape, params, &pi, why);
	if (!r)
		r = init_instance(pi, why);
	if (r)
		policy_instance_free(pi);
	else
		*ret = pi;
	return r;
}

int policy_instance_new_remote(struct policy_module *m, const struct pcptune_shape *shape,
			       const int64_t *params, size_t state_size,
			       struct policy_instance **ret, char *why)
{
	struct policy_instance *pi = NULL;
	int r = make(m, shape, params, &pi, why);

	if (!r)
		r = take_memory(pi, state_size, why);
	if (r) {
		policy_instance_free(pi);
		return r;
	}
	pi->remote_size = state_size;
	*ret = pi;
	return 0;
}

void policy_instance_fetch(struct policy_instance *pi, const void *state)
{
	memcpy(pi->state, state, pi->remote_size);
}

void policy_instance_free(struct policy_instance *pi)
{
	if (!pi)
		return;
	policy_unref(pi->module);
	free(pi->state);
	free(pi->changes);
	free(pi->d);
	free(pi->out);
	free(pi->merged);
	free(pi->shared);
	free(pi->view);
	free(pi);
}

struct policy_module *policy_instance_module(const struct policy_instance *pi)
{
	return pi->module;
}

bool policy_instance_benched(const struct policy_instance *pi)
{
	return pi->words->breaches >= BREACHES_MAX;
}

const void *policy_instance_state(const struct policy_instance *pi, size_t *ret_size)
{
	*ret_size = pi->state_size;
	return pi->state;
}

int policy_instance_state_load(struct policy_instance *pi, const void *state, size_t size)
{
	const struct host_words *words = (const void *)((const char *)state + pi->policy_size);
	uint32_t n;

	if (size != pi->state_size)
		return -EINVAL;
	memcpy(&n, &words->n, sizeof(n));
	if (n != pi->n)
		return -EINVAL;
	memcpy(pi->state, state, size);
	return 0;
}

/* ---- the contract ---- */

static bool high_ok(uint32_t v, uint32_t least)
{
	return v == PCPTUNE_KEEP || (v >= least && v <= PCPTUNE_MAX_HIGH);
}

static bool values_ok(const struct pcptune_change *c)
{
	return high_ok(c->high, 1) && high_ok(c->high_min, 0) && high_ok(c->high_max, 0) &&
	       (c->batch == PCPTUNE_KEEP || (c->batch >= 1 && c->batch <= PCPTUNE_MAX_BATCH)) &&
	       (c->scale_max == PCPTUNE_KEEP || c->scale_max <= PCPTUNE_MAX_SCALE) &&
	       (c->rules == PCPTUNE_KEEP || pcptune_rules_known(c->rules));
}

static bool reason_ok(const struct policy_instance *pi, uint32_t id, uint32_t kind)
{
	const struct pcptune_reason *r = policy_reason(pi->module, id);

	return r && r->kind == kind && id < GUARD_REASON_BASE;
}

static int check_change(const struct policy_instance *pi, uint32_t i, int64_t *last, char *why)
{
	const struct pcptune_change *c = (const void *)(pi->changes + (size_t)i * pi->change_size);
	const char *name = pi->desc->name;

	if (c->index >= pi->n)
		return host_why(why, -EPROTO, "policy \"%s\": change %u is for index %u of %u",
				name, i, c->index, pi->n);
	if ((int64_t)c->index <= *last)
		return host_why(why, -EPROTO,
				"policy \"%s\": change %u is for index %u after %lld; right is "
				"ascending order",
				name, i, c->index, (long long)*last);
	*last = c->index;
	if (!reason_ok(pi, c->reason, 0))
		return host_why(why, -EPROTO,
				"policy \"%s\": change %u has no reason (%u) for a change", name, i,
				c->reason);
	if (!values_ok(c))
		return host_why(
			why, -EPROTO,
			"policy \"%s\": change %u has a value out of range: high %u (%u..%u) "
			"batch %u scale_max %u rules %u",
			name, i, c->high, c->high_min, c->high_max, c->batch, c->scale_max,
			c->rules);
	return 0;
}

/* pi->d as the policy left it; the host's own copies count. */
static int check_decision(struct policy_instance *pi, char *why)
{
	struct pcptune_decision *d = pi->d;
	int64_t last = -1;
	int r = 0;

	if (d->n_changes > pi->n)
		return host_why(why, -EPROTO, "policy \"%s\": %u changes, room is for %u",
				pi->desc->name, d->n_changes, pi->n);
	d->changes = (struct pcptune_change *)pi->changes;
	d->change_size = (uint32_t)pi->change_size;
	for (uint32_t i = 0; !r && i < d->n_changes; i++)
		r = check_change(pi, i, &last, why);
	if (!r && !d->n_changes && !reason_ok(pi, d->reason, 1))
		r = host_why(why, -EPROTO, "policy \"%s\": no change and no reason (%u) for it",
			     pi->desc->name, d->reason);
	return r;
}

/* What decide() gave back, and what it left in pi->d and pi->changes. */
static int check_answer(struct policy_instance *pi, int r, char *why)
{
	if (r)
		return host_why(why, -EPROTO, "policy \"%s\": decide returned %d (%s)",
				pi->desc->name, r,
				r < 0 && r > INT_MIN ? strerror(-r) : "not 0 or -errno");
	return check_decision(pi, why);
}

static int call(struct policy_instance *pi, const struct pcptune_sample *s, char *why)
{
	memset(pi->d, 0, sizeof(*pi->d));
	pi->d->size = sizeof(*pi->d);
	pi->d->change_size = (uint32_t)pi->change_size;
	pi->d->max_changes = pi->n;
	pi->d->changes = (struct pcptune_change *)pi->changes;
	pi->traces = 0;
	return check_answer(
		pi, pi->desc->decide(pi->state, &pi->shape, pi->params, s, pi->d, &pi->host), why);
}

/* What the guard has to say about the changes of the policy, before the host shares the budget. */
static void guard_before(struct policy_instance *pi, const struct pcptune_sample *s)
{
	bool any = pi->d->n_changes;
	uint32_t dropped;

	guard_sample(pi->guard, pi->params + POLICY_OWN_PARAMS, s);
	dropped = guard_merge(pi->guard, s, pi->d, pi->merged);
	if (any && !pi->d->n_changes) {
		pi->d->reason = GUARD_BENCHED;
		memset(pi->d->arg, 0, sizeof(pi->d->arg));
		pi->d->arg[0] = dropped;
	}
}

bool policy_instance_wants_holds(const struct policy_instance *pi)
{
	return pi->guard || pi->canary;
}

const struct pcptune_sample *policy_instance_view(struct policy_instance *pi,
						  const struct pcptune_sample *s)
{
	const size_t known = sizeof(*pi->view);

	if (!pi->canary)
		return s;
	pi->canary_reason =
		canary_sample(pi->canary, pi->params + POLICY_OWN_PARAMS + POLICY_GUARD_PARAMS, s);
	if (pi->canary->phase == CANARY_SPREAD)
		return s;
	for (uint32_t i = 0; i < pi->n; i++) {
		memcpy(&pi->view[i], pcptune_sample_cpu(s, i), known);
		if (!canary_free(pi->canary, i))
			pi->view[i].flags |= PCPTUNE_CPU_HELD;
	}
	pi->seen = *s;
	pi->seen.cpus = pi->view;
	pi->seen.cpu_size = (uint32_t)known;
	return &pi->seen;
}

static void canary_after(struct policy_instance *pi, struct host_answer *a)
{
	a->canary_reason = pi->canary_reason;
	a->canary_spread = pi->canary->phase == CANARY_SPREAD;
	a->canary_over = pi->canary->phase == CANARY_OVER;
	memcpy(a->canary_arg, pi->canary->arg, sizeof(a->canary_arg));
	if (a->canary_reason == CANARY_MEASURES) {
		a->canary_arg[0] = pi->canary->n_chosen;
		a->canary_arg[1] = pi->canary->n_busy;
	}
}

static int may_ask(const struct policy_instance *pi, const struct pcptune_sample *s, char *why)
{
	if (s->n_cpus != pi->n || s->cpu_size < sizeof(struct pcptune_cpu))
		return host_why(why, -EINVAL, "sample: %u entries of %u bytes, right are %u of %zu",
				s->n_cpus, s->cpu_size, pi->n, sizeof(struct pcptune_cpu));
	if (policy_instance_benched(pi))
		return host_why(why, -ESTALE,
				"policy \"%s\" is benched: it broke its contract %u times",
				pi->desc->name, BREACHES_MAX);
	return 0;
}

/* r: of the contract; the rest is the host's. */
static int conclude(struct policy_instance *pi, const struct pcptune_sample *s, int r,
		    struct host_answer *ret)
{
	struct host_answer a = {0};

	if (r) {
		pi->words->breaches++;
		return r;
	}
	if (pi->canary)
		canary_merge(pi->canary, s, pi->d, pi->shared);
	if (pi->guard)
		guard_before(pi, s);
	host_filter(&pi->shape, s, pi->d, pi->words->pending, pi->out, &a.n_changes, &a.n_dropped);
	for (uint32_t i = 0; pi->guard && i < a.n_changes; i++)
		guard_applied(pi->guard, &pi->out[i], s);
	for (uint32_t i = 0; pi->canary && i < a.n_changes; i++)
		canary_applied(pi->canary, &pi->out[i], s);
	if (pi->canary)
		canary_after(pi, &a);
	a.changes = pi->out;
	a.reason = pi->d->n_changes ? 0 : pi->d->reason;
	a.rest_ms = pi->d->rest_ms;
	memcpy(a.arg, pi->d->arg, sizeof(a.arg));
	*ret = a;
	return 0;
}

int policy_instance_decide(struct policy_instance *pi, const struct pcptune_sample *s,
			   struct host_answer *ret, char *why)
{
	int r = may_ask(pi, s, why);

	*ret = (struct host_answer){0};
	return r ? r : conclude(pi, s, call(pi, policy_instance_view(pi, s), why), ret);
}

/* Everything is copied once, and looked at in the copy: the other side may still write. */
int policy_instance_take(struct policy_instance *pi, const struct pcptune_sample *s,
			 const struct policy_reply *reply, struct host_answer *ret, char *why)
{
	int r = may_ask(pi, s, why);
	uint32_t n;

	*ret = (struct host_answer){0};
	if (r)
		return r;
	memcpy(pi->d, reply->decision, sizeof(*pi->d));
	n = pcptune_min_u32(pi->d->n_changes, pi->n);
	memcpy(pi->changes, reply->changes, (size_t)n * pi->change_size);
	return conclude(pi, s, check_answer(pi, reply->r, why), ret);
}
