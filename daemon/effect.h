/* SPDX-License-Identifier: MIT */
/*
 * What a decision did: totals of its CPU over the same number of samples before and after it.
 */
#ifndef PCPTUNE_DAEMON_EFFECT_H
#define PCPTUNE_DAEMON_EFFECT_H

#include <pcptune/policy.h>
#include <stdbool.h>
#include <stdint.h>
#include "lib/logstore.h"

struct effects;

/* n: CPUs; samples: over how many (1 ..). -ENOMEM. */
int effects_new(uint32_t n, uint32_t samples, struct effects **ret);
void effects_free(struct effects *e);
/* Accounts for one sample. */
void effects_sample(struct effects *e, const struct pcptune_cpu *cpus, const uint32_t *active,
		    uint32_t n_active);
/* Begins to measure a decision that was written to CPU index just now. */
void effects_begin(struct effects *e, int64_t decision, uint32_t index, uint32_t count);
/* Hands out one finished measurement (its id and effect fields in *ret), false: none. */
bool effects_take(struct effects *e, struct log_decision *ret);
/* Ends all measurements: their decisions are not in the log any more. */
void effects_forget(struct effects *e);

#endif
