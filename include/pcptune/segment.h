/* SPDX-License-Identifier: MIT */
/*
 * The shared segment: what a target exports and what the daemon may write.
 *
 * One memfd per process, allocated in full, sealed against shrinking and growing, passed to the
 * daemon over a SOCK_SEQPACKET socket. It holds a header, a table that describes every field by
 * name, one block per zone, and one block per (zone, CPU). Who writes what:
 *
 *   header       the allocator, before the segment is passed; then only `wake`, `lease_until_ns`
 *                (daemon) and `mode`, `flags` (allocator)
 *   cpu.ctl      the daemon
 *   cpu.pcp,     the allocator, under the lock of the per-CPU lists; `word` of a list also by
 *   cpu.list[]   restartable sequences on that CPU (mode rseq)
 *   cpu.zctr     the allocator, under the zone lock
 *   track        the allocator, under the lock of the per-CPU lists
 *   zone         the allocator, under the zone lock
 *   proc         the allocator, relaxed atomic additions
 *
 * Every shared word is a naturally aligned u32 or u64 that is read and written whole. A reader
 * (lib/segreader.h) trusts no word: it copies, checks ranges, and treats a counter that went
 * backwards as an unknown interval. The layout has a version; a daemon refuses others.
 *
 * Control words: the daemon writes the values, then stores ctl.seq (release). The allocator that
 * sees a new seq (acquire) takes the values, clamps each one on its own, and stores pcp.ack_seq.
 * A writer that dies between two values leaves seq as it was, so nothing half-written is taken;
 * values that are overwritten while they are taken are taken again with the next seq.
 *
 * List words (source: the project's own design, docs/design.md section "One word a list"):
 * `word` counts net position in its low 24 bits and operations in its high 40 bits. A push adds
 * 2^24 + 1, a pop adds 2^24 - 1. With tail,
 *     count = (word - tail) & 0xffffff                blocks on the list
 *     net   = tail + count                            frees minus allocations, in blocks
 *     ops   = ((word - net) >> 24) mod 2^40           frees plus allocations, in blocks
 *     allocations = (ops - net) / 2, frees = (ops + net) / 2
 * ops wraps after 2^40 operations; a reader adds (ops - previous) mod 2^40.
 *
 * Records: what the net position of a CPU's lists did, by a band tracker (tracker.h) in a block of
 * its own that sampling never reads. It has two halves. The one that is written carries the value
 * of ctl.cut that it began with as its tag; a holder of pcp.lock who has something to write and
 * finds another value in ctl.cut begins the other half with that as its tag, where the first ended,
 * and writes there from then on. So a reader who wants what happened since the cut T does
 *
 *     ctl.cut = T + 1; full fence; wait until pcp.lock is seen 0 once; copy the half with tag T.
 *
 * That half is not written any more. Whoever took pcp.lock before the reader saw it free has let it
 * go, and whoever takes it after sees the new cut: both sides store (the lock, the cut), fence, and
 * load the other's word, so that at least one of them sees the other. A CPU at rest has nothing to
 * do for this: its half T stays where it is until it has something to write. If no half has the tag
 * T nothing was written since the cut T, and the record is empty. The holder of the lock is never
 * waited for without bound: a reader goes away and comes back to the same cut.
 */
#ifndef PCPTUNE_SEGMENT_H
#define PCPTUNE_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include <pcptune/packed.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PCPTUNE_SEG_MAGIC  0x3147455350435054ULL /* "TPCPSEG1" read as little-endian bytes */
#define PCPTUNE_SEG_LAYOUT 3u

#define PCPTUNE_PAGE_SHIFT 12
#define PCPTUNE_MAX_ORDER  10u /* largest block: 1024 pages */
#define PCPTUNE_N_LISTS	   5u  /* orders 0, 1, 2, 3 and 9 */
#define PCPTUNE_MAX_ZONES  64u
#define PCPTUNE_MAX_CPUS   8192u      /* slots per zone, the shared slot included */
#define PCPTUNE_MAX_HIGH   (1u << 23) /* pages; the list word's 24 bits bound it */
#define PCPTUNE_MAX_BATCH  1024u
#define PCPTUNE_MAX_SCALE  6u
#define PCPTUNE_NAME_MAX   64u

/* Orders that have lists, by list index. */
#define PCPTUNE_LIST_ORDERS   \
	{                     \
		0, 1, 2, 3, 9 \
	}

#define PCPTUNE_WORD_PUSH ((UINT64_C(1) << 24) + 1)
#define PCPTUNE_WORD_POP  ((UINT64_C(1) << 24) - 1)
#define PCPTUNE_WORD_MASK UINT64_C(0xffffff)

/* "leave this one alone" in a control word and in a change */
#define PCPTUNE_KEEP UINT32_MAX

enum pcptune_mode { PCPTUNE_MODE_OFF = 0, PCPTUNE_MODE_LOCKED = 1, PCPTUNE_MODE_RSEQ = 2 };

enum pcptune_seg_flags {
	PCPTUNE_SEG_FORKED = 1u << 0,  /* counters began at a fork, see inherited_* */
	PCPTUNE_SEG_PRELOAD = 1u << 1, /* the program did not ask for us: preload library */
	PCPTUNE_SEG_VIRTUAL = 1u << 2, /* virtual CPUs (PCPALLOC_CPUS) */
	PCPTUNE_SEG_NO_AGENT = 1u << 3,
};

/* Kinds of the description table. */
enum pcptune_kind { PCPTUNE_KIND_COUNTER = 1, PCPTUNE_KIND_GAUGE = 2 };
enum pcptune_level { PCPTUNE_LEVEL_CPU = 1, PCPTUNE_LEVEL_ZONE = 2, PCPTUNE_LEVEL_PROC = 3 };

/*
 * One row of the description table. offset is from the start of the block of its level; width is
 * 4 or 8 bytes; width 0 means "derived from the list words" (alloc_pages, free_pages).
 */
struct pcptune_desc {
	char name[32];
	char unit[8];
	uint8_t kind;
	uint8_t level;
	uint16_t width;
	uint32_t offset;
	char line[80];
};

/* Written by the daemon only. 64 bytes. PCPTUNE_KEEP in a value: leave it. */
struct pcptune_ctl {
	uint32_t seq; /* 0: nothing was ever asked; stored last, release */
	uint32_t high;
	uint32_t high_min;
	uint32_t high_max;
	uint32_t batch;
	uint32_t scale_max;
	uint32_t rules;
	uint32_t drain;	   /* not 0: drain the lists of this CPU down to high now (idle CPUs too) */
	uint64_t decision; /* id of the decision in the log that these words come from, 0: none */
	uint32_t cut;	   /* a record ends and the next begins, see below; apart from seq */
	uint32_t cut_reserved;
	uint64_t reserved[2];
};

/*
 * Lock, gauges and counters of the lists of one CPU. 128 bytes. The first line tells a reader what
 * else of the block is worth a look: lists without a bit in `lists` have not moved yet, and the
 * counters in zctr are as they were while `holds` is.
 */
struct pcptune_pcp {
	uint32_t lock;	  /* private to the allocator: 0 free, else held */
	uint32_t ack_seq; /* last ctl.seq taken over */
	uint32_t lists;	  /* bit i: list[i] is in use, or was; set before its word first moves */
	uint32_t holds;	  /* holds of the zone lock that are over, stored after zctr; wraps */
#define PCPTUNE_GAUGE(field, unit, line, para) uint32_t field;
#include <pcptune/counters.def>
#define PCPTUNE_PCTR(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
	uint32_t flags;	     /* private: rule flags */
	uint32_t high_limit; /* pages; high is never above it: ring capacity */
	uint32_t pages;	     /* private: on all lists, if they are locked ones */
	uint32_t sleepers;   /* private: somebody sleeps for the lock */
	uint64_t reserved[6];
};

/*
 * One list of one CPU: a line, with all that a push or a pop needs. word and tail share 16 bytes so
 * that one read takes both. The rest is private to the allocator.
 */
struct pcptune_list {
	uint64_t word;
	int64_t tail;
	uint64_t private_ring;
	uint32_t reserved;
	uint32_t bound;
	uint64_t base; /* of the zone, address */
	uint64_t end;  /* of the zone, pages */
	uint64_t pages;
	uint32_t mark;
	uint32_t limit; /* blocks */
} __attribute__((aligned(64)));

/* Counters written under the zone lock. */
struct pcptune_zctr {
#define PCPTUNE_ZCTR(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
};

struct pcptune_cpu_block {
	struct pcptune_ctl ctl;
	struct pcptune_pcp pcp;
	struct pcptune_list list[6]; /* the last one is private to the allocator */
	struct pcptune_zctr zctr;
} __attribute__((aligned(128)));

/* The band tracker of one CPU. All but `current` and `half` is private to the allocator. */
struct pcptune_track {
	int64_t x;	/* net position of the lists when they were looked at last, pages */
	int64_t pushed; /* the position that was pushed last */
	int64_t turn;	/* ... where the run began that led there */
	uint64_t moved; /* pages that came and went since then */
	uint64_t seen[PCPTUNE_N_LISTS]; /* words of the lists at that look */
	uint64_t held[PCPTUNE_N_LISTS]; /* block of the place that stops pops; 0: none */
	uint32_t stop[PCPTUNE_N_LISTS]; /* ... its position */
	uint32_t edge[PCPTUNE_N_LISTS]; /* position from which on pushes do not go without a look */
	uint32_t up, down; /* pages that the position may go unseen, where more than the grain */
	uint32_t net;	   /* of the last stretch in one direction: pages gained, and what moved */
	uint32_t gross;
	uint32_t lifted;  /* lists that lost their stop, a bit each */
	uint32_t current; /* half that is written, 0 or 1 */
	int32_t way;	  /* of that run: 1 up, -1 down, 0: there was none yet */
	uint32_t reserved[3];
	struct pcptune_packed half[2] __attribute__((aligned(64)));
} __attribute__((aligned(128)));

struct pcptune_zone_block {
	uint32_t id;
	int32_t node; /* NUMA node, -1: none */
#define PCPTUNE_ZGAUGE(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
#define PCPTUNE_HOLD(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
} __attribute__((aligned(128)));

struct pcptune_proc_block {
#define PCPTUNE_PROC(field, unit, line, para) uint64_t field;
#include <pcptune/counters.def>
} __attribute__((aligned(128)));

/*
 * Offsets are from the start of the segment. A reader checks every one of them against the size
 * that fstat() gives, not against `size`.
 */
struct pcptune_seg_header {
	uint64_t magic;
	uint32_t layout;
	uint32_t header_size;
	uint64_t size;
	uint64_t start_boot_ns; /* CLOCK_BOOTTIME when the segment was made */
	uint64_t random_id;	/* with start_boot_ns: the identity of the target; never the pid */
	uint64_t run_tag;	/* PCPTUNE_RUN_TAG of the environment, 0: none */
	uint32_t n_zones;
	uint32_t n_cpus; /* slots per zone, the last one is the shared slot */
	uint32_t n_desc;
	uint32_t desc_size;
	uint32_t zone_stride;
	uint32_t cpu_stride;
	uint64_t desc_off;
	uint64_t proc_off;
	uint64_t zones_off;
	uint64_t cpus_off; /* block of (zone z, cpu c): cpus_off + (z * n_cpus + c) * cpu_stride */
	uint64_t tracks_off; /* the same for the trackers; 0: this target has none */
	uint32_t track_stride;
	uint32_t grain; /* pages: swings below may be missing in records */
	uint32_t pid;	/* in the target's own pid namespace: for people only */
	uint32_t mode;	/* enum pcptune_mode */
	uint32_t flags; /* enum pcptune_seg_flags */
	uint32_t n_lists;
	uint8_t list_orders[8];
	char name[PCPTUNE_NAME_MAX];
	/* written by the daemon, on a line of their own */
	uint32_t wake
		__attribute__((aligned(64))); /* futex (shared): agent sleeps on it; both add */
	uint32_t wake_reserved;
	uint64_t lease_until_ns; /* CLOCK_MONOTONIC; 0: no daemon; UINT64_MAX: keep for good */
	uint64_t daemon_reserved[6];
};

/*
 * Handshake over the SOCK_SEQPACKET socket: one hello (with the memfd as SCM_RIGHTS), one reply.
 * End of file is the end of the target. Later the daemon may send requests, to targets whose hello
 * says that they know them, and wakes the agent: it reads them. They are answered elsewhere; on
 * this socket a target says nothing more.
 */
#define PCPTUNE_WIRE_MAGIC   0x50435057u
#define PCPTUNE_WIRE_VERSION 1u

enum pcptune_hello_flags {
	PCPTUNE_HELLO_RECONNECT = 1u << 0,
	PCPTUNE_HELLO_RECORDS = 1u << 1, /* knows PCPTUNE_REQUEST_RECORD */
};

struct pcptune_hello {
	uint32_t magic;
	uint16_t version;
	uint16_t size; /* of this struct */
	uint32_t layout;
	uint32_t flags;
	uint64_t segment_size;
};

struct pcptune_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t size;
	int32_t status; /* 0: attached; else a positive errno */
	uint32_t reserved;
	uint64_t target_id;
	uint64_t lease_ns;
	char reason[192]; /* NUL-terminated, for people */
};

enum pcptune_request_what {
	/* with a connected socket as SCM_RIGHTS, at whose other end is a recorder (events.h) */
	PCPTUNE_REQUEST_RECORD = 1,
};

struct pcptune_request {
	uint32_t magic;
	uint16_t version;
	uint16_t size;
	uint32_t what; /* enum pcptune_request_what */
	uint32_t reserved;
};

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct pcptune_desc) == 128, "description rows are 128 bytes");
_Static_assert(sizeof(struct pcptune_ctl) == 64, "control words fill one line");
_Static_assert(sizeof(struct pcptune_list) == 64, "a line");
_Static_assert(offsetof(struct pcptune_cpu_block, pcp) == 64, "layout 3");
_Static_assert(sizeof(struct pcptune_pcp) == 128, "layout 3");
_Static_assert(offsetof(struct pcptune_pcp, flags) == 64, "what readers want fills a line");
_Static_assert(offsetof(struct pcptune_cpu_block, list) == 192, "layout 3");
_Static_assert(offsetof(struct pcptune_cpu_block, zctr) == 576, "layout 3");
_Static_assert(sizeof(struct pcptune_cpu_block) == 768, "layout 3");
_Static_assert(offsetof(struct pcptune_track, half) == 192, "layout 3");
_Static_assert(sizeof(struct pcptune_packed) == 1688, "layout 3");
_Static_assert(offsetof(struct pcptune_seg_header, wake) % 64 == 0, "daemon's words on their line");
_Static_assert(sizeof(struct pcptune_hello) == 24, "wire 1");
_Static_assert(sizeof(struct pcptune_reply) == 224, "wire 1");
_Static_assert(sizeof(struct pcptune_request) == 16, "wire 1");
#endif

#ifdef __cplusplus
}
#endif
#endif
