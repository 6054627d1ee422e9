/* SPDX-License-Identifier: MIT */
/*
 * `pcptune apply` and `pcptune revert`: what `advise` said, and back.
 *
 * Both ask the daemon to `set`, CPU by CPU, so every change is clamped, logged and pinned as one by
 * hand. Before the first change the values and pins that are replaced are written into the file of
 * the advice, and after the last one what was reached. `revert` leaves alone what
 * somebody changed since.
 *
 * Lowerings come first: what they free is there for those that are raised.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/advice.h"

static const char *const limit_keys[] = {"high",  "high_min",  "high_max",
					 "batch", "scale_max", "rules"};
#define N_LIMIT_KEYS (sizeof(limit_keys) / sizeof(limit_keys[0]))

struct args {
	const char *db, *socket;
	bool json;
};

const struct cli_option options_apply[] = {
	CLI_OPT_DB(struct args, db),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};
const struct cli_option options_revert[] = {
	CLI_OPT_DB(struct args, db),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct work {
	const struct args *a;
	struct ctlclient *c;
	json_t *advice, *status; /* references */
	const json_t *target;	 /* of status */
	int64_t row;		 /* 0: all */
	bool back;		 /* revert */
	uint64_t changed, left;
	uint64_t by_hand; /* CPUs whose values were pinned before */
	json_t *decisions;
	char *log; /* malloc'ed */
};

/* ---- the target as it is ---- */

static int find_target(struct work *w)
{
	const json_t *want = json_object_get(w->advice, "target"), *targets, *t;
	uint64_t pid = cli_u64(want, "pid");
	size_t i, n = 0;
	int r = cli_call(w->c, json_pack("{s:s}", "cmd", "status"), &w->status);

	if (r >= 0)
		return r;
	targets = json_object_get(w->status, "targets");
	json_array_foreach (targets, i, t)
		if (!strcmp(cli_str(t, "name"), cli_str(want, "name")) &&
		    (!pid || cli_u64(t, "pid") == pid)) {
			w->target = t;
			n++;
		}
	if (n == 1)
		return -1;
	cli_error(n ? "%s (process %" PRIu64 "): there are several now"
		    : "%s (process %" PRIu64 ") is no target any more",
		  cli_str(want, "name"), pid);
	return CLI_DRIFT;
}

static const json_t *zone_of(const struct work *w, const json_t *row)
{
	return json_array_get(json_object_get(w->target, "zones"), cli_u64(row, "zone"));
}

/* The CPU of a row in the status; NULL: it is not in use. */
static const json_t *cpu_of(const struct work *w, const json_t *row)
{
	const json_t *cpus = json_object_get(zone_of(w, row), "cpus"), *c;
	size_t i;

	json_array_foreach (cpus, i, c)
		if (cli_u64(c, "cpu") == cli_u64(row, "cpu"))
			return c;
	return NULL;
}

static json_t *limits_of(const json_t *from)
{
	json_t *o = json_object();

	for (size_t i = 0; i < N_LIMIT_KEYS; i++)
		json_object_set(o, limit_keys[i], json_object_get(from, limit_keys[i]));
	return o;
}

static bool has_limits(const json_t *cpu, const json_t *limits)
{
	for (size_t i = 0; i < N_LIMIT_KEYS; i++)
		if (!json_equal(json_object_get(cpu, limit_keys[i]),
				json_object_get(limits, limit_keys[i])))
			return false;
	return true;
}

/* ---- one row ---- */

static bool is_meant(const struct work *w, const json_t *row)
{
	return (!w->row || (uint64_t)w->row == cli_u64(row, "n")) &&
	       cli_bool(row, "applied") == w->back;
}

static json_t *request_for(const struct work *w, const char *cmd, const json_t *row)
{
	return json_pack("{s:s, s:I, s:I, s:I}", "cmd", cmd, "target",
			 (json_int_t)cli_u64(w->target, "id"), "zone",
			 (json_int_t)cli_u64(zone_of(w, row), "id"), "cpu",
			 (json_int_t)cli_u64(row, "cpu"));
}

static int set_row(struct work *w, json_t *row, const char *key)
{
	json_t *request = request_for(w, "set", row), *result;
	int r;

	json_object_update(request, json_object_get(row, key));
	r = cli_call(w->c, request, &result);
	if (r >= 0)
		return r;
	w->changed++;
	json_array_extend(w->decisions, json_object_get(result, "decisions"));
	json_decref(result);
	return -1;
}

static int give_back(struct work *w, const json_t *row)
{
	json_t *result;
	int r;

	if (json_is_true(json_object_get(row, "pinned_before")))
		return -1;
	r = cli_call(w->c, request_for(w, "unset", row), &result);
	if (r < 0)
		json_decref(result);
	return r;
}

/* Has nobody else changed it? A change may be on its way to the target yet. */
static bool is_ours(const struct work *w, const json_t *row)
{
	const json_t *cpu = cpu_of(w, row);

	return cpu && (has_limits(cpu, json_object_get(row, "then")) ||
		       has_limits(cpu, json_object_get(row, "before")));
}

static int revert_row(struct work *w, json_t *row)
{
	int r = -1;

	if (!is_ours(w, row))
		w->left++;
	else if ((r = set_row(w, row, "before")) < 0)
		r = give_back(w, row);
	if (r < 0)
		json_object_set_new(row, "applied", json_false());
	return r;
}

static int apply_row(struct work *w, json_t *row)
{
	int r = set_row(w, row, "then");

	if (r >= 0)
		return r;
	json_object_set_new(row, "applied", json_true());
	w->by_hand += cli_bool(row, "pinned_before");
	return r;
}

static bool lowers(const struct work *w, const json_t *row)
{
	uint64_t now = cli_u64(json_object_get(row, "before"), "high");
	uint64_t then = cli_u64(json_object_get(row, "then"), "high");

	return w->back ? now < then : then < now;
}

/* ---- all rows ---- */

/* What will be replaced, into the file, before anything is changed. */
static int remember(struct work *w)
{
	json_t *row;
	size_t i;

	json_array_foreach (json_object_get(w->advice, "rows"), i, row) {
		const json_t *cpu = cpu_of(w, row);

		if (!is_meant(w, row))
			continue;
		if (!cpu)
			return cli_error("zone %" PRIu64 " CPU %" PRIu64 " is not in use there",
					 cli_u64(row, "zone"), cli_u64(row, "cpu"));
		/* as an `apply` left it that was cut short */
		if (json_object_get(row, "before") && has_limits(cpu, json_object_get(row, "then")))
			continue;
		json_object_set_new(row, "before", limits_of(cpu));
		json_object_set_new(row, "pinned_before", json_boolean(cli_bool(cpu, "pinned")));
	}
	return advice_store(w->log, w->advice);
}

/* As far as it goes; what was done is in the file in any case. */
static int change_rows(struct work *w)
{
	json_t *rows = json_object_get(w->advice, "rows"), *row;
	int r = -1, stored;
	size_t i;

	for (int lower = 1; lower >= 0; lower--)
		json_array_foreach (rows, i, row)
			if (r < 0 && is_meant(w, row) && lowers(w, row) == lower)
				r = w->back ? revert_row(w, row) : apply_row(w, row);
	stored = advice_store(w->log, w->advice);
	return r < 0 ? stored : r;
}

static int nothing_meant(const struct work *w)
{
	const char *what = w->row ? "that line" : "it";

	if (w->back)
		cli_error("nothing of %s is in force", what);
	else
		cli_error("all of %s is in force; `revert` takes it back", what);
	return CLI_DRIFT;
}

static int change(struct work *w)
{
	const json_t *row;
	size_t i, n = 0;
	int r = -1;

	json_array_foreach (json_object_get(w->advice, "rows"), i, row)
		n += is_meant(w, row);
	if (!n)
		return nothing_meant(w);
	if (!w->back)
		r = remember(w);
	return r < 0 ? change_rows(w) : r;
}

/* ---- the verbs ---- */

static int print_result(struct work *w)
{
	uint64_t id = cli_u64(w->advice, "id");
	json_int_t first = json_integer_value(json_array_get(w->decisions, 0));

	if (w->a->json) {
		cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:O}", "id", (json_int_t)id,
					 "changed", (json_int_t)w->changed, "left",
					 (json_int_t)w->left, "pinned_before",
					 (json_int_t)w->by_hand, "decisions", w->decisions));
	} else {
		printf("%s: %" PRIu64 " CPU%s", w->back ? "restored" : "changed", w->changed,
		       w->changed == 1 ? "" : "s");
		if (json_array_size(w->decisions))
			printf("; decisions from %" JSON_INTEGER_FORMAT " on", first);
		if (!w->back)
			printf("; pinned until `pcptune revert %" PRIu64 "`", id);
		putchar('\n');
		if (w->by_hand)
			printf("%" PRIu64 " of them %s pinned with other values, which `revert` "
			       "brings back\n",
			       w->by_hand, w->by_hand == 1 ? "was" : "were");
	}
	if (!w->left)
		return CLI_OK;
	cli_error("%" PRIu64 " CPU%s had other values than the advice: left alone", w->left,
		  w->left == 1 ? "" : "s");
	return CLI_DRIFT;
}

static int run(int argc, char **argv, bool back)
{
	struct args a = {0};
	struct work w = {.a = &a, .back = back};
	char why[CLI_WHY] = "no memory";
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r < 0 && !(w.log = cli_db_path(a.db, a.socket, why)))
		r = cli_error("%s", why);
	if (r < 0)
		r = advice_load(w.log, rest.argv[0], &w.advice, &w.row);
	if (r < 0)
		r = cli_connect(a.socket, &w.c);
	if (r < 0) {
		w.decisions = json_array();
		r = find_target(&w);
		if (r < 0)
			r = change(&w);
		if (r < 0)
			r = print_result(&w);
		ctlclient_close(w.c);
	}
	json_decref(w.decisions);
	json_decref(w.status);
	json_decref(w.advice);
	free(w.log);
	return r;
}

int cmd_apply(int argc, char **argv)
{
	return run(argc, argv, false);
}

int cmd_revert(int argc, char **argv)
{
	return run(argc, argv, true);
}
