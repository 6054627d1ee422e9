/* SPDX-License-Identifier: MIT */
/*
 * `pcptune`: finds the verb, runs it, and looks after what all verbs have in common at their end.
 *
 * A closed pipe (`pcptune log | head`) ends the program by SIGPIPE, as it does for other tools,
 * also when we were started with that signal ignored; `run` alone leaves the disposition as it is,
 * because its program inherits it. Any other failure to write is an error that must not look like
 * success: standard output is flushed and checked once, here.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include "lib/jsontext.h"
#include "lib/text.h"

static int no_verb(const char *name)
{
	const char *names[64];
	const char *near;
	size_t i;

	for (i = 0; i < cli_n_verbs; i++)
		names[i] = cli_verbs[i].name;
	near = text_nearest(name, names, cli_n_verbs);
	if (near)
		return cli_usage_error("no command \"%s\"; did you mean \"%s\"?", name, near);
	return cli_usage_error("no command \"%s\"", name);
}

/* --help and --version are verbs for people who expect options. */
static const char *verb_name(const char *word)
{
	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return "help";
	if (!strcmp(word, "--version") || !strcmp(word, "-V"))
		return "version";
	return word;
}

/* What is put together by many small steps is not asked for at each of them whether it is whole. */
static bool was_short(void)
{
	bool json = json_was_short(), table = text_was_short();

	return json || table;
}

static int finish(int status)
{
	if (was_short() && status == CLI_OK)
		status = cli_error("no memory: what was printed is not whole");
	errno = 0;
	if (fflush(stdout) || ferror(stdout)) {
		cli_error("standard output: %s", errno ? strerror(errno) : "a write failed");
		return status ? status : CLI_ERROR;
	}
	return status;
}

/*
 * One that is closed would be given to the next socket or log, and our output with it. Its stand-in
 * fails on use just the same. Not for `run`, whose program gets them as they were given to us.
 */
static void standard_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)!open("/dev/null", (fd ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
}

int main(int argc, char **argv)
{
	const struct cli_verb *verb;

	setlocale(LC_ALL, "");
	setlocale(LC_NUMERIC, "C");
	if (argc < 2) {
		cmd_help(0, NULL);
		return CLI_USAGE;
	}
	verb = cli_verb_find(verb_name(argv[1]));
	if (!verb)
		return no_verb(argv[1]);
	json_watch_memory();
	if (verb->cmd != cmd_run) {
		signal(SIGPIPE, SIG_DFL);
		standard_descriptors();
	}
	cli_error_verb(verb->name);
	argv[1] = (char *)verb->name;
	return finish(verb->cmd(argc - 1, argv + 1));
}
