/* SPDX-License-Identifier: MIT */
/* The daemon's heap in huge pages, once it is large. */
#ifndef PCPTUNED_HEAP_H
#define PCPTUNED_HEAP_H

/* Once, before anything else is allocated. */
void heap_begin(void);
/* After an allocation that may have made the heap grow for good, such as a target's tables. */
void heap_grown(void);

#endif
