/* SPDX-License-Identifier: MIT */
/*
 * Walks from the records of a log: those of a CPU are merged into one, as if it had been one
 * record.
 *
 * Where one does not begin where the one before ended, something is missing. The walk is carried on
 * from where it was, so that the hole is no swing, and counted: what the lists held there is not
 * known, and traffic may differ by what they can hold at most.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/walks.h"

struct records_cookie {
	struct walks *w;
	struct walk **at; /* by index of the sample */
	uint32_t n, n_cpus;
	uint64_t from_us, to_us;
	int error;
};

static struct walk *new_walk(struct records_cookie *c, uint32_t index, const struct log_record *r)
{
	struct walks *w = c->w;
	struct walk **grown = reallocarray(w->walk, w->n + 1, sizeof(*grown));
	struct walk *k = grown ? calloc(1, sizeof(*k)) : NULL;

	w->walk = grown ? grown : w->walk;
	if (!k)
		return NULL;
	k->band = calloc(1, sizeof(*k->band));
	if (!k->band) {
		free(k);
		return NULL;
	}
	curve_init(&k->curve);
	k->zone = index / c->n_cpus;
	k->cpu = index % c->n_cpus;
	k->high_least = r->high_least;
	k->high_most = r->high_most;
	c->at[index] = w->walk[w->n++] = k;
	return k;
}

/* The swings of b behind those of a, from where a is. */
static void carry_on(struct pcptune_band *a, const struct pcptune_band *b)
{
	struct pcptune_band moved = *b;
	int64_t by = pcptune_band_now(a) - b->start;

	/* of a damaged log: positions are to stay where they can be computed with */
	if (pcptune_band_range(pcptune_band_now(a), 0) > (uint64_t)RECORDS_POSITION_MAX)
		by = 0;
	moved.start += by;
	for (uint32_t i = 0; i < moved.n; i++)
		moved.s[i] += by;
	pcptune_band_merge(a, &moved);
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static void count(struct walk *k, const struct log_record *r)
{
	k->alloc_pages += less(r->alloc_pages, r->alloc_direct);
	k->free_pages += less(r->free_pages, r->free_direct);
	k->direct_pages += r->alloc_direct + r->free_direct;
	k->refilled += r->r.refilled;
	k->refills += r->r.refills;
	k->drained += r->r.drained;
	k->drains += r->r.drains;
	k->high_least = r->high_least < k->high_least ? r->high_least : k->high_least;
	k->high_most = r->high_most > k->high_most ? r->high_most : k->high_most;
	k->high_now = r->high;
	k->batch = r->batch;
	k->scale_max = r->scale_max;
	k->rules = r->rules;
}

static int add_record(struct records_cookie *c, const struct log_record *r)
{
	struct walk *k = c->at[r->r.index];
	uint64_t from = less(r->time_us, r->r.dt_us);
	struct walks *w = c->w;

	if (!k && !(k = new_walk(c, r->r.index, r)))
		return -ENOMEM;
	if (k->band->n && (r->r.flags & PCPTUNE_RECORD_BROKEN || k->end != r->r.band.start)) {
		k->breaks++;
		w->gaps++;
	}
	if (k->band->n)
		carry_on(k->band, &r->r.band);
	else
		*k->band = r->r.band;
	k->end = pcptune_band_now(&r->r.band);
	count(k, r);
	w->from_ns = w->records && w->from_ns < from * 1000 ? w->from_ns : from * 1000;
	w->to_ns = r->time_us * 1000 > w->to_ns ? r->time_us * 1000 : w->to_ns;
	w->records++;
	return 0;
}

static void on_row(struct records_cookie *c, const struct log_records_row *row, const uint8_t *data,
		   size_t len)
{
	struct records_reader rd;
	struct log_record r;
	int e;

	records_begin(&rd, data, len);
	while ((e = records_next(&rd, &r)) == 1 && !c->error) {
		uint64_t wall = row->t.wall_us - (row->t.boot_us - r.time_us);

		if (r.r.index >= c->n || !r.r.band.n || wall < c->from_us || wall > c->to_us)
			continue;
		c->error = add_record(c, &r);
	}
	c->w->gaps += e == -EBADMSG;
}

static int add_copy(struct walks *w, const struct log_copy *copy, const struct log_target *t,
		    uint64_t from_us, uint64_t to_us)
{
	struct records_cookie c = {.w = w,
				   .n = t->shape.n_zones * t->shape.n_cpus,
				   .n_cpus = t->shape.n_cpus,
				   .from_us = from_us,
				   .to_us = to_us ? to_us : UINT64_MAX};
	struct log_records_row row;
	const uint8_t *data;
	size_t at = 0, len;

	c.at = calloc(c.n + (size_t)1, sizeof(struct walk *));
	if (!c.at)
		return -ENOMEM;
	while (!c.error && log_copy_next(copy, &at, &row, &data, &len))
		on_row(&c, &row, data, len);
	free(c.at);
	w->from_log = true;
	w->from_records = w->records != 0;
	return c.error;
}

int walks_add_copy(struct walks *w, const struct log_copy *copy, const struct log_target *t)
{
	return add_copy(w, copy, t, 0, 0);
}

int walks_add_records(struct walks *w, struct logstore *ls, const struct log_target *t,
		      uint64_t from_us, uint64_t to_us, char *why)
{
	struct log_copy *copy = NULL;
	int r = logstore_snapshot(ls);

	if (!r)
		r = logstore_records_copy(ls, t->id, &copy);
	logstore_snapshot_end(ls);
	if (!r)
		r = add_copy(w, copy, t, from_us, to_us);
	if (r < 0)
		snprintf(why, WALKS_WHY, "%s", r == -ENOMEM ? "no memory" : logstore_error(ls));
	log_copy_free(copy);
	return r;
}
