/* SPDX-License-Identifier: MIT */
/*
 * Reading the configuration again, all or nothing.
 */
#ifndef PCPTUNE_DAEMON_RELOAD_H
#define PCPTUNE_DAEMON_RELOAD_H

#include "daemon/daemon.h"

/*
 * Loads the file anew. When it is right and only keys that can be reloaded differ, it takes effect;
 * targets whose policy, parameters or dry run differ by it get a new policy. Otherwise nothing
 * changes, and the message says what was wrong.
 */
void reload(struct daemon *d);

#endif
