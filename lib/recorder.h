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

/* listener: SOCK_SEQPACKET, non-blocking, listening; it and the writer stay the caller's. */
int recorder_new(int listener, struct trace_writer *w, struct recorder **ret);
void recorder_free(struct recorder *r);
/*
 * Takes in who is waiting, and writes what is in the rings now. *ret_rows: how many. A negative
 * errno is what writing gave; nothing more can be written then.
 */
int recorder_pass(struct recorder *r, uint64_t *ret_rows);
void recorder_totals(struct recorder *r, struct recorder_totals *ret);

#endif
