/* SPDX-License-Identifier: MIT */
/*
 * Records in the log: rows of packed records (lib/records.h), and what becomes of old ones.
 *
 * A row of level 0 holds what came with the samples of one chunk and is written with it, so a
 * replay has both or none. Records need little room and lose nothing when they are merged, so they
 * are kept longer than samples are: only when all samples of a minute have become totals, its
 * records are merged, for each target into one row with one record a CPU. A minute is merged once,
 * when it is complete, not row by row: that would unpack and pack the same records again and again.
 *
 * Merged records are not to push the samples out: when they take more than a quarter of the bound,
 * minutes become hours, and then the oldest hours go, whatever is left of their samples.
 *
 * A reader goes from the merged rows to the others, and rows only ever move the other way: beside a
 * live writer it may miss what is merged behind it, never meet it twice.
 */
#include <errno.h>
#include <stdlib.h>
#include "lib/logstore_columns.h"

#define I(x)	  ((int64_t)(x))
#define GROUPS	  64 /* of a target and minute or hour, a call */
#define TRIM_ROWS 100
#define SHARE	  4 /* merged records take at most this part of the bound */
#define RECORD_READ_SQL                                                                       \
	"SELECT id, level, seq_first, seq_last, time_us, boot_us, wall_us, data FROM record " \
	"WHERE target = ?1 AND level = ?2 AND (seq_last, id) > (?3, ?4) "                     \
	"ORDER BY seq_last, id LIMIT 1"

/* ---- writing ---- */

static int add(struct logstore *ls, int64_t target, int level, int64_t bucket, struct logstamp t,
	       const struct records_writer *w)
{
	return logstore_run(ls, ST_RECORD_ADD, "add records", "iiiiiiiiib", target, I(level),
			    bucket, I(t.boot_us), I(t.wall_us), I(w->seq_first), I(w->seq_last),
			    I(w->n), I(w->time_us), w->data, w->len);
}

int logstore_records_add(struct logstore *ls, int64_t target, struct logstamp t,
			 const struct records_writer *w)
{
	if (ls->held_up && !ls->broken)
		return logstore_fail_text(ls, -ENOSPC,
					  "%s: a reader keeps the journal from being emptied; "
					  "records are not written until it ends",
					  ls->path);
	return add(ls, target, 0, 0, t, w);
}

/* ---- reading ---- */

struct row {
	int64_t id;
	struct log_records_row r;
	void *data;
	size_t len;
};

static void read_row(struct cursor *c, void *row)
{
	struct row *x = row;

	x->id = next(c);
	x->r.level = (uint32_t)next(c);
	x->r.seq_first = (uint64_t)next(c);
	x->r.seq_last = (uint64_t)next(c);
	x->r.time_us = (uint64_t)next(c);
	x->r.t = next_stamp(c);
}

int logstore_records(struct logstore *ls, int64_t target, uint64_t from,
		     int (*cb)(const struct log_records_row *row, const uint8_t *data, size_t len,
			       void *cookie),
		     void *cookie)
{
	sqlite3_stmt *st = NULL;
	struct row row;
	int r;

	if (ls->schema < 2)
		return 0; /* written before there were any */
	r = logstore_prepare(ls, RECORD_READ_SQL, "read records", &st);
	for (int level = LOGSTORE_N_LEVELS - 1; level >= 0 && r == 0; level--) {
		int64_t seq = (int64_t)(from ? from - 1 : 0), id = from ? INT64_MAX : -1;

		do {
			logstore_bind(st, "iiii", target, I(level), seq, id);
			r = logstore_step_blob(ls, st, "read records", read_row, &row, &row.data,
					       &row.len);
			if (r <= 0)
				break;
			r = cb(&row.r, row.data, row.len, cookie);
			free(row.data);
			seq = (int64_t)row.r.seq_last;
			id = row.id;
		} while (r == 0);
	}
	sqlite3_finalize(st);
	return r;
}

/* ---- merging ---- */

/*
 * The oldest rows of a target, as long as they are of one minute or hour, and the row that this was
 * merged into before, if it was. Unpacked by records_merge() alone.
 */
struct group {
	int64_t target, start, period, before;
	int level;
	uint64_t seq_last; /* of the rows of `level` */
	struct logstamp t;
	struct records_part *parts;
	size_t n, room;
};

static int group_add(struct logstore *ls, struct group *g, sqlite3_stmt *st)
{
	size_t room = g->room ? 2 * g->room : 16;
	struct records_part *grown;
	void *data;
	int r;

	if (g->n == g->room) {
		grown = reallocarray(g->parts, room, sizeof(*grown));
		if (!grown)
			return logstore_fail_text(ls, -ENOMEM, "no memory to merge records");
		g->parts = grown;
		g->room = room;
	}
	g->seq_last = (uint64_t)sqlite3_column_int64(st, 0);
	g->t.boot_us = (uint64_t)sqlite3_column_int64(st, 1);
	g->t.wall_us = (uint64_t)sqlite3_column_int64(st, 2);
	r = logstore_copy_blob(ls, st, 3, &data, &g->parts[g->n].len);
	if (r == 0)
		g->parts[g->n++].data = data;
	return r;
}

static int group_read(struct logstore *ls, struct group *g, enum logstore_stmt i, int level)
{
	sqlite3_stmt *st;
	int r, rc;

	st = logstore_get(ls, i, &r);
	if (!st)
		return r;
	sqlite3_bind_int64(st, 1, g->target);
	sqlite3_bind_int64(st, 2, level);
	if (sqlite3_bind_parameter_count(st) > 2)
		sqlite3_bind_int64(st, 3, g->start);
	while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
		int64_t wall = sqlite3_column_int64(st, 2);

		if (!g->n)
			g->start = wall - wall % g->period;
		if (level == g->level && (wall - wall % g->period != g->start || wall >= g->before))
			break;
		r = group_add(ls, g, st);
		if (r < 0)
			break;
	}
	if (r == 0 && rc != SQLITE_DONE && rc != SQLITE_ROW)
		r = logstore_fail(ls, rc, "read old records");
	sqlite3_reset(st);
	return r;
}

static void group_free(struct group *g)
{
	for (size_t i = 0; i < g->n; i++)
		free((void *)(uintptr_t)g->parts[i].data);
	free(g->parts);
}

/* The last part, what was merged before, comes first in time. */
static void to_front(struct group *g)
{
	struct records_part last = g->parts[g->n - 1];

	for (size_t i = g->n - 1; i > 0; i--)
		g->parts[i] = g->parts[i - 1];
	g->parts[0] = last;
}

/* Of what a group was read from: the rows of level 1, and what was merged before. */
static int64_t merged_bytes(const struct group *g, size_t n_of_level)
{
	int64_t bytes = 0;

	for (size_t i = 0; i < g->n; i++)
		if (g->level > 0 || (i == 0 && g->n > n_of_level))
			bytes += (int64_t)g->parts[i].len;
	return bytes;
}

/* Damaged rows are lost, not kept for ever; readers see that records do not meet there. */
static int merge_group(struct logstore *ls, struct group *g, int *io_done)
{
	struct records_writer w = {0};
	int r = group_read(ls, g, ST_RECORD_PARTS, g->level), e;
	uint64_t seq_last = g->seq_last;
	size_t n = g->n;

	if (r == 0 && n)
		r = group_read(ls, g, ST_RECORD_MERGED, g->level + 1);
	if (r == 0 && g->n > n)
		to_front(g);
	if (r == 0) {
		e = records_merge(g->parts, g->n, &w);
		if (e == -ENOMEM)
			r = logstore_fail_text(ls, e, "no memory to merge records");
	}
	if (r == 0 && n)
		r = logstore_run(ls, ST_RECORD_DELETE, "remove merged records", "iii", g->target,
				 I(g->level), I(seq_last));
	if (r == 0 && n)
		r = logstore_run(ls, ST_RECORD_UNMERGE, "replace merged records", "iii", g->target,
				 I(g->level + 1), g->start);
	if (r == 0 && w.n)
		r = add(ls, g->target, g->level + 1, g->start, g->t, &w);
	if (r == 0 && ls->merged_bytes >= 0)
		ls->merged_bytes += (int64_t)w.len - merged_bytes(g, n);
	*io_done += r == 0 ? (int)n : 0;
	records_free(&w);
	group_free(g);
	return r;
}

/* The numbers of a kept statement's first row; false: none. */
static bool ask(struct logstore *ls, enum logstore_stmt i, const int64_t *args, int64_t *ret,
		int *ret_r)
{
	sqlite3_stmt *st = logstore_get(ls, i, ret_r);
	int rc, n;

	if (!st)
		return false;
	n = sqlite3_bind_parameter_count(st);
	for (int k = 0; k < n; k++)
		sqlite3_bind_int64(st, k + 1, args[k]);
	rc = sqlite3_step(st);
	for (int k = 0; rc == SQLITE_ROW && k < sqlite3_column_count(st); k++)
		ret[k] = sqlite3_column_int64(st, k);
	sqlite3_reset(st);
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		*ret_r = logstore_fail(ls, rc, "look for old records");
	return rc == SQLITE_ROW;
}

/* Up to when the samples of a level are gone from it: whole minutes or hours. */
static int gone_before(struct logstore *ls, int level, int64_t period, int64_t *ret)
{
	const int64_t args[] = {level};
	int64_t first = INT64_MAX;
	int r = 0;

	if (ask(ls, ST_SAMPLE_FIRST, args, &first, &r))
		first -= first % period;
	*ret = first;
	return r;
}

static int64_t period_of(int level)
{
	return level == 0 ? LOGSTORE_MINUTE_US : 60 * LOGSTORE_MINUTE_US;
}

/* Merges groups that are older than `before`, oldest first. */
static int merge_before(struct logstore *ls, int level, int64_t before, int *io_done)
{
	int r = 0;

	for (int i = 0; i < GROUPS && r == 0; i++) {
		const int64_t args[] = {level};
		struct group g = {.level = level, .period = period_of(level), .before = before};
		int64_t found[2];
		int done = *io_done;

		if (!ask(ls, ST_RECORD_OLDEST, args, found, &r) || found[1] >= before)
			break;
		g.target = found[0];
		r = merge_group(ls, &g, io_done);
		if (*io_done == done)
			break; /* the clock was set back: its turn comes */
	}
	return r;
}

static int remove_before(struct logstore *ls, int64_t before, int *io_done)
{
	int r = logstore_run(ls, ST_RECORD_TRIM, "remove old records", "ii", before, I(TRIM_ROWS));
	int n = r == 0 ? (int)sqlite3_changes64(ls->db) : 0;

	if (n)
		ls->merged_bytes = -1;
	*io_done += n;
	return r;
}

int logstore_records_follow(struct logstore *ls, int level, int *io_done)
{
	int64_t before;
	int r = gone_before(ls, level, period_of(level), &before);

	if (r < 0)
		return r;
	if (level == LOGSTORE_N_LEVELS - 1)
		return remove_before(ls, before, io_done);
	return merge_before(ls, level, before, io_done);
}

int logstore_records_bound(struct logstore *ls, int *io_done)
{
	const int64_t args[] = {1};
	int64_t newest = 0;
	int r = 0, done = *io_done;

	if (ls->merged_bytes < 0)
		ask(ls, ST_RECORD_BYTES, args, &ls->merged_bytes, &r);
	if (r < 0 || ls->merged_bytes <= (int64_t)(ls->max_bytes / SHARE))
		return r;
	if (ask(ls, ST_RECORD_NEWEST, args, &newest, &r))
		r = merge_before(ls, 1, newest - newest % period_of(1), io_done);
	if (r == 0 && *io_done == done)
		r = remove_before(ls, INT64_MAX, io_done);
	return r;
}
