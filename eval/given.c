/* SPDX-License-Identifier: MIT */
/* Records for a replay, see given.h. One thread. */
#include "eval/given.h"

#include <errno.h>
#include <stdlib.h>

static int keep(struct given *g, const struct log_record *r)
{
	size_t room = g->room ? 2 * g->room : 64;
	struct log_record *grown;

	if (g->n == g->room) {
		grown = reallocarray(g->r, room, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		g->r = grown;
		g->room = room;
	}
	g->r[g->n++] = *r;
	return 0;
}

static int on_row(const struct log_records_row *row, const uint8_t *data, size_t len, void *cookie)
{
	struct given *g = cookie;
	struct records_reader rd;
	struct log_record r;
	int e = 0;

	if (row->level) {
		g->merged_to = row->seq_last > g->merged_to ? row->seq_last : g->merged_to;
		return 0;
	}
	if (row->seq_first > g->last)
		return 1;
	records_begin(&rd, data, len);
	while (!e && (e = records_next(&rd, &r)) == 1)
		e = r.given && r.seq >= g->first && r.seq <= g->last ? keep(g, &r) : 0;
	return e;
}

int given_load(struct given *g, struct logstore *ls, int64_t target, uint64_t first, uint64_t last)
{
	int e;

	g->n = g->at = 0;
	g->first = first;
	g->last = last;
	e = logstore_records(ls, target, first, on_row, g);
	return e < 0 ? e : 0;
}

void given_to(struct given *g, struct pcptune_sample *s)
{
	size_t n = 0;

	while (g->at < g->n && g->r[g->at].seq < s->seq)
		g->at++;
	while (g->at + n < g->n && g->r[g->at + n].seq == s->seq)
		n++;
	s->n_records = (uint32_t)n;
	s->record_size = sizeof(*g->r);
	s->records = n ? g->r + g->at : NULL;
	g->at += n;
}

void given_free(struct given *g)
{
	free(g->r);
	*g = (struct given){0};
}
