/* SPDX-License-Identifier: MIT */
/*
 * The table of verbs, the one place that knows them all, and what is printed from it: usage lines,
 * `pcptune help`, the completion file. Options are in the file of their verb, see cli.h.
 */
#include "cli/cli.h"

#include <string.h>

const struct cli_verb cli_verbs[] = {
	{"run", "run a program with its page-grain malloc on tuned lists", "[--] PROGRAM [ARG]...",
	 "The program is not modified; its child processes take part. Its exit status is ours.\n",
	 options_run, cmd_run, true},
	{"status", "show the lists of every CPU as they are now", "[TARGET]",
	 "Exit status 3: somebody else changed limits that the daemon had set (drift).\n"
	 "In the live view: q quits, arrows and Page keys scroll, c h b a % t sort, ? helps.\n",
	 options_status, cmd_status, false},
	{"targets", "list the processes whose lists are tuned", "", NULL, options_targets,
	 cmd_targets, false},
	{"log", "list decisions: when, where, what changed, why, what came of it", "",
	 "TIME: -10m (s, m, h, d back from now), 14:30, 2026-11-30, \"2026-11-30 14:30\", today.\n",
	 options_log, cmd_log, false},
	{"explain", "explain one decision from the log alone", "ID",
	 "IDs are those of `pcptune log`. Exit status 3: no such decision.\n", options_explain,
	 cmd_explain, false},
	{"set", "set limits by hand; the CPUs are pinned until `unset`", "TARGET KEY=VALUE...",
	 "Keys: high, high_min, high_max, batch (pages), scale_max (log2), rules (g0, g1, g2, g3, "
	 "g4, g5, g6, g0b, p1, p3, p5, p7, p9, p10, p7v3, gx, y2016).\n"
	 "See `pcptune policies --generations`; NAME-order0 and NAME-orders switch the lists of "
	 "high orders.\n",
	 options_set, cmd_set, false},
	{"unset", "give pinned CPUs back to the policy", "TARGET", NULL, options_unset, cmd_unset,
	 false},
	{"advise", "say what limits a process should have, and what that buys", "TARGET",
	 "By the records and samples of the log; nothing is changed. The advice is kept under its "
	 "ID for `apply`.\n"
	 "predicted: pages a second to and from the zone, and the range in which that must lie.\n",
	 options_advise, cmd_advise, false},
	{"apply", "set what `advise` said; the CPUs are pinned until `revert`", "ID",
	 "ID.N: line N alone. Values that are replaced are kept with the advice.\n", options_apply,
	 cmd_apply, false},
	{"revert", "take applied advice back: the values and pins from before", "ID",
	 "Exit status 3: CPUs that somebody else changed since were left alone.\n", options_revert,
	 cmd_revert, false},
	{"policy", "show or change the policy of a target", "[TARGET [POLICY [KEY=VALUE]...]]",
	 "`pcptune policy new NAME [DIR]` writes the source and the Makefile of a new policy.\n",
	 options_policy, cmd_policy, false},
	{"policies", "list the policies that are installed, with their parameters", "[POLICY]",
	 NULL, options_policies, cmd_policies, false},
	{"counters", "explain every counter, or show those of a target", "[TARGET]", NULL,
	 options_counters, cmd_counters, false},
	{"check-config", "check a configuration file as the daemon would", "FILE", NULL,
	 options_check_config, cmd_check_config, false},
	{"verify", "re-derive the decisions of a log from its samples", "", NULL, options_verify,
	 cmd_verify, false},
	{"record", "write a trace of the lists of a target, or of a program",
	 "TARGET | -- PROGRAM [ARG]...",
	 "A target goes on as before; the recording ends after --seconds, by ^C, or when the "
	 "target "
	 "or the\ndaemon has gone.\n"
	 "A program runs under the preload library, without a daemon; its child processes are "
	 "recorded, too,\nand its exit status is ours.\n",
	 options_record, cmd_record, false},
	{"trace", "make, read and describe trace files", "import|export|info FILE [OUT]",
	 "import reads lines of time_ns,cpu,order,blocks (\"-\": standard input); blocks > 0 were "
	 "freed, < 0 allocated.\nexport writes them, to standard output unless OUT is given.\n",
	 options_trace, cmd_trace, false},
	{"curve", "show the traffic that any other high would have caused", "[TARGET]",
	 "Of a program in the log of the daemon, or in the one that --db names (the busiest, when "
	 "none\n"
	 "is named), or of a trace.\n",
	 options_curve, cmd_curve, false},
	{"eval", "run policies over a trace or logs and compare what they would have caused",
	 "[merge FILE...]",
	 "merge adds up what --partial wrote.\n"
	 "/floor, /static: pages moved, as multiples of the least possible and of the best fixed "
	 "split\nof the same memory.\n",
	 options_eval, cmd_eval, false},
	{"simulate", "simulate a machine under generations of the rules and policies, as a table",
	 "", "Same workload, rows, CPUs and seed: the same table.\n", options_simulate,
	 cmd_simulate, false},
	{"version", "show the version of this program and of the daemon", "", NULL, options_version,
	 cmd_version, false},
	{"help", "show the commands, or the options of one", "[COMMAND]", NULL, options_help,
	 cmd_help, false},
};
const size_t cli_n_verbs = sizeof(cli_verbs) / sizeof(cli_verbs[0]);

const struct cli_verb *cli_verb_find(const char *name)
{
	size_t i;

	for (i = 0; i < cli_n_verbs; i++)
		if (!strcmp(cli_verbs[i].name, name))
			return &cli_verbs[i];
	return NULL;
}

static void print_option(const struct cli_option *o, FILE *out)
{
	char left[64], letter[8] = "    ";
	const char *gap = !o->arg ? "" : o->arg[0] == '[' ? "[=" : " ";
	const char *arg = !o->arg ? "" : o->arg[0] == '[' ? o->arg + 1 : o->arg;

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, gap, arg);
	fprintf(out, "  %-26s %s\n", left, o->text);
}

void cli_print_usage(const struct cli_verb *verb, FILE *out)
{
	const struct cli_option *o;
	bool any = verb->options[0].name;

	fprintf(out, "usage: pcptune %s%s%s%s\n", verb->name, any ? " [OPTION]..." : "",
		verb->args[0] ? " " : "", verb->args);
	fprintf(out, "%s.\n", verb->text);
	fputc('\n', out);
	for (o = verb->options; o->name; o++)
		print_option(o, out);
	fprintf(out, "  %-26s %s\n", "-h, --help", "this text");
	if (verb->notes)
		fprintf(out, "\n%s", verb->notes);
}
