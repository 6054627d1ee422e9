/* SPDX-License-Identifier: MIT */
/*
 * Which policy, with which parameters, for which target: the rules of the configuration turned
 * into loaded plug-ins and numbers, all of them or none.
 */
#ifndef PCPTUNE_DAEMON_CHOICE_H
#define PCPTUNE_DAEMON_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/foreign.h"
#include "lib/config.h"
#include "policies/host.h"

#define CHOICE_WHY 128u

/* A policy ready to be given to a target. The module is a reference of its own. */
struct choice {
	struct policy_module *module;
	int64_t params[POLICY_MAX_PARAMS];
	bool dry_run;
	char why[CHOICE_WHY]; /* which rule chose it */
};

struct choices;

/*
 * Loads the policy of every rule and of the default, sets their parameters and tries them once.
 * When it is not done at once (choices_pending()), fn(cookie) is called later, when it is. c stays
 * the caller's and must live until choices_end(). -ENOMEM.
 */
typedef void (*choices_fn)(void *cookie);
int choices_begin(const struct config *c, struct foreigners *all, choices_fn fn, void *cookie,
		  struct choices **ret);
bool choices_pending(const struct choices *cs);
/*
 * Once nothing is pending: 0, and cs can be used; else cs is freed. *ret_why: malloc'ed lines
 * "file:line: what, allowed", one for each mistake. -EINVAL, -ENOMEM (*ret_why is untouched).
 */
int choices_end(struct choices *cs, char **ret_why);
void choices_free(struct choices *cs);
/* The choice for a target, owned by cs. c must be the configuration that cs was made from. */
const struct choice *choices_match(const struct choices *cs, const struct config *c,
				   const char *program, int64_t uid);
/* The choice of rule i, -1: default; for --check. */
const struct choice *choices_at(const struct choices *cs, int i);

/* Every parameter at its default, those of the host as configured, no canary. ch->module is set. */
void choice_defaults(struct choice *ch, const struct config *c);
/* Copies with a reference to the module. */
void choice_copy(struct choice *dst, const struct choice *src);
void choice_clear(struct choice *c);
/* Same policy, parameters and dry run? What chose it, and how it would begin, does not matter. */
bool choice_same(const struct choice *a, const struct choice *b);

#endif
