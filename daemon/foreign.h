/* SPDX-License-Identifier: MIT */
/*
 * Processes of foreign policies in the event loop: who speaks, who is late, who died of what.
 */
#ifndef PCPTUNE_DAEMON_FOREIGN_H
#define PCPTUNE_DAEMON_FOREIGN_H

#include <event2/event.h>
#include "lib/config.h"
#include "policies/host_remote.h"

struct foreigners; /* all of one loop */
struct foreign;	   /* one process */

int foreigners_new(struct event_base *base, struct foreigners **ret);
/* No process may be left that is in use. */
void foreigners_free(struct foreigners *all);

/*
 * What comes of a process: REMOTE_LOADED, READY, ANSWER or REFUSED as in host_remote.h; BROKEN:
 * it died, spoke out of turn, or its time is over. After REFUSED and BROKEN it is of no use; the
 * owner, who may do that in this call, frees it.
 */
typedef void (*foreign_fn)(void *cookie, enum remote_event what, const char *why);

/* Starts one. limits: of the configuration, copied. 0, or -errno with why. */
int foreign_new(struct foreigners *all, const struct policy_file *f, const struct config *limits,
		foreign_fn fn, void *cookie, struct foreign **ret, char *why);
/* Ends the process. NULL is fine. */
void foreign_free(struct foreign *f);
/* Somebody else hears of it from now on. */
void foreign_hand_over(struct foreign *f, foreign_fn fn, void *cookie);
struct remote *foreign_remote(const struct foreign *f);

/* As those of host_remote.h, with a time limit; what goes wrong comes as REMOTE_BROKEN. */
void foreign_init(struct foreign *f, struct policy_module *m, const struct pcptune_shape *shape,
		  const int64_t *params);
void foreign_ask(struct foreign *f, const struct pcptune_sample *s);
/* Is what it was asked for overdue by the CPU time that it took? Then BROKEN comes of it, now. */
void foreign_check(struct foreign *f);

#endif
