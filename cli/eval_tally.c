/* SPDX-License-Identifier: MIT */
/* Sums of `eval` over logs, see eval_tally.h. What is not known is "-", in JSON null. */
#include "cli/eval_tally.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "lib/text.h"

#define PARTIAL	    "pcptune eval partial"
#define PARTIAL_NOW 1

/* ---- fields ---- */

struct field {
	const char *name;
	size_t at;
};

#define F(type, name)                       \
	{                                   \
#name, offsetof(type, name) \
	}

static const struct field sums_fields[] = {
	F(struct relive_sums, alloc_zone),     F(struct relive_sums, free_zone),
	F(struct relive_sums, moved),	       F(struct relive_sums, lock_takes),
	F(struct relive_sums, lock_contended), F(struct relive_sums, wait_ns),
	F(struct relive_sums, free_high),      F(struct relive_sums, held_page_ms),
	F(struct relive_sums, held_peak),      F(struct relive_sums, decisions),
	F(struct relive_sums, turns),	       F(struct relive_sums, breaches),
	F(struct relive_sums, memory),	       F(struct relive_sums, split),
	F(struct relive_sums, n_split),	       F(struct relive_sums, grown),
	F(struct relive_sums, orders),
};
#define N_SUMS (sizeof(sums_fields) / sizeof(sums_fields[0]))
_Static_assert(N_SUMS * sizeof(uint64_t) == sizeof(struct relive_sums), "every sum has its row");

static const struct field log_fields[] = {
	F(struct relive_log, targets),	    F(struct relive_log, cpus),
	F(struct relive_log, records),	    F(struct relive_log, steps),
	F(struct relive_log, covered_ms),   F(struct relive_log, cpu_us),
	F(struct relive_log, alloc_pages),  F(struct relive_log, free_pages),
	F(struct relive_log, holes),	    F(struct relive_log, moved_high),
	F(struct relive_log, collapsed),    F(struct relive_log, unrecorded),
	F(struct relive_log, damaged),	    F(struct relive_log, bare_targets),
	F(struct relive_log, least_budget),
};
#define N_LOG (sizeof(log_fields) / sizeof(log_fields[0]))
_Static_assert(N_LOG * sizeof(uint64_t) + sizeof(struct relive_sums) == sizeof(struct relive_log),
	       "every number has its row");

static json_t *integer(uint64_t v)
{
	return json_integer((json_int_t)v);
}

static json_t *fields_json(const struct field *f, size_t n, const void *from)
{
	json_t *o = json_object();

	for (size_t i = 0; i < n; i++) {
		uint64_t v;

		memcpy(&v, (const char *)from + f[i].at, sizeof(v));
		json_object_set_new(o, f[i].name, integer(v));
	}
	return o;
}

static bool fields_read(const struct field *f, size_t n, void *to, const json_t *o)
{
	for (size_t i = 0; i < n; i++) {
		const json_t *j = json_object_get(o, f[i].name);
		uint64_t v = (uint64_t)json_integer_value(j);

		if (!json_is_integer(j) || json_integer_value(j) < 0)
			return false;
		memcpy((char *)to + f[i].at, &v, sizeof(v));
	}
	return true;
}

/* ---- life ---- */

int tally_init(struct tally *t, size_t rows)
{
	*t = (struct tally){.logs = json_array(), .recorded = json_array(), .n = rows};
	t->rows = calloc(rows + 1, sizeof(*t->rows));
	return t->logs && t->recorded && t->rows ? 0 : -ENOMEM;
}

void tally_free(struct tally *t)
{
	for (size_t i = 0; t->rows && i < t->n; i++)
		json_decref(t->rows[i].params);
	free(t->rows);
	json_decref(t->logs);
	json_decref(t->recorded);
	*t = (struct tally){0};
}

void tally_recorded(struct tally *t, const char *policy)
{
	for (size_t i = 0; i < json_array_size(t->recorded); i++)
		if (!strcmp(json_string_value(json_array_get(t->recorded, i)), policy))
			return;
	json_array_append_new(t->recorded, json_string(policy));
}

/* ---- written and read ---- */

static json_t *row_partial(const struct tally_row *r)
{
	json_t *o = json_object();

	json_object_set_new(o, "kind", json_integer(r->kind));
	json_object_set_new(o, "policy", json_string(r->policy));
	json_object_set_new(o, "version", json_string(r->version));
	json_object_set_new(o, "shown", json_string(r->shown));
	json_object_set_new(o, "params", r->params ? json_deep_copy(r->params) : json_null());
	json_object_set_new(o, "error", json_string(r->error));
	json_object_set_new(o, "sums", fields_json(sums_fields, N_SUMS, &r->sums));
	return o;
}

json_t *tally_partial(const struct tally *t)
{
	json_t *o = json_object(), *rows = json_array();

	json_object_set_new(o, "what", json_string(PARTIAL));
	json_object_set_new(o, "version", json_integer(PARTIAL_NOW));
	json_object_set_new(o, "logs", json_incref(t->logs));
	json_object_set_new(o, "recorded", json_incref(t->recorded));
	json_object_set_new(o, "budget", integer(t->budget));
	json_object_set_new(o, "log", fields_json(log_fields, N_LOG, &t->log));
	json_object_set_new(o, "measured", fields_json(sums_fields, N_SUMS, &t->log.measured));
	for (size_t i = 0; i < t->n; i++)
		json_array_append_new(rows, row_partial(&t->rows[i]));
	json_object_set_new(o, "rows", rows);
	return o;
}

static bool row_read(struct tally_row *r, const json_t *o)
{
	json_t *params = json_object_get(o, "params");

	r->kind = (enum relive_kind)json_integer_value(json_object_get(o, "kind"));
	snprintf(r->policy, sizeof(r->policy), "%s", cli_str(o, "policy"));
	snprintf(r->version, sizeof(r->version), "%s", cli_str(o, "version"));
	snprintf(r->shown, sizeof(r->shown), "%s", cli_str(o, "shown"));
	snprintf(r->error, sizeof(r->error), "%s", cli_str(o, "error"));
	text_clean(r->policy);
	text_clean(r->version);
	text_clean(r->shown);
	text_clean(r->error);
	r->params = json_is_object(params) ? json_incref(params) : NULL;
	return r->kind <= RELIVE_AS_SET &&
	       fields_read(sums_fields, N_SUMS, &r->sums, json_object_get(o, "sums"));
}

static bool strings(const json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!json_is_string(json_array_get(list, i)))
			return false;
	return json_is_array(list);
}

bool tally_read(struct tally *t, const json_t *o)
{
	const json_t *rows = json_object_get(o, "rows");
	json_t *logs = json_object_get(o, "logs"), *recorded = json_object_get(o, "recorded");
	bool good = !strcmp(cli_str(o, "what"), PARTIAL) && cli_u64(o, "version") == PARTIAL_NOW &&
		    json_is_array(rows) && strings(logs) && strings(recorded);

	if (!good || tally_init(t, json_array_size(rows)))
		return false;
	json_array_extend(t->logs, logs);
	json_array_extend(t->recorded, recorded);
	t->budget = cli_u64(o, "budget");
	good = fields_read(log_fields, N_LOG, &t->log, json_object_get(o, "log")) &&
	       fields_read(sums_fields, N_SUMS, &t->log.measured, json_object_get(o, "measured"));
	for (size_t i = 0; good && i < t->n; i++)
		good = row_read(&t->rows[i], json_array_get(rows, i));
	return good;
}

static bool same_row(const struct tally_row *a, const struct tally_row *b)
{
	return a->kind == b->kind && !strcmp(a->policy, b->policy) &&
	       !strcmp(a->version, b->version) && !strcmp(a->shown, b->shown) &&
	       (a->params ? b->params && json_equal(a->params, b->params) : !b->params);
}

bool tally_add(struct tally *a, const struct tally *b)
{
	bool same = a->n == b->n && a->budget == b->budget;

	for (size_t i = 0; same && i < a->n; i++)
		same = same_row(&a->rows[i], &b->rows[i]);
	if (!same)
		return false;
	json_array_extend(a->logs, b->logs);
	for (size_t i = 0; i < json_array_size(b->recorded); i++)
		tally_recorded(a, json_string_value(json_array_get(b->recorded, i)));
	relive_log_add(&a->log, &b->log);
	for (size_t i = 0; i < a->n; i++) {
		relive_add(&a->rows[i].sums, &b->rows[i].sums);
		if (!a->rows[i].error[0])
			memcpy(a->rows[i].error, b->rows[i].error, sizeof(a->rows[i].error));
	}
	return true;
}

static bool fields_fit(const struct field *f, size_t n, const void *of)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t v;

		memcpy(&v, (const char *)of + f[i].at, sizeof(v));
		if (v > INT64_MAX)
			return false;
	}
	return true;
}

bool tally_fits(const struct tally *t)
{
	bool fit = fields_fit(log_fields, N_LOG, &t->log) &&
		   fields_fit(sums_fields, N_SUMS, &t->log.measured);

	for (size_t i = 0; fit && i < t->n; i++)
		fit = fields_fit(sums_fields, N_SUMS, &t->rows[i].sums);
	return fit;
}

/* ---- figures ---- */

/* Where the log knows what time the program used; so for the next, and what was covered. */
static double contend_pct(const struct tally *t, const struct relive_sums *s)
{
	return (double)s->wait_ns / 10.0 / (double)t->log.cpu_us;
}

static double held_mean(const struct tally *t, const struct relive_sums *s)
{
	return (double)s->held_page_ms / (double)t->log.covered_ms;
}

static bool has_error(const struct tally *t, const struct tally_row *r)
{
	return r->kind != RELIVE_POLICY && t->log.measured.moved;
}

/* Of the pages that high can move: predicted less measured, in per cent of measured. */
static double error_pct(const struct tally *t, const struct tally_row *r)
{
	double was = (double)t->log.measured.moved;

	return 100.0 * ((double)r->sums.moved - was) / was;
}

static bool has_split(const struct tally *t, const struct relive_sums *s)
{
	return s->split && s->n_split == t->log.targets;
}

/* ---- JSON ---- */

static void sums_json(const struct tally *t, const struct relive_sums *s, bool measured, json_t *o)
{
	json_object_set_new(o, "alloc_zone", integer(s->alloc_zone));
	json_object_set_new(o, "free_zone", integer(s->free_zone));
	json_object_set_new(o, "lock_takes", integer(s->lock_takes));
	json_object_set_new(o, "free_high", measured ? integer(s->free_high) : json_null());
	json_object_set_new(o, "contend_pct",
			    t->log.cpu_us ? json_real(contend_pct(t, s)) : json_null());
	json_object_set_new(o, "pages_held_mean",
			    t->log.covered_ms ? json_real(held_mean(t, s)) : json_null());
	json_object_set_new(o, "pages_held_peak", integer(s->held_peak));
	json_object_set_new(o, "decisions", integer(s->decisions));
	json_object_set_new(o, "turns", integer(s->turns));
	json_object_set_new(o, "moved", integer(s->moved));
}

static json_t *row_json(const struct tally *t, const struct tally_row *r)
{
	const struct relive_sums *s = &r->sums;
	json_t *o = json_object();
	bool split = has_split(t, s);

	if (r->kind == RELIVE_POLICY) {
		json_object_set_new(o, "policy", json_string(r->policy));
		json_object_set_new(o, "version", json_string(r->version));
		json_object_set_new(o, "params", r->params ? json_incref(r->params) : json_null());
	}
	if (r->error[0]) {
		json_object_set_new(o, "error", json_string(r->error));
		return o;
	}
	sums_json(t, s, false, o);
	json_object_set_new(o, "breaches", integer(s->breaches));
	json_object_set_new(o, "memory", integer(s->memory));
	json_object_set_new(o, "floor", json_null());
	json_object_set_new(o, "static_split", split ? integer(s->split) : json_null());
	json_object_set_new(o, "ratio_to_floor", json_null());
	json_object_set_new(o, "ratio_to_static",
			    split ? json_real((double)s->moved / (double)s->split) : json_null());
	json_object_set_new(o, "error_pct",
			    has_error(t, r) ? json_real(error_pct(t, r)) : json_null());
	json_object_set_new(o, "unknown_batches", integer(s->grown));
	json_object_set_new(o, "other_orders", integer(s->orders));
	return o;
}

static json_t *not_told(const struct relive_log *l)
{
	json_t *o = json_object();

	json_object_set_new(o, "holes", integer(l->holes));
	json_object_set_new(o, "moved_high", integer(l->moved_high));
	json_object_set_new(o, "collapsed_swings", integer(l->collapsed));
	json_object_set_new(o, "unrecorded_pages", integer(l->unrecorded));
	json_object_set_new(o, "unrecorded_targets", integer(l->bare_targets));
	json_object_set_new(o, "damaged_rows", integer(l->damaged));
	return o;
}

json_t *tally_json(const struct tally *t)
{
	json_t *o = json_object(), *list = json_array(), *measured = json_object();

	json_object_set_new(o, "logs", json_incref(t->logs));
	json_object_set_new(o, "targets", integer(t->log.targets));
	json_object_set_new(o, "cpus", integer(t->log.cpus));
	json_object_set_new(o, "records", integer(t->log.records));
	json_object_set_new(o, "steps", integer(t->log.steps));
	json_object_set_new(o, "seconds", json_real((double)t->log.covered_ms / 1e3));
	json_object_set_new(o, "alloc_pages", integer(t->log.alloc_pages));
	json_object_set_new(o, "free_pages", integer(t->log.free_pages));
	json_object_set_new(o, "budget", t->budget ? integer(t->budget) : json_null());
	json_object_set_new(o, "not_told", not_told(&t->log));
	sums_json(t, &t->log.measured, true, measured);
	json_object_set_new(o, "measured", measured);
	json_object_set_new(o, "recorded_policies", json_incref(t->recorded));
	for (size_t i = 0; i < t->n; i++) {
		json_t *row = row_json(t, &t->rows[i]);

		if (t->rows[i].kind == RELIVE_AS_SET)
			json_object_set_new(o, "as_set", row);
		else if (t->rows[i].kind == RELIVE_RECORDED)
			json_object_set_new(o, "recorded", row);
		else
			json_array_append_new(list, row);
	}
	json_object_set_new(o, "policies", list);
	return o;
}

/* ---- text ---- */

static void count_cell(struct text_table *t, uint64_t v)
{
	char n[32];

	text_table_cell(t, "%s", cli_count(v, n, sizeof(n)));
}

static void names(const json_t *list, char *buf, size_t n)
{
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < json_array_size(list) && at < n; i++)
		at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "",
				       json_string_value(json_array_get(list, i)));
	text_clean(buf);
}

static void sums_cells(struct text_table *table, const struct tally *t, const struct relive_sums *s,
		       bool measured)
{
	count_cell(table, s->alloc_zone);
	count_cell(table, s->free_zone);
	count_cell(table, s->lock_takes);
	if (measured)
		count_cell(table, s->free_high);
	else
		text_table_cell(table, "-");
	if (t->log.cpu_us)
		text_table_cell(table, "%.3f", contend_pct(t, s));
	else
		text_table_cell(table, "-");
	if (t->log.covered_ms)
		text_table_cell(table, "%.0f", held_mean(t, s));
	else
		text_table_cell(table, "-");
	count_cell(table, s->held_peak);
	count_cell(table, s->decisions);
	count_cell(table, s->turns);
}

static void measured_row(struct text_table *table, const struct tally *t)
{
	text_table_cell(table, "measured");
	text_table_cell(table, " ");
	sums_cells(table, t, &t->log.measured, true);
	text_table_cell(table, "-");
	text_table_cell(table, "-");
	text_table_end_row(table);
}

static const char *row_name(const struct tally_row *r)
{
	return r->kind == RELIVE_POLICY	    ? r->policy
	       : r->kind == RELIVE_RECORDED ? "recorded"
					    : "as set";
}

static void print_row(struct text_table *table, const struct tally *t, const struct tally_row *r)
{
	const struct relive_sums *s = &r->sums;
	char who[200];

	names(t->recorded, who, sizeof(who));
	text_table_cell(table, "%s", row_name(r));
	text_table_cell(table, "%s", r->kind == RELIVE_RECORDED ? who : r->shown);
	if (r->error[0]) {
		text_table_cell(table, "-");
		text_table_end_row(table);
		return;
	}
	sums_cells(table, t, s, false);
	if (has_split(t, s))
		text_table_cell(table, "%.2f", (double)s->moved / (double)s->split);
	else
		text_table_cell(table, "-");
	if (has_error(t, r))
		text_table_cell(table, "%+.1f%%", error_pct(t, r));
	else
		text_table_cell(table, "-");
	text_table_end_row(table);
}

static void print_note(uint64_t v, const char *text)
{
	char n[32];

	if (v)
		printf("  %s %s\n", cli_count(v, n, sizeof(n)), text);
}

static void print_rows_of_other_orders(const struct tally *t)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct tally_row *r = &t->rows[i];

		if (r->sums.orders)
			printf("    %s%s%s\n", row_name(r), *r->shown ? " " : "", r->shown);
	}
}

static void print_notes(const struct tally *t)
{
	const struct relive_log *l = &t->log;
	uint64_t grown = 0, orders = 0;

	for (size_t i = 0; i < t->n; i++) {
		grown = t->rows[i].sums.grown > grown ? t->rows[i].sums.grown : grown;
		orders = t->rows[i].sums.orders > orders ? t->rows[i].sums.orders : orders;
	}
	if (!(l->holes || l->moved_high || l->collapsed || l->unrecorded || l->bare_targets ||
	      l->damaged || grown || orders || l->measured.free_high))
		return;
	printf("\nWhat the log can not tell:\n");
	print_note(l->holes, "records have a hole before them; lists are taken to hold what they "
			     "held");
	print_note(l->moved_high, "records in which high moved; \"as set\" has the middle");
	print_note(l->collapsed, "swings were counted early, too many were open at once");
	print_note(l->unrecorded, "pages were allocated and freed in no record");
	print_note(l->bare_targets, "targets have no record at all");
	print_note(l->damaged, "rows are damaged and left out");
	print_note(
		l->measured.free_high,
		"drains by consecutive high-order frees are in \"measured\", and what they moved "
		"is in no other row");
	print_note(grown,
		   "records were played with batches that grow; the log has none, so how far "
		   "is worked out and was not measured");
	print_note(orders,
		   "records were played by rules that have lists of other orders; what passes "
		   "the lists by is taken to be as it was, and a trace would tell; of:");
	print_rows_of_other_orders(t);
}

void tally_print(const struct tally *t)
{
	static const char *const titles[] = {"policy",	  "parameters", "alloc_zone", "free_zone",
					     "locks",	  "free_high",	"contend%",   "held mean",
					     "held peak", "decisions",	"turns",      "/static",
					     "error"};
	struct text_table *table = text_table_new();
	char n[3][48], logs[200];

	names(t->logs, logs, sizeof(logs));
	printf("%s: %s record%s of %s CPU%s, %s\n", logs,
	       cli_count(t->log.records, n[0], sizeof(n[0])), t->log.records == 1 ? "" : "s",
	       cli_count(t->log.cpus, n[1], sizeof(n[1])), t->log.cpus == 1 ? "" : "s",
	       text_ns(t->log.covered_ms * 1000000, n[2], sizeof(n[2])));
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(table, titles[i], i < 2 ? '<' : '>');
	measured_row(table, t);
	for (size_t i = 0; i < t->n; i++)
		print_row(table, t, &t->rows[i]);
	text_table_print(table, stdout, text_colour(stdout));
	text_table_free(table);
	printf("/static: pages moved, as a multiple of those of the best fixed split of the memory "
	       "that the row has.\n");
	print_notes(t);
}
