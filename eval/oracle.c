/* SPDX-License-Identifier: MIT */
/*
 * The oracles, see oracle.h.
 *
 * The split takes whole linear pieces of the curves, the steepest first, from a heap. Where a piece
 * ends is found by bisection: the slope of a convex curve only falls.
 *
 * Belady works on runs, not pages. First pass, backwards in effect: a stack of freed runs for each
 * CPU; an allocation takes from the top and cuts runs into pieces, each of which knows the event
 * that uses it (or that none does). Second pass, in order: pieces come into a heap by their use,
 * and as long as too much is held the one used last gives pages up.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "eval/oracle.h"

/* ---- a heap of what has the largest key on top ---- */

struct entry {
	uint64_t key;
	size_t what;
};

struct heap {
	struct entry *e;
	size_t n;
};

static void heap_push(struct heap *h, uint64_t key, size_t what)
{
	size_t i = h->n++;

	while (i && h->e[(i - 1) / 2].key < key) {
		h->e[i] = h->e[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	h->e[i] = (struct entry){key, what};
}

static void heap_pop(struct heap *h)
{
	struct entry last = h->e[--h->n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < h->n) {
		if (child + 1 < h->n && h->e[child + 1].key > h->e[child].key)
			child++;
		if (h->e[child].key <= last.key)
			break;
		h->e[i] = h->e[child];
		i = child;
	}
	h->e[i] = last;
}

/* ---- the static split ---- */

static uint64_t moved(const struct curve *c, uint64_t capacity)
{
	struct pcptune_band_traffic t = curve_traffic(c, capacity, 0);

	return t.refilled + t.drained;
}

/* What the next page saves. */
static uint64_t slope(const struct curve *c, uint64_t capacity)
{
	return moved(c, capacity) - moved(c, capacity + 1);
}

/* The first capacity above `from` whose next page saves less than s. */
static uint64_t piece_end(const struct curve *c, uint64_t from, uint64_t s)
{
	uint64_t lo = from + 1, hi = curve_range(c) + 1;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (slope(c, mid) < s)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

int oracle_split(const struct curve *const *curves, size_t n, uint64_t least, uint64_t budget,
		 uint64_t *capacity)
{
	struct heap h = {calloc(n + 1, sizeof(struct entry)), 0};

	if (!h.e)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		capacity[i] = least;
		heap_push(&h, slope(curves[i], least), i);
	}
	budget = budget > n * least ? budget - n * least : 0;
	while (h.n && budget && h.e[0].key) {
		size_t i = h.e[0].what;
		uint64_t end = piece_end(curves[i], capacity[i], h.e[0].key);
		uint64_t give = end - capacity[i] < budget ? end - capacity[i] : budget;

		heap_pop(&h);
		capacity[i] += give;
		budget -= give;
		heap_push(&h, slope(curves[i], capacity[i]), i);
	}
	free(h.e);
	return 0;
}

/* ---- Belady on held pages ---- */

#define NONE SIZE_MAX

struct piece {
	uint64_t pages;	 /* first: all; later: still held */
	size_t freed_by; /* event */
	size_t used_by;	 /* event, NONE: never */
	size_t below;	 /* in the stack of its CPU; later: next piece of the same free */
	size_t next_use; /* next piece that the same event uses */
};

struct belady {
	const struct oracle_event *ev;
	size_t n, n_pieces;
	struct piece *piece; /* at most 2 n: each event begins one and cuts one */
	size_t *top;	     /* of each CPU's stack */
	size_t *first;	     /* of each event: pieces that it frees, or uses */
	struct heap heap;
};

static size_t piece_new(struct belady *b, uint64_t pages, size_t freed_by, size_t below)
{
	b->piece[b->n_pieces] = (struct piece){pages, freed_by, NONE, below, NONE};
	return b->n_pieces++;
}

/* An allocation takes pieces off the stack of its CPU; the last one may be cut. */
static void match(struct belady *b, size_t event, uint64_t pages)
{
	size_t *top = &b->top[b->ev[event].cpu];

	while (pages && *top != NONE) {
		size_t i = *top;

		if (b->piece[i].pages > pages) {
			size_t rest = piece_new(b, b->piece[i].pages - pages, b->piece[i].freed_by,
						b->piece[i].below);

			b->piece[i].pages = pages;
			b->piece[i].below = rest;
		}
		pages -= b->piece[i].pages;
		*top = b->piece[i].below;
		b->piece[i].used_by = event;
		b->piece[i].next_use = b->first[event];
		b->first[event] = i;
	}
}

static void match_all(struct belady *b)
{
	for (size_t i = 0; i < b->n; i++) {
		int64_t pages = b->ev[i].pages;
		size_t *top = &b->top[b->ev[i].cpu];

		if (pages > 0)
			*top = piece_new(b, (uint64_t)pages, i, *top);
		else if (pages < 0)
			match(b, i, 0 - (uint64_t)pages);
	}
	for (size_t k = 0; k < b->n_pieces; k++) {
		size_t *first = &b->first[b->piece[k].freed_by];

		b->piece[k].below = *first;
		*first = k;
	}
}

/* Takes what an event uses out of what is held; returns how much that is. */
static uint64_t use(struct belady *b, size_t event)
{
	uint64_t found = 0;

	for (size_t k = b->first[event]; k != NONE; k = b->piece[k].next_use) {
		found += b->piece[k].pages;
		b->piece[k].pages = 0;
	}
	return found;
}

static void play(struct belady *b, uint64_t budget, struct pcptune_band_traffic *t)
{
	uint64_t held = 0;

	for (size_t i = 0; i < b->n; i++) {
		if (b->ev[i].pages < 0) {
			uint64_t found = use(b, i);

			held -= found;
			t->refilled += 0 - (uint64_t)b->ev[i].pages - found;
			continue;
		}
		for (size_t k = b->ev[i].pages ? b->first[i] : NONE; k != NONE;
		     k = b->piece[k].below)
			heap_push(&b->heap, b->piece[k].used_by, k);
		held += (uint64_t)b->ev[i].pages;
		while (held > budget) {
			struct piece *p = &b->piece[b->heap.e[0].what];
			uint64_t out = p->pages < held - budget ? p->pages : held - budget;

			p->pages -= out;
			held -= out;
			t->drained += out;
			if (!p->pages)
				heap_pop(&b->heap);
		}
	}
}

int oracle_belady(const struct oracle_event *events, size_t n, uint32_t n_cpus, uint64_t budget,
		  struct pcptune_band_traffic *ret)
{
	struct belady b = {.ev = events,
			   .n = n,
			   .piece = calloc(2 * n + 1, sizeof(struct piece)),
			   .top = malloc((n_cpus + 1) * sizeof(size_t)),
			   .first = malloc((n + 1) * sizeof(size_t)),
			   .heap = {calloc(2 * n + 1, sizeof(struct entry)), 0}};
	struct pcptune_band_traffic t = {0, 0};
	int r = b.piece && b.top && b.first && b.heap.e ? 0 : -ENOMEM;

	if (!r) {
		memset(b.top, 0xff, (n_cpus + 1) * sizeof(size_t));
		memset(b.first, 0xff, (n + 1) * sizeof(size_t));
		match_all(&b);
		play(&b, budget, &t);
		*ret = t;
	}
	free(b.piece);
	free(b.top);
	free(b.first);
	free(b.heap.e);
	return r;
}
