/* SPDX-License-Identifier: MIT */
/*
 * What bench/peers can be asked for: allocators (subjects), patterns, and the words of its command
 * line. Both tables are what --help and --list print.
 */
#ifndef BENCH_PEERS_CHOICE_H
#define BENCH_PEERS_CHOICE_H

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcpalloc.h>
#include <pcpalloc_inline.h>

#include "bench/peers_stacks.h"
#include "bench/shared/stack.h"
#include "bench/peers_patterns.h"

/* ---- subjects ---- */

ALWAYS_INLINE void *malloc_take(unsigned order)
{
	return malloc((size_t)PCPA_PAGE_SIZE << order);
}

ALWAYS_INLINE void malloc_give(void *p, unsigned order)
{
	(void)order;
	free(p);
}

ALWAYS_INLINE void *aligned_take(unsigned order)
{
	return aligned_alloc(PCPA_PAGE_SIZE, (size_t)PCPA_PAGE_SIZE << order);
}

static char nothing[PCPA_PAGE_SIZE] __attribute__((aligned(PCPA_PAGE_SIZE)));

ALWAYS_INLINE void *nothing_take(unsigned order)
{
	(void)order;
	return nothing;
}

ALWAYS_INLINE void nothing_give(void *p, unsigned order)
{
	(void)p, (void)order;
}

SUBJECT(api, pcpa_alloc, pcpa_free);
SUBJECT(inlined, pcpa_alloc_inline, pcpa_free_inline);
SUBJECT(plain, malloc_take, malloc_give);
SUBJECT(aligned, aligned_take, malloc_give);
SUBJECT(tls, tls_take, tls_give);
SUBJECT(trylock, trylock_take, trylock_give);
SUBJECT(rseq, rseq_take, rseq_give);
SUBJECT(shared, shared_take, shared_give);
SUBJECT(nothing, nothing_take, nothing_give);

static const struct subject {
	const char *name, *text;
	const struct units *units;
	bool allocator; /* pcpa_owns() may know its blocks */
} subjects[] = {
	{"pcpa", "pcpa_alloc() and pcpa_free()", &api_units, true},
	{"inline", "pcpa_alloc_inline() and pcpa_free_inline()", &inlined_units, true},
	{"malloc", "malloc() and free() of this process", &plain_units, true},
	{"aligned", "aligned_alloc(4096, ...) and free() of this process", &aligned_units, true},
	{"tls", "bare stack of the thread", &tls_units, false},
	{"trylock", "bare stack of the CPU, lock word", &trylock_units, false},
	{"rseq", "bare stack of the CPU, restartable sequences", &rseq_units, false},
	{"shared", "the same behind functions of a shared library", &shared_units, false},
	{"nothing", "no allocation: what the frame costs", &nothing_units, false},
};

/* ---- patterns ---- */

enum kind { PAIR, BURST, MIXED, EXCHANGE, LATENCY, RESIDENT };

static const struct pattern {
	const char *name, *text;
	enum kind kind;
	unsigned threads;
	size_t n;
	bool touch, fifo;
} patterns[] = {
	{"pair", "one page taken and given back", PAIR, 1, 1, false, false},
	{"burst32", "burst of 32", BURST, 1, 32, false, false},
	{"burst32-fifo", "burst of 32, FIFO", BURST, 1, 32, false, true},
	{"burst256", "burst of 256", BURST, 1, 256, false, false},
	{"burst256-fifo", "burst of 256, FIFO", BURST, 1, 256, false, true},
	{"burst256-touch", "burst of 256, touched", BURST, 1, 256, true, false},
	{"burst4096", "burst of 4096", BURST, 1, 4096, false, false},
	{"burst4096-fifo", "burst of 4096, FIFO", BURST, 1, 4096, false, true},
	{"burst4096-touch", "burst of 4096, touched", BURST, 1, 4096, true, false},
	{"burst32768-touch", "burst of 32768, touched", BURST, 1, 32768, true, false},
	{"exchange", "producer and consumer", EXCHANGE, 2, 1, false, false},
	{"mixed", "orders 0 to 3 mixed", MIXED, 1, MIX_LIVE, false, false},
	{"threads2", "2 threads, bursts of 256", BURST, 2, 256, false, false},
	{"threads8", "8 threads, bursts of 256", BURST, 8, 256, false, false},
	{"threads64", "64 threads, bursts of 256", BURST, 64, 256, false, false},
	{"cycle128", "128 MiB cycle, touched, FIFO", BURST, 1, 32768, true, true},
	{"latency64", "single calls, 64 threads", LATENCY, 64, 256, false, false},
	{"resident", "memory after 128 MiB cycles", RESIDENT, 1, 32768, true, false},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct {
	const struct pattern *pattern;
	const struct subject *subject;
	unsigned threads, high;
	uint64_t warm_ns, time_ns;
	double idle_s;
} opt = {.warm_ns = 100000000, .time_ns = 250000000, .idle_s = 11};

/* ---- arguments ---- */

static void list(void)
{
	printf("[");
	for (size_t i = 0; i < COUNT(patterns); i++)
		printf("%s{\"name\":\"%s\",\"text\":\"%s\",\"threads\":%u,\"blocks\":%zu,"
		       "\"touched\":%s,\"order\":\"%s\"}",
		       i ? ",\n " : "", patterns[i].name, patterns[i].text, patterns[i].threads,
		       patterns[i].n, patterns[i].touch ? "true" : "false",
		       patterns[i].kind == MIXED			  ? "random"
		       : patterns[i].kind == EXCHANGE || patterns[i].fifo ? "fifo"
									  : "lifo");
	printf("]\n");
}

static void usage(FILE *out)
{
	fprintf(out, "usage: peers --pattern NAME --api NAME [options], or peers --list\n"
		     "  -p, --pattern NAME\n");
	for (size_t i = 0; i < COUNT(patterns); i++)
		fprintf(out, "        %-17s %s\n", patterns[i].name, patterns[i].text);
	fprintf(out, "  -a, --api NAME\n");
	for (size_t i = 0; i < COUNT(subjects); i++)
		fprintf(out, "        %-17s %s\n", subjects[i].name, subjects[i].text);
	fprintf(out, "  -w, --warm MS     not measured, 0 to 600000 (100)\n"
		     "  -t, --time MS     measured, 1 to 600000 (250)\n"
		     "  -n, --threads N   other than the pattern's, 1 to 1024\n"
		     "  -i, --idle S      pattern resident: how long nothing is done (11)\n"
		     "  -H, --high PAGES  fixed high of our lists, 1 to 8388608\n"
		     "  -l, --list        the patterns as JSON\n");
}

static bool number(const char *s, double lo, double hi, double *ret)
{
	char *end;
	double v = strtod(s, &end);

	if (end == s || *end || !(v >= lo && v <= hi)) {
		fprintf(stderr, "peers: %s: expected a number from %g to %g\n", s, lo, hi);
		return false;
	}
	*ret = v;
	return true;
}

static bool choose(int c, const char *name)
{
	for (size_t i = 0; c == 'p' && i < COUNT(patterns); i++)
		if (!strcmp(name, patterns[i].name)) {
			opt.pattern = &patterns[i];
			return true;
		}
	for (size_t i = 0; c == 'a' && i < COUNT(subjects); i++)
		if (!strcmp(name, subjects[i].name)) {
			opt.subject = &subjects[i];
			return true;
		}
	fprintf(stderr, "peers: %s: no such %s, --help lists them\n", name,
		c == 'p' ? "pattern" : "api");
	return false;
}

static bool set_number(int c, const char *arg)
{
	double v = 0;

	switch (c) {
	case 'w':
		if (!number(arg, 0, 600000, &v))
			return false;
		opt.warm_ns = (uint64_t)(v * 1e6);
		return true;
	case 't':
		if (!number(arg, 1, 600000, &v))
			return false;
		opt.time_ns = (uint64_t)(v * 1e6);
		return true;
	case 'n':
		if (!number(arg, 1, MOST_THREADS, &v))
			return false;
		opt.threads = (unsigned)v;
		return true;
	case 'H':
		if (!number(arg, 1, 8388608, &v))
			return false;
		opt.high = (unsigned)v;
		return true;
	default:
		return number(arg, 0, 3600, &opt.idle_s);
	}
}

/* 0, or the exit status + 1 */
static int parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{"pattern", 1, NULL, 'p'}, {"api", 1, NULL, 'a'},     {"warm", 1, NULL, 'w'},
		{"time", 1, NULL, 't'},	   {"threads", 1, NULL, 'n'}, {"idle", 1, NULL, 'i'},
		{"high", 1, NULL, 'H'},	   {"list", 0, NULL, 'l'},    {"help", 0, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "p:a:w:t:n:i:H:lh", longs, NULL)) != -1) {
		if (c == 'l' || c == 'h') {
			if (c == 'l')
				list();
			else
				usage(stdout);
			return 1;
		}
		if (c == '?') {
			usage(stderr);
			return 4;
		}
		if (!(c == 'p' || c == 'a' ? choose(c, optarg) : set_number(c, optarg)))
			return 4;
	}
	if (!opt.pattern || !opt.subject || optind < argc) {
		usage(stderr);
		return 4;
	}
	if (!opt.threads)
		opt.threads = opt.pattern->threads;
	if ((opt.pattern->kind == EXCHANGE && opt.threads != 2) ||
	    (opt.pattern->kind == RESIDENT && opt.threads != 1)) {
		fprintf(stderr, "peers: pattern %s has %u threads\n", opt.pattern->name,
			opt.pattern->threads);
		return 4;
	}
	return 0;
}

#endif
