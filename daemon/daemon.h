/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the daemon share. One process, one thread, one event loop: every function below
 * daemon/ runs in it, so nothing here needs a lock. Shared memory with other processes is only
 * touched through lib/segreader.h.
 */
#ifndef PCPTUNE_DAEMON_H
#define PCPTUNE_DAEMON_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/choice.h"
#include "lib/config.h"

struct attach;
struct ctl;
struct foreigners;
struct journal;
struct reloading;
struct sampler;
struct summary;
struct target;

/* Settings of the command line; they win over the file, also after a reload. NULL: not given. */
struct overrides {
	char *file;
	char *socket;
	char *db;
	char *policy_path;
};

struct daemon {
	struct event_base *base;
	struct overrides given;
	struct config *config;
	struct choices *choices;
	struct journal *journal;
	struct attach *attach;
	struct ctl *ctl;
	struct sampler *sampler;
	struct summary *summary;
	struct foreigners *foreigners;
	struct reloading *reloading; /* NULL: no reload is under way */
	struct target **targets;     /* in order of attachment */
	size_t n_targets, max_targets;
	uint64_t last_id;  /* of a target */
	uint64_t start_ms; /* monotonic */
	uint32_t host_cpus;
	bool stopping;
};

/* Loads file (NULL: built-in) and lays the command line's settings over it. As config_load(). */
int daemon_config(const struct overrides *given, struct config **ret, char **ret_why);

#endif
