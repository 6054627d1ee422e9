/* SPDX-License-Identifier: MIT */
/*
 * The rules against cases worked out by hand from the kernel's text: tables of what goes in and
 * what must come out, one case a row.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pcptune/rules.h>
#include "tests/unit/random.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct pcptune_rule_state g4(uint32_t high, uint32_t min, uint32_t max)
{
	return (struct pcptune_rule_state){.rules = PCPTUNE_RULES_G4,
					   .high = high,
					   .high_min = min,
					   .high_max = max,
					   .batch = 63,
					   .scale_max = 5};
}

static void batch_thresholds(void **state)
{
	static const struct {
		uint64_t managed;
		uint32_t batch;
	} cases[] = {{0, 1},
		     {12287, 1},
		     {12288, 3},
		     {24575, 3},
		     {24576, 7},
		     {45055, 7},
		     {45056, 15},
		     {90111, 15},
		     {90112, 31},
		     {176127, 31},
		     {176128, 63},
		     {819200, 63},
		     {UINT64_C(1) << 40, 63}};

	(void)state;
	for (size_t i = 0; i < N(cases); i++)
		assert_int_equal(pcptune_zone_batch(cases[i].managed), cases[i].batch);
}

static void bounds_of_high(void **state)
{
	(void)state;
	assert_int_equal(pcptune_zone_high_max(819200, 2, 63), 51200);
	assert_int_equal(pcptune_zone_high_min(10840, 2, 63), 5420);
	assert_int_equal(pcptune_zone_high_max(772915, 2, 63), 48307);
	assert_int_equal(pcptune_zone_high_min(10227, 2, 63), 5113);
	assert_int_equal(pcptune_zone_high_max(3840, 2, 1), 240);
	assert_int_equal(pcptune_zone_high_min(50, 2, 1), 25);
	/* at least four batches; no CPU counts as one */
	assert_int_equal(pcptune_zone_high_min(100, 64, 63), 252);
	assert_int_equal(pcptune_zone_high_min(1000, 0, 63), 1000);
	assert_int_equal(pcptune_zone_high(UINT64_C(1) << 40, 1, 63), 1u << 23);
}

static void refills_double(void **state)
{
	static const uint32_t want[] = {63, 126, 252, 504, 1008, 2016, 2016, 2016};
	struct pcptune_rule_state s = g4(51200, 5420, 51200);

	(void)state;
	for (size_t i = 0; i < N(want); i++)
		assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), want[i]);
	assert_int_equal(s.alloc_factor, 5);
}

/* One free halves the factor. */
static void a_free_halves_refills(void **state)
{
	struct pcptune_rule_state s = g4(51200, 5420, 51200);
	bool fired;

	(void)state;
	s.alloc_factor = 5;
	pcptune_rules_free(&s, 0, 1, 0, &fired);
	assert_int_equal(s.alloc_factor, 2);
	assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), 252);
}

static void refill_is_bounded_by_room(void **state)
{
	struct pcptune_rule_state s = g4(252, 252, 252);

	(void)state;
	s.alloc_factor = 3; /* wants 504; room is 252 - 0 - 63 */
	assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), 189);
	assert_int_equal(s.alloc_factor, 3);
	/* no room at all: a batch */
	assert_int_equal(pcptune_rules_refill(&s, 0, 252, 0), 63);
	/* high below batch: the lists are off */
	s = g4(10, 10, 10);
	assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), 1);
}

static void refill_of_larger_orders(void **state)
{
	static const struct {
		uint32_t order, blocks;
	} cases[] = {{1, 31}, {2, 15}, {3, 7}, {9, 2}};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct pcptune_rule_state s = g4(51200, 5420, 51200);

		s.alloc_factor = 4; /* without meaning here */
		assert_int_equal(pcptune_rules_refill(&s, cases[i].order, 0, 0), cases[i].blocks);
		assert_int_equal(s.alloc_factor, 4);
	}
}

static void refill_raises_high(void **state)
{
	struct pcptune_rule_state s = g4(5420, 5420, 51200);

	(void)state;
	pcptune_rules_refill(&s, 0, 0, 0);
	assert_int_equal(s.high, 5483);
	pcptune_rules_refill(&s, 0, 0, 0);
	assert_int_equal(s.high, 5609);
	/* not when memory is short, not above high_max, not when min and max are one */
	pcptune_rules_refill(&s, 0, 0, PCPTUNE_ZS_BELOW_HIGH);
	assert_int_equal(s.high, 5609);
	s.high = 51190;
	pcptune_rules_refill(&s, 0, 0, 0);
	assert_int_equal(s.high, 51200);
	s = g4(500, 500, 500);
	pcptune_rules_refill(&s, 0, 0, 0);
	assert_int_equal(s.high, 500);
	/* a live high outside its bounds comes back into them first */
	s = g4(0, 5420, 51200);
	pcptune_rules_refill(&s, 0, 0, PCPTUNE_ZS_BELOW_HIGH);
	assert_int_equal(s.high, 5420);
}

static void free_drains_at_high(void **state)
{
	struct pcptune_rule_state s = g4(500, 500, 500);
	bool fired;

	(void)state;
	assert_int_equal(pcptune_rules_free(&s, 0, 499, 0, &fired), 0);
	/* two frees in a row: less than a batch, so a batch */
	assert_int_equal(pcptune_rules_free(&s, 0, 500, 0, &fired), 63);
	assert_false(fired);
	/* a long run leaves a batch behind */
	s.free_count = 2016;
	assert_int_equal(pcptune_rules_free(&s, 0, 500, 0, &fired), 437);
	/* and does not count on for ever */
	assert_int_equal(s.free_count, 2016);
	/* never more than there is */
	s = g4(0, 0, 0);
	assert_int_equal(pcptune_rules_free(&s, 0, 1, 0, &fired), 1);
}

static void free_raises_high_for_long_runs(void **state)
{
	struct pcptune_rule_state s = g4(300, 252, 51200);
	bool fired;

	(void)state;
	s.free_count = 1000;
	/* decided by the old high; the new one is free_count + batch */
	assert_int_equal(pcptune_rules_free(&s, 0, 300, 0, &fired), 237);
	assert_int_equal(s.high, 1001 + 63);
}

static void allocations_halve_free_count(void **state)
{
	struct pcptune_rule_state s = g4(500, 500, 500);

	(void)state;
	s.free_count = 2016;
	pcptune_rules_on_alloc(&s);
	assert_int_equal(s.free_count, 1008);
}

/* One high-order free in a run of small ones drains nothing; two in a row do. */
static void two_consecutive_high_orders(void **state)
{
	struct pcptune_rule_state s = g4(51200, 5420, 51200);
	bool fired;

	(void)state;
	s.free_count = 100;
	assert_int_equal(pcptune_rules_free(&s, 1, 1000, 0, &fired), 0);
	assert_false(fired);
	assert_int_equal(pcptune_rules_free(&s, 0, 1001, 0, &fired), 0);
	assert_int_equal(pcptune_rules_free(&s, 1, 1003, 0, &fired), 0);
	assert_false(fired);
	assert_int_equal(pcptune_rules_free(&s, 1, 1005, 0, &fired), 1005);
	assert_true(fired);
	assert_int_equal(s.high, 51200 - 2016);
	/* at most one move */
	assert_int_equal(pcptune_rules_free(&s, 2, 9000, 0, &fired), 2016);
	assert_true(fired);
	/* a huge block is not of these orders */
	assert_int_equal(pcptune_rules_free(&s, 9, 9000, 0, &fired), 0);
	assert_int_equal(pcptune_rules_free(&s, 1, 9002, 0, &fired), 0);
	/* a run below a batch does not fire */
	s = g4(51200, 5420, 51200);
	pcptune_rules_free(&s, 1, 2, 0, &fired);
	assert_int_equal(pcptune_rules_free(&s, 1, 4, 0, &fired), 0);
	assert_false(fired);
	/* with a large cache slice a batch stays */
	s.free_count = 100;
	s.flags |= PCPTUNE_RF_FREE_HIGH_BATCH;
	assert_int_equal(pcptune_rules_free(&s, 1, 62, 0, &fired), 0);
	assert_int_equal(pcptune_rules_free(&s, 1, 64, 0, &fired), 64);
}

/* Whoever frees no more pages than that without asking misses no drain, and with one more may. */
static void before_high_orders(void **state)
{
	uint32_t dice = 1, late = 0;

	(void)state;
	for (int n = 0; n < 20000; n++) {
		struct pcptune_rule_state s = g4(2000, 367, 36800);
		uint32_t count = (dice = dice * 1664525 + 1013904223) >> 23, before;
		bool fired = false;

		s.rules = (uint32_t)n % PCPTUNE_RULES_ROWS;
		s.free_count = (dice >> 8) % (n & 1 ? 3 : 500);
		s.flags = PCPTUNE_RF_PREV_HIGH_ORDER | (n & 2 ? PCPTUNE_RF_FREE_HIGH_BATCH : 0);
		before = pcptune_rules_before_free_high(&s, count);
		for (uint32_t freed = 2; freed <= before && freed < 400 && !fired; freed += 2)
			pcptune_rules_free(&s, 1, count + freed, 0, &fired);
		assert_false(fired);
		if (before < 400)
			pcptune_rules_free(&s, 1, count + before + 2, 0, &fired);
		late += fired;
	}
	assert_true(late > 1000);
}

static void short_memory_lowers_high(void **state)
{
	struct pcptune_rule_state s = g4(10000, 5420, 51200);
	bool fired;

	(void)state;
	assert_int_equal(pcptune_rules_free(&s, 0, 1000, PCPTUNE_ZS_RECLAIM_ACTIVE, &fired), 63);
	assert_int_equal(s.high, 9937);
	assert_int_equal(pcptune_rules_free(&s, 0, 200, PCPTUNE_ZS_RECLAIM_ACTIVE, &fired), 0);
	s = g4(10000, 5420, 51200);
	assert_int_equal(pcptune_rules_free(&s, 0, 5420, PCPTUNE_ZS_BELOW_HIGH, &fired), 63);
	assert_int_equal(s.high, 9937);
	assert_int_equal(pcptune_rules_free(&s, 0, 5419, PCPTUNE_ZS_BELOW_HIGH, &fired), 0);
}

static void decay(void **state)
{
	struct pcptune_rule_state s = g4(51200, 5420, 51200);

	(void)state;
	assert_int_equal(pcptune_rules_decay(51200, 5420, 0, 2016, 8, UINT32_MAX), 44800);
	assert_int_equal(pcptune_rules_decay(44800, 5420, 0, 2016, 8, UINT32_MAX), 39200);
	/* one tick gives back at most one move */
	assert_int_equal(pcptune_rules_decay(51200, 5420, 50000, 2016, 8, UINT32_MAX), 47984);
	assert_int_equal(pcptune_rules_decay(5500, 5420, 0, 2016, 8, UINT32_MAX), 5420);
	assert_int_equal(pcptune_rules_decay(5420, 5420, 9000, 2016, 8, UINT32_MAX), 5420);
	assert_int_equal(pcptune_rules_tick(&s, 50000), 2016);
	assert_int_equal(s.high, 47984);
	s.rules = PCPTUNE_RULES_G1;
	assert_int_equal(pcptune_rules_tick(&s, 60000), 0);
}

static void g0_is_fixed(void **state)
{
	struct pcptune_rule_state s = {.rules = PCPTUNE_RULES_G0, .high = 378, .batch = 63};
	bool fired;

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), 63);
	assert_int_equal(pcptune_rules_free(&s, 0, 377, 0, &fired), 0);
	assert_int_equal(pcptune_rules_free(&s, 0, 378, 0, &fired), 63);
	assert_int_equal(pcptune_rules_free(&s, 0, 378, 0, &fired), 63);
	assert_int_equal(s.high, 378);
	assert_true(pcptune_rules_has_list(PCPTUNE_RULES_G0, 0));
	assert_false(pcptune_rules_has_list(PCPTUNE_RULES_G0, 1));
	assert_false(pcptune_rules_has_list(PCPTUNE_RULES_G1, 9));
	assert_true(pcptune_rules_has_list(PCPTUNE_RULES_G4, 9));
	assert_false(pcptune_rules_has_list(PCPTUNE_RULES_G4, 4));
}

static void g1_doubles_drains(void **state)
{
	/* 814 is the example of the patch; it starts with one doubling done */
	static const uint32_t want[] = {126, 252, 504, 751, 751};
	struct pcptune_rule_state s = {.rules = PCPTUNE_RULES_G1, .high = 814, .batch = 63};
	bool fired;

	(void)state;
	assert_int_equal(pcptune_rules_free(&s, 0, 814, 0, &fired), 63);
	for (size_t i = 0; i < N(want); i++)
		assert_int_equal(pcptune_rules_free(&s, 0, 814, 0, &fired), want[i]);
	pcptune_rules_on_alloc(&s);
	pcptune_rules_on_alloc(&s);
	assert_int_equal(s.free_count, 1);
	assert_int_equal(pcptune_rules_free(&s, 0, 814, 0, &fired), 126);
	assert_int_equal(pcptune_rules_free(&s, 0, 252, PCPTUNE_ZS_RECLAIM_ACTIVE, &fired), 189);
}

/* high is what it was set to, whatever happens; consecutive high-order frees stay. */
static void gx_keeps_high(void **state)
{
	struct pcptune_rule_state s = g4(3000, 100, 51200);
	bool fired;

	(void)state;
	s.rules = PCPTUNE_RULES_GX;
	for (uint32_t n = 63; n <= 2016; n *= 2)
		assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), n);
	for (int i = 0; i < 2000; i++) {
		assert_int_equal(pcptune_rules_free(&s, 1, 2999, 0, &fired), 0);
		assert_false(fired);
	}
	assert_int_equal(pcptune_rules_free(&s, 1, 3000, 0, &fired), 2016);
	assert_int_equal(pcptune_rules_tick(&s, 5000), 0);
	assert_int_equal(s.high, 3000);
}

static void names(void **state)
{
	uint32_t id = 99, n = 0;

	(void)state;
	assert_string_equal(pcptune_rules_name(PCPTUNE_RULES_G4), "g4");
	assert_string_equal(pcptune_rules_name(PCPTUNE_RULES_G4 | PCPTUNE_RULES_ORDER0),
			    "g4-order0");
	assert_string_equal(pcptune_rules_name(PCPTUNE_RULES_G1 | PCPTUNE_RULES_ORDERS),
			    "g1-orders");
	/* switches that would change nothing, and no row */
	assert_string_equal(pcptune_rules_name(PCPTUNE_RULES_G1 | PCPTUNE_RULES_ORDER0), "?");
	assert_string_equal(pcptune_rules_name(PCPTUNE_RULES_G4 | PCPTUNE_RULES_ORDERS), "?");
	assert_string_equal(pcptune_rules_name(17), "?");
	assert_false(pcptune_rules_known(31));
	assert_false(pcptune_rules_known(128));
	assert_false(pcptune_rules_known(UINT32_MAX));
	for (uint32_t i = 0; i <= PCPTUNE_RULES_MAX; i++) {
		if (!pcptune_rules_known(i))
			continue;
		n++;
		assert_true(pcptune_rules_parse(pcptune_rules_name(i), &id));
		assert_int_equal(id, i);
	}
	assert_int_equal(n, 2 * PCPTUNE_RULES_ROWS); /* each row, and with its switch */
	for (uint32_t i = 0; i < PCPTUNE_RULES_ROWS; i++)
		assert_int_equal(pcptune_generations[i].id, i);
}

static void other_names(void **state)
{
	static const struct {
		const char *name;
		uint32_t id;
	} cases[] = {{"base", PCPTUNE_RULES_G3},  {"p7v2", PCPTUNE_RULES_P7},
		     {"p9v2", PCPTUNE_RULES_P9},  {"p10v2", PCPTUNE_RULES_P10},
		     {"p9v3", PCPTUNE_RULES_G4},  {"2016", PCPTUNE_RULES_Y2016},
		     {"p7v3", PCPTUNE_RULES_P7V3}};
	static const char *const wrong[] = {"", " ", "g", "g44", "base ", "p7v", "g1-order0", "G4"};
	uint32_t id = 99;

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		assert_true(pcptune_rules_parse(cases[i].name, &id));
		assert_int_equal(id, cases[i].id);
	}
	id = 99;
	for (size_t i = 0; i < N(wrong); i++)
		assert_false(pcptune_rules_parse(wrong[i], &id));
	assert_int_equal(id, 99);
}

/* ---- any input ---- */

static uint32_t next_random(uint32_t n)
{
	static uint64_t x = 88172645463325252u;

	return (uint32_t)(random_next(&x) % n);
}

/* Whatever comes in, high stays in its bounds and no move is larger than what is there. */
static void any_input_keeps_bounds(void **state)
{
	(void)state;
	for (int i = 0; i < 400000; i++) {
		struct pcptune_rule_state s = {.rules = (uint32_t)i % PCPTUNE_RULES_ROWS};
		uint32_t count, n;
		bool fired;

		s.batch = 1 + next_random(1024);
		s.scale_max = next_random(7);
		s.high_min = next_random(1u << 23);
		s.high_max = s.high_min + next_random((1u << 23) - s.high_min);
		s.high = next_random(1u << 23);
		s.alloc_factor = next_random(s.scale_max + 1);
		s.free_count = next_random(70000);
		count = next_random(1u << 23);
		n = pcptune_rules_refill(&s, next_random(4), count, next_random(4));
		assert_in_range(n, 1, pcptune_max_u32(2, pcptune_max_move(&s)));
		n = pcptune_rules_free(&s, next_random(4), count, next_random(4), &fired);
		assert_in_range(n, 0, count);
		if (pcptune_rules_clamps(pcptune_rules_traits(s.rules)))
			assert_in_range(s.high, s.high_min, s.high_max);
	}
}

/* A run of frees in one step is as many frees. */
static void runs_are_single_frees(void **state)
{
	(void)state;
	for (int i = 0; i < 20000; i++) {
		struct pcptune_rule_state s = {.rules = (uint32_t)i % PCPTUNE_RULES_ROWS}, t;
		uint32_t count = next_random(700), n = 1 + next_random(700), k;
		bool fired;

		s.batch = 1 + next_random(63);
		s.scale_max = next_random(7);
		s.high_min = next_random(1000);
		s.high = s.high_min + next_random(300);
		s.high_max = s.high_min + next_random(1000);
		s.alloc_factor = next_random(s.scale_max + 1);
		s.free_count = next_random(s.rules == PCPTUNE_RULES_G4 ? 3000 : 4);
		s.flags = next_random(4);
		t = s;
		k = pcptune_rules_free_run(&s, count, n);
		assert_in_range(k, 0, n);
		for (uint32_t j = 1; j <= k; j++)
			assert_int_equal(pcptune_rules_free(&t, 0, count + j, 0, &fired), 0);
		assert_memory_equal(&s, &t, sizeof(s));
		/* it ends where the next one drains */
		if (k < n)
			assert_int_not_equal(pcptune_rules_free(&t, 0, count + k + 1, 0, &fired),
					     0);
	}
}

/* Any state, with values near to each other so that all cases come by. */
static struct pcptune_rule_state any_state(uint64_t *x)
{
	struct pcptune_rule_state s = {.rules = (uint32_t)(random_next(x) >> 40) % 128,
				       .high = (uint32_t)(random_next(x) >> 40) % 300,
				       .high_min = (uint32_t)(random_next(x) >> 40) % 200,
				       .high_max = (uint32_t)(random_next(x) >> 40) % 400,
				       .batch = 1 + (uint32_t)(random_next(x) >> 40) % 64,
				       .scale_max = (uint32_t)(random_next(x) >> 40) % 7,
				       .alloc_factor = (uint32_t)(random_next(x) >> 40) % 6,
				       .free_count = (uint32_t)(random_next(x) >> 40) % 200,
				       .flags = (uint32_t)(random_next(x) >> 40) % 4};

	if (random_next(x) >> 62)
		s.high = pcptune_clamp_u32(s.high, s.high_min, s.high_max);
	return s;
}

static bool free_lightly(const struct pcptune_rule_light *w, struct pcptune_rule_state *s,
			 uint32_t order, uint32_t count)
{
	if (!pcptune_rules_free_is_light(w, order, count, s->free_count))
		return false;
	s->alloc_factor = pcptune_rules_light_factor(w, s->alloc_factor);
	s->free_count = pcptune_rules_light_run(w, order, s->free_count);
	s->flags = pcptune_rules_light_flags(w, order, s->flags);
	return true;
}

/* The short way comes to what the long one does, wherever it is to be had. */
static void light_frees_are_frees(void **state)
{
	uint64_t x = 12;
	unsigned light[PCPTUNE_COSTLY_ORDER + 1] = {0};

	(void)state;
	for (unsigned i = 0; i < 400000; i++) {
		struct pcptune_rule_state s = any_state(&x), t = s;
		uint32_t order = (uint32_t)(random_next(&x) >> 62);
		uint32_t count = (uint32_t)(random_next(&x) >> 40) % 400;
		struct pcptune_rule_light w;
		bool fired;

		pcptune_rules_light(&s, &w);
		if (!free_lightly(&w, &s, order, count))
			continue;
		light[order]++;
		assert_true(pcptune_rules_has_list(s.rules, order));
		assert_int_equal(pcptune_rules_free(&t, order, count, 0, &fired), 0);
		assert_false(fired);
		assert_memory_equal(&s, &t, sizeof(s));
	}
	for (unsigned order = 0; order <= PCPTUNE_COSTLY_ORDER; order++)
		assert_true(light[order] > 1000);
}

/* Nothing on the way of a program at rest: what every free goes by is what generations are for. */
static void most_frees_are_light(void **state)
{
	(void)state;
	for (uint32_t id = 0; id <= PCPTUNE_RULES_MAX; id++) {
		struct pcptune_rule_state s = g4(500, 400, 600);
		struct pcptune_rule_light w;

		if (!pcptune_rules_known(id))
			continue;
		s.rules = id;
		pcptune_rules_light(&s, &w);
		assert_true(free_lightly(&w, &s, 0, 499));
		assert_false(free_lightly(&w, &s, 0, 500));
		assert_int_equal(free_lightly(&w, &s, 1, 300), pcptune_rules_has_list(id, 1));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batch_thresholds),
		cmocka_unit_test(bounds_of_high),
		cmocka_unit_test(refills_double),
		cmocka_unit_test(a_free_halves_refills),
		cmocka_unit_test(refill_is_bounded_by_room),
		cmocka_unit_test(refill_of_larger_orders),
		cmocka_unit_test(refill_raises_high),
		cmocka_unit_test(free_drains_at_high),
		cmocka_unit_test(free_raises_high_for_long_runs),
		cmocka_unit_test(allocations_halve_free_count),
		cmocka_unit_test(two_consecutive_high_orders),
		cmocka_unit_test(before_high_orders),
		cmocka_unit_test(short_memory_lowers_high),
		cmocka_unit_test(decay),
		cmocka_unit_test(g0_is_fixed),
		cmocka_unit_test(g1_doubles_drains),
		cmocka_unit_test(gx_keeps_high),
		cmocka_unit_test(names),
		cmocka_unit_test(other_names),
		cmocka_unit_test(runs_are_single_frees),
		cmocka_unit_test(any_input_keeps_bounds),
		cmocka_unit_test(light_frees_are_frees),
		cmocka_unit_test(most_frees_are_light),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
