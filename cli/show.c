/* SPDX-License-Identifier: MIT */
/*
 * Values as people and programs read them: JSON lines, counts, limits, the sentence of a reason.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "policies/host.h"

int cli_print_json(json_t *value)
{
	int r = value ? json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) : -1;

	json_decref(value);
	if (r)
		return cli_error("the JSON output could not be written");
	putchar('\n');
	return CLI_OK;
}

uint64_t cli_u64(const json_t *object, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(object, key));

	return v > 0 ? (uint64_t)v : 0;
}

/* "by the operator" behind "chosen by" */
const char *cli_chosen_by(const char *why)
{
	return strncmp(why, "by ", 3) ? why : why + 3;
}

const char *cli_str(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s ? s : "";
}

bool cli_bool(const json_t *object, const char *key)
{
	return json_is_true(json_object_get(object, key));
}

char *cli_count(uint64_t v, char *buf, size_t n)
{
	char plain[24];
	int len = snprintf(plain, sizeof(plain), "%" PRIu64, v);
	size_t at = 0;
	int i;

	for (i = 0; i < len && at + 2 < n; i++) {
		if (i && (len - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = plain[i];
	}
	buf[at] = '\0';
	return buf;
}

/* ---- limits ---- */

struct limit_row {
	const char *name;
	size_t field;
};
static const struct limit_row limit_rows[] = {
	{"high", offsetof(struct log_limits, high)},
	{"high_min", offsetof(struct log_limits, high_min)},
	{"high_max", offsetof(struct log_limits, high_max)},
	{"batch", offsetof(struct log_limits, batch)},
	{"scale_max", offsetof(struct log_limits, scale_max)},
	{"rules", offsetof(struct log_limits, rules)},
};
#define N_LIMITS (sizeof(limit_rows) / sizeof(limit_rows[0]))

static uint32_t limit(const struct log_limits *l, size_t i)
{
	return *(const uint32_t *)((const char *)l + limit_rows[i].field);
}

static void limit_text(size_t i, uint32_t v, char *buf, size_t n)
{
	if (limit_rows[i].field == offsetof(struct log_limits, rules))
		snprintf(buf, n, "%s", pcptune_rules_name(v));
	else
		snprintf(buf, n, "%" PRIu32, v);
}

/*
 * A policy that moves high alone pins it between equal bounds; three numbers that say the same
 * would hide the one that matters.
 */
static bool pinned_high(const struct log_limits *old, const struct log_limits *new_)
{
	return new_->high && new_->high_min == new_->high && new_->high_max == new_->high &&
	       (old->high_min != new_->high_min || old->high_max != new_->high_max);
}

/* "high 378 -> 504 (fixed)" */
static size_t pinned_text(const struct log_limits *old, const struct log_limits *new_, char *buf,
			  size_t n)
{
	if (old->high == new_->high)
		return (size_t)snprintf(buf, n, "high fixed at %" PRIu32, new_->high);
	return (size_t)snprintf(buf, n, "high %" PRIu32 " -> %" PRIu32 " (fixed)", old->high,
				new_->high);
}

char *cli_limits_diff(const struct log_limits *old, const struct log_limits *new_, char *buf,
		      size_t n)
{
	char a[16], b[16];
	size_t i = 0, at = 0;

	buf[0] = '\0';
	if (pinned_high(old, new_)) {
		at = pinned_text(old, new_, buf, n);
		i = 3; /* after high, high_min, high_max */
	}
	for (; i < N_LIMITS && at < n; i++) {
		if (limit(old, i) == limit(new_, i))
			continue;
		limit_text(i, limit(old, i), a, sizeof(a));
		limit_text(i, limit(new_, i), b, sizeof(b));
		at += (size_t)snprintf(buf + at, n - at, "%s%s %s -> %s", at ? ", " : "",
				       limit_rows[i].name, a, b);
	}
	if (!at)
		snprintf(buf, n, "nothing");
	return buf;
}

json_t *cli_limits_json(const struct log_limits *l)
{
	json_t *o = json_object();
	size_t i;

	for (i = 0; i + 1 < N_LIMITS; i++)
		json_object_set_new(o, limit_rows[i].name, json_integer(limit(l, i)));
	json_object_set_new(o, "rules", json_string(pcptune_rules_name(l->rules)));
	return o;
}

/* ---- reasons ---- */

static const char *plug_in_path; /* NULL: the default */

void cli_reason_path(const char *dirs)
{
	plug_in_path = dirs;
}

/* A log has few policies and many rows, so each is looked for once. Lives until exit. */
static struct policy_module *plug_in(const char *name)
{
	static struct plug_in {
		char name[32];
		struct policy_module *module; /* NULL: not at hand */
	} known[32];
	static size_t n;
	char why[POLICY_WHY];
	struct plug_in *p;
	size_t i;

	for (i = 0; i < n; i++)
		if (!strcmp(known[i].name, name))
			return known[i].module;
	if (n == sizeof(known) / sizeof(known[0]))
		return NULL;
	p = &known[n++];
	snprintf(p->name, sizeof(p->name), "%s", name);
	if (!name[0] || policy_load(name, plug_in_path, &p->module, why))
		p->module = NULL;
	return p->module;
}

static void reason_plain(const struct log_decision *d, char *buf, size_t n)
{
	size_t at = (size_t)snprintf(buf, n, "%s", d->reason_name);
	int last = 3, i;

	while (last >= 0 && !d->arg[last])
		last--;
	for (i = 0; i <= last && at < n; i++)
		at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64 "%s", i ? ", " : " (",
				       d->arg[i], i == last ? ")" : "");
}

/* Changes that no policy made: names as the daemon logs them. */
static const char *without_policy(const char *name)
{
	static const struct {
		const char *name, *text;
	} table[] = {
		{"set-by-operator", "set by hand (`pcptune set`)"},
		{"unset-by-operator", "given back to the policy by hand (`pcptune unset`)"},
		{"restored-on-exit", "the daemon ended and put back what it had found"},
	};
	size_t i;

	for (i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcmp(table[i].name, name))
			return table[i].text;
	return NULL;
}

/* "at rest for {a:ms}: high {old} -> {new:pages}, x" -> "at rest for {a:ms}: x"; n: of buf */
static const char *without_change(const char *sentence, char *buf, size_t n)
{
	static const char change[] = "high {old} -> {new:pages}";
	const char *at = strstr(sentence, change), *rest;
	size_t head = at ? (size_t)(at - sentence) : 0;

	if (!at || head < 2)
		return sentence;
	rest = at + strlen(change);
	if (*rest)
		rest += strspn(rest, ", ");
	else if (!memcmp(at - 2, ": ", 2))
		head -= 2;
	else
		return sentence;
	snprintf(buf, n, "%.*s%s", (int)head, sentence, rest);
	return buf;
}

/*
 * The id alone is not enough: another version of the plug-in could use it for something else, so
 * its name must be that of the log.
 */
static char *reason_text(const struct log_decision *d, const struct log_assignment *a,
			 bool with_change, char *buf, size_t n)
{
	char sentence[512];
	bool by_hand = !strcmp(a->policy, "operator");
	struct policy_module *m = by_hand ? NULL : plug_in(a->policy);
	const char *fixed = by_hand ? without_policy(d->reason_name) : NULL;
	const struct pcptune_reason *r = m ? policy_reason(m, d->reason) : NULL;

	if (r && !strcmp(r->name, d->reason_name))
		policy_sentence(with_change
					? r->sentence
					: without_change(r->sentence, sentence, sizeof(sentence)),
				d->arg, d->old.high, d->clamped.high, buf, n);
	else if (fixed)
		snprintf(buf, n, "%s", fixed);
	else
		reason_plain(d, buf, n);
	return buf;
}

char *cli_reason(const struct log_decision *d, const struct log_assignment *a, char *buf, size_t n)
{
	return reason_text(d, a, true, buf, n);
}

char *cli_reason_short(const struct log_decision *d, const struct log_assignment *a, char *buf,
		       size_t n)
{
	return reason_text(d, a, false, buf, n);
}
