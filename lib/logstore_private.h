/* SPDX-License-Identifier: MIT */
/*
 * What the files of the log store share: the handle, kept statements, errors.
 */
#ifndef PCPTUNE_LIB_LOGSTORE_PRIVATE_H
#define PCPTUNE_LIB_LOGSTORE_PRIVATE_H

#include <sqlite3.h>
#include "lib/logstore.h"

#define LOGSTORE_APP_ID	  0x70637074 /* "pcpt", at offset 68 of the file */
#define LOGSTORE_WHY	  256
#define LOGSTORE_PAGE	  4096
#define LOGSTORE_N_LEVELS 3

/* Statements that are prepared once and kept. */
enum logstore_stmt {
	ST_BEGIN,
	ST_COMMIT,
	ST_ROLLBACK,
	ST_RUN_BEGIN,
	ST_RUN_END,
	ST_TARGET_ADD,
	ST_TARGET_END,
	ST_ASSIGNMENT_ADD,
	ST_SAMPLE_ADD,
	ST_SAMPLE_MERGE,
	ST_SAMPLE_OLDEST,
	ST_SAMPLE_DELETE,
	ST_SAMPLE_FIRST,
	ST_RECORD_ADD,
	ST_RECORD_OLDEST,
	ST_RECORD_PARTS,
	ST_RECORD_MERGED,
	ST_RECORD_DELETE,
	ST_RECORD_UNMERGE,
	ST_RECORD_TRIM,
	ST_RECORD_NEWEST,
	ST_RECORD_BYTES,
	ST_DECISION_ADD,
	ST_DECISION_OUTCOME,
	ST_DECISION_EFFECT,
	ST_NOCHANGE_ADD,
	ST_NOCHANGE_UPDATE,
	ST_EVENT_ADD,
	ST_STATE_ADD,
	ST_STATE_TRIM,
	ST_NOCHANGE_TRIM,
	ST_TARGET_TRIM,
	ST_EVENT_TRIM,
	ST_DECISION_TRIM,
	ST_TRIM_EVENT,
	ST_TRIM_EVENT_NEW,
	ST_PAGES,
	ST_N
};
extern const char *const logstore_sql[ST_N];

struct logstore {
	sqlite3 *db;
	char *path;
	char *wal_path;
	bool writable;
	int64_t schema; /* version of the file */
	uint64_t max_bytes;
	uint32_t busy_ms;
	uint64_t wal_bytes;   /* at which a checkpoint is due */
	unsigned depth;	      /* nested transactions */
	int broken;	      /* error that doomed the open transaction, 0: none */
	bool trimming;	      /* between the upper and the lower mark of the size bound */
	int64_t merged_bytes; /* packed records of levels 1 and 2; -1: to be counted */
	bool held_up; /* a reader keeps the journal from being emptied and it is too large */
	sqlite3_stmt *stmt[ST_N];
	char error[512];
};

/* ---- logstore.c ---- */
int logstore_errno(int rc, int sys_errno);
/* Notes what failed and dooms the open transaction; returns the errno. */
int logstore_fail(struct logstore *ls, int rc, const char *what);
__attribute__((format(printf, 3, 4))) int logstore_fail_text(struct logstore *ls, int r,
							     const char *fmt, ...);
/*
 * Binds by format: i int64_t, t text (NULL allowed), z int64_t where 0 becomes NULL, b blob
 * (pointer, size_t). Returns a sqlite code.
 */
int logstore_bind(sqlite3_stmt *st, const char *fmt, ...);
/* One that is not kept: 0, or -errno, noted as `what`. */
int logstore_prepare(struct logstore *ls, const char *sql, const char *what, sqlite3_stmt **ret);
/* A kept statement, ready to bind; NULL after an error (noted, *ret_r). */
sqlite3_stmt *logstore_get(struct logstore *ls, enum logstore_stmt i, int *ret_r);
/* Binds and runs a kept statement that gives no rows. */
int logstore_run(struct logstore *ls, enum logstore_stmt i, const char *what, const char *fmt, ...);
int logstore_exec(struct logstore *ls, const char *sql);

/* ---- logstore_schema.c ---- */
/* Makes every table in one transaction; fills counter_def. 0 or a sqlite code. */
int logstore_schema_create(sqlite3 *db);
int logstore_schema_refresh(sqlite3 *db);
/* Brings a log of an older version up to this one, in one transaction. 0 or a sqlite code. */
int logstore_schema_upgrade(sqlite3 *db, int64_t version);

/* ---- logstore_records.c ---- */
#define LOGSTORE_MINUTE_US 60000000LL
/*
 * Records of a level whose samples are gone from it are merged into the next one, or, of the last
 * one, removed: bounded work, inside a transaction. Adds to *io_done the rows taken away.
 */
int logstore_records_follow(struct logstore *ls, int level, int *io_done);
/*
 * The same for merged records that take more than their share of the bound, whatever is left of
 * their samples.
 */
int logstore_records_bound(struct logstore *ls, int *io_done);
/* Bytes of a column, malloc'ed; 0 or -ENOMEM. */
int logstore_copy_blob(struct logstore *ls, sqlite3_stmt *st, int col, void **ret, size_t *ret_n);

#endif
