/* SPDX-License-Identifier: MIT */
/*
 * From rings to a trace: see recorder.h.
 *
 * A pass looks at the clock, then at the heads of all rings, and writes what is older than that
 * clock, each time the oldest of all that is left. What came meanwhile is for the next pass, so
 * passes follow each other in the order of time.
 *
 * Of the order of frees and allocations within an event nothing is known. As long as both are less
 * than two windows it was one run, and perhaps the beginning of the way back: two rows, first the
 * one that goes on. Else as much as went to and fro becomes pairs of rows of a window, so that the
 * number of calls is right and no swing is invented that would have been seen, and the rest a row.
 *
 * A program that ended leaves its rings to us, to the last event. One that closed our socket may
 * still run (daemons close all they do not know), so its rings stay until the process is gone.
 */
#include "lib/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <pcptune/events.h>

#define RINGS_MOST   (PCPTUNE_MAX_ZONES * PCPTUNE_MAX_CPUS)
#define MOVE_MOST    (1 << 24) /* blocks, net: what a word can tell */
#define PAIRS_MOST   16384     /* rows of an event that only go to and fro, in pairs */
#define NO_CPU	     UINT32_MAX
#define RELEASE_EACH 256 /* events */

/* One ring; `at` is ours, the program only sees copies of it. */
struct source {
	struct pcptune_event_ring *ring;
	uint32_t mask, cpu;
	uint32_t up; /* a bit for each list: its last row was a free */
	uint64_t at, end, merged;
};

struct program {
	int sock;
	pid_t pid;
	bool closed;
	void *map;
	size_t bytes;
	struct source *sources;
	uint32_t n;
};

struct recorder {
	int listener;
	struct trace_writer *w;
	struct program *programs;
	size_t n_programs;
	struct source **busy; /* with events of this pass */
	size_t n_busy, busy_room;
	uint32_t next_cpu;
	uint64_t start_ns;
	struct recorder_totals totals;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int recorder_new(int listener, struct trace_writer *w, struct recorder **ret)
{
	struct recorder *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->listener = listener;
	r->w = w;
	r->start_ns = now_ns();
	*ret = r;
	return 0;
}

static void forget(struct program *p)
{
	if (p->map)
		munmap(p->map, p->bytes);
	if (p->sock >= 0)
		close(p->sock);
	free(p->sources);
}

void recorder_free(struct recorder *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n_programs; i++)
		forget(&r->programs[i]);
	free(r->programs);
	free(r->busy);
	free(r);
}

/* ---- who comes ---- */

/* The hello and the descriptor that came with it, -1: none. */
static bool receive(int sock, struct pcptune_events_hello *hello, int *ret_fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec data = {hello, sizeof(*hello)};
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen =
			CMSG_LEN(sizeof(int)), /* room for one, not for two in the padding */
	};
	ssize_t n = recvmsg(sock, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_fd = -1;
	if (n >= 0 && CMSG_FIRSTHDR(&message) && control.header.cmsg_type == SCM_RIGHTS &&
	    control.header.cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(*ret_fd));
	return n == (ssize_t)sizeof(*hello) && *ret_fd >= 0;
}

static bool hello_valid(const struct pcptune_events_hello *h)
{
	return h->magic == PCPTUNE_EVENTS_MAGIC && h->version == PCPTUNE_EVENTS_VERSION &&
	       h->size == sizeof(*h) && h->n_rings && h->n_rings <= RINGS_MOST && h->n_entries &&
	       h->n_entries <= PCPTUNE_EVENTS_MOST && !(h->n_entries & (h->n_entries - 1)) &&
	       h->stride % _Alignof(struct pcptune_event_ring) == 0 &&
	       h->stride >= sizeof(struct pcptune_event_ring) +
				    h->n_entries * sizeof(struct pcptune_event) &&
	       h->stride <= UINT64_C(1) << 32;
}

/* A file that can not shrink under us and has all rings. */
static bool map_rings(struct program *p, int fd, const struct pcptune_events_hello *h)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	p->bytes = h->n_rings * h->stride;
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || (seals & F_SEAL_WRITE) || fstat(fd, &st) ||
	    (uint64_t)st.st_size < p->bytes)
		return false;
	p->map = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p->map == MAP_FAILED)
		p->map = NULL;
	return p->map;
}

static bool add_sources(struct recorder *r, struct program *p, const struct pcptune_events_hello *h)
{
	p->sources = calloc(h->n_rings, sizeof(*p->sources));
	if (!p->sources)
		return false;
	p->n = h->n_rings;
	for (uint32_t i = 0; i < p->n; i++) {
		p->sources[i].ring = (void *)((char *)p->map + i * h->stride);
		p->sources[i].mask = h->n_entries - 1;
		p->sources[i].cpu = r->totals.programs ? NO_CPU : i;
	}
	if (!r->totals.programs++)
		r->next_cpu = p->n;
	return true;
}

/* false: it has not said hello yet. */
static void welcome(struct recorder *r, int sock)
{
	struct program p = {.sock = sock}, *grown;
	struct pcptune_events_hello h;
	struct ucred who = {0};
	socklen_t len = sizeof(who);
	int fd;
	bool ok;

	/* a program sends it with the connection, and waits for nothing */
	ok = receive(sock, &h, &fd) && hello_valid(&h) && map_rings(&p, fd, &h);
	if (fd >= 0)
		close(fd);
	getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len);
	p.pid = who.pid;
	grown = ok ? reallocarray(r->programs, r->n_programs + 1, sizeof(*grown)) : NULL;
	if (grown)
		r->programs = grown;
	if (!grown || !add_sources(r, &p, &h)) {
		r->totals.refused++;
		forget(&p);
		return;
	}
	r->programs[r->n_programs++] = p;
}

static void accept_all(struct recorder *r)
{
	struct timespec pause = {0, 100000};
	char byte;

	for (;;) {
		int sock = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);

		if (sock < 0)
			return;
		/* connected, but its hello may be a moment away */
		for (int i = 0; i < 100 && recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0; i++)
			nanosleep(&pause, NULL);
		welcome(r, sock);
	}
}

/* ---- what they did ---- */

static bool is_gone(struct program *p)
{
	char byte;

	if (!p->closed && recv(p->sock, &byte, 1, MSG_DONTWAIT) == 0)
		p->closed = true;
	return p->closed && kill(p->pid, 0) && errno == ESRCH;
}

static void look(struct recorder *r, struct source *s)
{
	uint64_t merged = __atomic_load_n(&s->ring->merged, __ATOMIC_RELAXED);

	s->end = __atomic_load_n(&s->ring->head, __ATOMIC_ACQUIRE);
	if (merged - s->merged < UINT64_C(1) << 48)
		r->totals.merged += merged - s->merged;
	s->merged = merged;
	if (s->end - s->at > s->mask + UINT64_C(1)) {
		/* no program of ours gets ahead of its reader */
		r->totals.bad++;
		s->at = s->end;
	}
}

static int gather(struct recorder *r)
{
	r->n_busy = 0;
	for (size_t i = 0; i < r->n_programs; i++)
		for (uint32_t k = 0; k < r->programs[i].n; k++) {
			struct source *s = &r->programs[i].sources[k];

			look(r, s);
			if (s->at == s->end)
				continue;
			if (r->n_busy == r->busy_room) {
				size_t room = r->busy_room ? 2 * r->busy_room : 64;
				void *grown = reallocarray(r->busy, room, sizeof(*r->busy));

				if (!grown)
					return -ENOMEM;
				r->busy = grown;
				r->busy_room = room;
			}
			r->busy[r->n_busy++] = s;
		}
	return 0;
}

static uint64_t time_of(const struct source *s)
{
	return __atomic_load_n(&s->ring->entry[s->at & s->mask].time_ns, __ATOMIC_RELAXED);
}

static bool number_cpu(struct recorder *r, struct source *s)
{
	if (s->cpu == NO_CPU && r->next_cpu < PCPTUNE_MAX_CPUS)
		s->cpu = r->next_cpu++;
	return s->cpu < PCPTUNE_MAX_CPUS;
}

static int put(struct recorder *r, struct source *s, uint32_t list, uint64_t time, int64_t blocks)
{
	static const uint8_t orders[] = PCPTUNE_LIST_ORDERS;
	struct trace_row row = {
		.time_ns = time > r->start_ns ? (time - r->start_ns) & INT64_MAX : 0,
		.cpu = s->cpu,
		.order = orders[list],
		.blocks = blocks,
	};

	if (!blocks)
		return 0;
	s->up = blocks > 0 ? s->up | 1u << list : s->up & ~(1u << list);
	r->totals.rows++;
	return trace_write(r->w, &row);
}

/* Two rows, the one that goes on first. */
static int put_both(struct recorder *r, struct source *s, uint32_t list, uint64_t time,
		    int64_t freed, int64_t taken)
{
	bool up = s->up >> list & 1;
	int e = put(r, s, list, time, up ? freed : -taken);

	return e ? e : put(r, s, list, time, up ? -taken : freed);
}

static int put_event(struct recorder *r, struct source *s, uint32_t list, uint64_t time,
		     int64_t freed, int64_t taken)
{
	static const int64_t windows[PCPTUNE_N_LISTS] = {
		PCPTUNE_EVENTS_PAGES, PCPTUNE_EVENTS_PAGES / 2, PCPTUNE_EVENTS_PAGES / 4, 1, 1};
	int64_t both = freed < taken ? freed : taken, net = freed - taken;
	int64_t part = both / PAIRS_MOST > windows[list] ? both / PAIRS_MOST : windows[list];
	int e = 0;

	if (freed <= 2 * windows[list] && taken <= 2 * windows[list])
		return put_both(r, s, list, time, freed, taken);
	for (; both && !e; both -= part) {
		part = part < both ? part : both;
		e = put_both(r, s, list, time, part, part);
	}
	return e ? e : put(r, s, list, time, net);
}

/* The next event of a ring becomes rows. */
static int take(struct recorder *r, struct source *s)
{
	const struct pcptune_event *event = &s->ring->entry[s->at & s->mask];
	uint64_t time = __atomic_load_n(&event->time_ns, __ATOMIC_RELAXED);
	uint32_t list = __atomic_load_n(&event->list, __ATOMIC_RELAXED);
	int64_t freed = __atomic_load_n(&event->freed, __ATOMIC_RELAXED);
	int64_t taken = __atomic_load_n(&event->taken, __ATOMIC_RELAXED);

	s->at++;
	if (s->at % RELEASE_EACH == 0 || s->at == s->end)
		__atomic_store_n(&s->ring->tail, s->at, __ATOMIC_RELEASE);
	if (list >= PCPTUNE_N_LISTS || freed - taken > MOVE_MOST || taken - freed > MOVE_MOST ||
	    !number_cpu(r, s)) {
		r->totals.bad++;
		return 0;
	}
	return put_event(r, s, list, time, freed, taken);
}

/* The ring with the oldest event; *ret_next: the time of the oldest of all others. */
static size_t oldest_ring(const struct recorder *r, uint64_t *ret_next)
{
	uint64_t least = UINT64_MAX;
	size_t oldest = 0;

	*ret_next = UINT64_MAX;
	for (size_t i = 0; i < r->n_busy; i++) {
		uint64_t t = time_of(r->busy[i]);

		if (t < least) {
			*ret_next = least;
			least = t;
			oldest = i;
		} else if (t < *ret_next) {
			*ret_next = t;
		}
	}
	return oldest;
}

/* A time from the future would hold all others up: it is none of ours. */
static bool is_later(const struct source *s, uint64_t until)
{
	uint64_t t = time_of(s);

	return t > until && t - until < 1000000000;
}

/* The oldest event first, until all is written that is not younger than `until`. */
static int drain(struct recorder *r, uint64_t until)
{
	int e = 0;

	while (r->n_busy && !e) {
		uint64_t next;
		size_t i = oldest_ring(r, &next);
		struct source *s = r->busy[i];

		if (is_later(s, until))
			break;
		/* a thread that has its CPU goes on for a while: its events come in a row */
		do
			e = take(r, s);
		while (!e && s->at != s->end && time_of(s) <= next && !is_later(s, until));
		if (s->at == s->end)
			r->busy[i] = r->busy[--r->n_busy];
	}
	for (size_t i = 0; i < r->n_busy; i++)
		__atomic_store_n(&r->busy[i]->ring->tail, r->busy[i]->at, __ATOMIC_RELEASE);
	return e;
}

int recorder_pass(struct recorder *r, uint64_t *ret_rows)
{
	uint64_t before = r->totals.rows, now;
	int e;

	accept_all(r);
	/* who is gone now has written all it will */
	for (size_t i = 0; i < r->n_programs; i++)
		if (is_gone(&r->programs[i]))
			r->programs[i].pid = 0;
	now = now_ns();
	e = gather(r);
	if (!e)
		e = drain(r, now);
	for (size_t i = r->n_programs; i-- > 0 && !e;)
		if (!r->programs[i].pid) {
			forget(&r->programs[i]);
			r->programs[i] = r->programs[--r->n_programs];
		}
	*ret_rows = r->totals.rows - before;
	return e;
}

void recorder_totals(struct recorder *r, struct recorder_totals *ret)
{
	*ret = r->totals;
}
