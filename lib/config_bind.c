/* SPDX-License-Identifier: MIT */
/*
 * Binding: walks the tree that libconfig made of the text and stores each value where the row of
 * its key says. Every error is collected; the walk goes on behind it, so that a file with five
 * mistakes is mended in one round.
 *
 * No state is shared: everything hangs on the struct binder of one call.
 */
#include <errno.h>
#include <inttypes.h>
#include <libconfig.h>
#include <stdlib.h>
#include <string.h>
#include "lib/config_private.h"
#include "lib/text.h"

struct binder {
	struct config *c;
	const struct config_source *src;
	struct config_errors *e;
};

static const struct config_line *where(const struct binder *b, const config_setting_t *s)
{
	return config_source_line(b->src, (int)config_setting_source_line(s));
}

static const char *type_text(const config_setting_t *s)
{
	switch (config_setting_type(s)) {
	case CONFIG_TYPE_GROUP:
		return "a group";
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64:
		return "a whole number";
	case CONFIG_TYPE_FLOAT:
		return "a number with a fraction or exponent";
	case CONFIG_TYPE_STRING:
		return "a string";
	case CONFIG_TYPE_BOOL:
		return "a bool";
	case CONFIG_TYPE_ARRAY:
		return "an array";
	default:
		return "a list";
	}
}

static void wrong_type(struct binder *b, const struct config_key *k, const config_setting_t *s)
{
	const struct config_line *l = where(b, s);
	char range[256];

	config_error_add(b->e, l->file, l->line, "%s is %s, allowed: %s", k->name, type_text(s),
			 config_range_text(k, range, sizeof(range)));
}

static bool is_int(const config_setting_t *s)
{
	return config_setting_type(s) == CONFIG_TYPE_INT ||
	       config_setting_type(s) == CONFIG_TYPE_INT64;
}

/* config_setting_get_int64() gives 0 for a 32-bit number, so ask by type. */
static int64_t get_int(const config_setting_t *s)
{
	return config_setting_type(s) == CONFIG_TYPE_INT ? config_setting_get_int(s)
							 : config_setting_get_int64(s);
}

/* ---- one value ---- */

static void bind_int(struct binder *b, const struct config_key *k, config_setting_t *s, void *base)
{
	const struct config_line *l = where(b, s);
	char range[256];
	int64_t v;

	if (!is_int(s)) {
		wrong_type(b, k, s);
		return;
	}
	if (l->bad_int)
		return; /* reported by the scanner; the value here is cut */
	v = get_int(s);
	if (v < k->min || v > k->max)
		config_error_add(b->e, l->file, l->line,
				 "%s: %" PRId64 " is out of range, allowed: %s", k->name, v,
				 config_range_text(k, range, sizeof(range)));
	else
		config_store_int(k, base, v);
}

/* To the nearest permille; 0 and 1 may be written as whole numbers. */
static void bind_share(struct binder *b, const struct config_key *k, config_setting_t *s,
		       void *base)
{
	const struct config_line *l = where(b, s);
	char range[256];
	double v;

	if (!is_int(s) && config_setting_type(s) != CONFIG_TYPE_FLOAT) {
		wrong_type(b, k, s);
		return;
	}
	if (l->bad_int)
		return;
	v = is_int(s) ? (double)get_int(s) : config_setting_get_float(s);
	if (v >= 0 && v <= 1)
		config_store_int(k, base, (int64_t)(v * 1000 + 0.5));
	else
		config_error_add(b->e, l->file, l->line, "%s: %g is out of range, allowed: %s",
				 k->name, v, config_range_text(k, range, sizeof(range)));
}

static void bind_bool(struct binder *b, const struct config_key *k, config_setting_t *s, void *base)
{
	if (config_setting_type(s) != CONFIG_TYPE_BOOL)
		wrong_type(b, k, s);
	else
		config_store_int(k, base, config_setting_get_bool(s) ? 1 : 0);
}

static int64_t choice_index(const struct config_key *k, const char *word)
{
	for (int64_t i = 0; k->choices[i]; i++)
		if (strcmp(k->choices[i], word) == 0)
			return i;
	return -1;
}

static void bind_word(struct binder *b, const struct config_key *k, config_setting_t *s, void *base)
{
	const struct config_line *l = where(b, s);
	char range[256];
	const char *word;
	int64_t v = -1;

	if (config_setting_type(s) != CONFIG_TYPE_STRING) {
		wrong_type(b, k, s);
		return;
	}
	word = config_setting_get_string(s);
	if (k->type == CONFIG_ENUM)
		v = choice_index(k, word);
	else if (config_parse_mode(word, &v) < 0 || v < k->min || v > k->max ||
		 (v & k->min) != k->min)
		v = -1;
	if (v < 0)
		config_error_add(b->e, l->file, l->line, "%s: \"%s\" is not known, allowed: %s",
				 k->name, word, config_range_text(k, range, sizeof(range)));
	else
		config_store_int(k, base, v);
}

static int bind_string(struct binder *b, const struct config_key *k, config_setting_t *s,
		       void *base)
{
	const struct config_line *l = where(b, s);
	char range[256];
	const char *v;
	int64_t n;

	if (config_setting_type(s) != CONFIG_TYPE_STRING) {
		wrong_type(b, k, s);
		return 0;
	}
	v = config_setting_get_string(s);
	n = (int64_t)strlen(v);
	if (n < k->min || n > k->max)
		config_error_add(b->e, l->file, l->line, "%s has %" PRId64 " bytes, allowed: %s",
				 k->name, n, config_range_text(k, range, sizeof(range)));
	else if (v[0] == '~')
		config_error_add(b->e, l->file, l->line,
				 "%s: \"%s\": ~ is not expanded, allowed: the path written out",
				 k->name, v);
	else
		return config_store_string(k, base, v);
	return 0;
}

/* ---- params ---- */

/* The text of a parameter; NULL with *ret_r: -ENOMEM, or 0 after an error was collected. */
static char *param_text(struct binder *b, const config_setting_t *s, const char *owner, int *ret_r)
{
	const struct config_line *l = where(b, s);
	char number[32];
	char *text;

	*ret_r = 0;
	if (is_int(s)) {
		snprintf(number, sizeof(number), "%" PRId64, get_int(s));
		text = l->bad_int ? NULL : config_strdup(number);
		*ret_r = text || l->bad_int ? 0 : -ENOMEM;
		return text;
	}
	if (config_setting_type(s) == CONFIG_TYPE_BOOL)
		text = config_strdup(config_setting_get_bool(s) ? "true" : "false");
	else if (config_setting_type(s) == CONFIG_TYPE_STRING)
		text = config_strdup(config_setting_get_string(s));
	else {
		config_error_add(b->e, l->file, l->line,
				 "%s.%s is %s, allowed: a whole number, a bool or a string", owner,
				 config_setting_name(s), type_text(s));
		return NULL;
	}
	*ret_r = text ? 0 : -ENOMEM;
	return text;
}

static int bind_param(struct binder *b, const struct config_key *k, config_setting_t *s,
		      struct config_rule *rule)
{
	struct config_param *list, *p;
	char *value;
	int r;

	value = param_text(b, s, k->name, &r);
	if (!value)
		return r;
	list = config_realloc(rule->params, (rule->n_params + 1) * sizeof(*list));
	if (list)
		rule->params = list;
	p = list ? &list[rule->n_params] : NULL;
	if (p)
		*p = (struct config_param){.key = config_strdup(config_setting_name(s)),
					   .value = value,
					   .line = where(b, s)->line};
	if (!p || !p->key) {
		free(value);
		return -ENOMEM;
	}
	rule->n_params++;
	return 0;
}

static int bind_params(struct binder *b, const struct config_key *k, config_setting_t *s,
		       struct config_rule *rule)
{
	int r = 0;

	if (!config_setting_is_group(s)) {
		wrong_type(b, k, s);
		return 0;
	}
	for (int i = 0; i < config_setting_length(s) && r == 0; i++)
		r = bind_param(b, k, config_setting_get_elem(s, (unsigned)i), rule);
	return r;
}

/* ---- groups ---- */

/* Is k directly in the group with this prefix ("", "log.", ...)? */
static bool key_in(const struct config_key *k, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(k->name, prefix, n) == 0 && !strchr(k->name + n, '.');
}

static void unknown_key(struct binder *b, const config_setting_t *s, const char *prefix)
{
	const char *word = config_setting_name(s), *near, *names[64];
	const struct config_line *l = where(b, s);
	size_t n = 0;

	for (size_t i = 0; i < config_n_keys; i++)
		if (key_in(&config_keys[i], prefix) && n < 64)
			names[n++] = config_keys[i].name + strlen(prefix);
	near = text_nearest(word, names, n);
	for (size_t i = 0; i < config_n_keys && !near; i++) {
		const char *dot = strrchr(config_keys[i].name, '.');

		if (strcmp(dot ? dot + 1 : config_keys[i].name, word) == 0) {
			config_error_add(
				b->e, l->file, l->line,
				"unknown key %s%s, there is %s: it stands in the wrong group",
				prefix, word, config_keys[i].name);
			return;
		}
	}
	if (near)
		config_error_add(b->e, l->file, l->line, "unknown key %s%s; did you mean %s%s?",
				 prefix, word, prefix, near);
	else
		config_error_add(b->e, l->file, l->line,
				 "unknown key %s%s, allowed: the keys of pcptuned.conf(5)", prefix,
				 word);
}

static int bind_rules(struct binder *b, const struct config_key *k, config_setting_t *s);
static int bind_group(struct binder *b, config_setting_t *group, const char *prefix, void *base);

static int bind_subgroup(struct binder *b, const struct config_key *k, config_setting_t *s,
			 void *base)
{
	const char *dot = strrchr(k->name, '.');
	char prefix[64];

	if (dot && strcmp(dot, ".params") == 0)
		return bind_params(b, k, s, base);
	if (strcmp(k->name, "rules") == 0)
		return bind_rules(b, k, s);
	if (!config_setting_is_group(s)) {
		wrong_type(b, k, s);
		return 0;
	}
	snprintf(prefix, sizeof(prefix), "%s.", k->name);
	if (strcmp(k->name, "default") == 0) {
		b->c->def.line = where(b, s)->line;
		base = &b->c->def;
	}
	return bind_group(b, s, prefix, base);
}

static int bind_value(struct binder *b, const struct config_key *k, config_setting_t *s, void *base)
{
	switch (k->type) {
	case CONFIG_INT:
		bind_int(b, k, s, base);
		return 0;
	case CONFIG_BOOL:
	case CONFIG_INHERIT:
		bind_bool(b, k, s, base);
		return 0;
	case CONFIG_SHARE:
		bind_share(b, k, s, base);
		return 0;
	case CONFIG_ENUM:
	case CONFIG_MODE:
		bind_word(b, k, s, base);
		return 0;
	case CONFIG_STRING:
		return bind_string(b, k, s, base);
	case CONFIG_GROUP:
		return bind_subgroup(b, k, s, base);
	}
	return 0;
}

static int bind_group(struct binder *b, config_setting_t *group, const char *prefix, void *base)
{
	char name[128];
	int r = 0;

	for (int i = 0; i < config_setting_length(group) && r == 0; i++) {
		config_setting_t *s = config_setting_get_elem(group, (unsigned)i);
		const struct config_key *k;

		snprintf(name, sizeof(name), "%s%s", prefix, config_setting_name(s));
		k = config_key_find(name);
		/* a dotted name is no name of libconfig's, so k is directly in this group */
		if (k)
			r = bind_value(b, k, s, base);
		else
			unknown_key(b, s, prefix);
	}
	return r;
}

/* ---- rules ---- */

static void check_rule(struct binder *b, const struct config_rule *rule, const config_setting_t *s,
		       const struct config_line **catch_all)
{
	const struct config_line *l = where(b, s);

	if (!rule->policy && !config_setting_get_member(s, "policy"))
		config_error_add(
			b->e, l->file, l->line,
			"rule without a policy, allowed: { program = ...; uid = ...; policy = "
			"\"NAME\"; ... }");
	if (*catch_all)
		config_error_add(b->e, l->file, l->line,
				 "rule can never match: the rule of %s:%d matches every program, "
				 "allowed: put that one last, or use `default`",
				 (*catch_all)->file, (*catch_all)->line);
	if (!*catch_all && !config_setting_get_member(s, "program") &&
	    !config_setting_get_member(s, "uid"))
		*catch_all = l;
}

static int bind_rule(struct binder *b, const struct config_key *k, config_setting_t *s,
		     const struct config_line **catch_all)
{
	struct config_rule *rules, *rule;
	int r;

	if (!config_setting_is_group(s)) {
		wrong_type(b, k, s);
		return 0;
	}
	rules = config_realloc(b->c->rules, (b->c->n_rules + 1) * sizeof(*rules));
	if (!rules)
		return -ENOMEM;
	b->c->rules = rules;
	rule = &rules[b->c->n_rules];
	r = config_rule_init(rule, "rules.");
	if (r < 0)
		return r;
	b->c->n_rules++;
	rule->line = where(b, s)->line;
	r = bind_group(b, s, "rules.", rule);
	if (r == 0)
		check_rule(b, rule, s, catch_all);
	return r;
}

static int bind_rules(struct binder *b, const struct config_key *k, config_setting_t *s)
{
	const struct config_line *catch_all = NULL;
	int r = 0;

	if (config_setting_type(s) != CONFIG_TYPE_LIST) {
		wrong_type(b, k, s);
		return 0;
	}
	for (int i = 0; i < config_setting_length(s) && r == 0; i++)
		r = bind_rule(b, k, config_setting_get_elem(s, (unsigned)i), &catch_all);
	return r;
}

/* ---- all ---- */

static void syntax_error(struct binder *b, const config_t *cfg)
{
	int flat = config_error_line(cfg);
	const struct config_line *l = config_source_line(b->src, flat);
	const char *p = b->src->text.s, *text = config_error_text(cfg);
	int len;

	for (int i = 1; i < flat && p; i++) {
		p = strchr(p, '\n');
		p = p ? p + 1 : NULL;
	}
	p = p ? p + strspn(p, " \t") : "";
	len = (int)strcspn(p, "\r\n");
	if (len > 60)
		len = 60;
	if (text && strstr(text, "duplicate"))
		config_error_add(b->e, l->file, l->line,
				 "duplicate key at \"%.*s\", allowed: each key once in its group",
				 len, p);
	else
		config_error_add(
			b->e, l->file, l->line,
			"%s at or before \"%.*s\", allowed: key = value; with values 5, 5L, "
			"true, \"text\", { } and ( )",
			text ? text : "syntax error", len, p);
}

/*
 * libconfig does not look whether it got the memory that it asked for, so whether there is enough
 * is asked before it: "a=1;" is the shortest of settings, and takes it 200 bytes.
 */
static bool enough_memory(size_t text_len)
{
	void *p = config_realloc(NULL, (64u << 10) + 64 * text_len);

	free(p);
	return p != NULL;
}

int config_bind(struct config *c, const struct config_source *s, struct config_errors *e)
{
	struct binder b = {.c = c, .src = s, .e = e};
	config_t cfg;
	int r = 0;

	if (!enough_memory(s->text.n))
		return -ENOMEM;
	config_init(&cfg);
	if (config_read_string(&cfg, s->text.s))
		r = bind_group(&b, config_root_setting(&cfg), "", c);
	else
		syntax_error(&b, &cfg);
	config_destroy(&cfg);
	return r;
}
