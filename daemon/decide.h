/* SPDX-License-Identifier: MIT */
/*
 * From a sample to decisions: asks the policy, gathers the changes of a tick, and hands them on to
 * the log and then to apply.c.
 */
#ifndef PCPTUNE_DAEMON_DECIDE_H
#define PCPTUNE_DAEMON_DECIDE_H

#include "daemon/target.h"

/*
 * Logs sample s and asks t's policy about it; changes wait for decide_flush(). A foreign policy
 * answers later (decide_answer()), and the sample is logged then.
 */
void decide(struct target *t, const struct pcptune_sample *s);
/* The process of t's policy answered. */
void decide_answer(struct target *t);
/* Asks t's policy, another one now, about the sample that was kept. */
void decide_kept(struct target *t);
/* t's process, if it has one, is asked no more, and what it was asked needs no answer. */
void decide_no_more(struct target *t);
/*
 * Writes the waiting decisions and all chunks that are due in one transaction, then applies what
 * may be applied. Called at the end of a tick.
 */
void decide_flush(struct daemon *d, bool all_chunks);
/* Forgets waiting decisions of t (it is going away). */
void decide_forget(struct target *t);

/* Decisions by hand: reasons of the assignment "operator". */
enum operator_reason {
	OPERATOR_SET = 1,
	OPERATOR_UNSET = 2,
	OPERATOR_RESTORE = 3,
};
/*
 * Adds a decision by hand; decide_flush() carries it out. given: which values were asked for, as
 * bits enum limit_bit; they are written even where they seem to be in force already. -ENOMEM.
 */
int decide_by_hand(struct target *t, const struct host_change *ch, uint32_t given);
/* Ids of the decisions of the last decide_flush(), in the order in which they were added. */
const int64_t *decide_ids(size_t *ret_n);
/* Lets go of the memory that ticks share. */
void decide_free(void);

#endif
