/* SPDX-License-Identifier: MIT */
/*
 * Packed records: exact there and back, small, merged without loss, and no bytes that do harm; rows
 * of them in the log, through its size bound and from an older schema.
 */
#include "lib/records.h"
#include "logstore_fixture.h"
#include "tests/unit/random.h"

/* ---- records of known content ---- */

static uint64_t seed;

static uint64_t rnd(uint64_t n)
{
	return random_next(&seed) % n;
}

/* Lists whose position wanders, with a swing now and then. */
static void wander(struct pcptune_band *b, int64_t *x, unsigned steps)
{
	pcptune_band_push(b, *x);
	for (unsigned i = 0; i < steps; i++) {
		*x += (int64_t)rnd(201) - 100;
		if (!rnd(20))
			*x += (int64_t)rnd(20001) - 10000;
		pcptune_band_push(b, *x);
	}
}

/* What is above the turning points is left over from others, and is not packed. */
static void tidy(struct log_record *r)
{
	for (uint32_t i = r->r.band.n; i < PCPTUNE_BAND_STACK; i++)
		r->r.band.s[i] = 0;
}

static struct log_record record_of(uint32_t cpu, uint64_t seq, int64_t *x, unsigned steps)
{
	struct log_record r = {.r = {.index = cpu, .dt_us = 10000000 + rnd(1000)},
			       .seq = seq,
			       .time_us = 5000000000 + seq * 100000,
			       .parts = 1};

	pcptune_band_init(&r.r.band);
	wander(&r.r.band, x, steps);
	tidy(&r);
	r.r.refills = rnd(1000);
	r.r.refilled = r.r.refills * 63;
	r.r.drains = rnd(1000);
	r.r.drained = r.r.drains * 63 + rnd(5);
	r.alloc_pages = rnd(1000000);
	r.free_pages = r.alloc_pages + rnd(1000);
	r.lock_taken = r.r.refills + r.r.drains;
	r.batch = 63;
	r.high = r.high_least = r.high_most = 378;
	r.scale_max = 5;
	r.rules = 4;
	r.count = (uint32_t)rnd(400);
	return r;
}

static void add_ok(struct records_writer *w, const struct log_record *r)
{
	assert_int_equal(records_add(w, r), 0);
}

static void next_is(struct records_reader *rd, const struct log_record *r)
{
	struct log_record got;

	assert_int_equal(records_next(rd, &got), 1);
	assert_memory_equal(&got, r, sizeof(got));
}

/* ---- there and back ---- */

static void test_round_trip(void **state)
{
	struct records_writer w = {0};
	struct log_record r[50], none;
	struct records_reader rd;
	int64_t x = 0;

	(void)state;
	seed = 7;
	for (unsigned i = 0; i < 50; i++) {
		r[i] = record_of(i % 7, i, &x, i * 10);
		r[i].given = i % 3 == 0;
		if (i % 5 == 0) {
			r[i].r.flags = PCPTUNE_RECORD_BROKEN;
			r[i].lock_contended = 3;
			r[i].lock_wait_ns = 12345678;
			r[i].high_most = 5000;
			r[i].alloc_direct = 17;
			r[i].free_high = 1;
			r[i].parts = 9;
		}
		add_ok(&w, &r[i]);
	}
	assert_int_equal(w.n, 50);
	assert_int_equal(w.seq_first, 0);
	assert_int_equal(w.seq_last, 49);
	records_begin(&rd, w.data, w.len);
	for (unsigned i = 0; i < 50; i++)
		next_is(&rd, &r[i]);
	assert_int_equal(records_next(&rd, &none), 0);
	records_reset(&w);
	add_ok(&w, &r[3]);
	records_begin(&rd, w.data, w.len);
	next_is(&rd, &r[3]);
	records_free(&w);
}

/* A collapsed stack has a first turning point that is not the beginning. */
static void test_collapsed(void **state)
{
	struct records_writer w = {0};
	struct log_record r = {.parts = 1, .r.index = 8191};
	struct records_reader rd;
	int64_t x = 0;

	(void)state;
	for (int i = 1; i < 200; i++) { /* ranges that only grow: nothing closes */
		x = i % 2 ? (int64_t)i * i : -(int64_t)i * i;
		pcptune_band_push(&r.r.band, x);
	}
	tidy(&r);
	assert_true(r.r.band.collapsed > 0);
	assert_true(r.r.band.s[0] != r.r.band.start);
	add_ok(&w, &r);
	records_begin(&rd, w.data, w.len);
	next_is(&rd, &r);
	records_free(&w);
}

static void test_size(void **state)
{
	struct records_writer w = {0};
	int64_t x = 0;

	(void)state;
	seed = 3;
	for (unsigned i = 0; i < 100; i++) {
		struct log_record r = record_of(i, i, &x, 400);

		add_ok(&w, &r);
	}
	assert_in_range(w.len / w.n, 60, 200);
	records_free(&w);
}

/* What no reader would take is not written. */
static void test_refused(void **state)
{
	struct records_writer w = {0};
	struct log_record good = {.parts = 1}, r;

	(void)state;
	r = good;
	r.r.band.n = PCPTUNE_BAND_STACK;
	assert_int_equal(records_add(&w, &r), -ERANGE);
	r = good;
	r.r.band.start = INT64_MIN;
	assert_int_equal(records_add(&w, &r), -ERANGE);
	r = good;
	r.r.band.count[20] = 5; /* with a sum of 0 */
	assert_int_equal(records_add(&w, &r), -ERANGE);
	r = good;
	r.r.drained = UINT64_MAX;
	assert_int_equal(records_add(&w, &r), -ERANGE);
	r = good;
	r.parts = 0;
	assert_int_equal(records_add(&w, &r), -ERANGE);
	assert_int_equal(w.n, 0);
	records_free(&w);
}

/* Any bytes: an error, or records that can be computed with; cut anywhere: an error. */
static void test_damage(void **state)
{
	struct records_writer w = {0};
	struct pcptune_band_traffic t;
	struct records_reader rd;
	struct log_record r, sum;
	int64_t x = 0;
	int e = 0;

	(void)state;
	seed = 11;
	for (unsigned i = 0; i < 3; i++) {
		r = record_of(i, i, &x, 100);
		add_ok(&w, &r);
	}
	for (size_t cut = 1; cut < w.len; cut++) {
		unsigned n = 0;

		records_begin(&rd, w.data, cut);
		while ((e = records_next(&rd, &r)) == 1)
			n++;
		assert_true(e == -EBADMSG || n < 3);
	}
	for (int i = 0; i < 20000; i++) {
		size_t at = rnd(w.len);
		uint8_t was = w.data[at];

		w.data[at] = (uint8_t)rnd(256);
		records_begin(&rd, w.data, w.len);
		sum = (struct log_record){.parts = 1};
		while ((e = records_next(&rd, &r)) == 1) {
			log_record_merge(&sum, &r);
			t = pcptune_band_traffic(&r.r.band, 1000, 10, NULL);
			assert_true(t.refilled < UINT64_MAX);
		}
		assert_true(e == 0 || e == -EBADMSG);
		w.data[at] = was;
	}
	records_free(&w);
}

/* ---- merging ---- */

/* Of three CPUs, packed in parts: for each the record that one tracker over all would have been. */
static void test_merge(void **state)
{
	struct records_writer part[10] = {0}, w = {0};
	struct records_part parts[10];
	static struct log_record whole[3];
	int64_t x[3] = {0, 1000, -70000};
	struct records_reader rd;

	(void)state;
	seed = 5;
	for (unsigned i = 0; i < 10; i++) {
		for (uint32_t c = 0; c < 3; c++) {
			struct log_record r = record_of(c * 200, i, &x[c], 50);

			if (i == 0)
				whole[c] = r;
			else
				assert_true(log_record_merge(&whole[c], &r));
			add_ok(&part[i], &r);
		}
		parts[i] = (struct records_part){part[i].data, part[i].len};
	}
	assert_int_equal(records_merge(parts, 10, &w), 0);
	assert_int_equal(w.n, 3);
	records_begin(&rd, w.data, w.len);
	for (uint32_t c = 0; c < 3; c++) {
		assert_int_equal(whole[c].parts, 10);
		assert_int_equal(whole[c].r.band.start, c == 0 ? 0 : c == 1 ? 1000 : -70000);
		assert_int_equal(pcptune_band_now(&whole[c].r.band), x[c]);
		tidy(&whole[c]);
		next_is(&rd, &whole[c]);
	}
	for (unsigned i = 0; i < 10; i++)
		records_free(&part[i]);
	records_free(&w);
}

/* Where something is missing records stay apart. */
static void test_merge_holes(void **state)
{
	struct records_writer p = {0}, w = {0};
	struct records_part part;
	struct log_record r[4];
	int64_t x = 0;
	struct records_reader rd;

	(void)state;
	seed = 9;
	for (unsigned i = 0; i < 4; i++) {
		x += i == 3 ? 5 : 0; /* does not meet the one before */
		r[i] = record_of(4, i, &x, 20);
		r[i].r.flags = i == 2 ? PCPTUNE_RECORD_BROKEN : 0;
		add_ok(&p, &r[i]);
	}
	part = (struct records_part){p.data, p.len};
	assert_int_equal(records_merge(&part, 1, &w), 0);
	assert_true(log_record_merge(&r[0], &r[1]));
	tidy(&r[0]);
	assert_false(log_record_merge(&r[0], &r[2]));
	assert_false(log_record_merge(&r[2], &r[3]));
	records_begin(&rd, w.data, w.len);
	next_is(&rd, &r[0]);
	next_is(&rd, &r[2]);
	next_is(&rd, &r[3]);
	records_free(&p);
	records_free(&w);
}

/* Adds up what is in parts, for each of two CPUs 200 apart, whatever meets what. */
static void sums_of(const void *data, size_t len, uint32_t parts[2], uint64_t pages[2])
{
	struct records_reader rd;
	struct log_record r;

	memset(parts, 0, 2 * sizeof(*parts));
	memset(pages, 0, 2 * sizeof(*pages));
	records_begin(&rd, data, len);
	while (records_next(&rd, &r) == 1) {
		assert_true(r.r.index == 0 || r.r.index == 200); /* two passes of a merge */
		parts[r.r.index / 200] += r.parts;
		pages[r.r.index / 200] += r.alloc_pages;
	}
}

/* One part of five is damaged, the first, one between or the last: the others are merged whole. */
static void test_merge_damage(void **state)
{
	struct records_writer part[5] = {0}, w = {0};
	struct records_part parts[5];
	uint64_t pages[5][2], got_pages[2];
	uint32_t n[2];
	int64_t x[2] = {0, 1000};

	(void)state;
	seed = 6;
	for (unsigned i = 0; i < 5; i++) {
		for (uint32_t c = 0; c < 2; c++) {
			struct log_record r = record_of(c * 200, i, &x[c], 50);

			pages[i][c] = r.alloc_pages;
			add_ok(&part[i], &r);
		}
	}
	for (unsigned bad = 0; bad < 5; bad++) {
		for (unsigned i = 0; i < 5; i++)
			parts[i] = (struct records_part){part[i].data, i == bad ? 1 : part[i].len};
		records_reset(&w);
		assert_int_equal(records_merge(parts, 5, &w), -EBADMSG);
		sums_of(w.data, w.len, n, got_pages);
		for (uint32_t c = 0; c < 2; c++) {
			uint64_t all = 0;

			for (unsigned i = 0; i < 5; i++)
				all += i == bad ? 0 : pages[i][c];
			assert_int_equal(n[c], 4);
			assert_int_equal(got_pages[c], all);
		}
	}
	for (unsigned i = 0; i < 5; i++)
		records_free(&part[i]);
	records_free(&w);
}

/* ---- in the log ---- */

static int collect(const struct log_records_row *row, const uint8_t *data, size_t len, void *cookie)
{
	struct log_record *sum = cookie, r;
	struct records_reader rd;
	int e;

	assert_true(row->seq_first <= row->seq_last);
	records_begin(&rd, data, len);
	while ((e = records_next(&rd, &r)) == 1) {
		if (!sum[r.r.index].parts)
			sum[r.r.index] = r;
		else
			assert_true(log_record_merge(&sum[r.r.index], &r));
	}
	assert_int_equal(e, 0);
	return 0;
}

static void same(struct log_record *a, struct log_record *b)
{
	tidy(a);
	tidy(b);
	assert_memory_equal(&a->r, &b->r, sizeof(a->r));
	assert_int_equal(a->parts, b->parts);
	assert_int_equal(a->alloc_pages, b->alloc_pages);
	assert_int_equal(a->lock_taken, b->lock_taken);
	assert_int_equal(a->seq, b->seq);
}

#define MANY 40u

/* So many CPUs for n seconds, in chunks that fill the log far beyond its bound. */
static void fill_log(struct logstore *ls, const struct fx_ids *x, int n, uint32_t cpus,
		     struct log_record *whole)
{
	static uint8_t data[2000];
	struct records_writer w = {0};
	int64_t pos[MANY] = {0};
	bool more;

	OK(ls, logstore_begin(ls));
	for (int i = 1; i <= n; i++) {
		struct chunk_totals c = fx_totals((uint64_t)i, (uint64_t)i);

		OK(ls, logstore_samples_add(ls, x->t.id, fx_t((uint64_t)i), &c, data, 2000));
		records_reset(&w);
		for (uint32_t k = 0; k < cpus && i % 10 == 0; k++) {
			struct log_record r = record_of(k, (uint64_t)i, &pos[k], 30);

			add_ok(&w, &r);
			if (!whole[k].parts)
				whole[k] = r;
			else
				assert_true(log_record_merge(&whole[k], &r));
		}
		if (w.n)
			OK(ls, logstore_records_add(ls, x->t.id, fx_t((uint64_t)i), &w));
		if (i % 40)
			continue;
		OK(ls, logstore_commit(ls));
		OK(ls, logstore_maintain(ls, &more));
		OK(ls, logstore_begin(ls));
	}
	OK(ls, logstore_commit(ls));
	records_free(&w);
}

/* Records follow their samples to minutes, whole; nothing of them is lost. */
static void test_log_merges(void **state)
{
	static struct log_record whole[2], got[2];
	struct logstore *ls = fx_open(4 << 20);
	struct fx_ids x = fx_begin(ls);

	(void)state;
	seed = 21;
	memset(whole, 0, sizeof(whole));
	memset(got, 0, sizeof(got));
	fill_log(ls, &x, 4000, 2, whole);
	assert_true(fx_number(ls, "SELECT count(*) FROM record WHERE level = 1") >= 40);
	assert_true(fx_number(ls, "SELECT count(*) FROM record WHERE level = 0") > 0);
	assert_int_equal(fx_number(ls, "SELECT max(n_records) FROM record WHERE level = 1"), 2);
	/* no record has gone ahead of its samples */
	assert_true(fx_number(ls, "SELECT max(seq_last) FROM record WHERE level = 1") <
		    fx_number(ls, "SELECT min(seq_first) FROM sample WHERE level = 0"));
	OK(ls, logstore_records(ls, x.t.id, 0, collect, got));
	same(&got[0], &whole[0]);
	same(&got[1], &whole[1]);
	logstore_close(ls);
	fx_remove();
}

static int count_parts(const struct log_records_row *row, const uint8_t *data, size_t len,
		       void *cookie)
{
	struct records_reader rd;
	struct log_record r;
	int e;

	(void)row;
	records_begin(&rd, data, len);
	while ((e = records_next(&rd, &r)) == 1)
		*(uint64_t *)cookie += r.parts;
	assert_int_equal(e, 0);
	return 0;
}

/* A damaged row of the log costs itself when its minute is merged, and nothing else. */
static void test_log_damage(void **state)
{
	static struct log_record whole[2];
	struct logstore *ls = fx_open(64 << 20);
	struct fx_ids x = fx_begin(ls);
	uint64_t parts = 0;
	bool more = true;

	(void)state;
	seed = 23;
	memset(whole, 0, sizeof(whole));
	fill_log(ls, &x, 2000, 2, whole);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM record WHERE level = 0"), 200);
	assert_int_equal(sqlite3_exec(ls->db,
				      "UPDATE record SET data = substr(data, 1, 1) WHERE id = 3",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	logstore_close(ls);
	ls = fx_open(1 << 20);
	while (more)
		OK(ls, logstore_maintain(ls, &more));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM record WHERE length(data) = 1"), 0);
	assert_true(fx_number(ls, "SELECT count(*) FROM record WHERE level > 0") > 0);
	OK(ls, logstore_records(ls, x.t.id, 0, count_parts, &parts));
	assert_int_equal(parts, 2 * (200 - 1));
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	fx_remove();
}

/* Merged records have a share of the bound: beyond it minutes become hours, then the oldest go. */
static void test_log_share(void **state)
{
	static struct log_record whole[MANY];
	struct logstore *ls = fx_open(4 << 20);
	struct fx_ids x = fx_begin(ls);

	(void)state;
	seed = 22;
	memset(whole, 0, sizeof(whole));
	fill_log(ls, &x, 20000, MANY, whole);
	assert_true(fx_number(ls, "SELECT sum(length(data)) FROM record WHERE level > 0") <=
		    (1 << 20) + 8192);
	assert_true(fx_number(ls, "SELECT count(*) FROM record WHERE level = 2") > 0);
	assert_true(fx_number(ls, "SELECT count(*) FROM sample WHERE level = 0") > 0);
	assert_int_equal(
		ls->merged_bytes < 0
			? 0
			: ls->merged_bytes -
				  fx_number(ls,
					    "SELECT sum(length(data)) FROM record WHERE level > 0"),
		0);
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	fx_remove();
}

/* A log of the first schema is read as it is, and brought up to this one by a writer. */
static void test_older_schema(void **state)
{
	static struct log_record got[2];
	struct logstore *ls = fx_open(1 << 20);
	struct fx_ids x = fx_begin(ls);
	struct records_writer w = {0};
	struct log_record r = {.parts = 1};
	char why[LOGSTORE_WHY] = "";

	(void)state;
	memset(got, 0, sizeof(got));
	assert_int_equal(sqlite3_exec(ls->db, "DROP TABLE record; PRAGMA user_version = 1", NULL,
				      NULL, NULL),
			 SQLITE_OK);
	logstore_close(ls);
	if (logstore_open_ro(fx_path, &ls, why))
		fail_msg("%s", why);
	OK(ls, logstore_records(ls, x.t.id, 0, collect, got));
	assert_int_equal(got[0].parts, 0);
	logstore_close(ls);
	ls = fx_open(1 << 20);
	assert_int_equal(fx_number(ls, "PRAGMA user_version"), LOGSTORE_SCHEMA);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM target"), 1);
	add_ok(&w, &r);
	OK(ls, logstore_records_add(ls, x.t.id, fx_t(3), &w));
	OK(ls, logstore_records(ls, x.t.id, 0, collect, got));
	assert_int_equal(got[0].parts, 1);
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	records_free(&w);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_collapsed),
		cmocka_unit_test(test_size),	    cmocka_unit_test(test_refused),
		cmocka_unit_test(test_damage),	    cmocka_unit_test(test_merge),
		cmocka_unit_test(test_merge_holes), cmocka_unit_test(test_merge_damage),
		cmocka_unit_test(test_log_merges),  cmocka_unit_test(test_log_damage),
		cmocka_unit_test(test_log_share),   cmocka_unit_test(test_older_schema),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
