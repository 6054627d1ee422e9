/* SPDX-License-Identifier: MIT */
/*
 * The control socket: JSON lines in, JSON lines out (docs/control.md).
 */
#ifndef PCPTUNE_DAEMON_CTL_H
#define PCPTUNE_DAEMON_CTL_H

#include <jansson.h>
#include "daemon/daemon.h"
#include "daemon/target.h"

#define CTL_WHY 512u

/* Listens on the control socket of d->config. why: CLAIM_WHY bytes. */
int ctl_new(struct daemon *d, struct ctl **ret, char *why);
void ctl_free(struct ctl *c);
/* Numeric group of the configuration; -1: none given. -EINVAL: no such group. */
int ctl_group(const struct config *c, int64_t *ret_gid, char *why);

/* A command in the making: where the answer goes. */
struct ctl_answer {
	json_t *result;	  /* set on success; owned */
	const char *code; /* static; set on failure */
	char error[CTL_WHY];
	uint64_t client; /* who asks */
	uint32_t uid;	 /* ... and as whom */
	bool later;	 /* it comes by ctl_later() */
	bool has_fd;	 /* fd goes to the client with the answer; owned */
	int fd;
};

/* The answer to the request of client, if it is still there. Takes over a->result. */
void ctl_later(struct ctl *c, uint64_t client, struct ctl_answer *a);

/* ---- ctl_cmds.c ---- */

/* Carries out one request. privileged: the peer may change things. client: for ctl_later(). */
void ctl_command(struct daemon *d, json_t *request, bool privileged, uint64_t client,
		 struct ctl_answer *a);

/* ---- ctl_show.c: state as JSON; NULL: no memory ---- */

json_t *show_daemon(struct daemon *d);
json_t *show_target(struct target *t);
json_t *show_target_line(struct target *t);
json_t *show_policy(struct target *t);
json_t *show_counters(struct target *t);

#endif
