/* SPDX-License-Identifier: MIT */
/*
 * The allocator of this process: its zones, CPU slots, segment and settings.
 *
 * Everything here is written once, under the lock of the first allocation, and published by
 * `ready` (release); after that it is read without a lock. Exceptions are named at the field.
 */
#ifndef PCPA_HEAP_H
#define PCPA_HEAP_H

#include <pcptune/events.h>

#include "allocator/bulk_free.h"
#include "allocator/zone.h"

/* What a pcp starts with, and goes back to when a lease runs out. */
struct pcpa_defaults {
	uint32_t rules, high, high_min, high_max, batch, scale_max;
};

/*
 * `ready` between prepare and the end of a fork. The lists may then be the parent's, seen from the
 * child: nobody allocates, the forking thread puts its frees off, all others wait.
 */
#define PCPA_FORKING 2u

/* PCPALLOC_AGENT: never, with the first allocation, or when a zone outgrows its first block. */
enum pcpa_agent_when { PCPA_AGENT_NEVER, PCPA_AGENT_AT_ONCE, PCPA_AGENT_LATER };

struct pcpa_heap {
	uint32_t ready; /* atomic: 0 not yet, 1 yes, PCPA_FORKING */
	uint32_t n_zones;
	uint32_t n_slots;   /* CPU slots per zone, the last is the shared one */
	uint32_t n_run;	    /* CPUs that really run us */
	uint32_t n_virtual; /* PCPALLOC_CPUS, 0: real CPUs */
	uint32_t idle_ms;
	uint32_t cache_slice; /* atomic: pages of data cache for one CPU, 0: not known yet */
	uint32_t high_limit[PCPTUNE_MAX_ZONES];
	uint32_t agent; /* enum pcpa_agent_when */
	enum pcpa_bulk_free bulk_free;
	uint32_t grain; /* of the band trackers, pages; 0: there are none */
	struct pcpa_zone zones[PCPTUNE_MAX_ZONES];
	struct pcpa_defaults defaults[PCPTUNE_MAX_ZONES]; /* words, relaxed: pcpa_set_limits() */
	uint8_t home[PCPTUNE_MAX_CPUS];			  /* zone of a CPU slot */

	/* the segment: address and geometry never change, not even over fork */
	struct pcptune_seg_header *header;
	char *cpus;
	struct pcptune_track *tracks; /* one for each CPU block; NULL: none */
	/* rings for a recorder (events.h), written with every pcp.lock held; NULL: none */
	char *events;
	struct pcptune_proc_block *proc;
	size_t segment_size;
};

extern struct pcpa_heap pcpa_heap;

/* Sets up at the first call. 0, -EAGAIN (in the midst of it, from inside) or -ENOMEM. */
int pcpa_heap_start(void);

static inline int pcpa_heap_get(void)
{
	if (__builtin_expect(__atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE) == 1, 1))
		return 0;
	return pcpa_heap_start();
}

/* fork: the lock of the first allocation */
void pcpa_heap_lock(void);
void pcpa_heap_unlock(void);
void pcpa_heap_forget_waiters(void);

static inline struct pcptune_cpu_block *pcpa_cpu_block(uint32_t zone, uint32_t slot)
{
	return (struct pcptune_cpu_block *)(pcpa_heap.cpus +
					    ((size_t)zone * pcpa_heap.n_slots + slot) *
						    sizeof(struct pcptune_cpu_block));
}

static inline void pcpa_proc_add(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* The zone of an address, NULL: none. Any thread, never blocks. */
static inline struct pcpa_zone *pcpa_heap_zone_of(const void *address)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		if (pcpa_zone_has(&pcpa_heap.zones[i], address))
			return &pcpa_heap.zones[i];
	return NULL;
}

/* Counters of the preload library; NULL before the first allocation. */
static inline struct pcptune_proc_block *pcpa_proc(void)
{
	return __atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE) == 1 ? pcpa_heap.proc : NULL;
}

/* A wrong free that the preload library noticed; no lock may be held. errno is kept. */
void pcpa_report(const char *what, const void *address, unsigned order, const void *caller);

/* ---- exact sizes: a block of n pages is a row of buddy blocks, the largest first ---- */

/*
 * Pages that a request of `size` bytes gets. Up to 8 pages a whole block of the next order: those
 * orders have lists, and cut blocks would come from one list and go to others. What is not touched
 * of it costs no memory. Beyond 8 pages no more than needed.
 */
static inline size_t pcpa_exact_pages(size_t size)
{
	size_t n = size / 4096 + !!(size % 4096);

	return n < 2 || n > 8 ? n : (size_t)1 << (64 - __builtin_clzl(n - 1));
}

/* Marks the segment as that of the preload library; before the first allocation. */
void pcpa_heap_is_preload(void);
extern uint32_t pcpa_heap_seg_flags;

/* ---- cpu.c ---- */

/* Slots for every possible CPU and the shared one; 2 .. PCPTUNE_MAX_CPUS. */
uint32_t pcpa_cpu_slots(uint32_t n_virtual);
/* Slot of the calling thread. */
uint32_t pcpa_cpu_slot(void);
/* The CPU of now, or the virtual one, asked of the system. May be a number of no slot. */
uint32_t pcpa_cpu_ask(void);
/*
 * Where threads have it at hand, as an rseq area at that distance from the thread pointer would
 * have it (area.h). A number of no slot there: it is to be asked.
 */
intptr_t pcpa_cpu_place(void);
/* The calling thread is the agent: it takes no virtual CPU from the program. */
void pcpa_cpu_is_agent(void);
/* Pages of data cache that one CPU has for itself, shared ones in proportion; 0: not known. */
uint32_t pcpa_cpu_cache_slice(void);
/* NUMA nodes with memory, at least 1; nodes[] gets their numbers (-1: not known). */
uint32_t pcpa_cpu_nodes(int nodes[PCPTUNE_MAX_ZONES]);
/* Fills heap.home: the zone of every slot. by_node: zones are the nodes[]. */
void pcpa_cpu_homes(const int *nodes, bool by_node);

/* ---- segment.c ---- */

/* Makes the segment (heap.header and geometry); never fails but for want of address space. */
int pcpa_segment_make(void);
/* fork: a private copy in the parent before, a segment of its own in the child after. */
void pcpa_segment_snapshot(void);
void pcpa_segment_drop_snapshot(void);
void pcpa_segment_renew(void);
/* The descriptor, verified to be still ours; -1: the segment is in anonymous memory, or lost. */
int pcpa_segment_fd(void);

#endif
