/* SPDX-License-Identifier: MIT */
/*
 * The source text: a file with its includes made one flat text, and what the parser behind it
 * would let through checked before.
 *
 * libconfig 1.5 cuts numbers to 32 bits without a word (4294967396 is read as 100), takes an
 * unterminated comment for the end of the file, resolves nested includes against one directory,
 * and gives "syntax error" for a byte that is no ASCII. So this scanner walks over the text once,
 * knows comments, strings and numbers, follows @include itself, and reports these cases with file
 * and line. It keeps where each flat line came from, so that later messages are right, too.
 *
 * No state is shared: everything hangs on the struct config_source of one call.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/config_private.h"

#define MAX_FILE_BYTES (1u << 20)
#define MAX_DEPTH      10

/* One file being scanned. */
struct scan {
	struct config_source *src;
	struct config_errors *e;
	const char *name; /* owned by src */
	const char *p, *end;
	int line, depth;
	bool fresh;	   /* only blanks so far on this line */
	bool word;	   /* the byte before belongs to a name or number */
	int bad_byte_line; /* one report a line */
};

static int scan_file(struct config_source *s, const char *file, int depth, const struct scan *from,
		     struct config_errors *e);

/* ---- reading ---- */

static int read_all(int fd, struct cbuf *out)
{
	char buf[16384];
	ssize_t n;

	for (;;) {
		n = read(fd, buf, sizeof(buf));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		cbuf_add(out, buf, (size_t)n);
		if (out->failed)
			return -ENOMEM;
		if (out->n > MAX_FILE_BYTES)
			return -EFBIG;
	}
}

static int read_file(const char *file, struct cbuf *out)
{
	struct stat st;
	int fd, r;

	fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (S_ISDIR(st.st_mode))
		r = -EISDIR;
	else
		r = read_all(fd, out);
	close(fd);
	return r;
}

static const char *read_error_text(int r)
{
	switch (r) {
	case -EISDIR:
		return "is a directory; give a file";
	case -EFBIG:
		return "is larger than 1 MiB; that is no configuration file";
	case -ENOENT:
		return "does not exist";
	case -EACCES:
		return "may not be read (permission denied)";
	default:
		return strerror(-r);
	}
}

/* ---- the line map ---- */

static int add_line(struct config_source *s, const char *file, int line)
{
	if (s->n_lines + 1 >= s->cap_lines) {
		size_t cap = s->cap_lines ? 2 * s->cap_lines : 256;
		struct config_line *l = config_realloc(s->lines, cap * sizeof(*l));

		if (!l)
			return -ENOMEM;
		s->lines = l;
		s->cap_lines = cap;
	}
	s->n_lines++; /* libconfig counts from 1 */
	s->lines[s->n_lines] = (struct config_line){.file = file, .line = line};
	return 0;
}

const struct config_line *config_source_line(const struct config_source *s, int flat_line)
{
	if (flat_line < 1)
		flat_line = 1;
	if ((size_t)flat_line > s->n_lines)
		flat_line = (int)s->n_lines;
	return &s->lines[flat_line];
}

static const char *add_name(struct config_source *s, const char *name)
{
	char **f = config_realloc(s->files, (s->n_files + 1) * sizeof(*f));

	if (!f)
		return NULL;
	s->files = f;
	f[s->n_files] = config_strdup(name);
	if (!f[s->n_files])
		return NULL;
	return f[s->n_files++];
}

/* ---- the scanner ---- */

/* Copies n bytes to the flat text and keeps the line map right. */
static int emit(struct scan *c, size_t n)
{
	cbuf_add(&c->src->text, c->p, n);
	if (c->src->text.failed)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (c->p[i] != '\n')
			continue;
		c->line++;
		if (add_line(c->src, c->name, c->line) < 0)
			return -ENOMEM;
		c->fresh = true;
	}
	c->p += n;
	return 0;
}

static bool is_digit(char ch)
{
	return ch >= '0' && ch <= '9';
}

static bool is_hex(char ch)
{
	return is_digit(ch) || (ch >= 'a' && ch <= 'f') || (ch >= 'A' && ch <= 'F');
}

static bool is_name(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || is_digit(ch) || ch == '_' ||
	       ch == '*' || ch == '-';
}

/* Bytes of a well-formed UTF-8 sequence at p, 0: none. */
static size_t utf8_len(const char *p, const char *end)
{
	const unsigned char *u = (const unsigned char *)p;
	size_t n = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;

	if (u[0] > 0xf4 || n > (size_t)(end - p))
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((u[i] & 0xc0) != 0x80)
			return 0;
	if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f) ||
	    (u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f))
		return 0;
	return n;
}

/* One report a line; line: of *at. */
static void bad_byte(struct scan *c, const char *at, int line, const char *where,
		     const char *allowed)
{
	c->src->unusable = true;
	if (c->bad_byte_line == line)
		return;
	c->bad_byte_line = line;
	config_error_add(c->e, c->name, line, "byte 0x%02x %s, allowed: %s", (unsigned char)*at,
			 where, allowed);
}

static int scan_line_comment(struct scan *c)
{
	const char *nl = memchr(c->p, '\n', (size_t)(c->end - c->p));

	return emit(c, (size_t)((nl ? nl : c->end) - c->p));
}

static int scan_block_comment(struct scan *c)
{
	const char *stop = memmem(c->p + 2, (size_t)(c->end - c->p - 2), "*/", 2);

	if (!stop) {
		c->src->unusable = true;
		config_error_add(c->e, c->name, c->line,
				 "comment begins here and never ends, "
				 "allowed: /* ... */");
		return emit(c, (size_t)(c->end - c->p));
	}
	return emit(c, (size_t)(stop + 2 - c->p));
}

static int scan_string(struct scan *c)
{
	const char *q = c->p + 1;
	int line = c->line;

	while (q < c->end && *q != '"') {
		size_t n = utf8_len(q, c->end);

		if (n == 0)
			bad_byte(c, q, line, "in a string", "UTF-8 text");
		if (*q == '\0' || (c->end - q >= 4 && memcmp(q, "\\x00", 4) == 0))
			bad_byte(c, q, line, "makes a NUL in a string", "UTF-8 text");
		if (*q == '\\' && q + 1 < c->end)
			n = 2;
		if (memchr(q, '\n', n ? n : 1))
			line++;
		q += n ? n : 1;
	}
	if (q >= c->end) {
		c->src->unusable = true;
		config_error_add(c->e, c->name, c->line,
				 "string begins here and never ends, allowed: \"...\"");
		return emit(c, (size_t)(c->end - c->p));
	}
	return emit(c, (size_t)(q + 1 - c->p));
}

/* What libconfig would cut: len bytes of digits (with sign and 0x), wide: an L follows. */
static bool int_fits(const char *digits, size_t len, bool hex, bool wide)
{
	char buf[80];
	long long v;

	if (len >= sizeof(buf))
		return false;
	memcpy(buf, digits, len);
	buf[len] = '\0';
	errno = 0;
	v = strtoll(buf, NULL, hex ? 16 : 10);
	if (errno)
		return false;
	return wide || (v >= INT_MIN && v <= INT_MAX);
}

static int scan_number(struct scan *c)
{
	const char *q = c->p + (*c->p == '+' || *c->p == '-');
	bool hex = q + 2 < c->end && q[0] == '0' && (q[1] == 'x' || q[1] == 'X') && is_hex(q[2]);
	bool wide;
	size_t len;

	if (hex)
		q += 2;
	while (q < c->end && (hex ? is_hex(*q) : is_digit(*q)))
		q++;
	len = (size_t)(q - c->p);
	wide = q < c->end && *q == 'L';
	if (!hex && q < c->end && (*q == '.' || *q == 'e' || *q == 'E'))
		return emit(c, len); /* a float; refused by type later */
	if (!int_fits(c->p, len, hex, wide)) {
		c->src->lines[c->src->n_lines].bad_int = true;
		if (int_fits(c->p, len, hex, true))
			config_error_add(
				c->e, c->name, c->line,
				"number %.*s does not fit 32 bits, allowed: %.*sL (an L at the "
				"end makes it a 64-bit number)",
				(int)len, c->p, (int)len, c->p);
		else
			config_error_add(c->e, c->name, c->line,
					 "number %.*s does not fit 64 bits, allowed: "
					 "-9223372036854775808L .. 9223372036854775807L",
					 (int)(len > 60 ? 60 : len), c->p);
	}
	return emit(c, len);
}

/* ---- includes ---- */

/* The name of an include beside the file it stands in; *ret is malloc'ed. */
static int include_path(const struct scan *c, const char *name, size_t len, char **ret)
{
	const char *slash = strrchr(c->name, '/');
	struct cbuf b = {0};

	if (name[0] != '/' && slash)
		cbuf_add(&b, c->name, (size_t)(slash + 1 - c->name));
	cbuf_add(&b, name, len);
	if (b.failed) {
		free(b.s);
		return -ENOMEM;
	}
	*ret = b.s;
	return 0;
}

static int scan_include(struct scan *c)
{
	const char *q = c->p + strlen("@include"), *stop;
	char *path;
	int r;

	while (q < c->end && (*q == ' ' || *q == '\t'))
		q++;
	stop = q < c->end && *q == '"' ? memchr(q + 1, '"', (size_t)(c->end - q - 1)) : NULL;
	if (!c->fresh || !stop || stop == q + 1 || memchr(q, '\n', (size_t)(stop - q))) {
		c->src->unusable = true;
		config_error_add(c->e, c->name, c->line,
				 "@include not understood, allowed: @include \"FILE\" at the start "
				 "of a line");
		return scan_line_comment(c);
	}
	r = include_path(c, q + 1, (size_t)(stop - q - 1), &path);
	if (r < 0)
		return r;
	r = scan_file(c->src, path, c->depth + 1, c, c->e);
	free(path);
	c->p = stop + 1;
	c->fresh = false;
	if (r < 0)
		return r;
	/* what follows on this line is a flat line of its own */
	return add_line(c->src, c->name, c->line);
}

static int scan_step(struct scan *c)
{
	bool word = c->word;
	char ch = *c->p, next = c->p + 1 < c->end ? c->p[1] : '\0';

	c->word = false;
	if (ch == '#' || (ch == '/' && next == '/'))
		return scan_line_comment(c);
	if (ch == '/' && next == '*')
		return scan_block_comment(c);
	if (ch == '"')
		return scan_string(c);
	if (ch == '@' && (size_t)(c->end - c->p) >= 8 && memcmp(c->p, "@include", 8) == 0)
		return scan_include(c);
	if (!word && (is_digit(ch) || ((ch == '-' || ch == '+') && is_digit(next)))) {
		c->word = true;
		return scan_number(c);
	}
	if ((unsigned char)ch >= 0x80 || ch == 0x7f ||
	    ((unsigned char)ch < ' ' && !strchr("\t\n\r\f", ch)) || ch == '\0')
		bad_byte(c, c->p, c->line, "outside of strings and comments",
			 "ASCII; put other text in quotes");
	c->word = is_name(ch);
	if (ch != ' ' && ch != '\t')
		c->fresh = false;
	return emit(c, 1);
}

static int scan_text(struct config_source *s, const char *name, const char *text, size_t n,
		     int depth, struct config_errors *e)
{
	struct scan c = {.src = s,
			 .e = e,
			 .name = name,
			 .p = text,
			 .end = text + n,
			 .line = 1,
			 .depth = depth,
			 .fresh = true};
	int r;

	/* an included text begins on a flat line of its own */
	if (depth > 0)
		cbuf_add(&s->text, "\n", 1);
	r = add_line(s, name, 1);

	while (r == 0 && c.p < c.end)
		r = scan_step(&c);
	/* libconfig needs the newline to end a comment */
	cbuf_add(&s->text, "\n", 1);
	return r < 0 || s->text.failed ? -ENOMEM : 0;
}

static int scan_file(struct config_source *s, const char *file, int depth, const struct scan *from,
		     struct config_errors *e)
{
	struct cbuf text = {0};
	const char *name;
	int r;

	if (depth > MAX_DEPTH) {
		s->unusable = true;
		config_error_add(
			e, from->name, from->line,
			"includes nested too deep (does a file include itself?), allowed: %d "
			"levels",
			MAX_DEPTH);
		return 0;
	}
	r = read_file(file, &text);
	if (r < 0 && r != -ENOMEM) {
		s->unusable = true;
		if (from)
			config_error_add(e, from->name, from->line, "include file %s %s", file,
					 read_error_text(r));
		else
			config_error_add(e, file, 0, "%s", read_error_text(r));
		if (!from)
			e->code = r;
		r = 0;
	} else if (r == 0) {
		name = add_name(s, file);
		r = name ? scan_text(s, name, text.n ? text.s : "", text.n, depth, e) : -ENOMEM;
	}
	free(text.s);
	return r;
}

int config_source_file(struct config_source *s, const char *file, struct config_errors *e)
{
	return scan_file(s, file, 0, NULL, e);
}

int config_source_text(struct config_source *s, const char *text, const char *name,
		       struct config_errors *e)
{
	const char *own = add_name(s, name);

	return own ? scan_text(s, own, text, strlen(text), 0, e) : -ENOMEM;
}

void config_source_free(struct config_source *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		free(s->files[i]);
	free(s->files);
	free(s->lines);
	free(s->text.s);
	*s = (struct config_source){0};
}
