/* SPDX-License-Identifier: MIT */
/*
 * The parts of the preload library.
 *
 *   preload.c       the names that programs call (malloc, free, ...); decides which side serves
 *   preload_fast.h  our side where nothing is unusual, inlined into malloc and free
 *   preload_zone.c  our side: page-grain blocks, their lengths, the malloc_* counters
 *   preload_next.c  the other side: the malloc that would have served without us
 *
 * Nothing here takes a lock, and nothing is set up before it is needed: a process that asks for no
 * block of page grain pays for loading the library and for one comparison a call.
 */
#ifndef PCPALLOC_PRELOAD_H
#define PCPALLOC_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "allocator/heap.h"
#include "pcpalloc.h"

/* Thread-locals of a library that is loaded with the program need no call (and no malloc). */
#define PRELOAD_TLS __thread __attribute__((tls_model("initial-exec")))

/* ---- the next malloc (preload_next.c) ---- */

/* Members are NULL where the next malloc lacks a function. free keeps errno. */
struct preload_next {
	void *(*malloc)(size_t);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	void (*free)(void *);
	void *(*reallocarray)(void *, size_t, size_t);
	void *(*memalign)(size_t, size_t);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
	size_t (*usable_size)(void *);
};

extern struct preload_next preload_next_table;
extern bool preload_next_found;
const struct preload_next *preload_next_look_up(void);

/*
 * NULL: this thread is looking the functions up right now, and the look-up itself allocates; serve
 * it from the arena.
 */
static inline const struct preload_next *preload_next(void)
{
	if (__builtin_expect(__atomic_load_n(&preload_next_found, __ATOMIC_ACQUIRE), 1))
		return &preload_next_table;
	return preload_next_look_up();
}

/*
 * A small static arena for those few calls. It hands out zeroed memory and never takes it back.
 * NULL and errno ENOMEM when it is used up.
 */
void *preload_arena_alloc(size_t align, size_t size);
#define PRELOAD_ARENA_SIZE 32768u
extern unsigned char preload_arena[PRELOAD_ARENA_SIZE];
static inline bool preload_arena_owns(const void *p)
{
	return (uintptr_t)p - (uintptr_t)preload_arena < PRELOAD_ARENA_SIZE;
}
size_t preload_arena_size(const void *p);

/*
 * Did the dynamic linker bind the program's malloc and free to these two? Their addresses must come
 * from inside the library (preload_our_*): by name one gets what the program is bound to.
 */
bool preload_next_is_bound(void *(*our_malloc)(size_t), void (*our_free)(void *));
extern void *(*const preload_our_malloc)(size_t);
extern void (*const preload_our_free)(void *);

/* ---- our side (preload_zone.c) ---- */

/*
 * Sizes from lo to lo + span are ours. Before the environment was read every size passes, and
 * preload_zone_alloc() decides. Written once, with relaxed stores; a thread that sees old values
 * asks preload_zone_alloc() as well.
 */
extern size_t preload_lo, preload_span;

static inline bool preload_wants(size_t size)
{
	return size - __atomic_load_n(&preload_lo, __ATOMIC_RELAXED) <=
	       __atomic_load_n(&preload_span, __ATOMIC_RELAXED);
}

/*
 * A block of size bytes, aligned to a page and to align (0: no wish), or NULL when the size is not
 * ours or the zone can not serve it. errno is kept in either case: the next malloc has the say.
 */
void *preload_zone_alloc(size_t size, size_t align);
/* The same with room for some growth: for blocks that were seen to grow. */
void *preload_zone_alloc_growing(size_t size);
static inline bool preload_zone_owns(const void *p)
{
	return __atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE) && pcpa_heap_zone_of(p);
}

/*
 * The list of an order up to PCPTUNE_COSTLY_ORDER did not serve a section that takes a block, or
 * gives one of the zone `given` (else NULL). True: it would now. False: whatever is unusual. errno
 * is kept.
 */
bool preload_zone_passed(unsigned order, const struct pcpa_zone *given);
/* p must be owned. An address that is no live block is reported and left alone. errno is kept. */
void preload_zone_free(void *p, const void *caller);
/*
 * Returns p, a new block. preload_mine.gathered was full when `counted` was added to it: what it
 * holds is added to the counters of the process.
 */
void *preload_zone_counted(void *p, uint64_t counted);
/* Bytes of the block at p, 0: no live block begins there. */
size_t preload_zone_size(const void *p);
/*
 * Makes the block at p serve size bytes without moving it: as it is, or less its tail pages.
 * false: it has to move.
 */
bool preload_zone_resize(void *p, size_t size);

/* Reads the environment; the constructor does it, or the first call that is earlier. */
void preload_zone_setup(void);
/* For tests of this file alone: forgets what was read, so that it is read again. */
void preload_zone_forget(void);

#endif
