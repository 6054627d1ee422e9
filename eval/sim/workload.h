/* SPDX-License-Identifier: MIT */
/*
 * Workload files: libconfig, one key for each field of struct sim_workload, all of them needed, but
 * for the groups of what the CPUs do: processes and slab, or stream.
 */
#ifndef PCPTUNE_SIM_WORKLOAD_H
#define PCPTUNE_SIM_WORKLOAD_H

#include <stddef.h>
#include "eval/sim/sim.h"

#define SIM_WHY 512u

/*
 * Reads a file. 0, or -ENOENT, -EACCES, ..., -EINVAL, with "FILE:LINE: what is wrong, what is
 * right" in why[SIM_WHY]; *ret is left alone then.
 */
int sim_workload_read(const char *path, struct sim_workload *ret, char *why);

#endif
