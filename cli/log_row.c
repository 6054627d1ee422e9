/* SPDX-License-Identifier: MIT */
/*
 * A decision as `pcptune log` prints it for people.
 *
 * Columns of fixed width come first, then the change and the reason, which have no bound; so
 * whatever their length, all others stay aligned. Where lines have a width (a terminal) what does
 * not fit goes on in lines below, between words and indented; elsewhere a decision is one line.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/log_row.h"
#include "lib/text.h"

#define INDENT	     10
#define CHANGE_WIDTH 36 /* of the common ones: "high fixed at 39778, rules g4 -> gx" */

void log_row_head(const struct log_layout *l)
{
	printf("%s%6s  %-23s  %-*s  %4s  %4s  %-12s  %-10s  ", cli_bold(), "id", "time",
	       l->name_width, "target", "zone", "cpu", "policy", "outcome");
	printf("%-*s  %s%s\n", l->width ? 6 : CHANGE_WIDTH, "change", "reason", cli_plain());
}

static const char *outcome_colour(int outcome)
{
	switch (outcome) {
	case LOG_DRIFT:
	case LOG_FAILED:
		return cli_red();
	case LOG_DRY_RUN:
	case LOG_SUPERSEDED:
	case LOG_GONE:
		return cli_dim();
	default:
		return "";
	}
}

/* Bytes of text that fit into room columns, cut between words if there are any; at least one. */
static size_t fitting(const char *text, int room)
{
	size_t i, space = 0;
	int columns = 0;

	for (i = 0; text[i]; i++) {
		columns += ((unsigned char)text[i] & 0xc0) != 0x80;
		if (columns > room)
			break;
		if (text[i] == ' ')
			space = i;
	}
	if (!text[i] || text[i] == ' ')
		return i;
	return space ? space : i ? i : 1;
}

/* at: the column that the cursor is in */
static void put_wrapped(const char *text, int width, int at)
{
	size_t n;

	while (*text) {
		n = fitting(text, width - at);
		printf("%.*s", (int)n, text);
		text += n;
		text += strspn(text, " ");
		if (*text)
			printf("\n%*s", INDENT, "");
		at = INDENT;
	}
}

static int text_columns(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

/* Behind the columns of fixed width, which end at column `at`. */
static void put_rest(const struct log_layout *l, int at, const char *change, const char *reason)
{
	int change_end = at + text_columns(change);

	if (!l->width) {
		printf("%-*s  %s", CHANGE_WIDTH, change, reason);
	} else if (change_end + 2 + text_columns(reason) <= l->width) {
		printf("%s  %s", change, reason);
	} else {
		if (change_end > l->width) {
			printf("\n%*s", INDENT, "");
			at = INDENT;
		}
		put_wrapped(change, l->width, at);
		printf("\n%*s", INDENT, "");
		put_wrapped(reason, l->width, INDENT);
	}
	putchar('\n');
}

void log_row_print(const struct log_layout *l, const struct log_decision *d,
		   const struct log_target *t, const struct log_assignment *a)
{
	char time[48], name[PCPTUNE_NAME_MAX + 24], change[160], reason[512];
	const char *colour = outcome_colour(d->outcome);
	int at;

	snprintf(name, sizeof(name), "%" PRId64 " %s", d->target, t->name);
	at = printf("%6" PRId64 "  %-23s  %-*.*s  %4" PRIu32 "  %4" PRIu32 "  %-12s  ", d->id,
		    text_time(d->t.wall_us, time, sizeof(time)), l->name_width,
		    l->width ? l->name_width : (int)sizeof(name), name, d->zone, d->cpu, a->policy);
	printf("%s%-10s%s  ", colour, log_outcome_name(d->outcome), colour[0] ? cli_plain() : "");
	put_rest(l, at + 12, cli_limits_diff(&d->old, &d->clamped, change, sizeof(change)),
		 cli_reason_short(d, a, reason, sizeof(reason)));
}
