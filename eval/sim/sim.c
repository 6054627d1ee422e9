/* SPDX-License-Identifier: MIT */
/*
 * The events of sim.h.
 *
 * A CPU has a short queue of legs: so many blocks to or from one list, at so many ns each. An event
 * does what the current leg can do without the zone, or one move to or from the zone. When the
 * queue is empty the process says what comes next. Slab bursts go in front of the queue.
 *
 * SMT: a thread that spins for a lock leaves the core to its sibling. So computing is faster by the
 * share of time that the CPUs of the node waited, lately.
 */
#include "eval/sim/sim.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "eval/sim/lists.h"

enum { MOVABLE, UNMOVABLE, ORDER1, ORDER2, ORDER3, N_LISTS };
#define LEGS	  16u
#define BURSTS	  32u
#define WINDOW_NS 100000000u /* waiting is averaged over it */

struct leg {
	uint32_t left;
	uint8_t list;
	bool take;
	uint32_t ns; /* a block */
};

struct process {
	uint32_t left, held; /* pages to fault in; pages it has */
	uint32_t page_ns;
	bool exiting;
};

struct cpu {
	struct sim_lists lists;
	struct leg legs[LEGS];
	uint32_t n_legs; /* the last one is the current one */
	uint32_t node;
	struct process p;
	uint64_t compute; /* to do before the legs */
	uint64_t next;	  /* event of the process */
	uint64_t next_tick;
	uint64_t busy; /* until then it waits for a lock or holds it: no interrupt */
	uint64_t burst[BURSTS]; /* times of slab bursts, in order */
	uint32_t burst_first, n_bursts;
};

struct node {
	uint64_t free_at; /* the lock of its zone */
	uint64_t wait_ns; /* in this window */
	double speed;	  /* of computing */
};

struct key {
	uint64_t t;
	uint32_t cpu;
};

struct sim {
	const struct sim_workload *w;
	struct sim_result r;
	uint64_t random, end, window_end;
	uint32_t n;
	bool counts; /* after the warm-up */
	uint64_t held_sum, held_samples, held;
	double slab_blocks; /* allocated by each process, so that frees find them */
	struct node node[SIM_NODES_MAX];
	struct key heap[SIM_CPUS_MAX];
	struct cpu cpu[];
};

/* ---- chance ---- */

static uint64_t next_random(struct sim *s)
{
	uint64_t x = s->random += 0x9e3779b97f4a7c15;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

/* in (0, 1] */
static double uniform(struct sim *s)
{
	return (double)((next_random(s) >> 11) + 1) * 0x1p-53;
}

static bool chance(struct sim *s, double p)
{
	return p > 0 && uniform(s) <= p;
}

static double exponential(struct sim *s, double mean)
{
	return -log(uniform(s)) * mean;
}

static double lognormal(struct sim *s, double median, double sigma)
{
	double a = uniform(s), b = uniform(s);

	return median * exp(sigma * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
}

/* A whole number with this mean: geometric, at least `least`. */
static uint32_t geometric(struct sim *s, double mean, uint32_t least)
{
	double more = mean - least;

	if (more <= 0)
		return least;
	return least + (uint32_t)(log(uniform(s)) / log(more / (1 + more)));
}

/* A whole number with this mean: the two around it. */
static uint32_t around(struct sim *s, double mean)
{
	uint32_t n = (uint32_t)mean;

	return n + chance(s, mean - n);
}

/* ---- the zone ---- */

static uint64_t lock(struct sim *s, struct cpu *c, uint64_t t, uint64_t hold_ns)
{
	struct node *n = &s->node[c->node];

	if (n->free_at > t) {
		n->wait_ns += n->free_at - t;
		if (s->counts)
			s->r.wait_ns += n->free_at - t;
		t = n->free_at;
		hold_ns += (uint64_t)s->w->hold_contended_ns;
	}
	n->free_at = t + hold_ns;
	c->busy = n->free_at;
	return n->free_at;
}

static uint64_t refill(struct sim *s, struct cpu *c, uint32_t list, uint64_t t)
{
	uint32_t pages = sim_lists_refill(&c->lists, list);

	if (s->counts) {
		s->r.refills++;
		s->r.alloc_zone += pages;
	}
	s->held += pages;
	return lock(s, c, t, (uint64_t)(s->w->hold_ns + pages * s->w->hold_refill_ns));
}

/* Holds of one drain follow each other; others may come between them. */
static uint64_t drained(struct sim *s, struct cpu *c, struct sim_drain d, uint64_t t)
{
	uint64_t pages = d.pages;

	if (s->counts) {
		s->r.drains += d.holds;
		s->r.free_zone += d.pages;
		s->r.free_high += d.free_high;
	}
	s->held -= d.pages;
	for (uint32_t i = 0; i < d.holds; i++) {
		uint64_t part = pages / (d.holds - i);

		pages -= part;
		t = lock(s, c, t, (uint64_t)(s->w->hold_ns + (int64_t)part * s->w->hold_drain_ns));
	}
	return t;
}

/* ---- legs ---- */

static void leg(struct cpu *c, bool take, uint32_t list, uint32_t blocks, int64_t ns)
{
	if (blocks && c->n_legs < LEGS)
		c->legs[c->n_legs++] = (struct leg){blocks, (uint8_t)list, take, (uint32_t)ns};
}

/* One step of the current leg; returns when the next one is. */
static uint64_t step_leg(struct sim *s, struct cpu *c, uint64_t t)
{
	struct leg *l = &c->legs[c->n_legs - 1];
	uint32_t k;

	if (l->take) {
		if (!c->lists.count[l->list])
			t = refill(s, c, l->list, t);
		k = sim_lists_take(&c->lists, l->list, l->left);
		s->held -= (uint64_t)k << c->lists.order[l->list];
		if (s->counts)
			s->r.alloc_pages += (uint64_t)k << c->lists.order[l->list];
	} else {
		k = sim_lists_put_run(&c->lists, l->list, l->left);
		s->held += k;
		if (!k) {
			k = 1;
			s->held += 1u << c->lists.order[l->list];
			t = drained(s, c, sim_lists_put(&c->lists, l->list), t);
		}
	}
	l->left -= k;
	if (!l->left)
		c->n_legs--;
	return t + (uint64_t)k * l->ns;
}

/* ---- processes ---- */

static uint32_t slab_order(struct sim *s)
{
	const struct sim_workload *w = s->w;
	double u = uniform(s) * (w->burst_order1 + w->burst_order2 + w->burst_order3);

	return u <= w->burst_order1			? ORDER1
	       : u <= w->burst_order1 + w->burst_order2 ? ORDER2
							: ORDER3;
}

/* Frees of slab: pages of order 0, then blocks. In front of what the CPU was about to do. */
static void slab_run(struct sim *s, struct cpu *c, uint32_t pages)
{
	uint32_t n = geometric(s, s->w->burst_blocks, 1);

	for (uint32_t i = 0; i < n && c->n_legs < LEGS - 1; i++)
		leg(c, false, slab_order(s), 1, s->w->free_page_ns);
	leg(c, false, UNMOVABLE, pages, s->w->free_page_ns);
}

static void begin_process(struct sim *s, struct cpu *c)
{
	const struct sim_workload *w = s->w;
	bool large = chance(s, w->large_share);
	double size = lognormal(s, (double)(large ? w->large_pages : w->small_pages), w->sigma);
	uint32_t pages = (uint32_t)(size < 1e6 ? size : 1e6);
	uint32_t blocks = around(s, s->slab_blocks);

	c->p = (struct process){.left = pages > w->exec_pages ? pages - (uint32_t)w->exec_pages : 1,
				.held = (uint32_t)w->exec_pages,
				.page_ns = (uint32_t)(large ? w->large_page_ns : w->small_page_ns)};
	leg(c, true, MOVABLE, (uint32_t)w->exec_pages, w->exec_page_ns);
	for (uint32_t i = 0; i < blocks && c->n_legs < LEGS - 2; i++)
		leg(c, true, slab_order(s), 1, w->exec_page_ns);
	leg(c, true, UNMOVABLE, around(s, w->bursts * (double)w->burst_pages), w->exec_page_ns);
	leg(c, true, ORDER1, 1, w->exec_page_ns); /* page table */
}

/* Kept in the order of their times; one too many is left out. */
static void add_burst(struct cpu *c, uint64_t t)
{
	uint32_t i = c->n_bursts;

	if (i == BURSTS)
		return;
	c->n_bursts++;
	for (; i && c->burst[(c->burst_first + i - 1) % BURSTS] > t; i--)
		c->burst[(c->burst_first + i) % BURSTS] =
			c->burst[(c->burst_first + i - 1) % BURSTS];
	c->burst[(c->burst_first + i) % BURSTS] = t;
}

static void end_process(struct sim *s, struct cpu *c, uint64_t t)
{
	const struct sim_workload *w = s->w;
	uint32_t n = around(s, w->bursts);

	if (s->counts)
		s->r.exits++;
	for (uint32_t i = 0; i < n; i++)
		add_burst(c, t + (uint64_t)((double)w->burst_delay_ns * (0.5 + uniform(s))));
	if (chance(s, w->at_exit))
		slab_run(s, c, 0);
	leg(c, false, ORDER1, 1, w->free_page_ns);
	leg(c, false, MOVABLE, around(s, c->p.held * (1 - w->kept)), w->free_page_ns);
	c->p.exiting = true;
}

/* Another CPU of the node goes on with our process, and we with its. */
static void migrate(struct sim *s, struct cpu *c)
{
	struct cpu *o = &s->cpu[next_random(s) % s->n];
	struct process p = c->p;

	if (o == c || o->node != c->node || o->p.exiting || o->n_legs)
		return;
	c->p = o->p;
	o->p = p;
}

static void fault(struct sim *s, struct cpu *c, uint64_t t)
{
	const struct sim_workload *w = s->w;
	uint32_t n = geometric(s, (double)w->fault_burst, 1);
	double think;

	if (chance(s, w->migrate))
		migrate(s, c);
	n = n < c->p.left ? n : c->p.left;
	if (chance(s, w->other_holds))
		t = lock(s, c, t, (uint64_t)w->hold_ns);
	c->next = t;
	think = exponential(s, (double)n * c->p.page_ns);
	c->compute = (uint64_t)think;
	c->p.left -= n;
	c->p.held += n;
	leg(c, true, MOVABLE, n, w->fault_page_ns);
	if (chance(s, w->counter)) {
		uint32_t k = 1 + (uint32_t)(next_random(s) & 1);

		leg(c, true, UNMOVABLE, k, w->fault_page_ns);
		leg(c, false, MOVABLE, k, w->free_page_ns);
	}
}

/* The queue is empty: what comes next. */
static void next_of_process(struct sim *s, struct cpu *c, uint64_t t)
{
	if (c->p.exiting || !c->p.held)
		begin_process(s, c);
	else if (c->p.left)
		fault(s, c, t);
	else
		end_process(s, c, t);
}

/* ---- events ---- */

/* Returns what it cost. */
static uint64_t tick(struct sim *s, struct cpu *c, uint64_t t)
{
	c->next_tick += (uint64_t)s->w->tick_ns;
	return drained(s, c, sim_lists_tick(&c->lists), t) - t;
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
		next_of_process(s, c, t);
	t = c->next;
	if (c->compute) {
		if (s->counts)
			s->r.work_ns += c->compute;
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
		slab_run(s, c, around(s, (double)s->w->burst_pages));
		/* an interrupt: all of it now */
		while (c->n_legs > before)
			at = step_leg(s, c, at);
		c->next = c->next > t ? c->next + (at - t) : at;
	} else {
		step_process(s, c, t);
	}
}

static void window(struct sim *s)
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
		s->r.held_peak = s->held > s->r.held_peak ? s->held : s->r.held_peak;
	}
	s->window_end += WINDOW_NS;
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

static void set_up(struct sim *s, uint32_t rules)
{
	const struct sim_workload *w = s->w;

	for (uint32_t i = 0; i < s->n; i++) {
		struct cpu *c = &s->cpu[i];
		bool tunes = pcptune_rules_traits(rules) & PCPTUNE_RT_TUNES;

		c->node = (uint32_t)(i * (uint64_t)w->nodes / s->n);
		c->lists = (struct sim_lists){.n = N_LISTS, .order = {0, 0, 1, 2, 3}};
		c->lists.s = (struct pcptune_rule_state){
			.rules = rules,
			.high = (uint32_t)w->high_min,
			.high_min = (uint32_t)w->high_min,
			.high_max = (uint32_t)(tunes ? w->high_max : w->high_min),
			.batch = (uint32_t)w->batch,
			.scale_max = (uint32_t)w->scale_max,
			.flags = w->data_cache_pages > 3 * w->batch ? PCPTUNE_RF_FREE_HIGH_BATCH
								    : 0};
		c->next = next_random(s) % 100000000;
		c->next_tick = next_random(s) % (uint64_t)w->tick_ns;
		s->heap[i] = (struct key){0, i};
	}
	for (int64_t i = 0; i < w->nodes; i++)
		s->node[i].speed = 1;
	s->slab_blocks = w->bursts * w->burst_blocks + w->at_exit * w->burst_blocks;
	s->window_end = WINDOW_NS;
}

int sim_run(const struct sim_workload *w, uint32_t cpus, uint32_t rules, uint64_t seed,
	    struct sim_result *ret)
{
	struct sim *s;

	if (!cpus || cpus > SIM_CPUS_MAX || !w->nodes || w->nodes > (int64_t)SIM_NODES_MAX ||
	    !pcptune_rules_known(rules))
		return -EINVAL;
	s = calloc(1, sizeof(*s) + cpus * sizeof(s->cpu[0]));
	if (!s)
		return -ENOMEM;
	s->w = w;
	s->n = cpus;
	s->random = seed;
	set_up(s, rules);
	for (uint64_t end = (uint64_t)(w->warm_ns + w->run_ns); s->heap[0].t < end;) {
		struct cpu *c = &s->cpu[s->heap[0].cpu];
		uint64_t t = s->heap[0].t;

		while (t >= s->window_end)
			window(s);
		s->counts = t >= (uint64_t)w->warm_ns;
		if (t)
			step(s, c, t);
		sift(s, earliest(c));
		s->r.events++;
	}
	s->r.cpu_ns = (uint64_t)w->run_ns * cpus;
	s->r.held_mean = s->held_samples ? (double)s->held_sum / (double)s->held_samples : 0;
	*ret = s->r;
	free(s);
	return 0;
}
