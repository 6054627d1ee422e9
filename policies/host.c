/* SPDX-License-Identifier: MIT */
/*
 * The plug-in host: where policies are looked for, and how one becomes a module.
 *
 * A policy is code of somebody else in our address space, so the order of things matters: the
 * path is checked (who could have written this file?), then the numbers of the descriptor are read
 * from the file (is it made for us?), and only then is it loaded, since loading runs constructors.
 * The descriptor is then checked in full, and no function of it is called before that passed.
 *
 * RTLD_NODELETE: a loaded policy stays mapped for the life of the process. Names, sentences and
 * reasons point into it from log rows and answers of the control socket that outlive an instance,
 * and unloading code is the one step whose errors no check could find. What is lost is a few pages
 * for each replaced file.
 *
 * Reference counts are plain integers: modules belong to one thread (the daemon's loop, a verb of
 * the command line).
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/text.h"
#include "policies/host_guard.h"
#include "policies/host_internal.h"

#define SYMBOL "pcptune_policy_v1"

struct policy_module {
	const struct pcptune_policy *desc;
	unsigned int refs;
	char file[]; /* real path */
};

int host_why(char *why, int err, const char *fmt, ...)
{
	va_list ap;

	if (!why)
		return err;
	va_start(ap, fmt);
	vsnprintf(why, POLICY_WHY, fmt, ap);
	va_end(ap);
	return err;
}

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

const char *policy_default_path(void)
{
	static char path[PATH_MAX];
	const char *env = secure_getenv("PCPTUNE_POLICY_PATH");

	if (env && *env) {
		snprintf(path, sizeof(path), "%s", env);
		return path;
	}
	if (!beside_program(path, sizeof(path)))
		snprintf(path, sizeof(path), "%s", PCPTUNE_LIBDIR "/pcptune/policies");
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

/* ---- loading ---- */

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

static int open_module(const char *real, const char *base, const struct pcptune_policy **ret,
		       char *why)
{
	const struct pcptune_policy *desc;
	struct host_image img;
	void *handle;
	int r;

	handle = dlopen(real, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		return host_why(why, -ENOEXEC, "%s", dlerror());
	desc = dlsym(handle, SYMBOL);
	if (!desc)
		r = host_why(why, -ENOEXEC, "%.160s: does not export %s", real, SYMBOL);
	else if (host_image_of(desc, &img))
		r = host_why(why, -ENOEXEC, "%.160s: its segments can not be found", real);
	else
		r = host_check_desc(desc, &img, base, why);
	if (r)
		dlclose(handle);
	else
		*ret = desc;
	return r;
}

struct policy_module *host_module_new(const struct pcptune_policy *desc, const char *file)
{
	struct policy_module *m = malloc(sizeof(*m) + strlen(file) + 1);

	if (!m)
		return NULL;
	m->desc = desc;
	m->refs = 1;
	strcpy(m->file, file);
	return m;
}

static int load_file(const char *file, struct policy_module **ret, char *why)
{
	char real[PATH_MAX], base[HOST_WORD_MAX + 1];
	const struct pcptune_policy *desc = NULL;
	struct policy_module *m;
	int r;

	if (!realpath(file, real))
		return host_why(why, -errno, "%.160s: %s", file, strerror(errno));
	r = base_name(real, base, why);
	if (!r)
		r = host_check_path(real, why);
	if (!r)
		r = host_check_elf(real, why);
	if (!r)
		r = open_module(real, base, &desc, why);
	if (r)
		return r;
	m = host_module_new(desc, real);
	if (!m)
		return host_why(why, -ENOMEM, "no memory for policy \"%s\"", base);
	*ret = m;
	return 0;
}

int policy_load(const char *name, const char *path, struct policy_module **ret, char *why)
{
	char file[PATH_MAX];
	int r;

	if (strchr(name, '/'))
		return load_file(name, ret, why);
	r = find_file(name, path ? path : policy_default_path(), file, why);
	return r ? r : load_file(file, ret, why);
}

struct policy_module *policy_ref(struct policy_module *m)
{
	m->refs++;
	return m;
}

void policy_unref(struct policy_module *m)
{
	if (m && --m->refs == 0)
		free(m);
}

const struct pcptune_policy *policy_desc(const struct policy_module *m)
{
	return m->desc;
}

const char *policy_file(const struct policy_module *m)
{
	return m->file;
}

const struct pcptune_param *policy_param(const struct policy_module *m, uint32_t i)
{
	const struct pcptune_policy *p = m->desc;

	if (i >= p->n_params)
		return NULL;
	return (const struct pcptune_param *)((const char *)p->params + (size_t)i * p->param_size);
}

const struct pcptune_param *policy_guard_param(uint32_t i)
{
	return i < POLICY_GUARD_PARAMS ? &guard_params[i] : NULL;
}

bool policy_guarded(const int64_t *params)
{
	return params[POLICY_OWN_PARAMS + GUARD_PERMILLE] != 0;
}

const struct pcptune_reason *policy_reason(const struct policy_module *m, uint32_t id)
{
	const struct pcptune_policy *p = m->desc;

	for (uint32_t i = 0; i < GUARD_N_REASONS; i++)
		if (guard_reasons[i].id == id)
			return &guard_reasons[i];
	for (uint32_t i = 0; i < p->n_reasons; i++) {
		const struct pcptune_reason *r =
			(const void *)((const char *)p->reasons + (size_t)i * p->reason_size);
		if (r->id == id)
			return r;
	}
	return NULL;
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
