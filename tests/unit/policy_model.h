/* SPDX-License-Identifier: MIT */
/*
 * A tiny closed loop for tests of policies: CPUs with lists that follow rules.h, a walk of
 * allocations and frees, samples, the real plug-in through the real host, limits taken over.
 *
 * Time is virtual and everything is an integer, so results are the same on every machine. Only
 * order 0 is modelled. Waiting for the zone lock: each take waits for the holds of the other CPUs
 * with the probability that one is under way.
 */
#ifndef PCPTUNE_TESTS_POLICY_MODEL_H
#define PCPTUNE_TESTS_POLICY_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pcptune/rules.h>
#include "eval/recorder.h"
#include "policies/host.h"

#define MODEL_CPUS_MAX 130u
#define MODEL_HOLD_NS  2000u /* of one take, and */
#define MODEL_PAGE_NS  100u  /* for each page moved */

struct model_cpu {
	struct pcptune_rule_state st;
	uint32_t count;
	int64_t in_use;
	uint64_t settle_until;
	uint64_t hold_ns; /* in this interval */
	int64_t position; /* pages freed less allocated */
	struct recorder_moves moves;
	struct recorder rec;
	bool adopt; /* next is to be taken over */
	struct limits next;
	int direction;	  /* of the last change of high */
	uint32_t turns;	  /* changes of direction */
	uint32_t changes; /* of high */
};

struct model {
	struct pcptune_shape shape;
	struct policy_module *module;
	struct policy_instance *pi;
	uint64_t t, dt;	    /* us */
	uint32_t record_ms; /* of the policy; a test may switch records off with 0 */
	uint64_t seq;
	uint64_t cpu_us; /* of the target for each interval, 0: not known */
	uint64_t decisions, sum_max;
	uint64_t long_holds;			 /* of the next sample */
	uint64_t alloc_pages, alloc_zone, takes; /* totals */
	FILE *trace;				 /* a line for each change, NULL: none */
	void (*after)(struct model *m, const struct pcptune_sample *s); /* each decide; or NULL */
	struct host_answer answer;					/* the last */
	struct pcptune_cpu cpu[MODEL_CPUS_MAX];
	struct model_cpu m[MODEL_CPUS_MAX];
	uint32_t active[MODEL_CPUS_MAX];
	struct pcptune_record record[MODEL_CPUS_MAX];
};

/* Whoever runs minutes of one thread alone has nothing to race with, and skips them under TSan. */
#ifdef __SANITIZE_THREAD__
#define ONE_THREAD 1
#else
#define ONE_THREAD 0
#endif

static inline void not_under_tsan(void **state)
{
	(void)state;
	skip();
}

static inline void model_new(struct model *m, const char *policy, const char *params,
			     uint32_t n_cpus, uint64_t managed)
{
	int64_t values[POLICY_MAX_PARAMS];
	char why[POLICY_WHY] = "";

	memset(m, 0, sizeof(*m));
	m->shape = (struct pcptune_shape){.size = sizeof(m->shape),
					  .n_zones = 1,
					  .n_cpus = n_cpus,
					  .host_cpus = 2,
					  .managed_pages = managed,
					  .low_wmark_pages = managed / 100,
					  .high_limit = 1u << 18,
					  .interval_ms = 100};
	m->t = 1000000;
	m->dt = 100000;
	for (uint32_t i = 0; i < n_cpus; i++)
		m->cpu[i].cpu = i;
	for (uint32_t i = 0; i < n_cpus; i++)
		recorder_begin(&m->m[i].rec, i, m->t);
	if (policy_load(policy, NULL, &m->module, why) ||
	    policy_params_parse(m->module, params, values, why) ||
	    policy_instance_new(m->module, &m->shape, values, &m->pi, why))
		fail_msg("%s", why);
	m->record_ms = policy_record_ms(m->module);
}

static inline void model_end(struct model *m)
{
	policy_instance_free(m->pi);
	policy_unref(m->module);
}

/* Limits that a CPU has before a policy comes. */
static inline void model_begin(struct model *m, uint32_t i, uint32_t rules, uint32_t high,
			       uint32_t high_min, uint32_t high_max)
{
	m->m[i].st = (struct pcptune_rule_state){.rules = rules,
						 .high = high,
						 .high_min = high_min,
						 .high_max = high_max,
						 .batch = 63,
						 .scale_max = 5};
}

/* One high that nothing but the policy moves, and pages on the lists. */
static inline void model_begin_fixed(struct model *m, uint32_t i, uint32_t high, uint32_t count)
{
	model_begin(m, i, PCPTUNE_RULES_GX, high, high, high);
	m->m[i].count = count;
}

/* The limits that a CPU begins with: those of static. */
static inline void model_use(struct model *m, uint32_t i)
{
	uint32_t batch = pcptune_zone_batch(m->shape.managed_pages);

	if (m->m[i].st.high)
		return;
	m->m[i].st = (struct pcptune_rule_state){.rules = PCPTUNE_RULES_G0,
						 .high = 6 * batch,
						 .high_min = 6 * batch,
						 .high_max = 6 * batch,
						 .batch = batch,
						 .scale_max = PCPTUNE_SCALE_MAX_DEFAULT};
}

static inline void model_hold(struct model *m, uint32_t i, uint64_t *taken, uint32_t pages)
{
	(*taken)++;
	m->takes++;
	m->m[i].hold_ns += MODEL_HOLD_NS + (uint64_t)pages * MODEL_PAGE_NS;
}

static inline void model_alloc(struct model *m, uint32_t i, uint32_t pages)
{
	struct model_cpu *c = &m->m[i];

	model_use(m, i);
	c->position -= pages;
	recorder_move(&c->rec, c->position);
	while (pages--) {
		pcptune_rules_on_alloc(&c->st);
		if (!c->count) {
			uint32_t n = pcptune_rules_refill(&c->st, 0, 0, 0);

			c->count += n;
			m->cpu[i].alloc_zone += n;
			m->alloc_zone += n;
			m->cpu[i].refills++;
			c->moves.refills++;
			c->moves.refilled += n;
			model_hold(m, i, &m->cpu[i].lock_alloc_taken, n);
		}
		c->count--;
		c->in_use++;
		m->cpu[i].alloc_pages++;
		m->alloc_pages++;
	}
}

static inline void model_free(struct model *m, uint32_t i, uint32_t pages)
{
	struct model_cpu *c = &m->m[i];

	model_use(m, i);
	c->position += pages;
	recorder_move(&c->rec, c->position);
	while (pages--) {
		bool free_high;
		uint32_t n;

		c->count++;
		c->in_use--;
		m->cpu[i].free_pages++;
		n = pcptune_rules_free(&c->st, 0, c->count, 0, &free_high);
		if (!n)
			continue;
		c->count -= n;
		m->cpu[i].free_zone += n;
		m->cpu[i].drains++;
		c->moves.drains++;
		c->moves.drained += n;
		model_hold(m, i, &m->cpu[i].lock_free_taken, n);
	}
}

static inline void model_adopt(struct model *m, uint32_t i)
{
	struct model_cpu *c = &m->m[i];

	if (!c->adopt)
		return;
	c->adopt = false;
	c->st.high = c->next.high;
	c->st.high_min = c->next.high_min;
	c->st.high_max = c->next.high_max;
	c->st.batch = c->next.batch;
	c->st.scale_max = c->next.scale_max;
	c->st.rules = c->next.rules;
	if (c->count > c->st.high) { /* the agent trims */
		m->cpu[i].trim_pages += c->count - c->st.high;
		m->cpu[i].free_zone += c->count - c->st.high;
		c->count = c->st.high;
	}
}

static inline void model_waits(struct model *m)
{
	uint64_t all = 0, dt_ns = m->dt * 1000;

	for (uint32_t i = 0; i < m->shape.n_cpus; i++)
		all += m->m[i].hold_ns;
	for (uint32_t i = 0; i < m->shape.n_cpus; i++) {
		struct pcptune_cpu *c = &m->cpu[i];
		uint64_t others = all - m->m[i].hold_ns, takes;

		takes = c->lock_alloc_taken + c->lock_free_taken;
		if (!takes || !others)
			continue;
		others = others > dt_ns ? dt_ns : others;
		c->lock_alloc_wait_ns = c->lock_alloc_taken * (m->m[i].hold_ns / takes) / 2 *
					(others / 1000) / m->dt;
		c->lock_free_wait_ns = c->lock_free_taken * (m->m[i].hold_ns / takes) / 2 *
				       (others / 1000) / m->dt;
	}
}

static inline void model_gauges(struct model *m, uint32_t i)
{
	const struct pcptune_rule_state *st = &m->m[i].st;
	struct pcptune_cpu *c = &m->cpu[i];
	bool active = c->alloc_pages || c->free_pages || c->alloc_zone || c->free_zone;

	c->flags = (active ? PCPTUNE_CPU_ACTIVE : 0) |
		   (m->t < m->m[i].settle_until ? PCPTUNE_CPU_SETTLING : 0);
	c->count = m->m[i].count;
	c->high = st->high;
	c->high_min = st->high_min;
	c->high_max = st->high_max;
	c->batch = st->batch;
	c->scale_max = st->scale_max;
	c->rules = st->rules;
}

static inline void model_apply(struct model *m, const struct host_change *ch)
{
	struct model_cpu *c = &m->m[ch->index];
	int direction = ch->clamped.high > ch->old.high	  ? 1
			: ch->clamped.high < ch->old.high ? -1
							  : 0;

	c->next = ch->clamped;
	c->adopt = true;
	c->settle_until = m->t + 200000;
	m->decisions++;
	if (direction) {
		c->turns += c->direction && direction != c->direction;
		c->direction = direction;
		c->changes++;
	}
	if (m->trace)
		fprintf(m->trace,
			"%llu cpu %u %s high %u -> %u (%u..%u) batch %u -> %u rules g%u -> g%u "
			"args "
			"%lld %lld %lld %lld\n",
			(unsigned long long)m->seq, ch->cpu,
			policy_reason(m->module, ch->reason)->name, ch->old.high, ch->clamped.high,
			ch->clamped.high_min, ch->clamped.high_max, ch->old.batch,
			ch->clamped.batch, ch->old.rules, ch->clamped.rules, (long long)ch->arg[0],
			(long long)ch->arg[1], (long long)ch->arg[2], (long long)ch->arg[3]);
}

/* Highs as they are, or as they will be taken over. */
static inline uint64_t model_sum(const struct model *m)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < m->shape.n_cpus; i++)
		sum += m->m[i].adopt ? m->m[i].next.high : m->m[i].st.high;
	return sum;
}

static inline void model_records(struct model *m, struct pcptune_sample *s)
{
	s->record_size = sizeof(m->record[0]);
	s->records = m->record;
	for (uint32_t k = 0; m->record_ms && k < s->n_active; k++) {
		struct model_cpu *c = &m->m[m->active[k]];

		s->n_records += recorder_cut(&c->rec, m->active[k], m->t, m->record_ms, &c->moves,
					     &m->record[s->n_records]);
	}
}

/* End of an interval: sample, decide, apply. */
static inline void model_step(struct model *m)
{
	struct pcptune_sample s = {.size = sizeof(s), .cpu_size = sizeof(m->cpu[0])};
	char why[POLICY_WHY] = "";
	uint32_t n = m->shape.n_cpus, n_active = 0;

	m->t += m->dt;
	model_waits(m);
	for (uint32_t i = 0; i < n; i++) {
		model_gauges(m, i);
		if (m->cpu[i].flags & PCPTUNE_CPU_ACTIVE)
			m->active[n_active++] = i;
	}
	s.seq = ++m->seq;
	s.flags = m->seq == 1 ? PCPTUNE_SAMPLE_FIRST : 0;
	s.time_us = m->t;
	s.dt_us = m->dt;
	s.cpu_us = m->cpu_us;
	s.n_cpus = n;
	s.cpus = m->cpu;
	s.active = m->active;
	s.n_active = n_active;
	s.long_holds = m->long_holds;
	m->long_holds = 0;
	model_records(m, &s);
	if (policy_instance_decide(m->pi, &s, &m->answer, why))
		fail_msg("%s", why);
	if (m->after)
		m->after(m, &s);
	for (uint32_t i = 0; i < m->answer.n_changes; i++)
		model_apply(m, &m->answer.changes[i]);
	m->sum_max = model_sum(m) > m->sum_max ? model_sum(m) : m->sum_max;
	for (uint32_t i = 0; i < n; i++) {
		struct pcptune_cpu keep = {.cpu = i};

		m->cpu[i] = keep;
		m->m[i].hold_ns = 0;
		model_adopt(m, i);
	}
}

/*
 * One interval of a CPU that takes `swing` pages and gives them back, with `period_ms` for both
 * halves together; phase in ms.
 */
static inline void model_cycle(struct model *m, uint32_t i, uint32_t swing, uint32_t period_ms,
			       uint32_t phase_ms)
{
	uint32_t half = period_ms / 2;
	uint64_t ms = m->t / 1000 + phase_ms;

	for (uint64_t end = ms + m->dt / 1000; ms < end; ms++) {
		uint64_t at = ms % period_ms, k = at < half ? at : at - half;
		uint64_t n = swing * (k + 1) / half - swing * k / half;

		if (at < half)
			model_alloc(m, i, (uint32_t)n);
		else if (k < half && m->m[i].in_use >= (int64_t)n)
			model_free(m, i, (uint32_t)n);
	}
}

#endif
