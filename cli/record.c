/* SPDX-License-Identifier: MIT */
/*
 * `pcptune record`: a program's movements of pages, as a trace.
 *
 * The program runs with the preload library and the name of a socket of ours in its environment; it
 * and its children each send the rings that their events are in (pcptune/events.h). A thread copies
 * them into the trace while the program runs, every millisecond. The file appears when the program
 * has ended; what is on disk then is whole. When the disk is full the program goes on, what could be
 * written is kept, and the exit status says so unless the program's does.
 *
 * Two threads: the first runs the program (run_child.c) and takes all signals, the second records.
 */
#include "cli/output.h"
#include "cli/run.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "lib/recorder.h"
#include "lib/text.h"

struct args {
	const char *output, *json;
	bool quiet;
};

const struct cli_option options_record[] = {
	{"output", 'o', "FILE", "the trace to write (needed)", cli_set_string,
	 offsetof(struct args, output)},
	{"json", 'j', "FILE", "write the summary as a JSON object (- standard output)",
	 cli_set_string, offsetof(struct args, json)},
	{"quiet", 'q', NULL, "no summary on standard error", cli_set_flag,
	 offsetof(struct args, quiet)},
	{.name = NULL},
};

struct recording {
	struct cli_output out;
	struct trace_writer *w;
	struct recorder *r;
	char dir[32];
	struct sockaddr_un place;
	int listener;
	pthread_t thread;
	uint32_t stop; /* the program has ended */
	int error;     /* of writing; the thread's until it is joined */
};

/* ---- the socket ---- */

static int open_socket(struct recording *c)
{
	strcpy(c->dir, "/tmp/pcptune-record.XXXXXX");
	if (!mkdtemp(c->dir)) {
		c->dir[0] = '\0';
		return cli_error("/tmp: no directory for a socket: %s", strerror(errno));
	}
	c->place.sun_family = AF_UNIX;
	snprintf(c->place.sun_path, sizeof(c->place.sun_path), "%s/events", c->dir);
	c->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&c->place, sizeof(c->place)) ||
	    listen(c->listener, SOMAXCONN))
		return cli_error("%s: %s", c->place.sun_path, strerror(errno));
	return -1;
}

static void close_socket(struct recording *c)
{
	if (c->listener >= 0)
		close(c->listener);
	if (!c->dir[0])
		return;
	unlink(c->place.sun_path);
	rmdir(c->dir);
}

/* ---- the thread ---- */

static void *record(void *p)
{
	struct recording *c = p;
	struct timespec ms = {0, 1000000};
	uint64_t rows;
	bool last = false;

	/* the pass after the end takes all that was there by then; children may go on for ever */
	while (!c->error && !last) {
		last = __atomic_load_n(&c->stop, __ATOMIC_ACQUIRE);
		c->error = recorder_pass(c->r, &rows);
		if (!rows && !last)
			nanosleep(&ms, NULL);
	}
	return NULL;
}

/* With every signal blocked in it: they are for the program. */
static int start_thread(struct recording *c)
{
	sigset_t all, before;
	int e;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	e = pthread_create(&c->thread, NULL, record, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return e ? cli_error("no thread: %s", strerror(e)) : -1;
}

/* ---- all of it ---- */

static int start(struct recording *c, const struct args *a, const char *program)
{
	char source[128];
	int e, x = open_socket(c);

	if (x >= 0)
		return x;
	x = cli_output_open(&c->out, a->output);
	if (x >= 0)
		return x;
	snprintf(source, sizeof(source), "record %.50s", program);
	for (char *s = source; *s; s++)
		if ((unsigned char)*s < ' ')
			*s = '?';
	e = trace_writer_new(c->out.f, source, &c->w);
	if (!e)
		e = recorder_new(c->listener, c->w, &c->r);
	x = e ? cli_error("%s: %s", a->output, strerror(-e)) : start_thread(c);
	if (x >= 0)
		cli_output_close(&c->out, false);
	return x;
}

static int run_program(struct recording *c, char **argv, struct run_result *ret)
{
	char preload[PATH_MAX], *list;
	int e, x = run_find_preload(preload, sizeof(preload));

	if (x >= 0)
		return x;
	list = run_preload_list(preload);
	if (!list)
		return cli_error("out of memory");
	e = run_child(argv,
		      (struct run_env[]){{"LD_PRELOAD", list},
					 {"PCPTUNE_SOCKET", ""},
					 {"PCPALLOC_EVENTS", c->place.sun_path}},
		      3, ret);
	free(list);
	if (e)
		return cli_error("%s: no process: %s", argv[0], strerror(-e));
	if (ret->error)
		cli_error("%s: %s", argv[0], strerror(ret->error));
	return -1;
}

static void print_summary(const struct recorder_totals *t, const char *path)
{
	struct stat st = {0};
	char n[3][48];

	stat(path, &st);
	fprintf(stderr, "pcptune: %s row%s of %" PRIu32 " process%s in %s, %s\n",
		cli_count(t->rows, n[0], sizeof(n[0])), t->rows == 1 ? "" : "s", t->programs,
		t->programs == 1 ? "" : "es", path,
		text_bytes((uint64_t)st.st_size, n[1], sizeof(n[1])));
	if (!t->programs)
		fprintf(stderr, "pcptune: no process sent events: none made a request of 4 KiB to "
				"4 MiB, or none could reach the recorder\n");
	if (t->merged)
		fprintf(stderr,
			"pcptune: %s events found their ring full and are part of a later one\n",
			cli_count(t->merged, n[2], sizeof(n[2])));
	if (t->bad || t->refused)
		fprintf(stderr,
			"pcptune: %" PRIu64 " events and %" PRIu32 " programs made no sense\n",
			t->bad, t->refused);
}

static int write_json(const struct recorder_totals *t, const struct args *a, int status)
{
	json_t *o = json_object();
	FILE *f = strcmp(a->json, "-") ? fopen(a->json, "we") : stdout;
	bool bad;

	json_object_set_new(o, "file", json_string(a->output));
	json_object_set_new(o, "status", json_integer(status));
	json_object_set_new(o, "rows", json_integer((json_int_t)t->rows));
	json_object_set_new(o, "programs", json_integer(t->programs));
	json_object_set_new(o, "merged", json_integer((json_int_t)t->merged));
	json_object_set_new(o, "bad", json_integer((json_int_t)t->bad + t->refused));
	bad = !f || json_dumpf(o, f, JSON_COMPACT) || fputc('\n', f) == EOF || fflush(f);
	if (f && f != stdout)
		bad |= fclose(f) != 0;
	json_decref(o);
	return bad ? cli_error("%s: %s", a->json, strerror(errno)) : -1;
}

/* What could be written is a trace that ends too early, which readers know how to take. */
static int keep_part(struct recording *c, const char *path)
{
	fclose(c->out.f);
	if (rename(c->out.tmp, path))
		unlink(c->out.tmp);
	return cli_error("%s: %s; the trace ends there", path, strerror(-c->error));
}

/* The end of the trace, and what there is to be said. Returns the exit status. */
static int finish(struct recording *c, const struct args *a, int status)
{
	struct recorder_totals t;
	int x;

	__atomic_store_n(&c->stop, 1, __ATOMIC_RELEASE);
	pthread_join(c->thread, NULL);
	recorder_totals(c->r, &t);
	if (!c->error)
		c->error = trace_writer_end(c->w);
	x = c->error ? keep_part(c, a->output) : cli_output_close(&c->out, true);
	if (!a->quiet && x < 0)
		print_summary(&t, a->output);
	if (a->json && x < 0)
		x = write_json(&t, a, status);
	/* a failure of ours must not look like success, and not hide one of the program's */
	return status ? status : x < 0 ? CLI_OK : x;
}

int cmd_record(int argc, char **argv)
{
	struct recording c = {.listener = -1};
	struct args a = {0};
	struct run_result result = {0};
	struct cli_rest rest;
	int x = cli_parse(argc, argv, &a, 1, -1, &rest);

	if (x >= 0)
		return x;
	if (!a.output)
		return cli_usage_error("missing: where to write (-o FILE)");
	run_occupy_standard_descriptors();
	x = start(&c, &a, rest.argv[0]);
	if (x < 0) {
		x = run_program(&c, rest.argv, &result);
		x = finish(&c, &a, x < 0 ? result.status : x);
	}
	recorder_free(c.r);
	trace_writer_free(c.w);
	close_socket(&c);
	return x;
}
