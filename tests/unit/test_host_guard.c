/* SPDX-License-Identifier: MIT */
/*
 * The guard in a closed loop: what made things worse goes back and stays back, what made them
 * better stays, where nothing can be said nothing is done, and a replay from a state in the middle
 * decides the same.
 */
#include <errno.h>
#include "policies/host_guard.h"
#include "tests/unit/policy_model.h"

#define MANAGED 1048576u
#define PER_SEC 10u
#define TEN_MIN (600u * PER_SEC)

static const char *first_reason(const struct model *m)
{
	uint32_t id = m->answer.n_changes ? m->answer.changes[0].reason : m->answer.reason;

	return policy_reason(m->module, id)->name;
}

/* static comes to a CPU that was measured without it. */
static void replace_policy(struct model *m, const char *params)
{
	int64_t values[POLICY_MAX_PARAMS];
	char why[POLICY_WHY];

	policy_instance_free(m->pi);
	if (policy_params_parse(m->module, params, values, why) ||
	    policy_instance_new(m->module, &m->shape, values, &m->pi, why))
		fail_msg("%s", why);
}

struct story {
	uint32_t backs;	  /* changes of the guard */
	uint32_t benched; /* answers that all was benched */
	char first[32];	  /* reason of the first one */
	uint64_t back_at_ms;
};

/*
 * A CPU cycles with `swing` from `high` on; `policy` wants something else from the 15th second on,
 * since only then is it let near. What happens in `seconds`.
 */
static struct story tell(struct model *m, const char *policy, const char *params, uint32_t high,
			 uint32_t swing, uint32_t seconds)
{
	struct story y = {0};

	model_new(m, policy, params, 2, MANAGED);
	m->cpu_us = 150000;
	model_begin_fixed(m, 0, high, high / 2);
	for (uint32_t n = 0; n < seconds * PER_SEC; n++) {
		if (n < 15 * PER_SEC)
			m->m[0].settle_until = m->t + 300000; /* the host drops what is said */
		model_cycle(m, 0, swing, 300, 0);
		model_step(m);
		for (uint32_t i = 0; i < m->answer.n_changes; i++) {
			if (m->answer.changes[i].reason < GUARD_REASON_BASE)
				continue;
			if (!y.backs++)
				snprintf(y.first, sizeof(y.first), "%s", first_reason(m));
			y.back_at_ms = m->t / 1000;
		}
		y.benched += !m->answer.n_changes && m->answer.reason == GUARD_BENCHED;
	}
	return y;
}

static void test_a_lowering_that_costs_goes_back(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=300 rules=gx guard_permille=100", 20000, 12000, 500);

	(void)state;
	assert_int_equal(y.backs, 1);
	assert_string_equal(y.first, "guard-traffic");
	assert_int_equal(m.m[0].st.high, 20000);
	assert_int_equal(m.m[0].st.high_max, 20000);
	assert_true(y.benched > 4000); /* static says the same at every sample */
	assert_int_equal(m.m[0].turns, 1);
	model_end(&m);
}

static void test_without_a_guard_it_stays(void **state)
{
	struct model m;
	struct story y = tell(&m, "static", "high=300 rules=gx", 20000, 12000, 60);

	(void)state;
	assert_int_equal(y.backs + y.benched, 0);
	assert_int_equal(m.m[0].st.high, 300);
	model_end(&m);
}

static void test_a_raise_that_helps_stays(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=20000 rules=gx guard_permille=100", 500, 12000, 100);

	(void)state;
	assert_int_equal(y.backs + y.benched, 0);
	assert_int_equal(m.m[0].st.high, 20000);
	model_end(&m);
}

static void test_a_lowering_that_costs_nothing_stays(void **state)
{
	struct model m;
	struct story y =
		tell(&m, "static", "high=15000 rules=gx guard_permille=100", 90000, 12000, 100);

	(void)state;
	assert_int_equal(y.backs + y.benched, 0);
	assert_int_equal(m.m[0].st.high, 15000);
	model_end(&m);
}

/* One-way flow: a longer list holds more and saves nothing. */
static void test_a_raise_in_vain_goes_back(void **state)
{
	struct model m;
	uint32_t backs = 0;

	(void)state;
	model_new(&m, "static", "high=60000 rules=gx guard_permille=100 guard_ms=2000", 2, MANAGED);
	model_begin_fixed(&m, 0, 1000, 500);
	for (uint32_t n = 0; n < 120 * PER_SEC; n++) {
		if (n < 15 * PER_SEC)
			m.m[0].settle_until = m.t + 300000;
		m.m[0].in_use = 100000;
		model_free(&m, 0, 3000);
		model_step(&m);
		if (m.answer.n_changes && m.answer.changes[0].reason > GUARD_REASON_BASE) {
			backs++;
			/* until it was full, frees stayed on the list: that looked like a gain */
			assert_string_equal(first_reason(&m), "guard-vain");
		}
	}
	assert_true(backs <= 1);
	assert_true(m.m[0].turns <= 1);
	model_end(&m);
}

/* The lock is held for long where batch is large: nothing else tells. What happens in 100 s. */
static uint32_t long_holds(uint32_t long_each, uint32_t always, char *first, size_t n)
{
	struct model m;
	uint32_t backs = 0;

	model_new(&m, "static", "high=20000 batch=500 rules=gx guard_permille=100", 2, MANAGED);
	m.cpu_us = 150000;
	model_begin_fixed(&m, 0, 20000, 10000);
	for (uint32_t i = 0; i < 100 * PER_SEC; i++) {
		if (i < 15 * PER_SEC)
			m.m[0].settle_until = m.t + 300000;
		m.long_holds = always + (m.m[0].st.batch > 400 ? long_each : 0);
		model_cycle(&m, 0, 12000, 300, 0);
		model_step(&m);
		if (m.answer.n_changes && m.answer.changes[0].reason > GUARD_REASON_BASE &&
		    !backs++)
			snprintf(first, n, "%s", first_reason(&m));
	}
	assert_int_equal(m.m[0].st.batch, backs ? 63 : 500);
	model_end(&m);
	return backs;
}

static void test_long_holds_go_back(void **state)
{
	char first[32] = "";

	(void)state;
	assert_int_equal(long_holds(1, 0, first, sizeof(first)), 1);
	assert_string_equal(first, "guard-holds");
	assert_int_equal(long_holds(5, 20, first, sizeof(first)), 1);
	assert_int_equal(long_holds(0, 20, first, sizeof(first)), 0);
	assert_int_equal(long_holds(1, 20, first, sizeof(first)), 0); /* within the margin */
}

static void test_long_holds_and_chance(void **state)
{
	struct guard_sum was = {.all_traffic = 1000000, .long_holds = 100}, is = was;

	(void)state;
	assert_false(guard_longer(&was, &is, 0));
	is.long_holds = 139;
	assert_false(guard_longer(&was, &is, 0)); /* less than four times ten */
	is.long_holds = 141;
	assert_true(guard_longer(&was, &is, 0));
	assert_false(guard_longer(&was, &is, 100));
	was.long_holds = 0;
	is.long_holds = 15;
	assert_false(guard_longer(&was, &is, 100));
	is.long_holds = 16;
	assert_true(guard_longer(&was, &is, 100));
	was = (struct guard_sum){.all_traffic = UINT64_MAX, .long_holds = UINT64_MAX};
	is = (struct guard_sum){.all_traffic = 1, .long_holds = 100};
	assert_true(guard_longer(&was, &is, 100)); /* no division by what was shifted away */
	was.all_traffic = 0;
	assert_false(guard_longer(&was, &is, 100));
}

/* Nothing can be said of a few pages: nothing is done. */
static void test_without_traffic_no_word(void **state)
{
	struct model m;
	struct story y = tell(&m, "static", "high=300 rules=gx guard_permille=100", 20000, 6, 100);

	(void)state;
	assert_int_equal(y.backs + y.benched, 0);
	assert_int_equal(m.m[0].st.high, 300);
	model_end(&m);
}

/* Each time that it was wrong again the bench is twice as long. */
static void test_the_bench_grows(void **state)
{
	struct model m;
	struct story y = tell(&m, "static",
			      "high=300 rules=gx guard_permille=100 guard_ms=1000 "
			      "guard_bench_ms=10000",
			      20000, 12000, 160);

	(void)state;
	/* tries begin 10, 20 and 40 s after the way back from the one before, the next after 80 */
	assert_int_equal(y.backs, 4);
	assert_int_equal(m.m[0].st.high, 20000);
	model_end(&m);
}

/* What the operator holds is not ours to judge. */
static void test_what_is_held_is_left(void **state)
{
	struct guard_cpu g[2] = {0};
	int64_t p[POLICY_GUARD_PARAMS] = {100, 1000, 600000};
	struct pcptune_cpu cpus[2] = {{.high = 100, .high_min = 100, .high_max = 100}, {0}};
	struct pcptune_sample s = {.n_cpus = 2, .cpu_size = sizeof(cpus[0]), .cpus = cpus};
	struct host_change ch = {.old = {.high = 500}, .clamped = {100, 100, 100, 0, 0, 0}};

	(void)state;
	s.time_us = 1000000;
	guard_applied(g, &ch, &s);
	assert_int_equal(g[0].phase, GUARD_SETTLES);
	s.time_us = 1100000;
	s.dt_us = 100000;
	guard_sample(g, p, &s);
	assert_int_equal(g[0].phase, GUARD_CALMS);
	for (int n = 0; n < 3; n++) { /* a quarter of guard_ms */
		s.time_us += 100000;
		guard_sample(g, p, &s);
	}
	assert_int_equal(g[0].phase, GUARD_MEASURES);
	cpus[0].flags = PCPTUNE_CPU_HELD;
	s.time_us += 100000;
	guard_sample(g, p, &s);
	assert_int_equal(g[0].phase, GUARD_REST);
	/* a change that never shows is not judged either */
	s.time_us = 2000000;
	guard_applied(g, &ch, &s);
	cpus[0].flags = 0;
	cpus[0].high = 77;
	for (int n = 0; n < 60; n++) {
		s.time_us += 100000;
		guard_sample(g, p, &s);
	}
	assert_true(s.time_us > 7000000);
	assert_int_equal(g[0].phase, GUARD_REST);
}

/* Every policy under steady load with a guard: two changes of direction at most. */
static void test_steady_with_a_guard(void **state)
{
	static const char *const policies[] = {"contention", "lowwater", "shuffle",
					       "coldest",    "learn",	 "knee"};
	static const uint32_t period[] = {250, 700, 3100};

	(void)state;
	for (size_t k = 0; k < sizeof(policies) / sizeof(policies[0]); k++) {
		for (uint32_t a = 0; a < 3; a++) {
			struct model m;

			model_new(&m, policies[k], "guard_permille=200", 3, MANAGED);
			m.cpu_us = 150000;
			for (uint32_t n = 0; n < TEN_MIN; n++) {
				model_cycle(&m, 0, 9000, period[a], 0);
				model_cycle(&m, 1, 3000, period[a], 77);
				model_step(&m);
			}
			for (uint32_t i = 0; i < 2; i++)
				if (m.m[i].turns > 2)
					fail_msg("%s, period %u, CPU %u: %u turns", policies[k],
						 period[a], i, m.m[i].turns);
			if (period[a] == 250) /* and it does not stand in the way */
				assert_true(m.m[0].st.high > 8000);
			model_end(&m);
		}
	}
}

/* ---- replay ---- */

static char *text;
static size_t text_len;

/* Runs from sample `from` on with the state that the first run left there. */
static void *replay_state;
static size_t replay_size;

static void keep_state(struct model *m, const struct pcptune_sample *s)
{
	const void *state;

	if (s->seq != 170)
		return;
	state = policy_instance_state(m->pi, &replay_size);
	replay_state = malloc(replay_size);
	assert_non_null(replay_state);
	memcpy(replay_state, state, replay_size);
}

static void exchange_state(struct model *m, const struct pcptune_sample *s)
{
	if (s->seq != 170)
		return;
	replace_policy(m, "high=300 rules=gx guard_permille=100");
	assert_int_equal(policy_instance_state_load(m->pi, replay_state, replay_size), 0);
}

static char *traced(void (*after)(struct model *, const struct pcptune_sample *))
{
	struct model *m = malloc(sizeof(*m));

	assert_non_null(m);
	text = NULL;
	model_new(m, "static", "high=300 rules=gx guard_permille=100", 2, MANAGED);
	m->trace = open_memstream(&text, &text_len);
	m->after = after;
	model_begin_fixed(m, 0, 20000, 10000);
	for (uint32_t n = 0; n < 40 * PER_SEC; n++) {
		if (n < 15 * PER_SEC)
			m->m[0].settle_until = m->t + 300000;
		model_cycle(m, 0, 12000, 300, 0);
		model_step(m);
	}
	fclose(m->trace);
	model_end(m);
	free(m);
	return text;
}

static void test_replay_from_the_middle(void **state)
{
	char *whole = traced(keep_state), *again = traced(exchange_state);

	(void)state;
	assert_non_null(strstr(whole, "guard-traffic"));
	assert_string_equal(whole, again);
	free(whole);
	free(again);
	free(replay_state);
}

static void test_parameters(void **state)
{
	int64_t values[POLICY_MAX_PARAMS], back[POLICY_MAX_PARAMS];
	struct policy_module *m;
	char why[POLICY_WHY] = "", buf[512];

	(void)state;
	assert_int_equal(policy_load("static", NULL, &m, why), 0);
	policy_params_default(m, values);
	assert_false(policy_guarded(values));
	policy_params_text(m, values, buf, sizeof(buf));
	assert_null(strstr(buf, "guard")); /* logs without a guard look as they did */
	assert_int_equal(policy_params_set(m, values, "guard_permille", "150", why), 0);
	assert_int_equal(policy_params_set(m, values, "guard_ms", "900", why), 0);
	assert_true(policy_guarded(values));
	assert_true((size_t)policy_params_text(m, values, buf, sizeof(buf)) == strlen(buf));
	assert_non_null(strstr(buf, " guard_permille=150 guard_ms=900 guard_bench_ms=600000"));
	assert_int_equal(policy_params_parse(m, buf, back, why), 0);
	assert_memory_equal(back + POLICY_OWN_PARAMS, values + POLICY_OWN_PARAMS,
			    POLICY_GUARD_PARAMS * sizeof(back[0]));
	assert_int_equal(policy_params_set(m, values, "guard_ms", "5", why), -ERANGE);
	assert_non_null(strstr(why, "100..600000"));
	assert_int_equal(policy_params_set(m, values, "guard_permil", "5", why), -EINVAL);
	assert_null(policy_host_param(POLICY_HOST_PARAMS));
	policy_unref(m);
}

/* Reasons of the guard are sentences that can be filled in, with names of their own. */
static void test_reasons(void **state)
{
	static const int64_t arg[4] = {12, 345, 600000, 0};
	struct policy_module *m;
	char why[POLICY_WHY] = "", buf[256];

	(void)state;
	assert_int_equal(policy_load("contention", NULL, &m, why), 0);
	for (uint32_t i = 0; i < GUARD_N_REASONS; i++) {
		const struct pcptune_reason *r = policy_reason(m, guard_reasons[i].id);

		assert_ptr_equal(r, &guard_reasons[i]);
		assert_true(r->id > 65535 && !strncmp(r->name, "guard-", 6));
		assert_true(policy_sentence(r->sentence, arg, 10, 20, buf, sizeof(buf)) > 0);
		assert_null(strchr(buf, '{'));
	}
	policy_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_lowering_that_costs_goes_back),
		cmocka_unit_test(test_without_a_guard_it_stays),
		cmocka_unit_test(test_a_raise_that_helps_stays),
		cmocka_unit_test(test_a_lowering_that_costs_nothing_stays),
		cmocka_unit_test(test_a_raise_in_vain_goes_back),
		cmocka_unit_test(test_long_holds_go_back),
		cmocka_unit_test(test_long_holds_and_chance),
		cmocka_unit_test(test_without_traffic_no_word),
		cmocka_unit_test(test_the_bench_grows),
		cmocka_unit_test(test_what_is_held_is_left),
		cmocka_unit_test(test_steady_with_a_guard),
		cmocka_unit_test(test_replay_from_the_middle),
		cmocka_unit_test(test_parameters),
		cmocka_unit_test(test_reasons),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
