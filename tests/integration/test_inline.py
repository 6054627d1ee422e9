#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""pcpalloc_inline.h as others compile it: each compiler, language, level and way to link."""
import os
import platform
import re
import shutil
import subprocess

from harness import *

PROGRAM = """
#include <pcpalloc_inline.h>

#ifdef __cplusplus
#define NOTHING nullptr
#else
#define NOTHING NULL
#endif

void *one(void);
void one_back(void *block);
void *any(unsigned order);
void any_back(void *block, unsigned order);

void *one(void)
{
	return pcpa_alloc_inline(0);
}

void one_back(void *block)
{
	pcpa_free_inline(block, 0);
}

void *any(unsigned order)
{
	return pcpa_alloc_inline(order);
}

void any_back(void *block, unsigned order)
{
	pcpa_free_inline(block, order);
}

static unsigned n_errors;

static void count(const struct pcpa_error *error, void *cookie)
{
	(void)error, (void)cookie;
	n_errors++;
}

int main(void)
{
	static void *kept[100];
	struct pcpa_stats s;
	unsigned round, i;

	for (round = 0; round < 100; round++) {
		for (i = 0; i < 100; i++) {
			kept[i] = i % 2 ? any(i % 5) : one();
			if (kept[i] == NOTHING)
				return 1;
			*(unsigned *)kept[i] = i;
		}
		for (i = 0; i < 100; i++)
			if (*(unsigned *)kept[i] != i)
				return 2;
			else if (i % 2)
				any_back(kept[i], i % 5);
			else
				one_back(kept[i]);
	}
	s.size = sizeof(s);
	if (pcpa_get_stats(&s) || s.alloc_pages != s.free_pages || s.pages_in_use)
		return 3;
	if (s.alloc_pages != 100 * (50 + 10 * (1 + 2 + 4 + 8 + 16)))
		return 4;
	pcpa_set_error_callback(count, NOTHING);
	one_back(&n_errors);
	one_back((char *)kept[0] + 64);
	any_back((char *)kept[0] + PCPA_PAGE_SIZE / 2, 1);
	if (n_errors != 3)
		return 5;
	return pcpa_audit(NOTHING) ? 6 : 0;
}
"""

FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror",
         "-I" + os.path.join(ROOT, "include")]
ENV = {"PCPTUNE_SOCKET": "", "LD_LIBRARY_PATH": os.path.join(B, "lib")}


def source(d, lang):
    path = os.path.join(d, "x." + lang)
    if not os.path.exists(path):
        with open(path, "w") as f:
            f.write(PROGRAM)
    return path


def compiled(d, compiler, lang, *flags, out="x"):
    out = os.path.join(d, out)
    r = run([compiler, *FLAGS, *flags, source(d, lang), "-o", out,
             *([] if "-c" in flags else ["-L" + os.path.join(B, "lib"), "-lpcpalloc"])], timeout=50)
    assert r.returncode == 0, (compiler, flags, r.stderr)
    return out


def compilers(lang):
    return [c for c in (("g++", "clang++") if lang == "cc" else ("gcc", "clang")) if shutil.which(c)]


def matrix(lang, standard):
    requires_release()
    d = tmp()
    places = ["-fno-pie", "-no-pie"], ["-fPIE", "-pie"], ["-fPIC", "-pie"]
    for compiler in compilers(lang):
        for level in ("-O0", "-O1", "-O2", "-O3"):
            for place in places if level in ("-O0", "-O2") else places[1:2]:
                x = compiled(d, compiler, lang, level, standard, *place)
                r = run([x], env=ENV)
                assert r.returncode == 0, (compiler, level, place, r)


@test
def c_programs():
    matrix("c", "-std=gnu17")


@test
def cxx_programs():
    matrix("cc", "-std=c++17")


@test
def other_standards():
    requires_release()
    d = tmp()
    for lang, standards in (("c", ("c99", "c11", "gnu99", "c2x")), ("cc", ("c++11", "c++20"))):
        for compiler in compilers(lang):
            for standard in standards:
                compiled(d, compiler, lang, "-c", "-O2", "-std=" + standard, out="x.o")


SHARED = """
#include <pcpalloc_inline.h>

inline void *get(unsigned order)
{
	return pcpa_alloc_inline(order);
}

template <class T> struct box {
	static void put(T *block)
	{
		pcpa_free_inline(block, 0);
	}
};

void other();
"""


@test
def functions_that_several_units_have():
    """Of inline functions and templates the linker keeps one copy, with all that belongs to it."""
    requires_release()
    d = tmp()
    parts = {"h.h": SHARED,
             "a.cc": '#include "h.h"\nint main()\n{\n\tvoid *p = get(0);\n\n'
                     '\tbox<void>::put(p);\n\tother();\n\treturn !p;\n}\n',
             "b.cc": '#include "h.h"\nvoid other()\n{\n\tbox<void>::put(get(0));\n}\n'}
    for name, text in parts.items():
        with open(os.path.join(d, name), "w") as f:
            f.write(text)
    for compiler in compilers("cc"):
        for flags in (["-O0"], ["-O2", "-fno-inline"],
                      ["-O0", "-ffunction-sections", "-Wl,--gc-sections"]):
            x = os.path.join(d, "x")
            r = run([compiler, *FLAGS, *flags, d + "/a.cc", d + "/b.cc", "-o", x,
                     "-L" + os.path.join(B, "lib"), "-lpcpalloc"], timeout=50)
            assert r.returncode == 0, (compiler, flags, r.stderr)
            r = run([x], env=ENV)
            assert r.returncode == 0, (compiler, flags, r)


@test
def in_either_mode_and_without():
    requires_release()
    d = tmp()
    x = compiled(d, "gcc", "c", "-O2")
    for more in ({"PCPALLOC_MODE": "locked"}, {"PCPALLOC_CHECK": "1"}, {"PCPALLOC_ZONES": "3"},
                 {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, {"PCPALLOC_CPUS": "2"}):
        r = run([x], env={**ENV, **more})
        assert r.returncode == 0, (more, r)
    x = compiled(d, "gcc", "c", "-O2", "-DPCPA_NO_INLINE")
    assert run([x], env=ENV).returncode == 0


@test
def with_the_archive():
    requires_release()
    d = tmp()
    for extra in ([], ["-static"], ["-flto"], ["-no-pie", "-fno-pie"]):
        out = os.path.join(d, "s")
        r = run(["gcc", *FLAGS, "-O2", *extra, source(d, "c"), "-o", out,
                 os.path.join(B, "lib", "libpcpalloc.a"), "-pthread"], timeout=50)
        assert r.returncode == 0, (extra, r.stderr)
        r = run([out], env=ENV)
        assert r.returncode == 0, (extra, r)


@test
def in_a_shared_object():
    requires_release()
    d = tmp()
    so = os.path.join(d, "libuser.so")
    r = run(["gcc", *FLAGS, "-O2", "-fPIC", "-shared", "-Dmain=inner", source(d, "c"), "-o", so,
             "-L" + os.path.join(B, "lib"), "-lpcpalloc"])
    assert r.returncode == 0, r.stderr
    with open(os.path.join(d, "y.c"), "w") as f:
        f.write("int inner(void);\nint main(void)\n{\n\treturn inner();\n}\n")
    r = run(["gcc", os.path.join(d, "y.c"), "-o", os.path.join(d, "y"), so, "-Wl,-rpath," + d,
             "-Wl,-rpath-link," + os.path.join(B, "lib")])
    assert r.returncode == 0, r.stderr
    r = run([os.path.join(d, "y")], env=ENV)
    assert r.returncode == 0, r


# The header alone: the lists, and what it falls back to, are played. Under an emulator, which does
# not register threads, so is the CPU id. An interruption goes to the fallback: then once more.
PLAYED = """
#include <pcpalloc_inline.h>
#include <string.h>
#include <sys/rseq.h>

struct list {
	uint64_t word, tail, ring;
	uint32_t mask, bound;
	uint64_t base, end, pages;
	uint32_t mark, limit;
	char gap[PCPA_INLINE_RING - 64];
	void *places[1 << 16];
};

#define PUSH ((1u << 24) + 1)
#define POP  ((1u << 24) - 1)

struct pcpa_inline_lists PCPA_LISTS[PCPA_INLINE_ORDERS];
static struct list list, empty;
static unsigned fallbacks;
static void *freed;

void *pcpa_alloc(unsigned order)
{
	(void)order;
	fallbacks++;
	return NULL;
}

void pcpa_free(void *block, unsigned order)
{
	(void)order;
	freed = block;
	fallbacks++;
}

static char *block(unsigned i)
{
	return (char *)(uintptr_t)0x7f0000400000 + i * 2 * PCPA_PAGE_SIZE;
}

static int refused(void *p)
{
	uint64_t word = list.word;

	pcpa_free_inline(p, 1);
	return freed == p && list.word == word;
}

static int pushed(void *p)
{
	uint64_t word = list.word;

	for (unsigned n = 0; n < 1000 && list.word == word; n++)
		pcpa_free_inline(p, 1);
	return list.word == word + PUSH;
}

static int popped(void *p)
{
	uint64_t word = list.word;
	void *got = NULL;

	for (unsigned n = 0; n < 1000 && !got; n++)
		got = pcpa_alloc_inline(1);
	return got == p && list.word == word + POP && list.mark == (uint32_t)list.word;
}

int main(void)
{
	uint32_t *id = (uint32_t *)((char *)__builtin_thread_pointer() + __rseq_offset + 4);
	unsigned i;

	list.word = list.tail = (uint64_t)0 - 3;
	list.bound = (uint32_t)(list.tail + 6) & 0xffff;
	list.base = (uintptr_t)block(0);
	list.end = 12;
	for (i = 0; i < PCPA_INLINE_CPUS; i++)
		PCPA_LISTS[1].of_cpu[i] = &empty;
	if (!refused(block(0)) || pcpa_alloc_inline(1))
		return 1;
	for (i = 0; i < PCPA_INLINE_CPUS; i++)
		PCPA_LISTS[1].of_cpu[i] = &list;
	PCPA_LISTS[1].align = 2 * PCPA_PAGE_SIZE - 1;
	if ((int32_t)*id < 0) {
		if (!refused(block(0)) || pcpa_alloc_inline(1))
			return 2;
		*id = 5;
	}
	for (i = 0; i < 6; i++)
		if (!pushed(block(i)))
			return 3;
	if (!refused(block(0)) || list.mark)
		return 4;
	for (i = 6; i-- > 0;)
		if (!popped(block(i)))
			return 5;
	if (pcpa_alloc_inline(1) || !pushed(block(5)))
		return 6;
	if (!refused(block(6)) || !refused(block(0) - 2 * PCPA_PAGE_SIZE) || !refused(block(1) + 1) ||
	    !refused(block(1) + PCPA_PAGE_SIZE) || !refused(NULL))
		return 7;
	return fallbacks ? 0 : 8;
}
"""


def played(d, compiler, *flags):
    source, x = os.path.join(d, "p.c"), os.path.join(d, "p")
    with open(source, "w") as f:
        f.write(PLAYED)
    r = run([compiler, *FLAGS, "-D_GNU_SOURCE", *flags, source, "-o", x], timeout=50)
    assert r.returncode == 0, (compiler, flags, r.stderr)
    return x


@test
def on_lists_that_are_played():
    requires_release()
    d = tmp()
    for compiler in compilers("c"):
        for level in ("-O0", "-O2", "-O3"):
            r = run([played(d, compiler, level)])
            assert r.returncode == 0, (compiler, level, r)


@test
def on_aarch64_under_an_emulator():
    requires_release()
    if not shutil.which("aarch64-linux-gnu-gcc") or not shutil.which("qemu-aarch64"):
        skip("no compiler or no emulator for aarch64")
    d = tmp()
    for level in ("-O0", "-O2", "-O3"):
        r = run(["qemu-aarch64", played(d, "aarch64-linux-gnu-gcc", level, "-static")])
        assert r.returncode == 0, (level, r)


def body_of(listing, function):
    found = re.search(r"^[0-9a-f]+ <%s>:\n(.*?)(?=^$|\Z)" % function, listing, re.M | re.S)
    assert found, function + " is not in the object"
    return re.findall(r"^\s+[0-9a-f]+:\t(\S+)[ \t]*(.*)$", found.group(1), re.M)


@test
def the_code_has_no_lock():
    """What was inlined: one section, no locked instruction, calls on the slow way alone."""
    requires_release()
    if not shutil.which("objdump") or platform.machine() != "x86_64":
        skip("needs objdump and x86-64")
    d = tmp()
    for compiler in compilers("c"):
        o = compiled(d, compiler, "c", "-O2", "-c", out="x.o")
        listing = run(["objdump", "-d", "--no-show-raw-insn", o]).stdout
        for function in ("one", "one_back", "any", "any_back"):
            code = body_of(listing, function)
            text = [m + " " + o for m, o in code]
            assert sum("%fs:0x8(" in t or "%fs:8(" in t for t in text) == 1, (compiler, text)
            for mnemonic, operands in code:
                assert mnemonic != "lock" and "fence" not in mnemonic, (function, mnemonic)
                assert not (mnemonic.startswith("xchg") and "(" in operands), (function, operands)
                assert not mnemonic.startswith(("cmpxchg", "xadd")), (function, mnemonic)
            # the hot way ends before anything is called
            ends = [i for i, (m, _) in enumerate(code) if m.startswith("ret")]
            calls = [i for i, (m, o) in enumerate(code) if m.startswith("call") or
                     (m.startswith("jmp") and "*" in o)]
            assert ends and (not calls or min(ends) < min(calls)), (compiler, text)
        abort = run(["objdump", "-d", "-j", ".text.pcpa_abort", "--no-show-raw-insn", o]).stdout
        assert abort.count("jmp") >= 4, abort


@test
def aarch64_compiles_without_a_lock():
    requires_release()
    if not shutil.which("aarch64-linux-gnu-gcc"):
        skip("no compiler for aarch64")
    d = tmp()
    for level in ("-O0", "-O2", "-O3"):
        o = os.path.join(d, "a.o")
        r = run(["aarch64-linux-gnu-gcc", *FLAGS, level, "-fPIC", "-c", source(d, "c"), "-o", o],
                timeout=50)
        assert r.returncode == 0, r.stderr
        listing = run(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", o]).stdout
        for function in ("one", "one_back", "any", "any_back"):
            code = body_of(listing, function)
            names = [m for m, _ in code]
            assert level == "-O0" or "stlr" in names, (function, names)
            for m in names:
                assert not m.startswith(("ldx", "ldax", "stx", "stlx", "cas", "swp", "ldadd", "dmb")), \
                    (function, m)


main()
