/* SPDX-License-Identifier: MIT */
/*
 * The sample codec: exact both ways, small in steady load, unharmed by a failed allocation. What it
 * makes of other chunks, and of damaged ones: test_codec_format.c.
 */
#include <time.h>
#include "tests/unit/codec_fixture.h"

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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
