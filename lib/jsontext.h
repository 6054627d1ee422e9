/* SPDX-License-Identifier: MIT */
/*
 * JSON as one line of text.
 */
#ifndef PCPTUNE_LIB_JSONTEXT_H
#define PCPTUNE_LIB_JSONTEXT_H

#include <jansson.h>
#include <stdbool.h>

/* Compact, malloc'ed, whole; NULL: no memory, or o is NULL. */
char *json_text(const json_t *o);

/*
 * Values are put together by many calls, each of which may fail, and leave something out, for want
 * of memory. json_watch_memory(), once in a process before the first value, has that counted;
 * json_was_short() says whether it happened since it was asked last. One thread.
 */
void json_watch_memory(void);
bool json_was_short(void);

/*
 * A text that may be none, such as the path of a file: what is not UTF-8 is "?", so that its member
 * is there in any case. New reference, NULL: no memory.
 */
json_t *json_shown(const char *s);

#endif
