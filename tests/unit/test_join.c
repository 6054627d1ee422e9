/* SPDX-License-Identifier: MIT */
/*
 * A recording that begins while the program runs: program, daemon and recorder are one process
 * here, and its agent is between them. The program stands still where a trace begins and ends, so
 * every page of it is known.
 */
#include <setjmp.h>
#include <stdint.h>
#include "tests/unit/agent_daemon.h"
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "allocator/agent.h"
#include "allocator/events.h"
#include "allocator/pcp_locked.h"
#include "allocator/pcp_private.h"
#include "lib/fdpass.h"
#include "lib/recorder.h"

static int listener;
static struct target target;
static FILE *file;
static struct trace_writer *w;
static struct recorder *r;
static const struct trace_row *levels;
static size_t n_levels;
static void *block[6000];
static uint64_t merged;

static void swing(unsigned n, unsigned order)
{
	for (unsigned i = 0; i < n; i++)
		CHECK((block[i] = pcpa_alloc(order)));
	for (unsigned i = n; i-- > 0;)
		pcpa_free(block[i], order);
}

static void attach(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	make_folder();
	listener = listen_at();
	swing(1, 0);
	target = receive_hello(listener);
	accept_target(&target);
	swing(40, 1);
	swing(1500, 0);
}

static void detach(void)
{
	end_daemon(&target, listener);
}

/* ---- the recorder ---- */

/* The recorder's end of what the program was asked to take. */
static int ask(void)
{
	struct pcptune_request q = {.magic = PCPTUNE_WIRE_MAGIC,
				    .version = PCPTUNE_WIRE_VERSION,
				    .size = sizeof(q),
				    .what = PCPTUNE_REQUEST_RECORD};
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
	CHECK(fdpass_send(target.socket, &q, sizeof(q), pair[0]) == sizeof(q));
	close(pair[0]);
	wake(&target);
	return pair[1];
}

static int join(int sock)
{
	CHECK(!recorder_new(-1, NULL, &r));
	return recorder_join(r, sock, WAIT_MS, NULL, &levels, &n_levels);
}

static void begin(void)
{
	CHECK(join(ask()) == 0);
	CHECK((file = tmpfile()));
	CHECK(!trace_writer_new_at(file, "test", n_levels, &w) && !recorder_write_to(r, w));
}

static struct {
	uint64_t taken, freed, level, last_ns; /* pages */
	uint32_t backwards;
} sum;

static void add(const struct trace_row *row, bool level)
{
	uint64_t pages = (uint64_t)(row->blocks < 0 ? -row->blocks : row->blocks) << row->order;

	*(level ? &sum.level : row->blocks > 0 ? &sum.freed : &sum.taken) += pages;
	sum.backwards += row->time_ns < sum.last_ns;
	sum.last_ns = row->time_ns;
}

static void read_trace(void)
{
	const struct trace_row *rows;
	struct trace_reader *t;
	char why[TRACE_WHY];
	size_t n;
	int e;

	memset(&sum, 0, sizeof(sum));
	rewind(file);
	CHECK(!trace_open_stream(file, "test", &t, why));
	while ((e = trace_next(t, &rows, &n, why)) == 1)
		for (size_t i = 0; i < n; i++)
			add(&rows[i], i < trace_levels(t));
	CHECK(!e);
	trace_close(t);
}

/* ask: else it has ended already. */
static void end(bool ask_it)
{
	struct recorder_totals totals;
	uint64_t rows;

	if (ask_it)
		recorder_end(r);
	UNTIL(recorder_ended(r));
	CHECK(!recorder_pass(r, &rows));
	recorder_totals(r, &totals);
	CHECK(totals.programs == 1 && !(totals.bad | totals.refused));
	merged = totals.merged;
	CHECK(!trace_writer_end(w));
	recorder_free(r);
	trace_writer_free(w);
	read_trace();
}

static unsigned count_rings(void)
{
	char line[512];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/maps", "r");

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "pcptune-events") != NULL;
	fclose(f);
	return n;
}

/* Nobody records, and nothing of it is left. */
static void check_none(void)
{
	UNTIL(!pcpa_events_joined());
	CHECK(!pcpa_heap.events && !count_rings());
	CHECK_AUDIT();
}

static uint64_t pages_on_lists(void)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < pcpa_heap.n_zones * pcpa_heap.n_slots; i++)
		pages += pcpa_pcp_pages(pcpa_cpu_block(0, i));
	return pages;
}

/* ---- what is in the trace ---- */

static void whole(void)
{
	uint64_t held;

	attach();
	for (unsigned i = 0; i < 3; i++) {
		held = pages_on_lists();
		CHECK(held > 40);
		begin();
		CHECK(pcpa_heap.events && count_rings() >= 1);
		swing(3000 + i, 0);
		swing(700, 2);
		swing(7, 1);
		swing(3, 9);
		end(true);
		CHECK(sum.level == held && !sum.backwards);
		/* to the page: the last looks are at its end */
		CHECK(!merged && sum.taken == 3000 + i + 2800 + 14 + 1536 &&
		      sum.freed == sum.taken);
		check_none();
		swing(2000, 0);
	}
	detach();
}

static void every_page_from_begin_to_end(void **state)
{
	(void)state;
	assert_int_equal(in_child(whole, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(whole, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=locked")), 0);
}

/* Windows are 4 pages wide from the first moment on, on lists that had wider ones, too. */
static void narrow(void)
{
	struct recorder_totals totals;
	uint64_t rows;

	attach();
	swing(5000, 0);
	begin();
	for (unsigned i = 0; i < 100; i++)
		CHECK((block[i] = pcpa_alloc(0)));
	for (unsigned i = 0; i < 100; i++)
		CHECK((block[100 + i] = pcpa_alloc(1)));
	CHECK(!recorder_pass(r, &rows));
	recorder_totals(r, &totals);
	CHECK(totals.rows >= n_levels + 100 / 17 + 100 / 9);
	end(true);
	CHECK(sum.taken == 300);
	check_none();
	detach();
}

static void windows_are_narrow_at_once(void **state)
{
	(void)state;
	assert_int_equal(in_child(narrow, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(narrow, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=locked")), 0);
}

/* ---- while others work ---- */

static uint32_t enough;

static void *work(void *arg)
{
	void *mine[300];

	(void)arg;
	while (!pcpa_get(&enough))
		for (unsigned order = 0; order < 4; order++) {
			for (unsigned i = 0; i < 300; i++)
				CHECK((mine[i] = pcpa_alloc(order)));
			for (unsigned i = 300; i-- > 0;)
				pcpa_free(mine[i], order);
		}
	return NULL;
}

static void busy(void)
{
	pthread_t thread[3];
	cpu_set_t all;

	attach();
	memset(&all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), &all);
	for (unsigned i = 0; i < 3; i++)
		CHECK(!pthread_create(&thread[i], NULL, work, NULL));
	for (unsigned i = 0; i < 12; i++) {
		begin();
		for (uint64_t rows, n = 0; n < 500; n += rows) {
			CHECK(!recorder_pass(r, &rows));
			usleep(1000);
		}
		end(true);
		CHECK(sum.taken && sum.freed);
	}
	/* they wait for one that stands still, and go on when it goes */
	for (unsigned i = 0; i < 4; i++) {
		begin();
		usleep(50000);
		recorder_free(r);
		trace_writer_free(w);
		UNTIL(!pcpa_events_joined());
	}
	pcpa_put(&enough, 1);
	for (unsigned i = 0; i < 3; i++)
		CHECK(!pthread_join(thread[i], NULL));
	check_none();
	detach();
}

static void begin_and_end_while_others_work(void **state)
{
	(void)state;
	assert_int_equal(in_child(busy, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(busy, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=locked")), 0);
}

/* To another CPU than this one; false: there is none. */
static bool move_on(const cpu_set_t *may)
{
	cpu_set_t one;

	for (int cpu = 0, here = sched_getcpu(); cpu < CPU_SETSIZE; cpu++) {
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (cpu != here && CPU_ISSET(cpu, may))
			return !sched_setaffinity(0, sizeof(one), &one);
	}
	return false;
}

/* How long this thread ran, or waited for a CPU to run on; 0 where the system does not say. */
static uint64_t ran_ns(void)
{
	unsigned long long ran = 0, waited = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "r");

	if (f && fscanf(f, "%llu %llu", &ran, &waited) != 2)
		ran = waited = 0;
	if (f)
		fclose(f);
	return ran + waited;
}

/* slept: without the time that it wanted to run in, which others on the machine may stretch. */
static uint64_t swings_ms(unsigned n, bool slept)
{
	uint64_t start = pcpa_now_ns(), ran = ran_ns();

	while (n--)
		swing(3000, 0);
	ran = slept ? ran_ns() - ran : 0;
	start += ran;
	return pcpa_now_ns() > start ? (pcpa_now_ns() - start) / 1000000 : 0;
}

/* A ring is full after some 25 of these swings. */
static void standing(void)
{
	cpu_set_t may;
	uint64_t rows;

	CHECK(!sched_getaffinity(0, sizeof(may), &may));
	attach();
	begin();
	CHECK(swings_ms(100, false) >= 3000);
	CHECK(swings_ms(100, true) < 1500);
	/* the ring of another CPU has room, but nobody empties it either */
	if (move_on(&may)) {
		CHECK(swings_ms(1, true) < 1500);
		CHECK(move_on(&may));
		CHECK(swings_ms(1, true) < 1500);
	}
	/* it goes on, and is waited for again */
	CHECK(!recorder_pass(r, &rows) && rows > 10000);
	CHECK(swings_ms(100, false) >= 3000);
	end(true);
	CHECK(merged);
	check_none();
	detach();
}

static void a_recorder_that_stands_still_is_waited_for_once(void **state)
{
	(void)state;
	assert_int_equal(in_child(standing, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

/* ---- who goes ---- */

static void killed(void)
{
	attach();
	for (unsigned i = 0; i < 2; i++) {
		begin();
		swing(1000, 0);
		/* as the system does it for one that is killed */
		recorder_free(r);
		check_none();
		swing(1000, 0);
	}
	/* one that went before the program came to it */
	close(ask());
	begin();
	swing(100, 0);
	end(true);
	CHECK(sum.taken == 100);
	check_none();
	detach();
}

static void a_recorder_that_goes_leaves_nothing(void **state)
{
	(void)state;
	assert_int_equal(in_child(killed, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

/* A program that closes what it does not know ends its recording, and keeps no ring. */
static void closing(void)
{
	uint64_t rows;

	attach();
	begin();
	swing(1000, 0);
	CHECK(!recorder_pass(r, &rows));
	for (int fd = 900; fd < 4096; fd++)
		if (fd != target.socket && fd != target.segment && fd != listener)
			close(fd);
	end(false);
	CHECK(sum.taken == 1000);
	check_none();
	detach();
}

static void a_program_that_closes_everything(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* closing what another thread uses is just what TSan reports */
	skip();
#endif
	assert_int_equal(in_child(closing, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

static void daemon_goes(void)
{
	attach();
	begin();
	drop_target(&target);
	UNTIL(pcpa_attach_state() != PCPA_ATTACH_DONE);
	swing(1000, 0);
	end(true);
	CHECK(sum.taken == 1000);
	check_none();
	target = receive_hello(listener);
	accept_target(&target);
	begin();
	swing(500, 0);
	end(true);
	CHECK(sum.taken == 500);
	detach();
}

static void it_does_not_need_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(in_child(daemon_goes, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

/* ---- fork ---- */

static void forks(void)
{
	int go[2], status;
	char byte;
	pid_t pid;

	attach();
	CHECK(!pipe(go));
	begin();
	CHECK(!pcpa_locked.n_cpus);
	swing(1000, 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		/* one mapping is the recorder's */
		CHECK(!pcpa_heap.events && count_rings() == 1 && !pcpa_events_joined());
		CHECK(!pcpa_locked.n_cpus == !!pcpa_fast_cpus());
		swing(5000, 0);
		CHECK_AUDIT();
		CHECK(read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	swing(2000, 0);
	/* the child is still there, and keeps nothing of ours open */
	end(true);
	CHECK(sum.taken == 3000 && sum.freed == 3000);
	check_none();
	CHECK(!pcpa_locked.n_cpus == !!pcpa_fast_cpus());
	CHECK(write(go[1], "", 1) == 1 && waitpid(pid, &status, 0) == pid && !status);
	detach();
}

static void a_child_is_not_recorded(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* no threads after a fork there */
	skip();
#endif
	assert_int_equal(in_child(forks, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(forks, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_MODE=locked")), 0);
}

/* ---- who is refused ---- */

static void twice(void)
{
	struct recorder *first;

	attach();
	begin();
	first = r;
	CHECK(join(ask()) == -EBUSY);
	recorder_free(r);
	r = first;
	swing(1000, 0);
	end(true);
	CHECK(sum.taken == 1000);
	check_none();
	detach();
}

static void without_trackers(void)
{
	attach();
	CHECK(join(ask()) == -EOPNOTSUPP);
	recorder_free(r);
	check_none();
	detach();
}

static void others_daemon(void)
{
	make_folder();
	listener = listen_at();
	/* a socket is of who listened last; another user has no way into $TMPDIR */
	CHECK(!chown(path, 65534, 65534) && !seteuid(65534) && !listen(listener, 4));
	CHECK(!seteuid(0));
	swing(1, 0);
	target = receive_hello(listener);
	accept_target(&target);
	CHECK(join(ask()) == -EPERM);
	recorder_free(r);
	check_none();
	detach();
}

static void refusals_say_why(void **state)
{
	(void)state;
	assert_int_equal(in_child(twice, SETTINGS("PCPALLOC_AGENT=1")), 0);
	assert_int_equal(
		in_child(without_trackers, SETTINGS("PCPALLOC_AGENT=1", "PCPALLOC_GRAIN=0")), 0);
	if (!geteuid())
		assert_int_equal(in_child(others_daemon, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

static unsigned count_fds(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 4096; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* What is no request of ours is dropped, its descriptor with it, and what comes after is heard. */
static void strange(void)
{
	struct pcptune_request q = {.magic = 1, .what = PCPTUNE_REQUEST_RECORD};
	unsigned fds;

	attach();
	fds = count_fds();
	CHECK(fdpass_send(target.socket, &q, sizeof(q), listener) == sizeof(q));
	q.magic = PCPTUNE_WIRE_MAGIC;
	q.what = 77;
	CHECK(fdpass_send(target.socket, &q, sizeof(q), listener) == sizeof(q));
	q.what = PCPTUNE_REQUEST_RECORD;
	CHECK(fdpass_send(target.socket, &q, 3, listener) == 3);
	CHECK(send(target.socket, &q, sizeof(q), 0) == sizeof(q));
	/* a descriptor that is no socket */
	CHECK(fdpass_send(target.socket, &q, sizeof(q), target.segment) == sizeof(q));
	begin();
	swing(1000, 0);
	end(true);
	CHECK(sum.taken == 1000);
	check_none();
	CHECK(count_fds() == fds);
	CHECK(pcpa_attach_state() == PCPA_ATTACH_DONE);
	detach();
}

static void strange_requests_are_dropped(void **state)
{
	(void)state;
	assert_int_equal(in_child(strange, SETTINGS("PCPALLOC_AGENT=1")), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_page_from_begin_to_end),
		cmocka_unit_test(windows_are_narrow_at_once),
		cmocka_unit_test(begin_and_end_while_others_work),
		cmocka_unit_test(a_recorder_that_stands_still_is_waited_for_once),
		cmocka_unit_test(a_recorder_that_goes_leaves_nothing),
		cmocka_unit_test(a_program_that_closes_everything),
		cmocka_unit_test(it_does_not_need_the_daemon),
		cmocka_unit_test(a_child_is_not_recorded),
		cmocka_unit_test(refusals_say_why),
		cmocka_unit_test(strange_requests_are_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
