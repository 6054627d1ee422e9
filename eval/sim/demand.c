/* SPDX-License-Identifier: MIT */
/*
 * What the CPUs of sim.h ask for: processes one after another and the slab bursts that follow them,
 * or streams of messages.
 *
 * Who has nothing to do in a stream looks again when its partner has done its next step: only that
 * can change anything.
 *
 * All chance of a simulation is drawn here and at its set-up, from one generator, in the order of
 * events.
 */
#include <math.h>
#include "eval/sim/internal.h"

/* ---- chance ---- */

uint64_t sim_random(struct sim *s)
{
	uint64_t x = s->random += 0x9e3779b97f4a7c15;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

/* in (0, 1] */
static double uniform(struct sim *s)
{
	return (double)((sim_random(s) >> 11) + 1) * 0x1p-53;
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
		sim_leg(c, false, slab_order(s), 1, s->w->free_page_ns);
	sim_leg(c, false, UNMOVABLE, pages, s->w->free_page_ns);
}

void sim_slab_burst(struct sim *s, struct cpu *c)
{
	slab_run(s, c, around(s, (double)s->w->burst_pages));
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
	sim_leg(c, true, MOVABLE, (uint32_t)w->exec_pages, w->exec_page_ns);
	for (uint32_t i = 0; i < blocks && c->n_legs < LEGS - 2; i++)
		sim_leg(c, true, slab_order(s), 1, w->exec_page_ns);
	sim_leg(c, true, UNMOVABLE, around(s, w->bursts * (double)w->burst_pages), w->exec_page_ns);
	sim_leg(c, true, ORDER1, 1, w->exec_page_ns); /* page table */
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

	c->n.exits++;
	for (uint32_t i = 0; i < n; i++)
		add_burst(c, t + (uint64_t)((double)w->burst_delay_ns * (0.5 + uniform(s))));
	if (chance(s, w->at_exit))
		slab_run(s, c, 0);
	sim_leg(c, false, ORDER1, 1, w->free_page_ns);
	sim_leg(c, false, MOVABLE, around(s, c->p.held * (1 - w->kept)), w->free_page_ns);
	c->p.exiting = true;
}

/* Another CPU of the node goes on with our process, and we with its. */
static void migrate(struct sim *s, struct cpu *c)
{
	struct cpu *o = &s->cpu[sim_random(s) % s->n];
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
		t = sim_lock(s, c, t, (uint64_t)w->hold_ns, SIM_OTHER);
	c->next = t;
	think = exponential(s, (double)n * c->p.page_ns);
	c->compute = (uint64_t)think;
	c->p.left -= n;
	c->p.held += n;
	sim_leg(c, true, MOVABLE, n, w->fault_page_ns);
	if (chance(s, w->counter)) {
		uint32_t k = 1 + (uint32_t)(sim_random(s) & 1);

		sim_leg(c, true, UNMOVABLE, k, w->fault_page_ns);
		sim_leg(c, false, MOVABLE, k, w->free_page_ns);
	}
}

/* Nothing to do until then. */
static void rest(struct cpu *c, uint64_t t, uint64_t until)
{
	c->next = c->rest_until = until > t ? until : t + 1;
	c->n.idle_ns += c->next - t;
}

static void next_of_process(struct sim *s, struct cpu *c, uint64_t t)
{
	if (c->p.exiting && s->w->idle_ns) {
		c->p = (struct process){0};
		rest(c, t, t + (uint64_t)exponential(s, (double)s->w->idle_ns));
	} else if (c->p.exiting || !c->p.held) {
		begin_process(s, c);
	} else if (c->p.left) {
		fault(s, c, t);
	} else {
		end_process(s, c, t);
	}
}

/* ---- streams ---- */

static void message(struct sim *s, struct cpu *c)
{
	const struct sim_workload *w = s->w;
	bool take = c->stream.sends;

	/* the last one comes first: a page of order 0, the headers, before the blocks */
	sim_leg(c, take, ORDER3, (uint32_t)w->stream_order3, w->block_ns);
	sim_leg(c, take, ORDER2, (uint32_t)w->stream_order2, w->block_ns);
	sim_leg(c, take, ORDER1, (uint32_t)w->stream_order1, w->block_ns);
	sim_leg(c, take, UNMOVABLE, (uint32_t)w->stream_order0, w->block_ns);
	c->compute = 1 + (uint64_t)exponential(s, (double)(take ? w->send_ns : w->receive_ns));
	c->stream.busy = true;
}

/* Time to change roles: the sender stops, the receiver takes what is on its way. */
static bool swaps(struct sim *s, struct cpu *c, struct cpu *partner, struct stream *both,
		  uint64_t t)
{
	if (s->w->swap_ns && t >= both->swap_at)
		both->swap = true;
	if (!both->swap || both->on_their_way || partner->stream.busy)
		return both->swap && c->stream.sends;
	both->swap = false;
	both->swap_at = t + (uint64_t)exponential(s, (double)s->w->swap_ns);
	c->stream.sends = !c->stream.sends;
	partner->stream.sends = !partner->stream.sends;
	return false;
}

static void next_of_stream(struct sim *s, struct cpu *c, uint64_t t)
{
	size_t i = (size_t)(c - s->cpu);
	struct cpu *partner = &s->cpu[i ^ 1];
	struct stream *both = &s->cpu[i & ~(size_t)1].stream;

	if (c->stream.busy) {
		c->stream.busy = false;
		c->n.exits += c->stream.sends;
		both->on_their_way += c->stream.sends ? 1 : -1u;
	}
	if ((i ^ 1) >= s->n)
		rest(c, t, t + 1000000000); /* one too many */
	else if (swaps(s, c, partner, both, t))
		rest(c, t, partner->next);
	else if (c->stream.sends ? both->on_their_way >= s->w->window : !both->on_their_way)
		rest(c, t, partner->next);
	else
		message(s, c);
}

void sim_demand(struct sim *s, struct cpu *c, uint64_t t)
{
	if (s->w->window)
		next_of_stream(s, c, t);
	else
		next_of_process(s, c, t);
}
