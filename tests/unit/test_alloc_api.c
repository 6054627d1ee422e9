/* SPDX-License-Identifier: MIT */
/*
 * The functions of pcpalloc.h as a program sees them: alignment, exact sizes, bulk calls, misuse,
 * memory that ends, numbers, laziness.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>

#include "allocator/pcp.h"

static struct pcpa_error last;
static unsigned n_errors;

static void remember(const struct pcpa_error *error, void *cookie)
{
	last = *error;
	++*(unsigned *)cookie;
}

static struct pcpa_stats stats(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	CHECK(pcpa_get_stats(&s) == 0 && s.size == sizeof(s));
	return s;
}

#define SMALL SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=0")

static unsigned entries(const char *folder)
{
	DIR *d = opendir(folder);
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* Nothing happens before the first allocation, whatever else is called. */
static void lazy_child(void)
{
	unsigned files = entries("/proc/self/fd");
	int here;

	pcpa_set_error_callback(remember, &n_errors);
	CHECK(pcpa_owns(&here) == 0);
	pcpa_free(NULL, 3);
	CHECK(stats().n_zones == 0 && pcpa_audit(NULL) == 0 && pcpa_trim() == 0);
	CHECK(!pcpa_heap.ready && n_errors == 0);
	CHECK(entries("/proc/self/fd") == files && entries("/proc/self/task") == 3);
	CHECK(!strcmp(pcpa_version(), PCPA_VERSION));
}

static void nothing_before_the_first_allocation(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* TSan has a thread of its own */
	skip();
#endif
	assert_int_equal(in_child(lazy_child, SMALL), 0);
}

static void orders_child(void)
{
	for (unsigned order = 0; order <= PCPA_MAX_ORDER; order++) {
		char *p = pcpa_alloc(order);

		CHECK(p && ((uintptr_t)p & (((uintptr_t)4096 << order) - 1)) == 0);
		memset(p, (int)order, (size_t)4096 << order);
		CHECK(pcpa_owns(p) && pcpa_owns(p + ((size_t)4096 << order) - 1));
		errno = 77;
		pcpa_free(p, order);
		CHECK(errno == 77);
	}
	CHECK(stats().pages_in_use == 0 && stats().alloc_pages == 2047);
	errno = 0;
	CHECK(!pcpa_alloc(11) && errno == EINVAL);
	CHECK_AUDIT();
}

static void every_order(void **state)
{
	(void)state;
	assert_int_equal(in_child(orders_child, SMALL), 0);
}

/* Each wrong free is told, counted, and changes nothing. */
static void misuse_child(void)
{
	static char foreign[8192];
	unsigned before = 0;
	char *p = pcpa_alloc(2), *direct = pcpa_alloc(5);

	CHECK(!pcpa_set_error_callback(remember, &n_errors));
#define WRONG(call, text)                                                \
	do {                                                             \
		call;                                                    \
		CHECK(n_errors == ++before && strstr(last.what, text) && \
		      last.size == sizeof(last));                        \
	} while (0)
	WRONG(pcpa_free(foreign, 0), "no zone");
	WRONG(pcpa_free(p, 11), "above");
	WRONG(pcpa_free(p + 1, 0), "aligned");
	WRONG(pcpa_free(p + 4096, 1), "aligned");
	WRONG(pcpa_free(p + 4096, 0), "inside another block");
	WRONG(pcpa_free(p, 1), "order is not");
	WRONG(pcpa_free((char *)pcpa_heap.zones[0].base + (32 << 20), 0), "never allocated");
	CHECK(last.address == (char *)pcpa_heap.zones[0].base + (32 << 20) && last.caller);
	WRONG(pcpa_free_exact(p, 0), "size is 0");
	pcpa_free(p, 2);
	WRONG(pcpa_free(p, 2), "freed before");
	pcpa_free(direct, 5);
	WRONG(pcpa_free(direct, 5), "in the zone");
	WRONG(pcpa_free_bulk(0, 1, (void *[]){foreign}), "no zone");
	CHECK(pcpa_heap.proc->bad_frees == n_errors);
	CHECK(stats().pages_in_use == 0);
	CHECK_AUDIT();
	CHECK(pcpa_set_error_callback(NULL, NULL) == remember);
	pcpa_free(foreign, 0);
	CHECK(n_errors == before);
}

static void misuse(void **state)
{
	(void)state;
	assert_int_equal(in_child(misuse_child, SMALL), 0);
}

/* The callback runs without a lock: it may allocate. */
static void allocating_callback(const struct pcpa_error *error, void *cookie)
{
	(void)error;
	pcpa_free(pcpa_alloc(0), 0);
	pcpa_free(pcpa_alloc(6), 6);
	++*(unsigned *)cookie;
}

static void callback_child(void)
{
	int foreign;

	pcpa_set_error_callback(allocating_callback, &n_errors);
	pcpa_free(&foreign, 0);
	CHECK(n_errors == 1);
}

static void callback_may_allocate(void **state)
{
	(void)state;
	assert_int_equal(in_child(callback_child, SMALL), 0);
}

/* Pages that a request of n pages gets. */
static size_t given(size_t n)
{
	static const size_t small[] = {0, 1, 2, 4, 4, 8, 8, 8, 8};

	return n < 9 ? small[n] : n;
}

static void exact_child(void)
{
	uint64_t before;

	CHECK(pcpa_alloc(0));
	before = stats().pages_in_use;
	for (size_t pages = 1; pages <= 1024; pages += pages < 40 ? 1 : 37) {
		char *p = pcpa_alloc_exact(pages * 4096 - 5, 1);

		CHECK(p && ((uintptr_t)p & 4095) == 0);
		CHECK(stats().pages_in_use == before + given(pages));
		memset(p, 3, pages * 4096);
		CHECK_AUDIT();
		pcpa_free_exact(p, (pages - 1) * 4096 + 1);
		CHECK(stats().pages_in_use == before);
	}
	for (size_t align = 1; align <= PCPA_MAX_EXACT; align *= 2) {
		char *p = pcpa_alloc_exact(3 * 4096, align);

		CHECK(p && ((uintptr_t)p & (align - 1)) == 0);
		CHECK(stats().pages_in_use == before + 4);
		pcpa_free_exact(p, 3 * 4096);
	}
	CHECK(stats().pages_in_use == before);
	CHECK_AUDIT();
	errno = 0;
	CHECK(!pcpa_alloc_exact(0, 1) && errno == EINVAL);
	CHECK(!pcpa_alloc_exact(PCPA_MAX_EXACT + 1, 1) && !pcpa_alloc_exact(1, 3));
	CHECK(!pcpa_alloc_exact(1, PCPA_MAX_EXACT * 2));
	pcpa_free_exact(pcpa_alloc_exact(1, 0), 1);
	CHECK(stats().pages_in_use == before);
}

static void exact_sizes(void **state)
{
	(void)state;
	assert_int_equal(in_child(exact_child, SMALL), 0);
}

/*
 * Blocks of every size are used again: what comes from a list goes to the same list, and pieces of
 * larger ones to the zone. Once they went to the lists of small orders, which nobody emptied.
 */
static void exact_again_child(void)
{
	static char *p[2000];
	static const size_t sizes[] = {9000, 12000, 20000, 25000, 60000, 120000};

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		size_t n = 6000000 / sizes[k], pages = given((sizes[k] + 4095) / 4096);
		uint64_t held = 0, grown = 0;

		for (int round = 0; round < 40; round++) {
			for (size_t i = 0; i < n; i++)
				CHECK((p[i] = pcpa_alloc_exact(sizes[k], 0)));
			for (size_t i = 0; i < n; i++)
				pcpa_free_exact(p[i], sizes[k]);
			if (round == 4) {
				held = stats().pages_on_lists;
				grown = pcpa_heap.zones[0].grown;
			}
		}
		CHECK(stats().pages_on_lists <= held + n * pages + 2016);
		CHECK(pcpa_heap.zones[0].grown <= grown + 4096);
		CHECK(stats().pages_in_use == 0);
	}
	CHECK_AUDIT();
}

static void exact_blocks_are_used_again(void **state)
{
	(void)state;
	assert_int_equal(in_child(exact_again_child, NULL), 0);
}

static void bulk_child(void)
{
	static void *p[5000];
	uint32_t free_count;

	CHECK(pcpa_alloc_bulk(0, 0, p) == 0);
	CHECK(pcpa_alloc_bulk(0, 5000, p) == 5000);
	for (int i = 1; i < 5000; i++)
		CHECK(p[i] != p[i - 1]);
	CHECK(stats().pages_in_use == 5000);
	pcpa_free_bulk(0, 5000, p);
	CHECK(stats().pages_in_use == 0);
	/* a bulk call leaves the run of frees as it is */
	free_count = pcpa_cpu_block(0, 0)->pcp.free_count;
	CHECK(free_count > 0 && pcpa_alloc_bulk(0, 10, p) == 10);
	CHECK(pcpa_cpu_block(0, 0)->pcp.free_count == free_count);
	pcpa_free(p[0], 0);
	/* holes and blocks without a list */
	p[3] = NULL;
	pcpa_free_bulk(0, 9, p + 1);
	CHECK(stats().pages_in_use == 1);
	CHECK(pcpa_alloc_bulk(4, 20, p) == 20);
	pcpa_free_bulk(4, 20, p);
	errno = 0;
	CHECK(pcpa_alloc_bulk(11, 1, p) == 0 && errno == EINVAL);
	CHECK_AUDIT();
}

static void bulk(void **state)
{
	(void)state;
	assert_int_equal(in_child(bulk_child, SMALL), 0);
}

/* The last page can be had, and after ENOMEM everything is sound. */
static void exhausted_child(void)
{
	static void *p[20000];
	struct pcpa_stats s;
	size_t n = 0;

	errno = 0;
	while ((p[n] = pcpa_alloc(0)))
		n++;
	CHECK(errno == ENOMEM && n == 16384);
	CHECK(pcpa_heap.zones[0].state == 3);
	CHECK(pcpa_cpu_block(0, 0)->zctr.alloc_failed >= 1);
	CHECK_AUDIT();
	CHECK(!pcpa_alloc(9) && !pcpa_alloc_exact(5000, 1));
	CHECK(pcpa_alloc_bulk(0, 5, p + n) == 0);
	/* one that is free serves one */
	pcpa_free(p[100], 0);
	CHECK(pcpa_alloc(0) == p[100]);
	for (size_t i = 0; i < n; i++)
		pcpa_free(p[i], 0);
	CHECK_AUDIT();
	s = stats();
	CHECK(s.pages_in_use == 0 && s.pages_in_zone + s.pages_on_lists == 16384);
	/* what lies on the lists is found when a large block is wanted */
	for (int i = 0; i < 16; i++)
		CHECK(p[i] = pcpa_alloc(10));
	CHECK(!pcpa_alloc(0));
	pcpa_free_bulk(10, 16, p);
	CHECK_AUDIT();
}

static void exhausted_zone(void **state)
{
	(void)state;
	assert_int_equal(in_child(exhausted_child, SMALL), 0);
}

/* One zone after the other, and blocks go back to where they came from. */
static void zones_child(void)
{
	static void *p[10000];
	size_t n = 0, found;
	unsigned per_zone[3] = {0};

	while (n < 3000 && (p[n] = pcpa_alloc(0)))
		n++;
	/* bulk goes on where single calls stopped */
	found = pcpa_alloc_bulk(0, 5000, p + n);
	n += found;
	CHECK(n == 3 * 2048 && pcpa_heap.n_zones == 3 && stats().pages_managed == 3 * 2048);
	for (size_t i = 0; i < n; i++)
		per_zone[pcpa_heap_zone_of(p[i])->id]++;
	CHECK(per_zone[0] == 2048 && per_zone[1] == 2048 && per_zone[2] == 2048);
	CHECK_AUDIT();
	pcpa_free_bulk(0, n, p);
	CHECK(stats().pages_in_use == 0);
	CHECK_AUDIT();
	pcpa_trim();
	for (int i = 0; i < 3; i++)
		CHECK(pcpa_heap.zones[i].free_pages == 2048);
}

static void several_zones(void **state)
{
	(void)state;
	assert_int_equal(in_child(zones_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=8m",
							"PCPALLOC_ZONES=3", "PCPALLOC_AGENT=0")),
			 0);
}

static void trim_child(void)
{
	static void *p[4000];
	struct pcpa_stats s;

	CHECK(pcpa_alloc_bulk(0, 4000, p) == 4000);
	for (int i = 0; i < 4000; i++)
		memset(p[i], 0xee, 4096);
	pcpa_free_bulk(0, 4000, p);
	CHECK(pcpa_trim() >= 4000);
	s = stats();
	CHECK(s.pages_on_lists == 0 && s.pages_returned == s.pages_in_zone);
	/* given back means: zeroes when it comes again */
	CHECK(pcpa_alloc_bulk(0, 4000, p) == 4000);
	for (int i = 0; i < 4000; i++)
		CHECK(*(uint64_t *)p[i] == 0);
	CHECK_AUDIT();
}

static void trim_gives_memory_back(void **state)
{
	(void)state;
	assert_int_equal(in_child(trim_child, SMALL), 0);
}

static void limits_child(void)
{
	struct pcptune_cpu_block *b;

	CHECK(pcpa_set_limits(0, 0, 0, 2000) == -EINVAL);
	CHECK(pcpa_set_limits(0, 300, 200, 0) == -EINVAL);
	CHECK(pcpa_set_limits(PCPTUNE_MAX_HIGH + 1, 0, 0, 0) == -EINVAL);
	CHECK(pcpa_set_limits(500, 100, 1000, 10) == 0);
	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, 0);
	CHECK(b->pcp.high_min == 100 && b->pcp.high_max == 1000 && b->pcp.batch == 10);
	CHECK(pcpa_set_limits(0, 0, 0, 20) == 0);
	CHECK(b->pcp.high_max == 1000 && b->pcp.batch == 20);
	/* never above what the rings hold */
	CHECK(pcpa_set_limits(PCPTUNE_MAX_HIGH, 0, PCPTUNE_MAX_HIGH, 0) == 0);
	CHECK(b->pcp.high == b->pcp.high_limit);
}

static void set_limits(void **state)
{
	(void)state;
	assert_int_equal(in_child(limits_child, SMALL), 0);
}

static void stats_child(void)
{
	struct pcpa_stats s = {.size = 16, .free_pages = 99};

	CHECK(pcpa_get_stats(NULL) == -EINVAL);
	CHECK(pcpa_alloc(3));
	/* an older, shorter struct is filled as far as it goes */
	CHECK(pcpa_get_stats(&s) == 0 && s.size == 16 && s.alloc_pages == 8 && s.free_pages == 99);
	s = stats();
	CHECK(s.n_zones == 1 && s.n_cpus == 2 && s.mode == PCPTUNE_MODE_LOCKED && !s.attached);
	CHECK(s.pages_managed == 16384 && s.lock_taken == 1 && s.refills == 1);
}

static void numbers(void **state)
{
	(void)state;
	assert_int_equal(in_child(stats_child, SMALL), 0);
}

/* Bad settings are as good as none. */
static void settings_child(void)
{
	CHECK(pcpa_alloc(0));
	CHECK(pcpa_heap.n_virtual == 0 && pcpa_heap.idle_ms == 5000 && pcpa_heap.agent);
	CHECK(pcpa_heap.n_zones >= 1);
	CHECK(pcpa_cpu_block(0, pcpa_cpu_slot())->pcp.rules == PCPTUNE_RULES_G6);
}

static void bad_settings(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(settings_child,
			 SETTINGS("PCPALLOC_CPUS=0", "PCPALLOC_ZONES=nine", "PCPALLOC_SIZE=12",
				  "PCPALLOC_RULES=g9", "PCPALLOC_IDLE_MS=-1", "PCPALLOC_AGENT=2",
				  "PCPALLOC_HIGH=99999999999999999999", "PCPALLOC_BATCH=5000")),
		0);
}

/* The audit itself must be able to fail. */
static void damage_child(void)
{
	struct pcptune_cpu_block *b;
	const char *what = NULL;
	uint64_t *ring;

	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, 0);
	CHECK_AUDIT();
	b->zctr.alloc_zone++;
	CHECK(pcpa_audit(&what) == -EUCLEAN && strstr(what, "alloc_zone"));
	b->zctr.alloc_zone--;
	b->zctr.free_direct++;
	CHECK(pcpa_audit(&what) == -EUCLEAN && strstr(what, "in use"));
	b->zctr.free_direct--;
	ring = (uint64_t *)(uintptr_t)b->list[0].private_ring;
	ring[b->list[0].limit / 2 - 1] = ring[b->list[0].limit / 2 - 2];
	CHECK(pcpa_audit(&what) == -EUCLEAN && what);
}

static void audit_finds_damage(void **state)
{
	(void)state;
	assert_int_equal(in_child(damage_child, SMALL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_before_the_first_allocation),
		cmocka_unit_test(every_order),
		cmocka_unit_test(misuse),
		cmocka_unit_test(callback_may_allocate),
		cmocka_unit_test(exact_sizes),
		cmocka_unit_test(exact_blocks_are_used_again),
		cmocka_unit_test(bulk),
		cmocka_unit_test(exhausted_zone),
		cmocka_unit_test(several_zones),
		cmocka_unit_test(trim_gives_memory_back),
		cmocka_unit_test(set_limits),
		cmocka_unit_test(numbers),
		cmocka_unit_test(bad_settings),
		cmocka_unit_test(audit_finds_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
