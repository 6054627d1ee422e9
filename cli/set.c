/* SPDX-License-Identifier: MIT */
/*
 * `pcptune set` and `pcptune unset`: limits by hand.
 *
 * Both only ask; the daemon clamps, journals and applies a change by hand just as one of a policy,
 * so it is in the log, too. Keys and numbers are checked here for a message that names the nearest
 * key and the range; what depends on the target is checked there.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>
#include <pcptune/rules.h>
#include <pcptune/segment.h>
#include "lib/text.h"

struct args {
	const char *socket;
	bool json;
	int64_t zone, cpu; /* -1: all */
};

#define PLACE_OPTIONS                                                       \
	{                                                                   \
		"zone",	     'z',                                           \
		"Z",	     "this zone only; default all",                 \
		cli_set_i64, offsetof(struct args, zone)},                  \
	{                                                                   \
		"cpu", 'c', "C", "this CPU only; default all", cli_set_i64, \
			offsetof(struct args, cpu)                          \
	}

const struct cli_option options_set[] = {
	PLACE_OPTIONS,
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};
const struct cli_option options_unset[] = {
	PLACE_OPTIONS,
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* ---- KEY=VALUE ---- */

static const struct set_key {
	const char *name;
	int64_t min, max;
} set_keys[] = {
	{"high", 0, PCPTUNE_MAX_HIGH},	     {"high_min", 0, PCPTUNE_MAX_HIGH},
	{"high_max", 0, PCPTUNE_MAX_HIGH},   {"batch", 1, PCPTUNE_MAX_BATCH},
	{"scale_max", 0, PCPTUNE_MAX_SCALE}, {"rules", 0, PCPTUNE_RULES_MAX},
};
#define N_KEYS (sizeof(set_keys) / sizeof(set_keys[0]))

void cli_print_limits(FILE *out)
{
	size_t i;

	for (i = 0; i < N_KEYS; i++)
		fprintf(out, "%s%s=", i ? " " : "", set_keys[i].name);
}

static int unknown_key(const char *key)
{
	const char *names[N_KEYS], *near;
	size_t i;

	for (i = 0; i < N_KEYS; i++)
		names[i] = set_keys[i].name;
	near = text_nearest(key, names, N_KEYS);
	if (near)
		return cli_usage_error("no limit \"%s\"; did you mean \"%s\"?", key, near);
	return cli_usage_error(
		"no limit \"%s\"; there are high, high_min, high_max, batch, scale_max, rules",
		key);
}

static int rules_value(const char *value, int64_t *ret)
{
	char known[160] = "";
	size_t at = 0;
	uint32_t id;

	if (pcptune_rules_parse(value, &id)) {
		*ret = id;
		return -1;
	}
	for (id = 0; id < PCPTUNE_RULES_ROWS; id++)
		at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "",
				       pcptune_rules_name(id));
	return cli_usage_error("rules=%s: not one of %s", value, known);
}

static int set_value(json_t *request, const struct set_key *k, const char *value)
{
	int64_t v;
	int r;

	if (!strcmp(k->name, "rules")) {
		r = rules_value(value, &v);
		if (r >= 0)
			return r;
		json_object_set_new(request, k->name, json_integer(v));
		return -1;
	}
	if (text_parse_i64(value, &v) || v < k->min || v > k->max)
		return cli_usage_error("%s=%s: not a number from %" PRId64 " to %" PRId64, k->name,
				       value, k->min, k->max);
	json_object_set_new(request, k->name, json_integer(v));
	return -1;
}

/* One KEY=VALUE into the request. -1, or the exit status. */
static int add_pair(json_t *request, const char *word)
{
	const char *eq = strchr(word, '=');
	char key[32];
	size_t i;

	if (!eq || eq == word)
		return cli_usage_error("\"%s\": not KEY=VALUE", word);
	snprintf(key, sizeof(key), "%.*s", (int)(eq - word), word);
	for (i = 0; i < N_KEYS; i++)
		if (!strcmp(set_keys[i].name, key))
			break;
	if (i == N_KEYS)
		return unknown_key(key);
	if (json_object_get(request, key))
		return cli_usage_error("%s is given twice", key);
	return set_value(request, &set_keys[i], eq + 1);
}

/* ---- the verbs ---- */

static json_t *new_request(const char *cmd, const struct args *a, const char *target)
{
	json_t *request = json_pack("{s:s, s:o}", "cmd", cmd, "target", cli_target(target));

	if (a->zone >= 0)
		json_object_set_new(request, "zone", json_integer(a->zone));
	if (a->cpu >= 0)
		json_object_set_new(request, "cpu", json_integer(a->cpu));
	return request;
}

static void print_changed(const json_t *result, const char *what, bool pinned)
{
	const json_t *ids = json_object_get(result, "decisions");
	size_t n = json_array_size(ids);
	json_int_t first = json_integer_value(json_array_get(ids, 0));
	uint64_t changed = cli_u64(result, "changed");

	printf("%s: %" PRIu64 " CPU%s", what, changed, changed == 1 ? "" : "s");
	if (n)
		printf("; decisions from %" JSON_INTEGER_FORMAT
		       " on (`pcptune explain %" JSON_INTEGER_FORMAT "`)",
		       first, first);
	if (pinned)
		printf("; pinned until `pcptune unset`");
	putchar('\n');
}

/* Takes the reference of request. */
static int ask(const struct args *a, json_t *request, const char *what, bool pinned)
{
	struct ctlclient *c;
	json_t *result;
	int r = cli_connect(a->socket, &c);

	if (r >= 0) {
		json_decref(request);
		return r;
	}
	r = cli_call(c, request, &result);
	ctlclient_close(c);
	if (r >= 0)
		return r;
	if (a->json)
		return cli_print_json(result);
	print_changed(result, what, pinned);
	json_decref(result);
	return CLI_OK;
}

int cmd_set(int argc, char **argv)
{
	struct args a = {.zone = -1, .cpu = -1};
	struct cli_rest rest;
	json_t *request;
	int r = cli_parse(argc, argv, &a, 2, -1, &rest), i;

	if (r >= 0)
		return r;
	request = new_request("set", &a, rest.argv[0]);
	for (i = 1; i < rest.argc; i++) {
		r = add_pair(request, rest.argv[i]);
		if (r >= 0) {
			json_decref(request);
			return r;
		}
	}
	return ask(&a, request, "changed", true);
}

int cmd_unset(int argc, char **argv)
{
	struct args a = {.zone = -1, .cpu = -1};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r >= 0)
		return r;
	return ask(&a, new_request("unset", &a, rest.argv[0]), "given back to the policy", false);
}
