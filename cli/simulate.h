/* SPDX-License-Identifier: MIT */
/*
 * What the files of `pcptune simulate` share: the rows with their results, and values of them.
 */
#ifndef PCPTUNE_CLI_SIMULATE_H
#define PCPTUNE_CLI_SIMULATE_H

#include <stdatomic.h>
#include "cli/cli.h"
#include "eval/sim/published.h"
#include "eval/sim/sim.h"

struct simulate_row {
	char *name;
	uint32_t rules;		      /* without a policy */
	struct policy_module *module; /* NULL: a generation */
	int64_t params[POLICY_MAX_PARAMS];
	struct sim_result *seed; /* one for each seed */
	char why[SIM_RUN_WHY];	 /* how it broke its contract, or failed */
};

struct simulate_job {
	const struct sim_workload *w;
	struct simulate_row *rows;
	uint32_t n_rows, n_seeds, cpus;
	uint64_t seed, budget;
	atomic_uint next;
	atomic_int error;
};

enum {
	SIMULATE_HELD_MEAN = SIM_METRICS,
	SIMULATE_HELD_PEAK,
	SIMULATE_DECISIONS,
	SIMULATE_COLD,
	SIMULATE_VALUES,
};
extern const char *const simulate_names[SIMULATE_VALUES];

struct simulate_value {
	double mean, spread; /* spread: largest minus least of the seeds */
};

/* Of one row; in percent of the first row where simulate_names[] is about that. */
struct simulate_value simulate_value(const struct simulate_job *j, const struct simulate_row *r,
				     int which);

/* The generations that were published, for --rows. */
#define SIMULATE_PUBLISHED_ROWS "base,p1,p3,p5,p7,p9,p10,p7v3,g4"

/* Cells and orderings beside what was published; rows must have SIMULATE_PUBLISHED_ROWS. */
int simulate_print_published(const struct simulate_job *j);

#endif
