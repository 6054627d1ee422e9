/* SPDX-License-Identifier: MIT */
/*
 * What the files of `pcptune curve` share: the points of each CPU and of all together, worked out
 * by curve.c, and printed by curve_text.c, curve_json.c and curve_svg.c.
 */
#ifndef PCPTUNE_CLI_CURVE_H
#define PCPTUNE_CLI_CURVE_H

#include "cli/cli.h"
#include "eval/walks.h"

#define CURVE_POINTS_MAX PCPTUNE_BAND_BUCKETS

struct curve_args {
	const char *trace, *db, *socket, *target, *svg;
	uint64_t from, to;
	int64_t cpu, batch;
	bool json;
};

struct curve_line {
	const struct walk *walk; /* NULL: the total */
	struct whatif p[CURVE_POINTS_MAX], now;
	size_t n, knee; /* knee n: none */
};

struct curve_plot {
	const struct curve_args *a;
	const char *source;
	struct walks w;
	struct curve_line *lines; /* one for each walk, then the total */
	size_t n;
	double seconds;
	uint32_t now_least, now_most; /* of high, over the CPUs; 0: not known */
	struct log_target target;     /* of a log */
	size_t n_targets;	      /* of which it is the busiest */
	char cut[WALKS_WHY];	      /* what is wrong with the trace; empty: nothing */
};

/* A count for people: a second where the time is known. */
double curve_rate(const struct curve_plot *p, double v);
/* Where a value of high stands on the axis, which is logarithmic: 0 the first point, 1 the last. */
double curve_place(const struct curve_line *l, double high);

/* Exit statuses; curve_write_svg() gives -1 when all is well. */
int curve_print_text(const struct curve_plot *p);
int curve_print_json(const struct curve_plot *p);
int curve_write_svg(const struct curve_plot *p);

#endif
