/* SPDX-License-Identifier: MIT */
/*
 * Advice between `advise`, `apply` and `revert`: one JSON file each, advice/ID.json beside the log
 * that it comes from, readable by its owner alone.
 *
 *	id, made_us, target {name, pid}, policy, params, ... and rows[]: n, zone, cpu, now, then
 *	(all six limits), why; once applied also before, pinned_before, applied
 *
 * IDs count up and are never used again while their file is there; the oldest that are not in force
 * are removed beyond KEPT. Files are written whole and renamed into place.
 */
#ifndef PCPTUNE_CLI_ADVICE_H
#define PCPTUNE_CLI_ADVICE_H

#include <jansson.h>
#include <stdint.h>

/*
 * log: path of the database, in all three.
 *
 * Stores new advice and sets its "id"; advice that says the same as the newest one, for the same
 * process, takes over its id. -1, or said, and the exit status.
 */
int advice_add(const char *log, json_t *advice);
/* Writes advice that has an id again. -1, or said, and the exit status. */
int advice_store(const char *log, const json_t *advice);
/*
 * "12" or "12.3": *ret is a new reference, *ret_row the number of the row, 0: all. -1, or said, and
 * the exit status (CLI_DRIFT: there is none).
 */
int advice_load(const char *log, const char *word, json_t **ret, int64_t *ret_row);

#endif
