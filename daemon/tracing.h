/* SPDX-License-Identifier: MIT */
/*
 * Recordings of targets: the daemon brings a target and who asks together, and is out of it then.
 */
#ifndef PCPTUNE_DAEMON_TRACING_H
#define PCPTUNE_DAEMON_TRACING_H

#include "daemon/target.h"

/*
 * Asks the target to record for a client of that user. *ret_fd: the client's end of the socket that
 * the rings come by (pcptune/events.h), the caller's. Whether the target does it is said there.
 * -EPERM: another user's target; -EOPNOTSUPP: one that can not; else what the system gave. why:
 * POLICY_WHY bytes.
 */
int tracing_begin(struct target *t, uint32_t uid, int *ret_fd, char *why);

#endif
