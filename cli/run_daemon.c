/* SPDX-License-Identifier: MIT */
/*
 * The daemon behind `pcptune run`: the one that runs already, or one of our own.
 *
 * Our own lives in a directory that only its owner can enter, with its socket, its configuration
 * and what it writes to standard error. It ends with us: by SIGTERM at the end, and by
 * PR_SET_PDEATHSIG should we be killed. The directory is locked (flock) through a descriptor that
 * the daemon inherits; a lock that can be taken therefore says that both are gone, and the next
 * run removes what they left.
 */
#include "cli/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lib/config.h"
#include "policies/host.h"

#define PREFIX	     "pcptune-run-"
#define START_MS     15000
#define STOP_MS	     10000
#define ANSWER_MS    5000
#define SOCKET_BYTES 96 /* of 107 that a socket's address has: room for what the daemon adds */

static void nap(int ms)
{
	struct timespec t = {.tv_nsec = ms * 1000000L};

	nanosleep(&t, NULL);
}

static bool asked_for_own(const struct run_args *a)
{
	return a->policy || a->set.n || a->db || a->own_daemon;
}

/* ---- asking ---- */

int run_daemon_ask(struct run_daemon *d, json_t *request, json_t **ret)
{
	struct ctlclient *c;
	char why[CLI_WHY] = "";
	int r = -ENOTCONN;

	if (d->socket)
		r = ctlclient_open(d->socket, &c, why);
	if (r == 0) {
		r = ctlclient_call(c, request, ANSWER_MS, ret, why);
		ctlclient_close(c);
	}
	json_decref(request);
	if (r)
		snprintf(d->why, sizeof(d->why), "%s", why);
	return r;
}

static bool answers(struct run_daemon *d)
{
	json_t *v;

	if (run_daemon_ask(d, json_pack("{s:s}", "cmd", "version"), &v))
		return false;
	json_decref(v);
	return true;
}

static bool find_running(struct run_daemon *d)
{
	const char *env = getenv("PCPTUNE_SOCKET");

	d->socket = env && env[0] ? strdup(env) : config_default_socket();
	if (d->socket && answers(d))
		return true;
	free(d->socket);
	d->socket = NULL;
	return false;
}

/* ---- the private directory ---- */

static void remove_dir(const char *path)
{
	struct dirent *e;
	DIR *dir = opendir(path);

	while (dir && (e = readdir(dir)))
		if (e->d_type != DT_DIR)
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

/* What a run that was killed left: its directory, with nobody holding the lock. */
static void sweep(const char *base)
{
	struct dirent *e;
	DIR *dir = opendir(base);
	char path[PATH_MAX];
	struct stat st;
	int fd;

	while (dir && (e = readdir(dir))) {
		if (strncmp(e->d_name, PREFIX, strlen(PREFIX)))
			continue;
		fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!fstat(fd, &st) && st.st_uid == geteuid() && st.st_mtime + 2 < time(NULL) &&
		    !flock(fd, LOCK_EX | LOCK_NB)) {
			snprintf(path, sizeof(path), "%s/%s", base, e->d_name);
			remove_dir(path);
		}
		close(fd);
	}
	if (dir)
		closedir(dir);
}

static int make_dir_in(const char *base, struct run_daemon *d)
{
	int fd;

	if (!base || base[0] != '/' || strlen(base) + sizeof(PREFIX "XXXXXX/sock") > SOCKET_BYTES)
		return -ENAMETOOLONG;
	sweep(base);
	if (asprintf(&d->dir, "%s/" PREFIX "XXXXXX", base) < 0) {
		d->dir = NULL;
		return -ENOMEM;
	}
	/* the descriptor goes to the daemon (no O_CLOEXEC) and stays out of the program */
	if (mkdtemp(d->dir) && (fd = open(d->dir, O_RDONLY | O_DIRECTORY)) >= 0) {
		d->dir_fd = fd;
		flock(fd, LOCK_EX | LOCK_NB);
		return 0;
	}
	free(d->dir);
	d->dir = NULL;
	return -errno;
}

static int make_dir(struct run_daemon *d)
{
	if (make_dir_in(getenv("XDG_RUNTIME_DIR"), d) == 0 || make_dir_in(getenv("TMPDIR"), d) == 0)
		return 0;
	return make_dir_in("/tmp", d);
}

/* ---- its configuration ---- */

static void put_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < ' ')
			fprintf(f, "\\x%02x", *s);
		else
			fputc(*s, f);
	}
	fputc('"', f);
}

/* The daemon may have another working directory. */
static char *absolute(const char *path)
{
	char cwd[PATH_MAX], *full;

	if (path[0] == '/' || !getcwd(cwd, sizeof(cwd)))
		return strdup(path);
	return asprintf(&full, "%s/%s", cwd, path) < 0 ? NULL : full;
}

static const char *default_policy(void)
{
	size_t i;

	for (i = 0; i < config_n_keys; i++)
		if (!strcmp(config_keys[i].name, "default.policy"))
			return config_keys[i].def;
	return "\"contention\"";
}

/* key=value as the file has it: a number stays one, everything else is a string. */
static int put_param(FILE *f, const char *word)
{
	const char *eq = strchr(word, '=');
	size_t len = eq ? (size_t)(eq - word) : 0;
	char *end;

	if (!len || strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_") != len || word[0] < 'a')
		return cli_usage_error("--set \"%s\": not KEY=VALUE", word);
	fprintf(f, "    %.*s = ", (int)len, word);
	errno = 0;
	if (eq[1] && (strtoll(eq + 1, &end, 10), !*end && !errno))
		fprintf(f, "%sL", eq + 1);
	else if (!strcmp(eq + 1, "true") || !strcmp(eq + 1, "false"))
		fputs(eq + 1, f);
	else
		put_string(f, eq + 1);
	fputs(";\n", f);
	return -1;
}

/* buf: PATH_MAX bytes; NULL: that of the daemon */
static const char *policy_path(char *buf)
{
	const char *path = getenv("PCPTUNE_POLICY_PATH");

	if (!path && cli_beside_us("../lib/pcptune/policies", buf))
		path = buf;
	return path;
}

static int put_config(FILE *f, const struct run_args *a, struct run_daemon *d, const char *db)
{
	char policies[PATH_MAX];
	const char *path;
	size_t i;
	int r;

	fputs("socket = ", f);
	put_string(f, d->socket);
	fputs(";\nlog = {\n  path = ", f);
	put_string(f, db);
	/* a log that was asked for by name has to be there */
	fprintf(f, ";\n  required = %s;\n};\n", a->db ? "true" : "false");
	path = policy_path(policies);
	if (path) {
		fputs("policy_path = ", f);
		put_string(f, path);
		fputs(";\n", f);
	}
	fputs("default = {\n  policy = ", f);
	if (a->policy)
		put_string(f, a->policy);
	else
		fputs(default_policy(), f);
	fputs(";\n  params = {\n", f);
	for (i = 0; i < a->set.n; i++) {
		r = put_param(f, a->set.item[i]);
		if (r >= 0)
			return r;
	}
	fputs("  };\n};\n", f);
	return -1;
}

static int write_config(const struct run_args *a, struct run_daemon *d, char *path, size_t n)
{
	char *db = a->db ? absolute(a->db) : run_log_path();
	FILE *f;
	int r;

	snprintf(path, n, "%s/pcptuned.conf", d->dir);
	f = db ? fopen(path, "wxe") : NULL;
	if (!f) {
		snprintf(d->why, sizeof(d->why), "%.400s: %s", path, strerror(errno));
		free(db);
		return -1;
	}
	r = put_config(f, a, d, db);
	if (fclose(f) && r < 0)
		snprintf(d->why, sizeof(d->why), "%.400s: %s", path, strerror(errno));
	free(db);
	return r;
}

/* ---- start ---- */

/* What we were told, and what was meant for programs, is not for the daemon. */
static void clean_environment(void)
{
	char **e, name[128];
	const char *eq;

	for (e = environ; *e;) {
		eq = strchr(*e, '=');
		if (eq && eq - *e < 128 &&
		    (!strncmp(*e, "PCPALLOC_", 9) || !strncmp(*e, "PCPTUNE_", 8) ||
		     !strncmp(*e, "LD_PRELOAD=", 11))) {
			snprintf(name, sizeof(name), "%.*s", (int)(eq - *e), *e);
			unsetenv(name);
		} else {
			e++;
		}
	}
}

__attribute__((noreturn)) static void become_daemon(const char *config, const char *out, pid_t we)
{
	char path[PATH_MAX];
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != we)
		_exit(0);
	setpgid(0, 0); /* ^C is for the program */
	clean_environment();
	fd = open("/dev/null", O_RDONLY);
	dup2(fd, STDIN_FILENO);
	fd = open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (cli_beside_us("pcptuned", path))
		execl(path, "pcptuned", "--foreground", "-c", config, (char *)NULL);
	execlp("pcptuned", "pcptuned", "--foreground", "-c", config, (char *)NULL);
	dprintf(STDERR_FILENO, "pcptuned: %s\n", strerror(errno));
	_exit(127);
}

/* The end of what the daemon said, without its last newline. */
static void last_words(const char *path, char *why, size_t n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
	ssize_t got = 0;

	if (size > 0)
		got = pread(fd, why, n - 1, size > (off_t)n - 1 ? size - (off_t)n + 1 : 0);
	if (fd >= 0)
		close(fd);
	why[got > 0 ? got : 0] = '\0';
	while (got > 0 && why[got - 1] == '\n')
		why[--got] = '\0';
}

/* 0: it answers. -1: it does not, d->why says why. Else: it ended with this status by itself. */
static int wait_until_ready(struct run_daemon *d, const char *out)
{
	struct timespec now, begin;
	int status = 0, ms = 1;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = 0;
			last_words(out, d->why, sizeof(d->why));
			if (!d->why[0])
				snprintf(d->why, sizeof(d->why), "pcptuned ended at once");
			return WIFEXITED(status) && WEXITSTATUS(status) < 126 ? WEXITSTATUS(status)
									      : -1;
		}
		if (answers(d))
			return 0;
		nap(ms);
		ms = ms < 20 ? ms * 2 : 20;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000 < START_MS);
	snprintf(d->why, sizeof(d->why), "pcptuned did not answer within %d s", START_MS / 1000);
	return -1;
}

/* What the daemon said, without the places in a file that the user never saw. */
static void print_refusal(const char *text, const char *config)
{
	size_t len = strlen(config);
	const char *end;

	for (; *text; text = *end ? end + 1 : end) {
		end = strchrnul(text, '\n');
		if (!strncmp(text, config, len) && text[len] == ':') {
			text += len + 1;
			text += strspn(text, "0123456789: ");
		}
		cli_error("%.*s", (int)(end - text), text);
	}
}

static int parameters_status(const struct run_args *a, struct policy_module *m)
{
	int64_t params[POLICY_MAX_PARAMS];
	char key[64], why[POLICY_WHY];
	struct policy_instance *pi;
	size_t i;

	policy_params_default(m, params);
	for (i = 0; i < a->set.n; i++) {
		const char *word = a->set.item[i], *eq = strchr(word, '=');

		snprintf(key, sizeof(key), "%.*s", (int)(eq - word), word);
		if (policy_params_set(m, params, key, eq + 1, why))
			return CLI_USAGE;
	}
	i = policy_instance_new(m, &policy_trial_shape, params, &pi, why) == 0;
	if (i)
		policy_instance_free(pi);
	return i ? CLI_ERROR : CLI_USAGE;
}

/* What kind of mistake the daemon found; its message has been said. */
static int refused_status(const struct run_args *a)
{
	char word[64] = "", path[PATH_MAX], why[POLICY_WHY];
	struct policy_module *m;
	int r;

	snprintf(word, sizeof(word), "%s", default_policy() + 1);
	word[strcspn(word, "\"")] = '\0';
	r = policy_load(a->policy ? a->policy : word, policy_path(path), &m, why);
	if (r)
		return r == -ENOENT ? CLI_DRIFT : r == -EINVAL ? CLI_USAGE : CLI_ERROR;
	r = parameters_status(a, m);
	policy_unref(m);
	return r;
}

static void give_up(struct run_daemon *d)
{
	run_daemon_end(d);
	free(d->socket);
	d->socket = NULL;
}

/* As run_daemon_get(). */
static int start(const struct run_args *a, struct run_daemon *d, const char *config)
{
	char out[PATH_MAX];
	pid_t we = getpid();
	int r;

	snprintf(out, sizeof(out), "%s/stderr", d->dir);
	d->pid = fork();
	if (d->pid == 0)
		become_daemon(config, out, we);
	if (d->pid < 0) {
		snprintf(d->why, sizeof(d->why), "no process: %s", strerror(errno));
		d->pid = 0;
		return -1;
	}
	r = wait_until_ready(d, out);
	if (r == 0)
		return -1;
	if (r > 0 && (a->policy || a->set.n || a->db)) {
		print_refusal(d->why, config);
		cli_error("the daemon refused what was asked for; the program was not started");
		give_up(d);
		return refused_status(a);
	}
	give_up(d);
	return -1;
}

int run_daemon_get(const struct run_args *a, struct run_daemon *d)
{
	char config[PATH_MAX];
	int r;

	memset(d, 0, sizeof(*d));
	d->dir_fd = -1;
	if (!asked_for_own(a) && find_running(d))
		return -1;
	d->why[0] = '\0';
	r = make_dir(d);
	if (r < 0) {
		snprintf(d->why, sizeof(d->why), "no private directory: %s", strerror(-r));
		return -1;
	}
	if (asprintf(&d->socket, "%s/sock", d->dir) < 0)
		d->socket = NULL;
	r = d->socket ? write_config(a, d, config, sizeof(config)) : -1;
	if (r < 0 && !a->db)
		run_logs_trim();
	if (r >= 0 || d->why[0] || !d->socket) {
		give_up(d);
		return r;
	}
	r = start(a, d, config);
	if (d->dir_fd >= 0)
		fcntl(d->dir_fd, F_SETFD, FD_CLOEXEC);
	return r;
}

/* ---- end ---- */

bool run_daemon_ended(struct run_daemon *d)
{
	char out[PATH_MAX], words[400];
	int status;

	if (d->pid <= 0 || waitpid(d->pid, &status, WNOHANG) != d->pid)
		return false;
	d->pid = 0;
	snprintf(out, sizeof(out), "%s/stderr", d->dir);
	last_words(out, words, sizeof(words));
	snprintf(d->why, sizeof(d->why), "the daemon ended meanwhile, %s %d%s%s",
		 WIFSIGNALED(status) ? "signal" : "exit status",
		 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), words[0] ? ": " : "",
		 words);
	return true;
}

static void end_process(pid_t pid)
{
	int ms;

	kill(pid, SIGTERM);
	for (ms = 0; ms < STOP_MS; ms += 2) {
		if (waitpid(pid, NULL, WNOHANG) == pid)
			return;
		nap(2);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

void run_daemon_end(struct run_daemon *d)
{
	if (d->pid > 0)
		end_process(d->pid);
	d->pid = 0;
	if (d->dir)
		remove_dir(d->dir);
	free(d->dir);
	d->dir = NULL;
	if (d->dir_fd >= 0)
		close(d->dir_fd);
	d->dir_fd = -1;
}
