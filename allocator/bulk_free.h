/* SPDX-License-Identifier: MIT */
/*
 * How a drain hands its blocks to the zone: three ways that the kernel went, one after the other.
 *
 *   two-pass      Of 2018: the blocks are picked from the lists before the zone lock is taken, and
 *                 under it only handed over. The hold is shorter, but there are two passes.
 *   prefetch      The same year's next step: while picking, the descriptors of the first batch of
 *                 blocks and those of their buddies are called into the cache, so that the holder
 *                 of the lock does not wait for memory.
 *   drop-through  Of 2022: one pass under the lock, list after list, since the second pass and the
 *                 prefetching cost more than they save once the descriptors are warm anyway.
 *
 * Which blocks go, in which holds, and what is counted is the same in all of them: they differ in
 * when a block is looked at. That is why they can be compared. PCPALLOC_BULK_FREE chooses; what is
 * measured best is the default (PCPA_BULK_FREE_DEFAULT).
 */
#ifndef PCPA_BULK_FREE_H
#define PCPA_BULK_FREE_H

#include <stdint.h>

#include "allocator/depot.h"

enum pcpa_bulk_free {
	PCPA_BULK_TWO_PASS,
	PCPA_BULK_PREFETCH,
	PCPA_BULK_DROP_THROUGH,
	PCPA_BULK_FREES
};

#define PCPA_BULK_FREE_DEFAULT PCPA_BULK_DROP_THROUGH

/* So many blocks of a hold are picked before it; of a longer one, the others during it. */
#define PCPA_PICKED 512u

struct pcpa_bulk_free_row {
	const char *name; /* value of PCPALLOC_BULK_FREE */
	unsigned year;	  /* of the kernel's change */
	const char *idea;
};

extern const struct pcpa_bulk_free_row pcpa_bulk_frees[PCPA_BULK_FREES];

/*
 * Before the zone lock: picks n blocks, if this way does so, into numbers[PCPA_PICKED], of which
 * `used` are taken already. `from` points to them then. Returns how many are taken now.
 */
uint32_t pcpa_bulk_pick(enum pcpa_bulk_free way, const struct pcpa_zone *z, unsigned order,
			uint32_t n, uint32_t batch, struct pcpa_places *from, uint32_t *numbers,
			uint32_t used);

#endif
