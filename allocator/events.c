/* SPDX-License-Identifier: MIT */
/*
 * The program's side of a recording: see events.h and pcptune/events.h.
 *
 * A look finds how often each list was freed to and allocated from since the look before: that is
 * an event. What it says of the order is for the reader to guess (lib/recorder.c).
 *
 * Rings are made when somebody who wants them was found, and not before: they are megabytes, and
 * each program of a build would have its own. They come and go with every pcp.lock held, so that
 * who holds one sees them or does not; the windows of the lists are laid anew then, and what lies
 * on them at that moment is noted. Who waits for room in a ring holds nothing, and may look at it
 * still when it has gone. So the addresses of rings are theirs for good, and read as empty rings
 * when there are none.
 *
 * The parent's rings must not be written by its child. Where the environment names the recorder it
 * gets new ones; where the daemon brought it, that was for the parent alone, and it has none.
 *
 * hello, sock and joined are written by the first allocation, by the agent under attach_lock, and
 * by the child of a fork.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "allocator/agent.h"
#include "allocator/events.h"
#include "allocator/pcp_locked.h"
#include "allocator/pcp.h"
#include "allocator/segment.h"
#include "allocator/track.h"

#define ENTRIES_FEW  8192u /* where there are many CPUs */
#define ENTRIES_MANY 32768u
#define SLOTS_MANY   65u
#define ENTRIES_MIN  256u
#define MEMORY_MOST \
	(16u << 20) /* bytes of a process's rings: each program of a build has its own */
#define TRIES	    20u
#define TRY_NS	    1000000
#define REST_NS	    1000000    /* of one who waits: many of them must not take its CPU, too */
#define PATIENCE_NS 3000000000 /* without progress, until a recorder is given up */
#define ROOM_LEAST  64u	       /* entries that a slow path finds free, if it waits */

static struct pcptune_events_hello hello;
static struct sockaddr_un place;
static struct pcpa_fd sock = {.fd = -1};
static uint32_t joined; /* atomic: the recorder came by way of the daemon */
/*
 * atomic: 1 and the number of a ring that it left full for so long that nobody waits for it; 0:
 * none
 */
static uint32_t given_up;
static uint64_t stood_at; /* tail of that ring */
static char *addresses;	  /* of rings, once there were any */

static struct pcptune_event_ring *ring_of(char *rings, const struct pcptune_cpu_block *b)
{
	size_t index = (size_t)(b - pcpa_cpu_block(0, 0));

	return (struct pcptune_event_ring *)(void *)(rings + index * hello.stride);
}

/* ---- rings ---- */

static size_t rings_size(void)
{
	return hello.n_rings * hello.stride;
}

/* Once: the geometry of a process never changes, not even over fork. */
static void plan_rings(void)
{
	if (hello.magic)
		return;
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
}

/*
 * In place of what is at the addresses of the rings, in one step: others may be reading there. As a
 * system call, since tools that watch mmap() take it for a write.
 */
static char *map_there(int protection, int flags, int fd)
{
	long map = syscall(SYS_mmap, addresses, rings_size(), protection,
			   flags | (addresses ? MAP_FIXED : 0), fd, (off_t)0);

	return map == -1 ? NULL : (char *)map;
}

/* NULL: they are not to be had. ret_fd: their file, the caller's. */
static char *make_rings(int *ret_fd)
{
	char *map;

	plan_rings();
	*ret_fd = pcpa_sealed_file("pcptune-events", rings_size());
	if (*ret_fd < 0)
		return NULL;
	map = map_there(PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd);
	if (!map) {
		pcpa_sys_close(*ret_fd);
		return NULL;
	}
	pcpa_put(&given_up, 0);
	return addresses = map;
}

/*
 * The memory of rings that nobody writes to any more. If it can not go now, the next ones take its
 * place.
 */
static void drop_rings(void)
{
	map_there(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

/* ---- a recorder that the environment names ---- */

/*
 * A socket at whose other end is somebody, -1: nobody listens. Many children at a time may find the
 * recorder busy; it looks every millisecond.
 */
static int find_recorder(void)
{
	struct timespec pause = {0, TRY_NS};
	int to =
		(int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	for (unsigned i = 0; to >= 0 && i < TRIES; i++) {
		if (!syscall(SYS_connect, to, &place, sizeof(place)))
			return to;
		if (errno != EAGAIN && errno != EINTR)
			break;
		syscall(SYS_nanosleep, &pause, NULL);
	}
	if (to >= 0)
		pcpa_sys_close(to);
	return -1;
}

/* Rings for it, that no event was written to yet; NULL: none, or nobody wants them. */
static char *offer_rings(void)
{
	int to = find_recorder(), fd;
	char *rings = to < 0 ? NULL : make_rings(&fd);
	bool sent;

	if (!rings) {
		if (to >= 0)
			pcpa_sys_close(to);
		return NULL;
	}
	sent = pcpa_fd_send(to, &hello, sizeof(hello), fd);
	pcpa_sys_close(fd);
	if (!sent)
		pcpa_sys_close(to);
	if (sent && pcpa_fd_keep(&sock, to))
		return rings;
	drop_rings();
	return NULL;
}

void pcpa_events_start(void)
{
	const char *path = secure_getenv("PCPALLOC_EVENTS");
	size_t length = path ? strlen(path) : 0;

	if (pcpa_heap.events || !length || length >= sizeof(place.sun_path))
		return;
	place.sun_family = AF_UNIX;
	memcpy(place.sun_path, path, length + 1);
	pcpa_heap.events = offer_rings();
}

void pcpa_events_renew(void)
{
	if (!pcpa_heap.events)
		return;
	drop_rings();
	pcpa_fd_drop(&sock);
	pcpa_heap.events = pcpa_events_joined() ? NULL : offer_rings();
	pcpa_put(&joined, 0);
}

/* ---- a recorder that the daemon brings ---- */

static uint32_t n_blocks(void)
{
	return pcpa_heap.n_zones * pcpa_heap.n_slots;
}

/* Every pcp.lock is held: this is where the trace begins. */
static void begin_ring(struct pcptune_event_ring *r, const struct pcptune_cpu_block *b,
		       uint64_t now)
{
	r->begun_ns = now;
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uint64_t word = pcpa_get(&b->list[i].word);
		uint64_t count = word - (uint64_t)pcpa_get(&b->list[i].tail);

		r->seen[i] = word;
		r->level[i] = (uint32_t)(count & PCPTUNE_WORD_MASK);
	}
}

/* rings: NULL: no more, and what was not looked at yet is written first. */
static void change_rings(char *rings)
{
	uint64_t now;

	pcpa_pcp_lock_all();
	for (uint32_t i = 0; i < n_blocks(); i++)
		pcpa_track_look(pcpa_cpu_block(0, i));
	pcpa_publish(&pcpa_heap.events, rings);
	pcpa_locked_show(true);
	now = pcpa_now_ns();
	for (uint32_t i = 0; i < n_blocks(); i++) {
		struct pcptune_cpu_block *b = pcpa_cpu_block(0, i);

		if (rings)
			begin_ring(ring_of(rings, b), b, now);
		pcpa_track_anew(b);
	}
	pcpa_pcp_unlock_all();
}

/* What that recorder is told in place of rings. */
static void refuse_rings(int to, int why)
{
	struct pcptune_events_hello no = {
		.magic = PCPTUNE_EVENTS_MAGIC,
		.version = PCPTUNE_EVENTS_VERSION,
		.size = sizeof(no),
		.n_entries = (uint32_t)why,
	};

	syscall(SYS_sendto, to, &no, sizeof(no), MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
	pcpa_sys_close(to);
}

/* 0: it is there; 1: it has gone. What it says is of no interest. */
static int has_gone(int fd)
{
	char byte;
	long n = syscall(SYS_recvfrom, fd, &byte, 1, MSG_DONTWAIT, NULL, NULL);

	return n < 0 ? errno != EAGAIN && errno != EINTR : !n;
}

static void end_recording(void)
{
	change_rings(NULL);
	drop_rings();
	/* only now does it see that we are done */
	pcpa_fd_drop(&sock);
	__atomic_store_n(&joined, 0, __ATOMIC_RELEASE);
}

bool pcpa_events_joined(void)
{
	return __atomic_load_n(&joined, __ATOMIC_ACQUIRE);
}

/* attach_lock is held. */
static void end_if_gone(void)
{
	int fd = pcpa_fd_use(&sock);

	if (fd < 0 || has_gone(fd))
		end_recording();
}

void pcpa_events_attend(void)
{
	if (!pcpa_events_joined())
		return;
	pcpa_attach_lock();
	end_if_gone();
	pcpa_attach_unlock();
}

void pcpa_events_join(int fd, int refuse)
{
	char *rings;
	int file;
	bool sent;

	/* a request that nobody waits for any more */
	if (has_gone(fd)) {
		pcpa_sys_close(fd);
		return;
	}
	if (pcpa_events_joined())
		end_if_gone();
	if (!refuse && pcpa_heap.events)
		refuse = EBUSY;
	if (!refuse && !pcpa_heap.tracks)
		refuse = EOPNOTSUPP;
	rings = refuse ? NULL : make_rings(&file);
	if (!rings) {
		refuse_rings(fd, refuse ? refuse : ENOMEM);
		return;
	}
	if (!pcpa_fd_keep(&sock, fd)) {
		drop_rings();
		pcpa_sys_close(file);
		return;
	}
	change_rings(rings);
	__atomic_store_n(&joined, 1, __ATOMIC_RELEASE);
	sent = pcpa_fd_send(sock.fd, &hello, sizeof(hello), file);
	pcpa_sys_close(file);
	if (!sent)
		end_recording();
}

/* ---- events ---- */

/* by: how far the word of a list went on. */
static void put(struct pcptune_event_ring *r, uint64_t now, unsigned list, uint64_t by)
{
	uint64_t head = pcpa_get(&r->head);
	struct pcptune_event *e = pcptune_event_entry(r, head & (hello.n_entries - 1));
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
	struct pcptune_event_ring *r = ring_of(pcpa_heap.events, b);
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

static bool has_room(const struct pcptune_event_ring *r, uint64_t tail)
{
	return pcpa_get(&r->head) - tail + ROOM_LEAST <= hello.n_entries;
}

/*
 * Until it goes on with the ring that it was given up for: that others have room says only that
 * little happens on their CPUs.
 */
static bool stands_still(char *rings)
{
	uint32_t ring = __atomic_load_n(&given_up, __ATOMIC_ACQUIRE);
	const struct pcptune_event_ring *r;

	if (!ring)
		return false;
	r = ring_of(rings, pcpa_cpu_block(0, ring - 1));
	if (__atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) == pcpa_get(&stood_at))
		return true;
	pcpa_put(&given_up, 0);
	return false;
}

static void give_up(const struct pcptune_cpu_block *b, uint64_t tail)
{
	pcpa_put(&stood_at, tail);
	__atomic_store_n(&given_up, (uint32_t)(b - pcpa_cpu_block(0, 0)) + 1, __ATOMIC_RELEASE);
}

/*
 * A recorder that shares its CPU with many threads would come too late for most of what they do, so
 * they wait for it, before a slow path, when they hold nothing. One that stood still for long is
 * not waited for again until it goes on.
 */
void pcpa_events_wait(const struct pcptune_cpu_block *b)
{
	char *rings = __atomic_load_n(&pcpa_heap.events, __ATOMIC_ACQUIRE);
	struct timespec pause = {0, REST_NS};
	struct pcptune_event_ring *r;
	uint64_t tail, moved;
	int saved = errno;

	if (!rings || pcpa_in_zone)
		return;
	r = ring_of(rings, b);
	tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
	if (has_room(r, tail))
		return;
	moved = pcpa_now_ns();
	while (!stands_still(rings) && !has_room(r, tail) && pcpa_get(&pcpa_heap.events) == rings) {
		uint64_t before = tail;

		syscall(SYS_nanosleep, &pause, NULL);
		tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
		if (tail != before)
			moved = pcpa_now_ns();
		else if (pcpa_now_ns() - moved > PATIENCE_NS)
			give_up(b, tail);
	}
	errno = saved;
}
