/* SPDX-License-Identifier: MIT */
/*
 * Our side of malloc as part of a test: its files are compiled in, without malloc being replaced,
 * and what they would get from it is said here.
 */
#ifndef TESTS_PRELOAD_PARTS_H
#define TESTS_PRELOAD_PARTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "allocator/preload_fast.h"
#include "allocator/preload_next.c"
#include "allocator/preload_zone.c"

void *(*const preload_our_malloc)(size_t) = malloc;
void (*const preload_our_free)(void *) = free;

static inline uint64_t in_use(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	assert_int_equal(pcpa_get_stats(&s), 0);
	return s.pages_in_use;
}

/* Pages that a request of n pages gets. */
static inline size_t given(size_t n)
{
	static const size_t small[] = {0, 1, 2, 4, 4, 8, 8, 8, 8};

	return n < 9 ? small[n] : n;
}

static inline void read_settings(const char *min, const char *max)
{
	preload_zone_forget();
	unsetenv("PCPALLOC_MIN_SIZE");
	unsetenv("PCPALLOC_MAX_SIZE");
	if (min)
		setenv("PCPALLOC_MIN_SIZE", min, 1);
	if (max)
		setenv("PCPALLOC_MAX_SIZE", max, 1);
	preload_zone_setup();
}

#endif
