/* SPDX-License-Identifier: MIT */
/*
 * The parts of `pcptune run`: run.c (options, environment, order of things), run_child.c (the
 * program: start, signals, end), run_daemon.c (the daemon that it talks to), run_logs.c
 * (its logs), run_summary.c (what is said afterwards).
 */
#ifndef PCPTUNE_CLI_RUN_H
#define PCPTUNE_CLI_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "cli/cli.h"

struct run_args {
	const char *policy, *json, *db;
	struct cli_list set;
	int64_t min_size, max_size; /* bytes, -1: not given */
	bool own_daemon, quiet;
};

/* ---- the daemon ---- */

struct run_daemon {
	char *socket;  /* NULL: there is none, the program runs untuned */
	char *dir;     /* private directory, NULL: somebody else's daemon */
	int dir_fd;    /* locked as long as we or the daemon live; -1 */
	pid_t pid;     /* 0: not ours, or ended */
	char why[512]; /* why there is none */
};

/*
 * Finds the daemon that runs, or starts one of our own. -1: go on (also without a daemon: then
 * socket is NULL and why says the reason). Else the exit status, after a message: what was asked
 * for on the command line can not be done.
 */
int run_daemon_get(const struct run_args *a, struct run_daemon *d);
/*
 * One command (takes the reference). 0 and a new reference, or the code of ctlclient_call() with
 * the reason in d->why.
 */
int run_daemon_ask(struct run_daemon *d, json_t *request, json_t **ret);
/* Did our own daemon end before its time? Then d->why says how. */
bool run_daemon_ended(struct run_daemon *d);
/* Ends our own daemon and removes its directory. Nothing to do for somebody else's. */
void run_daemon_end(struct run_daemon *d);

/* ---- logs of runs ---- */

/* Where the log of this run goes when none is named; malloc'ed, NULL: no memory. */
char *run_log_path(void);
/* A name that run_log_path() gives? Pure. */
bool run_log_name(const char *name);
/* Removes logs of runs that are old or too many, except those in use. */
void run_logs_trim(void);

/* ---- the program ---- */

struct run_result {
	int status; /* as a shell has it: exit status, 128 + signal, 126, 127 */
	int signal; /* 0: it ended by itself */
	int error;  /* errno of exec, 0: it ran */
	double wall_s;
	uint64_t cpu_us; /* of the program and of the children that it waited for */
};

/* One variable of the program's environment; value NULL: removed. */
struct run_env {
	const char *name;
	const char *value;
};

/* The preload library. -1, or the exit status after a message. */
int run_find_preload(char *path, size_t n);
/* Says on standard error which settings for the allocator our environment has that mean nothing. */
void run_tell_settings(void);
/* LD_PRELOAD with it in front of what was there; malloc'ed, NULL: no memory. */
char *run_preload_list(const char *ours);
/* Before we open anything: what is closed would get the number of a file of ours. */
void run_occupy_standard_descriptors(void);

/* Runs the program to its end, passing signals on. 0, or -errno when it could not be started. */
int run_child(char **argv, const struct run_env *env, size_t n_env, struct run_result *ret);

/* ---- afterwards ---- */

/* The daemon's account of the processes with this tag; never NULL, keys without a value null. */
json_t *run_summary(struct run_daemon *d, const char *tag);
void run_summary_print(const json_t *summary, const struct run_result *r, const char *program,
		       const struct run_daemon *d);
/* Adds program, status, signal, wall_s. */
void run_summary_complete(json_t *summary, const struct run_result *r, const char *program,
			  const struct run_daemon *d);

#endif
