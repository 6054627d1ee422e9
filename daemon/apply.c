/* SPDX-License-Identifier: MIT */
/*
 * Every store to a target's control words is in this file, and each one follows the same order:
 * the decision is on disk (decide.c); the words are still as we left them (else: drift, hands off);
 * the words, then seq; the wake-up; and the outcome goes to the log with a later transaction, first
 * "written", then, when ack shows seq, "applied".
 *
 * Only values that change are written, the others are PCPTUNE_KEEP: a generation that moves `high`
 * itself must not be set back by a change of `batch`. Words that the target has not taken over yet
 * are merged into the new ones, so that two changes in a row do not lose the first.
 *
 * The daemon is the one writer of the words of a target. It can not keep others from writing into
 * shared memory, so it compares before each write, and all CPUs about once a second: what differs
 * is somebody else's will and is left alone until the operator says set or unset.
 */
#include <stdio.h>
#include <string.h>
#include "daemon/apply.h"
#include "daemon/clock.h"
#include "daemon/decide.h"
#include "daemon/effect.h"
#include "daemon/journal.h"
#include "daemon/say.h"

#define SETTLE_MAX_US  60000000u
#define AGAIN_LEAST_US 100000u

static struct say_gate gate_drift;
static bool wake_needed;

static struct limits limits_of_cpu(const struct pcptune_cpu *c)
{
	return (struct limits){c->high, c->high_min, c->high_max, c->batch, c->scale_max, c->rules};
}

/* A limit, if the word gives one. */
static void take(uint32_t *limit, uint32_t word)
{
	if (word != PCPTUNE_KEEP)
		*limit = word;
}

struct limits apply_coming(struct target *t, uint32_t index)
{
	struct pcptune_cpu c;
	struct control w;
	struct limits l;
	uint32_t seq, ack;

	/* the words first: what is taken over between the two readings is in both */
	segreader_control_read(t->sr, index, &w, &seq, &ack);
	segreader_cpu_total(t->sr, index, &c);
	l = limits_of_cpu(&c);
	if (ack == seq || !(t->marks[index].flags & MARK_INFLIGHT))
		return l;
	take(&l.high, w.high);
	take(&l.high_min, w.high_min);
	take(&l.high_max, w.high_max);
	take(&l.batch, w.batch);
	take(&l.scale_max, w.scale_max);
	take(&l.rules, w.rules);
	return l;
}

void apply_baseline(struct target *t)
{
	struct pcptune_cpu c;
	uint32_t ack;

	for (uint32_t i = 0; i < t->n; i++) {
		struct mark *m = &t->marks[i];

		segreader_control_read(t->sr, i, &m->words, &m->seq, &ack);
		segreader_cpu_total(t->sr, i, &c);
		m->orig = limits_of_cpu(&c);
		if (m->seq)
			m->flags |= MARK_INHERITED;
	}
}

/* ---- drift ---- */

static bool words_same(const struct control *a, const struct control *b)
{
	return a->high == b->high && a->high_min == b->high_min && a->high_max == b->high_max &&
	       a->batch == b->batch && a->scale_max == b->scale_max && a->rules == b->rules &&
	       a->decision == b->decision;
}

static void inflight_drop(struct target *t, uint32_t index, int outcome)
{
	for (uint32_t i = 0; i < t->n_inflight; i++) {
		if (t->inflight[i].index != index)
			continue;
		journal_outcome(t->d->journal, t->inflight[i].decision, outcome);
		t->inflight[i] = t->inflight[--t->n_inflight];
		break;
	}
	t->marks[index].flags &= ~MARK_INFLIGHT;
}

static void drift(struct target *t, uint32_t index, const struct control *now, uint32_t seq)
{
	struct mark *m = &t->marks[index];
	uint32_t zone = index / t->info.n_cpus, cpu = index % t->info.n_cpus;

	say_gated(&gate_drift, LOG_WARNING,
		  "target %llu %s: the control words of zone %u CPU %u were changed by somebody "
		  "else; hands off until set or unset",
		  (unsigned long long)t->id, t->info.name, zone, cpu);
	journal_event(t->d->journal, t, "drift",
		      "zone %u cpu %u: seq %u, not %u; high %u high_min %u high_max %u batch %u",
		      zone, cpu, seq, m->seq, now->high, now->high_min, now->high_max, now->batch);
	if (m->flags & MARK_INFLIGHT)
		inflight_drop(t, index, LOG_DRIFT);
	else
		journal_outcome(t->d->journal, m->decision, LOG_DRIFT);
	m->flags |= MARK_DRIFT;
	t->cpus[index].flags |= PCPTUNE_CPU_HELD;
}

/* Are the words as we left them? Says no once. */
static bool words_ours(struct target *t, uint32_t index, uint32_t *ret_ack)
{
	struct mark *m = &t->marks[index];
	struct control now;
	uint32_t seq;

	if (m->flags & MARK_DRIFT)
		return false;
	segreader_control_read(t->sr, index, &now, &seq, ret_ack);
	if (seq == m->seq && words_same(&now, &m->words))
		return true;
	drift(t, index, &now, seq);
	return false;
}

void apply_check(struct target *t)
{
	uint64_t per_s = 1000u / t->shape.interval_ms;
	uint32_t some = per_s ? (uint32_t)(t->n / per_s) + 1 : t->n, ack;

	for (uint32_t k = 0; k < some && k < t->n; k++) {
		words_ours(t, t->check_next, &ack);
		t->check_next = (t->check_next + 1) % t->n;
	}
}

/* ---- settling ---- */

static void settle(struct target *t, uint32_t index, uint64_t us)
{
	struct mark *m = &t->marks[index];

	m->settle_until_us = boot_us() + us;
	if (m->flags & MARK_SETTLING)
		return;
	m->flags |= MARK_SETTLING;
	t->cpus[index].flags |= PCPTUNE_CPU_SETTLING;
	t->settling[t->n_settling++] = index;
}

void apply_settle(struct target *t, uint64_t now_us)
{
	for (uint32_t i = 0; i < t->n_settling;) {
		struct mark *m = &t->marks[t->settling[i]];

		if (now_us < m->settle_until_us) {
			i++;
			continue;
		}
		m->flags &= ~MARK_SETTLING;
		t->cpus[t->settling[i]].flags &= ~(uint32_t)PCPTUNE_CPU_SETTLING;
		t->settling[i] = t->settling[--t->n_settling];
	}
}

/* What waited long to be taken over has been. */
static void settle_as_usual(struct target *t, uint32_t index)
{
	struct mark *m = &t->marks[index];
	uint64_t until = boot_us() + (uint64_t)t->d->config->settle_ms * 1000u;

	if (m->repeats && m->flags & MARK_SETTLING && m->settle_until_us > until)
		m->settle_until_us = until;
	m->repeats = 0;
}

void apply_new_policy(struct target *t)
{
	for (uint32_t i = 0; i < t->n_settling; i++)
		settle_as_usual(t, t->settling[i]);
}

/* ---- writing ---- */

static uint32_t changed(uint32_t old, uint32_t new_, bool given)
{
	return old == new_ && !given ? PCPTUNE_KEEP : new_;
}

static uint32_t merged(uint32_t value, uint32_t earlier)
{
	return value == PCPTUNE_KEEP ? earlier : value;
}

static void words_of(const struct target *t, const struct host_change *ch, int64_t id,
		     uint32_t given, struct control *w)
{
	const struct mark *m = &t->marks[ch->index];
	const struct limits *o = &ch->old, *n = &ch->clamped;

	memset(w, 0, sizeof(*w));
	w->high = changed(o->high, n->high, given & LIMIT_HIGH);
	w->high_min = changed(o->high_min, n->high_min, given & LIMIT_HIGH_MIN);
	w->high_max = changed(o->high_max, n->high_max, given & LIMIT_HIGH_MAX);
	w->batch = changed(o->batch, n->batch, given & LIMIT_BATCH);
	w->scale_max = changed(o->scale_max, n->scale_max, given & LIMIT_SCALE_MAX);
	w->rules = changed(o->rules, n->rules, given & LIMIT_RULES);
	w->drain = n->high < t->cpus[ch->index].count;
	w->decision = (uint64_t)id;
	if (!(m->flags & MARK_INFLIGHT))
		return;
	w->high = merged(w->high, m->words.high);
	w->high_min = merged(w->high_min, m->words.high_min);
	w->high_max = merged(w->high_max, m->words.high_max);
	w->batch = merged(w->batch, m->words.batch);
	w->scale_max = merged(w->scale_max, m->words.scale_max);
	w->rules = merged(w->rules, m->words.rules);
}

/*
 * Of a change that does not show, because nothing moves in a dry run or because the CPU never comes
 * where it would take it over, a policy says the same again as soon as it may. Each repetition
 * doubles the time to settle, up to a minute, which keeps the log readable.
 */
static uint64_t settle_us(const struct target *t, struct mark *m, bool again, uint64_t least)
{
	uint64_t us = (uint64_t)t->d->config->settle_ms * 1000u;

	if (!again)
		m->repeats = 0;
	else if (m->repeats < 16)
		m->repeats++;
	if (!m->repeats)
		return us > least ? us : least;
	us = (us > AGAIN_LEAST_US ? us : AGAIN_LEAST_US) << m->repeats;
	return us < SETTLE_MAX_US ? us : SETTLE_MAX_US;
}

static bool same_wish(const struct control *a, const struct control *b)
{
	struct control x = *a;

	x.decision = b->decision;
	return words_same(&x, b);
}

static void in_flight(struct target *t, uint32_t index, int64_t id)
{
	struct mark *m = &t->marks[index];

	if (m->flags & MARK_INFLIGHT)
		inflight_drop(t, index, LOG_SUPERSEDED);
	t->inflight[t->n_inflight++] = (struct inflight){.index = index, .decision = id};
	m->flags |= MARK_INFLIGHT | MARK_CHANGED;
	m->decision = id;
}

void apply_change(struct target *t, const struct host_change *ch, int64_t id, bool by_hand,
		  uint32_t given)
{
	struct mark *m = &t->marks[ch->index];
	struct control w;
	uint32_t ack;
	bool again;

	if (!words_ours(t, ch->index, &ack)) {
		journal_outcome(t->d->journal, id, LOG_DRIFT);
		return;
	}
	if (m->flags & MARK_PINNED && !by_hand) { /* while its policy was thinking */
		journal_outcome(t->d->journal, id, LOG_SUPERSEDED);
		return;
	}
	if (!(m->flags & MARK_CHANGED) && !m->orig.high)
		m->orig = ch->old;
	words_of(t, ch, id, given, &w);
	again = m->flags & MARK_INFLIGHT && same_wish(&w, &m->words);
	segreader_control_write(t->sr, ch->index, &w, &m->seq);
	m->words = w;
	in_flight(t, ch->index, id);
	t->decisions++;
	t->wake = wake_needed = t->gathered = true;
	if (id > 0)
		effects_begin(t->effects, id, ch->index, t->cpus[ch->index].count);
	if (!by_hand)
		settle(t, ch->index, settle_us(t, m, again, 0));
}

void apply_dry(struct target *t, const struct host_change *ch)
{
	struct mark *m = &t->marks[ch->index];
	bool again = !memcmp(&m->dry, &ch->clamped, sizeof(m->dry));

	m->dry = ch->clamped;
	settle(t, ch->index, settle_us(t, m, again, AGAIN_LEAST_US));
	t->decisions++;
}

void apply_wake(struct daemon *d)
{
	if (!wake_needed)
		return;
	wake_needed = false;
	for (size_t i = 0; i < d->n_targets; i++) {
		if (d->targets[i]->wake)
			segreader_wake(d->targets[i]->sr);
		d->targets[i]->wake = false;
	}
}

/* ---- what became of it ---- */

void apply_acks(struct target *t)
{
	for (uint32_t i = 0; i < t->n_inflight;) {
		struct inflight f = t->inflight[i];
		uint32_t ack = 0;

		if (!words_ours(t, f.index, &ack))
			continue; /* drift() took it off the list */
		if (ack != t->marks[f.index].seq) {
			i++;
			continue;
		}
		inflight_drop(t, f.index, LOG_APPLIED);
		settle_as_usual(t, f.index);
	}
}

void apply_target_gone(struct target *t)
{
	decide_forget(t);
	apply_acks(t);
	while (t->n_inflight && !t->d->stopping) /* else the target lives on */
		inflight_drop(t, t->inflight[0].index, LOG_GONE);
}

/* ---- holding ---- */

void apply_hold_all(struct target *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		t->cpus[i].flags |= PCPTUNE_CPU_HELD;
}

void apply_pin(struct target *t, uint32_t index)
{
	t->marks[index].flags |= MARK_PINNED;
	t->cpus[index].flags |= PCPTUNE_CPU_HELD;
}

void apply_unpin(struct target *t, uint32_t index)
{
	struct mark *m = &t->marks[index];
	uint32_t ack;

	if (m->flags & MARK_DRIFT)
		segreader_control_read(t->sr, index, &m->words, &m->seq, &ack);
	m->flags &= ~(uint32_t)(MARK_PINNED | MARK_DRIFT);
	t->cpus[index].flags &= ~(uint32_t)PCPTUNE_CPU_HELD;
}

/* ---- the end ---- */

/* Not where an earlier daemon, which may have crashed, was before us, nor on a CPU that was written
 * before the program used it. */
static bool origin_known(const struct mark *m)
{
	return m->orig.high && !(m->flags & MARK_INHERITED);
}

void apply_restore(struct target *t)
{
	for (uint32_t i = 0; i < t->n; i++) {
		struct mark *m = &t->marks[i];
		struct host_change ch = {.index = i, .reason = OPERATOR_RESTORE};

		if (!(m->flags & MARK_CHANGED) || (m->flags & MARK_DRIFT) || !origin_known(m))
			continue;
		ch.zone = t->cpus[i].zone;
		ch.cpu = t->cpus[i].cpu;
		ch.old = apply_coming(t, i);
		ch.proposed = ch.clamped = m->orig;
		if (memcmp(&ch.old, &ch.clamped, sizeof(ch.old)) || (m->flags & MARK_INFLIGHT))
			decide_by_hand(t, &ch, LIMIT_ALL);
	}
}

/* The program knows its own defaults: it goes back to them when a lease has run out. */
static uint64_t last_lease(struct target *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		const struct mark *m = &t->marks[i];

		n += m->flags & (MARK_CHANGED | MARK_INHERITED) && !origin_known(m);
	}
	if (!n)
		return 0;
	journal_event(t->d->journal, t, "own-defaults",
		      "%u CPU%s back to the defaults of the program, as what they had before the "
		      "first change is not known",
		      n, n == 1 ? " goes" : "s go");
	return 1; /* ns, a time long gone */
}

void apply_release(struct target *t, bool keep)
{
	segreader_lease(t->sr, keep ? UINT64_MAX : last_lease(t));
	segreader_wake(t->sr);
}
