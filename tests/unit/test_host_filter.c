/* SPDX-License-Identifier: MIT */
/*
 * The bounds between a proposal and a change: properties over random input, and the corner cases by
 * name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pcptune/rules.h>
#include "policies/host.h"
#include "tests/unit/random.h"

static uint64_t seed = 88172645463325252u;

static uint64_t rnd(void)
{
	return random_next(&seed);
}

/* Any 32-bit value, mostly small ones and edges. */
static uint32_t word(void)
{
	static const uint32_t edge[] = {0,
					1,
					3,
					4,
					5,
					63,
					378,
					1024,
					1025,
					1u << 23,
					(1u << 23) + 1,
					UINT32_MAX - 1,
					PCPTUNE_KEEP};

	switch (rnd() % 4) {
	case 0:
		return edge[rnd() % (sizeof(edge) / sizeof(edge[0]))];
	case 1:
		return (uint32_t)rnd();
	default:
		return (uint32_t)(rnd() % 100000);
	}
}

static struct limits any_limits(void)
{
	return (struct limits){word(), word(), word(), word(), word() % 9, word() % 7};
}

static struct pcptune_shape any_shape(void)
{
	return (struct pcptune_shape){.size = sizeof(struct pcptune_shape),
				      .n_zones = 1,
				      .n_cpus = 8,
				      .host_cpus = 2,
				      .managed_pages = 1u << 20,
				      .budget_pages = rnd() % 3 ? rnd() % 500000 : 0,
				      .high_limit =
					      rnd() % 3 ? (uint32_t)(rnd() % 300000) : word()};
}

static bool equal(const struct limits *a, const struct limits *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static void test_clamp_any_input(void **state)
{
	(void)state;
	for (int n = 0; n < 2000000; n++) {
		struct pcptune_shape shape = any_shape();
		struct limits old = any_limits(), p = any_limits(), c, again;
		uint64_t sum = rnd() % 2 ? rnd() % 1000000 : old.high;
		bool changes = host_clamp(&shape, &old, sum, &p, &c);

		assert_int_equal(changes, !equal(&c, &old));
		/* the same proposal again, once clamped, is the same */
		host_clamp(&shape, &old, sum, &c, &again);
		if (!equal(&c, &again))
			fail_msg("not idempotent: old %u (%u..%u) batch %u, proposed %u (%u..%u): "
				 "%u "
				 "(%u..%u) batch %u, again %u (%u..%u) batch %u",
				 old.high, old.high_min, old.high_max, old.batch, p.high,
				 p.high_min, p.high_max, c.high, c.high_min, c.high_max, c.batch,
				 again.high, again.high_min, again.high_max, again.batch);
		if (c.high > old.high) {
			assert_true(c.high >= 4);
			assert_true(c.high <= (shape.high_limit > 4 ? shape.high_limit : 4));
			if (shape.budget_pages)
				assert_true(sum - old.high + c.high <= shape.budget_pages ||
					    sum < old.high);
		}
		if (c.high != old.high)
			assert_true(c.high_min <= c.high && c.high <= c.high_max);
		if (c.high)
			assert_true(c.batch <= c.high && c.high_min <= c.high);
		assert_true(c.high_min <= c.high_max);
		if (c.batch != old.batch)
			assert_true(c.batch <= PCPTUNE_MAX_BATCH);
		if (c.rules != old.rules)
			assert_true(pcptune_rules_known(c.rules));
		if (c.scale_max != old.scale_max)
			assert_true(c.scale_max <= PCPTUNE_MAX_SCALE);
	}
}

static struct pcptune_shape plain = {.size = sizeof(plain),
				     .n_zones = 1,
				     .n_cpus = 4,
				     .host_cpus = 2,
				     .managed_pages = 1u << 20,
				     .high_limit = 100000};
static const struct limits g0 = {378, 378, 378, 63, 5, 0};

static struct limits clamp(uint64_t budget, const struct limits *old, uint64_t sum, struct limits p)
{
	struct limits c;

	plain.budget_pages = budget;
	host_clamp(&plain, old, sum, &p, &c);
	return c;
}

#define K PCPTUNE_KEEP

static void test_clamp_cases(void **state)
{
	const struct limits unused = {0, 0, 0, 0, 0, 0};
	struct limits c;

	(void)state;
	/* all kept: nothing */
	assert_false(host_clamp(&plain, &g0, 378, &(struct limits){K, K, K, K, K, K}, &c));
	/* high wins over bounds that are left alone */
	c = clamp(0, &g0, 378, (struct limits){1000, K, K, K, K, K});
	assert_true(equal(&c, &(struct limits){1000, 378, 1000, 63, 5, 0}));
	c = clamp(0, &g0, 378, (struct limits){100, K, K, K, K, K});
	assert_true(equal(&c, &(struct limits){100, 100, 378, 63, 5, 0}));
	/* bounds move a high that is left alone */
	c = clamp(0, &g0, 378, (struct limits){K, 500, 900, K, K, K});
	assert_true(equal(&c, &(struct limits){500, 500, 900, 63, 5, 0}));
	c = clamp(0, &g0, 378, (struct limits){K, 900, 500, K, K, K}); /* crossed: the lower wins */
	assert_true(equal(&c, &(struct limits){900, 900, 900, 63, 5, 0}));
	/* the ring bounds high, the budget bounds raises */
	c = clamp(0, &g0, 378, (struct limits){900000, K, K, K, K, K});
	assert_int_equal(c.high, 100000);
	c = clamp(1000, &g0, 378 * 2, (struct limits){5000, 5000, 5000, K, K, K});
	assert_true(equal(&c, &(struct limits){622, 622, 622, 63, 5, 0}));
	c = clamp(100, &g0, 378, (struct limits){5000, 5000, 5000, K, K, K}); /* over it already */
	assert_true(equal(&c, &g0));
	c = clamp(100, &g0, 378, (struct limits){200, K, K, K, K, K}); /* lowering is free */
	assert_int_equal(c.high, 200);
	/* batch never above high, never 0 */
	c = clamp(0, &g0, 378, (struct limits){K, K, K, 1024, K, K});
	assert_int_equal(c.batch, 378);
	c = clamp(0, &g0, 378, (struct limits){30, K, K, K, K, K});
	assert_int_equal(c.batch, 30);
	c = clamp(0, &g0, 378, (struct limits){K, K, K, 0, K, K});
	assert_int_equal(c.batch, 1);
	/* high of 1..3 is 4; unknown rules and scales are left out */
	c = clamp(0, &g0, 378, (struct limits){1, K, K, K, 7, 31});
	assert_true(equal(&c, &(struct limits){4, 4, 378, 4, 5, 0}));
	/* a CPU that was never used: no limits yet, changes are allowed */
	c = clamp(0, &unused, 0, (struct limits){1000, 1000, 1000, K, K, 4});
	assert_true(equal(&c, &(struct limits){1000, 1000, 1000, 0, 0, 4}));
	c = clamp(3, &unused, 0, (struct limits){1000, 1000, 1000, K, K, K});
	assert_int_equal(c.high, 0);
	assert_true(c.high_min <= 3);
	c = clamp(0, &unused, 0, (struct limits){K, 500, 900, 31, K, K});
	assert_true(equal(&c, &(struct limits){0, 500, 900, 31, 0, 0}));
}

/* ---- a whole answer ---- */

#define N 8u

static struct pcptune_cpu cpus[N];
static struct pcptune_change changes[N];
static struct host_change out[N];
static uint32_t pending[N];
static struct pcptune_sample sample = {
	.size = sizeof(sample), .n_cpus = N, .cpu_size = sizeof(cpus[0]), .cpus = cpus};
static struct pcptune_decision decision = {.size = sizeof(decision),
					   .change_size = sizeof(changes[0]),
					   .max_changes = N,
					   .changes = changes};

static void set_cpu(uint32_t i, uint32_t high, uint32_t flags)
{
	cpus[i] = (struct pcptune_cpu){.cpu = i,
				       .high = high,
				       .high_min = high,
				       .high_max = high,
				       .batch = 4,
				       .flags = flags};
}

static void propose(uint32_t i, uint32_t high)
{
	struct pcptune_change *c = pcptune_decision_add(&decision, i, 7);

	assert_non_null(c);
	c->high = c->high_min = c->high_max = high;
	c->arg[2] = i;
}

static uint32_t filter(const struct pcptune_shape *shape, uint32_t *ret_dropped)
{
	uint32_t n;

	host_filter(shape, &sample, &decision, pending, out, &n, ret_dropped);
	decision.n_changes = 0;
	return n;
}

static void test_filter_drops(void **state)
{
	uint32_t dropped;

	(void)state;
	plain.budget_pages = 0;
	memset(pending, 0, sizeof(pending));
	set_cpu(0, 100, PCPTUNE_CPU_SETTLING);
	set_cpu(1, 100, PCPTUNE_CPU_HELD);
	set_cpu(2, 100, 0);
	set_cpu(3, 100, PCPTUNE_CPU_UNKNOWN);
	for (uint32_t i = 0; i < 4; i++)
		propose(i, i == 2 ? 100 : 200);
	assert_int_equal(filter(&plain, &dropped), 1);
	assert_int_equal(dropped, 3);
	assert_int_equal(out[0].index, 3);
	assert_int_equal(out[0].reason, 7);
	assert_int_equal(out[0].arg[2], 3);
	assert_int_equal(out[0].old.high, 100);
	assert_int_equal(out[0].proposed.batch, 4); /* kept: filled in */
	assert_int_equal(out[0].clamped.high, 200);
}

/* A raise that is on its way counts, until the CPU has settled. */
static void test_filter_pending(void **state)
{
	uint32_t dropped;

	(void)state;
	memset(pending, 0, sizeof(pending));
	for (uint32_t i = 0; i < N; i++)
		set_cpu(i, 0, 0);
	set_cpu(0, 100, 0);
	set_cpu(1, 100, 0);
	plain.budget_pages = 1000;
	propose(0, 900);
	assert_int_equal(filter(&plain, &dropped), 1);
	assert_int_equal(out[0].clamped.high, 900);
	cpus[0].flags = PCPTUNE_CPU_SETTLING; /* its gauge still says 100 */
	propose(1, 900);
	assert_int_equal(filter(&plain, &dropped), 0);
	cpus[0].flags = 0; /* it never took it over */
	propose(1, 900);
	assert_int_equal(filter(&plain, &dropped), 1);
	assert_int_equal(out[0].clamped.high, 900);
}

static void test_filter_any_input(void **state)
{
	(void)state;
	memset(pending, 0, sizeof(pending));
	for (int n = 0; n < 100000; n++) {
		struct pcptune_shape shape = any_shape();
		uint64_t before = 0, after = 0;
		uint32_t dropped, high[N], kept, alone_n;
		struct host_change all[N];

		shape.high_limit = 1u << 20;
		for (uint32_t i = 0; i < N; i++) {
			set_cpu(i, (uint32_t)(rnd() % 60000), rnd() % 5 ? 0 : PCPTUNE_CPU_SETTLING);
			cpus[i].count = word(); /* above high, too: nothing may underflow */
			cpus[i].high_min = (uint32_t)(rnd() % 100000);
			pending[i] = 0;
			high[i] = cpus[i].high;
			before += high[i];
			if (rnd() % 2)
				propose(i, 1 + (uint32_t)(rnd() % 200000));
		}
		kept = decision.n_changes;
		struct pcptune_change copy[N];
		memcpy(copy, changes, sizeof(copy));
		alone_n = filter(&shape, &dropped);
		assert_int_equal(alone_n + dropped, kept);
		memcpy(all, out, sizeof(all));
		for (uint32_t i = 0; i < alone_n; i++)
			high[all[i].index] = all[i].clamped.high;
		for (uint32_t i = 0; i < N; i++)
			after += high[i];
		if (shape.budget_pages && after > before)
			assert_true(after <= shape.budget_pages);
		/* without a bound each change is what it would be alone */
		if (shape.budget_pages)
			continue;
		for (uint32_t i = 0; i < alone_n; i++) {
			for (uint32_t k = 0; k < kept; k++)
				if (copy[k].index == all[i].index)
					changes[0] = copy[k];
			decision.n_changes = 1;
			memset(pending, 0, sizeof(pending));
			assert_int_equal(filter(&shape, &dropped), 1);
			assert_memory_equal(&out[0], &all[i], sizeof(out[0]));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clamp_any_input),	 cmocka_unit_test(test_clamp_cases),
		cmocka_unit_test(test_filter_drops),	 cmocka_unit_test(test_filter_pending),
		cmocka_unit_test(test_filter_any_input),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
