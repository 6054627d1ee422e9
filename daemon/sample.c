/* SPDX-License-Identifier: MIT */
/*
 * Every interval, one pass over all targets: read, decide, log, apply.
 *
 * Time. Ticks lie on a grid of the monotonic clock. A tick that comes late is not made up for: the
 * grid's missed points are left out, and when the lateness is more than four intervals (suspend, a
 * stopped machine, a debugger) the samples of that tick carry the gap flag, with their true dt.
 *
 * A target at rest costs one call of segreader_sample(). As long as nothing moves and its policy
 * said that it can rest, nothing is emitted; the next sample has a dt over the whole stretch.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/apply.h"
#include "daemon/clock.h"
#include "daemon/decide.h"
#include "daemon/effect.h"
#include "daemon/journal.h"
#include "daemon/record.h"
#include "daemon/sample.h"
#include "daemon/say.h"
#include "daemon/summary.h"

#define WINDOW_US    1000000u
#define GAP_FACTOR   4u
#define RECOUNT	     64u /* samples between two full sums of held pages */
#define EVENT_GAP_US 2000000u

struct sampler {
	struct daemon *d;
	struct event *tick_ev, *second_ev, *lease_ev;
	uint64_t next_us;      /* monotonic: the grid */
	uint64_t last_boot_us; /* of the tick before */
	uint64_t mem_available;
	int meminfo;
};

/* ---- parts of a sample ---- */

static void count_held(struct target *t, uint32_t n_active)
{
	uint64_t held = t->held;

	if (t->seq % RECOUNT == 1) {
		held = 0;
		for (uint32_t i = 0; i < t->n; i++)
			held += t->counts[i] = t->cpus[i].count;
	} else {
		for (uint32_t k = 0; k < n_active; k++) {
			uint32_t i = t->active_cpus[k];

			held += (uint64_t)t->cpus[i].count - t->counts[i];
			t->counts[i] = t->cpus[i].count;
		}
	}
	if (held != t->held)
		summary_held(t, t->held, held);
	t->held = held;
	if (held > t->held_peak)
		t->held_peak = held;
}

static void window_turn(struct target *t, uint64_t now)
{
	uint64_t *swap = t->shown_wait;

	t->shown_wait = t->window_wait;
	t->window_wait = swap;
	memset(t->window_wait, 0, t->n * sizeof(*t->window_wait));
	t->shown_wait_ns = t->window_wait_ns;
	t->shown_cpu_us = t->window_cpu_us;
	t->window_wait_ns = t->window_cpu_us = 0;
	t->window_end_us = now + WINDOW_US;
}

static void count_waits(struct target *t, uint32_t n_active, uint64_t cpu_us, uint64_t now)
{
	if (now >= t->window_end_us)
		window_turn(t, now);
	t->window_cpu_us += cpu_us;
	for (uint32_t k = 0; k < n_active; k++) {
		const struct pcptune_cpu *c = &t->cpus[t->active_cpus[k]];
		uint64_t ns;

		if (c->flags & PCPTUNE_CPU_LISTS_ONLY)
			continue;
		ns = c->lock_alloc_wait_ns + c->lock_free_wait_ns;
		if (!ns)
			continue;
		t->window_wait[t->active_cpus[k]] += ns;
		t->window_wait_ns += ns;
	}
}

static uint64_t cpu_delta(struct target *t)
{
	uint64_t us, d;

	target_cpu_time(t, true, &us);
	us = t->cpu_us;
	d = us > t->last_cpu_us ? us - t->last_cpu_us : 0;
	t->last_cpu_us = us;
	return d;
}

/* Since the sample before, where somebody asks. */
static uint64_t long_holds(struct target *t)
{
	uint64_t now, before = t->long_holds;

	if (!policy_instance_wants_holds(t->pi)) {
		t->long_holds_known = false;
		return 0;
	}
	now = segreader_long_holds(t->sr);
	t->long_holds = now;
	if (!t->long_holds_known || now < before)
		before = now;
	t->long_holds_known = true;
	return now - before;
}

static void fill(struct target *t, struct pcptune_sample *s, uint32_t n_active, uint64_t now,
		 uint64_t mem_available)
{
	memset(s, 0, sizeof(*s));
	s->size = sizeof(*s);
	s->flags = (t->fresh ? PCPTUNE_SAMPLE_FIRST : 0u) | (t->gap ? PCPTUNE_SAMPLE_GAP : 0u);
	s->seq = ++t->seq;
	s->time_us = now;
	s->dt_us = now > t->last_us ? now - t->last_us : 1;
	s->cpu_us = cpu_delta(t);
	s->mem_available = mem_available;
	s->n_cpus = t->n;
	s->cpu_size = sizeof(struct pcptune_cpu);
	s->cpus = t->cpus;
	s->active = t->active_cpus;
	s->n_active = n_active;
	s->long_holds = long_holds(t);
	t->last_us = now;
	t->gap = false;
}

static void emit(struct target *t, uint32_t n_active, uint64_t now, uint64_t mem_available)
{
	const struct log_record *records = NULL;
	struct pcptune_sample s;
	uint32_t n_records = 0;

	fill(t, &s, n_active, now, mem_available);
	count_held(t, n_active);
	count_waits(t, n_active, s.cpu_us, now);
	effects_sample(t->effects, t->cpus, t->active_cpus, n_active);
	if (record_due(t, now))
		n_records = record_take(t, &s, &records);
	if (n_records)
		journal_records(t->d->journal, t, records, n_records);
	decide(t, &s);
}

/* next: the one that is sampled after t, NULL: none */
static void sample_target(struct sampler *sp, struct target *t, struct target *next, uint64_t now,
			  bool gap)
{
	uint32_t n;

	t->gap |= gap;
	if (t->kept.asked) { /* its policy has not answered yet */
		foreign_check(t->foreign);
		return;
	}
	if (next)
		segreader_next(t->sr, next->sr);
	n = segreader_sample(t->sr, t->cpus, t->active_cpus);
	if (t->n_inflight)
		apply_acks(t);
	if (t->n_settling)
		apply_settle(t, now);
	if (!n && t->seq && !t->fresh && now < t->rest_until_us)
		return;
	apply_check(t);
	emit(t, n, now, sp->mem_available);
}

static void last_records(struct target *t)
{
	const struct log_record *r;
	uint32_t n = record_rest(t, true, &r);

	for (; n; n = record_rest(t, false, &r))
		journal_records(t->d->journal, t, r, n);
}

void sample_last(struct target *t)
{
	uint64_t now = boot_us();
	uint32_t n;

	decide_no_more(t);
	n = segreader_sample(t->sr, t->cpus, t->active_cpus);

	if (n || !t->seq) {
		apply_hold_all(t);
		emit(t, n, now, t->d->sampler ? t->d->sampler->mem_available : 0);
	}
	last_records(t);
}

/* ---- the timers ---- */

static void next_tick(struct sampler *sp)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC) / 1000u;
	uint64_t step = (uint64_t)sp->d->config->interval_ms * 1000u, wait;
	struct timeval tv;

	sp->next_us += step;
	if (sp->next_us <= now)
		sp->next_us += (now - sp->next_us) / step * step + step;
	wait = sp->next_us - now;
	tv.tv_sec = (time_t)(wait / 1000000u);
	tv.tv_usec = (suseconds_t)(wait % 1000000u);
	event_add(sp->tick_ev, &tv);
}

static bool find_gap(struct sampler *sp, uint64_t now)
{
	uint64_t step = (uint64_t)sp->d->config->interval_ms * 1000u;
	uint64_t since = now - sp->last_boot_us;
	bool gap = sp->last_boot_us && since > GAP_FACTOR * step;

	sp->last_boot_us = now;
	if (gap && since > EVENT_GAP_US + step)
		journal_event(sp->d->journal, NULL, "gap",
			      "no samples for %llu ms: suspended or stalled",
			      (unsigned long long)(since / 1000u));
	return gap;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct sampler *sp = arg;
	struct daemon *d = sp->d;
	uint64_t now = boot_us();
	bool gap = find_gap(sp, now);

	(void)fd;
	(void)what;
	for (size_t i = 0; i < d->n_targets; i++) {
		struct target *next = i + 1 < d->n_targets ? d->targets[i + 1] : NULL;

		sample_target(sp, d->targets[i], next, now, gap);
	}
	decide_flush(d, false);
	next_tick(sp);
}

static void read_meminfo(struct sampler *sp)
{
	char buf[512], *line;
	ssize_t n = sp->meminfo < 0 ? -1 : pread(sp->meminfo, buf, sizeof(buf) - 1, 0);
	unsigned long long kib;

	sp->mem_available = 0;
	if (n <= 0)
		return;
	buf[n] = '\0';
	line = strstr(buf, "MemAvailable:");
	if (!line)
		return;
	kib = strtoull(line + strlen("MemAvailable:"), NULL, 10);
	sp->mem_available = kib / 4;
}

static void on_second(evutil_socket_t fd, short what, void *arg)
{
	struct sampler *sp = arg;

	(void)fd;
	(void)what;
	read_meminfo(sp);
	journal_housekeeping(sp->d->journal);
}

static void arm_lease(struct sampler *sp)
{
	uint64_t us = (uint64_t)sp->d->config->lease_ms * 500u;
	struct timeval tv = {(time_t)(us / 1000000u), (suseconds_t)(us % 1000000u)};

	event_add(sp->lease_ev, &tv);
}

/* Renewed at half-time; not persistent, since a reload may change the length. */
static void on_lease(evutil_socket_t fd, short what, void *arg)
{
	struct sampler *sp = arg;

	(void)fd;
	(void)what;
	targets_lease(sp->d);
	arm_lease(sp);
}

int sampler_new(struct daemon *d, struct sampler **ret)
{
	struct sampler *sp = calloc(1, sizeof(*sp));
	struct timeval second = {1, 0};

	if (!sp)
		return -ENOMEM;
	sp->d = d;
	sp->meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	sp->tick_ev = event_new(d->base, -1, 0, on_tick, sp);
	sp->second_ev = event_new(d->base, -1, EV_PERSIST, on_second, sp);
	sp->lease_ev = event_new(d->base, -1, 0, on_lease, sp);
	if (!sp->tick_ev || !sp->second_ev || !sp->lease_ev) {
		sampler_free(sp);
		return -ENOMEM;
	}
	read_meminfo(sp);
	event_add(sp->second_ev, &second);
	arm_lease(sp);
	sp->next_us = clock_ns(CLOCK_MONOTONIC) / 1000u;
	next_tick(sp);
	*ret = sp;
	return 0;
}

void sampler_free(struct sampler *sp)
{
	if (!sp)
		return;
	if (sp->tick_ev)
		event_free(sp->tick_ev);
	if (sp->second_ev)
		event_free(sp->second_ev);
	if (sp->lease_ev)
		event_free(sp->lease_ev);
	if (sp->meminfo >= 0)
		close(sp->meminfo);
	free(sp);
}
