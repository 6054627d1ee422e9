/* SPDX-License-Identifier: MIT */
/*
 * The sections for aarch64; see rseq_x86.h for their form.
 *
 * `stop` is loaded with acquire: who finds it 0 again after another CPU had the lists sees all that
 * was done to them. The committing store is a store-release, one instruction as well, so that
 * other processes see a list's words in the order in which they were written.
 */
#ifndef PCPA_RSEQ_AARCH64_H
#define PCPA_RSEQ_AARCH64_H

#define PCPA_RSEQ_SIG "0xd428bc00"

/* Offsets in the rseq area: cpu_id 4, rseq_cs 8. */
#define PCPA_SECTION_BEGIN(again)                      \
	".pushsection __rseq_cs, \"aw\"\n\t"           \
	".balign 32\n"                                 \
	"3:\n\t"                                       \
	".word 0, 0\n\t"                               \
	".quad 1f, 2f - 1f, 4f\n\t"                    \
	".popsection\n\t"                              \
	".pushsection __rseq_cs_ptr_array, \"aw\"\n\t" \
	".quad 3b\n\t"                                 \
	".popsection\n\t"                              \
	".pushsection .text.pcpa_abort, \"ax\"\n\t"    \
	".inst " PCPA_RSEQ_SIG "\n"                    \
	"4:\n\t"                                       \
	"b %l[" #again "]\n\t"                         \
	".popsection\n\t"                              \
	"adrp %[a], 3b\n\t"                            \
	"add %[a], %[a], :lo12:3b\n\t"                 \
	"str %[a], [%[rseq], #8]\n"                    \
	"1:\n\t"                                       \
	"ldr %w[a], [%[rseq], #4]\n\t"                 \
	"cmp %w[a], %w[cpu]\n\t"                       \
	"b.ne %l[" #again "]\n\t"

static inline char *pcpa_section_area(intptr_t offset)
{
	char *thread;

	__asm__("mrs %0, tpidr_el0" : "=r"(thread));
	return thread + offset;
}

static inline uint32_t pcpa_section_cpu(intptr_t offset)
{
	return __atomic_load_n((uint32_t *)(void *)(pcpa_section_area(offset) + 4),
			       __ATOMIC_RELAXED);
}

static inline void *pcpa_section_pop(struct pcptune_cpu_block *b, unsigned list, uint32_t cpu,
				     enum pcpa_section *ret_how)
{
	struct pcptune_list *l = &b->list[list];
	struct pcpa_words *w = pcpa_words(b);
	uint64_t a, c, d, block;

	__asm__ volatile goto(PCPA_SECTION_BEGIN(again) "ldar %w[a], [%[stop]]\n\t"
							"cbnz %w[a], %l[no]\n\t"
							"ldr %[a], [%[list]]\n\t"
							"ldr %[c], [%[list], #8]\n\t"
							"sub %w[c], %w[a], %w[c]\n\t"
							"tst %w[c], #0xffffff\n\t"
							"b.eq %l[no]\n\t"
							"ldr %w[d], [%[list], #20]\n\t"
							"sub %w[c], %w[a], #1\n\t"
							"and %w[c], %w[c], %w[d]\n\t"
							"ldr %[d], [%[list], #24]\n\t"
							"ldr %[block], [%[d], %w[c], uxtw #3]\n\t"
							"ldr %w[c], [%[stop], #4]\n\t"
							"lsr %w[c], %w[c], #1\n\t"
							"str %w[c], [%[stop], #4]\n\t"
							"add %[a], %[a], %[step]\n\t"
							"stlr %[a], [%[list]]\n"
							"2:\n\t"
			      : [a] "=&r"(a), [c] "=&r"(c), [d] "=&r"(d), [block] "=&r"(block)
			      : [rseq] "r"(pcpa_section_area(pcpa_fast.offset)), [cpu] "r"(cpu),
				[list] "r"(l), [stop] "r"(&w->stop), [step] "r"(PCPTUNE_WORD_POP)
			      : "memory", "cc"
			      : no, again);
	*ret_how = PCPA_SECTION_DONE;
	return (void *)block;
no:
	*ret_how = PCPA_SECTION_NO;
	return NULL;
again:
	*ret_how = PCPA_SECTION_AGAIN;
	return NULL;
}

static inline enum pcpa_section pcpa_section_push(struct pcptune_cpu_block *b, unsigned list,
						  unsigned order, uint32_t cpu, void *block)
{
	struct pcptune_list *l = &b->list[list];
	struct pcpa_words *w = pcpa_words(b);
	uint64_t a, c, d;

	__asm__ volatile goto(
		PCPA_SECTION_BEGIN(again) "ldar %w[a], [%[stop]]\n\t"
					  "cbnz %w[a], %l[no]\n\t"
					  "ldr %[a], [%[list]]\n\t"
					  "ldr %[c], [%[list], #8]\n\t"
					  "sub %w[c], %w[a], %w[c]\n\t"
					  "and %w[c], %w[c], #0xffffff\n\t"
					  "ldr %w[d], [%[room]]\n\t"
					  "cmp %w[c], %w[d]\n\t"
					  "b.hs %l[no]\n\t"
					  "ldr %w[d], [%[list], #20]\n\t"
					  "and %w[c], %w[a], %w[d]\n\t"
					  "ldr %[d], [%[list], #24]\n\t"
					  "str %[block], [%[d], %w[c], uxtw #3]\n\t"
					  "ldr %w[c], [%[stop], #4]\n\t"
					  "add %w[c], %w[c], %w[pages]\n\t"
					  "str %w[c], [%[stop], #4]\n\t"
					  "add %[a], %[a], %[step]\n\t"
					  "stlr %[a], [%[list]]\n"
					  "2:\n\t"
		: [a] "=&r"(a), [c] "=&r"(c), [d] "=&r"(d)
		: [rseq] "r"(pcpa_section_area(pcpa_fast.offset)), [cpu] "r"(cpu), [list] "r"(l),
		  [stop] "r"(&w->stop), [room] "r"(&w->room[list]), [block] "r"(block),
		  [pages] "r"(1u << order), [step] "r"(PCPTUNE_WORD_PUSH)
		: "memory", "cc"
		: no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

/* tail += delta if at least `need` blocks are listed. For the holder of pcp.lock. */
static inline enum pcpa_section pcpa_section_tail(struct pcptune_list *l, uint32_t cpu,
						  uint32_t need, int64_t delta)
{
	uint64_t a, c;

	__asm__ volatile goto(
		PCPA_SECTION_BEGIN(again) "ldr %[c], [%[list]]\n\t"
					  "ldr %[a], [%[tail]]\n\t"
					  "sub %w[c], %w[c], %w[a]\n\t"
					  "and %w[c], %w[c], #0xffffff\n\t"
					  "cmp %w[c], %w[need]\n\t"
					  "b.lo %l[no]\n\t"
					  "add %[a], %[a], %[delta]\n\t"
					  "stlr %[a], [%[tail]]\n"
					  "2:\n\t"
		: [a] "=&r"(a), [c] "=&r"(c)
		: [rseq] "r"(pcpa_section_area(pcpa_fast.offset)), [cpu] "r"(cpu), [list] "r"(l),
		  [tail] "r"(&l->tail), [need] "r"(need), [delta] "r"(delta)
		: "memory", "cc"
		: no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

_Static_assert(offsetof(struct pcptune_list, reserved) == 20 &&
		       offsetof(struct pcptune_list, private_ring) == 24,
	       "the sections know these");
_Static_assert(offsetof(struct pcpa_words, run) == offsetof(struct pcpa_words, stop) + 4,
	       "the sections know these");

#endif
