/* SPDX-License-Identifier: MIT */
/*
 * What the files of the loop over records share.
 *
 *	past    a target's past: its records, their walks, its policies. Read by all once it is open
 *	block   steps that were unpacked together. Written by who reads them (relive_steps.c), then
 *		read by all jobs (relive_run.c says when)
 *	life    one job at work. One thread at a time
 *	scratch of a thread, for the step at hand
 */
#ifndef PCPTUNE_EVAL_RELIVE_PRIVATE_H
#define PCPTUNE_EVAL_RELIVE_PRIVATE_H

#include "eval/relive.h"
#include "eval/relive_model.h"
#include "eval/swings.h"
#include "eval/walks.h"

struct past {
	const struct log_target *t;
	const struct relive_options *o;
	struct log_copy *copy;
	struct walks w;
	struct walk **at; /* by index; NULL: nothing happened there */
	uint32_t n;	  /* entries */
	struct pcptune_shape shape;
	struct log_assignment *as; /* of policies, in order */
	size_t n_as;
	uint64_t period_us; /* of a step, where records were not merged */
};

static inline uint64_t relive_less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* ---- relive_steps.c ---- */

/* Records of about the same time: block.r[first] and on, one for each CPU, or more with holes. */
struct step {
	size_t first, n;
	uint64_t begin_us, end_us, seq;
};

struct block {
	struct step *step;
	size_t n_steps, steps_room;
	struct log_record *r;
	struct swings *w; /* of each */
	size_t n, room;
};

struct steps {
	const struct past *past;
	/* the row at hand */
	size_t at;
	uint64_t row; /* its number from 1 on; 0: none yet */
	uint32_t level;
	struct records_reader rd;
	/* a record that was read and is in no step yet */
	struct log_record r;
	bool waits;
	uint64_t r_row, r_window;
	/* the step that is gathered */
	uint64_t step_row, window;
	uint32_t *slot; /* by index: number of its last record in the step, and 1; 0: none */
	struct relive_log log;
	uint64_t begin_us, end_us;
};

int steps_open(struct steps *s, const struct past *past);
void steps_close(struct steps *s);
/* The next steps, all whole; none: the end. 0 or -ENOMEM. Adds what was measured to s->log. */
int steps_read(struct steps *s, struct block *b);
void block_free(struct block *b);

/* ---- relive_life.c ---- */

/* One CPU of one job. */
struct life_cpu {
	struct limits m;
	struct limits known; /* what the effect is of */
	struct effect effect;
	int64_t p, end; /* the zone's side, and where its last record ended */
	bool any;
	int direction;
	uint64_t refilled, drained; /* less than one more refill or drain */
	uint64_t count;
};

/* One job at work. */
struct life {
	struct relive_job *job;
	struct policy_instance *pi;
	struct policy_module *module; /* of RELIVE_RECORDED: of the assignment that is in force */
	size_t next_as;
	bool first, asks;
	struct life_cpu *cpu;
	struct relive_sums sums;
	uint64_t seq, last_us, high_peak;
};

/* What a record came to under a job, until the whole step is known. */
struct played {
	uint64_t refills, drains, refilled, drained, takes;
};

struct scratch {
	const struct past *past;
	struct pcptune_cpu *cpus;
	uint32_t *active;
	uint32_t *slot; /* as in steps; all 0 in between */
	struct pcptune_record *given;
	struct played *played;
	size_t played_room;
};

int scratch_init(struct scratch *x, const struct past *past);
void scratch_free(struct scratch *x);
/* Makes a job ready; one whose policy does not want it has its error then. 0 or -ENOMEM. */
int life_new(const struct past *past, struct life *l, struct relive_job *job);
void life_end(struct life *l);
/* The step as the job's lists would have had it, and what its policy says to that. 0 or -ENOMEM. */
int life_step(struct scratch *x, struct life *l, const struct block *b, const struct step *step);

/* ---- relive_split.c ---- */
/* What fixed values could have done with the memory that the job had. */
void life_split(const struct past *past, struct life *l);

/* ---- relive_run.c ---- */
/* All jobs over all steps. Adds to *log and to the jobs. 0 or -ENOMEM. */
int relive_run(const struct past *past, struct relive_job *jobs, size_t n, struct relive_log *log);

#endif
