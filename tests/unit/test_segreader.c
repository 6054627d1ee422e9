/* SPDX-License-Identifier: MIT */
/*
 * The segment reader against segments made by hand: every refusal with its reason, the arithmetic
 * of list words, rest and activity, hostile counters, a writer at work meanwhile, and random
 * damage.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <cmocka.h>
#include <pcptune/rules.h>
#include "lib/segreader.h"
#include "tests/unit/test_segreader.h"

#define NEEDED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static const struct segreader_limits limits = {.max_cpus = 256, .max_bytes = 64 << 20};

static struct segreader *opened(struct made *m)
{
	struct segreader *sr = NULL;
	char why[160] = "";
	int r;

	made_seal(m, NEEDED_SEALS);
	r = segreader_open(m->fd, &limits, &sr, why, sizeof(why));
	if (r)
		print_error("refused: %s\n", why);
	assert_int_equal(r, 0);
	return sr;
}

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

/* ---- samples ---- */

struct bench {
	struct made m;
	struct segreader *sr;
	struct pcptune_cpu *cpus;
	uint32_t active[64];
	uint32_t n_active;
};

static struct bench bench_new(uint32_t zones, uint32_t cpus)
{
	struct bench b = {.m = made_new(zones, cpus)};

	b.sr = opened(&b.m);
	b.cpus = calloc((size_t)zones * cpus, sizeof(*b.cpus));
	assert_non_null(b.cpus);
	return b;
}

static void bench_free(struct bench *b)
{
	segreader_close(b->sr);
	made_free(&b->m, 0);
	free(b->cpus);
}

static void pass(struct bench *b)
{
	b->n_active = segreader_sample(b->sr, b->cpus, b->active);
}

static uint64_t any_delta(const struct pcptune_cpu *c)
{
	uint64_t any = 0;

#define PCPTUNE_LIST(field, unit, line, para) any |= c->field;
#define PCPTUNE_ZCTR(field, unit, line, para) any |= c->field;
#define PCPTUNE_PCTR(field, unit, line, para) any |= c->field;
#include <pcptune/counters.def>
	return any;
}

static void test_sample_deltas(void **state)
{
	struct bench b = bench_new(2, 3);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 4);

	(void)state;
	memset(b.cpus, 0, 6 * sizeof(*b.cpus));
	pass(&b);
	assert_int_equal(b.n_active, 0);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(b.cpus[i].zone, i / 3);
		assert_int_equal(b.cpus[i].cpu, i % 3);
		assert_int_equal(b.cpus[i].flags, 0);
	}
	b.cpus[4].flags = PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD;
	made_refill(&c->list[0], 63);
	made_add(c->zctr.alloc_zone, 63 + 3 * 512);
	made_add(c->zctr.refills, 2);
	for (int i = 0; i < 10; i++)
		made_pop(&c->list[0]);
	made_push(&c->list[0]);
	made_refill(&c->list[4], 3);
	made_pop(&c->list[4]);
	made_push(&c->list[3]);
	made_add(c->zctr.alloc_direct, 16);
	made_add(c->zctr.free_direct, 32);
	made_hold(c);
	c->pcp.high = 378;
	c->pcp.batch = 63;
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.active[0], 4);
	assert_int_equal(b.cpus[4].flags,
			 PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD | PCPTUNE_CPU_ACTIVE);
	assert_int_equal(b.cpus[4].alloc_pages, 10 + 512 + 16);
	assert_int_equal(b.cpus[4].free_pages, 1 + 8 + 32);
	assert_int_equal(b.cpus[4].count, 63 - 10 + 1 + 8 + 2 * 512);
	assert_int_equal(b.cpus[4].alloc_zone, 63 + 3 * 512);
	assert_int_equal(b.cpus[4].refills, 2);
	assert_int_equal(b.cpus[4].high, 378);
	assert_int_equal(b.cpus[4].batch, 63);
	pass(&b); /* at rest: no deltas, gauges stay, the caller's flags stay */
	assert_int_equal(b.n_active, 0);
	assert_int_equal(any_delta(&b.cpus[4]), 0);
	assert_int_equal(b.cpus[4].flags, PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD);
	assert_int_equal(b.cpus[4].high, 378);
	assert_int_equal(b.cpus[4].count, 63 - 10 + 1 + 8 + 2 * 512);
	bench_free(&b);
}

/* A tail, or one gauge, that moves alone is seen, though nothing is "active" then. */
static void test_sample_gauges_at_rest(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);

	(void)state;
	made_refill(&c->list[0], 100);
	made_refill(&c->list[1], 100);
	pass(&b);
	assert_int_equal(b.cpus[1].count, 300);
	made_drain(&c->list[0], 10);
	made_refill(&c->list[1], 10); /* the plain sum of the tails stays the same */
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[1].count, 310);
#define PCPTUNE_GAUGE(field, unit, line, para) \
	c->pcp.field++;                        \
	pass(&b);                              \
	assert_int_equal(b.n_active, 0);       \
	assert_int_equal(b.cpus[1].field, 1);  \
	assert_int_equal(b.cpus[1].flags, 0);
#include <pcptune/counters.def>
	bench_free(&b);
}

/* Every counter by itself makes the CPU active, and comes out as itself alone. */
static void test_sample_each_counter(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	uint64_t step = 1;

	(void)state;
	pass(&b);
#define EACH(block, field)                                                        \
	made_add(c->block.field, ++step);                                         \
	made_hold(c);                                                             \
	pass(&b);                                                                 \
	assert_int_equal(b.n_active, 1);                                          \
	assert_int_equal(b.active[0], 1);                                         \
	assert_int_equal(b.cpus[1].field, step);                                  \
	b.cpus[1].field = 0;                                                      \
	assert_true(any_delta(&b.cpus[1]) == 0 || any_delta(&b.cpus[1]) == step); \
	pass(&b);                                                                 \
	assert_int_equal(b.n_active, 0);                                          \
	assert_int_equal(any_delta(&b.cpus[1]), 0);
#define PCPTUNE_ZCTR(field, unit, line, para) EACH(zctr, field)
#define PCPTUNE_PCTR(field, unit, line, para) EACH(pcp, field)
#include <pcptune/counters.def>
	bench_free(&b);
}

/* What one step of the next test did to a CPU. */
struct moved {
	uint64_t allocs, frees, refills, waited, raised;
	bool gauge;
};

static struct moved move_somehow(struct pcptune_cpu_block *c, unsigned how)
{
	struct moved m = {0};

	if (how & 1) {
		made_push(&c->list[0]);
		made_push(&c->list[2]);
		m.frees = 1 + 4;
	}
	if (how & 2) {
		made_pop(&c->list[0]);
		m.allocs = 1;
	}
	if (how & 4) {
		made_add(c->zctr.refills, 3);
		made_add(c->zctr.lock_alloc_wait_ns, 1000);
		made_hold(c);
		m.refills = 3;
		m.waited = 1000;
	}
	if (how & 8) {
		made_add(c->pcp.high_raised, 1);
		m.raised = 1;
	}
	if (how & 16) {
		c->pcp.free_count ^= 1; /* to and fro: back is a change as well */
		m.gauge = true;
	}
	return m;
}

/*
 * Every step from one kind of interval (rest, lists alone, counters alone, both, a gauge) to every
 * other, and over one in between: none sees what an earlier one left in the entry.
 */
static void test_all_ways_of_moving(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	uint32_t free_count = 0;

	(void)state;
	pass(&b);
	for (unsigned n = 0; n < 32 * 32 * 32; n++) {
		const unsigned hows[] = {n % 32, n / 32 % 32, n / 1024};

		for (unsigned k = 0; k < 3; k++) {
			struct moved m = move_somehow(c, hows[k]);
			const struct pcptune_cpu *e = &b.cpus[1];
			uint64_t all = m.allocs | m.frees | m.refills | m.waited | m.raised;
			bool lists_only = all && !(m.refills | m.waited | m.raised);

			pass(&b);
			free_count ^= m.gauge;
			assert_int_equal(b.n_active, all != 0);
			assert_int_equal(e->flags,
					 (all ? PCPTUNE_CPU_ACTIVE : 0) |
						 (lists_only ? PCPTUNE_CPU_LISTS_ONLY : 0));
			assert_int_equal(e->alloc_pages, m.allocs);
			assert_int_equal(e->free_pages, m.frees);
			assert_int_equal(e->refills, m.refills);
			assert_int_equal(e->lock_alloc_wait_ns, m.waited);
			assert_int_equal(e->high_raised, m.raised);
			assert_int_equal(any_delta(e), all);
			assert_int_equal(e->free_count, free_count);
		}
	}
	bench_free(&b);
}

/*
 * A pass in the midst of a hold: what it counts comes with its end, all of it, and nothing is lost.
 */
static void test_a_hold_in_two_passes(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);

	(void)state;
	pass(&b);
	for (int works = 0; works < 2; works++) {
		for (int i = 0; i < 3; i++) {
			made_push(&c->list[0]);
			pass(&b);
		}
		made_push(&c->list[0]);
		made_add(c->zctr.lock_alloc_taken, 1);
		pass(&b);
		assert_int_equal(b.cpus[1].flags, PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_LISTS_ONLY);
		assert_int_equal(b.cpus[1].lock_alloc_taken, 0);
		if (works)
			made_push(&c->list[0]);
		made_add(c->zctr.refills, 1);
		made_hold(c);
		pass(&b);
		assert_int_equal(b.cpus[1].flags, PCPTUNE_CPU_ACTIVE);
		assert_int_equal(b.cpus[1].lock_alloc_taken, 1);
		assert_int_equal(b.cpus[1].refills, 1);
		pass(&b);
		assert_int_equal(any_delta(&b.cpus[1]), 0);
	}
	bench_free(&b);
}

/* Lists are looked at from when their bit is set, and for ever: a target can not unsay it. */
static void test_lists_in_use(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
	c->pcp.lists = 1;
	pass(&b);
	made_refill(&c->list[2], 3);
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[0].count, 0);
	c->pcp.lists = 1 | 4 | 1u << 31;
	made_pop(&c->list[2]);
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	assert_int_equal(b.cpus[0].count, 8);
	c->pcp.lists = 0;
	made_pop(&c->list[2]);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	assert_int_equal(b.cpus[0].count, 4);
	pass(&b);
	pass(&b);
	made_pop(&c->list[2]); /* from rest, too */
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 4);
	bench_free(&b);
}

static void test_first_pass_and_rebase(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);
	struct pcptune_cpu total;

	(void)state;
	made_refill(&c->list[0], 5);
	made_pop(&c->list[0]);
	c->zctr.lock_alloc_hold_ns = UINT64_C(1) << 50; /* an old target may have this in total */
	pass(&b);
	assert_int_equal(b.n_active, 1); /* counts from zero */
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	assert_true(b.cpus[0].lock_alloc_hold_ns == UINT64_C(1) << 50);
	made_pop(&c->list[0]);
	segreader_rebase(b.sr);
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(any_delta(&b.cpus[0]), 0);
	assert_int_equal(b.cpus[0].flags, 0);
	assert_int_equal(b.cpus[0].count, 3);
	made_pop(&c->list[0]);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	segreader_cpu_total(b.sr, 0, &total);
	assert_int_equal(total.alloc_pages, 3);
	assert_int_equal(total.count, 2);
	assert_int_equal(total.flags, 0);
	bench_free(&b);
}

/* Other entries than last time are filled in full, not left to what they held. */
static void test_other_entries(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu other[2];

	(void)state;
	made_cpu(&b.m, 1)->pcp.high = 9;
	pass(&b);
	memset(other, 0, sizeof(other));
	segreader_sample(b.sr, other, b.active);
	assert_int_equal(other[1].cpu, 1);
	assert_int_equal(other[1].high, 9);
	bench_free(&b);
}

static void test_forked(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
	c->list[0].tail = -40; /* 40 blocks inherited, no operation yet */
	c->list[4].tail = -1;
	pass(&b);
	assert_int_equal(b.n_active, 0);
	assert_int_equal(b.cpus[0].count, 40 + 512);
	made_pop(&c->list[0]);
	made_drain(&c->list[0], 30);
	pass(&b);
	assert_int_equal(b.cpus[0].alloc_pages, 1);
	assert_int_equal(b.cpus[0].free_pages, 0);
	assert_int_equal(b.cpus[0].count, 9 + 512);
	bench_free(&b);
}

/* The operation count wraps at 2^40, the net position passes 2^24 and goes below zero. */
static void test_wraps(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_list *l = &made_cpu(&b.m, 0)->list[0];
	struct pcptune_cpu total;
	const uint64_t almost = (UINT64_C(1) << 40) - 3;

	(void)state;
	/* net 1 after an odd number of operations, one block held */
	l->word = (almost << 24) + 1;
	l->tail = 0;
	pass(&b);
	assert_true(b.cpus[0].free_pages == (almost + 1) / 2);
	for (int i = 0; i < 7; i++)
		made_push(l);
	pass(&b);
	assert_int_equal(b.n_active, 1);
	assert_int_equal(b.cpus[0].alloc_pages, 0);
	assert_int_equal(b.cpus[0].free_pages, 7);
	assert_int_equal(b.cpus[0].count, 8);
	segreader_cpu_total(b.sr, 0, &total);
	assert_true(total.free_pages == (almost + 1) / 2 + 7);
	assert_true(total.alloc_pages == (almost - 1) / 2);
	/* far down: 20 million allocations refilled in chunks */
	for (int i = 0; i < 4; i++) {
		uint64_t pops = 5000000;

		l->tail -= 5000000;
		l->word += pops * PCPTUNE_WORD_POP;
		pass(&b);
		assert_int_equal(b.cpus[0].alloc_pages, pops);
		assert_int_equal(b.cpus[0].free_pages, 0);
		assert_int_equal(b.cpus[0].count, 8);
	}
	bench_free(&b);
}

static void assert_unknown_once(struct bench *b, uint32_t i)
{
	pass(b);
	assert_int_equal(b->n_active, 0);
	assert_int_equal(b->cpus[i].flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(any_delta(&b->cpus[i]), 0);
	pass(b);
	assert_int_equal(b->n_active, 0);
	assert_int_equal(b->cpus[i].flags, 0);
}

static void test_hostile_counters(void **state)
{
	struct bench b = bench_new(1, 2);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 1);
	struct pcptune_cpu total;

	(void)state;
	made_add(c->zctr.refills, 100);
	pass(&b);
	c->zctr.refills = 99; /* backwards */
	made_hold(c);
	assert_unknown_once(&b, 1);
	made_add(c->zctr.refills, 1); /* based anew on 99 */
	made_hold(c);
	pass(&b);
	assert_int_equal(b.cpus[1].refills, 1);
	c->zctr.alloc_zone = (UINT64_C(1) << 40) + 1;
	made_hold(c);
	assert_unknown_once(&b, 1);
	c->zctr.lock_free_wait_ns = (UINT64_C(1) << 48) + 1;
	made_hold(c);
	assert_unknown_once(&b, 1);
	c->pcp.high_raised = UINT64_MAX;
	assert_unknown_once(&b, 1);
	c->list[2].word -= PCPTUNE_WORD_PUSH; /* operations backwards: 2^40 - 1 of them */
	assert_unknown_once(&b, 1);
	c->list[2].tail += 1 << 24; /* 2^24 frees without an operation */
	assert_unknown_once(&b, 1);
	c->list[0].word += 1; /* half an operation */
	assert_unknown_once(&b, 1);
	c->list[0].tail = INT64_MIN;
	assert_unknown_once(&b, 1);
	segreader_cpu_total(b.sr, 1, &total);
	assert_int_equal(total.flags, PCPTUNE_CPU_UNKNOWN);
	assert_int_equal(any_delta(&total), 0);
	bench_free(&b);
}

/* Policies shift by scale_max and multiply by high: nothing beyond the ranges gets through. */
static void test_hostile_gauges(void **state)
{
	struct bench b = bench_new(1, 1);
	struct pcptune_cpu_block *c = made_cpu(&b.m, 0);

	(void)state;
#define PCPTUNE_GAUGE(field, unit, line, para) c->pcp.field = UINT32_MAX;
#include <pcptune/counters.def>
	for (uint32_t i = 0; i < PCPTUNE_N_LISTS; i++)
		c->list[i].tail = -(INT64_C(1) << 24) + 1;
	pass(&b);
	assert_int_equal(b.cpus[0].high, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].high_min, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].high_max, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].batch, PCPTUNE_MAX_BATCH);
	assert_int_equal(b.cpus[0].scale_max, PCPTUNE_MAX_SCALE);
	assert_int_equal(b.cpus[0].rules, PCPTUNE_RULES_MAX);
	assert_int_equal(b.cpus[0].alloc_factor, 16);
	assert_int_equal(b.cpus[0].free_count, PCPTUNE_MAX_HIGH);
	assert_int_equal(b.cpus[0].count, 2 * PCPTUNE_MAX_HIGH);
	bench_free(&b);
}

/* ---- a target at work ---- */

struct worker {
	struct pcptune_cpu_block *c;
	uint64_t rounds, allocs, frees;
	bool stop;
};

/* One writer per CPU, as the lists' lock gives it; tail moves often, to provoke torn pairs. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct pcptune_list *l = &w->c->list[1];

	while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
		made_refill(l, 8);
		made_add(w->c->zctr.alloc_zone, 16);
		made_hold(w->c);
		for (int i = 0; i < 8; i++)
			made_pop(l);
		for (int i = 0; i < 8; i++)
			made_push(l);
		made_drain(l, 8);
		made_add(w->c->zctr.free_zone, 16);
		made_hold(w->c);
		w->rounds++;
	}
	return NULL;
}

static void sample_for(struct bench *b, struct pcptune_cpu *sum, int ms)
{
	struct timespec t;
	uint64_t end;

	clock_gettime(CLOCK_MONOTONIC, &t);
	end = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + (uint64_t)ms;
	do {
		pass(b);
		for (uint32_t i = 0; i < 2; i++) {
			/* never UNKNOWN by arithmetic: a torn pair is the only cause */
			sum[i].alloc_pages += b->cpus[i].alloc_pages;
			sum[i].free_pages += b->cpus[i].free_pages;
			sum[i].alloc_zone += b->cpus[i].alloc_zone;
			assert_true(b->cpus[i].alloc_pages < UINT64_C(1) << 32);
			assert_true(b->cpus[i].count <= 16);
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 < end);
}

static void test_concurrent(void **state)
{
	struct bench b = bench_new(1, 2);
	struct worker w[2] = {{.c = made_cpu(&b.m, 0)}, {.c = made_cpu(&b.m, 1)}};
	struct pcptune_cpu sum[2] = {{.zone = 0}};
	pthread_t threads[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
	sample_for(&b, sum, 1500);
	for (int i = 0; i < 2; i++) {
		__atomic_store_n(&w[i].stop, true, __ATOMIC_RELAXED);
		pthread_join(threads[i], NULL);
	}
	sample_for(&b, sum, 0);
	for (int i = 0; i < 2; i++) {
		assert_true(w[i].rounds > 0);
		assert_int_equal(sum[i].alloc_pages, w[i].rounds * 16);
		assert_int_equal(sum[i].free_pages, w[i].rounds * 16);
		assert_int_equal(sum[i].alloc_zone, w[i].rounds * 16);
	}
	bench_free(&b);
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
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
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
		cmocka_unit_test(test_sample_deltas),
		cmocka_unit_test(test_sample_gauges_at_rest),
		cmocka_unit_test(test_sample_each_counter),
		cmocka_unit_test(test_all_ways_of_moving),
		cmocka_unit_test(test_a_hold_in_two_passes),
		cmocka_unit_test(test_lists_in_use),
		cmocka_unit_test(test_first_pass_and_rebase),
		cmocka_unit_test(test_other_entries),
		cmocka_unit_test(test_forked),
		cmocka_unit_test(test_wraps),
		cmocka_unit_test(test_hostile_counters),
		cmocka_unit_test(test_hostile_gauges),
		cmocka_unit_test(test_concurrent),
		cmocka_unit_test(test_control),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_mutations),
		cmocka_unit_test(test_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
