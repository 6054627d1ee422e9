/* SPDX-License-Identifier: MIT */
/*
 * The oracles against exhaustive search on tiny inputs, and against each other on larger ones.
 *
 * The search for the floor goes through all levels of all lists after each call, and lets lists
 * drain and fetch whatever they like at any time, so that it would find a better way if there were
 * one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "eval/oracle.h"
#include "tests/unit/random.h"

static uint64_t random_state = 20261130;

static uint64_t below(uint64_t n)
{
	return (random_next(&random_state) >> 11) % n;
}

/* ---- the floor ---- */

#define LEVELS 6 /* 0 .. 5 */
#define STATES (LEVELS * LEVELS * LEVELS)
#define FAR    1000000

static void levels_of(int state, int level[3])
{
	level[0] = state % LEVELS;
	level[1] = state / LEVELS % LEVELS;
	level[2] = state / LEVELS / LEVELS;
}

static int distance(int a, int b)
{
	int x[3], y[3], d = 0;

	levels_of(a, x);
	levels_of(b, y);
	for (int i = 0; i < 3; i++)
		d += abs(x[i] - y[i]);
	return d;
}

/* Any move at all between two calls, as long as no more than `budget` is held after it. */
static void move_freely(int cost[STATES], int budget)
{
	int next[STATES];

	for (int b = 0; b < STATES; b++) {
		int level[3];

		levels_of(b, level);
		next[b] = FAR;
		for (int a = 0; a < STATES && level[0] + level[1] + level[2] <= budget; a++)
			if (cost[a] < FAR && cost[a] + distance(a, b) < next[b])
				next[b] = cost[a] + distance(a, b);
	}
	memcpy(cost, next, sizeof(next));
}

static int exhaustive(const struct oracle_event *ev, size_t n, int budget)
{
	int cost[STATES], best = FAR, step[3] = {1, LEVELS, LEVELS * LEVELS};

	for (int s = 0; s < STATES; s++)
		cost[s] = s ? FAR : 0;
	for (size_t i = 0; i < n; i++) {
		int next[STATES];

		move_freely(cost, budget);
		for (int s = 0; s < STATES; s++)
			next[s] = FAR;
		for (int s = 0; s < STATES; s++) {
			int level[3], to;

			levels_of(s, level);
			if (cost[s] >= FAR)
				continue;
			/* an allocation from an empty list fetches its page */
			to = ev[i].pages > 0	? s + step[ev[i].cpu]
			     : level[ev[i].cpu] ? s - step[ev[i].cpu]
						: s;
			if (cost[s] + (to == s) < next[to])
				next[to] = cost[s] + (to == s);
		}
		memcpy(cost, next, sizeof(next));
	}
	move_freely(cost, budget);
	for (int s = 0; s < STATES; s++)
		best = cost[s] < best ? cost[s] : best;
	return best;
}

static void the_floor_is_what_exhaustive_search_finds(void **state)
{
	(void)state;
	for (int round = 0; round < 600; round++) {
		struct oracle_event ev[16];
		struct pcptune_band_traffic t;
		uint32_t cpus = 1 + (uint32_t)below(3);
		size_t n = 6 + below(11);
		int budget = (int)below(5);

		for (size_t i = 0; i < n; i++)
			ev[i] = (struct oracle_event){(uint32_t)below(cpus), below(2) ? 1 : -1};
		assert_int_equal(oracle_belady(ev, n, cpus, (uint64_t)budget, &t), 0);
		assert_int_equal(t.refilled + t.drained, exhaustive(ev, n, budget));
	}
}

/* Runs of many pages give what single pages give. */
static void runs_are_worth_their_pages(void **state)
{
	static struct oracle_event runs[400], single[400 * 30];

	(void)state;
	for (int round = 0; round < 100; round++) {
		struct pcptune_band_traffic a, b;
		uint32_t cpus = 1 + (uint32_t)below(5);
		uint64_t budget = below(120);
		size_t n = 0;

		for (size_t i = 0; i < 400; i++) {
			int64_t pages = (int64_t)below(60) - 30;

			runs[i] = (struct oracle_event){(uint32_t)below(cpus), pages};
			for (int64_t k = 0; k < llabs(pages); k++)
				single[n++] =
					(struct oracle_event){runs[i].cpu, pages > 0 ? 1 : -1};
		}
		assert_int_equal(oracle_belady(runs, 400, cpus, budget, &a), 0);
		assert_int_equal(oracle_belady(single, n, cpus, budget, &b), 0);
		assert_int_equal(a.refilled, b.refilled);
		assert_int_equal(a.drained, b.drained);
	}
}

/* ---- the split ---- */

#define STEPS 120u

static void curves_of(const struct oracle_event *ev, size_t n, uint32_t cpus, struct curve *c)
{
	int64_t x[5] = {0};

	for (uint32_t i = 0; i < cpus; i++) {
		curve_init(&c[i]);
		assert_int_equal(curve_push(&c[i], 0), 0);
	}
	for (size_t i = 0; i < n; i++)
		assert_int_equal(curve_push(&c[ev[i].cpu], x[ev[i].cpu] += ev[i].pages), 0);
	for (uint32_t i = 0; i < cpus; i++)
		assert_int_equal(curve_seal(&c[i]), 0);
}

static uint64_t moved(const struct curve *c, uint32_t n, const uint64_t *capacity)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct pcptune_band_traffic t = curve_traffic(&c[i], capacity[i], 0);

		sum += t.refilled + t.drained;
	}
	return sum;
}

static uint64_t best_split(const struct curve *c, uint64_t least, uint64_t budget)
{
	uint64_t best = UINT64_MAX;

	for (uint64_t i = least; i + 2 * least <= budget; i++)
		for (uint64_t k = least; i + k + least <= budget; k++) {
			uint64_t split[3] = {i, k, budget - i - k}, v = moved(c, 3, split);

			best = v < best ? v : best;
		}
	return best;
}

static void the_split_is_what_exhaustive_search_finds(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		struct oracle_event ev[STEPS];
		struct curve c[3];
		const struct curve *p[3] = {&c[0], &c[1], &c[2]};
		uint64_t split[3], least = below(2) * below(6), budget = 3 * least + below(60);
		int64_t run[3] = {1 + (int64_t)below(3), 1 + (int64_t)below(9),
				  1 + (int64_t)below(30)};

		for (uint32_t i = 0; i < STEPS; i++) {
			uint32_t cpu = (uint32_t)below(3);
			int64_t pages = 1 + (int64_t)below((uint64_t)run[cpu]);

			ev[i] = (struct oracle_event){cpu, below(2) ? pages : -pages};
		}
		curves_of(ev, STEPS, 3, c);
		assert_int_equal(oracle_split(p, 3, least, budget, split), 0);
		assert_true(split[0] + split[1] + split[2] <= budget);
		assert_true(split[0] >= least && split[1] >= least && split[2] >= least);
		assert_int_equal(moved(c, 3, split), best_split(c, least, budget));
		for (int i = 0; i < 3; i++)
			curve_free(&c[i]);
	}
}

static void the_floor_is_never_above_the_split(void **state)
{
	static struct oracle_event ev[20000];

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct pcptune_band_traffic floor;
		struct curve c[5];
		const struct curve *p[5] = {&c[0], &c[1], &c[2], &c[3], &c[4]};
		uint64_t split[5], budget = 1 + below(3000);

		for (uint32_t i = 0; i < 20000; i++)
			ev[i] = (struct oracle_event){(uint32_t)below(5), (int64_t)below(101) - 50};
		curves_of(ev, 20000, 5, c);
		assert_int_equal(oracle_split(p, 5, 0, budget, split), 0);
		assert_int_equal(oracle_belady(ev, 20000, 5, budget, &floor), 0);
		assert_true(floor.refilled + floor.drained <= moved(c, 5, split));
		for (int i = 0; i < 5; i++)
			curve_free(&c[i]);
	}
}

static void nothing_costs_nothing(void **state)
{
	struct oracle_event zero = {0, 0};
	struct pcptune_band_traffic t;
	uint64_t split = 7;

	(void)state;
	assert_int_equal(oracle_belady(NULL, 0, 0, 5, &t), 0);
	assert_int_equal(t.refilled + t.drained, 0);
	assert_int_equal(oracle_belady(&zero, 1, 1, 0, &t), 0);
	assert_int_equal(t.refilled + t.drained, 0);
	assert_int_equal(oracle_split(NULL, 0, 0, 100, &split), 0);
	assert_int_equal(split, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_floor_is_what_exhaustive_search_finds),
		cmocka_unit_test(runs_are_worth_their_pages),
		cmocka_unit_test(the_split_is_what_exhaustive_search_finds),
		cmocka_unit_test(the_floor_is_never_above_the_split),
		cmocka_unit_test(nothing_costs_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
