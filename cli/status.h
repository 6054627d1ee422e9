/* SPDX-License-Identifier: MIT */
/*
 * The answer to the command "status" as rows, for the one-shot text and for the live view.
 */
#ifndef PCPTUNE_CLI_STATUS_H
#define PCPTUNE_CLI_STATUS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One (target, zone, CPU). Texts belong to the JSON value that the row was made from. */
struct status_row {
	uint64_t target, zone, cpu;
	const char *name, *mode;
	uint64_t count, high, high_min, high_max, batch, alloc_zone, free_high;
	double contend; /* per cent, < 0: not known */
	bool pinned, waiting, drift, shared;
};

/* All rows of a status answer, in its order; free(*ret). Returns their number. */
size_t status_rows(const json_t *status, struct status_row **ret);
/* Facts of a target in one line, without its name and without a line end. */
void status_facts(const json_t *target, char *buf, size_t n);
/* "2.41", "-" where it is not known; buf of 16 bytes */
char *status_contend(double contend, char *buf, size_t n);
/* "locked", "locked shared pinned", "rseq DRIFT"; buf of 48 bytes */
char *status_mode(const struct status_row *row, char *buf, size_t n);

struct ctlclient;
/*
 * The live view: asks every interval_ms, draws, reads keys; until q or a signal. c may be NULL or
 * go away: the view says so and connects again. Takes c over. Returns the exit status.
 */
int status_watch(struct ctlclient *c, const char *socket, const char *target, int64_t interval_ms);

/* Rows in the order that the live view asks for; pure. */
enum status_sort { SORT_PLACE, SORT_COUNT, SORT_HIGH, SORT_BATCH, SORT_CONTEND, SORT_ALLOC_ZONE };
void status_sort(struct status_row *rows, size_t n, enum status_sort by);

#endif
