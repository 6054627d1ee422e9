/* SPDX-License-Identifier: MIT */
/*
 * pcptuned: start, signals, stop.
 *
 * Order of a start: options, configuration, policies (all mistakes at once, as file:line); then, in
 * the background, the fork, before there is an event loop that a fork would break; then the lock,
 * the log, the sockets. Only a daemon that listens lets the process that started it return 0: it
 * writes one byte into a pipe; end of file without that byte is a failure, whose reason the child
 * has printed.
 *
 * A stop (SIGTERM, SIGINT) takes the last samples, restores or keeps what was set, ends the run in
 * the log, and removes sockets and lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/apply.h"
#include "daemon/attach.h"
#include "daemon/clock.h"
#include "daemon/ctl.h"
#include "daemon/decide.h"
#include "daemon/heap.h"
#include "daemon/journal.h"
#include "daemon/main.h"
#include "daemon/record.h"
#include "daemon/reload.h"
#include "daemon/sample.h"
#include "daemon/say.h"
#include "daemon/summary.h"
#include "daemon/target.h"
#include "lib/text.h"

#define STOP_WAIT_MS 250u

/* ---- background ---- */

/* In the parent: 0 once the child listens, else 1. */
static int wait_ready(int fd, pid_t child)
{
	char byte;
	ssize_t n;

	do {
		n = read(fd, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		return 0;
	waitpid(child, NULL, 0);
	return 1;
}

/* -1: this is the daemon; else the exit status of the process that started it */
static int background(struct run *r)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC)) {
		say(LOG_ERR, "pipe: %s", strerror(errno));
		return 1;
	}
	child = fork();
	if (child < 0) {
		say(LOG_ERR, "fork: %s", strerror(errno));
		return 1;
	}
	if (child > 0) {
		close(fds[1]);
		return wait_ready(fds[0], child);
	}
	close(fds[0]);
	r->ready = fds[1];
	setsid();
	return -1;
}

static void leave_terminal(struct run *r)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	say_to_syslog(true);
	if (chdir("/"))
		say(LOG_WARNING, "chdir /: %s", strerror(errno));
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	(void)!write(r->ready, "", 1);
	close(r->ready);
	r->ready = -1;
}

/* ---- signals ---- */

static void on_stop(evutil_socket_t sig, short what, void *arg)
{
	struct run *r = arg;

	(void)what;
	say(LOG_NOTICE, "stopping (%s)", sig == SIGINT ? "SIGINT" : "SIGTERM");
	r->d.stopping = true;
	event_base_loopbreak(r->d.base);
}

static void on_hup(evutil_socket_t sig, short what, void *arg)
{
	struct run *r = arg;

	(void)sig;
	(void)what;
	reload(&r->d);
}

/*
 * A SIGHUP must not end what is about to start, or to stop: until it can be served it waits.
 * Whoever started us may have left it blocked, too.
 */
static void hold_reload(bool hold)
{
	sigset_t hup;

	sigemptyset(&hup);
	sigaddset(&hup, SIGHUP);
	sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &hup, NULL);
}

static bool signals(struct run *r)
{
	r->sig[0] = evsignal_new(r->d.base, SIGTERM, on_stop, r);
	r->sig[1] = evsignal_new(r->d.base, SIGINT, on_stop, r);
	r->sig[2] = evsignal_new(r->d.base, SIGHUP, on_hup, r);
	for (int i = 0; i < 3; i++) {
		if (!r->sig[i] || event_add(r->sig[i], NULL))
			return false;
	}
	return true;
}

/* ---- start ---- */

/* A file-size limit or a gone reader is an error code where it happens, not our end. */
static void limits(void)
{
	struct rlimit l;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	if (!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur < l.rlim_max) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

static uint32_t host_cpus(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (uint32_t)n : 1;
}

static bool claim(struct run *r, char *why)
{
	const struct config *c = r->d.config;

	if (claim_directory(c->socket, true, why) < 0)
		return false;
	return claim_new(c->socket, "serves", c->file ? c->file : "built-in", &r->claim, why) == 0;
}

static bool parts(struct run *r, char *why)
{
	struct daemon *d = &r->d;

	snprintf(why, CLAIM_WHY, "no memory");
	d->base = event_base_new();
	if (!d->base || !signals(r) || foreigners_new(d->base, &d->foreigners) < 0 ||
	    summary_new(d, &d->summary) < 0)
		return false;
	if (journal_new(d, &d->journal, why) < 0) {
		char text[CLAIM_WHY];

		snprintf(text, sizeof(text), "log %.200s: %.250s", d->config->log.path, why);
		memcpy(why, text, sizeof(text));
		return false;
	}
	return ctl_new(d, &d->ctl, why) == 0 && attach_new(d, &d->attach, why) == 0 &&
	       sampler_new(d, &d->sampler) == 0;
}

static bool start(struct run *r)
{
	char why[CLAIM_WHY] = "";
	struct daemon *d = &r->d;

	limits();
	d->start_ms = mono_ms();
	d->host_cpus = host_cpus();
	if (!claim(r, why) || !parts(r, why)) {
		say(LOG_ERR, "%s", why);
		return false;
	}
	say(LOG_NOTICE, "%s listens on %s (configuration %s, log %s)", PCPTUNE_VERSION,
	    d->config->socket, d->config->file ? d->config->file : "built-in",
	    d->config->log.enabled ? d->config->log.path : "off");
	hold_reload(false);
	if (r->ready >= 0)
		leave_terminal(r);
	return true;
}

/* ---- stop ---- */

static bool any_in_flight(struct daemon *d)
{
	bool any = false;

	for (size_t i = 0; i < d->n_targets; i++) {
		apply_acks(d->targets[i]);
		any |= d->targets[i]->n_inflight > 0;
	}
	return any;
}

/* What was restored should be in force, and the log say so; agents are quick, once woken. */
static void wait_for_acks(struct daemon *d)
{
	uint64_t end = mono_ms() + STOP_WAIT_MS;

	while (any_in_flight(d) && mono_ms() < end)
		usleep(2000);
}

static void stop_targets(struct daemon *d)
{
	bool keep = d->config->on_exit == CONFIG_KEEP;

	for (size_t i = 0; i < d->n_targets; i++) {
		sample_last(d->targets[i]);
		if (!keep)
			apply_restore(d->targets[i]);
	}
	decide_flush(d, true);
	wait_for_acks(d);
	while (d->n_targets) {
		struct target *t = d->targets[d->n_targets - 1];

		apply_release(t, keep);
		target_end(t, "the daemon stopped");
	}
}

static void stop(struct run *r)
{
	struct daemon *d = &r->d;

	hold_reload(true);
	attach_free(d->attach);
	d->attach = NULL;
	if (d->journal)
		stop_targets(d);
	ctl_free(d->ctl);
	sampler_free(d->sampler);
	d->sampler = NULL;
	journal_free(d->journal, d->stopping ? "stopped" : NULL);
	summary_free(d->summary);
	reload_stop(d);
	foreigners_free(d->foreigners);
	for (int i = 0; i < 3; i++) {
		if (r->sig[i])
			event_free(r->sig[i]);
	}
	if (d->base)
		event_base_free(d->base);
	claim_free(r->claim);
	decide_free();
	record_free();
	free(d->targets);
}

static void forget(struct run *r)
{
	choices_free(r->d.choices);
	if (r->d.config)
		config_free(r->d.config);
	options_free(r);
	libevent_global_shutdown();
}

static int serve(struct run *r)
{
	int status = 1;

	if (start(r)) {
		event_base_dispatch(r->d.base);
		status = r->d.stopping ? 0 : 1;
	}
	stop(r);
	return status;
}

/* Else a lock, a socket or the log would get number 2, and messages with it. */
static void standard_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= 2);
	if (fd > 2)
		close(fd);
}

int main(int argc, char **argv)
{
	struct run r = {.ready = -1};
	int status;

	if (argc == 2 && !strcmp(argv[1], REMOTE_ARGUMENT))
		return host_worker_main();
	heap_begin();
	hold_reload(true);
	standard_descriptors();
	status = options_take(&r, argc, argv);
	/* whoever waits for the end of a pipe of the starter's must not wait for ours */
	if (status < 0 && !r.foreground && !r.check)
		close_range(3, ~0u, 0);
	if (status < 0 && !check_load(&r))
		status = 1;
	if (status < 0)
		options_settle(&r);
	if (status < 0 && r.check)
		status = check(&r);
	if (status < 0 && !r.foreground)
		status = background(&r);
	if (status < 0)
		status = serve(&r);
	forget(&r);
	return status;
}
