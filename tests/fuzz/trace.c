/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a trace file. What the reader takes for rows must be within their ranges, and must
 * come out the same when they are written and read again.
 *
 * Checksums keep a fuzzer from getting far, so the first byte of the input says whether those of
 * the parts are put right before the bytes are read.
 */
#include <errno.h>
#include <string.h>
#include "lib/trace_private.h"
#include "tests/fuzz/seeds.h"

static void seed(unsigned n_rows, uint64_t step, unsigned levels)
{
	struct trace_writer *w;
	char *data, name[32];
	size_t len;
	FILE *out = open_memstream(&data, &len);

	MUST(out && trace_writer_new_at(out, "seed", levels, &w) == 0);
	for (unsigned i = 0; i < n_rows; i++) {
		struct trace_row row = {i * step, i % 5, i % 4, (int64_t)(i % 7) - 3};

		if (i < levels)
			row.blocks = i + 1;

		MUST(trace_write(w, &row) == 0);
	}
	MUST(trace_writer_end(w) == 0 && fclose(out) == 0);
	trace_writer_free(w);
	for (uint8_t mend = 0; mend < 2; mend++) {
		snprintf(name, sizeof(name), "trace-%u-%u-%u", n_rows, levels, mend);
		seed_write(name, &mend, 1, data, len);
	}
	free(data);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	seed(0, 0, 0);
	seed(3, 1000, 0);
	seed(5, 1000, 2);
	seed(500, INT64_MAX / 600, 0);
	return 0;
}

/* Puts right what a mutation broke: checksums, lengths being taken as they are. */
static void mend_checksums(uint8_t *p, size_t n)
{
	size_t at = TRACE_SIGNATURE_LEN + 4, len = n < at ? 0 : trace_get32(p + at - 4);

	if (n < at || len > n - at || n - at - len < 4)
		return;
	trace_put32(p + at + len, trace_crc(0, p + at, len));
	at += len + 4;
	while (n - at >= TRACE_HEAD_LEN) {
		uint8_t *head = p + at;

		len = trace_get32(head) == TRACE_TAG_END ? 0 : trace_get32(head + 12);
		if (len > n - at - TRACE_HEAD_LEN)
			return;
		trace_put32(head + 24,
			    trace_crc(trace_crc(0, head, 24), head + TRACE_HEAD_LEN, len));
		at += TRACE_HEAD_LEN + len;
	}
}

/* Rows that were read, written and read again. */
static void round_trip(const struct trace_row *rows, size_t n)
{
	const struct trace_row *again;
	struct trace_writer *w;
	struct trace_reader *r;
	char *data, why[TRACE_WHY];
	size_t len, n2, done = 0;
	FILE *out = open_memstream(&data, &len);

	MUST(out && trace_writer_new(out, "fuzz", &w) == 0);
	for (size_t i = 0; i < n; i++)
		MUST(trace_write(w, &rows[i]) == 0);
	MUST(trace_writer_end(w) == 0 && fclose(out) == 0);
	trace_writer_free(w);
	MUST(trace_open_stream(fmemopen(data, len, "r"), "again", &r, why) == 0);
	while (trace_next(r, &again, &n2, why) == 1) {
		MUST(done + n2 <= n);
		for (size_t i = 0; i < n2; i++, done++)
			MUST(again[i].time_ns == rows[done].time_ns &&
			     again[i].cpu == rows[done].cpu && again[i].order == rows[done].order &&
			     again[i].blocks == rows[done].blocks);
	}
	MUST(done == n);
	trace_close(r);
	free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct trace_row *rows;
	struct trace_reader *r;
	char why[TRACE_WHY] = "";
	uint8_t *copy;
	size_t n;
	int e;

	if (size < 2)
		return 0;
	copy = malloc(size - 1);
	MUST(copy);
	memcpy(copy, data + 1, size - 1);
	if (data[0] & 1)
		mend_checksums(copy, size - 1);
	e = trace_open_stream(fmemopen(copy, size - 1, "r"), "input", &r, why);
	if (!e) {
		while ((e = trace_next(r, &rows, &n, why)) == 1) {
			MUST(n > 0 && n <= TRACE_BLOCK_ROWS);
			MUST(trace_levels(r) <= n);
			for (size_t i = 0; i < trace_levels(r); i++)
				MUST(rows[i].blocks > 0);
			if (n <= 1000)
				round_trip(rows, n);
		}
		MUST(e == 0 || (e == -EBADMSG && strstr(why, "byte")));
		MUST(trace_next(r, &rows, &n, why) == e);
		trace_close(r);
	}
	MUST(!e || why[0]);
	free(copy);
	return 0;
}
