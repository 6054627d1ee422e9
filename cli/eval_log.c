/* SPDX-License-Identifier: MIT */
/*
 * `pcptune eval --db`: policies over the records of logs (eval/relive.h), and `eval merge`.
 *
 * Beside the policies that are asked for there are three rows: what was measured, what the limits
 * as they were would have caused by the same reckoning, and the policies that the log names, run
 * again. How far these two are from what was measured is how far the others may be.
 */
#include "cli/eval.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/eval_tally.h"
#include "lib/text.h"

#define OWN_ROWS 2u

struct plan {
	const struct eval_args *a;
	struct relive_job *jobs;
	size_t n, room;
	struct tally t;
};

/* ---- what to run ---- */

static struct relive_job *add_job(struct plan *p)
{
	struct relive_job *grown;

	if (p->n == p->room) {
		grown = reallocarray(p->jobs, p->room ? 2 * p->room : 16, sizeof(*grown));
		if (!grown)
			return NULL;
		p->jobs = grown;
		p->room = p->room ? 2 * p->room : 16;
	}
	memset(&p->jobs[p->n], 0, sizeof(p->jobs[0]));
	return &p->jobs[p->n++];
}

static int add_policy(void *cookie, const struct combine_policy *policy, const int64_t *params)
{
	struct plan *p = cookie;
	struct relive_job *j;

	if (p->n == EVAL_JOBS_MAX)
		return cli_usage_error("--set: more than %u combinations", EVAL_JOBS_MAX);
	j = add_job(p);
	if (!j)
		return cli_error("no memory");
	j->module = policy->module;
	memcpy(j->params, params, sizeof(j->params));
	return -1;
}

static int make_plan(struct plan *p, const struct eval_policies *policies)
{
	static const enum relive_kind own[OWN_ROWS] = {RELIVE_AS_SET, RELIVE_RECORDED};
	int r = combine_check(&p->a->set, policies->p, policies->n, "--policy");

	for (size_t i = 0; r < 0 && i < OWN_ROWS; i++) {
		struct relive_job *j = add_job(p);

		if (!j)
			return cli_error("no memory");
		j->kind = own[i];
	}
	for (size_t i = 0; r < 0 && i < policies->n; i++)
		r = combine_each(&p->a->set, &policies->p[i], add_policy, p);
	return r;
}

/* ---- one log ---- */

struct found {
	const char *word;
	int64_t id;
	struct log_target *v;
	size_t n, n_all;
};

static int on_target(const struct log_target *t, void *cookie)
{
	struct found *f = cookie;
	struct log_target *grown;

	f->n_all++;
	if (f->word && t->id != f->id && strcmp(t->name, f->word) != 0)
		return 0;
	grown = reallocarray(f->v, f->n + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	f->v = grown;
	f->v[f->n++] = *t;
	return 0;
}

static void on_recorded(void *cookie, const char *policy)
{
	tally_recorded(cookie, policy);
}

static int run_targets(struct plan *p, struct logstore *ls, const struct found *f)
{
	const struct relive_options o = {.budget = (uint64_t)p->a->budget,
					 .threads = eval_threads(p->a),
					 .policy_path = p->a->policy_path,
					 .on_recorded = on_recorded,
					 .cookie = &p->t};
	char why[RELIVE_WHY];

	for (size_t i = 0; i < f->n; i++) {
		int e = relive_target(ls, &f->v[i], &o, p->jobs, p->n, &p->t.log, why);

		if (e == -ERANGE)
			return cli_error("--budget %s (%s)", why, logstore_path(ls));
		if (e)
			return cli_log_error(ls, why);
	}
	return -1;
}

/* What is added up twice would count twice. -1, or the exit status. */
static int given_once(const char *const *paths, size_t n)
{
	struct stat a, b;

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (!stat(paths[i], &a) && !stat(paths[k], &b) && a.st_dev == b.st_dev &&
			    a.st_ino == b.st_ino)
				return cli_usage_error("%s is given twice", paths[i]);
	return -1;
}

static int one_log(struct plan *p, const char *path)
{
	const struct log_filter all = {.cpu = -1};
	struct found f = {.word = p->a->target};
	struct logstore *ls;
	char why[256] = "";
	int r = -1;

	if (logstore_open_ro(path, &ls, why))
		return cli_error("%s", why);
	if (f.word && text_parse_i64(f.word, &f.id))
		f.id = 0;
	if (logstore_targets(ls, &all, on_target, &f)) {
		r = cli_log_error(ls, logstore_error(ls));
	} else if (!f.n_all) {
		cli_error("%s: the log has no target", path);
		r = CLI_DRIFT;
	} else if (!f.n) {
		cli_error("%s: no target \"%s\"", path, f.word);
		r = CLI_DRIFT;
	}
	if (r < 0)
		r = run_targets(p, ls, &f);
	if (r < 0)
		json_array_append_new(p->t.logs, json_shown(path));
	free(f.v);
	logstore_close(ls);
	return r;
}

/* ---- the result ---- */

static void take_rows(struct plan *p)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct relive_job *j = &p->jobs[i];
		struct tally_row *r = &p->t.rows[i];

		r->kind = j->kind;
		r->sums = j->sums;
		if (j->error)
			snprintf(r->error, sizeof(r->error), "%s", j->why);
		if (!j->module)
			continue;
		snprintf(r->policy, sizeof(r->policy), "%s", policy_desc(j->module)->name);
		snprintf(r->version, sizeof(r->version), "%s", policy_desc(j->module)->version);
		combine_text(j->module, j->params, r->shown, sizeof(r->shown));
		r->params = eval_params_json(j->module, j->params);
	}
}

static int no_records(const struct tally *t)
{
	char logs[200];
	size_t at = 0;

	logs[0] = '\0';
	for (size_t i = 0; i < json_array_size(t->logs) && at < sizeof(logs); i++)
		at += (size_t)snprintf(logs + at, sizeof(logs) - at, "%s%s", i ? ", " : "",
				       json_string_value(json_array_get(t->logs, i)));
	cli_error("%s: no records of what lists did, so nothing can be told (an older daemon wrote "
		  "it, "
		  "log.record_ms was 0, nothing was allocated, or the first is yet to come)",
		  logs);
	return CLI_DRIFT;
}

static int show(const struct tally *t, const struct eval_args *a)
{
	int r = CLI_OK;

	if (a->partial)
		return cli_print_json(tally_partial(t));
	if (!t->log.records)
		return no_records(t);
	if (a->json)
		r = cli_print_json(tally_json(t));
	else
		tally_print(t);
	for (size_t i = 0; i < t->n; i++) {
		const struct tally_row *row = &t->rows[i];

		if (row->error[0] && row->kind == RELIVE_POLICY)
			r = cli_error("%s", row->error);
		else if (row->error[0])
			cli_error("the recorded policy can not be run again: %s", row->error);
	}
	return r;
}

int eval_log(const struct eval_args *a, const struct eval_policies *policies)
{
	struct plan p = {.a = a};
	int r = given_once(a->db.item, a->db.n);

	if (r < 0)
		r = make_plan(&p, policies);
	if (r < 0 && tally_init(&p.t, p.n))
		r = cli_error("no memory");
	p.t.budget = (uint64_t)a->budget;
	for (size_t i = 0; r < 0 && i < a->db.n; i++)
		r = one_log(&p, a->db.item[i]);
	if (r < 0) {
		take_rows(&p);
		r = show(&p.t, a);
	}
	tally_free(&p.t);
	free(p.jobs);
	return r;
}

/* ---- merging ---- */

static int merge_one(struct tally *sum, const char *path, bool first)
{
	json_error_t error;
	json_t *o =
		strcmp(path, "-") ? json_load_file(path, 0, &error) : json_loadf(stdin, 0, &error);
	struct tally one = {0};
	int r = -1;

	if (!o)
		return cli_error("%s: not what eval --partial writes: %s", path, error.text);
	if (!tally_read(&one, o))
		r = cli_error("%s: not what eval --partial writes, or of another version", path);
	else if (first)
		*sum = one;
	else if (!tally_add(sum, &one))
		r = cli_error("%s: has other policies, parameters or budget than the files before "
			      "it",
			      path);
	else if (!tally_fits(sum))
		r = cli_error("%s: its sums are too large to be added", path);
	if (r >= 0 || !first)
		tally_free(&one);
	json_decref(o);
	return r;
}

int eval_merge(const struct eval_args *a, const struct cli_rest *rest)
{
	struct tally sum = {0};
	int r = -1;

	if (rest->argc < 2)
		return cli_usage_error("missing: merge FILE...");
	if (a->trace || a->db.n || a->policies || a->set.n || a->target || a->budget)
		return cli_usage_error("merge takes files of --partial, and --json or --partial");
	r = given_once((const char *const *)rest->argv + 1, (size_t)rest->argc - 1);
	for (int i = 1; r < 0 && i < rest->argc; i++)
		r = merge_one(&sum, rest->argv[i], i == 1);
	if (r < 0)
		r = show(&sum, a);
	tally_free(&sum);
	return r;
}
