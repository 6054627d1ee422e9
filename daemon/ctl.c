/* SPDX-License-Identifier: MIT */
/*
 * Clients of the control socket. What one client can cost is bounded:
 *
 *   input   a line of at most 64 KiB; the buffer stops reading at that size
 *   output  at most control.max_queue_bytes that it has not read; while it has more than half of
 *           that to read, its further requests are left unread in the socket; an answer that
 *           does not fit at all is replaced by an error
 *   time    a client that does not read its answers for 30 seconds is closed
 *   number  control.max_clients; one more takes the place of the client that said nothing for
 *           longest, 5 seconds at least, or else is told so and closed. Clients that record, who
 *           may change things besides, keep theirs
 *
 * Requests are answered in their order, one at a time. Where an answer has to wait for the process
 * of a policy, the client's further requests wait, too; those of others do not.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/claim.h"
#include "daemon/clock.h"
#include "daemon/ctl.h"
#include "daemon/say.h"
#include "lib/fdpass.h"
#include "lib/jsontext.h"
#include "lib/text.h"

#define LINE_MAX_BYTES 65536u
#define WRITE_SECONDS  30
#define REST_MS	       500
#define SILENT_MS      5000u

struct client {
	struct ctl *c;
	struct client *next;
	struct bufferevent *bev;
	uint64_t id;
	uint64_t heard_ms; /* when it last said something */
	uint32_t uid;	   /* of the peer; (uint32_t)-1: not known */
	bool privileged;
	bool waiting; /* for ctl_later() */
	bool records; /* has got a descriptor: its connection says that it still wants it */
	bool eof;     /* it will send nothing more */
	bool ending;  /* close when everything is written */
};

struct ctl {
	struct daemon *d;
	int fd;
	char *path;
	struct event *ev, *rest_ev;
	struct client *clients;
	int64_t n_clients;
	uint64_t last_id; /* of a client */
	struct say_gate gate;
};

/* ---- life of a client ---- */

static void client_free(struct client *cl)
{
	struct client **at = &cl->c->clients;

	while (*at != cl)
		at = &(*at)->next;
	*at = cl->next;
	cl->c->n_clients--;
	bufferevent_free(cl->bev);
	free(cl);
}

static size_t unread(const struct client *cl)
{
	return evbuffer_get_length(bufferevent_get_output(cl->bev));
}

static size_t queue_limit(const struct client *cl)
{
	return (size_t)cl->c->d->config->control.max_queue_bytes;
}

/* ---- answers ---- */

static char *answer_text(struct ctl_answer *a)
{
	json_t *o;
	char *text;

	text_clean(a->error); /* a word of the request may be cut within a character */
	if (a->result)
		o = json_pack("{s:b, s:O}", "ok", 1, "result", a->result);
	else
		o = json_pack("{s:b, s:s, s:s}", "ok", 0, "code", a->code ? a->code : "failed",
			      "error", a->error);
	text = json_text(o);
	json_decref(o);
	return text;
}

static const char no_memory[] = "{\"ok\":false,\"code\":\"failed\",\"error\":\"no memory\"}";

static void send_text(struct client *cl, const char *text)
{
	struct evbuffer *out = bufferevent_get_output(cl->bev);

	if (evbuffer_add(out, text, strlen(text)) || evbuffer_add(out, "\n", 1))
		cl->ending = true; /* no memory: what it got is all it gets */
	/* libevent would do it, unless it had no memory for that when the client came */
	bufferevent_enable(cl->bev, EV_WRITE);
}

static void fail(struct ctl_answer *a, const char *code, const char *text)
{
	json_decref(a->result);
	a->result = NULL;
	a->code = code;
	snprintf(a->error, sizeof(a->error), "%s", text);
}

/*
 * A descriptor goes with the first byte of an answer, and bytes that are in the queue of the
 * bufferevent would come after it. Returns how many bytes are sent.
 */
static size_t send_fd(struct client *cl, struct ctl_answer *a, const char *text)
{
	bool sent = !unread(cl) && fdpass_send(bufferevent_getfd(cl->bev), text, 1, a->fd) == 1;

	close(a->fd);
	a->has_fd = false;
	if (sent)
		cl->records = true;
	else
		fail(a, "failed", "answers before this one were not read yet");
	return sent;
}

static void answer(struct client *cl, struct ctl_answer *a)
{
	size_t sent = 0;
	char *text;

	if (json_was_short()) /* something may be missing in it */
		fail(a, "failed", "no memory");
	text = answer_text(a);
	if (text && strlen(text) + 1 + unread(cl) > queue_limit(cl)) {
		free(text);
		fail(a, "failed",
		     "the answer is longer than control.max_queue_bytes; ask for one target");
		text = answer_text(a);
	}
	if (text && a->result && a->has_fd && !(sent = send_fd(cl, a, text))) {
		free(text);
		text = answer_text(a);
	}
	if (text)
		send_text(cl, text + sent);
	else
		send_text(cl, no_memory);
	free(text);
	json_decref(a->result);
	if (a->has_fd)
		close(a->fd);
}

static void request(struct client *cl, const char *line, size_t len)
{
	struct ctl_answer a = {.uid = cl->uid};
	json_error_t error;
	json_t *o = json_loadb(line, len, JSON_REJECT_DUPLICATES, &error);

	if (!o) {
		snprintf(a.error, sizeof(a.error), "not a JSON object: %s (column %d)", error.text,
			 error.column);
		a.code = "invalid";
	} else {
		ctl_command(cl->c->d, o, cl->privileged, cl->id, &a);
	}
	json_decref(o);
	cl->waiting = a.later;
	if (!a.later)
		answer(cl, &a);
}

/* ---- events of a client ---- */

static void too_long(struct client *cl)
{
	struct ctl_answer a = {0};

	fail(&a, "invalid", "a request is one line of at most 65536 bytes");
	answer(cl, &a);
	cl->ending = true;
}

static void out_of_memory(struct client *cl)
{
	send_text(cl, no_memory);
	cl->ending = true;
}

/* Why there is no line: it has not come yet, it never will, or it could not be taken out. */
static void no_line(struct client *cl, struct evbuffer *in)
{
	if (evbuffer_search_eol(in, NULL, NULL, EVBUFFER_EOL_LF).pos >= 0)
		out_of_memory(cl);
	else if (evbuffer_get_length(in) >= LINE_MAX_BYTES)
		too_long(cl);
	else if (cl->eof)
		cl->ending = true;
}

/* Answers what is there, as far as the client reads what it gets. */
static void serve(struct client *cl)
{
	struct evbuffer *in = bufferevent_get_input(cl->bev);
	size_t len;
	char *line;

	while (!cl->ending && !cl->waiting && unread(cl) <= queue_limit(cl) / 2) {
		line = evbuffer_readln(in, &len, EVBUFFER_EOL_LF);
		if (!line) {
			no_line(cl, in);
			break;
		}
		if (len)
			request(cl, line, len);
		free(line);
	}
	/* not by a watermark: to set one without memory for it crashes in libevent */
	if (cl->ending || evbuffer_get_length(in) >= LINE_MAX_BYTES)
		bufferevent_disable(cl->bev, EV_READ);
	else if (!cl->eof)
		bufferevent_enable(cl->bev, EV_READ);
	if (cl->ending && !unread(cl))
		client_free(cl);
}

void ctl_later(struct ctl *c, uint64_t client, struct ctl_answer *a)
{
	struct client *cl = c->clients;

	while (cl && cl->id != client)
		cl = cl->next;
	if (!cl || !cl->waiting) {
		json_decref(a->result);
		return;
	}
	cl->waiting = false;
	answer(cl, a);
	/* not from here: the caller is in the middle of a change, and a request may be another */
	bufferevent_trigger(cl->bev, EV_READ,
			    BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void on_read(struct bufferevent *bev, void *arg)
{
	struct client *cl = arg;

	(void)bev;
	cl->heard_ms = mono_ms();
	serve(cl);
}

static void on_written(struct bufferevent *bev, void *arg)
{
	(void)bev;
	serve(arg); /* requests that had to wait */
}

static void on_end(struct bufferevent *bev, short what, void *arg)
{
	struct client *cl = arg;

	(void)bev;
	if (!(what & BEV_EVENT_EOF)) {
		client_free(cl);
		return;
	}
	cl->eof = true; /* it may have shut its side only, and still want the answers */
	serve(cl);
}

/* ---- accepting ---- */

static uint32_t user_of(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) ? (uint32_t)-1 : peer.uid;
}

static void client_new(struct ctl *c, int fd)
{
	struct timeval write_time = {WRITE_SECONDS, 0};
	struct client *cl = calloc(1, sizeof(*cl));

	if (cl)
		cl->bev = bufferevent_socket_new(c->d->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (!cl || !cl->bev) {
		free(cl);
		close(fd);
		return;
	}
	cl->c = c;
	cl->id = ++c->last_id;
	cl->heard_ms = mono_ms();
	cl->uid = user_of(fd);
	cl->privileged = cl->uid == 0 || cl->uid == geteuid();
	cl->next = c->clients;
	c->clients = cl;
	c->n_clients++;
	bufferevent_setcb(cl->bev, on_read, on_written, on_end, cl);
	bufferevent_set_timeouts(cl->bev, NULL, &write_time);
	bufferevent_enable(cl->bev, EV_READ | EV_WRITE);
}

static void turn_away(int fd)
{
	static const char text[] = "{\"ok\":false,\"code\":\"failed\",\"error\":"
				   "\"too many clients (control.max_clients)\"}\n";

	(void)!send(fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	close(fd);
}

/* Whoever keeps connections without using them must not keep others out. */
static bool make_room(struct ctl *c)
{
	struct client *oldest = NULL;

	for (struct client *cl = c->clients; cl; cl = cl->next)
		if (!unread(cl) && !cl->waiting && !cl->records &&
		    (!oldest || cl->heard_ms < oldest->heard_ms))
			oldest = cl;
	if (!oldest || mono_ms() - oldest->heard_ms < SILENT_MS)
		return false;
	client_free(oldest);
	return true;
}

static void on_listener(evutil_socket_t lfd, short what, void *arg)
{
	struct ctl *c = arg;
	struct timeval tv = {0, REST_MS * 1000};
	int fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)what;
	if (fd < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return;
		say_gated(&c->gate, LOG_ERR, "cannot accept a control client: %s; pausing",
			  strerror(errno));
		event_del(c->ev);
		event_add(c->rest_ev, &tv);
	} else if (c->n_clients >= c->d->config->control.max_clients && !make_room(c)) {
		turn_away(fd);
	} else {
		client_new(c, fd);
	}
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
	struct ctl *c = arg;

	(void)fd;
	(void)what;
	event_add(c->ev, NULL);
}

/* ---- the socket ---- */

int ctl_group(const struct config *c, int64_t *ret_gid, char *why)
{
	struct group *g;
	int64_t gid;

	*ret_gid = -1;
	if (!c->control.group)
		return 0;
	g = getgrnam(c->control.group);
	if (g) {
		*ret_gid = g->gr_gid;
		return 0;
	}
	if (!text_parse_i64(c->control.group, &gid) && gid >= 0 && gid < UINT32_MAX) {
		*ret_gid = gid;
		return 0;
	}
	snprintf(why, CLAIM_WHY, "control.group: there is no group \"%.200s\"", c->control.group);
	return -EINVAL;
}

static int socket_new(struct ctl *c, char *why)
{
	const struct config *conf = c->d->config;
	int64_t gid;
	int r;

	r = ctl_group(conf, &gid, why);
	if (r < 0)
		return r;
	c->fd = claim_bind(c->path, SOCK_STREAM, (unsigned)conf->control.mode, why);
	if (c->fd < 0)
		return c->fd;
	if (gid >= 0 && chown(c->path, (uid_t)-1, (gid_t)gid)) {
		r = -errno;
		snprintf(why, CLAIM_WHY, "control.group: %s can not be given to group %lld: %s",
			 c->path, (long long)gid, strerror(-r));
		return r;
	}
	return 0;
}

int ctl_new(struct daemon *d, struct ctl **ret, char *why)
{
	struct ctl *c = calloc(1, sizeof(*c));
	int r = -ENOMEM;

	if (!c)
		return r;
	json_watch_memory();
	c->d = d;
	c->fd = -1;
	c->path = config_control_socket(d->config->socket);
	if (c->path)
		r = socket_new(c, why);
	if (r < 0) {
		ctl_free(c);
		return r;
	}
	c->ev = event_new(d->base, c->fd, EV_READ | EV_PERSIST, on_listener, c);
	c->rest_ev = event_new(d->base, -1, 0, on_rested, c);
	if (!c->ev || !c->rest_ev || event_add(c->ev, NULL)) {
		snprintf(why, CLAIM_WHY, "no memory for the control socket");
		ctl_free(c);
		return -ENOMEM;
	}
	*ret = c;
	return 0;
}

void ctl_free(struct ctl *c)
{
	if (!c)
		return;
	while (c->clients)
		client_free(c->clients);
	if (c->ev)
		event_free(c->ev);
	if (c->rest_ev)
		event_free(c->rest_ev);
	if (c->fd >= 0) {
		unlink(c->path);
		close(c->fd);
	}
	free(c->path);
	free(c);
}
