/* SPDX-License-Identifier: MIT */
/*
 * Which policy a target has, from now on.
 *
 * Ours is made an instance of and takes over at once. A foreign one is started in a process, while
 * the old policy goes on, and takes over when that process is ready. `static`, told to keep what it
 * finds, stands in where there is no old one, or its process broke down.
 *
 * A broken contract is counted for the choice, not for the instance: a process that died or was
 * killed is replaced by another, which begins anew, without the state that may have been the
 * cause; the third breach benches the policy until somebody chooses one. The sample at which a
 * process broke down is the first one of `static`, so that the log has neither a hole nor a
 * question that nobody answered.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/apply.h"
#include "daemon/assign.h"
#include "daemon/decide.h"
#include "daemon/journal.h"
#include "daemon/record.h"
#include "daemon/say.h"

struct starting {
	struct target *t;
	struct foreign *f;
	struct choice choice; /* module: that whose parameters they are, NULL: none yet */
	bool by_operator;
	uint32_t breaches;
	struct assign_ops ops; /* done may be NULL */
};

static struct say_gate gate_breach, gate_refused, gate_unfiltered;

static void free_starting(struct starting *st)
{
	foreign_free(st->f);
	choice_clear(&st->choice);
	free(st);
}

void assign_cancel(struct target *t, const char *why)
{
	struct starting *st = t->starting;

	if (!st)
		return;
	t->starting = NULL;
	if (st->ops.done)
		st->ops.done(st->ops.cookie, -ECANCELED, why);
	free_starting(st);
}

/* ---- taking over ---- */

/* A canary is for a policy that takes over from another. */
static void keep_previous(struct target *t, const struct choice *c)
{
	bool canary = policy_canary(c->params) != 0;

	if (canary && !t->canary && !t->stands_in && t->pi) {
		choice_clear(&t->previous);
		choice_copy(&t->previous, &t->active);
		policy_canary_set(t->previous.params, 0);
		t->previous_by_operator = t->by_operator;
	}
	if (!canary)
		choice_clear(&t->previous);
	t->canary = canary;
	t->go_back = false;
}

static void put(struct target *t, const struct choice *c, struct policy_instance *pi,
		const struct pcptune_shape *shape, bool by_operator, bool stands_in)
{
	if (!stands_in)
		keep_previous(t, c);
	decide_no_more(t); /* a sample that the one before was asked about */
	journal_before_assignment(t->d->journal, t);
	policy_instance_free(t->pi);
	foreign_free(t->foreign);
	t->foreign = NULL;
	t->kept.asked = false;
	t->pi = pi;
	t->shape = *shape;
	apply_new_policy(t);
	choice_clear(&t->active);
	choice_copy(&t->active, c);
	t->by_operator = by_operator;
	t->benched = t->suspect = false;
	t->stands_in = stands_in;
	t->breaches = 0;
	t->fresh = true;
	t->rest_until_us = 0;
	recorder_retime(t);
	snprintf(t->policy_why, sizeof(t->policy_why), "%s", c->why);
	journal_assignment(t->d->journal, t);
}

/* What is on its way is cancelled, but for `meanwhile`, where c only has the target until then. */
static int assign_here(struct target *t, const struct choice *c, bool by_operator, bool meanwhile,
		       char *why)
{
	struct policy_instance *pi;
	struct pcptune_shape shape;
	struct choice own;
	int r;

	choice_copy(&own, c);
	if (!t->pi || t->stands_in)
		policy_canary_set(own.params, 0); /* there is no other policy before */
	target_shape(t, t->d->config, &shape);
	r = policy_instance_new(own.module, &shape, own.params, &pi, why);
	if (!r) {
		if (!meanwhile)
			assign_cancel(t, "another policy was chosen meanwhile");
		put(t, &own, pi, &shape, by_operator, false);
	}
	choice_clear(&own);
	return r;
}

static int fallback(struct target *t, const char *text, bool stands_in, char *why)
{
	struct choice c = {.dry_run = t->active.dry_run};
	struct policy_instance *pi;
	struct pcptune_shape shape;
	int r = policy_load("static", policy_installed_path(), &c.module, why);

	target_shape(t, t->d->config, &shape);
	if (!r) {
		policy_params_default(c.module, c.params);
		r = policy_params_set(c.module, c.params, "keep", "true", why);
	}
	if (!r)
		r = policy_instance_new(c.module, &shape, c.params, &pi, why);
	if (!r) {
		snprintf(c.why, sizeof(c.why), "%.*s", (int)sizeof(c.why) - 1, text);
		put(t, &c, pi, &shape, t->by_operator, stands_in);
	}
	choice_clear(&c);
	snprintf(t->policy_why, sizeof(t->policy_why), "%s", text);
	return r;
}

static int fall_back(struct target *t, const char *text, bool stands_in)
{
	char why[POLICY_WHY];
	int r = fallback(t, text, stands_in, why);

	if (r < 0) {
		say(LOG_ERR, "target %llu %s has no policy now: %s", (unsigned long long)t->id,
		    t->info.name, why);
		foreign_free(t->foreign);
		t->foreign = NULL;
		t->kept.asked = false;
		t->rest_until_us = UINT64_MAX;
	}
	return r;
}

/* ---- breaches ---- */

static void bench(struct target *t, const char *name, const char *breach)
{
	char text[sizeof(t->policy_why)];

	snprintf(text, sizeof(text), "%.31s was benched: %.150s", name, breach);
	say(LOG_WARNING, "target %llu %s: policy %s; static takes over", (unsigned long long)t->id,
	    t->info.name, text);
	journal_event(t->d->journal, t, "benched", "%s", text);
	fall_back(t, text, false);
	t->benched = true;
}

static void note_breach(struct target *t, const char *why)
{
	say_gated(&gate_breach, LOG_WARNING, "target %llu %s: %s", (unsigned long long)t->id,
		  t->info.name, why);
	journal_event(t->d->journal, t, "policy-breach", "%s", why);
}

void assign_breach(struct target *t, const char *why)
{
	note_breach(t, why);
	if (++t->breaches >= BREACHES_MAX || policy_instance_benched(t->pi))
		bench(t, policy_desc(t->active.module)->name, why);
}

static int restart(struct target *t, const struct choice *c, bool by_operator, uint32_t breaches,
		   char *why);

/* The process of the policy in force is no more; f is the caller's to free, which put() does. */
static void broke_down(struct target *t, const char *why)
{
	struct choice again = {0};
	bool by_operator = t->by_operator, asked = t->kept.asked;
	uint32_t breaches = t->breaches + 1;
	char text[POLICY_WHY + 64], e[POLICY_WHY];
	const char *name;

	choice_copy(&again, &t->active);
	name = policy_desc(again.module)->name;
	snprintf(text, sizeof(text), "policy \"%s\": %s", name, why);
	note_breach(t, text);
	if (asked) {
		t->seq = t->kept.s.seq - 1; /* the sample becomes static's first */
		t->kept.asked = false;
	}
	if (t->starting) {
		fall_back(t, t->starting->choice.why, true); /* another one is on its way */
	} else if (breaches >= BREACHES_MAX) {
		bench(t, name, why);
	} else {
		snprintf(text, sizeof(text), "until %.31s begins anew: %.120s", name, why);
		fall_back(t, text, true);
		if (restart(t, &again, by_operator, breaches, e) < 0)
			bench(t, name, e);
	}
	choice_clear(&again);
	if (asked) {
		t->seq = t->kept.s.seq;
		decide_kept(t);
	}
}

static void on_running(void *cookie, enum remote_event what, const char *why)
{
	struct target *t = cookie;

	if (what == REMOTE_ANSWER)
		decide_answer(t);
	else
		broke_down(t, why);
}

/* ---- foreign ones ---- */

static void refused(struct target *t, const struct starting *st, const char *why)
{
	const char *name = policy_desc(t->active.module)->name;

	if (st->ops.done)
		return; /* who wanted it hears of it */
	if (t->stands_in) {
		t->benched = true;
		snprintf(t->policy_why, sizeof(t->policy_why), "%.160s", why);
	}
	journal_event(t->d->journal, t, "policy-refused", "%s; %s goes on", why, name);
	say_gated(&gate_refused, LOG_WARNING, "target %llu %s: %s; %s goes on",
		  (unsigned long long)t->id, t->info.name, why, name);
}

static void start_failed(struct starting *st, enum remote_event what, const char *why)
{
	struct target *t = st->t;
	char e[POLICY_WHY];

	t->starting = NULL;
	if (what == REMOTE_BROKEN && !st->ops.done && st->choice.module &&
	    ++st->breaches < BREACHES_MAX &&
	    restart(t, &st->choice, st->by_operator, st->breaches, e) == 0) {
		note_breach(t, why);
		free_starting(st);
		return;
	}
	refused(t, st, why);
	if (st->ops.done)
		st->ops.done(st->ops.cookie, -EINVAL, why);
	free_starting(st);
}

/* Parameters of another module of that name, as text: its tables may be others. */
static int carry_over(struct choice *c, struct policy_module *m, char *why)
{
	char text[4096];

	if (!policy_same(c->module, m)) {
		policy_params_text(c->module, c->params, text, sizeof(text));
		if (policy_params_parse(m, text, c->params, why))
			return -EINVAL;
	}
	policy_unref(c->module);
	c->module = policy_ref(m);
	return 0;
}

static int loaded(struct starting *st, char *why)
{
	struct policy_module *m = remote_module(foreign_remote(st->f));
	struct pcptune_shape shape;
	int r;

	if (st->choice.module) {
		r = carry_over(&st->choice, m, why);
	} else {
		st->choice.module = policy_ref(m);
		r = st->ops.prepare(st->ops.cookie, &st->choice, why);
	}
	if (r)
		return r;
	if (st->t->stands_in && !st->breaches)
		policy_canary_set(st->choice.params, 0); /* there is no other policy before */
	target_shape(st->t, st->t->d->config, &shape);
	foreign_init(st->f, st->choice.module, &shape, st->choice.params);
	return 0;
}

/* It goes on: a policy is trusted, or its owner would not have put it there. */
static void say_unfiltered(struct target *t)
{
	const char *name = policy_desc(t->active.module)->name;
	const char *e = strerror(-remote_filter(foreign_remote(t->foreign)));

	journal_event(t->d->journal, t, "policy-unfiltered",
		      "policy \"%s\": no filter of system calls for its process: %s", name, e);
	say_gated(&gate_unfiltered, LOG_WARNING,
		  "target %llu %s: policy \"%s\": no filter of system calls for its process: %s",
		  (unsigned long long)t->id, t->info.name, name, e);
}

static void ready(struct starting *st)
{
	struct policy_instance *pi = remote_take_instance(foreign_remote(st->f));
	struct target *t = st->t;
	struct pcptune_shape shape;

	target_shape(t, t->d->config, &shape);
	t->starting = NULL;
	put(t, &st->choice, pi, &shape, st->by_operator, false);
	t->breaches = st->breaches;
	t->foreign = st->f;
	foreign_hand_over(st->f, on_running, t);
	if (target_unfiltered(t))
		say_unfiltered(t);
	st->f = NULL;
	if (st->ops.done)
		st->ops.done(st->ops.cookie, 0, NULL);
	free_starting(st);
}

static void on_starting(void *cookie, enum remote_event what, const char *why)
{
	struct starting *st = cookie;
	char e[POLICY_WHY] = "";

	if (what == REMOTE_LOADED && loaded(st, e) < 0)
		start_failed(st, REMOTE_REFUSED, e);
	else if (what == REMOTE_READY)
		ready(st);
	else if (what != REMOTE_LOADED)
		start_failed(st, what, why);
}

/* What t has until then: its old policy, or `static`. */
static int stand_in(struct target *t, const char *name, char *why)
{
	char text[96];
	int r = 0;

	if (!t->pi) {
		snprintf(text, sizeof(text), "until %.31s is ready", name);
		r = fallback(t, text, true, why);
	}
	return r;
}

static int start(struct target *t, const struct policy_file *f, struct starting *st, char *why)
{
	int r = stand_in(t, f->name, why);

	if (!r)
		r = foreign_new(t->d->foreigners, f, t->d->config, on_starting, st, &st->f, why);
	if (r) {
		free_starting(st);
		return r;
	}
	assign_cancel(t, "another policy was chosen meanwhile");
	t->starting = st;
	return 0;
}

int assign_foreign(struct target *t, const struct policy_file *f, const struct choice *c,
		   bool by_operator, const struct assign_ops *ops, char *why)
{
	struct starting *st = calloc(1, sizeof(*st));

	if (!st) {
		snprintf(why, POLICY_WHY, "no memory for policy \"%s\"", f->name);
		return -ENOMEM;
	}
	st->t = t;
	choice_copy(&st->choice, c);
	st->by_operator = by_operator;
	if (ops)
		st->ops = *ops;
	return start(t, f, st, why);
}

static int restart(struct target *t, const struct choice *c, bool by_operator, uint32_t breaches,
		   char *why)
{
	struct policy_file f;
	int r = policy_find(policy_file(c->module), NULL, &f, why);

	if (!r)
		r = assign_foreign(t, &f, c, by_operator, NULL, why);
	if (!r)
		t->starting->breaches = breaches;
	return r;
}

void assign_back(struct target *t)
{
	struct choice c = {0};
	char why[POLICY_WHY], text[sizeof(t->policy_why)];
	bool chosen = t->starting != NULL; /* since then, and it is not ours to cancel */
	int r = -ENOENT;

	t->go_back = false;
	snprintf(text, sizeof(text), "the canary of %.31s went back",
		 policy_desc(t->active.module)->name);
	choice_copy(&c, &t->previous);
	snprintf(c.why, sizeof(c.why), "%.127s", text);
	/* said once: one that has to be started first takes longer than a sample */
	t->canary = false;
	choice_clear(&t->previous);
	if (c.module && policy_remote(c.module))
		r = fall_back(t, text, true);
	if (c.module && !policy_remote(c.module))
		r = assign_here(t, &c, t->previous_by_operator, chosen, why);
	else if (c.module && !chosen)
		r = assign(t, &c, t->previous_by_operator, why);
	if (r < 0)
		fall_back(t, text, false);
	choice_clear(&c);
}

int assign_renew(struct target *t, char *why)
{
	struct choice c = {0};
	struct policy_module *m;
	struct policy_file f;
	int r = policy_find(policy_file(t->active.module), NULL, &f, why);

	if (r < 0 || policy_file_same(&f.id, policy_file_id(t->active.module)))
		return r;
	choice_copy(&c, &t->active);
	if (f.foreign) {
		r = assign_foreign(t, &f, &c, t->by_operator, NULL, why);
	} else {
		r = policy_load_file(&f, &m, why);
		if (!r) {
			r = carry_over(&c, m, why);
			policy_unref(m);
		}
		if (!r)
			r = assign_here(t, &c, t->by_operator, false, why);
	}
	choice_clear(&c);
	return r < 0 ? r : 1;
}

int assign(struct target *t, const struct choice *c, bool by_operator, char *why)
{
	bool first = !t->pi;
	int r;

	if (!policy_remote(c->module))
		return assign_here(t, c, by_operator, false, why);
	r = restart(t, c, by_operator, 0, why);
	if (!r || !first)
		return r;
	bench(t, policy_desc(c->module)->name, why); /* a program is not turned away for it */
	return t->pi ? 0 : r;
}
