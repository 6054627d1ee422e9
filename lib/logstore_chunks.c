/* SPDX-License-Identifier: MIT */
/*
 * Reading what is large: chunks of samples, and states of policies. One row at a time is in memory;
 * as with the other reads (logstore_read.c) no statement is open while a callback runs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "lib/logstore_columns.h"

struct chunk_row {
	int64_t id;
	struct chunk_totals c;
	struct logstamp t;
	void *data;
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

int logstore_step_blob(struct logstore *ls, sqlite3_stmt *st, const char *what,
		       void (*read)(struct cursor *c, void *row), void *row, void **ret_data,
		       size_t *ret_len)
{
	struct cursor c = {.st = st};
	int rc = sqlite3_step(st), r;

	if (rc == SQLITE_ROW) {
		read(&c, row);
		r = logstore_copy_blob(ls, st, c.i, ret_data, ret_len);
		r = r < 0 ? r : 1;
	} else {
		r = rc == SQLITE_DONE ? 0 : logstore_fail(ls, rc, what);
	}
	sqlite3_reset(st);
	return r;
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

static void read_chunk(struct cursor *c, void *row)
{
	struct chunk_row *x = row;

	x->id = next(c);
	x->t = next_stamp(c);
	next_totals(c, &x->c);
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

	r = logstore_prepare(ls, CHUNK_SQL, "read", &st);
	while (r == 0) {
		logstore_bind(st, "iii", target, seq, id);
		r = logstore_step_blob(ls, st, "read samples", read_chunk, &row, &row.data,
				       &row.len);
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
	int r = logstore_prepare(ls,
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
				 "read", &st);

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

	r = logstore_prepare(ls,
			     "SELECT seq, state FROM state WHERE assignment = ?1 AND seq <= ?2 "
			     "ORDER BY seq DESC, id DESC LIMIT 1",
			     "read", &st);
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
