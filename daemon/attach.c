/* SPDX-License-Identifier: MIT */
/*
 * A peer connects, sends one hello with one memfd, and gets one reply. Nothing that a peer does
 * may cost more than its own connection:
 *
 *   - An honest client sends its hello together with the connect, so it is read right after accept.
 *     Peers that have not sent one wait in a bounded set with a time-out of two seconds; when the
 *     set is full, the one that waits longest is refused.
 *   - All descriptors that come with a message are taken out of it and closed unless there is
 *     exactly one and everything else is right.
 *   - Targets and peers do not get the last descriptors: status, log and reload need some most when
 *     there are none.
 *   - Out of descriptors all the same: a reserve descriptor is given up for a moment, so that one
 *     peer can be told why it is refused; then the listener rests for half a second. It does not
 *     spin.
 *   - After the handshake a target has nothing to say. What it sends ends its attachment.
 *
 * End of file is the end of the target, however the process ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/attach.h"
#include "daemon/claim.h"
#include "daemon/clock.h"
#include "daemon/journal.h"
#include "daemon/say.h"
#include "daemon/target.h"

#define PENDING_MAX	64u
#define HELLO_SECONDS	2
#define ACCEPT_AT_ONCE	64
#define DRAIN_AT_ONCE	4096
#define REST_MS		500
#define FDS_MAX		8      /* room for descriptors of one message; more truncate it */
#define ENTRIES_MAX	65536u /* zones x slots of one target: bounds the memory it costs us */
#define BYTES_PER_ENTRY 1024u
#define EVENTS_A_MINUTE 100u
#define KEPT_LEAST	4 /* descriptors that are not for targets: an eighth, within these */
#define KEPT_MOST	32
#define NO_DESCRIPTOR	"the daemon has no descriptor left; it is asked again later"

struct pending {
	struct attach *a;
	struct pending *next; /* oldest first */
	int fd;
	struct ucred peer;
	struct event *ev;
};

struct attach {
	struct daemon *d;
	int fd, reserve;
	int end_fd; /* descriptors from here on are not for targets; the lowest free one is taken */
	struct event *ev, *rest_ev;
	struct pending *first;
	unsigned n_pending;
	struct say_gate gate_refused, gate_fds;
	uint64_t events_until_ms; /* refusals that go to the log are bounded, too */
	unsigned n_events;
};

/* A hello as it came in. */
struct incoming {
	struct pcptune_hello hello;
	ssize_t len;
	int flags; /* of recvmsg */
	int fds[FDS_MAX];
	int n_fds;
};

/* ---- replies ---- */

/* false: somebody waits for an answer that does not come. */
static bool reply(struct attach *a, int fd, int status, uint64_t id, const char *reason)
{
	struct pcptune_reply r = {
		.magic = PCPTUNE_WIRE_MAGIC,
		.version = PCPTUNE_WIRE_VERSION,
		.size = sizeof(r),
		.status = status,
		.target_id = id,
		.lease_ns = (uint64_t)a->d->config->lease_ms * 1000000u,
	};

	snprintf(r.reason, sizeof(r.reason), "%s", reason);
	/* a peer that is gone loses the reply, nothing else: it is counted all the same */
	return send(fd, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EPIPE ||
	       errno == ECONNRESET;
}

static bool may_log(struct attach *a)
{
	uint64_t now = mono_ms();

	if (now >= a->events_until_ms) {
		a->events_until_ms = now + 60000;
		a->n_events = 0;
	}
	return a->n_events++ < EVENTS_A_MINUTE;
}

/* Says no and closes. */
static void refuse(struct attach *a, int fd, const struct ucred *peer, int status,
		   const char *reason)
{
	reply(a, fd, status, 0, reason);
	close(fd);
	say_gated(&a->gate_refused, LOG_WARNING, "refused pid %ld uid %lu: %s", (long)peer->pid,
		  (unsigned long)peer->uid, reason);
	if (may_log(a))
		journal_event(a->d->journal, NULL, "refused", "pid %ld uid %lu: %s",
			      (long)peer->pid, (unsigned long)peer->uid, reason);
}

/* ---- reading a hello ---- */

static void take_fds(struct msghdr *m, struct incoming *in)
{
	in->n_fds = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (in->n_fds < FDS_MAX)
				in->fds[in->n_fds++] = fd;
			else
				close(fd);
		}
	}
}

static void close_fds(struct incoming *in)
{
	for (int i = 0; i < in->n_fds; i++)
		close(in->fds[i]);
	in->n_fds = 0;
}

static void receive(int fd, struct incoming *in)
{
	union {
		char buf[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {&in->hello, sizeof(in->hello)};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = &control,
			   .msg_controllen = sizeof(control)};

	memset(&in->hello, 0, sizeof(in->hello));
	in->n_fds = 0;
	in->flags = 0;
	in->len = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (in->len < 0) {
		in->len = -errno;
		return;
	}
	in->flags = m.msg_flags;
	take_fds(&m, in);
}

static bool hello_form(const struct incoming *in, char *why, size_t n)
{
	const struct pcptune_hello *h = &in->hello;

	if (in->flags & MSG_TRUNC || in->len != (ssize_t)sizeof(*h))
		snprintf(why, n, "hello: %s%zd bytes, %zu are right",
			 in->flags & MSG_TRUNC ? "more than " : "", in->len, sizeof(*h));
	else if (h->magic != PCPTUNE_WIRE_MAGIC)
		snprintf(why, n, "hello: magic 0x%08x, 0x%08x is right", h->magic,
			 PCPTUNE_WIRE_MAGIC);
	else if (h->version != PCPTUNE_WIRE_VERSION)
		snprintf(why, n, "hello: version %u, this daemon speaks %u", h->version,
			 PCPTUNE_WIRE_VERSION);
	else if (h->size != sizeof(*h))
		snprintf(why, n, "hello: says it has %u bytes, %zu are right", h->size, sizeof(*h));
	else if (h->layout != PCPTUNE_SEG_LAYOUT)
		snprintf(why, n, "hello: segment layout %u, this daemon knows %u", h->layout,
			 PCPTUNE_SEG_LAYOUT);
	else if (in->flags & MSG_CTRUNC)
		snprintf(why, n, "hello: control data truncated, more than one descriptor");
	else if (in->n_fds != 1)
		snprintf(why, n, "hello: %d descriptors, one is right", in->n_fds);
	else
		return true;
	return false;
}

/* ---- attached ---- */

static void on_target(evutil_socket_t fd, short what, void *arg)
{
	struct target *t = arg;
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT); /* without control room: fds are dropped */

	(void)what;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		target_end(t, "it sent something after its hello");
	else
		target_end(t, n ? "connection lost" : "end of file");
}

static bool watch(struct attach *a, struct target *t)
{
	t->ev = event_new(a->d->base, t->fd, EV_READ | EV_PERSIST, on_target, t);
	return t->ev && !event_add(t->ev, NULL);
}

static void open_limits(const struct daemon *d, struct segreader_limits *l)
{
	uint64_t entries = (uint64_t)d->config->max_cpus * PCPTUNE_MAX_ZONES;

	if (entries > ENTRIES_MAX)
		entries = ENTRIES_MAX;
	l->max_cpus = (uint32_t)d->config->max_cpus;
	l->max_bytes = entries * BYTES_PER_ENTRY + (1u << 20);
}

/* The new one wins: its process attached again, and the old connection is dead or dying. */
static bool replace(struct daemon *d, struct segreader *sr, uint32_t uid)
{
	struct segreader_info info;
	struct target *old;

	segreader_info(sr, &info);
	old = target_by_identity(d, &info, uid);
	if (!old)
		return false;
	target_end(old, "it attached again");
	return true;
}

/* Nothing on its standard error says so, and it works; so the operator hears of it here. */
static void tell_refused_settings(const struct target *t)
{
	struct segreader_proc proc;

	segreader_proc(t->sr, &proc);
	if (proc.settings_refused)
		say(LOG_WARNING,
		    "target %llu %s (pid %lld): %llu of the PCPALLOC_ settings in its environment "
		    "not understood, counted as left out (see pcpalloc(3); pcpa_refused_setting() "
		    "names the first)",
		    (unsigned long long)t->id, t->info.name, (long long)t->pid,
		    (unsigned long long)proc.settings_refused);
}

static void attached(struct attach *a, struct target *t, int fd, bool again)
{
	struct daemon *d = a->d;
	bool told;

	segreader_lease(t->sr,
			clock_ns(CLOCK_MONOTONIC) + (uint64_t)d->config->lease_ms * 1000000u);
	told = reply(a, fd, 0, t->id, "");
	say(LOG_INFO,
	    "target %llu %s (pid %lld, uid %u) %s: %u zone%s, %u CPU slots, policy %s (%s)",
	    (unsigned long long)t->id, t->info.name, (long long)t->pid, t->uid,
	    again ? "attached again" : "attached", t->info.n_zones, t->info.n_zones == 1 ? "" : "s",
	    t->info.n_cpus, policy_desc(t->active.module)->name, t->active.why);
	tell_refused_settings(t);
	if (!told)
		target_end(t, "it could not be answered");
	else if (!watch(a, t))
		target_end(t, "the daemon has no memory");
}

static int attach_segment(struct attach *a, int fd, const struct ucred *peer, struct incoming *in,
			  char *why, size_t why_size)
{
	struct daemon *d = a->d;
	struct segreader_limits limits;
	struct segreader_info info;
	struct segreader *sr;
	struct target *t;
	bool again;
	int r;

	open_limits(d, &limits);
	r = segreader_open(in->fds[0], &limits, &sr, why, why_size);
	if (r < 0)
		return r;
	in->n_fds = 0; /* the reader has it */
	segreader_info(sr, &info);
	if (in->hello.segment_size != info.bytes) {
		snprintf(why, why_size, "hello: segment of %llu bytes, it has %zu",
			 (unsigned long long)in->hello.segment_size, info.bytes);
		segreader_close(sr);
		return -EPROTO;
	}
	again = replace(d, sr, peer->uid) || (in->hello.flags & PCPTUNE_HELLO_RECONNECT);
	if (d->n_targets >= (size_t)d->config->max_targets) {
		snprintf(why, why_size, "%zu targets are attached, max_targets allows no more",
			 d->n_targets);
		segreader_close(sr);
		return -EUSERS;
	}
	r = target_new(d, sr, fd, peer->pid, peer->uid, again, &t, why);
	if (r < 0) {
		segreader_close(sr);
		return r;
	}
	t->can_record = in->hello.flags & PCPTUNE_HELLO_RECORDS;
	attached(a, t, fd, again);
	return 0;
}

/*
 * Reads the hello of fd. false: none has come yet. Otherwise fd is dealt with: it belongs to a
 * target, or it was refused and closed.
 */
static bool handshake(struct attach *a, int fd, const struct ucred *peer)
{
	char why[POLICY_WHY] = "";
	struct incoming in;
	int r = -EPROTO;

	receive(fd, &in);
	if (in.len == -EAGAIN || in.len == -EINTR)
		return false;
	if (in.len <= 0 && !in.n_fds && !(in.flags & MSG_CTRUNC)) {
		close(fd); /* went without a word */
		return true;
	}
	if ((in.flags & MSG_CTRUNC && !in.n_fds) || (in.n_fds && in.fds[0] >= a->end_fd)) {
		snprintf(why, sizeof(why), NO_DESCRIPTOR);
		r = -EMFILE;
	} else if (hello_form(&in, why, sizeof(why)))
		r = attach_segment(a, fd, peer, &in, why, sizeof(why));
	close_fds(&in);
	if (r < 0)
		refuse(a, fd, peer, -r, why);
	return true;
}

/* ---- peers that have not said hello yet ---- */

static void pending_free(struct pending *p)
{
	struct attach *a = p->a;
	struct pending **at = &a->first;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	a->n_pending--;
	event_free(p->ev);
	free(p);
}

static void on_pending(evutil_socket_t fd, short what, void *arg)
{
	struct pending *p = arg;
	struct attach *a = p->a;
	struct ucred peer = p->peer;

	if (what & EV_TIMEOUT) {
		pending_free(p);
		refuse(a, fd, &peer, ETIMEDOUT, "no hello within 2 seconds");
	} else if (handshake(a, fd, &peer)) {
		pending_free(p);
	}
}

static void wait_for_hello(struct attach *a, int fd, const struct ucred *peer)
{
	struct timeval tv = {HELLO_SECONDS, 0};
	struct pending *p, **at = &a->first;

	if (fd >= a->end_fd) {
		refuse(a, fd, peer, EMFILE, NO_DESCRIPTOR);
		return;
	}
	if (a->n_pending == PENDING_MAX) {
		int oldest = a->first->fd;
		struct ucred who = a->first->peer;

		pending_free(a->first);
		refuse(a, oldest, &who, EBUSY, "too many connections without a hello");
	}
	p = calloc(1, sizeof(*p));
	if (p)
		p->ev = event_new(a->d->base, fd, EV_READ | EV_PERSIST, on_pending, p);
	if (!p || !p->ev || event_add(p->ev, &tv)) {
		if (p && p->ev)
			event_free(p->ev);
		free(p);
		refuse(a, fd, peer, ENOMEM, "the daemon has no memory");
		return;
	}
	p->a = a;
	p->fd = fd;
	p->peer = *peer;
	while (*at)
		at = &(*at)->next;
	*at = p;
	a->n_pending++;
}

/* ---- accepting ---- */

static void welcome(struct attach *a, int fd)
{
	struct ucred peer = {0, (uid_t)-1, (gid_t)-1};
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len)) {
		refuse(a, fd, &peer, EACCES, "the daemon can not tell who this is");
		return;
	}
	if (!handshake(a, fd, &peer))
		wait_for_hello(a, fd, &peer);
}

static void rest(struct attach *a)
{
	struct timeval tv = {0, REST_MS * 1000};

	event_del(a->ev);
	event_add(a->rest_ev, &tv);
}

/* No descriptor left: the reserve serves to tell one peer, then the listener rests. */
static void out_of_descriptors(struct attach *a, int err)
{
	int fd;

	say_gated(&a->gate_fds, LOG_ERR, "cannot accept a target: %s; the listener pauses",
		  strerror(err));
	if (a->reserve >= 0) {
		close(a->reserve);
		fd = accept4(a->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			reply(a, fd, err, 0, NO_DESCRIPTOR);
			close(fd);
		}
		a->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	rest(a);
}

static void accept_some(struct attach *a, int most)
{
	for (int i = 0; i < most; i++) {
		int fd = accept4(a->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			welcome(a, fd);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		if (errno != EAGAIN)
			out_of_descriptors(a, errno);
		return;
	}
}

static void on_listener(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	accept_some(arg, ACCEPT_AT_ONCE);
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
	struct attach *a = arg;

	(void)fd;
	(void)what;
	if (a->reserve < 0)
		a->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
	event_add(a->ev, NULL);
}

void attach_drain(struct attach *a)
{
	if (event_pending(a->ev, EV_READ, NULL))
		accept_some(a, DRAIN_AT_ONCE);
}

static int end_of_descriptors(void)
{
	struct rlimit l;
	int kept;

	if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur > INT_MAX)
		return INT_MAX;
	kept = (int)l.rlim_cur / 8;
	kept = kept < KEPT_LEAST ? KEPT_LEAST : kept > KEPT_MOST ? KEPT_MOST : kept;
	return (int)l.rlim_cur - kept;
}

int attach_new(struct daemon *d, struct attach **ret, char *why)
{
	struct attach *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return -ENOMEM;
	a->d = d;
	a->end_fd = end_of_descriptors();
	a->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
	/* root's daemon serves every user; a user's own serves that user */
	a->fd = claim_bind(d->config->socket, SOCK_SEQPACKET, geteuid() == 0 ? 0666 : 0600, why);
	if (a->fd < 0) {
		r = a->fd;
		goto fail;
	}
	a->ev = event_new(d->base, a->fd, EV_READ | EV_PERSIST, on_listener, a);
	a->rest_ev = event_new(d->base, -1, 0, on_rested, a);
	if (!a->ev || !a->rest_ev || event_add(a->ev, NULL)) {
		snprintf(why, CLAIM_WHY, "no memory for the listener");
		r = -ENOMEM;
		goto fail;
	}
	*ret = a;
	return 0;
fail:
	attach_free(a);
	return r;
}

void attach_free(struct attach *a)
{
	if (!a)
		return;
	while (a->first) {
		int fd = a->first->fd;

		pending_free(a->first);
		close(fd);
	}
	if (a->ev)
		event_free(a->ev);
	if (a->rest_ev)
		event_free(a->rest_ev);
	if (a->fd >= 0) {
		unlink(a->d->config->socket);
		close(a->fd);
	}
	if (a->reserve >= 0)
		close(a->reserve);
	free(a);
}
