/* SPDX-License-Identifier: MIT */
/*
 * The agent: attaching to the daemon, and everything that must happen without a call.
 *
 * Two locks, taken in this order and before any lock of lists and zones: one around the socket
 * (attach_lock, private), one around pages that are out of the zone while their memory is given
 * back.
 */
#ifndef PCPA_AGENT_H
#define PCPA_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Not 0: the next allocation should call pcpa_agent_attend(), which attaches, starts the agent when
 * there is work for it, or ends its long sleep. Rung by the agent itself, and by a zone that grows.
 */
extern uint32_t pcpa_agent_bell;
void pcpa_agent_attend(void);
/* The same for a free, which starts no thread: only ends the long sleep of one that there is. */
void pcpa_agent_wake(void);
/* Is there a thread that looks after everything? */
bool pcpa_agent_runs(void);
/* The first thread ends, and the process perhaps not: any thread, allocator in use. */
void pcpa_agent_leader_ends(void);

/*
 * Gives back what was free for `cold_ticks` of the zones' time, at most `most` pages. 0 ticks: all
 * that is free, the depot included.
 */
size_t pcpa_return_pages(uint64_t most, uint32_t cold_ticks, int as_agent);

/* fork */
void pcpa_agent_lock(void);
void pcpa_agent_unlock(void);
void pcpa_agent_forget(void);

/* ---- attach.c ---- */

enum pcpa_attach {
	PCPA_ATTACH_NONE,    /* no daemon, or not asked for */
	PCPA_ATTACH_WAITING, /* hello sent, no reply yet */
	PCPA_ATTACH_DONE,
	PCPA_ATTACH_REFUSED,
};

/* One step: connect when it is time, read what came. Never blocks. Returns the state. */
enum pcpa_attach pcpa_attach_step(void);
/* State without a step, any thread. */
enum pcpa_attach pcpa_attach_state(void);
/* ms until the next step is worth it; UINT32_MAX: whenever. */
uint32_t pcpa_attach_wait_ms(void);
/* Reason of the last refusal, "" if none; static text, rewritten by the next refusal. */
const char *pcpa_attach_reason(void);
void pcpa_attach_lock(void);
void pcpa_attach_unlock(void);
void pcpa_attach_forget(void);

#endif
