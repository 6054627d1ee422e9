/* SPDX-License-Identifier: MIT */
/*
 * Does it matter in which order the legs of a likeness come?
 *
 * Where legs follow each other by chance, up and down by turns, any other order of the same legs
 * has the same swings but for chance. A likeness whose long legs are whole though they were not has
 * legs that, in another order, swing wider than the record says; one whose legs are too much alike,
 * less wide. So shuffling tells which likeness of a record is right, where legs are of that kind;
 * where they are not (bursts that end where they began), no likeness comes near, and all are alike.
 */
#include <errno.h>
#include <stdlib.h>
#include "eval/chance.h"
#include "eval/likeness.h"

#define SHUFFLES 4u
#define FIRST	 32u /* the least width of a band, blocks */
#define WIDTHS	 16u /* each twice the one before */
#define CROSSED	 60u /* cycles that cross a band, at least: fewer are chance */
#define ONE	 65536u

static void shuffle(int64_t *leg, uint32_t n, uint64_t *chance)
{
	/* every second one goes the same way */
	for (uint32_t i = n; i-- > 2;) {
		uint32_t j = i - 2 * (uint32_t)chance_below(chance, i / 2 + 1);
		int64_t kept = leg[i];

		leg[i] = leg[j];
		leg[j] = kept;
	}
}

/* Up and down by turns. */
static uint32_t legs_of(const struct likeness *l, int64_t *leg)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i < l->n; i++) {
		int64_t by = l->x[i] - l->x[i - 1];

		if (n && by && (by > 0) == (leg[n - 1] > 0))
			leg[n - 1] += by;
		else if (by)
			leg[n++] = by;
	}
	return n;
}

static void walk(const int64_t *leg, uint32_t n, struct pcptune_band *ret)
{
	uint64_t x = 0;

	pcptune_band_init(ret);
	pcptune_band_push(ret, 0);
	for (uint32_t i = 0; i < n; i++) {
		x += (uint64_t)leg[i];
		pcptune_band_push(ret, (int64_t)x);
	}
}

/* Of x and y, in parts of their mean. */
static uint64_t difference(uint64_t x, uint64_t y)
{
	while ((x | y) >> 40) {
		x >>= 1;
		y >>= 1;
	}
	return x + y ? (x > y ? x - y : y - x) * 2 * ONE / (x + y) : 0;
}

/* Pages that cross bands of some widths, as many as enough cycles cross. */
static uint32_t crossings(const struct pcptune_band *b, uint32_t n, uint64_t *pages)
{
	uint32_t enough = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t above;

		pcptune_band_cycles(b, (uint64_t)FIRST << i, &above);
		pages[i] += pcptune_band_traffic(b, (uint64_t)FIRST << i, 0, NULL).drained;
		enough += above >= CROSSED;
	}
	return enough;
}

int likeness_disorder(const struct likeness *l, uint64_t *ret_disorder)
{
	uint64_t chance = CHANCE_SEED, is[WIDTHS] = {0}, other[WIDTHS] = {0}, sum = 0;
	int64_t *leg = calloc(l->n + 1, sizeof(*leg));
	struct pcptune_band b;
	uint32_t n, widths;

	if (!leg)
		return -ENOMEM;
	n = legs_of(l, leg);
	walk(leg, n, &b);
	widths = crossings(&b, WIDTHS, is);
	for (uint32_t i = 0; i < SHUFFLES; i++) {
		shuffle(leg, n, &chance);
		walk(leg, n, &b);
		crossings(&b, widths, other);
	}
	free(leg);
	for (uint32_t i = 0; i < widths; i++)
		sum += difference(is[i], other[i] / SHUFFLES);
	*ret_disorder = widths ? sum / widths : 0;
	return 0;
}
