/* SPDX-License-Identifier: MIT */
/*
 * One decision of the log as JSON, and small facts about it, for `log` and `explain`.
 */
#ifndef PCPTUNE_CLI_DECISION_H
#define PCPTUNE_CLI_DECISION_H

#include <jansson.h>
#include <stdbool.h>
#include "lib/logstore.h"

/* The object that `log --json` prints: keys of the contract first, then more. */
json_t *decision_json(const struct log_decision *d, const struct log_target *t,
		      const struct log_assignment *a);
/* Made by the operator (set, unset), not by a policy? */
bool decision_by_hand(const struct log_assignment *a);
/* Taken over by the target? */
bool decision_applied(const struct log_decision *d);
/*
 * Why `clamped` is not `proposed`, one sentence for each cause, "" when they are the same. shape:
 * of the assignment. Pure.
 */
char *decision_clamp_why(const struct pcptune_shape *shape, const struct log_decision *d, char *buf,
			 size_t n);

#endif
