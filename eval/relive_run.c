/* SPDX-License-Identifier: MIT */
/*
 * All jobs over all steps, on threads.
 *
 * Records are unpacked once, into a ring of blocks (relive_steps.c), and each job goes through the
 * blocks in order, at its own pace: some policies think a hundred times longer than others. A
 * thread that has nothing to do fills the next block when there is a free one, else takes the job
 * that is farthest behind, for one block. So the slowest job is never kept waiting by others, and
 * all threads work on the same few blocks, which their caches share.
 *
 * Jobs share nothing that is written, and each is with one thread at a time, so the result is the
 * same with any number of threads. `lock` guards who does what; it is not held while something is
 * done.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include "eval/relive_private.h"

#define THREADS_MAX 256u
#define RING	    4u

/* A job's way through the blocks. */
struct course {
	struct life life;
	uint64_t next; /* block */
	bool busy, over;
};

struct run {
	const struct past *past;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct steps steps;
	struct block ring[RING];
	uint64_t n_read; /* blocks so far */
	bool reading, ended;
	struct course *course;
	size_t n;
	int error;
};

/* ---- what a thread may do next; with the lock ---- */

/* A block that no job needs any more is free. */
static bool may_read(const struct run *run)
{
	if (run->reading || run->ended)
		return false;
	for (size_t i = 0; i < run->n; i++)
		if (!run->course[i].over && run->n_read - run->course[i].next >= RING)
			return false;
	return true;
}

static bool is_ready(const struct run *run, const struct course *c)
{
	return !c->busy && !c->over && (c->next < run->n_read || run->ended);
}

static struct course *last_of_all(struct run *run)
{
	struct course *last = NULL;

	for (size_t i = 0; i < run->n; i++) {
		struct course *c = &run->course[i];

		if (is_ready(run, c) && (!last || c->next < last->next))
			last = c;
	}
	return last;
}

static bool all_over(const struct run *run)
{
	for (size_t i = 0; i < run->n; i++)
		if (!run->course[i].over)
			return false;
	return run->ended;
}

/* ---- doing it; without the lock ---- */

static void read_block(struct run *run)
{
	struct block *b = &run->ring[run->n_read % RING];
	int e;

	run->reading = true;
	pthread_mutex_unlock(&run->lock);
	e = steps_read(&run->steps, b);
	pthread_mutex_lock(&run->lock);
	run->reading = false;
	run->error = e ? e : run->error;
	if (e || !b->n_steps)
		run->ended = true;
	else
		run->n_read++;
}

static int play_block(struct scratch *x, struct life *l, const struct block *b)
{
	int e = 0;

	for (size_t i = 0; !e && i < b->n_steps && !l->job->error; i++)
		e = life_step(x, l, b, &b->step[i]);
	return e;
}

static void go_on(struct run *run, struct scratch *x, struct course *c)
{
	const struct block *b = c->next < run->n_read ? &run->ring[c->next % RING] : NULL;
	int e = 0;

	c->busy = true;
	pthread_mutex_unlock(&run->lock);
	if (b)
		e = play_block(x, &c->life, b);
	else if (!c->life.job->error)
		life_split(run->past, &c->life);
	pthread_mutex_lock(&run->lock);
	c->busy = false;
	c->next += b != NULL;
	c->over = !b || c->life.job->error;
	run->error = e ? e : run->error;
}

static void *work(void *cookie)
{
	struct run *run = cookie;
	struct scratch x;
	struct course *c;
	int e = scratch_init(&x, run->past);

	pthread_mutex_lock(&run->lock);
	run->error = e ? e : run->error;
	while (!run->error && !all_over(run)) {
		if (may_read(run))
			read_block(run);
		else if ((c = last_of_all(run)))
			go_on(run, &x, c);
		else {
			pthread_cond_wait(&run->changed, &run->lock);
			continue;
		}
		pthread_cond_broadcast(&run->changed);
	}
	pthread_cond_broadcast(&run->changed);
	pthread_mutex_unlock(&run->lock);
	scratch_free(&x);
	return NULL;
}

/* ---- begin and end ---- */

static int run_open(struct run *run, struct relive_job *jobs, size_t n)
{
	int e = steps_open(&run->steps, run->past);

	run->course = calloc(n + 1, sizeof(*run->course));
	if (!run->course)
		return -ENOMEM;
	for (size_t i = 0; !e && i < n; i++)
		if (!jobs[i].error)
			e = life_new(run->past, &run->course[run->n++].life, &jobs[i]);
	for (size_t i = 0; i < run->n; i++)
		run->course[i].over = run->course[i].life.job->error != 0;
	return e;
}

static void run_close(struct run *run)
{
	for (size_t i = 0; i < run->n; i++) {
		life_end(&run->course[i].life);
		free(run->course[i].life.cpu);
	}
	for (size_t i = 0; i < RING; i++)
		block_free(&run->ring[i]);
	steps_close(&run->steps);
	free(run->course);
	pthread_cond_destroy(&run->changed);
	pthread_mutex_destroy(&run->lock);
}

static void collect(struct run *run, struct relive_log *log)
{
	struct steps *s = &run->steps;

	for (size_t i = 0; i < run->n; i++) {
		struct life *l = &run->course[i].life;

		if (!l->job->error)
			relive_add(&l->job->sums, &l->sums);
	}
	s->log.covered_ms = relive_less(s->end_us, s->begin_us) / 1000;
	relive_log_add(log, &s->log);
}

int relive_run(const struct past *past, struct relive_job *jobs, size_t n, struct relive_log *log)
{
	struct run run = {.past = past};
	pthread_t thread[THREADS_MAX];
	size_t threads = past->o->threads < THREADS_MAX ? past->o->threads : THREADS_MAX;
	size_t started = 0;
	int e;

	pthread_mutex_init(&run.lock, NULL);
	pthread_cond_init(&run.changed, NULL);
	e = run_open(&run, jobs, n);
	while (!e && started + 1 < threads && started < n &&
	       !pthread_create(&thread[started], NULL, work, &run))
		started++;
	if (!e)
		work(&run);
	while (started)
		pthread_join(thread[--started], NULL);
	e = e ? e : run.error;
	if (!e)
		collect(&run, log);
	run_close(&run);
	return e;
}
