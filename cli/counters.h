/* SPDX-License-Identifier: MIT */
/*
 * counters.def as a table: the explanations of `pcptune counters`, and the numbers of a sample in
 * `pcptune explain`.
 */
#ifndef PCPTUNE_CLI_COUNTERS_H
#define PCPTUNE_CLI_COUNTERS_H

#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>

struct cli_counter {
	const char *name, *unit, *line, *para;
	const char *kind;  /* "counter", "gauge" */
	const char *level; /* "cpu", "zone", "process" */
	size_t offset;	   /* in struct pcptune_cpu, level "cpu" only */
	unsigned bits;	   /* 64, 32; 0: not in a sample */
};
extern const struct cli_counter cli_counters[]; /* in the order of counters.def */
extern const size_t cli_n_counters;

/* 0 for what is not in a sample */
uint64_t cli_counter_value(const struct cli_counter *row, const struct pcptune_cpu *cpu);

#endif
