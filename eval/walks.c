/* SPDX-License-Identifier: MIT */
/*
 * Gathering walks, and asking them.
 *
 * How far may a walk stray between two samples? With a pages allocated and f freed in an interval,
 * and m the smaller of both, every order of them stays within m of a walk that goes straight from
 * the one end to the other. The variation that play of width C leaves of a walk is at most that
 * which play of width C - 2m leaves of a walk that is never farther than m away: each swing counts
 * with its length less C, and lengths differ by 2m at most. So walk_most() takes C - 2m for the
 * intervals up to some m, and for the others all that was allocated and freed in them, and C for
 * beginning anew; of all such m, the least result.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "eval/effect.h"

void walks_init(struct walks *w)
{
	memset(w, 0, sizeof(*w));
}

void walk_free(struct walk *k)
{
	curve_free(&k->curve);
	growth_free(k->growth);
	free(k->band);
	free(k);
}

void walks_free(struct walks *w)
{
	for (size_t i = 0; i < w->n; i++)
		walk_free(w->walk[i]);
	free(w->walk);
	walks_init(w);
}

/* A table from (zone, CPU) to walk while one source is read. */
struct places {
	struct walk **at;
	size_t n;
	uint64_t pages; /* of all rows of a trace */
};

static struct walk *walk_at(struct walks *w, struct places *p, size_t i, uint32_t zone,
			    uint32_t cpu)
{
	struct walk *new_, **grown;

	if (p->at[i])
		return p->at[i];
	grown = reallocarray(w->walk, w->n + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	w->walk = grown;
	new_ = calloc(1, sizeof(*new_));
	if (!new_)
		return NULL;
	new_->zone = zone;
	new_->cpu = cpu;
	curve_init(&new_->curve);
	if (curve_push(&new_->curve, 0)) {
		free(new_);
		return NULL;
	}
	p->at[i] = w->walk[w->n++] = new_;
	return new_;
}

/* ---- from a trace ---- */

/*
 * More pages than all memory that addresses reach, 2^64 bytes, are no trace. So all sums stay far
 * from 2^63, those of nanoseconds that a replay has for holds of the lock, too.
 */
#define PAGES_MAX (UINT64_C(1) << 52)

static int add_row(struct walks *w, struct places *p, const struct trace_row *row, bool level,
		   uint32_t batch)
{
	struct walk *k = walk_at(w, p, row->cpu, 0, row->cpu);
	int64_t pages = row->blocks * (INT64_C(1) << row->order);

	if (!k)
		return -ENOMEM;
	p->pages += pcptune_band_range(pages, 0);
	if (p->pages > PAGES_MAX)
		return -EOVERFLOW;
	k->batch = batch;
	if (!pcptune_rules_has_list(PCPTUNE_RULES_GX, row->order)) {
		k->direct_pages += pcptune_band_range(pages, 0);
		return 0;
	}
	if (level) {
		w->levels_known = true;
		k->level += (uint64_t)pages;
		return 0;
	}
	if (pages > 0)
		k->free_pages += (uint64_t)pages;
	else
		k->alloc_pages += (uint64_t)-pages;
	k->position += pages;
	return curve_push(&k->curve, k->position);
}

int walks_add_trace(struct walks *w, struct trace_reader *t, uint32_t batch, char *why)
{
	struct places p = {calloc(PCPTUNE_MAX_CPUS, sizeof(struct walk *)), PCPTUNE_MAX_CPUS, 0};
	const struct trace_row *rows;
	bool any = false;
	uint64_t last = 0;
	size_t n;
	int r = p.at ? 1 : -ENOMEM;

	while (r == 1 && (r = trace_next(t, &rows, &n, why)) == 1)
		for (size_t i = 0; i < n && r == 1; i++) {
			uint64_t ns = rows[i].time_ns;

			int error = add_row(w, &p, &rows[i], i < trace_levels(t), batch);

			if (error) {
				r = error;
				break;
			}
			w->backwards += any && ns < last;
			w->from_ns = any && w->from_ns < ns ? w->from_ns : ns;
			w->to_ns = any && w->to_ns > ns ? w->to_ns : ns;
			last = ns;
			any = true;
		}
	if (r == -ENOMEM)
		snprintf(why, WALKS_WHY, "no memory");
	if (r == -EOVERFLOW)
		snprintf(why, WALKS_WHY, "more than 2^52 pages allocated and freed");
	free(p.at);
	return r;
}

/* ---- from a log ---- */

struct log_cookie {
	struct walks *w;
	struct places p;
	struct pcptune_decoder *dec;
	uint32_t n_cpus; /* of a zone */
	uint64_t from_us, to_us;
	int error;
};

static void stray(struct walk *k, uint64_t a, uint64_t f)
{
	uint64_t m = a < f ? a : f;
	unsigned i = m ? 64u - (unsigned)__builtin_clzll(m) : 0;
	struct walk_stray *s = &k->stray[i < WALK_STRAYS ? i : WALK_STRAYS - 1];

	s->intervals++;
	s->most = m > s->most ? m : s->most;
	s->gross += a + f;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static int add_cpu(struct log_cookie *c, uint32_t i, const struct pcptune_cpu *cpu)
{
	struct walk *k = walk_at(c->w, &c->p, i, i / c->n_cpus, i % c->n_cpus);
	uint64_t a = less(cpu->alloc_pages, cpu->alloc_direct);
	uint64_t f = less(cpu->free_pages, cpu->free_direct);

	if (!k)
		return -ENOMEM;
	k->high_now = cpu->high;
	k->batch = cpu->batch;
	if (cpu->flags & PCPTUNE_CPU_UNKNOWN) {
		c->w->lost++;
		return 0;
	}
	k->alloc_pages += a;
	k->free_pages += f;
	k->direct_pages += cpu->alloc_direct + cpu->free_direct;
	k->refilled += less(cpu->alloc_zone, cpu->alloc_direct);
	k->drained += less(cpu->free_zone, cpu->free_direct);
	k->refills += cpu->refills;
	k->drains += cpu->drains;
	stray(k, a, f);
	k->position += (int64_t)(f - a);
	return curve_push(&k->curve, k->position);
}

static int add_sample(struct log_cookie *c, const struct pcptune_sample *s, struct logstamp t)
{
	uint64_t wall = t.wall_us - (t.boot_us - s->time_us), from = s->time_us - s->dt_us;
	struct walks *w = c->w;
	int r = 0;

	if (wall < c->from_us || wall > c->to_us)
		return 0;
	w->from_ns = w->samples && w->from_ns < from * 1000 ? w->from_ns : from * 1000;
	w->to_ns = s->time_us * 1000 > w->to_ns ? s->time_us * 1000 : w->to_ns;
	w->samples++;
	w->gaps += (s->flags & PCPTUNE_SAMPLE_GAP) != 0;
	for (uint32_t i = 0; !r && i < s->n_cpus; i++) {
		const struct pcptune_cpu *cpu = pcptune_sample_cpu(s, i);

		if (cpu->flags & (PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_UNKNOWN))
			r = add_cpu(c, i, cpu);
		else if (c->p.at[i] && cpu->high)
			c->p.at[i]->high_now = cpu->high;
	}
	return r;
}

static int on_chunk(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		    size_t len, void *cookie)
{
	const struct pcptune_sample *s;
	struct log_cookie *c = cookie;
	int r;

	(void)totals;
	decoder_begin(c->dec, data, len);
	while ((r = decoder_next(c->dec, &s)) == 1 && !c->error)
		c->error = add_sample(c, s, t);
	if (r == -EBADMSG)
		c->w->gaps++;
	return c->error != 0;
}

int walks_add_log(struct walks *w, struct logstore *ls, const struct log_target *t,
		  uint64_t from_us, uint64_t to_us, char *why)
{
	struct log_cookie c = {.w = w,
			       .n_cpus = t->shape.n_cpus,
			       .from_us = from_us,
			       .to_us = to_us ? to_us : UINT64_MAX};
	int r = walks_add_records(w, ls, t, from_us, to_us, why);

	if (r || w->records)
		return r;
	r = decoder_new(t->shape.n_zones, t->shape.n_cpus, &c.dec);
	if (r) {
		snprintf(why, WALKS_WHY, "target %lld: %s", (long long)t->id, strerror(-r));
		return r;
	}
	w->from_log = true;
	c.p.n = (size_t)t->shape.n_zones * t->shape.n_cpus;
	c.p.at = calloc(c.p.n, sizeof(*c.p.at));
	r = c.p.at ? logstore_chunks(ls, t->id, 0, on_chunk, &c) : -ENOMEM;
	if (c.error)
		r = c.error;
	if (r < 0)
		snprintf(why, WALKS_WHY, "%s", r == -ENOMEM ? "no memory" : logstore_error(ls));
	decoder_free(c.dec);
	free(c.p.at);
	return r < 0 ? r : 0;
}

static int by_place(const void *pa, const void *pb)
{
	const struct walk *a = *(struct walk *const *)pa, *b = *(struct walk *const *)pb;

	if (a->zone != b->zone)
		return a->zone < b->zone ? -1 : 1;
	return (a->cpu > b->cpu) - (a->cpu < b->cpu);
}

/* Batches that grow: what they did is known where high did not move. */
static int prepare_growth(struct walk *k)
{
	if (!k->band)
		return 0;
	k->steady = !k->breaks && k->high_least == k->high_most && k->high_now &&
		    k->refilled + k->drained;
	k->growth = growth_new(k);
	return k->growth ? 0 : -ENOMEM;
}

int walks_seal(struct walks *w)
{
	int r = 0;

	if (w->n)
		qsort(w->walk, w->n, sizeof(*w->walk), by_place);
	for (size_t i = 0; !r && i < w->n; i++)
		r = curve_seal(&w->walk[i]->curve);
	for (size_t i = 0; i < w->n; i++)
		w->walk[i]->level_known = w->levels_known;
	for (size_t i = 0; !r && i < w->n; i++)
		r = prepare_growth(w->walk[i]);
	return r;
}

bool walks_failed(const struct walks *w)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->walk[i]->growth && growth_failed(w->walk[i]->growth))
			return true;
	return false;
}

/* ---- what if ---- */

static struct pcptune_band_traffic traffic(const struct walk *w, uint64_t capacity, uint64_t level)
{
	return w->band ? pcptune_band_traffic(w->band, capacity, level, NULL)
		       : curve_traffic(&w->curve, capacity, level);
}

static uint64_t both(struct pcptune_band_traffic t)
{
	return t.refilled + t.drained;
}

uint64_t walk_pages(const struct walk *w, uint64_t capacity, uint64_t level)
{
	return both(traffic(w, capacity, level));
}

uint64_t walk_range(const struct walk *w)
{
	int64_t least, most;

	if (!w->band)
		return curve_range(&w->curve);
	least = most = w->band->start;
	for (uint32_t i = 0; i < w->band->n; i++) {
		least = w->band->s[i] < least ? w->band->s[i] : least;
		most = w->band->s[i] > most ? w->band->s[i] : most;
	}
	return pcptune_band_range(least, most);
}

/* What a walk may have cost at most, see the top. pages: of the curve, the worse beginning. */
static uint64_t walk_most(const struct walk *w, uint64_t capacity, uint64_t pages)
{
	uint64_t heavy = 0, least = w->alloc_pages + w->free_pages;
	unsigned i = WALK_STRAYS;

	if (w->band)
		return pages + w->breaks * capacity;
	for (;;) {
		uint64_t m = 0, rest;

		for (unsigned k = 0; k < i; k++)
			m = w->stray[k].most > m ? w->stray[k].most : m;
		if (!m)
			rest = heavy + pages;
		else if (capacity > 2 * m)
			rest = heavy + both(curve_traffic(&w->curve, capacity - 2 * m, 0)) +
			       capacity;
		else
			rest = UINT64_MAX;
		least = rest < least ? rest : least;
		if (!m)
			return least;
		i--;
		heavy += w->stray[i].gross + w->stray[i].intervals * capacity;
	}
}

/* Mean pages of a refill or drain: as measured, within [batch, high - batch]. */
static uint64_t mean(uint64_t pages, uint64_t moves, const struct likeness_limits *m)
{
	uint64_t v = moves ? pages / moves : m->batch;
	uint64_t top = m->high > 2 * (uint64_t)m->batch ? m->high - m->batch : m->batch;

	return v < m->batch ? m->batch : v > top ? top : v;
}

/* Samples and traces do not say how batches grow: as it was measured, if it was. */
static struct effect effect_at(const struct walk *w, const struct likeness_limits *m)
{
	if (w->growth)
		return effect_of(w, m);
	return (struct effect){
		.capacity = pcptune_band_capacity(m->high, m->batch, w->refilled, w->refills,
						  w->drained, w->drains),
		.refill = mean(w->refilled, w->refills, m),
		.drain = mean(w->drained, w->drains, m),
	};
}

void walk_whatif_at(const struct walk *w, const struct likeness_limits *m, struct whatif *ret)
{
	struct effect e = effect_at(w, m);
	uint64_t c = e.capacity, full;
	struct pcptune_band_traffic t = traffic(w, c,
						!w->level_known ? 0
						: w->level < c	? w->level
								: c);

	full = w->level_known ? both(t) : walk_pages(w, c, c);
	ret->high = m->high;
	ret->pages = both(t);
	ret->pages_least = less(full < ret->pages ? full : ret->pages, w->breaks * c);
	ret->pages_most = walk_most(w, c, full > ret->pages ? full : ret->pages);
	ret->locks = (double)t.refilled / (double)e.refill + (double)t.drained / (double)e.drain;
}

void walk_whatif(const struct walk *w, uint64_t high, struct whatif *ret)
{
	const struct likeness_limits m = {(uint32_t)high, w->batch ? w->batch : 1, w->scale_max,
					  w->rules};

	walk_whatif_at(w, &m, ret);
}

void whatif_add(struct whatif *a, const struct whatif *b)
{
	a->pages += b->pages;
	a->pages_least += b->pages_least;
	a->pages_most += b->pages_most;
	a->locks += b->locks;
}

size_t whatif_knee(const struct whatif *p, size_t n)
{
	double x0, y0, dx, dy, farthest = 0;
	size_t knee = n;

	if (n < 3 || p[0].pages <= p[n - 1].pages)
		return n;
	x0 = log2((double)p[0].high);
	y0 = (double)p[0].pages;
	dx = log2((double)p[n - 1].high) - x0;
	dy = y0 - (double)p[n - 1].pages;
	for (size_t i = 1; i + 1 < n; i++) {
		double x = (log2((double)p[i].high) - x0) / dx;
		double y = (y0 - (double)p[i].pages) / dy; /* how much of the fall is done */

		if (y - x > farthest + 1e-9) {
			farthest = y - x;
			knee = i;
		}
	}
	return knee;
}
