/* SPDX-License-Identifier: MIT */
/*
 * Records out of a segment made by hand: the protocol of the cut, step by step, and halves that a
 * hostile target wrote. That the allocator keeps its side: test_track.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "lib/segreader.h"
#include "tests/unit/test_segreader.h"

static struct made m;
static struct segreader *sr;
static struct pcptune_cpu_block *cpu;
static struct pcptune_track *track;
static struct pcptune_record r;

static struct segreader *open_reader(int fd)
{
	const struct segreader_limits limits = {.max_cpus = 64};
	struct segreader *opened = NULL;
	char why[160] = "";

	if (segreader_open(fd, &limits, &opened, why, sizeof(why)))
		fail_msg("%s", why);
	return opened;
}

static int set_up(void **state)
{
	(void)state;
	m = made_new(1, 3);
	made_seal(&m, F_SEAL_SHRINK | F_SEAL_GROW);
	sr = open_reader(dup(m.fd));
	cpu = made_cpu(&m, 1);
	track = made_track(&m, 1);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	segreader_close(sr);
	made_free(&m, 1);
	return 0;
}

/* The allocator's side, under its lock. */
static void begin(void)
{
	pcptune_packed_init(&track->half[0], 0, cpu->ctl.cut);
	track->half[1].tag = track->half[0].tag - 1;
	track->current = 0;
}

static void push(int64_t x)
{
	struct pcptune_packed *p = &track->half[track->current];

	if (p->tag != cpu->ctl.cut) {
		int64_t from = p->s[p->n - 1];

		track->current ^= 1;
		p = &track->half[track->current];
		pcptune_packed_init(p, from, cpu->ctl.cut);
	}
	pcptune_packed_push(p, x);
}

static void assert_record(uint32_t flags, uint32_t n, int64_t start, int64_t now)
{
	assert_true(segreader_record(sr, 1, &r));
	assert_int_equal(r.index, 1);
	assert_int_equal(r.flags, flags);
	assert_int_equal(r.band.n, n);
	assert_int_equal(r.band.start, start);
	assert_int_equal(pcptune_band_now(&r.band), now);
	assert_int_equal(r.refills | r.refilled | r.drains | r.drained | r.dt_us, 0);
}

static void one_after_the_other(void **state)
{
	(void)state;
	begin();
	push(100);
	push(50);
	push(70);
	push(-30);
	assert_record(0, 3, 0, -30);
	assert_int_equal(r.band.count[pcptune_band_bucket(20)], 1);
	assert_int_equal(r.band.sum[pcptune_band_bucket(20)], 20);
	/* nothing happened, for as often as one asks */
	assert_record(0, 1, -30, -30);
	assert_record(0, 1, -30, -30);
	push(-90);
	push(10);
	assert_record(0, 3, -30, 10);
	assert_int_equal(r.band.count[pcptune_band_bucket(20)], 0);
	push(20);
	assert_record(0, 2, 10, 20);
	assert_int_equal(cpu->ctl.cut, 5);
}

/* Before the first use there is nothing, and then everything, whenever that is. */
static void a_cpu_that_begins_late(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		assert_record(0, 0, 0, 0);
	begin();
	push(77);
	assert_record(0, 2, 0, 77);
	assert_record(0, 1, 77, 77);
}

/*
 * The target is in its lists: not now. What it does meanwhile, with an old cut or the new, is not
 * lost.
 */
static void a_lock_that_is_held(void **state)
{
	(void)state;
	begin();
	push(100);
	cpu->pcp.lock = 7;
	assert_false(segreader_record(sr, 1, &r));
	assert_false(segreader_record(sr, 1, &r));
	assert_int_equal(cpu->ctl.cut, 1);
	/* it had looked at the cut before we asked */
	pcptune_packed_push(&track->half[0], 150);
	cpu->pcp.lock = 0;
	/* and another one looks after */
	push(300);
	push(200);
	/* all of it: who asks once more at the end of a target has no later call */
	assert_record(0, 3, 0, 200);
	assert_int_equal(r.band.s[1], 300);
	assert_int_equal(cpu->ctl.cut, 2);
	assert_record(0, 1, 200, 200);
}

static void a_second_reader(void **state)
{
	struct segreader *other;

	(void)state;
	begin();
	push(100);
	assert_record(0, 2, 0, 100);
	push(200);
	other = open_reader(dup(m.fd));
	/* what the other one took is gone for both */
	assert_true(segreader_record(other, 1, &r));
	assert_int_equal(r.flags, PCPTUNE_RECORD_BROKEN);
	assert_int_equal(pcptune_band_now(&r.band), 200);
	push(300);
	assert_record(PCPTUNE_RECORD_BROKEN, 2, 200, 300);
	assert_record(0, 1, 300, 300);
	segreader_close(other);
}

static void without_trackers(void **state)
{
	struct segreader_info info;
	struct made none = made_new(1, 3);
	struct segreader *reader;

	(void)state;
	segreader_info(sr, &info);
	assert_int_equal(info.grain, 16);
	none.h->tracks_off = 0;
	made_seal(&none, F_SEAL_SHRINK | F_SEAL_GROW);
	reader = open_reader(none.fd);
	segreader_info(reader, &info);
	assert_int_equal(info.grain, 0);
	assert_false(segreader_record(reader, 1, &r));
	assert_int_equal(made_cpu(&none, 1)->ctl.cut, 0);
	segreader_close(reader);
	made_free(&none, 0);
}

/* ---- what no tracker writes ---- */

static void too_many_points(struct pcptune_packed *p)
{
	p->n = PCPTUNE_BAND_STACK;
}

static void no_points(struct pcptune_packed *p)
{
	p->n = 0;
	p->collapsed = 1;
}

static void far_off(struct pcptune_packed *p)
{
	p->s[2] = INT64_MAX;
}

static void far_start(struct pcptune_packed *p)
{
	p->start = INT64_MIN;
}

static void no_turn(struct pcptune_packed *p)
{
	p->s[2] = p->s[1] + 1;
}

static void no_move(struct pcptune_packed *p)
{
	p->s[1] = p->s[0];
}

static void too_much_excess(struct pcptune_packed *p)
{
	p->bucket[100] = UINT64_C(1) << 32 | 1;
	p->bucket[100] += (pcptune_band_edge(101) - pcptune_band_edge(100) - 1) << 32;
}

static void excess_of_nothing(struct pcptune_packed *p)
{
	p->bucket[PCPTUNE_BAND_BUCKETS - 1] = UINT64_C(5) << 32;
}

static void (*const spoil[])(struct pcptune_packed *p) = {
	too_many_points, no_points, far_off,	     far_start,
	no_turn,	 no_move,   too_much_excess, excess_of_nothing,
};

static void nonsense_is_no_record(void **state)
{
	(void)state;
	begin();
	push(1);
	assert_record(0, 2, 0, 1);
	for (size_t i = 0; i < sizeof(spoil) / sizeof(spoil[0]); i++) {
		push(500);
		push(-1000);
		push(0);
		spoil[i](&track->half[track->current]);
		assert_false(segreader_record(sr, 1, &r));
		begin(); /* repents */
		push(9);
		assert_record(PCPTUNE_RECORD_BROKEN, 2, 0, 9);
		push(10);
		assert_record(0, 2, 9, 10);
	}
}

/* Tags that are none of ours, and what did not fit. */
static void gaps_are_told(void **state)
{
	(void)state;
	begin();
	push(5);
	assert_record(0, 2, 0, 5);
	push(6);
	track->half[0].tag = track->half[1].tag = 1234;
	assert_false(segreader_record(sr, 1, &r));
	begin();
	push(7);
	assert_record(PCPTUNE_RECORD_BROKEN, 2, 0, 7);
	push(8);
	track->half[track->current].lost = 1;
	assert_record(PCPTUNE_RECORD_BROKEN, 2, 7, 8);
	assert_record(0, 1, 8, 8);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	static const struct CMUnitTest tests[] = {
		TEST(one_after_the_other), TEST(a_cpu_that_begins_late),
		TEST(a_lock_that_is_held), TEST(a_second_reader),
		TEST(without_trackers),	   TEST(nonsense_is_no_record),
		TEST(gaps_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
