/* SPDX-License-Identifier: MIT */
/*
 * Glue between the daemon and lib/logstore, and the place where a failing log is dealt with.
 *
 * What makes a log replayable: every sample that a policy saw is in it, and every decision. Where
 * that is broken (samples or decisions lost) the target is marked, and once the log works again it
 * gets a new assignment that begins with the policy's state, so that a replay skips the hole and
 * begins anew behind it. Chunks that were gathered before the failure and belong to no lost
 * decision are kept and written then.
 *
 * Rows that a rolled-back transaction took with it are written again: each target remembers the
 * number of the transaction that made its rows.
 */
#include <stdio.h>
#include <string.h>
#include "daemon/clock.h"
#include "daemon/journal_private.h"
#include "daemon/say.h"

#define LATE_COMMIT_MS 50
#define RETRY_FIRST_MS 1000u
#define RETRY_LAST_MS  30000u

/* ---- failure ---- */

static void rows_undone(struct journal *j)
{
	struct daemon *d = j->d;

	if (j->run_txn == j->txn)
		j->run = 0;
	j->lost_samples += j->txn_samples;
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];

		if (t->log_txn == j->txn)
			t->log_id = 0;
		if (t->log_txn == j->txn || t->assignment_txn == j->txn)
			t->log_assignment = t->log_operator = 0;
		if (!t->log_assignment || t->chunk_txn == j->txn)
			t->broken = true;
	}
}

void journal_lose(struct journal *j, int r, const char *what)
{
	const char *text = j->ls ? logstore_error(j->ls) : "";

	if (j->state == JOURNAL_OK) {
		j->retry_ms = RETRY_FIRST_MS;
		j->retries = 0;
	} else {
		j->retry_ms = j->retry_ms * 2 > RETRY_LAST_MS ? RETRY_LAST_MS : j->retry_ms * 2;
		j->retries++;
	}
	if (j->ls)
		snprintf(j->error, sizeof(j->error), "%s: %s", what,
			 text && *text ? text : strerror(-r));
	else
		snprintf(j->error, sizeof(j->error), "%s", *what ? what : strerror(-r));
	if (j->state == JOURNAL_OK)
		say(LOG_ERR, "log %s can not be written: %s; %s", j->d->config->log.path, j->error,
		    j->d->config->log.required ? "tuning is held until it can (log.required)"
					       : "tuning goes on, what is lost is counted");
	j->state = JOURNAL_LOST;
	j->retry_at_ms = mono_ms() + j->retry_ms;
}

void journal_txn_failed(struct journal *j, int r, const char *what)
{
	if (j->ls)
		logstore_rollback(j->ls);
	j->open = false;
	rows_undone(j);
	journal_lose(j, r, what);
}

/* Notes the first failure of a write inside a transaction. */
bool journal_wrote(struct journal *j, int r)
{
	if (r < 0 && !j->failed)
		j->failed = r;
	return r >= 0;
}

/* ---- transactions ---- */

bool journal_txn_open(struct journal *j)
{
	int r = logstore_begin(j->ls);

	if (r < 0) {
		journal_lose(j, r, "begin");
		return false;
	}
	j->txn++;
	j->open = true;
	j->failed = 0;
	j->txn_samples = 0;
	return true;
}

bool journal_begin(struct journal *j)
{
	if (j->state != JOURNAL_OK)
		return false;
	return j->open || journal_txn_open(j);
}

static void write_queue(struct journal *j)
{
	for (size_t i = 0; i < j->n_queue && !j->failed; i++)
		journal_wrote(j, logstore_decision_outcome(j->ls, j->queue[i].decision,
							   j->queue[i].outcome));
}

bool journal_txn_close(struct journal *j)
{
	int r;

	write_queue(j);
	if (j->failed) {
		journal_txn_failed(j, j->failed, "write");
		return false;
	}
	r = logstore_commit(j->ls);
	if (r < 0) {
		journal_txn_failed(j, r, "commit");
		return false;
	}
	j->open = false;
	j->n_queue = 0;
	return true;
}

bool journal_commit(struct journal *j)
{
	if (!j->open)
		return false;
	event_del(j->late);
	return journal_txn_close(j);
}

/* Opens a transaction that is committed soon; for rows that nobody waits for. */
bool journal_write_soon(struct journal *j)
{
	struct timeval tv = {0, LATE_COMMIT_MS * 1000};

	if (!journal_begin(j))
		return false;
	if (!event_pending(j->late, EV_TIMEOUT, NULL))
		event_add(j->late, &tv);
	return true;
}

void journal_on_late(evutil_socket_t fd, short what, void *arg)
{
	struct journal *j = arg;

	(void)fd;
	(void)what;
	if (j->open)
		journal_txn_close(j);
}

/* ---- looking ---- */

bool journal_holds(const struct journal *j)
{
	return j->state == JOURNAL_LOST && j->d->config->log.required;
}

enum journal_state journal_state(const struct journal *j)
{
	return j->state;
}

const char *journal_path(const struct journal *j)
{
	return j->state == JOURNAL_OFF ? NULL : j->d->config->log.path;
}

void journal_losses(const struct journal *j, struct journal_losses *ret)
{
	ret->samples = j->lost_samples;
	ret->decisions = j->lost_decisions;
	ret->error = j->state == JOURNAL_LOST ? j->error : "";
}
