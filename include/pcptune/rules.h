/* SPDX-License-Identifier: MIT */
/*
 * The rules of the kernel's per-CPU page lists, as pure functions.
 *
 * How much to refill, when and how much to drain, how `high` moves: integers in, integers out, no
 * memory, no lock, no clock. The allocator, the policies and the evaluation include this one file,
 * so that they do the same by construction. Each rule names the kernel version it states; the
 * words (high, high_min, high_max, batch, count, alloc_factor, free_count) mean what they mean in
 * mm/page_alloc.c. Facts were taken from the patches and commits named beside each rule and are
 * re-stated here in our own code.
 *
 * Generations
 *   g0  2.6 .. 5.13   high fixed (6 x batch by default), order 0 only, refill and drain one batch
 *   g1  5.14          high from the low watermark, order 0 only, free_factor doubles drains
 *   g4  6.7 .. 6.15   high tunes itself between high_min and high_max; alloc_factor, free_count;
 *                     orders 0..3 and 9 on lists
 *   gx  of our own    for a high that is set from outside: orders, refills and drains as in g4, but
 *                     high never moves by itself and consecutive high-order frees do not drain. In
 *                     g4 that rule drains however large high is, so that no value of high could
 *                     keep the pages of a program whose blocks are of order 1.
 *
 * All quantities are in base pages unless a name says otherwise. Ranges: count and high 0 .. 2^23,
 * batch 1 .. 1024, scale_max 0 .. 6, so that no product below overflows 32 bits.
 */
#ifndef PCPTUNE_RULES_H
#define PCPTUNE_RULES_H

#include <stdbool.h>
#include <stdint.h>

enum pcptune_rules_id {
	PCPTUNE_RULES_G0 = 0,
	PCPTUNE_RULES_G1 = 1,
	PCPTUNE_RULES_G4 = 4,
	PCPTUNE_RULES_GX = 15,
	PCPTUNE_RULES_MAX = 15, /* ids are 0 .. 15; pcptune_rules_known() says which exist */
};

#define PCPTUNE_COSTLY_ORDER	  3u /* orders above are "costly": no list, but for the huge one */
#define PCPTUNE_HUGE_ORDER	  9u
#define PCPTUNE_SCALE_MAX_DEFAULT 5u /* CONFIG_PCP_BATCH_SCALE_MAX */
#define PCPTUNE_HIGH_FRACTION	  8u /* high_max: at most 1/8 of the zone on all CPUs together */

/* The state that rules read and move; the lists themselves are elsewhere. */
struct pcptune_rule_state {
	uint32_t rules; /* enum pcptune_rules_id */
	uint32_t high;
	uint32_t high_min;
	uint32_t high_max;
	uint32_t batch;
	uint32_t scale_max;
	uint32_t alloc_factor; /* g4: log2 scale of the refill; g1: not used */
	uint32_t free_count;   /* g4: pages freed in a row; g1: free_factor (log2) */
	uint32_t flags;	       /* PCPTUNE_RF_* */
};

/* bit 0: the previous free on this pcp was of order 1..3 (kernel: PCPF_PREV_FREE_HIGH_ORDER) */
#define PCPTUNE_RF_PREV_HIGH_ORDER (1u << 0)
/* bit 1: the data-cache slice is large: keep a batch before a high-order drain */
#define PCPTUNE_RF_FREE_HIGH_BATCH (1u << 1)

/* What the zone says about memory, bits of zone_state below. */
#define PCPTUNE_ZS_BELOW_HIGH	  (1u << 0) /* below the high watermark (kernel: ZONE_BELOW_HIGH) */
#define PCPTUNE_ZS_RECLAIM_ACTIVE (1u << 1) /* kernel: ZONE_RECLAIM_ACTIVE */

static inline uint32_t pcptune_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t pcptune_max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Lower bound wins when the bounds cross. */
static inline uint32_t pcptune_clamp_u32(uint32_t v, uint32_t lo, uint32_t hi)
{
	return pcptune_max_u32(lo, pcptune_min_u32(v, hi));
}

/* a - b, not below 0 */
static inline uint32_t pcptune_sub0_u32(uint32_t a, uint32_t b)
{
	return a > b ? a - b : 0;
}

static inline bool pcptune_rules_known(uint32_t rules)
{
	return rules == PCPTUNE_RULES_G0 || rules == PCPTUNE_RULES_G1 ||
	       rules == PCPTUNE_RULES_G4 || rules == PCPTUNE_RULES_GX;
}

/* Generations with the scaled refills and drains of 6.7, and high-order lists. */
static inline bool pcptune_rules_scaled(uint32_t rules)
{
	return rules == PCPTUNE_RULES_G4 || rules == PCPTUNE_RULES_GX;
}

static inline const char *pcptune_rules_name(uint32_t rules)
{
	return rules == PCPTUNE_RULES_G0   ? "g0"
	       : rules == PCPTUNE_RULES_G1 ? "g1"
	       : rules == PCPTUNE_RULES_G4 ? "g4"
	       : rules == PCPTUNE_RULES_GX ? "gx"
					   : "?";
}

/* The id of a name as pcptune_rules_name() gives it; false: there is none. */
static inline bool pcptune_rules_parse(const char *name, uint32_t *ret_rules)
{
	for (uint32_t id = 0; id <= PCPTUNE_RULES_MAX; id++) {
		const char *known = pcptune_rules_name(id);

		if (pcptune_rules_known(id) && name[0] == known[0] && name[1] == known[1] &&
		    !name[2]) {
			*ret_rules = id;
			return true;
		}
	}
	return false;
}

/* Does this generation keep blocks of this order on a list? */
static inline bool pcptune_rules_has_list(uint32_t rules, uint32_t order)
{
	if (order == 0)
		return true;
	return pcptune_rules_scaled(rules) &&
	       (order <= PCPTUNE_COSTLY_ORDER || order == PCPTUNE_HUGE_ORDER);
}

/*
 * batch of a zone (kernel: zone_batchsize, 1 MiB cap since 4.19): 1, 3, 7, 15, 31 or 63.
 * The 2^n - 1 shape avoids cache-colour aliasing between two allocators that alternate.
 */
static inline uint32_t pcptune_zone_batch(uint64_t managed)
{
	uint64_t x = managed >> 10;
	uint32_t n, p;

	if (x > 256)
		x = 256;
	x /= 4;
	if (x < 1)
		x = 1;
	n = (uint32_t)(x + x / 2);
	for (p = 1; p * 2 <= n; p *= 2)
		;
	return pcptune_max_u32(1, p - 1);
}

/* value of zone_highsize(): share of each CPU of `total` pages, at least four batches */
static inline uint32_t pcptune_zone_high(uint64_t total, uint32_t cpus, uint32_t batch)
{
	uint64_t v = cpus ? total / cpus : total;

	if (v > (1u << 23))
		v = 1u << 23;
	return pcptune_max_u32((uint32_t)v, 4 * batch);
}

/* high_min and high_max as the kernel sets them with vm.percpu_pagelist_high_fraction = 0 (6.7+) */
static inline uint32_t pcptune_zone_high_min(uint64_t low_wmark, uint32_t cpus, uint32_t batch)
{
	return pcptune_zone_high(low_wmark, cpus, batch);
}

static inline uint32_t pcptune_zone_high_max(uint64_t managed, uint32_t cpus, uint32_t batch)
{
	return pcptune_zone_high(managed / PCPTUNE_HIGH_FRACTION, cpus, batch);
}

/* Largest number of pages that one hold of the zone lock moves. */
static inline uint32_t pcptune_max_move(const struct pcptune_rule_state *s)
{
	return s->batch << s->scale_max;
}

/* ---- allocation ---- */

/* On every allocation of one block through a list, before the list is looked at. */
static inline void pcptune_rules_on_alloc(struct pcptune_rule_state *s)
{
	if (s->rules != PCPTUNE_RULES_G0)
		s->free_count >>= 1; /* g4: free_count; g1: free_factor */
}

/*
 * The list of `order` is empty: how many BLOCKS to take from the zone in one lock hold, at least
 * 1. Moves high and alloc_factor (kernel 6.7: nr_pcp_alloc). zone_state: PCPTUNE_ZS_*.
 */
static inline uint32_t pcptune_rules_refill(struct pcptune_rule_state *s, uint32_t order,
					    uint32_t count, uint32_t zone_state)
{
	uint32_t n, room;

	if (!pcptune_rules_scaled(s->rules))
		return pcptune_max_u32(1, s->batch);
	s->high = pcptune_clamp_u32(s->high, s->high_min, s->high_max);
	if (s->high < s->batch)
		return 1;
	n = order ? s->batch : s->batch << s->alloc_factor;
	if (s->rules == PCPTUNE_RULES_G4 && s->high_min != s->high_max &&
	    !(zone_state & PCPTUNE_ZS_BELOW_HIGH))
		s->high = pcptune_min_u32(s->high + n, s->high_max);
	if (order == 0) {
		room = pcptune_max_u32(pcptune_sub0_u32(s->high, count + s->batch), s->batch);
		if (n <= room && s->alloc_factor < s->scale_max)
			s->alloc_factor++;
		n = pcptune_min_u32(n, room);
	}
	if (n > 1)
		n = pcptune_max_u32(n >> order, 2);
	return n;
}

/* ---- free ---- */

/*
 * On every free of one block through a list, after it was pushed: count includes it. Returns the
 * number of PAGES to drain now, 0: none. *ret_free_high: the drain was fired by consecutive
 * high-order frees (kernel 6.7: free_unref_page_commit, nr_pcp_high, nr_pcp_free).
 */
static inline uint32_t pcptune_rules_free(struct pcptune_rule_state *s, uint32_t order,
					  uint32_t count, uint32_t zone_state, bool *ret_free_high);

static inline uint32_t pcptune_rules_free_g0(struct pcptune_rule_state *s, uint32_t count)
{
	return count >= s->high ? pcptune_min_u32(count, pcptune_max_u32(1, s->batch)) : 0;
}

/* g1: nr_pcp_free of 5.14; reclaim caps the list at four batches */
static inline uint32_t pcptune_rules_free_g1(struct pcptune_rule_state *s, uint32_t count,
					     uint32_t zone_state)
{
	uint32_t high = s->high, n, most;

	if (zone_state & PCPTUNE_ZS_RECLAIM_ACTIVE)
		high = pcptune_min_u32(4 * s->batch, high);
	if (count < high)
		return 0;
	if (s->high < s->batch)
		return pcptune_min_u32(count, 1);
	most = pcptune_max_u32(pcptune_sub0_u32(s->high, s->batch), s->batch);
	n = s->batch << pcptune_min_u32(s->free_count, 16);
	if (n < most)
		s->free_count++;
	return pcptune_min_u32(count, pcptune_clamp_u32(n, s->batch, most));
}

/* The level at which g4 drains; moves high (kernel 6.7: nr_pcp_high). */
static inline uint32_t pcptune_rules_high_g4(struct pcptune_rule_state *s, uint32_t count,
					     uint32_t zone_state, bool free_high)
{
	uint32_t high, step, need;

	s->high = high = pcptune_clamp_u32(s->high, s->high_min, s->high_max);
	if (!high)
		return 0;
	if (free_high) {
		s->high = pcptune_max_u32(pcptune_sub0_u32(high, pcptune_max_move(s)), s->high_min);
		return 0;
	}
	step = pcptune_max_u32(s->free_count, s->batch);
	if (zone_state & PCPTUNE_ZS_RECLAIM_ACTIVE) {
		s->high = pcptune_max_u32(pcptune_sub0_u32(high, step), s->high_min);
		return pcptune_min_u32(4 * s->batch, s->high);
	}
	if (s->high_min == s->high_max || s->rules == PCPTUNE_RULES_GX)
		return high;
	if (zone_state & PCPTUNE_ZS_BELOW_HIGH) {
		s->high = pcptune_max_u32(pcptune_sub0_u32(high, step), s->high_min);
		return pcptune_max_u32(count, s->high_min);
	}
	need = s->free_count + s->batch;
	if (count >= high && s->high < need)
		s->high = pcptune_clamp_u32(need, s->high_min, s->high_max);
	return high;
}

static inline uint32_t pcptune_rules_free_g4(struct pcptune_rule_state *s, uint32_t order,
					     uint32_t count, uint32_t zone_state,
					     bool *ret_free_high)
{
	bool free_high = false;
	uint32_t high, most;

	s->alloc_factor >>= 1;
	if (order >= 1 && order <= PCPTUNE_COSTLY_ORDER) {
		free_high = s->rules == PCPTUNE_RULES_G4 && s->free_count >= s->batch &&
			    (s->flags & PCPTUNE_RF_PREV_HIGH_ORDER) &&
			    (!(s->flags & PCPTUNE_RF_FREE_HIGH_BATCH) || count >= s->batch);
		s->flags |= PCPTUNE_RF_PREV_HIGH_ORDER;
	} else {
		s->flags &= ~PCPTUNE_RF_PREV_HIGH_ORDER;
	}
	if (s->free_count < pcptune_max_move(s))
		s->free_count += 1u << order;
	high = pcptune_rules_high_g4(s, count, zone_state, free_high);
	if (count < high)
		return 0;
	*ret_free_high = free_high;
	if (free_high)
		return pcptune_min_u32(count, pcptune_max_move(s));
	if (high < s->batch)
		return pcptune_min_u32(count, 1);
	most = pcptune_max_u32(pcptune_sub0_u32(high, s->batch), s->batch);
	return pcptune_min_u32(count, pcptune_clamp_u32(s->free_count, s->batch, most));
}

static inline uint32_t pcptune_rules_free(struct pcptune_rule_state *s, uint32_t order,
					  uint32_t count, uint32_t zone_state, bool *ret_free_high)
{
	*ret_free_high = false;
	switch (s->rules) {
	case PCPTUNE_RULES_G0:
		return pcptune_rules_free_g0(s, count);
	case PCPTUNE_RULES_G1:
		return pcptune_rules_free_g1(s, count, zone_state);
	default:
		return pcptune_rules_free_g4(s, order, count, zone_state, ret_free_high);
	}
}

/* ---- decay ---- */

/*
 * high after one tick (kernel 6.7: decay_pcp_high, every vm.stat_interval, 1 s): down by 1/8, but
 * so that one tick gives back at most batch << scale_max pages, and never below high_min.
 */
static inline uint32_t pcptune_rules_decay(uint32_t high, uint32_t high_min, uint32_t count,
					   uint32_t max_move)
{
	if (high <= high_min)
		return high;
	return pcptune_max_u32(pcptune_max_u32(pcptune_sub0_u32(count, max_move), high - high / 8),
			       high_min);
}

/* Decay of one pcp; returns the pages to drain now. g0 and g1 do not decay. */
static inline uint32_t pcptune_rules_tick(struct pcptune_rule_state *s, uint32_t count)
{
	if (s->rules != PCPTUNE_RULES_G4)
		return 0;
	s->high = pcptune_rules_decay(s->high, s->high_min, count, pcptune_max_move(s));
	return pcptune_sub0_u32(count, s->high);
}

#endif
