/* SPDX-License-Identifier: MIT */
/*
 * Wrong calls and a system that refuses: each is noticed where it has to be, told with address and
 * caller, and leaves the heap sound.
 *
 * What a test needs of the system (a control group of its own) it makes and removes; where it may
 * not, it is left out, and says so.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "allocator/heap.h"
#include "allocator/pcp.h"
#include "tests/unit/alloc_child.h"

#define LEFT_OUT 77 /* exit status of a child that could not make what it needs */

static struct pcpa_error last;
static unsigned n_errors, expected;

static void remember(const struct pcpa_error *error, void *cookie)
{
	(void)cookie;
	last = *error;
	n_errors++;
}

static struct pcpa_stats stats(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	CHECK(pcpa_get_stats(&s) == 0);
	return s;
}

/* Functions that make errors lie together, between two symbols of the linker. */
#define CALLER_KNOWN __attribute__((noinline, section("wrong_calls")))
extern const char __start_wrong_calls[], __stop_wrong_calls[];

/* One more error, of this block, told with the place of the call. */
#define WRONG(call, block, text)                                        \
	do {                                                            \
		call;                                                   \
		CHECK(n_errors == ++expected);                          \
		CHECK(last.address == (const void *)(block));           \
		CHECK(strstr(last.what, text));                         \
		CHECK((const char *)last.caller > __start_wrong_calls); \
		CHECK((const char *)last.caller < __stop_wrong_calls);  \
	} while (0)

/* ---- foreign and unaligned addresses, in every call that frees ---- */

static CALLER_KNOWN void foreign_child(void)
{
	static char foreign[3 * 4096];
	char *a = pcpa_alloc(0), *b = pcpa_alloc(0), *c = pcpa_alloc(3), *d;

	CHECK(a && b && c);
	pcpa_set_error_callback(remember, NULL);
	WRONG(pcpa_free(foreign, 0), foreign, "no zone");
	WRONG(pcpa_free((void *)8, 0), 8, "no zone");
	WRONG(pcpa_free((void *)~(uintptr_t)0, 0), ~(uintptr_t)0, "no zone");
	WRONG(pcpa_free(a + 16, 0), a + 16, "aligned");
	WRONG(pcpa_free(c + 4096, 1), c + 4096, "aligned");
	/*
	 * where sections serve the list it is seen in the zone, and the books are right again then
	 */
	pcpa_free(c + 4096, 0);
	if (stats().mode == PCPTUNE_MODE_RSEQ) {
		CHECK(n_errors == expected);
		pcpa_trim();
		CHECK(strstr(last.what, "late"));
	} else {
		CHECK(strstr(last.what, "inside"));
	}
	CHECK(n_errors == ++expected && last.address == c + 4096);
	/* the others of a bulk are freed */
	WRONG(pcpa_free_bulk(0, 3, (void *[]){a, foreign, b}), foreign, "no zone");
	CHECK(stats().pages_in_use == 8);
	a = pcpa_alloc(0);
	b = pcpa_alloc(0);
	WRONG(pcpa_free_bulk(0, 3, (void *[]){a + 1, a, b}), a + 1, "aligned");
	WRONG(pcpa_free_bulk(0, 2, (void *[]){NULL, c + 4096}), c + 4096, "inside");
	WRONG(pcpa_free_bulk(11, 1, (void *[]){c}), c, "above");
	CHECK(stats().pages_in_use == 8);
	/* exact sizes: up to 8 pages, and more */
	d = pcpa_alloc_exact(20 * 4096, 0);
	CHECK(d);
	WRONG(pcpa_free_exact(foreign, 4096), foreign, "no zone");
	WRONG(pcpa_free_exact(foreign, 20 * 4096), foreign, "no zone");
	WRONG(pcpa_free_exact(c + 1, 8 * 4096), c + 1, "aligned");
	WRONG(pcpa_free_exact(d + 8, 20 * 4096), d + 8, "aligned");
	WRONG(pcpa_free_exact(c, 4096), c, "order");
	WRONG(pcpa_free_exact(c, 0), c, "size");
	WRONG(pcpa_free_exact(c, PCPA_MAX_EXACT + 1), c, "size");
	CHECK(stats().pages_in_use == 28);
	CHECK_AUDIT();
	pcpa_free(c, 3);
	pcpa_free_exact(d, 20 * 4096);
	WRONG(pcpa_free_exact(d, 20 * 4096), d, "");
	CHECK(n_errors == expected && stats().pages_in_use == 0);
	CHECK(pcpa_get(&pcpa_heap.proc->bad_frees) == n_errors);
	CHECK_AUDIT();
}

/* One block twice in a row of blocks: what has no list goes to the zone, and is noticed there. */
static CALLER_KNOWN void twice_child(void)
{
	char *p = pcpa_alloc(5), *q = pcpa_alloc(5);

	CHECK(p && q);
	pcpa_set_error_callback(remember, NULL);
	WRONG(pcpa_free_bulk(5, 4, (void *[]){p, p, q, NULL}), p, "before");
	CHECK(stats().pages_in_use == 0);
	CHECK_AUDIT();
	/* what has one: at once, or when it comes to the zone */
	p = pcpa_alloc(0);
	pcpa_free_bulk(0, 2, (void *[]){p, p});
	pcpa_trim();
	CHECK(n_errors == ++expected && last.address == p);
	CHECK(stats().pages_in_use == 0);
	CHECK_AUDIT();
}

/* ---- PCPALLOC_CHECK=1: at once, on every free ---- */

static CALLER_KNOWN void checked_order(unsigned order)
{
	char *p = pcpa_alloc(order), *q = pcpa_alloc(order);
	unsigned other = order ? order - 1 : 1;

	CHECK(p && q);
	/* a block of order 1 on an odd page is not aligned; both are refused */
	pcpa_free(p, other);
	CHECK(n_errors == ++expected && last.address == p && last.order == other && last.caller);
	pcpa_free(p, order);
	CHECK(n_errors == expected);
	WRONG(pcpa_free(p, order), p, "");
	WRONG(pcpa_free_bulk(order, 2, (void *[]){q, p}), p, "");
	WRONG(pcpa_free_bulk(order, 1, (void *[]){q}), q, "");
	CHECK(last.order == order);
	/* both copies in one call */
	p = pcpa_alloc(order);
	q = pcpa_alloc(order);
	WRONG(pcpa_free_bulk(order, 3, (void *[]){p, q, p}), p, "");
	CHECK_AUDIT();
	if (order > 3)
		return;
	p = pcpa_alloc(order);
	pcpa_free(p, order);
	WRONG(pcpa_free_exact(p, (size_t)4096 << order), p, "");
}

static CALLER_KNOWN void checked_child(void)
{
	CHECK(pcpa_alloc(0));
	CHECK(stats().mode == PCPTUNE_MODE_LOCKED);
	pcpa_set_error_callback(remember, NULL);
	for (int round = 0; round < 3; round++)
		for (unsigned order = 0; order <= PCPA_MAX_ORDER; order++)
			checked_order(order);
	CHECK(stats().pages_in_use == 1);
	CHECK_AUDIT();
	/* the heap goes on to serve all of its pages, each once */
	for (int i = 0; i < 10000; i++) {
		uint32_t *p = pcpa_alloc(0);

		CHECK(p && *p != UINT32_C(0xfeedbeef));
		*p = UINT32_C(0xfeedbeef);
	}
	CHECK_AUDIT();
}

#define SIZE "PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=0"

static void foreign_and_unaligned(void **state)
{
	(void)state;
	assert_int_equal(in_child(foreign_child, SETTINGS(SIZE)), 0);
	assert_int_equal(in_child(foreign_child, SETTINGS(SIZE, "PCPALLOC_MODE=locked")), 0);
	assert_int_equal(in_child(foreign_child, SETTINGS(SIZE, "PCPALLOC_CHECK=1")), 0);
}

static void twice_in_a_row(void **state)
{
	(void)state;
	assert_int_equal(in_child(twice_child, SETTINGS(SIZE)), 0);
	assert_int_equal(in_child(twice_child, SETTINGS(SIZE, "PCPALLOC_MODE=locked")), 0);
}

static void checked_mode(void **state)
{
	(void)state;
	assert_int_equal(in_child(checked_child, SETTINGS(SIZE, "PCPALLOC_CHECK=1")), 0);
	assert_int_equal(
		in_child(checked_child, SETTINGS(SIZE, "PCPALLOC_CHECK=1", "PCPALLOC_MODE=rseq",
						 "PCPALLOC_ZONES=1")),
		0);
}

/* ---- memory that is refused ---- */

/*
 * Address space there is, but not that many pages in it may be made writable: so refuses a system
 * with strict overcommit, and so does a limit on data.
 */
static void refused_pages_child(void)
{
	struct rlimit limit;
	static void *p[65536];
	size_t n = 0, again = 0;

	CHECK(pcpa_alloc(0));
	CHECK(!getrlimit(RLIMIT_DATA, &limit));
	limit.rlim_cur = UINT64_C(96) << 20;
	CHECK(!setrlimit(RLIMIT_DATA, &limit));
	errno = 0;
	while (n < 65536 && (p[n] = pcpa_alloc(0)))
		n++;
	CHECK(n > 4096 && n < 65536 && errno == ENOMEM);
	CHECK(!pcpa_alloc(10) && errno == ENOMEM && !pcpa_alloc_exact(1 << 22, 0));
	CHECK(pcpa_alloc_bulk(0, 10, (void *[10]){NULL}) < 10);
	CHECK_AUDIT();
	for (size_t i = 0; i < n; i++)
		pcpa_free(p[i], 0);
	while (again < 65536 && (p[again] = pcpa_alloc(0)))
		again++;
	CHECK(again + 10 >= n);
	CHECK_AUDIT();
	/* and more, as soon as the system gives more */
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_DATA, &limit));
	CHECK(pcpa_alloc(10));
	CHECK_AUDIT();
}

static void refused_pages(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* their shadow is data, too */
#endif
	assert_int_equal(in_child(refused_pages_child, SETTINGS("PCPALLOC_SIZE=1g")), 0);
	assert_int_equal(
		in_child(refused_pages_child, SETTINGS("PCPALLOC_SIZE=1g", "PCPALLOC_MODE=locked")),
		0);
}

static bool strict_overcommit(void)
{
	int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY);
	char c = '0';
	bool strict = fd >= 0 && read(fd, &c, 1) == 1 && c == '2';

	if (fd >= 0)
		close(fd);
	return strict;
}

static void overcommit_child(void)
{
	void *p = pcpa_alloc(10);

	CHECK(p);
	memset(p, 1, 4096 << 10);
	pcpa_free(p, 10);
	CHECK_AUDIT();
}

static void overcommit(void **state)
{
	(void)state;
	if (!strict_overcommit()) {
		printf("# vm.overcommit_memory is not 2, which only a test of the system may "
		       "change\n");
		skip();
	}
	assert_int_equal(in_child(overcommit_child, NULL), 0);
}

/* ---- control groups ---- */

static bool write_file(const char *folder, const char *name, const char *text)
{
	char path[300];
	bool done;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY);
	done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return done;
}

static char group[200];

static bool make_group(const char *controller)
{
	snprintf(group, sizeof(group), "/sys/fs/cgroup/%s/pcptune-test-%d", controller,
		 (int)getpid());
	return !mkdir(group, 0700);
}

/* The child of a test, in the group: as a process of its own, so that the group can be removed. */
static int in_group(void (*f)(void))
{
	int status = in_child(f, SETTINGS("PCPALLOC_AGENT=0"));

	for (int i = 0; i < 100 && rmdir(group); i++)
		usleep(10000);
	assert_int_not_equal(access(group, F_OK), 0);
	return status;
}

static void join(void)
{
	if (!write_file(group, "cgroup.procs", "0"))
		_exit(LEFT_OUT);
}

static void memory_group_child(void)
{
	join();
	CHECK(pcpa_alloc(0));
	CHECK(stats().pages_managed == (UINT64_C(100) << 20) / 4096);
	CHECK_AUDIT();
}

static void judge(int status, const char *what)
{
	if (status != LEFT_OUT) {
		assert_int_equal(status, 0);
		return;
	}
	printf("# %s: this process may not make a control group\n", what);
	skip();
}

static void memory_of_a_control_group(void **state)
{
	(void)state;
	if (make_group("memory")) {
		bool done = write_file(group, "memory.limit_in_bytes", "104857600");

		judge(done ? in_group(memory_group_child) : (rmdir(group), LEFT_OUT), "memory");
	} else if (make_group("")) {
		bool done = write_file(group, "memory.max", "104857600");

		judge(done ? in_group(memory_group_child) : (rmdir(group), LEFT_OUT), "memory");
	} else {
		judge(LEFT_OUT, "memory");
	}
}

/* Two CPUs may be seen, but only one CPU's time is given: rules are those of one. */
static void quota_child(void)
{
	join();
	CHECK(pcpa_alloc(0));
	CHECK(pcpa_heap.n_run == 1);
	CHECK_AUDIT();
}

static void a_quota_of_one_cpu(void **state)
{
	bool first = make_group("cpu"), done;

	(void)state;
	if (first)
		done = write_file(group, "cpu.cfs_period_us", "100000") &&
		       write_file(group, "cpu.cfs_quota_us", "90000");
	else
		done = make_group("") && write_file(group, "cpu.max", "90000 100000");
	if (!done)
		rmdir(group);
	judge(done ? in_group(quota_child) : LEFT_OUT, "cpu");
}

/* ---- calls that are refused: a sandbox, an old kernel, a full file system ---- */

static const struct refusal {
	const char *what;
	int error;
	long calls[3];
	bool locked;	 /* sections are out of the question */
	bool no_segment; /* there is no file that a daemon could be given */
} refusals[] = {
	{"/sys and /proc are hidden",
	 ENOENT,
	 {
		 SYS_openat,
#ifdef SYS_open
		 SYS_open,
#endif
	 },
	 false,
	 false},
	{"files in memory are forbidden", EACCES, {SYS_memfd_create}, false, true},
	{"the file system is full", ENOSPC, {SYS_fallocate}, false, true},
	{"files can not be sealed", EBUSY, {SYS_fcntl}, false, true},
	{"no affinity", ENOSYS, {SYS_sched_getaffinity}, false, false},
	{"no fences", ENOSYS, {SYS_membarrier}, true, false},
	{"nothing is mapped again", EINVAL, {SYS_mremap}, true, false},
	{"no advice is taken", EINVAL, {SYS_madvise}, false, false},
	{"no threads", EAGAIN, {SYS_clone, SYS_clone3}, false, false},
	{"no randomness", ENOSYS, {SYS_getrandom}, false, false},
};

static const struct refusal *refused;

static void refuse_calls(void)
{
	struct sock_filter code[16];
	struct sock_fprog program = {0, code};

	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							   offsetof(struct seccomp_data, nr));
	for (int i = 0; i < 3 && refused->calls[i]; i++) {
		code[program.len++] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused->calls[i], 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(
			BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)refused->error);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(LEFT_OUT);
}

static void refused_child(void)
{
	static void *p[20000];

	refuse_calls();
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 20000; i++) {
			CHECK(p[i] = pcpa_alloc(i % 4));
			*(int *)p[i] = i;
		}
		for (int i = 0; i < 20000; i++) {
			CHECK(*(int *)p[i] == i);
			pcpa_free(p[i], i % 4);
		}
	}
	CHECK(!refused->locked || stats().mode == PCPTUNE_MODE_LOCKED);
	CHECK(stats().mode == PCPTUNE_MODE_LOCKED || stats().mode == PCPTUNE_MODE_RSEQ);
	CHECK(refused->no_segment == (pcpa_segment_fd() < 0));
	CHECK(stats().pages_in_use == 0 && stats().alloc_pages == 3 * 5000 * 15);
	CHECK_AUDIT();
}

static void refused_calls(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* their runtime makes these calls, too */
#endif
	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
		int status;

		refused = &refusals[i];
		status = in_child(refused_child, SETTINGS("PCPALLOC_SIZE=1g"));
		if (status == LEFT_OUT)
			skip();
		if (status)
			fail_msg("%s: %d", refused->what, status);
	}
}

/* ---- files must be short: whoever writes a longer one is killed ---- */

static void files_must_be_short(void)
{
	struct rlimit limit = {4096, 4096};

	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
}

static void take_one(bool segment)
{
	void *p = pcpa_alloc(0);

	CHECK(p);
	pcpa_free(p, 0);
	CHECK(segment == (pcpa_segment_fd() >= 0));
	CHECK_AUDIT();
}

static void from_the_start_child(void)
{
	files_must_be_short();
	take_one(false);
}

static void before_a_fork_child(void)
{
	int status;
	pid_t pid;

	take_one(true);
	files_must_be_short();
	pid = fork();
	if (!pid) {
		take_one(false);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	take_one(true);
}

static void short_files(void **state)
{
	(void)state;
	assert_int_equal(in_child(from_the_start_child, NULL), 0);
	assert_int_equal(in_child(before_a_fork_child, NULL), 0);
}

/* ---- few CPUs ---- */

/* Everything is accounted to the one CPU there is, and rules are those of one. */
static void use_one_cpu(int cpu)
{
	struct pcptune_cpu_block *b;
	void *p[2000];

	for (int i = 0; i < 2000; i++)
		CHECK(p[i] = pcpa_alloc(i % 4));
	for (int i = 0; i < 2000; i++)
		pcpa_free(p[i], i % 4);
	CHECK(pcpa_heap.n_run == 1 && (uint32_t)cpu < pcpa_heap.n_slots - 1);
	for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
			uint64_t allocated, freed;

			b = pcpa_cpu_block(zone, slot);
			pcpa_pcp_totals(b, &allocated, &freed);
			CHECK(slot == (uint32_t)cpu || (!allocated && !freed));
		}
	CHECK(stats().alloc_pages == 500 * 15 && stats().pages_in_use == 0);
	CHECK(pcpa_get(&pcpa_heap.proc->shared_slot_calls) == 0);
	CHECK_AUDIT();
}

static int last_cpu(void)
{
	cpu_set_t set;
	int found = -1;

	CHECK(!sched_getaffinity(0, sizeof(set), &set));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			found = cpu;
	return found;
}

static void last_cpu_child(void)
{
	int cpu = last_cpu();
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	use_one_cpu(cpu);
}

static void the_last_cpu_only(void **state)
{
	(void)state;
	assert_int_equal(in_child(last_cpu_child, SETTINGS(SIZE)), 0);
	assert_int_equal(in_child(last_cpu_child, SETTINGS(SIZE, "PCPALLOC_MODE=locked")), 0);
}

static void cpuset_child(void)
{
	join();
	use_one_cpu(last_cpu());
}

static void a_cpuset_of_one_cpu(void **state)
{
	char cpu[16];
	bool done, first = make_group("cpuset");

	(void)state;
	snprintf(cpu, sizeof(cpu), "%d", last_cpu());
	done = (first && write_file(group, "cpuset.mems", "0")) || (!first && make_group(""));
	done = done && write_file(group, "cpuset.cpus", cpu);
	if (!done)
		rmdir(group);
	judge(done ? in_group(cpuset_child) : LEFT_OUT, "cpuset");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(foreign_and_unaligned),
		cmocka_unit_test(twice_in_a_row),
		cmocka_unit_test(checked_mode),
		cmocka_unit_test(refused_pages),
		cmocka_unit_test(overcommit),
		cmocka_unit_test(memory_of_a_control_group),
		cmocka_unit_test(a_quota_of_one_cpu),
		cmocka_unit_test(refused_calls),
		cmocka_unit_test(short_files),
		cmocka_unit_test(the_last_cpu_only),
		cmocka_unit_test(a_cpuset_of_one_cpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
