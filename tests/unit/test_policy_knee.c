/* SPDX-License-Identifier: MIT */
/*
 * knee: its curves against lists that are played page by page, then the policy in a closed loop: it
 * finds the knee and stays there, follows phases, shares a budget where pages save most, gives
 * back, takes nothing from a damaged record, and goes by counters where there are no records.
 */
#include "tests/unit/policy_model.h"
#include "policies/knee.h"
#include "tests/unit/random.h"

#define MANAGED 1048576u /* 4 GiB */
#define PER_SEC 10u

static uint64_t random_state = 20261130;

static uint32_t below(uint32_t n)
{
	return (uint32_t)((random_next(&random_state) >> 11) % n);
}

static const char *reason_of(const struct model *m, uint32_t id)
{
	return policy_reason(m->module, id)->name;
}

/* ---- curves ---- */

/* Lists of one capacity, page by page. */
struct brute {
	int64_t level;
	uint64_t taken;
};

static void brute_move(struct brute *b, int64_t capacity, int64_t pages)
{
	b->level += pages;
	if (b->level < 0) {
		b->taken += (uint64_t)-b->level;
		b->level = 0;
	}
	if (b->level > capacity)
		b->level = capacity;
}

static const uint32_t edges[] = {0, 1, 9, 30, 50, 77, 104};
#define N_EDGES (sizeof(edges) / sizeof(edges[0]))
static const uint32_t horizon[KNEE_HORIZONS] = {1500, 60000};

/* One record into a curve: what it says at the edges is what lists of that capacity took. */
static void check_record(struct knee_curve *c, struct pcptune_band *band, struct brute *b)
{
	struct pcptune_band record;
	struct knee_swings s;

	pcptune_band_cut(band, &record);
	knee_read(&record, &s);
	memset(c->taken, 0, sizeof(c->taken));
	knee_add(c, &s, 1000, horizon);
	for (size_t k = 0; k < N_EDGES; k++) {
		assert_int_equal(c->taken[KNEE_SHORT][edges[k]], b[k].taken);
		assert_int_equal(c->taken[KNEE_LONG][edges[k]], b[k].taken);
		assert_int_equal(c->level[edges[k]], b[k].level);
		b[k].taken = 0;
	}
}

/* Records cut anywhere, with levels that go on from one to the next. */
static void curves_are_exact_at_edges(void **state)
{
	(void)state;
	for (int round = 0; round < 60; round++) {
		struct brute b[N_EDGES] = {0};
		struct knee_curve c = {0};
		struct pcptune_band band;
		int64_t x = 0, bias = 0;

		pcptune_band_init(&band);
		pcptune_band_push(&band, 0);
		for (int n = 0; n < 3000; n++) {
			int64_t step = (int64_t)below(2000) - 1000 + bias;

			if (!below(50))
				bias = (int64_t)below(600) - 300;
			x += step;
			pcptune_band_push(&band, x);
			for (size_t k = 0; k < N_EDGES; k++)
				brute_move(&b[k], knee_edge(edges[k]), step);
			if (!below(100))
				check_record(&c, &band, b);
		}
	}
}

static void edges_are_those_of_buckets(void **state)
{
	(void)state;
	assert_int_equal(knee_edge(0), 32);
	assert_int_equal(knee_edge(KNEE_EDGES - 1), 1u << 18);
	for (uint32_t j = 0; j < KNEE_EDGES; j++) {
		assert_int_equal(knee_index(knee_edge(j)), j);
		if (j + 1 == KNEE_EDGES)
			break;
		assert_int_equal(knee_edge(j + 1) - knee_edge(j), 1u << knee_width_log(j));
		assert_int_equal(knee_index(knee_edge(j + 1) - 1), j);
	}
	assert_int_equal(knee_index(0), 0);
	assert_int_equal(knee_index(UINT64_C(1) << 40), KNEE_EDGES - 1);
}

/* Ten cycles a second of one amplitude: that is what a page more serves, up to the amplitude. */
static void prices_are_cycles_a_second(void **state)
{
	uint32_t price[KNEE_EDGES];
	struct knee_curve c = {0};
	struct pcptune_band band, record;
	struct knee_swings s;

	(void)state;
	pcptune_band_init(&band);
	pcptune_band_push(&band, 0);
	for (int second = 0; second < 40; second++) {
		for (int n = 0; n < 10; n++) {
			pcptune_band_push(&band, -4096);
			pcptune_band_push(&band, 0);
		}
		pcptune_band_cut(&band, &record);
		knee_read(&record, &s);
		knee_add(&c, &s, 1000000, horizon);
	}
	for (int h = 0; h < KNEE_HORIZONS; h++) {
		uint32_t weight = knee_weight(&c, h, 0, horizon[h]);
		uint64_t idle = (uint64_t)horizon[h] * 9000; /* nine horizons */

		struct knee_mean none = {0};
		struct knee_lens lens = knee_lens(&c, h, weight, &none, 0);

		knee_prices(&c, &lens, price);
		for (uint32_t j = 0; j < KNEE_EDGES; j++)
			if (knee_edge(j) < 4096)
				assert_in_range(price[j], KNEE_PRICE * 97 / 10,
						KNEE_PRICE * 103 / 10);
			else
				assert_int_equal(price[j], 0);
		assert_in_range(knee_rate(&c, &lens, 2000), 20960 * 97 / 100, 20960 * 103 / 100);
		/* who rests is worth less and less */
		assert_true(knee_weight(&c, h, idle, horizon[h]) > 50 * (uint64_t)weight);
	}
}

/* ---- in a loop ---- */

/* Steady: just above the swing at once, and there it stays. */
static void finds_the_knee(void **state)
{
	static const uint32_t swing[] = {500, 5000, 33000}, period[] = {150, 700, 2500};

	(void)state;
	for (size_t a = 0; a < 3; a++)
		for (size_t k = 0; k < 3; k++) {
			struct model m;
			uint64_t zone = 0;

			model_new(&m, "knee", "", 2, MANAGED);
			for (uint32_t n = 0; n < 120 * PER_SEC; n++) {
				if (n == 60 * PER_SEC)
					zone = m.alloc_zone;
				model_cycle(&m, 0, swing[a], period[k], 0);
				model_step(&m);
			}
			assert_int_equal(m.alloc_zone - zone, 0);
			/* an eighth for the bucket, and what a doubling may have been too much */
			assert_in_range(m.m[0].st.high, swing[a], swing[a] * 9 / 4 + 378);
			assert_in_range(m.m[0].turns, 0, 1);
			assert_int_equal(m.m[0].st.scale_max, 0);
			model_end(&m);
		}
}

/*
 * What is missed is raised for at once, not in steps; before anything moved each has an equal part.
 */
static void begins_boldly(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "knee", "budget_permille=80", 2, MANAGED); /* 83886 pages */
	for (uint32_t n = 0; n < 6; n++) {
		model_cycle(&m, 0, 30000, 100, 0); /* all of it in each sample */
		model_step(&m);
	}
	assert_true(m.m[0].st.high > 30000);
	assert_true(m.m[0].changes <= 2);
	model_end(&m);

	for (uint32_t moved = 0; moved < 2; moved++) {
		struct pcptune_sample s;
		struct host_answer a = {0};
		char why[POLICY_WHY] = "";

		model_new(&m, "knee", "budget_permille=80", 2, MANAGED);
		for (uint32_t i = 0; i < 2; i++)
			m.cpu[i] = (struct pcptune_cpu){
				.cpu = i, .high = 378, .batch = 63, .alloc_pages = moved};
		s = (struct pcptune_sample){.size = sizeof(s),
					    .flags = PCPTUNE_SAMPLE_FIRST,
					    .seq = 1,
					    .time_us = 1000000,
					    .dt_us = 100000,
					    .n_cpus = 2,
					    .cpu_size = sizeof(m.cpu[0]),
					    .cpus = m.cpu,
					    .active = m.active};
		assert_int_equal(policy_instance_decide(m.pi, &s, &a, why), 0);
		assert_int_equal(a.n_changes, 2);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(a.changes[i].clamped.high,
					 moved ? 378 : MANAGED * 80 / 1000 / 2);
		model_end(&m);
	}
}

/* A CPU without a record gives to one that has shown its need, when it did nothing meanwhile. */
static void idle_cpus_give_before_their_first_record(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "knee", "budget_permille=10", 2, MANAGED); /* 10485 pages */
	model_alloc(&m, 1, 1);
	model_step(&m);
	m.m[1].st.high = m.m[1].st.high_min = m.m[1].st.high_max = 5200;
	for (uint32_t n = 0; n < 40; n++) {
		model_cycle(&m, 0, 9000, 200, 0);
		model_step(&m);
	}
	assert_true(m.m[0].st.high >= 9000);
	assert_true(m.m[1].st.high < 1500);
	model_end(&m);
}

/* Two CPUs take turns, the budget serves one of them: the one at work has it within seconds. */
static void follows_phases(void **state)
{
	struct model m;
	uint64_t served = 0, all = 0;

	(void)state;
	model_new(&m, "knee", "budget_permille=12", 2, MANAGED); /* 12582 pages */
	for (uint32_t n = 0; n < 200 * PER_SEC; n++) {
		uint32_t at_work = n / (20 * PER_SEC) % 2;

		model_cycle(&m, at_work, 10000, 250, 0);
		model_cycle(&m, !at_work, 200, 250, 0);
		model_step(&m);
		if (n < 60 * PER_SEC || n % (20 * PER_SEC) < 4 * PER_SEC)
			continue;
		all++;
		served += m.m[at_work].st.high >= 10000;
		assert_true(model_sum(&m) <= MANAGED * 12 / 1000);
	}
	assert_true(served * 10 >= all * 9);
	model_end(&m);
}

/* Too little for all: many small swings are served before few large ones, the sum holds. */
static void shares_by_what_pages_save(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "knee", "budget_permille=10", 4, MANAGED); /* 10485 pages */
	for (uint32_t n = 0; n < 120 * PER_SEC; n++) {
		model_cycle(&m, 0, 9000, 900, 0);  /* 1.1 cycles a second */
		model_cycle(&m, 1, 3000, 150, 40); /* 6.7 */
		model_cycle(&m, 2, 3000, 300, 70); /* 3.3 */
		model_step(&m);
		assert_true(n < 5 || model_sum(&m) <= MANAGED / 100);
	}
	assert_true(m.m[1].st.high >= 3000 && m.m[2].st.high >= 3000);
	assert_in_range(m.m[0].st.high, 1000, 5000);
	for (uint32_t i = 0; i < 3; i++)
		assert_in_range(m.m[i].turns, 0, 2);
	model_end(&m);
}

/* Who rests gives back when its pages have cost as much as they can save. */
static void gives_back_at_rest(void **state)
{
	struct model m;
	bool said = false;

	(void)state;
	model_new(&m, "knee", "lambda=100", 2, MANAGED); /* worth 10 s */
	for (uint32_t n = 0; n < 20 * PER_SEC; n++) {
		model_cycle(&m, 0, 12000, 250, 0);
		model_step(&m);
	}
	assert_true(m.m[0].st.high > 12000);
	for (uint32_t n = 0; n < 30 * PER_SEC; n++) {
		model_step(&m);
		said = said || (m.answer.n_changes &&
				!strcmp(reason_of(&m, m.answer.changes[0].reason), "rests"));
		if (n < 9 * PER_SEC)
			assert_true(m.m[0].st.high > 12000);
	}
	assert_true(said);
	assert_int_equal(m.m[0].st.high, 378);
	model_end(&m);
}

/* No records: by counters, and the reasons say so. */
static void goes_by_counters_without_records(void **state)
{
	bool misses = false, unneeded = false;
	struct model m;

	(void)state;
	model_new(&m, "knee", "", 2, MANAGED);
	m.record_ms = 0;
	for (uint32_t n = 0; n < 200 * PER_SEC; n++) {
		if (n < 100 * PER_SEC)
			model_cycle(&m, 0, 12000, 250, 0);
		model_step(&m);
		for (uint32_t i = 0; i < m.answer.n_changes; i++) {
			const char *name = reason_of(&m, m.answer.changes[i].reason);

			misses = misses || !strcmp(name, "misses");
			unneeded = unneeded || !strcmp(name, "unneeded");
			assert_true(strcmp(name, "more") && strcmp(name, "less"));
		}
		if (n == 99 * PER_SEC)
			assert_true(m.m[0].st.high > 12000);
		if (n == 99 * PER_SEC && !m.answer.n_changes)
			assert_string_equal(reason_of(&m, m.answer.reason), "no-records");
	}
	assert_true(misses && unneeded);
	assert_int_equal(m.m[0].st.high, 378);
	model_end(&m);
}

/* A record is shared memory of a program: whatever stands there, the answer is one. */
static void damaged_records_do_no_harm(void **state)
{
	(void)state;
	for (int round = 0; round < 30; round++) {
		struct pcptune_record rec;
		struct pcptune_sample s;
		struct model m;

		model_new(&m, "knee", "", 3, MANAGED);
		m.record_ms = 0;
		for (uint32_t n = 0; n < 200; n++) {
			struct host_answer a;
			char why[POLICY_WHY] = "";

			model_cycle(&m, 0, 3000, 250, 0);
			model_step(&m);
			for (size_t i = 0; i < sizeof(rec); i++)
				((uint8_t *)&rec)[i] =
					(uint8_t)(below(3) ? below(256) : 255 * below(2));
			rec.index = below(4);
			s = (struct pcptune_sample){.size = sizeof(s),
						    .seq = n + 2,
						    .time_us = m.t,
						    .dt_us = 100000,
						    .n_cpus = 3,
						    .cpu_size = sizeof(m.cpu[0]),
						    .cpus = m.cpu,
						    .active = m.active,
						    .n_records = 1,
						    .record_size = sizeof(rec),
						    .records = &rec};
			m.cpu[0].high = m.cpu[0].high_min = m.cpu[0].high_max = m.m[0].st.high;
			m.cpu[0].batch = 63;
			assert_int_equal(policy_instance_decide(m.pi, &s, &a, why), 0);
			m.cpu[0] = (struct pcptune_cpu){0};
		}
		model_end(&m);
	}
}

/* Answers of quiet times have their reason, too. */
static void says_why_nothing_changes(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "knee", "", 2, MANAGED);
	model_step(&m);
	assert_string_equal(reason_of(&m, m.answer.reason), "unused");
	for (uint32_t n = 0; n < 60 * PER_SEC; n++) {
		model_cycle(&m, 0, 5000, 250, 0);
		model_step(&m);
	}
	assert_int_equal(m.answer.n_changes, 0);
	if (strcmp(reason_of(&m, m.answer.reason), "small-gain") != 0)
		assert_string_equal(reason_of(&m, m.answer.reason), "best");
	model_end(&m);
}

static void horizons_that_clash_are_refused(void **state)
{
	struct policy_module *module;
	struct policy_instance *pi = NULL;
	int64_t values[POLICY_MAX_PARAMS];
	char why[POLICY_WHY] = "";

	(void)state;
	assert_int_equal(policy_load("knee", NULL, &module, why), 0);
	assert_int_equal(policy_params_parse(module, "short_ms=5000 long_ms=4000", values, why), 0);
	assert_int_equal(policy_instance_new(module, &policy_trial_shape, values, &pi, why),
			 -EINVAL);
	assert_non_null(strstr(why, "short_ms is at most long_ms"));
	policy_unref(module);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(curves_are_exact_at_edges),
		cmocka_unit_test(edges_are_those_of_buckets),
		cmocka_unit_test(prices_are_cycles_a_second),
		cmocka_unit_test(finds_the_knee),
		cmocka_unit_test(begins_boldly),
		cmocka_unit_test(idle_cpus_give_before_their_first_record),
		cmocka_unit_test(follows_phases),
		cmocka_unit_test(shares_by_what_pages_save),
		cmocka_unit_test(gives_back_at_rest),
		cmocka_unit_test(goes_by_counters_without_records),
		cmocka_unit_test(damaged_records_do_no_harm),
		cmocka_unit_test(says_why_nothing_changes),
		cmocka_unit_test(horizons_that_clash_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
