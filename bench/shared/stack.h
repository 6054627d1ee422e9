/* SPDX-License-Identifier: MIT */
/* A bare stack for each CPU, in a shared library. Called as pcpa_alloc() and pcpa_free() are. */
#ifndef BENCH_SHARED_STACK_H
#define BENCH_SHARED_STACK_H

#include <pcpalloc.h>
#include <stdbool.h>

/* Before any other call; false: not to be had here. */
bool shared_init(void);
PCPA_HOT void *shared_take(unsigned order);
PCPA_HOT void shared_give(void *p, unsigned order);

#endif
