/* SPDX-License-Identifier: MIT */
/*
 * Files that a command writes: to a new file beside the place, which is renamed when it is whole.
 * So a command that fails leaves what was there before.
 */
#ifndef PCPTUNE_CLI_OUTPUT_H
#define PCPTUNE_CLI_OUTPUT_H

#include <limits.h>
#include <stdio.h>
#include "cli/cli.h"

struct cli_output {
	const char *path; /* NULL: standard output */
	char tmp[PATH_MAX];
	FILE *f;
};

/* path: NULL: standard output. -1, or the exit status after a message. */
int cli_output_open(struct cli_output *o, const char *path);
/* ok: keep what was written. -1, or the exit status after a message. */
int cli_output_close(struct cli_output *o, bool ok);

#endif
