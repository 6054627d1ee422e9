/* SPDX-License-Identifier: MIT */
/*
 * The coding of samples.
 *
 * Everything is a prefix varint (lib/varint.h).
 *
 *   chunk   version, number of LIST, ZCTR, PCTR and GAUGE rows of counters.def, number of CPUs,
 *           samples
 *   sample  presence of (seq, time, dt, cpu_us, mem_available, flags, records, and from version 2
 *           on long holds), then those that are present: differences to what the last sample suggests; then the records
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
#include "lib/codec.h"
#include "lib/codec_private.h"
#include "lib/varint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CODEC_VERSION 2u
#define CODEC_OLDEST  1u

/* ---- memory ---- */

static void *(*codec_realloc)(void *, size_t) = realloc;

void codec_set_realloc(void *(*fn)(void *, size_t))
{
	codec_realloc = fn ? fn : realloc;
}

static void *zeroed(size_t n, size_t size)
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

/* ---- fields: flags, count, gauges, then counters, each with its bit ---- */

enum field {
	F_hold_raw, /* no value: some time of holding is not a multiple of 64 */
	F_flags,
	F_count,
#define PCPTUNE_GAUGE(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_LIST(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_ZCTR(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
#define PCPTUNE_PCTR(field, unit, line, para) F_##field,
#include <pcptune/counters.def>
	N_FIELDS,
};
_Static_assert(N_FIELDS <= 64, "one bit each in a bitmap of 64");

#define PCPTUNE_LIST(field, unit, line, para) +1
_Static_assert(0
#include <pcptune/counters.def>
		       == 2,
	       "face_residues() names the counters of the lists");

enum group { G_LIST, G_ZCTR, G_PCTR, G_GAUGE, N_GROUPS };

static const uint8_t group_sizes[N_GROUPS] = {
#define PCPTUNE_LIST(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_ZCTR(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_PCTR(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
	,
#define PCPTUNE_GAUGE(field, unit, line, para) +1
	0
#include <pcptune/counters.def>
};

/* What stays from sample to sample; flags, count and gauges as they lie in struct pcptune_cpu. */
struct face {
	uint32_t flags, count;
#define PCPTUNE_GAUGE(field, unit, line, para) uint32_t field;
#include <pcptune/counters.def>
};
_Static_assert(offsetof(struct pcptune_cpu, count) == offsetof(struct pcptune_cpu, flags) + 4 &&
		       offsetof(struct pcptune_cpu, high) ==
			       offsetof(struct pcptune_cpu, flags) + 8,
	       "a face can be compared in one go");

#define FACE(cpu) ((const struct face *)(const void *)&(cpu)->flags)

/* Flags that no record means: the caller's own stay, ours are gone. */
#define REST(flags) \
	((flags) & ~(uint32_t)(PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_UNKNOWN | PCPTUNE_CPU_LISTS_ONLY))

/*
 * What counters.def lets expect of a counter, given others that are coded as they are (all modulo
 * 2^64). Exact for fixed batches; close enough to save a byte for others.
 */
#define EXPECT_free_pages(c)	   ((c)->alloc_pages)
#define EXPECT_alloc_zone(c)	   ((c)->refills * (c)->batch + (c)->alloc_direct)
#define EXPECT_free_zone(c)	   ((c)->drains * (c)->batch + (c)->free_direct)
#define EXPECT_lock_alloc_taken(c) ((c)->refills + (c)->alloc_direct)
#define EXPECT_lock_free_taken(c)  ((c)->drains + (c)->free_direct)

/* ---- what both sides keep ---- */

struct last {
	struct face face; /* at rest */
	uint64_t mask;	  /* bitmap of the last record in this chunk, 0: none */
};

struct clocks {
	uint64_t seq, time_us, dt_us, cpu_us, mem_available;
};

enum presence {
	P_SEQ = 1u << 0,
	P_TIME = 1u << 1,
	P_DT = 1u << 2,
	P_CPU_US = 1u << 3,
	P_RECORDS = 1u << 4,
	P_MEM = 1u << 5,
	P_FLAGS = 1u << 6,
	P_LONG_HOLDS = 1u << 7,
	P_ALL = (1u << 8) - 1,
};

enum mask_code {
	MASK_SAME = 0, /* as the last one of this CPU, else of the record before */
	MASK_ONE = 1,  /* one bit differs: its number follows */
	MASK_TWO = 2,  /* two bits differ */
	MASK_FULL = 3, /* the bitmap follows */
};

static struct face rest_face(const struct face *f)
{
	struct face r = *f;

	r.flags = REST(r.flags);
	return r;
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
	struct pcptune_encoder *enc = zeroed(1, sizeof(*enc));

	if (!enc)
		return -ENOMEM;
	enc->n_cpus = n_cpus;
	enc->last = zeroed(n_cpus, sizeof(*enc->last));
	enc->changed = zeroed(n_cpus, sizeof(*enc->changed));
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

/*
 * Did the CPU go past its lists? Most do not in most intervals, and then all counters from
 * alloc_zone on are 0, and so is what is left of them: one pass of `or` saves all else.
 */
static inline bool beyond_lists(const struct pcptune_cpu *c)
{
	uint64_t any = 0;

	if (c->flags & PCPTUNE_CPU_LISTS_ONLY)
		return false;
#define PCPTUNE_ZCTR(field, unit, line, para) any |= c->field;
#define PCPTUNE_PCTR(field, unit, line, para) any |= c->field;
#include <pcptune/counters.def>
	return any;
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

/* ---- decoder ---- */

#define FIELD_SKIP 0xff

struct pcptune_decoder {
	uint32_t n_zones, n_cpus_per_zone, n_cpus;
	struct pcptune_cpu *cpus; /* [n_cpus] the sample that is handed out */
	uint64_t *masks;	  /* [n_cpus] as struct last */
	uint32_t *active;	  /* [n_cpus] */
	uint32_t *records;	  /* [n_cpus] indexes with a record in this sample */
	uint32_t n_records;
	uint64_t mask;
	struct varint_input in;
	struct clocks clocks;
	struct pcptune_sample sample;
	bool begun, damaged;
	uint8_t fields[64]; /* bit of the chunk -> enum field, FIELD_SKIP */
	uint32_t n_fields;  /* bits that the chunk has */
};

int decoder_new(uint32_t n_zones, uint32_t n_cpus_per_zone, struct pcptune_decoder **ret)
{
	uint64_t n = (uint64_t)n_zones * n_cpus_per_zone;
	struct pcptune_decoder *dec;

	if (n_zones > PCPTUNE_MAX_ZONES || n_cpus_per_zone > PCPTUNE_MAX_CPUS)
		return -EINVAL;
	dec = zeroed(1, sizeof(*dec));
	if (!dec)
		return -ENOMEM;
	dec->n_zones = n_zones;
	dec->n_cpus_per_zone = n_cpus_per_zone;
	dec->n_cpus = (uint32_t)n;
	dec->cpus = zeroed(n, sizeof(*dec->cpus));
	dec->masks = zeroed(n, sizeof(*dec->masks));
	dec->active = zeroed(n, sizeof(*dec->active));
	dec->records = zeroed(n, sizeof(*dec->records));
	if (!dec->cpus || !dec->masks || !dec->active || !dec->records) {
		decoder_free(dec);
		return -ENOMEM;
	}
	*ret = dec;
	return 0;
}

void decoder_free(struct pcptune_decoder *dec)
{
	if (!dec)
		return;
	free(dec->cpus);
	free(dec->masks);
	free(dec->active);
	free(dec->records);
	free(dec);
}

void decoder_begin(struct pcptune_decoder *dec, const uint8_t *data, size_t len)
{
	dec->in = (struct varint_input){data, len ? data + len : data, false};
	dec->begun = dec->damaged = false;
}

/* Bits from..to of the chunk are rows of one group, ours begins at `ours` and has n rows. */
static void map_group(struct pcptune_decoder *dec, uint64_t rows, unsigned ours, unsigned n)
{
	for (unsigned i = 0; i < rows; i++)
		dec->fields[dec->n_fields++] = (uint8_t)(i < n ? ours + i : FIELD_SKIP);
}

static bool read_chunk_head(struct pcptune_decoder *dec)
{
	uint64_t sizes[N_GROUPS], sum = F_count + 1;

	uint8_t version = *dec->in.p++;

	if (version < CODEC_OLDEST || version > CODEC_VERSION)
		return false;
	for (int g = 0; g < N_GROUPS; g++) {
		sizes[g] = varint_get(&dec->in);
		if (sizes[g] > 64)
			return false;
		sum += sizes[g];
	}
	if (varint_get(&dec->in) != dec->n_cpus || dec->in.bad || sum > 64)
		return false;
	dec->n_fields = 0;
	map_group(dec, F_count + 1, 0, F_count + 1);
	map_group(dec, sizes[G_GAUGE], F_count + 1, group_sizes[G_GAUGE]);
	map_group(dec, sizes[G_LIST], F_alloc_pages, group_sizes[G_LIST]);
	map_group(dec, sizes[G_ZCTR], F_alloc_zone, group_sizes[G_ZCTR]);
	map_group(dec, sizes[G_PCTR], F_controls_adopted, group_sizes[G_PCTR]);
	memset(dec->cpus, 0, dec->n_cpus * sizeof(*dec->cpus));
	memset(dec->masks, 0, dec->n_cpus * sizeof(*dec->masks));
	memset(&dec->clocks, 0, sizeof(dec->clocks));
	for (uint32_t i = 0; i < dec->n_cpus; i++) {
		dec->cpus[i].zone = i / dec->n_cpus_per_zone;
		dec->cpus[i].cpu = i % dec->n_cpus_per_zone;
	}
	dec->mask = 0;
	dec->n_records = 0;
	return true;
}

static bool read_sample_head(struct pcptune_decoder *dec, uint32_t *ret_records)
{
	struct clocks *c = &dec->clocks;
	struct pcptune_sample *s = &dec->sample;
	uint64_t present = varint_get(&dec->in), d[8] = {0};

	if (present > P_ALL)
		return false;
	for (unsigned i = 0; i < sizeof(d) / sizeof(d[0]); i++)
		if (present >> i & 1)
			d[i] = varint_get(&dec->in);
	if (dec->in.bad || d[4] > dec->n_cpus || d[6] > UINT32_MAX)
		return false;
	c->seq += d[0] + 1;
	c->dt_us += unzigzag(d[2]);
	c->time_us += c->dt_us + unzigzag(d[1]);
	c->cpu_us += unzigzag(d[3]);
	c->mem_available += unzigzag(d[5]);
	*s = (struct pcptune_sample){.size = sizeof(*s),
				     .flags = (uint32_t)d[6],
				     .seq = c->seq,
				     .time_us = c->time_us,
				     .dt_us = c->dt_us,
				     .cpu_us = c->cpu_us,
				     .mem_available = c->mem_available,
				     .n_cpus = dec->n_cpus,
				     .cpu_size = sizeof(struct pcptune_cpu),
				     .cpus = dec->cpus,
				     .active = dec->active,
				     .long_holds = d[7]};
	*ret_records = (uint32_t)d[4];
	return true;
}

static bool read_mask(struct pcptune_decoder *dec, unsigned code, uint64_t *mask)
{
	uint64_t bit;

	if (code == MASK_FULL)
		*mask = varint_get(&dec->in);
	for (unsigned i = 0; code != MASK_FULL && i < code; i++) {
		if (dec->in.p >= dec->in.end || (bit = *dec->in.p++) >= 64)
			return false;
		*mask ^= UINT64_C(1) << bit;
	}
	return !dec->in.bad && (dec->n_fields == 64 || !(*mask >> dec->n_fields));
}

/* base + a zigzag difference, as long as it is a u32 */
static bool moved_u32(uint32_t *value, uint64_t z)
{
	uint64_t v = *value + unzigzag(z);

	*value = (uint32_t)v;
	return v <= UINT32_MAX;
}

/* Undoes residues(): d has each present field, 0 for the others; c holds the expected face. */
static bool apply(struct pcptune_cpu *c, const uint64_t *d)
{
	unsigned shift = d[F_hold_raw] ? 0 : 6;
	uint32_t logged = (uint32_t)d[F_flags] & ~(uint32_t)PCPTUNE_CPU_LISTS_ONLY;
	bool good = d[F_flags] <= UINT32_MAX && moved_u32(&c->count, d[F_count]);

	c->flags = (REST(c->flags) | PCPTUNE_CPU_ACTIVE) ^ logged;
#define PCPTUNE_GAUGE(field, unit, line, para) good &= moved_u32(&c->field, d[F_##field]);
#define PCPTUNE_LIST(field, unit, line, para)  c->field = d[F_##field];
#define PCPTUNE_ZCTR(field, unit, line, para)  c->field = d[F_##field];
#define PCPTUNE_PCTR(field, unit, line, para)  c->field = d[F_##field];
#include <pcptune/counters.def>
#define PREDICTED(field) c->field = EXPECT_##field(c) + unzigzag(d[F_##field])
	PREDICTED(free_pages);
	PREDICTED(alloc_zone);
	PREDICTED(free_zone);
	PREDICTED(lock_alloc_taken);
	PREDICTED(lock_free_taken);
#undef PREDICTED
	c->lock_alloc_hold_ns <<= shift;
	c->lock_free_hold_ns <<= shift;
	c->lock_agent_hold_ns <<= shift;
	if (c->flags & PCPTUNE_CPU_ACTIVE && !beyond_lists(c))
		c->flags |= PCPTUNE_CPU_LISTS_ONLY;
	return good;
}

static bool read_record(struct pcptune_decoder *dec, uint32_t index, unsigned code)
{
	uint64_t d[N_FIELDS] = {0}, v;
	uint64_t mask = dec->masks[index] ? dec->masks[index] : dec->mask;

	if (!read_mask(dec, code, &mask))
		return false;
	dec->masks[index] = dec->mask = mask;
	d[F_hold_raw] = mask & 1;
	for (mask &= ~UINT64_C(1); mask; mask &= mask - 1) {
		unsigned field = dec->fields[__builtin_ctzll(mask)];

		v = varint_get(&dec->in);
		if (field != FIELD_SKIP)
			d[field] = v;
	}
	return !dec->in.bad && apply(&dec->cpus[index], d);
}

/* The face of `from` at rest into every CPU of [from + 1, to). */
static void copy_right(struct pcptune_decoder *dec, uint32_t from, uint32_t to)
{
	struct face left = rest_face(FACE(&dec->cpus[from]));

	for (uint32_t i = from + 1; i < to; i++)
		memcpy(&dec->cpus[i].flags, &left, sizeof(left));
}

static bool read_records(struct pcptune_decoder *dec, uint32_t n, bool first)
{
	uint32_t next = 0;

	for (uint32_t k = 0; k < n; k++) {
		uint64_t head = varint_get(&dec->in);
		uint64_t index = next + (head >> 2);

		if (dec->in.bad || head >> 34 || index >= dec->n_cpus)
			return false;
		if (first && next)
			copy_right(dec, next - 1, (uint32_t)index + 1);
		if (!read_record(dec, (uint32_t)index, head & 3))
			return false;
		dec->records[dec->n_records++] = (uint32_t)index;
		if (dec->cpus[index].flags & PCPTUNE_CPU_ACTIVE)
			dec->active[dec->sample.n_active++] = (uint32_t)index;
		next = (uint32_t)index + 1;
	}
	if (first && next)
		copy_right(dec, next - 1, dec->n_cpus);
	return true;
}

/* The CPUs of the last sample's records come to rest. */
static void rest_all(struct pcptune_decoder *dec)
{
	for (uint32_t k = 0; k < dec->n_records; k++) {
		struct pcptune_cpu *c = &dec->cpus[dec->records[k]];
		const size_t counters = offsetof(struct pcptune_cpu, alloc_pages);

		c->flags = REST(c->flags);
		memset((char *)c + counters, 0, sizeof(*c) - counters);
	}
	dec->n_records = 0;
}

int decoder_next(struct pcptune_decoder *dec, const struct pcptune_sample **ret)
{
	bool first = !dec->begun;
	uint32_t n;

	if (dec->damaged)
		return -EBADMSG;
	if (dec->in.p == dec->in.end)
		return 0;
	dec->damaged = true; /* until all of it was good */
	if (first && !read_chunk_head(dec))
		return -EBADMSG;
	rest_all(dec);
	if (!read_sample_head(dec, &n) || !read_records(dec, n, first))
		return -EBADMSG;
	dec->begun = true;
	dec->damaged = false;
	*ret = &dec->sample;
	return 1;
}
