/* SPDX-License-Identifier: MIT */
/* Segments made by hand (test_segreader.h), opened by the reader. */
#ifndef TESTS_UNIT_SEGREADER_OPEN_H
#define TESTS_UNIT_SEGREADER_OPEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "lib/segreader.h"
#include "tests/unit/test_segreader.h"

#define NEEDED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static const struct segreader_limits limits = {.max_cpus = 256, .max_bytes = 64 << 20};

static inline struct segreader *opened(struct made *m)
{
	struct segreader *sr = NULL;
	char why[160] = "";
	int r;

	made_seal(m, NEEDED_SEALS);
	r = segreader_open(m->fd, &limits, &sr, why, sizeof(why));
	if (r)
		print_error("refused: %s\n", why);
	assert_int_equal(r, 0);
	return sr;
}

struct bench {
	struct made m;
	struct segreader *sr;
	struct pcptune_cpu *cpus;
	uint32_t active[64];
	uint32_t n_active;
};

/* An open segment and room for a sample. */
static inline struct bench bench_new(uint32_t zones, uint32_t cpus)
{
	struct bench b = {.m = made_new(zones, cpus)};

	b.sr = opened(&b.m);
	b.cpus = calloc((size_t)zones * cpus, sizeof(*b.cpus));
	assert_non_null(b.cpus);
	return b;
}

static inline void bench_free(struct bench *b)
{
	segreader_close(b->sr);
	made_free(&b->m, 0);
	free(b->cpus);
}

#endif
