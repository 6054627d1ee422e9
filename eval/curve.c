/* SPDX-License-Identifier: MIT */
/*
 * The exact traffic curve: a growing stack of turning points and a table of amplitudes.
 *
 * While the walk goes on, amplitudes are counted in an open-addressed table (linear probing, at
 * most half full). Sealing sorts it and adds up from the large end, so that a question costs one
 * binary search and one pass over the open turning points.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "eval/curve.h"

#define SLOTS_FIRST 64u

void curve_init(struct curve *c)
{
	memset(c, 0, sizeof(*c));
}

void curve_free(struct curve *c)
{
	free(c->s);
	free(c->closed);
	free(c->cycles);
	free(c->above_count);
	free(c->above_sum);
	curve_init(c);
}

/* ---- counting ---- */

static size_t slot_of(const struct curve_cycles *table, size_t slots, uint64_t amplitude)
{
	size_t i = (size_t)((amplitude * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (slots - 1);

	while (table[i].amplitude && table[i].amplitude != amplitude)
		i = (i + 1) & (slots - 1);
	return i;
}

/* Room for `more` new amplitudes. */
static int table_room(struct curve *c, size_t more)
{
	size_t slots = c->slots ? c->slots : SLOTS_FIRST;
	struct curve_cycles *grown;

	while (2 * (c->n_cycles + more) > slots)
		slots *= 2;
	if (slots == c->slots)
		return 0;
	grown = calloc(slots, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	for (size_t i = 0; i < c->slots; i++)
		if (c->cycles[i].amplitude)
			grown[slot_of(grown, slots, c->cycles[i].amplitude)] = c->cycles[i];
	free(c->cycles);
	c->cycles = grown;
	c->slots = slots;
	return 0;
}

static void table_count(struct curve *c, uint64_t amplitude, uint64_t count)
{
	struct curve_cycles *slot = &c->cycles[slot_of(c->cycles, c->slots, amplitude)];

	c->n_cycles += !slot->amplitude;
	slot->amplitude = amplitude;
	slot->count += count;
}

static int stack_room(struct curve *c)
{
	uint32_t room = c->room ? 2 * c->room : PCPTUNE_BAND_STACK;
	uint64_t *closed;
	int64_t *s;

	if (c->n < c->room)
		return 0;
	s = reallocarray(c->s, room, sizeof(*s));
	if (!s)
		return -ENOMEM;
	c->s = s;
	closed = reallocarray(c->closed, room, sizeof(*closed));
	if (!closed)
		return -ENOMEM;
	c->closed = closed;
	c->room = room;
	return 0;
}

int curve_push(struct curve *c, int64_t x)
{
	uint32_t n;

	if (stack_room(c) || table_room(c, c->n / 2 + 1))
		return -ENOMEM;
	if (!c->n)
		c->start = c->least = c->most = x;
	c->least = x < c->least ? x : c->least;
	c->most = x > c->most ? x : c->most;
	n = pcptune_turns_push(c->s, &c->n, x, c->closed);
	for (uint32_t i = 0; i < n; i++)
		table_count(c, c->closed[i], 1);
	return 0;
}

int curve_from_band(struct curve *c, const struct pcptune_band *b)
{
	int r = b->n ? curve_push(c, b->start) : 0;

	for (uint32_t i = 0; !r && i < b->n; i++)
		r = curve_push(c, b->s[i]);
	if (!r)
		r = table_room(c, (size_t)2 * PCPTUNE_BAND_BUCKETS);
	for (uint32_t i = 1; !r && i < PCPTUNE_BAND_BUCKETS; i++) {
		uint64_t n = b->count[i], mean = n ? b->sum[i] / n : 0,
			 more = n ? b->sum[i] % n : 0;

		if (n - more)
			table_count(c, mean, n - more);
		if (more)
			table_count(c, mean + 1, more);
	}
	return r;
}

/* ---- sealing ---- */

static int by_amplitude(const void *pa, const void *pb)
{
	const struct curve_cycles *a = pa, *b = pb;

	return (a->amplitude > b->amplitude) - (a->amplitude < b->amplitude);
}

static void pack(struct curve *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->slots; i++)
		if (c->cycles[i].amplitude)
			c->cycles[n++] = c->cycles[i];
	if (n)
		qsort(c->cycles, n, sizeof(*c->cycles), by_amplitude);
}

int curve_seal(struct curve *c)
{
	uint64_t count = 0, sum = 0;

	if (c->sealed)
		return 0;
	c->above_count = calloc(c->n_cycles + 1, sizeof(*c->above_count));
	c->above_sum = calloc(c->n_cycles + 1, sizeof(*c->above_sum));
	if (!c->above_count || !c->above_sum)
		return -ENOMEM;
	pack(c);
	for (size_t i = c->n_cycles; i-- > 0;) {
		count += c->cycles[i].count;
		sum += c->cycles[i].count * c->cycles[i].amplitude;
		c->above_count[i] = count;
		c->above_sum[i] = sum;
	}
	c->sealed = true;
	return 0;
}

/* ---- asking ---- */

uint64_t curve_cycle_pages(const struct curve *c, uint64_t capacity, uint64_t *above)
{
	size_t lo = 0, hi = c->n_cycles;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (c->cycles[mid].amplitude > capacity)
			hi = mid;
		else
			lo = mid + 1;
	}
	if (above)
		*above = c->above_count[lo];
	return c->above_sum[lo] - c->above_count[lo] * capacity;
}

struct pcptune_band_traffic curve_traffic(const struct curve *c, uint64_t capacity, uint64_t level)
{
	uint64_t cycles = curve_cycle_pages(c, capacity, NULL);
	struct pcptune_band_traffic t = {cycles, cycles};
	int64_t p = c->start - (int64_t)(level < capacity ? level : capacity);

	for (uint32_t i = 0; i < c->n; i++)
		pcptune_band_play(c->s[i], capacity, &p, &t);
	return t;
}

uint64_t curve_range(const struct curve *c)
{
	return pcptune_band_range(c->most, c->least);
}
