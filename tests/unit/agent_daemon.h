/* SPDX-License-Identifier: MIT */
/* A small daemon for tests of the client's end, in the process of the client. */
#ifndef TESTS_AGENT_DAEMON_H
#define TESTS_AGENT_DAEMON_H

#include "tests/unit/alloc_child.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "allocator/agent.h"
#include "allocator/pcp.h"
#include "tests/unit/scratch.h"

#define WAIT_MS 20000

static char folder[SCRATCH_MAX], path[100];

static inline void make_folder(void)
{
	CHECK(scratch_dir(folder));
	snprintf(path, sizeof(path), "%s/sock", folder);
	setenv("PCPTUNE_SOCKET", path, 1);
}

static inline void remove_folder(void)
{
	unlink(path);
	rmdir(folder);
}

/* ---- the daemon's side ---- */

static inline int listen_at(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, path);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, 4));
	return fd;
}

struct target {
	int socket, segment;
	struct pcptune_hello hello;
	struct pcptune_seg_header *h;
	size_t size;
};

static inline void map_target(struct target *t)
{
	struct stat st;

	CHECK(!fstat(t->segment, &st));
	t->size = (size_t)st.st_size;
	t->h = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, t->segment, 0);
	CHECK(t->h != MAP_FAILED);
}

static inline struct target receive_hello(int listener)
{
	struct target t = {.segment = -1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec data = {&t.hello, sizeof(t.hello)};
	struct msghdr m = {.msg_iov = &data,
			   .msg_iovlen = 1,
			   .msg_control = &control,
			   .msg_controllen = sizeof(control)};
	struct pollfd p = {listener, POLLIN, 0};

	CHECK(poll(&p, 1, WAIT_MS) == 1);
	t.socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(t.socket >= 0);
	CHECK(recvmsg(t.socket, &m, MSG_CMSG_CLOEXEC) == sizeof(t.hello));
	CHECK(CMSG_FIRSTHDR(&m) && CMSG_FIRSTHDR(&m)->cmsg_type == SCM_RIGHTS);
	memcpy(&t.segment, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	map_target(&t);
	return t;
}

static inline void answer(const struct target *t, int status, const char *text)
{
	struct pcptune_reply r = {.magic = PCPTUNE_WIRE_MAGIC,
				  .version = PCPTUNE_WIRE_VERSION,
				  .size = sizeof(r),
				  .status = status,
				  .target_id = 7,
				  .lease_ns = 1000000000};

	strcpy(r.reason, text);
	CHECK(send(t->socket, &r, sizeof(r), MSG_NOSIGNAL) == sizeof(r));
}

static inline void drop_target(struct target *t)
{
	munmap(t->h, t->size);
	close(t->segment);
	close(t->socket);
}

static inline struct pcptune_cpu_block *cpu_of(const struct target *t, uint32_t slot)
{
	return (struct pcptune_cpu_block *)((char *)t->h + t->h->cpus_off +
					    (uint64_t)slot * t->h->cpu_stride);
}

static inline void wake(const struct target *t)
{
	__atomic_add_fetch(&t->h->wake, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &t->h->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static inline void lease_for_ms(const struct target *t, unsigned ms)
{
	__atomic_store_n(&t->h->lease_until_ns, pcpa_now_ns() + ms * UINT64_C(1000000),
			 __ATOMIC_RELEASE);
}

static inline void steer(const struct target *t, uint32_t slot, uint32_t high)
{
	struct pcptune_ctl *c = &cpu_of(t, slot)->ctl;

	pcpa_put(&c->high, high);
	pcpa_put(&c->high_min, high);
	pcpa_put(&c->high_max, high);
	pcpa_put(&c->batch, PCPTUNE_KEEP);
	pcpa_put(&c->scale_max, PCPTUNE_KEEP);
	pcpa_put(&c->rules, PCPTUNE_KEEP);
	__atomic_store_n(&c->seq, pcpa_get(&c->seq) + 1, __ATOMIC_RELEASE);
	wake(t);
}

#define UNTIL(condition)                                \
	do {                                            \
		int ms_ = 0;                            \
		while (!(condition) && ms_++ < WAIT_MS) \
			usleep(1000);                   \
		CHECK(condition);                       \
	} while (0)

/*
 * A daemon that listens where this program looks, and what the program says after its first call.
 */
static inline struct target first_hello(int *ret_listener)
{
	make_folder();
	*ret_listener = listen_at();
	pcpa_free(pcpa_alloc(0), 0);
	return receive_hello(*ret_listener);
}

static inline void accept_target(const struct target *t)
{
	answer(t, 0, "");
	UNTIL(pcpa_attach_state() == PCPA_ATTACH_DONE);
}

static inline void end_daemon(struct target *t, int listener)
{
	drop_target(t);
	close(listener);
	remove_folder();
}

#endif
