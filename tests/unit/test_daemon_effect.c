/* SPDX-License-Identifier: MIT */
/*
 * The effect of a decision: sums before and after, over the same number of samples.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/effect.c"

#define N 3u

/* One sample in which the first n CPUs moved by what. */
static void sample(struct effects *e, struct pcptune_cpu *cpus, uint32_t n, uint64_t what)
{
	static const uint32_t all[N] = {0, 1, 2};

	for (uint32_t i = 0; i < N; i++) {
		memset(&cpus[i], 0, sizeof(cpus[i]));
		cpus[i].count = 10 * (i + 1);
		if (i >= n)
			continue;
		cpus[i].flags = PCPTUNE_CPU_ACTIVE;
		cpus[i].alloc_pages = what;
		cpus[i].alloc_zone = what / 2;
		cpus[i].lock_alloc_wait_ns = 3;
		cpus[i].lock_free_wait_ns = 4;
	}
	effects_sample(e, cpus, all, n);
}

static struct effects *fresh(uint32_t samples)
{
	struct effects *e = NULL;

	assert_int_equal(effects_new(N, samples, &e), 0);
	return e;
}

static void test_before_and_after(void **state)
{
	struct effects *e = fresh(4);
	struct pcptune_cpu cpus[N];
	struct log_decision d;

	(void)state;
	for (int i = 1; i <= 6; i++) /* the first two fall out of the window */
		sample(e, cpus, 2, (uint64_t)i * 100);
	effects_begin(e, 77, 1, cpus[1].count);
	for (int i = 0; i < 3; i++) {
		sample(e, cpus, 2, 10);
		assert_false(effects_take(e, &d));
	}
	sample(e, cpus, 2, 10);
	sample(e, cpus, 2, 1000); /* comes too late to count */
	assert_true(effects_take(e, &d));
	assert_int_equal(d.id, 77);
	assert_int_equal(d.effect_n, 4);
	assert_int_equal(d.before_alloc_pages, 300 + 400 + 500 + 600);
	assert_int_equal(d.before_alloc_zone, 900);
	assert_int_equal(d.before_wait_ns, 4 * 7);
	assert_int_equal(d.before_held, 4 * 20);
	assert_int_equal(d.after_alloc_pages, 40);
	assert_int_equal(d.after_wait_ns, 4 * 7);
	assert_int_equal(d.after_held, 4 * 20);
	assert_false(effects_take(e, &d));
	effects_free(e);
}

static void test_idle_cpu(void **state)
{
	struct effects *e = fresh(2);
	struct pcptune_cpu cpus[N];
	struct log_decision d;

	(void)state;
	sample(e, cpus, 1, 5);
	sample(e, cpus, 1, 5);
	effects_begin(e, 1, 2, cpus[2].count); /* CPU 2 was idle */
	sample(e, cpus, 1, 5);
	sample(e, cpus, 3, 5);
	assert_true(effects_take(e, &d));
	assert_int_equal(d.before_alloc_pages, 0);
	assert_int_equal(d.before_held, 2 * 30);
	assert_int_equal(d.after_alloc_pages, 5);
	assert_int_equal(d.after_held, 2 * 30);
	effects_free(e);
}

static void test_early_decision(void **state)
{
	struct effects *e = fresh(10);
	struct pcptune_cpu cpus[N];
	struct log_decision d;

	(void)state;
	effects_begin(e, 1, 0, 0); /* no sample yet: nothing to compare with */
	sample(e, cpus, 1, 5);
	assert_false(effects_take(e, &d));
	effects_begin(e, 2, 0, 0); /* one sample before: one after */
	sample(e, cpus, 1, 7);
	assert_true(effects_take(e, &d));
	assert_int_equal(d.id, 2);
	assert_int_equal(d.effect_n, 1);
	assert_int_equal(d.before_alloc_pages, 5);
	assert_int_equal(d.after_alloc_pages, 7);
	effects_free(e);
}

static void test_many_samples(void **state)
{
	struct effects *e = fresh(1000);
	struct pcptune_cpu cpus[N];
	struct log_decision d;
	uint32_t n = 0;

	(void)state;
	for (int i = 0; i < 5000; i++)
		sample(e, cpus, 1, 1);
	effects_begin(e, 1, 0, 10);
	while (!effects_take(e, &d)) {
		sample(e, cpus, 1, 2);
		assert_true(n++ < 1100);
	}
	assert_int_equal(d.effect_n, n);
	assert_true(n > 900 && n <= 1008);
	assert_int_equal(d.before_alloc_pages, n);
	assert_int_equal(d.after_alloc_pages, 2 * n);
	effects_free(e);
}

static void test_bounded(void **state)
{
	struct effects *e = fresh(1);
	struct pcptune_cpu cpus[N];
	struct log_decision d;
	unsigned n = 0;

	(void)state;
	sample(e, cpus, 3, 1);
	for (int i = 1; i <= 1000; i++)
		effects_begin(e, i, (uint32_t)i % N, 0);
	sample(e, cpus, 3, 1);
	while (effects_take(e, &d))
		n++;
	assert_true(n > 0 && n < 1000); /* those beyond the bound stay unknown */
	effects_begin(e, 2000, 0, 0);	/* and there is room again */
	sample(e, cpus, 3, 1);
	assert_true(effects_take(e, &d));
	assert_int_equal(d.id, 2000);
	effects_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before_and_after), cmocka_unit_test(test_idle_cpu),
		cmocka_unit_test(test_early_decision),	 cmocka_unit_test(test_many_samples),
		cmocka_unit_test(test_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
