/* SPDX-License-Identifier: MIT */
/*
 * Advice from a log: a policy at work on CPUs with too short lists is logged, samples and records,
 * and knee is asked what it would have set.
 */
#include <errno.h>
#include <unistd.h>
#include "tests/unit/policy_model.h"
#include "eval/advise.h"
#include "lib/logstore.h"
#include "lib/records.h"
#include "tests/unit/scratch.h"

#define MANAGED 1048576u

static char db[256];
static struct logstore *ls;
static struct pcptune_encoder *enc;
static struct log_target target;
static struct records_writer writer;
static bool with_records;
static uint64_t direct; /* pages past the lists, each way, in a record of CPU 0 */

static void log_record(const struct pcptune_record *r, const struct pcptune_sample *s)
{
	struct log_record l = {.r = *r, .seq = s->seq, .time_us = s->time_us, .parts = 1};
	const struct pcptune_cpu *c = pcptune_sample_cpu(s, r->index);

	l.high = l.high_least = l.high_most = c->high;
	l.batch = c->batch;
	l.scale_max = c->scale_max;
	l.rules = c->rules;
	l.alloc_direct = l.free_direct = r->index ? 0 : direct;
	assert_int_equal(records_add(&writer, &l), 0);
}

static void flush(void)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(enc, &data, &len, &totals);
	if (len)
		assert_int_equal(
			logstore_samples_add(ls, target.id, logstamp_now(), &totals, data, len), 0);
	encoder_reset(enc);
	if (writer.n)
		assert_int_equal(logstore_records_add(ls, target.id, logstamp_now(), &writer), 0);
	records_reset(&writer);
}

static void after(struct model *m, const struct pcptune_sample *s)
{
	(void)m;
	assert_int_equal(encoder_add(enc, s), 0);
	for (uint32_t i = 0; with_records && i < pcptune_sample_n_records(s); i++)
		log_record(pcptune_sample_record(s, i), s);
	if (s->seq % 10 == 0)
		flush();
}

static void remove_log(void)
{
	static const char *const ends[] = {"", "-wal", "-shm", ".lock"};
	char path[sizeof(db) + 8];

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", db, ends[i]);
		unlink(path);
	}
}

/* Three CPUs under static, high 378: swings of 5000 and 900 pages, and one that rests. */
static void make_log(uint64_t budget, uint32_t samples)
{
	struct logstore_options opt = {.max_bytes = 64u << 20, .busy_ms = 100};
	struct model m;
	char why[256] = "";
	int64_t run;

	remove_log();
	if (logstore_open(db, &opt, &ls, NULL, why))
		fail_msg("%s", why);
	model_new(&m, "static", "", 4, MANAGED);
	m.record_ms = 1000;
	m.after = after;
	m.shape.budget_pages = budget;
	assert_int_equal(encoder_new(4, &enc), 0);
	assert_int_equal(logstore_run_begin(ls, logstamp_now(), "test", "", &run), 0);
	target = (struct log_target){.run = run, .shape = m.shape, .attached = logstamp_now()};
	snprintf(target.name, sizeof(target.name), "model");
	assert_int_equal(logstore_target_add(ls, &target), 0);
	model_alloc(&m, 2, 10);
	while (samples--) {
		model_cycle(&m, 0, 5000, 250, 0);
		model_cycle(&m, 1, 900, 200, 70);
		model_step(&m);
	}
	flush();
	encoder_free(enc);
	model_end(&m);
}

static int ask(const char *policy, uint64_t from_us, uint64_t to_us, struct advice *a, char *why)
{
	int64_t params[POLICY_MAX_PARAMS];
	struct policy_module *module;
	int r;

	assert_int_equal(policy_load(policy, NULL, &module, why), 0);
	policy_params_default(module, params);
	r = advise_log(ls, &target, from_us, to_us, module, params, a, why);
	policy_unref(module);
	return r;
}

static void end(struct advice *a)
{
	advice_free(a);
	logstore_close(ls);
	remove_log();
	records_free(&writer);
	writer = (struct records_writer){0};
}

static const struct advice_row *row_of(const struct advice *a, uint32_t cpu)
{
	for (size_t i = 0; i < a->n_rows; i++)
		if (a->rows[i].cpu == cpu)
			return &a->rows[i];
	return NULL;
}

/* What each swings by and no more; the traffic that was measured is gone then. */
static void says_what_each_needs(void **state)
{
	char why[WALKS_WHY] = "";
	const struct advice_row *r;
	struct advice a;

	(void)state;
	with_records = true;
	make_log(0, 600);
	assert_int_equal(ask("knee", 0, 0, &a, why), 0);
	assert_int_equal(a.samples, 600);
	assert_in_range(a.records, 110, 130);
	r = row_of(&a, 0);
	assert_non_null(r);
	assert_int_equal(r->now.high, 378);
	assert_in_range(r->then.high, 5000, 5900);
	assert_int_equal(r->then.high, r->then.high_min);
	assert_int_equal(r->then.scale_max, 0);
	assert_true(r->measured > 1000000 && r->pages_then.pages < r->measured / 50);
	assert_true(r->pages_then.pages_least <= r->pages_then.pages);
	assert_true(r->pages_then.pages_most >= r->pages_then.pages);
	/* the walk through the ends of intervals can not cost more than what was */
	assert_true(r->pages_now.pages_least <= r->measured);
	r = row_of(&a, 1);
	assert_non_null(r);
	assert_in_range(r->then.high, 900, 1200);
	assert_true(a.high_then > 5900 && a.high_now == 3 * 378);
	assert_true(a.measured >= r->measured && a.seconds > 50);
	end(&a);
}

/* What went past lists of order 0 alone may go through those of knee: the range has room for it. */
static void has_room_for_what_passed_the_lists_by(void **state)
{
	uint64_t most[2], measured;
	char why[WALKS_WHY] = "";
	const struct advice_row *r;
	struct advice a;

	(void)state;
	with_records = true;
	for (int i = 0; i < 2; i++) {
		direct = i * 1000000u;
		make_log(0, 300);
		assert_int_equal(ask("knee", 0, 0, &a, why), 0);
		r = row_of(&a, 0);
		assert_non_null(r);
		assert_true(r->other_lists); /* static has the rules of before 5.13 */
		assert_true(i ? r->direct >= 50 * direct : !r->direct);
		assert_int_equal(a.direct, r->direct);
		most[i] = r->pages_then.pages_most - r->direct;
		if (i)
			assert_int_equal(r->measured, measured);
		measured = r->measured;
		assert_int_equal(row_of(&a, 1)->direct, 0);
		end(&a);
	}
	direct = 0;
	assert_int_equal(most[1], most[0]);
}

/* The budget of the target holds for advice, too: the policy goes by what it set before. */
static void keeps_the_budget(void **state)
{
	char why[WALKS_WHY] = "";
	struct advice a;

	(void)state;
	with_records = true;
	make_log(2000, 600);
	assert_int_equal(ask("knee", 0, 0, &a, why), 0);
	assert_true(a.n_rows > 0);
	assert_in_range(a.high_then, 1200, 2000);
	assert_true(row_of(&a, 1)->then.high >= 832 + 63); /* more cycles for each page */
	end(&a);
}

/* By counters the policy gets there as well, and says that it had no records. */
static void works_without_records(void **state)
{
	char why[WALKS_WHY] = "";
	struct advice a;

	(void)state;
	with_records = false;
	make_log(0, 300);
	assert_int_equal(ask("knee", 0, 0, &a, why), 0);
	assert_int_equal(a.records, 0);
	assert_true(row_of(&a, 0)->then.high > 378);
	assert_true(a.quiet != 0);
	end(&a);
}

/* A policy that wants nothing else gives no row; a time without samples is told. */
static void nothing_to_change_and_nothing_there(void **state)
{
	char why[WALKS_WHY] = "";
	struct advice a = {0};

	(void)state;
	with_records = true;
	make_log(0, 50);
	assert_int_equal(ask("static", 0, 0, &a, why), 0);
	assert_int_equal(a.n_rows, 0);
	assert_true(a.high_then == a.high_now && a.quiet != 0);
	advice_free(&a);
	assert_int_equal(ask("knee", 1, 2, &a, why), -ENOENT);
	assert_non_null(strstr(why, "no sample"));
	end(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(says_what_each_needs),
		cmocka_unit_test(has_room_for_what_passed_the_lists_by),
		cmocka_unit_test(keeps_the_budget),
		cmocka_unit_test(works_without_records),
		cmocka_unit_test(nothing_to_change_and_nothing_there),
	};

	scratch_file(db, "db");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
