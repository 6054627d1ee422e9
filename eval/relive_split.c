/* SPDX-License-Identifier: MIT */
/*
 * The best static split for a job over records, as for traces (grid.h): the least that any of three
 * moves, each with the memory that the job had.
 */
#include <stdlib.h>
#include "eval/oracle.h"
#include "eval/relive_private.h"

static uint64_t split_pages(const struct past *past, const uint64_t *capacity)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < past->w.n; i++)
		pages += walk_pages(past->w.walk[i], capacity[i] ? capacity[i] : 1, 0);
	return pages;
}

/* The least capacity that a CPU can have. */
static uint64_t least_capacity(uint64_t loss)
{
	return loss < POLICY_HIGH_LEAST ? POLICY_HIGH_LEAST - loss : 0;
}

/* Water-filling where each CPU loses so many pages to batches; UINT64_MAX: too little memory. */
static uint64_t filled(const struct past *past, uint64_t memory, uint64_t loss)
{
	const struct walks *w = &past->w;
	const struct curve **curves;
	uint64_t least = least_capacity(loss), *capacity, pages = UINT64_MAX;

	if (memory < (loss + least) * w->n)
		return UINT64_MAX;
	curves = calloc(w->n + 1, sizeof(*curves));
	capacity = calloc(w->n + 1, sizeof(*capacity));
	for (size_t i = 0; curves && i < w->n; i++)
		curves[i] = &w->walk[i]->curve;
	if (curves && capacity &&
	    !oracle_split(curves, w->n, least, memory - loss * w->n, capacity))
		pages = split_pages(past, capacity);
	free(curves);
	free(capacity);
	return pages;
}

static uint64_t all_the_same(const struct past *past, uint64_t memory, uint64_t loss)
{
	uint64_t each = memory / past->w.n, pages = 0;

	if (each <= loss)
		return UINT64_MAX;
	for (size_t i = 0; i < past->w.n; i++)
		pages += walk_pages(past->w.walk[i], each - loss, 0);
	return pages;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* With the loss of the row's batches, or of its moves, or the same for every CPU. */
void life_split(const struct past *past, struct life *l)
{
	uint64_t batch = 0, loss, best;
	uint32_t n = 0;

	l->sums.memory = past->shape.budget_pages && past->o->budget ? past->o->budget
			 : l->high_peak > l->sums.held_peak	     ? l->high_peak
								     : l->sums.held_peak;
	for (uint32_t i = 0; i < past->n && !n; i++)
		if (past->at[i]) {
			batch = l->cpu[i].m.batch;
			n = i + 1;
		}
	loss = l->sums.lock_takes ? l->sums.moved / l->sums.lock_takes : batch;
	best = min_u64(filled(past, l->sums.memory, batch),
		       all_the_same(past, l->sums.memory, batch));
	if (loss > batch)
		best = min_u64(best, filled(past, l->sums.memory, loss));
	if (best == UINT64_MAX)
		return;
	l->sums.split = best;
	l->sums.n_split = 1;
}
