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
#define CYCLES	   2000u	     /* of walks that are tried; twice as many of the likeliest */
#define SURE	   12000u	     /* drains of which half of a factor is believed */
#define DISORDER   (ONE * 12 / 1000) /* by so much it is off by chance */
#define SIZES	   100 /* with more moves than that a likeness is off by more than they */
#define FAR	   3   /* evenness that is not usual, in LIKENESS_ONE */

#define EVENNESSES    7u
#define EVENNESS_STEP 20
static const int32_t evennesses[EVENNESSES] = {
	LIKENESS_LEAST, -LIKENESS_ONE,	  -LIKENESS_ONE / 2, 0,
	LIKENESS_ONE,	2 * LIKENESS_ONE, LIKENESS_MOST};

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
	uint32_t order;	 /* of most blocks */
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

static uint64_t within(uint64_t v, uint64_t lo, uint64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

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

/* ---- how evenly runs are broken ---- */

/* From both: what the record itself makes likely, and how large moves were measured to be. */
struct evenness {
	uint64_t disorder[EVENNESSES]; /* of the likeness with it */
	int64_t off[EVENNESSES];       /* sizes of moves as tried, by those measured: logarithm */
};

static int make_with(struct growth *g, int32_t evenness, uint32_t cycles)
{
	const struct walk *k = g->k;

	likeness_free(&g->l);
	return likeness_make(&g->l, k->band, k->alloc_pages + k->free_pages, g->order, evenness,
			     cycles);
}

/* The logarithm of a / b, where they are not far apart. */
static int64_t apart(uint64_t a, uint64_t b)
{
	a = within(a, 1, UINT32_MAX);
	b = within(b, 1, UINT32_MAX);
	return 2 * ((int64_t)a - (int64_t)b) * ONE / (int64_t)(a + b);
}

static int64_t sizes_off(const struct growth *g)
{
	const struct walk *k = g->k;
	struct growth_effect e = try_with(g, &g->log, g->hidden);

	return apart(e.refill, k->refilled / k->refills) + apart(e.drain, k->drained / k->drains);
}

/*
 * The squares of errors by their usual sizes. Where no likeness comes near to order, differences of
 * disorder say as much less; sizes are means of so many moves, and off by chance. Where neither
 * tells, it is as likely that any leg was broken as any other.
 */
static int64_t unlikely(int32_t evenness, int64_t disorder, int64_t least, int64_t off,
			int64_t drains)
{
	int64_t by = (disorder - least) * ONE / DISORDER, floor = least * ONE / DISORDER;
	int64_t far = evenness + LIKENESS_ONE;

	floor = floor * floor / ONE;
	floor = ONE + floor * floor / ONE;
	return by * by / floor + off * off / ONE * (drains * SIZES) / (4 * SIZES + drains) +
	       far * far * ONE / (FAR * LIKENESS_ONE * FAR * LIKENESS_ONE);
}

/* In steps, with lines between what was tried. */
static int32_t likeliest(const struct growth *g, const struct evenness *v)
{
	int64_t drains = (int64_t)within(g->k->drains, 0, 1000000), least = INT64_MAX;
	int64_t best = INT64_MAX;
	int32_t ret = 0;

	for (uint32_t i = 0; i < EVENNESSES; i++)
		least = (int64_t)v->disorder[i] < least ? (int64_t)v->disorder[i] : least;
	for (uint32_t i = 0; i + 1 < EVENNESSES; i++) {
		int32_t lo = evennesses[i], width = evennesses[i + 1] - lo;

		for (int32_t at = 0; at <= width; at += EVENNESS_STEP) {
			int64_t d = (int64_t)v->disorder[i] * (width - at) +
				    (int64_t)v->disorder[i + 1] * at;
			int64_t off = v->off[i] * (width - at) + v->off[i + 1] * at;
			int64_t u = unlikely(lo + at, d / width, least, off / width, drains);

			ret = u < best ? lo + at : ret;
			best = u < best ? u : best;
		}
	}
	return ret;
}

/* First by the record itself, then, if they were measured, by sizes too. 0 or -ENOMEM. */
static int fit_evenness(struct growth *g, struct evenness *v, bool measured)
{
	int e = 0;

	for (uint32_t i = 0; !e && i < EVENNESSES; i++) {
		e = make_with(g, evennesses[i], CYCLES);
		if (!e && measured)
			v->off[i] = sizes_off(g);
		else if (!e)
			e = likeness_disorder(&g->l, &v->disorder[i]);
	}
	return e ? e : make_with(g, likeliest(g, v), 2 * CYCLES);
}

static int64_t factor(uint64_t measured, uint64_t tried)
{
	int64_t f = tried ? (int64_t)(measured * ONE / tried) : ONE;

	return f < FACTOR_MIN ? FACTOR_MIN : f > FACTOR_MAX ? FACTOR_MAX : f;
}

static void correct(struct growth *g, struct evenness *v)
{
	const struct walk *k = g->k;
	uint64_t capacity = pcptune_band_match(k->band, k->refilled + k->drained);
	uint64_t loss = k->high_now > capacity ? k->high_now - capacity : 0;
	struct growth_effect e;

	fit_hidden(g, loss);
	if (k->refills && k->drains) {
		g->failed = fit_evenness(g, v, true) != 0;
		fit_hidden(g, loss);
	}
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
	struct evenness v = {0};

	g->begun = true;
	g->hidden = ONE;
	g->loss = g->refill = g->drain = ONE;
	g->log = (struct likeness_limits){k->high_now, k->batch ? k->batch : 1, k->scale_max,
					  k->rules};
	g->order = order_of(k);
	g->failed = fit_evenness(g, &v, false) != 0;
	if (!g->failed && k->steady)
		correct(g, &v);
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
