/* SPDX-License-Identifier: MIT */
/*
 * fork: in a storm of threads, the child must find no lock held, keep every block and list as its
 * own, count from zero, and leave the parent's segment alone.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "allocator/pcp.h"
#include "tests/unit/random.h"

/* TSan refuses threads in the child of a threaded process by default; it can follow them well. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static int stop;

static void *storm(void *arg)
{
	uint64_t x = (uintptr_t)arg * 2654435761u + 1;
	void *kept[32] = {0};

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		unsigned order, i;

		random_next(&x);
		i = x % 32;
		order = i % 5; /* 4 has no list */
		if (kept[i])
			pcpa_free(kept[i], order);
		kept[i] = x & 64 ? pcpa_alloc(order) : NULL;
		if (kept[i])
			memset(kept[i], (int)i, 4096);
	}
	for (unsigned i = 0; i < 32; i++)
		pcpa_free(kept[i], i % 5);
	return NULL;
}

/* Allocates and frees on every list, and expects a fresh account. */
static void use_child(unsigned char *block, uint64_t parent_segment)
{
	struct pcpa_stats before = {.size = sizeof(before)}, s = {.size = sizeof(s)};

	CHECK_AUDIT();
	CHECK(pcpa_heap.header->random_id != parent_segment);
	CHECK(pcpa_heap.header->flags & PCPTUNE_SEG_FORKED);
	CHECK(pcpa_heap.header->pid == (uint32_t)getpid());
	CHECK(pcpa_get_stats(&before) == 0);
	CHECK(before.alloc_pages == 0 && before.free_pages == 0 && before.alloc_zone == 0);
	CHECK(before.pages_in_use > 0);
	for (int i = 0; i < 200; i++) {
		void *p[11];

		for (unsigned order = 0; order <= 10; order++) {
			p[order] = pcpa_alloc(order);
			CHECK(p[order]);
			memset(p[order], 1, 4096);
		}
		for (unsigned order = 0; order <= 10; order++)
			pcpa_free(p[order], order);
	}
	CHECK(block[0] == 0x5a && block[4095] == 0x5a);
	block[0] = 1;
	pcpa_free(block, 0);
	CHECK_AUDIT();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.alloc_pages == 200 * 2047 && s.free_pages == s.alloc_pages + 1);
	CHECK(s.pages_in_use == before.pages_in_use - 1);
}

static void storm_child(void)
{
	pthread_t threads[8];
	unsigned char *block = pcpa_alloc(0);

	memset(block, 0x5a, 4096);
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(i + 1)));
	for (int i = 0; i < 60; i++) {
		uint64_t id = pcpa_heap.header->random_id;
		int status;
		pid_t pid = fork();

		if (!pid) {
			alarm(20);
			use_child(block, id);
			_exit(0);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
		CHECK(status == 0);
		usleep(1000);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK(block[0] == 0x5a);
	pcpa_free(block, 0);
	CHECK_AUDIT();
	CHECK(pcpa_get(&pcpa_heap.proc->forks) == 60);
	CHECK(!(pcpa_heap.header->flags & PCPTUNE_SEG_FORKED));
	{
		struct pcpa_stats s = {.size = sizeof(s)};

		CHECK(pcpa_get_stats(&s) == 0);
		CHECK(s.pages_in_use == 0);
	}
}

static void in_a_storm(void **state)
{
	(void)state;
	assert_int_equal(in_child(storm_child, SETTINGS("PCPALLOC_CPUS=4", "PCPALLOC_SIZE=256m")),
			 0);
}

/* What the child does is seen by nobody else. */
static void counters_child(void)
{
	struct pcpa_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	int status;
	pid_t pid;

	for (int i = 0; i < 1000; i++)
		pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_get_stats(&before) == 0);
	pid = fork();
	if (!pid) {
		for (int i = 0; i < 1000; i++)
			CHECK(pcpa_alloc(0));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(pcpa_get_stats(&after) == 0);
	CHECK(before.alloc_pages == after.alloc_pages);
	CHECK(before.pages_on_lists == after.pages_on_lists);
	CHECK_AUDIT();
}

static void parent_is_left_alone(void **state)
{
	(void)state;
	assert_int_equal(in_child(counters_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

/* A grandchild inherits from the child, not from the beginning of time. */
static void grandchild_child(void)
{
	void *a = pcpa_alloc(0), *b;
	int status;
	pid_t pid = fork();

	if (!pid) {
		b = pcpa_alloc(3);
		pid = fork();
		if (!pid) {
			struct pcpa_stats s = {.size = sizeof(s)};

			CHECK_AUDIT();
			CHECK(pcpa_get_stats(&s) == 0);
			CHECK(s.pages_in_use == 9 && s.alloc_pages == 0);
			pcpa_free(a, 0);
			pcpa_free(b, 3);
			CHECK(pcpa_get_stats(&s) == 0);
			CHECK(s.pages_in_use == 0);
			CHECK_AUDIT();
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	pcpa_free(a, 0);
	CHECK_AUDIT();
}

static void grandchildren(void **state)
{
	(void)state;
	assert_int_equal(in_child(grandchild_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

/* What the daemon had set is not for the child: it has no lease. */
static void control_child(void)
{
	struct pcptune_cpu_block *b;
	int status;
	pid_t pid;

	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, pcpa_cpu_slot());
	memset(&b->ctl.high, 0xff, 6 * sizeof(uint32_t));
	b->ctl.high = 300;
	b->ctl.high_min = b->ctl.high_max = 300;
	__atomic_store_n(&b->ctl.seq, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2000 && pcpa_get(&b->pcp.ack_seq) != 1; i++) {
		pcpa_free(pcpa_alloc(1), 1);
		pcpa_trim();
		usleep(1000);
		__atomic_add_fetch(&pcpa_heap.header->wake, 1, __ATOMIC_RELEASE);
	}
	CHECK(pcpa_get(&b->pcp.high) == 300);
	pid = fork();
	if (!pid) {
		CHECK(pcpa_get(&b->pcp.high) == pcpa_heap.defaults[0].high);
		CHECK(pcpa_get(&b->ctl.seq) == 0 && pcpa_get(&b->pcp.ack_seq) == 0);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(pcpa_get(&b->pcp.high) == 300);
}

static void control_stays_with_the_parent(void **state)
{
	(void)state;
	assert_int_equal(in_child(control_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=1g")),
			 0);
}

/* Before anything was allocated a fork costs and changes nothing. */
static void before_child(void)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		CHECK(pcpa_alloc(0));
		CHECK(!(pcpa_heap.header->flags & PCPTUNE_SEG_FORKED));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!pcpa_heap.ready);
}

static void before_the_first_allocation(void **state)
{
	(void)state;
	assert_int_equal(in_child(before_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

static bool agent_has_ticked(void)
{
	for (int i = 0; i < 5000 && !pcpa_get(&pcpa_heap.proc->agent_ticks); i++)
		usleep(1000);
	return pcpa_get(&pcpa_heap.proc->agent_ticks) > 0;
}

/* The child begins with an agent of its own. */
static void agent_child(void)
{
	int status;
	pid_t pid;

	pcpa_free(pcpa_alloc(0), 0);
#ifdef __SANITIZE_ADDRESS__
	/* a thread that is just beginning holds locks of this runtime, which fork leaves held */
	CHECK(agent_has_ticked());
#endif
	pid = fork();
	if (!pid) {
		CHECK(pcpa_get(&pcpa_heap.proc->agent_ticks) == 0);
		pcpa_free(pcpa_alloc(0), 0);
		CHECK(agent_has_ticked());
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void child_has_its_own_agent(void **state)
{
	(void)state;
	assert_int_equal(in_child(agent_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

/*
 * A handler that was there before ours runs in the child before ours: the lists still lie in the
 * parent's segment then, and it must not get at them.
 */
static int early_uses;
static void *early_block;

static void early_in_child(void)
{
	if (!early_uses)
		return;
	usleep(20000); /* the parent gives its locks up meanwhile */
	CHECK(!pcpa_alloc(0) && errno == EAGAIN);
	CHECK(pcpa_alloc_bulk(0, 1, &(void *){NULL}) == 0);
	pcpa_free(early_block, 0);
}

static void register_first(int argc, char **argv, char **environment)
{
	(void)argc;
	(void)argv;
	(void)environment;
	pthread_atfork(NULL, NULL, early_in_child);
}

/* TSan sets itself up at this time, and misses its options when something ran before */
#ifndef __SANITIZE_THREAD__
__attribute__((section(".preinit_array"),
	       used)) static void (*const first)(int, char **, char **) = register_first;
#define RUNS_FIRST true
#else
#define RUNS_FIRST false
#endif

static void early_handler_child(void)
{
	struct pcpa_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	int status;
	pid_t pid;

	early_block = pcpa_alloc(0);
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_get_stats(&before) == 0);
	early_uses = 1;
	pid = fork();
	if (!pid) {
		struct pcpa_stats s = {.size = sizeof(s)};

		CHECK_AUDIT();
		CHECK(pcpa_get_stats(&s) == 0);
		CHECK(s.pages_in_use == 0 && s.free_pages == 1 && s.alloc_pages == 0);
		CHECK(pcpa_alloc(0));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(pcpa_get_stats(&after) == 0);
	CHECK(after.alloc_pages == before.alloc_pages && after.free_pages == before.free_pages);
	pcpa_free(early_block, 0);
	CHECK_AUDIT();
}

static void a_handler_before_ours(void **state)
{
	(void)state;
	(void)register_first;
	if (!RUNS_FIRST)
		skip();
	assert_int_equal(in_child(early_handler_child, SETTINGS("PCPALLOC_CPUS=1")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(before_the_first_allocation),
		cmocka_unit_test(parent_is_left_alone),
		cmocka_unit_test(grandchildren),
		cmocka_unit_test(control_stays_with_the_parent),
		cmocka_unit_test(child_has_its_own_agent),
		cmocka_unit_test(in_a_storm),
		cmocka_unit_test(a_handler_before_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
