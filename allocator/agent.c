/* SPDX-License-Identifier: MIT */
/*
 * The agent thread.
 *
 * It sleeps on the `wake` word of the segment and looks after what no call would do in time:
 * control words for CPUs that do not call, decay once a second while no daemon holds the lease,
 * lists of CPUs that went idle, memory that lay free for a while, the connection to the daemon.
 * With nothing to look after it sleeps long and hangs up the bell; the next allocation rings it.
 *
 * It blocks all signals, holds each lock for one chunk at a time, and calls nothing that
 * allocates. Memory goes back outside of every lock that the program waits for: a block is taken
 * out of the zone, given to the system, and put back as bare.
 *
 * What goes back is decided by time alone. While the program calls, a free block goes back that
 * nobody wanted for COLD_TICKS: what a steady cycle needs, it needs again before that, however much
 * it is. When nobody called for a while (REST_MS, or PCPALLOC_IDLE_MS if that is less), nothing is
 * of use any more: all that is free goes back as fast as the system takes it, the descriptors of
 * free blocks and the places of empty lists with it.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "allocator/agent.h"
#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/events.h"
#include "allocator/hold.h"
#include "allocator/limits.h"
#include "allocator/pcp.h"

#define MS	     UINT64_C(1000000)
#define TICK_MS	     1000u
#define RETURN_MS    250u   /* between two portions of returned memory */
#define RETURN_PAGES 16384u /* a portion: 64 MiB, so 256 MiB a second */
#define RETURN_CALLS 256u   /* and at most so many blocks */
#define HURRY_MS     10u    /* between two portions while nobody calls */
#define COLD_TICKS   5u	    /* free for four to five seconds */
#define REST_MS	     5000u  /* nobody called for so long */
#define LONG_MS	     10000u
#define ATTACHED_MS  5000u /* how late the end of the daemon may be seen */
#define ALONE_MS     20u   /* without the first thread: how late the end may be seen */
#define STACK_SIZE   (256u * 1024)

uint32_t pcpa_agent_bell = 1;

static struct pcpa_lock return_lock;
static uint32_t started; /* atomic: enum stage */

/* What the first calls have done. */
enum stage { NOTHING, ATTACHED, THREAD };

/* What the agent remembers of a (zone, CPU); its own memory, kept over fork. */
struct seen {
	uint64_t mark;	  /* changes with every operation */
	uint64_t idle_ns; /* since when it did not */
	bool folded;	  /* the places of its lists have no memory */
};
static struct seen *seen;

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- returning memory ---- */

/* Free, and with memory behind it. */
static bool has_memory(struct pcpa_zone *z)
{
	return z->free_pages - z->bare_pages - z->returning > 0;
}

/*
 * A block that is out for its return is ours alone. Inside of it no descriptor says anything, which
 * is what it says when it is all zero, so whole pages of them go back, too.
 */
static bool give_back(struct pcpa_zone *z, uint32_t pfn, unsigned order)
{
	uintptr_t from = (uintptr_t)&z->pages[pfn + 1], to = (uintptr_t)&z->pages[pfn];

	if (madvise(pcpa_page_address(z, pfn), (size_t)4096 << order, MADV_DONTNEED))
		return false;
	from = (from + 4095) & ~(uintptr_t)4095;
	to = (to + (sizeof(struct pcpa_page) << order)) & ~(uintptr_t)4095;
	if (from < to)
		madvise((void *)from, to - from, MADV_DONTNEED);
	return true;
}

/* One block; pages returned, 0: nothing to do here. */
static uint64_t return_one(struct pcpa_zone *z, uint32_t cold_ticks, enum pcpa_path path)
{
	struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, pcpa_cpu_slot());
	uint32_t pfn = PCPA_NO_PAGE;
	unsigned order = 0;
	bool gone;

	pcpa_zone_enter(z, path, &b->zctr);
	if (has_memory(z))
		pfn = pcpa_zone_take_cold(z, z->tick - cold_ticks, &order);
	pcpa_zone_leave(z);
	if (pfn == PCPA_NO_PAGE)
		return 0;
	gone = give_back(z, pfn, order);
	pcpa_zone_enter(z, path, &b->zctr);
	pcpa_zone_put_returned(z, pfn, order, gone ? PCPA_BARE : PCPA_BACKED);
	pcpa_zone_leave(z);
	if (gone)
		pcpa_proc_add(&pcpa_heap.proc->pages_given_back, 1u << order);
	return gone ? 1u << order : 0;
}

size_t pcpa_return_pages(uint64_t most, uint32_t cold_ticks, int as_agent)
{
	enum pcpa_path path = as_agent ? PCPA_PATH_AGENT : PCPA_PATH_FREE;
	unsigned calls = as_agent ? RETURN_CALLS : UINT_MAX;
	int saved = errno;
	size_t done = 0;

	/* a signal handler of this thread must not wait for blocks that we have taken out */
	pcpa_in_zone++;
	pcpa_lock_take(&return_lock);
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++) {
		uint64_t n = 1;

		if (!cold_ticks)
			pcpa_depot_empty(&pcpa_heap.zones[i], path,
					 &pcpa_cpu_block(i, pcpa_cpu_slot())->zctr);
		for (; n && done < most && calls; calls--) {
			n = return_one(&pcpa_heap.zones[i], cold_ticks, path);
			done += n;
		}
	}
	pcpa_lock_release(&return_lock);
	if (!--pcpa_in_zone)
		pcpa_deferred_flush();
	errno = saved;
	return done;
}

/* Moves the zones' time and says whether any has memory to give back. */
static bool look_at_zones(bool tick)
{
	bool pending = false;

	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++) {
		struct pcpa_zone *z = &pcpa_heap.zones[i];
		struct pcptune_zctr *ctr = &pcpa_cpu_block(i, pcpa_cpu_slot())->zctr;

		if (tick)
			pcpa_depot_age_shared(z, ctr);
		pcpa_zone_enter(z, PCPA_PATH_AGENT, ctr);
		/* below the marks of an audit */
		if (tick)
			z->tick = (z->tick + 1) & 0x7fffffffu;
		pending |= has_memory(z);
		pcpa_zone_leave(z);
	}
	return pending;
}

/* ---- lists ---- */

static uint64_t activity(const struct pcptune_cpu_block *b)
{
	uint64_t mark = pcpa_get(&b->zctr.alloc_direct) + pcpa_get(&b->zctr.free_direct);

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		mark += pcpa_get(&b->list[i].word);
	return mark;
}

/* In chunks, so that a CPU that comes back does not wait for all of it. */
static void empty_lists(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint64_t mark)
{
	while (pcpa_pcp_pages(b) && activity(b) == mark) {
		uint64_t most = (uint64_t)pcpa_get(&b->pcp.batch) << pcpa_get(&b->pcp.scale_max);

		pcpa_pcp_lock(b);
		pcpa_pcp_drain(z, b, 0, most ? most : 1, PCPA_DRAIN_TRIM, PCPA_PATH_AGENT);
		pcpa_pcp_unlock(b);
	}
}

struct look {
	uint64_t now;
	bool tick, lease;
	bool watch; /* out: something may decay or go idle */
	bool busy;  /* out: somebody called lately */
};

/* Lists that nobody uses: the pages to the zone, the memory of the places to the system. */
static void look_at_idle(struct pcpa_zone *z, struct pcptune_cpu_block *b, struct seen *s,
			 uint64_t idle_ns)
{
	if (idle_ns >= pcpa_heap.idle_ms * MS)
		empty_lists(z, b, s->mark);
	if (s->folded || pcpa_pcp_pages(b))
		return;
	pcpa_pcp_lock(b);
	s->folded = pcpa_pcp_forget_places(b);
	pcpa_pcp_unlock(b);
}

static void look_at_cpu(struct pcpa_zone *z, struct pcptune_cpu_block *b, struct seen *s,
			struct look *l, uint32_t slot)
{
	bool steered = __atomic_load_n(&b->ctl.seq, __ATOMIC_ACQUIRE) != pcpa_get(&b->pcp.ack_seq);
	bool adopted = pcpa_get(&b->pcp.reserved[PCPA_PCP_STATE]) & PCPA_PCP_ADOPTED, busy;
	uint64_t mark = activity(b);

	if (mark != s->mark)
		*s = (struct seen){.mark = mark, .idle_ns = l->now};
	busy = l->now - s->idle_ns < least(REST_MS, pcpa_heap.idle_ms) * MS;
	l->busy |= busy;
	if (!pcpa_pcp_ready(b) && !steered)
		return;
	if (steered || (adopted && !l->lease)) {
		pcpa_pcp_lock(b);
		pcpa_pcp_control(z, b, PCPA_PATH_AGENT);
		pcpa_pcp_unlock(b);
	}
	if (!busy)
		look_at_idle(z, b, s, l->now - s->idle_ns);
	if (l->tick) {
		pcpa_pcp_lock(b);
		pcpa_pcp_fold(b);
		if (!l->lease)
			pcpa_pcp_tick(z, b);
		pcpa_pcp_unlock(b);
		pcpa_depot_age_front(z, slot, &b->zctr);
	}
	pcpa_pcp_report(z);
	l->watch |= busy || pcpa_pcp_pages(b) != 0 || pcpa_depot_has_front(z, slot);
}

static void look_at_cpus(struct look *l)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++)
			look_at_cpu(&pcpa_heap.zones[i], pcpa_cpu_block(i, slot),
				    &seen[(size_t)i * pcpa_heap.n_slots + slot], l, slot);
}

/* ---- the loop ---- */

/* Published first, so that a CPU that begins meanwhile takes it by itself. */
static void learn_cache(void)
{
	pcpa_put(&pcpa_heap.cache_slice, pcpa_cpu_cache_slice());
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
			struct pcptune_cpu_block *b = pcpa_cpu_block(i, slot);

			pcpa_pcp_lock(b);
			if (pcpa_pcp_ready(b))
				pcpa_pcp_cache_flag(b);
			pcpa_pcp_unlock(b);
		}
}

/* How long there is nothing to do. pending: memory is to go back; returned: and some just did. */
static uint64_t sleep_ms(const struct look *l, bool pending, bool returned, enum pcpa_attach attach)
{
	uint64_t ms = attach == PCPA_ATTACH_DONE ? ATTACHED_MS : LONG_MS;
	uint64_t until = pcpa_get(&pcpa_heap.header->lease_until_ns);

	if (l->watch || pending)
		ms = TICK_MS;
	if (l->watch)
		ms = least(ms, pcpa_heap.idle_ms < 10 ? 10 : pcpa_heap.idle_ms);
	if (returned)
		ms = least(ms, l->busy ? RETURN_MS : HURRY_MS);
	if (until && until != UINT64_MAX && until > l->now)
		ms = least(ms, (until - l->now) / MS + 1);
	return least(ms, pcpa_attach_wait_ms());
}

static bool sleep_once(uint32_t wake, uint64_t ms)
{
	struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * MS)};

	return !syscall(SYS_futex, &pcpa_heap.header->wake, FUTEX_WAIT, wake, &t, NULL, 0) ||
	       errno != ETIMEDOUT;
}

/* Looks up now and then for who records us, without doing more often what else there is to do. */
static void sleep_on(uint32_t wake, uint64_t ms)
{
	for (uint64_t left = ms, part; left; left -= part) {
		pcpa_events_attend();
		part = pcpa_events_joined() ? least(left, PCPA_EVENTS_MS) : left;
		if (sleep_once(wake, part))
			return;
	}
}

/*
 * Before a long sleep: from here on the next call that comes to a list or a zone rings, be it a
 * free. False: one came in between and did not.
 */
static bool hang_up(void)
{
	bool calm = true;

	__atomic_store_n(&pcpa_agent_bell, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
			struct pcptune_cpu_block *b = pcpa_cpu_block(i, slot);
			const struct seen *s = &seen[(size_t)i * pcpa_heap.n_slots + slot];

			if (pcpa_pcp_ready(b)) {
				pcpa_pcp_lock(b);
				pcpa_pcp_ring_next(b);
				pcpa_pcp_unlock(b);
			}
			calm &= activity(b) == s->mark;
		}
	return calm;
}

static uint32_t leader_ends; /* atomic: said so */

/*
 * The first thread may end by pthread_exit() while others go on; the process ends with the last of
 * them. We would be that last one, and for ever. True: but for us and the remains of the first
 * nobody is left. *ret_gone: the first one ended.
 */
static bool left_alone(bool *ret_gone)
{
	char text[512], *at;
	int field = 3;

	*ret_gone = false;
	if (pcpa_read_text("/proc/self/stat", text, sizeof(text)) <= 0)
		return false;
	at = strrchr(text, ')');
	if (!at || at[1] != ' ')
		return false;
	at += 2;
	*ret_gone = *at == 'Z';
	for (; *at && field < 20; at++)
		field += *at == ' ';
	return *ret_gone && strtoul(at, NULL, 10) == 2;
}

static void ring(void)
{
	__atomic_fetch_add(&pcpa_heap.header->wake, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &pcpa_heap.header->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void pcpa_agent_leader_ends(void)
{
	if (!pcpa_agent_runs())
		return;
	pcpa_put(&leader_ends, 1);
	ring();
}

static void *agent(void *unused)
{
	uint64_t next_tick = pcpa_now_ns() + TICK_MS * MS;

	(void)unused;
	prctl(PR_SET_NAME, "pcpalloc-agent");
	pcpa_cpu_is_agent();
	learn_cache();
	pcpa_hold_tune();
	for (;;) {
		uint32_t wake = __atomic_load_n(&pcpa_heap.header->wake, __ATOMIC_ACQUIRE);
		struct look l = {.now = pcpa_now_ns(), .lease = pcpa_lease_valid()};
		enum pcpa_attach attach = pcpa_attach_step();
		bool pending, returned, gone;
		uint64_t ms;

		pcpa_proc_add(&pcpa_heap.proc->agent_ticks, 1);
		l.tick = l.now >= next_tick;
		if (l.tick) {
			next_tick = l.now + TICK_MS * MS;
			pcpa_hold_tune();
		}
		look_at_cpus(&l);
		pending = look_at_zones(l.tick);
		returned = pending && pcpa_return_pages(RETURN_PAGES, l.busy ? COLD_TICKS : 0, 1);
		ms = sleep_ms(&l, pending, returned, attach);
		if (left_alone(&gone))
			exit(0);
		if (gone || pcpa_get(&leader_ends))
			ms = least(ms, ALONE_MS);
		if (!l.watch && !pending && !hang_up())
			ms = least(ms, TICK_MS);
		sleep_on(wake, ms ? ms : 1);
	}
	return NULL;
}

/* ---- starting ---- */

static bool make_seen(void)
{
	size_t size = (size_t)pcpa_heap.n_zones * pcpa_heap.n_slots * sizeof(*seen);
	void *map;

	if (seen)
		return true;
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return false;
	seen = map;
	return true;
}

/* With signals blocked, which the thread inherits. A small stack, or whatever the libc accepts. */
static bool make_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, old;
	int error;

	if (pthread_attr_init(&attr))
		return false;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	error = pthread_create(&thread, &attr, agent, NULL);
	if (error == EINVAL) {
		/* a program with much thread-local data needs more than that */
		pthread_attr_setstacksize(&attr, 16 * STACK_SIZE);
		error = pthread_create(&thread, &attr, agent, NULL);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return !error;
}

/*
 * A thread changes what a process may do (unshare, set*id with capabilities of its own) and what
 * libc's locks cost it. As long as everything fits into the first block of each zone there is
 * nothing that it could give back, so small programs stay as they are.
 */
static bool wants_thread(void)
{
	if (pcpa_heap.agent != PCPA_AGENT_LATER)
		return pcpa_heap.agent == PCPA_AGENT_AT_ONCE;
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		if (pcpa_get(&pcpa_heap.zones[i].grown) > PCPA_BLOCK)
			return true;
	return false;
}

static bool advance(uint32_t from)
{
	return __atomic_compare_exchange_n(&started, &from, from + 1, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_RELAXED);
}

void pcpa_agent_attend(void)
{
	uint32_t rung = 1;
	int saved = errno;

	if (pcpa_in_zone || !__atomic_compare_exchange_n(&pcpa_agent_bell, &rung, 0, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	if (advance(NOTHING))
		pcpa_attach_step();
	if (!wants_thread()) {
		errno = saved;
		return;
	}
	if (!advance(ATTACHED))
		ring();
	else if (!(make_seen() && make_thread()))
		__atomic_fetch_or(&pcpa_heap.header->flags, PCPTUNE_SEG_NO_AGENT, __ATOMIC_RELAXED);
	errno = saved;
}

void pcpa_agent_wake(void)
{
	uint32_t rung = 1;
	int saved = errno;

	if (pcpa_agent_runs() && __atomic_compare_exchange_n(&pcpa_agent_bell, &rung, 0, false,
							     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		ring();
	errno = saved;
}

bool pcpa_agent_runs(void)
{
	return pcpa_get(&started) == THREAD;
}

/* ---- fork ---- */

void pcpa_agent_lock(void)
{
	pcpa_attach_lock();
	pcpa_lock_take(&return_lock);
}

void pcpa_agent_unlock(void)
{
	pcpa_lock_release(&return_lock);
	pcpa_attach_unlock();
}

void pcpa_agent_forget(void)
{
	pcpa_lock_forget_waiters(&return_lock);
	pcpa_attach_forget();
	pcpa_hold_forget();
	pcpa_put(&started, NOTHING);
	pcpa_put(&leader_ends, 0);
	pcpa_put(&pcpa_agent_bell, 1);
}
