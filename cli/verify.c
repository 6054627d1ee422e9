/* SPDX-License-Identifier: MIT */
/*
 * `pcptune verify`: re-derives every decision of a log from its samples (eval/replay.h) and says
 * how many came out the same. Differences are lines on standard output (in JSON: an array), since
 * they are the result; the exit status is 3 then.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "eval/replay.h"

struct args {
	const char *db;
	const char *socket;
	const char *policy_path;
	bool json;
};

const struct cli_option options_verify[] = {
	CLI_OPT_DB(struct args, db),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_JSON(struct args, json),
	{0},
};

static void to_text(const char *line, void *cookie)
{
	(void)cookie;
	printf("%s\n", line);
}

static void to_array(const char *line, void *cookie)
{
	json_array_append_new(cookie, json_shown(line));
}

static void print_text(const struct verify_result *v, const char *db)
{
	char n[5][32];
	const char *s1 = v->derived == 1 ? "" : "s", *s2 = v->samples == 1 ? "" : "s";

	printf("%s: %s%s%s decision%s re-derived from %s sample%s of %s assignment%s", db,
	       cli_bold(), cli_count(v->derived, n[0], sizeof(n[0])), cli_plain(), s1,
	       cli_count(v->samples, n[1], sizeof(n[1])), s2,
	       cli_count(v->assignments, n[2], sizeof(n[2])), v->assignments == 1 ? "" : "s");
	printf(", %s%" PRIu64 " differ%s", v->differ ? cli_red() : "", v->differ,
	       v->differ ? cli_plain() : "");
	if (v->not_derivable)
		printf(", %s not derivable", cli_count(v->not_derivable, n[3], sizeof(n[3])));
	if (v->by_hand)
		printf(", %s by hand", cli_count(v->by_hand, n[4], sizeof(n[4])));
	printf("\n");
}

static int print_json(const struct verify_result *v, const char *db, json_t *lines)
{
	json_t *o = json_object();

	json_object_set_new(o, "db", json_shown(db));
	json_object_set_new(o, "ok", json_boolean(!v->differ));
	json_object_set_new(o, "assignments", json_integer((json_int_t)v->assignments));
	json_object_set_new(o, "samples", json_integer((json_int_t)v->samples));
	json_object_set_new(o, "derived", json_integer((json_int_t)v->derived));
	json_object_set_new(o, "differ", json_integer((json_int_t)v->differ));
	json_object_set_new(o, "not_derivable", json_integer((json_int_t)v->not_derivable));
	json_object_set_new(o, "by_hand", json_integer((json_int_t)v->by_hand));
	json_object_set_new(o, "report", json_incref(lines));
	return cli_print_json(o);
}

int cmd_verify(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	struct verify_result v;
	struct logstore *ls;
	json_t *lines;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest), e;

	if (r >= 0)
		return r;
	r = cli_open_log(a.db, a.socket, a.json, &ls);
	if (r >= 0)
		return r;
	lines = json_array();
	e = verify_log(ls, a.policy_path, &v, a.json ? to_array : to_text, lines);
	if (e && e != -EUCLEAN) {
		const char *text = logstore_error(ls);

		r = cli_log_error(ls, text && *text ? text : strerror(-e));
	} else {
		r = a.json ? print_json(&v, logstore_path(ls), lines) : CLI_OK;
		if (!a.json)
			print_text(&v, logstore_path(ls));
		if (r == CLI_OK && e)
			r = CLI_DRIFT;
	}
	json_decref(lines);
	logstore_close(ls);
	return r;
}
