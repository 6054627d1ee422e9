/* SPDX-License-Identifier: MIT */
/*
 * `pcptune check-config FILE`: what the daemon would say about a configuration file, without a
 * daemon: the file itself (lib/config.h), then for each policy in it whether its plug-in can be
 * loaded, knows the parameters, and takes them together.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "lib/config.h"
#include "policies/host.h"

struct args {
	const char *policy_path;
	bool json;
};

const struct cli_option options_check_config[] = {
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct check {
	const char *file;
	json_t *errors;	  /* lines "file:line: what, allowed" */
	json_t *policies; /* "name version" of those that are fine */
};

static void add_error(struct check *c, int line, const char *why)
{
	char text[CLI_WHY + POLICY_WHY + 512];

	if (line > 0)
		snprintf(text, sizeof(text), "%s:%d: %s", c->file, line, why);
	else
		snprintf(text, sizeof(text), "%s: %s", c->file, why);
	json_array_append_new(c->errors, json_string(text));
}

/* An ordinary target: whether parameters go together must not depend on an odd one. */
static const struct pcptune_shape nominal = {
	.size = sizeof(struct pcptune_shape),
	.n_zones = 1,
	.n_cpus = 9,
	.host_cpus = 8,
	.managed_pages = 1u << 20,
	.low_wmark_pages = 1u << 12,
	.high_limit = 1u << 20,
	.interval_ms = 100,
};

static void check_together(struct check *c, const struct config_rule *rule, struct policy_module *m,
			   const int64_t *params)
{
	struct policy_instance *pi;
	char why[POLICY_WHY] = "";
	int r = policy_instance_new(m, &nominal, params, &pi, why);

	if (r) {
		add_error(c, rule->line, why[0] ? why : strerror(-r));
		return;
	}
	policy_instance_free(pi);
	json_array_append_new(c->policies,
			      json_sprintf("%s %s", policy_desc(m)->name, policy_desc(m)->version));
}

static void check_rule(struct check *c, const struct config_rule *rule, const char *path)
{
	int64_t params[POLICY_MAX_PARAMS];
	char why[POLICY_WHY] = "";
	struct policy_module *m;
	bool fine = true;
	size_t i;

	if (policy_load(rule->policy, path, &m, why)) {
		add_error(c, rule->line, why);
		return;
	}
	policy_params_default(m, params);
	for (i = 0; i < rule->n_params; i++) {
		const struct config_param *p = &rule->params[i];

		if (policy_params_set(m, params, p->key, p->value, why)) {
			add_error(c, p->line ? p->line : rule->line, why);
			fine = false;
		}
	}
	if (fine)
		check_together(c, rule, m, params);
	policy_unref(m);
}

static void check_policies(struct check *c, const struct config *cfg, const char *path)
{
	size_t i;

	if (!path && cfg->policy_path && cfg->policy_path[0])
		path = cfg->policy_path;
	for (i = 0; i < cfg->n_rules; i++)
		check_rule(c, &cfg->rules[i], path);
	check_rule(c, &cfg->def, path);
}

/* The lines of config_load(), each an error of its own. */
static void add_lines(struct check *c, char *why)
{
	char *save, *line;

	for (line = strtok_r(why, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		json_array_append_new(c->errors, json_string(line));
}

static void print_text(const struct check *c, size_t n_rules)
{
	json_t *v;
	size_t i;

	json_array_foreach (c->errors, i, v)
		fprintf(stderr, "%s\n", json_string_value(v));
	if (json_array_size(c->errors))
		return;
	printf("%s: fine: %zu rules and the default; policies:", c->file, n_rules);
	json_array_foreach (c->policies, i, v)
		printf("%s %s", i ? "," : "", json_string_value(v));
	putchar('\n');
}

int cmd_check_config(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	struct check c = {NULL, json_array(), json_array()};
	struct config *cfg = NULL;
	char *why = NULL;
	size_t bad;
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r < 0) {
		c.file = rest.argv[0];
		r = config_load(c.file, &cfg, &why);
		if (r && why)
			add_lines(&c, why);
		else if (r)
			add_error(&c, 0, strerror(-r));
		else
			check_policies(&c, cfg, a.policy_path);
		bad = json_array_size(c.errors);
		if (!a.json)
			print_text(&c, cfg ? cfg->n_rules : 0);
		else
			cli_print_json(json_pack("{s:s, s:b, s:O, s:O}", "file", c.file, "ok", !bad,
						 "errors", c.errors, "policies", c.policies));
		r = bad ? CLI_ERROR : CLI_OK;
	}
	free(why);
	config_free(cfg);
	json_decref(c.errors);
	json_decref(c.policies);
	return r;
}
