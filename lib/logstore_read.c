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
#include "lib/logstore_private.h"
#include "lib/text.h"

#define BATCH 128

/* ---- columns ---- */

/* Reads columns one after the other. */
struct cursor {
	sqlite3_stmt *st;
	int i;
};

static int64_t next(struct cursor *c)
{
	return sqlite3_column_int64(c->st, c->i++);
}

static void next_text(struct cursor *c, char *buf, size_t n)
{
	const unsigned char *t = sqlite3_column_text(c->st, c->i++);

	snprintf(buf, n, "%s", t ? (const char *)t : "");
	text_clean(buf); /* a file from elsewhere holds anything; cutting splits characters */
}

static struct logstamp next_stamp(struct cursor *c)
{
	struct logstamp t;

	t.boot_us = (uint64_t)next(c);
	t.wall_us = (uint64_t)next(c);
	return t;
}

#define SHAPE_NAMES(p)                                                                         \
	p "n_zones, " p "n_cpus, " p "host_cpus, " p "managed_pages, " p "low_wmark_pages, " p \
	  "budget_pages, " p "high_limit, " p "interval_ms"
static void next_shape(struct cursor *c, struct pcptune_shape *s)
{
	s->size = sizeof(*s);
	s->n_zones = (uint32_t)next(c);
	s->n_cpus = (uint32_t)next(c);
	s->host_cpus = (uint32_t)next(c);
	s->managed_pages = (uint64_t)next(c);
	s->low_wmark_pages = (uint64_t)next(c);
	s->budget_pages = (uint64_t)next(c);
	s->high_limit = (uint32_t)next(c);
	s->interval_ms = (uint32_t)next(c);
}

/* clang-format off */
#define TARGET_NAMES \
	"t.id, t.run, t.name, t.pid, t.uid, t.start_boot_ns, t.random_id, t.run_tag, t.mode, " \
	"t.seg_flags, " SHAPE_NAMES("t.") ", t.attached_boot_us, t.attached_wall_us, " \
	"t.detached_boot_us, t.detached_wall_us, t.end"
/* clang-format on */
static void next_target(struct cursor *c, struct log_target *t)
{
	t->id = next(c);
	t->run = next(c);
	next_text(c, t->name, sizeof(t->name));
	t->pid = (uint32_t)next(c);
	t->uid = (uint32_t)next(c);
	t->start_boot_ns = (uint64_t)next(c);
	t->random_id = (uint64_t)next(c);
	t->run_tag = (uint64_t)next(c);
	t->mode = (uint32_t)next(c);
	t->seg_flags = (uint32_t)next(c);
	next_shape(c, &t->shape);
	t->attached = next_stamp(c);
	t->detached = next_stamp(c);
	next_text(c, t->end, sizeof(t->end));
}

#define ASSIGNMENT_NAMES                                                                     \
	"a.id, a.target, a.seq_first, a.boot_us, a.wall_us, a.policy, a.version, a.params, " \
	"a.why, " SHAPE_NAMES("a.")
static void next_assignment(struct cursor *c, struct log_assignment *a)
{
	a->id = next(c);
	a->target = next(c);
	a->seq_first = (uint64_t)next(c);
	a->t = next_stamp(c);
	next_text(c, a->policy, sizeof(a->policy));
	next_text(c, a->version, sizeof(a->version));
	next_text(c, a->params, sizeof(a->params));
	next_text(c, a->why, sizeof(a->why));
	next_shape(c, &a->shape);
}

#define LIMITS_NAMES(p)                                                                            \
	"d." p "_high, d." p "_high_min, d." p "_high_max, d." p "_batch, d." p "_scale_max, d." p \
	"_rules"
static void next_limits(struct cursor *c, struct log_limits *l)
{
	l->high = (uint32_t)next(c);
	l->high_min = (uint32_t)next(c);
	l->high_max = (uint32_t)next(c);
	l->batch = (uint32_t)next(c);
	l->scale_max = (uint32_t)next(c);
	l->rules = (uint32_t)next(c);
}

/* clang-format off */
#define DECISION_NAMES \
	"d.id, d.target, coalesce(d.assignment, 0), d.seq, d.boot_us, d.wall_us, d.zone, d.cpu, " \
	"d.reason, d.reason_name, d.arg0, d.arg1, d.arg2, d.arg3, " LIMITS_NAMES("old") ", " \
	LIMITS_NAMES("proposed") ", " LIMITS_NAMES("clamped") ", d.outcome, d.effect_n, " \
	"d.before_alloc_pages, d.before_alloc_zone, d.before_wait_ns, d.before_held, " \
	"d.after_alloc_pages, d.after_alloc_zone, d.after_wait_ns, d.after_held"
/* clang-format on */
static void next_decision(struct cursor *c, struct log_decision *d)
{
	d->id = next(c);
	d->target = next(c);
	d->assignment = next(c);
	d->seq = (uint64_t)next(c);
	d->t = next_stamp(c);
	d->zone = (uint32_t)next(c);
	d->cpu = (uint32_t)next(c);
	d->reason = (uint32_t)next(c);
	next_text(c, d->reason_name, sizeof(d->reason_name));
	for (int i = 0; i < 4; i++)
		d->arg[i] = next(c);
	next_limits(c, &d->old);
	next_limits(c, &d->proposed);
	next_limits(c, &d->clamped);
	d->outcome = (int)next(c);
	d->effect_n = (uint32_t)next(c);
	d->before_alloc_pages = (uint64_t)next(c);
	d->before_alloc_zone = (uint64_t)next(c);
	d->before_wait_ns = (uint64_t)next(c);
	d->before_held = (uint64_t)next(c);
	d->after_alloc_pages = (uint64_t)next(c);
	d->after_alloc_zone = (uint64_t)next(c);
	d->after_wait_ns = (uint64_t)next(c);
	d->after_held = (uint64_t)next(c);
}

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
}

static const struct log_filter no_filter = {.cpu = -1};

static int prepare(struct logstore *ls, const char *sql, sqlite3_stmt **ret)
{
	int rc = sqlite3_prepare_v2(ls->db, sql, -1, ret, NULL);

	return rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, "read");
}

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
	r = prepare(ls, sql, &st);
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
		r = prepare(ls, q.sql, &st);
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

	r = prepare(ls,
		    "SELECT " DECISION_NAMES ", " TARGET_NAMES ", " ASSIGNMENT_NAMES
		    " " DECISION_FROM " WHERE d.id = ?1",
		    &st);
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

/* ---- chunks and states: one row at a time, they can be large ---- */

struct chunk_row {
	int64_t id;
	struct chunk_totals c;
	struct logstamp t;
	uint8_t *data;
	size_t len;
};

int logstore_copy_blob(struct logstore *ls, sqlite3_stmt *st, int col, void **ret, size_t *ret_n)
{
	size_t n = (size_t)sqlite3_column_bytes(st, col);
	void *copy = malloc(n ? n : 1);

	if (!copy)
		return logstore_fail_text(ls, -ENOMEM, "no memory");
	if (n)
		memcpy(copy, sqlite3_column_blob(st, col), n);
	*ret = copy;
	*ret_n = n;
	return 0;
}

static void next_totals(struct cursor *c, struct chunk_totals *t)
{
	t->seq_first = (uint64_t)next(c);
	t->seq_last = (uint64_t)next(c);
	t->n_samples = (uint32_t)next(c);
	t->n_records = (uint32_t)next(c);
	t->time_us = (uint64_t)next(c);
	t->dt_us = (uint64_t)next(c);
	t->cpu_us = (uint64_t)next(c);
	t->alloc_pages = (uint64_t)next(c);
	t->free_pages = (uint64_t)next(c);
	t->alloc_zone = (uint64_t)next(c);
	t->free_zone = (uint64_t)next(c);
	t->refills = (uint64_t)next(c);
	t->drains = (uint64_t)next(c);
	t->free_high = (uint64_t)next(c);
	t->lock_taken = (uint64_t)next(c);
	t->lock_contended = (uint64_t)next(c);
	t->lock_wait_ns = (uint64_t)next(c);
	t->held_pages = (uint64_t)next(c);
	t->held_peak = (uint64_t)next(c);
}

#define CHUNK_SQL                                                                                  \
	"SELECT id, boot_us, wall_us, seq_first, seq_last, n_samples, n_records, time_us, dt_us, " \
	"cpu_us, alloc_pages, free_pages, alloc_zone, free_zone, refills, drains, free_high, "     \
	"lock_taken, lock_contended, lock_wait_ns, held_pages, held_peak, data FROM sample "       \
	"WHERE target = ?1 AND level = 0 AND (seq_last, id) > (?2, ?3) "                           \
	"ORDER BY seq_last, id LIMIT 1"

/* 1: a row, 0: none, -errno. */
static int chunk_step(struct logstore *ls, sqlite3_stmt *st, struct chunk_row *row)
{
	struct cursor c = {.st = st};
	int rc = sqlite3_step(st), r;

	if (rc != SQLITE_ROW) {
		r = rc == SQLITE_DONE ? 0 : logstore_fail(ls, rc, "read samples");
		sqlite3_reset(st);
		return r;
	}
	row->id = next(&c);
	row->t = next_stamp(&c);
	next_totals(&c, &row->c);
	r = logstore_copy_blob(ls, st, c.i, (void **)&row->data, &row->len);
	sqlite3_reset(st);
	return r < 0 ? r : 1;
}

int logstore_chunks(struct logstore *ls, int64_t target, uint64_t from,
		    int (*cb)(const struct chunk_totals *totals, struct logstamp t,
			      const uint8_t *data, size_t len, void *cookie),
		    void *cookie)
{
	int64_t seq = (int64_t)(from ? from - 1 : 0), id = INT64_MAX;
	struct chunk_row row;
	sqlite3_stmt *st = NULL;
	int r;

	r = prepare(ls, CHUNK_SQL, &st);
	while (r == 0) {
		logstore_bind(st, "iii", target, seq, id);
		r = chunk_step(ls, st, &row);
		if (r <= 0)
			break;
		r = cb(&row.c, row.t, row.data, row.len, cookie);
		free(row.data);
		seq = (int64_t)row.c.seq_last;
		id = row.id;
	}
	sqlite3_finalize(st);
	return r;
}

int logstore_sample_totals(struct logstore *ls, int64_t target, struct chunk_totals *ret)
{
	struct cursor c;
	sqlite3_stmt *st = NULL;
	int r = prepare(ls,
			"SELECT coalesce(min(seq_first), 0), coalesce(max(seq_last), 0), "
			"coalesce(sum(n_samples), 0), coalesce(sum(n_records), 0), "
			"coalesce(max(time_us), 0), coalesce(sum(dt_us), 0), "
			"coalesce(sum(cpu_us), 0), coalesce(sum(alloc_pages), 0), "
			"coalesce(sum(free_pages), 0), coalesce(sum(alloc_zone), 0), "
			"coalesce(sum(free_zone), 0), coalesce(sum(refills), 0), "
			"coalesce(sum(drains), 0), coalesce(sum(free_high), 0), "
			"coalesce(sum(lock_taken), 0), coalesce(sum(lock_contended), 0), "
			"coalesce(sum(lock_wait_ns), 0), coalesce(max(held_pages), 0), "
			"coalesce(max(held_peak), 0) FROM sample WHERE target = ?1",
			&st);

	if (r < 0)
		return r;
	logstore_bind(st, "i", target);
	c = (struct cursor){.st = st};
	if (sqlite3_step(st) == SQLITE_ROW)
		next_totals(&c, ret);
	else
		r = logstore_fail(ls, sqlite3_errcode(ls->db), "add up samples");
	sqlite3_finalize(st);
	return r;
}

int logstore_state_get(struct logstore *ls, int64_t assignment, uint64_t before, uint64_t *ret_seq,
		       void **ret_state, size_t *ret_size)
{
	int64_t last = before > INT64_MAX ? INT64_MAX : (int64_t)before;
	sqlite3_stmt *st = NULL;
	int r, rc;

	r = prepare(ls,
		    "SELECT seq, state FROM state WHERE assignment = ?1 AND seq <= ?2 "
		    "ORDER BY seq DESC, id DESC LIMIT 1",
		    &st);
	if (r < 0)
		return r;
	logstore_bind(st, "ii", assignment, last);
	rc = sqlite3_step(st);
	if (rc == SQLITE_ROW) {
		r = logstore_copy_blob(ls, st, 1, ret_state, ret_size);
		if (r == 0)
			*ret_seq = (uint64_t)sqlite3_column_int64(st, 0);
	} else {
		r = rc == SQLITE_DONE
			    ? logstore_fail_text(ls, -ENOENT, "%s: no state of assignment %lld",
						 ls->path, (long long)assignment)
			    : logstore_fail(ls, rc, "read a state");
	}
	sqlite3_finalize(st);
	return r;
}
