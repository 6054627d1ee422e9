/* SPDX-License-Identifier: MIT */
/*
 * Trace files: who allocated and freed how many blocks of which order, when, on which CPU.
 *
 * A row is a movement of one list: blocks > 0 were freed to it, blocks < 0 allocated from it. Rows
 * are kept in the order they came in, each to the last digit.
 *
 * Of a program that ran before, the first rows are no movements but levels: blocks that lay on a
 * list where the trace begins. Lists without such a row were empty.
 *
 * The file describes itself: a signature, a text of key=value lines (what the columns are, how they
 * are coded), blocks of up to TRACE_BLOCK_ROWS rows, and an end that counts them. Each part has a
 * checksum; a block is coded and compressed by itself, so that damage ends the trace at the last
 * good block and what was lost can be counted. The coding is in the comment of lib/trace_write.c.
 *
 * Reading and writing need a few MiB, whatever the length. The reader trusts nothing: any bytes
 * give rows within the ranges below, or an error. Functions return 0 or a negative errno and leave
 * a line in why (TRACE_WHY bytes) that names the file, the place and what would be right. A reader
 * or writer is used by one thread at a time.
 */
#ifndef PCPTUNE_LIB_TRACE_H
#define PCPTUNE_LIB_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_VERSION	 2u /* 1 where there are no levels */
#define TRACE_BLOCK_ROWS 65536u
#define TRACE_MAX_BLOCKS (INT64_C(1) << 31) /* of one row, either way */
#define TRACE_WHY	 512u

struct trace_row {
	uint64_t time_ns; /* 0 .. INT64_MAX */
	uint32_t cpu;	  /* 0 .. PCPTUNE_MAX_CPUS - 1 */
	uint32_t order;	  /* 0 .. PCPTUNE_MAX_ORDER */
	int64_t blocks;	  /* > 0 freed, < 0 allocated */
};

bool trace_row_valid(const struct trace_row *row);

/* ---- writing ---- */
struct trace_writer;

/*
 * out is written to from its position on, and stays the caller's. source: what the rows come from,
 * one line for the header ("csv"). -ENOMEM or what the write gave.
 */
int trace_writer_new(FILE *out, const char *source, struct trace_writer **ret);
/* The same; the first `levels` rows that will be written are levels. */
int trace_writer_new_at(FILE *out, const char *source, uint64_t levels, struct trace_writer **ret);
/* -EINVAL: a row out of range, or a level that is not above 0; nothing was written of it. */
int trace_write(struct trace_writer *w, const struct trace_row *row);
/* Writes what is left and the end. The writer is to be freed still. */
int trace_writer_end(struct trace_writer *w);
void trace_writer_free(struct trace_writer *w);

/* ---- reading ---- */
struct trace_reader;

/*
 * Opens a file. -EINVAL: no trace of ours; -EPROTONOSUPPORT: of a newer version; -EBADMSG: the
 * header is damaged or cut; else what the system gave.
 */
int trace_open(const char *path, struct trace_reader **ret, char *why);
/* The same from a stream that the reader closes, on failure, too. name: for messages. */
int trace_open_stream(FILE *in, const char *name, struct trace_reader **ret, char *why);
void trace_close(struct trace_reader *r);
/*
 * The next rows, owned by the reader until the next call. 1: rows; 0: the end, and all were there;
 * -EBADMSG: damaged or cut here, why says how much is lost. Errors are for good.
 */
int trace_next(struct trace_reader *r, const struct trace_row **ret, size_t *ret_n, char *why);
/* Text of the header, key=value lines. */
const char *trace_header(const struct trace_reader *r);
uint64_t trace_rows_read(const struct trace_reader *r);
/* How many of the rows that trace_next() gave last are levels: the first ones. */
size_t trace_levels(const struct trace_reader *r);

/* ---- comma-separated text ---- */
#define TRACE_CSV_HEADER "time_ns,cpu,order,blocks"

/* All lines of in (the header first) into a writer. *ret_rows: how many. name: for messages. */
int trace_csv_import(FILE *in, const char *name, struct trace_writer *w, uint64_t *ret_rows,
		     char *why);
/*
 * All rows that are left, behind the header, levels as what was freed; out is not flushed.
 * *ret_rows: how many, also when the trace ends early.
 */
int trace_csv_export(struct trace_reader *r, FILE *out, uint64_t *ret_rows, char *why);

#endif
