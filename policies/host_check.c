/* SPDX-License-Identifier: MIT */
/*
 * Everything that is asked of a policy before it is trusted: its path, its file, its descriptor.
 *
 * The path: whoever can write the file, or a directory above it, decides what runs in the daemon.
 * So each component of the real path belongs to root or to us and is not writable by others; a
 * sticky directory is fine, for nobody else can rename what is ours there.
 *
 * The file: the descriptor begins with plain numbers that no relocation touches, so that they can
 * be read from the file itself. A policy of another ABI is refused before its constructors run.
 *
 * The descriptor: every pointer leads into the mapped segments of the plug-in, every string ends
 * there, every function lies in executable memory. The functions here only read.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pcptune/rules.h>
#include "policies/host_internal.h"

#define SYMBOL	 "pcptune_policy_v1"
#define FILE_MAX (64 << 20)

/* ---- the path ---- */

static int check_component(const char *path, bool is_file, char *why)
{
	struct stat st;

	if (lstat(path, &st))
		return host_why(why, -errno, "%.180s: %s", path, strerror(errno));
	if (is_file && !S_ISREG(st.st_mode))
		return host_why(why, -EINVAL, "%.180s: is no regular file", path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return host_why(
			why, -EACCES,
			"%.140s: belongs to uid %u; a policy's path must belong to root or to "
			"uid %u",
			path, (unsigned int)st.st_uid, (unsigned int)geteuid());
	if (!(st.st_mode & (S_IWGRP | S_IWOTH)) || (!is_file && (st.st_mode & S_ISVTX)))
		return 0;
	return host_why(
		why, -EACCES,
		"%.140s: mode %04o lets %s write it; a policy's path must be writable by its "
		"owner only",
		path, (unsigned int)(st.st_mode & 07777),
		st.st_mode & S_IWOTH ? "others" : "its group");
}

int host_check_path(const char *real, char *why)
{
	char part[PATH_MAX];
	size_t len = strlen(real);
	int r;

	if (real[0] != '/' || len >= sizeof(part))
		return host_why(why, -EINVAL, "%.180s: not an absolute path", real);
	r = check_component("/", false, why);
	for (size_t i = 1; !r && i <= len; i++) {
		if (real[i] != '/' && real[i] != 0)
			continue;
		memcpy(part, real, i);
		part[i] = 0;
		r = check_component(part, i == len, why);
	}
	return r;
}

/* ---- the file ---- */

struct file_image {
	const char *data;
	size_t size;
};

/* A range of the file, NULL when it is not there or not aligned. */
static const void *at(const struct file_image *f, uint64_t off, uint64_t size)
{
	return off <= f->size && size <= f->size - off && off % 8 == 0 ? f->data + off : NULL;
}

static const ElfW(Shdr) * section(const struct file_image *f, const ElfW(Ehdr) * eh, uint64_t i)
{
	if (i >= eh->e_shnum || eh->e_shentsize != sizeof(ElfW(Shdr)))
		return NULL;
	return at(f, eh->e_shoff + i * sizeof(ElfW(Shdr)), sizeof(ElfW(Shdr)));
}

/* Value of the exported symbol; false: there is none. */
static bool symbol_value(const struct file_image *f, const ElfW(Ehdr) * eh, uint64_t *ret)
{
	const ElfW(Shdr) *sec = NULL, *str;
	const char *names;
	uint64_t i, n;

	for (i = 0; i < eh->e_shnum; i++) {
		sec = section(f, eh, i);
		if (!sec || sec->sh_type == SHT_DYNSYM)
			break;
	}
	str = sec && i < eh->e_shnum ? section(f, eh, sec->sh_link) : NULL;
	names = str && str->sh_offset <= f->size && str->sh_size <= f->size - str->sh_offset
			? f->data + str->sh_offset
			: NULL;
	if (!names || !at(f, sec->sh_offset, sec->sh_size))
		return false;
	n = sec->sh_size / sizeof(ElfW(Sym));
	for (i = 0; i < n; i++) {
		const ElfW(Sym) *sym = at(f, sec->sh_offset + i * sizeof(*sym), sizeof(*sym));

		if (sym && sym->st_shndx != SHN_UNDEF && sym->st_name < str->sh_size &&
		    str->sh_size - sym->st_name >= sizeof(SYMBOL) &&
		    memcmp(names + sym->st_name, SYMBOL, sizeof(SYMBOL)) == 0) {
			*ret = sym->st_value;
			return true;
		}
	}
	return false;
}

/* The bytes that will be mapped at an address, NULL: not from the file. */
static const void *at_address(const struct file_image *f, const ElfW(Ehdr) * eh, uint64_t address,
			      uint64_t size)
{
	for (uint64_t i = 0; i < eh->e_phnum; i++) {
		const ElfW(Phdr) *ph = at(f, eh->e_phoff + i * sizeof(*ph), sizeof(*ph));

		if (ph && ph->p_type == PT_LOAD && address >= ph->p_vaddr &&
		    address - ph->p_vaddr <= ph->p_filesz &&
		    size <= ph->p_filesz - (address - ph->p_vaddr))
			return at(f, ph->p_offset + (address - ph->p_vaddr), size);
	}
	return NULL;
}

static int check_image(const struct file_image *f, const char *real, char *why)
{
	const ElfW(Ehdr) *eh = at(f, 0, sizeof(*eh));
	struct pcptune_policy head = {0};
	const void *bytes;
	uint64_t value;

	if (!eh || memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0 || eh->e_type != ET_DYN ||
	    eh->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
	    eh->e_phentsize != sizeof(ElfW(Phdr)))
		return host_why(why, -ENOEXEC, "%.160s: is no shared object of this machine", real);
	if (!symbol_value(f, eh, &value))
		return host_why(why, -ENOEXEC, "%.160s: does not export %s", real, SYMBOL);
	bytes = at_address(f, eh, value, PCPTUNE_POLICY_MIN_SIZE);
	if (!bytes)
		return host_why(why, -EPROTO, "%.160s: %s is no descriptor of at least %zu bytes",
				real, SYMBOL, (size_t)PCPTUNE_POLICY_MIN_SIZE);
	memcpy(&head, bytes, PCPTUNE_POLICY_MIN_SIZE);
	return host_check_sizes(&head, why);
}

static int read_all(int fd, char *buf, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = pread(fd, buf + done, size - done, (off_t)done);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			return -EIO;
		if (n > 0)
			done += (size_t)n;
	}
	return 0;
}

int host_check_elf(const char *real, char *why)
{
	struct file_image f = {0};
	struct stat st;
	char *data = NULL;
	int r, fd = open(real, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return host_why(why, -errno, "%.180s: %s", real, strerror(errno));
	if (fstat(fd, &st))
		r = -errno;
	else if (st.st_size > FILE_MAX)
		r = -EFBIG;
	else if (!(data = malloc((size_t)st.st_size + 1)))
		r = -ENOMEM;
	else
		r = read_all(fd, data, (size_t)st.st_size);
	close(fd);
	if (r) {
		host_why(why, 0, "%.180s: %s", real, strerror(-r));
	} else {
		f.data = data;
		f.size = (size_t)st.st_size;
		r = check_image(&f, real, why);
	}
	free(data);
	return r;
}

/* ---- pointers ---- */

struct image_search {
	uintptr_t address;
	struct host_image *img;
};

static int image_cb(struct dl_phdr_info *info, size_t size, void *cookie)
{
	struct image_search *s = cookie;
	bool found = false;
	uint32_t n = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum && n < HOST_SEGMENTS_MAX; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		struct host_segment *seg = &s->img->segment[n];

		if (ph->p_type != PT_LOAD)
			continue;
		seg->start = info->dlpi_addr + ph->p_vaddr;
		seg->end = seg->start + ph->p_memsz;
		seg->exec = ph->p_flags & PF_X;
		found |= s->address >= seg->start && s->address < seg->end;
		n++;
	}
	s->img->n = n;
	return found;
}

int host_image_of(const void *address, struct host_image *ret)
{
	struct image_search s = {(uintptr_t)address, ret};

	return dl_iterate_phdr(image_cb, &s) ? 0 : -ENOENT;
}

/* Bytes from p to the end of its segment; 0: p leads elsewhere. */
static size_t bytes_from(const struct host_image *img, uintptr_t p, bool exec)
{
	for (uint32_t i = 0; i < img->n; i++)
		if (p >= img->segment[i].start && p < img->segment[i].end)
			return exec && !img->segment[i].exec ? 0 : img->segment[i].end - p;
	return 0;
}

static bool array_ok(const struct host_image *img, const void *p, size_t n, size_t size)
{
	return n == 0 ||
	       ((uintptr_t)p % 8 == 0 && bytes_from(img, (uintptr_t)p, false) / size >= n);
}

/* A printable line of min..max bytes. */
static bool line_ok(const struct host_image *img, const char *s, size_t min, size_t max)
{
	size_t room = bytes_from(img, (uintptr_t)s, false);
	size_t len;

	if (!room)
		return false;
	len = strnlen(s, room < max + 1 ? room : max + 1);
	if (len == room || len < min || len > max)
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)s[i] < ' ' || s[i] == 0x7f)
			return false;
	return true;
}

bool host_name_ok(const char *name, bool dash)
{
	size_t len = strlen(name);

	if (len < 1 || len > HOST_WORD_MAX || name[0] < 'a' || name[0] > 'z')
		return false;
	for (size_t i = 1; i < len; i++) {
		char c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
		      (dash && c == '-')))
			return false;
	}
	return true;
}

bool policy_name_ok(const char *name)
{
	return host_name_ok(name, true);
}

/* ---- the descriptor ---- */

static bool size_ok(uint32_t size, size_t v1)
{
	return size >= v1 && size <= HOST_STRUCT_MAX && size % 8 == 0;
}

int host_check_sizes(const struct pcptune_policy *p, char *why)
{
	const struct {
		const char *name;
		uint32_t size;
		size_t v1;
	} row[] = {
		{"policy", p->size, PCPTUNE_POLICY_MIN_SIZE},
		{"sample", p->sample_size, PCPTUNE_SAMPLE_MIN_SIZE},
		{"cpu", p->cpu_size, sizeof(struct pcptune_cpu)},
		{"decision", p->decision_size, sizeof(struct pcptune_decision)},
		{"change", p->change_size, sizeof(struct pcptune_change)},
		{"param", p->param_size, sizeof(struct pcptune_param)},
		{"reason", p->reason_size, sizeof(struct pcptune_reason)},
	};

	if (p->abi != PCPTUNE_POLICY_ABI)
		return host_why(why, -EPROTO, "descriptor: abi is %u, this host speaks %u", p->abi,
				PCPTUNE_POLICY_ABI);
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (!size_ok(row[i].size, row[i].v1))
			return host_why(
				why, -EPROTO,
				"descriptor: size of struct pcptune_%s is %u, right is %zu or "
				"more, a multiple of 8, at most %u",
				row[i].name, row[i].size, row[i].v1, HOST_STRUCT_MAX);
	return 0;
}

static int check_choices(const struct pcptune_param *p, const struct host_image *img, char *why)
{
	uint32_t n = 0;

	if (p->type != PCPTUNE_PARAM_ENUM)
		return p->choices ? host_why(why, -EPROTO,
					     "parameter %s: choices without type ENUM", p->name)
				  : 0;
	for (;; n++) {
		if (n > HOST_CHOICES_MAX || !array_ok(img, p->choices + n, 1, sizeof(char *)))
			return host_why(why, -EPROTO, "parameter %s: choices do not end", p->name);
		if (!p->choices[n])
			break;
		if (!line_ok(img, p->choices[n], 1, HOST_WORD_MAX) ||
		    !host_name_ok(p->choices[n], true))
			return host_why(why, -EPROTO, "parameter %s: choice %u is no name", p->name,
					n);
	}
	if (p->min != 0 || p->max != (int64_t)n - 1)
		return host_why(why, -EPROTO, "parameter %s: range is %lld..%lld, right is 0..%d",
				p->name, (long long)p->min, (long long)p->max, (int)n - 1);
	return 0;
}

static int check_param(const struct pcptune_policy *d, uint32_t i, const struct host_image *img,
		       char *why)
{
	const char *base = (const char *)d->params;
	const struct pcptune_param *p = (const void *)(base + (size_t)i * d->param_size);

	if (!line_ok(img, p->name, 1, HOST_WORD_MAX) || !host_name_ok(p->name, false))
		return host_why(why, -EPROTO, "parameter %u: its name is none", i);
	if (!line_ok(img, p->unit, 0, HOST_UNIT_MAX) || !line_ok(img, p->text, 1, HOST_TEXT_MAX))
		return host_why(why, -EPROTO, "parameter %s: unit or text is missing", p->name);
	if (p->type < PCPTUNE_PARAM_INT || p->type > PCPTUNE_PARAM_ENUM)
		return host_why(why, -EPROTO, "parameter %s: type is %u, right is 1..3", p->name,
				p->type);
	if (p->min > p->def || p->def > p->max)
		return host_why(why, -EPROTO, "parameter %s: default %lld is not in %lld..%lld",
				p->name, (long long)p->def, (long long)p->min, (long long)p->max);
	if (p->type == PCPTUNE_PARAM_BOOL && (p->min != 0 || p->max != 1))
		return host_why(why, -EPROTO, "parameter %s: range of a BOOL is 0..1", p->name);
	for (uint32_t k = 0; k < i; k++) {
		const struct pcptune_param *q = (const void *)(base + (size_t)k * d->param_size);
		if (strcmp(p->name, q->name) == 0)
			return host_why(why, -EPROTO, "parameter %s: is there twice", p->name);
	}
	return check_choices(p, img, why);
}

static int check_reason(const struct pcptune_policy *d, uint32_t i, const struct host_image *img,
			char *why)
{
	const char *base = (const char *)d->reasons;
	const struct pcptune_reason *r = (const void *)(base + (size_t)i * d->reason_size);

	if (r->id < 1 || r->id > 65535 || r->kind > 1)
		return host_why(why, -EPROTO, "reason %u: id %u or kind %u is out of range", i,
				r->id, r->kind);
	if (!line_ok(img, r->name, 1, HOST_WORD_MAX) || !host_name_ok(r->name, true))
		return host_why(why, -EPROTO, "reason %u: its name is none", r->id);
	if (!line_ok(img, r->sentence, 1, HOST_TEXT_MAX) || !host_sentence_ok(r->sentence))
		return host_why(why, -EPROTO, "reason %s: its sentence is missing or malformed",
				r->name);
	for (uint32_t k = 0; k < i; k++) {
		const struct pcptune_reason *q = (const void *)(base + (size_t)k * d->reason_size);
		if (r->id == q->id || strcmp(r->name, q->name) == 0)
			return host_why(why, -EPROTO, "reason %s (%u): is there twice", r->name,
					r->id);
	}
	return 0;
}

static int check_tables(const struct pcptune_policy *p, const struct host_image *img, char *why)
{
	int r = 0;

	if (p->n_params > POLICY_OWN_PARAMS ||
	    !array_ok(img, p->params, p->n_params, p->param_size))
		return host_why(why, -EPROTO, "descriptor: %u parameters, at most %u", p->n_params,
				POLICY_OWN_PARAMS);
	if (p->n_reasons < 1 || p->n_reasons > HOST_REASONS_MAX ||
	    !array_ok(img, p->reasons, p->n_reasons, p->reason_size))
		return host_why(why, -EPROTO, "descriptor: %u reasons, right is 1..%u",
				p->n_reasons, HOST_REASONS_MAX);
	for (uint32_t i = 0; !r && i < p->n_params; i++)
		r = check_param(p, i, img, why);
	for (uint32_t i = 0; !r && i < p->n_reasons; i++)
		r = check_reason(p, i, img, why);
	return r;
}

int host_check_data(const struct pcptune_policy *p, const struct host_image *img,
		    const char *file_name, char *why)
{
	int r;

	if (!array_ok(img, p, 1, sizeof(*p)) || (uintptr_t)p % _Alignof(struct pcptune_policy))
		return host_why(why, -EPROTO, "descriptor: does not fit its segment");
	r = host_check_sizes(p, why);
	if (r)
		return r;
	if (!line_ok(img, p->name, 1, HOST_WORD_MAX) || !host_name_ok(p->name, true))
		return host_why(why, -EPROTO, "descriptor: its name is none");
	if (strcmp(p->name, file_name) != 0)
		return host_why(why, -EPROTO,
				"descriptor: the name is \"%s\", the file's is \"%s\"", p->name,
				file_name);
	if (!line_ok(img, p->version, 1, HOST_WORD_MAX) ||
	    !line_ok(img, p->summary, 1, HOST_TEXT_MAX))
		return host_why(why, -EPROTO, "descriptor: version or summary is missing");
	return check_tables(p, img, why);
}

int host_check_desc(const struct pcptune_policy *p, const struct host_image *img,
		    const char *file_name, char *why)
{
	int r = host_check_data(p, img, file_name, why);

	if (r)
		return r;
	if (!bytes_from(img, (uintptr_t)p->state_size, true) ||
	    !bytes_from(img, (uintptr_t)p->init, true) ||
	    !bytes_from(img, (uintptr_t)p->decide, true))
		return host_why(
			why, -EPROTO,
			"descriptor: state_size, init or decide is no function of the policy");
	if (HOST_HAS(p, refusal) && p->refusal && !bytes_from(img, (uintptr_t)p->refusal, true))
		return host_why(why, -EPROTO, "descriptor: refusal is no function of the policy");
	return 0;
}
