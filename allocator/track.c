/* SPDX-License-Identifier: MIT */
/* The band tracker of each CPU: see track.h. */
#include "allocator/track_look.h"

void pcpa_track_look(struct pcptune_cpu_block *b)
{
	struct pcptune_track *t = pcpa_track_of(b);

	if (t)
		pcpa_track_take(t, b);
}

void pcpa_track_begin(struct pcptune_cpu_block *b)
{
	struct pcptune_track *t = pcpa_track_of(b);

	if (!t)
		return;
	*t = (struct pcptune_track){0};
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		t->seen[i] = pcpa_get(&b->list[i].word);
		t->edge[i] = (uint32_t)t->seen[i] + pcpa_track_window(t, i).up;
	}
	pcptune_packed_init(&t->half[0], 0, pcpa_get(&b->ctl.cut));
	t->half[1].tag = t->half[0].tag - 1;
}

/* Of locked lists the edges are laid when they are let go of. */
void pcpa_track_anew(struct pcptune_cpu_block *b)
{
	struct pcptune_track *t = pcpa_track_of(b);

	if (!t)
		return;
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		t->edge[i] = (uint32_t)pcpa_get(&b->list[i].word) + pcpa_track_window(t, i).up;
	t->lifted = (1u << PCPTUNE_N_LISTS) - 1;
}
