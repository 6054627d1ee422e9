/* SPDX-License-Identifier: MIT */
/*
 * Random numbers of tests: xorshift (Marsaglia), so the same on every machine and in every run. The
 * state is the caller's, never 0; each thread has one of its own. High bits are better than low
 * ones.
 */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#endif
