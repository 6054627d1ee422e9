/* SPDX-License-Identifier: MIT */
/*
 * Locked lists: a push and a pop where nothing is unusual.
 *
 * What a locked list costs beside its two locked instructions a pair is how long the processor
 * waits: a locked instruction begins when all before it is done and all that was stored has reached
 * the cache, and nothing after it begins before it is done. So what lies between two of them is
 * kept short in loads that wait for each other and in stores, not in instructions:
 *
 * - the row of a CPU has its lists and its zone, found by the CPU id in the thread's rseq area;
 * - what a free asks of the block is asked before the lock is taken;
 * - the state of the rules is stored where it moved.
 *
 * Everything unusual (the edge of a list, a level at which the rules drain, lists that sections
 * were given up for) is left to the functions of pcp.c that go on with the lock as it is. Nothing
 * is done at all, and the caller goes the long way, while lists are locked by somebody else, while
 * a recorder wants events, and around a fork, in which the segment may be that of the parent:
 * n_cpus is 0 then.
 */
#ifndef PCPA_PCP_LOCKED_H
#define PCPA_PCP_LOCKED_H

#include "allocator/pcp_private.h"
#include "allocator/rseq.h"

/* Written before n_cpus, which is private memory. */
struct pcpa_locked {
	uint32_t n_cpus; /* ids below have a row; 0: none */
	intptr_t offset; /* of where the id is from the thread pointer, pcpa_cpu_place() */
	struct pcpa_locked_row {
		struct pcptune_cpu_block *block; /* of its own zone */
		struct pcpa_zone *zone;
	} row[PCPTUNE_MAX_CPUS];
};

extern struct pcpa_locked pcpa_locked;

/* Once, when lists are locked ones: at the first allocation, or when sections were given up. */
void pcpa_locked_begin(void);
/* With every pcp.lock held: switches it off, or on if it may be. */
void pcpa_locked_show(bool on);

/* ---- with the lists locked ---- */

/* Is the head where pops (mark) or pushes (bound) look closer? */
static inline bool pcpa_list_is_at(const struct pcptune_list *l, const uint32_t *edge)
{
	return !(((uint32_t)pcpa_get(&l->word) ^ pcpa_get(edge)) & PCPTUNE_WORD_MASK);
}

/* page: that of the block. */
static inline void pcpa_locked_push(struct pcptune_cpu_block *b, unsigned list, void *block,
				    struct pcpa_page *page, unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	uint64_t word = pcpa_get(&l->word);

	pcpa_pcp_uses(b, list);
	__atomic_store_n(&page->listed, 1, __ATOMIC_RELEASE);
	*pcpa_list_slot(l, word) = (uintptr_t)block;
	pcpa_publish(&l->word, word + PCPTUNE_WORD_PUSH);
	pcpa_put(&b->pcp.pages, pcpa_get(&b->pcp.pages) + (1u << order));
}

/*
 * NULL, and nothing was done: the block on top was freed by two threads at once, came onto two
 * lists, and has left by the other; or was in the zone before it came onto this one.
 */
static inline void *pcpa_locked_pop(struct pcptune_cpu_block *b, unsigned list, unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	uint64_t word = pcpa_get(&l->word), block = *pcpa_list_slot(l, word - 1);
	struct pcpa_page *pages = (struct pcpa_page *)(uintptr_t)l->pages;
	struct pcpa_page *page = &pages[(block - l->base) >> PCPTUNE_PAGE_SHIFT];
	uint32_t mark = pcpa_get(&page->mark) & PCPA_MARK_PLACE;

	if (__builtin_expect(mark != pcpa_mark(PCPA_LISTED, order), 0))
		return NULL;
	pcpa_publish(&l->word, word + PCPTUNE_WORD_POP);
	pcpa_put(&b->pcp.pages, pcpa_get(&b->pcp.pages) - (1u << order));
	__atomic_store_n(&page->listed, 0, __ATOMIC_RELEASE);
	return (void *)(uintptr_t)block;
}

/* An allocation ends a run of frees. */
static inline void pcpa_locked_calm(struct pcptune_pcp *p)
{
	uint32_t run = pcpa_get(&p->free_count);

	if (run)
		pcpa_put(&p->free_count, run >> 1);
}

/*
 * May a push be nothing but that, while the zone has memory? Then the rules were told of it. Where
 * orders alternate a guess whether the flag moves would be wrong every other time.
 */
static inline bool pcpa_locked_tell(struct pcptune_cpu_block *b, unsigned order)
{
	const struct pcptune_rule_light *w = &pcpa_words(b)->light;
	struct pcptune_pcp *p = &b->pcp;
	uint32_t run = pcpa_get(&p->free_count), factor, flags;

	if (!pcptune_rules_free_is_light(w, order, pcpa_get(&b->pcp.pages) + (1u << order), run))
		return false;
	if (run < w->run_most)
		pcpa_put(&p->free_count, pcptune_rules_light_run(w, order, run));
	factor = pcpa_get(&p->alloc_factor);
	if (factor)
		pcpa_put(&p->alloc_factor, pcptune_rules_light_factor(w, factor));
	flags = pcpa_get(&p->flags);
	if (order || flags & w->previous)
		pcpa_put(&p->flags, pcptune_rules_light_flags(w, order, flags));
	return true;
}

/* ---- with pcp.lock held, which they let go of: pcp.c ---- */

void *pcpa_pcp_alloc_held(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			  unsigned order);
void pcpa_pcp_free_held(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			unsigned order, void *block);

/* ---- what the exported functions do, for orders up to PCPTUNE_COSTLY_ORDER ---- */

/* The row of this CPU; NULL: it is to be asked. */
static inline const struct pcpa_locked_row *pcpa_locked_row(void)
{
	uint32_t n = __atomic_load_n(&pcpa_locked.n_cpus, __ATOMIC_ACQUIRE);
	uint32_t cpu = pcpa_area_cpu(pcpa_locked.offset);

	return cpu < n ? &pcpa_locked.row[cpu] : NULL;
}

/* The same; NULL: go the long way. */
const struct pcpa_locked_row *pcpa_locked_ask(void);

/* A look at the lock before it is tried would only be waited for. */
static inline bool pcpa_locked_try(struct pcptune_cpu_block *b)
{
	uint32_t free_word = 0;

	return __atomic_compare_exchange_n(&b->pcp.lock, &free_word, pcpa_pcp_me(), false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/*
 * The page of a block of zone z that is in use and of that order. NULL: it is something else, or
 * the zone is short of memory, which the rules want to know.
 */
static inline struct pcpa_page *pcpa_locked_page(const struct pcpa_zone *z, const void *block,
						 unsigned order)
{
	uintptr_t at = (uintptr_t)block - z->base;
	struct pcpa_page *page;

	if (at >= (uintptr_t)z->n_pages << PCPTUNE_PAGE_SHIFT ||
	    at & (((uintptr_t)PCPA_PAGE_SIZE << order) - 1))
		return NULL;
	page = &z->pages[at >> PCPTUNE_PAGE_SHIFT];
	if (!pcpa_page_is_out(page, order) || pcpa_get(&z->state))
		return NULL;
	return page;
}

/* With the lists locked. NULL: it is not that simple, and nothing was done. */
static inline void *pcpa_locked_alloc(struct pcptune_cpu_block *b, unsigned order)
{
	struct pcptune_list *l = &b->list[order];
	void *block;

	if (__builtin_expect(pcpa_list_is_at(l, &l->mark) || pcpa_get(&pcpa_words(b)->kind), 0))
		return NULL;
	block = pcpa_locked_pop(b, order, order);
	if (__builtin_expect(block != NULL, 1))
		pcpa_locked_calm(&b->pcp);
	return block;
}

/* The same; false. */
static inline bool pcpa_locked_free(struct pcptune_cpu_block *b, void *block,
				    struct pcpa_page *page, unsigned order)
{
	struct pcptune_list *l = &b->list[order];

	if (__builtin_expect(pcpa_list_is_at(l, &l->bound) || pcpa_get(&pcpa_words(b)->kind) ||
				     !pcpa_locked_tell(b, order),
			     0))
		return false;
	pcpa_locked_push(b, order, block, page, order);
	return true;
}

#endif
