/* SPDX-License-Identifier: MIT */
/*
 * Policies over the records of a log: cycles added up beforehand against the histogram itself, the
 * copy of one moment, the same result with any number of threads, and of a log that goes on.
 */
#include <signal.h>
#include <sys/resource.h>
#include "eval/relive.h"
#include "eval/swings.h"
#include <pcptune/rules.h>
#include "logstore_fixture.h"
#include "tests/unit/random.h"

static uint64_t seed = 7;
static bool grows;	      /* batches, in the log */
static unsigned octaves = 27; /* that swings may have */

static uint64_t below(uint64_t n)
{
	return (random_next(&seed) >> 11) % n;
}

/* A record's worth of swings, few or many, small or large, from *x on. */
static void swing(struct pcptune_band *b, int64_t *x)
{
	uint64_t n = below(below(2) ? 300 : 4), size = UINT64_C(1) << below(octaves);

	pcptune_band_init(b);
	pcptune_band_push(b, *x);
	for (uint64_t i = 0; i < n; i++)
		pcptune_band_push(b, *x += (int64_t)below(2 * size + 1) - (int64_t)size);
}

/* ---- cycles added up ---- */

static void same_play(const struct pcptune_band *b, const struct swings *s, uint64_t capacity)
{
	struct pcptune_band_traffic t = {3, 4}, u = t;
	int64_t p = b->start - (int64_t)below(1000), q = p;

	assert_int_equal(swings_cycles(s, b, capacity), pcptune_band_cycles(b, capacity, NULL));
	pcptune_band_play_record(b, capacity, &p, &t);
	swings_play(s, b, capacity, &q, &u);
	assert_int_equal(p, q);
	assert_memory_equal(&t, &u, sizeof(t));
}

static void added_up_cycles_are_those_of_the_histogram(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		struct pcptune_band b;
		struct swings s;
		int64_t x = (int64_t)below(100000);

		swing(&b, &x);
		swings_of(&b, &s);
		for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++) {
			same_play(&b, &s, pcptune_band_edge(i));
			same_play(&b, &s, pcptune_band_edge(i) + 1);
			same_play(&b, &s, below(UINT64_C(1) << (1 + below(30))));
		}
	}
}

/* ---- logs ---- */

#define N_CPUS 37u

struct writing {
	struct logstore *ls;
	struct fx_ids x;
	int64_t at[N_CPUS];
	uint64_t seq;
};

static struct log_record record_of(struct writing *w, uint32_t cpu)
{
	struct log_record r = {.seq = w->seq,
			       .time_us = w->seq * 1000000,
			       .parts = 1,
			       .high = 400,
			       .high_least = 400,
			       .high_most = 400,
			       .batch = 63,
			       .scale_max = 5,
			       .rules = grows ? PCPTUNE_RULES_GX : PCPTUNE_RULES_G0};

	r.r.index = cpu;
	r.r.dt_us = 1000000;
	swing(&r.r.band, &w->at[cpu]);
	r.r.refills = below(50);
	r.r.refilled = r.r.refills * 63;
	r.r.drains = below(50);
	r.r.drained = r.r.drains * 63;
	r.alloc_pages = r.r.refilled + below(1000);
	r.free_pages = r.r.drained + below(1000);
	r.lock_taken = r.r.refills + r.r.drains;
	r.lock_contended = below(r.lock_taken + 1);
	r.lock_wait_ns = r.lock_contended * 700;
	r.count = (uint32_t)below(400);
	return r;
}

/* A second of each CPU a row, and now and then one CPU rests. */
static void go_on(struct writing *w, unsigned seconds)
{
	struct records_writer out = {0};

	for (unsigned i = 0; i < seconds; i++) {
		struct chunk_totals c;

		w->seq++;
		c = fx_totals(w->seq, w->seq);
		records_reset(&out);
		for (uint32_t k = 0; k < N_CPUS; k++) {
			struct log_record r = record_of(w, k);

			if (below(9))
				assert_int_equal(records_add(&out, &r), 0);
		}
		OK(w->ls, logstore_samples_add(w->ls, w->x.t.id, fx_t(w->seq), &c, NULL, 0));
		OK(w->ls, logstore_records_add(w->ls, w->x.t.id, fx_t(w->seq), &out));
	}
	records_free(&out);
}

static void begin(struct writing *w, unsigned seconds)
{
	octaves = 13;
	*w = (struct writing){.ls = fx_open(64 << 20)};
	w->x = fx_begin(w->ls);
	go_on(w, seconds);
	/* the first half as if a maintainer had merged it */
	OK(w->ls, logstore_exec(w->ls, "UPDATE record SET level = 1, bucket = id WHERE id < 60"));
}

static void end(struct writing *w)
{
	logstore_close(w->ls);
	fx_remove();
}

static struct logstore *open_ro(void)
{
	char why[LOGSTORE_WHY] = "";
	struct logstore *ls = NULL;

	if (logstore_open_ro(fx_path, &ls, why))
		fail_msg("%s", why);
	return ls;
}

/* More of everything, and what was there is gone or elsewhere. */
static void disturb(struct writing *w)
{
	struct log_assignment a = fx_assignment(w->x.t.id, "kernel");

	a.seq_first = 5;
	OK(w->ls, logstore_exec(w->ls, "DELETE FROM record WHERE id % 3 = 0"));
	OK(w->ls,
	   logstore_exec(w->ls, "UPDATE record SET level = 2, bucket = id WHERE id % 3 = 1"));
	OK(w->ls, logstore_assignment_add(w->ls, &a));
	go_on(w, 40);
}

/* ---- the copy ---- */

struct rows {
	uint64_t n, bytes, sum;
};

static void add_row(struct rows *rows, const struct log_records_row *row, const uint8_t *data,
		    size_t len)
{
	rows->n++;
	rows->bytes += len;
	rows->sum = rows->sum * 31 + row->level + row->seq_last;
	for (size_t i = 0; i < len; i++)
		rows->sum = rows->sum * 31 + data[i];
}

static int on_row(const struct log_records_row *row, const uint8_t *data, size_t len, void *cookie)
{
	add_row(cookie, row, data, len);
	return 0;
}

static struct rows rows_of(const struct log_copy *copy)
{
	struct log_records_row row;
	struct rows rows = {0, 0, 0};
	const uint8_t *data;
	size_t at = 0, len;

	while (log_copy_next(copy, &at, &row, &data, &len))
		add_row(&rows, &row, data, len);
	return rows;
}

static void a_copy_is_of_one_moment(void **state)
{
	struct rows before = {0, 0, 0}, after = {0, 0, 0}, got;
	struct logstore *ro;
	struct log_copy *copy = NULL;
	struct writing w;

	(void)state;
	begin(&w, 150);
	OK(w.ls, logstore_records(w.ls, w.x.t.id, 0, on_row, &before));
	ro = open_ro();
	OK(ro, logstore_snapshot(ro));
	disturb(&w);
	OK(ro, logstore_records_copy(ro, w.x.t.id, &copy));
	logstore_snapshot_end(ro);
	assert_int_equal(before.n, 150);
	got = rows_of(copy);
	assert_memory_equal(&got, &before, sizeof(got));
	/* what comes after the snapshot is seen again, and nobody is kept from anything */
	OK(ro, logstore_records(ro, w.x.t.id, 0, on_row, &after));
	assert_true(after.n != before.n);
	assert_int_equal(
		sqlite3_wal_checkpoint_v2(w.ls->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL),
		SQLITE_OK);
	log_copy_free(copy);
	logstore_close(ro);
	end(&w);
}

static void a_copy_of_nothing_has_no_row(void **state)
{
	struct log_copy *copy = NULL;
	struct logstore *ro;
	struct writing w;

	(void)state;
	begin(&w, 0);
	ro = open_ro();
	OK(ro, logstore_records_copy(ro, w.x.t.id, &copy));
	assert_int_equal(rows_of(copy).n, 0);
	log_copy_free(copy);
	logstore_close(ro);
	end(&w);
}

/*
 * Each size that a file may have, from one that has no row to one that has not all of the last one.
 */
static void a_copy_that_finds_no_room_is_none(void **state)
{
	struct rlimit kept, least = {0, 0};
	struct log_copy *copy = NULL;
	struct rows rows = {0, 0, 0};
	struct logstore *ro;
	struct writing w;

	(void)state;
	begin(&w, 20);
	OK(w.ls, logstore_records(w.ls, w.x.t.id, 0, on_row, &rows));
	ro = open_ro();
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &kept);
	least.rlim_max = kept.rlim_max;
	for (; least.rlim_cur < rows.bytes; least.rlim_cur += 777) {
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
		assert_int_equal(logstore_records_copy(ro, w.x.t.id, &copy), -EFBIG);
		assert_null(copy);
		assert_non_null(strstr(logstore_error(ro), "a copy of the records in "));
	}
	setrlimit(RLIMIT_FSIZE, &kept);
	signal(SIGXFSZ, SIG_DFL);
	OK(ro, logstore_records_copy(ro, w.x.t.id, &copy));
	assert_int_equal(rows_of(copy).n, 20);
	log_copy_free(copy);
	logstore_close(ro);
	end(&w);
}

/* ---- running ---- */

static const char *const names[] = {"static", "kernel", "contention", "knee"};
#define N_JOBS 6u

struct outcome {
	struct relive_log log;
	struct relive_sums sums[N_JOBS];
	unsigned named;
};

static void count_named(void *cookie, const char *policy)
{
	struct outcome *o = cookie;

	assert_string_equal(policy, "contention");
	o->named++;
}

static struct policy_module *module_of(const char *name)
{
	struct policy_module *m = NULL;
	char why[RELIVE_WHY] = "";

	if (policy_load(name, NULL, &m, why))
		fail_msg("%s", why);
	return m;
}

static struct outcome run_with(struct logstore *ls, const struct log_target *t,
			       struct relive_options o)
{
	struct relive_job jobs[N_JOBS] = {{.kind = RELIVE_AS_SET}, {.kind = RELIVE_RECORDED}};
	struct outcome out = {0};
	char why[RELIVE_WHY] = "";

	for (size_t i = 0; i < 4; i++) {
		jobs[2 + i].kind = RELIVE_POLICY;
		jobs[2 + i].module = module_of(names[i]);
		if (policy_params_parse(jobs[2 + i].module, "", jobs[2 + i].params, why))
			fail_msg("%s", why);
	}
	if (relive_target(ls, t, &o, jobs, N_JOBS, &out.log, why))
		fail_msg("%s", why);
	for (size_t i = 0; i < N_JOBS; i++)
		out.sums[i] = jobs[i].sums;
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(jobs[2 + i].error, 0);
		assert_true(out.sums[2 + i].moved > 0);
		policy_unref(jobs[2 + i].module);
	}
	return out;
}

/* Far more records than are unpacked at a time, with policies of which one is slow. */
static void same_with_threads(unsigned seconds, bool growing)
{
	struct outcome one, many;
	struct logstore *ro;
	struct writing w;

	grows = growing;
	begin(&w, seconds);
	ro = open_ro();
	one = run_with(ro, &w.x.t, (struct relive_options){.threads = 1});
	assert_true(one.log.records > 25 * seconds && one.log.steps > seconds / 2);
	for (unsigned threads = 2; threads < 6; threads = threads * 2 + 1) {
		many = run_with(ro, &w.x.t, (struct relive_options){.threads = threads});
		assert_memory_equal(&one, &many, sizeof(one));
	}
	logstore_close(ro);
	end(&w);
}

static void any_number_of_threads_gives_the_same(void **state)
{
	(void)state;
	same_with_threads(90, false);
	same_with_threads(70, true);
	grows = false;
}

struct disturber {
	struct writing *w;
	bool done;
};

static void disturb_once(void *cookie, const char *policy)
{
	struct disturber *d = cookie;

	(void)policy;
	if (!d->done)
		disturb(d->w);
	d->done = true;
}

/* What is written while policies run is of no account: all rows are of the same time. */
static void a_log_that_goes_on_is_told_as_it_was(void **state)
{
	struct outcome before, during, after;
	struct disturber d;
	struct logstore *ro;
	struct writing w;

	(void)state;
	begin(&w, 80);
	d = (struct disturber){.w = &w};
	ro = open_ro();
	before = run_with(ro, &w.x.t, (struct relive_options){.threads = 3});
	during = run_with(
		ro, &w.x.t,
		(struct relive_options){.threads = 3, .on_recorded = disturb_once, .cookie = &d});
	assert_true(d.done);
	assert_memory_equal(&before, &during, sizeof(before));
	after = run_with(ro, &w.x.t, (struct relive_options){.threads = 3});
	assert_true(memcmp(&before, &after, sizeof(before)) != 0);
	logstore_close(ro);
	end(&w);
}

static void each_recorded_policy_is_named(void **state)
{
	struct outcome out = {0};
	struct logstore *ro;
	struct writing w;

	(void)state;
	begin(&w, 5);
	ro = open_ro();
	run_with(ro, &w.x.t,
		 (struct relive_options){.threads = 1, .on_recorded = count_named, .cookie = &out});
	assert_int_equal(out.named, 1);
	logstore_close(ro);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(added_up_cycles_are_those_of_the_histogram),
		cmocka_unit_test(a_copy_is_of_one_moment),
		cmocka_unit_test(a_copy_of_nothing_has_no_row),
		cmocka_unit_test(a_copy_that_finds_no_room_is_none),
		cmocka_unit_test(any_number_of_threads_gives_the_same),
		cmocka_unit_test(a_log_that_goes_on_is_told_as_it_was),
		cmocka_unit_test(each_recorded_policy_is_named),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
