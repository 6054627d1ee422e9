/* SPDX-License-Identifier: MIT */
/*
 * `pcptune version`: of this program, and of the daemon if one answers. No daemon is no error.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <pcptune/policy.h>
#include "lib/text.h"

struct args {
	const char *socket;
	bool json;
};

const struct cli_option options_version[] = {
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

/* NULL: why says what is in the way */
static json_t *ask(const char *socket, char *why)
{
	struct ctlclient *c;
	json_t *request, *result = NULL;

	if (ctlclient_open(socket, &c, why))
		return NULL;
	request = json_pack("{s:s}", "cmd", "version");
	if (ctlclient_call(c, request, 2000, &result, why))
		result = NULL;
	json_decref(request);
	ctlclient_close(c);
	return result;
}

static void print_daemon(const json_t *d)
{
	const json_t *log = json_object_get(d, "log");
	char up[48];

	printf("pcptuned %s, pid %" PRIu64 ", up %s, %" PRIu64 " target%s%s\n",
	       cli_str(d, "version"), cli_u64(d, "pid"),
	       text_ns((uint64_t)(json_number_value(json_object_get(d, "uptime_s")) * 1e9), up,
		       sizeof(up)),
	       cli_u64(d, "n_targets"), cli_u64(d, "n_targets") == 1 ? "" : "s",
	       cli_bool(d, "dry_run") ? ", dry run" : "");
	printf("  socket  %s\n", cli_str(d, "socket"));
	printf("  config  %s\n", cli_str(d, "config")[0] ? cli_str(d, "config") : "built in");
	printf("  log     %s (%s)\n", cli_str(log, "path")[0] ? cli_str(log, "path") : "none",
	       cli_str(log, "state"));
}

int cmd_version(int argc, char **argv)
{
	struct args a = {0};
	struct cli_rest rest;
	char why[CLI_WHY] = "";
	json_t *daemon;
	int r = cli_parse(argc, argv, &a, 0, 0, &rest);

	if (r >= 0)
		return r;
	daemon = ask(a.socket, why);
	if (a.json)
		return cli_print_json(json_pack("{s:s, s:i, s:i, s:o?}", "cli", PCPTUNE_VERSION,
						"policy_abi", PCPTUNE_POLICY_ABI, "log_schema",
						LOGSTORE_SCHEMA, "daemon", daemon));
	printf("pcptune %s (policy interface %u, log schema %d)\n", PCPTUNE_VERSION,
	       PCPTUNE_POLICY_ABI, LOGSTORE_SCHEMA);
	if (daemon)
		print_daemon(daemon);
	else
		printf("%s\n", why);
	json_decref(daemon);
	return CLI_OK;
}
