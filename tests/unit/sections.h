/* SPDX-License-Identifier: MIT */
/* What tests of lists that sections serve share. */
#ifndef TESTS_SECTIONS_H
#define TESTS_SECTIONS_H

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "tests/unit/alloc_child.h"
#include <cmocka.h>
#include "allocator/pcp_private.h"

/* Where the mode can not be had at all there is nothing to test. */
static inline void need_sections(void)
{
#ifdef PCPA_RSEQ
	if (pcpa_rseq_why_not())
		skip();
#else
	skip();
#endif
}

static inline bool by_rseq(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	CHECK(pcpa_get_stats(&s) == 0);
	return s.mode == PCPTUNE_MODE_RSEQ;
}

/* Two of the CPUs that we may use. */
static inline void two_cpus(void)
{
	cpu_set_t may, two;
	int n = 0;

	CHECK(!sched_getaffinity(0, sizeof(may), &may));
	CPU_ZERO(&two);
	for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
		if (CPU_ISSET(cpu, &may)) {
			CPU_SET(cpu, &two);
			n++;
		}
	CHECK(!sched_setaffinity(0, sizeof(two), &two));
}

/* To another CPU at every eighth n. */
static inline void migrate(uint64_t n)
{
	static _Thread_local cpu_set_t all;
	cpu_set_t one;
	int cpus, to;

	if (n % 8)
		return;
	if (!CPU_COUNT(&all))
		CHECK(!sched_getaffinity(0, sizeof(all), &all));
	cpus = CPU_COUNT(&all);
	to = (int)(n / 8 % (uint64_t)cpus);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !to--)
			CPU_SET(cpu, &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
}

/* membarrier() fails from now on. */
static inline void forbid_fences(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(*code), code};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

#endif
