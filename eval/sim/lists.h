/* SPDX-License-Identifier: MIT */
/*
 * The lists of one CPU as numbers: how many blocks each holds, and what the zone lock is taken for.
 *
 * What to move and when is asked of pcptune/rules.h, as the allocator does; here is only the
 * counting. Several lists share one count, a refill fills one list, a drain begins with the list
 * that was freed to and goes on to the next, as in the kernel since 5.18. Runs of pages are one
 * step, so that a model of hundreds of CPUs is fast. No memory, no clock, no lock; one thread.
 */
#ifndef PCPTUNE_SIM_LISTS_H
#define PCPTUNE_SIM_LISTS_H

#include <pcptune/rules.h>

#define SIM_LISTS_MAX 8u

struct sim_lists {
	struct pcptune_rule_state s;
	uint32_t pages; /* on all lists */
	uint32_t n;	/* lists in use */
	uint32_t zone_state;
	uint32_t count[SIM_LISTS_MAX]; /* blocks */
	uint8_t order[SIM_LISTS_MAX];
};

/* What a drain did. pages 0: there was none. */
struct sim_drain {
	uint32_t pages;
	uint32_t blocks;
	uint32_t holds; /* of the zone lock */
	bool free_high;
};

static inline void sim_drain_add(struct sim_drain *d, struct sim_drain part)
{
	d->pages += part.pages;
	d->blocks += part.blocks;
	d->holds += part.holds;
}

/* The list is empty: fills it. Returns the pages that one hold of the zone lock moves. */
static inline uint32_t sim_lists_refill(struct sim_lists *l, uint32_t list)
{
	uint32_t n = pcptune_rules_refill(&l->s, l->order[list], l->pages, l->zone_state);

	l->count[list] += n;
	l->pages += n << l->order[list];
	return n << l->order[list];
}

/* Takes up to n blocks of what the list holds; returns how many there were. */
static inline uint32_t sim_lists_take(struct sim_lists *l, uint32_t list, uint32_t n)
{
	n = pcptune_min_u32(n, l->count[list]);
	l->count[list] -= n;
	l->pages -= n << l->order[list];
	pcptune_rules_on_allocs(&l->s, n);
	pcptune_rules_taken(&l->s, l->pages);
	return n;
}

/* Gives pages back, beginning with `list`. */
static inline struct sim_drain sim_lists_drain(struct sim_lists *l, uint32_t list, uint32_t pages)
{
	uint32_t most = pcptune_rules_hold(l->s.rules, l->s.batch, l->s.scale_max);
	struct sim_drain d = {0};

	while (pages && l->pages) {
		uint32_t want = pcptune_min_u32(pages, most), done = 0;

		while (done < want && l->pages) {
			uint32_t order = l->order[list];
			uint32_t blocks = (want - done + (1u << order) - 1) >> order;
			uint32_t k = pcptune_min_u32(blocks, l->count[list]);

			l->count[list] -= k;
			l->pages -= k << order;
			done += k << order;
			d.blocks += k;
			if (k < blocks)
				list = (list + 1) % l->n;
		}
		d.pages += done;
		d.holds++;
		pages = pcptune_sub0_u32(pages, done);
	}
	return d;
}

/* Other limits; what no longer fits, or has no list any more, goes to the zone. */
static inline struct sim_drain sim_lists_limits(struct sim_lists *l,
						const struct pcptune_rule_state *to)
{
	struct sim_drain d = {0};
	uint32_t lose;

	l->s.high = to->high;
	l->s.high_min = to->high_min;
	l->s.high_max = to->high_max;
	l->s.batch = to->batch;
	l->s.scale_max = to->scale_max;
	if (l->s.rules != to->rules)
		l->s.alloc_factor = l->s.free_count = 0;
	l->s.rules = to->rules;
	for (uint32_t i = 0; i < l->n; i++) {
		lose = l->count[i] << l->order[i];
		if (!lose || pcptune_rules_has_list(to->rules, l->order[i]))
			continue;
		sim_drain_add(&d, sim_lists_drain(l, i, lose));
	}
	if (l->pages > to->high) {
		sim_drain_add(&d, sim_lists_drain(l, 0, l->pages - to->high));
	}
	return d;
}

/* Frees one block. */
static inline struct sim_drain sim_lists_put(struct sim_lists *l, uint32_t list)
{
	uint32_t order = l->order[list], pages;
	struct sim_drain d = {0};
	bool free_high;

	l->count[list]++;
	l->pages += 1u << order;
	pages = pcptune_rules_free(&l->s, order, l->pages, l->zone_state, &free_high);
	if (pages)
		d = sim_lists_drain(l, list, pages);
	d.free_high = free_high;
	return d;
}

/*
 * Frees up to n blocks in a row, as far as nothing drains: the caller goes on with
 * sim_lists_put(). Returns how many.
 */
static inline uint32_t sim_lists_put_run(struct sim_lists *l, uint32_t list, uint32_t n)
{
	uint32_t k;

	if (l->order[list] || l->zone_state)
		return 0;
	k = pcptune_rules_free_run(&l->s, l->pages, n);
	l->count[list] += k;
	l->pages += k;
	return k;
}

/* One tick of decay. */
static inline struct sim_drain sim_lists_tick(struct sim_lists *l)
{
	uint32_t pages = pcptune_rules_tick(&l->s, l->pages);

	return pages ? sim_lists_drain(l, 0, pages) : (struct sim_drain){0};
}

#endif
