/* SPDX-License-Identifier: MIT */
/*
 * A curve for people: a plot of the total in letters, a row for each CPU, and what the numbers can
 * not tell.
 */
#include "cli/curve.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "lib/text.h"

#define PLOT_ROWS 14
#define PLOT_COLS 64
#define PLOT_LEFT 14 /* of its labels */

/* A plot is not broken by the end of a terminal's lines. */
static size_t columns(void)
{
	size_t width = (size_t)cli_width();

	return width && width < PLOT_LEFT + PLOT_COLS ? width - PLOT_LEFT : PLOT_COLS;
}

static size_t column(const struct curve_line *l, size_t cols, double high)
{
	return (size_t)(fmax(0, fmin(1, curve_place(l, high))) * (double)(cols - 1) + 0.5);
}

static void draw(const struct curve_line *l, size_t cols, char grid[PLOT_ROWS][PLOT_COLS + 1])
{
	double most = (double)l->p[0].pages;

	memset(grid, ' ', PLOT_ROWS * (PLOT_COLS + 1));
	for (size_t i = 0; i < l->n; i++) {
		double y = most > 0 ? (double)l->p[i].pages / most : 0;
		size_t row = (size_t)((1 - y) * (PLOT_ROWS - 1) + 0.5);

		grid[row][column(l, cols, (double)l->p[i].high)] = i == l->knee ? 'K' : '*';
	}
	for (size_t r = 0; r < PLOT_ROWS; r++)
		grid[r][cols] = '\0';
}

/* So many that the labels of two rows are never the same; a curve at 0 has one row. */
static int decimals(double most)
{
	double step = most / (PLOT_ROWS - 1);
	int n = 0;

	for (; step > 0 && step < 1 && n < 9; n++)
		step *= 10;
	return n;
}

static void print_plot(const struct curve_plot *p, const struct curve_line *l)
{
	static char grid[PLOT_ROWS][PLOT_COLS + 1];
	const char *unit = p->seconds > 0 ? "pages/s" : "pages";
	char marks[PLOT_COLS + 1];
	double most = curve_rate(p, (double)l->p[0].pages);
	size_t cols = columns();

	draw(l, cols, grid);
	printf("%12s\n", unit);
	for (size_t r = most > 0 ? 0 : PLOT_ROWS - 1; r < PLOT_ROWS; r++)
		printf("%12.*f |%s\n", decimals(most),
		       most * (double)(PLOT_ROWS - 1 - r) / (PLOT_ROWS - 1), grid[r]);
	memset(marks, '-', cols);
	marks[cols] = '\0';
	if (p->now_least) {
		marks[column(l, cols, p->now_least)] = '^';
		marks[column(l, cols, p->now_most)] = '^';
	}
	printf("%12s +%s\n%12s  %-10" PRIu64 "%*" PRIu64 "\n", "high", marks, "", l->p[0].high,
	       (int)cols - 10, l->p[l->n - 1].high);
	printf("%14sK: knee%s\n\n", "", p->now_least ? ", ^: high now" : "");
}

static void print_row(struct text_table *t, const struct curve_plot *p, const struct curve_line *l)
{
	const struct whatif *knee = l->knee < l->n ? &l->p[l->knee] : NULL;

	text_table_cell(t, "%u", l->walk->zone);
	text_table_cell(t, "%u", l->walk->cpu);
	if (l->walk->high_now) {
		text_table_cell(t, "%u", l->walk->high_now);
		text_table_cell(t, "%.0f", curve_rate(p, (double)l->now.pages));
		text_table_cell(t, "%.0f", curve_rate(p, (double)l->now.pages_most));
		text_table_cell(t, "%.0f",
				curve_rate(p, (double)(l->walk->refilled + l->walk->drained)));
	} else {
		for (int i = 0; i < 4; i++)
			text_table_cell(t, "-");
	}
	if (knee) {
		text_table_cell(t, "%" PRIu64, knee->high);
		text_table_cell(t, "%.0f", curve_rate(p, (double)knee->pages));
		text_table_cell(t, "%.1f", curve_rate(p, knee->locks));
		text_table_cell(t, "%.0f to %.0f", curve_rate(p, (double)knee->pages_least),
				curve_rate(p, (double)knee->pages_most));
	} else {
		for (int i = 0; i < 4; i++)
			text_table_cell(t, "-");
	}
	text_table_end_row(t);
}

/* What moved and is in no curve. */
static void print_not_in_it(const struct curve_plot *p)
{
	uint64_t direct = 0, listed = 0, measured = 0, most = 0;
	char n[32];

	for (size_t i = 0; i + 1 < p->n; i++) {
		const struct curve_line *l = &p->lines[i];

		direct += l->walk->direct_pages;
		listed += l->walk->alloc_pages + l->walk->free_pages;
		if (!l->walk->high_now)
			continue;
		measured += l->walk->refilled + l->walk->drained;
		most += l->now.pages_most;
	}
	if (direct * 1000 >= direct + listed && direct)
		printf("%s page%s (%.*f %%) passed the lists by, as orders without a list do: "
		       "they are not in the curve.\n",
		       cli_count(direct, n, sizeof(n)), direct == 1 ? "" : "s",
		       direct * 10 < direct + listed,
		       100 * (double)direct / (double)(direct + listed));
	if (measured > most + most / 20)
		printf("More was measured than is possible by the curve: drains at rest, by decay "
		       "and by high-order\nfrees, and lists that share a count, are not in it.\n");
}

static void print_caveats(const struct curve_plot *p)
{
	printf("\nA lower bound where several lists share the count: a refill comes when its own "
	       "list is empty.\nBrackets are from lists that begin full to the most that is "
	       "possible.\n");
	if (p->w.from_records)
		printf("From %" PRIu64 " record%s of the swings of each CPU's lists.\n",
		       p->w.records, p->w.records == 1 ? "" : "s");
	else if (p->w.from_log)
		printf("Samples hold the sums of an interval, not the order of calls within it: "
		       "the curve is that of\nthe net change, and the most is by how far calls "
		       "may have strayed. A trace tells exactly.\n");
	print_not_in_it(p);
	if (p->w.from_records && p->w.gaps)
		printf("%" PRIu64 " records have a hole before them: nothing is counted there, and "
		       "lists may have held\nanything up to high after it.\n",
		       p->w.gaps);
	else if (p->w.gaps || p->w.lost)
		printf("%" PRIu64 " gaps in the log, %" PRIu64 " intervals of a CPU without "
		       "numbers: nothing is counted there.\n",
		       p->w.gaps, p->w.lost);
	if (p->w.backwards)
		printf("%" PRIu64
		       " row%s earlier than the one before; rows were taken in the order "
		       "of the file.\n",
		       p->w.backwards, p->w.backwards == 1 ? " is" : "s are");
}

int curve_print_text(const struct curve_plot *p)
{
	static const char *const titles[] = {"zone",	"CPU",	    "high now", "predicted",
					     "at most", "measured", "knee",	"pages",
					     "locks",	"bracket"};
	struct text_table *t = text_table_new();
	char n[2][48];

	printf("%s: ", p->source);
	if (p->w.from_log)
		printf("target %" PRId64 " %s, ", p->target.id, p->target.name);
	printf("%zu CPU%s", p->w.n, p->w.n == 1 ? "" : "s");
	if (p->seconds > 0)
		printf(", %s; pages and locks a second",
		       text_ns(p->w.to_ns - p->w.from_ns, n[0], sizeof(n[0])));
	if (p->n_targets > 1)
		printf("\nthe busiest of %zu targets; --target names another", p->n_targets);
	printf("\n\n");
	print_plot(p, &p->lines[p->n - 1]);
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], '>');
	for (size_t i = 0; i + 1 < p->n; i++)
		print_row(t, p, &p->lines[i]);
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	print_caveats(p);
	return CLI_OK;
}
