#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make install into a directory, what others build against it, and make uninstall."""
from harness import *

PROGRAM = """
#include <pcpalloc_inline.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
	void *p = pcpa_alloc(0);

	if (!p)
		return 1;
	memset(p, 1, PCPA_PAGE_SIZE);
	pcpa_free(p, 0);
	p = pcpa_alloc_inline(0);
	if (!p)
		return 1;
	memset(p, 1, PCPA_PAGE_SIZE);
	pcpa_free_inline(p, 0);
	return puts("page") < 0;
}
"""


def make(*words):
    r = run(["make", "-s", "-C", ROOT, f"B={B}", f"VARIANT={VARIANT}", *words], timeout=50,
            env={"MAKEFLAGS": "", "MFLAGS": ""})
    assert r.returncode == 0, r
    return r


def install(d):
    make("install", f"DESTDIR={d}", "PREFIX=/usr")


def pkg_config(d, *words):
    r = run(["pkg-config", *words],
            env={"PKG_CONFIG_SYSROOT_DIR": d, "PKG_CONFIG_LIBDIR": d + "/usr/lib/pkgconfig"})
    assert r.returncode == 0, r
    return r.stdout.split()


def compiled(d, lang, text, *flags, out=None):
    source = os.path.join(d, "x." + lang)
    with open(source, "w") as f:
        f.write(text)
    out = out or os.path.join(d, "x")
    r = run(["g++" if lang == "cc" else "gcc", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source,
             "-o", out, *flags])
    assert r.returncode == 0, r.stderr
    return out


@test
def programs_and_policies_build_against_the_installed_tree_alone():
    requires_release()
    requires("pkg-config", "gcc", "g++", "make")
    d, work = tmp(), tmp()
    install(d)
    lib = d + "/usr/lib"
    for lang in ("c", "cc"):
        x = compiled(work, lang, PROGRAM, *pkg_config(d, "--cflags", "--libs", "pcpalloc"))
        r = run([x], env={"LD_LIBRARY_PATH": lib, "PCPTUNE_SOCKET": ""})
        assert (r.returncode, r.stdout) == (0, "page\n"), r
        assert "libpcpalloc.so.0" in run(["ldd", x], env={"LD_LIBRARY_PATH": lib}).stdout
    x = compiled(work, "c", PROGRAM, *pkg_config(d, "--cflags", "pcpalloc"), lib + "/libpcpalloc.a",
                 "-pthread")
    r = run([x], env={"PCPTUNE_SOCKET": ""})
    assert (r.returncode, r.stdout) == (0, "page\n"), r
    with open(os.path.join(ROOT, "policies/common.h")) as f:
        common = f.read()
    with open(os.path.join(ROOT, "policies/static.c")) as f:
        policy = f.read().replace('#include "policies/common.h"', common)
    mine = os.path.join(work, "policies")
    os.mkdir(mine, 0o755)
    compiled(work, "c", policy, *pkg_config(d, "--cflags", "pcptune"), "-std=gnu17", "-D_GNU_SOURCE",
             "-fPIC", "-shared", "-Wno-pedantic", out=mine + "/static.so")
    r = run([d + "/usr/bin/pcptune", "policies", "--policy-path", mine])
    assert r.returncode == 0 and "static" in r.stdout, r


# each alone, and twice: what is installed is what others include, with the warnings that they like
HEADER = '''
#include <%s>
#include <%s>
int nothing_else;
'''


@test
def public_headers_are_c_and_cxx():
    requires("gcc", "g++")
    compilers = [c for c in (("gcc", "c"), ("g++", "c++"), ("clang", "c"), ("clang++", "c++"))
                 if shutil.which(c[0])]
    standards = {"c": ("c99", "gnu17"), "c++": ("c++11", "c++20")}
    at = os.path.join(ROOT, "include")
    headers = [os.path.relpath(os.path.join(d, f), at) for d, _, fs in os.walk(at) for f in fs
               if f.endswith(".h")]
    assert len(headers) >= 9, headers
    for header in headers:
        for compiler, lang in compilers:
            for standard in standards[lang]:
                r = run([compiler, "-x", lang, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic",
                         "-Werror", "-I", at, "-fsyntax-only", "-"], input=HEADER % (header, header))
                assert r.returncode == 0, (header, compiler, standard, r.stderr[:2000])


@test
def what_is_installed_runs_and_what_was_installed_goes():
    requires_release()
    requires("make")
    d = tmp()
    install(d)
    # its own policies are found beside it, wherever the tree stands
    r = run([d + "/usr/bin/pcptuned", "--check", "-c", d + "/etc/pcptune/pcptuned.conf", "--socket",
             d + "/sock", "--db", d + "/log.db"], env={"PCPTUNE_POLICY_PATH": ""})
    assert r.returncode == 0 and "policy contention" in r.stdout, r
    r = run([d + "/usr/bin/pcptune", "run", "--db", d + "/run.db", "--", "sh", "-c", "exit 7"],
            env={"PCPTUNE_POLICY_PATH": ""})
    assert r.returncode == 7 and "page-grain request" in r.stderr, r
    with open(d + "/usr/lib/systemd/system/pcptuned.service") as f:
        assert "ExecStart=/usr/bin/pcptuned\n" in f.read()
    with open(d + "/etc/pcptune/pcptuned.conf", "a") as f:
        f.write("# the administrator's\n")
    install(d)
    with open(d + "/etc/pcptune/pcptuned.conf") as f:
        assert f.read().endswith("# the administrator's\n"), "a second install leaves it alone"
    make("uninstall", f"DESTDIR={d}", "PREFIX=/usr")
    left = [os.path.relpath(os.path.join(at, f), d) for at, _, fs in os.walk(d) for f in fs]
    assert sorted(left) == ["etc/pcptune/pcptuned.conf", "run.db"], left


main()
