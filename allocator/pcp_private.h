/* SPDX-License-Identifier: MIT */
/*
 * What the files of the lists share: pcp.c (the rules, locked lists), pcp_sections.c and
 * pcp_stops.c (lists served by sections), pcp_values.c (values and control), pcp_lock.c and
 * pcp_direct.c.
 */
#ifndef PCPA_PCP_PRIVATE_H
#define PCPA_PCP_PRIVATE_H

#include "allocator/pcp.h"

/* Wakes one who sleeps for pcp.lock (pcp_lock.c). */
void pcpa_pcp_wake(struct pcptune_cpu_block *b);

#define PCPA_MAX_MOVE (PCPTUNE_MAX_BATCH << PCPTUNE_MAX_SCALE)

/*
 * pcp.lock is 0, or says who holds it, so that a signal handler knows when it interrupted the
 * holder: the address of a thread-local word, shortened. Two threads that look the same merely do
 * not wait for each other.
 */
static inline uint32_t pcpa_pcp_me(void)
{
	return (uint32_t)(uintptr_t)&pcpa_in_zone | 1;
}

static inline bool pcpa_pcp_try(struct pcptune_cpu_block *b)
{
	uint32_t free_word = 0;

	return !pcpa_get(&b->pcp.lock) &&
	       __atomic_compare_exchange_n(&b->pcp.lock, &free_word, pcpa_pcp_me(), false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/*
 * True: somebody sleeps for it, and is to be woken. One who fell asleep between the two is woken by
 * his timeout. That there are sleepers is a word of its own: to load what a locked instruction has
 * just written costs as much as half of that again.
 */
static inline bool pcpa_pcp_let_go(struct pcptune_cpu_block *b)
{
	__atomic_store_n(&b->pcp.lock, 0, __ATOMIC_RELEASE);
	return __builtin_expect(pcpa_get(&b->pcp.sleepers), 0);
}

static inline void pcpa_pcp_leave(struct pcptune_cpu_block *b)
{
	if (pcpa_pcp_let_go(b))
		pcpa_pcp_wake(b);
}

/* Before a word moves: a reader of the segment passes by lists that never did. pcp.lock is held. */
static inline void pcpa_pcp_uses(struct pcptune_cpu_block *b, unsigned list)
{
	uint32_t lists = pcpa_get(&b->pcp.lists);

	if (__builtin_expect(!(lists & 1u << list), 0))
		pcpa_publish(&b->pcp.lists, lists | 1u << list);
}

/* Zone and slot of a block. */
static inline uint32_t pcpa_index_of(const struct pcptune_cpu_block *b)
{
	return (uint32_t)(b - pcpa_cpu_block(0, 0));
}

static inline uint32_t pcpa_slot_of(const struct pcptune_cpu_block *b)
{
	uint32_t index = pcpa_index_of(b);

	/*
	 * mostly there is one zone, and a division would be a good part of a slow path's arithmetic
	 */
	return __builtin_expect(index < pcpa_heap.n_slots, 1) ? index : index % pcpa_heap.n_slots;
}

static inline struct pcpa_zone *pcpa_zone_of_block(const struct pcptune_cpu_block *b)
{
	return &pcpa_heap.zones[pcpa_index_of(b) / pcpa_heap.n_slots];
}

static inline uint32_t pcpa_list_count(const struct pcptune_list *l)
{
	return (uint32_t)((pcpa_get(&l->word) - (uint64_t)pcpa_get(&l->tail)) & PCPTUNE_WORD_MASK);
}

static inline int64_t pcpa_list_net(const struct pcptune_list *l)
{
	return pcpa_get(&l->tail) + pcpa_list_count(l);
}

static inline uint64_t *pcpa_list_slot(const struct pcptune_list *l, uint64_t position)
{
	uint64_t *ring = (uint64_t *)(uintptr_t)l->private_ring;

	return &ring[((uint32_t)position + l->reserved) & (l->limit - 1)];
}

/* The same for lists served by sections. */
static inline uint32_t pcpa_ring_mask(const struct pcptune_list *l)
{
	return (uint16_t)l->reserved;
}

static inline uint64_t *pcpa_ring_slot(const struct pcptune_list *l, uint64_t position)
{
	uint64_t *ring = (uint64_t *)(uintptr_t)l->private_ring;

	return &ring[(uint32_t)position & pcpa_ring_mask(l)];
}

#define PCPA_OPS_MASK ((UINT64_C(1) << 40) - 1)

/*
 * The 40 bits of a word last for half an hour at full speed; each slow path and each look of the
 * agent extends them. Under pcp.lock tails stand still, so that one reading of the word is enough.
 * Blocks allocated through this list and freed, the low 32 bits of each.
 */
static inline uint32_t pcpa_pcp_fold_list(struct pcptune_cpu_block *b, unsigned i,
					  uint32_t *ret_freed)
{
	uint64_t *ops64 = &b->pcp.reserved[PCPA_PCP_OPS + i], before = pcpa_get(ops64);
	uint64_t word = __atomic_load_n(&b->list[i].word, __ATOMIC_ACQUIRE);
	uint64_t tail = (uint64_t)pcpa_get(&b->list[i].tail);
	uint64_t net = tail + ((word - tail) & PCPTUNE_WORD_MASK);
	uint64_t ops = before + ((((word - net) >> 24) - before) & PCPA_OPS_MASK);

	if (ops != before)
		__atomic_store_n(ops64, ops, __ATOMIC_RELEASE);
	*ret_freed = (uint32_t)((ops + net) / 2);
	return (uint32_t)((ops - net) / 2);
}

static inline void pcpa_state_load(const struct pcptune_pcp *p, struct pcptune_rule_state *s)
{
	s->rules = pcpa_get(&p->rules);
	s->high = pcpa_get(&p->high);
	s->high_min = pcpa_get(&p->high_min);
	s->high_max = pcpa_get(&p->high_max);
	s->batch = pcpa_get(&p->batch);
	s->scale_max = pcpa_get(&p->scale_max);
	s->alloc_factor = pcpa_get(&p->alloc_factor);
	s->free_count = pcpa_get(&p->free_count);
	s->flags = pcpa_get(&p->flags);
	s->count_min = (uint32_t)(pcpa_get(&p->reserved[PCPA_PCP_STATE]) >> 32);
}

/* The least count since the last tick, for the generations that want it. */
static inline void pcpa_count_min_store(struct pcptune_pcp *p, uint32_t count_min)
{
	uint64_t *state = &p->reserved[PCPA_PCP_STATE];

	pcpa_put(state, (uint64_t)count_min << 32 | (uint32_t)pcpa_get(state));
}

/* Locked lists: what their frees go by follows from the state (pcp_locked.h). */
void pcpa_locked_lay(struct pcptune_cpu_block *b);

/* What rules may move. */
static inline void pcpa_state_store(struct pcptune_cpu_block *b, const struct pcptune_rule_state *s)
{
	struct pcptune_pcp *p = &b->pcp;
	uint32_t high = pcpa_get(&p->high);

	if (pcpa_get(&p->alloc_factor) != s->alloc_factor)
		pcpa_put(&p->alloc_factor, s->alloc_factor);
	if (pcpa_get(&p->flags) != s->flags)
		pcpa_put(&p->flags, s->flags);
	pcpa_put(&p->free_count, s->free_count);
	if (high == s->high)
		return;
	if (high < s->high)
		pcpa_count(&p->high_raised, 1);
	pcpa_put(&p->high, s->high);
	pcpa_locked_lay(b);
}

static inline bool pcpa_pcp_has(const struct pcptune_pcp *p, enum pcptune_trait trait)
{
	return pcptune_rules_traits(pcpa_get(&p->rules)) & trait;
}

static inline uint32_t pcpa_max_move(const struct pcptune_pcp *p)
{
	return pcptune_max_u32(1, pcpa_get(&p->batch) << pcpa_get(&p->scale_max));
}

/* What a drain moves in one hold of the zone lock. */
static inline uint32_t pcpa_hold_most(const struct pcptune_pcp *p)
{
	return pcptune_rules_hold(pcpa_get(&p->rules), pcpa_get(&p->batch),
				  pcpa_get(&p->scale_max));
}

/* ---- pcp_lock.c ---- */

/* The caller's try for pcp.lock; nothing is stopped. */
bool pcpa_pcp_enter(struct pcptune_cpu_block *b);
/* What it does after pcpa_pcp_try() failed. */
bool pcpa_pcp_enter_hard(struct pcptune_cpu_block *b);

/* ---- pcp.c ---- */

/* Locked lists: where a pop and a push look closer, set for the lists as they are. */
void pcpa_pcp_edges(struct pcptune_cpu_block *b);
void pcpa_pcp_count_drain(struct pcptune_zctr *c, uint64_t pages, enum pcpa_cause cause);

/* ---- pcp_direct.c; busy: since the lists were locked ---- */

void *pcpa_pcp_alloc_direct(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned order,
			    bool busy);
void pcpa_pcp_free_direct(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *block,
			  unsigned order, bool busy);

/* ---- pcp_values.c ---- */

/* First use of a CPU, pcp.lock held. */
void pcpa_pcp_begin(struct pcptune_cpu_block *b, uint32_t zone);
/*
 * Places for lists that were refused some, pcp.lock held: asked for again, but of all CPUs once a
 * second at most. false: there are none yet.
 */
bool pcpa_pcp_begin_again(struct pcptune_cpu_block *b, uint32_t zone);

/* ---- pcp_stops.c ---- */

/* 1 in the child of a fork until its first allocation. */
extern uint32_t pcpa_to_ring;

/* With pcp.lock held: takes the lists from the sections, and gives them back. */
void pcpa_sections_stop(struct pcptune_cpu_block *b);
void pcpa_sections_go(struct pcpa_zone *z, struct pcptune_cpu_block *b);
/* The two halves of each, for all CPUs with one fence between them. */
void pcpa_sections_ask(struct pcptune_cpu_block *b);
void pcpa_sections_stopped(struct pcptune_cpu_block *b);
/* With pcp.lock held and sections given up: makes the lists locked ones. */
void pcpa_sections_end(struct pcpa_zone *z, struct pcptune_cpu_block *b);
/* In the child of a fork, stopped: what was seen of the words begins at zero with them. */
void pcpa_sections_restart(struct pcptune_cpu_block *b);

/* ---- pcp_sections.c ---- */

void *pcpa_sections_alloc(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list);
void pcpa_sections_free(struct pcpa_zone *z, uint32_t slot, unsigned order, unsigned list,
			void *block);
/* pcpa_pcp_drain() of these lists. */
void pcpa_sections_drain(struct pcpa_zone *z, struct pcptune_cpu_block *b, unsigned first,
			 uint64_t pages, enum pcpa_cause cause, enum pcpa_path path);

/* ---- rings.c ---- */

/* First use of a CPU: rings, and high_limit. */
void pcpa_sections_begin(struct pcptune_cpu_block *b, uint32_t high_limit);
/* In the child of a fork, stopped: blocks to where they belong when the head is position 0. */
void pcpa_sections_begin_at_zero(struct pcptune_list *l);
/* Turns a ring of n places (a power of two) so that place i holds what i + by did. */
void pcpa_ring_turn(uint64_t *ring, uint32_t n, uint32_t by);

#endif
