/* SPDX-License-Identifier: MIT */
/*
 * Reads workload files by one table of keys: group, name, range, field. What is unknown, missing,
 * of the wrong type or out of range is said with file and line, and with what is right. What
 * belongs to the CPUs' work is there for streams or for processes, not for both.
 */
#include "eval/sim/workload.h"

#include <errno.h>
#include <libconfig.h>
#include <math.h>
#include <pcptune/rules.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct key {
	const char *group, *name;
	bool real; /* double, else int64_t */
	double min, max;
	size_t field;
};

#define FIELD(group, name, field, min, max)                                         \
	{                                                                           \
		group, #name, false, min, max, offsetof(struct sim_workload, field) \
	}
#define INT(group, name, min, max) FIELD(group, name, name, min, max)
#define REAL(group, name, min, max)                                               \
	{                                                                         \
		group, #name, true, min, max, offsetof(struct sim_workload, name) \
	}
static const struct key keys[] = {
	INT("machine", nodes, 1, SIM_NODES_MAX),
	INT("machine", batch, 1, 1024),
	INT("machine", scale_max, 0, 6),
	INT("machine", high_min, 4, 1 << 22),
	INT("machine", high_max, 4, 1 << 22),
	INT("machine", data_cache_pages, 0, 1 << 20),
	REAL("machine", smt, 0.1, 1),
	INT("machine", hold_ns, 0, 1000000),
	INT("machine", hold_contended_ns, 0, 1000000),
	INT("machine", hold_refill_ns, 0, 100000),
	INT("machine", hold_drain_ns, 0, 100000),
	INT("machine", tick_ns, 1000000, 1000000000000),
	INT("machine", lru_locks, 0, SIM_LRU_MAX),
	INT("machine", lru_page_ns, 0, 1000000),
	REAL("processes", large_share, 0, 1),
	INT("processes", large_pages, 1, 1000000),
	INT("processes", large_page_ns, 1, 100000000),
	INT("processes", small_pages, 1, 1000000),
	INT("processes", small_page_ns, 1, 100000000),
	REAL("processes", sigma, 0, 3),
	INT("processes", exec_pages, 1, 100000),
	INT("processes", exec_page_ns, 1, 1000000),
	INT("processes", fault_burst, 1, 100000),
	INT("processes", fault_page_ns, 1, 1000000),
	REAL("processes", kept, 0, 1),
	INT("processes", free_page_ns, 1, 1000000),
	INT("processes", idle_ns, 0, 1000000000000),
	REAL("processes", counter, 0, 1),
	REAL("processes", other_holds, 0, 1),
	REAL("processes", migrate, 0, 1),
	REAL("slab", bursts, 0, 30),
	INT("slab", burst_delay_ns, 1, 10000000000),
	INT("slab", burst_pages, 0, 10000),
	REAL("slab", burst_blocks, 1, 100),
	REAL("slab", burst_order1, 0, 1),
	REAL("slab", burst_order2, 0, 1),
	REAL("slab", burst_order3, 0, 1),
	REAL("slab", at_exit, 0, 1),
	FIELD("stream", order0, stream_order0, 0, 1000),
	FIELD("stream", order1, stream_order1, 0, 1000),
	FIELD("stream", order2, stream_order2, 0, 1000),
	FIELD("stream", order3, stream_order3, 0, 1000),
	INT("stream", send_ns, 0, 1000000000),
	INT("stream", receive_ns, 0, 1000000000),
	INT("stream", block_ns, 1, 1000000),
	INT("stream", cold_page_ns, 0, 1000000),
	INT("stream", window, 1, 1000000),
	INT("stream", swap_ns, 0, 1000000000000),
	INT("run", warm_ns, 0, 1000000000000),
	INT("run", run_ns, 1000000, 1000000000000),
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

struct reader {
	const char *path;
	struct sim_workload *w;
	bool seen[N_KEYS];
	char *why;
};

static int wrong(const struct reader *r, const config_setting_t *s, const char *text)
{
	snprintf(r->why, SIM_WHY, "%s:%u: %s", r->path, config_setting_source_line(s), text);
	return -EINVAL;
}

static void range_text(const struct key *k, char *buf, size_t n)
{
	snprintf(buf, n, "a %s from %.12g to %.12g", k->real ? "number" : "whole number", k->min,
		 k->max);
}

static int store(struct reader *r, const struct key *k, const config_setting_t *s)
{
	int type = config_setting_type(s);
	bool whole = type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64;
	double v = whole ? (double)config_setting_get_int64(s) : config_setting_get_float(s);
	char right[96], text[256];

	range_text(k, right, sizeof(right));
	if ((!whole && (type != CONFIG_TYPE_FLOAT || !k->real)) || !(v >= k->min && v <= k->max)) {
		snprintf(text, sizeof(text), "%s.%s: right is %s", k->group, k->name, right);
		return wrong(r, s, text);
	}
	if (k->real)
		*(double *)((char *)r->w + k->field) = v;
	else
		*(int64_t *)((char *)r->w + k->field) = config_setting_get_int64(s);
	r->seen[k - keys] = true;
	return 0;
}

static int read_group(struct reader *r, const config_setting_t *group)
{
	const char *name = config_setting_name(group);
	char text[256];
	bool known = false;

	for (size_t i = 0; i < N_KEYS; i++)
		known |= !strcmp(keys[i].group, name);
	if (!known || !config_setting_is_group(group)) {
		snprintf(text, sizeof(text),
			 "%s: not a group that there is; right are machine, processes, slab, "
			 "stream, run",
			 name);
		return wrong(r, group, text);
	}
	for (int i = 0; i < config_setting_length(group); i++) {
		const config_setting_t *s = config_setting_get_elem(group, (unsigned)i);
		const struct key *found = NULL;
		int e;

		for (size_t k = 0; k < N_KEYS; k++)
			if (!strcmp(keys[k].group, name) &&
			    !strcmp(keys[k].name, config_setting_name(s)))
				found = &keys[k];
		if (!found) {
			snprintf(text, sizeof(text), "%s.%s: no such key", name,
				 config_setting_name(s));
			return wrong(r, s, text);
		}
		e = store(r, found, s);
		if (e)
			return e;
	}
	return 0;
}

static bool has_group(const struct reader *r, const char *group)
{
	for (size_t i = 0; i < N_KEYS; i++)
		if (r->seen[i] && !strcmp(keys[i].group, group))
			return true;
	return false;
}

/* Is this group left out rightly? */
static bool not_needed(const struct reader *r, const char *group)
{
	bool stream = has_group(r, "stream");

	return strcmp(group, "stream")
		       ? stream && (!strcmp(group, "processes") || !strcmp(group, "slab"))
		       : !stream;
}

static int whole_wrong(const struct reader *r, const char *text)
{
	snprintf(r->why, SIM_WHY, "%s:1: %s", r->path, text);
	return -EINVAL;
}

static int check_whole(struct reader *r)
{
	const struct sim_workload *w = r->w;

	if (has_group(r, "stream") && (has_group(r, "processes") || has_group(r, "slab")))
		return whole_wrong(r, "stream and processes; right is one of them (slab belongs to "
				      "processes)");
	for (size_t i = 0; i < N_KEYS; i++) {
		char right[96], text[256];

		if (r->seen[i] || not_needed(r, keys[i].group))
			continue;
		range_text(&keys[i], right, sizeof(right));
		snprintf(text, sizeof(text), "%s.%s is missing: %s", keys[i].group, keys[i].name,
			 right);
		return whole_wrong(r, text);
	}
	if (w->high_max < w->high_min)
		return whole_wrong(r, "machine.high_max is below machine.high_min");
	if (!w->window && w->burst_order1 + w->burst_order2 + w->burst_order3 <= 0)
		return whole_wrong(r, "slab.burst_order1 to 3 are all 0; one of them is above");
	if (w->window &&
	    !(w->stream_order0 + w->stream_order1 + w->stream_order2 + w->stream_order3))
		return whole_wrong(r, "stream.order0 to 3 are all 0; one of them is above");
	return 0;
}

static int parse(struct reader *r, config_t *c)
{
	FILE *f = fopen(r->path, "r");
	int e = -errno, ok;

	if (!f) {
		snprintf(r->why, SIM_WHY, "%s: %s", r->path, strerror(-e));
		return e;
	}
	ok = config_read(c, f);
	fclose(f);
	if (!ok) {
		snprintf(r->why, SIM_WHY, "%s:%d: %s", r->path, config_error_line(c),
			 config_error_text(c));
		return -EINVAL;
	}
	for (int i = 0; i < config_setting_length(config_root_setting(c)); i++) {
		e = read_group(r, config_setting_get_elem(config_root_setting(c), (unsigned)i));
		if (e)
			return e;
	}
	return check_whole(r);
}

int sim_workload_read(const char *path, struct sim_workload *ret, char *why)
{
	struct sim_workload w = {0};
	struct reader r = {.path = path, .w = &w, .why = why};
	config_t c;
	int e;

	config_init(&c);
	e = parse(&r, &c);
	config_destroy(&c);
	if (!e)
		*ret = w;
	return e;
}
