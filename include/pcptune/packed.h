/* SPDX-License-Identifier: MIT */
/*
 * A tracker (tracker.h) packed into 1.7 KiB, as it lies in the segment of a target.
 *
 * A bucket is one word: the number of cycles in its low half, and in its high half by how much they
 * exceed the smallest amplitude of the bucket, all together. Both of a bucket are thus read at
 * once, and the second half lasts for long: an excess is at most an eighth of an amplitude. A half
 * that would overflow stays as it is, and `lost` counts the cycle; the record says less then, and
 * a reader takes it for broken.
 *
 * The writer is the holder of a lock, one at a time. A reader that has seen to it that nobody
 * writes (segment.h, "Records") copies the words and calls pcptune_packed_unpack(), which believes
 * none of them: counts, positions and the number of turning points are checked, and what passes is
 * a struct pcptune_band with which every function of tracker.h is defined.
 */
#ifndef PCPTUNE_PACKED_H
#define PCPTUNE_PACKED_H

#include <string.h>

#include <pcptune/tracker.h>

struct pcptune_packed {
	uint32_t tag; /* which record this is: the cut that it began with */
	uint32_t lost;
	int64_t start;
	uint32_t n;
	uint32_t collapsed;
	int64_t s[PCPTUNE_BAND_STACK];
	uint64_t bucket[PCPTUNE_BAND_BUCKETS]; /* excess << 32 | count */
};

/* Positions, in pages: no allocator gets there in a century. Ranges and sums stay far from 2^63. */
#define PCPTUNE_PACKED_FAR (INT64_C(1) << 56)

/* A record that begins at position x. */
static inline void pcptune_packed_init(struct pcptune_packed *p, int64_t x, uint32_t tag)
{
	memset(p, 0, sizeof(*p));
	p->tag = tag;
	p->start = p->s[0] = x;
	p->n = 1;
}

static inline void pcptune_packed_count(struct pcptune_packed *p, uint64_t amplitude)
{
	uint32_t i = pcptune_band_bucket(amplitude);
	uint64_t excess = amplitude - pcptune_band_edge(i), was = p->bucket[i];

	if ((uint32_t)was == UINT32_MAX || excess > UINT32_MAX - (was >> 32))
		p->lost += p->lost < UINT32_MAX;
	else
		p->bucket[i] = was + 1 + (excess << 32);
}

/* pcptune_band_push() */
static inline void pcptune_packed_push(struct pcptune_packed *p, int64_t x)
{
	uint64_t closed[PCPTUNE_BAND_STACK / 2];
	uint32_t n = pcptune_turns_push(p->s, &p->n, x, closed);

	for (uint32_t i = 0; i < n; i++)
		pcptune_packed_count(p, closed[i]);
	if (p->n == PCPTUNE_BAND_STACK) {
		pcptune_packed_count(p, pcptune_turns_collapse(p->s, &p->n));
		p->collapsed++;
	}
}

static inline bool pcptune_packed_near(int64_t x)
{
	return x < PCPTUNE_PACKED_FAR && x > -PCPTUNE_PACKED_FAR;
}

/* Turning points turn, and lie where pages can be. */
static inline bool pcptune_packed_turns(const struct pcptune_packed *p)
{
	if (!p->n || p->n >= PCPTUNE_BAND_STACK || !pcptune_packed_near(p->start))
		return false;
	for (uint32_t i = 0; i < p->n; i++)
		if (!pcptune_packed_near(p->s[i]) || (i && p->s[i] == p->s[i - 1]) ||
		    (i > 1 && (p->s[i] > p->s[i - 1]) == (p->s[i - 1] > p->s[i - 2])))
			return false;
	return true;
}

/* An excess that its cycles can have; that of the last bucket is open above. */
static inline bool pcptune_packed_bucket(uint32_t i, uint64_t word)
{
	uint64_t count = (uint32_t)word, excess = word >> 32;

	if (i == PCPTUNE_BAND_BUCKETS - 1)
		return count || !excess;
	return excess <= count * (pcptune_band_edge(i + 1) - pcptune_band_edge(i) - 1);
}

/*
 * p: a copy of the caller's own. False, and *ret is not touched: no tracker can have written this.
 * What `lost` says is for the caller to look at.
 */
static inline bool pcptune_packed_unpack(const struct pcptune_packed *p, struct pcptune_band *ret)
{
	if (!pcptune_packed_turns(p))
		return false;
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++)
		if (!pcptune_packed_bucket(i, p->bucket[i]))
			return false;
	pcptune_band_init(ret);
	ret->start = p->start;
	ret->n = p->n;
	ret->collapsed = p->collapsed;
	for (uint32_t i = 0; i < p->n; i++)
		ret->s[i] = p->s[i];
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++) {
		ret->count[i] = (uint32_t)p->bucket[i];
		ret->sum[i] = ret->count[i] * pcptune_band_edge(i) + (p->bucket[i] >> 32);
	}
	return true;
}

#endif
