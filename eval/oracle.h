/* SPDX-License-Identifier: MIT */
/*
 * Two oracles: what the best could have done who knew the whole trace beforehand.
 *
 * oracle_split() shares a budget among CPUs once and for all so that least moves: what a tuner with
 * fixed values can reach. The curves are convex and piecewise linear, so to give the next page to
 * the CPU that saves most by it is exact (water-filling; at the optimum all CPUs have about the
 * same number of cycles above what they hold).
 *
 * oracle_belady() is the floor for every policy whose lists never hold more than the budget
 * together, however it moves its limits. A free and the allocation that takes the net position of
 * its CPU back through the same level belong together (the last freed first): to hold the page in
 * between saves two moves and takes one page of the budget. When too many are held, the one that is
 * used last of all goes. That this greedy choice is best is known for k-colourable subgraphs of
 * interval graphs: M. C. Carlisle and E. L. Lloyd, "On the k-coloring of intervals" (1995); U.
 * Faigle and W. M. Nawijn, "Note on scheduling intervals on-line" (1995). It is L. A. Belady's rule
 * (1966) for pages that are taken in the order of a stack.
 *
 * Both count pages for lists of one kind a CPU and moves of single pages; with batches more moves.
 */
#ifndef PCPTUNE_EVAL_ORACLE_H
#define PCPTUNE_EVAL_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include "eval/curve.h"

/*
 * Capacities of n CPUs, each `least` or more, together at most budget (n times `least` or more),
 * that move the fewest pages in all when lists begin empty; pages that would save nothing are not
 * given away. Curves are sealed. 0 or -ENOMEM.
 */
int oracle_split(const struct curve *const *curves, size_t n, uint64_t least, uint64_t budget,
		 uint64_t *capacity);

/* A movement of one CPU: pages > 0 freed, < 0 allocated. */
struct oracle_event {
	uint32_t cpu;
	int64_t pages;
};

/*
 * The least pages that must move when lists hold at most budget pages together, and begin empty.
 * events: n, in the order of time; cpus below n_cpus. Time O(n log n), memory about 140 n bytes. 0
 * or -ENOMEM.
 */
int oracle_belady(const struct oracle_event *events, size_t n, uint32_t n_cpus, uint64_t budget,
		  struct pcptune_band_traffic *ret);

#endif
