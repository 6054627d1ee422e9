/* SPDX-License-Identifier: MIT */
/*
 * Reading traces. The file's shape is in lib/trace_write.c.
 *
 * Where the input can be sought, the end is looked at first: it is a block of fixed length, and
 * counts the rows, so that damage in the middle can say how many rows are lost. Every length is
 * bounded before it is used; checksums are compared before anything is decoded, and what is decoded
 * is checked all the same, since a checksum can be made to fit.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "lib/trace_private.h"

struct trace_reader {
	FILE *in;
	char *name;
	char text[TRACE_TEXT_MAX + 1];
	ZSTD_DCtx *zstd;
	uint8_t *raw, *packed;
	size_t packed_room;
	struct trace_row *rows;
	uint64_t n_rows, n_blocks; /* read */
	uint64_t at;		   /* offset of what is read next */
	uint64_t all;		   /* rows by the end of the file; 0: not known */
	uint64_t levels;	   /* rows at the beginning that are levels */
	size_t levels_now;	   /* of the last rows given */
	bool done;
	int error;
	char why[TRACE_WHY];
};

__attribute__((format(printf, 3, 4))) static int fail(char *why, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, TRACE_WHY, fmt, ap);
	va_end(ap);
	return error;
}

/* ---- opening ---- */

/* 0, -ENODATA: the input ends before, or what the system gave. */
static int get(struct trace_reader *r, void *p, size_t n)
{
	size_t got = fread(p, 1, n, r->in);

	if (got == n) {
		r->at += n;
		return 0;
	}
	return ferror(r->in) ? (errno ? -errno : -EIO) : -ENODATA;
}

static bool end_valid(const uint8_t *head)
{
	return trace_get32(head) == TRACE_TAG_END && !trace_get32(head + 4) &&
	       trace_get32(head + 24) == trace_crc(0, head, 24);
}

/* How many rows there should be, if the file is whole at its end and can be sought. */
static void look_at_end(struct trace_reader *r)
{
	uint8_t head[TRACE_HEAD_LEN];
	long here = ftell(r->in);

	if (here < 0 || fseek(r->in, -(long)TRACE_HEAD_LEN, SEEK_END)) {
		clearerr(r->in);
		return;
	}
	if (fread(head, 1, sizeof(head), r->in) == sizeof(head) && end_valid(head))
		r->all = trace_get64(head + 8);
	clearerr(r->in);
	if (fseek(r->in, here, SEEK_SET))
		r->error = -EIO;
}

static int check_version(struct trace_reader *r, char *why)
{
	const char *v = strstr(r->text, "\nversion=");
	unsigned long version = v ? strtoul(v + 9, NULL, 10) : 0;

	if (version > TRACE_VERSION)
		return fail(why, -EPROTONOSUPPORT,
			    "%s: a trace of version %lu; this program reads version %u", r->name,
			    version, TRACE_VERSION);
	if (!version || !strstr(r->text, "\nrows=" TRACE_CSV_HEADER "\n"))
		return fail(why, -EBADMSG, "%s: the header does not say version and rows=%s",
			    r->name, TRACE_CSV_HEADER);
	v = strstr(r->text, "\nlevels=");
	r->levels = v && version > 1 ? strtoull(v + 8, NULL, 10) : 0;
	return 0;
}

static int read_header(struct trace_reader *r, char *why)
{
	uint8_t start[TRACE_SIGNATURE_LEN + 4], crc[4];
	uint32_t n;
	int e = get(r, start, sizeof(start));

	if (e && e != -ENODATA)
		return fail(why, e, "%s: can not be read: %s", r->name, strerror(-e));
	if (e || memcmp(start, TRACE_SIGNATURE, TRACE_SIGNATURE_LEN) != 0)
		return fail(why, -EINVAL,
			    "%s: not a trace; right is a file made by `pcptune record` or `pcptune "
			    "trace "
			    "import`",
			    r->name);
	n = trace_get32(start + TRACE_SIGNATURE_LEN);
	if (n > TRACE_TEXT_MAX)
		return fail(why, -EBADMSG,
			    "%s: byte %u: a header of %" PRIu32 " bytes; at most %u are right",
			    r->name, TRACE_SIGNATURE_LEN, n, TRACE_TEXT_MAX);
	if (get(r, r->text, n) || get(r, crc, sizeof(crc)))
		return fail(why, -EBADMSG, "%s: ends within its header", r->name);
	if (trace_get32(crc) != trace_crc(0, (const uint8_t *)r->text, n) || memchr(r->text, 0, n))
		return fail(why, -EBADMSG, "%s: the header is damaged: its checksum differs",
			    r->name);
	r->text[n] = '\0';
	return check_version(r, why);
}

int trace_open_stream(FILE *in, const char *name, struct trace_reader **ret, char *why)
{
	struct trace_reader *r = calloc(1, sizeof(*r));
	int e = -ENOMEM;

	if (!r) {
		fclose(in);
		return fail(why, e, "%s: no memory", name);
	}
	r->in = in;
	r->packed_room = ZSTD_compressBound(TRACE_RAW_MAX);
	r->name = strdup(name);
	r->raw = malloc(TRACE_RAW_MAX);
	r->packed = malloc(r->packed_room);
	r->rows = calloc(TRACE_BLOCK_ROWS, sizeof(*r->rows));
	r->zstd = ZSTD_createDCtx();
	if (r->name && r->raw && r->packed && r->rows && r->zstd)
		e = read_header(r, why);
	else
		fail(why, e, "%s: no memory", name);
	if (!e) {
		look_at_end(r);
		e = r->error ? fail(why, r->error, "%s: can not be sought", name) : 0;
	}
	if (e) {
		trace_close(r);
		return e;
	}
	*ret = r;
	return 0;
}

int trace_open(const char *path, struct trace_reader **ret, char *why)
{
	FILE *in = fopen(path, "rbe");

	if (!in)
		return fail(why, -errno, "%s: %s", path, strerror(errno));
	return trace_open_stream(in, path, ret, why);
}

void trace_close(struct trace_reader *r)
{
	if (!r)
		return;
	fclose(r->in);
	ZSTD_freeDCtx(r->zstd);
	free(r->name);
	free(r->raw);
	free(r->packed);
	free(r->rows);
	free(r);
}

const char *trace_header(const struct trace_reader *r)
{
	return r->text;
}

uint64_t trace_rows_read(const struct trace_reader *r)
{
	return r->n_rows;
}

size_t trace_levels(const struct trace_reader *r)
{
	return r->levels_now;
}

/* ---- blocks ---- */

static bool get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
	uint64_t v = 0;

	for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
		uint8_t byte = *(*p)++;

		if (shift == 63 && byte > 1)
			return false;
		v |= (uint64_t)(byte & 127) << shift;
		if (byte < 128) {
			*ret = v;
			return true;
		}
	}
	return false;
}

static int64_t unzigzag(uint64_t v)
{
	return (int64_t)(v >> 1 ^ (~(v & 1) + 1));
}

static bool decode(struct trace_reader *r, size_t raw_len, uint32_t n)
{
	const uint8_t *p = r->raw, *end = r->raw + raw_len;
	struct trace_row last = {0};

	for (uint32_t i = 0; i < n; i++) {
		uint64_t t, place, blocks;
		int64_t cpu;

		if (!get_varint(&p, end, &t) || !get_varint(&p, end, &place) ||
		    !get_varint(&p, end, &blocks))
			return false;
		cpu = last.cpu + unzigzag(place >> 4);
		if (cpu < 0 || cpu > UINT32_MAX)
			return false;
		last.time_ns += (uint64_t)unzigzag(t);
		last.cpu = (uint32_t)cpu;
		last.order = place & 15;
		last.blocks = unzigzag(blocks);
		if (!trace_row_valid(&last) || (i < r->levels_now && last.blocks <= 0))
			return false;
		r->rows[i] = last;
	}
	return p == end;
}

/* What is wrong with the block at r->at, NULL: nothing; its rows are in r->rows then. */
static const char *read_block(struct trace_reader *r, const uint8_t *head)
{
	uint32_t n = trace_get32(head + 4), raw_len = trace_get32(head + 8);
	uint32_t packed = trace_get32(head + 12);

	if (trace_get32(head) != TRACE_TAG_BLOCK)
		return "neither a block nor the end begins here";
	if (!n || n > TRACE_BLOCK_ROWS || raw_len > TRACE_RAW_MAX || packed > r->packed_room)
		return "a block with impossible lengths";
	if (get(r, r->packed, packed))
		return "the file ends within a block";
	if (trace_get32(head + 24) != trace_crc(trace_crc(0, head, 24), r->packed, packed))
		return "a block is damaged: its checksum differs";
	if (trace_get64(head + 16) != r->n_rows)
		return "a block is missing or comes twice";
	if (ZSTD_decompressDCtx(r->zstd, r->raw, TRACE_RAW_MAX, r->packed, packed) != raw_len)
		return "a block can not be decompressed";
	r->levels_now = r->n_rows >= r->levels	    ? 0
			: r->levels - r->n_rows < n ? (size_t)(r->levels - r->n_rows)
						    : n;
	return decode(r, raw_len, n) ? NULL : "a block has rows out of range";
}

static int lost(struct trace_reader *r, uint64_t at, const char *what)
{
	int n = snprintf(r->why, sizeof(r->why),
			 "%.200s: byte %" PRIu64 ": %s; %" PRIu64 " rows before it are good",
			 r->name, at, what, r->n_rows);

	if (r->all > r->n_rows)
		snprintf(r->why + n, sizeof(r->why) - (size_t)n,
			 ", %" PRIu64 " of %" PRIu64 " are lost", r->all - r->n_rows, r->all);
	else
		snprintf(r->why + n, sizeof(r->why) - (size_t)n,
			 ", how many are lost is not known: the file has no end");
	return r->error = -EBADMSG;
}

static int check_end(struct trace_reader *r, uint64_t at, const uint8_t *head)
{
	if (!end_valid(head))
		return lost(r, at, "the end is damaged: its checksum differs");
	if (trace_get64(head + 8) != r->n_rows || trace_get64(head + 16) != r->n_blocks)
		return lost(r, at, "the end counts other rows than were read");
	if (fgetc(r->in) != EOF)
		return lost(r, at + TRACE_HEAD_LEN, "bytes behind the end");
	r->done = true;
	return 0;
}

int trace_next(struct trace_reader *r, const struct trace_row **ret, size_t *ret_n, char *why)
{
	uint8_t head[TRACE_HEAD_LEN];
	uint64_t at = r->at;
	const char *wrong;

	if (r->done)
		return 0;
	if (!r->error && get(r, head, sizeof(head)))
		lost(r, at, "the file ends here, without the end that counts its rows");
	if (!r->error && trace_get32(head) == TRACE_TAG_END && !check_end(r, at, head))
		return 0;
	wrong = r->error ? NULL : read_block(r, head);
	if (wrong)
		lost(r, at, wrong);
	if (r->error)
		return fail(why, r->error, "%s", r->why);
	*ret = r->rows;
	*ret_n = trace_get32(head + 4);
	r->n_rows += *ret_n;
	r->n_blocks++;
	return 1;
}
