/* SPDX-License-Identifier: MIT */
/*
 * Jobs on threads, see grid.h. A job reads the trace file by itself, so memory does not grow with
 * its length, and jobs share nothing that is written but the number of the next one.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "eval/grid.h"

/* ---- the trace ---- */

static int read_walks(struct grid_trace *t, char *why)
{
	struct trace_reader *r;
	char too_much[TRACE_WHY];
	int e = trace_open(t->path, &r, why);

	if (e)
		return e;
	e = walks_add_trace(&t->w, r, 1, why);
	t->rows = trace_rows_read(r);
	trace_close(r);
	if (e == -EBADMSG) {
		t->cut = true;
		snprintf(t->why, sizeof(t->why), "%s", why);
		e = 0;
	}
	if (e == -EOVERFLOW) {
		snprintf(too_much, sizeof(too_much), "%s", why);
		snprintf(why, TRACE_WHY, "%.200s: %.200s", t->path, too_much);
	}
	if (!e && walks_seal(&t->w)) {
		snprintf(why, TRACE_WHY, "no memory");
		e = -ENOMEM;
	}
	return e;
}

static int mark_used(struct grid_trace *t)
{
	for (size_t i = 0; i < t->w.n; i++) {
		t->n_cpus = t->w.walk[i]->cpu + 1 > t->n_cpus ? t->w.walk[i]->cpu + 1 : t->n_cpus;
		t->unlisted_pages += t->w.walk[i]->direct_pages;
	}
	t->n_used = (uint32_t)t->w.n;
	t->used = calloc(t->n_cpus + 1, sizeof(*t->used));
	for (size_t i = 0; t->used && i < t->w.n; i++)
		t->used[t->w.walk[i]->cpu] = true;
	return t->used ? 0 : -ENOMEM;
}

/* Events for the floor: what lists can hold, in the order of the file, levels as what was freed. */
static int read_events(struct grid_trace *t, char *why)
{
	const struct trace_row *rows;
	struct trace_reader *r;
	size_t n;
	int e;

	if (t->rows > GRID_FLOOR_ROWS)
		return 0;
	t->events = calloc(t->rows + 1, sizeof(*t->events));
	e = t->events ? trace_open(t->path, &r, why) : -ENOMEM;
	if (e)
		return e;
	while ((e = trace_next(r, &rows, &n, why)) == 1)
		for (size_t i = 0; i < n && t->n_events < t->rows; i++)
			if (pcptune_rules_has_list(PCPTUNE_RULES_GX, rows[i].order))
				t->events[t->n_events++] = (struct oracle_event){
					rows[i].cpu,
					rows[i].blocks * (INT64_C(1) << rows[i].order)};
	for (size_t i = 0; i < t->w.n; i++)
		t->level_pages += t->w.walk[i]->level;
	trace_close(r);
	return e == -EBADMSG ? 0 : e;
}

int grid_trace_open(struct grid_trace *t, const char *path, char *why)
{
	int r;

	memset(t, 0, sizeof(*t));
	t->path = path;
	walks_init(&t->w);
	r = read_walks(t, why);
	if (!r && (r = mark_used(t)))
		snprintf(why, TRACE_WHY, "no memory");
	if (!r)
		r = read_events(t, why);
	if (r == -ENOMEM)
		snprintf(why, TRACE_WHY, "%.200s: no memory", path);
	if (r)
		grid_trace_close(t);
	return r;
}

void grid_trace_close(struct grid_trace *t)
{
	walks_free(&t->w);
	free(t->events);
	free(t->used);
	t->events = NULL;
	t->used = NULL;
}

/* ---- one job ---- */

struct grid {
	const struct grid_trace *t;
	uint64_t managed, budget;
	struct grid_job *jobs;
	size_t n;
	atomic_size_t next;
};

static struct closed_setup setup_of(const struct grid *g)
{
	return (struct closed_setup){.path = g->t->path,
				     .n_cpus = g->t->n_cpus,
				     .used = g->t->used,
				     .n_used = g->t->n_used,
				     .managed = g->managed,
				     .budget = g->budget};
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/*
 * high of each CPU by water-filling, each with `loss` pages more than the capacity it is to have in
 * effect; what would save nothing is shared evenly. false: the memory is too little.
 */
static bool split_highs(const struct grid *g, const struct grid_job *job, uint64_t loss,
			uint32_t *high)
{
	const struct walks *w = &g->t->w;
	uint64_t least = loss < POLICY_HIGH_LEAST ? POLICY_HIGH_LEAST - loss : 0;
	uint64_t *capacity, rest;
	const struct curve **curves;
	bool ok = false;

	if (job->memory < (loss + least) * w->n)
		return false;
	rest = job->memory - loss * w->n;
	curves = calloc(w->n + 1, sizeof(*curves));
	capacity = calloc(w->n + 1, sizeof(*capacity));
	for (size_t i = 0; curves && i < w->n; i++)
		curves[i] = &w->walk[i]->curve;
	if (curves && capacity)
		ok = !oracle_split(curves, w->n, least, rest, capacity);
	for (size_t i = 0; ok && i < w->n; i++)
		rest -= capacity[i];
	for (size_t i = 0; ok && i < w->n; i++) {
		uint64_t h = capacity[i] + loss + rest / w->n;

		high[w->walk[i]->cpu] = h < PCPTUNE_MAX_HIGH ? (uint32_t)h : PCPTUNE_MAX_HIGH;
	}
	free(curves);
	free(capacity);
	return ok;
}

/* Replays fixed values; keeps the result if it is the best so far. */
static void try_split(const struct grid *g, struct grid_job *job, const uint32_t *high)
{
	struct closed_setup s = setup_of(g);
	struct closed_result r;
	char why[TRACE_WHY];
	uint64_t moved;
	int e;

	s.high = high;
	s.batch = job->r.batch;
	s.scale_max = job->r.scale_max;
	s.rules = job->r.rules;
	e = closed_run(&s, &r, why);
	if (e && e != -EBADMSG)
		return;
	moved = r.alloc_zone + r.free_zone - g->t->unlisted_pages;
	if (!job->has_split || moved < job->split)
		job->split = moved;
	job->has_split = true;
}

/* Half of the mean refill and drain of the row, see pcptune_band_capacity(). */
static uint64_t mean_loss(const struct closed_result *r)
{
	uint64_t br = r->refills ? (r->alloc_zone - r->alloc_direct) / r->refills : 0;
	uint64_t d = r->drains ? (r->free_zone - r->free_direct) / r->drains : 0;

	return (br + d) / 2;
}

/*
 * The best fixed values: water-filling where lists lose a batch, or as much as the row's moves say
 * (batches that grow), or the same for every CPU; what moves least when it is replayed.
 */
static void run_split(const struct grid *g, struct grid_job *job)
{
	uint64_t batch = job->r.batch ? job->r.batch : 1, loss = mean_loss(&job->r);
	uint64_t same = job->memory / (g->t->n_used ? g->t->n_used : 1);
	uint32_t *high = calloc(g->t->n_cpus + 1, sizeof(*high));

	if (!high)
		return;
	if (split_highs(g, job, batch, high))
		try_split(g, job, high);
	if (loss > batch && split_highs(g, job, loss, high))
		try_split(g, job, high);
	for (uint32_t i = 0; i < g->t->n_cpus; i++)
		high[i] = same < PCPTUNE_MAX_HIGH ? (uint32_t)same : PCPTUNE_MAX_HIGH;
	if (same >= most(batch, POLICY_HIGH_LEAST))
		try_split(g, job, high);
	free(high);
}

/*
 * Rules that move high by themselves may go above the budget; a refill of large blocks is no
 * matter.
 */
static uint64_t memory_of(const struct grid *g, const struct closed_result *r)
{
	uint64_t used = r->high_peak < r->held_peak ? r->high_peak : r->held_peak;

	return g->budget ? most(g->budget, used) : most(r->high_peak, r->held_peak);
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static void run_job(const struct grid *g, struct grid_job *job)
{
	struct closed_setup s = setup_of(g);
	struct pcptune_band_traffic floor;

	s.module = job->module;
	s.params = job->params;
	job->error = closed_run(&s, &job->r, job->why);
	if (job->error == -EBADMSG)
		job->error = 0; /* known since the trace was opened */
	if (job->error)
		return;
	job->moved = job->r.alloc_zone + job->r.free_zone - g->t->unlisted_pages;
	job->memory = memory_of(g, &job->r);
	run_split(g, job);
	job->has_floor =
		g->t->events && !oracle_belady(g->t->events, g->t->n_events, g->t->n_cpus,
					       most(job->memory, job->r.held_peak), &floor);
	if (job->has_floor)
		job->floor = less(floor.refilled + floor.drained, g->t->level_pages);
}

static void *worker(void *cookie)
{
	struct grid *g = cookie;
	size_t i;

	while ((i = atomic_fetch_add(&g->next, 1)) < g->n)
		run_job(g, &g->jobs[i]);
	return NULL;
}

int grid_run(const struct grid_trace *t, uint64_t managed, uint64_t budget, struct grid_job *jobs,
	     size_t n, unsigned threads)
{
	struct grid g = {.t = t, .managed = managed, .budget = budget, .jobs = jobs, .n = n};
	pthread_t *thread = calloc(threads + 1, sizeof(*thread));
	unsigned started = 0;

	if (!thread)
		return -ENOMEM;
	while (started + 1 < threads && started + 1 < n &&
	       !pthread_create(&thread[started], NULL, worker, &g))
		started++;
	worker(&g);
	while (started)
		pthread_join(thread[--started], NULL);
	free(thread);
	return 0;
}
