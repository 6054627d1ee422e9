/* SPDX-License-Identifier: MIT */
/*
 * The process of one foreign policy: loads it, makes one instance, answers samples.
 *
 * It is the daemon's program, started anew (host_remote.c), so that it shares nothing with the
 * daemon but a socket and the area of host_wire.h. The file is found, checked and opened as who the
 * daemon is; then the process gives up all that it could do (host_confine.c), and only then is the
 * file loaded, by its descriptor, since loading runs constructors. So nobody's code runs as root,
 * and what was checked is what is loaded. See docs/policies.md for what that contains and what not.
 *
 * The state lies in the area, so that the daemon has it for the log; a process that broke down
 * takes it along, and the next one begins anew: what a crash left behind may be what caused it.
 *
 * Errors: a message, and the end. A policy that ends or hangs this process is the daemon's to see.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "policies/host_confine.h"
#include "policies/host_remote.h"
#include "policies/host_wire.h"

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

/* ---- the steps ---- */

/* Nobody may not read every file that root may. */
static int check_readable(const struct policy_file *f, int fd, char *why)
{
	int again = host_reopen(fd);

	if (again < 0)
		return host_why(why, again,
				"%.150s: %s for the user that its process runs as; right is a mode "
				"like 0755",
				f->path, strerror(-again));
	close(again);
	return 0;
}

/* From here on nothing comes back. ret_filter: 0, or why there is no filter of system calls. */
static int load(struct worker *w, const char *name, uint64_t memory, int *ret_filter, char *why)
{
	struct policy_file f;
	int r, fd;

	confine_limits(memory);
	r = policy_find(name, NULL, &f, why);
	if (r)
		return r;
	fd = host_open(&f, why);
	if (fd < 0)
		return fd;
	r = confine_user();
	if (r)
		host_why(why, r, "the process of a policy can not give up being root");
	else
		r = check_readable(&f, fd, why);
	if (!r) {
		*ret_filter = confine_calls(CONFINE_LOADING);
		r = host_load_fd(&f, fd, &w->module, why);
	}
	close(fd);
	if (!r && !*ret_filter)
		*ret_filter = confine_calls(CONFINE_RUNNING);
	return r;
}

static int open_policy(struct worker *w, const struct wire_open *m)
{
	static struct wire_hello hello = {.head = {WIRE_HELLO, 0}};
	char why[POLICY_WHY] = "", file[PATH_MAX];
	size_t len = 0;
	int r;

	snprintf(file, sizeof(file), "%.*s", (int)sizeof(m->file) - 1, m->file);
	r = load(w, file, m->memory, &hello.head.r, why);
	if (r)
		return refuse(r, why);
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
