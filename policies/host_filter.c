/* SPDX-License-Identifier: MIT */
/*
 * What stands between a proposal and a change: pure functions of what was sampled.
 *
 * host_clamp() bounds one change on its own. host_filter() does so for a whole answer: changes of
 * CPUs that are settling or held, and changes that change nothing, are dropped; the rest share the
 * target's budget.
 *
 * The budget is shared like this: what is in use is the sum of high as sampled, where a CPU that
 * was given more but has not taken it over yet (pending) counts with what it was given. Raises are
 * served in ascending order of index from what is left. What a lowering gives free counts from the
 * next sample on, when the gauges show it. So the sum never passes the budget by our doing, not
 * even while changes are on their way, and as long as the budget has room for all raises, what one
 * CPU gets does not depend on the others.
 *
 * A CPU that was never used has high 0. Its limits are those it will begin with; it is not given
 * a high below 4, so when the budget has no room for that its high stays 0.
 */
#include <string.h>
#include <pcptune/rules.h>
#include "policies/host_internal.h"

static uint32_t keep(uint32_t v, uint32_t old)
{
	return v == PCPTUNE_KEEP ? old : v;
}

static uint32_t most_high(const struct pcptune_shape *shape)
{
	uint32_t limit = pcptune_min_u32(shape->high_limit, PCPTUNE_MAX_HIGH);

	return pcptune_max_u32(limit, POLICY_HIGH_LEAST);
}

/* The highest high this CPU may get: its own plus what the budget has left. */
static uint32_t ceiling(const struct pcptune_shape *shape, uint32_t old_high, uint64_t sum_high)
{
	uint64_t room;

	if (!shape->budget_pages)
		return UINT32_MAX;
	room = shape->budget_pages > sum_high ? shape->budget_pages - sum_high : 0;
	return room > UINT32_MAX - old_high ? UINT32_MAX : old_high + (uint32_t)room;
}

static uint32_t clamp_high(const struct limits *old, const struct limits *c, bool set,
			   uint32_t most, uint32_t ceil)
{
	uint32_t high = c->high;

	if (!set && high)
		high = pcptune_clamp_u32(high, c->high_min, c->high_max);
	if (high == old->high)
		return high;
	high = pcptune_clamp_u32(high, POLICY_HIGH_LEAST, most);
	if (high > old->high)
		high = pcptune_max_u32(pcptune_min_u32(high, ceil), old->high);
	return high < POLICY_HIGH_LEAST ? old->high : high;
}

/* Bounds around a high that is settled; c->high 0: the CPU will begin at high_min. */
static void clamp_bounds(const struct limits *old, struct limits *c, uint32_t ceil)
{
	if (c->high)
		c->high_min = pcptune_min_u32(c->high_min, c->high);
	else if (c->high_min > old->high_min)
		c->high_min = pcptune_max_u32(pcptune_min_u32(c->high_min, ceil), old->high_min);
	if (c->high_max > old->high_max)
		c->high_max = pcptune_max_u32(pcptune_min_u32(c->high_max, ceil), old->high_max);
	c->high_max = pcptune_max_u32(c->high_max, pcptune_max_u32(c->high, c->high_min));
}

static bool same(const struct limits *a, const struct limits *b)
{
	return a->high == b->high && a->high_min == b->high_min && a->high_max == b->high_max &&
	       a->batch == b->batch && a->scale_max == b->scale_max && a->rules == b->rules;
}

bool host_clamp(const struct pcptune_shape *shape, const struct limits *old, uint64_t sum_high,
		const struct limits *proposed, struct limits *ret_clamped)
{
	uint32_t most = most_high(shape), ceil = ceiling(shape, old->high, sum_high);
	struct limits c = {
		.high = keep(proposed->high, old->high),
		.high_min = keep(proposed->high_min, old->high_min),
		.high_max = keep(proposed->high_max, old->high_max),
		.batch = keep(proposed->batch, old->batch),
		.scale_max = keep(proposed->scale_max, old->scale_max),
		.rules = keep(proposed->rules, old->rules),
	};
	bool set = c.high != old->high;

	if (c.high_min != old->high_min)
		c.high_min = pcptune_min_u32(c.high_min, most);
	if (c.high_max != old->high_max)
		c.high_max = pcptune_min_u32(c.high_max, most);
	c.high = clamp_high(old, &c, set, most, ceil);
	clamp_bounds(old, &c, ceil);
	if (c.high)
		c.batch = pcptune_min_u32(c.batch, c.high);
	if (c.batch != old->batch)
		c.batch = pcptune_clamp_u32(c.batch, 1, PCPTUNE_MAX_BATCH);
	if (c.scale_max > PCPTUNE_MAX_SCALE)
		c.scale_max = old->scale_max;
	if (!pcptune_rules_known(c.rules))
		c.rules = old->rules;
	*ret_clamped = c;
	return !same(&c, old);
}

/* ---- a whole answer ---- */

static struct limits limits_of(const struct pcptune_cpu *cpu)
{
	return (struct limits){cpu->high,  cpu->high_min,  cpu->high_max,
			       cpu->batch, cpu->scale_max, cpu->rules};
}

static struct limits filled_in(const struct pcptune_change *ch, const struct limits *old)
{
	return (struct limits){
		keep(ch->high, old->high),	     keep(ch->high_min, old->high_min),
		keep(ch->high_max, old->high_max),   keep(ch->batch, old->batch),
		keep(ch->scale_max, old->scale_max), keep(ch->rules, old->rules)};
}

/* The high that counts for the budget: a raise on its way counts as done. */
static uint32_t high_in_use(const struct pcptune_cpu *cpu, uint32_t *pending)
{
	if (!(cpu->flags & PCPTUNE_CPU_SETTLING))
		*pending = 0;
	return pcptune_max_u32(cpu->high, *pending);
}

static uint64_t sum_in_use(const struct pcptune_sample *s, uint32_t *pending)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++)
		sum += high_in_use(pcptune_sample_cpu(s, i), &pending[i]);
	return sum;
}

void host_filter(const struct pcptune_shape *shape, const struct pcptune_sample *s,
		 const struct pcptune_decision *d, uint32_t *pending, struct host_change *out,
		 uint32_t *ret_n, uint32_t *ret_dropped)
{
	uint64_t sum = sum_in_use(s, pending);
	uint32_t n = 0;

	for (uint32_t i = 0; i < d->n_changes; i++) {
		const struct pcptune_change *ch =
			(const void *)((const char *)d->changes + (size_t)i * d->change_size);
		const struct pcptune_cpu *cpu = pcptune_sample_cpu(s, ch->index);
		struct host_change *c = &out[n];

		if (cpu->flags & (PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD))
			continue;
		*c = (struct host_change){.index = ch->index,
					  .zone = cpu->zone,
					  .cpu = cpu->cpu,
					  .reason = ch->reason,
					  .old = limits_of(cpu)};
		memcpy(c->arg, ch->arg, sizeof(c->arg));
		c->proposed = filled_in(ch, &c->old);
		if (!host_clamp(shape, &c->old, sum, &c->proposed, &c->clamped))
			continue;
		if (c->clamped.high > c->old.high)
			sum += c->clamped.high - c->old.high;
		pending[ch->index] = c->clamped.high;
		n++;
	}
	*ret_n = n;
	*ret_dropped = d->n_changes - n;
}
