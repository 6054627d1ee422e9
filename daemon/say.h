/* SPDX-License-Identifier: MIT */
/*
 * Messages of the daemon: one line each, to standard error or to syslog.
 */
#ifndef PCPTUNE_DAEMON_SAY_H
#define PCPTUNE_DAEMON_SAY_H

#include <stdbool.h>
#include <stdint.h>
#include <syslog.h>

/* From here on to syslog (true) or standard error (false, the default). */
void say_to_syslog(bool on);
/* LOG_INFO messages (targets that come and go) are left out unless this is on. */
void say_verbose(bool on);
/* priority: LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO. Line ends inside the text become spaces. */
__attribute__((format(printf, 2, 3))) void say(int priority, const char *fmt, ...);

/*
 * A gate lets one message of its kind through every ten seconds and counts the rest, so that
 * nothing a target or client does can fill the system's log. Zeroed: open.
 */
struct say_gate {
	uint64_t next_ms;
	uint64_t held_back;
};
__attribute__((format(printf, 3, 4))) void say_gated(struct say_gate *gate, int priority,
						     const char *fmt, ...);

#endif
