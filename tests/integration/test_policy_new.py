#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The way of docs/writing-a-policy.md: the example and a new policy, built against an installed tree
by pkg-config alone, loaded, run, logged and replayed."""
import glob

from harness import *

FAULT = os.path.join(BENCH, "page_fault1")


def prefix():
    """An installed tree; it goes with the test."""
    d = tmp()
    r = run(["make", "-s", "-C", ROOT, f"B={B}", f"VARIANT={VARIANT}", "install", f"DESTDIR={d}",
             "PREFIX=/usr"], timeout=50, env={"MAKEFLAGS": "", "MFLAGS": ""})
    assert r.returncode == 0, r
    return d


def needs():
    requires_release()
    requires("make", "pkg-config", "gcc")


def build(root, d, *words):
    return run(["make", "-C", d, *words],
               env={"PKG_CONFIG_SYSROOT_DIR": root, "MAKEFLAGS": "", "MFLAGS": "",
                    "PKG_CONFIG_LIBDIR": root + "/usr/lib/pkgconfig",
                    "CFLAGS": "-O2 -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes "
                              "-Wmissing-prototypes -Werror"})


def runs(directory, name, *sets, seconds=2):
    """Loads it, runs page_fault1 with it, and replays the log. Returns its decisions."""
    r = run([PCPTUNE, "policies", name, "--policy-path", directory, "--json"])
    assert r.returncode == 0, r
    p = json.loads(r.stdout)
    assert p["name"] == name and len(p["params"]) == 2 and len(p["reasons"]) == 5, p
    if not os.path.exists(FAULT):
        skip("bench/page_fault1 is not built")
    db = os.path.join(tmp(), "log.db")
    r = run([PCPTUNE, "run", "--policy", f"{directory}/{name}.so", *sets, "--db", db, "--", FAULT, "-t",
             "2", "-m", "8", "-s", str(seconds), "-w", "1"],
            # by its own rules the allocator may have raised high enough before the first look; and so
            # little memory comes and goes within one interval on a machine that is busy, too
            env={"PCPALLOC_RULES": "g0"})
    assert r.returncode == 0, r
    r = run([PCPTUNE, "verify", "--db", db, "--policy-path", directory, "--json"])
    v = json.loads(r.stdout)
    assert r.returncode == 0 and v["ok"] and v["derived"] > 0 and v["not_derivable"] == 0, r
    r = run([PCPTUNE, "log", "--db", db, "--policy-path", directory])
    assert r.returncode == 0 and "in one interval" in r.stdout, r
    with sqlite3.connect(db) as c:
        rows = c.execute("SELECT old_high, clamped_high FROM decision ORDER BY id").fetchall()
    c.close()
    return rows


@test
def the_example_builds_out_of_tree_and_runs():
    needs()
    d = os.path.join(tmp(), "policy")
    os.mkdir(d, 0o755)
    for f in ("hello.c", "Makefile"):
        shutil.copy(os.path.join(ROOT, "examples/policy", f), d)
    root = prefix()
    r = build(root, d)
    assert r.returncode == 0, r
    with open(os.path.join(d, "hello.c")) as f:
        assert set(re.findall(r"#include (\S+)", f.read())) == {"<errno.h>", "<stdbool.h>",
                                                                "<pcptune/policy.h>"}
    rows = runs(d, "hello")
    assert any(new == min(2 * old, 65536) > old for old, new in rows), rows
    r = build(root, d, "install", f"DESTDIR={root}/staged")
    assert r.returncode == 0, r
    found = glob.glob(root + "/staged/**/hello.so", recursive=True)
    assert len(found) == 1 and found[0].endswith("/lib/pcptune/policies/hello.so"), found
    assert build(root, d, "clean").returncode == 0 and sorted(os.listdir(d)) == ["Makefile", "hello.c"]


@test
def the_example_builds_in_the_source_tree_as_well():
    requires_release()
    requires("make", "pkg-config", "gcc")
    if not os.path.exists(B + "/lib/pkgconfig/pcptune.pc"):
        skip("only after a make of everything")
    d = tmp()
    os.makedirs(d + "/examples/policy", 0o755)
    os.makedirs(d + "/build")
    os.symlink(B, d + "/build/release")
    for f in ("hello.c", "Makefile", "in-tree.mk"):
        shutil.copy(os.path.join(ROOT, "examples/policy", f), d + "/examples/policy")
    r = run(["make", "-C", d + "/examples/policy"],
            env={"PKG_CONFIG_LIBDIR": tmp(), "MAKEFLAGS": "", "MFLAGS": ""})
    assert r.returncode == 0, r
    r = run([PCPTUNE, "policies", d + "/examples/policy/hello.so"])
    assert r.returncode == 0 and "hello" in r.stdout, r
    r = run([PCPTUNE, "simulate", "--workload", "kbuild", "--cpus", "16", "--seeds", "1",
             "--rows", "base,./examples/policy/hello.so", "--set", "hello.most=4096"], cwd=d)
    row = re.search(r"^hello most=4096 +(\S+) +(\S+) +(\S+) +(\S+)", r.stdout, re.M)
    assert r.returncode == 0 and row and 10 < float(row[4]) < 90, r


@test
def a_new_policy_builds_and_runs():
    needs()
    d = tmp()
    r = run([PCPTUNE, "policy", "new", "my-rule_2"], cwd=d)
    assert r.returncode == 0 and not r.stderr, r
    assert sorted(os.listdir(d + "/my-rule_2")) == ["Makefile", "my-rule_2.c"]
    for f, example in (("my-rule_2.c", "hello.c"), ("Makefile", "Makefile")):
        with open(os.path.join(d, "my-rule_2", f)) as mine, \
                open(os.path.join(ROOT, "examples/policy", example)) as its:
            its = its.read().replace("-include in-tree.mk\n", "")
            assert mine.read().replace("my-rule_2", "hello") == its, f
    assert "make -C my-rule_2\n" in r.stdout and "./my-rule_2/my-rule_2.so" in r.stdout, r
    os.umask(0o002) # what others may write would not be loaded
    try:
        r = build(prefix(), d + "/my-rule_2")
        assert r.returncode == 0, r
    finally:
        os.umask(0o022)
    for seconds in (2, 8):  # beside many others there may be few samples in two seconds
        rows = runs(d + "/my-rule_2", "my-rule_2", "--set", "most=3000", seconds=seconds)
        if any(new == 3000 for old, new in rows):
            break
    else:
        raise AssertionError(rows)
    assert all(new <= 3000 for old, new in rows if new > old), rows


@test
def a_new_policy_can_go_into_a_directory_that_is_there():
    d = tmp()
    r = run([PCPTUNE, "policy", "new", "mine", d])
    assert r.returncode == 0, r
    assert sorted(os.listdir(d)) == ["Makefile", "mine.c"]
    # no daemon is asked, wherever its socket is
    sub = d + "/sub"
    r = run([PCPTUNE, "policy", "new", "mine", sub, "--socket", "/nonexistent", "--json"])
    assert r.returncode == 0 and json.loads(r.stdout) == {
        "policy": "mine", "directory": sub, "files": [sub + "/mine.c", sub + "/Makefile"]}, r


@test
def nothing_that_exists_is_written_over():
    d = tmp()
    for there, name in (("Makefile", "one"), ("two.c", "two")):
        sub = os.path.join(d, name)
        os.mkdir(sub)
        with open(os.path.join(sub, there), "w") as f:
            f.write("mine")
        r = run([PCPTUNE, "policy", "new", name, sub])
        assert r.returncode == 1 and there in r.stderr and "is there already" in r.stderr, r
        assert f"pcptune policy new {name} DIR" in r.stderr and len(r.stderr.splitlines()) == 1, r
        assert os.listdir(sub) == [there]
        with open(os.path.join(sub, there)) as f:
            assert f.read() == "mine"


@test
def a_wrong_name_or_directory_is_refused():
    d = tmp()
    for name in ("Mine", "9mine", "", "a b", "../x", "x" * 32, "mine.so"):
        r = run([PCPTUNE, "policy", "new", name, d])
        assert r.returncode == 2 and "name of a policy" in r.stderr and not r.stdout, (name, r)
    for words in ((), ("a", "b", "c")):
        r = run([PCPTUNE, "policy", "new", *words], cwd=d)
        assert r.returncode == 2 and "NAME" in r.stderr, r
    r = run([PCPTUNE, "policy", "new", "mine", d + "/not/there"])
    assert r.returncode == 1 and "/not/there" in r.stderr, r
    r = run([PCPTUNE, "policy", "new", "mine", d + "/" + "x/" * 2100])
    assert r.returncode == 1 and "too long" in r.stderr, r
    assert os.listdir(d) == []


@test
def what_is_built_without_an_installed_pcptune_says_what_is_missing():
    needs()
    d = tmp()
    assert run([PCPTUNE, "policy", "new", "mine", d]).returncode == 0
    r = run(["make", "-C", d], env={"PKG_CONFIG_LIBDIR": tmp(), "MAKEFLAGS": "", "MFLAGS": ""})
    assert r.returncode != 0 and "pcptune" in r.stderr and "PKG_CONFIG_PATH" in r.stderr, r
    assert sorted(os.listdir(d)) == ["Makefile", "mine.c"]


@test
def the_guide_names_what_there_is():
    with open(os.path.join(ROOT, "docs/writing-a-policy.md")) as f:
        text = f.read()
    headers = ""
    for h in ("policy.h", "counters.def", "segment.h"):
        with open(os.path.join(ROOT, "include/pcptune", h)) as f:
            headers += f.read()
    fields = set(re.findall(r"`((?:alloc|free|lock|decay|trim|high|cpu|mem|managed|budget|host|rest|"
                            r"dt|time|n|state)_\w+|PCPTUNE_\w+|pcptune_\w+)(?:\(\w*(?:, \w+)*\))?`", text))
    assert len(fields) > 25, fields
    for word in fields:
        assert re.search(rf"\b{word}\b", headers), word
    for cmd in re.findall(r"^    \$ pcptune (\S+)", text, re.M):
        assert run([PCPTUNE, cmd, "--help"]).returncode == 0, cmd
    for path in re.findall(r"`((?:tests|policies|include|examples)/[\w./-]+)`", text):
        assert os.path.exists(os.path.join(ROOT, path)), path


main()
