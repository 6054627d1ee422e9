/* SPDX-License-Identifier: MIT */
/*
 * The exact decisions of each policy on small traces, held against tests/golden/NAME.txt.
 *
 * A difference is no error by itself: it says that behaviour changed. Look at it, then run
 * tests/golden/update, and commit the new file with the change.
 */
#include <unistd.h>
#include "tests/unit/policy_model.h"
#include "tests/unit/source.h"

#define MANAGED 1048576u

/* Both CPUs in the pattern of page_fault1, then rest. */
static void trace_fault(struct model *m)
{
	m->cpu_us = 200000;
	for (int n = 0; n < 50; n++) {
		model_cycle(m, 0, 32768, 300, 0);
		model_cycle(m, 1, 32768, 300, 110);
		model_step(m);
	}
	m->cpu_us = 1000;
	for (int n = 0; n < 250; n++)
		model_step(m);
}

/* One CPU allocates what the other frees. */
static void trace_flow(struct model *m)
{
	m->cpu_us = 150000;
	for (int n = 0; n < 150; n++) {
		for (int k = 0; k < 20; k++) {
			model_alloc(m, 0, 3000);
			m->m[0].in_use -= 3000;
			m->m[1].in_use += 3000;
			model_free(m, 1, 3000);
		}
		model_step(m);
	}
}

/* One CPU has what it needs, then another one wants it: a budget for one of them. */
static void trace_share(struct model *m)
{
	m->cpu_us = 150000;
	for (int n = 0; n < 400; n++) {
		model_cycle(m, 0, 12000, 1000, 0);
		if (n >= 150)
			model_cycle(m, 1, 20000, 250, 0);
		model_step(m);
	}
}

/* The same as trace_fault, of a target that has no records. */
static void trace_blind(struct model *m)
{
	m->record_ms = 0;
	trace_fault(m);
}

/* CPUs that tune themselves, bursts and pauses, a stretch of idleness in one sample. */
static void trace_burst(struct model *m)
{
	for (uint32_t i = 0; i < 2; i++)
		model_begin(m, i, PCPTUNE_RULES_G4, 1000, 500, 60000);
	for (int n = 0; n < 300; n++) {
		if (n % 100 < 20)
			model_cycle(m, (uint32_t)n / 100 % 2, 12000, 400, 0);
		model_step(m);
	}
	m->dt = 25000000;
	model_step(m);
	m->dt = 100000;
	for (int n = 0; n < 40; n++) {
		model_cycle(m, 0, 5000, 200, 0);
		model_step(m);
	}
}

static const struct {
	const char *name, *policy, *params;
	void (*trace)(struct model *m);
} golden[] = {
	{"static-fault", "static", "high=1000", trace_fault},
	{"static-burst", "static", "high=2000 batch=31 rules=g1", trace_burst},
	{"kernel-fault", "kernel", "", trace_fault},
	{"kernel-burst", "kernel", "high_min=400 high_max=30000 decay_ms=1000", trace_burst},
	{"kernel-g1-flow", "kernel", "rules=g1", trace_flow},
	{"contention-fault", "contention", "", trace_fault},
	{"contention-flow", "contention", "contend_ppm=500", trace_flow},
	{"contention-burst", "contention", "hold_ms=2000", trace_burst},
	{"contention-budget", "contention", "budget_permille=30", trace_fault},
	{"fraction-fault", "fraction", "", trace_fault},
	{"fraction-burst", "fraction", "knob=fraction fraction=1000 rules=g0", trace_burst},
	{"fraction-default-flow", "fraction", "fraction=0", trace_flow},
	{"shuffle-fault", "shuffle", "", trace_fault},
	{"shuffle-flow", "shuffle", "", trace_flow},
	{"shuffle-burst", "shuffle", "hold_ms=2000", trace_burst},
	{"shuffle-budget", "shuffle", "budget_permille=30 shuffle_ms=1000", trace_fault},
	{"lowwater-fault", "lowwater", "", trace_fault},
	{"lowwater-flow", "lowwater", "", trace_flow},
	{"lowwater-burst", "lowwater", "hold_ms=2000 look_ms=500", trace_burst},
	{"coldest-fault", "coldest", "", trace_fault},
	{"coldest-flow", "coldest", "", trace_flow},
	{"coldest-burst", "coldest", "budget_permille=8 cold_ms=1000", trace_burst},
	{"shuffle-share", "shuffle", "budget_permille=18 shuffle_ms=1000 hold_ms=1000",
	 trace_share},
	{"shuffle-guard-share", "shuffle",
	 "budget_permille=18 shuffle_ms=1000 hold_ms=1000 guard_permille=50 guard_ms=2000",
	 trace_share},
	{"contention-guard-burst", "contention", "hold_ms=2000 guard_permille=50 guard_ms=500",
	 trace_burst},
	{"knee-fault", "knee", "", trace_fault},
	{"knee-flow", "knee", "", trace_flow},
	{"knee-burst", "knee", "lambda=100 hold_ms=2000", trace_burst},
	{"knee-share", "knee", "budget_permille=18", trace_share},
	{"knee-records-off", "knee", "", trace_blind},
	{"learn-fault", "learn", "window_ms=500 settle_ms=300", trace_fault},
	{"learn-flow", "learn", "window_ms=500 settle_ms=300", trace_flow},
	{"learn-burst", "learn", "window_ms=500 settle_ms=300 worth_us=1", trace_burst},
};

/* Says the first lines that differ. */
static void show_difference(const char *name, const char *old, const char *new_)
{
	int line = 1;

	while (*old && *old == *new_) {
		line += *old == '\n';
		old++;
		new_++;
	}
	while (line > 1 && old[-1] != '\n') {
		old--;
		new_--;
	}
	fail_msg("%s, line %d:\n  - %.*s\n  + %.*s\nIf this is meant, run tests/golden/update.",
		 name, line, (int)strcspn(old, "\n"), old, (int)strcspn(new_, "\n"), new_);
}

static void check_golden(size_t i)
{
	char *text = NULL, *right;
	struct model *m = malloc(sizeof(*m));
	size_t n;

	assert_non_null(m);
	model_new(m, golden[i].policy, golden[i].params, 3, MANAGED);
	m->trace = open_memstream(&text, &n);
	assert_non_null(m->trace);
	golden[i].trace(m);
	fclose(m->trace);
	model_end(m);
	free(m);
	right = golden_text(golden[i].name, text);
	if (strcmp(text, right) != 0)
		show_difference(golden[i].name, right, text);
	free(right);
	free(text);
}

static void test_golden(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++)
		check_golden(i);
}

/* The same trace twice, and from a copied state in the middle: the same decisions. */
static void test_determinism(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
		char *text[2] = {NULL, NULL};
		size_t n[2];

		for (int k = 0; k < 2; k++) {
			struct model *m = malloc(sizeof(*m));

			assert_non_null(m);
			model_new(m, golden[i].policy, golden[i].params, 3, MANAGED);
			m->trace = open_memstream(&text[k], &n[k]);
			golden[i].trace(m);
			fclose(m->trace);
			model_end(m);
			free(m);
		}
		assert_string_equal(text[0], text[1]);
		free(text[0]);
		free(text[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_determinism),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
