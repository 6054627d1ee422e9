/* SPDX-License-Identifier: MIT */
/*
 * Simulated lists against the plain rules call by call, and the closed loop over traces: exact
 * where the curve is, the same with any number of threads, policies at work, edges of time and
 * number.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "eval/grid.h"
#include "eval/lists.h"
#include "eval/recorder.h"
#include "tests/unit/random.h"
#include "tests/unit/scratch.h"

static uint64_t random_state = 20261130;

static uint64_t below(uint64_t n)
{
	return (random_next(&random_state) >> 11) % n;
}

/* ---- lists ---- */

static void assert_same_lists(const struct lists *a, const struct lists *b)
{
	struct lists x = *a, y = *b;

	x.peak = y.peak = 0;
	assert_memory_equal(&x, &y, sizeof(x));
}

/* Runs at once and one by one: the same to the last number, in every generation. */
static void runs_do_what_single_calls_do(void **state)
{
	static const uint32_t orders[] = {0, 0, 0, 1, 2, 3, 9, 4};

	(void)state;
	for (int round = 0; round < 60 * 128; round++) {
		struct lists runs = {0}, single = {0};
		uint32_t high = 4 + (uint32_t)below(3000);

		if (!pcptune_rules_known((uint32_t)round % 128))
			continue;
		runs.st = (struct pcptune_rule_state){
			.rules = (uint32_t)round % 128,
			.high = high,
			.high_min = high,
			.high_max = high + (uint32_t)(below(2) ? below(2000) : 0),
			.batch = 1 + (uint32_t)below(below(2) ? 4 : 64),
			.scale_max = (uint32_t)below(7)};
		single = runs;
		for (int i = 0; i < 30; i++) {
			uint32_t order = orders[below(8)];
			int64_t n = (int64_t)below(order > 3 ? 8 : 1500) - (order > 3 ? 4 : 750);

			lists_move(&runs, order, n);
			for (int64_t k = 0; k < llabs(n); k++)
				lists_move(&single, order, n > 0 ? 1 : -1);
			assert_same_lists(&runs, &single);
			assert_true(runs.pages <= runs.peak);
		}
	}
}

struct held {
	struct lists l; /* the first: on_hold() finds us by it */
	uint64_t holds[3], pages[3];
};

static void count_holds(struct lists *l, enum lists_path path, uint64_t holds, uint64_t pages)
{
	struct held *h = (struct held *)l;

	h->holds[path] += holds;
	h->pages[path] += pages;
}

/* The same of rows that are long enough to be multiplied out, with holds of the lock. */
static void long_runs_do_what_single_calls_do(void **state)
{
	static const uint32_t orders[] = {0, 0, 1, 2, 3, 9, 4};

	(void)state;
	for (uint32_t round = 0; round < 6 * 128; round++) {
		struct held runs = {.l = {.on_hold = count_holds}}, single;
		uint32_t high = 1 + (uint32_t)below(below(2) ? 30 : 3000);

		if (!pcptune_rules_known(round % 128))
			continue;
		runs.l.st = (struct pcptune_rule_state){
			.rules = round % 128,
			.high = high,
			.high_min = high,
			.high_max = high + (uint32_t)(below(2) ? below(3000) : 0),
			.batch = 1 + (uint32_t)below(below(2) ? 4 : 64),
			.scale_max = (uint32_t)below(7)};
		single = runs;
		for (int i = 0; i < 8; i++) {
			uint32_t order = orders[below(7)];
			int64_t n = (int64_t)(i & 1 ? below(20000) : below(500));

			n = below(2) ? n : -n;
			lists_move(&runs.l, order, n);
			for (int64_t k = 0; k < llabs(n); k++)
				lists_move(&single.l, order, n > 0 ? 1 : -1);
			assert_same_lists(&runs.l, &single.l);
			assert_memory_equal(runs.holds, single.holds, sizeof(runs.holds));
			assert_memory_equal(runs.pages, single.pages, sizeof(runs.pages));
		}
	}
}

/* The longest rows there can be, by the smallest moves: as many holds as pages. */
static void the_longest_rows_take_no_time(void **state)
{
	const int64_t most = INT64_C(1) << 31;
	struct held h = {.l = {.on_hold = count_holds,
			       .st = {.rules = PCPTUNE_RULES_G0,
				      .high = 100,
				      .high_min = 100,
				      .high_max = 100,
				      .batch = 1}}};

	(void)state;
	for (uint64_t i = 1; i <= 1000; i++) {
		lists_move(&h.l, 0, most); /* 99 stay */
		assert_int_equal(h.l.pages, 99);
		assert_int_equal(h.l.drains, i * ((uint64_t)most - 99));
		lists_move(&h.l, 0, -most);
		assert_int_equal(h.l.pages, 0);
		assert_int_equal(h.l.refills, i * ((uint64_t)most - 99));
		lists_move(&h.l, 10, -most);
		assert_int_equal(h.l.alloc_direct, i * ((uint64_t)most << 10));
	}
	assert_int_equal(h.holds[LISTS_FREE], h.l.drains);
	assert_int_equal(h.holds[LISTS_ALLOC], h.l.refills + 1000 * (uint64_t)most);
	assert_int_equal(h.pages[LISTS_FREE], h.l.free_zone);
	assert_int_equal(h.pages[LISTS_ALLOC], h.l.alloc_zone);
}

/* Against the rules spelled out, for one list. */
static void one_list_follows_the_rules(void **state)
{
	(void)state;
	for (int round = 0; round < 200; round++) {
		struct lists l = {.st = {.rules = round & 1 ? PCPTUNE_RULES_GX : PCPTUNE_RULES_G0,
					 .high = 500,
					 .high_min = 500,
					 .high_max = 500,
					 .batch = 63,
					 .scale_max = 5}};
		struct pcptune_rule_state st = l.st;
		uint64_t count = 0, in = 0, out = 0, refills = 0;

		for (int i = 0; i < 300; i++) {
			int64_t n = (int64_t)below(400) - 200;
			bool fired;

			lists_move(&l, 0, n);
			for (; n < 0; n++) {
				pcptune_rules_on_alloc(&st);
				if (!count) {
					count = pcptune_rules_refill(&st, 0, 0, 0);
					in += count;
					refills++;
				}
				count--;
			}
			for (; n > 0; n--) {
				uint32_t k =
					pcptune_rules_free(&st, 0, (uint32_t)++count, 0, &fired);

				count -= k;
				out += k;
			}
			assert_int_equal(l.pages, count);
			assert_int_equal(l.alloc_zone, in);
			assert_int_equal(l.free_zone, out);
			assert_int_equal(l.refills, refills);
			assert_memory_equal(&l.st, &st, sizeof(st));
		}
	}
}

static void pages_are_neither_made_nor_lost(void **state)
{
	struct lists l = {.st = {.rules = PCPTUNE_RULES_G4,
				 .high = 400,
				 .high_min = 400,
				 .high_max = 4000,
				 .batch = 63,
				 .scale_max = 5}};

	(void)state;
	for (int i = 0; i < 20000; i++) {
		static const uint32_t orders[] = {0, 1, 2, 3, 9, 10};
		uint64_t listed = 0;

		if (!below(50)) {
			uint32_t high = 63 + (uint32_t)below(5000);

			lists_limits(&l, high, high, high, 63, 5,
				     below(4) ? PCPTUNE_RULES_G4 : PCPTUNE_RULES_G0);
			assert_true(l.pages <= high);
		}
		lists_move(&l, orders[below(6)], (int64_t)below(41) - 20);
		for (uint32_t k = 0; k < 4; k++)
			listed += l.blocks[k] << k;
		listed += l.blocks[4] << 9;
		assert_int_equal(listed, l.pages);
		assert_int_equal(l.alloc_zone + l.free_pages,
				 l.pages + l.alloc_pages + l.free_zone);
	}
}

/* ---- traces ---- */

static char path[SCRATCH_MAX];

static void trace_begin(struct trace_writer **w, FILE **f, uint64_t levels)
{
	scratch_file(path, "pct");
	*f = fopen(path, "we");
	assert_non_null(*f);
	assert_int_equal(trace_writer_new_at(*f, "test", levels, w), 0);
}

static void trace_end(struct trace_writer *w, FILE *f)
{
	assert_int_equal(trace_writer_end(w), 0);
	trace_writer_free(w);
	assert_int_equal(fclose(f), 0);
}

/*
 * Bursts of three CPUs over five seconds; CPU 5 has the large ones. levels: CPUs 0 and 5 begin with
 * 40 and 300 pages.
 */
static void a_trace_at(uint64_t seed, bool levels)
{
	static const uint32_t cpus[] = {0, 2, 5};
	static const struct trace_row level[] = {{0, 0, 0, 40}, {0, 5, 0, 300}};
	struct trace_writer *w;
	FILE *f;

	random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	trace_begin(&w, &f, levels ? 2 : 0);
	for (size_t i = 0; levels && i < 2; i++)
		assert_int_equal(trace_write(w, &level[i]), 0);
	for (uint64_t i = 0; i < 5000; i++) {
		uint32_t c = (uint32_t)below(3);
		int64_t n = 1 + (int64_t)below(c == 2 ? 900 : 60);
		struct trace_row row = {i * 1000000, cpus[c], 0, below(2) ? n : -n};

		assert_int_equal(trace_write(w, &row), 0);
	}
	trace_end(w, f);
}

static void a_trace(uint64_t seed)
{
	a_trace_at(seed, false);
}

static struct grid_job job_of(const char *policy, const char *params)
{
	struct grid_job j = {0};
	char why[POLICY_WHY] = "";

	if (policy_load(policy, NULL, &j.module, why) ||
	    policy_params_parse(j.module, params, j.params, why))
		fail_msg("%s", why);
	return j;
}

/* Parameters of static, in the words of its table. */
static struct grid_job fixed(uint32_t high, uint32_t batch, const char *rules)
{
	char text[128];

	snprintf(text, sizeof(text), "high=%u batch=%u rules=%s keep=false", high, batch, rules);
	return job_of("static", text);
}

static void jobs_free(struct grid_job *j, size_t n)
{
	for (size_t i = 0; i < n; i++)
		policy_unref(j[i].module);
}

static struct grid_job defaults_of(const char *policy)
{
	struct grid_job j = {0};
	char why[POLICY_WHY] = "";

	if (policy_load(policy, NULL, &j.module, why))
		fail_msg("%s", why);
	policy_params_default(j.module, j.params);
	return j;
}

static void run(struct grid_trace *t, struct grid_job *j, size_t n, uint64_t budget,
		unsigned threads)
{
	char why[TRACE_WHY] = "";

	if (grid_trace_open(t, path, why))
		fail_msg("%s", why);
	assert_int_equal(grid_run(t, 1 << 20, budget, j, n, threads), 0);
	for (size_t i = 0; i < n; i++)
		if (j[i].error)
			fail_msg("%s", j[i].why);
}

/* Lists that hold something where the trace begins: what fits, and no move is counted for it. */
static void levels_are_there_and_cost_nothing(void **state)
{
	static const uint64_t capacity[] = {3, 63, 999};

	(void)state;
	for (uint64_t seed = 1; seed < 4; seed++) {
		struct grid_job j[] = {fixed(4, 1, "g0"), fixed(64, 1, "g0"), fixed(1000, 1, "g0")};
		struct grid_trace t;

		a_trace_at(seed, true);
		run(&t, j, 3, 0, 2);
		assert_int_equal(t.level_pages, 340);
		for (size_t i = 0; i < 3; i++) {
			struct pcptune_band_traffic sum = {0, 0};
			uint64_t told = 0;

			for (size_t k = 0; k < t.w.n; k++) {
				const struct walk *w = t.w.walk[k];
				uint64_t level = w->cpu == 0 ? 40 : w->cpu == 5 ? 300 : 0;
				struct pcptune_band_traffic c =
					curve_traffic(&w->curve, capacity[i],
						      level < capacity[i] ? level : capacity[i]);
				struct whatif p;

				walk_whatif(w, capacity[i] + 1, &p);
				assert_true(p.pages == p.pages_least && p.pages == p.pages_most);
				told += p.pages;
				sum.refilled += c.refilled;
				sum.drained += c.drained;
			}
			assert_int_equal(j[i].r.alloc_zone, sum.refilled);
			assert_int_equal(j[i].r.free_zone, sum.drained);
			assert_int_equal(told, sum.refilled + sum.drained);
			assert_true(j[i].has_floor && j[i].floor <= j[i].split);
			assert_true(j[i].split <= j[i].moved);
		}
		grid_trace_close(&t);
		jobs_free(j, 3);
	}
	unlink(path);
}

static void fixed_values_of_batch_1_move_what_the_curve_says(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed < 4; seed++) {
		struct grid_job j[] = {fixed(4, 1, "g0"), fixed(64, 1, "g0"), fixed(1000, 1, "g0")};
		struct grid_trace t;

		a_trace(seed);
		run(&t, j, 3, 0, 2);
		for (size_t i = 0; i < 3; i++) {
			uint64_t capacity = i == 0 ? 3 : i == 1 ? 63 : 999;
			struct pcptune_band_traffic sum = {0, 0};

			for (size_t k = 0; k < t.w.n; k++) {
				struct pcptune_band_traffic c =
					curve_traffic(&t.w.walk[k]->curve, capacity, 0);

				sum.refilled += c.refilled;
				sum.drained += c.drained;
			}
			assert_int_equal(j[i].r.alloc_zone, sum.refilled);
			assert_int_equal(j[i].r.free_zone, sum.drained);
			assert_int_equal(j[i].r.lock_takes, sum.refilled + sum.drained);
			assert_int_equal(j[i].memory, 3 * (capacity + 1));
			assert_true(j[i].has_floor && j[i].floor <= j[i].moved);
			assert_true(j[i].has_split && j[i].floor <= j[i].split);
			assert_true(j[i].split <= j[i].moved);
			assert_int_equal(j[i].r.decisions, 3);
			assert_int_equal(j[i].r.turns, 0);
		}
		grid_trace_close(&t);
		jobs_free(j, 3);
		unlink(path);
	}
}

static void threads_do_not_change_the_result(void **state)
{
	static const char *const names[] = {"static", "kernel", "contention"};
	struct grid_job a[6], b[6];
	struct grid_trace t;

	(void)state;
	a_trace(9);
	for (size_t i = 0; i < 6; i++) {
		a[i] = defaults_of(names[i % 3]);
		b[i] = defaults_of(names[i % 3]);
	}
	run(&t, a, 6, 3000, 1);
	grid_trace_close(&t);
	run(&t, b, 6, 3000, 4);
	for (size_t i = 0; i < 6; i++) {
		assert_memory_equal(&a[i].r, &b[i].r, sizeof(a[i].r));
		assert_int_equal(a[i].floor, b[i].floor);
		assert_int_equal(a[i].split, b[i].split);
		assert_int_equal(a[i].memory, 3000);
		assert_int_equal(a[i].r.breaches, 0);
		/* the first call and one each 100 ms of five seconds */
		assert_true(a[i].r.samples >= 49 && a[i].r.samples <= 51);
	}
	grid_trace_close(&t);
	jobs_free(a, 6);
	jobs_free(b, 6);
	unlink(path);
}

static void a_policy_meets_what_it_caused(void **state)
{
	struct grid_job j[] = {fixed(64, 0, "gx"), defaults_of("contention")};
	struct grid_trace t;
	struct trace_writer *w;
	FILE *f;

	(void)state;
	/* two CPUs whose holds of the lock meet all the time, for twenty seconds */
	trace_begin(&w, &f, 0);
	for (uint64_t i = 0; i < 40000; i++) {
		struct trace_row row = {i / 2 * 1000000, (uint32_t)(i & 1), 0,
					i / 2 % 2 ? 2000 : -2000};

		assert_int_equal(trace_write(w, &row), 0);
	}
	trace_end(w, f);
	run(&t, j, 2, 0, 2);
	assert_true(j[0].r.wait_ns > 0 && j[0].r.contend_pct > 0);
	/* it sees the waiting, raises high, and the waiting goes */
	assert_true(j[1].r.decisions > 2);
	assert_true(j[1].r.alloc_zone * 4 < j[0].r.alloc_zone);
	assert_true(j[1].r.wait_ns * 4 < j[0].r.wait_ns);
	grid_trace_close(&t);
	jobs_free(j, 2);
	unlink(path);
}

/* Rows centuries apart, backwards, with the largest numbers: an end in good time, exact counts. */
static void extremes_of_time_and_number_end(void **state)
{
	static const struct trace_row rows[] = {{INT64_MAX, 0, 0, -5},
						{0, 0, 0, 5},
						{INT64_MAX / 2, 1, 0, -TRACE_MAX_BLOCKS},
						{7, 1, 0, TRACE_MAX_BLOCKS},
						{INT64_MAX, 63, 0, 0},
						{1, 0, 10, -1}};
	struct grid_job j[] = {defaults_of("kernel"), defaults_of("contention")};
	struct grid_trace t;
	struct trace_writer *w;
	FILE *f;

	(void)state;
	for (int backwards = 0; backwards < 2; backwards++) {
		trace_begin(&w, &f, 0);
		for (size_t i = 0; i < 6; i++)
			assert_int_equal(trace_write(w, &rows[backwards ? 5 - i : i]), 0);
		trace_end(w, f);
		run(&t, j, 2, 0, 2);
		for (size_t i = 0; i < 2; i++) {
			assert_int_equal(j[i].r.alloc_pages, 5 + TRACE_MAX_BLOCKS + 1024);
			assert_int_equal(j[i].r.free_pages, 5 + TRACE_MAX_BLOCKS);
			assert_int_equal(j[i].r.alloc_direct, 1024);
			assert_int_equal(j[i].r.free_direct, 0);
		}
		grid_trace_close(&t);
		unlink(path);
	}
	jobs_free(j, 2);
}

static void held_pages_are_a_mean_over_time(void **state)
{
	static const struct trace_row rows[] = {
		{0, 0, 0, 300}, {1000000000, 0, 0, -200}, {4000000000, 0, 0, 1}};
	struct grid_job j = fixed(1000, 1, "g0");
	struct grid_trace t;
	struct trace_writer *w;
	FILE *f;

	(void)state;
	trace_begin(&w, &f, 0);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(trace_write(w, &rows[i]), 0);
	trace_end(w, f);
	run(&t, &j, 1, 0, 1);
	assert_true(j.r.held_mean == (300.0 + 3 * 100.0) / 4);
	assert_int_equal(j.r.held_peak, 300);
	grid_trace_close(&t);
	jobs_free(&j, 1);
	unlink(path);
}

/* Records follow each other without a hole: merged they are one tracker over everything. */
static void records_leave_nothing_out(void **state)
{
	struct pcptune_band whole, merged;
	struct recorder_moves m = {0}, sum = {0};
	struct pcptune_record rec;
	struct recorder r;
	uint64_t t = 5000000, dt = 0, last = 0;
	int64_t x = 0;
	uint32_t n = 0;

	(void)state;
	recorder_begin(&r, 13, t);
	pcptune_band_init(&whole);
	pcptune_band_init(&merged);
	pcptune_band_push(&whole, 0);
	for (int i = 0; i < 5000; i++) {
		x += (int64_t)below(400) - 200;
		recorder_move(&r, x);
		pcptune_band_push(&whole, x);
		m.refills += below(2);
		m.drained += below(50);
		t += below(20000);
		if (!recorder_cut(&r, 13, t, 1000, &m, &rec))
			continue;
		assert_true(n ? t - last >= 1000000 : t - 5000000 >= 400000); /* the 4th of 10 */
		assert_true(rec.index == 13 && rec.flags == 0);
		pcptune_band_merge(&merged, &rec.band);
		dt += rec.dt_us;
		sum.refills += rec.refills;
		sum.drained += rec.drained;
		assert_true(sum.refills == m.refills && sum.drained == m.drained);
		assert_memory_equal(merged.s, whole.s, whole.n * sizeof(whole.s[0]));
		assert_memory_equal(merged.count, whole.count, sizeof(whole.count));
		assert_memory_equal(merged.sum, whole.sum, sizeof(whole.sum));
		assert_int_equal(dt, t - 5000000);
		last = t;
		n++;
	}
	assert_true(n > 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(runs_do_what_single_calls_do),
		cmocka_unit_test(long_runs_do_what_single_calls_do),
		cmocka_unit_test(the_longest_rows_take_no_time),
		cmocka_unit_test(records_leave_nothing_out),
		cmocka_unit_test(one_list_follows_the_rules),
		cmocka_unit_test(pages_are_neither_made_nor_lost),
		cmocka_unit_test(levels_are_there_and_cost_nothing),
		cmocka_unit_test(fixed_values_of_batch_1_move_what_the_curve_says),
		cmocka_unit_test(threads_do_not_change_the_result),
		cmocka_unit_test(a_policy_meets_what_it_caused),
		cmocka_unit_test(extremes_of_time_and_number_end),
		cmocka_unit_test(held_pages_are_a_mean_over_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
