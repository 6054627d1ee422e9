/* SPDX-License-Identifier: MIT */
/*
 * Records as steps, see relive.h, some at a time.
 *
 * A merged row is a step. Of the others a step is what ended within one period; should a CPU have
 * more than one record there they are merged, if they meet. Whoever reads adds up what was
 * measured, too, since each record comes by here once.
 */
#include <errno.h>
#include <stdlib.h>
#include "eval/relive_private.h"

#define BLOCK_RECORDS 512u /* a block has about so many, in whole steps */

int steps_open(struct steps *s, const struct past *past)
{
	*s = (struct steps){.past = past};
	s->slot = calloc(past->n + (size_t)1, sizeof(*s->slot));
	return s->slot ? 0 : -ENOMEM;
}

void steps_close(struct steps *s)
{
	free(s->slot);
}

void block_free(struct block *b)
{
	free(b->step);
	free(b->r);
	free(b->w);
}

/* ---- one record after the other ---- */

static bool next_row(struct steps *s)
{
	struct log_records_row row;
	const uint8_t *data;
	size_t len;

	if (!log_copy_next(s->past->copy, &s->at, &row, &data, &len))
		return false;
	records_begin(&s->rd, data, len);
	s->level = row.level;
	s->row++;
	return true;
}

/* Into s->r, with the row that is its step, or the period. */
static bool next_record(struct steps *s)
{
	int e = 0;

	while (!s->row || (e = records_next(&s->rd, &s->r)) != 1) {
		s->log.damaged += e == -EBADMSG;
		if (!next_row(s))
			return false;
	}
	s->r_row = s->level ? s->row : 0;
	s->r_window = s->level ? 0 : s->r.time_us / s->past->period_us;
	return true;
}

/* ---- gathering ---- */

static void measure(struct steps *s, const struct log_record *r)
{
	struct relive_log *log = &s->log;
	struct relive_sums *m = &log->measured;

	m->alloc_zone += r->r.refilled + r->alloc_direct;
	m->free_zone += r->r.drained + r->free_direct;
	m->moved += r->r.refilled + r->r.drained;
	m->lock_takes += r->lock_taken;
	m->lock_contended += r->lock_contended;
	m->wait_ns += r->lock_wait_ns;
	m->free_high += r->free_high;
	m->held_page_ms += (uint64_t)r->count * (r->r.dt_us / 1000);
	log->alloc_pages += r->alloc_pages;
	log->free_pages += r->free_pages;
	log->cpu_us += r->r.dt_us;
	log->collapsed += r->r.band.collapsed;
	log->moved_high += r->high_least != r->high_most;
}

static int steps_room(struct block *b)
{
	size_t more = b->steps_room ? 2 * b->steps_room : 16;
	struct step *grown;

	if (b->n_steps < b->steps_room)
		return 0;
	grown = reallocarray(b->step, more, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	b->step = grown;
	b->steps_room = more;
	return 0;
}

/* What came since the last step of the block, if anything, is one. */
static int end_step(struct steps *s, struct block *b)
{
	const struct step *last = b->n_steps ? &b->step[b->n_steps - 1] : NULL;
	struct step t = {.first = last ? last->first + last->n : 0, .begin_us = UINT64_MAX};

	t.n = b->n - t.first;
	if (!t.n)
		return 0;
	if (steps_room(b))
		return -ENOMEM;
	for (size_t i = t.first; i < b->n; i++) {
		const struct log_record *r = &b->r[i];
		uint64_t from = relive_less(r->time_us, r->r.dt_us);

		t.begin_us = from < t.begin_us ? from : t.begin_us;
		t.end_us = r->time_us > t.end_us ? r->time_us : t.end_us;
		t.seq = r->seq > t.seq ? r->seq : t.seq;
		swings_of(&r->r.band, &b->w[i]);
		measure(s, r);
		s->slot[r->r.index] = 0;
	}
	s->begin_us = s->begin_us && s->begin_us < t.begin_us ? s->begin_us : t.begin_us;
	s->end_us = t.end_us > s->end_us ? t.end_us : s->end_us;
	s->log.steps++;
	b->step[b->n_steps++] = t;
	return 0;
}

static int block_room(struct block *b)
{
	size_t more = b->room ? 2 * b->room : BLOCK_RECORDS;
	struct log_record *r;
	struct swings *w;

	if (b->n < b->room)
		return 0;
	r = reallocarray(b->r, more, sizeof(*r));
	b->r = r ? r : b->r;
	w = reallocarray(b->w, more, sizeof(*w));
	b->w = w ? w : b->w;
	if (!r || !w)
		return -ENOMEM;
	b->room = more;
	return 0;
}

/* Into the step at hand: merged with the one of its CPU there, or after it. */
static int gather(struct steps *s, struct block *b)
{
	uint32_t i = s->r.r.index;

	if (i >= s->past->n || !s->past->at[i] || !s->r.r.band.n)
		return 0;
	if (s->slot[i] && log_record_merge(&b->r[s->slot[i] - 1], &s->r))
		return 0;
	if (block_room(b))
		return -ENOMEM;
	b->r[b->n] = s->r;
	s->slot[i] = (uint32_t)++b->n;
	return 0;
}

int steps_read(struct steps *s, struct block *b)
{
	int e = 0;

	b->n = b->n_steps = 0;
	while (!e && (s->waits || next_record(s))) {
		s->waits = true;
		if (s->r_row != s->step_row || s->r_window > s->window) {
			e = end_step(s, b);
			if (e || b->n >= BLOCK_RECORDS)
				return e;
		}
		s->step_row = s->r_row;
		s->window = s->r_window > s->window ? s->r_window : s->window;
		e = gather(s, b);
		s->waits = false;
	}
	return e ? e : end_step(s, b);
}
