/* SPDX-License-Identifier: MIT */
/*
 * knee: no trial and error. Records say what every other high would have cost, so each CPU gets the
 * smallest high above which fewer than lambda cycles a second swing; one lambda for all CPUs, steered
 * so that they stay within the budget. That is water-filling: at the end no page would save more
 * elsewhere. Without pressure lambda is what a page must save to be worth its memory.
 *
 * How far to look back? Three ways of sharing are kept up: by a short horizon, by a long one, and by
 * both. What each of them would have moved is known exactly from the records that follow, shrinking
 * lists included, so the best of them is in force, and a workload with phases is followed by the
 * short one. A new sharing takes over only when it saves more than it moves.
 *
 * All values are bucket edges and a batch, where records are exact: batches do not grow. A CPU that
 * rests for as long as a page costs to keep as to move gives back. Without records (an older target,
 * records switched off) CPUs that miss get more and spare pages go back, by counters as in
 * policies/watch.h, and the reasons say so.
 */
#include "policies/knee.h"

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
	[P_LOCK] = {"lock_ns", PCPTUNE_PARAM_INT, 0, 100, 10000000, 20000, "ns",
		    "batches hold the zone lock no longer than this", NULL},
	[P_HOLD] = {"hold_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		    "nothing is given back sooner after the first record, and without records "
		    "after a raise",
		    NULL},
	[P_MISS] = {"miss_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 20, "permille",
		    "without records: avoidable zone pages per page that are too many", NULL},
	[P_TRAFFIC] = {"min_traffic", PCPTUNE_PARAM_INT, 0, 1, 1000000000, 4096, "pages",
		       "without records: pages in about 4 s below which nothing is raised", NULL},
	[P_BUDGET] = {"budget_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 125, "permille",
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
	{R_TAKE_OVER, 0, "take-over", "this policy alone moves high now: fixed at {new:pages}"},
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
	{R_OVER_BUDGET, 0, "over-budget",
	 "all lists together may hold {a:pages}, their high is {b:pages}: high {old} -> "
	 "{new:pages}"},
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
	{R_UNUSED, 1, "unused", "no CPU has allocated yet"},
};

#define SHARINGS     3u	   /* by the short horizon, the long one, and both */
#define RECORD_MS    1000u /* asked for */
#define YOUNG_CYCLES 200u  /* ... or records had so many cycles */
#define YOUNG_MS     2000u /* until then counters may raise, too */
#define STEP_LAST    32u   /* part of high: smaller steps to a target are left */
#define MEAN_MS	     2000u /* the mean of all CPUs counts as so much of a CPU's own */
#define TAKE_PAGES   5u	   /* a take of the lock costs as much as moving so many pages */
#define LARGE_GAIN   50u   /* permille of the traffic */
#define BATCH_GAIN   10u   /* another batch must cost less by one part in so many */
#define BUCKETS	     PCPTUNE_BAND_BUCKETS

struct cpu_state {
	struct watch w;
	struct knee_curve curve;
	uint64_t seen;		      /* time of the last record; 0: none */
	uint32_t held[SHARINGS];      /* pages on lists that each sharing gives */
	uint8_t at[SHARINGS];	      /* their capacities, as edges */
	uint8_t shared;		      /* are they set? */
	uint16_t batch;		      /* pages */
	uint16_t cycles;	      /* that records had, up to YOUNG_CYCLES */
	uint32_t target;	      /* high to come to; 0: none */
	uint32_t now_rate, best_rate; /* pages a second, for the reason */
};

struct state {
	uint64_t solved;	      /* time of the last sharing; 0: none */
	uint64_t cost[SHARINGS];      /* what each sharing moved and its memory's price, faded */
	uint64_t saves, moves, rate;  /* of the last sharing that was looked at, pages a second */
	uint64_t hold_ns, hold_pages; /* of the zone lock, faded */
	uint32_t best;		      /* the sharing in force */
	uint32_t lambda;	      /* its price, in 1 / KNEE_PRICE cycles a second */
	uint32_t floor;
	uint32_t margin; /* permille, as it is now */
	uint32_t batch;	 /* of the zone */
	uint32_t reserved;
	struct knee_mean mean; /* of the last sharing */
	struct cpu_state cpu[];
};

/* One call: what came in, and what the answers of the CPUs add up to. */
struct round {
	const int64_t *p;
	struct pcptune_decision *d;
	uint64_t now;
	uint32_t horizon[KNEE_HORIZONS];
	uint32_t fresh; /* CPUs whose first record this is */
	struct watch_tally t;
	uint32_t blind, waiting, above;
};

/* A sharing that is being worked out. */
struct sharing {
	uint64_t pages[BUCKETS]; /* that steps of this price want */
	uint64_t left;		 /* of the budget, in the last price that is served */
	uint32_t lambda;	 /* bucket of that price */
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return sizeof(struct state) +
	       (size_t)shape->n_zones * shape->n_cpus * sizeof(struct cpu_state);
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	if (p[P_SHORT] > p[P_LONG])
		return -EINVAL;
	st->floor = watch_floor(shape, p[P_FLOOR]);
	st->best = KNEE_LONG;
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

/* Our own trims are no work, though a record may come with them. */
static uint64_t idle_us(const struct cpu_state *cs, uint64_t now)
{
	return now - cs->w.active;
}

static bool is_young(const struct cpu_state *cs)
{
	return cs->curve.weight[KNEE_LONG] < YOUNG_MS && cs->cycles < YOUNG_CYCLES;
}

/* What the high of a CPU comes to as capacity, when batches do not grow. */
static uint32_t capacity_of(uint32_t high, uint32_t batch)
{
	return (uint32_t)pcptune_band_capacity(high, batch, 0, 0, 0, 0);
}

/* The batch that goes with a high. */
static uint32_t batch_at(const struct cpu_state *cs, uint32_t high)
{
	return pcptune_min_u32(cs->batch, pcptune_max_u32(high / 2, 1));
}

static uint32_t least_price(const struct round *r)
{
	return pcptune_max_u32((uint32_t)(r->p[P_LAMBDA] * KNEE_PRICE / 1000), 1);
}

/*
 * The price of memory, in pages taken: a page must serve lambda cycles, which is one page each. Within
 * the budget it is the least price, however scarce pages are: what nobody has is of use to nobody.
 */
static uint64_t rent(const struct round *r, uint32_t pages, uint64_t dt_us)
{
	return (uint64_t)least_price(r) * pages / KNEE_PRICE * (dt_us / 1000) / 1000;
}

static void take_record(struct state *st, struct round *r, const struct pcptune_record *rec)
{
	struct cpu_state *cs = &st->cpu[rec->index];
	struct knee_swings s;

	knee_read(&rec->band, &s);
	knee_add(&cs->curve, &s, rec->dt_us, r->horizon);
	for (uint32_t k = 0; cs->shared && k < SHARINGS; k++)
		st->cost[k] +=
			knee_play(&s, knee_edge(cs->at[k]), s.closed[cs->at[k]], &cs->held[k]) +
			rent(r, knee_edge(cs->at[k]), rec->dt_us);
	cs->cycles = (uint16_t)watch_min(cs->cycles + (uint64_t)s.cycles, YOUNG_CYCLES);
	r->fresh += !cs->seen;
	cs->seen = r->now;
}

static void take_holds(struct state *st, const struct pcptune_cpu *c)
{
	uint64_t ns = c->lock_alloc_hold_ns + c->lock_free_hold_ns;

	if (!ns || ns >= WATCH_PAGES_MAX)
		return;
	st->hold_ns += ns;
	st->hold_pages += c->alloc_zone + c->free_zone +
			  TAKE_PAGES * (c->lock_alloc_taken + c->lock_free_taken);
	while (st->hold_pages > 1 << 22) {
		st->hold_pages /= 2;
		st->hold_ns /= 2;
	}
}

static void look_at_all(struct state *st, const struct pcptune_sample *s, struct round *r)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];

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
			take_record(st, r, rec);
	}
	for (uint32_t i = 0; i < s->n_cpus; i++)
		r->blind += cpu_used(pcptune_sample_cpu(s, i)) && !st->cpu[i].seen;
	r->t.room = watch_sub0(r->t.budget, r->t.sum);
}

/* ---- sharing ---- */

/* Least capacity: room for one batch beyond the batch that is lost. */
static uint32_t least_index(const struct cpu_state *cs)
{
	return knee_index(cs->batch);
}

static uint32_t most_index(const struct pcptune_shape *shape, const struct cpu_state *cs)
{
	return knee_index(pcptune_sub0_u32(shape->high_limit, cs->batch));
}

/* Prices of each step by each sharing; what a CPU should have anyway is worth the least price. */
static void prices(const struct state *st, const struct cpu_state *cs, const struct round *r,
		   uint32_t (*price)[KNEE_EDGES])
{
	uint32_t floor = knee_index(pcptune_sub0_u32(st->floor, cs->batch)), least = least_price(r);
	uint64_t idle = idle_us(cs, r->now);

	for (int h = 0; h < KNEE_HORIZONS; h++) {
		struct knee_view v;

		knee_look(&cs->curve, h, knee_weight(&cs->curve, h, idle, r->horizon[h]), &st->mean,
			  &v);
		knee_prices(&v, price[h]);
	}
	for (uint32_t j = 0; j < KNEE_EDGES; j++) {
		price[2][j] = price[0][j] / 2 + price[1][j] / 2;
		for (uint32_t k = 0; j < floor && k < SHARINGS; k++)
			price[k][j] = pcptune_max_u32(price[k][j], least);
	}
}

/* Was a page kept for so long that it cost as much as moving it again? And do pauses end later? */
static bool rests(const struct cpu_state *cs, const struct round *r)
{
	uint64_t idle = idle_us(cs, r->now);

	return idle / 1000 >= 1000000 / (uint64_t)r->p[P_LAMBDA] && idle >= cs->w.hold_us;
}

static bool takes_part(const struct cpu_state *cs, const struct pcptune_cpu *c)
{
	return cpu_used(c) && cs->seen && !(c->flags & PCPTUNE_CPU_HELD);
}

static void find_mean(struct state *st, const struct pcptune_sample *s, const struct round *r)
{
	st->mean = (struct knee_mean){.ms = MEAN_MS};
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct cpu_state *cs = &st->cpu[i];

		if (takes_part(cs, pcptune_sample_cpu(s, i)))
			knee_mean_add(&st->mean, &cs->curve,
				      knee_weight(&cs->curve, KNEE_LONG, idle_us(cs, r->now),
						  r->horizon[KNEE_LONG]));
	}
}

/* What all steps want; returns the pages that are not to be shared. */
static uint64_t add_demand(const struct state *st, const struct pcptune_shape *shape,
			   const struct pcptune_sample *s, const struct round *r,
			   struct sharing *sh)
{
	uint32_t price[SHARINGS][KNEE_EDGES];
	uint64_t fixed = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		const struct cpu_state *cs = &st->cpu[i];
		uint32_t most = most_index(shape, cs);

		if (!takes_part(cs, c)) {
			fixed += watch_high(&cs->w, c);
			continue;
		}
		fixed += knee_edge(least_index(cs)) + cs->batch;
		prices(st, cs, r, price);
		for (uint32_t k = 0; k < SHARINGS; k++)
			for (uint32_t j = least_index(cs); j < most && price[k][j]; j++)
				sh[k].pages[pcptune_band_bucket(price[k][j])] +=
					UINT64_C(1) << knee_width_log(j);
	}
	return fixed;
}

/* The lowest price that the budget can serve, at least the least one. */
static void find_lambda(struct sharing *sh, uint64_t budget, uint32_t least)
{
	uint32_t b = BUCKETS;

	sh->left = budget;
	while (b-- > pcptune_band_bucket(least)) {
		sh->lambda = b;
		if (sh->pages[b] > sh->left)
			return;
		sh->left -= sh->pages[b];
	}
	sh->left = UINT64_MAX;
}

/* The edge that one sharing gives a CPU. */
static uint32_t share_of(struct sharing *sh, const uint32_t *price, uint32_t least, uint32_t most)
{
	uint32_t j = least;

	for (; j < most && price[j]; j++) {
		uint32_t b = pcptune_band_bucket(price[j]);
		uint64_t pages = UINT64_C(1) << knee_width_log(j);

		if (b < sh->lambda || (b == sh->lambda && pages > sh->left))
			break;
		if (b == sh->lambda)
			sh->left -= pages;
	}
	return j;
}

static void share_out(struct state *st, const struct pcptune_shape *shape,
		      const struct pcptune_sample *s, const struct round *r, struct sharing *sh)
{
	uint32_t price[SHARINGS][KNEE_EDGES];

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		struct cpu_state *cs = &st->cpu[i];

		if (!takes_part(cs, pcptune_sample_cpu(s, i)))
			continue;
		prices(st, cs, r, price);
		for (uint32_t k = 0; k < SHARINGS; k++)
			cs->at[k] = (uint8_t)share_of(&sh[k], price[k], least_index(cs),
						      most_index(shape, cs));
		cs->shared = 1;
	}
}

/* Pages a second that a CPU would move, as the sharing in force sees it. */
static uint64_t rate_of(const struct state *st, const struct cpu_state *cs, const struct round *r,
			uint32_t capacity)
{
	uint64_t rate[KNEE_HORIZONS], idle = idle_us(cs, r->now);

	for (int h = 0; h < KNEE_HORIZONS; h++) {
		struct knee_view v;

		knee_look(&cs->curve, h, knee_weight(&cs->curve, h, idle, r->horizon[h]), &st->mean,
			  &v);
		rate[h] = knee_rate(&v, capacity);
	}
	return st->best < KNEE_HORIZONS ? rate[st->best] : (rate[0] + rate[1]) / 2;
}

static uint32_t look_back(const struct state *st, const struct round *r)
{
	return r->horizon[st->best == KNEE_SHORT ? KNEE_SHORT : KNEE_LONG];
}

/*
 * Is what it saves above the margin? Small gains may be chance: each of them doubles the margin, up
 * to where a gain is large.
 */
static bool clear_gain(struct state *st, const struct round *r, uint64_t now)
{
	uint32_t least = (uint32_t)r->p[P_MARGIN];

	if (st->saves * 1000 < now * pcptune_max_u32(st->margin, least))
		return false;
	if (st->saves * 1000 >= now * LARGE_GAIN)
		st->margin = least;
	else
		st->margin =
			pcptune_min_u32(2 * pcptune_max_u32(st->margin, least) + 1, LARGE_GAIN);
	return true;
}

/* Does the sharing save more than it moves? Sets the targets then. */
static void judge(struct state *st, const struct pcptune_sample *s, const struct round *r)
{
	uint64_t now = 0, then = 0, moves = 0, sum = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];
		uint32_t at, high;

		if (!takes_part(cs, c))
			continue;
		at = rests(cs, r) ? least_index(cs) : cs->at[st->best];
		high = knee_edge(at) + cs->batch;
		cs->now_rate = (uint32_t)watch_min(
			rate_of(st, cs, r, capacity_of(c->high, c->batch)), UINT32_MAX);
		cs->best_rate = (uint32_t)watch_min(rate_of(st, cs, r, knee_edge(at)), UINT32_MAX);
		now += cs->now_rate + rent(r, c->high, 1000000);
		then += cs->best_rate + rent(r, high, 1000000);
		moves += pcptune_sub0_u32(c->count, high);
		sum += cs->now_rate;
	}
	st->rate = sum;
	st->saves = watch_sub0(now, then);
	st->moves = moves;
	if (st->saves * look_back(st, r) / 1000 <= moves || !clear_gain(st, r, now))
		return;
	for (uint32_t i = 0; i < s->n_cpus; i++)
		if (takes_part(&st->cpu[i], pcptune_sample_cpu(s, i)))
			st->cpu[i].target = knee_edge(st->cpu[i].at[st->best]) + st->cpu[i].batch;
}

/* ---- batch ---- */

/* What moving pages costs a second with this batch at this high, in pages moved and a scale of B. */
static uint64_t batch_cost(const struct cpu_state *cs, const struct round *r, uint32_t high,
			   uint32_t batch)
{
	uint32_t weight =
		knee_weight(&cs->curve, KNEE_LONG, idle_us(cs, r->now), r->horizon[KNEE_LONG]);

	struct knee_view v;

	knee_look(&cs->curve, KNEE_LONG, weight, &(struct knee_mean){0}, &v);
	return knee_rate(&v, capacity_of(high, batch)) * (batch + TAKE_PAGES) * 256 / batch;
}

/* The largest batch that holds the zone lock for no longer than is wanted, by holds so far. */
static uint32_t batch_most(const struct state *st, const struct round *r, uint32_t high)
{
	uint64_t most = high / 4, held;

	if (st->hold_ns) {
		held = (uint64_t)r->p[P_LOCK] * st->hold_pages / st->hold_ns;
		most = watch_min(most, watch_sub0(held, TAKE_PAGES));
	}
	return pcptune_clamp_u32((uint32_t)most, 1, PCPTUNE_MAX_BATCH);
}

/* The batch of a CPU in use, of a quarter of the zone's to eight times of it. */
static void find_batch(const struct state *st, struct cpu_state *cs, const struct round *r,
		       uint32_t high)
{
	uint32_t most = batch_most(st, r, high), best = pcptune_min_u32(cs->batch, most);
	uint64_t least = batch_cost(cs, r, high, best);

	if (least / 256 <= rent(r, high, 1000000))
		return; /* it hardly moves anything */
	least -= least / BATCH_GAIN;
	for (uint32_t k = 0; k < 6; k++) {
		uint32_t b = pcptune_clamp_u32((st->batch << k) / 4, 1, most);
		uint64_t cost = batch_cost(cs, r, high, b);

		if (cost < least) {
			least = cost;
			best = b;
		}
	}
	cs->batch = (uint16_t)best;
}

static void find_batches(struct state *st, const struct pcptune_sample *s, const struct round *r)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];

		if (takes_part(cs, c) && !is_young(cs) && watch_fixed(c) && !rests(cs, r))
			find_batch(st, cs, r, c->high);
	}
}

/* The sharing that cost least lately, the one in force when it is not clearly worse. */
static void choose(struct state *st, const struct round *r)
{
	uint64_t dt = watch_min((r->now - st->solved) / 1000, r->horizon[KNEE_LONG]);

	for (uint32_t k = 0; k < SHARINGS; k++)
		if (st->cost[k] < st->cost[st->best] - st->cost[st->best] / 32)
			st->best = k;
	for (uint32_t k = 0; k < SHARINGS; k++)
		st->cost[k] -= st->cost[k] * dt / (r->horizon[KNEE_LONG] + dt);
}

static void solve(struct state *st, const struct pcptune_shape *shape,
		  const struct pcptune_sample *s, const struct round *r)
{
	struct sharing sh[SHARINGS] = {0};
	uint64_t fixed, left;

	find_mean(st, s, r);
	fixed = add_demand(st, shape, s, r, sh);
	left = watch_sub0(r->t.budget, fixed);
	for (uint32_t k = 0; k < SHARINGS; k++)
		find_lambda(&sh[k], left, least_price(r));
	share_out(st, shape, s, r, sh);
	choose(st, r);
	st->lambda = (uint32_t)pcptune_band_edge(sh[st->best].lambda);
	st->solved = r->now;
	judge(st, s, r);
	find_batches(st, s, r);
}

/* ---- the answer ---- */

/* Batches do not grow: that belongs to every change of this policy. */
static void put_batch(struct pcptune_change *ch, const struct cpu_state *cs)
{
	ch->batch = batch_at(cs, ch->high);
	ch->scale_max = 0;
}

/* A change of this policy; NULL: no room. */
static struct pcptune_change *fix(struct round *r, uint32_t i, uint32_t reason,
				  const struct cpu_state *cs, uint32_t high)
{
	struct pcptune_change *ch = watch_fix(r->d, i, reason, high);

	if (ch)
		put_batch(ch, cs);
	return ch;
}

/* The same for the last change, when n says that there is one. */
static int with_batch(struct round *r, const struct cpu_state *cs, int n)
{
	if (n > 0)
		put_batch((void *)((char *)r->d->changes +
				   (size_t)(r->d->n_changes - 1) * r->d->change_size),
			  cs);
	return n;
}

static void say_rates(const struct state *st, const struct round *r, const struct cpu_state *cs,
		      struct pcptune_change *ch)
{
	ch->arg[0] = cs->now_rate;
	ch->arg[1] = cs->best_rate;
	ch->arg[2] = (int64_t)st->lambda * 1000 / KNEE_PRICE;
	ch->arg[3] = look_back(st, r);
}

/* What there is room for now; 0: too little. To arrive is worth a smaller step. */
static uint32_t towards(const struct cpu_state *cs, const struct pcptune_cpu *c, uint64_t room)
{
	uint64_t high = watch_min(cs->target, c->high + room);
	uint32_t step = c->high / (high == cs->target ? STEP_LAST : 8) + 1;

	return high < (uint64_t)c->high + step ? 0 : (uint32_t)high;
}

/* 1: a change was added, 0: none, -1: no room for one; as all answers below */
static int more(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		const struct pcptune_cpu *c)
{
	uint32_t high = towards(cs, c, r->t.room);
	struct pcptune_change *ch = high ? fix(r, i, R_MORE, cs, high) : NULL;

	if (!high) {
		r->waiting += cs->target > c->high + c->high / 8;
		return 0;
	}
	if (!ch)
		return -1;
	say_rates(st, r, cs, ch);
	r->t.room -= high - c->high;
	watch_raised(&cs->w, c, high, r->now);
	return 1;
}

static int less(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		const struct pcptune_cpu *c, uint32_t reason, uint32_t high)
{
	struct pcptune_change *ch;
	bool wanted = st->lambda > least_price(r); /* does the budget bind? */

	if (high + c->high / (wanted ? STEP_LAST : 8) >= c->high ||
	    (is_young(cs) && r->t.sum <= r->t.budget))
		return 0;
	if (!wanted && r->now - cs->w.raised < cs->w.hold_us)
		return 0; /* nobody else wants them: see what raised it */
	ch = fix(r, i, reason, cs, high);
	if (!ch)
		return -1;
	if (reason == R_RESTS)
		ch->arg[0] = (int64_t)(idle_us(cs, r->now) / 1000);
	else
		say_rates(st, r, cs, ch);
	watch_lowered(&cs->w, high, r->now);
	return 1;
}

/* By counters, when there is no record. */
static int blind_more(struct round *r, uint32_t i, struct cpu_state *cs,
		      const struct pcptune_cpu *c)
{
	return with_batch(
		r, cs,
		watch_raise(r->d, i, R_MISSES, &cs->w, c, &r->t, watch_more(&cs->w, c), r->now));
}

static int blind_less(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		      const struct pcptune_cpu *c)
{
	uint32_t need = watch_need(&cs->w, c, st->floor, r->now);
	uint32_t spare = pcptune_sub0_u32(c->high, need);
	struct pcptune_change *ch;

	if (spare < c->high / 4 + 1 || !watch_may_lower(&cs->w, r->now))
		return 0;
	ch = fix(r, i, R_UNNEEDED, cs, need);
	if (!ch)
		return -1;
	ch->arg[0] = spare;
	ch->arg[1] = cs->w.hold_us / 1000;
	watch_lowered(&cs->w, need, r->now);
	return 1;
}

static int rebatch(struct round *r, uint32_t i, const struct cpu_state *cs,
		   const struct pcptune_cpu *c)
{
	uint32_t batch = batch_at(cs, c->high);
	struct pcptune_change *ch;

	if (batch == c->batch || !watch_fixed(c))
		return 0;
	ch = fix(r, i, R_BATCH, cs, c->high);
	if (!ch)
		return -1;
	ch->arg[0] = c->batch;
	ch->arg[1] = batch;
	return 1;
}

static int by_counters(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		       const struct pcptune_cpu *c)
{
	if (cs->w.missed >= (uint32_t)r->p[P_MISS])
		return blind_more(r, i, cs, c);
	return cs->seen ? 0 : blind_less(st, r, i, cs, c);
}

static int by_records(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		      const struct pcptune_cpu *c)
{
	uint32_t least = knee_edge(least_index(cs)) + cs->batch;

	if (rests(cs, r) && c->high > st->floor)
		return less(st, r, i, cs, c, R_RESTS, pcptune_max_u32(st->floor, least));
	if (!cs->target || rests(cs, r))
		return 0;
	if (cs->target > c->high)
		return more(st, r, i, cs, c);
	return less(st, r, i, cs, c, R_LESS, cs->target);
}

/* As watch_take_over(), and where batches grow. */
static bool take_over(struct watch *w, const struct pcptune_cpu *c, uint64_t now)
{
	if (!watch_fixed(c) || !c->scale_max)
		return watch_take_over(w, c, now);
	if (w->taken_over && now - w->taken_over < WATCH_RETRY_US)
		return false;
	w->taken_over = now;
	return true;
}

static int answer_cpu(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		      const struct pcptune_cpu *c)
{
	uint32_t cut = watch_cut(c, &r->t, 4);
	int n = 0;

	if (!cpu_open(c)) {
		r->waiting += cs->target && cs->target != c->high;
		return 0;
	}
	if (cut < c->high && !(cs->target && cs->target < c->high))
		return with_batch(r, cs,
				  watch_over_budget(r->d, i, R_OVER_BUDGET, &cs->w, &r->t, cut));
	if (cs->seen)
		n = by_records(st, r, i, cs, c);
	if (!n && (!cs->seen || is_young(cs)))
		n = by_counters(st, r, i, cs, c);
	if (!n && take_over(&cs->w, c, r->now))
		return fix(r, i, R_TAKE_OVER, cs, c->high) ? 1 : -1;
	return n ? n : rebatch(r, i, cs, c);
}

static void answer_whole(const struct state *st, const struct round *r)
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
	d->rest_ms = r->above ? RECORD_MS : REST_LONG_MS;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct round r = {.p = p,
			  .d = d,
			  .now = s->time_us,
			  .horizon = {(uint32_t)p[P_SHORT], (uint32_t)p[P_LONG]}};
	struct state *st = state;

	(void)host;
	r.t.budget = watch_budget(shape, p[P_BUDGET]);
	look_at_all(st, s, &r);
	if (r.t.used > r.blind && (r.fresh || r.now - st->solved >= RECORD_MS * 1000))
		solve(st, shape, s, &r);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		if (answer_cpu(st, &r, i, &st->cpu[i], c) < 0)
			return -ENOBUFS;
		r.above += c->high > st->floor + st->floor / 3 || !watch_fixed(c);
	}
	answer_whole(st, &r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "knee",
	.version = "1.0",
	.summary = "one budget: by records, where a page more saves as much on every CPU",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.refusal = refusal,
	.decide = decide,
	.record_ms = RECORD_MS,
};
