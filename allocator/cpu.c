/* SPDX-License-Identifier: MIT */
/*
 * CPU ids.
 *
 * Tables have one slot for every CPU that the system may ever show us, and a shared slot, the
 * last. An id outside (a container that lies about its CPUs, a kernel that grew some, -1 from a
 * libc without support) uses the shared slot and is counted: slower, never wrong. Lists have
 * locks, so a thread that moves between asking for its CPU and using its lists does no harm.
 *
 * Virtual CPUs: each thread is given a number at its first call, round-robin.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/heap.h"
#include "allocator/limits.h"
#include "allocator/rseq.h"

/* Of a thread that has none yet, and where there are real CPUs: UINT32_MAX. */
static _Thread_local uint32_t virtual_slot __attribute__((tls_model("initial-exec"))) = UINT32_MAX;
static uint32_t next_virtual;

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Highest CPU that affinity names, + 1. */
static uint32_t affinity_end(void)
{
	unsigned long mask[PCPTUNE_MAX_CPUS / (8 * sizeof(unsigned long))];
	long bytes = syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);

	for (long i = bytes / (long)sizeof(*mask); i-- > 0;)
		if (mask[i])
			return (uint32_t)i * 8 * (uint32_t)sizeof(*mask) +
			       (uint32_t)(8 * sizeof(*mask)) - (uint32_t)__builtin_clzl(mask[i]);
	return 1;
}

uint32_t pcpa_cpu_slots(uint32_t n_virtual)
{
	char text[1024];
	const char *at = text;
	uint32_t first, last, end = affinity_end();
	int cpu = sched_getcpu();

	if (n_virtual)
		return n_virtual + 1;
	if (pcpa_read_text("/sys/devices/system/cpu/possible", text, sizeof(text)) > 0)
		while (pcpa_next_range(&at, &first, &last))
			end = max_u32(end, last + 1);
	if (cpu >= 0)
		end = max_u32(end, (uint32_t)cpu + 1);
	return end < PCPTUNE_MAX_CPUS ? end + 1 : PCPTUNE_MAX_CPUS;
}

static uint32_t slot_virtual(void)
{
	if (virtual_slot == UINT32_MAX)
		virtual_slot = __atomic_fetch_add(&next_virtual, 1, __ATOMIC_RELAXED) %
			       pcpa_heap.n_virtual;
	return virtual_slot;
}

uint32_t pcpa_cpu_ask(void)
{
	return pcpa_heap.n_virtual ? slot_virtual() : (uint32_t)sched_getcpu();
}

intptr_t pcpa_cpu_place(void)
{
	if (!pcpa_heap.n_virtual && pcpa_rseq_area())
		return pcpa_fast.offset;
	return (char *)&virtual_slot - pcpa_area_thread() - PCPA_AREA_CPU;
}

void pcpa_cpu_is_agent(void)
{
	virtual_slot = pcpa_heap.n_virtual;
}

uint32_t pcpa_cpu_slot(void)
{
	/* without a registration of its own a thread must not use what sections use */
	uint32_t cpu = pcpa_fast_cpus() ? pcpa_fast_cpu() : pcpa_cpu_ask();

	if (pcpa_heap.n_virtual || __builtin_expect(cpu < pcpa_heap.n_slots - 1, 1))
		return cpu;
	pcpa_proc_add(&pcpa_heap.proc->shared_slot_calls, 1);
	return pcpa_heap.n_slots - 1;
}

/* One level of CPU 0: bytes for each CPU that shares it. Instructions do not count. */
static bool cache_level(unsigned index, uint64_t *ret_bytes)
{
	static const char folder[] = "/sys/devices/system/cpu/cpu0/cache/index";
	char path[96], text[256], *end;
	const char *at = text;
	uint32_t first, last, sharers = 0;
	uint64_t size;

	*ret_bytes = 0;
	snprintf(path, sizeof(path), "%s%u/type", folder, index);
	if (pcpa_read_text(path, text, sizeof(text)) <= 0)
		return false;
	if (text[0] == 'I')
		return true;
	snprintf(path, sizeof(path), "%s%u/size", folder, index);
	if (pcpa_read_text(path, text, sizeof(text)) <= 0)
		return true;
	size = strtoull(text, &end, 10);
	size <<= *end == 'K' ? 10 : *end == 'M' ? 20 : 0;
	snprintf(path, sizeof(path), "%s%u/shared_cpu_list", folder, index);
	if (pcpa_read_text(path, text, sizeof(text)) > 0)
		while (pcpa_next_range(&at, &first, &last))
			sharers += last - first + 1;
	*ret_bytes = sharers ? size / sharers : size;
	return true;
}

uint32_t pcpa_cpu_cache_slice(void)
{
	uint64_t sum = 0, bytes;

	for (unsigned index = 0; index < 8 && cache_level(index, &bytes); index++)
		sum += bytes;
	return (uint32_t)(sum >> PCPTUNE_PAGE_SHIFT);
}

uint32_t pcpa_cpu_nodes(int nodes[PCPTUNE_MAX_ZONES])
{
	char text[512];
	const char *at = text;
	uint32_t first, last, n = 0;

	if (pcpa_read_text("/sys/devices/system/node/has_memory", text, sizeof(text)) > 0)
		while (pcpa_next_range(&at, &first, &last))
			for (; first <= last && n < PCPTUNE_MAX_ZONES; first++)
				nodes[n++] = (int)first;
	if (n > 1)
		return n;
	nodes[0] = -1;
	return 1;
}

static void home_of_node(uint32_t zone, int node)
{
	char path[64], text[1024];
	const char *at = text;
	uint32_t first, last;

	if (node < 0)
		return;
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	if (pcpa_read_text(path, text, sizeof(text)) <= 0)
		return;
	while (pcpa_next_range(&at, &first, &last))
		for (; first <= last && first < pcpa_heap.n_slots; first++)
			pcpa_heap.home[first] = (uint8_t)zone;
}

void pcpa_cpu_homes(const int *nodes, bool by_node)
{
	for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++)
		pcpa_heap.home[slot] = (uint8_t)(slot % pcpa_heap.n_zones);
	if (by_node && !pcpa_heap.n_virtual)
		for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
			home_of_node(zone, nodes[zone]);
}
