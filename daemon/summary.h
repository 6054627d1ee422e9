/* SPDX-License-Identifier: MIT */
/*
 * Totals of a run: all targets that carry the same tag, those that ended included.
 */
#ifndef PCPTUNE_DAEMON_SUMMARY_H
#define PCPTUNE_DAEMON_SUMMARY_H

#include "daemon/target.h"

struct run_totals {
	uint64_t tag;
	uint32_t targets, live;
	struct totals counters;
	struct segreader_proc proc;
	uint64_t cpu_us, held, held_peak, decisions;
	bool cpu_known; /* of every target that used a measurable time */
	bool dry_run;	/* of any target */
};

int summary_new(struct daemon *d, struct summary **ret);
void summary_free(struct summary *s);
/* A target comes, goes, or its held pages change. Targets without a tag are ignored. */
void summary_enter(struct summary *s, struct target *t);
void summary_leave(struct summary *s, struct target *t);
void summary_held(struct target *t, uint64_t before, uint64_t now);
/* Totals up to now. -ENOENT: no such tag (or ended so long ago that it was dropped). */
int summary_get(struct summary *s, uint64_t tag, struct run_totals *ret);

#endif
