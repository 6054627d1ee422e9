/* SPDX-License-Identifier: MIT */
/*
 * Many runs over one trace: policies with their parameters, on threads, each beside what the
 * oracles (oracle.h) could have done with the same memory.
 *
 * "The same memory" is the budget where there is one, and else the largest sum of high that the run
 * itself had, or the most pages that it held if that is more.
 *
 * Of a trace that begins with levels: what lay there came by no move of the trace, and where a row
 * has no room for it, it never was there. The floor takes it as freed first and then counts off one
 * move for each page, used later or not. So nobody can do with less, and with at most one move more
 * for each of those pages somebody can.
 */
#ifndef PCPTUNE_EVAL_GRID_H
#define PCPTUNE_EVAL_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "eval/closed.h"
#include "eval/oracle.h"
#include "eval/walks.h"

#define GRID_FLOOR_ROWS \
	2000000u /* the floor takes 140 bytes a row and run: not for longer traces */

struct grid_trace {
	const char *path;
	struct walks w;
	struct oracle_event *events; /* NULL: the trace is too long for the floor */
	size_t n_events;
	uint64_t rows;
	uint64_t unlisted_pages; /* of orders that are on no list, both ways */
	uint64_t level_pages;	 /* on all lists at the beginning */
	bool *used;
	uint32_t n_cpus, n_used;
	bool cut; /* the file is damaged or cut; why: where, and what is lost */
	char why[TRACE_WHY];
};

/* path must live as long as the trace. 0, or an error with why; a cut trace is no error. */
int grid_trace_open(struct grid_trace *t, const char *path, char *why);
void grid_trace_close(struct grid_trace *t);

struct grid_job {
	struct policy_module *module;
	int64_t params[POLICY_MAX_PARAMS];
	/* out */
	int error;
	char why[TRACE_WHY];
	struct closed_result r;
	uint64_t memory; /* what the oracles got, pages */
	bool has_split, has_floor;
	uint64_t moved, split, floor; /* pages both ways, without unlisted_pages */
};

/* Runs all jobs on so many threads (at least 1). 0, or -errno when no thread could be had. */
int grid_run(const struct grid_trace *t, uint64_t managed, uint64_t budget, struct grid_job *jobs,
	     size_t n, unsigned threads);

#endif
