/* SPDX-License-Identifier: MIT */
/*
 * The reader where time and memory are against it: a target that moves a list between two loads of
 * the reader, allocations and mappings that fail. The source is included, so that both can be put
 * exactly where they hurt.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <cmocka.h>
#include "tests/unit/test_segreader.h"

static void get_between(const struct pcptune_list *l);
static void *failing_calloc(size_t n, size_t size);
static void *failing_aligned_alloc(size_t align, size_t size);
static void *failing_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);

#define BETWEEN_READS(list) get_between(list)
#define calloc		    failing_calloc
#define aligned_alloc	    failing_aligned_alloc
#define mmap		    failing_mmap
#include "lib/segreader_open.c"
#include "lib/segreader.c"
#undef calloc
#undef aligned_alloc
#undef mmap

/* ---- what gets between ---- */

static struct pcptune_list *target; /* in the target's mapping */
static int times;		    /* how often it still moves */
static bool aba;		    /* so that tail is what it was, else by one push */

static void get_between(const struct pcptune_list *l)
{
	/* the reader sees the list at another address, at the same place of its page */
	if (times <= 0 || (((uintptr_t)l ^ (uintptr_t)target) & 4095))
		return;
	times--;
	if (!aba) {
		made_push(target);
		return;
	}
	made_refill(target, 4);
	for (int i = 0; i < 4; i++)
		made_pop(target);
	for (int i = 0; i < 4; i++)
		made_push(target);
	made_drain(target, 4);
}

static int callocs_left = -1; /* -1: all of them */

static bool fails(void)
{
	if (callocs_left > 0)
		return !callocs_left--;
	return !callocs_left;
}

static void *failing_aligned_alloc(size_t align, size_t size)
{
	return fails() ? NULL : aligned_alloc(align, size);
}

static void *failing_calloc(size_t n, size_t size)
{
	if (fails())
		return NULL;
	return calloc(n, size);
}

static bool no_mmap;

static void *failing_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	if (no_mmap) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return mmap(at, n, prot, flags, fd, off);
}

/* ---- lists that move ---- */

struct scene {
	struct made m;
	struct segreader *sr;
	struct pcptune_cpu cpus[2];
	uint32_t active[2];
};

static const struct segreader_limits limits = {.max_cpus = 2};

static void scene_new(struct scene *s)
{
	char why[160] = "";

	memset(s, 0, sizeof(*s));
	s->m = made_new(1, 2);
	made_seal(&s->m, F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(segreader_open(s->m.fd, &limits, &s->sr, why, sizeof(why)), 0);
	target = &made_cpu(&s->m, 1)->list[2];
	times = 0;
	aba = false;
}

static void scene_free(struct scene *s)
{
	times = 0;
	segreader_close(s->sr);
	made_free(&s->m, 0);
}

/* A list that moves now and then is read all the same, and exactly. */
static void test_moves_a_little(void **state)
{
	struct scene s;

	(void)state;
	scene_new(&s);
	for (int k = 0; k < 2; k++) {
		aba = k;
		made_push(target);
		segreader_sample(s.sr, s.cpus, s.active);
		made_push(target);
		times = READ_TRIES - 1;
		assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 1);
		assert_int_equal(s.cpus[1].flags, PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_LISTS_ONLY);
		assert_int_equal(s.cpus[1].alloc_pages, k ? (READ_TRIES - 1) * 4 * 4 : 0);
		assert_int_equal(s.cpus[1].free_pages, 4 + (READ_TRIES - 1) * (k ? 4 * 4 : 4));
		assert_int_equal(times, 0);
	}
	scene_free(&s);
}

/* One that never stands still is UNKNOWN; the next pass has what both intervals had. */
static void test_never_still(void **state)
{
	struct pcptune_cpu total;
	struct scene s;

	(void)state;
	scene_new(&s);
	made_push(target);
	segreader_sample(s.sr, s.cpus, s.active);
	made_push(target);
	made_cpu(&s.m, 1)->pcp.high = 55;
	made_add(made_cpu(&s.m, 1)->zctr.refills, 3);
	made_hold(made_cpu(&s.m, 1));
	times = INT_MAX;
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 0);
	assert_int_equal(s.cpus[1].flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(s.cpus[1].free_pages, 0);
	assert_int_equal(s.cpus[1].refills, 0);
	assert_int_equal(s.cpus[1].high, 55);
	segreader_cpu_total(s.sr, 1, &total);
	assert_int_equal(total.flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(total.refills, 0);
	times = 0;
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 1);
	assert_int_equal(s.cpus[1].flags, PCPTUNE_CPU_ACTIVE);
	assert_int_equal(s.cpus[1].free_pages, 4 * (1 + 2 * READ_TRIES));
	assert_int_equal(s.cpus[1].refills, 3);
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 0);
	assert_int_equal(s.cpus[1].flags, 0);
	scene_free(&s);
}

/* The baseline that such a CPU missed is taken as soon as it can be. */
static void test_never_still_at_rebase(void **state)
{
	struct scene s;

	(void)state;
	scene_new(&s);
	made_push(target);
	segreader_rebase(s.sr);
	times = INT_MAX;
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 0);
	assert_int_equal(s.cpus[1].flags, PCPTUNE_CPU_UNKNOWN);
	times = 0;
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 0);
	assert_int_equal(s.cpus[1].flags, 0);
	assert_int_equal(s.cpus[1].free_pages, 0);
	made_push(target);
	assert_int_equal(segreader_sample(s.sr, s.cpus, s.active), 1);
	assert_int_equal(s.cpus[1].free_pages, 4);
	scene_free(&s);
}

/* ---- failures of the system ---- */

static void assert_fails(struct made *m, const char *reason)
{
	struct segreader *sr = (void *)&sr;
	char why[160] = "";

	assert_int_equal(segreader_open(m->fd, &limits, &sr, why, sizeof(why)), -ENOMEM);
	assert_ptr_equal(sr, (void *)&sr);
	assert_string_equal(why, reason);
	assert_true(fcntl(m->fd, F_GETFD) >= 0); /* still the caller's */
}

static void test_no_memory(void **state)
{
	struct made m = made_new(1, 2);

	(void)state;
	made_seal(&m, F_SEAL_SHRINK | F_SEAL_GROW);
	callocs_left = 0;
	assert_fails(&m, "segment: reader: Cannot allocate memory");
	for (int n = 1; n < 3; n++) {
		callocs_left = n;
		assert_fails(&m, "segment: tables of the reader: Cannot allocate memory");
	}
	callocs_left = -1;
	no_mmap = true;
	assert_fails(&m, "segment: can not be mapped: Cannot allocate memory");
	no_mmap = false;
	made_free(&m, 1);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moves_a_little),
		cmocka_unit_test(test_never_still),
		cmocka_unit_test(test_never_still_at_rebase),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
