/* SPDX-License-Identifier: MIT */
/*
 * What the generations between g0 and g4, and those after it, do otherwise: cases worked out by
 * hand, one a row, as in test_rules.c.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pcptune/rules.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct pcptune_rule_state of(uint32_t rules, uint32_t high, uint32_t min, uint32_t max)
{
	return (struct pcptune_rule_state){.rules = rules,
					   .high = high,
					   .high_min = min,
					   .high_max = max,
					   .batch = 63,
					   .scale_max = 5};
}

/* Zone of the 6.18 host: 819200 pages managed, low watermark 10840, 2 CPUs. */
static void bounds_of_generations(void **state)
{
	static const struct {
		uint32_t rules, fraction, high, min, max, batch;
	} cases[] = {
		{PCPTUNE_RULES_G0, 0, 378, 378, 378, 63},
		{PCPTUNE_RULES_G0B, 0, 378, 378, 378, 63},
		{PCPTUNE_RULES_G0B, 8, 102400, 102400, 102400, 96}, /* 819200 / 8 a list; capped */
		{PCPTUNE_RULES_G0B, 8192, 100, 100, 100, 25},	    /* 819200 / 8192; 100 / 4 */
		{PCPTUNE_RULES_G0B, 819200, 4, 4, 4, 1},
		{PCPTUNE_RULES_Y2016, 0, 882, 882, 882, 63}, /* 6 x 63 + 8 x 63 */
		{PCPTUNE_RULES_G1, 0, 5420, 5420, 5420, 63},
		{PCPTUNE_RULES_G3, 8, 51200, 51200, 51200, 63},
		{PCPTUNE_RULES_P5, 0, 5420, 5420, 5420, 63},
		{PCPTUNE_RULES_P7, 0, 5420, 5420, 51200, 63},
		{PCPTUNE_RULES_G4, 0, 5420, 5420, 51200, 63},
		{PCPTUNE_RULES_G6, 100, 4096, 4096, 4096, 63},
		{PCPTUNE_RULES_GX, 0, 5420, 5420, 5420, 63},
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct pcptune_bounds b = pcptune_rules_bounds(cases[i].rules, 819200, 10840, 2, 0,
							       cases[i].fraction);

		assert_int_equal(b.high, cases[i].high);
		assert_int_equal(b.high_min, cases[i].min);
		assert_int_equal(b.high_max, cases[i].max);
		assert_int_equal(b.batch, cases[i].batch);
	}
}

/* g2: max(batch >> order, 2) blocks; 2016: batch blocks; before p5 no refill grows. */
static void refills_before_p5(void **state)
{
	static const struct {
		uint32_t rules, order, blocks;
	} cases[] = {{PCPTUNE_RULES_G2, 0, 63},	   {PCPTUNE_RULES_G2, 1, 31},
		     {PCPTUNE_RULES_G2, 2, 15},	   {PCPTUNE_RULES_G2, 3, 7},
		     {PCPTUNE_RULES_G2, 9, 2},	   {PCPTUNE_RULES_G3, 3, 7},
		     {PCPTUNE_RULES_P3, 0, 63},	   {PCPTUNE_RULES_Y2016, 3, 63},
		     {PCPTUNE_RULES_Y2016, 1, 63}, {PCPTUNE_RULES_G1 | PCPTUNE_RULES_ORDERS, 3, 7}};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct pcptune_rule_state s = of(cases[i].rules, 1000, 1000, 1000);

		for (int k = 0; k < 3; k++)
			assert_int_equal(pcptune_rules_refill(&s, cases[i].order, 0, 0),
					 cases[i].blocks);
		assert_int_equal(s.high, 1000);
	}
}

/* p5: 63, 126, ... within high; high stays. p7: high rises by each of them. */
static void refills_from_p5(void **state)
{
	struct pcptune_rule_state s = of(PCPTUNE_RULES_P5, 5420, 5420, 5420);
	static const uint32_t want[] = {63, 126, 252, 504, 1008, 2016, 2016};
	uint32_t high = 5420;

	(void)state;
	for (size_t i = 0; i < N(want); i++)
		assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), want[i]);
	assert_int_equal(s.high, 5420);
	s = of(PCPTUNE_RULES_P7, 5420, 5420, 51200);
	for (size_t i = 0; i < N(want); i++) {
		assert_int_equal(pcptune_rules_refill(&s, 0, 0, 0), want[i]);
		assert_int_equal(s.high, high += want[i]);
	}
	/* p8 came after: below the high watermark p7 still rises, p9 does not */
	pcptune_rules_refill(&s, 0, 0, PCPTUNE_ZS_BELOW_HIGH);
	assert_int_equal(s.high, high + 2016);
	s = of(PCPTUNE_RULES_P9, 6000, 5420, 51200);
	pcptune_rules_refill(&s, 0, 0, PCPTUNE_ZS_BELOW_HIGH);
	assert_int_equal(s.high, 6000);
}

/* g3: one stray free of order 1 after a full drain gives everything back. */
static void free_high_of_g3(void **state)
{
	struct pcptune_rule_state s = of(PCPTUNE_RULES_G3, 5420, 5420, 5420);
	bool fired;

	(void)state;
	assert_int_equal(pcptune_rules_free(&s, 1, 3000, 0, &fired), 0);
	assert_int_equal(pcptune_rules_free(&s, 0, 5420, 0, &fired), 63);
	assert_int_equal(s.free_count, 1);
	assert_int_equal(pcptune_rules_free(&s, 1, 5000, 0, &fired), 5000);
	assert_true(fired);
	/* an allocation ends it */
	pcptune_rules_on_alloc(&s);
	assert_int_equal(pcptune_rules_free(&s, 1, 5000, 0, &fired), 0);
	assert_false(fired);
	/* not for order 9 */
	s.free_count = 1;
	assert_int_equal(pcptune_rules_free(&s, 9, 5000, 0, &fired), 0);
}

/* p1: the second one in a row; p3: not below a batch where caches are large. */
static void free_high_of_p1_and_p3(void **state)
{
	static const uint32_t ids[] = {PCPTUNE_RULES_P1, PCPTUNE_RULES_P3};
	bool fired;

	(void)state;
	for (size_t i = 0; i < N(ids); i++) {
		struct pcptune_rule_state s = of(ids[i], 5420, 5420, 5420);

		s.free_count = 2;
		s.flags = PCPTUNE_RF_FREE_HIGH_BATCH;
		assert_int_equal(pcptune_rules_free(&s, 1, 40, 0, &fired), 0);
		assert_int_equal(pcptune_rules_free(&s, 0, 41, 0, &fired), 0);
		assert_int_equal(pcptune_rules_free(&s, 2, 45, 0, &fired), 0);
		/* 62 pages are less than a batch */
		assert_int_equal(pcptune_rules_free(&s, 3, 62, 0, &fired), i ? 0 : 62);
		assert_int_equal(fired, !i);
		assert_int_equal(pcptune_rules_free(&s, 3, 3000, 0, &fired), 3000);
		assert_true(fired);
		assert_int_equal(s.high, 5420);
	}
}

/* p1: the factor has no cap but high - batch; p5: scale_max caps it at 2016 pages. */
static void factor_is_capped_from_p5(void **state)
{
	static const uint32_t want[] = {63, 126, 252, 504, 1008, 2016, 4032, 8064};
	struct pcptune_rule_state p1 = of(PCPTUNE_RULES_P1, 20000, 20000, 20000), p5 = p1;
	bool fired;

	(void)state;
	p5.rules = PCPTUNE_RULES_P5;
	for (size_t i = 0; i < N(want); i++) {
		assert_int_equal(pcptune_rules_free(&p1, 0, 20000, 0, &fired), want[i]);
		assert_int_equal(pcptune_rules_free(&p5, 0, 20000, 0, &fired),
				 pcptune_min_u32(want[i], 2016));
	}
}

/* p7: at most 2016 pages for high orders, high goes down by as much; raised at a full list. */
static void p7_tunes_at_frees(void **state)
{
	struct pcptune_rule_state s = of(PCPTUNE_RULES_P7, 9000, 400, 51200);
	bool fired;

	(void)state;
	s.free_count = 3;
	s.flags = PCPTUNE_RF_PREV_HIGH_ORDER;
	assert_int_equal(pcptune_rules_free(&s, 1, 8000, 0, &fired), 2016);
	assert_true(fired);
	assert_int_equal(s.high, 9000 - 2016);
	/* need (63 << 3) + 63 = 567 to take the next 504 pages; this free still sees 400 */
	s = of(PCPTUNE_RULES_P7, 400, 400, 51200);
	s.free_count = 3;
	assert_int_equal(pcptune_rules_free(&s, 0, 400, 0, &fired), 337);
	assert_int_equal(s.high, 567);
	/* reclaim: down by 63 << 3, drains at four batches */
	s = of(PCPTUNE_RULES_P7, 5000, 400, 51200);
	s.free_count = 3;
	assert_int_equal(pcptune_rules_free(&s, 0, 252, PCPTUNE_ZS_RECLAIM_ACTIVE, &fired), 189);
	assert_int_equal(s.high, 5000 - 504);
}

/* p10: a batch of pages in a row; g5: batch + high_min / 2. */
static void run_before_free_high(void **state)
{
	static const struct {
		uint32_t rules, run;
	} cases[] = {{PCPTUNE_RULES_P10, 63},
		     {PCPTUNE_RULES_G4, 63},
		     {PCPTUNE_RULES_G5, 63 + 2710},
		     {PCPTUNE_RULES_G6, 63 + 2710}};
	bool fired;

	(void)state;
	for (size_t i = 0; i < N(cases); i++)
		for (uint32_t less = 0; less < 2; less++) {
			struct pcptune_rule_state s = of(cases[i].rules, 9000, 5420, 51200);

			s.scale_max = 6; /* 4032: a run may grow beyond the threshold of g5 */
			s.flags = PCPTUNE_RF_PREV_HIGH_ORDER;
			s.free_count = cases[i].run - less;
			pcptune_rules_free(&s, 1, 8000, 0, &fired);
			assert_int_equal(fired, !less);
		}
}

/* One batch a hold in g6, batch << scale_max in the others. */
static void holds(void **state)
{
	(void)state;
	assert_int_equal(pcptune_rules_hold(PCPTUNE_RULES_G5, 63, 5), 2016);
	assert_int_equal(pcptune_rules_hold(PCPTUNE_RULES_G6, 63, 5), 63);
	assert_int_equal(pcptune_rules_hold(PCPTUNE_RULES_G6, 0, 5), 1);
}

/* v2: a fifth; v3: an eighth; p9: the least count since the last tick, at most. */
static void decay_of_generations(void **state)
{
	static const struct {
		uint32_t rules, high;
	} cases[] = {{PCPTUNE_RULES_P7, 40960},	 {PCPTUNE_RULES_P7V3, 44800},
		     {PCPTUNE_RULES_G4, 44800},	 {PCPTUNE_RULES_G6, 44800},
		     {PCPTUNE_RULES_G3, 51200},	 {PCPTUNE_RULES_P9, 51100},
		     {PCPTUNE_RULES_P10, 51100}, {PCPTUNE_RULES_GX, 51200}};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct pcptune_rule_state s = of(cases[i].rules, 51200, 5420, 51200);

		s.count_min = 3000;
		pcptune_rules_taken(&s, 100);
		pcptune_rules_taken(&s, 4000);
		pcptune_rules_tick(&s, 2000);
		assert_int_equal(s.high, cases[i].high);
	}
}

/* A tick begins to count anew. */
static void least_count_begins_anew(void **state)
{
	struct pcptune_rule_state s = of(PCPTUNE_RULES_P9, 10000, 400, 51200);

	(void)state;
	s.count_min = 0;
	assert_int_equal(pcptune_rules_tick(&s, 9000), 0);
	assert_int_equal(s.high, 10000);
	assert_int_equal(s.count_min, 9000);
	assert_int_equal(pcptune_rules_tick(&s, 9000), 1000); /* a fifth: 8000 */
	assert_int_equal(s.high, 8000);
	assert_int_equal(s.count_min, 8000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bounds_of_generations),
		cmocka_unit_test(refills_before_p5),
		cmocka_unit_test(refills_from_p5),
		cmocka_unit_test(free_high_of_g3),
		cmocka_unit_test(free_high_of_p1_and_p3),
		cmocka_unit_test(factor_is_capped_from_p5),
		cmocka_unit_test(p7_tunes_at_frees),
		cmocka_unit_test(run_before_free_high),
		cmocka_unit_test(holds),
		cmocka_unit_test(decay_of_generations),
		cmocka_unit_test(least_count_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
