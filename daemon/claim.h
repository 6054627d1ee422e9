/* SPDX-License-Identifier: MIT */
/*
 * The claim of one daemon on its socket path and its log: directory, lock file, stale sockets,
 * binding.
 */
#ifndef PCPTUNE_DAEMON_CLAIM_H
#define PCPTUNE_DAEMON_CLAIM_H

#include <stdbool.h>
#include <stddef.h>

struct claim;

#define CLAIM_WHY 512u

/*
 * Is the directory there, or may it be created, and is there nothing in it that is in the way of
 * SOCKET and SOCKET.ctl? With create the directory is made. why: CLAIM_WHY bytes; on
 * success it says what was, or would be, done ("" for nothing).
 */
int claim_directory(const char *socket, bool create, char *why);
/*
 * Would claim_new() find the lock free? Creates nothing. -EBUSY: why names the holder, "another
 * pcptuned WHAT FILE: pid ...".
 */
int claim_probe(const char *file, const char *what, char *why);
/*
 * Takes FILE.lock (flock; holds our pid and configuration). -EBUSY: another daemon has it, why
 * names its pid and configuration.
 */
int claim_new(const char *file, const char *what, const char *config, struct claim **ret,
	      char *why);
/* Removes the lock file and lets go. */
void claim_free(struct claim *c);
/*
 * A listening non-blocking socket at path; a stale socket file there is replaced. Only for a
 * holder of the claim. Returns the descriptor or -errno.
 */
int claim_bind(const char *path, int type, unsigned mode, char *why);

#endif
