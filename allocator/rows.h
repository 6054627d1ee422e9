/* SPDX-License-Identifier: MIT */
/*
 * Rows: long blocks that no list serves, kept whole for a while.
 *
 * Blocks of the orders without a list, and those that are no power of two pages long (a row of
 * buddy blocks, the largest first), are cut off larger ones and merge again when they come back. A
 * program that takes a buffer of one size again and again pays for both each time. So the zone
 * keeps, in front of the buddy system, the last few of each CPU as they came; one that is asked for
 * the same number of pages hands out the newest that fits. Like what is in the depot they are free
 * in every respect but that they do not merge, and their blocks are tagged PCPA_IN_DEPOT.
 *
 * Bounds. PCPA_ROWS rows and PCPA_ROWS_PAGES pages for each CPU, all CPUs together at most a 64th
 * of the zone. The oldest leave for a newer one. What nobody asked for between two looks of the
 * agent leaves; nothing enters while the zone is below its watermarks; everything leaves before the
 * zone says that it has nothing, and when memory is given back on demand.
 *
 * All of it is read and written under the zone lock, but for the numbers that rows_has() looks at.
 */
#ifndef PCPA_ROWS_H
#define PCPA_ROWS_H

#include <pcptune/rules.h>

#include "allocator/zone.h"

#define PCPA_ROWS	16u
#define PCPA_ROWS_PAGES 2048u

/* Orders of whole blocks that are rows: those without a list. */
static inline bool pcpa_rows_order(unsigned order)
{
	return order > PCPTUNE_COSTLY_ORDER && order != PCPTUNE_HUGE_ORDER;
}

/* Once, before the zone is used. Without memory for it the zone does without. Never fails. */
void pcpa_rows_make(struct pcpa_zone *z, uint32_t n_slots, uint32_t cpus);

/*
 * Under the zone lock: a row of so many pages at a multiple of 2^order, its blocks tagged as in
 * use. PCPA_NO_PAGE: there is none.
 */
uint32_t pcpa_rows_take(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t pages);
/*
 * Under the zone lock: a row of blocks that are in use, as the caller has made sure, comes into the
 * zone, here or into the buddy system.
 */
void pcpa_rows_give(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, uint32_t pages);

/* At a glance, without the lock: is anything there? */
bool pcpa_rows_has(const struct pcpa_zone *z, uint32_t slot);
/* One look of the agent, once a second, no lock held. */
void pcpa_rows_age(struct pcpa_zone *z, uint32_t slot, struct pcptune_zctr *ctr);
/* Everything to the buddy system, in bounded holds. True: there was something. No lock held. */
bool pcpa_rows_empty(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr);
/* Part of pcpa_zone_check(): *ret_pages are added. */
const char *pcpa_rows_check(const struct pcpa_zone *z, uint64_t *ret_pages);

#endif
