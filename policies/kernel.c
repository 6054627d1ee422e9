/* SPDX-License-Identifier: MIT */
/*
 * kernel: what the kernel does, a generation and its bounds.
 *
 * Up to p5 high is fixed. From p7 on it moves by itself between high_min and high_max, in the
 * allocator, at every refill and drain; what the kernel does once a second from a worker, the
 * decay, is done here. Bounds are those of the generation (rules.h): six batches, or the low
 * watermark, or from there to an eighth of the memory, shared by the CPUs. CPUs are those that can
 * run at the same time, or those in use if there are more of them; the number only grows, so that
 * bounds do not go to and fro. The least count between ticks, which p9 and p10 look at, is that of
 * the samples.
 *
 * Ticks of CPUs have different phases, as in the kernel, so that they do not all drain at once.
 */
#include "policies/common.h"

enum { P_RULES, P_FRACTION, P_MIN, P_MAX, P_DECAY, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_RULES] = {"rules", PCPTUNE_PARAM_ENUM, 0, 0, RULES_KERNEL_LAST, RULES_CHOICE_G4, "",
		     "generation of the rules", RULES_KERNEL_CHOICES},
	[P_FRACTION] = {"fraction", PCPTUNE_PARAM_INT, 0, 0, 1000000, 0, "",
			"as vm.percpu_pagelist_high_fraction: 0, or 8 and more for a fixed high",
			NULL},
	[P_MIN] = {"high_min", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_HIGH, 0, "pages",
		   "lower bound of high; 0: low watermark / CPUs", NULL},
	[P_MAX] = {"high_max", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_HIGH, 0, "pages",
		   "upper bound of high; 0: an eighth of the zone / CPUs", NULL},
	[P_DECAY] = {"decay_ms", PCPTUNE_PARAM_INT, 0, 0, 3600000, 1000, "ms",
		     "time between decay ticks of a CPU (p7 and later); 0: no decay", NULL},
};

enum { R_BOUNDS = 1, R_DECAY, R_STEADY, R_TICKING, R_WAITING, R_UNUSED };

static const struct pcptune_reason reasons[] = {
	{R_BOUNDS, 0, "bounds",
	 "rules {a:rules}: high {old} -> {new:pages} within {b:pages} .. {c:pages}, for {d} CPUs"},
	{R_DECAY, 0, "decay",
	 "decay tick: high {old} -> {new:pages}, bound below {a:pages}, {b:pages} on the lists"},
	{R_STEADY, 1, "steady",
	 "all {a} CPUs in use are within their bounds and have nothing to decay"},
	{R_TICKING, 1, "ticking", "{a} CPUs are above high_min, none of them has its tick now"},
	{R_WAITING, 1, "waiting", "{a} CPUs differ, but are settling or held by the operator"},
	REASON_UNUSED(R_UNUSED),
};

/* an eighth less so many times is nothing */
#define TICKS_MAX 64u
/* bounds that the host cut are not asked for at every sample */
#define PROPOSE_AGAIN_US 10000000u

struct cpu_state {
	uint64_t elapsed_us; /* since the last tick */
	uint64_t wait_us;    /* until bounds may be proposed again */
	uint32_t count_min;  /* of the samples since the last tick */
	uint32_t reserved;
};

struct state {
	uint32_t cpus; /* of a zone, for the formulas */
	uint32_t reserved;
	struct cpu_state cpu[];
};

struct bounds {
	uint32_t min, max, batch, rules;
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(struct cpu_state));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;
	uint32_t n = shape->n_zones * shape->n_cpus;

	if (p[P_FRACTION] >= 1 && p[P_FRACTION] < (int64_t)PCPTUNE_HIGH_FRACTION)
		return -EINVAL;
	if (p[P_MIN] && p[P_MAX] && p[P_MIN] > p[P_MAX])
		return -EINVAL;
	st->cpus = (shape->host_cpus + shape->n_zones - 1) / shape->n_zones;
	for (uint32_t i = 0; i < n; i++)
		st->cpu[i].elapsed_us = (uint64_t)p[P_DECAY] * 1000 * i / n;
	return 0;
}

static const char *refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	if (p[P_FRACTION] >= 1 && p[P_FRACTION] < (int64_t)PCPTUNE_HIGH_FRACTION)
		return "fraction is 0, or 8 and more";
	return "high_min is above high_max";
}

/* high_max moves high without asking: all of them together stay within the budget. */
static uint32_t within_budget(const struct pcptune_shape *shape, uint32_t cpus, uint32_t batch,
			      uint32_t high)
{
	uint64_t all = (uint64_t)cpus * shape->n_zones;

	return pcptune_min_u32(high, pcptune_zone_high(shape->budget_pages / all, 1, batch));
}

static struct bounds wanted(const struct pcptune_shape *shape, const int64_t *p, uint32_t cpus)
{
	uint64_t managed = zone_managed(shape), low = shape->low_wmark_pages / shape->n_zones;
	uint32_t rules = rules_of_choice(&params[P_RULES], p[P_RULES]);
	struct pcptune_bounds k =
		pcptune_rules_bounds(rules, managed, low, cpus, 0, (uint64_t)p[P_FRACTION]);
	struct bounds b = {k.high_min, k.high_max, PCPTUNE_KEEP, rules};

	/* the one generation whose batch follows its high */
	if (rules == PCPTUNE_RULES_G0B && p[P_FRACTION])
		b.batch = k.batch;
	if (shape->budget_pages) {
		b.max = within_budget(shape, cpus, k.batch, b.max);
		b.min = pcptune_min_u32(b.min, b.max);
	}
	if (p[P_MIN])
		b.min = (uint32_t)p[P_MIN];
	if (p[P_MAX])
		b.max = (uint32_t)p[P_MAX];
	b.max = pcptune_min_u32(pcptune_max_u32(b.max, b.min), shape->high_limit);
	b.min = pcptune_min_u32(b.min, b.max);
	return b;
}

/* Ticks that are due in this interval; those of a CPU that can not change now stay due. */
static uint32_t ticks_due(uint64_t *elapsed, uint64_t dt_us, int64_t decay_ms, bool open)
{
	uint64_t period = (uint64_t)decay_ms * 1000, n;

	*elapsed += dt_us;
	if (!period || *elapsed < period || !open)
		return 0;
	n = *elapsed / period;
	*elapsed %= period;
	return n < TICKS_MAX ? (uint32_t)n : TICKS_MAX;
}

static uint32_t decayed(struct cpu_state *cs, const struct pcptune_cpu *c, uint32_t ticks)
{
	struct pcptune_rule_state s = {.rules = c->rules,
				       .high = c->high,
				       .high_min = c->high_min,
				       .high_max = c->high_max,
				       .batch = c->batch,
				       .scale_max =
					       pcptune_min_u32(c->scale_max, PCPTUNE_MAX_SCALE),
				       .count_min = cs->count_min};
	uint32_t count = c->count;

	while (ticks--)
		count -= pcptune_rules_tick(&s, count);
	cs->count_min = s.count_min;
	return s.high;
}

static bool must_set(struct cpu_state *cs, const struct pcptune_cpu *c, const struct bounds *b,
		     uint64_t dt_us)
{
	if (!cpu_used(c) ||
	    (c->high_min == b->min && c->high_max == b->max && c->rules == b->rules &&
	     !differs(c->batch, b->batch) && c->high >= b->min && c->high <= b->max)) {
		cs->wait_us = 0;
		return false;
	}
	cs->wait_us = cs->wait_us > dt_us ? cs->wait_us - dt_us : 0;
	return cs->wait_us == 0;
}

static bool set_bounds(struct pcptune_decision *d, uint32_t i, const struct pcptune_cpu *c,
		       const struct bounds *b, uint32_t cpus)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, R_BOUNDS);

	if (!ch)
		return false;
	ch->high = pcptune_clamp_u32(c->high, b->min, b->max);
	ch->high_min = b->min;
	ch->high_max = b->max;
	ch->batch = b->batch;
	ch->rules = b->rules;
	ch->arg[0] = b->rules;
	ch->arg[1] = b->min;
	ch->arg[2] = b->max;
	ch->arg[3] = cpus;
	return true;
}

static bool tick(struct pcptune_decision *d, uint32_t i, const struct pcptune_cpu *c,
		 struct cpu_state *cs, uint32_t ticks)
{
	uint32_t high = decayed(cs, c, ticks);
	struct pcptune_change *ch;

	if (high >= c->high)
		return true;
	ch = pcptune_decision_add(d, i, R_DECAY);
	if (!ch)
		return false;
	ch->high = high;
	ch->arg[0] = c->high_min;
	ch->arg[1] = c->count;
	return true;
}

static bool decays(uint32_t rules)
{
	return pcptune_rules_known(rules) &&
	       pcptune_generations[PCPTUNE_RULES_ROW(rules)].decay != 0;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	struct state *st = state;
	uint32_t used = count_used(s), above = 0, waiting = 0;
	struct bounds b;

	(void)host;
	st->cpus = pcptune_max_u32(st->cpus, (used + shape->n_zones - 1) / shape->n_zones);
	b = wanted(shape, p, st->cpus);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct cpu_state *cs = &st->cpu[i];
		bool open = cpu_open(c), ok = true, set = must_set(cs, c, &b, s->dt_us);
		uint32_t ticks = ticks_due(&cs->elapsed_us, s->dt_us, p[P_DECAY], open);

		waiting += set;
		cs->count_min = pcptune_min_u32(cs->count_min, c->count);
		if (set && open) {
			ok = set_bounds(d, i, c, &b, st->cpus);
			cs->wait_us = PROPOSE_AGAIN_US;
		} else if (decays(c->rules) && c->high > c->high_min && p[P_DECAY]) {
			above++;
			if (ticks)
				ok = tick(d, i, c, cs, ticks);
		}
		if (!ok)
			return -ENOBUFS;
	}
	d->reason = !used ? R_UNUSED : waiting ? R_WAITING : above ? R_TICKING : R_STEADY;
	d->arg[0] = waiting ? waiting : above ? above : used;
	d->rest_ms = waiting ? 0 : above ? (uint32_t)p[P_DECAY] : REST_LONG_MS;
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "kernel",
	.version = "1.0",
	.summary = "a generation of the kernel's rules, its bounds and its decay",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.refusal = refusal,
	.decide = decide,
};
