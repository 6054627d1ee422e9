/* SPDX-License-Identifier: MIT */
/*
 * A foreign policy at work in a process of its own (host_worker.c), seen from the daemon.
 *
 * No function here waits for that process: each sends what is to be said and returns, and what it
 * says is read when its descriptor is readable. The owner keeps the time, and ends it when it is
 * over. One remote has at most one instance. One thread.
 */
#ifndef PCPTUNE_POLICIES_HOST_REMOTE_H
#define PCPTUNE_POLICIES_HOST_REMOTE_H

#include <sys/types.h>
#include "policies/host.h"

struct remote;

enum remote_event {
	REMOTE_NOTHING, /* no message, or one that only led to the next */
	REMOTE_LOADED,	/* remote_module() is there */
	REMOTE_READY,	/* remote_instance() is there */
	REMOTE_ANSWER,	/* remote_take() */
	REMOTE_REFUSED, /* the policy said no: why */
	REMOTE_BROKEN,	/* it does not speak as it should, or nothing more will come: why */
};

/*
 * The argument that makes the daemon's program such a process: main() returns host_worker_main().
 */
#define REMOTE_ARGUMENT "--policy-worker"
int host_worker_main(void);

/*
 * Starts a process that loads f. memory: bytes that it may take beyond what it begins with.
 * 0, or -errno with why (POLICY_WHY bytes).
 */
int remote_new(const struct policy_file *f, uint64_t memory, struct remote **ret, char *why);
/* Ends the process and lets go of all that was not taken. It is gone when waitpid() says so. */
void remote_free(struct remote *r);
int remote_fd(const struct remote *r);
pid_t remote_pid(const struct remote *r);
/* Somebody waited for it: its pid may be another's now. remote_pid() is 0 then. */
void remote_collected(struct remote *r);
/* CPU time that the process took since remote_init() or remote_ask(), us; 0: not known. */
uint64_t remote_cpu_us(const struct remote *r);

/* Takes in what has come. Never waits. */
enum remote_event remote_read(struct remote *r, char *why);

/* After REMOTE_LOADED: 0, or -errno: its process has no filter of system calls, and why. */
int remote_filter(const struct remote *r);
/* Of the policy; lives as long as a reference to it. NULL before REMOTE_LOADED. */
struct policy_module *remote_module(const struct remote *r);
/*
 * After REMOTE_LOADED: makes an instance. m: the module to make it of, the remote's or its equal.
 */
int remote_init(struct remote *r, struct policy_module *m, const struct pcptune_shape *shape,
		const int64_t *params, char *why);
/* The instance, the caller's from now on; it stays with this remote. After REMOTE_READY, once. */
struct policy_instance *remote_take_instance(struct remote *r);
/* Asks about s, which is copied. */
int remote_ask(struct remote *r, const struct pcptune_sample *s, char *why);
/* After REMOTE_ANSWER: as policy_instance_decide() about the s that was asked about. */
int remote_take(struct remote *r, struct policy_instance *pi, const struct pcptune_sample *s,
		struct host_answer *ret, char *why);
/*
 * The state stays with the process until somebody wants it: this copies it into pi. Between
 * remote_take() and remote_ask(), when nobody should be writing into it.
 */
void remote_fetch_state(const struct remote *r, struct policy_instance *pi);

#endif
