/* SPDX-License-Identifier: MIT */
/*
 * `pcptune trace import|export|info`: trace files from and to comma-separated text, and what is in
 * one.
 *
 * An import that fails leaves what was there before. A trace that is damaged or cut is told so
 * after what could be read of it: export and info give the good rows, say what is lost, and exit
 * with 1.
 */
#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pcptune/segment.h>
#include "lib/text.h"
#include "lib/trace.h"

struct args {
	const char *output;
	bool json;
};

const struct cli_option options_trace[] = {
	{"output", 'o', "FILE", "where to write", cli_set_string, offsetof(struct args, output)},
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* ---- import, export ---- */

static void print_written(const struct args *a, const char *path, uint64_t rows)
{
	struct stat st = {0};
	char n[2][48];
	json_t *o;

	stat(path, &st);
	if (!a->json) {
		printf("%s: %s row%s in %s\n", path, cli_count(rows, n[0], sizeof(n[0])),
		       rows == 1 ? "" : "s", text_bytes((uint64_t)st.st_size, n[1], sizeof(n[1])));
		return;
	}
	o = json_object();
	json_object_set_new(o, "file", json_shown(path));
	json_object_set_new(o, "rows", json_integer((json_int_t)rows));
	json_object_set_new(o, "bytes", json_integer((json_int_t)st.st_size));
	cli_print_json(o);
}

static int import(const char *from, const char *to, const struct args *a)
{
	bool std = !strcmp(from, "-"), shown = !strcmp(to, "-");
	FILE *in = std ? stdin : fopen(from, "re");
	struct trace_writer *w = NULL;
	char why[TRACE_WHY] = "no memory";
	struct cli_output o;
	uint64_t rows = 0;
	int r, e = 0;

	if (!in)
		return cli_error("%s: %s", from, strerror(errno));
	r = cli_output_open(&o, shown ? NULL : to);
	if (r < 0) {
		e = trace_writer_new(o.f, "csv", &w);
		if (!e)
			e = trace_csv_import(in, std ? "standard input" : from, w, &rows, why);
		if (!e && (e = trace_writer_end(w)))
			snprintf(why, sizeof(why), "%.200s: %s", to, strerror(-e));
		trace_writer_free(w);
		if (e)
			cli_error("%s", why);
		r = cli_output_close(&o, !e);
	}
	if (!std)
		fclose(in);
	if (e || (shown && r < 0))
		return e ? CLI_ERROR : CLI_OK;
	if (r < 0)
		print_written(a, to, rows);
	return r < 0 ? CLI_OK : r;
}

static int export(const char *from, const char *to, const struct args *a)
{
	struct trace_reader *t;
	char why[TRACE_WHY];
	struct cli_output o;
	uint64_t rows = 0;
	int r, e = trace_open(from, &t, why);

	if (e)
		return cli_error("%s", why);
	r = cli_output_open(&o, to && strcmp(to, "-") ? to : NULL);
	if (r < 0) {
		e = trace_csv_export(t, o.f, &rows, why);
		r = cli_output_close(&o, !e || e == -EBADMSG);
		if (e)
			r = cli_error("%s", why);
	}
	trace_close(t);
	if (r < 0 && a->json)
		print_written(a, to, rows);
	return r < 0 ? CLI_OK : r;
}

/* ---- info ---- */

struct info {
	uint64_t rows, backwards, first_ns, last_ns, least_ns, most_ns;
	uint64_t allocated, freed; /* pages; PAGES_NONE: more than can be counted */
	uint64_t level;		   /* pages on the lists at the beginning */
	bool has_level;
	uint64_t order[PCPTUNE_MAX_ORDER + 1];
	uint32_t cpus;
	bool seen[PCPTUNE_MAX_CPUS];
};

#define PAGES_NONE ((uint64_t)INT64_MAX)

static void add_pages(uint64_t *sum, uint64_t pages)
{
	*sum = *sum < PAGES_NONE - pages ? *sum + pages : PAGES_NONE;
}

static json_t *pages_json(uint64_t pages)
{
	return pages < PAGES_NONE ? json_integer((json_int_t)pages) : json_null();
}

static const char *pages_text(uint64_t pages, char *buf, size_t n)
{
	return pages < PAGES_NONE ? cli_count(pages, buf, n) : "2^63 or more";
}

static void info_row(struct info *i, const struct trace_row *row, bool level)
{
	if (!i->rows++) {
		i->first_ns = i->least_ns = i->most_ns = row->time_ns;
	} else {
		i->backwards += row->time_ns < i->last_ns;
	}
	i->last_ns = row->time_ns;
	i->least_ns = row->time_ns < i->least_ns ? row->time_ns : i->least_ns;
	i->most_ns = row->time_ns > i->most_ns ? row->time_ns : i->most_ns;
	i->has_level |= level;
	if (level)
		add_pages(&i->level, (uint64_t)row->blocks << row->order);
	else if (row->blocks < 0)
		add_pages(&i->allocated, (uint64_t)-row->blocks << row->order);
	else
		add_pages(&i->freed, (uint64_t)row->blocks << row->order);
	i->order[row->order]++;
	i->cpus += !i->seen[row->cpu];
	i->seen[row->cpu] = true;
}

/* bytes: of the file, 0: it is none. */
static json_t *info_json(const struct info *i, const char *path, uint64_t bytes, const char *why)
{
	json_t *o = json_object(), *orders = json_object();
	char name[8];

	json_object_set_new(o, "file", json_shown(path));
	json_object_set_new(o, "whole", json_boolean(!why));
	if (why)
		json_object_set_new(o, "error", json_shown(why));
	json_object_set_new(o, "rows", json_integer((json_int_t)i->rows));
	json_object_set_new(o, "bytes", bytes ? json_integer((json_int_t)bytes) : json_null());
	json_object_set_new(o, "cpus", json_integer(i->cpus));
	json_object_set_new(o, "first_ns", json_integer((json_int_t)i->least_ns));
	json_object_set_new(o, "last_ns", json_integer((json_int_t)i->most_ns));
	json_object_set_new(o, "backwards", json_integer((json_int_t)i->backwards));
	json_object_set_new(o, "alloc_pages", pages_json(i->allocated));
	json_object_set_new(o, "free_pages", pages_json(i->freed));
	json_object_set_new(o, "level_pages",
			    i->has_level ? pages_json(i->level) : json_null());
	for (uint32_t k = 0; k <= PCPTUNE_MAX_ORDER; k++) {
		snprintf(name, sizeof(name), "%u", k);
		if (i->order[k])
			json_object_set_new(orders, name, json_integer((json_int_t)i->order[k]));
	}
	json_object_set_new(o, "rows_by_order", orders);
	return o;
}

static void info_text(const struct info *i, const char *path, uint64_t bytes)
{
	char n[4][48];

	printf("%s: %s row%s of %u CPU%s", path, cli_count(i->rows, n[0], sizeof(n[0])),
	       i->rows == 1 ? "" : "s", i->cpus, i->cpus == 1 ? "" : "s");
	if (bytes)
		printf(" in %s", text_bytes(bytes, n[1], sizeof(n[1])));
	if (bytes && i->rows)
		printf(" (%.1f bytes each)", (double)bytes / (double)i->rows);
	printf("\n");
	if (!i->rows)
		return;
	printf("time: %" PRIu64 " ns to %" PRIu64 " ns, %s\n", i->least_ns, i->most_ns,
	       text_ns(i->most_ns - i->least_ns, n[0], sizeof(n[0])));
	if (i->backwards)
		printf("      %s row%s earlier than the row before\n",
		       cli_count(i->backwards, n[0], sizeof(n[0])),
		       i->backwards == 1 ? " is" : "s are");
	printf("pages: %s allocated, %s freed\n", pages_text(i->allocated, n[0], sizeof(n[0])),
	       pages_text(i->freed, n[1], sizeof(n[1])));
	if (i->has_level)
		printf("       %s on the lists where it begins\n",
		       pages_text(i->level, n[0], sizeof(n[0])));
	printf("rows by order:");
	for (uint32_t k = 0; k <= PCPTUNE_MAX_ORDER; k++)
		if (i->order[k])
			printf(" %u: %s", k, cli_count(i->order[k], n[0], sizeof(n[0])));
	printf("\n");
}

static int info(const char *path, const struct args *a)
{
	static struct info i;
	const struct trace_row *rows;
	struct trace_reader *t;
	struct stat st = {0};
	char why[TRACE_WHY];
	size_t n;
	int e = trace_open(path, &t, why), r = CLI_OK;

	if (e)
		return cli_error("%s", why);
	stat(path, &st);
	while ((e = trace_next(t, &rows, &n, why)) == 1)
		for (size_t k = 0; k < n; k++)
			info_row(&i, &rows[k], k < trace_levels(t));
	trace_close(t);
	if (a->json)
		r = cli_print_json(info_json(&i, path, (uint64_t)st.st_size, e ? why : NULL));
	else
		info_text(&i, path, (uint64_t)st.st_size);
	return e ? cli_error("%s", why) : r;
}

/* ---- the verb ---- */

int cmd_trace(int argc, char **argv)
{
	static const char *const what[] = {"import", "export", "info"};
	struct args a = {0};
	struct cli_rest rest;
	const char *near, *to;
	int r = cli_parse(argc, argv, &a, 2, 3, &rest);

	if (r >= 0)
		return r;
	to = a.output ? a.output : rest.argc == 3 ? rest.argv[2] : NULL;
	if (a.output && rest.argc == 3)
		return cli_usage_error("\"%s\" is one word too many beside --output", rest.argv[2]);
	if (!strcmp(rest.argv[0], "import")) {
		if (a.json && to && !strcmp(to, "-"))
			return cli_usage_error("import --json tells of a file: -o FILE is missing");
		return to ? import(rest.argv[1], to, &a)
			  : cli_usage_error("missing: where to write (-o FILE)");
	}
	if (!strcmp(rest.argv[0], "export"))
		return a.json && (!to || !strcmp(to, "-"))
			       ? cli_usage_error(
					 "export --json tells of a file: -o FILE is missing")
			       : export(rest.argv[1], to, &a);
	if (!strcmp(rest.argv[0], "info"))
		return to ? cli_usage_error("info writes no file") : info(rest.argv[1], &a);
	near = text_nearest(rest.argv[0], what, 3);
	return cli_usage_error("\"%s\": not import, export or info%s%s%s", rest.argv[0],
			       near ? "; did you mean \"" : "", near ? near : "",
			       near ? "\"?" : "");
}
