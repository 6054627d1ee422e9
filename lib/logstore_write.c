/* SPDX-License-Identifier: MIT */
/*
 * The writes of the log store: one kept statement each.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/logstore_private.h"

#define I(x)	  ((int64_t)(x))
#define SHAPE_FMT "iiiiiiii"
#define SHAPE(s)                                                                   \
	I((s)->n_zones), I((s)->n_cpus), I((s)->host_cpus), I((s)->managed_pages), \
		I((s)->low_wmark_pages), I((s)->budget_pages), I((s)->high_limit), \
		I((s)->interval_ms)
#define LIMITS_FMT "iiiiii"
#define LIMITS(l)                                                                           \
	I((l)->high), I((l)->high_min), I((l)->high_max), I((l)->batch), I((l)->scale_max), \
		I((l)->rules)

static int inserted(struct logstore *ls, int r, int64_t *ret_id)
{
	if (r == 0)
		*ret_id = sqlite3_last_insert_rowid(ls->db);
	return r;
}

/* An update that met no row. */
static int updated(struct logstore *ls, int r, const char *table, int64_t id)
{
	if (r < 0 || sqlite3_changes64(ls->db) > 0)
		return r;
	snprintf(ls->error, sizeof(ls->error), "%s: no %s %lld", ls->path, table, (long long)id);
	return -ENOENT;
}

int logstore_run_begin(struct logstore *ls, struct logstamp t, const char *version,
		       const char *config, int64_t *ret_run)
{
	return inserted(ls,
			logstore_run(ls, ST_RUN_BEGIN, "add a run", "iitt", I(t.boot_us),
				     I(t.wall_us), version, config ? config : ""),
			ret_run);
}

int logstore_run_end(struct logstore *ls, int64_t run, struct logstamp t, const char *why)
{
	return updated(ls,
		       logstore_run(ls, ST_RUN_END, "end a run", "iiit", run, I(t.boot_us),
				    I(t.wall_us), why),
		       "run", run);
}

int logstore_target_add(struct logstore *ls, struct log_target *t)
{
	return inserted(ls,
			logstore_run(ls, ST_TARGET_ADD, "add a target",
				     "itiiiiiii" SHAPE_FMT "iiiit", t->run, t->name, I(t->pid),
				     I(t->uid), I(t->start_boot_ns), I(t->random_id), I(t->run_tag),
				     I(t->mode), I(t->seg_flags), SHAPE(&t->shape),
				     I(t->attached.boot_us), I(t->attached.wall_us),
				     I(t->detached.boot_us), I(t->detached.wall_us), t->end),
			&t->id);
}

int logstore_target_end(struct logstore *ls, int64_t target, struct logstamp t, const char *how)
{
	return updated(ls,
		       logstore_run(ls, ST_TARGET_END, "end a target", "iiit", target, I(t.boot_us),
				    I(t.wall_us), how),
		       "target", target);
}

int logstore_assignment_add(struct logstore *ls, struct log_assignment *a)
{
	return inserted(ls,
			logstore_run(ls, ST_ASSIGNMENT_ADD, "add an assignment",
				     "iiiitttt" SHAPE_FMT, a->target, I(a->seq_first),
				     I(a->t.boot_us), I(a->t.wall_us), a->policy, a->version,
				     a->params, a->why, SHAPE(&a->shape)),
			&a->id);
}

int logstore_samples_add(struct logstore *ls, int64_t target, struct logstamp t,
			 const struct chunk_totals *c, const uint8_t *data, size_t len)
{
	if (ls->held_up && !ls->broken)
		return logstore_fail_text(
			ls, -ENOSPC,
			"%s: a reader keeps the journal from being emptied; samples "
			"are not written until it ends",
			ls->path);
	return logstore_run(ls, ST_SAMPLE_ADD, "add samples", "iiiiiiiiiiiiiiiiiiiiiiiib", target,
			    I(0), I(t.wall_us), I(t.boot_us), I(t.wall_us), I(c->seq_first),
			    I(c->seq_last), I(c->n_samples), I(c->n_records), I(c->time_us),
			    I(c->dt_us), I(c->cpu_us), I(c->alloc_pages), I(c->free_pages),
			    I(c->alloc_zone), I(c->free_zone), I(c->refills), I(c->drains),
			    I(c->free_high), I(c->lock_taken), I(c->lock_contended),
			    I(c->lock_wait_ns), I(c->held_pages), I(c->held_peak), data, len);
}

int logstore_decision_add(struct logstore *ls, struct log_decision *d)
{
	return inserted(ls,
			logstore_run(ls, ST_DECISION_ADD, "add a decision",
				     "iziiiiiitiiii" LIMITS_FMT LIMITS_FMT LIMITS_FMT "i",
				     d->target, d->assignment, I(d->seq), I(d->t.boot_us),
				     I(d->t.wall_us), I(d->zone), I(d->cpu), I(d->reason),
				     d->reason_name, d->arg[0], d->arg[1], d->arg[2], d->arg[3],
				     LIMITS(&d->old), LIMITS(&d->proposed), LIMITS(&d->clamped),
				     I(d->outcome)),
			&d->id);
}

int logstore_decision_outcome(struct logstore *ls, int64_t id, int outcome)
{
	return updated(
		ls, logstore_run(ls, ST_DECISION_OUTCOME, "set an outcome", "ii", id, I(outcome)),
		"decision", id);
}

int logstore_decision_effect(struct logstore *ls, const struct log_decision *d)
{
	return updated(ls,
		       logstore_run(ls, ST_DECISION_EFFECT, "set an effect", "iiiiiiiiii", d->id,
				    I(d->effect_n), I(d->before_alloc_pages),
				    I(d->before_alloc_zone), I(d->before_wait_ns),
				    I(d->before_held), I(d->after_alloc_pages),
				    I(d->after_alloc_zone), I(d->after_wait_ns), I(d->after_held)),
		       "decision", d->id);
}

int logstore_nochange(struct logstore *ls, int64_t *row, int64_t assignment, uint32_t reason,
		      const char *reason_name, uint64_t seq_first, uint64_t seq_last, uint64_t n)
{
	int r;

	if (*row) {
		r = logstore_run(ls, ST_NOCHANGE_UPDATE, "lengthen a no-change run", "iii", *row,
				 I(seq_last), I(n));
		/* the row may have gone with the size bound: then it begins anew */
		if (r < 0 || sqlite3_changes64(ls->db) > 0)
			return r;
	}
	return inserted(ls,
			logstore_run(ls, ST_NOCHANGE_ADD, "add a no-change run", "iitiii",
				     assignment, I(reason), reason_name, I(seq_first), I(seq_last),
				     I(n)),
			row);
}

int logstore_event(struct logstore *ls, int64_t run, int64_t target, struct logstamp t,
		   const char *kind, const char *text)
{
	return logstore_run(ls, ST_EVENT_ADD, "add an event", "iziitt", run, target, I(t.boot_us),
			    I(t.wall_us), kind, text);
}

int logstore_state_add(struct logstore *ls, int64_t assignment, uint64_t seq, const void *state,
		       size_t size)
{
	return logstore_run(ls, ST_STATE_ADD, "add a state", "iib", assignment, I(seq), state,
			    size);
}
