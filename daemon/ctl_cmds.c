/* SPDX-License-Identifier: MIT */
/*
 * The commands of the control socket: one table of names, keys and handlers. A request with a key
 * that its command does not know is refused, so that a typing error can not be taken for "all";
 * the refusal names the nearest key that there is.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "daemon/ctl_private.h"
#include "lib/text.h"

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

void ctl_fail(struct ctl_answer *a, const char *code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(a->error, sizeof(a->error), fmt, ap);
	va_end(ap);
	a->code = code;
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
	{"version", false, ctl_run_version, {{NULL, 0, false}}},
	{"status", false, ctl_run_status, {TARGET_OPT}},
	{"targets", false, ctl_run_targets, {{NULL, 0, false}}},
	{"set", true, ctl_run_set, {TARGET, WHERE, LIMIT_KEYS}},
	{"unset", true, ctl_run_unset, {TARGET, WHERE}},
	{"policy",
	 true,
	 ctl_run_policy,
	 {TARGET, {"policy", KIND_TEXT, false}, {"params", KIND_OBJECT, false}}},
	{"counters", false, ctl_run_counters, {TARGET}},
	{"record", true, ctl_run_record, {TARGET}},
	{"summary", false, ctl_run_summary, {{"tag", KIND_TEXT, true}}},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct command *find_command(const char *name, struct ctl_answer *a)
{
	const char *all[N_COMMANDS], *near;
	char list[160] = "";
	size_t len = 0;

	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
		all[i] = commands[i].name;
		if (len < sizeof(list))
			len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s",
						i ? ", " : "", all[i]);
	}
	near = text_nearest(name, all, N_COMMANDS);
	ctl_fail(a, "invalid", "unknown cmd \"%.40s\"%s%s%s; allowed: %s", name,
		 near ? ", near: \"" : "", near ? near : "", near ? "\"" : "", list);
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
	ctl_fail(a, "invalid", "%s has no key \"%.40s\"%s%s%s", c->name, name,
		 near ? "; near: \"" : "", near ? near : "", near ? "\"" : "");
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
			ctl_fail(a, "invalid", "%s: %s, allowed: %s", c->name, name, wrong);
			return false;
		}
	}
	for (size_t i = 0; i < KEYS_MAX && c->keys[i].name; i++) {
		if (c->keys[i].needed && !json_object_get(request, c->keys[i].name)) {
			ctl_fail(a, "invalid", "%s needs the key \"%s\"", c->name, c->keys[i].name);
			return false;
		}
	}
	return true;
}

static bool changes_things(const struct command *c, json_t *request)
{
	if (c->run != ctl_run_policy)
		return c->privileged;
	return json_object_get(request, "policy") || json_object_get(request, "params");
}

void ctl_command(struct daemon *d, json_t *request, bool privileged, uint64_t client,
		 struct ctl_answer *a)
{
	const struct command *c;
	const char *name;

	if (!json_is_object(request)) {
		ctl_fail(a, "invalid", "a request is a JSON object");
		return;
	}
	name = json_string_value(json_object_get(request, "cmd"));
	if (!name) {
		ctl_fail(a, "invalid", "a request needs \"cmd\", a string");
		return;
	}
	c = find_command(name, a);
	if (!c || !keys_fit(c, request, a))
		return;
	if (!privileged && changes_things(c, request)) {
		ctl_fail(a, "denied", "%s needs the daemon's own user or root", c->name);
		return;
	}
	a->client = client;
	c->run(d, request, a);
	if (!a->result && !a->code && !a->later)
		ctl_fail(a, "failed", "no memory");
}
