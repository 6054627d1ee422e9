/* SPDX-License-Identifier: MIT */
/*
 * What a program may ask of the allocator, and set: numbers, an audit of everything, lists emptied,
 * limits of its own. None of it is on the way of an allocation. Numbers are read without a lock, so
 * they are exact once threads are quiet; the audit takes every lock and compares what is counted
 * with what is there.
 */
#include <errno.h>
#include <pcpalloc.h>
#include <string.h>

#include "allocator/agent.h"
#include "allocator/depot.h"
#include "allocator/fork.h"
#include "allocator/pcp.h"

#define ALL_PAGES (UINT64_MAX >> 1)

/* ---- numbers ---- */

static void add_cpu(struct pcpa_stats *s, const struct pcptune_cpu_block *b)
{
	const struct pcptune_zctr *c = &b->zctr;
	uint64_t allocated, freed;

	pcpa_pcp_totals(b, &allocated, &freed);
	s->alloc_pages += allocated;
	s->free_pages += freed;
	s->alloc_zone += pcpa_get(&c->alloc_zone);
	s->free_zone += pcpa_get(&c->free_zone);
	s->refills += pcpa_get(&c->refills);
	s->drains += pcpa_get(&c->drains);
	s->free_high += pcpa_get(&c->free_high);
	s->lock_taken += pcpa_get(&c->lock_alloc_taken) + pcpa_get(&c->lock_free_taken) +
			 pcpa_get(&c->lock_agent_taken);
	s->lock_contended += pcpa_get(&c->lock_alloc_contended) +
			     pcpa_get(&c->lock_free_contended) + pcpa_get(&c->lock_agent_contended);
	s->lock_wait_ns += pcpa_get(&c->lock_alloc_wait_ns) + pcpa_get(&c->lock_free_wait_ns);
	s->pages_on_lists += pcpa_pcp_pages(b);
}

static void add_zone(struct pcpa_stats *s, const struct pcpa_zone *z)
{
	const struct pcptune_zone_block *g = z->gauges;

	for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++)
		add_cpu(s, pcpa_cpu_block(z->id, slot));
	s->pages_in_use += pcpa_get(&g->inherited_in_use);
	s->pages_in_zone += pcpa_get(&g->free_pages);
	s->pages_managed += z->n_pages;
	s->pages_returned += pcpa_get(&g->returned_pages);
}

int pcpa_get_stats(struct pcpa_stats *stats)
{
	struct pcpa_stats s = {0};
	size_t size = stats ? stats->size : 0;

	if (size < sizeof(s.size))
		return -EINVAL;
	s.size = size < sizeof(s) ? size : sizeof(s);
	if (__atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE)) {
		for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
			add_zone(&s, &pcpa_heap.zones[i]);
		s.pages_in_use += s.alloc_pages - s.free_pages;
		s.n_zones = pcpa_heap.n_zones;
		s.n_cpus = pcpa_heap.n_slots;
		s.mode = pcpa_get(&pcpa_heap.header->mode);
		/* with an agent it is the agent who reads the reply */
		if (!pcpa_agent_runs())
			pcpa_attach_step();
		s.attached = pcpa_attach_state() == PCPA_ATTACH_DONE;
		s.pages_given_back = pcpa_get(&pcpa_heap.proc->pages_given_back);
	}
	memcpy(stats, &s, s.size);
	return 0;
}

/* ---- audit ---- */

/* One zone, every lock held. */
static const char *audit_zone(struct pcpa_zone *z, uint32_t mark)
{
	/* blocks on lists that sections serve are tagged as in use */
	uint64_t in_use, listed, held = 0, untagged = 0, net = z->gauges->inherited_in_use;
	uint64_t zone_net = net + z->gauges->inherited_held;
	uint64_t taken = 0;
	const char *what = pcpa_zone_check(z, &in_use, &listed);

	for (uint32_t slot = 0; slot < pcpa_heap.n_slots && !what; slot++) {
		struct pcptune_cpu_block *b = pcpa_cpu_block(z->id, slot);
		uint64_t allocated, freed;

		what = pcpa_pcp_check(z, b, mark);
		pcpa_pcp_totals(b, &allocated, &freed);
		net += allocated - freed;
		zone_net += b->zctr.alloc_zone - b->zctr.free_zone;
		taken += b->zctr.lock_alloc_taken + b->zctr.lock_free_taken +
			 b->zctr.lock_agent_taken;
		held += pcpa_pcp_pages(b);
		if (pcpa_by_sections(b))
			untagged += pcpa_pcp_pages(b);
	}
	if (what)
		return what;
	in_use -= untagged;
	if (listed + untagged != held)
		return "blocks marked as listed are on no list";
	if (taken != pcpa_hold_total(z->gauges) + z->brief)
		return "takes of the zone lock are not in the histogram of holds";
	if (net != in_use)
		return "allocated - freed is not the pages in use";
	return zone_net == in_use + held
		       ? NULL
		       : "alloc_zone - free_zone is not the pages in use and on lists";
}

int pcpa_audit(const char **ret_what)
{
	static uint32_t audits;
	const char *what = NULL;

	if (!__atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE))
		return 0;
	pcpa_lock_all();
	/* above every page number, so that no link is taken for a mark */
	audits = (audits + 1) | 0x80000000u;
	for (uint32_t i = 0; i < pcpa_heap.n_zones && !what; i++)
		what = audit_zone(&pcpa_heap.zones[i], audits);
	pcpa_unlock_all();
	if (what && ret_what)
		*ret_what = what;
	return what ? -EUCLEAN : 0;
}

/* ---- control by the program ---- */

static void for_each_cpu(void (*f)(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *p),
			 void *p)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		for (uint32_t slot = 0; slot < pcpa_heap.n_slots; slot++) {
			struct pcptune_cpu_block *b = pcpa_cpu_block(i, slot);

			pcpa_pcp_lock(b);
			f(&pcpa_heap.zones[i], b, p);
			pcpa_pcp_unlock(b);
			pcpa_pcp_report(&pcpa_heap.zones[i]);
		}
}

static void empty_cpu(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *p)
{
	(void)p;
	pcpa_pcp_drain(z, b, 0, ALL_PAGES, PCPA_DRAIN_TRIM, PCPA_PATH_FREE);
}

size_t pcpa_trim(void)
{
	if (!__atomic_load_n(&pcpa_heap.ready, __ATOMIC_ACQUIRE))
		return 0;
	for_each_cpu(empty_cpu, NULL);
	return pcpa_return_pages(ALL_PAGES, 0, 0);
}

struct limits {
	uint32_t high, high_min, high_max, batch;
};

static void set_cpu(struct pcpa_zone *z, struct pcptune_cpu_block *b, void *p)
{
	const struct limits *l = p;

	if (pcpa_pcp_ready(b))
		pcpa_pcp_set(z, b, l->high, l->high_min, l->high_max, l->batch);
}

/* The same for CPUs that begin later, and for the end of a lease. */
static void set_default(struct pcpa_defaults *d, const struct limits *l)
{
	bool fixed = l->high && d->rules != 4;

	if (l->batch)
		pcpa_put(&d->batch, l->batch);
	if (l->high_min || (fixed && l->high < d->high_min))
		pcpa_put(&d->high_min, l->high_min ? l->high_min : l->high);
	if (l->high_max || (fixed && l->high > d->high_max))
		pcpa_put(&d->high_max, l->high_max ? l->high_max : l->high);
	if (l->high)
		pcpa_put(&d->high, l->high);
}

int pcpa_set_limits(unsigned high, unsigned high_min, unsigned high_max, unsigned batch)
{
	struct limits l = {high, high_min, high_max, batch};
	int error;

	if (high > PCPTUNE_MAX_HIGH || high_min > PCPTUNE_MAX_HIGH || high_max > PCPTUNE_MAX_HIGH ||
	    batch > PCPTUNE_MAX_BATCH || (high_max && high_min > high_max))
		return -EINVAL;
	error = pcpa_heap_get();
	if (error)
		return error;
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		set_default(&pcpa_heap.defaults[i], &l);
	for_each_cpu(set_cpu, &l);
	return 0;
}
