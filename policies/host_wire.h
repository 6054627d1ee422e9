/* SPDX-License-Identifier: MIT */
/*
 * What the daemon's side (host_remote.c) and the process of a foreign policy (host_worker.c) tell
 * each other, in the order of time:
 *
 *   daemon   OPEN     the file, and how much memory
 *   worker   HELLO    its tables, as an image without pointers      or REFUSED
 *   daemon   INIT     shape and parameters
 *   worker   SIZED    how much state
 *   daemon   MEMORY   with a descriptor: the shared area
 *   worker   READY                                                  or REFUSED
 *   daemon   ASK      a sample lies in the area
 *   worker   ANSWER   decision and state lie there                  and so on
 *
 * Messages are packets of a socket pair. The area has everything that is long. The daemon writes
 * into it before ASK and copies out of it after ANSWER, and believes nothing that it finds there:
 * offsets come from wire_area(), lengths are its own.
 */
#ifndef PCPTUNE_POLICIES_HOST_WIRE_H
#define PCPTUNE_POLICIES_HOST_WIRE_H

#include "policies/host_internal.h"

#define WIRE_FD	       3 /* of the worker, its end of the socket pair */
#define WIRE_IMAGE_MAX (128u << 10)

enum wire_type {
	WIRE_OPEN = 1,
	WIRE_HELLO,
	WIRE_INIT,
	WIRE_SIZED,
	WIRE_MEMORY,
	WIRE_READY,
	WIRE_ASK,
	WIRE_ANSWER,
	WIRE_REFUSED,
};

struct wire_head {
	uint32_t type;
	int32_t r; /* 0 or -errno; of HELLO: 0, or why there is no filter of system calls */
};

struct wire_open {
	struct wire_head head;
	uint64_t memory; /* bytes of address space beyond what the process begins with */
	char file[PATH_MAX];
};

struct wire_hello {
	struct wire_head head;
	uint64_t image[WIRE_IMAGE_MAX / 8]; /* as long as the packet says */
};

struct wire_init {
	struct wire_head head;
	struct pcptune_shape shape;
	int64_t params[POLICY_MAX_PARAMS];
};

struct wire_sized {
	struct wire_head head;
	uint64_t state_size;
};

struct wire_refused {
	struct wire_head head;
	char why[POLICY_WHY];
};

/* Where things lie in the area. A sample lies at its beginning. */
struct wire_area {
	size_t cpus, active, records, decision, changes, state, size;
};

/* n: entries of a sample. The sizes are those that were checked. */
void wire_area(uint32_t n, const struct pcptune_policy *p, size_t state_size,
	       struct wire_area *ret);

/* The tables of a descriptor, offsets for pointers. -E2BIG: more than room. */
int wire_pack(const struct policy_module *m, void *image, size_t room, size_t *ret_len);
/*
 * A descriptor of an image from an untrusted worker, malloc'ed, checked in full but for functions,
 * of which it has none. 0, -EPROTO with why, -ENOMEM.
 */
int wire_unpack(const void *image, size_t len, const char *name, struct pcptune_policy **ret,
		char *why);

#endif
