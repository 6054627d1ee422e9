/* SPDX-License-Identifier: MIT */
/*
 * The histogram, and the length of a cycle.
 *
 * The kernel keeps time by the cycle counter only where that runs at one rate on all CPUs and
 * agrees among them; it says so in sysfs, and changes its mind when that turns out to be wrong. So
 * we look there rather than at the processor. The length is what clock and counter did between two
 * looks, each of which must have been undisturbed: two readings of the counter around the clock's,
 * close together.
 */
#include <string.h>

#include "allocator/hold.h"
#include "allocator/limits.h"

#define CLOSE_CYCLES 4000u
#define LOOK_NS	     UINT64_C(100000000) /* least time between two looks */
#define SOURCE	     "/sys/devices/system/clocksource/clocksource0/current_clocksource"

uint32_t pcpa_hold_cycle;

enum {
#define PCPTUNE_HOLD(field, unit, line, para) ROW_##field,
#include <pcptune/counters.def>
	N_ROWS
};

unsigned pcpa_hold_row(uint64_t ns)
{
	unsigned row = ns < 64 ? 0 : 58u - (unsigned)__builtin_clzll(ns);

	return row < N_ROWS ? row : N_ROWS - 1;
}

void pcpa_hold_count(struct pcptune_zone_block *g, uint64_t ns, uint32_t weight)
{
	size_t first = offsetof(struct pcptune_zone_block, hold_from_0ns);

	pcpa_count((uint64_t *)(void *)((char *)g + first) + pcpa_hold_row(ns), weight);
	if (ns > pcpa_get(&g->hold_max_ns))
		pcpa_put(&g->hold_max_ns, ns);
}

uint64_t pcpa_hold_total(const struct pcptune_zone_block *g)
{
	uint64_t sum = 0;

#define PCPTUNE_HOLD(field, unit, line, para) sum += pcpa_get(&g->field);
#include <pcptune/counters.def>
	return sum;
}

#if defined(__x86_64__)
#define COUNTER "tsc\n"
#elif defined(__aarch64__)
#define COUNTER "arch_sys_counter\n"
#else
#define COUNTER "" /* no counter, so no source has this name */
#endif

static uint64_t last_cycles, last_ns; /* of the last look; 0: none yet */

static bool counter_keeps_time(void)
{
	char text[32];

	return pcpa_read_text(SOURCE, text, sizeof(text)) > 0 && !strcmp(text, COUNTER);
}

void pcpa_hold_tune(void)
{
	uint64_t before = pcpa_cycles(), ns = pcpa_now_ns(), after = pcpa_cycles(), parts, cycle;

	if (after - before > CLOSE_CYCLES || (last_ns && ns - last_ns < LOOK_NS))
		return;
	if (!counter_keeps_time()) {
		pcpa_put(&pcpa_hold_cycle, 0);
		last_ns = 0;
		return;
	}
	/* in 2^10 parts first, so that a look after a day does not overflow */
	parts = (before - last_cycles) >> (PCPA_HOLD_SHIFT - 10);
	if (last_ns && parts) { /* none: the counter stood still */
		cycle = ((ns - last_ns) << 10) / parts;
		pcpa_put(&pcpa_hold_cycle, cycle < UINT32_MAX ? (uint32_t)cycle : 0);
	}
	last_cycles = before;
	last_ns = ns;
}

/* The parent's agent may have been in the midst of a look. */
void pcpa_hold_forget(void)
{
	last_ns = 0;
}
