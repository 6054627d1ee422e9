/* SPDX-License-Identifier: MIT */
/*
 * Synthetic targets: segments without an allocator behind them, whose counters move by a simple
 * model and which take control words over as an allocator would. For tests of the daemon and for
 * bench/daemon; everything is in this header so that each program stays one file.
 *
 * The model, per CPU and step: a burst of pages is allocated and freed through list 0. While `high`
 * is below MODEL_ENOUGH the burst goes to the zone (a refill and a drain, the lock contended now
 * and then); above it, one burst in 16 does. So a policy that raises high sees fewer misses. With
 * `served`, bursts have sizes of their own, and go to the zone only where they do not fit on a
 * list.
 *
 * Stores follow the rules of segment.h (atomic words, tail with release, values before ack), so
 * that a reader under TSan sees what it would see from the allocator. One thread.
 */
#ifndef PCPTUNE_TESTS_FAKE_H
#define PCPTUNE_TESTS_FAKE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <pcptune/packed.h>
#include <pcptune/segment.h>

#define MODEL_ENOUGH 1000u
#define MODEL_BURST  64u
#define MODEL_LISTS  3u /* in use: order 0, where it works, and order 1 */

#define FAKE_GET(p)    __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define FAKE_PUT(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define FAKE_ADD(p, v) \
	__atomic_store_n((p), __atomic_load_n((p), __ATOMIC_RELAXED) + (v), __ATOMIC_RELEASE)

struct fake_shape {
	uint32_t zones, cpus; /* slots per zone */
	uint64_t run_tag;
	char name[PCPTUNE_NAME_MAX];
	uint64_t random_id; /* 0: random */
};

struct fake {
	int memfd, sock; /* -1: none */
	char *base;
	size_t bytes;
	uint32_t n, n_cpus;
	uint64_t cpus_off, tracks_off;
	uint64_t steps;
	bool served;	  /* bursts go to the zone only where they do not fit on a list */
	int64_t *adopted; /* decisions taken over, in order */
	size_t n_adopted, max_adopted;
};

static inline struct pcptune_seg_header *fake_header(struct fake *f)
{
	return (struct pcptune_seg_header *)(void *)f->base;
}

static inline struct pcptune_proc_block *fake_proc(struct fake *f)
{
	return (struct pcptune_proc_block *)(f->base + fake_header(f)->proc_off);
}

static inline struct pcptune_cpu_block *fake_cpu(struct fake *f, uint32_t i)
{
	return (struct pcptune_cpu_block *)(void *)(f->base + f->cpus_off +
						    (size_t)i * sizeof(struct pcptune_cpu_block));
}

static inline struct pcptune_track *fake_track(struct fake *f, uint32_t i)
{
	return (struct pcptune_track *)(void *)(f->base + f->tracks_off +
						(size_t)i * sizeof(struct pcptune_track));
}

static inline uint64_t fake_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t fake_random(void)
{
	uint64_t v = fake_ns(CLOCK_MONOTONIC);
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, &v, sizeof(v)) != sizeof(v))
			v ^= (uint64_t)getpid() << 40;
		close(fd);
	}
	return v | 1;
}

/* The table that describes every field, row by row as counters.def has them. */
static inline uint32_t fake_desc(struct pcptune_desc *d)
{
	uint32_t n = 0;

#define FAKE_ROW(f, u, l, k, lev, w, off)                                 \
	do {                                                              \
		if (d) {                                                  \
			snprintf(d[n].name, sizeof(d[n].name), "%s", #f); \
			snprintf(d[n].unit, sizeof(d[n].unit), "%s", u);  \
			snprintf(d[n].line, sizeof(d[n].line), "%s", l);  \
			d[n].kind = k;                                    \
			d[n].level = lev;                                 \
			d[n].width = w;                                   \
			d[n].offset = (uint32_t)(off);                    \
		}                                                         \
		n++;                                                      \
	} while (0);
#define PCPTUNE_LIST(f, u, l, p) FAKE_ROW(f, u, l, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 0, 0)
#define PCPTUNE_ZCTR(f, u, l, p)                                      \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 8, \
		 offsetof(struct pcptune_cpu_block, zctr.f))
#define PCPTUNE_PCTR(f, u, l, p)                                      \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 8, \
		 offsetof(struct pcptune_cpu_block, pcp.f))
#define PCPTUNE_GAUGE(f, u, l, p)                                   \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_GAUGE, PCPTUNE_LEVEL_CPU, 4, \
		 offsetof(struct pcptune_cpu_block, pcp.f))
#define PCPTUNE_ZGAUGE(f, u, l, p)                                   \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_GAUGE, PCPTUNE_LEVEL_ZONE, 8, \
		 offsetof(struct pcptune_zone_block, f))
#define PCPTUNE_HOLD(f, u, l, p)                                       \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_ZONE, 8, \
		 offsetof(struct pcptune_zone_block, f))
#define PCPTUNE_PROC(f, u, l, p)                                       \
	FAKE_ROW(f, u, l, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_PROC, 8, \
		 offsetof(struct pcptune_proc_block, f))
#include <pcptune/counters.def>
#undef FAKE_ROW
	return n;
}

static inline size_t fake_round(size_t v)
{
	return (v + 127) & ~(size_t)127;
}

static inline void fake_fill_header(struct fake *f, const struct fake_shape *s)
{
	static const uint8_t orders[] = PCPTUNE_LIST_ORDERS;
	struct pcptune_seg_header *h = fake_header(f);
	uint32_t n_desc = fake_desc(NULL);

	h->magic = PCPTUNE_SEG_MAGIC;
	h->layout = PCPTUNE_SEG_LAYOUT;
	h->header_size = sizeof(*h);
	h->size = f->bytes;
	h->start_boot_ns = fake_ns(CLOCK_BOOTTIME);
	h->random_id = s->random_id ? s->random_id : fake_random();
	h->run_tag = s->run_tag;
	h->n_zones = s->zones;
	h->n_cpus = s->cpus;
	h->n_desc = n_desc;
	h->desc_size = sizeof(struct pcptune_desc);
	h->zone_stride = sizeof(struct pcptune_zone_block);
	h->cpu_stride = sizeof(struct pcptune_cpu_block);
	h->desc_off = fake_round(sizeof(*h));
	h->proc_off = h->desc_off + fake_round(n_desc * sizeof(struct pcptune_desc));
	h->zones_off = h->proc_off + fake_round(sizeof(struct pcptune_proc_block));
	h->cpus_off = h->zones_off + s->zones * sizeof(struct pcptune_zone_block);
	h->pid = (uint32_t)getpid();
	h->mode = PCPTUNE_MODE_LOCKED;
	h->n_lists = PCPTUNE_N_LISTS;
	memcpy(h->list_orders, orders, sizeof(orders));
	memcpy(h->name, s->name, sizeof(h->name));
	h->tracks_off = h->cpus_off + (uint64_t)f->n * h->cpu_stride;
	h->track_stride = sizeof(struct pcptune_track);
	h->grain = 16;
	f->cpus_off = h->cpus_off;
	f->tracks_off = h->tracks_off;
	fake_desc((struct pcptune_desc *)(void *)(f->base + h->desc_off));
}

static inline void fake_fill_zones(struct fake *f, const struct fake_shape *s)
{
	struct pcptune_seg_header *h = fake_header(f);

	for (uint32_t z = 0; z < s->zones; z++) {
		struct pcptune_zone_block *b =
			(void *)(f->base + h->zones_off + z * sizeof(struct pcptune_zone_block));

		b->id = z;
		b->node = (int32_t)z;
		b->managed_pages = 1u << 22;
		b->free_pages = 1u << 21;
		b->low_wmark_pages = 8192;
	}
	for (uint32_t i = 0; i < f->n; i++) {
		struct pcptune_cpu_block *b = fake_cpu(f, i);

		b->pcp.high = b->pcp.high_min = 378;
		b->pcp.high_max = 8192;
		b->pcp.batch = 63;
		b->pcp.scale_max = 5;
		b->pcp.rules = 4;
		b->pcp.high_limit = 1u << 20;
		b->pcp.lists = MODEL_LISTS;
		pcptune_packed_init(&fake_track(f, i)->half[0], 0, 0);
		fake_track(f, i)->half[1].tag = UINT32_MAX;
	}
}

static inline size_t fake_bytes(const struct fake_shape *s)
{
	return fake_round(sizeof(struct pcptune_seg_header)) +
	       fake_round(fake_desc(NULL) * sizeof(struct pcptune_desc)) +
	       fake_round(sizeof(struct pcptune_proc_block)) +
	       s->zones * sizeof(struct pcptune_zone_block) +
	       (size_t)s->zones * s->cpus *
		       (sizeof(struct pcptune_cpu_block) + sizeof(struct pcptune_track));
}

/* Makes the segment, sealed. 0 or -errno. */
static inline int fake_new(struct fake *f, const struct fake_shape *s, bool seal)
{
	memset(f, 0, sizeof(*f));
	f->sock = -1;
	f->bytes = fake_bytes(s);
	f->n = s->zones * s->cpus;
	f->n_cpus = s->cpus;
	f->memfd = memfd_create("fake-target", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (f->memfd < 0 || ftruncate(f->memfd, (off_t)f->bytes))
		return -errno;
	f->base = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->memfd, 0);
	if (f->base == MAP_FAILED)
		return -errno;
	fake_fill_header(f, s);
	fake_fill_zones(f, s);
	if (seal && fcntl(f->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -errno;
	return 0;
}

static inline void fake_free(struct fake *f)
{
	if (f->sock >= 0)
		close(f->sock);
	if (f->base)
		munmap(f->base, f->bytes);
	if (f->memfd >= 0)
		close(f->memfd);
	free(f->adopted);
}

static inline int fake_connect(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (strlen(path) >= sizeof(a.sun_path)) {
		close(fd);
		return -ENAMETOOLONG;
	}
	strcpy(a.sun_path, path);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		int err = errno;

		close(fd);
		return -err;
	}
	return fd;
}

/* One datagram with n descriptors. 0 or -errno. */
static inline int fake_send(int sock, const void *data, size_t len, const int *fds, unsigned n)
{
	union {
		char buf[CMSG_SPACE(32 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	memset(&control, 0, sizeof(control));
	if (n) {
		struct cmsghdr *c;

		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static inline struct pcptune_hello fake_hello(const struct fake *f, uint32_t flags)
{
	return (struct pcptune_hello){
		.magic = PCPTUNE_WIRE_MAGIC,
		.version = PCPTUNE_WIRE_VERSION,
		.size = sizeof(struct pcptune_hello),
		.layout = PCPTUNE_SEG_LAYOUT,
		.flags = flags,
		.segment_size = f->bytes,
	};
}

/* Reads the reply. 0, or -errno (-EPIPE: end of file without one). */
static inline int fake_reply(int sock, struct pcptune_reply *r)
{
	ssize_t n;

	do {
		n = recv(sock, r, sizeof(*r), 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n == sizeof(*r) && r->magic == PCPTUNE_WIRE_MAGIC ? 0 : -EPIPE;
}

/* Connects and attaches. 0: see r->status. */
static inline int fake_attach(struct fake *f, const char *path, uint32_t flags,
			      struct pcptune_reply *r)
{
	struct pcptune_hello h = fake_hello(f, flags);
	int e;

	if (f->sock >= 0)
		close(f->sock);
	f->sock = fake_connect(path);
	if (f->sock < 0) {
		e = f->sock;
		f->sock = -1;
		return e;
	}
	e = fake_send(f->sock, &h, sizeof(h), &f->memfd, 1);
	return e ? e : fake_reply(f->sock, r);
}

/* ---- the model ---- */

static inline void fake_to_zone(struct pcptune_cpu_block *b, uint64_t step)
{
	FAKE_ADD(&b->zctr.alloc_zone, MODEL_BURST);
	FAKE_ADD(&b->zctr.free_zone, MODEL_BURST);
	FAKE_ADD(&b->zctr.refills, 1);
	FAKE_ADD(&b->zctr.drains, 1);
	FAKE_ADD(&b->zctr.lock_alloc_taken, 1);
	FAKE_ADD(&b->zctr.lock_free_taken, 1);
	FAKE_ADD(&b->zctr.lock_alloc_hold_ns, 700 + step % 97);
	FAKE_ADD(&b->zctr.lock_free_hold_ns, 500 + step % 89);
	if (step % 4 == 0) {
		FAKE_ADD(&b->zctr.lock_alloc_contended, 1);
		FAKE_ADD(&b->zctr.lock_alloc_wait_ns, 20000);
	}
	FAKE_ADD(&b->pcp.holds, 2);
}

/* Pages of a burst that has a size of its own. */
static inline uint32_t fake_size(const struct fake *f, uint32_t i)
{
	return MODEL_BURST + (uint32_t)((f->steps * 37 + i * 11) % 500);
}

/* The tracker: a burst is a swing, whose size differs from step to step. */
static inline void fake_swing(struct fake *f, uint32_t i)
{
	struct pcptune_cpu_block *b = fake_cpu(f, i);
	struct pcptune_track *t = fake_track(f, i);
	uint32_t cut;

	/* a fake that scribbles over its segment is to outlive it */
	if (t->current > 1 || t->half[0].n >= PCPTUNE_BAND_STACK ||
	    t->half[1].n >= PCPTUNE_BAND_STACK)
		return;
	/* before the cut is read; an exchange, since ThreadSanitizer knows no fences */
	__atomic_exchange_n(&b->pcp.lock, 1, __ATOMIC_SEQ_CST);
	cut = __atomic_load_n(&b->ctl.cut, __ATOMIC_SEQ_CST);
	if (t->half[t->current].tag != cut) {
		struct pcptune_packed *to = &t->half[!t->current];

		pcptune_packed_init(to, t->x, cut);
		t->current = !t->current;
	}
	pcptune_packed_push(&t->half[t->current], t->x - (int64_t)fake_size(f, i));
	pcptune_packed_push(&t->half[t->current], t->x);
	FAKE_PUT(&b->pcp.lock, 0);
}

/* One burst on CPU i. */
static inline void fake_work(struct fake *f, uint32_t i)
{
	struct pcptune_cpu_block *b = fake_cpu(f, i);
	uint32_t high = FAKE_GET(&b->pcp.high);
	uint32_t pages = f->served ? fake_size(f, i) : MODEL_BURST;
	bool misses = f->served ? high < pages : high < MODEL_ENOUGH || (f->steps + i) % 16 == 0;

	FAKE_ADD(&b->list[0].word, pages * PCPTUNE_WORD_PUSH);
	FAKE_ADD(&b->list[0].word, pages * PCPTUNE_WORD_POP);
	FAKE_PUT(&b->pcp.free_count, (uint32_t)(f->steps % 64));
	if (misses)
		fake_to_zone(b, f->steps + i);
	fake_swing(f, i);
}

static inline void fake_note(struct fake *f, uint64_t decision)
{
	if (!decision)
		return;
	if (f->n_adopted == f->max_adopted) {
		size_t max = f->max_adopted ? f->max_adopted * 2 : 256;
		int64_t *v = realloc(f->adopted, max * sizeof(*v));

		if (!v)
			return;
		f->adopted = v;
		f->max_adopted = max;
	}
	f->adopted[f->n_adopted++] = (int64_t)decision;
}

static inline void fake_take(uint32_t *gauge, const uint32_t *word)
{
	uint32_t v = FAKE_GET(word);

	if (v != PCPTUNE_KEEP)
		FAKE_PUT(gauge, v);
}

/* Takes new control words of CPU i over. */
static inline void fake_adopt(struct fake *f, uint32_t i)
{
	struct pcptune_cpu_block *b = fake_cpu(f, i);
	uint32_t seq = FAKE_GET(&b->ctl.seq);

	if (seq == FAKE_GET(&b->pcp.ack_seq))
		return;
	fake_take(&b->pcp.high, &b->ctl.high);
	fake_take(&b->pcp.high_min, &b->ctl.high_min);
	fake_take(&b->pcp.high_max, &b->ctl.high_max);
	fake_take(&b->pcp.batch, &b->ctl.batch);
	fake_take(&b->pcp.scale_max, &b->ctl.scale_max);
	fake_take(&b->pcp.rules, &b->ctl.rules);
	fake_note(f, FAKE_GET(&b->ctl.decision));
	FAKE_ADD(&b->pcp.controls_adopted, 1);
	FAKE_PUT(&b->pcp.ack_seq, seq);
}

/* One step of a target: permille of its CPUs work, all of them take control words over. */
static inline void fake_step(struct fake *f, uint32_t permille, bool ack)
{
	uint32_t busy = (uint32_t)((uint64_t)f->n * permille / 1000);

	f->steps++;
	for (uint32_t i = 0; i < f->n; i++) {
		if (ack)
			fake_adopt(f, i);
		if (i < busy)
			fake_work(f, i);
	}
}

#endif
