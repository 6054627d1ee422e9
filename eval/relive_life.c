/* SPDX-License-Identifier: MIT */
/*
 * One job at work: its policy, its lists, and a step of them.
 *
 * Lists are what is left of records: the zone's side p of each CPU (pcptune/tracker.h), which is
 * all that a step leaves to the next. Where a record does not meet the one before, lists are taken
 * to hold then what they held before.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/closed.h"
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
	int e = policy_load_logged(a->policy, past->o->policy_path, &l->module, why);

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

static bool same_limits(const struct limits *a, const struct limits *b)
{
	return a->high == b->high && a->high_min == b->high_min && a->high_max == b->high_max &&
	       a->batch == b->batch && a->scale_max == b->scale_max && a->rules == b->rules;
}

/* Limits last for many records. */
static struct effect known_effect(struct life_cpu *c, const struct walk *k)
{
	if (!c->effect.capacity || !same_limits(&c->m, &c->known)) {
		c->effect = relive_effect_of(k, &c->m);
		c->known = c->m;
	}
	return c->effect;
}

/* Calls that went past the lists for their order, and those that would, are not in the swings. */
static bool other_orders(uint32_t rules, uint32_t of_log)
{
	const uint32_t lists = PCPTUNE_RT_ORDERS | PCPTUNE_RT_HUGE;

	return (pcptune_rules_traits(rules) ^ pcptune_rules_traits(of_log)) & lists;
}

static void play(const struct past *past, struct life *l, const struct log_record *r,
		 const struct swings *w, struct played *ret)
{
	struct life_cpu *c = &l->cpu[r->r.index];
	const struct walk *k = past->at[r->r.index];
	const struct pcptune_band *b = &r->r.band;
	struct pcptune_band_traffic t = {0, 0};
	struct effect e;
	uint64_t before = c->count;

	if (l->job->kind == RELIVE_AS_SET)
		as_set(&c->m, r);
	if (!c->any)
		c->p = b->start;
	else if (c->end != b->start)
		c->p += b->start - c->end; /* lists hold what they held */
	c->any = true;
	c->m.high = relive_tuned_high(k, &c->m, b, w, c->p, r->r.dt_us);
	e = known_effect(c, k);
	swings_play(w, b, e.capacity, &c->p, &t);
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
	l->sums.orders += other_orders(c->m.rules, r->rules);
	l->sums.held_page_ms += (before + c->count) / 2 * (r->r.dt_us / 1000);
}

static double busy_ns(uint64_t takes, uint64_t pages)
{
	return (double)takes * CLOSED_HOLD_NS + (double)pages * CLOSED_PAGE_NS;
}

/* How much busier the zone's lock would have been in this step. */
static double busier(const struct log_record *r, const struct played *p, size_t n)
{
	double was = 0, is = 0;

	for (size_t i = 0; i < n; i++) {
		was += busy_ns(r[i].lock_taken, r[i].r.refilled + r[i].r.drained);
		is += busy_ns(p[i].takes, p[i].refilled + p[i].drained);
	}
	return was > 0 ? is / was : 0;
}

static uint64_t scaled(uint64_t v, double by)
{
	double x = (double)v * by;

	return x < 1e18 ? (uint64_t)(x + 0.5) : UINT64_C(1000000000000000000);
}

/* ---- samples ---- */

static void clear_sample(struct scratch *x, const struct life *l)
{
	memset(x->cpus, 0, x->past->n * sizeof(*x->cpus));
	for (uint32_t i = 0; i < x->past->n; i++) {
		struct pcptune_cpu *c = &x->cpus[i];
		const struct life_cpu *s = &l->cpu[i];

		c->zone = i / x->past->t->shape.n_cpus;
		c->cpu = i % x->past->t->shape.n_cpus;
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

/* The records of the step as this job's lists would have had them, the last one of each CPU. */
static uint32_t fill_given(struct scratch *x, const struct log_record *r, size_t n)
{
	uint32_t n_given = 0;

	for (size_t i = 0; i < n; i++)
		x->slot[r[i].r.index] = (uint32_t)i + 1;
	for (uint32_t i = 0; i < x->past->n; i++) {
		struct pcptune_record *g = &x->given[n_given];
		const struct played *p;

		if (!x->slot[i])
			continue;
		p = &x->played[x->slot[i] - 1];
		*g = r[x->slot[i] - 1].r;
		g->refills = p->refills;
		g->refilled = p->refilled;
		g->drains = p->drains;
		g->drained = p->drained;
		x->slot[i] = 0;
		n_given++;
	}
	return n_given;
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

/* Asks the policy about x->cpus, in which n are active. */
static void ask(struct scratch *x, struct life *l, uint64_t time_us, uint32_t n, uint32_t n_records)
{
	struct pcptune_sample s = {.size = sizeof(s),
				   .flags = l->first ? PCPTUNE_SAMPLE_FIRST : 0,
				   .seq = ++l->seq,
				   .time_us = time_us,
				   .dt_us = time_us > l->last_us ? time_us - l->last_us : 1,
				   .n_cpus = x->past->n,
				   .cpu_size = sizeof(*x->cpus),
				   .cpus = x->cpus,
				   .active = x->active,
				   .n_active = n,
				   .n_records = n_records,
				   .record_size = sizeof(*x->given),
				   .records = x->given};
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
	note_high(x->past, l);
}

/* ---- a step ---- */

/* The first question, and those about stretches in which nothing happened. */
static void ask_before(struct scratch *x, struct life *l, uint64_t begin)
{
	if (!l->pi)
		return;
	if (!l->seq)
		l->last_us = relive_less(begin, CLOSED_INTERVAL_MS * 1000);
	if (l->seq && begin <= l->last_us + x->past->period_us)
		return;
	clear_sample(x, l);
	ask(x, l, begin > l->last_us ? begin : l->last_us + 1, 0, 0);
}

/* Plays the records and makes the sample of them. Returns how many CPUs are active in it. */
static uint32_t play_all(struct scratch *x, struct life *l, const struct log_record *r,
			 const struct swings *w, size_t n)
{
	uint64_t held = 0;
	uint32_t n_active = 0;
	double by;

	for (size_t i = 0; i < n; i++)
		play(x->past, l, &r[i], &w[i], &x->played[i]);
	by = busier(r, x->played, n);
	clear_sample(x, l);
	for (size_t i = 0; i < n; i++)
		fill_cpu(&x->cpus[r[i].r.index], &r[i], &x->played[i], by);
	for (uint32_t i = 0; i < x->past->n; i++) {
		held += l->cpu[i].count;
		if (!(x->cpus[i].flags & PCPTUNE_CPU_ACTIVE))
			continue;
		x->active[n_active++] = i;
		add_up(&l->sums, &x->cpus[i]);
	}
	l->sums.held_peak = held > l->sums.held_peak ? held : l->sums.held_peak;
	return n_active;
}

static int played_room(struct scratch *x, size_t n)
{
	struct played *grown;

	if (n <= x->played_room)
		return 0;
	grown = reallocarray(x->played, n, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	x->played = grown;
	x->played_room = n;
	return 0;
}

int life_step(struct scratch *x, struct life *l, const struct block *b, const struct step *step)
{
	const struct log_record *r = &b->r[step->first];
	uint64_t end = step->end_us;
	uint32_t n;

	if (l->job->kind == RELIVE_RECORDED) {
		char why[RELIVE_WHY] = "";
		int e = follow_assignments(x->past, l, step->seq, why);

		if (e)
			fail(l, e, why);
	}
	if (!l->job->error)
		ask_before(x, l, step->begin_us);
	if (l->job->error)
		return 0;
	if (played_room(x, step->n))
		return -ENOMEM;
	n = play_all(x, l, r, &b->w[step->first], step->n);
	if (l->pi)
		ask(x, l, end > l->last_us ? end : l->last_us + 1, n,
		    l->asks ? fill_given(x, r, step->n) : 0);
	else
		note_high(x->past, l);
	return 0;
}

/* ---- scratch ---- */

int scratch_init(struct scratch *x, const struct past *past)
{
	size_t n = past->n + (size_t)1;

	*x = (struct scratch){.past = past};
	x->cpus = calloc(n, sizeof(*x->cpus));
	x->active = calloc(n, sizeof(*x->active));
	x->slot = calloc(n, sizeof(*x->slot));
	x->given = calloc(n, sizeof(*x->given));
	return x->cpus && x->active && x->slot && x->given ? 0 : -ENOMEM;
}

void scratch_free(struct scratch *x)
{
	free(x->cpus);
	free(x->active);
	free(x->slot);
	free(x->given);
	free(x->played);
}
