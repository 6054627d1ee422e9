/* SPDX-License-Identifier: MIT */
/*
 * The few lines that every policy here would repeat. A plug-in links to nothing, so all of it is
 * inline; policies of other people can copy what they like.
 */
#ifndef PCPTUNE_POLICIES_COMMON_H
#define PCPTUNE_POLICIES_COMMON_H

#include <errno.h>
#include <stdbool.h>
#include <pcptune/policy.h>
#include <pcptune/rules.h>

#define REST_LONG_MS 60000u /* nothing to do until something moves */

/* Rows of parameters that several policies have in the same range; text: what is theirs in it. */
#define PARAM_MISS(text)                                                                        \
	{                                                                                       \
		"miss_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 20, "permille", text, (void *)0 \
	}
#define PARAM_TRAFFIC(text)                                                                        \
	{                                                                                          \
		"min_traffic", PCPTUNE_PARAM_INT, 0, 1, 1000000000, 4096, "pages", text, (void *)0 \
	}
#define PARAM_BUDGET                                                                      \
	{                                                                                 \
		"budget_permille", PCPTUNE_PARAM_INT, 0, 1, 1000, 125, "permille",        \
			"share of the memory that all lists together may hold", (void *)0 \
	}
#define PARAM_FLOOR(text)                                                                       \
	{                                                                                       \
		"floor", PCPTUNE_PARAM_INT, 0, 0, PCPTUNE_MAX_HIGH, 0, "pages", text, (void *)0 \
	}

/* Rows of reasons that several policies have. */
#define REASON_TAKE_OVER(id)                                                                   \
	{                                                                                      \
		(id), 0, "take-over", "this policy alone moves high now: fixed at {new:pages}" \
	}
#define REASON_MISSES(id)                                                                 \
	{                                                                                 \
		(id), 0, "misses",                                                        \
			"{a:permille} of {b:pages} allocated and freed went to the zone " \
			"and came back: high {old} -> {new:pages}"                        \
	}
#define REASON_OVER_BUDGET(id)                                                             \
	{                                                                                  \
		(id), 0, "over-budget",                                                    \
			"all lists together may hold {a:pages}, their high is {b:pages}: " \
			"high {old} -> {new:pages}"                                        \
	}
#define REASON_SETTLING(id)                                                            \
	{                                                                              \
		(id), 1, "settling",                                                   \
			"{a} CPUs need more, but are settling or held by the operator" \
	}
#define REASON_UNUSED(id)                                     \
	{                                                     \
		(id), 1, "unused", "no CPU has allocated yet" \
	}

/*
 * Choices of a parameter `rules`: the generations of the kernel in the order of their coming, which
 * never had gx. The switches for high-order lists are left to control words.
 */
#define RULES_KERNEL                                                                               \
	"g0", "g0b", "y2016", "g1", "g2", "g3", "p1", "p3", "p5", "p7", "p9", "p10", "p7v3", "g4", \
		"g5", "g6"
#define RULES_CHOICES                         \
	(const char *const[])                 \
	{                                     \
		RULES_KERNEL, "gx", (void *)0 \
	}
#define RULES_KERNEL_CHOICES            \
	(const char *const[])           \
	{                               \
		RULES_KERNEL, (void *)0 \
	}
enum { RULES_CHOICE_G0 = 0, RULES_CHOICE_G4 = 13, RULES_KERNEL_LAST = 15, RULES_LAST = 16 };

/* The generation of a choice of `rules`; each of them is one, as a test says. */
static inline uint32_t rules_of_choice(const struct pcptune_param *param, int64_t choice)
{
	for (uint32_t id = 0; id < PCPTUNE_RULES_ROWS; id++)
		if (!__builtin_strcmp(pcptune_generations[id].name, param->choices[choice]))
			return id;
	return PCPTUNE_RULES_G0;
}

/* A CPU that allocated at least once: before that its gauges are 0. */
static inline bool cpu_used(const struct pcptune_cpu *c)
{
	return c->high != 0;
}

static inline uint32_t count_used(const struct pcptune_sample *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_cpus; i++)
		n += cpu_used(pcptune_sample_cpu(s, i));
	return n;
}

/* Bytes of a state that has a head and one struct for each entry of a sample. */
static inline size_t size_of_state(const struct pcptune_shape *shape, size_t head, size_t each)
{
	return head + (size_t)shape->n_zones * shape->n_cpus * each;
}

/* Would a change be applied now? */
static inline bool cpu_open(const struct pcptune_cpu *c)
{
	return !(c->flags & (PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD));
}

/* Does the live value differ from what is wanted? PCPTUNE_KEEP wants nothing. */
static inline bool differs(uint32_t live, uint32_t wanted)
{
	return wanted != PCPTUNE_KEEP && live != wanted;
}

static inline uint64_t zone_managed(const struct pcptune_shape *shape)
{
	return shape->managed_pages / shape->n_zones;
}

#endif
