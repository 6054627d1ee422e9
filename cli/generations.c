/* SPDX-License-Identifier: MIT */
/*
 * `pcptune policies --generations`: every generation of the list rules, what it changed, and what
 * it does. Texts come from pcptune/generations.def alone, traits are the bits that the rules ask;
 * docs/generations.md is the output of `pcptune policies --generations --markdown`, and a test
 * compares the two.
 */
#include "cli/generations.h"

#include <pcptune/rules.h>
#include "cli/cli.h"

/* In the order of their coming. */
static const uint8_t ids[] = {
	PCPTUNE_RULES_G0,   PCPTUNE_RULES_G0B, PCPTUNE_RULES_Y2016, PCPTUNE_RULES_G1,
	PCPTUNE_RULES_G2,   PCPTUNE_RULES_G3,  PCPTUNE_RULES_P1,    PCPTUNE_RULES_P3,
	PCPTUNE_RULES_P5,   PCPTUNE_RULES_P7,  PCPTUNE_RULES_P9,    PCPTUNE_RULES_P10,
	PCPTUNE_RULES_P7V3, PCPTUNE_RULES_G4,  PCPTUNE_RULES_G5,    PCPTUNE_RULES_G6,
	PCPTUNE_RULES_GX,
};
#define N_IDS (sizeof(ids) / sizeof(ids[0]))
_Static_assert(N_IDS == PCPTUNE_RULES_ROWS, "each generation is listed");

static const struct {
	enum pcptune_trait bit;
	const char *name, *text;
} traits[] = {
	{PCPTUNE_RT_ORDERS, "orders", "lists for orders 1 to 3"},
	{PCPTUNE_RT_HUGE, "huge", "a list for order 9"},
	{PCPTUNE_RT_BLOCKS, "blocks", "a refill is batch blocks, whatever their order"},
	{PCPTUNE_RT_FREE_FACTOR, "free_factor",
	 "drains in a row double; each allocation halves that"},
	{PCPTUNE_RT_FREE_COUNT, "free_count", "a drain is as long as the run of frees was"},
	{PCPTUNE_RT_SCALE_CAP, "scale_cap", "scale_max bounds free_factor"},
	{PCPTUNE_RT_ALLOC_FACTOR, "alloc_factor",
	 "refills of order 0 in a row double, up to scale_max; each free halves that"},
	{PCPTUNE_RT_TUNES, "tunes", "high moves between high_min and high_max"},
	{PCPTUNE_RT_RECLAIM, "reclaim", "reclaim caps the lists at four batches"},
	{PCPTUNE_RT_BELOW_HIGH, "below_high",
	 "below the high watermark high does not rise, and frees drain"},
	{PCPTUNE_RT_FREE_HIGH, "free_high", "a free of order 1 to 3 within a run of frees drains"},
	{PCPTUNE_RT_CONSECUTIVE, "consecutive", "... when the free before it was one, too"},
	{PCPTUNE_RT_CACHE, "cache", "... but not below a batch where the data cache is large"},
	{PCPTUNE_RT_HALF_MIN, "half_min", "... after a run of batch + high_min / 2 pages"},
	{PCPTUNE_RT_COUNT_MIN, "count_min",
	 "a tick takes no more than the least count since the "
	 "last one"},
	{PCPTUNE_RT_CHUNKS, "chunks", "a drain moves one batch in each hold of the zone lock"},
};
#define N_TRAITS (sizeof(traits) / sizeof(traits[0]))

static json_t *row_json(const struct pcptune_generation *g)
{
	json_t *o = json_object(), *list = json_array();

	json_object_set_new(o, "name", json_string(g->name));
	json_object_set_new(o, "other_names", json_string(g->others));
	json_object_set_new(o, "id", json_integer(g->id));
	json_object_set_new(o, "from", json_string(g->from));
	json_object_set_new(o, "changed", json_string(g->changed));
	json_object_set_new(o, "parameters", json_string(g->params));
	json_object_set_new(o, "decay", json_integer(g->decay));
	for (size_t i = 0; i < N_TRAITS; i++)
		if (g->traits & traits[i].bit)
			json_array_append_new(list, json_string(traits[i].name));
	json_object_set_new(o, "traits", list);
	json_object_set_new(o, "switched",
			    json_string(g->traits & PCPTUNE_RT_ORDERS ? g->order0 : g->orders));
	return o;
}

static int print_json(void)
{
	json_t *o = json_object(), *rows = json_array();

	for (size_t i = 0; i < N_IDS; i++)
		json_array_append_new(rows, row_json(&pcptune_generations[ids[i]]));
	json_object_set_new(o, "generations", rows);
	return cli_print_json(o);
}

static int print_text(void)
{
	for (size_t i = 0; i < N_IDS; i++) {
		const struct pcptune_generation *g = &pcptune_generations[ids[i]];
		const char *also = g->others[0] ? ", " : "";

		printf("%s%s%s%s%s  %s%s%s\n", cli_bold(), g->name, also, g->others, cli_plain(),
		       cli_dim(), g->from, cli_plain());
		printf("    %s\n    %s\n", g->changed, g->params);
	}
	printf("\nNAME-order0 has lists for order 0 alone; NAME-orders, where the generation has "
	       "none, lists for orders 1 to 3 and 9, too.\n");
	return CLI_OK;
}

static void markdown_matrix(void)
{
	printf("\n## What each of them does\n\n| rules | id | decay | traits "
	       "|\n|---|---|---|---|\n");
	for (size_t i = 0; i < N_IDS; i++) {
		const struct pcptune_generation *g = &pcptune_generations[ids[i]];
		const char *gap = "";

		printf("| `%s` | %u | ", g->name, g->id);
		if (g->decay)
			printf("1/%u a tick", g->decay);
		printf(" | ");
		for (size_t k = 0; k < N_TRAITS; k++) {
			if (!(g->traits & traits[k].bit))
				continue;
			printf("%s%s", gap, traits[k].name);
			gap = ", ";
		}
		printf(" |\n");
	}
	printf("\n| trait | meaning |\n|---|---|\n");
	for (size_t k = 0; k < N_TRAITS; k++)
		printf("| `%s` | %s |\n", traits[k].name, traits[k].text);
}

static int print_markdown(void)
{
	printf("# Generations of the rules\n\n"
	       "How much to refill and to drain, and how `high` moves, changed many times in the "
	       "kernel. Each generation can be chosen for each target while it runs: `pcptune set "
	       "TARGET rules=NAME`, the parameter `rules` of the policies `static` and `kernel`, "
	       "or `PCPALLOC_RULES=NAME` at the start of a program. This page is the output of "
	       "`pcptune policies --generations --markdown`; it and the rules come from "
	       "`include/pcptune/generations.def`.\n\n"
	       "NAME-order0 has lists for order 0 alone; NAME-orders, where the generation has "
	       "none, lists for orders 1 to 3 and 9, too.\n\n"
	       "| rules | also | from | what changed | parameters |\n|---|---|---|---|---|\n");
	for (size_t i = 0; i < N_IDS; i++) {
		const struct pcptune_generation *g = &pcptune_generations[ids[i]];

		printf("| `%s` | %s | %s | %s | %s |\n", g->name, g->others, g->from, g->changed,
		       g->params);
	}
	markdown_matrix();
	printf("\n## What is not of a generation here\n\n"
	       "- A drain goes from the list that was freed to on to the next (5.18), in every "
	       "generation. Before 2022 the kernel went round the lists with a growing count.\n"
	       "- One hold of the zone lock moves `batch << scale_max` pages at most, also where "
	       "the kernel of that time knew no such bound (g3 drains all there is, in several "
	       "holds).\n"
	       "- g6 lets go of the zone lock between its chunks. The lists stay with the caller "
	       "meanwhile: in the mode of restartable sequences that keeps nobody from them.\n"
	       "- In that mode the rules are asked at slow paths: how often a factor was to be "
	       "halved follows from the numbers of operations, frees of orders 1 to 3 are asked "
	       "about once a run of frees is long enough for their rule, and the least count of "
	       "p9 and p10 is that of the looks.\n");
	return CLI_OK;
}

int cli_print_generations(enum cli_form form)
{
	return form == CLI_FORM_JSON	   ? print_json()
	       : form == CLI_FORM_MARKDOWN ? print_markdown()
					   : print_text();
}
