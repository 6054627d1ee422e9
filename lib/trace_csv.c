/* SPDX-License-Identifier: MIT */
/*
 * Traces as comma-separated text, for what comes from elsewhere and goes there.
 *
 * One header, then one row a line, whole numbers only. A line that is not a row ends the import
 * with its number and what would be right: a trace with holes would be worse than none. Lines may
 * end as on other systems, and begin with the mark that spreadsheets put before UTF-8.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/segment.h>
#include "lib/trace_private.h"

#define LINE_MAX_BYTES 160

/* Decimal digits up to the end character; NULL: not that, or above most. */
static const char *number(const char *s, char end, uint64_t most, uint64_t *ret)
{
	uint64_t v = 0;

	if (*s < '0' || *s > '9')
		return NULL;
	for (; *s >= '0' && *s <= '9'; s++) {
		uint64_t digit = (uint64_t)(*s - '0');

		if (v > (most - digit) / 10)
			return NULL;
		v = 10 * v + digit;
	}
	*ret = v;
	return *s == end ? s + 1 : NULL;
}

/* What is wrong with a line, NULL: nothing. */
static const char *parse(const char *s, struct trace_row *row)
{
	uint64_t cpu, order, blocks;
	bool minus;

	s = number(s, ',', INT64_MAX, &row->time_ns);
	if (!s)
		return "time_ns is a whole number of nanoseconds, 0 to 9223372036854775807";
	s = number(s, ',', PCPTUNE_MAX_CPUS - 1, &cpu);
	if (!s)
		return "cpu is a whole number, 0 to 8191";
	s = number(s, ',', PCPTUNE_MAX_ORDER, &order);
	if (!s)
		return "order is a whole number, 0 to 10";
	minus = *s == '-';
	if (!number(s + minus, '\0', (uint64_t)TRACE_MAX_BLOCKS, &blocks))
		return "blocks is a whole number, -2147483648 to 2147483648, the last on its line";
	row->cpu = (uint32_t)cpu;
	row->order = (uint32_t)order;
	row->blocks = minus ? -(int64_t)blocks : (int64_t)blocks;
	return NULL;
}

/* 1: a line without its end; 0: none is left; -EBADMSG: too long or with a NUL byte. */
static int read_line(FILE *in, char *line)
{
	int c = getc_unlocked(in);
	size_t n = 0;

	if (c == EOF)
		return ferror(in) ? -EIO : 0;
	for (; c != '\n' && c != EOF; c = getc_unlocked(in)) {
		if (!c || n + 1 == LINE_MAX_BYTES)
			return -EBADMSG;
		line[n++] = (char)c;
	}
	if (c == EOF && ferror(in))
		return -EIO;
	n -= n && line[n - 1] == '\r';
	line[n] = '\0';
	return 1;
}

static int bad_line(const char *name, uint64_t number_, const char *right, char *why)
{
	snprintf(why, TRACE_WHY, "%.200s: line %" PRIu64 ": %s", name, number_, right);
	return -EINVAL;
}

static int cannot_read(const char *name, char *why)
{
	snprintf(why, TRACE_WHY, "%.200s: can not be read: %s", name, strerror(errno));
	return -EIO;
}

static const char *behind_mark(const char *line)
{
	return line + (strncmp(line, "\xef\xbb\xbf", 3) ? 0 : 3);
}

int trace_csv_import(FILE *in, const char *name, struct trace_writer *w, uint64_t *ret_rows,
		     char *why)
{
	char line[LINE_MAX_BYTES];
	uint64_t n = 1;
	int r = read_line(in, line);

	if (r == -EIO)
		return cannot_read(name, why);
	if (r != 1 || strcmp(behind_mark(line), TRACE_CSV_HEADER) != 0)
		return bad_line(name, 1, "the first line is \"" TRACE_CSV_HEADER "\"", why);
	while ((r = read_line(in, line)) == 1) {
		struct trace_row row;
		const char *wrong = parse(line, &row);

		n++;
		if (wrong)
			return bad_line(name, n, wrong, why);
		r = trace_write(w, &row);
		if (r) {
			snprintf(why, TRACE_WHY, "can not write: %s", strerror(-r));
			return r;
		}
	}
	if (r == -EBADMSG)
		return bad_line(name, n + 1,
				"too long for a row of four numbers, or with a NUL byte", why);
	if (r)
		return cannot_read(name, why);
	*ret_rows = n - 1;
	return 0;
}

int trace_csv_export(struct trace_reader *r, FILE *out, uint64_t *ret_rows, char *why)
{
	const struct trace_row *rows;
	size_t n;
	int e;

	*ret_rows = 0;
	fputs(TRACE_CSV_HEADER "\n", out);
	for (; (e = trace_next(r, &rows, &n, why)) == 1; *ret_rows += n)
		for (size_t i = 0; i < n; i++)
			fprintf(out, "%" PRIu64 ",%u,%u,%" PRId64 "\n", rows[i].time_ns,
				rows[i].cpu, rows[i].order, rows[i].blocks);
	if (!e && ferror(out)) {
		snprintf(why, TRACE_WHY, "can not write");
		e = -EIO;
	}
	return e;
}
