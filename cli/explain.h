/* SPDX-License-Identifier: MIT */
/*
 * One decision with everything around it, gathered from the log, and its two forms.
 */
#ifndef PCPTUNE_CLI_EXPLAIN_H
#define PCPTUNE_CLI_EXPLAIN_H

#include <stdbool.h>
#include "cli/cli.h"

struct neighbour {
	bool known;
	struct log_decision d;
	struct log_assignment a;
};

struct story {
	struct log_decision d;
	struct log_target t;
	struct log_assignment a;
	const char *db; /* owned by the log store */
	char reason[512], clamp_why[512];
	struct neighbour before, next; /* on the same zone and CPU of the same target */
	/* the sample that the decision came from */
	bool have_sample;
	struct pcptune_sample s; /* without its arrays */
	struct pcptune_cpu cpu;	 /* of the decision */
	uint64_t target_wait_ns; /* all CPUs, allocation and free path */
};

void explain_text(const struct story *s);
json_t *explain_json(const struct story *s);
/* 100 x wait / CPU time; < 0: CPU time is not known */
double explain_contend(uint64_t wait_ns, uint64_t cpu_us);
/* "raised high of CPU 1 ... from 378 to 504 pages", by what changed and whether it was applied */
char *explain_headline(const struct log_decision *d, const struct log_target *t, char *buf,
		       size_t n);

#endif
