/* SPDX-License-Identifier: MIT */
/*
 * The loop over records, see relive.h.
 *
 * One pass over the records of a target makes the walks (walks.h), from which the model of batches
 * and the best static split come; a second one, on each thread by itself, unpacks them again and
 * plays each step for all jobs of that thread. So memory is that of one step and of the policies'
 * states, whatever the length of the log, and threads share nothing that is written.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/relive_private.h"

#define THREADS_MAX  256u
#define PERIOD_LEAST 100000u	 /* us */
#define PERIOD_MOST  3600000000u /* us */
#define PERIOD_LOOK  1000u	 /* records that tell how often they were taken */
#define LEAST_HIGH   4u		 /* pages a CPU, below which no policy can work */

/* ---- gathering steps ---- */

static uint64_t step_begin(const struct worker *w, uint64_t *ret_end)
{
	uint64_t begin = UINT64_MAX, end = 0;

	for (size_t i = 0; i < w->n; i++) {
		uint64_t from = relive_less(w->r[i].time_us, w->r[i].r.dt_us);

		begin = from < begin ? from : begin;
		end = w->r[i].time_us > end ? w->r[i].time_us : end;
	}
	*ret_end = end;
	return begin;
}

static void measure(struct worker *w)
{
	struct relive_sums *m = &w->log.measured;

	for (size_t i = 0; i < w->n; i++) {
		const struct log_record *r = &w->r[i];

		m->alloc_zone += r->r.refilled + r->alloc_direct;
		m->free_zone += r->r.drained + r->free_direct;
		m->moved += r->r.refilled + r->r.drained;
		m->lock_takes += r->lock_taken;
		m->lock_contended += r->lock_contended;
		m->wait_ns += r->lock_wait_ns;
		m->free_high += r->free_high;
		m->held_page_ms += (uint64_t)r->count * (r->r.dt_us / 1000);
		w->log.alloc_pages += r->alloc_pages;
		w->log.free_pages += r->free_pages;
		w->log.cpu_us += r->r.dt_us;
		w->log.collapsed += r->r.band.collapsed;
		w->log.moved_high += r->high_least != r->high_most;
	}
	w->log.steps++;
}

static void flush(struct worker *w)
{
	uint64_t end, begin, seq = 0;

	if (!w->n)
		return;
	begin = step_begin(w, &end);
	for (size_t i = 0; i < w->n; i++)
		seq = w->r[i].seq > seq ? w->r[i].seq : seq;
	for (size_t i = 0; i < w->n_lives; i++)
		if (!w->lives[i].job->error)
			life_step(w, &w->lives[i], begin, end, seq);
	if (w->first)
		measure(w);
	w->begin_us = w->begin_us && w->begin_us < begin ? w->begin_us : begin;
	w->time_us = end > w->time_us ? end : w->time_us;
	for (size_t i = 0; i < w->n; i++)
		w->slot[w->r[i].r.index] = 0;
	w->n = 0;
}

static int room(struct worker *w)
{
	size_t more = w->room ? 2 * w->room : 64;
	struct log_record *r;
	struct played *p;

	if (w->n < w->room)
		return 0;
	r = reallocarray(w->r, more, sizeof(*r));
	w->r = r ? r : w->r;
	p = reallocarray(w->played, more, sizeof(*p));
	w->played = p ? p : w->played;
	if (!r || !p)
		return -ENOMEM;
	w->room = more;
	return 0;
}

/* Into the step at hand: merged with the one of its CPU there, or after it. */
static int gather(struct worker *w, const struct log_record *r)
{
	uint32_t i = r->r.index;

	if (i >= w->past->n || !w->past->at[i] || !r->r.band.n)
		return 0;
	if (w->slot[i] && log_record_merge(&w->r[w->slot[i] - 1], r))
		return 0;
	if (room(w))
		return -ENOMEM;
	w->r[w->n] = *r;
	w->slot[i] = (uint32_t)++w->n;
	return 0;
}

static int on_row(const struct log_records_row *row, const uint8_t *data, size_t len, void *cookie)
{
	struct worker *w = cookie;
	struct records_reader rd;
	struct log_record r;
	int e = 0;

	if (row->level)
		flush(w);
	records_begin(&rd, data, len);
	while (!e && (e = records_next(&rd, &r)) == 1) {
		uint64_t window = row->level ? 0 : r.time_us / w->past->period_us;

		if (window > w->window)
			flush(w);
		w->window = window > w->window ? window : w->window;
		e = gather(w, &r);
	}
	if (row->level)
		flush(w);
	w->log.damaged += e == -EBADMSG;
	w->error = e == -ENOMEM ? e : 0;
	return w->error != 0;
}

/* ---- workers ---- */

static void worker_free(struct worker *w)
{
	for (size_t i = 0; i < w->n_lives; i++) {
		life_end(&w->lives[i]);
		free(w->lives[i].cpu);
	}
	free(w->lives);
	free(w->r);
	free(w->played);
	free(w->slot);
	free(w->cpus);
	free(w->active);
	free(w->given);
	if (!w->first)
		logstore_close(w->ls);
}

/* The k-th of n_workers takes every n_workers-th job. */
static int worker_new(struct worker *w, struct past *past, size_t k, size_t n_workers)
{
	size_t n = past->n;

	*w = (struct worker){.past = past, .first = !k};
	w->lives = calloc(past->n_jobs / n_workers + 1, sizeof(*w->lives));
	w->slot = calloc(n + 1, sizeof(*w->slot));
	w->cpus = calloc(n + 1, sizeof(*w->cpus));
	w->active = calloc(n + 1, sizeof(*w->active));
	w->given = calloc(n + 1, sizeof(*w->given));
	if (!w->lives || !w->slot || !w->cpus || !w->active || !w->given)
		return -ENOMEM;
	for (size_t i = k; i < past->n_jobs; i += n_workers)
		if (!past->jobs[i].error && life_new(past, &w->lives[w->n_lives++], &past->jobs[i]))
			return -ENOMEM;
	if (w->first) {
		w->ls = past->ls;
		return 0;
	}
	return logstore_open_ro(logstore_path(past->ls), &w->ls, w->why);
}

static void *work(void *cookie)
{
	struct worker *w = cookie;
	int r = logstore_records(w->ls, w->past->t->id, 0, on_row, w);

	if (r < 0 && !w->error) {
		w->error = r;
		snprintf(w->why, sizeof(w->why), "%s", logstore_error(w->ls));
	}
	if (w->error)
		return NULL;
	flush(w);
	for (size_t i = 0; i < w->n_lives; i++)
		if (!w->lives[i].job->error)
			life_split(w->past, &w->lives[i]);
	return NULL;
}

static void collect(struct worker *w, struct relive_log *log)
{
	for (size_t i = 0; i < w->n_lives; i++)
		if (!w->lives[i].job->error)
			relive_add(&w->lives[i].job->sums, &w->lives[i].sums);
	if (!w->first)
		return;
	w->log.covered_ms = relive_less(w->time_us, w->begin_us) / 1000;
	relive_log_add(log, &w->log);
}

static int run_workers(struct past *past, struct relive_log *log, char *why)
{
	size_t n = past->o->threads < THREADS_MAX ? past->o->threads : THREADS_MAX, made = 0;
	struct worker *w;
	pthread_t thread[THREADS_MAX];
	bool started[THREADS_MAX] = {false};
	int e = 0;

	n = n > past->n_jobs ? past->n_jobs : n;
	n = n ? n : 1;
	w = calloc(n, sizeof(*w));
	if (!w)
		return -ENOMEM;
	for (; !e && made < n; made++)
		e = worker_new(&w[made], past, made, n);
	if (e)
		snprintf(why, RELIVE_WHY, "%s", w[made - 1].why);
	for (size_t i = 1; !e && i < n; i++)
		started[i] = !pthread_create(&thread[i], NULL, work, &w[i]);
	for (size_t i = 0; !e && i < n; i++)
		if (!started[i])
			work(&w[i]);
	for (size_t i = 1; i < n; i++)
		if (started[i])
			pthread_join(thread[i], NULL);
	for (size_t i = 0; !e && i < n; i++) {
		e = w[i].error;
		snprintf(why, RELIVE_WHY, "%s", w[i].why);
	}
	for (size_t i = 0; i < made; i++) {
		if (!e)
			collect(&w[i], log);
		worker_free(&w[i]);
	}
	free(w);
	return e;
}

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

struct period {
	uint64_t dt_us, n;
};

static int on_period(const struct log_records_row *row, const uint8_t *data, size_t len,
		     void *cookie)
{
	struct period *p = cookie;
	struct records_reader rd;
	struct log_record r;

	records_begin(&rd, data, len);
	while (!row->level && p->n < PERIOD_LOOK && records_next(&rd, &r) == 1) {
		p->dt_us += r.r.dt_us;
		p->n++;
	}
	return p->n >= PERIOD_LOOK;
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

static int count_decisions(const struct past *past, struct relive_sums *sums)
{
	struct log_filter f = {.target = past->t->id, .cpu = -1};
	struct decided c = {past, sums, calloc(past->n + (size_t)1, 1)};
	int r = c.direction ? logstore_decisions(past->ls, &f, on_decision, &c) : -ENOMEM;

	free(c.direction);
	return r;
}

static int curves_of(struct past *past)
{
	int r = 0;

	for (size_t i = 0; !r && i < past->w.n; i++) {
		struct walk *k = past->w.walk[i];

		past->at[k->zone * past->t->shape.n_cpus + k->cpu] = k;
		r = curve_from_band(&k->curve, k->band);
	}
	return r ? r : walks_seal(&past->w);
}

static int open_past(struct past *past, struct relive_log *log, char *why)
{
	struct period p = {0, 0};
	struct chunk_totals all = {0};
	uint64_t pages = 0;
	int r = walks_add_records(&past->w, past->ls, past->t, 0, 0, why);

	if (!r)
		r = logstore_sample_totals(past->ls, past->t->id, &all);
	if (!r)
		r = logstore_records(past->ls, past->t->id, 0, on_period, &p);
	if (r > 0)
		r = 0;
	if (!r)
		r = logstore_assignments(past->ls, past->t->id, on_assignment, past);
	if (!r && past->n_as)
		qsort(past->as, past->n_as, sizeof(*past->as), by_seq);
	past->at = calloc(past->n + (size_t)1, sizeof(struct walk *));
	if (!r)
		r = past->at ? curves_of(past) : -ENOMEM;
	past->shape = past->n_as ? past->as[0].shape : past->t->shape;
	past->shape.budget_pages = past->o->budget ? past->o->budget : past->shape.budget_pages;
	past->period_us = p.n ? p.dt_us / p.n : PERIOD_MOST;
	past->period_us = past->period_us < PERIOD_LEAST  ? PERIOD_LEAST
			  : past->period_us > PERIOD_MOST ? PERIOD_MOST
							  : past->period_us;
	for (size_t i = 0; i < past->w.n; i++)
		pages += past->w.walk[i]->alloc_pages + past->w.walk[i]->free_pages +
			 past->w.walk[i]->direct_pages;
	log->unrecorded = relive_less(all.alloc_pages + all.free_pages, pages);
	log->measured.held_peak = all.held_peak;
	log->bare_targets = !past->w.records && all.alloc_pages + all.free_pages;
	return r;
}

static int run_past(struct past *past, struct relive_log *log, char *why)
{
	uint64_t least = LEAST_HIGH * (uint64_t)past->w.n;

	if (!past->w.records)
		return 0;
	log->targets = 1;
	log->cpus = past->w.n;
	log->records = past->w.records;
	log->holes = past->w.gaps;
	log->least_budget = least;
	if (past->o->budget && past->o->budget < least) {
		snprintf(why, RELIVE_WHY,
			 "%llu: too little; target %lld needs at least %u pages for each of %zu "
			 "CPUs, %llu",
			 (unsigned long long)past->o->budget, (long long)past->t->id, LEAST_HIGH,
			 past->w.n, (unsigned long long)least);
		return -ERANGE;
	}
	if (count_decisions(past, &log->measured))
		return -EIO;
	return run_workers(past, log, why);
}

int relive_target(struct logstore *ls, const struct log_target *t, const struct relive_options *o,
		  struct relive_job *jobs, size_t n, struct relive_log *log, char *why)
{
	struct past past = {.ls = ls, .t = t, .o = o, .jobs = jobs, .n_jobs = n};
	struct relive_log mine = {0};
	int r;

	why[0] = '\0';
	past.n = t->shape.n_zones * t->shape.n_cpus;
	walks_init(&past.w);
	r = open_past(&past, &mine, why);
	if (!r)
		r = run_past(&past, &mine, why);
	if (!r)
		relive_log_add(log, &mine);
	else if (!why[0])
		snprintf(why, RELIVE_WHY, "%s", r == -ENOMEM ? "no memory" : logstore_error(ls));
	walks_free(&past.w);
	free(past.at);
	free(past.as);
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
