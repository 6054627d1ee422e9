/* SPDX-License-Identifier: MIT */
/*
 * `pcptune eval`: policies over a trace, in a closed loop, beside what could have been done at
 * best; over logs: eval_log.c.
 *
 * Each policy is run with every combination of the values that --set gives its parameters. Rows
 * come in the order of the command line, whatever thread was first. What is not known is "-", in
 * JSON null: no number where there is none.
 */
#include "cli/eval.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "eval/grid.h"
#include "lib/text.h"

#define MANAGED	    (1 << 20) /* pages: 4 GiB */
#define THREADS_MAX 256

const struct cli_option options_eval[] = {
	{"trace", 't', "FILE", "trace to run them over", cli_set_string,
	 offsetof(struct eval_args, trace)},
	{"db", 'd', "PATH", "log whose records to run them over; may repeat", cli_set_list,
	 offsetof(struct eval_args, db)},
	{"target", 0, "TARGET", "of logs: id or name (all)", cli_set_string,
	 offsetof(struct eval_args, target)},
	{"policy", 'p', "A,B,...", "policies", cli_set_string,
	 offsetof(struct eval_args, policies)},
	{"set", 0, "A.KEY=V,...", "values of a parameter, each is tried; may repeat", cli_set_list,
	 offsetof(struct eval_args, set)},
	{"budget", 'b', "PAGES", "bound of the sum of high", cli_set_i64,
	 offsetof(struct eval_args, budget)},
	{"managed", 'm', "PAGES", "size of the zone (1048576)", cli_set_i64,
	 offsetof(struct eval_args, managed)},
	{"partial", 0, NULL, "of logs: sums for eval merge, as JSON", cli_set_flag,
	 offsetof(struct eval_args, partial)},
	{"threads", 0, "N", "runs at the same time (all CPUs)", cli_set_i64,
	 offsetof(struct eval_args, threads)},
	CLI_OPT_POLICY_PATH(struct eval_args, policy_path),
	CLI_OPT_JSON(struct eval_args, json),
	{0},
};

struct plan {
	const struct eval_args *a;
	struct eval_policies policies;
	struct grid_job *jobs;
	size_t n, room;
	struct grid_trace t;
};

/* ---- what to run ---- */

unsigned eval_threads(const struct eval_args *a)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return a->threads ? (unsigned)a->threads : cpus > 0 ? (unsigned)cpus : 1;
}

static int load_policies(const struct eval_args *a, struct eval_policies *p, char *list)
{
	char why[POLICY_WHY], *save = NULL;
	int e;

	for (char *w = strtok_r(list, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		if (p->n == EVAL_POLICIES_MAX)
			return cli_usage_error("--policy: at most %u policies", EVAL_POLICIES_MAX);
		e = policy_load(w, a->policy_path, &p->p[p->n].module, why);
		if (e) {
			cli_error("%s", why);
			return e == -ENOENT ? CLI_DRIFT : CLI_ERROR;
		}
		p->p[p->n++].word = w;
	}
	return p->n ? -1 : cli_usage_error("--policy: a list of policies is needed");
}

static int add_job(void *cookie, const struct combine_policy *policy, const int64_t *params)
{
	struct plan *p = cookie;
	struct grid_job *grown;

	if (p->n == EVAL_JOBS_MAX)
		return cli_usage_error("--set: more than %u combinations", EVAL_JOBS_MAX);
	if (p->n == p->room) {
		grown = reallocarray(p->jobs, p->room ? 2 * p->room : 16, sizeof(*grown));
		if (!grown)
			return cli_error("no memory");
		p->jobs = grown;
		p->room = p->room ? 2 * p->room : 16;
	}
	memset(&p->jobs[p->n], 0, sizeof(p->jobs[0]));
	p->jobs[p->n].module = policy->module;
	memcpy(p->jobs[p->n++].params, params, POLICY_MAX_PARAMS * sizeof(*params));
	return -1;
}

static int make_plan(struct plan *p)
{
	int r = combine_check(&p->a->set, p->policies.p, p->policies.n, "--policy");

	for (size_t i = 0; r < 0 && i < p->policies.n; i++)
		r = combine_each(&p->a->set, &p->policies.p[i], add_job, p);
	return r;
}

/* ---- JSON ---- */

static json_t *integer(uint64_t v)
{
	return json_integer((json_int_t)v);
}

static json_t *ratio_json(bool known, uint64_t a, uint64_t b)
{
	return known && b ? json_real((double)a / (double)b) : json_null();
}

json_t *eval_params_json(const struct policy_module *m, const int64_t *params)
{
	json_t *o = json_object();

	for (uint32_t i = 0; i < policy_desc(m)->n_params; i++) {
		const struct pcptune_param *q = policy_param(m, i);
		int64_t v = params[i];

		json_object_set_new(o, q->name,
				    q->type == PCPTUNE_PARAM_BOOL   ? json_boolean(v != 0)
				    : q->type == PCPTUNE_PARAM_ENUM ? json_string(q->choices[v])
								    : json_integer(v));
	}
	return o;
}

static void numbers_json(const struct grid_job *j, json_t *o)
{
	const struct closed_result *r = &j->r;

	json_object_set_new(o, "alloc_zone", integer(r->alloc_zone));
	json_object_set_new(o, "free_zone", integer(r->free_zone));
	json_object_set_new(o, "lock_takes", integer(r->lock_takes));
	json_object_set_new(o, "free_high", integer(r->free_high));
	json_object_set_new(o, "contend_pct", r->ns ? json_real(r->contend_pct) : json_null());
	json_object_set_new(o, "pages_held_mean", json_real(r->held_mean));
	json_object_set_new(o, "pages_held_peak", integer(r->held_peak));
	json_object_set_new(o, "decisions", integer(r->decisions));
	json_object_set_new(o, "turns", integer(r->turns));
	json_object_set_new(o, "breaches", integer(r->breaches));
	json_object_set_new(o, "memory", integer(j->memory));
	json_object_set_new(o, "moved", integer(j->moved));
	json_object_set_new(o, "floor", j->has_floor ? integer(j->floor) : json_null());
	json_object_set_new(o, "static_split", j->has_split ? integer(j->split) : json_null());
	json_object_set_new(o, "ratio_to_floor", ratio_json(j->has_floor, j->moved, j->floor));
	json_object_set_new(o, "ratio_to_static", ratio_json(j->has_split, j->moved, j->split));
}

static json_t *job_json(const struct grid_job *j)
{
	json_t *o = json_object();

	json_object_set_new(o, "policy", json_string(policy_desc(j->module)->name));
	json_object_set_new(o, "version", json_string(policy_desc(j->module)->version));
	json_object_set_new(o, "params", eval_params_json(j->module, j->params));
	if (j->error)
		json_object_set_new(o, "error", json_shown(j->why));
	else
		numbers_json(j, o);
	return o;
}

static int print_json(const struct plan *p)
{
	json_t *o = json_object(), *list = json_array();
	uint64_t a = 0, f = 0;

	for (size_t i = 0; i < p->t.w.n; i++) {
		a += p->t.w.walk[i]->alloc_pages;
		f += p->t.w.walk[i]->free_pages;
	}
	json_object_set_new(o, "trace", json_shown(p->a->trace));
	json_object_set_new(o, "whole", json_boolean(!p->t.cut));
	json_object_set_new(o, "rows", integer(p->t.rows));
	json_object_set_new(o, "cpus", integer(p->t.n_used));
	json_object_set_new(o, "seconds", json_real((double)(p->t.w.to_ns - p->t.w.from_ns) / 1e9));
	json_object_set_new(o, "alloc_pages", integer(a));
	json_object_set_new(o, "free_pages", integer(f));
	json_object_set_new(o, "unlisted_pages", integer(p->t.unlisted_pages));
	json_object_set_new(o, "budget",
			    p->a->budget ? integer((uint64_t)p->a->budget) : json_null());
	for (size_t i = 0; i < p->n; i++)
		json_array_append_new(list, job_json(&p->jobs[i]));
	json_object_set_new(o, "policies", list);
	return cli_print_json(o);
}

/* ---- text ---- */

static void count_cell(struct text_table *t, uint64_t v)
{
	char n[32];

	text_table_cell(t, "%s", cli_count(v, n, sizeof(n)));
}

static void ratio_cell(struct text_table *t, bool known, uint64_t a, uint64_t b)
{
	if (known && b)
		text_table_cell(t, "%.2f", (double)a / (double)b);
	else
		text_table_cell(t, "-");
}

static void print_row(struct text_table *t, const struct grid_job *j)
{
	const struct closed_result *r = &j->r;
	char params[256];

	combine_text(j->module, j->params, params, sizeof(params));
	text_table_cell(t, "%s", policy_desc(j->module)->name);
	text_table_cell(t, "%s", params);
	if (j->error) {
		text_table_cell(t, "-");
		text_table_end_row(t);
		return;
	}
	count_cell(t, r->alloc_zone);
	count_cell(t, r->free_zone);
	count_cell(t, r->lock_takes);
	count_cell(t, r->free_high);
	if (r->ns)
		text_table_cell(t, "%.3f", r->contend_pct);
	else
		text_table_cell(t, "-");
	text_table_cell(t, "%.0f", r->held_mean);
	count_cell(t, r->held_peak);
	count_cell(t, r->decisions);
	count_cell(t, r->turns);
	ratio_cell(t, j->has_floor, j->moved, j->floor);
	ratio_cell(t, j->has_split, j->moved, j->split);
	text_table_end_row(t);
}

static int print_text(const struct plan *p)
{
	static const char *const titles[] = {"policy",	  "parameters", "alloc_zone", "free_zone",
					     "locks",	  "free_high",	"contend%",   "held mean",
					     "held peak", "decisions",	"turns",      "/floor",
					     "/static"};
	struct text_table *t = text_table_new();
	char n[2][48];

	printf("%s: %s row%s of %u CPU%s, %s\n", p->a->trace,
	       cli_count(p->t.rows, n[0], sizeof(n[0])), p->t.rows == 1 ? "" : "s", p->t.n_used,
	       p->t.n_used == 1 ? "" : "s",
	       text_ns(p->t.w.to_ns - p->t.w.from_ns, n[1], sizeof(n[1])));
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i < 2 ? '<' : '>');
	for (size_t i = 0; i < p->n; i++)
		print_row(t, &p->jobs[i]);
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	printf("Pages moved, as multiples: /floor of the least that any policy could, /static of "
	       "the "
	       "best fixed split\nof the memory that the row has. Rows with different memory are "
	       "compared by alloc_zone.\n");
	if (!p->t.events)
		printf("No floor: the trace has more than %u rows.\n", GRID_FLOOR_ROWS);
	return CLI_OK;
}

/* ---- the verb ---- */

static int check_trace(struct plan *p)
{
	if (!p->t.n_used && p->t.cut) /* which is said then */
		return CLI_ERROR;
	if (!p->t.n_used) {
		cli_error("%s: nothing was allocated or freed there", p->a->trace);
		return CLI_DRIFT;
	}
	if (p->a->budget && p->a->budget < POLICY_HIGH_LEAST * (int64_t)p->t.n_used)
		return cli_error("--budget %" PRId64 ": too little; at least %u pages for each of "
				 "%u CPUs are needed, %u",
				 p->a->budget, POLICY_HIGH_LEAST, p->t.n_used,
				 POLICY_HIGH_LEAST * p->t.n_used);
	return -1;
}

static int run(struct plan *p)
{
	char why[TRACE_WHY] = "";
	struct stat st;
	int r, e;

	if (!stat(p->a->trace, &st) && !S_ISREG(st.st_mode))
		return cli_error("%s: not a file; each run of a policy reads the trace again, so "
				 "a pipe will not do",
				 p->a->trace);
	e = grid_trace_open(&p->t, p->a->trace, why);

	if (e)
		return cli_error("%s", why);
	r = check_trace(p);
	if (r < 0 && grid_run(&p->t, (uint64_t)p->a->managed, (uint64_t)p->a->budget, p->jobs, p->n,
			      eval_threads(p->a)))
		r = cli_error("no memory");
	if (r < 0)
		r = p->a->json ? print_json(p) : print_text(p);
	for (size_t i = 0; r == CLI_OK && i < p->n; i++)
		if (p->jobs[i].error)
			e = cli_error("%s", p->jobs[i].why);
	if (p->t.cut)
		e = cli_error("%s", p->t.why);
	grid_trace_close(&p->t);
	return r == CLI_OK && e ? CLI_ERROR : r;
}

static int check(const struct eval_args *a)
{
	if (!a->trace == !a->db.n)
		return cli_usage_error(a->trace ? "--trace and --db: one of them"
						: "missing: --trace FILE or --db LOG");
	if (!a->policies)
		return cli_usage_error("missing: --policy A,B,...");
	if (a->trace && (a->target || a->partial))
		return cli_usage_error("--target and --partial are for logs");
	if (a->threads > THREADS_MAX)
		return cli_usage_error("--threads: at most %d", THREADS_MAX);
	if (a->managed < 1024 || a->managed > INT64_C(1) << 40)
		return cli_usage_error("--managed: 1024 to 2^40 pages");
	return -1;
}

static int run_all(struct plan *p)
{
	int r;

	if (p->a->db.n)
		return eval_log(p->a, &p->policies);
	r = make_plan(p);
	return r < 0 ? run(p) : r;
}

int cmd_eval(int argc, char **argv)
{
	struct eval_args a = {.managed = MANAGED};
	struct plan p = {.a = &a};
	struct cli_rest rest;
	char *list;
	int r = cli_parse(argc, argv, &a, 0, -1, &rest);

	if (r < 0 && rest.argc)
		return strcmp(rest.argv[0], "merge")
			       ? cli_usage_error("\"%s\": not merge, and no option", rest.argv[0])
			       : eval_merge(&a, &rest);
	if (r < 0)
		r = check(&a);
	if (r >= 0)
		return r;
	list = strdup(a.policies);
	r = list ? load_policies(&a, &p.policies, list) : cli_error("no memory");
	if (r < 0)
		r = run_all(&p);
	for (size_t i = 0; i < EVAL_POLICIES_MAX; i++)
		policy_unref(p.policies.p[i].module);
	free(p.jobs);
	free(list);
	return r;
}
