/* SPDX-License-Identifier: MIT */
/* What the files of the reader share: segreader.c has the essay. */
#ifndef PCPTUNE_LIB_SEGREADER_PRIVATE_H
#define PCPTUNE_LIB_SEGREADER_PRIVATE_H

#include "lib/lines.h"
#include "lib/segreader.h"

#define LOAD(p)	    __atomic_load_n((p), __ATOMIC_RELAXED)
#define ACQUIRE(p)  __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

static const uint8_t list_orders[PCPTUNE_N_LISTS] = PCPTUNE_LIST_ORDERS;

/* How far the records of one CPU were read. */
struct record_state {
	int64_t at;    /* position at the end of the last one */
	uint32_t want; /* tag of the half that holds the next one */
	uint32_t last; /* ... that held the last one */
	uint32_t cut;  /* what we stored last */
	bool known;    /* all this is set */
	bool taken;    /* `at` and `last` are */
	bool unused;   /* the CPU was never used, up to the last cut */
	bool asked;    /* the cut is made, but its record was not read yet */
	bool broken;   /* something is missing before the next one */
};

/* What the word of a list said when its differences were last taken. */
struct list_before {
	uint64_t ops; /* folded to 64 bits */
	uint64_t net;
};

/*
 * What the words of a CPU said: what is asked of every CPU, with the lists that most programs use
 * in one line, and what only those need that went past their lists.
 */
struct cpu_before {
	uint64_t sum;
	uint64_t mark; /* mark_now() when the counters below were read */
	struct list_before list[PCPTUNE_N_LISTS];
	uint8_t state; /* enum cpu_state */
	uint8_t lists; /* those that were in use; never forgotten, whatever the target says */
} __attribute__((aligned(LINE_BYTES)));

struct counters_before {
#define PCPTUNE_ZCTR(field, unit, line, para) uint64_t field;
#define PCPTUNE_PCTR(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};

enum cpu_state {
	STATE_SHOWN = 1u << 0,	 /* the caller's entry holds deltas or flags of the last pass */
	STATE_FORCED = 1u << 1,	 /* look at it in full next time, whatever the sum says */
	STATE_REBASE = 1u << 2,	 /* ... and take no deltas then: the baseline is still missing */
	STATE_MOVES = 1u << 3,	 /* was active: its sum is not kept up, look at it in full */
	STATE_COUNTED = 1u << 4, /* plain counters of the caller's entry are not all 0 */
};

struct segreader {
	struct pcptune_seg_header h; /* checked copy */
	char *base;
	int fd; /* ours once all was checked, else -1 */
	size_t bytes;
	uint32_t n;			  /* zones x slots */
	bool first;			  /* nothing was sampled yet: count from zero */
	bool rebase;			  /* the next pass sets the baseline */
	bool all;			  /* this pass looks at every CPU and stores every field */
	const void *seen;		  /* entries of the last pass: others are filled in full */
	struct segreader *next;		  /* looked at after this one, NULL: not known */
	uint32_t n_fetched;		  /* CPUs whose lines are on their way */
	uint32_t fetched_lists;		  /* bits of the lists that some CPU uses */
	struct cpu_before *before;	  /* [n] */
	struct counters_before *counters; /* [n] */
	struct record_state *records;	  /* [n], from the first record on; else NULL */
};

/* ---- where things are; the compiler may rely on the alignment that was checked ---- */

static inline struct pcptune_seg_header *live_header(const struct segreader *sr)
{
	return (struct pcptune_seg_header *)(void *)sr->base;
}

static inline struct pcptune_cpu_block *cpu_block(const struct segreader *sr, uint32_t index)
{
	return (struct pcptune_cpu_block *)(void *)(sr->base + sr->h.cpus_off +
						    (uint64_t)index * sr->h.cpu_stride);
}

static inline const struct pcptune_zone_block *zone_block(const struct segreader *sr, uint32_t zone)
{
	return (const void *)(sr->base + sr->h.zones_off + (uint64_t)zone * sr->h.zone_stride);
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* What a stranger wrote, fit for a terminal: ends within n bytes, printable only. */
void segreader_printable(char *text, size_t n);

#endif
