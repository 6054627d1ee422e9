/* SPDX-License-Identifier: MIT */
/*
 * pcptuned: start, signals, stop.
 *
 * Order of a start: options, configuration, policies (all mistakes at once, as file:line); then, in
 * the background, the fork, before there is an event loop that a fork would break; then the lock,
 * the log, the sockets. Only a daemon that listens lets the process that started it return 0: it
 * writes one byte into a pipe; end of file without that byte is a failure, whose reason the child
 * has printed.
 *
 * A stop (SIGTERM, SIGINT) takes the last samples, restores or keeps what was set, ends the run in
 * the log, and removes sockets and lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/apply.h"
#include "daemon/attach.h"
#include "daemon/claim.h"
#include "daemon/clock.h"
#include "daemon/ctl.h"
#include "daemon/decide.h"
#include "daemon/heap.h"
#include "daemon/journal.h"
#include "daemon/record.h"
#include "daemon/reload.h"
#include "daemon/sample.h"
#include "daemon/say.h"
#include "daemon/summary.h"
#include "daemon/target.h"
#include "lib/text.h"

#define STOP_WAIT_MS 250u
#define CONFIG_FILE  PCPTUNE_SYSCONFDIR "/pcptune/pcptuned.conf"

struct run {
	struct daemon d;
	bool foreground, check;
	bool reload; /* with check: a daemon that runs is no mistake */
	char *cwd;
	int ready; /* pipe to the process that waits for us, -1: nobody */
	struct claim *claim;
	struct event *sig[3];
};

/* ---- options: one row each ---- */

enum option_id {
	OPT_CONFIG = 'c',
	OPT_FOREGROUND = 'f',
	OPT_VERBOSE = 'v',
	OPT_HELP = 'h',
	OPT_SOCKET = 256,
	OPT_DB,
	OPT_POLICY_PATH,
	OPT_CHECK,
	OPT_RELOAD,
	OPT_VERSION
};

static const struct {
	int id;
	const char *name, *arg, *text;
} option_rows[] = {
	{OPT_CONFIG, "config", "FILE",
	 "configuration; default " CONFIG_FILE " if it is there, else built-in values"},
	{OPT_SOCKET, "socket", "PATH", "socket for programs, whatever the configuration says"},
	{OPT_DB, "db", "PATH", "decision log, whatever the configuration says"},
	{OPT_POLICY_PATH, "policy-path", "DIRS",
	 "where policies are looked for, whatever the configuration says"},
	{OPT_CHECK, "check", NULL, "check everything, say what would be done, start nothing"},
	{OPT_RELOAD, "reload", NULL, "with --check: a daemon that runs already is no mistake"},
	{OPT_FOREGROUND, "foreground", NULL, "stay in the foreground, messages to standard error"},
	{OPT_VERBOSE, "verbose", NULL, "also say which programs come and go"},
	{OPT_VERSION, "version", NULL, "print the version"},
	{OPT_HELP, "help", NULL, "print this text"},
};
#define N_OPTIONS (sizeof(option_rows) / sizeof(option_rows[0]))

static void usage(FILE *out)
{
	fprintf(out, "usage: pcptuned [OPTION]...\n"
		     "Watches and tunes the per-CPU page lists of programs that attach to its "
		     "socket.\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char left[40], key[8] = "    ";

		if (option_rows[i].id < 256)
			snprintf(key, sizeof(key), "-%c, ", option_rows[i].id);
		snprintf(left, sizeof(left), "%s--%s%s%s", key, option_rows[i].name,
			 option_rows[i].arg ? " " : "",
			 option_rows[i].arg ? option_rows[i].arg : "");
		fprintf(out, "  %-22s %s\n", left, option_rows[i].text);
	}
	fprintf(out, "\nSignals: SIGTERM, SIGINT stop; SIGHUP reads the configuration again.\n"
		     "Exit status: 0 fine, 1 error, 2 wrong usage.\n");
}

static void option_table(struct option *table)
{
	memset(table, 0, (N_OPTIONS + 1) * sizeof(*table));
	for (size_t i = 0; i < N_OPTIONS; i++) {
		table[i].name = option_rows[i].name;
		table[i].has_arg = option_rows[i].arg ? required_argument : no_argument;
		table[i].val = option_rows[i].id;
	}
}

/* ---- paths ---- */

/* cwd/path for a relative one; path is freed. NULL: no memory. */
static char *absolute(const char *cwd, char *path)
{
	char *full;

	if (!path || path[0] == '/' || !path[0])
		return path;
	if (asprintf(&full, "%s/%s", cwd, path) < 0)
		full = NULL;
	free(path);
	return full;
}

static bool copied(char **to, const char *text)
{
	*to = strdup(text);
	if (!*to)
		fprintf(stderr, "pcptuned: no memory\n");
	return *to != NULL;
}

/* -1: go on; else the exit status */
static int take_option(struct run *r, int id, const char *arg)
{
	struct overrides *o = &r->d.given;
	char **at = id == OPT_CONFIG   ? &o->file
		    : id == OPT_SOCKET ? &o->socket
		    : id == OPT_DB     ? &o->db
				       : &o->policy_path;

	switch (id) {
	case OPT_CONFIG:
	case OPT_SOCKET:
	case OPT_DB:
	case OPT_POLICY_PATH:
		free(*at);
		return copied(at, arg) ? -1 : 1;
	case OPT_CHECK:
		r->check = true;
		return -1;
	case OPT_RELOAD:
		r->reload = true;
		return -1;
	case OPT_FOREGROUND:
		r->foreground = true;
		return -1;
	case OPT_VERBOSE:
		say_verbose(true);
		return -1;
	case OPT_VERSION:
		printf("pcptuned %s\n", PCPTUNE_VERSION);
		return 0;
	case OPT_HELP:
		usage(stdout);
		return 0;
	default:
		fprintf(stderr, "pcptuned: see pcptuned --help\n");
		return 2;
	}
}

static int take_options(struct run *r, int argc, char **argv)
{
	struct option table[N_OPTIONS + 1];
	int id, status = -1;

	option_table(table);
	while (status < 0 && (id = getopt_long(argc, argv, "c:fvh", table, NULL)) != -1)
		status = take_option(r, id, optarg);
	if (status < 0 && optind < argc) {
		fprintf(stderr, "pcptuned: unexpected \"%s\"; see pcptuned --help\n", argv[optind]);
		status = 2;
	}
	if (status < 0 && r->reload && !r->check) {
		fprintf(stderr, "pcptuned: --reload is for --check; see pcptuned --help\n");
		status = 2;
	}
	if (status < 0 && !r->d.given.file && !access(CONFIG_FILE, F_OK) &&
	    !copied(&r->d.given.file, CONFIG_FILE))
		status = 1;
	return status;
}

static char *start_directory;

static bool replace_path(char **at, const char *given)
{
	char *copy = given ? strdup(given) : *at;

	if (!copy)
		return false;
	if (given)
		free(*at);
	*at = absolute(start_directory, copy);
	return *at != NULL;
}

/* A list of directories is taken as it stands. */
static bool replace_list(char **at, const char *given)
{
	char *copy = given ? strdup(given) : NULL;

	if (copy) {
		free(*at);
		*at = copy;
	}
	return copy || !given;
}

int daemon_config(const struct overrides *given, struct config **ret, char **ret_why)
{
	struct config *c;
	int r = config_load(given->file, &c, ret_why);

	if (r < 0)
		return r;
	if (!replace_path(&c->socket, given->socket) || !replace_path(&c->log.path, given->db) ||
	    !replace_list(&c->policy_path, given->policy_path)) {
		config_free(c);
		*ret_why = NULL;
		return -ENOMEM;
	}
	if (given->db)
		c->log.enabled = true;
	*ret = c;
	return 0;
}

/* ---- checks before anything is started ---- */

static void print_lines(char *text)
{
	char *save, *line;

	if (!text)
		fprintf(stderr, "pcptuned: no memory\n");
	for (line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		fprintf(stderr, "%s\n", line);
	free(text);
}

static void on_chosen(void *cookie)
{
	event_base_loopbreak(cookie);
}

/* Foreign policies are tried in a loop of its own: that of the daemon begins after the fork. */
static int choose(const struct config *c, struct choices **ret, char **ret_why)
{
	struct event_base *base = event_base_new();
	struct foreigners *all = NULL;
	struct choices *cs = NULL;
	int r = -ENOMEM;

	if (base && !foreigners_new(base, &all))
		r = choices_begin(c, all, on_chosen, base, &cs);
	if (!r && choices_pending(cs))
		event_base_dispatch(base);
	if (!r)
		r = choices_end(cs, ret_why);
	foreigners_free(all);
	if (base)
		event_base_free(base);
	if (!r)
		*ret = cs;
	return r;
}

static bool load(struct run *r)
{
	char *why = NULL;

	if (daemon_config(&r->d.given, &r->d.config, &why) < 0 ||
	    choose(r->d.config, &r->d.choices, &why) < 0) {
		print_lines(why);
		return false;
	}
	return true;
}

static void print_choice(const struct choice *c)
{
	char params[1024];

	policy_params_text(c->module, c->params, params, sizeof(params));
	printf("%s: policy %s %s%s%s%s\n", c->why, policy_desc(c->module)->name,
	       policy_desc(c->module)->version, params[0] ? ", " : "", params,
	       c->dry_run ? " (dry run)" : "");
}

static void print_plan(const struct config *c, const struct choices *choices, const char *directory)
{
	printf("configuration: %s\n", c->file ? c->file : "built-in");
	printf("socket: %s%s%s%s\n", c->socket, *directory ? " (" : "", directory,
	       *directory ? ")" : "");
	printf("control socket: %s.ctl, mode %04o%s%s\n", c->socket, (unsigned)c->control.mode,
	       c->control.group ? ", group " : "", c->control.group ? c->control.group : "");
	if (c->log.enabled)
		printf("log: %s%s\n", c->log.path,
		       c->log.required ? " (nothing is changed without it)" : "");
	else
		printf("log: off\n");
	printf("sampling: every %lld ms; on exit: %s\n", (long long)c->interval_ms,
	       c->on_exit == CONFIG_KEEP ? "keep" : "restore");
	for (int i = -1; i < (int)c->n_rules; i++)
		print_choice(choices_at(choices, i));
}

/* The log, as a start, or with --reload the daemon that runs, would find it. */
static bool check_log(const struct run *r, char *why)
{
	const struct config *c = r->d.config;
	int e = journal_probe(c, why);

	if (!e || (e == -EBUSY && r->reload))
		return true;
	fprintf(stderr, "pcptuned: log %s: %s%s\n", c->log.path, why,
		c->log.required ? "; log.required allows no start without it"
				: "; it would start without a log and count what is lost");
	return !c->log.required;
}

static int check(struct run *r)
{
	char directory[CLAIM_WHY] = "", why[CLAIM_WHY] = "";
	const struct config *c = r->d.config;
	int64_t gid;
	bool good = true;

	if (claim_directory(c->socket, false, directory) < 0) {
		fprintf(stderr, "pcptuned: %s\n", directory);
		good = false;
	} else if (!r->reload && claim_probe(c->socket, "serves", why) < 0) {
		fprintf(stderr, "pcptuned: %s\n", why);
		good = false;
	}
	if (ctl_group(c, &gid, why) < 0) {
		fprintf(stderr, "pcptuned: %s\n", why);
		good = false;
	}
	good &= check_log(r, why);
	if (!good)
		return 1;
	print_plan(c, r->d.choices, directory);
	return 0;
}

/* ---- background ---- */

/* In the parent: 0 once the child listens, else 1. */
static int wait_ready(int fd, pid_t child)
{
	char byte;
	ssize_t n;

	do {
		n = read(fd, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		return 0;
	waitpid(child, NULL, 0);
	return 1;
}

/* -1: this is the daemon; else the exit status of the process that started it */
static int background(struct run *r)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC)) {
		say(LOG_ERR, "pipe: %s", strerror(errno));
		return 1;
	}
	child = fork();
	if (child < 0) {
		say(LOG_ERR, "fork: %s", strerror(errno));
		return 1;
	}
	if (child > 0) {
		close(fds[1]);
		return wait_ready(fds[0], child);
	}
	close(fds[0]);
	r->ready = fds[1];
	setsid();
	return -1;
}

static void leave_terminal(struct run *r)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	say_to_syslog(true);
	if (chdir("/"))
		say(LOG_WARNING, "chdir /: %s", strerror(errno));
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	(void)!write(r->ready, "", 1);
	close(r->ready);
	r->ready = -1;
}

/* ---- signals ---- */

static void on_stop(evutil_socket_t sig, short what, void *arg)
{
	struct run *r = arg;

	(void)what;
	say(LOG_NOTICE, "stopping (%s)", sig == SIGINT ? "SIGINT" : "SIGTERM");
	r->d.stopping = true;
	event_base_loopbreak(r->d.base);
}

static void on_hup(evutil_socket_t sig, short what, void *arg)
{
	struct run *r = arg;

	(void)sig;
	(void)what;
	reload(&r->d);
}

static bool signals(struct run *r)
{
	r->sig[0] = evsignal_new(r->d.base, SIGTERM, on_stop, r);
	r->sig[1] = evsignal_new(r->d.base, SIGINT, on_stop, r);
	r->sig[2] = evsignal_new(r->d.base, SIGHUP, on_hup, r);
	for (int i = 0; i < 3; i++) {
		if (!r->sig[i] || event_add(r->sig[i], NULL))
			return false;
	}
	return true;
}

/* ---- start ---- */

/* A file-size limit or a gone reader is an error code where it happens, not our end. */
static void limits(void)
{
	struct rlimit l;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	if (!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur < l.rlim_max) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

static uint32_t host_cpus(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (uint32_t)n : 1;
}

static bool claim(struct run *r, char *why)
{
	const struct config *c = r->d.config;

	if (claim_directory(c->socket, true, why) < 0)
		return false;
	return claim_new(c->socket, "serves", c->file ? c->file : "built-in", &r->claim, why) == 0;
}

static bool parts(struct run *r, char *why)
{
	struct daemon *d = &r->d;

	snprintf(why, CLAIM_WHY, "no memory");
	d->base = event_base_new();
	if (!d->base || !signals(r) || foreigners_new(d->base, &d->foreigners) < 0 ||
	    summary_new(d, &d->summary) < 0)
		return false;
	if (journal_new(d, &d->journal, why) < 0) {
		char text[CLAIM_WHY];

		snprintf(text, sizeof(text), "log %.200s: %.250s", d->config->log.path, why);
		memcpy(why, text, sizeof(text));
		return false;
	}
	return ctl_new(d, &d->ctl, why) == 0 && attach_new(d, &d->attach, why) == 0 &&
	       sampler_new(d, &d->sampler) == 0;
}

static bool start(struct run *r)
{
	char why[CLAIM_WHY] = "";
	struct daemon *d = &r->d;

	limits();
	d->start_ms = mono_ms();
	d->host_cpus = host_cpus();
	if (!claim(r, why) || !parts(r, why)) {
		say(LOG_ERR, "%s", why);
		return false;
	}
	say(LOG_NOTICE, "%s listens on %s (configuration %s, log %s)", PCPTUNE_VERSION,
	    d->config->socket, d->config->file ? d->config->file : "built-in",
	    d->config->log.enabled ? d->config->log.path : "off");
	if (r->ready >= 0)
		leave_terminal(r);
	return true;
}

/* ---- stop ---- */

static bool any_in_flight(struct daemon *d)
{
	bool any = false;

	for (size_t i = 0; i < d->n_targets; i++) {
		apply_acks(d->targets[i]);
		any |= d->targets[i]->n_inflight > 0;
	}
	return any;
}

/* What was restored should be in force, and the log say so; agents are quick, once woken. */
static void wait_for_acks(struct daemon *d)
{
	uint64_t end = mono_ms() + STOP_WAIT_MS;

	while (any_in_flight(d) && mono_ms() < end)
		usleep(2000);
}

static void stop_targets(struct daemon *d)
{
	bool keep = d->config->on_exit == CONFIG_KEEP;

	for (size_t i = 0; i < d->n_targets; i++) {
		sample_last(d->targets[i]);
		if (!keep)
			apply_restore(d->targets[i]);
	}
	decide_flush(d, true);
	wait_for_acks(d);
	while (d->n_targets) {
		struct target *t = d->targets[d->n_targets - 1];

		apply_release(t, keep);
		target_end(t, "the daemon stopped");
	}
}

static void stop(struct run *r)
{
	struct daemon *d = &r->d;

	attach_free(d->attach);
	d->attach = NULL;
	if (d->journal)
		stop_targets(d);
	ctl_free(d->ctl);
	sampler_free(d->sampler);
	d->sampler = NULL;
	journal_free(d->journal, d->stopping ? "stopped" : NULL);
	summary_free(d->summary);
	reload_stop(d);
	foreigners_free(d->foreigners);
	for (int i = 0; i < 3; i++) {
		if (r->sig[i])
			event_free(r->sig[i]);
	}
	if (d->base)
		event_base_free(d->base);
	claim_free(r->claim);
	decide_free();
	record_free();
	free(d->targets);
}

static void forget(struct run *r)
{
	choices_free(r->d.choices);
	if (r->d.config)
		config_free(r->d.config);
	free(r->d.given.file);
	free(r->d.given.socket);
	free(r->d.given.db);
	free(r->d.given.policy_path);
	free(start_directory);
	libevent_global_shutdown();
}

static int serve(struct run *r)
{
	int status = 1;

	if (start(r)) {
		event_base_dispatch(r->d.base);
		status = r->d.stopping ? 0 : 1;
	}
	stop(r);
	return status;
}

/* Else a lock, a socket or the log would get number 2, and messages with it. */
static void standard_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= 2);
	if (fd > 2)
		close(fd);
}

int main(int argc, char **argv)
{
	struct run r = {.ready = -1};
	int status;

	if (argc == 2 && !strcmp(argv[1], REMOTE_ARGUMENT))
		return host_worker_main();
	heap_begin();
	standard_descriptors();
	status = take_options(&r, argc, argv);
	start_directory = getcwd(NULL, 0);
	if (status < 0 && !load(&r))
		status = 1;
	if (status < 0) /* for reloads; messages so far name it as it was given */
		r.d.given.file = absolute(start_directory, r.d.given.file);
	if (status < 0 && r.check)
		status = check(&r);
	if (status < 0 && !r.foreground)
		status = background(&r);
	if (status < 0)
		status = serve(&r);
	forget(&r);
	return status;
}
