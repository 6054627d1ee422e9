/* SPDX-License-Identifier: MIT */
/*
 * One place that prints. A message may hold a target's name or a client's text: control characters
 * are replaced, so that one message is always one line.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "daemon/clock.h"
#include "daemon/say.h"

#define SAY_MAX	    2048
#define SAY_GATE_MS 10000u

static bool to_syslog, verbose;

void say_to_syslog(bool on)
{
	if (on && !to_syslog)
		openlog("pcptuned", LOG_PID, LOG_DAEMON);
	to_syslog = on;
}

void say_verbose(bool on)
{
	verbose = on;
}

static void say_line(int priority, char *line)
{
	if (priority == LOG_INFO && !verbose)
		return;
	for (char *p = line; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = ' ';
	}
	if (to_syslog)
		syslog(priority, "%s", line);
	else
		fprintf(stderr, "pcptuned: %s\n", line);
}

void say(int priority, const char *fmt, ...)
{
	char line[SAY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	say_line(priority, line);
}

void say_gated(struct say_gate *gate, int priority, const char *fmt, ...)
{
	char line[SAY_MAX];
	uint64_t now = mono_ms();
	va_list ap;
	int n;

	if (now < gate->next_ms) {
		gate->held_back++;
		return;
	}
	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (gate->held_back && n >= 0 && (size_t)n < sizeof(line))
		snprintf(line + n, sizeof(line) - (size_t)n, " (%llu more like this before)",
			 (unsigned long long)gate->held_back);
	gate->held_back = 0;
	gate->next_ms = now + SAY_GATE_MS;
	say_line(priority, line);
}
