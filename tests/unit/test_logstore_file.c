/* SPDX-License-Identifier: MIT */
/*
 * The file of the log store: those that must be refused, or set aside, and reading where nothing
 * may be written.
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include "logstore_fixture.h"

/* ---- the file ---- */

static void write_file(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	fclose(f);
}

static void test_new_file(void **state)
{
	struct logstore_options o = {.max_bytes = 8 << 20, .busy_ms = 100};
	struct logstore *ls = NULL;
	char path[300], why[LOGSTORE_WHY] = "", *aside = NULL;
	struct stat st;

	(void)state;
	snprintf(path, sizeof(path), "%s/a/b/log.db", fx_dir);
	assert_int_equal(logstore_open(path, &o, &ls, &aside, why), 0);
	assert_null(aside);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	snprintf(path, sizeof(path), "%s/a", fx_dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(fx_number(ls, "PRAGMA application_id"), LOGSTORE_APP_ID);
	assert_int_equal(fx_number(ls, "PRAGMA user_version"), LOGSTORE_SCHEMA);
	assert_int_equal(fx_number(ls, "PRAGMA auto_vacuum"), 2);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM outcome_def"), 8);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM counter_def WHERE kind = 'list'"), 2);
	assert_int_equal(fx_number(ls, "SELECT id FROM counter_def WHERE name = 'alloc_zone'"), 0);
	assert_int_equal(fx_number(ls, "SELECT id FROM counter_def WHERE name = 'batch'"), 3);
	OK(ls, logstore_check(ls));
	logstore_close(ls);
	snprintf(path, sizeof(path), "%s/a/b/log.db-wal", fx_dir);
	assert_int_equal(stat(path, &st), -1); /* nothing is left beside it */
	/* an empty file is a new one; again: what is there is kept */
	write_file(fx_path, "", 0);
	ls = fx_open(1 << 20);
	fx_begin(ls);
	logstore_close(ls);
	ls = fx_open(1 << 20);
	assert_int_equal(fx_number(ls, "SELECT count(*) FROM target"), 1);
	logstore_close(ls);
	fx_remove();
}

static void expect_refused(int want, const char *text, bool ro)
{
	struct logstore_options o = {.max_bytes = 8 << 20, .busy_ms = 100};
	struct logstore *ls = NULL;
	char why[LOGSTORE_WHY] = "";
	int r = ro ? logstore_open_ro(fx_path, &ls, why)
		   : logstore_open(fx_path, &o, &ls, NULL, why);

	if (r != want || !strstr(why, text))
		fail_msg("%d %s, want %d %s", r, why, want, text);
	assert_null(ls);
}

static void test_not_ours(void **state)
{
	char buf[100] = "";
	sqlite3 *db = NULL;
	FILE *f;

	(void)state;
	write_file(fx_path, "precious text\n", 14);
	expect_refused(-EINVAL, "not a log of pcptune", false);
	expect_refused(-EINVAL, "not a log of pcptune", true);
	f = fopen(fx_path, "r");
	assert_int_equal(fread(buf, 1, sizeof(buf), f), 14);
	fclose(f);
	assert_string_equal(buf, "precious text\n");
	fx_remove();
	assert_int_equal(sqlite3_open(fx_path, &db), SQLITE_OK);
	sqlite3_exec(db, "CREATE TABLE x (a); PRAGMA user_version = 1", NULL, NULL, NULL);
	sqlite3_close(db);
	expect_refused(-EINVAL, "not a log of pcptune", false);
	fx_remove();
	assert_int_equal(mkdir(fx_path, 0700), 0);
	expect_refused(-EINVAL, "not a regular file", false);
	rmdir(fx_path);
	expect_refused(-ENOENT, "No such file", true);
}

static void test_newer_schema(void **state)
{
	struct logstore *ls = fx_open(8 << 20);
	struct stat a, b;

	(void)state;
	assert_int_equal(sqlite3_exec(ls->db, "PRAGMA user_version = 3", NULL, NULL, NULL), 0);
	logstore_close(ls);
	assert_int_equal(stat(fx_path, &a), 0);
	expect_refused(-EPROTONOSUPPORT, "newer version", false);
	expect_refused(-EPROTONOSUPPORT, "newer version", true);
	assert_int_equal(stat(fx_path, &b), 0);
	assert_int_equal(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
	fx_remove();
}

/* The version in the journal alone, as a newer daemon that was killed leaves it. */
static void test_newer_schema_in_journal(void **state)
{
	int st;
	pid_t pid;

	(void)state;
	logstore_close(fx_open(8 << 20));
	pid = fork();
	if (pid == 0) {
		struct logstore *ls = fx_open(8 << 20);

		sqlite3_exec(ls->db, "PRAGMA user_version = 3", NULL, NULL, NULL);
		_exit(0);
	}
	waitpid(pid, &st, 0);
	expect_refused(-EPROTONOSUPPORT, "newer version", false);
	expect_refused(-EPROTONOSUPPORT, "newer version", true);
	fx_remove();
}

static void damage(const char *path, long at, size_t n)
{
	int fd = open(path, O_WRONLY);

	assert_true(fd >= 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(pwrite(fd, "\xd7", 1, at + (long)i), 1);
	close(fd);
}

static void test_damaged(void **state)
{
	struct logstore_options o = {.max_bytes = 8 << 20, .busy_ms = 100};
	char why[LOGSTORE_WHY] = "", *aside = NULL, want[200];

	(void)state;
	for (int n = 1; n <= 3; n++) {
		struct logstore *ls = fx_open(8 << 20);
		struct stat st;

		fx_begin(ls);
		logstore_close(ls);
		if (n == 3)
			assert_int_equal(truncate(fx_path, 8192 + 100), 0);
		else
			damage(fx_path, n == 1 ? 100 : 8192, 3000);
		ls = NULL;
		aside = NULL;
		if (logstore_open(fx_path, &o, &ls, &aside, why) != 0)
			fail_msg("%s", why);
		snprintf(want, sizeof(want), "%s.damaged-%d", fx_path, n);
		assert_non_null(aside);
		assert_string_equal(aside, want);
		assert_int_equal(stat(want, &st), 0);
		free(aside);
		assert_int_equal(fx_number(ls, "SELECT count(*) FROM target"), 0);
		OK(ls, logstore_check(ls));
		logstore_close(ls);
		fx_remove();
	}
}

static void test_check_finds_damage(void **state)
{
	struct logstore *ls = fx_open(8 << 20);
	char why[LOGSTORE_WHY] = "";
	int64_t page;

	(void)state;
	fx_begin(ls);
	page = fx_number(ls, "SELECT rootpage FROM sqlite_schema WHERE name = 'decision_wall'");
	logstore_close(ls);
	damage(fx_path, (page - 1) * 4096, 4096);
	ls = NULL;
	assert_int_equal(logstore_open_ro(fx_path, &ls, why), 0);
	assert_int_equal(logstore_check(ls), -EUCLEAN);
	logstore_close(ls);
	fx_remove();
}

/* ---- read-only ---- */

/* Root loses what lets it pass by permissions; for others there is nothing to do. */
static void drop_capabilities(void)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};

	if (syscall(SYS_capset, &h, none) < 0)
		_exit(99);
}

/* Runs fn in a process that permissions hold for; the result is its exit status. */
static int as_other(int (*fn)(void))
{
	pid_t pid = fork();
	int st = -1;

	if (pid == 0) {
		drop_capabilities();
		_exit(fn());
	}
	waitpid(pid, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : 98;
}

static int read_one(void)
{
	struct logstore *ls = NULL;
	char why[LOGSTORE_WHY] = "";
	struct log_decision d;
	int r = logstore_open_ro(fx_path, &ls, why);

	if (r < 0) {
		fprintf(stderr, "# %s\n", why);
		return 1;
	}
	r = logstore_decision_get(ls, 1, &d, NULL, NULL);
	if (r < 0)
		fprintf(stderr, "# %s\n", logstore_error(ls));
	logstore_close(ls);
	return r < 0 ? 2 : 0;
}

static void one_decision(struct logstore *ls)
{
	struct fx_ids x = fx_begin(ls);
	struct log_decision d = fx_decision(x.t.id, x.a.id, 1);

	OK(ls, logstore_decision_add(ls, &d));
}

static void allow_reading(mode_t dir_mode)
{
	char p[200];

	assert_int_equal(chmod(fx_path, 0444), 0);
	snprintf(p, sizeof(p), "%s-wal", fx_path);
	chmod(p, 0444);
	snprintf(p, sizeof(p), "%s-shm", fx_path);
	chmod(p, 0444);
	assert_int_equal(chmod(fx_dir, dir_mode), 0);
}

static void test_read_in_unwritable_directory(void **state)
{
	struct logstore *ls = fx_open(8 << 20);
	char p[200];

	(void)state;
	one_decision(ls);
	/* beside a live writer: its -shm is there and may be read only */
	allow_reading(0555);
	assert_int_equal(as_other(read_one), 0);
	chmod(fx_dir, 0755);
	logstore_close(ls);
	/* after a clean end: no side files */
	snprintf(p, sizeof(p), "%s-wal", fx_path);
	assert_int_equal(access(p, F_OK), -1);
	allow_reading(0555);
	assert_int_equal(as_other(read_one), 0);
	chmod(fx_dir, 0755);
	fx_remove();
}

/* Dies with the journal unfinished, as under kill -9. */
static int write_and_die(void)
{
	struct logstore *ls = fx_open(8 << 20);

	one_decision(ls);
	_exit(0);
}

static void test_read_after_kill(void **state)
{
	pid_t pid = fork();
	int st;

	(void)state;
	if (pid == 0)
		write_and_die();
	waitpid(pid, &st, 0);
	assert_int_equal(st, 0);
	allow_reading(0555);
	assert_int_equal(as_other(read_one), 0);
	chmod(fx_dir, 0755);
	assert_int_equal(read_one(), 0);
	fx_remove();
}

static int read_is_explained(void)
{
	struct logstore *ls = NULL;
	char why[LOGSTORE_WHY] = "";
	int r = logstore_open_ro(fx_path, &ls, why);

	if (r == -EACCES && strstr(why, "copy the file and its -wal"))
		return 0;
	fprintf(stderr, "# %d %s\n", r, why);
	return 1;
}

static int write_is_explained(void)
{
	struct logstore_options o = {.max_bytes = 8 << 20, .busy_ms = 100};
	struct logstore *ls = NULL;
	char why[LOGSTORE_WHY] = "";
	int r = logstore_open(fx_path, &o, &ls, NULL, why);

	if (r == -EACCES || r == -EROFS)
		return why[0] ? 0 : 2;
	fprintf(stderr, "# %d %s\n", r, why);
	return 1;
}

/* A journal without its -shm, where neither may be written: not readable, and said so. */
static void test_journal_alone(void **state)
{
	pid_t pid = fork();
	char p[200];
	int st;

	(void)state;
	if (pid == 0)
		write_and_die();
	waitpid(pid, &st, 0);
	snprintf(p, sizeof(p), "%s-shm", fx_path);
	assert_int_equal(unlink(p), 0);
	allow_reading(0555);
	assert_int_equal(as_other(read_is_explained), 0);
	assert_int_equal(as_other(write_is_explained), 0);
	chmod(fx_dir, 0755);
	assert_int_equal(as_other(write_is_explained), 0);
	chmod(fx_path, 0644);
	snprintf(p, sizeof(p), "%s-wal", fx_path);
	chmod(p, 0644);
	assert_int_equal(as_other(read_one), 0);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new_file),
		cmocka_unit_test(test_not_ours),
		cmocka_unit_test(test_newer_schema),
		cmocka_unit_test(test_newer_schema_in_journal),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_check_finds_damage),
		cmocka_unit_test(test_read_in_unwritable_directory),
		cmocka_unit_test(test_read_after_kill),
		cmocka_unit_test(test_journal_alone),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
