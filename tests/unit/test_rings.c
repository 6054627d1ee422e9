/* SPDX-License-Identifier: MIT */
/*
 * The rings of lists that sections serve, and the line's twin in front of each: a list longer than
 * its ring, descriptors closed by the program, a second CPU, a child. Both ways to take and to give
 * a block take turns, the exported functions and those without a call.
 */
#include <sys/wait.h>

#include <pcptune/rules.h>

#include <pcpalloc_inline.h>

#include "allocator/rings.h"
#include "tests/unit/sections.h"

static void once(void)
{
	pcpa_free_inline(pcpa_alloc(0), 0);
}

/* A list is one, by whichever of its addresses it is looked at. */
static void check_twins(const struct pcptune_cpu_block *b)
{
	CHECK(pcpa_rings_mapped(b));
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		const struct pcptune_list *l = &b->list[i], *twin = pcpa_twin(l);

		CHECK(l != twin && !memcmp(l, twin, sizeof(*l)));
		CHECK(l->private_ring == (uintptr_t)twin + PCPA_INLINE_RING);
		CHECK(i == 0 || (uintptr_t)twin - (uintptr_t)pcpa_twin(l - 1) == PCPA_TWIN_STRIDE);
	}
}

/* More blocks than a list may hold, and the head goes all around the ring. */
static void long_list_child(void)
{
	const size_t n = PCPA_RING_PLACES + 1000;
	const struct pcptune_cpu_block *b;
	uint32_t longest = 0;
	void **kept = malloc(n * sizeof(*kept));

	two_cpus();
	migrate(0);
	once();
	CHECK(kept && by_rseq());
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < n; i++)
			CHECK((kept[i] = i & 1 ? pcpa_alloc_inline(0) : pcpa_alloc(0)));
		for (size_t i = 0; i < n; i += 2) {
			pcpa_free_inline(kept[i], 0);
			pcpa_free(kept[i + 1], 0);
		}
		b = pcpa_cpu_block(0, pcpa_cpu_slot());
		longest = pcptune_max_u32(longest, (uint32_t)pcpa_pcp_pages(b));
		CHECK_AUDIT();
	}
	CHECK(b->pcp.high_limit == PCPA_RING_ROOM && b->pcp.high == PCPA_RING_ROOM);
	CHECK(longest > PCPA_RING_ROOM / 2 && longest <= PCPA_RING_ROOM);
	CHECK(b->pcp.batch == PCPTUNE_MAX_BATCH);
	check_twins(b);
	free(kept);
}

static void long_lists(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(
		in_child(long_list_child,
			 SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=4g", "PCPALLOC_HIGH=1000000",
				  "PCPALLOC_BATCH=1024", "PCPALLOC_AGENT=0")),
		0);
}

/* Descriptors closed, then a second CPU comes into use, then a child: each has rings of its own. */
static void twin_child(void)
{
	struct pcptune_cpu_block *b;
	uint64_t word;
	int status;
	pid_t pid;

	two_cpus();
	migrate(0);
	once();
	for (int fd = 3; fd < 2000; fd++)
		close(fd);
	migrate(1);
	once();
	b = pcpa_cpu_block(0, pcpa_cpu_slot());
	check_twins(b);
	word = b->list[0].word;
	pid = fork();
	if (!pid) {
		CHECK(by_rseq() && pcpa_alloc(0) && b->list[0].word != word);
		check_twins(b);
		CHECK_AUDIT();
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(b->list[0].word == word);
	check_twins(b);
	CHECK_AUDIT();
}

static void twins(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(twin_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_AGENT=0")),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_lists),
		cmocka_unit_test(twins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
