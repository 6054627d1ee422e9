#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The fast path as it was compiled: no locked instruction, no fence, no call."""
import os
import platform
import re
import shutil
import subprocess

from harness import *

LIBRARY = os.path.join(B, "lib", "libpcpalloc.so")


def code(function, library=LIBRARY):
    """Instructions of one function, [(mnemonic, operands)]."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "--disassemble=" + function,
                           library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+[0-9a-f]+:\t(\S+)\s*(.*)$", text, re.M)
    if not found:
        raise AssertionError(function + " is not in " + library)
    return found


def need():
    if not shutil.which("objdump"):
        skip("objdump is not installed")
    if platform.machine() != "x86_64":
        skip("knows x86-64 only")
    if VARIANT != "release":
        skip("sanitizers have no sections, and without optimization nothing is inlined")


def check(function, library=LIBRARY):
    need()
    body = code(function, library)
    whole = " ".join(m + " " + o for m, o in body)
    assert "%fs:" in whole, "no section in " + function
    for mnemonic, operands in body:
        assert mnemonic != "lock", operands
        assert "fence" not in mnemonic, mnemonic
        assert not mnemonic.startswith("call"), operands
        # xchg with memory locks by itself; of two registers it is padding
        assert not (mnemonic.startswith("xchg") and "(" in operands), operands
        assert not mnemonic.startswith(("cmpxchg", "xadd")), operands


@test
def allocation_has_no_lock():
    check("pcpa_alloc")


@test
def free_has_no_lock():
    check("pcpa_free")


@test
def malloc_and_free_of_the_preload_library_have_no_lock():
    check("malloc", PRELOAD)
    check("free", PRELOAD)


@test
def the_test_knows_a_lock():
    """A function that has one is seen to."""
    need()
    assert any(m == "lock" for m, o in code("pcpa_set_error_callback") + code("pcpa_trim")) or \
        "lock" in subprocess.run(["objdump", "-d", LIBRARY], capture_output=True, text=True,
                                 check=True).stdout


main()
