/* SPDX-License-Identifier: MIT */
/*
 * The canary of an instance: see host_canary.c. Pure; its words are part of the instance's state.
 */
#ifndef PCPTUNE_POLICIES_HOST_CANARY_H
#define PCPTUNE_POLICIES_HOST_CANARY_H

#include "policies/host_guard.h"

enum canary_param { CANARY_PERMILLE, CANARY_MS, CANARY_MARGIN };
extern const struct pcptune_param canary_params[POLICY_CANARY_PARAMS];

/* Above those of the guard. */
enum canary_reason {
	CANARY_BACK_WORSE = GUARD_REASON_BASE + 100,
	CANARY_BACK_SAME,
	CANARY_SPREADS,
	CANARY_MEASURES,
	CANARY_GAVE_UP,
};
#define CANARY_N_REASONS 5u
extern const struct pcptune_reason canary_reasons[CANARY_N_REASONS];

enum canary_phase {
	CANARY_BEFORE, /* nobody is changed */
	CANARY_FIRST,  /* the chosen ones are the policy's; it has not changed one yet */
	CANARY_SHOWS,  /* it has, and no sample shows it yet */
	CANARY_CALMS,  /* what the change itself moved passes by */
	CANARY_AFTER,  /* measured */
	CANARY_BACK,   /* the chosen ones get their values back */
	CANARY_OVER,   /* they have them, and the policy changes nothing any more */
	CANARY_SPREAD, /* all are the policy's */
};

struct canary_cpu {
	struct guard_sum base, after;
	struct limits old; /* of a chosen one, before the first change */
	uint8_t chosen;
	uint8_t reserved[7];
};

/* Zeroed at the beginning. */
struct canary {
	uint32_t phase; /* enum canary_phase */
	uint32_t n_chosen, n_busy;
	uint32_t reason; /* to go back */
	uint64_t since;	 /* of the phase, us */
	int64_t arg[4];
	struct canary_cpu cpu[]; /* one for each entry of a sample */
};

/*
 * Takes a sample in and goes on to the next phase when it is time. p: the canary's parameters.
 * Returns a reason that people want to hear of, 0: none; ca->arg has its arguments.
 */
uint32_t canary_sample(struct canary *ca, const int64_t *p, const struct pcptune_sample *s);
/* May the policy change this CPU now? */
bool canary_free(const struct canary *ca, uint32_t index);
/*
 * Leaves out what is not the policy's to change and adds what goes back. out: room for n_cpus; d
 * has it then. Returns how many were left out.
 */
uint32_t canary_merge(struct canary *ca, const struct pcptune_sample *s, struct pcptune_decision *d,
		      struct pcptune_change *out);
/* A change that the host let through. */
void canary_applied(struct canary *ca, const struct host_change *ch,
		    const struct pcptune_sample *s);

#endif
