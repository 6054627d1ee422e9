/* SPDX-License-Identifier: MIT */
/*
 * The allocator against a trivial one: a map of pages with a byte for each.
 *
 * Random operations of every kind: single blocks, bulk, exact sizes, trims, changes of limits. No
 * block may overlap another or change its content, and an allocation may fail only when the map has
 * no aligned run of free pages that would do; numbers must agree with the map all the while. The
 * zone is so small that it is exhausted again and again.
 *
 * DIFFERENTIAL_OPS=N is the number of operations of all cases together (default 5 million, under
 * sanitizers less), DIFFERENTIAL_SEED=N repeats a run: the seed is printed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "allocator/heap.h"
#include "tests/unit/alloc_child.h"
#include "tests/unit/random.h"

#define ZONE_PAGES  16384u /* 64 MiB */
#define SLOTS	    3072u
#define BULK	    64u
#define THREADS	    4u
#define CHECK_EVERY 100000u
#define AUDIT_EVERY 1000000u

static uint64_t operations, first_seed;

/* What is out: one block, or a row of blocks (bulk), or an exact size. */
struct slot {
	void **rows; /* of bulk; NULL: none */
	char *block;
	size_t bytes; /* of an exact size, 0: not one */
	uint32_t n, pages;
	unsigned order;
};

/* A thread and the allocations that it owns. */
struct player {
	uint64_t seed, ops;
	uint8_t number; /* in the map */
	bool alone;	/* so a failure can be judged */
	uint64_t pages, n_failed;
	struct slot slots[SLOTS];
};

static uint8_t map[ZONE_PAGES];

static uint32_t rnd(struct player *p, uint32_t n)
{
	return (uint32_t)((random_next(&p->seed) >> 16) % n);
}

/* ---- the trivial allocator ---- */

static bool map_has(unsigned order)
{
	static const uint8_t free_run[1u << PCPA_MAX_ORDER];

	for (uint32_t at = 0; at < ZONE_PAGES; at += 1u << order)
		if (!memcmp(map + at, free_run, (size_t)1 << order))
			return true;
	return false;
}

static uint32_t place_of(const void *block)
{
	uintptr_t at = (uintptr_t)block - pcpa_heap.zones[0].base;

	CHECK(pcpa_owns(block) && at % PCPA_PAGE_SIZE == 0 && at / PCPA_PAGE_SIZE < ZONE_PAGES);
	return (uint32_t)(at / PCPA_PAGE_SIZE);
}

static uint64_t stamp_of(const struct player *p, const char *block)
{
	return (uint64_t)(uintptr_t)block * UINT64_C(0x9e3779b97f4a7c15) + p->number;
}

static void enter(struct player *p, char *block, uint32_t pages, size_t align)
{
	uint32_t at = place_of(block);
	uint64_t stamp = stamp_of(p, block);

	CHECK((uintptr_t)block % align == 0 && at + pages <= ZONE_PAGES);
	for (uint32_t i = 0; i < pages; i++)
		CHECK(__atomic_exchange_n(&map[at + i], p->number, __ATOMIC_RELAXED) == 0);
	memcpy(block, &stamp, sizeof(stamp));
	memcpy(block + (size_t)pages * PCPA_PAGE_SIZE - sizeof(stamp), &stamp, sizeof(stamp));
	p->pages += pages;
}

static void leave(struct player *p, const char *block, uint32_t pages)
{
	uint32_t at = place_of(block);
	uint64_t stamp = stamp_of(p, block);

	CHECK(!memcmp(block, &stamp, sizeof(stamp)));
	CHECK(!memcmp(block + (size_t)pages * PCPA_PAGE_SIZE - sizeof(stamp), &stamp,
		      sizeof(stamp)));
	for (uint32_t i = 0; i < pages; i++)
		CHECK(__atomic_exchange_n(&map[at + i], 0, __ATOMIC_RELAXED) == p->number);
	p->pages -= pages;
}

/* An allocation failed that needs an aligned run of this order. */
static void failed(struct player *p, unsigned order)
{
	p->n_failed++;
	if (p->alone)
		CHECK(!map_has(order));
}

/* ---- operations ---- */

static unsigned some_order(struct player *p)
{
	uint32_t r = rnd(p, 1000);

	return r < 600 ? 0 : r < 900 ? 1 + rnd(p, 3) : r < 990 ? 4 + rnd(p, 6) : 10;
}

static void take_one(struct player *p, struct slot *s)
{
	s->order = some_order(p);
	s->pages = 1u << s->order;
	s->block = pcpa_alloc(s->order);
	if (s->block)
		enter(p, s->block, s->pages, (size_t)s->pages * PCPA_PAGE_SIZE);
	else
		failed(p, s->order);
}

static void take_bulk(struct player *p, struct slot *s)
{
	void *blocks[BULK];
	uint32_t wanted = 1 + rnd(p, BULK);

	s->order = rnd(p, 4) ? 0 : rnd(p, 6);
	s->pages = 1u << s->order;
	s->n = (uint32_t)pcpa_alloc_bulk(s->order, wanted, blocks);
	CHECK(s->n <= wanted);
	for (uint32_t i = 0; i < s->n; i++)
		enter(p, blocks[i], s->pages, (size_t)s->pages * PCPA_PAGE_SIZE);
	if (s->n < wanted)
		failed(p, s->order);
	if (!s->n)
		return;
	s->rows = malloc(s->n * sizeof(*s->rows));
	CHECK(s->rows);
	memcpy(s->rows, blocks, s->n * sizeof(*blocks));
}

static unsigned order_for(size_t pages)
{
	unsigned order = 0;

	while ((size_t)1 << order < pages)
		order++;
	return order;
}

static void take_exact(struct player *p, struct slot *s)
{
	size_t pages = 1 + (rnd(p, 8) ? rnd(p, 40) : rnd(p, 1024)), align;
	unsigned order;

	align = rnd(p, 4) ? 0 : (size_t)1 << rnd(p, 19);
	s->bytes = pages * PCPA_PAGE_SIZE - rnd(p, PCPA_PAGE_SIZE);
	s->block = pcpa_alloc_exact(s->bytes, align);
	order = order_for(pages);
	/* up to 8 pages whole blocks, which have lists */
	s->pages = (uint32_t)(pages <= 8 ? (size_t)1 << order : pages);
	if (align / PCPA_PAGE_SIZE > (size_t)1 << order)
		order = order_for(align / PCPA_PAGE_SIZE);
	if (s->block)
		enter(p, s->block, s->pages, align > PCPA_PAGE_SIZE ? align : PCPA_PAGE_SIZE);
	else
		failed(p, order);
}

static void give(struct player *p, struct slot *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		leave(p, s->rows[i], s->pages);
	if (s->block)
		leave(p, s->block, s->pages);
	if (s->rows)
		pcpa_free_bulk(s->order, s->n, s->rows);
	else if (s->bytes)
		pcpa_free_exact(s->block, s->bytes);
	else
		pcpa_free(s->block, s->order);
	free(s->rows);
	memset(s, 0, sizeof(*s));
}

static void one_operation(struct player *p)
{
	struct slot *s = &p->slots[rnd(p, SLOTS)];
	uint32_t r = rnd(p, 1000000);

	if (r < 3)
		pcpa_trim();
	else if (r < 20)
		CHECK(!pcpa_set_limits(rnd(p, 2000), 0, 0, 1 + rnd(p, 100)));
	else if (s->block || s->rows)
		give(p, s);
	else if (r < 800000)
		take_one(p, s);
	else if (r < 900000)
		take_bulk(p, s);
	else
		take_exact(p, s);
	if (!s->block && !s->rows)
		memset(s, 0, sizeof(*s));
}

/* ---- numbers ---- */

static void check_numbers(uint64_t pages)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.pages_in_use == pages && s.alloc_pages - s.free_pages == pages);
	CHECK(s.alloc_zone - s.free_zone == pages + s.pages_on_lists);
	CHECK(s.pages_managed == ZONE_PAGES && s.pages_in_zone <= ZONE_PAGES - pages);
}

static void *play(void *arg)
{
	struct player *p = arg;

	for (uint64_t i = 0; i < p->ops; i++) {
		one_operation(p);
		if (p->alone && i % CHECK_EVERY == 0)
			check_numbers(p->pages);
		if (p->alone && i % AUDIT_EVERY == 0)
			CHECK_AUDIT();
	}
	return NULL;
}

static struct player *new_player(unsigned i, uint64_t ops, bool alone)
{
	struct player *p = calloc(1, sizeof(*p));

	CHECK(p);
	p->seed = (first_seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	p->ops = ops;
	p->number = (uint8_t)(i + 1);
	p->alone = alone;
	return p;
}

static void give_all(struct player *p)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (p->slots[i].block || p->slots[i].rows)
			give(p, &p->slots[i]);
	CHECK(p->pages == 0);
	free(p);
}

static void alone_child(void)
{
	struct player *p = new_player(0, operations * 2 / 5, true);

	alarm(0);
	play(p);
	/* it came to the end of the memory, and not all the time */
	CHECK(p->n_failed > p->ops / 1000 && p->n_failed < p->ops / 2);
	give_all(p);
	check_numbers(0);
	CHECK_AUDIT();
}

static void together_child(void)
{
	struct player *p[THREADS];
	pthread_t t[THREADS];
	uint64_t pages = 0;

	alarm(0);
	for (unsigned i = 0; i < THREADS; i++) {
		p[i] = new_player(i, operations / 5 / THREADS, false);
		CHECK(!pthread_create(&t[i], NULL, play, p[i]));
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(t[i], NULL);
		pages += p[i]->pages;
	}
	check_numbers(pages);
	CHECK_AUDIT();
	for (unsigned i = 0; i < THREADS; i++)
		give_all(p[i]);
	check_numbers(0);
}

static void as_it_comes(void **state)
{
	(void)state;
	assert_int_equal(in_child(alone_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_ZONES=1")),
			 0);
}

static void locked(void **state)
{
	(void)state;
	assert_int_equal(in_child(alone_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_ZONES=1",
							"PCPALLOC_MODE=locked")),
			 0);
}

static void threads_together(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(together_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_ZONES=1")), 0);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_it_comes),
		cmocka_unit_test(locked),
		cmocka_unit_test(threads_together),
	};
	uint64_t most = 5000000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	most /= 25;
#endif
	operations = number("DIFFERENTIAL_OPS", most);
	first_seed = number("DIFFERENTIAL_SEED", (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32);
	printf("# %llu operations, DIFFERENTIAL_SEED=%llu\n", (unsigned long long)operations,
	       (unsigned long long)first_seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
