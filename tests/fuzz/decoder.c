/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a chunk of samples. Whatever the decoder takes for a sample is coded again, and must
 * come out the same: so the fuzzer looks for wrong coding, too, not only for crashes.
 *
 * Input: a byte that chooses zones and CPUs, then the chunk.
 */
#include <errno.h>
#include <string.h>
#include "lib/codec.h"
#include "tests/fuzz/seeds.h"

static const uint32_t shapes[][2] = {{1, 1}, {1, 3}, {2, 5}, {3, 64}};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void fill(struct pcptune_cpu *c, uint32_t n, uint64_t r)
{
	for (uint32_t i = 0; i < n; i++) {
		r = r * UINT64_C(6364136223846793005) + 1442695040888963407;
		c[i].high = (uint32_t)(r >> 50);
		c[i].count = (uint32_t)(r >> 52);
		c[i].flags = r >> 33 & 1 ? PCPTUNE_CPU_ACTIVE : PCPTUNE_CPU_SETTLING;
		if (!(c[i].flags & PCPTUNE_CPU_ACTIVE))
			continue;
		c[i].alloc_pages = c[i].free_pages = r >> 48;
		c[i].refills = c[i].lock_alloc_taken = r >> 57;
		c[i].lock_free_hold_ns = r >> 30;
	}
}

static void seed_chunk(unsigned shape)
{
	uint32_t n = shapes[shape][0] * shapes[shape][1];
	struct pcptune_cpu *cpus = calloc(n, sizeof(*cpus));
	struct pcptune_sample s = {
		.size = sizeof(s), .n_cpus = n, .cpu_size = sizeof(*cpus), .cpus = cpus};
	struct pcptune_encoder *enc;
	struct chunk_totals totals;
	const uint8_t *data, choice = (uint8_t)shape;
	char name[32];
	size_t len;

	MUST(cpus && encoder_new(n, &enc) == 0);
	for (s.seq = 1; s.seq < 5; s.seq++) {
		s.dt_us = 100000 + s.seq;
		s.time_us += s.dt_us;
		memset(cpus, 0, n * sizeof(*cpus));
		fill(cpus, n, s.seq);
		MUST(encoder_add(enc, &s) == 0);
	}
	encoder_peek(enc, &data, &len, &totals);
	snprintf(name, sizeof(name), "chunk-%u", shape);
	seed_write(name, &choice, 1, data, len);
	encoder_free(enc);
	free(cpus);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	for (unsigned i = 0; i < N_SHAPES; i++)
		seed_chunk(i);
	return 0;
}

/* The sample that went in as number k of the second chunk must be what comes out. */
static void must_be_same(const struct pcptune_sample *a, const struct pcptune_sample *b)
{
	MUST(a->seq == b->seq && a->time_us == b->time_us && a->dt_us == b->dt_us);
	MUST(a->cpu_us == b->cpu_us && a->mem_available == b->mem_available);
	MUST(a->long_holds == b->long_holds);
	MUST(a->flags == b->flags && a->n_active == b->n_active && a->n_cpus == b->n_cpus);
	MUST(!memcmp(a->cpus, b->cpus, a->n_cpus * sizeof(struct pcptune_cpu)));
	MUST(!a->n_active || !memcmp(a->active, b->active, a->n_active * sizeof(*a->active)));
}

/* Not ACTIVE but with deltas: only damaged bytes say so, and the encoder may rely on it. */
static int contradicts_itself(const struct pcptune_sample *s)
{
	static const struct pcptune_cpu rest;
	const size_t at = offsetof(struct pcptune_cpu, alloc_pages);

	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!(c->flags & PCPTUNE_CPU_ACTIVE) &&
		    memcmp((const char *)c + at, (const char *)&rest + at, sizeof(*c) - at))
			return 1;
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint32_t *shape = shapes[size ? data[0] % N_SHAPES : 0];
	struct pcptune_decoder *dec, *again;
	struct pcptune_encoder *enc;
	const struct pcptune_sample *s, *s2;
	struct chunk_totals totals;
	const uint8_t *coded;
	size_t len;
	int r;

	if (!size)
		return 0;
	MUST(decoder_new(shape[0], shape[1], &dec) == 0);
	MUST(decoder_new(shape[0], shape[1], &again) == 0);
	MUST(encoder_new(shape[0] * shape[1], &enc) == 0);
	decoder_begin(dec, data + 1, size - 1);
	while ((r = decoder_next(dec, &s)) == 1 && !contradicts_itself(s)) {
		MUST(encoder_add(enc, s) == 0);
		encoder_peek(enc, &coded, &len, &totals);
		decoder_begin(again, coded, len);
		for (uint32_t i = 0; i < totals.n_samples; i++)
			MUST(decoder_next(again, &s2) == 1);
		must_be_same(s, s2);
		MUST(decoder_next(again, &s2) == 0);
		if (totals.n_samples == 3)
			encoder_reset(enc);
	}
	MUST(r == 0 || r == 1 || r == -EBADMSG);
	encoder_free(enc);
	decoder_free(again);
	decoder_free(dec);
	return 0;
}
