/* SPDX-License-Identifier: MIT */
/*
 * Rings of lists served by sections, each behind the twin of its list's line (rings.h).
 *
 * The lists of a CPU have one reservation with a part for each. In a part come the page of the
 * segment that the line is in, mapped a second time, and the ring, at the same distance from the
 * line in every part. Lines are neighbours in the segment and may lie in two pages: then the second
 * page comes a page later in its part, so that from one twin to the next it is always the same
 * step.
 *
 * A shared page is mapped again by mremap(2) with an old size of 0, which needs no descriptor: the
 * program may have closed ours. Called with pcp.lock held, and the sections stopped where there
 * are any.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocator/pcp_private.h"
#include "allocator/rings.h"

static uintptr_t page_size(void)
{
	return (uintptr_t)getpagesize();
}

/* The page with the line of a list, at `to`. */
static bool map_again(const struct pcptune_list *l, uintptr_t to)
{
	uintptr_t size = page_size(), page = (uintptr_t)l & ~(size - 1);
	void *at = (void *)(to & ~(size - 1)), *copy;

	/*
	 * Anywhere first: what can be refused is refused here. A refused mapping at a place may
	 * leave a hole there, which somebody else has by the time it is unmapped or mapped again.
	 */
	copy = mremap((void *)page, 0, size, MREMAP_MAYMOVE);
	if (copy == MAP_FAILED)
		return false;
	if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
		return true;
	munmap(copy, size);
	return false;
}

/* Where the twin of list i lies in a reservation that begins at `map`. */
static uintptr_t twin_in(const struct pcptune_cpu_block *b, uintptr_t map, unsigned i)
{
	return map + ((uintptr_t)b->list & (page_size() - 1)) + i * PCPA_TWIN_STRIDE;
}

static bool map_twins(const struct pcptune_cpu_block *b, uintptr_t map)
{
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		if (!map_again(&b->list[i], twin_in(b, map, i)))
			return false;
	return true;
}

bool pcpa_rings_map(struct pcptune_cpu_block *b)
{
	size_t size = PCPTUNE_N_LISTS * PCPA_RING_PART;
	int saved = errno;
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	bool done = map != MAP_FAILED && map_twins(b, (uintptr_t)map);

	if (map != MAP_FAILED && !done)
		munmap(map, size);
	for (unsigned i = 0; i < PCPTUNE_N_LISTS && done; i++) {
		b->list[i].private_ring = twin_in(b, (uintptr_t)map, i) + PCPA_INLINE_RING;
		b->list[i].limit = PCPA_RING_PLACES;
	}
	errno = saved;
	return done;
}

bool pcpa_rings_rebind(struct pcptune_cpu_block *b)
{
	bool done = true;
	int saved = errno;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS && pcpa_rings_mapped(b); i++)
		done &= map_again(&b->list[i], (uintptr_t)pcpa_twin(&b->list[i]));
	errno = saved;
	return done;
}

void pcpa_rings_forget(struct pcptune_cpu_block *b)
{
	uintptr_t size = page_size();

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uintptr_t from = b->list[i].private_ring & ~(size - 1);

		/* it is not aligned to pages, and what lies around it is nobody's */
		madvise((void *)from, (PCPA_RING_BYTES + 2 * size - 1) & ~(size - 1),
			MADV_DONTNEED);
	}
}

bool pcpa_rings_possible(void)
{
	uintptr_t size = page_size(), page = (uintptr_t)pcpa_heap.header;
	int saved = errno;
	void *twin;

	if (size > PCPA_INLINE_RING)
		return false;
	twin = mremap((void *)page, 0, size, MREMAP_MAYMOVE);
	if (twin != MAP_FAILED)
		munmap(twin, size);
	errno = saved;
	return twin != MAP_FAILED;
}

/* ---- what they hold ---- */

void pcpa_sections_begin(struct pcptune_cpu_block *b, uint32_t high_limit)
{
	const struct pcpa_zone *z = pcpa_zone_of_block(b);

	pcpa_put(&b->pcp.high_limit,
		 pcpa_rings_map(b) ? pcptune_min_u32(high_limit, PCPA_RING_ROOM) : 0);

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		struct pcptune_list *l = &b->list[i];

		l->reserved =
			l->limit ? ((1u << pcpa_list_orders[i]) - 1) << 16 | (l->limit - 1) : 0;
		l->bound = (uint32_t)l->tail & pcpa_ring_mask(l);
		l->base = z->base;
		l->end = z->n_pages;
		l->pages = (uintptr_t)z->pages;
		l->mark = 0;
	}
	pcpa_rseq_show(b);
}

static void reverse(uint64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n / 2; i++) {
		uint64_t kept = v[i];

		v[i] = v[n - 1 - i];
		v[n - 1 - i] = kept;
	}
}

void pcpa_ring_turn(uint64_t *ring, uint32_t n, uint32_t by)
{
	by &= n - 1;
	reverse(ring, by);
	reverse(ring + by, n - by);
	reverse(ring, n);
}

/* By a copy, since to turn a ring touches all of it; but when there is no memory, we turn. */
static void move_blocks(struct pcptune_list *l, uint32_t n, uint32_t by)
{
	uint64_t tail = (uint64_t)l->tail, *copy;

	copy = mmap(NULL, n * sizeof(*copy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	if (copy == MAP_FAILED) {
		pcpa_ring_turn((uint64_t *)(uintptr_t)l->private_ring, l->limit, by);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		copy[i] = *pcpa_ring_slot(l, tail + i);
	for (uint32_t i = 0; i < n; i++)
		*pcpa_ring_slot(l, (uint64_t)i - n) = copy[i];
	munmap(copy, n * sizeof(*copy));
}

void pcpa_sections_begin_at_zero(struct pcptune_list *l)
{
	uint32_t n = pcpa_list_count(l), by = (uint32_t)pcpa_list_net(l);

	if (!l->limit || !(by & pcpa_ring_mask(l)))
		return;
	if (n)
		move_blocks(l, n, by);
	*pcpa_ring_slot(l, (uint64_t)0 - n - 1) = 0;
}
