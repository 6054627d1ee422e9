/* SPDX-License-Identifier: MIT */
/*
 * malloc and free where nothing is unusual: a section on a list of this CPU, and little around it.
 *
 * A request of a size in question (one comparison) becomes a block of order 0 to 3, which is
 * popped, and the call is counted by one addition to a word of the thread. A block to be freed is
 * ours if its address lies at a page in a zone (one comparison); its tag tells its order, and it is
 * pushed. Nothing here calls anything or takes a lock: what is empty, full, aborted, of another
 * size, of the next malloc or wrong is left to the slow path, which asks all again.
 *
 * Nothing is written about a block. So one that is freed twice while it is on a list is noticed
 * where its second copy reaches the zone, as with pcpa_free().
 *
 * preload_fast is written after the first block was served, `sizes` last (release), which goes back
 * to 0 when the process ends. preload_mine belongs to its thread.
 */
#ifndef PCPALLOC_PRELOAD_FAST_H
#define PCPALLOC_PRELOAD_FAST_H

#include <pcptune/rules.h>

#include "allocator/preload.h"
#include "allocator/rseq.h"

/* A zone as free sees it. pages_end: 0, or the number of pages, written last (release). */
struct preload_span {
	uintptr_t base;
	size_t pages_end;
	const struct pcpa_page *pages;
	const uint16_t *lengths; /* preload_zone.c; 0: a block of order 0 to 3, or none */
	struct pcpa_lists *lists;
};

/* The sizes and the first zone are on one line. */
struct preload_fast {
	size_t lo, sizes; /* sizes from lo, so many; 0: none */
	size_t n_zones;
	struct preload_span zone[PCPTUNE_MAX_ZONES];
	uint64_t counted[PCPTUNE_COSTLY_ORDER + 1]; /* for each order, see struct preload_mine */
} __attribute__((aligned(128)));

extern struct preload_fast preload_fast;

#define PRELOAD_FAST_PAGES (1u << PCPTUNE_COSTLY_ORDER)
#define PRELOAD_FAST_SIZE  ((size_t)PRELOAD_FAST_PAGES << PCPTUNE_PAGE_SHIFT)

/*
 * gathered: bits 0 to 31 bytes, 32 to 51 pages, 52 to 63 how many calls more may be gathered. When
 * there are none, the addition for one more does not carry out of the word.
 */
struct preload_mine {
	uint64_t gathered;
	uint32_t singles; /* frees of single pages in a row */
};

extern PRELOAD_TLS struct preload_mine preload_mine;

#define PRELOAD_GATHER_MAX   64u
#define PRELOAD_PAGES_SHIFT  32u
#define PRELOAD_CALLS_SHIFT  52u
#define PRELOAD_PAGES_MASK   ((1u << (PRELOAD_CALLS_SHIFT - PRELOAD_PAGES_SHIFT)) - 1)
#define PRELOAD_MANY_SINGLES 16u
_Static_assert(PRELOAD_GATHER_MAX *(uint64_t)PCPA_MAX_EXACT >> PRELOAD_PAGES_SHIFT == 0, "bytes");
_Static_assert(PRELOAD_GATHER_MAX *(uint64_t)PCPA_MAX_EXACT / 4096 <= PRELOAD_PAGES_MASK, "pages");

/* What one call of so many pages adds, but for the bytes. */
static inline uint64_t preload_counted(size_t pages)
{
	return ((uint64_t)pages << PRELOAD_PAGES_SHIFT) - (UINT64_C(1) << PRELOAD_CALLS_SHIFT);
}

/* The order of a size of at most PRELOAD_FAST_SIZE: that of the number of its last page. */
static inline unsigned preload_order(size_t size)
{
	return 63u ^ (unsigned)__builtin_clzl((size - 1) >> (PCPTUNE_PAGE_SHIFT - 1) | 1);
}

/* false: the slow path has the say. */
static inline __attribute__((always_inline)) bool preload_fast_alloc(size_t size, void **ret)
{
	const struct preload_fast *f = &preload_fast;
	enum pcpa_section how;
	uint64_t counted;
	unsigned order;
	void *p;

	if (__builtin_expect(
		    size - pcpa_get(&f->lo) >= __atomic_load_n(&f->sizes, __ATOMIC_ACQUIRE), 0))
		return false;
	order = preload_order(size);
	p = pcpa_section_pop(&pcpa_home_lists[order], &how);
	if (__builtin_expect(how != PCPA_SECTION_DONE, 0))
		return false;
	counted = f->counted[order] + size;
	if (__builtin_expect(
		    !__builtin_add_overflow(preload_mine.gathered, counted, &preload_mine.gathered),
		    0))
		p = preload_zone_counted(p, counted);
	*ret = p;
	return true;
}

/*
 * The zone of an address that is the start of one of its pages, and the number of that page; NULL:
 * none. An address between two pages turns into a page number above all others.
 */
static inline const struct preload_span *preload_span_of(const void *p, size_t *ret_page)
{
	const struct preload_span *z = preload_fast.zone;

	for (;; z++) {
		uintptr_t at = (uintptr_t)p - z->base;

		at = at >> PCPTUNE_PAGE_SHIFT | at << (64 - PCPTUNE_PAGE_SHIFT);
		*ret_page = at;
		if (__builtin_expect(at < __atomic_load_n(&z->pages_end, __ATOMIC_ACQUIRE), 1))
			return z;
		if (z + 1 >= preload_fast.zone + pcpa_get(&preload_fast.n_zones))
			return NULL;
	}
}

/* true: surely not ours, be it NULL. */
static inline bool preload_fast_foreign(const void *p)
{
	const struct preload_span *z = preload_fast.zone;

	return pcpa_get(&preload_fast.n_zones) == 1 &&
	       (uintptr_t)p - z->base >= z->pages_end << PCPTUNE_PAGE_SHIFT;
}

/* false: the slow path has the say. */
static inline __attribute__((always_inline)) bool preload_fast_free(void *p)
{
	const struct preload_span *z;
	uint32_t order;
	size_t page;

	z = preload_span_of(p, &page);
	if (!z)
		return false;
	/* any other tag turns into an order above all */
	order = (uint32_t)pcpa_get(&z->pages[page].tag) - pcpa_tag(PCPA_IN_USE, 0);
	if (__builtin_expect((order | pcpa_get(&z->lengths[page])) > PCPTUNE_COSTLY_ORDER, 0))
		return false;
	/*
	 * Which list it is becomes known late: the tag is found by the address, and that is often
	 * just being popped. Where all are single pages we do not wait for it; where orders are
	 * mixed, a guess would cost more than waiting.
	 */
	if (__builtin_expect(preload_mine.singles >= PRELOAD_MANY_SINGLES, 1)) {
		if (__builtin_expect(order == 0, 1))
			return pcpa_section_push(&z->lists[0], p) == PCPA_SECTION_DONE;
		preload_mine.singles = 0;
	} else {
		preload_mine.singles = order ? 0 : preload_mine.singles + 1;
	}
	return pcpa_section_push(&z->lists[order], p) == PCPA_SECTION_DONE;
}

#endif
