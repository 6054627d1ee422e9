/* SPDX-License-Identifier: MIT */
/*
 * Frees that a signal handler had to put off.
 *
 * A handler that interrupted a thread inside a zone lock can not wait for one. Its block goes on
 * a stack (lock-free push), and the interrupted thread empties it as soon as it has left its lock.
 * So nothing stays there: who pushes runs on top of someone who is about to look.
 */
#ifndef PCPA_DEFERRED_H
#define PCPA_DEFERRED_H

/* A block that is tagged as in use, of this order; it is reported if it is not any more. */
void pcpa_deferred_push(void *block, unsigned order);
void pcpa_deferred_flush(void);

#endif
