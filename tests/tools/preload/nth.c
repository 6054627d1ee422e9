/* SPDX-License-Identifier: MIT */
/*
 * Preloaded into a program of a test: its n-th allocation, write, mapping or open fails.
 *
 * What fails, and when, stands in a page of memory that the test shares (NTH_FILE), so that it can
 * be said to a program that runs: the test clears `count`, sets `kind` and then `at`; a call of
 * that kind counts, and the one that makes `count` reach `at` fails and sets `fired`, as do all
 * that follow where `on` is set. 0 in `at`: nothing fails, nothing counts.
 *
 * Calls that libc makes within itself do not come by here. NTH_ONLY: calls from files with this in
 * their names alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MEMORY = 1, WRITE = 2, MAP = 4, OPEN = 8 };

struct page {
	uint32_t kind, on;
	int64_t at, count, fired;
};

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static struct page *page;

static __attribute__((constructor)) void begin(void)
{
	const char *path = getenv("NTH_FILE");
	int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
	long map = fd < 0 ? -1
			  : syscall(SYS_mmap, NULL, sizeof(*page), PROT_READ | PROT_WRITE,
				    MAP_SHARED, fd, 0);

	if (map != -1)
		page = (struct page *)map;
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/*
 * libconfig does not look at what malloc() gives it, and would crash; the daemon sees to it that
 * there is memory before it calls it (lib/config_bind.c).
 */
static bool blind(const void *caller)
{
	const char *only = getenv("NTH_ONLY");
	Dl_info info;

	if (!dladdr(caller, &info))
		return only != NULL;
	return strstr(info.dli_fname, "libconfig") || (only && !strstr(info.dli_fname, only));
}

static bool fails_for(uint32_t kind, int error, const void *caller)
{
	int64_t at = page ? __atomic_load_n(&page->at, __ATOMIC_ACQUIRE) : 0, n;

	if (!at || page->kind != kind || blind(caller))
		return false;
	n = __atomic_add_fetch(&page->count, 1, __ATOMIC_RELAXED);
	if (n != at && !(page->on && n > at))
		return false;
	__atomic_add_fetch(&page->fired, 1, __ATOMIC_RELAXED);
	errno = error;
	return true;
}

#define fails(kind, error) fails_for(kind, error, __builtin_return_address(0))

/* ---- memory ---- */

char *strdup(const char *text)
{
	size_t n = strlen(text) + 1;
	char *p = fails(MEMORY, ENOMEM) ? NULL : __libc_malloc(n);

	return p ? memcpy(p, text, n) : NULL;
}

char *__strdup(const char *text) __attribute__((alias("strdup")));

void *malloc(size_t n)
{
	return fails(MEMORY, ENOMEM) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return fails(MEMORY, ENOMEM) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return n && fails(MEMORY, ENOMEM) ? NULL : __libc_realloc(p, n);
}

void *reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return bytes && fails(MEMORY, ENOMEM) ? NULL : __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t n)
{
	return fails(MEMORY, ENOMEM) ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **ret, size_t align, size_t n)
{
	void *p = fails(MEMORY, ENOMEM) ? NULL : __libc_memalign(align, n);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

/* ---- files; all of them are what libc does, too ---- */

#define NEXT(name)                     \
	static __typeof__(&name) next; \
	if (!next)                     \
		*(void **)&next = dlsym(RTLD_NEXT, #name);

ssize_t write(int fd, const void *p, size_t n)
{
	NEXT(write)
	return fails(WRITE, ENOSPC) ? -1 : next(fd, p, n);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
	NEXT(writev)
	return fails(WRITE, EIO) ? -1 : next(fd, v, n);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
	NEXT(pwrite64)
	return fails(WRITE, ENOSPC) ? -1 : next(fd, p, n, at);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	NEXT(pwrite)
	return fails(WRITE, ENOSPC) ? -1 : next(fd, p, n, at);
}

int ftruncate64(int fd, off64_t n)
{
	NEXT(ftruncate64)
	return fails(WRITE, ENOSPC) ? -1 : next(fd, n);
}

int ftruncate(int fd, off_t n)
{
	NEXT(ftruncate)
	return fails(WRITE, ENOSPC) ? -1 : next(fd, n);
}

int fsync(int fd)
{
	NEXT(fsync)
	return fails(WRITE, EIO) ? -1 : next(fd);
}

int fdatasync(int fd)
{
	NEXT(fdatasync)
	return fails(WRITE, EIO) ? -1 : next(fd);
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
	NEXT(send)
	return fails(WRITE, ENOBUFS) ? -1 : next(fd, p, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	NEXT(sendmsg)
	return fails(WRITE, ENOBUFS) ? -1 : next(fd, m, flags);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
	if (fails(MAP, ENOMEM))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t from)
{
	if (fails(MAP, ENOMEM))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
}

int mprotect(void *at, size_t n, int prot)
{
	return fails(MAP, ENOMEM) ? -1 : (int)syscall(SYS_mprotect, at, n, prot);
}

/* ---- descriptors ---- */

static int open_it(const char *path, int flags, mode_t mode)
{
	return fails(OPEN, EMFILE) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define MODE(flags)                              \
	mode_t mode = 0;                         \
	if ((flags) & (O_CREAT | __O_TMPFILE)) { \
		va_list ap;                      \
		va_start(ap, flags);             \
		mode = va_arg(ap, mode_t);       \
		va_end(ap);                      \
	}

int open(const char *path, int flags, ...)
{
	MODE(flags)
	return open_it(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	MODE(flags)
	return open_it(path, flags, mode);
}

int socket(int family, int type, int protocol)
{
	return fails(OPEN, EMFILE) ? -1 : (int)syscall(SYS_socket, family, type, protocol);
}

int socketpair(int family, int type, int protocol, int ret[2])
{
	return fails(OPEN, EMFILE) ? -1 : (int)syscall(SYS_socketpair, family, type, protocol, ret);
}

int accept4(int fd, struct sockaddr *a, socklen_t *len, int flags)
{
	return fails(OPEN, EMFILE) ? -1 : (int)syscall(SYS_accept4, fd, a, len, flags);
}

int memfd_create(const char *name, unsigned flags)
{
	return fails(OPEN, EMFILE) ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}
