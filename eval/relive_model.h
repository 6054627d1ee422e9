/* SPDX-License-Identifier: MIT */
/*
 * Where a high that moves by itself comes to rest over a record.
 *
 * A refill adds what it took, decay takes a part a second away, so over a record high is where
 * refilled pages a second are that part of it. Refilled pages fall with high, so there is one such
 * value.
 */
#ifndef PCPTUNE_EVAL_RELIVE_MODEL_H
#define PCPTUNE_EVAL_RELIVE_MODEL_H

#include "eval/effect.h"
#include "eval/swings.h"
#include "policies/host.h"

static inline struct effect relive_effect_of(const struct walk *k, const struct limits *m)
{
	return effect_of(k, &(struct likeness_limits){m->high, m->batch, m->scale_max, m->rules});
}

static inline uint32_t relive_tuned_high(const struct walk *k, const struct limits *m,
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
		swings_play(w, b, relive_effect_of(k, &at).capacity, &side, &t);
		/* refilled / s <= high / parts */
		if ((double)t.refilled * 1e6 * parts <= (double)mid * (double)dt_us)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

#endif
