/* SPDX-License-Identifier: MIT */
/*
 * Times as people type them: back from now ("-10m"), a time of today ("14:30"), a day, a day with
 * a time, and what `log --json` prints (with a zone). What has no zone is local time.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define US UINT64_C(1000000)

/* "-10m", "-1.5h" */
static int back_from_now(const char *s, uint64_t now_us, uint64_t *ret_us)
{
	static const struct {
		char letter;
		double seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
	char *end;
	double v;
	size_t i;

	if (!isdigit((unsigned char)s[0]))
		return -EINVAL;
	v = strtod(s, &end);
	for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (end[0] == units[i].letter && !end[1])
			break;
	if (i == sizeof(units) / sizeof(units[0]))
		return -EINVAL;
	v *= units[i].seconds * (double)US;
	*ret_us = v >= (double)now_us ? 1 : now_us - (uint64_t)v;
	return 0;
}

/* "+01:00", "-0530": seconds east of Greenwich */
static int zone_offset(const char *s, long *ret)
{
	char d[5];
	size_t i, n = 0;

	for (i = 1; s[i]; i++) {
		if (s[i] == ':' && i == 3)
			continue;
		if (!isdigit((unsigned char)s[i]) || n == 4)
			return -EINVAL;
		d[n++] = (char)(s[i] - '0');
	}
	if (n != 4 || d[0] * 10 + d[1] > 14 || d[2] > 5)
		return -EINVAL;
	*ret = ((d[0] * 10 + d[1]) * 60L + d[2] * 10 + d[3]) * 60 * (s[0] == '-' ? -1 : 1);
	return 0;
}

/* What may stand after the seconds: ".250", and "Z" or an offset; *ret_zone: one of these did. */
static int tail(const char *s, uint64_t *ret_frac_us, long *ret_offset, bool *ret_zone)
{
	uint64_t scale = US / 10;

	if (*s == '.' && isdigit((unsigned char)s[1]))
		for (s++; isdigit((unsigned char)*s); s++, scale /= 10)
			*ret_frac_us += (uint64_t)(*s - '0') * scale;
	*ret_zone = *s != '\0';
	if (!*s || !strcmp(s, "Z"))
		return 0;
	return *s == '+' || *s == '-' ? zone_offset(s, ret_offset) : -EINVAL;
}

static int calendar(const char *s, const struct tm *today, uint64_t *ret_us)
{
	static const char *const forms[] = {
		"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
		"%Y-%m-%d",	     "%H:%M:%S",	  "%H:%M"};
	size_t i;

	for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct tm tm = *today;
		uint64_t frac = 0;
		long offset = 0;
		bool zone;
		const char *end;
		time_t t;

		tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
		tm.tm_isdst = -1;
		end = strptime(s, forms[i], &tm);
		if (!end || tail(end, &frac, &offset, &zone))
			continue;
		t = zone ? timegm(&tm) - offset : mktime(&tm);
		if (t < 0)
			return -EINVAL;
		*ret_us = (uint64_t)t * US + frac;
		return 0;
	}
	return -EINVAL;
}

int cli_parse_time(const char *s, uint64_t now_us, uint64_t *ret_us)
{
	time_t now = (time_t)(now_us / US);
	struct tm today;

	if (s[0] == '-')
		return back_from_now(s + 1, now_us, ret_us);
	if (!localtime_r(&now, &today))
		return -EINVAL;
	if (!strcmp(s, "today")) {
		today.tm_hour = today.tm_min = today.tm_sec = 0;
		today.tm_isdst = -1;
		*ret_us = (uint64_t)mktime(&today) * US;
		return 0;
	}
	return calendar(s, &today, ret_us);
}
