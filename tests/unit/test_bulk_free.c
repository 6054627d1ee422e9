/* SPDX-License-Identifier: MIT */
/*
 * The ways in which a drain hands its blocks to the zone: the same operations leave the same
 * counters, the same lists and the same zone, to the page, whichever is chosen; and each notices
 * wrong blocks.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <sched.h>
#include <sys/mman.h>

#include <pcptune/settings.h>

#include "allocator/bulk_free.h"
#include "allocator/pcp.h"
#include "tests/unit/random.h"

#define OPERATIONS 60000
#define MOST_OUT   6000u

/* What a child leaves behind, in memory that is shared with its parent. */
struct outcome {
	uint64_t drains, refills, alloc_zone, free_zone, alloc_direct, free_direct, free_high;
	uint64_t free_pages, grown, on_lists, in_depot;
	uint64_t lists; /* of the addresses on them, in their order */
	uint64_t tags;	/* of all pages */
	uint32_t sections, bad;
	enum pcpa_bulk_free way;
};

static struct outcome *outcome;
static uint64_t seed;
static unsigned most_order;

static uint32_t rnd(uint32_t n)
{
	return (uint32_t)(random_next(&seed) % n);
}

static uint64_t mix(uint64_t sum, uint64_t v)
{
	return (sum ^ v) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
}

static void fill_in(void)
{
	struct pcpa_zone *z = &pcpa_heap.zones[0];
	const struct pcptune_cpu_block *b = pcpa_cpu_block(0, pcpa_cpu_slot());
	const struct pcptune_zctr *c = &b->zctr;

	*outcome = (struct outcome){.drains = c->drains,
				    .refills = c->refills,
				    .alloc_zone = c->alloc_zone,
				    .free_zone = c->free_zone,
				    .alloc_direct = c->alloc_direct,
				    .free_direct = c->free_direct,
				    .free_high = c->free_high,
				    .free_pages = z->free_pages,
				    .grown = z->grown,
				    .on_lists = pcpa_pcp_pages(b),
				    .sections = pcpa_by_sections(b),
				    .bad = z->n_bad + (uint32_t)pcpa_heap.proc->bad_frees,
				    .way = pcpa_heap.bulk_free};
	CHECK(!pcpa_depot_check(z, &outcome->in_depot));
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		outcome->lists = mix(outcome->lists, b->list[i].word ^ (uint64_t)b->list[i].tail);
	for (uint32_t pfn = 0; pfn < z->grown; pfn++)
		outcome->tags = mix(outcome->tags, pcpa_tag_get(z, pfn));
}

/* Bursts that overflow the lists, of one order or of several, and blocks that stay. */
static void work(void)
{
	static struct {
		void *block;
		unsigned order;
	} out[MOST_OUT];
	uint32_t n = 0;

	seed = 99;
	for (int i = 0; i < OPERATIONS; i++) {
		bool more = rnd(100) < (i / 3000 % 2 ? 70 : 30);
		unsigned order = rnd(4) || !most_order ? 0 : rnd(20) ? 1 + rnd(most_order) : 9;
		uint32_t k = n ? n - 1 - rnd(n < 40 ? n : 40) : 0;

		if (more && n < MOST_OUT) {
			out[n].block = pcpa_alloc(order);
			CHECK(out[n].block);
			out[n++].order = order;
		} else if (n) {
			pcpa_free(out[k].block, out[k].order);
			out[k] = out[--n];
		}
	}
	CHECK_AUDIT();
	fill_in();
	while (n--)
		pcpa_free(out[n].block, out[n].order);
	CHECK_AUDIT();
	outcome->drains += pcpa_cpu_block(0, pcpa_cpu_slot())->zctr.drains;
}

/*
 * In each way. Lists by sections count a free in a row twice when a signal or another thread comes
 * in between, and the scaled rules look at that number: so they get rules that do not.
 */
static void compare(void (*f)(void), const char *rules, const char *high, const char *locked)
{
	struct outcome first = {0};
	char setting[64];

	pinned = f;
	for (unsigned way = 0; way < PCPA_BULK_FREES; way++) {
		snprintf(setting, sizeof(setting), "PCPALLOC_BULK_FREE=%s",
			 pcpa_bulk_frees[way].name);
		assert_int_equal(
			in_child(pinned_child,
				 SETTINGS("PCPALLOC_SIZE=256m", "PCPALLOC_AGENT=0",
					  "PCPALLOC_IDLE_MS=0", rules, high, locked, setting)),
			0);
		assert_int_equal(outcome->way, way);
		outcome->way = 0;
		if (!way)
			first = *outcome;
		assert_true(outcome->drains > 100);
		assert_memory_equal(&first, outcome, sizeof(first));
	}
}

static void locked_lists(void **state)
{
	(void)state;
	most_order = 3;
	compare(work, "PCPALLOC_RULES=g4", "PCPALLOC_HIGH=200", "PCPALLOC_CPUS=1");
	compare(work, "PCPALLOC_RULES=gx", "PCPALLOC_HIGH=1000", "PCPALLOC_CPUS=1");
	compare(work, "PCPALLOC_RULES=gx", "PCPALLOC_BATCH=1000", "PCPALLOC_CPUS=1");
	most_order = 0;
	compare(work, "PCPALLOC_RULES=g0", "PCPALLOC_HIGH=64", "PCPALLOC_CPUS=1");
	compare(work, "PCPALLOC_RULES=g1", "PCPALLOC_HIGH=500", "PCPALLOC_CPUS=1");
	assert_false(outcome->sections);
}

/* Where the system has no sections these are locked ones once more. */
static void lists_by_sections(void **state)
{
	(void)state;
	most_order = 0;
	compare(work, "PCPALLOC_RULES=g0", "PCPALLOC_HIGH=64", "PCPALLOC_MODE=rseq");
	compare(work, "PCPALLOC_RULES=g1", "PCPALLOC_HIGH=1000", "PCPALLOC_MODE=rseq");
}

/* Freed twice while it was on a list: its second copy reaches the zone with the next drain. */
static void twice_child(void)
{
	static void *blocks[2000];
	void *twice;

	for (int i = 0; i < 2000; i++)
		blocks[i] = pcpa_alloc(0);
	twice = blocks[500];
	if (pcpa_by_sections(pcpa_cpu_block(0, pcpa_cpu_slot())))
		blocks[501] = twice;
	for (int i = 0; i < 2000; i++)
		pcpa_free(blocks[i], 0);
	pcpa_trim();
	fill_in();
	outcome->drains += 1000;
}

static void wrong_blocks(void **state)
{
	(void)state;
	compare(twice_child, "PCPALLOC_RULES=g0", "PCPALLOC_HIGH=64", "PCPALLOC_MODE=rseq");
	assert_int_equal(outcome->bad, outcome->sections);
}

static uint64_t parsed(const char *text)
{
	return pcptune_setting_or(PCPTUNE_SET_BULK_FREE, text, PCPA_BULK_FREE_DEFAULT);
}

static void names(void **state)
{
	(void)state;
	for (unsigned way = 0; way < PCPA_BULK_FREES; way++) {
		const struct pcpa_bulk_free_row *row = &pcpa_bulk_frees[way];

		assert_true(row->year >= 2018 && row->year <= 2022 && *row->idea);
		assert_int_equal(parsed(row->name), way);
	}
	assert_int_equal(parsed(NULL), PCPA_BULK_FREE_DEFAULT);
	assert_int_equal(parsed("one-pass"), PCPA_BULK_FREE_DEFAULT);
	assert_int_equal(parsed(""), PCPA_BULK_FREE_DEFAULT);
}

static int set_up(void **state)
{
	(void)state;
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	return outcome == MAP_FAILED;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(locked_lists),
		cmocka_unit_test(lists_by_sections),
		cmocka_unit_test(wrong_blocks),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
