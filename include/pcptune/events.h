/* SPDX-License-Identifier: MIT */
/*
 * Movements of lists as they happen, from a program that is being recorded (`pcptune record`).
 *
 * A program whose environment names a socket (PCPALLOC_EVENTS) makes one memfd with a ring for each
 * of its CPU slots, sealed against any change of size, and sends it over that socket (SOCK_SEQPACKET)
 * with a hello. End of file is the end of the program. From then on both sides only use the rings.
 *
 *   head, merged, entries   the program, with pcp.lock of that CPU held: entry first, then head (release)
 *   tail                    who records, release, after it copied
 *   the rest of the line    private to the program
 *
 * An event is what was freed to and allocated from one list since its event before. Lists are looked
 * at when one of them moved by 4 pages net, so that much is between most events; what went to and
 * fro comes on top. A thread that finds the ring of its CPU nearly full rests, with no lock held, as
 * long as who records makes progress. After a second without any, nobody waits again: when a ring is
 * full nothing is written, `merged` counts, and the next event of that list has what it moved
 * meanwhile, too. Positions stay right, times do not, nor which swings there were.
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
	struct pcptune_event entry[] __attribute__((aligned(64)));
};

struct pcptune_events_hello {
	uint32_t magic;
	uint16_t version;
	uint16_t size;	    /* of this struct */
	uint32_t n_rings;   /* one for each (zone, CPU slot), zone by zone */
	uint32_t n_entries; /* of a ring, a power of two */
	uint64_t stride;    /* from ring to ring */
};

#endif
