/* SPDX-License-Identifier: MIT */
/*
 * Replay of a log: the same policy over the logged samples must give the logged decisions.
 */
#ifndef PCPTUNE_EVAL_REPLAY_H
#define PCPTUNE_EVAL_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include "lib/logstore.h"

struct verify_result {
	uint64_t assignments;	/* instances replayed */
	uint64_t samples;	/* fed to them */
	uint64_t derived;	/* decisions re-derived, equal in every field */
	uint64_t differ;	/* logged or derived, but not the same */
	uint64_t not_derivable; /* their samples were merged away, or the policy is not at hand */
	uint64_t by_hand;	/* decisions of the operator (set, unset): nothing to derive */
};

/*
 * policy_path: NULL: default. report is called for each difference and for each instance that
 * could not be replayed, with one line. 0 when nothing differs, -EUCLEAN when something does.
 */
int verify_log(struct logstore *ls, const char *policy_path, struct verify_result *ret,
	       void (*report)(const char *line, void *cookie), void *cookie);

#endif
