/* SPDX-License-Identifier: MIT */
/*
 * `pcptune counters`: every number that a target exports, explained; or those of one target.
 *
 * Names, units and texts come from counters.def alone; docs/counters.md is the output of
 * `pcptune counters --markdown`, and a test compares the two.
 */
#include "cli/counters.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/cli.h"
#include "lib/text.h"

struct args {
	const char *socket;
	bool json, markdown, cpus;
};

const struct cli_option options_counters[] = {
	{"cpus", 'c', NULL, "a column for each CPU", cli_set_flag, offsetof(struct args, cpus)},
	{"markdown", 'm', NULL, "the explanations as a Markdown page", cli_set_flag,
	 offsetof(struct args, markdown)},
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

#define CPU_ROW(field, unit, line, para, kind, bits) \
	{#field, unit, line, para, kind, "cpu", offsetof(struct pcptune_cpu, field), bits},
const struct cli_counter cli_counters[] = {
#define PCPTUNE_LIST(field, unit, line, para)	CPU_ROW(field, unit, line, para, "counter", 64)
#define PCPTUNE_ZCTR(field, unit, line, para)	CPU_ROW(field, unit, line, para, "counter", 64)
#define PCPTUNE_PCTR(field, unit, line, para)	CPU_ROW(field, unit, line, para, "counter", 64)
#define PCPTUNE_GAUGE(field, unit, line, para)	CPU_ROW(field, unit, line, para, "gauge", 32)
#define PCPTUNE_ZGAUGE(field, unit, line, para) {#field, unit, line, para, "gauge", "zone", 0, 0},
#define PCPTUNE_HOLD(field, unit, line, para)	{#field, unit, line, para, "counter", "zone", 0, 0},
#define PCPTUNE_PROC(field, unit, line, para) \
	{#field, unit, line, para, "counter", "process", 0, 0},
#include <pcptune/counters.def>
};
const size_t cli_n_counters = sizeof(cli_counters) / sizeof(cli_counters[0]);

uint64_t cli_counter_value(const struct cli_counter *row, const struct pcptune_cpu *cpu)
{
	const char *at = (const char *)cpu + row->offset;

	return row->bits == 64	 ? *(const uint64_t *)at
	       : row->bits == 32 ? *(const uint32_t *)at
				 : 0;
}

/* ---- explanations ---- */

static const struct level {
	const char *name, *title;
} levels[] = {
	{"cpu", "For each CPU of each zone"},
	{"zone", "For each zone"},
	{"process", "For each process"},
};

static void markdown(void)
{
	size_t l, i;

	printf("# Counters\n\n"
	       "Every number that a target exports. \"Page\" is a page of 4096 bytes. Counters "
	       "never go "
	       "down; gauges are\nstates. This page is the output of `pcptune counters "
	       "--markdown`.\n");
	for (l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) {
		printf("\n## %s\n\n| name | kind | unit | what it is | more "
		       "|\n|---|---|---|---|---|\n",
		       levels[l].title);
		for (i = 0; i < cli_n_counters; i++) {
			const struct cli_counter *c = &cli_counters[i];

			if (!strcmp(c->level, levels[l].name))
				printf("| `%s` | %s | %s | %s | %s |\n", c->name, c->kind, c->unit,
				       c->line, c->para);
		}
	}
}

static int explain_json(void)
{
	json_t *list = json_array();
	size_t i;

	for (i = 0; i < cli_n_counters; i++) {
		const struct cli_counter *c = &cli_counters[i];

		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "name", c->name,
						"kind", c->kind, "level", c->level, "unit", c->unit,
						"line", c->line, "text", c->para));
	}
	return cli_print_json(json_pack("{s:o}", "counters", list));
}

static int explain_text(void)
{
	static const char *const titles[] = {"name", "level", "kind", "unit", "what it is"};
	struct text_table *t = text_table_new();
	size_t i;

	if (!t)
		return cli_error("no memory");
	for (i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], '<');
	for (i = 0; i < cli_n_counters; i++) {
		const struct cli_counter *c = &cli_counters[i];

		text_table_cell(t, "%s", c->name);
		text_table_cell(t, "%s", c->level);
		text_table_cell(t, "%s", c->kind);
		text_table_cell(t, "%s", c->unit);
		text_table_cell(t, "%s", c->line);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

/* ---- those of a target ---- */

static void values(struct text_table *t, const struct cli_counter *c, const json_t *cpus, bool each)
{
	bool sums = !strcmp(c->kind, "counter");
	uint64_t sum = 0;
	char buf[32];
	size_t i;
	json_t *cpu;

	json_array_foreach (cpus, i, cpu)
		sum += cli_u64(cpu, c->name);
	text_table_cell(t, "%s", c->name);
	text_table_cell(t, "%s", c->unit);
	text_table_cell(t, "%s", sums ? cli_count(sum, buf, sizeof(buf)) : "");
	json_array_foreach (cpus, i, cpu)
		if (each)
			text_table_cell(t, "%s",
					cli_count(cli_u64(cpu, c->name), buf, sizeof(buf)));
	text_table_cell(t, "%s", c->line);
	text_table_end_row(t);
}

static struct text_table *value_table(const json_t *cpus, bool each)
{
	struct text_table *t = text_table_new();
	char title[32];
	size_t i;
	json_t *cpu;

	if (!t)
		return NULL;
	text_table_column(t, "name", '<');
	text_table_column(t, "unit", '<');
	text_table_column(t, "total", '>');
	json_array_foreach (cpus, i, cpu) {
		snprintf(title, sizeof(title), "cpu %" PRIu64, cli_u64(cpu, "cpu"));
		if (each)
			text_table_column(t, title, '>');
	}
	text_table_column(t, "what it is", '<');
	return t;
}

/* One object that has the values by name: a zone or the process. */
static int print_object(const char *level, const json_t *object)
{
	struct text_table *t = value_table(NULL, false);
	char buf[32];
	size_t i;

	if (!t)
		return cli_error("no memory");
	for (i = 0; i < cli_n_counters; i++) {
		const struct cli_counter *c = &cli_counters[i];

		if (strcmp(c->level, level))
			continue;
		text_table_cell(t, "%s", c->name);
		text_table_cell(t, "%s", c->unit);
		text_table_cell(t, "%s", cli_count(cli_u64(object, c->name), buf, sizeof(buf)));
		text_table_cell(t, "%s", c->line);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

/* each, or only one CPU: gauges have a column to stand in */
static int print_cpus(const json_t *cpus, bool each)
{
	struct text_table *t = value_table(cpus, each);
	size_t i;

	if (!t)
		return cli_error("no memory");
	for (i = 0; i < cli_n_counters; i++)
		if (!strcmp(cli_counters[i].level, "cpu") &&
		    (each || !strcmp(cli_counters[i].kind, "counter")))
			values(t, &cli_counters[i], cpus, each);
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

static int print_target(const json_t *result, bool each)
{
	json_t *zone;
	size_t i;
	int r = CLI_OK;

	json_array_foreach (json_object_get(result, "zones"), i, zone) {
		const json_t *cpus = json_object_get(zone, "cpus");

		printf("%szone %" PRIu64 "%s\n", cli_bold(), cli_u64(zone, "id"), cli_plain());
		r = print_object("zone", zone);
		printf("\n%szone %" PRIu64 ", %zu CPUs%s%s\n", cli_bold(), cli_u64(zone, "id"),
		       json_array_size(cpus), cli_plain(),
		       each ? "" : " (--cpus shows each, with its gauges)");
		r = r ? r : print_cpus(cpus, each);
		putchar('\n');
		if (r)
			return r;
	}
	printf("%sprocess%s\n", cli_bold(), cli_plain());
	return print_object("process", json_object_get(result, "proc"));
}

static int of_target(const struct args *a, const char *target)
{
	struct ctlclient *c;
	json_t *result;
	int r = cli_connect(a->socket, &c);

	if (r >= 0)
		return r;
	r = cli_call(c, json_pack("{s:s, s:o}", "cmd", "counters", "target", cli_target(target)),
		     &result);
	ctlclient_close(c);
	if (r >= 0)
		return r;
	if (a->json)
		return cli_print_json(result);
	r = print_target(result, a->cpus);
	json_decref(result);
	return r;
}

int cmd_counters(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 1, &rest);

	if (r >= 0)
		return r;
	if (rest.argc && a.markdown)
		return cli_usage_error(
			"--markdown explains the counters; it goes without a TARGET");
	if (rest.argc)
		return of_target(&a, rest.argv[0]);
	if (a.cpus)
		return cli_usage_error("--cpus needs a TARGET");
	if (a.markdown) {
		markdown();
		return CLI_OK;
	}
	return a.json ? explain_json() : explain_text();
}
