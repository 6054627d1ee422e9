/* SPDX-License-Identifier: MIT */
/*
 * The buddy system against a trivial model: a map of used pages. A request must succeed exactly
 * when an aligned run of free pages exists, never overlap what is out, and everything must merge
 * back. Memory is returned at random meanwhile.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocator/zone.h"
#include "tests/unit/random.h"

#define PAGES (8u * PCPA_BLOCK)

static struct pcpa_zone zone;
static struct pcptune_cpu_block of_counters;
#define counters of_counters.zctr
static uint8_t used[PAGES];
static struct {
	uint32_t pfn;
	unsigned order;
} out[PAGES];
static size_t n_out;
static uint64_t seed = 42;

static uint32_t rnd(uint32_t n)
{
	return (uint32_t)(random_next(&seed) % n);
}

static int model_has(unsigned order)
{
	for (uint32_t at = 0; at < PAGES; at += 1u << order)
		if (!memchr(used + at, 1, (size_t)1 << order))
			return 1;
	return 0;
}

static uint32_t take(unsigned order)
{
	uint32_t pfn;

	pcpa_zone_enter(&zone, PCPA_PATH_ALLOC, &counters);
	pfn = pcpa_zone_take(&zone, order, PCPA_IN_USE);
	pcpa_zone_leave(&zone);
	return pfn;
}

static void give(uint32_t pfn, unsigned order)
{
	pcpa_zone_enter(&zone, PCPA_PATH_FREE, &counters);
	pcpa_zone_give(&zone, pfn, order, PCPA_BACKED);
	pcpa_zone_leave(&zone);
}

static void check(void)
{
	uint64_t in_use = 0, listed = 0, expected = 0;
	const char *what = pcpa_zone_check(&zone, &in_use, &listed);

	for (uint32_t i = 0; i < PAGES; i++)
		expected += used[i];
	if (what)
		fail_msg("%s", what);
	assert_int_equal(in_use, expected);
	assert_int_equal(listed, 0);
	assert_int_equal(zone.free_pages + in_use, zone.grown);
}

static void step_take(void)
{
	unsigned order = rnd(3) ? rnd(4) : rnd(PCPA_ORDERS);
	uint32_t pfn = take(order);

	if (pfn == PCPA_NO_PAGE) {
		assert_false(model_has(order));
		return;
	}
	assert_int_equal(pfn & ((1u << order) - 1), 0);
	assert_null(memchr(used + pfn, 1, (size_t)1 << order));
	assert_int_equal(pcpa_tag_get(&zone, pfn), pcpa_tag(PCPA_IN_USE, order));
	memset(used + pfn, 1, (size_t)1 << order);
	out[n_out].pfn = pfn;
	out[n_out++].order = order;
}

static void step_give(void)
{
	size_t i;

	if (!n_out)
		return;
	i = rnd((uint32_t)n_out);
	give(out[i].pfn, out[i].order);
	memset(used + out[i].pfn, 0, (size_t)1 << out[i].order);
	out[i] = out[--n_out];
}

/* Takes a cold block out, lets a few operations pass, and puts it back. */
static void step_return(void)
{
	unsigned order = 0;
	uint32_t pfn;

	pcpa_zone_enter(&zone, PCPA_PATH_AGENT, &counters);
	pfn = pcpa_zone_take_cold(&zone, zone.tick, &order);
	pcpa_zone_leave(&zone);
	if (pfn == PCPA_NO_PAGE)
		return;
	for (int i = 0; i < 5; i++)
		step_give();
	check();
	pcpa_zone_enter(&zone, PCPA_PATH_AGENT, &counters);
	pcpa_zone_put_returned(&zone, pfn, order, rnd(8) ? PCPA_BARE : PCPA_BACKED);
	pcpa_zone_leave(&zone);
}

static int set_up(void **state)
{
	(void)state;
	memset(&zone, 0, sizeof(zone));
	memset(used, 0, sizeof(used));
	n_out = 0;
	return pcpa_zone_reserve(&zone, 0, PAGES, -1);
}

static void random_operations(void **state)
{
	(void)state;
	for (int i = 0; i < 60000; i++) {
		/* the mean fill wanders, so that both ends are reached */
		uint32_t bias = i / 6000 % 2 ? 40 : 60;

		if (rnd(100) < bias)
			step_take();
		else
			step_give();
		if (!rnd(200))
			step_return();
		if (!rnd(500))
			check();
	}
	while (n_out)
		step_give();
	check();
	/* all merged: nothing but blocks of the largest order */
	assert_int_equal((zone.mask[0] | zone.mask[1]) & ~(1u << PCPTUNE_MAX_ORDER), 0);
	assert_int_equal(zone.free_pages, zone.grown);
}

static void grows_only_when_needed(void **state)
{
	uint32_t first;

	(void)state;
	assert_int_equal(zone.grown, 0);
	first = take(0);
	assert_int_equal(zone.grown, PCPA_BLOCK);
	assert_int_equal(zone.bare_pages, PCPA_BLOCK - 1);
	/* what was used is preferred to what was not */
	give(first, 0);
	assert_int_equal(take(3), 0);
	assert_int_equal(zone.grown, PCPA_BLOCK);
}

static void ascending(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < PCPA_BLOCK; i++)
		assert_int_equal(take(0), i);
}

static void prefers_blocks_with_memory(void **state)
{
	uint32_t a = take(PCPTUNE_MAX_ORDER), b = take(PCPTUNE_MAX_ORDER), cold;
	unsigned order = 0;

	(void)state;
	give(a, PCPTUNE_MAX_ORDER);
	cold = pcpa_zone_take_cold(&zone, zone.tick, &order);
	assert_int_equal(cold, a);
	assert_int_equal(order, PCPTUNE_MAX_ORDER);
	pcpa_zone_put_returned(&zone, cold, order, PCPA_BARE);
	assert_int_equal(zone.bare_pages, PCPA_BLOCK);
	give(b, PCPTUNE_MAX_ORDER);
	assert_int_equal(take(0), b);
	assert_int_equal(zone.bare_pages, PCPA_BLOCK);
}

static void young_blocks_stay(void **state)
{
	unsigned order = 0;
	uint32_t a = take(0);

	(void)state;
	zone.tick = 10;
	give(a, 0);
	assert_int_equal(pcpa_zone_take_cold(&zone, 8, &order), PCPA_NO_PAGE);
	zone.tick = 12;
	assert_int_not_equal(pcpa_zone_take_cold(&zone, 10, &order), PCPA_NO_PAGE);
}

static void watermarks(void **state)
{
	uint32_t a[8];

	(void)state;
	zone.wmark_low = 2 * PCPA_BLOCK;
	zone.wmark_high = 4 * PCPA_BLOCK;
	for (int i = 0; i < 8; i++) {
		a[i] = take(PCPTUNE_MAX_ORDER);
		assert_int_equal(zone.state, i < 4 ? 0 : i < 6 ? 1 : 3);
	}
	/* reclaim goes on until the high mark */
	for (int i = 0; i < 8; i++) {
		give(a[i], PCPTUNE_MAX_ORDER);
		assert_int_equal(zone.state, i < 3 ? 3 : 0);
	}
}

static void lock_is_counted(void **state)
{
	struct pcptune_cpu_block cpu = {0};

	(void)state;
	for (int i = 0; i < 128; i++) {
		pcpa_zone_enter(&zone, PCPA_PATH_FREE, &cpu.zctr);
		pcpa_zone_leave(&zone);
	}
	assert_int_equal(cpu.zctr.lock_free_taken, 128);
	assert_int_equal(cpu.zctr.lock_free_contended, 0);
	assert_int_equal(cpu.zctr.lock_alloc_taken, 0);
	assert_true(cpu.zctr.lock_free_hold_ns > 0);
	assert_int_equal(pcpa_in_zone, 0);
}

/* The names of the rows say their bounds, in order, and each bound is in its own row. */
static void rows_of_holds(void **state)
{
	static const char *const names[] = {
#define PCPTUNE_HOLD(field, unit, line, para) #field,
#include <pcptune/counters.def>
	};
	const size_t n = sizeof(names) / sizeof(names[0]);

	(void)state;
	for (size_t i = 0; i < n; i++) {
		uint64_t from = i ? UINT64_C(32) << i : 0;
		char name[40];

		snprintf(name, sizeof(name), "hold_from_%llins", (long long)from);
		assert_string_equal(names[i], name);
		assert_int_equal(pcpa_hold_row(from), i);
		if (i)
			assert_int_equal(pcpa_hold_row(from - 1), i - 1);
	}
	assert_int_equal(pcpa_hold_row(UINT64_MAX), n - 1);
}

static uint64_t holds_in(const struct pcptune_zone_block *g, unsigned from)
{
	const uint64_t *row = &g->hold_from_0ns;
	uint64_t sum = 0;

	for (const uint64_t *end = (const uint64_t *)(const void *)(g + 1); row + from < end; row++)
		sum += row[from];
	return sum;
}

/* Every hold is in the histogram once, a long one where it belongs; by the clock and by cycles. */
static void every_hold_is_in_a_row(void **state)
{
	struct pcptune_zone_block g = {0};
	struct pcptune_cpu_block cpu = {0};

	(void)state;
	zone.gauges = &g;
	for (int by_cycles = 0; by_cycles < 2; by_cycles++) {
		uint64_t before = holds_in(&g, 0), long_ones = holds_in(&g, pcpa_hold_row(4194304));
		uint64_t start, most;

		for (int i = 0; i < 1000; i++) {
			pcpa_zone_enter(&zone, PCPA_PATH_FREE, &cpu.zctr);
			pcpa_zone_leave(&zone);
		}
		assert_int_equal(holds_in(&g, 0) - before, 1000);
		g.hold_max_ns = 0;
		start = pcpa_now_ns();
		pcpa_zone_enter(&zone, PCPA_PATH_AGENT, &cpu.zctr);
		usleep(5000);
		pcpa_zone_leave(&zone);
		most = pcpa_now_ns() - start;
		assert_true(holds_in(&g, pcpa_hold_row(4194304)) > long_ones);
		/* a cycle is known to a thousandth */
		assert_in_range(g.hold_max_ns, 4990000, most + most / 1000);
		for (int i = 0; i < 3 && !by_cycles; i++) {
			pcpa_hold_tune();
			usleep(150000);
		}
	}
	zone.gauges = NULL;
}

/* A brief hold is timed once in PCPA_TIMED times, and counts as many. */
static void brief_holds_are_sampled(void **state)
{
	struct pcptune_zone_block g = {0};
	struct pcptune_cpu_block cpu = {0};

	(void)state;
	zone.gauges = &g;
	for (unsigned i = 0; i < 10 * PCPA_TIMED + 5; i++) {
		pcpa_zone_enter_brief(&zone, PCPA_PATH_FREE, &cpu.zctr);
		pcpa_zone_leave(&zone);
	}
	assert_int_equal(zone.brief, 5);
	assert_int_equal(pcpa_hold_total(&g), 10 * PCPA_TIMED);
	assert_int_equal(cpu.zctr.lock_free_taken, 10 * PCPA_TIMED + 5);
	assert_true(cpu.zctr.lock_free_hold_ns > 0 && cpu.zctr.lock_free_hold_ns % PCPA_TIMED == 0);
	pcpa_zone_enter(&zone, PCPA_PATH_FREE, &cpu.zctr);
	pcpa_zone_leave(&zone);
	assert_int_equal(zone.brief, 5);
	assert_int_equal(pcpa_hold_total(&g), 10 * PCPA_TIMED + 1);
	/* one that has to ask the system for memory is timed after all */
	pcpa_zone_enter_brief(&zone, PCPA_PATH_ALLOC, &cpu.zctr);
	assert_int_not_equal(pcpa_zone_take(&zone, 0, PCPA_IN_USE), PCPA_NO_PAGE);
	pcpa_zone_leave(&zone);
	assert_int_equal(zone.brief, 5);
	assert_int_equal(pcpa_hold_total(&g), 10 * PCPA_TIMED + 2);
	zone.gauges = NULL;
}

static void *hold_long(void *held)
{
	struct pcptune_cpu_block cpu = {0};

	pcpa_zone_enter(&zone, PCPA_PATH_AGENT, &cpu.zctr);
	__atomic_store_n((int *)held, 1, __ATOMIC_RELEASE);
	usleep(20000);
	pcpa_zone_leave(&zone);
	return NULL;
}

/* Who has to wait is told for how long. */
static void waiting_is_timed(void **state)
{
	struct pcptune_cpu_block cpu = {0};
	pthread_t thread;
	int held = 0;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, hold_long, &held), 0);
	while (!__atomic_load_n(&held, __ATOMIC_ACQUIRE))
		usleep(10);
	pcpa_zone_enter(&zone, PCPA_PATH_ALLOC, &cpu.zctr);
	pcpa_zone_leave(&zone);
	pthread_join(thread, NULL);
	/* unless this thread was kept from running for all the 20 ms */
	if (cpu.zctr.lock_alloc_contended)
		assert_in_range(cpu.zctr.lock_alloc_wait_ns, 1, UINT64_C(60000000000));
	assert_int_equal(cpu.zctr.lock_alloc_taken, 1);
	assert_int_equal(cpu.zctr.lock_free_wait_ns + cpu.zctr.lock_agent_wait_ns, 0);
}

static void *count_up(void *number)
{
	struct pcptune_cpu_block cpu = {0};

	for (int i = 0; i < 50000; i++) {
		pcpa_zone_enter(&zone, PCPA_PATH_FREE, &cpu.zctr);
		++*(unsigned long *)number;
		pcpa_zone_leave(&zone);
	}
	return NULL;
}

static void lock_excludes(void **state)
{
	unsigned long number = 0;
	pthread_t threads[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, &number), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(number, 200000);
}

/* The check itself must be able to fail. */
static void check_finds_damage(void **state)
{
	uint64_t in_use, listed;
	uint32_t a = take(2);

	(void)state;
	assert_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, a, PCPA_IN_USE, 3);
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, a, PCPA_NOWHERE, 0);
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, a, PCPA_IN_USE, 2);
	zone.free_pages++;
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
	zone.free_pages--;
	zone.mask[PCPA_BARE] ^= 1u << 2;
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(random_operations, set_up),
		cmocka_unit_test_setup(grows_only_when_needed, set_up),
		cmocka_unit_test_setup(ascending, set_up),
		cmocka_unit_test_setup(prefers_blocks_with_memory, set_up),
		cmocka_unit_test_setup(young_blocks_stay, set_up),
		cmocka_unit_test_setup(watermarks, set_up),
		cmocka_unit_test_setup(lock_is_counted, set_up),
		cmocka_unit_test_setup(rows_of_holds, set_up),
		cmocka_unit_test_setup(every_hold_is_in_a_row, set_up),
		cmocka_unit_test_setup(brief_holds_are_sampled, set_up),
		cmocka_unit_test_setup(waiting_is_timed, set_up),
		cmocka_unit_test_setup(lock_excludes, set_up),
		cmocka_unit_test_setup(check_finds_damage, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
