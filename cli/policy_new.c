/* SPDX-License-Identifier: MIT */
/*
 * `pcptune policy new NAME [DIR]`: a policy to begin with, as a source file and a Makefile.
 *
 * What is written is examples/policy with another name, compiled in line by line, so that it is
 * there without the source tree and can not differ from the example that the tests build. Nothing
 * that exists is written over, and the directory is not for others to write: the daemon would
 * refuse to load from it.
 */
#include "cli/policy_new.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/cli.h"
#include "policies/host.h"
/* skeleton_source[] and skeleton_makefile[]: lines, NULL at the end */
#include "policy_skeleton.h"

#define EXAMPLE "hello"

/* One line with the name of the example replaced. */
static void put_line(const char *line, const char *name, FILE *f)
{
	const char *at;

	while ((at = strstr(line, EXAMPLE))) {
		fwrite(line, 1, (size_t)(at - line), f);
		fputs(name, f);
		line = at + strlen(EXAMPLE);
	}
	fputs(line, f);
}

static int exists(const char *path, const char *name)
{
	return cli_error("%s is there already, and nothing is written over; right is a directory "
			 "without it: pcptune policy new %s DIR",
			 path, name);
}

/* -1, or the exit status of a failure that was reported. */
static int write_file(const char *path, const char *const *lines, const char *name)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), bad;
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

	if (!f)
		return errno == EEXIST ? exists(path, name)
				       : cli_error("can not write %s: %s", path, strerror(errno));
	for (; *lines; lines++)
		put_line(*lines, name, f);
	bad = ferror(f);
	if (fclose(f) || bad) {
		unlink(path); /* half a file would stand in the way of the next try */
		return cli_error("can not write %s: %s", path, strerror(errno));
	}
	return -1;
}

static bool path_of(char *buf, size_t n, const char *dir, const char *file, const char *end)
{
	int len = snprintf(buf, n, "%s/%s%s", dir, file, end);

	return len > 0 && (size_t)len < n;
}

int cli_policy_new(const char *name, const char *dir, bool json)
{
	char source[4096], makefile[4096];
	struct stat is;
	int r;

	if (!policy_name_ok(name))
		return cli_usage_error("\"%s\": a name of a policy begins with a letter and has "
				       "a-z, 0-9, - and _, at most 31 of them",
				       name);
	if (!path_of(source, sizeof(source), dir, name, ".c") ||
	    !path_of(makefile, sizeof(makefile), dir, "Makefile", ""))
		return cli_error("directory %s: its name is too long, %zu bytes are right at most",
				 dir, sizeof(source) - POLICY_NAME_MAX - 4);
	if (mkdir(dir, 0755) && errno != EEXIST)
		return cli_error("can not make directory %s: %s", dir, strerror(errno));
	if (stat(dir, &is) || !S_ISDIR(is.st_mode))
		return cli_error("%s is no directory; right is one to make, or one that is there: "
				 "pcptune policy new %s DIR",
				 dir, name);
	if (!access(makefile, F_OK))
		return exists(makefile, name);
	r = write_file(source, skeleton_source, name);
	if (r >= 0)
		return r;
	r = write_file(makefile, skeleton_makefile, name);
	if (r >= 0) {
		unlink(source);
		return r;
	}
	if (json)
		return cli_print_json(json_pack("{s:s, s:o, s:[o, o]}", "policy", name, "directory",
						json_shown(dir), "files", json_shown(source),
						json_shown(makefile)));
	printf("%s, %s written; then:\n"
	       "  make -C %s\n"
	       "  pcptune policies %s --policy-path %s\n"
	       "  pcptune run --policy %s%s/%s.so -- PROGRAM\n",
	       source, makefile, dir, name, dir, strchr(dir, '/') ? "" : "./", dir, name);
	return CLI_OK;
}
