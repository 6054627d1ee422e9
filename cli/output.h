/* SPDX-License-Identifier: MIT */
/*
 * Files that a command writes: to a new file beside the place, which is renamed when it is whole.
 * So a command that fails leaves what was there before. Where a link leads is what is replaced, and
 * its mode stays. What is no regular file (a pipe, a terminal, /dev/null) is written into as it
 * comes: a file in its place would take it away from everybody.
 */
#ifndef PCPTUNE_CLI_OUTPUT_H
#define PCPTUNE_CLI_OUTPUT_H

#include <limits.h>
#include <stdio.h>
#include <sys/types.h>
#include "cli/cli.h"

struct cli_output {
	const char *path;		     /* NULL: standard output */
	char place[PATH_MAX], tmp[PATH_MAX]; /* place: path without links; tmp "": written into */
	mode_t mode;
	FILE *f;
};

/* path: NULL: standard output. -1, or the exit status after a message. */
int cli_output_open(struct cli_output *o, const char *path);
/* ok: keep what was written. -1, or the exit status after a message. */
int cli_output_close(struct cli_output *o, bool ok);
/* After a write that failed: keeps what was written as it is. */
void cli_output_keep(struct cli_output *o);

#endif
