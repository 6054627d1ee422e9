/* SPDX-License-Identifier: MIT */
/*
 * Configuration: a struct with defaults, a file read over it, and questions asked of it.
 *
 * config_table.c has the keys, config_source.c makes one checked text of a file and its includes,
 * config_bind.c stores the values. A struct config is written while it is made and by nobody
 * after, so that it can be read from any thread.
 *
 * Locale: numbers are read with strtoll() and by libconfig, which switches to the C locale itself;
 * defaults have no fraction. So a locale with a decimal comma changes nothing.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/config_private.h"

long config_fail_in = -1;

void *config_realloc(void *p, size_t n)
{
	if (config_fail_in >= 0 && config_fail_in-- == 0)
		return NULL;
	return realloc(p, n);
}

char *config_strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *d = config_realloc(NULL, n);

	return d ? memcpy(d, s, n) : NULL;
}

/* ---- growing text ---- */

static bool cbuf_room(struct cbuf *b, size_t n)
{
	size_t cap = b->cap ? b->cap : 128;
	char *s;

	while (cap < b->n + n + 1)
		cap *= 2;
	if (cap == b->cap)
		return true;
	s = b->failed ? NULL : config_realloc(b->s, cap);
	if (!s) {
		b->failed = true;
		return false;
	}
	b->s = s;
	b->cap = cap;
	return true;
}

void cbuf_add(struct cbuf *b, const char *s, size_t n)
{
	if (b->failed || !cbuf_room(b, n))
		return;
	memcpy(b->s + b->n, s, n);
	b->n += n;
	b->s[b->n] = '\0';
}

void cbuf_vprintf(struct cbuf *b, const char *fmt, va_list ap)
{
	va_list again;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0 || b->failed || !cbuf_room(b, (size_t)n))
		return;
	vsnprintf(b->s + b->n, (size_t)n + 1, fmt, ap);
	b->n += (size_t)n;
}

void cbuf_printf(struct cbuf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	cbuf_vprintf(b, fmt, ap);
	va_end(ap);
}

void config_error_add(struct config_errors *e, const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	e->n++;
	if (line)
		cbuf_printf(&e->text, "%s:%d: ", file, line);
	else
		cbuf_printf(&e->text, "%s: ", file);
	va_start(ap, fmt);
	cbuf_vprintf(&e->text, fmt, ap);
	va_end(ap);
	cbuf_add(&e->text, "\n", 1);
}

/* ---- stores ---- */

void config_store_int(const struct config_key *k, void *base, int64_t v)
{
	char *at = (char *)base + k->offset;

	if (k->type == CONFIG_BOOL)
		*(bool *)at = v != 0;
	else if (k->type == CONFIG_ENUM)
		*(enum config_on_exit *)at = (enum config_on_exit)v;
	else
		*(int64_t *)at = v;
}

/* An empty string is "not set" for every key that has no default in the table. */
int config_store_string(const struct config_key *k, void *base, const char *s)
{
	char **at = (char **)((char *)base + k->offset);
	char *copy = NULL;

	if (s[0]) {
		copy = config_strdup(s);
		if (!copy)
			return -ENOMEM;
	}
	free(*at);
	*at = copy;
	return 0;
}

int config_parse_mode(const char *s, int64_t *ret)
{
	int64_t v = 0;
	size_t n = strlen(s);

	if (n < 3 || n > 4 || strspn(s, "01234567") != n)
		return -EINVAL;
	for (; *s; s++)
		v = v * 8 + (*s - '0');
	*ret = v;
	return 0;
}

/* A word between its quotes, as the table writes strings. */
static int unquote(const char *def, char *buf, size_t n)
{
	size_t len = strlen(def);

	if (len < 2 || len - 2 >= n)
		return -EINVAL;
	memcpy(buf, def + 1, len - 2);
	buf[len - 2] = '\0';
	return 0;
}

int config_store_default(const struct config_key *k, void *base)
{
	char word[64];
	int64_t v = 0;

	if (k->type == CONFIG_GROUP)
		return 0;
	if (!k->def) {
		/* left out: -1 for what a rule may leave open, NULL for strings */
		if (k->type != CONFIG_STRING)
			config_store_int(k, base, -1);
		return 0;
	}
	if (k->type == CONFIG_SHARE)
		v = strtoll(k->def, NULL, 10) * 1000; /* 0 or 1 */
	if (k->type == CONFIG_INT || k->type == CONFIG_BOOL)
		v = k->type == CONFIG_INT ? strtoll(k->def, NULL, 10) : k->def[0] == 't';
	if (k->type == CONFIG_INT || k->type == CONFIG_BOOL || k->type == CONFIG_SHARE) {
		config_store_int(k, base, v);
		return 0;
	}
	if (unquote(k->def, word, sizeof(word)) < 0)
		return -EINVAL;
	if (k->type == CONFIG_STRING)
		return config_store_string(k, base, word);
	if (k->type == CONFIG_MODE)
		config_parse_mode(word, &v);
	for (; k->type == CONFIG_ENUM && strcmp(k->choices[v], word) != 0; v++)
		;
	config_store_int(k, base, v);
	return 0;
}

/* ---- making and freeing ---- */

static int store_defaults(void *base, const char *prefix, bool own)
{
	int r = 0;

	for (size_t i = 0; i < config_n_keys && r == 0; i++) {
		const char *name = config_keys[i].name;
		bool rule = strncmp(name, "rules.", 6) == 0 || strncmp(name, "default.", 8) == 0;

		if (own ? strncmp(name, prefix, strlen(prefix)) == 0 : !rule)
			r = config_store_default(&config_keys[i], base);
	}
	return r;
}

int config_rule_init(struct config_rule *r, const char *prefix)
{
	*r = (struct config_rule){.uid = -1, .dry_run = -1};
	return store_defaults(r, prefix, true);
}

void config_rule_clear(struct config_rule *r)
{
	for (size_t i = 0; i < r->n_params; i++) {
		free(r->params[i].key);
		free(r->params[i].value);
	}
	free(r->params);
	free(r->program);
	free(r->policy);
}

void config_free(struct config *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->n_rules; i++)
		config_rule_clear(&c->rules[i]);
	free(c->rules);
	config_rule_clear(&c->def);
	free(c->file);
	free(c->socket);
	free(c->policy_path);
	free(c->log.path);
	free(c->control.group);
	free(c);
}

static int config_new(const char *file, struct config **ret)
{
	struct config *c = config_realloc(NULL, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	*c = (struct config){0};
	r = store_defaults(c, "", false);
	if (r == 0)
		r = config_rule_init(&c->def, "default.");
	if (r == 0 && file) {
		c->file = config_strdup(file);
		r = c->file ? 0 : -ENOMEM;
	}
	if (r < 0)
		config_free(c);
	else
		*ret = c;
	return r;
}

/* Defaults that depend on the surroundings, and what single rows can not check. */
static int finish(struct config *c, struct config_errors *e)
{
	const char *name = c->file ? c->file : "built-in configuration";

	if (!c->socket)
		c->socket = config_default_socket();
	if (!c->log.path)
		c->log.path = config_default_log();
	if (!c->socket || !c->log.path)
		return -ENOMEM;
	if (strlen(c->socket) > (size_t)config_key_find("socket")->max)
		config_error_add(e, name, 0,
				 "socket: the default %s is too long, allowed: set socket "
				 "to a path of at most 103 bytes",
				 c->socket);
	if (c->log.required && !c->log.enabled)
		config_error_add(e, name, 0,
				 "log.required is true and log.enabled is false, allowed: "
				 "a log that is required must be enabled");
	return 0;
}

/* Ends a load: hands out the config or the errors. Takes over c and e->text.s. */
static int hand_out(int r, struct config *c, struct config_errors *e, struct config **ret,
		    char **ret_why)
{
	if (r == 0 && e->text.failed)
		r = -ENOMEM;
	if (r == 0 && e->n == 0) {
		free(e->text.s);
		*ret = c;
		return 0;
	}
	config_free(c);
	*ret_why = e->text.s;
	return r < 0 ? r : e->code;
}

static int load(const char *file, const char *text, struct config **ret, char **ret_why)
{
	struct config_errors e = {.code = -EINVAL};
	struct config_source src = {0};
	struct config *c = NULL;
	int r = config_new(file, &c);

	if (r == 0 && text)
		r = config_source_text(&src, text, file, &e);
	else if (r == 0 && file)
		r = config_source_file(&src, file, &e);
	if (r == 0 && src.text.s && !src.unusable)
		r = config_bind(c, &src, &e);
	if (r == 0)
		r = src.unusable ? 0 : finish(c, &e);
	config_source_free(&src);
	return hand_out(r, c, &e, ret, ret_why);
}

int config_load(const char *file, struct config **ret, char **ret_why)
{
	return load(file, NULL, ret, ret_why);
}

int config_parse(const char *text, const char *name, struct config **ret, char **ret_why)
{
	return load(name, text, ret, ret_why);
}

/* ---- questions ---- */

const struct config_rule *config_match(const struct config *c, const char *program, int64_t uid,
				       int *ret_i)
{
	for (size_t i = 0; i < c->n_rules; i++) {
		const struct config_rule *r = &c->rules[i];

		if (r->uid >= 0 && r->uid != uid)
			continue;
		if (r->program && fnmatch(r->program, program, 0) != 0)
			continue;
		*ret_i = (int)i;
		return r;
	}
	*ret_i = -1;
	return &c->def;
}

static bool same_value(const struct config_key *k, const struct config *a, const struct config *b)
{
	const char *x = (const char *)a + k->offset, *y = (const char *)b + k->offset;

	if (k->type == CONFIG_STRING) {
		const char *s = *(char *const *)x, *t = *(char *const *)y;

		return s && t ? strcmp(s, t) == 0 : s == t;
	}
	if (k->type == CONFIG_BOOL)
		return *(const bool *)x == *(const bool *)y;
	if (k->type == CONFIG_ENUM)
		return *(const enum config_on_exit *)x == *(const enum config_on_exit *)y;
	return *(const int64_t *)x == *(const int64_t *)y;
}

int config_reloadable(const struct config *old, const struct config *new_, const char **ret_key)
{
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];

		/* what belongs to rules is reloadable, and has other offsets */
		if (k->reloadable || k->type == CONFIG_GROUP)
			continue;
		if (!same_value(k, old, new_)) {
			*ret_key = k->name;
			return -EINVAL;
		}
	}
	return 0;
}

/* ---- places ---- */

#define FALLBACK_BYTES 64

static char *join(const char *a, const char *b)
{
	struct cbuf s = {0};

	cbuf_printf(&s, "%s%s", a, b);
	if (!s.failed)
		return s.s;
	free(s.s);
	return NULL;
}

/* An environment variable that names a place: absolute, as the XDG rules demand. */
static const char *env_dir(const char *name)
{
	const char *v = getenv(name);

	return v && v[0] == '/' ? v : NULL;
}

/* The place of a user who has none: in /tmp, where anybody may have been first. The allocator looks
 * there, too (allocator/attach.c). */
static void fallback_dir(char *buf, size_t n)
{
	snprintf(buf, n, "/tmp/pcptune-%u", (unsigned)geteuid());
}

char *config_default_socket(void)
{
	const char *v = getenv("PCPTUNE_SOCKET");
	char dir[FALLBACK_BYTES];

	if (v && v[0])
		return join(v, "");
	if (geteuid() == 0)
		return join("/run", "/pcptune/sock");
	v = env_dir("XDG_RUNTIME_DIR");
	if (v)
		return join(v, "/pcptune/sock");
	fallback_dir(dir, sizeof(dir));
	return join(dir, "/sock");
}

char *config_default_log(void)
{
	char dir[FALLBACK_BYTES];
	const char *v;

	if (geteuid() == 0)
		return join("/var/lib", "/pcptune/pcptuned.db");
	v = env_dir("XDG_STATE_HOME");
	if (v)
		return join(v, "/pcptune/pcptuned.db");
	v = env_dir("HOME");
	if (v)
		return join(v, "/.local/state/pcptune/pcptuned.db");
	fallback_dir(dir, sizeof(dir));
	return join(dir, "/pcptuned.db");
}

int config_place_trusted(const char *path, char *why)
{
	char dir[FALLBACK_BYTES];
	struct stat st;

	fallback_dir(dir, sizeof(dir));
	if (strncmp(path, dir, strlen(dir)) != 0 || path[strlen(dir)] != '/' || lstat(dir, &st))
		return 0;
	if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)))
		return 0;
	snprintf(why, 256,
		 "%s is not a directory that only user %u can write, so it may be a trap of "
		 "somebody else; set XDG_RUNTIME_DIR or name another place",
		 dir, (unsigned)geteuid());
	return -EPERM;
}

char *config_control_socket(const char *socket)
{
	return join(socket, ".ctl");
}
