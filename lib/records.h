/* SPDX-License-Identifier: MIT */
/*
 * Packed records of the band tracker: what goes into the log now and then for each CPU, and back.
 *
 * A record says what the lists of a CPU did over some time: the swings of their net position
 * (pcptune/tracker.h), from which the traffic at any `high` follows, and beside them what was
 * measured at the `high` that was in force. Packed it takes some 60 to 200 bytes: turning points as
 * differences, and of the histogram the buckets that are not empty.
 *
 * The coding is exact, so that a policy that is replayed sees the records that the daemon's policy
 * saw. Records of one CPU merge without loss: records_merge() makes of those of a minute one for
 * each CPU, which is what a single record over that minute would have been. Where something is
 * missing in between (PCPTUNE_RECORD_BROKEN, or positions that do not meet) they are left apart.
 *
 * Nothing here keeps more than a bounded number of unpacked records (3 KiB each). One thread for
 * each writer and reader. The reader trusts nothing: any bytes give 0, -EBADMSG or a record whose
 * numbers can be computed with.
 */
#ifndef PCPTUNE_LIB_RECORDS_H
#define PCPTUNE_LIB_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>
#include "lib/varint.h"

/* Positions are within this of 0, and no count or sum is above RECORDS_SUM_MAX. */
#define RECORDS_POSITION_MAX (INT64_C(1) << 56)
#define RECORDS_SUM_MAX	     (UINT64_C(1) << 60)

struct log_record {
	struct pcptune_record r;
	uint64_t seq;	  /* sample that it came with; merged: the last of them */
	uint64_t time_us; /* its end, CLOCK_BOOTTIME */
	uint32_t parts;	  /* records that it was merged from; 1: as it was read */
	bool given;	  /* the policy saw it with that sample */
	/* over r.dt_us, as in docs/counters.md */
	uint64_t alloc_pages, free_pages, alloc_direct, free_direct, free_high;
	uint64_t lock_taken, lock_contended, lock_wait_ns; /* paths alloc and free */
	/* at its end; high_least and high_most: of high at its ends */
	uint32_t count, high, high_least, high_most, batch, scale_max, rules;
};

/* ---- writing ---- */

struct records_writer {
	uint8_t *data;
	size_t len, room;
	uint32_t n;			       /* records in it */
	uint64_t seq_first, seq_last, time_us; /* of them; time_us: the latest end */
};

/* -ENOMEM, or -ERANGE for a record that no reader would take; it is not in there then. */
int records_add(struct records_writer *w, const struct log_record *r);
/* Empties w and keeps its memory. */
void records_reset(struct records_writer *w);
void records_free(struct records_writer *w);

/* ---- reading ---- */

struct records_reader {
	struct varint_input in;
	bool begun;
};

/* data must stay until the last records_next(). */
void records_begin(struct records_reader *rd, const uint8_t *data, size_t len);
/* 1: a record, 0: the end, -EBADMSG: damaged, for good. */
int records_next(struct records_reader *rd, struct log_record *ret);

/* ---- merging ---- */

/*
 * a becomes the record over a and then b, of the same CPU. false: they do not meet, and a is as it
 * was.
 */
bool log_record_merge(struct log_record *a, const struct log_record *b);

struct records_part {
	const uint8_t *data;
	size_t len;
};
/*
 * Adds to w what the parts, in the order of time, come to: for each CPU one record, or more where
 * they do not meet. Those of one CPU are in order of time. -ENOMEM, -EBADMSG: w has part of it.
 */
int records_merge(const struct records_part *parts, size_t n, struct records_writer *w);

#endif
