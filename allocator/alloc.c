/* SPDX-License-Identifier: MIT */
/*
 * The functions of pcpalloc.h.
 *
 * Here are the checks of what callers hand in, the choice of a zone, and what happens when one has
 * nothing left: the next zone, then the lists of every CPU, then ENOMEM. Errors of callers are
 * reported with no lock held.
 */
#include <errno.h>
#include <pcpalloc.h>

#include "allocator/agent.h"
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/pcp.h"
#include "allocator/pcp_locked.h"

/* Read together by report(); a change while an error is reported may pair old and new. */
static pcpa_error_cb error_cb;
static void *error_cookie;
static struct pcpa_lock callback_lock;

#define CALLER	  __builtin_return_address(0)
#define ALL_PAGES (UINT64_MAX >> 1)

pcpa_error_cb pcpa_set_error_callback(pcpa_error_cb cb, void *cookie)
{
	pcpa_error_cb old;

	pcpa_lock_take(&callback_lock);
	old = pcpa_get(&error_cb);
	__atomic_store_n(&error_cb, NULL, __ATOMIC_RELEASE);
	pcpa_put(&error_cookie, cookie);
	__atomic_store_n(&error_cb, cb, __ATOMIC_RELEASE);
	pcpa_lock_release(&callback_lock);
	return old;
}

static __attribute__((noinline, cold)) void report(const char *what, const void *address,
						   unsigned order, const void *caller)
{
	pcpa_error_cb cb = __atomic_load_n(&error_cb, __ATOMIC_ACQUIRE);
	struct pcpa_error error = {sizeof(error), what, address, order, caller};
	int saved = errno;

	if (!pcpa_heap_get())
		pcpa_proc_add(&pcpa_heap.proc->bad_frees, 1);
	if (cb)
		cb(&error, pcpa_get(&error_cookie));
	errno = saved;
}

void pcpa_report(const char *what, const void *address, unsigned order, const void *caller)
{
	report(what, address, order, caller);
}

const char *pcpa_version(void)
{
	return PCPA_VERSION;
}

int pcpa_owns(const void *address)
{
	return __atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE) && pcpa_heap_zone_of(address);
}

/* ---- the fast path ---- */

/*
 * One hot section. Whatever is unusual (not set up, locked mode, the huge order, a list that is
 * empty or full, an abort, a wrong address, a block of another zone than this CPU's, an area
 * elsewhere) is left to the slow path, which asks all again. Lists of orders 0 to
 * PCPTUNE_COSTLY_ORDER have the index of their order.
 */

/* Is a list of this order served by sections? */
static inline bool fast_order(unsigned order)
{
	return order <= PCPTUNE_COSTLY_ORDER && pcpa_fast_cpus();
}

/* ... but not by the hot ones? */
static inline bool not_hot(void)
{
	return !pcpa_get(&pcpa_fast.orders) || pcpa_fast_cpu() >= PCPA_OWN_ROWS;
}

/* ---- allocation ---- */

/* Empties the lists of every CPU and the depots; lists that are locked are left alone. */
static void reclaim_lists(uint32_t own)
{
	for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++) {
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
			struct pcptune_cpu_block *b = pcpa_cpu_block(zone, slot);

			if (!pcpa_pcp_pages(b) || !pcpa_pcp_trylock(b))
				continue;
			pcpa_pcp_drain(&pcpa_heap.zones[zone], b, 0, ALL_PAGES, PCPA_DRAIN_FULL,
				       PCPA_PATH_ALLOC);
			pcpa_pcp_unlock(b);
			pcpa_pcp_report(&pcpa_heap.zones[zone]);
		}
		pcpa_depot_empty(&pcpa_heap.zones[zone], PCPA_PATH_ALLOC,
				 &pcpa_cpu_block(zone, own)->zctr);
	}
}

static bool any_returning(void)
{
	for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
		if (pcpa_get(&pcpa_heap.zones[zone].returning))
			return true;
	return false;
}

/* The home of this CPU is zone 0 of them. pages: 0, or those of a row. */
static void *try_zones(uint32_t first, uint32_t slot, unsigned order, uint32_t pages)
{
	uint32_t home = pcpa_heap.home[slot], n = pcpa_heap.n_zones;

	for (uint32_t i = first; i < n; i++) {
		uint32_t zone = home + i < n ? home + i : home + i - n;
		struct pcpa_zone *z = &pcpa_heap.zones[zone];
		void *block = pages ? pcpa_pcp_alloc_row(z, slot, order, pages)
				    : pcpa_pcp_alloc(z, slot, order);

		if (block)
			return block;
	}
	return NULL;
}

static void count_failure(uint32_t slot)
{
	struct pcpa_zone *z = &pcpa_heap.zones[pcpa_heap.home[slot]];
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);

	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	pcpa_count(&b->zctr.alloc_failed, 1);
	pcpa_zone_leave(z);
}

/* Every zone is empty at first sight: look at what is cached, and at what is on its way back. */
static __attribute__((noinline, cold)) void *alloc_hard(uint32_t slot, unsigned order,
							uint32_t pages)
{
	void *block;
	bool again;

	if (pcpa_in_zone || !pcpa_heap.n_zones) {
		errno = pcpa_heap.n_zones ? EAGAIN : ENOMEM;
		return NULL;
	}
	do {
		again = any_returning();
		reclaim_lists(slot);
		block = try_zones(0, slot, order, pages);
		if (!block && again)
			pcpa_rest();
	} while (!block && again);
	if (block)
		return block;
	count_failure(slot);
	errno = ENOMEM;
	return NULL;
}

static inline void *alloc_block(unsigned order, uint32_t pages)
{
	uint32_t slot = pcpa_cpu_slot();
	void *block = try_zones(0, slot, order, pages);

	if (__builtin_expect(!block, 0))
		block = alloc_hard(slot, order, pages);
	if (__builtin_expect(pcpa_get(&pcpa_agent_bell), 0))
		pcpa_agent_attend();
	return block;
}

static bool ready_to_alloc(unsigned order)
{
	int error = order > PCPA_MAX_ORDER ? -EINVAL : pcpa_heap_get();

	if (__builtin_expect(!error, 1))
		return true;
	errno = -error;
	return false;
}

/* Apart from the fast path, so that that saves no register. */
static __attribute__((noinline)) void *alloc_slow(unsigned order)
{
	void *block;

	if (fast_order(order) && (not_hot() || pcpa_sections_passed(order, NULL)) &&
	    pcpa_section_pop_own(order, &block)) {
		if (__builtin_expect(pcpa_get(&pcpa_agent_bell), 0))
			pcpa_agent_attend();
		return block;
	}
	return ready_to_alloc(order) ? alloc_block(order, 0) : NULL;
}

/*
 * Locked lists. What is called here is called last, so that nothing is saved on the stack: all that
 * was stored has to reach the cache before the next lock can be taken.
 */
static __attribute__((noinline)) void *attended(void *block)
{
	pcpa_agent_attend();
	return block;
}

static __attribute__((noinline)) void *alloc_held(struct pcptune_cpu_block *b, unsigned order)
{
	void *block = pcpa_pcp_alloc_held(pcpa_zone_of_block(b), b, order, order);

	/* its own zone was asked, and the rules were told so */
	if (!block)
		block = try_zones(1, pcpa_slot_of(b), order, 0);
	if (!block)
		block = alloc_hard(pcpa_slot_of(b), order, 0);
	return __builtin_expect(pcpa_get(&pcpa_agent_bell), 0) ? attended(block) : block;
}

static __attribute__((noinline)) void *alloc_woken(struct pcptune_cpu_block *b, void *block)
{
	pcpa_pcp_wake(b);
	return attended(block);
}

static inline __attribute__((always_inline)) void *alloc_on(const struct pcpa_locked_row *row,
							    unsigned order)
{
	struct pcptune_cpu_block *b = row->block;
	void *block;

	if (__builtin_expect(!pcpa_locked_try(b), 0))
		return alloc_slow(order);
	block = pcpa_locked_alloc(b, order);
	if (__builtin_expect(!block, 0))
		return alloc_held(b, order);
	if (pcpa_pcp_let_go(b))
		return alloc_woken(b, block);
	return __builtin_expect(pcpa_get(&pcpa_agent_bell), 0) ? attended(block) : block;
}

/* Where no thread has its CPU at hand, and the first time where they are virtual. */
static __attribute__((noinline)) void *alloc_asked(unsigned order)
{
	const struct pcpa_locked_row *row =
		order <= PCPTUNE_COSTLY_ORDER ? pcpa_locked_ask() : NULL;

	return row ? alloc_on(row, order) : alloc_slow(order);
}

static __attribute__((noinline)) void *alloc_locked(unsigned order)
{
	const struct pcpa_locked_row *row = pcpa_locked_row();

	if (__builtin_expect(order > PCPTUNE_COSTLY_ORDER || !row, 0))
		return alloc_asked(order);
	return alloc_on(row, order);
}

__attribute__((aligned(64))) /* a line of instructions */
void *
pcpa_alloc(unsigned order)
{
	void *block;

	if (__builtin_expect(pcpa_section_pop_hot(order, &block), 1))
		return block;
	return pcpa_get(&pcpa_locked.n_cpus) ? alloc_locked(order) : alloc_slow(order);
}

size_t pcpa_alloc_bulk(unsigned order, size_t n, void **blocks)
{
	size_t got = 0;

	if (!n || !ready_to_alloc(order))
		return 0;
	while (got < n) {
		uint32_t slot = pcpa_cpu_slot(), home = pcpa_heap.home[slot];
		size_t more = !pcpa_heap.n_zones
				      ? 0
				      : pcpa_pcp_alloc_bulk(&pcpa_heap.zones[home], slot, order,
							    n - got, blocks + got);

		if (!more) {
			blocks[got] = alloc_block(order, 0);
			if (!blocks[got])
				break;
			more = 1;
		}
		got += more;
	}
	if (pcpa_get(&pcpa_agent_bell))
		pcpa_agent_attend();
	return got;
}

/* ---- free ---- */

/* The zone of a block that may be freed, or NULL after a report. */
static inline struct pcpa_zone *check_block(const void *block, unsigned order, const void *caller)
{
	struct pcpa_zone *z = NULL;
	const char *what = "order is above PCPA_MAX_ORDER";
	uint32_t pfn;
	unsigned place;

	if (order > PCPA_MAX_ORDER)
		goto bad;
	what = "address is in no zone of this process";
	if (__atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE))
		z = pcpa_heap_zone_of(block);
	if (!z)
		goto bad;
	what = "address is not aligned to its order";
	if (((uintptr_t)block - z->base) & (((uintptr_t)PCPA_PAGE_SIZE << order) - 1))
		goto bad;
	pfn = pcpa_page_number(z, block);
	if (__builtin_expect(pcpa_is_out(z, pfn, order), 1))
		return z;
	place = pcpa_tag_get(z, pfn) >> 8;
	if (place == PCPA_IN_USE && pcpa_get(&z->pages[pfn].listed))
		place = PCPA_LISTED;
	what = place == PCPA_IN_USE	    ? "order is not that of the allocation"
	       : place == PCPA_LISTED	    ? "block was freed before"
	       : place == PCPA_PUT_OFF	    ? "block was freed before"
	       : pfn >= pcpa_get(&z->grown) ? "address was never allocated"
					    : "address is in the zone, or inside another block";
bad:
	report(what, block, order, caller);
	return NULL;
}

/* In the midst of a fork, by the thread that forks. */
static inline bool must_put_off(void)
{
	return pcpa_get(&pcpa_heap.ready) == PCPA_FORKING && pcpa_in_zone;
}

/* Frees that follow a long silence are news for the agent: there is memory to give back. */
static inline void wake_agent(void)
{
	if (__builtin_expect(pcpa_get(&pcpa_agent_bell), 0))
		pcpa_agent_wake();
}

static __attribute__((noinline)) void free_block(void *block, unsigned order, const void *caller)
{
	struct pcpa_zone *z;
	int saved = errno;

	if (!block)
		return;
	z = check_block(block, order, caller);
	if (z && __builtin_expect(must_put_off(), 0))
		pcpa_deferred_push(block, order);
	else if (z)
		pcpa_pcp_free(z, pcpa_cpu_slot(), order, block);
	wake_agent();
	errno = saved;
}

/* The zone of a block that is in use, and of that order, or NULL. */
static inline const struct pcpa_zone *zone_of_block(const void *block, unsigned order)
{
	const struct pcpa_zone *z = pcpa_heap_zone_of(block);

	return z && !(((uintptr_t)block - z->base) & (((uintptr_t)PCPA_PAGE_SIZE << order) - 1)) &&
			       pcpa_is_out(z, pcpa_page_number(z, block), order)
		       ? z
		       : NULL;
}

/*
 * By a section. A block of another zone than this CPU's goes to the list that this CPU has of that
 * zone, where it waits for a batch to go home. false: whatever the reason.
 */
static inline bool push_again(void *block, unsigned order)
{
	const struct pcpa_zone *z;

	if (not_hot() && pcpa_section_push_own(block, order))
		return true;
	z = zone_of_block(block, order);
	if (!z)
		return false;
	if (pcpa_heap.n_zones > 1 &&
	    pcpa_section_push(&pcpa_fast.zone[z->id][order], block) == PCPA_SECTION_DONE)
		return true;
	return pcpa_sections_passed(order, z) && pcpa_section_push_own(block, order);
}

static __attribute__((noinline)) void free_slow(void *block, unsigned order, const void *caller)
{
	if (!fast_order(order) || !push_again(block, order))
		free_block(block, order, caller);
	else
		wake_agent();
}

/* The same for locked lists. */
static __attribute__((noinline)) void free_held(struct pcptune_cpu_block *b, void *block,
						unsigned order)
{
	int saved = errno;

	pcpa_pcp_free_held(pcpa_zone_of_block(b), b, order, order, block);
	wake_agent();
	errno = saved;
}

static __attribute__((noinline)) void free_woken(struct pcptune_cpu_block *b)
{
	pcpa_pcp_wake(b);
	wake_agent();
}

static inline __attribute__((always_inline)) void
free_on(const struct pcpa_locked_row *row, void *block, unsigned order, const void *caller)
{
	struct pcptune_cpu_block *b = row->block;
	struct pcpa_page *page = pcpa_locked_page(row->zone, block, order);

	if (__builtin_expect(!page || !pcpa_locked_try(b), 0))
		free_slow(block, order, caller);
	else if (!pcpa_locked_free(b, block, page, order))
		free_held(b, block, order);
	else if (pcpa_pcp_let_go(b))
		free_woken(b);
	else
		wake_agent();
}

static __attribute__((noinline)) void free_asked(void *block, unsigned order, const void *caller)
{
	const struct pcpa_locked_row *row = NULL;
	int saved = errno;

	if (order <= PCPTUNE_COSTLY_ORDER)
		row = pcpa_locked_ask();
	errno = saved;
	if (row)
		free_on(row, block, order, caller);
	else
		free_slow(block, order, caller);
}

static __attribute__((noinline)) void free_locked(void *block, unsigned order, const void *caller)
{
	const struct pcpa_locked_row *row = pcpa_locked_row();

	if (__builtin_expect(order > PCPTUNE_COSTLY_ORDER || !row, 0))
		free_asked(block, order, caller);
	else
		free_on(row, block, order, caller);
}

/* Not by a hot section. */
static inline void free_otherwise(void *block, unsigned order, const void *caller)
{
	if (pcpa_get(&pcpa_locked.n_cpus))
		free_locked(block, order, caller);
	else
		free_slow(block, order, caller);
}

__attribute__((aligned(64))) void pcpa_free(void *block, unsigned order)
{
	if (__builtin_expect(pcpa_section_push_hot(block, order), 1))
		return;
	free_otherwise(block, order, CALLER);
}

/* Blocks that were checked. But one that is among them twice was still in use then. */
static void free_row(struct pcpa_zone *z, unsigned order, size_t n, void *const *blocks,
		     const void *caller)
{
	while (n) {
		size_t done = pcpa_pcp_free_bulk(z, pcpa_cpu_slot(), order, n, blocks);

		if (done < n)
			report("block was freed before", blocks[done++], order, caller);
		blocks += done;
		n -= done;
	}
}

/* Blocks that lie in one zone go together. */
void pcpa_free_bulk(unsigned order, size_t n, void *const *blocks)
{
	struct pcpa_zone *z = NULL;
	size_t first = 0;
	int saved = errno;

	if (must_put_off()) {
		for (size_t i = 0; i < n; i++)
			free_block(blocks[i], order, CALLER);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		struct pcpa_zone *this = blocks[i] ? check_block(blocks[i], order, CALLER) : NULL;

		if (this && this == z)
			continue;
		if (z)
			free_row(z, order, i - first, blocks + first, CALLER);
		first = i;
		z = this;
	}
	if (z)
		free_row(z, order, n - first, blocks + first, CALLER);
	wake_agent();
	errno = saved;
}

/* ---- exact sizes ---- */

static unsigned order_of(size_t pages)
{
	return pages <= 1 ? 0 : (unsigned)(64 - __builtin_clzl(pages - 1));
}

/*
 * The zone of a row of buddy blocks, the largest first, each of them in use; NULL after a report.
 */
static struct pcpa_zone *check_row(char *block, size_t pages, const void *caller)
{
	unsigned order = pcpa_piece_order(0, pages);
	struct pcpa_zone *z = check_block(block, order, caller);
	uint32_t pfn;

	if (!z)
		return NULL;
	pfn = pcpa_page_number(z, block);
	for (size_t at = (size_t)1 << order; at < pages; at += (size_t)1 << order) {
		order = pcpa_piece_order(at, pages);
		if ((pfn + at >= z->n_pages || !pcpa_is_out(z, pfn + (uint32_t)at, order)) &&
		    !check_block(block + at * PCPA_PAGE_SIZE, order, caller))
			return NULL;
	}
	return z;
}

static void free_blocks(char *block, size_t pages, const void *caller)
{
	int saved = errno;
	struct pcpa_zone *z = check_row(block, pages, caller);
	unsigned order;

	if (z && !must_put_off())
		pcpa_pcp_free_row(z, pcpa_cpu_slot(), pcpa_page_number(z, block), (uint32_t)pages);
	for (size_t at = 0; z && must_put_off() && at < pages; at += (size_t)1 << order) {
		order = pcpa_piece_order(at, pages);
		pcpa_deferred_push(block + at * PCPA_PAGE_SIZE, order);
	}
	wake_agent();
	errno = saved;
}

void *pcpa_alloc_exact(size_t size, size_t align)
{
	size_t pages;
	unsigned order;

	if (!align)
		align = PCPA_PAGE_SIZE;
	if (!size || size > PCPA_MAX_EXACT || align > PCPA_MAX_EXACT || align & (align - 1)) {
		errno = EINVAL;
		return NULL;
	}
	pages = pcpa_exact_pages(size);
	order = order_of(pages);
	if (order_of(align / PCPA_PAGE_SIZE) > order)
		order = order_of(align / PCPA_PAGE_SIZE);
	if (pages == (size_t)1 << order)
		return pcpa_alloc(order);
	return ready_to_alloc(order) ? alloc_block(order, (uint32_t)pages) : NULL;
}

void pcpa_free_exact(void *block, size_t size)
{
	size_t pages = pcpa_exact_pages(size);
	unsigned order = order_of(pages);

	if (!block)
		return;
	if (!size || size > PCPA_MAX_EXACT)
		report("size is 0 or above PCPA_MAX_EXACT", block, 0, CALLER);
	else if (pages & (pages - 1))
		free_blocks(block, pages, CALLER);
	else if (!fast_order(order) || !zone_of_block(block, order) ||
		 !pcpa_section_push_own(block, order))
		free_otherwise(block, order, CALLER);
}
