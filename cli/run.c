/* SPDX-License-Identifier: MIT */
/*
 * `pcptune run`: a program that does not know of us, with its page-grain malloc on tuned lists.
 *
 * Order of things: check the command line; find or start the daemon; run the program with the
 * preload library, the daemon's socket and a random tag in its environment (children inherit all
 * three, and the daemon adds up whoever carries the tag); ask for the totals; end our own daemon.
 * A daemon that can not be had is no reason not to run the program, unless the command line asked
 * for something that it refused.
 *
 * One thread. The exit status is the program's: 128 + N for signal N, 127 not found, 126 not
 * executable.
 */
#include "cli/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <pcptune/settings.h>
#include "pcpalloc.h"

#define PRELOAD_NAME "libpcpalloc-preload.so"

/* clang-format off */
const struct cli_option options_run[] = {
	{"policy", 'p', "NAME", "policy to tune with, in a daemon for this run", cli_set_string,
	 offsetof(struct run_args, policy)},
	{"set", 0, "KEY=VALUE", "a parameter of the policy, may be repeated", cli_set_list,
	 offsetof(struct run_args, set)},
	{"json", 'j', "FILE", "write the summary as a JSON object (- standard output)",
	 cli_set_string, offsetof(struct run_args, json)},
	{"min-size", 0, "BYTES", "smallest request on the lists (default 4096)", cli_set_size,
	 offsetof(struct run_args, min_size)},
	{"max-size", 0, "BYTES", "largest request on the lists (default 4m)", cli_set_size,
	 offsetof(struct run_args, max_size)},
	{"db", 'd', "PATH", "where the log of this run goes", cli_set_string,
	 offsetof(struct run_args, db)},
	{"private", 0, NULL, "a daemon for this run, even if one runs already", cli_set_flag,
	 offsetof(struct run_args, own_daemon)},
	{"quiet", 'q', NULL, "no summary on standard error", cli_set_flag,
	 offsetof(struct run_args, quiet)},
	{.name = NULL},
};
/* clang-format on */

/* ---- the environment of the program ---- */

/* Beside our executable (installed: BINDIR and LIBDIR; built: bin and lib), else the fixed place */
int run_find_preload(char *path, size_t n)
{
	char exe[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;
	int i;

	exe[len > 0 ? len : 0] = '\0';
	for (i = 0; i < 2 && (slash = strrchr(exe, '/')); i++)
		*slash = '\0';
	if ((size_t)snprintf(path, n, "%s/lib/" PRELOAD_NAME, exe) >= n || access(path, R_OK))
		snprintf(path, n, "%s/" PRELOAD_NAME, PCPTUNE_LIBDIR);
	if (access(path, R_OK))
		return cli_error("%s: %s", path, strerror(errno));
	if (strpbrk(path, ": \t\n"))
		return cli_error("%s: a path with a colon or white space can not be preloaded",
				 path);
	return -1;
}

/* The library counts as left out what it does not understand; who set it is told here. */
void run_tell_settings(void)
{
	char text[256];

	for (char **e = environ; e && *e; e++) {
		if (!pcptune_setting_is_bad(*e))
			continue;
		pcptune_setting_explain(*e, text, sizeof(text));
		cli_error("%s; it counts as left out", text);
	}
}

/* Ours first, then what was there; a nested run finds ours there already. malloc'ed, NULL. */
char *run_preload_list(const char *ours)
{
	const char *old = getenv("LD_PRELOAD");
	size_t len = strlen(ours);
	char *list;

	if (!old || !old[0])
		return strdup(ours);
	if (!strncmp(old, ours, len) && (!old[len] || old[len] == ':'))
		return strdup(old);
	return asprintf(&list, "%s:%s", ours, old) < 0 ? NULL : list;
}

static void make_tag(char tag[17])
{
	uint64_t v = 0;

	if (getrandom(&v, sizeof(v), GRND_NONBLOCK) != (ssize_t)sizeof(v) || !v)
		v = (uint64_t)getpid() << 32 | logstamp_now().boot_us;
	snprintf(tag, 17, "%016" PRIx64, v);
}

/*
 * A standard descriptor that is closed would become the next file that we open, and what we say
 * would end up there. The program still finds it closed.
 */
void run_occupy_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* ---- the command line ---- */

static int check_sizes(const struct run_args *a)
{
	int64_t top = PCPA_MAX_EXACT;
	int64_t min = a->min_size < 0 ? PCPA_PAGE_SIZE : a->min_size;
	int64_t max = a->max_size < 0 ? top : a->max_size;

	if (a->min_size >= 0 && (min < 1 || min > top))
		return cli_usage_error("--min-size %" PRId64 ": 1 to %" PRId64 " bytes", min, top);
	if (a->max_size >= 0 && (max < 1 || max > top))
		return cli_usage_error("--max-size %" PRId64 ": 1 to %" PRId64 " bytes", max, top);
	if (min > max)
		return cli_usage_error("--min-size %" PRId64 " is above --max-size %" PRId64, min,
				       max);
	return -1;
}

/*
 * Opened before the program runs, so that a wrong path costs nobody a long run. What was there
 * before stays until there is a summary.
 */
static int open_json(const struct run_args *a, FILE **ret)
{
	*ret = NULL;
	if (!a->json)
		return -1;
	*ret = strcmp(a->json, "-") ? fopen(a->json, "ae") : stdout;
	return *ret ? -1 : cli_error("%s: %s", a->json, strerror(errno));
}

/* ---- all of it ---- */

struct run {
	struct run_args args;
	struct run_daemon daemon;
	struct run_result result;
	char **argv;
	char preload[PATH_MAX], tag[17];
	FILE *json;
};

static int run_program(struct run *r)
{
	char min[24], max[24], *list = run_preload_list(r->preload);
	struct run_env env[] = {
		{"LD_PRELOAD", list},
		/* without a daemon: do not look for one */
		{"PCPTUNE_SOCKET", r->daemon.socket ? r->daemon.socket : ""},
		{"PCPTUNE_RUN_TAG", r->tag},
		{"PCPALLOC_MIN_SIZE", min},
		{"PCPALLOC_MAX_SIZE", max},
	};
	size_t n = sizeof(env) / sizeof(env[0]);
	int e;

	if (!list)
		return cli_error("out of memory");
	snprintf(min, sizeof(min), "%" PRId64, r->args.min_size);
	snprintf(max, sizeof(max), "%" PRId64, r->args.max_size);
	if (r->args.max_size < 0)
		n--;
	if (r->args.min_size < 0) {
		env[3] = env[4];
		n--;
	}
	e = run_child(r->argv, env, n, &r->result);
	free(list);
	return e ? cli_error("%s: no process: %s", r->argv[0], strerror(-e)) : -1;
}

static int write_json(const struct run *r, const json_t *summary)
{
	/* a pipe or a device has nothing to cut */
	bool bad = (r->json != stdout && ftruncate(fileno(r->json), 0) && errno != EINVAL) ||
		   json_dumpf(summary, r->json, JSON_COMPACT | JSON_REAL_PRECISION(9)) ||
		   fputc('\n', r->json) == EOF || fflush(r->json);

	if (r->json != stdout && fclose(r->json))
		bad = true;
	return bad ? cli_error("%s: %s", r->args.json, strerror(errno)) : -1;
}

static int account(struct run *r)
{
	json_t *summary = run_summary(&r->daemon, r->tag);
	int bad = -1;

	run_summary_complete(summary, &r->result, r->argv[0], &r->daemon);
	if (r->json)
		bad = write_json(r, summary);
	if (!r->args.quiet)
		run_summary_print(summary, &r->result, r->argv[0], &r->daemon);
	json_decref(summary);
	/* a failure of ours must not look like success, and not hide one of the program's */
	return bad >= 0 && !r->result.status ? bad : r->result.status;
}

static int run(struct run *r)
{
	int x = run_daemon_get(&r->args, &r->daemon);

	if (x >= 0)
		return x;
	if (!r->daemon.socket)
		cli_error("no daemon, the lists go by their own rules: %s", r->daemon.why);
	x = run_program(r);
	if (x < 0) {
		if (r->result.error)
			cli_error("%s: %s", r->argv[0], strerror(r->result.error));
		x = account(r);
	}
	run_daemon_end(&r->daemon);
	free(r->daemon.socket);
	return x;
}

int cmd_run(int argc, char **argv)
{
	struct run r = {.args = {.min_size = -1, .max_size = -1}};
	struct cli_rest rest;
	int x = cli_parse(argc, argv, &r.args, 1, -1, &rest);

	if (x >= 0)
		return x;
	r.argv = rest.argv;
	run_occupy_standard_descriptors();
	run_tell_settings();
	x = check_sizes(&r.args);
	if (x < 0)
		x = run_find_preload(r.preload, sizeof(r.preload));
	if (x < 0)
		x = open_json(&r.args, &r.json);
	if (x >= 0)
		return x;
	make_tag(r.tag);
	return run(&r);
}
