/* SPDX-License-Identifier: MIT */
/*
 * The thread's rseq area, which the libc registers, and the CPU that the kernel keeps in it.
 *
 * Its distance from the thread pointer is the same for all threads, and known once the libc is
 * asked (rseq.c). A thread that is not registered finds a number there that is no CPU. Sections
 * need the area, and locked lists read their CPU there, since a call for it costs as much as half
 * of what they do.
 */
#ifndef PCPA_AREA_H
#define PCPA_AREA_H

#include <stddef.h>
#include <stdint.h>

#define PCPA_AREA_CPU 4 /* where in it the CPU is */

#if defined(__x86_64__) && !defined(__ILP32__)

#define PCPA_HAS_AREA 1

static inline char *pcpa_area_thread(void)
{
	char *thread;

	__asm__("movq %%fs:0, %0" : "=r"(thread));
	return thread;
}

static inline uint32_t pcpa_area_cpu(intptr_t offset)
{
	uint32_t cpu;

	__asm__ volatile("movl %%fs:4(%1), %0" : "=r"(cpu) : "r"(offset));
	return cpu;
}

#elif defined(__aarch64__) && !defined(__ILP32__)

#define PCPA_HAS_AREA 1

static inline char *pcpa_area_thread(void)
{
	char *thread;

	__asm__("mrs %0, tpidr_el0" : "=r"(thread));
	return thread;
}

static inline char *pcpa_area(intptr_t offset)
{
	return pcpa_area_thread() + offset;
}

static inline uint32_t pcpa_area_cpu(intptr_t offset)
{
	return __atomic_load_n((uint32_t *)(void *)(pcpa_area(offset) + PCPA_AREA_CPU),
			       __ATOMIC_RELAXED);
}

#else

static inline char *pcpa_area_thread(void)
{
	return NULL;
}

static inline uint32_t pcpa_area_cpu(intptr_t offset)
{
	(void)offset;
	return UINT32_MAX;
}

#endif
#endif
