/* SPDX-License-Identifier: MIT */
/*
 * A machine with page lists, as discrete events: CPUs that run processes, the lists of each CPU
 * (lists.h, that is rules.h), sockets with a zone and a lock each.
 *
 * One heap of (time, CPU). An event is one move: a refill, a drain, or what a CPU takes or frees
 * without the zone; so locks are asked for in the order of time, and one number a zone, the time at
 * which its lock is free again, is a FIFO lock. Nothing is measured and no clock is read: the same
 * setup and seed give the same numbers.
 *
 * Memory is the caller's; threads may run simulations of their own beside each other.
 */
#ifndef PCPTUNE_SIM_SIM_H
#define PCPTUNE_SIM_SIM_H

#include <stdint.h>
#include "policies/host.h"

#define SIM_CPUS_MAX  1024u
#define SIM_NODES_MAX 8u
#define SIM_LRU_MAX   64u

/*
 * What the CPUs do. Either processes one after another: each begins with a burst of allocations,
 * faults pages in while it computes, exits, frees most of its pages in one run and its page table
 * as a block of order 1; some time later come bursts of slab frees, without an allocation between.
 * Or streams: of two CPUs beside each other one allocates the blocks of messages and the other
 * frees them, with so many on their way at most; now and then they change roles. Times in ns, sizes
 * in pages. Every field is a key of a workload file (workload.h).
 */
struct sim_workload {
	/* machine */
	int64_t nodes, batch, scale_max, high_min, high_max, data_cache_pages;
	double smt; /* speed of a hardware thread while its sibling computes, 1: there is none */
	int64_t hold_ns,
		hold_contended_ns; /* of the zone lock: fixed, more when it was contended */
	int64_t hold_refill_ns, hold_drain_ns; /* for each block */
	int64_t tick_ns;
	int64_t lru_locks;   /* of a node, shared by its CPUs in turn; 0: none is modelled */
	int64_t lru_page_ns; /* held for a page that goes there or leaves */
	/* processes */
	double large_share;
	int64_t large_pages, large_page_ns, small_pages,
		small_page_ns; /* medians; compute a page */
	double sigma;	       /* of the lognormal sizes */
	int64_t exec_pages, exec_page_ns, fault_burst, fault_page_ns;
	double kept; /* share of the pages that outlives the process: page cache */
	int64_t free_page_ns;
	int64_t idle_ns; /* mean, after an exit */
	double counter;	 /* share of fault bursts with frees of movable, allocations of unmovable */
	double other_holds; /* chance at a fault burst of a hold of the lock for something else */
	double migrate;	    /* chance at a fault burst to go on on another CPU of the node */
	/* slab */
	double bursts; /* for each exit, mean */
	int64_t burst_delay_ns, burst_pages;
	double burst_blocks; /* blocks of order 1 to 3 in one, mean */
	double burst_order1, burst_order2, burst_order3;
	double at_exit; /* chance of a run of blocks right after the exit */
	/* stream */
	int64_t stream_order0, stream_order1, stream_order2,
		stream_order3;	     /* blocks of a message */
	int64_t send_ns, receive_ns; /* compute a message, mean */
	int64_t block_ns;	     /* to allocate or free a block */
	int64_t cold_page_ns;	     /* more for a page that is in no cache any more */
	int64_t window;		     /* messages on their way; 0: no streams */
	int64_t swap_ns;	     /* mean time between changes of roles, 0: none */
	/* run */
	int64_t warm_ns, run_ns;
};

/* Totals of the time after the warm-up. */
struct sim_result {
	uint64_t events;
	uint64_t work_ns; /* computed */
	uint64_t wait_ns; /* for zone locks */
	uint64_t cpu_ns;  /* without the time in which CPUs had nothing to do */
	uint64_t alloc_pages, alloc_zone, free_zone, refills, drains, free_high, exits;
	uint64_t cold_pages; /* of streams: allocated when they were in no cache any more */
	double held_mean;    /* pages on lists, all CPUs, every 100 ms */
	uint64_t held_peak;
	/* of the whole time, with a policy: changes that were applied, answers that broke the
	 * contract; pages that its changes drained are in free_zone */
	uint64_t decisions, breaches;
};

#define SIM_RUN_WHY 512u

/*
 * One row of a table: a generation of the rules as the kernel would have it, or a policy of the
 * daemon, which begins with g4, is asked every 100 ms, and decides on everything from then on.
 */
struct sim_setup {
	const struct sim_workload *w;
	uint32_t cpus;
	uint64_t seed;
	uint32_t rules;		      /* without a policy */
	struct policy_module *module; /* NULL: none */
	const int64_t *params;
	uint64_t budget; /* for the sum of high that the policy gives; 0: none */
};

/*
 * 0, or -EINVAL: more CPUs or nodes or another rule than there are; -ENOMEM; what the host says of
 * the policy. why: SIM_RUN_WHY bytes, also for a policy that broke its contract and ran on.
 */
int sim_run(const struct sim_setup *setup, struct sim_result *ret, char *why);

#endif
