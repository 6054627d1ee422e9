/* SPDX-License-Identifier: MIT */
/*
 * Trying and correcting, see growth.h.
 *
 * The likeness is made when it is first needed. One lock for each CPU, held while something is
 * tried.
 */
#include "eval/growth.h"

#include <pthread.h>
#include <stdlib.h>
#include <pcptune/rules.h>

#define POINTS	   (PCPTUNE_BAND_BUCKETS / 2) /* every second edge of a bucket, from 16 pages on */
#define FIRST	   8u			      /* point of 16 pages */
#define ONE	   65536		      /* parts are of this */
#define FACTOR_MIN (ONE / 4)
#define FACTOR_MAX (4 * ONE)
#define FIT_STEPS  6
#define SURE	   3000u /* drains of which half of a factor is believed */

struct point {
	bool known;
	struct growth_effect e;
};

/* What was tried with one batch and one set of rules. */
struct tried {
	struct tried *next;
	uint32_t batch, scale_max, rules;
	struct point at[POINTS];
};

struct growth {
	const struct walk *k;
	pthread_mutex_t lock;
	bool begun, failed;
	struct likeness l;
	uint64_t hidden; /* part of the breaks that no record shows */
	struct tried *tried;
	/*
	 * what the log's settings were measured to do, as parts of what was tried; sure: 0 .. ONE
	 */
	struct likeness_limits log;
	int64_t loss, refill, drain, sure;
};

struct growth *growth_new(const struct walk *k)
{
	struct growth *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->k = k;
	pthread_mutex_init(&g->lock, NULL);
	return g;
}

void growth_free(struct growth *g)
{
	if (!g)
		return;
	for (struct tried *t = g->tried, *next; t; t = next) {
		next = t->next;
		free(t);
	}
	likeness_free(&g->l);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/* ---- trying ---- */

static struct growth_effect try_with(const struct growth *g, const struct likeness_limits *m,
				     uint64_t hidden)
{
	struct growth_effect e = {m->batch, m->batch, m->batch};
	struct likeness_moves v;
	uint64_t capacity;

	likeness_play(&g->l, m, hidden, &v);
	if (!v.drains || !v.refills)
		return e; /* where nothing moves the walk does not tell */
	capacity = pcptune_band_match(&v.band, v.refilled + v.drained);
	e.loss = m->high > capacity ? m->high - capacity : 0;
	e.refill = v.refilled / v.refills;
	e.drain = v.drained / v.drains;
	return e;
}

static struct tried *tried_with(struct growth *g, const struct likeness_limits *m)
{
	struct tried *t = g->tried;

	while (t && (t->batch != m->batch || t->scale_max != m->scale_max || t->rules != m->rules))
		t = t->next;
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t) {
		g->failed = true;
		return NULL;
	}
	t->batch = m->batch;
	t->scale_max = m->scale_max;
	t->rules = m->rules;
	t->next = g->tried;
	g->tried = t;
	return t;
}

static uint64_t high_of(uint32_t point)
{
	return pcptune_band_edge(2 * point);
}

static struct growth_effect *at_point(const struct growth *g, struct tried *t, uint32_t i)
{
	struct point *p = &t->at[i];
	struct likeness_limits m = {(uint32_t)high_of(i), t->batch, t->scale_max, t->rules};

	if (!p->known)
		p->e = try_with(g, &m, g->hidden);
	p->known = true;
	return &p->e;
}

static uint64_t between(uint64_t a, uint64_t b, uint64_t at, uint64_t width)
{
	return (a * (width - at) + b * at) / width;
}

/* As tried, without correction. */
static struct growth_effect look_up(struct growth *g, const struct likeness_limits *m)
{
	uint32_t i = pcptune_band_bucket(m->high) / 2;
	struct growth_effect e = {m->batch, m->batch, m->batch}, *lo, *hi;
	struct tried *t = tried_with(g, m);
	uint64_t at, width;

	i = i < FIRST ? FIRST : i > POINTS - 2 ? POINTS - 2 : i;
	if (!t || m->high < high_of(FIRST))
		return e;
	lo = at_point(g, t, i);
	hi = at_point(g, t, i + 1);
	width = high_of(i + 1) - high_of(i);
	at = m->high - high_of(i) < width ? m->high - high_of(i) : width;
	e.loss = between(lo->loss, hi->loss, at, width);
	e.refill = between(lo->refill, hi->refill, at, width);
	e.drain = between(lo->drain, hi->drain, at, width);
	return e;
}

/* ---- what was measured ---- */

/* The breaks that nobody saw: were they on the legs? More of them, smaller batches. */
static void fit_hidden(struct growth *g, uint64_t loss)
{
	uint64_t lo = 0, hi = ONE;

	g->hidden = ONE;
	if (!g->l.hidden || try_with(g, &g->log, ONE).loss >= loss)
		return;
	for (int i = 0; i < FIT_STEPS; i++) {
		uint64_t mid = (lo + hi) / 2;

		if (try_with(g, &g->log, mid).loss >= loss)
			lo = mid;
		else
			hi = mid;
	}
	g->hidden = (lo + hi) / 2;
}

static int64_t factor(uint64_t measured, uint64_t tried)
{
	int64_t f = tried ? (int64_t)(measured * ONE / tried) : ONE;

	return f < FACTOR_MIN ? FACTOR_MIN : f > FACTOR_MAX ? FACTOR_MAX : f;
}

static void correct(struct growth *g)
{
	const struct walk *k = g->k;
	uint64_t capacity = pcptune_band_match(k->band, k->refilled + k->drained);
	uint64_t loss = k->high_now > capacity ? k->high_now - capacity : 0;
	struct growth_effect e;

	fit_hidden(g, loss);
	e = look_up(g, &g->log);
	g->loss = factor(loss, e.loss);
	g->refill = factor(k->refills ? k->refilled / k->refills : 0, e.refill);
	g->drain = factor(k->drains ? k->drained / k->drains : 0, e.drain);
	g->sure = (int64_t)(k->drains * ONE / (k->drains + SURE));
}

/*
 * Refills of single pages are a batch or more; of larger blocks they are as many whole ones as a
 * batch has, and never grow. So their mean tells of which order most are, where batch is no
 * multiple of all of them.
 */
static uint32_t order_of(const struct walk *k)
{
	uint64_t mean = k->refills ? k->refilled * 16 / k->refills : 0, nearest = UINT64_MAX;
	uint32_t traits = pcptune_rules_traits(k->rules), ret = 0;

	if (!(traits & PCPTUNE_RT_ORDERS) || traits & PCPTUNE_RT_BLOCKS ||
	    k->high_least < k->batch || k->batch < 16 || !mean || mean >= (uint64_t)k->batch * 16)
		return 0;
	for (uint32_t o = 0; o <= PCPTUNE_COSTLY_ORDER; o++) {
		uint64_t far =
			pcptune_band_range((int64_t)(k->batch >> o << o) * 16, (int64_t)mean);

		ret = far < nearest ? o : ret;
		nearest = far < nearest ? far : nearest;
	}
	return ret;
}

static void begin(struct growth *g)
{
	const struct walk *k = g->k;

	g->begun = true;
	g->hidden = ONE;
	g->loss = g->refill = g->drain = ONE;
	g->log = (struct likeness_limits){k->high_now, k->batch ? k->batch : 1, k->scale_max,
					  k->rules};
	g->failed = likeness_make(&g->l, k->band, k->alloc_pages + k->free_pages, order_of(k)) != 0;
	if (!g->failed && k->steady)
		correct(g);
}

/* ---- asking ---- */

/*
 * How much of a factor counts there: all of it at the log's own settings, what is sure elsewhere.
 */
static int64_t weight(const struct growth *g, const struct likeness_limits *m)
{
	uint32_t a = pcptune_band_bucket(m->high), b = pcptune_band_bucket(g->log.high);
	uint32_t far = a > b ? a - b : b - a;

	if (far > 8 || m->batch != g->log.batch || m->scale_max != g->log.scale_max ||
	    m->rules != g->log.rules)
		far = 8;
	return ONE - (ONE - g->sure) * far / 8;
}

static uint64_t corrected(uint64_t v, int64_t by, int64_t weight)
{
	return v * (uint64_t)(ONE + (by - ONE) * weight / ONE) / ONE;
}

static uint64_t within(uint64_t v, uint64_t lo, uint64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

bool growth_failed(struct growth *g)
{
	bool failed;

	pthread_mutex_lock(&g->lock);
	failed = g->failed;
	pthread_mutex_unlock(&g->lock);
	return failed;
}

struct growth_effect growth_at(struct growth *g, const struct likeness_limits *m)
{
	struct growth_effect e;
	int64_t w;

	pthread_mutex_lock(&g->lock);
	if (!g->begun)
		begin(g);
	e = look_up(g, m);
	pthread_mutex_unlock(&g->lock);
	w = weight(g, m);
	e.loss = within(corrected(e.loss, g->loss, w), 0, m->high - 1);
	e.refill = within(corrected(e.refill, g->refill, w), 1, m->high);
	e.drain = within(corrected(e.drain, g->drain, w), 1, m->high);
	return e;
}
