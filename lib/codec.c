/* SPDX-License-Identifier: MIT */
/*
 * The coding of samples.
 *
 * Everything is a prefix varint (lib/varint.h).
 *
 *   chunk   version, number of LIST, ZCTR, PCTR and GAUGE rows of counters.def, number of CPUs,
 *           samples
 *   sample  presence of (seq, time, dt, cpu_us, mem_available, flags, records, and from version 2
 *           on long holds), then those that are present: differences to what the last sample
 *           suggests; then the records
 *   record  step of the index << 2 | how the bitmap is told, the bitmap, the present fields
 *
 * A field that is what its prediction says is not present. Predictions come from counters.def's
 * own meaning (pages freed follow pages allocated, lock takes follow refills and drains, see
 * EXPECT_*), from the last sample (gauges, count, flags), and in the first sample of a chunk from
 * the CPU to the left, since the CPUs of a target are alike. The bitmap of a record is mostly the
 * one that its CPU had last time, or differs in a bit or two: two bits of the step tell which; a
 * field may be present and 0 to keep it so.
 * Times of holding are 64 times a measurement; when all of a record are, they are written divided
 * by 64.
 *
 * A CPU without a record has deltas of 0, is neither ACTIVE nor UNKNOWN, and is otherwise as it
 * was. So idle CPUs cost nothing, not even in the first sample when they are like their neighbour.
 *
 * Growth: rows are only ever added at the end of a group, so position and group name a row for
 * good. The numbers at the head of the chunk say where groups end: fields that a chunk does not
 * have are 0, fields that we do not have are skipped. A change of anything else is a new version.
 * That is why fields are predicted from fields of the first version only.
 *
 * Encoder and decoder each belong to one thread.
 */
#include "lib/codec_private.h"
#include "lib/varint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void *(*codec_realloc)(void *, size_t) = realloc;

void codec_set_realloc(void *(*fn)(void *, size_t))
{
	codec_realloc = fn ? fn : realloc;
}

void *codec_zeroed(size_t n, size_t size)
{
	size_t bytes = n ? n * size : 1;
	void *p;

	if (n > SIZE_MAX / size)
		return NULL;
	p = codec_realloc(NULL, bytes);
	if (p)
		memset(p, 0, bytes);
	return p;
}

/* ---- encoder ---- */

#define RECORD_MAX (VARINT_MAX * (N_FIELDS + 3))
#define HEAD_MAX   (VARINT_MAX * 16)

struct pcptune_encoder {
	uint32_t n_cpus;
	struct last *last; /* [n_cpus] */
	uint32_t *changed; /* [n_cpus] indexes with a record in this sample */
	uint8_t *data;
	size_t len, room;
	uint64_t mask; /* of the record before, in this chunk */
	struct clocks clocks;
	struct chunk_totals totals;
};

int encoder_new(uint32_t n_cpus, struct pcptune_encoder **ret)
{
	struct pcptune_encoder *enc = codec_zeroed(1, sizeof(*enc));

	if (!enc)
		return -ENOMEM;
	enc->n_cpus = n_cpus;
	enc->last = codec_zeroed(n_cpus, sizeof(*enc->last));
	enc->changed = codec_zeroed(n_cpus, sizeof(*enc->changed));
	if (!enc->last || !enc->changed) {
		encoder_free(enc);
		return -ENOMEM;
	}
	*ret = enc;
	return 0;
}

void encoder_free(struct pcptune_encoder *enc)
{
	if (!enc)
		return;
	free(enc->last);
	free(enc->changed);
	free(enc->data);
	free(enc);
}

/* Which CPUs get a record. Changes nothing but enc->changed. */
static uint32_t find_changed(struct pcptune_encoder *enc, const struct pcptune_sample *s)
{
	static const struct face nothing;
	struct face left = nothing;
	bool first = !enc->len;
	uint32_t n = 0;

	for (uint32_t i = 0; i < enc->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		const struct face *expected = first ? &left : &enc->last[i].face;

		/* flags alone tell of an active CPU; the rest is for those that are not */
		if (c->flags != expected->flags || memcmp(FACE(c), expected, sizeof(*expected)))
			enc->changed[n++] = i;
		if (first)
			left = rest_face(FACE(c));
	}
	return n;
}

/* Everything that can fail happens here, before anything of the chunk is touched. */
static int make_room(struct pcptune_encoder *enc, uint32_t n_records)
{
	size_t need = enc->len + HEAD_MAX + (size_t)n_records * RECORD_MAX;
	size_t room;
	uint8_t *more;

	if (need <= enc->room)
		return 0;
	room = need + enc->len / 2;
	more = codec_realloc(enc->data, room);
	if (!more)
		return -ENOMEM;
	enc->data = more;
	enc->room = room;
	return 0;
}

static uint8_t *put_chunk_head(struct pcptune_encoder *enc, uint8_t *p)
{
	memset(enc->last, 0, enc->n_cpus * sizeof(*enc->last));
	memset(&enc->clocks, 0, sizeof(enc->clocks));
	memset(&enc->totals, 0, sizeof(enc->totals));
	enc->mask = 0;
	*p++ = CODEC_VERSION;
	for (int g = 0; g < N_GROUPS; g++)
		p = varint_put(p, group_sizes[g]);
	return varint_put(p, enc->n_cpus);
}

static uint8_t *put_sample_head(struct clocks *c, const struct pcptune_sample *s,
				uint32_t n_records, uint8_t *p)
{
	uint64_t d[] = {
		s->seq - c->seq - 1, /* all modulo 2^64, so that any value comes back */
		zigzag(s->time_us - c->time_us - s->dt_us),
		zigzag(s->dt_us - c->dt_us),
		zigzag(s->cpu_us - c->cpu_us),
		n_records,
		zigzag(s->mem_available - c->mem_available),
		s->flags,
		pcptune_sample_long_holds(s),
	};
	uint32_t present = 0;

	for (unsigned i = 0; i < sizeof(d) / sizeof(d[0]); i++)
		present |= (uint32_t) !!d[i] << i;
	p = varint_put(p, present);
	for (unsigned i = 0; i < sizeof(d) / sizeof(d[0]); i++)
		if (d[i])
			p = varint_put(p, d[i]);
	*c = (struct clocks){s->seq, s->time_us, s->dt_us, s->cpu_us, s->mem_available};
	return p;
}

static uint8_t *put_record_head(uint8_t *p, uint32_t step, uint64_t mask, uint64_t expected)
{
	uint64_t other = mask ^ expected, rest = other & (other - 1);
	uint64_t head = (uint64_t)step << 2;

	if (!other)
		return varint_put(p, head | MASK_SAME);
	if (rest & (rest - 1))
		return varint_put(varint_put(p, head | MASK_FULL), mask);
	p = varint_put(p, head | (rest ? MASK_TWO : MASK_ONE));
	*p++ = (uint8_t)__builtin_ctzll(other);
	if (rest)
		*p++ = (uint8_t)__builtin_ctzll(rest);
	return p;
}

/* Bytes that it takes to tell a bitmap of which n bits are new. */
static unsigned mask_cost(uint64_t mask, unsigned n)
{
	return n <= 2 ? n : varint_size(mask);
}

/*
 * The bitmap to write, when `needed` must be present and `expected` was last time. A field that
 * comes and goes (contended takes, say) costs less as a 0 of one byte than as a changed bitmap.
 */
static uint64_t choose_mask(uint64_t needed, uint64_t expected)
{
	uint64_t extra = expected & ~needed, miss = needed & ~expected;
	unsigned n_extra, n_miss;

	if (!extra || extra >> F_hold_raw & 1) /* that one has no value that could be 0 */
		return needed;
	n_extra = (unsigned)__builtin_popcountll(extra);
	n_miss = (unsigned)__builtin_popcountll(miss);
	if (mask_cost(needed | expected, n_miss) + n_extra <= mask_cost(needed, n_miss + n_extra))
		return needed | expected;
	return needed;
}

static inline uint64_t hold_of(const struct pcptune_cpu *c)
{
	return c->lock_alloc_hold_ns | c->lock_free_hold_ns | c->lock_agent_hold_ns;
}

#define BIT(field) (UINT64_C(1) << F_##field)

/* LISTS_ONLY follows from the counters. */
static inline uint32_t logged_flags(const struct pcptune_cpu *c)
{
	return c->flags & ~(uint32_t)PCPTUNE_CPU_LISTS_ONLY;
}

/*
 * What is left of each field when its prediction is taken away into d, 0: nothing; those that are
 * not 0 as a mask. Up to the counters of the lists here, the others below. Most gauges are what a
 * policy once set: a compare and a jump that always goes the same way costs less than a difference.
 */
static inline uint64_t face_residues(const struct pcptune_cpu *c, const struct face *expected,
				     uint64_t *d)
{
	uint64_t mask = 0;

#define PCPTUNE_GAUGE(field, unit, line, para)                               \
	d[F_##field] = 0;                                                    \
	if (c->field != expected->field) {                                   \
		d[F_##field] = zigzag((uint64_t)c->field - expected->field); \
		mask |= BIT(field);                                          \
	}
#include <pcptune/counters.def>
	d[F_flags] = logged_flags(c) ^ (expected->flags | PCPTUNE_CPU_ACTIVE);
	d[F_count] = zigzag((uint64_t)c->count - expected->count);
	d[F_alloc_pages] = c->alloc_pages;
	d[F_free_pages] = zigzag(c->free_pages - EXPECT_free_pages(c));
	mask |= d[F_flags] ? BIT(flags) : 0;
	mask |= d[F_count] ? BIT(count) : 0;
	mask |= d[F_alloc_pages] ? BIT(alloc_pages) : 0;
	mask |= d[F_free_pages] ? BIT(free_pages) : 0;
	return mask;
}

static inline void zone_residues(const struct pcptune_cpu *c, uint64_t *d)
{
	unsigned shift = hold_of(c) & 63 ? 0 : 6;

	d[F_hold_raw] = !shift;
#define PCPTUNE_ZCTR(field, unit, line, para) d[F_##field] = c->field;
#define PCPTUNE_PCTR(field, unit, line, para) d[F_##field] = c->field;
#include <pcptune/counters.def>
#define PREDICTED(field) d[F_##field] = zigzag(c->field - EXPECT_##field(c))
	PREDICTED(alloc_zone);
	PREDICTED(free_zone);
	PREDICTED(lock_alloc_taken);
	PREDICTED(lock_free_taken);
#undef PREDICTED
	d[F_lock_alloc_hold_ns] >>= shift;
	d[F_lock_free_hold_ns] >>= shift;
	d[F_lock_agent_hold_ns] >>= shift;
}

/* Only of those that may be written: a record of such a CPU repeats the last bitmap at most. */
static inline void no_zone_residues(uint64_t expected_mask, uint64_t *d)
{
	d[F_hold_raw] = 0;
	for (uint64_t m = expected_mask & ~(BIT(alloc_zone) - 1); m; m &= m - 1)
		d[__builtin_ctzll(m)] = 0;
}

/* The bits of n fields. Unrolled, and from the last one down: three instructions a field. */
static inline __attribute__((always_inline)) uint64_t not_zero(const uint64_t *d, unsigned n)
{
	uint64_t mask = 0;

#pragma GCC unroll 64
	for (unsigned i = n; i-- > 0;)
		mask = 2 * mask + !!d[i];
	return mask;
}

/* Residues of all fields into d, those that are not 0 as a mask. */
static uint64_t residues(const struct pcptune_cpu *c, const struct face *expected, bool beyond,
			 uint64_t expected_mask, uint64_t *d)
{
	uint64_t mask = face_residues(c, expected, d);

	if (!beyond) {
		no_zone_residues(expected_mask, d);
		return mask;
	}
	zone_residues(c, d);
	mask |= d[F_hold_raw] ? BIT(hold_raw) : 0;
	return mask | not_zero(d + F_alloc_zone, N_FIELDS - F_alloc_zone) << F_alloc_zone;
}

/* Gauges that move with decisions alone, in a row. */
#define SET_GAUGES (6 * sizeof(uint32_t))
_Static_assert(offsetof(struct face, rules) == offsetof(struct face, high) + 5 * sizeof(uint32_t),
	       "the six that decisions move come first");
_Static_assert(sizeof(struct face) == offsetof(struct face, rules) + 3 * sizeof(uint32_t),
	       "put_calm() names the others");

static inline uint8_t *put_present(uint8_t *p, uint64_t v)
{
	return v ? varint_put(p, v) : p;
}

/*
 * What most records are: of a CPU that its lists served, whose other gauges are as they were. The
 * same bytes as from the general way, which takes four times as long. NULL: not such a record.
 */
static inline uint8_t *put_calm(const struct pcptune_cpu *c, const struct face *expected,
				uint32_t step, uint64_t expected_mask, uint64_t *ret_mask,
				uint8_t *p)
{
	uint64_t count = zigzag((uint64_t)c->count - expected->count);
	uint64_t factor = zigzag((uint64_t)c->alloc_factor - expected->alloc_factor);
	uint64_t run = zigzag((uint64_t)c->free_count - expected->free_count);
	uint64_t allocs = c->alloc_pages, frees = zigzag(c->free_pages - EXPECT_free_pages(c));
	uint64_t mask = (uint64_t) !!count << F_count | (uint64_t) !!factor << F_alloc_factor |
			(uint64_t) !!run << F_free_count | (uint64_t) !!allocs << F_alloc_pages |
			(uint64_t) !!frees << F_free_pages;

	if (logged_flags(c) != (expected->flags | PCPTUNE_CPU_ACTIVE) ||
	    memcmp(&c->high, &expected->high, SET_GAUGES))
		return NULL;
	if (mask != expected_mask && choose_mask(mask, expected_mask) != mask)
		return NULL;
	*ret_mask = mask;
	p = put_record_head(p, step, mask, expected_mask);
	p = put_present(p, count);
	p = put_present(p, factor);
	p = put_present(p, run);
	p = put_present(p, allocs);
	return put_present(p, frees);
}

static uint8_t *put_any(const struct pcptune_cpu *c, const struct face *expected, uint32_t step,
			bool beyond, uint64_t expected_mask, uint64_t *ret_mask, uint8_t *p)
{
	uint64_t d[N_FIELDS], mask;

	mask = choose_mask(residues(c, expected, beyond, expected_mask, d), expected_mask);
	*ret_mask = mask;
	p = put_record_head(p, step, mask, expected_mask);
	for (mask &= ~(UINT64_C(1) << F_hold_raw); mask; mask &= mask - 1)
		p = varint_put(p, d[__builtin_ctzll(mask)]);
	return p;
}

static inline uint8_t *put_record(struct pcptune_encoder *enc, const struct pcptune_cpu *c,
				  const struct face *expected, struct last *last, uint32_t step,
				  bool beyond, uint8_t *p)
{
	uint64_t expected_mask = last->mask ? last->mask : enc->mask, mask;
	uint8_t *end = beyond ? NULL : put_calm(c, expected, step, expected_mask, &mask, p);

	if (!end)
		end = put_any(c, expected, step, beyond, expected_mask, &mask, p);
	last->mask = enc->mask = mask;
	return end;
}

static void add_totals(struct chunk_totals *t, const struct pcptune_cpu *c, bool beyond)
{
	t->n_records += !!(c->flags & PCPTUNE_CPU_ACTIVE);
	t->alloc_pages += c->alloc_pages;
	t->free_pages += c->free_pages;
	if (!beyond)
		return;
	t->alloc_zone += c->alloc_zone;
	t->free_zone += c->free_zone;
	t->refills += c->refills;
	t->drains += c->drains;
	t->free_high += c->free_high;
	t->lock_taken += c->lock_alloc_taken + c->lock_free_taken;
	t->lock_contended += c->lock_alloc_contended + c->lock_free_contended;
	t->lock_wait_ns += c->lock_alloc_wait_ns + c->lock_free_wait_ns;
}

static void add_sample_totals(struct chunk_totals *t, const struct pcptune_sample *s)
{
	if (!t->n_samples)
		t->seq_first = s->seq;
	t->seq_last = s->seq;
	t->n_samples++;
	t->time_us = s->time_us;
	t->dt_us += s->dt_us;
	t->cpu_us += s->cpu_us;
	if (t->held_pages > t->held_peak)
		t->held_peak = t->held_pages;
}

/* The CPUs of [from, to) have no record: in the first sample they are as the one to their left. */
static void fill_first(struct last *last, uint32_t from, uint32_t to, uint64_t *held)
{
	if (!from)
		return; /* as nothing: zeros already */
	for (uint32_t i = from; i < to; i++) {
		last[i].face = last[from - 1].face;
		*held += last[i].face.count;
	}
}

static uint8_t *put_records(struct pcptune_encoder *enc, const struct pcptune_sample *s, uint32_t n,
			    bool first, uint8_t *p)
{
	static const struct face nothing;
	uint32_t next = 0; /* smallest index of the next record */

	for (uint32_t k = 0; k < n; k++) {
		uint32_t i = enc->changed[k];
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);
		struct last *last = &enc->last[i];
		const struct face *expected = &last->face;
		bool beyond = beyond_lists(c);

		if (first) {
			fill_first(enc->last, next, i, &enc->totals.held_pages);
			expected = i ? &enc->last[i - 1].face : &nothing;
		}
		enc->totals.held_pages += (uint64_t)c->count - last->face.count;
		p = put_record(enc, c, expected, last, i - next, beyond, p);
		/* not by way of rest_face(): its copy would be loaded before all of it is stored */
		last->face = *FACE(c);
		last->face.flags = REST(c->flags);
		add_totals(&enc->totals, c, beyond);
		next = i + 1;
	}
	if (first)
		fill_first(enc->last, next, enc->n_cpus, &enc->totals.held_pages);
	return p;
}

int encoder_add(struct pcptune_encoder *enc, const struct pcptune_sample *sample)
{
	bool first = !enc->len;
	uint32_t n;
	uint8_t *p;
	int r;

	if (sample->n_cpus != enc->n_cpus || sample->cpu_size < sizeof(struct pcptune_cpu))
		return -EINVAL;
	n = find_changed(enc, sample);
	r = make_room(enc, n);
	if (r)
		return r;
	p = enc->data + enc->len;
	if (first)
		p = put_chunk_head(enc, p);
	p = put_sample_head(&enc->clocks, sample, n, p);
	p = put_records(enc, sample, n, first, p);
	enc->len = (size_t)(p - enc->data);
	add_sample_totals(&enc->totals, sample);
	return 0;
}

void encoder_peek(const struct pcptune_encoder *enc, const uint8_t **ret_data, size_t *ret_len,
		  struct chunk_totals *ret_totals)
{
	static const struct chunk_totals none;

	*ret_data = enc->data;
	*ret_len = enc->len;
	*ret_totals = enc->len ? enc->totals : none;
}

void encoder_reset(struct pcptune_encoder *enc)
{
	enc->len = 0;
}
