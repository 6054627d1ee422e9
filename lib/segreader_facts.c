/* SPDX-License-Identifier: MIT */
/*
 * What a segment says of the target, its zones and its fields: read now and then, a word at a time,
 * each bounded to what can be.
 */
#include "lib/segreader_private.h"

#include <string.h>

/* More than any machine has; 64 zones of them still add up. */
#define PAGES_MAX (UINT64_C(1) << 40)

static int32_t zone_node(const struct segreader *sr, uint32_t zone)
{
	int32_t node = LOAD(&zone_block(sr, zone)->node);

	return node >= -1 && node < 4096 ? node : -1;
}

void segreader_info(const struct segreader *sr, struct segreader_info *ret)
{
	memset(ret, 0, sizeof(*ret));
	memcpy(ret->name, sr->h.name, sizeof(ret->name));
	ret->pid = sr->h.pid;
	ret->start_boot_ns = sr->h.start_boot_ns;
	ret->random_id = sr->h.random_id;
	ret->run_tag = sr->h.run_tag;
	ret->n_zones = sr->h.n_zones;
	ret->n_cpus = sr->h.n_cpus;
	ret->n_lists = sr->h.n_lists;
	ret->flags = LOAD(&live_header(sr)->flags);
	ret->grain = sr->h.tracks_off ? min_u32(sr->h.grain, PCPTUNE_MAX_HIGH) : 0;
	ret->bytes = sr->bytes;
	for (uint32_t z = 0; z < sr->h.n_zones; z++)
		ret->nodes[z] = zone_node(sr, z);
}

uint32_t segreader_mode(const struct segreader *sr)
{
	uint32_t mode = LOAD(&live_header(sr)->mode);

	return mode <= PCPTUNE_MODE_RSEQ ? mode : PCPTUNE_MODE_OFF;
}

void segreader_shape(const struct segreader *sr, struct pcptune_shape *shape)
{
	uint32_t limit = PCPTUNE_MAX_HIGH;

	shape->size = sizeof(*shape);
	shape->n_zones = sr->h.n_zones;
	shape->n_cpus = sr->h.n_cpus;
	shape->managed_pages = shape->low_wmark_pages = 0;
	for (uint32_t z = 0; z < sr->h.n_zones; z++) {
		uint64_t managed = LOAD(&zone_block(sr, z)->managed_pages);
		uint64_t low = LOAD(&zone_block(sr, z)->low_wmark_pages);

		shape->managed_pages += managed < PAGES_MAX ? managed : PAGES_MAX;
		shape->low_wmark_pages += low < PAGES_MAX ? low : PAGES_MAX;
	}
	for (uint32_t i = 0; i < sr->n; i++) {
		uint32_t own = LOAD(&cpu_block(sr, i)->pcp.high_limit);

		if (own) /* 0: a slot that was never used */
			limit = min_u32(limit, own);
	}
	shape->high_limit = limit;
}

void segreader_zone(const struct segreader *sr, uint32_t zone, struct segreader_zone *ret)
{
	const struct pcptune_zone_block *b = zone_block(sr, zone);

	ret->id = LOAD(&b->id);
	ret->node = zone_node(sr, zone);
#define PCPTUNE_ZGAUGE(field, unit, line, para) ret->field = LOAD(&b->field);
#define PCPTUNE_HOLD(field, unit, line, para)	ret->field = LOAD(&b->field);
#include <pcptune/counters.def>
}

uint64_t segreader_long_holds(const struct segreader *sr)
{
	uint64_t sum = 0;

	for (uint32_t z = 0; z < sr->h.n_zones; z++) {
		const struct pcptune_zone_block *b = zone_block(sr, z);
		size_t at = offsetof(struct pcptune_zone_block, hold_from_65536ns);

		for (; at <= offsetof(struct pcptune_zone_block, hold_from_8388608ns);
		     at += sizeof(uint64_t))
			sum += LOAD((const uint64_t *)(const void *)((const char *)b + at));
	}
	return sum;
}

uint64_t segreader_hold_ns(const struct segreader_zone *z, unsigned permille)
{
	const uint64_t rows[] = {
#define PCPTUNE_HOLD(field, unit, line, para) z->field,
#include <pcptune/counters.def>
	};
	const size_t n = sizeof(rows) / sizeof(rows[0]);
	uint64_t all = 0, seen = 0, most = 0;

	/* a target may write anything: shares of at most 2^48 each can not overflow */
	for (size_t i = 0; i < n; i++)
		all += rows[i] >> 48 ? UINT64_C(1) << 48 : rows[i];
	for (size_t i = 0; i < n && (!seen || seen * 1000 < all * permille); i++) {
		seen += rows[i] >> 48 ? UINT64_C(1) << 48 : rows[i];
		most = i + 1 == n ? UINT64_MAX : (UINT64_C(64) << i) - 1;
	}
	if (!seen)
		return 0;
	return most < z->hold_max_ns ? most : z->hold_max_ns;
}

void segreader_proc(const struct segreader *sr, struct segreader_proc *ret)
{
	const struct pcptune_proc_block *b = (const void *)(sr->base + sr->h.proc_off);

#define PCPTUNE_PROC(field, unit, line, para) ret->field = LOAD(&b->field);
#include <pcptune/counters.def>
}

static bool desc_valid(const struct pcptune_desc *d)
{
	if (d->kind != PCPTUNE_KIND_COUNTER && d->kind != PCPTUNE_KIND_GAUGE)
		return false;
	if (d->level < PCPTUNE_LEVEL_CPU || d->level > PCPTUNE_LEVEL_PROC)
		return false;
	return d->name[0] && (d->width == 0 || d->width == 4 || d->width == 8);
}

bool segreader_desc(const struct segreader *sr, uint32_t i, struct pcptune_desc *ret)
{
	union {
		struct pcptune_desc d;
		uint64_t words[sizeof(struct pcptune_desc) / 8];
	} row;
	const uint64_t *from;

	if (i >= sr->h.n_desc)
		return false;
	from = (const void *)(sr->base + sr->h.desc_off + (uint64_t)i * sr->h.desc_size);
	for (size_t k = 0; k < sizeof(row.words) / sizeof(row.words[0]); k++)
		row.words[k] = LOAD(&from[k]);
	if (!desc_valid(&row.d))
		return false;
	segreader_printable(row.d.name, sizeof(row.d.name));
	segreader_printable(row.d.unit, sizeof(row.d.unit));
	segreader_printable(row.d.line, sizeof(row.d.line));
	*ret = row.d;
	return true;
}
