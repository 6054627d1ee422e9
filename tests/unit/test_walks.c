/* SPDX-License-Identifier: MIT */
/*
 * Walks and their curves, from traces and from logs, against lists that are simulated call by call:
 * a trace gives the truth, the samples of the same calls bracket it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <pcptune/segment.h>
#include "eval/walks.h"
#include "tests/unit/random.h"
#include "tests/unit/scratch.h"

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
	return (random_next(&random_state) >> 11) % n;
}

#define N_CPUS 3u
#define CALLS  20000u

struct call {
	uint32_t cpu;
	int64_t pages;
};
static struct call calls[CALLS];

/* Calls of all CPUs; habit: how long runs in one direction are. */
static void make_calls(uint64_t seed, uint32_t habit)
{
	int64_t left[N_CPUS] = {0}, sign[N_CPUS] = {1, 1, 1};

	random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	for (uint32_t i = 0; i < CALLS; i++) {
		uint32_t c = (uint32_t)below(N_CPUS);

		if (!left[c]--) {
			left[c] = (int64_t)below(habit);
			sign[c] = -sign[c];
		}
		calls[i] = (struct call){c, sign[c] * (int64_t)(1 + below(3))};
	}
}

/* Pages both ways with lists of so many pages that begin with `level`. */
static uint64_t truth(uint32_t cpu, int64_t capacity, int64_t level)
{
	uint64_t moved = 0;

	for (uint32_t i = 0; i < CALLS; i++) {
		if (calls[i].cpu != cpu)
			continue;
		level += calls[i].pages;
		if (level < 0)
			moved += (uint64_t)-level;
		if (level > capacity)
			moved += (uint64_t)(level - capacity);
		level = level < 0 ? 0 : level > capacity ? capacity : level;
	}
	return moved;
}

/* ---- a trace ---- */

static struct trace_reader *trace_of_calls(char **data)
{
	struct trace_reader *r;
	struct trace_writer *w;
	char why[TRACE_WHY];
	size_t len;
	FILE *out = open_memstream(data, &len);

	assert_int_equal(trace_writer_new(out, "test", &w), 0);
	for (uint32_t i = 0; i < CALLS; i++) {
		struct trace_row row = {1000 * (i + 1), calls[i].cpu, 0, calls[i].pages};

		assert_int_equal(trace_write(w, &row), 0);
	}
	assert_int_equal(trace_writer_end(w), 0);
	trace_writer_free(w);
	fclose(out);
	assert_int_equal(trace_open_stream(fmemopen(*data, len, "r"), "x", &r, why), 0);
	return r;
}

static void a_trace_tells_exactly(void **state)
{
	(void)state;
	for (uint32_t habit = 1; habit < 3000; habit *= 7) {
		char *data, why[WALKS_WHY];
		struct trace_reader *r;
		struct walks w;

		make_calls(habit, habit);
		r = trace_of_calls(&data);
		walks_init(&w);
		assert_int_equal(walks_add_trace(&w, r, 1, why), 0);
		assert_int_equal(walks_seal(&w), 0);
		assert_int_equal(w.n, N_CPUS);
		assert_int_equal(w.from_ns, 1000);
		assert_int_equal(w.to_ns, 1000 * CALLS);
		for (uint32_t c = 0; c < N_CPUS; c++)
			for (uint32_t high = 4; high < 5000; high += high / 3) {
				uint64_t empty = truth(c, high - 1, 0);
				uint64_t full = truth(c, high - 1, high - 1);
				struct whatif p;

				walk_whatif(w.walk[c], high, &p);
				assert_int_equal(p.pages, empty);
				assert_int_equal(p.pages_least, empty < full ? empty : full);
				assert_int_equal(p.pages_most, empty > full ? empty : full);
				assert_true(p.locks == (double)empty);
			}
		walks_free(&w);
		trace_close(r);
		free(data);
	}
}

static void blocks_without_a_list_are_counted_apart(void **state)
{
	static const struct trace_row rows[] = {
		{5, 7, 9, -2}, {6, 7, 4, -3}, {4, 7, 10, 1}, {7, 7, 2, 1}};
	char *data, why[WALKS_WHY];
	struct trace_reader *r;
	struct trace_writer *tw;
	struct walks w;
	size_t len;
	FILE *out = open_memstream(&data, &len);

	(void)state;
	assert_int_equal(trace_writer_new(out, "test", &tw), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(trace_write(tw, &rows[i]), 0);
	assert_int_equal(trace_writer_end(tw), 0);
	trace_writer_free(tw);
	fclose(out);
	assert_int_equal(trace_open_stream(fmemopen(data, len, "r"), "x", &r, why), 0);
	walks_init(&w);
	assert_int_equal(walks_add_trace(&w, r, 63, why), 0);
	assert_int_equal(walks_seal(&w), 0);
	assert_int_equal(w.n, 1);
	assert_int_equal(w.walk[0]->cpu, 7);
	assert_int_equal(w.walk[0]->alloc_pages, 1024);
	assert_int_equal(w.walk[0]->free_pages, 4);
	assert_int_equal(w.walk[0]->direct_pages, 48 + 1024);
	assert_int_equal(w.backwards, 1);
	assert_int_equal(w.from_ns, 4);
	walks_free(&w);
	trace_close(r);
	free(data);
}

/* n times the same row on two CPUs. */
static int walks_of(struct trace_row row, int n, struct walks *w, char *why)
{
	struct trace_reader *r;
	struct trace_writer *tw;
	char *data;
	size_t len;
	FILE *out = open_memstream(&data, &len);
	int e;

	assert_int_equal(trace_writer_new(out, "test", &tw), 0);
	for (int i = 0; i < n; i++) {
		row.cpu = i & 1;
		assert_int_equal(trace_write(tw, &row), 0);
	}
	assert_int_equal(trace_writer_end(tw), 0);
	trace_writer_free(tw);
	fclose(out);
	assert_int_equal(trace_open_stream(fmemopen(data, len, "r"), "x", &r, why), 0);
	walks_init(w);
	e = walks_add_trace(w, r, 63, why);
	trace_close(r);
	free(data);
	return e;
}

/* Rows that are right each by itself, and together more than all memory: 2^52 pages. */
static void more_pages_than_there_are(void **state)
{
	static const struct {
		uint32_t order;
		int64_t blocks;
		int fits;
	} rows[] = {{9, TRACE_MAX_BLOCKS, 1 << 12}, {10, -TRACE_MAX_BLOCKS, 1 << 11}};
	char why[WALKS_WHY] = "";
	struct walks w;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct trace_row row = {1, 0, rows[i].order, rows[i].blocks};

		assert_int_equal(walks_of(row, rows[i].fits, &w, why), 0);
		assert_int_equal(w.walk[0]->free_pages + w.walk[0]->direct_pages,
				 UINT64_C(1) << 51);
		walks_free(&w);
		assert_int_equal(walks_of(row, rows[i].fits + 1, &w, why), -EOVERFLOW);
		assert_non_null(strstr(why, "2^52 pages"));
		walks_free(&w);
	}
}

/* ---- a log of the same calls ---- */

#define STEP_US 100000u
#define BOOT	UINT64_C(1000000000)
#define WALL	UINT64_C(1796032800000000)

static void add_sample(struct pcptune_encoder *enc, struct pcptune_cpu *cpus, uint64_t seq)
{
	uint32_t active[N_CPUS], n = 0;
	struct pcptune_sample s = {.size = sizeof(s),
				   .seq = seq,
				   .time_us = BOOT + seq * STEP_US,
				   .dt_us = STEP_US,
				   .n_cpus = N_CPUS,
				   .cpu_size = sizeof(*cpus),
				   .cpus = cpus,
				   .active = active};

	for (uint32_t i = 0; i < N_CPUS; i++)
		if (cpus[i].flags & PCPTUNE_CPU_ACTIVE)
			active[n++] = i;
	s.n_active = n;
	assert_int_equal(encoder_add(enc, &s), 0);
}

/* Samples of so many calls each; pages past the lists must not count. */
static void log_of_calls(struct logstore *ls, int64_t target, uint32_t every)
{
	struct pcptune_cpu cpus[N_CPUS];
	struct pcptune_encoder *enc;
	struct chunk_totals totals;
	const uint8_t *data;
	uint64_t seq = 0;
	size_t len;

	assert_int_equal(encoder_new(N_CPUS, &enc), 0);
	for (uint32_t at = 0; at < CALLS; at += every) {
		memset(cpus, 0, sizeof(cpus));
		for (uint32_t i = 0; i < N_CPUS; i++) {
			cpus[i].cpu = i;
			cpus[i].high = 100 + i;
			cpus[i].batch = 1;
		}
		for (uint32_t i = at; i < at + every && i < CALLS; i++) {
			struct pcptune_cpu *c = &cpus[calls[i].cpu];

			c->flags = PCPTUNE_CPU_ACTIVE;
			c->alloc_direct = c->alloc_zone = 1000;
			c->alloc_pages += calls[i].pages < 0 ? (uint64_t)-calls[i].pages : 0;
			c->free_pages += calls[i].pages > 0 ? (uint64_t)calls[i].pages : 0;
		}
		for (uint32_t i = 0; i < N_CPUS; i++)
			cpus[i].alloc_pages += cpus[i].alloc_direct;
		add_sample(enc, cpus, ++seq);
	}
	encoder_peek(enc, &data, &len, &totals);
	assert_int_equal(
		logstore_samples_add(ls, target,
				     (struct logstamp){BOOT + seq * STEP_US, WALL + seq * STEP_US},
				     &totals, data, len),
		0);
	encoder_free(enc);
}

static struct logstore *log_open(struct log_target *t)
{
	static char path[SCRATCH_MAX];
	const struct logstore_options opt = {.max_bytes = 1 << 26, .busy_ms = 1000};
	char why[256];
	struct logstore *ls;
	int64_t run;

	scratch_file(path, "db");
	assert_int_equal(logstore_open(path, &opt, &ls, NULL, why), 0);
	assert_int_equal(logstore_run_begin(ls, (struct logstamp){BOOT, WALL}, "1", "", &run), 0);
	*t = (struct log_target){
		.run = run,
		.name = "walks",
		.shape = {.size = sizeof(t->shape), .n_zones = 1, .n_cpus = N_CPUS, .host_cpus = 1},
		.attached = {BOOT, WALL}};
	assert_int_equal(logstore_target_add(ls, t), 0);
	return ls;
}

static void log_close(struct logstore *ls)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s", logstore_path(ls));
	logstore_close(ls);
	unlink(path);
}

static void a_log_brackets_the_truth(void **state)
{
	static const uint32_t every[] = {1, 20, 300};
	uint32_t useful = 0;

	(void)state;
	for (uint32_t habit = 1; habit < 3000; habit *= 7)
		for (size_t e = 0; e < 3; e++) {
			char why[WALKS_WHY];
			struct log_target t;
			struct logstore *ls = log_open(&t);
			struct walks w;

			make_calls(habit, habit);
			log_of_calls(ls, t.id, every[e]);
			walks_init(&w);
			assert_int_equal(walks_add_log(&w, ls, &t, 0, 0, why), 0);
			assert_int_equal(walks_seal(&w), 0);
			assert_int_equal(w.n, N_CPUS);
			for (uint32_t c = 0; c < N_CPUS; c++)
				for (uint32_t high = 4; high < 5000; high += high / 3) {
					uint64_t v = truth(c, high - 1, 0);
					uint64_t f = truth(c, high - 1, high - 1);
					struct whatif p;

					walk_whatif(w.walk[c], high, &p);
					assert_true(p.pages <= v && v <= p.pages_most);
					assert_true(p.pages_least <= f && f <= p.pages_most);
					assert_true(every[e] > 1 || p.pages == v);
					useful += p.pages_most <
						  w.walk[c]->alloc_pages + w.walk[c]->free_pages;
				}
			walks_free(&w);
			log_close(ls);
		}
	assert_true(useful > 100);
}

static void from_and_to_choose_samples(void **state)
{
	char why[WALKS_WHY];
	struct log_target t;
	struct logstore *ls = log_open(&t);
	struct walks w;

	(void)state;
	make_calls(3, 10);
	log_of_calls(ls, t.id, 100);
	walks_init(&w);
	assert_int_equal(walks_add_log(&w, ls, &t, WALL + 5 * STEP_US, WALL + 9 * STEP_US, why), 0);
	assert_int_equal(w.samples, 5);
	assert_int_equal(w.to_ns - w.from_ns, UINT64_C(500000000));
	assert_int_equal(walks_seal(&w), 0);
	assert_int_equal(w.walk[2]->high_now, 102);
	assert_int_equal(w.walk[2]->refilled, 0);
	walks_free(&w);
	log_close(ls);
}

/* ---- records of the same calls ---- */

/*
 * Of so many calls each, the tracker cut in between; break_at: this one begins elsewhere. Rows of
 * several records, as the daemon writes them. Measured is what lists of 100 pages moved.
 */
static void records_of_calls(struct logstore *ls, int64_t target, uint32_t every, uint32_t break_at)
{
	struct pcptune_band band[N_CPUS];
	struct records_writer w = {0};
	int64_t x[N_CPUS] = {0};
	uint64_t seq = 0;

	for (uint32_t c = 0; c < N_CPUS; c++) {
		pcptune_band_init(&band[c]);
		pcptune_band_push(&band[c], 0);
	}
	for (uint32_t at = 0; at < CALLS; at += every) {
		seq++;
		for (uint32_t i = at; i < at + every && i < CALLS; i++) {
			x[calls[i].cpu] += calls[i].pages;
			pcptune_band_push(&band[calls[i].cpu], x[calls[i].cpu]);
		}
		for (uint32_t c = 0; c < N_CPUS; c++) {
			struct log_record r = {.seq = seq,
					       .time_us = BOOT + seq * STEP_US,
					       .parts = 1,
					       .high = 101,
					       .high_least = 101,
					       .high_most = 101,
					       .batch = 1};

			r.r.index = c;
			r.r.dt_us = STEP_US;
			pcptune_band_cut(&band[c], &r.r.band);
			if (seq == break_at) {
				r.r.flags = PCPTUNE_RECORD_BROKEN;
				r.r.band.start += 5000;
				for (uint32_t i = 0; i < r.r.band.n; i++)
					r.r.band.s[i] += 5000;
			}
			r.r.refilled = at ? 0 : truth(c, 100, 0) / 2;
			r.r.drained = at ? 0 : truth(c, 100, 0) - r.r.refilled;
			assert_int_equal(records_add(&w, &r), 0);
		}
		if (w.n < 60 && at + every < CALLS)
			continue;
		assert_int_equal(logstore_records_add(ls, target,
						      (struct logstamp){BOOT + seq * STEP_US,
									WALL + seq * STEP_US},
						      &w),
				 0);
		records_reset(&w);
	}
	records_free(&w);
}

/* Where the histogram is exact, records are as good as the calls themselves. */
static void records_tell_exactly(void **state)
{
	(void)state;
	for (uint32_t habit = 1; habit < 3000; habit *= 7) {
		char why[WALKS_WHY];
		struct log_target t;
		struct logstore *ls = log_open(&t);
		struct walks w;

		make_calls(habit, habit);
		log_of_calls(ls, t.id, 500);
		records_of_calls(ls, t.id, 500, 0);
		walks_init(&w);
		assert_int_equal(walks_add_log(&w, ls, &t, 0, 0, why), 0);
		assert_int_equal(walks_seal(&w), 0);
		assert_true(w.from_log && w.from_records && !w.gaps);
		assert_int_equal(w.records, N_CPUS * CALLS / 500);
		assert_int_equal(w.to_ns - w.from_ns, (uint64_t)CALLS / 500 * STEP_US * 1000);
		for (uint32_t c = 0; c < N_CPUS; c++) {
			assert_int_equal(w.walk[c]->high_now, 101);
			for (uint32_t b = 2; b < 100; b++) {
				uint64_t capacity = pcptune_band_edge(b);
				uint64_t v = truth(c, (int64_t)capacity, 0);
				uint64_t f = truth(c, (int64_t)capacity, (int64_t)capacity);
				struct whatif p;

				assert_int_equal(walk_pages(w.walk[c], capacity, 0), v);
				assert_int_equal(walk_pages(w.walk[c], capacity, capacity), f);
				walk_whatif(w.walk[c], capacity + 1, &p);
				assert_int_equal(p.pages, v);
				assert_int_equal(p.pages_least, v < f ? v : f);
				assert_int_equal(p.pages_most, v > f ? v : f);
			}
		}
		walks_free(&w);
		log_close(ls);
	}
}

/* A hole is no swing: what could be held there is the uncertainty, no more. */
static void a_hole_between_records_widens_the_bracket(void **state)
{
	char why[WALKS_WHY];
	struct log_target t;
	struct logstore *ls = log_open(&t);
	struct walks w;

	(void)state;
	make_calls(49, 49);
	records_of_calls(ls, t.id, 500, 17);
	walks_init(&w);
	assert_int_equal(walks_add_log(&w, ls, &t, 0, 0, why), 0);
	assert_int_equal(walks_seal(&w), 0);
	/* the one that begins elsewhere, and the one after it, which meets it no more */
	assert_int_equal(w.gaps, 2 * N_CPUS);
	for (uint32_t c = 0; c < N_CPUS; c++) {
		struct whatif p;

		walk_whatif(w.walk[c], 65, &p);
		assert_int_equal(p.pages, truth(c, 64, 0));
		assert_int_equal(w.walk[c]->breaks, 2);
		assert_true(p.pages_most >= p.pages + 128 && p.pages_most <= p.pages + 3 * 64);
		assert_true(p.pages_least + 128 <= p.pages);
	}
	walks_free(&w);
	log_close(ls);
}

static void from_and_to_choose_records(void **state)
{
	char why[WALKS_WHY];
	struct log_target t;
	struct logstore *ls = log_open(&t);
	struct walks w;

	(void)state;
	make_calls(3, 10);
	records_of_calls(ls, t.id, 100, 0);
	walks_init(&w);
	assert_int_equal(walks_add_log(&w, ls, &t, WALL + 5 * STEP_US, WALL + 9 * STEP_US, why), 0);
	assert_int_equal(w.records, 5 * N_CPUS);
	assert_int_equal(w.to_ns - w.from_ns, UINT64_C(500000000));
	walks_free(&w);
	log_close(ls);
}

/* ---- the knee ---- */

static void the_knee_is_where_the_fall_ends(void **state)
{
	struct whatif p[12] = {{0}};

	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		p[i].high = 16u << i;
		p[i].pages = i < 4 ? 1000 - 200 * i : 210 - i;
	}
	assert_int_equal(whatif_knee(p, 12), 4);
	for (uint32_t i = 0; i < 12; i++)
		p[i].pages = 7;
	assert_int_equal(whatif_knee(p, 12), 12);
	assert_int_equal(whatif_knee(p, 2), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trace_tells_exactly),
		cmocka_unit_test(blocks_without_a_list_are_counted_apart),
		cmocka_unit_test(more_pages_than_there_are),
		cmocka_unit_test(a_log_brackets_the_truth),
		cmocka_unit_test(from_and_to_choose_samples),
		cmocka_unit_test(records_tell_exactly),
		cmocka_unit_test(a_hole_between_records_widens_the_bracket),
		cmocka_unit_test(from_and_to_choose_records),
		cmocka_unit_test(the_knee_is_where_the_fall_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
