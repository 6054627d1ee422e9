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

FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror",
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
