/* SPDX-License-Identifier: MIT */
/*
 * The stack of frees that were put off. One exchange takes all of it, so that there is no ABA.
 * The blocks are in use until they are flushed: no counter moves before. But their tags say where
 * they are, by an exchange, so that a block is here once, however often it is freed. The links are
 * in the descriptors: a program that goes on writing to what it freed does not lead us astray.
 */
#include "allocator/deferred.h"
#include "allocator/heap.h"

/* Zone << 32 | page number + 1, 0: the end. Of a block that is here prev and next are that. */
static uint64_t stack;

void pcpa_deferred_push(void *block, unsigned order)
{
	struct pcpa_zone *z = pcpa_heap_zone_of(block);
	uint32_t pfn = pcpa_page_number(z, block);
	struct pcpa_page *p = &z->pages[pfn];
	uint16_t tag = pcpa_tag(PCPA_IN_USE, order);
	uint64_t first = __atomic_load_n(&stack, __ATOMIC_RELAXED);

	if (pcpa_get(&p->listed) ||
	    !__atomic_compare_exchange_n(&p->tag, &tag, pcpa_tag(PCPA_PUT_OFF, order), false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		pcpa_report("block was freed before", block, order, NULL);
		return;
	}
	do {
		p->prev = (uint32_t)(first >> 32);
		p->next = (uint32_t)first;
	} while (!__atomic_compare_exchange_n(&stack, &first, (uint64_t)z->id << 32 | (pfn + 1),
					      true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static void flush_one(struct pcpa_zone *z, uint32_t pfn)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, pcpa_cpu_slot());
	unsigned order = pcpa_tag_get(z, pfn) & 0xff;

	pcpa_zone_enter(z, PCPA_PATH_FREE, &b->zctr);
	pcpa_zone_give(z, pfn, order, PCPA_BACKED);
	pcpa_count(&b->zctr.free_zone, 1u << order);
	pcpa_count(&b->zctr.free_direct, 1u << order);
	pcpa_zone_leave(z);
}

void pcpa_deferred_flush(void)
{
	uint64_t at;

	if (!__atomic_load_n(&stack, __ATOMIC_RELAXED))
		return;
	at = __atomic_exchange_n(&stack, 0, __ATOMIC_ACQUIRE);
	while (at) {
		struct pcpa_zone *z = &pcpa_heap.zones[at >> 32];
		uint32_t pfn = (uint32_t)at - 1;

		at = (uint64_t)z->pages[pfn].prev << 32 | z->pages[pfn].next;
		flush_one(z, pfn);
	}
}
