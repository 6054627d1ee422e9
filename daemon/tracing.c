/* SPDX-License-Identifier: MIT */
/*
 * A recording needs a socket between two processes that do not know each other. Neither is told a
 * path, for that would let whoever names it choose what a program connects to, and the two may not
 * even see the same files: the daemon makes a pair, sends the one end to the target over the
 * connection that it is attached by, and gives the other to the client. It sees no ring.
 *
 * A target's lists tell when it allocates what, and its rings are memory of its: so they are for
 * its user and root alone, whoever the daemon runs as.
 */
#include "daemon/tracing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/journal.h"
#include "lib/fdpass.h"

static int may_begin(const struct target *t, uint32_t uid, char *why)
{
	struct segreader_proc p;

	if (uid && uid != t->uid) {
		snprintf(why, POLICY_WHY,
			 "target %llu is uid %u's; only that user or root may record it",
			 (unsigned long long)t->id, t->uid);
		return -EPERM;
	}
	if (!t->can_record) {
		snprintf(why, POLICY_WHY,
			 "target %llu has an allocator that can not begin to record; start it "
			 "again with the libpcpalloc of this version",
			 (unsigned long long)t->id);
		return -EOPNOTSUPP;
	}
	segreader_proc(t->sr, &p);
	if (p.agent_ticks)
		return 0;
	snprintf(why, POLICY_WHY, "target %llu has no agent thread%s", (unsigned long long)t->id,
		 t->info.flags & PCPTUNE_SEG_NO_AGENT
			 ? " (PCPALLOC_AGENT=0)"
			 : "; it gets one when it has taken more than 4 MiB, or at its start with "
			   "PCPALLOC_AGENT=1");
	return -EOPNOTSUPP;
}

int tracing_begin(struct target *t, uint32_t uid, int *ret_fd, char *why)
{
	struct pcptune_request request = {
		.magic = PCPTUNE_WIRE_MAGIC,
		.version = PCPTUNE_WIRE_VERSION,
		.size = sizeof(request),
		.what = PCPTUNE_REQUEST_RECORD,
	};
	int pair[2], r = may_begin(t, uid, why);

	if (r)
		return r;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
		r = -errno;
		snprintf(why, POLICY_WHY, "the daemon has no socket to give: %s", strerror(-r));
		return r;
	}
	if (fdpass_send(t->fd, &request, sizeof(request), pair[0]) != (ssize_t)sizeof(request))
		r = -errno;
	close(pair[0]);
	if (r) {
		close(pair[1]);
		snprintf(why, POLICY_WHY, "target %llu can not be asked: %s",
			 (unsigned long long)t->id,
			 r == -EAGAIN ? "it does not read what it was asked before" : strerror(-r));
		return r;
	}
	segreader_wake(t->sr);
	journal_event(t->d->journal, t, "record", "asked for by uid %u", uid);
	*ret_fd = pair[1];
	return 0;
}
