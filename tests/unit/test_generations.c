/* SPDX-License-Identifier: MIT */
/*
 * Every generation of the rules: exact counts on three small traces (tests/golden/trace-*.txt,
 * held against tests/golden/generations.txt), and the lists of the simulator against those of the
 * allocator, operation by operation, on random input.
 *
 * A trace is lines of `a LIST N` (take N blocks), `f LIST N` (free them), `t` (a tick), `z BITS`
 * (the state of the zone), `r N` ... `e` (the lines between, N times). Lists are those of
 * segment.h. Blocks of an order without a list go past the lists, and are not counted.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>

#include "allocator/pcp.h"
#include "eval/sim/lists.h"
#include "tests/unit/random.h"
#include "tests/unit/source.h"

#define MANAGED 262144u /* 1 GiB */

/* ---- golden ---- */

struct totals {
	uint64_t alloc_zone, free_zone, refills, drains, free_high;
};

static void add(struct totals *t, struct sim_drain d)
{
	t->free_zone += d.pages;
	t->drains += d.holds;
	t->free_high += d.free_high;
}

static struct sim_lists lists_of(uint32_t rules)
{
	struct pcptune_bounds b = pcptune_rules_bounds(rules, MANAGED, 2000, 2, 0, 0);
	struct sim_lists l = {.n = PCPTUNE_N_LISTS, .order = PCPTUNE_LIST_ORDERS};

	l.s = (struct pcptune_rule_state){.rules = rules,
					  .high = b.high,
					  .high_min = b.high_min,
					  .high_max = b.high_max,
					  .batch = b.batch,
					  .scale_max = PCPTUNE_SCALE_MAX_DEFAULT,
					  .flags = PCPTUNE_RF_FREE_HIGH_BATCH};
	return l;
}

static void take(struct sim_lists *l, struct totals *t, uint32_t list, uint32_t n)
{
	if (!pcptune_rules_has_list(l->s.rules, l->order[list]))
		return;
	while (n) {
		if (!l->count[list]) {
			t->alloc_zone += sim_lists_refill(l, list);
			t->refills++;
		}
		n -= sim_lists_take(l, list, n);
	}
}

/* By runs, or each for itself: the same. */
static void give(struct sim_lists *l, struct totals *t, uint32_t list, uint32_t n, bool runs)
{
	if (!pcptune_rules_has_list(l->s.rules, l->order[list]))
		return;
	while (n) {
		if (runs)
			n -= sim_lists_put_run(l, list, n);
		if (n) {
			add(t, sim_lists_put(l, list));
			n--;
		}
	}
}

/* Returns the place behind the lines that were done. */
static const char *play(const char *text, struct sim_lists *l, struct totals *t, bool runs)
{
	for (const char *next; *text && *text != 'e'; text = next) {
		char *end;
		uint32_t list = (uint32_t)strtoul(text + 1, &end, 10);
		uint32_t n = (uint32_t)strtoul(end, NULL, 10);

		next = strchr(text, '\n') + 1;
		if (*text == 'a')
			take(l, t, list, n);
		else if (*text == 'f')
			give(l, t, list, n, runs);
		else if (*text == 't')
			add(t, sim_lists_tick(l));
		else if (*text == 'z')
			l->zone_state = list;
		else if (*text == 'r')
			for (const char *from = next; list--;)
				next = play(from, l, t, runs);
		else if (*text != '#')
			fail_msg("a line of a trace that begins with %c", *text);
	}
	return *text ? strchr(text, '\n') + 1 : text;
}

static const char *const traces[] = {"trace-exit", "trace-flow", "trace-orders"};

static void one_row(FILE *out, uint32_t rules, const char *name)
{
	struct sim_lists l = lists_of(rules), k = l;
	struct totals t = {0}, singly = {0};
	char file[64], *text;

	snprintf(file, sizeof(file), "tests/golden/%s.txt", name);
	text = source_text(file);

	play(text, &l, &t, true);
	play(text, &k, &singly, false);
	assert_memory_equal(&t, &singly, sizeof(t));
	assert_memory_equal(&l, &k, sizeof(l));
	fprintf(out,
		"%s %s alloc_zone %llu refills %llu free_zone %llu drains %llu free_high %llu "
		"count %u high %u\n",
		name, pcptune_rules_name(rules), (unsigned long long)t.alloc_zone,
		(unsigned long long)t.refills, (unsigned long long)t.free_zone,
		(unsigned long long)t.drains, (unsigned long long)t.free_high, l.pages, l.s.high);
	free(text);
}

static void golden(void **state)
{
	char *now = NULL, *right;
	size_t n;
	FILE *out = open_memstream(&now, &n);

	(void)state;
	assert_non_null(out);
	for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++)
		for (uint32_t id = 0; id <= PCPTUNE_RULES_MAX; id++)
			if (pcptune_rules_known(id))
				one_row(out, id, traces[i]);
	fclose(out);
	right = golden_text("generations", now);
	assert_string_equal(now, right);
	free(right);
	free(now);
}

/* ---- the simulator's lists and the allocator's ---- */

#define STEPS 4000
#define HELD  16000u /* blocks of one order, at most */
#define ZONE  (&pcpa_heap.zones[0])

static void *held[PCPTUNE_N_LISTS][HELD];
static uint32_t n_held[PCPTUNE_N_LISTS];
static uint32_t wanted;

static uint32_t next_random(uint32_t n)
{
	static uint64_t x = 88172645463325252u;

	return (uint32_t)(random_next(&x) % n);
}

static void same(const struct sim_lists *l, const struct totals *t)
{
	const struct pcptune_cpu_block *b = pcpa_cpu_block(0, 0);

	CHECK(b->pcp.rules == l->s.rules);
	CHECK(b->zctr.alloc_zone == t->alloc_zone && b->zctr.refills == t->refills);
	CHECK(b->zctr.free_zone == t->free_zone && b->zctr.drains == t->drains);
	CHECK(b->zctr.free_high == t->free_high);
	CHECK(b->pcp.high == l->s.high && b->pcp.free_count == l->s.free_count);
	CHECK(b->pcp.alloc_factor == l->s.alloc_factor && b->pcp.flags == l->s.flags);
	CHECK(pcpa_pcp_pages(b) == l->pages);
}

/* A run of one kind on one list: short and long ones, in and out. */
static void random_step(struct sim_lists *l, struct totals *t)
{
	static const uint32_t lengths[] = {1, 3, 40, 400, 4000};
	uint32_t list = next_random(10) < 6 ? 0 : next_random(PCPTUNE_N_LISTS);
	uint32_t order = l->order[list], n = 1 + next_random(lengths[next_random(order ? 2 : 5)]);

	if (!pcptune_rules_has_list(wanted, order))
		return;
	if (next_random(2)) {
		n = pcptune_min_u32(n, (order == 9 ? 8 : HELD >> order) - n_held[list]);
		for (uint32_t i = 0; i < n; i++)
			CHECK(held[list][n_held[list]++] = pcpa_alloc(order));
		take(l, t, list, n);
	} else {
		n = pcptune_min_u32(n, n_held[list]);
		for (uint32_t i = 0; i < n; i++)
			pcpa_free(held[list][--n_held[list]], order);
		give(l, t, list, n, true);
	}
}

static void equal_child(void)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(0, 0);
	struct sim_lists l = {.n = PCPTUNE_N_LISTS, .order = PCPTUNE_LIST_ORDERS};
	struct totals t = {0};

	pcpa_free(pcpa_alloc(10), 10); /* sets the heap up; past the lists */
	b = pcpa_cpu_block(0, 0);
	pcpa_pcp_lock(b);
	pcpa_pcp_set(ZONE, b, 0, 0, 0, 0);
	pcpa_pcp_unlock(b);
	l.s = (struct pcptune_rule_state){.rules = b->pcp.rules,
					  .high = b->pcp.high,
					  .high_min = b->pcp.high_min,
					  .high_max = b->pcp.high_max,
					  .batch = b->pcp.batch,
					  .scale_max = b->pcp.scale_max,
					  .flags = b->pcp.flags};
	CHECK(l.s.rules == wanted && l.s.batch == 63);
	t.alloc_zone = b->zctr.alloc_zone;
	t.free_zone = b->zctr.free_zone;
	for (int i = 0; i < STEPS; i++) {
		if (next_random(100)) {
			random_step(&l, &t);
		} else {
			pcpa_pcp_lock(b);
			pcpa_pcp_tick(ZONE, b);
			pcpa_pcp_unlock(b);
			add(&t, sim_lists_tick(&l));
		}
		same(&l, &t);
	}
	CHECK(t.refills > 10 && t.drains > 5);
	CHECK_AUDIT();
}

/* The child once for each generation, with these settings; says: what it is if one fails. */
static void each_generation(void (*child)(void), const char *cpus, const char *says)
{
	char rules[64];

	for (wanted = 0; wanted <= PCPTUNE_RULES_MAX; wanted++) {
		if (!pcptune_rules_known(wanted))
			continue;
		snprintf(rules, sizeof(rules), "PCPALLOC_RULES=%s", pcptune_rules_name(wanted));
		if (in_child(child, SETTINGS("PCPALLOC_SIZE=1g", "PCPALLOC_AGENT=0",
					     "PCPALLOC_IDLE_MS=0", rules, cpus)))
			fail_msg("%s: %s", rules, says);
	}
}

/* In the mode that asks the rules at every call; sections ask them at slow paths alone. */
static void allocator_does_the_same(void **state)
{
	(void)state;
	each_generation(equal_child, "PCPALLOC_CPUS=1", "the allocator and the model differ");
}

/* With sections: all is there afterwards, and the same calls cost refills and drains. */
static void sections_child(void)
{
	struct sim_lists l = {.n = PCPTUNE_N_LISTS, .order = PCPTUNE_LIST_ORDERS};
	struct totals t = {0};
	uint64_t refills = 0, drains = 0;

	l.s.rules = PCPTUNE_RULES_G0;
	for (int i = 0; i < STEPS; i++)
		random_step(&l, &t);
	for (uint32_t i = 0; i < pcpa_heap.n_slots; i++) {
		struct pcptune_cpu_block *b = pcpa_cpu_block(0, i);

		CHECK(!pcpa_pcp_ready(b) || b->pcp.rules == wanted);
		refills += b->zctr.refills;
		drains += b->zctr.drains;
		if (pcpa_pcp_ready(b)) {
			pcpa_pcp_lock(b);
			pcpa_pcp_tick(ZONE, b);
			pcpa_pcp_unlock(b);
			CHECK(b->pcp.high <= b->pcp.high_max);
		}
	}
	CHECK(refills > 5 && refills + drains > 10);
	CHECK_AUDIT();
}

static void each_runs_on_real_cpus(void **state)
{
	(void)state;
	each_generation(sections_child, NULL, "not sound on real CPUs");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),
		cmocka_unit_test(allocator_does_the_same),
		cmocka_unit_test(each_runs_on_real_cpus),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
