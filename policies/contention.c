/* SPDX-License-Identifier: MIT */
/*
 * contention: gives list pages to the CPUs whose misses or whose waits they would save.
 *
 * A list with room for the whole swing of its CPU (allocate much, free much, again) never goes to
 * the zone. So what a larger high saves is what goes out to the zone AND comes back: the smaller of
 * the pages taken and given back, twice. A CPU that only takes, or only gives, saves nothing by a
 * larger list; there only larger moves help.
 *
 *   raise   misses or waits above their limits: x2, x4 if it is bad, or at once to the swing that
 *	     was seen, largest need first, within the budget
 *   decay   a CPU that in its hold time needed less than 3/4 of its high gets less, step by step
 *
 * Against going to and fro: between the two lies a dead band, a decay waits for the hold time after
 * a raise, and a decay that was an error teaches: the hold time grows beyond the pause that misled
 * us, and for a CPU at work the level that was needed is kept. docs/policies.md has the formulas.
 *
 * high_min = high_max = high: nothing but this policy moves it, so the budget holds. Generation gx:
 * g4's drains at consecutive high-order frees would empty lists of any high.
 */
#include "policies/common.h"

enum { P_CONTEND, P_MISS, P_TRAFFIC, P_BUDGET, P_FLOOR, P_HOLD, P_DECAY, P_BATCH_MAX, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_CONTEND] = {"contend_ppm", PCPTUNE_PARAM_INT, 0, 1, 1000000, 5000, "ppm",
		       "share of CPU time waited for the zone lock from which a list is too short",
		       NULL},
	[P_MISS] = PARAM_MISS(
		"avoidable zone pages per page allocated or freed from which a list is too short"),
	[P_TRAFFIC] = PARAM_TRAFFIC(
		"pages allocated and freed in about 4 s below which a CPU is left alone"),
	[P_BUDGET] = PARAM_BUDGET,
	[P_FLOOR] = PARAM_FLOOR("decay stops here; 0: 6 x batch"),
	[P_HOLD] = {"hold_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		    "shortest time from a raise to a decay, and what a decay looks back", NULL},
	[P_DECAY] = {"decay_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 1000, "ms",
		     "time between two steps of a decay", NULL},
	[P_BATCH_MAX] = {"batch_max", PCPTUNE_PARAM_INT, 0, 1, PCPTUNE_MAX_BATCH, 126, "pages",
			 "batch is never raised above", NULL},
};

enum {
	R_TAKE_OVER = 1,
	R_CONTENDED,
	R_MISSES,
	R_SWING,
	R_FLOW,
	R_BATCH,
	R_DECAY_IDLE,
	R_DECAY_UNUSED,
	R_OVER_BUDGET,
	R_CALM = 20,
	R_BUDGET,
	R_SETTLING,
	R_HOLD,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	{R_TAKE_OVER, 0, "take-over", "this policy alone moves high now: fixed at {new:pages}"},
	{R_CONTENDED, 0, "contended",
	 "{a:ppm} of CPU time was waited for the zone lock, {b:permille} of the pages could have "
	 "stayed on the lists: high {old} -> {new:pages}"},
	{R_MISSES, 0, "misses",
	 "{a:permille} of {b:pages} allocated and freed went to the zone and came back: high {old} "
	 "-> {new:pages}"},
	{R_SWING, 0, "swing",
	 "{a:permille} went to the zone and came back, pages in use swing by {b:pages}: high {old} "
	 "-> {new:pages}"},
	{R_FLOW, 0, "flow",
	 "{a:ppm} of CPU time was waited for the zone lock, pages flow one way: high {old} -> "
	 "{new:pages}, room for moves of up to {b} pages"},
	{R_BATCH, 0, "batch",
	 "{a:ppm} of CPU time was waited for the zone lock, mostly by refills of {b} pages: batch "
	 "{c} -> {d}"},
	{R_DECAY_IDLE, 0, "decay-idle", "at rest for {a:ms} and more: high {old} -> {new:pages}"},
	{R_DECAY_UNUSED, 0, "decay-unused",
	 "the lists swung by {a:pages} at most in {b:ms} and more: high {old} -> {new:pages}"},
	{R_OVER_BUDGET, 0, "over-budget",
	 "all lists together may hold {a:pages}, their high is {b:pages}: high {old} -> "
	 "{new:pages}"},
	{R_CALM, 1, "calm",
	 "misses ({a:permille} at most) and waits ({b:ppm}) are below their limits"},
	{R_BUDGET, 1, "budget", "{a} CPUs need more, but {b:pages} of {c:pages} are given out"},
	{R_SETTLING, 1, "settling", "{a} CPUs need more, but are settling or held by the operator"},
	{R_HOLD, 1, "hold", "{a} CPUs have more than they need, their hold time has not passed"},
	{R_UNUSED, 1, "unused", "no CPU has allocated yet"},
};

#define MEMORY_US   4000000u   /* time constant of the sums below */
#define HOLD_MAX_US 600000000u /* the longest hold time that is learned */
#define MISSED_BAD  200u       /* permille: a list that is far too short */
#define RETRY_US    1000000u   /* a take-over that does not show is not asked for at once */
#define GRANTS_MAX  64u	       /* raises in one answer; the others come with the next sample */

/* Least and most of something in a stretch of time, and in the stretch before. */
struct range {
	int64_t lo, hi;
};

/* The same of pages on a list. */
struct count_range {
	uint32_t lo, hi;
};

/* Every sample reads all of it: three lines. */
struct cpu_state {
	/* sums over about MEMORY_US, cleared by a raise */
	uint64_t traffic, in, out, refills, wait_us, wait_alloc_us;
	int64_t net;			  /* frees minus allocations through the lists, pages */
	struct range net_now, net_before; /* stretches of MEMORY_US / 2 */
	uint64_t net_start, count_start;
	uint64_t active, raised, decayed, taken_over; /* times, us */
	struct count_range count_now, count_before;   /* stretches of hold_us */
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
	uint64_t cpu_us, wait_us; /* of the target, over about MEMORY_US */
	uint32_t ppm;
	uint32_t pressed;      /* some CPU got less than it needs */
	uint32_t floor, batch; /* of this target: decay stops there */
	uint64_t reserved[4];  /* hosts begin a state at a line, so each CPU does */
	struct cpu_state cpu[];
};

_Static_assert(offsetof(struct state, cpu) == 64, "a line");

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct cpu_state));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	st->batch = pcptune_zone_batch(zone_managed(shape));
	st->floor = p[P_FLOOR] ? pcptune_max_u32((uint32_t)p[P_FLOOR], 4) : 6 * st->batch;
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		st->cpu[i].hold_us = (uint32_t)p[P_HOLD] * 1000;
	return 0;
}

/* ---- what a sample says ---- */

static uint64_t fade(uint64_t v, uint64_t dt_us)
{
	/* rounded up, so that what is at rest comes to 0 */
	return dt_us >= MEMORY_US ? 0 : v - (v * dt_us + MEMORY_US - 1) / MEMORY_US;
}

static void range_add(struct range *r, int64_t v)
{
	r->lo = v < r->lo ? v : r->lo;
	r->hi = v > r->hi ? v : r->hi;
}

static void count_add(struct count_range *r, uint32_t v)
{
	r->lo = pcptune_min_u32(r->lo, v);
	r->hi = pcptune_max_u32(r->hi, v);
}

static void count_cap(struct count_range *r, uint32_t most)
{
	r->lo = pcptune_min_u32(r->lo, most);
	r->hi = pcptune_min_u32(r->hi, most);
}

static uint32_t range_width(const struct range *a, const struct range *b)
{
	int64_t lo = a->lo < b->lo ? a->lo : b->lo, hi = a->hi > b->hi ? a->hi : b->hi;
	uint64_t width = (uint64_t)hi - (uint64_t)lo;

	return width > PCPTUNE_MAX_HIGH ? PCPTUNE_MAX_HIGH : (uint32_t)width;
}

static uint32_t count_width(const struct count_range *a, const struct count_range *b)
{
	uint32_t width = pcptune_max_u32(a->hi, b->hi) - pcptune_min_u32(a->lo, b->lo);

	return pcptune_min_u32(width, PCPTUNE_MAX_HIGH);
}

/* Both move to the next stretch when this one is over; a long pause is a stretch of its own. */
static void watch_net(struct cpu_state *cs, uint64_t t)
{
	struct range here = {cs->net, cs->net};
	uint64_t past = t - cs->net_start;

	if (past >= MEMORY_US / 2) {
		cs->net_before = past >= MEMORY_US ? here : cs->net_now;
		cs->net_now = here;
		cs->net_start = t;
	}
	range_add(&cs->net_now, cs->net);
}

static void watch_count(struct cpu_state *cs, uint32_t count, uint32_t hidden, uint64_t t)
{
	struct count_range here = {count, count};
	uint64_t past = t - cs->count_start;

	if (past >= cs->hold_us) {
		cs->count_before = past >= 2 * (uint64_t)cs->hold_us ? here : cs->count_now;
		cs->count_now = here;
		cs->count_start = t;
		cs->count_valid = 1;
		cs->hidden_before = cs->hidden_now;
		cs->hidden_now = 0;
	}
	count_add(&cs->count_now, count);
	cs->hidden_now = pcptune_max_u32(cs->hidden_now, hidden);
}

static uint64_t sub0(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
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

static void add_deltas(struct cpu_state *cs, const struct pcptune_cpu *c)
{
	uint64_t allocs = sub0(c->alloc_pages, c->alloc_direct);
	uint64_t frees = sub0(c->free_pages, c->free_direct);

	cs->traffic += allocs + frees;
	cs->net += frees - allocs;
	if (!beyond_lists(c))
		return; /* all the rest is 0 */
	cs->in += sub0(c->alloc_zone, c->alloc_direct);
	cs->out += sub0(sub0(sub0(c->free_zone, c->free_direct), c->decay_pages), c->trim_pages);
	cs->refills += c->refills;
	cs->wait_us += (c->lock_alloc_wait_ns + c->lock_free_wait_ns) / 1000;
	cs->wait_alloc_us += c->lock_alloc_wait_ns / 1000;
}

static void fade_sums(struct cpu_state *cs, uint64_t dt_us)
{
	cs->traffic = fade(cs->traffic, dt_us);
	if (!(cs->in | cs->out | cs->refills | cs->wait_us | cs->wait_alloc_us))
		return; /* what is 0 stays 0 */
	cs->in = fade(cs->in, dt_us);
	cs->out = fade(cs->out, dt_us);
	cs->refills = fade(cs->refills, dt_us);
	cs->wait_us = fade(cs->wait_us, dt_us);
	cs->wait_alloc_us = fade(cs->wait_alloc_us, dt_us);
}

/*
 * Within an interval a list may have been further up or down than at its ends, by no more than the
 * smaller of what was allocated and what was freed.
 */
static uint32_t hidden_by(const struct pcptune_cpu *c)
{
	uint64_t hidden = c->alloc_pages < c->free_pages ? c->alloc_pages : c->free_pages;

	return hidden < PCPTUNE_MAX_HIGH ? (uint32_t)hidden : PCPTUNE_MAX_HIGH;
}

static uint32_t most_hidden(const struct cpu_state *cs)
{
	return pcptune_max_u32(cs->hidden_now, cs->hidden_before);
}

/* A swing as seen at the ends of intervals, and what they hid; by half at most is enough. */
static uint32_t whole_swing(const struct cpu_state *cs, uint32_t seen)
{
	return seen + pcptune_min_u32(most_hidden(cs), seen / 2);
}

static void watch_cpu(struct cpu_state *cs, const struct pcptune_cpu *c,
		      const struct pcptune_sample *s, const int64_t *p)
{
	bool good = plausible(c);

	fade_sums(cs, s->dt_us);
	if (c->flags & PCPTUNE_CPU_ACTIVE && good) {
		if (c->alloc_pages || c->free_pages)
			cs->active = s->time_us;
		add_deltas(cs, c);
	}
	watch_net(cs, s->time_us);
	watch_count(cs, c->count, good ? hidden_by(c) : 0, s->time_us);
	cs->missed = 0;
	if (cs->traffic >= (uint64_t)p[P_TRAFFIC]) /* of a few pages a share says nothing */
		cs->missed = (uint32_t)(2000 * (cs->in < cs->out ? cs->in : cs->out) / cs->traffic);
}

static void watch_target(struct state *st, const struct pcptune_sample *s)
{
	uint64_t wait = 0, cpu = s->cpu_us ? s->cpu_us : s->dt_us;

	for (uint32_t i = 0; i < s->n_active; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, s->active[i]);

		if (beyond_lists(c) && plausible(c))
			wait += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
	}
	st->cpu_us = fade(st->cpu_us, s->dt_us) + cpu;
	st->wait_us = fade(st->wait_us, s->dt_us) + wait / 1000;
	st->ppm = st->cpu_us ? (uint32_t)(1000000 * st->wait_us / st->cpu_us) : 0;
}

/* ---- raise ---- */

static uint32_t move_max(const struct pcptune_cpu *c)
{
	return c->batch << pcptune_min_u32(c->scale_max, PCPTUNE_MAX_SCALE);
}

/* high that holds a swing: an eighth for what samples do not see, one move for what is in hand */
static uint32_t high_for(uint32_t swing, uint32_t move)
{
	return swing + swing / 8 + move;
}

static void want(struct cpu_state *cs, uint64_t high, uint32_t reason)
{
	cs->wanted = high > PCPTUNE_MAX_HIGH ? PCPTUNE_MAX_HIGH : (uint32_t)high;
	cs->reason = (uint8_t)reason;
}

static bool contended(const struct state *st, const struct cpu_state *cs, const int64_t *p)
{
	return st->ppm >= p[P_CONTEND] && cs->wait_us > 0;
}

/*
 * x4 or x2, but not beyond what all that went to the zone and back since the last raise would have
 * filled; a quarter more in any case.
 */
static uint64_t by_factor(const struct pcptune_cpu *c, uint64_t back, bool bad)
{
	uint64_t most = high_for((uint32_t)(c->high + back), move_max(c));
	uint64_t high = (uint64_t)c->high * (bad ? 4 : 2), least = c->high + c->high / 4 + 1;

	high = high < most ? high : most;
	return high > least ? high : least;
}

/* Would a larger list serve this CPU? Sets wanted, 0: no. */
static void want_raise(const struct state *st, struct cpu_state *cs, const struct pcptune_cpu *c,
		       const int64_t *p)
{
	uint64_t back = cs->in < cs->out ? cs->in : cs->out, swing;
	bool waits = contended(st, cs, p), bad;
	uint32_t limit = (uint32_t)p[P_MISS], target;

	cs->wanted = 0;
	if (cs->traffic < (uint64_t)p[P_TRAFFIC])
		return;
	back = back < PCPTUNE_MAX_HIGH ? back : PCPTUNE_MAX_HIGH;
	if (cs->missed >= (waits ? limit / 4 + 1 : limit)) {
		bad = cs->missed >= MISSED_BAD || (waits && st->ppm >= 8 * p[P_CONTEND]);
		/* more than high and what went to the zone and back can not have been missed */
		swing = whole_swing(cs, range_width(&cs->net_now, &cs->net_before));
		swing = swing < c->high + back ? swing : c->high + back;
		cs->swing = (uint32_t)swing;
		target = high_for((uint32_t)swing, move_max(c));
		if (swing > c->high && target > c->high + c->high / 4)
			want(cs, bad ? pcptune_max_u32(target, 2 * c->high) : target, R_SWING);
		else
			want(cs, by_factor(c, back, bad), waits ? R_CONTENDED : R_MISSES);
	} else if (waits && c->high < 2 * move_max(c)) {
		want(cs, pcptune_min_u32(2 * c->high, 2 * move_max(c)), R_FLOW);
	}
}

/* Everything that a raise starts anew, and what it teaches about a decay before it. */
static void note_raise(struct cpu_state *cs, const struct pcptune_cpu *c, uint32_t high, uint64_t t)
{
	uint64_t gap = t - cs->raised, hold = 2 * (uint64_t)cs->hold_us;

	if (cs->last_is_decay) {
		hold = hold > 2 * gap ? hold : 2 * gap;
		cs->hold_us = hold < HOLD_MAX_US ? (uint32_t)hold : HOLD_MAX_US;
		cs->learned = high;
	}
	if (cs->learned) /* taught once, it keeps what it needs from then on */
		cs->learned = pcptune_max_u32(cs->learned, high);
	cs->last_is_decay = 0;
	cs->raised = t;
	cs->traffic = cs->in = cs->out = cs->refills = cs->wait_us = cs->wait_alloc_us = 0;
	cs->count_now = cs->count_before = (struct count_range){c->count, c->count};
	cs->count_start = t;
	cs->count_valid = 0;
	cs->hidden_now = cs->hidden_before = 0;
}

/* ---- decay ---- */

/* At rest for its hold time: what moves then are our own trims. */
static bool rests(const struct cpu_state *cs, uint64_t t)
{
	return t - cs->active >= cs->hold_us;
}

/*
 * What this CPU is known to need, from the counts of its last one to two hold times. A CPU at work
 * whose counts say that it needs little may still swing between two samples: then what it once
 * turned out to need counts, as far as intervals can have hidden it.
 */
static uint32_t needed(const struct cpu_state *cs, const struct pcptune_cpu *c, uint32_t floor,
		       uint32_t swing)
{
	uint32_t whole = whole_swing(cs, swing), most = swing + 2 * most_hidden(cs);
	uint32_t need = high_for(whole, pcptune_min_u32(whole, move_max(c)));
	uint32_t top = high_for(most, pcptune_min_u32(most, move_max(c)));

	need = pcptune_max_u32(need, pcptune_min_u32(cs->learned, top));
	return pcptune_max_u32(need, floor);
}

/* A correct decay stays without a raise for long: then what was learned is forgotten. */
static void forget(struct cpu_state *cs, const int64_t *p, uint64_t t)
{
	if (cs->last_is_decay && t - cs->decayed >= HOLD_MAX_US) {
		cs->hold_us = (uint32_t)p[P_HOLD] * 1000;
		cs->learned = 0;
		cs->last_is_decay = 0;
	}
}

/* Others need what this one has not touched for the shortest hold time. */
static bool must_yield(const struct state *st, const struct cpu_state *cs, const int64_t *p,
		       uint64_t t)
{
	uint64_t hold = (uint64_t)p[P_HOLD] * 1000;

	return st->pressed && t - cs->active >= hold && t - cs->raised >= hold;
}

/* 1: a decay was added, 2: it would be one, but its time has not come, 0: none, -1: no room */
static int decay(const struct state *st, struct pcptune_decision *d, uint32_t i,
		 struct cpu_state *cs, const struct pcptune_cpu *c, const int64_t *p, uint64_t t)
{
	uint32_t enough = c->high - c->high / 4, swing = 0, need = st->floor, step;
	struct pcptune_change *ch;
	bool yield, idle;

	/* before all that is costly: nothing is needed less than the floor */
	if (st->floor >= enough || cs->missed >= (uint32_t)p[P_MISS] / 4 + 1)
		return 0;
	yield = must_yield(st, cs, p, t);
	idle = yield || rests(cs, t);
	if (!idle) {
		swing = count_width(&cs->count_now, &cs->count_before);
		need = needed(cs, c, st->floor, swing);
	}
	step = swing ? c->high / 4 : c->high / 2;
	if (need >= enough)
		return 0;
	if (!(cs->count_valid || yield) || t - cs->decayed < (uint64_t)p[P_DECAY] * 1000 ||
	    !cpu_open(c))
		return 2;
	ch = pcptune_decision_add(d, i, idle ? R_DECAY_IDLE : R_DECAY_UNUSED);
	if (!ch)
		return -1;
	ch->high = ch->high_min = ch->high_max = pcptune_max_u32(need, c->high - step);
	cs->given = ch->high;
	count_cap(&cs->count_now, ch->high);
	count_cap(&cs->count_before, ch->high);
	if (idle && c->batch > st->batch)
		ch->batch = st->batch;
	ch->arg[0] = idle ? (int64_t)((t - cs->active) / 1000) : (int64_t)swing;
	ch->arg[1] = (int64_t)(cs->hold_us / 1000);
	cs->decayed = t;
	cs->last_is_decay = 1;
	return 1;
}

/* ---- the answer ---- */

/* What the passes over the CPUs found. */
struct tally {
	uint64_t budget, sum, room;
	uint32_t used, closed, cut, holding, above, missed, wanting;
};

static uint64_t budget_of(const struct pcptune_shape *shape, const int64_t *p)
{
	uint64_t b = shape->managed_pages * (uint64_t)p[P_BUDGET] / 1000;

	return shape->budget_pages && shape->budget_pages < b ? shape->budget_pages : b;
}

static void watch_all(struct state *st, const struct pcptune_sample *s, const int64_t *p,
		      struct tally *t)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];

		cs->wanted = cs->granted = 0;
		if (!cpu_used(c))
			continue;
		if (!cs->count_start) {
			cs->count_start = cs->net_start = cs->raised = cs->active = s->time_us;
			cs->count_now = cs->count_before = (struct count_range){c->count, c->count};
		}
		watch_cpu(cs, c, s, p);
		forget(cs, p, s->time_us);
		want_raise(st, cs, c, p);
		t->used++;
		if (!(c->flags & PCPTUNE_CPU_SETTLING))
			cs->given = 0;
		t->sum += pcptune_max_u32(c->high, cs->given);
		t->missed = pcptune_max_u32(t->missed, cs->missed);
		if (cs->wanted && !cpu_open(c)) {
			cs->wanted = 0;
			t->closed++;
		}
		t->wanting += cs->wanted != 0;
	}
}

/*
 * The CPU in largest need (most pages went to the zone and back) that was not looked at yet;
 * UINT32_MAX: none.
 */
static uint32_t neediest(const struct state *st, uint32_t n)
{
	uint32_t best = UINT32_MAX;
	uint64_t most = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct cpu_state *cs = &st->cpu[i];

		if (cs->wanted && !cs->granted && (best == UINT32_MAX || cs->in + cs->out > most)) {
			best = i;
			most = cs->in + cs->out;
		}
	}
	return best;
}

/*
 * What is too little to be worth a decision already now: the room only shrinks. Where the budget is
 * used up this is all there is to do, and it costs one pass.
 */
static void cut_hopeless(struct state *st, const struct pcptune_sample *s, struct tally *t)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		struct cpu_state *cs = &st->cpu[i];
		uint64_t high, most;

		if (!cs->wanted)
			continue;
		high = pcptune_sample_cpu(s, i)->high;
		most = cs->wanted > high + t->room ? high + t->room : cs->wanted;
		if (most >= high + high / 8 + 1)
			continue;
		cs->wanted = 0;
		t->cut++;
	}
}

/* Largest need first: cuts what is wanted to what the budget has left. */
static void share(struct state *st, const struct pcptune_sample *s, struct tally *t)
{
	if (!t->wanting)
		return; /* a calm target: saves two passes */
	cut_hopeless(st, s, t);
	for (uint32_t n = 0; n < GRANTS_MAX; n++) {
		uint32_t i = neediest(st, s->n_cpus), high;
		struct cpu_state *cs;

		if (i == UINT32_MAX)
			return;
		cs = &st->cpu[i];
		high = pcptune_sample_cpu(s, i)->high;
		if (cs->wanted > high + t->room)
			cs->wanted = high + (uint32_t)t->room;
		if (cs->wanted < high + high / 8 + 1) { /* too little to be worth a decision */
			cs->wanted = 0;
			t->cut++;
			continue;
		}
		t->room -= cs->wanted - high;
		cs->granted = 1;
	}
}

static int raise(const struct state *st, struct pcptune_decision *d, uint32_t i,
		 struct cpu_state *cs, const struct pcptune_cpu *c, uint64_t t)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, cs->reason);

	if (!ch)
		return -1;
	ch->high = ch->high_min = ch->high_max = cs->given = cs->wanted;
	ch->rules = PCPTUNE_RULES_GX;
	if (cs->reason == R_CONTENDED || cs->reason == R_FLOW) {
		ch->arg[0] = st->ppm;
		ch->arg[1] = cs->reason == R_FLOW ? (int64_t)move_max(c) : (int64_t)cs->missed;
	} else {
		ch->arg[0] = cs->missed;
		ch->arg[1] = cs->reason == R_SWING ? (int64_t)cs->swing : (int64_t)cs->traffic;
	}
	note_raise(cs, c, cs->wanted, t);
	return 1;
}

/* Larger moves for a list that is long enough for them and still waits to be refilled. */
static bool want_batch(const struct state *st, const struct cpu_state *cs,
		       const struct pcptune_cpu *c, const int64_t *p, uint64_t t)
{
	return cpu_open(c) && c->rules == PCPTUNE_RULES_GX && contended(st, cs, p) &&
	       2 * cs->wait_alloc_us > cs->wait_us && cs->refills &&
	       cs->traffic >= (uint64_t)p[P_TRAFFIC] && c->high >= 2 * move_max(c) &&
	       (int64_t)c->batch * 2 <= p[P_BATCH_MAX] && t - cs->raised >= 1000000;
}

static int raise_batch(const struct state *st, struct pcptune_decision *d, uint32_t i,
		       struct cpu_state *cs, const struct pcptune_cpu *c, uint64_t t)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, R_BATCH);

	if (!ch)
		return -1;
	ch->batch = 2 * c->batch;
	ch->arg[0] = st->ppm;
	ch->arg[1] = (int64_t)(cs->in / cs->refills);
	ch->arg[2] = c->batch;
	ch->arg[3] = ch->batch;
	note_raise(cs, c, c->high, t);
	return 1;
}

/* high of one CPU when all together have more than the budget; never below its fair share. */
static uint32_t cut_high(const struct pcptune_cpu *c, const struct tally *t, uint32_t floor)
{
	uint64_t fair = t->budget / t->used;
	uint32_t least = fair < floor ? (uint32_t)fair : floor;
	uint32_t part = (uint32_t)(c->high * t->budget / t->sum);

	return pcptune_max_u32(pcptune_max_u32(part, least), 4);
}

static int fix(struct pcptune_decision *d, uint32_t i, struct cpu_state *cs, uint32_t high,
	       uint32_t reason, const struct tally *t)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, reason);

	if (!ch)
		return -1;
	ch->high = ch->high_min = ch->high_max = cs->given = high;
	ch->rules = reason == R_TAKE_OVER ? PCPTUNE_RULES_GX : PCPTUNE_KEEP;
	if (reason == R_OVER_BUDGET) {
		ch->arg[0] = (int64_t)t->budget;
		ch->arg[1] = (int64_t)t->sum;
	}
	return 1;
}

/* At most one change of one CPU; as decay(). */
static int answer_cpu(const struct state *st, struct pcptune_decision *d, uint32_t i,
		      struct cpu_state *cs, const struct pcptune_cpu *c, const int64_t *p,
		      const struct pcptune_sample *s, const struct tally *t)
{
	uint32_t cut = t->sum > t->budget ? cut_high(c, t, st->floor) : c->high;

	if (cut < c->high)
		return cpu_open(c) ? fix(d, i, cs, cut, R_OVER_BUDGET, t) : 2;
	if (cs->granted)
		return raise(st, d, i, cs, c, s->time_us);
	if (c->high_min != c->high || c->high_max != c->high || c->rules != PCPTUNE_RULES_GX) {
		if (!cpu_open(c) || s->time_us - cs->taken_over < RETRY_US)
			return 2;
		cs->taken_over = s->time_us;
		return fix(d, i, cs, c->high, R_TAKE_OVER, t);
	}
	if (want_batch(st, cs, c, p, s->time_us))
		return raise_batch(st, d, i, cs, c, s->time_us);
	return decay(st, d, i, cs, c, p, s->time_us);
}

static void answer_whole(const struct state *st, struct pcptune_decision *d, const int64_t *p,
			 const struct tally *t)
{
	d->arg[0] = t->cut ? t->cut : t->closed ? t->closed : t->holding;
	if (!t->used) {
		d->reason = R_UNUSED;
	} else if (t->cut) {
		d->reason = R_BUDGET;
		d->arg[1] = (int64_t)t->sum;
		d->arg[2] = (int64_t)t->budget;
	} else if (t->closed) {
		d->reason = R_SETTLING;
	} else if (t->holding) {
		d->reason = R_HOLD;
	} else {
		d->reason = R_CALM;
		d->arg[0] = t->missed;
		d->arg[1] = st->ppm;
	}
	d->rest_ms = t->closed ? 0 : t->above ? (uint32_t)p[P_DECAY] : REST_LONG_MS;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct tally t = {.budget = budget_of(shape, p)};
	struct state *st = state;

	(void)host;
	watch_target(st, s);
	watch_all(st, s, p, &t);
	t.room = sub0(t.budget, t.sum);
	share(st, s, &t);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		int r;

		if (!cpu_used(c))
			continue;
		r = answer_cpu(st, d, i, &st->cpu[i], c, p, s, &t);
		if (r < 0)
			return -ENOBUFS;
		t.holding += r == 2;
		t.above += c->high - c->high / 4 > st->floor; /* may decay yet */
	}
	st->pressed = t.cut > 0;
	answer_whole(st, d, p, &t);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "contention",
	.version = "1.0",
	.summary = "more list pages for CPUs that wait for the zone lock or miss; idle lists decay",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
