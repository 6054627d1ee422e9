/* SPDX-License-Identifier: MIT */
/*
 * Putting a walk together from its record, and lists along it; see likeness.h.
 *
 * Turning points are a list by next[] while they are put together: a cycle goes into the leg from
 * one to the next. Whatever its amplitude each leg that is left is as long at least, so how many
 * places there are for the next is known from sums over legs alone, and a Fenwick tree finds one.
 * Records with many cycles are thinned out evenly, of those with few several walks are made, one
 * after the other, so that chance matters less. The walk is kept short enough for some
 * milliseconds.
 */
#include "eval/likeness.h"

#include <errno.h>
#include <stdlib.h>
#include "eval/chance.h"
#include "eval/lists.h"

#define WALKS_MOST  8u	 /* one after the other */
#define STRAYS_MOST 20u	 /* breaks on all of them for each cycle, about */
#define TRIES	    200u /* for a leg that is long enough */
#define LEG_HIGHS   16u	 /* legs are at most so many times high */
#define WORK_MOST   150u /* runs, and moves of a batch, for each cycle */

/* ---- what the record says ---- */

static uint32_t first_bucket(void)
{
	return pcptune_band_bucket(LIKENESS_STRAY);
}

static uint64_t cycles_of(const struct pcptune_band *b)
{
	uint64_t n = 0;

	for (uint32_t i = first_bucket(); i < PCPTUNE_BAND_BUCKETS; i++)
		n += b->count[i];
	return n;
}

static void find_breaks(struct likeness *l, const struct pcptune_band *b, uint64_t pages)
{
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++) {
		if (i >= first_bucket()) {
			l->pages += 2 * b->sum[i];
			continue;
		}
		l->strays += b->count[i];
		l->stray_pages += b->sum[i];
	}
	for (uint32_t i = 1; i < b->n; i++)
		l->pages += pcptune_band_range(b->s[i], b->s[i - 1]);
	if (pages > l->pages + 2 * l->stray_pages)
		l->hidden = (pages - l->pages - 2 * l->stray_pages) / 2 >> l->order;
}

/* ---- one walk ---- */

struct making {
	int64_t *v;
	uint32_t *next;
	/* sums over legs, as a Fenwick tree: how many are in play, and their lengths */
	uint64_t *legs, *length;
	uint32_t n, room, last;
	uint32_t waiting; /* of the record's own legs those too short as yet, a bit for each */
	int32_t evenness;
	uint64_t chance;
};

static uint64_t leg_of(const struct making *m, uint32_t at)
{
	return pcptune_band_range(m->v[at], m->v[m->next[at]]);
}

static void add_to_sums(struct making *m, uint32_t at, uint64_t legs, uint64_t length)
{
	for (uint32_t i = at + 1; i <= m->room; i += i & (0 - i)) {
		m->legs[i] += legs;
		m->length[i] += length;
	}
}

/*
 * Where a cycle may begin: any page of any leg from which on the leg is as long as it. Each leg in
 * play is amplitude or longer. ret_to: how far from the beginning of the leg its end lies.
 */
static bool find_place(struct making *m, uint64_t amplitude, uint32_t *ret_at, uint64_t *ret_to)
{
	uint64_t legs = 0, places = 0, pick;
	uint32_t at = 0, top = 1;

	for (uint32_t i = m->room; i; i -= i & (0 - i)) {
		legs += m->legs[i];
		places += m->length[i];
	}
	places -= legs * (amplitude - 1);
	if (!legs || !places)
		return false;
	pick = chance_below(&m->chance, places);
	while (2 * top <= m->room)
		top *= 2;
	for (; top; top /= 2) {
		uint64_t here;

		if (at + top > m->room)
			continue;
		here = m->length[at + top] - m->legs[at + top] * (amplitude - 1);
		if (here > pick)
			continue;
		pick -= here;
		at += top;
	}
	*ret_at = at;
	*ret_to = amplitude + pick;
	/* of a damaged record sums may be anything */
	return at < m->n && *ret_to >= amplitude && *ret_to <= leg_of(m, at);
}

/* Legs of the record that are long enough for what comes from now on. */
static void put_in_play(struct making *m, uint64_t amplitude)
{
	for (uint32_t left = m->waiting; left; left &= left - 1) {
		uint32_t at = (uint32_t)__builtin_ctz(left);

		if (leg_of(m, at) < amplitude)
			continue;
		add_to_sums(m, at, 1, leg_of(m, at));
		m->waiting &= ~(1u << at);
	}
}

/* Any leg of those that are long enough, whatever their lengths. */
static bool find_leg(struct making *m, uint64_t amplitude, uint32_t *ret_at, uint64_t *ret_to)
{
	for (uint32_t tries = 0; tries < TRIES; tries++) {
		uint32_t at = (uint32_t)chance_below(&m->chance, m->n);
		uint64_t length = at == m->last ? 0 : leg_of(m, at);

		if (length < amplitude || at == m->last)
			continue;
		*ret_at = at;
		*ret_to = amplitude + chance_below(&m->chance, length - amplitude + 1);
		return true;
	}
	return false;
}

/* By evenness: of several places the one in the longest leg, or in the shortest. */
static bool choose_place(struct making *m, uint64_t amplitude, uint32_t *ret_at, uint64_t *ret_to)
{
	bool longest = m->evenness > 0;
	uint32_t left = (uint32_t)(longest ? m->evenness : -m->evenness), at;
	bool any = !longest && chance_below(&m->chance, LIKENESS_ONE) < left;
	bool (*find)(struct making *, uint64_t, uint32_t *, uint64_t *) =
		any ? find_leg : find_place;
	uint64_t to;

	if (!longest)
		left = any && left > LIKENESS_ONE ? left - LIKENESS_ONE : 0;
	if (!find(m, amplitude, ret_at, ret_to))
		return false;
	while (chance_below(&m->chance, LIKENESS_ONE) < left) {
		left -= left < LIKENESS_ONE ? left : LIKENESS_ONE;
		if (find(m, amplitude, &at, &to) &&
		    (leg_of(m, at) > leg_of(m, *ret_at)) == longest) {
			*ret_at = at;
			*ret_to = to;
		}
	}
	return true;
}

static void add_cycle(struct making *m, uint64_t amplitude)
{
	uint32_t at, a = m->n, b = m->n + 1;
	uint64_t length, to;
	bool up;

	put_in_play(m, amplitude);
	if (b >= m->room || !choose_place(m, amplitude, &at, &to))
		return;
	length = leg_of(m, at);
	up = m->v[m->next[at]] > m->v[at];
	m->v[a] = up ? m->v[at] + (int64_t)to : m->v[at] - (int64_t)to;
	m->v[b] = up ? m->v[a] - (int64_t)amplitude : m->v[a] + (int64_t)amplitude;
	m->next[a] = b;
	m->next[b] = m->next[at];
	m->next[at] = a;
	m->n += 2;
	add_to_sums(m, at, 0, to - length);
	add_to_sums(m, a, 1, amplitude);
	add_to_sums(m, b, 1, length - to + amplitude);
}

/* One cycle in so many of each bucket, from the largest on. */
static void add_cycles(struct making *m, const struct pcptune_band *b, uint64_t one_in)
{
	for (uint32_t i = PCPTUNE_BAND_BUCKETS; i-- > first_bucket();) {
		uint64_t n = (b->count[i] + chance_below(&m->chance, one_in)) / one_in, lo, width;

		if (!b->count[i])
			continue;
		lo = pcptune_band_edge(i);
		width = 2 * (b->sum[i] / b->count[i] - lo) + 1;
		for (uint64_t k = n; k--;)
			add_cycle(m, lo + (k * width + chance_below(&m->chance, width)) / n);
	}
}

/* Behind what is there already. */
static int take_over(struct likeness *l, const struct making *m)
{
	int64_t by = l->n ? l->x[l->n - 1] - m->v[0] : 0;

	if (l->room - l->n < m->n) {
		uint32_t room = 2 * l->room + m->n;
		int64_t *grown = reallocarray(l->x, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		l->x = grown;
		l->room = room;
	}
	for (uint32_t at = 0;; at = m->next[at]) {
		l->x[l->n++] = m->v[at] + by;
		if (at == m->last)
			return 0;
	}
}

static int add_walk(struct likeness *l, const struct pcptune_band *b, uint64_t one_in,
		    int32_t evenness, uint64_t seed)
{
	/* of each bucket one more than its share, at most */
	uint32_t room =
		PCPTUNE_BAND_STACK + 2 * (uint32_t)(cycles_of(b) / one_in + PCPTUNE_BAND_BUCKETS);
	struct making m = {.v = calloc(room, sizeof(*m.v)),
			   .next = calloc(room, sizeof(*m.next)),
			   .legs = calloc(room + 1, sizeof(*m.legs)),
			   .length = calloc(room + 1, sizeof(*m.length)),
			   .room = room,
			   .evenness = evenness,
			   .chance = (seed + 1) * CHANCE_SEED};
	int e = m.v && m.next && m.legs && m.length ? 0 : -ENOMEM;

	for (uint32_t i = 0; !e && i < b->n; i++) {
		m.v[i] = b->s[i];
		m.next[i] = i + 1;
	}
	m.n = b->n;
	m.last = m.n - 1;
	m.waiting = m.n > 1 ? (1u << (m.n - 1)) - 1 : 0;
	if (!e && m.n > 1)
		add_cycles(&m, b, one_in);
	if (!e)
		e = take_over(l, &m);
	free(m.v);
	free(m.next);
	free(m.legs);
	free(m.length);
	return e;
}

int likeness_make(struct likeness *l, const struct pcptune_band *b, uint64_t pages, uint32_t order,
		  int32_t evenness, uint32_t cycles)
{
	uint64_t n = cycles_of(b), most = cycles, breaks, one_in, walks;
	int e = 0;

	*l = (struct likeness){.order = order, .cycles = cycles};
	if (!b->n)
		return 0;
	find_breaks(l, b, pages);
	breaks = l->strays + l->hidden < l->pages ? l->strays + l->hidden : l->pages;
	if (n && breaks / n > STRAYS_MOST)
		most = STRAYS_MOST * cycles / (breaks / n) + 1;
	one_in = n / most + 1;
	walks = n && n < most ? most / n : 1;
	walks = walks > WALKS_MOST ? WALKS_MOST : walks;
	for (uint64_t i = 0; !e && i < walks; i++)
		e = add_walk(l, b, one_in, evenness, i);
	for (uint32_t i = 0; i < l->n; i++)
		l->x[i] >>= order;
	return e;
}

void likeness_free(struct likeness *l)
{
	free(l->x);
}

/* ---- lists along it ---- */

/* Breaks come after one block to twice the mean of the blocks between them. */
struct breaks {
	uint64_t gap, size; /* blocks; gap 0: there are none */
	uint64_t left;
	uint32_t order;
	uint64_t chance;
};

/*
 * As it is where any block may be followed by a break: most gaps are short, some long. Of a random
 * number u of 48 bits -ln u, in 1 / 65536, log2(1 + f) being f + 0.344 f (1 - f) or nearly so.
 */
static uint64_t minus_ln(uint64_t *chance)
{
	uint64_t u = chance_below(chance, (UINT64_C(1) << 48) - 1) + 1;
	uint32_t e = 63u - (uint32_t)__builtin_clzll(u);
	uint64_t f = (u << (63 - e) << 1) >> 48, log2 = f + (f * (65536 - f) >> 16) * 22544 / 65536;

	return ((uint64_t)(48 - e) * 65536 - log2) * 45426 / 65536;
}

static void next_break(struct breaks *k)
{
	k->left = k->gap ? 1 + (k->gap * minus_ln(&k->chance) >> 16) : UINT64_MAX;
}

/* What a run of so many blocks takes: single pages are moved at once, others one by one. */
static uint64_t cost_of(const struct lists *l, uint32_t order, uint64_t run)
{
	return 1 + (order ? run / 4 : run / l->st.batch);
}

/* by: blocks. Returns how far it came before there was no work left. */
static int64_t walk_leg(struct lists *l, struct breaks *k, int64_t by, uint64_t *work)
{
	uint64_t all = pcptune_band_range(by, 0), left;
	uint64_t most = 1 + (LEG_HIGHS * (uint64_t)l->st.high >> k->order);
	int64_t way = by > 0 ? 1 : -1;

	all = all < most ? all : most;
	left = all;
	while (left && *work) {
		uint64_t run = left < k->left ? left : k->left, cost = cost_of(l, k->order, run);

		lists_move(l, k->order, way * (int64_t)run);
		left -= run;
		k->left -= run;
		*work -= cost < *work ? cost : *work;
		if (k->left)
			continue;
		lists_move(l, k->order, -way * (int64_t)k->size);
		lists_move(l, k->order, way * (int64_t)k->size);
		next_break(k);
	}
	return way * (int64_t)(all - left);
}

void likeness_play(const struct likeness *l, const struct likeness_limits *m, uint64_t hidden,
		   struct likeness_moves *ret)
{
	uint64_t unseen = (l->hidden >> 16) * hidden + ((l->hidden & 65535) * hidden >> 16);
	uint64_t n = l->strays + unseen, blocks = l->pages >> l->order,
		 work = (uint64_t)WORK_MOST * l->cycles;
	struct breaks k = {.order = l->order, .chance = CHANCE_SEED};
	struct lists at = {0};
	int64_t x = 0;

	k.size = n ? ((l->stray_pages >> l->order) + unseen) / n : 1;
	k.size = k.size ? k.size : 1;
	k.gap = !n ? 0 : blocks > n ? blocks / n : 1;
	next_break(&k);
	lists_limits(&at, m->high, m->high, m->high, m->batch, m->scale_max, m->rules);
	pcptune_band_init(&ret->band);
	pcptune_band_push(&ret->band, x);
	for (uint32_t i = 1; i < l->n && work; i++) {
		x += walk_leg(&at, &k, l->x[i] - l->x[i - 1], &work);
		pcptune_band_push(&ret->band, x * (INT64_C(1) << l->order));
	}
	ret->refilled = at.alloc_zone;
	ret->refills = at.refills;
	ret->drained = at.free_zone;
	ret->drains = at.drains;
}
