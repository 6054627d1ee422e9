/* SPDX-License-Identifier: MIT */
/*
 * A walk with the same swings as a record, to try the rules of lists on.
 *
 * A record has the amplitudes of closed cycles and the turning points that enclose them, not which
 * cycle lay within which. A likeness puts them together again by chance: from the largest on, each
 * into a leg that is long enough, at any place of it. What a fixed batch moves is the same for
 * every such walk. What batches move that grow with the run of calls depends on which legs the
 * cycles break: with the same swings the long runs may be whole and the short ones broken, or all
 * runs much of one length. So there is a likeness for every evenness.
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
/* evenness, see likeness_make() */
#define LIKENESS_ONE   100
#define LIKENESS_LEAST (-3 * LIKENESS_ONE / 2)
#define LIKENESS_MOST  (4 * LIKENESS_ONE)

struct likeness {
	int64_t *x; /* turning points, in blocks */
	uint32_t n, room;
	uint32_t order; /* of all blocks */
	uint32_t cycles;
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
 * evenness, from LIKENESS_LEAST to LIKENESS_MOST: at 0 a cycle begins at any page alike, so long
 * legs are broken more often. With each LIKENESS_ONE above, one place more is looked at, and that
 * in the longest leg is taken. At -LIKENESS_ONE each leg is as likely as any other, and with each
 * further one the shorter of two is taken; in between it is a matter of chance.
 * cycles: that a walk has at most; the more, the less is chance, and the longer it takes.
 * 0 or -ENOMEM; free it either way.
 */
int likeness_make(struct likeness *l, const struct pcptune_band *b, uint64_t pages, uint32_t order,
		  int32_t evenness, uint32_t cycles);
void likeness_free(struct likeness *l);
/*
 * How far its swings are from those of the same legs in another order, in 1 / 65536 of what crosses
 * a band, in the mean of several widths: 0 where legs come in any order, as if each were drawn by
 * itself, which most do. Of the likenesses of a record the one with the least is the most likely.
 * 0 or -ENOMEM.
 */
int likeness_disorder(const struct likeness *l, uint64_t *ret_disorder);
/*
 * What lists move over it; hidden: of the breaks that were not seen, in 1 / 65536 of them. Legs
 * much longer than high are cut, since lists that overflow or are empty do the same over and over,
 * and the walk ends early when it would take long: the band tells what there was.
 */
void likeness_play(const struct likeness *l, const struct likeness_limits *m, uint64_t hidden,
		   struct likeness_moves *ret);

#endif
