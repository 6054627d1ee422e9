/* SPDX-License-Identifier: MIT */
/* What the files of `pcptune eval` share. */
#ifndef PCPTUNE_CLI_EVAL_H
#define PCPTUNE_CLI_EVAL_H

#include "cli/combine.h"

#define EVAL_JOBS_MAX	  10000u
#define EVAL_POLICIES_MAX 32u

struct eval_args {
	const char *trace, *policies, *policy_path, *target;
	struct cli_list set, db;
	int64_t budget, managed, threads;
	bool partial, json;
};

struct eval_policies {
	struct combine_policy p[EVAL_POLICIES_MAX];
	size_t n;
};

/* As many threads as were asked for, or as there are CPUs. */
unsigned eval_threads(const struct eval_args *a);
json_t *eval_params_json(const struct policy_module *m, const int64_t *params);

/* Over the logs of a->db. Exit status. */
int eval_log(const struct eval_args *a, const struct eval_policies *p);
/* `eval merge FILE...` */
int eval_merge(const struct eval_args *a, const struct cli_rest *rest);

#endif
