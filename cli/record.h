/* SPDX-License-Identifier: MIT */
/*
 * The parts of `pcptune record`: record.c (options, the file, what is said afterwards),
 * record_program.c (a program that it starts), record_target.c (one that runs already).
 */
#ifndef PCPTUNE_CLI_RECORD_H
#define PCPTUNE_CLI_RECORD_H

#include "cli/output.h"
#include "lib/recorder.h"

struct record_args {
	const char *output, *json, *socket;
	int64_t seconds; /* -1: until something else ends it */
	bool quiet;
};

struct recording {
	const struct record_args *a;
	struct cli_output out;
	struct trace_writer *w;
	struct recorder *r;
	int error; /* of writing, 0: none */
};

/*
 * The trace, behind an output that is open: of a program of this name, with so many levels at its
 * beginning. -1, or the exit status after a message.
 */
int record_writer(struct recording *c, const char *name, size_t levels);
/*
 * The end of the trace: all of it is in its place then, or as much as could be written. -1, or the
 * exit status after a message.
 */
int record_end(struct recording *c);
void record_free(struct recording *c);

/* "12,345 rows of WHOM in FILE, 12 KB", and what was lost. */
void record_print(const struct recording *c, const char *whom);
/*
 * The same for programs, if it was asked for, with what is in more (taken over). As record_end().
 */
int record_json(const struct recording *c, int status, json_t *more);

int record_program(struct recording *c, char **argv);
int record_target(struct recording *c, const char *word);

#endif
