/* SPDX-License-Identifier: MIT */
/*
 * Batches that grow with the run of calls (5.14, 6.7 and later): what they take of `high`, and how
 * large refills and drains are, at any `high` and with any settings, for the lists of one CPU.
 *
 * The rules are tried on a likeness of the CPU's walk (likeness.h), and the result is corrected by
 * what was measured at the high that was in force: how many of the breaks in runs that no record
 * shows there were, how evenly runs are broken, and what is left by a factor. At that high the
 * result is then what was measured; at others the factor counts by how many drains it was taken
 * from.
 *
 * Any thread; what was tried is kept, a few points an octave, with lines in between. The same
 * record gives the same numbers, whoever asks first.
 */
#ifndef PCPTUNE_EVAL_GROWTH_H
#define PCPTUNE_EVAL_GROWTH_H

#include "eval/likeness.h"
#include "eval/walks.h"

struct growth;

struct growth_effect {
	uint64_t loss;		/* high less the capacity in effect */
	uint64_t refill, drain; /* mean pages of one, at least 1 */
};

/* Of a walk that has records, sealed; it must stay. NULL: no memory. */
struct growth *growth_new(const struct walk *k);
void growth_free(struct growth *g);
/* batch above 0, at most high. Without memory: as if batches did not grow, and growth_failed(). */
struct growth_effect growth_at(struct growth *g, const struct likeness_limits *m);

/* Some answer was not worked out, for lack of memory: none of them is to be believed. */
bool growth_failed(struct growth *g);

#endif
