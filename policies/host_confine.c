/* SPDX-License-Identifier: MIT */
/*
 * How the process of a foreign policy is shut in.
 *
 * A policy is a function of numbers to numbers. What it needs of the system is memory, the clock,
 * one socket, and a way to end; all else is an error or an attempt, and both end it, with a signal
 * that says which. So the rows below are few, each for a reason, and what is not in them is not
 * allowed: the filter need not know what harm a new system call could do.
 *
 * There are two filters, since constructors run while the linker still needs files. The first lets
 * files be opened for reading; the second, put on top before the first function of the policy is
 * called, does not. Neither lets a process be made, signalled (but itself), looked into or become
 * another program, or a socket be made: what is read can go nowhere but to the daemon.
 *
 * Some calls that libc makes by itself, of a function that looks harmless, fail instead of ending
 * the process: localtime() reads a file, printf() asks whether it has a terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "policies/host_confine.h"

#define NOBODY	  65534u
#define FILES_MAX 64u

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* ---- limits and user ---- */

static void limit(int what, rlim_t value)
{
	struct rlimit l = {value, value};

	setrlimit((__rlimit_resource_t)what, &l);
}

/* Sanitizers reserve more address space than there is; they are not held to it. */
static void limit_memory(uint64_t more)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f) {
		if (fscanf(f, "%lu", &pages) != 1)
			pages = 0;
		fclose(f);
	}
	limit(RLIMIT_AS, (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more);
#else
	(void)more;
#endif
}

void confine_limits(uint64_t memory)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	limit(RLIMIT_CORE, 0);
	limit(RLIMIT_FSIZE, 0);
	limit(RLIMIT_NPROC, 0);
	limit(RLIMIT_NOFILE, FILES_MAX);
	limit_memory(memory);
}

static int drop_capabilities(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0}};

	return syscall(SYS_capset, &head, none) ? -errno : 0;
}

int confine_user(void)
{
	if (geteuid())
		return drop_capabilities();
	if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return -errno;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* forgotten with the user */
	return drop_capabilities();
}

/* ---- system calls ---- */

#if defined(ARCH) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

enum verdict {
	ALLOWED,
	LOADING,      /* allowed in that stage, fails in the next */
	LOADING_READ, /* the same, if the flags in argument 2 are those of reading */
	FAILS,
	ON_ITSELF, /* if argument 0 is this process */
};

static const struct {
	uint32_t call;
	enum verdict verdict;
} rows[] = {
	/* the socket, and what is at 0, 1 and 2: /dev/null */
	{SYS_read, ALLOWED},
	{SYS_write, ALLOWED},
	{SYS_writev, ALLOWED},
	{SYS_sendto, ALLOWED},
	{SYS_recvmsg, ALLOWED},
	{SYS_close, ALLOWED},
	/* memory: of ours, and the area that came by the socket */
	{SYS_brk, ALLOWED},
	{SYS_mmap, ALLOWED},
	{SYS_munmap, ALLOWED},
	{SYS_mremap, ALLOWED},
	{SYS_mprotect, ALLOWED},
	{SYS_madvise, ALLOWED},
	{SYS_futex, ALLOWED},
	{SYS_getrandom, ALLOWED}, /* of malloc */
	{SYS_sysinfo, ALLOWED},	  /* of qsort */
	/* the clock, where the vdso does not do; a policy that sleeps is late, and that is seen */
	{SYS_clock_gettime, ALLOWED},
	{SYS_clock_getres, ALLOWED},
	{SYS_gettimeofday, ALLOWED},
	{SYS_clock_nanosleep, ALLOWED},
	{SYS_nanosleep, ALLOWED},
	{SYS_ppoll, ALLOWED},
	{SYS_restart_syscall, ALLOWED},
#ifdef SYS_pause
	{SYS_time, ALLOWED},
	{SYS_pause, ALLOWED},
#endif
	/* who and how; abort() is a signal to itself */
	{SYS_getpid, ALLOWED},
	{SYS_gettid, ALLOWED},
	{SYS_getuid, ALLOWED},
	{SYS_geteuid, ALLOWED},
	{SYS_rt_sigaction, ALLOWED},
	{SYS_rt_sigprocmask, ALLOWED},
	{SYS_rt_sigreturn, ALLOWED},
	{SYS_tgkill, ON_ITSELF},
	/* the end */
	{SYS_exit, ALLOWED},
	{SYS_exit_group, ALLOWED},
	/* what the linker does to load a file, and libc now and then */
	{SYS_openat, LOADING_READ},
	{SYS_pread64, LOADING},
	{SYS_newfstatat, LOADING},
	{SYS_fstat, LOADING},
	{SYS_lseek, LOADING},
	{SYS_readlinkat, LOADING},
	{SYS_faccessat, LOADING},
	{SYS_getcwd, LOADING},
	{SYS_uname, LOADING},
	{SYS_seccomp, LOADING},
#ifdef SYS_open
	{SYS_readlink, LOADING},
	{SYS_access, LOADING},
	{SYS_open, FAILS},
	{SYS_stat, FAILS},
#endif
	{SYS_ioctl, FAILS},
	{SYS_fcntl, FAILS},
	{SYS_sched_yield, FAILS},
	{SYS_sched_getaffinity, FAILS},
};

#define N_ROWS	     (sizeof(rows) / sizeof(rows[0]))
#define PER_ROW_MAX  5u
#define HEAD_MAX     6u
#define X32_BIT	     0x40000000u
#define WRITES	     (O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY))
#define AT(member)   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define SAY(what)    BPF_STMT(BPF_RET | BPF_K, what)
#define IS(k, t, f)  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), (t), (f))
#define HAS(k, t, f) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (k), (t), (f))
#define NO	     SAY(SECCOMP_RET_ERRNO | EACCES)
#define YES	     SAY(SECCOMP_RET_ALLOW)
#define END	     SAY(SECCOMP_RET_KILL_PROCESS)

struct program {
	struct sock_filter code[HEAD_MAX + N_ROWS * PER_ROW_MAX + 1];
	unsigned short n;
};

static void put(struct program *p, const struct sock_filter *code, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p->code[p->n++] = code[i];
}

#define PUT(p, ...)                                            \
	do {                                                   \
		const struct sock_filter c_[] = {__VA_ARGS__}; \
		put((p), c_, sizeof(c_) / sizeof(c_[0]));      \
	} while (0)

/* Low halves of arguments lie first: both machines that we know are little-endian. */
static void put_row(struct program *p, uint32_t call, enum verdict verdict,
		    enum confine_stage stage)
{
	const bool loading = stage == CONFINE_LOADING;

	if (verdict == ON_ITSELF)
		PUT(p, IS(call, 0, 4), AT(args[0]), IS((uint32_t)getpid(), 0, 1), YES, END);
	else if (verdict == LOADING_READ && loading)
		PUT(p, IS(call, 0, 4), AT(args[2]), HAS(WRITES, 1, 0), YES, NO);
	else if (verdict == ALLOWED || (verdict == LOADING && loading))
		PUT(p, IS(call, 0, 1), YES);
	else
		PUT(p, IS(call, 0, 1), NO);
}

int confine_calls(enum confine_stage stage)
{
	static struct program p;
	struct sock_fprog prog;

	p.n = 0;
	PUT(&p, AT(arch), IS(ARCH, 1, 0), END, AT(nr), HAS(X32_BIT, 0, 1), END);
	for (size_t i = 0; i < N_ROWS; i++)
		put_row(&p, rows[i].call, rows[i].verdict, stage);
	PUT(&p, END);
	prog = (struct sock_fprog){p.n, p.code};
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) ? -errno : 0;
}

#else

int confine_calls(enum confine_stage stage)
{
	(void)stage;
	return -ENOTSUP;
}

#endif
