/* SPDX-License-Identifier: MIT */
/*
 * learn: tries a little more or less of high and batch, looks what came of it, and goes back when
 * it made things worse.
 *
 * Each CPU goes through measure -> change -> settle -> measure -> judge on its own. Cost, in ns of
 * CPU time a second:
 *
 *   lock   zone lock takes x take_ns + pages moved x page_ns + time waited, per page of traffic,
 *	    times the traffic of both windows together: a busier window is not a worse one
 *   rent   pages on the lists x rent_ns
 *
 * Better by the margin: kept, and the same again. Neither: a raise of high is tried on, x4 and x16,
 * since a list far shorter than the swing of its CPU saves little until it is long enough; then all
 * is as it was. Worse: back at once. A move that failed is benched for a while, twice as long each
 * time. High changes its direction twice in turns_ms at most: a CPU that spent that waits, and only
 * what made things worse goes back even then. So the search is bounded in time, place and number,
 * and it draws no lots: the same samples give the same answers.
 */
#include "policies/watch.h"

enum {
	P_WINDOW,
	P_SETTLE,
	P_TRAFFIC,
	P_MARGIN,
	P_WORTH,
	P_RENT,
	P_TAKE,
	P_PAGE,
	P_BENCH,
	P_TURNS,
	P_BUDGET,
	P_FLOOR,
	P_BATCH_MAX,
	N_PARAMS
};

static const struct pcptune_param params[N_PARAMS] = {
	[P_WINDOW] = {"window_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 3000, "ms",
		      "shortest time of a measurement", NULL},
	[P_SETTLE] = {"settle_ms", PCPTUNE_PARAM_INT, 0, 0, 600000, 1000, "ms",
		      "time from a change to the measurement of what came of it", NULL},
	[P_TRAFFIC] = PARAM_TRAFFIC(
		"pages allocated and freed in a measurement; below it goes on, ten times "
		"as long at most"),
	[P_MARGIN] = {"margin_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 50, "permille",
		      "difference of cost from which one is better than the other", NULL},
	[P_WORTH] = {"worth_us", PCPTUNE_PARAM_INT, 0, 0, 1000000, 50, "us",
		     "CPU time a second that a move must be able to save to be tried", NULL},
	[P_RENT] = {"rent_ns", PCPTUNE_PARAM_INT, 0, 0, 1000000, 20, "ns",
		    "price of one page on a list for a second", NULL},
	[P_TAKE] = {"take_ns", PCPTUNE_PARAM_INT, 0, 0, 1000000, 1000, "ns",
		    "price of one hold of the zone lock", NULL},
	[P_PAGE] = {"page_ns", PCPTUNE_PARAM_INT, 0, 0, 1000000, 100, "ns",
		    "price of one page moved to or from the zone", NULL},
	[P_BENCH] = {"bench_ms", PCPTUNE_PARAM_INT, 0, 1000, 3600000, 600000, "ms",
		     "how long a move that failed is not tried again", NULL},
	[P_TURNS] = {"turns_ms", PCPTUNE_PARAM_INT, 0, 1000, 3600000, 600000, "ms",
		     "time in which high changes direction twice at most", NULL},
	[P_BUDGET] = PARAM_BUDGET,
	[P_FLOOR] = PARAM_FLOOR("high is not tried below; 0: 6 x batch"),
	[P_BATCH_MAX] = {"batch_max", PCPTUNE_PARAM_INT, 0, 1, PCPTUNE_MAX_BATCH, 126, "pages",
			 "batch is not tried above", NULL},
};

enum {
	R_TAKE_OVER = 1,
	R_TRY_MORE,
	R_TRY_LESS,
	R_TRY_BATCH,
	R_BACK_WORSE,
	R_BACK_SAME,
	R_OVER_BUDGET,
	R_KEPT = 20,
	R_MEASURING,
	R_SETTLED,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	REASON_TAKE_OVER(R_TAKE_OVER),
	{R_TRY_MORE, 0, "try-more",
	 "the zone lock costs {a} us a second, {b:pages} went out and came back: tries high {old} "
	 "-> {new:pages}"},
	{R_TRY_LESS, 0, "try-less",
	 "{b:pages} on the lists cost {a} us a second: tries high {old} -> {new:pages}"},
	{R_TRY_BATCH, 0, "try-batch", "{a} us a second for the zone lock: tries batch {b} -> {c}"},
	{R_BACK_WORSE, 0, "back-worse",
	 "it cost {a} us a second and then {b}: back to high {new:pages} and batch {c}, benched "
	 "for "
	 "{d:ms}"},
	{R_BACK_SAME, 0, "back-same",
	 "it cost {a} us a second and then {b}, no better: back to high {new:pages} and batch {c}, "
	 "benched for {d:ms}"},
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_KEPT, 1, "kept", "{a} changes proved better: {b} us a second and then {c}"},
	{R_MEASURING, 1, "measuring",
	 "{a} of {b} CPUs are being measured, {c} of them after a try"},
	{R_SETTLED, 1, "settled", "{a} CPUs: nothing worth a try, or benched"},
	REASON_UNUSED(R_UNUSED),
};

enum move { MORE, LESS, BATCH_UP, BATCH_DOWN, N_MOVES, NO_MOVE = N_MOVES };
enum phase { BASE, CHANGING, TRIAL };

#define LADDER_MAX   2u /* a raise that is neither is tried on so many times */
#define BENCH_MAX_US 3600000000u
#define APPLY_US     5000000u /* a change that does not show by then was not applied */
#define LONG_WINDOW  10u      /* a CPU with little traffic is measured for so many windows */
#define LOCK_NS_MAX  (UINT64_C(1) << 40)

/* Sums over a measurement. */
struct window {
	uint64_t us, traffic, back_in, back_out, lock_ns;
	uint64_t held; /* pages x ms */
	uint64_t most; /* pages on the lists at once */
};

struct cpu_state {
	struct window base, trial;
	uint64_t since;		 /* of the phase */
	uint64_t turn[2];	 /* times of the last changes of direction */
	uint64_t until[N_MOVES]; /* benched until */
	uint64_t taken_over;
	uint32_t bench_ms[N_MOVES];   /* how long the next time */
	uint32_t old_high, old_batch; /* where a failed try goes back to */
	uint32_t new_high, new_batch;
	uint8_t phase, move, ladder, known; /* known: base is a whole measurement */
	int8_t direction;		    /* of the last change of high */
	uint8_t returning;		    /* the change under way is a way back: not judged */
	uint8_t n_turns, reserved;
};

struct state {
	uint32_t floor, batch_min;
	struct cpu_state cpu[];
};

/* One call: what came in, and what the answers of the CPUs add up to. */
struct round {
	const int64_t *p;
	struct pcptune_decision *d;
	const struct pcptune_sample *s;
	struct watch_tally t;
	uint32_t kept, measured, tried;
	uint64_t was_us, is_us;
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct cpu_state));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	st->floor = watch_floor(shape, p[P_FLOOR]);
	st->batch_min = pcptune_zone_batch(zone_managed(shape));
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		for (uint32_t m = 0; m < N_MOVES; m++)
			st->cpu[i].bench_ms[m] = (uint32_t)p[P_BENCH];
	return 0;
}

/* ---- measuring ---- */

static void window_add(struct window *w, const struct pcptune_cpu *c, uint64_t dt_us,
		       const int64_t *p)
{
	uint64_t moved, takes, ns;

	w->us += watch_min(dt_us, UINT32_MAX);
	w->most = w->most > c->count ? w->most : c->count;
	w->held += (uint64_t)pcptune_min_u32(c->count, PCPTUNE_MAX_HIGH) *
		   (watch_min(dt_us, UINT32_MAX) / 1000);
	if (!(c->flags & PCPTUNE_CPU_ACTIVE) || !watch_plausible(c))
		return;
	moved = watch_sub0(c->alloc_zone, c->alloc_direct) +
		watch_sub0(watch_sub0(c->free_zone, c->free_direct), c->trim_pages);
	takes = watch_min(c->lock_alloc_taken, WATCH_PAGES_MAX) +
		watch_min(c->lock_free_taken, WATCH_PAGES_MAX);
	ns = watch_min(takes, UINT32_MAX) * (uint64_t)p[P_TAKE] +
	     watch_min(moved, UINT32_MAX) * (uint64_t)p[P_PAGE] +
	     watch_min(c->lock_alloc_wait_ns, LOCK_NS_MAX) +
	     watch_min(c->lock_free_wait_ns, LOCK_NS_MAX);
	w->lock_ns = watch_min(w->lock_ns + watch_min(ns, LOCK_NS_MAX), LOCK_NS_MAX);
	w->traffic += watch_sub0(c->alloc_pages, c->alloc_direct) +
		      watch_sub0(c->free_pages, c->free_direct);
	w->back_in += watch_sub0(c->alloc_zone, c->alloc_direct);
	w->back_out += watch_sub0(watch_sub0(c->free_zone, c->free_direct), c->trim_pages);
}

static bool window_over(const struct window *w, const int64_t *p)
{
	uint64_t us = (uint64_t)p[P_WINDOW] * 1000;

	return w->us >= us && (w->traffic >= (uint64_t)p[P_TRAFFIC] || w->us >= LONG_WINDOW * us);
}

/* us of CPU time a second for the pages on the lists */
static uint64_t rent(const struct window *w, const int64_t *p)
{
	return w->us ? w->held / (w->us / 1000 + 1) * (uint64_t)p[P_RENT] / 1000 : 0;
}

/* us of CPU time a second for the zone lock, if `traffic` pages had come in `us`. */
static uint64_t lock(const struct window *w, uint64_t traffic, uint64_t us)
{
	uint64_t per_page = w->traffic ? w->lock_ns * 16 / w->traffic : 0;

	per_page = watch_min(per_page, UINT32_MAX);
	return us ? per_page * watch_min(traffic, UINT32_MAX) / 16 * 1000 / us : 0;
}

static uint64_t cost(const struct cpu_state *cs, const struct window *w, const int64_t *p)
{
	return lock(w, cs->base.traffic + cs->trial.traffic, cs->base.us + cs->trial.us) +
	       rent(w, p);
}

/* ---- which move ---- */

/* Changes of direction in the last turns_ms; two at most are remembered. */
static uint32_t turns_lately(const struct cpu_state *cs, const int64_t *p, uint64_t now)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < cs->n_turns; k++)
		n += now - cs->turn[1 - k] < (uint64_t)p[P_TURNS] * 1000;
	return n;
}

/*
 * Going there may be a turn, and coming back is one. A list that is too long harms little, so the
 * way back from a raise is not reserved for: where there is no turn left for it, it stays.
 */
static bool turn_allowed(const struct cpu_state *cs, int direction, const int64_t *p, uint64_t now)
{
	uint32_t n = turns_lately(cs, p, now) + (cs->direction == -direction) + (direction < 0);

	return n <= 2;
}

static void note_direction(struct cpu_state *cs, uint32_t from, uint32_t to, uint64_t now)
{
	int8_t direction = to > from ? 1 : to < from ? -1 : 0;

	if (direction && cs->direction == -direction) {
		cs->turn[0] = cs->turn[1];
		cs->turn[1] = now;
		cs->n_turns = cs->n_turns < 2 ? (uint8_t)(cs->n_turns + 1) : 2;
	}
	cs->direction = direction ? direction : cs->direction;
}

static uint32_t more_high(const struct cpu_state *cs, const struct pcptune_cpu *c, uint64_t room)
{
	uint64_t back = watch_min(cs->base.back_in, cs->base.back_out), high = cs->old_high;
	uint64_t most = high + back;

	most = watch_min(most + most / 8 + watch_move(c), PCPTUNE_MAX_HIGH);
	high = watch_min(high << (2 * (cs->ladder + 1)), most);
	return watch_within(c, (uint32_t)high, room);
}

/*
 * A quarter less; of a CPU that hardly works, whose measurements take long, half of what lies
 * there. No less than high: there was room that nobody filled, which costs nothing.
 */
static uint32_t less_high(const struct cpu_state *cs, const struct pcptune_cpu *c, const int64_t *p)
{
	uint32_t most = (uint32_t)watch_min(cs->base.most, c->high), high = c->high - c->high / 4;

	if (cs->base.traffic < (uint64_t)p[P_TRAFFIC])
		return most - most / 2;
	return most > high ? high : c->high;
}

/* The first move that may pay; NO_MOVE: none. old_high and old_batch are those of now. */
static enum move choose(const struct cpu_state *cs, const struct pcptune_cpu *c,
			const struct state *st, const struct round *r)
{
	uint64_t now = r->s->time_us, worth = (uint64_t)r->p[P_WORTH];
	uint64_t spent = lock(&cs->base, cs->base.traffic, cs->base.us);
	uint64_t save = watch_min(cs->base.back_in, cs->base.back_out);
	uint64_t fewer = rent(&cs->base, r->p) / 4;

	save = cs->base.us ? save * 2 * (uint64_t)r->p[P_PAGE] * 1000 / cs->base.us : 0;
	if (spent >= worth && save >= worth && now >= cs->until[MORE] &&
	    more_high(cs, c, r->t.room) && turn_allowed(cs, 1, r->p, now))
		return MORE;
	if (fewer >= worth && fewer >= (spent + 4 * fewer) * (uint64_t)r->p[P_MARGIN] / 1000 &&
	    now >= cs->until[LESS] && less_high(cs, c, r->p) >= st->floor &&
	    less_high(cs, c, r->p) < c->high && turn_allowed(cs, -1, r->p, now))
		return LESS;
	if (spent >= worth && now >= cs->until[BATCH_UP] && c->high >= 4 * c->batch &&
	    2 * (int64_t)c->batch <= r->p[P_BATCH_MAX])
		return BATCH_UP;
	if (spent >= worth && now >= cs->until[BATCH_DOWN] && c->batch / 2 >= st->batch_min)
		return BATCH_DOWN;
	return NO_MOVE;
}

/* ---- the answers; 1: a change was added, 0: none, -1: no room for one ---- */

static struct pcptune_change *change(struct round *r, uint32_t i, struct cpu_state *cs,
				     const struct pcptune_cpu *c, uint32_t reason)
{
	struct pcptune_change *ch = watch_fix(r->d, i, reason, cs->new_high);

	if (!ch)
		return NULL;
	if (cs->new_batch != c->batch)
		ch->batch = pcptune_clamp_u32(cs->new_batch, 1, PCPTUNE_MAX_BATCH);
	if (cs->new_high > c->high)
		r->t.room = watch_sub0(r->t.room, cs->new_high - c->high);
	note_direction(cs, c->high, cs->new_high, r->s->time_us);
	cs->phase = CHANGING;
	cs->since = r->s->time_us;
	return ch;
}

static int try_move(struct round *r, uint32_t i, struct cpu_state *cs, const struct pcptune_cpu *c)
{
	static const uint32_t reason[] = {R_TRY_MORE, R_TRY_LESS, R_TRY_BATCH, R_TRY_BATCH};
	struct pcptune_change *ch;

	cs->new_high = c->high;
	cs->new_batch = c->batch;
	if (cs->move == MORE)
		cs->new_high = more_high(cs, c, r->t.room);
	else if (cs->move == LESS)
		cs->new_high = less_high(cs, c, r->p);
	else
		cs->new_batch = cs->move == BATCH_UP ? 2 * c->batch : c->batch / 2;
	cs->returning = 0;
	ch = change(r, i, cs, c, reason[cs->move]);
	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)(cs->move == LESS ? rent(&cs->base, r->p)
						: lock(&cs->base, cs->base.traffic, cs->base.us));
	ch->arg[1] = cs->move == MORE	? (int64_t)watch_min(cs->base.back_in, cs->base.back_out)
		     : cs->move == LESS ? (int64_t)c->count
					: (int64_t)c->batch;
	ch->arg[2] = cs->new_batch;
	return 1;
}

static void bench(struct cpu_state *cs, uint64_t now)
{
	uint64_t us = (uint64_t)cs->bench_ms[cs->move] * 1000;

	cs->until[cs->move] = now + us;
	cs->bench_ms[cs->move] = (uint32_t)(watch_min(2 * us, BENCH_MAX_US) / 1000);
}

static int go_back(struct round *r, uint32_t i, struct cpu_state *cs, const struct pcptune_cpu *c,
		   bool worse)
{
	int64_t ms = cs->bench_ms[cs->move];
	struct pcptune_change *ch;

	cs->new_high = cs->old_high;
	cs->new_batch = cs->old_batch;
	cs->returning = 1;
	ch = change(r, i, cs, c, worse ? R_BACK_WORSE : R_BACK_SAME);
	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)cost(cs, &cs->base, r->p);
	ch->arg[1] = (int64_t)cost(cs, &cs->trial, r->p);
	ch->arg[2] = cs->old_batch;
	ch->arg[3] = ms;
	bench(cs, r->s->time_us);
	return 1;
}

static void measure_anew(struct cpu_state *cs, enum phase phase, uint64_t now)
{
	*(phase == TRIAL ? &cs->trial : &cs->base) = (struct window){0};
	cs->phase = (uint8_t)phase;
	cs->since = now;
}

/* After a whole measurement of a try. */
static int judge(struct round *r, uint32_t i, struct cpu_state *cs, const struct pcptune_cpu *c)
{
	uint64_t was = cost(cs, &cs->base, r->p), is = cost(cs, &cs->trial, r->p);
	uint64_t margin = was * (uint64_t)r->p[P_MARGIN] / 1000 + 1;

	if (is + margin <= was) {
		cs->bench_ms[cs->move] = (uint32_t)r->p[P_BENCH];
		cs->base = cs->trial;
		cs->phase = BASE; /* what was measured is the base of the next try */
		cs->ladder = 0;
		r->kept++;
		r->was_us = was;
		r->is_us = is;
		return 0;
	}
	if (is < was + margin && cs->move == MORE && cs->ladder < LADDER_MAX) {
		cs->ladder++;
		if (more_high(cs, c, r->t.room) > c->high)
			return try_move(r, i, cs, c);
	}
	if (is < was + margin && cs->move == MORE && turns_lately(cs, r->p, r->s->time_us) >= 2) {
		bench(cs, r->s->time_us);
		measure_anew(cs, BASE, r->s->time_us);
		return 0;
	}
	return go_back(r, i, cs, c, is >= was + margin);
}

static int based(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		 const struct pcptune_cpu *c)
{
	cs->old_high = c->high;
	cs->old_batch = c->batch;
	cs->ladder = 0;
	cs->move = (uint8_t)choose(cs, c, st, r);
	if (cs->move == NO_MOVE) {
		measure_anew(cs, BASE, r->s->time_us);
		return 0;
	}
	return try_move(r, i, cs, c);
}

/* Waits until the change shows and its first effects are over. */
static void changing(struct round *r, struct cpu_state *cs, const struct pcptune_cpu *c)
{
	uint64_t past = r->s->time_us - cs->since;

	if (c->high != cs->new_high || c->batch != cs->new_batch) {
		if (past >= APPLY_US) /* cut by the host, or refused: nothing to judge */
			measure_anew(cs, BASE, r->s->time_us);
	} else if (past >= (uint64_t)r->p[P_SETTLE] * 1000) {
		measure_anew(cs, cs->returning ? BASE : TRIAL, r->s->time_us);
	}
}

static int over_budget(struct round *r, uint32_t i, struct cpu_state *cs,
		       const struct pcptune_cpu *c, uint32_t high)
{
	struct pcptune_change *ch;

	cs->new_high = high;
	cs->new_batch = c->batch;
	cs->returning = 1;
	ch = change(r, i, cs, c, R_OVER_BUDGET);
	if (!ch)
		return -1;
	ch->arg[0] = (int64_t)r->t.budget;
	ch->arg[1] = (int64_t)r->t.sum;
	return 1;
}

static int answer_cpu(const struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		      const struct pcptune_cpu *c)
{
	uint64_t now = r->s->time_us;
	uint32_t cut = watch_cut(c, &r->t, st->floor);
	struct window *w = cs->phase == TRIAL ? &cs->trial : &cs->base;

	if (cs->phase == CHANGING) {
		changing(r, cs, c);
		return 0;
	}
	if (!cpu_open(c)) { /* somebody else's time */
		measure_anew(cs, BASE, now);
		return 0;
	}
	if (cut < c->high)
		return over_budget(r, i, cs, c, cut);
	if (!watch_fixed(c)) {
		if (cs->taken_over && now - cs->taken_over < WATCH_RETRY_US)
			return 0;
		cs->taken_over = now;
		measure_anew(cs, BASE, now);
		return watch_fix(r->d, i, R_TAKE_OVER, c->high) ? 1 : -1;
	}
	window_add(w, c, r->s->dt_us, r->p);
	if (!window_over(w, r->p))
		return 0;
	return cs->phase == TRIAL ? judge(r, i, cs, c) : based(st, r, i, cs, c);
}

static void answer_whole(const struct round *r)
{
	struct pcptune_decision *d = r->d;

	d->reason = !r->t.used	  ? R_UNUSED
		    : r->kept	  ? R_KEPT
		    : r->measured ? R_MEASURING
				  : R_SETTLED;
	d->arg[0] = r->kept ? r->kept : r->measured ? r->measured : r->t.used;
	d->arg[1] = r->kept ? (int64_t)r->was_us : r->t.used;
	d->arg[2] = r->kept ? (int64_t)r->is_us : r->tried;
	d->rest_ms = r->tried ? 0 : (uint32_t)r->p[P_WINDOW];
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct round r = {.p = p, .d = d, .s = s};
	struct state *st = state;

	(void)host;
	r.t.budget = watch_budget(shape, p[P_BUDGET]);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		const struct cpu_state *cs = &st->cpu[i];

		if (!cpu_used(c))
			continue;
		r.t.used++;
		r.t.open += cpu_open(c) && cs->phase != CHANGING ? c->high : 0;
		r.t.sum += cs->phase == CHANGING ? pcptune_max_u32(c->high, cs->new_high) : c->high;
	}
	r.t.room = watch_sub0(r.t.budget, r.t.sum);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];

		if (!cpu_used(c))
			continue;
		if (answer_cpu(st, &r, i, cs, c) < 0)
			return -ENOBUFS;
		r.tried += cs->phase != BASE;
		r.measured += cs->phase != BASE || cs->base.traffic;
	}
	answer_whole(&r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "learn",
	.version = "1.0",
	.summary = "tries more or less of high and batch and keeps what proved cheaper",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
