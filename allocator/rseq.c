/* SPDX-License-Identifier: MIT */
/*
 * Which mode, and the fence.
 *
 * The libc registers each thread's rseq area; we only use it (weak references: an older libc has
 * none). The fence is membarrier(2), which must be registered once a process. Where either is
 * missing, where a tool would not see through sections (sanitizers; valgrind and emulators refuse
 * rseq by themselves), and with virtual CPUs, the lists are locked.
 *
 * A program may lock itself in (seccomp) after it began to allocate, and then a fence fails.
 * Sections are given up then: no new one begins, since n_cpus of every table is 0; one that was
 * under way ends within an undisturbed time slice, which is waited for. Meanwhile the lists are out
 * of use. From then on they are locked.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/pcp.h"
#include "allocator/pcp_locked.h"
#include "allocator/rings.h"
#include "allocator/rseq.h"

struct pcpa_fast pcpa_fast;
struct pcpa_lists pcpa_home_lists[PCPTUNE_N_LISTS];

/* All zero, so mere address space: nothing to pop, and no block is of its zone. */
static struct pcpa_no_list {
	struct pcptune_list list;
	char places[PCPA_INLINE_RING + PCPA_RING_BYTES];
} idle;

/* The same for good: in PCPA_LISTS it is never replaced. */
static struct pcpa_no_list dead;

/* As data, so that a section that comes before us finds it. Ranges are an extension. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#define IDLE                                                            \
	{                                                               \
		.of_cpu = { [0 ... PCPA_INLINE_CPUS - 1] = &idle.list } \
	}
struct pcpa_inline_lists PCPA_LISTS[PCPA_INLINE_ORDERS]
	__attribute__((aligned(64))) = {IDLE, IDLE, IDLE, IDLE};
#pragma GCC diagnostic pop
/* Our own name for it, which is not looked up in the program. */
extern __typeof__(PCPA_LISTS) inline_lists
	__attribute__((alias(PCPA_TEXT(PCPA_LISTS)), visibility("hidden")));

/* Are the hot sections of any use? */
#ifdef PCPA_RSEQ
#define HOT pcpa_area_is_hot()
#else
#define HOT false
#endif

static uint32_t settling, given_up;
static struct pcpa_lock give_up_lock;

#define GRACE_NS 20000000

#ifndef MEMBARRIER_CMD_FLAG_CPU
#define MEMBARRIER_CMD_FLAG_CPU 1
#endif
#define FENCE	       (1 << 7) /* MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ */
#define FENCE_REGISTER (1 << 8)

static int membarrier_call(int command, unsigned flags, int cpu)
{
	int saved = errno, n = (int)syscall(SYS_membarrier, command, flags, cpu);

	errno = saved;
	return n;
}

#ifdef PCPA_HAS_AREA

extern const ptrdiff_t libc_rseq_offset __asm__("__rseq_offset") __attribute__((weak));
extern const unsigned int libc_rseq_size __asm__("__rseq_size") __attribute__((weak));

/* 1: yes, 0: this thread has none, -1: the libc has none. */
static int find_area(void)
{
	if (!&libc_rseq_offset || !&libc_rseq_size || !libc_rseq_size)
		return -1;
	pcpa_fast.offset = libc_rseq_offset;
	return (int32_t)pcpa_fast_cpu() >= 0;
}

#else

static int find_area(void)
{
	return -1;
}

#endif

bool pcpa_rseq_area(void)
{
	return find_area() > 0;
}

#ifdef PCPA_RSEQ

const char *pcpa_rseq_why_not(void)
{
	int found = find_area();

	if (found < 0)
		return "the libc has not registered restartable sequences";
	if (!found)
		return "this thread is not registered for restartable sequences";
	if (membarrier_call(FENCE_REGISTER, 0, 0) ||
	    membarrier_call(FENCE, MEMBARRIER_CMD_FLAG_CPU, 0) || membarrier_call(FENCE, 0, 0))
		return "membarrier with a fence for restartable sequences is refused";
	return NULL;
}

#else

const char *pcpa_rseq_why_not(void)
{
	return "this build has no sections: another machine, an old compiler, or a sanitizer";
}

#endif

/* Is another mode asked for? */
static bool wants_locked(void)
{
	const char *mode = secure_getenv("PCPALLOC_MODE"), *check = secure_getenv("PCPALLOC_CHECK");

	return (mode && !strcmp(mode, "locked")) || (check && !strcmp(check, "1")) ||
	       pcpa_heap.n_virtual;
}

/* One zone: all CPUs are at home in it. Else a table for each, beside that of the homes. */
static bool make_tables(void)
{
	size_t size = sizeof(pcpa_home_lists) * pcpa_heap.n_zones;
	struct pcpa_lists *lists = pcpa_home_lists;

	if (pcpa_heap.n_zones > 1)
		lists = mmap(NULL, size, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (lists == MAP_FAILED)
		return false;
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		pcpa_fast.zone[i] = lists + (size_t)i * PCPTUNE_N_LISTS;
	return true;
}

/* A section looks at n_cpus of its table; our fast path needs to know that `offset` is set. */
static void set_cpus(uint32_t n)
{
	for (unsigned list = 0; list < PCPTUNE_N_LISTS; list++) {
		__atomic_store_n(&pcpa_home_lists[list].n_cpus, n, __ATOMIC_RELEASE);
		for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
			__atomic_store_n(&pcpa_fast.zone[i][list].n_cpus, n, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&pcpa_fast.n_cpus, n, __ATOMIC_SEQ_CST);
	__atomic_store_n(&pcpa_fast.orders, n && HOT ? PCPTUNE_COSTLY_ORDER + 1 : 0,
			 __ATOMIC_RELEASE);
}

static void show_entry(void **entry, void *l)
{
	void *old = __atomic_load_n(entry, __ATOMIC_RELAXED);

	while (old != &dead.list &&
	       !__atomic_compare_exchange_n(entry, &old, l, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_RELAXED))
		;
}

/* Whoever is about to show a list at this moment does not bring it back. */
static void end_entries(void)
{
	for (unsigned i = 0; i < PCPA_OWN_ROWS * PCPA_OWN_ROW; i++)
		__atomic_store_n(&pcpa_fast.own[i], &dead.list, __ATOMIC_SEQ_CST);
	for (unsigned list = 0; list < PCPA_INLINE_ORDERS; list++)
		for (unsigned cpu = 0; cpu < PCPA_INLINE_CPUS; cpu++)
			__atomic_store_n(&inline_lists[list].of_cpu[cpu], &dead.list,
					 __ATOMIC_SEQ_CST);
}

void pcpa_rseq_show(struct pcptune_cpu_block *b)
{
	uint32_t index = (uint32_t)(b - pcpa_cpu_block(0, 0)), zone = index / pcpa_heap.n_slots,
		 cpu = index % pcpa_heap.n_slots;

	for (unsigned list = 0; list < PCPTUNE_N_LISTS; list++) {
		struct pcptune_list *l = &b->list[list];

		if (pcpa_get(&pcpa_words(b)->stop) || !l->private_ring)
			l = &idle.list;
		else
			l = pcpa_twin(l);
		__atomic_store_n(&pcpa_fast.zone[zone][list].of_cpu[cpu], l, __ATOMIC_RELEASE);
		if (pcpa_heap.home[cpu] != zone)
			continue;
		__atomic_store_n(&pcpa_home_lists[list].of_cpu[cpu], l, __ATOMIC_RELEASE);
		if (list < PCPA_OWN_ROW)
			show_entry(&pcpa_fast.own[cpu * PCPA_OWN_ROW + list], l);
		if (list < PCPA_INLINE_ORDERS && cpu < PCPA_INLINE_CPUS)
			show_entry(&inline_lists[list].of_cpu[cpu], l);
	}
}

void pcpa_rseq_start(void)
{
	uint32_t cpus = pcpa_heap.n_slots - 1;

	if (wants_locked() || pcpa_rseq_why_not() || !pcpa_rings_possible() || !make_tables())
		return;
	for (unsigned i = 0; i < PCPA_OWN_ROWS * PCPA_OWN_ROW; i++)
		pcpa_fast.own[i] = &idle.list;
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		for (uint32_t slot = 0; slot < cpus; slot++) {
			struct pcptune_cpu_block *b = pcpa_cpu_block(i, slot);

			pcpa_words(b)->kind = PCPA_BY_SECTIONS;
			pcpa_rseq_show(b);
		}
	for (unsigned list = 0; list < PCPA_INLINE_ORDERS; list++)
		inline_lists[list].align = (PCPA_PAGE_SIZE << list) - 1;
	pcpa_heap.header->mode = PCPTUNE_MODE_RSEQ;
	set_cpus(cpus);
}

static uint32_t paused_cpus;

void pcpa_rseq_pause(void)
{
	paused_cpus = pcpa_fast_cpus();
	__atomic_store_n(&pcpa_fast.n_cpus, 0, __ATOMIC_SEQ_CST);
	pcpa_locked_show(false);
}

void pcpa_rseq_resume(void)
{
	pcpa_locked_show(true);
	__atomic_store_n(&pcpa_fast.n_cpus, paused_cpus, __ATOMIC_SEQ_CST);
}

void pcpa_rseq_renew(void)
{
	if (paused_cpus)
		membarrier_call(FENCE_REGISTER, 0, 0);
}

bool pcpa_rseq_settling(void)
{
	return __atomic_load_n(&settling, __ATOMIC_ACQUIRE);
}

/*
 * pcpa_in_zone keeps slow paths of signal handlers out, which could want this lock, too. A fork
 * can not come in between: it takes every pcp.lock first, and whoever is here holds one.
 */
static void give_up(void)
{
	struct timespec grace = {0, GRACE_NS};
	int saved = errno;

	pcpa_in_zone++;
	pcpa_lock_take(&give_up_lock);
	if (!given_up) {
		__atomic_store_n(&settling, 1, __ATOMIC_SEQ_CST);
		set_cpus(0);
		end_entries();
		pcpa_put(&pcpa_heap.header->mode, PCPTUNE_MODE_LOCKED);
		while (syscall(SYS_nanosleep, &grace, &grace) && errno == EINTR)
			;
		given_up = 1;
		__atomic_store_n(&settling, 0, __ATOMIC_RELEASE);
		pcpa_locked_begin();
	}
	pcpa_lock_release(&give_up_lock);
	pcpa_in_zone--;
	errno = saved;
}

void pcpa_rseq_fence(int cpu)
{
	if (membarrier_call(FENCE, cpu < 0 ? 0 : MEMBARRIER_CMD_FLAG_CPU, cpu < 0 ? 0 : cpu))
		give_up();
}
