/* SPDX-License-Identifier: MIT */
/*
 * The settings that the allocator takes from the environment (settings.def), for it and for those
 * who start programs with it: what a value means, and what is wrong with one that means nothing.
 *
 * A library does not complain on somebody's standard error. So what it does not understand counts
 * as left out, is counted (`settings_refused`), and is told to who asks: pcpa_refused_setting() in
 * the program, `pcptune run` and `record` before they start it.
 *
 * Everything here is pure but for the environment that it is given, allocates nothing, and may be
 * called from any thread.
 */
#ifndef PCPTUNE_SETTINGS_H
#define PCPTUNE_SETTINGS_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pcptune/rules.h>
#include <pcptune/segment.h>

#define PCPTUNE_SETTING_PREFIX "PCPALLOC_"

enum pcptune_setting_id {
#define PCPTUNE_SETTING(name, kind, least, most, words, what) PCPTUNE_SET_##name,
#include <pcptune/settings.def>
	PCPTUNE_SETTINGS
};

enum pcptune_setting_kind {
	PCPTUNE_SETTING_NUMBER,
	PCPTUNE_SETTING_WORD,
	PCPTUNE_SETTING_RULES,
	PCPTUNE_SETTING_PATH
};

struct pcptune_setting {
	const char *name; /* as in the environment */
	enum pcptune_setting_kind kind;
	uint64_t least, most;
	const char *words;
	const char *what;
};

static const struct pcptune_setting pcptune_settings[PCPTUNE_SETTINGS] = {
#define PCPTUNE_SETTING(name, kind, least, most, words, what) \
	{PCPTUNE_SETTING_PREFIX #name, PCPTUNE_SETTING_##kind, least, most, words, what},
#include <pcptune/settings.def>
};

/* A number with an optional k, m, g or t. */
static inline bool pcptune_setting_number(const struct pcptune_setting *s, const char *text,
					  uint64_t *ret_value)
{
	static const char units[] = "kmgt";
	int before = errno;
	unsigned long long v;
	bool fits;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	fits = !errno;
	errno = before;
	for (unsigned i = 0; fits && units[i] && *end; i++) {
		if ((*end | 0x20) != units[i])
			continue;
		fits = !(v >> (54 - 10 * i));
		v <<= 10 * (i + 1);
		end++;
		break;
	}
	if (!fits || *end || v < s->least || v > s->most)
		return false;
	*ret_value = v;
	return true;
}

/* The place of a word in the words of a row. */
static inline bool pcptune_setting_word(const struct pcptune_setting *s, const char *text,
					uint64_t *ret_value)
{
	const char *at = s->words;
	uint64_t place = 0;

	for (; *at; place++) {
		size_t length = strcspn(at, " ");

		if (strlen(text) == length && !memcmp(at, text, length)) {
			*ret_value = place;
			return true;
		}
		at += length;
		at += *at == ' ';
	}
	return false;
}

/*
 * The value of a row's text; 0 for a path. false, and *ret_value is as it was: it means nothing.
 */
static inline bool pcptune_setting_parse(enum pcptune_setting_id id, const char *text,
					 uint64_t *ret_value)
{
	const struct pcptune_setting *s = &pcptune_settings[id];
	uint32_t rules;

	switch (s->kind) {
	case PCPTUNE_SETTING_NUMBER:
		return pcptune_setting_number(s, text, ret_value);
	case PCPTUNE_SETTING_WORD:
		return pcptune_setting_word(s, text, ret_value);
	case PCPTUNE_SETTING_RULES:
		if (!pcptune_rules_parse(text, &rules))
			return false;
		*ret_value = rules;
		return true;
	case PCPTUNE_SETTING_PATH:
		*ret_value = 0;
		return true;
	}
	return false;
}

/* The same, or `otherwise` where nothing is said (NULL) or it means nothing. */
static inline uint64_t pcptune_setting_or(enum pcptune_setting_id id, const char *text,
					  uint64_t otherwise)
{
	uint64_t value = otherwise;

	if (text)
		pcptune_setting_parse(id, text, &value);
	return value;
}

/* The row of "NAME=value"; PCPTUNE_SETTINGS: there is none. */
static inline enum pcptune_setting_id pcptune_setting_find(const char *entry)
{
	size_t length = strcspn(entry, "=");
	unsigned id = 0;

	while (id < PCPTUNE_SETTINGS && (strlen(pcptune_settings[id].name) != length ||
					 memcmp(pcptune_settings[id].name, entry, length)))
		id++;
	return (enum pcptune_setting_id)id;
}

/* Is this entry of an environment meant for the allocator, and not understood? */
static inline bool pcptune_setting_is_bad(const char *entry)
{
	enum pcptune_setting_id id;
	uint64_t value;

	if (strncmp(entry, PCPTUNE_SETTING_PREFIX, strlen(PCPTUNE_SETTING_PREFIX)))
		return false;
	id = pcptune_setting_find(entry);
	return id == PCPTUNE_SETTINGS ||
	       !pcptune_setting_parse(id, strchr(entry, '=') ? strchr(entry, '=') + 1 : "", &value);
}

/* What is wrong with such an entry and what would be right, as one line without an end. */
static inline void pcptune_setting_explain(const char *entry, char *ret_text, size_t size)
{
	enum pcptune_setting_id id = pcptune_setting_find(entry);
	const struct pcptune_setting *s = &pcptune_settings[id < PCPTUNE_SETTINGS ? id : 0];

	if (id == PCPTUNE_SETTINGS)
		snprintf(ret_text, size, "%.80s: there is no such setting, see pcpalloc(3)", entry);
	else if (s->kind == PCPTUNE_SETTING_NUMBER)
		snprintf(ret_text, size, "%.80s: not a number from %" PRIu64 " to %" PRIu64 " (%s)",
			 entry, s->least, s->most, s->what);
	else if (s->kind == PCPTUNE_SETTING_RULES)
		snprintf(ret_text, size,
			 "%.80s: not a generation of the list rules (g0 to g6, gx; `pcptune "
			 "policies --generations` lists all)",
			 entry);
	else
		snprintf(ret_text, size, "%.80s: not one of: %s (%s)", entry, s->words, s->what);
}

/*
 * How many entries of an environment (NULL at its end) are meant for the allocator and not
 * understood; *ret_first, if not NULL, is the first, or NULL.
 */
static inline unsigned pcptune_settings_refused(char *const *env, const char **ret_first)
{
	unsigned n = 0;

	if (ret_first)
		*ret_first = NULL;
	for (; env && *env; env++) {
		if (!pcptune_setting_is_bad(*env))
			continue;
		if (!n++ && ret_first)
			*ret_first = *env;
	}
	return n;
}

#endif
