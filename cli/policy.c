/* SPDX-License-Identifier: MIT */
/*
 * `pcptune policy`: which policy a target has and why, or another one for it; `pcptune policy new`:
 * the skeleton of one. A target whose name is "new" is reached by its id.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/policy_new.h"
#include "lib/text.h"

struct args {
	const char *socket;
	bool json;
};

const struct cli_option options_policy[] = {
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* Parameters as "key=value ..."; values may be numbers, texts or booleans. free() it. */
static char *params_text(const json_t *params)
{
	json_t *value, *object = (json_t *)params; /* the iteration does not change it */
	const char *key;
	char *text = NULL, *one;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	json_object_foreach (object, key, value) {
		one = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
		fprintf(out, "%s%s=%s", ftell(out) ? " " : "", key,
			one			   ? one
			: json_string_value(value) ? json_string_value(value)
						   : "");
		free(one);
	}
	fclose(out);
	return text;
}

static void print_one(const json_t *p)
{
	char *params = params_text(json_object_get(p, "params"));

	printf("policy      %s %s (%s)\n", cli_str(p, "policy"), cli_str(p, "version"),
	       cli_str(p, "state"));
	printf("chosen by   %s\n", cli_chosen_by(cli_str(p, "why")));
	printf("parameters  %s\n", params && params[0] ? params : "none");
	free(params);
}

/* words: [POLICY [KEY=VALUE]...]; -1, or the exit status */
static int add_policy(json_t *request, int n, char **words)
{
	json_t *params = json_object();
	int i;

	json_object_set_new(request, "policy", json_string_nocheck(words[0]));
	json_object_set_new(request, "params", params);
	for (i = 1; i < n; i++) {
		char *eq = strchr(words[i], '=');
		char key[64];

		if (!eq || eq == words[i])
			return cli_usage_error("\"%s\": not KEY=VALUE", words[i]);
		snprintf(key, sizeof(key), "%.*s", (int)(eq - words[i]), words[i]);
		if (json_object_get(params, key))
			return cli_usage_error("%s is given twice", key);
		if (json_object_set_new(params, key, json_string(eq + 1)))
			return cli_usage_error("\"%s\": not KEY=VALUE in UTF-8", words[i]);
	}
	return -1;
}

static int of_target(struct ctlclient *c, const struct args *a, const struct cli_rest *rest)
{
	json_t *request =
		json_pack("{s:s, s:o}", "cmd", "policy", "target", cli_target(rest->argv[0]));
	json_t *result;
	int r = rest->argc > 1 ? add_policy(request, rest->argc - 1, rest->argv + 1) : -1;

	if (r >= 0) {
		json_decref(request);
		return r;
	}
	r = cli_call(c, request, &result);
	if (r >= 0)
		return r;
	if (a->json)
		return cli_print_json(result);
	print_one(result);
	json_decref(result);
	return CLI_OK;
}

/* ---- all targets ---- */

static void add_row(struct text_table *t, const json_t *target, const json_t *p)
{
	char *params = params_text(json_object_get(p, "params"));

	text_table_cell(t, "%" PRIu64, cli_u64(target, "id"));
	text_table_cell(t, "%s", cli_str(target, "name"));
	text_table_cell(t, "%s", cli_str(p, "policy"));
	text_table_cell(t, "%s", cli_str(p, "version"));
	text_table_cell(t, "%s", cli_str(p, "state"));
	text_table_cell(t, "%s", cli_chosen_by(cli_str(p, "why")));
	text_table_cell(t, "%s", params ? params : "");
	text_table_end_row(t);
	free(params);
}

/* Adds "policies" of each target to list; a target that ends meanwhile is left out. */
static int collect(struct ctlclient *c, const json_t *targets, json_t *list, struct text_table *t)
{
	json_t *target, *request, *p;
	char why[CLI_WHY];
	size_t i;
	int r;

	json_array_foreach (targets, i, target) {
		request = json_pack("{s:s, s:O}", "cmd", "policy", "target",
				    json_object_get(target, "id"));
		r = ctlclient_call(c, request, 5000, &p, why);
		json_decref(request);
		if (r == -ENOENT)
			continue;
		if (r)
			return cli_error("%s", why);
		add_row(t, target, p);
		json_object_set(p, "target", json_object_get(target, "id"));
		json_object_set(p, "name", json_object_get(target, "name"));
		json_array_append_new(list, p);
	}
	return -1;
}

static int of_all(struct ctlclient *c, const struct args *a)
{
	static const char *const titles[] = {"id",    "name",	   "policy",	"version",
					     "state", "chosen by", "parameters"};
	struct text_table *t = text_table_new();
	json_t *list = json_array(), *targets = NULL;
	size_t i;
	int r = cli_call(c, json_pack("{s:s}", "cmd", "targets"), &targets);

	for (i = 0; t && i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i ? '<' : '>');
	if (r < 0)
		r = t ? collect(c, json_object_get(targets, "targets"), list, t)
		      : cli_error("no memory");
	if (r < 0 && a->json)
		r = cli_print_json(json_pack("{s:O}", "targets", list));
	else if (r < 0 && json_array_size(list))
		text_table_print(t, stdout, text_colour(stdout));
	else if (r < 0)
		printf("no targets\n");
	text_table_free(t);
	json_decref(list);
	json_decref(targets);
	return r < 0 ? CLI_OK : r;
}

/* words: NAME [DIR] */
static int policy_new(int n, char **words, bool json)
{
	if (n < 1 || n > 2)
		return cli_usage_error("policy new: NAME and perhaps DIR, not %d words", n);
	return cli_policy_new(words[0], words[n - 1], json);
}

int cmd_policy(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	struct ctlclient *c;
	int r = cli_parse(argc, argv, &a, 0, -1, &rest);

	if (r >= 0)
		return r;
	if (rest.argc && !strcmp(rest.argv[0], "new"))
		return policy_new(rest.argc - 1, rest.argv + 1, a.json);
	r = cli_connect(a.socket, &c);
	if (r >= 0)
		return r;
	r = rest.argc ? of_target(c, &a, &rest) : of_all(c, &a);
	ctlclient_close(c);
	return r;
}
