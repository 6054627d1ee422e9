/* SPDX-License-Identifier: MIT */
/*
 * The sampler: one timer for all targets.
 */
#ifndef PCPTUNE_DAEMON_SAMPLE_H
#define PCPTUNE_DAEMON_SAMPLE_H

#include "daemon/target.h"

int sampler_new(struct daemon *d, struct sampler **ret);
void sampler_free(struct sampler *s);
/*
 * The last sample of t: what moved since the one before. The policy sees it with every CPU held,
 * so that it can not propose what could not be applied any more.
 */
void sample_last(struct target *t);

#endif
