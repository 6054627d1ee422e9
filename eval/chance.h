/* SPDX-License-Identifier: MIT */
/*
 * Chance that is the same each time: xorshift (Marsaglia). The state is the caller's, never 0.
 */
#ifndef PCPTUNE_EVAL_CHANCE_H
#define PCPTUNE_EVAL_CHANCE_H

#include <stdint.h>

#define CHANCE_SEED UINT64_C(0x9e3779b97f4a7c15)

/* From 0 to n - 1; n above 0. */
static inline uint64_t chance_below(uint64_t *state, uint64_t n)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state >> 11) % n;
}

#endif
