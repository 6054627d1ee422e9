/* SPDX-License-Identifier: MIT */
/*
 * kill -9 of a writer at random moments, again and again on one file: each decision whose id was
 * told after its commit is there, in full, and the file is sound. A reader works meanwhile.
 */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "logstore_fixture.h"

#define ROUNDS 25

/* A failed call ends the writer with its line and the cause on standard error. */
#define MUST(ls, x)                                                                   \
	do {                                                                          \
		int r_ = (x);                                                         \
		if (r_) {                                                             \
			fprintf(stderr, "# %s: %d %s\n", #x, r_, logstore_error(ls)); \
			_exit(3);                                                     \
		}                                                                     \
	} while (0)

/* Writes for ever: decisions with samples in their transaction, outcomes, maintenance. */
static _Noreturn void writer(int out)
{
	struct logstore *ls = fx_open(2 << 20);
	struct fx_ids x = fx_begin(ls);
	static uint8_t data[9000];
	bool more;

	for (uint64_t seq = 1;; seq++) {
		struct log_decision d = fx_decision(x.t.id, x.a.id, seq);
		struct chunk_totals c = fx_totals(seq, seq);

		MUST(ls, logstore_begin(ls));
		/* refused when a reader that never rests keeps the journal: then without samples */
		if (logstore_samples_add(ls, x.t.id, fx_t(seq), &c, data, seq % sizeof(data)) ==
		    -ENOSPC) {
			logstore_rollback(ls);
			MUST(ls, logstore_begin(ls));
		}
		MUST(ls, logstore_decision_add(ls, &d));
		MUST(ls, logstore_commit(ls));
		if (write(out, &d.id, sizeof(d.id)) != sizeof(d.id))
			_exit(4);
		MUST(ls, logstore_decision_outcome(ls, d.id, LOG_APPLIED));
		if (seq % 20 == 0)
			MUST(ls, logstore_maintain(ls, &more));
	}
}

static void sleep_us(long us)
{
	struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

	nanosleep(&t, NULL);
}

/* Starts a writer, kills it after us, returns the last id that it told. */
static int64_t kill_after(long us)
{
	int64_t id, last = 0;
	int p[2], st;
	pid_t pid;

	assert_int_equal(pipe(p), 0);
	pid = fork();
	if (pid == 0) {
		close(p[0]);
		writer(p[1]);
	}
	close(p[1]);
	/* the first id, so that each round writes something */
	assert_int_equal(read(p[0], &last, sizeof(last)), sizeof(last));
	for (struct timespec a, b; us > 0;) {
		struct pollfd f = {.fd = p[0], .events = POLLIN};

		clock_gettime(CLOCK_MONOTONIC, &a);
		if (poll(&f, 1, 1) > 0 && read(p[0], &id, sizeof(id)) == sizeof(id))
			last = id;
		clock_gettime(CLOCK_MONOTONIC, &b);
		us -= (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 + 1;
	}
	kill(pid, SIGKILL);
	while (read(p[0], &id, sizeof(id)) == sizeof(id))
		last = id;
	close(p[0]);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	if (!WIFSIGNALED(st))
		fail_msg("the writer ended by itself: %d", WEXITSTATUS(st));
	return last;
}

static void test_kill(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	int64_t total = 0;

	(void)state;
	print_message("# seed %u\n", seed);
	for (int i = 0; i < ROUNDS; i++) {
		int64_t last = kill_after(rand_r(&seed) % 60000);
		struct logstore *ls = NULL;
		char why[LOGSTORE_WHY] = "", *aside = NULL, sql[200];
		struct logstore_options o = {.max_bytes = 2 << 20, .busy_ms = 2000};
		int64_t first, n;

		/* first as a reader that finds the journal as it is, then as the next daemon */
		assert_int_equal(logstore_open_ro(fx_path, &ls, why), 0);
		OK(ls, logstore_check(ls));
		logstore_close(ls);
		if (logstore_open(fx_path, &o, &ls, &aside, why))
			fail_msg("%s", why);
		assert_null(aside);
		OK(ls, logstore_check(ls));
		assert_int_equal(fx_number(ls, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
		first = fx_number(ls, "SELECT min(id) FROM decision");
		snprintf(sql, sizeof(sql), "SELECT count(*) FROM decision WHERE id <= %lld",
			 (long long)last);
		n = fx_number(ls, sql);
		/* ids have no gaps; what the size bound removed is at the old end */
		assert_int_equal(n, last - first + 1);
		total = n > total ? n : total;
		logstore_close(ls);
		sleep_us(100);
	}
	print_message("# %lld decisions at the end\n", (long long)total);
	assert_true(total > ROUNDS);
	fx_remove();
}

static int count_decisions(const struct log_decision *d, const struct log_target *t,
			   const struct log_assignment *a, void *cookie)
{
	int64_t *last = cookie;

	(void)t;
	(void)a;
	/* in order, without a gap, never half a row */
	if (*last && d->id != *last + 1)
		return -1;
	*last = d->id;
	return d->clamped.rules == UINT32_MAX && d->arg[3] == INT64_MIN ? 0 : -2;
}

/* Readers open, read all and close while writers live and die. */
static void test_read_beside(void **state)
{
	pid_t reader = fork();
	unsigned seed = 7;
	int st;

	(void)state;
	if (reader == 0) {
		struct timespec begin, now;
		int reads = 0;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		do {
			struct log_filter f = {.cpu = -1};
			struct logstore *ls = NULL;
			char why[LOGSTORE_WHY] = "";
			int64_t last = 0;
			int r = logstore_open_ro(fx_path, &ls, why);

			clock_gettime(CLOCK_MONOTONIC, &now);
			if (r == -ENOENT)
				continue;
			if (r < 0) {
				fprintf(stderr, "# %d %s\n", r, why);
				_exit(1);
			}
			r = logstore_decisions(ls, &f, count_decisions, &last);
			if (r < 0) {
				fprintf(stderr, "# %d %s\n", r, logstore_error(ls));
				_exit(2);
			}
			reads++;
			logstore_close(ls);
		} while (now.tv_sec < begin.tv_sec + 2);
		_exit(reads > 10 ? 0 : 3);
	}
	for (int i = 0; i < 20; i++)
		kill_after(40000 + rand_r(&seed) % 60000);
	assert_int_equal(waitpid(reader, &st, 0), reader);
	assert_int_equal(st, 0);
	fx_remove();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_read_beside),
	};

	return cmocka_run_group_tests(tests, fx_set_up, fx_tear_down);
}
