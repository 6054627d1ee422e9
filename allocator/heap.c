/* SPDX-License-Identifier: MIT */
/*
 * Set-up at the first allocation: environment, limits, zones, segment.
 *
 * One thread does it under a lock; pcpa_in_zone is set meanwhile, so that a signal handler, or a
 * malloc that we are ourselves (preload) and that something called here asks for memory, fails
 * cleanly instead of waiting for its own thread. A failure leaves nothing behind but address
 * space that is used by the next attempt.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <pcptune/rules.h>
#include <pcptune/settings.h>

#include "allocator/deferred.h"
#include "allocator/depot.h"
#include "allocator/events.h"
#include "allocator/fork.h"
#include "allocator/heap.h"
#include "allocator/limits.h"
#include "allocator/pcp_locked.h"
#include "allocator/rseq.h"
#include "allocator/track.h"

#define HIGH_LIMIT_LEAST 32768u
#define ZONE_PAGES_MAX	 (UINT64_C(1) << 31)
_Static_assert(PCPA_ZONE_ALIGN == UINT64_C(4) << 20 && PCPA_GRAIN_MAX == 4096,
	       "settings.def has them");

static struct pcpa_lock start_lock;

struct options {
	uint64_t cpus, zones, size, high, batch, rules, idle_ms, agent, grain;
	enum pcpa_bulk_free bulk_free;
};

void pcpa_heap_lock(void)
{
	pcpa_lock_take(&start_lock);
}

void pcpa_heap_unlock(void)
{
	pcpa_lock_release(&start_lock);
}

void pcpa_heap_forget_waiters(void)
{
	pcpa_lock_forget_waiters(&start_lock);
}

void pcpa_heap_is_preload(void)
{
	pcpa_heap_seg_flags |= PCPTUNE_SEG_PRELOAD;
}

/* ---- environment ---- */

static uint64_t option(enum pcptune_setting_id id, uint64_t otherwise)
{
	return pcptune_setting_or(id, secure_getenv(pcptune_settings[id].name), otherwise);
}

static char refused[256]; /* written once, before `ready` */

/* Standard error is not ours: what means nothing is counted, the first is kept for who asks. */
static void note_refused(void)
{
	const char *first;
	unsigned n = getauxval(AT_SECURE) ? 0 : pcptune_settings_refused(environ, &first);

	if (n)
		pcptune_setting_explain(first, refused, sizeof(refused));
	pcpa_put(&pcpa_heap.proc->settings_refused, n);
}

const char *pcpa_refused_setting(void)
{
	return !pcpa_heap_start() && *refused ? refused : NULL;
}

static struct options read_options(void)
{
	return (struct options){
		.cpus = option(PCPTUNE_SET_CPUS, 0),
		.zones = option(PCPTUNE_SET_ZONES, 0),
		.size = option(PCPTUNE_SET_SIZE, UINT64_MAX),
		.high = option(PCPTUNE_SET_HIGH, 0),
		.batch = option(PCPTUNE_SET_BATCH, 0),
		.rules = option(PCPTUNE_SET_RULES, PCPTUNE_RULES_G6),
		.idle_ms = option(PCPTUNE_SET_IDLE_MS, 5000),
		.agent = option(PCPTUNE_SET_AGENT, PCPA_AGENT_LATER),
		.grain = option(PCPTUNE_SET_GRAIN, PCPA_GRAIN_DEFAULT),
		.bulk_free =
			(enum pcpa_bulk_free)option(PCPTUNE_SET_BULK_FREE, PCPA_BULK_FREE_DEFAULT),
	};
}

/* ---- zones ---- */

static uint64_t zone_pages(const struct options *o, uint32_t n_zones)
{
	uint64_t pages = pcpa_limits_memory_pages() / n_zones;
	uint64_t space = pcpa_limits_address_space() / n_zones >> 12;

	if (space < pages)
		pages = space;
	if (o->size >> 12 < pages)
		pages = o->size >> 12;
	if (pages > ZONE_PAGES_MAX)
		pages = ZONE_PAGES_MAX;
	return pages < PCPA_BLOCK ? PCPA_BLOCK : pages;
}

/* A zone that was reserved by an attempt that failed later is used again. */
static int reserve_zones(const struct options *o, const int *nodes, uint32_t n)
{
	uint64_t pages = zone_pages(o, n);

	pcpa_heap.n_zones = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct pcpa_zone *z = &pcpa_heap.zones[i];

		if (!z->n_pages && pcpa_zone_reserve(z, i, pages, nodes[i]))
			break;
		pcpa_heap.n_zones++;
	}
	return pcpa_heap.n_zones ? 0 : -ENOMEM;
}

static void set_defaults(struct pcpa_defaults *d, const struct options *o, uint64_t managed,
			 uint32_t low_wmark, uint32_t cpus)
{
	uint32_t batch = o->batch ? (uint32_t)o->batch : pcptune_zone_batch(managed);
	struct pcptune_bounds b =
		pcptune_rules_bounds((uint32_t)o->rules, managed, low_wmark, cpus, batch, 0);

	d->rules = (uint32_t)o->rules;
	d->batch = b.batch;
	d->scale_max = PCPTUNE_SCALE_MAX_DEFAULT;
	d->high = b.high;
	d->high_min = b.high_min;
	d->high_max = b.high_max;
	if (o->high)
		d->high = d->high_min = d->high_max = (uint32_t)o->high;
}

static void size_zone(uint32_t i, const struct options *o)
{
	struct pcpa_zone *z = &pcpa_heap.zones[i];
	uint32_t cpus = (pcpa_heap.n_run + pcpa_heap.n_zones - 1) / pcpa_heap.n_zones;
	uint64_t limit = z->n_pages / 2 / cpus;

	pcpa_depot_make(z, pcpa_heap.n_slots, cpus);
	pcpa_limits_watermarks(z->n_pages, &z->wmark_low, &z->wmark_high);
	set_defaults(&pcpa_heap.defaults[i], o, z->n_pages, z->wmark_low, cpus);
	if (limit < HIGH_LIMIT_LEAST)
		limit = HIGH_LIMIT_LEAST;
	if (limit > z->n_pages / 8)
		limit = z->n_pages / 8;
	/* room for one largest move must remain below the 24 bits of a list word */
	if (limit > PCPTUNE_MAX_HIGH - (PCPTUNE_MAX_BATCH << PCPTUNE_MAX_SCALE))
		limit = PCPTUNE_MAX_HIGH - (PCPTUNE_MAX_BATCH << PCPTUNE_MAX_SCALE);
	pcpa_heap.high_limit[i] = (uint32_t)limit;
}

static void first_gauges(const int *nodes)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++) {
		struct pcpa_zone *z = &pcpa_heap.zones[i];

		z->gauges->id = i;
		z->gauges->node = nodes[i];
		z->gauges->managed_pages = z->n_pages;
		z->gauges->low_wmark_pages = z->wmark_low;
		pcpa_zone_publish(z);
	}
}

static int set_up(void)
{
	struct options o = read_options();
	int nodes[PCPTUNE_MAX_ZONES];
	uint32_t n = pcpa_cpu_nodes(nodes);
	int error;

	for (uint32_t i = 0; i < o.zones; i++)
		nodes[i] = -1;
	error = reserve_zones(&o, nodes, o.zones ? (uint32_t)o.zones : n);
	if (error)
		return error;
	pcpa_heap.n_virtual = (uint32_t)o.cpus;
	pcpa_heap.n_slots = pcpa_cpu_slots(pcpa_heap.n_virtual);
	pcpa_heap.n_run = o.cpus ? (uint32_t)o.cpus : pcpa_limits_run_cpus();
	pcpa_heap.idle_ms = (uint32_t)o.idle_ms;
	/* a dozen files: with an agent it is the agent who reads them */
	if (!o.agent)
		pcpa_heap.cache_slice = pcpa_cpu_cache_slice();
	pcpa_heap.agent = (uint32_t)o.agent;
	pcpa_heap.bulk_free = o.bulk_free;
	pcpa_heap.grain = (uint32_t)o.grain;
	pcpa_cpu_homes(nodes, !o.zones);
	pcpa_events_start();
	if (pcpa_heap.events && !pcpa_heap.grain)
		pcpa_heap.grain = PCPA_GRAIN_DEFAULT;
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		size_zone(i, &o);
	error = pcpa_segment_make();
	if (error)
		return error;
	first_gauges(nodes);
	note_refused();
	error = pcpa_fork_register();
	if (error)
		return error;
	pcpa_rseq_start();
	if (!pcpa_fast_cpus())
		pcpa_locked_begin();
	return 0;
}

int pcpa_heap_start(void)
{
	int error = 0, saved = errno;

	if (pcpa_in_zone)
		return -EAGAIN;
	pcpa_in_zone++;
	pcpa_lock_take(&start_lock);
	if (!pcpa_heap.ready) {
		error = set_up();
		if (!error)
			__atomic_store_n(&pcpa_heap.ready, 1, __ATOMIC_RELEASE);
	}
	pcpa_lock_release(&start_lock);
	/* what a handler of this thread freed meanwhile */
	if (!--pcpa_in_zone && !error)
		pcpa_deferred_flush();
	errno = saved;
	return error;
}
