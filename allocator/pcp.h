/* SPDX-License-Identifier: MIT */
/*
 * The lists of one CPU in front of one zone.
 *
 * All their words lie in the segment (struct pcptune_cpu_block) and are written under pcp.lock,
 * except `ctl` (the daemon) and `zctr` (the zone lock), and except what sections write (rseq.h)
 * where the lists are served by them. Callers of the program only ever try the lock, and go to the
 * zone when it is held; agent, audit, trim and fork wait for it. Lock order: lists by (zone, slot),
 * then zones.
 */
#ifndef PCPA_PCP_H
#define PCPA_PCP_H

#include <pcptune/rules.h>

#include "allocator/heap.h"
#include "allocator/rseq.h"

/* Our use of pcptune_pcp.reserved[]. */
enum {
	PCPA_PCP_STATE = 0, /* PCPA_PCP_* below; count_min in the upper half */
	PCPA_PCP_OPS = 1,   /* five words: operations of each list, folded to 64 bits */
};

#define PCPA_PCP_READY	 1u /* defaults set, rings mapped */
#define PCPA_PCP_ADOPTED 2u /* holds values of the daemon */
#define PCPA_PCP_ASKED	 4u /* sections: the next free of orders 1 to 3 was asked about */
/* ... and how often that may still be in vain, since a run of frees got long: bits 8 to 15 */
#define PCPA_PCP_WARY	   (UINT64_C(1) << 8)
#define PCPA_PCP_WARY_MASK (UINT64_C(0xff) << 8)
/* sections: questions about room in a row whose answer was a few blocks: bits 16 to 23 */
#define PCPA_PCP_VAIN	   (UINT64_C(1) << 16)
#define PCPA_PCP_VAIN_MASK (UINT64_C(0xff) << 16)

/* Why pages leave a list. */
enum pcpa_cause { PCPA_DRAIN_FULL, PCPA_DRAIN_HIGH_ORDER, PCPA_DRAIN_DECAY, PCPA_DRAIN_TRIM };

static const uint8_t pcpa_list_orders[PCPTUNE_N_LISTS] = PCPTUNE_LIST_ORDERS;

/* List of an order, PCPA_NO_LIST: none. */
#define PCPA_NO_LIST 0xffu
static inline unsigned pcpa_list_of(unsigned order)
{
	return order <= PCPTUNE_COSTLY_ORDER ? order
	       : order == PCPTUNE_HUGE_ORDER ? 4
					     : PCPA_NO_LIST;
}

/*
 * The lists for their holder alone, from any CPU. Where they are served by sections that takes a
 * fence: microseconds if the CPU is running us.
 */
bool pcpa_pcp_trylock(struct pcptune_cpu_block *b);
void pcpa_pcp_lock(struct pcptune_cpu_block *b);
void pcpa_pcp_unlock(struct pcptune_cpu_block *b);
/* Those of every CPU, with one fence. */
void pcpa_pcp_lock_all(void);
void pcpa_pcp_unlock_all(void);

/* The lists that were ever used; the words of others are 0. Mostly there is one. */
#define PCPA_FOR_EACH_USED(i, b)                               \
	for (uint32_t i, used_##i = pcpa_get(&(b)->pcp.lists); \
	     used_##i && (i = (uint32_t)__builtin_ctz(used_##i), 1); used_##i &= used_##i - 1)

static inline uint64_t pcpa_pcp_pages(const struct pcptune_cpu_block *b)
{
	uint64_t pages = 0;

	if (!pcpa_by_sections(b))
		return pcpa_get(&b->pcp.pages);
	PCPA_FOR_EACH_USED (i, b) {
		const struct pcptune_list *l = &b->list[i];
		uint64_t n = pcpa_get(&l->word) - (uint64_t)pcpa_get(&l->tail);

		pages += (n & PCPTUNE_WORD_MASK) << pcpa_list_orders[i];
	}
	return pages;
}

/* A CPU that never called and was never steered has nothing to look after. */
static inline bool pcpa_pcp_ready(const struct pcptune_cpu_block *b)
{
	return pcpa_get(&b->pcp.reserved[PCPA_PCP_STATE]) & PCPA_PCP_READY;
}

/*
 * One block for the caller: from the lists of (zone, slot), or the zone. NULL: the zone has none,
 * or (pcpa_in_zone set) it can not be asked now.
 */
void *pcpa_pcp_alloc(struct pcpa_zone *z, uint32_t slot, unsigned order);
/* Up to n blocks; the state of the rules for consecutive frees does not move. */
size_t pcpa_pcp_alloc_bulk(struct pcpa_zone *z, uint32_t slot, unsigned order, size_t n,
			   void **blocks);
/*
 * A row of so many pages (9 and more) at a multiple of 2^order, which is no less: from the zone
 * past every list. NULL as above.
 */
void *pcpa_pcp_alloc_row(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t pages);
/* A whole row, whose blocks were checked by the caller. */
void pcpa_pcp_free_row(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, uint32_t pages);
/* Blocks of one order in zone z, checked by the caller. Always succeed. */
void pcpa_pcp_free(struct pcpa_zone *z, uint32_t slot, unsigned order, void *block);
/*
 * The same for n blocks; returns how many were freed. Less: the next one is in use no more, since
 * it is in the row twice.
 */
size_t pcpa_pcp_free_bulk(struct pcpa_zone *z, uint32_t slot, unsigned order, size_t n,
			  void *const *blocks);

/*
 * The list of an order up to PCPTUNE_COSTLY_ORDER, of this CPU in its own zone, did not serve a
 * section that takes a block, or gives one of the zone `given` (else NULL). True: it came to the
 * edge of its window, which was moved, was refilled, or has room now, and the section may be tried
 * again. False: whatever is unusual.
 */
bool pcpa_sections_passed(unsigned order, const struct pcpa_zone *given);

/* Pages [at, end) of the block at pfn, checked by the caller, to the zone past every list. */
void pcpa_pcp_give(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, size_t at, size_t end);

/* ---- with the lists locked, no zone lock held ---- */

/* Moves pages to the zone, coldest first, beginning with list `first`, in bounded chunks. */
void pcpa_pcp_drain(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned first,
		    uint64_t pages, enum pcpa_cause cause, enum pcpa_path path);
/* Takes new control words over, or gives them up when the lease ran out. */
void pcpa_pcp_control(struct pcpa_zone *z, struct pcptune_cpu_block *b, enum pcpa_path path);
/* The rule flag that follows from the data cache and the batch. */
void pcpa_pcp_cache_flag(struct pcptune_cpu_block *b);
/* Extends the 40 bits of the operations of each list; at least once in 2^40 of them. */
void pcpa_pcp_fold(struct pcptune_cpu_block *b);
/* Lists that are empty: the memory of their rings goes back to the system. False: they are not. */
bool pcpa_pcp_forget_places(struct pcptune_cpu_block *b);
/* The next call that comes to these lists, a free even, ends the long sleep of the agent. */
void pcpa_pcp_ring_next(struct pcptune_cpu_block *b);
/* One second of decay. */
void pcpa_pcp_tick(struct pcpa_zone *z, struct pcptune_cpu_block *b);
/* As a control word would; 0 keeps a value. */
void pcpa_pcp_set(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint32_t high,
		  uint32_t high_min, uint32_t high_max, uint32_t batch);
/* Lists against tags and totals; marks listed blocks with `mark`. NULL: sound. */
const char *pcpa_pcp_check(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint32_t mark);
/* In the child of a fork: counters to zero, lists kept. */
void pcpa_pcp_restart(struct pcptune_cpu_block *b, uint32_t zone);

/* ---- anywhere ---- */

/* alloc_pages and free_pages of (zone, slot). */
void pcpa_pcp_totals(const struct pcptune_cpu_block *b, uint64_t *ret_allocated,
		     uint64_t *ret_freed);
/* Wrong frees that were noticed when a page reached the zone; no lock may be held. */
void pcpa_pcp_report(struct pcpa_zone *z);
/* Is the daemon's word in force now? */
bool pcpa_lease_valid(void);

#endif
