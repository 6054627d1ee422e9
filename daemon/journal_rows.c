/* SPDX-License-Identifier: MIT */
/*
 * What is written of a target: its row, the assignments of policies, samples and records as they
 * were gathered, decisions, runs of no change, states from which a replay can begin, events.
 *
 * A sample goes into the target's open chunk; with journal_gathered() all that was gathered becomes
 * rows. What can not be written is counted, and breaks the target: from there to the next
 * assignment (journal_mend.c) a replay knows that it has a hole.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/clock.h"
#include "daemon/effect.h"
#include "daemon/journal_private.h"

#define QUEUE_MAX      65536u
#define STATE_EVERY    2000u /* samples of a target */
#define STATE_SHARE    64    /* of the log's bound, at most, for the state of a foreign policy */
#define RECORDS_ROW    4096u /* bytes; a row of records waits for so many, or for so long */
#define RECORDS_AGE_US 10000000u

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

void journal_write_target(struct journal *j, struct target *t)
{
	struct log_target row = target_row(t, j->run);

	target_shape(t, j->d->config, &row.shape);
	t->log_txn = j->txn;
	if (journal_wrote(j, logstore_target_add(j->ls, &row)))
		t->log_id = row.id;
}

void journal_target(struct journal *j, struct target *t)
{
	if (journal_write_soon(j))
		journal_write_target(j, t);
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
	return journal_wrote(j, logstore_assignment_add(j->ls, &a)) ? a.id : 0;
}

void journal_write_assignment(struct journal *j, struct target *t, const char *why)
{
	const struct pcptune_policy *p = policy_desc(t->active.module);
	char params[sizeof(((struct log_assignment *)0)->params)];

	policy_params_text(t->active.module, t->active.params, params, sizeof(params));
	t->log_assignment = write_assignment(j, t, p->name, p->version, params, why);
	t->seq_state = t->seq;
}

bool journal_state_due(const struct target *t)
{
	return t->seq - t->seq_state >= STATE_EVERY;
}

/*
 * A foreign policy may have a state that is longer than others' samples, and the log is bounded.
 * Without a state a replay begins where the assignment did.
 */
void journal_write_state(struct journal *j, struct target *t)
{
	size_t size;
	const void *state = policy_instance_state(t->pi, &size);

	if (policy_remote(t->active.module)) {
		t->seq_state = t->seq;
		if (!t->foreign || size > (uint64_t)j->d->config->log.max_bytes / STATE_SHARE)
			return;
		remote_fetch_state(foreign_remote(t->foreign), t->pi);
	}
	journal_wrote(j, logstore_state_add(j->ls, t->log_assignment, t->seq, state, size));
	t->seq_state = t->seq;
}

static void write_run(struct journal *j, struct target *t, struct nochange_run *r)
{
	const struct pcptune_reason *why = policy_reason(t->active.module, r->reason);

	journal_wrote(j, logstore_nochange(j->ls, &r->row, t->log_assignment, r->reason,
					   why ? why->name : "dropped", r->seq_first, r->seq_last,
					   r->n));
}

static void write_runs(struct journal *j, struct target *t)
{
	for (uint32_t i = 0; i < t->n_done_runs; i++)
		write_run(j, t, &t->done_runs[i]);
	t->n_done_runs = 0;
	if (t->run.n)
		write_run(j, t, &t->run);
}

void journal_write_chunk(struct journal *j, struct target *t)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(t->enc, &data, &len, &totals);
	if (!len)
		return;
	if (!journal_wrote(
		    j, logstore_samples_add(j->ls, t->log_id, logstamp_now(), &totals, data, len)))
		return;
	encoder_reset(t->enc);
	t->chunk_txn = j->txn;
	j->txn_samples += totals.n_samples;
}

/*
 * What a policy saw is written with the sample that it came with. Other records wait for more of
 * them, so that there are not many small rows.
 */
void journal_write_records(struct journal *j, struct target *t, bool now)
{
	struct records_writer *w = &t->records;

	if (!w->n)
		return;
	if (!now && !policy_record_ms(t->active.module) && w->len < RECORDS_ROW &&
	    boot_us() - t->records_since_us < RECORDS_AGE_US)
		return;
	if (journal_wrote(j, logstore_records_add(j->ls, t->log_id, logstamp_now(), w)))
		records_reset(w);
}

static void write_inflight(struct journal *j, struct target *t)
{
	for (uint32_t i = 0; i < t->n_inflight; i++) {
		struct inflight *f = &t->inflight[i];

		if (f->logged || f->decision <= 0)
			continue;
		journal_wrote(j, logstore_decision_outcome(j->ls, f->decision, LOG_WRITTEN));
		f->logged = true;
	}
}

static void write_effects(struct journal *j, struct target *t)
{
	struct log_decision d;

	while (effects_take(t->effects, &d))
		journal_wrote(j, logstore_decision_effect(j->ls, &d));
}

void journal_gathered(struct journal *j, struct target *t)
{
	uint64_t chunk_us = (uint64_t)j->d->config->log.chunk_ms * 1000u, now = boot_us();

	if (t->chunk_due_us <= now && chunk_us)
		t->chunk_due_us += (now - t->chunk_due_us + chunk_us) / chunk_us * chunk_us;
	t->gathered = false;
	if (!j->open || !target_ready(j, t))
		return;
	journal_write_chunk(j, t);
	journal_write_records(j, t, false);
	write_runs(j, t);
	write_inflight(j, t);
	write_effects(j, t);
	if (journal_state_due(t) && !t->kept.asked)
		journal_write_state(j, t);
}

void journal_before_assignment(struct journal *j, struct target *t)
{
	if (t->log_assignment && journal_write_soon(j) && target_ready(j, t)) {
		journal_write_chunk(j, t);
		journal_write_records(j, t, true);
		write_runs(j, t);
	}
	t->n_done_runs = 0;
	memset(&t->run, 0, sizeof(t->run));
}

void journal_assignment(struct journal *j, struct target *t)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (!t->log_id || !journal_write_soon(j)) {
		t->broken = true;
		t->n_done_runs = 0;
		return;
	}
	journal_write_assignment(j, t, t->policy_why);
	t->broken = false;
}

/* What is in it will not be written. */
static void lose_chunk(struct journal *j, struct target *t)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(t->enc, &data, &len, &totals);
	if (len)
		j->lost_samples += totals.n_samples;
	encoder_reset(t->enc);
}

void journal_target_end(struct journal *j, struct target *t, const char *how)
{
	if (j->state == JOURNAL_OFF)
		return;
	if (t->log_id && journal_write_soon(j)) {
		if (t->pi)
			journal_gathered(j, t);
		if (target_ready(j, t))
			journal_write_records(j, t, true);
		journal_wrote(j, logstore_target_end(j->ls, t->log_id, logstamp_now(), how));
	} else if (t->log_id && j->n_ends < JOURNAL_ENDS_MAX) {
		struct queued_end *e = &j->ends[j->n_ends++];

		e->log_id = t->log_id;
		e->t = logstamp_now();
		snprintf(e->how, sizeof(e->how), "%.63s", how);
	}
	if (t->enc)
		lose_chunk(j, t);
}

static void queue_event(struct journal *j, struct target *t, const char *kind, const char *text)
{
	struct queued_event *e;

	if (j->state == JOURNAL_OFF || j->n_events == JOURNAL_EVENTS_MAX)
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
	if (journal_write_soon(j))
		journal_wrote(j, logstore_event(j->ls, j->run, t ? t->log_id : 0, logstamp_now(),
						kind, text));
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
	return journal_wrote(j, logstore_decision_add(j->ls, &d)) ? d.id : 0;
}

void journal_lose_decisions(struct journal *j, struct target *t, uint32_t n)
{
	if (j->state == JOURNAL_OFF)
		return;
	lose_chunk(j, t);
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
