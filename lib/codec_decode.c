/* SPDX-License-Identifier: MIT */
/*
 * Samples out of a chunk, whoever wrote it: each length, index and shift is checked before it is
 * used, and what makes no sense ends the chunk with an error. codec.c has the format.
 */
#include "lib/codec_private.h"
#include "lib/varint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	dec = codec_zeroed(1, sizeof(*dec));
	if (!dec)
		return -ENOMEM;
	dec->n_zones = n_zones;
	dec->n_cpus_per_zone = n_cpus_per_zone;
	dec->n_cpus = (uint32_t)n;
	dec->cpus = codec_zeroed(n, sizeof(*dec->cpus));
	dec->masks = codec_zeroed(n, sizeof(*dec->masks));
	dec->active = codec_zeroed(n, sizeof(*dec->active));
	dec->records = codec_zeroed(n, sizeof(*dec->records));
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
