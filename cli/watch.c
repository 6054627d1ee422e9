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
	size_t top; /* first row shown */
	bool help;
	int colour[3]; /* attributes: drift, contended, dim */
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

	line(y++, A_BOLD, "pcptune  %s  targets %zu  every %.1f s  sorted by %s   (? helps)",
	     text_time(logstamp_now().wall_us, now, sizeof(now)),
	     json_array_size(json_object_get(v->status, "targets")), (double)v->interval_ms / 1000,
	     sort_names[v->sort]);
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

static int draw_targets(const struct view *v, int y)
{
	const json_t *targets = json_object_get(v->status, "targets");
	size_t i, most = (size_t)(LINES > 12 ? LINES / 3 : 2);
	char facts[512];
	json_t *t;

	json_array_foreach (targets, i, t) {
		if (i == most) {
			line(y++, v->colour[2], "and %zu more targets",
			     json_array_size(targets) - i);
			break;
		}
		status_facts(t, facts, sizeof(facts));
		line(y++, 0, "%" PRIu64 " %s  %s", cli_u64(t, "id"), cli_str(t, "name"), facts);
	}
	return y;
}

/* A narrow terminal gets narrower columns, and not those that can be done without (0). */
static const struct column {
	const char *title;
	int wide, narrow;
} columns[] = {
	{"id", 5, 3},	   {"target", -15, -10},   {"zone", 4, 4},	{"cpu", 4, 4},
	{"count", 8, 7},   {"high", 8, 7},	   {"high_min", 8, 0},	{"high_max", 8, 0},
	{"batch", 5, 5},   {"alloc_zone", 15, 11}, {"free_high", 9, 0}, {"contend%", 8, 8},
	{"mode", -18, -8},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))
#define WIDE	  118

/* What stands in column i; NULL: a number, in *ret. */
static const char *cell(const struct status_row *r, size_t i, uint64_t *ret, char *buf, size_t n)
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
	*ret = numbers[i];
	return NULL;
}

/* row NULL: the titles */
static void table_line(const struct status_row *row, char *text, size_t size)
{
	char buf[64];
	const char *s;
	uint64_t number = 0;
	size_t i, at = 0;

	for (i = 0; i < N_COLUMNS && at < size; i++) {
		int w = COLS >= WIDE ? columns[i].wide : columns[i].narrow;

		if (!w)
			continue;
		s = row ? cell(row, i, &number, buf, sizeof(buf)) : columns[i].title;
		if (s)
			at += (size_t)snprintf(text + at, size - at, "%*.*s ", w,
					       w < 0 && i + 1 < N_COLUMNS ? -w : 60, s);
		else
			at += (size_t)snprintf(text + at, size - at, "%*" PRIu64 " ", w, number);
	}
}

static void draw_row(const struct view *v, int y, const struct status_row *r)
{
	char text[256];

	table_line(r, text, sizeof(text));
	line(y, r->drift ? v->colour[0] : r->contend >= 1 ? v->colour[1] : 0, "%s", text);
}

static void draw_rows(struct view *v, int y)
{
	struct status_row *rows;
	char titles[256];
	size_t n = status_rows(v->status, &rows), i, room;

	table_line(NULL, titles, sizeof(titles));
	line(y++, A_REVERSE, "%-*s", COLS, titles);
	room = LINES > y ? (size_t)(LINES - y) : 0;
	if (v->top + room > n)
		v->top = n > room ? n - room : 0;
	status_sort(rows, n, v->sort);
	for (i = 0; i < room && v->top + i < n; i++)
		draw_row(v, y + (int)i, &rows[v->top + i]);
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
		"space        ask now",
		"?            back",
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
