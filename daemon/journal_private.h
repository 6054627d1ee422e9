/* SPDX-License-Identifier: MIT */
/*
 * What the files of the journal share: journal.c (transactions and failure), journal_open.c (the
 * file), journal_rows.c (what is written of a target) and journal_mend.c (after a failure).
 */
#ifndef PCPTUNE_DAEMON_JOURNAL_PRIVATE_H
#define PCPTUNE_DAEMON_JOURNAL_PRIVATE_H

#include <sys/types.h>
#include "daemon/journal.h"

#define JOURNAL_ENDS_MAX   1024u
#define JOURNAL_EVENTS_MAX 64u

struct queued {
	int64_t decision;
	int outcome;
};

/* A target that ended while nothing could be written. */
struct queued_end {
	int64_t log_id;
	struct logstamp t;
	char how[64];
};

struct queued_event {
	int64_t log_id;
	struct logstamp t;
	char kind[32], text[256];
};

struct journal {
	struct daemon *d;
	enum journal_state state;
	struct logstore *ls; /* NULL: not open */
	struct claim *claim; /* of the one writer of the file; NULL: not had yet */
	int64_t run;
	uint64_t txn; /* number of the open or last transaction */
	bool open;    /* a transaction is open */
	int failed;   /* first error inside of it */
	struct event *late;
	uint64_t run_txn;     /* transaction that made the run row */
	uint64_t txn_samples; /* in chunks that the open transaction writes */
	dev_t dev;	      /* of the file that is open */
	ino_t ino;
	char error[JOURNAL_WHY];
	uint64_t lost_samples, lost_decisions, said_samples, said_decisions;
	uint64_t retry_at_ms, retry_ms;
	unsigned retries;
	struct queued *queue;
	size_t n_queue, max_queue;
	struct queued_end ends[JOURNAL_ENDS_MAX];
	size_t n_ends;
	struct queued_event
		events[JOURNAL_EVENTS_MAX]; /* from the time when nothing could be written */
	size_t n_events;
};

/* ---- journal.c ---- */

/* The log can not be written: what failed, and what. Says so the first time; the next try waits. */
void journal_lose(struct journal *j, int r, const char *what);
/* The open transaction is rolled back, with what its rows mean to the targets, and the log lost. */
void journal_txn_failed(struct journal *j, int r, const char *what);
/* Notes the first failure of a write inside a transaction. */
bool journal_wrote(struct journal *j, int r);
/* One that is not joined; false: said by journal_lose(). */
bool journal_txn_open(struct journal *j);
bool journal_txn_close(struct journal *j);
/* Opens a transaction that is committed soon; for rows that nobody waits for. */
bool journal_write_soon(struct journal *j);
void journal_on_late(evutil_socket_t fd, short what, void *arg); /* commits it */

/* ---- journal_open.c ---- */

/* The file as the configuration says, claimed. why: JOURNAL_WHY bytes. */
int journal_store_open(struct journal *j, char *why);
/* The row of this run, inside a transaction, if it is not there yet. */
bool journal_run_row(struct journal *j);
/* Is what lies at the path still what is open? */
bool journal_file_is_ours(const struct journal *j);
/* Rows that were written to another file have no ids here. */
void journal_forget_rows(struct journal *j);

/* ---- journal_rows.c: inside a transaction ---- */

void journal_write_target(struct journal *j, struct target *t);
/* Is it time to save the state of its policy? */
bool journal_state_due(const struct target *t);
/* The policy in force, from the next sample on. */
void journal_write_assignment(struct journal *j, struct target *t, const char *why);
void journal_write_state(struct journal *j, struct target *t);
void journal_write_chunk(struct journal *j, struct target *t);
/* now: however few they are. */
void journal_write_records(struct journal *j, struct target *t, bool now);

#endif
