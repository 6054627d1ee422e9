/* SPDX-License-Identifier: MIT */
/*
 * Lists served by sections (rseq.h): the slow paths.
 *
 * Pushes and pops are sections and nothing else. When one finds no room, or nothing, the caller
 * takes pcp.lock, changes the bounds of the lists or moves their tails, lets go of it, and tries
 * its section again. Holding pcp.lock does not stop the sections: a thread that is preempted with
 * it keeps others from slow paths, not from their lists.
 *
 * Tails. A refill takes blocks of the zone into the ring's places below the tail, which only the
 * holder of pcp.lock may write, and commits them by moving the tail; a drain moves the tail first
 * and then gives to the zone what lies below it. The move is a section, or, when we are on another
 * CPU by now, a store with the sections stopped. Pushes can not run into those places: room, plus
 * the largest move, is within the ring.
 *
 * Bounds. `high` is for all lists of a CPU, `room` for each. The sum of the rooms stays below the
 * level at which the rules drain, so that the push that would reach it comes here, and the rules
 * are asked at that moment with the exact numbers. A list that hits its room gets half of what no
 * list has been promised; when that is little, the others are cut down to what they hold and it
 * gets all there is.
 *
 * What the rules want to know of each operation follows from the words: how many allocations and
 * frees there were since the last slow path. Only the order of these is lost, but for `run`.
 * Differences to locked lists: consecutive high-order frees are noticed when a list of such an
 * order has grown by a batch, and by the last free of the run not being of another order; a change
 * of the zone's state is seen at the next slow path.
 *
 * Tags. Blocks on these lists are tagged as in use. A wrong free that the tag gives away (a block
 * of the zone, another order, the middle of a block) is refused at once. A block that was freed
 * twice is noticed when its second copy reaches the zone: it is left where it is, told to the error
 * callback, and the free is undone in the counters.
 */
#include <sys/mman.h>

#include "allocator/agent.h"
#include "allocator/bulk_free.h"
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/pcp_private.h"

#define TRIES 16u

/* ---- stopping ---- */

/* What each free and each allocation since the last look would have done to the rules' state. */
static void look(struct pcptune_cpu_block *b)
{
	struct pcptune_pcp *p = &b->pcp;
	uint64_t seen = pcpa_get(&p->reserved[PCPA_PCP_SEEN]), now;
	uint32_t rules = pcpa_get(&p->rules), allocs, frees;

	now = pcpa_pcp_fold(b);
	allocs = (uint32_t)(now >> 32) - (uint32_t)(seen >> 32);
	frees = (uint32_t)now - (uint32_t)seen;
	pcpa_put(&p->reserved[PCPA_PCP_SEEN], now);
	if (pcptune_rules_scaled(rules)) {
		pcpa_put(&p->free_count,
			 pcptune_min_u32(pcpa_get(&pcpa_words(b)->run), pcpa_max_move(p)));
		pcpa_put(&p->alloc_factor,
			 pcpa_get(&p->alloc_factor) >> pcptune_min_u32(frees, 31));
	} else if (rules == PCPTUNE_RULES_G1) {
		pcpa_put(&p->free_count, pcpa_get(&p->free_count) >> pcptune_min_u32(allocs, 31));
	}
}

void pcpa_sections_ask(struct pcptune_cpu_block *b)
{
	__atomic_fetch_or(&pcpa_words(b)->stop, PCPA_STOP_OWNER, __ATOMIC_SEQ_CST);
}

void pcpa_sections_stopped(struct pcptune_cpu_block *b)
{
	look(b);
}

static void stop(struct pcptune_cpu_block *b)
{
	pcpa_sections_ask(b);
	pcpa_rseq_fence((int)pcpa_slot_of(b));
}

static void go(struct pcptune_cpu_block *b)
{
	__atomic_fetch_and(&pcpa_words(b)->stop, ~PCPA_STOP_OWNER, __ATOMIC_RELEASE);
}

void pcpa_sections_stop(struct pcptune_cpu_block *b)
{
	stop(b);
	look(b);
}

/* Plain store: nobody else may. false: less than `need` blocks. */
static bool move_stopped(struct pcptune_list *l, uint32_t need, int64_t delta)
{
	if (pcpa_list_count(l) < need)
		return false;
	pcpa_publish(&l->tail, pcpa_get(&l->tail) + delta);
	return true;
}

/* Moves a tail, if there are at least `need` blocks. pcp.lock is held. */
static bool move_tail(struct pcptune_cpu_block *b, struct pcptune_list *l, uint32_t need,
		      int64_t delta)
{
	uint32_t cpu = pcpa_slot_of(b);
	bool done;

	if (pcpa_get(&pcpa_words(b)->stop) & PCPA_STOP_OWNER)
		return move_stopped(l, need, delta);
	for (unsigned n = 0; n < TRIES && pcpa_fast_cpu() == cpu; n++) {
		enum pcpa_section how = pcpa_section_tail(l, cpu, need, delta);

		if (how != PCPA_SECTION_AGAIN)
			return how == PCPA_SECTION_DONE;
	}
	stop(b);
	done = move_stopped(l, need, delta);
	go(b);
	return done;
}

/* ---- bounds ---- */

/* At this many pages the rules drain. */
static int64_t drain_level(const struct pcpa_zone *z, const struct pcptune_pcp *p)
{
	uint32_t rules = pcpa_get(&p->rules), state = pcpa_get(&z->state);
	uint32_t high = pcpa_get(&p->high), batch = pcpa_get(&p->batch);

	if (rules == PCPTUNE_RULES_G0)
		return high;
	if (state & PCPTUNE_ZS_RECLAIM_ACTIVE)
		return pcptune_min_u32(4 * batch, high);
	if (rules == PCPTUNE_RULES_G4 && state & PCPTUNE_ZS_BELOW_HIGH &&
	    pcpa_get(&p->high_min) != pcpa_get(&p->high_max))
		return pcpa_get(&p->high_min);
	return high;
}

/* Pages that are promised: what a list holds or may grow to. Lists that the rules lack get none. */
static int64_t promised(struct pcptune_cpu_block *b)
{
	struct pcpa_words *w = pcpa_words(b);
	uint32_t rules = pcpa_get(&b->pcp.rules);
	int64_t pages = 0;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uint32_t count = pcpa_list_count(&b->list[i]);

		if (!pcptune_rules_has_list(rules, pcpa_list_orders[i]))
			pcpa_put(&w->room[i], 0);
		pages += (int64_t)pcptune_max_u32(count, pcpa_get(&w->room[i]))
			 << pcpa_list_orders[i];
	}
	return pages;
}

/* Every list but one down to what it holds. The counts are read after: see rseq.h, room. */
static void cut(struct pcptune_cpu_block *b, unsigned list)
{
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uint32_t count = pcpa_list_count(&b->list[i]);

		if (i != list && pcpa_get(&pcpa_words(b)->room[i]) > count)
			pcpa_put(&pcpa_words(b)->room[i], count);
	}
}

/* Room for list: at least `least` blocks more than it holds. */
static void grant(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list, uint32_t least)
{
	const struct pcptune_list *l = &b->list[list];
	uint32_t *room = &pcpa_words(b)->room[list], batch = pcpa_get(&b->pcp.batch);
	uint32_t rules = pcpa_get(&b->pcp.rules), order = pcpa_list_orders[list], count, own;
	int64_t level = drain_level(z, &b->pcp) - 1, spare = level - promised(b);

	if (!l->limit || !pcptune_rules_has_list(rules, order))
		return;
	count = pcpa_list_count(l);
	own = pcptune_max_u32(count, pcpa_get(room));
	if (spare >= 2 * (int64_t)pcptune_max_u32(batch, 1u << order)) {
		own += (uint32_t)(spare / 2 >> order);
	} else {
		cut(b, list);
		spare = level - (int64_t)pcpa_pcp_pages(b);
		own = count + (spare > 0 ? (uint32_t)(spare >> order) : 0);
	}
	/* consecutive high-order frees are a matter of one batch */
	if (rules == PCPTUNE_RULES_G4 && order && order <= PCPTUNE_COSTLY_ORDER)
		own = pcptune_min_u32(own, count + pcptune_max_u32(1, batch >> order));
	own = pcptune_max_u32(own, count + least);
	pcpa_put(room, pcptune_min_u32(own, l->limit - (PCPA_MAX_MOVE >> order) - 2));
}

/* Ends a slow path: the state of the rules is what sections go on from. */
static void settled(struct pcptune_cpu_block *b)
{
	if (pcptune_rules_scaled(pcpa_get(&b->pcp.rules)))
		pcpa_put(&pcpa_words(b)->run, pcpa_get(&b->pcp.free_count));
}

void pcpa_sections_go(struct pcpa_zone *z, struct pcptune_cpu_block *b)
{
	cut(b, PCPTUNE_N_LISTS);
	if (pcpa_pcp_ready(b))
		grant(z, b, 0, 0);
	settled(b);
	go(b);
}

void pcpa_sections_restart(struct pcptune_cpu_block *b)
{
	b->pcp.reserved[PCPA_PCP_SEEN] = 0;
	if (pcpa_by_sections(b))
		pcpa_words(b)->stop |= PCPA_STOP_TO_RING;
}

void pcpa_sections_end(struct pcpa_zone *z, struct pcptune_cpu_block *b)
{
	uint64_t pages = pcpa_pcp_pages(b);

	look(b);
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		struct pcptune_list *l = &b->list[i];

		for (uint32_t k = 0, n = pcpa_list_count(l); k < n; k++) {
			void *block = (void *)(uintptr_t)*pcpa_ring_slot(
				l, (uint64_t)(pcpa_get(&l->tail) + k));

			pcpa_tag_set(z, pcpa_page_number(z, block), PCPA_LISTED,
				     pcpa_list_orders[i]);
		}
		l->reserved = 0;
	}
	pcpa_put(&b->pcp.reserved[PCPA_PCP_PAGES], pages);
	__atomic_store_n(&pcpa_words(b)->sections, 0, __ATOMIC_RELEASE);
}

/* ---- rings ---- */

void pcpa_sections_begin(struct pcptune_cpu_block *b)
{
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		b->list[i].reserved = b->list[i].limit ? b->list[i].limit - 1 : 0;
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
void pcpa_sections_begin_at_zero(struct pcptune_list *l)
{
	uint32_t n = pcpa_list_count(l), by = (uint32_t)pcpa_list_net(l);
	uint64_t tail = (uint64_t)l->tail, *copy;

	if (!n || !(by & l->reserved))
		return;
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

/* Places of a list from a position on. */
static inline struct pcpa_places places(const struct pcptune_list *l, uint64_t position)
{
	return (struct pcpa_places){.ring = (uint64_t *)(uintptr_t)l->private_ring,
				    .mask = l->reserved,
				    .at = (uint32_t)position};
}

/* ---- drain ---- */

/* Up to `pages` of one list in one hold of the zone lock; returns pages moved, 0: none there. */
static uint64_t drain_list(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			   uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	struct pcptune_list *l = &b->list[list];
	unsigned order = pcpa_list_orders[list];
	uint64_t want = (pages + (1u << order) - 1) >> order;
	struct pcpa_places from = places(l, (uint64_t)pcpa_get(&l->tail));
	uint32_t n, numbers[PCPA_PICKED];

	do {
		n = pcpa_list_count(l);
		n = n < want ? n : (uint32_t)want;
		if (!n)
			return 0;
	} while (!move_tail(b, l, n, n));
	pcpa_bulk_pick(pcpa_heap.bulk_free, z, order, n, pcpa_get(&b->pcp.batch), &from, numbers,
		       0);
	pcpa_zone_enter_brief(z, path, &b->zctr);
	pcpa_pcp_count_drain(
		&b->zctr, pcpa_depot_give(z, pcpa_slot_of(b), order, n, &from, PCPA_IN_USE), cause);
	if (cause == PCPA_DRAIN_HIGH_ORDER)
		pcpa_count(&b->zctr.free_high, 1);
	pcpa_zone_leave(z);
	return (uint64_t)n << order;
}

void pcpa_sections_drain(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned first,
			 uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	uint64_t most = pcpa_max_move(&b->pcp);

	for (unsigned empty = 0; pages && empty < PCPTUNE_N_LISTS;) {
		uint64_t done = drain_list(z, b, first, pages < most ? pages : most, cause, path);

		if (done) {
			empty = 0;
			/* counted once, at the hold that it fired */
			if (cause == PCPA_DRAIN_HIGH_ORDER)
				cause = PCPA_DRAIN_FULL;
		} else {
			empty++;
			first = (first + 1) % PCPTUNE_N_LISTS;
		}
		pages -= done < pages ? done : pages;
	}
}

void pcpa_pcp_report(struct pcpa_zone *z)
{
	while (pcpa_get(&z->n_bad) && !pcpa_in_zone) {
		void *block = NULL;
		uint32_t order = 0, n;

		pcpa_in_zone++;
		pcpa_lock_take(&z->lock);
		n = z->n_bad;
		if (n && n <= PCPA_BAD_KEPT) {
			block = z->bad[n - 1].block;
			order = z->bad[n - 1].order;
		}
		if (n)
			pcpa_put(&z->n_bad, n - 1);
		pcpa_lock_release(&z->lock);
		if (!--pcpa_in_zone)
			pcpa_deferred_flush();
		if (n)
			pcpa_report("block was freed twice, or with another order; noticed late",
				    block, order, NULL);
	}
}

/* ---- refill ---- */

static uint32_t move_in(struct pcpa_zone *z, struct pcptune_cpu_block *b, struct pcptune_list *l,
			unsigned order, uint32_t n)
{
	struct pcpa_places to = places(l, (uint64_t)pcpa_get(&l->tail) - n);
	uint32_t got;

	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	got = pcpa_depot_take(z, pcpa_slot_of(b), order, n, &to);
	if (got) {
		pcpa_count(&b->zctr.alloc_zone, (uint64_t)got << order);
		pcpa_count(&b->zctr.refills, 1);
	}
	pcpa_zone_leave(z);
	pcpa_depot_tag(z, order, n, got, &to, PCPA_IN_USE);
	if (got)
		move_tail(b, l, 0, -(int64_t)got);
	return got;
}

/* With pcp.lock held. false: to the zone. */
static bool refill(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list, unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	struct pcptune_rule_state s;
	uint32_t n;

	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	if (!l->limit)
		return false;
	if (pcpa_list_count(l))
		return true;
	look(b);
	pcpa_pcp_control(z, b, PCPA_PATH_ALLOC);
	if (!pcptune_rules_has_list(pcpa_get(&b->pcp.rules), order))
		return false;
	pcpa_state_load(&b->pcp, &s);
	n = pcptune_rules_refill(&s, order, (uint32_t)pcpa_pcp_pages(b), pcpa_get(&z->state));
	pcpa_state_store(&b->pcp, &s);
	n = move_in(z, b, l, order, n);
	grant(z, b, list, 0);
	settled(b);
	return n;
}

/*
 * Lists may serve a program for long without a slow path. But in the child of a fork nobody would
 * start its agent, and an agent that sleeps for long, since nobody called, would miss that they do
 * again: so the first call takes one, and the bell is looked at.
 */
void pcpa_pcp_ring_next(struct pcptune_cpu_block *b)
{
	if (pcpa_by_sections(b))
		__atomic_fetch_or(&pcpa_words(b)->stop, PCPA_STOP_TO_RING, __ATOMIC_RELAXED);
}

static __attribute__((noinline, cold)) void ring(void)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones * pcpa_heap.n_slots; i++)
		__atomic_fetch_and(&pcpa_words(pcpa_cpu_block(0, i))->stop, ~PCPA_STOP_TO_RING,
				   __ATOMIC_RELEASE);
}

void *pcpa_sections_alloc(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	bool busy = false;

	for (unsigned n = 0; n < TRIES && !busy; n++) {
		uint32_t cpu = pcpa_fast_cpu();
		void *block;
		bool more;

		if (cpu >= pcpa_fast_cpus())
			return pcpa_pcp_alloc(z, pcpa_cpu_slot(), order);
		b = pcpa_cpu_block(z->id, cpu);
		block = pcpa_fast_pop(b, list, cpu);
		if (block)
			return block;
		if (pcpa_in_zone || pcpa_zone_is_empty(z))
			return NULL;
		if (pcpa_get(&pcpa_words(b)->stop) & PCPA_STOP_TO_RING)
			ring();
		busy = !pcpa_pcp_enter(b);
		if (busy)
			break;
		more = refill(z, b, list, order);
		pcpa_pcp_leave(b);
		pcpa_pcp_report(z);
		if (!more)
			break;
	}
	return pcpa_pcp_alloc_direct(z, b, order, busy);
}

/* ---- free ---- */

/* With pcp.lock held: what the rules say of one more block, and room for it. false: to the zone. */
static bool make_room(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
		      unsigned order)
{
	struct pcptune_rule_state s;
	uint32_t count, pages, size = 1u << order;
	bool fired;

	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	if (!b->list[list].limit || !pcptune_rules_has_list(pcpa_get(&b->pcp.rules), order))
		return false;
	if (pcpa_list_count(&b->list[list]) < pcpa_get(&pcpa_words(b)->room[list]))
		return true;
	look(b);
	count = (uint32_t)pcpa_pcp_pages(b);
	pcpa_state_load(&b->pcp, &s);
	if (order && order <= PCPTUNE_COSTLY_ORDER && s.free_count >= size)
		s.flags |= PCPTUNE_RF_PREV_HIGH_ORDER;
	pages = pcptune_rules_free(&s, order, count + size, pcpa_get(&z->state), &fired);
	/* the push will count itself */
	if (pcptune_rules_scaled(s.rules))
		s.free_count = pcptune_sub0_u32(s.free_count, size);
	pcpa_state_store(&b->pcp, &s);
	if (pages) {
		pcpa_pcp_drain(z, b, list, pages, fired ? PCPA_DRAIN_HIGH_ORDER : PCPA_DRAIN_FULL,
			       PCPA_PATH_FREE);
		pcpa_pcp_control(z, b, PCPA_PATH_FREE);
	}
	grant(z, b, list, !pages || count ? 1 : 0);
	settled(b);
	return pcpa_list_count(&b->list[list]) < pcpa_get(&pcpa_words(b)->room[list]);
}

void pcpa_sections_free(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list,
			void *block)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	bool busy = false;

	for (unsigned n = 0; n < TRIES && !busy; n++) {
		uint32_t cpu = pcpa_fast_cpu();
		bool room;

		if (cpu >= pcpa_fast_cpus()) {
			pcpa_pcp_free(z, pcpa_cpu_slot(), order, block);
			return;
		}
		b = pcpa_cpu_block(z->id, cpu);
		if (pcpa_fast_push(b, list, order, cpu, block))
			return;
		if (pcpa_in_zone)
			break;
		if (pcpa_get(&pcpa_words(b)->stop) & PCPA_STOP_TO_RING) {
			/* a free starts no agent */
			if (!pcpa_agent_runs())
				break;
			ring();
			pcpa_agent_wake();
			continue;
		}
		busy = !pcpa_pcp_enter(b);
		if (busy)
			break;
		room = make_room(z, b, list, order);
		pcpa_pcp_leave(b);
		pcpa_pcp_report(z);
		if (!room)
			break;
	}
	pcpa_pcp_free_direct(z, b, block, order, busy);
}
