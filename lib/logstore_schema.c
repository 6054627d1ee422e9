/* SPDX-License-Identifier: MIT */
/*
 * The schema of the log, and the text of every statement that is kept.
 *
 * Tables are STRICT and their columns NOT NULL, save for references that may be absent. Numbers
 * that are u64 elsewhere are stored as the int64 with the same bits. docs/log.md explains each
 * column; a unit test compares it with this file.
 *
 * Version 2 added the table `record`. What a version adds is in its list of steps, which brings an
 * older log up to it; readers of an older log find nothing there.
 *
 * A sample row of level 0 is a chunk of packed samples (data); levels 1 and 2 are the totals of a
 * minute and of an hour, without data. `bucket` is the beginning of that minute or hour.
 *
 * Constant data; written by nobody.
 */
#include <stdio.h>
#include <string.h>
#include "lib/logstore_private.h"

/* clang-format off */
#define INT " INTEGER NOT NULL"
#define ZERO " INTEGER NOT NULL DEFAULT 0"
#define SHAPE_COLUMNS \
	"n_zones" INT ", n_cpus" INT ", host_cpus" INT ", managed_pages" INT ", low_wmark_pages" INT \
	", budget_pages" INT ", high_limit" INT ", interval_ms" INT
#define LIMITS_COLUMNS(p) \
	p "_high" INT ", " p "_high_min" INT ", " p "_high_max" INT ", " p "_batch" INT ", " \
	p "_scale_max" INT ", " p "_rules" INT
#define EFFECT_COLUMNS(p) \
	p "_alloc_pages" ZERO ", " p "_alloc_zone" ZERO ", " p "_wait_ns" ZERO ", " p "_held" ZERO

#define RECORD_TABLE \
	"CREATE TABLE record (id INTEGER PRIMARY KEY, " \
	"target INTEGER NOT NULL REFERENCES target(id) ON DELETE CASCADE, " \
	"level INTEGER NOT NULL CHECK (level BETWEEN 0 AND 2), bucket" INT ", boot_us" INT ", " \
	"wall_us" INT ", seq_first" INT ", seq_last" INT ", n_records" INT ", time_us" INT ", " \
	"data BLOB NOT NULL) STRICT", \
	"CREATE INDEX record_target ON record(target, level, seq_last)", \
	"CREATE INDEX record_level ON record(level)", \
	"CREATE UNIQUE INDEX record_bucket ON record(target, level, bucket) WHERE level > 0",

static const char *const schema[] = {
	"CREATE TABLE run (id INTEGER PRIMARY KEY, version TEXT NOT NULL, config TEXT NOT NULL, "
	"begin_boot_us" INT ", begin_wall_us" INT ", end_boot_us" ZERO ", end_wall_us" ZERO ", "
	"end_why TEXT NOT NULL DEFAULT '') STRICT",

	"CREATE TABLE target (id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run(id), "
	"name TEXT NOT NULL, pid" INT ", uid" INT ", start_boot_ns" INT ", random_id" INT ", "
	"run_tag" INT ", mode" INT ", seg_flags" INT ", " SHAPE_COLUMNS ", "
	"attached_boot_us" INT ", attached_wall_us" INT ", detached_boot_us" ZERO ", "
	"detached_wall_us" ZERO ", end TEXT NOT NULL DEFAULT '') STRICT",
	"CREATE INDEX target_run_tag ON target(run_tag)",
	"CREATE INDEX target_run ON target(run)",

	"CREATE TABLE assignment (id INTEGER PRIMARY KEY, "
	"target INTEGER NOT NULL REFERENCES target(id) ON DELETE CASCADE, "
	"seq_first" INT ", boot_us" INT ", wall_us" INT ", policy TEXT NOT NULL, "
	"version TEXT NOT NULL, params TEXT NOT NULL, why TEXT NOT NULL, "
	SHAPE_COLUMNS ") STRICT",
	"CREATE INDEX assignment_target ON assignment(target)",

	"CREATE TABLE sample (id INTEGER PRIMARY KEY, "
	"target INTEGER NOT NULL REFERENCES target(id) ON DELETE CASCADE, "
	"level INTEGER NOT NULL CHECK (level BETWEEN 0 AND 2), bucket" INT ", boot_us" INT ", "
	"wall_us" INT ", seq_first" INT ", seq_last" INT ", n_samples" INT ", n_records" INT ", "
	"time_us" INT ", dt_us" INT ", cpu_us" INT ", alloc_pages" INT ", free_pages" INT ", "
	"alloc_zone" INT ", free_zone" INT ", refills" INT ", drains" INT ", free_high" INT ", "
	"lock_taken" INT ", lock_contended" INT ", lock_wait_ns" INT ", held_pages" INT ", "
	"held_peak" INT ", data BLOB NOT NULL) STRICT",
	"CREATE INDEX sample_target ON sample(target, level, seq_last)",
	"CREATE INDEX sample_level ON sample(level)",
	"CREATE UNIQUE INDEX sample_bucket ON sample(target, level, bucket) WHERE level > 0",

	RECORD_TABLE

	"CREATE TABLE outcome_def (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT",

	"CREATE TABLE decision (id INTEGER PRIMARY KEY, "
	"target INTEGER NOT NULL REFERENCES target(id), "
	"assignment INTEGER REFERENCES assignment(id), seq" INT ", boot_us" INT ", wall_us" INT ", "
	"zone" INT ", cpu" INT ", reason" INT ", reason_name TEXT NOT NULL, "
	"arg0" INT ", arg1" INT ", arg2" INT ", arg3" INT ", "
	LIMITS_COLUMNS("old") ", " LIMITS_COLUMNS("proposed") ", " LIMITS_COLUMNS("clamped") ", "
	"outcome INTEGER NOT NULL REFERENCES outcome_def(id), effect_n" ZERO ", "
	EFFECT_COLUMNS("before") ", " EFFECT_COLUMNS("after") ") STRICT",
	"CREATE INDEX decision_target ON decision(target)",
	"CREATE INDEX decision_assignment ON decision(assignment)",
	"CREATE INDEX decision_wall ON decision(wall_us)",

	"CREATE TABLE nochange (id INTEGER PRIMARY KEY, "
	"assignment INTEGER NOT NULL REFERENCES assignment(id) ON DELETE CASCADE, "
	"reason" INT ", reason_name TEXT NOT NULL, seq_first" INT ", seq_last" INT ", n" INT ") STRICT",
	"CREATE INDEX nochange_assignment ON nochange(assignment)",

	"CREATE TABLE event (id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES run(id), "
	"target INTEGER REFERENCES target(id) ON DELETE CASCADE, boot_us" INT ", wall_us" INT ", "
	"kind TEXT NOT NULL, text TEXT NOT NULL) STRICT",
	"CREATE INDEX event_target ON event(target)",
	"CREATE INDEX event_run ON event(run)",

	"CREATE TABLE state (id INTEGER PRIMARY KEY, "
	"assignment INTEGER NOT NULL REFERENCES assignment(id) ON DELETE CASCADE, "
	"seq" INT ", state BLOB NOT NULL) STRICT",
	"CREATE INDEX state_assignment ON state(assignment, seq)",

	"CREATE TABLE counter_def (kind TEXT NOT NULL, id" INT ", name TEXT NOT NULL, "
	"unit TEXT NOT NULL, line TEXT NOT NULL, para TEXT NOT NULL, "
	"PRIMARY KEY (kind, id)) STRICT, WITHOUT ROWID",
};

static const char *const to_version_2[] = {RECORD_TABLE NULL};

/* What brings a log from the version before to this one. */
static const char *const *const steps[LOGSTORE_SCHEMA + 1] = {[2] = to_version_2};

/* ---- counter_def: one row for each row of counters.def ---- */

struct counter_row {
	const char *kind, *name, *unit, *line, *para;
};
static const struct counter_row counters[] = {
#define PCPTUNE_LIST(field, unit, line, para)	{"list", #field, unit, line, para},
#define PCPTUNE_ZCTR(field, unit, line, para)	{"zctr", #field, unit, line, para},
#define PCPTUNE_PCTR(field, unit, line, para)	{"pctr", #field, unit, line, para},
#define PCPTUNE_GAUGE(field, unit, line, para)	{"gauge", #field, unit, line, para},
#define PCPTUNE_ZGAUGE(field, unit, line, para) {"zgauge", #field, unit, line, para},
#define PCPTUNE_HOLD(field, unit, line, para)	{"hold", #field, unit, line, para},
#define PCPTUNE_PROC(field, unit, line, para)	{"proc", #field, unit, line, para},
#include <pcptune/counters.def>
};
/* clang-format on */

/* Runs sql once for each row that `row` binds; *io_i counts them. */
static int fill(sqlite3 *db, const char *sql, int (*row)(sqlite3_stmt *st, int *io_i))
{
	sqlite3_stmt *st = NULL;
	int rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL), i = 0;

	while (rc == SQLITE_OK && row(st, &i)) {
		sqlite3_step(st);
		rc = sqlite3_reset(st);
	}
	sqlite3_finalize(st);
	return rc;
}

static int counter_fill(sqlite3_stmt *st, int *io_i)
{
	const struct counter_row *c;
	int64_t id = 0;

	if (*io_i >= (int)(sizeof(counters) / sizeof(counters[0])))
		return 0;
	c = &counters[*io_i];
	for (int i = 0; i < *io_i; i++)
		id += strcmp(counters[i].kind, c->kind) == 0;
	logstore_bind(st, "titttt", c->kind, id, c->name, c->unit, c->line, c->para);
	(*io_i)++;
	return 1;
}

static int outcome_fill(sqlite3_stmt *st, int *io_i)
{
	if (*io_i > LOG_FAILED)
		return 0;
	logstore_bind(st, "it", (int64_t)*io_i, log_outcome_name(*io_i));
	(*io_i)++;
	return 1;
}

/* Brings the definitions up to this build; writes nothing when they are the same. */
int logstore_schema_refresh(sqlite3 *db)
{
	int rc = fill(db,
		      "INSERT INTO counter_def (kind, id, name, unit, line, para) "
		      "VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (kind, id) DO UPDATE SET "
		      "name = excluded.name, unit = excluded.unit, line = excluded.line, "
		      "para = excluded.para WHERE (name, unit, line, para) <> "
		      "(excluded.name, excluded.unit, excluded.line, excluded.para)",
		      counter_fill);

	if (rc == SQLITE_OK)
		rc = fill(db, "INSERT OR IGNORE INTO outcome_def (id, name) VALUES (?1, ?2)",
			  outcome_fill);
	return rc;
}

int logstore_schema_create(sqlite3 *db)
{
	char head[256];
	int rc;

	/* auto_vacuum only takes effect before the first table */
	snprintf(head, sizeof(head),
		 "PRAGMA page_size = %d; PRAGMA auto_vacuum = INCREMENTAL; BEGIN IMMEDIATE; "
		 "PRAGMA application_id = %d; PRAGMA user_version = %d;",
		 LOGSTORE_PAGE, LOGSTORE_APP_ID, LOGSTORE_SCHEMA);
	rc = sqlite3_exec(db, head, NULL, NULL, NULL);
	for (size_t i = 0; i < sizeof(schema) / sizeof(schema[0]) && rc == SQLITE_OK; i++)
		rc = sqlite3_exec(db, schema[i], NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		rc = logstore_schema_refresh(db);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
	return rc;
}

int logstore_schema_upgrade(sqlite3 *db, int64_t version)
{
	char done[64];
	int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);

	for (int64_t v = version < 1 ? 2 : version + 1; v <= LOGSTORE_SCHEMA && rc == SQLITE_OK;
	     v++)
		for (const char *const *sql = steps[v]; *sql && rc == SQLITE_OK; sql++)
			rc = sqlite3_exec(db, *sql, NULL, NULL, NULL);
	snprintf(done, sizeof(done), "PRAGMA user_version = %d; COMMIT", LOGSTORE_SCHEMA);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(db, done, NULL, NULL, NULL);
	if (rc != SQLITE_OK)
		sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
	return rc;
}

/* ---- kept statements ---- */

/* clang-format off */
#define SHAPE_NAMES \
	"n_zones, n_cpus, host_cpus, managed_pages, low_wmark_pages, budget_pages, high_limit, " \
	"interval_ms"
#define LIMITS_NAMES(p) \
	p "_high, " p "_high_min, " p "_high_max, " p "_batch, " p "_scale_max, " p "_rules"
#define TOTALS_NAMES \
	"seq_first, seq_last, n_samples, n_records, time_us, dt_us, cpu_us, alloc_pages, " \
	"free_pages, alloc_zone, free_zone, refills, drains, free_high, lock_taken, " \
	"lock_contended, lock_wait_ns, held_pages, held_peak"
#define Q4  "?, ?, ?, ?"
#define Q5  "?, ?, ?, ?, ?"
#define Q10 Q5 ", " Q5
#define ADD(c)	c " = " c " + excluded." c
#define LAST(c) c " = excluded." c
/* the newest row stays, so that its id is not given out again */
#define OLDEST(table) \
	"DELETE FROM " table " WHERE id IN (SELECT id FROM " table \
	" WHERE id < (SELECT max(id) FROM " table ") ORDER BY id LIMIT ?1)"
#define TRIM_TEXT \
	"'the log reached its size bound: decisions older than id ' || " \
	"(SELECT coalesce(min(id), 0) FROM decision) || ' were removed'"

const char *const logstore_sql[ST_N] = {
	[ST_BEGIN] = "BEGIN IMMEDIATE",
	[ST_COMMIT] = "COMMIT",
	[ST_ROLLBACK] = "ROLLBACK",
	[ST_RUN_BEGIN] =
		"INSERT INTO run (begin_boot_us, begin_wall_us, version, config) VALUES (" Q4 ")",
	[ST_RUN_END] =
		"UPDATE run SET end_boot_us = ?2, end_wall_us = ?3, end_why = ?4 WHERE id = ?1",
	[ST_TARGET_ADD] =
		"INSERT INTO target (run, name, pid, uid, start_boot_ns, random_id, run_tag, mode, "
		"seg_flags, " SHAPE_NAMES ", attached_boot_us, attached_wall_us, detached_boot_us, "
		"detached_wall_us, end) VALUES (" Q10 ", " Q10 ", ?, ?)",
	[ST_TARGET_END] =
		"UPDATE target SET detached_boot_us = ?2, detached_wall_us = ?3, end = ?4 "
		"WHERE id = ?1",
	[ST_ASSIGNMENT_ADD] =
		"INSERT INTO assignment (target, seq_first, boot_us, wall_us, policy, version, "
		"params, why, " SHAPE_NAMES ") VALUES (" Q10 ", " Q5 ", ?)",
	[ST_SAMPLE_ADD] =
		"INSERT INTO sample (target, level, bucket, boot_us, wall_us, " TOTALS_NAMES ", "
		"data) VALUES (" Q10 ", " Q10 ", " Q5 ")",
	[ST_SAMPLE_MERGE] =
		"INSERT INTO sample (target, level, bucket, boot_us, wall_us, " TOTALS_NAMES ", "
		"data) VALUES (" Q10 ", " Q10 ", " Q4 ", x'') "
		"ON CONFLICT (target, level, bucket) WHERE level > 0 DO UPDATE SET "
		"seq_first = min(seq_first, excluded.seq_first), "
		"seq_last = max(seq_last, excluded.seq_last), "
		"held_peak = max(held_peak, excluded.held_peak), "
		LAST("boot_us") ", " LAST("wall_us") ", " LAST("time_us") ", " LAST("held_pages") ", "
		ADD("n_samples") ", " ADD("n_records") ", " ADD("dt_us") ", " ADD("cpu_us") ", "
		ADD("alloc_pages") ", " ADD("free_pages") ", " ADD("alloc_zone") ", "
		ADD("free_zone") ", " ADD("refills") ", " ADD("drains") ", " ADD("free_high") ", "
		ADD("lock_taken") ", " ADD("lock_contended") ", " ADD("lock_wait_ns"),
	[ST_SAMPLE_OLDEST] =
		"SELECT id, target, boot_us, wall_us, " TOTALS_NAMES
		" FROM sample INDEXED BY sample_level WHERE level = ?1 ORDER BY id LIMIT ?2",
	[ST_SAMPLE_DELETE] = "DELETE FROM sample WHERE level = ?1 AND id <= ?2",
	[ST_RECORD_ADD] =
		"INSERT INTO record (target, level, bucket, boot_us, wall_us, seq_first, seq_last, "
		"n_records, time_us, data) VALUES (" Q10 ")",
	[ST_RECORD_OLDEST] =
		"SELECT target, wall_us FROM record INDEXED BY record_level WHERE level = ?1 "
		"ORDER BY id LIMIT 1",
	[ST_RECORD_PARTS] =
		"SELECT seq_last, boot_us, wall_us, data FROM record "
		"WHERE target = ?1 AND level = ?2 ORDER BY seq_last, id",
	[ST_RECORD_MERGED] =
		"SELECT seq_last, boot_us, wall_us, data FROM record "
		"WHERE target = ?1 AND level = ?2 AND level > 0 AND bucket = ?3",
	[ST_RECORD_DELETE] =
		"DELETE FROM record WHERE target = ?1 AND level = ?2 AND seq_last <= ?3",
	[ST_RECORD_UNMERGE] =
		"DELETE FROM record WHERE target = ?1 AND level = ?2 AND level > 0 AND bucket = ?3",
	[ST_RECORD_TRIM] =
		"DELETE FROM record WHERE id IN (SELECT id FROM record INDEXED BY record_level "
		"WHERE level = 2 ORDER BY id LIMIT ?2) AND wall_us < ?1",
	[ST_RECORD_NEWEST] =
		"SELECT wall_us FROM record INDEXED BY record_level WHERE level = ?1 "
		"ORDER BY id DESC LIMIT 1",
	[ST_RECORD_BYTES] = "SELECT coalesce(sum(length(data)), 0) FROM record WHERE level > 0",
	[ST_SAMPLE_FIRST] = "SELECT wall_us FROM sample WHERE level = ?1 ORDER BY id LIMIT 1",
	[ST_DECISION_ADD] =
		"INSERT INTO decision (target, assignment, seq, boot_us, wall_us, zone, cpu, "
		"reason, reason_name, arg0, arg1, arg2, arg3, " LIMITS_NAMES("old") ", "
		LIMITS_NAMES("proposed") ", " LIMITS_NAMES("clamped") ", outcome) "
		"VALUES (" Q10 ", " Q10 ", " Q10 ", ?, ?)",
	[ST_DECISION_OUTCOME] = "UPDATE decision SET outcome = ?2 WHERE id = ?1",
	[ST_DECISION_EFFECT] =
		"UPDATE decision SET effect_n = ?2, before_alloc_pages = ?3, before_alloc_zone = ?4, "
		"before_wait_ns = ?5, before_held = ?6, after_alloc_pages = ?7, "
		"after_alloc_zone = ?8, after_wait_ns = ?9, after_held = ?10 WHERE id = ?1",
	[ST_NOCHANGE_ADD] =
		"INSERT INTO nochange (assignment, reason, reason_name, seq_first, seq_last, n) "
		"VALUES (" Q5 ", ?)",
	[ST_NOCHANGE_UPDATE] = "UPDATE nochange SET seq_last = ?2, n = ?3 WHERE id = ?1",
	[ST_EVENT_ADD] =
		"INSERT INTO event (run, target, boot_us, wall_us, kind, text) VALUES (" Q5 ", ?)",
	[ST_STATE_ADD] = "INSERT INTO state (assignment, seq, state) VALUES (?, ?, ?)",

	/* a state serves the samples behind it: of no use is one that has a later one before the
	 * oldest raw sample of its target, and, of a target that ended, one without raw samples */
	[ST_STATE_TRIM] =
		"DELETE FROM state WHERE id IN (SELECT s.id FROM state s "
		"JOIN assignment a ON a.id = s.assignment JOIN target t ON t.id = a.target "
		"WHERE EXISTS (SELECT 1 FROM state l WHERE l.assignment = s.assignment "
		"AND l.seq > s.seq AND l.seq < coalesce((SELECT min(r.seq_first) FROM sample r "
		"WHERE r.target = a.target AND r.level = 0), 9223372036854775807)) "
		"OR (t.detached_wall_us > 0 AND NOT EXISTS (SELECT 1 FROM sample r "
		"WHERE r.target = a.target AND r.level = 0)) LIMIT ?1)",
	[ST_NOCHANGE_TRIM] = OLDEST("nochange"),
	[ST_TARGET_TRIM] =
		"DELETE FROM target WHERE id IN (SELECT t.id FROM target t "
		"WHERE t.detached_wall_us > 0 AND NOT EXISTS (SELECT 1 FROM decision d "
		"WHERE d.target = t.id) AND t.id < (SELECT max(id) FROM target) "
		"ORDER BY t.id LIMIT ?1)",
	[ST_EVENT_TRIM] =
		"DELETE FROM event WHERE id IN (SELECT id FROM event "
		"WHERE kind <> 'log-trimmed' AND id < (SELECT max(id) FROM event) "
		"ORDER BY id LIMIT ?1)",
	[ST_DECISION_TRIM] = OLDEST("decision"),
	[ST_TRIM_EVENT] =
		"UPDATE event SET boot_us = ?1, wall_us = ?2, text = " TRIM_TEXT
		" WHERE kind = 'log-trimmed' AND run = (SELECT max(id) FROM run)",
	[ST_TRIM_EVENT_NEW] =
		"INSERT INTO event (run, boot_us, wall_us, kind, text) "
		"SELECT id, ?1, ?2, 'log-trimmed', " TRIM_TEXT " FROM run ORDER BY id DESC LIMIT 1",
	[ST_PAGES] =
		"SELECT (SELECT page_count FROM pragma_page_count), "
		"(SELECT freelist_count FROM pragma_freelist_count)",
};
/* clang-format on */
