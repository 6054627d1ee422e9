/* SPDX-License-Identifier: MIT */
/*
 * Disk full, I/O errors and a disk that turned read-only, at each write of a whole session: the
 * error is reported, nothing committed is lost, the file stays sound, and the store goes on when
 * the cause is gone. A VFS around the default one does it: its n-th write, sync or truncate and
 * all that follow fail until it is mended.
 */
#include "logstore_fixture.h"

static sqlite3_vfs shim, *base;
static long countdown = -1; /* writes left until they fail, -1: never */
static int fault;	    /* sqlite code; 0: fine */
static long writes;	    /* all so far */

struct shim_file {
	sqlite3_file f;
	sqlite3_io_methods m;
	const sqlite3_io_methods *real_m;
	sqlite3_file *real;
};

/* Called before each write; a sqlite code when it shall fail. */
static int hit(void)
{
	writes++;
	if (countdown < 0)
		return SQLITE_OK;
	if (countdown > 0) {
		countdown--;
		return SQLITE_OK;
	}
	return fault;
}

#define REAL(f) (((struct shim_file *)(f))->real)
#define M(f)	(REAL(f)->pMethods)

static int s_close(sqlite3_file *f)
{
	return M(f)->xClose(REAL(f));
}

static int s_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
	return M(f)->xRead(REAL(f), p, n, at);
}

static int s_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
	int rc = hit();

	/* a full disk takes a part of it */
	if (rc == SQLITE_FULL && n > 1)
		M(f)->xWrite(REAL(f), p, n / 2, at);
	return rc ? rc : M(f)->xWrite(REAL(f), p, n, at);
}

static int s_truncate(sqlite3_file *f, sqlite3_int64 n)
{
	int rc = hit();

	return rc ? rc : M(f)->xTruncate(REAL(f), n);
}

/* Nothing is really synced: no power fails here, and hundreds of sessions would take minutes. */
static int s_sync(sqlite3_file *f, int flags)
{
	int rc = hit();

	(void)f;
	(void)flags;
	return rc == SQLITE_FULL ? SQLITE_IOERR_FSYNC : rc;
}

static int s_size(sqlite3_file *f, sqlite3_int64 *n)
{
	return M(f)->xFileSize(REAL(f), n);
}

static int s_lock(sqlite3_file *f, int l)
{
	return M(f)->xLock(REAL(f), l);
}

static int s_unlock(sqlite3_file *f, int l)
{
	return M(f)->xUnlock(REAL(f), l);
}

static int s_reserved(sqlite3_file *f, int *r)
{
	return M(f)->xCheckReservedLock(REAL(f), r);
}

static int s_control(sqlite3_file *f, int op, void *arg)
{
	return M(f)->xFileControl(REAL(f), op, arg);
}

static int s_sector(sqlite3_file *f)
{
	return M(f)->xSectorSize(REAL(f));
}

static int s_device(sqlite3_file *f)
{
	return M(f)->xDeviceCharacteristics(REAL(f));
}

static int s_shm_map(sqlite3_file *f, int i, int n, int extend, void volatile **p)
{
	return M(f)->xShmMap(REAL(f), i, n, extend, p);
}

static int s_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
	return M(f)->xShmLock(REAL(f), at, n, flags);
}

static void s_shm_barrier(sqlite3_file *f)
{
	M(f)->xShmBarrier(REAL(f));
}

static int s_shm_unmap(sqlite3_file *f, int del)
{
	return M(f)->xShmUnmap(REAL(f), del);
}

static int s_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct shim_file *s = (struct shim_file *)f;
	int rc;

	(void)v;
	s->real = (sqlite3_file *)(s + 1);
	s->f.pMethods = NULL;
	rc = base->xOpen(base, name, s->real, flags, out);
	if (rc != SQLITE_OK || !s->real->pMethods)
		return rc;
	s->m = (sqlite3_io_methods){.iVersion = 2,
				    .xClose = s_close,
				    .xRead = s_read,
				    .xWrite = s_write,
				    .xTruncate = s_truncate,
				    .xSync = s_sync,
				    .xFileSize = s_size,
				    .xLock = s_lock,
				    .xUnlock = s_unlock,
				    .xCheckReservedLock = s_reserved,
				    .xFileControl = s_control,
				    .xSectorSize = s_sector,
				    .xDeviceCharacteristics = s_device,
				    .xShmMap = s_shm_map,
				    .xShmLock = s_shm_lock,
				    .xShmBarrier = s_shm_barrier,
				    .xShmUnmap = s_shm_unmap};
	s->f.pMethods = &s->m;
	return SQLITE_OK;
}

static int s_delete(sqlite3_vfs *v, const char *name, int sync_dir)
{
	(void)v;
	(void)sync_dir;
	return base->xDelete(base, name, 0);
}

static int shim_set_up(void **state)
{
	base = sqlite3_vfs_find(NULL);
	shim = *base;
	shim.zName = "fault";
	shim.pNext = NULL;
	shim.xOpen = s_open;
	shim.xDelete = s_delete;
	shim.szOsFile = base->szOsFile + (int)sizeof(struct shim_file);
	sqlite3_vfs_register(&shim, 1);
	return fx_set_up(state);
}

/* ---- a session ---- */

#define STEPS 40

struct session {
	int64_t committed[STEPS];
	int n, errors, want_errno;
};

static void note(struct session *s, struct logstore *ls, int r)
{
	if (r == 0)
		return;
	s->errors++;
	/* a disk that is full makes a sync fail as an I/O error */
	if (r != s->want_errno && !(s->want_errno == -ENOSPC && r == -EIO))
		fail_msg("%d instead of %d: %s", r, s->want_errno, logstore_error(ls));
	assert_true(logstore_error(ls)[0] != '\0');
}

/* One round of the daemon's: samples and a decision together, its outcome, housekeeping. */
static void step(struct logstore *ls, const struct fx_ids *x, uint64_t seq, struct session *s)
{
	static uint8_t data[20000];
	struct log_decision d = fx_decision(x->t.id, x->a.id, seq);
	struct chunk_totals c = fx_totals(seq, seq);
	bool more = false;
	int r;

	r = logstore_begin(ls);
	if (r == 0) {
		r = logstore_samples_add(ls, x->t.id, fx_t(seq), &c, data, sizeof(data));
		if (r == 0)
			r = logstore_decision_add(ls, &d);
		if (r == 0)
			r = logstore_commit(ls);
		else
			logstore_rollback(ls);
	}
	note(s, ls, r);
	if (r == 0) {
		s->committed[s->n++] = d.id;
		note(s, ls, logstore_decision_outcome(ls, d.id, LOG_APPLIED));
	}
	note(s, ls, logstore_event(ls, x->run, x->t.id, fx_t(seq), "test", "step"));
	note(s, ls, logstore_maintain(ls, &more));
}

/* A session whose n-th write fails with all that follow, until half of the steps are left. */
static bool session(long n, int code, int want_errno)
{
	struct session s = {.want_errno = want_errno};
	struct logstore *ls = fx_open(1 << 20);
	struct fx_ids x = fx_begin(ls);
	struct log_decision d;

	fault = code;
	countdown = n;
	for (uint64_t seq = 1; seq <= STEPS; seq++) {
		if (seq == STEPS / 2)
			countdown = -1; /* there is space again */
		if (seq >= STEPS / 2)
			s.want_errno = 1; /* from here on every error is wrong */
		step(ls, &x, seq, &s);
	}
	assert_true(s.n >= STEPS / 2);
	OK(ls, logstore_check(ls));
	for (int i = 0; i < s.n; i++)
		OK(ls, logstore_decision_get(ls, s.committed[i], &d, NULL, NULL));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), s.n);
	logstore_close(ls);
	ls = fx_open(1 << 20);
	OK(ls, logstore_check(ls));
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM decision"), s.n);
	logstore_close(ls);
	fx_remove();
	return s.errors > 0;
}

static void each_write(int code, int want_errno)
{
	long begin, total;
	int with_errors = 0;

	writes = 0;
	session(-1, SQLITE_OK, 1);
	total = writes / 2; /* those of the first half */
	begin = 0;
	for (long n = begin; n<total; n += total> 150 ? total / 150 + 1 : 1)
		with_errors += session(n, code, want_errno);
	assert_true(total > 50);
	assert_true(with_errors > 15);
}

static void test_full(void **state)
{
	(void)state;
	each_write(SQLITE_FULL, -ENOSPC);
}

static void test_io_error(void **state)
{
	(void)state;
	each_write(SQLITE_IOERR_WRITE, -EIO);
}

static void test_read_only(void **state)
{
	(void)state;
	each_write(SQLITE_READONLY, -EROFS);
}

/* Faults while a log is made or opened: an error with a cause, and no half a log. */
static void test_open(void **state)
{
	struct logstore_options o = {.max_bytes = 1 << 20, .busy_ms = 100};
	int failed = 0;

	(void)state;
	for (long n = 0; n < 500; n++) {
		struct logstore *ls = NULL;
		char why[LOGSTORE_WHY] = "", *aside = NULL;
		int r;

		fault = SQLITE_FULL;
		countdown = n;
		r = logstore_open(fx_path, &o, &ls, &aside, why);
		if (countdown > 0)
			n = 500;
		countdown = -1;
		assert_null(aside);
		if (r) {
			failed++;
			assert_true(why[0] != '\0');
			assert_null(ls);
			assert_true(r == -ENOSPC || r == -EIO);
		} else {
			logstore_close(ls);
		}
		ls = fx_open(1 << 20);
		OK(ls, logstore_check(ls));
		logstore_close(ls);
		fx_remove();
	}
	assert_true(failed > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_io_error),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_open),
	};

	return cmocka_run_group_tests(tests, shim_set_up, fx_tear_down);
}
