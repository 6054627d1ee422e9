/* SPDX-License-Identifier: MIT */
/*
 * The clocks of the daemon. Deadlines of the event loop run on the monotonic clock; samples and the
 * log carry the boot clock, which goes on during suspend, so that a suspended hour is seen as one.
 */
#ifndef PCPTUNE_DAEMON_CLOCK_H
#define PCPTUNE_DAEMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	if (clock_gettime(id, &ts))
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t mono_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000u;
}

static inline uint64_t boot_us(void)
{
	return clock_ns(CLOCK_BOOTTIME) / 1000u;
}

#endif
