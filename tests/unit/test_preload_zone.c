/* SPDX-License-Identifier: MIT */
/*
 * Our side of malloc and the arena, without replacing malloc: lengths, tails, counters, settings.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "tests/unit/preload_parts.h"

/* Before there are sections nothing may enter one: it would write where their area is not. */
static void test_before_the_first_block(void **state_)
{
	uint64_t tcb[4], after[4];
	void *p;

	(void)state_;
	memcpy(tcb, __builtin_thread_pointer(), sizeof(tcb));
	assert_false(preload_fast_free(NULL));
	assert_false(preload_fast_free((void *)4096));
	assert_false(preload_fast_alloc(4096, &p));
	memcpy(after, __builtin_thread_pointer(), sizeof(after));
	assert_memory_equal(tcb, after, sizeof(tcb));
	assert_false(pcpa_fast_cpus());
}

static void test_settings(void **state_)
{
	(void)state_;
	read_settings(NULL, NULL);
	assert_false(preload_wants(4095));
	assert_true(preload_wants(4096));
	assert_true(preload_wants(PCPA_MAX_EXACT));
	assert_false(preload_wants(PCPA_MAX_EXACT + 1));
	assert_false(preload_wants(0));
	read_settings("64k", "1m");
	assert_false(preload_wants(65535));
	assert_true(preload_wants(65536));
	assert_true(preload_wants(1048576));
	assert_false(preload_wants(1048577));
	/* values that are none count as left out */
	read_settings("much", "5m");
	assert_true(preload_wants(4096));
	assert_true(preload_wants(PCPA_MAX_EXACT));
	/* an empty range: nothing is ours */
	read_settings("64k", "4k");
	assert_false(preload_wants(8192));
	assert_false(preload_wants(65536));
	assert_null(preload_zone_alloc(8192, 0));
	read_settings(NULL, NULL);
}

/* Before the environment is there, nothing is served and nothing is decided. */
static void test_before_the_environment(void **state_)
{
	char **was = environ;

	(void)state_;
	preload_zone_forget();
	environ = NULL;
	preload_zone_setup();
	assert_null(preload_zone_alloc(8192, 0));
	environ = was;
	preload_zone_setup();
	preload_zone_free(preload_zone_alloc(8192, 0), NULL);
}

static void test_lengths(void **state_)
{
	uint64_t before;
	size_t size, align;
	char *p;

	(void)state_;
	read_settings(NULL, NULL);
	preload_zone_free(preload_zone_alloc(4096, 0), NULL);
	before = in_use();
	for (size = 4096; size <= PCPA_MAX_EXACT; size += size / 3) {
		for (align = 1; align <= PCPA_MAX_EXACT; align *= 16) {
			errno = 7;
			p = preload_zone_alloc(size, align);
			assert_non_null(p);
			assert_int_equal(errno, 7);
			assert_int_equal((uintptr_t)p % align, 0);
			assert_int_equal(preload_zone_size(p), given((size + 4095) / 4096) * 4096);
			assert_int_equal(preload_zone_size(p + 1), 0);
			if (size > 4096)
				assert_int_equal(preload_zone_size(p + 4096), 0);
			assert_int_equal(in_use(), before + given((size + 4095) / 4096));
			preload_zone_free(p, NULL);
			/* a block on a list that sections serve looks like one in use */
			if (size > 8 * 4096 || !pcpa_fast_cpus())
				assert_int_equal(preload_zone_size(p), 0);
			assert_int_equal(in_use(), before);
		}
	}
	assert_int_equal(pcpa_audit(NULL), 0);
}

/* Every way to cut a block: pages back exactly, the rest untouched, and the audit holds. */
static void test_tails(void **state_)
{
	static const size_t blocks[] = {1, 2, 3, 5, 7, 8, 13, 31, 64, 100, 255, 1023, 1024};
	uint64_t before = in_use();
	size_t i, keep;
	char *p;

	(void)state_;
	for (i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		size_t n = blocks[i];

		for (keep = n; keep; keep = keep > 8 ? keep - keep / 7 : keep - 1) {
			size_t need = given(keep), have = given(n);
			bool cut = have > need + (need > 8 ? need / 8 : 0);

			p = preload_zone_alloc(n * 4096, 0);
			memset(p, 0x5a, n * 4096);
			assert_true(preload_zone_resize(p, keep * 4096 - 10));
			assert_int_equal(in_use(), before + (cut ? need : have));
			assert_int_equal(preload_zone_size(p), (cut ? need : have) * 4096);
			assert_int_equal(p[keep * 4096 - 1], 0x5a);
			preload_zone_free(p, NULL);
			assert_int_equal(in_use(), before);
		}
	}
	assert_int_equal(pcpa_audit(NULL), 0);
}

static void test_growth(void **state_)
{
	char *p, *q;

	(void)state_;
	p = preload_zone_alloc(20 * 4096, 0);
	assert_false(preload_zone_resize(p, 20 * 4096 + 1));
	assert_false(preload_zone_resize(p, SIZE_MAX));
	assert_int_equal(preload_zone_size(p), 20 * 4096);
	q = preload_zone_alloc_growing(80 * 4096);
	assert_int_equal(preload_zone_size(q), 90 * 4096);
	assert_true(preload_zone_resize(q, 90 * 4096));
	assert_false(preload_zone_resize(q, 90 * 4096 + 1));
	preload_zone_free(p, NULL);
	preload_zone_free(q, NULL);
	/* never longer than the largest block */
	p = preload_zone_alloc_growing(PCPA_MAX_EXACT - 4096);
	assert_int_equal(preload_zone_size(p), PCPA_MAX_EXACT);
	preload_zone_free(p, NULL);
}

static unsigned n_reports;

static void on_error(const struct pcpa_error *e, void *cookie)
{
	assert_non_null(e->what);
	(*(unsigned *)cookie)++;
	assert_null(preload_zone_alloc(8192, 0)); /* inside: goes to the next malloc */
}

static void on_late_error(const struct pcpa_error *e, void *cookie)
{
	assert_non_null(e->what);
	(*(unsigned *)cookie)++;
}

static void test_wrong_frees(void **state_)
{
	uint64_t before = in_use();
	char *p = preload_zone_alloc(3 * 4096, 0);

	(void)state_;
	pcpa_set_error_callback(on_error, &n_reports);
	preload_zone_free(p + 4096, NULL);
	preload_zone_free(p + 8, NULL);
	assert_int_equal(n_reports, 2);
	assert_int_equal(in_use(), before + 4);
	preload_zone_free(p, NULL);
	assert_int_equal(in_use(), before);
	/* twice: a row of blocks at once; a single block at once, or where it reaches the zone */
	p = preload_zone_alloc(9 * 4096, 0);
	preload_zone_free(p, NULL);
	preload_zone_free(p, NULL);
	assert_int_equal(n_reports, 3);
	assert_int_equal(in_use(), before);
	p = preload_zone_alloc(3 * 4096, 0);
	pcpa_set_error_callback(on_late_error, &n_reports);
	preload_zone_free(p, NULL);
	preload_zone_free(p, NULL);
	pcpa_trim();
	assert_int_equal(n_reports, 4);
	assert_int_equal(in_use(), before);
	assert_int_equal(pcpa_audit(NULL), 0);
	pcpa_set_error_callback(NULL, NULL);
	assert_false(preload_zone_owns(&before));
	assert_false(preload_zone_owns(NULL));
}

static void *some_calls(void *arg)
{
	int i;

	for (i = 0; i < 1000; i++)
		preload_zone_free(preload_zone_alloc(5000, 0), NULL);
	return arg;
}

/* Counters lag by 64 calls at most while threads run, and are exact once they have ended. */
static void test_counters(void **state_)
{
	struct pcptune_proc_block *proc = pcpa_proc();
	uint64_t calls, bytes, pages;
	pthread_t t[4];
	int i;

	(void)state_;
	add_gathered(&mine);
	calls = proc->malloc_calls;
	bytes = proc->malloc_bytes;
	pages = proc->malloc_pages;
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, some_calls, NULL), 0);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(proc->malloc_calls, calls + 4000);
	assert_int_equal(proc->malloc_bytes, bytes + 4000 * 5000);
	assert_int_equal(proc->malloc_pages, pages + 4000 * 2);
	some_calls(NULL);
	assert_in_range(proc->malloc_calls, calls + 5000 - PRELOAD_GATHER_MAX, calls + 5000);
	process_ends();
	assert_int_equal(proc->malloc_calls, calls + 5000);
	preload_zone_free(preload_zone_alloc(5000, 0), NULL); /* after the end: at once */
	assert_int_equal(proc->malloc_calls, calls + 5001);
	ending = false;
}

static void test_arena(void **state_)
{
	static const size_t aligns[] = {0, 1, 16, 64, 4096};
	size_t i, n;
	char *p, *last = NULL;

	(void)state_;
	for (i = 0; i < sizeof(aligns) / sizeof(aligns[0]); i++) {
		p = preload_arena_alloc(aligns[i], 100 + i);
		assert_non_null(p);
		assert_true(preload_arena_owns(p));
		assert_int_equal(preload_arena_size(p), 100 + i);
		assert_int_equal((uintptr_t)p % (aligns[i] < 16 ? 16 : aligns[i]), 0);
		assert_true(!last || p >= last + 100);
		for (n = 0; n < 100 + i; n++)
			assert_int_equal(p[n], 0);
		memset(p, 0xff, 100 + i);
		last = p;
	}
	assert_false(preload_arena_owns(&i));
	assert_null(preload_arena_alloc(0, SIZE_MAX));
	assert_null(preload_arena_alloc(1 << 20, 1));
	for (n = 0; preload_arena_alloc(0, 1000); n++)
		assert_true(n < ARENA_SIZE / 1000);
	errno = 0;
	assert_null(preload_arena_alloc(0, 2000));
	assert_int_equal(errno, ENOMEM);
}

static void *other_malloc(size_t size)
{
	(void)size;
	return NULL;
}

static void other_free(void *p)
{
	(void)p;
}

/* While the next malloc is being looked up, its own calls must find no half-filled table. */
static void test_next(void **state_)
{
	const struct preload_next *n;

	(void)state_;
	preload_next_found = false;
	looking = true;
	assert_null(preload_next());
	looking = false;
	n = preload_next();
	assert_non_null(n);
	assert_non_null(n->malloc);
	assert_non_null(n->usable_size);
	assert_non_null(n->pvalloc);
	assert_true(preload_next_is_bound(malloc, free));
	assert_false(preload_next_is_bound(malloc, other_free));
	assert_false(preload_next_is_bound(other_malloc, free));
}

static void free_that_loses_errno(void *p)
{
	(void)p;
	errno = 99;
}

/* free() keeps errno, if need be by a function in between. */
static void test_next_keeps_errno(void **state_)
{
	void (*f)(void *) = free_that_loses_errno;
	void *address;

	(void)state_;
	errno = 7;
	preload_next()->free(malloc(100));
	assert_int_equal(errno, 7);
	memcpy(&address, &f, sizeof(address));
	address = free_that_keeps_errno(address);
	memcpy(&f, &address, sizeof(f));
	f(NULL);
	assert_int_equal(errno, 7);
	assert_null(free_that_keeps_errno(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before_the_first_block),
		cmocka_unit_test(test_settings),
		cmocka_unit_test(test_before_the_environment),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_tails),
		cmocka_unit_test(test_growth),
		cmocka_unit_test(test_wrong_frees),
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_next),
		cmocka_unit_test(test_next_keeps_errno),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
