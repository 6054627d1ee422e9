/* SPDX-License-Identifier: MIT */
/*
 * Where the places of lists served by sections lie (rings.c).
 *
 * A ring has as many places as 16 bits can count, so that a section finds a place by a part of the
 * list's word, without a mask. It begins PCPA_INLINE_RING bytes behind the list's line, so that
 * there is no address of it to be loaded. Since the line lies in the segment, each ring has a
 * second mapping of that page in front of it: the line's twin. Sections use lists by their twins,
 * everybody else where they are.
 */
#ifndef PCPA_RINGS_H
#define PCPA_RINGS_H

#include <pcpalloc_inline.h>

#include <stdbool.h>
#include <stdint.h>

#include <pcptune/segment.h>

#ifndef PCPA_INLINE_RING /* a machine without sections */
#define PCPA_INLINE_RING 4096
#endif

#define PCPA_RING_PLACES (UINT32_C(1) << 16)
#define PCPA_RING_BYTES	 (PCPA_RING_PLACES * sizeof(uint64_t))
/* From the twin of a list to that of the next one, beside the size of a line. */
#define PCPA_RING_PART	 (PCPA_RING_BYTES + 3 * (size_t)PCPA_INLINE_RING)
#define PCPA_TWIN_STRIDE (PCPA_RING_PART + sizeof(struct pcptune_list))
/* Blocks that a refill of such a list moves at most, and those that it may hold. */
#define PCPA_RING_MOVE (PCPA_RING_PLACES / 8)
#define PCPA_RING_ROOM (PCPA_RING_PLACES - PCPA_RING_MOVE - 2)

/* Can pages of the segment be mapped twice here? */
bool pcpa_rings_possible(void);
/*
 * Rings for all lists of a CPU: private_ring and limit are set. false: no address space; none are.
 */
bool pcpa_rings_map(struct pcptune_cpu_block *b);
/* In the child of a fork: the twins are those of its own segment. false: they could not be had. */
bool pcpa_rings_rebind(struct pcptune_cpu_block *b);
/* Gives the memory of empty rings back. */
void pcpa_rings_forget(struct pcptune_cpu_block *b);

/* Lists that were mapped here, though sections may have been given up since. */
static inline bool pcpa_rings_mapped(const struct pcptune_cpu_block *b)
{
	return b->list[1].private_ring - b->list[0].private_ring == PCPA_TWIN_STRIDE;
}

/* Of a list that has a ring. */
static inline struct pcptune_list *pcpa_twin(const struct pcptune_list *l)
{
	return (struct pcptune_list *)(uintptr_t)(l->private_ring - PCPA_INLINE_RING);
}

#endif
