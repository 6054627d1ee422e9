/* SPDX-License-Identifier: MIT */
/*
 * Replay: logs of every policy are re-derived in full; what was changed in a log, or is missing
 * from it, is found or counted, never taken for derived.
 *
 * Logs are made by the closed-loop model, in the order in which the daemon writes: samples and
 * decisions of a tick in one transaction.
 */
#include <errno.h>
#include <unistd.h>
#include "eval/replay.h"
#include "tests/unit/policy_model.h"
#include "tests/unit/scratch.h"

#define SAMPLES 300u

/* What goes wrong on the way to the log. */
static struct {
	uint64_t skip_chunk;	/* number of a chunk that is lost, 0: none */
	uint64_t damage_chunk;	/* number of a chunk whose bytes are cut */
	uint64_t skip_decision; /* number of a decision that is lost */
	uint64_t spoil_decision;
	int spoil_how;	      /* field */
	uint64_t extra_after; /* number of a decision that is there twice, for another CPU */
	uint64_t state_every; /* samples, 0: never */
	uint64_t by_hand_at;  /* sample */
} fault;

static struct {
	struct logstore *ls;
	struct pcptune_encoder *enc;
	struct log_target target;
	struct log_assignment a;
	int64_t operator;
	uint64_t n_chunks, n_decisions;
} lg;

static char dir[SCRATCH_MAX];
static char db[sizeof(dir) + 16];

static struct log_limits to_log(const struct limits *l)
{
	return (struct log_limits){l->high,  l->high_min,  l->high_max,
				   l->batch, l->scale_max, l->rules};
}

static void spoil(struct log_decision *d)
{
	switch (fault.spoil_how) {
	case 0:
		d->clamped.high++;
		break;
	case 1:
		d->proposed.batch++;
		break;
	case 2:
		d->old.rules++;
		break;
	case 3:
		d->arg[3]++;
		break;
	default:
		d->reason++;
	}
}

static void log_decision(const struct host_change *c, const struct pcptune_sample *s)
{
	struct log_decision d = {.target = lg.target.id,
				 .assignment = lg.a.id,
				 .seq = s->seq,
				 .t = logstamp_now(),
				 .zone = c->zone,
				 .cpu = c->cpu,
				 .reason = c->reason,
				 .reason_name = "name",
				 .old = to_log(&c->old),
				 .proposed = to_log(&c->proposed),
				 .clamped = to_log(&c->clamped)};

	memcpy(d.arg, c->arg, sizeof(d.arg));
	if (++lg.n_decisions == fault.skip_decision)
		return;
	if (lg.n_decisions == fault.spoil_decision)
		spoil(&d);
	assert_int_equal(logstore_decision_add(lg.ls, &d), 0);
	if (lg.n_decisions == fault.extra_after) {
		d.cpu = 2;
		assert_int_equal(logstore_decision_add(lg.ls, &d), 0);
	}
}

static void log_chunk(void)
{
	struct chunk_totals totals;
	const uint8_t *data;
	size_t len;

	encoder_peek(lg.enc, &data, &len, &totals);
	if (!len)
		return;
	lg.n_chunks++;
	if (lg.n_chunks == fault.damage_chunk)
		len /= 2;
	if (lg.n_chunks != fault.skip_chunk)
		assert_int_equal(logstore_samples_add(lg.ls, lg.target.id, logstamp_now(), &totals,
						      data, len),
				 0);
	encoder_reset(lg.enc);
}

static void log_by_hand(const struct pcptune_sample *s)
{
	struct log_decision d = {.target = lg.target.id,
				 .seq = s->seq,
				 .t = logstamp_now(),
				 .reason = 1,
				 .reason_name = "set-by-operator"};
	struct log_assignment op = lg.a;

	snprintf(op.policy, sizeof(op.policy), "operator");
	snprintf(op.version, sizeof(op.version), "-");
	op.params[0] = 0;
	op.seq_first = s->seq;
	assert_int_equal(logstore_assignment_add(lg.ls, &op), 0);
	d.assignment = op.id;
	assert_int_equal(logstore_decision_add(lg.ls, &d), 0);
}

static void after(struct model *m, const struct pcptune_sample *s)
{
	const void *state;
	size_t size;

	assert_int_equal(encoder_add(lg.enc, s), 0);
	if (!m->answer.n_changes && s->seq % 10 && s->seq != fault.by_hand_at)
		return;
	assert_int_equal(logstore_begin(lg.ls), 0);
	log_chunk();
	for (uint32_t i = 0; i < m->answer.n_changes; i++)
		log_decision(&m->answer.changes[i], s);
	if (s->seq == fault.by_hand_at)
		log_by_hand(s);
	if (fault.state_every && s->seq % fault.state_every == 0) {
		state = policy_instance_state(m->pi, &size);
		assert_int_equal(logstore_state_add(lg.ls, lg.a.id, s->seq, state, size), 0);
	}
	assert_int_equal(logstore_commit(lg.ls), 0);
}

static void assign(struct model *m, const char *params, uint64_t seq_first)
{
	lg.a = (struct log_assignment){.target = lg.target.id,
				       .seq_first = seq_first,
				       .t = logstamp_now(),
				       .shape = m->shape};
	snprintf(lg.a.policy, sizeof(lg.a.policy), "%s", policy_desc(m->module)->name);
	snprintf(lg.a.version, sizeof(lg.a.version), "%s", policy_desc(m->module)->version);
	snprintf(lg.a.params, sizeof(lg.a.params), "%s", params);
	assert_int_equal(logstore_assignment_add(lg.ls, &lg.a), 0);
}

static void remove_log(void)
{
	static const char *const ends[] = {"", "-wal", "-shm"};
	char path[sizeof(db) + 8];

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", db, ends[i]);
		unlink(path);
	}
}

static void begin(struct model *m, const char *policy, const char *params)
{
	struct logstore_options opt = {.max_bytes = 64u << 20, .busy_ms = 100};
	char why[256] = "";
	int64_t run;

	memset(&lg, 0, sizeof(lg));
	remove_log();
	if (logstore_open(db, &opt, &lg.ls, NULL, why))
		fail_msg("%s", why);
	model_new(m, policy, params, 3, 1048576);
	m->record_ms = 0; /* a log without records */
	m->after = after;
	assert_int_equal(encoder_new(3, &lg.enc), 0);
	assert_int_equal(logstore_run_begin(lg.ls, logstamp_now(), "test", "", &run), 0);
	lg.target.run = run;
	lg.target.shape = m->shape;
	lg.target.attached = logstamp_now();
	snprintf(lg.target.name, sizeof(lg.target.name), "model");
	assert_int_equal(logstore_target_add(lg.ls, &lg.target), 0);
	assign(m, params, 1);
}

static void run(struct model *m, uint32_t samples)
{
	while (samples--) {
		model_cycle(m, 0, 20000, 350, 0);
		if (m->seq > 100)
			model_cycle(m, 1, 9000, 200, 50);
		if (m->seq == 150) { /* the rules move, too */
			m->m[1].st.rules = PCPTUNE_RULES_G4;
			m->m[1].st.high_max = 20000;
		}
		model_step(m);
	}
}

static void end(struct model *m)
{
	log_chunk();
	encoder_free(lg.enc);
	model_end(m);
	logstore_close(lg.ls);
}

static uint32_t n_lines;
static char first_line[512];

static void on_line(const char *line, void *cookie)
{
	(void)cookie;
	if (!n_lines++)
		snprintf(first_line, sizeof(first_line), "%s", line);
}

static int verify(const char *path, struct verify_result *v)
{
	struct logstore *ls;
	char why[256] = "";
	int r;

	n_lines = 0;
	first_line[0] = 0;
	if (logstore_open_ro(db, &ls, why))
		fail_msg("%s", why);
	r = verify_log(ls, path, v, on_line, NULL);
	logstore_close(ls);
	return r;
}

static void make_log(const char *policy, const char *params)
{
	struct model m;

	begin(&m, policy, params);
	run(&m, SAMPLES);
	end(&m);
	assert_true(lg.n_decisions > 0);
}

/* ---- tests ---- */

static void test_every_policy(void **state)
{
	static const char *const row[][2] = {
		{"static", ""},
		{"static", "high=1000 batch=31 rules=g4"},
		{"kernel", ""},
		{"kernel", "rules=g4 high_min=100 decay_ms=300"},
		{"kernel", "rules=g1"},
		{"contention", ""},
		{"contention", "miss_permille=5 hold_ms=500 decay_ms=200 budget_permille=20"},
		{"fraction", "fraction=100"},
		{"shuffle", "hold_ms=500 shuffle_ms=1000 budget_permille=20"},
		{"lowwater", "hold_ms=500 look_ms=200"},
		{"coldest", "cold_ms=1000 budget_permille=20"},
		{"learn", "window_ms=300 settle_ms=200 worth_us=0"},
		{"knee", "hold_ms=500 budget_permille=20"},
		{"contention", "hold_ms=500 decay_ms=200 guard_permille=50 guard_ms=500"},
		{"lowwater", "hold_ms=500 look_ms=200 guard_permille=10 guard_ms=300"},
	};

	(void)state;
	memset(&fault, 0, sizeof(fault));
	fault.by_hand_at = 77;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct verify_result v;
		int r;

		make_log(row[i][0], row[i][1]);
		r = verify(NULL, &v);
		if (r || n_lines)
			fail_msg("%s %s: %d, %s", row[i][0], row[i][1], r, first_line);
		assert_int_equal(v.derived, lg.n_decisions);
		assert_int_equal(v.samples, SAMPLES);
		assert_int_equal(v.assignments, 1);
		assert_int_equal(v.by_hand, 1);
		assert_int_equal(v.not_derivable, 0);
	}
}

static void test_changed_decisions(void **state)
{
	(void)state;
	for (int how = 0; how < 5; how++) {
		static const char *const words[] = {"clamped", "proposed", "old", "arguments",
						    "reason"};
		struct verify_result v;

		memset(&fault, 0, sizeof(fault));
		fault.spoil_decision = 3;
		fault.spoil_how = how;
		make_log("contention", "");
		assert_int_equal(verify(NULL, &v), -EUCLEAN);
		assert_int_equal(v.differ, 1);
		assert_int_equal(n_lines, 1);
		assert_non_null(strstr(first_line, words[how]));
		assert_int_equal(v.derived, lg.n_decisions - 1);
	}
}

static void test_missing_and_extra(void **state)
{
	struct verify_result v;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	fault.skip_decision = 2;
	make_log("contention", "");
	assert_int_equal(verify(NULL, &v), -EUCLEAN);
	assert_int_equal(v.differ, 1);
	assert_non_null(strstr(first_line, "the log has no such decision"));
	assert_int_equal(v.derived, lg.n_decisions - 1);

	memset(&fault, 0, sizeof(fault));
	fault.extra_after = 2;
	make_log("contention", "");
	assert_int_equal(verify(NULL, &v), -EUCLEAN);
	assert_int_equal(v.differ, 1);
	assert_non_null(strstr(first_line, "is logged, but not derived"));
	assert_int_equal(v.derived, lg.n_decisions);
}

static void test_other_parameters(void **state)
{
	struct verify_result v;
	struct model m;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	begin(&m, "contention", "");
	assign(&m, "floor=999 miss_permille=900 contend_ppm=1000000",
	       1); /* a lie; the first is empty */
	run(&m, SAMPLES);
	end(&m);
	assert_int_equal(verify(NULL, &v), -EUCLEAN);
	assert_true(v.differ > 0);
}

static void test_gap(void **state)
{
	struct verify_result v;

	(void)state;
	for (int damage = 0; damage < 2; damage++) {
		memset(&fault, 0, sizeof(fault));
		if (damage)
			fault.damage_chunk = 4;
		else
			fault.skip_chunk = 4;
		make_log("contention", "hold_ms=500 decay_ms=200");
		assert_int_equal(verify(NULL, &v), 0);
		assert_true(v.not_derivable > 0); /* to the end: no state */
		assert_int_equal(v.derived + v.not_derivable, lg.n_decisions);
		assert_true(n_lines >= 1);

		fault.state_every = 50;
		make_log("contention", "hold_ms=500 decay_ms=200");
		uint64_t without = v.derived;
		assert_int_equal(verify(NULL, &v), 0);
		assert_true(v.derived > without);
		assert_true(v.not_derivable > 0 || v.samples < SAMPLES);
		assert_int_equal(v.derived + v.not_derivable, lg.n_decisions);
	}
}

/* The beginning was merged away: only what follows a state can be derived. */
static void test_lost_beginning(void **state)
{
	struct verify_result v;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	fault.skip_chunk = 1;
	fault.state_every = 100;
	make_log("kernel", "high_min=100 decay_ms=300");
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(v.samples, SAMPLES - 100);
	assert_true(v.not_derivable > 0 && v.derived > 0);
	assert_int_equal(v.derived + v.not_derivable, lg.n_decisions);
}

/* As `static` until a policy in a process of its own is ready: logged, but it decided nothing. */
static void test_policy_without_samples(void **state)
{
	struct verify_result v;
	struct model m;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	begin(&m, "contention", "");
	snprintf(lg.a.policy, sizeof(lg.a.policy), "gone");
	assert_int_equal(logstore_assignment_add(lg.ls, &lg.a), 0);
	snprintf(lg.a.policy, sizeof(lg.a.policy), "contention");
	assert_int_equal(logstore_assignment_add(lg.ls, &lg.a), 0);
	run(&m, SAMPLES);
	end(&m);
	assert_true(lg.n_decisions > 0);
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(n_lines, 0);
	assert_int_equal(v.derived, lg.n_decisions);
	assert_int_equal(v.differ + v.not_derivable, 0);
	assert_int_equal(v.assignments, 1);
}

static void test_policy_not_at_hand(void **state)
{
	struct verify_result v;
	struct model m;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	make_log("contention", "");
	assert_int_equal(verify("/nonexistent", &v), 0);
	assert_int_equal(v.not_derivable, lg.n_decisions);
	assert_int_equal(v.assignments, 0);
	assert_non_null(strstr(first_line, "can not be replayed: no policy"));

	begin(&m, "static", "");
	snprintf(lg.a.version, sizeof(lg.a.version), "0.0.1");
	assert_int_equal(logstore_assignment_add(lg.ls, &lg.a), 0);
	run(&m, 20);
	end(&m);
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(v.not_derivable, lg.n_decisions);
	assert_non_null(strstr(first_line, "version 0.0.1"));

	begin(&m, "static", "");
	snprintf(lg.a.params, sizeof(lg.a.params), "hihg=1");
	assert_int_equal(logstore_assignment_add(lg.ls, &lg.a), 0);
	run(&m, 20);
	end(&m);
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(v.not_derivable, lg.n_decisions);
	assert_non_null(strstr(first_line, "did you mean \"high\"?"));
}

/* A second policy takes over; a third assignment goes on from a state, as after a full disk. */
static void test_assignments_in_a_row(void **state)
{
	struct verify_result v;
	struct model m;
	int64_t values[POLICY_MAX_PARAMS];
	const void *bytes;
	size_t size;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	begin(&m, "static", "");
	run(&m, 50);
	policy_instance_free(m.pi);
	policy_unref(m.module);
	log_chunk();
	assert_int_equal(policy_load("contention", NULL, &m.module, NULL), 0);
	policy_params_default(m.module, values);
	assert_int_equal(policy_instance_new(m.module, &m.shape, values, &m.pi, NULL), 0);
	assign(&m, "", m.seq + 1);
	run(&m, 60);
	/* samples of a full disk: decided upon, never written */
	m.after = NULL;
	run(&m, 30);
	m.after = after;
	assign(&m, "", m.seq + 1);
	bytes = policy_instance_state(m.pi, &size);
	assert_int_equal(logstore_state_add(lg.ls, lg.a.id, m.seq, bytes, size), 0);
	run(&m, 100);
	end(&m);
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(v.assignments, 3);
	assert_int_equal(v.derived, lg.n_decisions);
	assert_int_equal(v.samples, 210);
	assert_int_equal(v.not_derivable, 0);
}

/*
 * The log grows while it is read: a decision whose sample was not there yet is left for next time.
 */
static void test_growing_log(void **state)
{
	struct verify_result v;
	struct model m;

	(void)state;
	for (int ended = 0; ended < 2; ended++) {
		struct host_change c = {.cpu = 1, .reason = 1};
		struct pcptune_sample s = {.seq = SAMPLES + 1};

		memset(&fault, 0, sizeof(fault));
		begin(&m, "contention", "");
		run(&m, SAMPLES);
		log_chunk();
		log_decision(&c, &s);
		if (ended)
			assert_int_equal(
				logstore_target_end(lg.ls, lg.target.id, logstamp_now(), "end"), 0);
		end(&m);
		assert_int_equal(verify(NULL, &v), 0);
		assert_int_equal(v.derived, lg.n_decisions - 1);
		assert_int_equal(v.not_derivable, ended); /* then its sample will not come */
	}
}

static void test_empty_log(void **state)
{
	struct verify_result v;
	struct model m;

	(void)state;
	memset(&fault, 0, sizeof(fault));
	begin(&m, "static", "");
	end(&m);
	assert_int_equal(verify(NULL, &v), 0);
	assert_int_equal(v.derived + v.differ + v.samples, 0);
}

static int setup(void **state)
{
	(void)state;
	if (!scratch_dir(dir))
		return -1;
	snprintf(db, sizeof(db), "%s/log.db", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	remove_log();
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_policy),
		cmocka_unit_test(test_changed_decisions),
		cmocka_unit_test(test_missing_and_extra),
		cmocka_unit_test(test_other_parameters),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_lost_beginning),
		cmocka_unit_test(test_policy_not_at_hand),
		cmocka_unit_test(test_policy_without_samples),
		cmocka_unit_test(test_assignments_in_a_row),
		cmocka_unit_test(test_growing_log),
		cmocka_unit_test(test_empty_log),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
