/* SPDX-License-Identifier: MIT */
/*
 * Text shared by programs: nearest name, sizes and times for people, tables, colour.
 *
 * Any thread, no signal handler. Results are in the caller's buffer, cut to n bytes.
 */
#ifndef PCPTUNE_LIB_TEXT_H
#define PCPTUNE_LIB_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PCPTUNE_VERSION "0.1.0"

/*
 * The name nearest to word by edit distance (case apart, swaps count once), NULL when none is near:
 * more than a third of the longer one's letters, at least one. The first of several.
 */
const char *text_nearest(const char *word, const char *const *names, size_t n);

/* "12.5 MiB", "378 pages (1.5 MiB)", "1.2 ms"; buf at least 48 bytes; returns buf. */
char *text_bytes(uint64_t bytes, char *buf, size_t n);
char *text_pages(uint64_t pages, char *buf, size_t n);
char *text_ns(uint64_t ns, char *buf, size_t n);
/* Local time "2026-11-30 10:02:03.250"; ISO 8601 with zone for programs. */
char *text_time(uint64_t wall_us, char *buf, size_t n);
char *text_time_iso(uint64_t wall_us, char *buf, size_t n);
/* 0..n, suffixes k m g t (x 1024) in either case; -EINVAL: not that, -ERANGE: above INT64_MAX */
int text_parse_size(const char *s, int64_t *ret);
int text_parse_i64(const char *s, int64_t *ret);

/*
 * Makes text of strangers harmless in place: control characters (C0, DEL, C1), with which it could
 * steer a terminal, and what is no UTF-8, which JSON can not hold, become '?'.
 */
void text_clean(char *s);

/*
 * A table: columns first, then cells row by row, printed with aligned columns. Control characters
 * in cells are shown as '?'. Everything takes NULL for a table; a cell without memory shows "?".
 */
struct text_table;
struct text_table *text_table_new(void);
void text_table_free(struct text_table *t);
/* align: '<' or '>' */
void text_table_column(struct text_table *t, const char *title, char align);
__attribute__((format(printf, 2, 3))) void text_table_cell(struct text_table *t, const char *fmt,
							   ...);
void text_table_end_row(struct text_table *t);
void text_table_print(const struct text_table *t, FILE *out, bool bold_titles);
/* Has a table lost something for want of memory since this was asked last? */
bool text_was_short(void);
/* Colour only on a terminal, and not with NO_COLOR or TERM=dumb. */
bool text_colour(FILE *out);

#endif
