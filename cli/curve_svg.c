/* SPDX-License-Identifier: MIT */
/*
 * A curve as a picture: one line for each CPU, the total, its knee, and where high is now.
 */
#include "cli/curve.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SVG_W 720.0
#define SVG_H 360.0
#define SVG_M 60.0

static double svg_x(const struct curve_line *l, double high)
{
	return SVG_M + (SVG_W - 2 * SVG_M) * curve_place(l, high);
}

static double svg_y(double most, double pages)
{
	return SVG_H - SVG_M - (SVG_H - 2 * SVG_M) * (most > 0 ? pages / most : 0);
}

static void svg_line(FILE *f, const struct curve_line *l, double most, const char *style)
{
	fprintf(f, "<polyline fill=\"none\" %s points=\"", style);
	for (size_t i = 0; i < l->n; i++)
		fprintf(f, "%.1f,%.1f ", svg_x(l, (double)l->p[i].high),
			svg_y(most, (double)l->p[i].pages));
	fprintf(f, "\"/>\n");
}

static void svg_mark(FILE *f, const struct curve_line *l, double high, const char *text)
{
	double x = svg_x(l, high);

	fprintf(f,
		"<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"#999\" "
		"stroke-dasharray=\"4 3\"/>\n<text x=\"%.1f\" y=\"%.0f\">%s %.0f</text>\n",
		x, x, SVG_M, SVG_H - SVG_M, x + 3, SVG_M - 4, text, high);
}

static void svg_body(FILE *f, const struct curve_plot *p)
{
	const struct curve_line *total = &p->lines[p->n - 1];
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
		p->seconds > 0 ? "pages a second" : "pages", curve_rate(p, most));
}

int curve_write_svg(const struct curve_plot *p)
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
