/* SPDX-License-Identifier: MIT */
/*
 * Lists served by sections: what the rules are told of pushes and pops that nobody counted one by
 * one. Inline, since slow paths begin with it. Everything here is with pcp.lock held.
 *
 * What the rules want to know of each operation follows from the words: how many allocations and
 * frees there were since the last slow path. Of their order it is known how many frees of a list
 * came after its last allocation. The earlier ones are taken to have been before all of these. The
 * rule on consecutive frees of orders 1 to 3 is asked when it may drain: once a run of frees is
 * long enough for it, at every look of whatever list, the lists of these orders get no room. What
 * is freed after an allocation from such a list, up to where it stood, comes unasked. Differences
 * to locked lists: it is taken from numbers whether the free before was of these orders; a change
 * of the zone's state is seen at the next slow path.
 */
#ifndef PCPA_PCP_LOOK_H
#define PCPA_PCP_LOOK_H

#include "allocator/pcp_bounds.h"
#include "allocator/pcp_private.h"
#include "allocator/track_look.h"

/* Blocks pushed since the last pop of a list. */
static inline uint32_t run_of(const struct pcptune_list *l)
{
	return ((uint32_t)pcpa_get(&l->word) - pcpa_get(&l->mark)) & (uint32_t)PCPTUNE_WORD_MASK;
}

/* What moved since the last look, in blocks; `late` and `early` are pages. */
struct moves {
	uint32_t allocs, frees;
	uint32_t high;	/* the frees of orders 1 to 3 */
	uint32_t late;	/* freed, and no allocation followed */
	uint32_t early; /* freed before that */
};

static inline struct moves moves_seen(struct pcptune_cpu_block *b)
{
	struct pcpa_words *w = pcpa_words(b);
	struct moves m = {0, 0, 0, 0, 0};
	uint64_t seen = w->seen;

	PCPA_FOR_EACH_USED (i, b) {
		uint32_t freed, n, run;

		m.allocs += pcpa_pcp_fold_list(b, i, &freed);
		m.frees += freed;
		n = freed - w->freed[i];
		if (!n)
			continue;
		if (i && pcpa_list_orders[i] <= PCPTUNE_COSTLY_ORDER)
			m.high += n;
		run = pcptune_min_u32(n, run_of(&b->list[i]));
		m.late += run << pcpa_list_orders[i];
		m.early += (n - run) << pcpa_list_orders[i];
		w->freed[i] = freed;
	}
	w->seen = (uint64_t)m.allocs << 32 | m.frees;
	m.allocs -= (uint32_t)(seen >> 32);
	m.frees -= (uint32_t)seen;
	return m;
}

/* Between looks nobody knows how low the count was: that of p9 is the least of those at looks. */
static inline void look_at_count(struct pcptune_cpu_block *b)
{
	struct pcptune_rule_state s;

	pcpa_state_load(&b->pcp, &s);
	pcptune_rules_taken(&s, (uint32_t)pcpa_pcp_pages(b));
	pcpa_count_min_store(&b->pcp, s.count_min);
}

#define WARY_MOST 16u /* questions in vain for each run */

/* A run of frees got so long that the rule on those of orders 1 to 3 may drain. */
static inline void set_wary(struct pcptune_pcp *p)
{
	struct pcptune_rule_state s;

	pcpa_state_load(p, &s);
	if (s.free_count >= pcptune_rules_free_high_run(&s, pcptune_rules_traits(s.rules)))
		set_state(p, PCPA_PCP_WARY_MASK, WARY_MOST * PCPA_PCP_WARY);
}

/* It was asked about the next free. */
static inline void set_asked(struct pcptune_pcp *p)
{
	uint64_t wary = pcpa_get(&p->reserved[PCPA_PCP_STATE]) & PCPA_PCP_WARY_MASK;

	set_state(p, PCPA_PCP_WARY_MASK | PCPA_PCP_ASKED,
		  PCPA_PCP_ASKED | (wary ? wary - PCPA_PCP_WARY : 0));
}

/*
 * Was the last free of orders 1 to 3? None since the last look: the rules were told of that one.
 * One that was asked about was the first. Others are taken to be the last: blocks of high orders
 * that go back while lists are watched closely do so after the pages of a process, and not among
 * them.
 */
static inline void set_previous(struct pcptune_pcp *p, const struct moves *m)
{
	uint32_t flags = pcpa_get(&p->flags) & ~PCPTUNE_RF_PREV_HIGH_ORDER;
	uint32_t asked = pcpa_get(&p->reserved[PCPA_PCP_STATE]) & PCPA_PCP_ASKED ? 1 : 0;

	if (!m->frees)
		return;
	if (m->high == m->frees || m->high > asked)
		flags |= PCPTUNE_RF_PREV_HIGH_ORDER;
	pcpa_put(&p->flags, flags);
	set_state(p, PCPA_PCP_ASKED, 0);
}

/* What each free and each allocation since the last look would have done to the rules' state. */
static inline void look(struct pcptune_cpu_block *b)
{
	struct pcptune_pcp *p = &b->pcp;
	struct pcpa_words *w = pcpa_words(b);
	uint32_t traits = pcptune_rules_traits(pcpa_get(&p->rules)), calm = pcpa_get(&w->calm);
	struct moves m = moves_seen(b);

	if (traits & PCPTUNE_RT_FREE_COUNT) {
		uint32_t ends = pcptune_sub0_u32(m.allocs, calm - w->calm_seen);
		uint32_t early = (pcpa_get(&p->free_count) + m.early) >> pcptune_min_u32(ends, 31);

		pcpa_put(&p->free_count, pcptune_min_u32(m.late + early, pcpa_max_move(p)));
	} else {
		pcpa_put(&p->free_count, pcpa_get(&p->free_count) >> pcptune_min_u32(m.allocs, 31));
	}
	if (traits & PCPTUNE_RT_ALLOC_FACTOR)
		pcpa_put(&p->alloc_factor,
			 pcpa_get(&p->alloc_factor) >> pcptune_min_u32(m.frees, 31));
	if (traits & PCPTUNE_RT_COUNT_MIN)
		look_at_count(b);
	if (traits & PCPTUNE_RT_FREE_HIGH) {
		set_previous(p, &m);
		set_wary(p);
	}
	w->calm_seen = calm;
}

/*
 * Somebody who did not come to be asked about: a list at the edge of its window. Here it is noticed
 * that a run of frees got long, so that the next free of orders 1 to 3 is asked about. Factors
 * do not grow by frees, so this is for generations with free_count.
 */
static inline void watch(struct pcptune_cpu_block *b, const struct pcptune_track *t)
{
	uint32_t traits = pcptune_rules_traits(pcpa_get(&b->pcp.rules));

	if (!(pcpa_get(&b->pcp.lists) & HIGH_LISTS) || !(traits & PCPTUNE_RT_FREE_HIGH) ||
	    !(traits & PCPTUNE_RT_FREE_COUNT))
		return;
	look(b);
	watch_high(b, t, PCPTUNE_N_LISTS, (uint32_t)pcpa_pcp_pages(b));
}

#endif
