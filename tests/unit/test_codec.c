/* SPDX-License-Identifier: MIT */
/*
 * The sample codec: exact both ways, small in steady load, unharmed by a failed allocation or by
 * damaged bytes, and able to read chunks with fewer or more fields than today's.
 */
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

static uint64_t next_random(void)
{
	return random_next(&random_state);
}

static uint64_t below(uint64_t n)
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

static struct source source_new(uint32_t zones, uint32_t slots)
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

static void source_free(struct source *src)
{
	free(src->cpus);
	free(src->active);
}

static void no_deltas(struct pcptune_cpu *c)
{
#define PCPTUNE_LIST(field, unit, line, para) c->field = 0;
#define PCPTUNE_ZCTR(field, unit, line, para) c->field = 0;
#define PCPTUNE_PCTR(field, unit, line, para) c->field = 0;
#include <pcptune/counters.def>
}

static void find_active(struct source *src)
{
	src->s.n_active = 0;
	for (uint32_t i = 0; i < src->n; i++)
		if (src->cpus[i].flags & PCPTUNE_CPU_ACTIVE)
			src->active[src->s.n_active++] = i;
}

/* The flag follows from the counters: what comes back has it whether it was said or not. */
static void say_lists_only(struct pcptune_cpu *c)
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
static uint64_t wild(void)
{
	return next_random() >> below(64) >> (below(4) ? 1 : 0);
}

/* Some CPUs change in any way that a sample allows, the others come to rest. */
static void make_wild(struct source *src)
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

static uint64_t around(uint64_t v, uint64_t spread)
{
	return v - spread / 2 + below(spread);
}

/* What a busy program shows, ten times a second. */
static void make_steady(struct source *src, uint32_t n_active)
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

static void copy_sample(struct copies *to, const struct source *src)
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

static void assert_same_sample(const struct pcptune_sample *a, const struct copies *c, uint32_t i)
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

static void assert_decodes(struct pcptune_decoder *dec, const struct pcptune_encoder *enc,
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

static void copies_free(struct copies *c)
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

static struct codec codec_new(const struct source *src)
{
	struct codec k;

	assert_int_equal(encoder_new(src->n, &k.enc), 0);
	assert_int_equal(decoder_new(src->zones, src->slots, &k.dec), 0);
	return k;
}

static void codec_free(struct codec *k)
{
	encoder_free(k->enc);
	decoder_free(k->dec);
}

/* ---- round trips ---- */

static void test_round_trip_wild(void **state)
{
	static const uint32_t shapes[][2] = {{1, 1}, {1, 2}, {2, 3}, {1, 64}, {3, 65}};
	struct copies c = {.n = 0};

	(void)state;
	for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
		struct source src = source_new(shapes[k][0], shapes[k][1]);
		struct codec codec = codec_new(&src);

		for (int chunk = 0; chunk < 40; chunk++) {
			uint32_t n = 1 + (uint32_t)below(12);

			for (uint32_t i = 0; i < n; i++) {
				make_wild(&src);
				assert_int_equal(encoder_add(codec.enc, &src.s), 0);
				copy_sample(&c, &src);
			}
			assert_decodes(codec.dec, codec.enc, &c); /* each chunk by itself */
			encoder_reset(codec.enc);
			copies_free(&c);
		}
		codec_free(&codec);
		source_free(&src);
	}
}

static void test_round_trip_steady(void **state)
{
	struct source src = source_new(1, 64);
	struct codec codec = codec_new(&src);
	struct copies c = {.n = 0};

	(void)state;
	for (int i = 0; i < 20; i++) {
		make_steady(&src, 20);
		assert_int_equal(encoder_add(codec.enc, &src.s), 0);
		copy_sample(&c, &src);
	}
	assert_decodes(codec.dec, codec.enc, &c);
	copies_free(&c);
	codec_free(&codec);
	source_free(&src);
}

/* The extremes of every field, one by one and all at once. */
static void test_round_trip_extremes(void **state)
{
	static const uint64_t values[] = {
		1,	   127,	      128, UINT32_MAX, (UINT64_C(1) << 56) - 1, UINT64_C(1) << 56,
		INT64_MAX, UINT64_MAX};
	struct source src = source_new(1, 3);
	struct codec codec = codec_new(&src);
	struct copies c = {.n = 0};

	(void)state;
	for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
#define TRY                                                  \
	src.cpus[1].flags |= PCPTUNE_CPU_ACTIVE;             \
	find_active(&src);                                   \
	assert_int_equal(encoder_add(codec.enc, &src.s), 0); \
	copy_sample(&c, &src);                               \
	assert_decodes(codec.dec, codec.enc, &c);            \
	encoder_reset(codec.enc);                            \
	copies_free(&c);
#define PCPTUNE_GAUGE(field, unit, line, para)   \
	src.cpus[1].field = (uint32_t)values[v]; \
	TRY
#include <pcptune/counters.def>
#define SET(field)                     \
	src.cpus[1].field = values[v]; \
	TRY
#define PCPTUNE_LIST(field, unit, line, para) SET(field)
#define PCPTUNE_ZCTR(field, unit, line, para) SET(field)
#define PCPTUNE_PCTR(field, unit, line, para) SET(field)
#include <pcptune/counters.def>
#undef SET
		src.cpus[1].count = (uint32_t)values[v];
		src.cpus[1].flags = UINT32_MAX & ~(uint32_t)PCPTUNE_CPU_LISTS_ONLY;
		src.s.seq = src.s.time_us = src.s.dt_us = src.s.cpu_us = values[v];
		src.s.mem_available = values[v];
		src.s.flags = (uint32_t)values[v];
		src.s.long_holds = values[v];
		TRY src.cpus[1].flags = 0;
#undef TRY
	}
	codec_free(&codec);
	source_free(&src);
}

/* A chunk that stays open for a minute, and targets without CPUs. */
static void test_long_and_empty(void **state)
{
	struct source src = source_new(1, 16);
	struct codec codec = codec_new(&src);
	struct pcptune_encoder *enc;
	struct copies c = {.n = 0};
	const struct pcptune_sample *s = NULL;
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	(void)state;
	for (int i = 0; i < 600; i++) {
		if (i % 10)
			make_steady(&src, (uint32_t)below(16));
		else
			make_wild(&src);
		assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	}
	copy_sample(&c, &src);
	encoder_peek(codec.enc, &data, &len, &totals);
	decoder_begin(codec.dec, data, len);
	for (int i = 0; i < 600; i++)
		assert_int_equal(decoder_next(codec.dec, &s), 1);
	assert_same_sample(s, &c, 0);
	assert_int_equal(decoder_next(codec.dec, &s), 0);
	copies_free(&c);
	codec_free(&codec);
	assert_int_equal(encoder_new(0, &enc), 0);
	assert_int_equal(decoder_new(0, 16, &codec.dec), 0);
	src.s.n_cpus = 0;
	assert_int_equal(encoder_add(enc, &src.s), 0);
	encoder_peek(enc, &data, &len, &totals);
	decoder_begin(codec.dec, data, len);
	assert_int_equal(decoder_next(codec.dec, &s), 1);
	assert_true(s->seq == src.s.seq && s->n_cpus == 0 && s->n_active == 0);
	encoder_free(enc);
	decoder_free(codec.dec);
	source_free(&src);
}

/* A CPU at rest costs nothing; one whose gauges or flags move at rest gets its record. */
static void test_rest(void **state)
{
	struct source src = source_new(1, 64);
	struct codec codec = codec_new(&src);
	struct copies c = {.n = 0};
	struct chunk_totals totals;
	const uint8_t *data;
	size_t before, after;

	(void)state;
	make_steady(&src, 0);
	assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	copy_sample(&c, &src);
	encoder_peek(codec.enc, &data, &before, &totals);
	assert_true(before < 60); /* 64 alike CPUs at rest in a first sample: one of them is told */
#define STEP(bytes, what)                                    \
	encoder_peek(codec.enc, &data, &before, &totals);    \
	src.s.seq++;                                         \
	src.s.time_us += src.s.dt_us;                        \
	what;                                                \
	find_active(&src);                                   \
	assert_int_equal(encoder_add(codec.enc, &src.s), 0); \
	copy_sample(&c, &src);                               \
	encoder_peek(codec.enc, &data, &after, &totals);     \
	assert_true(after - before <= (bytes));              \
	assert_decodes(codec.dec, codec.enc, &c);
	STEP(1, (void)0);
	STEP(16, src.cpus[7].high = 500); /* decay by the agent */
	STEP(16, src.cpus[7].flags |= PCPTUNE_CPU_SETTLING);
	STEP(1, (void)0);
	STEP(8, src.cpus[7].flags &= ~(uint32_t)PCPTUNE_CPU_SETTLING);
	STEP(16, src.cpus[63].flags |= PCPTUNE_CPU_UNKNOWN);
	STEP(1, src.cpus[63].flags = 0);
	STEP(16, src.cpus[0].count = 9);
	STEP(16, src.cpus[1].flags = PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_HELD);
	STEP(1, src.cpus[1].flags = PCPTUNE_CPU_HELD);
#undef STEP
	copies_free(&c);
	codec_free(&codec);
	source_free(&src);
}

static void test_budget(void **state)
{
	static const uint32_t actives[] = {1, 2, 8, 64};

	(void)state;
	for (size_t k = 0; k < 4; k++) {
		struct source src = source_new(1, 64);
		struct codec codec = codec_new(&src);
		struct chunk_totals totals;
		const uint8_t *data;
		size_t bytes = 0, records = 0, len;

		for (int chunk = 0; chunk < 50; chunk++) {
			for (int i = 0; i < 10; i++) {
				make_steady(&src, actives[k]);
				assert_int_equal(encoder_add(codec.enc, &src.s), 0);
			}
			encoder_peek(codec.enc, &data, &len, &totals);
			bytes += len;
			records += totals.n_records;
			encoder_reset(codec.enc);
		}
		assert_int_equal(records, 500 * actives[k]);
		print_message("# %u active of 64: %.1f bytes a record, all included\n", actives[k],
			      (double)bytes / (double)records);
		assert_true(bytes <= 40 * records);
		codec_free(&codec);
		source_free(&src);
	}
}

static void test_totals(void **state)
{
	struct source src = source_new(1, 4);
	struct codec codec = codec_new(&src);
	struct chunk_totals t, sum = {.n_samples = 0};
	const uint8_t *data;
	size_t len;

	(void)state;
	encoder_peek(codec.enc, &data, &len, &t);
	assert_int_equal(len, 0);
	assert_int_equal(t.n_samples, 0);
	src.s.seq = 41;
	for (int i = 0; i < 7; i++) {
		uint64_t held = 0;

		make_steady(&src, 3);
		src.cpus[3].count = 11; /* at rest, but holds pages */
		src.cpus[0].lock_agent_wait_ns = 1000000;
		for (uint32_t k = 0; k < 4; k++) {
			const struct pcptune_cpu *c = &src.cpus[k];

			held += c->count;
			sum.alloc_pages += c->alloc_pages;
			sum.free_pages += c->free_pages;
			sum.alloc_zone += c->alloc_zone;
			sum.free_zone += c->free_zone;
			sum.refills += c->refills;
			sum.drains += c->drains;
			sum.free_high += c->free_high;
			sum.lock_taken += c->lock_alloc_taken + c->lock_free_taken;
			sum.lock_contended += c->lock_alloc_contended + c->lock_free_contended;
			sum.lock_wait_ns += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
		}
		sum.dt_us += src.s.dt_us;
		sum.cpu_us += src.s.cpu_us;
		sum.held_pages = held;
		sum.held_peak = held > sum.held_peak ? held : sum.held_peak;
		assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	}
	sum.seq_first = 42;
	sum.seq_last = 48;
	sum.n_samples = 7;
	sum.n_records = 21;
	sum.time_us = src.s.time_us;
	encoder_peek(codec.enc, &data, &len, &t);
	assert_memory_equal(&t, &sum, sizeof(t));
	encoder_reset(codec.enc);
	encoder_peek(codec.enc, &data, &len, &t);
	assert_int_equal(len, 0);
	assert_int_equal(t.alloc_pages, 0);
	codec_free(&codec);
	source_free(&src);
}

/* ---- faults ---- */

static unsigned calls_left;

static void *failing(void *p, size_t n)
{
	if (!calls_left)
		return NULL;
	calls_left--;
	return realloc(p, n);
}

static void test_no_memory_new(void **state)
{
	struct pcptune_encoder *enc = (void *)&enc;
	struct pcptune_decoder *dec = (void *)&dec;
	unsigned n;
	int r = -ENOMEM;

	(void)state;
	codec_set_realloc(failing);
	for (n = 0; r; n++) {
		calls_left = n;
		r = encoder_new(8, &enc);
		assert_true(r == 0 || (r == -ENOMEM && enc == (void *)&enc));
	}
	assert_true(n > 2);
	encoder_free(enc);
	r = -ENOMEM;
	for (n = 0; r; n++) {
		calls_left = n;
		r = decoder_new(2, 4, &dec);
		assert_true(r == 0 || (r == -ENOMEM && dec == (void *)&dec));
	}
	assert_true(n > 3);
	decoder_free(dec);
	codec_set_realloc(NULL);
	encoder_free(NULL);
	decoder_free(NULL);
}

/* Every add that can fail does, in the middle of chunks; what was in the chunk stays exact. */
static void test_no_memory_add(void **state)
{
	struct source src = source_new(1, 8);
	struct codec codec = codec_new(&src);
	struct copies c = {.n = 0};
	int failures = 0;

	(void)state;
	for (int i = 0; i < 60; i++) {
		struct chunk_totals t1, t2;
		const uint8_t *d1, *d2;
		size_t l1, l2;
		int r;

		make_wild(&src);
		encoder_peek(codec.enc, &d1, &l1, &t1);
		calls_left = 0;
		codec_set_realloc(failing);
		r = encoder_add(codec.enc, &src.s);
		codec_set_realloc(NULL);
		if (r) {
			failures++;
			assert_int_equal(r, -ENOMEM);
			encoder_peek(codec.enc, &d2, &l2, &t2);
			assert_ptr_equal(d1, d2);
			assert_int_equal(l1, l2);
			assert_memory_equal(&t1, &t2, sizeof(t1));
			assert_decodes(codec.dec, codec.enc, &c);
			if (i % 3 == 0)
				continue; /* this sample is lost, the next one follows */
			assert_int_equal(encoder_add(codec.enc, &src.s), 0);
		}
		copy_sample(&c, &src);
		assert_decodes(codec.dec, codec.enc, &c);
	}
	assert_true(failures > 2);
	copies_free(&c);
	codec_free(&codec);
	source_free(&src);
}

static void test_wrong_sample(void **state)
{
	struct source src = source_new(1, 8);
	struct codec codec = codec_new(&src);
	struct pcptune_decoder *dec = NULL;

	(void)state;
	src.s.n_cpus = 7;
	assert_int_equal(encoder_add(codec.enc, &src.s), -EINVAL);
	src.s.n_cpus = 8;
	src.s.cpu_size = sizeof(struct pcptune_cpu) - 8;
	assert_int_equal(encoder_add(codec.enc, &src.s), -EINVAL);
	assert_int_equal(decoder_new(PCPTUNE_MAX_ZONES + 1, 1, &dec), -EINVAL);
	assert_int_equal(decoder_new(1, PCPTUNE_MAX_CPUS + 1, &dec), -EINVAL);
	assert_null(dec);
	codec_free(&codec);
	source_free(&src);
}

/* A stride larger than today's struct: a sample of a newer host. */
static void test_stride(void **state)
{
	struct source src = source_new(1, 4);
	struct codec codec = codec_new(&src);
	const size_t stride = sizeof(struct pcptune_cpu) + 24;
	char *wide = calloc(4, stride);
	struct copies c = {.n = 0};

	(void)state;
	assert_non_null(wide);
	make_wild(&src);
	copy_sample(&c, &src);
	for (uint32_t i = 0; i < 4; i++) {
		memset(wide + i * stride, 0xee, stride);
		memcpy(wide + i * stride, &src.cpus[i], sizeof(struct pcptune_cpu));
	}
	src.s.cpus = wide;
	src.s.cpu_size = (uint32_t)stride;
	assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	assert_decodes(codec.dec, codec.enc, &c);
	copies_free(&c);
	free(wide);
	codec_free(&codec);
	source_free(&src);
}

/* ---- the format, written by hand ---- */

struct bytes {
	uint8_t b[400];
	size_t n;
};

static void add_byte(struct bytes *to, unsigned v)
{
	to->b[to->n++] = (uint8_t)v;
}

/* A prefix varint from its definition, not from the codec. */
static void add(struct bytes *to, uint64_t v)
{
	unsigned len = 1;

	while (len < 9 && v >> 7 * len)
		len++;
	if (len == 9) {
		add_byte(to, 0);
		for (int i = 0; i < 8; i++)
			add_byte(to, v >> 8 * i & 0xff);
		return;
	}
	v = v << len | UINT64_C(1) << (len - 1);
	for (unsigned i = 0; i < len; i++)
		add_byte(to, v >> 8 * i & 0xff);
}

/* Version 1, groups LIST ZCTR PCTR GAUGE, CPUs; one sample with one record to follow. */
static void add_heads(struct bytes *to, unsigned list, unsigned zctr, unsigned pctr, unsigned gauge)
{
	add_byte(to, 1);
	add(to, list);
	add(to, zctr);
	add(to, pctr);
	add(to, gauge);
	add(to, 3);
	add(to, 1 | 4 | 16); /* seq, dt, records */
	add(to, 6);	     /* seq 7 */
	add(to, 2 * 100);    /* dt 100 */
	add(to, 1);
}

static const struct pcptune_cpu *decode_one(struct pcptune_decoder *dec, const struct bytes *from)
{
	const struct pcptune_sample *s;

	decoder_begin(dec, from->b, from->n);
	assert_int_equal(decoder_next(dec, &s), 1);
	assert_int_equal(s->seq, 7);
	assert_int_equal(s->dt_us, 100);
	assert_int_equal(s->time_us, 100);
	assert_int_equal(s->n_active, 1);
	assert_int_equal(s->active[0], 2);
	return pcptune_sample_cpu(s, 2);
}

/* One row in each group: what a chunk of a much older counters.def looks like. */
static void test_fewer_fields(void **state)
{
	struct pcptune_decoder *dec;
	const struct pcptune_cpu *c;
	struct pcptune_cpu expected = {.zone = 0, .cpu = 2, .flags = PCPTUNE_CPU_ACTIVE};
	const struct pcptune_sample *s;
	struct bytes b = {.n = 0};

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	add_heads(&b, 1, 1, 1, 1);
	add(&b, 2 << 2 | 3);				     /* index 2, full bitmap */
	add(&b, 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6); /* count high alloc_pages ... */
	add(&b, 2 * 50);
	add(&b, 2 * 378);
	add(&b, 30000);
	add(&b, 2 * 1500);
	add(&b, 5);
	c = decode_one(dec, &b);
	expected.count = 50;
	expected.high = 378;
	/* what is predicted from a field that is there follows it */
	expected.alloc_pages = expected.free_pages = 30000;
	expected.alloc_zone = 1500;
	expected.controls_adopted = 5;
	assert_memory_equal(c, &expected, sizeof(expected));
	assert_int_equal(decoder_next(dec, &s), 0);
	decoder_free(dec);
}

/* More rows in each group than we know: they are skipped. */
static void test_more_fields(void **state)
{
	enum { LISTS = 2, ZCTRS = 23, PCTRS = 2, GAUGES = 8 };
	const unsigned gauge = 3, list = gauge + GAUGES + 2, zctr = list + LISTS + 2;
	const unsigned pctr = zctr + ZCTRS + 2;
	struct pcptune_decoder *dec;
	const struct pcptune_cpu *c;
	struct bytes b = {.n = 0};

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	add_heads(&b, LISTS + 2, ZCTRS + 2, PCTRS + 2, GAUGES + 2);
	add(&b, 2 << 2 | 3);
	add(&b, UINT64_C(3) << (gauge + GAUGES - 1) | UINT64_C(3) << (list + LISTS - 1) |
			UINT64_C(3) << (zctr + ZCTRS - 1) | UINT64_C(7) << (pctr + PCTRS - 1));
	add(&b, 2 * 9);
	add(&b, UINT64_MAX); /* unknown gauge */
	add(&b, 2 * 8);	     /* free_pages, against alloc_pages 0 */
	add(&b, 12345);	     /* unknown list row */
	add(&b, 7);
	add(&b, UINT64_C(1) << 60);
	add(&b, 6);
	add(&b, 1);
	add(&b, 2);
	c = decode_one(dec, &b);
	assert_int_equal(c->free_count, 9);
	assert_int_equal(c->free_pages, 8);
	assert_int_equal(c->alloc_failed, 7);
	assert_int_equal(c->high_raised, 6);
	assert_int_equal(c->alloc_pages, 0);
	assert_int_equal(c->alloc_zone, 0);
	decoder_free(dec);
}

/* Each way to be damaged that the decoder knows; and damage is for good. */
static void test_damaged(void **state)
{
	struct pcptune_decoder *dec;
	const struct pcptune_sample *s = NULL;
	struct bytes good = {.n = 0}, b;

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	decoder_begin(dec, NULL, 0);
	assert_int_equal(decoder_next(dec, &s), 0);
	add_heads(&good, 1, 1, 1, 1);
	add(&good, 2 << 2 | 3);
	add(&good, 1 << 2);
	add(&good, 2 * 50);
	(void)decode_one(dec, &good);
	s = NULL;
#define BAD(what)                                          \
	b = good;                                          \
	what;                                              \
	decoder_begin(dec, b.b, b.n);                      \
	assert_int_equal(decoder_next(dec, &s), -EBADMSG); \
	assert_int_equal(decoder_next(dec, &s), -EBADMSG); \
	assert_null(s);
	for (size_t n = 1; n < good.n; n++) {
		BAD(b.n = n); /* cut anywhere */
	}
	BAD(b.b[0] = 0); /* version */
	BAD(b.b[0] = 3);
	BAD(b.b[5] = 4 << 1 | 1);  /* 4 CPUs, not 3 */
	BAD(b.b[1] = 65 << 1 | 1); /* too many rows */
	BAD(b.b[2] = 62 << 1 | 1); /* ... in all */
	BAD(b.b[6] = 255);	   /* presence of what does not exist: records missing, too */
	BAD(b.n -= 4; add(&b, 4)); /* 4 records of 3 CPUs */
	BAD(b.n -= 3; add(&b, 3 << 2 | 3); add(&b, 1 << 2); add(&b, 100)); /* index 3 */
	BAD(b.n -= 3; add(&b, (UINT64_C(1) << 40) << 2 | 3); add(&b, 4); add(&b, 100));
	BAD(b.n -= 3; add(&b, 2 << 2 | 3); add(&b, 1 << 7));	    /* a bit too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 1); add_byte(&b, 64));	    /* a bit number too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 1); add_byte(&b, 7));	    /* a bit too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 2); add_byte(&b, 2));	    /* second bit missing */
	BAD(b.n -= 1; add(&b, 1));				    /* count -1 */
	BAD(b.n -= 1; add(&b, UINT64_C(1) << 33));		    /* count 2^32 */
	BAD(b.n -= 2; add(&b, 1 << 1); add(&b, UINT64_C(1) << 32)); /* flags of 33 bits */
#undef BAD
	(void)decode_one(dec, &good); /* the next chunk is read as if nothing had been */
	decoder_free(dec);
}

/* 100,000 damaged chunks: any bytes give 0, -EBADMSG or a valid sample. */
static void test_mutations(void **state)
{
	struct source src = source_new(2, 5);
	struct codec codec = codec_new(&src);
	struct chunk_totals t;
	const uint8_t *data;
	uint8_t *bad;
	size_t len, cut;
	int outcomes[2] = {0, 0};

	(void)state;
	for (int i = 0; i < 6; i++) {
		if (i % 2)
			make_wild(&src);
		else
			make_steady(&src, 4);
		assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	}
	encoder_peek(codec.enc, &data, &len, &t);
	for (int i = 0; i < 100000; i++) {
		const struct pcptune_sample *s;
		int r;

		cut = below(4) ? len : below(len + 1);
		bad = malloc(cut ? cut : 1); /* exactly as long, for the sanitizer */
		assert_non_null(bad);
		memcpy(bad, data, cut);
		for (uint64_t k = below(4); k-- && cut;)
			bad[below(2) ? below(cut) : below(cut < 40 ? cut : 40)] =
				(uint8_t)(below(2) ? next_random() : 1u << below(8));
		decoder_begin(codec.dec, bad, cut);
		while ((r = decoder_next(codec.dec, &s)) == 1) {
			assert_true(s->n_active <= s->n_cpus && s->n_cpus == 10);
			for (uint32_t k = 0; k < s->n_active; k++) {
				assert_true(s->active[k] < 10);
				assert_true(!k || s->active[k] > s->active[k - 1]);
			}
			for (uint32_t k = 0; k < 10; k++) {
				assert_int_equal(pcptune_sample_cpu(s, k)->zone, k / 5);
				assert_int_equal(pcptune_sample_cpu(s, k)->cpu, k % 5);
			}
		}
		assert_true(r == 0 || r == -EBADMSG);
		outcomes[r != 0]++;
		free(bad);
	}
	assert_true(outcomes[0] > 1000 && outcomes[1] > 1000);
	codec_free(&codec);
	source_free(&src);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip_wild),
		cmocka_unit_test(test_round_trip_steady),
		cmocka_unit_test(test_round_trip_extremes),
		cmocka_unit_test(test_long_and_empty),
		cmocka_unit_test(test_rest),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_totals),
		cmocka_unit_test(test_no_memory_new),
		cmocka_unit_test(test_no_memory_add),
		cmocka_unit_test(test_wrong_sample),
		cmocka_unit_test(test_stride),
		cmocka_unit_test(test_fewer_fields),
		cmocka_unit_test(test_more_fields),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_mutations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
