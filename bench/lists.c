/* SPDX-License-Identifier: MIT */
/*
 * What the lists cost: a pair of one allocation and one free, by the inline functions, the exported
 * ones, with every free checked, and with lists that are locked, beside the least that a machine
 * can do: bare stacks (bench/peers_stacks.h) with no statistics, no bounds and no checks, for each
 * thread (tls), for each CPU by restartable sequences (bare; called: the same behind a function;
 * shared: behind one of a shared library), and for each CPU under a lock (trylock).
 *
 *   lists [--bulk-free | --track] [ROUNDS]    default 40
 *
 * This program finds the exported functions in the shared library, lists-archive has them linked
 * in. The difference is what a call costs whose target is far away, and which goes by an address in
 * memory: `shared` pays it, too, and is the least that the former can reach; `called` is that of
 * the latter.
 *
 * With --bulk-free the three ways in which a drain can hand its blocks to the zone
 * (PCPALLOC_BULK_FREE) are compared instead, where drains are what counts: with a high so small
 * that lists overflow in every burst. Bursts of 4096 overflow the zone's depot, too, so that blocks
 * are merged and split again. With --track the functions are compared with themselves without the
 * band tracker (PCPALLOC_GRAIN=0).
 *
 * Each variant of each pattern has a process of its own, which lives as long as the comparison and
 * runs a few thousand pairs when it is its turn. The variants of a pattern take turns, so that
 * whatever else the machine does falls on all of them. Times are CPU time of the threads, summed,
 * for each pair (of an exchange: time, for each block); blocks are not touched. Shown are the
 * least, which is what the code costs when nothing disturbs it, and the median over the rounds.
 */
#include <pcpalloc_inline.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/peers_stacks.h"
#include "bench/peers_patterns.h"
#include "bench/shared/stack.h"

#define THREADS_MOST 64u
#define BURST_MOST   4096u
#define ROUNDS_MOST  999

static __attribute__((noinline)) void *called_take(unsigned order)
{
	return rseq_take(order);
}

static __attribute__((noinline)) void called_give(void *p, unsigned order)
{
	rseq_give(p, order);
}

SUBJECT(tls, tls_take, tls_give);
SUBJECT(bare, rseq_take, rseq_give);
SUBJECT(called, called_take, called_give);
SUBJECT(shared, shared_take, shared_give);
SUBJECT(trylock, trylock_take, trylock_give);
SUBJECT(exported, pcpa_alloc, pcpa_free);
SUBJECT(inlined, pcpa_alloc_inline, pcpa_free_inline);

/* ---- what is compared ---- */

enum variant {
	TLS,
	BARE,
	CALLED,
	SHARED,
	TRYLOCK,
	INLINED,
	EXPORTED,
	CHECKED,
	LOCKED,
	TWO_PASS,
	PREFETCH,
	DROP_THROUGH,
	INLINED_ALONE,
	EXPORTED_ALONE,
	LOCKED_ALONE,
	VARIANTS
};

static const struct {
	const char *name;
	const struct units *units;
	const char *setting, *value; /* of the environment; NULL: a bare stack */
	uint32_t mode;		     /* that must come of it */
} variants[VARIANTS] = {
	[TLS] = {"tls", &tls_units, NULL, NULL, 0},
	[BARE] = {"bare", &bare_units, NULL, NULL, 0},
	[CALLED] = {"called", &called_units, NULL, NULL, 0},
	[SHARED] = {"shared", &shared_units, NULL, NULL, 0},
	[TRYLOCK] = {"trylock", &trylock_units, NULL, NULL, 0},
	[INLINED] = {"inline", &inlined_units, "PCPALLOC_MODE", "rseq", 2},
	[EXPORTED] = {"exported", &exported_units, "PCPALLOC_MODE", "rseq", 2},
	[CHECKED] = {"checked", &exported_units, "PCPALLOC_CHECK", "1", 1},
	[LOCKED] = {"locked", &exported_units, "PCPALLOC_MODE", "locked", 1},
	[TWO_PASS] = {"two-pass", &exported_units, "PCPALLOC_BULK_FREE", "two-pass", 2},
	[PREFETCH] = {"prefetch", &exported_units, "PCPALLOC_BULK_FREE", "prefetch", 2},
	[DROP_THROUGH] = {"drop-through", &exported_units, "PCPALLOC_BULK_FREE", "drop-through", 2},
	[INLINED_ALONE] = {"inline, no tracker", &inlined_units, "PCPALLOC_GRAIN", "0", 2},
	[EXPORTED_ALONE] = {"exported, no tracker", &exported_units, "PCPALLOC_GRAIN", "0", 2},
	[LOCKED_ALONE] = {"locked, no tracker", &exported_units, "PCPALLOC_GRAIN", "0", 1},
};

enum kind { PAIRS, BURSTS, MIXED, EXCHANGE };

static const struct shape {
	const char *name;
	enum kind kind;
	unsigned threads, burst;
	unsigned high; /* 0: as it is */
	bool bulk_free;
} shapes[] = {
	{"pair", PAIRS, 1, 1, 0, false},
	{"burst 32", BURSTS, 1, 32, 0, false},
	{"burst 256", BURSTS, 1, 256, 0, false},
	{"burst 4096", BURSTS, 1, 4096, 0, false},
	{"orders 0-3 mixed", MIXED, 1, 1, 0, false},
	{"producer, consumer", EXCHANGE, 2, 1, 0, false},
	{"2 threads", BURSTS, 2, 32, 0, false},
	{"8 threads", BURSTS, 8, 32, 0, false},
	{"64 threads", BURSTS, 64, 32, 0, false},
	{"burst 128, high 64", BURSTS, 1, 128, 64, true},
	{"burst 256, high 200", BURSTS, 1, 256, 200, true},
	{"burst 4096, high 200", BURSTS, 1, 4096, 200, true},
	{"burst 4096, high 2000", BURSTS, 1, 4096, 2000, true},
	{"64 threads, high 64", BURSTS, 64, 128, 64, true},
	{"64 threads, high 200", BURSTS, 64, 256, 200, true},
};
#define SHAPES (sizeof(shapes) / sizeof(*shapes))

/* What a run compares; the first of each is what the others are compared to. */
enum comparison { PEERS, BULK_FREE, TRACK };

static const struct {
	unsigned n;
	enum variant variant[VARIANTS];
} comparisons[] = {
	[PEERS] = {9, {BARE, TLS, CALLED, SHARED, TRYLOCK, INLINED, EXPORTED, CHECKED, LOCKED}},
	[BULK_FREE] = {4, {BARE, TWO_PASS, PREFETCH, DROP_THROUGH}},
	[TRACK] = {7,
		   {BARE, INLINED_ALONE, INLINED, EXPORTED_ALONE, EXPORTED, LOCKED_ALONE, LOCKED}},
};

/* ---- one sample, in the process of its variant ---- */

static struct worker workers[THREADS_MOST];
static const struct shape *shape;
static const struct units *units;
static uint64_t thread_ns[THREADS_MOST];
static pthread_barrier_t barrier;

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(shape->kind == EXCHANGE ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void unit(struct worker *w)
{
	switch (shape->kind) {
	case PAIRS:
		units->pair(w);
		return;
	case BURSTS:
		units->burst[false][false](w);
		return;
	case MIXED:
		units->mixed(w);
		return;
	default:
		units->exchange(w);
	}
}

/* An exchange is one unit in both threads, so that nothing is left in the ring. */
static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t start;

	if (shape->threads > 1)
		pthread_barrier_wait(&barrier);
	start = cpu_ns();
	unit(w);
	thread_ns[w->index] = cpu_ns() - start;
	return NULL;
}

static double sample(void)
{
	pthread_t threads[THREADS_MOST];
	uint64_t ns = 0, pairs = 0;

	for (unsigned i = 0; i < shape->threads; i++)
		workers[i].pairs = 0;
	if (shape->threads == 1)
		work(&workers[0]);
	for (unsigned i = 0; i < shape->threads && shape->threads > 1; i++)
		if (pthread_create(&threads[i], NULL, work, &workers[i]))
			_exit(1);
	for (unsigned i = 0; i < shape->threads; i++) {
		if (shape->threads > 1)
			pthread_join(threads[i], NULL);
		if (workers[i].failed)
			_exit(1);
		ns += thread_ns[i];
		pairs += workers[i].pairs;
	}
	return (double)ns / (double)pairs / (shape->kind == EXCHANGE ? 2 : 1);
}

/* Is this variant to be had here? */
static bool set_up(enum variant v)
{
	struct pcpa_stats stats = {.size = sizeof(stats)};

	units = variants[v].units;
	mix_init();
	pthread_barrier_init(&barrier, NULL, shape->threads);
	for (unsigned i = 0; i < shape->threads; i++) {
		workers[i].index = i;
		workers[i].n = shape->burst;
		workers[i].block = calloc(BURST_MOST, sizeof(void *));
		if (!workers[i].block)
			return false;
	}
	if (v == SHARED)
		return shared_init();
	if (!variants[v].setting)
		return stacks_init() && ((v != BARE && v != CALLED) || !rseq_missing());
	setenv("PCPTUNE_SOCKET", "", 1);
	setenv(variants[v].setting, variants[v].value, 1);
	if (variants[v].mode == 1)
		setenv("PCPALLOC_MODE", "locked", 1);
	pcpa_free(pcpa_alloc(0), 0);
	if (shape->high && pcpa_set_limits(shape->high, shape->high, shape->high, 0))
		return false;
	return !pcpa_get_stats(&stats) && stats.mode == variants[v].mode;
}

/* A byte comes for every sample; end of file is the end. -1: not to be had. */
static void serve(enum variant v, int in, int out)
{
	bool have = set_up(v);
	char turn;

	for (int i = 0; i < 8 && have; i++)
		sample();
	while (read(in, &turn, 1) == 1) {
		double ns = have ? sample() : -1;

		if (write(out, &ns, sizeof(ns)) != sizeof(ns))
			break;
	}
	_exit(0);
}

/* ---- rounds ---- */

struct child {
	pid_t pid;
	int ask, answer;
	double ns[ROUNDS_MOST];
};

static bool start(struct child *c, enum variant v)
{
	int ask[2], answer[2];

	if (pipe(ask))
		return false;
	if (pipe(answer)) {
		close(ask[0]);
		close(ask[1]);
		return false;
	}
	c->pid = fork();
	if (!c->pid) {
		close(ask[1]);
		close(answer[0]);
		serve(v, ask[0], answer[1]);
	}
	close(ask[0]);
	close(answer[1]);
	c->ask = ask[1];
	c->answer = answer[0];
	return c->pid > 0;
}

/* All are told before one is waited for, since those that came later know its pipe, too. */
static bool stop(struct child *children, unsigned n)
{
	bool ok = true;
	int status;

	for (unsigned i = 0; i < n; i++) {
		close(children[i].ask);
		close(children[i].answer);
	}
	for (unsigned i = 0; i < n; i++)
		ok &= waitpid(children[i].pid, &status, 0) == children[i].pid && !status;
	return ok;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Each with its least and its median, and these divided by those of the first. */
static void show(struct child *children, unsigned n, int rounds)
{
	double least0 = children[0].ns[0], median0 = children[0].ns[rounds / 2];

	printf("%-22s", shape->name);
	for (unsigned i = 0; i < n; i++) {
		double least = children[i].ns[0], median = children[i].ns[rounds / 2];

		if (least < 0)
			printf("  %-22s", "-");
		else if (least0 < 0)
			printf("  %6.2f %6.2f %8s", least, median, "");
		else
			printf("  %6.2f %6.2f %4.2f %4.2f", least, median, least / least0,
			       median / median0);
	}
	printf("\n");
	fflush(stdout);
}

static bool run(enum comparison comparison, int rounds)
{
	static struct child children[VARIANTS];
	unsigned n = comparisons[comparison].n;
	bool ok = true;

	for (unsigned i = 0; i < n; i++)
		if (!start(&children[i], comparisons[comparison].variant[i]))
			return false;
	for (int round = 0; round < rounds && ok; round++)
		for (unsigned i = 0; i < n && ok; i++)
			ok = write(children[i].ask, "", 1) == 1 &&
			     read(children[i].answer, &children[i].ns[round], sizeof(double)) ==
				     sizeof(double);
	ok &= stop(children, n);
	for (unsigned i = 0; i < n; i++)
		qsort(children[i].ns, (size_t)rounds, sizeof(double), compare);
	if (ok)
		show(children, n, rounds);
	return ok;
}

int main(int argc, char **argv)
{
	enum comparison what = argc > 1 && !strcmp(argv[1], "--bulk-free") ? BULK_FREE
			       : argc > 1 && !strcmp(argv[1], "--track")   ? TRACK
									   : PEERS;
	int first = 1 + (what != PEERS), rounds = argc > first ? atoi(argv[first]) : 40;

	if (rounds < 1 || rounds > ROUNDS_MOST) {
		fprintf(stderr, "lists: ROUNDS is 1 to %d\n", ROUNDS_MOST);
		return 2;
	}
	printf("ns a pair: least, median, and the ratio of both to the first\n%-22s", "");
	for (unsigned i = 0; i < comparisons[what].n; i++)
		printf("  %-22s", variants[comparisons[what].variant[i]].name);
	printf("\n");
	for (unsigned i = 0; i < SHAPES; i++) {
		shape = &shapes[i];
		if (what == BULK_FREE && !shape->bulk_free)
			continue;
		fflush(stdout);
		if (!run(what, rounds)) {
			fprintf(stderr, "lists: a child failed\n");
			return 1;
		}
	}
	return 0;
}
