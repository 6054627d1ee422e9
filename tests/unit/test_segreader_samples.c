/* SPDX-License-Identifier: MIT */
/*
 * Samples of the segment reader, from segments made by hand: the arithmetic of list words, rest and
 * activity, counters that wrap or lie, and a target at work meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include <pcptune/rules.h>
#include "tests/unit/segreader_open.h"

static void pass(struct bench *b)
{
	b->n_active = segreader_sample(b->sr, b->cpus, b->active);
}

static uint64_t any_delta(const struct pcptune_cpu *c)
{
	uint64_t any = 0;

#define PCPTUNE_LIST(field, unit, line, para) any |= c->field;
#define PCPTUNE_ZCTR(field, unit, line, para) any |= c->field;
#define PCPTUNE_PCTR(field, unit, line, para) any |= c->field;
#include <pcptune/counters.def>
	return any;
}

static void test_sample_deltas(void **state)
{
	struct bench b = bench_new(2, 3);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 4);

	(void)state;
	memset(b.cpus, 0, 6 * sizeof(*b.cpus));
	pass(&b);
	assert_int_equal(b.n_active, 0);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(b.cpus[i].zone, i / 3);
		assert_int_equal(b.cpus[i].cpu, i % 3);
		assert_int_equal(b.cpus[i].flags, 0);
	}
	b.cpus[4].flags = PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD;
	made_refill(&c->list[0], 63);
	made_add(c->zctr.alloc_zone, 63 + 3 * 512);
	made_add(c->zctr.refills, 2);
	for (int i = 0; i < 10; i++)
		made_pop(&c->list[0]);
	made_push(&c->list[0]);
	made_refill(&c->list[4], 3);
	made_pop(&c->list[4]);
	made_push(&c->list[3]);
	made_add(c->zctr.alloc_direct, 16);
	made_add(c->zctr.free_direct, 32);
	made_hold(c);
	c->pcp.high = 378;
	c->pcp.batch = 63;
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.active[0], 4);
	assert_int_equal(b.cpus[4].flags,
			 PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD | PCPTUNE_CPU_ACTIVE);
	assert_int_equal(b.cpus[4].alloc_pages, 10 + 512 + 16);
	assert_int_equal(b.cpus[4].free_pages, 1 + 8 + 32);
	assert_int_equal(b.cpus[4].count, 63 - 10 + 1 + 8 + 2 * 512);
	assert_int_equal(b.cpus[4].alloc_zone, 63 + 3 * 512);
	assert_int_equal(b.cpus[4].refills, 2);
	assert_int_equal(b.cpus[4].high, 378);
	assert_int_equal(b.cpus[4].batch, 63);
	pass(&b); /* at rest: no deltas, gauges stay, the caller's flags stay */
	assert_int_equal(b.n_active, 0);
	assert_int_equal(any_delta(&b.cpus[4]), 0);
	assert_int_equal(b.cpus[4].flags, PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD);
	assert_int_equal(b.cpus[4].high, 378);
	assert_int_equal(b.cpus[4].count, 63 - 10 + 1 + 8 + 2 * 512);
	bench_free(&b);
}

/* A tail, or one gauge, that moves alone is seen, though nothing is "active" then. */
static void test_sample_gauges_at_rest(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);

	(void)state;
	made_refill(&c->list[0], 100);
	made_refill(&c->list[1], 100);
	pass(&b);
	assert_int_equal(b.cpus[1].count, 300);
	made_drain(&c->list[0], 10);
	made_refill(&c->list[1], 10); /* the plain sum of the tails stays the same */
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[1].count, 310);
#define PCPTUNE_GAUGE(field, unit, line, para) \
	c->pcp.field++;                        \
	pass(&b);                              \
	assert_int_equal(b.n_active, 0);       \
	assert_int_equal(b.cpus[1].field, 1);  \
	assert_int_equal(b.cpus[1].flags, 0);
#include <pcptune/counters.def>
	bench_free(&b);
}

/* Every counter by itself makes the CPU active, and comes out as itself alone. */
static void test_sample_each_counter(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	uint64_t step = 1;

	(void)state;
	pass(&b);
#define EACH(block, field)                                                        \
	made_add(c->block.field, ++step);                                         \
	made_hold(c);                                                             \
	pass(&b);                                                                 \
	assert_int_equal(b.n_active, 1);                                          \
	assert_int_equal(b.active[0], 1);                                         \
	assert_int_equal(b.cpus[1].field, step);                                  \
	b.cpus[1].field = 0;                                                      \
	assert_true(any_delta(&b.cpus[1]) == 0 || any_delta(&b.cpus[1]) == step); \
	pass(&b);                                                                 \
	assert_int_equal(b.n_active, 0);                                          \
	assert_int_equal(any_delta(&b.cpus[1]), 0);
#define PCPTUNE_ZCTR(field, unit, line, para) EACH(zctr, field)
#define PCPTUNE_PCTR(field, unit, line, para) EACH(pcp, field)
#include <pcptune/counters.def>
	bench_free(&b);
}

/* What one step of the next test did to a CPU. */
struct moved {
	uint64_t allocs, frees, refills, waited, raised;
	bool gauge;
};

static struct moved move_somehow(struct pcptune_cpu_block *c, unsigned how)
{
	struct moved m = {0};

	if (how & 1) {
		made_push(&c->list[0]);
		made_push(&c->list[2]);
		m.frees = 1 + 4;
	}
	if (how & 2) {
		made_pop(&c->list[0]);
		m.allocs = 1;
	}
	if (how & 4) {
		made_add(c->zctr.refills, 3);
		made_add(c->zctr.lock_alloc_wait_ns, 1000);
		made_hold(c);
		m.refills = 3;
		m.waited = 1000;
	}
	if (how & 8) {
		made_add(c->pcp.high_raised, 1);
		m.raised = 1;
	}
	if (how & 16) {
		c->pcp.free_count ^= 1; /* to and fro: back is a change as well */
		m.gauge = true;
	}
	return m;
}

/*
 * Every step from one kind of interval (rest, lists alone, counters alone, both, a gauge) to every
 * other, and over one in between: none sees what an earlier one left in the entry.
 */
static void test_all_ways_of_moving(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	uint32_t free_count = 0;

	(void)state;
	pass(&b);
	for (unsigned n = 0; n < 32 * 32 * 32; n++) {
		const unsigned hows[] = {n % 32, n / 32 % 32, n / 1024};

		for (unsigned k = 0; k < 3; k++) {
			struct moved m = move_somehow(c, hows[k]);
			const struct pcptune_cpu *e = &b.cpus[1];
			uint64_t all = m.allocs | m.frees | m.refills | m.waited | m.raised;
			bool lists_only = all && !(m.refills | m.waited | m.raised);

			pass(&b);
			free_count ^= m.gauge;
			assert_int_equal(b.n_active, all != 0);
			assert_int_equal(e->flags,
					 (all ? PCPTUNE_CPU_ACTIVE : 0) |
						 (lists_only ? PCPTUNE_CPU_LISTS_ONLY : 0));
			assert_int_equal(e->alloc_pages, m.allocs);
			assert_int_equal(e->free_pages, m.frees);
			assert_int_equal(e->refills, m.refills);
			assert_int_equal(e->lock_alloc_wait_ns, m.waited);
			assert_int_equal(e->high_raised, m.raised);
			assert_int_equal(any_delta(e), all);
			assert_int_equal(e->free_count, free_count);
		}
	}
	bench_free(&b);
}

/*
 * A pass in the midst of a hold: what it counts comes with its end, all of it, and nothing is lost.
 */
static void test_a_hold_in_two_passes(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);

	(void)state;
	pass(&b);
	for (int works = 0; works < 2; works++) {
		for (int i = 0; i < 3; i++) {
			made_push(&c->list[0]);
			pass(&b);
		}
		made_push(&c->list[0]);
		made_add(c->zctr.lock_alloc_taken, 1);
		pass(&b);
		assert_int_equal(b.cpus[1].flags, PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_LISTS_ONLY);
		assert_int_equal(b.cpus[1].lock_alloc_taken, 0);
		if (works)
			made_push(&c->list[0]);
		made_add(c->zctr.refills, 1);
		made_hold(c);
		pass(&b);
		assert_int_equal(b.cpus[1].flags, PCPTUNE_CPU_ACTIVE);
		assert_int_equal(b.cpus[1].lock_alloc_taken, 1);
		assert_int_equal(b.cpus[1].refills, 1);
		pass(&b);
		assert_int_equal(any_delta(&b.cpus[1]), 0);
	}
	bench_free(&b);
}

/* Lists are looked at from when their bit is set, and for ever: a target can not unsay it. */
static void test_lists_in_use(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
	c->pcp.lists = 1;
	pass(&b);
	made_refill(&c->list[2], 3);
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[0].count, 0);
	c->pcp.lists = 1 | 4 | 1u << 31;
	made_pop(&c->list[2]);
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	assert_int_equal(b.cpus[0].count, 8);
	c->pcp.lists = 0;
	made_pop(&c->list[2]);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	assert_int_equal(b.cpus[0].count, 4);
	pass(&b);
	pass(&b);
	made_pop(&c->list[2]); /* from rest, too */
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	bench_free(&b);
}

static void test_first_pass_and_rebase(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);
	struct pcptune_cpu total;

	(void)state;
	made_refill(&c->list[0], 5);
	made_pop(&c->list[0]);
	c->zctr.lock_alloc_hold_ns = UINT64_C(1) << 50; /* an old target may have this in total */
	pass(&b);
	assert_int_equal(b.n_active, 1); /* counts from zero */
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	assert_true(b.cpus[0].lock_alloc_hold_ns == UINT64_C(1) << 50);
	made_pop(&c->list[0]);
	segreader_rebase(b.sr);
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(any_delta(&b.cpus[0]), 0);
	assert_int_equal(b.cpus[0].flags, 0);
	assert_int_equal(b.cpus[0].count, 3);
	made_pop(&c->list[0]);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	segreader_cpu_total(b.sr, 0, &total);
	assert_int_equal(total.alloc_pages, 3);
	assert_int_equal(total.count, 2);
	assert_int_equal(total.flags, 0);
	bench_free(&b);
}

/* Other entries than last time are filled in full, not left to what they held. */
static void test_other_entries(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu other[2];

	(void)state;
	made_cpu(&b.m, 1)->pcp.high = 9;
	pass(&b);
	memset(other, 0, sizeof(other));
	segreader_sample(b.sr, other, b.active);
	assert_int_equal(other[1].cpu, 1);
	assert_int_equal(other[1].high, 9);
	bench_free(&b);
}

static void test_forked(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
	c->list[0].tail = -40; /* 40 blocks inherited, no operation yet */
	c->list[4].tail = -1;
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[0].count, 40 + 512);
	made_pop(&c->list[0]);
	made_drain(&c->list[0], 30);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	assert_int_equal(b.cpus[0].free_pages, 0);
	assert_int_equal(b.cpus[0].count, 9 + 512);
	bench_free(&b);
}

/* The operation count wraps at 2^40, the net position passes 2^24 and goes below zero. */
static void test_wraps(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_list *l = &made_cpu(&b.m, 0)->list[0];
	struct pcptune_cpu total;
	const uint64_t almost = (UINT64_C(1) << 40) - 3;

	(void)state;
	/* net 1 after an odd number of operations, one block held */
	l->word = (almost << 24) + 1;
	l->tail = 0;
	pass(&b);
	assert_true(b.cpus[0].free_pages == (almost + 1) / 2);
	for (int i = 0; i < 7; i++)
		made_push(l);
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.cpus[0].alloc_pages, 0);
	assert_int_equal(b.cpus[0].free_pages, 7);
	assert_int_equal(b.cpus[0].count, 8);
	segreader_cpu_total(b.sr, 0, &total);
	assert_true(total.free_pages == (almost + 1) / 2 + 7);
	assert_true(total.alloc_pages == (almost - 1) / 2);
	/* far down: 20 million allocations refilled in chunks */
	for (int i = 0; i < 4; i++) {
		uint64_t pops = 5000000;

		l->tail -= 5000000;
		l->word += pops * PCPTUNE_WORD_POP;
		pass(&b);
		assert_int_equal(b.cpus[0].alloc_pages, pops);
		assert_int_equal(b.cpus[0].free_pages, 0);
		assert_int_equal(b.cpus[0].count, 8);
	}
	bench_free(&b);
}

static void assert_unknown_once(struct bench *b, uint32_t i)
{
	pass(b);
	assert_int_equal(b->n_active, 0);
	assert_int_equal(b->cpus[i].flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(any_delta(&b->cpus[i]), 0);
	pass(b);
	assert_int_equal(b->n_active, 0);
	assert_int_equal(b->cpus[i].flags, 0);
}

static void test_hostile_counters(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	struct pcptune_cpu total;

	(void)state;
	made_add(c->zctr.refills, 100);
	pass(&b);
	c->zctr.refills = 99; /* backwards */
	made_hold(c);
	assert_unknown_once(&b, 1);
	made_add(c->zctr.refills, 1); /* based anew on 99 */
	made_hold(c);
	pass(&b);
	assert_int_equal(b.cpus[1].refills, 1);
	c->zctr.alloc_zone = (UINT64_C(1) << 40) + 1;
	made_hold(c);
	assert_unknown_once(&b, 1);
	c->zctr.lock_free_wait_ns = (UINT64_C(1) << 48) + 1;
	made_hold(c);
	assert_unknown_once(&b, 1);
	c->pcp.high_raised = UINT64_MAX;
	assert_unknown_once(&b, 1);
	c->list[2].word -= PCPTUNE_WORD_PUSH; /* operations backwards: 2^40 - 1 of them */
	assert_unknown_once(&b, 1);
	c->list[2].tail += 1 << 24; /* 2^24 frees without an operation */
	assert_unknown_once(&b, 1);
	c->list[0].word += 1; /* half an operation */
	assert_unknown_once(&b, 1);
	c->list[0].tail = INT64_MIN;
	assert_unknown_once(&b, 1);
	segreader_cpu_total(b.sr, 1, &total);
	assert_int_equal(total.flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(any_delta(&total), 0);
	bench_free(&b);
}

/* Policies shift by scale_max and multiply by high: nothing beyond the ranges gets through. */
static void test_hostile_gauges(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
#define PCPTUNE_GAUGE(field, unit, line, para) c->pcp.field = UINT32_MAX;
#include <pcptune/counters.def>
	for (uint32_t i = 0; i < PCPTUNE_N_LISTS; i++)
		c->list[i].tail = -(INT64_C(1) << 24) + 1;
	pass(&b);
	assert_int_equal(b.cpus[0].high, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].high_min, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].high_max, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].batch, PCPTUNE_MAX_BATCH);
	assert_int_equal(b.cpus[0].scale_max, PCPTUNE_MAX_SCALE);
	assert_int_equal(b.cpus[0].rules, PCPTUNE_RULES_MAX);
	assert_int_equal(b.cpus[0].alloc_factor, 16);
	assert_int_equal(b.cpus[0].free_count, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].count, 2 * PCPTUNE_MAX_HIGH);
	bench_free(&b);
}

/* ---- a target at work ---- */

struct worker {
	struct pcptune_cpu_block *c;
	uint64_t rounds, allocs, frees;
	bool stop;
};

/* One writer per CPU, as the lists' lock gives it; tail moves often, to provoke torn pairs. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct pcptune_list *l = &w->c->list[1];

	while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
		made_refill(l, 8);
		made_add(w->c->zctr.alloc_zone, 16);
		made_hold(w->c);
		for (int i = 0; i < 8; i++)
			made_pop(l);
		for (int i = 0; i < 8; i++)
			made_push(l);
		made_drain(l, 8);
		made_add(w->c->zctr.free_zone, 16);
		made_hold(w->c);
		w->rounds++;
	}
	return NULL;
}

static void sample_for(struct bench *b, struct pcptune_cpu *sum, int ms)
{
	struct timespec t;
	uint64_t end;

	clock_gettime(CLOCK_MONOTONIC, &t);
	end = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + (uint64_t)ms;
	do {
		pass(b);
		for (uint32_t i = 0; i < 2; i++) {
			/* never UNKNOWN by arithmetic: a torn pair is the only cause */
			sum[i].alloc_pages += b->cpus[i].alloc_pages;
			sum[i].free_pages += b->cpus[i].free_pages;
			sum[i].alloc_zone += b->cpus[i].alloc_zone;
			assert_true(b->cpus[i].alloc_pages < UINT64_C(1) << 32);
			assert_true(b->cpus[i].count <= 16);
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 < end);
}

static void test_concurrent(void **state)
{
	struct bench b = bench_new(1, 2);
	struct worker w[2] = {{.c = made_cpu(&b.m, 0)}, {.c = made_cpu(&b.m, 1)}};
	struct pcptune_cpu sum[2] = {{.zone = 0}};
	pthread_t threads[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
	sample_for(&b, sum, 1500);
	for (int i = 0; i < 2; i++) {
		__atomic_store_n(&w[i].stop, true, __ATOMIC_RELAXED);
		pthread_join(threads[i], NULL);
	}
	sample_for(&b, sum, 0);
	for (int i = 0; i < 2; i++) {
		assert_true(w[i].rounds > 0);
		assert_int_equal(sum[i].alloc_pages, w[i].rounds * 16);
		assert_int_equal(sum[i].free_pages, w[i].rounds * 16);
		assert_int_equal(sum[i].alloc_zone, w[i].rounds * 16);
	}
	bench_free(&b);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample_deltas),
		cmocka_unit_test(test_sample_gauges_at_rest),
		cmocka_unit_test(test_sample_each_counter),
		cmocka_unit_test(test_all_ways_of_moving),
		cmocka_unit_test(test_a_hold_in_two_passes),
		cmocka_unit_test(test_lists_in_use),
		cmocka_unit_test(test_first_pass_and_rebase),
		cmocka_unit_test(test_other_entries),
		cmocka_unit_test(test_forked),
		cmocka_unit_test(test_wraps),
		cmocka_unit_test(test_hostile_counters),
		cmocka_unit_test(test_hostile_gauges),
		cmocka_unit_test(test_concurrent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
