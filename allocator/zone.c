/* SPDX-License-Identifier: MIT */
/*
 * The buddy system.
 *
 * Blocks of 2^order pages, order 0 to 10. A block that comes back merges with its buddy as long
 * as that is free and whole. There are two sets of free lists: blocks that may have memory behind
 * them, which are handed out first, and bare ones (never touched, or given back to the system). A
 * merge of both is counted as backed. The zone grows upward by whole blocks of the largest order,
 * so that neither pages nor descriptors are touched before they are needed.
 *
 * Lists are doubly linked through the descriptors, newest first: allocations take the head, the
 * return of memory the tail. A bit mask of orders with a block finds the smallest that fits at
 * once.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>

#include <pcptune/rules.h>

#include "allocator/agent.h"
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/zone.h"

_Thread_local int pcpa_in_zone __attribute__((tls_model("initial-exec")));

/* ---- lists ---- */

static void list_add(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind)
{
	struct pcpa_page *p = &z->pages[pfn];
	uint32_t first = z->head[kind][order];

	p->prev = 0;
	p->next = first;
	p->kind = (uint8_t)kind;
	p->stamp = z->tick;
	if (first)
		z->pages[first - 1].prev = pfn + 1;
	else
		z->tail[kind][order] = pfn + 1;
	z->head[kind][order] = pfn + 1;
	z->mask[kind] |= 1u << order;
	if (kind == PCPA_BARE)
		z->bare_pages += 1u << order;
	pcpa_tag_set(z, pfn, PCPA_FREE, order);
}

static void list_del(struct pcpa_zone *z, uint32_t pfn, unsigned order)
{
	struct pcpa_page *p = &z->pages[pfn];
	unsigned kind = p->kind;

	if (p->prev)
		z->pages[p->prev - 1].next = p->next;
	else
		z->head[kind][order] = p->next;
	if (p->next)
		z->pages[p->next - 1].prev = p->prev;
	else
		z->tail[kind][order] = p->prev;
	if (!z->head[kind][order])
		z->mask[kind] &= ~(1u << order);
	if (kind == PCPA_BARE)
		z->bare_pages -= 1u << order;
	p->kind = PCPA_BACKED;
	pcpa_tag_set(z, pfn, PCPA_NOWHERE, 0);
}

/* ---- blocks ---- */

/* A brief hold that was not to be timed turns out to be a long one: from here on it is. */
static void turns_long(struct pcpa_zone *z)
{
	if (z->weight)
		return;
	z->brief--;
	z->weight = 1;
	z->hold = pcpa_hold_begin();
}

/*
 * The next block of what was reserved becomes accessible: until then mlockall() has nothing to
 * lock, and strict overcommit nothing to count. False: none is left, or the system refuses.
 */
static bool grow(struct pcpa_zone *z)
{
	void *at = pcpa_page_address(z, z->grown);
	int saved = errno;
	bool done;

	turns_long(z);
	done = z->grown < z->n_pages && !mprotect(at, PCPA_ZONE_ALIGN, PROT_READ | PROT_WRITE);

	errno = saved;
	if (!done)
		return false;
	z->free_pages += PCPA_BLOCK;
	pcpa_put(&pcpa_agent_bell, 1);
	pcpa_put(&z->grown, z->grown + PCPA_BLOCK);
	return true;
}

/* The smallest block that holds the order: backed, bare, or newly grown. */
static uint32_t find(struct pcpa_zone *z, unsigned order, unsigned *ret_order, unsigned *ret_kind)
{
	for (unsigned kind = 0; kind < PCPA_KINDS; kind++) {
		uint32_t fits = z->mask[kind] & (UINT32_MAX << order);
		unsigned o;
		uint32_t pfn;

		if (!fits)
			continue;
		o = (unsigned)__builtin_ctz(fits);
		pfn = z->head[kind][o] - 1;
		list_del(z, pfn, o);
		*ret_order = o;
		*ret_kind = kind;
		return pfn;
	}
	if (!grow(z))
		return PCPA_NO_PAGE;
	*ret_order = PCPTUNE_MAX_ORDER;
	*ret_kind = PCPA_BARE;
	return z->grown - PCPA_BLOCK;
}

/* What the rules are told about memory: as the kernel's watermarks, with hysteresis. */
static void update_state(struct pcpa_zone *z)
{
	uint64_t left = z->free_pages + (z->n_pages - z->grown);
	uint32_t state = z->state;

	if (left < z->wmark_low)
		state = PCPTUNE_ZS_BELOW_HIGH | PCPTUNE_ZS_RECLAIM_ACTIVE;
	else if (left < z->wmark_high)
		state |= PCPTUNE_ZS_BELOW_HIGH;
	else
		state = 0;
	if (state != z->state)
		pcpa_put(&z->state, state);
}

uint32_t pcpa_zone_take(struct pcpa_zone *z, unsigned order, enum pcpa_place place)
{
	unsigned o, kind;
	uint32_t pfn = find(z, order, &o, &kind);

	if (pfn == PCPA_NO_PAGE)
		return pfn;
	while (o > order) {
		o--;
		list_add(z, pfn + (1u << o), o, kind);
	}
	z->free_pages -= 1u << order;
	pcpa_hand_out(z, pfn, place, order);
	return pfn;
}

/* What is left of a block in front of `end`, as the largest blocks that it holds. */
static void put_rest(struct pcpa_zone *z, uint32_t at, uint32_t end, unsigned kind)
{
	while (at < end) {
		unsigned order = pcpa_piece_order(at, end);

		list_add(z, at, order, kind);
		at += 1u << order;
	}
}

uint32_t pcpa_zone_take_run(struct pcpa_zone *z, unsigned order, uint32_t n, uint32_t *ret_pfn)
{
	unsigned o, kind;
	uint32_t pfn = find(z, order, &o, &kind), most;

	if (pfn == PCPA_NO_PAGE)
		return 0;
	most = 1u << (o - order);
	n = n < most ? n : most;
	put_rest(z, pfn + (n << order), pfn + (1u << o), kind);
	*ret_pfn = pfn;
	return n;
}

uint32_t pcpa_zone_take_row(struct pcpa_zone *z, unsigned order, uint32_t pages)
{
	unsigned o, kind, piece;
	uint32_t pfn = find(z, order, &o, &kind), at = 0;

	if (pfn == PCPA_NO_PAGE)
		return pfn;
	put_rest(z, pfn + pages, pfn + (1u << o), kind);
	for (; at < pages; at += 1u << piece) {
		piece = pcpa_piece_order(at, pages);
		pcpa_hand_out(z, pfn + at, PCPA_IN_USE, piece);
	}
	z->free_pages -= pages;
	return pfn;
}

/* Puts a block on its list, merged as far as it goes. Its tag and free_pages are the caller's. */
static void merge(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind)
{
	for (; order < PCPTUNE_MAX_ORDER; order++) {
		uint32_t buddy = pfn ^ (1u << order);

		if (pcpa_tag_get(z, buddy) != pcpa_tag(PCPA_FREE, order))
			break;
		if (z->pages[buddy].kind == PCPA_BACKED)
			kind = PCPA_BACKED;
		list_del(z, buddy, order);
		pfn &= ~(1u << order);
	}
	list_add(z, pfn, order, kind);
}

void pcpa_zone_give(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind)
{
	z->free_pages += 1u << order;
	pcpa_tag_set(z, pfn, PCPA_NOWHERE, 0);
	merge(z, pfn, order, kind);
}

void pcpa_zone_give_run(struct pcpa_zone *z, uint32_t pfn, uint32_t end)
{
	while (pfn < end) {
		unsigned order = pcpa_piece_order(pfn, end);

		if (order > PCPTUNE_MAX_ORDER)
			order = PCPTUNE_MAX_ORDER;
		merge(z, pfn, order, PCPA_BACKED);
		pfn += 1u << order;
	}
}

void pcpa_zone_remember(struct pcpa_zone *z, void *block, unsigned order)
{
	if (z->n_bad < PCPA_BAD_KEPT) {
		z->bad[z->n_bad].block = block;
		z->bad[z->n_bad].order = order;
	}
	pcpa_put(&z->n_bad, z->n_bad + 1);
}

void pcpa_zone_keep_bad(struct pcpa_zone *z, void *block, unsigned order)
{
	pcpa_count(&z->ctr->alloc_direct, 1u << order);
	pcpa_zone_remember(z, block, order);
}

uint32_t pcpa_zone_take_cold(struct pcpa_zone *z, uint32_t until, unsigned *ret_order)
{
	for (unsigned order = PCPA_ORDERS; order-- > 0;) {
		uint32_t pfn = z->tail[PCPA_BACKED][order];

		if (!pfn-- || (int32_t)(z->pages[pfn].stamp - until) > 0)
			continue;
		list_del(z, pfn, order);
		pcpa_tag_set(z, pfn, PCPA_RETURNING, order);
		pcpa_put(&z->returning, z->returning + (1u << order));
		*ret_order = order;
		return pfn;
	}
	return PCPA_NO_PAGE;
}

void pcpa_zone_put_returned(struct pcpa_zone *z, uint32_t pfn, unsigned order, enum pcpa_kind kind)
{
	pcpa_put(&z->returning, z->returning - (1u << order));
	pcpa_tag_set(z, pfn, PCPA_NOWHERE, 0);
	merge(z, pfn, order, kind);
}

/* ---- the lock ---- */

struct path_counters {
	uint64_t *taken, *contended, *wait_ns, *hold_ns;
};

static struct path_counters counters_of(struct pcptune_zctr *c, enum pcpa_path path)
{
	switch (path) {
	case PCPA_PATH_ALLOC:
		return (struct path_counters){&c->lock_alloc_taken, &c->lock_alloc_contended,
					      &c->lock_alloc_wait_ns, &c->lock_alloc_hold_ns};
	case PCPA_PATH_FREE:
		return (struct path_counters){&c->lock_free_taken, &c->lock_free_contended,
					      &c->lock_free_wait_ns, &c->lock_free_hold_ns};
	default:
		return (struct path_counters){&c->lock_agent_taken, &c->lock_agent_contended,
					      &c->lock_agent_wait_ns, &c->lock_agent_hold_ns};
	}
}

static void enter(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr)
{
	uint64_t start = 0, waited = 0;
	struct path_counters c = counters_of(ctr, path);

	pcpa_in_zone++;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (!pcpa_lock_try(&z->lock)) {
		start = pcpa_now_ns();
		pcpa_lock_take(&z->lock);
		waited = pcpa_now_ns() - start;
	}
	z->ctr = ctr;
	z->path = path;
	pcpa_count(c.taken, 1);
	if (start) {
		pcpa_count(c.contended, 1);
		pcpa_count(c.wait_ns, waited);
	}
}

void pcpa_zone_enter(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr)
{
	enter(z, path, ctr);
	z->weight = 1;
	z->hold = pcpa_hold_begin();
}

void pcpa_zone_enter_brief(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr)
{
	enter(z, path, ctr);
	z->brief = (z->brief + 1) % PCPA_TIMED;
	z->weight = z->brief ? 0 : PCPA_TIMED;
	if (z->weight)
		z->hold = pcpa_hold_begin();
}

/* It stands for itself then, and not for others. */
void pcpa_zone_is_long(struct pcpa_zone *z)
{
	if (z->weight)
		return;
	z->brief--;
	z->weight = 1;
	z->hold = pcpa_hold_begin();
}

void pcpa_zone_publish(struct pcpa_zone *z)
{
	struct pcptune_zone_block *g = z->gauges;

	if (!g)
		return;
	pcpa_put(&g->grown_pages, z->grown);
	pcpa_put(&g->free_pages, z->free_pages);
	pcpa_put(&g->returned_pages, z->bare_pages);
}

/* The sums of a path are multiples of PCPA_TIMED, which a log stores in less room. */
static void count_hold(struct pcpa_zone *z)
{
	uint64_t ns = pcpa_hold_ns(&z->hold);

	if (z->gauges)
		pcpa_hold_count(z->gauges, ns, z->weight);
	if (z->weight == PCPA_TIMED || ++z->holds % PCPA_TIMED == 0)
		pcpa_count(counters_of(z->ctr, z->path).hold_ns, ns * PCPA_TIMED);
}

/* After all that this hold counted: who sees the number sees them. */
static void publish_counters(struct pcptune_zctr *ctr)
{
	struct pcptune_cpu_block *b =
		(void *)((char *)ctr - offsetof(struct pcptune_cpu_block, zctr));

	pcpa_publish(&b->pcp.holds, pcpa_get(&b->pcp.holds) + 1);
}

void pcpa_zone_leave(struct pcpa_zone *z)
{
	update_state(z);
	pcpa_zone_publish(z);
	if (z->weight)
		count_hold(z);
	publish_counters(z->ctr);
	pcpa_lock_release(&z->lock);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (!--pcpa_in_zone)
		pcpa_deferred_flush();
}

/* ---- reservation ---- */

#define MAP_RESERVE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

/* size bytes at a multiple of the largest block, or 0 */
static uintptr_t reserve_aligned(size_t size)
{
	char *raw = mmap(NULL, size + PCPA_ZONE_ALIGN, PROT_NONE, MAP_RESERVE, -1, 0);
	uintptr_t start, base;

	if (raw == MAP_FAILED)
		return 0;
	start = (uintptr_t)raw;
	base = (start + PCPA_ZONE_ALIGN - 1) & ~(PCPA_ZONE_ALIGN - 1);
	if (base > start)
		munmap(raw, base - start);
	if (base + size < start + size + PCPA_ZONE_ALIGN)
		munmap((void *)(base + size), start + PCPA_ZONE_ALIGN - base);
	return base;
}

/* Memory of this node first; a kernel or a sandbox that knows no NUMA may refuse. */
static void prefer_node(uintptr_t base, size_t size, int node)
{
	unsigned long mask[2] = {0, 0};

	if (node < 0 || node >= 64)
		return;
	mask[0] = 1ul << node;
	syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, 128ul, 0u);
}

/* Range and descriptors, both or none. */
static bool reserve(struct pcpa_zone *z, uint64_t n_pages)
{
	size_t size = (size_t)n_pages << PCPTUNE_PAGE_SHIFT;
	uintptr_t base = reserve_aligned(size);
	void *pages;

	if (!base)
		return false;
	pages = mmap(NULL, n_pages * sizeof(struct pcpa_page), PROT_READ | PROT_WRITE, MAP_RESERVE,
		     -1, 0);
	if (pages == MAP_FAILED) {
		munmap((void *)base, size);
		return false;
	}
	z->base = base;
	z->pages = pages;
	z->n_pages = (uint32_t)n_pages;
	return true;
}

static void unreserve(struct pcpa_zone *z)
{
	munmap((void *)z->base, (size_t)z->n_pages << PCPTUNE_PAGE_SHIFT);
	munmap(z->pages, z->n_pages * sizeof(struct pcpa_page));
	z->n_pages = 0;
}

static uint64_t half(uint64_t n_pages)
{
	return n_pages / 2 & ~(uint64_t)(PCPA_BLOCK - 1);
}

int pcpa_zone_reserve(struct pcpa_zone *z, uint32_t id, uint64_t n_pages, int node)
{
	uint64_t wanted = n_pages &= ~(uint64_t)(PCPA_BLOCK - 1);

	while (n_pages >= PCPA_BLOCK && !reserve(z, n_pages))
		n_pages = half(n_pages);
	if (n_pages < PCPA_BLOCK)
		return -ENOMEM;
	/* what could just be had may be all there is (strict overcommit, ulimit) */
	if (n_pages < wanted && half(n_pages)) {
		unreserve(z);
		if (!reserve(z, half(n_pages)))
			return -ENOMEM;
	}
	z->id = id;
	prefer_node(z->base, (size_t)z->n_pages << PCPTUNE_PAGE_SHIFT, node);
	return 0;
}

/* ---- audit ---- */

static const char *check_list(const struct pcpa_zone *z, unsigned kind, unsigned order,
			      uint64_t *ret_pages)
{
	uint32_t before = 0, n = 0;

	for (uint32_t at = z->head[kind][order]; at; at = z->pages[at - 1].next) {
		const struct pcpa_page *p = &z->pages[at - 1];

		if (p->prev != before || p->kind != kind)
			return "a free list is not linked both ways";
		if (pcpa_tag_get(z, at - 1) != pcpa_tag(PCPA_FREE, order))
			return "a block on a free list is not marked free";
		if (++n > z->n_pages)
			return "a free list has no end";
		before = at;
		*ret_pages += 1u << order;
	}
	if (z->tail[kind][order] != before || !n != !(z->mask[kind] & 1u << order))
		return "end or mask of a free list is wrong";
	return NULL;
}

/* Every page up to the frontier belongs to exactly one block. */
static const char *check_tags(const struct pcpa_zone *z, uint64_t sum[PCPA_PLACES])
{
	for (uint32_t pfn = 0; pfn < z->grown;) {
		uint16_t tag = pcpa_tag_get(z, pfn);
		unsigned place = tag >> 8, order = tag & 0xff;

		if (place == PCPA_NOWHERE || place >= PCPA_PLACES || order > PCPTUNE_MAX_ORDER)
			return "a page belongs to no block";
		if (pfn & ((1u << order) - 1))
			return "a block is not aligned to its size";
		if (place == PCPA_IN_USE && z->pages[pfn].listed)
			place = PCPA_LISTED;
		sum[place] += 1u << order;
		pfn += 1u << order;
	}
	return NULL;
}

const char *pcpa_zone_check(struct pcpa_zone *z, uint64_t *ret_in_use, uint64_t *ret_listed)
{
	uint64_t sum[PCPA_PLACES] = {0}, listed[PCPA_KINDS] = {0}, stored = 0;
	const char *what = check_tags(z, sum);

	for (unsigned kind = 0; kind < PCPA_KINDS && !what; kind++)
		for (unsigned order = 0; order < PCPA_ORDERS && !what; order++)
			what = check_list(z, kind, order, &listed[kind]);
	if (!what)
		what = pcpa_depot_check(z, &stored);
	if (what)
		return what;
	if (stored != sum[PCPA_IN_DEPOT])
		return "blocks are marked as in the depot and are not there";
	if (listed[PCPA_BACKED] + listed[PCPA_BARE] != sum[PCPA_FREE])
		return "free blocks are missing from the free lists";
	if (listed[PCPA_BARE] != z->bare_pages || sum[PCPA_RETURNING] != z->returning)
		return "totals of returned pages are wrong";
	if (sum[PCPA_FREE] + sum[PCPA_RETURNING] + stored != z->free_pages)
		return "the total of free pages is wrong";
	*ret_in_use = sum[PCPA_IN_USE] + sum[PCPA_PUT_OFF];
	*ret_listed = sum[PCPA_LISTED];
	return NULL;
}
