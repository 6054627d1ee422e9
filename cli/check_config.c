/* SPDX-License-Identifier: MIT */
/*
 * `pcptune check-config FILE`: what the daemon says about a configuration file.
 *
 * There is one check, that of `pcptuned --check`, and so nothing that only one of the two finds: it
 * is run here, and its lines are shown. A daemon that runs already is no mistake (--reload), since
 * the file may be meant for it. Only the names and versions of the policies are asked for again,
 * once the daemon has found nothing wrong.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lib/config.h"
#include "lib/text.h"
#include "policies/host.h"

struct args {
	const char *policy_path;
	bool json;
};

const struct cli_option options_check_config[] = {
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_JSON(struct args, json),
	{0},
};

struct check {
	const char *file, *policy_path;
	json_t *errors;	  /* lines "file:line: what, allowed" */
	json_t *notes;	  /* what is no mistake and yet worth a line */
	json_t *policies; /* "name version" of those that are fine */
	size_t n_rules;
};

/* ---- the daemon ---- */

__attribute__((noreturn)) static void become_daemon(const struct check *c, int out)
{
	const char *argv[] = {"pcptuned", "--check",	   "--reload",	   "-c",
			      c->file,	  "--policy-path", c->policy_path, NULL};
	char path[PATH_MAX];

	if (!c->policy_path)
		argv[5] = NULL;
	dup2(out, STDERR_FILENO);
	out = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (dup2(out, STDOUT_FILENO) < 0) /* the plan of a start */
		close(STDOUT_FILENO);
	if (cli_beside_us("pcptuned", path))
		execv(path, (char *const *)argv);
	execvp(argv[0], (char *const *)argv);
	dprintf(STDERR_FILENO, "pcptuned: %s\n", strerror(errno));
	_exit(127);
}

static char *read_all(int fd)
{
	char *text = NULL;
	size_t n = 0, cap = 0;
	ssize_t got;

	do {
		if (n + 1 >= cap) {
			char *more = realloc(text, cap = cap ? 2 * cap : 4096);

			if (!more)
				break;
			text = more;
		}
		got = read(fd, text + n, cap - n - 1);
		n += got > 0 ? (size_t)got : 0;
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (text)
		text[n] = '\0';
	return text;
}

/* What it says, malloc'ed, and its exit status; NULL: it could not be started. */
static char *ask_daemon(const struct check *c, int *ret_status)
{
	char *text;
	int fd[2], status;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return NULL;
	pid = fork();
	if (pid == 0)
		become_daemon(c, fd[1]);
	close(fd[1]);
	text = pid > 0 ? read_all(fd[0]) : NULL;
	close(fd[0]);
	if (pid < 0)
		return NULL;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	*ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
	return text;
}

static void add_lines(json_t *list, char *text)
{
	char *save, *line;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		text_clean(line);
		json_array_append_new(list, json_string(line));
	}
}

/* ---- what is fine ---- */

static int add_policy(struct check *c, const struct config_rule *rule, const char *path)
{
	struct policy_module *m;
	char why[POLICY_WHY];

	if (policy_load(rule->policy, path, &m, why))
		return cli_error("%s", why);
	json_array_append_new(c->policies,
			      json_sprintf("%s %s", policy_desc(m)->name, policy_desc(m)->version));
	policy_unref(m);
	return CLI_OK;
}

/* The daemon found nothing wrong: what fails here is the system's doing. */
static int add_policies(struct check *c)
{
	struct config *cfg;
	char *why = NULL;
	int r = CLI_OK;

	if (config_load(c->file, &cfg, &why)) {
		r = cli_error("%s", why ? why : "no memory");
		free(why);
		return r;
	}
	c->n_rules = cfg->n_rules;
	for (size_t i = 0; i <= cfg->n_rules && r == CLI_OK; i++)
		r = add_policy(c, i < cfg->n_rules ? &cfg->rules[i] : &cfg->def,
			       c->policy_path ? c->policy_path : cfg->policy_path);
	config_free(cfg);
	return r;
}

/* ---- the verb ---- */

static int run_check(struct check *c)
{
	int status = 1;
	char *text = ask_daemon(c, &status);

	if (!text)
		return cli_error("pcptuned could not be started: %s", strerror(errno));
	add_lines(status ? c->errors : c->notes, text);
	free(text);
	if (status && !json_array_size(c->errors))
		json_array_append_new(c->errors,
				      json_sprintf("pcptuned --check: exit status %d", status));
	return status ? CLI_ERROR : add_policies(c);
}

static void print_text(const struct check *c, bool fine)
{
	json_t *v;
	size_t i;

	json_array_foreach (c->errors, i, v)
		fprintf(stderr, "%s\n", json_string_value(v));
	json_array_foreach (c->notes, i, v)
		fprintf(stderr, "%s\n", json_string_value(v));
	if (!fine)
		return;
	printf("%s: fine: %zu rule%s and the default; policies:", c->file, c->n_rules,
	       c->n_rules == 1 ? "" : "s");
	json_array_foreach (c->policies, i, v)
		printf("%s %s", i ? "," : "", json_string_value(v));
	putchar('\n');
}

int cmd_check_config(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	struct check c = {.errors = json_array(), .notes = json_array(), .policies = json_array()};
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r < 0) {
		c.file = rest.argv[0];
		c.policy_path = a.policy_path;
		fflush(NULL);
		r = run_check(&c);
		if (!a.json)
			print_text(&c, r == CLI_OK);
		else
			cli_print_json(json_pack("{s:o, s:b, s:O, s:O, s:O}", "file",
						 json_shown(c.file), "ok", r == CLI_OK, "errors",
						 c.errors, "policies", c.policies, "notes",
						 c.notes));
	}
	json_decref(c.errors);
	json_decref(c.notes);
	json_decref(c.policies);
	return r;
}
