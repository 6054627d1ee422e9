/* SPDX-License-Identifier: MIT */
/*
 * What both sides of the codec know: fields and their predictions, and what is kept from sample to
 * sample. codec.c has the format. At the end what the codec's tests need and nobody else.
 */
#ifndef PCPTUNE_LIB_CODEC_PRIVATE_H
#define PCPTUNE_LIB_CODEC_PRIVATE_H

#include "lib/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODEC_VERSION 2u
#define CODEC_OLDEST  1u

/* ---- fields: flags, count, gauges, then counters, each with its bit ---- */

enum field {
	F_hold_raw, /* no value: some time of holding is not a multiple of 64 */
	F_flags,
	F_count,
#define PCPTUNE_GAUGE(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_LIST(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_ZCTR(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_PCTR(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
	N_FIELDS,
};
_Static_assert(N_FIELDS <= 64, "one bit each in a bitmap of 64");

#define PCPTUNE_LIST(field, unit, line, para) +1
_Static_assert(0
#include <pcptune/counters.def>
		       == 2,
	       "face_residues() names the counters of the lists");

enum group { G_LIST, G_ZCTR, G_PCTR, G_GAUGE, N_GROUPS };

static const uint8_t group_sizes[N_GROUPS] = {
#define PCPTUNE_LIST(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_ZCTR(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_PCTR(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_GAUGE(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
};

/* What stays from sample to sample; flags, count and gauges as they lie in struct pcptune_cpu. */
struct face {
	uint32_t flags, count;
#define PCPTUNE_GAUGE(field, unit, line, para) uint32_t field;
#include <pcptune/counters.def>
};
_Static_assert(offsetof(struct pcptune_cpu, count) == offsetof(struct pcptune_cpu, flags) + 4 &&
		       offsetof(struct pcptune_cpu, high) ==
			       offsetof(struct pcptune_cpu, flags) + 8,
	       "a face can be compared in one go");

#define FACE(cpu) ((const struct face *)(const void *)&(cpu)->flags)

/* Flags that no record means: the caller's own stay, ours are gone. */
#define REST(flags) \
	((flags) & ~(uint32_t)(PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_UNKNOWN | PCPTUNE_CPU_LISTS_ONLY))

/*
 * What counters.def lets expect of a counter, given others that are coded as they are (all modulo
 * 2^64). Exact for fixed batches; close enough to save a byte for others.
 */
#define EXPECT_free_pages(c)	   ((c)->alloc_pages)
#define EXPECT_alloc_zone(c)	   ((c)->refills * (c)->batch + (c)->alloc_direct)
#define EXPECT_free_zone(c)	   ((c)->drains * (c)->batch + (c)->free_direct)
#define EXPECT_lock_alloc_taken(c) ((c)->refills + (c)->alloc_direct)
#define EXPECT_lock_free_taken(c)  ((c)->drains + (c)->free_direct)

/* ---- what both sides keep ---- */

struct last {
	struct face face; /* at rest */
	uint64_t mask;	  /* bitmap of the last record in this chunk, 0: none */
};

struct clocks {
	uint64_t seq, time_us, dt_us, cpu_us, mem_available;
};

enum presence {
	P_SEQ = 1u << 0,
	P_TIME = 1u << 1,
	P_DT = 1u << 2,
	P_CPU_US = 1u << 3,
	P_RECORDS = 1u << 4,
	P_MEM = 1u << 5,
	P_FLAGS = 1u << 6,
	P_LONG_HOLDS = 1u << 7,
	P_ALL = (1u << 8) - 1,
};

enum mask_code {
	MASK_SAME = 0, /* as the last one of this CPU, else of the record before */
	MASK_ONE = 1,  /* one bit differs: its number follows */
	MASK_TWO = 2,  /* two bits differ */
	MASK_FULL = 3, /* the bitmap follows */
};

static inline struct face rest_face(const struct face *f)
{
	struct face r = *f;

	r.flags = REST(r.flags);
	return r;
}

/*
 * Did the CPU go past its lists? Most do not in most intervals, and then all counters from
 * alloc_zone on are 0, and so is what is left of them: one pass of `or` saves all else.
 */
static inline bool beyond_lists(const struct pcptune_cpu *c)
{
	uint64_t any = 0;

	if (c->flags & PCPTUNE_CPU_LISTS_ONLY)
		return false;
#define PCPTUNE_ZCTR(field, unit, line, para) any |= c->field;
#define PCPTUNE_PCTR(field, unit, line, para) any |= c->field;
#include <pcptune/counters.def>
	return any;
}

/* n x size bytes of zeros, at least one, for free(); NULL: no memory. */
void *codec_zeroed(size_t n, size_t size);

/*
 * Every allocation of the codec goes through fn from now on; NULL: realloc(3) again. fn follows
 * realloc's contract. Not for use while other threads code.
 */
void codec_set_realloc(void *(*fn)(void *, size_t));

#endif
