/* SPDX-License-Identifier: MIT */
/*
 * The command line of pcptuned: one row an option, and what it means for the configuration, over
 * which it lies. Paths are taken from the directory of the start, also by a reload after the daemon
 * went to the root directory.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/main.h"
#include "daemon/say.h"
#include "lib/text.h"

#define CONFIG_FILE PCPTUNE_SYSCONFDIR "/pcptune/pcptuned.conf"

enum option_id {
	OPT_CONFIG = 'c',
	OPT_FOREGROUND = 'f',
	OPT_VERBOSE = 'v',
	OPT_HELP = 'h',
	OPT_SOCKET = 256,
	OPT_DB,
	OPT_POLICY_PATH,
	OPT_CHECK,
	OPT_RELOAD,
	OPT_VERSION
};

static const struct {
	int id;
	const char *name, *arg, *text;
} option_rows[] = {
	{OPT_CONFIG, "config", "FILE",
	 "configuration; default " CONFIG_FILE " if it is there, else built-in values"},
	{OPT_SOCKET, "socket", "PATH", "socket for programs, whatever the configuration says"},
	{OPT_DB, "db", "PATH", "decision log, whatever the configuration says"},
	{OPT_POLICY_PATH, "policy-path", "DIRS",
	 "where policies are looked for, whatever the configuration says"},
	{OPT_CHECK, "check", NULL, "check everything, say what would be done, start nothing"},
	{OPT_RELOAD, "reload", NULL, "with --check: a daemon that runs already is no mistake"},
	{OPT_FOREGROUND, "foreground", NULL, "stay in the foreground, messages to standard error"},
	{OPT_VERBOSE, "verbose", NULL, "also say which programs come and go"},
	{OPT_VERSION, "version", NULL, "print the version"},
	{OPT_HELP, "help", NULL, "print this text"},
};
#define N_OPTIONS (sizeof(option_rows) / sizeof(option_rows[0]))

static void usage(FILE *out)
{
	fprintf(out, "usage: pcptuned [OPTION]...\n"
		     "Watches and tunes the per-CPU page lists of programs that attach to its "
		     "socket.\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char left[40], key[8] = "    ";

		if (option_rows[i].id < 256)
			snprintf(key, sizeof(key), "-%c, ", option_rows[i].id);
		snprintf(left, sizeof(left), "%s--%s%s%s", key, option_rows[i].name,
			 option_rows[i].arg ? " " : "",
			 option_rows[i].arg ? option_rows[i].arg : "");
		fprintf(out, "  %-22s %s\n", left, option_rows[i].text);
	}
	fprintf(out, "\nSignals: SIGTERM, SIGINT stop; SIGHUP reads the configuration again.\n"
		     "Exit status: 0 fine, 1 error, 2 wrong usage.\n");
}

static void option_table(struct option *table)
{
	memset(table, 0, (N_OPTIONS + 1) * sizeof(*table));
	for (size_t i = 0; i < N_OPTIONS; i++) {
		table[i].name = option_rows[i].name;
		table[i].has_arg = option_rows[i].arg ? required_argument : no_argument;
		table[i].val = option_rows[i].id;
	}
}

/* ---- paths ---- */

static char *start_directory;

/* cwd/path for a relative one; path is freed. NULL: no memory. */
static char *absolute(const char *cwd, char *path)
{
	char *full;

	if (!path || path[0] == '/' || !path[0])
		return path;
	if (asprintf(&full, "%s/%s", cwd, path) < 0)
		full = NULL;
	free(path);
	return full;
}

static bool copied(char **to, const char *text)
{
	*to = strdup(text);
	if (!*to)
		fprintf(stderr, "pcptuned: no memory\n");
	return *to != NULL;
}

/* -1: go on; else the exit status */
static int take_option(struct run *r, int id, const char *arg)
{
	struct overrides *o = &r->d.given;
	char **at = id == OPT_CONFIG   ? &o->file
		    : id == OPT_SOCKET ? &o->socket
		    : id == OPT_DB     ? &o->db
				       : &o->policy_path;

	switch (id) {
	case OPT_CONFIG:
	case OPT_SOCKET:
	case OPT_DB:
	case OPT_POLICY_PATH:
		if (!arg[0]) {
			fprintf(stderr, "pcptuned: a path is empty; see pcptuned --help\n");
			return 2;
		}
		free(*at);
		return copied(at, arg) ? -1 : 1;
	case OPT_CHECK:
		r->check = true;
		return -1;
	case OPT_RELOAD:
		r->reload = true;
		return -1;
	case OPT_FOREGROUND:
		r->foreground = true;
		return -1;
	case OPT_VERBOSE:
		say_verbose(true);
		return -1;
	case OPT_VERSION:
		printf("pcptuned %s\n", PCPTUNE_VERSION);
		return 0;
	case OPT_HELP:
		usage(stdout);
		return 0;
	default:
		fprintf(stderr, "pcptuned: see pcptuned --help\n");
		return 2;
	}
}

int options_take(struct run *r, int argc, char **argv)
{
	struct option table[N_OPTIONS + 1];
	int id, status = -1;

	start_directory = getcwd(NULL, 0);
	option_table(table);
	while (status < 0 && (id = getopt_long(argc, argv, "c:fvh", table, NULL)) != -1)
		status = take_option(r, id, optarg);
	if (status < 0 && optind < argc) {
		fprintf(stderr, "pcptuned: unexpected \"%s\"; see pcptuned --help\n", argv[optind]);
		status = 2;
	}
	if (status < 0 && r->reload && !r->check) {
		fprintf(stderr, "pcptuned: --reload is for --check; see pcptuned --help\n");
		status = 2;
	}
	if (status < 0 && !r->d.given.file && !access(CONFIG_FILE, F_OK) &&
	    !copied(&r->d.given.file, CONFIG_FILE))
		status = 1;
	return status;
}

static bool replace_path(char **at, const char *given)
{
	char *copy = given ? strdup(given) : *at;

	if (!copy)
		return false;
	if (given)
		free(*at);
	*at = absolute(start_directory, copy);
	return *at != NULL;
}

/* A list of directories is taken as it stands. */
static bool replace_list(char **at, const char *given)
{
	char *copy = given ? strdup(given) : NULL;

	if (copy) {
		free(*at);
		*at = copy;
	}
	return copy || !given;
}

int daemon_config(const struct overrides *given, struct config **ret, char **ret_why)
{
	struct config *c;
	int r = config_load(given->file, &c, ret_why);

	if (r < 0)
		return r;
	if (!replace_path(&c->socket, given->socket) || !replace_path(&c->log.path, given->db) ||
	    !replace_list(&c->policy_path, given->policy_path)) {
		config_free(c);
		*ret_why = NULL;
		return -ENOMEM;
	}
	if (given->db)
		c->log.enabled = true;
	*ret = c;
	return 0;
}

void options_settle(struct run *r)
{
	r->d.given.file = absolute(start_directory, r->d.given.file);
}

void options_free(struct run *r)
{
	free(r->d.given.file);
	free(r->d.given.socket);
	free(r->d.given.db);
	free(r->d.given.policy_path);
	free(start_directory);
}
