/* SPDX-License-Identifier: MIT */
/*
 * The closed cycles of a record, added up from above, so that what they move at some capacity is a
 * look-up instead of a pass over the histogram. Made once for each record and asked by every job.
 */
#ifndef PCPTUNE_EVAL_SWINGS_H
#define PCPTUNE_EVAL_SWINGS_H

#include <pcptune/tracker.h>

struct swings {
	struct {
		uint64_t count, sum;
	} from[PCPTUNE_BAND_BUCKETS + 1]; /* [i]: of buckets i and above */
};

static inline void swings_of(const struct pcptune_band *b, struct swings *ret)
{
	uint64_t count = 0, sum = 0;

	ret->from[PCPTUNE_BAND_BUCKETS].count = ret->from[PCPTUNE_BAND_BUCKETS].sum = 0;
	for (uint32_t i = PCPTUNE_BAND_BUCKETS; i-- > 0;) {
		ret->from[i].count = count += b->count[i];
		ret->from[i].sum = sum += b->sum[i];
	}
}

/* pcptune_band_cycles() of b, to the page. */
static inline uint64_t swings_cycles(const struct swings *s, const struct pcptune_band *b,
				     uint64_t capacity)
{
	uint32_t i = pcptune_band_bucket(capacity);
	uint64_t lo = pcptune_band_edge(i), pages = 0;

	if (i == PCPTUNE_BAND_BUCKETS - 1)
		return pcptune_band_cycles(b, capacity, NULL);
	if (lo < capacity) {
		uint64_t excess = b->sum[i] - b->count[i] * lo;
		uint64_t width = pcptune_band_edge(i + 1) - lo, left = lo + width - capacity;

		pages = excess / width * left + excess % width * left / width;
		i++;
	}
	return pages + s->from[i].sum - s->from[i].count * capacity;
}

/* pcptune_band_play_record() of b. */
static inline void swings_play(const struct swings *s, const struct pcptune_band *b,
			       uint64_t capacity, int64_t *p, struct pcptune_band_traffic *t)
{
	uint64_t cycles;

	if (!b->n)
		return;
	cycles = swings_cycles(s, b, capacity);
	pcptune_band_play(b->start, capacity, p, t);
	for (uint32_t i = 0; i < b->n; i++)
		pcptune_band_play(b->s[i], capacity, p, t);
	t->refilled += cycles;
	t->drained += cycles;
}

#endif
