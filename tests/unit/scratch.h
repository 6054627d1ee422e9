/* SPDX-License-Identifier: MIT */
/*
 * Where a unit test puts its files: below $TMPDIR, which is the program's own when tests/run.py
 * started it, and goes with it. Where that is unset, or so long that the path of a socket below it
 * would not fit into a sockaddr_un, it is /tmp; so a test removes what it made all the same.
 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_MAX 80

static inline const char *scratch_root(void)
{
	const char *tmp = getenv("TMPDIR");

	return tmp && *tmp && strlen(tmp) < SCRATCH_MAX - 20 ? tmp : "/tmp";
}

/* A new directory of our own, its path in dir[SCRATCH_MAX]. */
static inline bool scratch_dir(char *dir)
{
	snprintf(dir, SCRATCH_MAX, "%s/pcptune-XXXXXX", scratch_root());
	return mkdtemp(dir) != NULL;
}

/* The path of a file of this process alone, which is not there yet. path[SCRATCH_MAX]. */
static inline void scratch_file(char *path, const char *ending)
{
	snprintf(path, SCRATCH_MAX, "%s/%d.%.7s", scratch_root(), (int)getpid(), ending);
}

#endif
