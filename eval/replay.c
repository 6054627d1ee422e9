/* SPDX-License-Identifier: MIT */
/*
 * Replay of a log: each assignment again, sample by sample, held against what was logged.
 *
 * An assignment is a policy with its parameters on a target. It is made anew from the log's own
 * words (name, version, parameters, shape), fed the decoded samples in their order, and every
 * change that comes out is looked for among the decisions of that sample, and the other way round.
 * Policies are pure and compute in integers, so "the same" means equal in every field.
 *
 * A sample that is missing (merged away, or lost while the disk was full) breaks the chain; it
 * begins again at a sample whose predecessor left a saved state. An instance begins fresh, or,
 * where the daemon wrote a state with the assignment, from that. Decisions in between, and those
 * whose policy is not at hand in that version, are counted as not derivable, with the reason.
 *
 * What operators did stands in assignments of its own ("operator"); there is nothing to derive.
 *
 * A log may grow while it is read, and a long read transaction would keep its writer from
 * checkpoints. So the last sample of a target is looked up first, and what is newer is left alone:
 * a decision is committed with its samples, so up to there both are complete.
 *
 * Everything about one target is read into memory before its samples are: a few hundred bytes a
 * decision. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "eval/given.h"
#include "eval/replay.h"
#include "policies/host.h"

#define OPERATOR "operator"

struct verify {
	struct logstore *ls;
	const char *policy_path;
	struct verify_result *res;
	void (*report)(const char *line, void *cookie);
	void *cookie;
};

/* Growing arrays of what belongs to one target. */
struct target_log {
	struct log_target *targets; /* of the whole log */
	size_t n_targets;
	struct log_assignment *as;
	size_t n_as;
	struct log_decision *ds; /* in order of (assignment, seq, zone, cpu) */
	size_t n_ds;
	uint64_t last; /* sample, looked up before all else */
	bool attached; /* more may come */
};

/* One assignment at work. */
struct run {
	struct verify *v;
	const struct log_target *target;
	const struct log_assignment *a;
	uint64_t seq_end;	 /* first sample of the next one */
	struct log_decision *ds; /* decisions of this assignment, by seq */
	size_t n_ds, at;
	struct policy_instance *pi;
	struct pcptune_decoder *dec;
	bool records;	    /* the policy asks for them */
	struct given given; /* ... and those of the chunk at hand */
	uint64_t next;	    /* sample that continues the chain */
	bool in_step;	    /* the instance is as the daemon's was */
	uint64_t holes;	    /* breaks of the chain */
	int error;
};

__attribute__((format(printf, 2, 3))) static void say(const struct verify *v, const char *fmt, ...)
{
	char line[512];
	va_list ap;

	if (!v->report)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	v->report(line, v->cookie);
}

/* ---- gathering ---- */

/* Room for one more; arrays grow by doubling at powers of two. */
static int grow(void *array, size_t n, size_t size)
{
	void **p = array, *grown;

	if (n & (n - 1))
		return 0;
	grown = reallocarray(*p, n ? 2 * n : 1, size);
	if (!grown)
		return -ENOMEM;
	*p = grown;
	return 0;
}

static int on_target(const struct log_target *t, void *cookie)
{
	struct target_log *tl = cookie;

	if (grow(&tl->targets, tl->n_targets, sizeof(*t)))
		return -ENOMEM;
	tl->targets[tl->n_targets++] = *t;
	return 0;
}

static int on_assignment(const struct log_assignment *a, void *cookie)
{
	struct target_log *tl = cookie;

	if (strcmp(a->policy, OPERATOR) == 0)
		return 0;
	if (grow(&tl->as, tl->n_as, sizeof(*a)))
		return -ENOMEM;
	tl->as[tl->n_as++] = *a;
	return 0;
}

struct decisions_cookie {
	struct verify *v;
	struct target_log *tl;
};

static int on_decision(const struct log_decision *d, const struct log_target *t,
		       const struct log_assignment *a, void *cookie)
{
	struct decisions_cookie *c = cookie;

	(void)t;
	if (!a || strcmp(a->policy, OPERATOR) == 0) {
		c->v->res->by_hand++;
		return 0;
	}
	if (c->tl->attached && c->tl->last && d->seq > c->tl->last)
		return 0; /* newer than the samples that are looked at */
	if (grow(&c->tl->ds, c->tl->n_ds, sizeof(*d)))
		return -ENOMEM;
	c->tl->ds[c->tl->n_ds++] = *d;
	return 0;
}

static int three_way(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_place(const void *pa, const void *pb)
{
	const struct log_decision *a = pa, *b = pb;
	int r = three_way((uint64_t)a->assignment, (uint64_t)b->assignment);

	if (!r)
		r = three_way(a->seq, b->seq);
	if (!r)
		r = three_way(a->zone, b->zone);
	return r ? r : three_way(a->cpu, b->cpu);
}

static int by_first(const void *pa, const void *pb)
{
	const struct log_assignment *a = pa, *b = pb;
	int r = three_way(a->seq_first, b->seq_first);

	return r ? r : three_way((uint64_t)a->id, (uint64_t)b->id);
}

static int on_any_chunk(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
			size_t len, void *cookie)
{
	(void)totals;
	(void)t;
	(void)data;
	(void)len;
	*(bool *)cookie = true;
	return 1;
}

/* The last sample of a target, 0: none. Chunks can be asked for from a sample on: so, by bits. */
static int last_sample(struct logstore *ls, int64_t target, uint64_t *ret)
{
	uint64_t last = 0;

	for (uint64_t bit = UINT64_C(1) << 62; bit; bit >>= 1) {
		bool found = false;
		int r = logstore_chunks(ls, target, last + bit, on_any_chunk, &found);

		if (r < 0)
			return r;
		if (found)
			last += bit;
	}
	*ret = last;
	return 0;
}

static int gather(struct verify *v, const struct log_target *t, struct target_log *tl)
{
	struct log_filter f = {.target = t->id, .cpu = -1};
	struct decisions_cookie c = {v, tl};
	int r = last_sample(v->ls, t->id, &tl->last);

	tl->attached = !t->detached.boot_us && !t->detached.wall_us;
	if (!r)
		r = logstore_assignments(v->ls, t->id, on_assignment, tl);
	if (!r)
		r = logstore_decisions(v->ls, &f, on_decision, &c);
	if (r)
		return r;
	if (tl->n_as)
		qsort(tl->as, tl->n_as, sizeof(*tl->as), by_first);
	if (tl->n_ds)
		qsort(tl->ds, tl->n_ds, sizeof(*tl->ds), by_place);
	return 0;
}

/* ---- comparing ---- */

static bool limits_equal(const struct limits *a, const struct log_limits *b)
{
	return a->high == b->high && a->high_min == b->high_min && a->high_max == b->high_max &&
	       a->batch == b->batch && a->scale_max == b->scale_max && a->rules == b->rules;
}

/* Name of the first field that differs, NULL: equal. */
static const char *difference(const struct host_change *c, const struct log_decision *d)
{
	if (c->reason != d->reason)
		return "reason";
	if (memcmp(c->arg, d->arg, sizeof(c->arg)) != 0)
		return "arguments";
	if (!limits_equal(&c->old, &d->old))
		return "old values";
	if (!limits_equal(&c->proposed, &d->proposed))
		return "proposed values";
	return limits_equal(&c->clamped, &d->clamped) ? NULL : "clamped values";
}

static void differ(struct run *r, uint64_t seq, const struct host_change *c,
		   const struct log_decision *d, const char *what)
{
	const char *name = r->target->name;
	int64_t t = r->target->id;

	r->v->res->differ++;
	if (!d)
		say(r->v,
		    "target %" PRId64 " %s, sample %" PRIu64
		    ", zone %u CPU %u: derived high %u -> %u "
		    "(reason %u), the log has no such decision",
		    t, name, seq, c->zone, c->cpu, c->old.high, c->clamped.high, c->reason);
	else if (!c)
		say(r->v,
		    "target %" PRId64 " %s, sample %" PRIu64 ", zone %u CPU %u: decision %" PRId64
		    " (high %u -> %u) is logged, but not derived",
		    t, name, seq, d->zone, d->cpu, d->id, d->old.high, d->clamped.high);
	else
		say(r->v,
		    "target %" PRId64 " %s, sample %" PRIu64 ", zone %u CPU %u: decision %" PRId64
		    ": %s differ; logged high %u -> %u (reason %u), derived %u -> %u (reason %u)",
		    t, name, seq, d->zone, d->cpu, d->id, what, d->old.high, d->clamped.high,
		    d->reason, c->old.high, c->clamped.high, c->reason);
}

/* Merges two lists in order of (zone, CPU); the host's indexes have that order, too. */
static void compare(struct run *r, uint64_t seq, const struct host_answer *a)
{
	uint32_t i = 0;

	while (i < a->n_changes || (r->at < r->n_ds && r->ds[r->at].seq == seq)) {
		const struct host_change *c = i < a->n_changes ? &a->changes[i] : NULL;
		const struct log_decision *d =
			r->at < r->n_ds && r->ds[r->at].seq == seq ? &r->ds[r->at] : NULL;
		int order = !c ? 1 : !d ? -1 : three_way(c->zone, d->zone);
		const char *what;

		if (c && d && !order)
			order = three_way(c->cpu, d->cpu);
		i += order <= 0;
		r->at += order >= 0;
		what = order ? "" : difference(c, d);
		if (what)
			differ(r, seq, order <= 0 ? c : NULL, order >= 0 ? d : NULL, what);
		else
			r->v->res->derived++;
	}
}

/* Logged decisions before seq that no sample came for. */
static void skip_to(struct run *r, uint64_t seq)
{
	while (r->at < r->n_ds && r->ds[r->at].seq < seq) {
		r->v->res->not_derivable++;
		r->at++;
	}
}

/* ---- running ---- */

/* Is there a state that was left by sample seq? */
static bool load_state(struct run *r, uint64_t seq)
{
	uint64_t found;
	void *state;
	size_t size;
	bool ok;
	int e = logstore_state_get(r->v->ls, r->a->id, seq, &found, &state, &size);

	if (e == -ENOENT)
		return false;
	if (e) {
		r->error = e;
		return false;
	}
	ok = found == seq && policy_instance_state_load(r->pi, state, size) == 0;
	free(state);
	return ok;
}

static void lose_step(struct run *r, uint64_t seq)
{
	if (r->in_step || !r->holes)
		say(r->v,
		    "target %" PRId64 " %s, policy %s: samples %" PRIu64 " to %" PRIu64
		    " are not in the log; going on at the next saved state",
		    r->target->id, r->target->name, r->a->policy, r->next, seq - 1);
	r->holes++;
	r->in_step = false;
}

static void lose_records(struct run *r, uint64_t seq)
{
	if (r->in_step)
		say(r->v,
		    "target %" PRId64 " %s, policy %s: the records that came with sample %" PRIu64
		    " were merged; going on at the next saved state",
		    r->target->id, r->target->name, r->a->policy, seq);
	r->holes += r->in_step;
	r->in_step = false;
}

static int feed(struct run *r, const struct pcptune_sample *s)
{
	char why[POLICY_WHY] = "";
	struct pcptune_sample with;
	struct host_answer a;
	int e;

	if (s->seq < r->a->seq_first)
		return 0;
	if (s->seq >= r->seq_end)
		return 1;
	if (s->seq < r->next)
		return -EBADMSG;
	skip_to(r, s->seq);
	if (s->seq > r->next)
		lose_step(r, s->seq);
	if (!r->in_step)
		r->in_step = load_state(r, s->seq - 1);
	if (r->records && s->seq <= r->given.merged_to)
		lose_records(r, s->seq);
	r->next = s->seq + 1;
	if (r->error)
		return r->error;
	if (!r->in_step)
		return 0;
	with = *s;
	if (r->records)
		given_to(&r->given, &with);
	e = policy_instance_decide(r->pi, &with, &a, why);
	if (e && e != -EPROTO && e != -ESTALE)
		return e;
	r->v->res->samples++;
	compare(r, s->seq, &a);
	return 0;
}

static int on_chunk(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		    size_t len, void *cookie)
{
	const struct pcptune_sample *s;
	struct run *r = cookie;
	int e;

	(void)t;
	if (totals->seq_first >= r->seq_end)
		return 1;
	e = r->records ? given_load(&r->given, r->v->ls, r->target->id, totals->seq_first,
				    totals->seq_last)
		       : 0;
	decoder_begin(r->dec, data, len);
	while (!e && (e = decoder_next(r->dec, &s)) == 1) {
		e = feed(r, s);
		if (e)
			break;
	}
	if (e < 0) {
		say(r->v,
		    "target %" PRId64 " %s: the samples %" PRIu64 " to %" PRIu64
		    " can not be used: %s",
		    r->target->id, r->target->name, totals->seq_first, totals->seq_last,
		    e == -EBADMSG ? "damaged" : strerror(-e));
		if (e != -EBADMSG && e != -EINVAL) {
			r->error = e;
			return 1;
		}
		r->in_step = false;
		r->holes++;
	}
	return e > 0;
}

static int open_instance(struct run *r, char *why)
{
	int64_t params[POLICY_MAX_PARAMS];
	struct policy_module *m;
	const char *version;
	int e = policy_load_logged(r->a->policy, r->v->policy_path, &m, why);

	if (e)
		return e;
	version = policy_desc(m)->version;
	r->records = policy_record_ms(m) != 0;
	if (strcmp(version, r->a->version) != 0) {
		snprintf(why, POLICY_WHY, "the log was written by version %s, at hand is %s",
			 r->a->version, version);
		e = -ESTALE;
	}
	if (!e)
		e = policy_params_parse(m, r->a->params, params, why);
	if (!e)
		e = policy_instance_new(m, &r->a->shape, params, &r->pi, why);
	policy_unref(m);
	if (!e) {
		e = decoder_new(r->a->shape.n_zones, r->a->shape.n_cpus, &r->dec);
		if (e)
			snprintf(why, POLICY_WHY, "%s", strerror(-e));
	}
	return e;
}

static int run_assignment(struct run *r)
{
	char why[POLICY_WHY] = "";
	int e = open_instance(r, why);

	if (e) {
		say(r->v, "target %" PRId64 " %s, policy %s: can not be replayed: %s",
		    r->target->id, r->target->name, r->a->policy, why);
		r->v->res->not_derivable += r->n_ds;
	} else {
		r->v->res->assignments++;
		r->next = r->a->seq_first;
		/* no state was written with the assignment: it began fresh */
		load_state(r, r->a->seq_first - 1);
		r->in_step = true;
		if (!r->error)
			e = logstore_chunks(r->v->ls, r->target->id, r->a->seq_first, on_chunk, r);
		skip_to(r, UINT64_MAX);
	}
	policy_instance_free(r->pi);
	decoder_free(r->dec);
	given_free(&r->given);
	if (r->error)
		return r->error;
	return e == -ENOMEM || (e < 0 && r->pi) ? e : 0;
}

static size_t count_of(const struct target_log *tl, size_t from, int64_t assignment)
{
	size_t n = from;

	while (n < tl->n_ds && tl->ds[n].assignment == assignment)
		n++;
	return n - from;
}

/* First decision of an assignment; ds is ordered by it. */
static size_t first_of(const struct target_log *tl, int64_t assignment)
{
	size_t lo = 0, hi = tl->n_ds;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (tl->ds[mid].assignment < assignment)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int verify_target(struct verify *v, const struct log_target *t)
{
	struct target_log tl = {0};
	int e = gather(v, t, &tl);
	size_t left = tl.n_ds;

	for (size_t i = 0; !e && i < tl.n_as; i++) {
		size_t from = first_of(&tl, tl.as[i].id);
		struct run r = {.v = v,
				.target = t,
				.a = &tl.as[i],
				.seq_end = i + 1 < tl.n_as ? tl.as[i + 1].seq_first : tl.last + 1,
				.ds = tl.ds ? tl.ds + from : NULL,
				.n_ds = count_of(&tl, from, tl.as[i].id)};

		if (r.seq_end > tl.last + 1)
			r.seq_end = tl.last + 1;
		left -= r.n_ds;
		/* what only stood in for a policy until it was ready need not be at hand */
		if (r.n_ds || r.seq_end > r.a->seq_first)
			e = run_assignment(&r);
	}
	if (left && !e) {
		v->res->not_derivable += left;
		say(v, "target %" PRId64 " %s: %zu decisions belong to no assignment", t->id,
		    t->name, left);
	}
	free(tl.as);
	free(tl.ds);
	return e;
}

int verify_log(struct logstore *ls, const char *policy_path, struct verify_result *ret,
	       void (*report)(const char *line, void *cookie), void *cookie)
{
	struct verify_result res = {0};
	struct verify v = {ls, policy_path, &res, report, cookie};
	struct log_filter all = {.cpu = -1};
	struct target_log tl = {0};
	int e = logstore_targets(ls, &all, on_target, &tl);

	for (size_t i = 0; !e && i < tl.n_targets; i++)
		e = verify_target(&v, &tl.targets[i]);
	free(tl.targets);
	if (e)
		return e;
	*ret = res;
	return res.differ ? -EUCLEAN : 0;
}
