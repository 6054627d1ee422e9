/* SPDX-License-Identifier: MIT */
/*
 * The daemon's side of a foreign policy: starts its process, shares the area with it, and reads its
 * answers as what they are, words of a stranger.
 *
 * The area is a memfd that is made here, once the size is known, and sealed, so that it can not
 * shrink under our feet. Nothing is looked at in it twice: what counts is copied first.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "policies/host_remote.h"
#include "policies/host_wire.h"

extern char **environ;

struct remote {
	struct policy_file file;
	pid_t pid;
	int fd;
	uint64_t memory;
	uint32_t expected;	      /* enum wire_type that may come next, 0: none */
	struct policy_module *module; /* of the instance */
	struct pcptune_shape shape;
	int64_t params[POLICY_MAX_PARAMS];
	size_t state_size;
	struct wire_area at;
	char *area;
	struct policy_instance *pi; /* until it is taken */
	uint64_t cpu_us;	    /* at the last question */
	int answer;		    /* what decide() gave back */
	int filter;		    /* 0, or why its process has no filter of system calls */
};

/* ---- the process ---- */

/* What a run-time library needs to be told. What else is in our environment is not for a policy. */
static bool passes(const char *variable)
{
	static const char *const prefix[] = {
		"LD_LIBRARY_PATH=", "LC_ALL=", "ASAN_", "LSAN_", "TSAN_", "UBSAN_"};

	for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
		if (strncmp(variable, prefix[i], strlen(prefix[i])) == 0)
			return true;
	return false;
}

static void environment(char **ret, size_t room)
{
	size_t n = 0;

	for (char **e = environ; *e && n + 1 < room; e++)
		if (passes(*e))
			ret[n++] = *e;
	ret[n] = NULL;
}

static int spawn(int fd, pid_t *ret)
{
	char *argv[] = {(char[]){"pcptuned"}, (char[]){REMOTE_ARGUMENT}, NULL}, *env[16];
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t all, none;
	int r;

	environment(env, sizeof(env) / sizeof(env[0]));
	sigfillset(&all);
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF |
						POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setsigmask(&attr, &none);
	r = posix_spawn_file_actions_adddup2(&files, fd, WIRE_FD);
	for (int i = 0; !r && i < WIRE_FD; i++)
		r = posix_spawn_file_actions_addopen(&files, i, "/dev/null", O_RDWR, 0);
	if (!r)
		r = posix_spawn(ret, "/proc/self/exe", &files, &attr, argv, env);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return -r;
}

static uint64_t cpu_now(const struct remote *r)
{
	struct timespec ts;
	clockid_t clock;

	if (!r->pid || clock_getcpuclockid(r->pid, &clock) || clock_gettime(clock, &ts))
		return 0;
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

uint64_t remote_cpu_us(const struct remote *r)
{
	uint64_t now = cpu_now(r);

	return now > r->cpu_us ? now - r->cpu_us : 0;
}

/* ---- messages ---- */

/* The other end reads one message before it may expect the next, so there is always room. */
static int tell(struct remote *r, const void *m, size_t len, int pass_fd, char *why)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {(void *)(uintptr_t)m, len};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;

	if (pass_fd >= 0) {
		mh.msg_control = control;
		mh.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
	}
	r->cpu_us = cpu_now(r);
	if (sendmsg(r->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len)
		return 0;
	return host_why(why, -EPIPE, "policy \"%s\": its process can not be reached: %s",
			r->file.name, strerror(errno));
}

int remote_new(const struct policy_file *f, uint64_t memory, struct remote **ret, char *why)
{
	struct wire_open m = {.head = {WIRE_OPEN, 0}, .memory = memory};
	struct remote *r = calloc(1, sizeof(*r));
	int pair[2], e;

	if (!r)
		return host_why(why, -ENOMEM, "no memory for policy \"%s\"", f->name);
	r->file = *f;
	r->memory = memory;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		e = -errno;
		free(r);
		return host_why(why, e, "policy \"%s\": no socket: %s", f->name, strerror(-e));
	}
	r->fd = pair[0];
	e = spawn(pair[1], &r->pid);
	close(pair[1]);
	if (e) {
		close(r->fd);
		free(r);
		return host_why(why, e, "policy \"%s\": no process: %s", f->name, strerror(-e));
	}
	memcpy(m.file, f->path, sizeof(m.file));
	r->expected = WIRE_HELLO;
	*ret = r;
	e = tell(r, &m, sizeof(m), -1, why);
	if (e) { /* the caller has no pid that it could wait for */
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
		r->pid = 0;
		remote_free(r);
	}
	return e;
}

void remote_free(struct remote *r)
{
	if (!r)
		return;
	if (r->pid > 0)
		kill(r->pid, SIGKILL);
	close(r->fd);
	if (r->area)
		munmap(r->area, r->at.size);
	policy_instance_free(r->pi);
	policy_unref(r->module);
	free(r);
}

int remote_fd(const struct remote *r)
{
	return r->fd;
}

pid_t remote_pid(const struct remote *r)
{
	return r->pid;
}

void remote_collected(struct remote *r)
{
	r->pid = 0;
}

int remote_filter(const struct remote *r)
{
	return r->filter;
}

struct policy_module *remote_module(const struct remote *r)
{
	return r->module;
}

/* ---- what comes ---- */

static enum remote_event broken(const struct remote *r, const char *what, char *why)
{
	host_why(why, 0, "policy \"%s\": its process %s", r->file.name, what);
	return REMOTE_BROKEN;
}

static enum remote_event on_hello(struct remote *r, const struct wire_hello *m, size_t len,
				  char *why)
{
	struct pcptune_policy *desc;

	if (wire_unpack(m->image, len - offsetof(struct wire_hello, image), r->file.name, &desc,
			why))
		return REMOTE_BROKEN;
	r->filter = m->head.r;
	r->module = host_module_remote(desc, &r->file);
	if (r->module)
		return REMOTE_LOADED;
	free(desc);
	return broken(r, "has tables, for which there is no memory", why);
}

static int area_new(struct remote *r, int *ret_fd)
{
	int fd = memfd_create("pcptune-policy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p;

	if (fd < 0)
		return -errno;
	if (!ftruncate(fd, (off_t)r->at.size) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		p = mmap(NULL, r->at.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (p != MAP_FAILED) {
			r->area = p;
			*ret_fd = fd;
			return 0;
		}
	}
	close(fd);
	return -ENOMEM;
}

static enum remote_event on_sized(struct remote *r, const struct wire_sized *m, char *why)
{
	struct wire_sized memory = {.head = {WIRE_MEMORY, 0}, .state_size = m->state_size};
	int fd = -1, e;

	if (m->state_size > HOST_STATE_MAX) {
		host_why(why, 0, "policy \"%s\": wants %llu bytes of state, at most %llu",
			 r->file.name, (unsigned long long)m->state_size,
			 (unsigned long long)HOST_STATE_MAX);
		return REMOTE_REFUSED;
	}
	r->state_size = (size_t)m->state_size;
	wire_area(r->shape.n_zones * r->shape.n_cpus, policy_desc(r->module), r->state_size,
		  &r->at);
	if (area_new(r, &fd))
		return broken(r, "could not be given memory", why);
	e = tell(r, &memory, sizeof(memory), fd, why);
	close(fd);
	r->expected = WIRE_READY;
	return e ? REMOTE_BROKEN : REMOTE_NOTHING;
}

static enum remote_event on_ready(struct remote *r, char *why)
{
	int e = policy_instance_new_remote(r->module, &r->shape, r->params, r->state_size, &r->pi,
					   why);

	return e ? REMOTE_REFUSED : REMOTE_READY;
}

static enum remote_event on_refused(struct wire_refused *m, char *why)
{
	m->why[sizeof(m->why) - 1] = 0;
	for (char *c = m->why; *c; c++)
		if ((unsigned char)*c < ' ')
			*c = ' ';
	host_why(why, 0, "%s", m->why);
	return REMOTE_REFUSED;
}

enum remote_event remote_read(struct remote *r, char *why)
{
	static union {
		struct wire_head head;
		struct wire_hello hello;
		struct wire_sized sized;
		struct wire_refused refused;
	} m;
	ssize_t n = recv(r->fd, &m, sizeof(m), MSG_DONTWAIT);
	uint32_t expected = r->expected;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return REMOTE_NOTHING;
	if (n <= 0)
		return broken(r, "ended", why);
	r->expected = 0;
	if (n == sizeof(m.refused) && m.head.type == WIRE_REFUSED &&
	    (expected == WIRE_HELLO || expected == WIRE_READY))
		return on_refused(&m.refused, why);
	if ((size_t)n < sizeof(m.head) || m.head.type != expected)
		return broken(r, "says what nobody asked it", why);
	if (expected == WIRE_HELLO && (size_t)n >= offsetof(struct wire_hello, image))
		return on_hello(r, &m.hello, (size_t)n, why);
	if (expected == WIRE_SIZED && n == sizeof(m.sized))
		return on_sized(r, &m.sized, why);
	if (expected == WIRE_READY)
		return on_ready(r, why);
	if (expected != WIRE_ANSWER)
		return broken(r, "says what nobody asked it", why);
	r->answer = m.head.r;
	return REMOTE_ANSWER;
}

/* ---- what is asked ---- */

int remote_init(struct remote *r, struct policy_module *m, const struct pcptune_shape *shape,
		const int64_t *params, char *why)
{
	struct wire_init msg = {.head = {WIRE_INIT, 0}, .shape = *shape};

	if (m != r->module) {
		policy_unref(r->module);
		r->module = policy_ref(m);
	}
	msg.shape.size = sizeof(msg.shape);
	memcpy(msg.params, params, sizeof(msg.params));
	r->shape = msg.shape;
	memcpy(r->params, params, sizeof(r->params));
	r->expected = WIRE_SIZED;
	return tell(r, &msg, sizeof(msg), -1, why);
}

struct policy_instance *remote_take_instance(struct remote *r)
{
	struct policy_instance *pi = r->pi;

	r->pi = NULL;
	return pi;
}

int remote_ask(struct remote *r, const struct pcptune_sample *s, char *why)
{
	static const struct wire_head ask = {WIRE_ASK, 0};
	struct pcptune_sample *to = (struct pcptune_sample *)r->area;

	*to = *s;
	to->cpus = to->records = NULL; /* our places are nobody's business */
	to->active = NULL;
	memcpy(r->area + r->at.cpus, s->cpus, (size_t)s->n_cpus * s->cpu_size);
	memcpy(r->area + r->at.active, s->active, (size_t)s->n_active * sizeof(*s->active));
	if (pcptune_sample_n_records(s))
		memcpy(r->area + r->at.records, s->records, (size_t)s->n_records * s->record_size);
	r->expected = WIRE_ANSWER;
	return tell(r, &ask, sizeof(ask), -1, why);
}

int remote_take(struct remote *r, struct policy_instance *pi, const struct pcptune_sample *s,
		struct host_answer *ret, char *why)
{
	const struct policy_reply reply = {r->answer, r->area + r->at.decision,
					   r->area + r->at.changes};

	return policy_instance_take(pi, s, &reply, ret, why);
}

void remote_fetch_state(const struct remote *r, struct policy_instance *pi)
{
	policy_instance_fetch(pi, r->area + r->at.state);
}
