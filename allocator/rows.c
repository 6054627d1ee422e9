/* SPDX-License-Identifier: MIT */
/*
 * The rows of each CPU (rows.h): a short array, the oldest first, in one mapping that is touched as
 * it is used. To look for a length is to look at two or three lines.
 */
#include <errno.h>
#include <sys/mman.h>

#include "allocator/rows.h"

struct row {
	uint32_t pfn;
	uint16_t pages;
	uint16_t seen; /* by the agent, since it came */
};

struct shelf {
	uint32_t n;
	uint32_t pages;
	struct row row[PCPA_ROWS];
} __attribute__((aligned(64)));

struct pcpa_rows {
	uint32_t n_slots;
	uint32_t most; /* pages of a shelf */
	struct shelf shelf[];
};

void pcpa_rows_make(struct pcpa_zone *z, uint32_t n_slots, uint32_t cpus)
{
	uint32_t share = z->n_pages / 64 / (cpus ? cpus : 1);
	size_t size = sizeof(struct pcpa_rows) + n_slots * sizeof(struct shelf);
	int saved = errno;
	struct pcpa_rows *r;

	if (z->rows)
		return;
	r = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	errno = saved;
	if (r == MAP_FAILED)
		return;
	r->n_slots = n_slots;
	r->most = share < PCPA_ROWS_PAGES ? share : PCPA_ROWS_PAGES;
	z->rows = r;
}

/* Each block of a row goes to another place. Their orders are in their tags. */
static inline void tag_blocks(struct pcpa_zone *z, uint32_t pfn, uint32_t pages,
			      enum pcpa_place place)
{
	for (uint32_t at = pfn, order; at < pfn + pages; at += 1u << order) {
		order = pcpa_tag_get(z, at) & 0xff;
		pcpa_hand_out(z, at, place, place == PCPA_NOWHERE ? 0 : order);
	}
}

static void put_number(struct shelf *s, uint32_t n, uint32_t pages)
{
	pcpa_put(&s->n, n);
	s->pages = pages;
}

/* Row i leaves its place. */
static struct row take_off(struct shelf *s, uint32_t i)
{
	struct row r = s->row[i];

	for (; i + 1 < s->n; i++)
		s->row[i] = s->row[i + 1];
	put_number(s, s->n - 1, s->pages - r.pages);
	return r;
}

static void to_buddies(struct pcpa_zone *z, uint32_t pfn, uint32_t pages)
{
	tag_blocks(z, pfn, pages, PCPA_NOWHERE);
	pcpa_zone_give_run(z, pfn, pfn + pages);
}

uint32_t pcpa_rows_take(struct pcpa_zone *z, uint32_t slot, unsigned order, uint32_t pages)
{
	struct shelf *s;

	if (!z->rows)
		return PCPA_NO_PAGE;
	s = &z->rows->shelf[slot];
	for (uint32_t i = s->n; i-- > 0;) {
		struct row r = s->row[i];

		if (r.pages != pages || r.pfn & ((1u << order) - 1))
			continue;
		take_off(s, i);
		tag_blocks(z, r.pfn, pages, PCPA_IN_USE);
		z->free_pages -= pages;
		return r.pfn;
	}
	return PCPA_NO_PAGE;
}

/*
 * One that began at another place than it does when it is cut off would not fit where it is asked
 * for.
 */
static bool is_placed(uint32_t pfn, uint32_t pages)
{
	return !(pfn & ((UINT32_C(2) << (31 - __builtin_clz(pages - 1))) - 1));
}

void pcpa_rows_give(struct pcpa_zone *z, uint32_t slot, uint32_t pfn, uint32_t pages)
{
	struct shelf *s = z->rows && !z->state ? &z->rows->shelf[slot] : NULL;

	z->free_pages += pages;
	if (!s || pages > z->rows->most || !is_placed(pfn, pages)) {
		to_buddies(z, pfn, pages);
		return;
	}
	while (s->n == PCPA_ROWS || s->pages + pages > z->rows->most) {
		struct row oldest = take_off(s, 0);

		to_buddies(z, oldest.pfn, oldest.pages);
	}
	tag_blocks(z, pfn, pages, PCPA_IN_DEPOT);
	s->row[s->n] = (struct row){pfn, (uint16_t)pages, 0};
	put_number(s, s->n + 1, s->pages + pages);
}

bool pcpa_rows_has(const struct pcpa_zone *z, uint32_t slot)
{
	return z->rows && pcpa_get(&z->rows->shelf[slot].n);
}

/* The rows of one CPU that were seen before, or all; the others are seen now. */
static void leave(struct pcpa_zone *z, struct shelf *s, bool all)
{
	for (uint32_t i = s->n; i-- > 0;) {
		if (all || s->row[i].seen) {
			struct row r = take_off(s, i);

			to_buddies(z, r.pfn, r.pages);
		} else {
			s->row[i].seen = 1;
		}
	}
}

void pcpa_rows_age(struct pcpa_zone *z, uint32_t slot, struct pcptune_zctr *ctr)
{
	if (!pcpa_rows_has(z, slot))
		return;
	pcpa_zone_enter(z, PCPA_PATH_AGENT, ctr);
	leave(z, &z->rows->shelf[slot], false);
	pcpa_zone_leave(z);
}

bool pcpa_rows_empty(struct pcpa_zone *z, enum pcpa_path path, struct pcptune_zctr *ctr)
{
	bool any = false;

	for (uint32_t slot = 0; z->rows && slot < z->rows->n_slots; slot++) {
		if (!pcpa_rows_has(z, slot))
			continue;
		any = true;
		pcpa_zone_enter(z, path, ctr);
		leave(z, &z->rows->shelf[slot], true);
		pcpa_zone_leave(z);
	}
	return any;
}

/* ---- audit ---- */

static const char *check_row(const struct pcpa_zone *z, const struct row *r)
{
	for (uint32_t at = 0; at < r->pages; at += 1u << pcpa_piece_order(at, r->pages)) {
		unsigned order = pcpa_piece_order(at, r->pages);

		if (r->pfn + at >= z->grown ||
		    pcpa_tag_get(z, r->pfn + at) != pcpa_tag(PCPA_IN_DEPOT, order))
			return "a block of a row that is kept is not marked so";
	}
	return NULL;
}

static const char *check_shelf(const struct pcpa_zone *z, const struct shelf *s,
			       uint64_t *ret_pages)
{
	const char *what = NULL;
	uint32_t pages = 0;

	if (s->n > PCPA_ROWS)
		return "there are more rows than places for them";
	for (uint32_t i = 0; i < s->n && !what; i++) {
		what = check_row(z, &s->row[i]);
		pages += s->row[i].pages;
	}
	if (!what && (pages != s->pages || pages > z->rows->most))
		what = "rows have more pages than they may, or not those that were counted";
	*ret_pages += pages;
	return what;
}

const char *pcpa_rows_check(const struct pcpa_zone *z, uint64_t *ret_pages)
{
	const char *what = NULL;

	for (uint32_t slot = 0; z->rows && slot < z->rows->n_slots && !what; slot++)
		what = check_shelf(z, &z->rows->shelf[slot], ret_pages);
	return what;
}
