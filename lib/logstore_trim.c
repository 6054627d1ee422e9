/* SPDX-License-Identifier: MIT */
/*
 * Housekeeping: the journal, and the bound on the size.
 *
 * Above the upper mark (about 3/4 of the bound; the rest is for the journal, into which a step of
 * trimming may write a copy of each page it changes) the oldest samples give way, in steps of
 * bounded work, until 7/8 of that mark is reached: raw chunks become totals of a minute, those
 * totals of an hour, those are deleted, and records go with the samples they came with
 * (logstore_records.c); then go policy states and no-change runs, ended targets
 * without decisions, events, and only when all that is gone the oldest decisions, which leaves an
 * event. Freed pages are used again, and what is free beyond 1/16 of the bound is given back to the
 * file system a little at a time.
 *
 * The journal (WAL) is emptied by sqlite's own checkpoints. A reader that keeps a transaction open
 * stops them; then it grows. Our own reads never keep one open while a callback runs (see
 * logstore_read.c). For a foreign reader: once the journal alone is above 1/8 of the bound and can
 * not be emptied, samples are refused (the caller counts them as lost) and decisions go on, as they
 * are small.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "lib/logstore_private.h"

#define MERGE_ROWS     256 /* a step; 200 targets with a chunk a second need one step a second */
#define READER_WAIT_MS 15
#define TRIM_STEPS     16 /* transactions a call */
#define TRIM_CALL_ROWS 1000
#define TRIM_ROWS      500
#define VACUUM_PAGES   256
#define N_TOTALS       19
#define FIRST_TOTAL    4 /* column of ST_SAMPLE_OLDEST */

/* ---- the journal ---- */

static uint64_t wal_size(const struct logstore *ls)
{
	struct stat st;

	return stat(ls->wal_path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Empties the journal when it is large. Waits a moment for a reader that is in the middle of a
 * batch; not for one that stays. */
static int checkpoint(struct logstore *ls)
{
	int rc;

	if (wal_size(ls) <= 2 * ls->wal_bytes) {
		ls->held_up = false;
		return 0;
	}
	sqlite3_busy_timeout(ls->db, READER_WAIT_MS);
	rc = sqlite3_wal_checkpoint_v2(ls->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
	sqlite3_busy_timeout(ls->db, (int)ls->busy_ms);
	ls->held_up = wal_size(ls) > ls->max_bytes / 8;
	if (rc == SQLITE_OK || (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED)
		return 0;
	return logstore_fail(ls, rc, "checkpoint");
}

/* ---- how large ---- */

static int count_pages(struct logstore *ls, uint64_t *ret_used, uint64_t *ret_free)
{
	sqlite3_stmt *st;
	int r, rc;

	st = logstore_get(ls, ST_PAGES, &r);
	if (!st)
		return r;
	rc = sqlite3_step(st);
	if (rc == SQLITE_ROW) {
		*ret_free = (uint64_t)sqlite3_column_int64(st, 1);
		*ret_used = (uint64_t)sqlite3_column_int64(st, 0) - *ret_free;
	} else {
		r = logstore_fail(ls, rc, "count pages");
	}
	sqlite3_reset(st);
	return r;
}

/* ---- merging ---- */

/* Totals of one target in one minute or hour, gathered from rows in the order of their ids. */
struct bucket {
	int64_t target, start, boot_us, wall_us;
	int64_t v[N_TOTALS]; /* in the order of the columns: seq_first .. held_peak */
};
enum { V_SEQ_FIRST = 0, V_SEQ_LAST = 1, V_TIME = 4, V_HELD = 17, V_PEAK = 18 };

static void bucket_add(struct bucket *b, const int64_t *v)
{
	for (int i = 0; i < N_TOTALS; i++) {
		switch (i) {
		case V_SEQ_FIRST:
			b->v[i] = v[i] < b->v[i] ? v[i] : b->v[i];
			break;
		case V_SEQ_LAST:
		case V_PEAK:
			b->v[i] = v[i] > b->v[i] ? v[i] : b->v[i];
			break;
		case V_TIME:
		case V_HELD:
			b->v[i] = v[i]; /* of the last row */
			break;
		default:
			b->v[i] += v[i];
		}
	}
}

struct merge {
	struct bucket b[MERGE_ROWS];
	int n;	  /* buckets */
	int rows; /* read */
	int64_t last_id;
};

static void merge_row(struct merge *m, sqlite3_stmt *st, int64_t period)
{
	int64_t target = sqlite3_column_int64(st, 1), wall = sqlite3_column_int64(st, 3);
	int64_t start = wall - wall % period, v[N_TOTALS];
	int i = m->n - 1;

	for (int k = 0; k < N_TOTALS; k++)
		v[k] = sqlite3_column_int64(st, FIRST_TOTAL + k);
	while (i >= 0 && (m->b[i].target != target || m->b[i].start != start))
		i--;
	if (i < 0) {
		i = m->n++;
		m->b[i] = (struct bucket){.target = target, .start = start};
		memcpy(m->b[i].v, v, sizeof(v));
	} else {
		bucket_add(&m->b[i], v);
	}
	m->b[i].boot_us = sqlite3_column_int64(st, 2);
	m->b[i].wall_us = wall;
	m->last_id = sqlite3_column_int64(st, 0);
	m->rows++;
}

static int merge_read(struct logstore *ls, int level, int64_t period, struct merge *m)
{
	sqlite3_stmt *st;
	int r, rc;

	st = logstore_get(ls, ST_SAMPLE_OLDEST, &r);
	if (!st)
		return r;
	rc = logstore_bind(st, "ii", (int64_t)level, (int64_t)MERGE_ROWS);
	while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
		merge_row(m, st, period);
		rc = SQLITE_OK;
	}
	if (rc != SQLITE_DONE)
		r = logstore_fail(ls, rc, "read old samples");
	sqlite3_reset(st);
	return r;
}

static int merge_write(struct logstore *ls, int level, const struct bucket *b)
{
	const int64_t *v = b->v;

	return logstore_run(ls, ST_SAMPLE_MERGE, "merge samples", "iiiiiiiiiiiiiiiiiiiiiiii",
			    b->target, (int64_t)level, b->start, b->boot_us, b->wall_us, v[0], v[1],
			    v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12],
			    v[13], v[14], v[15], v[16], v[17], v[18]);
}

/* Merges the oldest rows of a level into the next one; *ret_done: rows taken away. */
static int merge(struct logstore *ls, int level, int *ret_done)
{
	int64_t period = level == 0 ? LOGSTORE_MINUTE_US : 60 * LOGSTORE_MINUTE_US;
	struct merge *m = malloc(sizeof(*m));
	int r;

	if (!m)
		return logstore_fail_text(ls, -ENOMEM, "%s: no memory to merge samples", ls->path);
	m->n = 0;
	m->rows = 0;
	m->last_id = 0;
	r = merge_read(ls, level, period, m);
	for (int i = 0; i < m->n && r == 0 && level + 1 < LOGSTORE_N_LEVELS; i++)
		r = merge_write(ls, level + 1, &m->b[i]);
	if (r == 0 && m->rows)
		r = logstore_run(ls, ST_SAMPLE_DELETE, "remove merged samples", "ii",
				 (int64_t)level, m->last_id);
	*ret_done = m->rows;
	free(m);
	return r;
}

/* ---- deleting ---- */

static int delete_oldest(struct logstore *ls, enum logstore_stmt st, int *ret_done)
{
	int r = logstore_run(ls, st, "remove the oldest rows", "i", (int64_t)TRIM_ROWS);

	*ret_done = r == 0 ? (int)sqlite3_changes64(ls->db) : 0;
	return r;
}

/* One event for each run, brought up to date. */
static int note_trim(struct logstore *ls)
{
	struct logstamp t = logstamp_now();
	int r = logstore_run(ls, ST_TRIM_EVENT, "note the trim", "ii", (int64_t)t.boot_us,
			     (int64_t)t.wall_us);

	if (r == 0 && sqlite3_changes64(ls->db) == 0)
		r = logstore_run(ls, ST_TRIM_EVENT_NEW, "note the trim", "ii", (int64_t)t.boot_us,
				 (int64_t)t.wall_us);
	return r;
}

/* Takes away the least valuable rows there are; *ret_done 0: nothing left to take. */
static int trim_step(struct logstore *ls, int *ret_done)
{
	static const enum logstore_stmt order[] = {ST_STATE_TRIM, ST_NOCHANGE_TRIM, ST_TARGET_TRIM,
						   ST_EVENT_TRIM, ST_DECISION_TRIM};
	int done = 0, r = logstore_records_bound(ls, &done);

	for (int level = 0; level < LOGSTORE_N_LEVELS && r == 0 && !done; level++) {
		r = merge(ls, level, &done);
		if (r == 0)
			r = logstore_records_follow(ls, level, &done);
	}
	if (r == 0 && done)
		r = delete_oldest(ls, ST_STATE_TRIM, &(int){0});
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]) && r == 0 && !done; i++) {
		r = delete_oldest(ls, order[i], &done);
		if (r == 0 && done && order[i] == ST_DECISION_TRIM)
			r = note_trim(ls);
	}
	*ret_done = done;
	return r;
}

static int trim(struct logstore *ls, int *ret_done)
{
	int r = logstore_begin(ls);

	if (r < 0)
		return r;
	r = trim_step(ls, ret_done);
	if (r < 0)
		logstore_rollback(ls);
	else
		r = logstore_commit(ls);
	return r;
}

static int vacuum(struct logstore *ls)
{
	char sql[64];

	snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%d)", VACUUM_PAGES);
	return logstore_exec(ls, sql);
}

/* In pages. A step's journal matters where the bound is small. */
static uint64_t upper_mark(const struct logstore *ls)
{
	uint64_t quarter = ls->max_bytes / 4, step = 512u << 10;

	return (3 * quarter - (quarter < step ? quarter : step)) / LOGSTORE_PAGE;
}

/*
 * Trims until the lower mark, or for a bounded number of rows. The size is looked at after each
 * step, so that nothing more valuable goes than must; a step may find only a few rows left of one
 * kind, so the rows are what is counted.
 */
static int trim_some(struct logstore *ls, uint64_t used, uint64_t *ret_free, int *ret_done)
{
	uint64_t upper = upper_mark(ls);
	int r = 0, rows = 0;

	for (int i = 0; i < TRIM_STEPS && rows < TRIM_CALL_ROWS && r == 0; i++) {
		if (used > upper)
			ls->trimming = true;
		if (used <= upper * 7 / 8)
			ls->trimming = false;
		/* behind a stuck reader each trim would only make the journal longer */
		if (!ls->trimming || ls->held_up)
			break;
		r = trim(ls, ret_done);
		if (*ret_done == 0)
			break; /* nothing left that may go */
		rows += *ret_done;
		if (r == 0)
			r = count_pages(ls, &used, ret_free);
	}
	if (used <= upper * 7 / 8)
		ls->trimming = false;
	return r;
}

int logstore_maintain(struct logstore *ls, bool *ret_more)
{
	uint64_t used = 0, unused = 0;
	int r, done = 0;

	if (ls->depth || !ls->writable)
		return logstore_fail_text(ls, -EINVAL,
					  "%s: maintain inside a transaction or on a read-only log",
					  ls->path);
	r = checkpoint(ls);
	if (r == 0)
		r = count_pages(ls, &used, &unused);
	if (r == 0)
		r = trim_some(ls, used, &unused, &done);
	if (r == 0 && !ls->held_up && unused > ls->max_bytes / LOGSTORE_PAGE / 16)
		r = vacuum(ls);
	if (r == 0 && done)
		r = checkpoint(ls);
	if (r == 0)
		*ret_more = done > 0 && ls->trimming;
	return r;
}
