/* SPDX-License-Identifier: MIT */
/*
 * Locked lists by their short way (pcp_locked.h) and by the long one: what the words, the rules,
 * the counters and the tracker say after each step is the same, in every generation. And where the
 * short way is to be had, and where not.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>
#include <sys/mman.h>

#include "allocator/pcp_locked.h"
#include "allocator/track.h"
#include "tests/unit/random.h"
#include "tests/unit/sections.h"

#define STEPS 40000u
#define MOST  2500u

/* What a child says, for its parent: a digest after each step. */
static struct told {
	uint64_t digest[STEPS];
	uint32_t above, short_of_memory; /* steps in which lists were drained; zone.state was set */
} * told;

static struct pcptune_cpu_block *cpu(void)
{
	return pcpa_cpu_block(0, 0);
}

static void mix_in(uint64_t *digest, uint64_t v)
{
	*digest = (*digest ^ v) * UINT64_C(0x100000001b3);
	*digest ^= *digest >> 29;
}

static uint64_t digest_of(const struct pcptune_cpu_block *b)
{
	const struct pcptune_track *t = pcpa_track_of(b);
	const struct pcptune_pcp *p = &b->pcp;
	uint64_t d = 7;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		mix_in(&d, b->list[i].word);
		mix_in(&d, (uint64_t)b->list[i].tail);
	}
	mix_in(&d, (uint64_t)p->high << 32 | p->pages);
	mix_in(&d, (uint64_t)p->alloc_factor << 32 | p->free_count);
	mix_in(&d, (uint64_t)p->flags << 32 | p->lists);
	mix_in(&d, p->reserved[PCPA_PCP_STATE]);
	mix_in(&d, p->high_raised);
#define PCPTUNE_ZCTR(field, unit, line, para) mix_in(&d, strcmp(unit, "ns") ? b->zctr.field : 0);
#include <pcptune/counters.def>
	mix_in(&d, (uint64_t)t->x);
	mix_in(&d, (uint64_t)t->pushed);
	mix_in(&d, t->moved);
	return d;
}

static struct {
	void *at[MOST];
	uint8_t order[MOST];
	uint32_t n;
	bool up;
} has;

static void take(unsigned order)
{
	void *p = pcpa_alloc(order);

	if (!p || has.n == MOST) {
		has.up = false;
		if (p)
			pcpa_free(p, order);
		return;
	}
	has.order[has.n] = (uint8_t)order;
	has.at[has.n++] = p;
}

/* The newest, or any. */
static void give(uint64_t dice)
{
	uint32_t i = dice & 1 ? (uint32_t)(dice >> 8) % has.n : has.n - 1;

	pcpa_free(has.at[i], has.order[i]);
	has.n--;
	has.at[i] = has.at[has.n];
	has.order[i] = has.order[has.n];
}

static void step(uint64_t dice)
{
	static const uint8_t orders[16] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 9, 5};
	unsigned order = orders[dice >> 60];

	if (!(dice >> 20 & 255))
		has.up = dice >> 30 & 1;
	if (!has.n || (dice >> 40 & 7) < (has.up ? 6u : 2u))
		take(order > 3 && dice >> 50 & 7 ? 0 : order);
	else
		give(dice);
	if (!(dice >> 12 & 0xfff)) {
		pcpa_pcp_lock(cpu());
		pcpa_pcp_tick(&pcpa_heap.zones[0], cpu());
		pcpa_pcp_unlock(cpu());
	}
	if (!(dice >> 3 & 0x1fff))
		CHECK(!pcpa_set_limits(50 + (uint32_t)(dice >> 33) % 900, 0, 0, 0));
}

static void walk(void)
{
	uint64_t x = 99, drains = 0;

	CHECK(!pcpa_set_limits(200, 150, 600, 31));
	if (!getenv("SHORT"))
		pcpa_locked_show(false);
	CHECK(!getenv("SHORT") == !pcpa_locked.n_cpus);
	for (uint32_t i = 0; i < STEPS; i++) {
		/* the long way asks the rules themselves each time */
		if (!getenv("SHORT"))
			pcpa_words(cpu())->light.level = 0;
		step(random_next(&x));
		told->digest[i] = digest_of(cpu());
		told->above += cpu()->zctr.drains != drains;
		told->short_of_memory += pcpa_get(&pcpa_heap.zones[0].state) != 0;
		drains = cpu()->zctr.drains;
	}
	CHECK_AUDIT();
	while (has.n)
		give(0);
	CHECK_AUDIT();
}

static struct told *tell(const char *rules, const char *way)
{
	char setting[64];

	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(told, MAP_FAILED);
	snprintf(setting, sizeof(setting), "PCPALLOC_RULES=%s", rules);
	assert_int_equal(
		in_child(walk, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=24m", "PCPALLOC_AGENT=0",
					"PCPALLOC_IDLE_MS=0", setting, way)),
		0);
	return told;
}

static void both_ways_are_one(void **state)
{
	uint32_t above = 0, short_of_memory = 0;

	(void)state;
	for (uint32_t id = 0; id <= PCPTUNE_RULES_MAX; id++) {
		struct told *brief, *full;

		if (!pcptune_rules_known(id))
			continue;
		brief = tell(pcptune_rules_name(id), "SHORT=1");
		full = tell(pcptune_rules_name(id), "LONG=1");
		for (uint32_t i = 0; i < STEPS; i++)
			if (brief->digest[i] != full->digest[i])
				fail_msg("%s differs at step %u", pcptune_rules_name(id), i);
		above += full->above;
		short_of_memory += full->short_of_memory;
		munmap(brief, sizeof(*brief));
		munmap(full, sizeof(*full));
	}
	assert_true(above > 1000);
	assert_true(short_of_memory > 1000);
}

/* ---- where it is to be had ---- */

static void pairs(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	for (unsigned i = 0; i < 4000; i++)
		pcpa_free(pcpa_alloc(i % 4), i % 4);
	CHECK(!pcpa_get_stats(&s));
	CHECK(s.alloc_pages - s.free_pages == 0 && s.alloc_pages >= 15000 && !s.pages_in_use);
	CHECK_AUDIT();
}

static void at_hand_child(void)
{
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_locked.n_cpus == pcpa_heap.n_slots - 1);
	/* the first of virtual CPUs is asked for */
	CHECK(pcpa_locked_row());
}

/* No thread finds a CPU there. */
static void asked_child(void)
{
	static _Thread_local uint32_t none[2] = {UINT32_MAX, UINT32_MAX};

	CHECK(!pcpa_alloc(PCPA_MAX_ORDER + 1));
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_locked.n_cpus == pcpa_heap.n_slots - 1);
	pcpa_locked.offset = (char *)none - pcpa_area_thread();
	CHECK(!pcpa_locked_row() && pcpa_locked_ask());
	pairs();
	CHECK(!pcpa_heap.proc->shared_slot_calls);
}

static void not_with_sections_child(void)
{
	pairs();
	CHECK(by_rseq() && !pcpa_locked.n_cpus && !pcpa_locked_row() && !pcpa_locked_ask());
}

static void fork_child(void)
{
	int status;
	pid_t pid;

	pcpa_free(pcpa_alloc(0), 0);
	pid = fork();
	CHECK(pid >= 0);
	CHECK(pcpa_locked.n_cpus == pcpa_heap.n_slots - 1);
	if (!pid) {
		pairs();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void where(void **state)
{
	(void)state;
	assert_int_equal(in_child(at_hand_child, SETTINGS("PCPALLOC_CPUS=3", "PCPALLOC_AGENT=0")),
			 0);
	assert_int_equal(
		in_child(asked_child, SETTINGS("PCPALLOC_MODE=locked", "PCPALLOC_AGENT=0")), 0);
	assert_int_equal(in_child(fork_child, SETTINGS("PCPALLOC_MODE=locked", "PCPALLOC_AGENT=0")),
			 0);
	assert_int_equal(in_child(fork_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_AGENT=0")), 0);
}

static void not_with_sections(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(
		in_child(at_hand_child, SETTINGS("PCPALLOC_MODE=locked", "PCPALLOC_AGENT=0")), 0);
	assert_int_equal(in_child(at_hand_child, SETTINGS("PCPALLOC_CHECK=1", "PCPALLOC_AGENT=0")),
			 0);
	assert_int_equal(in_child(not_with_sections_child,
				  SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_AGENT=0")),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ways_are_one),
		cmocka_unit_test(where),
		cmocka_unit_test(not_with_sections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
