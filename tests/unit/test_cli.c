/* SPDX-License-Identifier: MIT */
/*
 * The parts of the CLI that are functions of their input: command lines, times, values as text,
 * why a decision was cut. They are compiled into this program, with a table of verbs and an ear
 * for messages of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "cli/args.c"
#include "cli/when.c"
#include "cli/show.c"
#include "cli/decision.c"

/* ---- what the files above want from the rest of the CLI ---- */

static char said[1024];

static void hear(const char *fmt, va_list ap)
{
	vsnprintf(said, sizeof(said), fmt, ap);
}

int cli_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	hear(fmt, ap);
	va_end(ap);
	return CLI_ERROR;
}

int cli_usage_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	hear(fmt, ap);
	va_end(ap);
	return CLI_USAGE;
}

static bool usage_printed;

void cli_print_usage(const struct cli_verb *verb, FILE *out)
{
	(void)verb;
	(void)out;
	usage_printed = true;
}

struct args {
	bool json, quiet;
	const char *db;
	struct cli_list set;
	int64_t n, size;
	const char *watch;
	bool watching;
	uint64_t since;
};

static int set_watching(void *field, const char *value, char *why)
{
	struct args *a = (struct args *)((char *)field - offsetof(struct args, watch));

	(void)why;
	a->watch = value;
	a->watching = true;
	return 0;
}

static const struct cli_option options[] = {
	CLI_OPT_JSON(struct args, json),
	{"quiet", 'q', NULL, "", cli_set_flag, offsetof(struct args, quiet)},
	CLI_OPT_DB(struct args, db),
	{"set", 0, "K=V", "", cli_set_list, offsetof(struct args, set)},
	{"number", 'n', "N", "", cli_set_i64, offsetof(struct args, n)},
	{"size", 0, "BYTES", "", cli_set_size, offsetof(struct args, size)},
	{"watch", 'w', "[SECONDS]", "", set_watching, offsetof(struct args, watch)},
	{"since", 'S', "TIME", "", cli_set_time, offsetof(struct args, since)},
	{0},
};
static const struct cli_verb verbs[] = {
	{"mixed", "", "[WORD]...", NULL, options, NULL, false},
	{"stop", "", "PROGRAM", NULL, options, NULL, true},
};

const struct cli_verb *cli_verb_find(const char *name)
{
	return !strcmp(name, "stop") ? &verbs[1] : &verbs[0];
}

/* ---- command lines ---- */

#define MAX_WORDS 80

static struct cli_rest rest;
static char *words[MAX_WORDS + 1];

static int parse_n(struct args *a, int min, int max, const char *const *line)
{
	int n = 0;

	*a = (struct args){0};
	said[0] = '\0';
	usage_printed = false;
	for (; line[n]; n++)
		words[n] = (char *)line[n];
	words[n] = NULL;
	rest = (struct cli_rest){0};
	return cli_parse(n, words, a, min, max, &rest);
}

#define PARSE(a, min, max, ...) parse_n(a, min, max, (const char *const[]){__VA_ARGS__, NULL})

static void options_and_words_mix(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 0, -1, "mixed", "a", "--json", "b", "--db", "x", "c"), -1);
	assert_true(a.json);
	assert_string_equal(a.db, "x");
	assert_int_equal(rest.argc, 3);
	assert_string_equal(rest.argv[0], "a");
	assert_string_equal(rest.argv[2], "c");
	assert_null(rest.argv[3]);
}

static void every_form_of_a_value(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--db=x=y"), -1);
	assert_string_equal(a.db, "x=y");
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-dx"), -1);
	assert_string_equal(a.db, "x");
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-jqd", "x"), -1);
	assert_true(a.json && a.quiet);
	assert_string_equal(a.db, "x");
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--db", "--json"), -1);
	assert_string_equal(a.db, "--json");
	assert_false(a.json);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-n", "12", "--size", "3k"), -1);
	assert_int_equal(a.n, 12);
	assert_int_equal(a.size, 3072);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--set", "a=1", "--set", "b=2"), -1);
	assert_int_equal(a.set.n, 2);
	assert_string_equal(a.set.item[1], "b=2");
}

static void an_optional_value_is_a_number_or_behind_an_equals_sign(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 0, 1, "mixed", "--watch", "0.5", "web"), -1);
	assert_string_equal(a.watch, "0.5");
	assert_string_equal(rest.argv[0], "web");
	assert_int_equal(PARSE(&a, 0, 1, "mixed", "--watch", "web"), -1);
	assert_true(a.watching && !a.watch);
	assert_string_equal(rest.argv[0], "web");
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-w"), -1);
	assert_true(a.watching && !a.watch);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--watch=x"), -1);
	assert_string_equal(a.watch, "x");
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-w2"), -1);
	assert_string_equal(a.watch, "2");
	assert_int_equal(PARSE(&a, 0, 1, "mixed", "-w", "3web"), -1);
	assert_null(a.watch);
}

static void two_dashes_end_the_options(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 0, -1, "mixed", "-q", "--", "--json", "-"), -1);
	assert_true(a.quiet && !a.json);
	assert_int_equal(rest.argc, 2);
	assert_string_equal(rest.argv[0], "--json");
	assert_int_equal(PARSE(&a, 0, -1, "mixed", "-", "--json"), -1);
	assert_string_equal(rest.argv[0], "-");
	assert_true(a.json);
}

static void a_command_line_behind_is_left_alone(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 1, -1, "stop", "-q", "ls", "--json", "--", "-x"), -1);
	assert_true(a.quiet && !a.json);
	assert_int_equal(rest.argc, 4);
	assert_string_equal(rest.argv[1], "--json");
	assert_string_equal(rest.argv[2], "--");
	assert_int_equal(PARSE(&a, 1, -1, "stop", "--", "-q", "--", "x"), -1);
	assert_false(a.quiet);
	assert_int_equal(rest.argc, 3);
	assert_string_equal(rest.argv[0], "-q");
}

static void wrong_command_lines_are_usage_errors(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--jsn"), CLI_USAGE);
	assert_non_null(strstr(said, "did you mean --json"));
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--hepl"), CLI_USAGE);
	assert_non_null(strstr(said, "did you mean --help"));
	assert_int_equal(PARSE(&a, 0, 0, "mixed",
			       "--qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"
			       "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"),
			 CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-x"), CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--json=1"), CLI_USAGE);
	assert_non_null(strstr(said, "takes no value"));
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--db"), CLI_USAGE);
	assert_non_null(strstr(said, "needs a value"));
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--db="), CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-n", "-1"), CLI_USAGE);
	assert_non_null(strstr(said, "--number \"-1\": not a whole number"));
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "-n", "99999999999999999999"), CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--size", "3q"), CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "--since", "tomorrowish"), CLI_USAGE);
	assert_int_equal(PARSE(&a, 0, 0, "mixed", "word"), CLI_USAGE);
	assert_non_null(strstr(said, "one word too many"));
	assert_int_equal(PARSE(&a, 1, 1, "stop"), CLI_USAGE);
	assert_non_null(strstr(said, "missing: PROGRAM"));
}

static void a_list_has_an_end(void **state)
{
	const char *line[MAX_WORDS + 1] = {"mixed"};
	struct args a;
	size_t i;

	(void)state;
	for (i = 1; i <= CLI_MAX_LIST; i++)
		line[i] = "--set=a=1";
	assert_int_equal(parse_n(&a, 0, 0, line), -1);
	assert_int_equal(a.set.n, CLI_MAX_LIST);
	line[i] = "--set=a=1";
	assert_int_equal(parse_n(&a, 0, 0, line), CLI_USAGE);
	assert_non_null(strstr(said, "at most 64 times"));
}

static void help_wins_over_what_is_missing(void **state)
{
	struct args a;

	(void)state;
	assert_int_equal(PARSE(&a, 1, 1, "mixed", "--help"), CLI_OK);
	assert_true(usage_printed);
	assert_int_equal(PARSE(&a, 1, 1, "mixed", "-h"), CLI_OK);
	assert_true(usage_printed);
}

/* ---- times ---- */

/* 2026-11-30 10:00:00 UTC, 11:00 in Berlin */
#define NOW UINT64_C(1796032800000000)

static void at(const char *text, uint64_t us)
{
	uint64_t got = 0;

	if (cli_parse_time(text, NOW, &got) || got != us)
		fail_msg("%s: got %llu, should be %llu", text, (unsigned long long)got,
			 (unsigned long long)us);
}

static void times_of_every_form(void **state)
{
	(void)state;
	setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
	tzset();
	at("-10s", NOW - 10 * US);
	at("-10m", NOW - 600 * US);
	at("-1.5h", NOW - 5400 * US);
	at("-2d", NOW - 2 * 86400 * US);
	at("-1w", NOW - 7 * 86400 * US);
	at("-100000w", 1);
	at("today", NOW - 11 * 3600 * US);
	at("11:00", NOW);
	at("10:59:30", NOW - 30 * US);
	at("2026-11-30", NOW - 11 * 3600 * US);
	at("2026-11-30 11:00", NOW);
	at("2026-11-30 11:00:01.25", NOW + US + US / 4);
	at("2026-11-30T11:00:00", NOW);
	at("2026-11-30T10:00:00Z", NOW);
	at("2026-11-30T10:00:00.500Z", NOW + US / 2);
	at("2026-11-30T11:00:00.000+01:00", NOW);
	at("2026-11-30T04:30:00-0530", NOW);
	at("2026-07-01 12:00", UINT64_C(1782900000000000)); /* summer time: 10:00 UTC */
}

static void times_that_are_none(void **state)
{
	static const char *const bad[] = {
		"",
		"-",
		"-m",
		"-10",
		"-10x",
		"-10mm",
		"25:00",
		"12:61",
		"12:00x",
		"2026-13-01",
		"2026-11-30T10:00:00+15:00",
		"--10m",
		"tomorrow",
		"2026-11-30T10:00:00+1",
		"1900-01-01",
	};
	uint64_t us = 7;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (cli_parse_time(bad[i], NOW, &us) != -EINVAL)
			fail_msg("\"%s\" was taken for a time", bad[i]);
	assert_int_equal(us, 7);
}

static void times_that_we_print_are_read_back(void **state)
{
	char iso[48];
	uint64_t us = 0;

	(void)state;
	text_time_iso(NOW + 250000, iso, sizeof(iso));
	assert_int_equal(cli_parse_time(iso, 0, &us), 0);
	assert_int_equal(us, NOW + 250000);
	text_time(NOW + 250000, iso, sizeof(iso));
	assert_int_equal(cli_parse_time(iso, 0, &us), 0);
	assert_int_equal(us, NOW + 250000);
}

/* ---- values ---- */

static void counts_are_grouped(void **state)
{
	static const struct {
		uint64_t v;
		const char *text;
	} rows[] = {{0, "0"},
		    {999, "999"},
		    {1000, "1,000"},
		    {1234567, "1,234,567"},
		    {UINT64_MAX, "18,446,744,073,709,551,615"}};
	char buf[32];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_string_equal(cli_count(rows[i].v, buf, sizeof(buf)), rows[i].text);
}

static void limits_show_what_differs(void **state)
{
	struct log_limits a = {378, 63, 3780, 63, 5, PCPTUNE_RULES_G4}, b = a;
	char buf[160];
	json_t *j = cli_limits_json(&a);

	(void)state;
	assert_string_equal(cli_limits_diff(&a, &b, buf, sizeof(buf)), "nothing");
	b.high = 504;
	b.rules = PCPTUNE_RULES_G0;
	assert_string_equal(cli_limits_diff(&a, &b, buf, sizeof(buf)),
			    "high 378 -> 504, rules g4 -> g0");
	b = (struct log_limits){504, 504, 504, 31, 5, PCPTUNE_RULES_G4};
	assert_string_equal(cli_limits_diff(&a, &b, buf, sizeof(buf)),
			    "high 378 -> 504 (fixed), batch 63 -> 31");
	assert_string_equal(cli_limits_diff(&b, &a, buf, sizeof(buf)),
			    "high 504 -> 378, high_min 504 -> 63, high_max 504 -> 3780, "
			    "batch 31 -> 63");
	b = (struct log_limits){378, 378, 378, 63, 5, PCPTUNE_RULES_G4};
	assert_string_equal(cli_limits_diff(&a, &b, buf, sizeof(buf)), "high fixed at 378");
	assert_int_equal(cli_u64(j, "high_max"), 3780);
	assert_string_equal(cli_str(j, "rules"), "g4");
	assert_int_equal(json_object_size(j), 6);
	json_decref(j);
}

static void the_longest_difference_fits(void **state)
{
	struct log_limits a = {0};
	struct log_limits b = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 15};
	char buf[160], end[32];

	(void)state;
	cli_limits_diff(&b, &a, buf, sizeof(buf));
	snprintf(end, sizeof(end), ", rules %s -> g0", pcptune_rules_name(15));
	assert_string_equal(buf + strlen(buf) - strlen(end), end);
}

static void json_getters_do_not_fail(void **state)
{
	json_t *o = json_pack("{s:s, s:i, s:b, s:n}", "s", "text", "i", -3, "b", 1, "n");

	(void)state;
	assert_int_equal(cli_u64(o, "s"), 0);
	assert_int_equal(cli_u64(o, "i"), 0);
	assert_string_equal(cli_str(o, "i"), "");
	assert_string_equal(cli_str(o, "none"), "");
	assert_string_equal(cli_str(NULL, "s"), "");
	assert_true(cli_bool(o, "b") && !cli_bool(o, "n") && !cli_bool(NULL, "b"));
	json_decref(o);
}

static void a_reason_without_its_plug_in_keeps_its_numbers(void **state)
{
	struct log_decision d = {.reason = 3, .reason_name = "swing", .arg = {12, 0, -5, 0}};
	struct log_assignment a = {.id = 1, .policy = "no-such-policy"};
	char buf[128];

	(void)state;
	setenv("PCPTUNE_POLICY_PATH", "/nonexistent", 1);
	assert_string_equal(cli_reason(&d, &a, buf, sizeof(buf)), "swing (12, 0, -5)");
	d.arg[0] = d.arg[2] = 0;
	assert_string_equal(cli_reason(&d, &a, buf, sizeof(buf)), "swing");
	snprintf(a.policy, sizeof(a.policy), "operator");
	snprintf(d.reason_name, sizeof(d.reason_name), "set-by-operator");
	assert_string_equal(cli_reason(&d, &a, buf, sizeof(buf)), "set by hand (`pcptune set`)");
	assert_true(decision_by_hand(&a));
	snprintf(d.reason_name, sizeof(d.reason_name), "new-name");
	assert_string_equal(cli_reason(&d, &a, buf, sizeof(buf)), "new-name");
}

/* ---- why cut ---- */

static const struct pcptune_shape shape = {
	.size = sizeof(shape),
	.n_zones = 1,
	.n_cpus = 4,
	.host_cpus = 4,
	.managed_pages = 1 << 20,
	.budget_pages = 2000,
	.high_limit = 10000,
};

/* A decision as the host would have made it, with sum_high in use. */
static const char *why(struct log_limits old, struct log_limits proposed, uint64_t sum_high)
{
	static char buf[512];
	struct log_decision d = {.old = old, .proposed = proposed};
	struct limits o = as_limits(&old), p = as_limits(&proposed), c = o;

	host_clamp(&shape, &o, sum_high, &p, &c);
	d.clamped =
		(struct log_limits){c.high, c.high_min, c.high_max, c.batch, c.scale_max, c.rules};
	return decision_clamp_why(&shape, &d, buf, sizeof(buf));
}

static void what_cut_a_decision_is_found_again(void **state)
{
	struct log_limits old = {400, 63, 5000, 63, 5, PCPTUNE_RULES_G4}, p = old;

	(void)state;
	p.high = 800;
	assert_string_equal(why(old, p, 1000), "");
	p.high = 3000;
	assert_non_null(strstr(why(old, p, 1000), "at most 2000 pages together (its budget), which "
						  "left room for 1400 instead of 3000"));
	p = old;
	p.high = 1;
	assert_non_null(strstr(why(old, p, 1000), "4 pages are the least"));
	p = old;
	p.batch = 5000;
	assert_non_null(strstr(why(old, p, 1000), "batch: 1024 pages are the most"));
	p = old;
	p.batch = 500;
	assert_non_null(strstr(why(old, p, 1000), "batch: at least 1 and at most high"));
	p = old;
	p.scale_max = 9;
	assert_non_null(strstr(why(old, p, 1000), "scale_max: 6 is the most"));
	p = old;
	p.rules = 31;
	assert_non_null(strstr(why(old, p, 1000), "rules: no such generation"));
	p = old;
	p.high_max = 100;
	assert_non_null(strstr(why(old, p, 1000), "high: kept within high_min and high_max"));
	p.high = 800;
	assert_non_null(strstr(why(old, p, 1000), "high_max: it may not be below high"));
}

static void the_room_of_the_lists_cuts_before_the_budget(void **state)
{
	struct log_limits old = {9000, 63, 20000, 63, 5, PCPTUNE_RULES_G4}, p = old;
	struct log_decision d = {.old = old};
	char buf[256];

	(void)state;
	p.high = 15000;
	d.proposed = d.clamped = p;
	d.clamped.high = 10000;
	assert_non_null(strstr(decision_clamp_why(&shape, &d, buf, sizeof(buf)),
			       "the lists of one CPU have room for 10000 pages"));
	/* a buffer that is too short is filled and ended */
	decision_clamp_why(&shape, &d, buf, 20);
	assert_int_equal(strlen(buf), 19);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_and_words_mix),
		cmocka_unit_test(every_form_of_a_value),
		cmocka_unit_test(an_optional_value_is_a_number_or_behind_an_equals_sign),
		cmocka_unit_test(two_dashes_end_the_options),
		cmocka_unit_test(a_command_line_behind_is_left_alone),
		cmocka_unit_test(wrong_command_lines_are_usage_errors),
		cmocka_unit_test(a_list_has_an_end),
		cmocka_unit_test(help_wins_over_what_is_missing),
		cmocka_unit_test(times_of_every_form),
		cmocka_unit_test(times_that_are_none),
		cmocka_unit_test(times_that_we_print_are_read_back),
		cmocka_unit_test(counts_are_grouped),
		cmocka_unit_test(limits_show_what_differs),
		cmocka_unit_test(the_longest_difference_fits),
		cmocka_unit_test(json_getters_do_not_fail),
		cmocka_unit_test(a_reason_without_its_plug_in_keeps_its_numbers),
		cmocka_unit_test(what_cut_a_decision_is_found_again),
		cmocka_unit_test(the_room_of_the_lists_cuts_before_the_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
