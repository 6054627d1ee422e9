/* SPDX-License-Identifier: MIT */
/*
 * Everything that can be wrong with a rule is found here, before anything is started or replaced:
 * the plug-in is loaded, each parameter is set by name, and an instance is made once for a small
 * shape, since some parameters are only wrong together. All mistakes are reported, not the first.
 *
 * A foreign policy is loaded and tried in a process of its own, and only its tables come back. So
 * this takes two calls: choices_begin() does what can be done at once, and when the processes are
 * through, choices_end() says what came of it all.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/choice.h"

/* Lines of a message under construction. */
struct lines {
	char *text;
	size_t len;
};

struct entry {
	struct choices *cs;
	const struct config_rule *rule;
	struct choice choice;
	struct foreign *trial; /* NULL: done, or not needed */
	bool bad;	       /* also where there was no memory to say why */
	struct lines wrong;
};

struct choices {
	const struct config *c; /* until choices_end() */
	choices_fn fn;
	void *cookie;
	size_t pending;
	size_t n;	   /* rules + 1 */
	struct entry at[]; /* 0: default, i + 1: rule i */
};

/* "file:line: why"; a default that stands in no file has no line. */
static void lines_add(struct entry *e, int at, const char *why)
{
	const struct config *c = e->cs->c;
	struct lines *l = &e->wrong;
	const char *file = c->file ? c->file : "built-in configuration";
	char *line, *text;
	int n;

	e->bad = true;
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
	const int64_t host[POLICY_HOST_PARAMS] = {c->guard.permille, c->guard.ms,
						  c->guard.bench_ms, 0,
						  c->canary.ms,	     c->canary.margin_permille};

	policy_params_default(ch->module, ch->params);
	memcpy(ch->params + POLICY_OWN_PARAMS, host, sizeof(host));
}

static void rule_params(struct entry *e)
{
	const struct config_rule *r = e->rule;
	char why[POLICY_WHY];

	choice_defaults(&e->choice, e->cs->c);
	policy_canary_set(e->choice.params, r->canary);
	for (size_t i = 0; i < r->n_params; i++) {
		const struct config_param *p = &r->params[i];

		if (policy_params_set(e->choice.module, e->choice.params, p->key, p->value, why) <
		    0)
			lines_add(e, p->line ? p->line : r->line, why);
	}
}

static void trial_over(struct entry *e, const char *wrong)
{
	struct choices *cs = e->cs;

	if (wrong)
		lines_add(e, e->rule->line, wrong);
	foreign_free(e->trial);
	e->trial = NULL;
	if (--cs->pending == 0)
		cs->fn(cs->cookie);
}

static void on_trial(void *cookie, enum remote_event what, const char *why)
{
	struct entry *e = cookie;

	if (what != REMOTE_LOADED) {
		trial_over(e, what == REMOTE_READY ? NULL : why);
		return;
	}
	e->choice.module = policy_ref(remote_module(foreign_remote(e->trial)));
	rule_params(e);
	if (e->bad)
		trial_over(e, NULL);
	else
		foreign_init(e->trial, e->choice.module, &policy_trial_shape, e->choice.params);
}

static void rule_here(struct entry *e, const struct policy_file *f)
{
	struct policy_instance *trial;
	char why[POLICY_WHY];

	if (policy_load_file(f, &e->choice.module, why) < 0) {
		lines_add(e, e->rule->line, why);
		return;
	}
	rule_params(e);
	if (e->bad)
		return;
	if (policy_instance_new(e->choice.module, &policy_trial_shape, e->choice.params, &trial,
				why) < 0)
		lines_add(e, e->rule->line, why);
	else
		policy_instance_free(trial);
}

static void rule_begin(struct entry *e, int i, struct foreigners *all)
{
	const struct config *c = e->cs->c;
	const struct config_rule *r = e->rule;
	char why[POLICY_WHY];
	struct policy_file f;

	rule_why(r, i, e->choice.why, sizeof(e->choice.why));
	e->choice.dry_run = r->dry_run < 0 ? c->dry_run : r->dry_run != 0;
	if (policy_find(r->policy ? r->policy : c->def.policy, c->policy_path, &f, why) < 0)
		lines_add(e, r->line, why);
	else if (!f.foreign)
		rule_here(e, &f);
	else if (foreign_new(all, &f, c, on_trial, e, &e->trial, why) < 0)
		lines_add(e, r->line, why);
	else
		e->cs->pending++;
}

int choices_begin(const struct config *c, struct foreigners *all, choices_fn fn, void *cookie,
		  struct choices **ret)
{
	struct choices *cs = calloc(1, sizeof(*cs) + (c->n_rules + 1) * sizeof(cs->at[0]));

	if (!cs)
		return -ENOMEM;
	cs->c = c;
	cs->fn = fn;
	cs->cookie = cookie;
	cs->n = c->n_rules + 1;
	for (size_t i = 0; i < cs->n; i++) {
		cs->at[i].cs = cs;
		cs->at[i].rule = i ? &c->rules[i - 1] : &c->def;
		rule_begin(&cs->at[i], (int)i - 1, all);
	}
	*ret = cs;
	return 0;
}

bool choices_pending(const struct choices *cs)
{
	return cs->pending != 0;
}

/* The lines of all entries as one text. */
static int all_wrong(struct choices *cs, char **ret)
{
	char *text = NULL, *more;

	for (size_t i = 0; i < cs->n; i++) {
		const char *line = cs->at[i].wrong.text;

		if (!line && cs->at[i].bad) {
			free(text);
			return -ENOMEM;
		}
		if (!line)
			continue;
		if (asprintf(&more, "%s%s%s", text ? text : "", text ? "\n" : "", line) < 0)
			more = NULL;
		free(text);
		text = more;
		if (!text)
			return -ENOMEM;
	}
	*ret = text;
	return text ? -EINVAL : 0;
}

int choices_end(struct choices *cs, char **ret_why)
{
	char *text = NULL;
	int r = all_wrong(cs, &text);

	for (size_t i = 0; !r && i < cs->n; i++)
		if (!cs->at[i].choice.module)
			r = -ENOMEM; /* for its message */
	cs->c = NULL;
	if (r == -EINVAL)
		*ret_why = text;
	if (r)
		choices_free(cs);
	return r;
}

void choices_free(struct choices *cs)
{
	if (!cs)
		return;
	for (size_t i = 0; i < cs->n; i++) {
		foreign_free(cs->at[i].trial);
		free(cs->at[i].wrong.text);
		choice_clear(&cs->at[i].choice);
	}
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
	return &cs->at[i + 1].choice;
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

	if (!policy_same(a->module, b->module) || a->dry_run != b->dry_run)
		return false;
	n = policy_desc(a->module)->n_params;
	return !memcmp(a->params, b->params, n * sizeof(a->params[0])) &&
	       !memcmp(a->params + POLICY_OWN_PARAMS, b->params + POLICY_OWN_PARAMS,
		       POLICY_GUARD_PARAMS * sizeof(a->params[0]));
}
