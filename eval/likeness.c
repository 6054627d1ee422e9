/* SPDX-License-Identifier: MIT */
/*
 * Putting a walk together from its record, and lists along it; see likeness.h.
 *
 * Turning points are a list by next[] while they are put together: a cycle goes into the leg from
 * one to the next. Records with many cycles are thinned out evenly, of those with few several walks
 * are made, one after the other, so that chance matters less. The walk is kept short enough for
 * some milliseconds.
 */
#include "eval/likeness.h"

#include <errno.h>
#include <stdlib.h>
#include "eval/lists.h"

#define CYCLES_MOST 2000u   /* of one walk */
#define WALKS_MOST  8u	    /* one after the other */
#define STRAYS_MOST 40000u  /* breaks on all of them, about */
#define TRIES	    200u    /* for a leg that is long enough */
#define LEG_HIGHS   16u	    /* legs are at most so many times high */
#define WORK_MOST   300000u /* runs, and moves of a batch */

static uint64_t below(uint64_t *state, uint64_t n)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state >> 11) % n;
}

/* ---- what the record says ---- */

static uint32_t first_bucket(void)
{
	return pcptune_band_bucket(LIKENESS_STRAY);
}

static uint64_t cycles_of(const struct pcptune_band *b)
{
	uint64_t n = 0;

	for (uint32_t i = first_bucket(); i < PCPTUNE_BAND_BUCKETS; i++)
		n += b->count[i];
	return n;
}

static void find_breaks(struct likeness *l, const struct pcptune_band *b, uint64_t pages)
{
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++) {
		if (i >= first_bucket()) {
			l->pages += 2 * b->sum[i];
			continue;
		}
		l->strays += b->count[i];
		l->stray_pages += b->sum[i];
	}
	for (uint32_t i = 1; i < b->n; i++)
		l->pages += pcptune_band_range(b->s[i], b->s[i - 1]);
	if (pages > l->pages + 2 * l->stray_pages)
		l->hidden = (pages - l->pages - 2 * l->stray_pages) / 2 >> l->order;
}

/* ---- one walk ---- */

struct making {
	int64_t *v;
	uint32_t *next;
	uint32_t n, room, last;
	uint64_t chance;
};

static void add_cycle(struct making *m, uint64_t amplitude)
{
	for (uint32_t tries = 0; tries < TRIES && m->n + 2 <= m->room; tries++) {
		uint32_t at = (uint32_t)below(&m->chance, m->n), a = m->n, b = m->n + 1;
		uint64_t length, to;
		bool up;

		if (at == m->last)
			continue;
		length = pcptune_band_range(m->v[at], m->v[m->next[at]]);
		if (length < amplitude)
			continue;
		up = m->v[m->next[at]] > m->v[at];
		to = amplitude + below(&m->chance, length - amplitude + 1);
		m->v[a] = up ? m->v[at] + (int64_t)to : m->v[at] - (int64_t)to;
		m->v[b] = up ? m->v[a] - (int64_t)amplitude : m->v[a] + (int64_t)amplitude;
		m->next[a] = b;
		m->next[b] = m->next[at];
		m->next[at] = a;
		m->n += 2;
		return;
	}
}

/* One cycle in so many of each bucket, from the largest on. */
static void add_cycles(struct making *m, const struct pcptune_band *b, uint64_t one_in)
{
	for (uint32_t i = PCPTUNE_BAND_BUCKETS; i-- > first_bucket();) {
		uint64_t n = (b->count[i] + below(&m->chance, one_in)) / one_in, lo, mean, half;

		if (!b->count[i])
			continue;
		lo = pcptune_band_edge(i);
		mean = b->sum[i] / b->count[i];
		half = mean - lo;
		for (; n; n--)
			add_cycle(m, mean - half + below(&m->chance, 2 * half + 1));
	}
}

/* Behind what is there already. */
static int take_over(struct likeness *l, const struct making *m)
{
	int64_t by = l->n ? l->x[l->n - 1] - m->v[0] : 0;

	if (l->room - l->n < m->n) {
		uint32_t room = 2 * l->room + m->n;
		int64_t *grown = reallocarray(l->x, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		l->x = grown;
		l->room = room;
	}
	for (uint32_t at = 0;; at = m->next[at]) {
		l->x[l->n++] = m->v[at] + by;
		if (at == m->last)
			return 0;
	}
}

static int add_walk(struct likeness *l, const struct pcptune_band *b, uint64_t one_in,
		    uint64_t seed)
{
	/* of each bucket one more than its share, at most */
	uint32_t room =
		PCPTUNE_BAND_STACK + 2 * (uint32_t)(cycles_of(b) / one_in + PCPTUNE_BAND_BUCKETS);
	struct making m = {.v = calloc(room, sizeof(*m.v)),
			   .next = calloc(room, sizeof(*m.next)),
			   .room = room,
			   .chance = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15)};
	int e = m.v && m.next ? 0 : -ENOMEM;

	for (uint32_t i = 0; !e && i < b->n; i++) {
		m.v[i] = b->s[i];
		m.next[i] = i + 1;
	}
	m.n = b->n;
	m.last = m.n - 1;
	if (!e && m.n > 1)
		add_cycles(&m, b, one_in);
	if (!e)
		e = take_over(l, &m);
	free(m.v);
	free(m.next);
	return e;
}

int likeness_make(struct likeness *l, const struct pcptune_band *b, uint64_t pages, uint32_t order)
{
	uint64_t n = cycles_of(b), most = CYCLES_MOST, breaks, one_in, walks;
	int e = 0;

	*l = (struct likeness){.order = order};
	if (!b->n)
		return 0;
	find_breaks(l, b, pages);
	breaks = l->strays + l->hidden < l->pages ? l->strays + l->hidden : l->pages;
	if (n && breaks / n > STRAYS_MOST / CYCLES_MOST)
		most = STRAYS_MOST / (breaks / n) + 1;
	one_in = n / most + 1;
	walks = n && n < most ? most / n : 1;
	walks = walks > WALKS_MOST ? WALKS_MOST : walks;
	for (uint64_t i = 0; !e && i < walks; i++)
		e = add_walk(l, b, one_in, i);
	for (uint32_t i = 0; i < l->n; i++)
		l->x[i] >>= order;
	return e;
}

void likeness_free(struct likeness *l)
{
	free(l->x);
}

/* ---- lists along it ---- */

/* Breaks come after one block to twice the mean of the blocks between them. */
struct breaks {
	uint64_t gap, size; /* blocks; gap 0: there are none */
	uint64_t left;
	uint32_t order;
	uint64_t chance;
};

static void next_break(struct breaks *k)
{
	k->left = k->gap ? 1 + below(&k->chance, 2 * k->gap) : UINT64_MAX;
}

/* What a run of so many blocks takes: single pages are moved at once, others one by one. */
static uint64_t cost_of(const struct lists *l, uint32_t order, uint64_t run)
{
	return 1 + (order ? run / 4 : run / l->st.batch);
}

/* by: blocks. Returns how far it came before there was no work left. */
static int64_t walk_leg(struct lists *l, struct breaks *k, int64_t by, uint64_t *work)
{
	uint64_t all = pcptune_band_range(by, 0), left;
	uint64_t most = 1 + (LEG_HIGHS * (uint64_t)l->st.high >> k->order);
	int64_t way = by > 0 ? 1 : -1;

	all = all < most ? all : most;
	left = all;
	while (left && *work) {
		uint64_t run = left < k->left ? left : k->left, cost = cost_of(l, k->order, run);

		lists_move(l, k->order, way * (int64_t)run);
		left -= run;
		k->left -= run;
		*work -= cost < *work ? cost : *work;
		if (k->left)
			continue;
		lists_move(l, k->order, -way * (int64_t)k->size);
		lists_move(l, k->order, way * (int64_t)k->size);
		next_break(k);
	}
	return way * (int64_t)(all - left);
}

void likeness_play(const struct likeness *l, const struct likeness_limits *m, uint64_t hidden,
		   struct likeness_moves *ret)
{
	uint64_t unseen = (l->hidden >> 16) * hidden + ((l->hidden & 65535) * hidden >> 16);
	uint64_t n = l->strays + unseen, blocks = l->pages >> l->order, work = WORK_MOST;
	struct breaks k = {.order = l->order, .chance = UINT64_C(0x9e3779b97f4a7c15)};
	struct lists at = {0};
	int64_t x = 0;

	k.size = n ? ((l->stray_pages >> l->order) + unseen) / n : 1;
	k.size = k.size ? k.size : 1;
	k.gap = !n ? 0 : blocks > n ? blocks / n : 1;
	next_break(&k);
	lists_limits(&at, m->high, m->high, m->high, m->batch, m->scale_max, m->rules);
	pcptune_band_init(&ret->band);
	pcptune_band_push(&ret->band, x);
	for (uint32_t i = 1; i < l->n && work; i++) {
		x += walk_leg(&at, &k, l->x[i] - l->x[i - 1], &work);
		pcptune_band_push(&ret->band, x * (INT64_C(1) << l->order));
	}
	ret->refilled = at.alloc_zone;
	ret->refills = at.refills;
	ret->drained = at.free_zone;
	ret->drains = at.drains;
}
