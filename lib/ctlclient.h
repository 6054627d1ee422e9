/* SPDX-License-Identifier: MIT */
/*
 * Client side of the control socket: one JSON object a line each way (docs/control.md).
 */
#ifndef PCPTUNE_LIB_CTLCLIENT_H
#define PCPTUNE_LIB_CTLCLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct ctlclient;

/*
 * socket: the target socket's path (".ctl" is added); NULL: the default, and
 * when nobody listens there, /run/pcptune/sock (not when $PCPTUNE_SOCKET says where). -ENOENT,
 * -ECONNREFUSED: no daemon; -EACCES. why: 256 bytes.
 */
int ctlclient_open(const char *socket, struct ctlclient **ret, char *why);
void ctlclient_close(struct ctlclient *c);
/*
 * Sends request (reference kept by the caller) and waits up to timeout_ms for the answer. 0: *ret
 * is the answer's "result" (a new reference). An error that the daemon sent: -EREMOTEIO, -ENOENT
 * (no such target), -EINVAL (bad request), -EPERM, with its text in why. After those the client can
 * be used again. After -ETIMEDOUT, -ECONNRESET, -EPIPE, -EBADMSG, -EMSGSIZE (answer over 64 MiB)
 * the connection is closed: further calls give -ENOTCONN. A request over 64 KiB is refused with
 * -EMSGSIZE before it is sent. why: 256 bytes. One thread at a time; never raises SIGPIPE.
 */
int ctlclient_call(struct ctlclient *c, json_t *request, int timeout_ms, json_t **ret, char *why);
/* The descriptor that came with the last answer, the caller's from now on; -1: none. */
int ctlclient_descriptor(struct ctlclient *c);
/* Is there nobody at the other end any more? Between calls. */
bool ctlclient_gone(const struct ctlclient *c);

#endif
