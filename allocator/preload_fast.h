/* SPDX-License-Identifier: MIT */
/*
 * malloc and free where nothing is unusual: a section on a list of this CPU, and little around it.
 *
 * A request of a size in question (one comparison) becomes a block of order 0 to 3, which is
 * popped, and the call is counted by one addition to a word of the thread. A block to be freed is
 * ours if it begins at a page of this CPU's zone; the tag of the page tells its order, and it is
 * pushed. Nothing here calls anything or takes a lock: what is empty, full, aborted, of another
 * size, of the next malloc or wrong is left to the slow path, which asks all again.
 *
 * Nothing is written about a block. So one that is freed twice while it is on a list is noticed
 * where its second copy reaches the zone, as with pcpa_free().
 *
 * Which list a block goes to is known late: the page is found by the address, and that has often
 * just been popped, so that each call would wait for the one before. Where all that the thread
 * asked for lately was of one order, that order is guessed, and only confirmed by the tag. Where
 * orders are mixed, wrong guesses would cost more than waiting, and none is made.
 *
 * pcpa_fast.preload is written after the first block was served, `sizes` last (release), which goes
 * back to 0 when the process ends. preload_mine belongs to its thread.
 */
#ifndef PCPALLOC_PRELOAD_FAST_H
#define PCPALLOC_PRELOAD_FAST_H

#include <pcptune/rules.h>

#include "allocator/preload.h"
#include "allocator/rings.h"
#include "allocator/rseq.h"

/* Where there is one zone alone: what lies outside is not ours. bytes: else 0; written last. */
struct preload_only_zone {
	uintptr_t base;
	size_t bytes;
};

extern struct preload_only_zone preload_only_zone;

#define PRELOAD_FAST_PAGES (1u << PCPTUNE_COSTLY_ORDER)
#define PRELOAD_FAST_SIZE  ((size_t)PRELOAD_FAST_PAGES << PCPTUNE_PAGE_SHIFT)

/*
 * The order of a size is the place of the highest bit of size - 1, less that of 4095. So sizes up
 * to half a page are left to the slow path.
 */
#define PRELOAD_RANK	   (PCPTUNE_PAGE_SHIFT - 1)
#define PRELOAD_FAST_LEAST ((size_t)PCPA_PAGE_SIZE / 2 + 1)

/*
 * gathered: bits 0 to 31 bytes, 32 to 51 pages, 52 to 63 how many calls more may be gathered. When
 * there are none, the addition for one more does not carry out of the word.
 */
struct preload_mine {
	uint64_t gathered;
	/* the tag of a block in use of the order of all that was gathered last, or: */
	uint32_t guess;
};

/* Before there are sections a thread must not enter one: their `offset` is not set. */
enum { PRELOAD_NO_SECTIONS, PRELOAD_NO_GUESS };
#define PRELOAD_GUESS ((uint32_t)PCPA_IN_USE << 8)

extern PRELOAD_TLS struct preload_mine preload_mine;

#define PRELOAD_GATHER_MAX  64u
#define PRELOAD_PAGES_SHIFT 32u
#define PRELOAD_CALLS_SHIFT 52u
#define PRELOAD_PAGES_MASK  ((1u << (PRELOAD_CALLS_SHIFT - PRELOAD_PAGES_SHIFT)) - 1)
_Static_assert(PRELOAD_GATHER_MAX *(uint64_t)PCPA_MAX_EXACT >> PRELOAD_PAGES_SHIFT == 0, "bytes");
_Static_assert(PRELOAD_GATHER_MAX *(uint64_t)PCPA_MAX_EXACT / 4096 <= PRELOAD_PAGES_MASK, "pages");

/* What one call of so many pages adds, but for the bytes. */
static inline uint64_t preload_counted(size_t pages)
{
	return ((uint64_t)pages << PRELOAD_PAGES_SHIFT) - (UINT64_C(1) << PRELOAD_CALLS_SHIFT);
}

/* ---- the sections, from the pieces of pcpalloc_inline.h and rseq_sections.h ---- */

#ifdef PCPA_RSEQ

#if defined(__x86_64__)

/* The list of order 0 of this CPU; the others follow it. */
#define PRELOAD_ASM_FIRST_LIST            \
	"movl %%fs:4(%[area]), %k[l]\n\t" \
	"cmpl (%[fast]), %k[l]\n\t"       \
	"jae %l[no]\n\t"                  \
	"shlq $5, %[l]\n\t"               \
	"movq %c[own](%[fast], %[l]), %[l]\n\t"

/* After PCPA_ASM_FIND: tag and kind of the page are those of a block in use, and of no row. */
#define PRELOAD_ASM_TAG                   \
	"movq 48(%[l]), %[w]\n\t"         \
	"shlq $4, %[i]\n\t"               \
	"cmpl %k[tag], 8(%[w], %[i])\n\t" \
	"jne %l[no]\n\t"

/*
 * The same for any order with a list, instead of PCPA_ASM_FIND, and l becomes that list. How far it
 * is from the first one stands beside the tag, so that nothing waits for the tag but its check, and
 * that this is one of our pages is checked while the descriptor is on its way. All that follows
 * waits for where the list is, and the calls after this one for what follows.
 */
#define PRELOAD_ASM_LIST_BY_PAGE    \
	"movq %[block], %[i]\n\t"   \
	"subq 32(%[l]), %[i]\n\t"   \
	"movq %[i], %[w]\n\t"       \
	"shrq $8, %[i]\n\t"         \
	"rorq $12, %[w]\n\t"        \
	"addq 48(%[l]), %[i]\n\t"   \
	"cmpq 40(%[l]), %[w]\n\t"   \
	"jae %l[no]\n\t"            \
	"movl 8(%[i]), %k[w]\n\t"   \
	"subl %[in_use], %k[w]\n\t" \
	"cmpl %[last], %k[w]\n\t"   \
	"ja %l[no]\n\t"             \
	"movl 12(%[i]), %k[i]\n\t"  \
	"addq %[i], %[l]\n\t"

/* Tags are as good an index as orders: the difference goes into the instruction's constant. */
#define PRELOAD_BIAS PRELOAD_GUESS

static inline uint64_t preload_rank(size_t size)
{
	uint64_t rank;

	/* the compiler does not know that all 64 bits are written */
	__asm__("bsrq %1, %0" : "=r"(rank) : "r"(size - 1) : "cc");
	return rank;
}

#else

#define PRELOAD_ASM_FIRST_LIST                \
	"ldr %w[l], [%[area], #4]\n\t"        \
	"ldar %w[w], [%[fast]]\n\t"           \
	"cmp %w[l], %w[w]\n\t"                \
	"b.hs %l[no]\n\t"                     \
	"add %[l], %[fast], %[l], lsl #5\n\t" \
	"ldr %[l], [%[l], %c[own]]\n\t"

#define PRELOAD_ASM_TAG                    \
	"ldr %[w], [%[l], #48]\n\t"        \
	"add %[w], %[w], %[i], lsl #4\n\t" \
	"ldr %w[w], [%[w], #8]\n\t"        \
	"cmp %w[w], %w[tag]\n\t"           \
	"b.ne %l[no]\n\t"

#define PRELOAD_ASM_LIST_BY_PAGE           \
	PCPA_ASM_FIND                      \
	"ldr %[w], [%[l], #48]\n\t"        \
	"add %[w], %[w], %[i], lsl #4\n\t" \
	"ldr %w[i], [%[w], #8]\n\t"        \
	"sub %w[i], %w[i], %[in_use]\n\t"  \
	"cmp %w[i], %[last]\n\t"           \
	"b.hi %l[no]\n\t"                  \
	"ldr %w[i], [%[w], #12]\n\t"       \
	"add %[l], %[l], %[i]\n\t"

#define PRELOAD_BIAS 0u /* a constant of that size does not fit */

static inline uint64_t preload_rank(size_t size)
{
	return 63u ^ (unsigned)__builtin_clzl(size - 1);
}

#endif

static inline __attribute__((always_inline)) bool preload_pop(uint64_t rank, void **ret_block)
{
	uint64_t l, w, i, r;

	__asm__ volatile goto(
		PCPA_ASM_BEGIN(no) PCPA_ASM_OWN_LIST PCPA_ASM_POP
		: [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i), [r] PCPA_RETURN_IN(r)
		: [area] "r"(PCPA_AREA), [fast] "r"(&pcpa_fast), [order] "r"(rank),
		  [own] "i"((long)offsetof(struct pcpa_fast, own) -
			    (long)(PRELOAD_RANK * sizeof(void *)))
		: "memory", "cc"
		: no);
	*ret_block = (void *)r;
	return true;
no:
	return false;
}

static inline __attribute__((always_inline)) bool preload_push_guessed(void *block, uint64_t tag)
{
	uint64_t l, w, i;

	__asm__ volatile goto(PCPA_ASM_BEGIN(no)
				      PCPA_ASM_OWN_LIST PCPA_ASM_FIND PRELOAD_ASM_TAG PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : [area] "r"(PCPA_AREA), [fast] "r"(&pcpa_fast),
				[order] "r"(tag - PRELOAD_GUESS + PRELOAD_BIAS),
				[own] "i"((long)offsetof(struct pcpa_fast, own) -
					  (long)(PRELOAD_BIAS * sizeof(void *))),
				[block] "r"(block), [tag] "r"(tag)
			      : "memory", "cc"
			      : no);
	return true;
no:
	return false;
}

static inline __attribute__((always_inline)) bool preload_push(void *block)
{
	uint64_t l, w, i;

	__asm__ volatile goto(PCPA_ASM_BEGIN(no)
				      PRELOAD_ASM_FIRST_LIST PRELOAD_ASM_LIST_BY_PAGE PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : [area] "r"(PCPA_AREA), [fast] "r"(&pcpa_fast),
				[own] "i"(offsetof(struct pcpa_fast, own)), [block] "r"(block),
				[in_use] "i"(PCPA_IN_USE << 8), [last] "i"(PCPTUNE_COSTLY_ORDER)
			      : "memory", "cc"
			      : no);
	return true;
no:
	return false;
}

_Static_assert(PCPA_OWN_ROW * sizeof(void *) == 32 && PCPA_TWIN_STRIDE < INT32_MAX &&
		       sizeof(struct pcpa_page) == 16 && offsetof(struct pcpa_page, tag) == 8 &&
		       offsetof(struct pcpa_page, kind) == 10 &&
		       offsetof(struct pcpa_page, stamp) == 12 && PCPA_BACKED == 0,
	       "the sections know these");

#else

static inline uint64_t preload_rank(size_t size)
{
	(void)size;
	return PRELOAD_RANK;
}

static inline bool preload_pop(uint64_t rank, void **ret_block)
{
	(void)rank, (void)ret_block;
	return false;
}

static inline bool preload_push_guessed(void *block, uint64_t tag)
{
	(void)block, (void)tag;
	return false;
}

static inline bool preload_push(void *block)
{
	(void)block;
	return false;
}

#endif

/* ---- what malloc and free begin with ---- */

static inline bool preload_fast_wants(size_t size)
{
#if defined(__x86_64__) && defined(PCPA_RSEQ)
	/* the processor keeps loads in order, and atomic ones would be two instructions more */
	bool wants = __builtin_expect(size - pcpa_fast.preload.lo < pcpa_fast.preload.sizes, 1);

	__atomic_signal_fence(__ATOMIC_ACQUIRE);
	return wants;
#else
	size_t sizes = __atomic_load_n(&pcpa_fast.preload.sizes, __ATOMIC_ACQUIRE);

	return size - pcpa_get(&pcpa_fast.preload.lo) < sizes;
#endif
}

/* false: the slow path has the say. */
static inline __attribute__((always_inline)) bool preload_fast_alloc(size_t size, void **ret)
{
	uint64_t counted, rank;
	void *p;

	if (!preload_fast_wants(size))
		return false;
	rank = preload_rank(size);
	if (!preload_pop(rank, &p))
		return false;
	counted = pcpa_fast.preload.counted[rank - PRELOAD_RANK] + size;
	if (__builtin_expect(
		    !__builtin_add_overflow(preload_mine.gathered, counted, &preload_mine.gathered),
		    0))
		p = preload_zone_counted(p, counted);
	*ret = p;
	return true;
}

/* false: the slow path has the say. */
static inline __attribute__((always_inline)) bool preload_fast_free(void *p)
{
	uint32_t guess;

	if ((uintptr_t)p % PCPA_PAGE_SIZE)
		return false;
	guess = preload_mine.guess;
	if (__builtin_expect(guess > PRELOAD_NO_GUESS, 1))
		return preload_push_guessed(p, guess);
	return guess == PRELOAD_NO_GUESS && preload_push(p);
}

/* true: surely not ours, be it NULL. */
static inline bool preload_fast_foreign(const void *p)
{
	size_t bytes = __atomic_load_n(&preload_only_zone.bytes, __ATOMIC_ACQUIRE);

	return bytes && (uintptr_t)p - preload_only_zone.base >= bytes;
}

#endif
