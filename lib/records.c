/* SPDX-License-Identifier: MIT */
/*
 * The coding of records, see records.h.
 *
 *   data    version, then records
 *   record  enum presence, index, seq, time, dt, parts; moves and pages, each less what it follows
 *           from; settings; then the band
 *   band    start, turning points as differences, buckets that are not empty: their distance, their
 *           count, and their sum less the smallest that so many can have
 *
 * Numbers are prefix varints (lib/varint.h), differences modulo 2^64 and zigzag. A record can be
 * read without the ones before it.
 *
 * The values that a record must keep to (sane()) are asked of both sides: what was written can be
 * read, and what was read can be added up without overflow.
 */
#include "lib/records.h"

#include <errno.h>
#include <stdlib.h>

#define RECORDS_VERSION 1u
#define N_FIXED		26u
/* Longest record: fixed fields, turning points, three numbers a bucket; a varint is stored by 8. */
#define RECORD_MAX ((size_t)VARINT_MAX * (N_FIXED + PCPTUNE_BAND_STACK + 3 * PCPTUNE_BAND_BUCKETS))
#define MERGE_CPUS 128u /* unpacked at a time */

enum presence {
	P_BROKEN = 1u << 0,
	P_GIVEN = 1u << 1,
	P_MERGED = 1u << 2, /* parts, high_least, high_most */
	P_DIRECT = 1u << 3, /* alloc_direct, free_direct */
	P_LOCKS = 1u << 4,  /* free_high, lock_contended, lock_wait_ns, and taken not as expected */
	P_BEGIN = 1u << 5,  /* the first turning point is not where the record begins */
	P_ALL = (1u << 6) - 1,
};

/* ---- what can be computed with ---- */

static bool sane_position(int64_t x)
{
	return x <= RECORDS_POSITION_MAX && x >= -RECORDS_POSITION_MAX;
}

static bool sane_turns(const struct pcptune_band *b)
{
	if (b->n >= PCPTUNE_BAND_STACK || !sane_position(b->start))
		return false;
	for (uint32_t i = 0; i < b->n; i++)
		if (!sane_position(b->s[i]))
			return false;
	return true;
}

/* Of the buckets so far. */
struct cycles {
	uint64_t count, sum;
};

static bool sane_bucket(const struct pcptune_band *b, uint32_t i, struct cycles *all)
{
	uint64_t n = b->count[i], sum = b->sum[i];

	/* a sum below the bucket's edge would make differences wrap */
	if (n > RECORDS_SUM_MAX >> 24 || sum > RECORDS_SUM_MAX || sum < n * pcptune_band_edge(i))
		return false;
	all->sum += sum;
	all->count += n;
	return all->sum <= RECORDS_SUM_MAX && all->count <= RECORDS_SUM_MAX;
}

static bool sane_band(const struct pcptune_band *b)
{
	struct cycles all = {0, 0};

	if (!sane_turns(b))
		return false;
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++)
		if (!sane_bucket(b, i, &all))
			return false;
	return true;
}

static bool sane_numbers(const struct log_record *r)
{
	const uint64_t v[] = {r->r.dt_us,     r->r.refills,   r->r.refilled, r->r.drains,
			      r->r.drained,   r->alloc_pages, r->free_pages, r->alloc_direct,
			      r->free_direct, r->free_high,   r->lock_taken, r->lock_contended,
			      r->lock_wait_ns};

	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		if (v[i] > RECORDS_SUM_MAX)
			return false;
	return r->parts && !(r->r.flags & ~(uint32_t)PCPTUNE_RECORD_BROKEN);
}

static bool sane(const struct log_record *r)
{
	return sane_numbers(r) && sane_band(&r->r.band);
}

/* ---- writing ---- */

static uint32_t presence_of(const struct log_record *r)
{
	const struct pcptune_band *b = &r->r.band;
	uint32_t p = r->r.flags & PCPTUNE_RECORD_BROKEN ? P_BROKEN : 0;

	p |= r->given ? P_GIVEN : 0;
	p |= r->parts != 1 || r->high_least != r->high || r->high_most != r->high ? P_MERGED : 0;
	p |= r->alloc_direct || r->free_direct ? P_DIRECT : 0;
	p |= r->free_high || r->lock_contended || r->lock_wait_ns ||
			     r->lock_taken != r->r.refills + r->r.drains
		     ? P_LOCKS
		     : 0;
	return p | (b->n && b->s[0] != b->start ? P_BEGIN : 0);
}

static uint8_t *put_difference(uint8_t *p, uint64_t value, uint64_t expected)
{
	return varint_put(p, zigzag(value - expected));
}

static uint8_t *put_buckets(const struct pcptune_band *b, uint8_t *p)
{
	uint32_t n = 0, next = 0;

	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++)
		n += b->count[i] || b->sum[i];
	p = varint_put(p, n);
	for (uint32_t i = 0; n; i++) {
		if (!b->count[i] && !b->sum[i])
			continue;
		p = varint_put(p, i - next);
		p = varint_put(p, b->count[i]);
		p = varint_put(p, b->sum[i] - b->count[i] * pcptune_band_edge(i));
		next = i + 1;
		n--;
	}
	return p;
}

static uint8_t *put_band(const struct pcptune_band *b, uint32_t presence, uint8_t *p)
{
	int64_t last = b->start;

	p = varint_put(p, zigzag((uint64_t)b->start));
	p = varint_put(p, b->n);
	p = varint_put(p, b->collapsed);
	for (uint32_t i = presence & P_BEGIN ? 0 : 1; i < b->n; i++) {
		p = put_difference(p, (uint64_t)b->s[i], (uint64_t)last);
		last = b->s[i];
	}
	return put_buckets(b, p);
}

static uint8_t *put_counts(const struct log_record *r, uint32_t presence, uint8_t *p)
{
	const struct pcptune_record *k = &r->r;

	p = varint_put(p, k->refills);
	p = put_difference(p, k->refilled, k->refills * r->batch);
	p = varint_put(p, k->drains);
	p = put_difference(p, k->drained, k->drains * r->batch);
	p = varint_put(p, r->alloc_pages);
	p = put_difference(p, r->free_pages, r->alloc_pages);
	if (presence & P_DIRECT) {
		p = varint_put(p, r->alloc_direct);
		p = varint_put(p, r->free_direct);
	}
	if (presence & P_LOCKS) {
		p = varint_put(p, r->free_high);
		p = put_difference(p, r->lock_taken, k->refills + k->drains);
		p = varint_put(p, r->lock_contended);
		p = varint_put(p, r->lock_wait_ns);
	}
	return p;
}

static uint8_t *put_settings(const struct log_record *r, uint32_t presence, uint8_t *p)
{
	p = varint_put(p, r->count);
	p = varint_put(p, r->high);
	p = varint_put(p, r->batch);
	p = varint_put(p, r->scale_max);
	p = varint_put(p, r->rules);
	if (presence & P_MERGED) {
		p = varint_put(p, r->parts);
		p = put_difference(p, r->high_least, r->high);
		p = put_difference(p, r->high_most, r->high);
	}
	return p;
}

static int make_room(struct records_writer *w, size_t more)
{
	size_t need = w->len + more, room = w->room ? w->room : 256;
	uint8_t *grown;

	if (need <= w->room)
		return 0;
	while (room < need)
		room *= 2;
	grown = realloc(w->data, room);
	if (!grown)
		return -ENOMEM;
	w->data = grown;
	w->room = room;
	return 0;
}

static uint8_t *put_record(const struct log_record *r, uint32_t presence, uint8_t *p)
{
	p = varint_put(p, presence);
	p = varint_put(p, r->r.index);
	p = varint_put(p, r->seq);
	p = varint_put(p, r->time_us);
	p = varint_put(p, r->r.dt_us);
	p = put_settings(r, presence, p); /* before the counts, which follow from batch */
	p = put_counts(r, presence, p);
	return put_band(&r->r.band, presence, p);
}

int records_add(struct records_writer *w, const struct log_record *r)
{
	uint8_t packed[1 + RECORD_MAX], *p = packed;

	if (!sane(r))
		return -ERANGE;
	if (!w->len)
		*p++ = RECORDS_VERSION;
	p = put_record(r, presence_of(r), p);
	if (make_room(w, (size_t)(p - packed)))
		return -ENOMEM;
	memcpy(w->data + w->len, packed, (size_t)(p - packed));
	w->len += (size_t)(p - packed);
	w->seq_first = !w->n || r->seq < w->seq_first ? r->seq : w->seq_first;
	w->seq_last = !w->n || r->seq > w->seq_last ? r->seq : w->seq_last;
	w->time_us = !w->n || r->time_us > w->time_us ? r->time_us : w->time_us;
	w->n++;
	return 0;
}

void records_reset(struct records_writer *w)
{
	w->len = 0;
	w->n = 0;
}

void records_free(struct records_writer *w)
{
	free(w->data);
	*w = (struct records_writer){0};
}

/* ---- reading ---- */

void records_begin(struct records_reader *rd, const uint8_t *data, size_t len)
{
	*rd = (struct records_reader){.in = {data, len ? data + len : data, false}};
}

static uint64_t get_difference(struct varint_input *in, uint64_t expected)
{
	return expected + unzigzag(varint_get(in));
}

static uint32_t get_u32(struct varint_input *in)
{
	uint64_t v = varint_get(in);

	in->bad |= v > UINT32_MAX;
	return (uint32_t)v;
}

static uint32_t get_u32_difference(struct varint_input *in, uint32_t expected)
{
	uint64_t v = get_difference(in, expected);

	in->bad |= v > UINT32_MAX;
	return (uint32_t)v;
}

static void get_settings(struct varint_input *in, uint32_t presence, struct log_record *r)
{
	r->count = get_u32(in);
	r->high = r->high_least = r->high_most = get_u32(in);
	r->batch = get_u32(in);
	r->scale_max = get_u32(in);
	r->rules = get_u32(in);
	r->parts = 1;
	if (presence & P_MERGED) {
		r->parts = get_u32(in);
		r->high_least = get_u32_difference(in, r->high);
		r->high_most = get_u32_difference(in, r->high);
	}
}

static void get_counts(struct varint_input *in, uint32_t presence, struct log_record *r)
{
	struct pcptune_record *k = &r->r;

	k->refills = varint_get(in);
	k->refilled = get_difference(in, k->refills * r->batch);
	k->drains = varint_get(in);
	k->drained = get_difference(in, k->drains * r->batch);
	r->alloc_pages = varint_get(in);
	r->free_pages = get_difference(in, r->alloc_pages);
	if (presence & P_DIRECT) {
		r->alloc_direct = varint_get(in);
		r->free_direct = varint_get(in);
	}
	r->lock_taken = k->refills + k->drains;
	if (presence & P_LOCKS) {
		r->free_high = varint_get(in);
		r->lock_taken = get_difference(in, r->lock_taken);
		r->lock_contended = varint_get(in);
		r->lock_wait_ns = varint_get(in);
	}
}

/* The buckets that it does not name are empty already. */
static bool get_buckets(struct varint_input *in, struct pcptune_band *b)
{
	uint64_t n = varint_get(in), next = 0;
	struct cycles all = {0, 0};

	for (; n && !in->bad; n--) {
		uint64_t i = next + varint_get(in);

		if (in->bad || i >= PCPTUNE_BAND_BUCKETS || i < next)
			return false;
		b->count[i] = varint_get(in);
		b->sum[i] = varint_get(in) + b->count[i] * pcptune_band_edge((uint32_t)i);
		if (!sane_bucket(b, (uint32_t)i, &all))
			return false;
		next = i + 1;
	}
	return !in->bad;
}

static bool get_band(struct varint_input *in, uint32_t presence, struct pcptune_band *b)
{
	uint64_t last;

	last = unzigzag(varint_get(in));
	b->start = (int64_t)last;
	b->n = get_u32(in);
	b->collapsed = get_u32(in);
	if (in->bad || b->n >= PCPTUNE_BAND_STACK)
		return false;
	b->s[0] = b->n ? b->start : 0;
	for (uint32_t i = presence & P_BEGIN ? 0 : 1; i < b->n; i++) {
		last = get_difference(in, last);
		b->s[i] = (int64_t)last;
	}
	return sane_turns(b) && get_buckets(in, b);
}

int records_next(struct records_reader *rd, struct log_record *ret)
{
	struct varint_input *in = &rd->in;
	uint32_t presence;

	if (!in->bad && in->p == in->end)
		return 0;
	if (!in->bad && !rd->begun)
		in->bad = *in->p++ != RECORDS_VERSION;
	rd->begun = true;
	*ret = (struct log_record){0};
	presence = get_u32(in);
	in->bad |= presence > P_ALL;
	ret->r.flags = presence & P_BROKEN ? PCPTUNE_RECORD_BROKEN : 0;
	ret->given = (presence & P_GIVEN) != 0;
	ret->r.index = get_u32(in);
	ret->seq = varint_get(in);
	ret->time_us = varint_get(in);
	ret->r.dt_us = varint_get(in);
	get_settings(in, presence, ret);
	get_counts(in, presence, ret);
	in->bad |= !get_band(in, presence, &ret->r.band) || !sane_numbers(ret);
	return in->bad ? -EBADMSG : 1;
}

/* ---- merging ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static bool meet(const struct log_record *a, const struct log_record *b)
{
	const struct pcptune_band *x = &a->r.band, *y = &b->r.band;

	return !(b->r.flags & PCPTUNE_RECORD_BROKEN) &&
	       (!x->n || !y->n || pcptune_band_now(x) == y->start);
}

static void merge_settings(struct log_record *a, const struct log_record *b)
{
	a->high_least = least(a->high_least, b->high_least);
	a->high_most = most(a->high_most, b->high_most);
	a->count = b->count;
	a->high = b->high;
	a->batch = b->batch;
	a->scale_max = b->scale_max;
	a->rules = b->rules;
	a->seq = b->seq;
	a->time_us = b->time_us;
	a->parts += b->parts;
	a->given = false;
}

bool log_record_merge(struct log_record *a, const struct log_record *b)
{
	struct log_record sum = *a;

	if (!meet(a, b))
		return false;
	sum.r.dt_us += b->r.dt_us;
	sum.r.refills += b->r.refills;
	sum.r.refilled += b->r.refilled;
	sum.r.drains += b->r.drains;
	sum.r.drained += b->r.drained;
	sum.alloc_pages += b->alloc_pages;
	sum.free_pages += b->free_pages;
	sum.alloc_direct += b->alloc_direct;
	sum.free_direct += b->free_direct;
	sum.free_high += b->free_high;
	sum.lock_taken += b->lock_taken;
	sum.lock_contended += b->lock_contended;
	sum.lock_wait_ns += b->lock_wait_ns;
	pcptune_band_merge(&sum.r.band, &b->r.band);
	merge_settings(&sum, b);
	if (!sane(&sum))
		return false;
	*a = sum;
	return true;
}

struct merging {
	struct log_record cpu[MERGE_CPUS];
	bool any[MERGE_CPUS];
	uint64_t first,
		beyond; /* index of cpu[0]; the smallest above all of them, UINT64_MAX: none */
	struct records_writer *w;
};

static int merge_record(struct merging *m, const struct log_record *r)
{
	uint64_t at = r->r.index - m->first;
	int e;

	if ((uint64_t)r->r.index < m->first)
		return 0;
	if (at >= MERGE_CPUS) {
		m->beyond = r->r.index < m->beyond ? r->r.index : m->beyond;
		return 0;
	}
	if (m->any[at] && log_record_merge(&m->cpu[at], r))
		return 0;
	e = m->any[at] ? records_add(m->w, &m->cpu[at]) : 0;
	m->cpu[at] = *r;
	m->cpu[at].given = false;
	m->any[at] = true;
	return e;
}

/* One pass over all parts for MERGE_CPUS indexes from m->first on. */
static int merge_pass(struct merging *m, const struct records_part *parts, size_t n)
{
	struct log_record r;
	int e = 0, bad = 0;

	m->beyond = UINT64_MAX;
	for (uint32_t i = 0; i < MERGE_CPUS; i++)
		m->any[i] = false;
	for (size_t i = 0; i < n && !e; i++) {
		struct records_reader rd;

		records_begin(&rd, parts[i].data, parts[i].len);
		while (!e && (e = records_next(&rd, &r)) == 1)
			e = merge_record(m, &r);
		if (e == -EBADMSG) { /* the rest of this part is lost, but no other */
			bad = e;
			e = 0;
		}
	}
	for (uint32_t i = 0; i < MERGE_CPUS && !e; i++)
		if (m->any[i])
			e = records_add(m->w, &m->cpu[i]);
	return e ? e : bad;
}

int records_merge(const struct records_part *parts, size_t n, struct records_writer *w)
{
	struct merging *m = malloc(sizeof(*m));
	int e = 0, bad = 0;

	if (!m)
		return -ENOMEM;
	m->w = w;
	m->first = 0;
	do {
		e = merge_pass(m, parts, n);
		bad = e == -EBADMSG ? e : bad;
		m->first = m->beyond;
	} while ((!e || e == -EBADMSG) && m->first != UINT64_MAX);
	free(m);
	return e && e != -EBADMSG ? e : bad;
}
