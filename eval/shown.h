/* SPDX-License-Identifier: MIT */
/*
 * A CPU of a simulated target as the daemon's reader shows one: what follows from its counters and
 * from the state of its rules. Counters are filled in before.
 */
#ifndef PCPTUNE_EVAL_SHOWN_H
#define PCPTUNE_EVAL_SHOWN_H

#include <stdbool.h>
#include <pcptune/policy.h>
#include <pcptune/rules.h>

static inline uint32_t shown_flags(const struct pcptune_cpu *p, bool settling)
{
	uint32_t flags = settling ? PCPTUNE_CPU_SETTLING : 0;

	if (!p->alloc_pages && !p->free_pages && !p->lock_agent_taken)
		return flags;
	flags |= PCPTUNE_CPU_ACTIVE;
	if (!p->lock_alloc_taken && !p->lock_free_taken && !p->lock_agent_taken)
		flags |= PCPTUNE_CPU_LISTS_ONLY;
	return flags;
}

static inline void shown_state(struct pcptune_cpu *p, const struct pcptune_rule_state *st,
			       uint64_t pages, bool settling)
{
	p->flags = shown_flags(p, settling);
	p->count = (uint32_t)pages;
	p->high = st->high;
	p->high_min = st->high_min;
	p->high_max = st->high_max;
	p->batch = st->batch;
	p->scale_max = st->scale_max;
	p->rules = st->rules;
	p->alloc_factor = st->alloc_factor;
	p->free_count = st->free_count;
}

#endif
