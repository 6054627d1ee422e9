/* SPDX-License-Identifier: MIT */
/*
 * What the verbs of `pcptune` share.
 *
 * A verb is one row of cli_verbs[] (verbs.c) and one file: the row has its name, a line of text,
 * its arguments and its options; the file has the table of the options and cmd_NAME(). The rows
 * drive dispatch, `pcptune help`, `--help`, and configs/completion.bash; docs/pcptune.1 is held
 * against them by a test. An option names the function that reads its value and the field of the
 * verb's own struct that it goes to, so nothing about an option is said twice:
 *
 *	struct args { const char *db; bool json; };
 *	const struct cli_option options_verify[] = {
 *		CLI_OPT_DB(struct args, db), CLI_OPT_JSON(struct args, json), {0},
 *	};
 *	int cmd_verify(int argc, char **argv)
 *	{
 *		struct args a = {0};
 *		struct cli_rest rest;
 *		int r = cli_parse(argc, argv, &a, 0, 0, &rest);
 *
 *		if (r >= 0)
 *			return r;
 *		...
 *	}
 *
 * The CLI has one thread. Each verb returns its exit status (enum cli_exit) to main(), which
 * flushes standard output and turns a failed write into status 1.
 */
#ifndef PCPTUNE_CLI_CLI_H
#define PCPTUNE_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "lib/ctlclient.h"
#include "lib/jsontext.h"
#include "lib/logstore.h"

enum cli_exit {
	CLI_OK = 0,
	CLI_ERROR = 1,
	CLI_USAGE = 2,
	CLI_DRIFT = 3, /* or: what was asked for was not found */
};

#define CLI_WHY 256u /* bytes of a cause text */

/* ---- options ---- */

/*
 * Reads one value. field: in the verb's struct. value: NULL when the option takes none, or its
 * optional value was left out; points into argv, so it lives as long as the process. Returns 0, or
 * a negative errno with what would be right in why ("a number of seconds").
 */
typedef int (*cli_set_fn)(void *field, const char *value, char *why);

struct cli_option {
	const char *name; /* without dashes; NULL ends a table */
	char letter;	  /* short form, 0: none */
	const char *arg;  /* NULL: none. "[X]": optional (--name=X, or the next word if a number) */
	const char *text; /* one line */
	cli_set_fn set;
	size_t field; /* offset in the verb's struct */
};

int cli_set_flag(void *field, const char *value, char *why);   /* bool */
int cli_set_string(void *field, const char *value, char *why); /* const char * */
int cli_set_list(void *field, const char *value, char *why);   /* struct cli_list, may repeat */
int cli_set_i64(void *field, const char *value, char *why);    /* int64_t, >= 0 */
int cli_set_size(void *field, const char *value, char *why);   /* int64_t, suffixes k m g t */
int cli_set_time(void *field, const char *value, char *why);   /* uint64_t, wall clock, us */

#define CLI_MAX_LIST 64u
struct cli_list {
	const char *item[CLI_MAX_LIST];
	size_t n;
};

#define CLI_OPT_JSON(type, member)                                                           \
	{                                                                                    \
		"json", 'j', NULL, "JSON for programs", cli_set_flag, offsetof(type, member) \
	}
#define CLI_OPT_SOCKET(type, member)                                           \
	{                                                                      \
		"socket", 's', "PATH", "socket of the daemon", cli_set_string, \
			offsetof(type, member)                                 \
	}
#define CLI_OPT_DB(type, member)                                                                 \
	{                                                                                        \
		"db", 'd', "PATH", "database of the log", cli_set_string, offsetof(type, member) \
	}
#define CLI_OPT_POLICY_PATH(type, member)                                                  \
	{                                                                                  \
		"policy-path", 0, "DIRS", "where policies are looked for", cli_set_string, \
			offsetof(type, member)                                             \
	}

/* What is left of the command line: words that are no options. Points into argv. */
struct cli_rest {
	int argc;
	char **argv;
	bool marked; /* a "--" stood before the first of them */
};

/*
 * Reads argv[1..] by the options of the verb argv[0]; argv is put in order in place. min and max
 * bound the number of words left (max -1: any). Returns -1: go on; else the exit status: CLI_OK
 * after --help, CLI_USAGE after a message.
 */
int cli_parse(int argc, char **argv, void *args, int min, int max, struct cli_rest *rest);

/* ---- verbs ---- */
struct cli_verb {
	const char *name;
	const char *text;  /* one line, no full stop */
	const char *args;  /* what stands after the options, "" for none */
	const char *notes; /* shown by --help after the options, NULL: none */
	const struct cli_option *options;
	int (*cmd)(int argc, char **argv);
	bool stop; /* the first word that is no option ends the options (a command line follows) */
};
extern const struct cli_verb cli_verbs[];
extern const size_t cli_n_verbs;
const struct cli_verb *cli_verb_find(const char *name);
void cli_print_usage(const struct cli_verb *verb, FILE *out);

/* argv[0] is the verb. Options of a verb are in the same file. */
int cmd_run(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_targets(int argc, char **argv);
int cmd_log(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_set(int argc, char **argv);
int cmd_unset(int argc, char **argv);
int cmd_advise(int argc, char **argv);
int cmd_apply(int argc, char **argv);
int cmd_revert(int argc, char **argv);
int cmd_policy(int argc, char **argv);
int cmd_policies(int argc, char **argv);
int cmd_counters(int argc, char **argv);
int cmd_check_config(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_record(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_curve(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_simulate(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_help(int argc, char **argv);
extern const struct cli_option options_run[], options_status[], options_targets[], options_log[];
extern const struct cli_option options_explain[], options_set[], options_unset[], options_policy[];
extern const struct cli_option options_policies[], options_counters[], options_check_config[];
extern const struct cli_option options_advise[], options_apply[], options_revert[];
extern const struct cli_option options_record[], options_verify[], options_trace[];
extern const struct cli_option options_curve[], options_eval[], options_simulate[];
extern const struct cli_option options_version[], options_help[];

/* ---- messages ---- */

/* "pcptune VERB: text" on standard error; returns CLI_ERROR so that verbs can return it. */
__attribute__((format(printf, 1, 2))) int cli_error(const char *fmt, ...);
/* The same with a line that says where help is; returns CLI_USAGE. */
__attribute__((format(printf, 1, 2))) int cli_usage_error(const char *fmt, ...);
void cli_error_verb(const char *name); /* what cli_error() puts before its text */
/*
 * Columns of the terminal that standard output is ($COLUMNS, else asked for), 40 or more; 0: it is
 * none.
 */
int cli_width(void);
/* ESC sequences, "" where standard output has no colour. */
const char *cli_bold(void);
const char *cli_red(void);
const char *cli_yellow(void);
const char *cli_dim(void);
const char *cli_plain(void);

/* ---- the daemon ---- */

/* Connects; on failure says so (with what to do) and returns the exit status, else -1. */
int cli_connect(const char *socket, struct ctlclient **ret);
/* Takes the reference of request. -1: *ret is a new reference; else said, and the exit status. */
int cli_call(struct ctlclient *c, json_t *request, json_t **ret);
/*
 * A TARGET word as the control socket wants it: a number is an id, else a name. New reference. One
 * that is not UTF-8 goes into the request, too, and makes cli_call() refuse the whole of it.
 */
json_t *cli_target(const char *word);

/* ---- other programs ---- */

/*
 * A file or directory by its place relative to that of our executable: how a build that is not
 * installed finds its parts. path: PATH_MAX bytes. False: nothing is there.
 */
bool cli_beside_us(const char *name, char *path);

/* ---- the log ---- */

/*
 * The database to read, malloc'ed: db if given, else that of the running daemon, else the default
 * one, else the newest that `run` left; with a socket only that of the daemon there. NULL: none,
 * and why says what was looked at.
 */
char *cli_db_path(const char *db, const char *socket, char *why);
/*
 * cli_db_path() opened for reading. -1: *ret is open; else said, and the exit status. Which log it
 * is, when none was named, is said on standard error; json: to people on a terminal only.
 */
int cli_open_log(const char *db, const char *socket, bool json, struct logstore **ret);
/* cli_error() with the log before the text, once: errors of sqlite name it themselves. */
int cli_log_error(const struct logstore *ls, const char *text);

/* ---- output ---- */

/* One line, keys in the order they were put in. Takes the reference. Returns CLI_OK or CLI_ERROR.
 */
int cli_print_json(json_t *value);
/* ISO time, "-10m" (s m h d back from now), "today", "HH:MM", "YYYY-MM-DD [HH:MM[:SS]]": local */
int cli_parse_time(const char *s, uint64_t now_us, uint64_t *ret_us);
/*
 * "high 378 -> 504, batch 63 -> 126": only what differs; "(fixed)" where high_min and high_max
 * follow high. buf of 160 bytes.
 */
char *cli_limits_diff(const struct log_limits *old, const struct log_limits *new_, char *buf,
		      size_t n);
/* "high= high_min= ...": what `set` takes, for the completion script */
void cli_print_limits(FILE *out);
json_t *cli_limits_json(const struct log_limits *l);
/* The sentence of a decision's reason, by its plug-in if that is at hand, else name and arguments.
 */
char *cli_reason(const struct log_decision *d, const struct log_assignment *a, char *buf, size_t n);
/* The same without "high A -> B", for where the change stands beside it. */
char *cli_reason_short(const struct log_decision *d, const struct log_assignment *a, char *buf,
		       size_t n);
/* Where cli_reason() looks for plug-ins; NULL: the default. Call before the first cli_reason(). */
void cli_reason_path(const char *dirs);
/* Numbers with a thin grouping for people: 1234567 -> "1,234,567"; buf of 32 bytes. */
char *cli_count(uint64_t v, char *buf, size_t n);
/* JSON getters that do not fail: a missing or wrong member is 0, "", false. */
uint64_t cli_u64(const json_t *object, const char *key);
const char *cli_str(const json_t *object, const char *key);
/* What chose a policy, as it stands behind "chosen by" */
const char *cli_chosen_by(const char *why);
bool cli_bool(const json_t *object, const char *key);

#endif
