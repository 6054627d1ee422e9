/* SPDX-License-Identifier: MIT */
/*
 * The events of sim.h.
 *
 * A CPU has a short queue of legs: so many blocks to or from one list, at so many ns each. An event
 * does what the current leg can do without the zone, or one move to or from the zone. When the
 * queue is empty demand.c says what comes next. Slab bursts go in front of the queue.
 *
 * SMT: a thread that spins for a lock leaves the core to its sibling. So computing is faster by the
 * share of time that the CPUs of the node waited, lately.
 */
#include "eval/sim/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define LRU_ADD	   15u /* pages that go to the LRU in one hold of its lock */
#define LRU_REMOVE 32u

/* ---- the zone ---- */

uint64_t sim_lock(struct sim *s, struct cpu *c, uint64_t t, uint64_t hold_ns, enum sim_path path)
{
	struct node *n = &s->node[c->node];

	c->n.taken[path]++;
	if (n->free_at > t) {
		uint64_t wait = n->free_at - t;

		n->wait_ns += wait;
		c->n.contended[path]++;
		c->n.wait_ns[path] += wait;
		t = n->free_at;
		hold_ns += (uint64_t)s->w->hold_contended_ns;
	}
	c->n.hold_ns[path] += hold_ns;
	n->free_at = t + hold_ns;
	if (path != SIM_AGENT)
		c->busy = n->free_at;
	return n->free_at;
}

static uint64_t refill(struct sim *s, struct cpu *c, uint32_t list, uint64_t t)
{
	uint32_t pages = sim_lists_refill(&c->lists, list);

	c->n.refills++;
	c->n.alloc_zone += pages;
	s->held += pages;
	pages >>= c->lists.order[list];
	return sim_lock(s, c, t, (uint64_t)(s->w->hold_ns + pages * s->w->hold_refill_ns),
			SIM_ALLOC);
}

uint64_t sim_drained(struct sim *s, struct cpu *c, struct sim_drain d, uint64_t t,
		     enum sim_path path)
{
	uint64_t blocks = d.blocks;

	c->n.drains += d.holds;
	c->n.free_zone += d.pages;
	c->n.free_high += d.free_high;
	s->held -= d.pages;
	for (uint32_t i = 0; i < d.holds; i++) {
		uint64_t part = blocks / (d.holds - i);

		blocks -= part;
		t = sim_lock(s, c, t,
			     (uint64_t)(s->w->hold_ns + (int64_t)part * s->w->hold_drain_ns), path);
	}
	return t;
}

/* A block of an order that has no list. */
static uint64_t direct(struct sim *s, struct cpu *c, bool take, uint32_t order, uint64_t t)
{
	uint32_t pages = 1u << order;
	int64_t ns = take ? s->w->hold_refill_ns : s->w->hold_drain_ns;

	*(take ? &c->n.alloc_pages : &c->n.free_pages) += pages;
	*(take ? &c->n.alloc_zone : &c->n.free_zone) += pages;
	*(take ? &c->n.alloc_direct : &c->n.free_direct) += pages;
	return sim_lock(s, c, t, (uint64_t)(s->w->hold_ns + ns), take ? SIM_ALLOC : SIM_FREE);
}

/* The LRU's lock, a batch of pages at a time; those that have one share it in turn. */
static uint64_t lru(struct sim *s, struct cpu *c, uint32_t pages, uint64_t t)
{
	struct node *n = &s->node[c->node];
	uint64_t *free_at = &n->lru_free_at[(uint64_t)(c - s->cpu) % (uint64_t)s->w->lru_locks];

	if (*free_at > t) {
		n->wait_ns += *free_at - t;
		c->n.wait_ns[SIM_LRU] += *free_at - t;
		t = *free_at;
	}
	*free_at = t + pages * (uint64_t)s->w->lru_page_ns;
	c->busy = *free_at;
	return *free_at;
}

/* ---- legs ---- */

/*
 * Of pages that go round between two CPUs. What was freed last is handed out first and still in the
 * caches, as far as they reach; so is what comes from the zone, which gives what came to it last.
 * Returns what k blocks cost more, since some of their pages lay below that.
 */
static uint64_t warm_taken(const struct sim *s, struct cpu *c, uint32_t list, uint32_t k)
{
	uint32_t pages = k << c->lists.order[list], warm = pcptune_min_u32(pages, c->warm[list]);

	c->warm[list] -= warm;
	c->n.cold_pages += pages - warm;
	return (uint64_t)(pages - warm) * (uint64_t)s->w->cold_page_ns;
}

static void warm_given(const struct sim *s, struct cpu *c, uint32_t list, uint32_t k)
{
	uint32_t order = c->lists.order[list];
	uint32_t most =
		pcptune_min_u32((uint32_t)s->w->data_cache_pages, c->lists.count[list] << order);

	c->warm[list] = pcptune_min_u32(c->warm[list] + (k << order), most);
}

static uint32_t take(struct sim *s, struct cpu *c, const struct leg *l, uint32_t most, uint64_t *t)
{
	uint32_t k;

	if (!c->lists.count[l->list]) {
		*t = refill(s, c, l->list, *t);
		c->warm[l->list] = c->lists.count[l->list] << c->lists.order[l->list];
	}
	k = sim_lists_take(&c->lists, l->list, most);
	if (s->w->window)
		*t += warm_taken(s, c, l->list, k);
	s->held -= (uint64_t)k << c->lists.order[l->list];
	c->n.alloc_pages += (uint64_t)k << c->lists.order[l->list];
	return k;
}

static uint32_t give(struct sim *s, struct cpu *c, const struct leg *l, uint32_t most, uint64_t *t)
{
	uint32_t k = sim_lists_put_run(&c->lists, l->list, most);

	s->held += k;
	if (!k) {
		k = 1;
		s->held += 1u << c->lists.order[l->list];
		*t = sim_drained(s, c, sim_lists_put(&c->lists, l->list), *t, SIM_FREE);
	}
	c->n.free_pages += (uint64_t)k << c->lists.order[l->list];
	warm_given(s, c, l->list, k);
	return k;
}

/* One step of the current leg; returns when the next one is. */
static uint64_t step_leg(struct sim *s, struct cpu *c, uint64_t t)
{
	struct leg *l = &c->legs[c->n_legs - 1];
	uint32_t order = c->lists.order[l->list], ns = l->ns, k = 1, most = l->left;
	bool on_lru = s->w->lru_locks && l->list == MOVABLE;

	if (on_lru)
		most = pcptune_min_u32(most, l->take ? LRU_ADD : LRU_REMOVE);
	if (order && !pcptune_rules_has_list(c->lists.s.rules, order))
		t = direct(s, c, l->take, order, t);
	else
		k = l->take ? take(s, c, l, most, &t) : give(s, c, l, most, &t);
	if (on_lru)
		t = lru(s, c, k, t);
	l->left -= k;
	if (!l->left)
		c->n_legs--;
	if (c->band)
		pcptune_band_push(c->band, sim_position(c));
	return t + (uint64_t)k * ns;
}

/* ---- events ---- */

/* Returns what it cost. */
static uint64_t tick(struct sim *s, struct cpu *c, uint64_t t)
{
	c->next_tick += (uint64_t)s->w->tick_ns;
	return sim_drained(s, c, sim_lists_tick(&c->lists), t, SIM_FREE) - t;
}

static uint64_t earliest(const struct cpu *c)
{
	uint64_t t = c->next_tick;

	if (c->n_bursts && c->burst[c->burst_first] < t)
		t = c->burst[c->burst_first];
	if (t < c->busy)
		t = c->busy;
	return c->next < t ? c->next : t;
}

static void step_process(struct sim *s, struct cpu *c, uint64_t t)
{
	c->next = t;
	if (!c->n_legs)
		sim_demand(s, c, t);
	if (!c->n_legs && !c->compute)
		return; /* it rests until c->next */
	t = c->next;
	if (c->compute) {
		c->n.work_ns += c->compute;
		c->next = t + (uint64_t)((double)c->compute / s->node[c->node].speed);
		c->compute = 0;
		return;
	}
	c->next = step_leg(s, c, t);
}

static void step(struct sim *s, struct cpu *c, uint64_t t)
{
	if (c->next_tick <= t) {
		c->next += tick(s, c, t);
	} else if (c->n_bursts && c->burst[c->burst_first] <= t) {
		uint32_t before = c->n_legs;
		uint64_t at = t;

		c->burst_first = (c->burst_first + 1) % BURSTS;
		c->n_bursts--;
		sim_slab_burst(s, c);
		/* an interrupt: all of it now */
		while (c->n_legs > before)
			at = step_leg(s, c, at);
		c->next = c->next > t ? c->next + (at - t) : at;
	} else {
		step_process(s, c, t);
	}
}

static int window(struct sim *s)
{
	double per_cpu = (double)WINDOW_NS * s->n / (double)s->w->nodes;

	for (int64_t i = 0; i < s->w->nodes; i++) {
		double p = (double)s->node[i].wait_ns / per_cpu;

		s->node[i].speed = 1 + (p < 1 ? p : 1) * (1 / s->w->smt - 1);
		s->node[i].wait_ns = 0;
	}
	if (s->counts) {
		s->held_sum += s->held;
		s->held_samples++;
		s->held_peak = s->held > s->held_peak ? s->held : s->held_peak;
	}
	s->window_end += WINDOW_NS;
	return s->loop ? sim_loop_step(s, s->window_end - WINDOW_NS) : 0;
}

/* The root has a new time: down to its place. */
static void sift(struct sim *s, uint64_t t)
{
	struct key *h = s->heap, k = {t, h[0].cpu};
	uint32_t i = 0;

	for (uint32_t child; (child = 2 * i + 1) < s->n; i = child) {
		if (child + 1 < s->n && h[child + 1].t < h[child].t)
			child++;
		if (h[child].t >= t)
			break;
		h[i] = h[child];
	}
	h[i] = k;
}

/* ---- the whole ---- */

static struct pcptune_rule_state first_state(const struct sim_workload *w, uint32_t rules)
{
	bool tunes = pcptune_rules_traits(rules) & PCPTUNE_RT_TUNES;
	bool cache = w->data_cache_pages > 3 * w->batch;

	return (struct pcptune_rule_state){.rules = rules,
					   .high = (uint32_t)w->high_min,
					   .high_min = (uint32_t)w->high_min,
					   .high_max =
						   (uint32_t)(tunes ? w->high_max : w->high_min),
					   .batch = (uint32_t)w->batch,
					   .scale_max = (uint32_t)w->scale_max,
					   .flags = cache ? PCPTUNE_RF_FREE_HIGH_BATCH : 0};
}

static void set_up(struct sim *s, const struct sim_setup *setup)
{
	const struct sim_workload *w = s->w;
	uint32_t rules = setup->module ? PCPTUNE_RULES_G4 : setup->rules;

	for (uint32_t i = 0; i < s->n; i++) {
		struct cpu *c = &s->cpu[i];

		c->node = (uint32_t)(i * (uint64_t)w->nodes / s->n);
		c->lists = (struct sim_lists){.n = N_LISTS, .order = {0, 0, 1, 2, 3}};
		c->lists.s = first_state(w, rules);
		c->next = sim_random(s) % 100000000;
		c->stream.sends = !(i & 1);
		c->next_tick = sim_random(s) % (uint64_t)w->tick_ns;
		if (setup->module) /* decay is the policy's */
			c->next_tick = UINT64_MAX;
		s->heap[i] = (struct key){0, i};
	}
	for (int64_t i = 0; i < w->nodes; i++)
		s->node[i].speed = 1;
	s->slab_blocks = sim_slab_blocks(w);
	s->window_end = WINDOW_NS;
}

/* What the counters say now: negative of it at the warm-up's end, so that sums are differences. */
static void add_counters(const struct sim *s, struct sim_result *r, uint64_t t, uint64_t sign)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct cpu *c = &s->cpu[i];
		const struct sim_counters *n = &c->n;

		r->work_ns += sign * n->work_ns;
		r->wait_ns += sign * (n->wait_ns[SIM_ALLOC] + n->wait_ns[SIM_FREE] +
				      n->wait_ns[SIM_OTHER] + n->wait_ns[SIM_LRU]);
		r->cpu_ns -= sign * (n->idle_ns - (c->rest_until > t ? c->rest_until - t : 0));
		r->alloc_pages += sign * n->alloc_pages;
		r->alloc_zone += sign * n->alloc_zone;
		r->free_zone += sign * n->free_zone;
		r->refills += sign * n->refills;
		r->drains += sign * n->drains;
		r->free_high += sign * n->free_high;
		r->exits += sign * n->exits;
		r->cold_pages += sign * n->cold_pages;
	}
}

static int all_events(struct sim *s, struct sim_result *r)
{
	uint64_t warm = (uint64_t)s->w->warm_ns, end = warm + (uint64_t)s->w->run_ns, t;
	int e = 0;

	while (!e && (t = s->heap[0].t) < end) {
		struct cpu *c = &s->cpu[s->heap[0].cpu];

		while (!e && t >= s->window_end)
			e = window(s);
		if (!s->counts && t >= warm) {
			s->counts = true;
			add_counters(s, r, t, (uint64_t)-1);
		}
		if (t)
			step(s, c, t);
		sift(s, earliest(c));
		s->events++;
	}
	add_counters(s, r, end, 1);
	return e;
}

static int run(struct sim *s, const struct sim_setup *setup, struct sim_result *ret, char *why)
{
	struct sim_result r = {0};
	int e;

	set_up(s, setup);
	e = setup->module ? sim_loop_new(s, setup, why) : 0;
	if (!e)
		e = all_events(s, &r);
	if (e)
		return e;
	r.events = s->events;
	r.cpu_ns += (uint64_t)s->w->run_ns * s->n;
	r.held_mean = s->held_samples ? (double)s->held_sum / (double)s->held_samples : 0;
	r.held_peak = s->held_peak;
	if (s->loop)
		sim_loop_result(s, &r);
	*ret = r;
	return 0;
}

int sim_run(const struct sim_setup *setup, struct sim_result *ret, char *why)
{
	const struct sim_workload *w = setup->w;
	struct sim *s;
	int e;

	if (!setup->cpus || setup->cpus > SIM_CPUS_MAX || !w->nodes ||
	    w->nodes > (int64_t)SIM_NODES_MAX ||
	    (!setup->module && !pcptune_rules_known(setup->rules))) {
		snprintf(why, SIM_RUN_WHY, "%u CPUs on %lld nodes, rules %u: not a machine",
			 setup->cpus, (long long)w->nodes, setup->rules);
		return -EINVAL;
	}
	s = calloc(1, sizeof(*s) + setup->cpus * sizeof(s->cpu[0]));
	if (!s) {
		snprintf(why, SIM_RUN_WHY, "no memory for %u CPUs", setup->cpus);
		return -ENOMEM;
	}
	s->w = w;
	s->n = setup->cpus;
	s->random = setup->seed;
	e = run(s, setup, ret, why);
	sim_loop_free(s);
	free(s);
	return e;
}
