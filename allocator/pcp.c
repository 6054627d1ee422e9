/* SPDX-License-Identifier: MIT */
/*
 * The lists: rings of block addresses, one word each.
 *
 * A ring holds the blocks at the positions tail .. tail + count - 1. Push and pop work at the
 * upper end (the head, hot) by one addition to `word`, which is also the list's statistics
 * (pcptune/segment.h). Refill and drain work at the lower end (the tail, cold) and move `tail`
 * alone. A position becomes an index by adding `reserved`, which a fork sets so that both words
 * can begin at zero with the blocks left in place. (Lists served by sections keep the mask of their
 * ring there.)
 *
 * How much to move and when is asked of pcptune/rules.h; here is only the moving. A call that
 * finds the lists locked goes to the zone directly. A call inside a signal handler that
 * interrupted a zone lock (pcpa_in_zone) uses the lists as far as they go without the zone.
 *
 * Of a locked list `mark` and `bound` are the positions at which a pop and a push look closer:
 * where it is empty or full, or where the band tracker wants to know (track.h). So they are set
 * anew whenever the tail moved.
 */
#include "allocator/bulk_free.h"
#include "allocator/depot.h"
#include "allocator/pcp_locked.h"
#include "allocator/pcp_private.h"
#include "allocator/rows.h"
#include "allocator/track.h"

#define BULK_HOLD 64u

/*
 * Lists that sections were given up for: out of use for a moment, then made locked ones. Or we came
 * this way because of a fork, which is over.
 */
static __attribute__((noinline, cold)) bool enter_given_up(struct pcptune_cpu_block *b)
{
	if (pcpa_rseq_settling() || pcpa_fast_cpus()) {
		pcpa_pcp_leave(b);
		return false;
	}
	pcpa_sections_end(pcpa_zone_of_block(b), b);
	return true;
}

/* pcp.lock is held. False: it is not any more, and the lists can not be used. */
static inline bool entered(struct pcptune_cpu_block *b)
{
	return __builtin_expect(!pcpa_by_sections(b), 1) || enter_given_up(b);
}

static inline bool enter(struct pcptune_cpu_block *b)
{
	return pcpa_pcp_enter(b) && entered(b);
}

/* ---- words ---- */

/*
 * Net position and operations of a list at one moment, though sections may push and pop and a
 * holder of pcp.lock may move the tail. `word` never comes back to an old value, so tail was read
 * while word was what it is when both readings of word agree. ops64 is read first: what is folded
 * into it can then not be newer than the word.
 */
static uint64_t list_read(const struct pcptune_list *l, const uint64_t *ops64, uint64_t *ret_net)
{
	uint64_t before = __atomic_load_n(ops64, __ATOMIC_ACQUIRE), word, tail, ops;

	do {
		word = __atomic_load_n(&l->word, __ATOMIC_ACQUIRE);
		tail = (uint64_t)__atomic_load_n(&l->tail, __ATOMIC_ACQUIRE);
	} while (word != pcpa_get(&l->word));
	*ret_net = tail + ((word - tail) & PCPTUNE_WORD_MASK);
	ops = (word - *ret_net) >> 24;
	return before + ((ops - before) & PCPA_OPS_MASK);
}

void pcpa_pcp_fold(struct pcptune_cpu_block *b)
{
	uint32_t freed;

	PCPA_FOR_EACH_USED (i, b)
		pcpa_pcp_fold_list(b, i, &freed);
}

void pcpa_pcp_totals(const struct pcptune_cpu_block *b, uint64_t *ret_allocated,
		     uint64_t *ret_freed)
{
	uint64_t allocated = pcpa_get(&b->zctr.alloc_direct),
		 freed = pcpa_get(&b->zctr.free_direct);

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		const uint64_t *ops64 = &b->pcp.reserved[PCPA_PCP_OPS + i];
		uint64_t net, ops = list_read(&b->list[i], ops64, &net);

		allocated += (ops - net) / 2 << pcpa_list_orders[i];
		freed += (ops + net) / 2 << pcpa_list_orders[i];
	}
	*ret_allocated = allocated;
	*ret_freed = freed;
}

/* Where pops and pushes of a locked list look closer. */
static void set_edges(struct pcptune_cpu_block *b, unsigned list)
{
	struct pcptune_list *l = &b->list[list];
	const struct pcptune_track *t = pcpa_track_of(b);
	uint32_t head = (uint32_t)pcpa_get(&l->word), count = pcpa_list_count(l);
	uint32_t room = l->limit - pcptune_min_u32(count, l->limit);
	struct pcpa_window w = {room, count};

	if (t)
		w = pcpa_track_window(t, list);
	pcpa_put(&l->mark, head - pcptune_min_u32(w.down, count));
	pcpa_put(&l->bound, head + pcptune_min_u32(w.up, room));
}

void pcpa_pcp_edges(struct pcptune_cpu_block *b)
{
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		set_edges(b, i);
}

/* The position is looked at, and the list goes on from here. */
static void look(struct pcptune_cpu_block *b, unsigned list)
{
	pcpa_track_look(b);
	set_edges(b, list);
}

/* ---- drain ---- */

/* Places of a locked list from a position on. */
static inline struct pcpa_places places(const struct pcptune_list *l, uint64_t position)
{
	return (struct pcpa_places){.ring = (uint64_t *)(uintptr_t)l->private_ring,
				    .mask = l->limit - 1,
				    .at = (uint32_t)position + l->reserved};
}

void pcpa_pcp_count_drain(struct pcptune_zctr *c, uint64_t pages, enum pcpa_cause cause)
{
	pcpa_count(&c->drains, 1);
	pcpa_count(&c->free_zone, pages);
	if (cause == PCPA_DRAIN_DECAY)
		pcpa_count(&c->decay_pages, pages);
	if (cause == PCPA_DRAIN_TRIM)
		pcpa_count(&c->trim_pages, pages);
}

/* What one list has to give in one hold of the zone lock. */
struct part {
	struct pcptune_list *list;
	unsigned order;
	uint32_t n;
	struct pcpa_places from;
};

/* List after list, from *at on, which is where to go on afterwards. Returns the number of parts. */
static unsigned plan(struct pcptune_cpu_block *b, unsigned *at, uint64_t pages, struct part *parts)
{
	uint64_t held = pcpa_pcp_pages(b);
	unsigned n = 0;

	for (uint64_t done = 0; done < pages && done < held;) {
		struct pcptune_list *l = &b->list[*at];
		unsigned order = pcpa_list_orders[*at];
		uint64_t want = (pages - done + (1u << order) - 1) >> order;
		uint32_t count = pcpa_list_count(l), m = want < count ? (uint32_t)want : count;

		if (m)
			parts[n++] =
				(struct part){l, order, m, places(l, (uint64_t)pcpa_get(&l->tail))};
		done += (uint64_t)m << order;
		if (m < want)
			*at = (*at + 1) % PCPTUNE_N_LISTS;
	}
	return n;
}

/* One hold of the zone lock; returns pages moved. `at` is the list that was left. */
static uint64_t drain_chunk(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned *at,
			    uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	struct part parts[PCPTUNE_N_LISTS];
	unsigned n = plan(b, at, pages, parts);
	uint32_t numbers[PCPA_PICKED], used = 0;
	uint64_t done = 0, given = 0;

	for (unsigned i = 0; i < n; i++)
		used = pcpa_bulk_pick(pcpa_heap.bulk_free, z, parts[i].order, parts[i].n,
				      pcpa_get(&b->pcp.batch), &parts[i].from, numbers, used);
	pcpa_zone_enter_brief(z, path, &b->zctr);
	for (unsigned i = 0; i < n; i++) {
		struct pcptune_list *l = parts[i].list;

		given += pcpa_depot_give(z, pcpa_slot_of(b), parts[i].order, parts[i].n,
					 &parts[i].from, PCPA_LISTED);
		pcpa_publish(&l->tail, pcpa_get(&l->tail) + parts[i].n);
		done += (uint64_t)parts[i].n << parts[i].order;
	}
	pcpa_put(&b->pcp.pages, pcpa_get(&b->pcp.pages) - (uint32_t)done);
	pcpa_pcp_count_drain(&b->zctr, given, cause);
	if (cause == PCPA_DRAIN_HIGH_ORDER)
		pcpa_count(&b->zctr.free_high, 1);
	pcpa_zone_leave(z);
	pcpa_track_look(b);
	for (unsigned i = 0; i < n; i++)
		set_edges(b, (unsigned)(parts[i].list - b->list));
	return done;
}

void pcpa_pcp_drain(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned first,
		    uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	uint64_t most = pcpa_hold_most(&b->pcp);

	if (pcpa_by_sections(b)) {
		pcpa_sections_drain(z, b, first, pages, cause, path);
		return;
	}
	while (pages && pcpa_pcp_pages(b)) {
		uint64_t done = drain_chunk(z, b, &first, pages < most ? pages : most, cause, path);

		/* counted once, at the hold that it fired */
		if (cause == PCPA_DRAIN_HIGH_ORDER)
			cause = PCPA_DRAIN_FULL;
		pages -= done < pages ? done : pages;
	}
}

/* ---- refill ---- */

/*
 * Takes n blocks of the zone onto the tail of an empty list, in the order the zone gives them, so
 * that the first is handed out first. Returns how many there were.
 */
static uint32_t move_in(struct pcpa_zone *z, struct pcptune_cpu_block *b, struct pcptune_list *l,
			unsigned order, uint32_t n)
{
	int64_t tail = pcpa_get(&l->tail);
	struct pcpa_claim claim;
	struct pcpa_places to;
	uint32_t got;

	/* an empty list may begin anywhere: in the middle, where the ring's memory is warm */
	l->reserved = l->limit / 2 - (uint32_t)tail;
	to = places(l, (uint64_t)tail - n);
	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	got = pcpa_depot_take(z, pcpa_slot_of(b), order, n, &to, &claim);
	if (got) {
		pcpa_count(&b->zctr.alloc_zone, (uint64_t)got << order);
		pcpa_count(&b->zctr.refills, 1);
	}
	pcpa_zone_leave(z);
	pcpa_depot_fetch(z, order, n, got, &to, &claim, PCPA_LISTED);
	pcpa_pcp_uses(b, (unsigned)(l - b->list));
	pcpa_publish(&l->tail, tail - got);
	pcpa_put(&b->pcp.pages, pcpa_get(&b->pcp.pages) + (got << order));
	return got;
}

static uint32_t refill(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
		       unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	struct pcptune_rule_state s;
	uint32_t n;

	pcpa_pcp_control(z, b, PCPA_PATH_ALLOC);
	pcpa_pcp_fold(b);
	pcpa_state_load(&b->pcp, &s);
	n = pcptune_rules_refill(&s, order, (uint32_t)pcpa_pcp_pages(b), pcpa_get(&z->state));
	pcpa_state_store(b, &s);
	n = move_in(z, b, l, order, pcptune_min_u32(n, l->limit));
	look(b, list);
	return n;
}

/* ---- allocation and free ---- */

/* A block on top that is elsewhere leaves the list. That it was freed once more is undone by it. */
static void drop_stale(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
		       unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	uint64_t word = pcpa_get(&l->word);

	pcpa_publish(&l->word, word + PCPTUNE_WORD_POP);
	pcpa_put(&b->pcp.pages, pcpa_get(&b->pcp.pages) - (1u << order));
	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	pcpa_zone_remember(z, (void *)(uintptr_t)*pcpa_list_slot(l, word - 1), order);
	pcpa_zone_leave(z);
}

static void *take_hard(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
		       unsigned order);

/* The block on top is elsewhere. Below a signal handler there is no way to tell. */
static __attribute__((noinline, cold)) void *
take_after_stale(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list, unsigned order)
{
	void *block = NULL;

	if (pcpa_in_zone)
		return NULL;
	do {
		drop_stale(z, b, list, order);
		if (pcpa_list_count(&b->list[list]))
			block = pcpa_locked_pop(b, list, order);
	} while (!block && pcpa_list_count(&b->list[list]));
	look(b, list);
	return block ? block : take_hard(z, b, list, order);
}

static inline void *take_top(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			     unsigned order)
{
	void *block = pcpa_locked_pop(b, list, order);

	return __builtin_expect(block != NULL, 1) ? block : take_after_stale(z, b, list, order);
}

/* The list is empty, or the tracker wants to know. */
static __attribute__((noinline)) void *take_hard(struct pcpa_zone *z, struct pcptune_cpu_block *b,
						 unsigned list, unsigned order)
{
	struct pcptune_list *l = &b->list[list];

	if (pcpa_list_count(l)) {
		look(b, list);
		return take_top(z, b, list, order);
	}
	if (pcpa_in_zone || pcpa_zone_is_empty(z))
		return NULL;
	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	if ((!l->limit && !pcpa_pcp_begin_again(b, z->id)) ||
	    !pcptune_rules_has_list(pcpa_get(&b->pcp.rules), order))
		return pcpa_pcp_alloc_direct(z, b, order, false);
	return refill(z, b, list, order) ? pcpa_locked_pop(b, list, order) : NULL;
}

/* With the lists locked; may go to the zone. */
static inline void *take_locked(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
				unsigned order)
{
	if (__builtin_expect(!pcpa_list_is_at(&b->list[list], &b->list[list].mark), 1))
		return take_top(z, b, list, order);
	return take_hard(z, b, list, order);
}

static inline void taken(struct pcptune_cpu_block *b)
{
	struct pcptune_rule_state s;

	if (__builtin_expect(!pcpa_pcp_has(&b->pcp, PCPTUNE_RT_COUNT_MIN), 1))
		return;
	pcpa_state_load(&b->pcp, &s);
	pcptune_rules_taken(&s, pcpa_get(&b->pcp.pages));
	pcpa_count_min_store(&b->pcp, s.count_min);
}

void *pcpa_pcp_alloc_held(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			  unsigned order)
{
	void *block;

	if (!entered(b))
		return pcpa_pcp_alloc_direct(z, b, order, true);
	pcpa_locked_calm(&b->pcp);
	block = take_locked(z, b, list, order);
	taken(b);
	pcpa_pcp_leave(b);
	pcpa_pcp_report(z);
	return block;
}

void *pcpa_pcp_alloc(struct pcpa_zone *z, uint32_t slot, unsigned order)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	unsigned list = pcpa_list_of(order);

	if (list != PCPA_NO_LIST && slot < pcpa_fast_cpus())
		return pcpa_sections_alloc(z, slot, order, list);
	if (list == PCPA_NO_LIST || !pcpa_pcp_enter(b))
		return pcpa_pcp_alloc_direct(z, b, order, list != PCPA_NO_LIST);
	return pcpa_pcp_alloc_held(z, b, list, order);
}

/*
 * These are not seen to end a run of frees: the mark of the last pop goes where it was, seen from
 * the head. It is a number for the rules, and may be off by what others did. (Under the lock, since
 * of a list that is a locked one by now it is something else.)
 */
static size_t bulk_by_sections(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint32_t slot,
			       unsigned order, size_t n, void **blocks)
{
	struct pcptune_list *l = &b->list[pcpa_list_of(order)];
	uint32_t since = (uint32_t)pcpa_get(&l->word) - pcpa_get(&l->mark);
	size_t got = 0;

	while (got < n && (blocks[got] = pcpa_sections_alloc(z, slot, order, pcpa_list_of(order))))
		got++;
	if (pcpa_pcp_try(b)) {
		if (pcpa_by_sections(b))
			pcpa_put(&l->mark, (uint32_t)pcpa_get(&l->word) - since);
		pcpa_pcp_leave(b);
	}
	__atomic_fetch_add(&pcpa_words(b)->calm, (uint32_t)got, __ATOMIC_RELAXED);
	return got;
}

size_t pcpa_pcp_alloc_bulk(struct pcpa_zone *z, uint32_t slot, unsigned order, size_t n,
			   void **blocks)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	unsigned list = pcpa_list_of(order);
	bool listed;
	size_t got = 0;

	n = n < BULK_HOLD ? n : BULK_HOLD;
	if (list != PCPA_NO_LIST && slot < pcpa_fast_cpus())
		return bulk_by_sections(z, b, slot, order, n, blocks);
	listed = list != PCPA_NO_LIST && enter(b);
	for (; got < n; got++) {
		blocks[got] =
			listed ? take_locked(z, b, list, order)
			       : pcpa_pcp_alloc_direct(z, b, order, list != PCPA_NO_LIST && !got);
		if (!blocks[got])
			break;
	}
	if (listed) {
		taken(b);
		pcpa_pcp_leave(b);
	}
	return got;
}

/*
 * No room in the ring, or first use of this CPU by a free, or the tracker wants to know. False: the
 * block can not go here.
 */
static bool make_room(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list)
{
	struct pcptune_list *l = &b->list[list];

	if (pcpa_list_count(l) < l->limit) {
		look(b, list);
		return true;
	}
	if (pcpa_in_zone)
		return false;
	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	if (!l->limit && !pcpa_pcp_begin_again(b, z->id))
		return false;
	if (pcpa_list_count(l) >= l->limit)
		pcpa_pcp_drain(z, b, list, pcpa_max_move(&b->pcp), PCPA_DRAIN_FULL, PCPA_PATH_FREE);
	return pcpa_list_count(l) < l->limit;
}

static __attribute__((noinline)) void drain_full(struct pcpa_zone *z, struct pcptune_cpu_block *b,
						 unsigned list, uint32_t pages, bool fired)
{
	pcpa_pcp_fold(b);
	pcpa_pcp_drain(z, b, list, pages, fired ? PCPA_DRAIN_HIGH_ORDER : PCPA_DRAIN_FULL,
		       PCPA_PATH_FREE);
	pcpa_pcp_control(z, b, PCPA_PATH_FREE);
}

/* With the lists locked. False: the block has to go to the zone. */
static inline bool put_locked(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			      void *block, unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	struct pcptune_rule_state s;
	bool fired;
	uint32_t pages;

	if (__builtin_expect(pcpa_list_is_at(l, &l->bound), 0) && !make_room(z, b, list))
		return false;
	if (__builtin_expect(order <= PCPTUNE_COSTLY_ORDER && !pcpa_get(&z->state) &&
				     pcpa_locked_tell(b, order),
			     1)) {
		pcpa_locked_push(b, list, block, &z->pages[pcpa_page_number(z, block)], order);
		return true;
	}
	pcpa_state_load(&b->pcp, &s);
	if (order && !pcptune_rules_has_list(s.rules, order))
		return false;
	pcpa_locked_push(b, list, block, &z->pages[pcpa_page_number(z, block)], order);
	pages = pcptune_rules_free(&s, order, pcpa_get(&b->pcp.pages), pcpa_get(&z->state), &fired);
	pcpa_state_store(b, &s);
	if (__builtin_expect(pages && !pcpa_in_zone, 0))
		drain_full(z, b, list, pages, fired);
	return true;
}

void pcpa_pcp_free_held(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			unsigned order, void *block)
{
	bool usable = entered(b), done = usable && put_locked(z, b, list, block, order);

	if (usable)
		pcpa_pcp_leave(b);
	if (__builtin_expect(!done, 0))
		pcpa_pcp_free_direct(z, b, block, order, !usable);
}

void pcpa_pcp_free(struct pcpa_zone *z, uint32_t slot, unsigned order, void *block)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	unsigned list = pcpa_list_of(order);

	if (list != PCPA_NO_LIST && slot < pcpa_fast_cpus())
		pcpa_sections_free(z, slot, order, list, block);
	else if (list == PCPA_NO_LIST || !pcpa_pcp_enter(b))
		pcpa_pcp_free_direct(z, b, block, order, list != PCPA_NO_LIST);
	else
		pcpa_pcp_free_held(z, b, list, order, block);
	pcpa_pcp_report(z);
}

static inline bool is_out(const struct pcpa_zone *z, const void *block, unsigned order)
{
	return pcpa_is_out(z, pcpa_page_number(z, block), order);
}

size_t pcpa_pcp_free_bulk(struct pcpa_zone *z, uint32_t slot, unsigned order, size_t n,
			  void *const *blocks)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	unsigned list = pcpa_list_of(order);
	size_t done = 0;

	while (done < n) {
		size_t part = n - done < BULK_HOLD ? n - done : BULK_HOLD, i;
		bool sections = list != PCPA_NO_LIST && slot < pcpa_fast_cpus();
		bool listed = !sections && list != PCPA_NO_LIST && enter(b);

		for (i = 0; i < part && is_out(z, blocks[done + i], order); i++) {
			void *block = blocks[done + i];

			if (sections)
				pcpa_sections_free(z, slot, order, list, block);
			else if (!listed || !put_locked(z, b, list, block, order))
				pcpa_pcp_free_direct(z, b, block, order,
						     !listed && list != PCPA_NO_LIST && !i);
		}
		if (listed)
			pcpa_pcp_leave(b);
		done += i;
		if (i < part)
			break;
	}
	return done;
}

/* ---- audit ---- */

const char *pcpa_pcp_check(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint32_t mark)
{
	/* sections mark no blocks: theirs are as those in use */
	enum pcpa_place place = pcpa_by_sections(b) ? PCPA_IN_USE : PCPA_LISTED;
	uint64_t pages = 0;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		const struct pcptune_list *l = &b->list[i];
		uint32_t n = pcpa_list_count(l);

		if (n > l->limit)
			return "a list holds more than its ring";
		if (pcpa_by_sections(b) && l->limit && *pcpa_ring_slot(l, (uint64_t)l->tail - 1))
			return "the place below a list is not empty";
		for (uint32_t k = 0; k < n; k++) {
			uint64_t at = (uint64_t)(l->tail + k);
			void *block =
				(void *)(uintptr_t) * (pcpa_by_sections(b) ? pcpa_ring_slot(l, at)
									   : pcpa_list_slot(l, at));
			uint32_t pfn = pcpa_page_number(z, block);

			if (!pcpa_zone_has(z, block) || pfn >= z->grown ||
			    (z->pages[pfn].mark & PCPA_MARK_PLACE) !=
				    pcpa_mark(place, pcpa_list_orders[i]))
				return "a block on a list is not marked so";
			if (z->pages[pfn].prev == mark)
				return "a block is on the lists twice";
			z->pages[pfn].prev = mark;
		}
		pages += (uint64_t)n << pcpa_list_orders[i];
	}
	return pages == pcpa_pcp_pages(b) ? NULL : "the total of pages on lists is wrong";
}
