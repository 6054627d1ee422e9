#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Memory goes back after a burst without a call, and stays where a steady cycle needs it.

The programs run at the same time, since they mostly sleep."""
from harness import *

MIB = 256
MODES = {"rseq": 2, "locked": 1}


def start(*words, mode, **env):
    return spawn([os.path.join(TOOLS, "memory_back"), *words], stdout=subprocess.PIPE,
                 env={"PCPALLOC_MODE": mode, "PCPTUNE_SOCKET": "", **env})


def numbers(p):
    out, _ = p.communicate(timeout=120)
    assert p.returncode == 0 and out, (p.returncode, out)
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def free_mib():
    with open("/proc/meminfo") as f:
        return int(re.search(r"MemAvailable: +(\d+)", f.read()).group(1)) >> 10


def modes():
    """Where the system has no restartable sequences both names mean locked lists."""
    asked = os.environ.get("PCPALLOC_MODE")
    return [asked] if asked else list(MODES)


def check_burst(what, mode, n):
    assert n["mode"] in (MODES[mode], MODES["locked"]), n
    assert n["in"] > n["before"] + MIB * 1024, (what, mode, n)
    assert n["freed"] > MIB * 1024, "a burst keeps its memory at first"
    # all of the process: its program and libraries, descriptors, segment and rings, too
    assert n["after"] <= 5 * 1024, (what, mode, n)


@test
def eleven_seconds_after_a_burst_five_mib_are_left():
    requires_release()
    if free_mib() < 6 * MIB:
        skip(f"{6 * MIB} MiB of memory are not available")
    runs = [(what, mode, start(what, str(MIB), mode=mode)) for what in ("burst", "late")
            for mode in modes()]
    for what, mode, p in runs:
        check_burst(what, mode, numbers(p))


@test
def so_it_is_with_malloc_on_our_lists():
    requires_release()
    if free_mib() < 6 * MIB:
        skip(f"{6 * MIB} MiB of memory are not available")
    runs = [(what, mode, start(what, str(MIB), mode=mode, LD_PRELOAD=PRELOAD))
            for what in ("malloc", "malloc-late") for mode in modes()]
    for what, mode, p in runs:
        check_burst(what, mode, numbers(p))


@test
def a_steady_cycle_keeps_its_memory():
    requires_release()
    if free_mib() < 3 * MIB:
        skip(f"{3 * MIB} MiB of memory are not available")
    for mode, p in [(mode, start("cycle", "128", "9", mode=mode)) for mode in modes()]:
        n = numbers(p)
        if n["pause_ms"] > 3000:
            skip(f"this machine kept the program from running for {n['pause_ms']} ms")
        # one cycle is 32768 pages, and there were a hundred
        assert n["given_back"] <= 4096 and n["faults"] <= 4096, (mode, n)


@test
def memory_goes_back_while_a_cycle_goes_on():
    requires_release()
    if free_mib() < 6 * MIB:
        skip(f"{6 * MIB} MiB of memory are not available")
    large = 2 * MIB
    for mode, p in [(mode, start("shrink", "128", "16", str(large), mode=mode))
                    for mode in modes()]:
        n = numbers(p)
        assert n["freed"] > large * 1024, "a burst keeps its memory at first"
        # of what the cycle does not need
        assert n["cycling"] <= n["freed"] - 96 * 1024, (mode, n)


main()
