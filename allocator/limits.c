/* SPDX-License-Identifier: MIT */
/*
 * Memory and CPUs that are ours.
 *
 * A container may show 40 CPUs and 256 GiB, and grant two and one: caches sized by what is shown
 * are twenty times too large. So everything is bounded by the cgroups (v2 and v1) around this
 * process, from its own up to the root of the mount: inside a container the path in
 * /proc/self/cgroup may not exist below the mount, and the limits are then found on the way up.
 * Where nothing can be read (a sandbox without /proc and /sys) what the system calls say stands.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include "allocator/limits.h"
#include "allocator/sys.h"

int pcpa_read_text(const char *path, char *text, size_t size)
{
	size_t length = 0;
	int fd = pcpa_sys_open(path);

	if (fd < 0)
		return -errno;
	while (length < size - 1) {
		long n = syscall(SYS_read, fd, text + length, size - 1 - length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n > 0)
			length += (size_t)n;
		/* files of this kind are read in one go: less than there was room for is the end */
		if (n <= 0 || length < size - 1)
			break;
	}
	pcpa_sys_close(fd);
	text[length] = '\0';
	return (int)length;
}

int pcpa_next_range(const char **at, uint32_t *ret_first, uint32_t *ret_last)
{
	char *end;
	unsigned long first, last;

	while (**at == ',' || **at == ' ' || **at == '\n')
		++*at;
	if (**at < '0' || **at > '9')
		return 0;
	first = last = strtoul(*at, &end, 10);
	if (*end == '-')
		last = strtoul(end + 1, &end, 10);
	*at = end;
	if (last < first || last > UINT32_MAX)
		return 0;
	*ret_first = (uint32_t)first;
	*ret_last = (uint32_t)last;
	return 1;
}

/* ---- control groups ---- */

struct limits {
	uint64_t bytes;
	uint64_t cpus; /* rounded up */
};

static uint64_t read_number(const char *folder, const char *file, uint64_t otherwise)
{
	char path[512], text[64], *end;
	unsigned long long v;

	if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path) ||
	    pcpa_read_text(path, text, sizeof(text)) <= 0)
		return otherwise;
	v = strtoull(text, &end, 10);
	return end == text || text[0] == '-' ? otherwise : v;
}

static void bound(uint64_t *v, uint64_t most)
{
	if (most && most < *v)
		*v = most;
}

static void bound_quota(struct limits *l, uint64_t quota, uint64_t period)
{
	if (quota != UINT64_MAX && period)
		bound(&l->cpus, (quota + period - 1) / period);
}

static void read_memory_v1(struct limits *l, const char *folder)
{
	bound(&l->bytes, read_number(folder, "memory.limit_in_bytes", UINT64_MAX));
}

static void read_cpu_v1(struct limits *l, const char *folder)
{
	uint64_t quota = read_number(folder, "cpu.cfs_quota_us", UINT64_MAX);

	if (quota != UINT64_MAX)
		bound_quota(l, quota, read_number(folder, "cpu.cfs_period_us", 0));
}

static void read_v2(struct limits *l, const char *folder)
{
	char path[512], text[64];
	unsigned long long quota, period;

	bound(&l->bytes, read_number(folder, "memory.max", UINT64_MAX));
	if (snprintf(path, sizeof(path), "%s/cpu.max", folder) < (int)sizeof(path) &&
	    pcpa_read_text(path, text, sizeof(text)) > 0 &&
	    sscanf(text, "%llu %llu", &quota, &period) == 2)
		bound_quota(l, quota, period);
}

/* From mount + path up to the mount itself. */
static void read_upward(struct limits *l, const char *mount, const char *path,
			void (*read)(struct limits *l, const char *folder))
{
	char folder[400];
	size_t top = strlen(mount);

	if (!path[1] ||
	    snprintf(folder, sizeof(folder), "%s%s", mount, path) >= (int)sizeof(folder))
		strcpy(folder, mount);
	for (;;) {
		char *slash;

		read(l, folder);
		slash = strrchr(folder, '/');
		if (!slash || (size_t)(slash - folder) < top)
			return;
		*slash = '\0';
	}
}

static bool has_controller(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (!strncmp(list, name, n) && (list[n] == ',' || !list[n]))
			return true;
	return false;
}

/* One line of /proc/self/cgroup: "id:controllers:path" */
static void read_line(struct limits *l, char *line)
{
	char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

	if (!path || path[1] != '/')
		return;
	*list++ = '\0';
	*path++ = '\0';
	if (!*list)
		read_upward(l, "/sys/fs/cgroup", path, read_v2);
	if (has_controller(list, "memory"))
		read_upward(l, "/sys/fs/cgroup/memory", path, read_memory_v1);
	if (has_controller(list, "cpu"))
		read_upward(l, "/sys/fs/cgroup/cpu", path, read_cpu_v1);
}

static struct limits cgroup_limits(void)
{
	struct limits l = {UINT64_MAX, UINT64_MAX};
	char text[4096], *line = text;

	if (pcpa_read_text("/proc/self/cgroup", text, sizeof(text)) <= 0)
		return l;
	while (*line) {
		char *end = line + strcspn(line, "\n");
		bool last = !*end;

		*end = '\0';
		read_line(&l, line);
		line = last ? end : end + 1;
	}
	return l;
}

/* Read once: both callers run under the lock of the first allocation. */
static const struct limits *cgroups(void)
{
	static struct limits known;
	static bool read;

	if (!read)
		known = cgroup_limits();
	read = true;
	return &known;
}

uint64_t pcpa_limits_memory_pages(void)
{
	struct sysinfo info;
	uint64_t bytes = UINT64_C(1) << 30;

	if (!sysinfo(&info))
		bytes = (uint64_t)info.totalram * info.mem_unit;
	bound(&bytes, cgroups()->bytes);
	bytes >>= 12;
	return bytes ? bytes : 1;
}

uint32_t pcpa_limits_run_cpus(void)
{
	unsigned long mask[8192 / (8 * sizeof(unsigned long))];
	long bytes = syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);
	uint64_t n = 0;

	for (long i = 0; i < bytes / (long)sizeof(*mask); i++)
		n += (unsigned)__builtin_popcountl(mask[i]);
	if (!n)
		n = 1;
	bound(&n, cgroups()->cpus);
	return (uint32_t)n;
}

uint64_t pcpa_limits_address_space(void)
{
	struct rlimit limit;
	char text[64];
	unsigned long long used = 0;

	if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	if (pcpa_read_text("/proc/self/statm", text, sizeof(text)) > 0)
		used = strtoull(text, NULL, 10) * (unsigned long long)getpagesize();
	return limit.rlim_cur > used ? (limit.rlim_cur - used) / 2 : 0;
}

/* ---- watermarks ---- */

static uint64_t square_root(uint64_t v)
{
	uint64_t low = 0, high = UINT64_C(1) << 32;

	while (high - low > 1) {
		uint64_t mid = (low + high) / 2;

		if (mid * mid <= v)
			low = mid;
		else
			high = mid;
	}
	return low;
}

void pcpa_limits_watermarks(uint64_t managed, uint32_t *ret_low, uint32_t *ret_high)
{
	uint64_t min_kib = square_root(managed * 4 * 16), min, step;

	if (min_kib < 128)
		min_kib = 128;
	if (min_kib > 262144)
		min_kib = 262144;
	min = min_kib / 4;
	step = managed * 10 / 10000;
	if (step < min / 4)
		step = min / 4;
	*ret_low = (uint32_t)(min + step);
	*ret_high = (uint32_t)(min + 2 * step);
}
