/* SPDX-License-Identifier: MIT */
/*
 * fork.
 *
 * A child that is made while another thread holds a lock of ours would find it held for ever, so
 * the forking thread takes all of them first, with signals blocked: first allocation, attaching,
 * return of memory, lists by (zone, slot), zones. Handlers of other libraries that run in between
 * and allocate get a clean failure and deferred frees, since pcpa_in_zone is set.
 *
 * The child has all blocks and lists as copies of its own, but the segment and the descriptors are
 * shared with its parent: it maps a segment of its own in the same place, closes the socket, and
 * begins without an agent.
 *
 * The audit takes the same locks of lists and zones, without the rest.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "allocator/agent.h"
#include "allocator/deferred.h"
#include "allocator/fork.h"
#include "allocator/pcp.h"

/* Between prepare and the two others, written under fork_lock. */
static struct pcpa_lock fork_lock;
static sigset_t old_mask;
static bool took_all;

void pcpa_lock_all(void)
{
	pcpa_pcp_lock_all();
	pcpa_in_zone++;
	for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
		pcpa_lock_take(&pcpa_heap.zones[zone].lock);
}

void pcpa_unlock_all(void)
{
	for (uint32_t zone = pcpa_heap.n_zones; zone-- > 0;) {
		pcpa_zone_publish(&pcpa_heap.zones[zone]);
		pcpa_lock_release(&pcpa_heap.zones[zone].lock);
	}
	pcpa_pcp_unlock_all();
	if (!--pcpa_in_zone)
		pcpa_deferred_flush();
}

static void before(void)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pcpa_lock_take(&fork_lock);
	old_mask = old;
	pcpa_heap_lock();
	took_all = pcpa_heap.ready;
	if (!took_all)
		return;
	pcpa_agent_lock();
	pcpa_lock_all();
	/* handlers of others that run from here on, in the child before ours even, keep out */
	__atomic_store_n(&pcpa_heap.ready, PCPA_FORKING, __ATOMIC_RELEASE);
	pcpa_rseq_pause();
	pcpa_segment_snapshot();
}

/* Common end: the locks, then signals. */
static void release(void)
{
	sigset_t old = old_mask;

	if (took_all) {
		pcpa_rseq_resume();
		__atomic_store_n(&pcpa_heap.ready, 1, __ATOMIC_RELEASE);
		pcpa_unlock_all();
		pcpa_agent_unlock();
	}
	pcpa_heap_unlock();
	pcpa_lock_release(&fork_lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void after_in_parent(void)
{
	if (took_all) {
		pcpa_proc_add(&pcpa_heap.proc->forks, 1);
		pcpa_segment_drop_snapshot();
	}
	release();
}

static void after_in_child(void)
{
	pcpa_lock_forget_waiters(&fork_lock);
	pcpa_heap_forget_waiters();
	if (took_all) {
		for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
			pcpa_lock_forget_waiters(&pcpa_heap.zones[zone].lock);
		pcpa_agent_forget();
		pcpa_rseq_renew();
		pcpa_segment_renew();
	}
	release();
}

int pcpa_fork_register(void)
{
	static bool done;

	if (__atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL))
		return 0;
	if (!pthread_atfork(before, after_in_parent, after_in_child))
		return 0;
	__atomic_store_n(&done, false, __ATOMIC_RELEASE);
	return -ENOMEM;
}

/*
 * The earlier, the better: handlers run last registered first, and one that waits for a lock below
 * which another thread allocates must not do so while we hold ours.
 */
__attribute__((constructor(101))) static void register_early(void)
{
	pcpa_fork_register();
}
