/* SPDX-License-Identifier: MIT */
/*
 * The patterns of bench/peers, each as a unit that is repeated until the time is over.
 *
 * A unit is written once, over `take` and `give`, and made for every subject by SUBJECT(): the
 * calls are direct for all of them, and what lies around the calls is the same code. Every block
 * goes through keep(), which the compiler can not look into: no pair of calls can be removed,
 * moved or merged. Touching is done here, and only here, with one store to each page.
 *
 * Threads: a worker is written by its own thread; `cpu` and the exchange ring are atomic words.
 */
#ifndef BENCH_PEERS_PATTERNS_H
#define BENCH_PEERS_PATTERNS_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/peers_clock.h"

#ifndef ALWAYS_INLINE
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

#define UNIT_PAIRS   4096u /* pairs of a unit at least, so that a look at the clock costs nothing */
#define MIX_STEPS    8192u
#define MIX_LIVE     256u
#define RING_SLOTS   1024u
#define RING_SPINS   200u
#define MOST_THREADS 1024u

struct worker {
	void **block;
	size_t n; /* blocks of a burst */
	uint64_t pairs, pages;
	uint64_t end_ns;
	unsigned index;
	unsigned step;
	bool failed;
	uint64_t cpu_looks, cpu_same;
	struct histogram *times;
	_Atomic unsigned cpu;
} __attribute__((aligned(128)));

/* One writer puts blocks in at its place, one reader takes them out: an empty slot is NULL. */
static struct {
	_Atomic(void *) slot[RING_SLOTS];
	_Atomic bool closed __attribute__((aligned(128)));
} ring;

static struct {
	uint16_t slot;
	uint8_t order;
} mix[MIX_STEPS];

/* The same steps in every run: xorshift from a fixed seed. */
static inline void mix_init(void)
{
	uint64_t x = UINT64_C(0x9e3779b97f4a7c15);

	for (unsigned i = 0; i < MIX_STEPS; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		mix[i].slot = (uint16_t)((x >> 20) % MIX_LIVE);
		mix[i].order = (uint8_t)(x >> 60 & 3);
	}
}

ALWAYS_INLINE void *keep(void *p)
{
	__asm__ volatile("" : "+r"(p) : : "memory");
	return p;
}

typedef void *(*take_fn)(unsigned order);
typedef void (*give_fn)(void *p, unsigned order);

ALWAYS_INLINE void unit_pair(struct worker *w, take_fn take, give_fn give)
{
	for (unsigned i = 0; i < UNIT_PAIRS; i++) {
		void *p = keep(take(0));

		w->failed |= !p;
		give(p, 0);
	}
	w->pairs += UNIT_PAIRS;
	w->pages += UNIT_PAIRS;
}

ALWAYS_INLINE void one_burst(struct worker *w, take_fn take, give_fn give, bool touch, bool fifo)
{
	void **block = w->block;
	size_t i, n = w->n;

	for (i = 0; i < n; i++) {
		block[i] = keep(take(0));
		if (__builtin_expect(!block[i], 0)) {
			w->failed = true;
			break;
		}
		if (touch)
			*(volatile uint64_t *)block[i] = i;
	}
	n = i;
	for (i = 0; i < n; i++)
		give(keep(block[fifo ? i : n - 1 - i]), 0);
	w->pairs += n;
	w->pages += n;
}

ALWAYS_INLINE void unit_burst(struct worker *w, take_fn take, give_fn give, bool touch, bool fifo)
{
	for (size_t done = 0; done < UNIT_PAIRS && !w->failed; done += w->n)
		one_burst(w, take, give, touch, fifo);
}

/* A window of live blocks of orders 0 to 3; each step replaces one of them. */
ALWAYS_INLINE void unit_mixed(struct worker *w, take_fn take, give_fn give)
{
	void **block = w->block;
	uint8_t *order = (uint8_t *)(block + MIX_LIVE);

	for (unsigned i = 0; i < UNIT_PAIRS; i++) {
		unsigned at = w->step++ % MIX_STEPS, s = mix[at].slot;

		if (__builtin_expect(block[s] != NULL, 1))
			give(keep(block[s]), order[s]);
		order[s] = mix[at].order;
		block[s] = keep(take(order[s]));
		w->failed |= !block[s];
		w->pages += UINT64_C(1) << order[s];
	}
	w->pairs += UNIT_PAIRS;
}

/* What a window still holds at the end. */
ALWAYS_INLINE void end_mixed(struct worker *w, give_fn give)
{
	uint8_t *order = (uint8_t *)(w->block + MIX_LIVE);

	for (unsigned s = 0; s < MIX_LIVE; s++) {
		if (w->block[s])
			give(w->block[s], order[s]);
		w->block[s] = NULL;
	}
}

static inline void ring_wait(unsigned *spins)
{
	if (++*spins % RING_SPINS)
#ifdef __x86_64__
		__builtin_ia32_pause();
#else
		__asm__ volatile("" : : : "memory");
#endif
	else
		sched_yield();
}

ALWAYS_INLINE void unit_produce(struct worker *w, take_fn take)
{
	unsigned spins = 0;

	for (unsigned i = 0; i < UNIT_PAIRS && !w->failed; i++) {
		_Atomic(void *) *slot = &ring.slot[w->step++ % RING_SLOTS];
		void *p = keep(take(0));

		w->failed |= !p;
		while (atomic_load_explicit(slot, memory_order_acquire))
			ring_wait(&spins);
		atomic_store_explicit(slot, p, memory_order_release);
		w->pages++;
	}
}

/* Ends early when the ring is closed and empty. */
ALWAYS_INLINE void unit_consume(struct worker *w, give_fn give)
{
	unsigned spins = 0;

	for (unsigned i = 0; i < UNIT_PAIRS; i++) {
		_Atomic(void *) *slot = &ring.slot[w->step % RING_SLOTS];
		void *p;

		while (!(p = atomic_load_explicit(slot, memory_order_acquire))) {
			if (atomic_load_explicit(&ring.closed, memory_order_acquire) &&
			    !atomic_load_explicit(slot, memory_order_acquire))
				return;
			ring_wait(&spins);
		}
		atomic_store_explicit(slot, NULL, memory_order_release);
		w->step++;
		give(p, 0);
		w->pairs++;
	}
}

/* Bursts with each single call timed. */
ALWAYS_INLINE void unit_latency(struct worker *w, take_fn take, give_fn give)
{
	void **block = w->block;
	size_t i;

	for (i = 0; i < w->n; i++) {
		uint64_t a = ticks();

		block[i] = keep(take(0));
		histogram_add(w->times, ticks() - a);
		w->failed |= !block[i];
	}
	for (i = w->n; i--;) {
		uint64_t a = ticks();

		give(keep(block[i]), 0);
		histogram_add(w->times, ticks() - a);
	}
	w->pairs += w->n;
	w->pages += w->n;
}

/* What the driver calls: one function for each unit, made for each subject. */
struct units {
	void (*pair)(struct worker *w);
	void (*burst[2][2])(struct worker *w); /* [touch][fifo] */
	void (*mixed)(struct worker *w);
	void (*mixed_end)(struct worker *w);
	void (*exchange)(struct worker *w); /* worker 0 produces, 1 consumes */
	void (*latency)(struct worker *w);
};

#define UNIT(name, what, call)                      \
	static void name##_##what(struct worker *w) \
	{                                           \
		call;                               \
	}

#define SUBJECT(name, take, give)                                                                  \
	UNIT(name, pair, unit_pair(w, take, give))                                                 \
	UNIT(name, burst, unit_burst(w, take, give, false, false))                                 \
	UNIT(name, fifo, unit_burst(w, take, give, false, true))                                   \
	UNIT(name, touch, unit_burst(w, take, give, true, false))                                  \
	UNIT(name, touch_fifo, unit_burst(w, take, give, true, true))                              \
	UNIT(name, mixed, unit_mixed(w, take, give))                                               \
	UNIT(name, mixed_end, end_mixed(w, give))                                                  \
	UNIT(name, exchange, w->index ? unit_consume(w, give) : unit_produce(w, take))             \
	UNIT(name, latency, unit_latency(w, take, give))                                           \
	static const struct units name##_units = {                                                 \
		name##_pair,	 {{name##_burst, name##_fifo}, {name##_touch, name##_touch_fifo}}, \
		name##_mixed,	 name##_mixed_end,                                                 \
		name##_exchange, name##_latency}

#endif
