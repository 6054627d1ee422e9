/* SPDX-License-Identifier: MIT */
/*
 * Files that a command writes: see output.h.
 *
 * The name of the file beside the place is kept for a handler: ^C and its like take it away before
 * they end the command. A signal that is ignored, or that a command takes care of itself, stays so.
 * What is killed leaves the file, from which a trace may still be read up to its end.
 */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mode_t new_file_mode(void)
{
	mode_t mask = umask(0);

	umask(mask);
	return 0666 & ~mask;
}

static char unfinished[PATH_MAX]; /* "": none. Written with the signals blocked */

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

static void on_end(int sig)
{
	if (unfinished[0])
		unlink(unfinished);
	raise(sig); /* its handler is gone: ends us */
}

static void watch_ends(void)
{
	struct sigaction now,
		mine = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (!sigaction(ends[i], NULL, &now) && now.sa_handler == SIG_DFL)
			sigaction(ends[i], &mine, NULL);
}

static void block_ends(sigset_t *before)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigaddset(&set, ends[i]);
	sigprocmask(SIG_BLOCK, &set, before);
}

/* A new file; o->tmp has the pattern, and then the name. */
static FILE *make_tmp(struct cli_output *o)
{
	sigset_t before;
	FILE *f;
	int fd;

	block_ends(&before);
	fd = mkostemp(o->tmp, O_CLOEXEC);
	f = fd < 0 ? NULL : fdopen(fd, "wb");
	if (f) {
		strcpy(unfinished, o->tmp);
	} else if (fd >= 0) {
		close(fd);
		unlink(o->tmp);
	}
	watch_ends();
	sigprocmask(SIG_SETMASK, &before, NULL);
	return f;
}

/* The file is at its place, or gone, in a moment: nothing is to be taken away any more. */
static void finished(void)
{
	sigset_t before;

	block_ends(&before);
	unfinished[0] = '\0';
	sigprocmask(SIG_SETMASK, &before, NULL);
}

int cli_output_open(struct cli_output *o, const char *path)
{
	struct stat st;
	bool there;

	o->path = path;
	o->f = stdout;
	o->tmp[0] = '\0';
	if (!path)
		return -1;
	there = !stat(path, &st);
	o->mode = there ? st.st_mode & 0777 : new_file_mode();
	if (there && (!S_ISREG(st.st_mode) || !realpath(path, o->place))) {
		o->f = fopen(path, "wbe");
		return o->f ? -1 : cli_error("%s: %s", path, strerror(errno));
	}
	if (!there && strlen(path) < sizeof(o->place))
		strcpy(o->place, path);
	else if (!there)
		return cli_error("%.100s...: the name is too long", path);
	if (snprintf(o->tmp, sizeof(o->tmp), "%s.XXXXXX", o->place) >= (int)sizeof(o->tmp))
		return cli_error("%.100s...: the name is too long", path);
	o->f = make_tmp(o);
	return o->f ? -1 : cli_error("%s: %s", path, strerror(errno));
}

int cli_output_close(struct cli_output *o, bool ok)
{
	bool good;

	if (!o->path)
		return -1;
	errno = 0;
	good = !ferror(o->f) && !fflush(o->f) && (!o->tmp[0] || !fchmod(fileno(o->f), o->mode));
	good = !fclose(o->f) && good;
	if (ok && good && (!o->tmp[0] || !rename(o->tmp, o->place))) {
		finished();
		return -1;
	}
	if (ok)
		cli_error("%s: can not be written: %s", o->path,
			  errno ? strerror(errno) : "a write failed");
	if (o->tmp[0])
		unlink(o->tmp);
	finished();
	return CLI_ERROR;
}

void cli_output_keep(struct cli_output *o)
{
	if (!o->path)
		return;
	if (o->tmp[0])
		fchmod(fileno(o->f), o->mode);
	fclose(o->f);
	if (o->tmp[0] && rename(o->tmp, o->place))
		unlink(o->tmp);
	finished();
}
