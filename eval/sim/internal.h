/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the simulator tell each other: sim.c (events), demand.c (what processes ask
 * for), policy.c (policies in the loop). Nothing outside eval/sim/ includes this.
 *
 * One thread at a time for each simulation; a struct cpu is written by its own events, and by a
 * policy between two events.
 */
#ifndef PCPTUNE_SIM_INTERNAL_H
#define PCPTUNE_SIM_INTERNAL_H

#include <stdbool.h>
#include "eval/sim/lists.h"
#include "eval/sim/sim.h"

enum { MOVABLE, UNMOVABLE, ORDER1, ORDER2, ORDER3, N_LISTS };
#define LEGS	  16u
#define BURSTS	  32u
#define WINDOW_NS 100000000u /* waiting is averaged over it; a policy samples at its end */

/*
 * Who takes a lock: of the zone; OTHER: users that have nothing to do with lists. LRU: of the LRU.
 */
enum sim_path { SIM_ALLOC, SIM_FREE, SIM_OTHER, SIM_AGENT, SIM_LRU, SIM_PATHS };

struct leg {
	uint32_t left;
	uint8_t list;
	bool take;
	uint32_t ns; /* a block */
};

struct process {
	uint32_t left, held; /* pages to fault in; pages it has */
	uint32_t page_ns;
	bool exiting;
};

/* Of a CPU in a stream. */
struct stream {
	bool sends;
	bool busy; /* with a message */
	/* of the sender's and the receiver's, in the one with the even number */
	uint32_t on_their_way;
	bool swap;
	uint64_t swap_at;
};

/* Since the beginning; pages, times or ns. */
struct sim_counters {
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone, alloc_direct, free_direct;
	uint64_t refills, drains, free_high, trim_pages, cold_pages;
	uint64_t taken[SIM_PATHS], contended[SIM_PATHS], wait_ns[SIM_PATHS], hold_ns[SIM_PATHS];
	uint64_t work_ns, idle_ns, exits;
};

struct cpu {
	struct sim_lists lists;
	struct leg legs[LEGS];
	uint32_t n_legs; /* the last one is the current one */
	uint32_t node;
	struct process p;
	struct stream stream;
	uint32_t warm[N_LISTS]; /* pages at the head of each list that caches still have */
	uint64_t compute;	/* to do before the legs */
	uint64_t next;		/* event of the process */
	uint64_t rest_until;	/* it has nothing to do */
	uint64_t next_tick;
	uint64_t busy;		/* until then it waits for a lock or holds it: no interrupt */
	uint64_t burst[BURSTS]; /* times of slab bursts, in order */
	uint32_t burst_first, n_bursts;
	struct sim_counters n;
	struct pcptune_band *band; /* net position; NULL: nobody asks */
};

struct node {
	uint64_t free_at; /* the lock of its zone */
	uint64_t lru_free_at[SIM_LRU_MAX];
	uint64_t wait_ns; /* in this window */
	double speed;	  /* of computing */
};

struct key {
	uint64_t t;
	uint32_t cpu;
};

struct sim {
	const struct sim_workload *w;
	struct sim_loop *loop; /* NULL: no policy */
	uint64_t random, window_end, events;
	uint32_t n;
	bool counts; /* after the warm-up */
	uint64_t held_sum, held_samples, held_peak, held;
	double slab_blocks; /* allocated by each process, so that frees find them */
	struct node node[SIM_NODES_MAX];
	struct key heap[SIM_CPUS_MAX];
	struct cpu cpu[];
};

/* ---- sim.c ---- */

/* One more leg, in front of the others; none when the queue is full or there is nothing to do. */
static inline void sim_leg(struct cpu *c, bool take, uint32_t list, uint32_t blocks, int64_t ns)
{
	if (blocks && c->n_legs < LEGS)
		c->legs[c->n_legs++] = (struct leg){blocks, (uint8_t)list, take, (uint32_t)ns};
}

/* Pages freed to the lists less those allocated from them. */
static inline int64_t sim_position(const struct cpu *c)
{
	return (int64_t)(c->n.free_pages - c->n.free_direct - c->n.alloc_pages + c->n.alloc_direct);
}

/* A hold of the zone lock from t on, as soon as it is free; returns its end. */
uint64_t sim_lock(struct sim *s, struct cpu *c, uint64_t t, uint64_t hold_ns, enum sim_path path);
/* The holds of a drain; they follow each other, others may come between them. */
uint64_t sim_drained(struct sim *s, struct cpu *c, struct sim_drain d, uint64_t t,
		     enum sim_path path);

/* ---- demand.c ---- */

uint64_t sim_random(struct sim *s);
/* Blocks of slab that a process must allocate so that frees find them, mean. */
static inline double sim_slab_blocks(const struct sim_workload *w)
{
	return (w->bursts + w->at_exit) * w->burst_blocks;
}
/* The queue is empty: what comes next on this CPU, as legs, computing, and c->next. */
void sim_demand(struct sim *s, struct cpu *c, uint64_t t);
/* Frees of slab, in front of what the CPU was about to do. */
void sim_slab_burst(struct sim *s, struct cpu *c);

/* ---- policy.c ---- */

/* The setup's policy for this simulation, asked once before the first event. */
int sim_loop_new(struct sim *s, const struct sim_setup *setup, char *why);
/* The window ended at t: a sample, a decision, changes. */
int sim_loop_step(struct sim *s, uint64_t t);
void sim_loop_result(const struct sim *s, struct sim_result *r);
void sim_loop_free(struct sim *s);

#endif
