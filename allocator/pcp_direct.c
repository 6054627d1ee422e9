/* SPDX-License-Identifier: MIT */
/*
 * Straight to the zone, past every list: blocks whose CPU has its lists locked, rows, and orders
 * that have no list. Each is one hold of the zone lock, counted with the CPU that it was for. Below
 * a signal handler that interrupted a holder an allocation fails, and a free is put off.
 */
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/pcp_private.h"
#include "allocator/rows.h"

void *pcpa_pcp_alloc_row(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t pages)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	uint32_t pfn;

	if (pcpa_in_zone)
		return NULL;
	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	pfn = pcpa_rows_take(z, slot, order, pages);
	if (pfn == PCPA_NO_PAGE)
		pfn = pcpa_zone_take_row(z, order, pages);
	if (pfn != PCPA_NO_PAGE) {
		pcpa_count(&b->zctr.alloc_zone, pages);
		pcpa_count(&b->zctr.alloc_direct, pages);
	}
	pcpa_zone_leave(z);
	return pfn == PCPA_NO_PAGE ? NULL : pcpa_page_address(z, pfn);
}

void *pcpa_pcp_alloc_direct(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned order,
			    bool busy)
{
	uint64_t block = 0;
	struct pcpa_places to = {.ring = &block};
	struct pcpa_claim none;

	if (pcpa_rows_order(order))
		return pcpa_pcp_alloc_row(z, pcpa_slot_of(b), order, 1u << order);
	if (pcpa_in_zone)
		return NULL;
	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	if (pcpa_depot_take(z, PCPA_NO_FRONT, order, 1, &to, &none)) {
		pcpa_depot_fetch(z, order, 1, 1, &to, &none, PCPA_IN_USE);
		pcpa_count(&b->zctr.alloc_zone, 1u << order);
		pcpa_count(&b->zctr.alloc_direct, 1u << order);
	}
	if (busy)
		pcpa_count(&b->zctr.pcp_busy, 1);
	pcpa_zone_leave(z);
	return (void *)(uintptr_t)block;
}

/* Under the zone lock. Returns the pages that came in: none of a wrong block. */
static uint64_t give_one(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *block,
			 unsigned order)
{
	uint64_t one = (uintptr_t)block;
	struct pcpa_places from = {.ring = &one};
	uint32_t pfn = pcpa_page_number(z, block);

	if (!pcpa_rows_order(order))
		return pcpa_depot_give(z, PCPA_NO_FRONT, order, 1, &from, PCPA_IN_USE);
	if (!pcpa_is_out(z, pfn, order)) {
		pcpa_zone_keep_bad(z, block, order);
		return 0;
	}
	pcpa_rows_give(z, pcpa_slot_of(b), pfn, 1u << order);
	return 1u << order;
}

void pcpa_pcp_free_direct(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *block,
			  unsigned order, bool busy)
{
	if (pcpa_in_zone) {
		pcpa_deferred_push(block, order);
		return;
	}
	pcpa_zone_enter_brief(z, PCPA_PATH_FREE, &b->zctr);
	pcpa_count(&b->zctr.free_zone, give_one(z, b, block, order));
	pcpa_count(&b->zctr.free_direct, 1u << order);
	if (busy)
		pcpa_count(&b->zctr.pcp_busy, 1);
	pcpa_zone_leave(z);
}

/* Without the zone, for now: below a signal handler. */
static void put_off(struct pcpa_zone *z, uint32_t pfn, size_t at, size_t end)
{
	for (unsigned order; at < end; at += (size_t)1 << order) {
		order = pcpa_piece_order(at, end);
		pcpa_deferred_push(pcpa_page_address(z, pfn + (uint32_t)at), order);
	}
}

/*
 * Under the zone lock: are pages [at, end) still what the caller found? Two threads may have looked
 * at the same row that both were about to free. If not, it stays where it is, and what the hold is
 * going to count is undone.
 */
static bool is_row(struct pcpa_zone *z, uint32_t pfn, size_t at, size_t end)
{
	unsigned first = pcpa_piece_order(at, end);

	for (size_t i = at; i < end; i += (size_t)1 << pcpa_piece_order(i, end)) {
		if (pcpa_is_out(z, pfn + (uint32_t)i, pcpa_piece_order(i, end)))
			continue;
		pcpa_zone_keep_bad(z, pcpa_page_address(z, pfn + (uint32_t)at), first);
		pcpa_count(&z->ctr->alloc_direct, end - at - ((size_t)1 << first));
		return false;
	}
	return true;
}

void pcpa_pcp_give(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, size_t at, size_t end)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	size_t pages = end - at;

	if (pcpa_in_zone) {
		put_off(z, pfn, at, end);
		return;
	}
	pcpa_zone_enter_brief(z, PCPA_PATH_FREE, &b->zctr);
	pcpa_count(&b->zctr.free_direct, pages);
	if (is_row(z, pfn, at, end)) {
		for (unsigned order; at < end; at += (size_t)1 << order) {
			order = pcpa_piece_order(at, end);
			pcpa_zone_give(z, pfn + (uint32_t)at, order, PCPA_BACKED);
		}
		pcpa_count(&b->zctr.free_zone, pages);
	}
	pcpa_zone_leave(z);
	pcpa_pcp_report(z);
}

void pcpa_pcp_free_row(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, uint32_t pages)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);

	if (pcpa_in_zone) {
		put_off(z, pfn, 0, pages);
		return;
	}
	pcpa_zone_enter_brief(z, PCPA_PATH_FREE, &b->zctr);
	pcpa_count(&b->zctr.free_direct, pages);
	if (is_row(z, pfn, 0, pages)) {
		pcpa_rows_give(z, slot, pfn, pages);
		pcpa_count(&b->zctr.free_zone, pages);
	}
	pcpa_zone_leave(z);
	pcpa_pcp_report(z);
}
