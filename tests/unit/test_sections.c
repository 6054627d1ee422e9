/* SPDX-License-Identifier: MIT */
/*
 * The sections themselves, one instruction sequence each, on an rseq area that the test plays: what
 * they do to a list, when they refuse, and that their descriptors are what the kernel expects. No
 * help of the system is needed, so that this runs under an emulator, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "allocator/pcp_private.h"
#include "allocator/rings.h"

#ifdef PCPA_RSEQ

#define CPU   3u
#define LIST  2u
#define PAGES 64u

static _Thread_local struct {
	uint32_t cpu_id_start, cpu_id;
	uint64_t descriptor, rest[2];
} area __attribute__((aligned(32)));

/* What area.descriptor points to. */
struct descriptor {
	uint32_t version, flags;
	uint64_t start, length, abort;
};

/* A list and its ring, as far from each other as they have to be. */
static union {
	struct pcptune_list list;
	struct {
		char to_ring[PCPA_INLINE_RING];
		uint64_t ring[PCPA_RING_PLACES];
	} s;
} home;
static uint64_t *const ring = home.s.ring;
static struct pcptune_list *const list = &home.list;
static struct pcpa_lists *const lists = &pcpa_home_lists[LIST];
static struct pcpa_page pages[PAGES];
static char *const base = (char *)0x7f0000400000;

/* What is in the tables while a CPU is stopped. */
static struct {
	struct pcptune_list list;
	char places[PCPA_INLINE_RING + PCPA_RING_BYTES];
} idle;

static void show(struct pcptune_list *l)
{
	lists->of_cpu[CPU] = l;
	pcpa_fast.own[CPU * PCPA_OWN_ROW + LIST] = l;
}

static void set_room(uint32_t room)
{
	list->bound = ((uint32_t)list->tail + room) & pcpa_ring_mask(list);
}

/* An empty list whose words have gone below zero, with room for ten. */
static int set_up(void **state)
{
	(void)state;
	memset(&home, 0, sizeof(home));
	area.cpu_id = CPU;
	pcpa_fast.offset = (intptr_t)((char *)&area - (char *)__builtin_thread_pointer());
	list->private_ring = (uintptr_t)ring;
	list->limit = PCPA_RING_PLACES;
	list->reserved = ((1u << LIST) - 1) << 16 | (PCPA_RING_PLACES - 1);
	list->tail = -7;
	list->word = (uint64_t)-7;
	list->base = (uintptr_t)base;
	list->end = PAGES;
	list->pages = (uintptr_t)pages;
	set_room(10);
	lists->n_cpus = pcpa_fast.n_cpus = CPU + 1;
	show(list);
	return 0;
}

static enum pcpa_section push(uintptr_t what)
{
	return pcpa_section_push(lists, (void *)what);
}

static enum pcpa_section pop(uintptr_t *ret_what)
{
	enum pcpa_section how;

	*ret_what = (uintptr_t)pcpa_section_pop(lists, &how);
	return how;
}

static void last_in_first_out(void **state)
{
	uintptr_t what;

	(void)state;
	assert_int_equal(pcpa_fast_cpu(), CPU);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	for (uintptr_t i = 0; i < 10; i++)
		assert_int_equal(push(1000 + i), PCPA_SECTION_DONE);
	assert_int_equal(push(1), PCPA_SECTION_NO);
	for (uintptr_t i = 10; i-- > 0;) {
		assert_int_equal(pop(&what), PCPA_SECTION_DONE);
		assert_int_equal(what, 1000 + i);
	}
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	/* the mark is where the last pop ended */
	assert_int_equal(list->mark, (uint32_t)list->word);
	assert_true(list->word == (uint64_t)-7 + 10 * PCPTUNE_WORD_PUSH + 10 * PCPTUNE_WORD_POP);
	assert_int_equal(list->tail, -7);
}

/*
 * Other ids than those of the tables are refused; so is a store that was planned for another CPU.
 */
static void only_on_its_cpu(void **state)
{
	static const uint32_t ids[] = {CPU + 1, UINT32_MAX, UINT32_MAX - 1, INT32_MAX};
	uint64_t before, stored = 0;
	enum pcpa_section how;
	void *taken;

	(void)state;
	assert_int_equal(push(1), PCPA_SECTION_DONE);
	before = list->word;
	for (unsigned n = 0; n < 4; n++) {
		area.cpu_id = ids[n];
		assert_int_equal(push(1), PCPA_SECTION_NO);
		assert_null(pcpa_section_pop(lists, &how));
		assert_int_equal(how, PCPA_SECTION_NO);
		assert_false(pcpa_section_pop_own(LIST, &taken));
		assert_false(pcpa_section_push_own(base, LIST));
		assert_int_equal(pcpa_section_store(list, CPU, before, &stored, 1),
				 PCPA_SECTION_AGAIN);
	}
	assert_true(list->word == before && list->tail == -7 && !stored);
}

static void not_when_stopped(void **state)
{
	uintptr_t what;
	void *taken;

	(void)state;
	assert_int_equal(push(1), PCPA_SECTION_DONE);
	show(&idle.list);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	assert_false(pcpa_section_pop_own(LIST, &taken));
	assert_false(pcpa_section_push_own(base, LIST));
	show(list);
	lists->n_cpus = pcpa_fast.n_cpus = 0;
	assert_int_equal(push(2), PCPA_SECTION_NO);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	assert_false(pcpa_section_pop_own(LIST, &taken));
	lists->n_cpus = pcpa_fast.n_cpus = CPU + 1;
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 1);
	assert_true(pcpa_section_push_own(base, LIST));
}

/* Addresses at which no block of that order begins in this zone. */
static void what_is_pushed(void **state)
{
	const uint32_t size = PCPA_PAGE_SIZE;
	void *taken;

	(void)state;
	assert_false(pcpa_section_push_own(NULL, LIST));
	assert_false(pcpa_section_push_own(base - 1, LIST));
	assert_false(pcpa_section_push_own(base - size, LIST));
	assert_false(pcpa_section_push_own(base + (size_t)PAGES * size, LIST));
	for (unsigned bit = 0; bit < 12 + LIST; bit++)
		assert_false(pcpa_section_push_own(base + 4 * size + (1u << bit), LIST));
	assert_false(pcpa_section_push_own(base + (PAGES - 1) * size, LIST));
	assert_int_equal(list->word, (uint64_t)-7);
	assert_true(pcpa_section_push_own(base + 4 * size, LIST));
	assert_true(pcpa_section_push_own(base + (PAGES - 4) * size, LIST));
	assert_true(pcpa_section_pop_own(LIST, &taken) && taken == base + (PAGES - 4) * size);
	assert_true(pcpa_section_pop_own(LIST, &taken) && taken == base + 4 * size);
	assert_false(pcpa_section_pop_own(LIST, &taken));
}

/* ---- hot sections: on the area of the C library, where it is known ---- */

#ifdef PCPA_HOT_AREA
static uint32_t *hot_id(void)
{
	return (uint32_t *)((char *)__builtin_thread_pointer() + PCPA_HOT_AREA + 4);
}

/* Whatever CPU this is, and the kernel may put its id into the area at any time. */
static void show_hot(void *l)
{
	for (uint32_t cpu = 0; cpu < PCPA_OWN_ROWS; cpu++)
		pcpa_fast.own[cpu * PCPA_OWN_ROW + LIST] = l;
}

/* An interruption is a refusal: then once more. */
static bool hot_push(void *block)
{
	bool done = false;

	for (int n = 0; n < 1000 && !done; n++)
		done = pcpa_section_push_hot(block, LIST);
	return done;
}

static bool hot_pop(void **ret_block)
{
	bool done = false;

	for (int n = 0; n < 1000 && !done; n++)
		done = pcpa_section_pop_hot(LIST, ret_block);
	return done;
}

/* Only if the id was put right meanwhile. */
static void not_by_id(uint32_t id)
{
	const uint64_t word = list->word;

	__atomic_store_n(hot_id(), id, __ATOMIC_RELAXED);
	if (pcpa_section_push_hot(base, LIST))
		assert_true(__atomic_load_n(hot_id(), __ATOMIC_RELAXED) != id);
	else
		assert_true(list->word == word);
}

static void hot(void **state)
{
	const uint32_t size = PCPA_PAGE_SIZE, id = *hot_id();
	void *taken;

	(void)state;
	if (__rseq_offset != PCPA_HOT_AREA)
		skip();
	if ((int32_t)id < 0)
		*hot_id() = 0; /* an emulator */
	show_hot(list);
	pcpa_fast.orders = 0;
	assert_false(pcpa_section_push_hot(base, LIST));
	assert_false(pcpa_section_pop_hot(LIST, &taken));
	pcpa_fast.orders = PCPTUNE_COSTLY_ORDER + 1;
	assert_false(hot_pop(&taken));
	for (uintptr_t i = 0; i < 10; i++)
		assert_true(hot_push(base + 4 * i * size));
	assert_false(hot_push(base));
	for (uintptr_t i = 10; i-- > 0;)
		assert_true(hot_pop(&taken) && taken == base + 4 * i * size);
	assert_int_equal(list->mark, (uint32_t)list->word);
	assert_true(list->word == (uint64_t)-7 + 10 * PCPTUNE_WORD_PUSH + 10 * PCPTUNE_WORD_POP);
	for (unsigned bit = 0; bit < 12 + LIST; bit++)
		assert_false(hot_push(base + (1u << bit)));
	assert_false(hot_push(NULL) || hot_push(base - 4 * size) || hot_push(base + PAGES * size));
	for (unsigned order = PCPTUNE_COSTLY_ORDER + 1; order; order <<= 1) {
		assert_false(pcpa_section_push_hot(base, order));
		assert_false(pcpa_section_pop_hot(order, &taken));
	}
	not_by_id(PCPA_OWN_ROWS);
	not_by_id(UINT32_MAX);
	__atomic_store_n(hot_id(), id, __ATOMIC_RELAXED);
	show_hot(&idle.list);
	assert_false(hot_push(base) || hot_pop(&taken));
}
#endif

/* Refill and drain move the tail, and the empty place below it; positions go round the ring. */
static void tails(void **state)
{
	uint64_t *const place = pcpa_ring_slot(list, (uint64_t)-7 + 2);
	uintptr_t what;

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(push(i + 1), PCPA_SECTION_DONE);
	/* three off the tail, but not if anything was done meanwhile */
	assert_int_equal(pcpa_section_store(list, CPU, list->word - 1, place, 0), PCPA_SECTION_NO);
	assert_int_equal(*place, 3);
	assert_int_equal(pcpa_section_store(list, CPU, list->word, place, 0), PCPA_SECTION_DONE);
	list->tail = -4;
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 4);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	/* two below */
	*pcpa_ring_slot(list, (uint64_t)-6) = 94;
	*pcpa_ring_slot(list, (uint64_t)-7) = 0;
	list->tail = -6;
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	*pcpa_ring_slot(list, (uint64_t)-5) = 95;
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 95);
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 94);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	for (uint32_t round = 0; round < PCPA_RING_PLACES + 100; round++) {
		set_room(10);
		assert_int_equal(push((uintptr_t)round + 1), PCPA_SECTION_DONE);
		assert_int_equal(pcpa_section_store(list, CPU, list->word,
						    pcpa_ring_slot(list, (uint64_t)list->tail), 0),
				 PCPA_SECTION_DONE);
		list->tail++;
	}
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
}

static void turned_rings(void **state)
{
	(void)state;
	for (uint32_t by = 0; by < 40; by++) {
		for (uint64_t i = 0; i < 16; i++)
			ring[i] = i;
		pcpa_ring_turn(ring, 16, by);
		for (uint64_t i = 0; i < 16; i++)
			assert_int_equal(ring[i], (i + by) % 16);
	}
}

/* The child of a fork: the same blocks in the same order, the head at position 0. */
static void words_that_begin_at_zero(void **state)
{
	uintptr_t what;

	(void)state;
	for (int64_t head = -40; head < 40; head++) {
		list->tail = head;
		list->word = (uint64_t)head;
		memset(ring, 0, PCPA_RING_BYTES);
		set_room(10);
		for (uintptr_t i = 0; i < 9; i++)
			assert_int_equal(push(i + 1), PCPA_SECTION_DONE);
		pcpa_sections_begin_at_zero(list);
		list->tail = -9;
		list->word = 0;
		for (uintptr_t i = 9; i > 0; i--) {
			assert_int_equal(pop(&what), PCPA_SECTION_DONE);
			assert_int_equal(what, i);
		}
		assert_int_equal(pop(&what), PCPA_SECTION_NO);
	}
}

/* The one that was left behind: version 0, no flags, short, and a signature before the handler. */
static void check_descriptor(void)
{
#ifdef __x86_64__
	const uint32_t want = 0x53053053;
#else
	const uint32_t want = 0xd428bc00;
#endif
	const struct descriptor *d = (const struct descriptor *)(uintptr_t)area.descriptor;
	uint32_t signature;

	assert_non_null(d);
	assert_int_equal((uintptr_t)d % 32, 0);
	assert_int_equal(d->version, 0);
	assert_int_equal(d->flags, 0);
	assert_in_range(d->length, 12, 160);
	assert_true(d->abort - d->start >= d->length);
	memcpy(&signature, (const char *)(uintptr_t)d->abort - sizeof(signature),
	       sizeof(signature));
	assert_int_equal(signature, want);
	area.descriptor = 0;
}

static void descriptors(void **state)
{
	uintptr_t what;
	uint64_t stored;
	void *taken;

	(void)state;
	area.descriptor = 0;
	push(1);
	check_descriptor();
	pop(&what);
	check_descriptor();
	pcpa_section_store(list, CPU, 0, &stored, 0);
	check_descriptor();
	pcpa_section_push_own(base, LIST);
	check_descriptor();
	pcpa_section_pop_own(LIST, &taken);
	check_descriptor();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(last_in_first_out, set_up),
		cmocka_unit_test_setup(only_on_its_cpu, set_up),
		cmocka_unit_test_setup(not_when_stopped, set_up),
		cmocka_unit_test_setup(what_is_pushed, set_up),
#ifdef PCPA_HOT_AREA
		cmocka_unit_test_setup(hot, set_up),
#endif
		cmocka_unit_test_setup(tails, set_up),
		cmocka_unit_test_setup(descriptors, set_up),
		cmocka_unit_test_setup(turned_rings, set_up),
		cmocka_unit_test_setup(words_that_begin_at_zero, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void no_sections_in_this_build(void **state)
{
	(void)state;
	skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_sections_in_this_build)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
