/* SPDX-License-Identifier: MIT */
/*
 * Texts for people: exact strings, since scripts and screenshots depend on them.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <pty.h>
#include <unistd.h>
#include <cmocka.h>
#include "lib/text.h"

static void test_nearest(void **state)
{
	static const char *const names[] = {"high", "high_min", "high_max", "batch", "interval_ms"};
	size_t n = sizeof(names) / sizeof(names[0]);
	char longest[200];

	(void)state;
	assert_string_equal(text_nearest("hgih", names, n), "high");
	assert_string_equal(text_nearest("HIGH", names, n), "high");
	assert_string_equal(text_nearest("hihg_min", names, n), "high_min");
	assert_string_equal(text_nearest("batsh", names, n), "batch");
	assert_string_equal(text_nearest("intervall_ms", names, n), "interval_ms");
	assert_null(text_nearest("nterval", names, n)); /* 4 edits of 11 */
	assert_null(text_nearest("zzzz", names, n));
	assert_null(text_nearest("", names, n));
	assert_null(text_nearest("high", names, 0));
	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	assert_null(text_nearest(longest, names, n));
}

static void test_bytes(void **state)
{
	static const struct {
		uint64_t v;
		const char *text;
	} rows[] = {
		{0, "0 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{13107200, "12.5 MiB"},
		{1048575, "1.0 MiB"}, /* not "1024.0 KiB" */
		{UINT64_C(1) << 40, "1.0 TiB"},
		{UINT64_MAX, "16.0 EiB"},
	};
	char buf[48];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_string_equal(text_bytes(rows[i].v, buf, sizeof(buf)), rows[i].text);
}

static void test_pages(void **state)
{
	char buf[48];

	(void)state;
	assert_string_equal(text_pages(378, buf, sizeof(buf)), "378 pages (1.5 MiB)");
	assert_string_equal(text_pages(1, buf, sizeof(buf)), "1 page (4.0 KiB)");
	assert_string_equal(text_pages(0, buf, sizeof(buf)), "0 pages (0 B)");
	assert_string_equal(text_pages(UINT64_MAX, buf, sizeof(buf)),
			    "18446744073709551615 pages (16.0 EiB)");
}

static void test_ns(void **state)
{
	char buf[48];

	(void)state;
	assert_string_equal(text_ns(0, buf, sizeof(buf)), "0 ns");
	assert_string_equal(text_ns(999, buf, sizeof(buf)), "999 ns");
	assert_string_equal(text_ns(1234, buf, sizeof(buf)), "1.2 us");
	assert_string_equal(text_ns(1200000, buf, sizeof(buf)), "1.2 ms");
	assert_string_equal(text_ns(999960000, buf, sizeof(buf)), "1.0 s");
	assert_string_equal(text_ns(UINT64_C(90) * 1000000000, buf, sizeof(buf)), "90.0 s");
	assert_string_equal(text_ns(UINT64_C(660) * 1000000000, buf, sizeof(buf)), "11.0 min");
	assert_string_equal(text_ns(UINT64_C(36000) * 1000000000, buf, sizeof(buf)), "10.0 h");
}

static void test_time(void **state)
{
	char buf[48];

	(void)state;
	setenv("TZ", "XXX-01:30", 1);
	tzset();
	assert_string_equal(text_time(UINT64_C(1796032923250999), buf, sizeof(buf)),
			    "2026-11-30 11:32:03.250");
	assert_string_equal(text_time_iso(UINT64_C(1796032923250999), buf, sizeof(buf)),
			    "2026-11-30T11:32:03.250+01:30");
	setenv("TZ", "UTC", 1);
	tzset();
	assert_string_equal(text_time_iso(UINT64_C(1796032923000000), buf, sizeof(buf)),
			    "2026-11-30T10:02:03.000+00:00");
}

static void test_parse(void **state)
{
	int64_t v = 77;

	(void)state;
	assert_int_equal(text_parse_i64("-12", &v), 0);
	assert_int_equal(v, -12);
	assert_int_equal(text_parse_i64("9223372036854775807", &v), 0);
	assert_int_equal(v, INT64_MAX);
	v = 77;
	assert_int_equal(text_parse_i64("9223372036854775808", &v), -ERANGE);
	assert_int_equal(text_parse_i64("", &v), -EINVAL);
	assert_int_equal(text_parse_i64(" 1", &v), -EINVAL);
	assert_int_equal(text_parse_i64("1 ", &v), -EINVAL);
	assert_int_equal(text_parse_i64("-", &v), -EINVAL);
	assert_int_equal(text_parse_i64("0x10", &v), -EINVAL);
	assert_int_equal(text_parse_size("-1", &v), -EINVAL);
	assert_int_equal(text_parse_size("", &v), -EINVAL);
	assert_int_equal(text_parse_size("k", &v), -EINVAL);
	assert_int_equal(text_parse_size("1kb", &v), -EINVAL);
	assert_int_equal(text_parse_size("1x", &v), -EINVAL);
	assert_int_equal(text_parse_size("8388608t", &v), -ERANGE);
	assert_int_equal(text_parse_size("99999999999999999999", &v), -ERANGE);
	assert_int_equal(v, 77); /* untouched by every failure */
	assert_int_equal(text_parse_size("4096", &v), 0);
	assert_int_equal(v, 4096);
	assert_int_equal(text_parse_size("64k", &v), 0);
	assert_int_equal(v, 65536);
	assert_int_equal(text_parse_size("2G", &v), 0);
	assert_int_equal(v, INT64_C(2) << 30);
	assert_int_equal(text_parse_size("8388607t", &v), 0);
	assert_int_equal(v, INT64_C(8388607) << 40);
}

static char *printed(const struct text_table *t, bool bold)
{
	char *text = NULL;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	assert_non_null(out);
	text_table_print(t, out, bold);
	fclose(out);
	return text;
}

static void test_table(void **state)
{
	struct text_table *t = text_table_new();
	char *text;

	(void)state;
	assert_non_null(t);
	text_table_column(t, "name", '<');
	text_table_column(t, "high", '>');
	text_table_column(t, "why", '<');
	text_table_cell(t, "%s", "sqlite3");
	text_table_cell(t, "%d", 378);
	text_table_cell(t, "misses");
	text_table_end_row(t);
	text_table_cell(t, "%s", "\303\244\033[2J"); /* a letter of two bytes, an escape */
	text_table_cell(t, "%d", 12345);
	text_table_end_row(t); /* short row */
	text = printed(t, false);
	assert_string_equal(text, "name      high  why\n"
				  "sqlite3    378  misses\n"
				  "\303\244?[2J    12345  \n");
	free(text);
	text = printed(t, true);
	assert_memory_equal(text, "\033[1mname      high  why\033[0m\n", 27);
	free(text);
	text_table_free(t);
	text_table_free(NULL);
}

static void test_clean(void **state)
{
	static const char *const rows[][2] = {
		{"", ""},
		{"page_fault1", "page_fault1"},
		{"\033[2J\r\n\t\177", "?[2J????"},
		{"\302\233\302\237\302\240", "????\302\240"}, /* C1; the first that is none */
		{"\303\244 \342\202\254 \360\237\230\200",
		 "\303\244 \342\202\254 \360\237\230\200"},
		{"a\303", "a?"},			     /* cut */
		{"\360\237\230", "???"},		     /* cut */
		{"\200\377\300\200", "????"},		     /* no beginning; overlong */
		{"\340\200\200\360\200\200\200", "???????"}, /* overlong */
		{"\355\240\200\364\220\200\200", "???????"}, /* surrogate; beyond the end */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char buf[64];

		snprintf(buf, sizeof(buf), "%s", rows[i][0]);
		text_clean(buf);
		assert_string_equal(buf, rows[i][1]);
	}
}

static void test_many_cells(void **state)
{
	struct text_table *t = text_table_new();
	size_t lines = 0;
	char *text;

	(void)state;
	text_table_column(t, "n", '>');
	for (int i = 0; i < 1000; i++) {
		text_table_cell(t, "%d", i);
		text_table_end_row(t);
	}
	text = printed(t, false);
	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	assert_int_equal(lines, 1001);
	assert_non_null(strstr(text, "\n  7\n"));
	assert_non_null(strstr(text, "\n999\n"));
	free(text);
	text_table_free(t);
}

static void test_colour(void **state)
{
	int master, slave;
	FILE *tty, *file = tmpfile();

	(void)state;
	unsetenv("NO_COLOR");
	setenv("TERM", "xterm", 1);
	assert_non_null(file);
	assert_false(text_colour(file));
	fclose(file);
	if (openpty(&master, &slave, NULL, NULL, NULL))
		skip();
	tty = fdopen(slave, "w");
	assert_true(text_colour(tty));
	setenv("NO_COLOR", "", 1); /* empty does not count */
	assert_true(text_colour(tty));
	setenv("NO_COLOR", "1", 1);
	assert_false(text_colour(tty));
	unsetenv("NO_COLOR");
	setenv("TERM", "dumb", 1);
	assert_false(text_colour(tty));
	fclose(tty);
	close(master);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nearest), cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_pages),	cmocka_unit_test(test_ns),
		cmocka_unit_test(test_time),	cmocka_unit_test(test_parse),
		cmocka_unit_test(test_table),	cmocka_unit_test(test_many_cells),
		cmocka_unit_test(test_colour),	cmocka_unit_test(test_clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
