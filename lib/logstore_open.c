/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing the log.
 *
 * The first 100 bytes of the file are read before sqlite sees it, so that a file that is not ours,
 * or of a newer schema, is refused without a byte being written (sqlite may roll back a journal or
 * make side files as soon as it opens for writing). A new database is made complete under another
 * name and then moved into place: PATH is never half a log.
 *
 * Read-only: beside a live writer sqlite shares its -shm file; after a kill it reads the -wal that
 * is left. In a directory that can not be written, with no -shm, sqlite gives up; then, and only
 * when there is no -wal (so that the file alone is the whole truth), it is opened as immutable. A
 * writer that starts at that very moment could change pages under such a reader; it would see a
 * damaged page and an error, never cause harm.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/logstore_private.h"

#define HEADER_BYTES	100
#define CHECK_MAX_BYTES (64u << 20) /* a larger file is probed, not read whole, at the start */
#define MIN_BYTES	(1u << 20)

__attribute__((format(printf, 3, 4))) static int why_text(char *why, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, LOGSTORE_WHY, fmt, ap);
	va_end(ap);
	return r;
}

static char *join(const char *a, const char *b)
{
	char *s;

	return asprintf(&s, "%s%s", a, b) < 0 ? NULL : s;
}

/* ---- the head of the file ---- */

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* 0: ours; -ENOENT: nothing there, or an empty file; else refused. Writes nothing. */
static int check_head(const char *path, char *why)
{
	uint8_t h[HEADER_BYTES];
	struct stat st;
	ssize_t n = 0;
	int fd, r = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return why_text(why, -errno, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0 || (S_ISREG(st.st_mode) && (n = read(fd, h, sizeof(h))) < 0))
		r = -errno;
	close(fd);
	if (r < 0)
		return why_text(why, r, "%s: %s", path, strerror(-r));
	if (!S_ISREG(st.st_mode))
		return why_text(why, -EINVAL, "%s: not a regular file", path);
	if (n == 0)
		return why_text(why, -ENOENT, "%s: is empty", path);
	if (n < HEADER_BYTES || memcmp(h, "SQLite format 3", 16) != 0 ||
	    be32(h + 68) != LOGSTORE_APP_ID)
		return why_text(why, -EINVAL, "%s: exists and is not a log of pcptune; left alone",
				path);
	if (be32(h + 60) > LOGSTORE_SCHEMA)
		return why_text(
			why, -EPROTONOSUPPORT,
			"%s: written by a newer version (schema %u, this one knows %u); left alone",
			path, be32(h + 60), LOGSTORE_SCHEMA);
	return 0;
}

/* ---- directories, new files ---- */

static int make_parents(const char *path, char *why)
{
	char *dir = strdup(path);
	int r = dir ? 0 : -ENOMEM;

	for (char *p = dir ? dir + 1 : NULL; p && *p && r == 0; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(dir, 0700) < 0 && errno != EEXIST && access(dir, X_OK) < 0)
			r = why_text(why, -errno, "%s: can not be made: %s", dir, strerror(errno));
		*p = '/';
	}
	free(dir);
	return r;
}

static int move_into_place(const char *from, const char *path)
{
	struct stat st;

	/* an empty file may be replaced; a log that someone else has just made may not */
	if (stat(path, &st) == 0 && st.st_size == 0)
		return rename(from, path) < 0 ? -errno : 0;
	if (renameat2(AT_FDCWD, from, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno == EEXIST)
		return unlink(from) < 0 ? -errno : 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return rename(from, path) < 0 ? -errno : 0; /* no such flag on this file system */
}

static int sync_file(const char *file)
{
	int fd = open(file, O_RDWR | O_CLOEXEC), r;

	if (fd < 0)
		return -errno;
	r = fsync(fd) < 0 ? -errno : 0;
	close(fd);
	return r;
}

/* Nobody knows the file yet, so one sync at the end is enough. */
static int build(const char *file, char *why)
{
	sqlite3 *db = NULL;
	int fd, rc, r;

	fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return why_text(why, -errno, "%s: can not be made: %s", file, strerror(errno));
	close(fd);
	rc = sqlite3_open_v2(file, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(db, "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;",
				  NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		rc = logstore_schema_create(db);
	r = logstore_errno(rc, db ? sqlite3_system_errno(db) : 0);
	if (r < 0)
		why_text(why, r, "%s: can not be made: %s", file,
			 db ? sqlite3_errmsg(db) : "no memory");
	sqlite3_close(db);
	if (r == 0) {
		r = sync_file(file);
		if (r < 0)
			why_text(why, r, "%s: can not be made: %s", file, strerror(-r));
	}
	return r;
}

static int create(const char *path, char *why)
{
	char suffix[32], *tmp;
	int r;

	r = make_parents(path, why);
	if (r < 0)
		return r;
	snprintf(suffix, sizeof(suffix), ".new-%d", (int)getpid());
	tmp = join(path, suffix);
	if (!tmp)
		return why_text(why, -ENOMEM, "no memory");
	unlink(tmp); /* of an earlier process with our id that was killed here */
	r = build(tmp, why);
	if (r == 0) {
		r = move_into_place(tmp, path);
		if (r < 0)
			why_text(why, r, "%s: can not be made: %s", path, strerror(-r));
	}
	if (r < 0)
		unlink(tmp);
	free(tmp);
	return r;
}

/* ---- a damaged file ---- */

static int rename_side(const char *path, const char *to, const char *suffix)
{
	char *a = join(path, suffix), *b = join(to, suffix);
	int r = a && b ? 0 : -ENOMEM;

	if (r == 0 && rename(a, b) < 0 && errno != ENOENT)
		r = -errno;
	free(a);
	free(b);
	return r;
}

/* PATH to PATH.damaged-N with its side files, so that it can still be looked into. */
static int set_aside(const char *path, char **ret_to, char *why)
{
	char suffix[32], *to = NULL;
	int r = -EEXIST;

	for (int n = 1; n < 10000 && r == -EEXIST; n++) {
		free(to);
		snprintf(suffix, sizeof(suffix), ".damaged-%d", n);
		to = join(path, suffix);
		r = !to ? -ENOMEM : access(to, F_OK) == 0 ? -EEXIST : 0;
	}
	if (r == 0)
		r = rename_side(path, to, "-wal");
	if (r == 0)
		r = rename_side(path, to, "-shm");
	if (r == 0 && rename(path, to) < 0)
		r = -errno;
	if (r < 0) {
		free(to);
		return why_text(why, r, "%s: is damaged and can not be set aside: %s", path,
				strerror(-r));
	}
	*ret_to = to;
	return 0;
}

/* ---- the handle ---- */

static void destroy(struct logstore *ls)
{
	for (int i = 0; i < ST_N; i++)
		sqlite3_finalize(ls->stmt[i]);
	sqlite3_close(ls->db);
	free(ls->path);
	free(ls->wal_path);
	free(ls);
}

static int new_handle(const char *path, struct logstore **ret, char *why)
{
	struct logstore *ls = calloc(1, sizeof(*ls));

	if (ls) {
		ls->path = strdup(path);
		ls->wal_path = join(path, "-wal");
	}
	if (!ls || !ls->path || !ls->wal_path) {
		if (ls)
			destroy(ls);
		return why_text(why, -ENOMEM, "no memory");
	}
	*ret = ls;
	return 0;
}

/* A file from elsewhere may hold anything: no SQL of its schema is trusted. */
static int open_db(struct logstore *ls, const char *name, int flags)
{
	int rc = sqlite3_open_v2(name, &ls->db, flags | SQLITE_OPEN_NOMUTEX, NULL);

	if (rc != SQLITE_OK)
		return rc;
	sqlite3_extended_result_codes(ls->db, 1);
	sqlite3_busy_timeout(ls->db, (int)ls->busy_ms);
	sqlite3_db_config(ls->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	return sqlite3_exec(ls->db,
			    "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; "
			    "PRAGMA temp_store = MEMORY;",
			    NULL, NULL, NULL);
}

/* 0: reads well; a sqlite code otherwise. */
static int probe(struct logstore *ls)
{
	struct stat st;
	sqlite3_stmt *q = NULL;
	int rc;

	if (stat(ls->path, &st) == 0 && st.st_size > CHECK_MAX_BYTES)
		return sqlite3_exec(ls->db,
				    "SELECT max(id) FROM sample; SELECT max(id) FROM decision; "
				    "SELECT min(id) FROM sample; SELECT min(id) FROM decision; "
				    "SELECT max(id) FROM event; SELECT max(id) FROM target",
				    NULL, NULL, NULL);
	rc = sqlite3_prepare_v2(ls->db, "PRAGMA quick_check(1)", -1, &q, NULL);
	if (rc == SQLITE_OK) {
		rc = sqlite3_step(q);
		if (rc == SQLITE_ROW)
			rc = strcmp((const char *)sqlite3_column_text(q, 0), "ok") == 0
				     ? SQLITE_OK
				     : SQLITE_CORRUPT;
	}
	sqlite3_finalize(q);
	return rc;
}

/* user_version as sqlite sees it, with what is in the journal. */
static int64_t schema_version(sqlite3 *db)
{
	sqlite3_stmt *q = NULL;
	int64_t v = -1;

	if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &q, NULL) == SQLITE_OK &&
	    sqlite3_step(q) == SQLITE_ROW)
		v = sqlite3_column_int64(q, 0);
	sqlite3_finalize(q);
	return v;
}

static bool is_damage(int rc)
{
	return (rc & 0xff) == SQLITE_CORRUPT || (rc & 0xff) == SQLITE_NOTADB;
}

static int rc_why(struct logstore *ls, int rc, char *why)
{
	int r = logstore_errno(rc, ls->db ? sqlite3_system_errno(ls->db) : 0);
	const char *text = ls->db && !is_damage(rc) ? sqlite3_errmsg(ls->db) : sqlite3_errstr(rc);

	/* sqlite says no more than this when it can not make its files beside the database */
	if ((rc & 0xff) == SQLITE_CANTOPEN && access(ls->path, R_OK) == 0)
		return why_text(
			why, -EACCES,
			"%s: sqlite can not make PATH-shm or PATH-wal beside it, allowed: a "
			"directory that may be written",
			ls->path);
	return why_text(why, r, "%s: %s", ls->path, text);
}

/* ---- for writing ---- */

static int settings(struct logstore *ls, const struct logstore_options *opt)
{
	uint64_t wal_pages;
	char sql[256];

	ls->busy_ms = opt->busy_ms;
	ls->max_bytes = opt->max_bytes < MIN_BYTES ? MIN_BYTES : opt->max_bytes;
	wal_pages = ls->max_bytes / 16 / LOGSTORE_PAGE;
	if (wal_pages > 1000)
		wal_pages = 1000;
	ls->wal_bytes = wal_pages * (LOGSTORE_PAGE + 24);
	snprintf(sql, sizeof(sql),
		 "PRAGMA journal_mode = WAL; PRAGMA synchronous = %s; PRAGMA foreign_keys = ON; "
		 "PRAGMA wal_autocheckpoint = %llu; PRAGMA journal_size_limit = %llu;",
		 opt->full_sync ? "FULL" : "NORMAL", (unsigned long long)wal_pages,
		 (unsigned long long)ls->wal_bytes);
	return sqlite3_exec(ls->db, sql, NULL, NULL, NULL);
}

/* Opens what is there. *ret_rc: the sqlite code, so that damage can be told apart. */
static int open_rw(const char *path, const struct logstore_options *opt, struct logstore **ret,
		   int *ret_rc, char *why)
{
	struct logstore *ls = NULL;
	int64_t version;
	int r, rc;

	r = new_handle(path, &ls, why);
	if (r < 0)
		return r;
	ls->busy_ms = opt->busy_ms;
	rc = open_db(ls, path, SQLITE_OPEN_READWRITE);
	version = rc == SQLITE_OK ? schema_version(ls->db) : 0;
	if (version > LOGSTORE_SCHEMA) {
		destroy(ls);
		return why_text(why, -EPROTONOSUPPORT,
				"%s: written by a newer version (schema %d); left alone", path,
				(int)version);
	}
	if (rc == SQLITE_OK)
		rc = probe(ls);
	if (rc == SQLITE_OK)
		rc = settings(ls, opt);
	if (rc == SQLITE_OK && version < LOGSTORE_SCHEMA)
		rc = logstore_schema_upgrade(ls->db, version);
	if (rc == SQLITE_OK)
		rc = logstore_schema_refresh(ls->db);
	*ret_rc = rc;
	if (rc != SQLITE_OK) {
		r = rc_why(ls, rc, why);
		destroy(ls);
		return r;
	}
	ls->writable = true;
	ls->schema = LOGSTORE_SCHEMA;
	ls->merged_bytes = -1;
	*ret = ls;
	return 0;
}

int logstore_open(const char *path, const struct logstore_options *opt, struct logstore **ret,
		  char **ret_set_aside, char *why)
{
	struct logstore *ls = NULL;
	char *aside = NULL;
	int r, rc = SQLITE_OK;

	r = check_head(path, why);
	if (r == -ENOENT)
		r = create(path, why);
	if (r == 0)
		r = open_rw(path, opt, &ls, &rc, why);
	if (r < 0 && is_damage(rc)) {
		r = set_aside(path, &aside, why);
		if (r == 0)
			r = create(path, why);
		if (r == 0)
			r = open_rw(path, opt, &ls, &rc, why);
	}
	if (r < 0 || !ret_set_aside)
		free(aside);
	else if (aside)
		*ret_set_aside = aside;
	if (r == 0) {
		*ret = ls;
		why[0] = '\0'; /* of attempts before */
	}
	return r;
}

int logstore_set_options(struct logstore *ls, const struct logstore_options *opt)
{
	int rc;

	sqlite3_busy_timeout(ls->db, (int)opt->busy_ms);
	rc = settings(ls, opt);
	return rc == SQLITE_OK ? 0 : logstore_fail(ls, rc, "options");
}

/* ---- read-only ---- */

static bool no_journal(const struct logstore *ls)
{
	struct stat st;

	return stat(ls->wal_path, &st) < 0 ? errno == ENOENT : st.st_size == 0;
}

/* file:PATH?immutable=1 with the bytes that mean something in a URI escaped; malloc'ed. */
static char *immutable_uri(const char *path)
{
	char *uri = malloc(3 * strlen(path) + 32), *w = uri;

	if (!uri)
		return NULL;
	w = stpcpy(w, "file:");
	for (; *path; path++) {
		if (*path == '?' || *path == '#' || *path == '%')
			w += sprintf(w, "%%%02x", (unsigned char)*path);
		else
			*w++ = *path;
	}
	strcpy(w, "?immutable=1");
	return uri;
}

static int reopen_immutable(struct logstore *ls)
{
	char *uri = immutable_uri(ls->path);
	int rc;

	if (!uri)
		return SQLITE_NOMEM;
	sqlite3_close(ls->db);
	ls->db = NULL;
	rc = open_db(ls, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
	free(uri);
	return rc;
}

static int first_read(struct logstore *ls)
{
	return sqlite3_exec(ls->db, "SELECT count(*) FROM outcome_def", NULL, NULL, NULL);
}

int logstore_open_ro(const char *path, struct logstore **ret, char *why)
{
	struct logstore *ls = NULL;
	int r, rc;

	r = check_head(path, why);
	if (r == 0)
		r = new_handle(path, &ls, why);
	if (r < 0)
		return r;
	ls->busy_ms = 2000;
	rc = open_db(ls, path, SQLITE_OPEN_READONLY);
	if (rc == SQLITE_OK)
		rc = first_read(ls);
	if (((rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_READONLY) && no_journal(ls)) {
		rc = reopen_immutable(ls);
		if (rc == SQLITE_OK)
			rc = first_read(ls);
	}
	ls->schema = rc == SQLITE_OK ? schema_version(ls->db) : 0;
	if (ls->schema > LOGSTORE_SCHEMA) {
		destroy(ls);
		return why_text(why, -EPROTONOSUPPORT, "%s: written by a newer version", path);
	}
	if (rc != SQLITE_OK) {
		r = rc_why(ls, rc, why);
		if (r == -EACCES && !no_journal(ls))
			why_text(why, r,
				 "%s: a daemon that was killed left a journal, and this directory "
				 "may "
				 "not be written; copy the file and its -wal to another place",
				 ls->path);
		destroy(ls);
		return r;
	}
	*ret = ls;
	return 0;
}

void logstore_close(struct logstore *ls)
{
	if (!ls)
		return;
	logstore_rollback(ls);
	/* without readers the last close empties and removes the journal; beside one we do not wait
	 */
	if (ls->writable) {
		sqlite3_busy_timeout(ls->db, 0);
		sqlite3_wal_checkpoint_v2(ls->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
	}
	destroy(ls);
}
