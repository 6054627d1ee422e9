/* SPDX-License-Identifier: MIT */
/*
 * The table of keys against what is written down: the sample file, the man page, and the table's
 * own promises.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "lib/config_private.h"
#include "tests/unit/source.h"

static char *printed(void (*print)(FILE *))
{
	char *text = calloc(1, 1 << 18);
	FILE *f = text ? fmemopen(text, 1 << 18, "w") : NULL;

	assert_non_null(f);
	print(f);
	assert_int_equal(fclose(f), 0);
	return text;
}

static void test_sample_file(void **state)
{
	char *file = source_text("configs/pcptuned.conf"), *want = printed(config_print_sample);

	(void)state;
	if (strcmp(file, want) != 0)
		fail_msg("configs/pcptuned.conf is not what config_print_sample() prints");
	free(file);
	free(want);
}

static void test_man_page(void **state)
{
	char *file = source_text("docs/pcptuned.conf.5"), *want = printed(config_print_man);
	char *begin = strstr(file, ".\\\" begin keys\n"), *end = strstr(file, ".\\\" end keys");

	(void)state;
	assert_non_null(begin);
	assert_non_null(end);
	begin = strchr(begin, '\n') + 1;
	*end = '\0';
	if (strcmp(begin, want) != 0)
		fail_msg("KEYS of docs/pcptuned.conf.5 is not what config_print_man() prints");
	free(file);
	free(want);
}

/* Is before, name, after in text, in a row? */
static bool has(const char *text, const char *before, const char *name, const char *after)
{
	struct cbuf b = {0};
	bool found;

	cbuf_printf(&b, "%s%s%s", before, name, after);
	assert_false(b.failed);
	found = strstr(text, b.s) != NULL;
	free(b.s);
	return found;
}

static void test_every_key_is_named(void **state)
{
	char *sample = printed(config_print_sample), *man = printed(config_print_man);
	size_t items = 0;

	(void)state;
	for (size_t i = 0; i < config_n_keys; i++) {
		const char *name = config_keys[i].name, *dot = strrchr(name, '.');
		const char *last = dot ? dot + 1 : name;
		bool rule = strncmp(name, "rules.", 6) == 0;

		assert_true(has(man, ".It Ic ", name, "\n"));
		if (!has(sample, rule ? "#  " : "", last, rule ? ": " : " = "))
			fail_msg("%s is not in the sample", name);
	}
	for (const char *p = man; (p = strstr(p, ".It Ic ")); p++)
		items++;
	assert_int_equal(items, config_n_keys);
	free(sample);
	free(man);
}

/* Is key in a cell of the table: `key` = `default`, or `key` alone where it has none? */
static bool in_cell(const char *table, const struct config_key *k)
{
	struct cbuf value = {0};
	bool found;

	if (!k->def)
		return has(table, "`", k->name, "`,") || has(table, "`", k->name, "` |");
	cbuf_printf(&value, "` = `%s`", k->def);
	assert_false(value.failed);
	found = has(table, "`", k->name, value.s);
	free(value.s);
	return found;
}

/* README has each key once, with its default where there is one, and no other. */
static void test_readme_names_every_key(void **state)
{
	char *readme = source_text("README.md"), *table = strstr(readme, "\n## Configuration\n");
	size_t names = 0, want = 0;

	(void)state;
	assert_non_null(table);
	if (strstr(table + 1, "\n## "))
		*strstr(table + 1, "\n## ") = '\0';
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];

		if (k->type == CONFIG_GROUP && !strchr(k->name, '.'))
			continue; /* its members are there */
		want += k->def ? 2 : 1;
		if (!in_cell(table, k))
			fail_msg("README.md: %s is not there, or with another default", k->name);
	}
	table = strstr(table, "|---|---|");
	assert_non_null(table);
	for (const char *p = table; (p = strchr(p, '`')); p++)
		names++;
	assert_int_equal(names, 2 * want);
	free(readme);
}

/* The values in the sample are the defaults, and the rules shown in it are good ones. */
static void test_sample_parses(void **state)
{
	char *sample = printed(config_print_sample), *why = NULL, *p;
	struct config *a = NULL, *b = NULL;
	const char *key = NULL;

	(void)state;
	if (config_parse(sample, "sample", &a, &why) != 0)
		fail_msg("%s", why);
	assert_int_equal(config_load(NULL, &b, &why), 0);
	assert_int_equal(config_reloadable(a, b, &key), 0);
	assert_int_equal(a->lease_ms, b->lease_ms);
	assert_int_equal(a->settle_ms, b->settle_ms);
	assert_int_equal(a->max_targets, b->max_targets);
	assert_int_equal(a->log.max_bytes, b->log.max_bytes);
	assert_int_equal(a->log.chunk_ms, b->log.chunk_ms);
	assert_int_equal(a->control.max_queue_bytes, b->control.max_queue_bytes);
	assert_string_equal(a->def.policy, b->def.policy);
	config_free(a);
	config_free(b);

	p = strstr(sample, "# rules = (");
	assert_non_null(p);
	strstr(p, "rules = ();")[0] = '\0';
	for (; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
		if (*p == '#')
			*p = ' ';
	if (config_parse(sample, "sample", &a, &why) != 0)
		fail_msg("%s", why);
	assert_int_equal(a->n_rules, 2);
	config_free(a);
	free(sample);
}

/* Ends of each range are accepted, one beyond is not. */
static bool takes(const struct config_key *k, int64_t v)
{
	const char *dot = strrchr(k->name, '.');
	struct config *c = NULL;
	char text[256], *why = NULL;
	bool rule = strncmp(k->name, "rules.", 6) == 0;
	int r;

	if (rule)
		snprintf(text, sizeof(text), "rules = ( { policy = \"x\"; %s = %" PRId64 "L; } );",
			 dot + 1, v);
	else if (dot)
		snprintf(text, sizeof(text), "%.*s = { %s = %" PRId64 "L; };", (int)(dot - k->name),
			 k->name, dot + 1, v);
	else
		snprintf(text, sizeof(text), "%s = %" PRId64 "L;", k->name, v);
	r = config_parse(text, "t", &c, &why);
	if (r == 0)
		config_free(c);
	free(r ? why : NULL);
	return r == 0;
}

static void test_ranges_of_all_ints(void **state)
{
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];

		if (k->type != CONFIG_INT)
			continue;
		n++;
		assert_true(takes(k, k->min));
		assert_true(takes(k, k->max));
		assert_false(takes(k, k->min - 1));
		assert_false(takes(k, k->max + 1));
	}
	assert_true(n > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample_file),
		cmocka_unit_test(test_man_page),
		cmocka_unit_test(test_every_key_is_named),
		cmocka_unit_test(test_readme_names_every_key),
		cmocka_unit_test(test_sample_parses),
		cmocka_unit_test(test_ranges_of_all_ints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
