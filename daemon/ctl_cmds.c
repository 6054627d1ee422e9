/* SPDX-License-Identifier: MIT */
/*
 * The commands of the control socket: one table of names, keys and handlers. A request with a key
 * that its command does not know is refused, so that a typing error can not be taken for "all";
 * the refusal names the nearest key that there is.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/apply.h"
#include "daemon/assign.h"
#include "daemon/attach.h"
#include "daemon/ctl.h"
#include "daemon/decide.h"
#include "daemon/journal.h"
#include "daemon/summary.h"
#include "daemon/tracing.h"
#include "lib/text.h"
#include <pcptune/rules.h>

#define KEYS_MAX 12

/* Kinds of values of a key. */
enum kind {
	KIND_TARGET, /* id or name */
	KIND_UINT,   /* 0 .. UINT32_MAX - 1 */
	KIND_TEXT,
	KIND_OBJECT,
	KIND_RULES, /* "g4" or 4 */
};

struct key {
	const char *name;
	enum kind kind;
	bool needed;
};

struct command {
	const char *name;
	bool privileged;
	void (*run)(struct daemon *d, json_t *request, struct ctl_answer *a);
	struct key keys[KEYS_MAX];
};

__attribute__((format(printf, 3, 4))) static void fail(struct ctl_answer *a, const char *code,
						       const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(a->error, sizeof(a->error), fmt, ap);
	va_end(ap);
	a->code = code;
}

/* ---- naming targets ---- */

/* "3 page_fault1, 4 sqlite3", as many as fit */
static void list_targets(struct daemon *d, const char *name, char *buf, size_t n)
{
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < d->n_targets; i++) {
		const struct target *t = d->targets[i];

		if (name && strcmp(t->info.name, name))
			continue;
		if (len + PCPTUNE_NAME_MAX + 32 > n) {
			snprintf(buf + len, n - len, " ...");
			return;
		}
		len += (size_t)snprintf(buf + len, n - len, "%s%llu %s", len ? ", " : "",
					(unsigned long long)t->id, t->info.name);
	}
}

static bool names(const json_t *which, const struct target *t)
{
	if (!which)
		return true;
	if (json_is_integer(which))
		return (uint64_t)json_integer_value(which) == t->id;
	return !strcmp(json_string_value(which), t->info.name);
}

static size_t count_named(struct daemon *d, const json_t *which)
{
	size_t n = 0;

	for (size_t i = 0; i < d->n_targets; i++)
		n += names(which, d->targets[i]);
	return n;
}

static void not_found(struct daemon *d, const json_t *which, struct ctl_answer *a)
{
	char list[256];

	list_targets(d, NULL, list, sizeof(list));
	if (json_is_integer(which))
		fail(a, "not-found", "no target %lld; targets: %s",
		     (long long)json_integer_value(which), list[0] ? list : "none");
	else
		fail(a, "not-found", "no target \"%.63s\"; targets: %s", json_string_value(which),
		     list[0] ? list : "none");
}

/* The one target that the request names; NULL: a says why not. */
static struct target *one_target(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	const json_t *which = json_object_get(request, "target");
	size_t n = count_named(d, which);
	char list[256];

	if (!n) {
		not_found(d, which, a);
		return NULL;
	}
	if (n > 1) {
		list_targets(d, json_string_value(which), list, sizeof(list));
		fail(a, "invalid", "\"%.63s\" names %zu targets, use an id: %s",
		     json_string_value(which), n, list);
		return NULL;
	}
	for (size_t i = 0; i < d->n_targets; i++) {
		if (names(which, d->targets[i]))
			return d->targets[i];
	}
	return NULL;
}

/* ---- looking ---- */

static void run_version(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	(void)request;
	a->result = show_daemon(d);
}

static void run_many(struct daemon *d, json_t *request, struct ctl_answer *a,
		     json_t *(*show)(struct target *t), json_t *o)
{
	const json_t *which = json_object_get(request, "target");
	json_t *targets = json_array();

	if (which && !count_named(d, which)) {
		not_found(d, which, a);
		json_decref(targets);
		json_decref(o);
		return;
	}
	for (size_t i = 0; i < d->n_targets; i++) {
		if (names(which, d->targets[i]))
			json_array_append_new(targets, show(d->targets[i]));
	}
	json_object_set_new(o, "targets", targets);
	a->result = o;
}

static void run_status(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	attach_drain(d->attach);
	run_many(d, request, a, show_target, json_pack("{s:o}", "daemon", show_daemon(d)));
}

static void run_targets(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	attach_drain(d->attach);
	run_many(d, request, a, show_target_line, json_object());
}

static void run_counters(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = one_target(d, request, a);

	if (t)
		a->result = show_counters(t);
}

static json_t *lock_totals(const struct totals *c)
{
	static const char *const path[] = {"alloc", "free", "agent"};
	json_t *o = json_object();

	for (int i = 0; i < 3; i++)
		json_object_set_new(o, path[i],
				    json_pack("{s:I, s:I, s:I}", "taken", (json_int_t)c->taken[i],
					      "contended", (json_int_t)c->contended[i], "wait_ns",
					      (json_int_t)c->wait_ns[i]));
	return o;
}

static json_t *contend(uint64_t wait_ns, const struct run_totals *r)
{
	if (!r->cpu_known || !r->cpu_us)
		return json_null();
	return json_real((double)wait_ns / 10.0 / (double)r->cpu_us);
}

static uint64_t waste(const struct segreader_proc *p)
{
	uint64_t given = p->malloc_pages << PCPTUNE_PAGE_SHIFT;

	return given > p->malloc_bytes ? given - p->malloc_bytes : 0;
}

static json_t *show_run(struct daemon *d, const struct run_totals *r)
{
	const struct totals *c = &r->counters;
	const char *db = journal_path(d->journal);
	char tag[24];
	json_t *o = json_object();
	const struct {
		const char *name;
		uint64_t value;
	} rows[] = {
		{"targets", r->targets},
		{"live", r->live},
		{"pages_allocated", c->alloc_pages},
		{"pages_freed", c->free_pages},
		{"alloc_zone", c->alloc_zone},
		{"free_zone", c->free_zone},
		{"alloc_direct", c->alloc_direct},
		{"free_direct", c->free_direct},
		{"refills", c->refills},
		{"drains", c->drains},
		{"free_high", c->free_high},
		{"lock_takes", c->taken[0] + c->taken[1]},
		{"lock_contended", c->contended[0] + c->contended[1]},
		{"cpu_us", r->cpu_us},
		{"pages_held", r->held},
		{"pages_held_peak", r->held_peak},
		{"decisions", r->decisions},
		{"malloc_calls", r->proc.malloc_calls},
		{"malloc_bytes", r->proc.malloc_bytes},
		{"malloc_pages", r->proc.malloc_pages},
		{"malloc_passed", r->proc.malloc_passed},
		{"waste_bytes", waste(&r->proc)},
	};

	snprintf(tag, sizeof(tag), "%016llx", (unsigned long long)r->tag);
	json_object_set_new(o, "tag", json_string(tag));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		json_object_set_new(o, rows[i].name, json_integer((json_int_t)rows[i].value));
	json_object_set_new(o, "lock", lock_totals(c));
	json_object_set_new(o, "contend_pct", contend(c->wait_ns[0] + c->wait_ns[1], r));
	json_object_set_new(o, "contend_pct_alloc", contend(c->wait_ns[0], r));
	json_object_set_new(o, "contend_pct_free", contend(c->wait_ns[1], r));
	json_object_set_new(o, "dry_run", json_boolean(r->dry_run));
	json_object_set_new(o, "db", db ? json_string(db) : json_null());
	return o;
}

static void run_summary(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	const char *text = json_string_value(json_object_get(request, "tag"));
	struct run_totals r;
	unsigned long long tag;
	char *end;

	errno = 0;
	tag = strtoull(text, &end, 16);
	if (errno || *end || strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16) {
		fail(a, "invalid", "tag \"%.40s\", allowed: 16 hexadecimal digits", text);
		return;
	}
	attach_drain(d->attach); /* a process that has just ended may still be in the queue */
	if (summary_get(d->summary, tag, &r) < 0)
		fail(a, "not-found", "no target with tag %s attached", text);
	else
		a->result = show_run(d, &r);
}

/* ---- changing ---- */

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
	fail(a, "invalid", "rules, allowed:%s", all);
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
		fail(a, "invalid", "%s %u is above %s %u, allowed: high_min <= high <= high_max",
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
			fail(a, "invalid", "%s %u, allowed: %u .. %u", limit_keys[i].name,
			     values[i], limit_keys[i].min, limit_keys[i].max);
			return false;
		}
	}
	if (!*ret_given)
		fail(a, "invalid",
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
	fail(a, "not-found", "target %llu has %u zone%s of CPUs 0 .. %u", (unsigned long long)t->id,
	     t->info.n_zones, t->info.n_zones == 1 ? "" : "s", t->info.n_cpus - 1);
	return false;
}

static struct limits limits_of_cpu(const struct pcptune_cpu *c)
{
	return (struct limits){c->high, c->high_min, c->high_max, c->batch, c->scale_max, c->rules};
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
	struct pcptune_cpu now;
	uint32_t *clamped = (uint32_t *)&ch.clamped, *proposed = (uint32_t *)&ch.proposed;

	segreader_cpu_total(t->sr, index, &now);
	ch.zone = index / t->info.n_cpus;
	ch.cpu = index % t->info.n_cpus;
	ch.old = limits_of_cpu(&now);
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
	fail(a, "failed", "the log can not be written and log.required is set: nothing is changed");
	return false;
}

static void run_set(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = one_target(d, request, a);
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
static void run_unset(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = one_target(d, request, a);
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

static bool param_text(const json_t *v, char *buf, size_t n)
{
	if (json_is_string(v))
		return (size_t)snprintf(buf, n, "%s", json_string_value(v)) < n;
	if (json_is_boolean(v))
		return (size_t)snprintf(buf, n, "%s", json_is_true(v) ? "true" : "false") < n;
	if (json_is_integer(v))
		return (size_t)snprintf(buf, n, "%lld", (long long)json_integer_value(v)) < n;
	return false;
}

static int set_params(struct choice *c, json_t *params, char *why)
{
	const char *key;
	char text[128];
	json_t *v;
	int r = 0;

	json_object_foreach (params, key, v) {
		if (!param_text(v, text, sizeof(text))) {
			snprintf(why, POLICY_WHY,
				 "parameter %.60s: a number, true, false or a string", key);
			return -EINVAL;
		}
		r = policy_params_set(c->module, c->params, key, text, why);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A request for a foreign policy, whose process is being started. */
struct waiting {
	struct daemon *d;
	uint64_t client, target;
	json_t *params;
};

static int prepare_later(void *cookie, struct choice *c, char *why)
{
	struct waiting *w = cookie;

	choice_defaults(c, w->d->config);
	return set_params(c, w->params, why);
}

static void done_later(void *cookie, int r, const char *why)
{
	struct waiting *w = cookie;
	struct target *t = target_by_id(w->d, w->target);
	struct ctl_answer a = {0};

	if (r)
		fail(&a, "invalid", "%s", why);
	else if (t)
		a.result = show_policy(t);
	ctl_later(w->d->ctl, w->client, &a);
	json_decref(w->params);
	free(w);
}

/* c->module: with the parameters it begins with; NULL: the defaults. */
static void assign_later(struct target *t, const struct policy_file *f, struct choice *c,
			 json_t *params, struct ctl_answer *a)
{
	struct waiting *w = calloc(1, sizeof(*w));
	struct assign_ops ops = {prepare_later, done_later, w};
	char why[POLICY_WHY] = "no memory";

	if (w)
		*w = (struct waiting){t->d, a->client, t->id, json_incref(params)};
	if (w && assign_foreign(t, f, c, true, &ops, why) == 0) {
		a->later = true;
		return;
	}
	fail(a, "invalid", "%s", why);
	if (w)
		json_decref(w->params);
	free(w);
}

static void assign_now(struct target *t, struct choice *c, json_t *params, struct ctl_answer *a)
{
	char why[POLICY_WHY];

	if (set_params(c, params, why) < 0 || assign(t, c, true, why) < 0)
		fail(a, "invalid", "%s", why);
}

static void new_policy(struct target *t, const char *policy, json_t *params, struct ctl_answer *a)
{
	struct choice c = {.dry_run = t->active.dry_run, .why = "by the operator"};
	char why[POLICY_WHY];
	struct policy_file f;
	int r = policy_find(policy, t->d->config->policy_path, &f, why);

	if (!r && f.foreign) {
		assign_later(t, &f, &c, params, a);
		return;
	}
	if (!r)
		r = policy_load_file(&f, &c.module, why);
	if (r < 0) {
		fail(a, r == -ENOENT ? "not-found" : "invalid", "%s", why);
		return;
	}
	choice_defaults(&c, t->d->config);
	assign_now(t, &c, params, a);
	choice_clear(&c);
}

static void new_params(struct target *t, json_t *params, struct ctl_answer *a)
{
	struct choice c;
	char why[POLICY_WHY];
	struct policy_file f;

	choice_copy(&c, &t->active);
	snprintf(c.why, sizeof(c.why), "by the operator");
	if (!policy_remote(c.module))
		assign_now(t, &c, params, a);
	else if (set_params(&c, params, why) < 0 ||
		 policy_find(policy_file(c.module), NULL, &f, why) < 0)
		fail(a, "invalid", "%s", why);
	else
		assign_later(t, &f, &c, NULL, a);
	choice_clear(&c);
}

static void run_policy(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = one_target(d, request, a);
	const char *policy = json_string_value(json_object_get(request, "policy"));
	json_t *params = json_object_get(request, "params");

	if (!t)
		return;
	if (policy)
		new_policy(t, policy, params, a);
	else if (params)
		new_params(t, params, a);
	if (!a->code && !a->later)
		a->result = show_policy(t);
}

static void run_record(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = one_target(d, request, a);
	char why[POLICY_WHY];
	int r = t ? tracing_begin(t, a->uid, &a->fd, why) : -ENOENT;

	if (r && t)
		fail(a, r == -EPERM ? "denied" : "failed", "%s", why);
	if (r)
		return;
	a->has_fd = true;
	a->result = json_pack("{s:I, s:s, s:I, s:I}", "id", (json_int_t)t->id, "name", t->info.name,
			      "pid", (json_int_t)t->pid, "uid", (json_int_t)t->uid);
}

/* ---- the table ---- */

#define TARGET                              \
	{                                   \
		"target", KIND_TARGET, true \
	}
#define TARGET_OPT                           \
	{                                    \
		"target", KIND_TARGET, false \
	}
#define WHERE                           \
	{"zone", KIND_UINT, false},     \
	{                               \
		"cpu", KIND_UINT, false \
	}
#define LIMIT_KEYS                                                           \
	{"high", KIND_UINT, false}, {"high_min", KIND_UINT, false},          \
		{"high_max", KIND_UINT, false}, {"batch", KIND_UINT, false}, \
		{"scale_max", KIND_UINT, false},                             \
	{                                                                    \
		"rules", KIND_RULES, false                                   \
	}

/* `policy` without a new policy only looks; ctl_command() knows */
static const struct command commands[] = {
	{"version", false, run_version, {{NULL, 0, false}}},
	{"status", false, run_status, {TARGET_OPT}},
	{"targets", false, run_targets, {{NULL, 0, false}}},
	{"set", true, run_set, {TARGET, WHERE, LIMIT_KEYS}},
	{"unset", true, run_unset, {TARGET, WHERE}},
	{"policy",
	 true,
	 run_policy,
	 {TARGET, {"policy", KIND_TEXT, false}, {"params", KIND_OBJECT, false}}},
	{"counters", false, run_counters, {TARGET}},
	{"record", true, run_record, {TARGET}},
	{"summary", false, run_summary, {{"tag", KIND_TEXT, true}}},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct command *find_command(const char *name, struct ctl_answer *a)
{
	const char *all[N_COMMANDS], *near;

	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
		all[i] = commands[i].name;
	}
	near = text_nearest(name, all, N_COMMANDS);
	fail(a, "invalid",
	     "unknown cmd \"%.40s\"%s%s%s; allowed: version, status, targets, set, unset, policy, "
	     "counters, record, summary",
	     name, near ? ", near: \"" : "", near ? near : "", near ? "\"" : "");
	return NULL;
}

static const char *kind_wrong(enum kind kind, const json_t *v)
{
	json_int_t i = json_integer_value(v);

	switch (kind) {
	case KIND_TARGET:
		return json_is_string(v) || (json_is_integer(v) && i > 0)
			       ? NULL
			       : "an id (a number from 1) or a name";
	case KIND_UINT:
		return json_is_integer(v) && i >= 0 && i < UINT32_MAX ? NULL : "a number from 0";
	case KIND_TEXT:
		return json_is_string(v) ? NULL : "a string";
	case KIND_OBJECT:
		return json_is_object(v) ? NULL : "an object";
	case KIND_RULES:
		return json_is_string(v) || (json_is_integer(v) && i >= 0)
			       ? NULL
			       : "the name of a generation";
	}
	return "nothing";
}

static const struct key *find_key(const struct command *c, const char *name)
{
	for (size_t i = 0; i < KEYS_MAX && c->keys[i].name; i++) {
		if (!strcmp(c->keys[i].name, name))
			return &c->keys[i];
	}
	return NULL;
}

static void unknown_key(const struct command *c, const char *name, struct ctl_answer *a)
{
	const char *all[KEYS_MAX], *near;
	size_t n = 0;

	while (n < KEYS_MAX && c->keys[n].name) {
		all[n] = c->keys[n].name;
		n++;
	}
	near = n ? text_nearest(name, all, n) : NULL;
	fail(a, "invalid", "%s has no key \"%.40s\"%s%s%s", c->name, name, near ? "; near: \"" : "",
	     near ? near : "", near ? "\"" : "");
}

static bool keys_fit(const struct command *c, json_t *request, struct ctl_answer *a)
{
	const char *name, *wrong;
	const struct key *k;
	json_t *v;

	json_object_foreach (request, name, v) {
		if (!strcmp(name, "cmd"))
			continue;
		k = find_key(c, name);
		if (!k) {
			unknown_key(c, name, a);
			return false;
		}
		wrong = kind_wrong(k->kind, v);
		if (wrong) {
			fail(a, "invalid", "%s: %s, allowed: %s", c->name, name, wrong);
			return false;
		}
	}
	for (size_t i = 0; i < KEYS_MAX && c->keys[i].name; i++) {
		if (c->keys[i].needed && !json_object_get(request, c->keys[i].name)) {
			fail(a, "invalid", "%s needs the key \"%s\"", c->name, c->keys[i].name);
			return false;
		}
	}
	return true;
}

static bool changes_things(const struct command *c, json_t *request)
{
	if (c->run != run_policy)
		return c->privileged;
	return json_object_get(request, "policy") || json_object_get(request, "params");
}

void ctl_command(struct daemon *d, json_t *request, bool privileged, uint64_t client,
		 struct ctl_answer *a)
{
	const struct command *c;
	const char *name;

	if (!json_is_object(request)) {
		fail(a, "invalid", "a request is a JSON object");
		return;
	}
	name = json_string_value(json_object_get(request, "cmd"));
	if (!name) {
		fail(a, "invalid", "a request needs \"cmd\", a string");
		return;
	}
	c = find_command(name, a);
	if (!c || !keys_fit(c, request, a))
		return;
	if (!privileged && changes_things(c, request)) {
		fail(a, "denied", "%s needs the daemon's own user or root", c->name);
		return;
	}
	a->client = client;
	c->run(d, request, a);
	if (!a->result && !a->code && !a->later)
		fail(a, "failed", "no memory");
}
