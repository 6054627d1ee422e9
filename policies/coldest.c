/* SPDX-License-Identifier: MIT */
/*
 * coldest: one total budget; who needs more gets it, from the CPU whose bottom page is idle
 * longest.
 *
 * A page at the bottom of a list was last of use when the list was that low; room at the top when
 * it was that full. So what a CPU has of high beyond the swing of its lists over the last A seconds
 * was idle for at least A. Counts of samples give that for A = 1, 2, 4 ... 512 s: stretches whose
 * range goes into the one of twice the length when they are over. While the budget has room, idle
 * pages cost nobody anything and stay. When it has none, the CPU that has a step of pages to give
 * with the largest A gives them; a CPU without pages that are idle for its hold time gives nothing.
 *
 * Near to what a player could do who knows the future: of the pages held, he would let go those
 * that are wanted last, and these are always at the bottom of some list.
 */
#include "policies/watch.h"

enum { P_COLD, P_MISS, P_TRAFFIC, P_BUDGET, P_FLOOR, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_COLD] = {"cold_ms", PCPTUNE_PARAM_INT, 0, 1000, 512000, 5000, "ms",
		    "pages are taken only if they are idle for so long", NULL},
	[P_MISS] = PARAM_MISS("avoidable zone pages per page allocated or freed that are too many"),
	[P_TRAFFIC] = PARAM_TRAFFIC(
		"pages allocated and freed in about 4 s below which nothing is raised"),
	[P_BUDGET] = PARAM_BUDGET,
	[P_FLOOR] = PARAM_FLOOR("no CPU gives below; 0: 6 x batch"),
};

enum {
	R_TAKE_OVER = 1,
	R_MISSES,
	R_COLD,
	R_OVER_BUDGET,
	R_SERVED = 20,
	R_ALL_WARM,
	R_COMING,
	R_SETTLING,
	R_UNUSED
};

static const struct pcptune_reason reasons[] = {
	REASON_TAKE_OVER(R_TAKE_OVER),
	REASON_MISSES(R_MISSES),
	{R_COLD, 0, "cold",
	 "{a:pages} of its high were idle for {b:ms} and more, longest of all CPUs, and {c:pages} "
	 "are wanted: high {old} -> {new:pages}"},
	REASON_OVER_BUDGET(R_OVER_BUDGET),
	{R_SERVED, 1, "served", "none of the {a} CPUs in use misses much"},
	{R_ALL_WARM, 1, "all-warm",
	 "{a} CPUs need more, {b:pages} of {c:pages} are given out and no list has cold pages"},
	{R_COMING, 1, "coming", "{a} CPUs need more, {b:pages} for them are on their way"},
	REASON_SETTLING(R_SETTLING),
	REASON_UNUSED(R_UNUSED),
};

#define AGES	    10u /* stretches of 1, 2, 4 ... 512 s */
#define AGE_US	    1000000u
#define VICTIMS_MAX 16u /* CPUs that give in one answer; more follow with the next sample */

struct cpu_state {
	struct watch w;
	struct watch_level now[AGES], before[AGES];
	uint32_t wanted; /* of this sample: a high that it misses; 0: none */
	uint32_t gives;	 /* of this sample: the high that it keeps; 0: does not give */
	uint32_t idle;	 /* pages, of this sample */
	uint32_t age_ms; /* of them */
};

struct state {
	uint64_t epoch;	    /* stretches of AGE_US up to the last sample; 0: none */
	uint64_t coming;    /* pages taken, not yet free */
	uint64_t coming_to; /* when what has not come is forgotten, us */
	uint32_t floor;
	uint32_t reserved;
	struct cpu_state cpu[];
};

/* One call: what came in, and what the answers of the CPUs add up to. */
struct round {
	const int64_t *p;
	struct pcptune_decision *d;
	uint64_t now, want;
	struct watch_tally t;
	uint32_t closed, unfixed;
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
	for (uint32_t i = 0; i < shape->n_zones * shape->n_cpus; i++)
		watch_init(&st->cpu[i].w, p[P_COLD]);
	return 0;
}

/* ---- how long pages are idle ---- */

static void ages_begin(struct cpu_state *cs, uint32_t count)
{
	for (uint32_t k = 0; k < AGES; k++)
		cs->now[k] = cs->before[k] = (struct watch_level){count, count};
}

/* Stretches that are over go into the next longer one; a pause has the count of its end. */
static void ages_turn(struct cpu_state *cs, uint32_t count, uint64_t from, uint64_t to)
{
	struct watch_level here = {count, count};

	for (uint32_t k = 0; k < AGES && from >> k != to >> k; k++) {
		if (k + 1 < AGES)
			cs->now[k + 1] = level_both(cs->now[k + 1], cs->now[k]);
		cs->before[k] = (to >> k) - (from >> k) > 1 ? here : cs->now[k];
		cs->now[k] = here;
	}
	level_add(&cs->now[0], count);
}

static void ages_fit(struct cpu_state *cs, uint32_t high)
{
	for (uint32_t k = 0; k < AGES; k++) {
		level_fit(&cs->now[k], high);
		level_fit(&cs->before[k], high);
	}
}

/* Sets idle and age_ms: the longest that at least an eighth of high was of no use. */
static void find_idle(struct cpu_state *cs, const struct pcptune_cpu *c, uint32_t floor,
		      uint64_t now)
{
	uint32_t keep = pcptune_max_u32(floor, watch_rests(&cs->w, now) ? 0 : cs->w.learned);
	struct watch_level l = cs->now[0];

	cs->idle = cs->age_ms = 0;
	for (uint32_t k = 0; k < AGES; k++) {
		uint64_t age = watch_min((uint64_t)AGE_US << k, now - cs->w.raised);
		uint32_t whole, need;

		l = level_both(l, cs->now[k]);
		whole = watch_whole(&cs->w, level_width(level_both(l, cs->before[k])));
		need = whole + whole / 8 + pcptune_min_u32(whole, watch_move(c));
		need = pcptune_max_u32(need, keep);
		if ((uint64_t)need + c->high / 8 + 1 > c->high)
			return; /* a longer stretch has no narrower range */
		if (age < cs->w.hold_us)
			continue;
		cs->idle = c->high - need;
		cs->age_ms = (uint32_t)(age / 1000);
	}
}

/* ---- who wants, who gives ---- */

static void watch_one(struct state *st, struct cpu_state *cs, const struct pcptune_cpu *c,
		      const struct pcptune_sample *s, struct round *r)
{
	uint64_t epoch = s->time_us / AGE_US;

	if (!cs->w.start)
		ages_begin(cs, c->count);
	watch_cpu(&cs->w, c, s, r->p[P_COLD], r->p[P_TRAFFIC]);
	ages_turn(cs, c->count, st->epoch ? st->epoch : epoch, epoch);
	watch_tally_add(&r->t, &cs->w, c);
	if (cs->w.missed < (uint32_t)r->p[P_MISS])
		return;
	r->t.missing++;
	if (!cpu_open(c)) {
		r->closed++;
		return;
	}
	cs->wanted = watch_more(&cs->w, c);
	r->want += cs->wanted - c->high;
}

static void watch_all(struct state *st, const struct pcptune_sample *s, struct round *r)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		st->cpu[i].wanted = st->cpu[i].gives = 0;
		if (cpu_used(c))
			watch_one(st, &st->cpu[i], c, s, r);
	}
	st->epoch = s->time_us / AGE_US;
	r->t.room = watch_sub0(r->t.budget, r->t.sum);
	if (r->now >= st->coming_to)
		st->coming = 0;
}

/* The CPU with the oldest idle pages that was not looked at; of equal age the one with most. */
static struct cpu_state *coldest(struct state *st, uint32_t n, uint32_t *ret_i)
{
	struct cpu_state *best = NULL;

	for (uint32_t i = 0; i < n; i++) {
		struct cpu_state *cs = &st->cpu[i];

		if (!cs->idle || cs->gives || cs->wanted ||
		    (best && (cs->age_ms < best->age_ms ||
			      (cs->age_ms == best->age_ms && cs->idle <= best->idle))))
			continue;
		best = cs;
		*ret_i = i;
	}
	return best;
}

/* Marks the CPUs that give until what is wanted beyond the room is found. */
static void find_victims(struct state *st, const struct pcptune_sample *s, struct round *r)
{
	uint64_t missing = watch_sub0(r->want, r->t.room + st->coming);

	for (uint32_t i = 0; missing && i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		st->cpu[i].idle = 0;
		if (cpu_used(c) && cpu_open(c) && watch_fixed(c))
			find_idle(&st->cpu[i], c, st->floor, r->now);
	}
	for (uint32_t n = 0; missing && n < VICTIMS_MAX; n++) {
		uint32_t i = 0, takes;
		struct cpu_state *cs = coldest(st, s->n_cpus, &i);

		if (!cs)
			return;
		/* by steps of an eighth and more, so that a CPU does not give drop by drop */
		takes = pcptune_sample_cpu(s, i)->high / 8 + 1;
		takes = (uint32_t)watch_min(cs->idle, missing > takes ? missing : takes);
		cs->gives = pcptune_sample_cpu(s, i)->high - takes;
		missing = watch_sub0(missing, takes);
		st->coming += takes;
		st->coming_to = r->now + WATCH_RETRY_US;
	}
}

/* ---- the answer ---- */

static int raise(struct state *st, struct round *r, uint32_t i, struct cpu_state *cs,
		 const struct pcptune_cpu *c)
{
	int n = watch_raise(r->d, i, R_MISSES, &cs->w, c, &r->t, cs->wanted, r->now);

	if (n > 0)
		st->coming = watch_sub0(st->coming, cs->w.given - c->high);
	return n;
}

static int take(struct round *r, uint32_t i, struct cpu_state *cs)
{
	struct pcptune_change *ch = watch_fix(r->d, i, R_COLD, cs->gives);

	if (!ch)
		return -1;
	ch->arg[0] = cs->idle;
	ch->arg[1] = cs->age_ms;
	ch->arg[2] = (int64_t)r->want;
	watch_lowered(&cs->w, cs->gives, r->now);
	ages_fit(cs, cs->gives);
	return 1;
}

static int answer_cpu(struct state *st, struct round *r, uint32_t i, const struct pcptune_cpu *c)
{
	struct cpu_state *cs = &st->cpu[i];
	uint32_t cut = watch_cut(c, &r->t, st->floor);

	if (!cpu_open(c))
		return 0;
	if (cut < c->high)
		return watch_over_budget(r->d, i, R_OVER_BUDGET, &cs->w, &r->t, cut);
	if (cs->wanted)
		return raise(st, r, i, cs, c);
	if (cs->gives)
		return take(r, i, cs);
	if (watch_take_over(&cs->w, c, r->now))
		return watch_fix(r->d, i, R_TAKE_OVER, c->high) ? 1 : -1;
	return 0;
}

static void answer_whole(const struct state *st, const struct round *r)
{
	const struct watch_tally *t = &r->t;
	struct pcptune_decision *d = r->d;

	d->reason = !t->used		      ? R_UNUSED
		    : !t->missing	      ? R_SERVED
		    : t->missing == r->closed ? R_SETTLING
		    : st->coming	      ? R_COMING
					      : R_ALL_WARM;
	d->arg[0] = t->missing ? t->missing : t->used;
	d->arg[1] = d->reason == R_COMING ? (int64_t)st->coming : (int64_t)t->sum;
	d->arg[2] = (int64_t)t->budget;
	d->rest_ms = r->unfixed || t->missing ? 0 : REST_LONG_MS;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct round r = {.p = p, .d = d, .now = s->time_us};
	struct state *st = state;

	(void)host;
	r.t.budget = watch_budget(shape, p[P_BUDGET]);
	watch_all(st, s, &r);
	find_victims(st, s, &r);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!cpu_used(c))
			continue;
		if (answer_cpu(st, &r, i, c) < 0)
			return -ENOBUFS;
		r.unfixed += !watch_fixed(c);
	}
	answer_whole(st, &r);
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "coldest",
	.version = "1.0",
	.summary = "one budget: who misses gets pages of the list that is idle longest",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.decide = decide,
};
