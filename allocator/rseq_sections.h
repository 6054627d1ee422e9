/* SPDX-License-Identifier: MIT */
/*
 * The sections, from the pieces of pcpalloc_inline.h.
 *
 * Each is: store the address of its descriptor into the rseq area, label 1, the body, one store,
 * label 2. The abort handler (label 4, with the signature before it) lies in a text section of its
 * own, so that the hot code is the body and nothing else. On x86-64 stores are not reordered with
 * stores, nor loads with loads, so that a plain store publishes; on aarch64 the last store is a
 * store-release, one instruction as well, and what is loaded depends on the list's address.
 */
#ifndef PCPA_RSEQ_SECTIONS_H
#define PCPA_RSEQ_SECTIONS_H

#if defined(__x86_64__)

#define PCPA_AREA      (pcpa_fast.offset)
#define PCPA_RETURN_IN "=&a" /* where a function returns it */

/*
 * Where the area is: before glibc 2.41 a number for each release, here that of 2.36; the Makefile
 * asks the one at hand. A hot section has it as a constant: all that follows in a section is found
 * by the CPU id, and so would wait for the distance to be loaded first.
 */
#ifndef PCPA_HOT_AREA
#define PCPA_HOT_AREA 2336
#endif
#define PCPA_ASM_BEGIN_HOT(again)                \
	"cmpl %c[orders](%[fast]), %[order]\n\t" \
	"jae %l[no]\n\t" PCPA_ASM_BEGIN_AT(again, "+" PCPA_TEXT(PCPA_HOT_AREA))

static inline bool pcpa_area_is_hot(void)
{
	return pcpa_fast.offset == PCPA_HOT_AREA;
}

/* By a struct pcpa_lists. */
#define PCPA_ASM_TABLE                    \
	"movl %%fs:4(%[area]), %k[l]\n\t" \
	"cmpl (%[lists]), %k[l]\n\t"      \
	"jae %l[no]\n\t"                  \
	"movq 8(%[lists], %[l], 8), %[l]\n\t"

/* By the table of our own functions, whose rows are CPUs: fewer instructions for any order. */
#define PCPA_ASM_OWN_LIST                       \
	"movl %%fs:4(%[area]), %k[l]\n\t"       \
	"cmpl (%[fast]), %k[l]\n\t"             \
	"jae %l[no]\n\t"                        \
	"leal (%q[order], %q[l], 4), %k[l]\n\t" \
	"movq %c[own](%[fast], %[l], 8), %[l]\n\t"

/* The same in a hot section. Whatever the number of CPUs is, these rows have lists. */
#define PCPA_ASM_HOT_LIST                                                               \
	"movl %%fs:4+" PCPA_TEXT(PCPA_HOT_AREA) ", %k[l]\n\t"                           \
						"cmpl $%c[rows], %k[l]\n\t"             \
						"jae %l[no]\n\t"                        \
						"leal (%q[order], %q[l], 4), %k[l]\n\t" \
						"movq %c[own](%[fast], %[l], 8), %[l]\n\t"

/* After PCPA_ASM_FIND: the page is one at which a block of that order may begin. */
#define PCPA_ASM_ALIGNED            \
	"testw %w[i], 26(%[l])\n\t" \
	"jne %l[no]\n\t"

#define PCPA_ASM_STORE                     \
	"cmpl %[cpu], %%fs:4(%[area])\n\t" \
	"jne %l[again]\n\t"                \
	"cmpq %[word], (%[list])\n\t"      \
	"jne %l[no]\n\t"                   \
	"movq %[value], (%[at])\n"         \
	"2:\n\t"

#define PCPA_ASM_STORE_TWO                    \
	"cmpl %[cpu], %%fs:4(%[area])\n\t"    \
	"jne %l[again]\n\t"                   \
	"cmpq %[word], (%[list])\n\t"         \
	"jne %l[no]\n\t"                      \
	"movq %[first_value], (%[first])\n\t" \
	"movq %[value], (%[at])\n"            \
	"2:\n\t"

#else

#undef PCPA_HOT_AREA /* no place is known */

#define PCPA_AREA      (pcpa_area(pcpa_fast.offset))
#define PCPA_RETURN_IN "=&r"

/* Whoever finds n_cpus set finds the table filled. */
#define PCPA_ASM_TABLE                         \
	"ldr %w[l], [%[area], #4]\n\t"         \
	"ldar %w[w], [%[lists]]\n\t"           \
	"cmp %w[l], %w[w]\n\t"                 \
	"b.hs %l[no]\n\t"                      \
	"add %[l], %[lists], %[l], lsl #3\n\t" \
	"ldr %[l], [%[l], #8]\n\t"

#define PCPA_ASM_OWN_LIST                         \
	"ldr %w[l], [%[area], #4]\n\t"            \
	"ldr %w[w], [%[fast]]\n\t"                \
	"cmp %w[l], %w[w]\n\t"                    \
	"b.hs %l[no]\n\t"                         \
	"add %w[l], %w[order], %w[l], lsl #2\n\t" \
	"add %[l], %[fast], %[l], lsl #3\n\t"     \
	"ldr %[l], [%[l], %c[own]]\n\t"

#define PCPA_ASM_ALIGNED              \
	"ldrh %w[w], [%[l], #26]\n\t" \
	"tst %w[w], %w[i]\n\t"        \
	"b.ne %l[no]\n\t"

#define PCPA_ASM_STORE                 \
	"ldr %w[l], [%[area], #4]\n\t" \
	"cmp %w[l], %w[cpu]\n\t"       \
	"b.ne %l[again]\n\t"           \
	"ldr %[l], [%[list]]\n\t"      \
	"cmp %[l], %[word]\n\t"        \
	"b.ne %l[no]\n\t"              \
	"stlr %[value], [%[at]]\n"     \
	"2:\n\t"

#define PCPA_ASM_STORE_TWO                   \
	"ldr %w[l], [%[area], #4]\n\t"       \
	"cmp %w[l], %w[cpu]\n\t"             \
	"b.ne %l[again]\n\t"                 \
	"ldr %[l], [%[list]]\n\t"            \
	"cmp %[l], %[word]\n\t"              \
	"b.ne %l[no]\n\t"                    \
	"str %[first_value], [%[first]]\n\t" \
	"stlr %[value], [%[at]]\n"           \
	"2:\n\t"

#endif

/* One block off the list of this CPU. */
static inline __attribute__((always_inline)) void *pcpa_section_pop(struct pcpa_lists *lists,
								    enum pcpa_section *ret_how)
{
	uint64_t l, w, i, r;

	__asm__ volatile goto(
		PCPA_ASM_BEGIN(again) PCPA_ASM_TABLE PCPA_ASM_POP
		: [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i), [r] PCPA_RETURN_IN(r)
		: [area] "r"(PCPA_AREA), [lists] "r"(lists)
		: "memory", "cc"
		: no, again);
	*ret_how = PCPA_SECTION_DONE;
	return (void *)r;
no:
	*ret_how = PCPA_SECTION_NO;
	return NULL;
again:
	*ret_how = PCPA_SECTION_AGAIN;
	return NULL;
}

/* The same, of its own zone; order up to PCPTUNE_COSTLY_ORDER. false: whatever the reason. */
static inline __attribute__((always_inline)) bool pcpa_section_pop_own(unsigned order,
								       void **ret_block)
{
	uint64_t l, w, i, r;

	__asm__ volatile goto(
		PCPA_ASM_BEGIN(no) PCPA_ASM_OWN_LIST PCPA_ASM_POP
		: [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i), [r] PCPA_RETURN_IN(r)
		: [area] "r"(PCPA_AREA), [fast] "r"(&pcpa_fast), [order] "r"(order),
		  [own] "i"(offsetof(struct pcpa_fast, own))
		: "memory", "cc"
		: no);
	*ret_block = (void *)r;
	return true;
no:
	return false;
}

/* A block of the zone of these lists, and of their order: the caller knows. */
static inline __attribute__((always_inline)) enum pcpa_section
pcpa_section_push(struct pcpa_lists *lists, void *block)
{
	uint64_t l, w, i;

	__asm__ volatile goto(PCPA_ASM_BEGIN(again) PCPA_ASM_TABLE PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : [area] "r"(PCPA_AREA), [lists] "r"(lists), [block] "r"(block)
			      : "memory", "cc"
			      : no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

/*
 * A block of an order up to PCPTUNE_COSTLY_ORDER. false: whatever the reason, among them that it
 * is not in this CPU's own zone, or not aligned to its order.
 */
static inline __attribute__((always_inline)) bool pcpa_section_push_own(void *block, unsigned order)
{
	uint64_t l, w, i;

	__asm__ volatile goto(PCPA_ASM_BEGIN(no)
				      PCPA_ASM_OWN_LIST PCPA_ASM_FIND PCPA_ASM_ALIGNED PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : [area] "r"(PCPA_AREA), [fast] "r"(&pcpa_fast), [order] "r"(order),
				[own] "i"(offsetof(struct pcpa_fast, own)), [block] "r"(block)
			      : "memory", "cc"
			      : no);
	return true;
no:
	return false;
}

/*
 * The same two for what is called most: any order, at any time, and the area is where it is known
 * to be. Loads are kept in order by the processor. Where no place is known, they are the two above.
 */
#ifdef PCPA_HOT_AREA

#define PCPA_HOT_OPERANDS                                                      \
	[fast] "r"(&pcpa_fast), [order] "r"(order), [rows] "i"(PCPA_OWN_ROWS), \
		[orders] "i"(offsetof(struct pcpa_fast, orders)),              \
		[own] "i"(offsetof(struct pcpa_fast, own))

static inline __attribute__((always_inline)) bool pcpa_section_pop_hot(unsigned order,
								       void **ret_block)
{
	uint64_t l, w, i, r;

	__asm__ volatile goto(
		PCPA_ASM_BEGIN_HOT(no) PCPA_ASM_HOT_LIST PCPA_ASM_POP
		: [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i), [r] PCPA_RETURN_IN(r)
		: PCPA_HOT_OPERANDS
		: "memory", "cc"
		: no);
	*ret_block = (void *)r;
	return true;
no:
	return false;
}

static inline __attribute__((always_inline)) bool pcpa_section_push_hot(void *block, unsigned order)
{
	uint64_t l, w, i;

	__asm__ volatile goto(PCPA_ASM_BEGIN_HOT(no)
				      PCPA_ASM_HOT_LIST PCPA_ASM_FIND PCPA_ASM_ALIGNED PCPA_ASM_PUSH
			      : [l] PCPA_LIST_IN(l), [w] "=&r"(w), [i] "=&r"(i)
			      : PCPA_HOT_OPERANDS, [block] "r"(block)
			      : "memory", "cc"
			      : no);
	return true;
no:
	return false;
}

#else

static inline bool pcpa_area_is_hot(void)
{
	return true;
}

static inline bool pcpa_hot_order(unsigned order)
{
	return __builtin_expect(order < __atomic_load_n(&pcpa_fast.orders, __ATOMIC_ACQUIRE), 1);
}

static inline __attribute__((always_inline)) bool pcpa_section_pop_hot(unsigned order,
								       void **ret_block)
{
	return pcpa_hot_order(order) && pcpa_section_pop_own(order, ret_block);
}

static inline __attribute__((always_inline)) bool pcpa_section_push_hot(void *block, unsigned order)
{
	return pcpa_hot_order(order) && pcpa_section_push_own(block, order);
}

#endif

/* *at = value, if this is `cpu` and the list's word is still `word`. */
static inline enum pcpa_section pcpa_section_store(const struct pcptune_list *list, uint32_t cpu,
						   uint64_t word, uint64_t *at, uint64_t value)
{
	uint64_t l;

	__asm__ volatile goto(PCPA_ASM_BEGIN(again) PCPA_ASM_STORE
			      : [l] PCPA_LIST_IN(l)
			      : [area] "r"(PCPA_AREA), [cpu] "r"(cpu), [list] "r"(list),
				[word] "r"(word), [at] "r"(at), [value] "r"(value)
			      : "memory", "cc"
			      : no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

/* The same, and *first = first_value before it; when it is interrupted, perhaps that alone. */
static inline enum pcpa_section pcpa_section_store_two(const struct pcptune_list *list,
						       uint32_t cpu, uint64_t word, uint64_t *first,
						       uint64_t first_value, uint64_t *at,
						       uint64_t value)
{
	uint64_t l;

	__asm__ volatile goto(PCPA_ASM_BEGIN(again) PCPA_ASM_STORE_TWO
			      : [l] "=&r"(l)
			      : [area] "r"(PCPA_AREA), [cpu] "r"(cpu), [list] "r"(list),
				[word] "r"(word), [first] "r"(first),
				[first_value] "r"(first_value), [at] "r"(at), [value] "r"(value)
			      : "memory", "cc"
			      : no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

_Static_assert(offsetof(struct pcpa_fast, n_cpus) == 0 &&
		       offsetof(struct pcpa_lists, of_cpu) == 8 &&
		       offsetof(struct pcptune_list, word) == 0 &&
		       offsetof(struct pcptune_list, reserved) == 24 &&
		       offsetof(struct pcptune_list, bound) == 28 &&
		       offsetof(struct pcptune_list, base) == 32 &&
		       offsetof(struct pcptune_list, end) == 40 &&
		       offsetof(struct pcptune_list, pages) == 48 &&
		       offsetof(struct pcptune_list, mark) == 56 &&
		       offsetof(struct pcpa_page, tag) == 8 && PCPTUNE_PAGE_SHIFT == 12,
	       "the sections know these");
_Static_assert(PCPA_INLINE_ORDERS == PCPTUNE_COSTLY_ORDER + 1 &&
		       sizeof(struct pcpa_inline_lists) == 4096,
	       "pcpalloc_inline.h knows these");

#endif
