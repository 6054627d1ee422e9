/* SPDX-License-Identifier: MIT */
/*
 * See combine.h. Rows come in the order of the command line: the values of the last --set of a
 * policy change fastest.
 */
#include "cli/combine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Is this --set for the policy? *ret_key: what stands after "POLICY.". */
static bool is_for(const char *set, const struct combine_policy *p, const char **ret_key)
{
	const char *names[] = {p->word, policy_desc(p->module)->name};

	for (size_t i = 0; i < 2; i++) {
		size_t n = strlen(names[i]);

		if (strncmp(set, names[i], n) != 0 || set[n] != '.')
			continue;
		*ret_key = set + n + 1;
		return true;
	}
	return false;
}

int combine_check(const struct cli_list *set, const struct combine_policy *p, size_t n,
		  const char *option)
{
	const char *key;

	for (size_t i = 0; i < set->n; i++) {
		const char *s = set->item[i], *eq = strchr(s, '=');
		bool found = false;

		if (!eq || !eq[1 + strspn(eq + 1, ",")] || !memchr(s, '.', (size_t)(eq - s)))
			return cli_usage_error("--set \"%s\": not POLICY.KEY=VALUE,...", s);
		for (size_t k = 0; k < n; k++)
			found = found || is_for(s, &p[k], &key);
		if (!found)
			return cli_usage_error("--set \"%s\": its policy is not in %s", s, option);
	}
	return -1;
}

/* "generation" is what people call the rules of the lists. */
static const char *param_name(const struct policy_module *m, const char *key)
{
	bool has = false;

	for (uint32_t i = 0; i < policy_desc(m)->n_params; i++)
		has = has || !strcmp(policy_param(m, i)->name, key);
	return !has && !strcmp(key, "generation") ? "rules" : key;
}

struct walk {
	const struct cli_list *set;
	const struct combine_policy *p;
	combine_fn fn;
	void *cookie;
};

/* All combinations from --set number `from` on. */
static int combine(const struct walk *w, const int64_t *params, size_t from)
{
	char key[64], values[512], why[POLICY_WHY], *save = NULL;
	const char *rest = NULL, *eq;
	int r = -1;

	while (from < w->set->n && !is_for(w->set->item[from], w->p, &rest))
		from++;
	if (from == w->set->n)
		return w->fn(w->cookie, w->p, params);
	eq = strchr(rest, '=');
	snprintf(key, sizeof(key), "%.*s", (int)(eq - rest), rest);
	if (snprintf(values, sizeof(values), "%s", eq + 1) >= (int)sizeof(values))
		return cli_usage_error("--set \"%.40s...\": too long", rest);
	for (char *v = strtok_r(values, ",", &save); v && r < 0; v = strtok_r(NULL, ",", &save)) {
		int64_t copy[POLICY_MAX_PARAMS];

		memcpy(copy, params, sizeof(copy));
		if (policy_params_set(w->p->module, copy, param_name(w->p->module, key), v, why))
			return cli_usage_error("%s", why);
		r = combine(w, copy, from + 1);
	}
	return r;
}

int combine_each(const struct cli_list *set, const struct combine_policy *p, combine_fn fn,
		 void *cookie)
{
	struct walk w = {set, p, fn, cookie};
	int64_t params[POLICY_MAX_PARAMS] = {0};

	policy_params_default(p->module, params);
	return combine(&w, params, 0);
}

void combine_text(const struct policy_module *m, const int64_t *params, char *buf, size_t n)
{
	int64_t def[POLICY_MAX_PARAMS];
	size_t at = 0;

	buf[0] = '\0';
	policy_params_default(m, def);
	for (uint32_t i = 0; i < policy_desc(m)->n_params && at < n; i++) {
		const struct pcptune_param *q = policy_param(m, i);
		int64_t v = params[i];

		if (v == def[i])
			continue;
		at += (size_t)snprintf(buf + at, n - at, "%s%s=", at ? " " : "", q->name);
		if (at < n && q->type == PCPTUNE_PARAM_ENUM)
			at += (size_t)snprintf(buf + at, n - at, "%s", q->choices[v]);
		else if (at < n)
			at += (size_t)snprintf(buf + at, n - at, "%" PRId64, v);
	}
}
