/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as packed records. Whatever the reader takes for a record can be merged and evaluated,
 * is packed again, and must come out the same.
 */
#include <errno.h>
#include <string.h>
#include "lib/records.h"
#include "tests/fuzz/seeds.h"

static struct log_record record_of(uint32_t i)
{
	struct log_record r = {.seq = i, .time_us = 5000000 + i, .parts = 1 + i % 2, .batch = 63};
	uint64_t x = i;

	r.r.index = i % 3;
	r.r.dt_us = 100000;
	r.r.refills = i;
	r.r.refilled = 63 * i;
	r.high = r.high_least = r.high_most = 378;
	for (int k = 0; k < 50; k++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		pcptune_band_push(&r.r.band, (int64_t)(x >> 50));
	}
	return r;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct records_writer w = {0};

	(void)argc;
	(void)argv;
	for (uint32_t i = 0; i < 8; i++) {
		struct log_record r = record_of(i);

		MUST(records_add(&w, &r) == 0);
	}
	seed_write("records", NULL, 0, w.data, w.len);
	records_free(&w);
	return 0;
}

static void must_be_same(const struct log_record *a)
{
	struct records_writer w = {0};
	struct records_reader rd;
	struct log_record b;

	MUST(records_add(&w, a) == 0);
	records_begin(&rd, w.data, w.len);
	MUST(records_next(&rd, &b) == 1);
	MUST(!memcmp(a, &b, sizeof(b)));
	MUST(records_next(&rd, &b) == 0);
	records_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct records_part parts[2] = {{data, size}, {data, size}};
	struct records_writer w = {0};
	struct records_reader rd;
	struct log_record r, sum = {.parts = 1};
	int e, merged;

	records_begin(&rd, data, size);
	while ((e = records_next(&rd, &r)) == 1) {
		must_be_same(&r);
		log_record_merge(&sum, &r);
		pcptune_band_traffic(&r.r.band, 1000, 10, NULL);
	}
	MUST(e == 0 || e == -EBADMSG);
	merged = records_merge(parts, 2, &w);
	MUST(merged == e);
	records_free(&w);
	return 0;
}
