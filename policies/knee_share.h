/* SPDX-License-Identifier: MIT */
/*
 * How knee shares a budget: what each step of each CPU is worth, which steps are served, and
 * whether that is better than what is in force.
 *
 * How far to look back, and whom to look at? Four sharings are kept up: by a short horizon, by a
 * long one, by both, and by the long one of all CPUs together. What each of them would have moved
 * is known exactly from the records that follow, shrinking lists included, so the best of them is
 * in force: a workload with phases is followed by the short one, CPUs that do the same learn from
 * each other.
 *
 * One pass prices all steps and adds up what each price wants; then the lowest price that the
 * budget can serve is known, and a second pass deals out. Prices are kept as buckets of the band
 * tracker, an eighth of an octave, between the two.
 *
 * Unknown is not worthless: while the records of a CPU are short, what it has is worth the least
 * price, so that only those who can show more take it away. Only the policy writes any of this.
 */
#ifndef PCPTUNE_POLICIES_KNEE_SHARE_H
#define PCPTUNE_POLICIES_KNEE_SHARE_H

#include "policies/knee.h"

enum { KNEE_BY_SHORT, KNEE_BY_LONG, KNEE_BY_BOTH, KNEE_BY_ALL, KNEE_SHARINGS };

#define KNEE_RECORD_MS	1000u  /* asked for */
#define KNEE_MEAN_MS	2000u  /* the mean of all CPUs counts as so much of a CPU's own */
#define KNEE_ALL_MS	30000u /* ... where all learn from each other */
#define KNEE_UNKNOWN_MS 10000u /* of records: till then what a CPU has is worth the least price */
#define KNEE_TAKE	5u     /* a take of the lock costs as much as moving so many pages */
#define KNEE_LARGE_GAIN 50u    /* permille of the traffic */
#define KNEE_BATCH_GAIN 10u    /* another batch must cost less by one part in so many */

struct knee_cpu {
	struct watch w;
	struct knee_curve curve;
	uint64_t seen;				  /* time of the last record; 0: none */
	uint32_t held[KNEE_SHARINGS];		  /* pages on lists that each sharing gives */
	uint8_t at[KNEE_SHARINGS];		  /* their capacities, as edges */
	uint8_t price[KNEE_SHARINGS][KNEE_EDGES]; /* of each step, as a bucket */
	uint8_t shared;				  /* are they set? */
	uint16_t batch;				  /* pages */
	uint16_t cycles;			  /* that records had, up to 65535 */
	uint32_t target;			  /* high to come to; 0: none */
	uint32_t now_rate, best_rate;		  /* pages a second, for the reason */
};

struct knee_state {
	uint64_t solved;	      /* time of the last sharing; 0: none */
	uint64_t cost[KNEE_SHARINGS]; /* what each moved and its memory's price, faded */
	uint64_t never;		      /* of it what no high would have saved */
	uint64_t saves, moves, rate;  /* of the last sharing that was looked at, pages a second */
	uint64_t hold_ns, hold_pages; /* of the zone lock, faded */
	uint32_t best;		      /* the sharing in force */
	uint32_t lambda;	      /* its price, in 1 / KNEE_PRICE cycles a second */
	uint32_t floor;
	uint32_t margin; /* permille, as it is now */
	uint32_t batch;	 /* of the zone */
	uint32_t reserved;
	struct knee_mean mean; /* of the last sharing */
	struct knee_cpu cpu[];
};

/* One call: what the parameters say, what came in, what the answers of the CPUs add up to. */
struct knee_round {
	const int64_t *p;
	struct pcptune_decision *d;
	const struct pcptune_shape *shape;
	const struct pcptune_sample *s;
	uint64_t now;
	uint32_t horizon[KNEE_HORIZONS];
	uint32_t least;	   /* price, in 1 / KNEE_PRICE cycles a second */
	uint32_t worth_ms; /* a page kept for so long has cost as much as moving it */
	uint32_t margin, lock_ns;
	uint32_t part;	/* of the budget, for each CPU in use */
	bool pressed;	/* pages of high are scarce */
	uint32_t fresh; /* CPUs whose first record this is */
	struct watch_tally t;
	uint32_t blind, waiting, above;
};

/* A sharing that is being worked out. */
struct knee_sharing {
	uint64_t pages[PCPTUNE_BAND_BUCKETS]; /* that steps of this price want */
	uint64_t left;			      /* of the budget, in the last price that is served */
	uint32_t lambda;		      /* bucket of that price */
};

/* Our own trims are no work, though a record may come with them. */
static inline uint64_t knee_idle_us(const struct knee_cpu *cs, uint64_t now)
{
	return now - cs->w.active;
}

/* What the high of a CPU comes to as capacity, when batches do not grow. */
static inline uint32_t knee_capacity(uint32_t high, uint32_t batch)
{
	return (uint32_t)pcptune_band_capacity(high, batch, 0, 0, 0, 0);
}

/*
 * The price of memory, in pages taken: a page must serve lambda cycles, which is one page each.
 * Within the budget it is the least price, however scarce pages are: what nobody has is of use to
 * nobody.
 */
static inline uint64_t knee_rent(const struct knee_round *r, uint32_t pages, uint64_t dt_us)
{
	return (uint64_t)r->least * pages / KNEE_PRICE * (dt_us / 1000) / 1000;
}

/* Was a page kept for so long that it cost as much as moving it again? And do pauses end later? */
static inline bool knee_rests(const struct knee_cpu *cs, const struct knee_round *r)
{
	uint64_t idle = knee_idle_us(cs, r->now);

	return idle / 1000 >= r->worth_ms && idle >= cs->w.hold_us;
}

/* By records: who did nothing for long enough to have one, where others have, is known, too. */
static inline bool knee_known(const struct knee_state *st, const struct knee_cpu *cs, uint64_t now)
{
	return cs->seen || (st->solved && knee_idle_us(cs, now) >= KNEE_RECORD_MS * 1000);
}

static inline bool knee_takes_part(const struct knee_state *st, const struct knee_cpu *cs,
				   const struct pcptune_cpu *c, uint64_t now)
{
	return cpu_used(c) && knee_known(st, cs, now) && !(c->flags & PCPTUNE_CPU_HELD);
}

/* ---- what a CPU's steps are worth ---- */

/* The lens of each sharing but KNEE_BY_BOTH, which looks through the first two. */
static inline void knee_lenses(const struct knee_state *st, const struct knee_cpu *cs,
			       const struct knee_round *r, struct knee_lens *ret)
{
	uint64_t idle = knee_idle_us(cs, r->now);
	uint32_t w[KNEE_HORIZONS];

	for (int h = 0; h < KNEE_HORIZONS; h++)
		w[h] = knee_weight(&cs->curve, h, idle, r->horizon[h]);
	ret[KNEE_BY_SHORT] = knee_lens(&cs->curve, KNEE_SHORT, w[KNEE_SHORT], &st->mean, 0);
	ret[KNEE_BY_LONG] = knee_lens(&cs->curve, KNEE_LONG, w[KNEE_LONG], &st->mean,
				      pcptune_min_u32(KNEE_MEAN_MS, w[KNEE_LONG]));
	ret[KNEE_BY_ALL] = knee_lens(&cs->curve, KNEE_LONG, w[KNEE_LONG], &st->mean, KNEE_ALL_MS);
}

/* Least capacity: room for one batch beyond the batch that is lost. */
static inline uint32_t knee_least(const struct knee_cpu *cs)
{
	return knee_index(cs->batch);
}

static inline uint32_t knee_most(const struct knee_round *r, const struct knee_cpu *cs)
{
	return knee_index(pcptune_sub0_u32(r->shape->high_limit, cs->batch));
}

/* Steps below this edge are worth the least price anyway. */
static inline uint32_t knee_granted(const struct knee_state *st, const struct knee_cpu *cs,
				    const struct pcptune_cpu *c)
{
	uint32_t pages = pcptune_sub0_u32(st->floor, cs->batch);

	if (cs->curve.weight[KNEE_LONG] < KNEE_UNKNOWN_MS)
		pages = pcptune_max_u32(pages, knee_capacity(c->high, c->batch));
	return knee_index(pages);
}

static inline void knee_price_cpu(const struct knee_state *st, struct knee_cpu *cs,
				  const struct pcptune_cpu *c, const struct knee_round *r)
{
	uint32_t price[KNEE_SHARINGS][KNEE_EDGES], granted = knee_granted(st, cs, c);
	struct knee_lens lens[KNEE_SHARINGS];

	knee_lenses(st, cs, r, lens);
	for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
		if (k != KNEE_BY_BOTH)
			knee_prices(&cs->curve, &lens[k], price[k]);
	for (uint32_t j = 0; j < KNEE_EDGES; j++) {
		price[KNEE_BY_BOTH][j] = price[KNEE_BY_SHORT][j] / 2 + price[KNEE_BY_LONG][j] / 2;
		for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
			cs->price[k][j] = (uint8_t)pcptune_band_bucket(
				pcptune_max_u32(price[k][j], j < granted ? r->least : 0));
	}
}

/* ---- who gets what ---- */

static inline void knee_find_mean(struct knee_state *st, const struct knee_round *r)
{
	st->mean = (struct knee_mean){0};
	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		const struct knee_cpu *cs = &st->cpu[i];

		if (knee_takes_part(st, cs, pcptune_sample_cpu(r->s, i), r->now))
			knee_mean_add(&st->mean, &cs->curve,
				      knee_weight(&cs->curve, KNEE_LONG, knee_idle_us(cs, r->now),
						  r->horizon[KNEE_LONG]));
	}
}

/* What all steps want; returns the pages that are not to be shared. */
static inline uint64_t knee_add_demand(struct knee_state *st, const struct knee_round *r,
				       struct knee_sharing *sh)
{
	uint64_t fixed = 0;

	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(r->s, i);
		struct knee_cpu *cs = &st->cpu[i];
		uint32_t most = knee_most(r, cs);

		if (!knee_takes_part(st, cs, c, r->now)) {
			fixed += watch_high(&cs->w, c);
			continue;
		}
		fixed += knee_edge(knee_least(cs)) + cs->batch;
		knee_price_cpu(st, cs, c, r);
		for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
			for (uint32_t j = knee_least(cs); j < most && cs->price[k][j]; j++)
				sh[k].pages[cs->price[k][j]] += UINT64_C(1) << knee_width_log(j);
	}
	return fixed;
}

/* The lowest price that the budget can serve, at least the least one. */
static inline void knee_find_lambda(struct knee_sharing *sh, uint64_t budget, uint32_t least)
{
	uint32_t b = PCPTUNE_BAND_BUCKETS;

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
static inline uint32_t knee_share_of(struct knee_sharing *sh, const uint8_t *price, uint32_t least,
				     uint32_t most)
{
	uint32_t j = least;

	for (; j < most && price[j]; j++) {
		uint64_t pages = UINT64_C(1) << knee_width_log(j);

		if (price[j] < sh->lambda || (price[j] == sh->lambda && pages > sh->left))
			break;
		if (price[j] == sh->lambda)
			sh->left -= pages;
	}
	return j;
}

static inline void knee_share_out(struct knee_state *st, const struct knee_round *r,
				  struct knee_sharing *sh)
{
	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		struct knee_cpu *cs = &st->cpu[i];

		if (!knee_takes_part(st, cs, pcptune_sample_cpu(r->s, i), r->now))
			continue;
		for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
			cs->at[k] = (uint8_t)knee_share_of(&sh[k], cs->price[k], knee_least(cs),
							   knee_most(r, cs));
		cs->shared = 1;
	}
}

/* ---- is it better? ---- */

/* Pages a second that a CPU would move, as the sharing in force sees it. */
static inline uint64_t knee_rate_of(const struct knee_state *st, const struct knee_cpu *cs,
				    const struct knee_lens *lens, uint32_t capacity)
{
	if (st->best != KNEE_BY_BOTH)
		return knee_rate(&cs->curve, &lens[st->best], capacity);
	return (knee_rate(&cs->curve, &lens[KNEE_BY_SHORT], capacity) +
		knee_rate(&cs->curve, &lens[KNEE_BY_LONG], capacity)) /
	       2;
}

static inline uint32_t knee_look_back(const struct knee_state *st, const struct knee_round *r)
{
	return r->horizon[st->best == KNEE_BY_SHORT ? KNEE_SHORT : KNEE_LONG];
}

/*
 * Is what it saves of `cost` above the margin? Small gains may be chance: each of them doubles the
 * margin, up to where a gain is large.
 */
static inline bool knee_clear_gain(struct knee_state *st, const struct knee_round *r, uint64_t cost)
{
	if (st->saves * 1000 < cost * pcptune_max_u32(st->margin, r->margin))
		return false;
	if (st->saves * 1000 >= cost * KNEE_LARGE_GAIN)
		st->margin = r->margin;
	else
		st->margin = pcptune_min_u32(2 * pcptune_max_u32(st->margin, r->margin) + 1,
					     KNEE_LARGE_GAIN);
	return true;
}

/* High that the sharing in force gives a CPU now. */
static inline uint32_t knee_best_high(const struct knee_state *st, const struct knee_cpu *cs,
				      const struct knee_round *r)
{
	return knee_edge(knee_rests(cs, r) ? knee_least(cs) : cs->at[st->best]) + cs->batch;
}

/* Costs of one CPU, now and with its best high. `never`: what no high would save. */
static inline void knee_weigh(const struct knee_state *st, struct knee_cpu *cs,
			      const struct pcptune_cpu *c, const struct knee_round *r,
			      uint64_t *now, uint64_t *then, uint64_t *never)
{
	uint32_t high = knee_best_high(st, cs, r);
	struct knee_lens lens[KNEE_SHARINGS];

	knee_lenses(st, cs, r, lens);
	cs->now_rate = (uint32_t)watch_min(
		knee_rate_of(st, cs, lens, knee_capacity(c->high, c->batch)), UINT32_MAX);
	cs->best_rate =
		(uint32_t)watch_min(knee_rate_of(st, cs, lens, high - cs->batch), UINT32_MAX);
	*now += cs->now_rate + knee_rent(r, c->high, 1000000);
	*then += cs->best_rate + knee_rent(r, high, 1000000);
	*never += knee_rate_of(st, cs, lens, knee_edge(KNEE_EDGES - 1));
}

/* The target of a CPU. Where no sharing is better, no less than what it should have by now. */
static inline void knee_aim(const struct knee_state *st, struct knee_cpu *cs,
			    const struct pcptune_cpu *c, bool better)
{
	uint32_t high = knee_edge(cs->at[st->best]) + cs->batch;

	if (better)
		cs->target = high;
	else if (cs->target && cs->target < c->high)
		cs->target = pcptune_clamp_u32(high, cs->target, c->high);
}

/* Does the sharing save more than it moves? Sets the targets then. */
static inline void knee_judge(struct knee_state *st, const struct knee_round *r)
{
	uint64_t now = 0, then = 0, never = 0;
	bool better;

	st->moves = st->rate = 0;
	for (uint32_t i = 0; i < r->s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(r->s, i);
		struct knee_cpu *cs = &st->cpu[i];

		if (!knee_takes_part(st, cs, c, r->now))
			continue;
		knee_weigh(st, cs, c, r, &now, &then, &never);
		st->moves += pcptune_sub0_u32(c->count, knee_best_high(st, cs, r));
		st->rate += cs->now_rate;
	}
	st->saves = watch_sub0(now, then);
	better = st->saves * knee_look_back(st, r) / 1000 > st->moves &&
		 knee_clear_gain(st, r, watch_sub0(now, never));
	for (uint32_t i = 0; i < r->s->n_cpus; i++)
		if (knee_takes_part(st, &st->cpu[i], pcptune_sample_cpu(r->s, i), r->now))
			knee_aim(st, &st->cpu[i], pcptune_sample_cpu(r->s, i), better);
}

/*
 * What a sharing cost lately that another might have saved; what moves fast has a sixteenth more.
 */
static inline uint64_t knee_cost(const struct knee_state *st, uint32_t k)
{
	uint64_t cost = watch_sub0(st->cost[k], st->never);

	return cost + (k == KNEE_BY_SHORT ? cost / 16 : 0);
}

/* The sharing that cost least lately, the one in force when it is not clearly worse. */
static inline void knee_choose(struct knee_state *st, const struct knee_round *r)
{
	uint64_t dt = watch_min((r->now - st->solved) / 1000, r->horizon[KNEE_LONG]);
	uint64_t all = r->horizon[KNEE_LONG] + dt;

	for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
		if (knee_cost(st, k) < knee_cost(st, st->best) - knee_cost(st, st->best) / 32)
			st->best = k;
	for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
		st->cost[k] -= st->cost[k] * dt / all;
	st->never -= st->never * dt / all;
}

/* ---- batch ---- */

/*
 * What moving pages costs a second with this batch at this high, in pages moved and a scale of B.
 */
static inline uint64_t knee_batch_cost(const struct knee_cpu *cs, const struct knee_lens *lens,
				       uint32_t high, uint32_t batch)
{
	return knee_rate(&cs->curve, lens, knee_capacity(high, batch)) * (batch + KNEE_TAKE) * 256 /
	       batch;
}

/* The largest batch that holds the zone lock for no longer than is wanted, by holds so far. */
static inline uint32_t knee_batch_most(const struct knee_state *st, const struct knee_round *r,
				       uint32_t high)
{
	uint64_t most = high / 4, held;

	if (st->hold_ns) {
		held = (uint64_t)r->lock_ns * st->hold_pages / st->hold_ns;
		most = watch_min(most, watch_sub0(held, KNEE_TAKE));
	}
	return pcptune_clamp_u32((uint32_t)most, 1, PCPTUNE_MAX_BATCH);
}

/* The batch of a CPU in use, of a quarter of the zone's to eight times of it. */
static inline void knee_find_batch(const struct knee_state *st, struct knee_cpu *cs,
				   const struct knee_round *r, uint32_t high)
{
	static const struct knee_mean none;
	uint32_t most = knee_batch_most(st, r, high), best = pcptune_min_u32(cs->batch, most);
	struct knee_lens lens = knee_lens(
		&cs->curve, KNEE_LONG,
		knee_weight(&cs->curve, KNEE_LONG, knee_idle_us(cs, r->now), r->horizon[KNEE_LONG]),
		&none, 0);
	uint64_t least = knee_batch_cost(cs, &lens, high, best);

	if (least / 256 <= knee_rent(r, high, 1000000))
		return; /* it hardly moves anything */
	least -= least / KNEE_BATCH_GAIN;
	for (uint32_t k = 0; k < 6; k++) {
		uint32_t b = pcptune_clamp_u32((st->batch << k) / 4, 1, most);
		uint64_t cost = knee_batch_cost(cs, &lens, high, b);

		if (cost < least) {
			least = cost;
			best = b;
		}
	}
	cs->batch = (uint16_t)best;
}

/* ---- the whole ---- */

/* Shares the budget anew, and sets the targets of all CPUs where that is worth it. */
static inline void knee_solve(struct knee_state *st, const struct knee_round *r)
{
	struct knee_sharing sh[KNEE_SHARINGS] = {0};
	uint64_t fixed, left;

	knee_find_mean(st, r);
	fixed = knee_add_demand(st, r, sh);
	left = watch_sub0(r->t.budget, fixed);
	for (uint32_t k = 0; k < KNEE_SHARINGS; k++)
		knee_find_lambda(&sh[k], left, r->least);
	knee_share_out(st, r, sh);
	knee_choose(st, r);
	st->lambda = (uint32_t)pcptune_band_edge(sh[st->best].lambda);
	st->solved = r->now;
	knee_judge(st, r);
}

/* A record of a CPU: into its curve, and what each sharing would have moved. */
static inline void knee_take_record(struct knee_state *st, struct knee_round *r,
				    const struct pcptune_record *rec)
{
	struct knee_cpu *cs = &st->cpu[rec->index];
	struct knee_swings s;
	uint64_t never;

	knee_read(&rec->band, &s);
	never = knee_add(&cs->curve, &s, rec->dt_us, r->horizon);
	st->never += cs->shared ? never : 0;
	for (uint32_t k = 0; cs->shared && k < KNEE_SHARINGS; k++)
		st->cost[k] +=
			knee_play(&s, knee_edge(cs->at[k]), s.closed[cs->at[k]], &cs->held[k]) +
			knee_rent(r, knee_edge(cs->at[k]), rec->dt_us);
	cs->cycles = (uint16_t)watch_min(cs->cycles + (uint64_t)s.cycles, UINT16_MAX);
	r->fresh += !cs->seen;
	cs->seen = r->now;
}

#endif
