/* SPDX-License-Identifier: MIT */
/*
 * knee: no trial and error. Records say what every other high would have cost, so each CPU gets the
 * smallest high above which fewer than lambda cycles a second swing; one lambda for all CPUs,
 * steered so that they stay within the budget. That is water-filling: at the end no page would save
 * more elsewhere. Without pressure lambda is what a page must save to be worth its memory.
 *
 * How that is worked out is in policies/knee_share.h, what the records of a CPU say in
 * policies/knee.h; here is what comes in and what goes out. A new sharing takes over only when it
 * saves more than it moves.
 *
 * A CPU begins with an equal part of the budget, as high_max of the kernel is one: until records
 * say what pages are worth, too little costs more than too much.
 *
 * All values are bucket edges and a batch, where records are exact: batches do not grow. A CPU that
 * rests for as long as a page costs to keep as to move gives back. Without records (an older
 * target, records switched off) CPUs that miss get more and spare pages go back, by counters as in
 * policies/watch.h, and the reasons say so.
 */
#include "policies/knee_share.h"

enum {
	P_LAMBDA,
	P_SHORT,
	P_LONG,
	P_MARGIN,
	P_LOCK,
	P_HOLD,
	P_MISS,
	P_TRAFFIC,
	P_BUDGET,
	P_FLOOR,
	N_PARAMS
};

static const struct pcptune_param params[N_PARAMS] = {
	[P_LAMBDA] = {"lambda", PCPTUNE_PARAM_INT, 0, 1, 1000000, 20, "",
		      "cycles in 1000 s that a page of high must serve to be worth its memory",
		      NULL},
	[P_SHORT] = {"short_ms", PCPTUNE_PARAM_INT, 0, 200, 600000, 1500, "ms", "the short horizon",
		     NULL},
	[P_LONG] = {"long_ms", PCPTUNE_PARAM_INT, 0, 1000, 3600000, 60000, "ms", "the long horizon",
		    NULL},
	[P_MARGIN] = {"margin_permille", PCPTUNE_PARAM_INT, 0, 0, 1000, 5, "permille",
		      "what a new sharing must save of the traffic to take over", NULL},
	[P_LOCK] = {"lock_ns", PCPTUNE_PARAM_INT, 0, 100, 10000000, 3000, "ns",
		    "batches hold the zone lock no longer than this", NULL},
	[P_HOLD] = {"hold_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		    "nothing is given back sooner after the first record, and without records "
		    "after a raise",
		    NULL},
	[P_MISS] = {"miss_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 20, "permille",
		    "without records: avoidable zone pages per page that are too many", NULL},
	[P_TRAFFIC] = {"min_traffic", PCPTUNE_PARAM_INT, 0, 1, 1000000000, 4096, "pages",
		       "without records: pages in about 4 s below which nothing is raised", NULL},
	[P_BUDGET] = {"budget_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 112, "permille",
		      "share of the memory that all lists together may hold", NULL},
	[P_FLOOR] = {"floor", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_HIGH, 0, "pages",
		     "no CPU has less while the budget has it; 0: 6 x batch", NULL},
};

enum {
	R_TAKE_OVER = 1,
	R_MORE,
	R_LESS,
	R_RESTS,
	R_BATCH,
	R_OVER_BUDGET,
	R_MISSES,
	R_UNNEEDED,
	R_BEST = 20,
	R_SMALL_GAIN,
	R_ON_ITS_WAY,
	R_NO_RECORDS,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	REASON_TAKE_OVER(R_TAKE_OVER),
	{R_MORE, 0, "more",
	 "by records it takes {a} pages a second from the zone, with more {b}; a page must serve "
	 "{c} "
	 "cycles in 1000 s, by the last {d:ms}: high {old} -> {new:pages}"},
	{R_LESS, 0, "less",
	 "by records it takes {a} pages a second from the zone, with less {b}; a page must serve "
	 "{c} "
	 "cycles in 1000 s, by the last {d:ms}: high {old} -> {new:pages}"},
	{R_RESTS, 0, "rests",
	 "at rest for {a:ms}, as long as its pages are worth: high {old} -> {new:pages}"},
	{R_BATCH, 0, "batch",
	 "a hold of the zone lock moves {a} pages, {b} cost least at this high of {new:pages}"},
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_MISSES, 0, "misses",
	 "no record yet: {a:permille} of {b:pages} allocated and freed went to the zone and came "
	 "back: high {old} -> {new:pages}"},
	{R_UNNEEDED, 0, "unneeded",
	 "no record yet: {a:pages} of high were not needed in {b:ms} and more: high {old} -> "
	 "{new:pages}"},
	{R_BEST, 1, "best",
	 "{a} CPUs take {b} pages a second from the zone, no other sharing of {c:pages} is better"},
	{R_SMALL_GAIN, 1, "small-gain",
	 "{a} CPUs take {b} pages a second from the zone; another sharing would save {c}, memory "
	 "included, not worth the {d:pages} that go back for it"},
	{R_ON_ITS_WAY, 1, "on-its-way", "{a} CPUs wait for pages that others give, or settle"},
	{R_NO_RECORDS, 1, "no-records",
	 "no records of {a} CPUs yet: by counters none needs more or has pages to spare"},
	REASON_UNUSED(R_UNUSED),
};

#define YOUNG_CYCLES 200u  /* until records had so many cycles, or */
#define YOUNG_MS     2000u /* ... were so long, counters may raise, too */
#define STEP_LAST    32u   /* part of high: smaller steps to a target are left */

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return sizeof(struct knee_state) +
	       (size_t)shape->n_zones * shape->n_cpus * sizeof(struct knee_cpu);
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct knee_state *st = state;

	if (p[P_SHORT] > p[P_LONG])
		return -EINVAL;
	st->floor = watch_floor(shape, p[P_FLOOR]);
	st->best = KNEE_BY_LONG;
	st->batch = pcptune_zone_batch(zone_managed(shape));
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++) {
		watch_init(&st->cpu[i].w, p[P_HOLD]);
		st->cpu[i].batch = (uint16_t)st->batch;
	}
	return 0;
}

static const char *refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return "short_ms is at most long_ms";
}

/* ---- what came in ---- */

static bool is_young(const struct knee_cpu *cs)
{
	return cs->seen && cs->curve.weight[KNEE_LONG] < YOUNG_MS && cs->cycles < YOUNG_CYCLES;
}

/* The batch that goes with a high. */
static uint32_t batch_at(const struct knee_cpu *cs, uint32_t high)
{
	return pcptune_min_u32(cs->batch, pcptune_max_u32(high / 2, 1));
}

static void take_holds(struct knee_state *st, const struct pcptune_cpu *c)
{
	uint64_t ns = c->lock_alloc_hold_ns + c->lock_free_hold_ns;

	if (!ns || ns >= WATCH_PAGES_MAX)
		return;
	st->hold_ns += ns;
	st->hold_pages += c->alloc_zone + c->free_zone +
			  KNEE_TAKE * (c->lock_alloc_taken + c->lock_free_taken);
	while (st->hold_pages > 1 << 22) {
		st->hold_pages /= 2;
		st->hold_ns /= 2;
	}
}

static void look_at_all(struct knee_state *st, struct knee_round *r)
{
	const struct pcptune_sample *s = r->s;

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct knee_cpu *cs = &st->cpu[i];

		if (!cpu_used(c))
			continue;
		watch_cpu(&cs->w, c, s, r->p[P_HOLD], r->p[P_TRAFFIC]);
		if (watch_plausible(c))
			take_holds(st, c);
		r->t.used++;
		r->t.sum += watch_high(&cs->w, c);
		r->t.open += cpu_open(c) ? c->high : 0;
		r->t.missing += cs->w.missed >= (uint32_t)r->p[P_MISS];
	}
	for (uint32_t i = 0; i < pcptune_sample_n_records(s); i++) {
		const struct pcptune_record *rec = pcptune_sample_record(s, i);

		if (rec->index < s->n_cpus && cpu_used(pcptune_sample_cpu(s, rec->index)))
			knee_take_record(st, r, rec);
	}
	for (uint32_t i = 0; i < s->n_cpus; i++)
		r->blind +=
			cpu_used(pcptune_sample_cpu(s, i)) && !knee_known(st, &st->cpu[i], r->now);
	r->t.room = watch_sub0(r->t.budget, r->t.sum);
}

/* Does the budget bind, or do targets need more than is left of it? */
static bool is_pressed(const struct knee_state *st, const struct knee_round *r)
{
	uint64_t need = 0;

	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(r->s, i);
		const struct knee_cpu *cs = &st->cpu[i];

		if (cpu_used(c) && !knee_rests(cs, r))
			need += pcptune_sub0_u32(cs->target, watch_high(&cs->w, c));
	}
	return st->lambda > r->least || need > r->t.room;
}

static void find_batches(struct knee_state *st, const struct knee_round *r)
{
	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(r->s, i);
		struct knee_cpu *cs = &st->cpu[i];

		if (knee_takes_part(st, cs, c, r->now) && !is_young(cs) && watch_fixed(c) &&
		    !knee_rests(cs, r))
			knee_find_batch(st, cs, r, c->high);
	}
}

/* ---- the answer; true: a change was added ---- */

static void say_rates(const struct knee_state *st, const struct knee_round *r,
		      const struct knee_cpu *cs, struct pcptune_change *ch)
{
	ch->arg[0] = cs->now_rate;
	ch->arg[1] = cs->best_rate;
	ch->arg[2] = (int64_t)st->lambda * 1000 / KNEE_PRICE;
	ch->arg[3] = knee_look_back(st, r);
}

/* What there is room for now; 0: too little. To arrive is worth a smaller step. */
static uint32_t towards(const struct knee_cpu *cs, const struct pcptune_cpu *c, uint64_t room)
{
	uint64_t high = watch_min(cs->target, c->high + room);
	uint32_t step = c->high / (high == cs->target ? STEP_LAST : 8) + 1;

	return high < (uint64_t)c->high + step ? 0 : (uint32_t)high;
}

static bool more(const struct knee_state *st, struct knee_round *r, uint32_t i, struct knee_cpu *cs,
		 const struct pcptune_cpu *c)
{
	uint32_t high = towards(cs, c, r->t.room);

	if (!high) {
		r->waiting += cs->target > c->high + c->high / 8;
		return false;
	}
	say_rates(st, r, cs, watch_fix(r->d, i, R_MORE, high));
	r->t.room -= high - c->high;
	watch_raised(&cs->w, c, high, r->now);
	return true;
}

static bool less(const struct knee_state *st, struct knee_round *r, uint32_t i, struct knee_cpu *cs,
		 const struct pcptune_cpu *c, uint32_t reason, uint32_t high)
{
	struct pcptune_change *ch;

	if (high + c->high / (r->pressed ? STEP_LAST : 8) >= c->high ||
	    (is_young(cs) && r->t.sum <= r->t.budget))
		return false;
	if (!r->pressed &&
	    (r->now - cs->w.raised < cs->w.hold_us || watch_turns(&cs->w, c->high, high, r->now)))
		return false; /* nobody else wants them: see what raised it */
	ch = watch_fix(r->d, i, reason, high);
	if (reason == R_RESTS)
		ch->arg[0] = (int64_t)(knee_idle_us(cs, r->now) / 1000);
	else
		say_rates(st, r, cs, ch);
	watch_lowered(&cs->w, high, r->now);
	return true;
}

/*
 * The next high of a CPU that misses: all that went out and came back would have filled at once, as
 * far as an equal part of the budget goes. Records that say more come soon.
 */
static uint32_t bold(const struct knee_round *r, const struct watch *w, const struct pcptune_cpu *c)
{
	uint64_t most = c->high + watch_back(w);

	most = watch_min(most + most / 8 + watch_move(c), r->part);
	return pcptune_max_u32(watch_more(w, c), (uint32_t)most);
}

/* Without a record, or when there is little in it yet. */
static bool by_counters(const struct knee_state *st, struct knee_round *r, uint32_t i,
			struct knee_cpu *cs, const struct pcptune_cpu *c)
{
	uint32_t need = watch_need(&cs->w, c, st->floor, r->now);
	uint32_t spare = pcptune_sub0_u32(c->high, need);
	struct pcptune_change *ch;

	if (cs->w.missed >= (uint32_t)r->p[P_MISS])
		return watch_raise(r->d, i, R_MISSES, &cs->w, c, &r->t, bold(r, &cs->w, c),
				   r->now) > 0;
	if (knee_known(st, cs, r->now) || spare < c->high / 4 + 1 ||
	    !watch_may_lower(&cs->w, r->now))
		return false;
	ch = watch_fix(r->d, i, R_UNNEEDED, need);
	ch->arg[0] = spare;
	ch->arg[1] = cs->w.hold_us / 1000;
	watch_lowered(&cs->w, need, r->now);
	return true;
}

static bool by_records(const struct knee_state *st, struct knee_round *r, uint32_t i,
		       struct knee_cpu *cs, const struct pcptune_cpu *c)
{
	uint32_t least = knee_edge(knee_least(cs)) + cs->batch;

	if (knee_rests(cs, r))
		return c->high > st->floor &&
		       less(st, r, i, cs, c, R_RESTS, pcptune_max_u32(st->floor, least));
	if (!cs->target)
		return false;
	return cs->target > c->high ? more(st, r, i, cs, c)
				    : less(st, r, i, cs, c, R_LESS, cs->target);
}

/* Before anything moved nothing is known of any CPU: an equal part of the budget for each. */
static uint32_t first_high(const struct knee_round *r, const struct pcptune_cpu *c)
{
	uint64_t part = r->t.budget / (r->shape->n_zones * r->shape->n_cpus);

	if (!(r->s->flags & PCPTUNE_SAMPLE_FIRST) || c->count || c->alloc_pages || c->free_pages)
		return c->high;
	part = watch_min(watch_min(part, c->high + r->t.room), r->shape->high_limit);
	return pcptune_max_u32(c->high, (uint32_t)part);
}

/* The rules of a CPU still move its high, or its batches grow. */
static bool take_over(struct knee_round *r, uint32_t i, struct watch *w,
		      const struct pcptune_cpu *c)
{
	uint32_t high = first_high(r, c);

	if ((watch_fixed(c) && !c->scale_max) ||
	    (w->taken_over && r->now - w->taken_over < WATCH_RETRY_US))
		return false;
	w->taken_over = r->now;
	watch_fix(r->d, i, R_TAKE_OVER, high);
	r->t.room -= high - c->high;
	if (high > c->high)
		watch_raised(w, c, high, r->now);
	return true;
}

static bool rebatch(struct knee_round *r, uint32_t i, const struct knee_cpu *cs,
		    const struct pcptune_cpu *c)
{
	uint32_t batch = batch_at(cs, c->high);
	struct pcptune_change *ch;

	if (batch == c->batch || !watch_fixed(c))
		return false;
	ch = watch_fix(r->d, i, R_BATCH, c->high);
	ch->arg[0] = c->batch;
	ch->arg[1] = batch;
	return true;
}

static void answer_cpu(const struct knee_state *st, struct knee_round *r, uint32_t i,
		       struct knee_cpu *cs, const struct pcptune_cpu *c)
{
	uint32_t cut = watch_cut(c, &r->t, 4);
	bool known = knee_known(st, cs, r->now);

	if (!cpu_open(c))
		r->waiting += cs->target && cs->target != c->high;
	else if (cut < c->high && !(cs->target && cs->target < c->high))
		watch_over_budget(r->d, i, R_OVER_BUDGET, &cs->w, &r->t, cut);
	else if (known && by_records(st, r, i, cs, c))
		;
	else if ((!known || is_young(cs)) && by_counters(st, r, i, cs, c))
		;
	else if (!take_over(r, i, &cs->w, c))
		rebatch(r, i, cs, c);
}

/* Batches do not grow: that belongs to every change of this policy. */
static void put_batches(const struct knee_state *st, struct pcptune_decision *d)
{
	for (uint32_t n = 0; n < d->n_changes; n++) {
		struct pcptune_change *ch =
			(void *)((char *)d->changes + (size_t)n * d->change_size);

		ch->batch = batch_at(&st->cpu[ch->index], ch->high);
		ch->scale_max = 0;
	}
}

static void answer_whole(const struct knee_state *st, const struct knee_round *r)
{
	struct pcptune_decision *d = r->d;

	d->reason = !r->t.used	 ? R_UNUSED
		    : r->blind	 ? R_NO_RECORDS
		    : r->waiting ? R_ON_ITS_WAY
		    : st->saves	 ? R_SMALL_GAIN
				 : R_BEST;
	d->arg[0] = r->blind ? r->blind : r->waiting ? r->waiting : r->t.used;
	d->arg[1] = (int64_t)st->rate;
	d->arg[2] = d->reason == R_SMALL_GAIN ? (int64_t)st->saves : (int64_t)r->t.budget;
	d->arg[3] = (int64_t)st->moves;
	d->rest_ms = r->above ? KNEE_RECORD_MS : REST_LONG_MS;
}

static struct knee_round begin(const struct pcptune_shape *shape, const int64_t *p,
			       const struct pcptune_sample *s, struct pcptune_decision *d)
{
	return (struct knee_round){
		.p = p,
		.d = d,
		.shape = shape,
		.s = s,
		.now = s->time_us,
		.horizon = {(uint32_t)p[P_SHORT], (uint32_t)p[P_LONG]},
		.least = pcptune_max_u32((uint32_t)(p[P_LAMBDA] * KNEE_PRICE / 1000), 1),
		.worth_ms = (uint32_t)(1000000 / p[P_LAMBDA]),
		.margin = (uint32_t)p[P_MARGIN],
		.lock_ns = (uint32_t)p[P_LOCK],
		.t.budget = watch_budget(shape, p[P_BUDGET])};
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct knee_round r = begin(shape, p, s, d);
	struct knee_state *st = state;

	(void)host;
	if (d->max_changes < s->n_cpus)
		return -ENOBUFS;
	look_at_all(st, &r);
	r.part = (uint32_t)watch_min(r.t.budget / pcptune_max_u32(r.t.used, 1), PCPTUNE_MAX_HIGH);
	if (r.t.used > r.blind && (r.fresh || r.now - st->solved >= KNEE_RECORD_MS * 1000)) {
		knee_solve(st, &r);
		find_batches(st, &r);
	}
	r.pressed = is_pressed(st, &r);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		answer_cpu(st, &r, i, &st->cpu[i], c);
		r.above += watch_above(c, st->floor);
	}
	put_batches(st, d);
	answer_whole(st, &r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "knee",
	.version = "1.1",
	.summary = "one budget: by records, where a page more saves as much on every CPU",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.refusal = refusal,
	.decide = decide,
	.record_ms = KNEE_RECORD_MS,
};
