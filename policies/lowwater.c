/* SPDX-License-Identifier: MIT */
/*
 * lowwater: at each look, three quarters of what was not needed since the last one go back.
 *
 * The low water mark of a list is the least that lay on it since the last look. Pages below it, and
 * room that was never filled, served nobody: high minus the swing of the lists. A CPU whose list
 * ran dry and was full again in the same stretch has a low water mark below zero: it gets more.
 *
 * Each CPU answers for itself; the budget is a ceiling and is not shared out by need. Nothing is
 * given back before the hold time of the CPU has passed, see policies/watch.h.
 */
#include "policies/watch.h"

enum { P_LOOK, P_HOLD, P_MISS, P_TRAFFIC, P_BUDGET, P_FLOOR, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_LOOK] = {"look_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 1000, "ms",
		    "time between two looks", NULL},
	[P_HOLD] = {"hold_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		    "shortest time from a raise to giving back, and how far a look goes back",
		    NULL},
	[P_MISS] = PARAM_MISS("avoidable zone pages per page allocated or freed that are too many"),
	[P_TRAFFIC] = PARAM_TRAFFIC(
		"pages allocated and freed in about 4 s below which nothing is raised"),
	[P_BUDGET] = PARAM_BUDGET,
	[P_FLOOR] = PARAM_FLOOR("giving back stops here; 0: 6 x batch"),
};

enum {
	R_TAKE_OVER = 1,
	R_DRY,
	R_UNNEEDED,
	R_OVER_BUDGET,
	R_NEEDED = 20,
	R_BETWEEN,
	R_BUDGET,
	R_HOLD,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	REASON_TAKE_OVER(R_TAKE_OVER),
	{R_DRY, 0, "dry",
	 "the lists ran dry and full, {a:permille} of {b:pages} went to the zone and came back: "
	 "high {old} -> {new:pages}"},
	{R_UNNEEDED, 0, "unneeded",
	 "{a:pages} of high were not needed in {b:ms} and more, three quarters of them go: high "
	 "{old} -> {new:pages}"},
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_NEEDED, 1, "needed", "all {a} CPUs in use need what they have and miss little"},
	{R_BETWEEN, 1, "between-looks", "the next look is in {a:ms}"},
	{R_BUDGET, 1, "budget", "{a} CPUs ran dry, but {b:pages} of {c:pages} are given out"},
	{R_HOLD, 1, "hold", "{a} CPUs would change, but are settling, held or in their hold time"},
	REASON_UNUSED(R_UNUSED),
};

struct state {
	uint64_t since_us; /* the last look */
	uint32_t floor;
	uint32_t reserved;
	struct watch cpu[];
};

/* One call: what came in, and what the answers of the CPUs add up to. */
struct round {
	const int64_t *p;
	struct pcptune_decision *d;
	uint64_t now;
	bool look;
	struct watch_tally t;
	uint32_t cut, waiting, above;
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct watch));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	st->floor = watch_floor(shape, p[P_FLOOR]);
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		watch_init(&st->cpu[i], p[P_HOLD]);
	return 0;
}

static void watch_all(struct state *st, const struct pcptune_sample *s, struct round *r)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		watch_cpu(&st->cpu[i], c, s, r->p[P_HOLD], r->p[P_TRAFFIC]);
		watch_tally_add(&r->t, &st->cpu[i], c);
	}
	r->t.room = watch_sub0(r->t.budget, r->t.sum);
	st->since_us += watch_min(s->dt_us, (uint64_t)r->p[P_LOOK] * 1000);
	r->look = st->since_us >= (uint64_t)r->p[P_LOOK] * 1000;
	if (r->look)
		st->since_us = 0;
}

static int dry(struct round *r, uint32_t i, struct watch *w, const struct pcptune_cpu *c)
{
	int n = watch_raise(r->d, i, R_DRY, w, c, &r->t, watch_more(w, c), r->now);

	r->cut += n == 0;
	return n;
}

static int unneeded(struct round *r, uint32_t floor, uint32_t i, struct watch *w,
		    const struct pcptune_cpu *c)
{
	uint32_t need = watch_need(w, c, floor, r->now), spare = pcptune_sub0_u32(c->high, need);
	struct pcptune_change *ch;

	if (spare < c->high / 4 + 1)
		return 0;
	if (!watch_may_lower(w, r->now)) {
		r->waiting++;
		return 0;
	}
	ch = watch_fix(r->d, i, R_UNNEEDED, c->high - (spare - spare / 4));
	if (!ch)
		return -1;
	ch->arg[0] = spare;
	ch->arg[1] = w->hold_us / 1000;
	watch_lowered(w, ch->high, r->now);
	return 1;
}

static int answer_cpu(struct round *r, uint32_t floor, uint32_t i, struct watch *w,
		      const struct pcptune_cpu *c)
{
	uint32_t cut = watch_cut(c, &r->t, floor), limit = (uint32_t)r->p[P_MISS];

	if (!cpu_open(c)) {
		r->waiting += w->missed >= limit || cut < c->high;
		return 0;
	}
	if (cut < c->high)
		return watch_over_budget(r->d, i, R_OVER_BUDGET, w, &r->t, cut);
	if (watch_take_over(w, c, r->now))
		return watch_fix(r->d, i, R_TAKE_OVER, c->high) ? 1 : -1;
	if (r->look && w->missed >= limit)
		return dry(r, i, w, c);
	if (r->look && w->missed < limit / 4 + 1) /* a dead band lies between the two */
		return unneeded(r, floor, i, w, c);
	return 0;
}

static void answer_whole(const struct state *st, const struct round *r)
{
	struct pcptune_decision *d = r->d;

	d->reason = !r->t.used	 ? R_UNUSED
		    : !r->look	 ? R_BETWEEN
		    : r->cut	 ? R_BUDGET
		    : r->waiting ? R_HOLD
				 : R_NEEDED;
	d->arg[0] = r->cut ? r->cut : r->waiting ? r->waiting : r->t.used;
	if (d->reason == R_BETWEEN)
		d->arg[0] = r->p[P_LOOK] - (int64_t)(st->since_us / 1000);
	d->arg[1] = (int64_t)r->t.sum;
	d->arg[2] = (int64_t)r->t.budget;
	d->rest_ms = r->above ? (uint32_t)r->p[P_LOOK] : REST_LONG_MS;
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
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		if (answer_cpu(&r, st->floor, i, &st->cpu[i], c) < 0)
			return -ENOBUFS;
		r.above += watch_above(c, st->floor);
	}
	answer_whole(st, &r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "lowwater",
	.version = "1.0",
	.summary = "lists give back what was never needed since the last look",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
