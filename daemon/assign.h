/* SPDX-License-Identifier: MIT */
/*
 * Giving a target a policy, at once or, where it is foreign, when its process is ready.
 */
#ifndef PCPTUNE_DAEMON_ASSIGN_H
#define PCPTUNE_DAEMON_ASSIGN_H

#include "daemon/target.h"

#define BREACHES_MAX 3u

/*
 * Gives t a new instance of c's policy. The old one goes on when this fails (why: POLICY_WHY), and
 * until a foreign one is ready; a target that has none yet gets `static` until then.
 */
int assign(struct target *t, const struct choice *c, bool by_operator, char *why);

/* The policy before the canary in force takes over again. */
void assign_back(struct target *t);

/*
 * The policy in force again, with its parameters, where its file was written anew: 1; 0: it was
 * not; -errno: it can not be had, and the old one goes on.
 */
int assign_renew(struct target *t, char *why);

/* What somebody who wants a foreign policy does on the way. */
struct assign_ops {
	/* Its tables are there: c->module is set. Fills in c->params; -errno with why: refused. */
	int (*prepare)(void *cookie, struct choice *c, char *why);
	/* It is in force (0), or will never be (-errno). Called once. */
	void (*done)(void *cookie, int r, const char *why);
	void *cookie;
};
/*
 * Starts the process of f for t. c: dry_run and why. 0, or -errno with why, and done is not called.
 */
int assign_foreign(struct target *t, const struct policy_file *f, const struct choice *c,
		   bool by_operator, const struct assign_ops *ops, char *why);

/* Counts a broken contract of t's policy; the third benches it. */
void assign_breach(struct target *t, const char *why);

/* t is going away, or somebody else decides: what was to take over does not. */
void assign_cancel(struct target *t, const char *why);

#endif
