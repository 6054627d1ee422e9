/* SPDX-License-Identifier: MIT */
/*
 * What is looked at before anything is started: the configuration with its policies, and for
 * --check also whether socket and log could be had. All mistakes are said, not the first alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/ctl.h"
#include "daemon/foreign.h"
#include "daemon/journal.h"
#include "daemon/main.h"

static void print_lines(char *text)
{
	char *save, *line;

	if (!text)
		fprintf(stderr, "pcptuned: no memory\n");
	for (line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		fprintf(stderr, "%s\n", line);
	free(text);
}

static void on_chosen(void *cookie)
{
	event_base_loopbreak(cookie);
}

/* Foreign policies are tried in a loop of its own: that of the daemon begins after the fork. */
static int choose(const struct config *c, struct choices **ret, char **ret_why)
{
	struct event_base *base = event_base_new();
	struct foreigners *all = NULL;
	struct choices *cs = NULL;
	int r = -ENOMEM;

	if (base && !foreigners_new(base, &all))
		r = choices_begin(c, all, on_chosen, base, &cs);
	if (!r && choices_pending(cs))
		event_base_dispatch(base);
	if (!r)
		r = choices_end(cs, ret_why);
	foreigners_free(all);
	if (base)
		event_base_free(base);
	if (!r)
		*ret = cs;
	return r;
}

bool check_load(struct run *r)
{
	char *why = NULL;

	if (daemon_config(&r->d.given, &r->d.config, &why) < 0 ||
	    choose(r->d.config, &r->d.choices, &why) < 0) {
		print_lines(why);
		return false;
	}
	return true;
}

static void print_choice(const struct choice *c)
{
	char params[1024];

	policy_params_text(c->module, c->params, params, sizeof(params));
	printf("%s: policy %s %s%s%s%s\n", c->why, policy_desc(c->module)->name,
	       policy_desc(c->module)->version, params[0] ? ", " : "", params,
	       c->dry_run ? " (dry run)" : "");
}

static void print_plan(const struct config *c, const struct choices *choices, const char *directory)
{
	printf("configuration: %s\n", c->file ? c->file : "built-in");
	printf("socket: %s%s%s%s\n", c->socket, *directory ? " (" : "", directory,
	       *directory ? ")" : "");
	printf("control socket: %s.ctl, mode %04o%s%s\n", c->socket, (unsigned)c->control.mode,
	       c->control.group ? ", group " : "", c->control.group ? c->control.group : "");
	if (c->log.enabled)
		printf("log: %s%s\n", c->log.path,
		       c->log.required ? " (nothing is changed without it)" : "");
	else
		printf("log: off\n");
	printf("sampling: every %lld ms; on exit: %s\n", (long long)c->interval_ms,
	       c->on_exit == CONFIG_KEEP ? "keep" : "restore");
	for (int i = -1; i < (int)c->n_rules; i++)
		print_choice(choices_at(choices, i));
}

/* The log, as a start, or with --reload the daemon that runs, would find it. */
static bool check_log(const struct run *r, char *why)
{
	const struct config *c = r->d.config;
	int e = journal_probe(c, why);

	if (!e || (e == -EBUSY && r->reload))
		return true;
	fprintf(stderr, "pcptuned: log %s: %s%s\n", c->log.path, why,
		c->log.required ? "; log.required allows no start without it"
				: "; it would start without a log and count what is lost");
	return !c->log.required;
}

int check(struct run *r)
{
	char directory[CLAIM_WHY] = "", why[CLAIM_WHY] = "";
	const struct config *c = r->d.config;
	int64_t gid;
	bool good = true;

	if (claim_directory(c->socket, false, directory) < 0) {
		fprintf(stderr, "pcptuned: %s\n", directory);
		good = false;
	} else if (!r->reload && claim_probe(c->socket, "serves", why) < 0) {
		fprintf(stderr, "pcptuned: %s\n", why);
		good = false;
	}
	if (ctl_group(c, &gid, why) < 0) {
		fprintf(stderr, "pcptuned: %s\n", why);
		good = false;
	}
	good &= check_log(r, why);
	if (!good)
		return 1;
	print_plan(c, r->d.choices, directory);
	return 0;
}
