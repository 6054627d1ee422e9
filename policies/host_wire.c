/* SPDX-License-Identifier: MIT */
/*
 * A descriptor on its way between two processes: structs and strings one after the other, with
 * offsets from the beginning where pointers were, 0 for NULL.
 *
 * The receiver makes pointers of them again, whatever they are, looks at nothing behind one before
 * it knows that it leads into the image, and then puts the result through the same check as a
 * descriptor that the linker mapped.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "policies/host_wire.h"

static size_t align_up(size_t v)
{
	return (v + 63) & ~(size_t)63;
}

void wire_area(uint32_t n, const struct pcptune_policy *p, size_t state_size, struct wire_area *ret)
{
	size_t decision = p->decision_size;

	if (decision < sizeof(struct pcptune_decision))
		decision = sizeof(struct pcptune_decision);
	ret->cpus = align_up(sizeof(struct pcptune_sample));
	ret->active = align_up(ret->cpus + (size_t)n * sizeof(struct pcptune_cpu));
	ret->records = align_up(ret->active + (size_t)n * sizeof(uint32_t));
	ret->decision = align_up(ret->records + (size_t)n * sizeof(struct pcptune_record));
	ret->changes = align_up(ret->decision + decision);
	ret->state = align_up(ret->changes + (size_t)n * p->change_size);
	ret->size = align_up(ret->state + state_size);
}

/* ---- packing ---- */

struct packer {
	char *base;
	size_t len, room;
};

/* Room for bytes; offset 0 is nobody's. Once there is no more, len is beyond room and stays. */
static void *take(struct packer *k, size_t bytes, size_t *ret_offset)
{
	size_t at = (k->len + 7) & ~(size_t)7;

	*ret_offset = at;
	k->len = at + bytes;
	return k->len <= k->room ? k->base + at : NULL;
}

static const char *put_text(struct packer *k, const char *text)
{
	size_t offset, n = strlen(text) + 1;
	char *to = take(k, n, &offset);

	if (to)
		memcpy(to, text, n);
	return (const char *)offset;
}

static const char *const *put_choices(struct packer *k, const char *const *choices)
{
	size_t offset, n = 0;
	const char **to;

	if (!choices)
		return NULL;
	while (choices[n])
		n++;
	to = take(k, (n + 1) * sizeof(*to), &offset);
	for (size_t i = 0; i < n; i++) {
		const char *text = put_text(k, choices[i]);

		if (to)
			to[i] = text;
	}
	if (to)
		to[n] = NULL;
	return (const char *const *)offset;
}

static void put_params(struct packer *k, const struct policy_module *m, struct pcptune_policy *p)
{
	size_t offset;
	struct pcptune_param *to = take(k, p->n_params * sizeof(*to), &offset);

	p->params = (const void *)offset;
	for (uint32_t i = 0; i < p->n_params; i++) {
		struct pcptune_param one = *policy_param(m, i);

		one.name = put_text(k, one.name);
		one.unit = put_text(k, one.unit);
		one.text = put_text(k, one.text);
		one.choices = put_choices(k, one.choices);
		if (to)
			to[i] = one;
	}
}

static void put_reasons(struct packer *k, const struct policy_module *m, struct pcptune_policy *p)
{
	const struct pcptune_policy *d = policy_desc(m);
	size_t offset;
	struct pcptune_reason *to = take(k, p->n_reasons * sizeof(*to), &offset);

	p->reasons = (const void *)offset;
	for (uint32_t i = 0; i < p->n_reasons; i++) {
		struct pcptune_reason one =
			*(const struct pcptune_reason *)((const char *)d->reasons +
							 (size_t)i * d->reason_size);

		one.name = put_text(k, one.name);
		one.sentence = put_text(k, one.sentence);
		if (to)
			to[i] = one;
	}
}

int wire_pack(const struct policy_module *m, void *image, size_t room, size_t *ret_len)
{
	const struct pcptune_policy *d = policy_desc(m);
	struct packer k = {image, 0, room};
	struct pcptune_policy p = {0};
	size_t offset;
	void *head = take(&k, sizeof(p), &offset);

	memcpy(&p, d, d->size < sizeof(p) ? d->size : sizeof(p));
	p.size = sizeof(p);
	p.param_size = sizeof(struct pcptune_param);
	p.reason_size = sizeof(struct pcptune_reason);
	p.state_size = NULL;
	p.init = NULL;
	p.decide = NULL;
	p.refusal = NULL;
	p.name = put_text(&k, p.name);
	p.version = put_text(&k, p.version);
	p.summary = put_text(&k, p.summary);
	put_params(&k, m, &p);
	put_reasons(&k, m, &p);
	if (k.len > room)
		return -E2BIG;
	memcpy(head, &p, sizeof(p));
	*ret_len = k.len;
	return 0;
}

/* ---- unpacking ---- */

struct image {
	char *base;
	size_t len;
};

/* What an offset means; outside of the image it becomes a pointer that no check lets pass. */
static void *pointer(const struct image *im, const void *offset, size_t n, size_t size)
{
	uintptr_t at = (uintptr_t)offset;

	if (!at || at >= im->len || (im->len - at) / size < n)
		return NULL;
	return im->base + at;
}

static const char *text(const struct image *im, const char *offset)
{
	return pointer(im, offset, 1, 1);
}

static const char *const *choices(const struct image *im, const char *const *offset)
{
	const char **at = pointer(im, offset, 1, sizeof(*at));

	if (!at || (uintptr_t)at % sizeof(*at))
		return NULL;
	for (size_t i = 0; (size_t)((char *)(at + i + 1) - im->base) <= im->len && at[i]; i++)
		at[i] = text(im, at[i]);
	return (const char *const *)at;
}

static int unpack_tables(const struct image *im, struct pcptune_policy *p)
{
	/* tables may lie over each other: what is counted by is not read again */
	const uint32_t n_params = p->n_params, n_reasons = p->n_reasons;
	struct pcptune_param *params = pointer(im, p->params, n_params, sizeof(*params));
	struct pcptune_reason *reasons = pointer(im, p->reasons, n_reasons, sizeof(*reasons));

	if (p->param_size != sizeof(*params) || p->reason_size != sizeof(*reasons) ||
	    (n_params && !params) || !reasons || (uintptr_t)params % 8 || (uintptr_t)reasons % 8)
		return -EPROTO;
	for (uint32_t i = 0; i < n_params; i++) {
		params[i].name = text(im, params[i].name);
		params[i].unit = text(im, params[i].unit);
		params[i].text = text(im, params[i].text);
		params[i].choices = choices(im, params[i].choices);
	}
	for (uint32_t i = 0; i < n_reasons; i++) {
		reasons[i].name = text(im, reasons[i].name);
		reasons[i].sentence = text(im, reasons[i].sentence);
	}
	p->params = params;
	p->reasons = reasons;
	return 0;
}

int wire_unpack(const void *bytes, size_t len, const char *name, struct pcptune_policy **ret,
		char *why)
{
	struct image im = {malloc(len ? len : 1), len};
	struct pcptune_policy *p = (struct pcptune_policy *)im.base;
	struct host_image place = {{{0}}, 1};
	int r;

	if (!p)
		return host_why(why, -ENOMEM, "no memory for the tables of policy \"%s\"", name);
	memcpy(p, bytes, len);
	place.segment[0] = (struct host_segment){(uintptr_t)p, (uintptr_t)p + len, false};
	if (len < sizeof(*p) || p->size != sizeof(*p)) {
		r = host_why(why, -EPROTO, "policy \"%s\": its process sent no tables", name);
	} else {
		p->name = text(&im, p->name);
		p->version = text(&im, p->version);
		p->summary = text(&im, p->summary);
		p->state_size = NULL;
		p->init = NULL;
		p->decide = NULL;
		p->refusal = NULL;
		r = unpack_tables(&im, p);
		if (r)
			host_why(why, r, "policy \"%s\": its process sent damaged tables", name);
		else
			r = host_check_data(p, &place, name, why);
	}
	if (r)
		free(p);
	else
		*ret = p;
	return r;
}
