/* SPDX-License-Identifier: MIT */
/*
 * Any text as a configuration: it is taken, with every value in its range, or refused with reasons
 * that are lines "file:line: ...".
 */
#include <string.h>
#include "lib/config.h"
#include "tests/fuzz/seeds.h"

/*
 * libconfig loses the text of a string in front of a syntax error (64 bytes a failed parse). That
 * is its own; leaks of our code have no frame in it.
 */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig.so\n";
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char rules[] =
		"interval_ms = 50;\nlog = { enabled = false; max_bytes = 1048576L; };\n"
		"default = { policy = \"kernel\"; params = { rules = \"g4\"; }; };\n"
		"rules = ( { program = \"redis*\"; policy = \"contention\"; },\n"
		"  { uid = 1000; policy = \"static\"; dry_run = true; } );\n";
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);

	(void)argc;
	(void)argv;
	MUST(out);
	config_print_sample(out);
	MUST(fclose(out) == 0);
	seed_write("sample", text, n, NULL, 0);
	seed_write("rules", rules, sizeof(rules) - 1, NULL, 0);
	free(text);
	return 0;
}

static void must_be_usable(const struct config *c)
{
	int i = -2;

	MUST(c->interval_ms > 0 && c->max_targets > 0 && c->max_cpus > 0);
	MUST(config_match(c, "redis-server", 1000, &i));
	MUST(i >= -1 && i < (int64_t)c->n_rules);
	MUST(c->def.policy);
	for (size_t k = 0; k < c->n_rules; k++)
		MUST(c->rules[k].policy && c->rules[k].dry_run >= -1 && c->rules[k].dry_run <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *why = NULL;
	struct config *c = NULL;
	const char *key = NULL;
	int r;

	MUST(text);
	memcpy(text, data, size);
	text[size] = 0;
	/* an include would read files that the corpus has not; its own tests are in test_config */
	if (!strstr(text, "@include")) {
		r = config_parse(text, "fuzz.conf", &c, &why);
		MUST(r == 0 ? c != NULL : c == NULL && why && why[0]);
		if (!r) {
			must_be_usable(c);
			MUST(config_reloadable(c, c, &key) == 0);
		}
		config_free(c);
		free(why);
	}
	free(text);
	return 0;
}
