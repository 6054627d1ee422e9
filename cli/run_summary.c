/* SPDX-License-Identifier: MIT */
/*
 * What `pcptune run` says at the end: the daemon's totals of all processes that carried our tag.
 *
 * The end of a process reaches the daemon through its socket, a moment after we reaped it, so the
 * totals are asked for until they stand still: no process alive, and the same answer twice.
 * Processes that the program left running are counted as far as they got.
 */
#include "cli/run.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "lib/config.h"
#include "lib/text.h"

#define TRIES	 130
#define TRY_MS	 3
#define PAGE	 4096u
#define NAME_COL 18

/* Keys that programs may rely on; null where nobody could tell. */
static const char *const keys[] = {
	"targets",
	"live",
	"pages_allocated",
	"pages_freed",
	"alloc_zone",
	"free_zone",
	"alloc_direct",
	"free_direct",
	"refills",
	"drains",
	"free_high",
	"lock_takes",
	"lock_contended",
	"lock",
	"cpu_us",
	"contend_pct",
	"contend_pct_alloc",
	"contend_pct_free",
	"pages_held",
	"pages_held_peak",
	"decisions",
	"dry_run",
	"malloc_calls",
	"malloc_bytes",
	"malloc_pages",
	"malloc_passed",
	"waste_bytes",
	"db",
	"log_error",
};

/* Nobody with our tag asked for a page: the totals are zero. */
static json_t *nothing_done(void)
{
	json_t *none = json_pack("{s:i, s:i, s:i}", "taken", 0, "contended", 0, "wait_ns", 0);
	json_t *s = json_pack("{s:{s:O, s:O, s:o}, s:n}", "lock", "alloc", none, "free", none,
			      "agent", none, "db");
	size_t i;

	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!json_object_get(s, keys[i]) && strncmp(keys[i], "contend_pct", 11) &&
		    strcmp(keys[i], "log_error"))
			json_object_set_new(s, keys[i], json_integer(0));
	return s;
}

/*
 * Where the log is, if there is one: a path that the daemon could not write to names no log, or
 * one of somebody else. A log that got lost on the way holds what came before.
 */
static void ask_for_log(struct run_daemon *d, json_t *s)
{
	json_t *version, *log;
	const char *path, *state;
	char why[CLI_WHY];
	bool there;

	if (run_daemon_ask(d, json_pack("{s:s}", "cmd", "version"), &version))
		return;
	log = json_object_get(version, "log");
	path = cli_str(log, "path");
	state = cli_str(log, "state");
	there = !strcmp(state, "ok") ||
		(!strcmp(state, "lost") && !config_place_trusted(path, why) && !access(path, F_OK));
	json_object_set_new(s, "db", there ? json_shown(path) : json_null());
	json_object_set_new(s, "log_error",
			    !strcmp(state, "lost")  ? json_shown(cli_str(log, "error"))
			    : !strcmp(state, "off") ? json_string("it is switched off")
						    : json_null());
	json_object_set_new(s, "dry_run", json_boolean(cli_bool(version, "dry_run")));
	json_decref(version);
}

static json_t *ask_until_quiet(struct run_daemon *d, const char *tag)
{
	struct timespec pause = {.tv_nsec = TRY_MS * 1000000L};
	json_t *last = NULL, *now;
	bool same;
	int i, r;

	for (i = 0; i < TRIES; i++) {
		r = run_daemon_ask(d, json_pack("{s:s, s:s}", "cmd", "summary", "tag", tag), &now);
		if (r == -ENOENT)
			now = nothing_done();
		if ((r && r != -ENOENT) || !now)
			return last;
		same = last && json_equal(last, now);
		json_decref(last);
		last = now;
		if (same && !cli_u64(now, "live"))
			break;
		nanosleep(&pause, NULL);
	}
	return last;
}

json_t *run_summary(struct run_daemon *d, const char *tag)
{
	json_t *s = NULL;
	size_t i;

	if (d->socket && !run_daemon_ended(d))
		s = ask_until_quiet(d, tag);
	if (json_is_object(s))
		ask_for_log(d, s);
	if (!json_is_object(s)) {
		json_decref(s);
		s = json_object();
	}
	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!json_object_get(s, keys[i]))
			json_object_set_new(s, keys[i], json_null());
	return s;
}

static uint64_t waited(const json_t *s, const char *path)
{
	return cli_u64(json_object_get(json_object_get(s, "lock"), path), "wait_ns");
}

static void set_percent(json_t *s, const char *key, uint64_t wait_ns, uint64_t cpu_us)
{
	json_object_set_new(s, key, json_real((double)wait_ns / 10.0 / (double)cpu_us));
}

/*
 * The daemon can not ask for the CPU time of a process that has ended, so it gives no percentage
 * where one ended unseen. We have reaped the program, and know what it and its children used.
 */
static void fill_percentages(json_t *s, uint64_t cpu_us)
{
	uint64_t a = waited(s, "alloc"), f = waited(s, "free");

	if (!cpu_us || !json_is_null(json_object_get(s, "contend_pct")))
		return;
	json_object_set_new(s, "cpu_us", json_integer((json_int_t)cpu_us));
	set_percent(s, "contend_pct", a + f, cpu_us);
	set_percent(s, "contend_pct_alloc", a, cpu_us);
	set_percent(s, "contend_pct_free", f, cpu_us);
}

void run_summary_complete(json_t *s, const struct run_result *r, const char *program,
			  const struct run_daemon *d)
{
	bool none = json_is_null(json_object_get(s, "targets"));

	if (!none)
		fill_percentages(s, r->cpu_us);
	json_object_set_new(s, "program", json_shown(program));
	json_object_set_new(s, "status", json_integer(r->status));
	json_object_set_new(s, "signal", r->signal ? json_integer(r->signal) : json_null());
	json_object_set_new(s, "wall_s", json_real(r->wall_s));
	json_object_set_new(s, "daemon",
			    none ? json_null() : json_string(d->dir ? "private" : "running"));
	json_object_set_new(s, "error", none ? json_shown(d->why) : json_null());
}

/* ---- for people ---- */

__attribute__((format(printf, 2, 3))) static void line(const char *name, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "  %-*s ", NAME_COL, name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static void print_head(const struct run_result *r, const char *program)
{
	fprintf(stderr, "pcptune run: %s: ", program);
	if (r->error)
		fprintf(stderr, "not started, exit status %d\n", r->status);
	else if (r->signal)
		fprintf(stderr, "ended by signal %d (%s) after %.3f s\n", r->signal,
			strsignal(r->signal), r->wall_s);
	else
		fprintf(stderr, "exit status %d after %.3f s\n", r->status, r->wall_s);
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static const char *percent(const json_t *s, const char *key, char *buf, size_t n)
{
	const json_t *v = json_object_get(s, key);

	if (json_is_number(v))
		snprintf(buf, n, "%.2f", json_number_value(v));
	else
		snprintf(buf, n, "not known");
	return buf;
}

static void print_lock_path(const json_t *s, const char *path, const char *contend_key)
{
	const json_t *p = json_object_get(json_object_get(s, "lock"), path);
	char name[32], taken[32], contended[32], wait[48], pct[32];
	uint64_t takes = cli_u64(p, "taken");

	snprintf(name, sizeof(name), "zone lock, %s", path);
	line(name, "%s take%s, %s contended, waited %s%s%s", cli_count(takes, taken, 32),
	     plural(takes), cli_count(cli_u64(p, "contended"), contended, 32),
	     text_ns(cli_u64(p, "wait_ns"), wait, sizeof(wait)), contend_key ? ", contend% " : "",
	     contend_key ? percent(s, contend_key, pct, sizeof(pct)) : "");
}

/* "1,234 pages (4.8 MiB)" */
static const char *pages_text(uint64_t pages, char *buf, size_t n)
{
	char count[32], bytes[48];

	snprintf(buf, n, "%s page%s (%s)", cli_count(pages, count, sizeof(count)), plural(pages),
		 text_bytes(pages > UINT64_MAX / PAGE ? UINT64_MAX : pages * PAGE, bytes,
			    sizeof(bytes)));
	return buf;
}

static void print_pages(const json_t *s)
{
	uint64_t pages = cli_u64(s, "pages_allocated"), zone = cli_u64(s, "alloc_zone");
	uint64_t takes = cli_u64(s, "lock_takes");
	char a[96], b[96];

	line("pages allocated", "%s", pages_text(pages, a, sizeof(a)));
	if (pages >= 1000) /* of fewer, "per 1000" says more than there was */
		line("alloc_zone", "%s page%s, %.2f per 1000 allocated", cli_count(zone, a, 32),
		     plural(zone), 1000.0 * (double)zone / (double)pages);
	else
		line("alloc_zone", "%s page%s", cli_count(zone, a, 32), plural(zone));
	line("zone lock", "%s take%s by the program, %s contended", cli_count(takes, a, 32),
	     plural(takes), cli_count(cli_u64(s, "lock_contended"), b, 32));
	print_lock_path(s, "alloc", "contend_pct_alloc");
	print_lock_path(s, "free", "contend_pct_free");
	print_lock_path(s, "agent", NULL);
	line("held on lists", "now %s, peak %s", pages_text(cli_u64(s, "pages_held"), a, sizeof(a)),
	     pages_text(cli_u64(s, "pages_held_peak"), b, sizeof(b)));
}

static void print_malloc(const json_t *s)
{
	uint64_t given = cli_u64(s, "malloc_pages") * PAGE, asked = cli_u64(s, "malloc_bytes");
	uint64_t calls = cli_u64(s, "malloc_calls"), passed = cli_u64(s, "malloc_passed");
	char a[48], b[48];

	if (!calls && !passed)
		return;
	line("malloc", "%s call%s served, %s passed on", cli_count(calls, a, 32), plural(calls),
	     cli_count(passed, b, 32));
	if (given >= asked && given)
		line("rounding waste", "%s, %.1f %% of what was given, summed over all allocations",
		     text_bytes(given - asked, a, sizeof(a)),
		     100.0 * (double)(given - asked) / (double)given);
}

static void print_log(const json_t *s)
{
	const char *db = cli_str(s, "db"), *error = cli_str(s, "log_error");

	if (!db[0]) {
		line("log", "none%s%s%s", error[0] ? " (" : "", error, error[0] ? ")" : "");
		return;
	}
	line("log", "%s%s%s%s", db, error[0] ? " (incomplete: " : "", error, error[0] ? ")" : "");
	line("more", "pcptune log --db '%s'; pcptune explain --db '%s' ID", db, db);
}

static void print_more(const json_t *s, const struct run_daemon *d)
{
	char a[48];

	line("decisions", "%s%s", cli_count(cli_u64(s, "decisions"), a, 32),
	     cli_bool(s, "dry_run") ? " (dry run: nothing was changed)" : "");
	line("daemon", "%s", d->dir ? "private, for this run" : d->socket);
	print_log(s);
}

void run_summary_print(const json_t *s, const struct run_result *r, const char *program,
		       const struct run_daemon *d)
{
	uint64_t targets = cli_u64(s, "targets"), live = cli_u64(s, "live");
	char a[48], b[48];

	print_head(r, program);
	if (json_is_null(json_object_get(s, "targets"))) {
		line("not measured", "%s", d->why);
		return;
	}
	if (r->error)
		return;
	if (!targets) {
		line("processes", "none made a page-grain request; nothing to count");
		return;
	}
	line("processes", "%s with page-grain requests, %s still running",
	     cli_count(targets, a, 32), cli_count(live, b, 32));
	print_pages(s);
	print_malloc(s);
	print_more(s, d);
}
