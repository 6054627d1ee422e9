/* SPDX-License-Identifier: MIT */
/*
 * `pcptune record TARGET`: a program that runs already.
 *
 * The daemon asks its agent to begin, and gives us the other end of a socket that the agent sends
 * its rings over (pcptune/events.h, daemon/tracing.c). From then on we read the rings, each
 * millisecond, and the daemon only has to be there: when it goes, its limits do, and what came
 * after would be of another program than what came before.
 *
 * However it ends, the program is asked to write what it has left, and that is waited for; so the
 * trace has every movement up to its end. When we are killed the program sees our socket closed,
 * and lets its rings go. The connection to the daemon is kept for its end of file.
 *
 * One thread. Signals only set a word.
 */
#include "cli/record.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define BEGIN_MS 10000 /* an agent is woken, but the machine may be busy */
#define END_MS	 2000

struct session {
	struct recording *c;
	struct ctlclient *ctl;
	json_t *target; /* id, name, pid, uid */
	uint64_t begun_ns;
	const char *ended; /* "seconds", "signal", "target", "daemon" */
	bool cut;	   /* the program did not write its end */
};

static volatile int stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

/* Those that somebody wants to be ignored stay so. */
static void take_signals(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction act = {.sa_handler = on_signal}, old;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (!sigaction(ends[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaction(ends[i], &act, NULL);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(void)
{
	struct timespec ms = {0, 1000000};

	nanosleep(&ms, NULL);
}

/* ---- beginning ---- */

static int begin_error(const struct session *s, int e)
{
	static const struct {
		int e;
		const char *what;
	} known[] = {
		{-EBUSY, "is being recorded already"},
		{-EOPNOTSUPP, "has no band trackers (PCPALLOC_GRAIN=0), which events come from"},
		{-EPERM, "does not let itself be recorded by way of another user's daemon"},
		{-ENOBUFS, "has no memory for its events"},
		{-ECONNRESET, "has gone"},
		{-EINTR, "had not begun yet"},
		{-EBADMSG, "sent something that makes no sense"},
	};
	const char *name = cli_str(s->target, "name");
	uint64_t id = cli_u64(s->target, "id");

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (e == known[i].e)
			return cli_error("target %" PRIu64 " %s %s", id, name, known[i].what);
	if (e == -ETIMEDOUT)
		return cli_error("target %" PRIu64 " %s did not begin within %d s; is it stopped?",
				 id, name, BEGIN_MS / 1000);
	return cli_error("no recording of target %" PRIu64 " %s: %s", id, name,
			 e == -ENOMEM ? "no memory here for its events" : strerror(-e));
}

/* The socket that its rings will come by, -1 after a message. */
static int ask(struct session *s, const char *word, int *ret_exit)
{
	int fd;

	*ret_exit = cli_connect(s->c->a->socket, &s->ctl);
	if (*ret_exit < 0)
		*ret_exit = cli_call(
			s->ctl,
			json_pack("{s:s, s:o}", "cmd", "record", "target", cli_target(word)),
			&s->target);
	if (*ret_exit >= 0)
		return -1;
	fd = ctlclient_descriptor(s->ctl);
	if (fd < 0)
		*ret_exit = cli_error("the daemon sent no descriptor; are we out of them?");
	return fd;
}

static int begin(struct session *s, const char *word)
{
	const struct trace_row *levels;
	int x, fd = ask(s, word, &x), e;
	size_t n;

	if (fd < 0)
		return x;
	e = recorder_join(s->c->r, fd, BEGIN_MS, &stop, &levels, &n);
	if (e)
		return begin_error(s, e);
	s->begun_ns = now_ns();
	x = record_writer(s->c, cli_str(s->target, "name"), n);
	if (x < 0)
		s->c->error = recorder_write_to(s->c->r, s->c->w);
	return x;
}

/* ---- the recording ---- */

/* Why it ends; NULL: it goes on. */
static const char *end_of(const struct session *s)
{
	int64_t seconds = s->c->a->seconds;

	if (stop)
		return "signal";
	if (seconds > 0 && now_ns() - s->begun_ns >= (uint64_t)seconds * 1000000000u)
		return "seconds";
	if (recorder_ended(s->c->r))
		return "target";
	return ctlclient_gone(s->ctl) ? "daemon" : NULL;
}

static void copy(struct session *s)
{
	uint64_t rows;

	while (!s->c->error && !(s->ended = end_of(s))) {
		s->c->error = recorder_pass(s->c->r, &rows);
		if (!rows)
			nap();
	}
}

/* The program writes what it has left, and then there is nothing more. */
static void end(struct session *s)
{
	uint64_t rows, until = now_ns() + END_MS * UINT64_C(1000000);

	recorder_end(s->c->r);
	while (!s->c->error && !(s->cut = now_ns() > until) && !recorder_ended(s->c->r)) {
		s->c->error = recorder_pass(s->c->r, &rows);
		nap();
	}
	if (!s->c->error)
		s->c->error = recorder_pass(s->c->r, &rows);
}

/* ---- what is said ---- */

static void print_summary(const struct session *s, double seconds)
{
	char whom[160];

	snprintf(whom, sizeof(whom), "target %" PRIu64 " %s in %.2f s", cli_u64(s->target, "id"),
		 cli_str(s->target, "name"), seconds);
	record_print(s->c, whom);
	if (s->c->a->quiet)
		return;
	if (!strcmp(s->ended, "target") || !strcmp(s->ended, "daemon"))
		fprintf(stderr, "pcptune: it ended because the %s has gone\n", s->ended);
	if (s->cut)
		fprintf(stderr,
			"pcptune: the target did not say that it ended within %d s; the last moves "
			"of its lists may be missing\n",
			END_MS / 1000);
}

static int finish(struct session *s)
{
	double seconds = (double)(now_ns() - s->begun_ns) / 1e9;
	int x = record_end(s->c);

	if (x >= 0)
		return x;
	print_summary(s, seconds);
	x = record_json(s->c, 0,
			json_pack("{s:O, s:f, s:s, s:b}", "target", s->target, "seconds", seconds,
				  "ended", s->ended, "cut", s->cut));
	return x < 0 ? CLI_OK : x;
}

int record_target(struct recording *c, const char *word)
{
	struct session s = {.c = c, .ended = "error"};
	int e, x = cli_output_open(&c->out, c->a->output);

	if (x >= 0)
		return x;
	take_signals();
	e = recorder_new(-1, NULL, &c->r);
	x = e ? cli_error("%s", strerror(-e)) : begin(&s, word);
	if (x < 0) {
		copy(&s);
		end(&s);
		x = finish(&s);
	} else {
		cli_output_close(&c->out, false);
	}
	ctlclient_close(s.ctl);
	json_decref(s.target);
	return x;
}
