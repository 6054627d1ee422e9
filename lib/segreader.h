/* SPDX-License-Identifier: MIT */
/*
 * Reads (and steers) a target's segment without trusting it.
 *
 * segreader_open() takes a memfd from a stranger: it checks seals, real size, magic, layout,
 * counts, strides, offsets and alignment, with the reason of a refusal as text that can be sent
 * back. After that only loads of single words happen, each checked where it is used; the file is
 * sealed against shrinking, so no load can fault.
 *
 * A reader is used by one thread at a time; the target may do what it wants meanwhile. Nothing here
 * blocks, and nothing but segreader_open() allocates or fails.
 */
#ifndef PCPTUNE_LIB_SEGREADER_H
#define PCPTUNE_LIB_SEGREADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>
#include <pcptune/segment.h>

struct segreader;

struct segreader_limits {
	uint32_t max_cpus;  /* slots per zone; 0: PCPTUNE_MAX_CPUS */
	uint64_t max_bytes; /* of the file; 0: no bound */
};

/*
 * fd is taken over on success only (it is closed after mapping). why: at least 160 bytes, filled
 * on failure. -EPROTO: the segment breaks the contract; other codes: the system's.
 */
int segreader_open(int fd, const struct segreader_limits *limits, struct segreader **ret, char *why,
		   size_t why_size);
void segreader_close(struct segreader *sr);

/* Facts that can not change. Strings are NUL-terminated and printable. */
struct segreader_info {
	char name[PCPTUNE_NAME_MAX];
	uint32_t pid; /* as the target sees it */
	uint64_t start_boot_ns, random_id, run_tag;
	uint32_t n_zones, n_cpus, n_lists;
	int32_t nodes[PCPTUNE_MAX_ZONES];
	uint32_t flags;
	uint32_t grain; /* of the band trackers, pages; 0: no records */
	size_t bytes;
};
void segreader_info(const struct segreader *sr, struct segreader_info *ret);
uint32_t segreader_mode(const struct segreader *sr);
/* Sums over zones and CPUs that shape needs; host_cpus, budget and interval are left alone. */
void segreader_shape(const struct segreader *sr, struct pcptune_shape *shape);

/*
 * One pass over all CPUs. cpus: n_zones * n_cpus entries that the caller keeps from call to call
 * (what did not change since the last pass is not stored again: other entries, not other contents);
 * deltas against the previous pass are stored in them (0 and no ACTIVE flag for CPUs at rest),
 * gauges and count are refreshed, zone/cpu are set. The flags SETTLING and HELD are the caller's
 * and kept. active: room for all indexes. The first pass after open counts from zero, so that
 * short-lived targets are not lost; segreader_rebase() makes the next pass a baseline instead
 * (reconnect). Returns the number of active CPUs.
 *
 * A CPU is UNKNOWN for a pass when a counter went back or moved further than an interval can
 * explain (then the next pass counts from what it is now), or when a list was too busy to be read
 * (then the next pass has both intervals). Gauges are bounded to the ranges of segment.h and
 * rules.h, whatever the target wrote. zone, index: in range, or the behaviour is undefined.
 */
uint32_t segreader_sample(struct segreader *sr, struct pcptune_cpu *cpus, uint32_t *active);
/* A hint for the next pass: `next` is looked at right after it; it has to live so long. */
void segreader_next(struct segreader *sr, struct segreader *next);
void segreader_rebase(struct segreader *sr);

/* Zone and process words by the ids of counters.def, as they are now. */
struct segreader_zone {
	uint32_t id;
	int32_t node;
#define PCPTUNE_ZGAUGE(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
#define PCPTUNE_HOLD(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};
void segreader_zone(const struct segreader *sr, uint32_t zone, struct segreader_zone *ret);
/*
 * What `permille` (0 .. 1000) of the holds of the zone lock did not exceed, in ns, rounded up to
 * the end of its row of the histogram, or to the longest hold; 0: no hold yet.
 */
uint64_t segreader_hold_ns(const struct segreader_zone *z, unsigned permille);
/* Holds of all zones since the segment was made that took 65536 ns or longer. */
uint64_t segreader_long_holds(const struct segreader *sr);
struct segreader_proc {
#define PCPTUNE_PROC(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};
void segreader_proc(const struct segreader *sr, struct segreader_proc *ret);
/*
 * Cumulative values of one CPU since its segment was made (counters), and gauges. flags is 0, or
 * PCPTUNE_CPU_UNKNOWN with counters of 0 when they could not be read or make no sense. Operations
 * before the first pass are known modulo 2^40 a list.
 */
void segreader_cpu_total(struct segreader *sr, uint32_t index, struct pcptune_cpu *ret);
/*
 * What the lists of one CPU did since its record before, or since its segment was made: `band`,
 * `index`, and `flags` (PCPTUNE_RECORD_BROKEN: something before it is missing, or could not be
 * counted); all other members are 0. Ends that record in the target and begins the next, for all
 * readers: there should be one. Costs a copy of 1.7 KiB. A band of one point says that nothing
 * happened, one of none that the CPU was never used.
 *
 * false, and *ret is not to be used: the target has no trackers (grain 0 in segreader_info), its
 * lists are locked just now (the next call goes on with the same record), what it wrote makes no
 * sense (the next record is BROKEN), or there is no memory.
 */
bool segreader_record(struct segreader *sr, uint32_t index, struct pcptune_record *ret);
/* The description table of the segment itself, row i; false: no such row, or damaged. */
bool segreader_desc(const struct segreader *sr, uint32_t i, struct pcptune_desc *ret);

/* ---- control ---- */
struct control {
	uint32_t high, high_min, high_max, batch, scale_max, rules, drain;
	uint64_t decision;
};
/*
 * Writes the words and then seq (release); *ret_seq is what ack must become, never 0. PCPTUNE_KEEP
 * in a value leaves it alone. Wake separately, once for all CPUs.
 */
void segreader_control_write(struct segreader *sr, uint32_t index, const struct control *c,
			     uint32_t *ret_seq);
/* What the words say now, and the two sequence numbers: for the foreign-change check. */
void segreader_control_read(const struct segreader *sr, uint32_t index, struct control *ret,
			    uint32_t *ret_seq, uint32_t *ret_ack);
/* until: CLOCK_MONOTONIC ns, 0: none, UINT64_MAX: for good. */
void segreader_lease(struct segreader *sr, uint64_t until_ns);
/* Wakes the target's agent: all words written before are seen by it. */
void segreader_wake(struct segreader *sr);

#endif
