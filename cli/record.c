/* SPDX-License-Identifier: MIT */
/*
 * `pcptune record`: movements of the lists of a program, as a trace.
 *
 * Of a target, which runs already and is attached to a daemon, or of a program that is started for
 * it; a "--" tells the two apart. The file appears when the recording has ended; what is on disk
 * then is whole. When the disk is full what could be written is kept, and the exit status says so.
 */
#include "cli/record.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include "lib/text.h"

const struct cli_option options_record[] = {
	{"output", 'o', "FILE", "the trace to write (needed)", cli_set_string,
	 offsetof(struct record_args, output)},
	{"seconds", 'n', "N", "of a target: ends after so long", cli_set_i64,
	 offsetof(struct record_args, seconds)},
	{"json", 'j', "FILE", "write the summary as a JSON object (- standard output)",
	 cli_set_string, offsetof(struct record_args, json)},
	{"quiet", 'q', NULL, "no summary on standard error", cli_set_flag,
	 offsetof(struct record_args, quiet)},
	CLI_OPT_SOCKET(struct record_args, socket),
	{.name = NULL},
};

/* ---- the file ---- */

int record_writer(struct recording *c, const char *name, size_t levels)
{
	char source[64];
	int e;

	snprintf(source, sizeof(source), "record %.50s", name);
	for (char *s = source; *s; s++)
		if ((unsigned char)*s < ' ')
			*s = '?';
	e = trace_writer_new_at(c->out.f, source, levels, &c->w);
	return e ? cli_error("%s: %s", c->a->output, strerror(-e)) : -1;
}

/* What could be written is a trace that ends too early, which readers know how to take. */
static int keep_part(struct recording *c)
{
	cli_output_keep(&c->out);
	return cli_error("%s: %s; the trace ends there", c->a->output, strerror(-c->error));
}

int record_end(struct recording *c)
{
	if (!c->error)
		c->error = trace_writer_end(c->w);
	return c->error ? keep_part(c) : cli_output_close(&c->out, true);
}

void record_free(struct recording *c)
{
	recorder_free(c->r);
	trace_writer_free(c->w);
}

/* ---- what is said ---- */

void record_print(const struct recording *c, const char *whom)
{
	struct recorder_totals t;
	struct stat st = {0};
	char n[3][48];

	if (c->a->quiet)
		return;
	recorder_totals(c->r, &t);
	stat(c->a->output, &st);
	fprintf(stderr, "pcptune: %s row%s of %s in %s, %s\n",
		cli_count(t.rows, n[0], sizeof(n[0])), t.rows == 1 ? "" : "s", whom, c->a->output,
		text_bytes((uint64_t)st.st_size, n[1], sizeof(n[1])));
	if (t.merged)
		fprintf(stderr,
			"pcptune: %s events found their ring full and are part of a later one\n",
			cli_count(t.merged, n[2], sizeof(n[2])));
	if (t.bad || t.refused)
		fprintf(stderr,
			"pcptune: %" PRIu64 " events and %" PRIu32 " programs made no sense\n",
			t.bad, t.refused);
}

int record_json(const struct recording *c, int status, json_t *more)
{
	const char *path = c->a->json;
	struct recorder_totals t;
	json_t *o;
	FILE *f;
	bool bad;

	if (!path) {
		json_decref(more);
		return -1;
	}
	recorder_totals(c->r, &t);
	o = json_pack("{s:o, s:i, s:I, s:I, s:I, s:I}", "file", json_shown(c->a->output), "status",
		      status, "rows", (json_int_t)t.rows, "programs", (json_int_t)t.programs,
		      "merged", (json_int_t)t.merged, "bad", (json_int_t)t.bad + t.refused);
	json_object_update(o, more);
	json_decref(more);
	f = strcmp(path, "-") ? fopen(path, "we") : stdout;
	bad = !f || json_dumpf(o, f, JSON_COMPACT) || fputc('\n', f) == EOF || fflush(f);
	if (f && f != stdout)
		bad |= fclose(f) != 0;
	json_decref(o);
	return bad ? cli_error("%s: %s", path, strerror(errno)) : -1;
}

/* ---- the verb ---- */

static int words_fit(const struct record_args *a, const struct cli_rest *rest)
{
	if (!a->output)
		return cli_usage_error("missing: where to write (-o FILE)");
	if (!strcmp(a->output, "-"))
		return cli_usage_error("--output -: a file is needed, or /dev/stdout");
	if (!a->seconds)
		return cli_usage_error("--seconds 0: not a whole number from 1");
	if (!rest->marked && rest->argc > 1)
		return cli_usage_error(
			"\"%s\" is one word too many for a target; a program that is "
			"to be started stands behind \"--\"",
			rest->argv[1]);
	if (rest->marked && (a->seconds >= 0 || a->socket))
		return cli_usage_error("--%s is for a target, not for a program behind \"--\"",
				       a->socket ? "socket" : "seconds");
	return -1;
}

int cmd_record(int argc, char **argv)
{
	struct record_args a = {.seconds = -1};
	struct recording c = {.a = &a};
	struct cli_rest rest;
	int x = cli_parse(argc, argv, &a, 1, -1, &rest);

	if (x < 0)
		x = words_fit(&a, &rest);
	if (x >= 0)
		return x;
	x = rest.marked ? record_program(&c, rest.argv) : record_target(&c, rest.argv[0]);
	record_free(&c);
	return x;
}
