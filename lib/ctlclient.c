/* SPDX-License-Identifier: MIT */
/*
 * Client side of the control socket: a plain non-blocking stream socket and poll().
 *
 * One request is outstanding at a time, so the next line is its answer. After a time-out or a
 * broken line the answers no longer fit the requests; the connection is closed then and further
 * calls say so (-ENOTCONN). SIGPIPE is never raised (MSG_NOSIGNAL). Single-threaded: a struct
 * ctlclient is used by one thread at a time and shares nothing.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "lib/config.h"
#include "lib/ctlclient.h"
#include "lib/fdpass.h"
#include "lib/jsontext.h"

#define WHY_SIZE	  256
#define MAX_REQUEST_BYTES (64u << 10) /* docs/control.md */
#define MAX_ANSWER_BYTES  (64u << 20)

struct ctlclient {
	int fd;	    /* -1: closed after a failure */
	int passed; /* that came with an answer; -1: none */
	char *path;
	char *buf;
	size_t n, cap; /* bytes read and not yet taken */
};

__attribute__((format(printf, 3, 4))) static int fail(char *why, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, WHY_SIZE, fmt, ap);
	va_end(ap);
	return r;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- connecting ---- */

static int connect_why(const char *path, int r, char *why)
{
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
		return fail(why, r,
			    "no daemon listens at %s; start pcptuned (what pcptune run starts for "
			    "one run has a socket of its own, see pcptune(1))",
			    path);
	case -EACCES:
	case -EPERM:
		return fail(why, r,
			    "%s may not be opened (permission denied); see control.mode and "
			    "control.group of pcptuned.conf(5)",
			    path);
	case -EAGAIN:
		return fail(why, r, "the daemon at %s does not accept connections (queue full)",
			    path);
	default:
		return fail(why, r, "%s: %s", path, strerror(-r));
	}
}

static int connect_to(const char *path, int *ret_fd, char *why)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd, r;

	if (strlen(path) >= sizeof(a.sun_path))
		return fail(why, -ENAMETOOLONG,
			    "socket path %.100s... is too long, allowed: %zu bytes", path,
			    sizeof(a.sun_path) - 1);
	memcpy(a.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(why, -errno, "no socket: %s", strerror(errno));
	/* a unix socket connects at once or not at all */
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		r = -errno;
		close(fd);
		return connect_why(path, r, why);
	}
	*ret_fd = fd;
	return 0;
}

static bool nobody_there(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

/*
 * A user whose own daemon is not there may ask the one of the system, which is where programs look
 * next, too. The cause that is reported is that of the first place.
 */
static int connect_system(struct ctlclient *c, int r)
{
	char *path = config_control_socket("/run/pcptune/sock");
	char why[WHY_SIZE];

	if (path && strcmp(path, c->path) != 0 && connect_to(path, &c->fd, why) == 0) {
		free(c->path);
		c->path = path;
		return 0;
	}
	free(path);
	return r;
}

static int connect_first(struct ctlclient *c, const char *socket_path, char *why)
{
	const char *env = getenv("PCPTUNE_SOCKET");
	char *base = socket_path ? NULL : config_default_socket();
	int r;

	if (socket_path || base)
		c->path = config_control_socket(socket_path ? socket_path : base);
	free(base);
	if (!c->path)
		return fail(why, -ENOMEM, "no memory");
	r = config_place_trusted(c->path, why);
	if (r < 0)
		return r;
	r = connect_to(c->path, &c->fd, why);
	if (nobody_there(r) && !socket_path && !(env && *env))
		r = connect_system(c, r);
	return r;
}

int ctlclient_open(const char *socket_path, struct ctlclient **ret, char *why)
{
	struct ctlclient *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return fail(why, -ENOMEM, "no memory");
	c->passed = -1;
	r = connect_first(c, socket_path, why);
	if (r < 0) {
		free(c->path);
		free(c);
		return r;
	}
	*ret = c;
	return 0;
}

static void hang_up(struct ctlclient *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

static void keep_passed(struct ctlclient *c, int fd)
{
	if (c->passed >= 0)
		close(c->passed);
	c->passed = fd;
}

int ctlclient_descriptor(struct ctlclient *c)
{
	int fd = c->passed;

	c->passed = -1;
	return fd;
}

bool ctlclient_gone(const struct ctlclient *c)
{
	char byte;
	ssize_t n = c->fd < 0 ? 0 : recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n < 0 ? errno != EAGAIN && errno != EINTR : !n;
}

void ctlclient_close(struct ctlclient *c)
{
	if (!c)
		return;
	hang_up(c);
	keep_passed(c, -1);
	free(c->buf);
	free(c->path);
	free(c);
}

/* ---- one call ---- */

/* 0: ready, -ETIMEDOUT, other -errno. */
static int wait_for(int fd, short events, int64_t until)
{
	struct pollfd p = {.fd = fd, .events = events};
	int64_t left;
	int n;

	do {
		left = until - now_ms();
		if (left < 0)
			left = 0;
		n = poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n ? 0 : -ETIMEDOUT;
}

static int send_all(struct ctlclient *c, const char *p, size_t n, int64_t until)
{
	ssize_t k;
	int r;

	while (n) {
		k = send(c->fd, p, n, MSG_NOSIGNAL);
		if (k > 0) {
			p += k;
			n -= (size_t)k;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		r = wait_for(c->fd, POLLOUT, until);
		if (r < 0)
			return r;
	}
	return 0;
}

static int make_room(struct ctlclient *c)
{
	size_t cap = c->cap ? 2 * c->cap : 16384;
	char *b;

	if (c->n < c->cap)
		return 0;
	if (c->n >= MAX_ANSWER_BYTES)
		return -EMSGSIZE;
	b = realloc(c->buf, cap);
	if (!b)
		return -ENOMEM;
	c->buf = b;
	c->cap = cap;
	return 0;
}

/* Reads until a whole line is there; *ret_len without its newline. */
static int read_line(struct ctlclient *c, int64_t until, size_t *ret_len)
{
	size_t seen = 0;
	ssize_t k;
	char *nl;
	int r, fd;

	for (;;) {
		nl = c->n > seen ? memchr(c->buf + seen, '\n', c->n - seen) : NULL;
		if (nl) {
			*ret_len = (size_t)(nl - c->buf);
			return 0;
		}
		seen = c->n;
		r = make_room(c);
		if (r < 0)
			return r;
		k = fdpass_receive(c->fd, c->buf + c->n, c->cap - c->n, &fd);
		if (fd >= 0)
			keep_passed(c, fd);
		if (k == 0)
			return -ECONNRESET;
		if (k < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		r = k < 0 && errno == EAGAIN ? wait_for(c->fd, POLLIN, until) : 0;
		if (r < 0)
			return r;
		c->n += k > 0 ? (size_t)k : 0;
	}
}

static int code_errno(const char *code)
{
	static const struct {
		const char *code;
		int r;
	} codes[] = {{"not-found", -ENOENT}, {"invalid", -EINVAL}, {"denied", -EPERM}};

	for (size_t i = 0; code && i < sizeof(codes) / sizeof(codes[0]); i++)
		if (strcmp(codes[i].code, code) == 0)
			return codes[i].r;
	return -EREMOTEIO;
}

static int take_answer(struct ctlclient *c, json_t *answer, json_t **ret, char *why)
{
	json_t *ok = json_object_get(answer, "ok"), *result = json_object_get(answer, "result");
	const char *text;

	if (json_is_true(ok) && result) {
		*ret = json_incref(result);
		return 0;
	}
	if (!json_is_false(ok)) {
		hang_up(c);
		return fail(why, -EBADMSG,
			    "%s: answer without \"ok\" and \"result\"; is it pcptuned?", c->path);
	}
	text = json_string_value(json_object_get(answer, "error"));
	return fail(why, code_errno(json_string_value(json_object_get(answer, "code"))), "%s",
		    text ? text : "the daemon refused and gave no reason");
}

static int parse_answer(struct ctlclient *c, size_t len, json_t **ret, char *why)
{
	json_error_t e;
	json_t *answer = json_loadb(c->buf, len, JSON_REJECT_DUPLICATES, &e);
	int r;

	c->n -= len + 1;
	memmove(c->buf, c->buf + len + 1, c->n);
	if (!answer) {
		hang_up(c);
		return fail(why, -EBADMSG, "%s: answer is no JSON: %s", c->path, e.text);
	}
	r = take_answer(c, answer, ret, why);
	json_decref(answer);
	return r;
}

static int io_why(struct ctlclient *c, int r, int timeout_ms, char *why)
{
	hang_up(c);
	switch (r) {
	case -ETIMEDOUT:
		return fail(why, r, "%s: no answer within %d ms", c->path, timeout_ms);
	case -EPIPE:
	case -ECONNRESET:
		return fail(why, r, "%s: the daemon closed the connection", c->path);
	case -EMSGSIZE:
		return fail(why, r, "%s: answer longer than 64 MiB", c->path);
	default:
		return fail(why, r, "%s: %s", c->path, strerror(-r));
	}
}

int ctlclient_call(struct ctlclient *c, json_t *request, int timeout_ms, json_t **ret, char *why)
{
	int64_t until = now_ms() + timeout_ms;
	char *line;
	size_t len;
	int r;

	if (c->fd < 0)
		return fail(why, -ENOTCONN, "%s: the connection was closed after a failure",
			    c->path);
	line = json_text(request);
	if (!line)
		return fail(why, -EINVAL,
			    "the request can not be written as JSON: it must be UTF-8");
	len = strlen(line);
	if (len + 1 > MAX_REQUEST_BYTES) {
		free(line);
		return fail(why, -EMSGSIZE, "request of %zu bytes, allowed: 64 KiB", len);
	}
	line[len] = '\n'; /* in place of the NUL */
	keep_passed(c, -1);
	r = send_all(c, line, len + 1, until);
	free(line);
	if (r == 0)
		r = read_line(c, until, &len);
	if (r < 0)
		return io_why(c, r, timeout_ms, why);
	return parse_answer(c, len, ret, why);
}
