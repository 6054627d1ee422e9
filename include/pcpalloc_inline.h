/* SPDX-License-Identifier: MIT */
/*
 * pcpa_alloc() and pcpa_free() without a call, for those who want the last nanosecond.
 *
 *   void *pcpa_alloc_inline(unsigned order);
 *   void pcpa_free_inline(void *block, unsigned order);
 *
 * They do what the exported functions do, may be mixed with them freely, and leave to them whatever
 * is unusual: another order than 0 to 3, a list that is empty or full, an interruption, a mode
 * without restartable sequences, the first allocation. Where they can not be had (another machine,
 * an older compiler or C library, -DPCPA_NO_INLINE) they are the exported functions.
 *
 * What is checked here is what pcpa_free() checks: a free of an address that is in no zone of ours,
 * or not aligned to its order, is reported at once. That the block was allocated, and with this
 * order, is seen when it reaches the zone, and until then such a block may be handed out again. Use
 * PCPALLOC_CHECK=1 while looking for such a fault.
 *
 * Versions. What follows knows the lists of a CPU by offsets. The symbol PCPA_LISTS carries the
 * version of that layout in its name. A library with another layout goes on exporting the old
 * symbol with lists that are never more than empty: programs that were compiled before go on by the
 * exported functions.
 *
 * Unloading. A shared object that uses these must stay loaded (link it with -z nodelete): the
 * kernel may look at the last section of a thread long after it has ended.
 *
 * The idea of the code: allocator/rseq.h. A section is what lies between labels 1 and 2; its last
 * store commits. When the thread is interrupted in it, the kernel sends it to label 4, which lies
 * in a text section apart. No instruction is locked, and nothing is called. (The question mark in
 * the flags of those sections puts them into the group of an inline function of C++, of which the
 * linker keeps one.)
 */
#ifndef PCPALLOC_INLINE_H
#define PCPALLOC_INLINE_H

#include <pcpalloc.h>

#ifndef PCPA_LISTS
#define PCPA_LISTS pcpa_lists_2
#endif
#define PCPA_TEXT_OF(x) #x
#define PCPA_TEXT(x)	PCPA_TEXT_OF(x)

#if !defined(PCPA_NO_INLINE) && defined(__has_include) && \
	((defined(__x86_64__) && !defined(__ILP32__)) ||  \
	 (defined(__aarch64__) && !defined(__ILP32__) && !defined(__AARCH64EB__)))
#if __has_include(<sys/rseq.h>)
/* Outputs of `asm goto` came with gcc 11 and clang 12. */
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define PCPA_INLINE 1
#endif
#endif
#endif

#define PCPA_INLINE_ORDERS 4u
#define PCPA_INLINE_CPUS   511 /* ids from here on are left to the exported functions */

/*
 * The lists of one order: for each CPU the one that it uses now, never NULL. Where there is none it
 * is one that is always empty and always full. Written by the library alone. A list is 64 bytes, at
 * these offsets:
 *
 *    0  u64  word: position of the head in the low 24 bits; its place by the low 16 bits
 *   28  u32  place at which a push gives up
 *   32  u64  address of the zone, 40 u64 its pages
 *   48  ptr  page descriptors
 *   56  u32  low half of the word after the last pop
 *
 * PCPA_INLINE_RING bytes behind it begin 2^16 places of block addresses. The place below the lowest
 * block is NULL.
 */
struct pcpa_inline_lists {
	uint32_t reserved;
	uint32_t align; /* bits that are 0 in the address of such a block */
	void *of_cpu[PCPA_INLINE_CPUS];
};

#if defined(__x86_64__)

#define PCPA_RSEQ_SIG "0x53053053"

#define PCPA_INLINE_RING 4096

/*
 * One register in all sections: a word that was stored a moment ago is read again five times faster
 * if the address is in the same register as it was.
 */
#define PCPA_LIST_IN "=&d"

/* Offsets in the rseq area: cpu_id 4, rseq_cs 8. */
#define PCPA_ASM_BEGIN_AT(again, area)                  \
	".pushsection __rseq_cs, \"aw?\"\n\t"           \
	".balign 32\n"                                  \
	"3:\n\t"                                        \
	".long 0, 0\n\t"                                \
	".quad 1f, 2f - 1f, 4f\n\t"                     \
	".popsection\n\t"                               \
	".pushsection __rseq_cs_ptr_array, \"aw?\"\n\t" \
	".quad 3b\n\t"                                  \
	".popsection\n\t"                               \
	".pushsection .text.pcpa_abort, \"ax?\"\n\t"    \
	".byte 0x0f, 0xb9, 0x3d\n\t"                    \
	".long " PCPA_RSEQ_SIG "\n"                     \
	"4:\n\t"                                        \
	"jmp %l[" #again "]\n\t"                        \
	".popsection\n\t"                               \
	"leaq 3b(%%rip), %[l]\n\t"                      \
	"movq %[l], %%fs:8" area "\n"                   \
	"1:\n\t"

#define PCPA_ASM_BEGIN(again) PCPA_ASM_BEGIN_AT(again, "(%[area])")

/* The list of this CPU. An address with an index is not forwarded as fast: hence one register. */
#define PCPA_ASM_LIST                                         \
	"movl %%fs:4(%[area]), %k[l]\n\t"                     \
	"cmpl $" PCPA_TEXT(PCPA_INLINE_CPUS) ", %k[l]\n\t"    \
					     "jae %l[no]\n\t" \
					     "movq 8(%[lists], %[l], 8), %[l]\n\t"

/* The place is that of the new head. */
#define PCPA_ASM_POP                                                    \
	"movq (%[l]), %[w]\n\t"                                         \
	"addq $0xffffff, %[w]\n\t"                                      \
	"movzwl %w[w], %k[i]\n\t"                                       \
	"movq " PCPA_TEXT(PCPA_INLINE_RING) "(%[l], %[i], 8), %[r]\n\t" \
					    "testq %[r], %[r]\n\t"      \
					    "je %l[no]\n\t"             \
					    "movl %k[w], 56(%[l])\n\t"  \
					    "movq %[w], (%[l])\n"       \
					    "2:\n\t"

/* i: number of the page. An address between two pages turns into a number above all others. */
#define PCPA_ASM_FIND             \
	"movq %[block], %[i]\n\t" \
	"subq 32(%[l]), %[i]\n\t" \
	"rorq $12, %[i]\n\t"      \
	"cmpq 40(%[l]), %[i]\n\t" \
	"jae %l[no]\n\t"

#define PCPA_ASM_PUSH                                                             \
	"movq (%[l]), %[w]\n\t"                                                   \
	"movzwl %w[w], %k[i]\n\t"                                                 \
	"cmpl 28(%[l]), %k[i]\n\t"                                                \
	"je %l[no]\n\t"                                                           \
	"movq %[block], " PCPA_TEXT(PCPA_INLINE_RING) "(%[l], %[i], 8)\n\t"       \
						      "addq $0x1000001, %[w]\n\t" \
						      "movq %[w], (%[l])\n"       \
						      "2:\n\t"

#elif defined(__aarch64__)

#define PCPA_RSEQ_SIG "0xd428bc00"

#define PCPA_INLINE_RING 65536 /* a page may be as large */

#define PCPA_LIST_IN "=&r"

#define PCPA_ASM_BEGIN(again)                           \
	".pushsection __rseq_cs, \"aw?\"\n\t"           \
	".balign 32\n"                                  \
	"3:\n\t"                                        \
	".word 0, 0\n\t"                                \
	".quad 1f, 2f - 1f, 4f\n\t"                     \
	".popsection\n\t"                               \
	".pushsection __rseq_cs_ptr_array, \"aw?\"\n\t" \
	".quad 3b\n\t"                                  \
	".popsection\n\t"                               \
	".pushsection .text.pcpa_abort, \"ax?\"\n\t"    \
	".inst " PCPA_RSEQ_SIG "\n"                     \
	"4:\n\t"                                        \
	"b %l[" #again "]\n\t"                          \
	".popsection\n\t"                               \
	"adrp %[l], 3b\n\t"                             \
	"add %[l], %[l], :lo12:3b\n\t"                  \
	"str %[l], [%[area], #8]\n"                     \
	"1:\n\t"

/*
 * What is loaded by an address that was loaded is as new as that address: whoever finds a list in
 * the table again sees what was done to it meanwhile. For the same reason a pop makes the new word
 * depend on the place that it found: the next pop takes its address from that word, so it can not
 * have loaded its place, lower down, before this one, and what a refill wrote first is seen first.
 */
#define PCPA_ASM_LIST                                                                     \
	"ldr %w[l], [%[area], #4]\n\t"                                                    \
	"cmp %w[l], #" PCPA_TEXT(PCPA_INLINE_CPUS) "\n\t"                                 \
						   "b.hs %l[no]\n\t"                      \
						   "add %[l], %[lists], %[l], lsl #3\n\t" \
						   "ldr %[l], [%[l], #8]\n\t"

#define PCPA_ASM_POP                       \
	"ldr %[w], [%[l]]\n\t"             \
	"mov %w[i], #0xffffff\n\t"         \
	"add %[w], %[w], %[i]\n\t"         \
	"and %w[i], %w[w], #0xffff\n\t"    \
	"add %[r], %[l], %[i], lsl #3\n\t" \
	"add %[r], %[r], #16, lsl #12\n\t" \
	"ldr %[r], [%[r]]\n\t"             \
	"cbz %[r], %l[no]\n\t"             \
	"eor %[i], %[r], %[r]\n\t"         \
	"add %[w], %[w], %[i]\n\t"         \
	"str %w[w], [%[l], #56]\n\t"       \
	"stlr %[w], [%[l]]\n"              \
	"2:\n\t"

#define PCPA_ASM_FIND                  \
	"ldr %[i], [%[l], #32]\n\t"    \
	"sub %[i], %[block], %[i]\n\t" \
	"ror %[i], %[i], #12\n\t"      \
	"ldr %[w], [%[l], #40]\n\t"    \
	"cmp %[i], %[w]\n\t"           \
	"b.hs %l[no]\n\t"

/* The release makes other processes see a list's words in the order in which they were written. */
#define PCPA_ASM_PUSH                      \
	"ldr %[w], [%[l]]\n\t"             \
	"ldr %w[i], [%[l], #28]\n\t"       \
	"eor %w[i], %w[i], %w[w]\n\t"      \
	"tst %w[i], #0xffff\n\t"           \
	"b.eq %l[no]\n\t"                  \
	"and %w[i], %w[w], #0xffff\n\t"    \
	"add %[i], %[l], %[i], lsl #3\n\t" \
	"add %[i], %[i], #16, lsl #12\n\t" \
	"str %[block], [%[i]]\n\t"         \
	"mov %w[i], #1\n\t"                \
	"movk %w[i], #0x100, lsl #16\n\t"  \
	"add %[w], %[w], %[i]\n\t"         \
	"stlr %[w], [%[l]]\n"              \
	"2:\n\t"

#endif

#ifdef PCPA_INLINE

#include <sys/rseq.h>

/* Where the C library keeps what it shares with the kernel, as the sections want it. */
#if defined(__x86_64__)
#define PCPA_RSEQ_AREA __rseq_offset
#else
#define PCPA_RSEQ_AREA ((char *)__builtin_thread_pointer() + __rseq_offset)
#endif

/*
 * The address of PCPA_LISTS. By the global offset table, since the linker would otherwise make a
 * copy of it in an executable; not volatile, so that it can be kept in a register.
 */
static inline __attribute__((always_inline)) struct pcpa_inline_lists *pcpa_inline_table(void)
{
	struct pcpa_inline_lists *lists;

#if defined(__x86_64__)
	__asm__("movq " PCPA_TEXT(PCPA_LISTS) "@GOTPCREL(%%rip), %0" : "=r"(lists));
#else
	__asm__("adrp %0, :got:" PCPA_TEXT(PCPA_LISTS) "\n\tldr %0, [%0, :got_lo12:" PCPA_TEXT(
			PCPA_LISTS) "]"
		: "=r"(lists));
#endif
	return lists;
}

/*
 * The exported functions by names that say how seldom these calls are, so that the compiler keeps
 * what sections need in registers, rather than what would survive the calls.
 */
PCPA_API PCPA_HOT void *pcpa_alloc_rarely(unsigned order) __asm__("pcpa_alloc")
	__attribute__((cold));
PCPA_API PCPA_HOT void pcpa_free_rarely(void *block, unsigned order) __asm__("pcpa_free")
	__attribute__((cold));

static inline __attribute__((always_inline)) void *pcpa_alloc_inline(unsigned order)
{
	void *l, *block;
	uint64_t w, i;

	if (__builtin_expect(order >= PCPA_INLINE_ORDERS, 0))
		return pcpa_alloc_rarely(order);
	__asm__ volatile goto(PCPA_ASM_BEGIN(no) PCPA_ASM_LIST PCPA_ASM_POP
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i), [r] "=&r"(block)
			      : [area] "r"(PCPA_RSEQ_AREA), [lists] "r"(pcpa_inline_table() + order)
			      : "memory", "cc"
			      : no);
	return block;
no:
	return pcpa_alloc_rarely(order);
}

static inline __attribute__((always_inline)) void pcpa_free_inline(void *block, unsigned order)
{
	struct pcpa_inline_lists *lists = pcpa_inline_table() + order;
	uint64_t w, i;
	void *l;

	if (__builtin_expect(order >= PCPA_INLINE_ORDERS, 0))
		goto no;
	/* that it is at a page is seen in the section */
	if (!(__builtin_constant_p(order) && !order) &&
	    __builtin_expect(((uintptr_t)block & lists->align) != 0, 0))
		goto no;
	__asm__ volatile goto(PCPA_ASM_BEGIN(no) PCPA_ASM_LIST PCPA_ASM_FIND PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : [area] "r"(PCPA_RSEQ_AREA), [lists] "r"(lists), [block] "r"(block)
			      : "memory", "cc"
			      : no);
	return;
no:
	pcpa_free_rarely(block, order);
}

#else

static inline void *pcpa_alloc_inline(unsigned order)
{
	return pcpa_alloc(order);
}

static inline void pcpa_free_inline(void *block, unsigned order)
{
	pcpa_free(block, order);
}

#endif
#endif
