/* SPDX-License-Identifier: MIT */
/*
 * A short table from tag to totals. Ended targets are added to their tag; live ones are read from
 * their segments when somebody asks. Bounded: when the table is full, the tag that has had no live
 * target for the longest time makes room.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/clock.h"
#include "daemon/summary.h"

#define TAGS_MAX 1024u

struct tag {
	struct run_totals t; /* counters and proc: of ended targets only */
	uint64_t idle_since_ms;
};

struct summary {
	struct daemon *d;
	size_t n;
	struct tag *tags[TAGS_MAX];
};

int summary_new(struct daemon *d, struct summary **ret)
{
	struct summary *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->d = d;
	*ret = s;
	return 0;
}

void summary_free(struct summary *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++)
		free(s->tags[i]);
	free(s);
}

static struct tag *tag_find(struct summary *s, uint64_t tag)
{
	for (size_t i = s->n; i-- > 0;) { /* the newest are asked for most */
		if (s->tags[i]->t.tag == tag)
			return s->tags[i];
	}
	return NULL;
}

static void make_room(struct summary *s)
{
	size_t oldest = TAGS_MAX;

	for (size_t i = 0; i < s->n; i++) {
		if (s->tags[i]->t.live)
			continue;
		if (oldest == TAGS_MAX ||
		    s->tags[i]->idle_since_ms < s->tags[oldest]->idle_since_ms)
			oldest = i;
	}
	if (oldest == TAGS_MAX)
		return;
	free(s->tags[oldest]);
	memmove(s->tags + oldest, s->tags + oldest + 1, (--s->n - oldest) * sizeof(s->tags[0]));
}

static struct tag *tag_new(struct summary *s, uint64_t tag)
{
	struct tag *g;

	if (s->n == TAGS_MAX)
		make_room(s);
	if (s->n == TAGS_MAX)
		return NULL; /* as many runs at the same time: this one has no summary */
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->t.tag = tag;
	g->t.cpu_known = true;
	s->tags[s->n++] = g;
	return g;
}

void summary_enter(struct summary *s, struct target *t)
{
	if (!t->info.run_tag)
		return;
	t->tag = tag_find(s, t->info.run_tag);
	if (!t->tag)
		t->tag = tag_new(s, t->info.run_tag);
	if (!t->tag)
		return;
	t->tag->t.targets++;
	t->tag->t.live++;
}

void summary_held(struct target *t, uint64_t before, uint64_t now)
{
	struct run_totals *r;

	if (!t->tag)
		return;
	r = &t->tag->t;
	r->held += now - before;
	if (r->held > r->held_peak)
		r->held_peak = r->held;
}

static void add_counters(struct totals *to, const struct totals *from)
{
	uint64_t *a = (uint64_t *)to;
	const uint64_t *b = (const uint64_t *)from;

	_Static_assert(sizeof(*to) % sizeof(*a) == 0, "only 64-bit words");
	for (size_t i = 0; i < sizeof(*to) / sizeof(*a); i++)
		a[i] += b[i];
}

static void add_target(struct run_totals *r, struct target *t)
{
	struct totals c;
	struct segreader_proc p;
	uint64_t us = 0;

	target_totals(t, &c);
	add_counters(&r->counters, &c);
	segreader_proc(t->sr, &p);
#define PCPTUNE_PROC(field, unit, line, para) r->proc.field += p.field;
#include <pcptune/counters.def>
	if (target_cpu_time(t, true, &us))
		r->cpu_us += us;
	else
		r->cpu_known = false;
	r->decisions += t->decisions;
	r->dry_run |= t->active.dry_run;
}

void summary_leave(struct summary *s, struct target *t)
{
	(void)s;
	if (!t->tag)
		return;
	summary_held(t, t->held, 0);
	add_target(&t->tag->t, t);
	t->tag->t.live--;
	t->tag->idle_since_ms = mono_ms();
	t->tag = NULL;
}

int summary_get(struct summary *s, uint64_t tag, struct run_totals *ret)
{
	struct tag *g = tag_find(s, tag);

	if (!g)
		return -ENOENT;
	*ret = g->t;
	for (size_t i = 0; i < s->d->n_targets; i++) {
		if (s->d->targets[i]->tag == g)
			add_target(ret, s->d->targets[i]);
	}
	return 0;
}
