/* SPDX-License-Identifier: MIT */
/* Files that a command writes: see output.h. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_output_open(struct cli_output *o, const char *path)
{
	int fd;

	o->path = path;
	o->f = stdout;
	if (!path)
		return -1;
	if (snprintf(o->tmp, sizeof(o->tmp), "%s.XXXXXX", path) >= (int)sizeof(o->tmp))
		return cli_error("%.100s...: the name is too long", path);
	fd = mkostemp(o->tmp, O_CLOEXEC);
	o->f = fd < 0 ? NULL : fdopen(fd, "wb");
	if (!o->f)
		return cli_error("%s: %s", path, strerror(errno));
	return -1;
}

int cli_output_close(struct cli_output *o, bool ok)
{
	mode_t mask;
	bool good;

	if (!o->path)
		return -1;
	mask = umask(0);
	umask(mask);
	good = !ferror(o->f) && !fflush(o->f) && !fchmod(fileno(o->f), 0666 & ~mask);
	good = !fclose(o->f) && good;
	if (ok && good && !rename(o->tmp, o->path))
		return -1;
	if (ok)
		cli_error("%s: can not be written: %s", o->path, strerror(errno));
	unlink(o->tmp);
	return CLI_ERROR;
}
