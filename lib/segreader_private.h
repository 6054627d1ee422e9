/* SPDX-License-Identifier: MIT */
/* What segreader.c and segreader_record.c share. */
#ifndef PCPTUNE_LIB_SEGREADER_PRIVATE_H
#define PCPTUNE_LIB_SEGREADER_PRIVATE_H

#include "lib/segreader.h"

/* How far the records of one CPU were read. */
struct record_state {
	int64_t at;    /* position at the end of the last one */
	uint32_t want; /* tag of the half that holds the next one */
	uint32_t last; /* ... that held the last one */
	uint32_t cut;  /* what we stored last */
	bool known;    /* all this is set */
	bool taken;    /* `at` and `last` are */
	bool unused;   /* the CPU was never used, up to the last cut */
	bool asked;    /* the cut is made, but its record was not read yet */
	bool broken;   /* something is missing before the next one */
};

struct pcptune_cpu_block *segreader_block(const struct segreader *sr, uint32_t index);
bool segreader_has_tracks(const struct segreader *sr);
/* A copy; false: the file can not be read. */
bool segreader_track(const struct segreader *sr, uint32_t index, struct pcptune_track *ret);
/* NULL: no memory. */
struct record_state *segreader_record_state(struct segreader *sr, uint32_t index);

#endif
