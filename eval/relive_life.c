/* SPDX-License-Identifier: MIT */
/*
 * One job at work: its policy, its lists, and a step of them.
 *
 * Lists are what is left of records: the zone's side p of each CPU (pcptune/tracker.h), which is all
 * that a step leaves to the next. Where a record does not meet the one before, lists are taken to
 * hold then what they held before.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/closed.h"
#include "eval/relive_model.h"
#include "eval/relive_private.h"

/* Plug-ins are reference counted without a lock. */
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- instances ---- */

void life_end(struct life *l)
{
	pthread_mutex_lock(&plugin_lock);
	policy_instance_free(l->pi);
	if (l->module)
		policy_unref(l->module);
	pthread_mutex_unlock(&plugin_lock);
	l->pi = NULL;
	l->module = NULL;
}

static int new_instance(struct life *l, struct policy_module *m, const struct pcptune_shape *shape,
			const int64_t *params, char *why)
{
	int e = policy_instance_new(m, shape, params, &l->pi, why);

	l->asks = policy_record_ms(m) != 0;
	l->first = true;
	return e;
}

static int load_recorded(const struct past *past, struct life *l, const struct log_assignment *a,
			 char *why)
{
	struct pcptune_shape shape = a->shape;
	int64_t params[POLICY_MAX_PARAMS] = {0};
	int e = policy_load(a->policy, past->o->policy_path, &l->module, why);

	if (past->o->budget)
		shape.budget_pages = past->o->budget;
	if (!e)
		e = policy_params_parse(l->module, a->params, params, why);
	return e ? e : new_instance(l, l->module, &shape, params, why);
}

/* The policies of the log take turns where they did. */
static int follow_assignments(const struct past *past, struct life *l, uint64_t seq, char *why)
{
	size_t next = l->next_as;
	int e = 0;

	while (next < past->n_as && past->as[next].seq_first <= (seq ? seq : 1))
		next++;
	if (!next && past->n_as)
		next = 1; /* records that begin before it */
	if (next == l->next_as)
		return 0;
	life_end(l);
	pthread_mutex_lock(&plugin_lock);
	e = load_recorded(past, l, &past->as[next - 1], why);
	pthread_mutex_unlock(&plugin_lock);
	l->next_as = next;
	return e;
}

static void fail(struct life *l, int error, const char *why)
{
	life_end(l);
	l->job->error = error;
	snprintf(l->job->why, sizeof(l->job->why), "%s", why);
}

static void life_limits(const struct past *past, struct life *l)
{
	struct pcptune_rule_state d = closed_first_limits(&past->shape, (uint32_t)past->w.n);

	if (l->job->kind == RELIVE_AS_SET)
		return; /* each record says */
	for (uint32_t i = 0; i < past->n; i++)
		if (past->at[i])
			l->cpu[i].m = (struct limits){d.high,  d.high_min,  d.high_max,
						      d.batch, d.scale_max, d.rules};
}

int life_new(const struct past *past, struct life *l, struct relive_job *job)
{
	char why[RELIVE_WHY] = "";
	int e = 0;

	l->job = job;
	l->cpu = calloc(past->n + (size_t)1, sizeof(*l->cpu));
	if (!l->cpu)
		return -ENOMEM;
	life_limits(past, l);
	if (job->kind == RELIVE_POLICY) {
		pthread_mutex_lock(&plugin_lock);
		e = new_instance(l, job->module, &past->shape, job->params, why);
		pthread_mutex_unlock(&plugin_lock);
	} else if (job->kind == RELIVE_RECORDED) {
		e = follow_assignments(past, l, 0, why);
	}
	if (e)
		fail(l, e, why);
	return 0;
}

/* ---- playing ---- */

static void as_set(struct limits *m, const struct log_record *r)
{
	m->high = r->high_least + (r->high_most - r->high_least) / 2;
	m->high_min = m->high_max = m->high;
	m->batch = r->batch;
	m->scale_max = r->scale_max;
	m->rules = r->rules;
}

/* Pages on the lists: what is held of the swings, and half of what a batch takes of the room. */
static uint64_t count_of(const struct life_cpu *c, uint64_t capacity)
{
	uint64_t level = c->end > c->p ? (uint64_t)(c->end - c->p) : 0, high = c->m.high;

	level += relive_less(high, capacity) / 2;
	return level < high ? level : high;
}

static void play(const struct past *past, struct life *l, const struct log_record *r,
		 struct played *ret)
{
	struct life_cpu *c = &l->cpu[r->r.index];
	const struct walk *k = past->at[r->r.index];
	const struct pcptune_band *b = &r->r.band;
	bool log_grows = relive_grows(k->rules, k->scale_max);
	struct pcptune_band_traffic t = {0, 0};
	struct relive_effect e;
	uint64_t before = c->count;

	if (l->job->kind == RELIVE_AS_SET)
		as_set(&c->m, r);
	if (!c->any)
		c->p = b->start;
	else if (c->end != b->start)
		c->p += b->start - c->end; /* lists hold what they held */
	c->any = true;
	c->m.high = relive_tuned_high(k, &c->m, log_grows, b, c->p, r->r.dt_us);
	e = relive_effect_of(k, &c->m, log_grows);
	pcptune_band_play_record(b, e.capacity, &c->p, &t);
	c->end = pcptune_band_now(b);
	c->count = count_of(c, e.capacity);
	c->refilled += t.refilled;
	c->drained += t.drained;
	*ret = (struct played){.refills = c->refilled / e.refill,
			       .drains = c->drained / e.drain,
			       .refilled = t.refilled,
			       .drained = t.drained};
	c->refilled %= e.refill;
	c->drained %= e.drain;
	ret->takes =
		ret->refills + ret->drains + relive_less(r->lock_taken, r->r.refills + r->r.drains);
	l->sums.grown += e.grown;
	l->sums.held_page_ms += (before + c->count) / 2 * (r->r.dt_us / 1000);
}

static double busy_ns(uint64_t takes, uint64_t pages)
{
	return (double)takes * CLOSED_HOLD_NS + (double)pages * CLOSED_PAGE_NS;
}

/* How much busier the zone's lock would have been in this step. */
static double busier(const struct worker *w)
{
	double was = 0, is = 0;

	for (size_t i = 0; i < w->n; i++) {
		const struct log_record *r = &w->r[i];

		was += busy_ns(r->lock_taken, r->r.refilled + r->r.drained);
		is += busy_ns(w->played[i].takes, w->played[i].refilled + w->played[i].drained);
	}
	return was > 0 ? is / was : 0;
}

static uint64_t scaled(uint64_t v, double by)
{
	double x = (double)v * by;

	return x < 1e18 ? (uint64_t)(x + 0.5) : UINT64_C(1000000000000000000);
}

/* ---- samples ---- */

static void clear_sample(struct worker *w, const struct life *l)
{
	memset(w->cpus, 0, w->past->n * sizeof(*w->cpus));
	for (uint32_t i = 0; i < w->past->n; i++) {
		struct pcptune_cpu *c = &w->cpus[i];
		const struct life_cpu *s = &l->cpu[i];

		c->zone = i / w->past->t->shape.n_cpus;
		c->cpu = i % w->past->t->shape.n_cpus;
		c->count = (uint32_t)s->count;
		c->high = s->m.high;
		c->high_min = s->m.high_min;
		c->high_max = s->m.high_max;
		c->batch = s->m.batch;
		c->scale_max = s->m.scale_max;
		c->rules = s->m.rules;
	}
}

static void fill_cpu(struct pcptune_cpu *c, const struct log_record *r, const struct played *p,
		     double busier_by)
{
	double by = r->lock_taken ? (double)p->takes / (double)r->lock_taken * busier_by : 0;
	uint64_t contended = scaled(r->lock_contended, by), wait = scaled(r->lock_wait_ns, by);
	uint64_t allocs = p->refills, all = p->takes ? p->takes : 1;

	contended = contended < p->takes ? contended : p->takes;
	c->flags |= PCPTUNE_CPU_ACTIVE;
	c->alloc_pages += r->alloc_pages;
	c->free_pages += r->free_pages;
	c->alloc_direct += r->alloc_direct;
	c->free_direct += r->free_direct;
	c->alloc_zone += p->refilled + r->alloc_direct;
	c->free_zone += p->drained + r->free_direct;
	c->refills += p->refills;
	c->drains += p->drains;
	c->lock_alloc_taken += allocs;
	c->lock_free_taken += p->takes - allocs;
	c->lock_alloc_contended += contended * allocs / all;
	c->lock_free_contended += contended - contended * allocs / all;
	c->lock_alloc_wait_ns += scaled(wait, (double)allocs / (double)all);
	c->lock_free_wait_ns += wait - scaled(wait, (double)allocs / (double)all);
	c->lock_alloc_hold_ns += (uint64_t)busy_ns(allocs, p->refilled);
	c->lock_free_hold_ns += (uint64_t)busy_ns(p->takes - allocs, p->drained);
}

static void add_up(struct relive_sums *s, const struct pcptune_cpu *c)
{
	s->alloc_zone += c->alloc_zone;
	s->free_zone += c->free_zone;
	s->moved += c->alloc_zone - c->alloc_direct + c->free_zone - c->free_direct;
	s->lock_takes += c->lock_alloc_taken + c->lock_free_taken;
	s->lock_contended += c->lock_alloc_contended + c->lock_free_contended;
	s->wait_ns += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
}

/* The records of the step as this job's lists would have had them, one for each CPU. */
static uint32_t fill_given(struct worker *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->past->n; i++) {
		const struct log_record *r = w->slot[i] ? &w->r[w->slot[i] - 1] : NULL;
		const struct played *p = r ? &w->played[w->slot[i] - 1] : NULL;

		if (!r)
			continue;
		w->given[n] = r->r;
		w->given[n].refills = p->refills;
		w->given[n].refilled = p->refilled;
		w->given[n].drains = p->drains;
		w->given[n].drained = p->drained;
		n++;
	}
	return n;
}

/* ---- deciding ---- */

static void apply(struct life *l, const struct host_change *ch)
{
	struct life_cpu *c = &l->cpu[ch->index];
	int direction = (ch->clamped.high > c->m.high) - (ch->clamped.high < c->m.high);

	c->m = ch->clamped;
	if (!c->m.high)
		c->m.high = c->m.high_min;
	l->sums.decisions++;
	if (!direction)
		return;
	l->sums.turns += c->direction && direction != c->direction;
	c->direction = direction;
}

static void note_high(const struct past *past, struct life *l)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < past->n; i++)
		sum += l->cpu[i].m.high;
	l->high_peak = sum > l->high_peak ? sum : l->high_peak;
}

/* Asks the policy about w->cpus, in which n are active. */
static void ask(struct worker *w, struct life *l, uint64_t time_us, uint32_t n, uint32_t n_records)
{
	struct pcptune_sample s = {.size = sizeof(s),
				   .flags = l->first ? PCPTUNE_SAMPLE_FIRST : 0,
				   .seq = ++l->seq,
				   .time_us = time_us,
				   .dt_us = time_us > l->last_us ? time_us - l->last_us : 1,
				   .n_cpus = w->past->n,
				   .cpu_size = sizeof(*w->cpus),
				   .cpus = w->cpus,
				   .active = w->active,
				   .n_active = n,
				   .n_records = n_records,
				   .record_size = sizeof(*w->given),
				   .records = w->given};
	char why[RELIVE_WHY] = "";
	struct host_answer a = {0};
	int e;

	s.cpu_us = s.dt_us * n;
	l->last_us = time_us;
	l->first = false;
	e = policy_instance_decide(l->pi, &s, &a, why);
	l->sums.breaches += e == -EPROTO;
	if (e && e != -EPROTO && e != -ESTALE)
		fail(l, e, why);
	for (uint32_t i = 0; !e && i < a.n_changes; i++)
		apply(l, &a.changes[i]);
	note_high(w->past, l);
}

/* ---- a step ---- */

/* The first question, and those about stretches in which nothing happened. */
static void ask_before(struct worker *w, struct life *l, uint64_t begin)
{
	if (!l->pi)
		return;
	if (!l->seq)
		l->last_us = relive_less(begin, CLOSED_INTERVAL_MS * 1000);
	if (l->seq && begin <= l->last_us + w->past->period_us)
		return;
	clear_sample(w, l);
	ask(w, l, begin > l->last_us ? begin : l->last_us + 1, 0, 0);
}

void life_step(struct worker *w, struct life *l, uint64_t begin, uint64_t end, uint64_t seq)
{
	uint64_t held = 0;
	uint32_t n = 0;
	double by;

	if (l->job->kind == RELIVE_RECORDED) {
		char why[RELIVE_WHY] = "";
		int e = follow_assignments(w->past, l, seq, why);

		if (e)
			fail(l, e, why);
	}
	if (l->job->error)
		return;
	ask_before(w, l, begin);
	if (l->job->error)
		return;
	for (size_t i = 0; i < w->n; i++)
		play(w->past, l, &w->r[i], &w->played[i]);
	by = busier(w);
	clear_sample(w, l);
	for (size_t i = 0; i < w->n; i++)
		fill_cpu(&w->cpus[w->r[i].r.index], &w->r[i], &w->played[i], by);
	for (uint32_t i = 0; i < w->past->n; i++) {
		held += l->cpu[i].count;
		if (!(w->cpus[i].flags & PCPTUNE_CPU_ACTIVE))
			continue;
		w->active[n++] = i;
		add_up(&l->sums, &w->cpus[i]);
	}
	l->sums.held_peak = held > l->sums.held_peak ? held : l->sums.held_peak;
	if (l->pi)
		ask(w, l, end > l->last_us ? end : l->last_us + 1, n, l->asks ? fill_given(w) : 0);
	else
		note_high(w->past, l);
}
