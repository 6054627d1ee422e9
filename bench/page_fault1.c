/* SPDX-License-Identifier: MIT */
/*
 * page_fault1: each thread takes 128 MiB as single pages, writes to each, gives all back, again
 * and again. The pattern is that of will-it-scale's test of the same name, which the kernel's list
 * tuning was measured with: a list shorter than the burst sends every page to the zone.
 *
 * --api pcpa uses pcpa_alloc(); --api malloc uses malloc(4096), so that any allocator can be
 * measured, also one that was preloaded. The counters come from pcpa_get_stats() and are split at
 * --settle seconds after the start, so that what a tuner needs to find its values is not mixed
 * with what it reaches. With --iterations each thread does so many instead, so that runs of one
 * kind ask for the same pages however fast they are.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <pcpalloc.h>

struct options {
	unsigned threads;
	unsigned mib;
	uint64_t iterations; /* of each thread; 0: as many as there is time for */
	double seconds;
	double settle;
	bool use_malloc;
	bool json;
	bool pin;
};

struct worker {
	pthread_t thread;
	unsigned number;
	const struct options *opt;
	_Atomic uint64_t iterations;
	_Atomic uint64_t pages;
	bool failed;
} __attribute__((aligned(128)));

static _Atomic bool stop;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *take(const struct options *opt)
{
	return opt->use_malloc ? malloc(PCPA_PAGE_SIZE) : pcpa_alloc(0);
}

static void give(const struct options *opt, void *p)
{
	if (opt->use_malloc)
		free(p);
	else
		pcpa_free(p, 0);
}

/* One burst; false when memory ran out. */
static bool cycle(struct worker *w, void **block, size_t n)
{
	size_t got = 0, i;

	for (; got < n; got++) {
		block[got] = take(w->opt);
		if (!block[got])
			break;
		*(volatile char *)block[got] = 1;
	}
	for (i = 0; i < got; i++)
		give(w->opt, block[i]);
	atomic_fetch_add_explicit(&w->pages, got, memory_order_relaxed);
	atomic_fetch_add_explicit(&w->iterations, 1, memory_order_relaxed);
	return got == n;
}

/* To the i-th of the CPUs that we may use, round and round. */
static void pin(unsigned i)
{
	cpu_set_t may, one;
	int n;

	if (sched_getaffinity(0, sizeof(may), &may) || !(n = CPU_COUNT(&may)))
		return;
	CPU_ZERO(&one);
	for (int cpu = 0, k = (int)(i % (unsigned)n); cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &may) && !k--)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	size_t n = (size_t)w->opt->mib << 8;
	void **block = calloc(n, sizeof(*block));

	if (w->opt->pin)
		pin(w->number);
	while (block && !atomic_load_explicit(&stop, memory_order_relaxed)) {
		if (!cycle(w, block, n)) {
			w->failed = true;
			break;
		}
		if (w->opt->iterations ==
		    atomic_load_explicit(&w->iterations, memory_order_relaxed))
			break;
	}
	if (!block)
		w->failed = true;
	free(block);
	return NULL;
}

struct reading {
	double t;
	uint64_t iterations, pages;
	struct pcpa_stats s;
};

static void read_all(const struct options *opt, struct worker *w, struct reading *r)
{
	unsigned i;

	memset(r, 0, sizeof(*r));
	r->t = now_s();
	for (i = 0; i < opt->threads; i++) {
		r->iterations += atomic_load_explicit(&w[i].iterations, memory_order_relaxed);
		r->pages += atomic_load_explicit(&w[i].pages, memory_order_relaxed);
	}
	r->s.size = sizeof(r->s);
	if (opt->use_malloc || pcpa_get_stats(&r->s))
		memset(&r->s, 0, sizeof(r->s));
}

static void print_part(const char *name, const struct options *opt, const struct reading *a,
		       const struct reading *b)
{
	double dt = b->t - a->t;
	uint64_t pages = b->pages - a->pages;
	uint64_t alloc = b->s.alloc_pages - a->s.alloc_pages;
	uint64_t zone = b->s.alloc_zone - a->s.alloc_zone;
	uint64_t locks = b->s.lock_taken - a->s.lock_taken;
	uint64_t contended = b->s.lock_contended - a->s.lock_contended;
	double per_1000 = alloc ? 1000.0 * (double)zone / (double)alloc : 0;

	if (opt->json) {
		printf("\"%s\":{\"seconds\":%.3f,\"iterations\":%llu,\"pages\":%llu,"
		       "\"pages_per_s\":%.0f",
		       name, dt, (unsigned long long)(b->iterations - a->iterations),
		       (unsigned long long)pages, (double)pages / dt);
		if (!opt->use_malloc)
			printf(",\"alloc_zone\":%llu,\"alloc_zone_per_1000\":%.2f,"
			       "\"lock_takes\":%llu,\"lock_contended\":%llu,\"pages_held\":%llu",
			       (unsigned long long)zone, per_1000, (unsigned long long)locks,
			       (unsigned long long)contended,
			       (unsigned long long)b->s.pages_on_lists);
		printf("}");
		return;
	}
	printf("%-7s %6.2f s  %6llu iterations  %10llu pages  %9.0f pages/s", name, dt,
	       (unsigned long long)(b->iterations - a->iterations), (unsigned long long)pages,
	       (double)pages / dt);
	if (!opt->use_malloc)
		printf("  alloc_zone/1000 %7.2f  lock takes %llu  contended %llu  held %llu pages",
		       per_1000, (unsigned long long)locks, (unsigned long long)contended,
		       (unsigned long long)b->s.pages_on_lists);
	printf("\n");
}

static void usage(FILE *out)
{
	fprintf(out, "usage: page_fault1 [options]\n"
		     "  -t, --threads N    threads, 1 to 1024 (2)\n"
		     "  -m, --mib N        MiB a thread takes in each iteration, 1 to 4096 (128)\n"
		     "  -s, --seconds S    how long (5)\n"
		     "  -i, --iterations N so many for each thread, however long that takes\n"
		     "  -w, --settle S     counters are split after S seconds (2)\n"
		     "  -a, --api NAME     pcpa or malloc (pcpa)\n"
		     "  -p, --pin          each thread stays on a CPU\n"
		     "  -j, --json         one JSON object\n");
}

static bool number(const char *s, double lo, double hi, double *ret)
{
	char *end;
	double v = strtod(s, &end);

	if (end == s || *end || !(v >= lo && v <= hi)) {
		fprintf(stderr, "page_fault1: %s: expected a number from %g to %g\n", s, lo, hi);
		return false;
	}
	*ret = v;
	return true;
}

/* 0, or the exit status + 1 */
static int parse(int argc, char **argv, struct options *opt)
{
	static const struct option longs[] = {
		{"threads", 1, NULL, 't'}, {"mib", 1, NULL, 'm'},	 {"seconds", 1, NULL, 's'},
		{"settle", 1, NULL, 'w'},  {"api", 1, NULL, 'a'},	 {"json", 0, NULL, 'j'},
		{"help", 0, NULL, 'h'},	   {"iterations", 1, NULL, 'i'}, {"pin", 0, NULL, 'p'},
		{NULL, 0, NULL, 0},
	};
	double v;
	int c;

	while ((c = getopt_long(argc, argv, "t:m:s:w:a:i:pjh", longs, NULL)) != -1) {
		bool ok = true;

		if (c == 't' && (ok = number(optarg, 1, 1024, &v)))
			opt->threads = (unsigned)v;
		else if (c == 'm' && (ok = number(optarg, 1, 4096, &v)))
			opt->mib = (unsigned)v;
		else if (c == 'i' && (ok = number(optarg, 1, 1e9, &v)))
			opt->iterations = (uint64_t)v;
		else if (c == 's')
			ok = number(optarg, 0.01, 86400, &opt->seconds);
		else if (c == 'w')
			ok = number(optarg, 0, 86400, &opt->settle);
		else if (c == 'a' && (!strcmp(optarg, "malloc") || !strcmp(optarg, "pcpa")))
			opt->use_malloc = optarg[0] == 'm';
		else if (c == 'j')
			opt->json = true;
		else if (c == 'p')
			opt->pin = true;
		else if (c == 'h') {
			usage(stdout);
			return 1;
		} else if (ok) {
			usage(stderr);
			return 3;
		}
		if (!ok)
			return 3;
	}
	if (optind < argc) {
		fprintf(stderr, "page_fault1: %s: there are options only; see --help\n",
			argv[optind]);
		return 3;
	}
	if (opt->settle >= opt->seconds)
		opt->settle = opt->seconds / 2;
	return 0;
}

static void sleep_s(double s)
{
	struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

int main(int argc, char **argv)
{
	struct options opt = {2, 128, 0, 5, 2, false, false, false};
	struct reading r0, r1, r2;
	struct worker *w;
	bool failed = false;
	unsigned i;
	int e = parse(argc, argv, &opt);

	if (e)
		return e - 1;
	w = aligned_alloc(128, opt.threads * sizeof(*w));
	if (!w)
		return 1;
	memset(w, 0, opt.threads * sizeof(*w));
	read_all(&opt, w, &r0);
	for (i = 0; i < opt.threads; i++) {
		w[i].opt = &opt;
		w[i].number = i;
		if (pthread_create(&w[i].thread, NULL, worker_main, &w[i])) {
			fprintf(stderr, "page_fault1: can not start thread %u\n", i);
			return 1;
		}
	}
	if (opt.iterations)
		opt.settle = opt.seconds = 0; /* all of it is the steady part */
	sleep_s(opt.settle);
	read_all(&opt, w, &r1);
	sleep_s(opt.seconds - opt.settle);
	atomic_store(&stop, !opt.iterations);
	for (i = 0; i < opt.threads; i++) {
		pthread_join(w[i].thread, NULL);
		failed |= w[i].failed;
	}
	read_all(&opt, w, &r2);
	if (opt.json)
		printf("{\"api\":\"%s\",\"threads\":%u,\"mib\":%u,",
		       opt.use_malloc ? "malloc" : "pcpa", opt.threads, opt.mib);
	print_part("settle", &opt, &r0, &r1);
	if (opt.json)
		printf(",");
	print_part("steady", &opt, &r1, &r2);
	if (opt.json)
		printf(",");
	print_part("whole", &opt, &r0, &r2);
	if (opt.json)
		printf("}\n");
	if (failed)
		fprintf(stderr, "page_fault1: memory ran out before the end\n");
	free(w);
	return failed;
}
