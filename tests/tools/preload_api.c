/* SPDX-License-Identifier: MIT */
/*
 * A program that uses all of malloc's API and holds it against what the manual pages say. Run under
 * the preload library it also checks which side served (pcpa_owns); without it, that ours did not.
 *
 *     preload_api CASE [MIN [MAX]]    MIN, MAX: the range of sizes that must be ours, MAX 0: none
 *
 * Prints each breach as "file:line: what"; exit status 1 if there was one.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "pcpalloc.h"

#define PAGE 4096u
#define MARK 0x5a
#define CHECK(x)                                                       \
	do {                                                           \
		if (!(x)) {                                            \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #x); \
			bad++;                                         \
		}                                                      \
	} while (0)
#define CHECK_SIZE(x, size)                                                                      \
	do {                                                                                     \
		if (!(x)) {                                                                      \
			printf("%s:%d: %s, size %zu\n", __FILE__, __LINE__, #x, (size_t)(size)); \
			bad++;                                                                   \
		}                                                                                \
	} while (0)

void *pvalloc(size_t size);
extern char **environ;

static int bad;
static size_t ours_min = PAGE, ours_max = PCPA_MAX_EXACT;

/* volatile: the compiler must neither know nor remove these calls */
static volatile size_t huge = (size_t)PTRDIFF_MAX + 1, half = SIZE_MAX / 2;
static void *(*volatile v_realloc)(void *, size_t) = realloc;
static void *(*volatile v_calloc)(size_t, size_t) = calloc;
static void *(*volatile v_malloc)(size_t) = malloc;
static void (*volatile v_free)(void *) = free;
static void *(*volatile v_reallocarray)(void *, size_t, size_t) = reallocarray;

static const size_t sizes[] = {0,	1,	 16,	  4095,	   4096,   4097,
			       8191,	8192,	 8193,	  12288,   65536,  131072,
			       1000000, 4194303, 4194304, 4194305, 8388608};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static bool is_ours(size_t size)
{
	return size >= ours_min && size <= ours_max;
}

static void check_side(const void *p, size_t size)
{
	CHECK_SIZE(!pcpa_owns(p) == !is_ours(size), size);
}

static bool all(const unsigned char *p, size_t n, int byte)
{
	return !n || (p[0] == byte && !memcmp(p, p + 1, n - 1));
}

static void case_plain(void)
{
	size_t i;

	for (i = 0; i < N_SIZES; i++) {
		unsigned char *p, *q;

		errno = 7;
		p = v_malloc(sizes[i]);
		CHECK_SIZE(p && errno == 7, sizes[i]);
		check_side(p, sizes[i]);
		CHECK_SIZE((uintptr_t)p % _Alignof(max_align_t) == 0, sizes[i]);
		CHECK_SIZE(malloc_usable_size(p) >= sizes[i], sizes[i]);
		memset(p, MARK, malloc_usable_size(p));
		q = v_malloc(sizes[i]);
		CHECK_SIZE(q && q != p, sizes[i]);
		memset(q, 1, sizes[i]);
		CHECK_SIZE(all(p, sizes[i], MARK), sizes[i]);
		errno = 77;
		v_free(p);
		v_free(q);
		CHECK_SIZE(errno == 77, sizes[i]);
		p = v_calloc(1, sizes[i]); /* most likely what was just freed, full of marks */
		CHECK_SIZE(p && all(p, sizes[i], 0), sizes[i]);
		check_side(p, sizes[i]);
		v_free(p);
	}
	v_free(NULL);
	CHECK(malloc_usable_size(NULL) == 0);
	for (i = 1; i <= 64; i *= 2) {
		unsigned char *p = v_calloc(i, 4096 / 16);

		CHECK_SIZE(p && all(p, i * 256, 0), i * 256);
		check_side(p, i * 256);
		v_free(p);
	}
}

/* Content goes along whatever side a block moves to. */
static void case_realloc(void)
{
	size_t i, j;

	for (i = 0; i < N_SIZES; i++) {
		for (j = 0; j < N_SIZES; j++) {
			size_t keep = sizes[i] < sizes[j] ? sizes[i] : sizes[j];
			unsigned char *p = v_malloc(sizes[i]), *q;

			memset(p, MARK, sizes[i]);
			errno = 7;
			q = v_realloc(p, sizes[j]);
			CHECK_SIZE(errno == 7, sizes[j]);
			if (!sizes[j]) {
				CHECK_SIZE(!q, sizes[i]);
				continue;
			}
			CHECK_SIZE(q != NULL, sizes[j]);
			check_side(q, sizes[j]);
			CHECK_SIZE(all(q, keep, MARK), sizes[i]);
			CHECK_SIZE(malloc_usable_size(q) >= sizes[j], sizes[j]);
			memset(q, 1, sizes[j]);
			v_free(q);
		}
		v_free(v_realloc(NULL, sizes[i]));
	}
}

/* Pages that a request of n pages gets. */
static size_t given(size_t n)
{
	static const size_t small[] = {0, 1, 2, 4, 4, 8, 8, 8, 8};

	return n < 9 ? small[n] : n;
}

/* Pages given back at the end of a block, and blocks that grow little by little. */
static void case_resize(void)
{
	struct pcpa_stats before = {.size = sizeof(before)}, now = {.size = sizeof(now)};
	unsigned char *p, *q;
	size_t n;

	v_free(v_malloc(PAGE));
	pcpa_get_stats(&before);
	for (n = 1024; n > 1; n = n * 3 / 4) {
		p = v_malloc(n * PAGE);
		memset(p, MARK, n * PAGE);
		q = v_realloc(p, n * PAGE - PAGE / 2); /* as many pages */
		CHECK_SIZE(q == p, n);
		q = v_realloc(p, (n / 2) * PAGE);
		CHECK_SIZE(q == p && all(q, (n / 2) * PAGE, MARK), n);
		pcpa_get_stats(&now);
		CHECK_SIZE(now.pages_in_use == before.pages_in_use + given(n / 2), n);
		CHECK_SIZE(malloc_usable_size(q) == given(n / 2) * PAGE, n);
		v_free(q);
		pcpa_get_stats(&now);
		CHECK_SIZE(now.pages_in_use == before.pages_in_use, n);
	}
	p = v_malloc(1);
	for (n = 1; n < 200 * PAGE; n += 1111) {
		p = v_realloc(p, n);
		memset(p + (n > 1111 ? n - 1111 : 0), (int)(n % 251), n > 1111 ? 1111 : n);
	}
	for (n = 1; n < 200 * PAGE; n += 1111)
		CHECK_SIZE(p[n - 1] == n % 251, n);
	pcpa_get_stats(&now);
	CHECK(now.pages_in_use <= before.pages_in_use + 200 + 200 / 8);
	v_free(p);
	pcpa_get_stats(&now);
	CHECK(now.pages_in_use == before.pages_in_use);
	CHECK(pcpa_audit(NULL) == 0);
}

static void check_aligned(unsigned char *p, size_t align, size_t size)
{
	CHECK_SIZE(p && (uintptr_t)p % align == 0, size);
	if (align <= PCPA_MAX_EXACT)
		check_side(p, size);
	else
		CHECK_SIZE(!pcpa_owns(p), size);
	CHECK_SIZE(malloc_usable_size(p) >= size, size);
	memset(p, MARK, size);
	v_free(p);
}

static void case_aligned(void)
{
	size_t align, i, j;
	void *p = NULL;

	for (align = 8; align <= 16u << 20; align *= 2) {
		for (i = 1; i < N_SIZES; i++) {
			check_aligned(memalign(align, sizes[i]), align, sizes[i]);
			check_aligned(aligned_alloc(align, sizes[i]), align, sizes[i]);
			errno = 7;
			CHECK(posix_memalign(&p, align, sizes[i]) == 0 && errno == 7);
			check_aligned(p, align, sizes[i]);
		}
	}
	for (i = 1; i < N_SIZES; i++) {
		check_aligned(valloc(sizes[i]), PAGE, sizes[i]);
		p = pvalloc(sizes[i]);
		j = (sizes[i] + PAGE - 1) / PAGE * PAGE;
		CHECK_SIZE(malloc_usable_size(p) >= j, sizes[i]);
		check_aligned(p, PAGE, j);
	}
	/* what has been aligned can be resized */
	p = memalign(65536, 3 * PAGE);
	memset(p, MARK, 3 * PAGE);
	p = v_realloc(p, 9 * PAGE);
	CHECK(p && all(p, 3 * PAGE, MARK));
	v_free(p);
}

static void case_errors(void)
{
	static const size_t wrong[] = {0, 1, 2, 3, 4, 12, 24, 4097};
	volatile size_t odd = 24;
	unsigned char *p, *q;
	void *r = &bad;
	size_t i;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		errno = 7;
		CHECK_SIZE(posix_memalign(&r, wrong[i], 8192) == EINVAL, wrong[i]);
		CHECK_SIZE(errno == 7 && r == &bad, wrong[i]);
	}
	errno = 7;
	CHECK(posix_memalign(&r, 64, huge) == ENOMEM && errno == 7 && r == &bad);
	errno = 0;
	CHECK(!v_malloc(huge) && errno == ENOMEM);
	errno = 0;
	CHECK(!v_calloc(half, 3) && errno == ENOMEM);
	errno = 0;
	CHECK(!v_calloc(huge, 1) && errno == ENOMEM);
	errno = 0;
	CHECK(!memalign(64, huge) && errno == ENOMEM);
	errno = 0;
	CHECK(!pvalloc(half * 2) && errno == ENOMEM);
	errno = 0;
	CHECK(!valloc(huge) && errno == ENOMEM);
	r = memalign(odd, 8192); /* rounded up to a power of two */
	CHECK(r && (uintptr_t)r % 8 == 0);
	v_free(r);
	for (i = 100; i <= 65536; i *= 8) {
		p = v_malloc(i);
		memset(p, MARK, i);
		errno = 0;
		q = v_realloc(p, huge);
		CHECK_SIZE(!q && errno == ENOMEM && all(p, i, MARK), i);
		errno = 0;
		q = v_reallocarray(p, half, 3);
		CHECK_SIZE(!q && errno == ENOMEM && all(p, i, MARK), i);
		q = v_reallocarray(p, 3, i);
		CHECK_SIZE(q && all(q, i, MARK), i);
		check_side(q, 3 * i);
		v_free(q);
	}
	q = v_reallocarray(NULL, 2, PAGE);
	check_side(q, 2 * PAGE);
	CHECK(!v_reallocarray(q, 0, 16));
}

/* ---- threads ---- */

#define N_THREADS 8
#define N_SHARED  64

static void *shared[N_SHARED]; /* blocks that wander between threads */

static void *worker(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg, i;

	for (i = 0; i < 20000; i++) {
		size_t size = (size_t)(rand_r(&seed) % 20000) + 1;
		unsigned slot = (unsigned)rand_r(&seed) % N_SHARED;
		size_t *p = rand_r(&seed) % 4 ? v_malloc(size + 16) : v_calloc(1, size + 16);

		if (!p)
			return (void *)1;
		p[0] = size;
		memset((char *)p + 8, MARK, size);
		if (rand_r(&seed) % 8 == 0) {
			p = v_realloc(p, size / 2 + 16);
			p[0] = size / 2;
		}
		p = __atomic_exchange_n(&shared[slot], p, __ATOMIC_ACQ_REL);
		if (p && !all((unsigned char *)p + 8, p[0], MARK))
			return (void *)1;
		v_free(p);
	}
	return NULL;
}

static void run_threads(void)
{
	pthread_t t[N_THREADS];
	uintptr_t i;
	void *r;

	for (i = 0; i < N_THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, worker, (void *)(i + 1)) == 0);
	for (i = 0; i < N_THREADS; i++) {
		pthread_join(t[i], &r);
		CHECK(!r);
	}
	for (i = 0; i < N_SHARED; i++) {
		v_free(shared[i]);
		shared[i] = NULL;
	}
}

static void case_threads(void)
{
	run_threads();
	CHECK(pcpa_audit(NULL) == 0);
}

/* ---- processes ---- */

static void *forker(void *arg)
{
	int i, status;

	(void)arg;
	for (i = 0; i < 20; i++) {
		char *p = v_malloc(5 * PAGE);
		pid_t pid;

		memset(p, MARK, 5 * PAGE);
		pid = fork();
		if (pid == 0) {
			char *q = v_malloc(9000);

			memset(q, 1, 9000);
			bad += !all((unsigned char *)p, 5 * PAGE, MARK);
			v_free(p);
			v_free(q);
			q = v_realloc(v_malloc(100), 100000);
			v_free(q);
			_exit(bad || pcpa_audit(NULL) ? 1 : 0);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
		CHECK(all((unsigned char *)p, 5 * PAGE, MARK));
		v_free(p);
	}
	return NULL;
}

/* Children are made while other threads allocate. */
static void case_fork(void)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, forker, NULL) == 0);
	run_threads();
	pthread_join(t, NULL);
	CHECK(pcpa_audit(NULL) == 0);
}

static void case_spawn(void)
{
	char *argv[] = {"true", NULL};
	char *p = v_malloc(8192);
	int i, status;
	pid_t pid;

	for (i = 0; i < 10; i++) {
		CHECK(posix_spawnp(&pid, "true", NULL, NULL, argv, environ) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		pid = vfork();
		if (pid == 0) {
			execvp("true", argv);
			_exit(127);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	v_free(p);
}

/* A daemon closes whatever it finds open and uses the numbers for something else. */
static void case_closed(void)
{
	int fd, i, pair[32][2];
	ino_t inode[32][2];
	struct stat st;
	void *p[64];
	int side;

	for (i = 0; i < 64; i++)
		p[i] = v_malloc(16 * PAGE);
	usleep(50000); /* the agent is connected, if there is a daemon */
	for (fd = 3; fd < 4096; fd++)
		close(fd);
	for (i = 0; i < 32; i++) {
		CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair[i]) == 0);
		CHECK(send(pair[i][0], "mine", 4, 0) == 4);
		for (side = 0; side < 2; side++)
			inode[i][side] = fstat(pair[i][side], &st) ? 0 : st.st_ino;
	}
	for (i = 0; i < 64; i++)
		v_free(p[i]);
	for (i = 0; i < 20; i++) {
		v_free(v_malloc(PAGE * 300));
		usleep(50000);
	}
	for (i = 0; i < 32; i++) {
		char buf[8] = "";

		for (side = 0; side < 2; side++)
			CHECK(!fstat(pair[i][side], &st) && st.st_ino == inode[i][side]);
		CHECK(recv(pair[i][1], buf, 8, MSG_DONTWAIT) == 4 && !strcmp(buf, "mine"));
		CHECK(recv(pair[i][0], buf, 8, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	}
}

/* ---- odd moments ---- */

static void *early;

__attribute__((constructor(101))) static void before_all(void)
{
	early = malloc(3 * PAGE);
}

__attribute__((destructor(101))) static void after_all(void)
{
	char *p = v_malloc(7 * PAGE);

	if (!p)
		_exit(99);
	memset(p, MARK, 7 * PAGE);
	v_free(p);
	v_free(early);
}

static void at_exit(void)
{
	v_free(v_malloc(6 * PAGE));
}

static pthread_key_t key;

static void thread_data_end(void *p)
{
	v_free(p);
	v_free(v_malloc(2 * PAGE));
}

static void *with_data(void *arg)
{
	pthread_setspecific(key, v_malloc(3 * PAGE));
	return arg;
}

static void case_moments(void)
{
	pthread_t t;
	int i;

	CHECK(early);
	check_side(early, 3 * PAGE);
	atexit(at_exit);
	pthread_key_create(&key, thread_data_end);
	for (i = 0; i < 50; i++) {
		CHECK(pthread_create(&t, NULL, with_data, NULL) == 0);
		pthread_join(t, NULL);
	}
}

static unsigned n_reports;
static const char *report;

static void on_error(const struct pcpa_error *e, void *cookie)
{
	(void)cookie;
	n_reports++;
	report = e->what;
	v_free(v_malloc(2 * PAGE)); /* a callback may allocate */
}

static void check_twice(size_t size)
{
	unsigned before = n_reports;
	char *p = v_malloc(size);

	memset(p, MARK, size);
	v_free(p);
	CHECK(n_reports == before);
	v_free(p); /* twice */
	CHECK(n_reports == before + 1 && report);
	errno = 0;
	CHECK(!v_realloc(p, 8192) && errno == ENOMEM);
	CHECK(n_reports == before + 2);
	CHECK(malloc_usable_size(p) == 0);
}

static void case_misuse(void)
{
	char *p = v_malloc(4 * PAGE);

	pcpa_set_error_callback(on_error, NULL);
	errno = 7;
	v_free(p + PAGE); /* inside a block */
	CHECK(n_reports == 1);
	v_free(p + 16);
	CHECK(n_reports == 2 && errno == 7);
	v_free(p);
	p = v_malloc(12 * PAGE);
	v_free(p + 8 * PAGE); /* what is there would be a block of its own otherwise */
	CHECK(n_reports == 3);
	v_free(p);
	CHECK(n_reports == 3);
	check_twice(12 * PAGE);
	/* where lists are served by sections, a small block is noticed when it reaches the zone */
	p = v_malloc(4 * PAGE);
	v_free(p);
	v_free(p);
	pcpa_trim();
	CHECK(n_reports == 6);
	if (getenv("PCPALLOC_CHECK"))
		check_twice(4 * PAGE);
	CHECK(pcpa_audit(NULL) == 0);
}

/* No address space for a zone, or for a larger one: the next malloc serves. */
static void case_limited(void)
{
	struct rlimit small = {.rlim_cur = 64u << 20, .rlim_max = 64u << 20};
	size_t n = 0;
	void *p;

	CHECK(setrlimit(RLIMIT_AS, &small) == 0);
	while (n < 1000 && (p = v_malloc(100000))) {
		memset(p, MARK, 100000);
		n++;
	}
	CHECK(n > 100 && (n == 1000 || errno == ENOMEM));
}

static volatile sig_atomic_t n_signals;

static void handler(int sig)
{
	(void)sig;
	n_signals++;
}

/* Signals between and inside calls do no harm. */
static void case_signals(void)
{
	struct sigaction sa = {.sa_handler = handler};
	timer_t timer;
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
	struct itimerspec every = {{0, 200000}, {0, 200000}};
	int i;

	sigaction(SIGALRM, &sa, NULL);
	CHECK(timer_create(CLOCK_MONOTONIC, &ev, &timer) == 0);
	timer_settime(timer, 0, &every, NULL);
	for (i = 0; i < 200000 || n_signals < 20; i++)
		v_free(v_malloc(PAGE + (size_t)(i % 16) * 1000));
	timer_delete(timer);
	CHECK(pcpa_audit(NULL) == 0);
}

/* What a short command does: a block, and the end. */
static void case_short(void)
{
	memset(v_malloc(9000), MARK, 9000);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"plain", case_plain},	   {"realloc", case_realloc}, {"resize", case_resize},
	{"aligned", case_aligned}, {"errors", case_errors},   {"threads", case_threads},
	{"fork", case_fork},	   {"spawn", case_spawn},     {"closed", case_closed},
	{"moments", case_moments}, {"misuse", case_misuse},   {"limited", case_limited},
	{"signals", case_signals}, {"short", case_short},
};

int main(int argc, char **argv)
{
	size_t i;

	if (argc > 2)
		ours_min = strtoul(argv[2], NULL, 10);
	if (argc > 3)
		ours_max = strtoul(argv[3], NULL, 10);
	for (i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(cases[i].name, argv[1]))
			continue;
		cases[i].run();
		return bad ? 1 : 0;
	}
	fprintf(stderr, "usage: preload_api CASE [MIN [MAX]]\n");
	return 2;
}
