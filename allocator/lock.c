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

static void sleep_on(uint32_t *word, uint32_t value, const struct timespec *most)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most, NULL, 0);
}

static void wake_one(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/*
 * The patience is over. `hungry` is counted up before the word is set to 2, and the release of a
 * marked word looks at it after the word was set to 0 (all in one total order): either we find the
 * word 0 and have the lock, or some holder from now on finds the word 2, then us, and hands over;
 * or he wipes our mark out, and we set it again. Nobody leaves but as the owner, and an owner
 * counts himself out first. So an owner who sees somebody hungry can rely on him to take the grant.
 * While one is on its way the word is not 0.
 */
static void wait_hungry(struct pcpa_lock *lock)
{
	struct timespec rest = {0, PCPA_LOCK_PATIENCE_NS};
	uint32_t granted = 1;

	__atomic_fetch_add(&lock->hungry, 1, __ATOMIC_SEQ_CST);
	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST)) {
		sleep_on(&lock->grant, 0, &rest);
		if (__atomic_compare_exchange_n(&lock->grant, &granted, 0, false, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			break;
		granted = 1;
	}
	__atomic_fetch_sub(&lock->hungry, 1, __ATOMIC_SEQ_CST);
}

static void wait_asleep(struct pcpa_lock *lock)
{
	uint64_t start = pcpa_now_ns(), waited = 0;

	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE)) {
		struct timespec rest = {0, (long)(PCPA_LOCK_PATIENCE_NS - waited)};

		sleep_on(&lock->word, 2, &rest);
		waited = pcpa_now_ns() - start;
		if (waited >= PCPA_LOCK_PATIENCE_NS) {
			wait_hungry(lock);
			return;
		}
	}
}

void pcpa_lock_take(struct pcpa_lock *lock)
{
	int saved = errno;

	if (pcpa_lock_try(lock) || spin_for(lock))
		return;
	wait_asleep(lock);
	/* sleeping it was: spin less next time */
	pcpa_put(&lock->spins, pcpa_get(&lock->spins) / 2);
	errno = saved;
}

/* The word is 2 and ours. */
void pcpa_lock_release_marked(struct pcpa_lock *lock)
{
	int saved = errno;

	for (;;) {
		if (__atomic_load_n(&lock->hungry, __ATOMIC_SEQ_CST)) {
			__atomic_store_n(&lock->grant, 1, __ATOMIC_RELEASE);
			wake_one(&lock->grant);
			break;
		}
		__atomic_exchange_n(&lock->word, 0, __ATOMIC_SEQ_CST);
		wake_one(&lock->word);
		/*
		 * one who became hungry in between: is the word 0, we are the holder who hands over
		 */
		if (!__atomic_load_n(&lock->hungry, __ATOMIC_SEQ_CST) ||
		    __atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST))
			break;
	}
	errno = saved;
}

void pcpa_lock_forget_waiters(struct pcpa_lock *lock)
{
	pcpa_put(&lock->hungry, 0);
	pcpa_put(&lock->grant, 0);
	pcpa_put(&lock->word, 1);
}
