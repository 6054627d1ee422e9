/* SPDX-License-Identifier: MIT */
/*
 * `pcptune policies [POLICY]`: what is installed, and what a policy can be told and may say. All of
 * it comes from the descriptors of the plug-ins. One that can not be loaded is shown with the
 * reason, so that a wrong mode does not look like a missing file.
 */
#include "cli/cli.h"
#include "cli/generations.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "lib/text.h"
#include "policies/host.h"

struct args {
	const char *policy_path;
	bool json, generations, markdown;
};

const struct cli_option options_policies[] = {
	{"generations", 'g', NULL, "the generations of the list rules instead", cli_set_flag,
	 offsetof(struct args, generations)},
	{"markdown", 'm', NULL, "with --generations: as a Markdown page", cli_set_flag,
	 offsetof(struct args, markdown)},
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* ---- one policy ---- */

static const char *type_name(const struct pcptune_param *p)
{
	return p->type == PCPTUNE_PARAM_BOOL   ? "bool"
	       : p->type == PCPTUNE_PARAM_ENUM ? "enum"
					       : "int";
}

/* A value as it would be written in a configuration. */
static void value_text(const struct pcptune_param *p, int64_t v, char *buf, size_t n)
{
	if (p->type == PCPTUNE_PARAM_BOOL)
		snprintf(buf, n, "%s", v ? "true" : "false");
	else if (p->type == PCPTUNE_PARAM_ENUM)
		snprintf(buf, n, "%s", p->choices[v]);
	else
		snprintf(buf, n, "%" PRId64, v);
}

static void range_text(const struct pcptune_param *p, char *buf, size_t n)
{
	size_t at = 0;

	if (p->type == PCPTUNE_PARAM_INT)
		snprintf(buf, n, "%" PRId64 "..%" PRId64, p->min, p->max);
	else if (p->type == PCPTUNE_PARAM_BOOL)
		snprintf(buf, n, "true, false");
	else
		for (int64_t i = 0; p->choices[i] && at < n; i++)
			at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "",
					       p->choices[i]);
}

static json_t *value_json(const struct pcptune_param *p, int64_t v)
{
	if (p->type == PCPTUNE_PARAM_BOOL)
		return json_boolean(v != 0);
	if (p->type == PCPTUNE_PARAM_ENUM)
		return json_string(p->choices[v]);
	return json_integer(v);
}

static json_t *param_json(const struct pcptune_param *p)
{
	json_t *o = json_object();

	json_object_set_new(o, "name", json_string(p->name));
	json_object_set_new(o, "type", json_string(type_name(p)));
	json_object_set_new(o, "default", value_json(p, p->def));
	if (p->type == PCPTUNE_PARAM_INT) {
		json_object_set_new(o, "min", json_integer(p->min));
		json_object_set_new(o, "max", json_integer(p->max));
	}
	if (p->type == PCPTUNE_PARAM_ENUM) {
		json_t *choices = json_array();

		for (int64_t i = 0; p->choices[i]; i++)
			json_array_append_new(choices, json_string(p->choices[i]));
		json_object_set_new(o, "choices", choices);
	}
	json_object_set_new(o, "unit", json_string(p->unit));
	json_object_set_new(o, "text", json_string(p->text));
	return o;
}

/* Reasons in the order of their table. */
static const struct pcptune_reason *reason_at(const struct policy_module *m, uint32_t i)
{
	const struct pcptune_policy *d = policy_desc(m);

	return (const void *)((const char *)d->reasons + (size_t)i * d->reason_size);
}

static json_t *reason_json(const struct pcptune_reason *r)
{
	json_t *o = json_object();

	json_object_set_new(o, "id", json_integer(r->id));
	json_object_set_new(o, "name", json_string(r->name));
	json_object_set_new(o, "change", json_boolean(r->kind == 0));
	json_object_set_new(o, "sentence", json_string(r->sentence));
	return o;
}

static json_t *policy_json(const struct policy_module *m, bool all)
{
	const struct pcptune_policy *d = policy_desc(m);
	json_t *o = json_object(), *params = json_array(), *reasons = json_array();

	json_object_set_new(o, "name", json_string(d->name));
	json_object_set_new(o, "version", json_string(d->version));
	json_object_set_new(o, "summary", json_string(d->summary));
	json_object_set_new(o, "file", json_shown(policy_file(m)));
	for (uint32_t i = 0; all && i < d->n_params; i++)
		json_array_append_new(params, param_json(policy_param(m, i)));
	for (uint32_t i = 0; all && i < d->n_reasons; i++)
		json_array_append_new(reasons, reason_json(reason_at(m, i)));
	if (all) {
		json_t *host = json_array();

		for (uint32_t i = 0; policy_host_param(i); i++)
			json_array_append_new(host, param_json(policy_host_param(i)));
		json_object_set_new(o, "host_params", host);
		json_object_set(o, "params", params);
		json_object_set(o, "reasons", reasons);
	}
	json_decref(params);
	json_decref(reasons);
	return o;
}

static void param_row(struct text_table *t, const struct pcptune_param *p)
{
	char def[64], range[96];

	value_text(p, p->def, def, sizeof(def));
	range_text(p, range, sizeof(range));
	text_table_cell(t, "%s", p->name);
	text_table_cell(t, "%s", def);
	text_table_cell(t, "%s", range);
	text_table_cell(t, "%s", p->unit);
	text_table_cell(t, "%s", p->text);
	text_table_end_row(t);
}

/* The policy's own, and below them those that the host gives every policy. */
static int print_params(const struct policy_module *m)
{
	static const char *const titles[] = {"parameter", "default", "allowed", "unit", "meaning"};
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i == 1 ? '>' : '<');
	for (uint32_t i = 0; policy_param(m, i); i++)
		param_row(t, policy_param(m, i));
	for (uint32_t i = 0; policy_host_param(i); i++)
		param_row(t, policy_host_param(i));
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

static int print_reasons(const struct policy_module *m)
{
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	text_table_column(t, "reason", '<');
	text_table_column(t, "for", '<');
	text_table_column(t, "sentence", '<');
	for (uint32_t i = 0; i < policy_desc(m)->n_reasons; i++) {
		const struct pcptune_reason *r = reason_at(m, i);

		text_table_cell(t, "%s", r->name);
		text_table_cell(t, "%s", r->kind ? "no change" : "a change");
		text_table_cell(t, "%s", r->sentence);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

static int show(const char *name, const struct args *a)
{
	const struct pcptune_policy *d;
	struct policy_module *m;
	char why[POLICY_WHY] = "";
	int r = policy_load(name, a->policy_path, &m, why);

	if (r) {
		cli_error("%s", why);
		return r == -ENOENT ? CLI_DRIFT : CLI_ERROR;
	}
	d = policy_desc(m);
	if (a->json) {
		r = cli_print_json(policy_json(m, true));
	} else {
		printf("%s%s%s %s: %s\n%s\n\n", cli_bold(), d->name, cli_plain(), d->version,
		       d->summary, policy_file(m));
		r = print_params(m);
		if (r == CLI_OK)
			printf("\n");
		if (r == CLI_OK)
			r = print_reasons(m);
	}
	policy_unref(m);
	return r;
}

/* ---- all of them ---- */

static json_t *entry_json(const struct policy_module *m, const char *name, const char *why)
{
	json_t *o;

	if (m)
		return policy_json(m, false);
	o = json_object();
	json_object_set_new(o, "name", json_shown(name));
	json_object_set_new(o, "error", json_shown(why));
	return o;
}

static void entry_row(struct text_table *t, const struct policy_module *m, const char *name,
		      const char *why)
{
	text_table_cell(t, "%s", name);
	text_table_cell(t, "%s", m ? policy_desc(m)->version : "-");
	text_table_cell(t, "%s", m ? policy_desc(m)->summary : why);
	text_table_end_row(t);
}

/* Returns whether one could not be loaded. */
static bool collect(char **names, size_t n, const struct args *a, struct text_table *t,
		    json_t *array)
{
	bool bad = false;

	for (size_t i = 0; i < n; i++) {
		struct policy_module *m = NULL;
		char why[POLICY_WHY] = "";

		if (policy_load(names[i], a->policy_path, &m, why)) {
			m = NULL;
			bad = true;
		}
		if (a->json)
			json_array_append_new(array, entry_json(m, names[i], why));
		else
			entry_row(t, m, names[i], why);
		policy_unref(m);
	}
	return bad;
}

static int list(const struct args *a)
{
	struct text_table *t = text_table_new();
	json_t *o = json_object(), *array = json_array();
	const char *path = a->policy_path ? a->policy_path : policy_default_path();
	char **names;
	size_t n;
	bool bad;
	int r;

	if (!t || !array || policy_list(a->policy_path, &names, &n)) {
		text_table_free(t);
		json_decref(array);
		json_decref(o);
		return cli_error("no memory");
	}
	text_table_column(t, "policy", '<');
	text_table_column(t, "version", '<');
	text_table_column(t, "summary", '<');
	bad = collect(names, n, a, t, array);
	policy_list_free(names, n);
	json_object_set_new(o, "path", json_shown(path));
	json_object_set_new(o, "policies", array);
	r = CLI_OK;
	if (a->json)
		r = cli_print_json(json_incref(o));
	else if (n)
		text_table_print(t, stdout, text_colour(stdout));
	json_decref(o);
	text_table_free(t);
	if (!n)
		return cli_error("no policies in %s", path);
	return r == CLI_OK && bad ? CLI_ERROR : r;
}

int cmd_policies(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 1, &rest);

	if (r >= 0)
		return r;
	if (a.markdown && !a.generations)
		return cli_usage_error("--markdown goes with --generations");
	if (a.generations && rest.argc)
		return cli_usage_error("--generations takes no policy");
	if (a.generations)
		return cli_print_generations(a.markdown ? CLI_FORM_MARKDOWN
					     : a.json	? CLI_FORM_JSON
							: CLI_FORM_TEXT);
	return rest.argc ? show(rest.argv[0], &a) : list(&a);
}
