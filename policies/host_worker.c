/* SPDX-License-Identifier: MIT */
/*
 * The process of one foreign policy: loads it, makes one instance, answers samples.
 *
 * This contains mistakes, not malice: workers of one user can signal each other, and one of a
 * daemon that is not root can do to it what its user can. Who may write a policy's file is trusted.
 *
 * It is the daemon's program, started anew (host_remote.c), so that it shares nothing with the
 * daemon but a socket and the area of host_wire.h. Before code of the policy runs it has no
 * descriptor but these, can get no privilege, write no file, start no process or thread, dump no
 * core, take no more memory than it was told, and ends with the daemon. Where the daemon is root
 * the policy is loaded by root, who alone could have put it there, and runs as nobody.
 *
 * The state lies in the area, so that the daemon has it for the log; a process that broke down
 * takes it along, and the next one begins anew: what a crash left behind may be what caused it.
 *
 * Errors: a message, and the end. A policy that ends or hangs this process is the daemon's to see.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "policies/host_remote.h"
#include "policies/host_wire.h"

#define NOBODY	  65534u
#define FILES_MAX 64u

struct worker {
	struct policy_module *module;
	const struct pcptune_policy *desc;
	struct pcptune_shape shape;
	int64_t params[POLICY_MAX_PARAMS];
	uint32_t n; /* entries of a sample */
	struct wire_area at;
	char *area; /* NULL: no instance */
};

/* ---- messages ---- */

static int say(const void *m, size_t len)
{
	ssize_t n;

	do {
		n = send(WIRE_FD, m, len, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)len ? 0 : -EPIPE;
}

static int say_type(uint32_t type, int r)
{
	struct wire_head h = {type, r};

	return say(&h, sizeof(h));
}

static int refuse(int r, const char *why)
{
	struct wire_refused m = {.head = {WIRE_REFUSED, r}};

	snprintf(m.why, sizeof(m.why), "%s", why);
	return say(&m, sizeof(m));
}

/* One packet and the descriptor that came with it, -1: none. Its length, 0 at the end. */
static size_t hear(void *buf, size_t room, int *ret_fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {buf, room};
	struct msghdr mh = {.msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	ssize_t n;

	*ret_fd = -1;
	do {
		n = recvmsg(WIRE_FD, &mh, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	c = n > 0 ? CMSG_FIRSTHDR(&mh) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n > 0 ? (size_t)n : 0;
}

/* ---- what it may do ---- */

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

static void confine(uint64_t memory)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	limit(RLIMIT_CORE, 0);
	limit(RLIMIT_FSIZE, 0);
	limit(RLIMIT_NPROC, 0);
	limit(RLIMIT_NOFILE, FILES_MAX);
	limit_memory(memory);
}

static int leave_root(void)
{
	if (geteuid())
		return 0;
	if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return -errno;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* forgotten with the user */
	return 0;
}

/* ---- the steps ---- */

static int open_policy(struct worker *w, const struct wire_open *m)
{
	static struct wire_hello hello = {.head = {WIRE_HELLO, 0}};
	char why[POLICY_WHY] = "", file[PATH_MAX];
	size_t len = 0;
	int r;

	snprintf(file, sizeof(file), "%.*s", (int)sizeof(m->file) - 1, m->file);
	confine(m->memory);
	r = policy_load(file, NULL, &w->module, why);
	if (r)
		return refuse(r, why);
	r = leave_root();
	if (r)
		return refuse(r, "the process of a policy can not give up being root");
	w->desc = policy_desc(w->module);
	r = wire_pack(w->module, hello.image, sizeof(hello.image), &len);
	if (r)
		return refuse(r, "the tables of the policy are longer than 128 KiB");
	return say(&hello, offsetof(struct wire_hello, image) + len);
}

static int size_state(struct worker *w, const struct wire_init *m)
{
	struct wire_sized sized = {.head = {WIRE_SIZED, 0}};

	w->shape = m->shape;
	memcpy(w->params, m->params, sizeof(w->params));
	w->n = w->shape.n_zones * w->shape.n_cpus;
	sized.state_size = w->desc->state_size(&w->shape, w->params);
	return say(&sized, sizeof(sized));
}

static int init_state(struct worker *w, const struct wire_sized *m, int fd)
{
	char why[POLICY_WHY];
	int r;

	wire_area(w->n, w->desc, m->state_size, &w->at);
	w->area = mmap(NULL, w->at.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (w->area == MAP_FAILED) {
		snprintf(why, sizeof(why), "no memory for an instance of policy \"%s\"",
			 w->desc->name);
		return refuse(-ENOMEM, why);
	}
	r = w->desc->init(w->area + w->at.state, &w->shape, w->params);
	if (!r)
		return say_type(WIRE_READY, 0);
	r = r > 0 ? -EPROTO : r;
	snprintf(why, sizeof(why), "policy \"%s\": %.160s", w->desc->name,
		 r == -EINVAL ? host_refusal(w->desc, &w->shape, w->params) : strerror(-r));
	return refuse(r, why);
}

/* There is nobody to read it. */
static void no_trace(void *cookie, const char *text)
{
	(void)cookie;
	(void)text;
}

/* Pointers are made here: what lies in the area is not the daemon's to say. */
static int decide(struct worker *w)
{
	static const struct pcptune_host host = {sizeof(host), PCPTUNE_POLICY_ABI, no_trace, NULL};
	struct pcptune_sample s = *(struct pcptune_sample *)w->area;
	struct pcptune_decision *d = (void *)(w->area + w->at.decision);

	s.cpus = w->area + w->at.cpus;
	s.active = (const uint32_t *)(w->area + w->at.active);
	s.records = w->area + w->at.records;
	memset(d, 0, sizeof(*d));
	d->size = sizeof(*d);
	d->change_size = w->desc->change_size;
	d->max_changes = w->n;
	d->changes = (struct pcptune_change *)(w->area + w->at.changes);
	return say_type(WIRE_ANSWER,
			w->desc->decide(w->area + w->at.state, &w->shape, w->params, &s, d, &host));
}

/* The next step, if this message may come now; -EPROTO: it may not. */
static int step(struct worker *w, const void *m, size_t len, int fd)
{
	switch (((const struct wire_head *)m)->type) {
	case WIRE_OPEN:
		return !w->module && len == sizeof(struct wire_open) ? open_policy(w, m) : -EPROTO;
	case WIRE_INIT:
		return w->desc && !w->n && len == sizeof(struct wire_init) ? size_state(w, m)
									   : -EPROTO;
	case WIRE_MEMORY:
		return w->n && !w->area && fd >= 0 && len == sizeof(struct wire_sized)
			       ? init_state(w, m, fd)
			       : -EPROTO;
	case WIRE_ASK:
		return w->area ? decide(w) : -EPROTO;
	default:
		return -EPROTO;
	}
}

int host_worker_main(void)
{
	static union {
		struct wire_head head;
		struct wire_open open;
		struct wire_init init;
		struct wire_sized sized;
	} m;
	struct worker w = {0};
	size_t len;
	int fd;

	close_range(WIRE_FD + 1, ~0u, 0);
	while ((len = hear(&m, sizeof(m), &fd)) >= sizeof(m.head)) {
		if (step(&w, &m, len, fd))
			return 1;
	}
	return 0;
}
