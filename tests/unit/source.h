/* SPDX-License-Identifier: MIT */
/*
 * Files of the source tree, for tests that hold a program against what is written: below $ROOT,
 * which tests/run.py sets, else where the test was started.
 */
#ifndef TESTS_SOURCE_H
#define TESTS_SOURCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static inline void source_path(char *path, size_t n, const char *name)
{
	const char *root = getenv("ROOT");

	snprintf(path, n, "%s/%s", root && *root ? root : ".", name);
}

/* A whole file, never empty; malloc'ed. */
static inline char *source_text(const char *name)
{
	char path[512], *text = NULL;
	long n = 0;
	FILE *f;

	source_path(path, sizeof(path), name);
	f = fopen(path, "rb");
	if (f && !fseek(f, 0, SEEK_END) && (n = ftell(f)) > 0)
		text = calloc(1, (size_t)n + 1);
	if (!text || fseek(f, 0, SEEK_SET) || fread(text, (size_t)n, 1, f) != 1)
		fail_msg("%s can not be read (run at the top of the source tree)", path);
	fclose(f);
	return text;
}

/*
 * tests/golden/NAME.txt, to be held against `now`. With $PCPTUNE_GOLDEN_UPDATE it is written anew
 * before that.
 */
static inline char *golden_text(const char *name, const char *now)
{
	char file[128], path[512];
	FILE *f;

	snprintf(file, sizeof(file), "tests/golden/%s.txt", name);
	source_path(path, sizeof(path), file);
	if (getenv("PCPTUNE_GOLDEN_UPDATE")) {
		f = fopen(path, "wb");
		assert_non_null(f);
		assert_true(fputs(now, f) >= 0);
		assert_int_equal(fclose(f), 0);
	}
	return source_text(file);
}

#endif
