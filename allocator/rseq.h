/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences: the lists of a CPU without an atomic instruction.
 *
 * A section is a short run of instructions that ends in one store. When the kernel takes the CPU
 * away from the thread in the midst of it, or delivers a signal, it sends the thread to the abort
 * handler instead of letting it go on. So of all threads that use the lists of one CPU, each from
 * that CPU, one at a time is between the first load and the store, and the store alone commits.
 *
 * Every section compares the CPU id once more and finds `stop` at 0, or gives up. Who wants the
 * lists of a CPU from elsewhere takes pcp.lock, sets `stop` and calls pcpa_rseq_fence(): after it,
 * what was inside a section is sent to its abort handler, and what enters finds `stop` set.
 *
 * `reserved` of a list is the mask of its ring here. The other hot words lie in the sixth, unused list of the CPU block: one line beside the list's own.
 *
 *   word      sections of the CPU; pcp.lock and `stop` held
 *   tail      whoever holds pcp.lock, by a section or with `stop` set
 *   room      whoever holds pcp.lock: a push finds less than that on its list, or gives up
 *   run       sections, before their commit: an abort may count one twice, and the rules that
 *             read it only want to know whether there were many frees in a row
 *   stop      whoever holds pcp.lock
 */
#ifndef PCPA_RSEQ_H
#define PCPA_RSEQ_H

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

/* The sixth list of a CPU block. */
struct pcpa_words {
	uint32_t room[PCPTUNE_N_LISTS]; /* blocks */
	uint32_t stop;
	uint32_t run;	   /* pages freed in a row */
	uint32_t sections; /* 1: this CPU is served by sections */
} __attribute__((may_alias));
_Static_assert(sizeof(struct pcpa_words) == sizeof(struct pcptune_list), "fits");

static inline struct pcpa_words *pcpa_words(struct pcptune_cpu_block *b)
{
	return (struct pcpa_words *)&b->list[PCPTUNE_N_LISTS];
}

/* Are the lists of this CPU block used by sections? If not, pcp.lock is all there is. */
static inline bool pcpa_by_sections(const struct pcptune_cpu_block *b)
{
	return pcpa_get(&((const struct pcpa_words *)&b->list[PCPTUNE_N_LISTS])->sections);
}

struct pcpa_span {
	uintptr_t base;
	size_t pages_end; /* their number */
	struct pcpa_page *pages;
	struct pcptune_cpu_block *blocks;
};

/* What the fast path reads, together. Written before n_cpus; n_cpus alone changes later. */
struct pcpa_fast {
	uint32_t n_cpus; /* ids below are served by sections; 0: none, not yet, or not any more */
	uint32_t n_zones;
	intptr_t offset; /* of the thread's rseq area from its thread pointer */
	struct pcpa_span zone[PCPTUNE_MAX_ZONES];
	struct pcptune_cpu_block *home[PCPTUNE_MAX_CPUS]; /* of a CPU, in its own zone */
} __attribute__((aligned(128)));

extern struct pcpa_fast pcpa_fast;

/* Bits of `stop`. */
#define PCPA_STOP_OWNER	   1u /* the holder of pcp.lock has the lists for itself */
#define PCPA_STOP_FOR_GOOD 2u
#define PCPA_STOP_TO_RING  4u /* the next call should come to a slow path, for the agent's sake */

/* How a section ended. */
enum pcpa_section { PCPA_SECTION_DONE, PCPA_SECTION_NO, PCPA_SECTION_AGAIN };

/*
 * 0: this thread is registered and the system can fence sections. Else why not, a text. Called
 * once under the lock of the first allocation, and in the child of a fork.
 */
const char *pcpa_rseq_why_not(void);
/* Chooses the mode by PCPALLOC_MODE and what can be had; everything but the mode is set up. */
void pcpa_rseq_start(void);
/*
 * Around a fork, every pcp.lock held. The segment is the parent's until ours is made, and `stop` in
 * it goes back to 0 when the parent likes: what keeps the child from it is n_cpus, its own word.
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

#ifdef PCPA_RSEQ

#if defined(__x86_64__)
#include "allocator/rseq_x86.h"
#else
#include "allocator/rseq_aarch64.h"
#endif

/* The CPU we are on, at or above n_cpus if its lists are not served by sections. */
static inline uint32_t pcpa_fast_cpu(void)
{
	return pcpa_section_cpu(pcpa_fast.offset);
}

#define PCPA_SECTION_TRIES 32u

/* One block off the list; NULL: empty, stopped, or we are on another CPU now. */
static inline void *pcpa_fast_pop(struct pcptune_cpu_block *b, unsigned list, uint32_t cpu)
{
	enum pcpa_section how = PCPA_SECTION_AGAIN;
	void *block = NULL;

	for (unsigned n = 0; n < PCPA_SECTION_TRIES; n++) {
		block = pcpa_section_pop(b, list, cpu, &how);
		if (__builtin_expect(how != PCPA_SECTION_AGAIN, 1) || pcpa_fast_cpu() != cpu)
			break;
	}
	return how == PCPA_SECTION_DONE ? block : NULL;
}

static inline bool pcpa_fast_push(struct pcptune_cpu_block *b, unsigned list, unsigned order,
				  uint32_t cpu, void *block)
{
	enum pcpa_section how = PCPA_SECTION_AGAIN;

	for (unsigned n = 0; n < PCPA_SECTION_TRIES; n++) {
		how = pcpa_section_push(b, list, order, cpu, block);
		if (__builtin_expect(how != PCPA_SECTION_AGAIN, 1) || pcpa_fast_cpu() != cpu)
			break;
	}
	return how == PCPA_SECTION_DONE;
}

#else /* no sections on this machine, or under this tool: n_cpus stays 0 and none of this runs */

static inline uint32_t pcpa_fast_cpu(void)
{
	return UINT32_MAX;
}

static inline void *pcpa_fast_pop(struct pcptune_cpu_block *b, unsigned list, uint32_t cpu)
{
	(void)b, (void)list, (void)cpu;
	return NULL;
}

static inline bool pcpa_fast_push(struct pcptune_cpu_block *b, unsigned list, unsigned order,
				  uint32_t cpu, void *block)
{
	(void)b, (void)list, (void)order, (void)cpu, (void)block;
	return false;
}

static inline void *pcpa_section_pop(struct pcptune_cpu_block *b, unsigned list, uint32_t cpu,
				     enum pcpa_section *ret_how)
{
	(void)b, (void)list, (void)cpu;
	*ret_how = PCPA_SECTION_NO;
	return NULL;
}

static inline enum pcpa_section pcpa_section_push(struct pcptune_cpu_block *b, unsigned list,
						  unsigned order, uint32_t cpu, void *block)
{
	(void)b, (void)list, (void)order, (void)cpu, (void)block;
	return PCPA_SECTION_NO;
}

static inline enum pcpa_section pcpa_section_tail(struct pcptune_list *l, uint32_t cpu,
						  uint32_t need, int64_t delta)
{
	(void)l, (void)cpu, (void)need, (void)delta;
	return PCPA_SECTION_NO;
}

#endif

static inline uint32_t pcpa_fast_cpus(void)
{
	return __atomic_load_n(&pcpa_fast.n_cpus, __ATOMIC_ACQUIRE);
}

#endif
