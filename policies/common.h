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

/* choices of a parameter `rules`, and the generation of each; the kernel never had gx */
#define RULES_KERNEL "g0", "g1", "g4"
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

static inline uint32_t rules_of_choice(int64_t choice)
{
	static const uint32_t rules[] = {PCPTUNE_RULES_G0, PCPTUNE_RULES_G1, PCPTUNE_RULES_G4,
					 PCPTUNE_RULES_GX};

	return rules[choice];
}

/* A CPU that allocated at least once: before that its gauges are 0. */
static inline bool cpu_used(const struct pcptune_cpu *c)
{
	return c->high != 0;
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
