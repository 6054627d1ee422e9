/* SPDX-License-Identifier: MIT */
/*
 * The lists of a CPU from their first use on: where their places come from, and by which values
 * they are run.
 *
 * Values are our own defaults, or those of a control word, as long as its lease lasts. They are
 * taken over by whoever holds pcp.lock anyway, and what lists hold beyond them is drained at once.
 * A CPU whose places were refused (no address space) goes to the zone, and asks again later.
 */
#include <errno.h>
#include <sys/mman.h>

#include "allocator/pcp_locked.h"
#include "allocator/pcp_private.h"
#include "allocator/rings.h"
#include "allocator/track.h"

#define RING_MIN 256u
#define AGAIN_NS UINT64_C(1000000000) /* after places for the lists of a CPU were refused */

/* ---- places ---- */

static uint32_t ring_capacity(uint32_t high_limit, unsigned order)
{
	uint32_t want = (high_limit + PCPA_MAX_MOVE) >> order, n = RING_MIN;

	while (n < want)
		n *= 2;
	return n;
}

static size_t rings_size(uint32_t high_limit)
{
	size_t n = 0;

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
		n += ring_capacity(high_limit, pcpa_list_orders[i]);
	return n * sizeof(uint64_t);
}

/* Address space for the rings, with half the room as often as it takes. */
static void map_rings(struct pcptune_cpu_block *b, uint32_t high_limit)
{
	const struct pcpa_zone *z = pcpa_zone_of_block(b);
	char *map = MAP_FAILED;

	for (; high_limit; high_limit /= 2) {
		map = mmap(NULL, rings_size(high_limit), PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (map != MAP_FAILED)
			break;
	}
	if (map == MAP_FAILED)
		high_limit = 0;
	for (unsigned i = 0; i < PCPTUNE_N_LISTS && high_limit; i++) {
		uint32_t n = ring_capacity(high_limit, pcpa_list_orders[i]);

		b->list[i].base = z->base;
		b->list[i].pages = (uintptr_t)z->pages;
		b->list[i].private_ring = (uintptr_t)map;
		b->list[i].limit = n;
		map += n * sizeof(uint64_t);
	}
	pcpa_put(&b->pcp.high_limit, high_limit);
}

bool pcpa_pcp_forget_places(struct pcptune_cpu_block *b)
{
	size_t n = 0;

	if (pcpa_rings_mapped(b)) {
		for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++)
			if (pcpa_list_count(&b->list[i]))
				return false;
		pcpa_rings_forget(b);
		return true;
	}
	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		if (pcpa_list_count(&b->list[i]))
			return false;
		n += b->list[i].limit;
	}
	/* one mapping, the ring of list 0 first */
	if (n)
		madvise((void *)(uintptr_t)b->list[0].private_ring, n * sizeof(uint64_t),
			MADV_DONTNEED);
	return true;
}

/* ---- values ---- */

/*
 * The kernel's PCPF_FREE_HIGH_BATCH: with a data-cache slice of more than three batches, a batch
 * stays when consecutive high-order frees drain.
 */
void pcpa_pcp_cache_flag(struct pcptune_cpu_block *b)
{
	struct pcptune_pcp *p = &b->pcp;
	uint32_t flags = pcpa_get(&p->flags) & ~PCPTUNE_RF_FREE_HIGH_BATCH;

	if (pcpa_get(&pcpa_heap.cache_slice) > 3 * pcpa_get(&p->batch))
		flags |= PCPTUNE_RF_FREE_HIGH_BATCH;
	pcpa_put(&p->flags, flags);
	pcpa_locked_lay(b);
}

static void set_defaults(struct pcptune_cpu_block *b, uint32_t zone)
{
	const struct pcpa_defaults *d = &pcpa_heap.defaults[zone];
	struct pcptune_pcp *p = &b->pcp;
	uint32_t most = pcpa_get(&p->high_limit);

	pcpa_put(&p->rules, pcpa_get(&d->rules));
	pcpa_put(&p->high_min, pcptune_min_u32(pcpa_get(&d->high_min), most));
	pcpa_put(&p->high_max, pcptune_min_u32(pcpa_get(&d->high_max), most));
	pcpa_put(&p->batch, pcpa_get(&d->batch));
	pcpa_put(&p->scale_max, pcpa_get(&d->scale_max));
	pcpa_put(&p->high, pcptune_min_u32(pcpa_get(&d->high), most));
	pcpa_put(&p->alloc_factor, 0);
	pcpa_put(&p->free_count, 0);
	pcpa_pcp_cache_flag(b);
}

/* A value of a control word: kept, taken, or clamped and counted. */
static uint32_t control_value(const uint32_t *word, uint32_t now, uint32_t least, uint32_t most)
{
	uint32_t v = pcpa_get(word), clamped;

	if (v == PCPTUNE_KEEP)
		return now;
	clamped = pcptune_clamp_u32(v, least, most);
	if (clamped != v)
		pcpa_proc_add(&pcpa_heap.proc->controls_refused, 1);
	return clamped;
}

/* Blocks on lists that this generation does not have would never be handed out. */
static void drop_lists(struct pcpa_zone *z, struct pcptune_cpu_block *b, enum pcpa_path path)
{
	uint32_t rules = pcpa_get(&b->pcp.rules);

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		uint64_t pages = (uint64_t)pcpa_list_count(&b->list[i]) << pcpa_list_orders[i];

		if (pages && !pcptune_rules_has_list(rules, pcpa_list_orders[i]))
			pcpa_pcp_drain(z, b, i, pages, PCPA_DRAIN_TRIM, path);
	}
}

/* The lists, after any of the values moved. */
static void settle(struct pcpa_zone *z, struct pcptune_cpu_block *b, enum pcpa_path path)
{
	uint64_t pages, high = pcpa_get(&b->pcp.high);

	drop_lists(z, b, path);
	pages = pcpa_pcp_pages(b);
	if (pages > high)
		pcpa_pcp_drain(z, b, 0, pages - high, PCPA_DRAIN_TRIM, path);
}

/*
 * Bounds follow an explicit high where the generation does not tune itself: there they say no more
 * than high does. Else high is kept within them; a lower bound above the upper one wins.
 */
static void set_highs(struct pcptune_pcp *p, uint32_t high, bool given, bool min_given,
		      bool max_given, uint32_t min, uint32_t max)
{
	if (given && !pcpa_pcp_has(p, PCPTUNE_RT_TUNES)) {
		if (!min_given)
			min = pcptune_min_u32(min, high);
		if (!max_given)
			max = pcptune_max_u32(max, high);
	}
	max = pcptune_max_u32(min, max);
	pcpa_put(&p->high_min, min);
	pcpa_put(&p->high_max, max);
	pcpa_put(&p->high, pcptune_clamp_u32(high, min, max));
}

static void take_rules(struct pcptune_pcp *p, uint32_t rules)
{
	if (rules == PCPTUNE_KEEP || rules == pcpa_get(&p->rules))
		return;
	if (!pcptune_rules_known(rules)) {
		pcpa_proc_add(&pcpa_heap.proc->controls_refused, 1);
		return;
	}
	pcpa_put(&p->rules, rules);
	pcpa_put(&p->alloc_factor, 0);
	pcpa_put(&p->free_count, 0);
}

static void take_values(struct pcptune_pcp *p, const struct pcptune_ctl *c)
{
	uint32_t most = pcpa_get(&p->high_limit), high, min, max;

	take_rules(p, pcpa_get(&c->rules));
	pcpa_put(&p->batch, control_value(&c->batch, pcpa_get(&p->batch), 1, PCPTUNE_MAX_BATCH));
	pcpa_put(&p->scale_max,
		 control_value(&c->scale_max, pcpa_get(&p->scale_max), 0, PCPTUNE_MAX_SCALE));
	high = control_value(&c->high, pcpa_get(&p->high), 0, most);
	min = control_value(&c->high_min, pcpa_get(&p->high_min), 0, most);
	max = control_value(&c->high_max, pcpa_get(&p->high_max), 0, most);
	set_highs(p, high, pcpa_get(&c->high) != PCPTUNE_KEEP,
		  pcpa_get(&c->high_min) != PCPTUNE_KEEP, pcpa_get(&c->high_max) != PCPTUNE_KEEP,
		  min, max);
}

bool pcpa_lease_valid(void)
{
	uint64_t until = pcpa_get(&pcpa_heap.header->lease_until_ns);

	return until && (until == UINT64_MAX || pcpa_now_ns() < until);
}

/* A lease that was given and ran out: back to our own values. Counted once for each lease. */
static bool lease_ran_out(void)
{
	static uint64_t counted;
	uint64_t until = pcpa_get(&pcpa_heap.header->lease_until_ns), before = pcpa_get(&counted);

	if (!until || until == UINT64_MAX || pcpa_now_ns() < until)
		return false;
	if (before != until && __atomic_compare_exchange_n(&counted, &before, until, false,
							   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		pcpa_proc_add(&pcpa_heap.proc->lease_expired, 1);
	return true;
}

void pcpa_pcp_control(struct pcpa_zone *z, struct pcptune_cpu_block *b, enum pcpa_path path)
{
	struct pcptune_pcp *p = &b->pcp;
	uint32_t seq = __atomic_load_n(&b->ctl.seq, __ATOMIC_ACQUIRE);
	uint64_t *state = &p->reserved[PCPA_PCP_STATE];

	if (seq == pcpa_get(&p->ack_seq) && !(pcpa_get(state) & PCPA_PCP_ADOPTED))
		return;
	if (lease_ran_out()) {
		if (!(pcpa_get(state) & PCPA_PCP_ADOPTED))
			return;
		set_defaults(b, z->id);
		pcpa_put(state, PCPA_PCP_READY);
		settle(z, b, path);
		return;
	}
	if (seq == pcpa_get(&p->ack_seq))
		return;
	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	pcpa_track_look(b);
	take_values(p, &b->ctl);
	pcpa_pcp_cache_flag(b);
	pcpa_put(state, PCPA_PCP_READY | PCPA_PCP_ADOPTED);
	pcpa_count(&p->controls_adopted, 1);
	__atomic_store_n(&p->ack_seq, seq, __ATOMIC_RELEASE);
	settle(z, b, path);
}

void pcpa_pcp_set(struct pcpa_zone *z, struct pcptune_cpu_block *b, uint32_t high,
		  uint32_t high_min, uint32_t high_max, uint32_t batch)
{
	struct pcptune_pcp *p = &b->pcp;
	struct pcptune_ctl words = {.high = high ? high : PCPTUNE_KEEP,
				    .high_min = high_min ? high_min : PCPTUNE_KEEP,
				    .high_max = high_max ? high_max : PCPTUNE_KEEP,
				    .batch = batch ? batch : PCPTUNE_KEEP,
				    .scale_max = PCPTUNE_KEEP,
				    .rules = PCPTUNE_KEEP};

	if (!pcpa_pcp_ready(b))
		pcpa_pcp_begin(b, z->id);
	take_values(p, &words);
	pcpa_pcp_cache_flag(b);
	settle(z, b, PCPA_PATH_FREE);
}

void pcpa_pcp_tick(struct pcpa_zone *z, struct pcptune_cpu_block *b)
{
	struct pcptune_rule_state s;
	uint32_t pages;

	pcpa_pcp_fold(b);
	pcpa_state_load(&b->pcp, &s);
	pages = pcptune_rules_tick(&s, (uint32_t)pcpa_pcp_pages(b));
	pcpa_state_store(b, &s);
	pcpa_count_min_store(&b->pcp, s.count_min);
	if (pages)
		pcpa_pcp_drain(z, b, 0, pages, PCPA_DRAIN_DECAY, PCPA_PATH_AGENT);
}

/* ---- first use, and fork ---- */

/* When places were refused: before that nobody asks for some again. */
static uint64_t refused_until;

static void get_rings(struct pcptune_cpu_block *b, uint32_t zone)
{
	int saved = errno;

	if (pcpa_by_sections(b))
		pcpa_sections_begin(b, pcpa_heap.high_limit[zone]);
	else
		map_rings(b, pcpa_heap.high_limit[zone]);
	if (!pcpa_get(&b->pcp.high_limit))
		pcpa_put(&refused_until, pcpa_now_ns() + AGAIN_NS);
	errno = saved;
}

void pcpa_pcp_begin(struct pcptune_cpu_block *b, uint32_t zone)
{
	get_rings(b, zone);
	pcpa_track_begin(b);
	if (!pcpa_by_sections(b))
		pcpa_pcp_edges(b);
	set_defaults(b, zone);
	pcpa_put(&b->pcp.reserved[PCPA_PCP_STATE], PCPA_PCP_READY);
}

/* high was cut down to nothing, so what was wanted of it is taken anew. */
bool pcpa_pcp_begin_again(struct pcptune_cpu_block *b, uint32_t zone)
{
	if (pcpa_now_ns() < pcpa_get(&refused_until))
		return false;
	get_rings(b, zone);
	if (!pcpa_get(&b->pcp.high_limit))
		return false;
	if (!pcpa_by_sections(b))
		pcpa_pcp_edges(b);
	set_defaults(b, zone);
	if (pcpa_get(&b->pcp.reserved[PCPA_PCP_STATE]) & PCPA_PCP_ADOPTED) {
		take_values(&b->pcp, &b->ctl);
		pcpa_pcp_cache_flag(b);
	}
	return true;
}

void pcpa_pcp_restart(struct pcptune_cpu_block *b, uint32_t zone)
{
	uint64_t *state = &b->pcp.reserved[PCPA_PCP_STATE];

	for (unsigned i = 0; i < PCPTUNE_N_LISTS; i++) {
		struct pcptune_list *l = &b->list[i];

		if (pcpa_by_sections(b))
			pcpa_sections_begin_at_zero(l);
		else
			l->reserved += (uint32_t)pcpa_list_net(l);
		l->tail = -(int64_t)pcpa_list_count(l);
		l->word = 0;
		b->pcp.reserved[PCPA_PCP_OPS + i] = 0;
	}
	b->ctl = (struct pcptune_ctl){0};
	b->zctr = (struct pcptune_zctr){0};
	b->pcp.ack_seq = 0;
	b->pcp.controls_adopted = 0;
	b->pcp.high_raised = 0;
	if (*state & PCPA_PCP_ADOPTED) {
		*state = PCPA_PCP_READY;
		set_defaults(b, zone);
	}
	pcpa_track_begin(b);
	pcpa_sections_restart(b);
	if (!pcpa_by_sections(b))
		pcpa_pcp_edges(b);
}
