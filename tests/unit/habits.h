/* SPDX-License-Identifier: MIT */
/*
 * Walks of one list's position with several habits: even, bursts, jumps, drifting, nearly periodic,
 * growing and shrinking swings. From fixed seeds, so they are the same in every run.
 */
#ifndef TESTS_HABITS_H
#define TESTS_HABITS_H

#include "tests/unit/random.h"

static uint64_t random_state;

static inline uint64_t below(uint64_t n)
{
	return (random_next(&random_state) >> 11) % n;
}

enum kind { EVEN, BURSTS, JUMPS, DRIFT, PERIODIC, SWINGS, N_KINDS };

/* One step of a walk of the given habit; *leg: what is left of a burst, signed. */
static inline int64_t step(enum kind kind, uint32_t i, int64_t *leg)
{
	static const int64_t orders[] = {1, 1, 1, 2, 4, 8};

	if (kind == EVEN)
		return below(2) ? 1 : -1;
	if (kind == JUMPS)
		return below(2) ? orders[below(6)] : -orders[below(6)];
	if (kind == DRIFT)
		return below(5) < 3 ? 1 : -1;
	if (!*leg) {
		int64_t n = kind == PERIODIC ? 20 + (int64_t)below(3)
			    : kind == SWINGS ? 1 + (int64_t)(i / 8 % 40)
					     : 1 + (int64_t)below(40);

		*leg = (kind == BURSTS ? below(2) : i & 1) ? n : -n;
	}
	*leg += *leg > 0 ? -1 : 1;
	return *leg > 0 || (*leg == 0 && (i & 1)) ? 1 : -1;
}

static inline void walk(enum kind kind, uint64_t seed, int64_t *x, uint32_t n)
{
	int64_t leg = 0;

	random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	x[0] = (int64_t)below(100) - 50;
	for (uint32_t i = 1; i < n; i++)
		x[i] = x[i - 1] + step(kind, i, &leg);
}

#endif
