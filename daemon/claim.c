/* SPDX-License-Identifier: MIT */
/*
 * One daemon for one socket path, and one for one log, by flock() on PATH.lock: the kernel lets go
 * of it however the daemon ends, so a lock file that was left behind means nothing. The file is
 * removed at a clean stop; a taker therefore checks after locking that the path still leads to the
 * inode it locked.
 *
 * A socket file without a daemon behind it is stale and replaced. One that somebody answers is not
 * ours to remove, lock or no lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/claim.h"
#include "lib/config.h"

struct claim {
	int fd;
	char *path;
};

static char *parent_of(const char *path)
{
	char *dir = strdup(path), *slash;

	if (!dir)
		return NULL;
	slash = strrchr(dir, '/');
	if (!slash)
		strcpy(dir, *dir ? "." : "");
	else if (slash == dir)
		slash[1] = '\0';
	else
		*slash = '\0';
	return dir;
}

static bool below(const char *dir, const char *root)
{
	size_t n = root ? strlen(root) : 0;

	while (n > 1 && root[n - 1] == '/')
		n--;
	return n && !strncmp(dir, root, n) && dir[n] == '/';
}

/* Places that exist for sockets: the user's and the system's run directory, and our default. */
static bool ours_to_create(const char *dir)
{
	char *def = config_default_socket(), *def_dir = def ? parent_of(def) : NULL;
	bool yes;

	yes = below(dir, getenv("XDG_RUNTIME_DIR")) || below(dir, "/run") ||
	      (def_dir && !strcmp(dir, def_dir));
	free(def);
	free(def_dir);
	return yes;
}

/* mkdir -p; in /run others must be able to come in, elsewhere the directory is ours alone */
static int make_directory(char *dir)
{
	mode_t mode = below(dir, "/run") && geteuid() == 0 ? 0755 : 0700;

	for (char *p = dir + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(dir, mode) && errno != EEXIST) {
			int err = errno;

			*p = '/';
			return -err;
		}
		*p = '/';
	}
	return mkdir(dir, mode) && errno != EEXIST ? -errno : 0;
}

static int directory_there(const char *dir, char *why)
{
	struct stat st;

	if (stat(dir, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode)) {
		snprintf(why, CLAIM_WHY, "%s is not a directory, the socket needs one", dir);
		return -ENOTDIR;
	}
	if (access(dir, W_OK | X_OK)) {
		snprintf(why, CLAIM_WHY,
			 "%s: %s; the daemon must be able to create its socket there", dir,
			 strerror(errno));
		return -EACCES;
	}
	return 0;
}

static int directory_create(char *dir, bool create, char *why)
{
	int r;

	if (!ours_to_create(dir)) {
		snprintf(why, CLAIM_WHY,
			 "directory %s does not exist; create it, or use a socket below "
			 "$XDG_RUNTIME_DIR or /run, where the daemon creates it",
			 dir);
		return -ENOENT;
	}
	if (create && (r = make_directory(dir)) < 0) {
		snprintf(why, CLAIM_WHY, "cannot create directory %s: %s", dir, strerror(-r));
		return r;
	}
	snprintf(why, CLAIM_WHY, "directory %s %s", dir, create ? "created" : "would be created");
	return 0;
}

/* What is no socket is left alone, and there is no start. */
static int place_free(const char *path, char *why)
{
	struct stat st;

	if (lstat(path, &st) || S_ISSOCK(st.st_mode))
		return 0;
	snprintf(why, CLAIM_WHY, "%s exists and is not a socket; remove it or choose another path",
		 path);
	return -EEXIST;
}

static int places_free(const char *socket, char *why)
{
	char *control = config_control_socket(socket);
	int r = control ? place_free(socket, why) : -ENOMEM;

	if (!r)
		r = place_free(control, why);
	free(control);
	return r;
}

int claim_directory(const char *socket, bool create, char *why)
{
	char *dir = parent_of(socket);
	int r;

	if (!dir)
		return -ENOMEM;
	why[0] = '\0';
	if (strlen(socket) + strlen(".ctl") >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
		snprintf(why, CLAIM_WHY, "socket path %s is too long, allowed: %zu bytes", socket,
			 sizeof(((struct sockaddr_un *)0)->sun_path) - strlen(".ctl") - 1);
		r = -ENAMETOOLONG;
	} else {
		r = directory_there(dir, why);
		if (r == -ENOENT)
			r = directory_create(dir, create, why);
		else if (r < 0 && !why[0])
			snprintf(why, CLAIM_WHY, "%s: %s", dir, strerror(-r));
		if (!r)
			r = config_place_trusted(socket, why);
		if (!r)
			r = places_free(socket, why);
	}
	free(dir);
	return r;
}

static void name_holder(int fd, const char *what, const char *path, char *why)
{
	char text[256];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	snprintf(why, CLAIM_WHY, "another pcptuned %s %s: %s", what, path,
		 text[0] ? text : "pid not known");
}

int claim_probe(const char *file, const char *what, char *why)
{
	char *path;
	int fd, r = 0;

	if (asprintf(&path, "%s.lock", file) < 0)
		return -ENOMEM;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	free(path);
	if (fd < 0)
		return 0; /* nobody yet; claim_new() says what else may be wrong */
	if (flock(fd, LOCK_SH | LOCK_NB)) {
		name_holder(fd, what, file, why);
		r = -EBUSY;
	}
	close(fd);
	return r;
}

/* 0: locked and still the file at path; 1: it was replaced meanwhile, try again */
static int lock_file(int fd, const char *path)
{
	struct stat mine, there;

	if (flock(fd, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	if (fstat(fd, &mine))
		return -errno;
	if (stat(path, &there) || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev)
		return 1;
	return 0;
}

static int lock_take(const char *path, const char *file, const char *what, char *why)
{
	int fd, r;

	do {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
		if (fd < 0) {
			r = -errno;
			snprintf(why, CLAIM_WHY, "cannot open %s: %s", path, strerror(-r));
			return r;
		}
		r = lock_file(fd, path);
		if (r == -EBUSY)
			name_holder(fd, what, file, why);
		else if (r < 0)
			snprintf(why, CLAIM_WHY, "cannot lock %s: %s", path, strerror(-r));
		if (r)
			close(fd);
	} while (r == 1);
	return r < 0 ? r : fd;
}

int claim_new(const char *file, const char *what, const char *config, struct claim **ret, char *why)
{
	struct claim *c = calloc(1, sizeof(*c));
	char line[512];
	int n;

	if (!c)
		return -ENOMEM;
	if (asprintf(&c->path, "%s.lock", file) < 0) {
		free(c);
		return -ENOMEM;
	}
	c->fd = lock_take(c->path, file, what, why);
	if (c->fd < 0) {
		n = c->fd;
		free(c->path);
		free(c);
		return n;
	}
	n = snprintf(line, sizeof(line), "pid %ld, configuration %.400s\n", (long)getpid(), config);
	if (ftruncate(c->fd, 0) || pwrite(c->fd, line, (size_t)n, 0) != n) {
		int err = errno;

		snprintf(why, CLAIM_WHY, "cannot write %s: %s", c->path, strerror(err));
		claim_free(c);
		return -err;
	}
	*ret = c;
	return 0;
}

void claim_free(struct claim *c)
{
	if (!c)
		return;
	unlink(c->path);
	close(c->fd);
	free(c->path);
	free(c);
}

static int remove_stale(const char *path, const struct sockaddr_un *addr, char *why)
{
	struct stat st;
	int fd, r = place_free(path, why);

	if (r < 0)
		return r;
	if (lstat(path, &st))
		return errno == ENOENT ? 0 : -errno;
	for (int type = SOCK_STREAM; !r && type <= SOCK_SEQPACKET;
	     type += SOCK_SEQPACKET - SOCK_STREAM) {
		fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd < 0)
			return -errno;
		if (!connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) || errno == EAGAIN) {
			snprintf(why, CLAIM_WHY, "%s is served by another program", path);
			r = -EADDRINUSE;
		}
		close(fd);
	}
	if (!r && unlink(path) && errno != ENOENT)
		r = -errno;
	return r;
}

int claim_bind(const char *path, int type, unsigned mode, char *why)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	mode_t old;
	int fd, r;

	why[0] = '\0';
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	r = remove_stale(path, &addr, why);
	if (r < 0)
		goto fail;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		r = -errno;
		goto fail;
	}
	old = umask((mode_t)(~mode & 0777)); /* never reachable with more than its mode */
	r = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 256) ? -errno : 0;
	umask(old);
	if (!r)
		return fd;
	close(fd);
fail:
	if (!why[0])
		snprintf(why, CLAIM_WHY, "cannot listen on %s: %s", path, strerror(-r));
	return r;
}
