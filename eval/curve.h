/* SPDX-License-Identifier: MIT */
/*
 * The traffic curve of one walk, exact for every capacity.
 *
 * The same four-point rule as the live tracker (pcptune/tracker.h), with what only an offline pass
 * can afford: each distinct amplitude is kept, not a bucket of them, and the stack grows as it
 * must, so that nothing is ever collapsed. Memory: 16 bytes for each distinct amplitude and 8 for
 * each open turning point, both at most the range of the walk, whatever its length.
 *
 * One thread at a time for each curve; sealed curves may be read by many.
 */
#ifndef PCPTUNE_EVAL_CURVE_H
#define PCPTUNE_EVAL_CURVE_H

#include <stddef.h>
#include <stdint.h>
#include <pcptune/tracker.h>

struct curve_cycles {
	uint64_t amplitude; /* pages; 0: an empty slot */
	uint64_t count;
};

struct curve {
	int64_t start, least, most; /* first position, and extremes */
	int64_t *s;		    /* open turning points */
	uint64_t *closed;	    /* scratch of a push, as long as s */
	uint32_t n, room;
	struct curve_cycles *cycles; /* a hash table; once sealed: ascending by amplitude */
	size_t n_cycles, slots;
	uint64_t *above_count; /* sealed: of cycles [i ..], and their amplitudes */
	uint64_t *above_sum;
	bool sealed;
};

void curve_init(struct curve *c);
void curve_free(struct curve *c);
/* The position is now x. 0 or -ENOMEM (the curve is as before the call, but for room). */
int curve_push(struct curve *c, int64_t x);
/* A live record as a curve: exact at bucket edges, each bucket's cycles at their mean. -ENOMEM. */
int curve_from_band(struct curve *c, const struct pcptune_band *b);
/* Ends the walk: sorts what was counted. Needed before the functions below. 0 or -ENOMEM. */
int curve_seal(struct curve *c);

/* Pages each way of the closed cycles, and how many are above the capacity (NULL: not asked). */
uint64_t curve_cycle_pages(const struct curve *c, uint64_t capacity, uint64_t *above);
/* Traffic with lists of `capacity` pages that hold `level` at the beginning. */
struct pcptune_band_traffic curve_traffic(const struct curve *c, uint64_t capacity, uint64_t level);
/* The capacity from which on nothing but the net demand moves: the range of the walk. */
uint64_t curve_range(const struct curve *c);

#endif
