/* SPDX-License-Identifier: MIT */
/*
 * The control client against a server that answers in pieces, late, wrongly, or not at all.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "lib/ctlclient.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_MAX], base[140], ctl[150];

/*
 * One connection is served by a thread: it reads a line and sends `answer`, `piece` bytes at a
 * time, then waits for the end of the connection. The test thread writes the struct before the
 * thread starts and reads it after it has ended.
 */
struct server {
	pthread_t thread;
	int listener;
	const char *answer;
	size_t n, piece;
	int answers; /* so many requests are answered */
	char *seen;  /* all that was read; malloc'ed */
	size_t n_seen;
};

static int set_up(void **state)
{
	(void)state;
	if (!scratch_dir(dir))
		return -1;
	snprintf(base, sizeof(base), "%s/sock", dir);
	snprintf(ctl, sizeof(ctl), "%s/sock.ctl", dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(ctl);
	return rmdir(dir);
}

static int listen_at(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(strlen(path) < sizeof(a.sun_path));
	strcpy(a.sun_path, path);
	unlink(path);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 5), 0);
	return fd;
}

static void send_pieces(int fd, const char *p, size_t n, size_t piece)
{
	while (n) {
		ssize_t k = send(fd, p, n < piece ? n : piece, MSG_NOSIGNAL);

		if (k <= 0)
			return;
		p += k;
		n -= (size_t)k;
		if (piece < 100)
			usleep(300);
	}
}

static void *serve(void *cookie)
{
	struct server *s = cookie;
	int fd = accept(s->listener, NULL, NULL), answered = 0;
	char buf[4096];
	ssize_t k;

	while ((k = recv(fd, buf, sizeof(buf), 0)) > 0) {
		char *seen = realloc(s->seen, s->n_seen + (size_t)k + 1);

		if (!seen)
			break;
		s->seen = seen;
		memcpy(seen + s->n_seen, buf, (size_t)k);
		s->n_seen += (size_t)k;
		seen[s->n_seen] = '\0';
		if (buf[k - 1] != '\n' || !s->answer)
			continue;
		if (answered++ >= s->answers)
			break;
		send_pieces(fd, s->answer, s->n, s->piece);
	}
	close(fd);
	return NULL;
}

static struct ctlclient *start(struct server *s, const char *answer, size_t piece, int answers)
{
	struct ctlclient *c = NULL;
	char why[256] = "";

	memset(s, 0, sizeof(*s));
	s->listener = listen_at(ctl);
	s->answer = answer;
	s->n = answer ? strlen(answer) : 0;
	s->piece = piece;
	s->answers = answers;
	assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
	if (ctlclient_open(base, &c, why))
		fail_msg("%s", why);
	return c;
}

static void stop(struct server *s, struct ctlclient *c)
{
	ctlclient_close(c);
	pthread_join(s->thread, NULL);
	close(s->listener);
	free(s->seen);
	unlink(ctl);
}

/* One call; *ret_why is static. */
static int call(struct ctlclient *c, int timeout_ms, json_t **ret, const char **ret_why)
{
	static char why[256];
	json_t *request = json_pack("{s:s,s:i}", "cmd", "status", "target", 3);
	int r;

	why[0] = '\0';
	r = ctlclient_call(c, request, timeout_ms, ret, why);
	assert_int_equal(request->refcount, 1);
	json_decref(request);
	*ret_why = why;
	return r;
}

static void test_pieces(void **state)
{
	struct server s;
	struct ctlclient *c = start(&s, "{\"ok\":true,\"result\":{\"a\":[1,2]}}\n", 1, 9);
	const char *why;

	(void)state;
	for (int i = 0; i < 3; i++) {
		json_t *r = NULL;

		assert_int_equal(call(c, 5000, &r, &why), 0);
		assert_int_equal(json_array_size(json_object_get(r, "a")), 2);
		assert_int_equal(r->refcount, 1);
		json_decref(r);
	}
	ctlclient_close(c);
	pthread_join(s.thread, NULL);
	assert_string_equal(s.seen, "{\"cmd\":\"status\",\"target\":3}\n"
				    "{\"cmd\":\"status\",\"target\":3}\n"
				    "{\"cmd\":\"status\",\"target\":3}\n");
	close(s.listener);
	free(s.seen);
	unlink(ctl);
}

static void test_large_answer(void **state)
{
	const size_t n = 5 << 20;
	char *answer = malloc(n + 100);
	struct server s;
	struct ctlclient *c;
	json_t *r = NULL;
	const char *why;
	size_t at;

	(void)state;
	at = (size_t)sprintf(answer, "{\"ok\":true,\"result\":\"");
	memset(answer + at, 'x', n);
	strcpy(answer + at + n, "\"}\n");
	c = start(&s, answer, 70000, 9);
	assert_int_equal(call(c, 20000, &r, &why), 0);
	assert_int_equal(json_string_length(r), n);
	json_decref(r);
	stop(&s, c);
	free(answer);
}

static void expect_error(const char *answer, int want, const char *text, bool usable)
{
	struct server s;
	struct ctlclient *c = start(&s, answer, 1000, 9);
	json_t *r = NULL;
	const char *why;
	int got = call(c, 5000, &r, &why);

	if (got != want || !strstr(why, text))
		fail_msg("%s: %d %s", answer, got, why);
	assert_null(r);
	got = call(c, 5000, &r, &why);
	assert_int_equal(got, usable ? want : -ENOTCONN);
	stop(&s, c);
}

static void test_errors_of_the_daemon(void **state)
{
	(void)state;
	expect_error("{\"ok\":false,\"code\":\"not-found\",\"error\":\"no target 3\"}\n", -ENOENT,
		     "no target 3", true);
	expect_error("{\"ok\":false,\"code\":\"invalid\",\"error\":\"bad\"}\n", -EINVAL, "bad",
		     true);
	expect_error("{\"ok\":false,\"code\":\"denied\",\"error\":\"no\"}\n", -EPERM, "no", true);
	expect_error("{\"ok\":false,\"code\":\"failed\",\"error\":\"no\"}\n", -EREMOTEIO, "no",
		     true);
	expect_error("{\"ok\":false,\"code\":7}\n", -EREMOTEIO, "gave no reason", true);
}

static void test_broken_answers(void **state)
{
	(void)state;
	expect_error("HTTP/1.1 400 Bad Request\r\n\r\n", -EBADMSG, "no JSON", false);
	expect_error("\n", -EBADMSG, "no JSON", false);
	expect_error("[1]\n", -EBADMSG, "is it pcptuned?", false);
	expect_error("{}\n", -EBADMSG, "is it pcptuned?", false);
	expect_error("{\"ok\":true}\n", -EBADMSG, "is it pcptuned?", false);
	expect_error("{\"ok\":true,\"ok\":false}\n", -EBADMSG, "no JSON", false);
	expect_error("\xff\xfe\n", -EBADMSG, "no JSON", false);
}

static void test_time_out(void **state)
{
	struct server s;
	struct ctlclient *c = start(&s, NULL, 1, 0);
	struct timespec a, b;
	json_t *r = NULL;
	const char *why;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &a);
	assert_int_equal(call(c, 100, &r, &why), -ETIMEDOUT);
	clock_gettime(CLOCK_MONOTONIC, &b);
	assert_non_null(strstr(why, "no answer within 100 ms"));
	assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 >= 99);
	/* a late answer must not be taken for the next one */
	assert_int_equal(call(c, 100, &r, &why), -ENOTCONN);
	stop(&s, c);
}

/* Half an answer that goes on for ever is no reason to wait for ever. */
static void test_slow_trickle(void **state)
{
	char answer[3000];
	struct server s;
	struct ctlclient *c;
	json_t *r = NULL;
	const char *why;

	(void)state;
	memset(answer, ' ', sizeof(answer));
	answer[sizeof(answer) - 1] = '\0';
	c = start(&s, answer, 1, 9);
	assert_int_equal(call(c, 80, &r, &why), -ETIMEDOUT);
	stop(&s, c);
}

static void test_hang_up(void **state)
{
	struct server s;
	struct ctlclient *c = start(&s, "{\"ok\":true,\"result\":1}\n", 1000, 1);
	json_t *r = NULL;
	const char *why;
	int got;

	(void)state;
	assert_int_equal(call(c, 5000, &r, &why), 0);
	json_decref(r);
	r = NULL;
	got = call(c, 5000, &r, &why); /* the server ends instead of answering */
	assert_true(got == -ECONNRESET || got == -EPIPE);
	assert_non_null(strstr(why, "closed the connection"));
	assert_int_equal(call(c, 5000, &r, &why), -ENOTCONN);
	assert_null(r);
	stop(&s, c);
}

static void test_large_request(void **state)
{
	struct server s;
	struct ctlclient *c = start(&s, "{\"ok\":true,\"result\":1}\n", 1000, 9);
	char *big = calloc(1, 65600), why[256] = "";
	json_t *request, *r = NULL;

	(void)state;
	memset(big, 'a', 65599);
	request = json_pack("{s:s}", "cmd", big);
	assert_int_equal(ctlclient_call(c, request, 1000, &r, why), -EMSGSIZE);
	assert_non_null(strstr(why, "allowed: 64 KiB"));
	json_decref(request);
	big[65536 - 11] = '\0'; /* with {"cmd":""} and its newline just 64 KiB */
	request = json_pack("{s:s}", "cmd", big);
	assert_int_equal(ctlclient_call(c, request, 5000, &r, why), 0);
	json_decref(r);
	json_decref(request);
	free(big);
	stop(&s, c);
}

static void expect_no_daemon(const char *path, int want, const char *text)
{
	struct ctlclient *c = NULL;
	char why[256] = "";
	int got = ctlclient_open(path, &c, why);

	if (got != want || !strstr(why, text))
		fail_msg("%d %s", got, why);
	assert_null(c);
}

static void test_no_daemon(void **state)
{
	char text[300], path[200];

	(void)state;
	snprintf(text, sizeof(text),
		 "no daemon listens at %s; start pcptuned (what pcptune run starts for one run has "
		 "a socket of its own, see pcptune(1))",
		 ctl);
	expect_no_daemon(base, -ENOENT, text);
	close(listen_at(ctl)); /* a stale socket file */
	expect_no_daemon(base, -ECONNREFUSED, text);
	unlink(ctl);
	memset(path, 'x', sizeof(path));
	path[150] = '\0';
	expect_no_daemon(path, -ENAMETOOLONG, "too long");
	setenv("PCPTUNE_SOCKET", base, 1);
	expect_no_daemon(NULL, -ENOENT, text);
	unsetenv("PCPTUNE_SOCKET");
	ctlclient_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_large_answer),
		cmocka_unit_test(test_errors_of_the_daemon),
		cmocka_unit_test(test_broken_answers),
		cmocka_unit_test(test_time_out),
		cmocka_unit_test(test_slow_trickle),
		cmocka_unit_test(test_hang_up),
		cmocka_unit_test(test_large_request),
		cmocka_unit_test(test_no_daemon),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
