/* SPDX-License-Identifier: MIT */
/*
 * The band tracker in the allocator, against a tracker that is told of every operation, in both
 * modes: turning points, records read at any moment, fork, and many threads.
 */
#define BURST_MOST 3000u
#ifdef __SANITIZE_THREAD__
#define FEWER(n) ((n) / 5) /* where an operation takes twenty times as long */
#else
#define FEWER(n) (n)
#endif

#include <pcpalloc_inline.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "allocator/heap.h"
#include "allocator/pcp.h"
#include "lib/segreader.h"
#include "tests/unit/alloc_child.h"

/* What the test knows of the lists of the one CPU that it uses. */
static void *kept[1 << 16];
static unsigned n_kept, n_cuts;
static unsigned order;			 /* of all blocks */
static unsigned burst_most = BURST_MOST; /* blocks */
static int64_t position;
static struct pcptune_band truth, merged;
static struct segreader *reader;
static uint32_t own;
static uint64_t seed = 1;

static uint32_t random_below(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(seed >> 33) % n;
}

static void stay_on_a_cpu(void)
{
	cpu_set_t one;
	int cpu = sched_getcpu();

	CHECK(cpu >= 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
}

static struct segreader *open_own(void)
{
	const struct segreader_limits limits = {.max_cpus = PCPTUNE_MAX_CPUS};
	struct segreader *sr = NULL;
	char why[160];

	CHECK(!segreader_open(dup(pcpa_segment_fd()), &limits, &sr, why, sizeof(why)));
	return sr;
}

/* One block comes or goes, by both kinds of functions. */
static void take(void)
{
	void *block = n_kept % 3 ? pcpa_alloc(order) : pcpa_alloc_inline(order);

	CHECK(block && n_kept < sizeof(kept) / sizeof(*kept));
	kept[n_kept++] = block;
	pcptune_band_push(&truth, position -= 1 << order);
}

static void give(void)
{
	CHECK(n_kept);
	n_kept--;
	if (n_kept % 3)
		pcpa_free(kept[n_kept], order);
	else
		pcpa_free_inline(kept[n_kept], order);
	pcptune_band_push(&truth, position += 1 << order);
}

static void read_record(void)
{
	struct pcptune_record r;

	CHECK(segreader_record(reader, own, &r));
	CHECK(!r.flags && r.index == own);
	CHECK(!n_cuts || r.band.start == pcptune_band_now(&merged));
	pcptune_band_merge(&merged, &r.band);
	n_cuts++;
}

/* Every turn of the program is a turn of the position. */
static void clean_bursts(unsigned n, unsigned cut_every)
{
	for (unsigned i = 0; i < n; i++) {
		for (unsigned k = random_below(burst_most); k--;)
			take();
		for (unsigned k = random_below(n_kept + 1); k--;)
			give();
		if (n_kept > 13 * burst_most)
			while (n_kept > burst_most / 30)
				give();
		if (cut_every && i % cut_every == cut_every - 1)
			read_record();
	}
}

/* One operation in eight goes the other way; now and then to and fro for a while. */
static void noisy_bursts(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		unsigned length = random_below(BURST_MOST);
		bool takes = random_below(2);

		for (unsigned k = 0; k < length; k++) {
			bool this = random_below(8) ? takes : !takes;

			if ((this || !n_kept) && n_kept < 40000)
				take();
			else
				give();
		}
		for (unsigned k = random_below(200); k--;) {
			take();
			give();
		}
	}
}

static void begin(void)
{
	stay_on_a_cpu();
	pcpa_free(pcpa_alloc(order), order);
	pcptune_band_push(&truth, 0);
	pcptune_band_push(&truth, position = -(1 << order));
	pcptune_band_push(&truth, position = 0);
	own = pcpa_cpu_slot();
	reader = open_own();
}

static uint64_t pages(const struct pcptune_band *b, uint64_t capacity)
{
	struct pcptune_band_traffic t = pcptune_band_traffic(b, capacity, 0, NULL);

	return t.refilled + t.drained;
}

/* The two agree on what lists of any size would have moved, to so many thousandths. */
static void compare(uint64_t from, unsigned most_permille)
{
	for (uint64_t capacity = from; capacity < 16384; capacity += capacity / 4) {
		uint64_t want = pages(&truth, capacity), got = pages(&merged, capacity);
		uint64_t off = want > got ? want - got : got - want;

		if (off * 1000 > want * most_permille + 1000 * capacity)
			dprintf(2, "capacity %lu: %lu, should be %lu\n", (unsigned long)capacity,
				(unsigned long)got, (unsigned long)want);
		CHECK(off * 1000 <= want * most_permille + 1000 * capacity);
	}
}

static void finds_the_turns_of_bursts(void)
{
	begin();
	clean_bursts(FEWER(2000), 0);
	pcpa_trim();
	read_record();
	CHECK(pcptune_band_now(&merged) == position);
	compare(128, 10);
	CHECK_AUDIT();
}

static void finds_the_turns_in_noise(void)
{
	begin();
	noisy_bursts(FEWER(2000));
	pcpa_trim();
	read_record();
	CHECK(pcptune_band_now(&merged) == position);
	compare(128, 60);
	CHECK_AUDIT();
}

/*
 * Blocks of 32 KiB: a swing is as long as its pages are many, not its blocks. With a large high no
 * refill or drain looks at the lists meanwhile.
 */
static void finds_the_turns_of_large_blocks(void)
{
	order = 3;
	burst_most = 100;
	begin();
	clean_bursts(FEWER(3000), 0);
	pcpa_trim();
	read_record();
	CHECK(pcptune_band_now(&merged) == position);
	compare(256, 50);
	CHECK_AUDIT();
}

/* ---- records ---- */

/* The same program with and without cuts: the records add up to the one, to the last number. */
static void write_band(int fd, unsigned cut_every)
{
	begin();
	clean_bursts(FEWER(600), cut_every);
	noisy_bursts(50);
	read_record();
	/* what was there before is not part of it */
	memset(&merged.s[merged.n], 0, (PCPTUNE_BAND_STACK - merged.n) * sizeof(merged.s[0]));
	CHECK(write(fd, &merged, sizeof(merged)) == sizeof(merged));
}

static int out[2];

static void without_cuts(void)
{
	write_band(out[1], 0);
}

static void with_cuts(void)
{
	write_band(out[1], 3);
	CHECK(n_cuts == FEWER(600) / 3 + 1);
}

static void sum_of_records(const char *mode)
{
	static struct pcptune_band whole, parts;

	assert_int_equal(pipe(out), 0);
	assert_int_equal(in_child(without_cuts, SETTINGS(mode, "PCPALLOC_AGENT=0")), 0);
	assert_int_equal(read(out[0], &whole, sizeof(whole)), sizeof(whole));
	assert_int_equal(in_child(with_cuts, SETTINGS(mode, "PCPALLOC_AGENT=0")), 0);
	assert_int_equal(read(out[0], &parts, sizeof(parts)), sizeof(parts));
	close(out[0]);
	close(out[1]);
	assert_true(whole.n > 2);
	assert_memory_equal(&whole, &parts, sizeof(whole));
}

/* What is predicted for the high in force is what was counted. */
static void the_high_in_force(void)
{
	struct pcpa_stats before = {.size = sizeof(before)}, after = before;
	struct pcptune_band_traffic t;
	uint64_t measured;

	begin();
	CHECK(!pcpa_set_limits(512, 512, 512, 63));
	pcpa_trim();
	read_record();
	pcptune_band_init(&merged);
	n_cuts = 0;
	CHECK(!pcpa_get_stats(&before));
	clean_bursts(FEWER(1500), 10);
	read_record();
	CHECK(!pcpa_get_stats(&after));
	t = pcptune_band_traffic(&merged, pcptune_band_capacity(512, 63, 0, 0, 0, 0), 0, NULL);
	measured = after.alloc_zone - before.alloc_zone;
	CHECK(measured > FEWER(100000));
	CHECK(t.refilled * 100 > measured * 98 && t.refilled * 100 < measured * 102);
}

static void child_of_a_fork(void)
{
	pid_t pid;
	int status;

	begin();
	clean_bursts(20, 5);
	pid = fork();
	CHECK(pid >= 0);
	if (pid) {
		clean_bursts(20, 5);
		CHECK(waitpid(pid, &status, 0) == pid && !status);
	} else {
		/* a segment of its own, with records of its own */
		segreader_close(reader);
		reader = open_own();
		pcptune_band_init(&merged);
		n_cuts = 0;
		position = 0;
		pcptune_band_init(&truth);
		pcptune_band_push(&truth, 0);
		clean_bursts(40, 5);
	}
	pcpa_trim();
	read_record();
	CHECK(pcptune_band_now(&merged) == position);
	compare(128, 10);
	CHECK_AUDIT();
}

static void switched_off(void)
{
	struct segreader_info info;
	struct pcptune_record r;

	begin();
	clean_bursts(20, 0);
	segreader_info(reader, &info);
	CHECK(!info.grain && !segreader_record(reader, own, &r));
	CHECK_AUDIT();
}

/* ---- many threads ---- */

#define THREADS 64u
#define MINE	300u

static uint32_t stop;

static void *work(void *arg)
{
	uint64_t x = (uintptr_t)arg;
	void *mine[MINE];
	unsigned n = 0, orders[MINE];

	for (; !__atomic_load_n(&stop, __ATOMIC_RELAXED);) {
		unsigned length = (unsigned)(x >> 40) % 200;
		bool takes = x >> 60 & 1;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		for (; length--;) {
			if (takes && n < MINE) {
				orders[n] = (unsigned)(x >> 33) % 9 ? 0 : (unsigned)(x >> 50) % 4;
				mine[n] = pcpa_alloc(orders[n]);
				CHECK(mine[n++]);
			} else if (n) {
				n--;
				pcpa_free(mine[n], orders[n]);
			}
		}
	}
	while (n) {
		n--;
		pcpa_free(mine[n], orders[n]);
	}
	return NULL;
}

struct chain {
	struct pcptune_band band;
	unsigned records;
};

static bool next_record(struct segreader *sr, uint32_t index, struct chain *c)
{
	struct pcptune_record r;

	if (!segreader_record(sr, index, &r))
		return false;
	CHECK(!r.flags);
	CHECK(!r.band.n || !c->band.n || r.band.start == pcptune_band_now(&c->band));
	pcptune_band_merge(&c->band, &r.band);
	c->records++;
	return true;
}

/* The agent may hold the lists for a while, without a CPU. */
static bool record_soon(struct segreader *sr, uint32_t index, struct chain *c)
{
	struct timespec ms = {.tv_nsec = 1000000};

	for (int i = 0; i < 10000; i++) {
		if (next_record(sr, index, c))
			return true;
		nanosleep(&ms, NULL);
	}
	return false;
}

/* Net position of the lists of a CPU by its counters. */
static int64_t counted(struct segreader *sr, uint32_t index)
{
	struct pcptune_cpu c;

	segreader_cpu_total(sr, index, &c);
	CHECK(!c.flags);
	return (int64_t)(c.free_pages - c.free_direct) - (int64_t)(c.alloc_pages - c.alloc_direct);
}

static void read_all(struct segreader *sr, struct chain *chains, uint32_t n)
{
	for (int pass = 0; pass < 150; pass++) {
		struct timespec ms = {.tv_nsec = 2000000};

		for (uint32_t i = 0; i < n; i++)
			next_record(sr, i, &chains[i]);
		nanosleep(&ms, NULL);
	}
}

/* Records follow each other without a gap, and end where the counters say. */
static void many_threads(void)
{
	pthread_t threads[THREADS];
	struct segreader_info info;
	struct chain *chains;
	struct segreader *sr;
	uint32_t n, used = 0, records = 0;

	pcpa_free(pcpa_alloc(0), 0);
	sr = open_own();
	segreader_info(sr, &info);
	n = info.n_zones * info.n_cpus;
	chains = calloc(n, sizeof(*chains));
	CHECK(chains);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, (void *)(i + 1)));
	read_all(sr, chains, n);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK_AUDIT(); /* which looks at every CPU */
	for (uint32_t i = 0; i < n; i++) {
		/* the first may be of a cut that was asked for long ago */
		CHECK(record_soon(sr, i, &chains[i]) && record_soon(sr, i, &chains[i]));
		CHECK(pcptune_band_now(&chains[i].band) == counted(sr, i));
		used += chains[i].band.n > 1;
		records += chains[i].records;
	}
	CHECK(records > 100);
	CHECK(used);
}

/* ---- both modes ---- */

static const char *const modes[] = {"PCPALLOC_MODE=locked", "PCPALLOC_MODE=rseq"};

static void in_both(void (*f)(void), const char *setting)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(in_child(f, SETTINGS(modes[i], setting)), 0);
}

static void test_bursts(void **state)
{
	(void)state;
	in_both(finds_the_turns_of_bursts, "PCPALLOC_AGENT=0");
}

static void test_large_blocks(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(in_child(finds_the_turns_of_large_blocks,
					  SETTINGS(modes[i], "PCPALLOC_AGENT=0",
						   "PCPALLOC_RULES=gx", "PCPALLOC_HIGH=20000")),
				 0);
}

static void test_noise(void **state)
{
	(void)state;
	in_both(finds_the_turns_in_noise, "PCPALLOC_AGENT=0");
}

static void test_records(void **state)
{
	(void)state;
	sum_of_records(modes[0]);
	sum_of_records(modes[1]);
}

static void test_prediction(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(in_child(the_high_in_force, SETTINGS(modes[i], "PCPALLOC_RULES=g0",
								      "PCPALLOC_AGENT=0")),
				 0);
}

static void test_fork(void **state)
{
	(void)state;
	in_both(child_of_a_fork, "PCPALLOC_AGENT=0");
}

static void test_off(void **state)
{
	(void)state;
	in_both(switched_off, "PCPALLOC_GRAIN=0");
}

static void test_threads(void **state)
{
	(void)state;
	in_both(many_threads, "PCPALLOC_GRAIN=16");
	assert_int_equal(in_child(many_threads, SETTINGS("PCPALLOC_CPUS=64", "PCPALLOC_HIGH=300")),
			 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bursts),	   cmocka_unit_test(test_large_blocks),
		cmocka_unit_test(test_noise),	   cmocka_unit_test(test_records),
		cmocka_unit_test(test_prediction), cmocka_unit_test(test_fork),
		cmocka_unit_test(test_off),	   cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
