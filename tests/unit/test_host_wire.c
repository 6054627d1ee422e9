/* SPDX-License-Identifier: MIT */
/*
 * Tables of a foreign policy on their way into the daemon: what comes out is what went in, for
 * every policy that there is, and of damaged images nothing comes out that leads outside of them.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "policies/host_wire.h"

static uint64_t image[WIRE_IMAGE_MAX / 8], copy[WIRE_IMAGE_MAX / 8];

static void assert_same_param(const struct pcptune_param *a, const struct pcptune_param *b)
{
	assert_string_equal(a->name, b->name);
	assert_string_equal(a->unit, b->unit);
	assert_string_equal(a->text, b->text);
	assert_int_equal(a->type, b->type);
	assert_true(a->min == b->min && a->max == b->max && a->def == b->def);
	assert_int_equal(!a->choices, !b->choices);
	for (size_t i = 0; a->choices && a->choices[i]; i++)
		assert_string_equal(a->choices[i], b->choices[i]);
}

static void assert_same(const struct policy_module *a, const struct policy_module *b)
{
	const struct pcptune_policy *p = policy_desc(a), *q = policy_desc(b);

	assert_string_equal(p->name, q->name);
	assert_string_equal(p->version, q->version);
	assert_string_equal(p->summary, q->summary);
	assert_int_equal(p->n_params, q->n_params);
	assert_int_equal(p->n_reasons, q->n_reasons);
	assert_int_equal(p->change_size, q->change_size);
	assert_int_equal(p->record_ms, q->record_ms);
	assert_null(q->decide);
	for (uint32_t i = 0; i < p->n_params; i++)
		assert_same_param(policy_param(a, i), policy_param(b, i));
	for (uint32_t id = 0; id < 66000; id++) {
		const struct pcptune_reason *r = policy_reason(a, id), *s = policy_reason(b, id);

		assert_int_equal(!r, !s);
		if (!r)
			continue;
		assert_int_equal(r->kind, s->kind);
		assert_string_equal(r->name, s->name);
		assert_string_equal(r->sentence, s->sentence);
	}
}

static void test_there_and_back(void **state)
{
	char **names, why[POLICY_WHY] = "";
	size_t n, len = 0;

	(void)state;
	assert_int_equal(policy_list(NULL, &names, &n), 0);
	assert_true(n >= 8);
	for (size_t i = 0; i < n; i++) {
		struct policy_module *m, *back;
		struct pcptune_policy *desc;
		struct policy_file f;

		assert_int_equal(policy_find(names[i], NULL, &f, why), 0);
		assert_int_equal(policy_load_file(&f, &m, why), 0);
		assert_int_equal(wire_pack(m, image, sizeof(image), &len), 0);
		assert_true(len < 16384);
		assert_int_equal(wire_unpack(image, len, names[i], &desc, why), 0);
		back = host_module_remote(desc, &f);
		assert_non_null(back);
		assert_true(policy_remote(back));
		assert_same(m, back);
		assert_int_equal(wire_unpack(image, len, "other", &desc, why), -EPROTO);
		assert_int_equal(wire_pack(m, image, 200, &len), -E2BIG);
		assert_int_equal(wire_pack(m, image, 1000, &len), -E2BIG);
		policy_unref(m);
		policy_unref(back);
	}
	policy_list_free(names, n);
}

/* Reads all that a reader may. */
static size_t use(struct pcptune_policy *desc)
{
	static const struct policy_file f = {.path = "/x/kernel.so", .name = "kernel"};
	struct policy_module *m = host_module_remote(desc, &f);
	size_t sum = 0;

	assert_non_null(m);
	for (uint32_t i = 0; policy_param(m, i); i++) {
		const struct pcptune_param *p = policy_param(m, i);

		sum += strlen(p->name) + strlen(p->unit) + strlen(p->text);
		for (size_t k = 0; p->choices && p->choices[k]; k++)
			sum += strlen(p->choices[k]);
	}
	for (uint32_t id = 1; id < 65536; id += 7) {
		const struct pcptune_reason *r = policy_reason(m, id);

		sum += r ? strlen(r->sentence) : 0;
	}
	sum += strlen(desc->version) + strlen(desc->summary);
	policy_unref(m);
	return sum;
}

static void test_damaged(void **state)
{
	char why[POLICY_WHY] = "";
	struct pcptune_policy *desc;
	struct policy_module *m;
	uint64_t seed = 1;
	size_t len = 0, good = 0;

	(void)state;
	assert_int_equal(policy_load("kernel", NULL, &m, why), 0);
	assert_int_equal(wire_pack(m, image, sizeof(image), &len), 0);
	policy_unref(m);
	for (size_t n = 0; n < len; n++) {
		if (wire_unpack(image, n, "kernel", &desc, why) == 0)
			use(desc); /* only padding was missing */
	}
	for (int round = 0; round < 20000; round++) {
		memcpy(copy, image, len);
		for (int k = 0; k < 1 + round % 3; k++) {
			uint64_t at, v;

			seed = seed * 6364136223846793005u + 1442695040888963407u;
			at = (seed >> 33) % (len / 8);
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			v = seed >> 20;
			copy[at] = v & 1   ? (v >> 1) % (len + 16)
				   : v & 2 ? copy[(v >> 3) % (len / 8)]
					   : copy[at] ^ (UINT64_C(1) << (v >> 3) % 64);
		}
		if (wire_unpack(copy, len, "kernel", &desc, why) == 0)
			good += use(desc) != 0;
	}
	assert_true(good > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
