/* SPDX-License-Identifier: MIT */
/*
 * Records of the band tracker out of a segment, without waiting for the target.
 *
 * The protocol is that of pcptune/segment.h: we store a new cut, and then see the lock of the
 * lists free once; from then on the half that carries the cut before stands still, be it that the
 * target moved on to the other one or that it has nothing to write. So one copy is enough, and a
 * target at rest has to do nothing. Where the lock is not seen free within some tries (its holder
 * may have lost its CPU) the caller hears "not now", and the next call goes on with the same cut,
 * and with one more, so that its record reaches up to then: nothing is lost by it.
 *
 * The copy is read from the file, not by way of our mapping: one call now and then, and the
 * trackers of thousands of CPUs do not become resident on our side.
 *
 * A target may write what it likes into its halves. The copy is ours; pcptune_packed_unpack()
 * believes none of it. A half that makes no sense gives no record, and the next one says that
 * something is missing before it. So does the first one of a reader that was not the first to cut:
 * what another reader took is gone. Two at a time spoil each other's records, and see it.
 */
#include "lib/segreader_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIES 200

/* A copy; false: the file can not be read. */
static bool read_track(const struct segreader *sr, uint32_t index, struct pcptune_track *ret)
{
	off_t at = (off_t)(sr->h.tracks_off + (uint64_t)index * sr->h.track_stride);

	return pread(sr->fd, ret, sizeof(*ret), at) == (ssize_t)sizeof(*ret);
}

/* NULL: no memory. */
static struct record_state *record_state(struct segreader *sr, uint32_t index)
{
	if (!sr->records)
		sr->records = calloc(sr->n, sizeof(*sr->records));
	return sr->records ? &sr->records[index] : NULL;
}

/* Asks for the cut, unless that was done. */
static void ask(struct pcptune_ctl *ctl, struct record_state *s)
{
	uint32_t cut = LOAD(&ctl->cut);

	if (s->asked)
		return;
	if (!s->known || s->cut != cut) {
		/* as the target began: everything since its start is still there */
		s->broken = s->known || cut;
		s->taken = s->unused = false;
		s->want = cut;
	}
	s->known = s->asked = true;
	s->cut = cut + 1;
	/*
	 * in one order with our look at the lock, which the target stores before it loads the cut
	 */
	__atomic_store_n(&ctl->cut, s->cut, __ATOMIC_SEQ_CST);
}

static bool seen_free(const struct pcptune_cpu_block *b)
{
	for (int i = 0; i < TRIES; i++)
		if (!__atomic_load_n(&b->pcp.lock, __ATOMIC_SEQ_CST))
			return true;
	return false;
}

static const struct pcptune_packed *half_of(const struct pcptune_track *t, uint32_t tag)
{
	for (int i = 0; i < 2; i++)
		if (t->half[i].tag == tag)
			return &t->half[i];
	return NULL;
}

/* The half as a band. false: it makes no sense. */
static bool take(const struct pcptune_packed *half, struct record_state *s,
		 struct pcptune_record *ret)
{
	if (!half->n && !half->lost && !half->collapsed) {
		pcptune_band_init(&ret->band);
		s->taken = false;
		s->unused = true;
		return true;
	}
	if (!pcptune_packed_unpack(half, &ret->band))
		return false;
	s->broken |= half->lost != 0;
	s->at = pcptune_band_now(&ret->band);
	s->last = half->tag;
	s->taken = true;
	s->unused = false;
	return true;
}

/*
 * Nothing happened since the last record: that half is still the one to be written, or there is
 * none yet, or only one that began after this cut.
 */
static bool take_none(const struct pcptune_track *t, struct record_state *s,
		      struct pcptune_record *ret)
{
	pcptune_band_init(&ret->band);
	if (s->unused)
		return true;
	if (!s->taken || !half_of(t, s->last))
		return false;
	pcptune_band_push(&ret->band, s->at);
	return true;
}

static bool take_cut(struct segreader *sr, uint32_t index, struct record_state *s,
		     struct pcptune_record *ret)
{
	struct pcptune_cpu_block *b = cpu_block(sr, index);
	const struct pcptune_packed *half;
	struct pcptune_track t;
	bool ok;

	ask(&b->ctl, s);
	if (!seen_free(b) || !read_track(sr, index, &t))
		return false;
	memset(ret, 0, offsetof(struct pcptune_record, band));
	ret->index = index;
	half = half_of(&t, s->want);
	ok = half ? take(half, s, ret) : take_none(&t, s, ret);
	s->asked = false;
	s->want = s->cut;
	if (!ok) {
		s->broken = true;
		s->taken = s->unused = false;
		return false;
	}
	ret->flags = s->broken ? PCPTUNE_RECORD_BROKEN : 0;
	s->broken = false;
	return true;
}

/* What came after a cut that was asked for by an earlier call belongs to the record, too. */
static void take_since(struct segreader *sr, uint32_t index, struct record_state *s,
		       struct pcptune_record *ret)
{
	struct pcptune_record more;

	if (!take_cut(sr, index, s, &more))
		return;
	if (more.flags & PCPTUNE_RECORD_BROKEN)
		s->broken = true;
	else if (ret->band.n)
		pcptune_band_merge(&ret->band, &more.band);
	else
		ret->band = more.band;
}

bool segreader_record(struct segreader *sr, uint32_t index, struct pcptune_record *ret)
{
	struct record_state *s = NULL;
	bool late;

	if (sr->h.tracks_off)
		s = record_state(sr, index);
	if (!s)
		return false;
	late = s->asked;
	if (!take_cut(sr, index, s, ret))
		return false;
	if (late)
		take_since(sr, index, s, ret);
	return true;
}
