/* SPDX-License-Identifier: MIT */
/* What the writer and the reader of traces share: the shape of a file, little-endian throughout. */
#ifndef PCPTUNE_LIB_TRACE_PRIVATE_H
#define PCPTUNE_LIB_TRACE_PRIVATE_H

#include <stddef.h>
#include <stdint.h>
#include "lib/trace.h"

/* A byte above 127 and line ends of both kinds: what a text transfer damages is seen at once. */
#define TRACE_SIGNATURE	    "\x89PCT\r\n\x1a\n"
#define TRACE_SIGNATURE_LEN 8u
#define TRACE_TEXT_MAX	    4096u /* of the header */
#define TRACE_ROW_MAX	    26u	  /* bytes of a coded row: three varints */
#define TRACE_RAW_MAX	    (TRACE_BLOCK_ROWS * TRACE_ROW_MAX)

/* A block: tag, rows, bytes coded, bytes compressed, number of its first row; then a checksum. */
#define TRACE_TAG_BLOCK 0x4b4c4254u /* "TBLK" */
#define TRACE_HEAD_LEN	28u
/* The end: tag, zero, rows, blocks; then a checksum. */
#define TRACE_TAG_END 0x444e4554u /* "TEND" */

static inline void trace_put32(uint8_t *p, uint32_t v)
{
	for (unsigned i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static inline void trace_put64(uint8_t *p, uint64_t v)
{
	trace_put32(p, (uint32_t)v);
	trace_put32(p + 4, (uint32_t)(v >> 32));
}

static inline uint32_t trace_get32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t trace_get64(const uint8_t *p)
{
	return trace_get32(p) | (uint64_t)trace_get32(p + 4) << 32;
}

/* CRC-32 as in IEEE 802.3, of a part after what crc stands for (0: nothing before). */
uint32_t trace_crc(uint32_t crc, const uint8_t *p, size_t n);

#endif
