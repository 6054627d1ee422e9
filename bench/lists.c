/* SPDX-License-Identifier: MIT */
/*
 * What a pair of pcpa_alloc(0) and pcpa_free() costs, in both modes of the lists, beside the least
 * that a machine can do: a bare stack for each CPU, popped and pushed by restartable sequences,
 * with no statistics, no bounds and no checks.
 *
 *   lists [ROUNDS]    default 5
 *
 * Each round runs every variant in a process of its own, one after the other, so that whatever
 * else the machine does falls on all of them; shown are the medians over the rounds. Times are CPU
 * time of the threads, summed, for each pair; blocks are not touched.
 */
#include <pcpalloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define BARE 1
#endif
#endif

#define BURST_MOST  4096
#define STACK_MOST  32768
#define CPUS_MOST   1024
#define ROUNDS_MOST 99

enum variant { BARE_STACK, BY_RSEQ, LOCKED, VARIANTS };
enum pattern { PAIR, BURST_256, BURST_4096, TWO, SIXTY_FOUR, HIGH_64, HIGH_200, PATTERNS };

struct shape {
	const char *name;
	unsigned threads, burst, pairs; /* pairs of each thread */
	unsigned high;			/* 0: as it is */
};

static const struct shape shapes[PATTERNS] = {
	[PAIR] = {"pair", 1, 1, 4000000, 0},
	[BURST_256] = {"burst 256", 1, 256, 4000000, 0},
	[BURST_4096] = {"burst 4096", 1, 4096, 4000000, 0},
	[TWO] = {"2 threads", 2, 32, 2000000, 0},
	[SIXTY_FOUR] = {"64 threads", 64, 32, 100000, 0},
	[HIGH_64] = {"64 threads, high 64", 64, 128, 100000, 64},
	[HIGH_200] = {"64 threads, high 200", 64, 256, 100000, 200},
};

/* ---- the bare stack ---- */

struct stack {
	uint64_t n;
	void *block[STACK_MOST];
} __attribute__((aligned(128)));

static struct stack *stacks;

#ifdef BARE
#define SECTION                                \
	".pushsection __rseq_cs, \"aw\"\n\t"   \
	".balign 32\n"                         \
	"3:\n\t"                               \
	".long 0, 0\n\t"                       \
	".quad 1f, 2f - 1f, 4f\n\t"            \
	".popsection\n\t"                      \
	".pushsection .text.abort, \"ax\"\n\t" \
	".byte 0x0f, 0xb9, 0x3d\n\t"           \
	".long 0x53053053\n"                   \
	"4:\n\t"                               \
	"jmp %l[again]\n\t"                    \
	".popsection\n\t"                      \
	"leaq 3b(%%rip), %[a]\n\t"             \
	"movq %[a], %%fs:8(%[rseq])\n"         \
	"1:\n\t"                               \
	"cmpl %[cpu], %%fs:4(%[rseq])\n\t"     \
	"jne %l[again]\n\t"

static inline uint32_t this_cpu(void)
{
	uint32_t cpu;

	__asm__ volatile("movl %%fs:4(%1), %0" : "=r"(cpu) : "r"(__rseq_offset));
	return cpu;
}

static __attribute__((noinline)) void *bare_pop(unsigned order)
{
	uint64_t a, block;
	struct stack *s;
	uint32_t cpu;

	(void)order;
again:
	cpu = this_cpu();
	s = &stacks[cpu];
	__asm__ volatile goto(
		SECTION "movq %[n], %[a]\n\t"
			"testq %[a], %[a]\n\t"
			"je %l[none]\n\t"
			"movq -8(%[base], %[a], 8), %[block]\n\t"
			"decq %[a]\n\t"
			"movq %[a], %[n]\n"
			"2:\n\t"
		: [a] "=&r"(a), [block] "=&r"(block)
		: [rseq] "r"(__rseq_offset), [cpu] "r"(cpu), [n] "m"(s->n), [base] "r"(s->block)
		: "memory", "cc"
		: again, none);
	return (void *)block;
none:
	return NULL;
}

static __attribute__((noinline)) void bare_push(void *block, unsigned order)
{
	struct stack *s;
	uint32_t cpu;
	uint64_t a;

	(void)order;
again:
	cpu = this_cpu();
	s = &stacks[cpu];
	__asm__ volatile goto(SECTION "movq %[n], %[a]\n\t"
				      "cmpq %[most], %[a]\n\t"
				      "jae %l[full]\n\t"
				      "movq %[block], (%[base], %[a], 8)\n\t"
				      "incq %[a]\n\t"
				      "movq %[a], %[n]\n"
				      "2:\n\t"
			      : [a] "=&r"(a)
			      : [rseq] "r"(__rseq_offset), [cpu] "r"(cpu), [n] "m"(s->n),
				[base] "r"(s->block), [most] "i"(STACK_MOST), [block] "r"(block)
			      : "memory", "cc"
			      : again, full);
full:
	return;
}

static bool bare_start(void)
{
	if (!__rseq_size)
		return false;
	stacks = calloc(CPUS_MOST, sizeof(*stacks));
	for (int cpu = 0; stacks && cpu < CPUS_MOST && cpu < sysconf(_SC_NPROCESSORS_CONF); cpu++)
		for (stacks[cpu].n = 0; stacks[cpu].n < STACK_MOST / 2; stacks[cpu].n++)
			stacks[cpu].block[stacks[cpu].n] = stacks;
	return stacks;
}
#else
static void *bare_pop(unsigned order)
{
	return order ? stacks : NULL;
}

static void bare_push(void *block, unsigned order)
{
	(void)block, (void)order;
}

static bool bare_start(void)
{
	return false;
}
#endif

/* ---- one pattern ---- */

struct job {
	const struct shape *shape;
	enum variant variant;
	double ns; /* out: CPU time of the thread */
};

static double cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

#define LOOP(take, put)                                                      \
	do {                                                                 \
		for (unsigned done = 0; done < s->pairs; done += s->burst) { \
			for (unsigned i = 0; i < s->burst; i++)              \
				blocks[i] = take(0);                         \
			for (unsigned i = 0; i < s->burst; i++)              \
				put(blocks[i], 0);                           \
		}                                                            \
	} while (0)

static void *work(void *arg)
{
	struct job *j = arg;
	const struct shape *s = j->shape;
	void *blocks[BURST_MOST];
	double start = cpu_ns();

	if (j->variant == BARE_STACK)
		LOOP(bare_pop, bare_push);
	else
		LOOP(pcpa_alloc, pcpa_free);
	j->ns = cpu_ns() - start;
	return NULL;
}

static double run(enum variant v, const struct shape *s)
{
	pthread_t threads[64];
	struct job jobs[64];
	double sum = 0;

	if (v != BARE_STACK && s->high)
		pcpa_set_limits(s->high, s->high, s->high, 0);
	for (unsigned i = 0; i < s->threads; i++) {
		jobs[i] = (struct job){s, v, 0};
		if (pthread_create(&threads[i], NULL, work, &jobs[i]))
			exit(1);
	}
	for (unsigned i = 0; i < s->threads; i++) {
		pthread_join(threads[i], NULL);
		sum += jobs[i].ns;
	}
	return sum / ((double)s->pairs * s->threads);
}

/* ---- rounds ---- */

/* In a child. -1 in a result: this variant can not be had here. */
static void run_all(enum variant v, double *ret_ns)
{
	struct pcpa_stats stats = {.size = sizeof(stats)};
	bool have = true;

	setenv("PCPTUNE_SOCKET", "", 1);
	setenv("PCPALLOC_MODE", v == LOCKED ? "locked" : "rseq", 1);
	if (v == BARE_STACK)
		have = bare_start();
	else
		pcpa_free(pcpa_alloc(0), 0);
	if (v == BY_RSEQ)
		have = !pcpa_get_stats(&stats) && stats.mode == 2;
	for (int p = 0; p < PATTERNS; p++) {
		if (have)
			run(v, &(struct shape){"", shapes[p].threads, shapes[p].burst, 8192,
					       shapes[p].high});
		ret_ns[p] = have ? run(v, &shapes[p]) : -1;
	}
}

static bool in_child(enum variant v, double *ret_ns)
{
	int pipes[2], status;
	bool ok;
	pid_t pid;

	if (pipe(pipes))
		return false;
	pid = fork();
	if (!pid) {
		double ns[PATTERNS];

		run_all(v, ns);
		_exit(write(pipes[1], ns, sizeof(ns)) != sizeof(ns));
	}
	close(pipes[1]);
	ok = pid > 0 && read(pipes[0], ret_ns, PATTERNS * sizeof(double)) ==
				PATTERNS * (ssize_t)sizeof(double);
	close(pipes[0]);
	return pid > 0 && waitpid(pid, &status, 0) == pid && ok && !status;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *v, int n)
{
	double sorted[ROUNDS_MOST];

	memcpy(sorted, v, (size_t)n * sizeof(*v));
	qsort(sorted, (size_t)n, sizeof(*sorted), compare);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void show(double ns[PATTERNS][VARIANTS][ROUNDS_MOST], int rounds)
{
	printf("%-22s %8s %8s %8s   %s\n", "ns a pair, CPU time", "bare", "rseq", "locked",
	       "rseq / bare");
	for (int p = 0; p < PATTERNS; p++) {
		double m[VARIANTS];

		printf("%-22s", shapes[p].name);
		for (int v = 0; v < VARIANTS; v++) {
			m[v] = median(ns[p][v], rounds);
			if (m[v] < 0)
				printf(" %8s", "-");
			else
				printf(" %8.2f", m[v]);
		}
		if (m[BARE_STACK] > 0 && m[BY_RSEQ] > 0)
			printf("   %.2f", m[BY_RSEQ] / m[BARE_STACK]);
		printf("\n");
	}
}

int main(int argc, char **argv)
{
	static double ns[PATTERNS][VARIANTS][ROUNDS_MOST];
	int rounds = argc > 1 ? atoi(argv[1]) : 5;

	if (rounds < 1 || rounds > ROUNDS_MOST) {
		fprintf(stderr, "lists: ROUNDS is 1 to %d\n", ROUNDS_MOST);
		return 2;
	}
	for (int round = 0; round < rounds; round++)
		for (int v = 0; v < VARIANTS; v++) {
			double one[PATTERNS];

			if (!in_child((enum variant)v, one)) {
				fprintf(stderr, "lists: a child failed\n");
				return 1;
			}
			for (int p = 0; p < PATTERNS; p++)
				ns[p][v][round] = one[p];
		}
	show(ns, rounds);
	return 0;
}
