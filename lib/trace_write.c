/* SPDX-License-Identifier: MIT */
/*
 * Writing traces, and the coding of rows.
 *
 *	file    = signature, u32 length, text, u32 crc of text, block..., end
 *	block   = head (tag, u32 rows, u32 coded bytes, u32 compressed bytes, u64 first row, u32 crc
 *		  of the head before it and of the payload), payload (one zstd frame)
 *	end     = head of the same length (tag, u32 0, u64 rows, u64 blocks, u32 crc)
 *	payload = for each row three varints (seven bits a byte, low first):
 *		  zigzag(time - time before), zigzag(cpu - cpu before) * 16 + order, zigzag(blocks)
 *
 * "Before" is the row before in the same block, and 0 for the first: a block needs no other. Times
 * may go backwards.
 *
 * The text says levels=N where the first N rows are levels. A program that does not know them would
 * take them for movements, so the version is 2 then.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <pcptune/segment.h>
#include "lib/trace_private.h"

#define LEVEL 3 /* of zstd: above it takes much longer for little */

struct trace_writer {
	FILE *out;
	ZSTD_CCtx *zstd;
	uint8_t *raw, *packed;
	size_t raw_len, packed_room;
	uint32_t rows; /* in the open block */
	uint64_t first, blocks;
	uint64_t levels; /* rows that are still to come and are levels */
	struct trace_row last;
	int error;
};

uint32_t trace_crc(uint32_t crc, const uint8_t *p, size_t n)
{
	static const uint32_t nibble[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
					    0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
					    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
					    0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};

	crc = ~crc;
	while (n--) {
		crc ^= *p++;
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return ~crc;
}

bool trace_row_valid(const struct trace_row *row)
{
	return row->time_ns <= INT64_MAX && row->cpu < PCPTUNE_MAX_CPUS &&
	       row->order <= PCPTUNE_MAX_ORDER && row->blocks >= -TRACE_MAX_BLOCKS &&
	       row->blocks <= TRACE_MAX_BLOCKS;
}

/* ---- the file ---- */

static int put(struct trace_writer *w, const void *p, size_t n)
{
	errno = 0;
	if (!w->error && fwrite(p, 1, n, w->out) != n)
		w->error = errno ? -errno : -EIO;
	return w->error;
}

static int put_header(struct trace_writer *w, const char *source)
{
	char text[512], levels[40] = "";
	uint8_t word[4];
	int n;

	if (w->levels)
		snprintf(levels, sizeof(levels), "levels=%" PRIu64 "\n", w->levels);
	n = snprintf(text, sizeof(text),
		     "format=pcptune-trace\nversion=%u\nrows=%s\n"
		     "meaning=blocks of 4096 << order bytes, above 0 freed, below 0 allocated\n"
		     "coding=zigzag varint deltas in zstd frames\nblock_rows=%u\n%ssource=%.64s\n",
		     w->levels ? TRACE_VERSION : 1u, TRACE_CSV_HEADER, TRACE_BLOCK_ROWS, levels,
		     source);

	put(w, TRACE_SIGNATURE, TRACE_SIGNATURE_LEN);
	trace_put32(word, (uint32_t)n);
	put(w, word, sizeof(word));
	put(w, text, (size_t)n);
	trace_put32(word, trace_crc(0, (const uint8_t *)text, (size_t)n));
	return put(w, word, sizeof(word));
}

int trace_writer_new(FILE *out, const char *source, struct trace_writer **ret)
{
	return trace_writer_new_at(out, source, 0, ret);
}

int trace_writer_new_at(FILE *out, const char *source, uint64_t levels, struct trace_writer **ret)
{
	struct trace_writer *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	w->out = out;
	w->levels = levels;
	w->packed_room = ZSTD_compressBound(TRACE_RAW_MAX);
	w->raw = malloc(TRACE_RAW_MAX);
	w->packed = malloc(w->packed_room);
	w->zstd = ZSTD_createCCtx();
	r = w->raw && w->packed && w->zstd ? put_header(w, source) : -ENOMEM;
	if (r) {
		trace_writer_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

void trace_writer_free(struct trace_writer *w)
{
	if (!w)
		return;
	ZSTD_freeCCtx(w->zstd);
	free(w->raw);
	free(w->packed);
	free(w);
}

/* ---- rows ---- */

static uint64_t zigzag(int64_t v)
{
	return (uint64_t)v << 1 ^ (uint64_t)(v >> 63);
}

static void put_varint(struct trace_writer *w, uint64_t v)
{
	for (; v > 127; v >>= 7)
		w->raw[w->raw_len++] = (uint8_t)(v | 128);
	w->raw[w->raw_len++] = (uint8_t)v;
}

static int end_block(struct trace_writer *w)
{
	uint8_t head[TRACE_HEAD_LEN];
	size_t n;

	if (!w->rows)
		return w->error;
	n = ZSTD_compressCCtx(w->zstd, w->packed, w->packed_room, w->raw, w->raw_len, LEVEL);
	if (ZSTD_isError(n))
		return w->error = -ENOMEM;
	trace_put32(head, TRACE_TAG_BLOCK);
	trace_put32(head + 4, w->rows);
	trace_put32(head + 8, (uint32_t)w->raw_len);
	trace_put32(head + 12, (uint32_t)n);
	trace_put64(head + 16, w->first);
	trace_put32(head + 24, trace_crc(trace_crc(0, head, 24), w->packed, n));
	put(w, head, sizeof(head));
	w->first += w->rows;
	w->blocks++;
	w->rows = 0;
	w->raw_len = 0;
	memset(&w->last, 0, sizeof(w->last));
	return put(w, w->packed, n);
}

int trace_write(struct trace_writer *w, const struct trace_row *row)
{
	if (!trace_row_valid(row) || (w->levels && row->blocks <= 0))
		return -EINVAL;
	w->levels -= w->levels != 0;
	put_varint(w, zigzag((int64_t)(row->time_ns - w->last.time_ns)));
	put_varint(w, zigzag((int64_t)row->cpu - w->last.cpu) << 4 | row->order);
	put_varint(w, zigzag(row->blocks));
	w->last = *row;
	return ++w->rows == TRACE_BLOCK_ROWS ? end_block(w) : w->error;
}

int trace_writer_end(struct trace_writer *w)
{
	uint8_t head[TRACE_HEAD_LEN] = {0};

	if (end_block(w))
		return w->error;
	trace_put32(head, TRACE_TAG_END);
	trace_put64(head + 8, w->first);
	trace_put64(head + 16, w->blocks);
	trace_put32(head + 24, trace_crc(0, head, 24));
	return put(w, head, sizeof(head));
}
