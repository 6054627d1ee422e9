/* SPDX-License-Identifier: MIT */
/*
 * `pcptune simulate`: generations of the list rules on a simulated machine, as a table; with
 * --published beside what was published of them.
 *
 * Each (row, seed) is a simulation of its own; as many run beside each other as there are CPUs, and
 * results are put where they belong, so the output does not depend on who was first. Speed is said
 * on standard error and in the one key events_per_second; everything else is the same for the same
 * seed.
 */
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
#include "cli/cli.h"
#include "eval/sim/published.h"
#include "eval/sim/sim.h"
#include "eval/sim/workload.h"
#include "lib/text.h"

#define ROWS_MAX    64u
#define SEEDS_MAX   100
#define THREADS_MAX 64

struct args {
	const char *workload, *rows, *json;
	int64_t cpus, seed, seeds;
	bool published;
};

const struct cli_option options_simulate[] = {
	{"workload", 'w', "NAME", "what the CPUs do: a name, or a file", cli_set_string,
	 offsetof(struct args, workload)},
	{"cpus", 'c', "N", "number of CPUs, 1 to 1024", cli_set_i64, offsetof(struct args, cpus)},
	{"rows", 'r', "NAMES", "generations, separated by commas; the first is the base",
	 cli_set_string, offsetof(struct args, rows)},
	{"seeds", 'n', "K", "how many seeds, 1 to 100", cli_set_i64, offsetof(struct args, seeds)},
	{"seed", 's', "N", "first seed", cli_set_i64, offsetof(struct args, seed)},
	{"published", 'p', NULL, "the published rows beside what was published", cli_set_flag,
	 offsetof(struct args, published)},
	{"json", 'j', "FILE", "JSON for programs, to a file", cli_set_string,
	 offsetof(struct args, json)},
	{0},
};

struct row {
	const char *name;
	uint32_t rules;
	struct sim_result *seed; /* one for each seed */
};

enum { HELD_MEAN = SIM_METRICS, HELD_PEAK, N_VALUES };
static const char *const value_names[N_VALUES] = {"build_time",	     "lock_contend",
						  "free_high",	     "alloc_zone",
						  "pages_held_mean", "pages_held_peak"};

struct value {
	double mean, spread; /* spread: largest minus least of the seeds */
};

struct job {
	const struct args *a;
	const struct sim_workload *w;
	struct row *rows;
	uint32_t n_rows;
	atomic_uint next;
	atomic_int error;
};

/* ---- running ---- */

static void *worker(void *arg)
{
	struct job *j = arg;
	uint32_t n = j->n_rows * (uint32_t)j->a->seeds, i;

	while ((i = atomic_fetch_add(&j->next, 1)) < n) {
		uint32_t seed = i % (uint32_t)j->a->seeds;
		struct row *r = &j->rows[i / (uint32_t)j->a->seeds];
		int e = sim_run(j->w, (uint32_t)j->a->cpus, r->rules, (uint64_t)j->a->seed + seed,
				&r->seed[seed]);

		if (e)
			atomic_store(&j->error, e);
	}
	return NULL;
}

static int run_all(struct job *j)
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
	case HELD_MEAN:
		return r->held_mean;
	default:
		return (double)r->held_peak;
	}
}

static struct value value(const struct job *j, const struct row *r, int which)
{
	struct value v = {0};
	double least = INFINITY, most = -INFINITY;

	for (int64_t i = 0; i < j->a->seeds; i++) {
		double x = value_of(&r->seed[i], &j->rows[0].seed[i], which);

		v.mean += x / (double)j->a->seeds;
		least = x < least ? x : least;
		most = x > most ? x : most;
	}
	v.spread = most - least;
	return v;
}

static const struct row *row_of(const struct job *j, uint32_t rules)
{
	for (uint32_t i = 0; i < j->n_rows; i++)
		if (j->rows[i].rules == rules)
			return &j->rows[i];
	return NULL;
}

/* ---- the table ---- */

static int print_table(const struct job *j)
{
	static const char *const titles[] = {"rules",	  "build time", "lock contend%",
					     "free_high", "alloc_zone", "pages held",
					     "held peak", "+- contend", "+- alloc"};
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i ? '>' : '<');
	for (uint32_t i = 0; i < j->n_rows; i++) {
		text_table_cell(t, "%s", j->rows[i].name);
		for (int k = 0; k < N_VALUES; k++)
			text_table_cell(t,
					k >= HELD_MEAN		? "%.0f"
					: k == SIM_LOCK_CONTEND ? "%.2f"
								: "%.1f",
					value(j, &j->rows[i], k).mean);
		text_table_cell(t, "%.2f", value(j, &j->rows[i], SIM_LOCK_CONTEND).spread);
		text_table_cell(t, "%.1f", value(j, &j->rows[i], SIM_ALLOC_ZONE).spread);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

/* ---- published ---- */

/* How far off a cell may be. */
static double tolerance(const struct sim_published *p, int metric)
{
	bool tuned = p->value[SIM_LOCK_CONTEND] < 5;

	return metric == SIM_BUILD_TIME	    ? 1.5
	       : metric == SIM_LOCK_CONTEND ? (tuned ? 0.7 : 2.5)
	       : metric == SIM_FREE_HIGH    ? 5
					    : 6;
}

static double simulated(const struct job *j, const struct sim_published *p, int metric)
{
	uint32_t rules = 0;

	pcptune_rules_parse(p->rules, &rules);
	return value(j, row_of(j, rules), metric).mean;
}

struct score {
	uint32_t cells, close, orders, held;
};

static int print_cells(const struct job *j, struct score *s)
{
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	text_table_column(t, "posting", '<');
	text_table_column(t, "row", '<');
	text_table_column(t, "rules", '<');
	for (int m = 0; m < SIM_METRICS; m++) {
		text_table_column(t, value_names[m], '>');
		text_table_column(t, "simulated", '>');
	}
	text_table_column(t, "parameters", '<');
	for (size_t i = 0; i < SIM_N_PUBLISHED; i++) {
		const struct sim_published *p = &sim_published[i];

		text_table_cell(t, "%s", p->series);
		text_table_cell(t, "%s", p->row);
		text_table_cell(t, "%s", p->rules);
		for (int m = 0; m < SIM_METRICS; m++) {
			double x = simulated(j, p, m);
			bool ok = fabs(x - p->value[m]) <= tolerance(p, m);

			s->cells++;
			s->close += ok;
			text_table_cell(t, "%.1f", p->value[m]);
			text_table_cell(t, "%.2f%s", x, ok ? "" : " !");
		}
		text_table_cell(t, "%s", p->fitted ? "fitted to it" : "row in view");
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

static const struct sim_published *published(const char *series, const char *common)
{
	for (size_t i = 0; i < SIM_N_PUBLISHED; i++)
		if (!strcmp(sim_published[i].series, series) &&
		    !strcmp(sim_published[i].common, common))
			return &sim_published[i];
	return NULL;
}

static int sign(double x)
{
	return (x > 0) - (x < 0);
}

/* Pairs of rows that both postings put in the same order. */
static void print_orders(const struct job *j, struct score *s)
{
	static const char *const rows[] = {"base", "p1", "p3", "p5", "p7", "last"};
	const uint32_t n = sizeof(rows) / sizeof(rows[0]);

	for (int m = 0; m < SIM_METRICS; m++)
		for (uint32_t a = 0; a < n; a++)
			for (uint32_t b = a + 1; b < n; b++) {
				const struct sim_published *a2 = published("v2", rows[a]),
							   *b2 = published("v2", rows[b]),
							   *a3 = published("v3", rows[a]),
							   *b3 = published("v3", rows[b]);
				int d2 = sign(a2->value[m] - b2->value[m]);
				bool ok;

				if (!d2 || d2 != sign(a3->value[m] - b3->value[m]))
					continue;
				ok = sign(simulated(j, a2, m) - simulated(j, b2, m)) == d2 &&
				     sign(simulated(j, a3, m) - simulated(j, b3, m)) == d2;
				s->orders++;
				s->held += ok;
				if (!ok)
					printf("not held: %s, %s %s %s\n", value_names[m], rows[a],
					       d2 > 0 ? "above" : "below", rows[b]);
			}
}

static int print_published(const struct job *j)
{
	struct score s = {0};
	int r = print_cells(j, &s);

	if (r != CLI_OK)
		return r;
	printf("\n! farther off than: build time 1.5, contention 2.5 (0.7 from p7 on), free_high "
	       "5, "
	       "alloc_zone 6\n");
	print_orders(j, &s);
	printf("cells within these bounds: %u of %u; orderings that both postings agree on, held: "
	       "%u of %u\n",
	       s.close, s.cells, s.held, s.orders);
	return CLI_OK;
}

/* ---- JSON ---- */

static int write_json(const struct job *j, double seconds)
{
	json_t *o = json_object(), *rows = json_array();
	uint64_t events = 0;
	int r;

	for (uint32_t i = 0; i < j->n_rows; i++) {
		json_t *row = json_object();

		json_object_set_new(row, "row", json_string(j->rows[i].name));
		for (int64_t k = 0; k < j->a->seeds; k++)
			events += j->rows[i].seed[k].events;
		for (int k = 0; k < N_VALUES; k++) {
			struct value v = value(j, &j->rows[i], k);

			json_object_set_new(
				row, value_names[k],
				json_pack("{s:f,s:f}", "mean", v.mean, "spread", v.spread));
		}
		json_array_append_new(rows, row);
	}
	json_object_set_new(o, "workload", json_string(j->a->workload));
	json_object_set_new(o, "cpus", json_integer(j->a->cpus));
	json_object_set_new(o, "seed", json_integer(j->a->seed));
	json_object_set_new(o, "seeds", json_integer(j->a->seeds));
	json_object_set_new(o, "events", json_integer((json_int_t)events));
	json_object_set_new(o, "events_per_second", json_real((double)events / seconds));
	json_object_set_new(o, "rows", rows);
	r = json_dump_file(o, j->a->json, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	json_decref(o);
	return r ? cli_error("%s: %s", j->a->json, strerror(errno)) : CLI_OK;
}

/* ---- arguments ---- */

/* A file as it is, or the name of one that came with us. */
static const char *workload_path(const char *name, char *path)
{
	char place[PATH_MAX];

	if (strchr(name, '/') || strchr(name, '.'))
		return name;
	snprintf(place, sizeof(place), "../lib/pcptune/workloads/%s.conf", name);
	if (cli_beside_us(place, path))
		return path;
	snprintf(place, sizeof(place), "../../../configs/workloads/%s.conf", name);
	if (cli_beside_us(place, path))
		return path;
	snprintf(path, PATH_MAX, PCPTUNE_LIBDIR "/pcptune/workloads/%s.conf", name);
	return path;
}

static int add_row(struct job *j, const char *name)
{
	struct row *r = &j->rows[j->n_rows];

	if (j->n_rows == ROWS_MAX)
		return cli_usage_error("more than %u rows", ROWS_MAX);
	if (!pcptune_rules_parse(name, &r->rules))
		return cli_usage_error("no generation \"%s\"; see `pcptune policies --generations`",
				       name);
	r->name = name;
	r->seed = calloc((size_t)j->a->seeds, sizeof(*r->seed));
	if (!r->seed)
		return cli_error("no memory");
	j->n_rows++;
	return -1;
}

static int add_rows(struct job *j, char *names)
{
	char *save = NULL;
	int r = -1;

	for (char *n = strtok_r(names, ",", &save); n && r < 0; n = strtok_r(NULL, ",", &save))
		r = add_row(j, n);
	if (r < 0 && !j->n_rows)
		r = cli_usage_error("--rows needs names of generations");
	return r;
}

static int check(const struct args *a)
{
	if (!a->workload)
		return cli_usage_error("--workload is missing");
	if (a->cpus < 1 || a->cpus > SIM_CPUS_MAX)
		return cli_usage_error("--cpus is a number from 1 to %u", SIM_CPUS_MAX);
	if (a->seeds < 1 || a->seeds > SEEDS_MAX)
		return cli_usage_error("--seeds is a number from 1 to %d", SEEDS_MAX);
	if (a->published && a->rows)
		return cli_usage_error("--published has rows of its own; leave --rows out");
	return -1;
}

static int simulate(struct job *j)
{
	struct timespec from, to;
	double seconds;
	int r;

	clock_gettime(CLOCK_MONOTONIC, &from);
	r = run_all(j);
	if (r)
		return cli_error("%s", strerror(-r));
	clock_gettime(CLOCK_MONOTONIC, &to);
	seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	r = j->a->published ? print_published(j) : print_table(j);
	return r == CLI_OK && j->a->json ? write_json(j, seconds > 0 ? seconds : 1e-9) : r;
}

int cmd_simulate(int argc, char **argv)
{
	static struct row rows[ROWS_MAX];
	struct args a = {.cpus = 224, .seed = 1, .seeds = 2};
	struct job j = {.a = &a, .rows = rows};
	char path[PATH_MAX], why[SIM_WHY] = "", *names;
	struct sim_workload w;
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest);

	if (r < 0)
		r = check(&a);
	if (r >= 0)
		return r;
	if (sim_workload_read(workload_path(a.workload, path), &w, why))
		return cli_error("%s", why);
	j.w = &w;
	names = strdup(a.rows ? a.rows : "base,p1,p3,p5,p7,p9,p10,p7v3,g4");
	if (!names)
		return cli_error("no memory");
	r = add_rows(&j, names);
	if (r < 0)
		r = simulate(&j);
	for (uint32_t i = 0; i < j.n_rows; i++)
		free(rows[i].seed);
	free(names);
	return r;
}
