/* SPDX-License-Identifier: MIT */
/*
 * What a pair of pcpa_alloc(0) and pcpa_free() costs, in both modes of the lists, beside the least
 * that a machine can do: a bare stack for each CPU, popped and pushed by restartable sequences,
 * with no statistics, no bounds and no checks.
 *
 *   lists [--bulk-free] [ROUNDS]    default 5
 *
 * With --bulk-free the three ways in which a drain can hand its blocks to the zone
 * (PCPALLOC_BULK_FREE) are compared instead of the modes, where drains are what counts: with a high
 * so small that lists overflow in every burst. Bursts of 4096 overflow the zone's depot, too, so
 * that blocks are merged and split again.
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

enum variant { BARE_STACK, BY_RSEQ, LOCKED, TWO_PASS, PREFETCH, DROP_THROUGH, VARIANTS };
enum pattern {
	PAIR,
	BURST_256,
	BURST_4096,
	TWO,
	SIXTY_FOUR,
	HIGH_64,
	HIGH_200,
	FEW_64,
	FEW_200,
	DEEP_200,
	DEEP_2000,
	PATTERNS
};

static const struct {
	const char *name, *bulk_free; /* NULL: the default */
} variants[VARIANTS] = {
	[BARE_STACK] = {"bare", NULL},	       [BY_RSEQ] = {"rseq", NULL},
	[LOCKED] = {"locked", NULL},	       [TWO_PASS] = {"two-pass", "two-pass"},
	[PREFETCH] = {"prefetch", "prefetch"}, [DROP_THROUGH] = {"drop-through", "drop-through"},
};

/* What is compared: with --bulk-free, and without. */
struct comparison {
	const char *title;
	unsigned n_variants, n_patterns;
	enum variant variant[VARIANTS];
	enum pattern pattern[PATTERNS];
};

static const struct comparison comparisons[2] = {
	{"rseq / bare",
	 3,
	 7,
	 {BARE_STACK, BY_RSEQ, LOCKED},
	 {PAIR, BURST_256, BURST_4096, TWO, SIXTY_FOUR, HIGH_64, HIGH_200}},
	{"two-pass / bare",
	 4,
	 6,
	 {BARE_STACK, TWO_PASS, PREFETCH, DROP_THROUGH},
	 {FEW_64, FEW_200, DEEP_200, DEEP_2000, HIGH_64, HIGH_200}},
};

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
	[FEW_64] = {"burst 128, high 64", 1, 128, 2000000, 64},
	[FEW_200] = {"burst 256, high 200", 1, 256, 2000000, 200},
	[DEEP_200] = {"burst 4096, high 200", 1, 4096, 2000000, 200},
	[DEEP_2000] = {"burst 4096, high 2000", 1, 4096, 2000000, 2000},
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
static void run_all(const struct comparison *c, enum variant v, double *ret_ns)
{
	struct pcpa_stats stats = {.size = sizeof(stats)};
	bool have = true;

	setenv("PCPTUNE_SOCKET", "", 1);
	setenv("PCPALLOC_MODE", v == LOCKED ? "locked" : "rseq", 1);
	if (variants[v].bulk_free)
		setenv("PCPALLOC_BULK_FREE", variants[v].bulk_free, 1);
	if (v == BARE_STACK)
		have = bare_start();
	else
		pcpa_free(pcpa_alloc(0), 0);
	if (v == BY_RSEQ)
		have = !pcpa_get_stats(&stats) && stats.mode == 2;
	for (unsigned i = 0; i < c->n_patterns; i++) {
		const struct shape *s = &shapes[c->pattern[i]];

		if (have)
			run(v, &(struct shape){"", s->threads, s->burst, 8192, s->high});
		ret_ns[i] = have ? run(v, s) : -1;
	}
}

static bool in_child(const struct comparison *c, enum variant v, double *ret_ns)
{
	int pipes[2], status;
	bool ok;
	pid_t pid;

	if (pipe(pipes))
		return false;
	pid = fork();
	if (!pid) {
		double ns[PATTERNS] = {0};

		run_all(c, v, ns);
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

static void show(const struct comparison *c, double ns[PATTERNS][VARIANTS][ROUNDS_MOST], int rounds)
{
	printf("%-22s", "ns a pair, CPU time");
	for (unsigned v = 0; v < c->n_variants; v++)
		printf(" %12s", variants[c->variant[v]].name);
	printf("   %s\n", c->title);
	for (unsigned p = 0; p < c->n_patterns; p++) {
		double m[VARIANTS];

		printf("%-22s", shapes[c->pattern[p]].name);
		for (unsigned v = 0; v < c->n_variants; v++) {
			m[v] = median(ns[p][v], rounds);
			if (m[v] < 0)
				printf(" %12s", "-");
			else
				printf(" %12.2f", m[v]);
		}
		if (m[0] > 0 && m[1] > 0)
			printf("   %.2f", m[1] / m[0]);
		printf("\n");
	}
}

static bool run_round(const struct comparison *c, double ns[PATTERNS][VARIANTS][ROUNDS_MOST],
		      int round)
{
	for (unsigned v = 0; v < c->n_variants; v++) {
		double one[PATTERNS];

		if (!in_child(c, c->variant[v], one))
			return false;
		for (unsigned p = 0; p < c->n_patterns; p++)
			ns[p][v][round] = one[p];
	}
	return true;
}

int main(int argc, char **argv)
{
	static double ns[PATTERNS][VARIANTS][ROUNDS_MOST];
	bool bulk_free = argc > 1 && !strcmp(argv[1], "--bulk-free");
	const struct comparison *c = &comparisons[bulk_free];
	int rounds = argc > 1 + bulk_free ? atoi(argv[1 + bulk_free]) : 5;

	if (rounds < 1 || rounds > ROUNDS_MOST) {
		fprintf(stderr, "lists: ROUNDS is 1 to %d\n", ROUNDS_MOST);
		return 2;
	}
	for (int round = 0; round < rounds; round++)
		if (!run_round(c, ns, round)) {
			fprintf(stderr, "lists: a child failed\n");
			return 1;
		}
	show(c, ns, rounds);
	return 0;
}
