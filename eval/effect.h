/* SPDX-License-Identifier: MIT */
/*
 * What lists with given limits make of the walk of a CPU: the capacity in effect, and the sizes of
 * refills and drains. Curves, advice and policies over logs all ask here, so they agree.
 */
#ifndef PCPTUNE_EVAL_EFFECT_H
#define PCPTUNE_EVAL_EFFECT_H

#include <stdbool.h>
#include <pcptune/rules.h>
#include "eval/growth.h"

struct effect {
	uint64_t capacity;
	uint64_t refill, drain; /* pages of one, at least 1 */
	bool grown;		/* batches that grow; those of the log do not */
};

/* Drains of 5.14 to 6.6 double without a bound of their own. */
static inline bool effect_grows(uint32_t rules, uint32_t scale_max)
{
	uint32_t t = pcptune_rules_traits(rules);

	if (t & PCPTUNE_RT_FREE_FACTOR && !(t & PCPTUNE_RT_SCALE_CAP))
		return true;
	return scale_max &&
	       t & (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT | PCPTUNE_RT_ALLOC_FACTOR);
}

/* k: has records; high and batch of m may be 0. */
static inline struct effect effect_of(const struct walk *k, const struct likeness_limits *m)
{
	struct likeness_limits at = *m;
	struct effect e = {1, 1, 1, false};
	struct growth_effect x;

	at.high = at.high ? at.high : 1;
	at.batch = at.batch ? at.batch : 1;
	at.batch = at.batch < at.high ? at.batch : at.high;
	if (!effect_grows(at.rules, at.scale_max)) {
		e.capacity = at.high > at.batch ? at.high - at.batch : 1;
		e.refill = e.drain = at.batch;
		return e;
	}
	e.grown = !effect_grows(k->rules, k->scale_max);
	x = growth_at(k->growth, &at);
	e.capacity = at.high > x.loss ? at.high - x.loss : 1;
	e.refill = x.refill;
	e.drain = x.drain;
	return e;
}

#endif
