/* SPDX-License-Identifier: MIT */
/*
 * What the daemon costs: CPU time in per cent of one core, resident memory, and bytes of log for
 * each sample of an active CPU, with synthetic targets (tests/tools/fake.h); see --help.
 *
 * What is measured is steady load. After targets attach, a policy makes decisions for a while, and
 * each costs a transaction of the log; so the warm-up lasts at least as long as asked for, and then
 * until the targets have taken over nothing new for QUIET_S. How many decisions fell into the
 * measured time all the same is part of the result.
 *
 * Sampling is at 10 Hz, with the log on. Each case has a daemon of its own in a temporary
 * directory. The targets work in this process, so their cost is not in the figures. Exit status 0,
 * 1 when a case could not be measured, 2 when the arguments are wrong.
 */
#include <getopt.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <limits.h>
#include "tests/tools/fake.h"

#define STEP_MS	      50
#define QUIET_S	      3u  /* without a decision: steady */
#define WARM_UP_MAX_S 60u /* ... or at last measured as it is */

struct bench_case {
	const char *name;
	uint32_t targets, cpus, active; /* active: permille of the CPUs */
	bool missing;			/* ... and each misses now and then, whatever it has */
	const char *text;
};

static const struct bench_case cases[] = {
	{"active", 200, 64, 1000, false,
	 "200 targets of 64 CPUs, every CPU active in every interval: bursts of 64 to 563 pages, "
	 "which a list that the policy has made long enough serves"},
	{"missing", 200, 64, 1000, true,
	 "the same, but each CPU goes to the zone in every 16th step as well, however long its "
	 "lists are: policies give out their whole budget, and want more in every interval"},
	{"half", 200, 64, 500, false,
	 "200 targets of 64 CPUs, half of the CPUs active in each interval"},
	{"idle", 200, 64, 0, false, "200 targets of 64 CPUs, at rest"},
	{"one", 1, 64, 1000, false, "one target of 64 CPUs, active"},
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

struct result {
	double seconds, warm_up, cpu_pct;
	uint64_t rss, shared, chunk_bytes, records, samples, decisions, log_bytes;
	uint64_t from_us, to_us;      /* measured time, CLOCK_BOOTTIME */
	uint64_t decisions_in_window; /* of decisions */
};

static struct {
	unsigned seconds, warm_up, record_ms;
	const char *policy, *dir;
	bool json, help;
} opt = {20, 16, 30000, "contention", NULL, false, false};

/* dir/name; ends the program when it does not fit */
static const char *in_dir(const char *dir, const char *name, char *buf)
{
	if (snprintf(buf, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX) {
		fprintf(stderr, "bench/daemon: path too long: %s\n", dir);
		exit(1);
	}
	return buf;
}

/* ---- the daemon ---- */

static bool daemon_path(char *buf, size_t n)
{
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (len < 0)
		return false;
	self[len] = '\0';
	slash = strrchr(self, '/');
	*slash = '\0';
	return (size_t)snprintf(buf, n, "%s/../bin/pcptuned", self) < n;
}

static bool write_config(const char *dir)
{
	char path[PATH_MAX];
	FILE *f;

	f = fopen(in_dir(dir, "pcptuned.conf", path), "w");
	if (!f)
		return false;
	fprintf(f,
		"socket = \"%s/sock\";\nlog = { path = \"%s/log.db\"; max_bytes = 4294967296L; "
		"record_ms = %u; };\n"
		"default = { policy = \"%s\"; };\n",
		dir, dir, opt.record_ms, opt.policy);
	return !fclose(f);
}

static pid_t start_daemon(const char *dir)
{
	char exe[PATH_MAX + 32], config[PATH_MAX];
	pid_t pid;

	if (!daemon_path(exe, sizeof(exe)) || !write_config(dir))
		return -1;
	in_dir(dir, "pcptuned.conf", config);
	pid = fork();
	if (pid == 0) {
		execl(exe, "pcptuned", "--foreground", "-c", config, (char *)NULL);
		perror(exe);
		_exit(127);
	}
	return pid;
}

static void stop_daemon(pid_t pid)
{
	kill(pid, SIGTERM);
	waitpid(pid, NULL, 0);
}

static uint64_t cpu_ns(pid_t pid)
{
	clockid_t clock;

	return clock_getcpuclockid(pid, &clock) ? 0 : fake_ns(clock);
}

static void memory(pid_t pid, struct result *r)
{
	char path[64], line[256];
	unsigned long kib;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmRSS: %lu", &kib) == 1)
			r->rss = (uint64_t)kib << 10;
		if (sscanf(line, "RssShmem: %lu", &kib) == 1)
			r->shared = (uint64_t)kib << 10;
	}
	if (f)
		fclose(f);
}

/* ---- targets ---- */

static bool attach_one(struct fake *f, const char *path, const struct fake_shape *s)
{
	struct pcptune_reply r;
	int e = -ENOENT;

	if (fake_new(f, s, true))
		return false;
	for (int i = 0; i < 100 && (e == -ENOENT || e == -ECONNREFUSED); i++) {
		e = fake_attach(f, path, 0, &r);
		if (e)
			usleep(50000);
	}
	if (e || r.status) {
		fprintf(stderr, "bench/daemon: attach: %s\n", e ? strerror(-e) : r.reason);
		return false;
	}
	return true;
}

static void work(struct fake *f, const struct bench_case *c, double seconds)
{
	uint64_t end = fake_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9), now;
	uint64_t next = fake_ns(CLOCK_MONOTONIC);

	while ((now = fake_ns(CLOCK_MONOTONIC)) < end) {
		for (uint32_t i = 0; i < c->targets; i++)
			fake_step(&f[i], c->active, true);
		next += STEP_MS * 1000000u;
		now = fake_ns(CLOCK_MONOTONIC);
		if (next > now)
			usleep((useconds_t)((next - now) / 1000u));
		else
			next = now;
	}
}

/* Control words taken over by all targets so far: decisions that arrived. */
static size_t adopted(const struct fake *f, uint32_t n)
{
	size_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += f[i].n_adopted;
	return sum;
}

/* Works until the load is steady; returns the seconds that it took. */
static double warm_up(struct fake *f, const struct bench_case *c)
{
	unsigned quiet = 0, s;

	work(f, c, opt.warm_up);
	for (s = opt.warm_up; quiet < QUIET_S && s < WARM_UP_MAX_S; s++) {
		size_t before = adopted(f, c->targets);

		work(f, c, 1);
		quiet = adopted(f, c->targets) == before ? quiet + 1 : 0;
	}
	return s;
}

/* ---- measuring ---- */

static uint64_t ask(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *st;
	uint64_t v = 0;

	if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
		return 0;
	if (sqlite3_step(st) == SQLITE_ROW)
		v = (uint64_t)sqlite3_column_int64(st, 0);
	sqlite3_finalize(st);
	return v;
}

static void read_log(const char *dir, struct result *r)
{
	char path[PATH_MAX], in_window[128];
	struct stat st;
	sqlite3 *db;

	in_dir(dir, "log.db", path);
	if (!stat(path, &st))
		r->log_bytes = (uint64_t)st.st_size;
	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK) {
		r->chunk_bytes = ask(db, "SELECT sum(length(data)) FROM sample WHERE level = 0") +
				 ask(db, "SELECT sum(length(data)) FROM record WHERE level = 0");
		r->records = ask(db, "SELECT sum(n_records) FROM sample WHERE level = 0");
		r->samples = ask(db, "SELECT sum(n_samples) FROM sample");
		r->decisions = ask(db, "SELECT count(*) FROM decision");
		snprintf(in_window, sizeof(in_window),
			 "SELECT count(*) FROM decision WHERE boot_us BETWEEN %llu AND %llu",
			 (unsigned long long)r->from_us, (unsigned long long)r->to_us);
		r->decisions_in_window = ask(db, in_window);
	}
	sqlite3_close(db);
}

static bool measure(const struct bench_case *c, const char *dir, struct fake *f, struct result *r)
{
	struct fake_shape s = {.zones = 1, .cpus = c->cpus, .name = "bench"};
	char path[PATH_MAX];
	pid_t pid = start_daemon(dir);
	uint64_t cpu, start;
	bool good = pid > 0;

	in_dir(dir, "sock", path);
	for (uint32_t i = 0; good && i < c->targets; i++) {
		good = attach_one(&f[i], path, &s);
		f[i].served = !c->missing;
	}
	if (good) {
		r->warm_up = warm_up(f, c);
		cpu = cpu_ns(pid);
		r->from_us = fake_ns(CLOCK_BOOTTIME) / 1000u;
		start = fake_ns(CLOCK_MONOTONIC);
		work(f, c, opt.seconds);
		r->seconds = (double)(fake_ns(CLOCK_MONOTONIC) - start) / 1e9;
		r->cpu_pct = (double)(cpu_ns(pid) - cpu) / 1e7 / r->seconds;
		r->to_us = fake_ns(CLOCK_BOOTTIME) / 1000u;
		memory(pid, r);
	}
	if (pid > 0)
		stop_daemon(pid);
	read_log(dir, r);
	return good;
}

/* ---- printing ---- */

static double per_record(const struct result *r)
{
	return r->records ? (double)r->chunk_bytes / (double)r->records : 0;
}

static void print_json(const struct bench_case *c, const struct result *r)
{
	printf("{\"case\":\"%s\",\"targets\":%u,\"cpus\":%u,\"policy\":\"%s\",\"warm_up\":%.0f,"
	       "\"seconds\":%.1f,\"cpu_pct\":%.2f,\"decisions_in_window\":%llu,",
	       c->name, c->targets, c->cpus, opt.policy, r->warm_up, r->seconds, r->cpu_pct,
	       (unsigned long long)r->decisions_in_window);
	printf("\"rss_bytes\":%llu,\"shared_bytes\":%llu,\"samples\":%llu,\"records\":%llu,"
	       "\"bytes_per_record\":%.1f,\"decisions\":%llu,\"log_bytes\":%llu}\n",
	       (unsigned long long)r->rss, (unsigned long long)r->shared,
	       (unsigned long long)r->samples, (unsigned long long)r->records, per_record(r),
	       (unsigned long long)r->decisions, (unsigned long long)r->log_bytes);
}

static void print_text(const struct bench_case *c, const struct result *r)
{
	printf("%-7s %4u x %u CPUs: %5.2f %% of a core (%.1f s after %.0f s of warm-up, %llu "
	       "decisions in them), ",
	       c->name, c->targets, c->cpus, r->cpu_pct, r->seconds, r->warm_up,
	       (unsigned long long)r->decisions_in_window);
	printf("%.1f MiB resident (%.1f of it segments), ", (double)r->rss / 1048576,
	       (double)r->shared / 1048576);
	printf("%.1f bytes of log for each active CPU and sample (%llu records, %llu decisions in "
	       "all)\n",
	       per_record(r), (unsigned long long)r->records, (unsigned long long)r->decisions);
}

/* ---- running ---- */

static void clean(const char *dir)
{
	static const char *const names[] = {"pcptuned.conf", "log.db",	 "log.db-wal", "log.db-shm",
					    "sock",	     "sock.ctl", "sock.lock"};
	char path[PATH_MAX];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(in_dir(dir, names[i], path));
	rmdir(dir);
}

static bool run_case(const struct bench_case *c)
{
	const char *base = opt.dir ? opt.dir : getenv("TMPDIR");
	struct fake *f = calloc(c->targets, sizeof(*f));
	struct result r = {0};
	char dir[PATH_MAX];
	bool good;

	in_dir(base ? base : "/tmp", "pcptune-bench-XXXXXX", dir);
	if (!f || !mkdtemp(dir)) {
		perror("bench/daemon");
		free(f);
		return false;
	}
	for (uint32_t i = 0; i < c->targets; i++)
		f[i].memfd = f[i].sock = -1;
	good = measure(c, dir, f, &r);
	if (good && opt.json)
		print_json(c, &r);
	else if (good)
		print_text(c, &r);
	fflush(stdout);
	for (uint32_t i = 0; i < c->targets; i++)
		fake_free(&f[i]);
	free(f);
	clean(dir);
	return good;
}

/* ---- arguments ---- */

static const struct option_row {
	const char *name, *arg, *text; /* arg NULL: takes none */
	unsigned *number;	       /* where it goes: one of these three */
	const char **string;
	bool *flag;
	unsigned min, max; /* of a number */
} rows[] = {
	{"seconds", "N", "measure for N seconds (20)", &opt.seconds, NULL, NULL, 1, 86400},
	{"warm-up", "N", "let at least N seconds pass before (16)", &opt.warm_up, NULL, NULL, 0,
	 86400},
	{"record-ms", "N", "log.record_ms (30000); 0: no records", &opt.record_ms, NULL, NULL, 0,
	 600000},
	{"policy", "NAME", "policy of the targets (contention)", NULL, &opt.policy, NULL, 0, 0},
	{"dir", "DIR", "where temporary directories are made ($TMPDIR, else /tmp)", NULL, &opt.dir,
	 NULL, 0, 0},
	{"json", NULL, "one JSON object for each case", NULL, NULL, &opt.json, 0, 0},
	{"help", NULL, "this text", NULL, NULL, &opt.help, 0, 0},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void help(void)
{
	char left[32];

	printf("usage: bench/daemon [OPTION ...] [CASE ...]\n\n"
	       "Measures what the daemon costs in steady load, with synthetic targets at 10 Hz "
	       "and\n"
	       "the log on. Without a case: all of them.\n\noptions\n");
	for (size_t i = 0; i < N_ROWS; i++) {
		snprintf(left, sizeof(left), "--%s %s", rows[i].name,
			 rows[i].arg ? rows[i].arg : "");
		printf("  %-16s %s\n", left, rows[i].text);
	}
	printf("\ncases\n");
	for (size_t i = 0; i < N_CASES; i++)
		printf("  %-16s %s\n", cases[i].name, cases[i].text);
}

static bool take_option(const struct option_row *row, const char *arg)
{
	unsigned long v;
	char *end;

	if (row->string)
		*row->string = arg;
	if (row->flag)
		*row->flag = true;
	if (!row->number)
		return true;
	errno = 0;
	v = strtoul(arg, &end, 10);
	if (errno || end == arg || *end || *arg == '-' || v < row->min || v > row->max) {
		fprintf(stderr, "bench/daemon: --%s: \"%s\"; right is %u to %u\n", row->name, arg,
			row->min, row->max);
		return false;
	}
	*row->number = (unsigned)v;
	return true;
}

static bool options(int argc, char **argv)
{
	struct option table[N_ROWS + 1];
	int c, i;

	memset(table, 0, sizeof(table));
	for (i = 0; i < (int)N_ROWS; i++)
		table[i] = (struct option){rows[i].name, rows[i].arg != NULL, NULL, i + 1};
	while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
		if (c == '?' || !take_option(&rows[c - 1], optarg))
			return false;
	}
	return true;
}

static bool cases_known(int argc, char **argv)
{
	for (int i = optind; i < argc; i++) {
		size_t k = 0;

		while (k < N_CASES && strcmp(argv[i], cases[k].name) != 0)
			k++;
		if (k == N_CASES) {
			fprintf(stderr, "bench/daemon: no case \"%s\"; --help names them\n",
				argv[i]);
			return false;
		}
	}
	return true;
}

static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = optind; i < argc; i++) {
		if (!strcmp(argv[i], name))
			return true;
	}
	return optind == argc;
}

int main(int argc, char **argv)
{
	bool good = true;

	if (!options(argc, argv) || !cases_known(argc, argv))
		return 2;
	if (opt.help) {
		help();
		return 0;
	}
	for (size_t i = 0; i < N_CASES; i++) {
		if (wanted(cases[i].name, argc, argv))
			good &= run_case(&cases[i]);
	}
	return good ? 0 : 1;
}
