/* SPDX-License-Identifier: MIT */
/*
 * The closed loop: a policy over a trace.
 *
 * The calls of the trace go through simulated lists (lists.h); every interval of the trace's time
 * the policy gets the sample that these lists caused, through the real plug-in and the real host,
 * and what it decides is in force from then on. So a policy meets the consequences of what it does.
 *
 * One pass over the file, a few MiB. Everything is computed in integers from the trace alone, but
 * for means that are only printed: the same trace gives the same result on every machine and with
 * any number of threads. Runs with different instances may go on in parallel.
 */
#ifndef PCPTUNE_EVAL_CLOSED_H
#define PCPTUNE_EVAL_CLOSED_H

#include <stdbool.h>
#include <stdint.h>
#include <pcptune/rules.h>
#include "lib/trace.h"
#include "policies/host.h"

#define CLOSED_INTERVAL_MS 100u
#define CLOSED_SETTLE_US   200000u /* as the daemon's settle_ms is by default */
/* A hold of the zone lock: entering and leaving it, and each page moved (docs/design.md). */
#define CLOSED_HOLD_NS 100u
#define CLOSED_PAGE_NS 20u

struct closed_setup {
	const char *path;
	uint32_t n_cpus;  /* slots: the largest CPU id of the trace and one more */
	const bool *used; /* by CPU: is in the trace */
	uint32_t n_used;
	uint64_t managed; /* pages of the zone, for defaults and for policies */
	uint64_t budget;  /* for the sum of high; 0: none */
	/* a policy with its parameters, or NULL: fixed values, high for each CPU */
	struct policy_module *module;
	const int64_t *params;
	const uint32_t *high;
	uint32_t batch, scale_max, rules; /* with fixed values */
};

struct closed_result {
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone;
	uint64_t alloc_direct, free_direct; /* past the lists */
	uint64_t refills, drains, free_high, trim_pages;
	uint64_t lock_takes, lock_contended, wait_ns; /* of calls; the agent's are left out */
	uint64_t held_peak, high_peak;		      /* high_peak: of the sum of high */
	uint64_t ns; /* from the first row to the last; 0: then contend_pct is not known */
	double held_mean, contend_pct;
	uint64_t samples, decisions, turns, breaches;
	uint32_t batch, scale_max, rules; /* of the first CPU at the end */
};

/* The limits of a CPU that no policy has touched: the allocator's defaults, within the budget. */
struct pcptune_rule_state closed_first_limits(const struct pcptune_shape *shape, uint32_t n_used);
/* What a shape of this set-up looks like to a policy. */
void closed_shape(const struct closed_setup *s, struct pcptune_shape *ret);
/*
 * 0; -EBADMSG: the trace ends early, and the result is of what came before; -ENOMEM ...; why:
 * TRACE_WHY bytes.
 */
int closed_run(const struct closed_setup *s, struct closed_result *ret, char *why);

#endif
