/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the log store share: a directory of its own, and rows with known values.
 */
#ifndef PCPTUNE_TESTS_LOGSTORE_FIXTURE_H
#define PCPTUNE_TESTS_LOGSTORE_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "lib/logstore_private.h"
#include "tests/unit/scratch.h"

static char fx_dir[SCRATCH_MAX];
static char fx_path[160];

static inline int fx_set_up(void **state)
{
	(void)state;
	if (!scratch_dir(fx_dir))
		return -1;
	snprintf(fx_path, sizeof(fx_path), "%s/log.db", fx_dir);
	return 0;
}

static inline int fx_tear_down(void **state)
{
	char cmd[320];

	(void)state;
	snprintf(cmd, sizeof(cmd), "chmod -R u+rwx '%s'; rm -rf '%s'", fx_dir, fx_dir);
	return system(cmd);
}

static inline void fx_remove(void)
{
	static const char *const suffix[] = {"", "-wal", "-shm", "-journal"};
	char p[200];

	for (size_t i = 0; i < 4; i++) {
		snprintf(p, sizeof(p), "%s%s", fx_path, suffix[i]);
		unlink(p);
	}
}

static inline struct logstore *fx_open(uint64_t max_bytes)
{
	struct logstore_options o = {.max_bytes = max_bytes, .busy_ms = 2000};
	struct logstore *ls = NULL;
	char why[LOGSTORE_WHY] = "";
	int r = logstore_open(fx_path, &o, &ls, NULL, why);

	if (r)
		fail_msg("open: %d %s", r, why);
	return ls;
}

#define OK(ls, x)                                                           \
	do {                                                                \
		int r_ = (x);                                               \
		if (r_)                                                     \
			fail_msg("%s: %d: %s", #x, r_, logstore_error(ls)); \
	} while (0)

static inline struct logstamp fx_t(uint64_t s)
{
	return (struct logstamp){.boot_us = s * 1000000, .wall_us = (1700000000 + s) * 1000000};
}

static inline struct log_target fx_target(int64_t run, const char *name)
{
	struct log_target t = {.run = run,
			       .pid = 12,
			       .uid = 4000000000u,
			       .start_boot_ns = 13,
			       .random_id = 0xfedcba9876543210,
			       .run_tag = 0x8000000000000001,
			       .mode = 1,
			       .seg_flags = 2,
			       .attached = fx_t(5)};

	t.shape = (struct pcptune_shape){.size = sizeof(t.shape),
					 .n_zones = 2,
					 .n_cpus = 65,
					 .host_cpus = 4,
					 .managed_pages = 100000,
					 .low_wmark_pages = 300,
					 .budget_pages = 12500,
					 .high_limit = 4096,
					 .interval_ms = 100};
	snprintf(t.name, sizeof(t.name), "%s", name);
	return t;
}

static inline struct log_assignment fx_assignment(int64_t target, const char *policy)
{
	struct log_assignment a = {.target = target, .seq_first = 1, .t = fx_t(6)};

	a.shape = fx_target(0, "").shape;
	snprintf(a.policy, sizeof(a.policy), "%s", policy);
	snprintf(a.version, sizeof(a.version), "1.2");
	snprintf(a.params, sizeof(a.params), "raise=2 floor=64");
	snprintf(a.why, sizeof(a.why), "default");
	return a;
}

static inline struct log_decision fx_decision(int64_t target, int64_t assignment, uint64_t seq)
{
	struct log_decision d = {.target = target,
				 .assignment = assignment,
				 .seq = seq,
				 .t = fx_t(seq),
				 .zone = 1,
				 .cpu = (uint32_t)(seq % 4),
				 .reason = 7,
				 .arg = {-1, 2, INT64_MAX, INT64_MIN},
				 .old = {1, 2, 3, 4, 5, 6},
				 .proposed = {11, 12, 13, 14, 15, 16},
				 .clamped = {21, 22, 23, 24, 25, UINT32_MAX},
				 .outcome = LOG_JOURNALED};

	snprintf(d.reason_name, sizeof(d.reason_name), "contended");
	return d;
}

static inline struct chunk_totals fx_totals(uint64_t seq_first, uint64_t seq_last)
{
	return (struct chunk_totals){.seq_first = seq_first,
				     .seq_last = seq_last,
				     .n_samples = (uint32_t)(seq_last - seq_first + 1),
				     .n_records = 40,
				     .time_us = seq_last * 100000,
				     .dt_us = 100000 * (seq_last - seq_first + 1),
				     .cpu_us = 5,
				     .alloc_pages = 6,
				     .free_pages = 7,
				     .alloc_zone = 8,
				     .free_zone = 9,
				     .refills = 10,
				     .drains = 11,
				     .free_high = 12,
				     .lock_taken = 13,
				     .lock_contended = 14,
				     .lock_wait_ns = 15,
				     .held_pages = 16 + seq_last,
				     .held_peak = 100 + seq_last};
}

/* A run, a target and an assignment. */
struct fx_ids {
	int64_t run;
	struct log_target t;
	struct log_assignment a;
};

static inline struct fx_ids fx_begin(struct logstore *ls)
{
	struct fx_ids x = {0};

	OK(ls, logstore_run_begin(ls, fx_t(1), "0.1.0", "interval_ms = 100;", &x.run));
	x.t = fx_target(x.run, "redis-server");
	OK(ls, logstore_target_add(ls, &x.t));
	x.a = fx_assignment(x.t.id, "contention");
	OK(ls, logstore_assignment_add(ls, &x.a));
	return x;
}

/* The one number that a query gives. */
static inline int64_t fx_number(struct logstore *ls, const char *sql)
{
	sqlite3_stmt *st = NULL;
	int64_t v = -1;

	if (sqlite3_prepare_v2(ls->db, sql, -1, &st, NULL) != SQLITE_OK ||
	    sqlite3_step(st) != SQLITE_ROW)
		fail_msg("%s: %s", sql, sqlite3_errmsg(ls->db));
	v = sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return v;
}

#endif
