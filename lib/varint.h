/* SPDX-License-Identifier: MIT */
/*
 * Prefix varints, as all that is packed for the log has them.
 *
 * The number of trailing zero bits of the first byte says how many bytes follow (0 to 7; a first
 * byte of 0: eight), the value is in the bits above, little-endian. Small numbers take one byte, as
 * in other varints, but both directions need no loop and no branch on the length.
 *
 * Pure; any thread. Reading trusts nothing: what is not there sets `bad` and reads as 0.
 */
#ifndef PCPTUNE_LIB_VARINT_H
#define PCPTUNE_LIB_VARINT_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t zigzag(uint64_t d)
{
	return d << 1 ^ (uint64_t) - (int64_t)(d >> 63);
}

static inline uint64_t unzigzag(uint64_t z)
{
	return z >> 1 ^ (uint64_t) - (int64_t)(z & 1);
}

#define VARINT_MAX 9

/* Bytes when each carries 7 bits; 10 stands for the long form. */
static inline unsigned varint_size(uint64_t v)
{
	unsigned top = 63 - (unsigned)__builtin_clzll(v | 1); /* the highest bit */

	return (9 * top + 73) / 64; /* top / 7 + 1 for 0 .. 63, without a division */
}

/* Room for VARINT_MAX bytes at p; returns the end. */
static inline uint8_t *varint_put(uint8_t *p, uint64_t v)
{
	unsigned len = varint_size(v);
	uint64_t word;

	if (len > 8) {
		*p = 0;
		word = htole64(v);
		memcpy(p + 1, &word, 8);
		return p + 9;
	}
	word = htole64((v << 1 | 1) << (len - 1));
	memcpy(p, &word, 8);
	return p + len;
}

struct varint_input {
	const uint8_t *p, *end;
	bool bad;
};

static inline uint64_t varint_get_slowly(struct varint_input *in)
{
	uint8_t bytes[VARINT_MAX] = {0};
	size_t left = (size_t)(in->end - in->p);
	unsigned len;
	uint64_t word;

	len = left ? (unsigned)__builtin_ctz(in->p[0] | 0x100u) + 1 : VARINT_MAX;
	if (in->bad || len > left) {
		in->bad = true;
		return 0;
	}
	memcpy(bytes, in->p, len);
	in->p += len;
	memcpy(&word, bytes + (len > 8), 8);
	word = le64toh(word);
	return len > 8 ? word : word >> len;
}

/* The next number; 0 and in->bad when there is none. */
static inline uint64_t varint_get(struct varint_input *in)
{
	uint64_t word;
	unsigned len;

	if (in->end - in->p < VARINT_MAX || !*in->p)
		return varint_get_slowly(in);
	len = (unsigned)__builtin_ctz(*in->p) + 1;
	memcpy(&word, in->p, 8);
	in->p += len;
	word = le64toh(word) >> len;
	return word & ((UINT64_C(1) << 7 * len) - 1);
}

#endif
