/* SPDX-License-Identifier: MIT */
/*
 * What the codec's tests need and nobody else: allocations that fail when told to.
 */
#ifndef PCPTUNE_LIB_CODEC_PRIVATE_H
#define PCPTUNE_LIB_CODEC_PRIVATE_H

#include <stddef.h>

/*
 * Every allocation of the codec goes through fn from now on; NULL: realloc(3) again. fn follows
 * realloc's contract. Not for use while other threads code.
 */
void codec_set_realloc(void *(*fn)(void *, size_t));

#endif
