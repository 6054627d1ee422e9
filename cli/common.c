/* SPDX-License-Identifier: MIT */
/*
 * What verbs say and where they get it from: messages, the daemon, the log.
 *
 * A message goes out once, here, as "pcptune VERB: what"; a verb that gets an exit status from a
 * helper of this file has nothing to add.
 */
#include "cli/cli.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/config.h"
#include "lib/text.h"

#define CALL_MS 5000

static const char *error_verb; /* set once by main() */

void cli_error_verb(const char *name)
{
	error_verb = name;
}

/* A cause may quote what stands in a file of a stranger. */
static void say(const char *fmt, va_list ap)
{
	char *text, *save, *line;

	fflush(stdout);
	fprintf(stderr, "pcptune%s%s: ", error_verb ? " " : "", error_verb ? error_verb : "");
	if (vasprintf(&text, fmt, ap) < 0) {
		fprintf(stderr, "no memory\n");
		return;
	}
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		text_clean(line);
		fprintf(stderr, "%s\n", line);
	}
	free(text);
}

int cli_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	return CLI_ERROR;
}

int cli_usage_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	if (error_verb)
		fprintf(stderr, "`pcptune %s --help` shows the options\n", error_verb);
	else
		fprintf(stderr, "`pcptune help` shows the commands\n");
	return CLI_USAGE;
}

#define LEAST_WIDTH 40

int cli_width(void)
{
	const char *given = getenv("COLUMNS");
	struct winsize w;
	int64_t n;

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (given && !text_parse_i64(given, &n) && n > 0)
		return n < LEAST_WIDTH ? LEAST_WIDTH : n > 10000 ? 10000 : (int)n;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || !w.ws_col)
		return 80;
	return w.ws_col < LEAST_WIDTH ? LEAST_WIDTH : w.ws_col;
}

const char *cli_bold(void)
{
	return text_colour(stdout) ? "\033[1m" : "";
}

const char *cli_red(void)
{
	return text_colour(stdout) ? "\033[31m" : "";
}

const char *cli_yellow(void)
{
	return text_colour(stdout) ? "\033[33m" : "";
}

const char *cli_dim(void)
{
	return text_colour(stdout) ? "\033[2m" : "";
}

const char *cli_plain(void)
{
	return text_colour(stdout) ? "\033[0m" : "";
}

/* ---- the daemon ---- */

int cli_connect(const char *socket, struct ctlclient **ret)
{
	char why[CLI_WHY] = "";

	if (!ctlclient_open(socket, ret, why))
		return -1;
	return cli_error("%s", why);
}

int cli_call(struct ctlclient *c, json_t *request, json_t **ret)
{
	char why[CLI_WHY] = "";
	int r = ctlclient_call(c, request, CALL_MS, ret, why);

	json_decref(request);
	if (!r)
		return -1;
	cli_error("%s", why[0] ? why : strerror(-r));
	return r == -ENOENT ? CLI_DRIFT : r == -EINVAL ? CLI_USAGE : CLI_ERROR;
}

json_t *cli_target(const char *word)
{
	int64_t id;

	return text_parse_i64(word, &id) ? json_string_nocheck(word) : json_integer(id);
}

/* ---- other programs ---- */

bool cli_beside_us(const char *name, char *path)
{
	char exe[PATH_MAX], full[PATH_MAX + 64];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (len <= 0)
		return false;
	exe[len] = '\0';
	slash = strrchr(exe, '/');
	if (!slash)
		return false;
	*slash = '\0';
	snprintf(full, sizeof(full), "%s/%s", exe, name);
	return realpath(full, path) != NULL;
}

/* ---- the log ---- */

/* why: CLI_WHY bytes, set where NULL is returned */
static char *daemon_db(const char *socket, char *why)
{
	struct ctlclient *c;
	json_t *request, *version = NULL;
	const char *path = "";
	char *db = NULL;

	if (ctlclient_open(socket, &c, why))
		return NULL;
	request = json_pack("{s:s}", "cmd", "version");
	if (!ctlclient_call(c, request, CALL_MS, &version, why))
		path = cli_str(json_object_get(version, "log"), "path");
	if (path[0])
		db = strdup(path);
	else if (version)
		snprintf(why, CLI_WHY, "the daemon keeps no log");
	json_decref(request);
	json_decref(version);
	ctlclient_close(c);
	return db;
}

static bool is_run_db(const char *name)
{
	size_t n = strlen(name);

	return n > 7 && !strncmp(name, "run-", 4) && !strcmp(name + n - 3, ".db");
}

struct newest {
	char *path; /* NULL: none yet */
	struct timespec t;
};

static bool later(struct timespec a, struct timespec b)
{
	return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* Ours, or root's: names in /tmp can be taken by anybody. */
static DIR *open_own(const char *dir)
{
	DIR *d = opendir(dir);
	struct stat st;

	if (d && !fstat(dirfd(d), &st) && (st.st_uid == geteuid() || !st.st_uid) &&
	    !(st.st_mode & S_IWOTH))
		return d;
	if (d)
		closedir(d);
	return NULL;
}

/* Takes over the newest run-*.db of dir if it is newer than what is known. */
static void look_in(const char *dir, struct newest *best)
{
	DIR *d = open_own(dir);
	struct dirent *e;
	struct stat st;
	char *path;

	while (d && (e = readdir(d))) {
		if (!is_run_db(e->d_name) || fstatat(dirfd(d), e->d_name, &st, 0) ||
		    !S_ISREG(st.st_mode) || !later(st.st_mtim, best->t) ||
		    asprintf(&path, "%s/%s", dir, e->d_name) < 0)
			continue;
		free(best->path);
		*best = (struct newest){path, st.st_mtim};
	}
	if (d)
		closedir(d);
}

/* All places in which `run` may have left a log: root's runs are not beside the system's log. */
static char *newest_run(const char *standard)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	struct newest best = {NULL, {0, 0}};
	char dir[PATH_MAX], why[CLI_WHY];
	char *slash;

	snprintf(dir, sizeof(dir), "%s", standard);
	slash = strrchr(dir, '/');
	if (slash)
		*slash = '\0';
	look_in(dir, &best);
	if (state && snprintf(dir, sizeof(dir), "%s/pcptune", state) < (int)sizeof(dir))
		look_in(dir, &best);
	if (home && snprintf(dir, sizeof(dir), "%s/.local/state/pcptune", home) < (int)sizeof(dir))
		look_in(dir, &best);
	snprintf(dir, sizeof(dir), "/tmp/pcptune-%u/", (unsigned)geteuid());
	if (!config_place_trusted(dir, why))
		look_in(dir, &best);
	return best.path;
}

char *cli_db_path(const char *db, const char *socket, char *why)
{
	char *standard, *path;

	if (db)
		return strdup(db);
	path = daemon_db(socket, why);
	if (path || socket)
		return path;
	standard = config_default_log();
	if (standard && config_place_trusted(standard, why)) {
		free(standard);
		return NULL;
	}
	if (!standard || !access(standard, F_OK))
		return standard;
	path = newest_run(standard);
	if (!path)
		snprintf(why, CLI_WHY,
			 "no log: no daemon is running, there is no %s, and `pcptune run` left no "
			 "run-*.db; name one with --db",
			 standard);
	free(standard);
	return path;
}

int cli_open_log(const char *db, const char *socket, bool json, struct logstore **ret)
{
	char why[CLI_WHY] = "no memory";
	char *path = cli_db_path(db, socket, why);
	int r;

	if (!path)
		return cli_error("%s", why);
	if (!db && (!json || isatty(STDERR_FILENO)))
		fprintf(stderr, "log: %s\n", path);
	why[0] = '\0';
	r = logstore_open_ro(path, ret, why);
	if (!r) {
		free(path);
		return -1;
	}
	cli_error("%s", why[0] ? why : strerror(-r));
	free(path);
	return CLI_ERROR;
}

int cli_log_error(const struct logstore *ls, const char *text)
{
	const char *path = logstore_path(ls);

	return strncmp(text, path, strlen(path)) ? cli_error("%s: %s", path, text)
						 : cli_error("%s", text);
}
