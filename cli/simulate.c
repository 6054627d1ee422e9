/* SPDX-License-Identifier: MIT */
/*
 * `pcptune simulate`: generations of the list rules, and policies, on a simulated machine, as a
 * table; with --published beside what was published.
 *
 * Each (row, seed) is a simulation of its own; as many run beside each other as there are CPUs, and
 * results are put where they belong, so the output does not depend on who was first. Speed is said
 * on standard error and in the one key events_per_second; everything else is the same for the same
 * seed.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <pcptune/rules.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cli/combine.h"
#include "cli/output.h"
#include "cli/simulate.h"
#include "eval/sim/workload.h"
#include "lib/text.h"

#define ROWS_MAX     64u
#define POLICIES_MAX 32u
#define SEEDS_MAX    100
#define THREADS_MAX  64

struct args {
	const char *workload, *rows, *json, *policy_path;
	struct cli_list set;
	int64_t cpus, seed, seeds, budget;
	bool published;
};

const struct cli_option options_simulate[] = {
	{"workload", 'w', "NAME", "what the CPUs do: a name, or a file", cli_set_string,
	 offsetof(struct args, workload)},
	{"cpus", 'c', "N", "number of CPUs, 1 to 1024", cli_set_i64, offsetof(struct args, cpus)},
	{"rows", 'r', "NAMES", "generations and policies; the first is the base", cli_set_string,
	 offsetof(struct args, rows)},
	{"set", 0, "A.KEY=V,...", "values of a policy's parameter, each a row; may repeat",
	 cli_set_list, offsetof(struct args, set)},
	{"budget", 'b', "PAGES", "bound of the sum of high that policies give", cli_set_i64,
	 offsetof(struct args, budget)},
	{"seeds", 'n', "K", "how many seeds, 1 to 100", cli_set_i64, offsetof(struct args, seeds)},
	{"seed", 's', "N", "first seed", cli_set_i64, offsetof(struct args, seed)},
	{"published", 'p', NULL, "the published rows beside what was published", cli_set_flag,
	 offsetof(struct args, published)},
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	{"json", 'j', "FILE", "JSON for programs, to a file (- standard output)", cli_set_string,
	 offsetof(struct args, json)},
	{0},
};

const char *const simulate_names[SIMULATE_VALUES] = {
	"build_time",	   "lock_contend",    "free_high", "alloc_zone",
	"pages_held_mean", "pages_held_peak", "decisions", "cold_pages"};

/* ---- running ---- */

static void *worker(void *arg)
{
	struct simulate_job *j = arg;
	uint32_t n = j->n_rows * j->n_seeds, i;

	while ((i = atomic_fetch_add(&j->next, 1)) < n) {
		uint32_t seed = i % j->n_seeds;
		struct simulate_row *r = &j->rows[i / j->n_seeds];
		char why[SIM_RUN_WHY] = "";
		struct sim_setup setup = {.w = j->w,
					  .cpus = j->cpus,
					  .seed = j->seed + seed,
					  .rules = r->rules,
					  .module = r->module,
					  .params = r->params,
					  .budget = j->budget};
		int e = sim_run(&setup, &r->seed[seed], why);

		/* of one seed: the others fare alike, and only one may write */
		if (!seed)
			memcpy(r->why, why, sizeof(why));
		if (e)
			atomic_store(&j->error, e);
	}
	return NULL;
}

static int run_all(struct simulate_job *j)
{
	pthread_t t[THREADS_MAX];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int n = 0;

	while (n < cpus - 1 && n < THREADS_MAX && !pthread_create(&t[n], NULL, worker, j))
		n++;
	worker(j);
	while (n)
		pthread_join(t[--n], NULL);
	return atomic_load(&j->error);
}

/* ---- values ---- */

/* Of one seed; relative to the base of the same seed, for the same work. */
static double value_of(const struct sim_result *r, const struct sim_result *base, int which)
{
	double work = (double)base->work_ns / (double)r->work_ns;

	switch (which) {
	case SIM_BUILD_TIME:
		return 100 * work;
	case SIM_LOCK_CONTEND:
		return 100.0 * (double)r->wait_ns / (double)r->cpu_ns;
	case SIM_FREE_HIGH:
		return base->free_high
			       ? 100.0 * (double)r->free_high * work / (double)base->free_high
			       : 0;
	case SIM_ALLOC_ZONE:
		return base->alloc_zone
			       ? 100.0 * (double)r->alloc_zone * work / (double)base->alloc_zone
			       : 0;
	case SIMULATE_HELD_MEAN:
		return r->held_mean;
	case SIMULATE_HELD_PEAK:
		return (double)r->held_peak;
	case SIMULATE_COLD:
		return r->alloc_pages ? 100.0 * (double)r->cold_pages / (double)r->alloc_pages : 0;
	default:
		return (double)r->decisions;
	}
}

struct simulate_value simulate_value(const struct simulate_job *j, const struct simulate_row *r,
				     int which)
{
	struct simulate_value v = {0};
	double least = INFINITY, most = -INFINITY;

	for (uint32_t i = 0; i < j->n_seeds; i++) {
		double x = value_of(&r->seed[i], &j->rows[0].seed[i], which);

		v.mean += x / (double)j->n_seeds;
		least = x < least ? x : least;
		most = x > most ? x : most;
	}
	v.spread = most - least;
	return v;
}

/* ---- the table ---- */

static int print_table(const struct simulate_job *j)
{
	static const char *const titles[] = {"row",	   "build time", "lock contend%",
					     "free_high",  "alloc_zone", "pages held",
					     "held peak",  "decisions",	 "cold%",
					     "+- contend", "+- alloc"};
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i ? '>' : '<');
	for (uint32_t i = 0; i < j->n_rows; i++) {
		text_table_cell(t, "%s", j->rows[i].name);
		for (int k = 0; k < SIMULATE_VALUES; k++)
			text_table_cell(t,
					k == SIMULATE_COLD	  ? "%.1f"
					: k >= SIMULATE_HELD_MEAN ? "%.0f"
					: k == SIM_LOCK_CONTEND	  ? "%.2f"
								  : "%.1f",
					simulate_value(j, &j->rows[i], k).mean);
		text_table_cell(t, "%.2f", simulate_value(j, &j->rows[i], SIM_LOCK_CONTEND).spread);
		text_table_cell(t, "%.1f", simulate_value(j, &j->rows[i], SIM_ALLOC_ZONE).spread);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

/* ---- JSON ---- */

static int write_json(const struct simulate_job *j, const struct args *a, double seconds, FILE *f)
{
	json_t *o = json_object(), *rows = json_array();
	uint64_t events = 0;
	int r;

	for (uint32_t i = 0; i < j->n_rows; i++) {
		json_t *row = json_object();

		json_object_set_new(row, "row", json_shown(j->rows[i].name));
		for (uint32_t k = 0; k < j->n_seeds; k++)
			events += j->rows[i].seed[k].events;
		for (int k = 0; k < SIMULATE_VALUES; k++) {
			struct simulate_value v = simulate_value(j, &j->rows[i], k);

			json_object_set_new(
				row, simulate_names[k],
				json_pack("{s:f,s:f}", "mean", v.mean, "spread", v.spread));
		}
		json_array_append_new(rows, row);
	}
	json_object_set_new(o, "workload", json_shown(a->workload));
	json_object_set_new(o, "cpus", json_integer(j->cpus));
	json_object_set_new(o, "seed", json_integer((json_int_t)j->seed));
	json_object_set_new(o, "seeds", json_integer(j->n_seeds));
	json_object_set_new(o, "events", json_integer((json_int_t)events));
	json_object_set_new(o, "events_per_second", json_real((double)events / seconds));
	json_object_set_new(o, "rows", rows);
	r = json_dumpf(o, f, JSON_INDENT(1) | JSON_PRESERVE_ORDER) || fputc('\n', f) == EOF;
	json_decref(o);
	return r ? cli_error("%s: %s", a->json, strerror(errno)) : CLI_OK;
}

/* ---- arguments ---- */

#define WORKLOADS_MAX 64u

static int is_workload(const struct dirent *e)
{
	const char *dot = strrchr(e->d_name, '.');

	return dot && dot != e->d_name && !strcmp(dot, ".conf");
}

static void no_workload(const char *name, const char *dir)
{
	char all[1024] = "";
	const char *names[WORKLOADS_MAX], *near;
	struct dirent **e = NULL;
	size_t used = 0;
	int n;

	n = scandir(dir, &e, is_workload, alphasort);
	if (n <= 0) {
		cli_error("no workload \"%s\", and no other in %s", name, dir);
		free(e);
		return;
	}
	for (int i = 0; i < n; i++) {
		*strrchr(e[i]->d_name, '.') = '\0';
		if (i < (int)WORKLOADS_MAX)
			names[i] = e[i]->d_name;
		if (used < sizeof(all))
			used += (size_t)snprintf(all + used, sizeof(all) - used, " %s",
						 e[i]->d_name);
	}
	near = text_nearest(name, names, n < (int)WORKLOADS_MAX ? (size_t)n : WORKLOADS_MAX);
	if (near)
		cli_error("no workload \"%s\"; did you mean \"%s\"? there are:%s", name, near, all);
	else
		cli_error("no workload \"%s\"; there are:%s", name, all);
	while (n--)
		free(e[n]);
	free(e);
}

/* A file as it is, or the name of one that came with us. Nothing is returned when there is none. */
static const char *workload_path(const char *name, char *path)
{
	char dir[PATH_MAX];

	if (strchr(name, '/') || strchr(name, '.'))
		return name;
	if (!cli_beside_us("../lib/pcptune/workloads", dir) &&
	    !cli_beside_us("../../../configs/workloads", dir))
		snprintf(dir, sizeof(dir), "%s", PCPTUNE_LIBDIR "/pcptune/workloads");
	if ((size_t)snprintf(path, PATH_MAX, "%s/%s.conf", dir, name) < PATH_MAX &&
	    access(path, F_OK) == 0)
		return path;
	no_workload(name, dir);
	return NULL;
}

struct plan {
	const struct args *a;
	struct simulate_job *j;
	struct combine_policy policies[POLICIES_MAX];
	size_t n_policies;
};

static struct simulate_row *new_row(struct plan *p, const char *name, const char *params)
{
	struct simulate_row *r = &p->j->rows[p->j->n_rows];

	if (p->j->n_rows == ROWS_MAX) {
		cli_error("more than %u rows", ROWS_MAX);
		return NULL;
	}
	r->seed = calloc(p->j->n_seeds, sizeof(*r->seed));
	if (!r->seed || asprintf(&r->name, "%s%s%s", name, *params ? " " : "", params) < 0) {
		free(r->seed);
		cli_error("no memory");
		return NULL;
	}
	p->j->n_rows++;
	return r;
}

static int add_combination(void *cookie, const struct combine_policy *policy, const int64_t *params)
{
	char text[256];
	struct simulate_row *r;

	combine_text(policy->module, params, text, sizeof(text));
	r = new_row(cookie, policy_desc(policy->module)->name, text);
	if (!r)
		return CLI_ERROR;
	r->module = policy->module;
	memcpy(r->params, params, sizeof(r->params));
	return -1;
}

static int add_policy(struct plan *p, const char *word)
{
	struct combine_policy *policy = &p->policies[p->n_policies];
	char why[POLICY_WHY];

	if (p->n_policies == POLICIES_MAX)
		return cli_usage_error("more than %u policies", POLICIES_MAX);
	if (policy_load(word, p->a->policy_path, &policy->module, why)) {
		if (strchr(word, '/'))
			return cli_error("%s", why);
		return cli_usage_error("no generation \"%s\" (see `pcptune policies "
				       "--generations`), and %s",
				       word, why);
	}
	policy->word = word;
	p->n_policies++;
	return combine_each(&p->a->set, policy, add_combination, p);
}

static int add_row(struct plan *p, const char *word)
{
	uint32_t rules;
	struct simulate_row *r;

	if (!pcptune_rules_parse(word, &rules))
		return add_policy(p, word);
	r = new_row(p, word, "");
	if (!r)
		return CLI_ERROR;
	r->rules = rules;
	return -1;
}

/* names: cut into words, which rows point into. */
static int add_rows(struct plan *p, char *names)
{
	char *save = NULL;
	int r = -1;

	for (char *n = strtok_r(names, ",", &save); n && r < 0; n = strtok_r(NULL, ",", &save))
		r = add_row(p, n);
	return r;
}

/* What was published, and every policy that is installed. */
static char *default_rows(const struct args *a)
{
	char **names = NULL, *rows = strdup(SIMULATE_PUBLISHED_ROWS), *more;
	size_t n = 0;

	if (policy_list(a->policy_path, &names, &n))
		return rows;
	for (size_t i = 0; rows && i < n; i++) {
		if (asprintf(&more, "%s,%s", rows, names[i]) < 0)
			more = NULL;
		free(rows);
		rows = more;
	}
	policy_list_free(names, n);
	return rows;
}

static char *rows_of(const struct args *a)
{
	char *rows;

	if (!a->rows)
		return default_rows(a);
	if (!a->published)
		return strdup(a->rows);
	return asprintf(&rows, "%s,%s", SIMULATE_PUBLISHED_ROWS, a->rows) < 0 ? NULL : rows;
}

static int check(const struct args *a)
{
	if (!a->workload)
		return cli_usage_error("--workload is missing");
	if (a->cpus < 1 || a->cpus > SIM_CPUS_MAX)
		return cli_usage_error("--cpus is a number from 1 to %u", SIM_CPUS_MAX);
	if (a->seeds < 1 || a->seeds > SEEDS_MAX)
		return cli_usage_error("--seeds is a number from 1 to %d", SEEDS_MAX);
	if (a->budget && a->budget < 4 * a->cpus)
		return cli_usage_error("--budget is 4 pages for each CPU and more, or 0: none");
	return -1;
}

/* Rows of policies that did not keep to the contract are no results. */
static int broken(const struct simulate_job *j)
{
	int r = CLI_OK;

	for (uint32_t i = 0; i < j->n_rows; i++)
		if (j->rows[i].module && j->rows[i].why[0])
			r = cli_error("%s: %s", j->rows[i].name, j->rows[i].why);
	return r;
}

/* To standard output goes either the table or the JSON. */
static int show(const struct simulate_job *j, const struct args *a, double seconds, FILE *json)
{
	int r = CLI_OK;

	if (json != stdout) {
		r = a->published ? simulate_print_published(j) : CLI_OK;
		if (r == CLI_OK)
			r = print_table(j);
	}
	if (r == CLI_OK && json)
		r = write_json(j, a, seconds > 0 ? seconds : 1e-9, json);
	return r;
}

static int simulate(struct simulate_job *j, const struct args *a, FILE *json)
{
	struct timespec from, to;
	double seconds;
	int r;

	clock_gettime(CLOCK_MONOTONIC, &from);
	r = run_all(j);
	if (r) {
		return broken(j) ? CLI_ERROR : cli_error("%s", strerror(-r));
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	r = show(j, a, seconds, json);
	return broken(j) ? CLI_ERROR : r;
}

/* The file of --json first: a wrong path costs nobody a long run. */
static int simulate_to(struct simulate_job *j, const struct args *a)
{
	struct cli_output out;
	int r, e;

	if (!a->json)
		return simulate(j, a, NULL);
	r = cli_output_open(&out, strcmp(a->json, "-") ? a->json : NULL);
	if (r >= 0)
		return r;
	r = simulate(j, a, out.f);
	e = cli_output_close(&out, r == CLI_OK);
	return r || e < 0 ? r : e;
}

static int plan_and_run(struct plan *p)
{
	char *names = rows_of(p->a);
	int r = names ? add_rows(p, names) : cli_error("no memory");

	if (r < 0 && !p->j->n_rows)
		r = cli_usage_error("--rows needs names of generations or policies");
	if (r < 0)
		r = combine_check(&p->a->set, p->policies, p->n_policies, "--rows");
	if (r < 0)
		r = simulate_to(p->j, p->a);
	for (uint32_t i = 0; i < p->j->n_rows; i++) {
		free(p->j->rows[i].seed);
		free(p->j->rows[i].name);
	}
	for (size_t i = 0; i < p->n_policies; i++)
		policy_unref(p->policies[i].module);
	free(names);
	return r;
}

int cmd_simulate(int argc, char **argv)
{
	static struct simulate_row rows[ROWS_MAX];
	struct args a = {.cpus = 224, .seed = 1, .seeds = 2};
	char buf[PATH_MAX], why[SIM_WHY] = "";
	const char *path;
	struct sim_workload w;
	struct simulate_job j = {.w = &w, .rows = rows};
	struct plan p = {.a = &a, .j = &j};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest);

	if (r < 0)
		r = check(&a);
	if (r >= 0)
		return r;
	path = workload_path(a.workload, buf);
	if (!path)
		return CLI_ERROR;
	if (sim_workload_read(path, &w, why))
		return cli_error("%s", why);
	j.cpus = (uint32_t)a.cpus;
	j.n_seeds = (uint32_t)a.seeds;
	j.seed = (uint64_t)a.seed;
	j.budget = (uint64_t)a.budget;
	return plan_and_run(&p);
}
