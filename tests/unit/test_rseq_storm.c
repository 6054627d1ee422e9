/* SPDX-License-Identifier: MIT */
/*
 * Lists served by restartable sequences in storms: each thread is interrupted every 50 us by a
 * handler that allocates, is moved from CPU to CPU, has an id that the tables do not have, or
 * forks, while others take pages off the lists and change the limits, memory is short, or the
 * system refuses its fences from some moment on. Both invariants hold to the page.
 *
 * STORM_SECONDS=N makes the storms longer.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include <pcptune/rules.h>

#include <pcpalloc_inline.h>

#include "tests/unit/random.h"
#include "allocator/pcp_locked.h"
#include "tests/unit/sections.h"

#define THREADS 64
#define KEPT	24
#define SLOTS	64

static int stop;
static unsigned long doubled, handled, done;
static uint64_t allocated; /* pages, to be found in the counters again */
static void *shared[SLOTS];

static double length(double usual)
{
	const char *v = getenv("STORM_SECONDS");

	return v ? atof(v) : usual;
}

/* ---- what threads do ---- */

/* Every second call of a thread is one without a call. */
static bool inlined(void)
{
	static _Thread_local unsigned n;

	return n++ & 1;
}

static void give(void *block, unsigned order)
{
	if (inlined())
		pcpa_free_inline(block, order);
	else
		pcpa_free(block, order);
}

/* As pcpa_alloc(), and counted. */
static void *take(unsigned order)
{
	void *block = inlined() ? pcpa_alloc_inline(order) : pcpa_alloc(order);

	if (block)
		__atomic_add_fetch(&allocated, (uint64_t)1 << order, __ATOMIC_RELAXED);
	return block;
}

static void mark(void *block, unsigned order, uint64_t who)
{
	uint64_t *w = block;

	w[0] = who;
	w[((size_t)4096 << order) / 8 - 1] = who;
}

static void check_mark(void *block, unsigned order, uint64_t who)
{
	uint64_t *w = block;

	if (w[0] != who || w[((size_t)4096 << order) / 8 - 1] != who)
		__atomic_add_fetch(&doubled, 1, __ATOMIC_RELAXED);
}

static unsigned some_order(uint64_t r)
{
	static const uint8_t orders[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 9};
	unsigned order = orders[r % 16];

	return order == 9 && r / 16 % 8 ? 0 : order;
}

static void exchange(uint64_t r)
{
	size_t slot = r % SLOTS;
	unsigned order = slot % 4;
	void *mine = r & 512 ? take(order) : NULL, *old;

	if (mine)
		mark(mine, order, slot);
	old = __atomic_exchange_n(&shared[slot], mine, __ATOMIC_ACQ_REL);
	if (old)
		check_mark(old, order, slot);
	give(old, order);
}

static void bulk(uint64_t r)
{
	void *blocks[150];
	size_t n = pcpa_alloc_bulk(0, 1 + r % 150, blocks);

	__atomic_add_fetch(&allocated, n, __ATOMIC_RELAXED);
	for (size_t i = 0; i < n; i++)
		mark(blocks[i], 0, r + i);
	for (size_t i = 0; i < n; i++)
		check_mark(blocks[i], 0, r + i);
	pcpa_free_bulk(0, n, blocks);
}

static void work(uint64_t *x, uint64_t me, void **kept, unsigned *orders)
{
	uint64_t r = random_next(x) >> 8;
	unsigned i = r / 1024 % KEPT;

	if (r % 64 == 0) {
		exchange(r / 64);
	} else if (r % 512 == 1) {
		bulk(r / 512);
	} else if (kept[i]) {
		check_mark(kept[i], orders[i], me);
		give(kept[i], orders[i]);
		kept[i] = NULL;
	} else {
		orders[i] = some_order(r / 32);
		kept[i] = take(orders[i]);
		if (kept[i])
			mark(kept[i], orders[i], me);
	}
	__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

static void work_until_stop(uint64_t me, void (*also)(uint64_t n))
{
	uint64_t x = me * 2654435761u + 1;
	unsigned orders[KEPT] = {0};
	void *kept[KEPT] = {0};

	for (uint64_t n = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++) {
		work(&x, me, kept, orders);
		if (also)
			also(n);
	}
	for (unsigned i = 0; i < KEPT; i++)
		if (kept[i]) {
			check_mark(kept[i], orders[i], me);
			give(kept[i], orders[i]);
		}
}

/* As a daemon and the agent would. One thread alone does so. */
static void steer(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint64_t r)
{
	static const uint8_t rules[4] = {PCPTUNE_RULES_G0, PCPTUNE_RULES_G1, PCPTUNE_RULES_G4,
					 PCPTUNE_RULES_GX};

	pcpa_put(&b->ctl.high, (uint32_t)(r % 900));
	pcpa_put(&b->ctl.high_min, (uint32_t)(r / 1024 % 300));
	pcpa_put(&b->ctl.high_max, (uint32_t)(r / 64 % 5000));
	pcpa_put(&b->ctl.batch, (uint32_t)(r / 128 % 100) + 1);
	pcpa_put(&b->ctl.scale_max, (uint32_t)(r / 16 % 7));
	pcpa_put(&b->ctl.rules, rules[r / 32 % 4]);
	__atomic_store_n(&b->ctl.seq, pcpa_get(&b->ctl.seq) + 1, __ATOMIC_RELEASE);
	if (!pcpa_pcp_trylock(b))
		return;
	pcpa_pcp_control(z, b, PCPA_PATH_AGENT);
	if (r % 8 == 0)
		pcpa_pcp_tick(z, b);
	pcpa_pcp_unlock(b);
}

/* Takes the lists of some CPU away and empties them in part; changes limits. */
static void *disturb(void *arg)
{
	uint64_t x = (uintptr_t)arg * 77 + 5;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		uint64_t r = random_next(&x) >> 8;
		struct pcpa_zone *z = &pcpa_heap.zones[r / 7 % pcpa_heap.n_zones];
		struct pcptune_cpu_block *b =
			pcpa_cpu_block(z->id, (uint32_t)(r % pcpa_heap.n_slots));

		if (r % 40 == 3 && arg == (void *)1)
			steer(z, b, r / 64);
		if (pcpa_pcp_trylock(b)) {
			pcpa_pcp_drain(z, b, r / 64 % 5, r / 512 % 200, PCPA_DRAIN_TRIM,
				       PCPA_PATH_FREE);
			pcpa_pcp_unlock(b);
		}
		if (r % 50 == 0)
			CHECK(!pcpa_set_limits((unsigned)(r / 64 % 300) + 1, 1,
					       (unsigned)(r / 64 % 3000) + 300,
					       (unsigned)(r / 128 % 64) + 1));
		if (r % 2000 == 1)
			pcpa_trim();
		if (r % 500 == 2)
			CHECK_AUDIT();
		usleep((unsigned)(r % 100));
	}
	return NULL;
}

static void check_quiet(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	for (size_t i = 0; i < SLOTS; i++)
		give(shared[i], i % 4);
	CHECK(doubled == 0);
	CHECK_AUDIT();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.alloc_pages == allocated && s.free_pages == allocated && s.pages_in_use == 0);
	pcpa_trim();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK_AUDIT();
	CHECK(s.pages_on_lists == 0 && s.alloc_zone == s.free_zone);
	CHECK(pcpa_heap.proc->bad_frees == 0);
}

static void wait_for_end(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(long)seconds) * 1e9)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

/* ---- the abort storm ---- */

static void handler(int sig)
{
	int saved = errno;
	unsigned order = __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED) % 5;
	void *block = take(order);

	(void)sig;
	if (block) {
		mark(block, order, (uintptr_t)block);
		check_mark(block, order, (uintptr_t)block);
	}
	give(block, order);
	errno = saved;
}

static void *interrupted(void *arg)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
	struct itimerspec every = {{0, 50000}, {0, 50000}};
	timer_t timer;

	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECK(!timer_settime(timer, 0, &every, NULL));
	work_until_stop((uintptr_t)arg, NULL);
	timer_delete(timer);
	return NULL;
}

static void run(unsigned n, void *(*f)(void *), double seconds)
{
	pthread_t threads[THREADS + 2];

	give(take(0), 0);
	CHECK(by_rseq());
	for (uintptr_t i = 0; i < n; i++)
		CHECK(!pthread_create(&threads[i], NULL, f, (void *)(i + 1000)));
	CHECK(!pthread_create(&threads[n], NULL, disturb, (void *)1));
	CHECK(!pthread_create(&threads[n + 1], NULL, disturb, (void *)2));
	wait_for_end(seconds);
	for (unsigned i = 0; i < n + 2; i++)
		pthread_join(threads[i], NULL);
	check_quiet();
}

static void abort_child(void)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	alarm((unsigned)length(6) + 45);
	two_cpus();
	give(take(0), 0);
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	run(THREADS, interrupted, length(6));
	CHECK(handled > 1000 && done > 1000);
}

static void abort_storm(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(abort_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=512m",
							"PCPALLOC_IDLE_MS=50")),
			 0);
}

/* ---- forced migration ---- */

static void *moving(void *arg)
{
	work_until_stop((uintptr_t)arg, migrate);
	return NULL;
}

static void migration_child(void)
{
	alarm((unsigned)length(2) + 45);
	run(8, moving, length(2));
}

static void forced_migration(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(
		in_child(migration_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=256m",
						   "PCPALLOC_HIGH=64", "PCPALLOC_BATCH=8")),
		0);
}

/* ---- memory that is always short, zones that help each other out ---- */

static void *plain(void *arg)
{
	work_until_stop((uintptr_t)arg, NULL);
	return NULL;
}

static void short_child(void)
{
	alarm((unsigned)length(2) + 45);
	run(16, plain, length(2));
}

static void short_of_memory(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(short_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=8m",
							"PCPALLOC_ZONES=4")),
			 0);
}

/* ---- CPU ids that the tables do not have ---- */

#ifdef __x86_64__
static void claim_cpu(uint64_t n)
{
	static const uint32_t ids[] = {UINT32_MAX, UINT32_MAX - 1, 100000, PCPTUNE_MAX_CPUS};
	uint32_t *id = (uint32_t *)((char *)__builtin_thread_pointer() + pcpa_fast.offset + 4);

	/* the kernel puts it right at the next interruption */
	if (n % 3)
		__atomic_store_n(id, ids[n % 4], __ATOMIC_RELAXED);
}

static void *lying(void *arg)
{
	work_until_stop((uintptr_t)arg, claim_cpu);
	return NULL;
}

static void ids_child(void)
{
	alarm((unsigned)length(2) + 45);
	run(8, lying, length(2));
	CHECK(pcpa_heap.proc->shared_slot_calls > 0);
}
#endif

static void ids_outside_the_tables(void **state)
{
	(void)state;
	need_sections();
#ifdef __x86_64__
	assert_int_equal(in_child(ids_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=256m")),
			 0);
#else
	skip();
#endif
}

/* ---- a program that locks itself in ---- */

static void give_up_child(void)
{
	pthread_t threads[8];

	pcpa_free(pcpa_alloc(0), 0);
	CHECK(by_rseq());
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, plain, (void *)(i + 1)));
	usleep(200000);
	forbid_fences();
	CHECK_AUDIT();
	CHECK(!by_rseq() && pcpa_locked.n_cpus == pcpa_heap.n_slots - 1);
	CHECK(pcpa_alloc(0) && pcpa_set_limits(100, 100, 100, 10) == 0);
	wait_for_end(0.5);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < SLOTS; i++)
		give(shared[i], i % 4);
	CHECK(doubled == 0);
	CHECK_AUDIT();
	pcpa_trim();
	CHECK_AUDIT();
}

static void fences_refused_later(void **state)
{
	(void)state;
	need_sections();
	for (int i = 0; i < 3; i++)
		assert_int_equal(in_child(give_up_child,
					  SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=256m")),
				 0);
}

/* ---- fork ---- */

static void fork_child(void)
{
	pthread_t threads[8];

	alarm((unsigned)length(2) + 45);
	give(take(0), 0);
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, plain, (void *)(i + 1)));
	for (int i = 0; i < 60; i++) {
		pid_t pid = fork();
		int status;

		if (!pid) {
			unsigned orders[KEPT] = {0};
			void *kept[KEPT] = {0};
			uint64_t x = 99;

			alarm(20);
			CHECK_AUDIT();
			CHECK(by_rseq());
			for (int k = 0; k < 5000; k++)
				work(&x, 7, kept, orders);
			CHECK_AUDIT();
			pcpa_trim();
			CHECK_AUDIT();
			_exit(0);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	}
	wait_for_end(0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	check_quiet();
}

static void fork_in_a_storm(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(fork_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=256m")),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fences_refused_later), cmocka_unit_test(ids_outside_the_tables),
		cmocka_unit_test(forced_migration),	cmocka_unit_test(short_of_memory),
		cmocka_unit_test(fork_in_a_storm),	cmocka_unit_test(abort_storm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
