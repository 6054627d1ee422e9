/* SPDX-License-Identifier: MIT */
/*
 * The live view of `pcptune status --watch` on a terminal.
 *
 * One loop: ask the daemon, draw, wait for a key until the next question is due. A resize arrives
 * as a key and only redraws. A daemon that goes away is shown as such, with the last rows left
 * standing, and is connected to again at each interval. Whatever ends the loop, the terminal is
 * given back: SIGINT, SIGTERM and SIGHUP only set a flag, which the loop reads (getch() returns
 * when a signal comes).
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <ncurses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cli/status.h"
#include "lib/text.h"

struct view {
	struct ctlclient *c;
	const char *socket, *target;
	int64_t interval_ms;
	json_t *status; /* the last answer, NULL: none yet */
	char error[CLI_WHY];
	enum status_sort sort;
	size_t top;	 /* first row shown */
	bool help, more; /* more: columns that are left out at first where room is short */
	int colour[3];	 /* attributes: drift, contended, dim */
};

static volatile sig_atomic_t ended;

static void on_signal(int sig)
{
	(void)sig;
	ended = 1;
}

/* ---- sorting ---- */

static enum status_sort sort_key;

static uint64_t sort_value(const struct status_row *r)
{
	switch (sort_key) {
	case SORT_COUNT:
		return r->count;
	case SORT_HIGH:
		return r->high;
	case SORT_BATCH:
		return r->batch;
	case SORT_CONTEND:
		return r->contend < 0 ? 0 : (uint64_t)(r->contend * 1000) + 1;
	case SORT_ALLOC_ZONE:
		return r->alloc_zone;
	default:
		return 0;
	}
}

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* Largest first; equal ones by place, so that rows do not dance. */
static int compare_rows(const void *va, const void *vb)
{
	const struct status_row *a = va, *b = vb;
	int c = compare_u64(sort_value(b), sort_value(a));

	c = c ? c : compare_u64(a->target, b->target);
	c = c ? c : compare_u64(a->zone, b->zone);
	return c ? c : compare_u64(a->cpu, b->cpu);
}

void status_sort(struct status_row *rows, size_t n, enum status_sort by)
{
	sort_key = by;
	qsort(rows, n, sizeof(*rows), compare_rows);
}

/* ---- asking ---- */

static void ask(struct view *v)
{
	json_t *request, *status;
	int r;

	v->error[0] = '\0';
	if (!v->c && ctlclient_open(v->socket, &v->c, v->error))
		return;
	request = json_pack("{s:s}", "cmd", "status");
	if (v->target)
		json_object_set_new(request, "target", cli_target(v->target));
	r = ctlclient_call(v->c, request, 2000, &status, v->error);
	json_decref(request);
	if (!r) {
		json_decref(v->status);
		v->status = status;
		return;
	}
	if (!v->error[0])
		snprintf(v->error, sizeof(v->error), "%s", strerror(-r));
	if (r == -ENOENT || r == -EINVAL || r == -EPERM || r == -EREMOTEIO)
		return; /* the daemon answered: keep the connection */
	ctlclient_close(v->c);
	v->c = NULL;
}

/* ---- drawing ---- */

static const char *const sort_names[] = {"place", "count",    "high",
					 "batch", "contend%", "alloc_zone"};

/* One line, cut at the right edge; nothing below the last line. */
__attribute__((format(printf, 3, 4))) static void line(int y, int attr, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (y >= LINES)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	attron(attr);
	mvaddnstr(y, 0, text, COLS);
	attroff(attr);
}

static int draw_head(const struct view *v)
{
	const json_t *d = json_object_get(v->status, "daemon");
	const json_t *log = json_object_get(d, "log");
	char now[48];
	int y = 0;

	text_time(logstamp_now().wall_us, now, sizeof(now));
	line(y++, A_BOLD, "pcptune  %.8s  sorted by %s  ? helps   targets %zu  every %.1f s",
	     strlen(now) > 11 ? now + 11 : now, sort_names[v->sort],
	     json_array_size(json_object_get(v->status, "targets")), (double)v->interval_ms / 1000);
	if (v->error[0])
		line(y++, v->colour[0], "no answer: %s; trying again", v->error);
	if (cli_bool(d, "dry_run"))
		line(y++, v->colour[1], "dry run: decisions are logged, not applied");
	if (!strcmp(cli_str(log, "state"), "lost"))
		line(y++, v->colour[0], "log: %s: lost samples %" PRIu64 ", decisions %" PRIu64,
		     cli_str(log, "error"), cli_u64(log, "lost_samples"),
		     cli_u64(log, "lost_decisions"));
	return y;
}

/* What does not fit any more goes to the next line, between facts (two blanks); returns lines. */
static int facts_lines(int y, const char *head, const char *facts)
{
	int begin = y, at = (int)strlen(head), n;
	const char *end;

	line(y, 0, "%s", head);
	while (*facts) {
		end = strstr(facts, "  ");
		n = end ? (int)(end - facts) : (int)strlen(facts);
		if (at + 2 + n > COLS && at > 4) {
			y++;
			at = 2;
		}
		if (y < LINES)
			mvaddnstr(y, at + 2, facts, n < COLS - at - 2 ? n : COLS - at - 2);
		at += 2 + n;
		facts += n;
		facts += strspn(facts, " ");
	}
	return y + 1 - begin;
}

static int draw_targets(const struct view *v, int y)
{
	const json_t *targets = json_object_get(v->status, "targets");
	int last = y + (LINES > 12 ? LINES / 3 : 2);
	char facts[512], head[PCPTUNE_NAME_MAX + 32];
	json_t *t;
	size_t i;

	json_array_foreach (targets, i, t) {
		if (y >= last) {
			line(y++, v->colour[2], "and %zu more target%s",
			     json_array_size(targets) - i,
			     json_array_size(targets) - i == 1 ? "" : "s");
			break;
		}
		status_facts(t, facts, sizeof(facts));
		snprintf(head, sizeof(head), "%" PRIu64 " %s", cli_u64(t, "id"),
			 cli_str(t, "name"));
		y += facts_lines(y, head, facts);
	}
	return y;
}

/*
 * Columns in their order from left to right. What there is room for is given by rank: 0 is always
 * shown, others from 1 on as long as they fit; those of rank MORE only when asked for (key m), or
 * when all fit. A column is as wide as its title and what stands in it.
 */
#define MORE 8
static const struct column {
	const char *title;
	char align;
	int rank;
} columns[] = {
	{"id", '>', 6},		 {"target", '<', 5},	   {"zone", '>', 7},
	{"cpu", '>', 0},	 {"count", '>', 3},	   {"high", '>', 0},
	{"high_min", '>', MORE}, {"high_max", '>', MORE},  {"batch", '>', 4},
	{"alloc_zone", '>', 4},	 {"free_high", '>', MORE}, {"contend%", '>', 1},
	{"mode", '<', 2},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* What stands in column i; points into buf or the row. */
static const char *cell(const struct status_row *r, size_t i, char *buf, size_t n)
{
	const uint64_t numbers[N_COLUMNS] = {r->target, 0,	 r->zone,     r->cpu,
					     r->count,	r->high, r->high_min, r->high_max,
					     r->batch,	0,	 r->free_high};

	if (!strcmp(columns[i].title, "target"))
		return r->name;
	if (!strcmp(columns[i].title, "alloc_zone"))
		return cli_count(r->alloc_zone, buf, n);
	if (!strcmp(columns[i].title, "contend%"))
		return status_contend(r->contend, buf, n);
	if (!strcmp(columns[i].title, "mode"))
		return status_mode(r, buf, n);
	snprintf(buf, n, "%" PRIu64, numbers[i]);
	return buf;
}

/* Widths of all columns into width[]; then 0 for those that are not shown. */
static void lay_out(const struct view *v, const struct status_row *rows, size_t n, int *width)
{
	int rank, total = -1, sum;
	char buf[64];
	size_t i, r;

	for (i = 0; i < N_COLUMNS; i++) {
		width[i] = (int)strlen(columns[i].title);
		for (r = 0; r < n; r++) {
			int w = (int)strlen(cell(&rows[r], i, buf, sizeof(buf)));

			width[i] = w > width[i] ? w : width[i];
		}
		total += width[i] + 1;
	}
	if (total <= COLS)
		return;
	/* asked for: they take the place of what else there is, but for the place itself */
	for (rank = 0, total = -1; rank <= MORE; rank++) {
		int which = !v->more || rank < 2 ? rank : rank == 2 ? MORE : rank - 1;

		for (i = 0, sum = 0; i < N_COLUMNS; i++)
			sum += columns[i].rank == which ? width[i] + 1 : 0;
		if (which == 0 || (total + sum <= COLS && (which < MORE || v->more)))
			total += sum;
		else
			for (i = 0; i < N_COLUMNS; i++)
				width[i] = columns[i].rank == which ? 0 : width[i];
	}
}

/* row NULL: the titles */
static void table_line(const struct status_row *row, const int *width, char *text, size_t size)
{
	char buf[64];
	size_t i, at = 0;

	for (i = 0; i < N_COLUMNS && at < size; i++) {
		if (width[i])
			at += (size_t)snprintf(text + at, size - at, "%s%*s", at ? " " : "",
					       columns[i].align == '<' ? -width[i] : width[i],
					       row ? cell(row, i, buf, sizeof(buf))
						   : columns[i].title);
	}
}

static void draw_row(const struct view *v, int y, const struct status_row *r, const int *width)
{
	char text[512];

	table_line(r, width, text, sizeof(text));
	line(y, r->drift ? v->colour[0] : r->contend >= 1 ? v->colour[1] : 0, "%s", text);
}

static void draw_rows(struct view *v, int y)
{
	struct status_row *rows;
	char titles[512];
	int width[N_COLUMNS];
	size_t n = status_rows(v->status, &rows), i, room;

	lay_out(v, rows, n, width);
	table_line(NULL, width, titles, sizeof(titles));
	line(y++, A_REVERSE, "%-*s", COLS, titles);
	room = LINES > y ? (size_t)(LINES - y) : 0;
	if (v->top + room > n)
		v->top = n > room ? n - room : 0;
	status_sort(rows, n, v->sort);
	for (i = 0; i < room && v->top + i < n; i++)
		draw_row(v, y + (int)i, &rows[v->top + i], width);
	if (!n && room)
		line(y, v->colour[2], "no CPU of a target was used yet");
	free(rows);
}

static void draw_help(int y)
{
	static const char *const text[] = {
		"q            quit",
		"up, down     scroll by a line (also k, j)",
		"Page keys    scroll by a screen; Home and End",
		"p            sort by place: target, zone, CPU",
		"c h b % a    sort by count, high, batch, contend%, alloc_zone",
		"m            columns: the bounds of high and free_high first, or last",
		"space        ask now",
		"?            back",
		"",
		"mode locked  each CPU's lists have a lock of their own",
		"     rseq    they need none: restartable sequences",
		"shared       the lists of threads whose CPU has none",
		"pinned       set by hand, until `pcptune unset`",
		"waiting      a change that the CPU takes over when it next goes to the zone",
		"DRIFT        somebody else changed limits that the daemon had set",
	};
	size_t i;

	for (i = 0; i < sizeof(text) / sizeof(text[0]); i++)
		line(y + 1 + (int)i, 0, "  %s", text[i]);
}

static void draw(struct view *v)
{
	int y;

	erase();
	y = draw_head(v);
	if (v->help)
		draw_help(y);
	else
		draw_rows(v, draw_targets(v, y));
	refresh();
}

/* ---- keys ---- */

static void scroll_by(struct view *v, int lines)
{
	if (lines < 0 && v->top < (size_t)-lines)
		v->top = 0;
	else
		v->top += (size_t)lines; /* draw_rows() bounds it */
}

/* Returns false to end. */
static bool key(struct view *v, int k, bool *ret_ask)
{
	static const char sort_keys[] = "pchb%a"; /* in the order of enum status_sort */
	const char *s = k > 0 && k < 128 ? strchr(sort_keys, k) : NULL;

	if (s && *s)
		v->sort = (enum status_sort)(s - sort_keys);
	else if (k == KEY_UP || k == 'k')
		scroll_by(v, -1);
	else if (k == KEY_DOWN || k == 'j')
		scroll_by(v, 1);
	else if (k == KEY_PPAGE)
		scroll_by(v, -(LINES - 4));
	else if (k == KEY_NPAGE)
		scroll_by(v, LINES - 4);
	else if (k == KEY_HOME)
		v->top = 0;
	else if (k == KEY_END)
		v->top = SIZE_MAX / 2;
	else if (k == '?')
		v->help = !v->help;
	else if (k == 'm')
		v->more = !v->more;
	else if (k == ' ')
		*ret_ask = true;
	return k != 'q' && k != 'Q';
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void loop(struct view *v)
{
	bool go = true, again = true;
	int64_t due = 0, left;
	int k;

	while (go && !ended) {
		if (again || now_ms() >= due) {
			ask(v);
			due = now_ms() + v->interval_ms;
			again = false;
		}
		draw(v);
		left = due - now_ms();
		timeout(left > 0 ? (int)left : 0);
		k = getch();
		if (k != ERR)
			go = key(v, k, &again);
	}
}

/* ---- start and end ---- */

static void set_colours(struct view *v)
{
	const char *no = getenv("NO_COLOR");

	v->colour[0] = A_BOLD | A_REVERSE;
	v->colour[1] = A_BOLD;
	v->colour[2] = A_DIM;
	if ((no && no[0]) || !has_colors() || start_color() == ERR)
		return;
	use_default_colors();
	init_pair(1, COLOR_RED, -1);
	init_pair(2, COLOR_YELLOW, -1);
	v->colour[0] = COLOR_PAIR(1) | A_BOLD;
	v->colour[1] = COLOR_PAIR(2);
}

static void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction sa = {.sa_handler = on_signal};
	size_t i;

	for (i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaction(signals[i], &sa, NULL);
}

int status_watch(struct ctlclient *c, const char *socket, const char *target, int64_t interval_ms)
{
	struct view v = {.c = c, .socket = socket, .target = target, .interval_ms = interval_ms};
	SCREEN *screen = newterm(NULL, stdout, stdin);

	if (!screen) {
		ctlclient_close(c);
		return cli_error("TERM=%s: not a terminal that can show a live view; use a pipe",
				 getenv("TERM") ? getenv("TERM") : "");
	}
	catch_signals();
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	set_colours(&v);
	loop(&v);
	endwin();
	delscreen(screen);
	json_decref(v.status);
	if (v.c)
		ctlclient_close(v.c);
	return CLI_OK;
}
