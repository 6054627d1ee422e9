/* SPDX-License-Identifier: MIT */
/*
 * The skeleton of a policy, for `pcptune policy new`.
 */
#ifndef PCPTUNE_CLI_POLICY_NEW_H
#define PCPTUNE_CLI_POLICY_NEW_H

#include <stdbool.h>

/*
 * Writes NAME.c and a Makefile into dir, which is made if it is not there, and tells what to do
 * next, or as JSON what was written. Nothing that exists is written over. Returns the exit status.
 */
int cli_policy_new(const char *name, const char *dir, bool json);

#endif
