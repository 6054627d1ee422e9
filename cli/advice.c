/* SPDX-License-Identifier: MIT */
/*
 * The files of advice, see advice.h. Only regular files of ours with such a name are touched.
 */
#include "cli/advice.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/cli.h"
#include "lib/text.h"

#define KEPT 200u /* and those in force */

/* ---- the directory ---- */

/* advice/ beside the log; path: PATH_MAX bytes. It has to be ours: others could lead us astray. */
static int make_dir(const char *log, char *path)
{
	const char *slash = strrchr(log, '/');
	struct stat st;
	int n = snprintf(path, PATH_MAX, "%.*sadvice", slash ? (int)(slash + 1 - log) : 0, log);

	if (n >= PATH_MAX - 32)
		return cli_error("%s: too long", path);
	if (mkdir(path, 0700) && errno != EEXIST)
		return cli_error("%s: %s", path, strerror(errno));
	if (lstat(path, &st))
		return cli_error("%s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return cli_error("%s: not a directory of ours", path);
	return -1;
}

/* "12.json" -> 12, else 0 */
static int64_t id_of(const char *name)
{
	char digits[24];
	int64_t id;
	size_t n = strspn(name, "0123456789");

	if (!n || n >= sizeof(digits) || strcmp(name + n, ".json") != 0 || name[0] == '0')
		return 0;
	snprintf(digits, sizeof(digits), "%.*s", (int)n, name);
	return text_parse_i64(digits, &id) ? 0 : id;
}

static int by_id(const void *pa, const void *pb)
{
	const int64_t *a = pa, *b = pb;

	return (*a > *b) - (*a < *b);
}

/* Ascending; free() them. */
static size_t list_ids(const char *dir, int64_t **ret)
{
	DIR *d = opendir(dir);
	int64_t *ids = NULL, *grown;
	struct dirent *e;
	size_t n = 0;

	while (d && (e = readdir(d))) {
		if (!id_of(e->d_name))
			continue;
		grown = reallocarray(ids, n + 1, sizeof(*ids));
		if (!grown)
			break;
		ids = grown;
		ids[n++] = id_of(e->d_name);
	}
	if (d)
		closedir(d);
	if (n)
		qsort(ids, n, sizeof(*ids), by_id);
	*ret = ids;
	return n;
}

/* ---- one file ---- */

static json_t *load_file(const char *dir, int64_t id)
{
	char path[PATH_MAX];
	struct stat st;
	json_t *o;
	int fd;

	snprintf(path, sizeof(path), "%.*s/%" PRId64 ".json", PATH_MAX - 32, dir, id);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
		close(fd);
		errno = EPERM;
		return NULL;
	}
	o = json_loadfd(fd, JSON_REJECT_DUPLICATES, NULL);
	close(fd);
	if (!json_is_object(o) || json_integer_value(json_object_get(o, "id")) != id ||
	    !json_is_array(json_object_get(o, "rows"))) {
		json_decref(o);
		errno = EBADMSG;
		return NULL;
	}
	return o;
}

static int write_file(const char *dir, const json_t *advice)
{
	int64_t id = json_integer_value(json_object_get(advice, "id"));
	char path[PATH_MAX], new_[PATH_MAX];
	int fd, r;

	snprintf(path, sizeof(path), "%.*s/%" PRId64 ".json", PATH_MAX - 32, dir, id);
	snprintf(new_, sizeof(new_), "%.*s/.%d.new", PATH_MAX - 32, dir, (int)getpid());
	fd = open(new_, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return cli_error("%s: %s", new_, strerror(errno));
	r = json_dumpfd(advice, fd, JSON_INDENT(1)) || fsync(fd) ? EIO : 0;
	if (close(fd) && !r)
		r = errno;
	if (!r && rename(new_, path))
		r = errno;
	if (!r)
		return -1;
	unlink(new_);
	return cli_error("%s: %s", path, strerror(r));
}

/* ---- adding ---- */

static bool in_force(const json_t *advice)
{
	const json_t *row;
	size_t i;

	json_array_foreach (json_object_get(advice, "rows"), i, row)
		if (json_is_true(json_object_get(row, "applied")))
			return true;
	return false;
}

/* Do both want the same of the same process? What is predicted may differ. */
static bool same_advice(const json_t *a, const json_t *b)
{
	const json_t *ra = json_object_get(a, "rows"), *rb = json_object_get(b, "rows");
	static const char *const keys[] = {"zone", "cpu", "now", "then"};

	if (!json_equal(json_object_get(a, "target"), json_object_get(b, "target")) ||
	    json_array_size(ra) != json_array_size(rb))
		return false;
	for (size_t i = 0; i < json_array_size(ra); i++)
		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (!json_equal(json_object_get(json_array_get(ra, i), keys[k]),
					json_object_get(json_array_get(rb, i), keys[k])))
				return false;
	return true;
}

static void trim(const char *dir, const int64_t *ids, size_t n)
{
	char path[PATH_MAX];

	for (size_t i = 0; i + KEPT < n; i++) {
		json_t *o = load_file(dir, ids[i]);

		snprintf(path, sizeof(path), "%.*s/%" PRId64 ".json", PATH_MAX - 32, dir, ids[i]);
		if (o && !in_force(o))
			unlink(path);
		json_decref(o);
	}
}

/* A number that no file has, claimed by an empty one. */
static int claim(const char *dir, int64_t id, int64_t *ret)
{
	char path[PATH_MAX];

	for (;; id++) {
		int fd;

		snprintf(path, sizeof(path), "%.*s/%" PRId64 ".json", PATH_MAX - 32, dir, id);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd >= 0) {
			close(fd);
			*ret = id;
			return -1;
		}
		if (errno != EEXIST)
			return cli_error("%s: %s", path, strerror(errno));
	}
}

int advice_add(const char *log, json_t *advice)
{
	char dir[PATH_MAX];
	int64_t *ids, id = 0;
	json_t *last;
	size_t n;
	int r = make_dir(log, dir);

	if (r >= 0)
		return r;
	n = list_ids(dir, &ids);
	last = n ? load_file(dir, ids[n - 1]) : NULL;
	if (last && !in_force(last) && same_advice(last, advice))
		id = ids[n - 1];
	json_decref(last);
	trim(dir, ids, n);
	if (!id)
		r = claim(dir, n ? ids[n - 1] + 1 : 1, &id);
	free(ids);
	if (r >= 0)
		return r;
	json_object_set_new(advice, "id", json_integer(id));
	return write_file(dir, advice);
}

int advice_store(const char *log, const json_t *advice)
{
	char dir[PATH_MAX];
	int r = make_dir(log, dir);

	return r >= 0 ? r : write_file(dir, advice);
}

/* ---- finding ---- */

static int no_advice(const char *dir, const char *word)
{
	int64_t *ids;
	size_t n = list_ids(dir, &ids);

	if (n)
		cli_error("no advice %s; the last is %" PRId64, word, ids[n - 1]);
	else
		cli_error("no advice %s; `pcptune advise TARGET` gives some", word);
	free(ids);
	return CLI_DRIFT;
}

int advice_load(const char *log, const char *word, json_t **ret, int64_t *ret_row)
{
	const char *dot = strchr(word, '.');
	int64_t id, row = 0;
	char dir[PATH_MAX], head[24];
	json_t *o;
	int r;

	snprintf(head, sizeof(head), "%.*s", dot ? (int)(dot - word) : 20, word);
	if (text_parse_i64(head, &id) || id < 1 ||
	    (dot && (text_parse_i64(dot + 1, &row) || row < 1)))
		return cli_usage_error("\"%s\": not an ID of `pcptune advise` (12, or 12.3 for one "
				       "line of it)",
				       word);
	r = make_dir(log, dir);
	if (r >= 0)
		return r;
	o = load_file(dir, id);
	if (!o && errno == ENOENT)
		return no_advice(dir, word);
	if (!o)
		return cli_error("%s/%" PRId64 ".json: %s", dir, id,
				 errno == EBADMSG ? "not advice, or damaged" : strerror(errno));
	if ((size_t)row > json_array_size(json_object_get(o, "rows"))) {
		cli_error("advice %" PRId64 " has %zu lines", id,
			  json_array_size(json_object_get(o, "rows")));
		json_decref(o);
		return CLI_DRIFT;
	}
	*ret = o;
	*ret_row = row;
	return -1;
}
