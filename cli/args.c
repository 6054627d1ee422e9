/* SPDX-License-Identifier: MIT */
/*
 * Command lines: reads the options of one verb by its table.
 *
 * Options and words may come in any order, "--" ends the options, and a verb that is followed by
 * a command line of its own (`run`) ends them at the first word. A value that begins with a dash
 * is a value ("--since -10m"). What is not an option of the verb is refused with the nearest name,
 * before anything is done.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <time.h>
#include "lib/text.h"

int cli_set_flag(void *field, const char *value, char *why)
{
	(void)value;
	(void)why;
	*(bool *)field = true;
	return 0;
}

int cli_set_string(void *field, const char *value, char *why)
{
	if (!value[0]) {
		snprintf(why, CLI_WHY, "a text of at least one character");
		return -EINVAL;
	}
	*(const char **)field = value;
	return 0;
}

int cli_set_list(void *field, const char *value, char *why)
{
	struct cli_list *list = field;

	if (list->n == CLI_MAX_LIST) {
		snprintf(why, CLI_WHY, "at most %u times", CLI_MAX_LIST);
		return -E2BIG;
	}
	list->item[list->n++] = value;
	return 0;
}

int cli_set_i64(void *field, const char *value, char *why)
{
	int64_t v;

	if (text_parse_i64(value, &v) || v < 0) {
		snprintf(why, CLI_WHY, "a whole number, 0 or more");
		return -EINVAL;
	}
	*(int64_t *)field = v;
	return 0;
}

int cli_set_size(void *field, const char *value, char *why)
{
	int64_t v;

	if (text_parse_size(value, &v)) {
		snprintf(why, CLI_WHY,
			 "a number of bytes, with k, m, g or t for multiples of 1024");
		return -EINVAL;
	}
	*(int64_t *)field = v;
	return 0;
}

int cli_set_time(void *field, const char *value, char *why)
{
	uint64_t us;

	if (cli_parse_time(value, logstamp_now().wall_us, &us)) {
		snprintf(why, CLI_WHY,
			 "a time such as -10m, 14:30, 2026-11-30 or \"2026-11-30 14:30:05\"");
		return -EINVAL;
	}
	*(uint64_t *)field = us;
	return 0;
}

/* ---- the walk over argv ---- */

struct walk {
	const struct cli_verb *verb;
	void *args;
	int argc, i; /* i: the word in hand */
	char **argv;
};

static const struct cli_option *by_name(const struct cli_verb *verb, const char *name, size_t len)
{
	const struct cli_option *o;

	for (o = verb->options; o->name; o++)
		if (strlen(o->name) == len && !memcmp(o->name, name, len))
			return o;
	return NULL;
}

static int unknown(const struct cli_verb *verb, const char *name, size_t len)
{
	const char *names[64], *near;
	char word[64];
	size_t n = 0;
	const struct cli_option *o;

	snprintf(word, sizeof(word), "%.*s", (int)(len < 63 ? len : 63), name);
	for (o = verb->options; o->name && n < 63; o++)
		names[n++] = o->name;
	names[n++] = "help";
	near = text_nearest(word, names, n);
	if (near)
		return cli_usage_error("no option --%s; did you mean --%s?", word, near);
	return cli_usage_error("no option --%s", word);
}

/* Whether a word can be the value that an option may, but need not have. */
static bool is_number(const char *word)
{
	return word && (isdigit((unsigned char)word[0]) || word[0] == '.') &&
	       word[strspn(word, "0123456789.")] == '\0';
}

/* value: what stands behind "=" or in the same word, NULL: nothing. Takes the next word if so. */
static int take(struct walk *w, const struct cli_option *o, const char *value)
{
	const char *next = w->i + 1 < w->argc ? w->argv[w->i + 1] : NULL;
	char why[CLI_WHY] = "";

	if (!o->arg && value)
		return cli_usage_error("--%s takes no value", o->name);
	if (o->arg && !value && (o->arg[0] != '[' || is_number(next))) {
		if (!next)
			return cli_usage_error("--%s needs a value: %s", o->name, o->arg);
		value = next;
		w->i++;
	}
	if (o->set((char *)w->args + o->field, value, why))
		return cli_usage_error("--%s \"%s\": not %s", o->name, value ? value : "", why);
	return -1;
}

static int long_option(struct walk *w, const char *name)
{
	const char *eq = strchr(name, '=');
	size_t len = eq ? (size_t)(eq - name) : strlen(name);
	const struct cli_option *o = by_name(w->verb, name, len);

	if (o)
		return take(w, o, eq ? eq + 1 : NULL);
	if (len == 4 && !memcmp(name, "help", 4)) {
		cli_print_usage(w->verb, stdout);
		return CLI_OK;
	}
	return unknown(w->verb, name, len);
}

static int short_options(struct walk *w, const char *letters)
{
	const struct cli_option *o;
	int r;

	for (; *letters; letters++) {
		for (o = w->verb->options; o->name && o->letter != *letters; o++)
			;
		if (!o->name && *letters == 'h') {
			cli_print_usage(w->verb, stdout);
			return CLI_OK;
		}
		if (!o->name)
			return cli_usage_error("no option -%c", *letters);
		r = take(w, o, o->arg && letters[1] ? letters + 1 : NULL);
		if (r >= 0 || o->arg)
			return r;
	}
	return -1;
}

static int check_rest(const struct cli_verb *verb, int n, int min, int max, char **words)
{
	if (n < min)
		return cli_usage_error("missing: %s", verb->args);
	if (max >= 0 && n > max)
		return cli_usage_error("\"%s\" is one word too many", words[max]);
	return -1;
}

int cli_parse(int argc, char **argv, void *args, int min, int max, struct cli_rest *rest)
{
	struct walk w = {cli_verb_find(argv[0]), args, argc, 1, argv};
	bool words_only = false;
	int n = 0, r;

	rest->marked = false;

	for (; w.i < argc; w.i++) {
		char *word = argv[w.i];

		if (words_only || word[0] != '-' || !word[1]) {
			argv[1 + n++] = word;
			words_only = words_only || w.verb->stop;
			continue;
		}
		if (!strcmp(word, "--")) {
			rest->marked = !n;
			words_only = true;
			continue;
		}
		r = word[1] == '-' ? long_option(&w, word + 2) : short_options(&w, word + 1);
		if (r >= 0)
			return r;
	}
	rest->argc = n;
	rest->argv = argv + 1;
	argv[1 + n] = n + 1 < argc ? NULL : argv[1 + n];
	return check_rest(w.verb, n, min, max, rest->argv);
}
