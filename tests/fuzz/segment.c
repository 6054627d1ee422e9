/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a segment: opened, and when the reader takes it, used in every way while its words
 * change underneath.
 *
 * Input: the content of the memfd; its last bytes are also what is written over it later.
 */
#include <errno.h>
#include <pcptune/rules.h>
#include "lib/segreader.h"
#include "tests/fuzz/seeds.h"
#include "tests/unit/test_segreader.h"

#define MAX_CPUS 64

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const uint32_t shapes[][2] = {{1, 1}, {2, 3}, {1, 4}};

	(void)argc;
	(void)argv;
	for (unsigned i = 0; i < 3; i++) {
		struct made m = made_new(shapes[i][0], shapes[i][1]);
		struct pcptune_cpu_block *c = made_cpu(&m, 0);
		char name[32];

		made_refill(&c->list[0], 63);
		made_pop(&c->list[0]);
		made_push(&c->list[4]);
		made_add(c->zctr.alloc_zone, 63);
		made_hold(c);
		c->pcp.high = 378;
		c->pcp.high_limit = 4096;
		snprintf(name, sizeof(name), "segment-%u", i);
		seed_write(name, m.base, m.h->size, NULL, 0);
		made_free(&m, 1);
	}
	return 0;
}

/* A memfd of these bytes; base is our own mapping of it. */
static int make_memfd(const uint8_t *data, size_t size, char **base)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	*base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(*base != MAP_FAILED);
	memcpy(*base, data, size);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	return fd;
}

static void must_be_bounded(const struct pcptune_cpu *c)
{
	MUST(c->high <= PCPTUNE_MAX_HIGH && c->high_min <= PCPTUNE_MAX_HIGH);
	MUST(c->high_max <= PCPTUNE_MAX_HIGH && c->free_count <= PCPTUNE_MAX_HIGH);
	MUST(c->count <= 2 * PCPTUNE_MAX_HIGH && c->batch <= PCPTUNE_MAX_BATCH);
	MUST(c->scale_max <= PCPTUNE_MAX_SCALE && c->rules <= PCPTUNE_RULES_MAX);
	MUST(c->alloc_factor <= 16);
	MUST(c->refills <= UINT64_C(1) << 56 && c->alloc_zone <= UINT64_C(1) << 56);
}

static void sample_all(struct segreader *sr, uint32_t n)
{
	static struct pcptune_cpu cpus[MAX_CPUS * PCPTUNE_MAX_ZONES], total;
	static uint32_t active[MAX_CPUS * PCPTUNE_MAX_ZONES];
	uint32_t n_active = segreader_sample(sr, cpus, active);

	MUST(n_active <= n);
	for (uint32_t i = 0; i < n_active; i++) {
		const struct pcptune_cpu *c = &cpus[active[i]];

		MUST(active[i] < n);
		MUST((c->flags & ~PCPTUNE_CPU_LISTS_ONLY) == PCPTUNE_CPU_ACTIVE);
		MUST(!(c->flags & PCPTUNE_CPU_LISTS_ONLY) || !(c->refills | c->alloc_zone));
	}
	for (uint32_t i = 0; i < n; i++) {
		must_be_bounded(&cpus[i]);
		segreader_cpu_total(sr, i, &total);
		must_be_bounded(&total);
	}
}

static void look_at_everything(struct segreader *sr, struct segreader_info *info)
{
	struct pcptune_shape shape;
	struct segreader_zone zone;
	struct segreader_proc proc;
	struct pcptune_desc desc;

	segreader_info(sr, info);
	MUST(strnlen(info->name, sizeof(info->name)) < sizeof(info->name) && info->name[0]);
	segreader_shape(sr, &shape);
	MUST(shape.high_limit >= 1 && shape.high_limit <= PCPTUNE_MAX_HIGH);
	MUST(segreader_mode(sr) <= PCPTUNE_MODE_RSEQ);
	segreader_zone(sr, info->n_zones - 1, &zone);
	segreader_proc(sr, &proc);
	for (uint32_t i = 0; i < 64; i++)
		(void)segreader_desc(sr, i, &desc);
}

/* Whatever is there: a record that no function of tracker.h has trouble with, or none. */
static void read_records(struct segreader *sr, uint32_t n)
{
	struct pcptune_record r;
	struct pcptune_band sum;

	pcptune_band_init(&sum);
	for (uint32_t i = 0; i < n; i++) {
		if (!segreader_record(sr, i, &r))
			continue;
		MUST(r.index == i && r.band.n < PCPTUNE_BAND_STACK);
		pcptune_band_merge(&sum, &r.band);
		pcptune_band_traffic(&r.band, 100, 50, NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct segreader_limits limits = {.max_cpus = MAX_CPUS, .max_bytes = 1 << 20};
	struct control control = {.high = 1};
	struct segreader_info info;
	struct segreader *sr = NULL;
	char *base, why[160] = "";
	uint32_t seq, ack;
	int fd, r;

	if (!size)
		return 0;
	fd = make_memfd(data, size, &base);
	r = segreader_open(fd, &limits, &sr, why, sizeof(why));
	MUST(r == 0 || (r == -EPROTO && why[0] && !sr));
	if (r) {
		close(fd);
		munmap(base, size);
		return 0;
	}
	look_at_everything(sr, &info);
	sample_all(sr, info.n_zones * info.n_cpus);
	/* the whole file turns into something else: the header, too */
	for (size_t i = 0; i < size; i++)
		base[i] ^= (char)data[size - 1 - i];
	sample_all(sr, info.n_zones * info.n_cpus);
	segreader_rebase(sr);
	sample_all(sr, info.n_zones * info.n_cpus);
	look_at_everything(sr, &info);
	read_records(sr, info.n_zones * info.n_cpus);
	segreader_control_write(sr, info.n_zones * info.n_cpus - 1, &control, &seq);
	segreader_control_read(sr, 0, &control, &seq, &ack);
	segreader_lease(sr, 1);
	segreader_wake(sr);
	segreader_close(sr);
	munmap(base, size);
	return 0;
}
