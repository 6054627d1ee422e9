/* SPDX-License-Identifier: MIT */
/*
 * static: one high and one batch for every CPU, and nothing moves them.
 *
 * With its defaults it is the kernel up to 5.13: high = 6 x batch, generation g0. It is what other
 * policies are measured against. high_min = high_max = high switches the tuning of g4 off. Values
 * that somebody else changed are set again. With keep it leaves everything alone: what the daemon
 * falls back to when another policy is benched.
 */
#include "policies/common.h"

enum { P_HIGH, P_BATCH, P_RULES, P_KEEP, N_PARAMS };

static const struct pcptune_param params[N_PARAMS] = {
	[P_HIGH] = {"high", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_HIGH, 0, "pages",
		    "limit of the lists of one CPU, 4 and more; 0: 6 x batch", NULL},
	[P_BATCH] = {"batch", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_BATCH, 0, "pages",
		     "pages moved at once; 0: left as it is", NULL},
	[P_RULES] = {"rules", PCPTUNE_PARAM_ENUM, 0, 0, RULES_LAST, RULES_CHOICE_G0, "",
		     "generation of the rules", RULES_CHOICES},
	[P_KEEP] = {"keep", PCPTUNE_PARAM_BOOL, 0, 0, 1, 0, "",
		    "every value stays as it is, whatever the others say", NULL},
};

enum { R_SET = 1, R_IN_PLACE, R_WAITING, R_UNUSED, R_KEPT };

static const struct pcptune_reason reasons[] = {
	{R_SET, 0, "set",
	 "the fixed values: high {old} -> {new:pages}, batch {a}, rules {b:rules}"},
	{R_IN_PLACE, 1, "in-place", "all {a} CPUs in use have the fixed values"},
	{R_WAITING, 1, "waiting", "{a} CPUs differ, but are settling or held by the operator"},
	REASON_UNUSED(R_UNUSED),
	{R_KEPT, 1, "kept", "every value stays as it is"},
};

static size_t state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return 0;
}

static int init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	(void)state;
	(void)shape;
	return p[P_HIGH] && p[P_HIGH] < 4 ? -EINVAL : 0;
}

static const char *refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return "high is 4 pages and more, or 0 (6 x batch)";
}

static uint32_t wanted_high(const struct pcptune_shape *shape, const int64_t *p)
{
	uint32_t batch =
		p[P_BATCH] ? (uint32_t)p[P_BATCH] : pcptune_zone_batch(zone_managed(shape));

	return p[P_HIGH] ? (uint32_t)p[P_HIGH] : 6 * batch;
}

static int decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		  const struct pcptune_sample *s, struct pcptune_decision *d,
		  const struct pcptune_host *host)
{
	uint32_t high = wanted_high(shape, p),
		 rules = rules_of_choice(&params[P_RULES], p[P_RULES]);
	uint32_t batch = p[P_BATCH] ? (uint32_t)p[P_BATCH] : PCPTUNE_KEEP;
	int64_t used = 0, waiting = 0;

	(void)state;
	(void)host;
	if (p[P_KEEP]) {
		d->reason = R_KEPT;
		d->rest_ms = REST_LONG_MS;
		return 0;
	}
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct pcptune_change *ch;

		if (!cpu_used(c))
			continue;
		used++;
		if (c->high == high && c->high_min == high && c->high_max == high &&
		    c->rules == rules && !differs(c->batch, batch))
			continue;
		waiting++;
		if (!cpu_open(c))
			continue;
		ch = pcptune_decision_add(d, i, R_SET);
		if (!ch)
			return -ENOBUFS;
		ch->high = ch->high_min = ch->high_max = high;
		ch->batch = batch;
		ch->rules = rules;
		ch->arg[0] = p[P_BATCH] ? p[P_BATCH] : (int64_t)c->batch;
		ch->arg[1] = rules;
	}
	d->reason = !used ? R_UNUSED : waiting ? R_WAITING : R_IN_PLACE;
	d->arg[0] = waiting ? waiting : used;
	d->rest_ms = waiting ? 0 : REST_LONG_MS;
	return 0;
}

const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES,
	.name = "static",
	.version = "1.0",
	.summary = "fixed high and batch on every CPU; by default the kernel's values up to 5.13",
	.params = params,
	.n_params = N_PARAMS,
	.reasons = reasons,
	.n_reasons = sizeof(reasons) / sizeof(reasons[0]),
	.state_size = state_size,
	.init = init,
	.refusal = refusal,
	.decide = decide,
};
