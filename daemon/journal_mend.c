/* SPDX-License-Identifier: MIT */
/*
 * After a failure. Once a second it is tried whether the log can be written again, with pauses that
 * grow. Everything that it misses goes into one transaction: what waited, how much was lost, and
 * for each target that was broken a new assignment with the policy's state, so that a replay begins
 * anew behind the hole. Targets that broke alone, for lack of memory, are mended one by one.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "daemon/clock.h"
#include "daemon/journal_private.h"
#include "daemon/say.h"

static void mend_target(struct journal *j, struct target *t)
{
	bool old_rows = t->log_id != 0;

	if (!old_rows)
		journal_write_target(j, t);
	if (old_rows && t->log_assignment)
		journal_write_chunk(j, t); /* gathered before the hole */
	else
		encoder_reset(t->enc);
	if (old_rows && t->log_assignment)
		journal_write_records(j, t, true);
	else
		records_reset(&t->records);
	journal_write_assignment(j, t, "the log can be written again");
	journal_write_state(j, t);
	t->n_done_runs = 0;
	memset(&t->run, 0, sizeof(t->run));
}

static void write_waiting(struct journal *j)
{
	for (size_t i = 0; i < j->n_ends; i++)
		journal_wrote(j, logstore_target_end(j->ls, j->ends[i].log_id, j->ends[i].t,
						     j->ends[i].how));
	for (size_t i = 0; i < j->n_events; i++)
		journal_wrote(j, logstore_event(j->ls, j->run, j->events[i].log_id, j->events[i].t,
						j->events[i].kind, j->events[i].text));
}

/* Everything the log misses, in one transaction: it works for all or is tried again. */
static bool mend(struct journal *j)
{
	struct daemon *d = j->d;
	char text[JOURNAL_WHY + 128];

	if (!journal_txn_open(j))
		return false;
	journal_run_row(j);
	write_waiting(j);
	snprintf(text, sizeof(text), "%llu samples and %llu decisions are missing (%s)",
		 (unsigned long long)(j->lost_samples - j->said_samples),
		 (unsigned long long)(j->lost_decisions - j->said_decisions), j->error);
	journal_wrote(j, logstore_event(j->ls, j->run, 0, logstamp_now(), "log-lost", text));
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];

		t->broken |= !t->log_id;
		t->mend_due = t->broken && t->kept.asked;
		if (t->broken && !t->mend_due)
			mend_target(j, t);
	}
	if (!journal_txn_close(j))
		return false;
	for (size_t i = 0; i < d->n_targets; i++)
		d->targets[i]->broken &= d->targets[i]->kept.asked;
	say(LOG_NOTICE, "log %s can be written again; %s", d->config->log.path, text);
	return true;
}

static void retry(struct journal *j)
{
	char why[JOURNAL_WHY];
	int r;

	if (j->ls && j->retries >= 3) { /* perhaps the file is gone: begin anew */
		logstore_close(j->ls);
		j->ls = NULL;
	}
	if (!j->ls) {
		r = journal_store_open(j, why);
		if (r < 0) {
			journal_lose(j, r, why);
			return;
		}
	}
	if (!mend(j))
		return;
	j->state = JOURNAL_OK;
	j->n_ends = j->n_events = 0;
	j->said_samples = j->lost_samples;
	j->said_decisions = j->lost_decisions;
	j->error[0] = '\0';
}

/*
 * A target that lost something while the log as a whole worked (no memory for a sample). While its
 * policy thinks, the state is not that of its samples; then it is the answer's turn, since who
 * comes by at fixed times may find it thinking each time.
 */
static void mend_single(struct journal *j, struct target *t)
{
	t->mend_due = t->broken && t->kept.asked;
	if (!t->broken || t->mend_due || !journal_begin(j))
		return;
	mend_target(j, t);
	if (journal_commit(j))
		t->broken = false;
}

void journal_answered(struct journal *j, struct target *t)
{
	if (j->state != JOURNAL_OK)
		return;
	if (t->mend_due)
		mend_single(j, t);
	else if (journal_state_due(t) && journal_write_soon(j))
		journal_gathered(j, t);
}

static void maintain(struct journal *j)
{
	bool more = true;
	int r = 0;

	for (int i = 0; i < 4 && more && !r && j->state == JOURNAL_OK; i++) {
		more = false;
		r = logstore_maintain(j->ls, &more);
	}
	if (r < 0 && r != -EBUSY)
		journal_lose(j, r, "maintenance");
}

void journal_housekeeping(struct journal *j)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (j->state == JOURNAL_OK && !journal_file_is_ours(j)) {
		journal_lose(j, -ENOENT, "the file was removed or replaced");
		logstore_close(j->ls);
		j->ls = NULL;
		j->open = false;
		journal_forget_rows(j);
	}
	if (j->state == JOURNAL_LOST) {
		if (mono_ms() >= j->retry_at_ms)
			retry(j);
		return;
	}
	for (size_t i = 0; i < j->d->n_targets && j->state == JOURNAL_OK; i++)
		mend_single(j, j->d->targets[i]);
	if (j->n_queue && journal_begin(j))
		journal_commit(j);
	if (j->open)
		journal_commit(j);
	maintain(j);
}
