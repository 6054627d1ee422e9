/* SPDX-License-Identifier: MIT */
/*
 * The segment reader against segments made by hand: every refusal with its reason, what it says of
 * a target, control words, and random damage. Samples: test_segreader_samples.c.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <pcptune/rules.h>
#include "tests/unit/segreader_open.h"
#include "tests/unit/random.h"

/* The descriptor must still be ours, ret untouched, the reason as given. */
static void assert_refused_fd(int fd, int code, const char *reason)
{
	struct segreader *sr = (void *)&sr;
	char why[160] = "";
	int r = segreader_open(fd, &limits, &sr, why, sizeof(why));

	if (!strstr(why, reason))
		print_error("why is \"%s\", not \"%s\"\n", why, reason);
	assert_int_equal(r, code);
	assert_ptr_equal(sr, (void *)&sr);
	assert_non_null(strstr(why, reason));
	assert_true(fcntl(fd, F_GETFD) >= 0);
}

static void assert_refused(struct made *m, const char *reason)
{
	made_seal(m, NEEDED_SEALS);
	assert_refused_fd(m->fd, -EPROTO, reason);
	made_free(m, 1);
}

/* ---- refusals ---- */

static void test_refuse_files(void **state)
{
	int fds[2], fd;
	FILE *file = tmpfile();
	struct made m;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_refused_fd(fds[0], -EPROTO, "not a file");
	close(fds[0]);
	close(fds[1]);
	fd = dup(0);
	close(fd);
	{
		struct segreader *sr = NULL;
		char why[160];

		assert_int_equal(segreader_open(fd, &limits, &sr, why, sizeof(why)), -EBADF);
		assert_non_null(strstr(why, "Bad file descriptor"));
	}
	assert_non_null(file);
	/* a plain file either knows no seals or has none that help */
	{
		struct segreader *sr = NULL;
		char why[160];

		assert_int_equal(segreader_open(fileno(file), &limits, &sr, why, sizeof(why)),
				 -EPROTO);
		assert_non_null(strstr(why, "seal"));
	}
	fclose(file);
	m = made_new(1, 2);
	assert_refused_fd(m.fd, -EPROTO, "F_SEAL_SHRINK and F_SEAL_GROW are needed");
	made_seal(&m, F_SEAL_SHRINK);
	assert_refused_fd(m.fd, -EPROTO, "seals are 0x2;");
	made_free(&m, 1);
	m = made_new(1, 2);
	made_seal(&m, F_SEAL_GROW);
	assert_refused_fd(m.fd, -EPROTO, "seals are 0x4;");
	made_free(&m, 1);
	m = made_new(1, 2);
	made_seal(&m, NEEDED_SEALS | F_SEAL_FUTURE_WRITE);
	assert_refused_fd(m.fd, -EPROTO, "sealed against writing");
	made_free(&m, 1);
}

static void test_refuse_short(void **state)
{
	struct made m;
	int fd;

	(void)state;
	for (size_t bytes = 0; bytes < sizeof(struct pcptune_seg_header); bytes += 100) {
		fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, NEEDED_SEALS), 0);
		assert_refused_fd(fd, -EPROTO, "the header alone has");
		close(fd);
	}
	/* every length that cuts the tables off is seen, and nothing is read behind the end */
	for (size_t bytes = 384;; bytes += 128) {
		m = made_new(1, 4);
		assert_true(m.h->size > 3200 && m.h->size <= 20480);
		if (bytes >= m.h->size) {
			made_free(&m, 1);
			break;
		}
		assert_int_equal(ftruncate(m.fd, (off_t)bytes), 0);
		assert_refused(&m, "size says");
		m = made_new(1, 4);
		m.h->size = bytes;
		assert_int_equal(ftruncate(m.fd, (off_t)bytes), 0);
		assert_refused(&m, "the file ends at");
	}
}

static void test_refuse_large(void **state)
{
	struct made m = made_new(1, 4);
	struct segreader_limits small = {.max_cpus = 256, .max_bytes = 4095};
	struct segreader *sr = NULL;
	char why[160];

	(void)state;
	made_seal(&m, NEEDED_SEALS);
	assert_int_equal(segreader_open(m.fd, &small, &sr, why, sizeof(why)), -EPROTO);
	assert_string_equal(why, "segment: 20480 bytes; at most 4095 are allowed");
	made_free(&m, 1);
}

/* One header word spoilt a row: where, what it becomes, what the reason says. */
struct spoilt {
	size_t off;
	size_t width;
	uint64_t value;
	const char *reason;
};
#define SPOIL(field, value, reason)                                                    \
	{                                                                              \
		offsetof(struct pcptune_seg_header, field),                            \
			sizeof(((struct pcptune_seg_header *)0)->field), value, reason \
	}

static const struct spoilt spoilt_rows[] = {
	SPOIL(magic, 0, "magic is 0x0000000000000000"),
	SPOIL(magic, PCPTUNE_SEG_MAGIC + 1, "magic is 0x"),
	SPOIL(magic, UINT64_C(0x5450435053454731), "byte-swapped"),
	SPOIL(layout, 0, "layout version is 0; this daemon knows 3"),
	SPOIL(layout, 2, "layout version is 2; this daemon knows 3"),
	SPOIL(header_size, 8, "header_size is 8"),
	SPOIL(header_size, sizeof(struct pcptune_seg_header) + 4, "header_size is"),
	SPOIL(header_size, 0xfffffff8, "size says"),
	SPOIL(size, 0, "size says 0 bytes"),
	SPOIL(size, UINT64_MAX, "size says 18446744073709551615 bytes"),
	SPOIL(n_zones, 0, "0 zones; 1 to 64 are allowed"),
	SPOIL(n_zones, 65, "65 zones"),
	SPOIL(n_zones, UINT32_MAX, "4294967295 zones"),
	SPOIL(n_cpus, 0, "0 CPUs; 1 to 256 are allowed"),
	SPOIL(n_cpus, 257, "257 CPUs"),
	SPOIL(n_cpus, 100000, "100000 CPUs; 1 to 256 are allowed"),
	SPOIL(n_cpus, UINT32_MAX, "4294967295 CPUs"),
	SPOIL(n_cpus, 200, "cpus_off: 153600 bytes"),
	SPOIL(n_lists, 4, "4 lists of orders 0 1 2 3 9"),
	SPOIL(n_lists, UINT32_MAX, "4294967295 lists"),
	SPOIL(list_orders, 0x0904020100, "5 lists of orders 0 1 2 4 9; 5 of 0 1 2 3 9"),
	SPOIL(desc_size, 64, "desc_size is 64; a multiple of 8 of at least 128"),
	SPOIL(desc_size, 0, "desc_size is 0"),
	SPOIL(desc_size, 130, "desc_size is 130"),
	SPOIL(desc_size, 0xfffffff8, "desc_off: 8589934576 bytes"),
	SPOIL(n_desc, UINT32_MAX, "desc_off: 549755813760 bytes"),
	SPOIL(zone_stride, 64, "zone_stride is 64"),
	SPOIL(zone_stride, 132, "zone_stride is 132"),
	SPOIL(cpu_stride, 0, "cpu_stride is 0"),
	SPOIL(cpu_stride, 512, "cpu_stride is 512; a multiple of 128 of at least 768"),
	SPOIL(cpu_stride, 776, "cpu_stride is 776"),
	SPOIL(cpu_stride, 0xffffff80, "cpus_off: 8589934336 bytes"),
	SPOIL(desc_off, 4, "desc_off is 4; a multiple of 8"),
	SPOIL(desc_off, 0, "desc_off at 0 overlaps header"),
	SPOIL(desc_off, UINT64_MAX - 7, "desc_off: 256 bytes at 18446744073709551608"),
	SPOIL(proc_off, 8, "proc_off is 8; a multiple of 128"),
	SPOIL(proc_off, 0, "proc_off at 0 overlaps header"),
	SPOIL(proc_off, UINT64_MAX - 127, "proc_off:"),
	SPOIL(zones_off, 1 << 20, "zones_off:"),
	SPOIL(zones_off, UINT64_MAX - 127, "zones_off:"),
	SPOIL(cpus_off, 64, "cpus_off is 64; a multiple of 128"),
	SPOIL(cpus_off, 128, "cpus_off at 128 overlaps header"),
	SPOIL(cpus_off, UINT64_MAX - 127, "cpus_off:"),
	SPOIL(cpus_off, 1 << 20, "the file ends at "),
	SPOIL(tracks_off, 64, "tracks_off is 64; a multiple of 128"),
	SPOIL(tracks_off, 128, "tracks_off at 128 overlaps header"),
	SPOIL(tracks_off, UINT64_MAX - 127, "tracks_off:"),
	SPOIL(track_stride, 0, "track_stride is 0"),
	SPOIL(track_stride, 3456, "track_stride is 3456; a multiple of 128 of at least 3584"),
	SPOIL(track_stride, 0xffffff80, "tracks_off: 8589934336 bytes"),
};

static void test_refuse_header(void **state)
{
	struct made m;

	(void)state;
	for (size_t i = 0; i < sizeof(spoilt_rows) / sizeof(spoilt_rows[0]); i++) {
		m = made_new(1, 2);
		memcpy(m.base + spoilt_rows[i].off, &spoilt_rows[i].value, spoilt_rows[i].width);
		assert_refused(&m, spoilt_rows[i].reason);
	}
}

static void test_refuse_overlap(void **state)
{
	struct made m = made_new(1, 2);

	(void)state;
	m.h->zones_off = m.h->proc_off;
	assert_refused(&m, "zones_off at ");
	m = made_new(1, 2);
	m.h->cpus_off = m.h->zones_off;
	assert_refused(&m, "cpus_off at ");
	m = made_new(2, 2);
	m.h->cpus_off = m.h->zones_off + 128;
	assert_refused(&m, " overlaps zones_off at ");
	m = made_new(1, 2);
	m.h->proc_off = m.h->desc_off + 128;
	assert_refused(&m, " overlaps desc_off at ");
}

/* The reason never leaves its buffer. */
static void test_why_bounded(void **state)
{
	struct made m = made_new(1, 2);
	struct segreader *sr = NULL;
	char why[16];

	(void)state;
	memset(why, 'x', sizeof(why));
	assert_int_equal(segreader_open(m.fd, &limits, &sr, why, 10), -EPROTO);
	assert_string_equal(why, "segment: ");
	assert_int_equal(why[10], 'x');
	made_free(&m, 1);
}

/* ---- facts ---- */

static void test_info(void **state)
{
	struct made m = made_new(3, 4);
	struct segreader_info info;
	struct segreader *sr;

	(void)state;
	memset(m.h->name, 'n', sizeof(m.h->name));
	memcpy(m.h->name, "a\033[2J\303\244", 7);
	m.h->flags = PCPTUNE_SEG_FORKED;
	made_zone(&m, 1)->node = -5;
	sr = opened(&m);
	segreader_info(sr, &info);
	assert_memory_equal(info.name, "a?[2J??nnnn", 11);
	assert_int_equal(strlen(info.name), PCPTUNE_NAME_MAX - 1);
	assert_int_equal(info.pid, 4242);
	assert_int_equal(info.start_boot_ns, 11);
	assert_int_equal(info.random_id, 22);
	assert_int_equal(info.run_tag, 33);
	assert_int_equal(info.n_zones, 3);
	assert_int_equal(info.n_cpus, 4);
	assert_int_equal(info.n_lists, 5);
	assert_int_equal(info.nodes[0], 0);
	assert_int_equal(info.nodes[1], -1);
	assert_int_equal(info.nodes[2], 2);
	assert_int_equal(info.flags, PCPTUNE_SEG_FORKED);
	assert_int_equal(info.bytes, m.bytes);
	assert_int_equal(segreader_mode(sr), PCPTUNE_MODE_LOCKED);
	m.h->mode = PCPTUNE_MODE_RSEQ;
	assert_int_equal(segreader_mode(sr), PCPTUNE_MODE_RSEQ);
	m.h->mode = 99;
	assert_int_equal(segreader_mode(sr), PCPTUNE_MODE_OFF);
	/* the copy is what counts, whatever the target writes later */
	memset(m.h, 0xff, 256);
	segreader_info(sr, &info);
	assert_int_equal(info.n_cpus, 4);
	segreader_close(sr);
	made_free(&m, 0);
}

static void test_empty_name(void **state)
{
	struct made m = made_new(1, 1);
	struct segreader_info info;
	struct segreader *sr;

	(void)state;
	m.h->name[0] = 0;
	sr = opened(&m);
	segreader_info(sr, &info);
	assert_string_equal(info.name, "unnamed");
	segreader_close(sr);
	segreader_close(NULL);
	made_free(&m, 0);
}

static void test_shape_zone_proc(void **state)
{
	struct made m = made_new(2, 3);
	struct pcptune_shape shape = {.host_cpus = 7, .budget_pages = 8, .interval_ms = 9};
	struct segreader_zone zone;
	struct segreader_proc proc;
	struct segreader *sr = opened(&m);

	(void)state;
	segreader_shape(sr, &shape);
	assert_int_equal(shape.high_limit, PCPTUNE_MAX_HIGH);
	made_zone(&m, 0)->managed_pages = 1000;
	made_zone(&m, 1)->managed_pages = 500;
	made_zone(&m, 1)->low_wmark_pages = 5;
	made_zone(&m, 1)->inherited_held = 6;
	made_cpu(&m, 4)->pcp.high_limit = 4096;
	made_cpu(&m, 5)->pcp.high_limit = 8192;
	segreader_shape(sr, &shape);
	assert_int_equal(shape.size, sizeof(shape));
	assert_int_equal(shape.n_zones, 2);
	assert_int_equal(shape.n_cpus, 3);
	assert_int_equal(shape.managed_pages, 1500);
	assert_int_equal(shape.low_wmark_pages, 5);
	assert_int_equal(shape.high_limit, 4096);
	assert_int_equal(shape.host_cpus, 7);
	assert_int_equal(shape.budget_pages, 8);
	assert_int_equal(shape.interval_ms, 9);
	made_zone(&m, 0)->managed_pages = made_zone(&m, 1)->managed_pages = UINT64_MAX;
	segreader_shape(sr, &shape);
	assert_true(shape.managed_pages == UINT64_C(2) << 40);
	segreader_zone(sr, 1, &zone);
	assert_int_equal(zone.id, 1);
	assert_int_equal(zone.node, 1);
	assert_int_equal(zone.inherited_held, 6);
	assert_int_equal(segreader_long_holds(sr), 0);
	made_zone(&m, 0)->hold_from_32768ns = 1000;
	made_zone(&m, 0)->hold_from_65536ns = 1;
	made_zone(&m, 1)->hold_from_1048576ns = 20;
	made_zone(&m, 1)->hold_from_8388608ns = 300;
	assert_int_equal(segreader_long_holds(sr), 321);
	made_proc(&m)->malloc_calls = 12;
	made_proc(&m)->forks = 13;
	segreader_proc(sr, &proc);
	assert_int_equal(proc.malloc_calls, 12);
	assert_int_equal(proc.forks, 13);
	segreader_close(sr);
	made_free(&m, 0);
}

static void test_desc(void **state)
{
	struct made m = made_new(1, 1);
	struct segreader *sr = opened(&m);
	struct pcptune_desc d;

	(void)state;
	assert_true(segreader_desc(sr, 0, &d));
	assert_string_equal(d.name, "field0");
	assert_true(segreader_desc(sr, 1, &d));
	assert_string_equal(d.name, "field1");
	assert_false(segreader_desc(sr, 2, &d));
	assert_false(segreader_desc(sr, UINT32_MAX, &d));
	memset(made_desc(&m, 0)->name, 1, sizeof(d.name));
	memset(made_desc(&m, 0)->line, 'l', sizeof(d.line));
	assert_true(segreader_desc(sr, 0, &d));
	assert_int_equal(strlen(d.name), 31);
	assert_int_equal(d.name[0], '?');
	assert_int_equal(strlen(d.line), 79);
	made_desc(&m, 0)->width = 3;
	assert_false(segreader_desc(sr, 0, &d));
	made_desc(&m, 0)->width = 0;
	made_desc(&m, 0)->level = 4;
	assert_false(segreader_desc(sr, 0, &d));
	made_desc(&m, 0)->level = 1;
	made_desc(&m, 0)->kind = 0;
	assert_false(segreader_desc(sr, 0, &d));
	made_desc(&m, 1)->name[0] = 0;
	assert_false(segreader_desc(sr, 1, &d));
	segreader_close(sr);
	made_free(&m, 0);
}

/* ---- control ---- */

static void test_control(void **state)
{
	struct bench b = bench_new(1, 2);
	const struct control c = {10, 11, 12, 13, 3, 4, 1, 77};
	struct control back;
	uint32_t seq = 0, seq2 = 0, ack = 0;

	(void)state;
	segreader_control_read(b.sr, 1, &back, &seq, &ack);
	assert_int_equal(seq, 0);
	assert_int_equal(ack, 0);
	segreader_control_write(b.sr, 1, &c, &seq);
	assert_int_equal(seq, 1);
	assert_int_equal(made_cpu(&b.m, 1)->ctl.seq, 1);
	assert_int_equal(made_cpu(&b.m, 1)->ctl.high, 10);
	assert_int_equal(made_cpu(&b.m, 0)->ctl.high, 0);
	made_cpu(&b.m, 1)->pcp.ack_seq = 1;
	segreader_control_read(b.sr, 1, &back, &seq2, &ack);
	assert_true(back.high == 10 && back.high_min == 11 && back.high_max == 12);
	assert_true(back.batch == 13 && back.scale_max == 3 && back.rules == 4);
	assert_true(back.drain == 1 && back.decision == 77);
	assert_int_equal(seq2, 1);
	assert_int_equal(ack, 1);
	made_cpu(&b.m, 1)->ctl.seq = UINT32_MAX; /* never 0 again */
	segreader_control_write(b.sr, 1, &c, &seq);
	assert_int_equal(seq, 1);
	segreader_lease(b.sr, 123456789);
	assert_int_equal(b.m.h->lease_until_ns, 123456789);
	segreader_lease(b.sr, UINT64_MAX);
	assert_true(b.m.h->lease_until_ns == UINT64_MAX);
	bench_free(&b);
}

static void *sleeper(void *arg)
{
	uint32_t *wake = arg;
	struct timespec most = {.tv_sec = 20};

	/* 0: woken; EAGAIN: the word moved before we slept: both are a wake */
	if (syscall(SYS_futex, wake, FUTEX_WAIT, 0, &most, NULL, 0) == 0 || errno == EAGAIN)
		return arg;
	return NULL;
}

static void test_wake(void **state)
{
	struct bench b = bench_new(1, 1);
	pthread_t thread;
	void *woken = NULL;

	(void)state;
	/* through the target's own mapping: a private futex would not meet it */
	assert_int_equal(pthread_create(&thread, NULL, sleeper, &b.m.h->wake), 0);
	usleep(20000);
	segreader_wake(b.sr);
	pthread_join(thread, &woken);
	assert_non_null(woken);
	assert_int_equal(b.m.h->wake, 1);
	bench_free(&b);
}

/* ---- random damage ---- */

static uint64_t random_state = 20261130;

static uint64_t next_random(void)
{
	return random_next(&random_state);
}

/* A few bytes, or a whole word of a suggestive value, anywhere or (half the time) in the header. */
static void damage(char *base, size_t bytes)
{
	static const uint64_t values[] = {0,
					  1,
					  63,
					  127,
					  128,
					  768,
					  4096,
					  UINT32_MAX,
					  (uint64_t)INT64_MAX,
					  UINT64_MAX,
					  UINT64_MAX - 127};
	uint32_t n = 1 + (uint32_t)(next_random() % 3);

	while (n--) {
		uint64_t r = next_random();
		size_t range = r & 1 ? sizeof(struct pcptune_seg_header) : bytes;
		size_t at = (size_t)((r >> 8) % (range / 8)) * 8;

		if (r & 2)
			memcpy(base + at, &values[(r >> 4) % 11], r & 4 ? 8 : 4);
		else
			base[at + (r >> 40) % 8] ^= (char)(1 << ((r >> 48) % 8));
	}
}

#define ROOM 16 /* CPUs that fit the two pages of the file at most */

static void use_everything(struct segreader *sr, struct made *m)
{
	static struct pcptune_cpu cpus[ROOM];
	static uint32_t active[ROOM];
	struct pcptune_shape shape;
	struct segreader_info info;
	struct segreader_proc proc;
	struct pcptune_desc desc;
	struct control control;
	uint32_t seq, ack;

	segreader_info(sr, &info);
	segreader_shape(sr, &shape);
	segreader_proc(sr, &proc);
	assert_true(info.n_zones * info.n_cpus <= ROOM);
	assert_true(shape.high_limit <= PCPTUNE_MAX_HIGH);
	for (uint32_t i = 0; i < 3; i++)
		(void)segreader_desc(sr, i, &desc);
	for (int i = 0; i < 3; i++) {
		assert_true(segreader_sample(sr, cpus, active) <= info.n_zones * info.n_cpus);
		/* behind the header only: it may not change any more, but everything else may */
		damage(m->base + 512, m->bytes - 512);
	}
	segreader_cpu_total(sr, info.n_zones * info.n_cpus - 1, &cpus[0]);
	segreader_control_read(sr, 0, &control, &seq, &ack);
	segreader_control_write(sr, 0, &control, &seq);
}

static void test_mutations(void **state)
{
	struct made good = made_new(2, 3), m;
	const int rounds = 100000;
	struct segreader *sr = NULL;
	char *copy = malloc(good.bytes), why[160];
	int n_opened = 0;

	(void)state;
	assert_non_null(copy);
	memcpy(copy, good.base, good.bytes);
	made_free(&good, 1);
	m = made_new(2, 3);
	made_seal(&m, NEEDED_SEALS);
	for (int i = 0; i < rounds; i++) {
		int fd, r;

		memcpy(m.base, copy, m.bytes);
		damage(m.base, m.bytes);
		fd = dup(m.fd);
		memset(why, 0, sizeof(why));
		r = segreader_open(fd, &limits, &sr, why, sizeof(why));
		if (r) {
			assert_int_equal(r, -EPROTO);
			assert_true(strncmp(why, "segment: ", 9) == 0);
			close(fd);
			continue;
		}
		n_opened++;
		use_everything(sr, &m);
		segreader_close(sr);
	}
	assert_true(n_opened > rounds / 100 && n_opened < rounds);
	made_free(&m, 1);
	free(copy);
}

/* Rounded up to the end of the row, never beyond the longest; whatever the target wrote. */
static void test_holds(void **state)
{
	struct segreader_zone z = {.id = 0};

	(void)state;
	assert_int_equal(segreader_hold_ns(&z, 500), 0);
	z.hold_from_0ns = 98;
	z.hold_from_1024ns = 1;
	z.hold_from_8388608ns = 1;
	z.hold_max_ns = 123456789;
	assert_int_equal(segreader_hold_ns(&z, 0), 63);
	assert_int_equal(segreader_hold_ns(&z, 980), 63);
	assert_int_equal(segreader_hold_ns(&z, 981), 2047);
	assert_int_equal(segreader_hold_ns(&z, 990), 2047);
	assert_int_equal(segreader_hold_ns(&z, 991), 123456789);
	assert_int_equal(segreader_hold_ns(&z, 1000), 123456789);
	z.hold_max_ns = 1500;
	assert_int_equal(segreader_hold_ns(&z, 990), 1500);
	z.hold_from_0ns = z.hold_from_64ns = z.hold_from_1024ns = UINT64_MAX;
	assert_int_equal(segreader_hold_ns(&z, 400), 127);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuse_files),
		cmocka_unit_test(test_refuse_short),
		cmocka_unit_test(test_refuse_large),
		cmocka_unit_test(test_refuse_header),
		cmocka_unit_test(test_refuse_overlap),
		cmocka_unit_test(test_why_bounded),
		cmocka_unit_test(test_info),
		cmocka_unit_test(test_empty_name),
		cmocka_unit_test(test_shape_zone_proc),
		cmocka_unit_test(test_desc),
		cmocka_unit_test(test_control),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_mutations),
		cmocka_unit_test(test_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
