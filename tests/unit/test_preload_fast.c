/* SPDX-License-Identifier: MIT */
/*
 * malloc and free by a section: which sizes, what is refused, what a thread guesses, that each call
 * is counted once, also where signals abort sections all the time or blocks go from thread to
 * thread. Where a section does not serve, the slow path does, as in malloc().
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "tests/unit/preload_parts.h"

/* Opened by the first block, if this build and system have sections. */
static void need_fast_path(void)
{
	read_settings(NULL, NULL);
	preload_zone_free(preload_zone_alloc(4096, 0), NULL);
	if (!pcpa_fast_cpus())
		skip();
	assert_true(pcpa_fast.preload.sizes);
}

/* A section may be aborted, a list empty or full: the slow path serves then, as in malloc(). */
static void *fast_alloc(size_t size, unsigned *fast)
{
	void *p;

	if (!preload_fast_alloc(size, &p))
		return preload_zone_alloc(size, 0);
	++*fast;
	return p;
}

static void fast_free(void *p, unsigned *fast)
{
	if (preload_fast_free(p))
		++*fast;
	else
		preload_zone_free(p, NULL);
}

static void test_sizes(void **state_)
{
	static const size_t none[] = {0, 1, 4095, 32769, PCPA_MAX_EXACT, SIZE_MAX - 1, SIZE_MAX};
	uint64_t before;
	size_t size, i;
	unsigned fast = 0, n = 0;
	void *p;

	(void)state_;
	need_fast_path();
	before = in_use();
	for (size = 4096; size <= 32768;
	     size += size % 4096 == 4095 || size % 4096 == 0 ? 1 : 1365) {
		for (i = 0; i < 20; i++, n++) {
			p = fast_alloc(size, &fast);
			assert_int_equal((uintptr_t)p % 4096, 0);
			assert_int_equal(preload_zone_size(p), given((size + 4095) / 4096) * 4096);
			assert_int_equal(in_use(), before + given((size + 4095) / 4096));
			fast_free(p, &fast);
			assert_int_equal(in_use(), before);
		}
	}
	assert_in_range(fast, n, 2 * n);
	for (i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_false(preload_fast_alloc(none[i], &p));
	read_settings("5000", "9000");
	preload_zone_free(preload_zone_alloc(5000, 0), NULL);
	assert_false(preload_fast_alloc(4999, &p));
	assert_false(preload_fast_alloc(9001, &p));
	for (fast = 0, i = 0; i < 20; i++)
		fast_free(fast_alloc(i % 2 ? 5000 : 9000, &fast), &fast);
	assert_in_range(fast, 20, 40);
	read_settings("64k", "4m");
	preload_zone_free(preload_zone_alloc(65536, 0), NULL);
	assert_false(preload_fast_alloc(4096, &p));
	assert_false(preload_fast_alloc(32768, &p));
	read_settings(NULL, NULL);
}

/* What is no block of a list is left alone by the fast path, at every page of it. */
static void test_refuses(void **state_)
{
	static const size_t rows[] = {9, 10, 12, 15, 16, 25, 100, 1023, 1024};
	char other[4096], *p;
	size_t i, at, keep;

	(void)state_;
	need_fast_path();
	assert_false(preload_fast_free(NULL));
	assert_false(preload_fast_free(other));
	assert_false(preload_fast_free((void *)UINTPTR_MAX));
	p = preload_zone_alloc(4 * 4096, 0);
	for (at = 8; at < 4 * 4096; at += 8)
		assert_false(preload_fast_free(p + at));
	preload_zone_free(p, NULL);
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (keep = rows[i]; keep; keep /= 2) {
			p = preload_zone_alloc(rows[i] * 4096, 0);
			assert_true(preload_zone_resize(p, keep * 4096));
			for (at = keep > 8 ? 0 : 1; at < preload_zone_size(p) / 4096; at++)
				assert_false(preload_fast_free(p + at * 4096));
			preload_zone_free(p, NULL);
		}
	}
	assert_int_equal(pcpa_audit(NULL), 0);
}

/* What a thread asked for lately is what free() expects; a wrong guess is served all the same. */
static void test_guess(void **state_)
{
	static const size_t sizes[] = {4096, 8192, 16384, 32768};
	unsigned fast = 0, i, order;
	uint64_t before;

	(void)state_;
	need_fast_path();
	before = in_use();
	for (i = 0; i < 3000; i++)
		fast_free(fast_alloc(4096, &fast), &fast);
	for (order = 0; order < 4; order++) {
		for (i = 0; i < 3 * PRELOAD_GATHER_MAX; i++)
			fast_free(fast_alloc(sizes[order] - 10 * order, &fast), &fast);
		assert_int_equal(preload_mine.guess, PRELOAD_GUESS + order);
	}
	/* the guess is 3 */
	fast_free(fast_alloc(4096, &fast), &fast);
	assert_int_equal(preload_mine.guess, PRELOAD_NO_GUESS);
	for (i = 0; i < 3 * PRELOAD_GATHER_MAX; i++)
		fast_free(fast_alloc(sizes[i % 4], &fast), &fast);
	assert_int_equal(preload_mine.guess, PRELOAD_NO_GUESS);
	assert_int_equal(in_use(), before);
	assert_int_equal(pcpa_audit(NULL), 0);
}

static void *only_frees(void *arg)
{
	void **blocks = arg;
	unsigned fast = 0;

	/* nothing is known of a new thread */
	assert_int_equal(preload_mine.guess, PRELOAD_NO_SECTIONS);
	for (unsigned i = 0; i < 100; i++)
		fast_free(blocks[i], &fast);
	assert_in_range(fast, 50, 99);
	return NULL;
}

/* Few blocks of high orders, since the rules drain when many come in a row. */
static void test_thread_that_only_frees(void **state_)
{
	void *blocks[100];
	uint64_t before;
	pthread_t t;

	(void)state_;
	need_fast_path();
	before = in_use();
	for (unsigned i = 0; i < 100; i++)
		blocks[i] = preload_zone_alloc(4096u << (i % 8 == 7), 0);
	assert_int_equal(pthread_create(&t, NULL, only_frees, blocks), 0);
	pthread_join(t, NULL);
	assert_int_equal(in_use(), before);
}

static void *fast_calls(void *arg)
{
	static const size_t sizes[] = {4096, 5000, 16384, 20000};
	unsigned *fast = arg, i;

	for (i = 0; i < 4000; i++)
		fast_free(fast_alloc(sizes[i % 4], fast), fast);
	return NULL;
}

/* In four threads, until all have ended. */
static void run_four(void *(*calls)(void *), unsigned fast[4])
{
	pthread_t t[4];

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, calls, &fast[i]), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* Calls, bytes and pages are exact once the threads have ended, whichever path served. */
static void test_counters(void **state_)
{
	struct pcptune_proc_block *proc;
	uint64_t calls, bytes, pages, before;
	unsigned fast[4] = {0}, i;

	(void)state_;
	need_fast_path();
	proc = pcpa_proc();
	before = in_use();
	add_gathered(&mine);
	calls = proc->malloc_calls;
	bytes = proc->malloc_bytes;
	pages = proc->malloc_pages;
	run_four(fast_calls, fast);
	for (i = 0; i < 4; i++)
		assert_in_range(fast[i], 4000, 8000);
	assert_int_equal(proc->malloc_calls, calls + 16000);
	assert_int_equal(proc->malloc_bytes, bytes + 4000 * (4096 + 5000 + 16384 + 20000));
	assert_int_equal(proc->malloc_pages, pages + 4000 * (1 + 2 + 4 + 8));
	assert_int_equal(in_use(), before);
	/* after the end of the process every call is added at once, by the slow path */
	process_ends();
	fast[0] = 0;
	for (i = 0; i < 100; i++)
		fast_free(fast_alloc(4096, &fast[0]), &fast[1]);
	assert_int_equal(fast[0], 0);
	assert_int_equal(proc->malloc_calls, calls + 16100);
	ending = false;
}

static volatile sig_atomic_t n_alarms;

static void on_alarm(int signal)
{
	(void)signal;
	n_alarms++;
}

static void *storm_calls(void *arg)
{
	for (unsigned i = 0; i < 25; i++)
		fast_calls(arg);
	return NULL;
}

/* Signals abort sections all the time: nothing is lost, nothing counted twice. */
static void test_storm(void **state_)
{
	struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	struct pcptune_proc_block *proc;
	uint64_t calls, bytes, before;
	unsigned fast[4] = {0};

	(void)state_;
	need_fast_path();
	proc = pcpa_proc();
	before = in_use();
	add_gathered(&mine);
	calls = proc->malloc_calls;
	bytes = proc->malloc_bytes;
	signal(SIGALRM, on_alarm);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	run_four(storm_calls, fast);
	while (n_alarms < 3) {
		fast_calls(&fast[0]);
		calls += 4000;
		bytes += 1000 * (4096 + 5000 + 16384 + 20000);
	}
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	add_gathered(&mine);
	assert_int_equal(proc->malloc_calls, calls + 4 * 25 * 4000);
	assert_int_equal(proc->malloc_bytes,
			 bytes + (uint64_t)4 * 25 * 1000 * (4096 + 5000 + 16384 + 20000));
	assert_int_equal(in_use(), before);
	assert_int_equal(pcpa_audit(NULL), 0);
}

/* ---- blocks that go from thread to thread, by whatever way ---- */

#define N_SLOTS	 32
#define N_ROUNDS 4000

static void *slots[N_SLOTS]; /* blocks on their way between threads */

/* First and last word of every page carry the number of pages that the block was filled for. */
static void fill(char *p, size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++) {
		*(size_t *)(void *)(p + i * 4096) = pages;
		*(size_t *)(void *)(p + i * 4096 + 4088) = pages;
	}
}

static bool filled(const char *p)
{
	size_t pages = *(const size_t *)(const void *)p, i;

	for (i = 0; i < pages; i++)
		if (*(const size_t *)(const void *)(p + i * 4096) != pages ||
		    *(const size_t *)(const void *)(p + i * 4096 + 4088) != pages)
			return false;
	return pages * 4096 <= preload_zone_size(p);
}

static void *random_calls(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg, i;

	for (i = 0; i < N_ROUNDS; i++) {
		size_t pages = 1 + (size_t)rand_r(&seed) % 40;
		unsigned fast = 0, how = (unsigned)rand_r(&seed) % 4;
		char *p = how == 0   ? preload_zone_alloc_growing(pages * 4096)
			  : how == 1 ? preload_zone_alloc(pages * 4096, 0)
				     : fast_alloc(pages * 4096, &fast);

		if (!p)
			return arg;
		if (rand_r(&seed) % 2) {
			pages = 1 + (size_t)rand_r(&seed) % pages;
			preload_zone_resize(p, pages * 4096);
		}
		fill(p, pages);
		p = __atomic_exchange_n(&slots[(unsigned)rand_r(&seed) % N_SLOTS], p,
					__ATOMIC_ACQ_REL);
		if (p && !filled(p))
			return arg;
		if (p)
			fast_free(p, &fast);
	}
	return NULL;
}

/* Blocks are cut and freed by threads that did not allocate them; nobody's pages are touched. */
static void test_threads(void **state_)
{
	uint64_t before = in_use();
	pthread_t t[4];
	uintptr_t i;
	void *r;

	(void)state_;
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, random_calls, (void *)(i + 1)), 0);
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &r);
		assert_null(r);
	}
	for (i = 0; i < N_SLOTS; i++) {
		if (!slots[i])
			continue;
		assert_true(filled(slots[i]));
		preload_zone_free(slots[i], NULL);
	}
	assert_int_equal(in_use(), before);
	assert_int_equal(pcpa_audit(NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),	 cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_guess),	 cmocka_unit_test(test_thread_that_only_frees),
		cmocka_unit_test(test_counters), cmocka_unit_test(test_storm),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
