/* SPDX-License-Identifier: MIT */
/*
 * Advice from a log, see advise.h.
 *
 * The policy's limits lie over those of the samples: a CPU that it changed shows what it set, and
 * is settling for as long as live. Pins of the operator are left out: it is advised what would be
 * best if CPUs were free. Records are taken from the rows that came with samples; those that were
 * merged since belong to no sample any more.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "eval/advise.h"
#include "eval/likeness.h"
#include "lib/records.h"

#define SETTLE_US 200000u /* as the daemon's settle_ms is by default */

struct overlay {
	bool on, seen;
	struct limits now, then;
	uint64_t settle_until;
	uint32_t reason, high_before;
	int64_t arg[4];
};

struct advising {
	struct advice *a;
	struct policy_instance *pi;
	struct pcptune_decoder *dec;
	uint32_t n, n_cpus; /* places in all, CPUs of a zone */
	struct overlay *over;
	struct pcptune_cpu *cpus;
	struct pcptune_record *records; /* of one sample */
	uint8_t *packed;		/* rows of records, each with its length in front */
	size_t packed_len, at;
	struct records_reader rd;
	struct log_record next;
	bool reading, has_next;
	uint64_t from_us, to_us;
	char *why;
	int error;
};

/* ---- records ---- */

static int on_records(const struct log_records_row *row, const uint8_t *data, size_t len,
		      void *cookie)
{
	struct advising *v = cookie;
	uint8_t *grown;

	if (row->level)
		return 0;
	grown = realloc(v->packed, v->packed_len + sizeof(len) + len);
	if (!grown)
		return -ENOMEM;
	v->packed = grown;
	memcpy(v->packed + v->packed_len, &len, sizeof(len));
	memcpy(v->packed + v->packed_len + sizeof(len), data, len);
	v->packed_len += sizeof(len) + len;
	return 0;
}

/* Sets has_next; a damaged row is left out. */
static void next_record(struct advising *v)
{
	size_t len;

	v->has_next = false;
	for (;;) {
		if (v->reading && records_next(&v->rd, &v->next) == 1) {
			v->has_next = true;
			return;
		}
		v->reading = false;
		if (v->at >= v->packed_len)
			return;
		memcpy(&len, v->packed + v->at, sizeof(len));
		records_begin(&v->rd, v->packed + v->at + sizeof(len), len);
		v->at += sizeof(len) + len;
		v->reading = true;
	}
}

/* Those that came with this sample; older ones belong to samples that are not looked at. */
static uint32_t take_records(struct advising *v, uint64_t seq)
{
	uint32_t n = 0;

	for (; v->has_next && v->next.seq <= seq; next_record(v))
		if (v->next.seq == seq && v->next.r.index < v->n && n < v->n)
			v->records[n++] = v->next.r;
	v->a->records += n;
	return n;
}

/* ---- samples ---- */

static void put_limits(struct pcptune_cpu *c, const struct limits *l)
{
	c->high = l->high;
	c->high_min = l->high_min;
	c->high_max = l->high_max;
	c->batch = l->batch;
	c->scale_max = l->scale_max;
	c->rules = l->rules;
	c->count = c->count < l->high ? c->count : l->high;
}

static void lay_over(struct advising *v, uint32_t i, const struct pcptune_sample *s)
{
	struct pcptune_cpu *c = &v->cpus[i];
	struct overlay *o = &v->over[i];

	memcpy(c, pcptune_sample_cpu(s, i), sizeof(*c));
	o->now = (struct limits){c->high,  c->high_min,	 c->high_max,
				 c->batch, c->scale_max, c->rules};
	o->seen = o->seen || c->high;
	c->flags &= ~(uint32_t)(PCPTUNE_CPU_HELD | PCPTUNE_CPU_SETTLING);
	if (o->on && o->then.high > o->now.high) { /* what it would miss now is not known */
		c->alloc_zone = c->alloc_direct;
		c->free_zone = c->free_direct;
	}
	if (o->on)
		put_limits(c, &o->then);
	if (o->on && s->time_us < o->settle_until)
		c->flags |= PCPTUNE_CPU_SETTLING;
}

static void keep_change(struct advising *v, const struct host_change *ch, uint64_t now_us)
{
	struct overlay *o = &v->over[ch->index];

	o->on = true;
	o->then = ch->clamped;
	o->settle_until = now_us + SETTLE_US;
	o->reason = ch->reason;
	o->high_before = ch->old.high;
	memcpy(o->arg, ch->arg, sizeof(o->arg));
}

static int decide(struct advising *v, const struct pcptune_sample *from)
{
	struct pcptune_sample s = *from;
	struct host_answer a;
	int r;

	for (uint32_t i = 0; i < v->n; i++)
		lay_over(v, i, from);
	s.size = sizeof(s);
	s.cpus = v->cpus;
	s.cpu_size = sizeof(v->cpus[0]);
	s.records = v->records;
	s.record_size = sizeof(v->records[0]);
	s.n_records = take_records(v, s.seq);
	r = policy_instance_decide(v->pi, &s, &a, v->why);
	if (r)
		return r;
	v->a->samples++;
	for (uint32_t i = 0; i < a.n_changes; i++)
		keep_change(v, &a.changes[i], s.time_us);
	if (!a.n_changes && a.reason) {
		v->a->quiet = a.reason;
		memcpy(v->a->quiet_arg, a.arg, sizeof(a.arg));
	}
	return 0;
}

static int on_chunk(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		    size_t len, void *cookie)
{
	const struct pcptune_sample *s;
	struct advising *v = cookie;

	(void)totals;
	decoder_begin(v->dec, data, len);
	while (!v->error && decoder_next(v->dec, &s) == 1) {
		uint64_t wall = t.wall_us - (t.boot_us - s->time_us);

		if (wall < v->from_us || wall > v->to_us)
			continue;
		if (!v->a->samples)
			v->a->from_us = wall - s->dt_us;
		v->a->to_us = wall;
		v->error = decide(v, s);
	}
	return v->error != 0;
}

/* ---- what it comes to ---- */

static bool same_limits(const struct limits *a, const struct limits *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* The walk as it would be with these limits: what samples measured is of the others. */
static void ask_walk(const struct walk *w, const struct limits *l, bool now, struct whatif *ret)
{
	struct walk k = *w;

	if (!now) /* by samples alone, batches of other limits are not known to grow */
		k.refills = k.drains = k.refilled = k.drained = 0;
	walk_whatif_at(
		&k,
		&(struct likeness_limits){l->high, l->batch ? l->batch : 1, l->scale_max, l->rules},
		ret);
}

/*
 * What was measured at the limits in force is the truth for them; by as many pages as the walk is
 * off there, its answer for others may be off, too.
 */
static void widen(struct whatif *w, uint64_t measured, const struct whatif *now)
{
	uint64_t less = now->pages > measured ? now->pages - measured : 0;

	w->pages_least = w->pages_least > less ? w->pages_least - less : 0;
	w->pages_most += measured > now->pages ? measured - now->pages : 0;
}

static bool other_lists(const struct limits *a, const struct limits *b)
{
	for (uint32_t order = 0; order <= PCPTUNE_MAX_ORDER; order++)
		if (pcptune_rules_has_list(a->rules, order) !=
		    pcptune_rules_has_list(b->rules, order))
			return true;
	return false;
}

static void add_walk(struct advice *a, struct advice_row *row, const struct walk *w, bool changed,
		     const struct limits *now, const struct limits *then)
{
	struct whatif by_now, by_then;
	uint64_t measured = w->refilled + w->drained;

	ask_walk(w, now, true, &by_now);
	by_then = by_now;
	if (changed)
		ask_walk(w, then, false, &by_then);
	widen(&by_then, measured, &by_now);
	if (row && other_lists(now, then)) {
		row->other_lists = true;
		by_then.pages_most += w->direct_pages;
	}
	a->measured += measured;
	a->direct += w->direct_pages;
	whatif_add(&a->pages_now, &by_now);
	whatif_add(&a->pages_then, &by_then);
	if (!row)
		return;
	row->measured = measured;
	row->direct = w->direct_pages;
	row->pages_now = by_now;
	row->pages_then = by_then;
}

static const struct walk *walk_of(const struct walks *w, uint32_t zone, uint32_t cpu)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->walk[i]->zone == zone && w->walk[i]->cpu == cpu)
			return w->walk[i];
	return NULL;
}

static void sum_up(struct advising *v, const struct walks *w)
{
	struct advice *a = v->a;

	for (uint32_t i = 0; i < v->n; i++) {
		const struct overlay *o = &v->over[i];
		const struct walk *k = walk_of(w, i / v->n_cpus, i % v->n_cpus);
		bool changed = o->on && o->now.high && !same_limits(&o->now, &o->then);
		struct advice_row *row = changed ? &a->rows[a->n_rows++] : NULL;

		a->high_now += o->now.high;
		a->high_then += changed ? o->then.high : o->now.high;
		if (row)
			*row = (struct advice_row){.zone = i / v->n_cpus,
						   .cpu = i % v->n_cpus,
						   .now = o->now,
						   .then = o->then,
						   .reason = o->reason,
						   .high_before = o->high_before};
		if (row)
			memcpy(row->arg, o->arg, sizeof(row->arg));
		if (k)
			add_walk(a, row, k, changed, &o->now, &o->then);
	}
	a->seconds = (double)(w->to_ns - w->from_ns) / 1e9;
}

/* ---- the whole ---- */

static int no_memory(char *why)
{
	snprintf(why, WALKS_WHY, "no memory");
	return -ENOMEM;
}

static int prepare(struct advising *v, const struct log_target *t, struct policy_module *m,
		   const int64_t *params)
{
	int r = policy_instance_new(m, &t->shape, params, &v->pi, v->why);

	if (r)
		return r;
	v->n_cpus = t->shape.n_cpus;
	v->n = t->shape.n_zones * t->shape.n_cpus;
	v->over = calloc(v->n, sizeof(*v->over));
	v->cpus = calloc(v->n, sizeof(*v->cpus));
	v->records = calloc(v->n, sizeof(*v->records));
	v->a->rows = calloc(v->n, sizeof(*v->a->rows));
	if (!v->over || !v->cpus || !v->records || !v->a->rows ||
	    decoder_new(t->shape.n_zones, t->shape.n_cpus, &v->dec))
		return no_memory(v->why);
	return 0;
}

static int run(struct advising *v, struct logstore *ls, const struct log_target *t)
{
	struct walks w;
	int r = logstore_records(ls, t->id, 0, on_records, v);

	walks_init(&w);
	if (!r) {
		next_record(v);
		r = logstore_chunks(ls, t->id, 0, on_chunk, v);
	}
	if (v->error)
		return v->error;
	if (r < 0) {
		snprintf(v->why, WALKS_WHY, "%s", r == -ENOMEM ? "no memory" : logstore_error(ls));
		return r;
	}
	if (!v->a->samples) {
		snprintf(v->why, WALKS_WHY, "no sample of target %lld %s in that time",
			 (long long)t->id, t->name);
		return -ENOENT;
	}
	r = walks_add_log(&w, ls, t, v->from_us, v->to_us, v->why);
	if (!r && walks_seal(&w))
		r = no_memory(v->why);
	if (!r)
		sum_up(v, &w);
	if (!r && walks_failed(&w))
		r = no_memory(v->why);
	walks_free(&w);
	return r;
}

int advise_log(struct logstore *ls, const struct log_target *t, uint64_t from_us, uint64_t to_us,
	       struct policy_module *m, const int64_t *params, struct advice *ret, char *why)
{
	struct advice a = {0};
	struct advising v = {
		.a = &a, .from_us = from_us, .to_us = to_us ? to_us : UINT64_MAX, .why = why};
	int r = prepare(&v, t, m, params);

	if (!r)
		r = run(&v, ls, t);
	policy_instance_free(v.pi);
	decoder_free(v.dec);
	free(v.over);
	free(v.cpus);
	free(v.records);
	free(v.packed);
	if (r)
		advice_free(&a);
	else
		*ret = a;
	return r;
}

void advice_free(struct advice *a)
{
	free(a->rows);
	*a = (struct advice){0};
}
