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
 * Generations are rows of generations.def, which says what each of them is. A row has traits, and
 * the rules ask for these. High-order lists can be switched for each of them by a bit in the id,
 * shown as a suffix of the name: "g4-order0" is g4 with lists for order 0 alone, "g1-orders" is g1
 * with lists for orders 1 to 3 and 9, too.
 *
 * All quantities are in base pages unless a name says otherwise. Ranges: count and high 0 .. 2^23,
 * batch 1 .. 1024, scale_max 0 .. 6, so that no product below overflows 32 bits.
 */
#ifndef PCPTUNE_RULES_H
#define PCPTUNE_RULES_H

#include <stdbool.h>
#include <stdint.h>

enum pcptune_rules_id {
#define PCPTUNE_GENERATION(ID, id, name, others, from, changed, params, high, decay, traits) \
	PCPTUNE_RULES_##ID = (id),
#include <pcptune/generations.def>
	PCPTUNE_RULES_ORDER0 = 32, /* or'ed in: high-order lists off, where the row has them */
	PCPTUNE_RULES_ORDERS = 64, /* or'ed in: high-order lists on, where the row has none */
	PCPTUNE_RULES_MAX = 127,   /* ids are 0 .. 127; pcptune_rules_known() says which exist */
};

#define PCPTUNE_RULES_ROWS   17u
#define PCPTUNE_RULES_ROW(r) ((r)&31u) /* the generation without its switch */

/* What a generation does. */
enum pcptune_trait {
	PCPTUNE_RT_ORDERS = 1u << 0,	   /* lists for orders 1 to 3 */
	PCPTUNE_RT_HUGE = 1u << 1,	   /* a list for order 9 */
	PCPTUNE_RT_BLOCKS = 1u << 2,	   /* a refill is batch blocks, whatever their order */
	PCPTUNE_RT_FREE_FACTOR = 1u << 3,  /* drains in a row double, allocations halve that */
	PCPTUNE_RT_FREE_COUNT = 1u << 4,   /* drains are as long as the run of frees was */
	PCPTUNE_RT_SCALE_CAP = 1u << 5,	   /* scale_max bounds free_factor */
	PCPTUNE_RT_ALLOC_FACTOR = 1u << 6, /* refills in a row double, frees halve that */
	PCPTUNE_RT_TUNES = 1u << 7,	   /* high moves between high_min and high_max */
	PCPTUNE_RT_RECLAIM = 1u << 8,	   /* reclaim caps the lists at four batches */
	PCPTUNE_RT_BELOW_HIGH = 1u << 9,   /* so does, more gently, the high watermark */
	PCPTUNE_RT_FREE_HIGH = 1u << 10,   /* frees of orders 1 to 3 may drain */
	PCPTUNE_RT_CONSECUTIVE = 1u << 11, /* ... the second one in a row */
	PCPTUNE_RT_CACHE = 1u << 12,	   /* ... but keep a batch where caches are large */
	PCPTUNE_RT_HALF_MIN = 1u << 13,	   /* ... after a run of batch + high_min / 2 */
	PCPTUNE_RT_COUNT_MIN = 1u << 14,   /* decay is bounded by the least count */
	PCPTUNE_RT_CHUNKS = 1u << 15,	   /* one batch in each hold of the zone lock */
};

/* How high follows from the zone. */
enum pcptune_bounds_kind {
	PCPTUNE_BOUNDS_FIXED,	 /* six batches */
	PCPTUNE_BOUNDS_FRACTION, /* a fraction of the zone for each CPU, else six batches */
	PCPTUNE_BOUNDS_RAISED,	 /* six batches and the largest refill */
	PCPTUNE_BOUNDS_LOW,	 /* the low watermark, shared by the CPUs */
	PCPTUNE_BOUNDS_TUNED,	 /* from there to an eighth of the zone, shared by the CPUs */
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
	uint32_t alloc_factor; /* log2 scale of the refill */
	uint32_t free_count;   /* pages freed in a row, or free_factor (log2) before p10 */
	uint32_t flags;	       /* PCPTUNE_RF_* */
	uint32_t count_min;    /* p9, p10: the least count since the last tick */
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

/* A row of generations.def. */
struct pcptune_generation {
	uint32_t id;
	const char *name;
	const char *others; /* further names, separated by spaces */
	const char *from;
	const char *changed;
	const char *params;
	const char *order0, *orders; /* names with the switch */
	enum pcptune_bounds_kind bounds;
	uint32_t decay;
	uint32_t traits;
};

static const struct pcptune_generation pcptune_generations[PCPTUNE_RULES_ROWS] = {
#define PCPTUNE_GENERATION(ID, id, name, others, from, changed, params, high, decay, traits) \
	{(id),		 name,		 others,                                             \
	 from,		 changed,	 params,                                             \
	 name "-order0", name "-orders", PCPTUNE_BOUNDS_##high,                              \
	 (decay),	 (traits)},
#include <pcptune/generations.def>
};

/* The same, by id, in one line of memory: what the rules ask on every call. */
static const uint16_t pcptune_traits[32] = {
#define PCPTUNE_GENERATION(ID, id, name, others, from, changed, params, high, decay, traits) \
	(traits),
#include <pcptune/generations.def>
};

/* PCPTUNE_RT_* of an id; one that does not exist is as g0. */
static inline uint32_t pcptune_rules_traits(uint32_t rules)
{
	uint32_t t = pcptune_traits[PCPTUNE_RULES_ROW(rules)];

	if (!(rules & (PCPTUNE_RULES_ORDER0 | PCPTUNE_RULES_ORDERS)))
		return t;
	return rules & PCPTUNE_RULES_ORDERS ? t | PCPTUNE_RT_ORDERS | PCPTUNE_RT_HUGE
					    : t & ~(uint32_t)(PCPTUNE_RT_ORDERS | PCPTUNE_RT_HUGE);
}

static inline bool pcptune_rules_known(uint32_t rules)
{
	uint32_t row = PCPTUNE_RULES_ROW(rules), has;

	if (rules > PCPTUNE_RULES_MAX || row >= PCPTUNE_RULES_ROWS)
		return false;
	has = pcptune_traits[row] & PCPTUNE_RT_ORDERS;
	return !(rules & PCPTUNE_RULES_ORDER0 && !has) && !(rules & PCPTUNE_RULES_ORDERS && has);
}

static inline const char *pcptune_rules_name(uint32_t rules)
{
	const struct pcptune_generation *g;

	if (!pcptune_rules_known(rules))
		return "?";
	g = &pcptune_generations[PCPTUNE_RULES_ROW(rules)];
	return rules & PCPTUNE_RULES_ORDER0   ? g->order0
	       : rules & PCPTUNE_RULES_ORDERS ? g->orders
					      : g->name;
}

/* Is `name` one of the words in a list that is separated by spaces? */
static inline bool pcptune_rules_is_word(const char *name, const char *list)
{
	while (*list) {
		uint32_t n = 0;

		while (name[n] && name[n] == list[n])
			n++;
		if (!name[n] && n && (!list[n] || list[n] == ' '))
			return true;
		while (*list && *list != ' ')
			list++;
		list += *list == ' ';
	}
	return false;
}

/* The id of a name, or of one of the other names of a row; false: there is none. */
static inline bool pcptune_rules_parse(const char *name, uint32_t *ret_rules)
{
	for (uint32_t id = 0; id <= PCPTUNE_RULES_MAX; id++) {
		if (!pcptune_rules_known(id))
			continue;
		if (pcptune_rules_is_word(name, pcptune_rules_name(id)) ||
		    (id < PCPTUNE_RULES_ROWS &&
		     pcptune_rules_is_word(name, pcptune_generations[id].others))) {
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
	return pcptune_rules_traits(rules) & (order <= PCPTUNE_COSTLY_ORDER ? PCPTUNE_RT_ORDERS
					      : order == PCPTUNE_HUGE_ORDER ? PCPTUNE_RT_HUGE
									    : 0);
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

/* What a zone gives a CPU to begin with. */
struct pcptune_bounds {
	uint32_t high, high_min, high_max, batch;
};

/*
 * Bounds of a generation for a zone of `managed` pages with `cpus` CPUs. batch 0: that of the zone.
 * fraction: the sysctl of the generation, 0 or 8 and more; it switches tuning off. (Kernel:
 * zone_highsize, and percpu_pagelist_fraction_sysctl_handler up to 5.13.)
 */
static inline struct pcptune_bounds pcptune_rules_bounds(uint32_t rules, uint64_t managed,
							 uint64_t low_wmark, uint32_t cpus,
							 uint32_t batch, uint64_t fraction)
{
	const struct pcptune_generation *g = &pcptune_generations[PCPTUNE_RULES_ROW(rules)];
	struct pcptune_bounds b = {0, 0, 0, batch ? batch : pcptune_zone_batch(managed)};
	uint32_t max = 0;

	if (g->bounds == PCPTUNE_BOUNDS_FRACTION && fraction) {
		b.high = pcptune_zone_high(managed / fraction, 1, 1);
		if (!batch)
			b.batch = pcptune_clamp_u32(b.high / 4, 1, 96);
	} else if (fraction) {
		b.high = pcptune_zone_high(managed / fraction, cpus, b.batch);
	} else if (g->bounds == PCPTUNE_BOUNDS_LOW || g->bounds == PCPTUNE_BOUNDS_TUNED) {
		b.high = pcptune_zone_high_min(low_wmark, cpus, b.batch);
		if (g->bounds == PCPTUNE_BOUNDS_TUNED)
			max = pcptune_zone_high_max(managed, cpus, b.batch);
	} else {
		b.high = 6 * b.batch;
		if (g->bounds == PCPTUNE_BOUNDS_RAISED)
			b.high += b.batch << PCPTUNE_COSTLY_ORDER;
	}
	b.high_min = b.high;
	b.high_max = pcptune_max_u32(max, b.high);
	return b;
}

/* batch << scale_max: the largest refill, and the largest drain by a run of frees */
static inline uint32_t pcptune_max_move(const struct pcptune_rule_state *s)
{
	return s->batch << s->scale_max;
}

/* Pages that a drain moves in one hold of the zone lock, at most; at least 1. */
static inline uint32_t pcptune_rules_hold(uint32_t rules, uint32_t batch, uint32_t scale_max)
{
	if (pcptune_rules_traits(rules) & PCPTUNE_RT_CHUNKS)
		scale_max = 0;
	return pcptune_max_u32(1, batch << scale_max);
}

/* Generations whose kernel keeps `high` between its bounds at every look. */
static inline bool pcptune_rules_clamps(uint32_t traits)
{
	return traits & (PCPTUNE_RT_TUNES | PCPTUNE_RT_FREE_COUNT);
}

/* ---- allocation ---- */

/* On n allocations of one block through a list in a row, before the list is looked at. */
static inline void pcptune_rules_on_allocs(struct pcptune_rule_state *s, uint32_t n)
{
	s->free_count >>= pcptune_min_u32(n, 31);
}

static inline void pcptune_rules_on_alloc(struct pcptune_rule_state *s)
{
	s->free_count >>= 1;
}

/* After blocks left a list by allocations: count is what is left on all lists (p9: count_min). */
static inline void pcptune_rules_taken(struct pcptune_rule_state *s, uint32_t count)
{
	if (pcptune_rules_traits(s->rules) & PCPTUNE_RT_COUNT_MIN)
		s->count_min = pcptune_min_u32(s->count_min, count);
}

/* nr_pcp_alloc of 6.7 and of p5; moves high (TUNES) and alloc_factor. */
static inline uint32_t pcptune_rules_refill_scaled(struct pcptune_rule_state *s, uint32_t traits,
						   uint32_t order, uint32_t count,
						   uint32_t zone_state)
{
	uint32_t n, room;

	if (pcptune_rules_clamps(traits))
		s->high = pcptune_clamp_u32(s->high, s->high_min, s->high_max);
	if (s->high < s->batch)
		return 1;
	n = order ? s->batch : s->batch << s->alloc_factor;
	if (traits & PCPTUNE_RT_TUNES && s->high_min != s->high_max &&
	    !(traits & PCPTUNE_RT_BELOW_HIGH && zone_state & PCPTUNE_ZS_BELOW_HIGH))
		s->high = pcptune_min_u32(s->high + n, s->high_max);
	if (order == 0) {
		room = pcptune_max_u32(pcptune_sub0_u32(s->high, count + s->batch), s->batch);
		if (n <= room && s->alloc_factor < s->scale_max)
			s->alloc_factor++;
		n = pcptune_min_u32(n, room);
	}
	return n;
}

/*
 * The list of `order` is empty: how many BLOCKS to take from the zone in one lock hold, at least
 * 1. May move high and alloc_factor. zone_state: PCPTUNE_ZS_*.
 */
static inline uint32_t pcptune_rules_refill(struct pcptune_rule_state *s, uint32_t order,
					    uint32_t count, uint32_t zone_state)
{
	uint32_t t = pcptune_rules_traits(s->rules), n = pcptune_max_u32(1, s->batch);

	if (t & PCPTUNE_RT_ALLOC_FACTOR)
		n = pcptune_rules_refill_scaled(s, t, order, count, zone_state);
	if (order && n > 1 && !(t & PCPTUNE_RT_BLOCKS))
		return pcptune_max_u32(n >> order, 2);
	return n;
}

/* ---- free ---- */

/* free_count from which on frees of orders 1 to 3 drain. */
static inline uint32_t pcptune_rules_free_high_run(const struct pcptune_rule_state *s,
						   uint32_t traits)
{
	if (!(traits & PCPTUNE_RT_FREE_COUNT))
		return 1;
	return s->batch + (traits & PCPTUNE_RT_HALF_MIN ? s->high_min / 2 : 0);
}

/* Does a free that brings the lists to `count` pages leave the batch that large caches keep? */
static inline bool pcptune_rules_keeps_batch(const struct pcptune_rule_state *s, uint32_t traits,
					     uint32_t count)
{
	return traits & PCPTUNE_RT_CACHE && s->flags & PCPTUNE_RF_FREE_HIGH_BATCH &&
	       count < s->batch;
}

/*
 * Pages that can be freed in a row onto `count` before a free of orders 1 to 3 may drain by the
 * rule on these; UINT32_MAX: any number. For whoever does not ask the rules at every free.
 */
static inline uint32_t pcptune_rules_before_free_high(const struct pcptune_rule_state *s,
						      uint32_t count)
{
	uint32_t t = pcptune_rules_traits(s->rules), run = pcptune_rules_free_high_run(s, t);
	uint32_t left = pcptune_sub0_u32(run, s->free_count);

	if (!(t & PCPTUNE_RT_FREE_HIGH) || (left && !(t & PCPTUNE_RT_FREE_COUNT)))
		return UINT32_MAX;
	if (pcptune_rules_keeps_batch(s, t, count + 1))
		return pcptune_max_u32(left, s->batch - 1 - count);
	return left;
}

/*
 * Does this free of orders 1 to 3 drain? Keeps PREV_HIGH_ORDER. (Kernel: free_unref_page_commit.)
 */
static inline bool pcptune_rules_free_high(struct pcptune_rule_state *s, uint32_t traits,
					   uint32_t order, uint32_t count)
{
	bool previous = s->flags & PCPTUNE_RF_PREV_HIGH_ORDER;

	if (!order || order > PCPTUNE_COSTLY_ORDER) {
		s->flags &= ~PCPTUNE_RF_PREV_HIGH_ORDER;
		return false;
	}
	s->flags |= PCPTUNE_RF_PREV_HIGH_ORDER;
	if (!(traits & PCPTUNE_RT_FREE_HIGH) ||
	    s->free_count < pcptune_rules_free_high_run(s, traits) ||
	    (traits & PCPTUNE_RT_CONSECUTIVE && !previous))
		return false;
	return !pcptune_rules_keeps_batch(s, traits, count);
}

/* Pages freed in a row, as far as the generation knows. */
static inline uint32_t pcptune_rules_run(const struct pcptune_rule_state *s, uint32_t traits)
{
	return traits & PCPTUNE_RT_FREE_COUNT ? s->free_count
					      : s->batch << pcptune_min_u32(s->free_count, 16);
}

/* The level at which it drains; moves high where the generation does (kernel: nr_pcp_high). */
static inline uint32_t pcptune_rules_level(struct pcptune_rule_state *s, uint32_t traits,
					   uint32_t count, uint32_t zone_state, bool free_high)
{
	bool clamps = pcptune_rules_clamps(traits);
	uint32_t high = s->high, need, less;

	if (clamps)
		s->high = high = pcptune_clamp_u32(high, s->high_min, s->high_max);
	if (!high)
		return 0;
	if (free_high) {
		if (clamps)
			s->high = pcptune_max_u32(pcptune_sub0_u32(high, pcptune_max_move(s)),
						  s->high_min);
		return 0;
	}
	less = pcptune_max_u32(
		pcptune_sub0_u32(high, pcptune_max_u32(pcptune_rules_run(s, traits), s->batch)),
		s->high_min);
	if (zone_state & PCPTUNE_ZS_RECLAIM_ACTIVE) {
		if (clamps)
			s->high = less;
		return pcptune_min_u32(4 * s->batch, s->high);
	}
	if (!(traits & PCPTUNE_RT_TUNES) || s->high_min == s->high_max)
		return high;
	if (traits & PCPTUNE_RT_BELOW_HIGH && zone_state & PCPTUNE_ZS_BELOW_HIGH) {
		s->high = less;
		return pcptune_max_u32(count, s->high_min);
	}
	need = pcptune_rules_run(s, traits) + s->batch;
	if (count >= high && s->high < need)
		s->high = pcptune_clamp_u32(need, s->high_min, s->high_max);
	return high;
}

/* Pages to drain when count is at the level or above (kernel: nr_pcp_free). */
static inline uint32_t pcptune_rules_drain(struct pcptune_rule_state *s, uint32_t traits,
					   uint32_t count, uint32_t level, bool free_high)
{
	uint32_t most, n;

	if (free_high)
		return pcptune_rules_clamps(traits) ? pcptune_min_u32(count, pcptune_max_move(s))
						    : count;
	if (level < s->batch)
		return pcptune_min_u32(count, 1);
	most = pcptune_max_u32(pcptune_sub0_u32(level, s->batch), s->batch);
	n = pcptune_rules_run(s, traits);
	if (traits & PCPTUNE_RT_FREE_FACTOR && n < most &&
	    !(traits & PCPTUNE_RT_SCALE_CAP && s->free_count >= s->scale_max))
		s->free_count++;
	return pcptune_min_u32(count, pcptune_clamp_u32(n, s->batch, most));
}

/*
 * On every free of one block through a list, after it was pushed: count includes it. Returns the
 * number of PAGES to drain now, 0: none. *ret_free_high: the drain was fired by frees of orders 1
 * to 3 (kernel: free_unref_page_commit).
 */
static inline uint32_t pcptune_rules_free(struct pcptune_rule_state *s, uint32_t order,
					  uint32_t count, uint32_t zone_state, bool *ret_free_high)
{
	uint32_t t = pcptune_rules_traits(s->rules), level;
	bool free_high;

	*ret_free_high = false;
	if (!(t & (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT)))
		return count >= s->high ? pcptune_min_u32(count, pcptune_max_u32(1, s->batch)) : 0;
	if (t & PCPTUNE_RT_ALLOC_FACTOR)
		s->alloc_factor >>= 1;
	free_high = pcptune_rules_free_high(s, t, order, count);
	if (t & PCPTUNE_RT_FREE_COUNT && s->free_count < pcptune_max_move(s))
		s->free_count += 1u << order;
	level = pcptune_rules_level(s, t, count, zone_state, free_high);
	if (count < level)
		return 0;
	*ret_free_high = free_high;
	return pcptune_rules_drain(s, t, count, level, free_high);
}

/*
 * The commonest of frees in few steps: one that surely drains nothing and leaves high as it is,
 * while the zone has memory. What that depends on is worked out beforehand, and again whenever
 * anything but alloc_factor, free_count and PREV_HIGH_ORDER changes in the state.
 */
struct pcptune_rule_light {
	uint32_t level;	   /* frees that leave the count below it are such */
	uint32_t run_most; /* free_count grows while it is below; 0: never */
	uint32_t previous; /* PCPTUNE_RF_PREV_HIGH_ORDER, if the generation keeps it */
	uint32_t halves;   /* alloc_factor: by so many bits */
	uint32_t
		ask[PCPTUNE_COSTLY_ORDER + 1]; /* free_count from which a free may be another one */
};

static inline void pcptune_rules_light(const struct pcptune_rule_state *s,
				       struct pcptune_rule_light *ret)
{
	uint32_t t = pcptune_rules_traits(s->rules);
	bool stays = !pcptune_rules_clamps(t) ||
		     s->high == pcptune_clamp_u32(s->high, s->high_min, s->high_max);
	bool runs = t & (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT);

	ret->level = stays ? s->high : 0;
	ret->run_most = t & PCPTUNE_RT_FREE_COUNT ? pcptune_max_move(s) : 0;
	ret->previous = runs ? PCPTUNE_RF_PREV_HIGH_ORDER : 0;
	ret->halves = runs && t & PCPTUNE_RT_ALLOC_FACTOR ? 1 : 0;
	ret->ask[0] = UINT32_MAX;
	for (uint32_t order = 1; order <= PCPTUNE_COSTLY_ORDER; order++)
		ret->ask[order] = !(t & PCPTUNE_RT_ORDERS) ? 0
				  : runs && t & PCPTUNE_RT_FREE_HIGH
					  ? pcptune_rules_free_high_run(s, t)
					  : UINT32_MAX;
}

/*
 * Is a free of an order up to PCPTUNE_COSTLY_ORDER, which leaves `count` pages, such a one? Then
 * pcptune_rules_free() would return 0, and move alloc_factor, free_count and flags as the three
 * functions after this do.
 */
static inline bool pcptune_rules_free_is_light(const struct pcptune_rule_light *w, uint32_t order,
					       uint32_t count, uint32_t free_count)
{
	return count < w->level && free_count < w->ask[order];
}

static inline uint32_t pcptune_rules_light_factor(const struct pcptune_rule_light *w,
						  uint32_t alloc_factor)
{
	return alloc_factor >> w->halves;
}

static inline uint32_t pcptune_rules_light_run(const struct pcptune_rule_light *w, uint32_t order,
					       uint32_t free_count)
{
	return free_count < w->run_most ? free_count + (1u << order) : free_count;
}

static inline uint32_t pcptune_rules_light_flags(const struct pcptune_rule_light *w, uint32_t order,
						 uint32_t flags)
{
	return order ? flags | w->previous : flags & ~w->previous;
}

/*
 * Of up to n frees of order 0 in a row, onto `count` pages, those that surely drain nothing while
 * the zone has memory: how many they are, with the state moved as by that many calls of
 * pcptune_rules_free(). For models that go by runs of pages.
 */
static inline uint32_t pcptune_rules_free_run(struct pcptune_rule_state *s, uint32_t count,
					      uint32_t n)
{
	uint32_t t = pcptune_rules_traits(s->rules), high = s->high, k, most = pcptune_max_move(s);

	if (pcptune_rules_clamps(t))
		high = pcptune_clamp_u32(high, s->high_min, s->high_max);
	k = pcptune_min_u32(n, pcptune_sub0_u32(high, count + 1));
	if (!k || !(t & (PCPTUNE_RT_FREE_FACTOR | PCPTUNE_RT_FREE_COUNT)))
		return k;
	s->high = high;
	s->flags &= ~PCPTUNE_RF_PREV_HIGH_ORDER;
	if (t & PCPTUNE_RT_ALLOC_FACTOR)
		s->alloc_factor >>= pcptune_min_u32(k, 31);
	if (t & PCPTUNE_RT_FREE_COUNT && s->free_count < most)
		s->free_count = pcptune_min_u32(s->free_count + k, most);
	return k;
}

/* ---- decay ---- */

/*
 * high after one tick (kernel 6.7: decay_pcp_high, every vm.stat_interval, 1 s): down by one part
 * in `parts`, and by `least` at most, but so that one tick gives back at most batch << scale_max
 * pages, and never below high_min.
 */
static inline uint32_t pcptune_rules_decay(uint32_t high, uint32_t high_min, uint32_t count,
					   uint32_t max_move, uint32_t parts, uint32_t least)
{
	if (high <= high_min)
		return high;
	high -= pcptune_min_u32(high / parts, least);
	return pcptune_max_u32(pcptune_max_u32(pcptune_sub0_u32(count, max_move), high), high_min);
}

/* Decay of one pcp, if its generation decays; returns the pages to drain now. */
static inline uint32_t pcptune_rules_tick(struct pcptune_rule_state *s, uint32_t count)
{
	uint32_t parts = pcptune_generations[PCPTUNE_RULES_ROW(s->rules)].decay;
	bool least = pcptune_rules_traits(s->rules) & PCPTUNE_RT_COUNT_MIN;

	if (!parts)
		return 0;
	s->high = pcptune_rules_decay(s->high, s->high_min, count, pcptune_max_move(s), parts,
				      least ? pcptune_min_u32(s->count_min, count) : UINT32_MAX);
	s->count_min = pcptune_min_u32(count, s->high);
	return pcptune_sub0_u32(count, s->high);
}

#endif
