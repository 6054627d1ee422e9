/* SPDX-License-Identifier: MIT */
/*
 * Events for a recorder (pcptune/events.h). They come out of the looks of the band tracker, whose
 * windows are as narrow as an event while somebody records.
 */
#ifndef PCPA_EVENTS_H
#define PCPA_EVENTS_H

#include <stdbool.h>

#include "allocator/heap.h"

/* Offers rings to the recorder that the environment names, if any. Before the segment is made. */
void pcpa_events_start(void);
/*
 * Begins for the recorder at the other end of a connected socket, which is taken over, or tells it
 * why not: refuse is 0 or a reason to, a positive errno. The agent, attach_lock held.
 */
void pcpa_events_join(int fd, int refuse);
/* Has that recorder gone? Then ends. The agent, attach_lock not held. */
void pcpa_events_attend(void);
/* Is pcpa_events_attend() to be called every PCPA_EVENTS_MS? */
bool pcpa_events_joined(void);
#define PCPA_EVENTS_MS 20u
/* In the child of a fork, before its words begin at 0: rings of its own, or none. */
void pcpa_events_renew(void);
/* What the lists did since the last look; pcp.lock is held. */
void pcpa_events_write(const struct pcptune_cpu_block *b);

/* Waits while the ring of a CPU is nearly full and somebody empties it; no lock may be held. */
void pcpa_events_wait(const struct pcptune_cpu_block *b);

/* Before a slow path: its events need room. */
static inline void pcpa_events_room(const struct pcptune_cpu_block *b)
{
	if (__builtin_expect(pcpa_get(&pcpa_heap.events) != NULL, 0))
		pcpa_events_wait(b);
}

/* Blocks of a list between two events. */
static inline uint32_t pcpa_events_blocks(unsigned order)
{
	return PCPTUNE_EVENTS_PAGES >> order ? PCPTUNE_EVENTS_PAGES >> order : 1;
}

#endif
