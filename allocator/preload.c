/* SPDX-License-Identifier: MIT */
/*
 * malloc for programs that do not know of us: libpcpalloc-preload.so.
 *
 * Requests of page grain (PCPALLOC_MIN_SIZE .. PCPALLOC_MAX_SIZE bytes, by default 4096 .. 4 MiB)
 * become whole pages from our lists. All others go to the next malloc, and so does whatever our
 * side can not serve. A block is recognised by its address, so free() and realloc() never guess.
 *
 * Whose malloc it is. Where the program, or a library before us, brings a malloc of its own, that
 * one wins: the names below are then reached only for what it lacks, and everything is passed on,
 * because blocks of ours would end in a free() that does not know them. A library that is opened
 * with RTLD_DEEPBIND or dlmopen() binds to libc's malloc: it must not free blocks of others, as
 * with every replaced malloc.
 *
 * Semantics are those of the GNU C library: errno ENOMEM on failure and on overflow, kept by
 * free(); posix_memalign() returns its error; realloc(p, 0) frees.
 *
 * Recursion. What runs inside our side (thread creation, the error callback, the dynamic linker)
 * may call malloc: preload_zone.c passes such calls on, unless the fast path can serve them, which
 * calls nobody. This file has no state.
 *
 * Signals: as far as the next malloc. Fork: the child has all blocks; see pcpalloc.h.
 */
#include "allocator/preload_fast.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define PAGE   ((size_t)PCPA_PAGE_SIZE)
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/* Newer than some C libraries; pvalloc and cfree are old names that headers may not have. */
PCPA_API void free_sized(void *p, size_t size);
PCPA_API void free_aligned_sized(void *p, size_t align, size_t size);
PCPA_API void cfree(void *p);
PCPA_API void *pvalloc(size_t size);

static void *no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

static bool is_power_of_two(size_t v)
{
	return v && !(v & (v - 1));
}

/*
 * ---- new blocks; static, so that a program's own malloc does not get between ----
 *
 * What is rare is noinline, so that nothing is saved on the way of what is not.
 */

static __attribute__((noinline, cold)) void *alloc_rare(size_t size)
{
	const struct preload_next *n = preload_next();

	if (!n)
		return preload_arena_alloc(0, size);
	return n->malloc ? n->malloc(size) : no_memory();
}

static inline void *alloc_next(size_t size)
{
	void *(*next)(size_t) = __atomic_load_n(&preload_next_table.malloc, __ATOMIC_ACQUIRE);

	return __builtin_expect(next != NULL, 1) ? next(size) : alloc_rare(size);
}

static __attribute__((noinline)) void *alloc_ours(size_t size)
{
	void *p = preload_zone_alloc(size, 0);

	return p ? p : alloc_next(size);
}

/* The fast path did not serve: mostly its list was empty. */
static __attribute__((noinline)) void *alloc_listed(size_t size)
{
	void *p;

	if (preload_zone_passed((unsigned)(preload_rank(size) - PRELOAD_RANK), NULL) &&
	    preload_fast_alloc(size, &p))
		return p;
	return alloc_ours(size);
}

static void *alloc_plain(size_t size)
{
	if (__builtin_expect(size < pcpa_get(&preload_lo), 1) || !preload_wants(size))
		return alloc_next(size);
	return preload_fast_wants(size) ? alloc_listed(size) : alloc_ours(size);
}

static void *alloc_zeroed(size_t count, size_t each)
{
	const struct preload_next *n;
	size_t size;
	void *p;

	if (__builtin_mul_overflow(count, each, &size))
		return no_memory();
	if (preload_wants(size)) {
		if (!preload_fast_alloc(size, &p))
			p = preload_zone_alloc(size, 0);
		if (p)
			return memset(p, 0, size);
	}
	n = preload_next();
	if (!n)
		return preload_arena_alloc(0, size);
	return n->calloc ? n->calloc(count, each) : no_memory();
}

/* Our side's part of the aligned calls; what it does not take is for the next malloc to judge. */
static void *alloc_aligned(size_t align, size_t size)
{
	void *p;

	if (!preload_wants(size) || !is_power_of_two(align) || align > PCPA_MAX_EXACT)
		return NULL;
	if (align <= PAGE && preload_fast_alloc(size, &p))
		return p;
	return preload_zone_alloc(size, align);
}

static __attribute__((noinline, cold)) void free_rare(void *p)
{
	const struct preload_next *n = preload_next();

	if (n && n->free)
		n->free(p);
}

static inline void free_next(void *p)
{
	void (*next)(void *) = __atomic_load_n(&preload_next_table.free, __ATOMIC_ACQUIRE);

	if (__builtin_expect(next != NULL, 1))
		next(p);
	else
		free_rare(p);
}

static __attribute__((noinline)) void free_block(void *p, const void *caller)
{
	if (preload_zone_owns(p))
		preload_zone_free(p, caller);
	else if (p && !preload_arena_owns(p))
		free_next(p);
}

/* ---- realloc ---- */

static void *move(void *p, size_t have, size_t size, const void *caller)
{
	void *q = NULL;

	if (size > have && preload_wants(size))
		q = preload_zone_alloc_growing(size);
	if (!q)
		q = alloc_plain(size);
	if (!q)
		return NULL;
	memcpy(q, p, have < size ? have : size);
	free_block(p, caller);
	return q;
}

/* The block is ours. */
static void *resize_ours(void *p, size_t size, const void *caller)
{
	size_t have = preload_zone_size(p);

	if (!size || !have) { /* not a block: reported there, and the caller gets no memory */
		preload_zone_free(p, caller);
		return size ? no_memory() : NULL;
	}
	if (preload_wants(size) && preload_zone_resize(p, size))
		return p;
	return move(p, have, size, caller);
}

/* The block is the next malloc's: it moves to our side when its new size is of page grain. */
static void *resize_next(void *p, size_t size)
{
	const struct preload_next *n = preload_next();
	size_t have;
	void *q;

	if (!n || !n->realloc)
		return no_memory();
	if (!preload_wants(size) || !n->usable_size || !n->free)
		return n->realloc(p, size);
	q = preload_zone_alloc(size, 0);
	if (!q)
		return n->realloc(p, size);
	have = n->usable_size(p);
	memcpy(q, p, have < size ? have : size);
	free_block(p, NULL);
	return q;
}

static void *resize(void *p, size_t size, const void *caller)
{
	if (!p)
		return alloc_plain(size);
	if (preload_zone_owns(p))
		return resize_ours(p, size, caller);
	if (preload_arena_owns(p))
		return size ? move(p, preload_arena_size(p), size, caller) : NULL;
	return resize_next(p, size);
}

/* ---- the names ---- */

/* begins with a line of instructions. */
PCPA_API __attribute__((aligned(64))) void *malloc(size_t size)
{
	void *p;

	if (__builtin_expect(preload_fast_alloc(size, &p), 1))
		return p;
	return alloc_plain(size);
}

PCPA_API void *calloc(size_t count, size_t each)
{
	return alloc_zeroed(count, each);
}

PCPA_API void free(void *p)
{
	if (__builtin_expect(preload_fast_free(p), 1))
		return;
	/* what is next malloc's should not be asked all of it */
	if (preload_fast_foreign(p) && !preload_arena_owns(p))
		free_next(p);
	else
		free_block(p, CALLER);
}

PCPA_API void cfree(void *p)
{
	free_block(p, CALLER);
}

PCPA_API void free_sized(void *p, size_t size)
{
	(void)size;
	free_block(p, CALLER);
}

PCPA_API void free_aligned_sized(void *p, size_t align, size_t size)
{
	(void)align;
	(void)size;
	free_block(p, CALLER);
}

PCPA_API void *realloc(void *p, size_t size)
{
	return resize(p, size, CALLER);
}

PCPA_API void *reallocarray(void *p, size_t count, size_t each)
{
	const struct preload_next *n;
	size_t size;

	if (__builtin_mul_overflow(count, each, &size))
		return no_memory();
	/*
	 * The next one calls realloc() by its name: right for a block of a program whose own
	 * malloc lacks this function.
	 */
	n = preload_next();
	if (n && n->reallocarray && !preload_wants(size) && !preload_zone_owns(p) &&
	    !preload_arena_owns(p))
		return n->reallocarray(p, count, each);
	return resize(p, size, CALLER);
}

/* Before the next malloc is known. */
static void *aligned_early(size_t align, size_t size)
{
	return is_power_of_two(align) ? preload_arena_alloc(align, size) : no_memory();
}

static void *aligned_next(void *(*next)(size_t, size_t), size_t align, size_t size)
{
	return next ? next(align, size) : no_memory();
}

PCPA_API void *memalign(size_t align, size_t size)
{
	const struct preload_next *n;
	void *p = alloc_aligned(align, size);

	if (p)
		return p;
	n = preload_next();
	return n ? aligned_next(n->memalign, align, size) : aligned_early(align, size);
}

PCPA_API void *aligned_alloc(size_t align, size_t size)
{
	const struct preload_next *n;
	void *p = alloc_aligned(align, size);

	if (p)
		return p;
	n = preload_next();
	return n ? aligned_next(n->aligned_alloc, align, size) : aligned_early(align, size);
}

PCPA_API int posix_memalign(void **ret, size_t align, size_t size)
{
	const struct preload_next *n;
	int e = errno, r = ENOMEM;
	void *p;

	if (align % sizeof(void *) || !is_power_of_two(align))
		return EINVAL;
	p = alloc_aligned(align, size);
	n = preload_next();
	if (!p && !n)
		p = preload_arena_alloc(align, size);
	if (p) {
		*ret = p;
		r = 0;
	} else if (n && n->posix_memalign) {
		r = n->posix_memalign(ret, align, size);
	}
	errno = e;
	return r;
}

PCPA_API void *valloc(size_t size)
{
	const struct preload_next *n;
	void *p = alloc_aligned(PAGE, size);

	if (p)
		return p;
	n = preload_next();
	if (!n)
		return preload_arena_alloc(PAGE, size);
	return n->valloc ? n->valloc(size) : no_memory();
}

PCPA_API void *pvalloc(size_t size)
{
	const struct preload_next *n;
	size_t whole;
	void *p;

	if (__builtin_add_overflow(size, PAGE - 1, &whole))
		return no_memory();
	whole &= ~(PAGE - 1);
	p = alloc_aligned(PAGE, whole);
	if (p)
		return p;
	n = preload_next();
	if (!n)
		return preload_arena_alloc(PAGE, whole);
	return n->pvalloc ? n->pvalloc(size) : no_memory();
}

PCPA_API size_t malloc_usable_size(void *p)
{
	const struct preload_next *n;

	if (!p)
		return 0;
	if (preload_zone_owns(p))
		return preload_zone_size(p);
	if (preload_arena_owns(p))
		return preload_arena_size(p);
	n = preload_next();
	return n && n->usable_size ? n->usable_size(p) : 0;
}

static void *own_malloc(size_t size)
	__attribute__((alias("malloc"), nothrow, malloc, alloc_size(1)));
static void own_free(void *p) __attribute__((alias("free"), nothrow));
void *(*const preload_our_malloc)(size_t) = own_malloc;
void (*const preload_our_free)(void *) = own_free;

/* Before the program's own constructors, mostly; calls that come earlier set up by themselves. */
__attribute__((constructor)) static void start(void)
{
	preload_zone_setup();
}
