/* SPDX-License-Identifier: MIT */
/*
 * `pcptune status`: the lists of every CPU as they are now, from the running daemon.
 *
 * A line of facts for each target, then a row for each CPU that was ever used. --json passes the
 * daemon's answer on unchanged, so that its keys are those of docs/control.md.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cli/status.h"
#include "lib/text.h"

struct args {
	const char *socket;
	bool json;
	int64_t watch_ms; /* 0: once */
	int64_t count;	  /* 0: for ever */
};

static int set_watch(void *field, const char *value, char *why)
{
	char *end = NULL;
	double s = value ? strtod(value, &end) : 1;

	if (value && (end == value || *end || !(s >= 0.1 && s <= 3600))) {
		snprintf(why, CLI_WHY, "a number of seconds from 0.1 to 3600");
		return -EINVAL;
	}
	*(int64_t *)field = (int64_t)(s * 1000);
	return 0;
}

const struct cli_option options_status[] = {
	{"watch", 'w', "[SECONDS]", "live view, or on a pipe again and again; default 1", set_watch,
	 offsetof(struct args, watch_ms)},
	{"count", 'n', "N", "with --watch and no terminal: stop after N times", cli_set_i64,
	 offsetof(struct args, count)},
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* ---- rows ---- */

static void fill_row(struct status_row *row, const json_t *target, uint64_t zone, const json_t *cpu)
{
	const json_t *contend = json_object_get(cpu, "contend_pct");

	*row = (struct status_row){
		.target = cli_u64(target, "id"),
		.zone = zone,
		.cpu = cli_u64(cpu, "cpu"),
		.name = cli_str(target, "name"),
		.mode = cli_str(target, "mode"),
		.count = cli_u64(cpu, "count"),
		.high = cli_u64(cpu, "high"),
		.high_min = cli_u64(cpu, "high_min"),
		.high_max = cli_u64(cpu, "high_max"),
		.batch = cli_u64(cpu, "batch"),
		.alloc_zone = cli_u64(cpu, "alloc_zone"),
		.free_high = cli_u64(cpu, "free_high"),
		.contend = json_is_number(contend) ? json_number_value(contend) : -1,
		.pinned = cli_bool(cpu, "pinned"),
		.waiting = cli_bool(cpu, "waiting"),
		.drift = cli_bool(cpu, "drift"),
		.shared = cli_bool(cpu, "shared"),
	};
}

/* rows NULL: only counts them */
static size_t walk_target(const json_t *target, struct status_row *rows)
{
	size_t iz, ic, n = 0;
	json_t *zone, *cpu;

	json_array_foreach (json_object_get(target, "zones"), iz, zone)
		json_array_foreach (json_object_get(zone, "cpus"), ic, cpu) {
			if (rows)
				fill_row(&rows[n], target, cli_u64(zone, "id"), cpu);
			n++;
		}
	return n;
}

size_t status_rows(const json_t *status, struct status_row **ret)
{
	const json_t *targets = json_object_get(status, "targets");
	size_t i, n = 0, at = 0;
	json_t *target;

	json_array_foreach (targets, i, target)
		n += walk_target(target, NULL);
	*ret = calloc(n ? n : 1, sizeof(**ret));
	if (!*ret)
		return 0;
	json_array_foreach (targets, i, target)
		at += walk_target(target, *ret + at);
	return n;
}

char *status_contend(double contend, char *buf, size_t n)
{
	if (contend < 0)
		snprintf(buf, n, "-");
	else
		snprintf(buf, n, "%.2f", contend);
	return buf;
}

char *status_mode(const struct status_row *row, char *buf, size_t n)
{
	snprintf(buf, n, "%s%s%s%s%s", row->mode, row->shared ? " shared" : "",
		 row->pinned ? " pinned" : "", row->waiting ? " waiting" : "",
		 row->drift ? " DRIFT" : "");
	return buf;
}

static void count_marks(const json_t *target, unsigned *pinned, unsigned *drift)
{
	size_t iz, ic;
	json_t *zone, *cpu;

	json_array_foreach (json_object_get(target, "zones"), iz, zone)
		json_array_foreach (json_object_get(zone, "cpus"), ic, cpu) {
			*pinned += cli_bool(cpu, "pinned");
			*drift += cli_bool(cpu, "drift");
		}
}

void status_facts(const json_t *target, char *buf, size_t n)
{
	const json_t *contend = json_object_get(target, "contend_pct");
	char held[64], pct[16];
	unsigned pinned = 0, drift = 0;
	int at;

	count_marks(target, &pinned, &drift);
	status_contend(json_is_number(contend) ? json_number_value(contend) : -1, pct, sizeof(pct));
	at = snprintf(buf, n,
		      "pid %" PRIu64 "  policy %s (%s)  held %s  contend%% %s  decisions %" PRIu64,
		      cli_u64(target, "pid"), cli_str(target, "policy"),
		      cli_str(target, "policy_state"),
		      text_pages(cli_u64(target, "held_pages"), held, sizeof(held)), pct,
		      cli_u64(target, "decisions"));
	if (!strcmp(cli_str(target, "policy_state"), "benched") && (size_t)at < n)
		at += snprintf(buf + at, n - (size_t)at, "  BENCHED: %s", cli_str(target, "why"));
	if (cli_bool(target, "unfiltered") && (size_t)at < n)
		at += snprintf(buf + at, n - (size_t)at, "  UNFILTERED");
	if (cli_bool(target, "dry_run") && (size_t)at < n)
		at += snprintf(buf + at, n - (size_t)at, "  DRY RUN");
	if (pinned && (size_t)at < n)
		at += snprintf(buf + at, n - (size_t)at, "  pinned %u", pinned);
	if (drift && (size_t)at < n)
		snprintf(buf + at, n - (size_t)at, "  DRIFT %u", drift);
}

/* ---- text ---- */

static const char *const columns[] = {"zone",	   "cpu",      "count", "high",
				      "high_min",  "high_max", "batch", "alloc_zone",
				      "free_high", "contend%", "mode"};

static void add_row(struct text_table *t, const struct status_row *r)
{
	char buf[48];

	text_table_cell(t, "%" PRIu64, r->zone);
	text_table_cell(t, "%" PRIu64, r->cpu);
	text_table_cell(t, "%" PRIu64, r->count);
	text_table_cell(t, "%" PRIu64, r->high);
	text_table_cell(t, "%" PRIu64, r->high_min);
	text_table_cell(t, "%" PRIu64, r->high_max);
	text_table_cell(t, "%" PRIu64, r->batch);
	text_table_cell(t, "%s", cli_count(r->alloc_zone, buf, sizeof(buf)));
	text_table_cell(t, "%" PRIu64, r->free_high);
	text_table_cell(t, "%s", status_contend(r->contend, buf, sizeof(buf)));
	text_table_cell(t, "%s", status_mode(r, buf, sizeof(buf)));
	text_table_end_row(t);
}

/*
 * How long the lock of a zone is held, of the zone where it was held longest. Not one of the facts:
 * the live view has no line to spare for what changes once a day.
 */
static void print_holds(const json_t *target)
{
	uint64_t p50 = 0, p99 = 0, most = 0;
	char text[3][32];
	json_t *zone;
	size_t i;

	json_array_foreach (json_object_get(target, "zones"), i, zone) {
		if (cli_u64(zone, "hold_max_ns") <= most)
			continue;
		most = cli_u64(zone, "hold_max_ns");
		p99 = cli_u64(zone, "hold_p99_ns");
		p50 = cli_u64(zone, "hold_p50_ns");
	}
	if (most)
		printf("zone lock held for p50 %s, p99 %s, at most %s\n",
		       text_ns(p50, text[0], sizeof(text[0])),
		       text_ns(p99, text[1], sizeof(text[1])),
		       text_ns(most, text[2], sizeof(text[2])));
}

static int print_target(const json_t *target)
{
	size_t n = walk_target(target, NULL), i;
	struct status_row *rows = calloc(n ? n : 1, sizeof(*rows));
	struct text_table *t = text_table_new();
	char facts[512];

	if (rows && t) {
		status_facts(target, facts, sizeof(facts));
		printf("%s%" PRIu64 " %s%s  %s\n", cli_bold(), cli_u64(target, "id"),
		       cli_str(target, "name"), cli_plain(), facts);
		for (i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
			text_table_column(t, columns[i], strcmp(columns[i], "mode") ? '>' : '<');
		walk_target(target, rows);
		for (i = 0; i < n; i++)
			add_row(t, &rows[i]);
		if (n)
			text_table_print(t, stdout, text_colour(stdout));
		else
			printf("no CPU was used yet\n");
		print_holds(target);
	}
	i = rows && t;
	free(rows);
	text_table_free(t);
	return i ? CLI_OK : cli_error("no memory");
}

/* What an operator must know before any row: is anything lost, is anything not applied. */
static void print_daemon(const json_t *daemon)
{
	const json_t *log = json_object_get(daemon, "log");

	if (cli_bool(daemon, "dry_run"))
		printf("%sdry run%s: decisions are logged, not applied\n", cli_yellow(),
		       cli_plain());
	if (!strcmp(cli_str(log, "state"), "lost"))
		printf("%slog%s: %s: %s; lost: samples %" PRIu64 ", decisions %" PRIu64 "\n",
		       cli_red(), cli_plain(), cli_str(log, "path"), cli_str(log, "error"),
		       cli_u64(log, "lost_samples"), cli_u64(log, "lost_decisions"));
}

/* Words of the mode column, for people. */
static void print_words(const json_t *status)
{
	struct status_row *rows;
	size_t n = status_rows(status, &rows), i;
	bool shared = false;

	for (i = 0; i < n; i++)
		shared = shared || rows[i].shared;
	free(rows);
	if (!n || !isatty(STDOUT_FILENO))
		return;
	printf("\n%srseq: lists without a lock; locked: with one for each CPU%s%s\n", cli_dim(),
	       shared ? "; shared: the lists of threads whose CPU has none" : "", cli_plain());
}

static int print_text(const json_t *status)
{
	const json_t *targets = json_object_get(status, "targets");
	json_t *target;
	size_t i;
	int r;

	print_daemon(json_object_get(status, "daemon"));
	if (!json_array_size(targets))
		printf("no targets: start a program that uses libpcpalloc, or one under "
		       "`pcptune run`\n");
	json_array_foreach (targets, i, target) {
		if (i)
			putchar('\n');
		r = print_target(target);
		if (r)
			return r;
	}
	print_words(status);
	return CLI_OK;
}

static int exit_status(const json_t *status)
{
	unsigned pinned = 0, drift = 0;
	json_t *target;
	size_t i;

	json_array_foreach (json_object_get(status, "targets"), i, target)
		count_marks(target, &pinned, &drift);
	return drift ? CLI_DRIFT : CLI_OK;
}

/* ---- the verb ---- */

static int once(struct ctlclient *c, const struct args *a, const char *target)
{
	json_t *request = json_pack("{s:s}", "cmd", "status"), *status;
	int r, drift;

	if (target)
		json_object_set_new(request, "target", cli_target(target));
	r = cli_call(c, request, &status);
	if (r >= 0)
		return r;
	drift = exit_status(status);
	r = a->json ? cli_print_json(json_incref(status)) : print_text(status);
	json_decref(status);
	return r ? r : drift;
}

static void sleep_ms(int64_t ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Not on a terminal: again and again, with the time; ends with the daemon or with the reader. */
static int repeat(struct ctlclient *c, const struct args *a, const char *target)
{
	char now[48];
	int64_t i;
	int r = CLI_OK;

	for (i = 0; !a->count || i < a->count; i++) {
		if (i)
			sleep_ms(a->watch_ms);
		if (!a->json)
			printf("%s%s\n", i ? "\n" : "",
			       text_time(logstamp_now().wall_us, now, sizeof(now)));
		r = once(c, a, target);
		if (fflush(stdout) || (r && r != CLI_DRIFT))
			break;
	}
	return r;
}

int cmd_status(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	struct ctlclient *c;
	int r = cli_parse(argc, argv, &a, 0, 1, &rest);

	if (r >= 0)
		return r;
	r = cli_connect(a.socket, &c);
	if (r >= 0)
		return r;
	if (a.watch_ms && !a.json && !a.count && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO))
		return status_watch(c, a.socket, rest.argv[0], a.watch_ms);
	if (a.watch_ms)
		r = repeat(c, &a, rest.argc ? rest.argv[0] : NULL);
	else
		r = once(c, &a, rest.argc ? rest.argv[0] : NULL);
	ctlclient_close(c);
	return r;
}
