/* SPDX-License-Identifier: MIT */
/*
 * Text for people: one place for it, so that the same number looks the same in every program.
 *
 * Nothing here keeps state besides the tables, which belong to their caller; everything may be
 * called from any thread (localtime_r reads TZ, so set it before threads start). None of it is
 * safe in a signal handler. A table never fails loudly: a cell that found no memory prints as "?",
 * since a table is the last step of a command that has already done its work.
 */
#include "lib/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <ctype.h>
#include <time.h>
#include <unistd.h>

/* ---- nearest name ---- */

#define WORD_MAX 64u

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned m = a < b ? a : b;

	return m < c ? m : c;
}

static bool same_letter(char a, char b)
{
	return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Edits (insert, delete, replace, swap of neighbours); both at most WORD_MAX long. */
static unsigned edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
	unsigned rows[3][WORD_MAX + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2], *tmp;

	for (size_t j = 0; j <= nb; j++)
		before[j] = last[j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned cost = !same_letter(a[i - 1], b[j - 1]);

			row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + cost);
			if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
			    same_letter(a[i - 2], b[j - 1]))
				row[j] = min3(row[j], before[j - 2] + 1, row[j]);
		}
		tmp = before;
		before = last;
		last = row;
		row = tmp;
	}
	return last[nb];
}

const char *text_nearest(const char *word, const char *const *names, size_t n)
{
	size_t len = strnlen(word, WORD_MAX + 1);
	const char *best = NULL;
	unsigned least = UINT32_MAX;

	if (!len || len > WORD_MAX)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		size_t other = strnlen(names[i], WORD_MAX + 1);
		unsigned most = (unsigned)((len > other ? len : other) / 3), d;

		if (!other || other > WORD_MAX)
			continue;
		d = edit_distance(word, len, names[i], other);
		if (d < least && d <= (most ? most : 1)) {
			least = d;
			best = names[i];
		}
	}
	return best;
}

/* ---- numbers ---- */

/* One decimal, rounded, in the largest unit that leaves at least 1; units end with NULL. */
static void scaled(uint64_t v, unsigned step, const char *const *units, char *buf, size_t n)
{
	uint64_t div = 1;

	if (v < step) {
		snprintf(buf, n, "%llu %s", (unsigned long long)v, units[0]);
		return;
	}
	/* v / div rounded to tenths stays below step, else "1024.0 KiB" would come out */
	while (units[1] && (double)v / (double)div >= step - 0.05) {
		div *= step;
		units++;
	}
	snprintf(buf, n, "%.1f %s", (double)v / (double)div, units[0]);
}

char *text_bytes(uint64_t bytes, char *buf, size_t n)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", NULL};

	scaled(bytes, 1024, units, buf, n);
	return buf;
}

char *text_pages(uint64_t pages, char *buf, size_t n)
{
	char bytes[32];

	/* more pages than 2^64 bytes can only be nonsense; do not let them wrap to something small
	 */
	text_bytes(pages > UINT64_MAX >> 12 ? UINT64_MAX : pages << 12, bytes, sizeof(bytes));
	snprintf(buf, n, "%llu page%s (%s)", (unsigned long long)pages, pages == 1 ? "" : "s",
		 bytes);
	return buf;
}

char *text_ns(uint64_t ns, char *buf, size_t n)
{
	static const char *const units[] = {"ns", "us", "ms", "s", NULL};

	if (ns < 600 * UINT64_C(1000000000))
		scaled(ns, 1000, units, buf, n);
	else if (ns < 36000 * UINT64_C(1000000000))
		snprintf(buf, n, "%.1f min", (double)ns / 60e9);
	else
		snprintf(buf, n, "%.1f h", (double)ns / 3600e9);
	return buf;
}

static char *time_text(uint64_t wall_us, const char *format, bool zone, char *buf, size_t n)
{
	time_t s = (time_t)(wall_us / 1000000);
	char day[40], offset[8] = "";
	struct tm tm;

	if (!localtime_r(&s, &tm) || !strftime(day, sizeof(day), format, &tm)) {
		snprintf(buf, n, "?");
		return buf;
	}
	if (zone && strftime(offset, sizeof(offset), "%z", &tm) == 5) {
		memmove(offset + 4, offset + 3, 3); /* +0100 -> +01:00 */
		offset[3] = ':';
	}
	snprintf(buf, n, "%s.%03u%s", day, (unsigned)(wall_us / 1000 % 1000), offset);
	return buf;
}

char *text_time(uint64_t wall_us, char *buf, size_t n)
{
	return time_text(wall_us, "%Y-%m-%d %H:%M:%S", false, buf, n);
}

char *text_time_iso(uint64_t wall_us, char *buf, size_t n)
{
	return time_text(wall_us, "%Y-%m-%dT%H:%M:%S", true, buf, n);
}

int text_parse_i64(const char *s, int64_t *ret)
{
	const char *digit = s + (*s == '-' || *s == '+');
	long long v;
	char *end;

	if (!isdigit((unsigned char)*digit)) /* strtoll would skip blanks and take "" */
		return -EINVAL;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (*end)
		return -EINVAL;
	if (errno)
		return -ERANGE;
	*ret = v;
	return 0;
}

int text_parse_size(const char *s, int64_t *ret)
{
	static const char suffixes[] = "kmgt";
	const char *suffix;
	unsigned shift = 0;
	long long v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EINVAL;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (*end) {
		suffix = strchr(suffixes, tolower((unsigned char)*end));
		if (!suffix || end[1])
			return -EINVAL;
		shift = 10 * (unsigned)(suffix - suffixes + 1);
	}
	if (errno || v > INT64_MAX >> shift)
		return -ERANGE;
	*ret = v << shift;
	return 0;
}

/* ---- text of strangers ---- */

/* Bytes of the character at u when it may be shown, 0: it may not, or is no UTF-8. */
static size_t shown_len(const unsigned char *u)
{
	static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000}; /* C1 controls end at 0x9f */
	size_t n = u[0] < 0xc2 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 1;
	uint32_t c = u[0] & (0xffu >> (n + 1));

	if (n == 1)
		return u[0] >= ' ' && u[0] < 0x7f;
	for (size_t i = 1; i < n; i++) {
		if ((u[i] & 0xc0) != 0x80) /* the NUL at the end is none, either */
			return 0;
		c = c << 6 | (u[i] & 0x3fu);
	}
	return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

void text_clean(char *s)
{
	while (*s) {
		size_t n = shown_len((const unsigned char *)s);

		if (!n)
			*s = '?';
		s += n ? n : 1;
	}
}

/* ---- tables ---- */

struct column {
	char *title;
	char align;
};

struct text_table {
	struct column *columns;
	size_t n_columns;
	char **cells; /* row by row; a short row was padded with NULL; NULL prints as "" or "?" */
	size_t n_cells, room;
	bool full; /* no memory for more: what follows would stand in wrong places */
};

static char lost_cell[] = "?"; /* stands for a cell that found no memory */

static bool was_short;

bool text_was_short(void)
{
	bool was = was_short;

	was_short = false;
	return was;
}

struct text_table *text_table_new(void)
{
	struct text_table *t = calloc(1, sizeof(*t));

	was_short |= !t;
	return t;
}

void text_table_free(struct text_table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n_cells; i++)
		if (t->cells[i] != lost_cell)
			free(t->cells[i]);
	for (size_t i = 0; i < t->n_columns; i++)
		free(t->columns[i].title);
	free(t->cells);
	free(t->columns);
	free(t);
}

void text_table_column(struct text_table *t, const char *title, char align)
{
	struct column *more;

	if (!t || t->n_cells) /* columns come first, or rows would shift */
		return;
	more = realloc(t->columns, (t->n_columns + 1) * sizeof(*more));
	was_short |= !more;
	if (!more)
		return;
	t->columns = more;
	more[t->n_columns].title = strdup(title);
	was_short |= !more[t->n_columns].title;
	more[t->n_columns].align = align;
	t->n_columns++;
}

static bool add_cell(struct text_table *t, char *text)
{
	if (t->n_cells == t->room) {
		size_t room = t->room ? 2 * t->room : 64;
		char **more = t->full ? NULL : realloc(t->cells, room * sizeof(*more));

		t->full = !more;
		was_short |= !more;
		if (!more)
			return false;
		t->cells = more;
		t->room = room;
	}
	t->cells[t->n_cells++] = text;
	return true;
}

void text_table_cell(struct text_table *t, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	if (!t || !t->n_columns)
		return;
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	was_short |= !text;
	if (text)
		text_clean(text);
	if (!add_cell(t, text ? text : lost_cell))
		free(text);
}

void text_table_end_row(struct text_table *t)
{
	if (!t || !t->n_columns)
		return;
	while (t->n_cells % t->n_columns)
		if (!add_cell(t, NULL))
			return;
}

/* Columns on a terminal: UTF-8 continuation bytes take none. */
static int text_width(const char *s)
{
	int n = 0;

	for (; s && *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static const char *cell_text(const struct text_table *t, size_t row, size_t column)
{
	size_t i = row * t->n_columns + column;

	return i < t->n_cells && t->cells[i] ? t->cells[i] : "";
}

static void print_padded(FILE *out, const char *s, int width, char align, bool last)
{
	int pad = width - text_width(s);

	if (align == '>')
		fprintf(out, "%*s%s", pad, "", s);
	else if (last)
		fputs(s, out); /* no blanks at the end of a line */
	else
		fprintf(out, "%s%*s", s, pad, "");
	if (!last)
		fputs("  ", out);
}

static int column_width(const struct text_table *t, size_t column, size_t n_rows)
{
	int widest = text_width(t->columns[column].title), w;

	for (size_t r = 0; r < n_rows; r++) {
		w = text_width(cell_text(t, r, column));
		widest = w > widest ? w : widest;
	}
	return widest;
}

void text_table_print(const struct text_table *t, FILE *out, bool bold_titles)
{
	size_t n_rows;
	int *widths;

	if (!t || !t->n_columns)
		return;
	widths = calloc(t->n_columns, sizeof(*widths)); /* without: correct, but not aligned */
	n_rows = (t->n_cells + t->n_columns - 1) / t->n_columns;
	if (bold_titles)
		fputs("\033[1m", out);
	for (size_t c = 0; c < t->n_columns; c++) {
		const char *title = t->columns[c].title ? t->columns[c].title : lost_cell;

		if (widths)
			widths[c] = column_width(t, c, n_rows);
		print_padded(out, title, widths ? widths[c] : text_width(title),
			     t->columns[c].align, c + 1 == t->n_columns);
	}
	fputs(bold_titles ? "\033[0m\n" : "\n", out);
	for (size_t r = 0; r < n_rows; r++) {
		for (size_t c = 0; c < t->n_columns; c++) {
			const char *s = cell_text(t, r, c);

			print_padded(out, s, widths ? widths[c] : text_width(s),
				     t->columns[c].align, c + 1 == t->n_columns);
		}
		fputc('\n', out);
	}
	free(widths);
}

bool text_colour(FILE *out)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return !(no && *no) && term && *term && strcmp(term, "dumb") && isatty(fileno(out));
}
