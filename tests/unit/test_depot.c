/* SPDX-License-Identifier: MIT */
/*
 * The depot in front of the buddy system, against a map of used pages: many blocks at once in and
 * out for several CPUs, all orders, with and without a depot. No page may be out twice or be lost,
 * wrong blocks stay outside, bounds hold, what is not used leaves, and what left has merged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/depot.h"
#include "tests/unit/random.h"

#define PAGES (64u * PCPA_BLOCK)
#define SLOTS 3u
#define RING  4096u
#define MOVE  1000u
#define CPUS  2u
#define FRONT (PAGES / 64 / CPUS) /* pages of a front here: less than PCPA_FRONT_PAGES */
_Static_assert(FRONT < PCPA_FRONT_PAGES && FRONT < MOVE, "bounded by the zone");

static struct pcpa_zone zone;
static struct pcptune_cpu_block of_counters;
#define counters of_counters.zctr
static uint8_t used[PAGES];
static uint64_t ring[RING];
static uint64_t seed;
/* what is out, by order */
static uint32_t out[PCPA_ORDERS][PAGES];
static uint32_t n_out[PCPA_ORDERS];

static uint32_t rnd(uint32_t n)
{
	return (uint32_t)(random_next(&seed) % n);
}

static int set_up_bare(void **state)
{
	(void)state;
	memset(&zone, 0, sizeof(zone));
	memset(&counters, 0, sizeof(counters));
	memset(used, 0, sizeof(used));
	memset(n_out, 0, sizeof(n_out));
	seed = 4711;
	return pcpa_zone_reserve(&zone, 0, PAGES, -1);
}

static int set_up(void **state)
{
	int error = set_up_bare(state);

	pcpa_depot_make(&zone, SLOTS, CPUS);
	return error || !zone.depot;
}

static int set_up_small(void **state)
{
	int error = set_up_bare(state);

	if (error)
		return error;
	munmap((void *)zone.base, (size_t)zone.n_pages << PCPTUNE_PAGE_SHIFT);
	munmap(zone.pages, zone.n_pages * sizeof(*zone.pages));
	memset(&zone, 0, sizeof(zone));
	error = pcpa_zone_reserve(&zone, 0, PCPA_BLOCK, -1);
	pcpa_depot_make(&zone, SLOTS, CPUS);
	return error;
}

/* The map of the address space is what a test leaves behind. */
static int tear_down(void **state)
{
	(void)state;
	munmap((void *)zone.base, (size_t)zone.n_pages << PCPTUNE_PAGE_SHIFT);
	munmap(zone.pages, zone.n_pages * sizeof(*zone.pages));
	return 0;
}

static struct pcpa_places places(uint32_t at)
{
	return (struct pcpa_places){.ring = ring, .mask = RING - 1, .at = at};
}

static uint32_t take(uint32_t slot, unsigned order, uint32_t n)
{
	struct pcpa_places to = places(rnd(RING));
	struct pcpa_claim claim;
	uint64_t top = 0;
	uint32_t got;

	to.top = rnd(2) ? &top : NULL;
	*pcpa_place(&to, n - 1) = 1;
	pcpa_zone_enter(&zone, PCPA_PATH_ALLOC, &counters);
	got = pcpa_depot_take(&zone, slot, order, n, &to, &claim);
	pcpa_zone_leave(&zone);
	pcpa_depot_fetch(&zone, order, n, got, &to, &claim, PCPA_IN_USE);
	if (to.top && got) {
		/* and nothing in the ring */
		assert_int_equal(*pcpa_place(&to, n - 1), 1);
		*pcpa_place(&to, n - 1) = top;
	}
	for (uint32_t i = n - got; i < n; i++) {
		const void *block = (const void *)(uintptr_t)*pcpa_place(&to, i);
		uint32_t pfn = pcpa_page_number(&zone, block);

		assert_true(pcpa_zone_has(&zone, block) && pfn < zone.grown);
		assert_int_equal(pfn & ((1u << order) - 1), 0);
		assert_int_equal(pcpa_tag_get(&zone, pfn), pcpa_tag(PCPA_IN_USE, order));
		assert_null(memchr(used + pfn, 1, (size_t)1 << order));
		memset(used + pfn, 1, (size_t)1 << order);
		out[order][n_out[order]++] = pfn;
	}
	return got;
}

/* Random ones, or the last ones; some of them looked up before. */
static void give(uint32_t slot, unsigned order, uint32_t n, bool in_order)
{
	struct pcpa_places from = places(rnd(RING));
	uint32_t picked[MOVE];
	uint64_t pages;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = in_order ? n_out[order] - 1 : rnd(n_out[order]);
		uint32_t pfn = out[order][k];

		out[order][k] = out[order][--n_out[order]];
		memset(used + pfn, 0, (size_t)1 << order);
		*pcpa_place(&from, i) = (uintptr_t)pcpa_page_address(&zone, pfn);
		picked[i] = pfn;
	}
	from.picked = picked;
	from.n_picked = rnd(3) ? 0 : rnd(n + 1);
	pcpa_zone_enter(&zone, PCPA_PATH_FREE, &counters);
	pages = pcpa_depot_give(&zone, slot, order, n, &from, PCPA_IN_USE);
	pcpa_zone_leave(&zone);
	assert_int_equal(pages, (uint64_t)n << order);
	assert_int_equal(zone.n_bad, 0);
}

static void check(void)
{
	uint64_t in_use = 0, listed = 0, expected = 0;
	const char *what = pcpa_zone_check(&zone, &in_use, &listed);

	if (what)
		fail_msg("%s", what);
	for (uint32_t i = 0; i < PAGES; i++)
		expected += used[i];
	assert_int_equal(in_use, expected);
	assert_int_equal(zone.free_pages + in_use, zone.grown);
}

static uint64_t stored(void)
{
	uint64_t pages = 0;

	assert_null(pcpa_depot_check(&zone, &pages));
	return pages;
}

/* Nothing but blocks of the largest order. */
static void all_merged(void)
{
	check();
	assert_int_equal(stored(), 0);
	assert_int_equal((zone.mask[0] | zone.mask[1]) & ~(1u << PCPTUNE_MAX_ORDER), 0);
	assert_int_equal(zone.free_pages, zone.grown);
}

static unsigned some_order(void)
{
	static const uint8_t orders[] = {0, 0, 0, 0, 1, 1, 2, 3, 9, 5};

	return orders[rnd(sizeof(orders))];
}

static void step(uint32_t bias)
{
	unsigned order = some_order();
	uint32_t slot = rnd(8) ? rnd(SLOTS) : PCPA_NO_FRONT, n = 1 + rnd(rnd(9) ? 64 : MOVE);

	if (order == 9)
		n = 1 + n % 3;
	if (rnd(100) < bias)
		take(slot, order, n);
	else if (n_out[order])
		give(slot, order, n < n_out[order] ? n : n_out[order], rnd(2));
	if (!rnd(50)) {
		pcpa_depot_age_front(&zone, rnd(SLOTS), &counters);
		pcpa_depot_age_shared(&zone, &counters);
	}
	if (!rnd(400))
		pcpa_depot_empty(&zone, PCPA_PATH_FREE, &counters);
}

static void random_operations(void **state)
{
	(void)state;
	for (int i = 0; i < 20000; i++) {
		step(i / 2000 % 2 ? 40 : 60);
		if (!rnd(500))
			check();
	}
	for (unsigned order = 0; order < PCPA_ORDERS; order++)
		while (n_out[order])
			give(rnd(SLOTS), order, n_out[order] < MOVE ? n_out[order] : MOVE, rnd(2));
	check();
	pcpa_depot_empty(&zone, PCPA_PATH_FREE, &counters);
	all_merged();
}

static void take_to(uint32_t slot, uint32_t at, uint32_t n)
{
	struct pcpa_places to = places(at);
	struct pcpa_claim claim;

	pcpa_zone_enter(&zone, PCPA_PATH_ALLOC, &counters);
	assert_int_equal(pcpa_depot_take(&zone, slot, 0, n, &to, &claim), n);
	pcpa_zone_leave(&zone);
	pcpa_depot_fetch(&zone, 0, n, n, &to, &claim, PCPA_IN_USE);
}

/* The last that went in comes out first, on the same CPU before others. */
static void newest_first(void **state)
{
	struct pcpa_places from = places(0);

	(void)state;
	take_to(0, 0, 60);
	for (uint32_t i = 0; i < 60; i++)
		assert_int_equal(pcpa_page_number(&zone, (void *)(uintptr_t)ring[59 - i]), i);
	for (uint32_t slot = 0; slot < 2; slot++) {
		from.at = slot * 30;
		pcpa_zone_enter(&zone, PCPA_PATH_FREE, &counters);
		assert_int_equal(pcpa_depot_give(&zone, slot, 0, 30, &from, PCPA_IN_USE), 30);
		pcpa_zone_leave(&zone);
	}
	take_to(1, 100, 30);
	for (uint32_t i = 0; i < 30; i++)
		assert_true(ring[100 + i] == ring[30 + i]);
}

/* What one CPU gives away in large moves, another one gets unmerged. */
static void blocks_change_sides(void **state)
{
	(void)state;
	take(0, 0, MOVE);
	give(0, 0, MOVE, true);
	assert_int_equal(stored(), MOVE);
	assert_int_equal(take(1, 0, MOVE - FRONT), MOVE - FRONT);
	assert_int_equal(stored(), FRONT);
	assert_int_equal(zone.mask[PCPA_BACKED], 0);
}

/*
 * The pages of two CPUs whose bursts go beyond their lists stay apart: descriptors of neighbours
 * share a line, and would go from one cache to the other and back.
 */
static void bursts_do_not_mix(void **state)
{
	const uint32_t batch = 60, burst = FRONT / batch * batch;
	uint8_t owner[PAGES] = {0};

	(void)state;
	for (unsigned round = 0; round < 50; round++) {
		for (uint32_t slot = 0; slot < CPUS; slot++) {
			while (n_out[0] < burst)
				take(slot, 0, batch);
			for (uint32_t i = 0; i < burst; i++)
				owner[out[0][i]] |= (uint8_t)(1u << slot);
			while (n_out[0])
				give(slot, 0, batch, true);
		}
	}
	for (uint32_t pfn = 0; pfn < PAGES; pfn++)
		assert_int_not_equal(owner[pfn], 3);
	check();
}

static void bounded(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++)
		take(0, 0, MOVE);
	for (int i = 0; i < 30; i++)
		give(0, 0, MOVE, true);
	assert_true(stored() <= FRONT + zone.n_pages / 64);
	assert_true(stored() >= FRONT);
	check();
}

static void nothing_enters_below_the_watermarks(void **state)
{
	(void)state;
	take(0, 0, MOVE);
	give(0, 0, 100, true);
	assert_int_equal(stored(), 100);
	zone.wmark_low = zone.wmark_high = 2 * PAGES;
	take(0, 1, 1);
	give(0, 1, 1, true);
	assert_int_equal(zone.state, 3);
	give(0, 0, 100, true);
	assert_int_equal(stored(), 100);
	/* and comes out all the same */
	take(0, 0, 40);
	assert_int_equal(stored(), 60);
}

/* What was not asked for between two looks leaves, and no more. */
static void the_unused_leaves(void **state)
{
	(void)state;
	take(0, 0, 300);
	give(0, 0, 100, true);
	pcpa_depot_age_front(&zone, 0, &counters);
	assert_int_equal(stored(), 100);
	take(0, 0, 30);
	give(0, 0, 30, true);
	pcpa_depot_age_front(&zone, 0, &counters);
	assert_int_equal(stored(), 30);
	assert_true(pcpa_depot_has_front(&zone, 0));
	assert_false(pcpa_depot_has_front(&zone, 1));
	pcpa_depot_age_front(&zone, 1, &counters);
	assert_int_equal(stored(), 30);
	pcpa_depot_age_front(&zone, 0, &counters);
	assert_false(pcpa_depot_has_front(&zone, 0));
	assert_int_equal(stored(), 0);
	/* more than one hold of a shared stack */
	for (int i = 0; i < 3; i++)
		take(0, 0, MOVE);
	for (int i = 0; i < 3; i++)
		give(0, 0, MOVE, true);
	assert_true(pcpa_depot_has_shared(&zone));
	pcpa_depot_age_shared(&zone, &counters);
	pcpa_depot_age_shared(&zone, &counters);
	assert_false(pcpa_depot_has_shared(&zone));
	check();
}

/* Each kind of wrong block stays where it is, is remembered, and undone in the counters. */
static void wrong_blocks_stay_outside(void **state)
{
	struct pcpa_places from = places(RING - 2);
	uint32_t a, b;

	take(0, 0, 3);
	take(0, 1, 2);
	a = out[0][0];
	b = out[1][0];
	*pcpa_place(&from, 0) = (uintptr_t)pcpa_page_address(&zone, a);
	*pcpa_place(&from, 1) = (uintptr_t)pcpa_page_address(&zone, b);	    /* another order */
	*pcpa_place(&from, 2) = (uintptr_t)pcpa_page_address(&zone, b + 1); /* its middle */
	*pcpa_place(&from, 3) = (uintptr_t)pcpa_page_address(&zone, a);	    /* twice */
	*pcpa_place(&from, 4) = (uintptr_t)pcpa_page_address(&zone, out[0][1]);
	pcpa_zone_enter(&zone, PCPA_PATH_FREE, &counters);
	assert_int_equal(pcpa_depot_give(&zone, 0, 0, 5, &from, PCPA_IN_USE), 2);
	assert_int_equal(zone.n_bad, 3);
	assert_true(zone.bad[0].block == pcpa_page_address(&zone, b));
	assert_true(zone.bad[1].block == pcpa_page_address(&zone, b + 1));
	assert_true(zone.bad[2].block == pcpa_page_address(&zone, a));
	/* and once more, when it is in the zone already */
	assert_int_equal(pcpa_depot_give(&zone, 1, 0, 1, &from, PCPA_IN_USE), 0);
	pcpa_zone_leave(&zone);
	assert_int_equal(counters.alloc_direct, 4);
	used[a] = used[out[0][1]] = 0;
	check();
	(void)state;
}

/* As in a child whose memory is short: everything works without a depot. */
static void without_a_depot(void **state)
{
	assert_null(zone.depot);
	random_operations(state);
	zone.depot = NULL;
	assert_false(pcpa_depot_empty(&zone, PCPA_PATH_FREE, &counters));
	wrong_blocks_stay_outside(state);
}

/* The smallest zone has a small depot, or none, and gives out its last page. */
static void a_small_zone(void **state)
{
	uint32_t got;

	(void)state;
	for (int round = 0; round < 3; round++) {
		memset(used, 0, sizeof(used));
		memset(n_out, 0, sizeof(n_out));
		got = take(0, 0, PCPA_BLOCK - 10) + take(1, 0, PCPA_BLOCK);
		assert_true(got + stored() == PCPA_BLOCK);
		pcpa_depot_empty(&zone, PCPA_PATH_ALLOC, &counters);
		got += take(1, 0, PCPA_BLOCK);
		assert_int_equal(got, PCPA_BLOCK);
		assert_int_equal(take(0, 0, 1), 0);
		while (n_out[0])
			give(n_out[0] & 1, 0, n_out[0] < 100 ? n_out[0] : 100, true);
		assert_true(stored() <= PCPA_BLOCK / 8);
		check();
	}
}

/* The check itself must be able to fail. */
static void check_finds_damage(void **state)
{
	uint64_t in_use, listed;

	(void)state;
	take(0, 0, 10);
	give(0, 0, 5, true);
	assert_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, out[0][0], PCPA_IN_DEPOT, 0);
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, out[0][0], PCPA_IN_USE, 0);
	assert_null(pcpa_zone_check(&zone, &in_use, &listed));
	for (uint32_t pfn = 0; pfn < PCPA_BLOCK; pfn++)
		if (pcpa_tag_get(&zone, pfn) == pcpa_tag(PCPA_IN_DEPOT, 0)) {
			pcpa_tag_set(&zone, pfn, PCPA_IN_USE, 0);
			break;
		}
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(random_operations, set_up, tear_down),
		cmocka_unit_test_setup_teardown(newest_first, set_up, tear_down),
		cmocka_unit_test_setup_teardown(blocks_change_sides, set_up, tear_down),
		cmocka_unit_test_setup_teardown(bursts_do_not_mix, set_up, tear_down),
		cmocka_unit_test_setup_teardown(bounded, set_up, tear_down),
		cmocka_unit_test_setup_teardown(nothing_enters_below_the_watermarks, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(the_unused_leaves, set_up, tear_down),
		cmocka_unit_test_setup_teardown(wrong_blocks_stay_outside, set_up, tear_down),
		cmocka_unit_test_setup_teardown(without_a_depot, set_up_bare, tear_down),
		cmocka_unit_test_setup_teardown(a_small_zone, set_up_small, tear_down),
		cmocka_unit_test_setup_teardown(check_finds_damage, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
