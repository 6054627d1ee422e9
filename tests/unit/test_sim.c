/* SPDX-License-Identifier: MIT */
/*
 * The simulator: what goes in comes out, the same seed gives the same numbers, rules matter in the
 * direction they must, policies get true samples and records, and workload files that are wrong are
 * refused with file and line.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <pcptune/rules.h>
#include "eval/sim/sim.h"
#include "eval/sim/workload.h"
#include "policies/common.h"
#include "policies/host_internal.h"
#include "tests/unit/scratch.h"
#include "tests/unit/source.h"

/* A file with this text, read; its path in path[64]. */
static int read_text(const char *text, struct sim_workload *w, char *why, char *path)
{
	FILE *f;
	int fd, e;

	snprintf(path, 256, "%s/workload.XXXXXX", scratch_root());
	fd = mkstemp(path);
	assert_true(fd >= 0);
	f = fdopen(fd, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	e = sim_workload_read(path, w, why);
	unlink(path);
	return e;
}

static struct sim_workload kbuild(void)
{
	struct sim_workload w;
	char why[SIM_WHY] = "", path[256], *text = source_text("configs/workloads/kbuild.conf");

	if (read_text(text, &w, why, path))
		fail_msg("%s", why);
	free(text);
	/* as the file has it, for a shorter time */
	w.warm_ns = 1000000000;
	w.run_ns = 3000000000;
	return w;
}

static struct sim_result run(const struct sim_workload *w, uint32_t cpus, uint32_t rules,
			     uint64_t seed)
{
	struct sim_setup setup = {.w = w, .cpus = cpus, .rules = rules, .seed = seed};
	char why[SIM_RUN_WHY] = "";
	struct sim_result r;

	memset(&r, 0xff, sizeof(r));
	if (sim_run(&setup, &r, why))
		fail_msg("%s", why);
	return r;
}

static void same_seed_same_numbers(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result a, b;

	(void)state;
	a = run(&w, 8, PCPTUNE_RULES_G4, 7);
	b = run(&w, 8, PCPTUNE_RULES_G4, 7);
	assert_memory_equal(&a, &b, sizeof(a));
	b = run(&w, 8, PCPTUNE_RULES_G4, 8);
	assert_memory_not_equal(&a, &b, sizeof(a));
}

/* Without a warm-up: what came from the zone is in use, on lists or back. */
static void pages_are_kept(void **state)
{
	(void)state;
	for (uint32_t id = 0; id < PCPTUNE_RULES_ROWS; id++) {
		struct sim_workload w = kbuild();
		struct sim_result r;

		w.warm_ns = 0;
		r = run(&w, 6, id, 1);
		assert_true(r.alloc_zone >= r.free_zone);
		assert_true(r.refills > 50 && r.exits > 6);
		assert_true(r.drains > 0 || pcptune_rules_traits(id) & PCPTUNE_RT_TUNES);
		assert_true(r.alloc_pages > 100000);
		/* no more than all that was ever taken, and no list above a few times its bound */
		assert_true(r.held_peak <= r.alloc_zone);
		assert_true(r.held_mean <= (double)r.held_peak);
		assert_true(r.held_peak <= 6 * (uint64_t)(w.high_max + 2 * 2016));
		assert_true(r.work_ns <= r.cpu_ns * 2 && r.wait_ns < r.cpu_ns);
	}
}

/* A lock with one user is never waited for; with many it is, and longer holds make it worse. */
static void waiting(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result few, more, longer;

	(void)state;
	w.nodes = 1;
	few = run(&w, 1, PCPTUNE_RULES_G3, 1);
	assert_int_equal(few.wait_ns, 0);
	more = run(&w, 64, PCPTUNE_RULES_G3, 1);
	assert_true(more.wait_ns > 0);
	w.hold_refill_ns *= 2;
	w.hold_drain_ns *= 2;
	longer = run(&w, 64, PCPTUNE_RULES_G3, 1);
	assert_true(longer.wait_ns > more.wait_ns);
	assert_true(longer.work_ns < more.work_ns);
}

/* Orders of the published table that do not hang on the number of CPUs. */
static void rules_matter(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result base, p1, p7;

	(void)state;
	base = run(&w, 32, PCPTUNE_RULES_G3, 3);
	p1 = run(&w, 32, PCPTUNE_RULES_P1, 3);
	p7 = run(&w, 32, PCPTUNE_RULES_P7, 3);
	assert_true(p1.free_high < base.free_high / 2);
	assert_true(p7.free_high < p1.free_high);
	assert_true(p7.alloc_zone < p1.alloc_zone / 2);
	assert_true(p7.held_mean > base.held_mean);
}

/* Generations without lists of high orders take such blocks from the zone, one by one. */
static void orders_without_lists(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result with, without;

	(void)state;
	with = run(&w, 8, PCPTUNE_RULES_G4, 2);
	without = run(&w, 8, PCPTUNE_RULES_G4 | PCPTUNE_RULES_ORDER0, 2);
	assert_true(without.free_high == 0 && with.free_high > 0);
	assert_true(without.alloc_pages > 100000);
	assert_true(without.alloc_zone >= without.free_zone);
}

static void wrong_machines(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result r = {.events = 42};
	const struct sim_setup good = {.w = &w, .cpus = 1, .rules = PCPTUNE_RULES_G4, .seed = 1};
	struct sim_setup s = good;
	char why[SIM_RUN_WHY];

	(void)state;
	s.cpus = 0;
	assert_int_equal(sim_run(&s, &r, why), -EINVAL);
	s.cpus = SIM_CPUS_MAX + 1;
	assert_int_equal(sim_run(&s, &r, why), -EINVAL);
	s = good;
	s.rules = 31;
	assert_int_equal(sim_run(&s, &r, why), -EINVAL);
	s = good;
	w.nodes = SIM_NODES_MAX + 1;
	assert_int_equal(sim_run(&s, &r, why), -EINVAL);
	assert_int_equal(r.events, 42);
}

/* ---- a policy of this test ---- */

enum { MODE_FIX, MODE_READ, MODE_BREAK };

static const struct pcptune_param test_params[] = {
	{"mode", PCPTUNE_PARAM_INT, 0, 0, 2, 0, "", "what to do", NULL}};
static const struct pcptune_reason test_reasons[] = {{1, 0, "set", "set to {new}"},
						     {2, 1, "read", "looked at"}};

struct seen {
	uint64_t samples, records, us;
	struct {
		int64_t at;				 /* net position */
		uint64_t refilled, drained, from_us, us; /* what records should add up to */
		uint64_t record_refilled, record_drained;
		int64_t record_at;
	} cpu[];
};

static size_t test_state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)p;
	return sizeof(struct seen) +
	       (size_t)shape->n_zones * shape->n_cpus * sizeof(((struct seen *)0)->cpu[0]);
}

static int test_init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	(void)state;
	(void)shape;
	(void)p;
	return 0;
}

/* Every record against the sums of the samples that it covers. */
static int check_records(struct seen *seen, const struct pcptune_sample *s)
{
	for (uint32_t i = 0; i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (c->zone * (s->n_cpus / 2) + c->cpu != i)
			return -EINVAL;
		seen->cpu[i].at += (int64_t)(c->free_pages - c->free_direct) -
				   (int64_t)(c->alloc_pages - c->alloc_direct);
		seen->cpu[i].refilled += c->alloc_zone - c->alloc_direct;
		seen->cpu[i].drained += c->free_zone - c->free_direct;
	}
	for (uint32_t k = 0; k < pcptune_sample_n_records(s); k++) {
		const struct pcptune_record *r = pcptune_sample_record(s, k);

		seen->records++;
		seen->cpu[r->index].record_refilled += r->refilled;
		seen->cpu[r->index].record_drained += r->drained;
		if (seen->cpu[r->index].record_refilled != seen->cpu[r->index].refilled ||
		    seen->cpu[r->index].record_drained != seen->cpu[r->index].drained)
			return -ERANGE;
		if (!r->band.n || pcptune_band_now(&r->band) != seen->cpu[r->index].at ||
		    (seen->cpu[r->index].us && r->band.start != seen->cpu[r->index].record_at))
			return -EDOM;
		if (r->flags || r->dt_us != s->time_us - seen->cpu[r->index].us)
			if (seen->cpu[r->index].us)
				return -ETIME;
		seen->cpu[r->index].us = s->time_us;
		seen->cpu[r->index].record_at = pcptune_band_now(&r->band);
	}
	return 0;
}

static int test_decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		       const struct pcptune_sample *s, struct pcptune_decision *d,
		       const struct pcptune_host *host)
{
	struct seen *seen = state;

	(void)shape;
	(void)host;
	d->reason = 2;
	if (p[0] == MODE_BREAK && s->seq > 5)
		return -EDOM;
	if (++seen->samples != s->seq || (s->seq > 1 && s->dt_us != 100000))
		return -EINVAL;
	for (uint32_t i = 0; p[0] == MODE_FIX && i < s->n_cpus; i++) {
		const struct pcptune_cpu *c = pcptune_sample_cpu(s, i);

		if (!c->high || c->high == 1000)
			continue;
		pcptune_decision_add(d, i, 1)->high = 1000;
		d->changes[d->n_changes - 1].high_min = 1000;
		d->changes[d->n_changes - 1].high_max = 1000;
	}
	return p[0] == MODE_READ ? check_records(seen, s) : 0;
}

static const struct pcptune_policy test_policy = {
	PCPTUNE_POLICY_SIZES,
	.name = "test",
	.version = "1",
	.summary = "a policy of a test",
	.params = test_params,
	.n_params = 1,
	.reasons = test_reasons,
	.n_reasons = 2,
	.state_size = test_state_size,
	.init = test_init,
	.decide = test_decide,
	.record_ms = 700,
};

static struct sim_result run_policy(const struct sim_workload *w, int64_t mode, uint64_t budget,
				    char *why)
{
	struct policy_module *m = host_module_new(&test_policy, "/nowhere/test.so");
	int64_t params[POLICY_MAX_PARAMS] = {mode};
	struct sim_setup s = {
		.w = w, .cpus = 8, .seed = 5, .module = m, .params = params, .budget = budget};
	struct sim_result r;

	assert_non_null(m);
	if (sim_run(&s, &r, why))
		fail_msg("%s", why);
	policy_unref(m);
	return r;
}

/* What a policy sets once is what a generation with these limits does, number for number. */
static void a_policy_that_sets_once(void **state)
{
	struct sim_workload w = kbuild();
	char why[SIM_RUN_WHY] = "";
	struct sim_result a, b;

	(void)state;
	a = run_policy(&w, MODE_FIX, 0, why);
	assert_int_equal(a.decisions, 8);
	assert_int_equal(a.breaches, 0);
	w.high_min = w.high_max = 1000;
	w.tick_ns = 1000000000000; /* ticks find nothing to do */
	b = run(&w, 8, PCPTUNE_RULES_G4, 5);
	assert_int_equal(a.alloc_zone, b.alloc_zone);
	assert_int_equal(a.free_zone, b.free_zone);
	assert_int_equal(a.wait_ns, b.wait_ns);
	assert_int_equal(a.work_ns, b.work_ns);
	assert_int_equal(a.held_peak, b.held_peak);
}

/* The host bounds what is given, here as in the daemon. */
static void the_budget_holds(void **state)
{
	struct sim_workload w = kbuild();
	char why[SIM_RUN_WHY] = "";
	struct sim_result r;

	(void)state;
	r = run_policy(&w, MODE_FIX, 8 * 500, why);
	assert_true(r.held_peak < 8 * 500 + 8 * 63);
}

static void samples_and_records_are_true(void **state)
{
	struct sim_workload w = kbuild();
	char why[SIM_RUN_WHY] = "";
	struct sim_result r = run_policy(&w, MODE_READ, 0, why);

	(void)state;
	if (r.breaches)
		fail_msg("%s", why);
	assert_int_equal(r.decisions, 0);
}

static void a_broken_policy_is_benched(void **state)
{
	struct sim_workload w = kbuild();
	char why[SIM_RUN_WHY] = "";
	struct sim_result r = run_policy(&w, MODE_BREAK, 0, why);

	(void)state;
	assert_int_equal(r.breaches, 3);
	assert_non_null(strstr(why, "policy \"test\""));
}

/* ---- workload files ---- */

/* text with `from` replaced by `to`; *ret_line: of the replacement. */
static char *changed(const char *text, const char *from, const char *to, unsigned *ret_line)
{
	const char *at = strstr(text, from);
	char *out = NULL;

	if (!at)
		fail_msg("no \"%s\" in the workload", from);
	*ret_line = 1;
	for (const char *p = text; p < at; p++)
		*ret_line += *p == '\n';
	assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
	return out;
}

static void wrong_files(void **state)
{
	static const struct {
		const char *from, *to, *says;
	} cases[] = {
		{"nodes = 2;", "nodes = 0;", "machine.nodes: right is a whole number from 1 to 8"},
		{"nodes = 2;", "nodes = -1;", "a whole number from 1 to 8"},
		{"nodes = 2;", "nodes = \"two\";", "a whole number from 1 to 8"},
		{"nodes = 2;", "nodes = 2.0;", "a whole number from 1 to 8"},
		{"nodes = 2;", "noodes = 2;", "machine.noodes: no such key"},
		{"nodes = 2;", "nodes 2;", "syntax error"},
		{"sigma = 0.5;", "sigma = -0.5;", "processes.sigma: right is a number from 0 to 3"},
		{"run = {", "runs = {", "right are machine, processes, slab, stream, run"},
		{"run = {", "cpus = 3; run = {", "right are machine, processes, slab, stream, run"},
		{"at_exit = ", "bursts = ", "duplicate setting name"},
	};
	char *text = source_text("configs/workloads/kbuild.conf");

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sim_workload w = {.nodes = 42};
		char why[SIM_WHY] = "", path[256], at[300];
		unsigned line;
		char *wrong = changed(text, cases[i].from, cases[i].to, &line);

		assert_int_equal(read_text(wrong, &w, why, path), -EINVAL);
		snprintf(at, sizeof(at), "%s:%u: ", path, line);
		if (strncmp(why, at, strlen(at)) != 0 || !strstr(why, cases[i].says))
			fail_msg("\"%s\" is not \"%s... %s\"", why, at, cases[i].says);
		assert_int_equal(w.nodes, 42);
		free(wrong);
	}
	free(text);
}

/* A workload of streams, as a file. */
static const char stream_text[] =
	"machine = { nodes = 1; batch = 63; scale_max = 5; high_min = 367; "
	"high_max = 36800; data_cache_pages = 1000; smt = 1.0; "
	"hold_ns = 150; hold_contended_ns = 150; hold_refill_ns = 40; "
	"hold_drain_ns = 35; tick_ns = 1000000000L; lru_locks = 0; "
	"lru_page_ns = 0; };\n"
	"stream = { order0 = 1; order1 = 0; order2 = 3; order3 = 1;\n"
	"send_ns = 1000; receive_ns = 5000; block_ns = 100; cold_page_ns = 0;\n"
	"window = 8; swap_ns = 20000000; };\n"
	"run = { warm_ns = 0; run_ns = 300000000; };\n";

/*
 * Messages are freed as they were allocated, no faster than the slower side, window at most ahead.
 */
static void streams(void **state)
{
	struct sim_workload w;
	char why[SIM_WHY] = "", path[256];
	struct sim_result r, odd;

	(void)state;
	if (read_text(stream_text, &w, why, path))
		fail_msg("%s", why);
	r = run(&w, 2, PCPTUNE_RULES_G4, 1);
	/* 5 us and five blocks each, and it begins somewhere in the first 100 ms */
	assert_true(r.exits > 30000 && r.exits < 56000);
	/* 21 pages a message; what is allocated is on its way or freed: in use or on a list */
	assert_true(r.alloc_pages >= 21 * r.exits && r.alloc_pages <= 21 * (r.exits + 1));
	assert_true(r.alloc_zone - r.free_zone <= 9 * 21 + 2 * (uint64_t)w.high_max);
	/* the sender waits for room most of the time: that is no time of a CPU in use */
	assert_true(r.cpu_ns < 2 * 300000000ull * 3 / 4 && r.cpu_ns > 300000000ull);
	odd = run(&w, 3, PCPTUNE_RULES_G4, 1);
	assert_true(odd.exits > 30000 && odd.exits < 56000); /* one has no partner */
}

/*
 * Roles change. With p7 a sender that was a receiver takes what lies on its lists, below what the
 * caches reach; with g4 receivers drain at once, and what comes from the zone is what went there
 * last. Cold pages take time.
 */
static void cold_pages(void **state)
{
	struct sim_workload w;
	char why[SIM_WHY] = "", path[256];
	struct sim_result p7, g4, slow, larger;

	(void)state;
	if (read_text(stream_text, &w, why, path))
		fail_msg("%s", why);
	p7 = run(&w, 2, PCPTUNE_RULES_P7V3, 1);
	g4 = run(&w, 2, PCPTUNE_RULES_G4, 1);
	assert_true(p7.cold_pages * 20 > p7.alloc_pages && p7.cold_pages < p7.alloc_pages);
	assert_true(g4.cold_pages * 100 < g4.alloc_pages);
	w.cold_page_ns = 2000;
	slow = run(&w, 2, PCPTUNE_RULES_P7V3, 1);
	assert_true(slow.exits < p7.exits * 95 / 100);
	w.data_cache_pages = 100000;
	larger = run(&w, 2, PCPTUNE_RULES_P7V3, 1);
	assert_int_equal(larger.cold_pages, 0);
}

/* With one LRU lock for all CPUs more is waited than with one for each, or with none. */
static void lru_locks(void **state)
{
	struct sim_workload w = kbuild();
	struct sim_result one, many;

	(void)state;
	w.lru_page_ns = 150;
	w.nodes = 1;
	w.lru_locks = 1;
	one = run(&w, 32, PCPTUNE_RULES_P9, 3);
	w.lru_locks = 32;
	many = run(&w, 32, PCPTUNE_RULES_P9, 3);
	assert_true(one.wait_ns > 2 * many.wait_ns);
}

static void streams_or_processes(void **state)
{
	static const struct {
		const char *from, *to, *says;
	} cases[] = {
		{"window = 8; ", "", "stream.window is missing: a whole number from 1 to 1000000"},
		{"window = 8;", "window = 0;", "stream.window: right is a whole number from 1"},
		{"send_ns = 1000;", "send_ns = -1;",
		 "stream.send_ns: right is a whole number from 0"},
		{"order0 = 1; order1 = 0; order2 = 3; order3 = 1;",
		 "order0 = 0; order1 = 0; order2 = 0; order3 = 0;", "stream.order0 to 3 are all 0"},
		{"run = {", "slab = { bursts = 0.0; };\nrun = {", "right is one of them"},
		{"run = {", "processes = { sigma = 0.0; };\nrun = {", "right is one of them"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sim_workload w = {.nodes = 42};
		char why[SIM_WHY] = "", path[256];
		unsigned line;
		char *wrong = changed(stream_text, cases[i].from, cases[i].to, &line);

		assert_int_equal(read_text(wrong, &w, why, path), -EINVAL);
		if (!strstr(why, cases[i].says))
			fail_msg("\"%s\" is not \"... %s\"", why, cases[i].says);
		assert_int_equal(w.nodes, 42);
		free(wrong);
	}
}

/* Every key is needed. */
static void missing_keys(void **state)
{
	char *text = source_text("configs/workloads/kbuild.conf"), why[SIM_WHY] = "", path[256],
	     *less;
	struct sim_workload w;
	unsigned line;

	(void)state;
	less = changed(text, "nodes = 2;", "", &line);
	assert_int_equal(read_text(less, &w, why, path), -EINVAL);
	assert_non_null(strstr(why, "machine.nodes is missing: a whole number from 1 to 8"));
	free(less);
	less = changed(text, "high_max = ", "high_max = 10; #", &line);
	assert_int_equal(read_text(less, &w, why, path), -EINVAL);
	assert_non_null(strstr(why, "high_max is below machine.high_min"));
	free(less);
	free(text);
	assert_int_equal(sim_workload_read("/nonexistent/x", &w, why), -ENOENT);
	assert_non_null(strstr(why, "/nonexistent/x: No such file"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_seed_same_numbers),
		cmocka_unit_test(pages_are_kept),
		cmocka_unit_test(waiting),
		cmocka_unit_test(rules_matter),
		cmocka_unit_test(orders_without_lists),
		cmocka_unit_test(wrong_machines),
		cmocka_unit_test(a_policy_that_sets_once),
		cmocka_unit_test(the_budget_holds),
		cmocka_unit_test(samples_and_records_are_true),
		cmocka_unit_test(a_broken_policy_is_benched),
		cmocka_unit_test(wrong_files),
		cmocka_unit_test(missing_keys),
		cmocka_unit_test(streams),
		cmocka_unit_test(cold_pages),
		cmocka_unit_test(lru_locks),
		cmocka_unit_test(streams_or_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
