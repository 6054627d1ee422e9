/* SPDX-License-Identifier: MIT */
/*
 * Lists served by restartable sequences: when they are chosen and when not, and wrong frees. In
 * storms: test_rseq_storm.c.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include <pcptune/rules.h>

#include <pcpalloc_inline.h>

#include "allocator/rings.h"
#include "tests/unit/sections.h"

static const char *self;

/* ---- choice of the mode ---- */

static void rseq_child(void)
{
	void *block = pcpa_alloc(0);

	CHECK(block && by_rseq());
	pcpa_free(block, 0);
	CHECK(pcpa_by_sections(pcpa_cpu_block(0, pcpa_cpu_slot())));
	CHECK(!pcpa_by_sections(pcpa_cpu_block(0, pcpa_heap.n_slots - 1)));
	CHECK_AUDIT();
}

static void locked_child(void)
{
	void *block = pcpa_alloc(0);

	CHECK(block && !by_rseq() && !pcpa_fast.n_cpus);
	pcpa_free(block, 0);
	CHECK_AUDIT();
}

static void mode_by_setting(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(rseq_child, SETTINGS("PCPALLOC_MODE=rseq")), 0);
	assert_int_equal(in_child(rseq_child, SETTINGS("PCPALLOC_MODE=")), 0);
	assert_int_equal(in_child(locked_child, SETTINGS("PCPALLOC_MODE=locked")), 0);
	assert_int_equal(in_child(locked_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_CPUS=2")),
			 0);
	assert_int_equal(in_child(locked_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_CHECK=1")),
			 0);
}

/* As a program of its own: the mode as exit status. */
static void exec_child(void)
{
	execl(self, self, "--mode", (char *)NULL);
	_exit(99);
}

static void libc_without_registration(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(exec_child, SETTINGS("PCPALLOC_MODE=rseq")), PCPTUNE_MODE_RSEQ);
	assert_int_equal(in_child(exec_child, SETTINGS("PCPALLOC_MODE=rseq",
						       "GLIBC_TUNABLES=glibc.pthread.rseq=0")),
			 PCPTUNE_MODE_LOCKED);
}

static void no_fence_child(void)
{
	forbid_fences();
	locked_child();
}

static void fences_refused(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(no_fence_child, SETTINGS("PCPALLOC_MODE=rseq")), 0);
}

/* ---- wrong frees ---- */

static struct pcpa_error last;
static unsigned n_errors;

static void remember(const struct pcpa_error *error, void *cookie)
{
	(void)cookie;
	last = *error;
	n_errors++;
}

static void misuse_child(void)
{
	char *twice, *wrong;

	two_cpus();
	migrate(0);
	twice = pcpa_alloc(0);
	wrong = pcpa_alloc(2);
	CHECK(twice && wrong && by_rseq());
	pcpa_set_error_callback(remember, NULL);
	/* at once: what is foreign or not aligned to its order, with a call and without */
	for (int i = 0; i < 2; i++) {
		void (*give_back)(void *, unsigned) = i ? pcpa_free_inline : pcpa_free;
		unsigned before = n_errors;

		give_back(&n_errors, 0);
		CHECK(n_errors == before + 1 && strstr(last.what, "no zone"));
		CHECK(last.address == &n_errors && last.caller);
		give_back(wrong + 8, 0);
		CHECK(n_errors == before + 2 && strstr(last.what, "aligned"));
		for (unsigned order = 1; order < 4; order++) {
			give_back(wrong + 4096, order);
			CHECK(n_errors == before + 2 + order && strstr(last.what, "aligned"));
			CHECK(last.order == order);
		}
		give_back((char *)(pcpa_heap.zones[0].base - 4096), 0);
		CHECK(n_errors == before + 6 && strstr(last.what, "no zone"));
		give_back(NULL, 0);
		CHECK(n_errors == before + 6);
	}
	pcpa_free_inline(wrong, 2);
	CHECK_AUDIT();
	/* twice: when the second copy reaches the zone; the books are right again then */
	pcpa_free(twice, 0);
	pcpa_free(twice, 0);
	CHECK(n_errors == 12);
	pcpa_trim();
	CHECK(n_errors == 13 && last.address == twice && strstr(last.what, "late"));
	CHECK(pcpa_heap.proc->bad_frees == 13);
	CHECK_AUDIT();
	/* of another order, or from the middle of a block: late, too */
	wrong = pcpa_alloc_inline(1);
	CHECK(wrong);
	for (int i = 0; i < 2; i++) {
		pcpa_free(wrong + i * 4096, 0);
		CHECK(n_errors == 13 + (unsigned)i);
		pcpa_trim();
		CHECK(n_errors == 14 + (unsigned)i && last.address == wrong + i * 4096);
		CHECK(strstr(last.what, "late") && last.order == 0);
		CHECK_AUDIT();
	}
	for (int i = 0; i < 1000; i++)
		CHECK(pcpa_alloc(0));
	CHECK_AUDIT();
}

/* Where the hot sections can not be used, the slow path begins with sections that know no place. */
static void not_hot_child(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	uint64_t from_zone = 0;

	two_cpus();
	migrate(0);
	CHECK(pcpa_alloc(0) && by_rseq());
	pcpa_fast.orders = 0;
	for (int i = 0; i < 20000; i++) {
		void *block = pcpa_alloc((unsigned)i % 4);

		CHECK(block);
		pcpa_free(block, (unsigned)i % 4);
		CHECK(!pcpa_get_stats(&s));
		if (i < 4)
			from_zone = s.alloc_zone;
	}
	CHECK(s.alloc_zone == from_zone && s.alloc_pages - s.free_pages == 1);
	CHECK_AUDIT();
	misuse_child();
}

static void not_hot(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(not_hot_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=64m",
							  "PCPALLOC_AGENT=0")),
			 0);
}

static void misuse(void **state)
{
	(void)state;
	need_sections();
	assert_int_equal(in_child(misuse_child, SETTINGS("PCPALLOC_MODE=rseq", "PCPALLOC_SIZE=64m",
							 "PCPALLOC_AGENT=0")),
			 0);
}

static int mode_of_this_program(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};

	pcpa_free(pcpa_alloc(0), 0);
	return pcpa_get_stats(&s) ? 98 : (int)s.mode;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mode_by_setting), cmocka_unit_test(libc_without_registration),
		cmocka_unit_test(fences_refused),  cmocka_unit_test(misuse),
		cmocka_unit_test(not_hot),
	};

	self = argv[0];
	if (argc > 1)
		return mode_of_this_program();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
