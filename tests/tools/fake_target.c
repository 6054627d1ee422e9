/* SPDX-License-Identifier: MIT */
/*
 * Synthetic targets for tests of the daemon, well-behaved or not.
 *
 *   fake_target --socket PATH [--targets N] [--cpus C] [--zones Z] [--active PERMILLE]
 *               [--step-ms N] [--name NAME] [--tag HEX] [--id HEX] [--reconnect] [--never-ack]
 *               [--backwards] [--scribble] [--records] [--bad KIND] [--steps N]
 *
 * Prints one JSON line for each attachment: {"status":0,"id":3,"reason":"","lease_ns":5000000000},
 * then {"ready":true}, and goes on stepping. Lines on standard input are commands, each answered by
 * one JSON line: "dump" (control words and decisions taken over), "rest", "work PERMILLE", "write I
 * HIGH" (a stranger's hand in the control words of CPU index I), "attach" (attach again as the same
 * target), "chatter" (send something after the hello). End of file on standard input ends it.
 * With --steps N it ends after so many steps. --scribble fills the whole segment with random bytes
 * in every step. --records says that it can be recorded, but it reads no request.
 *
 * --bad KIND sends one broken hello or segment and prints what comes back: see bad_kinds.
 */
#include <getopt.h>
#include <poll.h>
#include "tests/tools/fake.h"
#include "tests/unit/random.h"

struct options {
	const char *socket, *bad;
	struct fake_shape shape;
	uint32_t targets, active, step_ms, steps;
	bool reconnect, never_ack, backwards, scribble, records;
};

static struct options opt = {
	.shape = {.zones = 1, .cpus = 4, .name = "fake"},
	.targets = 1,
	.active = 1000,
	.step_ms = 20,
};

static void print_text(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			putchar('\\');
		if ((unsigned char)*s >= 0x20)
			putchar(*s);
	}
	putchar('"');
}

static void print_reply(int error, const struct pcptune_reply *r)
{
	if (error) {
		printf("{\"status\":%d,\"id\":0,\"reason\":", error);
		print_text("no reply");
	} else {
		printf("{\"status\":%d,\"id\":%llu,\"lease_ns\":%llu,\"reason\":", r->status,
		       (unsigned long long)r->target_id, (unsigned long long)r->lease_ns);
		print_text(r->reason);
	}
	printf("}\n");
	fflush(stdout);
}

/* ---- misbehaviour: each kind changes one thing ---- */

struct attempt {
	struct pcptune_hello h;
	char extra[64]; /* sent after h when len is larger than it */
	size_t len;
	int fds[32];
	unsigned n_fds;
	bool seal, wait, hang_up;
};

static void bad_wire_magic(struct fake *f, struct attempt *a)
{
	(void)f;
	a->h.magic ^= 1;
}

static void bad_wire_version(struct fake *f, struct attempt *a)
{
	(void)f;
	a->h.version++;
}

static void bad_wire_size(struct fake *f, struct attempt *a)
{
	(void)f;
	a->h.size += 8;
}

static void bad_wire_layout(struct fake *f, struct attempt *a)
{
	(void)f;
	a->h.layout++;
}

static void bad_short_hello(struct fake *f, struct attempt *a)
{
	(void)f;
	a->len = 7;
}

static void bad_long_hello(struct fake *f, struct attempt *a)
{
	(void)f;
	a->len = sizeof(a->h) + 8;
}

static void bad_segment_size(struct fake *f, struct attempt *a)
{
	(void)f;
	a->h.segment_size += 4096;
}

static void bad_no_fd(struct fake *f, struct attempt *a)
{
	(void)f;
	a->n_fds = 0;
}

static void bad_two_fds(struct fake *f, struct attempt *a)
{
	a->fds[1] = f->memfd;
	a->n_fds = 2;
}

static void bad_many_fds(struct fake *f, struct attempt *a)
{
	for (unsigned i = 0; i < 32; i++)
		a->fds[i] = f->memfd;
	a->n_fds = 32;
}

static void bad_pipe_fd(struct fake *f, struct attempt *a)
{
	(void)f;
	a->fds[0] = STDOUT_FILENO;
}

static void bad_garbage(struct fake *f, struct attempt *a)
{
	memset(&a->h, 0xa5, sizeof(a->h));
	memset(f->base, 0x5a, f->bytes);
}

static void bad_magic(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->magic ^= 1;
}

static void bad_layout(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->layout = 77;
}

static void bad_size(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->size *= 2;
}

static void bad_offset(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->cpus_off = f->bytes - 128;
}

static void bad_wrap(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->cpus_off = UINT64_MAX - 127;
}

static void bad_stride(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->cpu_stride = 64;
}

static void bad_cpus_0(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->n_cpus = 0;
}

static void bad_cpus_100000(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->n_cpus = 100000;
}

static void bad_zones(struct fake *f, struct attempt *a)
{
	(void)a;
	fake_header(f)->n_zones = 65;
}

static void bad_unsealed(struct fake *f, struct attempt *a)
{
	(void)f;
	a->seal = false;
}

static void bad_short(struct fake *f, struct attempt *a)
{
	if (ftruncate(f->memfd, 100))
		a->n_fds = 0;
	a->h.segment_size = 100;
}

static void bad_slow(struct fake *f, struct attempt *a)
{
	(void)f;
	a->wait = true;
}

static void bad_hang_up(struct fake *f, struct attempt *a)
{
	(void)f;
	a->wait = a->hang_up = true;
}

static void bad_die(struct fake *f, struct attempt *a)
{
	(void)f;
	a->hang_up = true;
}

static const struct {
	const char *name;
	void (*change)(struct fake *f, struct attempt *a);
} bad_kinds[] = {
	{"wire-magic", bad_wire_magic},
	{"wire-version", bad_wire_version},
	{"wire-size", bad_wire_size},
	{"wire-layout", bad_wire_layout},
	{"short-hello", bad_short_hello},
	{"long-hello", bad_long_hello},
	{"segment-size", bad_segment_size},
	{"no-fd", bad_no_fd},
	{"two-fds", bad_two_fds},
	{"many-fds", bad_many_fds},
	{"pipe-fd", bad_pipe_fd},
	{"garbage", bad_garbage},
	{"magic", bad_magic},
	{"layout", bad_layout},
	{"size", bad_size},
	{"offset", bad_offset},
	{"wrap", bad_wrap},
	{"stride", bad_stride},
	{"cpus-0", bad_cpus_0},
	{"cpus-100000", bad_cpus_100000},
	{"zones", bad_zones},
	{"unsealed", bad_unsealed},
	{"short", bad_short},
	{"slow", bad_slow},
	{"hang-up", bad_hang_up},
	{"die", bad_die},
};
#define N_BAD (sizeof(bad_kinds) / sizeof(bad_kinds[0]))

static int attempt(struct fake *f, struct attempt *a)
{
	struct pcptune_reply r;
	char buf[sizeof(a->h) + sizeof(a->extra)];
	int sock = fake_connect(opt.socket), e = 0;

	if (sock < 0) {
		fprintf(stderr, "fake_target: connect: %s\n", strerror(-sock));
		return 1;
	}
	if (a->seal && fcntl(f->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		perror("fake_target: seal");
	memcpy(buf, &a->h, sizeof(a->h));
	memcpy(buf + sizeof(a->h), a->extra, sizeof(a->extra));
	if (!a->wait)
		e = fake_send(sock, buf, a->len, a->fds, a->n_fds);
	if (a->hang_up) {
		close(sock);
		return 0;
	}
	if (!e)
		e = fake_reply(sock, &r);
	print_reply(e, &r);
	close(sock);
	return 0;
}

static int run_bad(void)
{
	struct attempt a = {.len = sizeof(a.h), .n_fds = 1, .seal = true};
	struct fake f;
	int status = 2;

	if (fake_new(&f, &opt.shape, false))
		return 1;
	a.h = fake_hello(&f, 0);
	a.fds[0] = f.memfd;
	for (size_t i = 0; i < N_BAD; i++) {
		if (strcmp(bad_kinds[i].name, opt.bad))
			continue;
		bad_kinds[i].change(&f, &a);
		status = attempt(&f, &a);
	}
	if (status == 2) {
		fprintf(stderr, "fake_target: unknown kind %s; allowed:", opt.bad);
		for (size_t i = 0; i < N_BAD; i++)
			fprintf(stderr, " %s", bad_kinds[i].name);
		fprintf(stderr, "\n");
	}
	fake_free(&f);
	return status;
}

/* ---- well-behaved targets ---- */

static void dump_target(struct fake *f)
{
	printf("{\"lease_ns\":%llu,\"adopted\":[",
	       (unsigned long long)FAKE_GET(&fake_header(f)->lease_until_ns));
	for (size_t i = 0; i < f->n_adopted; i++)
		printf("%s%lld", i ? "," : "", (long long)f->adopted[i]);
	printf("],\"cpus\":[");
	for (uint32_t i = 0; i < f->n; i++) {
		struct pcptune_cpu_block *b = fake_cpu(f, i);

		printf("%s{\"seq\":%u,\"ack\":%u,\"decision\":%llu,\"word_high\":%u,"
		       "\"high\":%u,\"high_min\":%u,\"high_max\":%u,\"batch\":%u}",
		       i ? "," : "", FAKE_GET(&b->ctl.seq), FAKE_GET(&b->pcp.ack_seq),
		       (unsigned long long)FAKE_GET(&b->ctl.decision), FAKE_GET(&b->ctl.high),
		       FAKE_GET(&b->pcp.high), FAKE_GET(&b->pcp.high_min),
		       FAKE_GET(&b->pcp.high_max), FAKE_GET(&b->pcp.batch));
	}
	printf("]}");
}

static void dump(struct fake *f)
{
	printf("{\"targets\":[");
	for (uint32_t i = 0; i < opt.targets; i++) {
		if (i)
			putchar(',');
		dump_target(&f[i]);
	}
	printf("]}\n");
}

static void write_words(struct fake *f, uint32_t i, uint32_t high)
{
	struct pcptune_cpu_block *b = fake_cpu(f, i % f->n);

	FAKE_PUT(&b->ctl.high, high);
	FAKE_PUT(&b->ctl.seq, FAKE_GET(&b->ctl.seq) + 1);
}

static void obey(struct fake *f, const char *line)
{
	struct pcptune_reply r;
	unsigned a, b;

	if (!strcmp(line, "dump")) {
		dump(f);
	} else if (!strcmp(line, "attach")) {
		for (uint32_t i = 0; i < opt.targets; i++)
			print_reply(fake_attach(&f[i], opt.socket, PCPTUNE_HELLO_RECONNECT, &r),
				    &r);
	} else {
		if (!strcmp(line, "rest"))
			opt.active = 0;
		else if (sscanf(line, "work %u", &a) == 1)
			opt.active = a;
		else if (sscanf(line, "write %u %u", &a, &b) == 2)
			write_words(f, a, b);
		else if (!strcmp(line, "chatter"))
			(void)!send(f->sock, "hello again", 11, MSG_NOSIGNAL);
		printf("{\"done\":true}\n");
	}
	fflush(stdout);
}

/* false: end of file */
static bool commands(struct fake *f, int wait_ms)
{
	static char line[256];
	static size_t len;
	struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
	char *end;
	ssize_t n;

	if (poll(&p, 1, wait_ms) <= 0)
		return true;
	n = read(STDIN_FILENO, line + len, sizeof(line) - 1 - len);
	if (n <= 0)
		return false;
	len += (size_t)n;
	line[len] = '\0';
	while ((end = strchr(line, '\n'))) {
		*end = '\0';
		obey(f, line);
		len -= (size_t)(end + 1 - line);
		memmove(line, end + 1, len + 1);
	}
	if (len == sizeof(line) - 1)
		len = 0;
	return true;
}

static void go_backwards(struct fake *f)
{
	for (uint32_t i = 0; i < f->n; i++) {
		struct pcptune_cpu_block *b = fake_cpu(f, i);

		FAKE_PUT(&b->zctr.alloc_zone, FAKE_GET(&b->zctr.alloc_zone) / 2);
		FAKE_PUT(&b->list[0].word, (uint64_t)0);
		FAKE_ADD(&b->pcp.holds, 1u);
	}
}

/* What a hostile or broken program may do to its segment: anything, header included. */
static void scribble(struct fake *f)
{
	static uint64_t x = 88172645463325252u;

	for (size_t i = 0; i + 8 <= f->bytes; i += 8) {
		random_next(&x);
		if (x % 8 == 0) /* some words large, some small, most as they were */
			FAKE_PUT((uint64_t *)(void *)(f->base + i), x % 3 ? x : x & 0xffff);
	}
}

static void step_all(struct fake *f)
{
	for (uint32_t i = 0; i < opt.targets; i++) {
		fake_step(&f[i], opt.active, !opt.never_ack);
		if (opt.backwards && f[i].steps % 7 == 0)
			go_backwards(&f[i]);
		if (opt.scribble)
			scribble(&f[i]);
	}
}

static int run_good(void)
{
	struct fake *f = calloc(opt.targets, sizeof(*f));
	uint32_t flags = (opt.reconnect ? PCPTUNE_HELLO_RECONNECT : 0) |
			 (opt.records ? PCPTUNE_HELLO_RECORDS : 0);
	struct pcptune_reply r;
	bool more = true;

	for (uint32_t i = 0; f && i < opt.targets; i++) {
		if (fake_new(&f[i], &opt.shape, true)) {
			perror("fake_target: segment");
			return 1;
		}
		if (opt.records)
			FAKE_PUT(&fake_proc(&f[i])->agent_ticks, 1);
		if (opt.steps) /* something to count before the daemon knows of it */
			fake_step(&f[i], opt.active, true);
		print_reply(fake_attach(&f[i], opt.socket, flags, &r), &r);
	}
	printf("{\"ready\":true}\n");
	fflush(stdout);
	for (uint32_t n = 1; f && more && (!opt.steps || n < opt.steps); n++) {
		step_all(f);
		more = commands(f, (int)opt.step_ms);
	}
	for (uint32_t i = 0; f && i < opt.targets; i++)
		fake_free(&f[i]);
	free(f);
	return 0;
}

/* ---- options ---- */

static const struct option options[] = {
	{"socket", 1, NULL, 's'},    {"targets", 1, NULL, 't'},	  {"cpus", 1, NULL, 'c'},
	{"zones", 1, NULL, 'z'},     {"active", 1, NULL, 'a'},	  {"step-ms", 1, NULL, 'm'},
	{"name", 1, NULL, 'n'},	     {"tag", 1, NULL, 'g'},	  {"id", 1, NULL, 'i'},
	{"steps", 1, NULL, 'N'},     {"bad", 1, NULL, 'b'},	  {"reconnect", 0, NULL, 'r'},
	{"never-ack", 0, NULL, 'k'}, {"backwards", 0, NULL, 'B'}, {"scribble", 0, NULL, 'S'},
	{"records", 0, NULL, 'R'},   {NULL, 0, NULL, 0},
};

static uint32_t number(const char *s)
{
	return (uint32_t)strtoul(s, NULL, 10);
}

static bool take(int c)
{
	switch (c) {
	case 's':
		opt.socket = optarg;
		break;
	case 't':
		opt.targets = number(optarg);
		break;
	case 'c':
		opt.shape.cpus = number(optarg);
		break;
	case 'z':
		opt.shape.zones = number(optarg);
		break;
	case 'a':
		opt.active = number(optarg);
		break;
	case 'm':
		opt.step_ms = number(optarg);
		break;
	case 'n':
		snprintf(opt.shape.name, sizeof(opt.shape.name), "%s", optarg);
		break;
	case 'g':
		opt.shape.run_tag = strtoull(optarg, NULL, 16);
		break;
	case 'i':
		opt.shape.random_id = strtoull(optarg, NULL, 16);
		break;
	case 'N':
		opt.steps = number(optarg);
		break;
	case 'b':
		opt.bad = optarg;
		break;
	case 'r':
		opt.reconnect = true;
		break;
	case 'k':
		opt.never_ack = true;
		break;
	case 'B':
		opt.backwards = true;
		break;
	case 'R':
		opt.records = true;
		break;
	case 'S':
		opt.scribble = true;
		break;
	default:
		return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (!take(c))
			return 2;
	}
	if (!opt.socket || optind < argc) {
		fprintf(stderr, "fake_target: --socket PATH is needed\n");
		return 2;
	}
	return opt.bad ? run_bad() : run_good();
}
