/* SPDX-License-Identifier: MIT */
/*
 * Trace files: every row as it was, and every damage told: a byte changed anywhere, a cut anywhere,
 * blocks left out, doubled or in another order, bytes behind the end, writes that fail.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pcptune/segment.h>
#include "lib/trace_private.h"
#include "tests/unit/random.h"

static uint64_t random_state = 20261130;

static uint64_t next_random(void)
{
	return random_next(&random_state);
}

/* Rows of all sizes; every tenth with extreme values. */
static struct trace_row a_row(uint64_t i)
{
	struct trace_row r = {.time_ns = i * 1000 + next_random() % 900,
			      .cpu = (uint32_t)(next_random() % 64),
			      .order = (uint32_t)(next_random() % 4),
			      .blocks = (int64_t)(next_random() % 33) - 16};

	if (i % 10 == 9)
		r = (struct trace_row){next_random() >> 1,
				       (uint32_t)(next_random() % PCPTUNE_MAX_CPUS),
				       (uint32_t)(next_random() % (PCPTUNE_MAX_ORDER + 1)),
				       next_random() & 1 ? TRACE_MAX_BLOCKS : -TRACE_MAX_BLOCKS};
	return r;
}

struct file {
	char *data;
	size_t len;
	struct trace_row *rows;
	size_t n;
};

static struct file make(size_t n)
{
	struct file f = {.n = n, .rows = calloc(n + 1, sizeof(struct trace_row))};
	FILE *out = open_memstream(&f.data, &f.len);
	struct trace_writer *w;

	assert_true(out && f.rows);
	assert_int_equal(trace_writer_new(out, "test", &w), 0);
	for (size_t i = 0; i < n; i++) {
		f.rows[i] = a_row(i);
		assert_int_equal(trace_write(w, &f.rows[i]), 0);
	}
	assert_int_equal(trace_writer_end(w), 0);
	trace_writer_free(w);
	assert_int_equal(fclose(out), 0);
	return f;
}

static void file_free(struct file *f)
{
	free(f->data);
	free(f->rows);
}

/* Reads bytes as a trace: how it ended, and how many rows came, all of them those of f. */
static int reads(const struct file *f, const char *data, size_t len, size_t *ret_rows, char *why)
{
	const struct trace_row *rows;
	struct trace_reader *r;
	size_t n, done = 0;
	int e = trace_open_stream(fmemopen((void *)(uintptr_t)data, len, "r"), "x.pct", &r, why);

	*ret_rows = 0;
	if (e)
		return e;
	while ((e = trace_next(r, &rows, &n, why)) == 1) {
		assert_true(done + n <= f->n);
		for (size_t i = 0; i < n; i++, done++)
			assert_true(rows[i].time_ns == f->rows[done].time_ns &&
				    rows[i].cpu == f->rows[done].cpu &&
				    rows[i].order == f->rows[done].order &&
				    rows[i].blocks == f->rows[done].blocks);
	}
	assert_int_equal(trace_rows_read(r), done);
	*ret_rows = done;
	trace_close(r);
	return e;
}

static void every_row_comes_back(void **state)
{
	static const size_t sizes[] = {
		0,     1, 2, 1000, TRACE_BLOCK_ROWS - 1, TRACE_BLOCK_ROWS, TRACE_BLOCK_ROWS + 1,
		200000};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct file f = make(sizes[i]);
		char why[TRACE_WHY] = "";
		size_t n;

		assert_int_equal(reads(&f, f.data, f.len, &n, why), 0);
		assert_int_equal(n, sizes[i]);
		assert_string_equal(why, "");
		file_free(&f);
	}
}

static void the_header_describes_the_file(void **state)
{
	struct file f = make(3);
	struct trace_reader *r;
	char why[TRACE_WHY];

	(void)state;
	assert_int_equal(trace_open_stream(fmemopen(f.data, f.len, "r"), "x.pct", &r, why), 0);
	assert_non_null(strstr(trace_header(r), "format=pcptune-trace\n"));
	assert_non_null(strstr(trace_header(r), "rows=time_ns,cpu,order,blocks\n"));
	assert_non_null(strstr(trace_header(r), "source=test\n"));
	trace_close(r);
	file_free(&f);
}

/* n rows, of which so many are said to be levels. */
static struct file make_levels(size_t n, uint64_t levels)
{
	struct file f = {.n = n, .rows = calloc(n + 1, sizeof(struct trace_row))};
	FILE *out = open_memstream(&f.data, &f.len);
	struct trace_row no_level = {.blocks = -1};
	struct trace_writer *w;

	assert_true(out && f.rows);
	assert_int_equal(trace_writer_new_at(out, "test", levels, &w), 0);
	for (size_t i = 0; i < n; i++) {
		f.rows[i] = (struct trace_row){i, 0, i % 4, i < levels ? (int64_t)i + 1 : -1};
		if (i < levels)
			assert_int_equal(trace_write(w, &no_level), -EINVAL);
		assert_int_equal(trace_write(w, &f.rows[i]), 0);
	}
	assert_int_equal(trace_writer_end(w), 0);
	trace_writer_free(w);
	assert_int_equal(fclose(out), 0);
	return f;
}

static void levels_are_told_from_movements(void **state)
{
	static const struct {
		size_t n;
		uint64_t levels;
	} tries[] = {{10, 0},
		     {10, 3},
		     {10, 10},
		     {3, 10}, /* cut short */
		     {TRACE_BLOCK_ROWS + 9, TRACE_BLOCK_ROWS},
		     {2 * TRACE_BLOCK_ROWS, TRACE_BLOCK_ROWS + 5}};

	(void)state;
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		struct file f = make_levels(tries[i].n, tries[i].levels);
		struct trace_reader *r;
		const struct trace_row *rows;
		char why[TRACE_WHY];
		size_t n, at = 0;

		assert_int_equal(trace_open_stream(fmemopen(f.data, f.len, "r"), "x", &r, why), 0);
		/* who does not know them must not read them */
		assert_non_null(strstr(trace_header(r),
				       tries[i].levels ? "\nversion=2\n" : "\nversion=1\n"));
		while (trace_next(r, &rows, &n, why) == 1)
			for (size_t k = 0; k < n; k++, at++)
				assert_int_equal(k < trace_levels(r), at < tries[i].levels);
		assert_int_equal(at, tries[i].n);
		trace_close(r);
		assert_int_equal(reads(&f, f.data, f.len, &n, why), 0);
		file_free(&f);
	}
}

/* The writer takes no such row for a level; one that another wrote is damage. */
static void a_level_is_above_0(void **state)
{
	struct file f = make_levels(5, 3);
	size_t text = TRACE_SIGNATURE_LEN + 4, len = trace_get32((uint8_t *)f.data + text - 4), n;
	char why[TRACE_WHY] = "", *levels = memmem(f.data, f.len, "levels=3", 8);

	(void)state;
	assert_non_null(levels);
	levels[7] = '4';
	trace_put32((uint8_t *)f.data + text + len, trace_crc(0, (uint8_t *)f.data + text, len));
	assert_int_equal(reads(&f, f.data, f.len, &n, why), -EBADMSG);
	assert_non_null(strstr(why, "rows out of range"));
	file_free(&f);
}

static void a_byte_changed_anywhere_is_noticed(void **state)
{
	struct file f = make(300);

	(void)state;
	for (size_t at = 0; at < f.len; at++) {
		char why[TRACE_WHY] = "";
		size_t n;
		int e;

		f.data[at] ^= (char)(1 << at % 8);
		e = reads(&f, f.data, f.len, &n, why);
		assert_true(e == -EBADMSG || e == -EINVAL);
		assert_non_null(strstr(why, "x.pct: "));
		f.data[at] ^= (char)(1 << at % 8);
	}
	file_free(&f);
}

static void a_cut_anywhere_is_noticed(void **state)
{
	struct file f = make(300);
	char why[TRACE_WHY];
	size_t n;

	(void)state;
	for (size_t len = 1; len < f.len; len++) {
		int e = reads(&f, f.data, len, &n, why);

		assert_int_equal(e, len < 12 ? -EINVAL : -EBADMSG);
		assert_true(n == 0 || n == 300);
	}
	assert_int_equal(reads(&f, f.data, f.len - 1, &n, why), -EBADMSG);
	assert_int_equal(n, 300);
	assert_non_null(strstr(why, "300 rows before it are good"));
	assert_non_null(strstr(why, "not known"));
	file_free(&f);
}

/* Offsets of blocks, and of the end. */
static size_t block_at(const struct file *f, unsigned number)
{
	const uint8_t *p = (const uint8_t *)f->data;
	size_t at = TRACE_SIGNATURE_LEN + 4 + trace_get32(p + TRACE_SIGNATURE_LEN) + 4;

	while (number--)
		at += TRACE_HEAD_LEN + trace_get32(p + at + 12);
	return at;
}

static void what_is_lost_is_counted(void **state)
{
	struct file f = make(3 * TRACE_BLOCK_ROWS + 5);
	char why[TRACE_WHY], want[64];
	size_t n;

	(void)state;
	f.data[block_at(&f, 2) + 100] ^= 4;
	assert_int_equal(reads(&f, f.data, f.len, &n, why), -EBADMSG);
	assert_int_equal(n, 2 * TRACE_BLOCK_ROWS);
	snprintf(want, sizeof(want), "%u of %u are lost", TRACE_BLOCK_ROWS + 5,
		 3 * TRACE_BLOCK_ROWS + 5);
	assert_non_null(strstr(why, want));
	snprintf(want, sizeof(want), "byte %zu", block_at(&f, 2));
	assert_non_null(strstr(why, want));
	file_free(&f);
}

static void blocks_left_out_or_doubled_are_noticed(void **state)
{
	struct file f = make(2 * TRACE_BLOCK_ROWS + 5);
	size_t a = block_at(&f, 0), b = block_at(&f, 1), n, len = f.len - (b - a);
	char why[TRACE_WHY], *other = malloc(2 * f.len);

	(void)state;
	assert_non_null(other);
	memcpy(other, f.data, a);
	memcpy(other + a, f.data + b, f.len - b);
	assert_int_equal(reads(&f, other, len, &n, why), -EBADMSG);
	assert_int_equal(n, 0);
	memcpy(other, f.data, b);
	memcpy(other + b, f.data + a, f.len - a);
	assert_int_equal(reads(&f, other, f.len + b - a, &n, why), -EBADMSG);
	assert_int_equal(n, TRACE_BLOCK_ROWS);
	assert_non_null(strstr(why, "missing or comes twice"));
	memcpy(other, f.data, f.len);
	other[f.len] = 'x';
	assert_int_equal(reads(&f, other, f.len + 1, &n, why), -EBADMSG);
	assert_non_null(strstr(why, "bytes behind the end"));
	free(other);
	file_free(&f);
}

static void strangers_are_told_from_newer_ones(void **state)
{
	struct file f = make(1);
	uint8_t *p = (uint8_t *)f.data;
	char why[TRACE_WHY], *v;
	uint32_t len = trace_get32(p + TRACE_SIGNATURE_LEN);
	size_t n;

	(void)state;
	assert_int_equal(reads(&f, "time_ns,cpu,order,blocks\n1,0,0,1\n", 33, &n, why), -EINVAL);
	assert_non_null(strstr(why, "pcptune trace import"));
	v = memmem(f.data, f.len, "version=1", 9);
	assert_non_null(v);
	v[8] = '7';
	trace_put32(p + 12 + len, trace_crc(0, p + 12, len));
	assert_int_equal(reads(&f, f.data, f.len, &n, why), -EPROTONOSUPPORT);
	assert_non_null(strstr(why, "version 7"));
	file_free(&f);
}

static void rows_out_of_range_are_refused(void **state)
{
	static const struct trace_row bad[] = {{UINT64_C(1) << 63, 0, 0, 1},
					       {0, PCPTUNE_MAX_CPUS, 0, 1},
					       {0, 0, PCPTUNE_MAX_ORDER + 1, 1},
					       {0, 0, 0, TRACE_MAX_BLOCKS + 1},
					       {0, 0, 0, INT64_MIN}};
	struct trace_writer *w;
	char *data;
	size_t len;
	FILE *out = open_memstream(&data, &len);

	(void)state;
	assert_int_equal(trace_writer_new(out, "test", &w), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(trace_write(w, &bad[i]), -EINVAL);
	trace_writer_free(w);
	fclose(out);
	free(data);
}

static void a_full_disk_is_an_error(void **state)
{
	FILE *out = fopen("/dev/full", "we");
	struct trace_row row = {1, 2, 3, 4};
	struct trace_writer *w;
	int e = 0;

	(void)state;
	if (!out)
		skip();
	setvbuf(out, NULL, _IONBF, 0);
	e = trace_writer_new(out, "test", &w);
	if (!e) {
		e = trace_write(w, &row);
		e = e ? e : trace_writer_end(w);
		trace_writer_free(w);
	}
	assert_int_equal(e, -ENOSPC);
	fclose(out);
}

/* ---- text ---- */

static int import(const char *text, size_t len, struct file *f, char *why)
{
	FILE *out = open_memstream(&f->data, &f->len),
	     *in = fmemopen((void *)(uintptr_t)text, len, "r");
	struct trace_writer *w = NULL;
	uint64_t rows = 0;
	int e;

	assert_true(in && out && !trace_writer_new(out, "csv", &w));
	e = trace_csv_import(in, "x.csv", w, &rows, why);
	if (!e)
		e = trace_writer_end(w);
	f->n = rows;
	trace_writer_free(w);
	fclose(in);
	fclose(out);
	return e;
}

static void text_goes_in_and_comes_out_the_same(void **state)
{
	char *text, *again, why[TRACE_WHY];
	size_t len, len2;
	FILE *t = open_memstream(&text, &len);
	struct trace_reader *r;
	struct file f = {0};
	uint64_t rows;

	(void)state;
	fputs(TRACE_CSV_HEADER "\n", t);
	for (uint64_t i = 0; i < 100000; i++) {
		struct trace_row row = a_row(i);

		fprintf(t, "%llu,%u,%u,%lld\n", (unsigned long long)row.time_ns, row.cpu, row.order,
			(long long)row.blocks);
	}
	fclose(t);
	assert_int_equal(import(text, len, &f, why), 0);
	assert_int_equal(f.n, 100000);
	assert_int_equal(trace_open_stream(fmemopen(f.data, f.len, "r"), "x.pct", &r, why), 0);
	t = open_memstream(&again, &len2);
	assert_int_equal(trace_csv_export(r, t, &rows, why), 0);
	assert_int_equal(rows, 100000);
	fclose(t);
	trace_close(r);
	assert_int_equal(len2, len);
	assert_memory_equal(text, again, len);
	free(text);
	free(again);
	free(f.data);
}

static void lines_that_are_no_rows_are_named(void **state)
{
	static const char *const bad[][2] = {
		{"", "line 1: the first line is"},
		{"time,cpu\n", "line 1: the first line is"},
		{TRACE_CSV_HEADER "\n1,2,3,4\n-1,0,0,1\n", "line 3: time_ns is"},
		{TRACE_CSV_HEADER "\n9223372036854775808,0,0,1\n", "line 2: time_ns is"},
		{TRACE_CSV_HEADER "\n1,8192,0,1\n", "line 2: cpu is"},
		{TRACE_CSV_HEADER "\n1,0,11,1\n", "line 2: order is"},
		{TRACE_CSV_HEADER "\n1,0,0,\n", "line 2: blocks is"},
		{TRACE_CSV_HEADER "\n1,0,0,2147483649\n", "line 2: blocks is"},
		{TRACE_CSV_HEADER "\n1,0,0,1,5\n", "line 2: blocks is"},
		{TRACE_CSV_HEADER "\n1,0,0,1.5\n", "line 2: blocks is"},
		{TRACE_CSV_HEADER "\n1,0,0\n", "line 2: order is"},
		{TRACE_CSV_HEADER "\n\n", "line 2: time_ns is"},
	};
	char longer[400] = TRACE_CSV_HEADER "\n", why[TRACE_WHY];
	struct file f = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		/* fmemopen takes no empty buffer */
		size_t len = strlen(bad[i][0]);

		assert_int_equal(import(len ? bad[i][0] : "\n", len ? len : 1, &f, why), -EINVAL);
		if (!strstr(why, bad[i][1]))
			fail_msg("%zu: %s", i, why);
		free(f.data);
	}
	memset(longer + strlen(longer), '1', 300);
	assert_int_equal(import(longer, strlen(longer), &f, why), -EINVAL);
	assert_non_null(strstr(why, "line 2: too long"));
	free(f.data);
	assert_int_equal(import(TRACE_CSV_HEADER "\r\n7,1,2,-3\r\n9,1,2,-4", 44, &f, why), 0);
	assert_int_equal(f.n, 2);
	free(f.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_comes_back),
		cmocka_unit_test(the_header_describes_the_file),
		cmocka_unit_test(levels_are_told_from_movements),
		cmocka_unit_test(a_level_is_above_0),
		cmocka_unit_test(a_byte_changed_anywhere_is_noticed),
		cmocka_unit_test(a_cut_anywhere_is_noticed),
		cmocka_unit_test(what_is_lost_is_counted),
		cmocka_unit_test(blocks_left_out_or_doubled_are_noticed),
		cmocka_unit_test(strangers_are_told_from_newer_ones),
		cmocka_unit_test(rows_out_of_range_are_refused),
		cmocka_unit_test(a_full_disk_is_an_error),
		cmocka_unit_test(text_goes_in_and_comes_out_the_same),
		cmocka_unit_test(lines_that_are_no_rows_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
