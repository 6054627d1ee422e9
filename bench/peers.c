/* SPDX-License-Identifier: MIT */
/*
 * peers: one pattern of allocation, by one allocator, measured once.
 *
 * The allocator is the API of this project, a bare stack, or whatever malloc this process has
 * (bench/peers_choice.h): peers are loaded with LD_PRELOAD by bench/peers_run, which runs this
 * program again and again, interleaved, and compares. What is counted is a pair of calls, one block
 * taken and given back.
 *
 * Patterns of one thread run in the first thread of the process, as in a program without threads.
 * Others start their threads, let each of them warm up, and wait for all of them at a barrier: no
 * thread start, first touch or first refill is in the timing. The cost of a pair is CPU time that
 * was there to be used: time x threads that can run at once / pairs. For the exchange between two
 * threads it is the time a block. Each thread works until the time is over and ends its last unit.
 *
 * One JSON object goes to standard output. Exit status 0; 1 when the measurement failed (memory ran
 * out, the allocator counted less than was asked of it); 2 when this subject is not to be had here,
 * with the reason on standard error; 3 for wrong arguments.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <pcpalloc.h>
#include <pcpalloc_inline.h>

#include "bench/peers_choice.h"

static struct {
	struct worker *worker;
	pthread_barrier_t warm, go;
	uint64_t warm_until, start_ns, until;
	unsigned cpus;
} job;

/* ---- one worker ---- */

static void (*unit_of(const struct pattern *p, const struct units *u))(struct worker *w)
{
	switch (p->kind) {
	case PAIR:
		return u->pair;
	case MIXED:
		return u->mixed;
	case EXCHANGE:
		return u->exchange;
	case LATENCY:
		return u->latency;
	default:
		return u->burst[p->touch][p->fifo];
	}
}

/*
 * Two threads are put on two CPUs where there are two: left alone they often share one, above all
 * when one wakes the other, and what is measured then is another pattern.
 */
static void settle_on_cpu(const struct worker *w)
{
	cpu_set_t all, one;
	unsigned nth = w->index;

	if (opt.threads != 2 || job.cpus < 2 || sched_getaffinity(0, sizeof(all), &all))
		return;
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !nth--) {
			CPU_SET(cpu, &one);
			break;
		}
	sched_setaffinity(0, sizeof(one), &one); /* a failure shows in same_cpu_pct */
}

/* How often two threads shared a CPU all the same: counted by the first, once in a unit. */
static void look_at_cpus(struct worker *w)
{
	int cpu = sched_getcpu();

	atomic_store_explicit(&w->cpu, (unsigned)cpu, memory_order_relaxed);
	if (opt.threads != 2 || w->index)
		return;
	w->cpu_looks++;
	w->cpu_same += atomic_load_explicit(&w[1].cpu, memory_order_relaxed) == (unsigned)cpu;
}

static void work_until(struct worker *w, uint64_t until)
{
	void (*unit)(struct worker *) = unit_of(opt.pattern, opt.subject->units);
	bool consumer = opt.pattern->kind == EXCHANGE && w->index;

	do {
		unit(w);
		look_at_cpus(w);
		if (consumer && atomic_load_explicit(&ring.closed, memory_order_acquire))
			break;
	} while (!w->failed && (consumer || now_ns() < until));
}

/* The producer closes the ring, so that the consumer ends with the last block. */
static void stage(struct worker *w, uint64_t until)
{
	bool exchange = opt.pattern->kind == EXCHANGE;

	work_until(w, until);
	if (exchange && !w->index)
		atomic_store_explicit(&ring.closed, true, memory_order_release);
	if (exchange && w->index)
		opt.subject->units->exchange(w);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	uint64_t warm_pairs;

	settle_on_cpu(w);
	stage(w, job.warm_until);
	warm_pairs = w->pairs;
	if (w->times)
		memset(w->times, 0, sizeof(*w->times));
	w->cpu_looks = w->cpu_same = 0;
	if (opt.threads > 1) {
		pthread_barrier_wait(&job.warm);
		pthread_barrier_wait(&job.go);
	}
	stage(w, job.until);
	w->end_ns = now_ns();
	w->pairs -= warm_pairs;
	if (opt.pattern->kind == MIXED)
		opt.subject->units->mixed_end(w);
	return NULL;
}

static bool workers_init(void)
{
	size_t bytes = opt.threads * sizeof(struct worker);

	job.worker = reserve(bytes);
	if (!job.worker)
		return false;
	for (unsigned i = 0; i < opt.threads; i++) {
		struct worker *w = &job.worker[i];

		w->index = i;
		w->n = opt.pattern->n;
		w->cpu = UINT32_MAX;
		w->block = reserve(w->n * sizeof(void *) + MIX_LIVE);
		if (opt.pattern->kind == LATENCY)
			w->times = reserve(sizeof(*w->times));
		if (!w->block || (opt.pattern->kind == LATENCY && !w->times))
			return false;
		memset(w->block, 0, w->n * sizeof(void *) + MIX_LIVE);
	}
	return true;
}

/* ---- the measurement ---- */

struct outcome {
	double seconds, cpu_s, ns, tick_ns;
	uint64_t pairs, pages, faults, looks, same;
	struct histogram *times;
	bool failed;
};

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t faults_now(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)u.ru_minflt;
}

/* Between warm-up and measurement, while every worker waits. */
static void begin(struct outcome *o)
{
	atomic_store_explicit(&ring.closed, false, memory_order_release);
	o->faults = faults_now();
	o->cpu_s = cpu_seconds();
	job.start_ns = now_ns();
	job.until = job.start_ns + opt.time_ns;
}

static bool run_threads(struct outcome *o)
{
	pthread_t *thread = calloc(opt.threads, sizeof(*thread));
	unsigned i;

	if (!thread)
		return false;
	pthread_barrier_init(&job.warm, NULL, opt.threads + 1);
	pthread_barrier_init(&job.go, NULL, opt.threads + 1);
	for (i = 0; i < opt.threads; i++)
		if ((errno = pthread_create(&thread[i], NULL, worker_main, &job.worker[i]))) {
			fprintf(stderr, "peers: thread %u of %u: %s\n", i, opt.threads,
				strerror(errno));
			exit(1); /* the others wait at the barrier */
		}
	pthread_barrier_wait(&job.warm);
	begin(o);
	pthread_barrier_wait(&job.go);
	for (i = 0; i < opt.threads; i++)
		pthread_join(thread[i], NULL);
	free(thread);
	return true;
}

/* One thread: the same in two steps, in this thread. */
static void run_here(struct outcome *o)
{
	struct worker *w = job.worker;
	uint64_t warm_pairs;

	work_until(w, job.warm_until);
	warm_pairs = w->pairs;
	if (w->times)
		memset(w->times, 0, sizeof(*w->times));
	begin(o);
	work_until(w, job.until);
	w->end_ns = now_ns();
	w->pairs -= warm_pairs;
}

static unsigned at_once(void)
{
	return opt.threads < job.cpus ? opt.threads : job.cpus;
}

/* Threads end at different times: their rates are added. */
static void sum_up(struct outcome *o)
{
	unsigned shared_by = opt.pattern->kind == EXCHANGE ? 1 : at_once();
	double rate = 0;

	for (unsigned i = 0; i < opt.threads; i++) {
		struct worker *w = &job.worker[i];
		double s = (double)(w->end_ns - job.start_ns) / 1e9;

		rate += (double)w->pairs / s;
		o->pairs += w->pairs;
		o->pages += w->pages;
		o->looks += w->cpu_looks;
		o->same += w->cpu_same;
		o->failed |= w->failed;
		o->seconds = s > o->seconds ? s : o->seconds;
		if (w->times)
			histogram_merge(o->times, w->times);
	}
	o->ns = rate > 0 ? shared_by * 1e9 / rate : 0;
}

static bool measure(struct outcome *o)
{
	uint64_t t0 = now_ns(), c0 = ticks();

	o->times = opt.pattern->kind == LATENCY ? reserve(sizeof(*o->times)) : NULL;
	if (!workers_init() || (opt.pattern->kind == LATENCY && !o->times))
		return false;
	job.warm_until = t0 + opt.warm_ns;
	if (opt.threads == 1)
		run_here(o);
	else if (!run_threads(o))
		return false;
	o->cpu_s = cpu_seconds() - o->cpu_s;
	o->faults = faults_now() - o->faults;
	sum_up(o);
	o->tick_ns = (double)(now_ns() - t0) / (double)(ticks() - c0);
	if (opt.threads == 1 && opt.pattern->kind == MIXED)
		opt.subject->units->mixed_end(job.worker);
	return true;
}

/* ---- memory ---- */

struct memory {
	uint64_t start, peak, freed, after; /* KiB resident */
};

/* One value of /proc/self/status in KiB; without a call of malloc, which would be a call. */
static uint64_t status_kib(const char *key)
{
	char text[4096], *at;
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void idle(double s)
{
	struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static bool measure_memory(struct memory *m, struct outcome *o)
{
	if (!workers_init())
		return false;
	m->start = status_kib("VmRSS:");
	job.warm_until = now_ns() + opt.warm_ns;
	run_here(o);
	m->freed = status_kib("VmRSS:");
	m->peak = status_kib("VmHWM:");
	idle(opt.idle_s);
	m->after = status_kib("VmRSS:");
	o->cpu_s = cpu_seconds() - o->cpu_s;
	o->faults = faults_now() - o->faults;
	sum_up(o);
	return true;
}

/* ---- what ran ---- */

/* Where this process has its malloc from: a library that was not found is only warned about. */
static const char *malloc_library(void)
{
	void *fn = dlsym(RTLD_DEFAULT, "malloc");
	Dl_info info;

	return fn && dladdr(fn, &info) && info.dli_fname ? info.dli_fname : "";
}

/* Per cent of 256 blocks that begin at a page. */
static double aligned_pct(void)
{
	void *block[256];
	unsigned i, n = 0;

	for (i = 0; i < 256; i++) {
		block[i] = keep(malloc(PCPA_PAGE_SIZE));
		n += block[i] && !((uintptr_t)block[i] % PCPA_PAGE_SIZE);
	}
	while (i--)
		free(block[i]);
	return 100.0 * n / 256;
}

/* Are the blocks of this subject ours? Then our counters must have seen them. */
static bool blocks_are_ours(void)
{
	void *p;
	bool ours, api = opt.subject->units == &api_units || opt.subject->units == &inlined_units;

	if (!opt.subject->allocator)
		return false;
	p = api ? pcpa_alloc(0) : keep(malloc(PCPA_PAGE_SIZE));
	ours = pcpa_owns(p);
	if (api)
		pcpa_free(p, 0);
	else
		free(p);
	return ours;
}

static const char *mode_name(uint32_t mode)
{
	return mode == 1 ? "locked" : mode == 2 ? "rseq" : "off";
}

static void print_string(const char *key, const char *s)
{
	printf("\"%s\":\"", key);
	for (; *s; s++)
		printf(*s == '"' || *s == '\\' ? "\\%c" : (unsigned char)*s < 32 ? "?" : "%c", *s);
	printf("\",");
}

static void print_times(const struct outcome *o)
{
	const struct histogram *h = o->times;

	printf("\"latency_ns\":{\"calls\":%llu,\"p50\":%.1f,\"p99\":%.1f,\"p99.9\":%.1f,"
	       "\"max\":%.0f},",
	       (unsigned long long)h->total, histogram_quantile(h, 0.5) * o->tick_ns,
	       histogram_quantile(h, 0.99) * o->tick_ns, histogram_quantile(h, 0.999) * o->tick_ns,
	       (double)h->max * o->tick_ns);
}

static void print_memory(const struct memory *m)
{
	printf("\"resident_kib\":{\"start\":%llu,\"peak\":%llu,\"freed\":%llu,\"after\":%llu,"
	       "\"idle_s\":%g},",
	       (unsigned long long)m->start, (unsigned long long)m->peak,
	       (unsigned long long)m->freed, (unsigned long long)m->after, opt.idle_s);
}

/* Our counters over the whole run, against what was asked for. */
static bool print_counters(const struct pcpa_stats *before, const struct outcome *o)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	uint64_t counted;

	if (pcpa_get_stats(&s))
		return false;
	counted = s.alloc_pages - before->alloc_pages;
	printf("\"counted_pages\":%llu,\"asked_pages\":%llu,\"mode\":\"%s\",\"attached\":%s,"
	       "\"alloc_zone\":%llu,",
	       (unsigned long long)counted, (unsigned long long)o->pages, mode_name(s.mode),
	       s.attached ? "true" : "false",
	       (unsigned long long)(s.alloc_zone - before->alloc_zone));
	if (counted >= o->pages)
		return true;
	fprintf(stderr, "peers: %llu pages asked for, %llu counted\n", (unsigned long long)o->pages,
		(unsigned long long)counted);
	return false;
}

static void print_outcome(const struct outcome *o)
{
	double pairs = o->pairs ? (double)o->pairs : 1;

	print_string("pattern", opt.pattern->name);
	print_string("api", opt.subject->name);
	print_string("malloc_from", malloc_library());
	printf("\"threads\":%u,\"cpus\":%u,\"seconds\":%.6f,\"pairs\":%llu,"
	       "\"cpu_share\":%.4f,\"cpu_ns\":%.4f,\"faults_per_1000\":%.3f,\"page_aligned_pct\":%."
	       "1f,",
	       opt.threads, job.cpus, o->seconds, (unsigned long long)o->pairs,
	       o->seconds > 0 ? o->cpu_s / (o->seconds * at_once()) : 0, o->cpu_s * 1e9 / pairs,
	       1000.0 * (double)o->faults / pairs, aligned_pct());
	if (o->looks)
		printf("\"same_cpu_pct\":%.2f,", 100.0 * (double)o->same / (double)o->looks);
	printf("\"ns\":%.4f}\n", o->ns);
}

/* ---- the program ---- */

/* 0, or the exit status */
static int prepare(void)
{
	cpu_set_t set;

	job.cpus = sched_getaffinity(0, sizeof(set), &set) ? (unsigned)get_nprocs()
							   : (unsigned)CPU_COUNT(&set);
	mix_init();
	if ((opt.subject->units == &rseq_units || opt.subject->units == &shared_units) &&
	    rseq_missing()) {
		fprintf(stderr, "peers: no bare stack with restartable sequences: %s\n",
			rseq_missing());
		return 2;
	}
#ifndef PCPA_INLINE
	if (opt.subject->units == &inlined_units) {
		fprintf(stderr, "peers: this compiler or machine has no inline pair\n");
		return 2;
	}
#endif
	if (!opt.subject->allocator &&
	    !(opt.subject->units == &shared_units ? shared_init() : stacks_init())) {
		fprintf(stderr, "peers: no address space for the bare stacks: %s\n",
			strerror(errno));
		return 1;
	}
	if (opt.high && (errno = -pcpa_set_limits(opt.high, opt.high, opt.high, 0))) {
		fprintf(stderr, "peers: high %u: %s\n", opt.high, strerror(errno));
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct pcpa_stats before = {.size = sizeof(before)};
	struct outcome o = {0};
	struct memory m = {0};
	bool ours, resident, ok;
	int e = parse(argc, argv);

	if (e)
		return e - 1;
	e = prepare();
	if (e)
		return e;
	ours = blocks_are_ours();
	if (ours && pcpa_get_stats(&before))
		return 1;
	resident = opt.pattern->kind == RESIDENT;
	if (!(resident ? measure_memory(&m, &o) : measure(&o)) || o.failed) {
		fprintf(stderr, "peers: memory ran out\n");
		return 1;
	}
	printf("{");
	ok = !ours || print_counters(&before, &o);
	if (resident)
		print_memory(&m);
	if (o.times)
		print_times(&o);
	print_outcome(&o);
	return ok ? 0 : 1;
}
