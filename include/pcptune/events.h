/* SPDX-License-Identifier: MIT */
/*
 * Movements of lists as they happen, from a program that is being recorded (`pcptune record`).
 *
 * A program makes one memfd with a ring for each of its CPU slots, sealed against any change of
 * size, and sends it with a hello to who records, over a socket (SOCK_SEQPACKET). From then on both
 * sides only use the rings. There are two ways to such a socket:
 *
 *   The environment names one (PCPALLOC_EVENTS). The program connects at its first allocation, and
 *   its children do. End of file is the end of the program.
 *   The daemon hands one over while the program runs (PCPTUNE_REQUEST_RECORD): the program is never
 *   told a path. A program that can not be recorded says why by a hello without rings. Who records
 *   ends it by shutting its side down, or going away: the program writes what its lists moved last
 *   and then closes the socket, so end of file says that all is there. Children are not recorded.
 *
 *   head, merged, entries   the program, with pcp.lock of that CPU held: entry first, then head
 *                           (release)
 *   tail                    who records, release, after it copied
 *   begun_ns, level         the program, before its hello
 *   seen                    private to the program
 *
 * An event is what was freed to and allocated from one list since its event before. Lists are
 * looked at when one of them moved by 4 pages net, so that much is between most events; what went
 * to and fro comes on top. A thread that finds the ring of its CPU nearly full rests, with no lock
 * held, as long as who records makes progress. After three seconds without any nobody waits, until
 * it goes on: when a ring is full nothing is written, `merged` counts, and the next event of that
 * list has what it moved meanwhile, too. Positions stay right, times do not, nor which swings there
 * were.
 */
#ifndef PCPTUNE_EVENTS_H
#define PCPTUNE_EVENTS_H

#include <pcptune/segment.h>

#define PCPTUNE_EVENTS_MAGIC   0x50435045u
#define PCPTUNE_EVENTS_VERSION 1u
#define PCPTUNE_EVENTS_PAGES   4u	  /* of net movement */
#define PCPTUNE_EVENTS_MOST    (1u << 20) /* entries of a ring */

struct pcptune_event {
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	uint32_t list;	  /* index of its order, see PCPTUNE_LIST_ORDERS */
	uint32_t freed;	  /* blocks */
	uint32_t taken;
	uint32_t reserved;
};

struct pcptune_event_ring {
	uint64_t head; /* events written */
	uint64_t merged;
	uint64_t seen[PCPTUNE_N_LISTS];		    /* words of the lists at the last event */
	uint64_t tail __attribute__((aligned(64))); /* events read */
	uint64_t begun_ns; /* CLOCK_MONOTONIC; 0: at the first allocation, and lists were empty */
	uint32_t level[PCPTUNE_N_LISTS]; /* blocks that lay on each list then */
};

/* Entry i of a ring. They lie behind it, from a cache line of their own on. */
static inline struct pcptune_event *pcptune_event_entry(struct pcptune_event_ring *ring, uint64_t i)
{
	return (struct pcptune_event *)(ring + 1) + i;
}

struct pcptune_events_hello {
	uint32_t magic;
	uint16_t version;
	uint16_t size;	    /* of this struct */
	uint32_t n_rings;   /* one for each (zone, CPU slot), zone by zone; 0: none, and no memfd */
	uint32_t n_entries; /* of a ring, a power of two; without rings: why, a positive errno */
	uint64_t stride;    /* from ring to ring */
};

#endif
