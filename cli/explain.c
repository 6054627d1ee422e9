/* SPDX-License-Identifier: MIT */
/*
 * `pcptune explain ID`: gathers all that the log knows about one decision.
 *
 * The log alone is asked, never the daemon: an explanation must be the same years later. The
 * sample is decoded from its chunk; when retention has merged it away, the rest is still told.
 */
#include "cli/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "cli/decision.h"
#include "lib/codec.h"
#include "lib/text.h"

struct args {
	const char *socket, *db, *policy_path;
	bool json;
};

const struct cli_option options_explain[] = {
	CLI_OPT_DB(struct args, db),
	CLI_OPT_POLICY_PATH(struct args, policy_path),
	CLI_OPT_SOCKET(struct args, socket),
	CLI_OPT_JSON(struct args, json),
	{0},
};

double explain_contend(uint64_t wait_ns, uint64_t cpu_us)
{
	return cpu_us ? (double)wait_ns / ((double)cpu_us * 10) : -1;
}

/* ---- the sample ---- */

struct search {
	struct story *s;
	struct pcptune_decoder *dec;
};

static uint64_t felt_wait_ns(const struct pcptune_cpu *cpu)
{
	return cpu->lock_alloc_wait_ns + cpu->lock_free_wait_ns;
}

static void take_sample(struct story *story, const struct pcptune_sample *sample)
{
	uint64_t index = (uint64_t)story->d.zone * story->t.shape.n_cpus + story->d.cpu;
	uint32_t i;

	if (index >= sample->n_cpus)
		return;
	story->s = *sample;
	story->s.cpus = NULL;
	story->s.active = NULL;
	story->cpu = *pcptune_sample_cpu(sample, (uint32_t)index);
	for (i = 0; i < sample->n_active; i++)
		story->target_wait_ns +=
			felt_wait_ns(pcptune_sample_cpu(sample, sample->active[i]));
	story->have_sample = true;
}

/* Returns 1 when there is nothing more to look for. A damaged chunk is passed by. */
static int in_chunk(const struct chunk_totals *totals, struct logstamp t, const uint8_t *data,
		    size_t len, void *cookie)
{
	struct search *f = cookie;
	const struct pcptune_sample *sample;

	(void)t;
	if (totals->seq_first > f->s->d.seq)
		return 1;
	decoder_begin(f->dec, data, len);
	while (decoder_next(f->dec, &sample) > 0) {
		if (sample->seq != f->s->d.seq)
			continue;
		take_sample(f->s, sample);
		return 1;
	}
	return 0;
}

static int find_sample(struct logstore *ls, struct story *s)
{
	struct search f = {.s = s};
	int r;

	if (!s->d.seq || decoder_new(s->t.shape.n_zones, s->t.shape.n_cpus, &f.dec))
		return 0;
	r = logstore_chunks(ls, s->t.id, s->d.seq, in_chunk, &f);
	decoder_free(f.dec);
	return r < 0 ? r : 0;
}

/* ---- neighbours ---- */

static int on_neighbour(const struct log_decision *d, const struct log_target *t,
			const struct log_assignment *a, void *cookie)
{
	(void)t;
	*(struct neighbour *)cookie = (struct neighbour){true, *d, *a};
	return 1;
}

/* The decisions of the same CPU next to this one, by two short reads: a log may have millions. */
static int find_neighbours(struct logstore *ls, struct story *s)
{
	struct log_filter f = {
		.target = s->t.id, .cpu = s->d.cpu, .limit = 1, .in_zone = true, .zone = s->d.zone};
	int r;

	f.before_id = s->d.id;
	f.newest = true;
	r = logstore_decisions(ls, &f, on_neighbour, &s->before);
	f.before_id = 0;
	f.newest = false;
	f.after_id = s->d.id;
	if (r >= 0)
		r = logstore_decisions(ls, &f, on_neighbour, &s->next);
	return r < 0 ? r : 0;
}

/* ---- the verb ---- */

static int gather(struct logstore *ls, int64_t id, struct story *s)
{
	int r = logstore_decision_get(ls, id, &s->d, &s->t, &s->a);

	if (r == -ENOENT) {
		cli_error("%s: no decision %" PRId64 "; `pcptune log` lists them",
			  logstore_path(ls), id);
		return CLI_DRIFT;
	}
	if (!r)
		r = find_sample(ls, s);
	if (!r)
		r = find_neighbours(ls, s);
	if (r)
		return cli_log_error(ls, logstore_error(ls));
	s->db = logstore_path(ls);
	cli_reason(&s->d, &s->a, s->reason, sizeof(s->reason));
	decision_clamp_why(s->a.id ? &s->a.shape : &s->t.shape, &s->d, s->clamp_why,
			   sizeof(s->clamp_why));
	return -1;
}

int cmd_explain(int argc, char **argv)
{
	struct args a = {0};
	struct story s = {0};
	struct cli_rest rest;
	struct logstore *ls;
	int64_t id;
	int r = cli_parse(argc, argv, &a, 1, 1, &rest);

	if (r >= 0)
		return r;
	if (text_parse_i64(rest.argv[0], &id) || id < 1)
		return cli_usage_error("\"%s\": not the number of a decision", rest.argv[0]);
	cli_reason_path(a.policy_path);
	r = cli_open_log(a.db, a.socket, a.json, &ls);
	if (r >= 0)
		return r;
	r = gather(ls, id, &s);
	if (r < 0 && a.json)
		r = cli_print_json(explain_json(&s));
	else if (r < 0)
		explain_text(&s);
	logstore_close(ls);
	return r < 0 ? CLI_OK : r;
}
