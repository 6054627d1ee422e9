#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads, fork handlers and ends of programs under the preload library."""
from harness import *

FORK = os.path.join(TOOLS, "preload_fork")


def case(name, preload, **more):
    requires_release()
    env = {"PCPTUNE_SOCKET": "", **more}
    if preload:
        env["LD_PRELOAD"] = PRELOAD
    r = run([FORK, name], env=env)
    assert r.returncode == 0, f"{name}: status {r.returncode}\n{r.stdout}{r.stderr}"
    return r.stdout


@test
def a_fork_handler_may_wait_for_a_lock_below_which_others_allocate():
    case("handlers", False)
    case("handlers", True)


@test
def a_process_ends_with_its_last_thread_when_the_first_one_left():
    assert case("leave", False) == "last\n"
    start = time.monotonic()
    assert case("leave", True) == "last\n"
    assert time.monotonic() - start < 5


@test
def locking_all_memory_does_not_bring_in_what_is_only_reserved():
    pages = case("lock", True, PCPALLOC_SIZE="256m")
    if not pages:
        skip("locking memory is not allowed here")
    assert int(pages) < 32768, pages


main()
