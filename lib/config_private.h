/* SPDX-License-Identifier: MIT */
/*
 * What the files of the configuration share: growing text, collected errors, the flat source text.
 *
 * Every allocation of the configuration goes through config_realloc(), so that a test can make the
 * n-th one fail and see that nothing leaks or crashes.
 */
#ifndef PCPTUNE_LIB_CONFIG_PRIVATE_H
#define PCPTUNE_LIB_CONFIG_PRIVATE_H

#include <stdarg.h>
#include "lib/config.h"

/* Test only: allocations left until one fails, -1: never. Written by tests, in one thread. */
extern long config_fail_in;
void *config_realloc(void *p, size_t n);
char *config_strdup(const char *s);

/* Text that grows; once an allocation failed it stays as it was and `failed` is set. */
struct cbuf {
	char *s;
	size_t n, cap;
	bool failed;
};
void cbuf_add(struct cbuf *b, const char *s, size_t n);
__attribute__((format(printf, 2, 0))) void cbuf_vprintf(struct cbuf *b, const char *fmt,
							va_list ap);
__attribute__((format(printf, 2, 3))) void cbuf_printf(struct cbuf *b, const char *fmt, ...);

/* Collected errors, one line each. */
struct config_errors {
	struct cbuf text;
	unsigned n;
	int code; /* -EINVAL, or the errno of the first file that could not be read */
};
__attribute__((format(printf, 4, 5))) void
config_error_add(struct config_errors *e, const char *file, int line, const char *fmt, ...);

/* Where a line of the flat text came from. */
struct config_line {
	const char *file;
	int line;
	bool bad_int; /* a number here does not fit: already reported */
};

/* A file with its includes, as one text for the parser. */
struct config_source {
	struct cbuf text;
	struct config_line *lines; /* lines[0]: unused; libconfig counts from 1 */
	size_t n_lines, cap_lines;
	char **files; /* owned names */
	size_t n_files;
	bool unusable; /* so damaged that parsing it would only add noise */
};
/* Both collect errors in e and return 0 or -ENOMEM. */
int config_source_file(struct config_source *s, const char *file, struct config_errors *e);
int config_source_text(struct config_source *s, const char *text, const char *name,
		       struct config_errors *e);
void config_source_free(struct config_source *s);
const struct config_line *config_source_line(const struct config_source *s, int flat_line);

/* Binds the text to c, which holds the defaults. 0 or -ENOMEM; errors in e. */
int config_bind(struct config *c, const struct config_source *s, struct config_errors *e);

/* Stores of one row, shared by defaults and files. base: struct config or config_rule. */
int config_store_default(const struct config_key *k, void *base);
int config_store_string(const struct config_key *k, void *base, const char *s);
void config_store_int(const struct config_key *k, void *base, int64_t v);
int config_parse_mode(const char *s, int64_t *ret);
int config_rule_init(struct config_rule *r, const char *prefix);
void config_rule_clear(struct config_rule *r);
const struct config_key *config_key_find(const char *name);
const char *config_range_text(const struct config_key *k, char *buf, size_t n);

#endif
