/* SPDX-License-Identifier: MIT */
/*
 * What a look at the lists of a CPU tells the band tracker (track.h). Inline, since it is most of
 * what a run costs.
 */
#ifndef PCPA_TRACK_LOOK_H
#define PCPA_TRACK_LOOK_H

#include "allocator/events.h"
#include "allocator/track.h"

#define PCPA_WINDOW_MOST (1u << 22) /* pages; half of what a word can tell */
#define PCPA_RUN_PART	 8	    /* of a run */

/* ---- the position ---- */

/*
 * What a list did since the last look follows from the difference of its words: the low 24 bits are
 * the change of its net position, and no window is as wide as that.
 */
static inline void pcpa_track_advance(struct pcptune_track *t, const struct pcptune_cpu_block *b)
{
	PCPA_FOR_EACH_USED (i, b) {
		uint64_t word = pcpa_get(&b->list[i].word), by = word - t->seen[i];
		int64_t net;

		if (!by)
			continue;
		net = (int64_t)(by << 40) >> 40;
		t->seen[i] = word;
		t->x += net * (1 << pcpa_list_orders[i]);
		t->moved += (by - (uint64_t)net) >> 24 << pcpa_list_orders[i];
	}
}

/* The half to write to: the other one from now on, if a cut was asked for. */
static inline struct pcptune_packed *pcpa_track_writable(struct pcptune_track *t,
							 const struct pcptune_cpu_block *b)
{
	struct pcptune_packed *p = &t->half[t->current & 1];
	uint32_t cut;

#ifndef __x86_64__
	/* pcp.lock was stored before ctl.cut is loaded; a locked instruction is a fence there */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
	cut = pcpa_get(&b->ctl.cut);
	if (__builtin_expect(p->tag == cut, 1))
		return p;
	t->current ^= 1;
	p = &t->half[t->current & 1];
	pcptune_packed_init(p, t->pushed, cut);
	return p;
}

/* ---- turns ---- */

/* Hardly anything went to and fro. */
static inline bool pcpa_track_is_clean(const struct pcptune_track *t)
{
	return (uint64_t)t->net * 4 >= (uint64_t)t->gross * 3;
}

/* How far the run could go on without being seen. */
static inline uint64_t pcpa_track_unseen(const struct pcptune_track *t)
{
	return pcptune_max_u32(pcpa_heap.grain, t->way > 0 ? t->up : t->down);
}

/*
 * How far beyond the last look the run went on before it turned; 0: not known, or not at all.
 * back: how far it is behind that look now.
 */
static inline uint64_t pcpa_track_beyond(const struct pcptune_track *t, uint64_t back)
{
	uint64_t way = t->moved, out;

	if (!t->way || !pcpa_track_is_clean(t))
		return 0;
	if (t->net != t->gross)
		way = way < UINT32_MAX ? way * t->net / t->gross : 0;
	out = way > back ? (way - back) / 2 : 0;
	return out <= pcpa_track_unseen(t) ? out : 0;
}

/* Of a stretch that went one way. Shares are kept in 32 bits; longer ones are no single run. */
static inline void pcpa_track_set_share(struct pcptune_track *t, uint64_t net, uint64_t gross)
{
	bool fits = gross <= UINT32_MAX && net <= gross;

	t->net = fits ? (uint32_t)net : 0;
	t->gross = fits ? (uint32_t)gross : 1;
}

/* The edge ahead: the further away, the longer the run, if hardly anything went to and fro. */
static inline void pcpa_track_set_windows(struct pcptune_track *t)
{
	uint64_t run = pcpa_track_is_clean(t) ? pcptune_band_range(t->pushed, t->turn) : 0;
	uint32_t ahead = run / PCPA_RUN_PART < PCPA_WINDOW_MOST ? (uint32_t)(run / PCPA_RUN_PART)
								: PCPA_WINDOW_MOST;

	t->up = t->way > 0 ? ahead : 0;
	t->down = t->way < 0 ? ahead : 0;
}

/*
 * The run went on, but more moved than that. If nothing did before, then it was one swing back, and
 * not to and fro all the time.
 */
static inline void pcpa_track_swing(struct pcptune_track *t, struct pcptune_packed *p,
				    uint64_t size)
{
	uint64_t back = (t->moved - size) / 2;

	if (t->net != t->gross || back > pcpa_track_unseen(t) + pcpa_heap.grain)
		return;
	t->turn = t->pushed;
	pcptune_packed_push(p, t->pushed + t->way * (int64_t)back);
	pcptune_packed_push(p, t->pushed);
}

/* The run turned, here or out there. */
static inline void pcpa_track_turn(struct pcptune_track *t, struct pcptune_packed *p, uint64_t out)
{
	t->turn = t->pushed + t->way * (int64_t)out;
	t->way = t->x > t->pushed ? 1 : -1;
	if (out)
		pcptune_packed_push(p, t->turn);
}

/* pcpa_track_look() */
static inline void pcpa_track_take(struct pcptune_track *t, const struct pcptune_cpu_block *b)
{
	struct pcptune_packed *p;
	uint64_t size, out = 0;

	if (__builtin_expect(pcpa_heap.events != NULL, 0))
		pcpa_events_write(b);
	pcpa_track_advance(t, b);
	/* back where it was: if it went somewhere, then not to an edge */
	if (t->x == t->pushed)
		return;
	p = pcpa_track_writable(t, b);
	size = pcptune_band_range(t->x, t->pushed);
	if ((t->x > t->pushed ? 1 : -1) != t->way) {
		out = pcpa_track_beyond(t, size);
		pcpa_track_turn(t, p, out);
	} else if (t->moved > size) {
		pcpa_track_swing(t, p, size);
	}
	if (!out)
		pcpa_track_set_share(t, size, t->moved);
	pcptune_packed_push(p, t->x);
	t->pushed = t->x;
	t->moved = 0;
	pcpa_track_set_windows(t);
}

#endif
