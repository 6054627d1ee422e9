/* SPDX-License-Identifier: MIT */
/*
 * fraction: what the sysctl would do, the only knob that an unpatched kernel has.
 *
 *   high_fraction   vm.percpu_pagelist_high_fraction, 5.14 and later: the lists of all CPUs of a
 *		     zone together may hold 1/N of it, at least four batches each; from 6.7 on that
 *		     also switches the kernel's own tuning off (high_min = high_max)
 *   fraction        vm.percpu_pagelist_fraction, 2.6.16 to 5.13: the lists of each CPU may hold
 *		     1/N of the zone, however many CPUs there are, and batch is a quarter of that,
 *		     96 at most
 *
 * 0 is the kernel's default, N below 8 is refused as the kernel does. The kernel shares by the CPUs
 * that are online; here these are the CPUs that can run at the same time, or those in use if there
 * are more. The number only grows, and limits that somebody else sets are left for settle_ms before
 * they are set again: so nothing goes to and fro.
 */
#include "policies/common.h"

enum { P_FRACTION, P_KNOB, P_RULES, P_SETTLE, N_PARAMS };
enum { KNOB_HIGH_FRACTION, KNOB_FRACTION };

static const struct pcptune_param params[N_PARAMS] = {
	[P_FRACTION] = {"fraction", PCPTUNE_PARAM_INT, 0, 0, 1000000, 8, "",
			"value of the knob: 0, or 8 and more", NULL},
	[P_KNOB] = {"knob", PCPTUNE_PARAM_ENUM, 0, 0, 1, KNOB_HIGH_FRACTION, "",
		    "the knob of 5.14 and later, or the one before",
		    (const char *const[]){"high-fraction", "fraction", NULL}},
	[P_RULES] = {"rules", PCPTUNE_PARAM_ENUM, 0, 0, RULES_KERNEL_LAST, RULES_CHOICE_G4, "",
		     "generation of the rules", RULES_KERNEL_CHOICES},
	[P_SETTLE] = {"settle_ms", PCPTUNE_PARAM_INT, 0, 0, 3600000, 10000, "ms",
		      "how long limits that were set or cut are left before they are set again",
		      NULL},
};

enum { R_SET = 1, R_DEFAULT, R_IN_PLACE = 20, R_WAITING, R_UNUSED };

static const struct pcptune_reason reasons[] = {
	{R_SET, 0, "set",
	 "one {a}th of the memory, for {b} CPUs: high {old} -> {new:pages}, batch {c}"},
	{R_DEFAULT, 0, "default",
	 "the kernel's default: high {old} -> {new:pages} within {a:pages} .. {b:pages}"},
	{R_IN_PLACE, 1, "in-place", "all {a} CPUs in use have the limits of the knob"},
	{R_WAITING, 1, "waiting",
	 "{a} CPUs have other limits, but are settling, held by the operator or were set lately"},
	REASON_UNUSED(R_UNUSED),
};

#define FRACTION_BATCH_MAX 96u /* 8 x PAGE_SHIFT: pageset_set_high() up to 5.13 */

struct state {
	uint32_t cpus; /* of a zone */
	uint32_t reserved;
	uint64_t wait_us[]; /* of each CPU, until limits may be set again */
};

/* batch KEEP: the knob leaves it alone */
struct knob {
	uint32_t min, max, batch, rules;
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return size_of_state(shape, sizeof(struct state), sizeof(uint64_t));
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	struct state *st = state;

	if (p[P_FRACTION] >= 1 && p[P_FRACTION] < (int64_t)PCPTUNE_HIGH_FRACTION)
		return -EINVAL;
	st->cpus = (shape->host_cpus + shape->n_zones - 1) / shape->n_zones;
	return 0;
}

static const char *refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return "fraction is 0, or 8 and more";
}

static struct knob of_high_fraction(const struct pcptune_shape *shape, const int64_t *p,
				    uint32_t cpus, uint32_t rules)
{
	uint64_t managed = zone_managed(shape), low = shape->low_wmark_pages / shape->n_zones;
	uint32_t batch = pcptune_zone_batch(managed);
	struct knob k = {0, 0, PCPTUNE_KEEP, rules};

	if (p[P_FRACTION]) {
		k.min = k.max = pcptune_zone_high(managed / (uint64_t)p[P_FRACTION], cpus, batch);
		return k;
	}
	k.min = k.max = pcptune_zone_high_min(low, cpus, batch);
	/* from p7 on they are bounds within which it tunes itself */
	if (pcptune_generations[rules].bounds == PCPTUNE_BOUNDS_TUNED)
		k.max = pcptune_max_u32(k.min, pcptune_zone_high_max(managed, cpus, batch));
	return k;
}

static struct knob of_fraction(const struct pcptune_shape *shape, const int64_t *p, uint32_t rules)
{
	uint64_t managed = zone_managed(shape);
	uint32_t batch = pcptune_zone_batch(managed), high;

	if (!p[P_FRACTION])
		return (struct knob){6 * batch, 6 * batch, batch, rules};
	high = pcptune_zone_high(managed / (uint64_t)p[P_FRACTION], 1, 1);
	return (struct knob){high, high, pcptune_clamp_u32(high / 4, 1, FRACTION_BATCH_MAX), rules};
}

static struct knob wanted(const struct pcptune_shape *shape, const int64_t *p, uint32_t cpus)
{
	uint32_t rules = rules_of_choice(&params[P_RULES], p[P_RULES]);
	struct knob k = p[P_KNOB] == KNOB_FRACTION ? of_fraction(shape, p, rules)
						   : of_high_fraction(shape, p, cpus, rules);

	k.max = pcptune_min_u32(k.max, shape->high_limit);
	k.min = pcptune_min_u32(k.min, k.max);
	return k;
}

static bool in_place(const struct pcptune_cpu *c, const struct knob *k)
{
	return c->high_min == k->min && c->high_max == k->max && c->rules == k->rules &&
	       c->high >= k->min && c->high <= k->max && !differs(c->batch, k->batch);
}

static bool set(struct pcptune_decision *d, uint32_t i, const struct pcptune_cpu *c,
		const struct knob *k, const int64_t *p, uint32_t cpus)
{
	struct pcptune_change *ch = pcptune_decision_add(d, i, p[P_FRACTION] ? R_SET : R_DEFAULT);

	if (!ch)
		return false;
	ch->high = pcptune_clamp_u32(c->high, k->min, k->max);
	ch->high_min = k->min;
	ch->high_max = k->max;
	ch->batch = k->batch;
	ch->rules = k->rules;
	ch->arg[0] = p[P_FRACTION] ? p[P_FRACTION] : k->min;
	ch->arg[1] = p[P_FRACTION] ? cpus : k->max;
	ch->arg[2] = k->batch == PCPTUNE_KEEP ? c->batch : k->batch;
	return true;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	uint32_t used = count_used(s), waiting = 0;
	struct state *st = state;
	struct knob k;

	(void)host;
	st->cpus = pcptune_max_u32(st->cpus, (used + shape->n_zones - 1) / shape->n_zones);
	k = wanted(shape, p, st->cpus);
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		uint64_t *wait = &st->wait_us[i];

		*wait = *wait > s->dt_us ? *wait - s->dt_us : 0;
		if (!cpu_used(c) || in_place(c, &k))
			continue;
		waiting++;
		if (*wait || !cpu_open(c))
			continue;
		if (!set(d, i, c, &k, p, st->cpus))
			return -ENOBUFS;
		*wait = (uint64_t)p[P_SETTLE] * 1000;
	}
	d->reason = !used ? R_UNUSED : waiting ? R_WAITING : R_IN_PLACE;
	d->arg[0] = waiting ? waiting : used;
	d->rest_ms = waiting ? 0 : REST_LONG_MS;
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "fraction",
	.version = "1.0",
	.summary = "what vm.percpu_pagelist_high_fraction, or the knob before it, would set",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.refusal = refusal,
	.decide = decide,
};
