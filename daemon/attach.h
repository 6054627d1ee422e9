/* SPDX-License-Identifier: MIT */
/*
 * The socket that targets attach to: handshake, refusals, end of file.
 */
#ifndef PCPTUNE_DAEMON_ATTACH_H
#define PCPTUNE_DAEMON_ATTACH_H

#include "daemon/daemon.h"

/* why: CLAIM_WHY bytes. Listens at once; the caller holds the claim on the socket path. */
int attach_new(struct daemon *d, struct attach **ret, char *why);
/* Stops listening, drops unfinished handshakes and removes the socket file. Targets stay. */
void attach_free(struct attach *a);
/* Takes in every target that has connected by now; for answers that must not miss one. */
void attach_drain(struct attach *a);

#endif
