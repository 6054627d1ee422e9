/* SPDX-License-Identifier: MIT */
/*
 * A target: one attached process, its segment, its policy, and what the daemon knows of each of
 * its CPUs.
 *
 * Written by: attach.c (life), sample.c (samples, windows), record.c (records),
 * decide.c (runs of no change, kept), assign.c (policy), apply.c (words, marks, inflight),
 * effect.c (buckets, effects), journal_rows.c (log rows).
 */
#ifndef PCPTUNE_DAEMON_TARGET_H
#define PCPTUNE_DAEMON_TARGET_H

#include <event2/event.h>
#include <time.h>
#include "daemon/choice.h"
#include "daemon/daemon.h"
#include "lib/codec.h"
#include "lib/logstore.h"
#include "lib/records.h"
#include "lib/segreader.h"

enum mark_flags {
	MARK_PINNED = 1u << 0,	 /* by the operator, until unset */
	MARK_DRIFT = 1u << 1,	 /* somebody else wrote the words: hands off */
	MARK_INFLIGHT = 1u << 2, /* written, not yet taken over */
	MARK_CHANGED = 1u << 3,	 /* we wrote since the attachment; `orig` is set */
	MARK_SETTLING = 1u << 4,
	MARK_INHERITED =
		1u << 5, /* an earlier daemon wrote: `orig` is its value, not the program's */
};

/* What the daemon keeps of one CPU. */
struct mark {
	struct control words;	  /* as written by us, or as found at the attachment */
	uint32_t seq;		  /* that belongs to them */
	uint32_t flags;		  /* enum mark_flags */
	int64_t decision;	  /* last one written, 0: none */
	uint64_t settle_until_us; /* boot clock */
	struct limits orig;	  /* before our first change, or at the attachment */
	struct limits dry;	  /* last proposal of a dry run */
	uint32_t repeats;	  /* of a change that does not show */
};

/* A decision that was written and that the target has not taken over yet. */
struct inflight {
	uint32_t index;
	bool logged; /* its outcome "written" is in the log */
	int64_t decision;
};

/* Consecutive "no change" answers of one reason. */
struct nochange_run {
	int64_t row; /* 0: not in the log yet */
	uint32_t reason;
	uint64_t seq_first, seq_last, n;
};

struct totals {
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone, alloc_direct, free_direct;
	uint64_t refills, drains, free_high;
	uint64_t taken[3], contended[3], wait_ns[3]; /* alloc, free, agent */
};

struct effects;	 /* effect.c */
struct recorder; /* record.c */
struct starting; /* assign.c */
struct tag;	 /* summary.c */

/* The sample that a foreign policy was asked about. */
struct kept {
	bool asked; /* and it has not answered yet */
	struct pcptune_sample s;
	struct pcptune_cpu *cpus;
	void *records;
};

struct target {
	struct daemon *d;
	uint64_t id;
	int fd;
	struct event *ev;
	struct segreader *sr;
	struct segreader_info info;
	struct pcptune_shape shape;
	int64_t pid; /* as we see it, 0: not visible */
	uint32_t uid;
	bool reconnect;
	bool can_record; /* knows PCPTUNE_REQUEST_RECORD */
	struct logstamp attached;
	uint32_t n; /* entries: zones x slots */

	/* policy */
	struct choice active;	  /* in force */
	struct choice configured; /* by the rules, to see what a reload changes */
	struct policy_instance *pi;
	bool by_operator, benched, fresh; /* fresh: the instance has seen no sample yet */
	bool suspect;			  /* its policy may be slow: measured more exactly */
	bool stands_in;			  /* `static` is here until another one is ready */
	uint32_t breaches;		  /* of the choice, in whatever instance */
	struct foreign *foreign;	  /* the process of pi's policy, NULL: it runs here */
	struct starting *starting;	  /* a foreign policy that will take over, NULL: none */
	struct kept kept;
	bool canary;		/* the policy in force has not all CPUs yet */
	bool go_back;		/* and will not get them: `previous` is to take over */
	struct choice previous; /* what a canary goes back to */
	bool previous_by_operator;
	char policy_why[200];
	uint64_t rest_until_us;
	struct nochange_run run;	/* open */
	struct nochange_run *done_runs; /* closed, to be logged */
	uint32_t n_done_runs, max_done_runs;

	/* sampling */
	struct pcptune_cpu *cpus;
	uint32_t *active_cpus;
	uint32_t *counts; /* count of each CPU at its last sample, for `held` */
	uint64_t held, held_peak;
	uint64_t seq, last_us, last_cpu_us, cpu_us, cpu_us_base;
	uint64_t long_holds; /* as of the last sample, if known */
	bool cpu_known, gap, long_holds_known;
	clockid_t cpu_clock;
	struct recorder *rec;
	uint64_t record_due_us;	       /* boot clock; UINT64_MAX: never */
	struct records_writer records; /* not in the log yet, since records_since_us */
	uint64_t records_since_us;
	struct pcptune_encoder *enc;
	uint64_t chunk_due_us;	       /* boot clock */
	bool gathered;		       /* there is something to write */
	struct totals base;	       /* before the attachment (reconnect), else zero */
	struct pcptune_cpu *base_cpus; /* only after a reconnect */

	/* the window of about a second that contend% is shown over */
	uint64_t window_end_us, window_cpu_us, window_wait_ns, shown_cpu_us, shown_wait_ns;
	uint64_t *window_wait, *shown_wait; /* per CPU */

	/* acting */
	struct mark *marks;
	struct inflight *inflight; /* room for n */
	uint32_t n_inflight;
	uint32_t *settling; /* indexes, room for n */
	uint32_t n_settling;
	uint32_t check_next; /* round-robin of the foreign-change check */
	bool wake;	     /* written to, not woken yet */
	uint64_t decisions;  /* applied, or would have been */
	struct effects *effects;

	/* log rows; 0: not in the log */
	int64_t log_id, log_assignment, log_operator;
	uint64_t log_txn, assignment_txn, chunk_txn; /* transactions that wrote them last */
	bool broken;	    /* the log misses a sample or decision: a new assignment is needed */
	bool mend_due;	    /* it is made when the policy has answered */
	uint64_t seq_state; /* seq of the last state in the log */

	struct tag *tag; /* totals of its run, NULL: no tag */
};

/*
 * Makes a target of an open segment, chooses its policy and enters it into d. On success sr and
 * fd belong to it. why: POLICY_WHY bytes.
 */
int target_new(struct daemon *d, struct segreader *sr, int fd, int64_t pid, uint32_t uid,
	       bool reconnect, struct target **ret, char *why);
/* Takes the last sample, closes its log rows and frees it. how: static text. */
void target_end(struct target *t, const char *how);
/* NULL: none. */
struct target *target_by_id(struct daemon *d, uint64_t id);
/* The attached target with this identity, same user. */
struct target *target_by_identity(struct daemon *d, const struct segreader_info *info,
				  uint32_t uid);

/* Fills the parts of the shape that the configuration says. */
void target_shape(const struct target *t, const struct config *c, struct pcptune_shape *shape);
/* Stores the lease of every target. */
void targets_lease(struct daemon *d);
/* Totals since the attachment, read from the segment now. */
void target_totals(struct target *t, struct totals *ret);
/* Totals of one CPU since the attachment. */
void target_cpu_total(struct target *t, uint32_t index, struct pcptune_cpu *ret);
/* Has it a policy with a process of its own, and that no filter of system calls? */
bool target_unfiltered(const struct target *t);
/* CPU time since the attachment as of the last sample or now; false: not known. */
bool target_cpu_time(struct target *t, bool now, uint64_t *ret_us);

#endif
