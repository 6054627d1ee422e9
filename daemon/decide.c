/* SPDX-License-Identifier: MIT */
/*
 * Pure glue between the policy host, the journal and apply.c. Changes of all targets of a tick wait
 * in one array, so that one transaction puts them on disk; only then does apply.c get them. The
 * array grows to what the busiest tick needed and is used again.
 *
 * A foreign policy is asked here and answers later. Until then its target is not sampled: the next
 * sample covers the longer time, so that the policy sees every sample that is in the log, in order.
 * The one that it was asked about is kept as it was, and goes to the log with the answer.
 *
 * Time. By the wall clock, which is cheap to read, an answer may seem late when only this process
 * had to wait. So a call that took long makes the target suspect, and what a suspect's next calls
 * take is measured by the CPU time of this thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/apply.h"
#include "daemon/assign.h"
#include "daemon/clock.h"
#include "daemon/decide.h"
#include "daemon/journal.h"
#include "daemon/say.h"

struct waiting {
	struct target *t;
	struct host_change change;
	bool by_hand;
	uint32_t given; /* by hand: enum limit_bit */
	int64_t id;	/* in the log, 0: not there */
};

static struct {
	struct waiting *v;
	size_t n, max;
	int64_t *ids;
	size_t n_ids, max_ids;
} tick;

static struct say_gate gate_memory;
static bool going_back; /* some target's canary has gone back */

/* ---- runs of no change ---- */

static void close_run(struct target *t)
{
	if (!t->run.n)
		return;
	if (t->n_done_runs == t->max_done_runs) {
		uint32_t max = t->max_done_runs ? t->max_done_runs * 2 : 8;
		struct nochange_run *v = realloc(t->done_runs, max * sizeof(*v));

		if (!v) { /* a summary row less */
			memset(&t->run, 0, sizeof(t->run));
			return;
		}
		t->done_runs = v;
		t->max_done_runs = max;
	}
	t->done_runs[t->n_done_runs++] = t->run;
	memset(&t->run, 0, sizeof(t->run));
}

static void no_change(struct target *t, uint32_t reason, uint64_t seq)
{
	if (journal_state(t->d->journal) != JOURNAL_OK)
		return;
	if (t->run.n && t->run.reason != reason)
		close_run(t);
	if (!t->run.n) {
		t->run.reason = reason;
		t->run.seq_first = seq;
	}
	t->run.seq_last = seq;
	t->run.n++;
	t->gathered = true;
}

/* ---- asking ---- */

static bool wait_for_tick(struct target *t, const struct host_change *ch, bool by_hand,
			  uint32_t given)
{
	if (tick.n == tick.max) {
		size_t max = tick.max ? tick.max * 2 : 256;
		struct waiting *v = realloc(tick.v, max * sizeof(*v));

		if (!v) {
			say_gated(&gate_memory, LOG_ERR, "no memory for %zu decisions", max);
			return false;
		}
		tick.v = v;
		tick.max = max;
	}
	tick.v[tick.n++] =
		(struct waiting){.t = t, .change = *ch, .by_hand = by_hand, .given = given};
	return true;
}

static void canary_said(struct target *t, const struct host_answer *a)
{
	const char *name = policy_desc(t->active.module)->name;
	char text[POLICY_WHY];

	if (a->canary_reason) {
		policy_canary_text(a->canary_reason, a->canary_arg, text, sizeof(text));
		say(LOG_NOTICE, "target %llu %s: %s %s", (unsigned long long)t->id, t->info.name,
		    name, text);
		journal_event(t->d->journal, t,
			      policy_reason(t->active.module, a->canary_reason)->name, "%s %s",
			      name, text);
	}
	if (a->canary_spread && t->canary) {
		t->canary = false;
		choice_clear(&t->previous);
	}
	if (a->canary_over)
		t->go_back = going_back = true;
}

static void answered(struct target *t, const struct pcptune_sample *s, int r,
		     const struct host_answer *a, const char *why)
{
	if (r < 0) {
		if (r != -ESTALE)
			assign_breach(t, why);
		return;
	}
	t->rest_until_us = s->time_us + (uint64_t)a->rest_ms * 1000u;
	if (t->canary)
		canary_said(t, a);
	if (!a->n_changes)
		no_change(t, a->reason, s->seq);
	else
		close_run(t);
	for (uint32_t i = 0; i < a->n_changes; i++) {
		if (!wait_for_tick(t, &a->changes[i], false, 0))
			journal_lose_decisions(t->d->journal, t, 1);
	}
}

/* An answer that took too long counts, and is a broken contract. */
static void took(struct target *t, uint64_t us)
{
	const uint64_t most = (uint64_t)t->d->config->plugin.call_ms * 1000u;
	char why[POLICY_WHY];

	if (us <= most)
		return;
	snprintf(why, sizeof(why),
		 "policy \"%s\": one answer took %llu ms of CPU time; plugin.call_ms is %llu",
		 policy_desc(t->active.module)->name, (unsigned long long)us / 1000u,
		 (unsigned long long)most / 1000u);
	decide_flush(t->d, false); /* before another policy has the target */
	assign_breach(t, why);
}

static void decide_here(struct target *t, const struct pcptune_sample *s)
{
	const uint64_t most_ns = (uint64_t)t->d->config->plugin.call_ms * 1000000u;
	clockid_t clock = t->suspect ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
	char why[POLICY_WHY] = "";
	struct host_answer a;
	uint64_t ns;
	int r;

	t->fresh = false;
	ns = clock_ns(clock);
	r = policy_instance_decide(t->pi, s, &a, why);
	ns = clock_ns(clock) - ns;
	answered(t, s, r, &a, why);
	if (clock == CLOCK_THREAD_CPUTIME_ID && !r)
		took(t, ns / 1000u);
	t->suspect = ns > most_ns;
}

/* ---- asking a process ---- */

static bool keep_records(struct kept *k, const struct pcptune_sample *s)
{
	size_t bytes = (size_t)pcptune_sample_n_records(s) * s->record_size;
	void *v;

	k->s.records = NULL;
	if (!bytes)
		return true;
	v = realloc(k->records, bytes);
	if (!v)
		return false;
	k->records = memcpy(v, s->records, bytes);
	k->s.records = k->records;
	return true;
}

/* The active CPUs stay where they are: there is no other sample before the answer. */
static bool keep(struct target *t, const struct pcptune_sample *s)
{
	size_t bytes = (size_t)s->n_cpus * s->cpu_size;
	struct kept *k = &t->kept;

	if (!k->cpus)
		k->cpus = malloc(bytes);
	k->s = *s;
	if (!k->cpus || !keep_records(k, s))
		return false;
	k->s.cpus = memcpy(k->cpus, s->cpus, bytes);
	return true;
}

static void ask(struct target *t, const struct pcptune_sample *s)
{
	t->fresh = false;
	if (!keep(t, s)) {
		say_gated(&gate_memory, LOG_ERR, "no memory for a sample");
		journal_sample(t->d->journal, t, s);
		journal_lose_decisions(t->d->journal, t, 1);
		return;
	}
	t->kept.asked = true;
	foreign_ask(t->foreign, policy_instance_view(t->pi, s));
}

void decide_answer(struct target *t)
{
	uint64_t us = remote_cpu_us(foreign_remote(t->foreign));
	char why[POLICY_WHY] = "";
	struct host_answer a;
	int r = remote_take(foreign_remote(t->foreign), t->pi, &t->kept.s, &a, why);

	t->kept.asked = false;
	journal_sample(t->d->journal, t, &t->kept.s);
	answered(t, &t->kept.s, r, &a, why);
	if (!r)
		took(t, us);
	if (tick.n || going_back)
		decide_flush(t->d, false);
	journal_answered(t->d->journal, t);
}

void decide_kept(struct target *t)
{
	decide(t, &t->kept.s);
}

/* Every CPU held: a replay that asks the policy about it finds that nothing may come of it. */
void decide_no_more(struct target *t)
{
	struct kept *k = &t->kept;

	foreign_free(t->foreign);
	t->foreign = NULL;
	if (!k->asked)
		return;
	k->asked = false;
	for (uint32_t i = 0; i < k->s.n_cpus; i++)
		k->cpus[i].flags |= PCPTUNE_CPU_HELD;
	journal_sample(t->d->journal, t, &k->s);
}

void decide(struct target *t, const struct pcptune_sample *s)
{
	bool held = journal_holds(t->d->journal);

	/* Held: nothing may be applied; its samples are not in the log either. */
	if (t->foreign && !held) {
		ask(t, s);
		return;
	}
	journal_sample(t->d->journal, t, s);
	if (!held && !policy_remote(t->active.module))
		decide_here(t, s);
}

int decide_by_hand(struct target *t, const struct host_change *ch, uint32_t given)
{
	return wait_for_tick(t, ch, true, given) ? 0 : -ENOMEM;
}

void decide_forget(struct target *t)
{
	for (size_t i = 0; i < tick.n; i++) {
		if (tick.v[i].t == t)
			tick.v[i].t = NULL;
	}
}

/* ---- logging and applying ---- */

static const char *reason_name(const struct waiting *w)
{
	static const char *const by_hand[] = {"", "set-by-operator", "unset-by-operator",
					      "restored-on-exit"};
	const struct pcptune_reason *r;

	if (w->by_hand)
		return by_hand[w->change.reason];
	r = policy_reason(w->t->active.module, w->change.reason);
	return r ? r->name : "?";
}

static bool is_dry(const struct waiting *w)
{
	return w->t->active.dry_run && !w->by_hand;
}

static void log_all(struct daemon *d)
{
	struct target *last = NULL;

	for (size_t i = 0; i < tick.n; i++) {
		struct waiting *w = &tick.v[i];

		if (!w->t)
			continue;
		if (w->t != last)
			journal_gathered(d->journal, w->t);
		last = w->t;
		w->id = journal_decision(d->journal, w->t, &w->change, reason_name(w), w->by_hand,
					 is_dry(w) ? LOG_DRY_RUN : LOG_JOURNALED);
	}
}

static bool chunk_due(const struct target *t, uint64_t now, bool all)
{
	return t->gathered && (all || now >= t->chunk_due_us);
}

static bool log_due(struct daemon *d, bool all)
{
	uint64_t now = boot_us();
	bool any = tick.n > 0;

	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];

		if (!chunk_due(t, now, all))
			continue;
		if (!any && !journal_begin(d->journal))
			return false;
		any = true;
		journal_gathered(d->journal, t);
	}
	return any;
}

static bool write_log(struct daemon *d, bool all)
{
	if (tick.n && journal_begin(d->journal))
		log_all(d);
	return log_due(d, all) && journal_commit(d->journal);
}

static void carry_out(struct waiting *w)
{
	if (is_dry(w))
		apply_dry(w->t, &w->change);
	else
		apply_change(w->t, &w->change, w->id, w->by_hand, w->given);
}

/* A decision that is not on disk is only carried out where the log is not required. */
static bool may_act(struct waiting *w, bool logged)
{
	struct daemon *d = w->t->d;

	if (journal_state(d->journal) == JOURNAL_OFF)
		return true;
	if (logged && w->id > 0)
		return true;
	w->id = 0;
	journal_lose_decisions(d->journal, w->t, 1);
	return !d->config->log.required;
}

static void keep_ids(void)
{
	tick.n_ids = 0;
	if (tick.n > tick.max_ids) {
		int64_t *ids = realloc(tick.ids, tick.n * sizeof(*ids));

		if (!ids)
			return;
		tick.ids = ids;
		tick.max_ids = tick.n;
	}
	for (size_t i = 0; i < tick.n; i++)
		tick.ids[i] = tick.v[i].id;
	tick.n_ids = tick.n;
}

const int64_t *decide_ids(size_t *ret_n)
{
	*ret_n = tick.n_ids;
	return tick.ids;
}

void decide_flush(struct daemon *d, bool all_chunks)
{
	bool logged = write_log(d, all_chunks);

	for (size_t i = 0; i < tick.n; i++) {
		struct waiting *w = &tick.v[i];

		if (w->t && may_act(w, logged))
			carry_out(w);
	}
	apply_wake(d);
	keep_ids();
	tick.n = 0;
	for (size_t i = 0; going_back && i < d->n_targets; i++) {
		if (d->targets[i]->go_back)
			assign_back(d->targets[i]);
	}
	going_back = false;
}

void decide_free(void)
{
	free(tick.v);
	free(tick.ids);
	memset(&tick, 0, sizeof(tick));
}
