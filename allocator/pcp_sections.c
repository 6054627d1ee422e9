/* SPDX-License-Identifier: MIT */
/*
 * Lists served by sections (rseq.h): the slow paths. Around them: pcp_bounds.h (how far a list may
 * go), pcp_look.h (what the rules are told), pcp_stops.c (lists taken from the sections).
 *
 * Pushes and pops are sections and nothing else. When one finds no room, or nothing, the caller
 * takes pcp.lock, changes the bounds of the lists or moves their tails, lets go of it, and tries
 * its section again. Holding pcp.lock does not stop the sections: a thread that is preempted with
 * it keeps others from slow paths, not from their lists. Bounds and stops: pcp_bounds.h.
 *
 * Tails. The place below the lowest block is NULL, and pops end there. A refill writes blocks of
 * the zone below it, moves the tail, and fills that place last: so none of them is seen by pops, or
 * all. A drain empties the place of the highest block that it takes, moves the tail, and then gives
 * to the zone what lies below it. Emptying that place is a section, which finds that nothing was
 * pushed or popped since the place was chosen; or, when we are on another CPU by now, a store with
 * the sections stopped. Pushes can not run into those places: room, plus the largest move, is
 * within the ring.
 *
 * Tags. Blocks on these lists are tagged as in use. A wrong free that the tag gives away (a block
 * of the zone, another order, the middle of a block) is refused at once. A block that was freed
 * twice is noticed when its second copy reaches the zone: it is left where it is, told to the error
 * callback, and the free is undone in the counters.
 */
#include <errno.h>

#include "allocator/agent.h"
#include "allocator/bulk_free.h"
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/pcp_bounds.h"
#include "allocator/pcp_look.h"
#include "allocator/pcp_private.h"
#include "allocator/rings.h"
#include "allocator/track_look.h"

/* Places of a list from a position on. */
static inline struct pcpa_places places(const struct pcptune_list *l, uint64_t position)
{
	return (struct pcpa_places){.ring = (uint64_t *)(uintptr_t)l->private_ring,
				    .mask = pcpa_ring_mask(l),
				    .at = (uint32_t)position};
}

/* ---- drain ---- */

/* The highest of up to c->want blocks from the tail on; their places are ours then. */
static inline bool plan_take(struct change *c, uint64_t word)
{
	struct pcptune_list *l = &c->b->list[c->list];

	c->n = pcptune_min_u32(count_at(l, word), c->want);
	if (!c->n)
		return false;
	c->at = pcpa_ring_slot(l, (uint64_t)pcpa_get(&l->tail) + c->n - 1);
	c->top = pcpa_get(c->at);
	c->value = 0;
	return true;
}

/*
 * Moves the tail. The bound is left where it is. After a refill that is more than the list's room
 * by what came in, for which there are places, and grant() ends it. After a drain it is less, until
 * grant() for this list, or the next push that finds none of the room that there is.
 */
static void move_tail(struct pcptune_list *l, int64_t by)
{
	pcpa_publish(&l->tail, pcpa_get(&l->tail) + by);
}

/* Up to `pages` of one list in one hold of the zone lock; returns pages moved, 0: none there. */
static uint64_t drain_list(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			   uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	struct pcptune_list *l = &b->list[list];
	unsigned order = pcpa_list_orders[list];
	uint64_t want = (pages + (1u << order) - 1) >> order, at = (uint64_t)pcpa_get(&l->tail);
	struct change c = {.b = b, .list = list};
	struct pcpa_places from = places(l, at - 1);
	uint32_t numbers[PCPA_PICKED];

	lift(b, pcpa_track_of(b), list);
	c.want = want < UINT32_MAX ? (uint32_t)want : UINT32_MAX;
	if (!change(&c, plan_take))
		return 0;
	/* its own place is the empty one now, and that which was is free */
	*pcpa_ring_slot(l, at - 1) = c.top;
	move_tail(l, c.n);
	pcpa_bulk_pick(pcpa_heap.bulk_free, z, order, c.n, pcpa_get(&b->pcp.batch), &from, numbers,
		       0);
	pcpa_zone_enter_brief(z, path, &b->zctr);
	pcpa_pcp_count_drain(&b->zctr,
			     pcpa_depot_give(z, pcpa_slot_of(b), order, c.n, &from, PCPA_IN_USE),
			     cause);
	if (cause == PCPA_DRAIN_HIGH_ORDER)
		pcpa_count(&b->zctr.free_high, 1);
	pcpa_zone_leave(z);
	return (uint64_t)c.n << order;
}

void pcpa_sections_drain(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned first,
			 uint64_t pages, enum pcpa_cause cause, enum pcpa_path path)
{
	uint64_t most = pcpa_hold_most(&b->pcp);

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

/*
 * The place of the first block is the empty one, which ends pops until all is done; so that block
 * waits in `first` until the others are in their places and the tail is below them.
 */
static uint32_t move_in(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
			unsigned order, uint32_t n)
{
	struct pcptune_list *l = &b->list[list];
	uint64_t tail = (uint64_t)pcpa_get(&l->tail), first;
	struct pcpa_places to = places(l, tail - n);
	struct pcpa_claim claim;
	uint32_t got;

	to.top = &first;
	pcpa_zone_enter_brief(z, PCPA_PATH_ALLOC, &b->zctr);
	got = pcpa_depot_take(z, pcpa_slot_of(b), order, n, &to, &claim);
	if (got) {
		pcpa_count(&b->zctr.alloc_zone, (uint64_t)got << order);
		pcpa_count(&b->zctr.refills, 1);
	}
	pcpa_zone_leave(z);
	if (!got)
		return 0;
	pcpa_depot_fetch(z, order, n, got, &to, &claim, PCPA_IN_USE);
	pcpa_pcp_uses(b, list);
	*pcpa_ring_slot(l, tail - 1 - got) = 0;
	move_tail(l, -(int64_t)got);
	pcpa_publish(pcpa_ring_slot(l, tail - 1), first);
	return got;
}

/* With pcp.lock held. false: to the zone. */
static bool refill(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list, unsigned order)
{
	struct pcptune_list *l = &b->list[list];
	struct pcptune_track *t = pcpa_track_of(b);
	struct pcptune_rule_state s;
	uint32_t n;

	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	/* lost: no section would find what comes in */
	if (pcpa_get(&pcpa_words(b)->stop) & PCPA_STOP_LOST ||
	    (!l->limit && !pcpa_pcp_begin_again(b, z->id)))
		return false;
	if (pcpa_list_count(l)) {
		track_on(b, t, list);
		return true;
	}
	if (pcpa_in_zone)
		return false;
	look(b);
	pcpa_pcp_control(z, b, PCPA_PATH_ALLOC);
	if (!pcptune_rules_has_list(pcpa_get(&b->pcp.rules), order))
		return false;
	pcpa_state_load(&b->pcp, &s);
	n = pcptune_rules_refill(&s, order, (uint32_t)pcpa_pcp_pages(b), pcpa_get(&z->state));
	pcpa_state_store(b, &s);
	n = move_in(z, b, list, order, pcptune_min_u32(n, PCPA_RING_MOVE));
	track(b, t, list);
	grant(z, b, t, list, 0);
	set_stops(b, t, list);
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
		pcpa_put(&pcpa_words(b)->stop, pcpa_get(&pcpa_words(b)->stop) | PCPA_STOP_TO_RING);
}

/*
 * The caller's try for pcp.lock of lists that were served by sections a moment ago. Given up
 * meanwhile, they are locked lists, and nothing here may touch them. 0, -EBUSY, -EAGAIN: look
 * again.
 */
static int enter(struct pcptune_cpu_block *b)
{
	if (!pcpa_pcp_enter(b))
		return -EBUSY;
	if (__builtin_expect(pcpa_by_sections(b), 1))
		return 0;
	pcpa_pcp_leave(b);
	return -EAGAIN;
}

/* With pcp.lock held. True: this was such a call. */
static bool ring(struct pcptune_cpu_block *b)
{
	struct pcpa_words *w = pcpa_words(b);

	if (!(pcpa_get(&w->stop) & PCPA_STOP_TO_RING))
		return false;
	pcpa_put(&pcpa_to_ring, 0);
	pcpa_put(&w->stop, pcpa_get(&w->stop) & ~PCPA_STOP_TO_RING);
	pcpa_rseq_show(b);
	return true;
}

void *pcpa_sections_alloc(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
	int error = 0;

	for (unsigned n = 0; n < TRIES && error != -EBUSY; n++) {
		uint32_t cpu = pcpa_fast_cpu();
		void *block;
		bool more;

		if (cpu >= pcpa_fast_cpus())
			return pcpa_pcp_alloc(z, pcpa_cpu_slot(), order);
		b = pcpa_cpu_block(z->id, cpu);
		block = pcpa_fast_pop(&pcpa_fast.zone[z->id][list]);
		if (block)
			return block;
		/* else it is a stop, and there are blocks */
		if (!pcpa_list_count(&b->list[list]) && (pcpa_in_zone || pcpa_zone_is_empty(z)))
			return NULL;
		error = enter(b);
		if (error)
			continue;
		ring(b);
		more = refill(z, b, list, order);
		pcpa_pcp_leave(b);
		pcpa_pcp_report(z);
		if (!more)
			break;
	}
	return pcpa_pcp_alloc_direct(z, b, order, error == -EBUSY);
}

/* ---- free ---- */

/* What the rules say of one more block. */
struct answer {
	uint32_t pages; /* to drain, at most those that there are */
	bool high;	/* by the rule on frees of orders 1 to 3 */
	bool all;	/* and this block with them, once it is on its list */
	bool direct;	/* the block has no place */
};

static struct answer ask(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned order)
{
	uint32_t count, size = 1u << order;
	struct pcptune_rule_state s;
	struct answer a = {0, false, false, false};

	look(b);
	count = (uint32_t)pcpa_pcp_pages(b);
	pcpa_state_load(&b->pcp, &s);
	a.pages = pcptune_rules_free(&s, order, count + size, pcpa_get(&z->state), &a.high);
	a.all = a.high && a.pages == count + size;
	a.direct = a.pages && !count && !a.all;
	a.pages = pcptune_min_u32(a.pages, count);
	/* else the push will count itself */
	if (!a.direct && pcptune_rules_traits(s.rules) & PCPTUNE_RT_FREE_COUNT)
		s.free_count = pcptune_sub0_u32(s.free_count, size);
	pcpa_state_store(b, &s);
	return a;
}

/* Pages to drain, since questions in vain came to as much as that costs. */
static uint32_t early(struct pcptune_cpu_block *b)
{
	uint64_t vain = pcpa_get(&b->pcp.reserved[PCPA_PCP_STATE]) & PCPA_PCP_VAIN_MASK;

	return vain < VAIN_MOST * PCPA_PCP_VAIN
		       ? 0
		       : pcptune_min_u32(pcpa_get(&b->pcp.batch), (uint32_t)pcpa_pcp_pages(b));
}

/*
 * With pcp.lock held: what the rules say of one more block, and room for it. false: to the zone.
 * *ret_all: when it is on its list, drain_all().
 */
static bool make_room(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list,
		      unsigned order, bool *ret_all)
{
	struct pcptune_track *t = pcpa_track_of(b);
	struct answer a;

	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	if (pcpa_get(&pcpa_words(b)->stop) & PCPA_STOP_LOST ||
	    !pcptune_rules_has_list(pcpa_get(&b->pcp.rules), order) ||
	    (!b->list[list].limit && !pcpa_pcp_begin_again(b, z->id)))
		return false;
	if (pcpa_list_count(&b->list[list]) < pcpa_get(&pcpa_words(b)->room[list])) {
		/*
		 * The tracker wants to know; or somebody made room before us, or the list was
		 * drained after another one.
		 */
		track_on(b, t, list);
		watch(b, t);
		return true;
	}
	a = ask(z, b, order);
	if (!a.pages)
		a.pages = early(b);
	if (a.pages && !a.all) {
		pcpa_pcp_drain(z, b, list, a.pages,
			       a.high ? PCPA_DRAIN_HIGH_ORDER : PCPA_DRAIN_FULL, PCPA_PATH_FREE);
		pcpa_pcp_control(z, b, PCPA_PATH_FREE);
		count_vain(&b->pcp, false);
	}
	track(b, t, list);
	if (!a.direct && HIGH_LISTS >> list & 1)
		set_asked(&b->pcp);
	grant(z, b, t, list, a.direct ? 0 : 1);
	set_stops(b, t, list);
	*ret_all = a.all;
	return !a.direct && pcpa_list_count(&b->list[list]) < pcpa_get(&pcpa_words(b)->room[list]);
}

/*
 * The rule on frees of orders 1 to 3 wants everything, the block that was asked about included.
 * That went onto its list first, so that the words and who records know of it. Who finds the lists
 * taken leaves it at that.
 */
static void drain_all(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned list)
{
	struct pcptune_track *t = pcpa_track_of(b);

	if (enter(b))
		return;
	look(b);
	pcpa_pcp_drain(z, b, list, pcpa_pcp_pages(b), PCPA_DRAIN_HIGH_ORDER, PCPA_PATH_FREE);
	pcpa_pcp_control(z, b, PCPA_PATH_FREE);
	track(b, t, list);
	grant(z, b, t, list, 0);
	set_stops(b, t, list);
	pcpa_pcp_leave(b);
	pcpa_pcp_report(z);
}

void pcpa_sections_free(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list,
			void *block)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot), *asked = NULL;
	bool all = false;
	int error = 0;

	for (unsigned n = 0; n < TRIES && error != -EBUSY; n++) {
		uint32_t cpu = pcpa_fast_cpu();
		bool room, rang;

		if (cpu >= pcpa_fast_cpus()) {
			pcpa_pcp_free(z, pcpa_cpu_slot(), order, block);
			return;
		}
		b = pcpa_cpu_block(z->id, cpu);
		if (pcpa_fast_push(&pcpa_fast.zone[z->id][list], block)) {
			if (all && b == asked)
				drain_all(z, b, list);
			return;
		}
		if (pcpa_in_zone)
			break;
		/* a free starts no agent */
		if (pcpa_get(&pcpa_to_ring) && !pcpa_agent_runs())
			break;
		error = enter(b);
		if (error)
			continue;
		rang = ring(b);
		all = false;
		room = make_room(z, b, list, order, &all);
		asked = b;
		pcpa_pcp_leave(b);
		if (rang)
			pcpa_agent_wake();
		pcpa_pcp_report(z);
		if (!room)
			break;
	}
	pcpa_pcp_free_direct(z, b, block, order, error == -EBUSY);
}

/* ---- the short way, of a CPU's own zone ---- */

/*
 * A section that had what it needed was interrupted: nothing is to be done, nor looked at. False:
 * somebody has the lists, or the zone has nothing.
 */
static bool refill_own(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned order)
{
	bool done;

	if (pcpa_list_count(&b->list[order]))
		return true;
	if (pcpa_zone_is_empty(z))
		return false;
	pcpa_events_room(b);
	if (!pcpa_pcp_try(b))
		return false;
	done = pcpa_by_sections(b) && refill(z, b, order, order);
	pcpa_pcp_leave(b);
	pcpa_pcp_report(z);
	return done;
}

static bool make_room_own(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned order)
{
	bool done, all;

	if (pcpa_list_count(&b->list[order]) < pcpa_get(&pcpa_words(b)->room[order]))
		return true;
	/* a free starts no agent; and who may have to drain all does so by the long way */
	if ((pcpa_get(&pcpa_to_ring) && !pcpa_agent_runs()) ||
	    (order && pcpa_pcp_has(&b->pcp, PCPTUNE_RT_FREE_HIGH)))
		return false;
	pcpa_events_room(b);
	if (!pcpa_pcp_try(b))
		return false;
	done = pcpa_by_sections(b) && make_room(z, b, order, order, &all);
	pcpa_pcp_leave(b);
	pcpa_pcp_report(z);
	return done;
}

static bool move_window(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned order)
{
	pcpa_events_room(b);
	if (!pcpa_pcp_try(b))
		return false;
	/* and not a locked list meanwhile */
	if (pcpa_by_sections(b) && at_edge(b, order, t)) {
		pcpa_track_take(t, b);
		lift(b, t, order);
		if (!window_at_once(b, order, t))
			track_on(b, t, order);
		watch(b, t);
	}
	pcpa_pcp_leave(b);
	return true;
}

bool pcpa_sections_passed(unsigned order, const struct pcpa_zone *given)
{
	uint32_t cpu = pcpa_fast_cpu();
	struct pcptune_cpu_block *b;
	struct pcptune_track *t;
	struct pcpa_zone *z;

	if (cpu >= pcpa_fast_cpus())
		return false;
	z = &pcpa_heap.zones[pcpa_heap.home[cpu]];
	if (given && given != z)
		return false;
	b = pcpa_cpu_block(z->id, cpu);
	t = pcpa_track_of(b);
	if (t && at_edge(b, order, t))
		return move_window(b, t, order);
	if (pcpa_in_zone || pcpa_get(&pcpa_words(b)->stop))
		return false;
	return given ? make_room_own(z, b, order) : refill_own(z, b, order);
}
