/* SPDX-License-Identifier: MIT */
/*
 * Instances: every way to break the contract, the bench after three, state as bytes; parameters and
 * sentences. The policy of this test does what the test says.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "policies/host_internal.h"

#define N 3u

static struct {
	size_t state_size;
	int init_result, result;
	uint32_t n_changes, reason, rest_ms;
	struct pcptune_change change[N];
	bool spoil; /* overwrites what the host gave it */
	int traces;
	const char *refusal;
} act;

static size_t act_state_size(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return act.state_size;
}

static int act_init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	(void)state;
	(void)shape;
	(void)p;
	return act.init_result;
}

static const char *act_refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return act.refusal;
}

static int act_decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		      const struct pcptune_sample *s, struct pcptune_decision *d,
		      const struct pcptune_host *host)
{
	(void)shape;
	(void)p;
	(void)s;
	assert_int_equal(d->max_changes, N);
	assert_int_equal(d->n_changes, 0);
	if (act.state_size)
		(*(unsigned char *)state)++;
	memcpy(d->changes, act.change, sizeof(act.change));
	d->n_changes = act.n_changes;
	d->reason = act.reason;
	d->rest_ms = act.rest_ms;
	d->arg[1] = 77;
	if (act.spoil) {
		d->changes = NULL;
		d->change_size = 3;
		d->max_changes = UINT32_MAX;
	}
	for (int i = 0; i < act.traces; i++)
		host->trace(host->cookie, "hello");
	return act.result;
}

static const char *const colours[] = {"red", "green", NULL};
static const struct pcptune_param params[] = {
	{"pages", PCPTUNE_PARAM_INT, 0, -5, 1000, 7, "pages", "text", NULL},
	{"flag", PCPTUNE_PARAM_BOOL, 0, 0, 1, 1, "", "text", NULL},
	{"colour", PCPTUNE_PARAM_ENUM, 0, 0, 1, 0, "", "text", colours},
};
static const struct pcptune_reason reasons[] = {
	{1, 0, "change", "text"},
	{9, 1, "none", "text"},
};
static struct pcptune_policy desc = {
	PCPTUNE_POLICY_SIZES,
	.name = "act",
	.version = "1",
	.summary = "does what it is told",
	.params = params,
	.n_params = 3,
	.reasons = reasons,
	.n_reasons = 2,
	.state_size = act_state_size,
	.init = act_init,
	.decide = act_decide,
};
static const struct pcptune_policy bare = {
	PCPTUNE_POLICY_SIZES,	      .name = "bare",	  .version = "1",
	.summary = "no parameters",   .reasons = reasons, .n_reasons = 2,
	.state_size = act_state_size, .init = act_init,	  .decide = act_decide,
};

static const struct pcptune_shape shape = {.size = sizeof(shape),
					   .n_zones = 1,
					   .n_cpus = N,
					   .host_cpus = 2,
					   .managed_pages = 1u << 20,
					   .high_limit = 100000};
static struct pcptune_cpu cpus[N];
static struct pcptune_sample sample = {
	.size = sizeof(sample), .n_cpus = N, .cpu_size = sizeof(cpus[0]), .cpus = cpus};
static struct policy_module *module;

static struct policy_instance *fresh(void)
{
	struct policy_instance *pi = NULL;
	int64_t values[POLICY_MAX_PARAMS];
	char why[POLICY_WHY];

	memset(&act, 0, sizeof(act));
	for (uint32_t i = 0; i < N; i++) {
		cpus[i] = (struct pcptune_cpu){.cpu = i,
					       .high = 378,
					       .high_min = 378,
					       .high_max = 378,
					       .batch = 63,
					       .scale_max = 5};
		act.change[i] = (struct pcptune_change){i,
							400 + i,
							PCPTUNE_KEEP,
							PCPTUNE_KEEP,
							PCPTUNE_KEEP,
							PCPTUNE_KEEP,
							PCPTUNE_KEEP,
							1,
							{i, 0, 0, 0}};
	}
	act.reason = 9;
	act.state_size = 5;
	policy_params_default(module, values);
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), 0);
	return pi;
}

static int setup(void **state)
{
	(void)state;
	module = host_module_new(&desc, "/nowhere/act.so");
	return module ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	policy_unref(module);
	return 0;
}

/* ---- the contract ---- */

static void test_answers(void **state)
{
	struct policy_instance *pi = fresh();
	struct host_answer a;
	char why[POLICY_WHY];

	(void)state;
	act.rest_ms = 500;
	assert_int_equal(policy_instance_decide(pi, &sample, &a, why), 0);
	assert_int_equal(a.reason, 9);
	assert_int_equal(a.arg[1], 77);
	assert_int_equal(a.rest_ms, 500);
	assert_int_equal(a.n_changes, 0);
	act.n_changes = 3;
	act.spoil = true;
	assert_int_equal(policy_instance_decide(pi, &sample, &a, why), 0);
	assert_int_equal(a.n_changes, 3);
	assert_int_equal(a.reason, 0);
	assert_int_equal(a.changes[2].clamped.high, 402);
	assert_int_equal(a.changes[2].arg[0], 2);
	assert_ptr_equal(policy_instance_module(pi), module);
	policy_instance_free(pi);
	policy_instance_free(NULL);
}

static void breach(int line, struct policy_instance *pi, const char *words)
{
	struct host_answer a;
	char why[POLICY_WHY] = "";
	int r = policy_instance_decide(pi, &sample, &a, why);

	if (r != -EPROTO || !strstr(why, words) || a.n_changes || a.changes)
		fail_msg("line %d: %d \"%s\", right is \"%s\"", line, r, why, words);
	assert_false(policy_instance_benched(pi));
	policy_instance_free(pi);
}

#define BREACH(what, words)                          \
	do {                                         \
		struct policy_instance *p = fresh(); \
		act.n_changes = 3;                   \
		what;                                \
		breach(__LINE__, p, words);          \
	} while (0)

static void test_breaches(void **state)
{
	(void)state;
	BREACH(act.result = -ENOMEM, "decide returned -12");
	BREACH(act.result = 5, "not 0 or -errno");
	BREACH(act.n_changes = 4, "4 changes, room is for 3");
	BREACH(act.n_changes = UINT32_MAX, "room is for 3");
	BREACH((act.n_changes = 0, act.reason = 0), "no reason (0)");
	BREACH((act.n_changes = 0, act.reason = 1), "no reason (1)"); /* one for changes */
	BREACH(act.change[1].reason = 9, "change 1 has no reason (9)");
	BREACH(act.change[1].reason = 0, "change 1 has no reason (0)");
	BREACH(act.change[2].index = 3, "index 3 of 3");
	BREACH(act.change[2].index = 1, "index 1 after 1");
	BREACH(act.change[1].index = 0, "index 0 after 0");
	BREACH(act.change[0].high = 0, "out of range");
	BREACH(act.change[0].high = PCPTUNE_MAX_HIGH + 1, "out of range");
	BREACH(act.change[0].high_min = PCPTUNE_KEEP - 1, "out of range");
	BREACH(act.change[0].high_max = PCPTUNE_MAX_HIGH + 1, "out of range");
	BREACH(act.change[0].batch = 0, "out of range");
	BREACH(act.change[0].batch = 1025, "out of range");
	BREACH(act.change[0].scale_max = 7, "out of range");
	BREACH(act.change[0].rules = 31, "out of range");
}

static void test_bench(void **state)
{
	struct policy_instance *pi = fresh();
	struct host_answer a;
	char why[POLICY_WHY];

	(void)state;
	act.result = -EINVAL;
	for (int i = 0; i < 3; i++) {
		assert_false(policy_instance_benched(pi));
		assert_int_equal(policy_instance_decide(pi, &sample, &a, why), -EPROTO);
		act.result = 0; /* good answers in between do not forgive */
		if (i < 2)
			assert_int_equal(policy_instance_decide(pi, &sample, &a, why), 0);
		act.result = -EINVAL;
	}
	assert_true(policy_instance_benched(pi));
	act.result = 0;
	assert_int_equal(policy_instance_decide(pi, &sample, &a, why), -ESTALE);
	assert_non_null(strstr(why, "benched"));
	policy_instance_free(pi);
}

static void test_wrong_sample(void **state)
{
	struct policy_instance *pi = fresh();
	struct pcptune_sample s = sample;
	struct host_answer a;
	char why[POLICY_WHY];

	(void)state;
	s.n_cpus = N + 1;
	assert_int_equal(policy_instance_decide(pi, &s, &a, why), -EINVAL);
	s = sample;
	s.cpu_size = 8;
	assert_int_equal(policy_instance_decide(pi, &s, &a, why), -EINVAL);
	assert_false(policy_instance_benched(pi));
	policy_instance_free(pi);
}

static void test_new_refuses(void **state)
{
	struct policy_instance *pi = NULL;
	struct pcptune_shape bad = shape;
	int64_t values[POLICY_MAX_PARAMS] = {0};
	char why[POLICY_WHY];

	(void)state;
	policy_instance_free(fresh());
	bad.n_cpus = 0;
	assert_int_equal(policy_instance_new(module, &bad, values, &pi, why), -EINVAL);
	bad = shape;
	bad.n_zones = PCPTUNE_MAX_ZONES + 1;
	assert_int_equal(policy_instance_new(module, &bad, values, &pi, why), -EINVAL);
	act.state_size = (64u << 20) + 1;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EPROTO);
	assert_non_null(strstr(why, "bytes of state"));
	act.state_size = SIZE_MAX;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EPROTO);
	act.state_size = 0;
	act.init_result = -EINVAL;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EINVAL);
	assert_non_null(strstr(why, "do not go together"));
	desc.refusal = act_refusal;
	act.refusal = "low is above high";
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EINVAL);
	assert_string_equal(why, "policy \"act\": low is above high");
	act.refusal = NULL;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EINVAL);
	assert_non_null(strstr(why, "do not go together"));
	/* a policy that was built before there was such a member */
	act.refusal = "never asked for";
	desc.size = PCPTUNE_POLICY_MIN_SIZE;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EINVAL);
	assert_non_null(strstr(why, "do not go together"));
	desc.size = sizeof(desc);
	desc.refusal = NULL;
	act.init_result = 1;
	assert_int_equal(policy_instance_new(module, &shape, values, &pi, why), -EPROTO);
	assert_null(pi);
}

static void test_state(void **state)
{
	struct policy_instance *pi = fresh(), *other;
	struct host_answer a;
	char why[POLICY_WHY];
	const unsigned char *bytes;
	size_t size, size2;

	(void)state;
	act.result = -EINVAL;
	policy_instance_decide(pi, &sample, &a, why);
	policy_instance_decide(pi, &sample, &a, why);
	bytes = policy_instance_state(pi, &size);
	assert_int_equal(bytes[0], 2);
	other = fresh();
	assert_int_equal(policy_instance_state_load(other, bytes, size - 1), -EINVAL);
	assert_int_equal(policy_instance_state_load(other, bytes, size + 1), -EINVAL);
	assert_int_equal(policy_instance_state_load(other, bytes, size), 0);
	assert_memory_equal(policy_instance_state(other, &size2), bytes, size);
	assert_int_equal(size, size2);
	/* its breaches came along */
	act.result = -EINVAL;
	policy_instance_decide(other, &sample, &a, why);
	assert_true(policy_instance_benched(other));
	policy_instance_free(other);
	policy_instance_free(pi);
}

static int traced;

static void on_trace(void *cookie, const char *policy, const char *text)
{
	assert_ptr_equal(cookie, &traced);
	assert_string_equal(policy, "act");
	assert_string_equal(text, "hello");
	traced++;
}

static void test_trace_is_bounded(void **state)
{
	struct policy_instance *pi = fresh();
	struct host_answer a;
	char why[POLICY_WHY];

	(void)state;
	act.traces = 100;
	assert_int_equal(policy_instance_decide(pi, &sample, &a, why), 0); /* goes nowhere */
	policy_set_trace(on_trace, &traced);
	assert_int_equal(policy_instance_decide(pi, &sample, &a, why), 0);
	assert_int_equal(traced, 4);
	policy_set_trace(NULL, NULL);
	policy_instance_free(pi);
}

/* ---- parameters ---- */

static void wrong(const char *key, const char *value, int err, const char *words)
{
	int64_t v[POLICY_MAX_PARAMS] = {1, 0, 1};
	char why[POLICY_WHY] = "";
	int r = policy_params_set(module, v, key, value, why);

	if (r != err || !strstr(why, words))
		fail_msg("%s=%s: %d \"%s\", right is %d \"%s\"", key, value, r, why, err, words);
	assert_true(v[0] == 1 && v[1] == 0 && v[2] == 1);
}

static void test_params(void **state)
{
	int64_t v[POLICY_MAX_PARAMS];
	char buf[64], why[POLICY_WHY];

	(void)state;
	policy_params_default(module, v);
	assert_int_equal(policy_params_text(module, v, buf, sizeof(buf)),
			 strlen("pages=7 flag=true colour=red"));
	assert_string_equal(buf, "pages=7 flag=true colour=red");
	assert_int_equal(policy_params_text(module, v, buf, 10), 28);
	assert_string_equal(buf, "pages=7 f");
	assert_int_equal(policy_params_text(module, v, NULL, 0), 28);
	assert_int_equal(policy_params_set(module, v, "pages", "-5", why), 0);
	assert_int_equal(policy_params_set(module, v, "flag", "off", why), 0);
	assert_int_equal(policy_params_set(module, v, "colour", "green", why), 0);
	assert_true(v[0] == -5 && v[1] == 0 && v[2] == 1);
	policy_params_text(module, v, buf, sizeof(buf));
	policy_params_default(module, v);
	assert_int_equal(policy_params_parse(module, buf, v, why), 0);
	assert_true(v[0] == -5 && v[1] == 0 && v[2] == 1);
	assert_int_equal(policy_params_parse(module, "", v, why), 0); /* the defaults */
	assert_true(v[0] == 7 && v[1] == 1 && v[2] == 0);
	assert_int_equal(policy_params_parse(module, "  flag=no  ", v, why), 0);
	assert_int_equal(v[1], 0);
}

static void test_params_refused(void **state)
{
	struct policy_module *m = host_module_new(&bare, "/nowhere/bare.so");
	int64_t v[POLICY_MAX_PARAMS] = {1, 1, 1};
	char why[POLICY_WHY], longer[400];

	(void)state;
	wrong("page", "1", -EINVAL, "did you mean \"pages\"?");
	wrong("zzzzzzzz", "1", -EINVAL, "pcptune policies act");
	wrong("pages", "1001", -ERANGE, "allowed: -5..1000 pages");
	wrong("pages", "-6", -ERANGE, "-5..1000");
	wrong("pages", "99999999999999999999", -ERANGE, "-5..1000");
	wrong("pages", "7x", -EINVAL, "-5..1000");
	wrong("pages", "", -EINVAL, "-5..1000");
	wrong("flag", "maybe", -EINVAL, "true or false");
	wrong("colour", "blue", -EINVAL, "red, green");
	wrong("colour", "0", -EINVAL, "red, green");
	assert_int_equal(policy_params_parse(module, "pages=1 flag", v, why), -EINVAL);
	assert_non_null(strstr(why, "has no ="));
	assert_int_equal(policy_params_parse(module, "pages=1 flg=true", v, why), -EINVAL);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	assert_int_equal(policy_params_parse(module, longer, v, why), -EINVAL);
	assert_int_equal(policy_params_set(m, v, "a", "1", why), -EINVAL);
	assert_non_null(strstr(why, "has no parameters"));
	assert_true(v[0] == 1 && v[1] == 1 && v[2] == 1);
	policy_unref(m);
}

/* ---- sentences ---- */

static void says(const char *sentence, const char *right)
{
	static const int64_t arg[4] = {378, -5, 12500, INT64_MIN};
	char buf[200];
	int n = policy_sentence(sentence, arg, 63, 126, buf, sizeof(buf));

	assert_string_equal(buf, right);
	assert_int_equal(n, strlen(right));
}

static void test_sentences(void **state)
{
	static const int64_t arg[4] = {1, 2, 3, 4};
	char buf[8];

	(void)state;
	says("plain", "plain");
	says("", "");
	says("{a:pages}", "378 pages (1.5 MiB)");
	says("{old} -> {new}", "63 -> 126");
	says("{b} {c}", "-5 12500");
	says("{d}", "-9223372036854775808");
	says("{a:ms} {c:ppm} {a:permille} {a:rate}", "378 ms 1.25 % 37.8 % 378/s");
	says("{x} {a {a:nothing}", "{x} {a {a:nothing}"); /* left as it is */
	assert_int_equal(policy_sentence("{a}23456789", arg, 0, 0, buf, sizeof(buf)), 9);
	assert_string_equal(buf, "1234567");
	assert_int_equal(policy_sentence("{a}23", arg, 0, 0, NULL, 0), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_breaches),
		cmocka_unit_test(test_bench),
		cmocka_unit_test(test_wrong_sample),
		cmocka_unit_test(test_new_refuses),
		cmocka_unit_test(test_state),
		cmocka_unit_test(test_trace_is_bounded),
		cmocka_unit_test(test_params),
		cmocka_unit_test(test_params_refused),
		cmocka_unit_test(test_sentences),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
