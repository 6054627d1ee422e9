/* SPDX-License-Identifier: MIT */
/*
 * Opening a segment: everything that could make a later load fault or go astray is checked here,
 * once, on a copy of the header that is then never read again. What is wrong is said in a sentence
 * that the target gets as the reason of its refusal.
 */
#include "lib/segreader_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct opening {
	const struct segreader_limits *limits;
	char *why;
	size_t why_size;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct opening *o, const char *fmt,
							...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->why, o->why_size, fmt, ap);
	va_end(ap);
	return -EPROTO;
}

static int refuse_errno(const struct opening *o, const char *what)
{
	int e = errno;

	snprintf(o->why, o->why_size, "segment: %s: %s", what, strerror(e));
	return -e;
}

static int check_file(const struct opening *o, int fd, uint64_t *ret_size)
{
	struct statfs fs;
	struct stat st;
	int seals;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return refuse_errno(o, "descriptor can not be examined");
	if (!S_ISREG(st.st_mode))
		return refuse(o, "segment: the descriptor is not a file; a memfd is needed");
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return refuse(o, "segment: the file can not be sealed; a memfd is needed");
	if (fs.f_type == HUGETLBFS_MAGIC)
		return refuse(o, "segment: the memfd uses huge pages; ordinary pages are needed");
	if (!(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW))
		return refuse(o,
			      "segment: seals are 0x%x; F_SEAL_SHRINK and F_SEAL_GROW are needed",
			      (unsigned)seals);
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return refuse(o,
			      "segment: sealed against writing; the daemon writes control words");
	if (o->limits->max_bytes && (uint64_t)st.st_size > o->limits->max_bytes)
		return refuse(o, "segment: %llu bytes; at most %llu are allowed",
			      (unsigned long long)st.st_size,
			      (unsigned long long)o->limits->max_bytes);
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

static int check_identity(const struct opening *o, const struct pcptune_seg_header *h,
			  uint64_t size)
{
	if (h->magic == __builtin_bswap64(PCPTUNE_SEG_MAGIC))
		return refuse(
			o, "segment: magic is byte-swapped; both sides need the same byte order");
	if (h->magic != PCPTUNE_SEG_MAGIC)
		return refuse(o, "segment: magic is 0x%016llx; 0x%016llx is needed",
			      (unsigned long long)h->magic, (unsigned long long)PCPTUNE_SEG_MAGIC);
	if (h->layout != PCPTUNE_SEG_LAYOUT)
		return refuse(o, "segment: layout version is %u; this daemon knows %u", h->layout,
			      PCPTUNE_SEG_LAYOUT);
	if (h->header_size < sizeof(*h) || h->header_size % 8)
		return refuse(
			o, "segment: header_size is %u; a multiple of 8 of at least %zu is needed",
			h->header_size, sizeof(*h));
	if (h->size > size || h->size < h->header_size)
		return refuse(o, "segment: size says %llu bytes; the file has %llu, the header %u",
			      (unsigned long long)h->size, (unsigned long long)size,
			      h->header_size);
	return 0;
}

static int check_counts(const struct opening *o, const struct pcptune_seg_header *h)
{
	uint32_t max = o->limits->max_cpus;

	if (!max || max > PCPTUNE_MAX_CPUS)
		max = PCPTUNE_MAX_CPUS;
	if (h->n_zones < 1 || h->n_zones > PCPTUNE_MAX_ZONES)
		return refuse(o, "segment: %u zones; 1 to %u are allowed", h->n_zones,
			      PCPTUNE_MAX_ZONES);
	if (h->n_cpus < 1 || h->n_cpus > max)
		return refuse(o, "segment: %u CPUs; 1 to %u are allowed", h->n_cpus, max);
	if (h->n_lists != PCPTUNE_N_LISTS ||
	    memcmp(h->list_orders, list_orders, sizeof(list_orders)))
		return refuse(
			o, "segment: %u lists of orders %u %u %u %u %u; 5 of 0 1 2 3 9 are needed",
			h->n_lists, h->list_orders[0], h->list_orders[1], h->list_orders[2],
			h->list_orders[3], h->list_orders[4]);
	return 0;
}

static int check_stride(const struct opening *o, const char *name, uint32_t stride, size_t least,
			uint32_t align)
{
	if (stride >= least && stride % align == 0)
		return 0;
	return refuse(o, "segment: %s is %u; a multiple of %u of at least %zu is needed", name,
		      stride, align, least);
}

struct extent {
	const char *name;
	uint64_t off, len;
	uint32_t align;
};

static int check_extents(const struct opening *o, const struct extent *e, size_t n, uint64_t size)
{
	for (size_t i = 0; i < n; i++) {
		if (e[i].off % e[i].align)
			return refuse(o, "segment: %s is %llu; a multiple of %u is needed",
				      e[i].name, (unsigned long long)e[i].off, e[i].align);
		if (e[i].off > size || e[i].len > size - e[i].off)
			return refuse(o, "segment: %s: %llu bytes at %llu; the file ends at %llu",
				      e[i].name, (unsigned long long)e[i].len,
				      (unsigned long long)e[i].off, (unsigned long long)size);
		for (size_t k = 0; k < i; k++)
			if (e[i].off < e[k].off + e[k].len && e[k].off < e[i].off + e[i].len)
				return refuse(o, "segment: %s at %llu overlaps %s at %llu",
					      e[i].name, (unsigned long long)e[i].off, e[k].name,
					      (unsigned long long)e[k].off);
	}
	return 0;
}

static int check_places(const struct opening *o, const struct pcptune_seg_header *h, uint64_t size)
{
	uint64_t cpus = (uint64_t)h->n_zones * h->n_cpus;
	/* no product wraps: 2^32 x 2^32 at most for the rows, 2^6 x 2^13 x 2^32 for the CPUs */
	bool tracks = h->tracks_off;
	struct extent e[] = {
		{"header", 0, h->header_size, 8},
		{"desc_off", h->desc_off, (uint64_t)h->n_desc * h->desc_size, 8},
		{"proc_off", h->proc_off, sizeof(struct pcptune_proc_block),
		 _Alignof(struct pcptune_proc_block)},
		{"zones_off", h->zones_off, (uint64_t)h->n_zones * h->zone_stride,
		 _Alignof(struct pcptune_zone_block)},
		{"cpus_off", h->cpus_off, cpus * h->cpu_stride, _Alignof(struct pcptune_cpu_block)},
		{"tracks_off", h->tracks_off, cpus * h->track_stride,
		 _Alignof(struct pcptune_track)},
	};
	int r;

	r = check_stride(o, "desc_size", h->desc_size, sizeof(struct pcptune_desc), 8);
	if (!r)
		r = check_stride(o, "zone_stride", h->zone_stride,
				 sizeof(struct pcptune_zone_block),
				 _Alignof(struct pcptune_zone_block));
	if (!r)
		r = check_stride(o, "cpu_stride", h->cpu_stride, sizeof(struct pcptune_cpu_block),
				 _Alignof(struct pcptune_cpu_block));
	if (!r && tracks)
		r = check_stride(o, "track_stride", h->track_stride, sizeof(struct pcptune_track),
				 _Alignof(struct pcptune_track));
	return r ? r : check_extents(o, e, sizeof(e) / sizeof(e[0]) - !tracks, size);
}

/* The header as it is now, once; a reader works with this copy only. */
static int copy_header(const struct opening *o, int fd, uint64_t size, struct pcptune_seg_header *h)
{
	ssize_t got;

	if (size < sizeof(*h))
		return refuse(o, "segment: %llu bytes; the header alone has %zu",
			      (unsigned long long)size, sizeof(*h));
	got = pread(fd, h, sizeof(*h), 0);
	if (got < 0)
		return refuse_errno(o, "header can not be read");
	if ((size_t)got != sizeof(*h))
		return refuse(o, "segment: only %zd bytes of the header can be read", got);
	return 0;
}

void segreader_printable(char *text, size_t n)
{
	text[n - 1] = 0;
	for (char *c = text; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
}

static int make_tables(struct segreader *sr)
{
	sr->n = sr->h.n_zones * sr->h.n_cpus;
	sr->before = lines_calloc(sr->n, sizeof(*sr->before));
	sr->counters = calloc(sr->n, sizeof(*sr->counters));
	return sr->before && sr->counters ? 0 : -ENOMEM;
}

static int open_checked(const struct opening *o, int fd, struct segreader *sr)
{
	uint64_t size;
	int r;

	r = check_file(o, fd, &size);
	if (!r)
		r = copy_header(o, fd, size, &sr->h);
	if (!r)
		r = check_identity(o, &sr->h, size);
	if (!r)
		r = check_counts(o, &sr->h);
	if (!r)
		r = check_places(o, &sr->h, size);
	if (r)
		return r;
	segreader_printable(sr->h.name, sizeof(sr->h.name));
	if (!sr->h.name[0])
		memcpy(sr->h.name, "unnamed", sizeof("unnamed"));
	if (make_tables(sr)) {
		errno = ENOMEM;
		return refuse_errno(o, "tables of the reader");
	}
	sr->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sr->base == MAP_FAILED) {
		sr->base = NULL;
		return refuse_errno(o, "can not be mapped");
	}
	sr->bytes = size;
	return 0;
}

int segreader_open(int fd, const struct segreader_limits *limits, struct segreader **ret, char *why,
		   size_t why_size)
{
	struct opening o = {limits, why, why_size};
	struct segreader *sr = calloc(1, sizeof(*sr));
	int r;

	if (!sr) {
		errno = ENOMEM;
		return refuse_errno(&o, "reader");
	}
	sr->fd = -1;
	r = open_checked(&o, fd, sr);
	if (r) {
		segreader_close(sr);
		return r;
	}
	sr->fd = fd;
	sr->first = true;
	*ret = sr;
	return 0;
}

void segreader_close(struct segreader *sr)
{
	if (!sr)
		return;
	if (sr->base)
		munmap(sr->base, sr->bytes);
	if (sr->fd >= 0)
		close(sr->fd);
	free(sr->before);
	free(sr->counters);
	free(sr->records);
	free(sr);
}
