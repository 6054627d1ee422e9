/* SPDX-License-Identifier: MIT */
/*
 * SIGHUP. The new file is parsed, its policies loaded and its parameters tried before anything of
 * the old one is let go. A policy whose file was written anew is another policy: it takes over
 * where the old one ran, and where it can not be loaded, the old one goes on.
 *
 * A target is given a new policy only where the rules now choose something else for it than they
 * did before: neither a policy that the operator chose by hand, nor one that was benched, is
 * touched by a reload that does not concern it.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/assign.h"
#include "daemon/effect.h"
#include "daemon/journal.h"
#include "daemon/record.h"
#include "daemon/reload.h"
#include "daemon/say.h"
#include "daemon/target.h"

static void say_lines(const char *what, char *text)
{
	char *save, *line;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		say(LOG_ERR, "%s%s", what, line);
}

/* A reload under way: foreign policies are tried in their processes, while the loop goes on. */
struct reloading {
	struct daemon *d;
	struct config *config;
	struct choices *choices;
	bool again; /* another SIGHUP came: what was read may be old */
};

static void refuse(char *why)
{
	say_lines("not reloaded: ", why ? why : (char[]){"no memory"});
	free(why);
}

static bool read_config(struct daemon *d, struct config **ret)
{
	struct config *c;
	const char *key = "";
	char *why = NULL;

	if (daemon_config(&d->given, &c, &why) < 0) {
		refuse(why);
		return false;
	}
	if (config_reloadable(d->config, c, &key) != 0) {
		say(LOG_ERR, "not reloaded: %s: a change of %s needs a restart",
		    c->file ? c->file : "built-in", key);
		config_free(c);
		return false;
	}
	*ret = c;
	return true;
}

/* What the operator chose stays, and is loaded anew where its file was written anew. */
static bool renewed(struct target *t)
{
	char why[POLICY_WHY];
	int r = assign_renew(t, why);

	if (r < 0)
		say(LOG_ERR, "target %llu %s keeps its policy: %s", (unsigned long long)t->id,
		    t->info.name, why);
	return r > 0;
}

static bool choose_again(struct target *t)
{
	struct daemon *d = t->d;
	const struct choice *c = choices_match(d->choices, d->config, t->info.name, t->uid);
	char why[POLICY_WHY];

	if (choice_same(c, &t->configured)) {
		memcpy(t->configured.why, c->why, sizeof(c->why));
		return t->by_operator && renewed(t);
	}
	choice_clear(&t->configured);
	choice_copy(&t->configured, c);
	if (!t->by_operator && !t->benched && choice_same(c, &t->active)) {
		assign_cancel(t, "the rules choose the policy in force again");
		return false;
	}
	if (assign(t, c, false, why) < 0) {
		say(LOG_ERR, "target %llu %s keeps its policy: %s", (unsigned long long)t->id,
		    t->info.name, why);
		return false;
	}
	return true;
}

static void new_effects(struct daemon *d)
{
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];
		struct effects *e;

		if (effects_new(t->n, (uint32_t)d->config->log.effect_samples, &e) < 0)
			continue;
		effects_free(t->effects);
		t->effects = e;
	}
}

static bool log_options_differ(const struct config *a, const struct config *b)
{
	return a->log.max_bytes != b->log.max_bytes || a->log.full_sync != b->log.full_sync;
}

static void take_over(struct daemon *d, struct config *c, struct choices *choices)
{
	struct config *old = d->config;
	struct choices *old_choices = d->choices;
	size_t n = 0;

	d->config = c;
	d->choices = choices;
	if (log_options_differ(old, c))
		journal_reconfigure(d->journal);
	if (old->log.effect_samples != c->log.effect_samples)
		new_effects(d);
	for (size_t i = 0; i < d->n_targets; i++)
		recorder_retime(d->targets[i]);
	for (size_t i = 0; i < d->n_targets; i++)
		n += choose_again(d->targets[i]);
	targets_lease(d);
	journal_event(d->journal, NULL, "reloaded", "%s; %zu targets have a new policy",
		      c->file ? c->file : "built-in", n);
	say(LOG_NOTICE, "reloaded %s; %zu of %zu targets have a new policy",
	    c->file ? c->file : "the built-in configuration", n, d->n_targets);
	choices_free(old_choices);
	config_free(old);
}

static void finish(void *cookie)
{
	struct reloading *re = cookie;
	struct daemon *d = re->d;
	bool again = re->again;
	char *why = NULL;

	d->reloading = NULL;
	if (choices_end(re->choices, &why) < 0) {
		refuse(why);
		config_free(re->config);
	} else {
		take_over(d, re->config, re->choices);
	}
	free(re);
	if (again)
		reload(d);
}

void reload(struct daemon *d)
{
	struct reloading *re = d->reloading;

	if (re) {
		re->again = true;
		return;
	}
	re = calloc(1, sizeof(*re));
	if (!re)
		refuse(NULL);
	if (!re || !read_config(d, &re->config)) {
		free(re);
		return;
	}
	re->d = d;
	if (choices_begin(re->config, d->foreigners, finish, re, &re->choices) < 0) {
		refuse(NULL);
		config_free(re->config);
		free(re);
		return;
	}
	d->reloading = re;
	if (!choices_pending(re->choices))
		finish(re);
}

void reload_stop(struct daemon *d)
{
	struct reloading *re = d->reloading;

	if (!re)
		return;
	choices_free(re->choices);
	config_free(re->config);
	free(re);
	d->reloading = NULL;
}
