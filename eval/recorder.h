/* SPDX-License-Identifier: MIT */
/*
 * Records for policies that ask for them, from lists that are simulated: what a live target's
 * tracker gives, without its grain. One recorder for each CPU; the owner alone writes it.
 *
 * The first record comes early, and with each CPU at another sample, so that no sample has them
 * all; from then on a record follows the other as the policy wants them, while the CPU is active.
 */
#ifndef PCPTUNE_EVAL_RECORDER_H
#define PCPTUNE_EVAL_RECORDER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <pcptune/policy.h>

#define RECORDER_FIRST_US 100000u /* CPU i begins after 1 + i % RECORDER_SPREAD times this */
#define RECORDER_SPREAD	  10u

/* Since the beginning: runs of pages from the zone and back, and their pages. */
struct recorder_moves {
	uint64_t refills, refilled, drains, drained;
};

struct recorder {
	struct pcptune_band band;
	struct recorder_moves last;
	uint64_t since_us, due_us;
};

static inline void recorder_begin(struct recorder *r, uint32_t index, uint64_t now_us)
{
	memset(r, 0, sizeof(*r));
	pcptune_band_push(&r->band, 0);
	r->since_us = now_us;
	r->due_us = now_us + (uint64_t)RECORDER_FIRST_US * (1 + index % RECORDER_SPREAD);
}

/* The net position of the lists is now x: pages freed to them less pages allocated. */
static inline void recorder_move(struct recorder *r, int64_t x)
{
	pcptune_band_push(&r->band, x);
}

/* Cuts the record of an active CPU when it is due. */
static inline bool recorder_cut(struct recorder *r, uint32_t index, uint64_t now_us, uint32_t ms,
				const struct recorder_moves *m, struct pcptune_record *ret)
{
	if (now_us < r->due_us)
		return false;
	ret->index = index;
	ret->flags = 0;
	ret->dt_us = now_us - r->since_us;
	ret->refills = m->refills - r->last.refills;
	ret->refilled = m->refilled - r->last.refilled;
	ret->drains = m->drains - r->last.drains;
	ret->drained = m->drained - r->last.drained;
	pcptune_band_cut(&r->band, &ret->band);
	r->last = *m;
	r->since_us = now_us;
	r->due_us = now_us + (uint64_t)ms * 1000;
	return true;
}

#endif
