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
#include "cli/curve.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/segment.h>
#include "lib/text.h"

#define BATCH_DEFAULT 63

const struct cli_option options_curve[] = {
	{"trace", 't', "FILE", "of this trace", cli_set_string, offsetof(struct curve_args, trace)},
	CLI_OPT_DB(struct curve_args, db),
	{"target", 0, "TARGET", "of the log: id or name", cli_set_string,
	 offsetof(struct curve_args, target)},
	{"from", 0, "TIME", "of the log: from then on", cli_set_time,
	 offsetof(struct curve_args, from)},
	{"to", 0, "TIME", "of the log: up to then", cli_set_time, offsetof(struct curve_args, to)},
	{"cpu", 'c', "N", "this CPU only", cli_set_i64, offsetof(struct curve_args, cpu)},
	{"batch", 'b', "PAGES", "of a trace: pages moved at once (63)", cli_set_i64,
	 offsetof(struct curve_args, batch)},
	{"svg", 0, "FILE", "draw it there, too", cli_set_string, offsetof(struct curve_args, svg)},
	CLI_OPT_SOCKET(struct curve_args, socket),
	CLI_OPT_JSON(struct curve_args, json),
	{0},
};

/* ---- gathering ---- */

static int from_trace(struct curve_plot *p)
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
	if (e == -EOVERFLOW)
		return cli_error("%s: %s", p->a->trace, why);
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

/* What a target allocated and freed in the time that is asked for. */
struct work {
	uint64_t from, to; /* wall clock, 0: any */
	uint64_t pages;
};

static int add_pages(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		     size_t len, void *cookie)
{
	struct work *w = cookie;

	(void)data;
	(void)len;
	if (t.wall_us >= w->from && (!w->to || t.wall_us <= w->to))
		w->pages += totals->alloc_pages + totals->free_pages;
	return 0;
}

/* Of several targets the one that allocated and freed most then; the first of equals. */
static size_t busiest(const struct choice *c, const struct curve_args *a)
{
	uint64_t most = 0;
	size_t at = 0;

	for (size_t i = 0; c->n_found > 1 && i < c->n_found; i++) {
		struct work w = {a->from, a->to, 0};

		logstore_chunks(c->ls, c->found[i].id, 0, add_pages, &w);
		if (w.pages > most)
			at = i;
		most = w.pages > most ? w.pages : most;
	}
	return at;
}

/* The target that is meant. */
static int choose(struct curve_plot *p, struct logstore *ls)
{
	const struct log_filter all = {.cpu = -1};
	struct choice c = {.ls = ls, .word = p->a->target};
	int r = -1;

	if (c.word && text_parse_i64(c.word, &c.id))
		c.id = 0;
	if (logstore_targets(ls, &all, on_target, &c)) {
		r = cli_log_error(ls, logstore_error(ls));
	} else if (!c.n_all) {
		cli_error("%s: the log has no target", logstore_path(ls));
		r = CLI_DRIFT;
	} else if (!c.n_found) {
		text_clean(c.names);
		cli_error("%s: no target \"%s\"; targets: %s", logstore_path(ls), c.word, c.names);
		r = CLI_DRIFT;
	} else {
		p->target = c.found[busiest(&c, p->a)];
		p->n_targets = c.n_found;
		text_clean(p->target.name);
	}
	free(c.found);
	return r;
}

static int from_log(struct curve_plot *p)
{
	struct logstore *ls;
	char why[WALKS_WHY] = "";
	int r = cli_open_log(p->a->db, p->a->socket, p->a->json, &ls);

	if (r >= 0)
		return r;
	r = choose(p, ls);
	if (r < 0 && walks_add_log(&p->w, ls, &p->target, p->a->from, p->a->to, why))
		r = cli_log_error(ls, why);
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
		walk_free(k);
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
	for (uint32_t i = pcptune_band_bucket(least < 4 ? 4 : least); n < CURVE_POINTS_MAX; i++) {
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

static int compute(struct curve_plot *p)
{
	uint64_t high[CURVE_POINTS_MAX];
	struct curve_line *total;
	size_t n = highs(&p->w, high);

	p->n = p->w.n + 1;
	p->lines = calloc(p->n, sizeof(*p->lines));
	if (!p->lines)
		return cli_error("no memory");
	total = &p->lines[p->w.n];
	for (size_t i = 0; i < p->w.n; i++) {
		struct curve_line *l = &p->lines[i];
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
	if (walks_failed(&p->w))
		return cli_error("no memory");
	total->n = n;
	total->knee = whatif_knee(total->p, n);
	p->seconds = (double)(p->w.to_ns - p->w.from_ns) / 1e9;
	return -1;
}

double curve_rate(const struct curve_plot *p, double v)
{
	return p->seconds > 0 ? v / p->seconds : v;
}

double curve_place(const struct curve_line *l, double high)
{
	double first = log2((double)l->p[0].high), last = log2((double)l->p[l->n - 1].high);

	return (log2(high) - first) / (last - first);
}

/* ---- the verb ---- */

static int check(const struct curve_args *a)
{
	if (a->trace && a->db)
		return cli_usage_error("--trace and --db: one of them");
	if (a->trace && (a->from || a->to || a->target))
		return cli_usage_error("--from, --to and a target are for a log");
	if (a->to && a->from > a->to)
		return cli_usage_error("--from is later than --to");
	if (a->batch < 1 || a->batch > PCPTUNE_MAX_BATCH)
		return cli_usage_error("--batch: 1 to %u pages", PCPTUNE_MAX_BATCH);
	return -1;
}

static int run(struct curve_plot *p)
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
		r = curve_write_svg(p);
	if (r < 0)
		r = p->a->json ? curve_print_json(p) : curve_print_text(p);
	if (p->cut[0])
		r = cli_error("%s", p->cut);
	return r;
}

int cmd_curve(int argc, char **argv)
{
	struct curve_args a = {.cpu = -1, .batch = BATCH_DEFAULT};
	struct curve_plot p = {.a = &a};
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
