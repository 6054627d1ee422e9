/* SPDX-License-Identifier: MIT */
/*
 * Advice: what a policy would have come to, had it been at work, from the log alone.
 *
 * The policy sees the logged samples and records, but with the limits that it would have set, so it
 * goes its way step by step as live. Traffic was that of the limits in force, which is all that a
 * policy by records needs. One by counters would see the same misses whatever it sets, and go on
 * and on; so a CPU that it raised above what was in force shows none from then on, and its advice
 * is a first step. What both settings cost comes from the walk of each CPU (walks.h), with its
 * bracket. What passed the lists by is in no walk; where the advised rules have lists of other
 * orders it may go through them, and the bracket has room for all of it.
 */
#ifndef PCPTUNE_EVAL_ADVISE_H
#define PCPTUNE_EVAL_ADVISE_H

#include <stdbool.h>
#include <stdint.h>
#include "eval/walks.h"
#include "policies/host.h"

/* One CPU that is to be changed. */
struct advice_row {
	uint32_t zone, cpu;
	struct limits now, then;
	uint32_t reason;
	int64_t arg[4];
	uint32_t high_before;		     /* of that reason */
	uint64_t measured;		     /* pages moved in the time that was looked at */
	uint64_t direct;		     /* and pages that passed the lists by */
	bool other_lists;		     /* then: of other orders, so that they may not */
	struct whatif pages_now, pages_then; /* by the walk, of both settings */
};

struct advice {
	struct advice_row *rows; /* ascending zone and CPU */
	size_t n_rows;
	uint64_t samples, records;
	uint64_t from_us, to_us; /* wall clock, of the samples */
	double seconds;
	uint64_t high_now, high_then; /* sums, all CPUs in use */
	uint64_t measured, direct;    /* of all CPUs */
	struct whatif pages_now, pages_then;
	uint32_t quiet; /* reason of the last answer without a change; 0: none */
	int64_t quiet_arg[4];
};

/*
 * Runs the policy over the samples between two wall clock times. 0; -ENOENT: no sample there;
 * -EPROTO: the policy broke its contract; -EBADMSG, -ENOMEM, -EIO ... why: WALKS_WHY bytes.
 */
int advise_log(struct logstore *ls, const struct log_target *t, uint64_t from_us, uint64_t to_us,
	       struct policy_module *m, const int64_t *params, struct advice *ret, char *why);
void advice_free(struct advice *a);

#endif
