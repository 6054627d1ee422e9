/* SPDX-License-Identifier: MIT */
/*
 * `policy`: shows the policy of a target, gives it another one, or other parameters. A policy that
 * is not ours has a process that must be started first; the answer then comes later.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/assign.h"
#include "daemon/ctl_private.h"

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
		ctl_fail(&a, "invalid", "%s", why);
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
	ctl_fail(a, "invalid", "%s", why);
	if (w)
		json_decref(w->params);
	free(w);
}

static void assign_now(struct target *t, struct choice *c, json_t *params, struct ctl_answer *a)
{
	char why[POLICY_WHY];

	if (set_params(c, params, why) < 0 || assign(t, c, true, why) < 0)
		ctl_fail(a, "invalid", "%s", why);
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
		ctl_fail(a, r == -ENOENT ? "not-found" : "invalid", "%s", why);
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
		ctl_fail(a, "invalid", "%s", why);
	else
		assign_later(t, &f, &c, NULL, a);
	choice_clear(&c);
}

void ctl_run_policy(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = ctl_one_target(d, request, a);
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
