/* SPDX-License-Identifier: MIT */
/*
 * What contention knows of a CPU: its state, what a sample adds to it, and what follows for how
 * much of its lists it needs. It sees more than watch.h does: waits, refills, and how far pages in
 * use swing, which a list as long as that swing would hold. So its state is its own; the arithmetic
 * that is the same comes from there.
 */
#ifndef PCPTUNE_POLICIES_CONTENTION_H
#define PCPTUNE_POLICIES_CONTENTION_H

#include "policies/watch.h"

enum { P_CONTEND, P_MISS, P_TRAFFIC, P_BUDGET, P_FLOOR, P_HOLD, P_DECAY, P_BATCH_MAX, N_PARAMS };

/* Least and most of something in a stretch of time, and in the stretch before. */
struct range {
	int64_t lo, hi;
};

/* Every sample reads all of it: three lines. */
struct cpu_state {
	/* sums over about WATCH_US, cleared by a raise */
	uint64_t traffic, in, out, refills, wait_us, wait_alloc_us;
	int64_t net;			  /* frees minus allocations through the lists, pages */
	struct range net_now, net_before; /* stretches of WATCH_US / 2 */
	uint64_t net_start, count_start;
	uint64_t active, raised, decayed, taken_over; /* times, us */
	struct watch_level count_now, count_before;   /* stretches of hold_us */
	uint32_t hidden_now, hidden_before;	      /* as count_*: most that one interval hid */
	uint32_t hold_us;
	uint32_t learned; /* high that a CPU at work is known to need */
	uint32_t missed;  /* permille, of this sample */
	uint32_t wanted;  /* raise of this sample */
	uint32_t given;	  /* high of the last change, counts while it is on its way */
	uint32_t swing;
	uint8_t reason; /* of wanted */
	uint8_t granted;
	uint8_t last_is_decay;
	uint8_t count_valid; /* count_before is a whole stretch after the last raise */
};
_Static_assert(sizeof(struct cpu_state) <= 192, "three lines");

struct state {
	uint64_t cpu_us, wait_us; /* of the target, over about WATCH_US */
	uint32_t ppm;
	uint32_t pressed;      /* some CPU got less than it needs */
	uint32_t floor, batch; /* of this target: decay stops there */
	uint64_t reserved[4];  /* hosts begin a state at a line, so each CPU does */
	struct cpu_state cpu[];
};

_Static_assert(offsetof(struct state, cpu) == 64, "a line");

/* ---- what a sample says ---- */

static inline void range_add(struct range *r, int64_t v)
{
	r->lo = v < r->lo ? v : r->lo;
	r->hi = v > r->hi ? v : r->hi;
}

static inline void count_cap(struct watch_level *r, uint32_t most)
{
	r->lo = pcptune_min_u32(r->lo, most);
	r->hi = pcptune_min_u32(r->hi, most);
}

static inline uint32_t range_width(const struct range *a, const struct range *b)
{
	int64_t lo = a->lo < b->lo ? a->lo : b->lo, hi = a->hi > b->hi ? a->hi : b->hi;
	uint64_t width = (uint64_t)hi - (uint64_t)lo;

	return width > PCPTUNE_MAX_HIGH ? PCPTUNE_MAX_HIGH : (uint32_t)width;
}

/*
 * These two move to the next stretch when this one is over; a long pause is a stretch of its own.
 */
static inline void observe_net(struct cpu_state *cs, uint64_t t)
{
	struct range here = {cs->net, cs->net};
	uint64_t past = t - cs->net_start;

	if (past >= WATCH_US / 2) {
		cs->net_before = past >= WATCH_US ? here : cs->net_now;
		cs->net_now = here;
		cs->net_start = t;
	}
	range_add(&cs->net_now, cs->net);
}

static inline void observe_count(struct cpu_state *cs, uint32_t count, uint32_t hidden, uint64_t t)
{
	if (watch_levels(&cs->count_now, &cs->count_before, &cs->count_start, cs->hold_us, count,
			 t)) {
		cs->count_valid = 1;
		cs->hidden_before = cs->hidden_now;
		cs->hidden_now = 0;
	}
	cs->hidden_now = pcptune_max_u32(cs->hidden_now, hidden);
}

/*
 * What a CPU did beyond its lists, all in one word: 0 in most intervals of a CPU that has enough.
 */
static inline uint64_t beyond_lists(const struct pcptune_cpu *c)
{
	if (c->flags & PCPTUNE_CPU_LISTS_ONLY)
		return 0;
	return c->alloc_zone | c->free_zone | c->alloc_direct | c->free_direct | c->refills |
	       c->lock_alloc_wait_ns | c->lock_free_wait_ns;
}

/* Counters of a damaged segment can say anything; no interval has that many pages. */
static inline bool plausible(const struct pcptune_cpu *c)
{
	const uint64_t most = UINT64_C(1) << 36;

	if (c->flags & PCPTUNE_CPU_UNKNOWN)
		return false;
	if ((c->alloc_pages | c->free_pages | beyond_lists(c)) < most)
		return true; /* then so is each: one compare, not seven */
	return c->alloc_pages < most && c->free_pages < most && c->alloc_zone < most &&
	       c->free_zone < most && c->refills < most && c->lock_alloc_wait_ns < most * 1000 &&
	       c->lock_free_wait_ns < most * 1000;
}

static inline void add_deltas(struct cpu_state *cs, const struct pcptune_cpu *c)
{
	uint64_t allocs = watch_sub0(c->alloc_pages, c->alloc_direct);
	uint64_t frees = watch_sub0(c->free_pages, c->free_direct);

	cs->traffic += allocs + frees;
	cs->net += frees - allocs;
	if (!beyond_lists(c))
		return; /* all the rest is 0 */
	cs->in += watch_sub0(c->alloc_zone, c->alloc_direct);
	cs->out += watch_sub0(watch_sub0(watch_sub0(c->free_zone, c->free_direct), c->decay_pages),
			      c->trim_pages);
	cs->refills += c->refills;
	cs->wait_us += (c->lock_alloc_wait_ns + c->lock_free_wait_ns) / 1000;
	cs->wait_alloc_us += c->lock_alloc_wait_ns / 1000;
}

static inline void fade_sums(struct cpu_state *cs, uint64_t dt_us)
{
	cs->traffic = watch_fade(cs->traffic, dt_us);
	if (!(cs->in | cs->out | cs->refills | cs->wait_us | cs->wait_alloc_us))
		return; /* what is 0 stays 0 */
	cs->in = watch_fade(cs->in, dt_us);
	cs->out = watch_fade(cs->out, dt_us);
	cs->refills = watch_fade(cs->refills, dt_us);
	cs->wait_us = watch_fade(cs->wait_us, dt_us);
	cs->wait_alloc_us = watch_fade(cs->wait_alloc_us, dt_us);
}

static inline uint32_t most_hidden(const struct cpu_state *cs)
{
	return pcptune_max_u32(cs->hidden_now, cs->hidden_before);
}

/* A swing as seen at the ends of intervals, and what they hid; by half at most is enough. */
static inline uint32_t whole_swing(const struct cpu_state *cs, uint32_t seen)
{
	return seen + pcptune_min_u32(most_hidden(cs), seen / 2);
}

static inline void observe_cpu(struct cpu_state *cs, const struct pcptune_cpu *c,
			       const struct pcptune_sample *s, const int64_t *p)
{
	bool good = plausible(c);

	fade_sums(cs, s->dt_us);
	if (c->flags & PCPTUNE_CPU_ACTIVE && good) {
		if (c->alloc_pages || c->free_pages)
			cs->active = s->time_us;
		add_deltas(cs, c);
	}
	observe_net(cs, s->time_us);
	observe_count(cs, c->count, good ? watch_hidden_by(c) : 0, s->time_us);
	cs->missed = 0;
	if (cs->traffic >= (uint64_t)p[P_TRAFFIC]) /* of a few pages a share says nothing */
		cs->missed = (uint32_t)(2000 * (cs->in < cs->out ? cs->in : cs->out) / cs->traffic);
}

static inline void observe_target(struct state *st, const struct pcptune_sample *s)
{
	uint64_t wait = 0, cpu = s->cpu_us ? s->cpu_us : s->dt_us;

	for (uint32_t i = 0; i < s->n_active; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, s->active[i]);

		if (beyond_lists(c) && plausible(c))
			wait += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
	}
	st->cpu_us = watch_fade(st->cpu_us, s->dt_us) + cpu;
	st->wait_us = watch_fade(st->wait_us, s->dt_us) + wait / 1000;
	st->ppm = st->cpu_us ? (uint32_t)(1000000 * st->wait_us / st->cpu_us) : 0;
}

/* ---- what it needs ---- */

/* high that holds a swing: an eighth for what samples do not see, one move for what is in hand */
static inline uint32_t high_for(uint32_t swing, uint32_t move)
{
	return swing + swing / 8 + move;
}

/* Everything that a raise starts anew, and what it teaches about a decay before it. */
static inline void note_raise(struct cpu_state *cs, const struct pcptune_cpu *c, uint32_t high,
			      uint64_t t)
{
	uint64_t gap = t - cs->raised, hold = 2 * (uint64_t)cs->hold_us;

	if (cs->last_is_decay) {
		hold = hold > 2 * gap ? hold : 2 * gap;
		cs->hold_us = hold < WATCH_HOLD_MAX_US ? (uint32_t)hold : WATCH_HOLD_MAX_US;
		cs->learned = high;
	}
	if (cs->learned) /* taught once, it keeps what it needs from then on */
		cs->learned = pcptune_max_u32(cs->learned, high);
	cs->last_is_decay = 0;
	cs->raised = t;
	cs->traffic = cs->in = cs->out = cs->refills = cs->wait_us = cs->wait_alloc_us = 0;
	cs->count_now = cs->count_before = (struct watch_level){c->count, c->count};
	cs->count_start = t;
	cs->count_valid = 0;
	cs->hidden_now = cs->hidden_before = 0;
}

/* At rest for its hold time: what moves then are our own trims. */
static inline bool rests(const struct cpu_state *cs, uint64_t t)
{
	return t - cs->active >= cs->hold_us;
}

/*
 * What this CPU is known to need, from the counts of its last one to two hold times. A CPU at work
 * whose counts say that it needs little may still swing between two samples: then what it once
 * turned out to need counts, as far as intervals can have hidden it.
 */
static inline uint32_t needed(const struct cpu_state *cs, const struct pcptune_cpu *c,
			      uint32_t floor, uint32_t swing)
{
	uint32_t whole = whole_swing(cs, swing), most = swing + 2 * most_hidden(cs);
	uint32_t need = high_for(whole, pcptune_min_u32(whole, watch_move(c)));
	uint32_t top = high_for(most, pcptune_min_u32(most, watch_move(c)));

	need = pcptune_max_u32(need, pcptune_min_u32(cs->learned, top));
	return pcptune_max_u32(need, floor);
}

/* A correct decay stays without a raise for long: then what was learned is forgotten. */
static inline void forget(struct cpu_state *cs, const int64_t *p, uint64_t t)
{
	if (cs->last_is_decay && t - cs->decayed >= WATCH_HOLD_MAX_US) {
		cs->hold_us = (uint32_t)p[P_HOLD] * 1000;
		cs->learned = 0;
		cs->last_is_decay = 0;
	}
}

/* Others need what this one has not touched for the shortest hold time. */
static inline bool must_yield(const struct state *st, const struct cpu_state *cs, const int64_t *p,
			      uint64_t t)
{
	uint64_t hold = (uint64_t)p[P_HOLD] * 1000;

	return st->pressed && t - cs->active >= hold && t - cs->raised >= hold;
}

#endif
