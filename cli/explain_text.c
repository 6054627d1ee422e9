/* SPDX-License-Identifier: MIT */
/*
 * `pcptune explain` for people: one page that needs no other, from what changed to how to check it.
 */
#include "cli/explain.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <pcptune/rules.h>
#include "cli/counters.h"
#include "cli/decision.h"
#include "lib/text.h"

static void title(const char *text)
{
	printf("\n%s%s%s\n", cli_bold(), text, cli_plain());
}

/* ---- what ---- */

static const char *verb_of(uint32_t from, uint32_t to)
{
	return to > from ? "raise" : to < from ? "lower" : "change";
}

/* How far it came; the words fit after "to raise". */
static const char *reach(int outcome)
{
	switch (outcome) {
	case LOG_APPLIED:
		return "The target took it over.";
	case LOG_JOURNALED:
		return "It is in the log and was not yet written to the target.";
	case LOG_WRITTEN:
		return "It was written to the target, which had not taken it over yet.";
	case LOG_DRY_RUN:
		return "Dry run: nothing was changed.";
	case LOG_SUPERSEDED:
		return "A later decision for this CPU came before the target took it over.";
	case LOG_GONE:
		return "The target ended before it took it over.";
	case LOG_DRIFT:
		return "Somebody else changed the limits of this CPU, so the daemon let go of it.";
	default:
		return "It could not be applied.";
	}
}

char *explain_headline(const struct log_decision *d, const struct log_target *t, char *buf,
		       size_t n)
{
	char diff[160];

	if (d->old.high != d->clamped.high)
		snprintf(buf, n,
			 "%s the limit of the page lists of CPU %" PRIu32 " (high) from %" PRIu32
			 " to %" PRIu32 " pages in %s",
			 verb_of(d->old.high, d->clamped.high), d->cpu, d->old.high,
			 d->clamped.high, t->name);
	else
		snprintf(buf, n, "change the limits of CPU %" PRIu32 " in %s: %s", d->cpu, t->name,
			 cli_limits_diff(&d->old, &d->clamped, diff, sizeof(diff)));
	return buf;
}

static void limit_row(struct text_table *t, const char *name, uint32_t old, uint32_t want,
		      uint32_t got, const char *meaning)
{
	bool rules = !strcmp(name, "rules");

	text_table_cell(t, "  %s", name);
	if (rules) {
		text_table_cell(t, "%s", pcptune_rules_name(old));
		text_table_cell(t, "%s", pcptune_rules_name(want));
		text_table_cell(t, "%s", pcptune_rules_name(got));
	} else {
		text_table_cell(t, "%" PRIu32, old);
		text_table_cell(t, "%" PRIu32, want);
		text_table_cell(t, "%" PRIu32, got);
	}
	text_table_cell(t, "%s", got != want ? "cut" : got != old ? "changed" : "");
	text_table_cell(t, "%s", meaning);
	text_table_end_row(t);
}

static void print_limits(const struct story *s)
{
	const struct log_limits *o = &s->d.old, *w = &s->d.proposed, *g = &s->d.clamped;
	struct text_table *t = text_table_new();

	if (!t)
		return;
	text_table_column(t, "  limit", '<');
	text_table_column(t, "before", '>');
	text_table_column(t, "proposed", '>');
	text_table_column(t, "decided", '>');
	text_table_column(t, "", '<');
	text_table_column(t, "what it is", '<');
	limit_row(t, "high", o->high, w->high, g->high,
		  "pages the lists of this CPU may hold; a free beyond it drains");
	limit_row(t, "high_min", o->high_min, w->high_min, g->high_min, "lowest that high may go");
	limit_row(t, "high_max", o->high_max, w->high_max, g->high_max, "highest that high may go");
	limit_row(t, "batch", o->batch, w->batch, g->batch,
		  "pages that move at once between lists and zone");
	limit_row(t, "scale_max", o->scale_max, w->scale_max, g->scale_max,
		  "batch may double so many times in one move");
	limit_row(t, "rules", o->rules, w->rules, g->rules, "generation of the list rules");
	text_table_print(t, stdout, false);
	text_table_free(t);
	if (s->clamp_why[0])
		printf("  cut because of %s.\n", s->clamp_why);
}

/* ---- when, by whom ---- */

static void print_origin(const struct story *s)
{
	char time[48], age[48];
	uint64_t since =
		s->d.t.boot_us > s->t.attached.boot_us ? s->d.t.boot_us - s->t.attached.boot_us : 0;

	title("When, and by whom");
	printf("  time        %s, %s after the target attached\n",
	       text_time(s->d.t.wall_us, time, sizeof(time)),
	       text_ns(since * 1000, age, sizeof(age)));
	printf("  target      %" PRId64 " %s (pid %" PRIu32 ", uid %" PRIu32 "), zone %" PRIu32
	       ", CPU %" PRIu32 "\n",
	       s->t.id, s->t.name, s->t.pid, s->t.uid, s->d.zone, s->d.cpu);
	if (decision_by_hand(&s->a)) {
		printf("  by          no policy: %s\n", s->reason);
		return;
	}
	printf("  policy      %s %s\n", s->a.policy, s->a.version);
	printf("  parameters  %s\n", s->a.params[0] ? s->a.params : "none");
	printf("  chosen by   %s\n", s->a.why[0] ? cli_chosen_by(s->a.why) : "not noted");
}

static void print_reason(const struct story *s)
{
	title("Why");
	printf("  %s\n", s->reason);
	if (s->d.reason_name[0] && strncmp(s->reason, s->d.reason_name, strlen(s->d.reason_name)))
		printf("  (reason \"%s\", arguments %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
		       ")\n",
		       s->d.reason_name, s->d.arg[0], s->d.arg[1], s->d.arg[2], s->d.arg[3]);
}

/* ---- the sample ---- */

static void sample_rows(struct text_table *t, const struct story *s)
{
	char buf[32];
	size_t i;

	for (i = 0; i < cli_n_counters; i++) {
		const struct cli_counter *c = &cli_counters[i];
		uint64_t v = cli_counter_value(c, &s->cpu);
		bool counter = !strcmp(c->kind, "counter");

		if (!c->bits || !v)
			continue;
		text_table_cell(t, "  %s", c->name);
		text_table_cell(t, "%s", cli_count(v, buf, sizeof(buf)));
		text_table_cell(t, "%s", c->unit);
		if (counter && s->s.dt_us)
			text_table_cell(t, "%s/s",
					cli_count((uint64_t)((double)v * 1e6 / (double)s->s.dt_us),
						  buf, sizeof(buf)));
		else
			text_table_cell(t, "%s", "");
		text_table_cell(t, "%s", c->line);
		text_table_end_row(t);
	}
}

static void print_contend(const struct story *s)
{
	uint64_t wait = s->cpu.lock_alloc_wait_ns + s->cpu.lock_free_wait_ns;
	char a[48], b[48];

	if (!s->s.cpu_us) {
		printf("  The CPU time of the target was not known, so contend%% was not "
		       "either.\n");
		return;
	}
	printf("  The target waited %s for zone locks, %.3f %% of the %s of CPU time it used "
	       "(contend%%);\n"
	       "  the part of this CPU is %.3f %%.\n",
	       text_ns(s->target_wait_ns, a, sizeof(a)),
	       explain_contend(s->target_wait_ns, s->s.cpu_us),
	       text_ns(s->s.cpu_us * 1000, b, sizeof(b)), explain_contend(wait, s->s.cpu_us));
}

static void print_sample(const struct story *s)
{
	struct text_table *t;
	char dt[48], held[64];

	title("The sample it came from");
	if (!s->d.seq) {
		printf("  None: it was made before the target was sampled for the first time.\n");
		return;
	}
	if (!s->have_sample) {
		printf("  Sample %" PRIu64
		       " is no longer in the log: older samples are merged to keep "
		       "the log within its bound.\n",
		       s->d.seq);
		return;
	}
	printf("  Sample %" PRIu64 " covers %s. At its end %s lay on the lists of CPU %" PRIu32
	       ".\n",
	       s->s.seq, text_ns(s->s.dt_us * 1000, dt, sizeof(dt)),
	       text_pages(s->cpu.count, held, sizeof(held)), s->d.cpu);
	print_contend(s);
	t = text_table_new();
	if (!t)
		return;
	text_table_column(t, "  this CPU", '<');
	text_table_column(t, "value", '>');
	text_table_column(t, "unit", '<');
	text_table_column(t, "rate", '>');
	text_table_column(t, "what it is", '<');
	sample_rows(t, s);
	text_table_print(t, stdout, false);
	text_table_free(t);
}

/* ---- after ---- */

static void effect_row(struct text_table *t, const char *name, uint64_t before, uint64_t after,
		       const char *meaning)
{
	char buf[32];

	text_table_cell(t, "  %s", name);
	text_table_cell(t, "%s", cli_count(before, buf, sizeof(buf)));
	text_table_cell(t, "%s", cli_count(after, buf, sizeof(buf)));
	text_table_cell(t, "%s", meaning);
	text_table_end_row(t);
}

static uint64_t per_1000(uint64_t part, uint64_t whole)
{
	return whole ? (part * 1000 + whole / 2) / whole : 0;
}

static void print_effect(const struct log_decision *d)
{
	struct text_table *t = text_table_new();

	if (!t)
		return;
	text_table_column(t, "  this CPU", '<');
	text_table_column(t, "before", '>');
	text_table_column(t, "after", '>');
	text_table_column(t, "what it is", '<');
	effect_row(t, "alloc_pages", d->before_alloc_pages, d->after_alloc_pages,
		   "pages the program allocated");
	effect_row(t, "alloc_zone", d->before_alloc_zone, d->after_alloc_zone,
		   "pages that the lists had to take from the zone");
	effect_row(t, "  per 1000", per_1000(d->before_alloc_zone, d->before_alloc_pages),
		   per_1000(d->after_alloc_zone, d->after_alloc_pages),
		   "alloc_zone for each 1000 pages allocated");
	effect_row(t, "wait_ns", d->before_wait_ns, d->after_wait_ns,
		   "nanoseconds waited for the zone lock");
	effect_row(t, "held", d->before_held / d->effect_n, d->after_held / d->effect_n,
		   "pages on the lists, on average");
	text_table_print(t, stdout, false);
	text_table_free(t);
}

static void print_outcome(const struct story *s)
{
	title("What happened after");
	printf("  %s (%s)\n", reach(s->d.outcome), log_outcome_name(s->d.outcome));
	if (!s->d.effect_n) {
		printf("  Its effect was not measured%s.\n",
		       s->d.outcome == LOG_APPLIED ? " (yet)" : "");
		return;
	}
	printf("  Over %" PRIu32 " sample%s before and as many after:\n", s->d.effect_n,
	       s->d.effect_n == 1 ? "" : "s");
	print_effect(&s->d);
}

static void print_neighbour(const char *which, const struct neighbour *n)
{
	char time[48], diff[160], reason[512];

	if (!n->known) {
		printf("  %s  none\n", which);
		return;
	}
	printf("  %s  %" PRId64 "  %s  %s (%s)\n            %s\n", which, n->d.id,
	       text_time(n->d.t.wall_us, time, sizeof(time)),
	       cli_limits_diff(&n->d.old, &n->d.clamped, diff, sizeof(diff)),
	       log_outcome_name(n->d.outcome),
	       cli_reason_short(&n->d, &n->a, reason, sizeof(reason)));
}

static void print_check(const struct story *s)
{
	title("How to check this");
	if (decision_by_hand(&s->a))
		printf("  No policy made it, so there is none to run again.\n");
	else
		printf("  pcptune verify --db '%s'\n"
		       "  runs %s %s over the logged samples again and compares every decision.\n",
		       s->db, s->a.policy, s->a.version);
}

static void print_words(void)
{
	title("Words");
	printf("  page      4096 bytes\n"
	       "  lists     free pages that each CPU keeps for itself: quick, but idle while they "
	       "lie "
	       "there\n"
	       "  zone      the store behind all lists; whoever uses it takes its one lock, and "
	       "may "
	       "wait\n"
	       "  refill    pages move from the zone to a list;  drain: from a list to the zone\n"
	       "  all others: pcptune counters\n");
}

void explain_text(const struct story *s)
{
	char headline[256];

	printf("%sDecision %" PRId64 ": %s.%s\n", cli_bold(), s->d.id,
	       explain_headline(&s->d, &s->t, headline, sizeof(headline)), cli_plain());
	printf("%s\n", reach(s->d.outcome));
	title("What changed");
	print_limits(s);
	print_origin(s);
	print_reason(s);
	print_sample(s);
	print_outcome(s);
	title("Around it, on the same CPU");
	print_neighbour("before", &s->before);
	print_neighbour("next  ", &s->next);
	print_check(s);
	print_words();
}
