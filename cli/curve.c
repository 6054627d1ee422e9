/* SPDX-License-Identifier: MIT */
/*
 * `pcptune curve`: the traffic between lists and zone against high, for each CPU and in total, from
 * a trace, or from the records or, where it has none, the samples of a log (eval/walks.h).
 *
 * The points are at eight values of high an octave, from two batches to where nothing but the net
 * demand moves. What the numbers can not tell is said with them: that lists which share a count
 * cost more, how far the level at the beginning matters, and that samples hold only sums of
 * intervals.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/segment.h>
#include "eval/walks.h"
#include "lib/text.h"

#define BATCH_DEFAULT 63
#define POINTS_MAX    PCPTUNE_BAND_BUCKETS
#define PLOT_ROWS     14
#define PLOT_COLS     64

struct args {
	const char *trace, *db, *socket, *target, *svg;
	uint64_t from, to;
	int64_t cpu, batch;
	bool json;
};

const struct cli_option options_curve[] = {
	{"trace", 't', "FILE", "of this trace", cli_set_string, offsetof(struct args, trace)},
	CLI_OPT_DB(struct args, db),
	{"target", 0, "TARGET", "of the log: id or name", cli_set_string,
	 offsetof(struct args, target)},
	{"from", 0, "TIME", "of the log: from then on", cli_set_time, offsetof(struct args, from)},
	{"to", 0, "TIME", "of the log: up to then", cli_set_time, offsetof(struct args, to)},
	{"cpu", 'c', "N", "this CPU only", cli_set_i64, offsetof(struct args, cpu)},
	{"batch", 'b', "PAGES", "of a trace: pages moved at once (63)", cli_set_i64,
	 offsetof(struct args, batch)},
	{"svg", 0, "FILE", "draw it there, too", cli_set_string, offsetof(struct args, svg)},
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct line {
	const struct walk *walk; /* NULL: the total */
	struct whatif p[POINTS_MAX], now;
	size_t n, knee; /* knee n: none */
};

struct plot {
	const struct args *a;
	const char *source;
	struct walks w;
	struct line *lines; /* one for each walk, then the total */
	size_t n;
	double seconds;
	uint32_t now_least, now_most; /* of high, over the CPUs; 0: not known */
	struct log_target target;     /* of a log */
	size_t n_targets;	      /* of which it is the busiest */
	char cut[WALKS_WHY];	      /* what is wrong with the trace; empty: nothing */
};

/* ---- gathering ---- */

static int from_trace(struct plot *p)
{
	struct trace_reader *t;
	char why[WALKS_WHY] = "";
	int e = trace_open(p->a->trace, &t, why);

	if (e)
		return cli_error("%s", why);
	p->source = p->a->trace;
	e = walks_add_trace(&p->w, t, (uint32_t)p->a->batch, why);
	trace_close(t);
	if (e == -EBADMSG) /* what came before it is shown, and then this is said */
		snprintf(p->cut, sizeof(p->cut), "%s", why);
	return e && e != -EBADMSG ? cli_error("%s", why) : -1;
}

struct choice {
	struct logstore *ls;
	const char *word;
	int64_t id; /* of word, 0: it is a name */
	struct log_target *found;
	size_t n_all, n_found;
	char names[512];
};

static int on_target(const struct log_target *t, void *cookie)
{
	struct choice *c = cookie;
	size_t used = strlen(c->names);
	struct log_target *grown;

	c->n_all++;
	snprintf(c->names + used, sizeof(c->names) - used, "%s%" PRId64 " %s", used ? ", " : "",
		 t->id, t->name);
	if (c->word && t->id != c->id && strcmp(t->name, c->word) != 0)
		return 0;
	grown = reallocarray(c->found, c->n_found + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	c->found = grown;
	c->found[c->n_found++] = *t;
	return 0;
}

static int add_pages(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		     size_t len, void *cookie)
{
	(void)t;
	(void)data;
	(void)len;
	*(uint64_t *)cookie += totals->alloc_pages + totals->free_pages;
	return 0;
}

/* Of several targets the one that allocated and freed most; the first of equals. */
static size_t busiest(const struct choice *c)
{
	uint64_t most = 0;
	size_t at = 0;

	for (size_t i = 0; c->n_found > 1 && i < c->n_found; i++) {
		uint64_t pages = 0;

		logstore_chunks(c->ls, c->found[i].id, 0, add_pages, &pages);
		if (pages > most)
			at = i;
		most = pages > most ? pages : most;
	}
	return at;
}

/* The target that is meant. */
static int choose(struct plot *p, struct logstore *ls)
{
	const struct log_filter all = {.cpu = -1};
	struct choice c = {.ls = ls, .word = p->a->target};
	int r = -1;

	if (c.word && text_parse_i64(c.word, &c.id))
		c.id = 0;
	if (logstore_targets(ls, &all, on_target, &c)) {
		r = cli_error("%s: %s", logstore_path(ls), logstore_error(ls));
	} else if (!c.n_all) {
		r = cli_error("%s: the log has no target", logstore_path(ls));
	} else if (!c.n_found) {
		text_clean(c.names);
		cli_error("%s: no target \"%s\"; targets: %s", logstore_path(ls), c.word, c.names);
		r = CLI_DRIFT;
	} else {
		p->target = c.found[busiest(&c)];
		p->n_targets = c.n_found;
		text_clean(p->target.name);
	}
	free(c.found);
	return r;
}

static int from_log(struct plot *p)
{
	struct logstore *ls;
	char why[WALKS_WHY] = "";
	int r = cli_open_log(p->a->db, p->a->socket, p->a->json, &ls);

	if (r >= 0)
		return r;
	r = choose(p, ls);
	if (r < 0 && walks_add_log(&p->w, ls, &p->target, p->a->from, p->a->to, why))
		r = cli_error("%s: %s", logstore_path(ls), why);
	p->source = p->a->db ? p->a->db : "log";
	logstore_close(ls);
	return r;
}

/* Keeps one CPU only. */
static int keep_cpu(struct walks *w, int64_t cpu)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++) {
		struct walk *k = w->walk[i];

		if (k->cpu == cpu) {
			w->walk[n++] = k;
			continue;
		}
		curve_free(&k->curve);
		free(k->band);
		free(k);
	}
	w->n = n;
	if (n)
		return -1;
	cli_error("nothing happened on CPU %" PRId64, cpu);
	return CLI_DRIFT;
}

/* ---- points ---- */

/* The values of high: all CPUs have the same. */
static size_t highs(const struct walks *w, uint64_t *high)
{
	uint64_t least = UINT64_MAX, most = 0;
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++) {
		uint64_t batch = w->walk[i]->batch ? w->walk[i]->batch : 1;
		uint64_t range = walk_range(w->walk[i]);

		least = 2 * batch < least ? 2 * batch : least;
		most = range + 2 * batch > most ? range + 2 * batch : most;
	}
	for (uint32_t i = pcptune_band_bucket(least < 4 ? 4 : least); n < POINTS_MAX; i++) {
		uint64_t edge = pcptune_band_edge(i);

		if (edge > PCPTUNE_MAX_HIGH)
			break;
		if (edge < least)
			continue;
		high[n++] = edge;
		if (edge >= most && n >= 3)
			break;
	}
	return n;
}

static int compute(struct plot *p)
{
	uint64_t high[POINTS_MAX];
	struct line *total;
	size_t n = highs(&p->w, high);

	p->n = p->w.n + 1;
	p->lines = calloc(p->n, sizeof(*p->lines));
	if (!p->lines)
		return cli_error("no memory");
	total = &p->lines[p->w.n];
	for (size_t i = 0; i < p->w.n; i++) {
		struct line *l = &p->lines[i];
		uint32_t now = p->w.walk[i]->high_now;

		l->walk = p->w.walk[i];
		for (size_t k = 0; k < n; k++) {
			walk_whatif(l->walk, high[k], &l->p[k]);
			whatif_add(&total->p[k], &l->p[k]);
			total->p[k].high = high[k];
		}
		l->n = n;
		l->knee = whatif_knee(l->p, n);
		if (!now)
			continue;
		walk_whatif(l->walk, now, &l->now);
		p->now_least = p->now_least && p->now_least < now ? p->now_least : now;
		p->now_most = p->now_most > now ? p->now_most : now;
	}
	total->n = n;
	total->knee = whatif_knee(total->p, n);
	p->seconds = (double)(p->w.to_ns - p->w.from_ns) / 1e9;
	return -1;
}

/* A count for people: a second where the time is known. */
static double rate(const struct plot *p, double v)
{
	return p->seconds > 0 ? v / p->seconds : v;
}

/* ---- JSON ---- */

static json_t *rate_json(const struct plot *p, double v)
{
	return p->seconds > 0 ? json_real(v / p->seconds) : json_null();
}

static json_t *point_json(const struct plot *p, const struct whatif *w)
{
	json_t *o = json_object();

	json_object_set_new(o, "high", json_integer((json_int_t)w->high));
	json_object_set_new(o, "pages", json_integer((json_int_t)w->pages));
	json_object_set_new(o, "pages_least", json_integer((json_int_t)w->pages_least));
	json_object_set_new(o, "pages_most", json_integer((json_int_t)w->pages_most));
	json_object_set_new(o, "locks", json_real(w->locks));
	json_object_set_new(o, "pages_per_s", rate_json(p, (double)w->pages));
	json_object_set_new(o, "locks_per_s", rate_json(p, w->locks));
	return o;
}

static void walk_json(const struct plot *p, const struct line *l, json_t *o)
{
	const struct walk *w = l->walk;
	bool now = w->high_now != 0;

	json_object_set_new(o, "zone", json_integer(w->zone));
	json_object_set_new(o, "cpu", json_integer(w->cpu));
	json_object_set_new(o, "alloc_pages", json_integer((json_int_t)w->alloc_pages));
	json_object_set_new(o, "free_pages", json_integer((json_int_t)w->free_pages));
	json_object_set_new(o, "direct_pages", json_integer((json_int_t)w->direct_pages));
	json_object_set_new(o, "batch", json_integer(w->batch));
	json_object_set_new(o, "high_now", now ? json_integer(w->high_now) : json_null());
	json_object_set_new(o, "now", now ? point_json(p, &l->now) : json_null());
	json_object_set_new(o, "measured_pages",
			    p->w.from_log ? json_integer((json_int_t)(w->refilled + w->drained))
					  : json_null());
}

static json_t *line_json(const struct plot *p, const struct line *l)
{
	json_t *o = json_object(), *points = json_array();

	if (l->walk)
		walk_json(p, l, o);
	json_object_set_new(o, "knee",
			    l->knee < l->n ? json_integer((json_int_t)l->p[l->knee].high)
					   : json_null());
	for (size_t i = 0; i < l->n; i++)
		json_array_append_new(points, point_json(p, &l->p[i]));
	json_object_set_new(o, "points", points);
	return o;
}

static int print_json(const struct plot *p)
{
	json_t *o = json_object(), *cpus = json_array();

	json_object_set_new(o, "source", json_shown(p->source));
	json_object_set_new(o, "kind", json_string(p->w.from_log ? "log" : "trace"));
	json_object_set_new(o, "target",
			    p->w.from_log ? json_pack("{s:I, s:s}", "id", (json_int_t)p->target.id,
						      "name", p->target.name)
					  : json_null());
	json_object_set_new(o, "whole", json_boolean(!p->cut[0]));
	json_object_set_new(o, "seconds", json_real(p->seconds));
	json_object_set_new(o, "lower_bound", json_true());
	json_object_set_new(o, "basis",
			    json_string(!p->w.from_log	    ? "calls"
					: p->w.from_records ? "records"
							    : "samples"));
	json_object_set_new(o, "records", json_integer((json_int_t)p->w.records));
	json_object_set_new(o, "samples", json_integer((json_int_t)p->w.samples));
	json_object_set_new(o, "gaps", json_integer((json_int_t)p->w.gaps));
	json_object_set_new(o, "lost", json_integer((json_int_t)p->w.lost));
	json_object_set_new(o, "backwards", json_integer((json_int_t)p->w.backwards));
	for (size_t i = 0; i + 1 < p->n; i++)
		json_array_append_new(cpus, line_json(p, &p->lines[i]));
	json_object_set_new(o, "cpus", cpus);
	json_object_set_new(o, "total", line_json(p, &p->lines[p->n - 1]));
	return cli_print_json(o);
}

/* ---- text ---- */

static size_t column(const struct line *l, double high)
{
	double first = log2((double)l->p[0].high), last = log2((double)l->p[l->n - 1].high);
	double x = (log2(high) - first) / (last - first);

	return (size_t)(fmax(0, fmin(1, x)) * (PLOT_COLS - 1) + 0.5);
}

static void draw(const struct line *l, char grid[PLOT_ROWS][PLOT_COLS + 1])
{
	double most = (double)l->p[0].pages;

	memset(grid, ' ', PLOT_ROWS * (PLOT_COLS + 1));
	for (size_t i = 0; i < l->n; i++) {
		double y = most > 0 ? (double)l->p[i].pages / most : 0;
		size_t row = (size_t)((1 - y) * (PLOT_ROWS - 1) + 0.5);

		grid[row][column(l, (double)l->p[i].high)] = i == l->knee ? 'K' : '*';
	}
	for (size_t r = 0; r < PLOT_ROWS; r++)
		grid[r][PLOT_COLS] = '\0';
}

static void print_plot(const struct plot *p, const struct line *l)
{
	static char grid[PLOT_ROWS][PLOT_COLS + 1];
	const char *unit = p->seconds > 0 ? "pages/s" : "pages";
	char marks[PLOT_COLS + 1];
	double most = rate(p, (double)l->p[0].pages);

	draw(l, grid);
	printf("%12s\n", unit);
	for (size_t r = 0; r < PLOT_ROWS; r++)
		printf("%12.0f |%s\n", most * (double)(PLOT_ROWS - 1 - r) / (PLOT_ROWS - 1),
		       grid[r]);
	memset(marks, '-', PLOT_COLS);
	marks[PLOT_COLS] = '\0';
	if (p->now_least) {
		marks[column(l, p->now_least)] = '^';
		marks[column(l, p->now_most)] = '^';
	}
	printf("%12s +%s\n%12s  %-10" PRIu64 "%*" PRIu64 "\n", "high", marks, "", l->p[0].high,
	       PLOT_COLS - 10, l->p[l->n - 1].high);
	printf("%14sK: knee%s\n\n", "", p->now_least ? ", ^: high now" : "");
}

static void print_row(struct text_table *t, const struct plot *p, const struct line *l)
{
	const struct whatif *knee = l->knee < l->n ? &l->p[l->knee] : NULL;

	text_table_cell(t, "%u", l->walk->zone);
	text_table_cell(t, "%u", l->walk->cpu);
	if (l->walk->high_now) {
		text_table_cell(t, "%u", l->walk->high_now);
		text_table_cell(t, "%.0f", rate(p, (double)l->now.pages));
		text_table_cell(t, "%.0f", rate(p, (double)l->now.pages_most));
		text_table_cell(t, "%.0f", rate(p, (double)(l->walk->refilled + l->walk->drained)));
	} else {
		for (int i = 0; i < 4; i++)
			text_table_cell(t, "-");
	}
	if (knee) {
		text_table_cell(t, "%" PRIu64, knee->high);
		text_table_cell(t, "%.0f", rate(p, (double)knee->pages));
		text_table_cell(t, "%.1f", rate(p, knee->locks));
		text_table_cell(t, "%.0f to %.0f", rate(p, (double)knee->pages_least),
				rate(p, (double)knee->pages_most));
	} else {
		for (int i = 0; i < 4; i++)
			text_table_cell(t, "-");
	}
	text_table_end_row(t);
}

static void print_caveats(const struct plot *p)
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
	if (p->w.from_records && p->w.gaps)
		printf("%" PRIu64 " records have a hole before them: nothing is counted there, and "
		       "lists may have held\nanything up to high after it.\n",
		       p->w.gaps);
	else if (p->w.gaps || p->w.lost)
		printf("%" PRIu64 " gaps in the log, %" PRIu64 " intervals of a CPU without "
		       "numbers: nothing is counted there.\n",
		       p->w.gaps, p->w.lost);
	if (p->w.backwards)
		printf("%" PRIu64 " rows are earlier than the one before them; rows were taken in "
		       "the order of the file.\n",
		       p->w.backwards);
}

static int print_text(const struct plot *p)
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

/* ---- SVG ---- */

#define SVG_W 720.0
#define SVG_H 360.0
#define SVG_M 60.0

static double svg_x(const struct line *l, double high)
{
	double first = log2((double)l->p[0].high), last = log2((double)l->p[l->n - 1].high);

	return SVG_M + (SVG_W - 2 * SVG_M) * (log2(high) - first) / (last - first);
}

static double svg_y(double most, double pages)
{
	return SVG_H - SVG_M - (SVG_H - 2 * SVG_M) * (most > 0 ? pages / most : 0);
}

static void svg_line(FILE *f, const struct line *l, double most, const char *style)
{
	fprintf(f, "<polyline fill=\"none\" %s points=\"", style);
	for (size_t i = 0; i < l->n; i++)
		fprintf(f, "%.1f,%.1f ", svg_x(l, (double)l->p[i].high),
			svg_y(most, (double)l->p[i].pages));
	fprintf(f, "\"/>\n");
}

static void svg_mark(FILE *f, const struct line *l, double high, const char *text)
{
	double x = svg_x(l, high);

	fprintf(f,
		"<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"#999\" "
		"stroke-dasharray=\"4 3\"/>\n<text x=\"%.1f\" y=\"%.0f\">%s %.0f</text>\n",
		x, x, SVG_M, SVG_H - SVG_M, x + 3, SVG_M - 4, text, high);
}

static void svg_body(FILE *f, const struct plot *p)
{
	const struct line *total = &p->lines[p->n - 1];
	double most = (double)total->p[0].pages;

	for (size_t i = 0; i + 1 < p->n && p->n > 2; i++)
		svg_line(f, &p->lines[i], most, "stroke=\"#9bd\" stroke-width=\"1\"");
	svg_line(f, total, most, "stroke=\"#036\" stroke-width=\"2\"");
	if (total->knee < total->n)
		svg_mark(f, total, (double)total->p[total->knee].high, "knee");
	if (p->now_least)
		svg_mark(f, total, p->now_least, "now");
	fprintf(f, "<text x=\"%.0f\" y=\"%.0f\">high: %" PRIu64 " to %" PRIu64 " pages</text>\n",
		SVG_M, SVG_H - SVG_M / 2, total->p[0].high, total->p[total->n - 1].high);
	fprintf(f, "<text x=\"%.0f\" y=\"%.0f\">%s at the top: %.0f</text>\n", SVG_M, SVG_M / 2,
		p->seconds > 0 ? "pages a second" : "pages", rate(p, most));
}

static int write_svg(const struct plot *p)
{
	FILE *f = fopen(p->a->svg, "we");

	if (!f)
		return cli_error("%s: %s", p->a->svg, strerror(errno));
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
		"<path d=\"M%.0f %.0fV%.0fH%.0f\" fill=\"none\" stroke=\"#333\"/>\n",
		SVG_W, SVG_H, SVG_M, SVG_M, SVG_H - SVG_M, SVG_W - SVG_M);
	svg_body(f, p);
	fprintf(f, "</svg>\n");
	if (ferror(f) | fclose(f))
		return cli_error("%s: can not be written", p->a->svg);
	return -1;
}

/* ---- the verb ---- */

static int check(const struct args *a)
{
	if (a->trace && a->db)
		return cli_usage_error("--trace and --db: one of them");
	if (a->trace && (a->from || a->to || a->target))
		return cli_usage_error("--from, --to and a target are for a log");
	if (a->batch < 1 || a->batch > PCPTUNE_MAX_BATCH)
		return cli_usage_error("--batch: 1 to %u pages", PCPTUNE_MAX_BATCH);
	return -1;
}

static int run(struct plot *p)
{
	int r = p->a->trace ? from_trace(p) : from_log(p);

	if (r < 0 && walks_seal(&p->w))
		r = cli_error("no memory");
	if (r < 0 && !p->w.n) {
		cli_error("%s: nothing was allocated or freed there", p->source);
		r = CLI_DRIFT;
	}
	if (r < 0 && p->a->cpu >= 0)
		r = keep_cpu(&p->w, p->a->cpu);
	if (r < 0)
		r = compute(p);
	if (r < 0 && p->a->svg)
		r = write_svg(p);
	if (r < 0)
		r = p->a->json ? print_json(p) : print_text(p);
	if (p->cut[0])
		r = cli_error("%s", p->cut);
	return r;
}

int cmd_curve(int argc, char **argv)
{
	struct args a = {.cpu = -1, .batch = BATCH_DEFAULT};
	struct plot p = {.a = &a};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 1, &rest);

	if (r < 0 && rest.argc && a.target)
		r = cli_usage_error("TARGET and --target: one of them");
	else if (r < 0 && rest.argc)
		a.target = rest.argv[0];
	if (r < 0)
		r = check(&a);
	if (r >= 0)
		return r;
	r = run(&p);
	walks_free(&p.w);
	free(p.lines);
	return r;
}
