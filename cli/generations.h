/* SPDX-License-Identifier: MIT */
/*
 * The generations of the list rules, as pcptune/generations.def has them, as they came.
 */
#ifndef PCPTUNE_CLI_GENERATIONS_H
#define PCPTUNE_CLI_GENERATIONS_H

enum cli_form { CLI_FORM_TEXT, CLI_FORM_JSON, CLI_FORM_MARKDOWN };

/* Prints them on standard output; returns an exit status. */
int cli_print_generations(enum cli_form form);

#endif
