/* SPDX-License-Identifier: MIT */
/* Files that a command writes: see output.h. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
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

int cli_output_open(struct cli_output *o, const char *path)
{
	struct stat st;
	bool there;
	int fd;

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
	fd = mkostemp(o->tmp, O_CLOEXEC);
	o->f = fd < 0 ? NULL : fdopen(fd, "wb");
	if (!o->f)
		return cli_error("%s: %s", path, strerror(errno));
	return -1;
}

int cli_output_close(struct cli_output *o, bool ok)
{
	bool good;

	if (!o->path)
		return -1;
	errno = 0;
	good = !ferror(o->f) && !fflush(o->f) && (!o->tmp[0] || !fchmod(fileno(o->f), o->mode));
	good = !fclose(o->f) && good;
	if (ok && good && (!o->tmp[0] || !rename(o->tmp, o->place)))
		return -1;
	if (ok)
		cli_error("%s: can not be written: %s", o->path,
			  errno ? strerror(errno) : "a write failed");
	if (o->tmp[0])
		unlink(o->tmp);
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
}
