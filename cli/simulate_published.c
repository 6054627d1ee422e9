/* SPDX-License-Identifier: MIT */
/*
 * `pcptune simulate --published`: each cell beside its published value, the orderings on which both
 * postings agree, and what policies reach beside the published row with the least contention.
 */
#include <math.h>
#include <pcptune/rules.h>
#include <string.h>
#include "cli/simulate.h"
#include "lib/text.h"

static const struct simulate_row *row_of(const struct simulate_job *j, uint32_t rules)
{
	for (uint32_t i = 0; i < j->n_rows; i++)
		if (!j->rows[i].module && j->rows[i].rules == rules)
			return &j->rows[i];
	return NULL;
}

/* How far off a cell may be. */
static double tolerance(const struct sim_published *p, int metric)
{
	bool tuned = p->value[SIM_LOCK_CONTEND] < 5;

	return metric == SIM_BUILD_TIME	    ? 1.5
	       : metric == SIM_LOCK_CONTEND ? (tuned ? 0.7 : 2.5)
	       : metric == SIM_FREE_HIGH    ? 5
					    : 6;
}

static double simulated(const struct simulate_job *j, const struct sim_published *p, int metric)
{
	uint32_t rules = 0;

	pcptune_rules_parse(p->rules, &rules);
	return simulate_value(j, row_of(j, rules), metric).mean;
}

struct score {
	uint32_t cells, close, orders, held;
};

static int print_cells(const struct simulate_job *j, struct score *s)
{
	struct text_table *t = text_table_new();

	if (!t)
		return cli_error("no memory");
	text_table_column(t, "posting", '<');
	text_table_column(t, "row", '<');
	text_table_column(t, "rules", '<');
	for (int m = 0; m < SIM_METRICS; m++) {
		text_table_column(t, simulate_names[m], '>');
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
static void print_orders(const struct simulate_job *j, struct score *s)
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
					printf("not held: %s, %s %s %s\n", simulate_names[m],
					       rows[a], d2 > 0 ? "above" : "below", rows[b]);
			}
}

/* ---- policies beside p9 ---- */

#define AS_GOOD_CONTEND 0.1 /* points that seeds differ by */
#define AS_GOOD_ALLOC	0.5

static double beyond(const struct simulate_job *j, const struct simulate_row *r,
		     const struct simulate_row *p9, int which)
{
	return simulate_value(j, r, which).mean - simulate_value(j, p9, which).mean;
}

static double held_share(const struct simulate_job *j, const struct simulate_row *r,
			 const struct simulate_row *p9)
{
	return simulate_value(j, r, SIMULATE_HELD_MEAN).mean /
	       simulate_value(j, p9, SIMULATE_HELD_MEAN).mean;
}

/*
 * Which policy has least memory on lists of those that go to the zone and wait no more than p9? If
 * none has less than p9: which of those with less goes there least?
 */
static void print_best(const struct simulate_job *j)
{
	const struct simulate_row *p9 = row_of(j, PCPTUNE_RULES_P9), *best = NULL, *near = NULL;

	for (uint32_t i = 0; i < j->n_rows; i++) {
		const struct simulate_row *r = &j->rows[i];

		if (!r->module || held_share(j, r, p9) >= 1)
			continue;
		if (beyond(j, r, p9, SIM_ALLOC_ZONE) <= AS_GOOD_ALLOC &&
		    beyond(j, r, p9, SIM_LOCK_CONTEND) <= AS_GOOD_CONTEND &&
		    (!best || held_share(j, r, p9) < held_share(j, best, p9)))
			best = r;
		if (!near || beyond(j, r, p9, SIM_ALLOC_ZONE) < beyond(j, near, p9, SIM_ALLOC_ZONE))
			near = r;
	}
	if (best)
		near = best;
	if (near)
		printf("%s: %s, contention %+.2f, alloc_zone %+.1f, pages held %+.1f %%\n",
		       best ? "as p9 (to 0.1 and 0.5 points) with least memory"
			    : "no policy is as p9 (to 0.1 and 0.5 points) with less memory; "
			      "nearest",
		       near->name, beyond(j, near, p9, SIM_LOCK_CONTEND),
		       beyond(j, near, p9, SIM_ALLOC_ZONE), 100 * held_share(j, near, p9) - 100);
}

int simulate_print_published(const struct simulate_job *j)
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
	print_best(j);
	return CLI_OK;
}
