/* SPDX-License-Identifier: MIT */
/*
 * "Before" must be at hand when a decision is made, for any CPU, without keeping every sample: each
 * CPU has up to sixteen buckets of sums that are filled in turn. Up to sixteen samples are wanted:
 * each has a bucket. More: a bucket covers several, and the one being filled makes "before" up to a
 * sixteenth shorter. "After" is measured over exactly as many samples as "before" had, so that the
 * two can be compared.
 *
 * Samples that left a CPU idle add nothing to its sums, so idle CPUs cost nothing; pages held
 * are extended over them with the mean of the active ones (the present count when there were none).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/effect.h"

#define BUCKETS 16u

struct sum {
	uint64_t alloc_pages, alloc_zone, wait_ns, held;
	uint32_t active; /* samples in which the CPU was active */
};

struct effect {
	int64_t decision;
	uint32_t index, n, seen, count;
	struct sum before, after;
};

struct effects {
	uint32_t n, n_buckets, per_bucket;
	uint32_t bucket;	     /* being filled */
	uint32_t n_samples[BUCKETS]; /* that went into each */
	struct sum *sums;	     /* n_buckets x n */
	struct effect *v;	     /* under way or done */
	uint32_t n_v, max_v;
	uint32_t n_done; /* of v */
};

int effects_new(uint32_t n, uint32_t samples, struct effects **ret)
{
	struct effects *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->n = n;
	e->n_buckets = samples < BUCKETS ? samples : BUCKETS;
	if (!e->n_buckets)
		e->n_buckets = 1;
	e->per_bucket = (samples + e->n_buckets - 1) / e->n_buckets;
	if (!e->per_bucket)
		e->per_bucket = 1;
	e->sums = calloc((size_t)n * e->n_buckets, sizeof(*e->sums));
	e->max_v = n < 16 ? 64 : n * 4;
	e->v = calloc(e->max_v, sizeof(*e->v));
	if (!e->sums || !e->v) {
		effects_free(e);
		return -ENOMEM;
	}
	*ret = e;
	return 0;
}

void effects_free(struct effects *e)
{
	if (!e)
		return;
	free(e->sums);
	free(e->v);
	free(e);
}

static void sum_add(struct sum *s, const struct pcptune_cpu *c)
{
	s->alloc_pages += c->alloc_pages;
	s->held += c->count;
	s->active++;
	if (c->flags & PCPTUNE_CPU_LISTS_ONLY)
		return;
	s->alloc_zone += c->alloc_zone;
	s->wait_ns += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
}

static void next_bucket(struct effects *e)
{
	e->bucket = (e->bucket + 1) % e->n_buckets;
	e->n_samples[e->bucket] = 0;
	memset(e->sums + (size_t)e->bucket * e->n, 0, e->n * sizeof(*e->sums));
}

void effects_sample(struct effects *e, const struct pcptune_cpu *cpus, const uint32_t *active,
		    uint32_t n_active)
{
	struct sum *sums;

	if (e->n_samples[e->bucket] == e->per_bucket)
		next_bucket(e);
	e->n_samples[e->bucket]++;
	sums = e->sums + (size_t)e->bucket * e->n;
	for (uint32_t i = 0; i < n_active; i++)
		sum_add(&sums[active[i]], &cpus[active[i]]);
	for (uint32_t i = 0; i < e->n_v; i++) {
		struct effect *f = &e->v[i];

		if (f->seen == f->n)
			continue;
		if (++f->seen == f->n)
			e->n_done++;
		f->count = cpus[f->index].count;
		if (cpus[f->index].flags & PCPTUNE_CPU_ACTIVE)
			sum_add(&f->after, &cpus[f->index]);
	}
}

static uint64_t held_over(const struct sum *s, uint32_t n, uint32_t count)
{
	uint64_t mean = s->active ? s->held / s->active : count;

	return s->held + mean * (n - s->active);
}

void effects_begin(struct effects *e, int64_t decision, uint32_t index, uint32_t count)
{
	struct effect *f;

	if (e->n_v == e->max_v)
		return; /* the effect of this one stays unknown */
	f = &e->v[e->n_v++];
	memset(f, 0, sizeof(*f));
	f->decision = decision;
	f->index = index;
	f->count = count;
	for (uint32_t b = 0; b < e->n_buckets; b++) {
		const struct sum *s = &e->sums[(size_t)b * e->n + index];

		f->n += e->n_samples[b];
		f->before.alloc_pages += s->alloc_pages;
		f->before.alloc_zone += s->alloc_zone;
		f->before.wait_ns += s->wait_ns;
		f->before.held += s->held;
		f->before.active += s->active;
	}
	f->before.held = held_over(&f->before, f->n, count);
	if (!f->n)
		e->n_v--; /* decided before any sample: nothing to compare with */
}

static void effect_fill(const struct effect *f, struct log_decision *d)
{
	memset(d, 0, sizeof(*d));
	d->id = f->decision;
	d->effect_n = f->n;
	d->before_alloc_pages = f->before.alloc_pages;
	d->before_alloc_zone = f->before.alloc_zone;
	d->before_wait_ns = f->before.wait_ns;
	d->before_held = f->before.held;
	d->after_alloc_pages = f->after.alloc_pages;
	d->after_alloc_zone = f->after.alloc_zone;
	d->after_wait_ns = f->after.wait_ns;
	d->after_held = held_over(&f->after, f->seen, f->count);
}

bool effects_take(struct effects *e, struct log_decision *ret)
{
	if (!e->n_done)
		return false;
	for (uint32_t i = 0; i < e->n_v; i++) {
		struct effect *f = &e->v[i];

		if (f->seen < f->n)
			continue;
		effect_fill(f, ret);
		*f = e->v[--e->n_v];
		e->n_done--;
		return true;
	}
	return false;
}

void effects_forget(struct effects *e)
{
	e->n_v = e->n_done = 0;
}
