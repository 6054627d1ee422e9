/* SPDX-License-Identifier: MIT */
/*
 * What the comparison of bench/peers stands on: bare stacks that hand out each block once, and
 * a histogram whose quantiles are right within its bucket width.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "bench/peers_stacks.h"
#include "bench/peers_clock.h"

#define THREADS 8u
#define BURST	700u /* more than a batch of the pool */
#define ROUNDS	60u

#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#else
#define TSAN 0
#endif

typedef void *(*take_fn)(unsigned order);
typedef void (*give_fn)(void *p, unsigned order);

static void *take_tls(unsigned order)
{
	return tls_take(order);
}
static void give_tls(void *p, unsigned order)
{
	tls_give(p, order);
}
static void *take_trylock(unsigned order)
{
	return trylock_take(order);
}
static void give_trylock(void *p, unsigned order)
{
	trylock_give(p, order);
}
static void *take_rseq(unsigned order)
{
	return rseq_take(order);
}
static void give_rseq(void *p, unsigned order)
{
	rseq_give(p, order);
}

static struct {
	take_fn take;
	give_fn give;
	uint64_t doubled;
} storm;

/* A block's first word names its owner: 0 when nobody has it. */
static void *storm_main(void *arg)
{
	uint64_t me = (uintptr_t)arg, seen;
	static __thread void *block[BURST];

	for (unsigned r = 0; r < ROUNDS; r++) {
		unsigned order = r % STACK_ORDERS;

		for (unsigned i = 0; i < BURST; i++) {
			block[i] = storm.take(order);
			seen = __atomic_exchange_n((uint64_t *)block[i], me, __ATOMIC_RELAXED);
			if (seen)
				__atomic_fetch_add(&storm.doubled, 1, __ATOMIC_RELAXED);
		}
		for (unsigned i = 0; i < BURST; i++) {
			seen = __atomic_exchange_n((uint64_t *)block[i], 0, __ATOMIC_RELAXED);
			if (seen != me)
				__atomic_fetch_add(&storm.doubled, 1, __ATOMIC_RELAXED);
			storm.give(block[i], order);
		}
	}
	return NULL;
}

static void storm_of(take_fn take, give_fn give)
{
	pthread_t thread[THREADS];

	storm.take = take;
	storm.give = give;
	storm.doubled = 0;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, storm_main, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(storm.doubled, 0);
}

static void test_tls_storm(void **state)
{
	(void)state;
	storm_of(take_tls, give_tls);
}

static void test_trylock_storm(void **state)
{
	(void)state;
	storm_of(take_trylock, give_trylock);
}

static void test_rseq_storm(void **state)
{
	(void)state;
	if (TSAN || rseq_missing())
		skip(); /* TSan does not see what the sections order */
	storm_of(take_rseq, give_rseq);
}

/* More than a stack holds: the rest goes to the pool, and comes back from there. */
static void overflow(take_fn take, give_fn give)
{
	size_t n = STACK_CAP + 2 * POOL_BATCH;
	void **block = calloc(n, sizeof(*block));
	size_t before, i;

	assert_non_null(block);
	for (i = 0; i < n; i++)
		assert_non_null(block[i] = take(0));
	before = pool.n[0];
	for (i = 0; i < n; i++)
		give(block[i], 0);
	assert_true(pool.n[0] > before);
	for (i = 0; i < n; i++)
		assert_non_null(block[i] = take(0));
	for (i = 0; i < n; i++)
		give(block[i], 0);
	free(block);
}

static void test_overflow(void **state)
{
	(void)state;
	overflow(take_tls, give_tls);
	overflow(take_trylock, give_trylock);
	if (!rseq_missing())
		overflow(take_rseq, give_rseq);
}

static void test_pool_end(void **state)
{
	void *p[2];
	char *end = pool.end;

	(void)state;
	pool.end = pool.fresh + ((size_t)4096 << 3);
	pool.n[3] = 0;
	assert_int_equal(pool_take(3, p, 2), 1);
	assert_int_equal(pool_take(3, p, 2), 0);
	pool.end = end;
}

static void test_histogram_buckets(void **state)
{
	unsigned last = 0;

	(void)state;
	for (uint64_t v = 0; v < UINT64_MAX / 9 * 8; v += v / 50 + 1) {
		unsigned i = histogram_index(v);
		double d = histogram_value(i) - (double)v;

		assert_true(i < HIST_BUCKETS && i >= last);
		assert_true(d <= (double)v / HIST_SUB && -d <= (double)v / HIST_SUB);
		last = i;
	}
	assert_int_equal(histogram_index(UINT64_MAX), HIST_BUCKETS - 1);
}

static void test_histogram_quantiles(void **state)
{
	struct histogram *h = calloc(2, sizeof(*h));

	(void)state;
	assert_non_null(h);
	assert_true(histogram_quantile(h, 0.5) == 0);
	for (uint64_t v = 1; v <= 10000; v++)
		histogram_add(&h[v % 2], v);
	histogram_merge(&h[0], &h[1]);
	assert_int_equal(h[0].total, 10000);
	assert_int_equal(h[0].max, 10000);
	assert_in_range((uint64_t)histogram_quantile(&h[0], 0.5), 4900, 5100);
	assert_in_range((uint64_t)histogram_quantile(&h[0], 0.99), 9700, 10000);
	assert_in_range((uint64_t)histogram_quantile(&h[0], 0.001), 10, 12);
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tls_storm),
		cmocka_unit_test(test_trylock_storm),
		cmocka_unit_test(test_rseq_storm),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_pool_end),
		cmocka_unit_test(test_histogram_buckets),
		cmocka_unit_test(test_histogram_quantiles),
	};

	if (!stacks_init())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
