/* SPDX-License-Identifier: MIT */
/*
 * libpcpalloc: a page allocator with per-CPU lists.
 *
 * Blocks of 2^order base pages (4096 bytes) come from per-CPU lists in front of a buddy zone with
 * one lock. `high` bounds the lists of a CPU, `batch` is what moves at once; both tune themselves
 * by the rules of Linux 6.7 and can be steered from outside by pcptuned.
 *
 * Set-up. There is none: the zone is reserved at the first allocation. The library works without
 * a daemon; when one listens on its socket, it is told about this process at the first refill.
 *
 * Environment, read once at the first allocation:
 *   PCPALLOC_CPUS=N      threads are spread round-robin over N virtual CPUs (1 .. 4096)
 *   PCPALLOC_ZONES=N     number of zones (1 .. 8); default one for each NUMA node
 *   PCPALLOC_SIZE=BYTES  size of each reservation (k, m, g, t suffixes)
 *   PCPALLOC_RULES=g0|g1|g4|g6|gx  generation to start with, default g6
 *   PCPALLOC_HIGH=PAGES, PCPALLOC_BATCH=PAGES  fixed values to start with; the lists of a CPU hold
 *                        57342 pages at most with PCPALLOC_MODE=rseq
 *   PCPALLOC_MODE=rseq|locked   how lists are kept from other threads: by restartable sequences
 *                        (default where the system has them), or by a lock for each CPU
 *   PCPALLOC_CHECK=1     every free is checked for a block that is free already; implies locked
 *   PCPALLOC_AGENT=0|1   agent thread never (no decay, no trims, no return of memory), or with the
 *                        first allocation; default: once a zone has grown beyond its first 4 MiB
 *   PCPALLOC_BULK_FREE=two-pass|prefetch|drop-through  how a drain hands blocks to the zone, for
 *                        comparison (default drop-through); what is moved and counted is the same
 *   PCPALLOC_EVENTS=PATH socket of a recorder; `pcptune record` sets it for programs that it starts
 *   PCPALLOC_GRAIN=PAGES which swings of the lists are recorded for curves of traffic against high:
 *                        those of at least so many pages (default 128, at most 4096); 0: none
 *   PCPALLOC_IDLE_MS=N   lists of a CPU that was idle for so long are emptied; default 5000. When
 *                        no CPU called for so long (for 5 s if that is less) free memory goes back
 *   PCPTUNE_SOCKET=PATH  socket of the daemon; empty: never attach. Default:
 *                        $XDG_RUNTIME_DIR/pcptune/sock or, without that variable,
 *                        /tmp/pcptune-UID/sock (not for root), then /run/pcptune/sock
 *
 * Threads. Every function may be called from any thread. A block may be freed by another thread
 * than the one that allocated it.
 *
 * Signals. pcpa_alloc() and pcpa_free() may be called from a signal handler, also when it
 * interrupted one of them. An allocation may then fail (NULL, errno EAGAIN) where it would have to
 * wait for a lock that the interrupted thread holds; a free always succeeds (it is put off). An
 * allocation that starts the agent thread (PCPALLOC_AGENT) must not be one of a handler: where
 * handlers allocate, set it to 1 and allocate once before they can run, or to 0. The same holds
 * for the first allocation in the child of a fork.
 *
 * Fork. The child keeps every block that was allocated, and all lists, as its own copies. It drops
 * the segment, the socket and the agent thread of the parent and starts its own at its next
 * refill. Its counters begin at zero; what it inherited is in the zone gauges inherited_*. fork()
 * may be called while other threads allocate, but not from a handler that interrupted a call. A
 * child made by vfork() or by a system call that runs no fork handlers must not allocate before
 * exec.
 *
 * Unloading. The library stays loaded once it is (its thread and its restartable sequences run in
 * it). A shared object that the archive is linked into must be linked with -z nodelete.
 *
 * Sanitizers. ThreadSanitizer does not see how a block goes from the thread that freed it to the
 * one that got it, unless the library is built with it, too (make VARIANT=tsan): it tells of races
 * that are none. And it ends the child of a fork that starts a thread: set PCPALLOC_AGENT=0.
 *
 * Errors. The library never ends the process and never writes to standard error. Failures are
 * return values with errno; misuse goes to the callback of pcpa_set_error_callback().
 */
#ifndef PCPALLOC_H
#define PCPALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PCPA_VERSION   "0.1.0"
#define PCPA_PAGE_SIZE 4096u
#define PCPA_MAX_ORDER 10u /* 4 MiB */
#define PCPA_MAX_EXACT ((size_t)PCPA_PAGE_SIZE << PCPA_MAX_ORDER)

#if defined(__GNUC__)
#define PCPA_API __attribute__((visibility("default")))
#else
#define PCPA_API
#endif

/* A function that is called often: by its address, without a stub between. */
#if defined(__has_attribute)
#if __has_attribute(noplt)
#define PCPA_HOT __attribute__((noplt))
#endif
#endif
#ifndef PCPA_HOT
#define PCPA_HOT
#endif

/*
 * One block of 2^order pages, order 0 .. PCPA_MAX_ORDER, aligned to its size. The content is
 * undefined. NULL: errno ENOMEM (no memory), EINVAL (order), EAGAIN (see Signals).
 */
PCPA_API PCPA_HOT void *pcpa_alloc(unsigned order);

/*
 * Gives a block back; order must be that of its allocation. NULL is ignored. An address that is
 * not ours, or not aligned to its order, is reported through the error callback and otherwise
 * ignored. A block that is freed twice, with another order, or from its middle is noticed at once
 * with PCPALLOC_CHECK=1 or lists that are locked; else when it reaches the zone, and the report
 * comes from whoever brings it there, with no caller. So does that of two threads which freed it at
 * the same moment, with any lists. errno is kept.
 */
PCPA_API PCPA_HOT void pcpa_free(void *block, unsigned order);

/*
 * Up to n blocks of one order into blocks[]; returns how many were allocated, 0 .. n. Less than n
 * only when memory is short. Does not disturb the rule state (free_count) of the list.
 */
PCPA_API size_t pcpa_alloc_bulk(unsigned order, size_t n, void **blocks);
PCPA_API void pcpa_free_bulk(unsigned order, size_t n, void *const *blocks);

/*
 * size bytes (1 .. PCPA_MAX_EXACT) as whole pages. Up to 8 pages: a block of the next order, which
 * comes from the lists. More: as many pages as it takes, past the lists.
 * Aligned to a page, and to align (a power of two up to PCPA_MAX_EXACT; 0: a page). Give it back
 * with pcpa_free_exact() and any size that rounds to the same number of pages. NULL: as
 * pcpa_alloc(); EINVAL for a size or an alignment out of range.
 */
PCPA_API void *pcpa_alloc_exact(size_t size, size_t align);
PCPA_API void pcpa_free_exact(void *block, size_t size);

/* Not 0 if the address lies in a zone of this process. Never blocks. */
PCPA_API int pcpa_owns(const void *address);

/* What an error callback is told. */
struct pcpa_error {
	size_t size;	     /* of this struct */
	const char *what;    /* static text, one line */
	const void *address; /* the block in question, NULL: none */
	unsigned order;
	const void *caller; /* return address of the call, NULL: noticed later */
};

/*
 * cb is called in the thread that made the error, or that noticed it (the library's own, perhaps),
 * with no lock held; it may allocate. NULL: none.
 * Returns the callback that was set before.
 */
typedef void (*pcpa_error_cb)(const struct pcpa_error *error, void *cookie);
PCPA_API pcpa_error_cb pcpa_set_error_callback(pcpa_error_cb cb, void *cookie);

/* Totals of this process, exact when no other thread is inside the library. */
struct pcpa_stats {
	size_t size; /* in: sizeof(struct pcpa_stats); out: bytes filled */
	uint64_t alloc_pages;
	uint64_t free_pages;
	uint64_t alloc_zone;
	uint64_t free_zone;
	uint64_t refills;
	uint64_t drains;
	uint64_t free_high;
	uint64_t lock_taken;	 /* zone lock, all paths */
	uint64_t lock_contended; /* zone lock, all paths */
	uint64_t lock_wait_ns;	 /* zone lock, alloc and free path */
	uint64_t pages_in_use;	 /* alloc_pages - free_pages + inherited */
	uint64_t pages_on_lists;
	uint64_t pages_in_zone; /* free in the zones */
	uint64_t pages_managed;
	uint64_t pages_returned; /* free in the zones, given back to the system */
	uint32_t n_zones;
	uint32_t n_cpus;
	uint32_t mode;		   /* enum pcptune_mode of pcptune/segment.h */
	uint32_t attached;	   /* 1: a daemon has our segment */
	uint64_t pages_given_back; /* to the system so far, each time that a page was */
};
PCPA_API int pcpa_get_stats(struct pcpa_stats *stats); /* 0 or -errno */

/*
 * The invariants, checked with every lock held: allocated - freed = in use, and
 * alloc_zone - free_zone = in use + on lists, each page accounted for once, and each hold of the
 * zone lock in the histogram of holds.
 * 0: hold. -EUCLEAN: do not; *ret_what (if not NULL) names the first breach (static text).
 */
PCPA_API int pcpa_audit(const char **ret_what);

/*
 * What is wrong with the first PCPALLOC_* of the environment that was not understood and so counts
 * as left out, one line of static text: "NAME=value: what would be right". NULL: with none. From
 * any thread; sets the allocator up if nobody called it yet.
 */
PCPA_API const char *pcpa_refused_setting(void);

/* Empties every list and returns free memory to the system now. Returns pages returned. */
PCPA_API size_t pcpa_trim(void);

/* Sets the live high and batch of every CPU, as a control word would; 0 keeps a value. */
PCPA_API int pcpa_set_limits(unsigned high, unsigned high_min, unsigned high_max, unsigned batch);

PCPA_API const char *pcpa_version(void);

#ifdef __cplusplus
}
#endif
#endif
