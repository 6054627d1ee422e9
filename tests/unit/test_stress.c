/* SPDX-License-Identifier: MIT */
/*
 * Both invariants, exact, after storms: 64 threads that allocate, pass blocks to each other and
 * free, on 2 and on 64 virtual CPUs, while control words change all the time, memory is trimmed,
 * and audits run. Each block is written with its owner's mark, so that a page handed out twice is
 * seen. A second storm has a timer signal in every thread whose handler allocates and frees.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <sys/time.h>
#include <time.h>

#include "allocator/pcp.h"
#include "tests/unit/random.h"

#define THREADS 64
#define KEPT	48
#define SLOTS	256

static void *shared[SLOTS];
static int stop;
static unsigned long doubled;

/* Each slot carries blocks of one order. */
static unsigned order_of_slot(size_t slot)
{
	static const uint8_t tens[SLOTS / 10 + 1] = {
		[20] = 1, [21] = 1, [22] = 2, [23] = 3, [24] = 5, [25] = 9};

	return tens[slot / 10];
}

static double seconds(double release)
{
	const char *v = getenv("VARIANT");

	return v && strcmp(v, "release") ? release * 1.5 : release;
}

/* The first and last word carry who has the block. */
static void mark(void *block, unsigned order, uint64_t who)
{
	uint64_t *w = block;

	w[0] = who;
	w[((size_t)4096 << order) / 8 - 1] = who;
}

static int marked(void *block, unsigned order, uint64_t who)
{
	uint64_t *w = block;

	return w[0] == who && w[((size_t)4096 << order) / 8 - 1] == who;
}

struct kept {
	void *block;
	unsigned order;
};

static unsigned some_order(uint64_t r)
{
	static const uint8_t orders[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 9, 10};
	unsigned order = orders[r % 16];

	/* large blocks are rare: they are many pages */
	return order >= 9 && r / 16 % 8 ? 0 : order;
}

static void one_private(struct kept *k, uint64_t r, uint64_t me)
{
	if (k->block) {
		if (!marked(k->block, k->order, me))
			__atomic_add_fetch(&doubled, 1, __ATOMIC_RELAXED);
		pcpa_free(k->block, k->order);
		k->block = NULL;
		return;
	}
	k->order = some_order(r);
	k->block = pcpa_alloc(k->order);
	if (k->block)
		mark(k->block, k->order, me);
}

/* Puts a block where another thread frees it. */
static void one_shared(uint64_t r)
{
	size_t slot = r % SLOTS;
	unsigned order = order_of_slot(slot);
	void *mine = r & 512 ? pcpa_alloc(order) : NULL, *old;

	if (mine)
		mark(mine, order, slot);
	old = __atomic_exchange_n(&shared[slot], mine, __ATOMIC_ACQ_REL);
	if (old && !marked(old, order, slot))
		__atomic_add_fetch(&doubled, 1, __ATOMIC_RELAXED);
	pcpa_free(old, order);
}

static void bulk_and_exact(uint64_t r)
{
	void *blocks[100];
	size_t n = pcpa_alloc_bulk(0, 1 + r % 100, blocks), size = 1 + r % 100000;
	void *exact = pcpa_alloc_exact(size, 4096);

	pcpa_free_bulk(0, n, blocks);
	if (exact)
		memset(exact, 1, size);
	pcpa_free_exact(exact, size);
}

static void *storm(void *arg)
{
	uint64_t me = (uintptr_t)arg, x = me * 2654435761u + 1;
	struct kept kept[KEPT] = {{0}};

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		uint64_t r = random_next(&x) >> 8;

		if (r % 4 == 0)
			one_shared(r >> 3);
		else if (r % 256 == 1)
			bulk_and_exact(r >> 9);
		else
			one_private(&kept[(r >> 3) % KEPT], r >> 16, me);
	}
	for (size_t i = 0; i < KEPT; i++)
		pcpa_free(kept[i].block, kept[i].order);
	return NULL;
}

/* As the daemon does: values, then seq. Some are out of range on purpose. */
static void *steer(void *unused)
{
	uint64_t x = 99;

	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		uint32_t slot = random_next(&x) % pcpa_heap.n_slots;
		struct pcptune_ctl *c = &pcpa_cpu_block(0, slot)->ctl;
		static const uint32_t rules[] = {0, 1, 4, 4, 4, 4, 9, PCPTUNE_KEEP};

		pcpa_put(&c->high, (uint32_t)(random_next(&x) % 3000));
		pcpa_put(&c->high_min, (uint32_t)(random_next(&x) % 500));
		pcpa_put(&c->high_max, (uint32_t)(random_next(&x) % 6000));
		pcpa_put(&c->batch, (uint32_t)(random_next(&x) % 140));
		pcpa_put(&c->scale_max, (uint32_t)(random_next(&x) % 8));
		pcpa_put(&c->rules, rules[random_next(&x) % 8]);
		__atomic_store_n(&c->seq, pcpa_get(&c->seq) + 1, __ATOMIC_RELEASE);
		__atomic_add_fetch(&pcpa_heap.header->wake, 1, __ATOMIC_RELEASE);
		usleep(200);
	}
	return NULL;
}

static void *disturb(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		struct pcpa_stats s = {.size = sizeof(s)};

		CHECK_AUDIT();
		CHECK(pcpa_get_stats(&s) == 0);
		usleep(20000);
		pcpa_trim();
	}
	return NULL;
}

static void check_quiet(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	for (size_t i = 0; i < SLOTS; i++)
		pcpa_free(shared[i], order_of_slot(i));
	CHECK(doubled == 0);
	CHECK_AUDIT();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.alloc_pages > 0 && s.alloc_pages == s.free_pages);
	CHECK(s.pages_in_use == 0);
	pcpa_trim();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK_AUDIT();
	CHECK(s.pages_on_lists == 0);
	CHECK(s.alloc_zone == s.free_zone);
}

static void run_storm(double length)
{
	pthread_t threads[THREADS + 2];
	struct timespec t = {(time_t)length, (long)((length - (double)(long)length) * 1e9)};

	pcpa_free(pcpa_alloc(0), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(i + 1000)));
	CHECK(!pthread_create(&threads[THREADS], NULL, steer, NULL));
	CHECK(!pthread_create(&threads[THREADS + 1], NULL, disturb, NULL));
	nanosleep(&t, NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS + 2; i++)
		pthread_join(threads[i], NULL);
	check_quiet();
	CHECK(pcpa_get(&pcpa_heap.proc->controls_refused) > 0);
}

static void storm_child(void)
{
	run_storm(seconds(3));
}

static void two_cpus(void **state)
{
	(void)state;
	assert_int_equal(in_child(storm_child, SETTINGS("PCPALLOC_CPUS=2", "PCPALLOC_SIZE=1g",
							"PCPALLOC_IDLE_MS=50")),
			 0);
}

static void many_cpus(void **state)
{
	(void)state;
	assert_int_equal(in_child(storm_child, SETTINGS("PCPALLOC_CPUS=64", "PCPALLOC_SIZE=1g",
							"PCPALLOC_IDLE_MS=50")),
			 0);
}

/* Memory that is always short, in zones that help each other out. */
static void short_of_memory(void **state)
{
	(void)state;
	assert_int_equal(in_child(storm_child, SETTINGS("PCPALLOC_CPUS=8", "PCPALLOC_SIZE=8m",
							"PCPALLOC_ZONES=4")),
			 0);
}

/* ---- signals ---- */

static unsigned long handled, again;

static void handler(int sig)
{
	int saved = errno;
	unsigned order = __atomic_load_n(&handled, __ATOMIC_RELAXED) % 7 == 0 ? 3 : 0;
	void *block = pcpa_alloc(order);

	(void)sig;
	if (!block && errno == EAGAIN)
		__atomic_add_fetch(&again, 1, __ATOMIC_RELAXED);
	if (block)
		mark(block, order, (uintptr_t)block);
	if (block && !marked(block, order, (uintptr_t)block))
		__atomic_add_fetch(&doubled, 1, __ATOMIC_RELAXED);
	pcpa_free(block, order);
	__atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
	errno = saved;
}

/* Every thread is interrupted again and again. */
static void signals_child(void)
{
	pthread_t threads[8];
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	double until;
	struct timespec t;

	pcpa_free(pcpa_alloc(0), 0);
	sigaction(SIGUSR1, &action, NULL);
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(i + 1)));
	clock_gettime(CLOCK_MONOTONIC, &t);
	until = (double)t.tv_sec + (double)t.tv_nsec / 1e9 + seconds(2);
	do {
		for (int i = 0; i < 8; i++)
			pthread_kill(threads[i], SIGUSR1);
		usleep(50);
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((double)t.tv_sec + (double)t.tv_nsec / 1e9 < until);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK(handled > 100);
	check_quiet();
}

static void signals(void **state)
{
	(void)state;
	/* high so small that most operations reach the zone */
	assert_int_equal(in_child(signals_child, SETTINGS("PCPALLOC_CPUS=4", "PCPALLOC_SIZE=512m",
							  "PCPALLOC_HIGH=4", "PCPALLOC_BATCH=2")),
			 0);
}

/* ---- threads that end ---- */

static void *short_life(void *unused)
{
	void *block = pcpa_alloc(0);

	(void)unused;
	pcpa_free(block, 0);
	return NULL;
}

static void *cancelled(void *unused)
{
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL);
	for (;;) {
		void *block = pcpa_alloc(4);

		pcpa_free(block, 4);
		pthread_testcancel();
	}
	return unused;
}

static void threads_child(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	for (int i = 0; i < 500; i++) {
		pthread_t t;

		CHECK(!pthread_create(&t, NULL, i % 2 ? short_life : cancelled, NULL));
		if (i % 2 == 0)
			pthread_cancel(t);
		pthread_join(t, NULL);
	}
	CHECK_AUDIT();
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.pages_in_use == 0);
}

static void threads_come_and_go(void **state)
{
	(void)state;
	assert_int_equal(in_child(threads_child, SETTINGS("PCPALLOC_SIZE=64m")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_cpus),
		cmocka_unit_test(many_cpus),
		cmocka_unit_test(short_of_memory),
		cmocka_unit_test(signals),
		cmocka_unit_test(threads_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
