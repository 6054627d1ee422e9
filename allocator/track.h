/* SPDX-License-Identifier: MIT */
/*
 * The band tracker of each CPU: where the net position of its lists turned.
 *
 * From the turning points follows what any other `high` would have moved (pcptune/tracker.h). The
 * position is in the words of the lists already, so nothing is added to a push or a pop. What they
 * test anyway, whether there is a block and whether there is room, is made to fail a little
 * earlier: a window lies around the position of each list, and who comes to its edge takes the slow
 * path, which looks at the words of all lists, pushes the position into the tracker, and lays the
 * window anew. The position is pushed, too, wherever a slow path comes by for another reason:
 * refill, drain, a change of `high`, an owner from elsewhere.
 *
 * Windows. Lists that only oscillate never come to an edge. One that runs in a direction would come
 * to many, each a lock and a few stores; but on the way nothing is to be learnt, only where it
 * turns. So the edge ahead is as far away as the run is long, and the one behind as near as ever:
 * a run of n pages costs log n looks. Where it turned, beyond the last look, the words say: they
 * count operations, too. Whoever went up by u and came down by d did u + d, and stands at u - d. If
 * some of the moves went to and fro, the share of these on the way before is taken to be the share
 * now; a result that lies beyond the edge is wrong, and not used. Runs with too many moves to and
 * fro are watched from near, at both sides.
 *
 * Edges. Locked lists have both in their line (`mark` and `bound`). Of lists served by sections the
 * upper one is `bound`, the lower one a place that was emptied: pops end there as they do below the
 * lowest block. The block waits in `held`. To put it back is a store, since nobody passes an empty
 * place; to take it away is a section, like every other change of a list in use (pcp_sections.c).
 * Whoever wants to see all blocks of a list puts it back first ("lifts the stop").
 *
 * Everything here is with pcp.lock held. The two halves, and how a reader takes one without waiting
 * for the writer: pcptune/segment.h.
 */
#ifndef PCPA_TRACK_H
#define PCPA_TRACK_H

#include "allocator/events.h"
#include "allocator/pcp.h"

#define PCPA_GRAIN_DEFAULT 128u
#define PCPA_GRAIN_MAX	   4096u

/* The tracker of a CPU block; NULL: there are none (PCPALLOC_GRAIN=0). */
static inline struct pcptune_track *pcpa_track_of(const struct pcptune_cpu_block *b)
{
	size_t index = (size_t)(b - pcpa_cpu_block(0, 0));

	return pcpa_heap.tracks ? &pcpa_heap.tracks[index] : NULL;
}

/* Of one list, from where it is now, in blocks; never 0. */
struct pcpa_window {
	uint32_t up, down;
};

static inline struct pcpa_window pcpa_track_window(const struct pcptune_track *t, unsigned list)
{
	unsigned order = pcpa_list_orders[list];
	/* what counts is pages; a single block that comes and goes is no swing, however large */
	uint32_t grain = pcptune_max_u32(pcpa_heap.grain >> order, 2);

	if (__builtin_expect(pcpa_heap.events != NULL, 0))
		return (struct pcpa_window){pcpa_events_blocks(order), pcpa_events_blocks(order)};
	return (struct pcpa_window){pcptune_max_u32(grain, t->up >> order),
				    pcptune_max_u32(grain, t->down >> order)};
}

/* First use of a CPU, and after a fork: at position 0, with the words as they are. */
void pcpa_track_begin(struct pcptune_cpu_block *b);
/*
 * Other windows than before for all lists, which the caller has for himself until he lets go of
 * them.
 */
void pcpa_track_anew(struct pcptune_cpu_block *b);
/* Takes the position of now. */
void pcpa_track_look(struct pcptune_cpu_block *b);

#endif
