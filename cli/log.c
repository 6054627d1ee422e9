/* SPDX-License-Identifier: MIT */
/*
 * `pcptune log`: the decisions of a log, oldest first, a line each.
 *
 * Rows are printed as they are read, so that a log of any length needs no memory and `| head`
 * ends it; columns have fixed widths for that (log_row.c).
 * --follow looks again four times a second and notices, by poll(), a reader that went away while
 * there was nothing to write. A row is printed once, so it waits until its outcome is known, but
 * not longer than SETTLE_US: a target may take its time.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/decision.h"
#include "cli/log_row.h"
#include "lib/text.h"

#define FOLLOW_MS 250
#define SETTLE_US 2000000u

struct args {
	const char *socket, *db, *target, *policy, *reason, *policy_path;
	int64_t cpu, zone, tail; /* -1: all */
	uint64_t since;
	bool follow, events, json;
};

const struct cli_option options_log[] = {
	CLI_OPT_DB(struct args, db),
	{"target", 't', "TARGET", "of this target: id or name", cli_set_string,
	 offsetof(struct args, target)},
	{"cpu", 'c', "N", "of this CPU", cli_set_i64, offsetof(struct args, cpu)},
	{"zone", 'z', "Z", "of this zone", cli_set_i64, offsetof(struct args, zone)},
	{"policy", 'p', "POLICY", "by this policy", cli_set_string, offsetof(struct args, policy)},
	{"reason", 'r', "NAME", "for this reason", cli_set_string, offsetof(struct args, reason)},
	{"since", 'S', "TIME", "not older than this", cli_set_time, offsetof(struct args, since)},
	{"tail", 'n', "N", "the newest N", cli_set_i64, offsetof(struct args, tail)},
	{"follow", 'f', NULL, "go on with what is added", cli_set_flag,
	 offsetof(struct args, follow)},
	{"events", 'e', NULL, "events too: gaps, restarts, refusals, losses", cli_set_flag,
	 offsetof(struct args, events)},
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct event {
	int64_t id, target;
	struct logstamp t;
	char *kind, *text;
};

struct listing {
	const struct args *a;
	struct logstore *ls;
	struct log_filter filter;
	uint64_t printed;
	int64_t last_id;      /* of a decision handed out by the store */
	struct event *events; /* not printed yet, by time */
	size_t n_events, at_event;
	int64_t last_event;
	struct log_layout layout;
	bool head, following;
};

/* ---- rows ---- */

static void print_head(struct listing *l)
{
	if (l->head || l->a->json)
		return;
	l->head = true;
	log_row_head(&l->layout);
}

static void event_json(const struct event *e)
{
	char time[48];

	cli_print_json(json_pack("{s:I, s:s, s:I, s:s, s:s}", "event", (json_int_t)e->id, "time",
				 text_time_iso(e->t.wall_us, time, sizeof(time)), "target",
				 (json_int_t)e->target, "kind", e->kind, "text", e->text));
}

static void print_event(struct listing *l, const struct event *e)
{
	char time[48], target[24] = "daemon";

	if (l->a->json) {
		event_json(e);
		return;
	}
	print_head(l);
	if (e->target)
		snprintf(target, sizeof(target), "%" PRId64, e->target);
	printf("%6s  %-23s  %-*s  %s%s%s: %s\n", "event",
	       text_time(e->t.wall_us, time, sizeof(time)), l->layout.name_width, target,
	       cli_yellow(), e->kind, cli_plain(), e->text);
}

static void print_events_until(struct listing *l, uint64_t wall_us)
{
	for (; l->at_event < l->n_events; l->at_event++) {
		if (l->events[l->at_event].t.wall_us > wall_us)
			return;
		print_event(l, &l->events[l->at_event]);
	}
}

/* ---- decisions ---- */

/* The events before the first row of a tail are as old as the rows that are left out. */
static void skip_events(struct listing *l, uint64_t wall_us)
{
	while (l->at_event < l->n_events && l->events[l->at_event].t.wall_us < wall_us)
		l->at_event++;
}

static bool unsettled(const struct log_decision *d)
{
	return (d->outcome == LOG_JOURNALED || d->outcome == LOG_WRITTEN) &&
	       logstamp_now().boot_us < d->t.boot_us + SETTLE_US;
}

static int print_one(const struct log_decision *d, const struct log_target *t,
		     const struct log_assignment *a, void *cookie)
{
	struct listing *l = cookie;

	if (l->following && unsettled(d))
		return 1; /* seen again at the next look, and all after it */
	l->last_id = d->id;
	if (!l->printed++ && l->a->tail >= 0)
		skip_events(l, d->t.wall_us);
	print_events_until(l, d->t.wall_us);
	if (!l->a->json) {
		print_head(l);
		log_row_print(&l->layout, d, t, a);
	} else if (cli_print_json(decision_json(d, t, a))) {
		return 1;
	}
	return ferror(stdout) ? 1 : 0;
}

static int store_error(struct listing *l)
{
	return cli_log_error(l->ls, logstore_error(l->ls));
}

/* ---- events ---- */

static int keep_event(int64_t id, int64_t target, struct logstamp t, const char *kind,
		      const char *text, void *cookie)
{
	struct listing *l = cookie;
	struct event *grown;

	if (id <= l->last_event)
		return 0;
	grown = realloc(l->events, (l->n_events + 1) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	l->events = grown;
	l->events[l->n_events++] = (struct event){id, target, t, strdup(kind), strdup(text)};
	l->last_event = id;
	return 0;
}

static void drop_events(struct listing *l)
{
	size_t i;

	for (i = 0; i < l->n_events; i++) {
		free(l->events[i].kind);
		free(l->events[i].text);
	}
	free(l->events);
	l->events = NULL;
	l->n_events = l->at_event = 0;
}

static int read_events(struct listing *l)
{
	struct log_filter f = {.cpu = -1,
			       .target = l->filter.target,
			       .name = l->filter.name,
			       .since_wall_us = l->filter.since_wall_us};

	drop_events(l);
	if (l->a->events && logstore_events(l->ls, &f, keep_event, l))
		return store_error(l);
	return -1;
}

/* ---- which target ---- */

struct names {
	const struct log_filter *filter;
	char list[256];
	int width;
	bool found;
};

static int on_target(const struct log_target *t, void *cookie)
{
	struct names *n = cookie;
	char one[PCPTUNE_NAME_MAX + 24];
	int len = snprintf(one, sizeof(one), "%" PRId64 " %s", t->id, t->name);
	size_t at = strlen(n->list);

	n->width = len > n->width ? len : n->width;
	n->found = n->found || t->id == n->filter->target ||
		   (n->filter->name && !strcmp(n->filter->name, t->name));
	if (at + (size_t)len + 8 < sizeof(n->list))
		snprintf(n->list + at, sizeof(n->list) - at, "%s%s", at ? ", " : "", one);
	else if (at + 6 < sizeof(n->list) && strcmp(n->list + at - 3, "..."))
		snprintf(n->list + at, sizeof(n->list) - at, ", ...");
	return 0;
}

/* Widths from the targets of the log, and whether the one that was asked for is there. */
static int find_target(struct listing *l)
{
	const struct log_filter all = {.cpu = -1};
	struct names names = {.filter = &l->filter, .width = 10};

	if (l->a->target && text_parse_i64(l->a->target, &l->filter.target))
		l->filter.name = l->a->target;
	if (logstore_targets(l->ls, &all, on_target, &names))
		return store_error(l);
	l->layout.name_width = names.width > 28 ? 28 : names.width;
	if (!l->a->target || names.found)
		return -1;
	cli_error("%s: no target \"%s\"; targets: %s", logstore_path(l->ls), l->a->target,
		  names.list[0] ? names.list : "none");
	return CLI_DRIFT;
}

/* ---- the verb ---- */

/* What there is; then *l is ready for what is added. */
static int list(struct listing *l)
{
	int r = read_events(l);

	if (r < 0 && l->a->tail != 0 && logstore_decisions(l->ls, &l->filter, print_one, l) < 0)
		r = store_error(l);
	if (r < 0)
		print_events_until(l, UINT64_MAX);
	return r;
}

static int follow(struct listing *l)
{
	struct pollfd out = {.fd = STDOUT_FILENO};
	int r;

	l->filter.limit = 0;
	l->filter.newest = false;
	l->following = true;
	while (!fflush(stdout) && !ferror(stdout)) {
		if (poll(&out, 1, FOLLOW_MS) > 0 && (out.revents & (POLLERR | POLLHUP | POLLNVAL)))
			return CLI_OK;
		l->filter.after_id = l->last_id;
		r = read_events(l);
		if (r >= 0)
			return r;
		if (logstore_decisions(l->ls, &l->filter, print_one, l) < 0)
			return store_error(l);
		print_events_until(l, UINT64_MAX);
	}
	return CLI_OK;
}

static int last_id(const struct log_decision *d, const struct log_target *t,
		   const struct log_assignment *a, void *cookie)
{
	(void)t;
	(void)a;
	*(int64_t *)cookie = d->id;
	return 0;
}

static int run_listing(struct listing *l)
{
	const struct log_filter newest = {.cpu = -1, .limit = 1, .newest = true};
	int r = find_target(l);

	if (r < 0 && logstore_decisions(l->ls, &newest, last_id, &l->last_id) < 0)
		r = store_error(l);
	r = r < 0 ? list(l) : r;
	if (r >= 0)
		return r;
	if (!l->head && !l->a->json && !l->a->follow && l->a->tail)
		printf("no decisions%s in %s\n",
		       l->filter.name || l->filter.target || l->a->policy || l->a->reason ||
				       l->a->since || l->a->cpu >= 0 || l->a->zone >= 0
			       ? " of this kind"
			       : "",
		       logstore_path(l->ls));
	return l->a->follow ? follow(l) : CLI_OK;
}

static uint32_t most_u32(int64_t v)
{
	return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

int cmd_log(int argc, char **argv)
{
	struct args a = {.cpu = -1, .zone = -1, .tail = -1};
	struct listing l = {.a = &a, .layout.width = cli_width()};
	struct cli_rest rest;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest);

	if (r >= 0)
		return r;
	cli_reason_path(a.policy_path);
	r = cli_open_log(a.db, a.socket, a.json, &l.ls);
	if (r >= 0)
		return r;
	l.filter = (struct log_filter){.cpu = a.cpu,
				       .policy = a.policy,
				       .reason = a.reason,
				       .since_wall_us = a.since,
				       .in_zone = a.zone >= 0,
				       .zone = most_u32(a.zone),
				       .limit = a.tail < 0 ? 0 : most_u32(a.tail),
				       .newest = a.tail >= 0};
	r = run_listing(&l);
	drop_events(&l);
	logstore_close(l.ls);
	return r;
}
