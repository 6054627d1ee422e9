/* SPDX-License-Identifier: MIT */
/*
 * The sections for x86-64.
 *
 * Each is: store the address of its descriptor into the rseq area, label 1, the body, one store,
 * label 2. The abort handler (label 4, with the signature before it) lies in a text section of its
 * own, so that the hot code is the body and nothing else. Memory is named by two base registers
 * and constants, since each operand of its own could need a register of its own. Stores are not reordered with stores
 * here, nor loads with loads, so that a plain store publishes.
 */
#ifndef PCPA_RSEQ_X86_H
#define PCPA_RSEQ_X86_H

#define PCPA_RSEQ_SIG "0x53053053"

/* Offsets in the rseq area: cpu_id 4, rseq_cs 8. */
#define PCPA_SECTION_BEGIN(again)                      \
	".pushsection __rseq_cs, \"aw\"\n\t"           \
	".balign 32\n"                                 \
	"3:\n\t"                                       \
	".long 0, 0\n\t"                               \
	".quad 1f, 2f - 1f, 4f\n\t"                    \
	".popsection\n\t"                              \
	".pushsection __rseq_cs_ptr_array, \"aw\"\n\t" \
	".quad 3b\n\t"                                 \
	".popsection\n\t"                              \
	".pushsection .text.pcpa_abort, \"ax\"\n\t"    \
	".byte 0x0f, 0xb9, 0x3d\n\t"                   \
	".long " PCPA_RSEQ_SIG "\n"                    \
	"4:\n\t"                                       \
	"jmp %l[" #again "]\n\t"                       \
	".popsection\n\t"                              \
	"leaq 3b(%%rip), %[a]\n\t"                     \
	"movq %[a], %%fs:8(%[rseq])\n"                 \
	"1:\n\t"                                       \
	"cmpl %[cpu], %%fs:4(%[rseq])\n\t"             \
	"jne %l[" #again "]\n\t"

static inline uint32_t pcpa_section_cpu(intptr_t offset)
{
	uint32_t cpu;

	__asm__ volatile("movl %%fs:4(%1), %0" : "=r"(cpu) : "r"(offset));
	return cpu;
}

static inline void *pcpa_section_pop(struct pcptune_cpu_block *b, unsigned list, uint32_t cpu,
				     enum pcpa_section *ret_how)
{
	struct pcptune_list *l = &b->list[list];
	struct pcpa_words *w = pcpa_words(b);
	uint64_t a, c, block;

	__asm__ volatile goto(PCPA_SECTION_BEGIN(again) "movq %c[word](%[list]), %[a]\n\t"
							"cmpl $0, %c[stop](%[words])\n\t"
							"jne %l[no]\n\t"
							"movl %k[a], %k[c]\n\t"
							"subl %c[tail](%[list]), %k[c]\n\t"
							"testl $0xffffff, %k[c]\n\t"
							"je %l[no]\n\t"
							"leal -1(%k[a]), %k[c]\n\t"
							"andl %c[mask](%[list]), %k[c]\n\t"
							"movq %c[ring](%[list]), %[block]\n\t"
							"movq (%[block], %q[c], 8), %[block]\n\t"
							"shrl %c[run](%[words])\n\t"
							"addq $0xffffff, %[a]\n\t"
							"movq %[a], %c[word](%[list])\n"
							"2:\n\t"
			      : [a] "=&r"(a), [c] "=&r"(c), [block] "=&r"(block)
			      : [rseq] "r"(pcpa_fast.offset), [cpu] "r"(cpu), [list] "r"(l),
				[word] "i"(offsetof(struct pcptune_list, word)),
				[tail] "i"(offsetof(struct pcptune_list, tail)),
				[mask] "i"(offsetof(struct pcptune_list, reserved)),
				[ring] "i"(offsetof(struct pcptune_list, private_ring)),
				[words] "r"(w), [stop] "i"(offsetof(struct pcpa_words, stop)),
				[run] "i"(offsetof(struct pcpa_words, run))
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
		PCPA_SECTION_BEGIN(again) "movq %c[word](%[list]), %[a]\n\t"
					  "cmpl $0, %c[stop](%[words])\n\t"
					  "jne %l[no]\n\t"
					  "movl %k[a], %k[c]\n\t"
					  "subl %c[tail](%[list]), %k[c]\n\t"
					  "andl $0xffffff, %k[c]\n\t"
					  "cmpl %c[room](%[words], %[index], 4), %k[c]\n\t"
					  "jae %l[no]\n\t"
					  "movl %k[a], %k[c]\n\t"
					  "andl %c[mask](%[list]), %k[c]\n\t"
					  "movq %c[ring](%[list]), %[d]\n\t"
					  "movq %[block], (%[d], %q[c], 8)\n\t"
					  "addl %[pages], %c[run](%[words])\n\t"
					  "addq $0x1000001, %[a]\n\t"
					  "movq %[a], %c[word](%[list])\n"
					  "2:\n\t"
		: [a] "=&r"(a), [c] "=&r"(c), [d] "=&r"(d)
		: [rseq] "r"(pcpa_fast.offset), [cpu] "r"(cpu), [list] "r"(l),
		  [word] "i"(offsetof(struct pcptune_list, word)),
		  [tail] "i"(offsetof(struct pcptune_list, tail)),
		  [mask] "i"(offsetof(struct pcptune_list, reserved)),
		  [ring] "i"(offsetof(struct pcptune_list, private_ring)), [words] "r"(w),
		  [stop] "i"(offsetof(struct pcpa_words, stop)),
		  [run] "i"(offsetof(struct pcpa_words, run)),
		  [room] "i"(offsetof(struct pcpa_words, room)), [index] "r"((uint64_t)list),
		  [block] "r"(block), [pages] "r"(1u << order)
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

	__asm__ volatile goto(PCPA_SECTION_BEGIN(again) "movl %c[word](%[list]), %k[c]\n\t"
							"movq %c[tail](%[list]), %[a]\n\t"
							"subl %k[a], %k[c]\n\t"
							"andl $0xffffff, %k[c]\n\t"
							"cmpl %[need], %k[c]\n\t"
							"jb %l[no]\n\t"
							"addq %[delta], %[a]\n\t"
							"movq %[a], %c[tail](%[list])\n"
							"2:\n\t"
			      : [a] "=&r"(a), [c] "=&r"(c)
			      : [rseq] "r"(pcpa_fast.offset), [cpu] "r"(cpu), [list] "r"(l),
				[word] "i"(offsetof(struct pcptune_list, word)),
				[tail] "i"(offsetof(struct pcptune_list, tail)), [need] "r"(need),
				[delta] "r"(delta)
			      : "memory", "cc"
			      : no, again);
	return PCPA_SECTION_DONE;
no:
	return PCPA_SECTION_NO;
again:
	return PCPA_SECTION_AGAIN;
}

#endif
