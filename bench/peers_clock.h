/* SPDX-License-Identifier: MIT */
/*
 * Time for bench/peers: nanoseconds for stretches, ticks for single calls, and a histogram of
 * ticks.
 *
 * A tick is one of the time-stamp counter on x86-64 and a nanosecond elsewhere. Ticks are turned
 * into nanoseconds at the end, by a calibration over the whole run. Values below HIST_SUB are
 * counted exactly, others in HIST_SUB buckets for each power of two (1.6 % wide); the greatest is
 * kept as it was. A histogram is written by one thread; merging is done after it has ended.
 */
#ifndef BENCH_PEERS_CLOCK_H
#define BENCH_PEERS_CLOCK_H

#include <stdint.h>
#include <time.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#define HIST_BITS    6u
#define HIST_SUB     (1u << HIST_BITS)
#define HIST_BUCKETS ((65u - HIST_BITS) * HIST_SUB)

struct histogram {
	uint64_t max, total;
	uint64_t bucket[HIST_BUCKETS];
};

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* rdtscp waits for what comes before it, so that the call lies between the two readings. */
static inline uint64_t ticks(void)
{
#ifdef __x86_64__
	unsigned aux;

	return __rdtscp(&aux);
#else
	return now_ns();
#endif
}

static inline unsigned histogram_index(uint64_t v)
{
	unsigned shift;

	if (v < HIST_SUB)
		return (unsigned)v;
	shift = 63u - (unsigned)__builtin_clzll(v) - HIST_BITS;
	return (shift + 1) * HIST_SUB + (unsigned)(v >> shift) - HIST_SUB;
}

/* The middle of a bucket. */
static inline double histogram_value(unsigned index)
{
	unsigned shift = index / HIST_SUB;

	if (!shift)
		return index;
	shift--;
	return (double)((uint64_t)(HIST_SUB + index % HIST_SUB) << shift) +
	       (double)(UINT64_C(1) << shift) / 2;
}

static inline void histogram_add(struct histogram *h, uint64_t v)
{
	h->bucket[histogram_index(v)]++;
	h->total++;
	if (v > h->max)
		h->max = v;
}

static inline void histogram_merge(struct histogram *into, const struct histogram *h)
{
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		into->bucket[i] += h->bucket[i];
	into->total += h->total;
	if (h->max > into->max)
		into->max = h->max;
}

/* The value below which `part` (0 to 1) of all lie, in ticks; 0 when there are none. */
static inline double histogram_quantile(const struct histogram *h, double part)
{
	uint64_t want = (uint64_t)(part * (double)h->total), seen = 0;

	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen > want)
			return histogram_value(i);
	}
	return (double)h->max;
}

#endif
