/* SPDX-License-Identifier: MIT */
/*
 * burst_mix: threads that take and give back bursts, each of a size of its own.
 *
 * Sizes go from 40 to 20,000 pages in even steps of the logarithm, so that every high has threads
 * that stay below it and threads that swing through it. Each burst is drawn between half and one
 * and a half times that size; one in two is given back in part only, and the rest with a later one.
 * Of each four threads one has blocks of 1, 2, 4 and 8 pages mixed, and one goes the other way for
 * one block in ten.
 *
 * With PCPALLOC_CPUS set to the number of threads each has the lists of a virtual CPU to itself
 * (threads make their first call in turn, so it is always the same one), and what it does follows
 * from the seed alone: two runs differ by nothing but the time. Pages are not written to, so large
 * bursts cost no memory.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <pcpalloc.h>

#define SMALLEST 40.0
#define LARGEST	 20000.0
#define THREADS	 64u

enum { ORDERS_MIXED = 1, OTHER_WAY = 3 }; /* number of the thread, modulo 4 */

struct block {
	void *at;
	unsigned order;
};

struct worker {
	pthread_t thread;
	unsigned number, kind;
	uint64_t random, pages; /* still to allocate */
	struct block *held;
	size_t n, room;
	bool failed;
};

static unsigned n_threads = THREADS;
static _Atomic unsigned turn; /* whose first call is next */

/* Marsaglia's xorshift: the same numbers everywhere */
static uint64_t draw(struct worker *w, uint64_t below)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % below;
}

static unsigned draw_order(struct worker *w)
{
	uint64_t r = draw(w, 100);

	if (w->kind != ORDERS_MIXED || r < 80)
		return 0;
	return r < 90 ? 1 : r < 96 ? 2 : 3;
}

static bool take(struct worker *w)
{
	unsigned order = draw_order(w);
	void *at = w->n < w->room ? pcpa_alloc(order) : NULL;

	if (!at)
		return false;
	w->held[w->n++] = (struct block){at, order};
	w->pages -= w->pages < UINT64_C(1) << order ? w->pages : UINT64_C(1) << order;
	return true;
}

static void give(struct worker *w)
{
	if (!w->n)
		return;
	w->n--;
	pcpa_free(w->held[w->n].at, w->held[w->n].order);
}

static bool burst(struct worker *w, uint64_t blocks, bool up)
{
	for (uint64_t i = 0; i < blocks; i++) {
		bool back = w->kind == OTHER_WAY && !draw(w, 10);

		if (up == back)
			give(w);
		else if (!take(w))
			return false;
	}
	return true;
}

/* The size of a thread's bursts: SMALLEST for the first, LARGEST for the last. */
static uint64_t size_of(unsigned number)
{
	double part = n_threads > 1 ? (double)number / (n_threads - 1) : 0;

	return (uint64_t)(SMALLEST * pow(LARGEST / SMALLEST, part));
}

static bool work(struct worker *w)
{
	uint64_t size = size_of(w->number);

	while (w->pages) {
		uint64_t n = size / 2 + draw(w, size);

		n = n < w->room - w->n ? n : w->room - w->n;
		n = n < w->pages ? n : w->pages;
		if (!burst(w, n, true))
			return false;
		burst(w, draw(w, 2) ? w->n : draw(w, w->n + 1), false);
	}
	while (w->n)
		give(w);
	return true;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	while (atomic_load(&turn) != w->number)
		sched_yield();
	w->failed = !take(w);
	atomic_store(&turn, w->number + 1);
	while (atomic_load(&turn) != n_threads)
		sched_yield();
	w->failed = w->failed || !work(w);
	return NULL;
}

static bool begin(struct worker *w, unsigned number, uint64_t pages, uint64_t seed)
{
	w->number = number;
	w->kind = number % 4;
	w->pages = pages;
	w->random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
		    (number + 1) * UINT64_C(0xbf58476d1ce4e5b9);
	w->room = 4 * size_of(number);
	w->held = malloc(w->room * sizeof(*w->held));
	if (!w->held || pthread_create(&w->thread, NULL, worker_main, w)) {
		fprintf(stderr, "burst_mix: can not start thread %u\n", number);
		return false;
	}
	return true;
}

static bool number(const char *s, uint64_t least, uint64_t most, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(s, &end, 10);
	return !errno && end != s && !*end && *s != '-' && *ret >= least && *ret <= most;
}

int main(int argc, char **argv)
{
	uint64_t threads = THREADS, pages = 300000, seed = 1;
	struct worker *w;
	bool failed = false;

	if (argc > 4 || (argc > 1 && !number(argv[1], 1, 1024, &threads)) ||
	    (argc > 2 && !number(argv[2], 1, UINT32_MAX, &pages)) ||
	    (argc > 3 && !number(argv[3], 0, UINT32_MAX, &seed))) {
		fprintf(stderr,
			"usage: burst_mix [threads (64) [pages that each allocates (300000) "
			"[seed (1)]]]\n");
		return 2;
	}
	n_threads = (unsigned)threads;
	w = calloc(n_threads, sizeof(*w));
	if (!w)
		return 1;
	for (unsigned i = 0; i < n_threads; i++)
		if (!begin(&w[i], i, pages, seed))
			return 1;
	for (unsigned i = 0; i < n_threads; i++) {
		pthread_join(w[i].thread, NULL);
		failed |= w[i].failed;
		free(w[i].held);
	}
	free(w);
	if (failed)
		fprintf(stderr, "burst_mix: memory ran out before the end\n");
	return failed;
}
