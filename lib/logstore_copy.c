/* SPDX-License-Identifier: MIT */
/*
 * The records of a target as they were at one moment, for who reads them more than once.
 *
 * A log that is being written goes on between two reads, and rows move from level to level. A read
 * transaction would hold it still, but keep the journal from being emptied for as long. So the
 * packed rows are copied within a short one into a file that has no name, and read from there, by
 * any number of threads and as often as one likes. They take what they take in the log, of the disk
 * that TMPDIR is on; where no file can be made there, of memory.
 *
 *	file    rows, oldest first; each: struct row, its data, and up to 7 bytes
 *
 * Whoever makes the copy owns it; reading does not change it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "lib/logstore_private.h"

struct log_copy {
	uint8_t *data;
	size_t len;
};

struct row {
	struct log_records_row r;
	uint64_t len;
};

/* ---- one state of the log ---- */

int logstore_snapshot(struct logstore *ls)
{
	/* the first read is what the transaction holds on to */
	int r = logstore_exec(ls, "BEGIN; SELECT count(*) FROM target");

	if (r < 0)
		logstore_snapshot_end(ls);
	return r;
}

void logstore_snapshot_end(struct logstore *ls)
{
	if (!sqlite3_get_autocommit(ls->db))
		sqlite3_exec(ls->db, "ROLLBACK", NULL, NULL, NULL);
}

/* ---- making the copy ---- */

static const char *directory(void)
{
	const char *dir = getenv("TMPDIR");

	return dir && *dir ? dir : P_tmpdir;
}

static FILE *nameless_file(void)
{
	int fd = open(directory(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	FILE *f;

	if (fd < 0)
		fd = memfd_create("pcptune-records", MFD_CLOEXEC);
	f = fd < 0 ? NULL : fdopen(fd, "w+");
	if (!f && fd >= 0)
		close(fd);
	return f;
}

static size_t padding(size_t len)
{
	return -len & 7;
}

/* 0, or the errno of a write, which may leave a part of the row: there is no copy then. */
static int on_row(const struct log_records_row *r, const uint8_t *data, size_t len, void *cookie)
{
	static const uint8_t zeros[8];
	const struct row row = {*r, len};
	FILE *f = cookie;

	errno = 0;
	if (fwrite(&row, sizeof(row), 1, f) == 1 && (!len || fwrite(data, len, 1, f) == 1) &&
	    (!padding(len) || fwrite(zeros, padding(len), 1, f) == 1))
		return 0;
	return errno ? errno : EIO;
}

static int not_written(struct logstore *ls, int e)
{
	return logstore_fail_text(ls, -e, "a copy of the records in %s: %s", directory(),
				  strerror(e));
}

static int map(struct logstore *ls, FILE *f, struct log_copy *c)
{
	long len;
	void *p;

	if (fflush(f) || (len = ftell(f)) < 0)
		return not_written(ls, errno);
	if (!len)
		return 0;
	p = mmap(NULL, (size_t)len, PROT_READ, MAP_PRIVATE, fileno(f), 0);
	if (p == MAP_FAILED)
		return logstore_fail_text(ls, -errno, "a copy of the records: %s", strerror(errno));
	c->data = p;
	c->len = (size_t)len;
	return 0;
}

int logstore_records_copy(struct logstore *ls, int64_t target, struct log_copy **ret)
{
	struct log_copy *c = calloc(1, sizeof(*c));
	FILE *f = c ? nameless_file() : NULL;
	int r;

	if (!f) {
		free(c);
		return logstore_fail_text(ls, -ENOMEM, "no memory for a copy of the records");
	}
	r = logstore_records(ls, target, 0, on_row, f);
	r = r > 0 ? not_written(ls, r) : r < 0 ? r : map(ls, f, c);
	fclose(f);
	if (r < 0) {
		log_copy_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

void log_copy_free(struct log_copy *c)
{
	if (c && c->data)
		munmap(c->data, c->len);
	free(c);
}

/* ---- reading it ---- */

bool log_copy_next(const struct log_copy *c, size_t *io_at, struct log_records_row *ret,
		   const uint8_t **ret_data, size_t *ret_len)
{
	struct row row;

	if (*io_at + sizeof(row) > c->len)
		return false;
	memcpy(&row, c->data + *io_at, sizeof(row));
	*ret = row.r;
	*ret_data = c->data + *io_at + sizeof(row);
	*ret_len = row.len;
	*io_at += sizeof(row) + row.len + padding(row.len);
	return true;
}
