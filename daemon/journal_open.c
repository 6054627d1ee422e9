/* SPDX-License-Identifier: MIT */
/*
 * The file of the log, from its claim to its end. A daemon is the one writer of its log (claim.h):
 * the ids of rows, and what is trimmed, are one writer's matter. A file that is not the one of
 * before (it was removed, or replaced) knows none of the rows that were written: whoever has an id
 * of one forgets it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/claim.h"
#include "daemon/effect.h"
#include "daemon/journal_private.h"
#include "daemon/say.h"
#include "lib/text.h"

#define BUSY_MS 100u

static void options_of(const struct config *c, struct logstore_options *o)
{
	memset(o, 0, sizeof(*o));
	o->max_bytes = (uint64_t)c->log.max_bytes;
	o->full_sync = c->log.full_sync;
	o->busy_ms = BUSY_MS;
}

/* Ids count from 1 in a new file: an old one would be taken for the row of something else. */
static void forget_rows_of(struct target *t)
{
	t->log_id = t->log_assignment = 0;
	t->log_operator = 0;
	t->broken = true;
	t->run.row = 0;
	for (uint32_t i = 0; i < t->n_done_runs; i++)
		t->done_runs[i].row = 0;
	for (uint32_t i = 0; i < t->n_inflight; i++)
		t->inflight[i].decision = 0;
	for (uint32_t i = 0; i < t->n; i++)
		t->marks[i].decision = 0;
	effects_forget(t->effects);
}

void journal_forget_rows(struct journal *j)
{
	struct daemon *d = j->d;

	j->run = 0;
	j->n_queue = j->n_ends = j->n_events = 0;
	for (size_t i = 0; i < d->n_targets; i++)
		forget_rows_of(d->targets[i]);
}

bool journal_file_is_ours(const struct journal *j)
{
	struct stat st;

	return !stat(j->d->config->log.path, &st) && st.st_dev == j->dev && st.st_ino == j->ino;
}

static void note_file(struct journal *j)
{
	struct stat st;

	if (stat(j->d->config->log.path, &st))
		return;
	j->dev = st.st_dev;
	j->ino = st.st_ino;
}

/* Ids and numbers of rows, and what is trimmed, are one writer's matter. */
static int claim_log(struct journal *j, char *why)
{
	const struct config *c = j->d->config;
	char text[CLAIM_WHY] = "";
	int r = config_place_trusted(c->log.path, text);

	if (!r && !j->claim)
		r = claim_new(c->log.path, "writes", c->file ? c->file : "built-in", &j->claim,
			      text);
	if (r < 0)
		snprintf(why, JOURNAL_WHY, "%.255s", text[0] ? text : strerror(-r));
	return r;
}

int journal_store_open(struct journal *j, char *why)
{
	const struct config *c = j->d->config;
	struct logstore_options o;
	char *aside = NULL;
	int r;

	r = claim_log(j, why);
	if (r == -EBUSY || r == -EPERM)
		return r;
	options_of(c, &o);
	r = logstore_open(c->log.path, &o, &j->ls, &aside, why);
	if (r < 0) {
		j->ls = NULL;
		return r;
	}
	r = claim_log(j, why); /* a missing directory is there now */
	if (r < 0) {
		logstore_close(j->ls);
		j->ls = NULL;
		free(aside);
		return r;
	}
	if (aside) {
		say(LOG_WARNING, "%s", aside);
		free(aside);
	}
	if (!journal_file_is_ours(j))
		journal_forget_rows(j);
	note_file(j);
	return 0;
}

bool journal_run_row(struct journal *j)
{
	const char *file = j->d->config->file ? j->d->config->file : "built-in";

	if (j->run)
		return true;
	j->run_txn = j->txn;
	return journal_wrote(
		j, logstore_run_begin(j->ls, logstamp_now(), PCPTUNE_VERSION, file, &j->run));
}

static int journal_start(struct journal *j, char *why)
{
	int r = journal_store_open(j, why);

	if (!r) {
		j->state = JOURNAL_OK;
		if (!journal_txn_open(j) || !journal_run_row(j) || !journal_txn_close(j)) {
			if (j->open)
				journal_txn_failed(j, j->failed, "write");
			snprintf(why, JOURNAL_WHY, "%s", j->error);
			r = -EIO;
		}
	}
	if (!r)
		return 0;
	if (j->d->config->log.required)
		return r;
	if (j->state != JOURNAL_LOST) {
		j->state = JOURNAL_OK; /* so that it is said */
		journal_lose(j, r, why);
	}
	return 0;
}

int journal_new(struct daemon *d, struct journal **ret, char *why)
{
	struct journal *j = calloc(1, sizeof(*j));
	int r = -ENOMEM;

	why[0] = '\0';
	if (!j)
		return -ENOMEM;
	j->d = d;
	j->late = event_new(d->base, -1, 0, journal_on_late, j);
	if (!j->late)
		goto fail;
	if (d->config->log.enabled) {
		r = journal_start(j, why);
		if (r < 0)
			goto fail;
	}
	*ret = j;
	return 0;
fail:
	journal_free(j, NULL);
	return r;
}

void journal_free(struct journal *j, const char *why)
{
	if (!j)
		return;
	if (why && j->run && journal_begin(j))
		journal_wrote(j, logstore_run_end(j->ls, j->run, logstamp_now(), why));
	if (j->open)
		journal_commit(j);
	if (j->ls)
		logstore_close(j->ls);
	claim_free(j->claim);
	if (j->late)
		event_free(j->late);
	free(j->queue);
	free(j);
}

/* The nearest directory above path that exists must let us create things. */
static int probe_parent(const char *path, char *why)
{
	char *dir = strdup(path), *slash;
	int r = 0;

	if (!dir)
		return -ENOMEM;
	while ((slash = strrchr(dir, '/')) && slash != dir) {
		*slash = '\0';
		if (!access(dir, F_OK))
			break;
	}
	if (!slash)
		strcpy(dir, ".");
	else if (slash == dir)
		dir[1] = '\0';
	if (access(dir, W_OK | X_OK)) {
		r = -errno;
		snprintf(why, JOURNAL_WHY, "directory %.200s: %s", dir, strerror(-r));
	}
	free(dir);
	return r;
}

int journal_probe(const struct config *c, char *why)
{
	char text[CLAIM_WHY];
	struct logstore *ls;
	struct stat st;
	int r;

	if (!c->log.enabled)
		return 0;
	r = config_place_trusted(c->log.path, text);
	if (!r)
		r = claim_probe(c->log.path, "writes", text);
	if (r < 0) {
		snprintf(why, JOURNAL_WHY, "%.255s", r == -ENOMEM ? "no memory" : text);
		return r;
	}
	if (stat(c->log.path, &st))
		return errno == ENOENT
			       ? probe_parent(c->log.path, why)
			       : (snprintf(why, JOURNAL_WHY, "%s", strerror(errno)), -errno);
	if (access(c->log.path, W_OK)) {
		r = -errno;
		snprintf(why, JOURNAL_WHY, "%s", strerror(-r));
		return r;
	}
	r = probe_parent(c->log.path, why); /* for its -wal and -shm */
	if (r < 0 || !st.st_size)
		return r;
	r = logstore_open_ro(c->log.path, &ls, why);
	if (r == -EPROTONOSUPPORT || r == -EINVAL)
		return r; /* somebody else's file, or a newer version's */
	if (!r)
		logstore_close(ls);
	return 0; /* a damaged file is set aside at the start */
}

void journal_reconfigure(struct journal *j)
{
	struct logstore_options o;
	int r;

	if (j->state != JOURNAL_OK)
		return; /* the next try opens with the new options */
	if (j->open)
		journal_commit(j);
	options_of(j->d->config, &o);
	r = j->state == JOURNAL_OK ? logstore_set_options(j->ls, &o) : 0;
	if (r < 0)
		say(LOG_WARNING, "log keeps its old settings: %s", logstore_error(j->ls));
}
