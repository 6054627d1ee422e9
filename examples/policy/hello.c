/* SPDX-License-Identifier: MIT */
/*
 * hello: a policy to begin with. Longer lists for CPUs whose pages go to the zone and come back,
 * shorter ones for CPUs that rest.
 *
 * It needs the installed headers and nothing else: `make` builds it, and the daemon loads it.
 * docs/writing-a-policy.md walks through it; pcptune/policy.h says what every field means.
 *
 * decide() is pure: state and one sample in, a decision out. No clock, file, log or random source,
 * and integers only, so that a log can be replayed bit for bit (`pcptune verify`).
 */
#include <errno.h>
#include <pcptune/policy.h>
#include <stdbool.h>

/* ---- what it can be told; `pcptune policies hello` prints this table ---- */

enum { P_MOST, P_IDLE, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_MOST] = {"most", PCPTUNE_PARAM_INT, 0, 64, PCPTUNE_MAX_HIGH, 65536, "pages",
		    "high is never doubled above", NULL},
	[P_IDLE] = {"idle_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 10000, "ms",
		    "rest after which high is halved", NULL},
};

/* ---- what it can say; every answer has a reason, also that nothing is to be done ---- */

enum { R_DOUBLE = 1, R_HALVE, R_FIX, R_QUIET, R_UNUSED };

static const struct pcptune_reason reasons[] = {
	{R_DOUBLE, 0, "double",
	 "{a:pages} came from the zone and {b:pages} went back in one interval: high {old} -> "
	 "{new:pages}"},
	{R_HALVE, 0, "halve", "at rest for {a:ms}: high {old} -> {new:pages}"},
	{R_FIX, 0, "fix", "this policy alone moves high now: fixed at {new:pages}"},
	{R_QUIET, 1, "quiet", "{a} CPUs in use, none of them needs another high now"},
	{R_UNUSED, 1, "unused", "no CPU has allocated yet"},
};

/* ---- what it remembers: one flat block without pointers, zeroed by the host ---- */

struct cpu_state {
	uint64_t busy;	 /* time of the last traffic, us */
	uint32_t needed; /* high that a halving was wrong about; 0: not known */
	uint32_t halved; /* high before the last halving; 0: it was not halved */
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return (size_t)shape->n_zones * shape->n_cpus * sizeof(struct cpu_state);
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	(void)state;
	(void)shape;
	(void)p;
	return 0; /* -EINVAL: these parameters do not go together */
}

/* ---- the rule for one CPU: its new high and the reason, 0: no change ---- */

static uint32_t rule(struct cpu_state *cs, const struct pcptune_cpu *c, const int64_t *p,
		     uint64_t now, uint32_t *ret_reason)
{
	uint32_t least = 6 * c->batch > 4 ? 6 * c->batch : 4, most = (uint32_t)p[P_MOST];

	*ret_reason = 0;
	if (c->flags & PCPTUNE_CPU_ACTIVE || !cs->busy)
		cs->busy = now;
	if (c->refills && c->drains && c->high < most) {
		*ret_reason = R_DOUBLE;
		if (cs->halved) /* that was an error: not twice */
			cs->needed = cs->halved;
		cs->halved = 0;
		return c->high < most / 2 ? 2 * c->high : most;
	}
	if (now - cs->busy >= (uint64_t)p[P_IDLE] * 1000 && c->high / 2 >= least && !cs->needed) {
		*ret_reason = R_HALVE;
		if (!cs->halved)
			cs->halved = c->high;
		return c->high / 2;
	}
	if (c->high_min != c->high || c->high_max != c->high)
		*ret_reason = R_FIX;
	return c->high;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	const uint32_t closed = PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD | PCPTUNE_CPU_UNKNOWN;
	struct cpu_state *cpus = state;
	int64_t used = 0;

	(void)shape;
	(void)host;
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i); /* never with [] */
		struct pcptune_change *ch;
		uint32_t reason, high;

		if (!c->high) /* never used */
			continue;
		used++;
		if (c->flags & closed) /* a change would be dropped, or there are no counters */
			continue;
		high = rule(&cpus[i], c, p, s->time_us, &reason);
		if (!reason)
			continue;
		ch = pcptune_decision_add(d, i, reason); /* in ascending order of i */
		if (!ch)
			return -ENOBUFS;
		ch->high = ch->high_min = ch->high_max = high; /* so that nothing else moves it */
		ch->arg[0] = reason == R_DOUBLE ? (int64_t)c->alloc_zone : p[P_IDLE];
		ch->arg[1] = (int64_t)c->free_zone;
	}
	d->reason = used ? R_QUIET : R_UNUSED; /* of the whole; needed where there is no change */
	d->arg[0] = used;
	d->rest_ms = 1000; /* while nothing moves, the next sample may come so late */
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "hello", /* the file is hello.so */
	.version = "0.1",
	.summary = "doubles high where pages go out and come back, halves it at rest",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
