/* SPDX-License-Identifier: MIT */
/*
 * The reads of the log store.
 *
 * No callback runs while a statement is open: rows are read into memory in batches, the statement
 * is reset, and the next batch begins behind the last id. So a slow callback (a pager, a socket)
 * never keeps a read transaction open, which would stop the writer from emptying its journal; and
 * a callback may use the store itself. Rows that are trimmed meanwhile are simply not seen. Who
 * needs all rows of one moment asks for a snapshot, and copies (logstore_copy.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/logstore_columns.h"

#define BATCH 128

/* ---- filters ---- */

/* A query with its conditions; every parameter has a fixed number, bound when it is used. */
struct query {
	char sql[4096];
	size_t n;
};

static void q_add(struct query *q, const char *text)
{
	q->n += (size_t)snprintf(q->sql + q->n, sizeof(q->sql) - q->n, "%s", text);
}

static void q_filter(struct query *q, const struct log_filter *f, bool decision)
{
	if (f->target)
		q_add(q, " AND t.id = ?2");
	if (f->name)
		q_add(q, " AND t.name = ?3");
	if (f->run_tag)
		q_add(q, " AND t.run_tag = ?4");
	if (f->policy)
		q_add(q, decision ? " AND a.policy = ?5"
				  : " AND EXISTS (SELECT 1 FROM assignment x WHERE x.target = t.id "
				    "AND x.policy = ?5)");
	if (f->cpu >= 0 && decision)
		q_add(q, " AND d.cpu = ?6");
	if (f->before_id && decision)
		q_add(q, " AND d.id < ?9");
	if (f->in_zone && decision)
		q_add(q, " AND d.zone = ?10");
	if (f->reason && decision)
		q_add(q, " AND d.reason_name = ?11");
}

static void q_bind(sqlite3_stmt *st, const struct log_filter *f, int64_t after, int64_t limit)
{
	sqlite3_bind_int64(st, 1, after);
	sqlite3_bind_int64(st, 2, f->target);
	sqlite3_bind_text(st, 3, f->name, -1, SQLITE_STATIC);
	sqlite3_bind_int64(st, 4, (int64_t)f->run_tag);
	sqlite3_bind_text(st, 5, f->policy, -1, SQLITE_STATIC);
	sqlite3_bind_int64(st, 6, f->cpu);
	sqlite3_bind_int64(st, 7, (int64_t)f->since_wall_us);
	sqlite3_bind_int64(st, 8, limit);
	sqlite3_bind_int64(st, 9, f->before_id);
	sqlite3_bind_int64(st, 10, f->zone);
	sqlite3_bind_text(st, 11, f->reason, -1, SQLITE_STATIC);
}

static const struct log_filter no_filter = {.cpu = -1};

/* ---- batches ---- */

/* How one kind of row is read and handed out. */
struct reader {
	size_t size; /* of a row in memory */
	void (*read)(struct cursor *c, void *row);
	int64_t (*id)(const void *row);
	int (*call)(const void *row, const void *cb, void *cookie);
	const void *cb;
	void *cookie;
};

static int read_batch(struct logstore *ls, sqlite3_stmt *st, const struct reader *rd, char *rows,
		      size_t *ret_n)
{
	size_t n = 0;
	int rc, r = 0;

	while ((rc = sqlite3_step(st)) == SQLITE_ROW && n < BATCH) {
		struct cursor c = {.st = st};

		rd->read(&c, rows + n++ * rd->size);
	}
	if (rc != SQLITE_DONE && rc != SQLITE_ROW)
		r = logstore_fail(ls, rc, "read");
	sqlite3_reset(st);
	*ret_n = n;
	return r;
}

/* st: parameter ?1 is the id to begin behind, ?8 the limit. limit 0: none. */
static int each(struct logstore *ls, sqlite3_stmt *st, const struct log_filter *f, int64_t after,
		uint64_t limit, const struct reader *rd)
{
	char *rows = calloc(BATCH, rd->size);
	uint64_t left = limit ? limit : UINT64_MAX;
	size_t n = BATCH;
	int r = rows ? 0 : logstore_fail_text(ls, -ENOMEM, "no memory");

	while (r == 0 && n == BATCH && left) {
		q_bind(st, f, after, left < BATCH ? (int64_t)left : BATCH);
		r = read_batch(ls, st, rd, rows, &n);
		for (size_t i = 0; i < n && r == 0; i++)
			r = rd->call(rows + i * rd->size, rd->cb, rd->cookie);
		if (n)
			after = rd->id(rows + (n - 1) * rd->size);
		left -= n;
	}
	free(rows);
	return r;
}

/* The id behind which the newest f->limit rows begin. from: "table and conditions". */
static int newest_start(struct logstore *ls, const struct log_filter *f, const char *id,
			const char *from, int64_t *ret_after)
{
	char sql[4096 + 256];
	sqlite3_stmt *st = NULL;
	int r;

	snprintf(sql, sizeof(sql),
		 "SELECT min(i) FROM (SELECT %s AS i %s ORDER BY %s DESC LIMIT ?8)", id, from, id);
	r = logstore_prepare(ls, sql, "read", &st);
	if (r < 0)
		return r;
	q_bind(st, f, *ret_after, f->limit);
	if (sqlite3_step(st) == SQLITE_ROW && sqlite3_column_type(st, 0) != SQLITE_NULL)
		*ret_after = sqlite3_column_int64(st, 0) - 1;
	sqlite3_finalize(st);
	return 0;
}

/* Common to all filtered reads. names: columns; from: tables and conditions; id: the key. */
static int filtered(struct logstore *ls, const struct log_filter *f, const char *names,
		    const char *from, const char *id, int64_t after, const struct reader *rd)
{
	struct query q = {.n = 0};
	sqlite3_stmt *st = NULL;
	int r = 0;

	if (f->newest && f->limit)
		r = newest_start(ls, f, id, from, &after);
	q_add(&q, "SELECT ");
	q_add(&q, names);
	q_add(&q, " ");
	q_add(&q, from);
	q_add(&q, " ORDER BY ");
	q_add(&q, id);
	q_add(&q, " LIMIT ?8");
	if (r == 0)
		r = logstore_prepare(ls, q.sql, "read", &st);
	if (r == 0)
		r = each(ls, st, f, after, f->limit, rd);
	sqlite3_finalize(st);
	return r;
}

/* ---- decisions ---- */

struct decision_row {
	struct log_decision d;
	struct log_target t;
	struct log_assignment a; /* of a decision by hand all zero */
};

static void decision_read(struct cursor *c, void *row)
{
	struct decision_row *x = row;

	next_decision(c, &x->d);
	next_target(c, &x->t);
	next_assignment(c, &x->a);
	if (!x->a.id)
		memset(&x->a, 0, sizeof(x->a));
}

static int64_t decision_id(const void *row)
{
	return ((const struct decision_row *)row)->d.id;
}

static int decision_call(const void *row, const void *cb, void *cookie)
{
	const struct decision_row *x = row;

	return (*(const log_decision_cb *)cb)(&x->d, &x->t, &x->a, cookie);
}

#define DECISION_FROM                                       \
	"FROM decision d JOIN target t ON t.id = d.target " \
	"LEFT JOIN assignment a ON a.id = d.assignment"

int logstore_decisions(struct logstore *ls, const struct log_filter *f, log_decision_cb cb,
		       void *cookie)
{
	struct reader rd = {.size = sizeof(struct decision_row),
			    .read = decision_read,
			    .id = decision_id,
			    .call = decision_call,
			    .cb = &cb,
			    .cookie = cookie};
	struct query from = {.n = 0};

	q_add(&from, DECISION_FROM " WHERE d.id > ?1");
	q_filter(&from, f, true);
	if (f->since_wall_us)
		q_add(&from, " AND d.wall_us >= ?7");
	return filtered(ls, f, DECISION_NAMES ", " TARGET_NAMES ", " ASSIGNMENT_NAMES, from.sql,
			"d.id", f->after_id, &rd);
}

int logstore_decision_get(struct logstore *ls, int64_t id, struct log_decision *ret,
			  struct log_target *ret_t, struct log_assignment *ret_a)
{
	struct decision_row row;
	sqlite3_stmt *st = NULL;
	int r, rc;

	r = logstore_prepare(ls,
			     "SELECT " DECISION_NAMES ", " TARGET_NAMES ", " ASSIGNMENT_NAMES
			     " " DECISION_FROM " WHERE d.id = ?1",
			     "read", &st);
	if (r < 0)
		return r;
	sqlite3_bind_int64(st, 1, id);
	rc = sqlite3_step(st);
	if (rc == SQLITE_ROW) {
		struct cursor c = {.st = st};

		decision_read(&c, &row);
		*ret = row.d;
		if (ret_t)
			*ret_t = row.t;
		if (ret_a)
			*ret_a = row.a;
	} else if (rc == SQLITE_DONE) {
		r = logstore_fail_text(ls, -ENOENT, "%s: no decision %lld", ls->path,
				       (long long)id);
	} else {
		r = logstore_fail(ls, rc, "read a decision");
	}
	sqlite3_finalize(st);
	return r;
}

/* ---- targets ---- */

static void target_read(struct cursor *c, void *row)
{
	next_target(c, row);
}

static int64_t target_id(const void *row)
{
	return ((const struct log_target *)row)->id;
}

typedef int (*target_cb)(const struct log_target *t, void *cookie);
static int target_call(const void *row, const void *cb, void *cookie)
{
	return (*(const target_cb *)cb)(row, cookie);
}

int logstore_targets(struct logstore *ls, const struct log_filter *f,
		     int (*cb)(const struct log_target *t, void *cookie), void *cookie)
{
	struct reader rd = {.size = sizeof(struct log_target),
			    .read = target_read,
			    .id = target_id,
			    .call = target_call,
			    .cb = &cb,
			    .cookie = cookie};
	struct query from = {.n = 0};

	q_add(&from, "FROM target t WHERE t.id > ?1");
	q_filter(&from, f, false);
	if (f->since_wall_us) /* there at that time, or later */
		q_add(&from, " AND (t.detached_wall_us = 0 OR t.detached_wall_us >= ?7)");
	return filtered(ls, f, TARGET_NAMES, from.sql, "t.id", 0, &rd);
}

/* ---- assignments ---- */

static void assignment_read(struct cursor *c, void *row)
{
	next_assignment(c, row);
}

static int64_t assignment_id(const void *row)
{
	return ((const struct log_assignment *)row)->id;
}

typedef int (*assignment_cb)(const struct log_assignment *a, void *cookie);
static int assignment_call(const void *row, const void *cb, void *cookie)
{
	return (*(const assignment_cb *)cb)(row, cookie);
}

int logstore_assignments(struct logstore *ls, int64_t target,
			 int (*cb)(const struct log_assignment *a, void *cookie), void *cookie)
{
	struct reader rd = {.size = sizeof(struct log_assignment),
			    .read = assignment_read,
			    .id = assignment_id,
			    .call = assignment_call,
			    .cb = &cb,
			    .cookie = cookie};
	struct log_filter f = no_filter;

	f.target = target;
	return filtered(ls, &f, ASSIGNMENT_NAMES,
			"FROM assignment a WHERE a.id > ?1 AND a.target = ?2", "a.id", 0, &rd);
}

/* ---- events ---- */

struct event_row {
	int64_t id, target;
	struct logstamp t;
	char kind[64];
	char text[1024];
};

static void event_read(struct cursor *c, void *row)
{
	struct event_row *e = row;

	e->id = next(c);
	e->target = next(c);
	e->t = next_stamp(c);
	next_text(c, e->kind, sizeof(e->kind));
	next_text(c, e->text, sizeof(e->text));
}

static int64_t event_id(const void *row)
{
	return ((const struct event_row *)row)->id;
}

typedef int (*event_cb)(int64_t id, int64_t target, struct logstamp t, const char *kind,
			const char *text, void *cookie);
static int event_call(const void *row, const void *cb, void *cookie)
{
	const struct event_row *e = row;

	return (*(const event_cb *)cb)(e->id, e->target, e->t, e->kind, e->text, cookie);
}

int logstore_events(struct logstore *ls, const struct log_filter *f,
		    int (*cb)(int64_t id, int64_t target, struct logstamp t, const char *kind,
			      const char *text, void *cookie),
		    void *cookie)
{
	struct reader rd = {.size = sizeof(struct event_row),
			    .read = event_read,
			    .id = event_id,
			    .call = event_call,
			    .cb = &cb,
			    .cookie = cookie};
	struct query from = {.n = 0};

	q_add(&from, "FROM event e LEFT JOIN target t ON t.id = e.target WHERE e.id > ?1");
	q_filter(&from, f, false);
	if (f->since_wall_us)
		q_add(&from, " AND e.wall_us >= ?7");
	return filtered(ls, f, "e.id, coalesce(e.target, 0), e.boot_us, e.wall_us, e.kind, e.text",
			from.sql, "e.id", 0, &rd);
}
