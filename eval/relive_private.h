/* SPDX-License-Identifier: MIT */
/*
 * What the files of the loop over records share: the target whose past it is, a job at work on it,
 * and the step at hand. A worker and all that it points to but the past belong to one thread.
 */
#ifndef PCPTUNE_EVAL_RELIVE_PRIVATE_H
#define PCPTUNE_EVAL_RELIVE_PRIVATE_H

#include "eval/relive.h"
#include "eval/walks.h"

struct past {
	struct logstore *ls;
	const struct log_target *t;
	const struct relive_options *o;
	struct relive_job *jobs;
	size_t n_jobs;
	struct walks w;
	struct walk **at; /* by index; NULL: nothing happened there */
	uint32_t n;	  /* entries */
	struct pcptune_shape shape;
	struct log_assignment *as; /* of policies, in order */
	size_t n_as;
	uint64_t period_us; /* of a step, where records were not merged */
};

/* One CPU of one job. */
struct life_cpu {
	struct limits m;
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

struct worker {
	struct past *past;
	struct logstore *ls; /* of its own, but for the first */
	struct life *lives;
	size_t n_lives;
	/* the step that is gathered */
	struct log_record *r;
	struct played *played;
	size_t n, room;
	uint32_t *slot; /* by index: number of its last record in r, and 1; 0: none */
	uint64_t window;
	/* scratch of a sample */
	struct pcptune_cpu *cpus;
	uint32_t *active;
	struct pcptune_record *given;
	uint32_t given_room;
	struct relive_log log; /* the first worker's alone */
	bool first;
	uint64_t begin_us, time_us;
	int error;
	char why[RELIVE_WHY];
};

static inline uint64_t relive_less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* ---- relive_life.c ---- */
/* Makes a job ready; one whose policy does not want it has its error then. 0 or -ENOMEM. */
int life_new(const struct past *past, struct life *l, struct relive_job *job);
void life_end(struct life *l);
/* The records w->r as the job's lists would have had them, and what its policy says to that. */
void life_step(struct worker *w, struct life *l, uint64_t begin, uint64_t end, uint64_t seq);

/* ---- relive_split.c ---- */
/* What fixed values could have done with the memory that the job had. */
void life_split(const struct past *past, struct life *l);

#endif
