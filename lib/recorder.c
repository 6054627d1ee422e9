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
 * still run (daemons close all they do not know), so its rings stay until the process is gone. That
 * which was joined while it ran is the only one, and for it the end of file is the end.
 *
 * A program says hello when it has made its rings, which may be a while after it connected: nobody
 * waits for that, it is looked for in each pass.
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
#include "lib/fdpass.h"

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
	bool closed, gone; /* gone: what is in its rings is all */
	bool joined;	   /* while it ran */
	void *map;	   /* NULL: it has not said hello yet */
	size_t bytes;
	struct source *sources;
	uint32_t n;
};

struct recorder {
	int listener;
	struct trace_row *levels; /* of the program that was joined */
	size_t n_levels;
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
	free(r->levels);
	free(r->busy);
	free(r);
}

/* ---- who comes ---- */

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

/* A file that can not shrink under us and has all rings. 0, -EBADMSG or -ENOMEM. */
static int map_rings(struct program *p, int fd, const struct pcptune_events_hello *h)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	p->bytes = h->n_rings * h->stride;
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || (seals & F_SEAL_WRITE) || fstat(fd, &st) ||
	    (uint64_t)st.st_size < p->bytes)
		return -EBADMSG;
	p->map = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p->map != MAP_FAILED)
		return 0;
	p->map = NULL;
	return errno == ENOMEM || errno == ENFILE || errno == EAGAIN ? -ENOMEM : -EBADMSG;
}

static int add_sources(struct recorder *r, struct program *p, const struct pcptune_events_hello *h)
{
	p->sources = calloc(h->n_rings, sizeof(*p->sources));
	if (!p->sources)
		return -ENOMEM;
	p->n = h->n_rings;
	for (uint32_t i = 0; i < p->n; i++) {
		p->sources[i].ring = (void *)((char *)p->map + i * h->stride);
		p->sources[i].mask = h->n_entries - 1;
		p->sources[i].cpu = r->totals.programs ? NO_CPU : i;
	}
	if (!r->totals.programs++)
		r->next_cpu = p->n;
	return 0;
}

/* Its hello and its rings, if they are right: else -EBADMSG, or -ENOMEM. */
static int enter(struct recorder *r, struct program *p, const struct pcptune_events_hello *h,
		 int fd)
{
	int e = fd >= 0 && hello_valid(h) ? map_rings(p, fd, h) : -EBADMSG;

	return e ? e : add_sources(r, p, h);
}

/* false: the program is to be forgotten. */
static bool hear(struct recorder *r, struct program *p)
{
	struct pcptune_events_hello h;
	int fd;
	ssize_t n = fdpass_receive(p->sock, &h, sizeof(h), &fd);
	bool ok = n == (ssize_t)sizeof(h) && !enter(r, p, &h, fd);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (fd >= 0)
		close(fd);
	/* who went without a word found no room for rings */
	r->totals.refused += !ok && n;
	return ok;
}

static bool keep(struct recorder *r, const struct program *p)
{
	struct program *grown = reallocarray(r->programs, r->n_programs + 1, sizeof(*grown));

	if (!grown)
		return false;
	r->programs = grown;
	r->programs[r->n_programs++] = *p;
	return true;
}

static void accept_all(struct recorder *r)
{
	for (;;) {
		struct program p = {
			.sock = r->listener < 0 ? -1
						: accept4(r->listener, NULL, NULL, SOCK_CLOEXEC)};
		struct ucred who = {0};
		socklen_t len = sizeof(who);

		if (p.sock < 0)
			return;
		getsockopt(p.sock, SOL_SOCKET, SO_PEERCRED, &who, &len);
		p.pid = who.pid;
		if (keep(r, &p))
			continue;
		r->totals.refused++;
		forget(&p);
	}
}

static void hear_all(struct recorder *r)
{
	for (size_t i = r->n_programs; i-- > 0;)
		if (!r->programs[i].map && !hear(r, &r->programs[i])) {
			forget(&r->programs[i]);
			r->programs[i] = r->programs[--r->n_programs];
		}
}

/* ---- what they did ---- */

static bool is_gone(struct program *p)
{
	char byte;

	if (!p->map)
		return false;
	if (!p->closed && recv(p->sock, &byte, 1, MSG_DONTWAIT) == 0)
		p->closed = true;
	return p->closed && (p->joined || (kill(p->pid, 0) && errno == ESRCH));
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
	return __atomic_load_n(&pcptune_event_entry(s->ring, s->at & s->mask)->time_ns,
			       __ATOMIC_RELAXED);
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

	if (!blocks || !r->w)
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
	const struct pcptune_event *event = pcptune_event_entry(s->ring, s->at & s->mask);
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
	hear_all(r);
	/* who is gone now has written all it will */
	for (size_t i = 0; i < r->n_programs; i++)
		r->programs[i].gone = is_gone(&r->programs[i]);
	now = now_ns();
	e = gather(r);
	if (!e)
		e = drain(r, now);
	for (size_t i = r->n_programs; i-- > 0 && !e;)
		if (r->programs[i].gone) {
			forget(&r->programs[i]);
			r->programs[i] = r->programs[--r->n_programs];
		}
	*ret_rows = r->totals.rows - before;
	return e;
}

void recorder_discard(struct recorder *r)
{
	r->w = NULL;
}

void recorder_totals(struct recorder *r, struct recorder_totals *ret)
{
	*ret = r->totals;
}

/* ---- one program that runs already ---- */

/* 0: a message is there. */
static int wait_for_hello(int sock, int timeout_ms, const volatile int *stop)
{
	struct timespec pause = {0, 1000000};
	uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000u;
	char byte;
	ssize_t n;

	while ((n = recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (stop && *stop)
			return -EINTR;
		if (now_ns() > until)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	return n ? 0 : -ECONNRESET;
}

/* What it says in place of rings; any other number would be none of ours. */
static int refusal(const struct pcptune_events_hello *h)
{
	static const struct {
		uint32_t said;
		int e; /* -ENOMEM is ours */
	} reasons[] = {
		{EBUSY, -EBUSY}, {EOPNOTSUPP, -EOPNOTSUPP}, {EPERM, -EPERM}, {ENOMEM, -ENOBUFS}};
	size_t i;

	for (i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (h->magic == PCPTUNE_EVENTS_MAGIC && h->version == PCPTUNE_EVENTS_VERSION &&
		    !h->n_rings && h->n_entries == reasons[i].said)
			return reasons[i].e;
	return -EBADMSG;
}

static uint32_t level_of(const struct program *p, uint32_t cpu, uint32_t list)
{
	uint32_t level = __atomic_load_n(&p->sources[cpu].ring->level[list], __ATOMIC_RELAXED);

	return cpu < PCPTUNE_MAX_CPUS && level <= MOVE_MOST ? level : 0;
}

/* A stranger wrote them: each is read once. */
static int take_levels(struct recorder *r, const struct program *p)
{
	static const uint8_t orders[] = PCPTUNE_LIST_ORDERS;

	r->levels = calloc((size_t)p->n * PCPTUNE_N_LISTS, sizeof(*r->levels));
	if (!r->levels)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->n; i++)
		for (uint32_t k = 0; k < PCPTUNE_N_LISTS; k++) {
			uint32_t level = level_of(p, i, k);

			if (level)
				r->levels[r->n_levels++] = (struct trace_row){
					.cpu = i, .order = orders[k], .blocks = level};
		}
	return 0;
}

/* The clock begins where the program's did, if that can be. */
static void begin_clock(struct recorder *r, const struct program *p)
{
	uint64_t begun = __atomic_load_n(&p->sources[0].ring->begun_ns, __ATOMIC_RELAXED);

	if (begun > r->start_ns && begun <= now_ns())
		r->start_ns = begun;
}

int recorder_join(struct recorder *r, int sock, int timeout_ms, const volatile int *stop,
		  const struct trace_row **ret_levels, size_t *ret_n)
{
	struct program p = {.sock = sock, .joined = true};
	struct pcptune_events_hello h = {0};
	int fd = -1, e = wait_for_hello(sock, timeout_ms, stop);

	if (!e && fdpass_receive(sock, &h, sizeof(h), &fd) != (ssize_t)sizeof(h))
		e = -EBADMSG;
	if (!e && (e = enter(r, &p, &h, fd)) == -EBADMSG)
		e = refusal(&h);
	if (fd >= 0)
		close(fd);
	if (!e)
		e = take_levels(r, &p);
	if (!e)
		begin_clock(r, &p);
	if (!e && !keep(r, &p))
		e = -ENOMEM;
	if (e) {
		forget(&p);
		return e;
	}
	*ret_levels = r->levels;
	*ret_n = r->n_levels;
	return 0;
}

int recorder_write_to(struct recorder *r, struct trace_writer *w)
{
	int e = 0;

	r->w = w;
	for (size_t i = 0; !e && i < r->n_levels; i++)
		e = trace_write(w, &r->levels[i]);
	r->totals.rows += r->n_levels;
	return e;
}

bool recorder_ended(struct recorder *r)
{
	return !r->n_programs || is_gone(&r->programs[0]);
}

void recorder_end(struct recorder *r)
{
	if (r->n_programs)
		shutdown(r->programs[0].sock, SHUT_WR);
}
