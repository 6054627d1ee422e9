/* SPDX-License-Identifier: MIT */
/*
 * `pcptune help`: what the table of verbs says, for people, for programs, and for the shell.
 * configs/completion.bash is the output of `pcptune help --completion`; a test compares the two.
 */
#include "cli/cli.h"

#include <string.h>
#include "lib/text.h"

struct args {
	bool json, completion;
};

const struct cli_option options_help[] = {
	{"completion", 0, NULL, "the completion script for bash", cli_set_flag,
	 offsetof(struct args, completion)},
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* ---- programs ---- */

static json_t *options_json(const struct cli_option *o)
{
	json_t *list = json_array();

	for (; o->name; o++) {
		char letter[2] = {o->letter, '\0'};

		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s?, s:s}", "name", o->name, "letter",
						letter, "arg", o->arg, "text", o->text));
	}
	return list;
}

static int print_json(void)
{
	json_t *list = json_array();
	size_t i;

	for (i = 0; i < cli_n_verbs; i++) {
		const struct cli_verb *v = &cli_verbs[i];

		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name", v->name,
						      "text", v->text, "args", v->args, "options",
						      options_json(v->options)));
	}
	return cli_print_json(json_pack("{s:o}", "commands", list));
}

/* ---- bash ---- */

/* What a value is completed with, by the name that the option gives its argument. */
static const char *completer(const struct cli_option *o)
{
	if (!strcmp(o->arg, "PATH") || !strcmp(o->arg, "FILE"))
		return "file";
	if (!strcmp(o->arg, "DIRS"))
		return "directory";
	return !strcmp(o->name, "policy") ? "policy" : "none";
}

static void completion_verb(const struct cli_verb *v)
{
	const struct cli_option *o;

	printf("\t%s) opts=\"", v->name);
	for (o = v->options; o->name; o++)
		printf("--%s ", o->name);
	printf("--help\" ;;\n");
}

/* "verb:--option) kind" for each option that must have a value */
static void completion_values(const struct cli_verb *v)
{
	const struct cli_option *o;

	for (o = v->options; o->name; o++) {
		if (!o->arg || o->arg[0] == '[')
			continue;
		printf("\t%s:--%s", v->name, o->name);
		if (o->letter)
			printf(" | %s:-%c", v->name, o->letter);
		printf(") kind=%s ;;\n", completer(o));
	}
}

static const char completion_tail[] =
	"\tcase $kind in\n"
	"\tfile) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
	"\tdirectory) COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n"
	"\tpolicy) COMPREPLY=($(compgen -W \"$(_pcptune_policies)\" -- \"$cur\")); return ;;\n"
	"\tnone) return ;;\n"
	"\tesac\n"
	"\tif [[ $cur == -* ]]; then\n"
	"\t\tCOMPREPLY=($(compgen -W \"$opts\" -- \"$cur\"))\n"
	"\t\treturn\n"
	"\tfi\n"
	"\tcase $verb in\n"
	"\trun) COMPREPLY=($(compgen -c -- \"$cur\")) ;;\n"
	"\trecord)\n"
	"\t\tif [[ \" ${COMP_WORDS[*]} \" == *\" -- \"* ]]; then\n"
	"\t\t\tCOMPREPLY=($(compgen -c -- \"$cur\"))\n"
	"\t\telse\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"$(_pcptune_targets)\" -- \"$cur\"))\n"
	"\t\tfi ;;\n"
	"\tset)\n"
	"\t\tif ((COMP_CWORD == 2)); then\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"$(_pcptune_targets)\" -- \"$cur\"))\n"
	"\t\telse\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"$limits\" -- \"$cur\"))\n"
	"\t\t\tcompopt -o nospace 2>/dev/null\n"
	"\t\tfi ;;\n"
	"\tpolicy)\n"
	"\t\tif ((COMP_CWORD == 2)); then\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"$(_pcptune_targets)\" -- \"$cur\"))\n"
	"\t\telse\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"$(_pcptune_policies)\" -- \"$cur\"))\n"
	"\t\tfi ;;\n"
	"\tstatus | unset | advise | counters)\n"
	"\t\tCOMPREPLY=($(compgen -W \"$(_pcptune_targets)\" -- \"$cur\")) ;;\n"
	"\tpolicies) COMPREPLY=($(compgen -W \"$(_pcptune_policies)\" -- \"$cur\")) ;;\n"
	"\ttrace)\n"
	"\t\tif ((COMP_CWORD == 2)); then\n"
	"\t\t\tCOMPREPLY=($(compgen -W \"import export info\" -- \"$cur\"))\n"
	"\t\telse\n"
	"\t\t\tCOMPREPLY=($(compgen -f -- \"$cur\"))\n"
	"\t\tfi ;;\n"
	"\tcheck-config) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
	"\thelp) COMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\")) ;;\n"
	"\tesac\n"
	"}\n"
	"complete -o filenames -F _pcptune pcptune\n";

static const char completion_head[] =
	"# SPDX-License-Identifier: MIT\n"
	"# Completion of pcptune for bash; the output of `pcptune help --completion`.\n"
	"\n"
	"_pcptune_names() { # the values of the key \"name\" on standard input\n"
	"\tgrep -o '\"name\":\"[^\"]*\"' | cut -d '\"' -f 4\n"
	"}\n"
	"_pcptune_targets() {\n"
	"\tpcptune targets --json 2>/dev/null | _pcptune_names\n"
	"}\n"
	"_pcptune_policies() {\n"
	"\tpcptune policies --json 2>/dev/null | _pcptune_names\n"
	"}\n"
	"_pcptune() {\n"
	"\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
	"\tlocal verb=${COMP_WORDS[1]} opts= kind=\n";

static void print_completion(void)
{
	size_t i;

	fputs(completion_head, stdout);
	printf("\tlocal verbs=\"");
	for (i = 0; i < cli_n_verbs; i++)
		printf("%s%s", i ? " " : "", cli_verbs[i].name);
	printf("\" limits=\"");
	cli_print_limits(stdout);
	printf("\"\n\n\tCOMPREPLY=()\n\tif ((COMP_CWORD == 1)); then\n"
	       "\t\tCOMPREPLY=($(compgen -W \"$verbs --help --version\" -- \"$cur\"))\n"
	       "\t\treturn\n\tfi\n\tcase $verb in\n");
	for (i = 0; i < cli_n_verbs; i++)
		completion_verb(&cli_verbs[i]);
	printf("\tesac\n\tcase $verb:$prev in\n");
	for (i = 0; i < cli_n_verbs; i++)
		completion_values(&cli_verbs[i]);
	printf("\tesac\n");
	fputs(completion_tail, stdout);
}

/* ---- people ---- */

static void print_all(FILE *out)
{
	size_t i;

	fprintf(out, "usage: pcptune COMMAND [OPTION]... [WORD]...\n"
		     "watches, tunes and explains the per-CPU page lists of running programs.\n\n");
	for (i = 0; i < cli_n_verbs; i++)
		fprintf(out, "  %-13s %s\n", cli_verbs[i].name, cli_verbs[i].text);
	fprintf(out, "\n`pcptune COMMAND --help` shows the options of a command; the manual is "
		     "pcptune(1).\n"
		     "Exit status: 0 fine, 1 error, 2 usage, 3 drift or not found.\n");
}

static int print_verb(const char *name)
{
	const struct cli_verb *v = cli_verb_find(name);
	const char *names[64], *near;
	size_t i;

	if (v) {
		cli_print_usage(v, stdout);
		return CLI_OK;
	}
	for (i = 0; i < cli_n_verbs; i++)
		names[i] = cli_verbs[i].name;
	near = text_nearest(name, names, cli_n_verbs);
	return near ? cli_usage_error("no command \"%s\"; did you mean \"%s\"?", name, near)
		    : cli_usage_error("no command \"%s\"", name);
}

/* argc 0: pcptune without a word; the help is the error message then */
int cmd_help(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	int r;

	if (!argc) {
		print_all(stderr);
		return CLI_USAGE;
	}
	r = cli_parse(argc, argv, &a, 0, 1, &rest);
	if (r >= 0)
		return r;
	if (rest.argc)
		return print_verb(rest.argv[0]);
	if (a.json)
		return print_json();
	if (a.completion)
		print_completion();
	else
		print_all(stdout);
	return CLI_OK;
}
