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
 * Sections are given up then: no new one begins, since n_cpus is 0 and `stop` of every CPU has a
 * bit that is never cleared; one that was under way ends within an undisturbed time slice, which
 * is waited for. Meanwhile the lists are out of use. From then on they are locked.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/pcp.h"
#include "allocator/rseq.h"

struct pcpa_fast pcpa_fast;

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

#ifdef PCPA_RSEQ

extern const ptrdiff_t libc_rseq_offset __asm__("__rseq_offset") __attribute__((weak));
extern const unsigned int libc_rseq_size __asm__("__rseq_size") __attribute__((weak));

const char *pcpa_rseq_why_not(void)
{
	if (!&libc_rseq_offset || !&libc_rseq_size || !libc_rseq_size)
		return "the libc has not registered restartable sequences";
	pcpa_fast.offset = libc_rseq_offset;
	if ((int32_t)pcpa_fast_cpu() < 0)
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

void pcpa_rseq_start(void)
{
	struct pcpa_fast *f = &pcpa_fast;
	uint32_t cpus = pcpa_heap.n_slots - 1;

	if (wants_locked() || pcpa_rseq_why_not())
		return;
	f->n_zones = pcpa_heap.n_zones;
	for (uint32_t cpu = 0; cpu < cpus; cpu++)
		f->home[cpu] = pcpa_cpu_block(pcpa_heap.home[cpu], cpu);
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++) {
		const struct pcpa_zone *z = &pcpa_heap.zones[i];

		f->zone[i] =
			(struct pcpa_span){z->base, z->n_pages, z->pages, pcpa_cpu_block(i, 0)};
		for (uint32_t slot = 0; slot < cpus; slot++)
			pcpa_words(pcpa_cpu_block(i, slot))->sections = 1;
	}
	pcpa_heap.header->mode = PCPTUNE_MODE_RSEQ;
	__atomic_store_n(&f->n_cpus, cpus, __ATOMIC_RELEASE);
}

static uint32_t paused_cpus;

void pcpa_rseq_pause(void)
{
	paused_cpus = pcpa_fast_cpus();
	__atomic_store_n(&pcpa_fast.n_cpus, 0, __ATOMIC_SEQ_CST);
}

void pcpa_rseq_resume(void)
{
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
		__atomic_store_n(&pcpa_fast.n_cpus, 0, __ATOMIC_SEQ_CST);
		pcpa_put(&pcpa_heap.header->mode, PCPTUNE_MODE_LOCKED);
		for (uint32_t zone = 0; zone < pcpa_heap.n_zones; zone++)
			for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++)
				__atomic_fetch_or(&pcpa_words(pcpa_cpu_block(zone, slot))->stop,
						  PCPA_STOP_FOR_GOOD, __ATOMIC_SEQ_CST);
		while (syscall(SYS_nanosleep, &grace, &grace) && errno == EINTR)
			;
		given_up = 1;
		__atomic_store_n(&settling, 0, __ATOMIC_RELEASE);
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
