/* SPDX-License-Identifier: MIT */
/*
 * Loading: what is refused, with which words, and that nothing of a refused policy ran.
 *
 * Bad files are made from the real static.so, changed byte by byte; bad descriptors are built here
 * and checked against this program's own segments.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "policies/host_internal.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_MAX];
static char *good; /* bytes of static.so */
static size_t good_size;

static void put_file(const char *name, const char *data, size_t n, mode_t mode)
{
	char path[PATH_MAX];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
	f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	fclose(f);
	assert_int_equal(chmod(path, mode), 0);
}

static void remove_file(const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
}

static int setup(void **state)
{
	struct policy_module *m;
	char why[POLICY_WHY] = "";
	FILE *f;

	(void)state;
	if (!scratch_dir(dir) || policy_load("static", NULL, &m, why)) {
		print_error("%s\n", why);
		return -1;
	}
	f = fopen(policy_file(m), "rb");
	policy_unref(m);
	if (!f)
		return -1;
	fseek(f, 0, SEEK_END);
	good_size = (size_t)ftell(f);
	rewind(f);
	good = malloc(good_size);
	good_size = good ? fread(good, 1, good_size, f) : 0;
	fclose(f);
	put_file("static.so", good, good_size, 0755);
	return good_size ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	remove_file("static.so");
	free(good);
	return rmdir(dir);
}

static void refused(const char *name, int err, const char *words)
{
	struct policy_module *m = NULL;
	char why[POLICY_WHY] = "";
	int r = policy_load(name, dir, &m, why);

	if (r != err || !strstr(why, words))
		fail_msg("%s: %d \"%s\", right is %d with \"%s\"", name, r, why, err, words);
	assert_null(m);
}

/* ---- names and paths ---- */

static void test_load(void **state)
{
	struct policy_module *m, *again;
	char why[POLICY_WHY], path[PATH_MAX];

	(void)state;
	assert_int_equal(policy_load("static", dir, &m, why), 0);
	assert_string_equal(policy_desc(m)->name, "static");
	assert_string_equal(strrchr(policy_file(m), '/'), "/static.so");
	assert_ptr_equal(policy_ref(m), m);
	policy_unref(m);
	snprintf(path, sizeof(path), "%s/static.so", dir);
	assert_int_equal(policy_load(path, NULL, &again, why), 0);
	assert_ptr_equal(policy_desc(again), policy_desc(m));
	assert_null(policy_param(m, 999));
	assert_null(policy_reason(m, 999));
	policy_unref(again);
	policy_unref(m);
}

/* Nothing of a plug-in is seen by name: its descriptor is found by its handle. */
static void test_symbols_stay_inside(void **state)
{
	struct policy_module *m;

	(void)state;
	assert_int_equal(policy_load("static", dir, &m, NULL), 0);
	assert_null(dlsym(RTLD_DEFAULT, "pcptune_policy_v1"));
	policy_unref(m);
}

/* Ours are those that we are built with, at their place; a link to it is that place. */
static void test_foreign(void **state)
{
	struct policy_file f;
	char path[PATH_MAX], link[256], why[POLICY_WHY] = "";

	(void)state;
	assert_int_equal(policy_find("static", policy_installed_path(), &f, why), 0);
	assert_false(f.foreign);
	assert_string_equal(f.name, "static");
	assert_int_equal(policy_find("static", dir, &f, why), 0);
	assert_true(f.foreign);
	snprintf(link, sizeof(link), "%s/link", dir);
	snprintf(path, sizeof(path), "%s/static.so", link);
	assert_int_equal(symlink(policy_installed_path(), link), 0);
	assert_int_equal(policy_find(path, NULL, &f, why), 0);
	assert_false(f.foreign);
	unlink(link);
	assert_int_equal(policy_find("nothing", dir, &f, why), -ENOENT);
}

/* A file that was written anew is another policy, however often; the old one stays usable. */
static void test_written_anew(void **state)
{
	struct policy_module *m[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		put_file("static.so", good, good_size, 0755);
		assert_int_equal(policy_load("static", dir, &m[i], NULL), 0);
		for (int k = 0; k < i; k++) {
			assert_false(policy_same(m[i], m[k]));
			assert_ptr_not_equal(policy_desc(m[i]), policy_desc(m[k]));
			assert_string_equal(policy_desc(m[k])->name, "static");
		}
		assert_true(policy_same(m[i], m[i]));
		assert_false(policy_remote(m[i]));
	}
	for (int i = 0; i < 4; i++)
		policy_unref(m[i]);
}

/* What was checked is what is loaded, whatever lies at its path by then. */
static void test_by_descriptor(void **state)
{
	struct policy_module *m = NULL;
	struct policy_file f;
	char why[POLICY_WHY] = "", path[PATH_MAX];
	int fd;

	(void)state;
	assert_int_equal(policy_find("static", dir, &f, why), 0);
	fd = host_open(&f, why);
	assert_true(fd >= 0);
	put_file("static.so", "#!/bin/sh\nexit 0\n", 17, 0755);
	assert_int_equal(host_load_fd(&f, fd, &m, why), 0);
	assert_string_equal(policy_desc(m)->name, "static");
	assert_int_equal(host_open(&f, why), -ESTALE);
	assert_non_null(strstr(why, "written anew"));
	snprintf(path, sizeof(path), "%s/static.so", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink(policy_file(m), path), 0);
	assert_int_equal(host_open(&f, why), -ELOOP);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(host_open(&f, why), -ENOENT);
	put_file("static.so", good, good_size, 0755);
	policy_unref(m);
	close(fd);
}

static void test_names(void **state)
{
	(void)state;
	refused("statik", -ENOENT, "did you mean \"static\"?");
	refused("zzzzzzzzzz", -ENOENT, "no policy \"zzzzzzzzzz\"");
	refused("Static", -EINVAL, "small letters");
	refused("..", -EINVAL, "small letters");
	refused("", -EINVAL, "small letters");
	refused("a2345678901234567890123456789012", -EINVAL, "at most 31");
	refused("./nowhere.so", -ENOENT, "nowhere.so");
}

static void test_modes(void **state)
{
	(void)state;
	put_file("static.so", good, good_size, 0775);
	refused("static", -EACCES, "mode 0775 lets its group write it");
	put_file("static.so", good, good_size, 0757);
	refused("static", -EACCES, "mode 0757 lets others write it");
	put_file("static.so", good, good_size, 0755);
	assert_int_equal(chmod(dir, 0770), 0);
	refused("static", -EACCES, "mode 0770");
	refused("static", -EACCES, dir);
	assert_int_equal(chmod(dir, 01777), 0); /* sticky: nobody can rename our file */
	refused("statik", -ENOENT, "did you mean");
	struct policy_module *m;
	assert_int_equal(policy_load("static", dir, &m, NULL), 0);
	policy_unref(m);
	assert_int_equal(chmod(dir, 0700), 0);
}

static void test_owner(void **state)
{
	char path[PATH_MAX];

	(void)state;
	if (geteuid() != 0)
		skip();
	snprintf(path, sizeof(path), "%s/static.so", dir);
	assert_int_equal(chown(path, 12345, 12345), 0);
	refused("static", -EACCES, "belongs to uid 12345");
	assert_int_equal(chown(path, 0, 0), 0);
}

static void test_kind_of_file(void **state)
{
	char path[PATH_MAX], other[PATH_MAX];

	(void)state;
	snprintf(path, sizeof(path), "%s/folder.so", dir);
	assert_int_equal(mkdir(path, 0755), 0);
	refused("folder", -EINVAL, "no regular file");
	rmdir(path);
	/* the name of the file a link leads to counts */
	snprintf(path, sizeof(path), "%s/other.so", dir);
	snprintf(other, sizeof(other), "%s/static.so", dir);
	assert_int_equal(symlink(other, path), 0);
	struct policy_module *m;
	assert_int_equal(policy_load("other", dir, &m, NULL), 0);
	assert_string_equal(policy_desc(m)->name, "static");
	policy_unref(m);
	unlink(path);
	put_file("other.so", good, good_size, 0755);
	refused("other", -EPROTO, "the name is \"static\", the file's is \"other\"");
	remove_file("other.so");
}

static void test_search_path(void **state)
{
	struct policy_module *m;
	char path[PATH_MAX * 2], **names, why[POLICY_WHY];
	size_t n;

	(void)state;
	snprintf(path, sizeof(path), ":/nonexistent::%s:", dir);
	assert_int_equal(policy_load("static", path, &m, why), 0);
	policy_unref(m);
	put_file("UPPER.so", "", 0, 0644);
	put_file("not-a-policy.txt", "", 0, 0644);
	snprintf(path, sizeof(path), "%s:%s", dir, dir);
	assert_int_equal(policy_list(path, &names, &n), 0);
	assert_int_equal(n, 1);
	assert_string_equal(names[0], "static");
	policy_list_free(names, n);
	remove_file("UPPER.so");
	remove_file("not-a-policy.txt");
	assert_int_equal(policy_list("/nonexistent", &names, &n), 0);
	assert_int_equal(n, 0);
	policy_list_free(names, n);
	assert_int_equal(setenv("PCPTUNE_POLICY_PATH", "/a:/b", 1), 0);
	assert_string_equal(policy_default_path(), "/a:/b");
	unsetenv("PCPTUNE_POLICY_PATH");
	assert_non_null(strstr(policy_default_path(), "lib/pcptune/policies"));
}

/* ---- the file ---- */

/* Offset of the descriptor in the file: its first words. */
static size_t find_desc(void)
{
	uint32_t head[6] = {PCPTUNE_POLICY_ABI,
			    sizeof(struct pcptune_policy),
			    sizeof(struct pcptune_sample),
			    sizeof(struct pcptune_cpu),
			    sizeof(struct pcptune_decision),
			    sizeof(struct pcptune_change)};

	for (size_t i = 0; i + sizeof(head) <= good_size; i += 8)
		if (memcmp(good + i, head, sizeof(head)) == 0)
			return i;
	fail_msg("static.so has no descriptor");
	return 0;
}

static void test_sizes_in_file(void **state)
{
	static const struct {
		size_t off;
		uint32_t value;
		const char *words;
	} row[] = {
		{offsetof(struct pcptune_policy, abi), 2, "abi is 2, this host speaks 1"},
		{offsetof(struct pcptune_policy, abi), 0, "abi is 0"},
		{offsetof(struct pcptune_policy, size), 8, "pcptune_policy is 8"},
		{offsetof(struct pcptune_policy, sample_size), 72, "pcptune_sample is 72"},
		{offsetof(struct pcptune_policy, cpu_size), 1u << 30, "pcptune_cpu is 1073741824"},
		{offsetof(struct pcptune_policy, decision_size), 65, "pcptune_decision is 65"},
		{offsetof(struct pcptune_policy, change_size), 0, "pcptune_change is 0"},
		{offsetof(struct pcptune_policy, param_size), 4, "pcptune_param is 4"},
		{offsetof(struct pcptune_policy, reason_size), 4, "pcptune_reason is 4"},
	};
	size_t at = find_desc();

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		char *bad = malloc(good_size);

		memcpy(bad, good, good_size);
		memcpy(bad + at + row[i].off, &row[i].value, sizeof(row[i].value));
		put_file("static.so", bad, good_size, 0755);
		refused("static", -EPROTO, row[i].words);
		free(bad);
	}
	put_file("static.so", good, good_size, 0755);
}

/* Refused before its constructors could run: it was never mapped. */
static void test_refused_is_not_loaded(void **state)
{
	char path[PATH_MAX], *bad = malloc(good_size);
	uint32_t abi = 2;

	(void)state;
	assert_non_null(bad);
	memcpy(bad, good, good_size);
	memcpy(bad + find_desc() + offsetof(struct pcptune_policy, abi), &abi, sizeof(abi));
	put_file("fresh.so", bad, good_size, 0755);
	refused("fresh", -EPROTO, "abi is 2");
	snprintf(path, sizeof(path), "%s/fresh.so", dir);
	assert_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
	remove_file("fresh.so");
	free(bad);
}

static void test_damaged_files(void **state)
{
	char *bad = malloc(good_size);

	(void)state;
	put_file("static.so", "", 0, 0755);
	refused("static", -ENOEXEC, "no shared object");
	put_file("static.so", "#!/bin/sh\nexit 0\n", 17, 0755);
	refused("static", -ENOEXEC, "no shared object");
	/* another symbol: the last letter changed, everywhere */
	memcpy(bad, good, good_size);
	for (size_t i = 0; i + 17 <= good_size; i++)
		if (memcmp(bad + i, "pcptune_policy_v1", 17) == 0)
			bad[i + 16] = '9';
	put_file("static.so", bad, good_size, 0755);
	refused("static", -ENOEXEC, "does not export pcptune_policy_v1");
	/* any damage to the headers, any length: refused or fine, never a crash of the check */
	srand(1);
	for (int n = 0; n < 3000; n++) {
		char path[PATH_MAX], why[POLICY_WHY] = "";
		size_t len = n % 3 ? good_size : (size_t)rand() % good_size;

		memcpy(bad, good, good_size);
		for (int k = 0; k < 8; k++) {
			size_t area = n % 2 ? 64 + 56 * 12 : good_size;

			bad[(size_t)rand() % area] = (char)rand();
		}
		if (n % 5 == 0) /* the section headers */
			for (int k = 0; k < 8; k++)
				bad[good_size - 1 - (size_t)rand() % (64 * 30)] = (char)rand();
		put_file("static.so", bad, len, 0755);
		snprintf(path, sizeof(path), "%s/static.so", dir);
		if (host_check_elf(path, why))
			assert_true(why[0] != 0);
	}
	free(bad);
	put_file("static.so", good, good_size, 0755);
}

/* ---- the descriptor ---- */

static size_t no_state(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return 0;
}

static int no_init(void *state, const struct pcptune_shape *shape, const int64_t *p)
{
	(void)state;
	(void)shape;
	(void)p;
	return 0;
}

static int no_decide(void *state, const struct pcptune_shape *shape, const int64_t *p,
		     const struct pcptune_sample *s, struct pcptune_decision *d,
		     const struct pcptune_host *host)
{
	(void)state;
	(void)shape;
	(void)p;
	(void)s;
	(void)d;
	(void)host;
	return 0;
}

static const char *two[] = {"one", "two", NULL};
static struct pcptune_param params[2];
static struct pcptune_reason reasons[2];
static struct pcptune_policy desc;

static void reset_desc(void)
{
	params[0] = (struct pcptune_param){"first", PCPTUNE_PARAM_INT, 0,      0,   9,
					   5,	    "pages",	       "text", NULL};
	params[1] =
		(struct pcptune_param){"second", PCPTUNE_PARAM_ENUM, 0, 0, 1, 1, "", "text", two};
	reasons[0] = (struct pcptune_reason){1, 0, "raise", "{a:ppm} high {old} -> {new:pages}"};
	reasons[1] = (struct pcptune_reason){2, 1, "calm", "nothing"};
	desc = (struct pcptune_policy){
		PCPTUNE_POLICY_SIZES,	.name = "test",	 .version = "1",     .summary = "summary",
		.params = params,	.n_params = 2,	 .reasons = reasons, .n_reasons = 2,
		.state_size = no_state, .init = no_init, .decide = no_decide};
}

static void check(int line, int err, const char *words)
{
	struct host_image img;
	char why[POLICY_WHY] = "";
	int r;

	assert_int_equal(host_image_of(&desc, &img), 0);
	r = host_check_desc(&desc, &img, "test", why);
	if (r != err || !strstr(why, words))
		fail_msg("line %d: %d \"%s\", right is %d with \"%s\"", line, r, why, err, words);
	reset_desc();
}

static const char *no_refusal(const struct pcptune_shape *shape, const int64_t *p)
{
	(void)shape;
	(void)p;
	return NULL;
}

#define REFUSED(change, words)                     \
	do {                                       \
		change;                            \
		check(__LINE__, -EPROTO, (words)); \
	} while (0)

static char endless[1024];

static void test_descriptor(void **state)
{
	static char stack_like[64] = "ok";
	char *heap = strdup("name");

	(void)state;
	reset_desc();
	check(__LINE__, 0, "");
	REFUSED(desc.name = NULL, "its name is none");
	REFUSED(desc.name = "Test", "its name is none");
	REFUSED(desc.name = "other", "the name is \"other\"");
	REFUSED(desc.name = heap, "its name is none"); /* not in the plug-in */
	REFUSED(desc.version = "", "version or summary");
	REFUSED(desc.summary = NULL, "version or summary");
	REFUSED(desc.summary = "two\nlines", "version or summary");
	memset(endless, 'x', sizeof(endless));
	REFUSED(desc.summary = endless, "version or summary");
	REFUSED(desc.state_size = NULL, "no function");
	REFUSED(desc.init = NULL, "no function");
	REFUSED(desc.decide = NULL, "no function");
	REFUSED(memcpy(&desc.refusal, &(void *){stack_like}, sizeof(void *)),
		"refusal is no function");
	desc.refusal = no_refusal;
	check(__LINE__, 0, "");
	/* built before there was such a member: what lies there is not looked at */
	memcpy(&desc.refusal, &(void *){stack_like}, sizeof(void *));
	desc.size = PCPTUNE_POLICY_MIN_SIZE;
	check(__LINE__, 0, "");
	REFUSED(memcpy(&desc.decide, &(void *){stack_like}, sizeof(void *)), "no function");
	REFUSED(desc.n_params = 65, "65 parameters");
	REFUSED(desc.params = NULL, "2 parameters");
	REFUSED(desc.params = (void *)((char *)params + 4), "2 parameters");
	REFUSED(desc.n_reasons = 0, "0 reasons");
	REFUSED(desc.n_reasons = 257, "257 reasons");
	REFUSED(desc.reasons = (void *)heap, "reasons");
	free(heap);
}

static void test_rows(void **state)
{
	(void)state;
	reset_desc();
	REFUSED(params[0].name = NULL, "parameter 0");
	REFUSED(params[0].name = "with-dash", "parameter 0");
	REFUSED(params[1].name = "first", "there twice");
	REFUSED(params[0].unit = NULL, "unit or text");
	REFUSED(params[0].text = "", "unit or text");
	REFUSED(params[0].type = 4, "type is 4");
	REFUSED(params[0].type = 0, "type is 0");
	REFUSED(params[0].def = 10, "default 10 is not in 0..9");
	REFUSED(params[0].min = 6, "default 5 is not in 6..9");
	REFUSED(params[0].choices = two, "choices without type ENUM");
	REFUSED(params[0].type = PCPTUNE_PARAM_BOOL, "range of a BOOL");
	REFUSED(params[1].choices = NULL, "choices do not end");
	REFUSED(params[1].max = 2, "right is 0..1");
	REFUSED(reasons[0].id = 0, "out of range");
	REFUSED(reasons[0].id = 65536, "out of range");
	REFUSED(reasons[0].kind = 2, "out of range");
	REFUSED(reasons[1].id = 1, "there twice");
	REFUSED(reasons[1].name = "raise", "there twice");
	REFUSED(reasons[0].name = NULL, "its name is none");
	REFUSED(reasons[0].sentence = NULL, "sentence");
	REFUSED(reasons[0].sentence = "{e}", "sentence");
	REFUSED(reasons[0].sentence = "{a:bytes}", "sentence");
	REFUSED(reasons[0].sentence = "{a", "sentence");
	REFUSED(reasons[0].sentence = "a}", "sentence");
	REFUSED(reasons[0].sentence = "{a {b}", "sentence");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_symbols_stay_inside),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_written_anew),
		cmocka_unit_test(test_by_descriptor),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_owner),
		cmocka_unit_test(test_kind_of_file),
		cmocka_unit_test(test_search_path),
		cmocka_unit_test(test_sizes_in_file),
		cmocka_unit_test(test_damaged_files),
		cmocka_unit_test(test_descriptor),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_refused_is_not_loaded),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
