/* SPDX-License-Identifier: MIT */
/*
 * Seeds of the fuzzers: each program can write its own, made by the code that it tests.
 *
 * When FUZZ_SEEDS names a directory, the target writes its seeds there before libFuzzer reads its
 * corpus; tests/fuzz/run gives both the same directory.
 */
#ifndef TESTS_FUZZ_SEEDS_H
#define TESTS_FUZZ_SEEDS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program, as a finding does, but with the condition: for what must hold. */
#define MUST(condition)                                                                   \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, \
				#condition);                                              \
			abort();                                                          \
		}                                                                         \
	} while (0)

/* A file of the corpus: two parts, one after the other. */
static inline void seed_write(const char *name, const void *a, size_t n_a, const void *b,
			      size_t n_b)
{
	const char *dir = getenv("FUZZ_SEEDS");
	char path[4096];
	FILE *out;

	if (!dir)
		return;
	snprintf(path, sizeof(path), "%s/seed-%s", dir, name);
	out = fopen(path, "w");
	MUST(out);
	MUST(fwrite(a, 1, n_a, out) == n_a);
	MUST(fwrite(b, 1, n_b, out) == n_b);
	MUST(fclose(out) == 0);
}

#endif
