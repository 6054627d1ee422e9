/* SPDX-License-Identifier: MIT */
/*
 * How long the zone lock is held.
 *
 * Every hold that merges or splits many pages is timed, since the longest is what matters and a
 * sample of them would miss it. One that moves a block, or batches in and out of the depot, takes
 * not much longer than the clock's own reading; of those one in 64 is timed and stands for all.
 * Where the system itself keeps time by the cycle counter we read that, in half of the time.
 * Until the agent has found out (it looks once a second, and learns how long a cycle lasts), and
 * where there is no agent, it is the clock.
 */
#ifndef PCPA_HOLD_H
#define PCPA_HOLD_H

#include <pcptune/segment.h>

#include "allocator/sys.h"

/* 2^22 times the length of a cycle in ns; 0: not known, read the clock. Written by the agent. */
extern uint32_t pcpa_hold_cycle;
#define PCPA_HOLD_SHIFT 22

struct pcpa_hold {
	uint64_t start;
	uint32_t cycle; /* pcpa_hold_cycle as it was then */
};

static inline uint64_t pcpa_cycles(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t v;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
	return v;
#else
	return 0;
#endif
}

static inline struct pcpa_hold pcpa_hold_begin(void)
{
	uint32_t cycle = pcpa_get(&pcpa_hold_cycle);

	return (struct pcpa_hold){cycle ? pcpa_cycles() : pcpa_now_ns(), cycle};
}

/* ns since then */
static inline uint64_t pcpa_hold_ns(const struct pcpa_hold *h)
{
	uint64_t n = (h->cycle ? pcpa_cycles() : pcpa_now_ns()) - h->start;

	/* counters of two CPUs may differ by a few cycles */
	if ((int64_t)n < 0)
		return 0;
	if (!h->cycle)
		return n;
	return n >> 32 ? (n >> PCPA_HOLD_SHIFT) * h->cycle : n * h->cycle >> PCPA_HOLD_SHIFT;
}

/* Row of the histogram in counters.def for a hold of so many ns. */
unsigned pcpa_hold_row(uint64_t ns);
/* Under the zone lock: `weight` holds, of which one was timed. */
void pcpa_hold_count(struct pcptune_zone_block *g, uint64_t ns, uint32_t weight);
/* Under the zone lock: all rows together. */
uint64_t pcpa_hold_total(const struct pcptune_zone_block *g);

/* By the agent alone, about once a second: is the cycle counter good, and how long is a cycle? */
void pcpa_hold_tune(void);
/* In the child of a fork. */
void pcpa_hold_forget(void);

#endif
