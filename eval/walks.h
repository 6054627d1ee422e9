/* SPDX-License-Identifier: MIT */
/*
 * Walks: the net position of the lists of each CPU, from a trace or from the samples of a log, and
 * what another high would have cost them.
 *
 * A trace gives the walk itself. So do the records of a log, reduced to its swings: where there are
 * any, nothing else of the log is asked. Samples give only what was allocated and freed in each
 * interval, so the walk is known at their ends: it can not cost less than the walk through those
 * points, and what it can cost at most follows from how far it may have strayed in between
 * (walk_most()).
 */
#ifndef PCPTUNE_EVAL_WALKS_H
#define PCPTUNE_EVAL_WALKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "eval/curve.h"
#include "lib/logstore.h"
#include "lib/trace.h"

struct growth;
struct likeness_limits;

#define WALK_STRAYS 26u

/* Intervals by the pages that they may have strayed, in octaves. */
struct walk_stray {
	uint64_t intervals, most; /* how many, and the largest of them */
	uint64_t gross;		  /* pages allocated and freed in them */
};

struct walk {
	uint32_t zone, cpu;
	int64_t position;
	uint64_t level;	  /* pages on the lists at the beginning */
	bool level_known; /* by a trace that says so; else lists began with anything */
	struct curve curve;
	uint64_t alloc_pages, free_pages; /* through lists */
	uint64_t direct_pages; /* past them: orders without a list, lists that were held */
	struct walk_stray stray[WALK_STRAYS];
	struct pcptune_band *band; /* of records; NULL: the curve has it */
	int64_t end;		   /* where the last record said that it ended */
	uint64_t breaks;	   /* holes between records: what lists held there is not known */
	uint32_t high_least, high_most, scale_max, rules; /* over the records; the last */
	bool steady; /* of records, none missing, at one high: what was measured is of it */
	struct growth *growth; /* of records: what batches that grow take (eval/effect.h) */
	/* by a log: what was measured, and the settings at the end; high_now 0: not known */
	uint32_t high_now, batch;
	uint64_t refilled, refills, drained, drains;
};

struct walks {
	struct walk **walk; /* in order of zone and CPU once sealed */
	size_t n;
	bool from_log, from_records;
	bool levels_known;
	uint64_t from_ns, to_ns; /* first and last event, or the intervals' ends */
	/* of a log; lost: intervals of a CPU that could not be read */
	uint64_t samples, records, gaps, lost;
	uint64_t backwards; /* of a trace: rows earlier than the one before */
};

#define WALKS_WHY TRACE_WHY

void walk_free(struct walk *k);
void walks_init(struct walks *w);
void walks_free(struct walks *w);
/* Adds all rows, in their order. batch: for what a trace does not say. */
int walks_add_trace(struct walks *w, struct trace_reader *t, uint32_t batch, char *why);
/* Adds the samples of a target between two wall clock times (0, UINT64_MAX: all). */
int walks_add_log(struct walks *w, struct logstore *ls, const struct log_target *t,
		  uint64_t from_us, uint64_t to_us, char *why);
/*
 * As walks_add_log() begins: the records of the target alone, which may be none. One that does not
 * meet the one before counts as a gap, and the walk goes on from where it was.
 */
int walks_add_records(struct walks *w, struct logstore *ls, const struct log_target *t,
		      uint64_t from_us, uint64_t to_us, char *why);
/* The same from a copy of all of them. 0 or -ENOMEM. */
int walks_add_copy(struct walks *w, const struct log_copy *copy, const struct log_target *t);
/* Pages both ways with lists of so many pages that begin with `level`. */
uint64_t walk_pages(const struct walk *w, uint64_t capacity, uint64_t level);
/* From the least position to the most. */
uint64_t walk_range(const struct walk *w);
/* Ends the gathering; needed before questions. 0 or -ENOMEM. */
int walks_seal(struct walks *w);
/* Some answer was not worked out, for lack of memory: none of them is to be believed. */
bool walks_failed(const struct walks *w);

/* ---- what if ---- */

struct whatif {
	uint64_t high;
	uint64_t pages; /* both ways, lists that begin empty, or with the level that is known */
	uint64_t pages_least; /* the less of lists that begin empty and full, or that */
	uint64_t pages_most;  /* what it may have been at most, by what is known */
	double locks;	      /* takes of the zone lock */
};

/* With this high, and batch and rules as they are. */
void walk_whatif(const struct walk *w, uint64_t high, struct whatif *ret);
/* With these limits. Without records only high and batch count. */
void walk_whatif_at(const struct walk *w, const struct likeness_limits *m, struct whatif *ret);
/* Adds b to a; high is kept. */
void whatif_add(struct whatif *a, const struct whatif *b);
/*
 * The knee of a falling curve: the point that lies farthest below the line from its first to its
 * last point, with high on a logarithmic axis. n: none (nothing falls).
 */
size_t whatif_knee(const struct whatif *points, size_t n);

#endif
