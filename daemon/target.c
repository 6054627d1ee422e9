/* SPDX-License-Identifier: MIT */
/*
 * The life of a target. All memory that sampling needs is taken here, at the attachment, so that a
 * tick allocates nothing. Identity is the segment's (start time, random id) together with the
 * user; the pid only names a CPU clock and is shown to people.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/apply.h"
#include "daemon/assign.h"
#include "daemon/attach.h"
#include "daemon/clock.h"
#include "daemon/decide.h"
#include "daemon/effect.h"
#include "daemon/heap.h"
#include "daemon/journal.h"
#include "daemon/record.h"
#include "daemon/sample.h"
#include "daemon/say.h"
#include "daemon/summary.h"
#include "daemon/target.h"
#include "lib/lines.h"

static void target_free(struct target *t)
{
	if (t->ev)
		event_free(t->ev);
	assign_cancel(t, "the program has gone");
	foreign_free(t->foreign);
	policy_instance_free(t->pi);
	free(t->kept.cpus);
	free(t->kept.records);
	choice_clear(&t->active);
	choice_clear(&t->configured);
	choice_clear(&t->previous);
	encoder_free(t->enc);
	recorder_free(t->rec);
	records_free(&t->records);
	effects_free(t->effects);
	if (t->sr)
		segreader_close(t->sr);
	if (t->fd >= 0)
		close(t->fd);
	free(t->done_runs);
	free(t->cpus);
	free(t->active_cpus);
	free(t->counts);
	free(t->base_cpus);
	free(t->window_wait);
	free(t->shown_wait);
	free(t->marks);
	free(t->inflight);
	free(t->settling);
	free(t);
}

static bool target_arrays(struct target *t)
{
	size_t n = t->n;

	t->cpus = lines_calloc(n, sizeof(*t->cpus));
	t->active_cpus = calloc(n, sizeof(*t->active_cpus));
	t->counts = calloc(n, sizeof(*t->counts));
	t->window_wait = calloc(n, sizeof(*t->window_wait));
	t->shown_wait = calloc(n, sizeof(*t->shown_wait));
	t->marks = calloc(n, sizeof(*t->marks));
	t->inflight = calloc(n, sizeof(*t->inflight));
	t->settling = calloc(n, sizeof(*t->settling));
	if (t->reconnect)
		t->base_cpus = calloc(n, sizeof(*t->base_cpus));
	return t->cpus && t->active_cpus && t->counts && t->window_wait && t->shown_wait &&
	       t->marks && t->inflight && t->settling && (!t->reconnect || t->base_cpus);
}

static void totals_add_cpu(struct totals *to, const struct pcptune_cpu *c)
{
	to->alloc_pages += c->alloc_pages;
	to->free_pages += c->free_pages;
	to->alloc_zone += c->alloc_zone;
	to->free_zone += c->free_zone;
	to->alloc_direct += c->alloc_direct;
	to->free_direct += c->free_direct;
	to->refills += c->refills;
	to->drains += c->drains;
	to->free_high += c->free_high;
	to->taken[0] += c->lock_alloc_taken;
	to->taken[1] += c->lock_free_taken;
	to->taken[2] += c->lock_agent_taken;
	to->contended[0] += c->lock_alloc_contended;
	to->contended[1] += c->lock_free_contended;
	to->contended[2] += c->lock_agent_contended;
	to->wait_ns[0] += c->lock_alloc_wait_ns;
	to->wait_ns[1] += c->lock_free_wait_ns;
	to->wait_ns[2] += c->lock_agent_wait_ns;
}

static uint64_t sub0(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

void target_cpu_total(struct target *t, uint32_t index, struct pcptune_cpu *ret)
{
	segreader_cpu_total(t->sr, index, ret);
	if (!t->base_cpus)
		return;
#define PCPTUNE_LIST(field, unit, line, para) \
	ret->field = sub0(ret->field, t->base_cpus[index].field);
#define PCPTUNE_ZCTR(field, unit, line, para) \
	ret->field = sub0(ret->field, t->base_cpus[index].field);
#define PCPTUNE_PCTR(field, unit, line, para) \
	ret->field = sub0(ret->field, t->base_cpus[index].field);
#include <pcptune/counters.def>
}

void target_totals(struct target *t, struct totals *ret)
{
	struct pcptune_cpu c;

	memset(ret, 0, sizeof(*ret));
	for (uint32_t i = 0; i < t->n; i++) {
		target_cpu_total(t, i, &c);
		totals_add_cpu(ret, &c);
	}
}

static bool cpu_clock_read(const struct target *t, uint64_t *ret_us)
{
	struct timespec ts;

	if (!t->cpu_known || clock_gettime(t->cpu_clock, &ts))
		return false;
	*ret_us = (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
	return true;
}

bool target_cpu_time(struct target *t, bool now, uint64_t *ret_us)
{
	uint64_t us;

	if (!now || !cpu_clock_read(t, &us) || us < t->cpu_us)
		us = t->cpu_us;
	t->cpu_us = us;
	*ret_us = sub0(us, t->cpu_us_base);
	return us != 0;
}

bool target_unfiltered(const struct target *t)
{
	return t->foreign && remote_filter(foreign_remote(t->foreign));
}

void target_shape(const struct target *t, const struct config *c, struct pcptune_shape *shape)
{
	*shape = t->shape;
	shape->size = sizeof(*shape);
	shape->host_cpus = t->d->host_cpus;
	shape->interval_ms = (uint32_t)c->interval_ms;
	shape->budget_pages = shape->managed_pages / 1000 * (uint64_t)c->budget_permille +
			      shape->managed_pages % 1000 * (uint64_t)c->budget_permille / 1000;
	if (c->budget_permille && !shape->budget_pages)
		shape->budget_pages = 1;
}

static void cpu_clock_open(struct target *t)
{
	uint64_t us;

	t->cpu_known = t->pid > 0 && !clock_getcpuclockid((pid_t)t->pid, &t->cpu_clock);
	if (!cpu_clock_read(t, &us)) {
		t->cpu_known = false;
		return;
	}
	t->cpu_us = us;
	/* what the process used before its segment was made is not the lists' time */
	t->cpu_us_base = t->reconnect ? us : sub0(us, sub0(boot_us(), t->last_us));
	t->last_cpu_us = t->cpu_us_base;
}

/*
 * A new target counts from zero and its first interval began when its segment was made, so that
 * not one page of a short life is missed. After a reconnect the first pass is only a baseline.
 */
static void start_counting(struct target *t)
{
	uint64_t now = boot_us(), start = t->info.start_boot_ns / 1000u;

	t->last_us = !t->reconnect && start < now ? start : now - 1;
	t->window_end_us = now + 1000000u;
	if (!t->reconnect)
		return;
	segreader_rebase(t->sr);
	segreader_sample(t->sr, t->cpus, t->active_cpus);
	for (uint32_t i = 0; i < t->n; i++)
		segreader_cpu_total(t->sr, i, &t->base_cpus[i]);
}

static bool enter(struct daemon *d, struct target *t)
{
	if (d->n_targets == d->max_targets) {
		size_t max = d->max_targets ? d->max_targets * 2 : 16;
		struct target **v = realloc(d->targets, max * sizeof(*v));

		if (!v)
			return false;
		d->targets = v;
		d->max_targets = max;
	}
	d->targets[d->n_targets++] = t;
	return true;
}

static int target_parts(struct daemon *d, struct target *t, char *why)
{
	segreader_info(t->sr, &t->info);
	segreader_shape(t->sr, &t->shape);
	t->n = t->info.n_zones * t->info.n_cpus;
	if (!target_arrays(t) || encoder_new(t->n, &t->enc) < 0 ||
	    effects_new(t->n, (uint32_t)d->config->log.effect_samples, &t->effects) < 0) {
		snprintf(why, POLICY_WHY, "the daemon has no memory for %u CPU slots", t->n);
		return -ENOMEM;
	}
	start_counting(t);
	if (recorder_new(t, !t->reconnect, &t->rec) < 0) {
		snprintf(why, POLICY_WHY, "the daemon has no memory for %u CPU slots", t->n);
		return -ENOMEM;
	}
	cpu_clock_open(t);
	apply_baseline(t);
	choice_copy(&t->configured, choices_match(d->choices, d->config, t->info.name, t->uid));
	t->attached = logstamp_now();
	return 0;
}

static void chunk_phase(struct target *t)
{
	uint64_t chunk_us = (uint64_t)t->d->config->log.chunk_ms * 1000u;

	/* spread over the chunk's time, so that targets do not all write in one tick */
	t->chunk_due_us = boot_us() + chunk_us * (t->id * 37 % 101) / 101;
}

int target_new(struct daemon *d, struct segreader *sr, int fd, int64_t pid, uint32_t uid,
	       bool reconnect, struct target **ret, char *why)
{
	struct target *t = calloc(1, sizeof(*t));
	int r;

	if (!t) {
		snprintf(why, POLICY_WHY, "the daemon has no memory");
		return -ENOMEM;
	}
	t->d = d;
	t->fd = -1;
	t->sr = sr;
	t->pid = pid;
	t->uid = uid;
	t->reconnect = reconnect;
	r = target_parts(d, t, why);
	if (r < 0)
		goto fail;
	journal_target(d->journal, t);
	t->id = t->log_id > 0 && (uint64_t)t->log_id > d->last_id ? (uint64_t)t->log_id
								  : d->last_id + 1;
	r = assign(t, &t->configured, false, why);
	if (r == 0 && !enter(d, t)) {
		snprintf(why, POLICY_WHY, "the daemon has no memory");
		r = -ENOMEM;
	}
	if (r < 0) {
		journal_target_end(d->journal, t, why);
		goto fail;
	}
	d->last_id = t->id;
	t->fd = fd;
	chunk_phase(t);
	summary_enter(d->summary, t);
	heap_grown();
	*ret = t;
	return 0;
fail:
	t->sr = NULL; /* still the caller's */
	target_free(t);
	return r;
}

void target_end(struct target *t, const char *how)
{
	struct daemon *d = t->d;
	size_t i;

	sample_last(t);
	apply_target_gone(t);
	journal_target_end(d->journal, t, how);
	summary_leave(d->summary, t);
	for (i = 0; i < d->n_targets && d->targets[i] != t; i++)
		;
	if (i < d->n_targets)
		memmove(d->targets + i, d->targets + i + 1,
			(--d->n_targets - i) * sizeof(*d->targets));
	say(LOG_INFO, "target %llu %s (pid %lld) detached: %s", (unsigned long long)t->id,
	    t->info.name, (long long)t->pid, how);
	target_free(t);
}

struct target *target_by_id(struct daemon *d, uint64_t id)
{
	for (size_t i = 0; i < d->n_targets; i++) {
		if (d->targets[i]->id == id)
			return d->targets[i];
	}
	return NULL;
}

struct target *target_by_identity(struct daemon *d, const struct segreader_info *info, uint32_t uid)
{
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *t = d->targets[i];

		if (t->info.random_id == info->random_id &&
		    t->info.start_boot_ns == info->start_boot_ns && t->uid == uid)
			return t;
	}
	return NULL;
}

void targets_lease(struct daemon *d)
{
	uint64_t until = clock_ns(CLOCK_MONOTONIC) + (uint64_t)d->config->lease_ms * 1000000u;

	for (size_t i = 0; i < d->n_targets; i++)
		segreader_lease(d->targets[i]->sr, until);
}
