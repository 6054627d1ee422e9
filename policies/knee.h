/* SPDX-License-Identifier: MIT */
/*
 * What the records of one CPU say, kept small: for each capacity that its lists might have (bucket
 * edges, eight an octave, 32 pages to 2^18), how many pages they would have taken from the zone.
 * Two horizons, a short and a long one, fade at their own pace; and for each capacity the level
 * that such lists would have now, so that swings longer than a record are seen as well as short
 * ones.
 *
 * Only refills count, and stand for the drain of the same page: what larger lists save goes out and
 * comes back. A list that is filled once, by frees that nobody takes back, would seem to save
 * drains.
 *
 * At the edges of buckets this is exact for lists of one kind with a loss of one batch. Only the
 * policy writes it; all of it is flat, in integers.
 */
#ifndef PCPTUNE_POLICIES_KNEE_H
#define PCPTUNE_POLICIES_KNEE_H

#include "policies/watch.h"

#define KNEE_BUCKET 24u		       /* of the first edge, 32 pages */
#define KNEE_EDGES  105u	       /* up to 2^18 pages, 1 GiB */
#define KNEE_FAR    (INT64_C(1) << 40) /* no walk goes farther; a damaged record may */

enum { KNEE_SHORT, KNEE_LONG, KNEE_HORIZONS };

struct knee_curve {
	uint32_t taken[KNEE_HORIZONS][KNEE_EDGES]; /* pages from the zone, faded */
	uint32_t level[KNEE_EDGES];		   /* pages on lists of that capacity */
	uint32_t weight[KNEE_HORIZONS];		   /* ms that the sums stand for; 0: no record */
};

static inline uint32_t knee_edge(uint32_t j)
{
	return (uint32_t)pcptune_band_edge(KNEE_BUCKET + j);
}

/* log2 of the pages from edge j to the next */
static inline uint32_t knee_width_log(uint32_t j)
{
	return (KNEE_BUCKET + j) / 8 - 1;
}

/* The largest edge that is not above a capacity; 0 for what is below the first. */
static inline uint32_t knee_index(uint64_t capacity)
{
	uint32_t b = pcptune_band_bucket(capacity);

	return b <= KNEE_BUCKET		       ? 0
	       : b >= KNEE_BUCKET + KNEE_EDGES ? KNEE_EDGES - 1
					       : b - KNEE_BUCKET;
}

/* ---- a record, made safe ---- */

struct knee_swings {
	uint32_t n;
	uint32_t cycles;	       /* closed ones of 32 pages and more */
	int64_t x[PCPTUNE_BAND_STACK]; /* turning points, from the record's start */
	uint64_t closed[KNEE_EDGES];   /* pages that closed cycles take, by edge */
};

static inline void knee_read(const struct pcptune_band *b, struct knee_swings *ret)
{
	uint64_t count = 0, sum = 0;

	ret->n = pcptune_min_u32(b->n, PCPTUNE_BAND_STACK);
	for (uint32_t i = 0; i < ret->n; i++) {
		int64_t x = (int64_t)((uint64_t)b->s[i] - (uint64_t)b->start);

		ret->x[i] = x > KNEE_FAR ? KNEE_FAR : x < -KNEE_FAR ? -KNEE_FAR : x;
	}
	for (uint32_t i = PCPTUNE_BAND_BUCKETS; i-- > KNEE_BUCKET;) {
		count += b->count[i];
		sum += b->sum[i];
		if (i < KNEE_BUCKET + KNEE_EDGES)
			ret->closed[i - KNEE_BUCKET] = sum - count * pcptune_band_edge(i);
	}
	ret->cycles = (uint32_t)watch_min(count, UINT32_MAX);
}

/* Pages that lists of this capacity take over the record, and the level that they end with. */
static inline uint64_t knee_play(const struct knee_swings *s, uint32_t capacity, uint64_t closed,
				 uint32_t *level)
{
	uint32_t held = pcptune_min_u32(*level, capacity);
	struct pcptune_band_traffic t = {0, 0};
	int64_t p = -(int64_t)held;

	for (uint32_t i = 0; i < s->n; i++)
		pcptune_band_play(s->x[i], capacity, &p, &t);
	*level = s->n ? (uint32_t)(s->x[s->n - 1] - p) : held;
	return watch_min(t.refilled + closed, UINT32_MAX);
}

/* ---- the curve ---- */

static inline uint32_t knee_fade(uint32_t v, uint32_t factor)
{
	return (uint32_t)((uint64_t)v * factor >> 16);
}

/* Time that a record or a rest is counted with: a horizon at most. */
static inline uint32_t knee_ms(uint64_t us, uint32_t horizon_ms)
{
	return (uint32_t)watch_min(us / 1000, horizon_ms);
}

/* Returns what the largest lists would have taken. */
static inline uint64_t knee_add(struct knee_curve *c, const struct knee_swings *s, uint64_t dt_us,
				const uint32_t *horizon_ms)
{
	uint32_t factor[KNEE_HORIZONS];
	uint64_t taken = 0;

	for (int h = 0; h < KNEE_HORIZONS; h++) {
		uint32_t ms = pcptune_max_u32(knee_ms(dt_us, horizon_ms[h]), 1);

		factor[h] = (uint32_t)(((uint64_t)horizon_ms[h] << 16) / (horizon_ms[h] + ms));
		c->weight[h] = knee_fade(c->weight[h], factor[h]) + ms;
	}
	for (uint32_t j = 0; j < KNEE_EDGES; j++) {
		taken = knee_play(s, knee_edge(j), s->closed[j], &c->level[j]);
		for (int h = 0; h < KNEE_HORIZONS; h++)
			c->taken[h][j] = (uint32_t)watch_min(
				knee_fade(c->taken[h][j], factor[h]) + taken, UINT32_MAX);
	}
	return taken;
}

/* What all CPUs together say: to begin with, and for swings that one CPU has rarely. */
struct knee_mean {
	uint64_t taken[KNEE_EDGES]; /* pages, long horizon */
	uint64_t weight;	    /* ms */
};

/* ms by which the sums are to be divided when the CPU was idle since: they fade meanwhile. */
static inline uint32_t knee_weight(const struct knee_curve *c, int h, uint64_t idle_us,
				   uint32_t horizon_ms)
{
	uint64_t ms = watch_min(idle_us / 1000, 3600000);

	return (uint32_t)watch_min(c->weight[h] + ms + ms * ms / horizon_ms, UINT32_MAX);
}

/* Adds the curve of one CPU, whose weight is this by now. */
static inline void knee_mean_add(struct knee_mean *m, const struct knee_curve *c, uint32_t weight)
{
	for (uint32_t j = 0; j < KNEE_EDGES; j++)
		m->taken[j] += c->taken[KNEE_LONG][j];
	m->weight += weight;
}

/* A way to look at a curve: its own by one horizon, and so much of the mean. */
struct knee_lens {
	const struct knee_mean *mean;
	uint64_t scale;	 /* of the mean, in 1 / 2^24 */
	uint32_t weight; /* ms */
	int h;
};

/* Less of the mean for a CPU that is less busy than all in it: ms, in 1 / 65536. */
static inline uint64_t knee_part(const struct knee_curve *c, uint32_t weight,
				 const struct knee_mean *m, uint32_t ms)
{
	uint64_t own = (uint64_t)c->taken[KNEE_LONG][0] * 1024 / pcptune_max_u32(weight, 1);
	uint64_t all = m->weight ? (m->taken[0] >> 8) * 1024 / m->weight : 0;

	all = all << 8;
	return all ? ((uint64_t)ms << 16) * watch_min(own, all) / all : 0;
}

/* A curve with this weight by now, and `ms` of the mean beside it. */
static inline struct knee_lens knee_lens(const struct knee_curve *c, int h, uint32_t weight,
					 const struct knee_mean *m, uint32_t ms)
{
	uint64_t part = ms ? knee_part(c, weight, m, ms) : 0;

	return (struct knee_lens){.mean = m,
				  .scale = m->weight ? (part << 8) / m->weight : 0,
				  .weight = weight + (uint32_t)(part >> 16),
				  .h = h};
}

/* Pages taken with a capacity, in the time that the weight stands for. */
static inline uint32_t knee_taken(const struct knee_curve *c, const struct knee_lens *l, uint32_t j)
{
	return (uint32_t)watch_min(c->taken[l->h][j] + ((l->mean->taken[j] >> 8) * l->scale >> 16),
				   UINT32_MAX);
}

/* Pages a second taken with this capacity: exact at edges, else on the line between them. */
static inline uint64_t knee_rate(const struct knee_curve *c, const struct knee_lens *l,
				 uint32_t capacity)
{
	uint32_t j = pcptune_min_u32(knee_index(capacity), KNEE_EDGES - 2);
	int64_t here = knee_taken(c, l, j), step = (int64_t)knee_taken(c, l, j + 1) - here;
	int64_t past = (int64_t)capacity - knee_edge(j), width = INT64_C(1) << knee_width_log(j);
	int64_t taken = here + step * (past < width ? past : width) / width;

	return l->weight && taken > 0 ? (uint64_t)taken * 1000 / l->weight : 0;
}

#define KNEE_PRICE 256u /* prices count cycles a second in such parts */

/*
 * What each step of capacity saves: cycles a second that a page more would serve. Never rising, so
 * that steps are taken in their order.
 */
static inline void knee_prices(const struct knee_curve *c, const struct knee_lens *l,
			       uint32_t *price)
{
	uint64_t scale = ((uint64_t)KNEE_PRICE * 1000 << 16) / pcptune_max_u32(l->weight, 1);
	uint32_t most = 0, above = knee_taken(c, l, KNEE_EDGES - 1);

	for (uint32_t j = KNEE_EDGES - 1; j-- > 0;) {
		uint32_t here = knee_taken(c, l, j);
		uint64_t p = (pcptune_sub0_u32(here, above) * scale >> 16) >> knee_width_log(j);

		most = pcptune_max_u32(most, (uint32_t)watch_min(p, UINT32_MAX));
		price[j] = most;
		above = here;
	}
	price[KNEE_EDGES - 1] = 0;
}

#endif
