/* SPDX-License-Identifier: MIT */
/*
 * contention in a closed loop: it reaches what it must, keeps its budget, and does not go to and
 * fro under steady load.
 */
#include "tests/unit/policy_model.h"

#define MANAGED 1048576u /* 4 GiB */
#define PER_SEC 10u
#define TEN_MIN (600u * PER_SEC)

static void page_fault1(uint32_t period, uint32_t phase, const char *params, uint64_t cpu_us)
{
	struct model m;
	uint64_t pages = 0, zone = 0;
	uint32_t reached = 0;

	model_new(&m, "contention", params, 3, MANAGED);
	m.cpu_us = cpu_us;
	for (uint32_t n = 1; n <= 20 * PER_SEC; n++) {
		if (n == 2 * PER_SEC)
			pages = m.alloc_pages;
		if (n == 2 * PER_SEC)
			zone = m.alloc_zone;
		model_cycle(&m, 0, 32768, period, 0);
		model_cycle(&m, 1, 32768, period, phase);
		model_step(&m);
		if (!reached && m.m[0].next.high > 33000 && m.m[1].next.high > 33000)
			reached = n;
	}
	/* three cycles a second and more: within 1.5 s; a slower swing shows itself later */
	if (!reached || reached > (period <= 340 ? 15u : 20u))
		fail_msg("period %u phase %u: reached after %u samples (high %u, %u)", period,
			 phase, reached, m.m[0].st.high, m.m[1].st.high);
	assert_true(m.m[0].st.rules == PCPTUNE_RULES_GX);
	zone = m.alloc_zone - zone;
	pages = m.alloc_pages - pages;
	if (zone * 100 >= pages)
		fail_msg("period %u phase %u: %u of %u pages from the zone", period, phase,
			 (unsigned int)zone, (unsigned int)pages);
	assert_true(m.sum_max <= MANAGED / 8);
	assert_true(m.m[0].turns <= 2 && m.m[1].turns <= 2);
	model_end(&m);
}

static void test_page_fault1(void **state)
{
	(void)state;
	for (uint32_t period = 140; period <= 500; period += 40)
		for (uint32_t phase = 0; phase < period; phase += period / 4)
			page_fault1(period, phase, "", 200000);
	page_fault1(250, 30, "", 0); /* CPU time not known */
}

static void assert_steady(const struct model *m, const char *what)
{
	for (uint32_t i = 0; i < m->shape.n_cpus; i++)
		if (m->m[i].turns > 2)
			fail_msg("%s: CPU %u changed direction %u times in ten minutes", what, i,
				 m->m[i].turns);
}

static void test_steady_cycles(void **state)
{
	static const uint32_t swing[] = {300, 3000, 9000}, period[] = {200, 250, 700, 3100, 9000};

	(void)state;
	for (uint32_t a = 0; a < 3; a++) {
		for (uint32_t b = 0; b < 5; b++) {
			struct model m;

			model_new(&m, "contention", "", 3, MANAGED);
			m.cpu_us = 150000;
			for (uint32_t n = 0; n < TEN_MIN; n++) {
				model_cycle(&m, 0, swing[a], period[b], 0);
				model_cycle(&m, 1, swing[a], period[b], 77);
				model_step(&m);
			}
			assert_steady(&m, "cycles");
			model_end(&m);
		}
	}
}

/* Swings of random size and length, the same mix all the time. */
static void test_steady_noise(void **state)
{
	(void)state;
	for (uint32_t seed = 1; seed <= 12; seed++) {
		struct model m;
		uint32_t x = seed * 2654435761u;

		model_new(&m, "contention", "", 3, MANAGED);
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
		assert_steady(&m, "noise");
		model_end(&m);
	}
}

/* Bursts with pauses of every length: a decay in a pause may be wrong once. */
static void test_burst_and_pause(void **state)
{
	static const uint32_t pause_s[] = {3, 7, 12, 30, 61, 119, 180};

	(void)state;
	for (uint32_t a = 0; a < sizeof(pause_s) / sizeof(pause_s[0]); a++) {
		struct model m;

		model_new(&m, "contention", "", 3, MANAGED);
		for (uint32_t n = 0; n < TEN_MIN; n++) {
			if (n % ((pause_s[a] + 2) * PER_SEC) < 2 * PER_SEC)
				model_cycle(&m, 0, 6000, 200, 0);
			model_step(&m);
		}
		assert_steady(&m, "bursts");
		assert_true(m.m[0].changes > 0);
		model_end(&m);
	}
}

static void test_producer_consumer(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 3, MANAGED);
	m.cpu_us = 150000;
	for (uint32_t n = 0; n < TEN_MIN; n++) {
		for (uint32_t k = 0; k < 20; k++) {
			model_alloc(&m, 0, 300);
			m.m[1].in_use += 300;
			m.m[0].in_use -= 300;
			model_free(&m, 1, 300);
		}
		model_step(&m);
	}
	assert_steady(&m, "producer and consumer");
	/* one-way flow: a long list would serve nobody */
	assert_true(m.m[0].st.high <= 40000 && m.m[1].st.high <= 40000);
	model_end(&m);
}

static void test_one_way_without_waits_is_left_alone(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 2, MANAGED);
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		model_alloc(&m, 0, 1000);
		model_step(&m);
	}
	assert_int_equal(m.m[0].changes, 0);
	model_end(&m);
}

static void test_idle_list_decays(void **state)
{
	struct model m;
	uint32_t top;

	(void)state;
	model_new(&m, "contention", "", 2, MANAGED);
	for (uint32_t n = 0; n < 3 * PER_SEC; n++) {
		model_cycle(&m, 0, 32768, 250, 0);
		model_step(&m);
	}
	top = m.m[0].st.high;
	assert_true(top > 33000);
	for (uint32_t n = 0; n < 40 * PER_SEC; n++)
		model_step(&m);
	assert_in_range(m.m[0].st.high, 378, 378 * 4 / 3); /* within the dead band of the floor */
	assert_true(m.m[0].count <= m.m[0].st.high);
	assert_int_equal(m.answer.n_changes, 0);
	assert_int_equal(m.answer.rest_ms, 60000);
	model_end(&m);
}

/* Misses of a handful of pages do not keep a long list. */
static void test_a_little_traffic_does_not_keep_a_list(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 2, MANAGED);
	for (uint32_t n = 0; n < 3 * PER_SEC; n++) {
		model_cycle(&m, 0, 32768, 250, 0);
		model_step(&m);
	}
	assert_true(m.m[0].st.high > 33000);
	model_free(&m, 0, m.m[0].in_use > 0 ? (uint32_t)m.m[0].in_use : 0);
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		m.cpu[0].alloc_pages = m.cpu[0].free_pages = 3; /* past the lists and back */
		m.cpu[0].alloc_zone = m.cpu[0].free_zone = 3;
		model_step(&m);
	}
	assert_true(m.m[0].st.high < 1000);
	model_end(&m);
}

static void test_many_idle_cpus(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 129, MANAGED);
	for (uint32_t i = 0; i < 128; i++)
		model_alloc(&m, i, 10);
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		model_cycle(&m, 5, 20000, 250, 0);
		model_step(&m);
	}
	for (uint32_t i = 0; i < 128; i++)
		if (i != 5)
			assert_int_equal(m.m[i].changes, 0);
	assert_true(m.m[5].st.high > 20000);
	assert_steady(&m, "idle CPUs");
	model_end(&m);
}

/* More need than budget: the sum holds at every step, whoever comes. */
static void test_budget(void **state)
{
	static const char *const params[] = {"", "budget_permille=20", "budget_permille=5"};

	(void)state;
	for (uint32_t a = 0; a < 3; a++) {
		static const uint64_t permille[] = {125, 20, 5};
		struct model m;

		model_new(&m, "contention", params[a], 9, 262144);
		for (uint32_t i = 0; i < 8; i++)
			model_alloc(&m, i, 1);
		for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
			for (uint32_t i = 0; i < 8; i++)
				if ((n / 100 + i) % 3)
					model_cycle(&m, i, 2000 + 2500 * i, 200 + 50 * i, 13 * i);
			model_step(&m);
			if (n > 5)
				assert_true(model_sum(&m) <= 262144 * permille[a] / 1000);
		}
		model_end(&m);
	}
}

/* The host's bound is below the policy's own. */
static void test_budget_of_the_host(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 3, MANAGED);
	policy_instance_free(m.pi);
	m.shape.budget_pages = 20000;
	int64_t values[POLICY_MAX_PARAMS];
	policy_params_default(m.module, values);
	assert_int_equal(policy_instance_new(m.module, &m.shape, values, &m.pi, NULL), 0);
	for (uint32_t n = 0; n < 20 * PER_SEC; n++) {
		model_cycle(&m, 0, 32768, 250, 0);
		model_cycle(&m, 1, 32768, 250, 100);
		model_step(&m);
	}
	assert_true(m.sum_max <= 20000);
	assert_true(model_sum(&m) > 15000);
	model_end(&m);
}

/* A CPU that tunes itself is taken over, so that the budget holds. */
static void test_take_over(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "contention", "", 2, MANAGED);
	model_begin(&m, 0, PCPTUNE_RULES_G4, 9000, 5000, 60000);
	m.m[0].count = 4000;
	model_step(&m);
	assert_int_equal(m.answer.n_changes, 1);
	assert_string_equal(policy_reason(m.module, m.answer.changes[0].reason)->name, "take-over");
	assert_int_equal(m.m[0].st.high_max, 9000);
	assert_int_equal(m.m[0].st.high_min, 9000);
	assert_int_equal(m.m[0].st.high, 9000);
	model_end(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_fault1),
		cmocka_unit_test(test_steady_cycles),
		cmocka_unit_test(test_steady_noise),
		cmocka_unit_test(test_burst_and_pause),
		cmocka_unit_test(test_producer_consumer),
		cmocka_unit_test(test_one_way_without_waits_is_left_alone),
		cmocka_unit_test(test_idle_list_decays),
		cmocka_unit_test(test_a_little_traffic_does_not_keep_a_list),
		cmocka_unit_test(test_many_idle_cpus),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_budget_of_the_host),
		cmocka_unit_test(test_take_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
