/* SPDX-License-Identifier: MIT */
/*
 * The log store: errors, kept statements and transactions, on which the other logstore_*.c stand.
 *
 * A failed write inside a transaction dooms it: some errors make sqlite roll back by itself, and a
 * later write would then be committed alone, so every further write and the commit give the first
 * error until the outermost level has ended. Nothing of a doomed transaction is in the file, and
 * the next one begins afresh, so the store is usable again as soon as the cause is gone.
 *
 * Schema: logstore_schema.c. Single-threaded: a handle belongs to one thread.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lib/logstore_private.h"

struct logstamp logstamp_now(void)
{
	struct timespec boot, wall;

	clock_gettime(CLOCK_BOOTTIME, &boot);
	clock_gettime(CLOCK_REALTIME, &wall);
	return (struct logstamp){
		.boot_us = (uint64_t)boot.tv_sec * 1000000 + (uint64_t)boot.tv_nsec / 1000,
		.wall_us = (uint64_t)wall.tv_sec * 1000000 + (uint64_t)wall.tv_nsec / 1000,
	};
}

const char *log_outcome_name(int outcome)
{
	static const char *const names[] = {
		[LOG_JOURNALED] = "journaled",	 [LOG_WRITTEN] = "written",
		[LOG_APPLIED] = "applied",	 [LOG_DRY_RUN] = "dry-run",
		[LOG_SUPERSEDED] = "superseded", [LOG_GONE] = "gone",
		[LOG_DRIFT] = "drift",		 [LOG_FAILED] = "failed",
	};

	if (outcome < 0 || outcome >= (int)(sizeof(names) / sizeof(names[0])))
		return "unknown";
	return names[outcome];
}

const char *logstore_error(const struct logstore *ls)
{
	return ls->error;
}

const char *logstore_path(const struct logstore *ls)
{
	return ls->path;
}

/* ---- errors ---- */

int logstore_errno(int rc, int sys_errno)
{
	switch (rc & 0xff) {
	case SQLITE_OK:
	case SQLITE_ROW:
	case SQLITE_DONE:
		return 0;
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return -EBUSY;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return -EACCES;
	case SQLITE_CONSTRAINT:
	case SQLITE_TOOBIG:
		return -EINVAL;
	case SQLITE_IOERR:
	case SQLITE_CANTOPEN:
		if (sys_errno == ENOSPC || sys_errno == EDQUOT)
			return -ENOSPC;
		if (sys_errno == EROFS)
			return -EROFS;
		return sys_errno == EACCES ? -EACCES : -EIO;
	default:
		return -EIO;
	}
}

int logstore_fail_text(struct logstore *ls, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(ls->error, sizeof(ls->error), fmt, ap);
	va_end(ap);
	if (ls->depth && !ls->broken)
		ls->broken = r;
	return r;
}

int logstore_fail(struct logstore *ls, int rc, const char *what)
{
	return logstore_fail_text(ls, logstore_errno(rc, sqlite3_system_errno(ls->db)),
				  "%s: %s: %s (sqlite %d)", ls->path, what, sqlite3_errmsg(ls->db),
				  rc);
}

/* ---- statements ---- */

static int bind_one(sqlite3_stmt *st, int i, char type, va_list *ap)
{
	const void *p;
	int64_t v;

	switch (type) {
	case 'i':
		return sqlite3_bind_int64(st, i, va_arg(*ap, int64_t));
	case 'z':
		v = va_arg(*ap, int64_t);
		return v ? sqlite3_bind_int64(st, i, v) : sqlite3_bind_null(st, i);
	case 't':
		return sqlite3_bind_text(st, i, va_arg(*ap, const char *), -1, SQLITE_STATIC);
	case 'b':
		p = va_arg(*ap, const void *);
		return sqlite3_bind_blob64(st, i, p ? p : "", va_arg(*ap, size_t), SQLITE_STATIC);
	default:
		return SQLITE_MISUSE;
	}
}

static int bind_all(sqlite3_stmt *st, const char *fmt, va_list *ap)
{
	int rc = SQLITE_OK;

	for (int i = 0; fmt[i] && rc == SQLITE_OK; i++)
		rc = bind_one(st, i + 1, fmt[i], ap);
	return rc;
}

int logstore_bind(sqlite3_stmt *st, const char *fmt, ...)
{
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = bind_all(st, fmt, &ap);
	va_end(ap);
	return rc;
}

int logstore_prepare(struct logstore *ls, const char *sql, const char *what, sqlite3_stmt **ret)
{
	int rc = sqlite3_prepare_v2(ls->db, sql, -1, ret, NULL);

	return rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, what);
}

sqlite3_stmt *logstore_get(struct logstore *ls, enum logstore_stmt i, int *ret_r)
{
	int rc = SQLITE_OK;

	if (!ls->stmt[i])
		rc = sqlite3_prepare_v3(ls->db, logstore_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
					&ls->stmt[i], NULL);
	*ret_r = rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, "prepare");
	return rc == SQLITE_OK ? ls->stmt[i] : NULL;
}

int logstore_run(struct logstore *ls, enum logstore_stmt i, const char *what, const char *fmt, ...)
{
	sqlite3_stmt *st;
	va_list ap;
	int r, rc;

	if (!ls->writable)
		return logstore_fail_text(ls, -EROFS, "%s: %s: opened read-only", ls->path, what);
	if (ls->broken)
		return ls->broken; /* the text of the first error stays */
	st = logstore_get(ls, i, &r);
	if (!st)
		return r;
	va_start(ap, fmt);
	rc = bind_all(st, fmt, &ap);
	va_end(ap);
	if (rc == SQLITE_OK) {
		rc = sqlite3_step(st);
		if (rc == SQLITE_DONE)
			rc = SQLITE_OK;
	}
	r = rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, what);
	sqlite3_reset(st);
	sqlite3_clear_bindings(st);
	return r;
}

int logstore_exec(struct logstore *ls, const char *sql)
{
	int rc = sqlite3_exec(ls->db, sql, NULL, NULL, NULL);

	return rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, sql);
}

/* ---- transactions ---- */

int logstore_begin(struct logstore *ls)
{
	int r;

	if (ls->depth) {
		ls->depth++;
		return ls->broken;
	}
	r = logstore_run(ls, ST_BEGIN, "begin", "");
	if (r == 0)
		ls->depth = 1;
	return r;
}

void logstore_rollback(struct logstore *ls)
{
	char keep[sizeof(ls->error)];

	if (!ls->depth)
		return;
	memcpy(keep, ls->error, sizeof(keep));
	ls->depth = 0;
	ls->broken = 0;
	if (!sqlite3_get_autocommit(ls->db))
		logstore_run(ls, ST_ROLLBACK, "rollback", "");
	memcpy(ls->error, keep, sizeof(keep));
}

int logstore_commit(struct logstore *ls)
{
	int r = ls->broken;

	if (!ls->depth)
		return logstore_fail_text(ls, -EINVAL, "%s: commit without begin", ls->path);
	if (ls->depth > 1) {
		ls->depth--;
		return r;
	}
	if (r == 0)
		r = logstore_run(ls, ST_COMMIT, "commit", "");
	if (r < 0)
		logstore_rollback(ls);
	ls->depth = 0;
	ls->broken = 0;
	return r;
}

int logstore_check(struct logstore *ls)
{
	sqlite3_stmt *st = NULL;
	int rc = sqlite3_prepare_v2(ls->db, "PRAGMA integrity_check(20)", -1, &st, NULL), r = 0;

	while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		rc = SQLITE_OK;
		if (r == 0 && text && strcmp(text, "ok") != 0)
			r = logstore_fail_text(ls, -EUCLEAN, "%s: %s", ls->path, text);
	}
	if (r == 0 && rc != SQLITE_DONE)
		r = (rc & 0xff) == SQLITE_CORRUPT || (rc & 0xff) == SQLITE_NOTADB
			    ? logstore_fail_text(ls, -EUCLEAN, "%s: %s", ls->path,
						 sqlite3_errmsg(ls->db))
			    : logstore_fail(ls, rc, "integrity_check");
	sqlite3_finalize(st);
	return r;
}
