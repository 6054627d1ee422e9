/* SPDX-License-Identifier: MIT */
/*
 * A lock of two words: spins as long as spinning paid lately, then sleeps on a futex.
 *
 * word: 0 free, 1 held, 2 held and perhaps slept for. Not recursive, no owner: fork releases in
 * the child what the parent took. The futex is private, since the lock is in private memory.
 */
#ifndef PCPA_LOCK_H
#define PCPA_LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct pcpa_lock {
	uint32_t word;
	uint32_t spins; /* running mean of the spins that led to a take; written by holders */
};

static inline bool pcpa_lock_try(struct pcpa_lock *lock)
{
	uint32_t free_word = 0;

	return __atomic_compare_exchange_n(&lock->word, &free_word, 1, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/* Waits as long as it takes. */
void pcpa_lock_take(struct pcpa_lock *lock);
void pcpa_lock_release(struct pcpa_lock *lock);

#endif
