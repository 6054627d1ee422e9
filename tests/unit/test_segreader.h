/* SPDX-License-Identifier: MIT */
/*
 * Segments made by hand, as segment.h describes them, for the tests and fuzzers of the reader.
 *
 * The maker keeps a writable mapping of its own beside the reader's, as a target does; `seals` and
 * every header word can be spoilt before the descriptor is handed over.
 */
#ifndef TESTS_UNIT_TEST_SEGREADER_H
#define TESTS_UNIT_TEST_SEGREADER_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <pcptune/segment.h>

struct made {
	int fd;
	size_t bytes;
	char *base;
	struct pcptune_seg_header *h;
};

static inline struct pcptune_cpu_block *made_cpu(const struct made *m, uint32_t index)
{
	return (struct pcptune_cpu_block *)(void *)(m->base + m->h->cpus_off +
						    (size_t)index * m->h->cpu_stride);
}

static inline struct pcptune_track *made_track(const struct made *m, uint32_t index)
{
	return (struct pcptune_track *)(void *)(m->base + m->h->tracks_off +
						(size_t)index * m->h->track_stride);
}

static inline struct pcptune_zone_block *made_zone(const struct made *m, uint32_t zone)
{
	return (struct pcptune_zone_block *)(void *)(m->base + m->h->zones_off +
						     (size_t)zone * m->h->zone_stride);
}

static inline struct pcptune_proc_block *made_proc(const struct made *m)
{
	return (struct pcptune_proc_block *)(void *)(m->base + m->h->proc_off);
}

static inline struct pcptune_desc *made_desc(const struct made *m, uint32_t i)
{
	return (struct pcptune_desc *)(void *)(m->base + m->h->desc_off +
					       (size_t)i * m->h->desc_size);
}

static inline size_t made_round(size_t n)
{
	return (n + 127) & ~(size_t)127;
}

static inline void made_header(struct pcptune_seg_header *h, uint32_t zones, uint32_t cpus)
{
	static const uint8_t orders[] = PCPTUNE_LIST_ORDERS;

	h->magic = PCPTUNE_SEG_MAGIC;
	h->layout = PCPTUNE_SEG_LAYOUT;
	h->header_size = sizeof(*h);
	h->start_boot_ns = 11;
	h->random_id = 22;
	h->run_tag = 33;
	h->n_zones = zones;
	h->n_cpus = cpus;
	h->n_desc = 2;
	h->desc_size = sizeof(struct pcptune_desc);
	h->zone_stride = sizeof(struct pcptune_zone_block);
	h->cpu_stride = sizeof(struct pcptune_cpu_block);
	h->desc_off = made_round(sizeof(*h));
	h->proc_off = h->desc_off + made_round((size_t)h->n_desc * h->desc_size);
	h->zones_off = h->proc_off + sizeof(struct pcptune_proc_block);
	h->cpus_off = h->zones_off + (size_t)zones * h->zone_stride;
	h->tracks_off = h->cpus_off + (size_t)zones * cpus * h->cpu_stride;
	h->track_stride = sizeof(struct pcptune_track);
	h->grain = 16;
	h->size = h->tracks_off + (size_t)zones * cpus * h->track_stride;
	h->pid = 4242;
	h->mode = PCPTUNE_MODE_LOCKED;
	h->n_lists = PCPTUNE_N_LISTS;
	memcpy(h->list_orders, orders, sizeof(orders));
	strcpy(h->name, "made");
}

/* A valid segment, not yet sealed; aborts when the system can not make one. */
static inline struct made made_new(uint32_t zones, uint32_t cpus)
{
	struct pcptune_seg_header h = {0};
	struct made m;

	made_header(&h, zones, cpus);
	m.bytes = (h.size + 4095) & ~(size_t)4095;
	m.fd = memfd_create("made", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m.fd < 0 || ftruncate(m.fd, (off_t)m.bytes))
		abort();
	m.base = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	if (m.base == MAP_FAILED)
		abort();
	m.h = (struct pcptune_seg_header *)(void *)m.base;
	*m.h = h;
	for (uint32_t z = 0; z < zones; z++) {
		made_zone(&m, z)->id = z;
		made_zone(&m, z)->node = (int32_t)z;
	}
	for (uint32_t i = 0; i < zones * cpus; i++)
		made_cpu(&m, i)->pcp.lists = (1u << PCPTUNE_N_LISTS) - 1;
	for (uint32_t i = 0; i < 2; i++) {
		struct pcptune_desc *d = made_desc(&m, i);

		snprintf(d->name, sizeof(d->name), "field%u", i);
		strcpy(d->unit, "pages");
		d->kind = PCPTUNE_KIND_COUNTER;
		d->level = PCPTUNE_LEVEL_CPU;
		d->width = 8;
		strcpy(d->line, "a field");
	}
	return m;
}

static inline void made_seal(struct made *m, int seals)
{
	if (fcntl(m->fd, F_ADD_SEALS, seals))
		abort();
}

/* The descriptor belongs to the reader when it was opened: take_fd false then. */
static inline void made_free(struct made *m, int close_fd)
{
	munmap(m->base, m->bytes);
	if (close_fd)
		close(m->fd);
}

/* What an allocator does to a list: one committing store each. */
static inline void made_push(struct pcptune_list *l)
{
	__atomic_store_n(&l->word, l->word + PCPTUNE_WORD_PUSH, __ATOMIC_RELEASE);
}

static inline void made_pop(struct pcptune_list *l)
{
	__atomic_store_n(&l->word, l->word + PCPTUNE_WORD_POP, __ATOMIC_RELEASE);
}

static inline void made_refill(struct pcptune_list *l, uint32_t blocks)
{
	__atomic_store_n(&l->tail, l->tail - (int64_t)blocks, __ATOMIC_RELEASE);
}

static inline void made_drain(struct pcptune_list *l, uint32_t blocks)
{
	__atomic_store_n(&l->tail, l->tail + (int64_t)blocks, __ATOMIC_RELEASE);
}

/* The end of a hold of the zone lock: after what it counted. */
static inline void made_hold(struct pcptune_cpu_block *c)
{
	__atomic_store_n(&c->pcp.holds, c->pcp.holds + 1, __ATOMIC_RELEASE);
}

/* Counters have one writer; the store is atomic for readers. */
#define made_add(counter, n) __atomic_store_n(&(counter), (counter) + (n), __ATOMIC_RELAXED)

#endif
