/* SPDX-License-Identifier: MIT */
/*
 * `pcptune targets`: the processes that are attached now, or with --db those of a log.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "lib/text.h"

struct args {
	const char *socket, *db;
	bool json;
};

const struct cli_option options_targets[] = {
	{"db", 'd', "PATH", "the targets of this log instead of the live ones", cli_set_string,
	 offsetof(struct args, db)},
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

static void columns(struct text_table *t, const char *const *titles, const char *align)
{
	for (; *titles; titles++, align++)
		text_table_column(t, *titles, *align);
}

/* ---- live ---- */

static void live_row(struct text_table *t, const json_t *target)
{
	char buf[64];

	text_table_cell(t, "%" PRIu64, cli_u64(target, "id"));
	text_table_cell(t, "%s", cli_str(target, "name"));
	text_table_cell(t, "%" PRIu64, cli_u64(target, "pid"));
	text_table_cell(t, "%" PRIu64, cli_u64(target, "uid"));
	text_table_cell(t, "%s", cli_str(target, "policy"));
	text_table_cell(
		t, "%s",
		text_ns((uint64_t)(json_number_value(json_object_get(target, "attached_s")) * 1e9),
			buf, sizeof(buf)));
	text_table_cell(t, "%s", text_pages(cli_u64(target, "held_pages"), buf, sizeof(buf)));
	text_table_cell(t, "%" PRIu64, cli_u64(target, "decisions"));
	text_table_end_row(t);
}

static int live_text(const json_t *targets)
{
	static const char *const titles[] = {"id",	 "name", "pid",	      "uid", "policy",
					     "attached", "held", "decisions", NULL};
	struct text_table *t;
	json_t *target;
	size_t i;

	if (!json_array_size(targets)) {
		printf("no targets\n");
		return CLI_OK;
	}
	t = text_table_new();
	if (!t)
		return cli_error("no memory");
	columns(t, titles, "><>><>>>");
	json_array_foreach (targets, i, target)
		live_row(t, target);
	text_table_print(t, stdout, text_colour(stdout));
	text_table_free(t);
	return CLI_OK;
}

static int live(const struct args *a)
{
	struct ctlclient *c;
	json_t *result;
	int r = cli_connect(a->socket, &c);

	if (r >= 0)
		return r;
	r = cli_call(c, json_pack("{s:s}", "cmd", "targets"), &result);
	ctlclient_close(c);
	if (r >= 0)
		return r;
	r = a->json ? cli_print_json(json_incref(result))
		    : live_text(json_object_get(result, "targets"));
	json_decref(result);
	return r;
}

/* ---- of a log ---- */

struct logged {
	struct text_table *table;
	json_t *list;
	size_t n;
};

static json_t *time_json(struct logstamp t)
{
	char buf[48];

	return t.wall_us ? json_string(text_time_iso(t.wall_us, buf, sizeof(buf))) : json_null();
}

static void logged_json(json_t *list, const struct log_target *t)
{
	json_t *o = json_object();

	json_object_set_new(o, "id", json_integer(t->id));
	json_object_set_new(o, "name", json_string(t->name));
	json_object_set_new(o, "pid", json_integer(t->pid));
	json_object_set_new(o, "uid", json_integer(t->uid));
	json_object_set_new(o, "run", json_integer(t->run));
	json_object_set_new(o, "attached", time_json(t->attached));
	json_object_set_new(o, "detached", time_json(t->detached));
	json_object_set_new(o, "end", json_string(t->end));
	json_object_set_new(o, "zones", json_integer(t->shape.n_zones));
	json_object_set_new(o, "cpus", json_integer(t->shape.n_cpus));
	json_object_set_new(o, "managed_pages", json_integer((json_int_t)t->shape.managed_pages));
	json_array_append_new(list, o);
}

static int on_logged(const struct log_target *t, void *cookie)
{
	struct logged *l = cookie;
	char buf[48];

	l->n++;
	logged_json(l->list, t);
	text_table_cell(l->table, "%" PRId64, t->id);
	text_table_cell(l->table, "%s", t->name);
	text_table_cell(l->table, "%" PRIu32, t->pid);
	text_table_cell(l->table, "%" PRIu32, t->uid);
	text_table_cell(l->table, "%s", text_time(t->attached.wall_us, buf, sizeof(buf)));
	text_table_cell(l->table, "%s",
			t->detached.wall_us ? text_time(t->detached.wall_us, buf, sizeof(buf))
					    : "-");
	text_table_cell(l->table, "%s", t->end);
	text_table_end_row(l->table);
	return 0;
}

static int print_logged(struct logged *l, bool json)
{
	if (json)
		return cli_print_json(json_pack("{s:O}", "targets", l->list));
	if (l->n)
		text_table_print(l->table, stdout, text_colour(stdout));
	else
		printf("no targets in this log\n");
	return CLI_OK;
}

static int of_log(const struct args *a)
{
	static const char *const titles[] = {"id",	 "name",     "pid", "uid",
					     "attached", "detached", "end", NULL};
	const struct log_filter all = {.cpu = -1};
	struct logged l = {text_table_new(), json_array(), 0};
	struct logstore *ls;
	int r = l.table && l.list ? cli_open_log(a->db, a->socket, a->json, &ls)
				  : cli_error("no memory");

	if (r < 0) {
		columns(l.table, titles, "><>><<<");
		if (logstore_targets(ls, &all, on_logged, &l))
			r = cli_log_error(ls, logstore_error(ls));
		else
			r = print_logged(&l, a->json);
		logstore_close(ls);
	}
	text_table_free(l.table);
	json_decref(l.list);
	return r;
}

int cmd_targets(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest);

	if (r >= 0)
		return r;
	return a.db ? of_log(&a) : live(&a);
}
