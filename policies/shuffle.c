/* SPDX-License-Identifier: MIT */
/*
 * shuffle: one total budget; capacity goes from CPUs with few misses to the CPUs with most.
 *
 * What is not given out goes first, to whoever misses. When that is used up, each shuffle picks the
 * few CPUs with most pages out and back since the last one, and takes a share of the high of CPUs
 * with less than half of the misses of the least of those. CPUs that rest for their hold time are
 * drained to the floor. What was taken is given out with the samples that follow, as it comes free.
 *
 * Half of the misses is the dead band: when two CPUs are that near, capacity stays where it is. A
 * CPU that was robbed in error gets back what it needed, and keeps it (policies/watch.h).
 */
#include "policies/watch.h"

enum { P_SHUFFLE, P_TAKERS, P_SHARE, P_HOLD, P_MISS, P_TRAFFIC, P_BUDGET, P_FLOOR, N_PARAMS };

#define TAKERS_MAX 64u

static const struct pcptune_param params[N_PARAMS] = {
	[P_SHUFFLE] = {"shuffle_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		       "time between two shuffles", NULL},
	[P_TAKERS] = {"takers", PCPTUNE_PARAM_INT, 0, 1, TAKERS_MAX, 5, "",
		      "CPUs that may get more in one shuffle", NULL},
	[P_SHARE] = {"share_permille", PCPTUNE_PARAM_INT, 0, 1, 500, 100, "permille",
		     "share of its high that a CPU with few misses gives in one shuffle", NULL},
	[P_HOLD] = {"hold_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		    "shortest time from a raise to giving, and of rest to being drained", NULL},
	[P_MISS] = PARAM_MISS("avoidable zone pages per page allocated or freed that are too many"),
	[P_TRAFFIC] = PARAM_TRAFFIC(
		"pages allocated and freed in about 4 s below which nothing is raised"),
	[P_BUDGET] = PARAM_BUDGET,
	[P_FLOOR] = PARAM_FLOOR("no CPU gives below; 0: 6 x batch"),
};

enum {
	R_TAKE_OVER = 1,
	R_GIVEN,
	R_STOLEN,
	R_DRAINED,
	R_OVER_BUDGET,
	R_FEW_MISSES = 20,
	R_EVEN,
	R_BETWEEN,
	R_HOLD,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	REASON_TAKE_OVER(R_TAKE_OVER),
	{R_GIVEN, 0, "given",
	 "among those with most misses, {a:permille} of {b:pages} went to the zone and came back: "
	 "high {old} -> {new:pages}"},
	{R_STOLEN, 0, "stolen",
	 "{a:pages} went out and came back here since the last shuffle, {b:pages} where they are "
	 "needed: high {old} -> {new:pages}"},
	{R_DRAINED, 0, "drained", "at rest for {a:ms} and more: high {old} -> {new:pages}"},
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_FEW_MISSES, 1, "few-misses", "none of the {a} CPUs in use misses much"},
	{R_EVEN, 1, "even",
	 "{a} CPUs miss, {b:pages} of {c:pages} are given out, nobody has much less misses"},
	{R_BETWEEN, 1, "between-shuffles", "{a} CPUs miss, the next shuffle is in {b:ms}"},
	{R_HOLD, 1, "hold", "{a} CPUs would change, but are settling, held or in their hold time"},
	REASON_UNUSED(R_UNUSED),
};

struct cpu_state {
	struct watch w;
	uint64_t back;	/* pages out and back since the last shuffle */
	uint32_t taker; /* may be given more until the next one */
	uint32_t reserved;
};

struct state {
	uint64_t since_us; /* the last shuffle */
	uint64_t least;	   /* misses of the least of the takers */
	uint64_t short_of; /* pages that takers want and nobody has yet */
	uint32_t floor;
	uint32_t takers;
	struct cpu_state cpu[];
};

/* One call: what came in, and what the answers of the CPUs add up to. */
struct round {
	const int64_t *p;
	struct pcptune_decision *d;
	uint64_t now;
	bool shuffle;
	struct watch_tally t;
	uint32_t waiting, above;
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct cpu_state));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	st->floor = watch_floor(shape, p[P_FLOOR]);
	st->since_us = (uint64_t)p[P_SHUFFLE] * 1000; /* the first sample with misses shuffles */
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		watch_init(&st->cpu[i].w, p[P_HOLD]);
	return 0;
}

static bool misses(const struct round *r, const struct cpu_state *cs)
{
	return cs->w.missed >= (uint32_t)r->p[P_MISS];
}

static void watch_all(struct state *st, const struct pcptune_sample *s, struct round *r)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];

		if (!cpu_used(c))
			continue;
		watch_cpu(&cs->w, c, s, r->p[P_HOLD], r->p[P_TRAFFIC]);
		if (c->flags & PCPTUNE_CPU_ACTIVE && watch_plausible(c))
			cs->back += watch_min(c->alloc_zone, c->free_zone);
		watch_tally_add(&r->t, &cs->w, c);
		r->t.missing += misses(r, cs);
	}
	r->t.room = watch_sub0(r->t.budget, r->t.sum);
	st->since_us += watch_min(s->dt_us, (uint64_t)r->p[P_SHUFFLE] * 1000);
	r->shuffle = r->t.missing && st->since_us >= (uint64_t)r->p[P_SHUFFLE] * 1000;
}

/* Most misses first, at most `takers` of them; what they want beyond the room is to be taken. */
static void pick_takers(struct state *st, const struct pcptune_sample *s, const struct round *r)
{
	uint64_t want = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++)
		st->cpu[i].taker = 0;
	for (st->takers = 0; st->takers < (uint32_t)r->p[P_TAKERS]; st->takers++) {
		struct cpu_state *best = NULL;
		uint32_t at = 0;

		for (uint32_t i = 0; i < s->n_cpus; i++) {
			struct cpu_state *cs = &st->cpu[i];

			if (!cpu_used(pcptune_sample_cpu(s, i)) || cs->taker || !misses(r, cs) ||
			    (best && cs->back <= best->back))
				continue;
			best = cs;
			at = i;
		}
		if (!best)
			break;
		best->taker = 1;
		st->least = best->back;
		want += watch_more(&best->w, pcptune_sample_cpu(s, at)) -
			pcptune_sample_cpu(s, at)->high;
	}
	st->short_of = watch_sub0(want, r->t.room);
	st->since_us = 0;
}

/* What this CPU would keep if it gave a share; a CPU at work keeps what it is known to need. */
static uint32_t robbed(const struct round *r, const struct state *st, const struct watch *w,
		       const struct pcptune_cpu *c)
{
	uint32_t keep = pcptune_max_u32(st->floor, w->learned);
	uint32_t share = (uint32_t)((uint64_t)c->high * (uint64_t)r->p[P_SHARE] / 1000);

	return pcptune_max_u32(keep, c->high - share);
}

static int steal(struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		 const struct pcptune_cpu *c)
{
	uint32_t high = robbed(r, st, &cs->w, c);
	struct pcptune_change *ch;

	if (cs->taker || !st->short_of || high >= c->high || 2 * cs->back > st->least)
		return 0;
	if (r->now - cs->w.raised < cs->w.hold_us) {
		r->waiting++;
		return 0;
	}
	ch = watch_fix(r->d, i, R_STOLEN, high);
	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)cs->back;
	ch->arg[1] = (int64_t)st->least;
	st->short_of = watch_sub0(st->short_of, c->high - high);
	watch_lowered(&cs->w, high, r->now);
	return 1;
}

static int drain(const struct state *st, struct round *r, uint32_t i, struct watch *w,
		 const struct pcptune_cpu *c)
{
	struct pcptune_change *ch;

	if (c->high <= st->floor + st->floor / 3 || !watch_rests(w, r->now))
		return 0;
	if (!watch_may_lower(w, r->now)) {
		r->waiting++;
		return 0;
	}
	ch = watch_fix(r->d, i, R_DRAINED, st->floor);
	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)((r->now - w->active) / 1000);
	watch_lowered(w, st->floor, r->now);
	return 1;
}

static int answer_cpu(struct state *st, struct round *r, uint32_t i, const struct pcptune_cpu *c)
{
	struct cpu_state *cs = &st->cpu[i];
	uint32_t cut = watch_cut(c, &r->t, st->floor);
	int n;

	if (!cpu_open(c)) {
		r->waiting += misses(r, cs) || cut < c->high;
		return 0;
	}
	if (cut < c->high)
		return watch_over_budget(r->d, i, R_OVER_BUDGET, &cs->w, &r->t, cut);
	if (watch_take_over(&cs->w, c, r->now))
		return watch_fix(r->d, i, R_TAKE_OVER, c->high) ? 1 : -1;
	if (misses(r, cs) && cs->taker)
		return watch_raise(r->d, i, R_GIVEN, &cs->w, c, &r->t, watch_more(&cs->w, c),
				   r->now);
	n = drain(st, r, i, &cs->w, c);
	return n || !r->shuffle ? n : steal(st, r, i, cs, c);
}

static void answer_whole(const struct state *st, const struct round *r)
{
	struct pcptune_decision *d = r->d;
	const struct watch_tally *t = &r->t;

	d->reason = !t->used	  ? R_UNUSED
		    : r->waiting  ? R_HOLD
		    : !t->missing ? R_FEW_MISSES
		    : r->shuffle  ? R_EVEN
				  : R_BETWEEN;
	d->arg[0] = r->waiting ? r->waiting : t->missing ? t->missing : t->used;
	d->arg[1] = r->shuffle ? (int64_t)t->sum : r->p[P_SHUFFLE] - (int64_t)(st->since_us / 1000);
	d->arg[2] = (int64_t)t->budget;
	d->rest_ms = r->above ? (uint32_t)r->p[P_SHUFFLE] : REST_LONG_MS;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct round r = {.p = p, .d = d, .now = s->time_us};
	struct state *st = state;

	(void)host;
	r.t.budget = watch_budget(shape, p[P_BUDGET]);
	watch_all(st, s, &r);
	if (r.shuffle)
		pick_takers(st, s, &r);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		if (answer_cpu(st, &r, i, c) < 0)
			return -ENOBUFS;
		r.above += watch_above(c, st->floor);
		if (r.shuffle)
			st->cpu[i].back = 0;
	}
	answer_whole(st, &r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "shuffle",
	.version = "1.0",
	.summary = "one budget: CPUs with few misses give a share of it to those with most",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
