/* SPDX-License-Identifier: MIT */
/*
 * The waiting half of the lock.
 *
 * How long to spin is learnt: the mean of what recent takers needed, so that a lock whose holder
 * sleeps (more threads than CPUs) is not spun for, and one that is held for a microsecond is. A
 * taker that slept once marks the word 2 for good measure: it can not know whether others sleep,
 * and one needless wake-up is cheaper than a lost one.
 */
#include <errno.h>
#include <linux/futex.h>

#include "allocator/lock.h"
#include "allocator/sys.h"

#define SPIN_MAX 200u

static bool spin_for(struct pcpa_lock *lock)
{
	uint32_t most = pcpa_get(&lock->spins) * 2 + 10, n;

	if (most > SPIN_MAX)
		most = SPIN_MAX;
	for (n = 0; n < most; n++) {
		if (!pcpa_get(&lock->word) && pcpa_lock_try(lock)) {
			uint32_t mean = pcpa_get(&lock->spins);

			pcpa_put(&lock->spins, mean + n / 8 - mean / 8);
			return true;
		}
		pcpa_relax();
	}
	return false;
}

void pcpa_lock_take(struct pcpa_lock *lock)
{
	int saved = errno;

	if (pcpa_lock_try(lock) || spin_for(lock))
		return;
	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
	/* sleeping it was: spin less next time */
	pcpa_put(&lock->spins, pcpa_get(&lock->spins) / 2);
	errno = saved;
}

void pcpa_lock_release(struct pcpa_lock *lock)
{
	int saved = errno;

	if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = saved;
}
