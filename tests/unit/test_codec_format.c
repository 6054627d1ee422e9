/* SPDX-License-Identifier: MIT */
/*
 * The format of chunks, written by hand rather than by the codec: with fewer or more fields than
 * today's, and damaged in every way.
 */
#include "tests/unit/codec_fixture.h"

struct bytes {
	uint8_t b[400];
	size_t n;
};

static void add_byte(struct bytes *to, unsigned v)
{
	to->b[to->n++] = (uint8_t)v;
}

/* A prefix varint from its definition, not from the codec. */
static void add(struct bytes *to, uint64_t v)
{
	unsigned len = 1;

	while (len < 9 && v >> 7 * len)
		len++;
	if (len == 9) {
		add_byte(to, 0);
		for (int i = 0; i < 8; i++)
			add_byte(to, v >> 8 * i & 0xff);
		return;
	}
	v = v << len | UINT64_C(1) << (len - 1);
	for (unsigned i = 0; i < len; i++)
		add_byte(to, v >> 8 * i & 0xff);
}

/* Version 1, groups LIST ZCTR PCTR GAUGE, CPUs; one sample with one record to follow. */
static void add_heads(struct bytes *to, unsigned list, unsigned zctr, unsigned pctr, unsigned gauge)
{
	add_byte(to, 1);
	add(to, list);
	add(to, zctr);
	add(to, pctr);
	add(to, gauge);
	add(to, 3);
	add(to, 1 | 4 | 16); /* seq, dt, records */
	add(to, 6);	     /* seq 7 */
	add(to, 2 * 100);    /* dt 100 */
	add(to, 1);
}

static const struct pcptune_cpu *decode_one(struct pcptune_decoder *dec, const struct bytes *from)
{
	const struct pcptune_sample *s;

	decoder_begin(dec, from->b, from->n);
	assert_int_equal(decoder_next(dec, &s), 1);
	assert_int_equal(s->seq, 7);
	assert_int_equal(s->dt_us, 100);
	assert_int_equal(s->time_us, 100);
	assert_int_equal(s->n_active, 1);
	assert_int_equal(s->active[0], 2);
	return pcptune_sample_cpu(s, 2);
}

/* One row in each group: what a chunk of a much older counters.def looks like. */
static void test_fewer_fields(void **state)
{
	struct pcptune_decoder *dec;
	const struct pcptune_cpu *c;
	struct pcptune_cpu expected = {.zone = 0, .cpu = 2, .flags = PCPTUNE_CPU_ACTIVE};
	const struct pcptune_sample *s;
	struct bytes b = {.n = 0};

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	add_heads(&b, 1, 1, 1, 1);
	add(&b, 2 << 2 | 3);				     /* index 2, full bitmap */
	add(&b, 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6); /* count high alloc_pages ... */
	add(&b, 2 * 50);
	add(&b, 2 * 378);
	add(&b, 30000);
	add(&b, 2 * 1500);
	add(&b, 5);
	c = decode_one(dec, &b);
	expected.count = 50;
	expected.high = 378;
	/* what is predicted from a field that is there follows it */
	expected.alloc_pages = expected.free_pages = 30000;
	expected.alloc_zone = 1500;
	expected.controls_adopted = 5;
	assert_memory_equal(c, &expected, sizeof(expected));
	assert_int_equal(decoder_next(dec, &s), 0);
	decoder_free(dec);
}

/* More rows in each group than we know: they are skipped. */
static void test_more_fields(void **state)
{
	enum { LISTS = 2, ZCTRS = 23, PCTRS = 2, GAUGES = 8 };
	const unsigned gauge = 3, list = gauge + GAUGES + 2, zctr = list + LISTS + 2;
	const unsigned pctr = zctr + ZCTRS + 2;
	struct pcptune_decoder *dec;
	const struct pcptune_cpu *c;
	struct bytes b = {.n = 0};

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	add_heads(&b, LISTS + 2, ZCTRS + 2, PCTRS + 2, GAUGES + 2);
	add(&b, 2 << 2 | 3);
	add(&b, UINT64_C(3) << (gauge + GAUGES - 1) | UINT64_C(3) << (list + LISTS - 1) |
			UINT64_C(3) << (zctr + ZCTRS - 1) | UINT64_C(7) << (pctr + PCTRS - 1));
	add(&b, 2 * 9);
	add(&b, UINT64_MAX); /* unknown gauge */
	add(&b, 2 * 8);	     /* free_pages, against alloc_pages 0 */
	add(&b, 12345);	     /* unknown list row */
	add(&b, 7);
	add(&b, UINT64_C(1) << 60);
	add(&b, 6);
	add(&b, 1);
	add(&b, 2);
	c = decode_one(dec, &b);
	assert_int_equal(c->free_count, 9);
	assert_int_equal(c->free_pages, 8);
	assert_int_equal(c->alloc_failed, 7);
	assert_int_equal(c->high_raised, 6);
	assert_int_equal(c->alloc_pages, 0);
	assert_int_equal(c->alloc_zone, 0);
	decoder_free(dec);
}

/* Each way to be damaged that the decoder knows; and damage is for good. */
static void test_damaged(void **state)
{
	struct pcptune_decoder *dec;
	const struct pcptune_sample *s = NULL;
	struct bytes good = {.n = 0}, b;

	(void)state;
	assert_int_equal(decoder_new(1, 3, &dec), 0);
	decoder_begin(dec, NULL, 0);
	assert_int_equal(decoder_next(dec, &s), 0);
	add_heads(&good, 1, 1, 1, 1);
	add(&good, 2 << 2 | 3);
	add(&good, 1 << 2);
	add(&good, 2 * 50);
	(void)decode_one(dec, &good);
	s = NULL;
#define BAD(what)                                          \
	b = good;                                          \
	what;                                              \
	decoder_begin(dec, b.b, b.n);                      \
	assert_int_equal(decoder_next(dec, &s), -EBADMSG); \
	assert_int_equal(decoder_next(dec, &s), -EBADMSG); \
	assert_null(s);
	for (size_t n = 1; n < good.n; n++) {
		BAD(b.n = n); /* cut anywhere */
	}
	BAD(b.b[0] = 0); /* version */
	BAD(b.b[0] = 3);
	BAD(b.b[5] = 4 << 1 | 1);  /* 4 CPUs, not 3 */
	BAD(b.b[1] = 65 << 1 | 1); /* too many rows */
	BAD(b.b[2] = 62 << 1 | 1); /* ... in all */
	BAD(b.b[6] = 255);	   /* presence of what does not exist: records missing, too */
	BAD(b.n -= 4; add(&b, 4)); /* 4 records of 3 CPUs */
	BAD(b.n -= 3; add(&b, 3 << 2 | 3); add(&b, 1 << 2); add(&b, 100)); /* index 3 */
	BAD(b.n -= 3; add(&b, (UINT64_C(1) << 40) << 2 | 3); add(&b, 4); add(&b, 100));
	BAD(b.n -= 3; add(&b, 2 << 2 | 3); add(&b, 1 << 7));	    /* a bit too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 1); add_byte(&b, 64));	    /* a bit number too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 1); add_byte(&b, 7));	    /* a bit too high */
	BAD(b.n -= 3; add(&b, 2 << 2 | 2); add_byte(&b, 2));	    /* second bit missing */
	BAD(b.n -= 1; add(&b, 1));				    /* count -1 */
	BAD(b.n -= 1; add(&b, UINT64_C(1) << 33));		    /* count 2^32 */
	BAD(b.n -= 2; add(&b, 1 << 1); add(&b, UINT64_C(1) << 32)); /* flags of 33 bits */
#undef BAD
	(void)decode_one(dec, &good); /* the next chunk is read as if nothing had been */
	decoder_free(dec);
}

/* 100,000 damaged chunks: any bytes give 0, -EBADMSG or a valid sample. */
static void test_mutations(void **state)
{
	struct source src = source_new(2, 5);
	struct codec codec = codec_new(&src);
	struct chunk_totals t;
	const uint8_t *data;
	uint8_t *bad;
	size_t len, cut;
	int outcomes[2] = {0, 0};

	(void)state;
	for (int i = 0; i < 6; i++) {
		if (i % 2)
			make_wild(&src);
		else
			make_steady(&src, 4);
		assert_int_equal(encoder_add(codec.enc, &src.s), 0);
	}
	encoder_peek(codec.enc, &data, &len, &t);
	for (int i = 0; i < 100000; i++) {
		const struct pcptune_sample *s;
		int r;

		cut = below(4) ? len : below(len + 1);
		bad = malloc(cut ? cut : 1); /* exactly as long, for the sanitizer */
		assert_non_null(bad);
		memcpy(bad, data, cut);
		for (uint64_t k = below(4); k-- && cut;)
			bad[below(2) ? below(cut) : below(cut < 40 ? cut : 40)] =
				(uint8_t)(below(2) ? next_random() : 1u << below(8));
		decoder_begin(codec.dec, bad, cut);
		while ((r = decoder_next(codec.dec, &s)) == 1) {
			assert_true(s->n_active <= s->n_cpus && s->n_cpus == 10);
			for (uint32_t k = 0; k < s->n_active; k++) {
				assert_true(s->active[k] < 10);
				assert_true(!k || s->active[k] > s->active[k - 1]);
			}
			for (uint32_t k = 0; k < 10; k++) {
				assert_int_equal(pcptune_sample_cpu(s, k)->zone, k / 5);
				assert_int_equal(pcptune_sample_cpu(s, k)->cpu, k % 5);
			}
		}
		assert_true(r == 0 || r == -EBADMSG);
		outcomes[r != 0]++;
		free(bad);
	}
	assert_true(outcomes[0] > 1000 && outcomes[1] > 1000);
	codec_free(&codec);
	source_free(&src);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fewer_fields),
		cmocka_unit_test(test_more_fields),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_mutations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
