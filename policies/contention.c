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
#include "policies/contention_share.h"

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
	REASON_TAKE_OVER(R_TAKE_OVER),
	{R_CONTENDED, 0, "contended",
	 "{a:ppm} of CPU time was waited for the zone lock, {b:permille} of the pages could have "
	 "stayed on the lists: high {old} -> {new:pages}"},
	REASON_MISSES(R_MISSES),
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
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_CALM, 1, "calm",
	 "misses ({a:permille} at most) and waits ({b:ppm}) are below their limits"},
	{R_BUDGET, 1, "budget", "{a} CPUs need more, but {b:pages} of {c:pages} are given out"},
	REASON_SETTLING(R_SETTLING),
	{R_HOLD, 1, "hold", "{a} CPUs have more than they need, their hold time has not passed"},
	REASON_UNUSED(R_UNUSED),
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct cpu_state));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	st->batch = pcptune_zone_batch(zone_managed(shape));
	st->floor = watch_floor(shape, p[P_FLOOR]);
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		st->cpu[i].hold_us = (uint32_t)p[P_HOLD] * 1000;
	return 0;
}

/* ---- raise ---- */

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
	uint64_t most = high_for((uint32_t)(c->high + back), watch_move(c));
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
		bad = cs->missed >= WATCH_BAD || (waits && st->ppm >= 8 * p[P_CONTEND]);
		/* more than high and what went to the zone and back can not have been missed */
		swing = whole_swing(cs, range_width(&cs->net_now, &cs->net_before));
		swing = swing < c->high + back ? swing : c->high + back;
		cs->swing = (uint32_t)swing;
		target = high_for((uint32_t)swing, watch_move(c));
		if (swing > c->high && target > c->high + c->high / 4)
			want(cs, bad ? pcptune_max_u32(target, 2 * c->high) : target, R_SWING);
		else
			want(cs, by_factor(c, back, bad), waits ? R_CONTENDED : R_MISSES);
	} else if (waits && c->high < 2 * watch_move(c)) {
		want(cs, pcptune_min_u32(2 * c->high, 2 * watch_move(c)), R_FLOW);
	}
}

/* ---- decay ---- */

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
		swing = level_width(level_both(cs->count_now, cs->count_before));
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

static void observe_all(struct state *st, const struct pcptune_sample *s, const int64_t *p,
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
			cs->count_now = cs->count_before = (struct watch_level){c->count, c->count};
		}
		observe_cpu(cs, c, s, p);
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
		ch->arg[1] = cs->reason == R_FLOW ? (int64_t)watch_move(c) : (int64_t)cs->missed;
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
	       cs->traffic >= (uint64_t)p[P_TRAFFIC] && c->high >= 2 * watch_move(c) &&
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
	if (!watch_fixed(c)) {
		if (!cpu_open(c) || s->time_us - cs->taken_over < WATCH_RETRY_US)
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
	struct tally t = {.budget = watch_budget(shape, p[P_BUDGET])};
	struct state *st = state;

	(void)host;
	observe_target(st, s);
	observe_all(st, s, p, &t);
	t.room = watch_sub0(t.budget, t.sum);
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
