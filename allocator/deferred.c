/* SPDX-License-Identifier: MIT */
/*
 * The stack of frees that were put off. One exchange takes all of it, so that there is no ABA.
 * The blocks are in use until they are flushed: no counter moves before.
 */
#include "allocator/deferred.h"
#include "allocator/heap.h"

struct deferred {
	struct deferred *next;
	unsigned long order;
};

static struct deferred *stack;

void pcpa_deferred_push(void *block, unsigned order)
{
	struct deferred *d = block;

	d->order = order;
	d->next = __atomic_load_n(&stack, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&stack, &d->next, d, true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

void pcpa_deferred_flush(void)
{
	struct deferred *d;

	if (!__atomic_load_n(&stack, __ATOMIC_RELAXED))
		return;
	d = __atomic_exchange_n(&stack, NULL, __ATOMIC_ACQUIRE);
	while (d) {
		struct deferred *next = d->next;
		unsigned order = (unsigned)d->order;
		struct pcpa_zone *z = pcpa_heap_zone_of(d);
		struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, pcpa_cpu_slot());

		pcpa_zone_enter(z, PCPA_PATH_FREE, &b->zctr);
		pcpa_zone_give(z, pcpa_page_number(z, d), order, PCPA_BACKED);
		pcpa_count(&b->zctr.free_zone, 1u << order);
		pcpa_count(&b->zctr.free_direct, 1u << order);
		pcpa_zone_leave(z);
		d = next;
	}
}
