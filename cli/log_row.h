/* SPDX-License-Identifier: MIT */
/*
 * How `pcptune log` lays a decision out for people.
 */
#ifndef PCPTUNE_CLI_LOG_ROW_H
#define PCPTUNE_CLI_LOG_ROW_H

#include "cli/cli.h"

struct log_layout {
	int name_width;
	int width; /* of a line, columns; 0: a decision is one line, however long */
};

void log_row_head(const struct log_layout *l);
void log_row_print(const struct log_layout *l, const struct log_decision *d,
		   const struct log_target *t, const struct log_assignment *a);

#endif
