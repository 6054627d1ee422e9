/* SPDX-License-Identifier: MIT */
/*
 * Columns of the log into structs, in the order of the names in logstore_columns.h. A file may be
 * from elsewhere, so texts are cut and cleaned; numbers are the reader's to judge.
 */
#include <stdio.h>
#include "lib/logstore_columns.h"
#include "lib/text.h"

void next_text(struct cursor *c, char *buf, size_t n)
{
	const unsigned char *t = sqlite3_column_text(c->st, c->i++);

	snprintf(buf, n, "%s", t ? (const char *)t : "");
	text_clean(buf); /* a file from elsewhere holds anything; cutting splits characters */
}

static void next_shape(struct cursor *c, struct pcptune_shape *s)
{
	s->size = sizeof(*s);
	s->n_zones = (uint32_t)next(c);
	s->n_cpus = (uint32_t)next(c);
	s->host_cpus = (uint32_t)next(c);
	s->managed_pages = (uint64_t)next(c);
	s->low_wmark_pages = (uint64_t)next(c);
	s->budget_pages = (uint64_t)next(c);
	s->high_limit = (uint32_t)next(c);
	s->interval_ms = (uint32_t)next(c);
}

void next_target(struct cursor *c, struct log_target *t)
{
	t->id = next(c);
	t->run = next(c);
	next_text(c, t->name, sizeof(t->name));
	t->pid = (uint32_t)next(c);
	t->uid = (uint32_t)next(c);
	t->start_boot_ns = (uint64_t)next(c);
	t->random_id = (uint64_t)next(c);
	t->run_tag = (uint64_t)next(c);
	t->mode = (uint32_t)next(c);
	t->seg_flags = (uint32_t)next(c);
	next_shape(c, &t->shape);
	t->attached = next_stamp(c);
	t->detached = next_stamp(c);
	next_text(c, t->end, sizeof(t->end));
}

void next_assignment(struct cursor *c, struct log_assignment *a)
{
	a->id = next(c);
	a->target = next(c);
	a->seq_first = (uint64_t)next(c);
	a->t = next_stamp(c);
	next_text(c, a->policy, sizeof(a->policy));
	next_text(c, a->version, sizeof(a->version));
	next_text(c, a->params, sizeof(a->params));
	next_text(c, a->why, sizeof(a->why));
	next_shape(c, &a->shape);
}

static void next_limits(struct cursor *c, struct log_limits *l)
{
	l->high = (uint32_t)next(c);
	l->high_min = (uint32_t)next(c);
	l->high_max = (uint32_t)next(c);
	l->batch = (uint32_t)next(c);
	l->scale_max = (uint32_t)next(c);
	l->rules = (uint32_t)next(c);
}

void next_decision(struct cursor *c, struct log_decision *d)
{
	d->id = next(c);
	d->target = next(c);
	d->assignment = next(c);
	d->seq = (uint64_t)next(c);
	d->t = next_stamp(c);
	d->zone = (uint32_t)next(c);
	d->cpu = (uint32_t)next(c);
	d->reason = (uint32_t)next(c);
	next_text(c, d->reason_name, sizeof(d->reason_name));
	for (int i = 0; i < 4; i++)
		d->arg[i] = next(c);
	next_limits(c, &d->old);
	next_limits(c, &d->proposed);
	next_limits(c, &d->clamped);
	d->outcome = (int)next(c);
	d->effect_n = (uint32_t)next(c);
	d->before_alloc_pages = (uint64_t)next(c);
	d->before_alloc_zone = (uint64_t)next(c);
	d->before_wait_ns = (uint64_t)next(c);
	d->before_held = (uint64_t)next(c);
	d->after_alloc_pages = (uint64_t)next(c);
	d->after_alloc_zone = (uint64_t)next(c);
	d->after_wait_ns = (uint64_t)next(c);
	d->after_held = (uint64_t)next(c);
}
