/* SPDX-License-Identifier: MIT */
/*
 * Makes a decision log with records: lists of several CPUs by the rules of rules.h, their swings
 * and what they moved, as a daemon would have written them.
 *
 *	record_log PATH [KEY=VALUE ...]
 *
 * Same keys, same log. With merged=1 the records are those of a minute, as a log has them whose
 * samples are totals already: merged=1 minutes=10080 cpus=64 is a week of a large target.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pcptune/rules.h>
#include "eval/lists.h"
#include "lib/logstore_private.h"
#include "tests/unit/random.h"

#define START_WALL UINT64_C(1796032800000000) /* 2026-11-30 10:00:00 UTC */
#define START_BOOT UINT64_C(5000000000)
#define CHUNK	   10u
#define MAX_CPUS   512u

/* ---- keys ---- */

static struct {
	uint64_t cpus, minutes, period_s, step_ms, bursts, swing, merged, samples, seed, hole_at;
	uint64_t high, batch, scale_max, rules, raise_at, free_high;
	const char *policy, *params, *version, *second, *second_params;
} k = {.cpus = 4,
       .minutes = 10,
       .period_s = 10,
       .step_ms = 1000,
       .bursts = 4,
       .swing = 200,
       .samples = 1,
       .seed = 1,
       .high = 378,
       .batch = 63,
       .policy = "static",
       .version = "1",
       .params = ""};

static const struct {
	const char *name;
	uint64_t *number;
	const char **word;
} keys[] = {
	{"cpus", &k.cpus, NULL},
	{"minutes", &k.minutes, NULL},
	{"period_s", &k.period_s, NULL},
	{"step_ms", &k.step_ms, NULL},
	{"bursts", &k.bursts, NULL},
	{"swing", &k.swing, NULL},
	{"merged", &k.merged, NULL},
	{"samples", &k.samples, NULL},
	{"seed", &k.seed, NULL},
	{"hole_at", &k.hole_at, NULL},
	{"raise_at", &k.raise_at, NULL},
	{"high", &k.high, NULL},
	{"batch", &k.batch, NULL},
	{"scale_max", &k.scale_max, NULL},
	{"rules", &k.rules, NULL},
	{"free_high", &k.free_high, NULL},
	{"policy", NULL, &k.policy},
	{"params", NULL, &k.params},
	{"version", NULL, &k.version},
	{"second", NULL, &k.second},
	{"second_params", NULL, &k.second_params},
};

static bool take_key(const char *arg)
{
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		size_t n = strlen(keys[i].name);

		if (strncmp(arg, keys[i].name, n) != 0 || arg[n] != '=')
			continue;
		if (keys[i].word)
			*keys[i].word = arg + n + 1;
		else
			*keys[i].number = strtoull(arg + n + 1, NULL, 10);
		return true;
	}
	fprintf(stderr, "record_log: unknown: %s\n", arg);
	return false;
}

/* ---- the machine ---- */

struct cpu {
	struct lists l, last, last_record;
	struct pcptune_band band;
	int64_t x;
	uint64_t since_us;
	uint32_t high_before;
};

static struct cpu cpus[MAX_CPUS];
static struct logstore *ls;
static uint64_t now_us, seq, random_state;

static void must(int r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "record_log: %s: %s\n", what, ls ? logstore_error(ls) : strerror(-r));
	exit(1);
}

static uint64_t below(uint64_t n)
{
	return (random_next(&random_state) >> 11) % n;
}

static struct logstamp stamp(void)
{
	return (struct logstamp){START_BOOT + now_us, START_WALL + now_us};
}

static void set_high(uint32_t high)
{
	for (uint32_t i = 0; i < k.cpus; i++)
		lists_limits(&cpus[i].l, high, high, high, (uint32_t)k.batch, (uint32_t)k.scale_max,
			     (uint32_t)k.rules);
}

static void move(struct cpu *c, int64_t blocks)
{
	if (!blocks)
		return;
	lists_move(&c->l, 0, blocks);
	c->x += blocks;
	pcptune_band_push(&c->band, c->x);
}

/*
 * A few runs of allocations and as many frees, some pages of it in between, each CPU by its size.
 */
static void burst(uint32_t i, uint64_t step)
{
	uint64_t phase = step * k.step_ms / 60000 / 5 % 3; /* which CPUs are large changes */
	uint64_t size = k.swing << (i + phase) % 4;

	for (uint64_t b = 0; b < k.bursts; b++) {
		int64_t n = 1 + (int64_t)below(size), back = (int64_t)below((uint64_t)n / 8 + 1);
		int64_t top = -(int64_t)below(size / 8 + 1);

		move(&cpus[i], -n);
		move(&cpus[i], back);
		move(&cpus[i], -back);
		move(&cpus[i], top - cpus[i].x);
	}
}

/* ---- samples ---- */

static struct pcptune_encoder *enc;
static struct pcptune_cpu sample_cpus[MAX_CPUS];
static uint32_t active[MAX_CPUS];
static uint64_t in_chunk;
static int64_t target;

static void fill(struct pcptune_cpu *p, uint32_t i)
{
	const struct lists *l = &cpus[i].l, *b = &cpus[i].last;

	*p = (struct pcptune_cpu){.cpu = i,
				  .flags = PCPTUNE_CPU_ACTIVE,
				  .count = (uint32_t)l->pages,
				  .high = l->st.high,
				  .high_min = l->st.high_min,
				  .high_max = l->st.high_max,
				  .batch = l->st.batch,
				  .scale_max = l->st.scale_max,
				  .rules = l->st.rules};
	p->alloc_pages = l->alloc_pages - b->alloc_pages;
	p->free_pages = l->free_pages - b->free_pages;
	p->alloc_zone = l->alloc_zone - b->alloc_zone;
	p->free_zone = l->free_zone - b->free_zone;
	p->refills = p->lock_alloc_taken = l->refills - b->refills;
	p->drains = p->lock_free_taken = l->drains - b->drains;
	cpus[i].last = *l;
}

static void write_chunk(void)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(enc, &data, &len, &totals);
	if (!len)
		return;
	must(logstore_samples_add(ls, target, stamp(), &totals, data, len), "samples");
	encoder_reset(enc);
	in_chunk = 0;
}

static void add_sample(void)
{
	struct pcptune_sample s = {.size = sizeof(s),
				   .seq = seq,
				   .time_us = START_BOOT + now_us,
				   .dt_us = k.step_ms * 1000,
				   .cpu_us = k.step_ms * 1000 * k.cpus,
				   .n_cpus = (uint32_t)k.cpus,
				   .cpu_size = sizeof(sample_cpus[0]),
				   .cpus = sample_cpus,
				   .active = active,
				   .n_active = (uint32_t)k.cpus};

	for (uint32_t i = 0; i < k.cpus; i++) {
		fill(&sample_cpus[i], i);
		active[i] = i;
	}
	must(encoder_add(enc, &s), "sample");
	if (++in_chunk == CHUNK)
		write_chunk();
}

/* ---- records ---- */

static struct records_writer writer;

static void add_record(uint32_t i)
{
	struct cpu *c = &cpus[i];
	const struct lists *l = &c->l, *b = &c->last_record;
	struct log_record r = {.seq = seq, .time_us = START_BOOT + now_us, .parts = 1};

	r.r.index = i;
	r.r.dt_us = now_us - c->since_us;
	pcptune_band_cut(&c->band, &r.r.band);
	r.r.refills = l->refills - b->refills;
	r.r.refilled = l->alloc_zone - b->alloc_zone;
	r.r.drains = l->drains - b->drains;
	r.r.drained = l->free_zone - b->free_zone;
	r.alloc_pages = l->alloc_pages - b->alloc_pages;
	r.free_pages = l->free_pages - b->free_pages;
	r.free_high = k.free_high;
	r.lock_taken = r.r.refills + r.r.drains;
	r.lock_contended = r.lock_taken / 20;
	r.lock_wait_ns = r.lock_contended * 1500;
	r.count = (uint32_t)l->pages;
	r.high = l->st.high;
	r.high_least = c->high_before < r.high ? c->high_before : r.high;
	r.high_most = c->high_before > r.high ? c->high_before : r.high;
	r.batch = l->st.batch;
	r.scale_max = l->st.scale_max;
	r.rules = l->st.rules;
	r.r.flags = k.hole_at && seq == k.hole_at ? PCPTUNE_RECORD_BROKEN : 0;
	c->last_record = *l;
	c->since_us = now_us;
	c->high_before = r.high;
	must(records_add(&writer, &r), "record");
}

static void write_records(void)
{
	if (writer.n)
		must(logstore_records_add(ls, target, stamp(), &writer), "records");
	records_reset(&writer);
}

/* Turns are spread over the period, or all at the end of a minute. */
static void take_records(void)
{
	uint64_t steps = k.period_s * 1000 / k.step_ms;

	for (uint32_t i = 0; i < k.cpus; i++)
		if (steps <= 1 || (seq + (k.merged ? 0 : i)) % steps == 0)
			add_record(i);
	if (k.merged ? now_us % 60000000 == 0 : seq % CHUNK == 0)
		write_records();
}

/* ---- the log ---- */

static const struct pcptune_shape *shape(void)
{
	static struct pcptune_shape s;

	s = (struct pcptune_shape){.size = sizeof(s),
				   .n_zones = 1,
				   .n_cpus = (uint32_t)k.cpus,
				   .host_cpus = (uint32_t)k.cpus,
				   .managed_pages = 1 << 20,
				   .low_wmark_pages = 4096,
				   .budget_pages = 131072,
				   .high_limit = PCPTUNE_MAX_HIGH,
				   .interval_ms = (uint32_t)k.step_ms};
	return &s;
}

static void add_assignment(const char *policy, const char *params)
{
	struct log_assignment a = {
		.target = target, .seq_first = seq + 1, .t = stamp(), .shape = *shape()};

	snprintf(a.policy, sizeof(a.policy), "%s", policy);
	snprintf(a.version, sizeof(a.version), "%s", k.version);
	snprintf(a.params, sizeof(a.params), "%s", params);
	snprintf(a.why, sizeof(a.why), "default");
	must(logstore_assignment_add(ls, &a), "assignment");
}

static void begin(void)
{
	struct log_target t = {.name = "synthetic",
			       .pid = 1,
			       .mode = 1,
			       .shape = *shape(),
			       .random_id = k.seed,
			       .attached = stamp()};

	must(logstore_run_begin(ls, stamp(), "0", "", &t.run), "run");
	must(logstore_target_add(ls, &t), "target");
	target = t.id;
	add_assignment(k.policy, k.params);
	must(encoder_new((uint32_t)k.cpus, &enc), "encoder");
	random_state = k.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	set_high((uint32_t)k.high);
	for (uint32_t i = 0; i < k.cpus; i++) {
		pcptune_band_push(&cpus[i].band, 0);
		cpus[i].high_before = (uint32_t)k.high;
	}
}

static void run(void)
{
	uint64_t steps = k.minutes * 60000 / k.step_ms;

	must(logstore_begin(ls), "begin");
	for (seq = 1; seq <= steps; seq++) {
		now_us += k.step_ms * 1000;
		if (seq == k.raise_at)
			set_high((uint32_t)k.high * 4);
		for (uint32_t i = 0; i < k.cpus; i++)
			burst(i, seq);
		if (k.samples)
			add_sample();
		take_records();
		if (k.second && seq == steps / 2)
			add_assignment(k.second, k.second_params ? k.second_params : "");
	}
	seq = steps;
	write_chunk();
	for (uint32_t i = 0; i < k.cpus; i++)
		if (cpus[i].since_us < now_us)
			add_record(i);
	write_records();
	must(logstore_target_end(ls, target, stamp(), "exit"), "end");
	must(logstore_commit(ls), "commit");
}

int main(int argc, char **argv)
{
	const struct logstore_options opt = {.max_bytes = UINT64_C(1) << 32, .busy_ms = 2000};
	char why[256] = "";

	if (argc < 2) {
		fprintf(stderr, "usage: record_log PATH [KEY=VALUE ...]\n");
		return 2;
	}
	for (int i = 2; i < argc; i++)
		if (!take_key(argv[i]))
			return 2;
	if (k.merged)
		k.period_s = 60;
	if (!k.cpus || k.cpus > MAX_CPUS || !k.step_ms || 60000 % k.step_ms) {
		fprintf(stderr, "record_log: cpus 1 to %u, step_ms a part of a minute\n", MAX_CPUS);
		return 2;
	}
	if (logstore_open(argv[1], &opt, &ls, NULL, why)) {
		fprintf(stderr, "record_log: %s\n", why);
		return 1;
	}
	begin();
	run();
	if (k.merged)
		must(sqlite3_exec(ls->db,
				  "UPDATE record SET level = 1, bucket = wall_us / 60000000 * "
				  "60000000 - 60000000",
				  NULL, NULL, NULL),
		     "merge");
	sqlite3_exec(ls->db, "VACUUM", NULL, NULL, NULL);
	encoder_free(enc);
	records_free(&writer);
	logstore_close(ls);
	return 0;
}
