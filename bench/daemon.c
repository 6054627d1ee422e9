/* SPDX-License-Identifier: MIT */
/*
 * What the daemon costs: CPU time in per cent of one core, resident memory, and bytes of log for
 * each sample of an active CPU, with synthetic targets (tests/tools/fake.h).
 *
 *   bench/daemon [--seconds N] [--warm-up N] [--policy NAME] [--dir DIR] [--json] [CASE ...]
 *
 * Cases: active (200 targets of 64 CPUs, every CPU active in every interval), idle (the same, at
 * rest), one (a single target, active). Sampling is at 10 Hz, with the log on. Each case has a
 * daemon of its own in a temporary directory. The targets work in this process, so their cost is
 * not in the figures. Exit status 0, or 1 when a case could not be measured.
 */
#include <getopt.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <limits.h>
#include "tests/tools/fake.h"

#define STEP_MS 50

struct bench_case {
	const char *name;
	uint32_t targets, cpus, active; /* active: permille of the CPUs */
};

static const struct bench_case cases[] = {
	{"active", 200, 64, 1000},
	{"idle", 200, 64, 0},
	{"one", 1, 64, 1000},
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

struct result {
	double seconds, cpu_pct;
	uint64_t rss, shared, chunk_bytes, records, samples, decisions, log_bytes;
};

static struct {
	unsigned seconds, warm_up;
	const char *policy, *dir;
	bool json;
} opt = {20, 8, "contention", NULL, false};

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
		"socket = \"%s/sock\";\nlog = { path = \"%s/log.db\"; max_bytes = 4294967296L; };\n"
		"default = { policy = \"%s\"; };\n",
		dir, dir, opt.policy);
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
	char path[PATH_MAX];
	struct stat st;
	sqlite3 *db;

	in_dir(dir, "log.db", path);
	if (!stat(path, &st))
		r->log_bytes = (uint64_t)st.st_size;
	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK) {
		r->chunk_bytes = ask(db, "SELECT sum(length(data)) FROM sample WHERE level = 0");
		r->records = ask(db, "SELECT sum(n_records) FROM sample WHERE level = 0");
		r->samples = ask(db, "SELECT sum(n_samples) FROM sample");
		r->decisions = ask(db, "SELECT count(*) FROM decision");
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
	for (uint32_t i = 0; good && i < c->targets; i++)
		good = attach_one(&f[i], path, &s);
	if (good) {
		work(f, c, opt.warm_up);
		cpu = cpu_ns(pid);
		start = fake_ns(CLOCK_MONOTONIC);
		work(f, c, opt.seconds);
		r->seconds = (double)(fake_ns(CLOCK_MONOTONIC) - start) / 1e9;
		r->cpu_pct = (double)(cpu_ns(pid) - cpu) / 1e7 / r->seconds;
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
	printf("{\"case\":\"%s\",\"targets\":%u,\"cpus\":%u,\"policy\":\"%s\",\"seconds\":%.1f,"
	       "\"cpu_pct\":%.2f,\"rss_bytes\":%llu,\"shared_bytes\":%llu,\"samples\":%llu,"
	       "\"records\":%llu,\"bytes_per_record\":%.1f,\"decisions\":%llu,\"log_bytes\":%llu}"
	       "\n",
	       c->name, c->targets, c->cpus, opt.policy, r->seconds, r->cpu_pct,
	       (unsigned long long)r->rss, (unsigned long long)r->shared,
	       (unsigned long long)r->samples, (unsigned long long)r->records, per_record(r),
	       (unsigned long long)r->decisions, (unsigned long long)r->log_bytes);
}

static void print_text(const struct bench_case *c, const struct result *r)
{
	printf("%-7s %4u x %u CPUs: %5.2f %% of a core, %.1f MiB resident (%.1f of it segments), ",
	       c->name, c->targets, c->cpus, r->cpu_pct, (double)r->rss / 1048576,
	       (double)r->shared / 1048576);
	printf("%.1f bytes of log for each active CPU and sample (%llu records, %llu decisions)\n",
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

static bool options(int argc, char **argv)
{
	static const struct option table[] = {
		{"seconds", 1, NULL, 's'}, {"warm-up", 1, NULL, 'w'}, {"policy", 1, NULL, 'p'},
		{"dir", 1, NULL, 'd'},	   {"json", 0, NULL, 'j'},    {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
		if (c == 's')
			opt.seconds = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'w')
			opt.warm_up = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'p')
			opt.policy = optarg;
		else if (c == 'd')
			opt.dir = optarg;
		else if (c == 'j')
			opt.json = true;
		else
			return false;
	}
	return opt.seconds > 0;
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

	if (!options(argc, argv)) {
		fprintf(stderr, "usage: bench/daemon [--seconds N] [--warm-up N] [--policy NAME] "
				"[--dir DIR] [--json] [active] [idle] [one]\n");
		return 2;
	}
	for (size_t i = 0; i < N_CASES; i++) {
		if (wanted(cases[i].name, argc, argv))
			good &= run_case(&cases[i]);
	}
	return good ? 0 : 1;
}
