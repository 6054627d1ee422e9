/* SPDX-License-Identifier: MIT */
/*
 * The lock: excludes, loses nobody, be it that his mark is wiped out, lets nobody wait while others
 * take it again and again, and is usable in the child of a fork that was made while others waited.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "allocator/lock.h"
#include "allocator/sys.h"

#define MS UINT64_C(1000000)

static struct pcpa_lock lock;
static uint32_t stop;
static uint64_t shared; /* under the lock */

static void hold_for(uint64_t ns)
{
	for (uint64_t start = pcpa_now_ns(); pcpa_now_ns() - start < ns;)
		;
}

/* As often as it can until told to stop. */
static void *take_again_and_again(void *unused)
{
	(void)unused;
	while (!pcpa_get(&stop)) {
		pcpa_lock_take(&lock);
		shared++;
		pcpa_lock_release(&lock);
	}
	return NULL;
}

/*
 * The lock is given up for no longer than it takes to take it again, but to one who is hungry. Who
 * takes it again only tries: had it to wait, it would become hungry, too.
 */
static void a_sleeper_is_not_passed_over(void **state)
{
	pthread_t other;

	(void)state;
	lock = (struct pcpa_lock){0};
	shared = 0;
	pcpa_put(&stop, 0);
	pcpa_lock_take(&lock);
	assert_int_equal(pthread_create(&other, NULL, take_again_and_again, NULL), 0);
	for (int i = 0; i < 50; i++) {
		uint64_t before = shared;

		while (pcpa_get(&lock.word) != 2 || !pcpa_get(&lock.hungry))
			pcpa_yield();
		pcpa_lock_release(&lock);
		while (!pcpa_lock_try(&lock))
			pcpa_yield();
		assert_true(shared > before);
	}
	pcpa_put(&stop, 1);
	pcpa_lock_release(&lock);
	pthread_join(other, NULL);
	assert_int_equal(lock.word | lock.hungry | lock.grant, 0);
}

struct waiter {
	pthread_t thread;
	uint64_t n;
};

static void *count(void *arg)
{
	struct waiter *w = arg;

	while (!pcpa_get(&stop)) {
		pcpa_lock_take(&lock);
		shared++;
		pcpa_put(&w->n, w->n + 1);
		if (w->n % 16 == 1)
			hold_for(MS / 4);
		pcpa_lock_release(&lock);
	}
	return NULL;
}

/* Whoever is passed over for ever runs into the alarm. */
static void excludes_and_loses_nobody(void **state)
{
	static struct waiter w[32];
	uint64_t sum = 0;

	(void)state;
	lock = (struct pcpa_lock){0};
	shared = 0;
	pcpa_put(&stop, 0);
	alarm(120);
	for (int i = 0; i < 32; i++)
		assert_int_equal(pthread_create(&w[i].thread, NULL, count, &w[i]), 0);
	for (int i = 0; i < 32; i++)
		while (pcpa_get(&w[i].n) < 20)
			usleep(1000);
	pcpa_put(&stop, 1);
	for (int i = 0; i < 32; i++) {
		pthread_join(w[i].thread, NULL);
		sum += w[i].n;
	}
	alarm(0);
	assert_int_equal(sum, shared);
	assert_int_equal(lock.word, 0);
	assert_int_equal(lock.hungry, 0);
	assert_int_equal(lock.grant, 0);
}

static void *take_once(void *unused)
{
	(void)unused;
	pcpa_lock_take(&lock);
	pcpa_lock_release(&lock);
	return NULL;
}

/*
 * As by a holder that looked at the word before the sleepers marked it. What they have left then is
 * time: who relies on being woken runs into the alarm.
 */
static void marks_are_lost(void **state)
{
	pthread_t t[4];

	(void)state;
	alarm(30);
	for (int round = 0; round < 20; round++) {
		uint32_t hungry = round % 2 ? 4 : 0;

		lock = (struct pcpa_lock){0};
		pcpa_lock_take(&lock);
		for (int i = 0; i < 4; i++)
			assert_int_equal(pthread_create(&t[i], NULL, take_once, NULL), 0);
		while (pcpa_get(&lock.word) != 2 || pcpa_get(&lock.hungry) < hungry)
			pcpa_yield();
		__atomic_store_n(&lock.word, 0, __ATOMIC_RELEASE);
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
		assert_int_equal(lock.word | lock.hungry | lock.grant, 0);
	}
	alarm(0);
}

static void a_child_does_not_wait_for_the_waiters_of_its_parent(void **state)
{
	pthread_t t[4];
	int status = -1;
	pid_t pid;

	(void)state;
	lock = (struct pcpa_lock){0};
	pcpa_lock_take(&lock);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, take_once, NULL), 0);
	while (pcpa_get(&lock.hungry) < 4)
		usleep(1000);
	pid = fork();
	if (!pid) {
		alarm(10);
		pcpa_lock_forget_waiters(&lock);
		pcpa_lock_release(&lock);
		take_once(NULL);
		_exit(lock.word ? 1 : 0);
	}
	pcpa_lock_release(&lock);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_is_not_passed_over),
		cmocka_unit_test(excludes_and_loses_nobody),
		cmocka_unit_test(marks_are_lost),
		cmocka_unit_test(a_child_does_not_wait_for_the_waiters_of_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
