/* SPDX-License-Identifier: MIT */
/*
 * A run of pcptuned from its command line on: options.c, check.c (before anything is started),
 * main.c (start, signals, stop).
 */
#ifndef PCPTUNE_DAEMON_MAIN_H
#define PCPTUNE_DAEMON_MAIN_H

#include "daemon/claim.h"
#include "daemon/daemon.h"

struct run {
	struct daemon d;
	bool foreground, check;
	bool reload; /* with check: a daemon that runs is no mistake */
	char *cwd;
	int ready; /* pipe to the process that waits for us, -1: nobody */
	struct claim *claim;
	struct event *sig[3];
};

/* ---- options.c ---- */

/* Reads the command line into r. -1: go on; else the exit status, and said why. */
int options_take(struct run *r, int argc, char **argv);
/* For reloads the file is named by its whole path; messages so far name it as it was given. */
void options_settle(struct run *r);
void options_free(struct run *r);

/* ---- check.c ---- */

/* Configuration and policies; all mistakes are said at once. */
bool check_load(struct run *r);
/* --check: says what a start would do, or what is in its way. The exit status. */
int check(struct run *r);

#endif
