/* SPDX-License-Identifier: MIT */
/*
 * Policies of the daemon in the loop of a simulation: every 100 ms of its time the real plug-in,
 * behind the real host, gets the sample that the lists caused, and what the host lets through is in
 * force from then on, as in the closed loop over traces (eval/closed.c).
 *
 * To a policy the machine looks as one target does: a zone for each node, and slots for all CPUs in
 * each of them; a CPU uses the zone of its node alone. Memory follows from the bounds of high that
 * the workload has: high_max is an eighth of it, shared by the CPUs, high_min the low watermark.
 * Limits are taken over at once; what no longer fits is given back by the daemon's thread, whose
 * holds others wait for. Sampling costs nothing here.
 *
 * Records: where the policy asks for them each CPU has a recorder (eval/recorder.h) on its net
 * position.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/closed.h"
#include "eval/recorder.h"
#include "eval/shown.h"
#include "eval/sim/internal.h"

/* Plug-ins are reference counted without a lock, and instances are made on any thread. */
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

struct loop_cpu {
	struct sim_counters last; /* at the last sample */
	uint64_t settle_until;	  /* us */
	struct recorder recorder;
};

struct sim_loop {
	struct pcptune_shape shape;
	struct policy_instance *pi;
	char *why;
	uint32_t record_ms;
	uint64_t seq, last_us, decisions, breaches;
	struct pcptune_cpu *sample; /* of all zones */
	uint32_t *active;
	struct pcptune_record *records; /* room for all CPUs; NULL: not asked for */
	struct loop_cpu cpu[];
};

/* The clock of samples begins an interval and more after 0. */
static uint64_t us_of(uint64_t ns)
{
	return ns / 1000 + 1000000;
}

/* ---- samples ---- */

static void fill_counters(struct pcptune_cpu *p, const struct sim_counters *n,
			  const struct sim_counters *b)
{
	p->alloc_pages = n->alloc_pages - b->alloc_pages;
	p->free_pages = n->free_pages - b->free_pages;
	p->alloc_zone = n->alloc_zone - b->alloc_zone;
	p->free_zone = n->free_zone - b->free_zone;
	p->alloc_direct = n->alloc_direct - b->alloc_direct;
	p->free_direct = n->free_direct - b->free_direct;
	p->refills = n->refills - b->refills;
	p->drains = n->drains - b->drains;
	p->free_high = n->free_high - b->free_high;
	p->trim_pages = n->trim_pages - b->trim_pages;
#define PATH(name, id)                                                    \
	p->lock_##name##_taken = n->taken[id] - b->taken[id];             \
	p->lock_##name##_contended = n->contended[id] - b->contended[id]; \
	p->lock_##name##_wait_ns = n->wait_ns[id] - b->wait_ns[id];       \
	p->lock_##name##_hold_ns = n->hold_ns[id] - b->hold_ns[id]
	PATH(alloc, SIM_ALLOC);
	PATH(free, SIM_FREE);
	PATH(agent, SIM_AGENT);
#undef PATH
}

static void fill_cpu(struct pcptune_cpu *p, const struct cpu *c, struct loop_cpu *lc,
		     uint64_t now_us)
{
	fill_counters(p, &c->n, &lc->last);
	shown_state(p, &c->lists.s, c->lists.pages, now_us < lc->settle_until);
	lc->last = c->n;
}

static struct recorder_moves moves(const struct sim_counters *n)
{
	return (struct recorder_moves){.refills = n->refills,
				       .refilled = n->alloc_zone - n->alloc_direct,
				       .drains = n->drains,
				       .drained = n->free_zone - n->free_direct};
}

/* Entries in ascending order of index: nodes hold CPUs in ascending order, too. */
static void fill_sample(struct sim *s, struct pcptune_sample *sample)
{
	struct sim_loop *l = s->loop;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct cpu *c = &s->cpu[i];
		uint32_t index = c->node * s->n + i;
		struct pcptune_cpu *p = &l->sample[index];
		struct recorder_moves m;

		fill_cpu(p, c, &l->cpu[i], sample->time_us);
		if (!(p->flags & PCPTUNE_CPU_ACTIVE))
			continue;
		l->active[sample->n_active++] = index;
		m = moves(&c->n);
		if (l->records)
			sample->n_records +=
				recorder_cut(&l->cpu[i].recorder, index, sample->time_us,
					     l->record_ms, &m, &l->records[sample->n_records]);
	}
	sample->cpu_us = sample->dt_us * sample->n_active;
}

/* ---- decisions ---- */

static void apply(struct sim *s, const struct host_change *ch, uint64_t t, uint64_t now_us)
{
	struct cpu *c = &s->cpu[ch->cpu];
	const struct limits *m = &ch->clamped;
	struct pcptune_rule_state to = {.rules = m->rules,
					.high = m->high,
					.high_min = m->high_min,
					.high_max = m->high_max,
					.batch = m->batch,
					.scale_max = m->scale_max};
	struct sim_drain d;

	s->loop->decisions++;
	s->loop->cpu[ch->cpu].settle_until = now_us + CLOSED_SETTLE_US;
	if (ch->zone != c->node)
		return; /* lists that this CPU does not use */
	d = sim_lists_limits(&c->lists, &to);
	c->n.trim_pages += d.pages;
	sim_drained(s, c, d, t, SIM_AGENT);
}

int sim_loop_step(struct sim *s, uint64_t t)
{
	struct sim_loop *l = s->loop;
	struct pcptune_sample sample = {.size = sizeof(sample),
					.flags = l->seq ? 0 : PCPTUNE_SAMPLE_FIRST,
					.seq = l->seq + 1,
					.time_us = us_of(t),
					.dt_us = us_of(t) - l->last_us,
					.n_cpus = l->shape.n_zones * s->n,
					.cpu_size = sizeof(*l->sample),
					.cpus = l->sample,
					.active = l->active,
					.record_size = sizeof(*l->records),
					.records = l->records};
	struct host_answer a = {0};
	int e;

	fill_sample(s, &sample);
	l->last_us = sample.time_us;
	l->seq++;
	e = policy_instance_decide(l->pi, &sample, &a, l->why);
	l->breaches += e == -EPROTO;
	for (uint32_t i = 0; !e && i < a.n_changes; i++)
		apply(s, &a.changes[i], t, sample.time_us);
	return e == -EPROTO || e == -ESTALE ? 0 : e;
}

/* ---- the whole ---- */

static void make_shape(const struct sim *s, uint64_t budget, struct pcptune_shape *ret)
{
	const struct sim_workload *w = s->w;

	*ret = (struct pcptune_shape){.size = sizeof(*ret),
				      .n_zones = (uint32_t)w->nodes,
				      .n_cpus = s->n,
				      .host_cpus = s->n,
				      .managed_pages =
					      (uint64_t)w->high_max * PCPTUNE_HIGH_FRACTION * s->n,
				      .low_wmark_pages = (uint64_t)w->high_min * s->n,
				      .budget_pages = budget,
				      .high_limit = PCPTUNE_MAX_HIGH,
				      .interval_ms = CLOSED_INTERVAL_MS};
}

static int make_instance(struct sim_loop *l, const struct sim_setup *setup, char *why)
{
	int e;

	pthread_mutex_lock(&plugin_lock);
	e = policy_instance_new(setup->module, &l->shape, setup->params, &l->pi, why);
	pthread_mutex_unlock(&plugin_lock);
	return e;
}

static void first_entries(struct sim *s)
{
	struct sim_loop *l = s->loop;

	for (uint32_t zone = 0; zone < l->shape.n_zones; zone++)
		for (uint32_t i = 0; i < s->n; i++) {
			l->sample[zone * s->n + i].zone = zone;
			l->sample[zone * s->n + i].cpu = i;
		}
	for (uint32_t i = 0; i < s->n && l->records; i++) {
		recorder_begin(&l->cpu[i].recorder, i, us_of(0));
		s->cpu[i].band = &l->cpu[i].recorder.band;
	}
	l->last_us = us_of(0) - CLOSED_INTERVAL_MS * 1000;
}

int sim_loop_new(struct sim *s, const struct sim_setup *setup, char *why)
{
	struct sim_loop *l = calloc(1, sizeof(*l) + s->n * sizeof(l->cpu[0]));
	uint32_t n = (uint32_t)s->w->nodes * s->n;
	bool records = policy_record_ms(setup->module) != 0;
	int e;

	if (!l) {
		snprintf(why, SIM_RUN_WHY, "no memory");
		return -ENOMEM;
	}
	s->loop = l;
	l->why = why;
	l->record_ms = policy_record_ms(setup->module);
	l->sample = calloc(n, sizeof(*l->sample));
	l->active = calloc(n, sizeof(*l->active));
	l->records = records ? calloc(s->n, sizeof(*l->records)) : NULL;
	if (!l->sample || !l->active || (records && !l->records)) {
		snprintf(why, SIM_RUN_WHY, "no memory");
		return -ENOMEM;
	}
	make_shape(s, setup->budget, &l->shape);
	first_entries(s);
	e = make_instance(l, setup, why);
	return e ? e : sim_loop_step(s, 0);
}

void sim_loop_result(const struct sim *s, struct sim_result *r)
{
	r->decisions = s->loop->decisions;
	r->breaches = s->loop->breaches;
}

void sim_loop_free(struct sim *s)
{
	struct sim_loop *l = s->loop;

	if (!l)
		return;
	pthread_mutex_lock(&plugin_lock);
	policy_instance_free(l->pi);
	pthread_mutex_unlock(&plugin_lock);
	free(l->sample);
	free(l->active);
	free(l->records);
	free(l);
	s->loop = NULL;
}
