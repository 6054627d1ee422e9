/* SPDX-License-Identifier: MIT */
/*
 * Combinations of the values that --set POLICY.KEY=VALUE,... gives parameters of policies: what
 * `eval` and `simulate` make rows of.
 */
#ifndef PCPTUNE_CLI_COMBINE_H
#define PCPTUNE_CLI_COMBINE_H

#include "cli/cli.h"
#include "policies/host.h"

/* A policy and the word that it was asked for with: its name, or a path to its file. */
struct combine_policy {
	const char *word;
	struct policy_module *module;
};

/* One combination. Returns -1: go on; else an exit status. */
typedef int (*combine_fn)(void *cookie, const struct combine_policy *p, const int64_t *params);

/* Is every --set well formed, and for one of these? -1, or an exit status after a message. */
int combine_check(const struct cli_list *set, const struct combine_policy *p, size_t n,
		  const char *option);
/* All combinations of a policy: one, with the defaults, where no --set is for it. As combine_fn. */
int combine_each(const struct cli_list *set, const struct combine_policy *p, combine_fn fn,
		 void *cookie);
/* What differs from the defaults: "key=value key=value". */
void combine_text(const struct policy_module *m, const int64_t *params, char *buf, size_t n);

#endif
