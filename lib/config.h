/* SPDX-License-Identifier: MIT */
/*
 * Configuration: one table of keys drives parsing, `pcptuned --check`, `pcptune check-config`, the
 * man page pcptuned.conf(5) and the sample file. Files are libconfig. Unknown keys are refused with
 * the nearest match; every message is "file:line: what, allowed".
 */
#ifndef PCPTUNE_LIB_CONFIG_H
#define PCPTUNE_LIB_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum config_type {
	CONFIG_INT = 1, /* 64 bits */
	CONFIG_BOOL,
	CONFIG_STRING,
	CONFIG_ENUM,
	CONFIG_GROUP, /* a group or list, handled by name: rules, default, params */
	CONFIG_MODE, /* permission bits, octal in a string: "0600"; min and max are in octal, too */
	CONFIG_SHARE,	/* 0 .. 1, a fraction; kept in permille */
	CONFIG_INHERIT, /* a bool of a rule, kept as int64_t: -1 (left out): as the global setting
			 */
};

/*
 * One row a key. name is dotted ("log.max_bytes"); keys of a rule begin with "rules.". min and max
 * bound the value of an int, the length in bytes of a string, the bits of a mode.
 */
struct config_key {
	const char *name;
	enum config_type type;
	const char *unit; /* "ms", "bytes", "" */
	int64_t min, max;
	const char *def; /* as written in a file, quotes included; NULL: see text */
	const char *const *choices;
	bool reloadable;  /* by SIGHUP */
	const char *text; /* one sentence */
	size_t offset;	  /* in struct config; for "default." and "rules." in struct config_rule */
};
extern const struct config_key config_keys[];
extern const size_t config_n_keys;

struct config_param {
	char *key, *value;
	int line;
};

/* A policy with parameters and, for a rule, what it matches. */
struct config_rule {
	char *program; /* NULL: any; a shell pattern (fnmatch) on the target's name */
	int64_t uid;   /* -1: any */
	char *policy;
	struct config_param *params;
	size_t n_params;
	int64_t dry_run; /* -1: as the global setting, 0, 1 */
	int64_t canary;	 /* permille */
	int line;
};

enum config_on_exit { CONFIG_KEEP = 0, CONFIG_RESTORE = 1 };

struct config {
	char *file;   /* as given; NULL: the built-in default */
	char *socket; /* never NULL: the default is filled in */
	int64_t interval_ms, lease_ms, settle_ms, max_targets, max_cpus;
	bool dry_run;
	int64_t budget_permille; /* of managed pages, per target; 0: no bound by the host */
	enum config_on_exit on_exit;
	char *policy_path; /* NULL: the default of the plug-in host */
	struct {
		bool enabled, required;
		char *path; /* never NULL: the default is filled in */
		int64_t max_bytes, chunk_ms, record_ms;
		bool full_sync;
		int64_t effect_samples; /* outcome is measured over so many samples */
	} log;
	struct {
		int64_t permille, ms, bench_ms;
	} guard; /* for every policy; its parameters go before */
	struct {
		int64_t ms, margin_permille;
	} canary; /* the same */
	struct {
		int64_t call_ms, answer_ms, memory_mib;
	} plugin; /* what a policy may take; the last two: one that is not ours */
	struct {
		int64_t mode; /* of the control socket, octal in the file as a string "0600" */
		char *group;  /* NULL: left as it is */
		int64_t max_clients, max_queue_bytes;
	} control;
	struct config_rule def; /* `default` */
	struct config_rule *rules;
	size_t n_rules;
};

/*
 * Reads a file; NULL: the built-in default. 0, or with *ret_why set (malloc'ed, one or more lines
 * "file:line: what, allowed", each with a newline; free() it): -EINVAL, -ENOENT, -EACCES, -EISDIR
 * and what else open() and read() give. -ENOMEM: *ret_why may be NULL. *ret is untouched on
 * failure, *ret_why on success. @include is relative to the file that it stands in. Not
 * signal-safe; may run in any thread, in one at a time.
 */
int config_load(const char *file, struct config **ret, char **ret_why);
/* The text of a file instead of a file; name is for messages. */
int config_parse(const char *text, const char *name, struct config **ret, char **ret_why);
void config_free(struct config *c);
/* First rule that matches, else &c->def. *ret_i: index of the rule, -1: default. */
const struct config_rule *config_match(const struct config *c, const char *program, int64_t uid,
				       int *ret_i);
/* 0, or the first key that differs and can not be reloaded (static text in *ret_key). */
int config_reloadable(const struct config *old, const struct config *new_, const char **ret_key);
/* The sample file (configs/pcptuned.conf), every key with its default, unit, range and text. */
void config_print_sample(FILE *out);
/* The KEYS section of pcptuned.conf(5), mdoc. */
void config_print_man(FILE *out);
/*
 * Where sockets and logs are when nothing is configured; malloc'ed, NULL: no memory.
 * Socket: $PCPTUNE_SOCKET, else /run/pcptune/sock (root), $XDG_RUNTIME_DIR/pcptune/sock, or
 * /tmp/pcptune-UID/sock. Log: /var/lib/pcptune/pcptuned.db (root), $XDG_STATE_HOME/pcptune/...,
 * ~/.local/state/pcptune/pcptuned.db, or, without HOME, /tmp/pcptune-UID/pcptuned.db.
 */
char *config_default_socket(void);
char *config_default_log(void);
/*
 * -EPERM: path is in /tmp/pcptune-UID, and that is not a directory of ours alone, so somebody else
 * made it, and may have laid a socket or a link there; why (256 bytes) says so. Ask before anything
 * in it is used, and after it was made.
 */
int config_place_trusted(const char *path, char *why);
/* The control socket beside a target socket: SOCKET.ctl; malloc'ed. */
char *config_control_socket(const char *socket);

#endif
