/* SPDX-License-Identifier: MIT */
/*
 * What programs with threads do at fork and at their end, on plain malloc, for a test that runs
 * this with and without the preload library.
 *
 *   handlers  forks while another thread allocates below a lock that a fork handler takes, too
 *   leave     the first thread leaves by pthread_exit(); the process ends with the other one
 *   lock      locks what memory it has, as real-time programs do, and says how much that brought in
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int stop;

static void before(void)
{
	pthread_mutex_lock(&lock);
}

static void after(void)
{
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void at_start(void)
{
	pthread_atfork(before, after, after);
}

static void use(size_t size)
{
	void *volatile p[64];

	for (int i = 0; i < 64; i++)
		p[i] = malloc(size);
	for (int i = 0; i < 64; i++)
		free(p[i]);
}

static void *allocate_below_lock(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		pthread_mutex_lock(&lock);
		use(65536);
		pthread_mutex_unlock(&lock);
		usleep(50); /* libc's mutex is not fair: the forking thread must get its turn */
	}
	return NULL;
}

static int handlers(void)
{
	pthread_t t;
	int status = 0;

	if (pthread_create(&t, NULL, allocate_below_lock, NULL))
		return 1;
	for (int i = 0; i < 200 && !status; i++) {
		pid_t pid = fork();

		if (!pid) {
			use(9000);
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			status = 1;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	return status != 0;
}

static void *last(void *unused)
{
	(void)unused;
	use(8192);
	usleep(100000);
	puts("last");
	return NULL;
}

static int leave(void)
{
	pthread_t t;

	use(8192);
	if (pthread_create(&t, NULL, last, NULL) || pthread_detach(t))
		return 1;
	pthread_exit(NULL);
}

static long resident_pages(void)
{
	long all, resident = -1;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%ld %ld", &all, &resident) != 2)
		return -1;
	fclose(f);
	return resident;
}

/* Pages that become resident; nothing when locking is not allowed here. */
static int lock_memory(void)
{
	long before;

	use(8192);
	before = resident_pages();
	if (mlockall(MCL_CURRENT))
		return 0;
	printf("%ld\n", resident_pages() - before);
	use(65536);
	return 0;
}

int main(int argc, char **argv)
{
	alarm(20);
	if (argc == 2 && !strcmp(argv[1], "handlers"))
		return handlers();
	if (argc == 2 && !strcmp(argv[1], "leave"))
		return leave();
	if (argc == 2 && !strcmp(argv[1], "lock"))
		return lock_memory();
	return 2;
}
