/* SPDX-License-Identifier: MIT */
/*
 * The logs that private daemons of `pcptune run` leave: their place, and an end to their number.
 *
 * Each run has a file of its own, run-DATE-TIME-PID.db. Before a new one is added, those older than
 * MAX_DAYS, and those beyond the newest MAX_LOGS, are removed. Only names of that very form,
 * regular files of our own, are ever touched, so a copy under another name stays. A daemon holds a
 * lock (flock) on FILE.lock as long as it writes, which is how a log in use is told apart; whoever
 * only reads a log keeps what it has open.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "cli/run.h"
#include "lib/config.h"

#define MAX_LOGS 100
#define MAX_DAYS 30

struct run_log {
	char *name;
	time_t t;
};

/* The directory is that of the user's default log; root's runs are not beside the system's log. */
static char *state_dir(void)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *dir;
	int n;

	if (state && state[0] == '/')
		n = asprintf(&dir, "%s/pcptune", state);
	else if (home && home[0] == '/')
		n = asprintf(&dir, "%s/.local/state/pcptune", home);
	else
		n = asprintf(&dir, "/tmp/pcptune-%u", (unsigned)geteuid());
	return n < 0 ? NULL : dir;
}

char *run_log_path(void)
{
	char when[32], *path, *dir = state_dir();
	time_t now = time(NULL);
	struct tm tm;
	int n;

	if (!dir)
		return NULL;
	localtime_r(&now, &tm);
	strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &tm);
	n = asprintf(&path, "%s/run-%s-%d.db", dir, when, (int)getpid());
	free(dir);
	return n < 0 ? NULL : path;
}

/* "run-20261130-114949-8152.db" */
bool run_log_name(const char *name)
{
	static const char form[] = "run-dddddddd-dddddd-";
	size_t i;

	for (i = 0; form[i]; i++)
		if (form[i] == 'd' ? !isdigit((unsigned char)name[i]) : name[i] != form[i])
			return false;
	name += i;
	i = strspn(name, "0123456789");
	return i && !strcmp(name + i, ".db");
}

static int newest_first(const void *va, const void *vb)
{
	const struct run_log *a = va, *b = vb;

	return a->t != b->t ? (a->t < b->t) - (a->t > b->t) : strcmp(b->name, a->name);
}

static size_t list_logs(DIR *d, struct run_log **ret)
{
	struct run_log *logs = NULL, *more;
	struct dirent *e;
	struct stat st;
	size_t n = 0;
	char *name;

	while ((e = readdir(d))) {
		if (!run_log_name(e->d_name) ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISREG(st.st_mode) || st.st_uid != geteuid())
			continue;
		more = realloc(logs, (n + 1) * sizeof(*logs));
		logs = more ? more : logs;
		name = more ? strdup(e->d_name) : NULL;
		if (!name)
			break;
		logs[n++] = (struct run_log){name, st.st_mtime};
	}
	*ret = logs;
	return n;
}

/* The lock is held while the files go, so that no daemon can begin to use them meanwhile. */
static void remove_log(int dir, const char *name)
{
	static const char *const parts[] = {"", "-wal", "-shm", ".lock"};
	char file[NAME_MAX + 8];
	size_t i;
	int fd;

	snprintf(file, sizeof(file), "%s.lock", name);
	fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 && errno != ENOENT)
		return;
	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB)) {
		for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
			snprintf(file, sizeof(file), "%s%s", name, parts[i]);
			unlinkat(dir, file, 0);
		}
	}
	if (fd >= 0)
		close(fd);
}

void run_logs_trim(void)
{
	char *path = state_dir(), why[CLI_WHY], slash[PATH_MAX];
	time_t oldest = time(NULL) - MAX_DAYS * 24 * 3600;
	struct run_log *logs = NULL;
	DIR *d = NULL;
	size_t i, n;

	if (path && snprintf(slash, sizeof(slash), "%s/", path) < (int)sizeof(slash) &&
	    !config_place_trusted(slash, why))
		d = opendir(path);
	free(path);
	if (!d)
		return;
	n = list_logs(d, &logs);
	if (n)
		qsort(logs, n, sizeof(*logs), newest_first);
	for (i = 0; i < n; i++) {
		if (i + 1 >= MAX_LOGS || logs[i].t < oldest) /* one is about to be added */
			remove_log(dirfd(d), logs[i].name);
		free(logs[i].name);
	}
	free(logs);
	closedir(d);
}
