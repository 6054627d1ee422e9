/* SPDX-License-Identifier: MIT */
/*
 * The program's side of a recording: see events.h.
 *
 * A look finds how often each list was freed to and allocated from since the look before: that is an
 * event. What it says of the order is for the reader to guess (lib/recorder.c).
 *
 * The parent's rings must not be written by its child, so a child gets new ones, or none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "allocator/events.h"
#include "allocator/pcp.h"
#include "allocator/segment.h"

#define ENTRIES_FEW  8192u /* where there are many CPUs */
#define ENTRIES_MANY 32768u
#define SLOTS_MANY   65u
#define ENTRIES_MIN  256u
#define MEMORY_MOST \
	(16u << 20) /* bytes of a process's rings: each program of a build has its own */
#define TRIES	    20u
#define TRY_NS	    1000000
#define PATIENCE_NS 1000000000 /* without progress, until a recorder is given up */
#define ROOM_LEAST  64u	       /* entries that a slow path finds free, if it waits */

static struct pcptune_events_hello hello;
static struct sockaddr_un place;
static struct pcpa_fd sock = {.fd = -1};

static struct pcptune_event_ring *ring_of(const struct pcptune_cpu_block *b)
{
	size_t index = (size_t)(b - pcpa_cpu_block(0, 0));

	return (struct pcptune_event_ring *)(void *)(pcpa_heap.events + index * hello.stride);
}

/* ---- a recorder ---- */

static bool send_rings(int to, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec data = {&hello, sizeof(hello)};
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.space),
	};

	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return syscall(SYS_sendmsg, to, &message, MSG_NOSIGNAL) == (long)sizeof(hello);
}

/* Many children at a time may find the recorder busy; it looks every millisecond. */
static bool offer(int fd)
{
	struct timespec pause = {0, TRY_NS};
	int to =
		(int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (to < 0)
		return false;
	for (unsigned i = 0; i < TRIES; i++) {
		if (!syscall(SYS_connect, to, &place, sizeof(place))) {
			if (send_rings(to, fd))
				return pcpa_fd_keep(&sock, to);
			break;
		}
		if (errno != EAGAIN && errno != EINTR)
			break;
		syscall(SYS_nanosleep, &pause, NULL);
	}
	pcpa_sys_close(to);
	return false;
}

/* New rings, at `at` if not NULL; NULL: they are not to be had, or nobody wants them. */
static char *make_rings(void *at)
{
	size_t size = hello.n_rings * hello.stride;
	int fd = pcpa_sealed_file("pcptune-events", size);
	void *map;

	if (fd < 0)
		return NULL;
	map = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
	if (map != MAP_FAILED && !offer(fd)) {
		munmap(map, size);
		map = MAP_FAILED;
	}
	pcpa_sys_close(fd);
	return map == MAP_FAILED ? NULL : map;
}

void pcpa_events_start(void)
{
	const char *path = secure_getenv("PCPALLOC_EVENTS");
	size_t length = path ? strlen(path) : 0;

	if (pcpa_heap.events || !length || length >= sizeof(place.sun_path))
		return;
	place.sun_family = AF_UNIX;
	memcpy(place.sun_path, path, length + 1);
	hello = (struct pcptune_events_hello){
		.magic = PCPTUNE_EVENTS_MAGIC,
		.version = PCPTUNE_EVENTS_VERSION,
		.size = sizeof(hello),
		.n_rings = pcpa_heap.n_zones * pcpa_heap.n_slots,
		.n_entries = pcpa_heap.n_slots > SLOTS_MANY ? ENTRIES_FEW : ENTRIES_MANY,
	};
	while (hello.n_entries > ENTRIES_MIN &&
	       (uint64_t)hello.n_rings * hello.n_entries * sizeof(struct pcptune_event) >
		       MEMORY_MOST)
		hello.n_entries /= 2;
	hello.stride =
		sizeof(struct pcptune_event_ring) + hello.n_entries * sizeof(struct pcptune_event);
	pcpa_heap.events = make_rings(NULL);
}

void pcpa_events_renew(void)
{
	if (!pcpa_heap.events)
		return;
	pcpa_fd_drop(&sock);
	pcpa_heap.events = make_rings(pcpa_heap.events);
}

/* ---- events ---- */

/* by: how far the word of a list went on. */
static void put(struct pcptune_event_ring *r, uint64_t now, unsigned list, uint64_t by)
{
	uint64_t head = pcpa_get(&r->head);
	struct pcptune_event *e = &r->entry[head & (hello.n_entries - 1)];
	int64_t net = (int64_t)(by << 40) >> 40, ops = (int64_t)((by - (uint64_t)net) >> 24);
	uint64_t freed = (uint64_t)(ops + net) / 2, taken = (uint64_t)(ops - net) / 2;

	/* more than that to and fro unseen says no more */
	while (freed > UINT32_MAX || taken > UINT32_MAX) {
		freed -= UINT32_MAX / 2;
		taken -= UINT32_MAX / 2;
	}
	pcpa_put(&e->time_ns, now);
	pcpa_put(&e->list, list);
	pcpa_put(&e->freed, (uint32_t)freed);
	pcpa_put(&e->taken, (uint32_t)taken);
	pcpa_publish(&r->head, head + 1);
}

void pcpa_events_write(const struct pcptune_cpu_block *b)
{
	struct pcptune_event_ring *r = ring_of(b);
	uint64_t now = 0;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uint64_t word = pcpa_get(&b->list[i].word), by = word - r->seen[i];

		if (!by)
			continue;
		if (pcpa_get(&r->head) - __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) >=
		    hello.n_entries) {
			pcpa_count(&r->merged, 1);
			continue;
		}
		if (!now)
			now = pcpa_now_ns();
		put(r, now, i, by);
		r->seen[i] = word;
	}
}

/*
 * A recorder that shares its CPU with many threads would come too late for most of what they do, so
 * they wait for it, before a slow path, when they hold nothing. One that stood still for a second is
 * not waited for any more.
 */
void pcpa_events_wait(const struct pcptune_cpu_block *b)
{
	static uint32_t given_up;
	struct pcptune_event_ring *r = ring_of(b);
	uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE), moved;
	int saved = errno;

	if (pcpa_in_zone || pcpa_get(&r->head) - tail + ROOM_LEAST <= hello.n_entries)
		return;
	moved = pcpa_now_ns();
	while (!pcpa_get(&given_up)) {
		uint64_t before = tail;

		pcpa_rest();
		tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
		if (pcpa_get(&r->head) - tail + ROOM_LEAST <= hello.n_entries)
			break;
		if (tail != before)
			moved = pcpa_now_ns();
		else if (pcpa_now_ns() - moved > PATIENCE_NS)
			pcpa_put(&given_up, 1);
	}
	errno = saved;
}
