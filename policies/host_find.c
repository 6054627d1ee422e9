/* SPDX-License-Identifier: MIT */
/*
 * Where policies are looked for, which file a name means, and whose it is.
 *
 * A policy is ours when it is one of those that pcptune is built with and lies, by its real path,
 * in the directory of the installation; the path check sees to it that nobody else can write there.
 * Every other one is foreign, also where it lies beside ours or has the name of one of them. This
 * is the one place that says so. The daemon runs foreign ones in processes of their own
 * (host_remote.h).
 *
 * Nothing here runs code of a policy: the path is checked (who could have written this file?), then
 * the numbers of the descriptor are read from the file (is it made for us?).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/text.h"
#include "policies/host_internal.h"

#ifndef PCPTUNE_BUNDLED
#define PCPTUNE_BUNDLED ""
#endif

/* ---- the search path ---- */

/* The policies beside the running program: PREFIX/bin/program -> PREFIX/lib/pcptune/policies. */
static bool beside_program(char *buf, size_t n)
{
	static const char rel[] = "lib/pcptune/policies";
	ssize_t len = readlink("/proc/self/exe", buf, n - 1);
	char *slash;

	if (len <= 0)
		return false;
	buf[len] = 0;
	for (int up = 0; up < 2; up++) {
		slash = strrchr(buf, '/');
		if (!slash)
			return false;
		*slash = 0;
	}
	len = (ssize_t)strlen(buf);
	if ((size_t)snprintf(buf + len, n - (size_t)len, "/%s", rel) >= n - (size_t)len)
		return false;
	return access(buf, F_OK) == 0;
}

const char *policy_installed_path(void)
{
	static char path[PATH_MAX];

	if (!beside_program(path, sizeof(path)))
		snprintf(path, sizeof(path), "%s", PCPTUNE_LIBDIR "/pcptune/policies");
	return path;
}

const char *policy_default_path(void)
{
	static char path[PATH_MAX];
	const char *env = secure_getenv("PCPTUNE_POLICY_PATH");

	if (!env || !*env)
		return policy_installed_path();
	snprintf(path, sizeof(path), "%s", env);
	return path;
}

/* Copies the next element of a colon-separated list to dir; false at the end. */
static bool next_dir(const char **at, char *dir, size_t n)
{
	size_t len;

	while (**at == ':')
		(*at)++;
	if (!**at)
		return false;
	len = strcspn(*at, ":");
	snprintf(dir, n, "%.*s", (int)(len < n ? len : n - 1), *at);
	*at += len;
	return true;
}

static int not_found(const char *name, const char *path, char *why)
{
	char **names;
	const char *near = NULL;
	size_t n;

	if (policy_list(path, &names, &n))
		return host_why(why, -ENOENT, "no policy \"%s\" in %s", name, path);
	near = text_nearest(name, (const char *const *)names, n);
	if (near)
		host_why(why, 0, "no policy \"%s\" in %.120s; did you mean \"%s\"?", name, path,
			 near);
	else
		host_why(why, 0, "no policy \"%s\" in %.160s", name, path);
	policy_list_free(names, n);
	return -ENOENT;
}

/* First file NAME.so on the path. file: PATH_MAX bytes. */
static int find_file(const char *name, const char *path, char *file, char *why)
{
	char dir[PATH_MAX - 64];
	const char *at = path;

	if (!host_name_ok(name, true))
		return host_why(why, -EINVAL,
				"\"%.40s\" is no name of a policy: small letters, digits, - and _, "
				"at most %u bytes",
				name, HOST_WORD_MAX);
	while (next_dir(&at, dir, sizeof(dir))) {
		snprintf(file, PATH_MAX, "%s/%s.so", dir, name);
		if (access(file, F_OK) == 0)
			return 0;
	}
	return not_found(name, path, why);
}

/* ---- a file ---- */

/* The file's name without folder and ".so"; buf holds HOST_WORD_MAX + 1 bytes. */
static int base_name(const char *real, char *buf, char *why)
{
	const char *base = strrchr(real, '/') + 1;
	size_t len = strlen(base);

	if (len < 4 || strcmp(base + len - 3, ".so") != 0 || len - 3 > HOST_WORD_MAX)
		return host_why(why, -EINVAL,
				"%.160s: a policy's file is NAME.so, NAME at most %u bytes", real,
				HOST_WORD_MAX);
	memcpy(buf, base, len - 3);
	buf[len - 3] = 0;
	return 0;
}

/* One of those that we are built with? */
static bool bundled(const char *name)
{
	static const char all[] = " " PCPTUNE_BUNDLED " ";
	char word[HOST_WORD_MAX + 3];

	snprintf(word, sizeof(word), " %s ", name);
	return strstr(all, word) != NULL;
}

static bool installed(const struct policy_file *f)
{
	char dir[PATH_MAX];
	size_t len;

	if (!bundled(f->name) || !realpath(policy_installed_path(), dir))
		return false;
	len = strlen(dir);
	return strncmp(f->path, dir, len) == 0 && f->path[len] == '/' &&
	       !strchr(f->path + len + 1, '/');
}

static struct policy_file_id id_of(const struct stat *st)
{
	return (struct policy_file_id){st->st_dev, st->st_ino, (uint64_t)st->st_size,
				       st->st_mtim.tv_sec * INT64_C(1000000000) +
					       st->st_mtim.tv_nsec};
}

static int identify(struct policy_file *f, char *why)
{
	struct stat st;

	if (stat(f->path, &st))
		return host_why(why, -errno, "%.160s: %s", f->path, strerror(errno));
	f->id = id_of(&st);
	return 0;
}

int host_open(const struct policy_file *f, char *why)
{
	int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct policy_file_id id;
	struct stat st;

	if (fd < 0)
		return host_why(why, -errno, "%.160s: %s", f->path, strerror(errno));
	if (!fstat(fd, &st)) {
		id = id_of(&st);
		if (policy_file_same(&id, &f->id))
			return fd;
	}
	close(fd);
	return host_why(why, -ESTALE, "%.160s: was written anew while it was looked at", f->path);
}

int policy_find(const char *name, const char *path, struct policy_file *ret, char *why)
{
	const char *at = path ? path : policy_default_path();
	char file[PATH_MAX];
	int r = 0;

	if (strchr(name, '/'))
		snprintf(file, sizeof(file), "%s", name);
	else
		r = find_file(name, at, file, why);
	if (r)
		return r;
	if (!realpath(file, ret->path))
		return host_why(why, -errno, "%.160s: %s", file, strerror(errno));
	r = base_name(ret->path, ret->name, why);
	if (!r)
		r = host_check_path(ret->path, why);
	if (!r)
		r = host_check_elf(ret->path, why);
	if (!r)
		r = identify(ret, why);
	if (!r)
		ret->foreign = !installed(ret);
	return r;
}

/* ---- the list of names ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_add(char ***names, size_t *n, const char *name)
{
	char **grown;

	for (size_t i = 0; i < *n; i++)
		if (strcmp((*names)[i], name) == 0)
			return 0;
	grown = reallocarray(*names, *n + 1, sizeof(**names));
	if (!grown)
		return -ENOMEM;
	*names = grown;
	grown[*n] = strdup(name);
	if (!grown[*n])
		return -ENOMEM;
	(*n)++;
	return 0;
}

static int list_dir(const char *dir, char ***names, size_t *n)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int r = 0;

	if (!d)
		return 0; /* a missing directory holds no policies */
	while (!r && (e = readdir(d))) {
		size_t len = strlen(e->d_name);
		char base[HOST_WORD_MAX + 1];

		if (len < 4 || len - 3 > HOST_WORD_MAX || strcmp(e->d_name + len - 3, ".so") != 0)
			continue;
		memcpy(base, e->d_name, len - 3);
		base[len - 3] = 0;
		if (host_name_ok(base, true))
			r = names_add(names, n, base);
	}
	closedir(d);
	return r;
}

int policy_list(const char *path, char ***ret_names, size_t *ret_n)
{
	const char *at = path ? path : policy_default_path();
	char dir[PATH_MAX], **names = NULL;
	size_t n = 0;
	int r = 0;

	while (!r && next_dir(&at, dir, sizeof(dir)))
		r = list_dir(dir, &names, &n);
	if (r) {
		policy_list_free(names, n);
		return r;
	}
	if (n)
		qsort(names, n, sizeof(*names), by_name);
	*ret_names = names;
	*ret_n = n;
	return 0;
}

void policy_list_free(char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
}
