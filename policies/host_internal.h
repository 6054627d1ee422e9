/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the plug-in host tell each other; nothing outside policies/ includes this.
 */
#ifndef PCPTUNE_POLICIES_HOST_INTERNAL_H
#define PCPTUNE_POLICIES_HOST_INTERNAL_H

#include "policies/host.h"

#define HOST_WORD_MAX	  POLICY_NAME_MAX /* bytes of names and versions */
#define HOST_UNIT_MAX	  15u
#define HOST_TEXT_MAX	  240u /* bytes of a one-line text or a sentence */
#define HOST_CHOICES_MAX  64u
#define HOST_REASONS_MAX  256u
#define HOST_STRUCT_MAX	  4096u /* bytes: no struct of the interface grows beyond */
#define HOST_STATE_MAX	  (UINT64_C(64) << 20)
#define HOST_SEGMENTS_MAX 32u

/* Does the descriptor's size cover this member? */
#define HOST_HAS(p, member) \
	((p)->size >= offsetof(struct pcptune_policy, member) + sizeof((p)->member))

/* The mapped segments of one plug-in: every pointer of a descriptor must lead into them. */
struct host_image {
	struct host_segment {
		uintptr_t start, end;
		bool exec;
	} segment[HOST_SEGMENTS_MAX];
	uint32_t n;
};

/* The change of entry i, NULL: none; at: where the next one stands, moved on. i ascends. */
static inline const struct pcptune_change *host_change_of(const struct pcptune_decision *d,
							  uint32_t *io_at, uint32_t i)
{
	const struct pcptune_change *ch = NULL;

	if (*io_at < d->n_changes)
		ch = (const void *)((const char *)d->changes + (size_t)*io_at * d->change_size);
	if (!ch || ch->index != i)
		return NULL;
	++*io_at;
	return ch;
}

/* Printf into a cause text of POLICY_WHY bytes; why may be NULL. Returns err. */
__attribute__((format(printf, 3, 4))) int host_why(char *why, int err, const char *fmt, ...);

/* 0, or -EACCES, -EINVAL ... with the component and its mode in why. real: an absolute path. */
int host_check_path(const char *real, char *why);
/* Reads the descriptor's numbers from the file itself, before any of its code can run. */
int host_check_elf(const char *real, char *why);
/* Opens a file that was found, and is the same still; -ESTALE: it is not. Close-on-exec. */
int host_open(const struct policy_file *f, char *why);
/* The same file opened anew, as who we are now; -errno. */
int host_reopen(int fd);
/* As policy_load_file(), by a descriptor of host_open(), once in a process. */
int host_load_fd(const struct policy_file *f, int fd, struct policy_module **ret, char *why);
/* Segments of the loaded object that holds address; -ENOENT: no such object. */
int host_image_of(const void *address, struct host_image *ret);
/* The descriptor but for its functions; file_name: what its name must be. */
int host_check_data(const struct pcptune_policy *p, const struct host_image *img,
		    const char *file_name, char *why);
/* The descriptor in full. */
int host_check_desc(const struct pcptune_policy *p, const struct host_image *img,
		    const char *file_name, char *why);
/* A module of a descriptor that was checked; NULL: no memory. */
struct policy_module *host_module_new(const struct pcptune_policy *desc, const char *file);
/* One whose code runs elsewhere. desc is malloc'ed, the module's on success. */
struct policy_module *host_module_remote(struct pcptune_policy *desc, const struct policy_file *f);
/* Why init() gave -EINVAL for these: the policy knows best. Static text. */
const char *host_refusal(const struct pcptune_policy *p, const struct pcptune_shape *shape,
			 const int64_t *params);
/* The numbers at the head of a descriptor, known before loading. */
int host_check_sizes(const struct pcptune_policy *p, char *why);
/* Is this a sentence that policy_sentence() can fill in? */
bool host_sentence_ok(const char *sentence);
bool host_name_ok(const char *name, bool dash);

#endif
