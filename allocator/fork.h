/* SPDX-License-Identifier: MIT */
/* Every lock at once, for fork and for the audit. */
#ifndef PCPA_FORK_H
#define PCPA_FORK_H

/* Registers the handlers. 0 or -errno. */
int pcpa_fork_register(void);

/* Locks of the lists and of the zones, in order; pcpa_in_zone is set in between. */
void pcpa_lock_all(void);
void pcpa_unlock_all(void);

#endif
