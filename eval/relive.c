/* SPDX-License-Identifier: MIT */
/*
 * The loop over records, see relive.h.
 *
 * What the log has of a target is read at one moment, so that a log that is being written does not
 * change under way; its records are copied (logstore.h). One pass over them makes the walks
 * (walks.h), from which the model of batches and the best static split come; a second one
 * (relive_run.c) unpacks them again, a few steps at a time, and plays each step for all jobs. So
 * memory is that of a few steps and of the policies' states, whatever the length of the log.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/relive_private.h"

#define PERIOD_LEAST 100000u	 /* us */
#define PERIOD_MOST  3600000000u /* us */
#define PERIOD_LOOK  1000u	 /* records that tell how often they were taken */

/* ---- what the log says of a target ---- */

static int on_assignment(const struct log_assignment *a, void *cookie)
{
	struct past *past = cookie;
	struct log_assignment *grown;

	if (!strcmp(a->policy, "operator"))
		return 0;
	grown = reallocarray(past->as, past->n_as + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	past->as = grown;
	past->as[past->n_as++] = *a;
	return 0;
}

static int by_seq(const void *pa, const void *pb)
{
	const struct log_assignment *a = pa, *b = pb;

	if (a->seq_first != b->seq_first)
		return a->seq_first < b->seq_first ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

/* How often records were taken that are not merged. */
static uint64_t find_period(const struct log_copy *copy)
{
	uint64_t dt_us = 0, n = 0, period;
	struct log_records_row row;
	struct records_reader rd;
	struct log_record r;
	const uint8_t *data;
	size_t at = 0, len;

	while (n < PERIOD_LOOK && log_copy_next(copy, &at, &row, &data, &len)) {
		records_begin(&rd, data, len);
		while (!row.level && n < PERIOD_LOOK && records_next(&rd, &r) == 1) {
			dt_us += r.r.dt_us;
			n++;
		}
	}
	period = n ? dt_us / n : PERIOD_MOST;
	return period < PERIOD_LEAST ? PERIOD_LEAST : period > PERIOD_MOST ? PERIOD_MOST : period;
}

/* Decisions that were applied, or would have been, and how often high turned. */
struct decided {
	const struct past *past;
	struct relive_sums *sums;
	int8_t *direction;
};

static int on_decision(const struct log_decision *d, const struct log_target *t,
		       const struct log_assignment *a, void *cookie)
{
	struct decided *c = cookie;
	uint64_t i = (uint64_t)d->zone * c->past->t->shape.n_cpus + d->cpu;
	int direction = (d->clamped.high > d->old.high) - (d->clamped.high < d->old.high);

	(void)t;
	(void)a;
	c->sums->decisions++;
	if (i >= c->past->n || !direction)
		return 0;
	c->sums->turns += c->direction[i] && c->direction[i] != direction;
	c->direction[i] = (int8_t)direction;
	return 0;
}

static int count_decisions(const struct past *past, struct logstore *ls, struct relive_sums *sums)
{
	struct log_filter f = {.target = past->t->id, .cpu = -1};
	struct decided c = {past, sums, calloc(past->n + (size_t)1, 1)};
	int r = c.direction ? logstore_decisions(ls, &f, on_decision, &c) : -ENOMEM;

	free(c.direction);
	return r;
}

/* All that is read from the log. */
static int read_past(struct past *past, struct logstore *ls, struct relive_log *log,
		     struct chunk_totals *ret)
{
	int r = logstore_snapshot(ls);

	if (!r)
		r = logstore_records_copy(ls, past->t->id, &past->copy);
	if (!r)
		r = logstore_sample_totals(ls, past->t->id, ret);
	if (!r)
		r = logstore_assignments(ls, past->t->id, on_assignment, past);
	if (!r)
		r = count_decisions(past, ls, &log->measured);
	logstore_snapshot_end(ls);
	return r;
}

static int curves_of(struct past *past)
{
	size_t n = past->n + (size_t)1;
	int r = 0;

	past->at = calloc(n, sizeof(struct walk *));
	if (!past->at)
		return -ENOMEM;
	for (size_t i = 0; !r && i < past->w.n; i++) {
		struct walk *k = past->w.walk[i];
		uint32_t at = k->zone * past->t->shape.n_cpus + k->cpu;

		past->at[at] = k;
		r = curve_from_band(&k->curve, k->band);
	}
	return r ? r : walks_seal(&past->w);
}

static void close_past(struct past *past)
{
	walks_free(&past->w);
	log_copy_free(past->copy);
	free(past->at);
	free(past->as);
}

static uint64_t walked_pages(const struct walks *w)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < w->n; i++)
		pages +=
			w->walk[i]->alloc_pages + w->walk[i]->free_pages + w->walk[i]->direct_pages;
	return pages;
}

static int open_past(struct past *past, struct logstore *ls, struct relive_log *log)
{
	struct chunk_totals all = {0};
	int r = read_past(past, ls, log, &all);

	if (!r)
		r = walks_add_copy(&past->w, past->copy, past->t);
	if (r)
		return r;
	if (past->n_as)
		qsort(past->as, past->n_as, sizeof(*past->as), by_seq);
	for (size_t i = 0; past->o->on_recorded && i < past->n_as; i++)
		past->o->on_recorded(past->o->cookie, past->as[i].policy);
	r = curves_of(past);
	past->shape = past->n_as ? past->as[0].shape : past->t->shape;
	past->shape.budget_pages = past->o->budget ? past->o->budget : past->shape.budget_pages;
	past->period_us = find_period(past->copy);
	log->unrecorded = relive_less(all.alloc_pages + all.free_pages, walked_pages(&past->w));
	log->measured.held_peak = all.held_peak;
	log->bare_targets = !past->w.records && all.alloc_pages + all.free_pages;
	return r;
}

static int run_past(struct past *past, struct relive_job *jobs, size_t n, struct relive_log *log,
		    char *why)
{
	uint64_t least = POLICY_HIGH_LEAST * (uint64_t)past->w.n;
	int r;

	if (!past->w.records) {
		log->measured.decisions = log->measured.turns = 0;
		return 0;
	}
	log->targets = 1;
	log->cpus = past->w.n;
	log->records = past->w.records;
	log->holes = past->w.gaps;
	log->least_budget = least;
	if (past->o->budget && past->o->budget < least) {
		snprintf(why, RELIVE_WHY,
			 "%llu: too little; target %lld needs at least %u pages for each of %zu "
			 "CPUs, %llu",
			 (unsigned long long)past->o->budget, (long long)past->t->id,
			 POLICY_HIGH_LEAST, past->w.n, (unsigned long long)least);
		return -ERANGE;
	}
	r = relive_run(past, jobs, n, log);
	return !r && walks_failed(&past->w) ? -ENOMEM : r;
}

int relive_target(struct logstore *ls, const struct log_target *t, const struct relive_options *o,
		  struct relive_job *jobs, size_t n, struct relive_log *log, char *why)
{
	struct past past = {.t = t, .o = o};
	struct relive_log mine = {0};
	int r;

	why[0] = '\0';
	past.n = t->shape.n_zones * t->shape.n_cpus;
	walks_init(&past.w);
	r = open_past(&past, ls, &mine);
	if (!r)
		r = run_past(&past, jobs, n, &mine, why);
	if (!r)
		relive_log_add(log, &mine);
	else if (!why[0])
		snprintf(why, RELIVE_WHY, "%s", r == -ENOMEM ? "no memory" : logstore_error(ls));
	close_past(&past);
	return r;
}

/* ---- sums ---- */

void relive_add(struct relive_sums *a, const struct relive_sums *b)
{
	a->alloc_zone += b->alloc_zone;
	a->free_zone += b->free_zone;
	a->moved += b->moved;
	a->lock_takes += b->lock_takes;
	a->lock_contended += b->lock_contended;
	a->wait_ns += b->wait_ns;
	a->free_high += b->free_high;
	a->held_page_ms += b->held_page_ms;
	a->held_peak = a->held_peak > b->held_peak ? a->held_peak : b->held_peak;
	a->decisions += b->decisions;
	a->turns += b->turns;
	a->breaches += b->breaches;
	a->memory += b->memory;
	a->split += b->split;
	a->n_split += b->n_split;
	a->grown += b->grown;
	a->orders += b->orders;
}

void relive_log_add(struct relive_log *a, const struct relive_log *b)
{
	a->targets += b->targets;
	a->cpus += b->cpus;
	a->records += b->records;
	a->steps += b->steps;
	a->covered_ms += b->covered_ms;
	a->cpu_us += b->cpu_us;
	a->alloc_pages += b->alloc_pages;
	a->free_pages += b->free_pages;
	relive_add(&a->measured, &b->measured);
	a->holes += b->holes;
	a->moved_high += b->moved_high;
	a->collapsed += b->collapsed;
	a->unrecorded += b->unrecorded;
	a->damaged += b->damaged;
	a->bare_targets += b->bare_targets;
	a->least_budget = a->least_budget > b->least_budget ? a->least_budget : b->least_budget;
}
