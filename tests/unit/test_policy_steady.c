/* SPDX-License-Identifier: MIT */
/*
 * lowwater, shuffle, coldest, learn and knee in a closed loop, each through the same patterns: a
 * CPU that misses is served, one that rests gives back where that is the policy's, the budget holds
 * at every step, and no CPU changes direction more than twice in ten minutes of steady load.
 */
#include "tests/unit/policy_model.h"

#define MANAGED 1048576u /* 4 GiB */
#define PER_SEC 10u
#define TEN_MIN (600u * PER_SEC)

static const char *const policies[] = {"lowwater", "shuffle", "coldest", "learn", "knee"};
#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

static void assert_steady(const struct model *m, const char *policy, const char *what)
{
	for (uint32_t i = 0; i < m->shape.n_cpus; i++)
		if (m->m[i].turns > 2)
			fail_msg("%s, %s: CPU %u changed direction %u times in ten minutes", policy,
				 what, i, m->m[i].turns);
}

/* The pattern of page_fault1: lists become long enough, and pages come from them. */
static void test_misses_are_served(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++) {
		uint64_t pages = 0, zone = 0;
		struct model m;

		model_new(&m, policies[k], "", 3, MANAGED);
		m.cpu_us = 200000;
		for (uint32_t n = 0; n < 120 * PER_SEC; n++) {
			if (n == 60 * PER_SEC) {
				pages = m.alloc_pages;
				zone = m.alloc_zone;
			}
			model_cycle(&m, 0, 32768, 300, 0);
			model_cycle(&m, 1, 32768, 300, 110);
			model_step(&m);
		}
		zone = m.alloc_zone - zone;
		pages = m.alloc_pages - pages;
		if (zone * 50 >= pages)
			fail_msg("%s: %u of %u pages from the zone, high %u and %u", policies[k],
				 (unsigned int)zone, (unsigned int)pages, m.m[0].st.high,
				 m.m[1].st.high);
		assert_true(m.m[0].st.rules == PCPTUNE_RULES_GX);
		assert_true(m.sum_max <= MANAGED / 8);
		assert_steady(&m, policies[k], "page_fault1");
		model_end(&m);
	}
}

static void cycles(const char *policy, uint32_t swing, uint32_t period)
{
	struct model m;

	model_new(&m, policy, "", 3, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		model_cycle(&m, 0, swing, period, 0);
		model_cycle(&m, 1, swing, period, 77);
		model_step(&m);
	}
	assert_steady(&m, policy, "cycles");
	model_end(&m);
}

static void test_steady_cycles(void **state)
{
	static const uint32_t swing[] = {300, 3000, 9000}, period[] = {200, 250, 700, 3100, 9000};

	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		for (uint32_t a = 0; a < 3; a++)
			for (uint32_t b = 0; b < 5; b++)
				cycles(policies[k], swing[a], period[b]);
}

/*
 * Bursts that begin and end between two samples: the counts, which are the same at the end of each
 * interval, do not tell that the lists swing by up to 563 pages.
 */
static void hidden(const char *policy)
{
	uint64_t pages = 0, zone = 0;
	struct model m;

	model_new(&m, policy, "", 3, MANAGED);
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		if (n == TEN_MIN / 2) {
			pages = m.alloc_pages;
			zone = m.alloc_zone;
		}
		for (uint32_t k = 0; k < 4; k++) {
			uint32_t burst = 64 + (4 * n + k) * 37 % 500;

			model_alloc(&m, 0, burst);
			model_free(&m, 0, burst);
		}
		model_step(&m);
	}
	assert_steady(&m, policy, "bursts within an interval");
	zone = m.alloc_zone - zone;
	pages = m.alloc_pages - pages;
	if (zone * 50 >= pages)
		fail_msg("%s: %u of %u pages from the zone, high %u", policy, (unsigned int)zone,
			 (unsigned int)pages, m.m[0].st.high);
	model_end(&m);
}

static void test_hidden_bursts(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		hidden(policies[k]);
	hidden("contention");
}

/* Swings of random size and length, the same mix all the time. */
static void noise(const char *policy, uint32_t seed)
{
	struct model m;
	uint32_t x = seed * 2654435761u;

	model_new(&m, policy, "", 3, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t n = 0; n < TEN_MIN;) {
		uint32_t swing = 500 + (x >> 8) % (1000 * seed), half = 1 + (x >> 4) % 6;

		x = x * 1664525u + 1013904223u;
		for (uint32_t k = 0; k < half; k++, n++) {
			model_alloc(&m, 0, swing / half);
			model_step(&m);
		}
		for (uint32_t k = 0; k < half; k++, n++) {
			model_free(&m, 0, swing / half);
			model_step(&m);
		}
	}
	assert_steady(&m, policy, "noise");
	model_end(&m);
}

static void test_steady_noise(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		for (uint32_t seed = 1; seed <= 8; seed++)
			noise(policies[k], seed);
}

/*
 * The same kind of bursts from threads that the scheduler moves about, now and then between the
 * allocation of a burst and its end, so that pages of one CPU are freed on the other.
 */
static void migrating(const char *policy, uint32_t threads, uint32_t seed)
{
	uint32_t cpu[4] = {0}, stays[4] = {0}, x = seed * 2654435761u;
	struct model m;

	model_new(&m, policy, "", 3, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t n = 0; n < TEN_MIN * 3; n++) {
		for (uint32_t t = 0; t < threads; t++) {
			uint32_t burst, from = cpu[t];

			x = x * 1664525u + 1013904223u;
			burst = 300 + (x >> 10) % 6000;
			model_alloc(&m, from, burst);
			if (!stays[t]--) {
				cpu[t] = !cpu[t];
				stays[t] = (x >> 12) % (36 * PER_SEC);
			}
			m.m[cpu[t]].in_use += burst;
			m.m[from].in_use -= burst;
			model_free(&m, cpu[t], burst);
		}
		if (n % 3 == 2)
			model_step(&m);
	}
	assert_steady(&m, policy, "threads that migrate");
	model_end(&m);
}

static void test_migrating_threads(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		for (uint32_t seed = 1; seed <= 6; seed++)
			migrating(policies[k], 1 + seed % 2, seed);
}

static void bursts(const char *policy, uint32_t pause_s)
{
	struct model m;

	model_new(&m, policy, "", 3, MANAGED);
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		if (n % ((pause_s + 2) * PER_SEC) < 2 * PER_SEC)
			model_cycle(&m, 0, 6000, 200, 0);
		model_step(&m);
	}
	assert_steady(&m, policy, "bursts");
	assert_true(m.m[0].changes > 0);
	model_end(&m);
}

static void test_burst_and_pause(void **state)
{
	static const uint32_t pause_s[] = {3, 7, 12, 30, 61, 119, 180};

	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		for (uint32_t a = 0; a < sizeof(pause_s) / sizeof(pause_s[0]); a++)
			bursts(policies[k], pause_s[a]);
}

/* One-way flow: a long list would serve nobody. */
static void test_producer_consumer(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++) {
		struct model m;

		model_new(&m, policies[k], "", 3, MANAGED);
		m.cpu_us = 150000;
		for (uint32_t n = 0; n < TEN_MIN; n++) {
			for (uint32_t j = 0; j < 20; j++) {
				model_alloc(&m, 0, 300);
				m.m[1].in_use += 300;
				m.m[0].in_use -= 300;
				model_free(&m, 1, 300);
			}
			model_step(&m);
		}
		assert_steady(&m, policies[k], "producer and consumer");
		assert_true(m.m[0].st.high <= 4000 && m.m[1].st.high <= 4000);
		model_end(&m);
	}
}

/* Bursts long ago: what they left is given back, or at least is nobody's loss. */
static void test_idle_list(void **state)
{
	static const struct {
		const char *policy;
		uint32_t after_s, least, most; /* high */
	} row[] = {
		{"lowwater", 40, 378, 378 * 4 / 3},
		{"shuffle", 20, 378, 378},
		{"coldest", 40, 12000, 40000}, /* the budget has room: pages stay */
		{"learn", 570, 378, 10000},    /* what a move must save ends it */
	};

	(void)state;
	for (size_t k = 0; k < sizeof(row) / sizeof(row[0]); k++) {
		struct model m;
		uint32_t top;

		model_new(&m, row[k].policy, "", 2, MANAGED);
		for (uint32_t n = 0; n < 30 * PER_SEC; n++) {
			model_cycle(&m, 0, 12000, 250, 0);
			model_step(&m);
		}
		top = m.m[0].st.high;
		assert_true(top > 12000);
		for (uint32_t n = 0; n < row[k].after_s * PER_SEC; n++)
			model_step(&m);
		if (m.m[0].st.high < row[k].least || m.m[0].st.high > row[k].most)
			fail_msg("%s: high is %u, was %u", row[k].policy, m.m[0].st.high, top);
		assert_true(m.m[0].count <= m.m[0].st.high);
		assert_steady(&m, row[k].policy, "idle");
		model_end(&m);
	}
}

static void test_idle_cpus_are_left_alone(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++) {
		struct model m;

		model_new(&m, policies[k], "", 129, MANAGED);
		for (uint32_t i = 0; i < 128; i++)
			model_alloc(&m, i, 10);
		for (uint32_t n = 0; n < 90 * PER_SEC; n++) {
			model_cycle(&m, 5, 20000, 250, 0);
			model_step(&m);
		}
		for (uint32_t i = 0; i < 128; i++)
			if (i != 5)
				assert_int_equal(m.m[i].changes, 0);
		if (m.m[5].st.high < 15000)
			fail_msg("%s: high is %u", policies[k], m.m[5].st.high);
		model_end(&m);
	}
}

/* More need than budget: the sum holds at every step, whoever comes, and it settles. */
static void pressure(const char *policy, const char *params, uint32_t permille, bool phases)
{
	struct model m;

	model_new(&m, policy, params, 9, 262144);
	for (uint32_t i = 0; i < 8; i++)
		model_alloc(&m, i, 1);
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		for (uint32_t i = 0; i < 8; i++)
			if (!phases || (n / 300 + i) % 3)
				model_cycle(&m, i, 2000 + 2500 * i, 200 + 50 * i, 13 * i);
		model_step(&m);
		if (n > 5 && model_sum(&m) > 262144 * (uint64_t)permille / 1000)
			fail_msg("%s, %s: sum of high is %u", policy, params,
				 (uint32_t)model_sum(&m));
	}
	if (!phases)
		assert_steady(&m, policy, params);
	assert_true(model_sum(&m) > 262144 * (uint64_t)permille / 1000 / 2);
	model_end(&m);
}

static void test_budget(void **state)
{
	static const char *const params[] = {"", "budget_permille=60", "budget_permille=20"};
	static const uint32_t permille[] = {125, 60, 20};

	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++)
		for (uint32_t a = 0; a < 3; a++) {
			pressure(policies[k], params[a], permille[a], false);
			pressure(policies[k], params[a], permille[a], true);
		}
}

static const char *first_reason(const struct model *m)
{
	uint32_t id = m->answer.n_changes ? m->answer.changes[0].reason : m->answer.reason;

	return policy_reason(m->module, id)->name;
}

/* What tunes itself is taken over; what is over the budget is cut; every answer has a reason. */
static void test_take_over_and_cut(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_POLICIES; k++) {
		struct model m;

		model_new(&m, policies[k], "budget_permille=125", 2, MANAGED);
		model_step(&m);
		assert_string_equal(first_reason(&m), "unused");
		model_begin(&m, 0, PCPTUNE_RULES_G4, 9000, 5000, 60000);
		m.m[0].count = 4000;
		model_step(&m);
		assert_int_equal(m.answer.n_changes, 1);
		assert_string_equal(first_reason(&m), "take-over");
		assert_int_equal(m.m[0].st.high, 9000);
		assert_int_equal(m.m[0].st.high_min, 9000);
		assert_int_equal(m.m[0].st.high_max, 9000);
		for (uint32_t n = 0; n < 3; n++)
			model_step(&m);
		m.m[0].st.high = m.m[0].st.high_min = m.m[0].st.high_max = 200000;
		model_step(&m);
		assert_string_equal(first_reason(&m), "over-budget");
		assert_int_equal(m.m[0].st.high, MANAGED / 8);
		model_end(&m);
	}
}

/* ---- what is of one policy alone ---- */

/* Two CPUs share a budget that serves one of them; the other rests: who rests gives. */
static void test_coldest_takes_from_who_rests_longest(void **state)
{
	struct model m;
	uint32_t others;

	(void)state;
	model_new(&m, "coldest", "budget_permille=30", 4, MANAGED); /* 31457 pages */
	for (uint32_t n = 0; n < 20 * PER_SEC; n++) {
		if (n < 5 * PER_SEC)
			model_cycle(&m, 0, 10000, 250, 0);
		if (n >= 5 * PER_SEC)
			model_cycle(&m, 1, 10000, 250, 0);
		model_step(&m);
	}
	others = m.m[1].st.high;
	assert_true(m.m[0].st.high > 10000 && others > 10000);
	for (uint32_t n = 0; n < 20 * PER_SEC; n++) { /* 0 rests for 15 s and more, 1 works on */
		model_cycle(&m, 1, 10000, 250, 0);
		model_cycle(&m, 2, 12000, 250, 60);
		model_step(&m);
	}
	assert_int_equal(m.m[1].st.high, others);
	assert_true(m.m[0].st.high < 6000);
	assert_true(m.m[2].st.high > 11000);
	model_end(&m);
}

/* All warm: nobody gives, however much somebody else misses. */
static void test_coldest_takes_nothing_that_is_in_use(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "coldest", "budget_permille=12", 3, MANAGED); /* 12582 pages */
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		model_cycle(&m, 0, 8000, 250, 0);
		if (n >= 10 * PER_SEC)
			model_cycle(&m, 1, 8000, 250, 60);
		model_step(&m);
	}
	assert_true(m.m[0].st.high > 8000 + 63); /* the room that it did not need went, once */
	assert_in_range(m.m[0].turns, 0, 1);
	assert_string_equal(first_reason(&m), "all-warm");
	model_end(&m);
}

static void test_shuffle_takes_from_who_misses_least(void **state)
{
	struct model m;
	uint32_t before;

	(void)state;
	model_new(&m, "shuffle", "budget_permille=20", 3, MANAGED); /* 20971 pages */
	for (uint32_t n = 0; n < 20 * PER_SEC; n++) {
		model_cycle(&m, 0, 15000, 500, 0);
		model_step(&m);
	}
	before = m.m[0].st.high;
	assert_true(before > 15000);
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		if (n % 40 < 5) /* hardly works, but does not rest */
			model_cycle(&m, 0, 1000, 500, 0);
		model_cycle(&m, 1, 15000, 300, 60);
		model_step(&m);
	}
	assert_true(m.m[0].st.high < before / 2);
	assert_true(m.m[1].st.high > 10000);
	assert_true(m.m[0].turns == 1 && m.m[1].turns == 0);
	model_end(&m);
}

/* The low water mark of a busy list that is too long goes, and what it swings by stays. */
static void test_lowwater_keeps_the_swing(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "lowwater", "", 2, MANAGED);
	model_begin_fixed(&m, 0, 40000, 39000);
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		model_cycle(&m, 0, 5000, 330, 0);
		model_step(&m);
	}
	assert_in_range(m.m[0].st.high, 5000, 16000);
	assert_true(m.m[0].turns == 0);
	model_end(&m);
}

/*
 * A list that costs more the longer it is, beyond a point: learn finds that out, goes back, and
 * stays there.
 */
static void test_learn_goes_back(void **state)
{
	struct model m;
	uint32_t backs = 0;

	(void)state;
	model_new(&m, "learn", "rent_ns=2000", 2, MANAGED); /* dear memory */
	m.cpu_us = 150000;
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		model_cycle(&m, 0, 20000, 900, 0);
		model_step(&m);
		for (uint32_t i = 0; i < m.answer.n_changes; i++) {
			const char *name =
				policy_reason(m.module, m.answer.changes[i].reason)->name;

			backs += !strncmp(name, "back-", 5);
		}
	}
	assert_true(backs >= 1);
	assert_true(m.m[0].turns >= 1);
	assert_steady(&m, "learn", "dear memory");
	assert_true(m.m[0].st.high < 20000);
	model_end(&m);
}

int main(void)
{
	const struct CMUnitTest none[] = {cmocka_unit_test(not_under_tsan)};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_misses_are_served),
		cmocka_unit_test(test_steady_cycles),
		cmocka_unit_test(test_hidden_bursts),
		cmocka_unit_test(test_steady_noise),
		cmocka_unit_test(test_migrating_threads),
		cmocka_unit_test(test_burst_and_pause),
		cmocka_unit_test(test_producer_consumer),
		cmocka_unit_test(test_idle_list),
		cmocka_unit_test(test_idle_cpus_are_left_alone),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_take_over_and_cut),
		cmocka_unit_test(test_coldest_takes_from_who_rests_longest),
		cmocka_unit_test(test_coldest_takes_nothing_that_is_in_use),
		cmocka_unit_test(test_shuffle_takes_from_who_misses_least),
		cmocka_unit_test(test_lowwater_keeps_the_swing),
		cmocka_unit_test(test_learn_goes_back),
	};

	if (ONE_THREAD)
		return cmocka_run_group_tests(none, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
