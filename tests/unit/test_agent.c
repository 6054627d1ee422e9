/* SPDX-License-Identifier: MIT */
/*
 * The client's end against a small daemon in the test: handshake, refusal, end of file and the
 * same segment again, control words, lease, and a program that closes descriptors it does not
 * know. Then what the agent does by itself: decay, idle CPUs, return of memory.
 */
#include <setjmp.h>
#include <stdint.h>
#include "agent_daemon.h"
#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>

#include <pcptune/rules.h>

#include "allocator/agent.h"

/* n pages onto the lists of this CPU */
static void fill_lists(size_t n)
{
	void **p = calloc(n, sizeof(*p));

	CHECK(p && pcpa_alloc_bulk(0, n, p) == n);
	for (size_t i = 0; i < n; i++)
		memset(p[i], 1, 64);
	pcpa_free_bulk(0, n, p);
	free(p);
}

/* ---- handshake ---- */

static void hello_child(void)
{
	int listener;
	struct target t;
	struct pcpa_stats s = {.size = sizeof(s)};

	make_folder();
	listener = listen_at();
	setenv("PCPTUNE_RUN_TAG", "00000000deadbeef", 1);
	CHECK(pcpa_owns(&s) == 0 && !pcpa_heap.ready);
	pcpa_free(pcpa_alloc(0), 0);
	t = receive_hello(listener);
	CHECK(t.hello.magic == PCPTUNE_WIRE_MAGIC && t.hello.version == PCPTUNE_WIRE_VERSION);
	CHECK(t.hello.size == sizeof(t.hello) && t.hello.layout == PCPTUNE_SEG_LAYOUT);
	CHECK(t.hello.flags == PCPTUNE_HELLO_RECORDS && t.hello.segment_size == t.size &&
	      t.h->size == t.size);
	CHECK(t.h->magic == PCPTUNE_SEG_MAGIC && t.h->pid == (uint32_t)getpid());
	CHECK(t.h->run_tag == 0xdeadbeef);
	CHECK(!strcmp(t.h->name, program_invocation_short_name));
	CHECK(fcntl(t.segment, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	CHECK(ftruncate(t.segment, 4096) < 0);
	accept_target(&t);
	CHECK(pcpa_get_stats(&s) == 0 && s.attached == 1);
	end_daemon(&t, listener);
}

static void hello_and_segment(void **state)
{
	(void)state;
	assert_int_equal(in_child(hello_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

/* Name, unit, width and place of every number can be told from the segment alone. */
static void description_child(void)
{
	const struct pcptune_seg_header *h;
	const struct pcptune_desc *d;
	int seen_managed = 0, seen_list = 0;

	pcpa_free(pcpa_alloc(0), 0);
	h = pcpa_heap.header;
	d = (const struct pcptune_desc *)((const char *)h + h->desc_off);
	for (uint32_t i = 0; i < h->n_desc; i++) {
		CHECK(d[i].name[0] && d[i].unit[0] && d[i].line[0]);
		CHECK(d[i].width == 0 || d[i].width == 4 || d[i].width == 8);
		if (!strcmp(d[i].name, "alloc_pages"))
			seen_list = d[i].width == 0 && d[i].level == PCPTUNE_LEVEL_CPU;
		if (!strcmp(d[i].name, "managed_pages"))
			seen_managed = *(const uint64_t *)((const char *)h + h->zones_off +
							   d[i].offset) == 16384;
	}
	CHECK(seen_list && seen_managed);
}

static void described_by_itself(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(description_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")), 0);
}

static void refusal_child(void)
{
	int listener;
	struct target t;
	struct pollfd p = {.events = POLLIN};

	make_folder();
	p.fd = listener = listen_at();
	pcpa_free(pcpa_alloc(0), 0);
	t = receive_hello(listener);
	answer(&t, EPROTO, "layout 1 is too new, 0 would be right");
	UNTIL(pcpa_attach_state() == PCPA_ATTACH_REFUSED);
	CHECK(!strcmp(pcpa_attach_reason(), "layout 1 is too new, 0 would be right"));
	/* the same socket is not asked again, however often the agent looks */
	for (int i = 0; i < 30; i++) {
		wake(&t);
		usleep(20000);
	}
	CHECK(poll(&p, 1, 0) == 0);
	/* another one is */
	drop_target(&t);
	unlink(path);
	close(listener);
	listener = listen_at();
	for (int i = 0; i < WAIT_MS && pcpa_attach_state() == PCPA_ATTACH_REFUSED; i++) {
		__atomic_add_fetch(&pcpa_heap.header->wake, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &pcpa_heap.header->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
		usleep(1000);
	}
	t = receive_hello(listener);
	accept_target(&t);
	end_daemon(&t, listener);
}

static void refused_with_a_reason(void **state)
{
	(void)state;
	assert_int_equal(in_child(refusal_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

/* For want of room is for now: the same socket is asked again. */
static void no_room_child(void)
{
	int listener;
	struct target t;

	t = first_hello(&listener);
	answer(&t, EUSERS, "1 targets are attached, max_targets allows no more");
	UNTIL(pcpa_attach_state() == PCPA_ATTACH_REFUSED);
	CHECK(!strcmp(pcpa_attach_reason(), "1 targets are attached, max_targets allows no more"));
	drop_target(&t);
	t = receive_hello(listener);
	accept_target(&t);
	end_daemon(&t, listener);
}

static void refused_for_want_of_room(void **state)
{
	(void)state;
	assert_int_equal(in_child(no_room_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

static void restart_child(void)
{
	int listener;
	struct target t;
	uint64_t id;

	t = first_hello(&listener);
	id = t.h->random_id;
	accept_target(&t);
	/* the daemon is gone, and comes back */
	wake(&t);
	drop_target(&t);
	close(listener);
	unlink(path);
	listener = listen_at();
	t = receive_hello(listener);
	CHECK(t.hello.flags & PCPTUNE_HELLO_RECONNECT);
	CHECK(t.h->random_id == id);
	accept_target(&t);
	end_daemon(&t, listener);
}

static void daemon_comes_back(void **state)
{
	(void)state;
	assert_int_equal(in_child(restart_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

/* A program that closes all descriptors and opens its own: ours are neither used nor closed. */
static void closed_child(void)
{
	int listener, n = 0, fds[64];
	struct target t;
	struct stat st;

	t = first_hello(&listener);
	accept_target(&t);
	for (int fd = 3; fd < 2000; fd++)
		if (fd != listener && fd != t.socket && fd != t.segment)
			close(fd);
	/* files of the program where ours were */
	for (int fd = 1000; fd < 1004; fd++) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		CHECK(dup2(null, fd) == fd);
		close(null);
		fds[n++] = fd;
	}
	for (int i = 0; i < 20; i++) {
		wake(&t);
		usleep(5000);
		pcpa_free(pcpa_alloc(0), 0);
	}
	UNTIL(pcpa_attach_state() == PCPA_ATTACH_NONE);
	for (int i = 0; i < n; i++)
		CHECK(!fstat(fds[i], &st) && S_ISCHR(st.st_mode));
	pcpa_attach_lock();
	CHECK(pcpa_segment_fd() == -1);
	pcpa_attach_unlock();
	fill_lists(1000);
	CHECK_AUDIT();
	end_daemon(&t, listener);
}

static void descriptors_closed_by_the_program(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* closing what another thread uses is just what TSan reports */
	skip();
#endif
	assert_int_equal(in_child(closed_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

static void no_daemon_child(void)
{
	make_folder();
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_attach_state() == PCPA_ATTACH_NONE);
	/* a stale socket file is no daemon either */
	close(listen_at());
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_attach_state() == PCPA_ATTACH_NONE);
	remove_folder();
}

static void no_daemon(void **state)
{
	(void)state;
	assert_int_equal(
		in_child(no_daemon_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")), 0);
}

/* Many targets at once fill the queue of the listener; the agent comes again soon. */
static void busy_child(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd, n = 0, peers[64];
	struct target t;

	make_folder();
	strcpy(a.sun_path, path);
	CHECK(!bind(listener, (struct sockaddr *)&a, sizeof(a)) && !listen(listener, 1));
	do {
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0 && n < 64);
		peers[n++] = fd;
	} while (!connect(fd, (struct sockaddr *)&a, sizeof(a)));
	CHECK(errno == EAGAIN);
	pcpa_free(pcpa_alloc(0), 0);
	CHECK(pcpa_attach_state() == PCPA_ATTACH_NONE);
	for (int i = 0; i < n - 1; i++)
		close(accept(listener, NULL, NULL));
	t = receive_hello(listener);
	accept_target(&t);
	drop_target(&t);
	for (int i = 0; i < n; i++)
		close(peers[i]);
	close(listener);
	remove_folder();
}

static void full_queue(void **state)
{
	(void)state;
	assert_int_equal(in_child(busy_child, SETTINGS("PCPALLOC_SIZE=64m", "PCPALLOC_AGENT=1")),
			 0);
}

/* ---- control and lease ---- */

static void control_child(void)
{
	int listener;
	struct target t;
	struct pcptune_cpu_block *b;
	uint64_t refused;

	make_folder();
	listener = listen_at();
	fill_lists(20000);
	t = receive_hello(listener);
	accept_target(&t);
	lease_for_ms(&t, 600000);
	b = cpu_of(&t, 0);
	CHECK(pcpa_pcp_pages(b) > 1000);
	/* an idle CPU is trimmed to a lowered high */
	steer(&t, 0, 500);
	UNTIL(__atomic_load_n(&b->pcp.ack_seq, __ATOMIC_ACQUIRE) == 1);
	UNTIL(pcpa_pcp_pages(b) <= 500);
	CHECK(pcpa_get(&b->pcp.high) == 500 && pcpa_get(&b->pcp.high_max) == 500);
	CHECK(pcpa_get(&b->zctr.trim_pages) > 0 && pcpa_get(&b->pcp.controls_adopted) == 1);
	/* too much is clamped, and said so */
	refused = pcpa_get(&pcpa_heap.proc->controls_refused);
	steer(&t, 0, 1u << 30);
	UNTIL(pcpa_get(&b->pcp.ack_seq) == 2);
	CHECK(pcpa_get(&b->pcp.high) == pcpa_get(&b->pcp.high_limit));
	CHECK(pcpa_get(&pcpa_heap.proc->controls_refused) == refused + 3);
	/* a CPU that never called takes them, too */
	steer(&t, 1, 321);
	UNTIL(pcpa_get(&cpu_of(&t, 1)->pcp.high) == 321);
	CHECK_AUDIT();
	/* the lease runs out: our own values again */
	lease_for_ms(&t, 50);
	wake(&t);
	UNTIL(pcpa_get(&b->pcp.high_max) == pcpa_heap.defaults[0].high_max);
	UNTIL(pcpa_get(&cpu_of(&t, 1)->pcp.high_max) == pcpa_heap.defaults[0].high_max);
	CHECK(pcpa_get(&pcpa_heap.proc->lease_expired) == 1);
	/* words without a lease are not taken; with a new one they are */
	steer(&t, 0, 400);
	usleep(100000);
	CHECK(pcpa_get(&b->pcp.ack_seq) == 2);
	lease_for_ms(&t, 600000);
	wake(&t);
	UNTIL(pcpa_get(&b->pcp.high) == 400);
	end_daemon(&t, listener);
}

static void control_words_and_lease(void **state)
{
	(void)state;
	assert_int_equal(in_child(control_child, SETTINGS("PCPALLOC_CPUS=2", "PCPALLOC_SIZE=1g",
							  "PCPALLOC_IDLE_MS=100000")),
			 0);
}

/* ---- by itself ---- */

static void decay_child(void)
{
	struct pcptune_cpu_block *b;
	uint64_t first;

	fill_lists(30000);
	b = pcpa_cpu_block(0, 0);
	first = pcpa_pcp_pages(b);
	CHECK(first > pcpa_get(&b->pcp.high_min));
	UNTIL(pcpa_get(&b->zctr.decay_pages) > 0);
	/* the agent has read the size of the caches, and the rules know */
	CHECK(!(pcpa_get(&b->pcp.flags) & PCPTUNE_RF_FREE_HIGH_BATCH) ==
	      (pcpa_cpu_cache_slice() <= 3 * 63));
	CHECK(pcpa_get(&b->zctr.decay_pages) <= 2016);
	CHECK_AUDIT();
}

/* Four threads on four virtual CPUs: the agent has none of them. */
static void *one_page(void *arg)
{
	*(uint32_t *)arg = pcpa_cpu_slot();
	return NULL;
}

static void slots_child(void)
{
	uint32_t slots[4] = {pcpa_alloc(0) ? pcpa_cpu_slot() : 9};

	UNTIL(pcpa_get(&pcpa_heap.proc->agent_ticks) > 0);
	for (int i = 1; i < 4; i++) {
		pthread_t t;

		CHECK(!pthread_create(&t, NULL, one_page, &slots[i]));
		pthread_join(t, NULL);
	}
	for (uint32_t i = 0; i < 4; i++)
		CHECK(slots[i] == i);
}

static void agent_takes_no_virtual_cpu(void **state)
{
	(void)state;
	assert_int_equal(in_child(slots_child, SETTINGS("PCPALLOC_CPUS=4", "PCPALLOC_SIZE=64m",
							"PCPALLOC_AGENT=1")),
			 0);
}

static void decays_without_a_daemon(void **state)
{
	(void)state;
	assert_int_equal(in_child(decay_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=1g")), 0);
}

static void idle_child(void)
{
	struct pcptune_cpu_block *b;

	fill_lists(10000);
	b = pcpa_cpu_block(0, 0);
	CHECK(pcpa_pcp_pages(b) > 0);
	UNTIL(pcpa_pcp_pages(b) == 0);
	CHECK_AUDIT();
}

static void idle_cpus_are_emptied(void **state)
{
	(void)state;
	assert_int_equal(in_child(idle_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=1g",
						       "PCPALLOC_IDLE_MS=200")),
			 0);
}

static size_t resident_pages(void)
{
	unsigned long size = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%lu %lu", &size, &resident) == 2);
	fclose(f);
	return resident;
}

/* A burst, then sleep: the memory goes back although nobody calls any more. */
static void burst_child(void)
{
	static void *p[20000];
	size_t before, peak;

	CHECK(pcpa_alloc_bulk(0, 1, p) == 1);
	before = resident_pages();
	CHECK(pcpa_alloc_bulk(0, 20000, p) == 20000);
	for (size_t i = 0; i < 20000; i++)
		memset(p[i], 1, 4096);
	peak = resident_pages();
	CHECK(peak > before + 19000);
	pcpa_free_bulk(0, 20000, p);
	UNTIL(resident_pages() < before + 6000);
	CHECK_AUDIT();
}

static void memory_goes_back(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* the shadow memory stays resident */
	skip();
#endif
	assert_int_equal(in_child(burst_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=1g",
							"PCPALLOC_IDLE_MS=200")),
			 0);
}

static void no_agent_child(void)
{
	char name[64];
	int tasks = 0;

	fill_lists(1000);
	for (int tid = getpid(); tid < getpid() + 20; tid++) {
		snprintf(name, sizeof(name), "/proc/self/task/%d", tid);
		tasks += !access(name, F_OK);
	}
	CHECK(tasks == 1);
	CHECK(pcpa_heap.header->flags & PCPTUNE_SEG_NO_AGENT);
}

static void without_agent(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	/* TSan has a thread of its own */
	skip();
#endif
	assert_int_equal(
		in_child(no_agent_child, SETTINGS("PCPALLOC_AGENT=0", "PCPALLOC_SIZE=64m")), 0);
}

/* The 40 bits of a list's operations are extended although a daemon holds the lease. */
static void long_life_child(void)
{
	struct pcpa_stats s = {.size = sizeof(s)};
	struct pcptune_cpu_block *b;

	pcpa_free(pcpa_alloc(0), 0);
	b = pcpa_cpu_block(0, 0);
	pcpa_put(&pcpa_heap.header->lease_until_ns, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		pcpa_pcp_lock(b);
		/* 2^39 more operations, half of them allocations */
		pcpa_put(&b->list[0].word, pcpa_get(&b->list[0].word) + (UINT64_C(1) << 63));
		pcpa_pcp_unlock(b);
		usleep(2200000);
	}
	CHECK(pcpa_get_stats(&s) == 0);
	CHECK(s.alloc_pages == (UINT64_C(1) << 39) + 1 && s.free_pages == s.alloc_pages);
	CHECK_AUDIT();
}

static void operations_do_not_wrap_under_a_lease(void **state)
{
	(void)state;
	assert_int_equal(in_child(long_life_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_AGENT=1")),
			 0);
}

static int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* A small program keeps to one thread; the daemon is told of it all the same. */
static void late_child(void)
{
	static void *p[1500];
	int before = threads();

	for (int i = 0; i < 200; i++)
		CHECK((p[i] = pcpa_alloc(0)));
	CHECK(threads() == before && !pcpa_agent_runs());
	for (int i = 200; i < 1500; i++)
		CHECK((p[i] = pcpa_alloc(0)));
	CHECK(pcpa_agent_runs());
	for (int n = 0; threads() != before + 1 && n < 1000; n++)
		usleep(1000);
	CHECK(threads() == before + 1);
	for (int i = 0; i < 1500; i++)
		pcpa_free(p[i], 0);
	CHECK_AUDIT();
}

static void agent_comes_with_growth(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* TSan has a thread of its own */
#endif
	assert_int_equal(in_child(late_child, SETTINGS("PCPALLOC_CPUS=1", "PCPALLOC_SIZE=64m")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_and_segment),
		cmocka_unit_test(agent_comes_with_growth),
		cmocka_unit_test(described_by_itself),
		cmocka_unit_test(refused_with_a_reason),
		cmocka_unit_test(refused_for_want_of_room),
		cmocka_unit_test(daemon_comes_back),
		cmocka_unit_test(descriptors_closed_by_the_program),
		cmocka_unit_test(no_daemon),
		cmocka_unit_test(full_queue),
		cmocka_unit_test(control_words_and_lease),
		cmocka_unit_test(agent_takes_no_virtual_cpu),
		cmocka_unit_test(decays_without_a_daemon),
		cmocka_unit_test(idle_cpus_are_emptied),
		cmocka_unit_test(memory_goes_back),
		cmocka_unit_test(without_agent),
		cmocka_unit_test(operations_do_not_wrap_under_a_lease),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
