/* SPDX-License-Identifier: MIT */
/*
 * Lists served by sections: how far pushes and pops may go, and how that is changed while they go
 * on. The inner half of pcp_sections.c, inline since it is most of what a refill or a drain costs
 * beside the blocks themselves. Everything here is with pcp.lock held.
 *
 * Bounds. `high` is for all lists of a CPU, `room` for each; `bound` says the same to a push, which
 * stops when its place is that very one. So it must never be left behind the head: it is moved like
 * a place is emptied. The sum of the rooms stays below the level at which the rules drain, so that
 * the push that would reach it comes to the slow path, and the rules are asked at that moment with
 * the exact numbers. A list that hits its room gets half of what no list has been promised; when
 * that is little, what there is beyond the blocks held is dealt out anew, a part to each other list
 * and the rest to this one.
 *
 * Questions in vain. Where orders take turns and the sum stays just below that level, shares are a
 * few blocks each, and lists ask at nearly every free for as long as the program goes on like that,
 * a tenth of a microsecond each. Nobody can know for how long; so as with skis, which one buys when
 * the rent has come to their price: after so many questions in a row as a drain and the refill
 * after it cost, a batch is drained before it would have to be, and the lists have that much more
 * room. At worst that is twice the cost of the best there was to do.
 *
 * Stops. The band tracker wants to know when a list leaves its window (track.h): above, that is one
 * more reason for a bound; below, a place is emptied, and its block kept in `held`. What looks at
 * the blocks of a list lifts the stop first, and whoever has the lists for himself finds none.
 */
#ifndef PCPA_PCP_BOUNDS_H
#define PCPA_PCP_BOUNDS_H

#include "allocator/pcp_private.h"
#include "allocator/rings.h"
#include "allocator/track_look.h"

#define TRIES	  16u
#define VAIN_MOST 128u /* questions in vain before a batch is drained early */

static inline void set_state(struct pcptune_pcp *p, uint64_t bits, uint64_t to)
{
	uint64_t *state = &p->reserved[PCPA_PCP_STATE];

	pcpa_put(state, (pcpa_get(state) & ~bits) | to);
}

/* ---- stopping ---- */

static inline void stop(struct pcptune_cpu_block *b)
{
	pcpa_sections_ask(b);
	pcpa_rseq_fence((int)pcpa_slot_of(b));
}

static inline void go(struct pcptune_cpu_block *b)
{
	pcpa_put(&pcpa_words(b)->stop, pcpa_get(&pcpa_words(b)->stop) & ~PCPA_STOP_OWNER);
	pcpa_rseq_show(b);
}

/* Puts the block of the stop back. Pops do not get by its place, and pushes are above. */
static inline void lift(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list)
{
	if (!t || !t->held[list])
		return;
	pcpa_publish(pcpa_ring_slot(&b->list[list], t->stop[list]), t->held[list]);
	t->held[list] = 0;
	t->lifted |= 1u << list;
}

/* ---- changes ---- */

/*
 * A change of a list that must not miss a push or a pop: what to store and where is found out from
 * a `word`, and stored if that has not moved. false from a plan: nothing is to be done.
 */
struct change {
	struct pcptune_cpu_block *b;
	const struct pcptune_track *t;
	unsigned list;
	uint32_t want; /* blocks */
	uint32_t n;    /* out */
	uint64_t top;  /* out: what was in that place */
	uint64_t *at, value;
};
typedef bool (*planner)(struct change *c, uint64_t word);

static inline bool change_once(struct change *c, planner plan, uint32_t cpu,
			       enum pcpa_section *ret_how)
{
	struct pcptune_list *l = &c->b->list[c->list];
	uint64_t word = __atomic_load_n(&l->word, __ATOMIC_ACQUIRE);

	if (!plan(c, word))
		return false;
	if (pcpa_get(&pcpa_words(c->b)->stop) & PCPA_STOP_OWNER) {
		pcpa_publish(c->at, c->value);
		*ret_how = PCPA_SECTION_DONE;
	} else {
		*ret_how = pcpa_section_store(l, cpu, word, c->at, c->value);
	}
	return true;
}

static __attribute__((noinline, unused)) bool change_hard(struct change *c, planner plan)
{
	uint32_t cpu = pcpa_slot_of(c->b);
	enum pcpa_section how;
	bool stopped = pcpa_get(&pcpa_words(c->b)->stop) & PCPA_STOP_OWNER, done;

	for (unsigned n = 0; n < TRIES && (stopped || pcpa_fast_cpu() == cpu); n++) {
		if (!change_once(c, plan, cpu, &how))
			return false;
		if (how == PCPA_SECTION_DONE)
			return true;
	}
	stop(c->b);
	done = change_once(c, plan, cpu, &how);
	go(c->b);
	return done;
}

/* pcp.lock is held. Inline, since mostly what was planned first can be stored at once. */
static inline __attribute__((always_inline)) bool change(struct change *c, planner plan)
{
	struct pcptune_list *l = &c->b->list[c->list];
	uint64_t word = __atomic_load_n(&l->word, __ATOMIC_ACQUIRE);

	if (!plan(c, word))
		return false;
	/* a bound that is where it should be: pushes end there, so the head is not beyond it */
	if (c->value && pcpa_get(c->at) == c->value)
		return true;
	if (!(pcpa_get(&pcpa_words(c->b)->stop) & PCPA_STOP_OWNER) &&
	    pcpa_section_store(l, pcpa_slot_of(c->b), word, c->at, c->value) == PCPA_SECTION_DONE)
		return true;
	return change_hard(c, plan);
}

/* ---- bounds ---- */

/* At this many pages the rules drain. */
static inline int64_t drain_level(const struct pcpa_zone *z, const struct pcptune_pcp *p,
				  uint32_t traits)
{
	uint32_t state = pcpa_get(&z->state), high = pcpa_get(&p->high);

	if (__builtin_expect(!state, 1))
		return high;
	if (traits & PCPTUNE_RT_RECLAIM && state & PCPTUNE_ZS_RECLAIM_ACTIVE)
		return pcptune_min_u32(4 * pcpa_get(&p->batch), high);
	if (traits & PCPTUNE_RT_BELOW_HIGH && state & PCPTUNE_ZS_BELOW_HIGH &&
	    pcpa_get(&p->high_min) != pcpa_get(&p->high_max))
		return pcpa_get(&p->high_min);
	return high;
}

static inline uint32_t count_at(const struct pcptune_list *l, uint64_t word)
{
	return (uint32_t)((word - (uint64_t)pcpa_get(&l->tail)) & PCPTUNE_WORD_MASK);
}

/* Blocks that may be pushed before the tracker wants to know, at most `room`. */
static inline uint32_t to_edge(const struct pcptune_track *t, unsigned list, uint64_t word,
			       uint32_t room)
{
	uint32_t left;

	if (!t)
		return room;
	left = (t->edge[list] - (uint32_t)word) & (uint32_t)PCPTUNE_WORD_MASK;
	return left > PCPTUNE_WORD_MASK / 2 ? 0 : pcptune_min_u32(left, room);
}

/* `reserved` and `bound` of a list are stored as one. */
static inline bool plan_bound(struct change *c, uint64_t word)
{
	struct pcptune_list *l = &c->b->list[c->list];
	uint32_t count = count_at(l, word), end;

	c->n = pcptune_max_u32(c->want, count);
	end = (uint32_t)word + to_edge(c->t, c->list, word, c->n - count);
	c->at = (uint64_t *)(void *)&l->reserved;
	c->value = (uint64_t)(end & pcpa_ring_mask(l)) << 32 | l->reserved;
	return true;
}

/* The place of the tracker's stop; nothing to be done where the list ends before it. */
static inline bool plan_stop(struct change *c, uint64_t word)
{
	struct pcptune_list *l = &c->b->list[c->list];

	if (count_at(l, word) <= c->want)
		return false;
	c->n = (uint32_t)word - 1 - c->want;
	c->at = pcpa_ring_slot(l, c->n);
	c->top = pcpa_get(c->at);
	c->value = 0;
	return true;
}

/* Room for `room` blocks, or for those that it holds if they are more. */
static inline void set_room_of(struct pcptune_cpu_block *b, const struct pcptune_track *t,
			       unsigned list, uint32_t room)
{
	struct change c = {.b = b, .t = t, .list = list, .want = room};

	if (!b->list[list].limit)
		return;
	if (room)
		pcpa_pcp_uses(b, list);
	if (change(&c, plan_bound))
		pcpa_put(&pcpa_words(b)->room[list], c.n);
}

/* The same where it is not on the way of every refill. */
static inline void set_room(struct pcptune_cpu_block *b, unsigned list, uint32_t room)
{
	set_room_of(b, pcpa_track_of(b), list, room);
}

static inline void put_stop(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list,
			    uint32_t down)
{
	struct change c = {.b = b, .t = t, .list = list, .want = down};

	if (!change(&c, plan_stop))
		return;
	t->held[list] = c.top;
	t->stop[list] = c.n;
}

/* A list without a stop gets one, unless it is so short that it need not. */
static inline void set_stop(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list)
{
	uint32_t down = pcpa_track_window(t, list).down;

	t->lifted &= ~(1u << list);
	if (pcpa_list_count(&b->list[list]) > down)
		put_stop(b, t, list, down);
}

/*
 * The position is looked at, and a list goes on from there: its next bound will be within the new
 * window. set_stops() belongs to it.
 */
static inline void track(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list)
{
	if (!t)
		return;
	pcpa_track_take(t, b);
	lift(b, t, list);
	t->edge[list] = (uint32_t)pcpa_get(&b->list[list].word) + pcpa_track_window(t, list).up;
}

/* For this list, and those that lost theirs. */
static inline void set_stops(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list)
{
	if (!t)
		return;
	for (uint32_t lists = t->lifted | 1u << list; lists; lists &= lists - 1)
		set_stop(b, t, (unsigned)__builtin_ctz(lists));
}

/* What grant() wants to know of all lists. */
struct sums {
	int64_t promised; /* pages that lists hold, or may grow to */
	int64_t others;	  /* the same of all but one */
	int64_t held;	  /* pages */
};

/*
 * Both edges of a window by one section, since this is what runs cost. false: interrupted, or the
 * list is stopped; it goes the long way then.
 */
static inline bool window_at_once(struct pcptune_cpu_block *b, unsigned list,
				  struct pcptune_track *t)
{
	struct pcptune_list *l = &b->list[list];
	struct pcpa_window w = pcpa_track_window(t, list);
	uint64_t word = __atomic_load_n(&l->word, __ATOMIC_ACQUIRE), *at, top;
	uint32_t count = count_at(l, word), head = (uint32_t)word, mask = pcpa_ring_mask(l);
	uint32_t room = pcptune_sub0_u32(pcpa_get(&pcpa_words(b)->room[list]), count);
	uint32_t end = head + pcptune_min_u32(room, w.up), stop = head - 1 - w.down;

	if (count <= w.down)
		return false;
	at = pcpa_ring_slot(l, stop);
	top = pcpa_get(at);
	if (pcpa_section_store_two(l, pcpa_slot_of(b), word, (uint64_t *)(void *)&l->reserved,
				   (uint64_t)(end & mask) << 32 | l->reserved, at,
				   0) != PCPA_SECTION_DONE)
		return false;
	t->edge[list] = head + w.up;
	t->stop[list] = stop;
	t->held[list] = top;
	t->lifted &= ~(1u << list);
	return true;
}

/* The list has what is asked for, or would have, but for its window. */
static inline void track_on(struct pcptune_cpu_block *b, struct pcptune_track *t, unsigned list)
{
	track(b, t, list);
	if (t && !(t->lifted & ~(1u << list)) && window_at_once(b, list, t))
		return;
	set_room_of(b, t, list, pcpa_get(&pcpa_words(b)->room[list]));
	set_stops(b, t, list);
}

/* Is this where its window ends, and not its blocks or its room? */
static inline bool at_edge(struct pcptune_cpu_block *b, unsigned list,
			   const struct pcptune_track *t)
{
	const struct pcptune_list *l = &b->list[list];
	uint32_t head = (uint32_t)pcpa_get(&l->word), mask = (uint32_t)PCPTUNE_WORD_MASK;

	if (t->held[list] && !((head - 1 - t->stop[list]) & mask))
		return true;
	return !((head - t->edge[list]) & mask) &&
	       pcpa_list_count(l) < pcpa_get(&pcpa_words(b)->room[list]);
}

/* Lists that the rules lack are promised nothing. */
static inline struct sums sum_up(struct pcptune_cpu_block *b, unsigned list, uint32_t rules)
{
	struct pcpa_words *w = pcpa_words(b);
	struct sums s = {0, 0, 0};

	PCPA_FOR_EACH_USED (i, b) {
		uint32_t count = pcpa_list_count(&b->list[i]), room = pcpa_get(&w->room[i]);

		if (!(count | room))
			continue;
		if (i && room && !pcptune_rules_has_list(rules, pcpa_list_orders[i])) {
			set_room(b, i, 0);
			room = pcpa_get(&w->room[i]);
		}
		s.promised += (int64_t)pcptune_max_u32(count, room) << pcpa_list_orders[i];
		s.held += (int64_t)count << pcpa_list_orders[i];
		if (i != list)
			s.others += (int64_t)pcptune_max_u32(count, room) << pcpa_list_orders[i];
	}
	return s;
}

#define HIGH_LISTS 0xeu /* those of orders 1 to 3 */

/*
 * Blocks that a list may get before the rule on frees of orders 1 to 3 is asked about one of them.
 * A question is a slow path, so they are few only where runs of frees were seen that the rule is
 * about; then it is taken into account that other lists may take their part, and single pages be
 * freed up to where their list is looked at.
 */
static inline uint32_t unasked(const struct pcptune_cpu_block *b, const struct pcptune_track *t,
			       unsigned list, uint32_t held)
{
	uint32_t lists = (pcpa_get(&b->pcp.lists) & HIGH_LISTS) | 1u << list, pages;
	struct pcptune_rule_state s;

	if (!(HIGH_LISTS >> list & 1))
		return UINT32_MAX;
	pcpa_state_load(&b->pcp, &s);
	pages = pcptune_rules_before_free_high(&s, held);
	if (pages == UINT32_MAX)
		return pages;
	if (pcpa_get(&b->pcp.reserved[PCPA_PCP_STATE]) & PCPA_PCP_WARY_MASK)
		pages = pcptune_sub0_u32(pages, t ? pcpa_track_window(t, 0).up : pages) /
			(uint32_t)__builtin_popcount(lists);
	return pages >> pcpa_list_orders[list];
}

/* The lists of orders 1 to 3 but `list` down to what they may get unasked. */
static inline void watch_high(struct pcptune_cpu_block *b, const struct pcptune_track *t,
			      unsigned list, uint32_t held)
{
	uint32_t lists = pcpa_get(&b->pcp.lists) & HIGH_LISTS & ~(1u << list);

	for (; lists; lists &= lists - 1) {
		unsigned i = (unsigned)__builtin_ctz(lists);
		uint32_t count = pcpa_list_count(&b->list[i]), more = unasked(b, t, i, held);
		uint32_t room = pcpa_get(&pcpa_words(b)->room[i]);

		if (pcptune_sub0_u32(room, count) > more)
			set_room_of(b, t, i, count + more);
	}
}

/* Rooms of lists other than `list`: what each holds, and `part` pages. */
static inline void deal(struct pcptune_cpu_block *b, const struct pcptune_track *t, unsigned list,
			uint32_t rules, uint32_t part)
{
	PCPA_FOR_EACH_USED (i, b) {
		uint32_t order = pcpa_list_orders[i];

		uint32_t room = pcpa_list_count(&b->list[i]) + (part >> order);

		if (i != list && pcptune_rules_has_list(rules, order))
			set_room_of(b, t, i, pcptune_min_u32(room, PCPA_RING_ROOM));
	}
}

/* Another question whose answer was a few blocks; false, and none are counted: it was not. */
static inline void count_vain(struct pcptune_pcp *p, bool vain)
{
	uint64_t n = pcpa_get(&p->reserved[PCPA_PCP_STATE]) & PCPA_PCP_VAIN_MASK;

	if (vain && n < VAIN_MOST * PCPA_PCP_VAIN)
		set_state(p, PCPA_PCP_VAIN_MASK, n + PCPA_PCP_VAIN);
	else if (!vain && n)
		set_state(p, PCPA_PCP_VAIN_MASK, 0);
}

/* What is left of `level` is dealt out. Returns the room of `list`, in blocks. */
static inline uint32_t room_of_rest(struct pcptune_cpu_block *b, const struct pcptune_track *t,
				    unsigned list, int64_t level, struct sums *sums)
{
	uint32_t rules = pcpa_get(&b->pcp.rules), others = pcpa_get(&b->pcp.lists) & ~(1u << list);
	int64_t spare = level - sums->held;

	if (others) {
		uint32_t parts = (uint32_t)__builtin_popcount(others) + 2;

		deal(b, t, list, rules, spare > 0 ? (uint32_t)(spare / parts) : 0);
		/* they may have grown meanwhile */
		*sums = sum_up(b, list, rules);
		count_vain(&b->pcp, true);
	}
	spare = level - sums->others;
	return spare > 0 ? (uint32_t)(spare >> pcpa_list_orders[list]) : 0;
}

/* Room for list: at least `least` blocks more than it holds. */
static inline void grant(struct pcpa_zone *z, struct pcptune_cpu_block *b,
			 const struct pcptune_track *t, unsigned list, uint32_t least)
{
	const struct pcptune_list *l = &b->list[list];
	uint32_t batch = pcpa_get(&b->pcp.batch), order = pcpa_list_orders[list], count, own;
	uint32_t rules = pcpa_get(&b->pcp.rules), traits = pcptune_rules_traits(rules);
	struct sums sums = sum_up(b, list, rules);
	int64_t level = drain_level(z, &b->pcp, traits) - 1, spare = level - sums.promised;

	if (!l->limit || !pcptune_rules_has_list(rules, order))
		return;
	if (spare >= 2 * (int64_t)pcptune_max_u32(batch, 1u << order)) {
		own = pcptune_max_u32(pcpa_list_count(l), pcpa_get(&pcpa_words(b)->room[list])) +
		      (uint32_t)(spare / 2 >> order);
		count_vain(&b->pcp, false);
	} else {
		own = room_of_rest(b, t, list, level, &sums);
	}
	count = pcpa_list_count(l);
	if (traits & PCPTUNE_RT_FREE_HIGH) {
		own = count + pcptune_min_u32(pcptune_sub0_u32(own, count),
					      unasked(b, t, list, (uint32_t)sums.held));
		watch_high(b, t, list, (uint32_t)sums.held);
	}
	own = pcptune_max_u32(own, count + least);
	set_room_of(b, t, list, pcptune_min_u32(own, PCPA_RING_ROOM));
}

#endif
