/* SPDX-License-Identifier: MIT */
/* What memory and CPUs this process really has, and what follows from that. */
#ifndef PCPA_LIMITS_H
#define PCPA_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Pages of the host or of the tightest memory cgroup around us, whichever is less; at least 1. */
uint64_t pcpa_limits_memory_pages(void);

/* CPUs that may run us at once: affinity, bounded by the CPU quota of the cgroups; at least 1. */
uint32_t pcpa_limits_run_cpus(void);

/* Largest address space that one more mapping may take, in bytes (half of what RLIMIT_AS leaves).
 */
uint64_t pcpa_limits_address_space(void);

/* Watermarks by the kernel's formula, in pages. */
void pcpa_limits_watermarks(uint64_t managed, uint32_t *ret_low, uint32_t *ret_high);

/* A small file as text; length without the NUL, or -errno. Truncated at size - 1. */
int pcpa_read_text(const char *path, char *text, size_t size);

/* "0-3,8" from *at on: the next range; returns 0 at the end. */
int pcpa_next_range(const char **at, uint32_t *ret_first, uint32_t *ret_last);

#endif
