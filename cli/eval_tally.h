/* SPDX-License-Identifier: MIT */
/*
 * What `eval` over logs comes to: sums of integers, which can be written (--partial), read and
 * added (eval merge) before they are printed. One table of fields drives writing and reading; the
 * printed figures all come from the sums, so a merged table is the one of a single run.
 */
#ifndef PCPTUNE_CLI_EVAL_TALLY_H
#define PCPTUNE_CLI_EVAL_TALLY_H

#include "cli/cli.h"
#include "eval/relive.h"

struct tally_row {
	enum relive_kind kind;
	char policy[32], version[32]; /* of RELIVE_POLICY */
	char shown[256];	      /* parameters that are not the default */
	json_t *params;		      /* all of them; NULL: none */
	char error[RELIVE_WHY];	      /* empty: none */
	struct relive_sums sums;
};

struct tally {
	json_t *logs;	  /* names of the files */
	json_t *recorded; /* names of the policies that the logs have */
	uint64_t budget;
	struct relive_log log;
	struct tally_row *rows;
	size_t n;
};

/* -ENOMEM. Free with tally_free(), also after a failure. */
int tally_init(struct tally *t, size_t rows);
void tally_free(struct tally *t);
void tally_recorded(struct tally *t, const char *policy);

json_t *tally_partial(const struct tally *t);
/* Reads one; false: o is no such thing. */
bool tally_read(struct tally *t, const json_t *o);
/* Adds b to a; false: they are not of the same rows and budget. */
bool tally_add(struct tally *a, const struct tally *b);
/* Can every sum be written, or did one grow too large? Asked after each addition. */
bool tally_fits(const struct tally *t);

json_t *tally_json(const struct tally *t);
void tally_print(const struct tally *t);

#endif
