/* SPDX-License-Identifier: MIT */
/*
 * Allocator tests in children of their own.
 *
 * The allocator sets itself up once a process, from the environment. So each test runs in a child
 * that was forked before any allocation: in_child() returns what the child found wrong, NULL for
 * nothing. In the child, CHECK() ends it at the first breach.
 */
#ifndef TESTS_ALLOC_CHILD_H
#define TESTS_ALLOC_CHILD_H

#include <pcpalloc.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                           \
	do {                                                                       \
		if (!(condition)) {                                                \
			dprintf(2, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                  \
		}                                                                  \
	} while (0)

#define CHECK_AUDIT()                                                                 \
	do {                                                                          \
		const char *breach = "";                                              \
		int found_ = pcpa_audit(&breach);                                     \
		if (found_)                                                           \
			dprintf(2, "%s:%d: audit: %s\n", __FILE__, __LINE__, breach); \
		if (found_)                                                           \
			_exit(1);                                                     \
	} while (0)

/* The test runner catches these and would go on to the next test, here as well. */
static inline void let_it_crash(void)
{
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};

	for (size_t i = 0; i < sizeof(crashes) / sizeof(*crashes); i++)
		signal(crashes[i], SIG_DFL);
}

/* Exit status of f in a child with these "NAME=VALUE" settings; 256 + signal when killed. */
static inline int in_child(void (*f)(void), const char *const *settings)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		let_it_crash();
		setenv("PCPTUNE_SOCKET", "", 1);
		for (; settings && *settings; settings++)
			putenv(strdup(*settings));
		alarm(50);
		f();
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* To run `pinned` in a child on the one CPU that it happens to be on. */
static void (*pinned)(void) __attribute__((unused));

static inline void pinned_child(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	pinned();
}

#define SETTINGS(...)             \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

#endif
