/* SPDX-License-Identifier: MIT */
/*
 * One sequence of calls, once on locked lists and once on lists served by sections: both drain by
 * the rule on frees of orders 1 to 3 as often, and take as many pages from the zone.
 *
 * Locked lists ask the rules at every call, so they are what is right. The other ones ask when they
 * are looked at, and have to be looked at when it matters. The sequences are what a kernel sees:
 * processes that fault in pages, with blocks of high orders among them, exit in one run of frees,
 * and leave blocks of slabs that are freed in short runs later.
 */
#include <setjmp.h>
#include <stdint.h>
#include "tests/unit/sections.h"
#include <sched.h>
#include <sys/mman.h>

#include <pcptune/rules.h>

#define PROCESSES 400
#define PAGES	  4096
#define BLOCKS	  64

/* What a child found, for its parent. */
static struct found {
	uint64_t high_frees, free_high, alloc_zone, alloc_pages;
} * found;

static uint64_t dice;

static uint32_t roll(uint32_t sides)
{
	dice = dice * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice >> 33) % sides;
}

static struct {
	void *page[PAGES];
	struct {
		void *at;
		unsigned order;
	} block[BLOCKS];
	uint32_t pages, blocks;
} has;

static void take_page(void)
{
	void *p = pcpa_alloc(0);

	CHECK(p && has.pages < PAGES);
	has.page[has.pages++] = p;
}

static void give_page(void)
{
	if (has.pages)
		pcpa_free(has.page[--has.pages], 0);
}

static void take_block(void)
{
	unsigned order = 1 + roll(3);
	void *p = pcpa_alloc(order);

	CHECK(p && has.blocks < BLOCKS);
	has.block[has.blocks].at = p;
	has.block[has.blocks++].order = order;
}

static void give_block(void)
{
	if (!has.blocks)
		return;
	has.blocks--;
	pcpa_free(has.block[has.blocks].at, has.block[has.blocks].order);
	found->high_frees++;
}

static void slab_burst(void)
{
	for (uint32_t n = roll(9); n; n--)
		give_page();
	for (uint32_t n = roll(8); n; n--)
		give_block();
}

static void process(void)
{
	for (uint32_t n = 20 + roll(roll(4) ? 400 : 3000); n; n--) {
		take_page();
		if (!roll(40) && has.blocks < BLOCKS)
			take_block();
		if (!roll(100))
			give_page();
	}
	if (!roll(3))
		slab_burst();
	while (has.pages)
		give_page();
	give_block();
	if (!roll(3))
		slab_burst();
}

static void processes(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_set_limits(367, 367, (unsigned)atoi(getenv("HIGH_MAX")), 63) == 0);
	dice = strtoul(getenv("SEED"), NULL, 10);
	for (uint32_t n = 0; n < PROCESSES; n++)
		process();
	CHECK(pcpa_get_stats(&s) == 0);
	found->free_high = s.free_high;
	found->alloc_zone = s.alloc_zone;
	found->alloc_pages = s.alloc_pages;
	CHECK_AUDIT();
}

static struct found run(const char *rules, const char *mode, unsigned seed)
{
	char text[4][64];
	uint32_t id = 0;

	assert_true(pcptune_rules_parse(rules, &id));
	snprintf(text[0], sizeof(text[0]), "PCPALLOC_RULES=%s", rules);
	snprintf(text[1], sizeof(text[1]), "PCPALLOC_MODE=%s", mode);
	snprintf(text[2], sizeof(text[2]), "SEED=%u", seed);
	snprintf(text[3], sizeof(text[3]), "HIGH_MAX=%u",
		 pcptune_rules_traits(id) & PCPTUNE_RT_TUNES ? 36800u : 367u);
	memset(found, 0, sizeof(*found));
	assert_int_equal(in_child(processes, SETTINGS(text[0], text[1], text[2], text[3],
						      "PCPALLOC_AGENT=0", "PCPALLOC_ZONES=1")),
			 0);
	return *found;
}

static bool near(uint64_t a, uint64_t b, unsigned permille)
{
	return (a > b ? a - b : b - a) * 1000 <= permille * a;
}

/*
 * Not to the last one: which of two frees on different lists came first, and how allocations fell
 * between frees, is not known when lists are looked at.
 */
static void same_drains(void **state)
{
	static const char *const rules[] = {"g3", "p1", "p3", "p5", "p10", "g4", "g5", "g6"};

	(void)state;
	need_sections();
	found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_true(found != MAP_FAILED);
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
		for (unsigned seed = 1; seed <= 3; seed++) {
			struct found l = run(rules[i], "locked", seed);
			struct found s = run(rules[i], "rseq", seed);

			if (!near(l.free_high, s.free_high, 70) ||
			    !near(l.alloc_zone, s.alloc_zone, 30))
				fail_msg("%s, seed %u: drains by high orders %lu, by sections %lu; "
					 "pages from the zone %lu, %lu",
					 rules[i], seed, (unsigned long)l.free_high,
					 (unsigned long)s.free_high, (unsigned long)l.alloc_zone,
					 (unsigned long)s.alloc_zone);
			assert_true(l.free_high > 50);
			assert_int_equal(l.high_frees, s.high_frees);
		}
	munmap(found, sizeof(*found));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(same_drains)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
