/* SPDX-License-Identifier: MIT */
/*
 * `set` and `unset`: limits by hand. What the operator says stands against every policy: the CPU is
 * pinned until `unset`, and bounds that he did not name give way. It goes by the same way as the
 * changes of a policy (decide.c, apply.c), with its rows in the log.
 */
#include <string.h>
#include "daemon/apply.h"
#include "daemon/ctl_private.h"
#include "daemon/decide.h"
#include "daemon/journal.h"
#include <pcptune/rules.h>

/* The limits by name, in the order of struct limits. */
static const struct {
	const char *name;
	uint32_t min, max;
} limit_keys[] = {
	{"high", 4, PCPTUNE_MAX_HIGH},	     {"high_min", 0, PCPTUNE_MAX_HIGH},
	{"high_max", 4, PCPTUNE_MAX_HIGH},   {"batch", 1, PCPTUNE_MAX_BATCH},
	{"scale_max", 0, PCPTUNE_MAX_SCALE}, {"rules", 0, PCPTUNE_RULES_MAX},
};
#define N_LIMITS (sizeof(limit_keys) / sizeof(limit_keys[0]))
_Static_assert(sizeof(struct limits) == N_LIMITS * sizeof(uint32_t), "one key for each limit");

static bool rules_value(const json_t *v, uint32_t *ret)
{
	const char *text = json_string_value(v);

	if (!text) {
		*ret = (uint32_t)json_integer_value(v);
		return json_integer_value(v) <= PCPTUNE_RULES_MAX && pcptune_rules_known(*ret);
	}
	return pcptune_rules_parse(text, ret);
}

/* "g0 g1 g4 ..." */
static void rules_wrong(struct ctl_answer *a)
{
	char all[160];
	size_t len = 0;

	for (uint32_t i = 0; i < PCPTUNE_RULES_ROWS && len < sizeof(all); i++)
		len += (size_t)snprintf(all + len, sizeof(all) - len, " %s", pcptune_rules_name(i));
	ctl_fail(a, "invalid", "rules, allowed:%s", all);
}

/* Of two values that were given, neither can be kept for the other. */
static bool limits_agree(const uint32_t *v, uint32_t given, struct ctl_answer *a)
{
	static const struct {
		size_t less, more; /* places in limit_keys */
	} pairs[] = {{1, 0}, {0, 2}, {1, 2}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		size_t x = pairs[i].less, y = pairs[i].more;

		if (!(given & 1u << x) || !(given & 1u << y) || v[x] <= v[y])
			continue;
		ctl_fail(a, "invalid",
			 "%s %u is above %s %u, allowed: high_min <= high <= high_max",
			 limit_keys[x].name, v[x], limit_keys[y].name, v[y]);
		return false;
	}
	return true;
}

/* What was asked for: values, and a bit for each one given. */
static bool limits_of_request(json_t *request, uint32_t *values, uint32_t *ret_given,
			      struct ctl_answer *a)
{
	*ret_given = 0;
	for (size_t i = 0; i < N_LIMITS; i++) {
		const json_t *v = json_object_get(request, limit_keys[i].name);

		if (!v)
			continue;
		*ret_given |= 1u << i;
		if (!strcmp(limit_keys[i].name, "rules")) {
			if (rules_value(v, &values[i]))
				continue;
			rules_wrong(a);
			return false;
		}
		values[i] = (uint32_t)json_integer_value(v);
		if (values[i] < limit_keys[i].min || values[i] > limit_keys[i].max) {
			ctl_fail(a, "invalid", "%s %u, allowed: %u .. %u", limit_keys[i].name,
				 values[i], limit_keys[i].min, limit_keys[i].max);
			return false;
		}
	}
	if (!*ret_given)
		ctl_fail(a, "invalid",
			 "nothing to set; allowed: high, high_min, high_max, batch, "
			 "scale_max, rules");
	return *ret_given && limits_agree(values, *ret_given, a);
}

/* Is this CPU meant? The zone is named by its place in status (its id). */
static bool cpu_meant(json_t *request, struct target *t, uint32_t index)
{
	const json_t *zone = json_object_get(request, "zone"),
		     *cpu = json_object_get(request, "cpu");
	struct segreader_zone z;

	if (cpu && (uint32_t)json_integer_value(cpu) != index % t->info.n_cpus)
		return false;
	if (!zone)
		return true;
	segreader_zone(t->sr, index / t->info.n_cpus, &z);
	return (uint32_t)json_integer_value(zone) == z.id;
}

static bool any_meant(json_t *request, struct target *t, struct ctl_answer *a)
{
	for (uint32_t i = 0; i < t->n; i++) {
		if (cpu_meant(request, t, i))
			return true;
	}
	ctl_fail(a, "not-found", "target %llu has %u zone%s of CPUs 0 .. %u",
		 (unsigned long long)t->id, t->info.n_zones, t->info.n_zones == 1 ? "" : "s",
		 t->info.n_cpus - 1);
	return false;
}

/*
 * The operator's word against bounds: what was given is kept, the bounds around it give way.
 * The budget is not asked: it bounds policies.
 */
static void fit(struct limits *l, uint32_t given, uint32_t high_limit)
{
	if (high_limit && l->high > high_limit)
		l->high = high_limit;
	if (given & LIMIT_HIGH) {
		if (!(given & LIMIT_HIGH_MIN) && l->high_min > l->high)
			l->high_min = l->high;
		if (!(given & LIMIT_HIGH_MAX) && l->high_max < l->high)
			l->high_max = l->high;
	}
	if (l->high_max < l->high_min) {
		if (given & LIMIT_HIGH_MAX)
			l->high_min = l->high_max;
		else
			l->high_max = l->high_min;
	}
	l->high = pcptune_clamp_u32(l->high, l->high_min, l->high_max);
	if (l->high && l->batch > l->high && !(given & LIMIT_BATCH))
		l->batch = l->high;
}

static int set_cpu(struct target *t, uint32_t index, const uint32_t *values, uint32_t given)
{
	struct host_change ch = {.index = index, .reason = OPERATOR_SET};
	uint32_t *clamped = (uint32_t *)&ch.clamped, *proposed = (uint32_t *)&ch.proposed;

	ch.zone = index / t->info.n_cpus;
	ch.cpu = index % t->info.n_cpus;
	ch.old = apply_coming(t, index);
	ch.clamped = ch.old;
	for (size_t i = 0; i < N_LIMITS; i++) {
		if (given & (1u << i))
			clamped[i] = values[i];
	}
	memcpy(proposed, clamped, sizeof(ch.proposed));
	fit(&ch.clamped, given, t->shape.high_limit);
	/* bounds that had to give way are part of what is asked for */
	for (size_t i = 0; i < N_LIMITS; i++) {
		if (clamped[i] != ((const uint32_t *)&ch.old)[i])
			given |= 1u << i;
	}
	apply_unpin(t, index);
	return decide_by_hand(t, &ch, given);
}

static json_t *decision_ids(void)
{
	json_t *ids = json_array();
	size_t n;
	const int64_t *v = decide_ids(&n);

	for (size_t i = 0; i < n; i++) {
		if (v[i] > 0)
			json_array_append_new(ids, json_integer(v[i]));
	}
	return ids;
}

static bool log_allows(struct daemon *d, struct ctl_answer *a)
{
	if (!journal_holds(d->journal))
		return true;
	ctl_fail(a, "failed",
		 "the log can not be written and log.required is set: nothing is changed");
	return false;
}

void ctl_run_set(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = ctl_one_target(d, request, a);
	uint32_t values[N_LIMITS] = {0}, given;
	uint64_t before;
	int r = 0;

	if (!t || !limits_of_request(request, values, &given, a) || !any_meant(request, t, a) ||
	    !log_allows(d, a))
		return;
	before = t->decisions;
	for (uint32_t i = 0; i < t->n && !r; i++) {
		if (cpu_meant(request, t, i))
			r = set_cpu(t, i, values, given);
	}
	decide_flush(d, false);
	if (journal_holds(d->journal)) {
		log_allows(d, a);
		return;
	}
	for (uint32_t i = 0; i < t->n; i++) {
		if (cpu_meant(request, t, i))
			apply_pin(t, i);
	}
	a->result = json_pack("{s:I, s:o}", "changed", (json_int_t)(t->decisions - before),
			      "decisions", decision_ids());
}

/* Freed CPUs keep their values; the policy sees them in its next sample. */
void ctl_run_unset(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = ctl_one_target(d, request, a);
	uint32_t changed = 0;

	if (!t || !any_meant(request, t, a))
		return;
	for (uint32_t i = 0; i < t->n; i++) {
		if (!cpu_meant(request, t, i) || !(t->marks[i].flags & (MARK_PINNED | MARK_DRIFT)))
			continue;
		apply_unpin(t, i);
		changed++;
	}
	t->rest_until_us = 0;
	if (changed)
		journal_event(d->journal, t, "unset-by-operator", "%u CPU%s", changed,
			      changed == 1 ? "" : "s");
	a->result = json_pack("{s:I}", "changed", (json_int_t)changed);
}
