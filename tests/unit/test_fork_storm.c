/* SPDX-License-Identifier: MIT */
/*
 * fork(), thousands of times, while other threads allocate and free on every list and none.
 *
 * Each child has to come to its end, with its parent's blocks as they were, lists and numbers in
 * order, and its own allocations served. The parent's threads must not notice.
 *
 * FORK_STORM=N sets the number of forks in each mode; default 1000, under sanitizers 60.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "allocator/heap.h"
#include "tests/unit/alloc_child.h"

#define THREADS 8
#define KEPT	32
#define MARK	0x5a
#define PATIENT 60 /* s, for a child on a machine with much to do */

/* TSan refuses threads in the child of a threaded process by default; it can follow them well. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static unsigned forks;
static int stop;

/* Keeps some blocks of each order, with its mark in them, so that a child finds them half-way. */
static void *storm(void *arg)
{
	uint64_t x = (uintptr_t)arg * UINT64_C(0x9e3779b97f4a7c15);
	unsigned char *kept[KEPT] = {NULL};

	for (unsigned n = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++) {
		unsigned i, order;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		i = (unsigned)(x >> 33) % KEPT;
		order = i % 6;
		if (!kept[i]) {
			kept[i] = pcpa_alloc(order);
			CHECK(kept[i]);
			memset(kept[i], (int)i + 1, 64);
			continue;
		}
		for (unsigned k = 0; k < 64; k++)
			CHECK(kept[i][k] == i + 1);
		pcpa_free(kept[i], order);
		kept[i] = NULL;
		/* eight threads that never rest leave a forking one no time on two CPUs */
		if (n % 512 == 0)
			sched_yield();
	}
	for (unsigned i = 0; i < KEPT; i++)
		pcpa_free(kept[i], i % 6);
	return NULL;
}

static void in_the_child(unsigned char *block, unsigned n)
{
	struct pcpa_stats before = {.size = sizeof(before)}, s = {.size = sizeof(s)};
	void *p[PCPA_MAX_ORDER];

	alarm(PATIENT);
	CHECK(pcpa_get_stats(&before) == 0 && before.alloc_pages == 0 && before.free_pages == 0);
	for (int round = 0; round < 3; round++) {
		for (unsigned order = 0; order < PCPA_MAX_ORDER; order++) {
			p[order] = pcpa_alloc(order);
			CHECK(p[order] && p[order] != block);
			memset(p[order], 1, PCPA_PAGE_SIZE);
		}
		for (unsigned order = 0; order < PCPA_MAX_ORDER; order++)
			pcpa_free(p[order], order);
	}
	for (unsigned i = 0; i < PCPA_PAGE_SIZE; i++)
		CHECK(block[i] == MARK);
	pcpa_free(block, 0);
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.alloc_pages == 3 * 1023 && s.free_pages == s.alloc_pages + 1);
	CHECK(s.pages_in_use == before.pages_in_use - 1);
	if (n % 8 == 0)
		CHECK_AUDIT();
	_exit(0);
}

static void storm_child(void)
{
	unsigned char *block = pcpa_alloc(0);
	struct pcpa_stats s = {.size = sizeof(s)};
	pthread_t threads[THREADS];

	alarm(0);
	CHECK(block);
	memset(block, MARK, PCPA_PAGE_SIZE);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(i + 1)));
	for (unsigned n = 0; n < forks; n++) {
		int status;
		pid_t pid;

		alarm(2 * PATIENT);
		pid = fork();
		if (!pid)
			in_the_child(block, n);
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
		if (status)
			dprintf(2, "child %u: status %#x\n", n, (unsigned)status);
		CHECK(status == 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(block[0] == MARK && block[PCPA_PAGE_SIZE - 1] == MARK);
	pcpa_free(block, 0);
	CHECK_AUDIT();
	CHECK(pcpa_get_stats(&s) == 0 && s.pages_in_use == 0);
	CHECK(pcpa_get(&pcpa_heap.proc->forks) == forks);
}

static void as_it_comes(void **state)
{
	(void)state;
	assert_int_equal(in_child(storm_child, SETTINGS("PCPALLOC_SIZE=256m")), 0);
}

static void locked(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(storm_child, SETTINGS("PCPALLOC_SIZE=256m", "PCPALLOC_MODE=locked")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_it_comes),
		cmocka_unit_test(locked),
	};
	const char *text = getenv("FORK_STORM");

	forks = 1000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	forks = 60;
#endif
	if (text)
		forks = (unsigned)strtoul(text, NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
