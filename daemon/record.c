/* SPDX-License-Identifier: MIT */
/*
 * Whose turn it is, and what was measured since the last record of that CPU.
 *
 * Sampling keeps no sums for each CPU, and need not for this: the totals of the segment are read
 * when a record is taken, and those of the last time subtracted. The time of a record begins where
 * that of the one before ended, so records cover all time, whenever they are taken.
 *
 * Unpacked records are large, so there is one array of a bounded number for the whole daemon; more
 * are not taken with one sample. One thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/record.h"

#define RECORDS_MAX 64u /* of a sample; 210 KiB, and 200 KiB as policies see them */

/* What the segment said when the last record of a CPU was taken. */
struct taken {
	uint64_t time_us;
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone, alloc_direct, free_direct;
	uint64_t refills, drains, free_high, lock_taken, lock_contended, lock_wait_ns;
	uint32_t high;
};

struct recorder {
	uint32_t n, next;
	uint64_t step_us; /* between two turns; 0: no records */
	struct taken taken[];
};

static struct log_record *scratch;
static struct pcptune_record *given; /* of those, as a policy sees them */

void record_free(void)
{
	free(scratch);
	free(given);
	scratch = NULL;
	given = NULL;
}

/* ---- totals ---- */

static void totals_of(const struct pcptune_cpu *c, uint64_t time_us, struct taken *ret)
{
	*ret = (struct taken){
		.time_us = time_us,
		.alloc_pages = c->alloc_pages,
		.free_pages = c->free_pages,
		.alloc_zone = c->alloc_zone,
		.free_zone = c->free_zone,
		.alloc_direct = c->alloc_direct,
		.free_direct = c->free_direct,
		.refills = c->refills,
		.drains = c->drains,
		.free_high = c->free_high,
		.lock_taken = c->lock_alloc_taken + c->lock_free_taken,
		.lock_contended = c->lock_alloc_contended + c->lock_free_contended,
		.lock_wait_ns = c->lock_alloc_wait_ns + c->lock_free_wait_ns,
		.high = c->high,
	};
}

static bool read_totals(struct target *t, uint32_t i, uint64_t time_us, struct taken *ret)
{
	struct pcptune_cpu c;

	segreader_cpu_total(t->sr, i, &c);
	if (c.flags & PCPTUNE_CPU_UNKNOWN)
		return false;
	totals_of(&c, time_us, ret);
	return true;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Everything that goes up, from one time to the other; false: something went back. */
static bool differences(const struct taken *now, const struct taken *was, struct log_record *r)
{
	uint64_t alloc_zone = less(now->alloc_zone, was->alloc_zone);
	uint64_t free_zone = less(now->free_zone, was->free_zone);

	r->alloc_pages = less(now->alloc_pages, was->alloc_pages);
	r->free_pages = less(now->free_pages, was->free_pages);
	r->alloc_direct = less(now->alloc_direct, was->alloc_direct);
	r->free_direct = less(now->free_direct, was->free_direct);
	r->r.refills = less(now->refills, was->refills);
	r->r.refilled = less(alloc_zone, r->alloc_direct);
	r->r.drains = less(now->drains, was->drains);
	r->r.drained = less(free_zone, r->free_direct);
	r->free_high = less(now->free_high, was->free_high);
	r->lock_taken = less(now->lock_taken, was->lock_taken);
	r->lock_contended = less(now->lock_contended, was->lock_contended);
	r->lock_wait_ns = less(now->lock_wait_ns, was->lock_wait_ns);
	r->r.dt_us = less(now->time_us, was->time_us);
	return now->alloc_pages >= was->alloc_pages && now->free_pages >= was->free_pages &&
	       now->alloc_zone >= was->alloc_zone && now->free_zone >= was->free_zone &&
	       now->lock_taken >= was->lock_taken;
}

/* ---- one CPU ---- */

static void settings(struct log_record *r, const struct pcptune_cpu *c, uint32_t high_before)
{
	r->count = c->count;
	r->high = c->high;
	r->high_least = high_before < c->high ? high_before : c->high;
	r->high_most = high_before > c->high ? high_before : c->high;
	r->batch = c->batch;
	r->scale_max = c->scale_max;
	r->rules = c->rules;
}

/*
 * false: nothing happened since the last one, or it can not be read now, and the next has it, too.
 */
static bool take(struct target *t, uint32_t i, uint64_t seq, uint64_t time_us,
		 struct log_record *ret)
{
	struct taken *was = &t->rec->taken[i], now;
	struct pcptune_record *k = &ret->r;
	bool whole;

	if (!read_totals(t, i, time_us, &now))
		return false;
	if (now.alloc_pages == was->alloc_pages && now.free_pages == was->free_pages &&
	    now.alloc_zone == was->alloc_zone && now.free_zone == was->free_zone)
		return false;
	if (!segreader_record(t->sr, i, k) || !k->band.n)
		return false;
	whole = differences(&now, was, ret); /* beside what was read */
	k->index = i;
	k->flags = (k->flags & PCPTUNE_RECORD_BROKEN) | (whole ? 0 : PCPTUNE_RECORD_BROKEN);
	for (uint32_t n = k->band.n; n < PCPTUNE_BAND_STACK; n++)
		k->band.s[n] = 0; /* a replay has no more than what counts */
	ret->seq = seq;
	ret->time_us = time_us;
	ret->parts = 1;
	ret->given = false;
	settings(ret, &t->cpus[i], was->high ? was->high : t->cpus[i].high);
	*was = now;
	return true;
}

/* ---- all of them ---- */

/* How many have their turn up to now; none twice, so that a long rest is one round. */
static uint32_t turns(struct target *t, uint64_t now)
{
	struct recorder *rec = t->rec;
	uint64_t n;

	if (now < t->record_due_us)
		return 0;
	n = (now - t->record_due_us) / rec->step_us + 1;
	if (n > rec->n - rec->next)
		n = rec->n - rec->next; /* in ascending order; the others with the next sample */
	t->record_due_us += n * rec->step_us;
	if (now - t->record_due_us > rec->step_us * rec->n && now > t->record_due_us)
		t->record_due_us = now - rec->step_us * rec->n;
	return (uint32_t)n;
}

/*
 * Up to `left` CPUs from the next one on. No record is lost without memory: the next covers its
 * time.
 */
static uint32_t take_some(struct target *t, uint32_t left, uint64_t seq, uint64_t time_us)
{
	struct recorder *rec = t->rec;
	uint32_t n = 0;

	if (!scratch)
		scratch = calloc(RECORDS_MAX, sizeof(*scratch));
	for (; scratch && left && n < RECORDS_MAX; left--) {
		n += take(t, rec->next, seq, time_us, &scratch[n]);
		rec->next++;
	}
	return n;
}

uint32_t record_take(struct target *t, struct pcptune_sample *s, const struct log_record **ret)
{
	uint32_t n = take_some(t, turns(t, s->time_us), s->seq, s->time_us);

	if (t->rec->next == t->n)
		t->rec->next = 0;
	*ret = scratch;
	if (!n || !policy_record_ms(t->active.module))
		return n;
	if (!given)
		given = calloc(RECORDS_MAX, sizeof(*given));
	for (uint32_t i = 0; given && i < n; i++) {
		scratch[i].given = true;
		given[i] = scratch[i].r;
	}
	s->n_records = given ? n : 0;
	s->record_size = sizeof(*given);
	s->records = given;
	return n;
}

uint32_t record_rest(struct target *t, bool first, const struct log_record **ret)
{
	uint32_t n;

	if (t->record_due_us == UINT64_MAX)
		return 0;
	if (first)
		t->rec->next = 0;
	n = take_some(t, t->n - t->rec->next, t->seq, t->last_us);
	*ret = scratch;
	return n;
}

/* ---- life ---- */

int recorder_new(struct target *t, bool from_zero, struct recorder **ret)
{
	struct recorder *rec = calloc(1, sizeof(*rec) + t->n * sizeof(rec->taken[0]));

	if (!rec)
		return -ENOMEM;
	rec->n = t->n;
	for (uint32_t i = 0; i < t->n; i++) {
		rec->taken[i].time_us = t->last_us;
		if (!from_zero)
			read_totals(t, i, t->last_us, &rec->taken[i]);
	}
	*ret = rec;
	return 0;
}

void recorder_free(struct recorder *rec)
{
	free(rec);
}

static uint64_t smaller_but_not_0(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

void recorder_retime(struct target *t)
{
	const struct config *c = t->d->config;
	uint64_t ms = smaller_but_not_0(c->log.enabled ? (uint64_t)c->log.record_ms : 0,
					policy_record_ms(t->active.module));

	t->record_due_us = UINT64_MAX;
	if (!t->rec)
		return;
	t->rec->step_us = ms ? (ms * 1000u + t->n - 1) / t->n : 0;
	if (ms)
		t->record_due_us = t->last_us + t->rec->step_us;
}
