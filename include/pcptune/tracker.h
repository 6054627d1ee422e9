/* SPDX-License-Identifier: MIT */
/*
 * The band tracker: what any other `high` would have cost, from one pass.
 *
 * Let x be the net position of the lists of a CPU (pages freed minus pages allocated). What lists
 * of capacity C move to and from their zone is the total variation of the play (backlash) operator
 * of width C applied to x: the zone's side p follows x only when x leaves the band [p, p + C]. A
 * swing of x that lies within a larger one before and a larger one after it costs max(0, A - C)
 * pages each way, A being its amplitude, whatever came before. So x is reduced by the four-point
 * rule of rainflow counting: closed cycles go into a histogram of amplitudes, and what stays are
 * the turning points that no larger swing encloses yet. Histogram and turning points together give
 * the traffic for every C and every level at the start:
 *
 *	pages each way = sum over cycles of max(0, A - C)  +  the play over the turning points
 *
 * This is exact for one list that refills and drains single pages. With batches that do not change
 * (refill B when empty, drain B at count >= high) C = high - B is exact in the mean; else C is high
 * less half of the mean refill and drain (pcptune_band_capacity()). Where several lists share one
 * count a refill happens as soon as its own list is empty, so the result is a lower bound there.
 *
 * The four-point rule matters: the three-point rule of ASTM E1049 closes half cycles against the
 * beginning of the record, and what those cost depends on the level there. That play has the least
 * variation of all that stay within the band, and that it counts crossings of bands, is known: R.
 * Ghomrasni and R. Lochowski, "The play operator, the truncated variation and the generalisation of
 * the Jordan decomposition" (arXiv:1311.6405); R. Lochowski, "On a generalisation of the Banach
 * indicatrix theorem" (arXiv:1503.01746). Loggers of material fatigue keep the open turning points
 * beside the histogram for the same reason as here: so that records can be added.
 *
 * Records: a tracker is its own record. pcptune_band_cut() begins the next at the same position;
 * pcptune_band_merge(a, b) gives what one tracker over both would have, to the last number.
 *
 * Everything here is pure, in integers, without memory, lock or clock; one thread at a time for
 * each tracker. A push is O(1) amortised: each point enters and leaves once.
 */
#ifndef PCPTUNE_TRACKER_H
#define PCPTUNE_TRACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PCPTUNE_BAND_STACK   32u
#define PCPTUNE_BAND_BUCKETS 176u /* amplitudes up to 2^24; the last one is open above */

struct pcptune_band {
	int64_t start;	    /* position where the record begins */
	uint32_t n;	    /* turning points; 0: nothing was pushed yet */
	uint32_t collapsed; /* cycles counted early because the stack was full: 0 means exact */
	int64_t s[PCPTUNE_BAND_STACK];	      /* turning points; the last is the position now */
	uint64_t count[PCPTUNE_BAND_BUCKETS]; /* closed cycles by amplitude */
	uint64_t sum[PCPTUNE_BAND_BUCKETS];   /* their amplitudes, pages */
};

/* Pages moved between lists and zone. */
struct pcptune_band_traffic {
	uint64_t refilled; /* zone -> lists */
	uint64_t drained;  /* lists -> zone */
};

static inline uint64_t pcptune_band_range(int64_t a, int64_t b)
{
	return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

/* ---- the histogram: eight buckets an octave, one for each amplitude below 16 ---- */

static inline uint32_t pcptune_band_bucket(uint64_t amplitude)
{
	uint32_t e, b;

	if (amplitude < 8)
		return (uint32_t)amplitude;
	e = 63u - (uint32_t)__builtin_clzll(amplitude);
	b = (e - 2) * 8 + (uint32_t)((amplitude >> (e - 3)) & 7);
	return b < PCPTUNE_BAND_BUCKETS ? b : PCPTUNE_BAND_BUCKETS - 1;
}

/* The smallest amplitude of a bucket. At these the histogram is exact: offer them to policies. */
static inline uint64_t pcptune_band_edge(uint32_t bucket)
{
	return bucket < 8 ? bucket : (uint64_t)(8 + (bucket & 7)) << (bucket / 8 - 1);
}

static inline void pcptune_band_count(struct pcptune_band *b, uint64_t amplitude)
{
	uint32_t i = pcptune_band_bucket(amplitude);

	b->count[i]++;
	b->sum[i] += amplitude;
}

/* ---- the four-point rule, on a stack of the caller ---- */

/*
 * Takes the next position into the turning points s[0 .. *n), which have room for one more. Writes
 * the amplitudes of the cycles that it closes, at most *n / 2, into closed; returns how many.
 */
static inline uint32_t pcptune_turns_push(int64_t *s, uint32_t *n, int64_t x, uint64_t *closed)
{
	uint32_t k = *n, n_closed = 0;

	if (k && s[k - 1] == x)
		return 0;
	if (k >= 2 && (x > s[k - 1]) == (s[k - 1] > s[k - 2]))
		s[k - 1] = x;
	else
		s[k++] = x;
	while (k >= 4) {
		uint64_t inner = pcptune_band_range(s[k - 2], s[k - 3]);

		if (inner > pcptune_band_range(s[k - 3], s[k - 4]) ||
		    inner > pcptune_band_range(s[k - 1], s[k - 2]))
			break;
		closed[n_closed++] = inner;
		s[k - 3] = s[k - 1];
		k -= 2;
	}
	*n = k;
	return n_closed;
}

/*
 * The stack is full: the smallest range leaves it as if it were a cycle, but never the newest one.
 * Returns its amplitude.
 */
static inline uint64_t pcptune_turns_collapse(int64_t *s, uint32_t *n)
{
	uint64_t least = UINT64_MAX;
	uint32_t at = 0;

	for (uint32_t i = 0; i + 2 < *n; i++) {
		uint64_t range = pcptune_band_range(s[i], s[i + 1]);

		if (range < least) {
			least = range;
			at = i;
		}
	}
	for (uint32_t i = at; i + 2 < *n; i++)
		s[i] = s[i + 2];
	*n -= 2;
	return least;
}

/* An empty tracker, at no position yet: the first push tells. */
static inline void pcptune_band_init(struct pcptune_band *b)
{
	memset(b, 0, sizeof(*b));
}

/*
 * The position is now x, any in the order of time. Positions in between may be left out: see gate
 */
static inline void pcptune_band_push(struct pcptune_band *b, int64_t x)
{
	uint64_t closed[PCPTUNE_BAND_STACK / 2];
	uint32_t n;

	if (!b->n)
		b->start = x;
	n = pcptune_turns_push(b->s, &b->n, x, closed);
	for (uint32_t i = 0; i < n; i++)
		pcptune_band_count(b, closed[i]);
	if (b->n == PCPTUNE_BAND_STACK) {
		pcptune_band_count(b, pcptune_turns_collapse(b->s, &b->n));
		b->collapsed++;
	}
}

/* The position now; 0 for an empty tracker. */
static inline int64_t pcptune_band_now(const struct pcptune_band *b)
{
	return b->n ? b->s[b->n - 1] : 0;
}

/* Ends the record and begins the next where it ended. */
static inline void pcptune_band_cut(struct pcptune_band *b, struct pcptune_band *ret_record)
{
	int64_t x = pcptune_band_now(b);
	bool any = b->n != 0;

	*ret_record = *b;
	pcptune_band_init(b);
	if (any)
		pcptune_band_push(b, x);
}

/* a becomes the record of a and, after it, b, which began where a ended. */
static inline void pcptune_band_merge(struct pcptune_band *a, const struct pcptune_band *b)
{
	if (b->n)
		pcptune_band_push(a, b->start);
	for (uint32_t i = 0; i < b->n; i++)
		pcptune_band_push(a, b->s[i]);
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++) {
		a->count[i] += b->count[i];
		a->sum[i] += b->sum[i];
	}
	a->collapsed += b->collapsed;
}

/* ---- the gate in front: push only when the position left a band of 2 x grain ---- */

struct pcptune_band_gate {
	int64_t lo;
	uint64_t width; /* 2 x grain; 0: every change */
};

static inline void pcptune_band_gate_init(struct pcptune_band_gate *g, int64_t x, uint32_t grain)
{
	g->width = 2 * (uint64_t)grain;
	g->lo = x - (int64_t)grain;
}

/*
 * Is x to be pushed? Re-centres the band if so. Each extreme is read by at most `grain` too near.
 */
static inline bool pcptune_band_gate_left(struct pcptune_band_gate *g, int64_t x)
{
	if ((uint64_t)x - (uint64_t)g->lo <= g->width)
		return false;
	g->lo = x - (int64_t)(g->width / 2);
	return true;
}

/* ---- evaluation ---- */

/* The zone's side p follows one turning point; lists of `capacity` pages in between. */
static inline void pcptune_band_play(int64_t x, uint64_t capacity, int64_t *p,
				     struct pcptune_band_traffic *t)
{
	int64_t low = x - (int64_t)capacity;

	if (x < *p) {
		t->refilled += (uint64_t)*p - (uint64_t)x;
		*p = x;
	} else if (low > *p) {
		t->drained += (uint64_t)low - (uint64_t)*p;
		*p = low;
	}
}

/*
 * Pages each way of the closed cycles. Exact at bucket edges; in between it is the line from edge
 * to edge, which is never too low. above (may be NULL): cycles that are certainly above the
 * capacity.
 */
static inline uint64_t pcptune_band_cycles(const struct pcptune_band *b, uint64_t capacity,
					   uint64_t *above)
{
	uint32_t first = pcptune_band_bucket(capacity), i = first;
	uint64_t lo = pcptune_band_edge(first), pages = 0, cycles = 0;

	if (lo < capacity) {
		uint64_t excess = b->sum[i] - b->count[i] * lo, width, left;

		/* the open bucket has no upper edge: what is known is a mean amplitude */
		if (first == PCPTUNE_BAND_BUCKETS - 1) {
			pages = b->sum[i] > b->count[i] * capacity
					? b->sum[i] - b->count[i] * capacity
					: 0;
			i++;
		} else {
			width = pcptune_band_edge(first + 1) - lo;
			left = lo + width - capacity;
			pages = excess / width * left + excess % width * left / width;
			i++;
		}
	}
	for (; i < PCPTUNE_BAND_BUCKETS; i++) {
		pages += b->sum[i] - b->count[i] * capacity;
		cycles += b->count[i];
	}
	if (above)
		*above = cycles;
	return pages;
}

/*
 * Plays one record: *p is the zone's side before it and after it, so that records in a row, each
 * with a capacity of its own, are evaluated as they followed each other. What a smaller capacity
 * than before can not hold any more is drained first. Adds to *t.
 */
static inline void pcptune_band_play_record(const struct pcptune_band *b, uint64_t capacity,
					    int64_t *p, struct pcptune_band_traffic *t)
{
	uint64_t cycles = pcptune_band_cycles(b, capacity, NULL);

	if (!b->n)
		return;
	pcptune_band_play(b->start, capacity, p, t);
	for (uint32_t i = 0; i < b->n; i++)
		pcptune_band_play(b->s[i], capacity, p, t);
	t->refilled += cycles;
	t->drained += cycles;
}

/*
 * Traffic of a record with lists of `capacity` pages that hold `level` (at most the capacity) when
 * it begins. The truth lies between level 0 and level = capacity where the level is not known.
 * ret_level (may be NULL): pages on the lists at the end.
 */
static inline struct pcptune_band_traffic pcptune_band_traffic(const struct pcptune_band *b,
							       uint64_t capacity, uint64_t level,
							       uint64_t *ret_level)
{
	struct pcptune_band_traffic t = {0, 0};
	int64_t p = b->start - (int64_t)(level < capacity ? level : capacity);

	pcptune_band_play_record(b, capacity, &p, &t);
	if (ret_level)
		*ret_level = b->n ? (uint64_t)(pcptune_band_now(b) - p) : level;
	return t;
}

/*
 * What lists with this high hold in effect: high less half of the mean refill and drain, each
 * bounded to [batch, high - batch]; at least 1. moves of 0: nothing was measured, batch is taken.
 */
static inline uint64_t pcptune_band_capacity(uint64_t high, uint64_t batch, uint64_t refilled,
					     uint64_t refills, uint64_t drained, uint64_t drains)
{
	uint64_t most = high > 2 * batch ? high - batch : batch;
	uint64_t br = refills ? refilled / refills : batch, d = drains ? drained / drains : batch;

	br = br < batch ? batch : br > most ? most : br;
	d = d < batch ? batch : d > most ? most : d;
	return high > (br + d) / 2 ? high - (br + d) / 2 : 1;
}

/*
 * The smallest capacity with which a record, begun with empty lists, moves at most so many pages.
 * Where batches grow with the run of calls (5.14, 6.7 and later) mean sizes say too little, since
 * long runs move most of the pages: what was moved at one high tells what it holds in effect.
 */
static inline uint64_t pcptune_band_match(const struct pcptune_band *b, uint64_t pages)
{
	uint64_t lo = 0, hi = UINT64_C(1) << 24;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		struct pcptune_band_traffic t = pcptune_band_traffic(b, mid, 0, NULL);

		if (t.refilled + t.drained <= pages)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

#endif
