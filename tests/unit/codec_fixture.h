/* SPDX-License-Identifier: MIT */
/*
 * Samples for tests of the codec: wild ones, with any value in any field, and steady ones, as a
 * target at work gives them; and copies of them to hold against what is decoded.
 */
#ifndef TESTS_CODEC_FIXTURE_H
#define TESTS_CODEC_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "lib/codec.h"
#include "lib/codec_private.h"
#include "tests/unit/random.h"

static uint64_t random_state = 20261130;

static inline uint64_t next_random(void)
{
	return random_next(&random_state);
}

static inline uint64_t below(uint64_t n)
{
	return next_random() % n;
}

/* ---- samples to code ---- */

struct source {
	uint32_t zones, slots, n;
	struct pcptune_cpu *cpus;
	uint32_t *active;
	struct pcptune_sample s;
};

static inline struct source source_new(uint32_t zones, uint32_t slots)
{
	struct source src = {.zones = zones, .slots = slots, .n = zones * slots};

	src.cpus = calloc(src.n, sizeof(*src.cpus));
	src.active = calloc(src.n, sizeof(*src.active));
	assert_true(src.cpus && src.active);
	for (uint32_t i = 0; i < src.n; i++) {
		src.cpus[i].zone = i / slots;
		src.cpus[i].cpu = i % slots;
	}
	src.s = (struct pcptune_sample){.size = sizeof(src.s),
					.n_cpus = src.n,
					.cpu_size = sizeof(*src.cpus),
					.cpus = src.cpus,
					.active = src.active};
	return src;
}

static inline void source_free(struct source *src)
{
	free(src->cpus);
	free(src->active);
}

static inline void no_deltas(struct pcptune_cpu *c)
{
#define PCPTUNE_LIST(field, unit, line, para) c->field = 0;
#define PCPTUNE_ZCTR(field, unit, line, para) c->field = 0;
#define PCPTUNE_PCTR(field, unit, line, para) c->field = 0;
#include <pcptune/counters.def>
}

static inline void find_active(struct source *src)
{
	src->s.n_active = 0;
	for (uint32_t i = 0; i < src->n; i++)
		if (src->cpus[i].flags & PCPTUNE_CPU_ACTIVE)
			src->active[src->s.n_active++] = i;
}

/* The flag follows from the counters: what comes back has it whether it was said or not. */
static inline void say_lists_only(struct pcptune_cpu *c)
{
	uint64_t beyond = 0;

#define PCPTUNE_ZCTR(field, unit, line, para) beyond |= c->field;
#define PCPTUNE_PCTR(field, unit, line, para) beyond |= c->field;
#include <pcptune/counters.def>
	c->flags &= ~(uint32_t)PCPTUNE_CPU_LISTS_ONLY;
	if (c->flags & PCPTUNE_CPU_ACTIVE && !beyond)
		c->flags |= PCPTUNE_CPU_LISTS_ONLY;
}

/* Any value a word can have, small ones more often. */
static inline uint64_t wild(void)
{
	return next_random() >> below(64) >> (below(4) ? 1 : 0);
}

/* Some CPUs change in any way that a sample allows, the others come to rest. */
static inline void make_wild(struct source *src)
{
	for (uint32_t i = 0; i < src->n; i++) {
		struct pcptune_cpu *c = &src->cpus[i];

		no_deltas(c);
		c->flags &= PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD;
		if (!below(3))
			c->flags = (uint32_t)below(16) & ~(uint32_t)PCPTUNE_CPU_ACTIVE;
		if (!below(3))
			c->count = (uint32_t)wild();
#define PCPTUNE_GAUGE(field, unit, line, para) \
	if (!below(6))                         \
		c->field = (uint32_t)wild();
#include <pcptune/counters.def>
		if (below(2))
			continue;
		c->flags |= PCPTUNE_CPU_ACTIVE;
#define ONE(field)     \
	if (!below(3)) \
		c->field = wild();
#define PCPTUNE_LIST(field, unit, line, para) ONE(field)
#define PCPTUNE_ZCTR(field, unit, line, para) ONE(field)
#define PCPTUNE_PCTR(field, unit, line, para) ONE(field)
#include <pcptune/counters.def>
#undef ONE
		if (below(2))
			say_lists_only(c);
	}
	src->s.seq += below(4) ? 1 : wild();
	src->s.dt_us = below(2) ? 100000 : wild();
	src->s.time_us = below(2) ? src->s.time_us + src->s.dt_us : wild();
	src->s.cpu_us = wild();
	src->s.mem_available = below(2) ? src->s.mem_available : wild();
	src->s.flags = (uint32_t)below(4);
	src->s.long_holds = below(2) ? 0 : wild();
	find_active(src);
}

static inline uint64_t around(uint64_t v, uint64_t spread)
{
	return v - spread / 2 + below(spread);
}

/* What a busy program shows, ten times a second. */
static inline void make_steady(struct source *src, uint32_t n_active)
{
	for (uint32_t i = 0; i < src->n; i++) {
		struct pcptune_cpu *c = &src->cpus[i];

		c->high = 600;
		c->high_min = 378;
		c->high_max = 2000;
		c->batch = 63;
		c->scale_max = 5;
		c->rules = 4;
		if (i >= n_active)
			continue;
		c->flags = PCPTUNE_CPU_ACTIVE;
		c->count = (uint32_t)around(400, 300);
		c->free_count = (uint32_t)around(60, 100);
		c->alloc_factor = (uint32_t)below(3);
		c->alloc_pages = around(30000, 10000);
		c->free_pages = around(c->alloc_pages, 4000);
		c->alloc_zone = around(3000, 1000);
		c->free_zone = around(c->alloc_zone, 400);
		c->refills = around(50, 20);
		c->drains = around(50, 20);
		c->lock_alloc_taken = c->refills;
		c->lock_alloc_contended = below(6);
		c->lock_alloc_wait_ns = c->lock_alloc_contended * around(2000, 1000);
		c->lock_alloc_hold_ns = around(15625, 8000) * 64;
		c->lock_free_taken = c->drains;
		c->lock_free_contended = below(6);
		c->lock_free_wait_ns = c->lock_free_contended * around(2000, 1000);
		c->lock_free_hold_ns = around(15625, 8000) * 64;
		c->high_raised = below(2);
	}
	src->s.seq++;
	src->s.dt_us = around(100000, 400);
	src->s.time_us += src->s.dt_us;
	src->s.cpu_us = around(90000 * (uint64_t)n_active, 4000);
	src->s.mem_available = around(2000000, 20000);
	find_active(src);
}

/* ---- comparing ---- */

/* A decoder and copies of what went in, compared sample by sample. */
struct copies {
	struct pcptune_sample s[64];
	struct pcptune_cpu *cpus[64];
	uint32_t *active[64];
	uint32_t n;
};

static inline void copy_sample(struct copies *to, const struct source *src)
{
	uint32_t i = to->n++;

	to->s[i] = src->s;
	to->cpus[i] = malloc(src->n * sizeof(*src->cpus));
	to->active[i] = malloc(src->n * sizeof(*src->active));
	assert_true(to->cpus[i] && to->active[i]);
	memcpy(to->cpus[i], src->cpus, src->n * sizeof(*src->cpus));
	for (uint32_t k = 0; k < src->n; k++)
		say_lists_only(&to->cpus[i][k]);
	memcpy(to->active[i], src->active, src->n * sizeof(*src->active));
}

static inline void assert_same_sample(const struct pcptune_sample *a, const struct copies *c,
				      uint32_t i)
{
	const struct pcptune_sample *b = &c->s[i];

	assert_int_equal(a->size, sizeof(*a));
	assert_int_equal(a->flags, b->flags);
	assert_true(a->seq == b->seq);
	assert_true(a->time_us == b->time_us);
	assert_true(a->dt_us == b->dt_us);
	assert_true(a->cpu_us == b->cpu_us);
	assert_true(a->mem_available == b->mem_available);
	assert_true(a->long_holds == b->long_holds);
	assert_int_equal(a->n_cpus, b->n_cpus);
	assert_int_equal(a->cpu_size, sizeof(struct pcptune_cpu));
	assert_int_equal(a->n_active, b->n_active);
	assert_int_equal(a->reserved, 0);
	assert_memory_equal(a->cpus, c->cpus[i], a->n_cpus * sizeof(struct pcptune_cpu));
	if (a->n_active)
		assert_memory_equal(a->active, c->active[i], a->n_active * sizeof(uint32_t));
}

static inline void assert_decodes(struct pcptune_decoder *dec, const struct pcptune_encoder *enc,
				  struct copies *c)
{
	const struct pcptune_sample *s;
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(enc, &data, &len, &totals);
	assert_int_equal(totals.n_samples, c->n);
	decoder_begin(dec, data, len);
	for (uint32_t i = 0; i < c->n; i++) {
		assert_int_equal(decoder_next(dec, &s), 1);
		assert_same_sample(s, c, i);
	}
	assert_int_equal(decoder_next(dec, &s), 0);
	assert_int_equal(decoder_next(dec, &s), 0);
}

static inline void copies_free(struct copies *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		free(c->cpus[i]);
		free(c->active[i]);
	}
	c->n = 0;
}

struct codec {
	struct pcptune_encoder *enc;
	struct pcptune_decoder *dec;
};

static inline struct codec codec_new(const struct source *src)
{
	struct codec k;

	assert_int_equal(encoder_new(src->n, &k.enc), 0);
	assert_int_equal(decoder_new(src->zones, src->slots, &k.dec), 0);
	return k;
}

static inline void codec_free(struct codec *k)
{
	encoder_free(k->enc);
	decoder_free(k->dec);
}

#endif
