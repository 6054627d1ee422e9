/* SPDX-License-Identifier: MIT */
/*
 * Rows that are kept whole, against a map of used pages: rows of all lengths in and out for several
 * CPUs. No page may be out twice or be lost, bounds hold, what is not used leaves, and what left
 * has merged. Then the same through the API, with its counters, and after a fork.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <sys/mman.h>

#include "allocator/depot.h"
#include "allocator/heap.h"
#include "allocator/rows.h"
#include "tests/unit/random.h"

#define PAGES (256u * PCPA_BLOCK)
#define SLOTS 3u
#define MOST  400u

static struct pcpa_zone zone;
static struct pcptune_cpu_block of_counters;
#define counters of_counters.zctr
static uint8_t used[PAGES];
static struct {
	uint32_t pfn, pages;
} out[MOST];
static uint32_t n_out;
static uint64_t seed;

static uint32_t rnd(uint32_t n)
{
	return (uint32_t)(random_next(&seed) % n);
}

static int set_up(void **state)
{
	int error;

	(void)state;
	memset(&zone, 0, sizeof(zone));
	memset(&counters, 0, sizeof(counters));
	memset(used, 0, sizeof(used));
	n_out = 0;
	seed = 4711;
	error = pcpa_zone_reserve(&zone, 0, PAGES, -1);
	pcpa_rows_make(&zone, SLOTS, 2);
	return error || !zone.rows;
}

static int tear_down(void **state)
{
	(void)state;
	munmap((void *)zone.base, (size_t)zone.n_pages << PCPTUNE_PAGE_SHIFT);
	munmap(zone.pages, zone.n_pages * sizeof(*zone.pages));
	return 0;
}

static unsigned order_of(uint32_t pages)
{
	return 32u - (unsigned)__builtin_clz(pages - 1);
}

/* Returns where it lies. */
static uint32_t take(uint32_t slot, unsigned order, uint32_t pages)
{
	uint32_t pfn;

	pcpa_zone_enter(&zone, PCPA_PATH_ALLOC, &counters);
	pfn = pcpa_rows_take(&zone, slot, order, pages);
	if (pfn == PCPA_NO_PAGE)
		pfn = pcpa_zone_take_row(&zone, order, pages);
	pcpa_zone_leave(&zone);
	assert_true(pfn != PCPA_NO_PAGE && pfn + pages <= zone.grown);
	assert_int_equal(pfn & ((1u << order) - 1), 0);
	for (uint32_t at = 0; at < pages; at += 1u << pcpa_piece_order(at, pages))
		assert_int_equal(pcpa_tag_get(&zone, pfn + at),
				 pcpa_tag(PCPA_IN_USE, pcpa_piece_order(at, pages)));
	assert_null(memchr(used + pfn, 1, pages));
	memset(used + pfn, 1, pages);
	return pfn;
}

static void give(uint32_t slot, uint32_t pfn, uint32_t pages)
{
	memset(used + pfn, 0, pages);
	pcpa_zone_enter(&zone, PCPA_PATH_FREE, &counters);
	pcpa_rows_give(&zone, slot, pfn, pages);
	pcpa_zone_leave(&zone);
}

static uint64_t kept(void)
{
	uint64_t pages = 0;
	const char *what = pcpa_rows_check(&zone, &pages);

	if (what)
		fail_msg("%s", what);
	return pages;
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
	assert_true(kept() <= SLOTS * (zone.n_pages / 64 / 2));
}

static void all_merged(void)
{
	check();
	assert_int_equal(kept(), 0);
	assert_int_equal((zone.mask[0] | zone.mask[1]) & ~(1u << PCPTUNE_MAX_ORDER), 0);
}

static uint32_t some_pages(void)
{
	static const uint16_t often[] = {16, 17, 25, 32, 64, 100, 256, 257, 1000, 1024};

	return rnd(4) ? often[rnd(10)] : 9 + rnd(1016);
}

static void step(void)
{
	uint32_t pages = some_pages(), k;
	unsigned order = order_of(pages);

	if (n_out < MOST && rnd(2)) {
		/* now and then at a multiple of more */
		order += !rnd(5) && order < PCPTUNE_MAX_ORDER;
		out[n_out].pfn = take(rnd(SLOTS), order, pages);
		out[n_out++].pages = pages;
	} else if (n_out) {
		k = rnd(n_out);
		give(rnd(SLOTS), out[k].pfn, out[k].pages);
		out[k] = out[--n_out];
	}
	if (!rnd(50))
		pcpa_rows_age(&zone, rnd(SLOTS), &counters);
	if (!rnd(400))
		pcpa_rows_empty(&zone, PCPA_PATH_FREE, &counters);
}

static void random_operations(void **state)
{
	(void)state;
	for (int i = 0; i < 40000; i++) {
		step();
		if (!rnd(500))
			check();
	}
	while (n_out--)
		give(rnd(SLOTS), out[n_out].pfn, out[n_out].pages);
	n_out = 0;
	check();
	pcpa_rows_empty(&zone, PCPA_PATH_FREE, &counters);
	all_merged();
}

/* The newest of that length, for the CPU that gave it. */
static void the_newest_that_fits(void **state)
{
	uint32_t a = take(0, 5, 25), b = take(0, 5, 25), c = take(0, 5, 26);

	(void)state;
	give(0, a, 25);
	give(0, b, 25);
	give(0, c, 26);
	assert_int_equal(kept(), 76);
	assert_true(take(1, 5, 25) != b);
	assert_int_equal(take(0, 5, 25), b);
	assert_int_equal(take(0, 5, 26), c);
	assert_int_equal(take(0, 5, 25), a);
	assert_int_equal(kept(), 0);
	check();
}

/* Of rows that lie at a multiple of their own size only one in so many lies at one of more. */
static void placed_as_asked(void **state)
{
	uint32_t at[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		at[i] = take(0, 4, 16);
	for (int i = 0; i < 4; i++)
		give(0, at[i], 16);
	for (int i = 0; i < 4; i++)
		take(0, 6, 16);
	check();
}

/* Cut out of a larger one, it does not begin where one of that length would. */
static void misplaced_rows_merge(void **state)
{
	uint32_t pfn = take(0, 6, 64);

	(void)state;
	for (uint32_t at = 0; at < 64; at += 16)
		pcpa_tag_set(&zone, pfn + at, PCPA_IN_USE, 4);
	pcpa_tag_set(&zone, pfn + 32, PCPA_IN_USE, 3);
	pcpa_tag_set(&zone, pfn + 40, PCPA_IN_USE, 3);
	/* 16 + 8 pages, at 16 */
	give(0, pfn + 16, 24);
	assert_int_equal(kept(), 0);
	check();
}

static void bounded(void **state)
{
	uint32_t at[40], most = zone.n_pages / 64 / 2;

	(void)state;
	for (int i = 0; i < 40; i++)
		at[i] = take(0, 4, 16);
	for (int i = 0; i < 40; i++)
		give(0, at[i], 16);
	assert_int_equal(kept(), 16 * PCPA_ROWS);
	/* the last ones are there */
	assert_int_equal(take(0, 4, 16), at[39]);
	give(0, at[39], 16);
	for (int i = 0; i < 40; i++)
		at[i] = take(1, 10, 1000);
	for (int i = 0; i < 40; i++)
		give(1, at[i], 1000);
	assert_int_equal(kept(),
			 16 * PCPA_ROWS +
				 (most < PCPA_ROWS_PAGES ? most : PCPA_ROWS_PAGES) / 1000 * 1000);
	check();
}

static void nothing_enters_below_the_watermarks(void **state)
{
	uint32_t a = take(0, 5, 25), b = take(0, 5, 25);

	(void)state;
	give(0, a, 25);
	zone.wmark_low = zone.wmark_high = 2 * PAGES;
	take(0, 4, 9);
	give(0, b, 25);
	assert_int_equal(kept(), 25);
	assert_int_equal(take(0, 5, 25), a);
	check();
}

/* What was not asked for between two looks leaves, and no more. */
static void the_unused_leaves(void **state)
{
	uint32_t a = take(0, 5, 25), b = take(0, 6, 40);

	(void)state;
	give(0, a, 25);
	give(0, b, 40);
	pcpa_rows_age(&zone, 0, &counters);
	assert_int_equal(kept(), 65);
	assert_int_equal(take(0, 5, 25), a);
	give(0, a, 25);
	pcpa_rows_age(&zone, 1, &counters);
	assert_int_equal(kept(), 65);
	pcpa_rows_age(&zone, 0, &counters);
	assert_int_equal(kept(), 25);
	assert_true(pcpa_rows_has(&zone, 0));
	pcpa_rows_age(&zone, 0, &counters);
	assert_false(pcpa_rows_has(&zone, 0));
	all_merged();
}

/* The check itself must be able to fail. */
static void check_finds_damage(void **state)
{
	uint32_t a = take(0, 5, 25);
	uint64_t pages = 0, in_use, listed;

	(void)state;
	give(0, a, 25);
	assert_null(pcpa_zone_check(&zone, &in_use, &listed));
	pcpa_tag_set(&zone, a + 16, PCPA_IN_USE, 3);
	assert_non_null(pcpa_rows_check(&zone, &pages));
	assert_non_null(pcpa_zone_check(&zone, &in_use, &listed));
}

/* ---- through the API ---- */

static struct pcpa_stats stats(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	CHECK(pcpa_get_stats(&s) == 0);
	return s;
}

/* Of either kind, whole blocks and others, whose pages are all that is counted. */
static void api_child(void)
{
	static const size_t size[] = {65536, 100000, 300000, 1000000, 4 << 20, 131072};
	struct pcpa_stats before, after;
	uint64_t pages = 0, depot = 0;
	void *block[6];
	int status;
	pid_t pid;

	for (int i = 0; i < 6; i++)
		CHECK((block[i] = pcpa_alloc_exact(size[i], 0)));
	CHECK_AUDIT();
	for (int i = 0; i < 6; i++)
		pcpa_free_exact(block[i], size[i]);
	CHECK_AUDIT();
	CHECK(!pcpa_depot_check(&pcpa_heap.zones[0], &depot) && depot > 0);
	before = stats();
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < 6; i++) {
			CHECK((block[i] = pcpa_alloc_exact(size[i], 0)));
			memset(block[i], round, size[i]);
			pages += pcpa_exact_pages(size[i]);
		}
		for (int i = 0; i < 6; i++)
			pcpa_free_exact(block[i], size[i]);
	}
	after = stats();
	CHECK(after.alloc_pages - before.alloc_pages == pages);
	CHECK(after.alloc_zone - before.alloc_zone == pages);
	CHECK(after.free_zone - before.free_zone == pages && after.pages_in_use == 0);
	CHECK_AUDIT();
	pid = fork();
	if (!pid) {
		CHECK_AUDIT();
		CHECK((block[0] = pcpa_alloc_exact(100000, 0)));
		pcpa_free_exact(block[0], 100000);
		pcpa_trim();
		depot = 0;
		CHECK(!pcpa_depot_check(&pcpa_heap.zones[0], &depot) && depot == 0);
		CHECK_AUDIT();
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	pcpa_trim();
	CHECK_AUDIT();
}

static int n_errors;

static void note(const struct pcpa_error *error, void *user)
{
	(void)error, (void)user;
	n_errors++;
}

/* Each is noticed, and the row stays what it is. */
static void misuse_child(void)
{
	char *row, *other;

	pcpa_set_error_callback(note, NULL);
	CHECK((row = pcpa_alloc_exact(100000, 0)) && (other = pcpa_alloc_exact(65536, 0)));
	pcpa_free_exact(row, 90000); /* 16 + 6 pages */
	CHECK(n_errors == 1);
	pcpa_free_exact(row, 110000);
	CHECK(n_errors == 2);
	pcpa_free_exact(row + 4096, 100000);
	CHECK(n_errors == 3);
	pcpa_free_exact(row, 100000);
	CHECK(n_errors == 3);
	pcpa_free_exact(row, 100000);
	CHECK(n_errors == 4);
	pcpa_free(other, 5);
	CHECK(n_errors == 5);
	pcpa_free(other, 4);
	pcpa_free(other, 4);
	CHECK(n_errors == 6);
	CHECK_AUDIT();
}

/* Rows that are kept are no reason to say that there is nothing. */
static void short_child(void)
{
	void *block[64];
	uint64_t all = 0;
	int n = 0;

	while (n < 64 && (block[n] = pcpa_alloc_exact(1000000, 0)))
		n++;
	CHECK(n > 4 && n < 64);
	for (int i = 0; i < n; i++)
		pcpa_free_exact(block[i], 1000000);
	while (pcpa_alloc(0))
		all++;
	CHECK(all == stats().pages_managed);
	CHECK_AUDIT();
}

static void through_the_api(void **state)
{
	static const char *const modes[] = {"PCPALLOC_MODE=rseq", "PCPALLOC_MODE=locked",
					    "PCPALLOC_CHECK=1"};

	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(in_child(api_child, SETTINGS(modes[i], "PCPALLOC_AGENT=0",
							      "PCPALLOC_SIZE=1g")),
				 0);
		assert_int_equal(in_child(misuse_child, SETTINGS(modes[i], "PCPALLOC_AGENT=0")), 0);
		assert_int_equal(
			in_child(short_child, SETTINGS(modes[i], "PCPALLOC_AGENT=0",
						       "PCPALLOC_SIZE=32m", "PCPALLOC_ZONES=1")),
			0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(random_operations, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_newest_that_fits, set_up, tear_down),
		cmocka_unit_test_setup_teardown(placed_as_asked, set_up, tear_down),
		cmocka_unit_test_setup_teardown(misplaced_rows_merge, set_up, tear_down),
		cmocka_unit_test_setup_teardown(bounded, set_up, tear_down),
		cmocka_unit_test_setup_teardown(nothing_enters_below_the_watermarks, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(the_unused_leaves, set_up, tear_down),
		cmocka_unit_test_setup_teardown(check_finds_damage, set_up, tear_down),
		cmocka_unit_test(through_the_api),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
