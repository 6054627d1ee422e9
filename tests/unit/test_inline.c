/* SPDX-License-Identifier: MIT */
/*
 * pcpalloc_inline.h of another version than the library's: what a program that was compiled with an
 * older header finds in a newer library is a symbol with empty lists. It must go on by the
 * exported functions, with every count and every check in place.
 */
#include <setjmp.h>
#include <stdint.h>
#include "alloc_child.h"
#include <cmocka.h>

#define PCPA_LISTS pcpa_lists_0
#include <pcpalloc_inline.h>

#ifndef PCPA_INLINE_RING
#define PCPA_INLINE_RING 1
#endif
#define PLACES (1u << 16)

static struct {
	uint64_t line[8];
	char places[PCPA_INLINE_RING + PLACES * sizeof(void *)];
} empty;

extern struct pcpa_inline_lists pcpa_lists_0[PCPA_INLINE_ORDERS];
struct pcpa_inline_lists pcpa_lists_0[PCPA_INLINE_ORDERS];

__attribute__((constructor)) static void make_old_symbol(void)
{
	for (unsigned list = 0; list < PCPA_INLINE_ORDERS; list++)
		for (unsigned cpu = 0; cpu < PCPA_INLINE_CPUS; cpu++)
			pcpa_lists_0[list].of_cpu[cpu] = &empty;
}

#define KEPT 300

static unsigned n_errors;

static void count_errors(const struct pcpa_error *error, void *cookie)
{
	(void)error, (void)cookie;
	n_errors++;
}

static void other_version_child(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	uint64_t pages = 0;
	char *kept[KEPT];

	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < KEPT; i++) {
			kept[i] = pcpa_alloc_inline(i % 6);
			CHECK(kept[i]);
			kept[i][0] = 1;
			pages += 1u << i % 6;
		}
		for (unsigned i = 0; i < KEPT; i++)
			pcpa_free_inline(kept[i], i % 6);
	}
	CHECK(!pcpa_alloc_inline(PCPA_MAX_ORDER + 1));
	CHECK(!pcpa_get_stats(&s) && s.alloc_pages == pages && s.free_pages == pages);
	CHECK_AUDIT();
	/* a wrong order is seen in the zone at the latest */
	pcpa_set_error_callback(count_errors, NULL);
	kept[0] = pcpa_alloc_inline(1);
	pcpa_free_inline(kept[0], 0);
	pcpa_trim();
	CHECK(n_errors == 1);
	pcpa_free_inline(kept[0], 1);
	CHECK_AUDIT();
}

static void other_version(void **state)
{
	(void)state;
	assert_int_equal(in_child(other_version_child, SETTINGS("PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(other_version_child, SETTINGS("PCPALLOC_MODE=locked")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(other_version)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
