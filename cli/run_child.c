/* SPDX-License-Identifier: MIT */
/*
 * The program of `pcptune run`: start, signals, job control, end.
 *
 * The program stays in our process group, so that it owns the terminal as it would without us.
 * What the terminal sends (^C, ^Z, ^\, a new size, a hang-up) reaches the whole group; we only have
 * to outlive it. What a process sends to us is meant for the program and is passed on. The kernel
 * marks its own signals with SI_KERNEL, which is how the two are told apart.
 *
 * All signals of the table, and the real-time ones, are blocked before the program is started and
 * taken with sigwaitinfo(), so nothing here is asynchronous and nothing is lost. A program that
 * stops on a terminal signal stops us as well, so that the shell sees the job stopped; its SIGSTOP
 * does not, because whoever continues the program then does not know of us.
 */
#include "cli/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int passed_on[] = {SIGINT,	 SIGTERM, SIGHUP,  SIGQUIT,  SIGUSR1,
				SIGUSR2, SIGALRM, SIGTSTP, SIGWINCH, SIGCONT};

/* The state of signals that the program is to start with. */
struct signals {
	sigset_t mask;
	struct sigaction chld;
};

static void take_signals(sigset_t *taken, struct signals *before)
{
	struct sigaction dfl = {.sa_handler = SIG_DFL};
	size_t i;
	int sig;

	sigemptyset(taken);
	for (i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
		sigaddset(taken, passed_on[i]);
	for (sig = SIGRTMIN; sig <= SIGRTMAX; sig++)
		sigaddset(taken, sig);
	sigaddset(taken, SIGCHLD);
	sigprocmask(SIG_BLOCK, taken, &before->mask);
	/* ignored, it would make the kernel throw the exit status away */
	sigaction(SIGCHLD, &dfl, &before->chld);
}

static void give_back_signals(const struct signals *before)
{
	sigaction(SIGCHLD, &before->chld, NULL);
	sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

__attribute__((noreturn)) static void become_program(char **argv, const struct run_env *env,
						     size_t n_env, const struct signals *before,
						     int fd)
{
	size_t i;
	int e;

	for (i = 0; i < n_env; i++) {
		if (env[i].value)
			setenv(env[i].name, env[i].value, 1);
		else
			unsetenv(env[i].name);
	}
	give_back_signals(before);
	execvp(argv[0], argv);
	e = errno;
	while (write(fd, &e, sizeof(e)) < 0 && errno == EINTR)
		;
	_exit(e == ENOENT || e == ENOTDIR ? 127 : 126);
}

/* errno of exec in the child: nothing comes when it succeeded, the pipe then closes. */
static int exec_error(int fd)
{
	int e = 0;
	ssize_t n;

	do
		n = read(fd, &e, sizeof(e));
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(e) ? e : 0;
}

static bool stops_the_job(int sig)
{
	return sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU;
}

/* true: the program has ended, *status is its wait status, *use what it and its children used. */
static bool child_changed(pid_t pid, int *status, struct rusage *use)
{
	while (wait4(pid, status, WNOHANG | WUNTRACED, use) == pid) {
		if (!WIFSTOPPED(*status))
			return true;
		if (stops_the_job(WSTOPSIG(*status)))
			raise(SIGSTOP);
	}
	return false;
}

static int wait_for_end(pid_t pid, const sigset_t *taken, struct rusage *use)
{
	siginfo_t info;
	int status, sig;

	for (;;) {
		sig = sigwaitinfo(taken, &info);
		if (sig < 0) /* interrupted: a stop and continue */
			continue;
		if (sig == SIGCHLD) {
			if (child_changed(pid, &status, use))
				return status;
		} else if (info.si_code == SI_QUEUE) {
			sigqueue(pid, sig, info.si_value);
		} else if (info.si_code != SI_KERNEL) {
			kill(pid, sig);
		}
	}
}

static double seconds(const struct timespec *a, const struct timespec *b)
{
	return (double)(b->tv_sec - a->tv_sec) + (double)(b->tv_nsec - a->tv_nsec) / 1e9;
}

static uint64_t microseconds(const struct timeval *t)
{
	return (uint64_t)t->tv_sec * 1000000u + (uint64_t)t->tv_usec;
}

static void set_result(struct run_result *r, int status, const struct rusage *use)
{
	r->cpu_us = microseconds(&use->ru_utime) + microseconds(&use->ru_stime);
	r->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	r->status = r->signal ? 128 + r->signal : WEXITSTATUS(status);
}

int run_child(char **argv, const struct run_env *env, size_t n_env, struct run_result *ret)
{
	struct timespec begin, end;
	struct signals before;
	struct rusage use = {0};
	sigset_t taken;
	int fd[2], status, r = 0;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return -errno;
	take_signals(&taken, &before);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	pid = fork();
	if (pid == 0)
		become_program(argv, env, n_env, &before, fd[1]);
	if (pid < 0)
		r = -errno;
	close(fd[1]);
	if (pid > 0) {
		ret->error = exec_error(fd[0]);
		status = wait_for_end(pid, &taken, &use);
		set_result(ret, status, &use);
		clock_gettime(CLOCK_MONOTONIC, &end);
		ret->wall_s = seconds(&begin, &end);
	}
	close(fd[0]);
	/*
	 * The mask stays: a ^C that ended the program must not end us before the summary is
	 * out. SIGPIPE is ignored for the same reason; nobody inherits it any more.
	 */
	signal(SIGPIPE, SIG_IGN);
	if (pid < 0)
		give_back_signals(&before);
	return r;
}
