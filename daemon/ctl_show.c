/* SPDX-License-Identifier: MIT */
/*
 * The state of the daemon as JSON, key by key as docs/control.md says. Numbers are read from the
 * segment when they are asked for, so that they are never older than the answer.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "daemon/clock.h"
#include "daemon/ctl_private.h"
#include "daemon/journal.h"
#include "lib/text.h"
#include <pcptune/rules.h>

static const char *mode_name(uint32_t mode)
{
	return mode == PCPTUNE_MODE_OFF	     ? "off"
	       : mode == PCPTUNE_MODE_LOCKED ? "locked"
	       : mode == PCPTUNE_MODE_RSEQ   ? "rseq"
					     : "unknown";
}

static void put(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void put_text(json_t *o, const char *key, const char *text)
{
	json_t *s = json_string(text);

	json_object_set_new(o, key, s ? s : json_string("?"));
}

/* 100 x waiting / CPU time; null where CPU time is not known */
static json_t *percent(uint64_t wait_ns, uint64_t cpu_us, bool known)
{
	if (!known || !cpu_us)
		return known && !wait_ns ? json_real(0.0) : json_null();
	return json_real((double)wait_ns / 10.0 / (double)cpu_us);
}

/* A target at rest has no samples that would turn its window: what it shows is over. */
static bool window_over(const struct target *t)
{
	uint64_t interval_us = (uint64_t)t->d->config->interval_ms * 1000u;

	return boot_us() > t->window_end_us + 1000000u + 2 * interval_us;
}

static json_t *window_percent(const struct target *t, uint64_t wait_ns)
{
	if (window_over(t))
		return percent(0, 0, t->cpu_us != 0);
	return percent(wait_ns, t->shown_cpu_us + t->window_cpu_us, t->cpu_us != 0);
}

static json_t *show_log(struct daemon *d)
{
	static const char *const names[] = {"off", "ok", "lost"};
	struct journal_losses lost;
	const char *path = journal_path(d->journal);
	json_t *o = json_object();

	journal_losses(d->journal, &lost);
	json_object_set_new(o, "enabled", json_boolean(d->config->log.enabled));
	json_object_set_new(o, "path", path ? json_string(path) : json_null());
	put_text(o, "state", names[journal_state(d->journal)]);
	put(o, "lost_samples", lost.samples);
	put(o, "lost_decisions", lost.decisions);
	json_object_set_new(o, "error", *lost.error ? json_string(lost.error) : json_null());
	return o;
}

json_t *show_daemon(struct daemon *d)
{
	json_t *o = json_object();

	put_text(o, "version", PCPTUNE_VERSION);
	put(o, "pid", (uint64_t)getpid());
	json_object_set_new(o, "uptime_s", json_real((double)(mono_ms() - d->start_ms) / 1000.0));
	put_text(o, "socket", d->config->socket);
	json_object_set_new(o, "config",
			    d->config->file ? json_string(d->config->file) : json_null());
	put(o, "interval_ms", (uint64_t)d->config->interval_ms);
	json_object_set_new(o, "dry_run", json_boolean(d->config->dry_run));
	put(o, "n_targets", d->n_targets);
	json_object_set_new(o, "log", show_log(d));
	return o;
}

static const char *policy_state(const struct target *t)
{
	if (t->benched)
		return "benched";
	if (t->stands_in)
		return "starting";
	if (t->canary)
		return "canary";
	for (uint32_t i = 0; i < t->n; i++) {
		if (!(t->marks[i].flags & MARK_PINNED))
			return "running";
	}
	return "pinned";
}

/* What chose the policy; and what keeps it from acting. */
static void put_why(json_t *o, struct target *t)
{
	char text[sizeof(t->policy_why) + 80];

	snprintf(text, sizeof(text), "%s%s", t->policy_why,
		 journal_holds(t->d->journal) ? "; held: the log can not be written (log.required)"
					      : "");
	put_text(o, "why", text);
}

json_t *show_target_line(struct target *t)
{
	json_t *o = json_object();

	put(o, "id", t->id);
	put_text(o, "name", t->info.name);
	put(o, "pid", (uint64_t)t->pid);
	put(o, "uid", t->uid);
	put_text(o, "policy", policy_desc(t->active.module)->name);
	json_object_set_new(o, "attached_s",
			    json_real((double)(boot_us() - t->attached.boot_us) / 1e6));
	put(o, "held_pages", t->held);
	put(o, "decisions", t->decisions);
	return o;
}

/*
 * Is there a change that the target has not taken over, as of now rather than of the last sample?
 */
static bool waiting(struct target *t, uint32_t i)
{
	struct control words;
	uint32_t seq, ack;

	if (!(t->marks[i].flags & MARK_INFLIGHT))
		return false;
	segreader_control_read(t->sr, i, &words, &seq, &ack);
	return ack != t->marks[i].seq;
}

static json_t *show_cpu(struct target *t, uint32_t i, const struct pcptune_cpu *c)
{
	const struct mark *m = &t->marks[i];
	json_t *o = json_object();

	put(o, "cpu", i % t->info.n_cpus);
	json_object_set_new(o, "shared", json_boolean(i % t->info.n_cpus == t->info.n_cpus - 1));
	put(o, "count", c->count);
	put(o, "high", c->high);
	put(o, "high_min", c->high_min);
	put(o, "high_max", c->high_max);
	put(o, "batch", c->batch);
	put(o, "scale_max", c->scale_max);
	put_text(o, "rules", pcptune_rules_name(c->rules));
	put(o, "alloc_pages", c->alloc_pages);
	put(o, "free_pages", c->free_pages);
	put(o, "alloc_zone", c->alloc_zone);
	put(o, "free_zone", c->free_zone);
	put(o, "refills", c->refills);
	put(o, "drains", c->drains);
	put(o, "free_high", c->free_high);
	json_object_set_new(o, "contend_pct",
			    window_percent(t, t->shown_wait[i] + t->window_wait[i]));
	json_object_set_new(o, "pinned", json_boolean(m->flags & MARK_PINNED));
	json_object_set_new(o, "waiting", json_boolean(waiting(t, i)));
	json_object_set_new(o, "drift", json_boolean(m->flags & MARK_DRIFT));
	return o;
}

static json_t *show_zone(struct target *t, uint32_t zone)
{
	json_t *o = json_object(), *cpus = json_array();
	struct segreader_zone z;
	struct pcptune_cpu c;

	segreader_zone(t->sr, zone, &z);
	put(o, "id", z.id);
	json_object_set_new(o, "node", json_integer(z.node));
	put(o, "managed_pages", z.managed_pages);
	put(o, "free_pages", z.free_pages);
	put(o, "low_wmark_pages", z.low_wmark_pages);
	put(o, "hold_p50_ns", segreader_hold_ns(&z, 500));
	put(o, "hold_p99_ns", segreader_hold_ns(&z, 990));
	put(o, "hold_max_ns", z.hold_max_ns);
	for (uint32_t i = zone * t->info.n_cpus; i < (zone + 1) * t->info.n_cpus; i++) {
		target_cpu_total(t, i, &c);
		if (c.high)
			json_array_append_new(cpus, show_cpu(t, i, &c));
	}
	json_object_set_new(o, "cpus", cpus);
	return o;
}

json_t *show_target(struct target *t)
{
	json_t *o = show_target_line(t), *zones = json_array();
	char tag[24];
	uint64_t us;
	bool known = target_cpu_time(t, true, &us);

	snprintf(tag, sizeof(tag), "%016llx", (unsigned long long)t->info.run_tag);
	json_object_set_new(o, "tag", t->info.run_tag ? json_string(tag) : json_null());
	put_text(o, "mode", mode_name(segreader_mode(t->sr)));
	put_text(o, "policy_state", policy_state(t));
	json_object_set_new(o, "unfiltered", json_boolean(target_unfiltered(t)));
	put_why(o, t);
	json_object_set_new(o, "dry_run", json_boolean(t->active.dry_run));
	json_object_set_new(o, "cpu_us", known ? json_integer((json_int_t)us) : json_null());
	json_object_set_new(o, "contend_pct",
			    window_percent(t, t->shown_wait_ns + t->window_wait_ns));
	for (uint32_t z = 0; z < t->info.n_zones; z++)
		json_array_append_new(zones, show_zone(t, z));
	json_object_set_new(o, "zones", zones);
	return o;
}

static json_t *show_param(const struct pcptune_param *p, int64_t value)
{
	if (p->type == PCPTUNE_PARAM_BOOL)
		return json_boolean(value != 0);
	if (p->type == PCPTUNE_PARAM_ENUM && value >= 0)
		return json_string(p->choices[value]);
	return json_integer(value);
}

json_t *show_policy(struct target *t)
{
	const struct pcptune_policy *p = policy_desc(t->active.module);
	json_t *o = json_object(), *params = json_object();

	put(o, "target", t->id);
	put_text(o, "policy", p->name);
	put_text(o, "version", p->version);
	for (uint32_t i = 0; i < p->n_params; i++) {
		const struct pcptune_param *row = policy_param(t->active.module, i);

		json_object_set_new(params, row->name, show_param(row, t->active.params[i]));
	}
	for (uint32_t i = 0; i < POLICY_HOST_PARAMS; i++) {
		if (policy_host_param_used(t->active.params, i))
			put(params, policy_host_param(i)->name,
			    (uint64_t)t->active.params[POLICY_OWN_PARAMS + i]);
	}
	json_object_set_new(o, "params", params);
	put_why(o, t);
	put_text(o, "state", policy_state(t));
	return o;
}

static json_t *show_cpu_counters(struct target *t, uint32_t i)
{
	json_t *o = json_object();
	struct pcptune_cpu c;

	target_cpu_total(t, i, &c);
	put(o, "cpu", i % t->info.n_cpus);
	json_object_set_new(o, "shared", json_boolean(i % t->info.n_cpus == t->info.n_cpus - 1));
	put(o, "count", c.count);
#define PCPTUNE_LIST(field, unit, line, para)  put(o, #field, c.field);
#define PCPTUNE_ZCTR(field, unit, line, para)  put(o, #field, c.field);
#define PCPTUNE_PCTR(field, unit, line, para)  put(o, #field, c.field);
#define PCPTUNE_GAUGE(field, unit, line, para) put(o, #field, c.field);
#include <pcptune/counters.def>
	return o;
}

static json_t *show_zone_counters(struct target *t, uint32_t zone)
{
	json_t *o = json_object(), *cpus = json_array();
	struct segreader_zone z;

	segreader_zone(t->sr, zone, &z);
	put(o, "id", z.id);
	json_object_set_new(o, "node", json_integer(z.node));
#define PCPTUNE_ZGAUGE(field, unit, line, para) put(o, #field, z.field);
#define PCPTUNE_HOLD(field, unit, line, para)	put(o, #field, z.field);
#include <pcptune/counters.def>
	for (uint32_t i = zone * t->info.n_cpus; i < (zone + 1) * t->info.n_cpus; i++)
		json_array_append_new(cpus, show_cpu_counters(t, i));
	json_object_set_new(o, "cpus", cpus);
	return o;
}

json_t *show_counters(struct target *t)
{
	json_t *o = json_object(), *zones = json_array(), *proc = json_object();
	struct segreader_proc p;

	put(o, "target", t->id);
	put_text(o, "name", t->info.name);
	for (uint32_t z = 0; z < t->info.n_zones; z++)
		json_array_append_new(zones, show_zone_counters(t, z));
	json_object_set_new(o, "zones", zones);
	segreader_proc(t->sr, &p);
#define PCPTUNE_PROC(field, unit, line, para) put(proc, #field, p.field);
#include <pcptune/counters.def>
	json_object_set_new(o, "proc", proc);
	return o;
}

/* ---- a run: the sums of all targets with its tag ---- */

static json_t *lock_totals(const struct totals *c)
{
	static const char *const path[] = {"alloc", "free", "agent"};
	json_t *o = json_object();

	for (int i = 0; i < 3; i++)
		json_object_set_new(o, path[i],
				    json_pack("{s:I, s:I, s:I}", "taken", (json_int_t)c->taken[i],
					      "contended", (json_int_t)c->contended[i], "wait_ns",
					      (json_int_t)c->wait_ns[i]));
	return o;
}

static json_t *contend(uint64_t wait_ns, const struct run_totals *r)
{
	if (!r->cpu_known || !r->cpu_us)
		return json_null();
	return json_real((double)wait_ns / 10.0 / (double)r->cpu_us);
}

static uint64_t waste(const struct segreader_proc *p)
{
	uint64_t given = p->malloc_pages << PCPTUNE_PAGE_SHIFT;

	return given > p->malloc_bytes ? given - p->malloc_bytes : 0;
}

json_t *show_run(struct daemon *d, const struct run_totals *r)
{
	const struct totals *c = &r->counters;
	const char *db = journal_path(d->journal);
	char tag[24];
	json_t *o = json_object();
	const struct {
		const char *name;
		uint64_t value;
	} rows[] = {
		{"targets", r->targets},
		{"live", r->live},
		{"pages_allocated", c->alloc_pages},
		{"pages_freed", c->free_pages},
		{"alloc_zone", c->alloc_zone},
		{"free_zone", c->free_zone},
		{"alloc_direct", c->alloc_direct},
		{"free_direct", c->free_direct},
		{"refills", c->refills},
		{"drains", c->drains},
		{"free_high", c->free_high},
		{"lock_takes", c->taken[0] + c->taken[1]},
		{"lock_contended", c->contended[0] + c->contended[1]},
		{"cpu_us", r->cpu_us},
		{"pages_held", r->held},
		{"pages_held_peak", r->held_peak},
		{"decisions", r->decisions},
		{"malloc_calls", r->proc.malloc_calls},
		{"malloc_bytes", r->proc.malloc_bytes},
		{"malloc_pages", r->proc.malloc_pages},
		{"malloc_passed", r->proc.malloc_passed},
		{"waste_bytes", waste(&r->proc)},
	};

	snprintf(tag, sizeof(tag), "%016llx", (unsigned long long)r->tag);
	json_object_set_new(o, "tag", json_string(tag));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		put(o, rows[i].name, rows[i].value);
	json_object_set_new(o, "lock", lock_totals(c));
	json_object_set_new(o, "contend_pct", contend(c->wait_ns[0] + c->wait_ns[1], r));
	json_object_set_new(o, "contend_pct_alloc", contend(c->wait_ns[0], r));
	json_object_set_new(o, "contend_pct_free", contend(c->wait_ns[1], r));
	json_object_set_new(o, "dry_run", json_boolean(r->dry_run));
	json_object_set_new(o, "db", db ? json_string(db) : json_null());
	return o;
}
