/* SPDX-License-Identifier: MIT */
/*
 * A curve for programs: every point of every CPU and of the total. What is not known is null.
 */
#include "cli/curve.h"

#include "lib/jsontext.h"

static json_t *rate_json(const struct curve_plot *p, double v)
{
	return p->seconds > 0 ? json_real(v / p->seconds) : json_null();
}

static json_t *point_json(const struct curve_plot *p, const struct whatif *w)
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

static void walk_json(const struct curve_plot *p, const struct curve_line *l, json_t *o)
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

static json_t *line_json(const struct curve_plot *p, const struct curve_line *l)
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

int curve_print_json(const struct curve_plot *p)
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
