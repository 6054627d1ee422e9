/* SPDX-License-Identifier: MIT */
/*
 * Blocks that are freed twice where the two frees meet: below a signal handler, where the first one
 * was put off; in two threads of which each looked before the other one was done. Each such free is
 * told once, and afterwards every page is where it belongs.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <pthread.h>

#include "allocator/deferred.h"
#include "allocator/pcp.h"

#define ROUNDS 4000u

static const char *const *const modes[] = {
	SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_AGENT=0"),
	SETTINGS("PCPALLOC_MODE=locked", "PCPALLOC_AGENT=0"),
	SETTINGS("PCPALLOC_CHECK=1", "PCPALLOC_AGENT=0"),
};
#define N_MODES (sizeof(modes) / sizeof(*modes))

static unsigned reports;

static void count_report(const struct pcpa_error *error, void *cookie)
{
	(void)cookie;
	CHECK(error->size == sizeof(*error) && error->address);
	__atomic_add_fetch(&reports, 1, __ATOMIC_RELAXED);
}

static void begin(void)
{
	reports = 0;
	pcpa_set_error_callback(count_report, NULL);
	alarm(40);
}

static void all_is_back(unsigned told)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	pcpa_trim();
	CHECK_AUDIT();
	CHECK(!pcpa_get_stats(&s));
	CHECK(s.pages_in_use == 0 && s.pages_on_lists == 0 && s.alloc_zone == s.free_zone);
	CHECK(reports == told);
}

static void in_each_mode(void (*child)(void))
{
	for (size_t i = 0; i < N_MODES; i++)
		assert_int_equal(in_child(child, modes[i]), 0);
}

/* ---- below a handler ---- */

static void enter_handler(void)
{
	pcpa_in_zone++;
}

static void leave_handler(void)
{
	if (!--pcpa_in_zone)
		pcpa_deferred_flush();
}

static void put_off_child(void)
{
	void *block = pcpa_alloc(5), *row = pcpa_alloc_exact(100000, 0);

	begin();
	enter_handler();
	pcpa_free(block, 5);
	pcpa_free(block, 5);
	pcpa_free_exact(row, 100000);
	pcpa_free_exact(row, 100000);
	CHECK(reports == 2);
	CHECK_AUDIT();
	leave_handler();
	all_is_back(2);
	pcpa_free(block, 5);
	CHECK(reports == 3);
}

/* A free that was put off, and then is made by somebody who has no need to. */
static void put_off_elsewhere_child(void)
{
	void *block = pcpa_alloc(5), *row = pcpa_alloc_exact(100000, 0);

	begin();
	enter_handler();
	pcpa_free(block, 5);
	pcpa_free_exact(row, 100000);
	pcpa_in_zone--;
	pcpa_free_exact(row, 100000);
	pcpa_free(block, 5);
	CHECK(reports == 2);
	pcpa_deferred_flush();
	all_is_back(2);
}

static void below_a_handler(void **state)
{
	(void)state;
	in_each_mode(put_off_child);
	in_each_mode(put_off_elsewhere_child);
}

/* What was freed is written to: nothing of ours may lie there. */
static void written_child(void)
{
	char *block[8];

	begin();
	for (int i = 0; i < 8; i++)
		CHECK((block[i] = pcpa_alloc(4)));
	enter_handler();
	for (int i = 0; i < 8; i++) {
		pcpa_free(block[i], 4);
		memset(block[i], 0x55, 4096);
	}
	leave_handler();
	all_is_back(0);
}

static void written_after_it_was_put_off(void **state)
{
	(void)state;
	in_each_mode(written_child);
}

/* ---- after both have looked ---- */

/* What comes after the look, twice. */
static void row_child(void)
{
	const size_t bytes = 100000, pages = (bytes + 4095) / 4096;
	char *row = pcpa_alloc_exact(bytes, 0);
	struct pcpa_zone *z = pcpa_heap_zone_of(row);
	uint32_t pfn = pcpa_page_number(z, row), slot = pcpa_cpu_slot();

	begin();
	pcpa_pcp_free_row(z, slot, pfn, (uint32_t)pages);
	pcpa_pcp_free_row(z, slot, pfn, (uint32_t)pages);
	CHECK(reports == 1);
	CHECK_AUDIT();
	pcpa_pcp_give(z, slot, pfn, 0, pages);
	all_is_back(2);
}

static void rows_after_the_look(void **state)
{
	(void)state;
	in_each_mode(row_child);
}

/* Onto the lists of two CPUs; it leaves by the one, and is on top of the other. */
static void lists_child(void)
{
	for (unsigned order = 0; order <= 3; order++) {
		void *block = pcpa_alloc(order);
		struct pcpa_zone *z = pcpa_heap_zone_of(block);
		struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, 0);

		begin();
		CHECK(pcpa_heap.n_slots >= 2 && z);
		pcpa_pcp_free(z, 0, order, block);
		pcpa_pcp_free(z, 1, order, block);
		pcpa_pcp_lock(b);
		pcpa_pcp_drain(z, b, 0, pcpa_pcp_pages(b), PCPA_DRAIN_FULL, PCPA_PATH_FREE);
		pcpa_pcp_unlock(b);
		block = pcpa_pcp_alloc(z, 1, order);
		CHECK(block && reports == 1);
		CHECK_AUDIT();
		pcpa_free(block, order);
		all_is_back(1);
	}
}

/*
 * Onto the list of one CPU when that of the other has drained it to the zone: what is free there
 * stays as it is, and the late one leaves that list unseen.
 */
static void late_child(void)
{
	static const unsigned orders[] = {0, 1, 2, 3, 9};

	for (size_t i = 0; i < 2 * sizeof(orders) / sizeof(*orders); i++) {
		unsigned order = orders[i / 2];
		void *block = pcpa_alloc(order), *next;
		struct pcpa_zone *z = pcpa_heap_zone_of(block);
		struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, 0);
		uint64_t in_use, listed;

		begin();
		pcpa_pcp_free(z, 0, order, block);
		pcpa_pcp_lock(b);
		pcpa_pcp_drain(z, b, 0, pcpa_pcp_pages(b), PCPA_DRAIN_FULL, PCPA_PATH_FREE);
		pcpa_pcp_unlock(b);
		/* every other time: all the way to its buddies */
		if (i % 2)
			pcpa_trim();
		pcpa_pcp_free(z, 1, order, block);
		CHECK(!pcpa_zone_check(z, &in_use, &listed));
		/* off that list: by a pop, or by a drain */
		next = i % 2 ? pcpa_pcp_alloc(z, 1, order) : NULL;
		pcpa_free(next, order);
		all_is_back(1);
	}
}

static void lists_after_the_look(void **state)
{
	(void)state;
	for (size_t i = 1; i < N_MODES; i++) {
		assert_int_equal(in_child(lists_child, modes[i]), 0);
		assert_int_equal(in_child(late_child, modes[i]), 0);
	}
}

/* ---- in two threads at once ---- */

static size_t size;
static void *cell;
static unsigned turn, freed;

static void wait_until(const unsigned *word, unsigned value)
{
	for (unsigned n = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; n++)
		if (n % 4096 == 0)
			sched_yield();
}

static void *free_as_well(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= ROUNDS; i++) {
		wait_until(&turn, i);
		pcpa_free_exact(cell, size);
		__atomic_store_n(&freed, i, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void meet_child(void)
{
	pthread_t thread;

	begin();
	turn = freed = 0;
	CHECK(!pthread_create(&thread, NULL, free_as_well, NULL));
	for (unsigned i = 1; i <= ROUNDS; i++) {
		CHECK((cell = pcpa_alloc_exact(size, 0)));
		__atomic_store_n(&turn, i, __ATOMIC_RELEASE);
		pcpa_free_exact(cell, size);
		wait_until(&freed, i);
		/* of those that are noticed all at once not all are told with their address */
		if (i % 200 == 0)
			pcpa_trim();
	}
	pthread_join(thread, NULL);
	all_is_back(ROUNDS);
}

static void meet(const size_t *sizes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size = sizes[i];
		in_each_mode(meet_child);
	}
}

static void lists_in_two_threads(void **state)
{
	static const size_t sizes[] = {4096, 8192, 32768, (size_t)2 << 20};

	(void)state;
	meet(sizes, sizeof(sizes) / sizeof(*sizes));
}

static void rows_in_two_threads(void **state)
{
	static const size_t sizes[] = {65536, 100000, 1000000, (size_t)4 << 20};

	(void)state;
	meet(sizes, sizeof(sizes) / sizeof(*sizes));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(below_a_handler),
		cmocka_unit_test(written_after_it_was_put_off),
		cmocka_unit_test(rows_after_the_look),
		cmocka_unit_test(lists_after_the_look),
		cmocka_unit_test(lists_in_two_threads),
		cmocka_unit_test(rows_in_two_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
