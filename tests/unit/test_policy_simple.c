/* SPDX-License-Identifier: MIT */
/*
 * static, kernel and fraction, rule by rule; what every policy must do with odd samples; and that
 * docs/policies.md names every parameter and every reason.
 */
#include <errno.h>
#include <unistd.h>
#include "tests/unit/policy_model.h"
#include "tests/unit/random.h"
#include "tests/unit/source.h"

static struct host_answer ask(struct model *m)
{
	model_step(m);
	return m->answer;
}

static const char *reason(const struct model *m)
{
	uint32_t id = m->answer.n_changes ? m->answer.changes[0].reason : m->answer.reason;
	const struct pcptune_reason *r = policy_reason(m->module, id);

	return r ? r->name : "";
}

static void test_static(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "static", "high=1000 batch=31 rules=g1", 4, 1048576);
	ask(&m);
	assert_string_equal(reason(&m), "unused");
	assert_int_equal(m.answer.rest_ms, 60000);
	model_alloc(&m, 0, 1);
	model_alloc(&m, 2, 1);
	ask(&m);
	assert_int_equal(m.answer.n_changes, 2);
	assert_int_equal(m.answer.changes[1].index, 2);
	assert_int_equal(m.answer.changes[1].clamped.high, 1000);
	assert_int_equal(m.answer.changes[1].clamped.high_min, 1000);
	assert_int_equal(m.answer.changes[1].clamped.high_max, 1000);
	assert_int_equal(m.answer.changes[1].clamped.batch, 31);
	assert_int_equal(m.answer.changes[1].clamped.rules, PCPTUNE_RULES_G1);
	assert_int_equal(m.answer.rest_ms, 0);
	ask(&m);
	assert_int_equal(m.answer.n_changes, 0);
	assert_string_equal(reason(&m), "in-place");
	assert_int_equal(m.answer.rest_ms, 60000);
	m.m[2].st.high_max = 2000; /* somebody else */
	m.m[2].settle_until = m.t + 250000;
	ask(&m);
	assert_int_equal(m.answer.n_changes, 0);
	assert_string_equal(reason(&m), "waiting");
	assert_int_equal(m.answer.rest_ms, 0);
	ask(&m);
	ask(&m);
	assert_int_equal(m.answer.n_changes, 1);
	assert_int_equal(m.m[2].st.high_max, 1000);
	model_end(&m);
}

static void test_static_keeps(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "static", "high=1000 keep=true", 4, 1048576);
	model_alloc(&m, 0, 1); /* in use, with another high */
	ask(&m);
	assert_int_equal(m.answer.n_changes, 0);
	assert_string_equal(reason(&m), "kept");
	assert_int_equal(m.answer.rest_ms, 60000);
	model_end(&m);
}

static void test_static_defaults(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "static", "", 2, 1048576);
	model_begin(&m, 0, PCPTUNE_RULES_G4, 5000, 5000, 60000);
	ask(&m);
	assert_int_equal(m.m[0].st.high, 378);
	assert_int_equal(m.m[0].st.high_max, 378);
	assert_int_equal(m.m[0].st.batch, 63); /* left alone */
	assert_int_equal(m.m[0].st.rules, PCPTUNE_RULES_G0);
	model_end(&m);
}

static void refused(const char *policy, const char *params)
{
	struct pcptune_shape shape = {.size = sizeof(shape),
				      .n_zones = 1,
				      .n_cpus = 2,
				      .host_cpus = 2,
				      .managed_pages = 1048576,
				      .high_limit = 100000};
	struct policy_instance *pi = NULL;
	struct policy_module *m;
	int64_t values[POLICY_MAX_PARAMS];
	char why[POLICY_WHY] = "";

	assert_int_equal(policy_load(policy, NULL, &m, why), 0);
	assert_int_equal(policy_params_parse(m, params, values, why), 0);
	assert_int_equal(policy_instance_new(m, &shape, values, &pi, why), -EINVAL);
	assert_null(pi);
	policy_unref(m);
}

static void test_refused_parameters(void **state)
{
	(void)state;
	refused("static", "high=3");
	refused("kernel", "fraction=1");
	refused("kernel", "fraction=7");
	refused("kernel", "high_min=500 high_max=400");
}

/* high_min and high_max that kernel sets, for two CPUs that can run. */
static void bounds(const char *params, uint32_t n_used, uint32_t rules, uint32_t min, uint32_t max)
{
	struct model m;

	model_new(&m, "kernel", params, 10, 819200);
	m.shape.low_wmark_pages = 8192;
	for (uint32_t i = 0; i < n_used; i++)
		model_alloc(&m, i, 1);
	ask(&m);
	for (uint32_t i = 0; i < n_used; i++) {
		assert_int_equal(m.m[i].st.high_min, min);
		assert_int_equal(m.m[i].st.high_max, max);
		assert_in_range(m.m[i].st.high, min, max);
		assert_int_equal(m.m[i].st.rules, rules);
	}
	model_end(&m);
}

/* The one knob that moves batch, too: a quarter of high, 96 at most. */
static void test_old_fraction_moves_batch(void **state)
{
	static const struct {
		const char *params;
		uint32_t batch;
	} cases[] = {{"rules=g0b fraction=100", 96},  /* high 8192 */
		     {"rules=g0b fraction=8192", 25}, /* high 100 */
		     {"rules=g0 fraction=8192", 63}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct model m;

		model_new(&m, "kernel", cases[i].params, 2, 819200);
		model_alloc(&m, 0, 1);
		ask(&m);
		assert_int_equal(m.m[0].st.batch, cases[i].batch);
		ask(&m);
		assert_int_equal(m.answer.n_changes, 0);
		model_end(&m);
	}
}

static void test_kernel_bounds(void **state)
{
	(void)state;
	bounds("", 1, PCPTUNE_RULES_G4, 8192 / 2, 51200); /* 819200 / 8 / 2 */
	bounds("", 8, PCPTUNE_RULES_G4, 8192 / 8, 12800); /* more in use than can run at once */
	bounds("rules=g0", 1, PCPTUNE_RULES_G0, 378, 378);
	bounds("rules=g1", 1, PCPTUNE_RULES_G1, 4096, 4096);
	bounds("rules=y2016", 1, PCPTUNE_RULES_Y2016, 882, 882); /* 14 x 63 */
	bounds("rules=p5", 1, PCPTUNE_RULES_P5, 4096, 4096);
	bounds("rules=p7", 1, PCPTUNE_RULES_P7, 4096, 51200);
	bounds("rules=g6", 8, PCPTUNE_RULES_G6, 1024, 12800);
	bounds("rules=g0b", 1, PCPTUNE_RULES_G0B, 378, 378);
	bounds("rules=g0b fraction=100", 8, PCPTUNE_RULES_G0B, 8192, 8192); /* of each CPU */
	bounds("fraction=8", 1, PCPTUNE_RULES_G4, 51200, 51200);
	bounds("fraction=100", 1, PCPTUNE_RULES_G4, 4096, 4096);
	bounds("fraction=1000000", 1, PCPTUNE_RULES_G4, 252, 252); /* four batches at least */
	bounds("high_min=100 high_max=900", 1, PCPTUNE_RULES_G4, 100, 900);
	bounds("high_min=70000", 1, PCPTUNE_RULES_G4, 70000, 70000); /* above the formula's max */
}

static void test_kernel_decay(void **state)
{
	struct model m;
	uint32_t ticks = 0, last;

	(void)state;
	model_new(&m, "kernel", "high_min=400 high_max=30000", 2, 1048576);
	model_alloc(&m, 0, 1);
	ask(&m);
	m.m[0].st.high = last = 24000;
	for (int n = 0; n < 300; n++) {
		ask(&m);
		if (!m.answer.n_changes)
			continue;
		assert_string_equal(reason(&m), "decay");
		assert_int_equal(
			m.answer.changes[0].clamped.high,
			pcptune_rules_decay(last, 400, m.m[0].count, 63 << 5, 8, UINT32_MAX));
		last = m.answer.changes[0].clamped.high;
		ticks++;
	}
	assert_in_range(ticks, 29, 30); /* one a second, down to high_min or 30 of them */
	assert_true(last < 1000);
	/* an idle stretch in one sample: the ticks that were due */
	m.m[0].st.high = 24000;
	m.dt = 5000000;
	ask(&m);
	last = 24000;
	for (int n = 0; n < 5; n++)
		last = pcptune_rules_decay(last, 400, m.m[0].count, 63 << 5, 8, UINT32_MAX);
	assert_int_equal(m.answer.changes[0].clamped.high, last);
	/* at high_min there is nothing to do for long */
	m.dt = 60000000;
	m.m[0].settle_until = 0;
	ask(&m);
	ask(&m);
	assert_int_equal(m.m[0].st.high, 400);
	assert_string_equal(reason(&m), "steady");
	assert_int_equal(m.answer.rest_ms, 60000);
	model_end(&m);
}

static void test_kernel_no_decay(void **state)
{
	struct model m;

	(void)state;
	model_new(&m, "kernel", "high_min=400 high_max=30000 decay_ms=0", 2, 1048576);
	model_alloc(&m, 0, 1);
	ask(&m);
	m.m[0].st.high = 24000;
	m.dt = 60000000;
	ask(&m);
	assert_int_equal(m.answer.n_changes, 0);
	model_end(&m);
}

/* Bounds that the budget cut are not asked for at every sample, and decay goes on. */
static void test_kernel_cut_by_budget(void **state)
{
	struct model m;
	int64_t values[POLICY_MAX_PARAMS];
	uint32_t proposed = 0;

	(void)state;
	model_new(&m, "kernel", "high_min=20000 high_max=30000", 2, 1048576);
	policy_instance_free(m.pi);
	m.shape.budget_pages = 5000;
	assert_int_equal(
		policy_params_parse(m.module, "high_min=20000 high_max=30000", values, NULL), 0);
	assert_int_equal(policy_instance_new(m.module, &m.shape, values, &m.pi, NULL), 0);
	model_alloc(&m, 0, 1);
	for (int n = 0; n < 95; n++)
		proposed += ask(&m).n_changes + m.answer.n_dropped;
	assert_int_equal(proposed, 1);
	assert_true(m.sum_max <= 5000);
	model_end(&m);
}

/* ---- fraction ---- */

/* Limits that fraction sets, for two CPUs that can run; batch 0: left alone. */
static void knob(const char *params, uint32_t n_used, uint32_t min, uint32_t max, uint32_t batch)
{
	struct model m;

	model_new(&m, "fraction", params, 10, 819200);
	m.shape.low_wmark_pages = 8192;
	for (uint32_t i = 0; i < n_used; i++)
		model_alloc(&m, i, 1);
	ask(&m);
	for (uint32_t i = 0; i < n_used; i++) {
		assert_int_equal(m.m[i].st.high_min, min);
		assert_int_equal(m.m[i].st.high_max, max);
		assert_in_range(m.m[i].st.high, min, max);
		assert_int_equal(m.m[i].st.batch, batch ? batch : 63);
	}
	ask(&m);
	assert_string_equal(reason(&m), "in-place");
	model_end(&m);
}

static void test_fraction(void **state)
{
	(void)state;
	knob("", 1, 51200, 51200, 0); /* 819200 / 8 / 2 */
	knob("", 8, 12800, 12800, 0); /* more in use than can run at once */
	knob("fraction=100", 2, 4096, 4096, 0);
	knob("fraction=1000000", 1, 252, 252, 0);	       /* four batches at least */
	knob("fraction=0", 1, 4096, 51200, 0);		       /* tunes itself within these */
	knob("fraction=0 rules=g1", 1, 4096, 4096, 0);	       /* low watermark / CPUs */
	knob("knob=fraction rules=g0", 2, 102400, 102400, 96); /* each CPU an eighth */
	knob("knob=fraction fraction=4000 rules=g0", 2, 204, 204, 51);
	knob("knob=fraction fraction=0 rules=g0", 2, 378, 378, 63);
	refused("fraction", "fraction=1");
	refused("fraction", "fraction=7");
}

/* What somebody else sets is left for the settle time, and set again then. */
static void test_fraction_settles(void **state)
{
	struct model m;
	uint32_t n;

	(void)state;
	model_new(&m, "fraction", "settle_ms=2000", 2, 819200);
	model_alloc(&m, 0, 1);
	ask(&m);
	assert_int_equal(m.answer.n_changes, 1);
	m.m[0].st.high_max = 60000;
	for (n = 0; n < 100 && !ask(&m).n_changes; n++)
		assert_string_equal(reason(&m), "waiting");
	assert_in_range(n, 18, 19);
	assert_int_equal(m.m[0].st.high_max, 51200);
	model_end(&m);
}

/* ---- all of them ---- */

static const char *const all_policies[] = {"static",   "kernel",  "contention",
					   "fraction", "shuffle", "lowwater",
					   "coldest",  "learn",	  "knee"};
#define N_POLICIES (sizeof(all_policies) / sizeof(all_policies[0]))

static uint64_t seed = 1234567;

static uint64_t rnd(void)
{
	return random_next(&seed);
}

static uint64_t any(void)
{
	switch (rnd() % 5) {
	case 0:
		return 0;
	case 1:
		return rnd();
	case 2:
		return UINT64_MAX - rnd() % 3;
	default:
		return rnd() % 100000;
	}
}

static void any_cpu(struct pcptune_cpu *c, uint32_t i)
{
	memset(c, 0, sizeof(*c));
	c->cpu = i;
	c->flags = (uint32_t)(rnd() % 16);
	c->count = (uint32_t)any() & (rnd() % 3 ? 0xffffff : UINT32_MAX);
#define PCPTUNE_GAUGE(field, unit, line, para) c->field = (uint32_t)any();
#define PCPTUNE_LIST(field, unit, line, para)  c->field = any();
#define PCPTUNE_ZCTR(field, unit, line, para)  c->field = any();
#define PCPTUNE_PCTR(field, unit, line, para)  c->field = any();
#include <pcptune/counters.def>
}

/* Samples of nonsense, as a damaged or hostile segment gives them: no breach, no crash. */
static void nonsense(const char *policy)
{
	struct pcptune_sample s = {
		.size = sizeof(s), .n_cpus = 4, .cpu_size = sizeof(struct pcptune_cpu)};
	struct pcptune_cpu cpus[4];
	uint32_t active[4];
	char why[POLICY_WHY] = "";
	struct host_answer a;
	struct model m;

	model_new(&m, policy, "", 4, 1048576);
	s.cpus = cpus;
	s.active = active;
	for (int n = 0; n < 20000; n++) {
		s.n_active = 0;
		for (uint32_t i = 0; i < 4; i++) {
			any_cpu(&cpus[i], i);
			if (cpus[i].flags & PCPTUNE_CPU_ACTIVE)
				active[s.n_active++] = i;
		}
		s.seq++;
		s.dt_us = any();
		s.time_us = rnd() % 50 ? s.time_us + s.dt_us % 10000000 : any();
		s.cpu_us = any();
		s.mem_available = any();
		if (policy_instance_decide(m.pi, &s, &a, why))
			fail_msg("%s: %s", policy, why);
		for (uint32_t i = 0; i < a.n_changes; i++)
			assert_true(a.changes[i].clamped.high <= m.shape.high_limit ||
				    a.changes[i].clamped.high <= a.changes[i].old.high);
	}
	model_end(&m);
}

static void test_nonsense(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_POLICIES; i++)
		nonsense(all_policies[i]);
}

static void named(const char *doc, const char *policy, const char *word)
{
	char row[80];

	snprintf(row, sizeof(row), "| `%s` |", word);
	if (!strstr(doc, row))
		fail_msg("docs/policies.md has no row %s for policy %s", row, policy);
}

/* A row for every parameter, with its default, and for every reason, within its policy's part. */
static void test_documented(void **state)
{
	char *doc = source_text("docs/policies.md"), why[POLICY_WHY];

	(void)state;
	for (size_t i = 0; i < N_POLICIES; i++) {
		struct policy_module *m;
		char head[40], *part, *next;

		assert_int_equal(policy_load(all_policies[i], NULL, &m, why), 0);
		snprintf(head, sizeof(head), "\n## %s\n", all_policies[i]);
		part = strstr(doc, head);
		if (!part)
			fail_msg("docs/policies.md has no part %s", all_policies[i]);
		next = strstr(part + strlen(head), "\n## ");
		part = strndup(part, next ? (size_t)(next - part) : strlen(part));
		for (uint32_t k = 0; k < policy_desc(m)->n_params; k++) {
			const struct pcptune_param *p = policy_param(m, k);
			char row[160], def[40];

			snprintf(def, sizeof(def), "%lld", (long long)p->def);
			snprintf(row, sizeof(row), "| `%s` | %s |", p->name,
				 p->type == PCPTUNE_PARAM_ENUM ? p->choices[p->def] : def);
			if (!strstr(part, row))
				fail_msg("docs/policies.md, %s: no row \"%s\"", all_policies[i],
					 row);
		}
		for (uint32_t id = 1; id < 100; id++)
			if (policy_reason(m, id))
				named(part, all_policies[i], policy_reason(m, id)->name);
		free(part);
		policy_unref(m);
	}
	free(doc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_static),
		cmocka_unit_test(test_static_keeps),
		cmocka_unit_test(test_static_defaults),
		cmocka_unit_test(test_refused_parameters),
		cmocka_unit_test(test_old_fraction_moves_batch),
		cmocka_unit_test(test_kernel_bounds),
		cmocka_unit_test(test_kernel_decay),
		cmocka_unit_test(test_kernel_no_decay),
		cmocka_unit_test(test_kernel_cut_by_budget),
		cmocka_unit_test(test_fraction),
		cmocka_unit_test(test_fraction_settles),
		cmocka_unit_test(test_nonsense),
		cmocka_unit_test(test_documented),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
