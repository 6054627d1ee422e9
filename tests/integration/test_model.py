#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The protocol of the lists, checked in every state that it can get into (tests/model/list.pml).

MODEL_BLOCKS=3 checks it with three blocks: about ten times as many states, some minutes and GiB.
"""
from harness import *

MODEL = os.path.join(ROOT, "tests/model/list.pml")
CC = os.environ.get("CC", "gcc")


def check(blocks, *faults):
    """What the checker says of the model with these faults."""
    requires("spin", CC)
    d = tmp()
    shutil.copy(MODEL, d)
    macros = [f"-DBLOCKS={blocks}", *(f"-D{f}" for f in faults)]
    r = run(["spin", "-a", *macros, "list.pml"], cwd=d)
    assert r.returncode == 0 and os.path.exists(os.path.join(d, "pan.c")), r
    # every state in full; a fault is a short way off, and found soonest by breadth
    how = ["-O0", "-DBFS"] if faults else ["-O2"]
    r = run([CC, *how, "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", "pan.c", "-o", "pan"], cwd=d)
    assert r.returncode == 0, r
    depth = 40000000 if blocks > 2 else 4000000
    r = run(["./pan", "-w22", f"-m{depth}"], cwd=d, timeout=1800)
    assert "max search depth too small" not in r.stdout and "out of memory" not in r.stdout, r.stdout
    return r.stdout


def errors(out):
    return int(re.search(r"errors: (\d+)", out).group(1))


def faults():
    """The names that the model's last comment gives, each with what it does somewhere above."""
    text = open(MODEL).read()
    names = re.findall(r"^ \*   ([A-Z_]{5,})", text[text.rindex("/*"):], re.M)
    assert len(names) >= 8, names
    for name in names:
        assert re.search(rf"#if(n?)def {name}$", text, re.M), f"{name} is not in the model"
    return names


@test
def no_block_is_lost_or_doubled_and_every_count_is_exact():
    out = check(int(os.environ.get("MODEL_BLOCKS", "2")))
    assert errors(out) == 0, out
    # nothing of the model is idle: but for the ends of its loops every line was reached
    idle = [l for l in out.splitlines() if re.match(r"\s+list\.pml:\d+, state", l)]
    assert all('"-end-"' in l for l in idle), idle
    assert int(re.search(r"(\d+) states, stored", out).group(1)) > 1000000, out


@test
def every_fault_is_found():
    for name in faults():
        out = check(2, name)
        assert errors(out) > 0, f"{name} is not found\n{out}"


def accesses(file, macro):
    """What a section of x86-64 reads and writes of a list, in order, by offsets."""
    text = open(os.path.join(ROOT, file)).read()
    body = re.search(rf"#define {macro} .*?2:", text, re.S).group(0)
    words = {"": "word", "0": "word", "28": "bound", "56": "mark"}
    found = re.findall(r"(\d*)\(%\[l(?:ist)?\]\)|(%\[i\], 8|%\[at\])\)", body)
    return ["place" if place else words[offset] for offset, place in found]


@test
def the_model_takes_the_steps_of_the_sections():
    """Who changes the order in the one must look at the other."""
    pop = accesses("include/pcpalloc_inline.h", "PCPA_ASM_POP")
    push = accesses("include/pcpalloc_inline.h", "PCPA_ASM_PUSH")
    store = accesses("allocator/rseq_sections.h", "PCPA_ASM_STORE")
    assert pop == ["word", "place", "mark", "word"], pop
    assert push == ["word", "bound", "place", "word"], push
    assert store == ["word", "place"], store
    text = open(MODEL).read()
    steps = r"\bidle\)|a = head|== EMPTY|== bound|\] = b\)|head = POS"
    assert re.findall(steps, text[text.index("\npop:"):text.index("\nrefill:")]) == \
        ["idle)", "a = head", "== EMPTY", "head = POS", "head = POS"], "two: one is a fault"
    assert re.findall(steps, text[text.index("\npush:"):text.index("\nmake_room:")]) == \
        ["idle)", "a = head", "== bound", "] = b)", "head = POS"]


main()
