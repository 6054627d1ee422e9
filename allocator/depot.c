/* SPDX-License-Identifier: MIT */
/*
 * The depot (depot.h): stacks of blocks in one mapping that is touched as it is used.
 *
 * A stack is a ring, so that its oldest end can leave without the rest being moved. It holds
 * addresses, as the lists do, so that a batch goes from one to the other as it is: what is left to
 * do for each block is its tag. Neighbours lie beside each other as they were freed, so what goes
 * to the buddy system is gathered into runs first: sixty-four pages in a row are one merge.
 */
#include <errno.h>
#include <sys/mman.h>

#include "allocator/depot.h"
#include "allocator/rows.h"

#define SPILL_PAGES  64u
#define BRIEF_BLOCKS 256u  /* a hold that takes in more is timed */
#define FLUSH_PAGES  1024u /* in one hold of the zone lock */

struct stack {
	uint32_t bottom, n;
	uint32_t low;	/* least n since the last look */
	uint32_t limit; /* blocks */
	uint32_t mask;	/* places - 1; 0: not used yet */
	uint32_t reserved[3];
	uint64_t block[]; /* addresses */
};

struct pcpa_depot {
	uint32_t n_slots;
	uint32_t front_pages; /* bound of a front, pages of each order */
};

/* ---- layout: head, shared stacks, fronts ---- */

#define HEAD_SIZE ((size_t)128)

/* Stacks of `pages` pages of each order lie one after the other: where that of order begins. */
static inline size_t offset_of(size_t pages, unsigned order)
{
	return order * sizeof(struct stack) + sizeof(uint64_t) * (2 * pages - (2 * pages >> order));
}

static inline size_t fronts_at(void)
{
	return HEAD_SIZE + ((offset_of(PCPA_SHARED_PAGES, PCPA_DEPOT_ORDERS) + 127) & ~(size_t)127);
}

static inline struct stack *shared_of(const struct pcpa_depot *d, unsigned order)
{
	return (struct stack *)((char *)d + HEAD_SIZE + offset_of(PCPA_SHARED_PAGES, order));
}

static inline struct stack *front_of(const struct pcpa_depot *d, uint32_t slot, unsigned order)
{
	return (struct stack *)((char *)d + fronts_at() +
				slot * offset_of(PCPA_FRONT_PAGES, PCPA_DEPOT_ORDERS) +
				offset_of(PCPA_FRONT_PAGES, order));
}

static void bound(struct stack *s, uint32_t most, unsigned order, uint64_t pages)
{
	s->mask = (most >> order) - 1;
	s->limit = (uint32_t)(pages < most ? pages : most) >> order;
}

void pcpa_depot_make(struct pcpa_zone *z, uint32_t n_slots, uint32_t cpus)
{
	size_t size = fronts_at() + n_slots * offset_of(PCPA_FRONT_PAGES, PCPA_DEPOT_ORDERS);
	int saved = errno;
	struct pcpa_depot *d;

	pcpa_rows_make(z, n_slots, cpus);
	if (z->depot)
		return;
	d = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	errno = saved;
	if (d == MAP_FAILED)
		return;
	d->n_slots = n_slots;
	d->front_pages = z->n_pages / 64 / (cpus ? cpus : 1);
	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS; order++)
		bound(shared_of(d, order), PCPA_SHARED_PAGES, order, z->n_pages / 64);
	z->depot = d;
}

bool pcpa_depot_has_front(const struct pcpa_zone *z, uint32_t slot)
{
	uint32_t n = 0;

	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS && z->depot; order++)
		n |= pcpa_get(&front_of(z->depot, slot, order)->n);
	return n || pcpa_rows_has(z, slot);
}

bool pcpa_depot_has_shared(const struct pcpa_zone *z)
{
	uint32_t n = 0;

	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS && z->depot; order++)
		n |= pcpa_get(&shared_of(z->depot, order)->n);
	return n;
}

/* ---- out of the depot ---- */

/* Place i of n. */
static inline uint64_t *place_of(const struct pcpa_places *to, uint32_t i, uint32_t n)
{
	return i == n - 1 && to->top ? to->top : pcpa_place(to, i);
}

/* Takes up to m blocks off the top: where they are, and how many. */
static struct pcpa_claim claim(struct stack *s, uint32_t m)
{
	uint32_t n = s->n, rest = n > m ? n - m : 0;

	pcpa_put(&s->n, rest);
	if (rest < s->low)
		s->low = rest;
	return (struct pcpa_claim){s->block, s->bottom + rest, s->mask, n - rest};
}

/* Off the shared stack, newest first, to the places left - 1 and below. Returns how many. */
static uint32_t take_shared(struct pcpa_zone *z, unsigned order, uint32_t left, uint32_t n,
			    const struct pcpa_places *to)
{
	struct pcpa_claim c = claim(shared_of(z->depot, order), left);

	for (uint32_t i = 1; i <= c.n; i++)
		*place_of(to, left - i, n) = c.block[(c.from + c.n - i) & c.mask];
	return c.n;
}

static uint32_t take_merged(struct pcpa_zone *z, unsigned order, uint32_t left, uint32_t n,
			    const struct pcpa_places *to)
{
	uint32_t pfn, m = pcpa_zone_take_run(z, order, left, &pfn);

	for (uint32_t i = 1; i <= m; i++, pfn += 1u << order)
		*place_of(to, left - i, n) = (uintptr_t)pcpa_page_address(z, pfn);
	return m;
}

uint32_t pcpa_depot_take(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t n,
			 const struct pcpa_places *to, struct pcpa_claim *ret_claim)
{
	uint32_t left = n, m = 1;

	ret_claim->n = 0;
	if (z->depot && order < PCPA_DEPOT_ORDERS) {
		if (slot != PCPA_NO_FRONT)
			*ret_claim = claim(front_of(z->depot, slot, order), left);
		left -= ret_claim->n;
		if (left)
			left -= take_shared(z, order, left, n, to);
	}
	if (left > 1)
		pcpa_zone_is_long(z);
	for (; left && m; left -= m)
		m = take_merged(z, order, left, n, to);
	z->free_pages -= (uint64_t)(n - left) << order;
	return n - left;
}

/* Of n places from `at` on, those before a ring of mask + 1 places begins anew. */
static inline uint32_t straight(uint32_t at, uint32_t mask, uint32_t n)
{
	uint32_t left = mask + 1 - (at & mask);

	return n < left ? n : left;
}

/*
 * Descriptors by address: those of one page are as far apart as pages are, less this shift. What
 * does not change is kept in locals, here and below: the compiler can not know that the words which
 * are written are none of those.
 */
#define PAGE_TO_DESCRIPTOR (PCPTUNE_PAGE_SHIFT - 4)
_Static_assert(sizeof(struct pcpa_page) == 1 << 4, "a descriptor");

static inline uintptr_t descriptors(const struct pcpa_zone *z)
{
	return (uintptr_t)z->pages - (z->base >> PAGE_TO_DESCRIPTOR);
}

static inline struct pcpa_page *descriptor_of(uintptr_t descriptors_at, uint64_t block)
{
	return (struct pcpa_page *)(descriptors_at + (block >> PAGE_TO_DESCRIPTOR));
}

static inline void fetch_one(uintptr_t pages, uint64_t block, uint64_t *to, uint64_t out)
{
	*to = block;
	__atomic_store_n(&descriptor_of(pages, block)->out, out, __ATOMIC_RELEASE);
}

/* Neither begins anew within these. Four at a time, since this is what long refills cost. */
static void fetch_straight(uintptr_t pages, const uint64_t *from, uint64_t *to, size_t n,
			   uint64_t out)
{
	size_t i = 0;

	for (; i + 4 <= n; i += 4) {
		fetch_one(pages, from[i], &to[i], out);
		fetch_one(pages, from[i + 1], &to[i + 1], out);
		fetch_one(pages, from[i + 2], &to[i + 2], out);
		fetch_one(pages, from[i + 3], &to[i + 3], out);
	}
	for (; i < n; i++)
		fetch_one(pages, from[i], &to[i], out);
}

static void fetch_claimed(struct pcpa_zone *z, uint32_t n, const struct pcpa_places *to,
			  const struct pcpa_claim *claim, uint64_t out)
{
	uint32_t rest = claim->n - 1, from = claim->from, at = to->at + n - claim->n, m;
	uintptr_t pages = descriptors(z);

	for (; rest; rest -= m, from += m, at += m) {
		m = straight(at, to->mask, straight(from, claim->mask, rest));
		fetch_straight(pages, &claim->block[from & claim->mask], &to->ring[at & to->mask],
			       m, out);
	}
	fetch_straight(pages, &claim->block[from & claim->mask], place_of(to, n - 1, n), 1, out);
}

void pcpa_depot_fetch(struct pcpa_zone *z, unsigned order, uint32_t n, uint32_t got,
		      const struct pcpa_places *to, const struct pcpa_claim *claim,
		      enum pcpa_place place)
{
	if (claim->n)
		fetch_claimed(z, n, to, claim, pcpa_out(place, order));
	for (uint32_t i = n - got; i < n - claim->n; i++) {
		const void *block = (const void *)(uintptr_t)*place_of(to, i, n);

		pcpa_hand_out(z, pcpa_page_number(z, block), place, order);
	}
}

/* ---- to the buddy system ---- */

static inline uint32_t number_of(const struct pcpa_zone *z, uint64_t block)
{
	return pcpa_page_number(z, (const void *)(uintptr_t)block);
}

/* Neighbours that have come one after the other, in either direction. */
struct run {
	uint32_t first, end;
};

static inline void run_add(struct pcpa_zone *z, struct run *r, uint32_t pfn, unsigned order)
{
	uint32_t size = 1u << order;

	pcpa_tag_set(z, pfn, PCPA_NOWHERE, 0);
	if (pfn == r->end) {
		r->end += size;
	} else if (pfn + size == r->first) {
		r->first = pfn;
	} else {
		pcpa_zone_give_run(z, r->first, r->end);
		r->first = pfn;
		r->end = pfn + size;
	}
}

/* The n oldest blocks have gone: they were the first of those that nobody asked for. */
static void drop_oldest(struct stack *s, uint32_t n)
{
	pcpa_put(&s->n, s->n - n);
	s->low = s->low > n ? s->low - n : 0;
}

static void flush(struct pcpa_zone *z, struct stack *s, unsigned order, uint32_t n)
{
	struct run r = {0, 0};

	pcpa_zone_is_long(z);
	for (uint32_t i = 0; i < n; i++)
		run_add(z, &r, number_of(z, s->block[s->bottom++ & s->mask]), order);
	pcpa_zone_give_run(z, r.first, r.end);
	drop_oldest(s, n);
}

/* ---- into the depot ---- */

static void push(struct stack *s, uint64_t block)
{
	s->block[(s->bottom + s->n) & s->mask] = block;
	pcpa_put(&s->n, s->n + 1);
}

/* Makes room in a full front. */
static void spill(struct pcpa_zone *z, struct stack *front, unsigned order)
{
	struct stack *s = shared_of(z->depot, order);
	uint32_t n = SPILL_PAGES >> order;

	if (n > front->n)
		n = front->n;
	if (s->limit < n) {
		flush(z, front, order, n);
		return;
	}
	if (s->n + n > s->limit)
		flush(z, s, order, s->n + n - s->limit);
	for (uint32_t i = 0; i < n; i++)
		push(s, front->block[front->bottom++ & front->mask]);
	drop_oldest(front, n);
}

static inline uint32_t number_at(const struct pcpa_zone *z, const struct pcpa_places *p, uint32_t i)
{
	if (i < p->n_picked)
		return p->picked[i];
	return number_of(z, *pcpa_place(p, i));
}

/* False: remembered as a wrong free. */
static inline bool is_sound(struct pcpa_zone *z, uint32_t pfn, unsigned order, uint32_t mark)
{
	if (__builtin_expect((pcpa_get(&z->pages[pfn].mark) & PCPA_MARK_PLACE) == mark, 1))
		return true;
	pcpa_zone_keep_bad(z, pcpa_page_address(z, pfn), order);
	return false;
}

/* Where push_all() is, and what it needs. */
struct pushing {
	struct pcpa_zone *z;
	struct stack *s;
	uint32_t top;
	unsigned order;
	uint32_t mark;
};

static void push_picked(struct pushing *p, const uint32_t *pfn, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!is_sound(p->z, pfn[i], p->order, p->mark))
			continue;
		pcpa_tag_set(p->z, pfn[i], PCPA_IN_DEPOT, p->order);
		p->s->block[p->top++ & p->s->mask] = (uintptr_t)pcpa_page_address(p->z, pfn[i]);
	}
}

/* False: it is not what it should be. */
static inline bool push_one(uintptr_t pages, uint64_t block, uint64_t *to, uint32_t mark,
			    uint16_t in_depot)
{
	struct pcpa_page *page = descriptor_of(pages, block);

	if (__builtin_expect((pcpa_get(&page->mark) & PCPA_MARK_PLACE) != mark, 0))
		return false;
	*to = block;
	__atomic_store_n(&page->tag, in_depot, __ATOMIC_RELEASE);
	return true;
}

/* Up to the first that is not sound; returns their number. Four at a time, as above. */
static size_t push_sound(uintptr_t pages, const uint64_t *from, uint64_t *to, size_t n,
			 uint32_t mark, uint16_t in_depot)
{
	size_t i = 0;

	for (; i + 4 <= n; i += 4) {
		if (!push_one(pages, from[i], &to[i], mark, in_depot))
			return i;
		if (!push_one(pages, from[i + 1], &to[i + 1], mark, in_depot))
			return i + 1;
		if (!push_one(pages, from[i + 2], &to[i + 2], mark, in_depot))
			return i + 2;
		if (!push_one(pages, from[i + 3], &to[i + 3], mark, in_depot))
			return i + 3;
	}
	while (i < n && push_one(pages, from[i], &to[i], mark, in_depot))
		i++;
	return i;
}

/* Neither the ring nor the stack begins anew within these. */
static void push_straight(struct pushing *p, const uint64_t *from, uint32_t n)
{
	uint64_t *to = &p->s->block[p->top & p->s->mask];

	for (uint32_t m; n; n -= m, from += m) {
		m = (uint32_t)push_sound(descriptors(p->z), from, to, n, p->mark,
					 pcpa_tag(PCPA_IN_DEPOT, p->order));
		p->top += m;
		to += m;
		if (m < n)
			pcpa_zone_keep_bad(p->z, (void *)(uintptr_t)from[m++], p->order);
	}
}

/* Places [i, end), for which there is room. */
static void push_all(struct pcpa_zone *z, struct stack *s, unsigned order, uint32_t mark,
		     const struct pcpa_places *from, uint32_t i, uint32_t end)
{
	struct pushing p = {z, s, s->bottom + s->n, order, mark};
	uint32_t picked = end < from->n_picked ? end : from->n_picked, m;

	if (i < picked) {
		push_picked(&p, from->picked + i, picked - i);
		i = picked;
	}
	for (; i < end; i += m) {
		uint32_t at = from->at + i;

		m = straight(at, from->mask, straight(p.top, s->mask, end - i));
		push_straight(&p, &from->ring[at & from->mask], m);
	}
	pcpa_put(&s->n, p.top - s->bottom);
}

static uint64_t store(struct pcpa_zone *z, struct stack *s, unsigned order, uint32_t mark,
		      const struct pcpa_places *from, uint32_t n)
{
	uint32_t bad = z->n_bad;

	if (n > BRIEF_BLOCKS)
		pcpa_zone_is_long(z);
	for (uint32_t i = 0, m; i < n; i += m) {
		if (s->n == s->limit)
			spill(z, s, order);
		m = s->limit - s->n;
		if (m > n - i)
			m = n - i;
		push_all(z, s, order, mark, from, i, i + m);
	}
	return n - (z->n_bad - bad);
}

static uint64_t give_merged(struct pcpa_zone *z, unsigned order, uint32_t mark,
			    const struct pcpa_places *from, uint32_t n)
{
	struct run r = {0, 0};
	uint32_t good = 0;

	if (n > 1)
		pcpa_zone_is_long(z);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t pfn = number_at(z, from, i);

		if (!is_sound(z, pfn, order, mark))
			continue;
		run_add(z, &r, pfn, order);
		good++;
	}
	pcpa_zone_give_run(z, r.first, r.end);
	return good;
}

uint64_t pcpa_depot_give(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t n,
			 const struct pcpa_places *from, enum pcpa_place place)
{
	struct stack *front = NULL;
	uint32_t mark = pcpa_mark(place, order);
	uint64_t pages;

	if (z->depot && order < PCPA_DEPOT_ORDERS && slot != PCPA_NO_FRONT && !z->state) {
		front = front_of(z->depot, slot, order);
		if (!front->mask)
			bound(front, PCPA_FRONT_PAGES, order, z->depot->front_pages);
	}
	if (front && front->limit)
		pages = store(z, front, order, mark, from, n) << order;
	else
		pages = give_merged(z, order, mark, from, n) << order;
	z->free_pages += pages;
	return pages;
}

/* ---- leaving ---- */

/*
 * One stack in bounded holds: what lay below everything that was used since the last look, or all
 * of it. With `all`, others may fill it again meanwhile: no more goes than was there at first.
 */
static bool leave(struct pcpa_zone *z, struct stack *s, unsigned order, bool all,
		  enum pcpa_path path, struct pcptune_zctr *ctr)
{
	uint32_t left = pcpa_get(&s->n), most = FLUSH_PAGES >> order;
	bool any = left != 0;

	while (left) {
		uint32_t n;

		pcpa_zone_enter(z, path, ctr);
		n = all ? s->n : s->low;
		n = n < left ? n : left;
		left = n > most ? left - most : 0;
		flush(z, s, order, n < most ? n : most);
		if (!left)
			s->low = s->n;
		pcpa_zone_leave(z);
	}
	return any;
}

void pcpa_depot_age_front(struct pcpa_zone *z, uint32_t slot, struct pcptune_zctr *ctr)
{
	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS && z->depot; order++)
		leave(z, front_of(z->depot, slot, order), order, false, PCPA_PATH_AGENT, ctr);
	pcpa_rows_age(z, slot, ctr);
}

void pcpa_depot_age_shared(struct pcpa_zone *z, struct pcptune_zctr *ctr)
{
	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS && z->depot; order++)
		leave(z, shared_of(z->depot, order), order, false, PCPA_PATH_AGENT, ctr);
}

bool pcpa_depot_empty(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr)
{
	bool any = pcpa_rows_empty(z, path, ctr);

	for (unsigned order = 0; order < PCPA_DEPOT_ORDERS && z->depot; order++) {
		any |= leave(z, shared_of(z->depot, order), order, true, path, ctr);
		for (uint32_t slot = 0; slot < z->depot->n_slots; slot++)
			any |= leave(z, front_of(z->depot, slot, order), order, true, path, ctr);
	}
	return any;
}

/* ---- audit ---- */

static const char *check_stack(const struct pcpa_zone *z, const struct stack *s, unsigned order,
			       uint64_t *pages)
{
	if (s->n > s->limit || s->low > s->n)
		return "a stack of the depot holds more than it may";
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t pfn = number_of(z, s->block[(s->bottom + i) & s->mask]);

		if (pfn >= z->grown || pcpa_tag_get(z, pfn) != pcpa_tag(PCPA_IN_DEPOT, order))
			return "a block in the depot is not marked so";
	}
	*pages += (uint64_t)s->n << order;
	return NULL;
}

const char *pcpa_depot_check(const struct pcpa_zone *z, uint64_t *ret_pages)
{
	const struct pcpa_depot *d = z->depot;
	const char *what = NULL;

	for (unsigned order = 0; d && order < PCPA_DEPOT_ORDERS && !what; order++) {
		what = check_stack(z, shared_of(d, order), order, ret_pages);
		for (uint32_t slot = 0; slot < d->n_slots && !what; slot++)
			what = check_stack(z, front_of(d, slot, order), order, ret_pages);
	}
	return what ? what : pcpa_rows_check(z, ret_pages);
}
