/* SPDX-License-Identifier: MIT */
/*
 * Reads (and steers) a target's segment without trusting it.
 *
 * segreader_open() takes a memfd from a stranger: it checks seals, real size, magic, layout,
 * counts, strides, offsets and alignment, with the reason of a refusal as text that can be sent
 * back. After that only loads of single words happen, each checked where it is used; the file is
 * sealed against shrinking, so no load can fault.
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
	uint32_t max_cpus; /* slots per zone */
	uint64_t max_bytes;
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
	size_t bytes;
};
void segreader_info(const struct segreader *sr, struct segreader_info *ret);
uint32_t segreader_mode(const struct segreader *sr);
/* Sums over zones and CPUs that shape needs; host_cpus, budget and interval are left alone. */
void segreader_shape(const struct segreader *sr, struct pcptune_shape *shape);

/*
 * One pass over all CPUs. cpus: n_zones * n_cpus entries that the caller keeps from call to call;
 * deltas against the previous pass are stored in them (0 and no ACTIVE flag for CPUs at rest),
 * gauges and count are refreshed, zone/cpu are set. The flags SETTLING and HELD are the caller's
 * and kept. active: room for all indexes. The first pass after open counts from zero, so that
 * short-lived targets are not lost; segreader_rebase() makes the next pass a baseline instead
 * (reconnect). Returns the number of active CPUs.
 */
uint32_t segreader_sample(struct segreader *sr, struct pcptune_cpu *cpus, uint32_t *active);
void segreader_rebase(struct segreader *sr);

/* Zone and process words by the ids of counters.def, as they are now. */
struct segreader_zone {
	uint32_t id;
	int32_t node;
#define PCPTUNE_ZGAUGE(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};
void segreader_zone(const struct segreader *sr, uint32_t zone, struct segreader_zone *ret);
struct segreader_proc {
#define PCPTUNE_PROC(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};
void segreader_proc(const struct segreader *sr, struct segreader_proc *ret);
/* Cumulative values of one CPU since its segment was made (counters), and gauges. */
void segreader_cpu_total(struct segreader *sr, uint32_t index, struct pcptune_cpu *ret);
/* The description table of the segment itself, row i; false: no such row, or damaged. */
bool segreader_desc(const struct segreader *sr, uint32_t i, struct pcptune_desc *ret);

/* ---- control ---- */
struct control {
	uint32_t high, high_min, high_max, batch, scale_max, rules, drain;
	uint64_t decision;
};
/* Writes the words and then seq; *ret_seq is what ack must become. Wake separately. */
void segreader_control_write(struct segreader *sr, uint32_t index, const struct control *c,
			     uint32_t *ret_seq);
/* What the words say now, and the two sequence numbers: for the foreign-change check. */
void segreader_control_read(const struct segreader *sr, uint32_t index, struct control *ret,
			    uint32_t *ret_seq, uint32_t *ret_ack);
/* until: CLOCK_MONOTONIC ns, 0: none, UINT64_MAX: for good. */
void segreader_lease(struct segreader *sr, uint64_t until_ns);
void segreader_wake(struct segreader *sr);

#endif
