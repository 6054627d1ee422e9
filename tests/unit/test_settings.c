/* SPDX-License-Identifier: MIT */
/* Settings of the allocator's environment: what is understood, and what is said of the rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pcptune/settings.h>

#include "allocator/bulk_free.h"
#include "allocator/track.h"
#include "allocator/zone.h"
#include "tests/unit/alloc_child.h"

static void numbers(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {{"4194304", 4194304},
		    {"4096k", 4194304},
		    {"4M", 4194304},
		    {"1g", 1 << 30},
		    {"64T", UINT64_C(1) << 46}};
	static const char *const wrong[] = {"",
					    "k",
					    "-1",
					    "4194304x",
					    "4mm",
					    " 4m",
					    "0x400000",
					    "1.5g",
					    "4 m",
					    "4095k",
					    "65t",
					    "99999999999999999999",
					    "99999999999999999t"};
	uint64_t v = 5;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_false(pcptune_setting_parse(PCPTUNE_SET_SIZE, wrong[i], &v));
	assert_int_equal(v, 5);
	errno = 7;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(pcptune_setting_parse(PCPTUNE_SET_SIZE, good[i].text, &v));
		assert_int_equal(v, good[i].value);
	}
	assert_int_equal(errno, 7);
}

/* The ends of every range, and one beyond. */
static void ranges(void **state)
{
	char text[32];
	uint64_t v;

	(void)state;
	for (unsigned i = 0; i < PCPTUNE_SETTINGS; i++) {
		const struct pcptune_setting *s = &pcptune_settings[i];

		if (s->kind != PCPTUNE_SETTING_NUMBER)
			continue;
		snprintf(text, sizeof(text), "%" PRIu64, s->least);
		assert_true(pcptune_setting_parse(i, text, &v) && v == s->least);
		snprintf(text, sizeof(text), "%" PRIu64, s->most);
		assert_true(pcptune_setting_parse(i, text, &v) && v == s->most);
		snprintf(text, sizeof(text), "%" PRIu64, s->most + 1);
		assert_false(pcptune_setting_parse(i, text, &v));
		snprintf(text, sizeof(text), "%" PRId64, (int64_t)s->least - 1);
		assert_false(pcptune_setting_parse(i, text, &v));
	}
	assert_int_equal(pcptune_settings[PCPTUNE_SET_SIZE].least, PCPA_ZONE_ALIGN);
	assert_int_equal(pcptune_settings[PCPTUNE_SET_GRAIN].most, PCPA_GRAIN_MAX);
	assert_int_equal(pcptune_settings[PCPTUNE_SET_MAX_SIZE].most, PCPA_MAX_EXACT);
}

static void words(void **state)
{
	uint64_t v = 9;

	(void)state;
	for (unsigned i = 0; i < PCPA_BULK_FREES; i++) {
		assert_true(
			pcptune_setting_parse(PCPTUNE_SET_BULK_FREE, pcpa_bulk_frees[i].name, &v));
		assert_int_equal(v, i);
	}
	assert_true(pcptune_setting_parse(PCPTUNE_SET_MODE, "locked", &v) && v == 1);
	assert_true(pcptune_setting_parse(PCPTUNE_SET_RULES, "gx", &v) && v == PCPTUNE_RULES_GX);
	assert_true(pcptune_setting_parse(PCPTUNE_SET_EVENTS, "/any/where", &v) && v == 0);
	v = 9;
	assert_false(pcptune_setting_parse(PCPTUNE_SET_MODE, "", &v));
	assert_false(pcptune_setting_parse(PCPTUNE_SET_MODE, "lock", &v));
	assert_false(pcptune_setting_parse(PCPTUNE_SET_MODE, "rseq locked", &v));
	assert_false(pcptune_setting_parse(PCPTUNE_SET_RULES, "g9", &v));
	assert_int_equal(v, 9);
}

static void of_an_environment(void **state)
{
	char *const env[] = {"PATH=/bin",	 "PCPALLOC_HIGH=100", "PCPTUNE_SOCKET=",
			     "PCPALLOC_HIGHT=5", "PCPALLOC_MODE",     NULL};
	const char *first = "?";
	char text[256];

	(void)state;
	assert_int_equal(pcptune_settings_refused(env, &first), 2);
	assert_ptr_equal(first, env[3]);
	pcptune_setting_explain(first, text, sizeof(text));
	assert_string_equal(text, "PCPALLOC_HIGHT=5: there is no such setting, see pcpalloc(3)");
	pcptune_setting_explain("PCPALLOC_HIGH=0", text, sizeof(text));
	assert_string_equal(text, "PCPALLOC_HIGH=0: not a number from 1 to 8388608 "
				  "(pages, fixed high to start with)");
	pcptune_setting_explain("PCPALLOC_AGENT=yes", text, sizeof(text));
	assert_string_equal(text, "PCPALLOC_AGENT=yes: not one of: 0 1 "
				  "(0: no agent thread, 1: with the first allocation)");
	assert_int_equal(pcptune_settings_refused(env + 5, &first), 0);
	assert_null(first);
}

static void refused_child(void)
{
	const char *text = pcpa_refused_setting();

	CHECK(text && !strncmp(text, "PCPALLOC_RULES=g9: ", 19) && strstr(text, "g0 to g6, gx"));
	CHECK(pcpa_heap.proc->settings_refused == 2);
}

static void understood_child(void)
{
	CHECK(!pcpa_refused_setting());
	CHECK(pcpa_alloc(0) && pcpa_heap.proc->settings_refused == 0);
	CHECK(!pcpa_refused_setting());
}

static void told_to_who_asks(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(refused_child, SETTINGS("PCPALLOC_RULES=g9", "PCPALLOC_ZONES=nine")), 0);
	assert_int_equal(in_child(understood_child, SETTINGS("PCPALLOC_RULES=g5")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),
		cmocka_unit_test(ranges),
		cmocka_unit_test(words),
		cmocka_unit_test(of_an_environment),
		cmocka_unit_test(told_to_who_asks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
