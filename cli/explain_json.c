/* SPDX-License-Identifier: MIT */
/*
 * `pcptune explain --json`: the object of `log --json` with what was gathered around it.
 */
#include "cli/explain.h"

#include "cli/counters.h"
#include "cli/decision.h"
#include "lib/text.h"

static json_t *contend_json(uint64_t wait_ns, uint64_t cpu_us)
{
	return cpu_us ? json_real(explain_contend(wait_ns, cpu_us)) : json_null();
}

static json_t *cpu_json(const struct pcptune_cpu *cpu)
{
	json_t *o = json_pack("{s:I}", "count", (json_int_t)cpu->count);
	size_t i;

	for (i = 0; i < cli_n_counters; i++)
		if (cli_counters[i].bits)
			json_object_set_new(
				o, cli_counters[i].name,
				json_integer((json_int_t)cli_counter_value(&cli_counters[i], cpu)));
	return o;
}

static json_t *sample_json(const struct story *s)
{
	uint64_t wait = s->cpu.lock_alloc_wait_ns + s->cpu.lock_free_wait_ns;

	if (!s->have_sample)
		return json_null();
	return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "seq", (json_int_t)s->s.seq,
			 "dt_us", (json_int_t)s->s.dt_us, "cpu_us", (json_int_t)s->s.cpu_us,
			 "boot_us", (json_int_t)s->s.time_us, "contend_pct",
			 contend_json(s->target_wait_ns, s->s.cpu_us), "cpu_contend_pct",
			 contend_json(wait, s->s.cpu_us), "values", cpu_json(&s->cpu));
}

static json_t *neighbour_json(const struct story *s, const struct neighbour *n)
{
	return n->known ? decision_json(&n->d, &s->t, &n->a) : json_null();
}

json_t *explain_json(const struct story *s)
{
	json_t *o = decision_json(&s->d, &s->t, &s->a);
	char headline[256];

	json_object_set_new(
		o, "headline",
		json_string(explain_headline(&s->d, &s->t, headline, sizeof(headline))));
	json_object_set_new(o, "by_hand", json_boolean(decision_by_hand(&s->a)));
	json_object_set_new(o, "chosen_by", json_string(s->a.why));
	json_object_set_new(o, "clamp_why", json_string(s->clamp_why));
	json_object_set_new(o, "from", sample_json(s));
	json_object_set_new(o, "previous", neighbour_json(s, &s->before));
	json_object_set_new(o, "next", neighbour_json(s, &s->next));
	json_object_set_new(o, "db", json_shown(s->db));
	return o;
}
