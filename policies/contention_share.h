/* SPDX-License-Identifier: MIT */
/*
 * How contention deals its budget out: largest need first, which is who had most pages go to the
 * zone and come back. What is too little to be worth a decision is not given.
 */
#ifndef PCPTUNE_POLICIES_CONTENTION_SHARE_H
#define PCPTUNE_POLICIES_CONTENTION_SHARE_H

#include "policies/contention.h"

#define GRANTS_MAX 64u /* raises in one answer; the others come with the next sample */

/* What the passes over the CPUs found. */
struct tally {
	uint64_t budget, sum, room;
	uint32_t used, closed, cut, holding, above, missed, wanting;
};

/*
 * The CPU in largest need (most pages went to the zone and back) that was not looked at yet;
 * UINT32_MAX: none.
 */
static inline uint32_t neediest(const struct state *st, uint32_t n)
{
	uint32_t best = UINT32_MAX;
	uint64_t most = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct cpu_state *cs = &st->cpu[i];

		if (cs->wanted && !cs->granted && (best == UINT32_MAX || cs->in + cs->out > most)) {
			best = i;
			most = cs->in + cs->out;
		}
	}
	return best;
}

/*
 * What is too little to be worth a decision already now: the room only shrinks. Where the budget is
 * used up this is all there is to do, and it costs one pass.
 */
static inline void cut_hopeless(struct state *st, const struct pcptune_sample *s, struct tally *t)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		struct cpu_state *cs = &st->cpu[i];
		uint64_t high, most;

		if (!cs->wanted)
			continue;
		high = pcptune_sample_cpu(s, i)->high;
		most = cs->wanted > high + t->room ? high + t->room : cs->wanted;
		if (most >= high + high / 8 + 1)
			continue;
		cs->wanted = 0;
		t->cut++;
	}
}

/* Largest need first: cuts what is wanted to what the budget has left. */
static inline void share(struct state *st, const struct pcptune_sample *s, struct tally *t)
{
	if (!t->wanting)
		return; /* a calm target: saves two passes */
	cut_hopeless(st, s, t);
	for (uint32_t n = 0; n < GRANTS_MAX; n++) {
		uint32_t i = neediest(st, s->n_cpus), high;
		struct cpu_state *cs;

		if (i == UINT32_MAX)
			return;
		cs = &st->cpu[i];
		high = pcptune_sample_cpu(s, i)->high;
		if (cs->wanted > high + t->room)
			cs->wanted = high + (uint32_t)t->room;
		if (cs->wanted < high + high / 8 + 1) { /* too little to be worth a decision */
			cs->wanted = 0;
			t->cut++;
			continue;
		}
		t->room -= cs->wanted - high;
		cs->granted = 1;
	}
}

#endif
