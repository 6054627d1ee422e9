/* SPDX-License-Identifier: MIT */
/*
 * The depot: blocks of list orders that came back to the zone and were not merged yet.
 *
 * A batch that is drained is most likely asked for again at once. To merge its pages and to split
 * them off again costs some thirty nanoseconds a page; to keep their addresses in an array costs
 * less than one. So the zone keeps, in front of the buddy system, stacks of blocks: for each CPU
 * and order a small one (a front), so that blocks come back to the CPU whose caches know them, and
 * for each order a larger one that all share, in which the pages of a program that allocates on one
 * CPU and frees on another change sides. What is in the depot is free in the zone in every respect
 * but one: it does not merge. (Longer blocks, of which there are few, are kept beside it: rows.h.
 * What is said here of a front includes those of its CPU.)
 *
 * How large a front is. What goes through the shared stack comes back in other company, and in the
 * end each CPU has every other page. Descriptors of neighbours share a line, so that each refill
 * and each drain waits for lines that another CPU has just written: with two CPUs that doubles, and
 * worse, what a page costs. So a front has room for all that a usual burst has beyond the lists.
 *
 * Bounds. A front holds up to PCPA_FRONT_PAGES of an order, a shared stack up to PCPA_SHARED_PAGES
 * (two of the largest moves of the default settings), and both together less than an eighth of a
 * small zone. A front that is full spills its oldest blocks to the shared stack, and that to the
 * buddy system. Nothing enters while the zone is below its watermarks.
 *
 * What is not used leaves: once a second the agent gives to the buddy system as many blocks of each
 * stack as lay there untouched since its last look. Before the zone says that it has nothing, and
 * when memory is given back on demand, everything leaves.
 *
 * All words are written under the zone lock. The places above the top of a front belong to the
 * holder of the lists of its CPU.
 */
#ifndef PCPA_DEPOT_H
#define PCPA_DEPOT_H

#include "allocator/zone.h"

#define PCPA_DEPOT_ORDERS 4u /* PCPTUNE_COSTLY_ORDER and below */
#define PCPA_FRONT_PAGES  1024u
#define PCPA_SHARED_PAGES 4096u
#define PCPA_NO_FRONT	  UINT32_MAX /* for a caller who does not hold the lists of the slot */

/*
 * Places of a ring of mask + 1 block addresses, `at` the first of them.
 *
 * For pcpa_depot_take(): the block of the uppermost place goes to `top` instead, unless that is
 * NULL. For pcpa_depot_give(): the page numbers of the first n_picked may have been looked up.
 */
struct pcpa_places {
	uint64_t *ring;
	uint32_t mask;
	uint32_t at;
	uint64_t *top;
	uint32_t n_picked;
	const uint32_t *picked;
};

/* What a hold of the zone lock took off a front, but did not copy yet. */
struct pcpa_claim {
	const uint64_t *block;
	uint32_t from, mask, n;
};

static inline uint64_t *pcpa_place(const struct pcpa_places *p, uint32_t i)
{
	return &p->ring[(p->at + i) & p->mask];
}

/*
 * Once, before the zone is used: n_slots fronts, bounded for so many CPUs that run. Without memory
 * for it the zone does without. Never fails.
 */
void pcpa_depot_make(struct pcpa_zone *z, uint32_t n_slots, uint32_t cpus);

/*
 * Under the zone lock: n blocks of any order out of the zone: off the front of `slot`, the shared
 * stack, the buddy system. The first goes to place n - 1 of `to`, the last one to place 0, so that
 * a list whose tail they are put before hands the first one out first. Less than n are at the upper
 * places. Returns their number.
 *
 * What comes off the front is copied by pcpa_depot_fetch() after the hold, and all are tagged
 * there: their tags are those of no place in use, and nobody looks at them. So blocks are pushed on
 * a front and taken off its top by who holds the lists of that slot alone; others pass
 * PCPA_NO_FRONT.
 */
uint32_t pcpa_depot_take(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t n,
			 const struct pcpa_places *to, struct pcpa_claim *ret_claim);
/* After that: `got` is what it returned. */
void pcpa_depot_fetch(struct pcpa_zone *z, unsigned order, uint32_t n, uint32_t got,
		      const struct pcpa_places *to, const struct pcpa_claim *claim,
		      enum pcpa_place place);

/*
 * Under the zone lock: n blocks of any order, place 0 the oldest, into the zone. Those whose tag is
 * not (from, order) are not what the caller took them for: they stay where they are and go to
 * pcpa_zone_keep_bad(). Returns the pages that came in.
 */
uint64_t pcpa_depot_give(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t n,
			 const struct pcpa_places *from, enum pcpa_place place);

/* At a glance, without the lock: is anything there? */
bool pcpa_depot_has_front(const struct pcpa_zone *z, uint32_t slot);
bool pcpa_depot_has_shared(const struct pcpa_zone *z);

/* One look of the agent, once a second, no lock held: at a front, at the shared stacks. */
void pcpa_depot_age_front(struct pcpa_zone *z, uint32_t slot, struct pcptune_zctr *ctr);
void pcpa_depot_age_shared(struct pcpa_zone *z, struct pcptune_zctr *ctr);

/* Everything to the buddy system, in bounded holds. True: there was something. No lock held. */
bool pcpa_depot_empty(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr);

/* Part of pcpa_zone_check(): *ret_pages are stored. */
const char *pcpa_depot_check(const struct pcpa_zone *z, uint64_t *ret_pages);

#endif
