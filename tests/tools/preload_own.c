/* SPDX-License-Identifier: MIT */
/*
 * A program that brings a malloc of its own and forgets half of the API, as some do: malloc,
 * calloc, realloc and free are here, reallocarray and the aligned calls are not. Its own functions
 * must win, and what is missing must come from where it would have come from without us. With an
 * argument that many bytes are asked for. Exit status 0: nothing came from our zone.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "pcpalloc.h"

#define HEAP (64u << 20)

static _Alignas(16) unsigned char heap[HEAP];
static size_t used;

static bool mine(const void *p)
{
	return (const unsigned char *)p >= heap && (const unsigned char *)p < heap + HEAP;
}

__attribute__((noreturn)) static void complain(const char *what)
{
	if (write(2, what, strlen(what)) < 0)
		_exit(2);
	_exit(1);
}

PCPA_API void *malloc(size_t size)
{
	size_t need = (size + 31) & ~(size_t)15;
	size_t at = __atomic_fetch_add(&used, need, __ATOMIC_RELAXED);

	if (at + need > HEAP || need < size) {
		errno = ENOMEM;
		return NULL;
	}
	memcpy(heap + at, &size, sizeof(size));
	return heap + at + 16;
}

PCPA_API void free(void *p)
{
	if (p && !mine(p))
		complain("free: a block that is not mine\n");
}

PCPA_API void *calloc(size_t n, size_t each)
{
	return malloc(n * each); /* never used before, so it is zero */
}

PCPA_API void *realloc(void *p, size_t size)
{
	size_t have = 0;
	void *q;

	if (p && !mine(p))
		complain("realloc: a block that is not mine\n");
	q = malloc(size);
	if (p && q) {
		memcpy(&have, (char *)p - 16, sizeof(have));
		memcpy(q, p, have < size ? have : size);
	}
	return q;
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoul(argv[1], NULL, 10) : 8192;
	char *volatile p = malloc(size);
	char *volatile q;

	if (!mine(p))
		complain("malloc is not mine\n");
	p[0] = 'x';
	q = reallocarray(p, 2, size);
	if (!mine(q) || q[0] != 'x')
		complain("reallocarray went elsewhere\n");
	free(q);
	q = reallocarray(NULL, 2, size);
	if (!mine(q))
		complain("reallocarray of nothing went elsewhere\n");
	free(q);
	q = aligned_alloc(64, size);
	if (!q || pcpa_owns(q))
		complain("aligned_alloc came from the zone\n");
	q = strdup("text");
	if (!mine(q))
		complain("strdup went elsewhere\n");
	free(q);
	puts("mine");
	return 0;
}
