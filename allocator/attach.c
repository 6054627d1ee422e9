/* SPDX-License-Identifier: MIT */
/*
 * The client's end of the handshake.
 *
 * The first step connects and sends hello and segment in one go, without waiting: a process that
 * lives for a millisecond is counted. The reply is read by a later step. End of file means that
 * the daemon is gone: the same segment is offered again, after 1 s and then at up to 10 s. A
 * refusal is final for this socket: a new daemon makes a new one, and only
 * then is it worth to ask again. Once attached, the daemon may ask to record us (events.h); a
 * message is looked at before it is taken, so that nothing but recvfrom() is called as a rule.
 *
 * All state is written under attach_lock; `state` may be read anywhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "allocator/agent.h"
#include "allocator/events.h"
#include "allocator/heap.h"
#include "allocator/segment.h"

#define MS	      UINT64_C(1000000)
#define BACKOFF_LEAST 1000u
#define BUSY_MS	      100u
#define BACKOFF_MOST  10000u
#define REFUSED_MOST  300000u
#define REPLY_LEAST   offsetof(struct pcptune_reply, reason)
#define PATHS	      2

static struct pcpa_lock attach_lock;
static uint32_t state; /* enum pcpa_attach */
static struct pcpa_fd sock = {.fd = -1};
static struct sockaddr_un paths[PATHS]; /* in order of preference */
static unsigned n_paths, used_path;
static char shared_dir[32]; /* of the first path, when it is in /tmp */
static bool paths_known, was_attached;
static uint64_t next_try_ns, waiting_since_ns;
static uint32_t backoff_ms, refused_ms;
static struct socket_id {
	uint64_t dev, ino, ctime_ns;
} refused;
static char reason[sizeof(((struct pcptune_reply *)0)->reason)];

void pcpa_attach_lock(void)
{
	pcpa_lock_take(&attach_lock);
}

void pcpa_attach_unlock(void)
{
	pcpa_lock_release(&attach_lock);
}

enum pcpa_attach pcpa_attach_state(void)
{
	return (enum pcpa_attach)__atomic_load_n(&state, __ATOMIC_ACQUIRE);
}

const char *pcpa_attach_reason(void)
{
	return reason;
}

/* ---- where ---- */

static void add_path(const char *folder, const char *rest)
{
	struct sockaddr_un *a = &paths[n_paths];
	int n = snprintf(a->sun_path, sizeof(a->sun_path), "%s%s", folder, rest);

	a->sun_family = AF_UNIX;
	if (n > 0 && n < (int)sizeof(a->sun_path))
		n_paths++;
}

/*
 * Where a daemon of this user listens when nothing else was said (lib/config.c has the same), then
 * the system's. Once: what the environment says later does not matter.
 */
static void find_paths(void)
{
	const char *given = secure_getenv("PCPTUNE_SOCKET");
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");

	paths_known = true;
	if (given) {
		add_path(given, "");
		return;
	}
	if (geteuid() && runtime && *runtime == '/') {
		add_path(runtime, "/pcptune/sock");
	} else if (geteuid()) {
		snprintf(shared_dir, sizeof(shared_dir), "/tmp/pcptune-%u", (unsigned)geteuid());
		add_path(shared_dir, "/sock");
	}
	add_path("/run", "/pcptune/sock");
}

/* In /tmp anybody may have been first: only a directory that nobody else can write is used. */
static bool may_use(unsigned path)
{
	struct stat st;

	if (path || !shared_dir[0])
		return true;
	return !lstat(shared_dir, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/* ---- steps ---- */

static void enter(enum pcpa_attach s)
{
	/* the reason of a refusal is there before the state that says so */
	__atomic_store_n(&state, (uint32_t)s, __ATOMIC_RELEASE);
}

static void try_later(void)
{
	if (!backoff_ms)
		backoff_ms = BACKOFF_LEAST;
	next_try_ns = pcpa_now_ns() + backoff_ms * MS;
	backoff_ms = backoff_ms * 2 < BACKOFF_MOST ? backoff_ms * 2 : BACKOFF_MOST;
	enter(PCPA_ATTACH_NONE);
}

static bool send_hello(int fd, int segment)
{
	struct pcptune_hello hello = {
		.magic = PCPTUNE_WIRE_MAGIC,
		.version = PCPTUNE_WIRE_VERSION,
		.size = sizeof(hello),
		.layout = PCPTUNE_SEG_LAYOUT,
		.flags = PCPTUNE_HELLO_RECORDS | (was_attached ? PCPTUNE_HELLO_RECONNECT : 0),
		.segment_size = pcpa_heap.segment_size,
	};

	return pcpa_fd_send(fd, &hello, sizeof(hello), segment);
}

/* A connected socket, kept. *ret_busy: somebody listens there, but has no room at the moment. */
static bool connect_to(const struct sockaddr_un *a, int segment, bool *ret_busy)
{
	int fd =
		(int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return false;
	if (syscall(SYS_connect, fd, a, sizeof(*a)) || !send_hello(fd, segment)) {
		*ret_busy |= errno == EAGAIN;
		pcpa_sys_close(fd);
		return false;
	}
	return pcpa_fd_keep(&sock, fd);
}

static void try_connect(void)
{
	int segment = pcpa_segment_fd();
	bool busy = false;

	if (segment < 0) {
		next_try_ns = UINT64_MAX;
		return;
	}
	for (unsigned i = 0; i < n_paths; i++) {
		if (!may_use(i) || !connect_to(&paths[i], segment, &busy))
			continue;
		used_path = i;
		waiting_since_ns = pcpa_now_ns();
		enter(PCPA_ATTACH_WAITING);
		return;
	}
	if (busy)
		backoff_ms = BUSY_MS;
	else if (!was_attached)
		backoff_ms = BACKOFF_MOST;
	try_later();
}

/* Bytes read, 0: end of file or the descriptor is no longer ours, -1: nothing yet. */
static long receive(void *buffer, size_t size, int flags)
{
	int fd = pcpa_fd_use(&sock);
	long n;

	if (fd < 0)
		return 0;
	n = syscall(SYS_recvfrom, fd, buffer, size, flags | MSG_DONTWAIT, NULL, NULL);
	if (n >= 0)
		return n;
	return errno == EAGAIN || errno == EINTR ? -1 : 0;
}

/* A socket file and when it was made: an inode number alone may be used again at once. */
static bool socket_id(struct socket_id *ret_id)
{
	struct stat st;

	if (stat(paths[used_path].sun_path, &st))
		return false;
	*ret_id = (struct socket_id){st.st_dev, st.st_ino,
				     (uint64_t)st.st_ctim.tv_sec * 1000000000u +
					     (uint64_t)st.st_ctim.tv_nsec};
	return true;
}

/* What was refused for want of room there may be had later. */
static bool for_want_of_room(int status)
{
	return status == EMFILE || status == ENFILE || status == ENOMEM || status == EUSERS ||
	       status == EBUSY || status == ETIMEDOUT;
}

static void enter_refused(int status)
{
	if (!socket_id(&refused))
		refused = (struct socket_id){0};
	next_try_ns = UINT64_MAX;
	if (for_want_of_room(status)) {
		refused_ms = refused_ms ? 2 * refused_ms : BACKOFF_LEAST;
		if (refused_ms > REFUSED_MOST)
			refused_ms = REFUSED_MOST;
		next_try_ns = pcpa_now_ns() + refused_ms * MS;
	}
	enter(PCPA_ATTACH_REFUSED);
}

static void read_reply(void)
{
	struct pcptune_reply reply = {0};
	long n = receive(&reply, sizeof(reply), 0);

	if (n < 0)
		return;
	if (n < (long)REPLY_LEAST || reply.magic != PCPTUNE_WIRE_MAGIC) {
		pcpa_fd_drop(&sock);
		try_later();
		return;
	}
	if (!reply.status) {
		was_attached = true;
		backoff_ms = refused_ms = 0;
		enter(PCPA_ATTACH_DONE);
		return;
	}
	reply.reason[sizeof(reply.reason) - 1] = '\0';
	memcpy(reason, reply.reason, sizeof(reason));
	pcpa_fd_drop(&sock);
	enter_refused(reply.status);
}

/* Does the daemon run as us or as root? It does, unless we were told to attach to another's. */
static bool is_trusted(int fd)
{
	struct ucred who;
	socklen_t len = sizeof(who);

	return !syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &who, &len) &&
	       (!who.uid || who.uid == geteuid());
}

/* False: there was none to be had. */
static bool take_request(void)
{
	struct pcptune_request request = {0};
	int from = pcpa_fd_use(&sock), fd;
	long n = from < 0 ? -1 : pcpa_fd_receive(from, &request, sizeof(request), &fd);

	if (n < 0)
		return false;
	if (fd >= 0 && n == (long)sizeof(request) && request.magic == PCPTUNE_WIRE_MAGIC &&
	    request.what == PCPTUNE_REQUEST_RECORD)
		pcpa_events_join(fd, is_trusted(from) ? 0 : EPERM);
	else if (fd >= 0)
		pcpa_sys_close(fd);
	return true;
}

/* Requests of the daemon, or its end. */
static void check_end(void)
{
	char byte;
	long n;

	do
		n = receive(&byte, 1, MSG_PEEK);
	while (n > 0 && take_request());
	if (n)
		return;
	pcpa_fd_drop(&sock);
	try_later();
}

static void check_refused(void)
{
	struct socket_id now;

	if (pcpa_now_ns() < next_try_ns &&
	    (!socket_id(&now) || !memcmp(&now, &refused, sizeof(now))))
		return;
	enter(PCPA_ATTACH_NONE);
	next_try_ns = 0;
}

enum pcpa_attach pcpa_attach_step(void)
{
	int saved = errno;
	enum pcpa_attach s;

	pcpa_attach_lock();
	if (!paths_known)
		find_paths();
	switch (pcpa_attach_state()) {
	case PCPA_ATTACH_NONE:
		if (n_paths && pcpa_now_ns() >= next_try_ns)
			try_connect();
		break;
	case PCPA_ATTACH_WAITING:
		read_reply();
		break;
	case PCPA_ATTACH_DONE:
		check_end();
		break;
	case PCPA_ATTACH_REFUSED:
		check_refused();
		break;
	}
	s = pcpa_attach_state();
	pcpa_attach_unlock();
	errno = saved;
	return s;
}

uint32_t pcpa_attach_wait_ms(void)
{
	uint64_t now = pcpa_now_ns(), ms = UINT32_MAX;
	enum pcpa_attach s;

	pcpa_attach_lock();
	s = pcpa_attach_state();
	if ((s == PCPA_ATTACH_NONE || s == PCPA_ATTACH_REFUSED) && next_try_ns != UINT64_MAX &&
	    n_paths)
		ms = next_try_ns > now ? (next_try_ns - now) / MS + 1 : 0;
	/* a reply is soon there or not at all: look after 5 % of what was waited, at most 1 s */
	if (s == PCPA_ATTACH_WAITING)
		ms = (now - waiting_since_ns) / MS / 20 + 2;
	pcpa_attach_unlock();
	if (s == PCPA_ATTACH_WAITING && ms > 1000)
		ms = 1000;
	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* In the child of a fork, lock held: the socket is the parent's. */
void pcpa_attach_forget(void)
{
	pcpa_lock_forget_waiters(&attach_lock);
	pcpa_fd_drop(&sock);
	enter(PCPA_ATTACH_NONE);
	was_attached = false;
	next_try_ns = 0;
	backoff_ms = refused_ms = 0;
}
