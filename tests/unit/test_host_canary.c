/* SPDX-License-Identifier: MIT */
/*
 * The canary in a closed loop: a policy begins on its share of the CPUs and touches no other; it
 * spreads when those do better than the others, and goes back when they do worse or no better, also
 * when the program changes meanwhile; a replay from the middle decides the same; and where cost
 * rises past a point, nobody goes to and fro.
 */
#include <errno.h>
#include "policies/host_canary.h"
#include "policies/host_internal.h"
#include "tests/unit/policy_model.h"

#define MANAGED 1048576u
#define PER_SEC 10u
#define TEN_MIN (600u * PER_SEC)
#define N	4u
#define BOTH	"guard_permille=100 " CANARY
#define CANARY	"canary_permille=500 canary_ms=5000"

struct story {
	uint32_t said[8]; /* reasons, in order */
	uint32_t n_said;
	uint32_t outside; /* changes of CPUs that were not chosen, before it spread */
	uint64_t spread_ms;
	bool over;
};

/* N CPUs begin with `high` and cycle; from second `turn` on by `later` pages instead of `swing`. */
static struct story tell(struct model *m, const char *policy, const char *params, uint32_t high,
			 uint32_t swing, uint32_t turn, uint32_t later, uint32_t seconds)
{
	struct story y = {0};

	model_new(m, policy, params, N + 1, MANAGED);
	m->cpu_us = 150000;
	for (uint32_t i = 0; i < N; i++)
		model_begin_fixed(m, i, high, high / 2);
	for (uint32_t n = 0; n < seconds * PER_SEC; n++) {
		for (uint32_t i = 0; i < N; i++)
			model_cycle(m, i, n < turn * PER_SEC ? swing : later, 300, 0);
		model_step(m);
		if (m->answer.canary_reason && y.n_said < 8)
			y.said[y.n_said++] = m->answer.canary_reason;
		if (m->answer.canary_spread && !y.spread_ms)
			y.spread_ms = m->t / 1000;
		for (uint32_t i = 0; i < m->answer.n_changes; i++)
			y.outside += !y.spread_ms && m->answer.changes[i].index % 2 == 0;
		y.over = m->answer.canary_over;
	}
	return y;
}

static void assert_said(const struct story *y, uint32_t first, uint32_t second)
{
	assert_int_equal(y->n_said, 2);
	assert_int_equal(y->said[0], first);
	assert_int_equal(y->said[1], second);
	assert_int_equal(y->outside, 0);
}

static void test_better_spreads(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=20000 rules=gx " CANARY, 500, 12000, 0, 12000, 30);

	(void)state;
	assert_said(&y, CANARY_MEASURES, CANARY_SPREADS);
	assert_in_range(y.spread_ms, 11000, 16000);
	assert_false(y.over);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(m.m[i].st.high, 20000);
	model_end(&m);
}

static void test_worse_goes_back(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=300 rules=gx " CANARY, 20000, 12000, 0, 12000, 30);

	(void)state;
	assert_said(&y, CANARY_MEASURES, CANARY_BACK_WORSE);
	assert_true(y.over);
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(m.m[i].st.high, 20000);
		assert_int_equal(m.m[i].st.high_max, 20000);
		assert_int_equal(m.m[i].turns, i % 2);
	}
	assert_int_equal(m.answer.reason, CANARY_GAVE_UP);
	model_end(&m);
}

static void test_no_better_goes_back(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=20100 rules=gx " CANARY, 20000, 12000, 0, 12000, 30);

	(void)state;
	assert_said(&y, CANARY_MEASURES, CANARY_BACK_SAME);
	assert_true(y.over);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(m.m[i].st.high, 20000);
	model_end(&m);
}

/* A program that takes nothing over for 3 s after the first change. */
static uint64_t first_change;

static void take_over_late(struct model *m, const struct pcptune_sample *s)
{
	if (m->answer.n_changes && !first_change)
		first_change = s->time_us;
	if (first_change && s->time_us < first_change + 3000000)
		m->answer.n_changes = 0;
}

/* What it did before it took its new values over says nothing about them. */
static void test_late_values(void **state)
{
	struct model m;
	uint32_t said = 0;

	(void)state;
	first_change = 0;
	model_new(&m, "static", "high=300 rules=gx canary_permille=500 canary_ms=1000", N + 1,
		  MANAGED);
	m.cpu_us = 150000;
	m.after = take_over_late;
	for (uint32_t i = 0; i < N; i++)
		model_begin_fixed(&m, i, 20000, 10000);
	for (uint32_t n = 0; n < 20 * PER_SEC && (!said || said == CANARY_MEASURES); n++) {
		for (uint32_t i = 0; i < N; i++)
			model_cycle(&m, i, 12000, 300, 0);
		model_step(&m);
		said = m.answer.canary_reason ? m.answer.canary_reason : said;
	}
	assert_int_equal(said, CANARY_BACK_WORSE);
	assert_true(m.t > first_change + 4000000);
	model_end(&m);
}

/* Less memory for the same traffic is better. */
static void test_less_held_spreads(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=13000 rules=gx " CANARY, 60000, 12000, 0, 12000, 30);

	(void)state;
	assert_said(&y, CANARY_MEASURES, CANARY_SPREADS);
	assert_int_equal(m.m[0].st.high, 13000);
	model_end(&m);
}

/* The program becomes heavier for everybody: that is not the policy's doing, nor lighter. */
static void test_the_program_changes(void **state)
{
	struct model m;
	struct story y;

	(void)state;
	y = tell(&m, "static", "high=8100 rules=gx " CANARY, 8000, 7000, 6, 30000, 30);
	assert_said(&y, CANARY_MEASURES, CANARY_BACK_SAME);
	model_end(&m);
	y = tell(&m, "static", "high=8100 rules=gx " CANARY, 8000, 30000, 6, 7000, 30);
	assert_said(&y, CANARY_MEASURES, CANARY_BACK_SAME);
	model_end(&m);
}

/* Less memory, but the zone lock is held for long: that is worse. */
static void test_long_holds_go_back(void **state)
{
	struct model m;
	uint32_t said = 0;

	(void)state;
	model_new(&m, "static", "high=13000 batch=500 rules=gx " CANARY, N + 1, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t i = 0; i < N; i++)
		model_begin_fixed(&m, i, 60000, 30000);
	for (uint32_t n = 0; n < 30 * PER_SEC; n++) {
		m.long_holds = 1;
		for (uint32_t i = 0; i < N; i++) {
			model_cycle(&m, i, 12000, 300, 0);
			m.long_holds += m.m[i].st.batch > 400;
		}
		model_step(&m);
		said = m.answer.canary_reason ? m.answer.canary_reason : said;
	}
	assert_int_equal(said, CANARY_BACK_WORSE);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(m.m[i].st.batch, 63);
	model_end(&m);
}

/* Without traffic nothing is chosen; with one busy CPU that one is. */
static void test_few(void **state)
{
	struct model m;
	uint32_t i;

	(void)state;
	model_new(&m, "static", "high=20000 rules=gx " CANARY, N, MANAGED);
	model_begin_fixed(&m, 0, 500, 250);
	model_begin_fixed(&m, 1, 500, 250);
	for (i = 0; i < 20 * PER_SEC; i++)
		model_step(&m);
	assert_int_equal(m.answer.reason, CANARY_MEASURES);
	assert_int_equal(m.m[0].st.high, 500);
	for (i = 0; i < 20 * PER_SEC; i++) {
		model_cycle(&m, 1, 12000, 300, 0);
		model_step(&m);
		assert_true(m.answer.canary_spread || m.m[0].st.high == 500);
	}
	assert_int_equal(m.m[1].st.high, 20000);
	assert_true(m.answer.canary_spread);
	model_end(&m);
}

/* Every policy under a canary: as steady as without one, and its benefit comes through. */
static void test_steady(void **state)
{
	static const char *const policies[] = {"contention", "lowwater", "shuffle", "coldest",
					       "learn"};

	(void)state;
	for (size_t k = 0; k < sizeof(policies) / sizeof(policies[0]); k++) {
		struct model m;
		struct story y = tell(&m, policies[k], "canary_permille=250 canary_ms=10000", 378,
				      9000, 0, 9000, 200);

		for (uint32_t i = 0; i < N; i++)
			if (m.m[i].turns > 2)
				fail_msg("%s, CPU %u: %u turns", policies[k], i, m.m[i].turns);
		if (!y.spread_ms)
			fail_msg("%s does not spread", policies[k]);
		model_end(&m);
	}
}

/*
 * Cost that rises past a point: from a high of 1000 on every page waits, the longer the more of
 * them there are. A policy that sees misses only goes on raising; the guard, or the canary, ends
 * that.
 */
static void wait_by_length(struct model *m, uint32_t i)
{
	uint32_t high = m->m[i].st.high;
	struct pcptune_cpu *c = &m->cpu[i];

	m->m[i].hold_ns = 0; /* else the model's own waits count */
	c->lock_alloc_wait_ns = high > 1000 ? c->alloc_pages * ((high - 1000) / 4) : 0;
}

static uint32_t most_turns(const char *params, uint32_t *ret_high)
{
	struct model m;
	uint32_t turns = 0;

	model_new(&m, "contention", params, N + 1, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t i = 0; i < N; i++)
		model_begin_fixed(&m, i, 500, 250);
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		for (uint32_t i = 0; i < N; i++) {
			if (n < 5 * PER_SEC) /* a guard says nothing without a "before" */
				m.m[i].settle_until = m.t + 300000;
			model_cycle(&m, i, 7500, 300, 70 * i);
			wait_by_length(&m, i);
		}
		model_step(&m);
	}
	*ret_high = 0;
	for (uint32_t i = 0; i < N; i++) {
		turns = m.m[i].turns > turns ? m.m[i].turns : turns;
		*ret_high = m.m[i].st.high > *ret_high ? m.m[i].st.high : *ret_high;
	}
	model_end(&m);
	return turns;
}

static void test_cost_that_rises_past_a_point(void **state)
{
	static const char *const kinds[] = {"guard_permille=100", CANARY, BOTH};
	uint32_t high;

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		uint32_t turns = most_turns(kinds[i], &high);

		if (turns > 2)
			fail_msg("%s: %u changes of direction in ten minutes", kinds[i], turns);
		if (high > 2000)
			fail_msg("%s: high %u in the end", kinds[i], high);
	}
	most_turns("", &high);
	assert_true(high > 5000); /* without them it does */
}

/* ---- replay ---- */

#define REPLAYED "high=300 rules=gx guard_permille=100 " CANARY

static void *kept_state;
static size_t kept_size;
static uint64_t at; /* sample */

static void keep_state(struct model *m, const struct pcptune_sample *s)
{
	const void *state;

	if (s->seq != at)
		return;
	state = policy_instance_state(m->pi, &kept_size);
	kept_state = malloc(kept_size);
	assert_non_null(kept_state);
	memcpy(kept_state, state, kept_size);
}

static void exchange_state(struct model *m, const struct pcptune_sample *s)
{
	int64_t values[POLICY_MAX_PARAMS];

	if (s->seq != at)
		return;
	policy_instance_free(m->pi);
	assert_int_equal(policy_params_parse(m->module, REPLAYED, values, NULL), 0);
	assert_int_equal(policy_instance_new(m->module, &m->shape, values, &m->pi, NULL), 0);
	assert_int_equal(policy_instance_state_load(m->pi, kept_state, kept_size), 0);
}

static char *traced(void (*after)(struct model *, const struct pcptune_sample *))
{
	static struct model m;
	char *text = NULL;
	size_t len;

	model_new(&m, "static", REPLAYED, N + 1, MANAGED);
	m.trace = open_memstream(&text, &len);
	m.after = after;
	for (uint32_t i = 0; i < N; i++)
		model_begin_fixed(&m, i, 20000, 10000);
	for (uint32_t n = 0; n < 30 * PER_SEC; n++) {
		for (uint32_t i = 0; i < N; i++)
			model_cycle(&m, i, 12000, 300, 70 * i);
		model_step(&m);
	}
	fclose(m.trace);
	model_end(&m);
	return text;
}

static void test_replay_from_the_middle(void **state)
{
	(void)state;
	for (at = 20; at < 200; at += 50) {
		char *whole = traced(keep_state), *again = traced(exchange_state);

		assert_non_null(strstr(whole, "canary-worse"));
		assert_string_equal(whole, again);
		free(whole);
		free(again);
		free(kept_state);
	}
}

static void test_parameters(void **state)
{
	int64_t values[POLICY_MAX_PARAMS], back[POLICY_MAX_PARAMS];
	struct policy_module *m;
	char why[POLICY_WHY] = "", text[512];
	const int64_t arg[4] = {1, 2, 0, 0};

	(void)state;
	assert_int_equal(policy_load("static", NULL, &m, why), 0);
	policy_params_default(m, values);
	assert_int_equal(policy_canary(values), 0);
	policy_params_text(m, values, text, sizeof(text));
	assert_null(strstr(text, "canary"));
	assert_int_equal(policy_params_set(m, values, "canary_permille", "500", why), 0);
	assert_int_equal(policy_canary(values), 500);
	policy_params_text(m, values, text, sizeof(text));
	assert_non_null(strstr(text, "canary_permille=500 canary_ms=30000"));
	assert_int_equal(policy_params_parse(m, text, back, why), 0);
	assert_int_equal(policy_canary(back), 500);
	assert_int_equal(policy_params_set(m, values, "canary_permille", "1001", why), -ERANGE);
	for (uint32_t i = 0; i < CANARY_N_REASONS; i++) {
		const struct pcptune_reason *r = &canary_reasons[i];

		assert_true(host_sentence_ok(r->sentence));
		assert_ptr_equal(policy_reason(m, r->id), r);
		assert_true(policy_canary_text(r->id, arg, text, sizeof(text)) > 0);
	}
	policy_canary_text(CANARY_MEASURES, arg, text, sizeof(text));
	assert_string_equal(text, "begins on 1 of 2 busy CPUs");
	policy_unref(m);
}

int main(void)
{
	const struct CMUnitTest none[] = {cmocka_unit_test(not_under_tsan)};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_better_spreads),
		cmocka_unit_test(test_worse_goes_back),
		cmocka_unit_test(test_no_better_goes_back),
		cmocka_unit_test(test_late_values),
		cmocka_unit_test(test_less_held_spreads),
		cmocka_unit_test(test_the_program_changes),
		cmocka_unit_test(test_long_holds_go_back),
		cmocka_unit_test(test_few),
		cmocka_unit_test(test_steady),
		cmocka_unit_test(test_cost_that_rises_past_a_point),
		cmocka_unit_test(test_replay_from_the_middle),
		cmocka_unit_test(test_parameters),
	};

	if (ONE_THREAD)
		return cmocka_run_group_tests(none, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
