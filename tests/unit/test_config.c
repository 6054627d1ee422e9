/* SPDX-License-Identifier: MIT */
/*
 * The configuration: values, every kind of error with its file and line, includes, reload,
 * matching, places, and every allocation failing once.
 */
#include <errno.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "lib/config_private.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_MAX];

static int set_up(void **state)
{
	(void)state;
	return scratch_dir(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	char cmd[200];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
	return system(cmd);
}

/* A file in the test's directory; returns its path (static storage, 4 in turn). */
static const char *file_with(const char *name, const char *text)
{
	static char path[4][256];
	static int i;
	char *p = path[i++ % 4];
	FILE *f;

	snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
	f = fopen(p, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
	assert_int_equal(fclose(f), 0);
	return p;
}

static struct config *good(const char *text)
{
	struct config *c = NULL;
	char *why = NULL;
	int r = config_parse(text, "t.conf", &c, &why);

	if (r)
		fail_msg("%s: %s", text, why);
	return c;
}

/* text must be refused and every one of the lines (NULL-terminated) be in the cause. */
static void bad_lines(const char *text, const char *const *lines, size_t n)
{
	struct config *c = (struct config *)1;
	char *why = NULL;
	size_t count = 0;

	assert_int_equal(config_parse(text, "t.conf", &c, &why), -EINVAL);
	assert_ptr_equal(c, (struct config *)1);
	assert_non_null(why);
	for (size_t i = 0; i < n; i++)
		if (!strstr(why, lines[i]))
			fail_msg("\"%s\" is not in:\n%s", lines[i], why);
	for (const char *p = why; (p = strchr(p, '\n')); p++)
		count++;
	assert_int_equal(count, n);
	assert_int_equal(why[strlen(why) - 1], '\n');
	free(why);
}

#define BAD(text, ...)                                           \
	do {                                                     \
		const char *const l_[] = {__VA_ARGS__};          \
		bad_lines(text, l_, sizeof(l_) / sizeof(l_[0])); \
	} while (0)

static void test_defaults(void **state)
{
	struct config *c = good("");

	(void)state;
	assert_string_equal(c->file, "t.conf");
	assert_non_null(c->socket);
	assert_non_null(c->log.path);
	assert_int_equal(c->interval_ms, 100);
	assert_int_equal(c->settle_ms, 200);
	assert_int_equal(c->budget_permille, 125);
	assert_int_equal(c->on_exit, CONFIG_RESTORE);
	assert_int_equal(c->log.max_bytes, 256 << 20);
	assert_true(c->log.enabled);
	assert_false(c->log.required);
	assert_false(c->dry_run);
	assert_int_equal(c->control.mode, 0600);
	assert_null(c->control.group);
	assert_null(c->policy_path);
	assert_string_equal(c->def.policy, "contention");
	assert_int_equal(c->def.dry_run, -1);
	assert_int_equal(c->def.uid, -1);
	assert_int_equal(c->n_rules, 0);
	config_free(c);
	config_free(NULL);
}

static void test_builtin(void **state)
{
	struct config *c = NULL;
	char *why = NULL;

	(void)state;
	assert_int_equal(config_load(NULL, &c, &why), 0);
	assert_null(c->file);
	assert_int_equal(c->interval_ms, 100);
	assert_null(why);
	config_free(c);
}

static void test_values(void **state)
{
	struct config *c = good(
		"socket = \"/s\"; interval_ms = 10; lease_ms = 600000L; dry_run = true;\n"
		"on_exit = \"keep\"; policy_path = \"/a:/b\"; max_cpus = 0x10;\n"
		"log = { path = \"/\xc3\xa9.db\"; max_bytes = 10737418240L; required = TRUE; };\n"
		"control = { mode = \"660\"; group = \"adm\"; };\n"
		"default = { policy = \"static\"; params = { high = 5; on = true; "
		"r = \"g0\"; big = 5000000000L; neg = -3; }; dry_run = false; canary = 0.0625; };\n"
		"rules = ( { uid = 3000000000L; policy = \"p\"; canary = 1; },\n"
		" { program = \"cc*\"; uid = 7; policy = \"q\"; params = { a = 1; }; dry_run = "
		"true; } );\n"
		"// no newline");

	(void)state;
	assert_string_equal(c->socket, "/s");
	assert_int_equal(c->interval_ms, 10);
	assert_int_equal(c->lease_ms, 600000);
	assert_true(c->dry_run);
	assert_int_equal(c->on_exit, CONFIG_KEEP);
	assert_string_equal(c->policy_path, "/a:/b");
	assert_int_equal(c->max_cpus, 16);
	assert_string_equal(c->log.path, "/\xc3\xa9.db");
	assert_int_equal(c->log.max_bytes, 10737418240);
	assert_true(c->log.required);
	assert_int_equal(c->control.mode, 0660);
	assert_string_equal(c->control.group, "adm");
	assert_string_equal(c->def.policy, "static");
	assert_int_equal(c->def.n_params, 5);
	assert_string_equal(c->def.params[0].value, "5");
	assert_string_equal(c->def.params[1].value, "true");
	assert_string_equal(c->def.params[2].key, "r");
	assert_string_equal(c->def.params[2].value, "g0");
	assert_string_equal(c->def.params[3].value, "5000000000");
	assert_string_equal(c->def.params[4].value, "-3");
	assert_int_equal(c->def.params[4].line, 5);
	assert_int_equal(c->def.dry_run, 0);
	assert_int_equal(c->def.canary, 63);
	assert_int_equal(c->rules[0].canary, 1000);
	assert_int_equal(c->rules[1].canary, 0);
	assert_int_equal(c->n_rules, 2);
	assert_int_equal(c->rules[0].uid, 3000000000);
	assert_int_equal(c->rules[1].line, 7);
	assert_int_equal(c->rules[1].dry_run, 1);
	assert_int_equal(c->rules[0].dry_run, -1);
	config_free(c);
}

static void test_unknown_keys(void **state)
{
	(void)state;
	BAD("\nintervall_ms = 5;", "t.conf:2: unknown key intervall_ms; did you mean interval_ms?");
	BAD("log = {\n max_byte = 5; };", "t.conf:2: unknown key log.max_byte; did you mean "
					  "log.max_bytes?");
	BAD("max_bytes = 5;", "t.conf:1: unknown key max_bytes, there is log.max_bytes");
	BAD("zzzzzzzz = 5;", "t.conf:1: unknown key zzzzzzzz, allowed");
	BAD("rules = ( { policy = \"s\"; prog = \"x\"; } );", "unknown key rules.prog");
}

static void test_wrong_types(void **state)
{
	(void)state;
	BAD("interval_ms = \"5\";",
	    "t.conf:1: interval_ms is a string, allowed: a whole number, 10 "
	    ".. 60000 ms");
	BAD("interval_ms = 50.0;", "interval_ms is a number with a fraction or exponent");
	BAD("interval_ms = 5e1;", "interval_ms is a number with a fraction or exponent");
	BAD("interval_ms = true;", "interval_ms is a bool");
	BAD("interval_ms = [1];", "interval_ms is an array");
	BAD("interval_ms = (1);", "interval_ms is a list");
	BAD("dry_run = 1;", "dry_run is a whole number, allowed: true or false");
	BAD("socket = 1;", "socket is a whole number, allowed: a string of");
	BAD("log = 1;", "log is a whole number, allowed: a group");
	BAD("rules = {};", "rules is a group, allowed: a list of groups");
	BAD("rules = (1, 2);", "rules is a whole number", "rules is a whole number");
	BAD("default = { params = 5; };", "default.params is a whole number, allowed: a group");
	BAD("default = { params = { a = { }; b = 1.5; }; };", "default.params.a is a group",
	    "default.params.b is a number with a fraction");
	BAD("default = { dry_run = \"no\"; };", "default.dry_run is a string");
	BAD("default = { canary = \"0.5\"; };",
	    "default.canary is a string, allowed: a number, 0.0 .. 1.0");
	BAD("control = { mode = 600; };",
	    "control.mode is a whole number, allowed: a string, octal");
}

static void test_ranges(void **state)
{
	char text[8192], *p;

	(void)state;
	BAD("interval_ms = 9;",
	    "t.conf:1: interval_ms: 9 is out of range, allowed: a whole number, "
	    "10 .. 60000 ms");
	BAD("interval_ms = 60001;", "60001 is out of range");
	BAD("interval_ms = -5;", "-5 is out of range");
	BAD("log = { max_bytes = 1048575; };", "log.max_bytes: 1048575 is out of range, allowed: a "
					       "whole number, 1048576 .. 1099511627776 bytes");
	BAD("on_exit = \"Keep\";", "on_exit: \"Keep\" is not known, allowed: \"keep\" or "
				   "\"restore\"");
	BAD("control = { mode = \"0400\"; };", "control.mode: \"0400\"");
	BAD("control = { mode = \"1777\"; };", "control.mode: \"1777\"");
	BAD("control = { mode = \"0698\"; };", "control.mode: \"0698\"");
	BAD("control = { mode = \"\"; };", "control.mode: \"\"");
	BAD("default = { policy = \"\"; };", "default.policy has 0 bytes");
	BAD("default = { canary = 1.25; };",
	    "default.canary: 1.25 is out of range, allowed: a number");
	BAD("default = { canary = -0.5; };", "default.canary: -0.5 is out of range");
	BAD("default = { canary = 2; };", "default.canary: 2 is out of range");
	BAD("log = { path = \"~/x.db\"; };", "log.path: \"~/x.db\": ~ is not expanded");
	BAD("log = { enabled = false; required = true; };",
	    "log.required is true and log.enabled is");
	memset(text, 'a', sizeof(text));
	memcpy(text, "socket = \"", 10);
	p = text + 10 + 103;
	strcpy(p, "a\";");
	BAD(text, "socket has 104 bytes, allowed: a string of 0 .. 103 bytes");
	strcpy(p, "\";");
	config_free(good(text));
}

/* libconfig 1.5 would cut these without a word. */
static void test_numbers_that_would_be_cut(void **state)
{
	(void)state;
	BAD("interval_ms = 4294967396;",
	    "t.conf:1: number 4294967396 does not fit 32 bits, allowed: "
	    "4294967396L");
	BAD("log = {\n max_bytes = 10737418240;\n};",
	    "t.conf:2: number 10737418240 does not fit 32 bits, allowed: 10737418240L");
	BAD("interval_ms = 0x100000064;", "number 0x100000064 does not fit 32 bits");
	BAD("interval_ms = 0xffffffff;", "number 0xffffffff does not fit 32 bits");
	BAD("interval_ms = 99999999999999999999;", "does not fit 64 bits");
	BAD("interval_ms = 99999999999999999999L;", "does not fit 64 bits");
	BAD("default = { params = { high = 4294967297; }; };", "does not fit 32 bits");
	BAD("interval_ms = -2147483649;", "number -2147483649 does not fit 32 bits");
	BAD("interval_ms = -2147483648;", "interval_ms: -2147483648 is out of range");
	/* no numbers: names, strings, comments */
	config_free(good("# 99999999999999999999\nsocket = \"99999999999999999999\";\n"
			 "default = { params = { a99999999999999999999 = 1; }; };"));
}

static void test_syntax(void **state)
{
	(void)state;
	BAD("interval_ms = ;", "t.conf:1: syntax error");
	BAD("\n\ninterval_ms = 100;\ndry_run = tru;\n", "t.conf:4: syntax error at or before "
							"\"dry_run = tru;\"");
	BAD("log = { chunk_ms = 5;\nchunk_ms = 6; };",
	    "t.conf:2: duplicate key at \"chunk_ms = 6;");
	BAD("dry_run = true;\ndry_run = true;", "t.conf:2: duplicate key at \"dry_run = true;");
	BAD("log = {", "t.conf:");
	BAD("/* never\nends", "t.conf:1: comment begins here and never ends");
	BAD("\nsocket = \"never\nends;", "t.conf:2: string begins here and never ends");
	BAD("\n\xc3\xa9 = 5;\n", "t.conf:2: byte 0xc3 outside of strings and comments");
	BAD("\xef\xbb\xbfinterval_ms = 100;", "t.conf:1: byte 0xef outside");
	BAD("socket = \"\n\xff\";", "t.conf:2: byte 0xff in a string");
	BAD("socket = \"a\\x00b\";", "makes a NUL in a string");
	config_free(good("interval_ms = 100\r\ndry_run = true\r\n"));
	config_free(good("# \xc3\xa9 in a comment\n/* \xff */\ninterval_ms: 100"));
}

static void test_all_errors_at_once(void **state)
{
	(void)state;
	BAD("intervall_ms = 5;\nsettle_ms = -1;\nlog = { chunk_ms = 10737418240; path = 3; };\n"
	    "rules = ( { program = \"x\"; }, { policy = \"p\"; }, { uid = 1; policy = \"p\"; } );",
	    "t.conf:1: unknown", "t.conf:2: settle_ms", "t.conf:3: number", "t.conf:3: log.path",
	    "t.conf:4: rule without a policy",
	    "t.conf:4: rule can never match: the rule of t.conf:4");
}

/* The cause of a file that must be refused with r. */
static char *refused(const char *file, int r)
{
	struct config *c = NULL;
	char *why = NULL;

	assert_int_equal(config_load(file, &c, &why), r);
	assert_null(c);
	assert_non_null(why);
	return why;
}

static void expect_refused(const char *file, int r, const char *part)
{
	char *why = refused(file, r);

	if (!strstr(why, part))
		fail_msg("\"%s\" is not in:\n%s", part, why);
	free(why);
}

static void test_files(void **state)
{
	struct config *c = NULL;
	char *why = NULL, path[300];
	const char *f;

	(void)state;
	snprintf(path, sizeof(path), "%s/none.conf", dir);
	expect_refused(path, -ENOENT, "none.conf: does not exist");
	expect_refused(dir, -EISDIR, "is a directory");
	f = file_with("empty.conf", "");
	assert_int_equal(config_load(f, &c, &why), 0);
	assert_string_equal(c->file, f);
	config_free(c);
	f = file_with("secret.conf", "");
	assert_int_equal(chmod(f, 0), 0);
	if (geteuid() != 0)
		expect_refused(f, -EACCES, "permission denied");
	snprintf(path, sizeof(path), "%s/big.conf", dir);
	file_with("big.conf", "x");
	assert_int_equal(truncate(path, (1 << 20) + 1), 0);
	expect_refused(path, -EFBIG, "larger than 1 MiB");
	assert_int_equal(truncate(path, 3), 0); /* x and two NULs */
	expect_refused(path, -EINVAL, "big.conf:1: byte 0x00");
}

static void test_includes(void **state)
{
	struct config *c = NULL;
	char *why = NULL, sub[200];
	const char *f;

	(void)state;
	snprintf(sub, sizeof(sub), "%s/sub", dir);
	assert_int_equal(mkdir(sub, 0700), 0);
	file_with("sub/inner.conf", "\nsettle_ms = 7;");
	file_with("sub/outer.conf", "@include \"inner.conf\"\nlease_ms = 700;\n");
	f = file_with("main.conf", "  @include \"sub/outer.conf\" interval_ms = 70;\n"
				   "log = {\n@include \"log.inc\"\n};\n# @include \"none\"\n");
	file_with("log.inc", "chunk_ms = 77; // end");
	assert_int_equal(config_load(f, &c, &why), 0);
	assert_int_equal(c->settle_ms, 7);
	assert_int_equal(c->lease_ms, 700);
	assert_int_equal(c->interval_ms, 70);
	assert_int_equal(c->log.chunk_ms, 77);
	config_free(c);

	file_with("sub/inner.conf", "\nsettle_ms = -7;");
	file_with("log.inc", "\n\nchunk = 77;");
	why = refused(f, -EINVAL);
	assert_non_null(strstr(why, "/sub/inner.conf:2: settle_ms: -7"));
	assert_non_null(strstr(why, "/log.inc:3: unknown key log.chunk"));
	free(why);
	file_with("sub/inner.conf", "settle_ms = 7;");
	file_with("log.inc", "");
	f = file_with("main.conf", "@include \"sub/outer.conf\"\n\ninterval = 5;\n");
	expect_refused(f, -EINVAL, "/main.conf:3: unknown key interval;");
	f = file_with("main.conf", "\n@include \"gone.conf\"\n");
	expect_refused(f, -EINVAL, "/main.conf:2: include file ");
	f = file_with("main.conf", "@include \"sub\"\n");
	expect_refused(f, -EINVAL, "is a directory");
	f = file_with("main.conf", "@include \"main.conf\"\n");
	expect_refused(f, -EINVAL, "includes nested too deep");
	f = file_with("main.conf", "@include main.conf\n");
	expect_refused(f, -EINVAL, "main.conf:1: @include not understood");
	f = file_with("main.conf", "dry_run = true; @include \"x\"\n");
	expect_refused(f, -EINVAL, "main.conf:1: @include not understood");
	f = file_with("main.conf", "@include \"x\n");
	expect_refused(f, -EINVAL, "main.conf:1: @include not understood");
}

static void test_match(void **state)
{
	struct config *c = good("rules = ( { program = \"redis*\"; policy = \"a\"; },\n"
				"{ uid = 5; policy = \"b\"; },\n"
				"{ program = \"[xy]?\"; uid = 6; policy = \"c\"; } );");
	int i = 9;

	(void)state;
	assert_string_equal(config_match(c, "redis-server", 5, &i)->policy, "a");
	assert_int_equal(i, 0);
	assert_string_equal(config_match(c, "sqlite3", 5, &i)->policy, "b");
	assert_int_equal(i, 1);
	assert_string_equal(config_match(c, "y1", 6, &i)->policy, "c");
	assert_int_equal(i, 2);
	assert_string_equal(config_match(c, "z1", 6, &i)->policy, "contention");
	assert_int_equal(i, -1);
	config_free(c);
}

static void test_reloadable(void **state)
{
	static const char *const fixed[][2] = {
		{"socket = \"/other\";", "socket"},
		{"interval_ms = 50;", "interval_ms"},
		{"log = { path = \"/other\"; };", "log.path"},
		{"log = { full_sync = true; };", "log.full_sync"},
		{"control = { group = \"adm\"; };", "control.group"},
		{"control = { mode = \"0660\"; };", "control.mode"},
	};
	struct config *a = good(""), *b;
	const char *key = NULL;

	(void)state;
	b = good("dry_run = true; settle_ms = 5; on_exit = \"keep\"; policy_path = \"/x\";"
		 "default = { policy = \"static\"; }; rules = ( { policy = \"x\"; } );"
		 "log = { max_bytes = 2000000; };");
	assert_int_equal(config_reloadable(a, b, &key), 0);
	assert_null(key);
	config_free(b);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
		b = good(fixed[i][0]);
		assert_int_equal(config_reloadable(a, b, &key), -EINVAL);
		assert_string_equal(key, fixed[i][1]);
		config_free(b);
	}
	config_free(a);
}

static void expect_place(char *got, const char *want)
{
	assert_non_null(got);
	assert_string_equal(got, want);
	free(got);
}

static void test_places(void **state)
{
	bool root = geteuid() == 0;
	char want[64];

	(void)state;
	unsetenv("PCPTUNE_SOCKET");
	setenv("XDG_RUNTIME_DIR", "/run/me", 1);
	expect_place(config_default_socket(), root ? "/run/pcptune/sock" : "/run/me/pcptune/sock");
	setenv("XDG_RUNTIME_DIR", "not/absolute", 1);
	snprintf(want, sizeof(want), "/tmp/pcptune-%u/sock", (unsigned)geteuid());
	expect_place(config_default_socket(), root ? "/run/pcptune/sock" : want);
	setenv("PCPTUNE_SOCKET", "/x/y", 1);
	expect_place(config_default_socket(), "/x/y");
	unsetenv("PCPTUNE_SOCKET");
	setenv("XDG_STATE_HOME", "/st", 1);
	expect_place(config_default_log(),
		     root ? "/var/lib/pcptune/pcptuned.db" : "/st/pcptune/pcptuned.db");
	unsetenv("XDG_STATE_HOME");
	setenv("HOME", "/h", 1);
	expect_place(config_default_log(),
		     root ? "/var/lib/pcptune/pcptuned.db" : "/h/.local/state/pcptune/pcptuned.db");
	expect_place(config_control_socket("/a/b"), "/a/b.ctl");
}

/* A locale that writes 0,5: nothing may read or print differently. */
static void test_decimal_comma(void **state)
{
	struct config *c = NULL;
	char cmd[400], *why = NULL;

	(void)state;
	snprintf(cmd, sizeof(cmd), "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1",
		 dir);
	if (system(cmd) == -1)
		skip();
	setenv("LOCPATH", dir, 1);
	if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
		unsetenv("LOCPATH");
		skip();
	}
	assert_string_equal(localeconv()->decimal_point, ",");
	c = good("interval_ms = 5000; log = { max_bytes = 10737418240L; }; "
		 "default = { canary = 0.25; };");
	assert_int_equal(c->interval_ms, 5000);
	assert_int_equal(c->def.canary, 250);
	assert_int_equal(c->log.max_bytes, 10737418240);
	config_free(c);
	assert_int_equal(config_parse("interval_ms = 70000;", "t", &c, &why), -EINVAL);
	assert_string_equal(why,
			    "t:1: interval_ms: 70000 is out of range, allowed: a whole number, "
			    "10 .. 60000 ms\n");
	free(why);
	BAD("interval_ms = 50.5;", "fraction");
	setlocale(LC_ALL, "C");
	unsetenv("LOCPATH");
}

/* Fails the n-th allocation, for each n until none fails. */
static void fail_each(const char *text, int r_end)
{
	for (long n = 0; n < 10000; n++) {
		struct config *c = NULL;
		char *why = NULL;
		int r;

		config_fail_in = n;
		r = config_parse(text, "t.conf", &c, &why);
		if (config_fail_in >= 0) {
			config_fail_in = -1;
			assert_true(n > 3);
			assert_int_equal(r, r_end);
			config_free(c);
			free(why);
			return;
		}
		if (r != -ENOMEM)
			fail_msg("allocation %ld failed and the result is %d", n, r);
		assert_null(c);
		free(why);
	}
	fail_msg("no end");
}

static void test_out_of_memory(void **state)
{
	const char *f = file_with("oom.inc", "settle_ms = 3;");
	char text[600];

	(void)state;
	snprintf(
		text, sizeof(text),
		"@include \"%s\"\nsocket = \"/s\"; control = { group = \"g\"; };\n"
		"rules = ( { program = \"p\"; policy = \"q\"; params = { a = 1; b = \"x\"; }; } );",
		f);
	fail_each(text, 0);
	fail_each("a = 1; b = 2; interval_ms = 9;", -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_builtin),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_unknown_keys),
		cmocka_unit_test(test_wrong_types),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_numbers_that_would_be_cut),
		cmocka_unit_test(test_syntax),
		cmocka_unit_test(test_all_errors_at_once),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_includes),
		cmocka_unit_test(test_match),
		cmocka_unit_test(test_reloadable),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_decimal_comma),
		cmocka_unit_test(test_out_of_memory),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
