/* SPDX-License-Identifier: MIT */
/*
 * The only place that acts on targets: control words, wake-ups, leases.
 */
#ifndef PCPTUNE_DAEMON_APPLY_H
#define PCPTUNE_DAEMON_APPLY_H

#include "daemon/target.h"

/* Values of struct limits, as bits. */
enum limit_bit {
	LIMIT_HIGH = 1u << 0,
	LIMIT_HIGH_MIN = 1u << 1,
	LIMIT_HIGH_MAX = 1u << 2,
	LIMIT_BATCH = 1u << 3,
	LIMIT_SCALE_MAX = 1u << 4,
	LIMIT_RULES = 1u << 5,
	LIMIT_ALL = (1u << 6) - 1,
};

/* Takes the words as found at the attachment for the state of things. */
void apply_baseline(struct target *t);
/* The limits of a CPU once it has taken over what was written last, as it surely will. */
struct limits apply_coming(struct target *t, uint32_t index);
/* Carries a decision out. id: in the log, 0: not logged. by_hand: the operator's, not settled;
 * given (enum limit_bit): values that are written even if they seem to be in force. */
void apply_change(struct target *t, const struct host_change *ch, int64_t id, bool by_hand,
		  uint32_t given);
/* A dry run: nothing is written, the CPU settles as if it were. */
void apply_dry(struct target *t, const struct host_change *ch);
/* Wakes the agents of the targets that were written to since the last call. */
void apply_wake(struct daemon *d);

/* Before a sample is given to the policy: who took words over, who has settled. */
void apply_acks(struct target *t);
void apply_settle(struct target *t, uint64_t now_us);
/* Another policy wants something else: it does not wait for what the one before said again. */
void apply_new_policy(struct target *t);
/* Compares the words of some CPUs with what we wrote; a few at each call, all within a second. */
void apply_check(struct target *t);
/* From now on every change is refused: the sample is the last one. */
void apply_hold_all(struct target *t);
void apply_target_gone(struct target *t);

/* Pins a CPU (HELD), or lets it go and takes its words as they are. */
void apply_pin(struct target *t, uint32_t index);
void apply_unpin(struct target *t, uint32_t index);

/* The end of the daemon: restores what was changed, by way of decisions by hand. */
void apply_restore(struct target *t);
/*
 * lease of a target: for good (keep), none, or, where what was there before the first change is not
 * known, one that has run out, so that the program goes back to its own defaults.
 */
void apply_release(struct target *t, bool keep);

#endif
