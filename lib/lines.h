/* SPDX-License-Identifier: MIT */
/*
 * Memory by the line: arrays that are walked in every interval begin at a cache line, so that an
 * entry of one line is one to fetch, not two.
 */
#ifndef PCPTUNE_LINES_H
#define PCPTUNE_LINES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 64u

/* n x size bytes of zeros at a line, at least one line, for free(); NULL: no memory. */
static inline void *lines_calloc(size_t n, size_t size)
{
	size_t bytes;
	void *p;

	if (size && n > (SIZE_MAX - LINE_BYTES) / size)
		return NULL;
	bytes = (n * size + LINE_BYTES) / LINE_BYTES * LINE_BYTES;
	p = aligned_alloc(LINE_BYTES, bytes);
	return p ? memset(p, 0, bytes) : NULL;
}

#endif
