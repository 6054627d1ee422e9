/* SPDX-License-Identifier: MIT */
/*
 * `pcptune record -- PROGRAM`.
 *
 * The program runs with the preload library and the name of a socket of ours in its environment; it
 * and its children each send the rings that their events are in (pcptune/events.h). A thread copies
 * them into the trace while the program runs, every millisecond. When the disk is full the program
 * goes on, and the exit status says so unless the program's does.
 *
 * Two threads: the first runs the program (run_child.c) and takes all signals, the second records.
 */
#include "cli/record.h"
#include "cli/run.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct session {
	struct recording *c;
	char dir[32];
	struct sockaddr_un place;
	int listener;
	pthread_t thread;
	uint32_t stop; /* the program has ended */
};

/* ---- the socket ---- */

static int open_socket(struct session *s)
{
	strcpy(s->dir, "/tmp/pcptune-record.XXXXXX");
	if (!mkdtemp(s->dir)) {
		s->dir[0] = '\0';
		return cli_error("/tmp: no directory for a socket: %s", strerror(errno));
	}
	s->place.sun_family = AF_UNIX;
	snprintf(s->place.sun_path, sizeof(s->place.sun_path), "%s/events", s->dir);
	s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&s->place, sizeof(s->place)) ||
	    listen(s->listener, SOMAXCONN))
		return cli_error("%s: %s", s->place.sun_path, strerror(errno));
	return -1;
}

static void close_socket(struct session *s)
{
	if (s->listener >= 0)
		close(s->listener);
	if (!s->dir[0])
		return;
	unlink(s->place.sun_path);
	rmdir(s->dir);
}

/* ---- the thread ---- */

static void *record(void *p)
{
	struct session *s = p;
	struct recording *c = s->c;
	struct timespec ms = {0, 1000000};
	uint64_t rows;
	bool last = false;
	int e;

	/* the pass after the end takes all that was there by then; children may go on for ever */
	while (!last) {
		last = __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE);
		e = recorder_pass(c->r, &rows);
		if (e && !c->error) {
			c->error = e;
			recorder_discard(c->r);
		}
		if (!rows && !last)
			nanosleep(&ms, NULL);
	}
	return NULL;
}

/* With every signal blocked in it: they are for the program. */
static int start_thread(struct session *s)
{
	sigset_t all, before;
	int e;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	e = pthread_create(&s->thread, NULL, record, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return e ? cli_error("no thread: %s", strerror(e)) : -1;
}

/* ---- all of it ---- */

static int start(struct session *s, const char *program)
{
	struct recording *c = s->c;
	int e, x = open_socket(s);

	if (x >= 0)
		return x;
	x = cli_output_open(&c->out, c->a->output);
	if (x >= 0)
		return x;
	x = record_writer(c, program, 0);
	if (x < 0 && (e = recorder_new(s->listener, c->w, &c->r)))
		x = cli_error("%s: %s", c->a->output, strerror(-e));
	if (x < 0)
		x = start_thread(s);
	if (x >= 0)
		cli_output_close(&c->out, false);
	return x;
}

static int run_program(struct session *s, char **argv, struct run_result *ret)
{
	char preload[PATH_MAX], *list;
	int e, x = run_find_preload(preload, sizeof(preload));

	if (x >= 0)
		return x;
	run_tell_settings();
	list = run_preload_list(preload);
	if (!list)
		return cli_error("out of memory");
	e = run_child(argv,
		      (struct run_env[]){{"LD_PRELOAD", list},
					 {"PCPTUNE_SOCKET", ""},
					 {"PCPALLOC_EVENTS", s->place.sun_path}},
		      3, ret);
	free(list);
	if (e)
		return cli_error("%s: no process: %s", argv[0], strerror(-e));
	if (ret->error)
		cli_error("%s: %s", argv[0], strerror(ret->error));
	return -1;
}

static void print_summary(const struct recording *c)
{
	struct recorder_totals t;
	char whom[48];

	recorder_totals(c->r, &t);
	snprintf(whom, sizeof(whom), "%" PRIu32 " process%s", t.programs,
		 t.programs == 1 ? "" : "es");
	record_print(c, whom);
	if (!t.programs && !c->a->quiet)
		fprintf(stderr, "pcptune: no process sent events: none made a request of 4 KiB to "
				"4 MiB, or none could reach the recorder\n");
}

/* The end of the trace, and what there is to be said. Returns the exit status. */
static int finish(struct session *s, bool started, int status)
{
	int x;

	__atomic_store_n(&s->stop, 1, __ATOMIC_RELEASE);
	pthread_join(s->thread, NULL);
	if (!started) { /* what was there under this name stays */
		cli_output_close(&s->c->out, false);
		return status;
	}
	x = record_end(s->c);
	if (x < 0) {
		print_summary(s->c);
		x = record_json(s->c, status, NULL);
	}
	/* a failure of ours must not look like success, and not hide one of the program's */
	return status ? status : x < 0 ? CLI_OK : x;
}

int record_program(struct recording *c, char **argv)
{
	struct session s = {.c = c, .listener = -1};
	struct run_result result = {0};
	int x;

	run_occupy_standard_descriptors();
	x = start(&s, argv[0]);
	if (x < 0) {
		x = run_program(&s, argv, &result);
		x = finish(&s, x < 0 && !result.error, x < 0 ? result.status : x);
	}
	close_socket(&s);
	return x;
}
