/* SPDX-License-Identifier: MIT */
/*
 * A lock of two words: spins as long as spinning paid lately, then sleeps on a futex.
 *
 * word: 0 free, 1 held, 2 held and perhaps slept for. Not recursive, no owner: fork releases in
 * the child what the parent took. The futexes are private, since the lock is in private memory.
 *
 * Whoever comes by may take a free lock before one that was just woken can: that keeps the lock
 * busy, but could go against the same sleeper for seconds. So one that waited for
 * PCPA_LOCK_PATIENCE_NS counts itself in `hungry`, and gets the lock from a release by hand:
 * `grant` is 1, the word never becomes 0.
 *
 * A release is a load and a store: a locked instruction there would be a sixth of a short hold. So
 * a sleeper that marks the word between the two loses its mark, and nobody wakes it. That takes a
 * holder that is interrupted there, or one whose store is on its way longer than a sleeper needs to
 * fall asleep. Sleepers therefore never sleep for longer than PCPA_LOCK_PATIENCE_NS without
 * looking.
 */
#ifndef PCPA_LOCK_H
#define PCPA_LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct pcpa_lock {
	uint32_t word;
	uint32_t spins;	 /* running mean of the spins that led to a take; written by holders */
	uint32_t hungry; /* sleepers that are owed a hand-over */
	uint32_t grant;	 /* 1: the lock is held on behalf of whichever hungry one takes this */
};

#define PCPA_LOCK_PATIENCE_NS 1000000u

static inline bool pcpa_lock_try(struct pcpa_lock *lock)
{
	uint32_t free_word = 0;

	return __atomic_compare_exchange_n(&lock->word, &free_word, 1, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/* Waits as long as it takes. */
void pcpa_lock_take(struct pcpa_lock *lock);
void pcpa_lock_release_marked(struct pcpa_lock *lock);

static inline void pcpa_lock_release(struct pcpa_lock *lock)
{
	if (__builtin_expect(__atomic_load_n(&lock->word, __ATOMIC_RELAXED) == 1, 1))
		__atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
	else
		pcpa_lock_release_marked(lock);
}

/* In the child of a fork, which holds the lock: those who waited are not there any more. */
void pcpa_lock_forget_waiters(struct pcpa_lock *lock);

#endif
