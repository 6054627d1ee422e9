/* SPDX-License-Identifier: MIT */
/*
 * The few things that the allocator asks of the system, in forms that suit it.
 *
 * System calls go through syscall(), which is no cancellation point and calls no function of the
 * program's: the allocator may run inside malloc, in a signal handler, and in a thread that is
 * about to be cancelled. Shared words are read and written whole with relaxed atomics; a counter
 * has one writer at a time (its lock says who), so that an addition needs no locked instruction.
 */
#ifndef PCPA_SYS_H
#define PCPA_SYS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define pcpa_get(p)    __atomic_load_n((p), __ATOMIC_RELAXED)
#define pcpa_put(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
/*
 * For the two words of a list: a reader in another process takes word, tail, word, and what it sees
 * of one must not be newer than what it sees of the other. Costs nothing on x86.
 */
#define pcpa_publish(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

static inline void pcpa_count(uint64_t *counter, uint64_t n)
{
	pcpa_put(counter, pcpa_get(counter) + n);
}

static inline uint64_t pcpa_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline int pcpa_sys_open(const char *path)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

static inline void pcpa_sys_close(int fd)
{
	syscall(SYS_close, fd);
}

/* A pause of a spinning thread. */
static inline void pcpa_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void pcpa_yield(void)
{
	syscall(SYS_sched_yield);
}

/* For whoever waits for a thread that may need this very CPU and have a lower priority. */
static inline void pcpa_rest(void)
{
	struct timespec t = {0, 50000};

	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
}

#endif
