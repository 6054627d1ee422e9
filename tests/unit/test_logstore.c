/* SPDX-License-Identifier: MIT */
/*
 * The log store: what is written comes back in every field, filters, nesting of transactions.
 */
#include <time.h>
#include "logstore_fixture.h"

/* ---- round trips ---- */

static int keep_decision(const struct log_decision *d, const struct log_target *t,
			 const struct log_assignment *a, void *cookie)
{
	struct {
		struct log_decision d;
		struct log_target t;
		struct log_assignment a;
	} *k = cookie;

	k->d = *d;
	k->t = *t;
	k->a = *a;
	return 0;
}

static void same_decision(const struct log_decision *k, const struct log_decision *d)
{
	assert_memory_equal(&k->arg, &d->arg, sizeof(d->arg));
	assert_memory_equal(&k->old, &d->old, sizeof(d->old));
	assert_memory_equal(&k->proposed, &d->proposed, sizeof(d->proposed));
	assert_memory_equal(&k->clamped, &d->clamped, sizeof(d->clamped));
	assert_int_equal(k->id, d->id);
	assert_int_equal(k->target, d->target);
	assert_int_equal(k->assignment, d->assignment);
	assert_int_equal(k->seq, d->seq);
	assert_int_equal(k->t.boot_us, d->t.boot_us);
	assert_int_equal(k->t.wall_us, d->t.wall_us);
	assert_int_equal(k->zone, d->zone);
	assert_int_equal(k->cpu, d->cpu);
	assert_int_equal(k->reason, d->reason);
	assert_string_equal(k->reason_name, d->reason_name);
	assert_int_equal(k->outcome, d->outcome);
	assert_int_equal(k->effect_n, d->effect_n);
	assert_int_equal(k->before_alloc_pages, d->before_alloc_pages);
	assert_int_equal(k->before_alloc_zone, d->before_alloc_zone);
	assert_int_equal(k->before_wait_ns, d->before_wait_ns);
	assert_int_equal(k->before_held, d->before_held);
	assert_int_equal(k->after_alloc_pages, d->after_alloc_pages);
	assert_int_equal(k->after_alloc_zone, d->after_alloc_zone);
	assert_true(k->after_wait_ns == d->after_wait_ns);
	assert_int_equal(k->after_held, d->after_held);
}

static void test_decision_round_trip(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 99), got;
	struct {
		struct log_decision d;
		struct log_target t;
		struct log_assignment a;
	} k;
	struct log_filter f = {.cpu = -1};

	(void)state;
	OK(ls, logstore_decision_add(ls, &d));
	assert_true(d.id > 0);
	OK(ls, logstore_decision_outcome(ls, d.id, LOG_APPLIED));
	d.outcome = LOG_APPLIED;
	d.effect_n = 10;
	d.before_alloc_pages = 1;
	d.before_alloc_zone = 2;
	d.before_wait_ns = 3;
	d.before_held = 4;
	d.after_alloc_pages = 5;
	d.after_alloc_zone = 6;
	d.after_wait_ns = UINT64_MAX;
	d.after_held = 8;
	OK(ls, logstore_decision_effect(ls, &d));
	memset(&k, 0x55, sizeof(k));
	OK(ls, logstore_decisions(ls, &f, keep_decision, &k));
	same_decision(&k.d, &d);
	assert_memory_equal(&k.t.shape, &x.t.shape, sizeof(x.t.shape));
	assert_string_equal(k.t.name, "redis-server");
	assert_int_equal(k.t.pid, 12);
	assert_int_equal(k.t.uid, 4000000000u);
	assert_true(k.t.random_id == x.t.random_id);
	assert_true(k.t.run_tag == x.t.run_tag);
	assert_int_equal(k.t.attached.wall_us, x.t.attached.wall_us);
	assert_int_equal(k.t.detached.wall_us, 0);
	assert_string_equal(k.a.policy, "contention");
	assert_string_equal(k.a.params, "raise=2 floor=64");
	assert_string_equal(k.a.version, "1.2");
	assert_string_equal(k.a.why, "default");
	assert_memory_equal(&k.a.shape, &x.a.shape, sizeof(x.a.shape));
	OK(ls, logstore_decision_get(ls, d.id, &got, NULL, NULL));
	assert_int_equal(got.id, d.id);
	assert_int_equal(logstore_decision_get(ls, 12345, &got, NULL, NULL), -ENOENT);
	assert_non_null(strstr(logstore_error(ls), "no decision 12345"));
	logstore_close(ls);
	fx_remove();
}

static void test_decision_by_hand(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, 0, 1), got;
	struct log_assignment a;

	(void)state;
	OK(ls, logstore_decision_add(ls, &d));
	OK(ls, logstore_decision_get(ls, d.id, &got, NULL, &a));
	assert_int_equal(got.assignment, 0);
	assert_int_equal(a.id, 0);
	assert_string_equal(a.policy, "");
	logstore_close(ls);
	fx_remove();
}

struct list {
	int64_t id[600];
	size_t n;
	int stop_at;
};

static int list_decision(const struct log_decision *d, const struct log_target *t,
			 const struct log_assignment *a, void *cookie)
{
	struct list *l = cookie;

	(void)t;
	(void)a;
	l->id[l->n++] = d->id;
	return l->stop_at && l->n == (size_t)l->stop_at ? 77 : 0;
}

static size_t count(struct logstore *ls, struct log_filter f, struct list *l)
{
	memset(l, 0, sizeof(*l));
	OK(ls, logstore_decisions(ls, &f, list_decision, l));
	for (size_t i = 1; i < l->n; i++)
		assert_true(l->id[i] > l->id[i - 1]);
	return l->n;
}

#define COUNT(ls, l, ...) count(ls, (struct log_filter){__VA_ARGS__}, l)

static void test_filters(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_target t2 = fx_target(x.run, "sqlite3");
	struct log_assignment a2;
	struct list l;
	struct log_filter all = {.cpu = -1};

	(void)state;
	t2.run_tag = 5;
	OK(ls, logstore_target_add(ls, &t2));
	a2 = fx_assignment(t2.id, "static");
	OK(ls, logstore_assignment_add(ls, &a2));
	for (uint64_t i = 1; i <= 500; i++) {
		bool odd = i & 1;
		struct log_decision d = fx_decision(odd ? x.t.id : t2.id, odd ? x.a.id : a2.id, i);

		OK(ls, logstore_decision_add(ls, &d));
	}
	assert_int_equal(COUNT(ls, &l, .cpu = -1), 500); /* several batches */
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .target = t2.id), 250);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .name = "sqlite3"), 250);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .name = "sqlite"), 0);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .policy = "static"), 250);
	assert_int_equal(COUNT(ls, &l, .cpu = 0), 125);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .run_tag = 5), 250);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .run_tag = 0x8000000000000001), 250);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .after_id = 490), 10);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .since_wall_us = fx_t(401).wall_us), 100);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .limit = 200), 200);
	assert_int_equal(l.id[0], 1);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .limit = 200, .newest = true), 200);
	assert_int_equal(l.id[0], 301);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .limit = 3, .newest = true, .name = "sqlite3"),
			 3);
	assert_int_equal(l.id[0], 496);
	assert_int_equal(COUNT(ls, &l, .cpu = 2, .limit = 900, .newest = true), 125);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .before_id = 11), 10);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .in_zone = true, .zone = 1), 500);
	assert_int_equal(COUNT(ls, &l, .cpu = -1, .in_zone = true, .zone = 0), 0);
	assert_int_equal(COUNT(ls, &l, .cpu = 2, .before_id = 301, .limit = 1, .newest = true), 1);
	assert_int_equal(l.id[0], 298);
	memset(&l, 0, sizeof(l));
	l.stop_at = 130;
	assert_int_equal(logstore_decisions(ls, &all, list_decision, &l), 77);
	assert_int_equal(l.n, 130);
	logstore_close(ls);
	fx_remove();
}

static int count_rows(const struct log_target *t, void *cookie)
{
	(*(int *)cookie)++;
	return t->id > 0 ? 0 : -1;
}

static int count_assignments(const struct log_assignment *a, void *cookie)
{
	(*(int *)cookie)++;
	return a->id > 0 ? 0 : -1;
}

static int last_event(int64_t id, int64_t target, struct logstamp t, const char *kind,
		      const char *text, void *cookie)
{
	snprintf(cookie, 200, "%lld %lld %llu %s %s", (long long)id, (long long)target,
		 (unsigned long long)t.boot_us, kind, text);
	return 0;
}

static void test_targets_events_ends(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_filter f = {.cpu = -1};
	char text[200] = "";
	int n = 0;

	(void)state;
	OK(ls, logstore_targets(ls, &f, count_rows, &n));
	assert_int_equal(n, 1);
	OK(ls, logstore_target_end(ls, x.t.id, fx_t(9), "killed"));
	assert_int_equal(fx_number(ls, "SELECT detached_boot_us FROM target WHERE end = 'killed'"),
			 9000000);
	f.since_wall_us = fx_t(10).wall_us;
	n = 0;
	OK(ls, logstore_targets(ls, &f, count_rows, &n));
	assert_int_equal(n, 0);
	f = (struct log_filter){.cpu = -1, .policy = "contention"};
	OK(ls, logstore_targets(ls, &f, count_rows, &n));
	assert_int_equal(n, 1);
	n = 0;
	OK(ls, logstore_assignments(ls, x.t.id, count_assignments, &n));
	assert_int_equal(n, 1);
	OK(ls, logstore_event(ls, x.run, 0, fx_t(3), "gap", "it's \"late\""));
	f = (struct log_filter){.cpu = -1};
	OK(ls, logstore_events(ls, &f, last_event, text));
	assert_string_equal(text, "1 0 3000000 gap it's \"late\"");
	OK(ls, logstore_event(ls, x.run, x.t.id, fx_t(4), "drift", "x"));
	f.name = "redis-server";
	OK(ls, logstore_events(ls, &f, last_event, text));
	assert_string_equal(text, "2 1 4000000 drift x");
	OK(ls, logstore_run_end(ls, x.run, fx_t(10), "stopped"));
	assert_int_equal(logstore_run_end(ls, 99, fx_t(10), "stopped"), -ENOENT);
	assert_int_equal(logstore_target_end(ls, 99, fx_t(10), "x"), -ENOENT);
	assert_int_equal(logstore_decision_outcome(ls, 99, LOG_APPLIED), -ENOENT);
	assert_int_equal(logstore_event(ls, x.run, 99, fx_t(4), "drift", "x"), -EINVAL);
	logstore_close(ls);
	fx_remove();
}

struct chunks {
	uint64_t first[64];
	int n;
	uint8_t byte;
	size_t len;
	struct chunk_totals last;
	struct logstore *ls;
};

static int keep_chunk(const struct chunk_totals *c, struct logstamp t, const uint8_t *data,
		      size_t len, void *cookie)
{
	struct chunks *k = cookie;

	assert_int_equal(t.boot_us, fx_t(c->seq_last).boot_us);
	/* no statement is open while a callback runs */
	for (sqlite3_stmt *st = NULL; (st = sqlite3_next_stmt(k->ls->db, st));)
		assert_false(sqlite3_stmt_busy(st));
	k->first[k->n++] = c->seq_first;
	k->byte = len ? data[len - 1] : 0;
	k->len = len;
	k->last = *c;
	return 0;
}

static void test_chunks_states(void **state)
{
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	uint8_t data[3000];
	struct chunks k = {.ls = ls};
	struct chunk_totals c;
	uint64_t seq = 0;
	size_t n = 0;
	void *st = NULL;
	int64_t row = 0;

	(void)state;
	memset(data, 0xab, sizeof(data));
	for (uint64_t i = 0; i < 10; i++) {
		c = fx_totals(i * 10 + 1, i * 10 + 10);
		OK(ls, logstore_samples_add(ls, x.t.id, fx_t(c.seq_last), &c, data, i * 300));
	}
	OK(ls, logstore_chunks(ls, x.t.id, 0, keep_chunk, &k));
	assert_int_equal(k.n, 10);
	assert_int_equal(k.first[0], 1);
	assert_int_equal(k.len, 2700);
	assert_int_equal(k.byte, 0xab);
	assert_memory_equal(&k.last, &c, sizeof(c));
	k.n = 0;
	OK(ls, logstore_chunks(ls, x.t.id, 50, keep_chunk, &k));
	assert_int_equal(k.first[0], 41);
	assert_int_equal(k.n, 6);
	k.n = 0;
	OK(ls, logstore_chunks(ls, x.t.id, 51, keep_chunk, &k));
	assert_int_equal(k.first[0], 51);
	k.n = 0;
	OK(ls, logstore_chunks(ls, 999, 0, keep_chunk, &k));
	assert_int_equal(k.n, 0);

	assert_int_equal(logstore_state_get(ls, x.a.id, 100, &seq, &st, &n), -ENOENT);
	assert_null(st);
	OK(ls, logstore_state_add(ls, x.a.id, 10, "abc", 3));
	OK(ls, logstore_state_add(ls, x.a.id, 20, NULL, 0));
	OK(ls, logstore_state_get(ls, x.a.id, 19, &seq, &st, &n));
	assert_int_equal(seq, 10);
	assert_int_equal(n, 3);
	assert_memory_equal(st, "abc", 3);
	free(st);
	OK(ls, logstore_state_get(ls, x.a.id, UINT64_MAX, &seq, &st, &n));
	assert_int_equal(seq, 20);
	assert_int_equal(n, 0);
	free(st);

	OK(ls, logstore_nochange(ls, &row, x.a.id, 3, "quiet", 1, 1, 1));
	OK(ls, logstore_nochange(ls, &row, x.a.id, 3, "quiet", 1, 9, 9));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM nochange"), 1);
	assert_int_equal(fx_number(ls, "SELECT seq_last FROM nochange"), 9);
	sqlite3_exec(ls->db, "DELETE FROM nochange", NULL, NULL, NULL);
	OK(ls, logstore_nochange(ls, &row, x.a.id, 3, "quiet", 1, 12, 12));
	assert_int_equal(fx_number(ls, "SELECT n FROM nochange"), 12);
	logstore_close(ls);
	fx_remove();
}

/* ---- transactions ---- */

static void test_transactions(void **state)
{
	struct logstore *ls = fx_open(64 << 20), *ro = NULL;
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 1), bad = d;
	char why[LOGSTORE_WHY];
	int64_t id = 0;

	(void)state;
	OK(ls, logstore_open_ro(fx_path, &ro, why));
	OK(ls, logstore_begin(ls));
	OK(ls, logstore_begin(ls));
	OK(ls, logstore_decision_add(ls, &d));
	OK(ls, logstore_commit(ls));
	assert_int_equal(fx_number(ro, "SELECT count(*) FROM decision"), 0);
	OK(ls, logstore_commit(ls));
	assert_int_equal(fx_number(ro, "SELECT count(*) FROM decision"), 1);
	assert_int_equal(logstore_commit(ls), -EINVAL);

	OK(ls, logstore_begin(ls));
	OK(ls, logstore_begin(ls));
	OK(ls, logstore_decision_add(ls, &d));
	logstore_rollback(ls);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), 1);
	assert_int_equal(logstore_commit(ls), -EINVAL);

	/* a failed write dooms its transaction as a whole, and only that */
	OK(ls, logstore_begin(ls));
	OK(ls, logstore_decision_add(ls, &d));
	bad.target = 4711;
	id = bad.id;
	assert_int_equal(logstore_decision_add(ls, &bad), -EINVAL);
	assert_int_equal(bad.id, id);
	assert_int_equal(logstore_decision_add(ls, &d), -EINVAL);
	assert_non_null(strstr(logstore_error(ls), "add a decision"));
	assert_int_equal(logstore_commit(ls), -EINVAL);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), 1);
	OK(ls, logstore_decision_add(ls, &d));
	assert_int_equal(fx_number(ro, "SELECT count(*) FROM decision"), 2);

	assert_int_equal(logstore_decision_add(ro, &d), -EROFS);
	assert_int_equal(logstore_begin(ro), -EROFS);
	logstore_close(ro);
	logstore_close(ls);
	fx_remove();
}

/* Somebody else writes: an error within the time-out, and all is well after. */
static void test_busy(void **state)
{
	struct logstore *a = fx_open(8 << 20), *b = NULL;
	struct logstore_options o = {.max_bytes = 8 << 20, .busy_ms = 50};
	struct fx_ids x = fx_begin(a);
	struct timespec t0, t1;
	char why[LOGSTORE_WHY];

	(void)state;
	assert_int_equal(logstore_open(fx_path, &o, &b, NULL, why), 0);
	OK(a, logstore_begin(a));
	OK(a, logstore_event(a, x.run, 0, fx_t(1), "a", "first"));
	clock_gettime(CLOCK_MONOTONIC, &t0);
	assert_int_equal(logstore_begin(b), -EBUSY);
	assert_int_equal(logstore_event(b, x.run, 0, fx_t(1), "b", "refused"), -EBUSY);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	assert_true(t1.tv_sec - t0.tv_sec < 5);
	OK(a, logstore_commit(a));
	OK(b, logstore_event(b, x.run, 0, fx_t(1), "b", "second"));
	assert_int_equal(fx_number(a, "SELECT count(*) FROM event"), 2);
	logstore_close(b);
	logstore_close(a);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decision_round_trip),
		cmocka_unit_test(test_decision_by_hand),
		cmocka_unit_test(test_filters),
		cmocka_unit_test(test_targets_events_ends),
		cmocka_unit_test(test_chunks_states),
		cmocka_unit_test(test_transactions),
		cmocka_unit_test(test_busy),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
