/* SPDX-License-Identifier: MIT */
/*
 * The records that a policy was given with its samples, out of the log, for a replay.
 *
 * They stand in rows of their own, so they are fetched for the samples of one chunk at a time.
 * Records that were merged can not be given again; a sample that may have had one then breaks the
 * chain of a policy that asks for them.
 */
#ifndef PCPTUNE_EVAL_GIVEN_H
#define PCPTUNE_EVAL_GIVEN_H

#include <stddef.h>
#include <stdint.h>
#include "lib/logstore.h"

struct given {
	struct log_record *r; /* of the chunk, in the order of samples, then as they were given */
	size_t n, room, at;
	uint64_t merged_to;   /* the last sample whose records are merged, 0: none */
	uint64_t first, last; /* samples of the chunk */
};

/*
 * Fetches what was given with the samples first to last. 0, -EBADMSG (damaged) or another -errno.
 */
int given_load(struct given *g, struct logstore *ls, int64_t target, uint64_t first, uint64_t last);
/*
 * Puts those of s->seq, ascending through the chunk, into s. Owned by g until the next
 * given_load().
 */
void given_to(struct given *g, struct pcptune_sample *s);
void given_free(struct given *g);

#endif
