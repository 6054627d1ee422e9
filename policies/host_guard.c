/* SPDX-License-Identifier: MIT */
/*
 * The guard: what a policy changed is measured against before; what made things worse goes back.
 *
 * For each CPU it sums what went to the zone and back, waits, and pages held, in stretches of
 * guard_ms. A change begins a measurement: the sums so far are "before"; when the new values show
 * and the CPU has settled, a quarter of guard_ms lets pass by what the change itself moved, then an
 * equally long "after" begins. Further changes in the same direction belong to the same
 * measurement, so that a step up a ladder is not judged by itself, and so do changes of batch or
 * rules, so that they do not end it before the word is spoken. Then
 *
 *   worse     zone pages, or time waited, per page allocated or freed are up by the margin and by
 *	       more than a little: back to the values before, whatever the direction was
 *   holds     the zone lock was held for 65 us and longer more often for the pages that the program
 *	       took and gave back, by the margin and by more than chance: back. This is of the whole
 *	       target, since all wait for the lock, whoever holds it
 *   in vain   high was raised, more pages are held by the margin, and neither of the two is down
 *	       by the margin: back as well
 *   no word   too few pages in one of the two stretches: nothing can be said, nothing is done
 *
 * Going back benches the direction on that CPU for guard_bench_ms, twice as long each time up to an
 * hour; a change that was no worse makes that forgotten. Proposals in a benched direction are
 * dropped before the budget is shared out. The guard sees what the policy sees and nothing else,
 * and its words are in the state of the instance: so a replay of a log makes it decide the same.
 *
 * One of these per instance; only where guard_permille is not 0.
 */
#include <string.h>
#include <pcptune/rules.h>
#include "policies/host_guard.h"
#include "policies/host_internal.h"

#define TRAFFIC_LEAST 4096u    /* pages in a stretch that let something be said */
#define SHOWS_US      5000000u /* a change that does not show by then was not applied */
#define BENCH_MAX_MS  3600000u
#define LITTLE_HOLDS  16u		  /* long ones: chance below */
#define HOLDS_MAX     (UINT64_C(1) << 24) /* 16 s of each CPU's time: no interval has more */
#define COUNT_MAX     (UINT64_C(1) << 36) /* no interval has more; a damaged segment may */

const struct pcptune_param guard_params[POLICY_GUARD_PARAMS] = {
	[GUARD_PERMILLE] = {"guard_permille", PCPTUNE_PARAM_INT, 0, 0, 10000, 0, "permille",
			    "what a change may make worse before it goes back; 0: no guard", NULL},
	[GUARD_MS] = {"guard_ms", PCPTUNE_PARAM_INT, 0, 100, 600000, 5000, "ms",
		      "how long is measured before and after a change", NULL},
	[GUARD_BENCH_MS] = {"guard_bench_ms", PCPTUNE_PARAM_INT, 0, 1000, 3600000, 600000, "ms",
			    "how long a direction that made things worse is not tried", NULL},
};

const struct pcptune_reason guard_reasons[GUARD_N_REASONS] = {
	{GUARD_BACK_TRAFFIC, 0, "guard-traffic",
	 "guard: {a:permille} of the pages went to the zone or came from it before, {b:permille} "
	 "after: high {old} -> {new:pages} as it was, benched for {c:ms}"},
	{GUARD_BACK_WAITS, 0, "guard-waits",
	 "guard: {a} ns were waited for each page before, {b} after: high {old} -> {new:pages} as "
	 "it was, benched for {c:ms}"},
	{GUARD_BACK_VAIN, 0, "guard-vain",
	 "guard: {a:pages} were held before, {b:pages} after, and nothing was saved: high {old} -> "
	 "{new:pages} as it was, benched for {c:ms}"},
	{GUARD_BACK_HOLDS, 0, "guard-holds",
	 "guard: of a million pages {a} met a hold of the zone lock of 65 us or longer before, {b} "
	 "after: high {old} -> {new:pages} as it was, benched for {c:ms}"},
	{GUARD_BENCHED, 1, "guard-benched",
	 "guard: {a} changes were proposed in directions that are benched"},
};

static int direction(uint32_t from, uint32_t to)
{
	return to == PCPTUNE_KEEP || to == from ? GUARD_OTHER : to > from ? GUARD_UP : GUARD_DOWN;
}

/* ---- sums ---- */

static uint64_t sub0(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static bool plausible(const struct pcptune_cpu *c)
{
	return !(c->flags & PCPTUNE_CPU_UNKNOWN) && c->alloc_pages < COUNT_MAX &&
	       c->free_pages < COUNT_MAX && c->alloc_zone < COUNT_MAX && c->free_zone < COUNT_MAX &&
	       c->lock_alloc_wait_ns < COUNT_MAX * 16 && c->lock_free_wait_ns < COUNT_MAX * 16;
}

static uint64_t traffic_of(const struct pcptune_cpu *c)
{
	if (!(c->flags & PCPTUNE_CPU_ACTIVE) || !plausible(c))
		return 0;
	return sub0(c->alloc_pages, c->alloc_direct) + sub0(c->free_pages, c->free_direct);
}

uint64_t guard_all_traffic(const struct pcptune_sample *s)
{
	uint64_t sum = 0;

	for (uint32_t k = 0; k < s->n_active; k++)
		sum += traffic_of(pcptune_sample_cpu(s, s->active[k]));
	return sum;
}

/* Decay and trims are the doing of high, not of the program: they are no traffic. */
void guard_sum_add(struct guard_sum *g, const struct pcptune_cpu *c, const struct pcptune_sample *s,
		   uint64_t all_traffic)
{
	uint64_t ms = (s->dt_us < COUNT_MAX ? s->dt_us : COUNT_MAX) / 1000;
	uint64_t holds = pcptune_sample_long_holds(s);

	g->us += ms * 1000;
	g->held += (uint64_t)pcptune_min_u32(c->count, PCPTUNE_MAX_HIGH) * ms;
	g->all_traffic += all_traffic;
	g->long_holds += holds < HOLDS_MAX ? holds : HOLDS_MAX;
	if (!(c->flags & PCPTUNE_CPU_ACTIVE) || !plausible(c))
		return;
	g->traffic += traffic_of(c);
	g->zone += sub0(c->alloc_zone, c->alloc_direct) +
		   sub0(sub0(sub0(c->free_zone, c->free_direct), c->decay_pages), c->trim_pages);
	g->wait_ns += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
}

struct guard_sum guard_sum_both(const struct guard_sum *a, const struct guard_sum *b)
{
	return (struct guard_sum){.us = a->us + b->us,
				  .traffic = a->traffic + b->traffic,
				  .zone = a->zone + b->zone,
				  .wait_ns = a->wait_ns + b->wait_ns,
				  .held = a->held + b->held,
				  .all_traffic = a->all_traffic + b->all_traffic,
				  .long_holds = a->long_holds + b->long_holds};
}

uint64_t guard_zone_ppm(const struct guard_sum *s)
{
	return s->traffic ? s->zone * 1000000 / s->traffic : 0;
}

uint64_t guard_wait_per_page(const struct guard_sum *s)
{
	return s->traffic ? s->wait_ns / s->traffic : 0;
}

uint64_t guard_held_mean(const struct guard_sum *s)
{
	return s->us ? s->held / (s->us / 1000 + 1) : 0;
}

/* v x up / down, below 2^32 */
static uint64_t scaled(uint64_t v, uint64_t up, uint64_t down)
{
	while (up >> 32) {
		up >>= 1;
		down >>= 1;
	}
	v = v < UINT32_MAX ? v : UINT32_MAX;
	v = down ? v * up / down : UINT32_MAX;
	return v < UINT32_MAX ? v : UINT32_MAX;
}

uint64_t guard_long_ppm(const struct guard_sum *s)
{
	return s->all_traffic ? s->long_holds * 1000000 / s->all_traffic : 0;
}

/* ---- judging ---- */

bool guard_longer(const struct guard_sum *was, const struct guard_sum *is, uint64_t margin)
{
	uint64_t expected, more;

	if (!was->all_traffic || !is->all_traffic)
		return false;
	expected = scaled(was->long_holds, is->all_traffic, was->all_traffic);
	more = sub0(is->long_holds, expected + expected * margin / 1000);
	return more >= LITTLE_HOLDS && more * more >= 16 * expected;
}

bool guard_up(uint64_t was, uint64_t is, uint64_t little, uint64_t margin)
{
	return is > was + was * margin / 1000 + little;
}

bool guard_down(uint64_t was, uint64_t is, uint64_t little, uint64_t margin)
{
	return is + was * margin / 1000 < was && is + little < was;
}

/* The reason to go back and its arguments; 0: no worse. */
static uint32_t verdict(const struct guard_cpu *g, uint64_t margin, int64_t arg[4])
{
	const struct guard_sum *b = &g->base, *a = &g->after;
	uint64_t z0 = guard_zone_ppm(b), z1 = guard_zone_ppm(a), w0 = guard_wait_per_page(b),
		 w1 = guard_wait_per_page(a);
	uint64_t h0 = guard_held_mean(b), h1 = guard_held_mean(a);

	if (guard_up(z0, z1, GUARD_LITTLE_PPM, margin)) {
		arg[0] = (int64_t)(z0 / 1000);
		arg[1] = (int64_t)(z1 / 1000);
		return GUARD_BACK_TRAFFIC;
	}
	if (guard_up(w0, w1, GUARD_LITTLE_NS, margin)) {
		arg[0] = (int64_t)w0;
		arg[1] = (int64_t)w1;
		return GUARD_BACK_WAITS;
	}
	if (guard_longer(b, a, margin)) {
		arg[0] = (int64_t)guard_long_ppm(b);
		arg[1] = (int64_t)guard_long_ppm(a);
		return GUARD_BACK_HOLDS;
	}
	if (g->direction == GUARD_UP && guard_up(h0, h1, GUARD_LITTLE_PAGES, margin) &&
	    !guard_down(z0, z1, GUARD_LITTLE_PPM, margin) &&
	    !guard_down(w0, w1, GUARD_LITTLE_NS, margin)) {
		arg[0] = (int64_t)h0;
		arg[1] = (int64_t)h1;
		return GUARD_BACK_VAIN;
	}
	return 0;
}

static void judge(struct guard_cpu *g, const int64_t *p, uint64_t now)
{
	uint32_t d = g->direction, reason;
	uint64_t bench_ms;

	g->phase = GUARD_REST;
	if (g->base.traffic < TRAFFIC_LEAST || g->after.traffic < TRAFFIC_LEAST)
		return;
	reason = verdict(g, (uint64_t)p[GUARD_PERMILLE], g->arg);
	if (!reason) {
		g->bench_ms[d] = 0;
		return;
	}
	bench_ms = g->bench_ms[d] ? 2 * (uint64_t)g->bench_ms[d] : (uint64_t)p[GUARD_BENCH_MS];
	g->bench_ms[d] = (uint32_t)(bench_ms < BENCH_MAX_MS ? bench_ms : BENCH_MAX_MS);
	g->until[d] = now + (uint64_t)g->bench_ms[d] * 1000;
	g->arg[2] = g->bench_ms[d];
	g->reason = reason;
	g->phase = GUARD_BACK;
}

/* ---- a sample ---- */

/* Where rules move high between its bounds, these must do. */
bool guard_has(const struct limits *given, const struct pcptune_cpu *c)
{
	return c->high_min == given->high_min && c->high_max == given->high_max &&
	       (c->high == given->high || c->high_min < c->high_max) && c->batch == given->batch &&
	       c->scale_max == given->scale_max && c->rules == given->rules;
}

static void watch(struct guard_cpu *g, const struct pcptune_cpu *c, const int64_t *p,
		  const struct pcptune_sample *s, uint64_t all)
{
	uint64_t stretch = (uint64_t)p[GUARD_MS] * 1000;

	if (g->now.us >= stretch) {
		g->before = g->now;
		memset(&g->now, 0, sizeof(g->now));
	}
	guard_sum_add(&g->now, c, s, all);
	if (c->flags & PCPTUNE_CPU_HELD)
		g->phase = GUARD_REST; /* somebody else's values */
	if (g->phase == GUARD_SETTLES && !(c->flags & PCPTUNE_CPU_SETTLING)) {
		if (guard_has(&g->given, c)) {
			g->phase = GUARD_CALMS;
			g->since = s->time_us;
			return;
		}
		if (s->time_us - g->since >= SHOWS_US)
			g->phase = GUARD_REST;
	}
	if (g->phase == GUARD_CALMS && s->time_us - g->since >= stretch / 4) {
		g->phase = GUARD_MEASURES;
		memset(&g->after, 0, sizeof(g->after));
		return; /* this interval began before */
	}
	if (g->phase != GUARD_MEASURES)
		return;
	guard_sum_add(&g->after, c, s, all);
	if (g->after.us >= stretch)
		judge(g, p, s->time_us);
}

void guard_sample(struct guard_cpu *g, const int64_t *p, const struct pcptune_sample *s)
{
	uint64_t all = guard_all_traffic(s);

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (c->high)
			watch(&g[i], c, p, s, all);
	}
}

/* ---- what is proposed ---- */

static bool benched(const struct guard_cpu *g, const struct pcptune_change *ch,
		    const struct pcptune_cpu *c, uint64_t now)
{
	return ch->reason < GUARD_REASON_BASE && now < g->until[direction(c->high, ch->high)];
}

/* The sum of high does not become larger than it was then: what went to others may be at work. */
static bool back(struct guard_cpu *g, uint32_t index, const struct pcptune_cpu *c, uint64_t *sum,
		 struct pcptune_change *ch)
{
	uint64_t room = sub0(g->base_sum, *sum), most = c->high + room;
	struct limits old = g->old, *o = &old;

	g->phase = GUARD_REST; /* said once; the way back is not measured */
	if (o->high > most) {
		if (most < (uint64_t)c->high + c->high / 8 + 1)
			return false; /* the bench is all there is to do */
		o->high = (uint32_t)most;
		o->high_min = pcptune_min_u32(o->high_min, o->high);
		o->high_max = pcptune_min_u32(o->high_max, o->high);
	}
	*sum += sub0(o->high, c->high);
	*ch = (struct pcptune_change){.index = index,
				      .high = o->high,
				      .high_min = o->high_min,
				      .high_max = o->high_max,
				      .batch = o->batch,
				      .scale_max = o->scale_max,
				      .rules = o->rules,
				      .reason = g->reason};
	memcpy(ch->arg, g->arg, sizeof(ch->arg));
	return true;
}

struct limits guard_limits(const struct pcptune_cpu *c)
{
	return (struct limits){c->high, c->high_min, c->high_max, c->batch, c->scale_max, c->rules};
}

static uint64_t sum_high(const struct pcptune_sample *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++)
		sum += pcptune_sample_cpu(s, i)->high;
	return sum;
}

uint32_t guard_merge(struct guard_cpu *g, const struct pcptune_sample *s,
		     struct pcptune_decision *d, struct pcptune_change *out)
{
	uint64_t sum = sum_high(s);
	uint32_t n = 0, at = 0, dropped = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		const struct pcptune_change *ch = host_change_of(d, &at, i);

		/* a CPU that settles can not go back yet; what the policy says has to wait */
		if (g[i].phase == GUARD_BACK && !(c->flags & PCPTUNE_CPU_SETTLING))
			n += back(&g[i], i, c, &sum, &out[n]);
		else if (ch && (g[i].phase == GUARD_BACK || benched(&g[i], ch, c, s->time_us)))
			dropped++;
		else if (ch)
			out[n++] = *ch;
	}
	d->changes = out;
	d->change_size = sizeof(*out);
	d->n_changes = n;
	return dropped;
}

/* Does this change belong to the measurement under way? One of batch or rules alone always does. */
static bool same_measurement(const struct guard_cpu *g, int dir)
{
	return (g->phase == GUARD_SETTLES || g->phase == GUARD_CALMS ||
		g->phase == GUARD_MEASURES) &&
	       (dir == g->direction || dir == GUARD_OTHER || g->direction == GUARD_OTHER);
}

void guard_applied(struct guard_cpu *gs, const struct host_change *ch,
		   const struct pcptune_sample *s)
{
	struct guard_cpu *g = &gs[ch->index];
	int dir = direction(ch->old.high, ch->clamped.high);
	bool same = same_measurement(g, dir);

	if (ch->reason < GUARD_REASON_BASE) {
		if (!same) {
			g->old = ch->old;
			g->base = guard_sum_both(&g->before, &g->now);
			g->base_sum = sum_high(s);
		}
		if (!same || dir != GUARD_OTHER)
			g->direction = (uint8_t)dir;
		g->given = ch->clamped;
		g->phase = GUARD_SETTLES;
		g->since = s->time_us;
	}
	/* what comes before the next change is measured under this one */
	memset(&g->before, 0, sizeof(g->before));
	memset(&g->now, 0, sizeof(g->now));
}
