/* SPDX-License-Identifier: MIT */
/*
 * The reading side of a recording (pcptune/events.h): from the rings of any number of programs into
 * one trace.
 *
 * Rows are in the order of their times, but for those of a program that lost its CPU between clock
 * and ring. The CPUs of the first program keep their numbers; those of others get the next free
 * ones as they come to be used, since lists of different programs are different lists. A program
 * is not trusted: rings are checked once, and events that no list can have are counted and left.
 *
 * One thread at a time. Functions return 0 or a negative errno.
 */
#ifndef PCPTUNE_LIB_RECORDER_H
#define PCPTUNE_LIB_RECORDER_H

#include <stdbool.h>
#include <stdint.h>
#include "lib/trace.h"

struct recorder;

struct recorder_totals {
	uint64_t rows;	 /* written */
	uint64_t merged; /* events that found their ring full and went into the next one */
	uint64_t bad; /* events or rings that made no sense, or had no number left for their CPU */
	uint32_t programs; /* that sent rings */
	uint32_t refused;  /* that sent something else */
};

/*
 * listener: SOCK_SEQPACKET, non-blocking, listening; -1: none. It and the writer stay the caller's.
 * w: NULL: recorder_write_to() says later where to.
 */
int recorder_new(int listener, struct trace_writer *w, struct recorder **ret);
void recorder_free(struct recorder *r);
/*
 * Takes in who is waiting, and writes what is in the rings now. *ret_rows: how many. A negative
 * errno is what writing gave; nothing more can be written then.
 */
int recorder_pass(struct recorder *r, uint64_t *ret_rows);
/*
 * From now on nothing is written, but rings are emptied: programs wait for a reader that is there.
 */
void recorder_discard(struct recorder *r);
void recorder_totals(struct recorder *r, struct recorder_totals *ret);

/* ---- one program that runs already (PCPTUNE_REQUEST_RECORD) ---- */

/*
 * Waits for the rings of the program at the other end of a socket, which is taken over; the clock
 * of the trace begins with them. ret_levels: the first rows of the trace (trace.h), the recorder's,
 * as long as it lives. -ENOMEM: there is no memory here; -ETIMEDOUT: it says nothing; -ECONNRESET:
 * it went away; -EBADMSG: it sent something else; or what the program says: -EBUSY (somebody else
 * records it), -EOPNOTSUPP (it has no band trackers), -EPERM (its daemon is another user's),
 * -ENOBUFS (it has no memory for its events). stop (may be NULL): not 0 ends the waiting with
 * -EINTR.
 */
int recorder_join(struct recorder *r, int sock, int timeout_ms, const volatile int *stop,
		  const struct trace_row **ret_levels, size_t *ret_n);
/* Where rows go; writes the levels. Before the first pass. */
int recorder_write_to(struct recorder *r, struct trace_writer *w);
/* Has the program closed its side? Then one more pass takes what is left. */
bool recorder_ended(struct recorder *r);
/* Asks the program to end: it writes what is left, and closes its side. */
void recorder_end(struct recorder *r);

#endif
