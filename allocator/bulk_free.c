/* SPDX-License-Identifier: MIT */
/*
 * The table, and the pass before the lock. The pass under it is pcpa_depot_give(), which takes page
 * numbers where it is given them and looks into the ring otherwise.
 */
#include "allocator/bulk_free.h"

const struct pcpa_bulk_free_row pcpa_bulk_frees[PCPA_BULK_FREES] = {
	[PCPA_BULK_TWO_PASS] = {"two-pass", 2018, "pick outside the lock"},
	[PCPA_BULK_PREFETCH] = {"prefetch", 2018, "pick outside the lock, prefetch the buddies"},
	[PCPA_BULK_DROP_THROUGH] = {"drop-through", 2022, "one pass under the lock"},
};

/* Both are written: the block's tag, and the links of the buddy that it merges with. */
static void call_in(const struct pcpa_zone *z, uint32_t pfn, unsigned order)
{
	__builtin_prefetch(&z->pages[pfn], 1);
	__builtin_prefetch(&z->pages[pfn ^ 1u << order], 1);
}

uint32_t pcpa_bulk_pick(enum pcpa_bulk_free way, const struct pcpa_zone *z, unsigned order,
			uint32_t n, uint32_t batch, struct pcpa_places *from, uint32_t *numbers,
			uint32_t used)
{
	uint32_t most = PCPA_PICKED - used, warm = way == PCPA_BULK_PREFETCH ? batch >> order : 0;

	if (way == PCPA_BULK_DROP_THROUGH)
		return used;
	n = n < most ? n : most;
	from->picked = numbers + used;
	from->n_picked = n;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t pfn = pcpa_page_number(z, (const void *)(uintptr_t)*pcpa_place(from, i));

		numbers[used + i] = pfn;
		if (i < warm)
			call_in(z, pfn, order);
	}
	return used + n;
}
