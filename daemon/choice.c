/* SPDX-License-Identifier: MIT */
/*
 * Everything that can be wrong with a rule is found here, before anything is started or replaced:
 * the plug-in is loaded, each parameter is set by name, and an instance is made once for a small
 * shape, since some parameters are only wrong together. All mistakes are reported, not the first.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/choice.h"

struct choices {
	size_t n;	    /* rules + 1 */
	struct choice at[]; /* 0: default, i + 1: rule i */
};

/* Lines of a message under construction. */
struct lines {
	char *text;
	size_t len;
};

/* "file:line: why"; a default that stands in no file has no line. */
static void lines_add(struct lines *l, const struct config *c, int at, const char *why)
{
	const char *file = c->file ? c->file : "built-in configuration";
	char *line, *text;
	int n;

	n = at > 0 ? asprintf(&line, "%s:%d: %s", file, at, why)
		   : asprintf(&line, "%s: %s", file, why);
	if (n < 0)
		return;
	text = realloc(l->text, l->len + (size_t)n + 2);
	if (text) {
		if (l->len)
			text[l->len++] = '\n';
		memcpy(text + l->len, line, (size_t)n + 1);
		l->len += (size_t)n;
		l->text = text;
	}
	free(line);
}

static void rule_why(const struct config_rule *r, int i, char *buf, size_t n)
{
	char uid[40] = "";

	if (i < 0) {
		snprintf(buf, n, "default");
		return;
	}
	if (r->uid >= 0)
		snprintf(uid, sizeof(uid), "%suid %lld", r->program ? ", " : "", (long long)r->uid);
	if (r->program)
		snprintf(buf, n, "rule %d (program \"%.60s\"%s)", i + 1, r->program, uid);
	else
		snprintf(buf, n, "rule %d (%s)", i + 1, uid[0] ? uid : "any program");
}

void choice_defaults(struct choice *ch, const struct config *c)
{
	const int64_t guard[POLICY_GUARD_PARAMS] = {c->guard.permille, c->guard.ms,
						    c->guard.bench_ms};

	policy_params_default(ch->module, ch->params);
	memcpy(ch->params + POLICY_OWN_PARAMS, guard, sizeof(guard));
}

static bool rule_params(const struct config *c, const struct config_rule *r, struct choice *ch,
			struct lines *l)
{
	char why[POLICY_WHY];
	bool good = true;

	choice_defaults(ch, c);
	for (size_t i = 0; i < r->n_params; i++) {
		const struct config_param *p = &r->params[i];

		if (policy_params_set(ch->module, ch->params, p->key, p->value, why) < 0) {
			lines_add(l, c, p->line ? p->line : r->line, why);
			good = false;
		}
	}
	return good;
}

static bool rule_choice(const struct config *c, const struct config_rule *r, int i,
			struct choice *ch, struct lines *l)
{
	const char *name = r->policy ? r->policy : c->def.policy;
	struct policy_instance *trial;
	char why[POLICY_WHY];

	if (policy_load(name, c->policy_path, &ch->module, why) < 0) {
		lines_add(l, c, r->line, why);
		return false;
	}
	rule_why(r, i, ch->why, sizeof(ch->why));
	ch->dry_run = r->dry_run < 0 ? c->dry_run : r->dry_run != 0;
	if (!rule_params(c, r, ch, l))
		return false;
	if (policy_instance_new(ch->module, &policy_trial_shape, ch->params, &trial, why) < 0) {
		lines_add(l, c, r->line, why);
		return false;
	}
	policy_instance_free(trial);
	return true;
}

int choices_new(const struct config *c, struct choices **ret, char **ret_why)
{
	struct choices *cs = calloc(1, sizeof(*cs) + (c->n_rules + 1) * sizeof(cs->at[0]));
	struct lines l = {NULL, 0};
	bool good = true;

	if (!cs)
		return -ENOMEM;
	cs->n = c->n_rules + 1;
	good &= rule_choice(c, &c->def, -1, &cs->at[0], &l);
	for (size_t i = 0; i < c->n_rules; i++)
		good &= rule_choice(c, &c->rules[i], (int)i, &cs->at[i + 1], &l);
	if (!good) {
		choices_free(cs);
		if (!l.text)
			return -ENOMEM;
		*ret_why = l.text;
		return -EINVAL;
	}
	*ret = cs;
	return 0;
}

void choices_free(struct choices *cs)
{
	if (!cs)
		return;
	for (size_t i = 0; i < cs->n; i++)
		choice_clear(&cs->at[i]);
	free(cs);
}

const struct choice *choices_match(const struct choices *cs, const struct config *c,
				   const char *program, int64_t uid)
{
	int i = -1;

	config_match(c, program, uid, &i);
	return choices_at(cs, i);
}

const struct choice *choices_at(const struct choices *cs, int i)
{
	return &cs->at[i + 1];
}

void choice_copy(struct choice *dst, const struct choice *src)
{
	*dst = *src;
	if (dst->module)
		policy_ref(dst->module);
}

void choice_clear(struct choice *c)
{
	if (c->module)
		policy_unref(c->module);
	memset(c, 0, sizeof(*c));
}

bool choice_same(const struct choice *a, const struct choice *b)
{
	uint32_t n;

	/* one descriptor for each loaded file, however often it is loaded */
	if (policy_desc(a->module) != policy_desc(b->module) || a->dry_run != b->dry_run)
		return false;
	n = policy_desc(a->module)->n_params;
	return !memcmp(a->params, b->params, n * sizeof(a->params[0])) &&
	       !memcmp(a->params + POLICY_OWN_PARAMS, b->params + POLICY_OWN_PARAMS,
		       POLICY_GUARD_PARAMS * sizeof(a->params[0]));
}
