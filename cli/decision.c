/* SPDX-License-Identifier: MIT */
/*
 * See decision.h. Why a value was cut is not in the log, because it can be found again: the bounds
 * are a pure function of what is logged, and asking that function once more without the budget
 * tells what the budget did.
 */
#include "cli/decision.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <pcptune/rules.h>
#include "cli/cli.h"
#include "lib/text.h"
#include "policies/host.h"

bool decision_by_hand(const struct log_assignment *a)
{
	return !a->id || !strcmp(a->policy, "operator");
}

bool decision_applied(const struct log_decision *d)
{
	return d->outcome == LOG_APPLIED;
}

static json_t *effect_json(uint64_t alloc_pages, uint64_t alloc_zone, uint64_t wait_ns,
			   uint64_t held)
{
	return json_pack("{s:I, s:I, s:I, s:I}", "alloc_pages", (json_int_t)alloc_pages,
			 "alloc_zone", (json_int_t)alloc_zone, "wait_ns", (json_int_t)wait_ns,
			 "held_pages", (json_int_t)held);
}

static void add_effect(json_t *o, const struct log_decision *d)
{
	json_object_set_new(o, "effect_samples", json_integer(d->effect_n));
	if (!d->effect_n)
		return;
	json_object_set_new(o, "before",
			    effect_json(d->before_alloc_pages, d->before_alloc_zone,
					d->before_wait_ns, d->before_held / d->effect_n));
	json_object_set_new(o, "after",
			    effect_json(d->after_alloc_pages, d->after_alloc_zone, d->after_wait_ns,
					d->after_held / d->effect_n));
}

/* What is not in the contract of the first thirteen keys. */
static void add_more(json_t *o, const struct log_decision *d, const struct log_target *t,
		     const struct log_assignment *a)
{
	char text[512];

	json_object_set_new(o, "target_name", json_string(t->name));
	json_object_set_new(o, "pid", json_integer(t->pid));
	json_object_set_new(o, "text", json_string(cli_reason(d, a, text, sizeof(text))));
	json_object_set_new(o, "args",
			    json_pack("[I, I, I, I]", (json_int_t)d->arg[0], (json_int_t)d->arg[1],
				      (json_int_t)d->arg[2], (json_int_t)d->arg[3]));
	json_object_set_new(o, "proposed", cli_limits_json(&d->proposed));
	json_object_set_new(o, "params", json_string(a->params));
	json_object_set_new(o, "assignment", json_integer(d->assignment));
	json_object_set_new(o, "boot_us", json_integer((json_int_t)d->t.boot_us));
	add_effect(o, d);
}

json_t *decision_json(const struct log_decision *d, const struct log_target *t,
		      const struct log_assignment *a)
{
	json_t *o = json_object();
	char time[48];

	json_object_set_new(o, "id", json_integer(d->id));
	json_object_set_new(o, "time",
			    json_string(text_time_iso(d->t.wall_us, time, sizeof(time))));
	json_object_set_new(o, "target", json_integer(d->target));
	json_object_set_new(o, "cpu", json_integer(d->cpu));
	json_object_set_new(o, "zone", json_integer(d->zone));
	json_object_set_new(o, "policy", json_string(a->policy));
	json_object_set_new(o, "version", json_string(a->version));
	json_object_set_new(o, "reason", json_string(d->reason_name));
	json_object_set_new(o, "old", cli_limits_json(&d->old));
	json_object_set_new(o, "new", cli_limits_json(&d->clamped));
	json_object_set_new(o, "applied", json_boolean(decision_applied(d)));
	json_object_set_new(o, "sample", json_integer((json_int_t)d->seq));
	json_object_set_new(o, "outcome", json_string(log_outcome_name(d->outcome)));
	add_more(o, d, t, a);
	return o;
}

/* ---- why clamped ---- */

struct why {
	char *buf;
	size_t n, at;
};

__attribute__((format(printf, 2, 3))) static void because(struct why *w, const char *fmt, ...)
{
	va_list ap;

	if (w->at && w->at < w->n)
		w->at += (size_t)snprintf(w->buf + w->at, w->n - w->at, "; ");
	if (w->at >= w->n)
		return;
	va_start(ap, fmt);
	w->at += (size_t)vsnprintf(w->buf + w->at, w->n - w->at, fmt, ap);
	va_end(ap);
}

static struct limits as_limits(const struct log_limits *l)
{
	return (struct limits){l->high, l->high_min, l->high_max, l->batch, l->scale_max, l->rules};
}

static void why_high(struct why *w, const struct pcptune_shape *shape, const struct log_decision *d,
		     const struct limits *no_budget)
{
	uint32_t want = d->proposed.high, got = d->clamped.high;

	if (want == got)
		return;
	if (shape->budget_pages && no_budget->high > got)
		because(w,
			"high: the lists of a target may hold at most %" PRIu64
			" pages together (its budget), which left room for %" PRIu32
			" instead of %" PRIu32,
			shape->budget_pages, got, want);
	else if (want > got && want > shape->high_limit)
		because(w, "high: the lists of one CPU have room for %" PRIu32 " pages",
			shape->high_limit);
	else if (want < got && want < 4)
		because(w, "high: 4 pages are the least");
	else
		because(w, "high: kept within high_min and high_max");
}

static void why_bounds(struct why *w, const struct log_decision *d)
{
	const struct log_limits *want = &d->proposed, *got = &d->clamped;

	if (want->high_min != got->high_min)
		because(w, "high_min: it may not be above high, nor above the room of the lists");
	if (want->high_max != got->high_max)
		because(w, "high_max: it may not be below high, nor above the room of the lists or "
			   "the budget");
}

char *decision_clamp_why(const struct pcptune_shape *shape, const struct log_decision *d, char *buf,
			 size_t n)
{
	const struct log_limits *want = &d->proposed, *got = &d->clamped;
	struct limits old = as_limits(&d->old), proposed = as_limits(want), no_budget;
	struct pcptune_shape unbounded = *shape;
	struct why w = {buf, n, 0};

	buf[0] = '\0';
	unbounded.budget_pages = 0;
	host_clamp(&unbounded, &old, 0, &proposed, &no_budget);
	why_high(&w, shape, d, &no_budget);
	why_bounds(&w, d);
	if (want->batch != got->batch && want->batch > PCPTUNE_MAX_BATCH)
		because(&w, "batch: %u pages are the most", PCPTUNE_MAX_BATCH);
	else if (want->batch != got->batch)
		because(&w, "batch: at least 1 and at most high");
	if (want->scale_max != got->scale_max)
		because(&w, "scale_max: %u is the most", PCPTUNE_MAX_SCALE);
	if (want->rules != got->rules)
		because(&w, "rules: no such generation");
	return buf;
}
