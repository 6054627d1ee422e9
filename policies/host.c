/* SPDX-License-Identifier: MIT */
/*
 * The plug-in host: how a file becomes a module.
 *
 * A policy is code of somebody else in our address space, so the order of things matters: what can
 * be known without it is known before (host_find.c), and only then is it loaded, since loading runs
 * constructors. The descriptor is then checked in full, and no function of it is called before that
 * passed.
 *
 * RTLD_NODELETE: a loaded policy stays mapped for the life of the process. Names, sentences and
 * reasons point into it from log rows and answers of the control socket that outlive an instance,
 * and unloading code is the one step whose errors no check could find. What is lost is a few pages
 * for each replaced file.
 *
 * Reference counts are plain integers: modules belong to one thread (the daemon's loop, a verb of
 * the command line).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/text.h"
#include "policies/host_canary.h"
#include "policies/host_internal.h"

#define SYMBOL "pcptune_policy_v1"

struct policy_module {
	const struct pcptune_policy *desc;
	unsigned int refs;
	struct policy_file_id id;
	void *owned; /* the descriptor of a module whose code runs elsewhere; NULL: it is mapped */
	char file[]; /* real path */
};

/* Files that were mapped: see spelled(). */
struct mapped {
	struct mapped *next;
	struct policy_file_id id;
	unsigned int generation;
	char path[];
};

static struct mapped *all_mapped;

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

/* ---- loading ---- */

/* How often another file was mapped from this path before; -ENOMEM. */
static int generation(const struct policy_file *f, unsigned int *ret)
{
	struct mapped *m, *last = NULL;

	for (m = all_mapped; m; m = m->next) {
		if (strcmp(m->path, f->path) != 0)
			continue;
		if (!last || m->generation > last->generation)
			last = m;
	}
	*ret = last ? last->generation : 0;
	if (last && policy_file_same(&last->id, &f->id))
		return 0;
	*ret = last ? last->generation + 1 : 0;
	m = malloc(sizeof(*m) + strlen(f->path) + 1);
	if (!m)
		return -ENOMEM;
	m->next = all_mapped;
	m->id = f->id;
	m->generation = *ret;
	strcpy(m->path, f->path);
	all_mapped = m;
	return 0;
}

/*
 * The linker knows a file by the words it was opened by, and would give back the old one for a path
 * that has a new file. So each generation spells the path in its own way: /dir/././name.so.
 */
static int spelled(const struct policy_file *f, char *buf, size_t n)
{
	const char *base = strrchr(f->path, '/') + 1;
	unsigned int g;
	size_t len;

	if (generation(f, &g))
		return -ENOMEM;
	len = (size_t)snprintf(buf, n, "%.*s", (int)(base - f->path), f->path);
	for (; g && len + 2 < n; g--, len += 2)
		memcpy(buf + len, "./", 3);
	if (len + strlen(base) >= n)
		return -ENAMETOOLONG;
	strcpy(buf + len, base);
	return 0;
}

/* What the linker has to say, with the file's own name where it has the words it was opened by. */
static int not_linked(const struct policy_file *f, const char *words, char *why)
{
	const char *text = dlerror();
	size_t n = strlen(words);

	if (strncmp(text, words, n) != 0)
		return host_why(why, -ENOEXEC, "%s", text);
	return host_why(why, -ENOEXEC, "%.120s%s", f->path, text + n);
}

/* words: the path that the linker shall open it by. */
static int open_module(const struct policy_file *f, const char *words,
		       const struct pcptune_policy **ret, char *why)
{
	const struct pcptune_policy *desc;
	struct host_image img;
	void *handle;
	int r = 0;

	handle = dlopen(words, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		return not_linked(f, words, why);
	desc = dlsym(handle, SYMBOL);
	if (!desc)
		r = host_why(why, -ENOEXEC, "%.160s: does not export %s", f->path, SYMBOL);
	else if (host_image_of(desc, &img))
		r = host_why(why, -ENOEXEC, "%.160s: its segments can not be found", f->path);
	else
		r = host_check_desc(desc, &img, f->name, why);
	if (r)
		dlclose(handle);
	else
		*ret = desc;
	return r;
}

struct policy_module *host_module_new(const struct pcptune_policy *desc, const char *file)
{
	struct policy_module *m = calloc(1, sizeof(*m) + strlen(file) + 1);

	if (!m)
		return NULL;
	m->desc = desc;
	m->refs = 1;
	strcpy(m->file, file);
	return m;
}

struct policy_module *host_module_remote(struct pcptune_policy *desc, const struct policy_file *f)
{
	struct policy_module *m = host_module_new(desc, f->path);

	if (m) {
		m->id = f->id;
		m->owned = desc;
	}
	return m;
}

static int load_by(const struct policy_file *f, const char *words, struct policy_module **ret,
		   char *why)
{
	const struct pcptune_policy *desc = NULL;
	struct policy_module *m;
	int r = open_module(f, words, &desc, why);

	if (r)
		return r;
	m = host_module_new(desc, f->path);
	if (!m)
		return host_why(why, -ENOMEM, "no memory for policy \"%s\"", f->name);
	m->id = f->id;
	*ret = m;
	return 0;
}

int policy_load_file(const struct policy_file *f, struct policy_module **ret, char *why)
{
	char words[PATH_MAX];
	int r = spelled(f, words, sizeof(words));

	if (r)
		return host_why(why, r, "%.160s: %s", f->path, strerror(-r));
	return load_by(f, words, ret, why);
}

/* Leads to the file itself, whatever lies at its path by now. */
static void words_of(int fd, char words[32])
{
	snprintf(words, 32, "/proc/self/fd/%d", fd);
}

int host_reopen(int fd)
{
	char words[32];
	int again;

	words_of(fd, words);
	again = open(words, O_RDONLY | O_CLOEXEC);
	return again < 0 ? -errno : again;
}

int host_load_fd(const struct policy_file *f, int fd, struct policy_module **ret, char *why)
{
	char words[32];

	words_of(fd, words);
	return load_by(f, words, ret, why);
}

int policy_load(const char *name, const char *path, struct policy_module **ret, char *why)
{
	struct policy_file f;
	int r = policy_find(name, path, &f, why);

	return r ? r : policy_load_file(&f, ret, why);
}

/* A log has no path of a policy: it may have been given by one. */
int policy_load_logged(const char *name, const char *path, struct policy_module **ret, char *why)
{
	int r = policy_load(name, path, ret, why);
	size_t n = r == -ENOENT ? strlen(why) : POLICY_WHY;

	if (n < POLICY_WHY)
		snprintf(why + n, POLICY_WHY - n, "; --policy-path tells where to look");
	return r;
}

struct policy_module *policy_ref(struct policy_module *m)
{
	m->refs++;
	return m;
}

void policy_unref(struct policy_module *m)
{
	if (!m || --m->refs)
		return;
	free(m->owned);
	free(m);
}

bool policy_file_same(const struct policy_file_id *a, const struct policy_file_id *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
	       a->mtime_ns == b->mtime_ns;
}

const struct policy_file_id *policy_file_id(const struct policy_module *m)
{
	return &m->id;
}

bool policy_remote(const struct policy_module *m)
{
	return m->owned != NULL;
}

/* Mapped ones have one descriptor for each file, however often it is loaded. */
bool policy_same(const struct policy_module *a, const struct policy_module *b)
{
	if (!a->owned || !b->owned)
		return a->desc == b->desc;
	return strcmp(a->file, b->file) == 0 && policy_file_same(&a->id, &b->id);
}

const struct pcptune_policy *policy_desc(const struct policy_module *m)
{
	return m->desc;
}

uint32_t policy_record_ms(const struct policy_module *m)
{
	const struct pcptune_policy *p = m->desc;

	return HOST_HAS(p, record_ms) ? p->record_ms : 0;
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

const struct pcptune_param *policy_host_param(uint32_t i)
{
	if (i < POLICY_GUARD_PARAMS)
		return &guard_params[i];
	return i < POLICY_HOST_PARAMS ? &canary_params[i - POLICY_GUARD_PARAMS] : NULL;
}

bool policy_guarded(const int64_t *params)
{
	return params[POLICY_OWN_PARAMS + GUARD_PERMILLE] != 0;
}

int64_t policy_canary(const int64_t *params)
{
	return params[POLICY_OWN_PARAMS + POLICY_GUARD_PARAMS + CANARY_PERMILLE];
}

void policy_canary_set(int64_t *params, int64_t permille)
{
	params[POLICY_OWN_PARAMS + POLICY_GUARD_PARAMS + CANARY_PERMILLE] = permille;
}

bool policy_host_param_used(const int64_t *params, uint32_t i)
{
	return i < POLICY_GUARD_PARAMS ? policy_guarded(params) : policy_canary(params) != 0;
}

const struct pcptune_reason *policy_reason(const struct policy_module *m, uint32_t id)
{
	const struct pcptune_policy *p = m->desc;

	for (uint32_t i = 0; i < GUARD_N_REASONS; i++)
		if (guard_reasons[i].id == id)
			return &guard_reasons[i];
	for (uint32_t i = 0; i < CANARY_N_REASONS; i++)
		if (canary_reasons[i].id == id)
			return &canary_reasons[i];
	for (uint32_t i = 0; i < p->n_reasons; i++) {
		const struct pcptune_reason *r =
			(const void *)((const char *)p->reasons + (size_t)i * p->reason_size);
		if (r->id == id)
			return r;
	}
	return NULL;
}
