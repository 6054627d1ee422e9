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

#ifdef PCPA_RSEQ

#define CPU  3u
#define LIST 2u

static _Thread_local struct {
	uint32_t cpu_id_start, cpu_id;
	uint64_t descriptor, rest[2];
} area __attribute__((aligned(32)));

/* What area.descriptor points to. */
struct descriptor {
	uint32_t version, flags;
	uint64_t start, length, abort;
};

static uint64_t ring[16];
static struct pcptune_cpu_block block;
static struct pcptune_list *const list = &block.list[LIST];

/* An empty list of 16 places whose words have gone below zero, with room for ten. */
static int set_up(void **state)
{
	(void)state;
	memset(&block, 0, sizeof(block));
	memset(ring, 0, sizeof(ring));
	area.cpu_id = CPU;
	pcpa_fast.offset = (intptr_t)((char *)&area - (char *)__builtin_thread_pointer());
	list->private_ring = (uintptr_t)ring;
	list->limit = 16;
	list->reserved = 15;
	list->tail = -7;
	list->word = (uint64_t)-7;
	pcpa_words(&block)->room[LIST] = 10;
	return 0;
}

static enum pcpa_section push(uintptr_t what)
{
	return pcpa_section_push(&block, LIST, 2, CPU, (void *)what);
}

static enum pcpa_section pop(uintptr_t *ret_what)
{
	enum pcpa_section how;

	*ret_what = (uintptr_t)pcpa_section_pop(&block, LIST, CPU, &how);
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
	assert_int_equal(pcpa_words(&block)->run, 40);
	for (uintptr_t i = 10; i-- > 0;) {
		assert_int_equal(pop(&what), PCPA_SECTION_DONE);
		assert_int_equal(what, 1000 + i);
	}
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	assert_int_equal(pcpa_words(&block)->run, 0);
	assert_true(list->word == (uint64_t)-7 + 10 * PCPTUNE_WORD_PUSH + 10 * PCPTUNE_WORD_POP);
	assert_int_equal(list->tail, -7);
}

static void only_on_its_cpu(void **state)
{
	uint64_t before = list->word;
	enum pcpa_section how;

	(void)state;
	assert_int_equal(push(1), PCPA_SECTION_DONE);
	before += PCPTUNE_WORD_PUSH;
	for (unsigned n = 0; n < 3; n++) {
		static const uint32_t ids[] = {CPU + 1, UINT32_MAX, UINT32_MAX - 1};

		area.cpu_id = ids[n];
		assert_int_equal(push(1), PCPA_SECTION_AGAIN);
		assert_null(pcpa_section_pop(&block, LIST, CPU, &how));
		assert_int_equal(how, PCPA_SECTION_AGAIN);
		assert_int_equal(pcpa_section_tail(list, CPU, 0, 1), PCPA_SECTION_AGAIN);
	}
	assert_true(list->word == before && list->tail == -7);
}

static void not_when_stopped(void **state)
{
	static const uint32_t bits[] = {PCPA_STOP_OWNER, PCPA_STOP_FOR_GOOD, PCPA_STOP_TO_RING};
	uintptr_t what;

	(void)state;
	assert_int_equal(push(1), PCPA_SECTION_DONE);
	for (unsigned n = 0; n < 3; n++) {
		pcpa_words(&block)->stop = bits[n];
		assert_int_equal(push(2), PCPA_SECTION_NO);
		assert_int_equal(pop(&what), PCPA_SECTION_NO);
	}
	pcpa_words(&block)->stop = 0;
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 1);
}

/* Refill and drain move the tail; positions go through zero and round the ring. */
static void tails(void **state)
{
	uintptr_t what;

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(push(i + 1), PCPA_SECTION_DONE);
	assert_int_equal(pcpa_section_tail(list, CPU, 5, 5), PCPA_SECTION_NO);
	assert_int_equal(list->tail, -7);
	assert_int_equal(pcpa_section_tail(list, CPU, 3, 3), PCPA_SECTION_DONE);
	assert_int_equal(list->tail, -4);
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 4);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	for (int64_t at = -5; at >= -6; at--)
		ring[(uint32_t)at & 15] = (uint64_t)(at + 100);
	assert_int_equal(pcpa_section_tail(list, CPU, 0, -2), PCPA_SECTION_DONE);
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 95);
	assert_int_equal(pop(&what), PCPA_SECTION_DONE);
	assert_int_equal(what, 94);
	assert_int_equal(pop(&what), PCPA_SECTION_NO);
	for (int round = 0; round < 100; round++) {
		assert_int_equal(push((uintptr_t)round + 1), PCPA_SECTION_DONE);
		assert_int_equal(pcpa_section_tail(list, CPU, 1, 1), PCPA_SECTION_DONE);
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
		for (uintptr_t i = 0; i < 9; i++)
			assert_int_equal(push(i + 1), PCPA_SECTION_DONE);
		pcpa_sections_begin_at_zero(list);
		list->tail = -9;
		list->word = 0;
		for (uintptr_t i = 9; i > 0; i--) {
			assert_int_equal(pop(&what), PCPA_SECTION_DONE);
			assert_int_equal(what, i);
		}
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
	assert_in_range(d->length, 16, 160);
	assert_true(d->abort - d->start >= d->length);
	memcpy(&signature, (const char *)(uintptr_t)d->abort - sizeof(signature),
	       sizeof(signature));
	assert_int_equal(signature, want);
	area.descriptor = 0;
}

static void descriptors(void **state)
{
	uintptr_t what;

	(void)state;
	area.descriptor = 0;
	push(1);
	check_descriptor();
	pop(&what);
	check_descriptor();
	pcpa_section_tail(list, CPU, 0, 0);
	check_descriptor();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(last_in_first_out, set_up),
		cmocka_unit_test_setup(only_on_its_cpu, set_up),
		cmocka_unit_test_setup(not_when_stopped, set_up),
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
