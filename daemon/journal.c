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
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/claim.h"
#include "daemon/clock.h"
#include "daemon/effect.h"
#include "daemon/journal.h"
#include "daemon/say.h"
#include "lib/text.h"

#define BUSY_MS	       100u
#define LATE_COMMIT_MS 50
#define RETRY_FIRST_MS 1000u
#define RETRY_LAST_MS  30000u
#define QUEUE_MAX      65536u
#define ENDS_MAX       1024u
#define EVENTS_MAX     64u
#define STATE_EVERY    2000u /* samples of a target */
#define STATE_SHARE    64    /* of the log's bound, at most, for the state of a foreign policy */
#define RECORDS_ROW    4096u /* bytes; a row of records waits for so many, or for so long */
#define RECORDS_AGE_US 10000000u

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
	struct queued_end ends[ENDS_MAX];
	size_t n_ends;
	struct queued_event events[EVENTS_MAX]; /* from the time when nothing could be written */
	size_t n_events;
};

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

static void lose(struct journal *j, int r, const char *what)
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

static void txn_failed(struct journal *j, int r, const char *what)
{
	if (j->ls)
		logstore_rollback(j->ls);
	j->open = false;
	rows_undone(j);
	lose(j, r, what);
}

/* Notes the first failure of a write inside a transaction. */
static bool wrote(struct journal *j, int r)
{
	if (r < 0 && !j->failed)
		j->failed = r;
	return r >= 0;
}

/* ---- transactions ---- */

static bool txn_open(struct journal *j)
{
	int r = logstore_begin(j->ls);

	if (r < 0) {
		lose(j, r, "begin");
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
	return j->open || txn_open(j);
}

static void write_queue(struct journal *j)
{
	for (size_t i = 0; i < j->n_queue && !j->failed; i++)
		wrote(j,
		      logstore_decision_outcome(j->ls, j->queue[i].decision, j->queue[i].outcome));
}

static bool txn_close(struct journal *j)
{
	int r;

	write_queue(j);
	if (j->failed) {
		txn_failed(j, j->failed, "write");
		return false;
	}
	r = logstore_commit(j->ls);
	if (r < 0) {
		txn_failed(j, r, "commit");
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
	return txn_close(j);
}

/* Opens a transaction that is committed soon; for rows that nobody waits for. */
static bool write_soon(struct journal *j)
{
	struct timeval tv = {0, LATE_COMMIT_MS * 1000};

	if (!journal_begin(j))
		return false;
	if (!event_pending(j->late, EV_TIMEOUT, NULL))
		event_add(j->late, &tv);
	return true;
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
	struct journal *j = arg;

	(void)fd;
	(void)what;
	if (j->open)
		txn_close(j);
}

/* ---- opening ---- */

static void options_of(const struct config *c, struct logstore_options *o)
{
	memset(o, 0, sizeof(*o));
	o->max_bytes = (uint64_t)c->log.max_bytes;
	o->full_sync = c->log.full_sync;
	o->busy_ms = BUSY_MS;
}

/* Rows that were written to another file have no ids here. */
static void forget_rows(struct journal *j)
{
	struct daemon *d = j->d;

	j->run = 0;
	j->n_queue = j->n_ends = j->n_events = 0;
	for (size_t i = 0; i < d->n_targets; i++) {
		d->targets[i]->log_id = d->targets[i]->log_assignment = 0;
		d->targets[i]->log_operator = 0;
		d->targets[i]->broken = true;
	}
}

static bool file_is_ours(const struct journal *j)
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

static int store_open(struct journal *j, char *why)
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
	if (!file_is_ours(j))
		forget_rows(j);
	note_file(j);
	return 0;
}

static bool run_row(struct journal *j)
{
	const char *file = j->d->config->file ? j->d->config->file : "built-in";

	if (j->run)
		return true;
	j->run_txn = j->txn;
	return wrote(j, logstore_run_begin(j->ls, logstamp_now(), PCPTUNE_VERSION, file, &j->run));
}

static int journal_start(struct journal *j, char *why)
{
	int r = store_open(j, why);

	if (!r) {
		j->state = JOURNAL_OK;
		if (!txn_open(j) || !run_row(j) || !txn_close(j)) {
			if (j->open)
				txn_failed(j, j->failed, "write");
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
		lose(j, r, why);
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
	j->late = event_new(d->base, -1, 0, on_late, j);
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
		wrote(j, logstore_run_end(j->ls, j->run, logstamp_now(), why));
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

/* ---- rows ---- */

static struct log_target target_row(const struct target *t, int64_t run)
{
	struct log_target row = {.id = t->log_id, .run = run};

	memcpy(row.name, t->info.name, sizeof(row.name));
	row.pid = (uint32_t)t->pid;
	row.uid = t->uid;
	row.start_boot_ns = t->info.start_boot_ns;
	row.random_id = t->info.random_id;
	row.run_tag = t->info.run_tag;
	row.mode = segreader_mode(t->sr);
	row.seg_flags = t->info.flags;
	row.shape = t->shape;
	row.attached = t->attached;
	return row;
}

static void write_target(struct journal *j, struct target *t)
{
	struct log_target row = target_row(t, j->run);

	target_shape(t, j->d->config, &row.shape);
	t->log_txn = j->txn;
	if (wrote(j, logstore_target_add(j->ls, &row)))
		t->log_id = row.id;
}

void journal_target(struct journal *j, struct target *t)
{
	if (write_soon(j))
		write_target(j, t);
	else if (j->state == JOURNAL_LOST)
		t->broken = true;
}

/* Rows that a rolled-back transaction made for a target that is not in the table yet. */
static bool target_ready(struct journal *j, struct target *t)
{
	if (j->state != JOURNAL_OK)
		return false;
	if (!t->log_id)
		t->broken = true;
	return !t->broken && t->log_assignment;
}

static int64_t write_assignment(struct journal *j, struct target *t, const char *policy,
				const char *version, const char *params, const char *why)
{
	struct log_assignment a = {.target = t->log_id, .seq_first = t->seq + 1};

	a.t = logstamp_now();
	a.shape = t->shape;
	snprintf(a.policy, sizeof(a.policy), "%s", policy);
	snprintf(a.version, sizeof(a.version), "%s", version);
	snprintf(a.params, sizeof(a.params), "%s", params);
	snprintf(a.why, sizeof(a.why), "%.127s", why);
	t->assignment_txn = j->txn;
	return wrote(j, logstore_assignment_add(j->ls, &a)) ? a.id : 0;
}

static void write_own_assignment(struct journal *j, struct target *t, const char *why)
{
	const struct pcptune_policy *p = policy_desc(t->active.module);
	char params[sizeof(((struct log_assignment *)0)->params)];

	policy_params_text(t->active.module, t->active.params, params, sizeof(params));
	t->log_assignment = write_assignment(j, t, p->name, p->version, params, why);
	t->seq_state = t->seq;
}

/*
 * A foreign policy may have a state that is longer than others' samples, and the log is bounded.
 * Without a state a replay begins where the assignment did.
 */
static void write_state(struct journal *j, struct target *t)
{
	size_t size;
	const void *state = policy_instance_state(t->pi, &size);

	if (policy_remote(t->active.module)) {
		if (!t->foreign || size > (uint64_t)j->d->config->log.max_bytes / STATE_SHARE)
			return;
		remote_fetch_state(foreign_remote(t->foreign), t->pi);
	}
	wrote(j, logstore_state_add(j->ls, t->log_assignment, t->seq, state, size));
	t->seq_state = t->seq;
}

static void write_runs(struct journal *j, struct target *t)
{
	for (uint32_t i = 0; i < t->n_done_runs; i++) {
		struct nochange_run *r = &t->done_runs[i];
		const struct pcptune_reason *why = policy_reason(t->active.module, r->reason);

		wrote(j, logstore_nochange(j->ls, &r->row, t->log_assignment, r->reason,
					   why ? why->name : "dropped", r->seq_first, r->seq_last,
					   r->n));
	}
	t->n_done_runs = 0;
	if (t->run.n) {
		const struct pcptune_reason *why = policy_reason(t->active.module, t->run.reason);

		wrote(j, logstore_nochange(j->ls, &t->run.row, t->log_assignment, t->run.reason,
					   why ? why->name : "dropped", t->run.seq_first,
					   t->run.seq_last, t->run.n));
	}
}

static void write_chunk(struct journal *j, struct target *t)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(t->enc, &data, &len, &totals);
	if (!len)
		return;
	if (!wrote(j, logstore_samples_add(j->ls, t->log_id, logstamp_now(), &totals, data, len)))
		return;
	encoder_reset(t->enc);
	t->chunk_txn = j->txn;
	j->txn_samples += totals.n_samples;
}

/*
 * What a policy saw is written with the sample that it came with. Other records wait for more of
 * them, so that there are not many small rows.
 */
static void write_records(struct journal *j, struct target *t, bool now)
{
	struct records_writer *w = &t->records;

	if (!w->n)
		return;
	if (!now && !policy_record_ms(t->active.module) && w->len < RECORDS_ROW &&
	    boot_us() - t->records_since_us < RECORDS_AGE_US)
		return;
	if (wrote(j, logstore_records_add(j->ls, t->log_id, logstamp_now(), w)))
		records_reset(w);
}

static void write_inflight(struct journal *j, struct target *t)
{
	for (uint32_t i = 0; i < t->n_inflight; i++) {
		struct inflight *f = &t->inflight[i];

		if (f->logged || f->decision <= 0)
			continue;
		wrote(j, logstore_decision_outcome(j->ls, f->decision, LOG_WRITTEN));
		f->logged = true;
	}
}

static void write_effects(struct journal *j, struct target *t)
{
	struct log_decision d;

	while (effects_take(t->effects, &d))
		wrote(j, logstore_decision_effect(j->ls, &d));
}

void journal_gathered(struct journal *j, struct target *t)
{
	uint64_t chunk_us = (uint64_t)j->d->config->log.chunk_ms * 1000u, now = boot_us();

	if (t->chunk_due_us <= now && chunk_us)
		t->chunk_due_us += (now - t->chunk_due_us + chunk_us) / chunk_us * chunk_us;
	t->gathered = false;
	if (!j->open || !target_ready(j, t))
		return;
	write_chunk(j, t);
	write_records(j, t, false);
	write_runs(j, t);
	write_inflight(j, t);
	write_effects(j, t);
	if (t->seq - t->seq_state >= STATE_EVERY && !t->kept.asked)
		write_state(j, t);
}

void journal_before_assignment(struct journal *j, struct target *t)
{
	if (t->log_assignment && write_soon(j) && target_ready(j, t)) {
		write_chunk(j, t);
		write_records(j, t, true);
		write_runs(j, t);
	}
	t->n_done_runs = 0;
	memset(&t->run, 0, sizeof(t->run));
}

void journal_assignment(struct journal *j, struct target *t)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (!t->log_id || !write_soon(j)) {
		t->broken = true;
		t->n_done_runs = 0;
		return;
	}
	write_own_assignment(j, t, t->policy_why);
	t->broken = false;
}

void journal_target_end(struct journal *j, struct target *t, const char *how)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	if (j->state == JOURNAL_OFF)
		return;
	if (t->log_id && write_soon(j)) {
		if (t->pi)
			journal_gathered(j, t);
		if (target_ready(j, t))
			write_records(j, t, true);
		wrote(j, logstore_target_end(j->ls, t->log_id, logstamp_now(), how));
	} else if (t->log_id && j->n_ends < ENDS_MAX) {
		struct queued_end *e = &j->ends[j->n_ends++];

		e->log_id = t->log_id;
		e->t = logstamp_now();
		snprintf(e->how, sizeof(e->how), "%.63s", how);
	}
	if (!t->enc)
		return;
	encoder_peek(t->enc, &data, &len, &totals);
	if (len)
		j->lost_samples += totals.n_samples;
	encoder_reset(t->enc);
}

static void queue_event(struct journal *j, struct target *t, const char *kind, const char *text)
{
	struct queued_event *e;

	if (j->state == JOURNAL_OFF || j->n_events == EVENTS_MAX)
		return;
	e = &j->events[j->n_events++];
	e->log_id = t ? t->log_id : 0;
	e->t = logstamp_now();
	snprintf(e->kind, sizeof(e->kind), "%.31s", kind);
	snprintf(e->text, sizeof(e->text), "%.255s", text);
}

void journal_event(struct journal *j, struct target *t, const char *kind, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (write_soon(j))
		wrote(j,
		      logstore_event(j->ls, j->run, t ? t->log_id : 0, logstamp_now(), kind, text));
	else
		queue_event(j, t, kind, text);
}

void journal_sample(struct journal *j, struct target *t, const struct pcptune_sample *s)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (target_ready(j, t) && encoder_add(t->enc, s) >= 0) {
		t->gathered = true;
		return;
	}
	j->lost_samples++;
	t->broken = true;
}

void journal_records(struct journal *j, struct target *t, const struct log_record *r, uint32_t n)
{
	if (j->state == JOURNAL_OFF || !target_ready(j, t))
		return;
	if (!t->records.n)
		t->records_since_us = boot_us();
	for (uint32_t i = 0; i < n; i++) {
		/* a policy that saw it could not be replayed without it */
		if (records_add(&t->records, &r[i]) < 0 && r[i].given)
			t->broken = true;
	}
	t->gathered = true;
}

static void limits_of(struct log_limits *to, const struct limits *from)
{
	to->high = from->high;
	to->high_min = from->high_min;
	to->high_max = from->high_max;
	to->batch = from->batch;
	to->scale_max = from->scale_max;
	to->rules = from->rules;
}

static int64_t operator_assignment(struct journal *j, struct target *t)
{
	if (!t->log_operator)
		t->log_operator = write_assignment(j, t, "operator", "-", "", "by hand");
	return t->log_operator;
}

int64_t journal_decision(struct journal *j, struct target *t, const struct host_change *ch,
			 const char *reason, bool by_operator, int outcome)
{
	struct log_decision d = {.target = t->log_id, .seq = t->seq};

	if (!j->open || !target_ready(j, t))
		return 0;
	d.assignment = by_operator ? operator_assignment(j, t) : t->log_assignment;
	d.t = logstamp_now();
	d.zone = ch->zone;
	d.cpu = ch->cpu;
	d.reason = ch->reason;
	snprintf(d.reason_name, sizeof(d.reason_name), "%s", reason);
	memcpy(d.arg, ch->arg, sizeof(d.arg));
	limits_of(&d.old, &ch->old);
	limits_of(&d.proposed, &ch->proposed);
	limits_of(&d.clamped, &ch->clamped);
	d.outcome = outcome;
	return wrote(j, logstore_decision_add(j->ls, &d)) ? d.id : 0;
}

void journal_lose_decisions(struct journal *j, struct target *t, uint32_t n)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	if (j->state == JOURNAL_OFF)
		return;
	encoder_peek(t->enc, &data, &len, &totals);
	if (len)
		j->lost_samples += totals.n_samples;
	encoder_reset(t->enc);
	records_reset(&t->records);
	j->lost_decisions += n;
	t->broken = true;
}

void journal_outcome(struct journal *j, int64_t decision, int outcome)
{
	if (decision <= 0 || j->state == JOURNAL_OFF || j->n_queue == QUEUE_MAX)
		return;
	if (j->n_queue == j->max_queue) {
		size_t max = j->max_queue ? j->max_queue * 2 : 256;
		struct queued *q = realloc(j->queue, max * sizeof(*q));

		if (!q)
			return; /* the row keeps its older outcome */
		j->queue = q;
		j->max_queue = max;
	}
	j->queue[j->n_queue++] = (struct queued){decision, outcome};
}

/* ---- recovery ---- */

static void mend_target(struct journal *j, struct target *t)
{
	bool old_rows = t->log_id != 0;

	if (!old_rows)
		write_target(j, t);
	if (old_rows && t->log_assignment)
		write_chunk(j, t); /* gathered before the hole */
	else
		encoder_reset(t->enc);
	if (old_rows && t->log_assignment)
		write_records(j, t, true);
	else
		records_reset(&t->records);
	write_own_assignment(j, t, "the log can be written again");
	write_state(j, t);
	t->n_done_runs = 0;
	memset(&t->run, 0, sizeof(t->run));
}

static void write_waiting(struct journal *j)
{
	for (size_t i = 0; i < j->n_ends; i++)
		wrote(j,
		      logstore_target_end(j->ls, j->ends[i].log_id, j->ends[i].t, j->ends[i].how));
	for (size_t i = 0; i < j->n_events; i++)
		wrote(j, logstore_event(j->ls, j->run, j->events[i].log_id, j->events[i].t,
					j->events[i].kind, j->events[i].text));
}

/* Everything the log misses, in one transaction: it works for all or is tried again. */
static bool mend(struct journal *j)
{
	struct daemon *d = j->d;
	char text[JOURNAL_WHY + 128];

	if (!txn_open(j))
		return false;
	run_row(j);
	write_waiting(j);
	snprintf(text, sizeof(text), "%llu samples and %llu decisions are missing (%s)",
		 (unsigned long long)(j->lost_samples - j->said_samples),
		 (unsigned long long)(j->lost_decisions - j->said_decisions), j->error);
	wrote(j, logstore_event(j->ls, j->run, 0, logstamp_now(), "log-lost", text));
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];

		t->broken |= !t->log_id;
		if (t->broken && !t->kept.asked) /* its state is behind its samples; later */
			mend_target(j, t);
	}
	if (!txn_close(j))
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
		r = store_open(j, why);
		if (r < 0) {
			lose(j, r, why);
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

/* Targets that lost something while the log as a whole worked (no memory for a sample). */
static void mend_single(struct journal *j)
{
	struct daemon *d = j->d;

	for (size_t i = 0; i < d->n_targets && j->state == JOURNAL_OK; i++) {
		struct target *t = d->targets[i];

		if (!t->broken || t->kept.asked || !journal_begin(j))
			continue;
		mend_target(j, t);
		if (journal_commit(j))
			t->broken = false;
	}
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
		lose(j, r, "maintenance");
}

void journal_housekeeping(struct journal *j)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (j->state == JOURNAL_OK && !file_is_ours(j)) {
		lose(j, -ENOENT, "the file was removed or replaced");
		logstore_close(j->ls);
		j->ls = NULL;
		j->open = false;
		forget_rows(j);
	}
	if (j->state == JOURNAL_LOST) {
		if (mono_ms() >= j->retry_at_ms)
			retry(j);
		return;
	}
	mend_single(j);
	if (j->n_queue && journal_begin(j))
		journal_commit(j);
	if (j->open)
		journal_commit(j);
	maintain(j);
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
