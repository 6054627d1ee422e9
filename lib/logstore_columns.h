/* SPDX-License-Identifier: MIT */
/*
 * Rows of the log as structs: for each kind the names of its columns, to stand in a SELECT, and the
 * function that reads them, in that order. A cursor reads the columns of one row one after the
 * other, so that rows of several kinds can be joined.
 */
#ifndef PCPTUNE_LIB_LOGSTORE_COLUMNS_H
#define PCPTUNE_LIB_LOGSTORE_COLUMNS_H

#include "lib/logstore_private.h"

struct cursor {
	sqlite3_stmt *st;
	int i;
};

static inline int64_t next(struct cursor *c)
{
	return sqlite3_column_int64(c->st, c->i++);
}

static inline struct logstamp next_stamp(struct cursor *c)
{
	struct logstamp t;

	t.boot_us = (uint64_t)next(c);
	t.wall_us = (uint64_t)next(c);
	return t;
}

/* Cut to n bytes, and harmless (text_clean()). */
void next_text(struct cursor *c, char *buf, size_t n);

#define SHAPE_NAMES(p)                                                                         \
	p "n_zones, " p "n_cpus, " p "host_cpus, " p "managed_pages, " p "low_wmark_pages, " p \
	  "budget_pages, " p "high_limit, " p "interval_ms"

/* clang-format off */
#define TARGET_NAMES \
	"t.id, t.run, t.name, t.pid, t.uid, t.start_boot_ns, t.random_id, t.run_tag, t.mode, " \
	"t.seg_flags, " SHAPE_NAMES("t.") ", t.attached_boot_us, t.attached_wall_us, " \
	"t.detached_boot_us, t.detached_wall_us, t.end"
/* clang-format on */
void next_target(struct cursor *c, struct log_target *t);

#define ASSIGNMENT_NAMES                                                                     \
	"a.id, a.target, a.seq_first, a.boot_us, a.wall_us, a.policy, a.version, a.params, " \
	"a.why, " SHAPE_NAMES("a.")
void next_assignment(struct cursor *c, struct log_assignment *a);

#define LIMITS_NAMES(p)                                                                            \
	"d." p "_high, d." p "_high_min, d." p "_high_max, d." p "_batch, d." p "_scale_max, d." p \
	"_rules"

/* clang-format off */
#define DECISION_NAMES \
	"d.id, d.target, coalesce(d.assignment, 0), d.seq, d.boot_us, d.wall_us, d.zone, d.cpu, " \
	"d.reason, d.reason_name, d.arg0, d.arg1, d.arg2, d.arg3, " LIMITS_NAMES("old") ", " \
	LIMITS_NAMES("proposed") ", " LIMITS_NAMES("clamped") ", d.outcome, d.effect_n, " \
	"d.before_alloc_pages, d.before_alloc_zone, d.before_wait_ns, d.before_held, " \
	"d.after_alloc_pages, d.after_alloc_zone, d.after_wait_ns, d.after_held"
/* clang-format on */
void next_decision(struct cursor *c, struct log_decision *d);

/*
 * The next row of st, where a blob follows the columns that `read` reads. The blob is malloc'ed,
 * and st is reset. 1: a row, 0: none, -errno: noted as `what`.
 */
int logstore_step_blob(struct logstore *ls, sqlite3_stmt *st, const char *what,
		       void (*read)(struct cursor *c, void *row), void *row, void **ret_data,
		       size_t *ret_len);

#endif
