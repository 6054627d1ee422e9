/* SPDX-License-Identifier: MIT */
/*
 * The canary: a policy that takes over from another begins with a share of the CPUs, and gets the
 * rest when those do better.
 *
 *   before   nobody is changed, everybody is measured for canary_ms at least, until there was
 *            traffic. Then every so manieth of the busy CPUs is chosen, one at least, all but one
 *            at most where there are two
 *   first    the policy changes the chosen ones; the others keep what they have, and look held
 *   after    measured for as long as before, a quarter of canary_ms after the first change showed
 *
 * What the chosen ones would have done unchanged is what they did before, plus what became of the
 * others since: the program may do something else by now. Held against that, by the margin and by
 * more than a little, as the guard does (host_guard.c): zone pages and time waited per page, pages
 * held; and long holds of the zone lock, of which the whole target has more or not. Better in one
 * of them, and in neither of the first two worse: spread. Else back.
 *
 * A policy that changes nothing stays in "first"; its time there goes on being "before". With one
 * busy CPU there are no others, and it is held against its own past alone.
 *
 * Pure, as the guard: a replay decides the same.
 */
#include <stdio.h>
#include <string.h>
#include "policies/host_canary.h"
#include "policies/host_internal.h"

#define TRAFFIC_LEAST 4096u	/* pages in a stretch that let something be said */
#define GIVE_UP_US    10000000u /* values that do not show, or go back, by then never will */

const struct pcptune_param canary_params[POLICY_CANARY_PARAMS] = {
	[CANARY_PERMILLE] = {"canary_permille", PCPTUNE_PARAM_INT, 0, 0, 1000, 0, "permille",
			     "share of the busy CPUs that gets a new policy first; 0: all at once",
			     NULL},
	[CANARY_MS] = {"canary_ms", PCPTUNE_PARAM_INT, 0, 100, 3600000, 30000, "ms",
		       "how long is measured before and after", NULL},
	[CANARY_MARGIN] = {"canary_margin_permille", PCPTUNE_PARAM_INT, 0, 0, 1000, 50, "permille",
			   "by so much must they do better than the others", NULL},
};

const struct pcptune_reason canary_reasons[CANARY_N_REASONS] = {
	{CANARY_BACK_WORSE, 0, "canary-worse",
	 "canary: {a:ppm} of the pages went to the zone or came from it, {b:ppm} expected; {c} ns "
	 "waited for each page, {d} expected: high {old} -> {new:pages} as it was"},
	{CANARY_BACK_SAME, 0, "canary-no-better",
	 "canary: {a:ppm} of the pages went to the zone or came from it, {b:ppm} expected; {c} ns "
	 "waited for each page, {d} expected; no better: high {old} -> {new:pages} as it was"},
	{CANARY_SPREADS, 1, "canary-spreads",
	 "canary: {a:ppm} of the pages went to the zone or came from it, {b:ppm} expected; {c} ns "
	 "waited for each page, {d} expected: every CPU gets the policy"},
	{CANARY_MEASURES, 1, "canary-measures", "canary: {a} of {b} busy CPUs have the new policy"},
	{CANARY_GAVE_UP, 1, "canary-over", "canary: nothing is changed any more"},
};

/* What is said of the whole: as the sentences above, without one CPU's values. */
static const char compared[] = "{a:ppm} of the pages went to the zone or came from it, {b:ppm} "
			       "expected; {c} ns waited for each page, {d} expected";

int policy_canary_text(uint32_t reason, const int64_t arg[4], char *buf, size_t n)
{
	static const struct {
		uint32_t reason;
		const char *text;
	} row[] = {
		{CANARY_MEASURES, "begins on {a} of {b} busy CPUs"},
		{CANARY_SPREADS, "spreads to every CPU: "},
		{CANARY_BACK_WORSE, "goes back, since it does worse: "},
		{CANARY_BACK_SAME, "goes back, since it does no better: "},
	};
	char sentence[256];

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		if (row[i].reason != reason)
			continue;
		snprintf(sentence, sizeof(sentence), "%s%s", row[i].text,
			 reason == CANARY_MEASURES ? "" : compared);
		return policy_sentence(sentence, arg, 0, 0, buf, n);
	}
	return snprintf(buf, n, "canary");
}

static void phase(struct canary *ca, uint32_t to, uint64_t now)
{
	ca->phase = to;
	ca->since = now;
}

/* ---- measuring ---- */

struct group {
	struct guard_sum base, after;
};

static struct group group(const struct canary *ca, uint32_t n, bool chosen)
{
	struct group g = {0};

	for (uint32_t i = 0; i < n; i++) {
		if ((ca->cpu[i].chosen != 0) != chosen)
			continue;
		g.base = guard_sum_both(&g.base, &ca->cpu[i].base);
		g.after = guard_sum_both(&g.after, &ca->cpu[i].after);
	}
	return g;
}

static void add(struct canary *ca, const struct pcptune_sample *s, bool after)
{
	uint64_t all = guard_all_traffic(s);

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (c->high)
			guard_sum_add(after ? &ca->cpu[i].after : &ca->cpu[i].base, c, s, all);
	}
}

/* Every CPU has the target's long holds: those of one are all. */
static struct guard_sum of_one(const struct guard_sum *sum, uint32_t n)
{
	struct guard_sum one = *sum;

	one.all_traffic /= n ? n : 1;
	one.long_holds /= n ? n : 1;
	return one;
}

/* Spread evenly over the busy ones: the first of each share. */
static void choose(struct canary *ca, uint32_t n, uint64_t permille)
{
	uint32_t busy = 0, most, at = 0;
	uint64_t want;

	for (uint32_t i = 0; i < n; i++)
		busy += ca->cpu[i].base.traffic != 0;
	want = (busy * permille + 999) / 1000;
	most = busy > 1 ? busy - 1 : busy;
	want = want > most ? most : want;
	ca->n_busy = busy;
	for (uint32_t i = 0; i < n; i++) {
		if (!ca->cpu[i].base.traffic)
			continue;
		ca->cpu[i].chosen = (at + 1) * want / busy > at * want / busy;
		ca->n_chosen += ca->cpu[i].chosen;
		at++;
	}
}

/* ---- judging ---- */

/* What it would be now without the change: as before, plus what the others' became. */
static uint64_t expected(uint64_t was, uint64_t others_were, uint64_t others_are)
{
	uint64_t v = was + others_are;

	return v > others_were ? v - others_were : 0;
}

static uint32_t verdict(struct canary *ca, uint32_t n, uint64_t margin)
{
	struct group c = group(ca, n, true), o = group(ca, n, false);
	bool alone = o.base.traffic < TRAFFIC_LEAST || o.after.traffic < TRAFFIC_LEAST;
	uint64_t z = guard_zone_ppm(&c.after), w = guard_wait_per_page(&c.after);
	uint64_t h = guard_held_mean(&c.after), ze = guard_zone_ppm(&c.base);
	uint64_t we = guard_wait_per_page(&c.base), he = guard_held_mean(&c.base);
	struct guard_sum was = of_one(&c.base, ca->n_chosen), is = of_one(&c.after, ca->n_chosen);
	bool less, more;

	if (!alone) {
		ze = expected(ze, guard_zone_ppm(&o.base), guard_zone_ppm(&o.after));
		we = expected(we, guard_wait_per_page(&o.base), guard_wait_per_page(&o.after));
		he = expected(he, guard_held_mean(&o.base), guard_held_mean(&o.after));
	}
	ca->arg[0] = (int64_t)z;
	ca->arg[1] = (int64_t)ze;
	ca->arg[2] = (int64_t)w;
	ca->arg[3] = (int64_t)we;
	if (guard_up(ze, z, GUARD_LITTLE_PPM, margin) || guard_up(we, w, GUARD_LITTLE_NS, margin) ||
	    guard_longer(&was, &is, margin))
		return CANARY_BACK_WORSE;
	less = guard_down(ze, z, GUARD_LITTLE_PPM, margin) ||
	       guard_down(we, w, GUARD_LITTLE_NS, margin);
	more = guard_up(he, h, GUARD_LITTLE_PAGES, margin);
	if (less || guard_down(he, h, GUARD_LITTLE_PAGES, margin))
		return CANARY_SPREADS;
	return more ? CANARY_BACK_WORSE : CANARY_BACK_SAME;
}

static uint32_t judge(struct canary *ca, const struct pcptune_sample *s, uint64_t margin)
{
	uint32_t r = verdict(ca, s->n_cpus, margin);

	ca->reason = r;
	phase(ca, r == CANARY_SPREADS ? CANARY_SPREAD : CANARY_BACK, s->time_us);
	return r;
}

/*
 * Whether a chosen CPU has other values than before. A program that gets no CPU time takes them
 * over late, and until then all is as it was.
 */
static bool shows(const struct canary *ca, const struct pcptune_sample *s)
{
	for (uint32_t i = 0; i < s->n_cpus; i++)
		if (ca->cpu[i].chosen && !guard_has(&ca->cpu[i].old, pcptune_sample_cpu(s, i)))
			return true;
	return false;
}

static uint64_t traffic(const struct canary *ca, uint32_t n, bool after)
{
	struct group g = group(ca, n, true);

	return after ? g.after.traffic : g.base.traffic;
}

uint32_t canary_sample(struct canary *ca, const int64_t *p, const struct pcptune_sample *s)
{
	uint64_t now = s->time_us, stretch = (uint64_t)p[CANARY_MS] * 1000;
	uint64_t for_us = now - ca->since, all = 0;

	switch (ca->phase) {
	case CANARY_BEFORE:
		if (!ca->since)
			ca->since = now - s->dt_us;
		add(ca, s, false);
		for (uint32_t i = 0; i < s->n_cpus; i++)
			all += ca->cpu[i].base.traffic;
		if (now - ca->since < stretch || all < TRAFFIC_LEAST)
			return 0;
		choose(ca, s->n_cpus, (uint64_t)p[CANARY_PERMILLE]);
		phase(ca, CANARY_FIRST, now);
		return CANARY_MEASURES;
	case CANARY_FIRST:
		add(ca, s, false);
		return 0;
	case CANARY_SHOWS:
		if (shows(ca, s) || for_us >= GIVE_UP_US)
			phase(ca, CANARY_CALMS, now);
		return 0;
	case CANARY_CALMS:
		if (for_us >= stretch / 4)
			phase(ca, CANARY_AFTER, now);
		return 0;
	case CANARY_AFTER:
		add(ca, s, true);
		if (for_us < stretch || traffic(ca, s->n_cpus, true) < TRAFFIC_LEAST)
			return 0;
		return judge(ca, s, (uint64_t)p[CANARY_MARGIN]);
	case CANARY_BACK:
		if (!shows(ca, s) || for_us > GIVE_UP_US)
			phase(ca, CANARY_OVER, now);
		return 0;
	default:
		return 0;
	}
}

/* ---- what is proposed ---- */

bool canary_free(const struct canary *ca, uint32_t index)
{
	if (ca->phase == CANARY_SPREAD)
		return true;
	return ca->phase >= CANARY_FIRST && ca->phase <= CANARY_AFTER && ca->cpu[index].chosen;
}

static bool goes_back(const struct canary *ca, uint32_t i, const struct pcptune_cpu *c)
{
	return ca->phase == CANARY_BACK && ca->cpu[i].chosen && !guard_has(&ca->cpu[i].old, c) &&
	       !(c->flags & (PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD));
}

static struct pcptune_change way_back(const struct canary *ca, uint32_t i)
{
	const struct limits *o = &ca->cpu[i].old;
	struct pcptune_change ch = {.index = i,
				    .high = o->high,
				    .high_min = o->high_min,
				    .high_max = o->high_max,
				    .batch = o->batch,
				    .scale_max = o->scale_max,
				    .rules = o->rules,
				    .reason = ca->reason};

	memcpy(ch.arg, ca->arg, sizeof(ch.arg));
	return ch;
}

/* What the whole answer says when nothing is left of it. */
static void say_why(const struct canary *ca, struct pcptune_decision *d)
{
	memset(d->arg, 0, sizeof(d->arg));
	d->reason = ca->phase == CANARY_OVER ? CANARY_GAVE_UP : CANARY_MEASURES;
	d->arg[0] = ca->n_chosen;
	d->arg[1] = ca->n_busy;
}

uint32_t canary_merge(struct canary *ca, const struct pcptune_sample *s, struct pcptune_decision *d,
		      struct pcptune_change *out)
{
	uint32_t n = 0, at = 0, dropped = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		const struct pcptune_change *ch = host_change_of(d, &at, i);

		if (ch && canary_free(ca, i))
			out[n++] = *ch;
		else
			dropped += ch != NULL;
		if (goes_back(ca, i, c))
			out[n++] = way_back(ca, i);
	}
	d->changes = out;
	d->change_size = sizeof(*out);
	d->n_changes = n;
	if (!n && ca->phase != CANARY_SPREAD)
		say_why(ca, d);
	return dropped;
}

void canary_applied(struct canary *ca, const struct host_change *ch, const struct pcptune_sample *s)
{
	if (ch->reason >= GUARD_REASON_BASE)
		return;
	if (ca->phase == CANARY_FIRST) {
		for (uint32_t i = 0; i < s->n_cpus; i++)
			ca->cpu[i].old = guard_limits(pcptune_sample_cpu(s, i));
		phase(ca, CANARY_SHOWS, s->time_us);
	}
}
