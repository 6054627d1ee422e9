/* SPDX-License-Identifier: MIT */
/*
 * The segment: made, sealed, and made anew after a fork.
 *
 * A memfd that is allocated in full before the first write (a full tmpfs then fails here and not
 * as SIGBUS later) and sealed against any change of size. When one of this is refused the segment
 * lies in anonymous memory: everything works but the daemon.
 *
 * The program may close descriptors that it does not know (daemons close all of them) and get the
 * same number again for a file of its own. So ours is moved to a high number, and before each use
 * device and inode say whether it still is ours.
 *
 * fork: parent and child share the pages of a memfd, and the child must not write into its
 * parent's counters. The parent copies the segment while it holds every lock; the child maps a new
 * memfd over the same addresses and fills it from that copy, with counters at zero.
 */
#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "allocator/events.h"
#include "allocator/heap.h"
#include "allocator/pcp.h"
#include "allocator/segment.h"

struct pcpa_heap pcpa_heap;
uint32_t pcpa_heap_seg_flags;

/* Written under the lock of the first allocation, then only by the child of a fork. */
static struct pcpa_fd segment_file = {.fd = -1};
static char *snapshot;

#define ROW(name, unit, kind, level, width, offset, line) \
	{#name, unit, kind, level, width, offset, line},
#define CPU_OFF(part, field)                                  \
	(uint32_t)(offsetof(struct pcptune_cpu_block, part) + \
		   offsetof(__typeof__(((struct pcptune_cpu_block *)0)->part), field))

static const struct pcptune_desc rows[] = {
#define PCPTUNE_LIST(field, unit, line, para) \
	ROW(field, unit, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 0, 0, line)
#include <pcptune/counters.def>
#define PCPTUNE_ZCTR(field, unit, line, para) \
	ROW(field, unit, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 8, CPU_OFF(zctr, field), line)
#include <pcptune/counters.def>
#define PCPTUNE_PCTR(field, unit, line, para) \
	ROW(field, unit, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_CPU, 8, CPU_OFF(pcp, field), line)
#include <pcptune/counters.def>
#define PCPTUNE_GAUGE(field, unit, line, para) \
	ROW(field, unit, PCPTUNE_KIND_GAUGE, PCPTUNE_LEVEL_CPU, 4, CPU_OFF(pcp, field), line)
#include <pcptune/counters.def>
#define PCPTUNE_ZGAUGE(field, unit, line, para)                     \
	ROW(field, unit, PCPTUNE_KIND_GAUGE, PCPTUNE_LEVEL_ZONE, 8, \
	    (uint32_t)offsetof(struct pcptune_zone_block, field), line)
#include <pcptune/counters.def>
#define PCPTUNE_HOLD(field, unit, line, para)                         \
	ROW(field, unit, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_ZONE, 8, \
	    (uint32_t)offsetof(struct pcptune_zone_block, field), line)
#include <pcptune/counters.def>
#define PCPTUNE_PROC(field, unit, line, para)                         \
	ROW(field, unit, PCPTUNE_KIND_COUNTER, PCPTUNE_LEVEL_PROC, 8, \
	    (uint32_t)offsetof(struct pcptune_proc_block, field), line)
#include <pcptune/counters.def>
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* ---- descriptors ---- */

bool pcpa_fd_keep(struct pcpa_fd *f, int fd)
{
	struct rlimit limit;
	struct stat st;
	int least = 1000, high;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < 2000)
		least = (int)(limit.rlim_cur - limit.rlim_cur / 8);
	high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, least);
	if (high >= 0) {
		pcpa_sys_close(fd);
		fd = high;
	}
	if (fstat(fd, &st)) {
		pcpa_sys_close(fd);
		return false;
	}
	*f = (struct pcpa_fd){fd, (uint64_t)st.st_dev, (uint64_t)st.st_ino};
	return true;
}

int pcpa_fd_use(struct pcpa_fd *f)
{
	struct stat st;

	if (f->fd < 0)
		return -1;
	if (fstat(f->fd, &st) || (uint64_t)st.st_dev != f->dev || (uint64_t)st.st_ino != f->ino)
		f->fd = -1;
	return f->fd;
}

void pcpa_fd_drop(struct pcpa_fd *f)
{
	if (pcpa_fd_use(f) >= 0)
		pcpa_sys_close(f->fd);
	f->fd = -1;
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

bool pcpa_fd_send(int to, const void *data, size_t size, int fd)
{
	union control control = {0};
	struct iovec part = {(void *)(uintptr_t)data, size};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.space),
	};

	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return syscall(SYS_sendmsg, to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (long)size;
}

long pcpa_fd_receive(int from, void *data, size_t size, int *ret_fd)
{
	union control control = {0};
	struct iovec part = {data, size};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		/* room for one, not for two in the padding */
		.msg_controllen = CMSG_LEN(sizeof(int)),
	};
	long n = syscall(SYS_recvmsg, from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_fd = -1;
	if (n >= 0 && message.msg_controllen >= CMSG_LEN(sizeof(int)) &&
	    control.header.cmsg_level == SOL_SOCKET && control.header.cmsg_type == SCM_RIGHTS &&
	    control.header.cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(*ret_fd));
	return n;
}

int pcpa_segment_fd(void)
{
	return pcpa_fd_use(&segment_file);
}

/* ---- making ---- */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* A file longer than its limit is not refused only: the system sends a signal that ends us. */
static bool may_be_so_long(size_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= size;
}

int pcpa_sealed_file(const char *name, size_t size)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd;

	if (!may_be_so_long(size))
		return -1;
	fd = (int)syscall(SYS_memfd_create, name, flags);
	if (fd < 0)
		fd = (int)syscall(SYS_memfd_create, name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0)
		return -1;
	if (syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)size) ||
	    syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		pcpa_sys_close(fd);
		return -1;
	}
	return fd;
}

/* Maps a new segment, at `at` if not NULL. Remembers the file. */
static void *map_segment(void *at, size_t size)
{
	int fd = pcpa_sealed_file("pcptune", size), fixed = at ? MAP_FIXED : 0;
	void *map;

	if (fd >= 0) {
		map = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
		if (map != MAP_FAILED) {
			if (!pcpa_fd_keep(&segment_file, fd))
				segment_file.fd = -1;
			return map;
		}
		pcpa_sys_close(fd);
	}
	segment_file.fd = -1;
	map = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | fixed, -1, 0);
	if (map == MAP_FAILED)
		map = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed,
			   -1, 0);
	return map;
}

static uint64_t round_to(uint64_t v, uint64_t unit)
{
	return (v + unit - 1) / unit * unit;
}

static uint64_t run_tag(void)
{
	const char *text = secure_getenv("PCPTUNE_RUN_TAG");

	return text ? strtoull(text, NULL, 16) : 0;
}

/* What makes this process's segment different from every other. */
static void write_identity(struct pcptune_seg_header *h)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	h->start_boot_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	if (syscall(SYS_getrandom, &h->random_id, sizeof(h->random_id), GRND_NONBLOCK) !=
	    (long)sizeof(h->random_id))
		h->random_id = pcpa_now_ns() ^ (uint64_t)getpid() << 32;
	h->pid = (uint32_t)getpid();
}

static void write_geometry(struct pcptune_seg_header *h)
{
	static const uint8_t orders[] = PCPTUNE_LIST_ORDERS;
	uint64_t end;

	h->layout = PCPTUNE_SEG_LAYOUT;
	h->header_size = sizeof(*h);
	h->n_zones = pcpa_heap.n_zones;
	h->n_cpus = pcpa_heap.n_slots;
	h->n_desc = N_ROWS;
	h->desc_size = sizeof(struct pcptune_desc);
	h->zone_stride = sizeof(struct pcptune_zone_block);
	h->cpu_stride = sizeof(struct pcptune_cpu_block);
	h->desc_off = round_to(sizeof(*h), 128);
	h->proc_off = h->desc_off + sizeof(rows);
	h->zones_off = h->proc_off + sizeof(struct pcptune_proc_block);
	h->cpus_off = h->zones_off + (uint64_t)h->n_zones * h->zone_stride;
	end = h->cpus_off + (uint64_t)h->n_zones * h->n_cpus * h->cpu_stride;
	h->track_stride = sizeof(struct pcptune_track);
	h->grain = pcpa_heap.grain;
	if (h->grain) {
		h->tracks_off = end;
		end += (uint64_t)h->n_zones * h->n_cpus * h->track_stride;
	}
	h->size = round_to(end, 4096);
	h->n_lists = PCPTUNE_N_LISTS;
	memcpy(h->list_orders, orders, sizeof(orders));
}

int pcpa_segment_make(void)
{
	struct pcptune_seg_header *h, plan = {0};
	char *map;

	write_geometry(&plan);
	/* reserved now, since a fork can not fail for want of it; touched only by a fork */
	snapshot =
		mmap(NULL, plan.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (snapshot == MAP_FAILED)
		return -ENOMEM;
	map = map_segment(NULL, plan.size);
	if (map == MAP_FAILED) {
		munmap(snapshot, plan.size);
		return -ENOMEM;
	}
	memcpy(map, &plan, sizeof(plan));
	h = (struct pcptune_seg_header *)map;
	memcpy(map + h->desc_off, rows, sizeof(rows));
	write_identity(h);
	h->run_tag = run_tag();
	h->mode = PCPTUNE_MODE_LOCKED;
	h->flags = pcpa_heap_seg_flags | (pcpa_heap.n_virtual ? PCPTUNE_SEG_VIRTUAL : 0u) |
		   (pcpa_heap.agent ? 0u : PCPTUNE_SEG_NO_AGENT);
	strncpy(h->name, program_invocation_short_name, sizeof(h->name) - 1);
	h->magic = PCPTUNE_SEG_MAGIC;
	pcpa_heap.header = h;
	pcpa_heap.segment_size = h->size;
	pcpa_heap.proc = (struct pcptune_proc_block *)(map + h->proc_off);
	pcpa_heap.cpus = map + h->cpus_off;
	if (h->tracks_off)
		pcpa_heap.tracks = (struct pcptune_track *)(map + h->tracks_off);
	for (uint32_t i = 0; i < h->n_zones; i++)
		pcpa_heap.zones[i].gauges =
			(struct pcptune_zone_block *)(map + h->zones_off + i * h->zone_stride);
	return 0;
}

/* ---- fork ---- */

void pcpa_segment_snapshot(void)
{
	const uint64_t *from = (const uint64_t *)pcpa_heap.header;
	uint64_t *to = (uint64_t *)snapshot;

	/* the daemon may write its words meanwhile: word by word, and the child forgets them */
	for (size_t i = 0; i < pcpa_heap.segment_size / sizeof(*to); i++)
		to[i] = pcpa_get(&from[i]);
}

void pcpa_segment_drop_snapshot(void)
{
	madvise(snapshot, pcpa_heap.segment_size, MADV_DONTNEED);
}

/* Counters to zero, what the child inherited into the gauges. */
static void reset_zone(struct pcptune_zone_block *g, uint32_t zone)
{
	uint64_t in_use = 0, held = 0;

	for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
		struct pcptune_cpu_block *b = pcpa_cpu_block(zone, slot);
		uint64_t allocated, freed;

		pcpa_pcp_totals(b, &allocated, &freed);
		in_use += allocated - freed;
		held += pcpa_pcp_pages(b);
		pcpa_pcp_restart(b, zone);
	}
	g->inherited_in_use += in_use;
	g->inherited_held = held;
	pcpa_heap.zones[zone].brief = 0;
	g->hold_max_ns = 0;
#define PCPTUNE_HOLD(field, unit, line, para) g->field = 0;
#include <pcptune/counters.def>
}

/*
 * In the child, every lock held and no other thread. The old mapping is the parent's: when nothing
 * can be put in its place, the allocator forgets its zones, and every call fails from then on.
 */
void pcpa_segment_renew(void)
{
	struct pcptune_seg_header *h = pcpa_heap.header;

	pcpa_fd_drop(&segment_file);
	if (map_segment(h, pcpa_heap.segment_size) == MAP_FAILED) {
		pcpa_heap.n_zones = 0;
		return;
	}
	memcpy(h, snapshot, pcpa_heap.segment_size);
	pcpa_segment_drop_snapshot();
	h->wake = 0;
	h->lease_until_ns = 0;
	memset(h->daemon_reserved, 0, sizeof(h->daemon_reserved));
	h->flags |= PCPTUNE_SEG_FORKED;
	write_identity(h);
	memset(pcpa_heap.proc, 0, sizeof(*pcpa_heap.proc));
	/* before the windows of the lists are laid, which are narrow where somebody records */
	pcpa_events_renew();
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		reset_zone(pcpa_heap.zones[i].gauges, i);
}
