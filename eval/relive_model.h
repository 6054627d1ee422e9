/* SPDX-License-Identifier: MIT */
/*
 * What lists with given limits move of a record: the capacity in effect, the sizes of refills and
 * drains, and where a high that moves by itself comes to rest.
 */
#ifndef PCPTUNE_EVAL_RELIVE_MODEL_H
#define PCPTUNE_EVAL_RELIVE_MODEL_H

#include <pcptune/rules.h>
#include "eval/swings.h"
#include "eval/walks.h"
#include "policies/host.h"

struct relive_effect {
	uint64_t capacity;
	uint64_t refill, drain; /* pages of one, at least 1 */
	bool grown;		/* batches that grow, of which the log has none */
};

#define RELIVE_GROWS (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT | PCPTUNE_RT_ALLOC_FACTOR)

static inline bool relive_grows(uint32_t rules, uint32_t scale_max)
{
	return scale_max && pcptune_rules_traits(rules) & RELIVE_GROWS;
}

/* log_grows: those in force when the walk was recorded. */
static inline struct relive_effect relive_effect_of(const struct walk *k, const struct limits *m,
						    bool log_grows)
{
	uint64_t high = m->high, batch = m->batch ? m->batch : 1;
	struct pcptune_band_model model = k->model;
	struct relive_effect e = {1, batch, batch, false};

	batch = batch < high ? batch : high ? high : 1;
	if (!relive_grows(m->rules, m->scale_max) || !log_grows) {
		e.capacity = high > batch ? high - batch : 1;
		e.refill = e.drain = batch;
		e.grown = relive_grows(m->rules, m->scale_max);
		return e;
	}
	e.refill = walk_mean(k, k->refilled, k->refills, high, batch, batch << m->scale_max);
	e.drain = walk_mean(k, k->drained, k->drains, high, batch, batch << m->scale_max);
	if (model.batch) {
		model.batch = batch;
		model.most = batch << m->scale_max;
		e.capacity = pcptune_band_model_capacity(&model, high);
	} else {
		e.capacity = pcptune_band_capacity(high, batch, k->refilled, k->refills, k->drained,
						   k->drains);
	}
	return e;
}

/*
 * high of rules that move it: a refill adds what it took, decay takes a part a second away, so over
 * a record it is where refilled pages a second are that part of high. Refilled pages fall with high,
 * so there is one such value.
 */
static inline uint32_t relive_tuned_high(const struct walk *k, const struct limits *m,
					 bool log_grows, const struct pcptune_band *b,
					 const struct swings *w, int64_t p, uint64_t dt_us)
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
		swings_play(w, b, relive_effect_of(k, &at, log_grows).capacity, &side, &t);
		/* refilled / s <= high / parts */
		if ((double)t.refilled * 1e6 * parts <= (double)mid * (double)dt_us)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

#endif
