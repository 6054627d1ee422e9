/* SPDX-License-Identifier: MIT */
/*
 * The lists of one CPU, see lists.h.
 *
 * Every hold of the zone lock moves as much as the generation lets it, so large drains are several.
 * Orders that the generation keeps on no list go to the zone block by block.
 *
 * What a call does follows from the state of the rules and from the counts of the lists. So when a
 * row comes back to a state in which it was at an earlier move of the zone, it will do the same
 * from there again, as often as it fits into what is left. Which state will come back is not known:
 * one is kept, and replaced after twice as many moves as the one before (R. P. Brent's way to find
 * a cycle). What leads up to the cycle is short: lists that run empty, high and scales that grow to
 * their bounds. Rows below LONG are not watched: they are most, and it would cost them more.
 */
#include <stdbool.h>
#include <string.h>
#include "eval/lists.h"

static const uint32_t list_orders[PCPTUNE_N_LISTS] = {0, 1, 2, 3, PCPTUNE_HUGE_ORDER};

static uint32_t list_of(uint32_t order)
{
	return order == PCPTUNE_HUGE_ORDER ? PCPTUNE_N_LISTS - 1 : order;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void note_peak(struct lists *l)
{
	l->peak = l->pages > l->peak ? l->pages : l->peak;
}

static void hold(struct lists *l, enum lists_path path, uint64_t holds, uint64_t pages)
{
	if (l->on_hold && holds)
		l->on_hold(l, path, holds, pages);
}

/* ---- rows that do the same again and again ---- */

#define LONG 4096u /* blocks */

struct watch {
	struct lists then;
	uint64_t left;		/* blocks of the row, then */
	uint64_t moves, period; /* since then, and how many until it is replaced; 0: no watch */
};

static void watch_begin(struct watch *w, const struct lists *l, uint64_t n)
{
	w->moves = 0;
	w->period = n >= LONG ? 1 : 0;
	w->left = n;
	if (w->period)
		w->then = *l;
}

/* After a move of the zone. Returns how many of the n blocks that are left are still to be done. */
static uint64_t watch_move(struct watch *w, struct lists *l, enum lists_path path, uint64_t n)
{
	const struct lists *b = &w->then;
	uint64_t times, pages, before;

	if (!w->period)
		return n;
	if (memcmp(&l->st, &b->st, sizeof(l->st)) != 0 ||
	    memcmp(l->blocks, b->blocks, sizeof(l->blocks)) != 0) {
		if (++w->moves < w->period)
			return n;
		before = w->period;
		watch_begin(w, l, n >= LONG ? n : 0);
		w->period *= 2 * before;
		return n;
	}
	times = n / (w->left - n);
	pages = times * (l->alloc_zone - b->alloc_zone + l->free_zone - b->free_zone);
	hold(l, path, times * (l->refills - b->refills + l->drains - b->drains), pages);
	n -= times * (w->left - n);
	l->alloc_zone += times * (l->alloc_zone - b->alloc_zone);
	l->free_zone += times * (l->free_zone - b->free_zone);
	l->refills += times * (l->refills - b->refills);
	l->drains += times * (l->drains - b->drains);
	l->free_high += times * (l->free_high - b->free_high);
	w->period = 0;
	return n;
}

/* ---- past the lists ---- */

static void direct(struct lists *l, uint32_t order, int64_t blocks)
{
	bool freed = blocks > 0;
	uint64_t n = freed ? (uint64_t)blocks : 0 - (uint64_t)blocks, pages = n << order;

	*(freed ? &l->free_pages : &l->alloc_pages) += pages;
	*(freed ? &l->free_zone : &l->alloc_zone) += pages;
	*(freed ? &l->free_direct : &l->alloc_direct) += pages;
	hold(l, freed ? LISTS_FREE : LISTS_ALLOC, n, pages);
}

/* ---- allocation ---- */

static void alloc(struct lists *l, uint32_t order, uint64_t n)
{
	uint64_t *blocks = &l->blocks[list_of(order)];
	struct watch w;

	l->alloc_pages += n << order;
	watch_begin(&w, l, n);
	while (n) {
		uint64_t k = least(n, *blocks);
		bool refill = !k;

		if (refill) {
			uint32_t got;

			pcptune_rules_on_alloc(&l->st);
			got = pcptune_rules_refill(&l->st, order, (uint32_t)l->pages, 0);
			*blocks = got;
			l->pages += (uint64_t)got << order;
			l->alloc_zone += (uint64_t)got << order;
			l->refills++;
			note_peak(l);
			hold(l, LISTS_ALLOC, 1, (uint64_t)got << order);
			k = 1;
		} else {
			pcptune_rules_on_allocs(&l->st, (uint32_t)least(k, 32));
		}
		*blocks -= k;
		l->pages -= k << order;
		pcptune_rules_taken(&l->st, (uint32_t)l->pages);
		n -= k;
		if (refill)
			n = watch_move(&w, l, LISTS_ALLOC, n);
	}
}

/* ---- free ---- */

static void drain_chunk(struct lists *l, uint32_t *at, uint64_t pages, enum lists_path path)
{
	uint64_t done = 0;

	while (done < pages && l->pages) {
		uint32_t order = list_orders[*at];
		uint64_t want = (pages - done + (UINT64_C(1) << order) - 1) >> order;
		uint64_t m = least(want, l->blocks[*at]);

		l->blocks[*at] -= m;
		l->pages -= m << order;
		done += m << order;
		if (m < want)
			*at = (*at + 1) % PCPTUNE_N_LISTS;
	}
	l->free_zone += done;
	l->drains++;
	hold(l, path, 1, done);
}

static void drain(struct lists *l, uint32_t first, uint64_t pages, enum lists_path path)
{
	uint64_t most = pcptune_rules_hold(l->st.rules, l->st.batch, l->st.scale_max);

	while (pages && l->pages) {
		uint64_t before = l->pages;

		drain_chunk(l, &first, least(pages, most), path);
		pages -= least(pages, before - l->pages);
	}
}

/* Did it move pages to the zone? */
static bool free_one(struct lists *l, uint32_t order)
{
	bool fired;
	uint32_t n;

	l->blocks[list_of(order)]++;
	l->pages += UINT64_C(1) << order;
	note_peak(l);
	n = pcptune_rules_free(&l->st, order, (uint32_t)l->pages, 0, &fired);
	if (!n)
		return false;
	l->free_high += fired;
	drain(l, list_of(order), n, LISTS_FREE);
	return true;
}

static void free_blocks(struct lists *l, uint32_t order, uint64_t n)
{
	struct watch w;

	l->free_pages += n << order;
	watch_begin(&w, l, n);
	while (n) {
		uint64_t k = order ? 0
				   : pcptune_rules_free_run(&l->st, (uint32_t)l->pages,
							    (uint32_t)least(n, 1u << 30));

		if (!k) {
			n--;
			if (free_one(l, order))
				n = watch_move(&w, l, LISTS_FREE, n);
			continue;
		}
		l->blocks[0] += k;
		l->pages += k;
		note_peak(l);
		n -= k;
	}
}

void lists_move(struct lists *l, uint32_t order, int64_t blocks)
{
	if (!pcptune_rules_has_list(l->st.rules, order))
		direct(l, order, blocks);
	else if (blocks < 0)
		alloc(l, order, 0 - (uint64_t)blocks);
	else if (blocks > 0)
		free_blocks(l, order, (uint64_t)blocks);
}

void lists_level(struct lists *l, uint32_t order, int64_t blocks)
{
	/* below high: lists that reach it are drained at once */
	uint64_t room = l->st.high > l->pages ? (l->st.high - l->pages - 1) >> order : 0, n;

	if (blocks <= 0 || !pcptune_rules_has_list(l->st.rules, order))
		return;
	n = least((uint64_t)blocks, room);
	l->blocks[list_of(order)] += n;
	l->pages += n << order;
	note_peak(l);
}

/* ---- limits ---- */

void lists_limits(struct lists *l, uint32_t high, uint32_t high_min, uint32_t high_max,
		  uint32_t batch, uint32_t scale_max, uint32_t rules)
{
	uint64_t before = l->pages;

	l->st.high = high;
	l->st.high_min = high_min;
	l->st.high_max = high_max;
	l->st.batch = batch;
	l->st.scale_max = scale_max;
	if (l->st.rules != rules)
		l->st.alloc_factor = l->st.free_count = 0;
	l->st.rules = rules;
	for (uint32_t i = 0; i < PCPTUNE_N_LISTS; i++)
		if (l->blocks[i] && !pcptune_rules_has_list(rules, list_orders[i]))
			drain(l, i, l->blocks[i] << list_orders[i], LISTS_AGENT);
	if (l->pages > high)
		drain(l, 0, l->pages - high, LISTS_AGENT);
	l->trim_pages += before - l->pages;
}
