/* SPDX-License-Identifier: MIT */
/*
 * The reader on the segment of the real allocator: what the writer makes is taken, and the sum of
 * all samples, taken while threads work, satisfies both invariants to the page once they are quiet.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <pcpalloc.h>
#include "allocator/heap.h"
#include "lib/segreader.h"

#define THREADS 8
#define KEPT	200

static bool stop;

static void *work(void *arg)
{
	uint64_t x = (uint64_t)(uintptr_t)arg;
	static _Thread_local void *kept[KEPT];
	static _Thread_local unsigned orders[KEPT];

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		size_t slot;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		slot = (size_t)(x >> 33) % KEPT;
		if (kept[slot]) {
			pcpa_free(kept[slot], orders[slot]);
			kept[slot] = NULL;
		} else {
			orders[slot] = (x >> 20 & 15) ? (x >> 60) & 3 : 5; /* 5: no list */
			kept[slot] = pcpa_alloc(orders[slot]);
		}
	}
	return NULL; /* what is kept stays in use: the invariants are not of zeros */
}

struct sums {
	struct pcptune_cpu *cpus; /* the entries of the passes */
	uint32_t *active;
	uint32_t n;
	uint64_t alloc, freed, alloc_zone, free_zone, refills, unknown, held;
};

static void add_pass(struct segreader *sr, struct sums *s)
{
	segreader_sample(sr, s->cpus, s->active);
	s->held = 0;
	for (uint32_t i = 0; i < s->n; i++) {
		const struct pcptune_cpu *c = &s->cpus[i];

		s->alloc += c->alloc_pages;
		s->freed += c->free_pages;
		s->alloc_zone += c->alloc_zone;
		s->free_zone += c->free_zone;
		s->refills += c->refills;
		s->unknown += !!(c->flags & PCPTUNE_CPU_UNKNOWN);
		s->held += c->count;
	}
}

static struct segreader *open_own(void)
{
	const struct segreader_limits limits = {.max_cpus = PCPTUNE_MAX_CPUS};
	struct segreader *sr = NULL;
	char why[160] = "";
	int fd = dup(pcpa_segment_fd());

	assert_true(fd >= 0);
	if (segreader_open(fd, &limits, &sr, why, sizeof(why)))
		fail_msg("%s", why);
	return sr;
}

static void check_description(struct segreader *sr)
{
	static const char *const names[] = {
#define ROW(field, unit, line, para) #field,
#define PCPTUNE_LIST		     ROW
#define PCPTUNE_ZCTR		     ROW
#define PCPTUNE_PCTR		     ROW
#define PCPTUNE_GAUGE		     ROW
#define PCPTUNE_ZGAUGE		     ROW
#define PCPTUNE_HOLD		     ROW
#define PCPTUNE_PROC		     ROW
#include <pcptune/counters.def>
#undef ROW
	};
	struct pcptune_desc d;

	for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
		bool found = false;

		for (uint32_t i = 0; segreader_desc(sr, i, &d) && !found; i++)
			found = !strcmp(d.name, names[k]);
		if (!found)
			fail_msg("the segment does not describe %s", names[k]);
	}
}

static void test_invariants(void **state)
{
	struct pcpa_stats stats = {.size = sizeof(stats)};
	struct segreader_info info;
	struct pcptune_shape shape = {.size = 0};
	struct sums s = {.n = 0};
	pthread_t threads[THREADS];
	struct segreader *sr;
	void *first = pcpa_alloc(0);

	(void)state;
	assert_non_null(first);
	sr = open_own();
	segreader_info(sr, &info);
	assert_int_equal(info.pid, getpid());
	assert_int_equal(segreader_mode(sr), pcpa_heap.header->mode);
	segreader_shape(sr, &shape);
	assert_true(shape.managed_pages > 0 && shape.high_limit < PCPTUNE_MAX_HIGH);
	check_description(sr);
	s.n = info.n_zones * info.n_cpus;
	s.cpus = calloc(s.n, sizeof(*s.cpus));
	s.active = calloc(s.n, sizeof(*s.active));
	assert_true(s.cpus && s.active);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
	for (int i = 0; i < 1000; i++) {
		struct timespec ms = {.tv_nsec = 1000000};

		add_pass(sr, &s);
		nanosleep(&ms, NULL);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pcpa_trim(); /* the agent has nothing left to do, so nothing moves between the looks below
		      */
	add_pass(sr, &s);
	assert_int_equal(pcpa_get_stats(&stats), 0);
	assert_int_equal(s.unknown, 0);
	assert_true(s.alloc > 10000 && s.refills > 10 && stats.pages_in_use > 1);
	assert_int_equal(s.alloc, stats.alloc_pages);
	assert_int_equal(s.freed, stats.free_pages);
	assert_int_equal(s.alloc - s.freed, stats.pages_in_use);
	assert_int_equal(s.alloc_zone - s.free_zone, stats.pages_in_use + s.held);
	free(s.cpus);
	free(s.active);
	segreader_close(sr);
	pcpa_free(first, 0);
}

/* Control words that the reader writes arrive, also on a CPU that does not call. */
static void test_control_arrives(void **state)
{
	struct segreader *sr = open_own();
	const struct control c = {.high = 777,
				  .high_min = 100,
				  .high_max = 2000,
				  .batch = 31,
				  .scale_max = 3,
				  .rules = 4,
				  .decision = 5};
	struct control back;
	struct pcptune_cpu now = {.high = 0};
	struct timespec ms = {.tv_nsec = 1000000};
	uint32_t index = UINT32_MAX, seq = 0, ack = 0, seq_now;
	struct segreader_info info;

	(void)state;
	segreader_info(sr, &info);
	for (uint32_t i = 0; i < info.n_zones * info.n_cpus && index == UINT32_MAX; i++) {
		segreader_cpu_total(sr, i, &now);
		if (now.high)
			index = i;
	}
	assert_true(index != UINT32_MAX);
	segreader_lease(sr, UINT64_MAX);
	segreader_control_write(sr, index, &c, &seq);
	segreader_wake(sr);
	for (int i = 0; i < 5000 && ack != seq; i++) {
		nanosleep(&ms, NULL);
		segreader_control_read(sr, index, &back, &seq_now, &ack);
	}
	assert_int_equal(ack, seq);
	assert_int_equal(seq_now, seq);
	segreader_cpu_total(sr, index, &now);
	assert_int_equal(now.high, 777);
	assert_int_equal(now.high_min, 100);
	assert_int_equal(now.high_max, 2000);
	assert_int_equal(now.batch, 31);
	assert_int_equal(now.scale_max, 3);
	assert_true(now.controls_adopted >= 1);
	segreader_close(sr);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_invariants),
		cmocka_unit_test(test_control_arrives),
	};

	/* no daemon may meet us; before the allocator looks */
	setenv("PCPTUNE_SOCKET", "/nonexistent/pcptune", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
