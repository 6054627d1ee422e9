/* SPDX-License-Identifier: MIT */
/*
 * Our side of malloc and the arena, without replacing malloc: lengths, tails, counters, settings.
 * The two files are compiled into the test; it links the allocator itself.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <cmocka.h>

#include "allocator/preload_fast.h"
#include "allocator/preload_next.c"
#include "allocator/preload_zone.c"

void *(*const preload_our_malloc)(size_t) = malloc;
void (*const preload_our_free)(void *) = free;

static uint64_t in_use(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	assert_int_equal(pcpa_get_stats(&s), 0);
	return s.pages_in_use;
}

static void read_settings(const char *min, const char *max)
{
	preload_zone_forget();
	unsetenv("PCPALLOC_MIN_SIZE");
	unsetenv("PCPALLOC_MAX_SIZE");
	if (min)
		setenv("PCPALLOC_MIN_SIZE", min, 1);
	if (max)
		setenv("PCPALLOC_MAX_SIZE", max, 1);
	preload_zone_setup();
}

static void test_sizes_as_text(void **state_)
{
	static const struct {
		const char *text;
		size_t value;
	} good[] = {{"0", 0},	     {"4096", 4096},	 {"64k", 65536},	 {"64K", 65536},
		    {"4m", 4194304}, {"1g", 1073741824}, {"1t", (size_t)1 << 40}};
	static const char *const wrong[] = {"",
					    "k",
					    "-1",
					    "4096x",
					    "4kk",
					    " 4",
					    "0x10",
					    "1.5k",
					    "4 k",
					    "99999999999999999999",
					    "99999999999999999t"};
	size_t v, i;

	(void)state_;
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(preload_parse_size(good[i].text, &v));
		assert_int_equal(v, good[i].value);
	}
	v = 5;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_false(preload_parse_size(wrong[i], &v));
	assert_int_equal(v, 5);
}

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

/* Pages that a request of n pages gets. */
static size_t given(size_t n)
{
	static const size_t small[] = {0, 1, 2, 4, 4, 8, 8, 8, 8};

	return n < 9 ? small[n] : n;
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

/* ---- the fast path ---- */

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

static void test_fast_sizes(void **state_)
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
static void test_fast_refuses(void **state_)
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
static void test_fast_guess(void **state_)
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
static void test_fast_thread_that_only_frees(void **state_)
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

/* Calls, bytes and pages are exact once the threads have ended, whichever path served. */
static void test_fast_counters(void **state_)
{
	struct pcptune_proc_block *proc;
	uint64_t calls, bytes, pages, before;
	unsigned fast[4] = {0}, i;
	pthread_t t[4];

	(void)state_;
	need_fast_path();
	proc = pcpa_proc();
	before = in_use();
	add_gathered(&mine);
	calls = proc->malloc_calls;
	bytes = proc->malloc_bytes;
	pages = proc->malloc_pages;
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, fast_calls, &fast[i]), 0);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
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
static void test_fast_storm(void **state_)
{
	struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	struct pcptune_proc_block *proc;
	uint64_t calls, bytes, before;
	unsigned fast[4] = {0}, i;
	pthread_t t[4];

	(void)state_;
	need_fast_path();
	proc = pcpa_proc();
	before = in_use();
	add_gathered(&mine);
	calls = proc->malloc_calls;
	bytes = proc->malloc_bytes;
	signal(SIGALRM, on_alarm);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, storm_calls, &fast[i]), 0);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
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
		cmocka_unit_test(test_sizes_as_text),
		cmocka_unit_test(test_settings),
		cmocka_unit_test(test_before_the_environment),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_tails),
		cmocka_unit_test(test_growth),
		cmocka_unit_test(test_wrong_frees),
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_fast_sizes),
		cmocka_unit_test(test_fast_refuses),
		cmocka_unit_test(test_fast_guess),
		cmocka_unit_test(test_fast_thread_that_only_frees),
		cmocka_unit_test(test_fast_counters),
		cmocka_unit_test(test_fast_storm),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_next),
		cmocka_unit_test(test_next_keeps_errno),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
