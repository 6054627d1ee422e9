/* SPDX-License-Identifier: MIT */
/*
 * Reading the configuration again, all or nothing.
 */
#ifndef PCPTUNE_DAEMON_RELOAD_H
#define PCPTUNE_DAEMON_RELOAD_H

#include "daemon/daemon.h"

/*
 * Loads the file and the policies anew. When all is right and only keys that can be reloaded
 * differ, it takes effect; targets whose policy, parameters or dry run differ by it get a new
 * policy. Otherwise nothing changes, and the message says what was wrong. Foreign policies take a
 * while: it returns before.
 */
void reload(struct daemon *d);
/* Gives up a reload that is under way. */
void reload_stop(struct daemon *d);

#endif
