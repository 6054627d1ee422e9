/* SPDX-License-Identifier: MIT */
/*
 * A program with a burst, for tests of what it holds afterwards.
 *
 *   memory_back burst MIB          before, in the burst, and after REST seconds without a call
 *   memory_back late MIB           the same, but the burst is held until the agent sleeps
 *   memory_back malloc MIB         as burst, of malloc(4096) and free(); malloc-late MIB as late
 *   memory_back cycle MIB SECONDS  the burst again and again, 20 times a second: pages given back
 *                                  and page faults of all but the first; longest pause of its own
 *   memory_back shrink MIB SECONDS LARGE  a burst of LARGE MiB, then the cycle: what is held of it
 *                                  after so long (six times that where nothing went back, as on a
 *                                  machine that is busy otherwise); CPU time a page (take, touch,
 *                                  give), in ns, of cycles within which memory went back, and of
 *                                  the others
 *
 * Sizes are KiB of the whole process (Rss of smaps_rollup), one "name value" a line.
 */
#include <pcpalloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define REST  11
#define HELD  9
#define CYCLE UINT64_C(50000000)

static void **blocks;
static size_t n_blocks;
static bool by_malloc;

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	long kib = -1;

	while (f && kib < 0 && fgets(line, sizeof(line), f))
		sscanf(line, "Rss: %ld", &kib);
	if (f)
		fclose(f);
	return kib;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void say(const char *name, long value)
{
	printf("%s %ld\n", name, value);
	fflush(stdout);
}

static int take(size_t n)
{
	for (size_t i = 0; i < n; i++) {
		blocks[i] = by_malloc ? malloc(PCPA_PAGE_SIZE) : pcpa_alloc(0);
		if (!blocks[i])
			return 1;
		memset(blocks[i], 1, PCPA_PAGE_SIZE);
	}
	return 0;
}

static void give(size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (by_malloc)
			free(blocks[i]);
		else
			pcpa_free(blocks[i], 0);
	}
}

static int take_all(void)
{
	return take(n_blocks);
}

static void give_all(void)
{
	give(n_blocks);
}

static struct pcpa_stats stats(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	pcpa_get_stats(&s);
	return s;
}

static int burst(unsigned held)
{
	pcpa_free(pcpa_alloc(0), 0);
	say("before", resident_kib());
	if (take_all())
		return 1;
	say("in", resident_kib());
	sleep(held);
	give_all();
	say("freed", resident_kib());
	sleep(REST);
	say("after", resident_kib());
	say("mode", stats().mode);
	return pcpa_audit(NULL) != 0;
}

static long faults(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return r.ru_minflt;
}

/* On one CPU: another one would have lists of its own to fill, with pages that nobody used yet. */
static void stay(void)
{
	cpu_set_t all, one;

	CPU_ZERO(&one);
	for (int cpu = 0; !sched_getaffinity(0, sizeof(all), &all) && cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all)) {
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof(one), &one);
			return;
		}
}

static int cycle(uint64_t seconds)
{
	uint64_t start = now_ns(), last = start, given, pause = 0;
	long at_first;

	stay();
	if (take_all())
		return 1;
	give_all();
	at_first = faults();
	given = stats().pages_given_back;
	while (last - start < seconds * 1000000000u) {
		uint64_t next = last + CYCLE, at;

		if (take_all())
			return 1;
		give_all();
		at = now_ns();
		if (at < next)
			nanosleep(&(struct timespec){0, (long)(next - at)}, NULL);
		at = now_ns();
		pause = at - last > pause ? at - last : pause;
		last = at;
	}
	say("given_back", (long)(stats().pages_given_back - given));
	say("faults", faults() - at_first);
	say("pause_ms", (long)(pause / 1000000));
	say("mode", stats().mode);
	return pcpa_audit(NULL) != 0;
}

/* One store a page, as in the comparison with others (bench/peers). */
static int touched_cycle(size_t n)
{
	for (size_t i = 0; i < n; i++) {
		blocks[i] = pcpa_alloc(0);
		if (!blocks[i])
			return 1;
		*(volatile char *)blocks[i] = 1;
	}
	give(n);
	return 0;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int shrink(size_t n, uint64_t seconds)
{
	uint64_t start = now_ns(), ns[2] = {0}, cycles[2] = {0}, given;

	stay();
	if (take_all())
		return 1;
	give_all();
	say("freed", resident_kib());
	given = stats().pages_given_back;
	while (now_ns() - start < seconds * 1000000000u ||
	       (now_ns() - start < 6 * seconds * 1000000000u &&
		stats().pages_given_back - given < n)) {
		uint64_t before = stats().pages_given_back, at = cpu_ns();
		bool back;

		if (touched_cycle(n))
			return 1;
		at = cpu_ns() - at;
		back = stats().pages_given_back != before;
		ns[back] += at;
		cycles[back]++;
	}
	say("cycling", resident_kib());
	say("given_back", (long)(stats().pages_given_back - given));
	for (int back = 0; back < 2; back++)
		say(back ? "ns_returning" : "ns_steady",
		    cycles[back] ? (long)(ns[back] / cycles[back] / n) : 0);
	say("mode", stats().mode);
	return pcpa_audit(NULL) != 0;
}

int main(int argc, char **argv)
{
	n_blocks = argc > 2 ? strtoul(argv[argc > 4 ? 4 : 2], NULL, 10) * 256 : 0;
	blocks = malloc((n_blocks + 1) * sizeof(*blocks));
	if (!n_blocks || !blocks)
		return 2;
	/* the program's own memory is there before the first look */
	memset(blocks, 1, n_blocks * sizeof(*blocks));
	by_malloc = !strncmp(argv[1], "malloc", 6);
	if (!strcmp(argv[1], "burst") || !strcmp(argv[1], "malloc"))
		return burst(0);
	if (!strcmp(argv[1], "late") || !strcmp(argv[1], "malloc-late"))
		return burst(HELD);
	if (!strcmp(argv[1], "shrink"))
		return argc > 4 ? shrink(strtoul(argv[2], NULL, 10) * 256,
					 strtoul(argv[3], NULL, 10))
				: 2;
	return argc > 3 ? cycle(strtoul(argv[3], NULL, 10)) : 2;
}
