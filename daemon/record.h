/* SPDX-License-Identifier: MIT */
/*
 * Records of the band tracker (lib/records.h), taken now and then from CPUs that were active.
 *
 * Each CPU has its turn once in log.record_ms, or as often as the policy asks, and the turns are
 * spread over that time, so that no sample reads all of them. A CPU that did nothing since its last
 * record has none; its next one covers that time, too. What is read is written to the log, and
 * given to a policy that asks.
 */
#ifndef PCPTUNE_DAEMON_RECORD_H
#define PCPTUNE_DAEMON_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include "daemon/target.h"

/* After t->sr, t->n and t->last_us are set. The first records count from zero, or from now. */
int recorder_new(struct target *t, bool from_zero, struct recorder **ret);
void recorder_free(struct recorder *rec);
/* Times may have changed: the policy, or the configuration. */
void recorder_retime(struct target *t);

/*
 * Those that are due with the sample s, which is filled; into s, too, where the policy asks for
 * them. Only after record_due(). The array is valid until the next call, of whatever target.
 */
uint32_t record_take(struct target *t, struct pcptune_sample *s, const struct log_record **ret);
/*
 * Of whoever did anything since, with the last sample: until there are none. No policy sees them.
 */
uint32_t record_rest(struct target *t, bool first, const struct log_record **ret);
/* At the end of the daemon. */
void record_free(void);

/* Is anything due? Asked for each sample, so no more than this. */
static inline bool record_due(const struct target *t, uint64_t now_us)
{
	return now_us >= t->record_due_us;
}

#endif
