/* SPDX-License-Identifier: MIT */
/*
 * The guard of an instance: see host_guard.c. Pure; its words are part of the instance's state.
 */
#ifndef PCPTUNE_POLICIES_HOST_GUARD_H
#define PCPTUNE_POLICIES_HOST_GUARD_H

#include "policies/host.h"

enum guard_param { GUARD_PERMILLE, GUARD_MS, GUARD_BENCH_MS };
extern const struct pcptune_param guard_params[POLICY_GUARD_PARAMS];

/* Above every id that a policy may use. */
#define GUARD_REASON_BASE 65536u
enum guard_reason {
	GUARD_BACK_TRAFFIC = GUARD_REASON_BASE + 1,
	GUARD_BACK_WAITS,
	GUARD_BACK_VAIN,
	GUARD_BENCHED,
	GUARD_BACK_HOLDS,
};
#define GUARD_N_REASONS 5u
extern const struct pcptune_reason guard_reasons[GUARD_N_REASONS];

enum guard_direction { GUARD_OTHER, GUARD_UP, GUARD_DOWN, GUARD_N_DIRECTIONS };
enum guard_phase { GUARD_REST, GUARD_SETTLES, GUARD_CALMS, GUARD_MEASURES, GUARD_BACK };

struct guard_sum {
	uint64_t us, traffic, zone, wait_ns;
	uint64_t held;			  /* pages x ms */
	uint64_t all_traffic, long_holds; /* of the whole target meanwhile */
};

/* Words of one CPU; zeroed at the beginning. */
struct guard_cpu {
	struct guard_sum now, before;	    /* stretches of guard_ms under the values in force */
	struct guard_sum base, after;	    /* of the change that is measured */
	uint64_t base_sum;		    /* high of all CPUs then */
	uint64_t since;			    /* it was made, us */
	uint64_t until[GUARD_N_DIRECTIONS]; /* benched, us */
	int64_t arg[4];
	struct limits old, given;
	uint32_t bench_ms[GUARD_N_DIRECTIONS]; /* the last one, 0: none */
	uint32_t reason;		       /* to go back */
	uint8_t phase, direction;
	uint8_t reserved[6];
};

/* ---- measures, which the canary shares ---- */

#define GUARD_LITTLE_PPM   10000u /* zone pages of a million: noise below */
#define GUARD_LITTLE_NS	   20u	  /* of waiting for a page: noise below */
#define GUARD_LITTLE_PAGES 64u	  /* held */

/* Pages that all CPUs allocated and freed, for guard_sum_add(). */
uint64_t guard_all_traffic(const struct pcptune_sample *s);
/* An interval of a CPU more. */
void guard_sum_add(struct guard_sum *g, const struct pcptune_cpu *c, const struct pcptune_sample *s,
		   uint64_t all_traffic);
struct guard_sum guard_sum_both(const struct guard_sum *a, const struct guard_sum *b);
uint64_t guard_zone_ppm(const struct guard_sum *s);
uint64_t guard_wait_per_page(const struct guard_sum *s); /* ns */
uint64_t guard_held_mean(const struct guard_sum *s);	 /* pages */
/* Is it more, or less, by the margin (permille) and by more than a little? */
bool guard_up(uint64_t was, uint64_t is, uint64_t little, uint64_t margin);
bool guard_down(uint64_t was, uint64_t is, uint64_t little, uint64_t margin);
uint64_t guard_long_ppm(const struct guard_sum *s); /* long holds for a million pages */
/*
 * Are there more long holds by the margin, and by more than chance: sixteen at least, and four
 * times what the number expected is uncertain by?
 */
bool guard_longer(const struct guard_sum *was, const struct guard_sum *is, uint64_t margin);
struct limits guard_limits(const struct pcptune_cpu *c);
/* Does this CPU have the values it was given? */
bool guard_has(const struct limits *given, const struct pcptune_cpu *c);

/* ---- */

/* Takes a sample in and judges what is due. p: the guard's parameters; g: one for each entry. */
void guard_sample(struct guard_cpu *g, const int64_t *p, const struct pcptune_sample *s);
/*
 * Puts what is to go back among the changes of the policy and leaves out what is benched. out: room
 * for n_cpus; d has it then. Returns how many were left out.
 */
uint32_t guard_merge(struct guard_cpu *g, const struct pcptune_sample *s,
		     struct pcptune_decision *d, struct pcptune_change *out);
/* A change that the host let through: its measurement begins. */
void guard_applied(struct guard_cpu *g, const struct host_change *ch,
		   const struct pcptune_sample *s);

#endif
