/* SPDX-License-Identifier: MIT */
/*
 * The decision log: an sqlite database in WAL mode, one writer.
 *
 * What is where: `run` (one row a daemon start), `target` (one an attachment), `assignment` (a
 * policy with its version and parameters on a target), `sample` (chunks of packed samples with
 * plain totals), `record` (packed records of the band tracker), `decision` (one row for every
 * change that was, or would have been, applied), `nochange` (runs of "no change" answers), `event`
 * (gaps, restarts, refusals, losses), `counter_def`, `state` (policy state, so that a replay can
 * begin in the middle). The schema and its meaning are in docs/log.md and in the comments of
 * lib/logstore.c.
 *
 * A decision is committed before it takes effect. Samples that were not yet written are written in
 * the same transaction, so that each decision can be re-derived from the log alone.
 *
 * Every function returns 0 or a negative errno (-EIO for what sqlite calls an error, -ENOSPC full,
 * -EROFS read-only, -EBUSY locked, -EINVAL a row that refers to one that is not there, -ENOENT an
 * update that met no row); logstore_error() has the text. Output arguments are untouched on
 * failure. None blocks for longer than the busy time-out given to open. A handle belongs to one
 * thread; no function is safe in a signal handler or across fork().
 */
#ifndef PCPTUNE_LIB_LOGSTORE_H
#define PCPTUNE_LIB_LOGSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>
#include "lib/codec.h"
#include "lib/records.h"

#define LOGSTORE_SCHEMA 2

struct logstore;

struct logstore_options {
	uint64_t max_bytes; /* bound of database + WAL; the oldest raw samples are merged away */
	bool full_sync;	    /* synchronous=FULL: decisions survive power loss, too */
	uint32_t busy_ms;   /* time-out */
};

/* Clocks of a row, both. */
struct logstamp {
	uint64_t boot_us; /* CLOCK_BOOTTIME */
	uint64_t wall_us; /* CLOCK_REALTIME */
};
struct logstamp logstamp_now(void);

/*
 * Opens for writing, creates parent directories (0700) and the file (0600), checks application id
 * and schema version before any write. A file of an older schema is brought up to this one, in one
 * transaction, and read as it is by logstore_open_ro(). A file of a newer schema: -EPROTONOSUPPORT.
 * A damaged file is renamed to PATH.damaged-N and a new one begun; *ret_set_aside (may be NULL)
 * then says so (free() it). A file that is not a log of ours: -EINVAL, left alone. why: 256 bytes.
 */
int logstore_open(const char *path, const struct logstore_options *opt, struct logstore **ret,
		  char **ret_set_aside, char *why);
/*
 * Other options for an open store. There is no second logstore_open() of a file that is open:
 * closing any descriptor of it would give up the locks that sqlite believes to hold.
 */
int logstore_set_options(struct logstore *ls, const struct logstore_options *opt);
/* Read-only, works beside a live writer and on a file whose directory can not be written. */
int logstore_open_ro(const char *path, struct logstore **ret, char *why);
void logstore_close(struct logstore *ls); /* truncating checkpoint when writing */
const char *logstore_error(const struct logstore *ls);
const char *logstore_path(const struct logstore *ls);

/*
 * Transactions nest by count; commit of the outermost writes. rollback ends all levels. A write
 * that fails dooms its transaction: further writes and the commits give the same error and nothing
 * of it is in the file; the outermost commit or a rollback ends it, and the store can be used
 * again.
 */
int logstore_begin(struct logstore *ls);
int logstore_commit(struct logstore *ls);
void logstore_rollback(struct logstore *ls);

/* ---- writing ---- */
int logstore_run_begin(struct logstore *ls, struct logstamp t, const char *version,
		       const char *config, int64_t *ret_run);
int logstore_run_end(struct logstore *ls, int64_t run, struct logstamp t, const char *why);

struct log_target {
	int64_t id, run;
	char name[PCPTUNE_NAME_MAX];
	uint32_t pid; /* as the daemon sees it, 0: not visible */
	uint32_t uid;
	uint64_t start_boot_ns, random_id, run_tag;
	uint32_t mode, seg_flags;
	struct pcptune_shape shape;
	struct logstamp attached, detached; /* detached 0: not (yet) */
	char end[64];			    /* how it ended; empty: not yet */
};
int logstore_target_add(struct logstore *ls, struct log_target *t); /* sets t->id */
int logstore_target_end(struct logstore *ls, int64_t target, struct logstamp t, const char *how);

struct log_assignment {
	int64_t id, target;
	uint64_t seq_first; /* first sample that this instance sees */
	struct logstamp t;
	char policy[32];
	char version[32];
	char params[1024];	    /* policy_params_text() */
	char why[128];		    /* which rule of the configuration chose it */
	struct pcptune_shape shape; /* as given to the instance */
};
int logstore_assignment_add(struct logstore *ls, struct log_assignment *a); /* sets a->id */

/*
 * -ENOSPC without a disk being full: a foreign reader keeps the journal from being emptied and it
 * has grown above 1/8 of max_bytes. Decisions are still taken then.
 */
int logstore_samples_add(struct logstore *ls, int64_t target, struct logstamp t,
			 const struct chunk_totals *totals, const uint8_t *data, size_t len);

/*
 * Records that came with samples (lib/records.h), in the same transaction as those; w is not empty.
 */
int logstore_records_add(struct logstore *ls, int64_t target, struct logstamp t,
			 const struct records_writer *w);

enum log_outcome {
	LOG_JOURNALED = 0,  /* on disk, not yet written to the target */
	LOG_WRITTEN = 1,    /* control words written, not yet taken over */
	LOG_APPLIED = 2,    /* taken over by the target */
	LOG_DRY_RUN = 3,    /* would have been applied */
	LOG_SUPERSEDED = 4, /* another decision for this CPU came first */
	LOG_GONE = 5,	    /* the target ended before */
	LOG_DRIFT = 6,	    /* somebody else changed the words: we backed off */
	LOG_FAILED = 7,
};
const char *log_outcome_name(int outcome);

struct log_limits {
	uint32_t high, high_min, high_max, batch, scale_max, rules;
};

struct log_decision {
	int64_t id, target, assignment;
	uint64_t seq; /* sample it came from */
	struct logstamp t;
	uint32_t zone, cpu;
	uint32_t reason;
	char reason_name[32];
	int64_t arg[4];
	struct log_limits old, proposed, clamped;
	int outcome;
	/* effect: totals of this CPU over n samples before and after; n 0: not yet known */
	uint32_t effect_n;
	uint64_t before_alloc_pages, before_alloc_zone, before_wait_ns, before_held;
	uint64_t after_alloc_pages, after_alloc_zone, after_wait_ns, after_held;
};
int logstore_decision_add(struct logstore *ls, struct log_decision *d); /* sets d->id */
int logstore_decision_outcome(struct logstore *ls, int64_t id, int outcome);
int logstore_decision_effect(struct logstore *ls, const struct log_decision *d); /* effect fields */

/* "No change" from seq_first to seq_last, n answers, one row a run; id 0 in *row: insert. */
int logstore_nochange(struct logstore *ls, int64_t *row, int64_t assignment, uint32_t reason,
		      const char *reason_name, uint64_t seq_first, uint64_t seq_last, uint64_t n);
/* target 0: of the daemon */
int logstore_event(struct logstore *ls, int64_t run, int64_t target, struct logstamp t,
		   const char *kind, const char *text);
int logstore_state_add(struct logstore *ls, int64_t assignment, uint64_t seq, const void *state,
		       size_t size);
/*
 * Housekeeping, bounded work a call: checkpoint, merge of old raw chunks into 1 min rows, size
 * bound. Call about once a second, outside transactions. *ret_more: call again soon.
 */
int logstore_maintain(struct logstore *ls, bool *ret_more);

/*
 * ---- reading; callbacks return 0 to go on, else the query stops with that value ----
 * No statement is open while a callback runs: it may take its time and may use the store.
 */
struct log_filter {
	int64_t target;	  /* 0: all */
	const char *name; /* NULL: all */
	const char *policy;
	int64_t cpu;	   /* -1: all */
	uint64_t run_tag;  /* 0: all */
	int64_t after_id;  /* decisions with a larger id only */
	int64_t before_id; /* decisions with a smaller id only; 0: all */
	bool in_zone;	   /* decisions of `zone` only */
	uint32_t zone;
	const char *reason; /* decisions for the reason of this name only; NULL: all */
	uint64_t since_wall_us;
	uint32_t limit; /* 0: none */
	bool newest;	/* the newest `limit` rows (still handed out oldest first) */
};
typedef int (*log_decision_cb)(const struct log_decision *d, const struct log_target *t,
			       const struct log_assignment *a, void *cookie);
int logstore_decisions(struct logstore *ls, const struct log_filter *f, log_decision_cb cb,
		       void *cookie);
int logstore_decision_get(struct logstore *ls, int64_t id, struct log_decision *ret,
			  struct log_target *ret_t, struct log_assignment *ret_a); /* -ENOENT */
int logstore_targets(struct logstore *ls, const struct log_filter *f,
		     int (*cb)(const struct log_target *t, void *cookie), void *cookie);
int logstore_assignments(struct logstore *ls, int64_t target,
			 int (*cb)(const struct log_assignment *a, void *cookie), void *cookie);
/* Raw chunks of a target with seq_last >= from, in order. */
int logstore_chunks(struct logstore *ls, int64_t target, uint64_t from,
		    int (*cb)(const struct chunk_totals *totals, struct logstamp t,
			      const uint8_t *data, size_t len, void *cookie),
		    void *cookie);
/* A row of records: as they came with samples (level 0), or merged over a minute or an hour. */
struct log_records_row {
	uint32_t level;
	uint64_t seq_first, seq_last; /* samples */
	uint64_t time_us;	      /* the latest end in it, CLOCK_BOOTTIME */
	struct logstamp t;	      /* when it was written */
};
/* Rows of a target with seq_last >= from, oldest first: merged ones before those of level 0. */
int logstore_records(struct logstore *ls, int64_t target, uint64_t from,
		     int (*cb)(const struct log_records_row *row, const uint8_t *data, size_t len,
			       void *cookie),
		     void *cookie);
/*
 * Holds the log still for the reads up to logstore_snapshot_end(): they see what was committed when
 * it began. It keeps a writer from emptying its journal, so it should last for no longer than it
 * takes to read. A store opened read-only, without a transaction; one at a time. 0 or -errno.
 */
int logstore_snapshot(struct logstore *ls);
void logstore_snapshot_end(struct logstore *ls);
/*
 * The rows that logstore_records() has, in their order, kept beside the log in a file without a
 * name (TMPDIR): one moment's, if it is made within a snapshot. Freed by the caller; may be read by
 * any number of threads. 0, -ENOMEM, -ENOSPC ...: no copy.
 */
struct log_copy;
int logstore_records_copy(struct logstore *ls, int64_t target, struct log_copy **ret);
void log_copy_free(struct log_copy *c);
/* The row at *io_at, 0 for the first, and on to the next. false: there are no more. */
bool log_copy_next(const struct log_copy *c, size_t *io_at, struct log_records_row *ret,
		   const uint8_t **ret_data, size_t *ret_len);
/* Totals of all samples of a target that the log has, of every level; 0 where there are none. */
int logstore_sample_totals(struct logstore *ls, int64_t target, struct chunk_totals *ret);
/* Latest state of an assignment with seq <= before; -ENOENT: none. free() *ret_state. */
int logstore_state_get(struct logstore *ls, int64_t assignment, uint64_t before, uint64_t *ret_seq,
		       void **ret_state, size_t *ret_size);
int logstore_events(struct logstore *ls, const struct log_filter *f,
		    int (*cb)(int64_t id, int64_t target, struct logstamp t, const char *kind,
			      const char *text, void *cookie),
		    void *cookie);
/* PRAGMA integrity_check: 0 or -EUCLEAN. */
int logstore_check(struct logstore *ls);

#endif
