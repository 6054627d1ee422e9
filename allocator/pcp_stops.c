/* SPDX-License-Identifier: MIT */
/*
 * Lists served by sections: taken from them and given back.
 *
 * Who wants the lists of a CPU for himself (agent, trim, audit, fork) holds pcp.lock, which stops
 * no section. He asks for a stop: the idle list is what sections find then, and a fence sends away
 * those that were under way. After it the places of the tracker's stops are filled again and the
 * words looked at, so that the rules know of all that happened. Giving them back bounds each list
 * by what it holds; their next pushes ask for more.
 *
 * In the child of a fork all words begin at zero (pcpa_sections_restart). When the system refuses
 * fences, lists are given up by sections for good (pcpa_sections_end).
 */
#include "allocator/pcp_bounds.h"
#include "allocator/pcp_look.h"
#include "allocator/pcp_private.h"
#include "allocator/rings.h"

uint32_t pcpa_to_ring;

void pcpa_sections_ask(struct pcptune_cpu_block *b)
{
	pcpa_put(&pcpa_words(b)->stop, pcpa_get(&pcpa_words(b)->stop) | PCPA_STOP_OWNER);
	pcpa_rseq_show(b);
}

static void lift_all(struct pcptune_cpu_block *b)
{
	struct pcptune_track *t = pcpa_track_of(b);

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		lift(b, t, i);
}

void pcpa_sections_stopped(struct pcptune_cpu_block *b)
{
	lift_all(b);
	look(b);
}

void pcpa_sections_stop(struct pcptune_cpu_block *b)
{
	stop(b);
	pcpa_sections_stopped(b);
}

/* Every list down to what it holds. */
static void cut(struct pcptune_cpu_block *b)
{
	PCPA_FOR_EACH_USED (i, b) {
		uint32_t count = pcpa_list_count(&b->list[i]);

		if (pcpa_get(&pcpa_words(b)->room[i]) > count)
			set_room(b, i, count);
	}
}

void pcpa_sections_go(struct pcpa_zone *z, struct pcptune_cpu_block *b)
{
	cut(b);
	if (pcpa_pcp_ready(b)) {
		struct pcptune_track *t = pcpa_track_of(b);

		track(b, t, 0);
		grant(z, b, t, 0, 0);
		set_stops(b, t, 0);
	}
	go(b);
}

void pcpa_sections_restart(struct pcptune_cpu_block *b)
{
	struct pcpa_words *w = pcpa_words(b);

	if (!pcpa_by_sections(b))
		return;
	w->seen = 0;
	/* lost once is lost for good: who knows what lies there now */
	if (!(w->stop & PCPA_STOP_LOST) && !pcpa_rings_rebind(b))
		w->stop |= PCPA_STOP_LOST;
	w->stop |= PCPA_STOP_TO_RING;
	w->calm = w->calm_seen = 0;
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		w->freed[i] = 0;
		b->list[i].mark = 0;
		set_room(b, i, w->room[i]);
	}
	pcpa_put(&pcpa_to_ring, 1);
}

void pcpa_sections_end(struct pcpa_zone *z, struct pcptune_cpu_block *b)
{
	uint64_t pages = pcpa_pcp_pages(b);

	lift_all(b);
	look(b);
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		struct pcptune_list *l = &b->list[i];

		for (uint32_t k = 0, n = pcpa_list_count(l); k < n; k++) {
			void *block = (void *)(uintptr_t)*pcpa_ring_slot(
				l, (uint64_t)(pcpa_get(&l->tail) + k));

			pcpa_put(&z->pages[pcpa_page_number(z, block)].listed, 1);
		}
		l->reserved = 0;
	}
	pcpa_put(&b->pcp.pages, (uint32_t)pages);
	pcpa_pcp_edges(b);
	__atomic_store_n(&pcpa_words(b)->kind, 0, __ATOMIC_RELEASE);
	pcpa_locked_lay(b);
}
