/* SPDX-License-Identifier: MIT */
/*
 * The lock of a CPU's lists (pcp_private.h says what its word holds). Whoever serves a call tries
 * it, waits a little in one case, and else goes to the zone; only those who must have the lists
 * (agent, trim, audit, fork) wait for as long as it takes.
 */
#include <errno.h>
#include <linux/futex.h>

#include "allocator/events.h"
#include "allocator/pcp_locked.h"
#include "allocator/pcp_private.h"
#include "allocator/track.h"

#define SPINS	 100u
#define YIELDS	 20u
#define SLEEP_NS 1000000 /* most that a call waits for the lists of its CPU */

struct pcpa_locked pcpa_locked;
static bool begun; /* written once, as pcpa_heap */

void pcpa_locked_begin(void)
{
	uint32_t cpus = pcpa_heap.n_slots - 1;

	pcpa_locked.offset = pcpa_cpu_place();
	for (uint32_t cpu = 0; cpu < cpus; cpu++) {
		struct pcpa_locked_row *row = &pcpa_locked.row[cpu];

		row->zone = &pcpa_heap.zones[pcpa_heap.home[cpu]];
		row->block = pcpa_cpu_block(row->zone->id, cpu);
	}
	begun = true;
	pcpa_locked_show(true);
}

const struct pcpa_locked_row *pcpa_locked_ask(void)
{
	uint32_t n = __atomic_load_n(&pcpa_locked.n_cpus, __ATOMIC_ACQUIRE), cpu;

	if (!n)
		return NULL;
	cpu = pcpa_cpu_ask();
	return cpu < n ? &pcpa_locked.row[cpu] : NULL;
}

void pcpa_locked_show(bool on)
{
	uint32_t n = on && begun && !pcpa_heap.events ? pcpa_heap.n_slots - 1 : 0;

	__atomic_store_n(&pcpa_locked.n_cpus, n, __ATOMIC_SEQ_CST);
}

void pcpa_locked_lay(struct pcptune_cpu_block *b)
{
	struct pcptune_rule_state s;

	if (pcpa_by_sections(b))
		return;
	pcpa_state_load(&b->pcp, &s);
	pcptune_rules_light(&s, &pcpa_words(b)->light);
	pcpa_put(&pcpa_words(b)->kind, pcpa_pcp_has(&b->pcp, PCPTUNE_RT_COUNT_MIN) ? PCPA_ASKS : 0);
}

/*
 * Holds are short, unless the holder lost its CPU: then yield, and then sleep, since to yield gives
 * nothing to a thread of lower priority, which the holder may be.
 */
static void wait_for(struct pcptune_cpu_block *b)
{
	for (unsigned n = 0; !pcpa_pcp_try(b); n++) {
		if (n % SPINS != SPINS - 1)
			pcpa_relax();
		else if (n < SPINS * YIELDS)
			pcpa_yield();
		else
			pcpa_rest();
	}
}

void pcpa_pcp_lock(struct pcptune_cpu_block *b)
{
	wait_for(b);
	if (pcpa_by_sections(b))
		pcpa_sections_stop(b);
}

bool pcpa_pcp_trylock(struct pcptune_cpu_block *b)
{
	if (!pcpa_pcp_try(b))
		return false;
	if (pcpa_by_sections(b))
		pcpa_sections_stop(b);
	return true;
}

void pcpa_pcp_unlock(struct pcptune_cpu_block *b)
{
	if (pcpa_by_sections(b)) {
		pcpa_sections_go(pcpa_zone_of_block(b), b);
	} else {
		pcpa_track_look(b);
		pcpa_pcp_edges(b);
	}
	pcpa_pcp_leave(b);
}

void pcpa_pcp_lock_all(void)
{
	uint32_t n = pcpa_heap.n_zones * pcpa_heap.n_slots;
	bool any = false;

	for (uint32_t i = 0; i < n; i++) {
		struct pcptune_cpu_block *b = pcpa_cpu_block(0, i);

		wait_for(b);
		any |= pcpa_by_sections(b);
		if (pcpa_by_sections(b))
			pcpa_sections_ask(b);
	}
	if (any)
		pcpa_rseq_fence(-1);
	for (uint32_t i = 0; i < n && any; i++)
		if (pcpa_by_sections(pcpa_cpu_block(0, i)))
			pcpa_sections_stopped(pcpa_cpu_block(0, i));
}

void pcpa_pcp_unlock_all(void)
{
	for (uint32_t i = pcpa_heap.n_zones * pcpa_heap.n_slots; i-- > 0;)
		pcpa_pcp_unlock(pcpa_cpu_block(0, i));
}

void pcpa_pcp_wake(struct pcptune_cpu_block *b)
{
	int saved = errno;

	pcpa_put(&b->pcp.sleepers, 0);
	syscall(SYS_futex, &b->pcp.lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = saved;
}

/* One attempt to sleep until the lock is free; `held` is how it was seen. */
static void sleep_for(struct pcptune_cpu_block *b, uint32_t held)
{
	struct timespec most = {0, SLEEP_NS};
	int saved = errno;

	pcpa_put(&b->pcp.sleepers, 1);
	syscall(SYS_futex, &b->pcp.lock, FUTEX_WAIT_PRIVATE, held, &most, NULL, 0);
	errno = saved;
}

/*
 * The caller's try. Whoever holds the lists of our CPU has most likely lost this very CPU to us in
 * the midst of it and, left alone, would keep them locked until its turn comes again: millions of
 * calls that all go to the zone. A yield does not bring it back, since the scheduler prefers those
 * who had less time than it. So sleep until it lets go: once all who come by here sleep, the CPU is
 * its own. If that takes long the holder is elsewhere: to the zone, as the kernel does. And at once
 * for a remote owner, and below a signal handler that interrupted the holder.
 */
__attribute__((cold)) bool pcpa_pcp_enter_hard(struct pcptune_cpu_block *b)
{
	uint32_t held = pcpa_get(&b->pcp.lock);

	if (pcpa_in_zone || held == pcpa_pcp_me() || pcpa_get(&pcpa_words(b)->stop))
		return false;
	if (held)
		sleep_for(b, held);
	if (!pcpa_pcp_try(b))
		return false;
	/* whoever slept can not know whether others still do */
	if (held)
		pcpa_put(&b->pcp.sleepers, 1);
	return true;
}

bool pcpa_pcp_enter(struct pcptune_cpu_block *b)
{
	pcpa_events_room(b);
	return pcpa_pcp_try(b) || pcpa_pcp_enter_hard(b);
}
