/* SPDX-License-Identifier: MIT */
/*
 * The loop never waits for one of these processes. A message is read when there is one, a death is
 * SIGCHLD, and each thing that is asked for has a time: START_MS to load and to make an instance,
 * plugin.answer_ms to answer, plugin.call_ms of CPU time for that. Who is over it is killed, so
 * that a late answer can not come.
 *
 * A process that closed its socket is given DEATH_MS to die, so that the reason can be told.
 *
 * The dead of those that were freed are collected here as well; there are no zombies.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "daemon/foreign.h"

#define START_MS 10000
#define DEATH_MS 1000

struct foreign {
	struct foreigners *all;
	struct foreign *next;
	struct remote *remote;
	struct event *ev, *timer;
	foreign_fn fn;
	void *cookie;
	int64_t answer_ms, call_ms;
	bool asked;
};

struct foreigners {
	struct event_base *base;
	struct event *child;
	struct foreign *first;
	pid_t *freed; /* killed, not collected yet */
	size_t n_freed, max_freed;
};

/* ---- what comes of one ---- */

static void arm(struct foreign *f, int64_t ms)
{
	struct timeval tv = {ms / 1000, ms % 1000 * 1000};

	event_add(f->timer, &tv);
}

static void tell(struct foreign *f, enum remote_event what, const char *why)
{
	f->asked = false;
	event_del(f->timer);
	if (what == REMOTE_BROKEN)
		event_del(f->ev);
	f->fn(f->cookie, what, why); /* which may have freed it */
}

static void on_message(evutil_socket_t fd, short what, void *arg)
{
	struct foreign *f = arg;
	char why[POLICY_WHY] = "";
	enum remote_event e = remote_read(f->remote, why);
	char byte;

	(void)what;
	if (e == REMOTE_NOTHING)
		return;
	if (e == REMOTE_BROKEN && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
		event_del(f->ev); /* of what did it die? */
		f->asked = false;
		arm(f, DEATH_MS);
		return;
	}
	tell(f, e, why);
}

static void on_time(evutil_socket_t fd, short what, void *arg)
{
	struct foreign *f = arg;
	char why[POLICY_WHY];

	(void)fd;
	(void)what;
	if (f->asked)
		snprintf(why, sizeof(why),
			 "no answer within %lld ms (plugin.answer_ms): its process was killed",
			 (long long)f->answer_ms);
	else if (event_pending(f->ev, EV_READ, NULL))
		snprintf(why, sizeof(why), "did not start within %d s: its process was killed",
			 START_MS / 1000);
	else
		snprintf(why, sizeof(why), "its process closed its socket and was killed");
	tell(f, REMOTE_BROKEN, why);
}

void foreign_check(struct foreign *f)
{
	uint64_t us = f->asked ? remote_cpu_us(f->remote) : 0;
	char why[POLICY_WHY];

	if (us <= (uint64_t)f->call_ms * 1000u)
		return;
	snprintf(why, sizeof(why),
		 "no answer after %llu ms of CPU time (plugin.call_ms is %lld): its process was "
		 "killed",
		 (unsigned long long)us / 1000u, (long long)f->call_ms);
	tell(f, REMOTE_BROKEN, why);
}

static void died(struct foreign *f, int status)
{
	char why[POLICY_WHY];

	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
		snprintf(why, sizeof(why),
			 "its process asked the system for what a policy may not have, and was "
			 "ended by signal %d (%s)",
			 SIGSYS, strsignal(SIGSYS));
	else if (WIFSIGNALED(status))
		snprintf(why, sizeof(why), "its process was ended by signal %d (%s)",
			 WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(why, sizeof(why), "its process ended with status %d", WEXITSTATUS(status));
	tell(f, REMOTE_BROKEN, why);
}

/* Each call of an owner may change the list, so it is walked from its beginning again. */
static void on_child(evutil_socket_t sig, short what, void *arg)
{
	struct foreigners *all = arg;
	struct foreign *f;
	int status;

	(void)sig;
	(void)what;
	for (size_t i = 0; i < all->n_freed;) {
		if (waitpid(all->freed[i], NULL, WNOHANG) == 0)
			i++;
		else
			all->freed[i] = all->freed[--all->n_freed];
	}
again:
	for (f = all->first; f; f = f->next) {
		if (waitpid(remote_pid(f->remote), &status, WNOHANG) > 0) {
			remote_collected(f->remote);
			died(f, status);
			goto again;
		}
	}
}

/* ---- life ---- */

int foreigners_new(struct event_base *base, struct foreigners **ret)
{
	struct foreigners *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	all->base = base;
	all->child = evsignal_new(base, SIGCHLD, on_child, all);
	if (!all->child || event_add(all->child, NULL)) {
		foreigners_free(all);
		return -ENOMEM;
	}
	*ret = all;
	return 0;
}

void foreigners_free(struct foreigners *all)
{
	if (!all)
		return;
	for (size_t i = 0; i < all->n_freed; i++)
		waitpid(all->freed[i], NULL, 0); /* they were killed */
	if (all->child)
		event_free(all->child);
	free(all->freed);
	free(all);
}

/* Room for its pid once it is freed is made now, so that freeing can not fail. */
static bool freed_room(struct foreigners *all)
{
	size_t n = all->n_freed + 1;
	pid_t *v;

	for (struct foreign *f = all->first; f; f = f->next)
		n++;
	if (n <= all->max_freed)
		return true;
	v = realloc(all->freed, 2 * n * sizeof(*v));
	if (!v)
		return false;
	all->freed = v;
	all->max_freed = 2 * n;
	return true;
}

int foreign_new(struct foreigners *all, const struct policy_file *file, const struct config *limits,
		foreign_fn fn, void *cookie, struct foreign **ret, char *why)
{
	struct foreign *f = calloc(1, sizeof(*f));
	int r = -ENOMEM;

	snprintf(why, POLICY_WHY, "no memory for policy \"%s\"", file->name);
	if (!f)
		return r;
	if (freed_room(all))
		r = remote_new(file, (uint64_t)limits->plugin.memory_mib << 20, &f->remote, why);
	if (r) {
		free(f);
		return r;
	}
	*f = (struct foreign){.all = all,
			      .next = all->first,
			      .remote = f->remote,
			      .fn = fn,
			      .cookie = cookie,
			      .answer_ms = limits->plugin.answer_ms,
			      .call_ms = limits->plugin.call_ms};
	all->first = f;
	f->ev = event_new(all->base, remote_fd(f->remote), EV_READ | EV_PERSIST, on_message, f);
	f->timer = event_new(all->base, -1, 0, on_time, f);
	if (!f->ev || !f->timer || event_add(f->ev, NULL)) {
		foreign_free(f);
		return -ENOMEM;
	}
	arm(f, START_MS);
	*ret = f;
	return 0;
}

void foreign_free(struct foreign *f)
{
	struct foreign **at;

	if (!f)
		return;
	for (at = &f->all->first; *at != f; at = &(*at)->next)
		;
	*at = f->next;
	if (remote_pid(f->remote) > 0)
		f->all->freed[f->all->n_freed++] = remote_pid(f->remote);
	if (f->ev)
		event_free(f->ev);
	if (f->timer)
		event_free(f->timer);
	remote_free(f->remote);
	free(f);
}

void foreign_hand_over(struct foreign *f, foreign_fn fn, void *cookie)
{
	f->fn = fn;
	f->cookie = cookie;
}

struct remote *foreign_remote(const struct foreign *f)
{
	return f->remote;
}

/* ---- asking ---- */

/* A process that can not be told anything is dying: its end comes as such. */
void foreign_init(struct foreign *f, struct policy_module *m, const struct pcptune_shape *shape,
		  const int64_t *params)
{
	arm(f, START_MS);
	remote_init(f->remote, m, shape, params, NULL);
}

void foreign_ask(struct foreign *f, const struct pcptune_sample *s)
{
	f->asked = true;
	arm(f, f->answer_ms);
	remote_ask(f->remote, s, NULL);
}
