/* SPDX-License-Identifier: MIT */
/*
 * The bound on the size: what gives way and in which order, that totals survive merging, the
 * journal behind a reader that stays, and what writing costs.
 */
#include <time.h>
#include "logstore_fixture.h"

static uint8_t data[32768];

static uint64_t file_bytes(const char *suffix)
{
	char p[200];
	struct stat st;

	snprintf(p, sizeof(p), "%s%s", fx_path, suffix);
	return stat(p, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void maintain_all(struct logstore *ls)
{
	bool more = true;

	for (int i = 0; more && i < 1000; i++)
		OK(ls, logstore_maintain(ls, &more));
	assert_false(more);
}

static void add_samples(struct logstore *ls, const struct fx_ids *x, uint64_t seq, size_t len)
{
	struct chunk_totals c = fx_totals(seq, seq);

	OK(ls, logstore_samples_add(ls, x->t.id, fx_t(seq), &c, data, len));
}

/* Raw chunks become minutes and hours; no total is lost; decisions stay. */
static void test_merge(void **state)
{
	const uint64_t max = 4 << 20;
	struct logstore *ls = fx_open(max);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 1);
	const int n = 4000; /* seconds: more than an hour */
	bool more;

	(void)state;
	OK(ls, logstore_decision_add(ls, &d));
	OK(ls, logstore_state_add(ls, x.a.id, 1, "old", 3));
	OK(ls, logstore_state_add(ls, x.a.id, 2, "new", 3));
	for (int i = 1; i <= n; i++) {
		add_samples(ls, &x, (uint64_t)i, 5000);
		if (i % 50 == 0) {
			OK(ls, logstore_maintain(ls, &more));
			assert_true(file_bytes("") + file_bytes("-wal") <= max);
		}
	}
	maintain_all(ls);
	assert_int_equal(fx_number(ls, "SELECT sum(alloc_pages) FROM sample"), 6 * n);
	assert_int_equal(fx_number(ls, "SELECT sum(lock_wait_ns) FROM sample"), 15 * n);
	assert_int_equal(fx_number(ls, "SELECT sum(n_samples) FROM sample"), n);
	assert_int_equal(fx_number(ls, "SELECT max(held_peak) FROM sample"), 100 + n);
	assert_true(fx_number(ls, "SELECT count(*) FROM sample WHERE level = 1") >= 40);
	assert_int_equal(
		fx_number(ls, "SELECT count(*) FROM sample WHERE level > 0 AND data <> x''"), 0);
	assert_int_equal(fx_number(ls, "SELECT max(n_samples) FROM sample WHERE level = 1"), 60);
	/* of the last second of its minute */
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM sample WHERE level = 1 AND "
				       "held_pages <> 16 + seq_last"),
			 0);
	/* the newest chunks are still raw, the oldest are not */
	assert_int_equal(fx_number(ls, "SELECT max(seq_last) FROM sample WHERE level = 0"), n);
	assert_true(fx_number(ls, "SELECT min(seq_first) FROM sample WHERE level = 0") >
		    fx_number(ls, "SELECT max(seq_first) FROM sample WHERE level = 1"));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), 1);
	/* of the states the later one serves the samples that are left */
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM state"), 1);
	assert_int_equal(fx_number(ls, "SELECT seq FROM state"), 2);
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	assert_true(file_bytes("") <= max);
	fx_remove();
}

/* Only when all else is gone do decisions go, and an event says so, once. */
static void test_decisions_go_last(void **state)
{
	const uint64_t max = 1 << 20;
	struct logstore *ls = fx_open(max);
	struct fx_ids x = fx_begin(ls);
	struct log_target ended = fx_target(x.run, "short"), later = fx_target(x.run, "later");
	const int n = 8000;
	bool more;
	int64_t row, gone = 1;

	(void)state;
	OK(ls, logstore_target_add(ls, &ended));
	OK(ls, logstore_target_end(ls, ended.id, fx_t(2), "exit"));
	OK(ls, logstore_target_add(ls, &later));
	for (int i = 1; i <= n; i++) {
		struct log_decision d = fx_decision(x.t.id, x.a.id, (uint64_t)i);

		if (i % 10 == 1)
			OK(ls, logstore_begin(ls));
		OK(ls, logstore_decision_add(ls, &d));
		if (i % 10 == 0) {
			row = 0;
			OK(ls, logstore_nochange(ls, &row, x.a.id, 2, "quiet", 1, 2, 2));
			OK(ls, logstore_commit(ls));
		}
		if (i % 100 == 0) {
			add_samples(ls, &x, (uint64_t)i, 100);
			OK(ls, logstore_maintain(ls, &more));
			if (file_bytes("") + file_bytes("-wal") > max)
				fail_msg("after %d decisions: %llu + %llu bytes, bound %llu; %lld "
					 "pages %lld free, more %d, trimming %d, min %lld",
					 i, (unsigned long long)file_bytes(""),
					 (unsigned long long)file_bytes("-wal"),
					 (unsigned long long)max,
					 (long long)fx_number(ls, "PRAGMA page_count"),
					 (long long)fx_number(ls, "PRAGMA freelist_count"), more,
					 ls->trimming,
					 (long long)fx_number(ls, "SELECT min(id) FROM decision"));
			/* nothing lesser is kept where a decision had to go */
			if (fx_number(ls, "SELECT min(id) FROM decision") > gone) {
				gone = fx_number(ls, "SELECT min(id) FROM decision");
				assert_int_equal(fx_number(ls, "SELECT count(*) FROM sample"), 0);
				assert_true(fx_number(ls, "SELECT count(*) FROM nochange") <= 1);
			}
		}
	}
	maintain_all(ls);
	assert_int_equal(fx_number(ls, "SELECT max(id) FROM decision"), n);
	assert_true(fx_number(ls, "SELECT min(id) FROM decision") > 1);
	assert_int_equal(fx_number(ls, "SELECT max(id) - min(id) + 1 - count(*) FROM decision"), 0);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM target"), 2);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM target WHERE name = 'short'"), 0);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM event WHERE kind = 'log-trimmed'"), 1);
	assert_true(fx_number(ls, "SELECT text LIKE '%older than id ' || (SELECT min(id) FROM "
				  "decision) || '%' FROM event WHERE kind = 'log-trimmed'"));
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	fx_remove();
}

/* A foreign reader that never ends its transaction: the journal stays bounded. */
static void test_stuck_reader(void **state)
{
	const uint64_t max = 16 << 20;
	struct logstore *ls = fx_open(max);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 1);
	sqlite3 *db = NULL;
	int refused = 0;
	bool more;

	(void)state;
	add_samples(ls, &x, 1, 10);
	assert_int_equal(sqlite3_open_v2(fx_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM sample", NULL, NULL, NULL),
			 SQLITE_OK);
	for (uint64_t i = 2; i <= 2000; i++) {
		struct chunk_totals c = fx_totals(i, i);
		int r = logstore_samples_add(ls, x.t.id, fx_t(i), &c, data, 10000);

		assert_true(r == 0 || r == -ENOSPC);
		if (r) {
			refused++;
			assert_non_null(strstr(logstore_error(ls), "a reader keeps the journal"));
		}
		if (i % 50 == 0) {
			OK(ls, logstore_decision_add(ls, &d));
			OK(ls, logstore_maintain(ls, &more));
		}
	}
	print_message("# journal behind the reader: %llu KiB of a bound of %llu KiB, %d refused\n",
		      (unsigned long long)file_bytes("-wal") / 1024, (unsigned long long)max / 1024,
		      refused);
	assert_true(refused > 100);
	assert_true(file_bytes("-wal") < max / 4);
	sqlite3_close(db);
	OK(ls, logstore_maintain(ls, &more));
	assert_true(file_bytes("-wal") < max / 16);
	add_samples(ls, &x, 3000, 10000);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), 40);
	logstore_close(ls);
	fx_remove();
}

/* A callback that dawdles, and even writes, keeps nobody up. */
static int slow_callback(const struct log_decision *d, const struct log_target *t,
			 const struct log_assignment *a, void *cookie)
{
	struct logstore *ls = cookie;

	(void)t;
	(void)a;
	if (d->id % 20 == 0) {
		int log_frames = -1, done = -1;

		OK(ls, logstore_event(ls, 1, 0, fx_t(1), "test", "written in between"));
		assert_int_equal(sqlite3_wal_checkpoint_v2(ls->db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
							   &log_frames, &done),
				 SQLITE_OK);
		assert_int_equal(file_bytes("-wal"), 0);
	}
	return 0;
}

static void test_slow_callback(void **state)
{
	struct logstore *ls = fx_open(8 << 20), *ro = NULL;
	struct fx_ids x = fx_begin(ls);
	struct log_filter f = {.cpu = -1};
	char why[LOGSTORE_WHY];

	(void)state;
	for (uint64_t i = 1; i <= 300; i++) {
		struct log_decision d = fx_decision(x.t.id, x.a.id, i);

		OK(ls, logstore_decision_add(ls, &d));
	}
	OK(ls, logstore_open_ro(fx_path, &ro, why));
	OK(ro, logstore_decisions(ro, &f, slow_callback, ls));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM event"), 15);
	logstore_close(ro);
	logstore_close(ls);
	fx_remove();
}

/* ---- cost ---- */

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* 200 targets, a chunk of 25 KB each a second: so many seconds' worth, with housekeeping. */
static void test_cost_of_samples(void **state)
{
	struct logstore *ls = fx_open(32 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_target t[200];
	const int seconds = 8; /* 40 MB: the bound is reached and trimming is part of it */
	double begin, used;
	bool more;

	(void)state;
	for (int i = 0; i < 200; i++) {
		t[i] = fx_target(x.run, "many");
		OK(ls, logstore_target_add(ls, &t[i]));
	}
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7);
	begin = cpu_s();
	for (int s = 1; s <= seconds; s++) {
		OK(ls, logstore_begin(ls));
		for (int i = 0; i < 200; i++) {
			struct chunk_totals c = fx_totals((uint64_t)s * 10, (uint64_t)s * 10 + 9);

			OK(ls,
			   logstore_samples_add(ls, t[i].id, fx_t((uint64_t)s), &c, data, 25000));
		}
		OK(ls, logstore_commit(ls));
		OK(ls, logstore_maintain(ls, &more));
	}
	used = cpu_s() - begin;
	print_message("# 200 targets, 25 KB a second each: %.2f %% of a core, %.0f rows/s of CPU\n",
		      100 * used / seconds, 200 * seconds / used);
	/* 5 % of a core is for the whole daemon; sanitizers cost more */
	assert_true(used / seconds < 0.25);
	logstore_close(ls);
	fx_remove();
}

static void test_cost_of_decisions(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	struct timespec a, b;
	const int n = 5000;
	double used, wall;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &a);
	used = cpu_s();
	for (int i = 1; i <= n; i++) {
		struct log_decision d = fx_decision(x.t.id, x.a.id, (uint64_t)i);

		OK(ls, logstore_decision_add(ls, &d));
	}
	used = cpu_s() - used;
	clock_gettime(CLOCK_MONOTONIC, &b);
	wall = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
	print_message("# decisions: %.0f commits/s, %.0f us of CPU each\n", n / wall,
		      1e6 * used / n);
	assert_true(used / n < 0.002);
	logstore_close(ls);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merge),		cmocka_unit_test(test_decisions_go_last),
		cmocka_unit_test(test_stuck_reader),	cmocka_unit_test(test_slow_callback),
		cmocka_unit_test(test_cost_of_samples), cmocka_unit_test(test_cost_of_decisions),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
