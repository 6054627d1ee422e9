/* SPDX-License-Identifier: MIT */
/*
 * The bare stack of bench/lists in a shared library: what the call costs that any function of a
 * library needs, be there as little behind it as can be. Its state is its own.
 */
#include "bench/shared/stack.h"

#include "bench/peers_stacks.h"

__attribute__((visibility("default"))) bool shared_init(void)
{
	return stacks_init() && !rseq_missing();
}

__attribute__((visibility("default"), aligned(64))) void *shared_take(unsigned order)
{
	return rseq_take(order);
}

__attribute__((visibility("default"), aligned(64))) void shared_give(void *p, unsigned order)
{
	rseq_give(p, order);
}
