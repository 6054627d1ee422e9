/* SPDX-License-Identifier: MIT */
/* A tracker as it lies in the segment: the same as the one it is packed from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pcptune/packed.h>
#include "tests/unit/habits.h"

static void assert_unpacks_to(const struct pcptune_packed *p, const struct pcptune_band *want)
{
	struct pcptune_band got;

	assert_true(pcptune_packed_unpack(p, &got));
	assert_int_equal(got.start, want->start);
	assert_int_equal(got.n, want->n);
	assert_int_equal(got.collapsed, want->collapsed);
	assert_memory_equal(got.s, want->s, want->n * sizeof(got.s[0]));
	assert_memory_equal(got.count, want->count, sizeof(got.count));
	assert_memory_equal(got.sum, want->sum, sizeof(got.sum));
}

static void a_packed_tracker_is_the_same(void **state)
{
	static int64_t x[20000];

	(void)state;
	for (uint64_t seed = 0; seed < 60; seed++) {
		struct pcptune_packed p;
		struct pcptune_band b;

		walk((enum kind)(seed % N_KINDS), seed, x, 20000);
		pcptune_packed_init(&p, x[0] * 37, 3);
		pcptune_band_init(&b);
		for (uint32_t i = 0; i < 20000; i++) {
			pcptune_packed_push(&p, x[i] * 37);
			pcptune_band_push(&b, x[i] * 37);
			if (i % 4999 == 0)
				assert_unpacks_to(&p, &b);
		}
		assert_unpacks_to(&p, &b);
		assert_int_equal(p.tag, 3);
		assert_int_equal(p.lost, 0);
	}
}

/* The two words that may overflow: cycles of a bucket, and their excess; the others go on. */
static void a_packed_bucket_tells_what_it_could_not_count(void **state)
{
	struct pcptune_packed p;
	struct pcptune_band b;

	(void)state;
	pcptune_packed_init(&p, 0, 0);
	p.bucket[20] = UINT32_MAX - 1;
	pcptune_packed_count(&p, pcptune_band_edge(20));
	assert_int_equal(p.lost, 0);
	pcptune_packed_count(&p, pcptune_band_edge(20));
	assert_int_equal(p.lost, 1);
	pcptune_packed_count(&p, pcptune_band_edge(21));
	p.bucket[PCPTUNE_BAND_BUCKETS - 1] = 0;
	pcptune_packed_count(&p, UINT64_C(1) << 40);
	assert_int_equal(p.lost, 2);
	assert_true(pcptune_packed_unpack(&p, &b));
	assert_int_equal(b.count[20], UINT32_MAX);
	assert_int_equal(b.sum[20], UINT32_MAX * pcptune_band_edge(20));
	assert_int_equal(b.count[21], 1);
	assert_int_equal(b.count[PCPTUNE_BAND_BUCKETS - 1], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_packed_tracker_is_the_same),
		cmocka_unit_test(a_packed_bucket_tells_what_it_could_not_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
