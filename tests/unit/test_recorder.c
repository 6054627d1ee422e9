/* SPDX-License-Identifier: MIT */
/*
 * Recording: programs in children that send their rings, what becomes of them in a trace, and rings
 * that no program of ours would send. But for one test nobody reads while the children run, so that
 * full rings are the rule where there is much to be said.
 */
#include <errno.h>
#include <fcntl.h>
#include <pcpalloc.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <cmocka.h>
#include <pcptune/events.h>
#include "lib/fdpass.h"
#include "lib/recorder.h"
#include "tests/unit/alloc_child.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_MAX], events[100], setting[160];
static struct sockaddr_un place = {.sun_family = AF_UNIX};
static int listener;
static FILE *file;
static struct trace_writer *w;
static struct recorder *r;
static struct recorder_totals totals;

static int set_up(void **state)
{
	(void)state;
	assert_true(scratch_dir(dir));
	snprintf(events, sizeof(events), "%s/events", dir);
	snprintf(setting, sizeof(setting), "PCPALLOC_EVENTS=%s", events);
	snprintf(place.sun_path, sizeof(place.sun_path), "%s", events);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&place, sizeof(place)), 0);
	assert_int_equal(listen(listener, 16), 0);
	file = tmpfile();
	assert_int_equal(trace_writer_new(file, "test", &w), 0);
	assert_int_equal(recorder_new(listener, w, &r), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	recorder_free(r);
	trace_writer_free(w);
	close(listener);
	unlink(events);
	return rmdir(dir);
}

/* ---- what is in the trace ---- */

static struct {
	uint64_t rows, taken, freed, backwards, last_ns; /* pages */
	int64_t at, lowest;				 /* net position over all CPUs, pages */
	uint32_t cpus;
	bool seen[PCPTUNE_MAX_CPUS];
} sum;

static void add(const struct trace_row *row)
{
	int64_t pages = row->blocks * (1 << row->order);

	sum.backwards += sum.rows && row->time_ns < sum.last_ns;
	sum.last_ns = row->time_ns;
	sum.rows++;
	sum.taken += pages < 0 ? (uint64_t)-pages : 0;
	sum.freed += pages > 0 ? (uint64_t)pages : 0;
	sum.at += pages;
	sum.lowest = sum.at < sum.lowest ? sum.at : sum.lowest;
	sum.cpus += !sum.seen[row->cpu];
	sum.seen[row->cpu] = true;
}

/* Everything that was sent, from rings to rows. */
static void read_all(void)
{
	const struct trace_row *rows;
	struct trace_reader *t;
	char why[TRACE_WHY];
	uint64_t more = 1;
	size_t n;

	while (more)
		assert_int_equal(recorder_pass(r, &more), 0);
	recorder_totals(r, &totals);
	assert_int_equal(trace_writer_end(w), 0);
	rewind(file);
	memset(&sum, 0, sizeof(sum));
	assert_int_equal(trace_open_stream(file, "test", &t, why), 0);
	while (trace_next(t, &rows, &n, why) == 1)
		for (size_t i = 0; i < n; i++)
			add(&rows[i]);
	trace_close(t);
	assert_int_equal(sum.rows, totals.rows);
}

/* ---- programs ---- */

static void *block[20000];

#define SWINGS 5u /* half as many events again as a ring has places */

static void one_cpu(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
}

static void swing(unsigned n, unsigned order)
{
	for (unsigned i = 0; i < n; i++)
		CHECK((block[i] = pcpa_alloc(order)));
	for (unsigned i = n; i-- > 0;)
		pcpa_free(block[i], order);
}

static void runs(void)
{
	one_cpu();
	swing(5000, 0);
	swing(700, 2);
	swing(3, 9);
}

static void to_and_fro(void)
{
	one_cpu();
	for (unsigned i = 0; i < 100; i++)
		CHECK((block[i] = pcpa_alloc(0)));
	for (unsigned i = 0; i < 100000; i++)
		pcpa_free(pcpa_alloc(0), 0);
	for (unsigned i = 100; i-- > 0;)
		pcpa_free(block[i], 0);
}

static void too_much(void)
{
	one_cpu();
	for (unsigned i = 0; i < SWINGS; i++)
		swing(20000, 0);
}

static void with_a_child(void)
{
	pid_t pid;
	int status;

	one_cpu();
	swing(1000, 0);
	pid = fork();
	CHECK(pid >= 0);
	swing(pid ? 1000 : 3000, 0);
	if (pid)
		CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK_AUDIT();
}

/* A look is at most a window away, on each list: the end may be missing, and a little of gross. */
#define SLACK (5 * 32)

static void assert_near(uint64_t is, uint64_t want, uint64_t slack)
{
	if (is + slack < want || is > want + slack)
		fail_msg("%lu, not %lu", (unsigned long)is, (unsigned long)want);
}

static void runs_are_runs(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(in_child(runs, SETTINGS(setting, i ? "PCPALLOC_MODE=locked"
								    : "PCPALLOC_MODE=rseq")),
				 0);
	}
	read_all();
	assert_int_equal(totals.programs, 2);
	assert_int_equal(totals.merged | totals.bad | totals.refused, 0);
	assert_int_equal(sum.backwards, 0);
	assert_int_equal(sum.cpus, 2);
	assert_near(sum.taken, 2 * (5000 + 2800 + 1536), 2 * SLACK);
	assert_near(sum.freed, 2 * (5000 + 2800 + 1536), 2 * (SLACK + 512));
	assert_near((uint64_t)-sum.lowest, 5000, 600);
	/* a window each, and not many more */
	assert_in_range(sum.rows, 2 * 9000 / PCPTUNE_EVENTS_PAGES,
			2 * 2 * 9336 * 2 / PCPTUNE_EVENTS_PAGES);
}

/* The number of calls is right, and no swing is invented. */
static void to_and_fro_is_no_swing(void **state)
{
	(void)state;
	assert_int_equal(in_child(to_and_fro, SETTINGS(setting)), 0);
	read_all();
	assert_near(sum.taken, 100100, SLACK);
	assert_near((uint64_t)-sum.lowest, 100, SLACK);
}

/* A ring that is full loses times, never pages. */
static void a_full_ring_merges(void **state)
{
	(void)state;
	assert_int_equal(in_child(too_much, SETTINGS(setting)), 0);
	read_all();
	assert_true(totals.merged > 1000);
	assert_int_equal(totals.bad, 0);
	/* nothing came after the ring was full, so it holds what was up to then */
	assert_in_range(sum.taken, 25000, SWINGS * 20000);
	assert_in_range((uint64_t)-sum.lowest, 19000, 20100);
}

/* A child that fills its ring; stops: and stops, before it does a little more. */
static pid_t start_too_much(bool stops)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid)
		return pid;
	setenv("PCPTUNE_SOCKET", "", 1);
	putenv(setting);
	too_much();
	if (stops) {
		raise(SIGSTOP);
		swing(1000, 0);
	}
	_exit(0);
}

/* ... since what comes after one has room again has it all. */
static void a_full_ring_that_is_emptied_goes_on(void **state)
{
	uint64_t rows;
	int status;
	pid_t pid = start_too_much(true);

	(void)state;
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(recorder_pass(r, &rows), 0);
	assert_true(rows > 10000);
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	read_all();
	assert_true(totals.merged > 1000);
	assert_near(sum.taken, SWINGS * 20000 + 1000, SLACK);
	assert_near(sum.freed, SWINGS * 20000 + 1000, SLACK);
}

/* Nothing is lost to a recorder that is slow, as long as it goes on. */
static void a_slow_recorder_is_waited_for(void **state)
{
	struct timespec pause = {0, 5000000};
	uint64_t rows;
	int status;
	pid_t pid = start_too_much(false);

	(void)state;
	while (waitpid(pid, &status, WNOHANG) != pid) {
		assert_int_equal(recorder_pass(r, &rows), 0);
		nanosleep(&pause, NULL);
	}
	assert_int_equal(status, 0);
	read_all();
	assert_int_equal(totals.merged | totals.bad, 0);
	assert_near(sum.taken, SWINGS * 20000, SLACK);
	assert_near((uint64_t)-sum.lowest, 20000, SLACK);
}

static void a_child_has_rings_of_its_own(void **state)
{
	(void)state;
	assert_int_equal(in_child(with_a_child, SETTINGS(setting, "PCPALLOC_AGENT=0")), 0);
	read_all();
	assert_int_equal(totals.programs, 2);
	assert_int_equal(sum.cpus, 2);
	assert_near(sum.taken, 1000 + 1000 + 3000, 2 * SLACK);
}

static void nobody_records(void **state)
{
	(void)state;
	assert_int_equal(in_child(runs, SETTINGS("PCPALLOC_EVENTS=/nonexistent/socket")), 0);
	assert_int_equal(in_child(runs, SETTINGS("PCPALLOC_EVENTS=")), 0);
	read_all();
	assert_int_equal(totals.programs | totals.rows, 0);
}

static void a_full_disk_is_told(void **state)
{
	uint64_t rows;

	(void)state;
	recorder_free(r);
	trace_writer_free(w);
	fclose(file);
	file = fopen("/dev/full", "wb");
	assert_int_equal(trace_writer_new(file, "test", &w), 0);
	assert_int_equal(recorder_new(listener, w, &r), 0);
	setvbuf(file, NULL, _IONBF, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(in_child(too_much, SETTINGS(setting)), 0);
	assert_int_equal(recorder_pass(r, &rows), -ENOSPC);
	fclose(file);
}

/* ---- what no program of ours sends ---- */

static void send_hello(const struct pcptune_events_hello *hello, size_t size, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec data = {(void *)(uintptr_t)hello, size};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control.space);
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	assert_int_equal(connect(s, (struct sockaddr *)&place, sizeof(place)), 0);
	assert_int_equal(sendmsg(s, &message, 0), size);
	close(s);
}

static int make_file(size_t size, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

#define ENTRIES 8u
#define STRIDE	(sizeof(struct pcptune_event_ring) + 64 + ENTRIES * sizeof(struct pcptune_event))

static const struct pcptune_events_hello good = {.magic = PCPTUNE_EVENTS_MAGIC,
						 .version = PCPTUNE_EVENTS_VERSION,
						 .size = sizeof(good),
						 .n_rings = 2,
						 .n_entries = ENTRIES,
						 .stride = (STRIDE + 63) / 64 * 64};

static void wrong_hellos_are_refused(void **state)
{
	struct pcptune_events_hello h;
	uint32_t n = 0;
	uint64_t rows;
	int fd = make_file(8192, F_SEAL_SHRINK);

	(void)state;
#define WRONG(field, value)                    \
	do {                                   \
		h = good;                      \
		h.field = (value);             \
		send_hello(&h, sizeof(h), fd); \
		n++;                           \
	} while (0)
	WRONG(magic, 0);
	WRONG(version, 2);
	WRONG(size, 8);
	WRONG(n_rings, 0);
	WRONG(n_rings, UINT32_MAX);
	WRONG(n_rings, 1000); /* more than the file has */
	WRONG(n_entries, 7);
	WRONG(n_entries, 0);
	WRONG(n_entries, 1u << 31);
	WRONG(stride, 64);
	WRONG(stride, good.stride + 8);
	WRONG(stride, UINT64_MAX & ~UINT64_C(63));
	assert_int_equal(recorder_pass(r, &rows), 0);
	send_hello(&good, 10, fd);
	send_hello(&good, sizeof(good), -1);
	send_hello(&good, sizeof(good), listener);
	close(fd);
	fd = make_file(8192, 0); /* could shrink under us */
	send_hello(&good, sizeof(good), fd);
	close(fd);
	recorder_pass(r, &rows);
	recorder_totals(r, &totals);
	assert_int_equal(totals.refused, n + 4);
	assert_int_equal(totals.programs | totals.rows, 0);
}

static void event(struct pcptune_event_ring *ring, uint64_t time, uint32_t list, uint32_t freed,
		  uint32_t taken)
{
	*pcptune_event_entry(ring, ring->head % ENTRIES) = (struct pcptune_event){
		.time_ns = time, .list = list, .freed = freed, .taken = taken};
	ring->head++;
}

static void wrong_events_are_left(void **state)
{
	int fd = make_file(8192, F_SEAL_SHRINK);
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct pcptune_event_ring *a = (void *)map, *b = (void *)(map + good.stride);
	struct timespec t;
	uint64_t now, rows;

	(void)state;
	assert_ptr_not_equal(map, MAP_FAILED);
	send_hello(&good, sizeof(good), fd);
	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	event(a, now, PCPTUNE_N_LISTS, 1, 0);
	event(a, now, 0, UINT32_MAX, 0);
	event(a, now, 0, 0, UINT32_MAX);
	event(a, now, 1, 3, 0);
	event(a, UINT64_MAX, 0, 1, 0); /* a time that will never come */
	event(b, now - 1, 0, 0, 5);
	event(b, now, 0, 0, 0);
	assert_int_equal(recorder_pass(r, &rows), 0);
	assert_int_equal(rows, 3);
	assert_int_equal(a->tail, 5);
	/* a head that ran away */
	a->head += 1000;
	assert_int_equal(recorder_pass(r, &rows), 0);
	event(a, now + 1, 0, 7, 0);
	read_all();
	assert_int_equal(totals.bad, 4);
	assert_int_equal(sum.rows, 4);
	assert_int_equal(sum.taken, 5);
	assert_int_equal(sum.freed, 6 + 1 + 7);
	munmap(map, 8192);
	close(fd);
}

/* ---- one that is joined ---- */

/* What recorder_join() makes of a message, -1: of the end of file. */
static int joined(const void *message, ssize_t size, int fd, const struct trace_row **ret,
		  size_t *ret_n)
{
	int pair[2], e;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	if (size >= 0 && fd >= 0)
		assert_int_equal(fdpass_send(pair[0], message, (size_t)size, fd), size);
	else if (size >= 0)
		assert_int_equal(send(pair[0], message, (size_t)size, 0), size);
	if (size < 0)
		close(pair[0]);
	e = recorder_join(r, pair[1], 50, NULL, ret, ret_n);
	if (size >= 0)
		close(pair[0]);
	return e;
}

static void what_can_not_be_joined_is_refused(void **state)
{
	struct pcptune_events_hello h = good;
	const struct trace_row *levels;
	int fd = make_file(8192, F_SEAL_SHRINK), unsealed = make_file(8192, 0), pair[2];
	size_t n;

	(void)state;
	assert_int_equal(joined(NULL, -1, -1, &levels, &n), -ECONNRESET);
	assert_int_equal(joined(&good, 7, fd, &levels, &n), -EBADMSG);
	assert_int_equal(joined(&good, sizeof(good), -1, &levels, &n), -EBADMSG);
	assert_int_equal(joined(&good, sizeof(good), unsealed, &levels, &n), -EBADMSG);
	h.n_rings = 0;
	h.n_entries = EBUSY;
	assert_int_equal(joined(&h, sizeof(h), -1, &levels, &n), -EBUSY);
	h.n_entries = ENOMEM;
	assert_int_equal(joined(&h, sizeof(h), fd, &levels, &n), -ENOBUFS);
	h.n_entries = 0; /* not a reason, and not success */
	assert_int_equal(joined(&h, sizeof(h), -1, &levels, &n), -EBADMSG);
	h.n_entries = EINVAL;
	assert_int_equal(joined(&h, sizeof(h), -1, &levels, &n), -EBADMSG);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(recorder_join(r, pair[1], 1, NULL, &levels, &n), -ETIMEDOUT);
	close(pair[0]);
	close(fd);
	close(unsealed);
}

/* Rings that are right, and too large for us: that is not the program's fault. */
static void no_memory_here_is_told_from_no_memory_there(void **state)
{
	struct pcptune_events_hello h = good;
	const struct trace_row *levels;
	size_t n;
	int fd;

	(void)state;
	h.n_rings = PCPTUNE_MAX_ZONES * PCPTUNE_MAX_CPUS;
	h.stride = UINT64_C(1) << 32;
	assert_true(h.n_rings * h.stride >= UINT64_C(1) << 47);
	fd = make_file(h.n_rings * h.stride, F_SEAL_SHRINK);
	assert_int_equal(joined(&h, sizeof(h), fd, &levels, &n), -ENOMEM);
	close(fd);
}

static void levels_that_no_list_has_are_left(void **state)
{
	int fd = make_file(8192, F_SEAL_SHRINK);
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct pcptune_event_ring *a = (void *)map, *b = (void *)(map + good.stride);
	const struct trace_row *levels;
	size_t n;

	(void)state;
	assert_ptr_not_equal(map, MAP_FAILED);
	a->level[0] = UINT32_MAX;
	a->level[4] = 3;
	b->level[1] = 1u << 24;
	b->level[2] = (1u << 24) + 1;
	a->begun_ns = UINT64_MAX;
	assert_int_equal(joined(&good, sizeof(good), fd, &levels, &n), 0);
	assert_int_equal(n, 2);
	assert_true(levels[0].cpu == 0 && levels[0].order == 9 && levels[0].blocks == 3);
	assert_true(levels[1].cpu == 1 && levels[1].order == 1 && levels[1].blocks == 1 << 24);
	munmap(map, 8192);
	close(fd);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	static const struct CMUnitTest tests[] = {
		TEST(runs_are_runs),
		TEST(to_and_fro_is_no_swing),
		TEST(a_full_ring_merges),
		TEST(a_full_ring_that_is_emptied_goes_on),
		TEST(a_slow_recorder_is_waited_for),
		TEST(a_child_has_rings_of_its_own),
		TEST(nobody_records),
		TEST(a_full_disk_is_told),
		TEST(wrong_hellos_are_refused),
		TEST(wrong_events_are_left),
		TEST(what_can_not_be_joined_is_refused),
		TEST(no_memory_here_is_told_from_no_memory_there),
		TEST(levels_that_no_list_has_are_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
