/* SPDX-License-Identifier: MIT */
/*
 * The lists of one CPU as the allocator has them, without pages: counts, the rules of rules.h, and
 * what comes of them. One list for each order that has one (0 to 3 and 9), one count for all, a
 * refill when the own list is empty, a drain list after list from the one that was freed to.
 *
 * Runs of calls that only change counts are done at once; what they do to the state of the rules is
 * the same as that of the single calls (a test says so). So a page costs a few nanoseconds at the
 * most, and often much less. A long row soon does the same again and again, moves of the zone and
 * all; from then on it is multiplied out, and its length costs nothing.
 */
#ifndef PCPTUNE_EVAL_LISTS_H
#define PCPTUNE_EVAL_LISTS_H

#include <stdint.h>
#include <pcptune/rules.h>
#include <pcptune/segment.h>

/* Who takes the zone lock. */
enum lists_path { LISTS_ALLOC, LISTS_FREE, LISTS_AGENT };

struct lists {
	struct pcptune_rule_state st;
	uint64_t pages; /* on all lists */
	uint64_t peak;	/* the most of them since the caller set it to pages */
	uint64_t blocks[PCPTUNE_N_LISTS];
	/* since the beginning, pages or times */
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone, alloc_direct, free_direct;
	uint64_t refills, drains, free_high, trim_pages;
	/* so many holds of the zone lock, one after the other, and their pages; may be NULL */
	void (*on_hold)(struct lists *l, enum lists_path path, uint64_t holds, uint64_t pages);
};

/* Blocks of an order: > 0 are freed, < 0 allocated. */
void lists_move(struct lists *l, uint32_t order, int64_t blocks);
/*
 * Blocks of an order that lay there before: nothing moved, and nothing is counted. Those that high
 * has no room for never did.
 */
void lists_level(struct lists *l, uint32_t order, int64_t blocks);
/* Other limits; what no longer fits goes to the zone. */
void lists_limits(struct lists *l, uint32_t high, uint32_t high_min, uint32_t high_max,
		  uint32_t batch, uint32_t scale_max, uint32_t rules);

#endif
