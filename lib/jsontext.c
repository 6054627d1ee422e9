/* SPDX-License-Identifier: MIT */
/*
 * json_dumps() of the library goes on where the name of a member could not be written, and gives
 * back the rest as if it were whole. So the text is gathered here, and what was once refused is
 * refused for good.
 */
#include <stdlib.h>
#include <string.h>
#include "lib/jsontext.h"
#include "lib/text.h"

struct gathering {
	char *text;
	size_t len, room;
	bool failed;
};

static int gather(const char *bytes, size_t n, void *cookie)
{
	struct gathering *g = cookie;

	if (!g->failed && n >= g->room - g->len) {
		size_t room = 2 * (g->room + n) + 64;
		char *text = realloc(g->text, room);

		g->failed = !text;
		g->text = text ? text : g->text;
		g->room = text ? room : g->room;
	}
	if (g->failed)
		return -1;
	memcpy(g->text + g->len, bytes, n);
	g->len += n;
	g->text[g->len] = 0;
	return 0;
}

static bool was_short;

static void *take(size_t n)
{
	void *p = malloc(n);

	was_short |= !p;
	return p;
}

void json_watch_memory(void)
{
	json_set_alloc_funcs(take, free);
}

bool json_was_short(void)
{
	bool was = was_short;

	was_short = false;
	return was;
}

char *json_text(const json_t *o)
{
	struct gathering g = {0};

	if (!o || json_dump_callback(o, gather, &g, JSON_COMPACT) || g.failed) {
		free(g.text);
		return NULL;
	}
	return g.text;
}

json_t *json_shown(const char *s)
{
	json_t *o = json_string(s);
	char *copy = o ? NULL : strdup(s);

	if (copy) {
		text_clean(copy);
		o = json_string(copy);
	}
	free(copy);
	return o;
}
