/* SPDX-License-Identifier: MIT */
/*
 * `pcptune advise`: what a policy, knee unless told otherwise, would set for a process, and what
 * traffic and memory that buys.
 *
 * The log is read (eval/advise.h), nothing is changed; the advice is kept under an ID for `apply`.
 * Numbers of traffic are predicted, with the range in which they must lie by what the log knows;
 * beside them stands what was measured.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/advice.h"
#include "eval/advise.h"
#include "lib/text.h"

#define LOOK_BACK_US 600000000u

struct args {
	const char *db, *socket, *policy, *policy_path;
	struct cli_list set;
	uint64_t from, to;
	bool json;
};

const struct cli_option options_advise[] = {
	{"from", 0, "TIME", "look at the log from then on (the last 10 min)", cli_set_time,
	 offsetof(struct args, from)},
	{"to", 0, "TIME", "up to then", cli_set_time, offsetof(struct args, to)},
	{"policy", 'p', "NAME", "advice of this policy (knee)", cli_set_string,
	 offsetof(struct args, policy)},
	{"set", 0, "KEY=VALUE", "a parameter of it; may repeat", cli_set_list,
	 offsetof(struct args, set)},
	CLI_OPT_DB(struct args, db),
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct work {
	const struct args *a;
	const char *word;
	int64_t id;   /* of word in the log, 0: it is a name */
	uint64_t pid; /* of the daemon's target; 0: go by word */
	char name[PCPTUNE_NAME_MAX];
	bool found;
	struct log_target target;
	struct policy_module *m;
	int64_t params[POLICY_MAX_PARAMS];
	struct advice advice;
};

/* ---- which process ---- */

/* The daemon's ids are not those of the log: name and process id are the same in both. */
static void ask_daemon(struct work *w)
{
	struct ctlclient *c;
	json_t *request, *result = NULL;
	const json_t *t;
	char why[CLI_WHY];

	if (w->a->db || ctlclient_open(w->a->socket, &c, why))
		return;
	request = json_pack("{s:s, s:o}", "cmd", "status", "target", cli_target(w->word));
	if (!ctlclient_call(c, request, 10000, &result, why)) {
		t = json_array_get(json_object_get(result, "targets"), 0);
		w->pid = cli_u64(t, "pid");
		snprintf(w->name, sizeof(w->name), "%s", cli_str(t, "name"));
	}
	json_decref(request);
	json_decref(result);
	ctlclient_close(c);
}

/* The last one that fits. */
static int on_target(const struct log_target *t, void *cookie)
{
	struct work *w = cookie;
	bool fits = w->pid ? t->pid == w->pid && !strcmp(t->name, w->name)
			   : t->id == w->id || !strcmp(t->name, w->word);

	if (!fits)
		return 0;
	w->found = true;
	w->target = *t;
	return 0;
}

static int find_target(struct work *w, struct logstore *ls)
{
	const struct log_filter all = {.cpu = -1};

	if (text_parse_i64(w->word, &w->id))
		w->id = 0;
	ask_daemon(w);
	if (logstore_targets(ls, &all, on_target, w))
		return cli_log_error(ls, logstore_error(ls));
	if (w->found)
		return -1;
	cli_error("%s: no target \"%s\"; `pcptune targets --db '%s'` lists them", logstore_path(ls),
		  w->word, logstore_path(ls));
	return CLI_DRIFT;
}

/* ---- the policy ---- */

static int load_policy(struct work *w)
{
	char why[POLICY_WHY], key[64];
	int e = policy_load(w->a->policy ? w->a->policy : "knee", w->a->policy_path, &w->m, why);

	if (e) {
		cli_error("%s", why);
		return e == -ENOENT ? CLI_DRIFT : CLI_ERROR;
	}
	policy_params_default(w->m, w->params);
	for (size_t i = 0; i < w->a->set.n; i++) {
		const char *s = w->a->set.item[i], *eq = strchr(s, '=');

		if (!eq || eq == s)
			return cli_usage_error("--set \"%s\": not KEY=VALUE", s);
		snprintf(key, sizeof(key), "%.*s", (int)(eq - s), s);
		if (policy_params_set(w->m, w->params, key, eq + 1, why))
			return cli_usage_error("%s", why);
	}
	return -1;
}

static int compute(struct work *w, struct logstore *ls)
{
	uint64_t end = w->target.detached.wall_us, from = w->a->from;
	char why[WALKS_WHY] = "";
	int r;

	end = w->a->to ? w->a->to : end ? end : logstamp_now().wall_us;
	if (!from)
		from = end > LOOK_BACK_US ? end - LOOK_BACK_US : 1;
	r = advise_log(ls, &w->target, from, w->a->to, w->m, w->params, &w->advice, why);
	if (!r)
		return -1;
	cli_log_error(ls, why);
	return r == -ENOENT ? CLI_DRIFT : CLI_ERROR;
}

/* ---- as JSON, which is what is kept ---- */

static struct log_limits logged(const struct limits *l)
{
	return (struct log_limits){l->high,  l->high_min,  l->high_max,
				   l->batch, l->scale_max, l->rules};
}

static json_t *rate(const struct advice *a, uint64_t pages)
{
	return a->seconds > 0 ? json_real((double)pages / a->seconds) : json_null();
}

/* Pages a second of both settings; least and most: within these by what the log knows. */
static void put_traffic(const struct advice *a, uint64_t measured, const struct whatif *now,
			const struct whatif *then, json_t *o)
{
	json_object_set_new(o, "measured_per_s", rate(a, measured));
	json_object_set_new(o, "now_per_s", rate(a, now->pages));
	json_object_set_new(o, "then_per_s", rate(a, then->pages));
	json_object_set_new(o, "then_least_per_s", rate(a, then->pages_least));
	json_object_set_new(o, "then_most_per_s", rate(a, then->pages_most));
}

static json_t *row_json(const struct work *w, const struct advice_row *row, size_t n)
{
	const struct pcptune_reason *reason = policy_reason(w->m, row->reason);
	struct log_limits now = logged(&row->now), then = logged(&row->then);
	json_t *o = json_object();
	char why[512] = "";

	if (reason)
		policy_sentence(reason->sentence, row->arg, row->high_before, row->then.high, why,
				sizeof(why));
	json_object_set_new(o, "n", json_integer((json_int_t)n));
	json_object_set_new(o, "zone", json_integer(row->zone));
	json_object_set_new(o, "cpu", json_integer(row->cpu));
	json_object_set_new(o, "now", cli_limits_json(&now));
	json_object_set_new(o, "then", cli_limits_json(&then));
	put_traffic(&w->advice, row->measured, &row->pages_now, &row->pages_then, o);
	json_object_set_new(o, "direct_per_s", rate(&w->advice, row->direct));
	json_object_set_new(o, "other_lists", json_boolean(row->other_lists));
	json_object_set_new(o, "reason", json_string(reason ? reason->name : "?"));
	json_object_set_new(o, "why", json_shown(why));
	json_object_set_new(o, "applied", json_false());
	return o;
}

static json_t *quiet_json(const struct work *w)
{
	const struct pcptune_reason *reason = policy_reason(w->m, w->advice.quiet);
	char text[512];

	if (!reason)
		return json_null();
	policy_sentence(reason->sentence, w->advice.quiet_arg, 0, 0, text, sizeof(text));
	return json_string(text);
}

static json_t *advice_json(struct work *w)
{
	struct advice *a = &w->advice;
	json_t *o = json_object(), *rows = json_array();
	char params[1024] = "", time[48];

	policy_params_text(w->m, w->params, params, sizeof(params));
	text_clean(w->target.name);
	json_object_set_new(o, "id", json_null());
	json_object_set_new(
		o, "target",
		json_pack("{s:s, s:I}", "name", w->target.name, "pid", (json_int_t)w->target.pid));
	json_object_set_new(o, "policy", json_string(policy_desc(w->m)->name));
	json_object_set_new(o, "params", json_string(params));
	json_object_set_new(o, "from", json_string(text_time_iso(a->from_us, time, sizeof(time))));
	json_object_set_new(o, "to", json_string(text_time_iso(a->to_us, time, sizeof(time))));
	json_object_set_new(o, "seconds", json_real(a->seconds));
	json_object_set_new(o, "samples", json_integer((json_int_t)a->samples));
	json_object_set_new(o, "records", json_integer((json_int_t)a->records));
	json_object_set_new(o, "high_now", json_integer((json_int_t)a->high_now));
	json_object_set_new(o, "high_then", json_integer((json_int_t)a->high_then));
	put_traffic(a, a->measured, &a->pages_now, &a->pages_then, o);
	json_object_set_new(o, "direct_per_s", rate(a, a->direct));
	json_object_set_new(o, "last_answer", quiet_json(w));
	for (size_t i = 0; i < a->n_rows; i++)
		json_array_append_new(rows, row_json(w, &a->rows[i], i + 1));
	json_object_set_new(o, "rows", rows);
	return o;
}

/* ---- as text ---- */

static const char *per_second(const json_t *o, const char *key, char *buf, size_t n)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_real(v))
		return "-";
	return cli_count((uint64_t)(json_real_value(v) + 0.5), buf, n);
}

static void print_row(struct text_table *t, int64_t id, const json_t *row)
{
	const json_t *now = json_object_get(row, "now"), *then = json_object_get(row, "then");
	char n[4][32];

	if (id)
		text_table_cell(t, "%" PRId64 ".%" PRIu64, id, cli_u64(row, "n"));
	else
		text_table_cell(t, "-");
	text_table_cell(t, "%" PRIu64, cli_u64(row, "zone"));
	text_table_cell(t, "%" PRIu64, cli_u64(row, "cpu"));
	text_table_cell(t, "%" PRIu64 " -> %" PRIu64, cli_u64(now, "high"), cli_u64(then, "high"));
	text_table_cell(t, "%" PRIu64 " -> %" PRIu64, cli_u64(now, "batch"),
			cli_u64(then, "batch"));
	text_table_cell(t, "%s -> %s", cli_str(now, "rules"), cli_str(then, "rules"));
	text_table_cell(t, "%s", per_second(row, "measured_per_s", n[0], sizeof(n[0])));
	text_table_cell(t, "%s (%s .. %s)", per_second(row, "then_per_s", n[1], sizeof(n[1])),
			per_second(row, "then_least_per_s", n[2], sizeof(n[2])),
			per_second(row, "then_most_per_s", n[3], sizeof(n[3])));
	text_table_cell(t, "%s", cli_str(row, "reason"));
	text_table_end_row(t);
}

static void print_total(const json_t *o)
{
	char n[4][48], pages[2][48];

	printf("Together: high %s -> %s; moved to and from the zone, pages a second: %s measured, "
	       "%s predicted (%s .. %s)\n",
	       text_pages(cli_u64(o, "high_now"), pages[0], sizeof(pages[0])),
	       text_pages(cli_u64(o, "high_then"), pages[1], sizeof(pages[1])),
	       per_second(o, "measured_per_s", n[0], sizeof(n[0])),
	       per_second(o, "then_per_s", n[1], sizeof(n[1])),
	       per_second(o, "then_least_per_s", n[2], sizeof(n[2])),
	       per_second(o, "then_most_per_s", n[3], sizeof(n[3])));
}

/* What passes the lists by is in none of the numbers before. */
static void print_direct(const json_t *o)
{
	const json_t *row;
	bool other = false;
	char n[48];
	size_t i;

	json_array_foreach (json_object_get(o, "rows"), i, row)
		other |= cli_bool(row, "other_lists");
	if (!(json_real_value(json_object_get(o, "direct_per_s")) >= 1))
		return;
	printf("Another %s pages a second passed the lists by, as orders without a list do%s.\n",
	       per_second(o, "direct_per_s", n, sizeof(n)),
	       other ? "; with the other rules some or all\nof them may go through lists: the "
		       "upper ends have room for that, and `pcptune record` and `eval` tell more"
		     : "");
}

static int print_text(const json_t *o)
{
	static const char *const titles[] = {"id",    "zone",	 "cpu",	      "high",  "batch",
					     "rules", "pages/s", "predicted", "reason"};
	const json_t *rows = json_object_get(o, "rows"), *row,
		     *target = json_object_get(o, "target");
	int64_t id = (int64_t)cli_u64(o, "id");
	struct text_table *t;
	char n[32];
	size_t i;

	printf("%s (process %" PRIu64 ") by %s: %s samples and %" PRIu64 " records of %s\n",
	       cli_str(target, "name"), cli_u64(target, "pid"), cli_str(o, "policy"),
	       cli_count(cli_u64(o, "samples"), n, sizeof(n)), cli_u64(o, "records"),
	       text_ns((uint64_t)(json_real_value(json_object_get(o, "seconds")) * 1e9),
		       (char[48]){0}, 48));
	if (!json_array_size(rows)) {
		printf("Nothing to change: %s.\n", cli_str(o, "last_answer"));
		return CLI_OK;
	}
	t = text_table_new();
	for (i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i],
				  i + 1 < sizeof(titles) / sizeof(titles[0]) ? '>' : '<');
	json_array_foreach (rows, i, row)
		print_row(t, id, row);
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	print_total(o);
	print_direct(o);
	if (!id)
		return CLI_OK;
	printf("`pcptune apply %" PRId64 "` sets all of it (%" PRId64
	       ".1: that line alone), `pcptune revert %" PRId64 "` takes it back.\n",
	       id, id, id);
	return CLI_OK;
}

/* ---- the verb ---- */

/* Advice that can not be kept is advice, too. */
static int answer(struct work *w, const char *log)
{
	json_t *o = advice_json(w);
	int kept = w->advice.n_rows ? advice_add(log, o) : -1;
	int r = w->a->json ? cli_print_json(json_incref(o)) : print_text(o);

	json_decref(o);
	return kept < 0 ? r : kept;
}

int cmd_advise(int argc, char **argv)
{
	struct args a = {0};
	struct work w = {.a = &a};
	struct cli_rest rest;
	struct logstore *ls;
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r >= 0)
		return r;
	if (a.to && a.from > a.to)
		return cli_usage_error("--from is later than --to");
	w.word = rest.argv[0];
	r = load_policy(&w);
	if (r < 0 && (r = cli_open_log(a.db, a.socket, a.json, &ls)) < 0) {
		r = find_target(&w, ls);
		if (r < 0)
			r = compute(&w, ls);
		if (r < 0)
			r = answer(&w, logstore_path(ls));
		advice_free(&w.advice);
		logstore_close(ls);
	}
	policy_unref(w.m);
	return r;
}
