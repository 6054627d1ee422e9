/* SPDX-License-Identifier: MIT */
/*
 * A zone: a reserved range of pages, its buddy system, and the one lock in front of it.
 *
 * Everything here but `base`, `n_pages`, `pages` and the tags is written under the lock. A page
 * that starts a block has a tag (state and order); all other pages have tag 0, so that every
 * address tells whether it is the start of a block, and in which of the places it is. Tags of
 * blocks in the zone change under the zone lock, tags of what is in use or on a list by whom it was
 * handed out to (struct pcpa_page says what a list may write); readers that own nothing (a merge
 * that looks at its neighbour, the check of a wrong free) see one whole 16-bit word.
 */
#ifndef PCPA_ZONE_H
#define PCPA_ZONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pcptune/segment.h>

#include "allocator/hold.h"
#include "allocator/lock.h"
#include "allocator/rings.h"
#include "allocator/sys.h"

#define PCPA_ORDERS	(PCPTUNE_MAX_ORDER + 1)
#define PCPA_BLOCK	(1u << PCPTUNE_MAX_ORDER) /* pages the zone grows by */
#define PCPA_BAD_KEPT	256u
#define PCPA_TIMED	64u /* of so many brief holds one is timed and stands for all of them */
#define PCPA_NO_PAGE	UINT32_MAX
#define PCPA_ZONE_ALIGN ((size_t)PCPA_BLOCK << PCPTUNE_PAGE_SHIFT)

/* Where a block is. 0: this page starts none. */
enum pcpa_place {
	PCPA_NOWHERE,
	PCPA_FREE,
	PCPA_IN_USE,
	PCPA_LISTED, /* as in use, and on a locked list: never in a tag (struct pcpa_page) */
	PCPA_RETURNING,
	PCPA_IN_DEPOT,
	PCPA_PUT_OFF, /* freed below a signal handler, and counted as in use until it is done */
	PCPA_PLACES
};

/* Free blocks with memory behind them, and those without. */
enum pcpa_kind { PCPA_BACKED, PCPA_BARE, PCPA_KINDS };

/* Of a block in use: it is part of a row that is freed as a whole (preload_zone.c). */
#define PCPA_ROW 2u

enum pcpa_path { PCPA_PATH_ALLOC, PCPA_PATH_FREE, PCPA_PATH_AGENT };

/*
 * The tag of a block belongs to the zone: it is written under the zone lock, or by whom the zone
 * has given the block to. Whoever frees a block looks at it without the lock, and two threads that
 * free the same block at once may both find it in use; by the time that the second puts it onto its
 * list the first may have drained it to the zone. So a list that marks its blocks has a byte of its
 * own for it, which says something about a block in use alone, and which whoever hands out a block
 * sets anew. Then what comes too late to a list is on it twice, or not in use, and is noticed when
 * it leaves; what the zone keeps is never touched.
 */
struct pcpa_page {
	/*
	 * page number + 1 in its free list, 0: none; put off: see deferred.c; prev of a listed one:
	 * number of the last audit
	 */
	uint32_t prev;
	uint32_t next;
	union {
		struct {
			uint16_t tag;	/* place << 8 | order */
			uint8_t kind;	/* of a free block; else PCPA_BACKED, or PCPA_ROW */
			uint8_t listed; /* of a block in use: it is on a locked list */
			/* free: tick at which it became so; in use: see pcpa_out() */
			uint32_t stamp;
		};
		uint32_t mark; /* tag, kind and listed, as they follow each other in memory */
		uint64_t out;  /* these and stamp */
	};
};
_Static_assert(sizeof(struct pcpa_page) == 16, "16 bytes a page");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "mark is tag, kind, listed");

struct pcpa_zone {
	/* what every hold writes: one line, which goes from CPU to CPU with the lock */
	struct pcpa_lock lock;
	uint64_t free_pages; /* below `grown`: buddy, depot, and those being returned */
	/* of the hold in progress */
	struct pcptune_zctr *ctr;
	struct pcpa_hold hold;
	enum pcpa_path path;
	uint32_t brief;	 /* brief holds since the last that was timed */
	uint32_t holds;	 /* the others */
	uint32_t weight; /* holds that this one stands for in the histogram, 0: is not timed */

	/* what is written seldom */
	uintptr_t base __attribute__((aligned(64)));
	struct pcpa_page *pages;
	struct pcptune_zone_block *gauges;
	struct pcpa_depot *depot; /* NULL: there is none */
	struct pcpa_rows *rows;	  /* the same */
	uint32_t id;
	uint32_t n_pages; /* managed; a multiple of PCPA_BLOCK */
	uint32_t grown;	  /* pages below were used once; grows only */
	uint32_t state;	  /* PCPTUNE_ZS_*, read anywhere */
	uint32_t tick;	  /* time for stamps; moved by the agent */
	uint32_t wmark_low, wmark_high;
	uint32_t n_bad; /* of bad[], and those that found no place there */

	/* the buddy system */
	uint64_t bare_pages
		__attribute__((aligned(64)));	/* the part of free_pages without memory */
	uint64_t returning;			/* the part of free_pages taken out for madvise */
	uint32_t mask[PCPA_KINDS];		/* orders with a free block */
	uint32_t head[PCPA_KINDS][PCPA_ORDERS]; /* page number + 1 */
	uint32_t tail[PCPA_KINDS][PCPA_ORDERS];
	/* wrong frees that were noticed when they came here, until they are told */
	struct {
		void *block;
		uint32_t order;
	} bad[PCPA_BAD_KEPT];
} __attribute__((aligned(128)));

/*
 * Not 0 while this thread tries for or holds a zone lock. A signal handler that finds it set must
 * not wait for any zone lock: its own thread may be the holder.
 */
extern _Thread_local int pcpa_in_zone __attribute__((tls_model("initial-exec")));

static inline uint16_t pcpa_tag(enum pcpa_place place, unsigned order)
{
	return (uint16_t)((unsigned)place << 8 | order);
}

/* The mark of a block of kind PCPA_BACKED; what counts of one whose kind does not matter. */
#define PCPA_MARK_LISTED (UINT32_C(1) << 24)
#define PCPA_MARK_PLACE	 (PCPA_MARK_LISTED | 0xffff)

static inline uint32_t pcpa_mark(enum pcpa_place place, unsigned order)
{
	return place == PCPA_LISTED ? pcpa_tag(PCPA_IN_USE, order) | PCPA_MARK_LISTED
				    : pcpa_tag(place, order);
}

/*
 * What a block is handed out with: beside its tag stands how far the list of its order is from that
 * of order 0, where a CPU's lists are served by sections (preload_fast.h).
 */
static inline uint64_t pcpa_out(enum pcpa_place place, unsigned order)
{
	return (uint64_t)(order * (uint32_t)PCPA_TWIN_STRIDE) << 32 | pcpa_mark(place, order);
}

static inline void pcpa_tag_set(struct pcpa_zone *z, uint32_t pfn, enum pcpa_place p,
				unsigned order)
{
	__atomic_store_n(&z->pages[pfn].tag, pcpa_tag(p, order), __ATOMIC_RELEASE);
}

static inline uint16_t pcpa_tag_get(const struct pcpa_zone *z, uint32_t pfn)
{
	return __atomic_load_n(&z->pages[pfn].tag, __ATOMIC_ACQUIRE);
}

/* The page is on its way out of the zone, to be in use or on a list: by whom it was given to. */
static inline void pcpa_hand_out(struct pcpa_zone *z, uint32_t pfn, enum pcpa_place p,
				 unsigned order)
{
	__atomic_store_n(&z->pages[pfn].out, pcpa_out(p, order), __ATOMIC_RELEASE);
}

/*
 * At a page begins a block of that order that is in use, and not on a locked list. Two loads, since
 * one of both would have to wait for a byte that was just stored.
 */
static inline bool pcpa_page_is_out(const struct pcpa_page *page, unsigned order)
{
	return __atomic_load_n(&page->tag, __ATOMIC_ACQUIRE) == pcpa_tag(PCPA_IN_USE, order) &&
	       !pcpa_get(&page->listed);
}

static inline bool pcpa_is_out(const struct pcpa_zone *z, uint32_t pfn, unsigned order)
{
	return pcpa_page_is_out(&z->pages[pfn], order);
}

static inline void *pcpa_page_address(const struct pcpa_zone *z, uint32_t pfn)
{
	return (void *)(z->base + ((uintptr_t)pfn << PCPTUNE_PAGE_SHIFT));
}

static inline uint32_t pcpa_page_number(const struct pcpa_zone *z, const void *address)
{
	return (uint32_t)(((uintptr_t)address - z->base) >> PCPTUNE_PAGE_SHIFT);
}

static inline bool pcpa_zone_has(const struct pcpa_zone *z, const void *address)
{
	return (uintptr_t)address - z->base < (uintptr_t)z->n_pages << PCPTUNE_PAGE_SHIFT;
}

/* At a glance, without the lock: nothing free and nothing left to grow. */
static inline bool pcpa_zone_is_empty(const struct pcpa_zone *z)
{
	return pcpa_get(&z->grown) >= z->n_pages && !pcpa_get(&z->gauges->free_pages);
}

/*
 * Reserves n_pages (rounded to blocks) for node (-1: any). When that is refused, half of the
 * largest half that is not, so that the program has room, too. 0 or -ENOMEM.
 */
int pcpa_zone_reserve(struct pcpa_zone *z, uint32_t id, uint64_t n_pages, int node);

/*
 * Takes and releases the lock, accounting to ctr (a block of this zone) for path. Waiting is
 * timed. Between the two, signal handlers of this thread are kept out by pcpa_in_zone. The outer
 * release empties the stack of frees that handlers put off.
 */
void pcpa_zone_enter(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr);
/*
 * The same for a hold that moves one block, or many in and out of the depot: too short to be timed
 * each time. Should it turn out to be longer, it is told so as soon as that is known.
 */
void pcpa_zone_enter_brief(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr);
void pcpa_zone_is_long(struct pcpa_zone *z);
void pcpa_zone_leave(struct pcpa_zone *z);

/* Order of the first of the aligned blocks that pages [at, end) of an aligned block are made of. */
static inline unsigned pcpa_piece_order(size_t at, size_t end)
{
	unsigned fits = (unsigned)(63 - __builtin_clzl(end - at));
	unsigned aligned = at ? (unsigned)__builtin_ctzl(at) : fits;

	return fits < aligned ? fits : aligned;
}

/* Under the lock: one block out of, or into, the buddy system. PCPA_NO_PAGE: none. */
uint32_t pcpa_zone_take(struct pcpa_zone *z, unsigned order, enum pcpa_place place);
void pcpa_zone_give(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind);

/*
 * Under the lock, what many blocks at once are made of; free_pages is the caller's. A run is taken
 * off one free block: up to n blocks of order from *ret_pfn on, none of them tagged; returns their
 * number, 0: no memory. A run [pfn, end) of pages that are tagged PCPA_NOWHERE goes back as the
 * largest blocks that it holds, with memory.
 */
uint32_t pcpa_zone_take_run(struct pcpa_zone *z, unsigned order, uint32_t n, uint32_t *ret_pfn);
void pcpa_zone_give_run(struct pcpa_zone *z, uint32_t pfn, uint32_t end);
/*
 * Under the lock: a row of `pages` pages, at most 2^order, at a multiple of 2^order. Its blocks,
 * the largest first, are tagged as in use. PCPA_NO_PAGE: no memory.
 */
uint32_t pcpa_zone_take_row(struct pcpa_zone *z, unsigned order, uint32_t pages);

/* Under the lock: keeps in mind a block that was freed wrongly, for pcpa_pcp_report(). */
void pcpa_zone_remember(struct pcpa_zone *z, void *block, unsigned order);
/*
 * The same of one that came here and is not what it was said to be. Its free is undone in the
 * counters of the hold.
 */
void pcpa_zone_keep_bad(struct pcpa_zone *z, void *block, unsigned order);

/*
 * Under the lock: takes out the coldest, largest block that has memory and became free at or
 * before tick `until`. PCPA_NO_PAGE: none. pcpa_zone_put_returned() gives it back, as what it is.
 */
uint32_t pcpa_zone_take_cold(struct pcpa_zone *z, uint32_t until, unsigned *ret_order);
void pcpa_zone_put_returned(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind);

/* Under the lock: free lists against tags against totals. NULL: sound; else the breach. */
const char *pcpa_zone_check(struct pcpa_zone *z, uint64_t *ret_in_use, uint64_t *ret_listed);

/* Under the lock: writes the gauges of the segment. */
void pcpa_zone_publish(struct pcpa_zone *z);

#endif
