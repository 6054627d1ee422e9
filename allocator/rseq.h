/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences: the lists of a CPU without an atomic instruction.
 *
 * A section is a short run of instructions that ends in one store. When the kernel takes the CPU
 * away from the thread in the midst of it, or delivers a signal, it sends the thread to the abort
 * handler instead of letting it go on. So of all threads that use the lists of one CPU, each from
 * that CPU, one at a time is between the first load and the store, and the store alone commits.
 *
 * A section finds its list in a table (struct pcpa_lists) by the CPU id, both
 * read inside of it. Who wants the lists of a CPU from elsewhere takes pcp.lock, puts an idle list
 * in their places, which is always empty and always full, and calls pcpa_rseq_fence(): after it,
 * what was inside a section is sent to its abort handler, and what enters finds the idle list. So
 * nothing in the list itself has to say that it is stopped.
 *
 * Nor does a pop ask how many blocks there are: the place below the lowest one is NULL. A push
 * compares its place with `bound`. The words of a list:
 *
 *   word      sections of the CPU; pcp.lock held and the sections stopped
 *   places    below the tail: whoever holds pcp.lock. A refill may fill them while sections run,
 *             the highest last. To take blocks away from the tail one place becomes NULL, by a
 *             section that finds `word` as it was when that place was chosen
 *   tail      whoever holds pcp.lock
 *   bound     whoever holds pcp.lock, by a section as above: it is never below the head
 *   mark      pops: the word after it. How many pushes followed the last pop tells the rules how
 *             many frees there were in a row
 *
 * `reserved` of a list is the mask of its ring here, and in its upper half the bits that are 0 in
 * the number of a page at which a block of the list begins. Other words of a CPU lie in its sixth
 * list. Sections find a list by its twin (rings.h).
 */
#ifndef PCPA_RSEQ_H
#define PCPA_RSEQ_H

#include <pcpalloc_inline.h>
#include <pcptune/rules.h>

#include "allocator/area.h"
#include "allocator/heap.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
	__has_feature(memory_sanitizer)
#define PCPA_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PCPA_SANITIZED 1
#endif

/* Outputs of `asm goto` came with gcc 11 and clang 12. */
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#if !defined(PCPA_SANITIZED) && !defined(PCPA_NO_RSEQ)
#if (defined(__x86_64__) && !defined(__ILP32__)) || (defined(__aarch64__) && !defined(__ILP32__))
#define PCPA_RSEQ 1
#endif
#endif
#endif

/*
 * The sixth list of a CPU block. Written with pcp.lock held, but for `calm`. Of locked lists all
 * but `kind` and `light` is 0, or was left by sections.
 */
struct pcpa_words {
	uint32_t room[PCPTUNE_N_LISTS]; /* blocks: bound - tail */
	uint32_t stop;
	uint32_t kind; /* PCPA_BY_SECTIONS, PCPA_ASKS */
	uint32_t calm; /* blocks allocated in bulk; atomic additions */
	union {
		struct {
			uint32_t freed[PCPTUNE_N_LISTS]; /* blocks, at the last look */
			uint32_t calm_seen;		 /* `calm` at the last look */
			/* allocations and frees at the last look, 32 bits each */
			uint64_t seen;
		};
		struct pcptune_rule_light light; /* of locked lists: what frees go by */
	};
} __attribute__((may_alias));
_Static_assert(sizeof(struct pcpa_words) <= sizeof(struct pcptune_list), "fits");

#define PCPA_BY_SECTIONS 1u /* this CPU is served by sections */
#define PCPA_ASKS	 2u /* locked lists: the rules want to know of each allocation */

static inline struct pcpa_words *pcpa_words(struct pcptune_cpu_block *b)
{
	return (struct pcpa_words *)&b->list[PCPTUNE_N_LISTS];
}

/* Are the lists of this CPU block used by sections? If not, pcp.lock is all there is. */
static inline bool pcpa_by_sections(const struct pcptune_cpu_block *b)
{
	return pcpa_get(&((const struct pcpa_words *)&b->list[PCPTUNE_N_LISTS])->kind) &
	       PCPA_BY_SECTIONS;
}

/* The lists of one order: for each CPU below n_cpus the one that it uses now, never NULL. */
struct pcpa_lists {
	uint32_t n_cpus;
	struct pcptune_list *of_cpu[PCPTUNE_MAX_CPUS];
};

#define PCPA_OWN_ROW  4u   /* lists of a row: those with an order of up to PCPTUNE_COSTLY_ORDER */
#define PCPA_OWN_ROWS 512u /* rows that are never NULL once there are sections */
_Static_assert(PCPTUNE_COSTLY_ORDER + 1 == PCPA_OWN_ROW, "one for each order");

/* What the fast path reads, together. Written before n_cpus; n_cpus and orders change later. */
struct pcpa_fast {
	uint32_t n_cpus; /* ids below are served by sections; 0: none, not yet, or not any more */
	uint32_t orders; /* that the hot sections serve; 0: as above, or none where the area is */
	intptr_t offset; /* of the thread's rseq area from its thread pointer */
	/* Of the preload library, which reads it together with what is above (preload_fast.h). */
	struct {
		size_t lo, sizes;			    /* sizes from lo, so many; 0: none */
		uint64_t counted[PCPTUNE_COSTLY_ORDER + 1]; /* what counts a call, by order */
	} preload;
	/* as pcpa_home_lists, for our own functions: a row of struct pcptune_list for each CPU */
	void *own[PCPTUNE_MAX_CPUS * PCPA_OWN_ROW];
	struct pcpa_lists *zone[PCPTUNE_MAX_ZONES]; /* PCPTUNE_N_LISTS each */
} __attribute__((aligned(128)));

extern struct pcpa_fast pcpa_fast;

/* The lists of each CPU in its own zone. */
extern struct pcpa_lists pcpa_home_lists[PCPTUNE_N_LISTS];
/* The same for users of pcpalloc_inline.h: the first CPUs. */
extern PCPA_API struct pcpa_inline_lists PCPA_LISTS[PCPA_INLINE_ORDERS];

/* Bits of `stop`. While there is one, the idle list is in the tables. */
#define PCPA_STOP_OWNER	  1u /* the holder of pcp.lock has the lists for itself */
#define PCPA_STOP_LOST	  2u /* the child of a fork could not map what sections need */
#define PCPA_STOP_TO_RING 4u /* the next call should come to a slow path, for the agent's sake */

/* How a section ended. */
enum pcpa_section { PCPA_SECTION_DONE, PCPA_SECTION_NO, PCPA_SECTION_AGAIN };

/*
 * 0: this thread is registered and the system can fence sections. Else why not, a text. Called
 * once under the lock of the first allocation, and in the child of a fork.
 */
const char *pcpa_rseq_why_not(void);
/*
 * Does the libc keep an rseq area for this thread? Then `offset` is set. Sections or not, it tells
 * the CPU.
 */
bool pcpa_rseq_area(void);
/* Chooses the mode by PCPALLOC_MODE and what can be had; everything but the mode is set up. */
void pcpa_rseq_start(void);
/*
 * Puts the lists of a CPU block into the tables, if nothing is set in `stop`; else the idle list.
 * By the holder of pcp.lock.
 */
void pcpa_rseq_show(struct pcptune_cpu_block *b);
/*
 * Around a fork, every pcp.lock held and every section stopped. The segment is the parent's until
 * ours is made: what keeps the child from it are the tables and n_cpus, its own memory.
 */
void pcpa_rseq_pause(void);
void pcpa_rseq_resume(void);
/* In the child of a fork. */
void pcpa_rseq_renew(void);
/*
 * No section of this CPU (-1: of any) that began before is still going on. Should the system
 * refuse (the program locked itself in meanwhile), sections are given up for good.
 */
void pcpa_rseq_fence(int cpu);
/* Sections are being given up just now: lists can not be used, the zone can. */
bool pcpa_rseq_settling(void);

/*
 * The CPU we are on, once `offset` is set; at or above n_cpus if its lists are not served by
 * sections.
 */
static inline uint32_t pcpa_fast_cpu(void)
{
	return pcpa_area_cpu(pcpa_fast.offset);
}

#ifdef PCPA_RSEQ

#include "allocator/rseq_sections.h"

#define PCPA_SECTION_TRIES 32u

/* One block off the list of this CPU; NULL: empty or stopped. */
static inline void *pcpa_fast_pop(struct pcpa_lists *lists)
{
	enum pcpa_section how = PCPA_SECTION_AGAIN;
	void *block = NULL;

	for (unsigned n = 0; n < PCPA_SECTION_TRIES && how == PCPA_SECTION_AGAIN; n++)
		block = pcpa_section_pop(lists, &how);
	return how == PCPA_SECTION_DONE ? block : NULL;
}

static inline bool pcpa_fast_push(struct pcpa_lists *lists, void *block)
{
	enum pcpa_section how = PCPA_SECTION_AGAIN;

	for (unsigned n = 0; n < PCPA_SECTION_TRIES && how == PCPA_SECTION_AGAIN; n++)
		how = pcpa_section_push(lists, block);
	return how == PCPA_SECTION_DONE;
}

#else /* no sections on this machine, or under this tool: n_cpus stays 0 and none of this runs */

static inline void *pcpa_fast_pop(struct pcpa_lists *lists)
{
	(void)lists;
	return NULL;
}

static inline bool pcpa_fast_push(struct pcpa_lists *lists, void *block)
{
	(void)lists, (void)block;
	return false;
}

static inline void *pcpa_section_pop(struct pcpa_lists *lists, enum pcpa_section *ret_how)
{
	(void)lists;
	*ret_how = PCPA_SECTION_NO;
	return NULL;
}

static inline enum pcpa_section pcpa_section_push(struct pcpa_lists *lists, void *block)
{
	(void)lists, (void)block;
	return PCPA_SECTION_NO;
}

static inline bool pcpa_section_pop_own(unsigned order, void **ret_block)
{
	(void)order, (void)ret_block;
	return false;
}

static inline bool pcpa_section_push_own(void *block, unsigned order)
{
	(void)block, (void)order;
	return false;
}

static inline bool pcpa_section_pop_hot(unsigned order, void **ret_block)
{
	(void)order, (void)ret_block;
	return false;
}

static inline bool pcpa_section_push_hot(void *block, unsigned order)
{
	(void)block, (void)order;
	return false;
}

static inline enum pcpa_section pcpa_section_store(const struct pcptune_list *l, uint32_t cpu,
						   uint64_t word, uint64_t *at, uint64_t value)
{
	(void)l, (void)cpu, (void)word, (void)at, (void)value;
	return PCPA_SECTION_NO;
}

static inline enum pcpa_section pcpa_section_store_two(const struct pcptune_list *l, uint32_t cpu,
						       uint64_t word, uint64_t *first,
						       uint64_t first_value, uint64_t *at,
						       uint64_t value)
{
	(void)l, (void)cpu, (void)word, (void)first, (void)first_value, (void)at, (void)value;
	return PCPA_SECTION_NO;
}

#endif

static inline uint32_t pcpa_fast_cpus(void)
{
	return __atomic_load_n(&pcpa_fast.n_cpus, __ATOMIC_ACQUIRE);
}

#endif
