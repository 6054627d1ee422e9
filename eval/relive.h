/* SPDX-License-Identifier: MIT */
/*
 * Policies over the records of a log: what each would have caused, had it been in force.
 *
 * A closed loop, as over a trace (closed.h), but in steps of records: the swings of each CPU's
 * lists (pcptune/tracker.h) are played at the high that the policy has set, and what that would
 * have moved makes the next sample that the policy sees. One step is the time of one record for
 * each CPU: as often as they were taken where the log still has them so, a minute or an hour where
 * they were merged. Policies that ask for records are given them.
 *
 * Batches that grow depend on runs of calls, which no record has; the rules are tried on walks with
 * the same swings, and corrected by what was measured where they were in force (growth.h). high
 * that moves by rules of its own is taken where what refills add and what decay takes are equal.
 * Waits are scaled from those that were measured.
 *
 * Everything adds up in integers, so results of several targets, logs and runs can be added in any
 * order (relive_add()).
 */
#ifndef PCPTUNE_EVAL_RELIVE_H
#define PCPTUNE_EVAL_RELIVE_H

#include <stdbool.h>
#include <stdint.h>
#include "lib/logstore.h"
#include "policies/host.h"

#define RELIVE_WHY 256u /* not less than POLICY_WHY, WALKS_WHY */

enum relive_kind {
	RELIVE_POLICY,	 /* a policy with its parameters */
	RELIVE_RECORDED, /* the policies that the log names, each in its time */
	RELIVE_AS_SET,	 /* no policy: the limits as they were */
};

/* What one row came to, or what was measured. Pages, times, ns. */
struct relive_sums {
	uint64_t alloc_zone, free_zone;
	uint64_t moved; /* pages between lists and zone, both ways: what high can change */
	uint64_t lock_takes, lock_contended, wait_ns;
	uint64_t free_high;    /* measured only */
	uint64_t held_page_ms; /* pages held x time */
	uint64_t held_peak;    /* the largest of a target at the end of a step */
	uint64_t decisions, turns, breaches;
	uint64_t memory;	 /* what the best static split got */
	uint64_t split, n_split; /* its pages, and of how many targets */
	/* records played with batches that grow where the log's did not: never measured */
	uint64_t grown;
	uint64_t orders; /* records played with lists of other orders than the log's */
};

/* What the log has, and what it can not tell. */
struct relive_log {
	uint64_t targets, cpus, records, steps;
	uint64_t covered_ms; /* of the targets' times, in records */
	uint64_t cpu_us;     /* of each CPU */
	uint64_t alloc_pages, free_pages;
	struct relive_sums measured;
	uint64_t holes;	       /* records with something missing before them */
	uint64_t moved_high;   /* records in which high moved */
	uint64_t collapsed;    /* swings counted early because there were too many at once */
	uint64_t unrecorded;   /* pages allocated and freed that are in samples and in no record */
	uint64_t damaged;      /* rows that could not be read */
	uint64_t bare_targets; /* targets that did something and have no record */
	uint64_t least_budget; /* the smallest that every target could be run with */
};

struct relive_job {
	enum relive_kind kind;
	struct policy_module *module; /* of RELIVE_POLICY */
	int64_t params[POLICY_MAX_PARAMS];
	/* out, added to */
	struct relive_sums sums;
	int error;
	char why[RELIVE_WHY];
};

struct relive_options {
	uint64_t budget; /* pages for the sum of high; 0: the one of the log */
	unsigned threads;
	const char *policy_path; /* for RELIVE_RECORDED */
	/* each policy that the log names, in order; may be NULL */
	void (*on_recorded)(void *cookie, const char *policy);
	void *cookie;
};

/*
 * Runs all jobs over one target. Adds to *log and to each job that has no error yet. A target
 * without records adds to *log alone. 0, or -errno with why (RELIVE_WHY bytes): the log can not be
 * read. -ERANGE: the budget is too little, why says what is needed.
 */
int relive_target(struct logstore *ls, const struct log_target *t, const struct relive_options *o,
		  struct relive_job *jobs, size_t n, struct relive_log *log, char *why);

void relive_add(struct relive_sums *a, const struct relive_sums *b);
void relive_log_add(struct relive_log *a, const struct relive_log *b);

#endif
