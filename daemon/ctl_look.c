/* SPDX-License-Identifier: MIT */
/*
 * Commands of the control socket that look: at the daemon, at targets, at the sums of a run; and
 * `record`, which hands the rings of a target to whoever asks. Here is also how a request names a
 * target: by its id, by its name, or not at all, which is all of them where all can be meant.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/attach.h"
#include "daemon/ctl_private.h"
#include "daemon/tracing.h"

/* ---- naming targets ---- */

/* "3 page_fault1, 4 sqlite3", as many as fit */
static void list_targets(struct daemon *d, const char *name, char *buf, size_t n)
{
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < d->n_targets; i++) {
		const struct target *t = d->targets[i];

		if (name && strcmp(t->info.name, name))
			continue;
		if (len + PCPTUNE_NAME_MAX + 32 > n) {
			snprintf(buf + len, n - len, " ...");
			return;
		}
		len += (size_t)snprintf(buf + len, n - len, "%s%llu %s", len ? ", " : "",
					(unsigned long long)t->id, t->info.name);
	}
}

static bool names(const json_t *which, const struct target *t)
{
	if (!which)
		return true;
	if (json_is_integer(which))
		return (uint64_t)json_integer_value(which) == t->id;
	return !strcmp(json_string_value(which), t->info.name);
}

static size_t count_named(struct daemon *d, const json_t *which)
{
	size_t n = 0;

	for (size_t i = 0; i < d->n_targets; i++)
		n += names(which, d->targets[i]);
	return n;
}

static void not_found(struct daemon *d, const json_t *which, struct ctl_answer *a)
{
	char list[256];

	list_targets(d, NULL, list, sizeof(list));
	if (json_is_integer(which))
		ctl_fail(a, "not-found", "no target %lld; targets: %s",
			 (long long)json_integer_value(which), list[0] ? list : "none");
	else
		ctl_fail(a, "not-found", "no target \"%.63s\"; targets: %s",
			 json_string_value(which), list[0] ? list : "none");
}

/* The one target that the request names; NULL: a says why not. */
struct target *ctl_one_target(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	const json_t *which = json_object_get(request, "target");
	size_t n = count_named(d, which);
	char list[256];

	if (!n) {
		not_found(d, which, a);
		return NULL;
	}
	if (n > 1) {
		list_targets(d, json_string_value(which), list, sizeof(list));
		ctl_fail(a, "invalid", "\"%.63s\" names %zu targets, use an id: %s",
			 json_string_value(which), n, list);
		return NULL;
	}
	for (size_t i = 0; i < d->n_targets; i++) {
		if (names(which, d->targets[i]))
			return d->targets[i];
	}
	return NULL;
}

/* ---- looking ---- */

void ctl_run_version(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	(void)request;
	a->result = show_daemon(d);
}

static void run_many(struct daemon *d, json_t *request, struct ctl_answer *a,
		     json_t *(*show)(struct target *t), json_t *o)
{
	const json_t *which = json_object_get(request, "target");
	json_t *targets = json_array();

	if (which && !count_named(d, which)) {
		not_found(d, which, a);
		json_decref(targets);
		json_decref(o);
		return;
	}
	for (size_t i = 0; i < d->n_targets; i++) {
		if (names(which, d->targets[i]))
			json_array_append_new(targets, show(d->targets[i]));
	}
	json_object_set_new(o, "targets", targets);
	a->result = o;
}

void ctl_run_status(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	attach_drain(d->attach);
	run_many(d, request, a, show_target, json_pack("{s:o}", "daemon", show_daemon(d)));
}

void ctl_run_targets(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	attach_drain(d->attach);
	run_many(d, request, a, show_target_line, json_object());
}

void ctl_run_counters(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = ctl_one_target(d, request, a);

	if (t)
		a->result = show_counters(t);
}

void ctl_run_summary(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	const char *text = json_string_value(json_object_get(request, "tag"));
	struct run_totals r;
	unsigned long long tag;
	char *end;

	errno = 0;
	tag = strtoull(text, &end, 16);
	if (errno || *end || strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16) {
		ctl_fail(a, "invalid", "tag \"%.40s\", allowed: 16 hexadecimal digits", text);
		return;
	}
	attach_drain(d->attach); /* a process that has just ended may still be in the queue */
	if (summary_get(d->summary, tag, &r) < 0)
		ctl_fail(a, "not-found", "no target with tag %s attached", text);
	else
		a->result = show_run(d, &r);
}

void ctl_run_record(struct daemon *d, json_t *request, struct ctl_answer *a)
{
	struct target *t = ctl_one_target(d, request, a);
	char why[POLICY_WHY];
	int r = t ? tracing_begin(t, a->uid, &a->fd, why) : -ENOENT;

	if (r && t)
		ctl_fail(a, r == -EPERM ? "denied" : "failed", "%s", why);
	if (r)
		return;
	a->has_fd = true;
	a->result = json_pack("{s:I, s:s, s:I, s:I}", "id", (json_int_t)t->id, "name", t->info.name,
			      "pid", (json_int_t)t->pid, "uid", (json_int_t)t->uid);
}
