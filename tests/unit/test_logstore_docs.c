/* SPDX-License-Identifier: MIT */
/*
 * docs/log.md against the schema: each table and each column is explained, nothing else is, and
 * the ready queries run. Each read that filters finds an index.
 */
#include "logstore_fixture.h"
#include "tests/unit/source.h"

static char *doc;

static int docs_set_up(void **state)
{
	doc = source_text("docs/log.md");
	return fx_set_up(state);
}

static int docs_tear_down(void **state)
{
	free(doc);
	return fx_tear_down(state);
}

/* The section of a table, from its heading to the next; malloc'ed. */
static char *section(const char *table)
{
	char head[80], *begin, *end;

	snprintf(head, sizeof(head), "\n## %s\n", table);
	begin = strstr(doc, head);
	if (!begin) {
		fail_msg("table %s is not in docs/log.md", table);
		return NULL;
	}
	end = strstr(begin + 4, "\n## ");
	return strndup(begin, end ? (size_t)(end - begin) : strlen(begin));
}

static void check_columns(struct logstore *ls, const char *table)
{
	char *text = section(table), *p = text;
	sqlite3_stmt *st = NULL;
	int rows = 0, columns = 0;

	sqlite3_prepare_v2(ls->db, "SELECT name FROM pragma_table_info(?1)", -1, &st, NULL);
	sqlite3_bind_text(st, 1, table, -1, SQLITE_STATIC);
	while (sqlite3_step(st) == SQLITE_ROW) {
		char row[100];

		snprintf(row, sizeof(row), "\n| `%s` | ", (const char *)sqlite3_column_text(st, 0));
		if (!strstr(text, row))
			fail_msg("%s.%s is not explained", table, row + 4);
		columns++;
	}
	sqlite3_finalize(st);
	for (; (p = strstr(p, "\n| `")); p++)
		rows++;
	assert_int_equal(rows, columns);
	free(text);
}

static void test_tables(void **state)
{
	struct logstore *ls = fx_open(1 << 20);
	sqlite3_stmt *st = NULL;
	int tables = 0;

	(void)state;
	sqlite3_prepare_v2(ls->db,
			   "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE "
			   "'sqlite_%'",
			   -1, &st, NULL);
	while (sqlite3_step(st) == SQLITE_ROW) {
		check_columns(ls, (const char *)sqlite3_column_text(st, 0));
		tables++;
	}
	sqlite3_finalize(st);
	assert_int_equal(tables, 11);
	logstore_close(ls);
	fx_remove();
}

static void test_queries(void **state)
{
	struct logstore *ls = fx_open(1 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 1);
	struct chunk_totals c = fx_totals(1, 9);
	int n = 0;

	(void)state;
	OK(ls, logstore_decision_add(ls, &d));
	d.effect_n = 1;
	OK(ls, logstore_decision_effect(ls, &d));
	OK(ls, logstore_samples_add(ls, x.t.id, fx_t(1), &c, NULL, 0));
	OK(ls, logstore_event(ls, x.run, 0, fx_t(1), "gap", "late"));
	for (char *p = doc; (p = strstr(p, "```sql\n")); n++) {
		char *end = strstr(p += 7, "```"), *sql = strndup(p, (size_t)(end - p));
		char *error = NULL;

		if (sqlite3_exec(ls->db, sql, NULL, NULL, &error) != SQLITE_OK)
			fail_msg("%s: %s", sql, error);
		free(sql);
		p = end + 3;
	}
	assert_int_equal(n, 5);
	logstore_close(ls);
	fx_remove();
}

static void test_outcomes(void **state)
{
	char *text = section("outcome_def");

	(void)state;
	for (int i = LOG_JOURNALED; i <= LOG_FAILED; i++) {
		char word[64];

		snprintf(word, sizeof(word), "`%s`", log_outcome_name(i));
		assert_non_null(strstr(text, word));
	}
	assert_string_equal(log_outcome_name(-1), "unknown");
	assert_string_equal(log_outcome_name(99), "unknown");
	free(text);
}

static void test_indexes(void **state)
{
	static const char *const queries[] = {
		("SELECT * FROM sample WHERE target = 1 AND level = 0 AND (seq_last, id) > (1, 1) "
		 "ORDER BY seq_last, id LIMIT 1"),
		"SELECT * FROM decision WHERE target = 1 AND id > 5 ORDER BY id",
		"SELECT * FROM decision WHERE wall_us > 5",
		"SELECT * FROM assignment WHERE target = 1 AND id > 0 ORDER BY id",
		"SELECT * FROM state WHERE assignment = 1 AND seq <= 5 ORDER BY seq DESC, id DESC",
		"SELECT * FROM target WHERE run_tag = 5",
		"SELECT * FROM event WHERE target = 5",
		"SELECT id FROM sample WHERE level = 0 ORDER BY id LIMIT 5",
	};
	struct logstore *ls = fx_open(1 << 20);

	(void)state;
	for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]); i++) {
		sqlite3_stmt *st = NULL;
		char sql[300];

		snprintf(sql, sizeof(sql), "EXPLAIN QUERY PLAN %s", queries[i]);
		assert_int_equal(sqlite3_prepare_v2(ls->db, sql, -1, &st, NULL), SQLITE_OK);
		while (sqlite3_step(st) == SQLITE_ROW) {
			const char *plan = (const char *)sqlite3_column_text(st, 3);

			if (strstr(plan, "SCAN") || strstr(plan, "TEMP B-TREE FOR ORDER BY"))
				fail_msg("%s: %s", queries[i], plan);
		}
		sqlite3_finalize(st);
	}
	logstore_close(ls);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_queries),
		cmocka_unit_test(test_outcomes),
		cmocka_unit_test(test_indexes),
	};

	return cmocka_run_group_tests(tests, docs_set_up, docs_tear_down);
}
