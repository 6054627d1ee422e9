/* SPDX-License-Identifier: MIT */
/*
 * Parameters and reasons as text: what people write into a configuration, what the log keeps,
 * what a decision says. All from the tables of the descriptor; nothing here knows a policy.
 *
 * The text of policy_params_text() is what the log holds, so policy_params_parse() reads back
 * every text it ever wrote: names of choices instead of their numbers, plain decimal integers.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "lib/text.h"
#include <pcptune/rules.h>
#include "policies/host_internal.h"

#define VALUE_MAX 64u

void policy_params_default(const struct policy_module *m, int64_t *params)
{
	for (uint32_t i = 0; i < policy_desc(m)->n_params; i++)
		params[i] = policy_param(m, i)->def;
	for (uint32_t i = 0; i < POLICY_HOST_PARAMS; i++)
		params[POLICY_OWN_PARAMS + i] = policy_host_param(i)->def;
}

static int find_param(const struct policy_module *m, const char *key, uint32_t *ret, char *why)
{
	const struct pcptune_policy *d = policy_desc(m);
	const char *names[POLICY_OWN_PARAMS], *near;

	for (uint32_t i = 0; i < d->n_params; i++) {
		names[i] = policy_param(m, i)->name;
		if (strcmp(names[i], key) == 0) {
			*ret = i;
			return 0;
		}
	}
	for (uint32_t i = 0; i < POLICY_HOST_PARAMS; i++) {
		if (strcmp(policy_host_param(i)->name, key) == 0) {
			*ret = POLICY_OWN_PARAMS + i;
			return 0;
		}
	}
	if (!d->n_params)
		return host_why(why, -EINVAL, "policy \"%s\" has no parameters", d->name);
	near = text_nearest(key, names, d->n_params);
	if (near)
		return host_why(why, -EINVAL,
				"policy \"%s\": no parameter \"%.40s\"; did you mean \"%s\"?",
				d->name, key, near);
	return host_why(why, -EINVAL,
			"policy \"%s\": no parameter \"%.40s\"; see `pcptune policies %s`", d->name,
			key, d->name);
}

static int parse_bool(const char *value, int64_t *ret)
{
	static const char *const yes[] = {"true", "yes", "on", "1"};
	static const char *const no[] = {"false", "no", "off", "0"};

	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (strcmp(value, yes[i]) == 0 || strcmp(value, no[i]) == 0) {
			*ret = strcmp(value, yes[i]) == 0;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_choice(const struct pcptune_param *p, const char *value, int64_t *ret)
{
	for (int64_t i = 0; p->choices[i]; i++) {
		if (strcmp(p->choices[i], value) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

static void allowed_text(const struct pcptune_param *p, char *buf, size_t n)
{
	size_t used = 0;

	if (p->type == PCPTUNE_PARAM_BOOL) {
		snprintf(buf, n, "true or false");
	} else if (p->type == PCPTUNE_PARAM_INT) {
		snprintf(buf, n, "%lld..%lld%s%s", (long long)p->min, (long long)p->max,
			 *p->unit ? " " : "", p->unit);
	} else {
		for (int64_t i = 0; p->choices[i] && used < n; i++)
			used += (size_t)snprintf(buf + used, n - used, "%s%s", i ? ", " : "",
						 p->choices[i]);
	}
}

int policy_params_set(const struct policy_module *m, int64_t *params, const char *key,
		      const char *value, char *why)
{
	const struct pcptune_param *p;
	char allowed[96];
	int64_t v = 0;
	uint32_t i = 0;
	int r;

	r = find_param(m, key, &i, why);
	if (r)
		return r;
	p = i < POLICY_OWN_PARAMS ? policy_param(m, i) : policy_host_param(i - POLICY_OWN_PARAMS);
	if (p->type == PCPTUNE_PARAM_BOOL)
		r = parse_bool(value, &v);
	else if (p->type == PCPTUNE_PARAM_ENUM)
		r = parse_choice(p, value, &v);
	else
		r = text_parse_i64(value, &v);
	if (!r && v >= p->min && v <= p->max) {
		params[i] = v;
		return 0;
	}
	allowed_text(p, allowed, sizeof(allowed));
	return host_why(why, r == -EINVAL ? r : -ERANGE,
			"policy \"%s\": %s = \"%.40s\" is not allowed; allowed: %s",
			policy_desc(m)->name, key, value, allowed);
}

static int value_text(const struct pcptune_param *p, int64_t v, char *buf, size_t n)
{
	if (p->type == PCPTUNE_PARAM_BOOL)
		return snprintf(buf, n, "%s", v ? "true" : "false");
	if (p->type == PCPTUNE_PARAM_ENUM && v >= p->min && v <= p->max)
		return snprintf(buf, n, "%s", p->choices[v]);
	return snprintf(buf, n, "%lld", (long long)v);
}

int policy_params_text(const struct policy_module *m, const int64_t *params, char *buf, size_t n)
{
	size_t used = 0;

	if (n)
		buf[0] = 0;
	for (uint32_t i = 0; i < policy_desc(m)->n_params; i++) {
		const struct pcptune_param *p = policy_param(m, i);
		char value[VALUE_MAX];

		value_text(p, params[i], value, sizeof(value));
		used += (size_t)snprintf(used < n ? buf + used : NULL, used < n ? n - used : 0,
					 "%s%s=%s", i ? " " : "", p->name, value);
	}
	for (uint32_t i = 0; i < POLICY_HOST_PARAMS; i++) {
		if (!policy_host_param_used(params, i))
			continue;
		used += (size_t)snprintf(used < n ? buf + used : NULL, used < n ? n - used : 0,
					 "%s%s=%lld", used ? " " : "", policy_host_param(i)->name,
					 (long long)params[POLICY_OWN_PARAMS + i]);
	}
	return (int)used;
}

/* One "key=value" of len bytes. */
static int parse_word(const struct policy_module *m, const char *word, size_t len, int64_t *params,
		      char *why)
{
	char copy[HOST_WORD_MAX + VALUE_MAX + 2], *eq;

	if (len >= sizeof(copy))
		return host_why(why, -EINVAL, "parameters: \"%.40s...\" is too long", word);
	memcpy(copy, word, len);
	copy[len] = 0;
	eq = strchr(copy, '=');
	if (!eq)
		return host_why(why, -EINVAL, "parameters: \"%.80s\" has no =; right is key=value",
				copy);
	*eq = 0;
	return policy_params_set(m, params, copy, eq + 1, why);
}

int policy_params_parse(const struct policy_module *m, const char *text, int64_t *params, char *why)
{
	int64_t read[POLICY_MAX_PARAMS];
	int r = 0;

	policy_params_default(m, read);
	while (!r) {
		size_t len;

		text += strspn(text, " ");
		if (!*text)
			break;
		len = strcspn(text, " ");
		r = parse_word(m, text, len, read, why);
		text += len;
	}
	if (!r)
		memcpy(params, read, sizeof(read));
	return r;
}

/* ---- sentences ---- */

enum unit {
	UNIT_NONE,
	UNIT_PAGES,
	UNIT_MS,
	UNIT_PERMILLE,
	UNIT_PPM,
	UNIT_RATE,
	UNIT_RULES,
	UNIT_BAD
};

struct placeholder {
	int arg; /* 0..3, 4: old, 5: new */
	enum unit unit;
	size_t len; /* with both braces */
};

static enum unit unit_of(const char *s, size_t len)
{
	static const char *const names[] = {"", "pages", "ms", "permille", "ppm", "rate", "rules"};

	for (enum unit u = UNIT_PAGES; u < UNIT_BAD; u++)
		if (strlen(names[u]) == len && memcmp(names[u], s, len) == 0)
			return u;
	return UNIT_BAD;
}

/* s is at a '{'. */
static bool parse_placeholder(const char *s, struct placeholder *ret)
{
	size_t end = strcspn(s, "}"), name = strcspn(s, ":}");

	if (s[end] != '}' || strcspn(s + 1, "{") < end - 1)
		return false;
	ret->len = end + 1;
	ret->unit = s[name] == ':' ? unit_of(s + name + 1, end - name - 1) : UNIT_NONE;
	if (name == 2 && s[1] >= 'a' && s[1] <= 'd')
		ret->arg = s[1] - 'a';
	else if (name == 4 && memcmp(s + 1, "old", 3) == 0)
		ret->arg = 4;
	else if (name == 4 && memcmp(s + 1, "new", 3) == 0)
		ret->arg = 5;
	else
		return false;
	return ret->unit != UNIT_BAD;
}

bool host_sentence_ok(const char *s)
{
	struct placeholder p;

	while (*s) {
		if (*s == '}')
			return false;
		if (*s == '{') {
			if (!parse_placeholder(s, &p))
				return false;
			s += p.len;
		} else {
			s++;
		}
	}
	return true;
}

/* Magnitude of a signed number, INT64_MIN included. */
static uint64_t magnitude(int64_t v)
{
	return v < 0 ? UINT64_C(0) - (uint64_t)v : (uint64_t)v;
}

/* v / 10^digits with the zeros at its end left out. */
static void fraction_text(uint64_t v, int digits, char *buf, size_t n)
{
	uint64_t scale = 1;
	char frac[24];
	int len;

	for (int i = 0; i < digits; i++)
		scale *= 10;
	len = snprintf(frac, sizeof(frac), "%0*llu", digits, (unsigned long long)(v % scale));
	while (len > 0 && frac[len - 1] == '0')
		frac[--len] = 0;
	snprintf(buf, n, "%llu%s%s", (unsigned long long)(v / scale), len ? "." : "", frac);
}

static void arg_text(int64_t v, enum unit unit, char *buf, size_t n)
{
	char num[64];
	uint64_t u = magnitude(v);

	switch (unit) {
	case UNIT_PAGES:
		text_pages(u, num, sizeof(num));
		break;
	case UNIT_MS:
		snprintf(num, sizeof(num), "%llu ms", (unsigned long long)u);
		break;
	case UNIT_PERMILLE:
		fraction_text(u, 1, num, sizeof(num) - 4);
		strcat(num, " %");
		break;
	case UNIT_PPM:
		fraction_text(u, 4, num, sizeof(num) - 4);
		strcat(num, " %");
		break;
	case UNIT_RATE:
		snprintf(num, sizeof(num), "%llu/s", (unsigned long long)u);
		break;
	case UNIT_RULES:
		snprintf(num, sizeof(num), "%s",
			 pcptune_rules_name(u <= PCPTUNE_RULES_MAX ? (uint32_t)u : UINT32_MAX));
		break;
	default:
		snprintf(num, sizeof(num), "%llu", (unsigned long long)u);
	}
	snprintf(buf, n, "%s%s", v < 0 ? "-" : "", num);
}

static void put(char *buf, size_t n, size_t *used, const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++, (*used)++)
		if (*used + 1 < n)
			buf[*used] = s[i];
}

int policy_sentence(const char *sentence, const int64_t arg[4], uint32_t old_high,
		    uint32_t new_high, char *buf, size_t n)
{
	struct placeholder p;
	char text[96];
	size_t used = 0;

	while (*sentence) {
		if (*sentence != '{' || !parse_placeholder(sentence, &p)) {
			put(buf, n, &used, sentence++, 1);
			continue;
		}
		arg_text(p.arg < 4    ? arg[p.arg]
			 : p.arg == 4 ? (int64_t)old_high
				      : (int64_t)new_high,
			 p.unit, text, sizeof(text));
		put(buf, n, &used, text, strlen(text));
		sentence += p.len;
	}
	if (n)
		buf[used < n ? used : n - 1] = 0;
	return (int)used;
}
