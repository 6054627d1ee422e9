/* SPDX-License-Identifier: MIT */
/*
 * The table of keys, and what is printed from it: the sample file and the KEYS section of the man
 * page. A key is added here and nowhere else; unit tests compare both files with this table.
 *
 * Constant data; written by nobody.
 */
#include <inttypes.h>
#include <string.h>
#include <pcptune/segment.h>
#include "lib/config_private.h"

#define C(field) offsetof(struct config, field)
#define R(field) offsetof(struct config_rule, field)
#define UID_TOP	 4294967294LL

static const char *const on_exit_names[] = {"keep", "restore", NULL};

/* clang-format off */
const struct config_key config_keys[] = {
	{"socket", CONFIG_STRING, "bytes", 0, 103, NULL, NULL, false,
	 "Path of the socket that programs attach to; the control socket is beside it, with \".ctl\" "
	 "added. Left out: /run/pcptune/sock for root, else $XDG_RUNTIME_DIR/pcptune/sock "
	 "or, without that variable, /tmp/pcptune-UID/sock, and "
	 "$PCPTUNE_SOCKET before all.", C(socket)},
	{"interval_ms", CONFIG_INT, "ms", 10, 60000, "100", NULL, false,
	 "Time between two samples of a target.", C(interval_ms)},
	{"lease_ms", CONFIG_INT, "ms", 500, 600000, "5000", NULL, true,
	 "When the daemon is gone for longer than this, programs go back to their own defaults.",
	 C(lease_ms)},
	{"settle_ms", CONFIG_INT, "ms", 0, 60000, "200", NULL, true,
	 "After a change of a CPU, further changes of it are dropped for so long.", C(settle_ms)},
	{"dry_run", CONFIG_BOOL, "", 0, 1, "false", NULL, true,
	 "Decide and log, but change nothing.", C(dry_run)},
	{"budget_permille", CONFIG_INT, "permille", 0, 1000, "125", NULL, false,
	 "The sum of high of a target is held below this part of its managed pages; 125 is the "
	 "kernel's one eighth, 0 sets no bound.", C(budget_permille)},
	{"on_exit", CONFIG_ENUM, "", 0, 1, "\"restore\"", on_exit_names, true,
	 "What happens to the limits when the daemon stops: \"keep\" leaves them as they are, "
	 "\"restore\" lets programs go back to their own defaults.", C(on_exit)},
	{"policy_path", CONFIG_STRING, "bytes", 0, 4095, NULL, NULL, true,
	 "Directories that policies are looked for in, separated by colons. Left out: "
	 "$PCPTUNE_POLICY_PATH, else the directory of the installation.", C(policy_path)},
	{"max_targets", CONFIG_INT, "", 1, 100000, "1024", NULL, true,
	 "Programs attached at the same time; others are refused with a reason.", C(max_targets)},
	{"max_cpus", CONFIG_INT, "", 1, PCPTUNE_MAX_CPUS, "8192", NULL, false,
	 "CPU slots per zone that a program may have; programs with more are refused.",
	 C(max_cpus)},

	{"log", CONFIG_GROUP, "", 0, 0, "{}", NULL, false, "The decision log.", 0},
	{"log.enabled", CONFIG_BOOL, "", 0, 1, "true", NULL, false,
	 "Write samples and decisions to the log.", C(log.enabled)},
	{"log.required", CONFIG_BOOL, "", 0, 1, "false", NULL, false,
	 "Without a working log nothing is changed, and the daemon does not start; false: tuning "
	 "goes on and what was lost is counted.", C(log.required)},
	{"log.path", CONFIG_STRING, "bytes", 0, 4095, NULL, NULL, false,
	 "The database. Left out: /var/lib/pcptune/pcptuned.db for root, else "
	 "$XDG_STATE_HOME/pcptune/pcptuned.db or ~/.local/state/pcptune/pcptuned.db.", C(log.path)},
	{"log.max_bytes", CONFIG_INT, "bytes", 1048576, 1099511627776, "268435456", NULL, true,
	 "Bound of the database with its journal; the oldest samples are merged, then removed. "
	 "Above 2147483647 the number needs an L at its end.", C(log.max_bytes)},
	{"log.chunk_ms", CONFIG_INT, "ms", 0, 60000, "3000", NULL, true,
	 "Samples are gathered for so long before they are written; a decision writes them at "
	 "once.", C(log.chunk_ms)},
	{"log.record_ms", CONFIG_INT, "ms", 0, 600000, "30000", NULL, true,
	 "A record of what the lists of each active CPU did, for pcptune curve and eval, is taken once "
	 "in so long, or as often as the policy asks; 0: for policies that ask only.",
	 C(log.record_ms)},
	{"log.full_sync", CONFIG_BOOL, "", 0, 1, "false", NULL, false,
	 "Decisions survive a loss of power, too, at the cost of a disk flush for each.",
	 C(log.full_sync)},
	{"log.effect_samples", CONFIG_INT, "samples", 1, 10000, "10", NULL, true,
	 "The effect of a decision is measured over so many samples before and after it.",
	 C(log.effect_samples)},

	{"guard", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "Outcomes are measured against before; what made things worse goes back. A policy can be "
	 "given other values as parameters guard_permille, guard_ms and guard_bench_ms.", 0},
	{"guard.permille", CONFIG_INT, "permille", 0, 10000, "0", NULL, true,
	 "By so much may a change make traffic to the zone, waits or pages held worse before it goes "
	 "back; 0: no guard.", C(guard.permille)},
	{"guard.ms", CONFIG_INT, "ms", 100, 600000, "5000", NULL, true,
	 "How long is measured before and after a change.", C(guard.ms)},
	{"guard.bench_ms", CONFIG_INT, "ms", 1000, 3600000, "600000", NULL, true,
	 "How long a direction that made things worse is not tried on that CPU; twice as long each "
	 "time, an hour at most.", C(guard.bench_ms)},

	{"canary", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "A policy that takes over begins with a share of the CPUs, and gets the others when those do "
	 "better. The share stands in rules, or in default; a policy can be given other values as "
	 "parameters canary_permille, canary_ms and canary_margin_permille.", 0},
	{"canary.ms", CONFIG_INT, "ms", 100, 3600000, "30000", NULL, true,
	 "How long is measured before and after.", C(canary.ms)},
	{"canary.margin_permille", CONFIG_INT, "permille", 0, 1000, "50", NULL, true,
	 "By so much must the first CPUs do better than the others, in traffic to the zone, waits or "
	 "pages held.", C(canary.margin_permille)},

	{"plugin", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "What a policy may take. Three times more, or a broken contract, and it is benched.", 0},
	{"plugin.call_ms", CONFIG_INT, "ms", 1, 10000, "50", NULL, true,
	 "CPU time for one answer.", C(plugin.call_ms)},
	{"plugin.answer_ms", CONFIG_INT, "ms", 10, 60000, "2000", NULL, true,
	 "Time for one answer of a policy that is not ours, which runs in a process of its own.",
	 C(plugin.answer_ms)},
	{"plugin.memory_mib", CONFIG_INT, "MiB", 16, 65536, "256", NULL, true,
	 "Memory of such a process, beyond what it begins with.", C(plugin.memory_mib)},

	{"control", CONFIG_GROUP, "", 0, 0, "{}", NULL, false, "The control socket.", 0},
	{"control.mode", CONFIG_MODE, "", 0600, 0777, "\"0600\"", NULL, false,
	 "Permission bits of the control socket, octal, as a string.", C(control.mode)},
	{"control.group", CONFIG_STRING, "bytes", 0, 255, NULL, NULL, false,
	 "Group of the control socket, a name or a number. Left out: the group of the daemon.",
	 C(control.group)},
	{"control.max_clients", CONFIG_INT, "", 1, 10000, "32", NULL, true,
	 "Connections at the same time; one more replaces one that was silent for 5 s, or is closed.",
	 C(control.max_clients)},
	{"control.max_queue_bytes", CONFIG_INT, "bytes", 65536, 1073741824, "8388608", NULL, true,
	 "Answers that a client has not read yet; one that leaves more unread is closed.",
	 C(control.max_queue_bytes)},

	{"default", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "The policy of programs that no rule matches.", 0},
	{"default.policy", CONFIG_STRING, "bytes", 1, 4095, "\"contention\"", NULL, true,
	 "Name of a policy on the policy path, or a path with a slash in it.", R(policy)},
	{"default.params", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "Parameters of the policy by name, as numbers, bools or strings.", R(params)},
	{"default.dry_run", CONFIG_INHERIT, "", 0, 1, NULL, NULL, true,
	 "Decide and log only. Left out: as the global dry_run.", R(dry_run)},
	{"default.canary", CONFIG_SHARE, "", 0, 1, "0", NULL, true,
	 "Share of the busy CPUs of a program that gets this policy, or its new parameters, first; 0: "
	 "all at once.", R(canary)},

	{"rules", CONFIG_GROUP, "", 0, 0, "()", NULL, true,
	 "A list of groups; the first one that matches a program chooses its policy.", 0},
	{"rules.program", CONFIG_STRING, "bytes", 1, PCPTUNE_NAME_MAX - 1, NULL, NULL, true,
	 "Shell pattern on the name of the program. Left out: any.", R(program)},
	{"rules.uid", CONFIG_INT, "", 0, UID_TOP, NULL, NULL, true,
	 "User id of the program. Left out: any.", R(uid)},
	{"rules.policy", CONFIG_STRING, "bytes", 1, 4095, NULL, NULL, true,
	 "As default.policy; each rule must have it.", R(policy)},
	{"rules.params", CONFIG_GROUP, "", 0, 0, "{}", NULL, true,
	 "As default.params.", R(params)},
	{"rules.dry_run", CONFIG_INHERIT, "", 0, 1, NULL, NULL, true,
	 "As default.dry_run.", R(dry_run)},
	{"rules.canary", CONFIG_SHARE, "", 0, 1, "0", NULL, true,
	 "As default.canary.", R(canary)},
};
/* clang-format on */
const size_t config_n_keys = sizeof(config_keys) / sizeof(config_keys[0]);

const struct config_key *config_key_find(const char *name)
{
	for (size_t i = 0; i < config_n_keys; i++)
		if (strcmp(config_keys[i].name, name) == 0)
			return &config_keys[i];
	return NULL;
}

/* "a number, 10 .. 60000 ms": the type of a key with what is allowed. */
const char *config_range_text(const struct config_key *k, char *buf, size_t n)
{
	const char *space = k->unit[0] ? " " : "";
	size_t len = 0;

	switch (k->type) {
	case CONFIG_INT:
		snprintf(buf, n, "a whole number, %" PRId64 " .. %" PRId64 "%s%s", k->min, k->max,
			 space, k->unit);
		break;
	case CONFIG_SHARE:
		snprintf(buf, n, "a number, 0.0 .. 1.0");
		break;
	case CONFIG_BOOL:
	case CONFIG_INHERIT:
		snprintf(buf, n, "true or false");
		break;
	case CONFIG_STRING:
		snprintf(buf, n, "a string of %" PRId64 " .. %" PRId64 " bytes", k->min, k->max);
		break;
	case CONFIG_MODE:
		snprintf(buf, n, "a string, octal, \"%04o\" .. \"%04o\"", (unsigned)k->min,
			 (unsigned)k->max);
		break;
	case CONFIG_ENUM:
		for (size_t i = 0; k->choices[i] && len < n; i++)
			len += (size_t)snprintf(buf + len, n - len, "%s\"%s\"", i ? " or " : "",
						k->choices[i]);
		break;
	case CONFIG_GROUP:
		snprintf(buf, n, "%s",
			 strcmp(k->name, "rules") == 0 ? "a list of groups, ( { ... }, ... )"
						       : "a group, { key = value; ... }");
		break;
	}
	return buf;
}

/* ---- the sample file ---- */

/* text as comment lines of at most 90 columns */
static void print_comment(FILE *out, const char *indent, const char *text)
{
	size_t col = 0;

	while (*text) {
		size_t word = strcspn(text, " ");

		if (col && col + 1 + word > 88) {
			fputc('\n', out);
			col = 0;
		}
		if (!col)
			col = (size_t)fprintf(out, "%s#", indent);
		col += (size_t)fprintf(out, " %.*s", (int)word, text);
		text += word + strspn(text + word, " ");
	}
	fputc('\n', out);
}

static void print_key(FILE *out, const struct config_key *k, const char *indent)
{
	const char *dot = strrchr(k->name, '.');
	const char *name = dot ? dot + 1 : k->name;
	char range[256], line[400];

	print_comment(out, indent, k->text);
	snprintf(line, sizeof(line), "Allowed: %s.%s", config_range_text(k, range, sizeof(range)),
		 k->reloadable ? "" : " Needs a restart.");
	print_comment(out, indent, line);
	if (k->def)
		fprintf(out, "%s%s = %s;\n", indent, name, k->def);
	else
		fprintf(out, "%s# %s = ...;\n", indent, name);
}

static bool in_group(const struct config_key *k, const char *group)
{
	size_t n = strlen(group);

	return strncmp(k->name, group, n) == 0 && k->name[n] == '.';
}

static void print_rules_help(FILE *out)
{
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];
		char range[256], line[600];

		if (!in_group(k, "rules"))
			continue;
		snprintf(line, sizeof(line), "  %s: %s (%s)", strrchr(k->name, '.') + 1, k->text,
			 config_range_text(k, range, sizeof(range)));
		print_comment(out, "", line);
	}
	fputs("# rules = (\n"
	      "#\t{ program = \"redis-server\"; policy = \"static\"; params = { high = 512; }; },\n"
	      "#\t{ uid = 1000; program = \"cc1*\"; policy = \"contention\"; dry_run = true; }\n"
	      "# );\n"
	      "rules = ();\n",
	      out);
}

static void print_group(FILE *out, const struct config_key *g)
{
	print_comment(out, "", g->text);
	if (strcmp(g->name, "rules") == 0) {
		print_rules_help(out);
		return;
	}
	fprintf(out, "%s = {", g->name);
	for (size_t i = 0; i < config_n_keys; i++) {
		if (!in_group(&config_keys[i], g->name))
			continue;
		fputc('\n', out);
		print_key(out, &config_keys[i], "\t");
	}
	fputs("};\n", out);
}

void config_print_sample(FILE *out)
{
	fputs("# Configuration of pcptuned: every key with its default. See pcptuned.conf(5).\n"
	      "# Check a changed file with: pcptune check-config FILE\n",
	      out);
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];

		if (strchr(k->name, '.'))
			continue;
		fputc('\n', out);
		if (k->type == CONFIG_GROUP)
			print_group(out, k);
		else
			print_key(out, k, "");
	}
}

/* ---- the man page ---- */

/* mdoc text: one sentence a line, backslashes and leading dots kept from being commands */
static void print_mdoc_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		bool end = (text[0] == '.' || text[0] == ';') && text[1] == ' ';

		if (*text == '\\')
			fputs("\\e", out);
		else
			fputc(*text, out);
		if (end) {
			fputc('\n', out);
			text++;
		}
	}
	fputc('\n', out);
}

void config_print_man(FILE *out)
{
	char range[256];

	fputs(".Bl -tag -width Ds\n", out);
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *k = &config_keys[i];

		fprintf(out, ".It Ic %s\n", k->name);
		print_mdoc_text(out, k->text);
		fprintf(out, "Allowed: %s.\n", config_range_text(k, range, sizeof(range)));
		if (k->def && k->type != CONFIG_GROUP)
			fprintf(out, "Default: %s.\n", k->def);
		if (!k->reloadable && k->type != CONFIG_GROUP)
			fputs("A change needs a restart.\n", out);
	}
	fputs(".El\n", out);
}
