/* SPDX-License-Identifier: MIT */
/*
 * What the process of a foreign policy gives up before code of the policy runs, in this order.
 * Nothing of it comes back.
 */
#ifndef PCPTUNE_POLICIES_HOST_CONFINE_H
#define PCPTUNE_POLICIES_HOST_CONFINE_H

#include <stdint.h>

/* Limits, no new privileges, an end with the parent. memory: bytes beyond what there is now. */
void confine_limits(uint64_t memory);

/* Root becomes nobody; everybody loses capabilities. 0 or -errno: it may still be root. */
int confine_user(void);

enum confine_stage {
	CONFINE_LOADING, /* what the dynamic linker needs: files, to be read */
	CONFINE_RUNNING, /* what a function of numbers needs */
};

/*
 * System calls that are not of this stage end the process by SIGSYS, but for those that libc may
 * try by itself, which fail. A later stage takes away from the earlier one. 0, or -errno: there is
 * no filter, since the kernel has none, does not let us, or is not one that we know (-ENOTSUP).
 */
int confine_calls(enum confine_stage stage);

#endif
