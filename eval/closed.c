/* SPDX-License-Identifier: MIT */
/*
 * The closed loop, see closed.h.
 *
 * Before the first row every CPU of the trace has the allocator's default limits and the policy is
 * asked once, so that fixed values hold from the first call on. What the trace says of the levels
 * that lists had at its beginning is on them then, as far as the limits have room for it. Then rows
 * and intervals take turns;
 * while nothing happens, intervals are merged as long as the policy said that it may rest.
 *
 * Waiting: each CPU has a clock that is never behind its row, and the zone lock has the time from
 * which it is free. A hold begins at the later of both; the difference was waited. Holds last as
 * long as the constants say. What CPUs do besides, and that waiting delays what comes after in the
 * trace, is not known: so contend% compares settings, it does not foretell them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/closed.h"
#include "eval/lists.h"
#include "eval/recorder.h"
#include "eval/shown.h"

#define IDLE_STEPS_MAX 3600u

/* Plug-ins are reference counted without a lock, and instances are made on any thread. */
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

struct loop_cpu {
	struct lists l; /* the first: on_hold() finds us by it */
	struct loop *loop;
	struct lists last; /* at the last sample */
	uint64_t clock_ns;
	uint64_t taken[3], contended[3], wait_ns[3], hold_ns[3];
	uint64_t last_taken[3], last_contended[3], last_wait_ns[3], last_hold_ns[3];
	uint64_t settle_until; /* us */
	int direction;
};

struct loop {
	const struct closed_setup *s;
	struct closed_result *res;
	struct pcptune_shape shape;
	struct policy_instance *pi;
	struct loop_cpu *cpu;
	struct pcptune_cpu *sample;
	uint32_t *active;
	uint32_t record_ms; /* of the policy; 0: no records, and none of the two below */
	struct recorder *recorder;
	struct pcptune_record *records;
	uint64_t lock_free_ns;
	uint64_t t0_ns, now_ns, last_us; /* of the first row, of the row now, of the last sample */
	uint64_t seq, held;
	uint32_t rest_ms;
	double held_ns; /* pages x time */
	bool any;
};

/* ---- the zone lock ---- */

/* Only the first of holds in a row waits; the agent's come one by one. */
static void on_hold(struct lists *l, enum lists_path path, uint64_t holds, uint64_t pages)
{
	struct loop_cpu *c = (struct loop_cpu *)l;
	struct loop *loop = c->loop;
	uint64_t ns = holds * CLOSED_HOLD_NS + pages * CLOSED_PAGE_NS;
	uint64_t start = c->clock_ns > loop->lock_free_ns ? c->clock_ns : loop->lock_free_ns;

	c->taken[path] += holds;
	c->contended[path] += start > c->clock_ns;
	c->wait_ns[path] += start - c->clock_ns;
	c->hold_ns[path] += ns;
	loop->lock_free_ns = start + ns;
	if (path != LISTS_AGENT)
		c->clock_ns = loop->lock_free_ns;
}

/* ---- samples ---- */

static void fill_counters(struct pcptune_cpu *p, const struct loop_cpu *c)
{
	const struct lists *l = &c->l, *b = &c->last;

	p->alloc_pages = l->alloc_pages - b->alloc_pages;
	p->free_pages = l->free_pages - b->free_pages;
	p->alloc_zone = l->alloc_zone - b->alloc_zone;
	p->free_zone = l->free_zone - b->free_zone;
	p->alloc_direct = l->alloc_direct - b->alloc_direct;
	p->free_direct = l->free_direct - b->free_direct;
	p->refills = l->refills - b->refills;
	p->drains = l->drains - b->drains;
	p->free_high = l->free_high - b->free_high;
	p->trim_pages = l->trim_pages - b->trim_pages;
	p->lock_alloc_taken = c->taken[LISTS_ALLOC] - c->last_taken[LISTS_ALLOC];
	p->lock_alloc_contended = c->contended[LISTS_ALLOC] - c->last_contended[LISTS_ALLOC];
	p->lock_alloc_wait_ns = c->wait_ns[LISTS_ALLOC] - c->last_wait_ns[LISTS_ALLOC];
	p->lock_alloc_hold_ns = c->hold_ns[LISTS_ALLOC] - c->last_hold_ns[LISTS_ALLOC];
	p->lock_free_taken = c->taken[LISTS_FREE] - c->last_taken[LISTS_FREE];
	p->lock_free_contended = c->contended[LISTS_FREE] - c->last_contended[LISTS_FREE];
	p->lock_free_wait_ns = c->wait_ns[LISTS_FREE] - c->last_wait_ns[LISTS_FREE];
	p->lock_free_hold_ns = c->hold_ns[LISTS_FREE] - c->last_hold_ns[LISTS_FREE];
	p->lock_agent_taken = c->taken[LISTS_AGENT] - c->last_taken[LISTS_AGENT];
	p->lock_agent_contended = c->contended[LISTS_AGENT] - c->last_contended[LISTS_AGENT];
	p->lock_agent_wait_ns = c->wait_ns[LISTS_AGENT] - c->last_wait_ns[LISTS_AGENT];
	p->lock_agent_hold_ns = c->hold_ns[LISTS_AGENT] - c->last_hold_ns[LISTS_AGENT];
}

static void fill_cpu(struct loop *loop, uint32_t i, uint64_t now_us)
{
	struct loop_cpu *c = &loop->cpu[i];
	struct pcptune_cpu *p = &loop->sample[i];

	*p = (struct pcptune_cpu){.cpu = i};
	fill_counters(p, c);
	shown_state(p, &c->l.st, c->l.pages, now_us < c->settle_until);
	c->last = c->l;
	memcpy(c->last_taken, c->taken, sizeof(c->taken));
	memcpy(c->last_contended, c->contended, sizeof(c->contended));
	memcpy(c->last_wait_ns, c->wait_ns, sizeof(c->wait_ns));
	memcpy(c->last_hold_ns, c->hold_ns, sizeof(c->hold_ns));
}

/* Records that are due, of the active CPUs of a sample. */
static void fill_records(struct loop *loop, struct pcptune_sample *s)
{
	s->record_size = sizeof(*loop->records);
	s->records = loop->records;
	for (uint32_t k = 0; loop->record_ms && k < s->n_active; k++) {
		uint32_t i = loop->active[k];
		const struct lists *l = &loop->cpu[i].l;
		struct recorder_moves m = {l->refills, l->alloc_zone - l->alloc_direct, l->drains,
					   l->free_zone - l->free_direct};

		s->n_records += recorder_cut(&loop->recorder[i], i, s->time_us, loop->record_ms, &m,
					     &loop->records[s->n_records]);
	}
}

static void note_position(struct loop *loop, uint32_t i)
{
	const struct lists *l = &loop->cpu[i].l;

	if (loop->record_ms)
		recorder_move(&loop->recorder[i], (int64_t)(l->free_pages - l->free_direct -
							    l->alloc_pages + l->alloc_direct));
}

/* ---- decisions ---- */

static void apply(struct loop *loop, const struct host_change *ch, uint64_t now_us)
{
	struct loop_cpu *c = &loop->cpu[ch->index];
	const struct limits *m = &ch->clamped;
	uint64_t before = c->l.pages;
	int direction = (m->high > ch->old.high) - (m->high < ch->old.high);

	c->clock_ns = c->clock_ns > loop->now_ns ? c->clock_ns : loop->now_ns;
	lists_limits(&c->l, m->high, m->high_min, m->high_max, m->batch, m->scale_max, m->rules);
	loop->held -= before - c->l.pages;
	c->settle_until = now_us + CLOSED_SETTLE_US;
	loop->res->decisions++;
	if (direction) {
		loop->res->turns += c->direction && direction != c->direction;
		c->direction = direction;
	}
}

static void note_high(struct loop *loop)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < loop->s->n_cpus; i++)
		sum += loop->cpu[i].l.st.high;
	loop->res->high_peak = sum > loop->res->high_peak ? sum : loop->res->high_peak;
}

static int step(struct loop *loop, uint64_t now_us, char *why)
{
	struct pcptune_sample s = {.size = sizeof(s),
				   .flags = loop->seq ? 0 : PCPTUNE_SAMPLE_FIRST,
				   .seq = loop->seq + 1,
				   .time_us = now_us,
				   .dt_us = now_us - loop->last_us,
				   .n_cpus = loop->s->n_cpus,
				   .cpu_size = sizeof(*loop->sample),
				   .cpus = loop->sample,
				   .active = loop->active};
	struct host_answer a = {0};
	int r;

	if (loop->seq || !loop->pi)
		note_high(loop); /* what was before the first decision held nothing */
	loop->last_us = now_us;
	loop->seq++;
	if (!loop->pi)
		return 0;
	for (uint32_t i = 0; i < loop->s->n_cpus; i++) {
		loop->sample[i].cpu = i;
		if (!loop->s->used[i])
			continue;
		fill_cpu(loop, i, now_us);
		if (loop->sample[i].flags & PCPTUNE_CPU_ACTIVE)
			loop->active[s.n_active++] = i;
	}
	s.cpu_us = s.dt_us * s.n_active;
	fill_records(loop, &s);
	loop->res->samples++;
	r = policy_instance_decide(loop->pi, &s, &a, why);
	loop->res->breaches += r == -EPROTO;
	loop->rest_ms = r ? UINT32_MAX : a.rest_ms;
	for (uint32_t i = 0; !r && i < a.n_changes; i++)
		apply(loop, &a.changes[i], now_us);
	note_high(loop);
	return r == -EPROTO || r == -ESTALE ? 0 : r;
}

/* The clock of samples: that of the trace, an interval and more after 0. */
static uint64_t us_of(uint64_t ns)
{
	return ns / 1000 + 1000000;
}

/*
 * Intervals that end before the next row. Something happened in the first at most; later ones are
 * merged as the policy allows to rest, and after IDLE_STEPS_MAX of them all that are left.
 */
static int steps_to(struct loop *loop, uint64_t row_us, char *why)
{
	const uint64_t interval = CLOSED_INTERVAL_MS * 1000;
	uint64_t whole;
	int r = 0;

	for (uint32_t n = 0; !r && row_us - loop->last_us >= interval; n++) {
		uint64_t dt = interval, rest = (uint64_t)loop->rest_ms * 1000 / interval * interval;

		whole = (row_us - loop->last_us) / interval * interval;
		if (n && rest > dt)
			dt = rest;
		if (dt > whole || n > IDLE_STEPS_MAX || (n && !loop->pi))
			dt = whole;
		r = step(loop, loop->last_us + dt, why);
	}
	return r;
}

/* ---- rows ---- */

static int start(struct loop *loop, const struct trace_row *row, char *why)
{
	loop->any = true;
	loop->t0_ns = loop->now_ns = row->time_ns;
	loop->last_us = us_of(row->time_ns) - CLOSED_INTERVAL_MS * 1000;
	for (uint32_t i = 0; loop->record_ms && i < loop->s->n_cpus; i++)
		recorder_begin(&loop->recorder[i], i, us_of(row->time_ns));
	return step(loop, us_of(row->time_ns), why);
}

static int on_row(struct loop *loop, const struct trace_row *row, bool level, char *why)
{
	struct loop_cpu *c = &loop->cpu[row->cpu];
	uint64_t before, peak;
	int r = loop->any ? 0 : start(loop, row, why);

	if (row->time_ns > loop->now_ns) {
		loop->held_ns += (double)loop->held * (double)(row->time_ns - loop->now_ns);
		loop->now_ns = row->time_ns;
		if (!r && us_of(row->time_ns) - loop->last_us >= CLOSED_INTERVAL_MS * 1000)
			r = steps_to(loop, us_of(row->time_ns), why);
	}
	c->clock_ns = c->clock_ns > loop->now_ns ? c->clock_ns : loop->now_ns;
	before = c->l.peak = c->l.pages;
	if (level)
		lists_level(&c->l, row->order, row->blocks);
	else
		lists_move(&c->l, row->order, row->blocks);
	note_position(loop, row->cpu);
	peak = loop->held - before + c->l.peak;
	loop->res->held_peak = peak > loop->res->held_peak ? peak : loop->res->held_peak;
	loop->held += c->l.pages - before;
	return r;
}

static int all_rows(struct loop *loop, char *why)
{
	const struct trace_row *rows;
	struct trace_reader *t;
	size_t n;
	int r = trace_open(loop->s->path, &t, why), e = 0;

	if (r)
		return r;
	while (!e && (r = trace_next(t, &rows, &n, why)) == 1)
		for (size_t i = 0; !e && i < n; i++)
			e = rows[i].cpu < loop->s->n_cpus
				    ? on_row(loop, &rows[i], i < trace_levels(t), why)
				    : -EINVAL;
	trace_close(t);
	return e ? e : r;
}

/* ---- the whole ---- */

void closed_shape(const struct closed_setup *s, struct pcptune_shape *ret)
{
	*ret = (struct pcptune_shape){.size = sizeof(*ret),
				      .n_zones = 1,
				      .n_cpus = s->n_cpus,
				      .host_cpus = s->n_used ? s->n_used : 1,
				      .managed_pages = s->managed,
				      .low_wmark_pages = s->managed / 256,
				      .budget_pages = s->budget,
				      .high_limit = PCPTUNE_MAX_HIGH,
				      .interval_ms = CLOSED_INTERVAL_MS};
}

struct pcptune_rule_state closed_first_limits(const struct pcptune_shape *shape, uint32_t n_used)
{
	uint32_t n = n_used ? n_used : 1;
	struct pcptune_bounds b = pcptune_rules_bounds(PCPTUNE_RULES_G4, shape->managed_pages,
						       shape->low_wmark_pages, n, 0, 0);
	uint64_t share = shape->budget_pages ? shape->budget_pages / n : UINT32_MAX;

	if (shape->budget_pages) {
		b.high = b.high < share ? b.high : (uint32_t)share;
		b.high_min = b.high_max = b.high;
	}
	return (struct pcptune_rule_state){.rules = PCPTUNE_RULES_G4,
					   .high = b.high,
					   .high_min = b.high_min,
					   .high_max = b.high_max,
					   .batch = pcptune_min_u32(b.batch, b.high),
					   .scale_max = PCPTUNE_SCALE_MAX_DEFAULT};
}

static void first_limits(struct loop *loop)
{
	const struct closed_setup *s = loop->s;
	struct pcptune_rule_state d = closed_first_limits(&loop->shape, s->n_used);

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		struct loop_cpu *c = &loop->cpu[i];

		c->loop = loop;
		c->l.on_hold = on_hold;
		if (!s->used[i])
			continue;
		c->l.st = d;
		if (!s->module)
			c->l.st = (struct pcptune_rule_state){.rules = s->rules,
							      .high = s->high[i],
							      .high_min = s->high[i],
							      .high_max = s->high[i],
							      .batch = s->batch,
							      .scale_max = s->scale_max};
	}
}

static void sum_up(struct loop *loop)
{
	struct closed_result *r = loop->res;
	double ns = (double)(loop->now_ns - loop->t0_ns);
	bool first = true;

	r->ns = loop->now_ns - loop->t0_ns;
	for (uint32_t i = 0; i < loop->s->n_cpus; i++) {
		const struct loop_cpu *c = &loop->cpu[i];

		r->alloc_pages += c->l.alloc_pages;
		r->free_pages += c->l.free_pages;
		r->alloc_zone += c->l.alloc_zone;
		r->free_zone += c->l.free_zone;
		r->alloc_direct += c->l.alloc_direct;
		r->free_direct += c->l.free_direct;
		r->refills += c->l.refills;
		r->drains += c->l.drains;
		r->free_high += c->l.free_high;
		r->trim_pages += c->l.trim_pages;
		r->lock_takes += c->taken[LISTS_ALLOC] + c->taken[LISTS_FREE];
		r->lock_contended += c->contended[LISTS_ALLOC] + c->contended[LISTS_FREE];
		r->wait_ns += c->wait_ns[LISTS_ALLOC] + c->wait_ns[LISTS_FREE];
		if (!first || !loop->s->used[i])
			continue;
		first = false;
		r->batch = c->l.st.batch;
		r->scale_max = c->l.st.scale_max;
		r->rules = c->l.st.rules;
	}
	r->held_mean = ns > 0 ? loop->held_ns / ns : (double)loop->held;
	if (ns > 0 && loop->s->n_used)
		r->contend_pct = 100.0 * (double)r->wait_ns / ns / loop->s->n_used;
}

static int new_instance(struct loop *loop, char *why)
{
	int r;

	pthread_mutex_lock(&plugin_lock);
	r = policy_instance_new(loop->s->module, &loop->shape, loop->s->params, &loop->pi, why);
	pthread_mutex_unlock(&plugin_lock);
	return r;
}

static int alloc_loop(struct loop *loop)
{
	const struct closed_setup *s = loop->s;

	loop->cpu = calloc(s->n_cpus, sizeof(*loop->cpu));
	loop->sample = calloc(s->n_cpus, sizeof(*loop->sample));
	loop->active = calloc(s->n_cpus, sizeof(*loop->active));
	if (!loop->cpu || !loop->sample || !loop->active)
		return -ENOMEM;
	loop->record_ms = s->module ? policy_record_ms(s->module) : 0;
	if (!loop->record_ms)
		return 0;
	loop->recorder = calloc(s->n_cpus, sizeof(*loop->recorder));
	loop->records = calloc(s->n_cpus, sizeof(*loop->records));
	return loop->recorder && loop->records ? 0 : -ENOMEM;
}

static void free_loop(struct loop *loop)
{
	free(loop->cpu);
	free(loop->sample);
	free(loop->active);
	free(loop->recorder);
	free(loop->records);
}

int closed_run(const struct closed_setup *s, struct closed_result *ret, char *why)
{
	struct closed_result res = {0};
	struct loop loop = {.s = s, .res = &res};
	int r;

	closed_shape(s, &loop.shape);
	r = alloc_loop(&loop);
	if (r)
		snprintf(why, TRACE_WHY, "no memory");
	else if (s->module)
		r = new_instance(&loop, why);
	if (!r) {
		first_limits(&loop);
		r = all_rows(&loop, why);
		sum_up(&loop);
	}
	pthread_mutex_lock(&plugin_lock);
	policy_instance_free(loop.pi);
	pthread_mutex_unlock(&plugin_lock);
	free_loop(&loop);
	if (!r || r == -EBADMSG)
		*ret = res;
	return r;
}
