/* SPDX-License-Identifier: MIT */
/*
 * What several policies must know of a CPU: what went to the zone and came back, how much of its
 * lists it used, and what was learned from a lowering that was an error.
 *
 *   back    the smaller of the pages that came from the zone and that went there because a list was
 *	     full, over about 4 s and since the last raise: what a larger high would have saved
 *   need    how far the pages on the lists went up and down in the last one to two hold times, and
 *	     a margin; what was never part of it, at the bottom or as room at the top, is spare
 *   hold    how long nothing is lowered after a raise. A lowering that is followed by a raise was
 *	     an error: the hold time grows to twice what it was, or twice the time since the last
 *	     raise, at most 10 min, and the high that was needed is kept while the CPU works, as
 *	     far as its intervals can hide that it is needed. What stood for 10 min makes that
 *	     forgotten. So no CPU goes to and fro.
 *
 * All of it is in the state of the policy that includes this: flat, without pointers, integers.
 */
#ifndef PCPTUNE_POLICIES_WATCH_H
#define PCPTUNE_POLICIES_WATCH_H

#include "policies/common.h"

#define WATCH_US	  4000000u   /* time constant of the sums */
#define WATCH_HOLD_MAX_US 600000000u /* the longest hold time that is learned */
#define WATCH_BAD	  200u	     /* permille missed: a list that is far too short */
#define WATCH_RETRY_US	  1000000u   /* a take-over that does not show is not asked for at once */
#define WATCH_PAGES_MAX	  (UINT64_C(1) << 36) /* no interval has more; a damaged segment may */

/* Least and most pages on a list in a stretch of time. */
struct watch_level {
	uint32_t lo, hi;
};

struct watch {
	uint64_t traffic, in, out; /* sums over about WATCH_US, cleared by a raise */
	uint64_t start;		   /* of the stretch `now`; 0: not begun */
	uint64_t active, raised, lowered, taken_over; /* times, us */
	uint64_t undone;			      /* of the last lowering that was an error */
	struct watch_level now, before;		      /* stretches of hold_us */
	uint32_t hidden_now, hidden_before;	      /* most that one interval hid */
	uint32_t hold_us;
	uint32_t learned; /* high that this CPU is known to need at work */
	uint32_t missed;  /* permille of traffic, of this sample */
	uint32_t given;	  /* high of the last change, counts while it is on its way */
	uint8_t last_is_lower;
	uint8_t whole; /* `before` is a whole stretch after the last raise */
	uint8_t reserved[6];
};

/* What one pass over all CPUs found. */
struct watch_tally {
	uint64_t budget, sum, room;
	uint64_t open;		/* high of the CPUs that can be changed now */
	uint32_t used, missing; /* CPUs */
};

static inline uint64_t watch_sub0(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static inline uint64_t watch_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- levels ---- */

static inline void level_add(struct watch_level *l, uint32_t count)
{
	l->lo = pcptune_min_u32(l->lo, count);
	l->hi = pcptune_max_u32(l->hi, count);
}

static inline struct watch_level level_both(struct watch_level a, struct watch_level b)
{
	return (struct watch_level){pcptune_min_u32(a.lo, b.lo), pcptune_max_u32(a.hi, b.hi)};
}

static inline uint32_t level_width(struct watch_level l)
{
	return pcptune_min_u32(l.hi - l.lo, PCPTUNE_MAX_HIGH);
}

/* The same swing below a lower high: what is drained goes from the bottom. */
static inline void level_fit(struct watch_level *l, uint32_t high)
{
	uint32_t over = pcptune_sub0_u32(l->hi, high);

	l->lo = pcptune_sub0_u32(l->lo, over);
	l->hi -= over;
}

/*
 * Within an interval a list may have been further up or down than at its ends, by no more than the
 * smaller of what was allocated and what was freed; half of what is seen is enough.
 */
static inline uint32_t watch_hidden_by(const struct pcptune_cpu *c)
{
	uint64_t hidden = watch_min(c->alloc_pages, c->free_pages);

	return (uint32_t)watch_min(hidden, PCPTUNE_MAX_HIGH);
}

static inline uint32_t watch_hidden(const struct watch *w)
{
	return pcptune_max_u32(w->hidden_now, w->hidden_before);
}

static inline uint32_t watch_whole(const struct watch *w, uint32_t seen)
{
	return seen + pcptune_min_u32(watch_hidden(w), seen / 2);
}

/* ---- one sample of one CPU ---- */

static inline void watch_init(struct watch *w, int64_t hold_ms)
{
	w->hold_us = (uint32_t)hold_ms * 1000;
}

/* Rounded up, so that what is at rest comes to 0. */
static inline uint64_t watch_fade(uint64_t v, uint64_t dt_us)
{
	return dt_us >= WATCH_US ? 0 : v - (v * dt_us + WATCH_US - 1) / WATCH_US;
}

static inline bool watch_plausible(const struct pcptune_cpu *c)
{
	return !(c->flags & PCPTUNE_CPU_UNKNOWN) && c->alloc_pages < WATCH_PAGES_MAX &&
	       c->free_pages < WATCH_PAGES_MAX && c->alloc_zone < WATCH_PAGES_MAX &&
	       c->free_zone < WATCH_PAGES_MAX;
}

static inline void watch_add(struct watch *w, const struct pcptune_cpu *c)
{
	w->traffic += watch_sub0(c->alloc_pages, c->alloc_direct) +
		      watch_sub0(c->free_pages, c->free_direct);
	w->in += watch_sub0(c->alloc_zone, c->alloc_direct);
	w->out += watch_sub0(watch_sub0(watch_sub0(c->free_zone, c->free_direct), c->decay_pages),
			     c->trim_pages);
}

/*
 * The levels of this stretch and of the one before, each hold_us long; after a silence of two both
 * are as it is now. Returns whether a stretch began.
 */
static inline bool watch_levels(struct watch_level *now, struct watch_level *before,
				uint64_t *start, uint32_t hold_us, uint32_t count, uint64_t t)
{
	struct watch_level here = {count, count};
	uint64_t past = t - *start;

	if (past < hold_us) {
		level_add(now, count);
		return false;
	}
	*before = past >= 2 * (uint64_t)hold_us ? here : *now;
	*now = here;
	*start = t;
	return true;
}

static inline void watch_stretch(struct watch *w, uint32_t count, uint64_t t)
{
	if (watch_levels(&w->now, &w->before, &w->start, w->hold_us, count, t)) {
		w->whole = 1;
		w->hidden_before = w->hidden_now;
		w->hidden_now = 0;
	}
}

/* A lowering that stood for long was right. */
static inline void watch_forget(struct watch *w, int64_t hold_ms, uint64_t t)
{
	if (!w->last_is_lower || t - w->lowered < WATCH_HOLD_MAX_US)
		return;
	w->hold_us = (uint32_t)hold_ms * 1000;
	w->learned = 0;
	w->last_is_lower = 0;
}

static inline void watch_cpu(struct watch *w, const struct pcptune_cpu *c,
			     const struct pcptune_sample *s, int64_t hold_ms, int64_t min_traffic)
{
	bool good = watch_plausible(c);

	if (!w->start) {
		w->start = w->active = w->raised = s->time_us;
		w->now = w->before = (struct watch_level){c->count, c->count};
	}
	w->traffic = watch_fade(w->traffic, s->dt_us);
	w->in = watch_fade(w->in, s->dt_us);
	w->out = watch_fade(w->out, s->dt_us);
	if (good && c->flags & PCPTUNE_CPU_ACTIVE) {
		if (c->alloc_pages || c->free_pages)
			w->active = s->time_us;
		watch_add(w, c);
	}
	watch_stretch(w, c->count, s->time_us);
	if (good)
		w->hidden_now = pcptune_max_u32(w->hidden_now, watch_hidden_by(c));
	watch_forget(w, hold_ms, s->time_us);
	w->missed = 0;
	if (w->traffic >= (uint64_t)min_traffic) /* of a few pages a share says nothing */
		w->missed = (uint32_t)(2000 * watch_min(w->in, w->out) / w->traffic);
	if (!(c->flags & PCPTUNE_CPU_SETTLING))
		w->given = 0;
}

/* high that counts for the budget: a raise on its way counts as done. */
static inline uint32_t watch_high(const struct watch *w, const struct pcptune_cpu *c)
{
	return pcptune_max_u32(c->high, w->given);
}

/* A CPU in use, for what all of them have together. */
static inline void watch_tally_add(struct watch_tally *t, const struct watch *w,
				   const struct pcptune_cpu *c)
{
	t->used++;
	t->sum += watch_high(w, c);
	t->open += cpu_open(c) ? c->high : 0;
}

static inline bool watch_rests(const struct watch *w, uint64_t t)
{
	return t - w->active >= w->hold_us; /* what moves then are our own trims */
}

/* ---- up ---- */

static inline uint32_t watch_move(const struct pcptune_cpu *c)
{
	return c->batch << pcptune_min_u32(c->scale_max, PCPTUNE_MAX_SCALE);
}

static inline uint64_t watch_back(const struct watch *w)
{
	return watch_min(watch_min(w->in, w->out), PCPTUNE_MAX_HIGH);
}

/*
 * The next high of a CPU that misses: x4 where it is bad, else x2, but not beyond what all that
 * went out and came back would have filled; a quarter more in any case.
 */
static inline uint32_t watch_more(const struct watch *w, const struct pcptune_cpu *c)
{
	uint64_t most = c->high + watch_back(w), least = c->high + c->high / 4 + 1;
	uint64_t high = (uint64_t)c->high * (w->missed >= WATCH_BAD ? 4 : 2);

	high = watch_min(high, most + most / 8 + watch_move(c));
	return (uint32_t)watch_min(high > least ? high : least, PCPTUNE_MAX_HIGH);
}

/* What the room has for it; 0: too little to be worth a decision. */
static inline uint32_t watch_within(const struct pcptune_cpu *c, uint32_t wanted, uint64_t room)
{
	uint64_t high = watch_min(wanted, c->high + room);

	return high < (uint64_t)c->high + c->high / 8 + 1 ? 0 : (uint32_t)high;
}

static inline void watch_raised(struct watch *w, const struct pcptune_cpu *c, uint32_t high,
				uint64_t t)
{
	uint64_t gap = t - w->raised, hold = 2 * (uint64_t)w->hold_us;

	if (w->last_is_lower) {
		hold = hold > 2 * gap ? hold : 2 * gap;
		w->hold_us = (uint32_t)watch_min(hold, WATCH_HOLD_MAX_US);
		w->learned = high;
		w->undone = w->lowered;
	}
	if (w->learned) /* taught once, it keeps what it needs from then on */
		w->learned = pcptune_max_u32(w->learned, high);
	w->last_is_lower = 0;
	w->raised = w->start = t;
	w->given = high;
	w->traffic = w->in = w->out = 0;
	w->now = w->before = (struct watch_level){c->count, c->count};
	w->hidden_now = w->hidden_before = 0;
	w->whole = 0;
}

/* ---- down ---- */

/* Pages of high that this CPU is known to need; `floor` when it rests. */
static inline uint32_t watch_need(const struct watch *w, const struct pcptune_cpu *c,
				  uint32_t floor, uint64_t t)
{
	uint32_t seen, whole, most, need;

	if (watch_rests(w, t))
		return floor;
	seen = level_width(level_both(w->now, w->before));
	whole = watch_whole(w, seen);
	need = whole + whole / 8 + pcptune_min_u32(whole, watch_move(c));
	/* counts do not tell what comes and goes between two samples; what was learned does */
	most = seen + 2 * watch_hidden(w);
	most += most / 8 + pcptune_min_u32(most, watch_move(c));
	need = pcptune_max_u32(need, pcptune_min_u32(w->learned, most));
	return pcptune_max_u32(need, floor);
}

/*
 * Would a lowering be the third change of direction in ten minutes? One to a quarter is for another
 * load.
 */
static inline bool watch_turns(const struct watch *w, uint32_t from, uint32_t to, uint64_t t)
{
	return w->undone && t - w->undone < WATCH_HOLD_MAX_US && to >= from / 4;
}

static inline bool watch_may_lower(const struct watch *w, uint64_t t)
{
	return w->whole && t - w->raised >= w->hold_us;
}

static inline void watch_lowered(struct watch *w, uint32_t high, uint64_t t)
{
	w->last_is_lower = 1;
	w->lowered = t;
	w->given = high;
	level_fit(&w->now, high);
	level_fit(&w->before, high);
}

/* ---- budget and changes ---- */

static inline uint64_t watch_budget(const struct pcptune_shape *shape, int64_t permille)
{
	uint64_t b = shape->managed_pages * (uint64_t)permille / 1000;

	return shape->budget_pages && shape->budget_pages < b ? shape->budget_pages : b;
}

/*
 * high of one CPU when all together have more than the budget: those that can be changed give, each
 * by its size, but not below its fair share.
 */
static inline uint32_t watch_cut(const struct pcptune_cpu *c, const struct watch_tally *t,
				 uint32_t floor)
{
	uint32_t least = (uint32_t)watch_min(t->budget / t->used, floor);
	uint64_t over, give;

	if (t->sum <= t->budget || !t->open)
		return c->high;
	over = watch_min(t->sum - t->budget, t->open);
	give = watch_min((over * c->high + t->open - 1) / t->open, c->high); /* at once */
	least = pcptune_max_u32(pcptune_max_u32((uint32_t)(c->high - give), least), 4);
	return pcptune_min_u32(pcptune_min_u32(c->high, least), PCPTUNE_MAX_HIGH);
}

/* Does nothing but a policy move it? */
static inline bool watch_fixed(const struct pcptune_cpu *c)
{
	return c->high_min == c->high && c->high_max == c->high && c->rules == PCPTUNE_RULES_GX;
}

/* A change to a high that stays where it is put; NULL: no room in the decision. */
static inline struct pcptune_change *watch_fix(struct pcptune_decision *d, uint32_t i,
					       uint32_t reason, uint32_t high)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, reason);

	if (ch) {
		ch->high = ch->high_min = ch->high_max = high;
		ch->rules = PCPTUNE_RULES_GX;
	}
	return ch;
}

/* Is it time to fix the high of a CPU that its rules still move? */
static inline bool watch_take_over(struct watch *w, const struct pcptune_cpu *c, uint64_t t)
{
	if (watch_fixed(c) || !cpu_open(c) || (w->taken_over && t - w->taken_over < WATCH_RETRY_US))
		return false;
	w->taken_over = t;
	return true;
}

/* Is there something to lower, or still to fix? Near the floor it is not worth a call. */
static inline bool watch_above(const struct pcptune_cpu *c, uint32_t floor)
{
	return c->high > floor + floor / 3 || !watch_fixed(c);
}

static inline uint32_t watch_floor(const struct pcptune_shape *shape, int64_t floor)
{
	return floor ? pcptune_max_u32((uint32_t)floor, 4)
		     : 6 * pcptune_zone_batch(zone_managed(shape));
}

/* ---- answers; 1: a change was added, 0: none, -1: no room for one ---- */

/* Reason "over-budget" of every policy: all lists may hold {a:pages}, their high is {b:pages}. */
static inline int watch_over_budget(struct pcptune_decision *d, uint32_t i, uint32_t reason,
				    struct watch *w, const struct watch_tally *t, uint32_t high)
{
	struct pcptune_change *ch = watch_fix(d, i, reason, high);

	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)t->budget;
	ch->arg[1] = (int64_t)t->sum;
	w->given = high;
	return 1;
}

/* A raise for misses, as far as there is room: {a:permille} of {b:pages} were missed. */
static inline int watch_raise(struct pcptune_decision *d, uint32_t i, uint32_t reason,
			      struct watch *w, const struct pcptune_cpu *c, struct watch_tally *t,
			      uint32_t wanted, uint64_t now)
{
	uint32_t high = watch_within(c, wanted, t->room);
	struct pcptune_change *ch = high ? watch_fix(d, i, reason, high) : NULL;

	if (!ch)
		return high ? -1 : 0;
	ch->arg[0] = w->missed;
	ch->arg[1] = (int64_t)w->traffic;
	t->room -= high - c->high;
	watch_raised(w, c, high, now);
	return 1;
}

#endif
