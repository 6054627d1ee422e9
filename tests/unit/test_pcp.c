/* SPDX-License-Identifier: MIT */
/*
 * The lists: order of blocks, refills and drains as the rules say, words and counters, control
 * words, rings that go round, CPUs outside the tables, refused address space.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <pcptune/rules.h>

#include "allocator/limits.h"
#include "allocator/pcp_locked.h"
#include "allocator/pcp_private.h"

static struct pcptune_cpu_block *cpu(void)
{
	return pcpa_cpu_block(0, pcpa_cpu_slot());
}

static uint32_t count_of(const struct pcptune_list *l)
{
	return (uint32_t)((l->word - (uint64_t)l->tail) & PCPTUNE_WORD_MASK);
}

/*
 * 1 GiB and one CPU: batch 63, and bounds that are known. A virtual CPU, and a real one, whose
 * lists are served by sections where the system has them: the rules must not notice.
 */
static int in_children(void (*f)(void), const char *rules)
{
	int found = in_child(f, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=1g", "PCPALLOC_AGENT=0",
					 "PCPALLOC_IDLE_MS=0", rules));

	pinned = f;
	return found ? found
		     : in_child(pinned_child, SETTINGS("PCPALLOC_SIZE=1g", "PCPALLOC_AGENT=0",
						       "PCPALLOC_IDLE_MS=0", rules));
}

static void defaults_child(void)
{
	struct pcptune_cpu_block *b;
	uint32_t low, high;

	pcpa_free(pcpa_alloc(0), 0);
	b = cpu();
	pcpa_limits_watermarks(262144, &low, &high);
	CHECK(pcpa_heap.zones[0].n_pages == 262144);
	CHECK(b->pcp.batch == 63 && b->pcp.scale_max == 5 && b->pcp.rules == PCPTUNE_RULES_G4);
	CHECK(b->pcp.high_max == 262144 / 8 && b->pcp.high_min == low);
	CHECK(b->pcp.high_limit == 262144 / 8);
	CHECK(pcpa_heap.zones[0].gauges->low_wmark_pages == low);
	CHECK(!(b->pcp.flags & PCPTUNE_RF_FREE_HIGH_BATCH) == (pcpa_heap.cache_slice <= 3 * 63));
}

static void kernel_defaults(void **state)
{
	uint32_t low, high;

	(void)state;
	assert_int_equal(in_children(defaults_child, "PCPALLOC_RULES=g4"), 0);
	/* 4 GiB: sqrt(4194304 * 16) = 8192 KiB = 2048 pages; steps of a thousandth, 1048 */
	pcpa_limits_watermarks(1048576, &low, &high);
	assert_int_equal(low, 3096);
	assert_int_equal(high, 4144);
	/* 256 MiB: 2048 KiB = 512 pages; a quarter of that, 128, is more than a thousandth */
	pcpa_limits_watermarks(65536, &low, &high);
	assert_int_equal(low, 640);
	assert_int_equal(high, 768);
	/* the least and the most */
	pcpa_limits_watermarks(1, &low, &high);
	assert_int_equal(low, 40);
	pcpa_limits_watermarks(UINT64_C(1) << 33, &low, &high);
	assert_int_equal(low, 65536 + 8589934);
}

/* Refills of one batch, then twice as much each, all in ascending order. */
static void refill_child(void)
{
	static const uint32_t want[] = {63, 126, 252, 504, 1008, 2016, 2016};
	char *first = pcpa_alloc(0), *last = first;
	uint64_t taken = 63;

	for (size_t i = 0; i < 7; i++) {
		struct pcptune_cpu_block *b = cpu();

		CHECK(b->zctr.refills == i + 1);
		CHECK(b->zctr.alloc_zone == taken);
		for (uint32_t k = 1; k <= want[i]; k++) {
			char *p = pcpa_alloc(0);

			CHECK(p == last + 4096);
			last = p;
		}
		if (i < 6)
			taken += want[i + 1];
	}
	CHECK(cpu()->pcp.high_raised == 8);
}

static void refills_double_and_ascend(void **state)
{
	(void)state;
	assert_int_equal(in_children(refill_child, "PCPALLOC_RULES=g4"), 0);
}

static void lifo_child(void)
{
	void *a = pcpa_alloc(2), *b = pcpa_alloc(2);

	pcpa_free(a, 2);
	pcpa_free(b, 2);
	CHECK(pcpa_alloc(2) == b);
	CHECK(pcpa_alloc(2) == a);
}

static void hot_blocks_first(void **state)
{
	(void)state;
	assert_int_equal(in_children(lifo_child, "PCPALLOC_RULES=g4"), 0);
}

/* A drain takes the coldest and leaves what was freed last. */
static void drain_child(void)
{
	static void *p[1000];
	struct pcptune_cpu_block *b;
	int freed = 0;

	for (int i = 0; i < 1000; i++)
		CHECK(p[i] = pcpa_alloc(0));
	pcpa_trim();
	CHECK(pcpa_set_limits(200, 200, 200, 0) == 0);
	b = cpu();
	CHECK(b->pcp.high == 200 && pcpa_pcp_pages(b) == 0 && b->pcp.free_count == 0);
	for (uint64_t before = b->zctr.drains; b->zctr.drains == before; freed++)
		pcpa_free(p[freed], 0);
	/* 200 frees in a row: all but a batch goes */
	CHECK(freed == 200 && pcpa_pcp_pages(b) == 63);
	for (int i = 199; i >= 200 - 63; i--)
		CHECK(pcpa_alloc(0) == p[i]);
	CHECK(pcpa_pcp_pages(b) == 0 && b->zctr.free_high == 0);
	CHECK_AUDIT();
}

static void drains_the_coldest(void **state)
{
	(void)state;
	assert_int_equal(in_children(drain_child, "PCPALLOC_RULES=g4"), 0);
}

/* The statistics inside the list words, against what was done. */
static void words_child(void)
{
	static void *p[5][50];
	static const unsigned orders[5] = PCPTUNE_LIST_ORDERS;
	struct pcptune_cpu_block *b;

	for (int l = 0; l < 5; l++)
		for (int i = 0; i < 50; i++)
			CHECK(p[l][i] = pcpa_alloc(orders[l]));
	b = cpu();
	for (int l = 0; l < 5; l++) {
		for (int i = 0; i < 20 + l; i++)
			pcpa_free(p[l][i], orders[l]);
	}
	for (int l = 0; l < 5; l++) {
		const struct pcptune_list *list = &b->list[l];
		int64_t net = list->tail + count_of(list);
		uint64_t ops = ((list->word - (uint64_t)net) >> 24) & ((UINT64_C(1) << 40) - 1);

		CHECK((ops - (uint64_t)net) / 2 == 50);
		CHECK((ops + (uint64_t)net) / 2 == (uint64_t)(20 + l));
	}
	CHECK_AUDIT();
}

static void words_tell_operations(void **state)
{
	(void)state;
	assert_int_equal(in_children(words_child, "PCPALLOC_RULES=g4"), 0);
}

/* A CPU that only allocates moves its ring downward for ever; one that only frees upward. */
static void *free_all(void *arg)
{
	void **p = arg;

	pcpa_free_bulk(0, 4096, p);
	return NULL;
}

static void ring_child(void)
{
	static void *p[4096];

	for (int round = 0; round < 60; round++) {
		pthread_t t;

		CHECK(pcpa_alloc_bulk(0, 4096, p) == 4096);
		CHECK(!pthread_create(&t, NULL, free_all, p));
		pthread_join(t, NULL);
	}
	/* 60 * 4096 blocks are more than a ring has places */
	CHECK(60 * 4096 > cpu()->list[0].limit);
	CHECK_AUDIT();
}

static void rings_go_round(void **state)
{
	(void)state;
	assert_int_equal(in_child(ring_child, SETTINGS("PCPALLOC_CPUS=2", "PCPALLOC_SIZE=64m",
						       "PCPALLOC_AGENT=0")),
			 0);
}

static void g0_child(void)
{
	struct pcptune_cpu_block *b;
	void *p;

	pcpa_free(pcpa_alloc(0), 0);
	b = cpu();
	CHECK(b->pcp.rules == PCPTUNE_RULES_G0 && b->pcp.high == 6 * 63);
	CHECK(b->zctr.alloc_zone == 63 && b->zctr.refills == 1);
	/* no list for other orders */
	p = pcpa_alloc(1);
	CHECK(p && b->zctr.alloc_direct == 2);
	pcpa_free(p, 1);
	CHECK(b->zctr.free_direct == 2 && b->zctr.pcp_busy == 0);
	for (int i = 0; i < 100; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->zctr.refills == 2 && b->pcp.high == 378);
	CHECK_AUDIT();
}

static void generation_0(void **state)
{
	(void)state;
	assert_int_equal(in_children(g0_child, "PCPALLOC_RULES=g0"), 0);
}

static void g1_child(void)
{
	uint32_t low, high;

	pcpa_free(pcpa_alloc(0), 0);
	pcpa_limits_watermarks(262144, &low, &high);
	CHECK(cpu()->pcp.rules == PCPTUNE_RULES_G1 && cpu()->pcp.high == low);
}

static void generation_1(void **state)
{
	(void)state;
	assert_int_equal(in_children(g1_child, "PCPALLOC_RULES=g1"), 0);
}

/* Control words are taken on the slow path when there is no agent; each value for itself. */
static void control_child(void)
{
	struct pcptune_cpu_block *b;
	struct pcptune_ctl *c;

	for (int i = 0; i < 10; i++)
		pcpa_free(pcpa_alloc(3), 3);
	b = cpu();
	c = &b->ctl;
	c->high = 100;
	c->high_min = 50;
	c->high_max = PCPTUNE_MAX_HIGH + 1;
	c->batch = 0;
	c->scale_max = 7;
	c->rules = 31;
	__atomic_store_n(&c->seq, 9, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->pcp.ack_seq == 9);
	CHECK(b->pcp.high_min == 50 && b->pcp.high_max == b->pcp.high_limit);
	CHECK(b->pcp.batch == 1 && b->pcp.scale_max == 6 && b->pcp.rules == PCPTUNE_RULES_G4);
	CHECK(pcpa_heap.proc->controls_refused == 4);
	/* a generation without some of the lists gives their blocks back */
	c->high = c->high_min = c->high_max = c->batch = c->scale_max = PCPTUNE_KEEP;
	c->rules = PCPTUNE_RULES_G0;
	__atomic_store_n(&c->seq, 10, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->pcp.ack_seq == 10 && b->pcp.rules == PCPTUNE_RULES_G0);
	CHECK(count_of(&b->list[3]) == 0);
	/* a fixed generation takes a high outside of the bounds it had */
	c->high = 20000;
	__atomic_store_n(&c->seq, 11, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->pcp.high == 20000);
	CHECK_AUDIT();
}

static void control_on_the_slow_path(void **state)
{
	(void)state;
	assert_int_equal(in_children(control_child, "PCPALLOC_RULES=g4"), 0);
}

/* A lease that runs out with no agent: seen by the next slow path. */
static void lease_child(void)
{
	struct pcptune_cpu_block *b;

	pcpa_free(pcpa_alloc(0), 0);
	b = cpu();
	b->ctl.high = b->ctl.high_min = b->ctl.high_max = 700;
	b->ctl.batch = b->ctl.scale_max = b->ctl.rules = PCPTUNE_KEEP;
	pcpa_heap.header->lease_until_ns = pcpa_now_ns() + 600000000000;
	__atomic_store_n(&b->ctl.seq, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->pcp.high == 700);
	pcpa_heap.header->lease_until_ns = pcpa_now_ns() + 1000000;
	usleep(2000);
	for (int i = 0; i < 1000; i++)
		CHECK(pcpa_alloc(0));
	CHECK(b->pcp.high_max == 32768 && pcpa_heap.proc->lease_expired == 1);
}

static void lease_without_agent(void **state)
{
	(void)state;
	assert_int_equal(in_children(lease_child, "PCPALLOC_RULES=g4"), 0);
}

/* As in a signal handler that interrupted a zone lock: lists serve, the zone is not waited for. */
static void interrupted_child(void)
{
	void *listed = pcpa_alloc(0), *direct = pcpa_alloc(5), *full[64];
	struct pcptune_cpu_block *b = cpu();
	uint64_t in_zone = pcpa_heap.zones[0].free_pages;

	CHECK(pcpa_pcp_pages(b) == 62);
	pcpa_in_zone++;
	errno = 0;
	CHECK(!pcpa_alloc(5) && errno == EAGAIN);
	for (int i = 0; i < 62; i++)
		CHECK(full[i] = pcpa_alloc(0));
	errno = 0;
	CHECK(!pcpa_alloc(0) && errno == EAGAIN);
	pcpa_free(listed, 0);
	CHECK(pcpa_pcp_pages(b) == 1);
	/* a free that needs the zone is put off and counts later */
	pcpa_free(direct, 5);
	CHECK(pcpa_heap.zones[0].free_pages == in_zone && b->zctr.free_direct == 0);
	/* lists that someone holds can not be used either */
	pcpa_pcp_lock(b);
	CHECK(!pcpa_alloc(0) && errno == EAGAIN);
	pcpa_free(full[0], 0);
	pcpa_pcp_unlock(b);
	CHECK(b->zctr.free_direct == 0 && b->zctr.alloc_failed == 0);
	pcpa_in_zone--;
	/* whoever leaves a zone next puts them where they belong */
	pcpa_free(pcpa_alloc(6), 6);
	CHECK(b->zctr.free_direct == 32 + 1 + 64);
	CHECK_AUDIT();
}

static void inside_a_zone_lock(void **state)
{
	(void)state;
	assert_int_equal(in_children(interrupted_child, "PCPALLOC_RULES=g4"), 0);
}

/* A CPU id that the tables do not have. */
static void outside_child(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	struct pcptune_cpu_block *shared;

	pcpa_free(pcpa_alloc(0), 0);
	/* as if the system had grown: no id is below n_slots - 1 any more */
	pcpa_heap.n_slots = 1;
	pcpa_locked_show(true);
	shared = pcpa_cpu_block(0, 0);
	for (int i = 0; i < 100; i++)
		pcpa_free(pcpa_alloc(i % 4), i % 4);
	CHECK(pcpa_heap.proc->shared_slot_calls >= 200);
	CHECK(shared->pcp.high > 0);
	CHECK(pcpa_get_stats(&s) == 0);
}

static void cpu_outside_the_tables(void **state)
{
	(void)state;
	assert_int_equal(in_child(outside_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=0",
							  "PCPALLOC_MODE=locked")),
			 0);
}

/* ulimit -v: the zone is smaller, but there is one; the program keeps room for itself. */
static void ulimit_child(void)
{
	struct rlimit limit = {UINT64_C(256) << 20, UINT64_C(256) << 20};
	void *p;

	CHECK(!setrlimit(RLIMIT_AS, &limit));
	p = pcpa_alloc(0);
	CHECK(p);
	memset(p, 1, 4096);
	CHECK(pcpa_heap.zones[0].n_pages >= 1024 && pcpa_heap.zones[0].n_pages < 65536);
	CHECK(malloc(32 << 20));
	pcpa_free(p, 0);
	CHECK_AUDIT();
}

static void refused_child(void)
{
	struct rlimit limit = {UINT64_C(1) << 20, RLIM_INFINITY};

	CHECK(!setrlimit(RLIMIT_AS, &limit));
	errno = 0;
	CHECK(!pcpa_alloc(0) && errno == ENOMEM);
	CHECK(!pcpa_owns(&limit));
	/* and again, when there is room */
	limit.rlim_cur = RLIM_INFINITY;
	CHECK(!setrlimit(RLIMIT_AS, &limit));
	CHECK(pcpa_alloc(0));
	CHECK_AUDIT();
}

static void refused_reservation(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	/* their shadow memory does not fit into a limited address space */
	skip();
#endif
	assert_int_equal(in_child(ulimit_child, NULL), 0);
	assert_int_equal(in_child(refused_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

/* Without a memfd (no descriptor left) everything works but the daemon. */
static void no_memfd_child(void)
{
	struct rlimit limit = {3, 3};

	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < 1000; i++)
		CHECK(pcpa_alloc(0));
	CHECK(pcpa_segment_fd() == -1);
	CHECK_AUDIT();
}

static void no_descriptor_left(void **state)
{
	(void)state;
	assert_int_equal(in_child(no_memfd_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

static void ranges(void **state)
{
	const char *at = "0-3,8\n";
	uint32_t first, last;

	(void)state;
	assert_int_equal(pcpa_next_range(&at, &first, &last), 1);
	assert_int_equal(first, 0);
	assert_int_equal(last, 3);
	assert_int_equal(pcpa_next_range(&at, &first, &last), 1);
	assert_int_equal(first, 8);
	assert_int_equal(last, 8);
	assert_int_equal(pcpa_next_range(&at, &first, &last), 0);
	at = "5-2";
	assert_int_equal(pcpa_next_range(&at, &first, &last), 0);
	at = "none";
	assert_int_equal(pcpa_next_range(&at, &first, &last), 0);
}

static void *let_go_late(void *b)
{
	usleep(200000);
	pcpa_pcp_unlock(b);
	return NULL;
}

/* Who waits for lists must not take the CPU that their holder may need. */
static void patient_child(void)
{
	struct pcptune_cpu_block *b;
	struct timespec t0, t1;
	pthread_t t;

	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, 0);
	pcpa_pcp_lock(b);
	CHECK(!pthread_create(&t, NULL, let_go_late, b));
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
	pcpa_pcp_lock(b);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
	pcpa_pcp_unlock(b);
	pthread_join(t, NULL);
	CHECK((t1.tv_sec - t0.tv_sec) * 1000 + (t1.tv_nsec - t0.tv_nsec) / 1000000 < 60);
}

static void a_long_wait_for_lists_leaves_the_cpu(void **state)
{
	(void)state;
	assert_int_equal(in_child(patient_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_AGENT=0")),
			 0);
}

static void *alloc_and_free(void *unused)
{
	void *block = pcpa_alloc(0);

	CHECK(block);
	pcpa_free(block, 0);
	return unused;
}

/*
 * A call that finds the lists of its CPU held sleeps for them, so that the holder has the CPU, and
 * takes them when it is let in, or goes to the zone when that takes long; one by the holder itself,
 * as from a signal handler, goes there at once.
 */
static void held_child(void)
{
	struct pcptune_cpu_block *b;
	pthread_t t;
	void *block;

	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, 0);
	CHECK(pcpa_pcp_try(b));
	block = pcpa_alloc(0);
	CHECK(block && b->zctr.pcp_busy == 1 && b->zctr.alloc_direct == 1);
	pcpa_free(block, 0);
	CHECK(b->zctr.pcp_busy == 2 && b->zctr.free_direct == 1);
	CHECK(!pcpa_get(&b->pcp.sleepers));
	/* nobody lets go: both calls of the other thread find their way */
	CHECK(!pthread_create(&t, NULL, alloc_and_free, NULL));
	pthread_join(t, NULL);
	CHECK(b->zctr.pcp_busy == 4 && b->zctr.alloc_direct == 2 && b->zctr.free_direct == 2);
	CHECK(pcpa_get(&b->pcp.lock) == pcpa_pcp_me() && pcpa_get(&b->pcp.sleepers));
	pcpa_pcp_leave(b);
	CHECK(!pcpa_get(&b->pcp.lock) && !pcpa_get(&b->pcp.sleepers));
	/* once it sleeps, we let go */
	for (int i = 0; i < 20; i++) {
		CHECK(pcpa_pcp_try(b));
		CHECK(!pthread_create(&t, NULL, alloc_and_free, NULL));
		while (!pcpa_get(&b->pcp.sleepers))
			sched_yield();
		pcpa_pcp_leave(b);
		pthread_join(t, NULL);
		CHECK(!pcpa_get(&b->pcp.lock));
	}
	CHECK_AUDIT();
}

static void held_lists(void **state)
{
	(void)state;
	assert_int_equal(in_child(held_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_AGENT=0")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernel_defaults),
		cmocka_unit_test(refills_double_and_ascend),
		cmocka_unit_test(hot_blocks_first),
		cmocka_unit_test(drains_the_coldest),
		cmocka_unit_test(words_tell_operations),
		cmocka_unit_test(rings_go_round),
		cmocka_unit_test(generation_0),
		cmocka_unit_test(generation_1),
		cmocka_unit_test(control_on_the_slow_path),
		cmocka_unit_test(lease_without_agent),
		cmocka_unit_test(inside_a_zone_lock),
		cmocka_unit_test(cpu_outside_the_tables),
		cmocka_unit_test(refused_reservation),
		cmocka_unit_test(no_descriptor_left),
		cmocka_unit_test(ranges),
		cmocka_unit_test(a_long_wait_for_lists_leaves_the_cpu),
		cmocka_unit_test(held_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
