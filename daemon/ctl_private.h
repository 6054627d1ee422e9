/* SPDX-License-Identifier: MIT */
/*
 * What the commands of the control socket share (ctl_cmds.c has their table).
 */
#ifndef PCPTUNE_DAEMON_CTL_PRIVATE_H
#define PCPTUNE_DAEMON_CTL_PRIVATE_H

#include "daemon/ctl.h"
#include "daemon/summary.h"

/* The answer is a refusal: a code of docs/control.md, static, and a text for people. */
__attribute__((format(printf, 3, 4))) void ctl_fail(struct ctl_answer *a, const char *code,
						    const char *fmt, ...);
/* The one target that the request names; NULL: a says why not. */
struct target *ctl_one_target(struct daemon *d, json_t *request, struct ctl_answer *a);

/* ---- ctl_look.c: commands that show, and `record`, which hands out ---- */

void ctl_run_version(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_status(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_targets(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_counters(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_summary(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_record(struct daemon *d, json_t *request, struct ctl_answer *a);

/* ---- ctl_set.c: limits by hand ---- */

void ctl_run_set(struct daemon *d, json_t *request, struct ctl_answer *a);
void ctl_run_unset(struct daemon *d, json_t *request, struct ctl_answer *a);

/* ---- ctl_policy.c: the policy of a target ---- */

void ctl_run_policy(struct daemon *d, json_t *request, struct ctl_answer *a);

/* ---- ctl_show.c ---- */

json_t *show_run(struct daemon *d, const struct run_totals *r);

#endif
