/* SPDX-License-Identifier: MIT */
/*
 * The daemon's side of the log: what is written when, and what happens when it can not be.
 *
 * States. OFF: the configuration wants no log. OK. LOST: a write failed; nothing is written until
 * journal_housekeeping() finds, with growing pauses, that writing works again. While LOST, samples
 * and decisions are counted as lost; with log.required decisions are held instead
 * (journal_holds()).
 *
 * Writes are gathered in transactions. journal_begin() opens one, or joins the one that is open;
 * functions that write outside of an explicit transaction leave it open, and it is committed at
 * the latest 50 ms later. A failed transaction is rolled back whole.
 */
#ifndef PCPTUNE_DAEMON_JOURNAL_H
#define PCPTUNE_DAEMON_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>
#include "daemon/daemon.h"
#include "daemon/target.h"

enum journal_state { JOURNAL_OFF, JOURNAL_OK, JOURNAL_LOST };

#define JOURNAL_WHY 256u

/*
 * Opens the log as d->config says. A log that can not be written is an error only with
 * log.required; else it begins LOST. why: JOURNAL_WHY bytes.
 */
int journal_new(struct daemon *d, struct journal **ret, char *why);
/* Ends the run and closes the log. */
void journal_free(struct journal *j, const char *why);
/* Is the log at path usable? Changes nothing on the disk. */
int journal_probe(const struct config *c, char *why);

/* journal_commit() returns whether everything since journal_begin() is on disk. */
bool journal_begin(struct journal *j);
bool journal_commit(struct journal *j);

/* Rows of a target. Each may be called in any state. */
void journal_target(struct journal *j, struct target *t);
void journal_target_end(struct journal *j, struct target *t, const char *how);
/* Before t's policy changes: its runs of no change belong to the old one. */
void journal_before_assignment(struct journal *j, struct target *t);
/* A new policy of t, beginning with its next sample. */
void journal_assignment(struct journal *j, struct target *t);
/* t NULL: of the daemon. text may hold anything. */
__attribute__((format(printf, 4, 5))) void journal_event(struct journal *j, struct target *t,
							 const char *kind, const char *fmt, ...);

/* One sample: goes into the open chunk of t, or is counted as lost. */
void journal_sample(struct journal *j, struct target *t, const struct pcptune_sample *s);
/* Records that came with that sample, or with the last one. */
void journal_records(struct journal *j, struct target *t, const struct log_record *r, uint32_t n);
/* A policy that was asked is no longer: what the log wants of its state is written now. */
void journal_answered(struct journal *j, struct target *t);
/* Writes what t has gathered: samples, runs of no change, effects. Inside a transaction. */
void journal_gathered(struct journal *j, struct target *t);
/*
 * A decision row, inside a transaction. ch: what changes; outcome: enum log_outcome. by_operator:
 * under the operator's assignment, named reason. Returns its id, 0: not logged.
 */
int64_t journal_decision(struct journal *j, struct target *t, const struct host_change *ch,
			 const char *reason, bool by_operator, int outcome);
/* The transaction with the decisions of t failed: its samples can not be replayed. */
void journal_lose_decisions(struct journal *j, struct target *t, uint32_t n);
/* Queued, written with the next transaction. */
void journal_outcome(struct journal *j, int64_t decision, int outcome);

/* Must decisions wait for the log? */
bool journal_holds(const struct journal *j);
enum journal_state journal_state(const struct journal *j);
const char *journal_path(const struct journal *j);
/* Once a second: retries, late commits, checkpoints. */
void journal_housekeeping(struct journal *j);
/* After a reload: the size bound and others that can change. */
void journal_reconfigure(struct journal *j);

struct journal_losses {
	uint64_t samples, decisions;
	const char *error; /* "" when all is well */
};
void journal_losses(const struct journal *j, struct journal_losses *ret);

#endif
