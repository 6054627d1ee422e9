/* SPDX-License-Identifier: MIT */
/*
 * Makes a decision log of known content, for tests of the commands that read one.
 *
 *	cli_mklog PATH		new log: two targets, three kinds of policy, seven decisions
 *	cli_mklog PATH N	adds N decisions of now to such a log, in one transaction
 *
 * Rows are made through lib/logstore.h and lib/codec.h alone, as the daemon does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "lib/logstore.h"
#include "policies/host.h"

#define START_WALL UINT64_C(1796032800000000) /* 2026-11-30 10:00:00 UTC */
#define START_BOOT UINT64_C(5000000000)
#define STEP_US	   100000u
#define N_CPUS	   3u

static struct logstore *ls;

static void must(int r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "cli_mklog: %s: %s\n", what, ls ? logstore_error(ls) : strerror(-r));
	exit(1);
}

static struct logstamp at(uint64_t seq)
{
	return (struct logstamp){START_BOOT + seq * STEP_US, START_WALL + seq * STEP_US};
}

/* ---- samples ---- */

/* CPU 0 is busy in each, CPU 1 in every other, CPU 2 never. */
static void fill(struct pcptune_cpu *cpus, uint64_t seq)
{
	uint32_t i;

	memset(cpus, 0, N_CPUS * sizeof(*cpus));
	for (i = 0; i < N_CPUS; i++) {
		cpus[i] = (struct pcptune_cpu){.cpu = i,
					       .count = 100 + i,
					       .high = 378,
					       .high_min = 63,
					       .high_max = 5000,
					       .batch = 63,
					       .scale_max = 5,
					       .rules = PCPTUNE_RULES_G4};
		if (i == 2 || (i == 1 && seq % 2))
			continue;
		cpus[i].flags = PCPTUNE_CPU_ACTIVE;
		cpus[i].alloc_pages = 10000 + seq;
		cpus[i].alloc_zone = 5000;
		cpus[i].lock_alloc_taken = 80;
		cpus[i].lock_alloc_wait_ns = 1500000;
		cpus[i].lock_free_wait_ns = 500000;
		cpus[i].lock_agent_wait_ns = 9000000; /* must not count as contention */
	}
}

static void add_samples(int64_t target, uint64_t from, uint64_t to)
{
	struct pcptune_cpu cpus[N_CPUS];
	struct pcptune_encoder *enc;
	struct chunk_totals totals;
	const uint8_t *data;
	uint64_t seq;
	size_t len;

	must(encoder_new(N_CPUS, &enc), "encoder");
	for (seq = from; seq <= to; seq++) {
		uint32_t active[N_CPUS] = {0, 1};
		struct pcptune_sample s = {.size = sizeof(s),
					   .seq = seq,
					   .time_us = at(seq).boot_us,
					   .dt_us = STEP_US,
					   .cpu_us = 100000,
					   .n_cpus = N_CPUS,
					   .cpu_size = sizeof(cpus[0]),
					   .cpus = cpus,
					   .active = active,
					   .n_active = seq % 2 ? 1 : 2};

		fill(cpus, seq);
		must(encoder_add(enc, &s), "sample");
	}
	encoder_peek(enc, &data, &len, &totals);
	must(logstore_samples_add(ls, target, at(to), &totals, data, len), "chunk");
	encoder_free(enc);
}

/* ---- rows ---- */

static const struct pcptune_shape shape = {
	.size = sizeof(shape),
	.n_zones = 1,
	.n_cpus = N_CPUS,
	.host_cpus = 2,
	.managed_pages = 1 << 20,
	.low_wmark_pages = 4096,
	.budget_pages = 2000,
	.high_limit = 100000,
	.interval_ms = 100,
};

static int64_t add_target(int64_t run, const char *name, uint32_t pid)
{
	struct log_target t = {.run = run,
			       .pid = pid,
			       .uid = 1000,
			       .mode = 1,
			       .shape = shape,
			       .random_id = pid,
			       .attached = at(0)};

	snprintf(t.name, sizeof(t.name), "%s", name);
	must(logstore_target_add(ls, &t), "target");
	return t.id;
}

static int64_t add_assignment(int64_t target, const char *policy, const char *params,
			      const char *why)
{
	struct log_assignment a = {.target = target, .seq_first = 1, .t = at(0), .shape = shape};

	snprintf(a.policy, sizeof(a.policy), "%s", policy);
	snprintf(a.version, sizeof(a.version), "1.0");
	snprintf(a.params, sizeof(a.params), "%s", params);
	snprintf(a.why, sizeof(a.why), "%s", why);
	must(logstore_assignment_add(ls, &a), "assignment");
	return a.id;
}

/* The id of a reason in the plug-in, so that its sentence is found; 1 where there is none. */
static uint32_t reason_id(const char *policy, const char *name)
{
	struct policy_module *m;
	const struct pcptune_reason *r;
	char why[POLICY_WHY];
	uint32_t id, found = 0;

	if (!strcmp(policy, "ghost") || !strcmp(policy, "operator"))
		return 1;
	if (policy_load(policy, NULL, &m, why)) {
		fprintf(stderr, "cli_mklog: %s\n", why);
		exit(1);
	}
	for (id = 1; id < 1000 && !found; id++) {
		r = policy_reason(m, id);
		found = r && !strcmp(r->name, name) ? id : 0;
	}
	policy_unref(m);
	if (!found)
		fprintf(stderr, "cli_mklog: policy %s has no reason %s\n", policy, name);
	if (!found)
		exit(1);
	return found;
}

static struct log_decision decision(int64_t target, int64_t assignment, uint64_t seq, uint32_t cpu,
				    uint32_t from, uint32_t to)
{
	struct log_decision d = {.target = target,
				 .assignment = assignment,
				 .seq = seq,
				 .t = at(seq),
				 .cpu = cpu,
				 .old = {from, 63, 5000, 63, 5, PCPTUNE_RULES_G4}};

	d.proposed = d.clamped = d.old;
	d.proposed.high = d.clamped.high = to;
	return d;
}

static int64_t add(struct log_decision d, const char *policy, const char *reason, int outcome)
{
	d.reason = reason_id(policy, reason);
	d.outcome = outcome;
	snprintf(d.reason_name, sizeof(d.reason_name), "%s", reason);
	must(logstore_decision_add(ls, &d), "decision");
	return d.id;
}

static void add_effect(int64_t id)
{
	struct log_decision d = {.id = id,
				 .effect_n = 10,
				 .before_alloc_pages = 100000,
				 .before_alloc_zone = 50000,
				 .before_wait_ns = 20000000,
				 .before_held = 12340, /* a sum over the samples */
				 .after_alloc_pages = 200000,
				 .after_alloc_zone = 2000,
				 .after_wait_ns = 1000,
				 .after_held = 7000};

	must(logstore_decision_effect(ls, &d), "effect");
}

static void make(const char *path)
{
	int64_t run, a, b, by_contention, by_static, by_hand, by_ghost;
	struct log_decision d;

	must(logstore_run_begin(ls, at(0), "0.1.0", "", &run), path);
	a = add_target(run, "page_fault1", 4321);
	b = add_target(run, "sqlite3", 4322);
	by_contention = add_assignment(a, "contention", "up=2 down=1", "rule 2, program page_*");
	by_static = add_assignment(b, "static", "high=0", "default");
	by_hand = add_assignment(a, "operator", "", "by hand");
	by_ghost = add_assignment(b, "ghost", "", "set by hand");
	add_samples(a, 1, 10);
	d = decision(a, by_contention, 3, 0, 378, 756);
	d.arg[0] = 15000;
	d.arg[1] = 480;
	add_effect(add(d, "contention", "contended", LOG_APPLIED));
	add(decision(a, by_contention, 5, 1, 378, 400), "contention", "swing", LOG_DRY_RUN);
	add_samples(a, 11, 20);
	d = decision(a, by_contention, 12, 0, 756, 1244);
	d.proposed.high = 9000;
	add(d, "contention", "contended", LOG_WRITTEN);
	add(decision(a, by_hand, 13, 0, 1244, 100), "operator", "set-by-operator", LOG_SUPERSEDED);
	d = decision(b, by_static, 1, 2, 378, 378);
	d.proposed.batch = d.clamped.batch = 31;
	add(d, "ghost", "fixed", LOG_APPLIED);
	d = decision(b, by_ghost, 2, 2, 378, 10);
	d.arg[1] = -7;
	add(d, "ghost", "unheard-of", LOG_DRIFT);
	add(decision(a, by_contention, 999, 1, 400, 300), "contention", "decay-idle", LOG_GONE);
	must(logstore_event(ls, run, 0, at(0), "start", "pcptuned 0.1.0"), "event");
	must(logstore_event(ls, run, a, at(4), "gap", "no sample for 3.0 s"), "event");
	must(logstore_target_end(ls, b, at(30), "closed"), "end");
}

static void grow(unsigned long n)
{
	struct log_decision d = decision(1, 1, 20, 0, 100, 200);

	d.t = logstamp_now();
	must(logstore_begin(ls), "begin");
	while (n--)
		add(d, "ghost", "added", LOG_APPLIED);
	must(logstore_commit(ls), "commit");
}

int main(int argc, char **argv)
{
	const struct logstore_options opt = {.max_bytes = 64 << 20, .busy_ms = 2000};
	char why[256] = "";
	int r;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: cli_mklog PATH [N]\n");
		return 2;
	}
	r = logstore_open(argv[1], &opt, &ls, NULL, why);
	if (r)
		fprintf(stderr, "cli_mklog: %s\n", why);
	if (r)
		return 1;
	if (argc == 3)
		grow(strtoul(argv[2], NULL, 10));
	else
		make(argv[1]);
	logstore_close(ls);
	return 0;
}
