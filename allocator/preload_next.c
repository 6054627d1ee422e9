/* SPDX-License-Identifier: MIT */
/*
 * The next malloc: what serves a program's small and very large requests.
 *
 * It is found with dlsym(RTLD_NEXT), so it is libc's, or that of a library that the program is
 * linked with. dlsym() may itself allocate. A thread-local flag tells such a call from all others,
 * and a static arena serves it. Two threads may look up at the same time: both find the same
 * addresses, and each stores them whole before the flag preload_next_found (release), so a reader
 * that sees the flag (acquire) sees all of them. malloc and free look at their own address alone,
 * which is stored with release, too, because what it needs was written before. No lock is held
 * while the dynamic linker runs.
 */
#include "allocator/preload.h"
#include "allocator/fork.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

struct preload_next preload_next_table;
bool preload_next_found;
static PRELOAD_TLS bool looking;

static const struct {
	const char *name;
	size_t offset; /* of a member of struct preload_next: all are pointers */
} names[] = {
	{"malloc", offsetof(struct preload_next, malloc)},
	{"calloc", offsetof(struct preload_next, calloc)},
	{"realloc", offsetof(struct preload_next, realloc)},
	{"free", offsetof(struct preload_next, free)},
	{"reallocarray", offsetof(struct preload_next, reallocarray)},
	{"memalign", offsetof(struct preload_next, memalign)},
	{"posix_memalign", offsetof(struct preload_next, posix_memalign)},
	{"aligned_alloc", offsetof(struct preload_next, aligned_alloc)},
	{"valloc", offsetof(struct preload_next, valloc)},
	{"pvalloc", offsetof(struct preload_next, pvalloc)},
	{"malloc_usable_size", offsetof(struct preload_next, usable_size)},
};

static void (*forgetful_free)(void *);

static void free_and_keep_errno(void *p)
{
	int e = errno;

	__atomic_load_n(&forgetful_free, __ATOMIC_RELAXED)(p);
	errno = e;
}

/* free() of the GNU C library keeps errno since 2.33; others are not asked. */
static bool keeps_errno(void *f)
{
#ifdef __GLIBC__
	const char *v = gnu_get_libc_version();
	void *in_libc = dlsym(RTLD_NEXT, "gnu_get_libc_version");
	unsigned minor = 0;
	Dl_info next, libc;

	if (v[0] != '2' || v[1] != '.')
		return false;
	/* not strtol(): a sanitizer that wraps it may be setting itself up just now */
	for (v += 2; *v >= '0' && *v <= '9' && minor < 1000; v++)
		minor = 10 * minor + (unsigned)(*v - '0');
	if (minor < 33)
		return false;
	return in_libc && dladdr(f, &next) && dladdr(in_libc, &libc) &&
	       next.dli_fbase == libc.dli_fbase;
#else
	(void)f;
	return false;
#endif
}

static void *free_that_keeps_errno(void *f)
{
	static void (*const keeper)(void *) = free_and_keep_errno;
	void *k;

	if (!f || keeps_errno(f))
		return f;
	__atomic_store_n((void **)&forgetful_free, f, __ATOMIC_RELAXED);
	memcpy(&k, &keeper, sizeof(k));
	return k;
}

static void look_up(void)
{
	int e = errno;
	size_t i;

	looking = true;
	/* before others do; set-up tries again and tells */
	pcpa_fork_register();
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *f = dlsym(RTLD_NEXT, names[i].name);

		if (names[i].offset == offsetof(struct preload_next, free))
			f = free_that_keeps_errno(f);
		__atomic_store_n((void **)((char *)&preload_next_table + names[i].offset), f,
				 __ATOMIC_RELEASE);
	}
	looking = false;
	__atomic_store_n(&preload_next_found, true, __ATOMIC_RELEASE);
	errno = e;
}

const struct preload_next *preload_next_look_up(void)
{
	if (looking)
		return NULL;
	look_up();
	return &preload_next_table;
}

/* ---- the arena ---- */

#define ARENA_SIZE PRELOAD_ARENA_SIZE
#define ARENA_UNIT 16u /* header and least alignment */

_Alignas(ARENA_UNIT) unsigned char preload_arena[ARENA_SIZE];
static size_t arena_used;

/* Where a block of size bytes ends that begins after `used`; its start goes to *ret_start. */
static size_t arena_place(size_t used, size_t align, size_t size, size_t *ret_start)
{
	uintptr_t base = (uintptr_t)preload_arena, at = base + used + ARENA_UNIT;

	at = (at + align - 1) & ~(uintptr_t)(align - 1);
	*ret_start = at - base;
	return *ret_start + ((size + ARENA_UNIT - 1) & ~(size_t)(ARENA_UNIT - 1));
}

void *preload_arena_alloc(size_t align, size_t size)
{
	size_t used = __atomic_load_n(&arena_used, __ATOMIC_RELAXED), start, end;

	if (align < ARENA_UNIT)
		align = ARENA_UNIT;
	do {
		if (size > ARENA_SIZE || align > ARENA_SIZE)
			goto full;
		end = arena_place(used, align, size, &start);
		if (end > ARENA_SIZE)
			goto full;
	} while (!__atomic_compare_exchange_n(&arena_used, &used, end, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	/* the unit before the block is inside what was just claimed, so it is ours alone */
	*(size_t *)(void *)(preload_arena + start - ARENA_UNIT) = size;
	return preload_arena + start;
full:
	errno = ENOMEM;
	return NULL;
}

size_t preload_arena_size(const void *p)
{
	return *(const size_t *)(const void *)((const unsigned char *)p - ARENA_UNIT);
}

/* ---- who serves the program ---- */

/*
 * Is `bound`, the address that a name has for the program, our function? An executable that is not
 * position-independent may give its own procedure-linkage entry as the address of a function that
 * is defined elsewhere: its symbol is undefined there, and calls go through it to ours.
 */
static bool is_ours(void *bound, uintptr_t ours)
{
	Dl_info info;
	ElfW(Sym) *symbol = NULL;

	if ((uintptr_t)bound == ours)
		return true;
	if (!bound || !dladdr1(bound, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
		return false;
	return symbol->st_shndx == SHN_UNDEF;
}

bool preload_next_is_bound(void *(*our_malloc)(size_t), void (*our_free)(void *))
{
	return is_ours(dlsym(RTLD_DEFAULT, "malloc"), (uintptr_t)our_malloc) &&
	       is_ours(dlsym(RTLD_DEFAULT, "free"), (uintptr_t)our_free);
}
