/* SPDX-License-Identifier: MIT */
/*
 * What lists with given limits move of a record: the capacity in effect, the sizes of refills and
 * drains, and where a high that moves by itself comes to rest.
 */
#ifndef PCPTUNE_EVAL_RELIVE_MODEL_H
#define PCPTUNE_EVAL_RELIVE_MODEL_H

#include <pcptune/rules.h>
#include "eval/growth.h"
#include "eval/swings.h"
#include "policies/host.h"

struct relive_effect {
	uint64_t capacity;
	uint64_t refill, drain; /* pages of one, at least 1 */
	bool grown;		/* batches that grow; those of the log do not */
};

/* Drains of 5.14 to 6.6 double without a bound of their own. */
static inline bool relive_grows(uint32_t rules, uint32_t scale_max)
{
	uint32_t t = pcptune_rules_traits(rules);

	if (t & PCPTUNE_RT_FREE_FACTOR && !(t & PCPTUNE_RT_SCALE_CAP))
		return true;
	return scale_max &&
	       t & (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT | PCPTUNE_RT_ALLOC_FACTOR);
}

/* log_grows: those in force when the walk was recorded. */
static inline struct relive_effect relive_effect_of(struct growth *g, const struct limits *m,
						    bool log_grows)
{
	uint32_t high = m->high ? m->high : 1, batch = m->batch ? m->batch : 1;
	struct relive_effect e = {1, 1, 1, false};
	struct growth_effect x;

	batch = batch < high ? batch : high;
	if (!relive_grows(m->rules, m->scale_max)) {
		e.capacity = high > batch ? high - batch : 1;
		e.refill = e.drain = batch;
		return e;
	}
	e.grown = !log_grows;
	x = growth_at(g, &(struct likeness_limits){high, batch, m->scale_max, m->rules});
	e.capacity = high > x.loss ? high - x.loss : 1;
	e.refill = x.refill;
	e.drain = x.drain;
	return e;
}

/*
 * high of rules that move it: a refill adds what it took, decay takes a part a second away, so over
 * a record it is where refilled pages a second are that part of high. Refilled pages fall with
 * high, so there is one such value.
 */
static inline uint32_t relive_tuned_high(struct growth *g, const struct limits *m, bool log_grows,
					 const struct pcptune_band *b, const struct swings *w,
					 int64_t p, uint64_t dt_us)
{
	uint32_t parts = pcptune_generations[PCPTUNE_RULES_ROW(m->rules)].decay;
	uint32_t lo = m->high_min, hi = m->high_max;

	if (!(pcptune_rules_traits(m->rules) & PCPTUNE_RT_TUNES) || lo >= hi || !parts)
		return m->high;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		struct limits at = *m;
		struct pcptune_band_traffic t = {0, 0};
		int64_t side = p;

		at.high = mid;
		swings_play(w, b, relive_effect_of(g, &at, log_grows).capacity, &side, &t);
		/* refilled / s <= high / parts */
		if ((double)t.refilled * 1e6 * parts <= (double)mid * (double)dt_us)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

#endif
