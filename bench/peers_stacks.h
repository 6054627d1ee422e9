/* SPDX-License-Identifier: MIT */
/*
 * Bare stacks: what handing out a page costs when nothing else is done. They are the limits that
 * the allocators are compared to, not allocators: no counters, no checks, nothing is given back.
 *
 *   tls      an array for each thread: what is possible without sharing
 *   rseq     an array for each CPU under restartable sequences: what is possible with lists that
 *            belong to CPUs (x86-64 only)
 *   trylock  an array for each CPU under a lock word: the price of one locked instruction
 *
 * Each is an array of pointers with a count in front, one for each order. An empty one takes
 * POOL_BATCH blocks from a common pool under a mutex, a full one gives as many back, so that
 * blocks freed by another thread come round again. The pool cuts new blocks from one reserved
 * range that is never returned.
 *
 * Who may write what: a thread its own tls arrays; a holder of the lock word, or the committing
 * store of a section on that very CPU, the arrays of a CPU; a holder of the mutex the pool.
 * This file is included by one program and keeps its state in static variables.
 */
#ifndef BENCH_PEERS_STACKS_H
#define BENCH_PEERS_STACKS_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define RSEQ_SIZE   __rseq_size
#define RSEQ_OFFSET __rseq_offset
#else /* before glibc 2.35 */
#define RSEQ_SIZE   0
#define RSEQ_OFFSET ((ptrdiff_t)0)
#endif

#define STACK_ORDERS 4u
#define STACK_CAP    40960u
#define STACK_SHIFT  20	 /* bytes between the stacks of two CPUs or orders, log2 */
#define STACK_OFFSET 448 /* off the page start: callers touch the starts of their pages */
#define STACK_SLOTS  64	 /* bytes from a stack's start to its first slot */
#define POOL_BATCH   256u
#define POOL_RANGE   (UINT64_C(16) << 30)
#define POOL_CAP     (UINT64_C(1) << 22) /* pointers of an order: as many pages as the range has */

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define COLD	      static __attribute__((noinline, cold))

struct bare_stack {
	uint64_t n;
	uint32_t lock;
	char pad[STACK_SLOTS - 12];
	void *slot[STACK_CAP];
};

_Static_assert(offsetof(struct bare_stack, slot) == STACK_SLOTS, "the sections use this offset");
_Static_assert(sizeof(struct bare_stack) + STACK_OFFSET <= 1u << STACK_SHIFT, "stride");

static struct {
	pthread_mutex_t lock;
	void **block[STACK_ORDERS];
	size_t n[STACK_ORDERS];
	char *fresh, *end;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char *cpu_stacks[STACK_ORDERS]; /* of CPU 0, that of CPU c is c << STACK_SHIFT further */
static __thread char *own_stacks;      /* of order 0, the others follow at the same distance */

static void *reserve(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Before any other call; false: no address space. */
static bool stacks_init(void)
{
	size_t cpus = (size_t)get_nprocs_conf();

	pool.fresh = reserve(POOL_RANGE);
	pool.end = pool.fresh + POOL_RANGE;
	if (!pool.fresh)
		return false;
	for (unsigned o = 0; o < STACK_ORDERS; o++) {
		pool.block[o] = reserve(POOL_CAP * sizeof(void *));
		cpu_stacks[o] = reserve(cpus << STACK_SHIFT);
		if (!pool.block[o] || !cpu_stacks[o])
			return false;
		cpu_stacks[o] += STACK_OFFSET;
	}
	return true;
}

/* How many of n blocks there were: less only at the end of the range. */
static size_t pool_take(unsigned order, void **block, size_t n)
{
	size_t got = 0, bytes = (size_t)4096 << order;

	pthread_mutex_lock(&pool.lock);
	while (got < n && pool.n[order])
		block[got++] = pool.block[order][--pool.n[order]];
	for (; got < n && pool.fresh + bytes <= pool.end; pool.fresh += bytes)
		block[got++] = pool.fresh;
	pthread_mutex_unlock(&pool.lock);
	return got;
}

/* There is room for every block that was ever cut. */
static void pool_give(unsigned order, void *const *block, size_t n)
{
	pthread_mutex_lock(&pool.lock);
	for (size_t i = 0; i < n && pool.n[order] < POOL_CAP; i++)
		pool.block[order][pool.n[order]++] = block[i];
	pthread_mutex_unlock(&pool.lock);
}

/* ---- a stack that nobody else can write now ---- */

COLD bool stack_refill(struct bare_stack *s, unsigned order)
{
	s->n = pool_take(order, s->slot, POOL_BATCH);
	return s->n > 0;
}

COLD void stack_drain(struct bare_stack *s, unsigned order)
{
	s->n -= POOL_BATCH;
	pool_give(order, s->slot + s->n, POOL_BATCH);
}

ALWAYS_INLINE void *stack_pop(struct bare_stack *s, unsigned order)
{
	if (__builtin_expect(!s->n, 0) && !stack_refill(s, order))
		return NULL;
	return s->slot[--s->n];
}

ALWAYS_INLINE void stack_push(struct bare_stack *s, void *p, unsigned order)
{
	if (__builtin_expect(s->n == STACK_CAP, 0))
		stack_drain(s, order);
	s->slot[s->n++] = p;
}

/* ---- tls ---- */

COLD bool own_init(void)
{
	char *map = reserve((size_t)STACK_ORDERS << STACK_SHIFT);

	own_stacks = map ? map + STACK_OFFSET : NULL;
	return map != NULL;
}

ALWAYS_INLINE void *tls_take(unsigned order)
{
	if (__builtin_expect(!own_stacks, 0) && !own_init())
		return NULL;
	return stack_pop((struct bare_stack *)(own_stacks + ((size_t)order << STACK_SHIFT)), order);
}

ALWAYS_INLINE void tls_give(void *p, unsigned order)
{
	if (__builtin_expect(!own_stacks, 0) && !own_init())
		return;
	stack_push((struct bare_stack *)(own_stacks + ((size_t)order << STACK_SHIFT)), p, order);
}

/* ---- trylock ---- */

/* The CPU of now; from the registered area where there is one, which is cheaper than the call. */
ALWAYS_INLINE unsigned this_cpu(void)
{
	if (RSEQ_SIZE) {
		const char *self = __builtin_thread_pointer();

		return *(const volatile uint32_t *)(self + RSEQ_OFFSET);
	}
	return (unsigned)sched_getcpu();
}

/* The stack of this CPU with its lock held, or NULL: somebody else has it. */
ALWAYS_INLINE struct bare_stack *trylock_enter(unsigned order)
{
	struct bare_stack *s =
		(struct bare_stack *)(cpu_stacks[order] + ((size_t)this_cpu() << STACK_SHIFT));
	uint32_t is_free = 0;

	return __atomic_compare_exchange_n(&s->lock, &is_free, 1, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED)
		       ? s
		       : NULL;
}

ALWAYS_INLINE void *trylock_take(unsigned order)
{
	struct bare_stack *s = trylock_enter(order);
	void *p = NULL;

	if (__builtin_expect(!s, 0))
		return pool_take(order, &p, 1) ? p : NULL;
	p = stack_pop(s, order);
	__atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
	return p;
}

ALWAYS_INLINE void trylock_give(void *p, unsigned order)
{
	struct bare_stack *s = trylock_enter(order);

	if (__builtin_expect(!s, 0)) {
		pool_give(order, &p, 1);
		return;
	}
	stack_push(s, p, order);
	__atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
}

/* ---- rseq ---- */

/* NULL, or why there are no restartable sequences here. */
static const char *rseq_missing(void)
{
#ifndef __x86_64__
	return "the sections are written for x86-64 only";
#else
	return RSEQ_SIZE ? NULL : "the C library has not registered restartable sequences";
#endif
}

#ifdef __x86_64__
/*
 * A section runs from 1: to 2:, its last instruction commits. When the thread is preempted,
 * migrated or signalled in between, the kernel continues at 4:, which starts again. The
 * descriptor is stored in the thread's registered area (offset 8; the CPU is at offset 4).
 */
#define RSEQ_BEGIN                              \
	".pushsection __rseq_cs, \"aw\"\n\t"    \
	".balign 32\n"                          \
	"9:\t.long 0, 0\n\t"                    \
	".quad 1f, 2f - 1f, 4f\n\t"             \
	".popsection\n\t"                       \
	".pushsection __rseq_abort, \"ax\"\n\t" \
	".byte 0x0f, 0xb9, 0x3d\n\t"            \
	".long 0x53053053\n"                    \
	"4:\tjmp 5f\n\t"                        \
	".popsection\n"                         \
	"5:\tleaq 9b(%%rip), %%rax\n\t"         \
	"movq %%rax, %%fs:8(%[area])\n"         \
	"1:\tmovl %%fs:4(%[area]), %%eax\n\t"   \
	"shlq %[shift], %%rax\n\t"              \
	"addq %[base], %%rax\n\t"               \
	"movq (%%rax), %%rcx\n\t"

/* false: full */
ALWAYS_INLINE bool rseq_push(void *p, unsigned order)
{
	__asm__ goto(RSEQ_BEGIN "cmpq %[cap], %%rcx\n\t"
				"jae %l[full]\n\t"
				"movq %[p], 64(%%rax, %%rcx, 8)\n\t"
				"addq $1, %%rcx\n\t"
				"movq %%rcx, (%%rax)\n"
				"2:\n"
		     :
		     : [area] "r"(RSEQ_OFFSET), [base] "r"(cpu_stacks[order]),
		       [shift] "i"(STACK_SHIFT), [cap] "i"(STACK_CAP), [p] "r"(p)
		     : "rax", "rcx", "memory", "cc"
		     : full);
	return true;
full:
	return false;
}

/* NULL: empty */
ALWAYS_INLINE void *rseq_pop(unsigned order)
{
	void *p;

	__asm__ goto(
		RSEQ_BEGIN "subq $1, %%rcx\n\t"
			   "jb %l[empty]\n\t"
			   "movq 64(%%rax, %%rcx, 8), %[p]\n\t"
			   "movq %%rcx, (%%rax)\n"
			   "2:\n"
		: [p] "=&r"(p)
		: [area] "r"(RSEQ_OFFSET), [base] "r"(cpu_stacks[order]), [shift] "i"(STACK_SHIFT)
		: "rax", "rcx", "memory", "cc"
		: empty);
	return p;
empty:
	return NULL;
}
#else
ALWAYS_INLINE bool rseq_push(void *p, unsigned order)
{
	(void)p, (void)order;
	return false;
}

ALWAYS_INLINE void *rseq_pop(unsigned order)
{
	(void)order;
	return NULL;
}
#endif

/* The thread may move between any two pushes: each block lands on the CPU of its moment. */
COLD void *rseq_refill(unsigned order)
{
	void *block[POOL_BATCH];
	size_t n = pool_take(order, block, POOL_BATCH);

	if (!n)
		return NULL;
	while (n > 1 && rseq_push(block[n - 1], order))
		n--;
	if (n > 1)
		pool_give(order, block + 1, n - 1);
	return block[0];
}

COLD void rseq_drain(void *p, unsigned order)
{
	void *block[POOL_BATCH] = {p};
	size_t n = 1;

	while (n < POOL_BATCH && (block[n] = rseq_pop(order)))
		n++;
	pool_give(order, block, n);
}

ALWAYS_INLINE void *rseq_take(unsigned order)
{
	void *p = rseq_pop(order);

	return __builtin_expect(p != NULL, 1) ? p : rseq_refill(order);
}

ALWAYS_INLINE void rseq_give(void *p, unsigned order)
{
	if (__builtin_expect(!rseq_push(p, order), 0))
		rseq_drain(p, order);
}

#endif
