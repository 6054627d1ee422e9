/* SPDX-License-Identifier: MIT */
/*
 * The slow paths of lists served by sections: what the rules are told of frees that nobody counted
 * one by one, where blocks of another zone go, what becomes of a CPU whose places were refused, and
 * of a thread that was on its way when sections were given up.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <pcptune/rules.h>

#include "allocator/pcp_private.h"
#include "allocator/rings.h"
#include "tests/unit/random.h"
#include "tests/unit/sections.h"

/* Nobody else's frees come in between, and the lists are those of one CPU. */
static void stay_here(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

static struct pcptune_cpu_block *lists(void)
{
	return pcpa_cpu_block(0, pcpa_cpu_slot());
}

static void *taken(unsigned order)
{
	void *block = pcpa_alloc(order);

	CHECK(block);
	return block;
}

/* ---- consecutive frees of high orders ---- */

#define PAGES  4000
#define BLOCKS 64

static void *page[PAGES], *block[BLOCKS];

static void take_all(void)
{
	for (int i = 0; i < PAGES; i++)
		page[i] = taken(0);
	for (int i = 0; i < BLOCKS; i++)
		block[i] = taken(1);
}

/* Long runs of pages that drain again and again, and between them now and then a block. */
static void single_blocks(void)
{
	int at = 0;

	for (int i = 0; i < BLOCKS / 2; i++) {
		for (int n = 0; n < PAGES / (BLOCKS / 2); n++)
			pcpa_free(page[at++], 0);
		pcpa_free(block[i], 1);
	}
}

/* The rest of them in a row: more than a batch. */
static void blocks_in_a_row(void)
{
	for (int i = BLOCKS / 2; i < BLOCKS; i++)
		pcpa_free(block[i], 1);
}

static uint64_t free_high(void)
{
	return lists()->zctr.free_high;
}

static void high_orders(bool single_ones_drain)
{
	stay_here();
	pcpa_free(taken(0), 0);
	CHECK(pcpa_by_sections(lists()));
	CHECK(pcpa_set_limits(400, 400, 400, 31) == 0);
	take_all();
	CHECK(free_high() == 0);
	single_blocks();
	CHECK((free_high() > 0) == single_ones_drain);
	blocks_in_a_row();
	CHECK(free_high() > 0);
	CHECK_AUDIT();
}

static void any_one_child(void)
{
	high_orders(true);
}

static void second_one_child(void)
{
	high_orders(false);
}

/* g3 drains when one is freed in a run, p1 and later when the one before was such a one, too. */
static void second_block_in_a_row(void **state)
{
	static const char *const rules[] = {"PCPALLOC_RULES=p1", "PCPALLOC_RULES=p3",
					    "PCPALLOC_RULES=p5"};

	(void)state;
	need_sections();
	assert_int_equal(in_child(any_one_child, SETTINGS("PCPALLOC_RULES=g3", "PCPALLOC_AGENT=0",
							  "PCPALLOC_MODE=rseq")),
			 0);
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
		assert_int_equal(in_child(second_one_child, SETTINGS(rules[i], "PCPALLOC_AGENT=0",
								     "PCPALLOC_MODE=rseq")),
				 0);
}

/* ---- orders that take turns just below `high` ---- */

#define HIGH   800
#define LIVE   256
#define SWINGS 4000

static struct {
	void *block;
	unsigned order;
} live[LIVE];

/* Whoever comes to a slow path that asks the rules also looks at what was counted. */
static bool asked(void)
{
	static uint64_t before;
	uint64_t seen = pcpa_words(lists())->seen;
	bool changed = seen != before;

	before = seen;
	return changed;
}

static void replace(uint64_t *seed)
{
	uint64_t n = random_next(seed) >> 32, i = n % LIVE;

	if (live[i].block)
		pcpa_free(live[i].block, live[i].order);
	live[i].order = (n >> 8) % 4;
	live[i].block = taken(live[i].order);
}

/* Blocks of four orders, each replaced by one of another: what lists hold wanders, all together. */
static void wandering_child(void)
{
	uint64_t seed = 1, questions = 0;

	stay_here();
	for (int i = 0; i < 50 * LIVE; i++)
		replace(&seed);
	CHECK(pcpa_by_sections(lists()));
	for (int i = 0; i < SWINGS; i++) {
		replace(&seed);
		questions += asked();
	}
	CHECK(questions < SWINGS / 20);
	CHECK_AUDIT();
}

/* One for eight and eight for one: each list grows when the other has its least. */
static bool swing(void)
{
	bool question;

	block[0] = taken(3);
	for (int i = 0; i < 8; i++)
		pcpa_free(page[i], 0);
	question = asked();
	for (int i = 0; i < 8; i++)
		page[i] = taken(0);
	pcpa_free(block[0], 3);
	return asked() || question;
}

static void brimful_child(void)
{
	int questions = 0, late = 0;

	stay_here();
	for (int i = 0; i < HIGH; i++)
		page[i] = taken(0);
	for (int i = 0; i < BLOCKS; i++)
		block[i] = taken(3);
	CHECK(pcpa_by_sections(lists()));
	while (pcpa_pcp_pages(lists()) > 64)
		taken(0);
	for (int i = 1; i < BLOCKS && pcpa_pcp_pages(lists()) < HIGH / 2; i++)
		pcpa_free(block[i], 3);
	for (int i = HIGH; --i > 8 && pcpa_pcp_pages(lists()) < HIGH - 11;)
		pcpa_free(page[i], 0);
	pcpa_free(block[0], 3);
	CHECK(pcpa_pcp_pages(lists()) == HIGH - 3);
	for (int i = 0; i < SWINGS; i++) {
		bool question = swing();

		questions += question;
		late += question && i >= SWINGS / 2;
	}
	/* it was there at all, and went */
	CHECK(questions > 10 && !late);
	CHECK(pcpa_pcp_pages(lists()) + 31 < HIGH);
	CHECK_AUDIT();
}

static void orders_in_turns(void **state)
{
	const char *const settings[] = {"PCPALLOC_MODE=rseq",
					"PCPALLOC_AGENT=0",
					"PCPALLOC_RULES=gx",
					"PCPALLOC_HIGH=800",
					"PCPALLOC_BATCH=31",
					"PCPALLOC_GRAIN=0",
					NULL};

	(void)state;
	need_sections();
	assert_int_equal(in_child(wandering_child, settings), 0);
	assert_int_equal(in_child(brimful_child, settings), 0);
}

/* ---- blocks of another zone ---- */

static int n_errors;

static void count_error(const struct pcpa_error *error, void *cookie)
{
	(void)error, (void)cookie;
	n_errors++;
}

/* A block of the zone that is not this CPU's: its own is used up. */
static void *foreign(unsigned order)
{
	const struct pcpa_zone *home = &pcpa_heap.zones[pcpa_heap.home[pcpa_cpu_slot()]];
	void *one;

	do
		one = taken(order);
	while (pcpa_zone_has(home, one));
	return one;
}

static void foreign_child(void)
{
	struct pcptune_cpu_block *b;
	uint32_t zone;
	void *one;

	stay_here();
	pcpa_free(taken(0), 0);
	CHECK(pcpa_heap.n_zones == 2 && pcpa_set_error_callback(count_error, NULL) == NULL);
	zone = !pcpa_heap.home[pcpa_cpu_slot()];
	b = pcpa_cpu_block(zone, pcpa_cpu_slot());
	for (unsigned order = 4; order-- > 0;) {
		uint64_t direct = b->zctr.free_direct, held;

		one = foreign(order);
		/* the first one makes the list ready */
		pcpa_free(foreign(order), order);
		held = pcpa_list_count(&b->list[order]);
		pcpa_free(one, order);
		CHECK(pcpa_list_count(&b->list[order]) == held + 1);
		CHECK(b->zctr.free_direct == direct);
		/* wrong ones are noticed as ever */
		pcpa_free((char *)one + 4096, order + 1);
		CHECK(n_errors == 4 - (int)order);
		CHECK_AUDIT();
	}
}

static void blocks_of_another_zone(void **state)
{
	(void)state;
	need_sections();
	/* with rules that do not drain at frees of high orders */
	assert_int_equal(in_child(foreign_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_AGENT=0",
							  "PCPALLOC_RULES=gx", "PCPALLOC_SIZE=32m",
							  "PCPALLOC_ZONES=2")),
			 0);
}

/* ---- places that are refused ---- */

static rlim_t mapped(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	return (rlim_t)pages * (rlim_t)getpagesize();
}

/* No more than `more` bytes of address space beyond what there is. */
static void allow(rlim_t more)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
	limit.rlim_cur = more == RLIM_INFINITY ? limit.rlim_max : mapped() + more;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* What `more` leaves room for. */
static rlim_t nothing(void)
{
	return 0;
}

static rlim_t rings_alone(void)
{
	rlim_t size = (rlim_t)getpagesize();

	/* and not a page to map a line a second time */
	return (PCPTUNE_N_LISTS * PCPA_RING_PART + size - 1) & ~(size - 1);
}

#define KEPT 500
static void *kept[KEPT];

/* Everything goes to the zone, and comes from there. */
static void without_places(void)
{
	const struct pcptune_cpu_block *b = lists();

	CHECK(!pcpa_pcp_ready(b));
	for (int i = 0; i < KEPT; i++)
		kept[i] = taken(0);
	for (unsigned order = 0; order < 4; order++)
		pcpa_free(taken(order), order);
	CHECK(pcpa_pcp_ready(b) && b->pcp.high_limit == 0 && b->pcp.high == 0);
	CHECK(b->zctr.alloc_direct >= KEPT && pcpa_pcp_pages(b) == 0);
}

/* Once a second it is asked for; who never does so runs into the alarm. */
static void frees_get_places(void)
{
	struct timespec rest = {0, 20000000};

	for (int i = 0; i < KEPT; i++) {
		pcpa_free(kept[i], 0);
		if (!lists()->list[0].limit)
			nanosleep(&rest, NULL);
	}
	CHECK(lists()->list[0].limit);
}

static void allocations_get_places(void)
{
	struct timespec rest = {0, 20000000};

	while (!lists()->list[0].limit) {
		/* no free is to do it */
		taken(0);
		nanosleep(&rest, NULL);
	}
	for (int i = 0; i < KEPT; i++)
		pcpa_free(kept[i], 0);
}

static void serves(void)
{
	const struct pcptune_cpu_block *b = lists();
	uint64_t direct = b->zctr.alloc_direct;

	for (unsigned i = 0; i < 1000; i++)
		pcpa_free(taken(i % 4), i % 4);
	CHECK(b->zctr.alloc_direct == direct && b->pcp.high_limit > 0);
	CHECK(b->pcp.high == 300 && pcpa_pcp_pages(b) > 0);
	CHECK_AUDIT();
}

static void refused(rlim_t (*more)(void), void (*again)(void))
{
	stay_here();
	/* the heap is there, and no list was used */
	pcpa_free(taken(4), 4);
	allow(more());
	without_places();
	/* nor a second later */
	sleep(1);
	pcpa_free(taken(0), 0);
	CHECK(lists()->list[0].limit == 0);
	CHECK_AUDIT();
	allow(RLIM_INFINITY);
	again();
	serves();
}

static void by_allocations(void)
{
	refused(nothing, allocations_get_places);
}

static void by_frees(void)
{
	refused(nothing, frees_get_places);
}

static void without_twins(void)
{
	refused(rings_alone, allocations_get_places);
	CHECK(pcpa_by_sections(lists()) && pcpa_rings_mapped(lists()));
}

static void places_come_later(void **state)
{
	(void)state;
#ifdef PCPA_SANITIZED
	skip(); /* address space is not what it seems */
#endif
	for (int i = 0; i < 2; i++) {
		const char *mode = i ? "PCPALLOC_MODE=locked" : "PCPALLOC_MODE=rseq";

		assert_int_equal(in_child(by_allocations,
					  SETTINGS(mode, "PCPALLOC_HIGH=300", "PCPALLOC_AGENT=0")),
				 0);
		assert_int_equal(
			in_child(by_frees, SETTINGS(mode, "PCPALLOC_HIGH=300", "PCPALLOC_AGENT=0")),
			0);
	}
}

/* Rings can be had, but a line can not be mapped in front of them. */
static void twins_come_later(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(without_twins, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_HIGH=300",
							  "PCPALLOC_AGENT=0")),
			 0);
}

/*
 * A thread that looked when lists were served by sections, and has their lock when they are not any
 * more, keeps its hands off them.
 */
static void late_child(void)
{
	struct pcpa_zone *z = &pcpa_heap.zones[0];
	void *one, *more[8];
	uint32_t slot, cpus;

	two_cpus();
	migrate(0);
	pcpa_free(pcpa_alloc(0), 0);
	slot = pcpa_cpu_slot();
	cpus = pcpa_fast.n_cpus;
	CHECK(cpus);
	forbid_fences();
	pcpa_trim();
	CHECK(!by_rseq());
	pcpa_free(pcpa_alloc(1), 1);
	CHECK(!pcpa_by_sections(pcpa_cpu_block(0, slot)));
	for (int i = 0; i < 100; i++) {
		/* as that thread saw it */
		pcpa_fast.n_cpus = cpus;
		one = pcpa_sections_alloc(z, slot, 0, 0);
		CHECK(one);
		pcpa_sections_free(z, slot, 0, 0, one);
		pcpa_sections_passed(0, NULL);
		pcpa_sections_passed(0, z);
		CHECK(pcpa_pcp_alloc_bulk(z, slot, 0, 8, more) == 8);
		pcpa_fast.n_cpus = 0;
		for (int k = 0; k < 8; k++)
			pcpa_free(more[k], 0);
		CHECK_AUDIT();
		pcpa_free(pcpa_alloc(0), 0);
		CHECK_AUDIT();
		pcpa_trim();
	}
}

static void late_for_sections(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(late_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_AGENT=0")),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(second_block_in_a_row),  cmocka_unit_test(orders_in_turns),
		cmocka_unit_test(blocks_of_another_zone), cmocka_unit_test(places_come_later),
		cmocka_unit_test(twins_come_later),	  cmocka_unit_test(late_for_sections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
