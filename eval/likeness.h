/* SPDX-License-Identifier: MIT */
/*
 * A walk with the same swings as a record, to try the rules of lists on.
 *
 * A record has the amplitudes of closed cycles and the turning points that enclose them, not which
 * cycle lay within which. A likeness puts them together again by chance: from the largest on, each
 * into a leg that is long enough, at any place of it. What a fixed batch moves is the same for
 * every such walk; what batches move that grow with the run of calls depends on the order, but in
 * the mean of many cycles little.
 *
 * How far batches grow depends above all on how often a run is broken by a call the other way.
 * Swings below LIKENESS_STRAY pages are such breaks, and so is what was allocated and freed without
 * the record having seen a swing. They are strewn over the legs. Each is a block, and so is each
 * step of a run: of larger blocks both are fewer.
 *
 * In integers and from fixed seeds: the same record, the same likeness. One thread for each.
 */
#ifndef PCPTUNE_EVAL_LIKENESS_H
#define PCPTUNE_EVAL_LIKENESS_H

#include <pcptune/tracker.h>

#define LIKENESS_STRAY 8u

struct likeness {
	int64_t *x; /* turning points, in blocks */
	uint32_t n, room;
	uint32_t order; /* of all blocks */
	/* pages of all legs, and breaks on them: seen as swings and not seen */
	uint64_t pages, strays, stray_pages, hidden;
};

/* The settings that lists are tried with. */
struct likeness_limits {
	uint32_t high, batch, scale_max, rules;
};

struct likeness_moves {
	uint64_t refilled, refills, drained, drains;
	struct pcptune_band band; /* what was walked */
};

/*
 * pages: all that was allocated and freed over the record; order: 0 to 3, of the blocks that were.
 * 0 or -ENOMEM; free it either way.
 */
int likeness_make(struct likeness *l, const struct pcptune_band *b, uint64_t pages, uint32_t order);
void likeness_free(struct likeness *l);
/*
 * What lists move over it; hidden: of the breaks that were not seen, in 1 / 65536 of them. Legs
 * much longer than high are cut, since lists that overflow or are empty do the same over and over,
 * and the walk ends early when it would take long: the band tells what there was.
 */
void likeness_play(const struct likeness *l, const struct likeness_limits *m, uint64_t hidden,
		   struct likeness_moves *ret);

#endif
