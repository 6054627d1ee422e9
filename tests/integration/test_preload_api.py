#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All of malloc's API under the preload library: boundary sizes, threads, fork, odd moments.

The cases are in tests/tools/preload_api.c; here they run with different ranges of sizes, with and
without the library. No daemon: PCPTUNE_SOCKET is empty.
"""
import glob

from harness import *

API = os.path.join(TOOLS, "preload_api")
ALONE = {"PCPTUNE_SOCKET": ""}


def api(case, min=4096, max=4 << 20, preload=True, **env):
    requires_release()
    e = {**ALONE, **env}
    if preload:
        e["LD_PRELOAD"] = PRELOAD
    r = run([API, case, str(min), str(max)], env=e)
    assert r.returncode == 0 and not r.stdout and not r.stderr, \
        f"{case}: status {r.returncode}\n{r.stdout[-3000:]}{r.stderr[-1000:]}"


def sizes(case):
    """The default range, everything, a range in the middle."""
    api(case)
    api(case, 1, 4 << 20, PCPALLOC_MIN_SIZE="1")
    api(case, 65536, 1 << 20, PCPALLOC_MIN_SIZE="64k", PCPALLOC_MAX_SIZE="1m")


@test
def the_cases_hold_without_the_library():
    for case in ("plain", "realloc", "aligned", "errors", "threads", "fork", "spawn"):
        api(case, 1, 0, preload=False)


@test
def malloc_calloc_free_at_the_boundaries():
    sizes("plain")


@test
def realloc_from_every_size_to_every_size():
    sizes("realloc")


@test
def realloc_gives_tail_pages_back_and_grows_in_steps():
    api("resize")


@test
def aligned_calls_keep_every_alignment():
    sizes("aligned")


@test
def errors_and_errno_are_those_of_the_manual():
    api("errors")


@test
def threads_pass_blocks_around():
    sizes("threads")
    api("threads", PCPALLOC_CPUS="16")


@test
def fork_while_threads_allocate():
    api("fork")
    api("fork", 1, 4 << 20, PCPALLOC_MIN_SIZE="1")


@test
def spawn_and_vfork_with_exec():
    sizes("spawn")


@test
def constructors_destructors_exit_handlers_and_thread_data():
    sizes("moments")


@test
def misuse_is_reported_and_harmless():
    api("misuse")
    api("misuse", PCPALLOC_MODE="locked")
    api("misuse", PCPALLOC_CHECK="1")


@test
def signals_interrupt_calls():
    api("signals")


@test
def lists_that_are_full_or_empty_all_the_time():
    for case in ("plain", "threads", "fork", "moments", "misuse", "signals"):
        for high in ("4", "40"):
            api(case, PCPALLOC_HIGH=high, PCPALLOC_BATCH="3")


@test
def without_address_space_the_next_malloc_serves():
    api("limited")


@test
def a_full_zone_passes_requests_on():
    for case in ("threads", "fork", "signals"):
        api(case, PCPALLOC_SIZE="4m")


@test
def a_program_may_close_every_descriptor():
    api("closed")
    requires_daemon_files()
    d = Daemon()
    api("closed", PCPTUNE_SOCKET=d.socket)
    api("closed", PCPTUNE_SOCKET=os.path.join(d.dir, "nobody"))


def requires_daemon_files():
    assert os.path.exists(PCPTUNED), f"{PCPTUNED} is not built"


@test
def settings_that_are_none_count_as_left_out():
    for min, max in (("x", "y"), ("", ""), ("-5", "99g"), ("0", "0"), ("4096b", "4mm")):
        api("plain", PCPALLOC_MIN_SIZE=min, PCPALLOC_MAX_SIZE=max)


@test
def an_empty_range_passes_everything_on():
    api("plain", 1, 0, PCPALLOC_MIN_SIZE="64k", PCPALLOC_MAX_SIZE="4k")


@test
def every_name_is_there_and_no_other():
    requires_release()
    requires("nm")
    r = run(["nm", "-D", "--defined-only", PRELOAD])
    names = {line.split()[-1] for line in r.stdout.splitlines()}
    ours = {n for n in names if n.startswith("pcpa_")}
    with open(os.path.join(ROOT, "include/pcpalloc.h")) as f:
        api = set(re.findall(r"PCPA_API [^;(]*?(pcpa_\w+)\(", f.read()))
    with open(os.path.join(ROOT, "include/pcpalloc_inline.h")) as f:
        api.update(re.findall(r"define PCPA_LISTS (\w+)", f.read()))
    assert ours == api and len(api) > 10, ours ^ api
    assert names - ours == {
        "malloc", "calloc", "realloc", "reallocarray", "free", "cfree", "free_sized",
        "free_aligned_sized", "memalign", "posix_memalign", "aligned_alloc", "valloc", "pvalloc",
        "malloc_usable_size"}, names - ours


@test
def a_malloc_of_the_program_wins():
    requires_release()
    own = os.path.join(TOOLS, "preload_own")
    for size in ("100", "4096", "100000"):
        for env in ({}, {"LD_PRELOAD": PRELOAD}):
            r = run([own, size], env={**ALONE, **env})
            assert (r.returncode, r.stdout, r.stderr) == (0, "mine\n", ""), (size, env, r)


@test
def a_program_that_is_not_position_independent():
    """The address of malloc may be a linkage entry of the program: it is still ours."""
    requires_release()
    requires("gcc")
    d = tmp()
    with open(f"{d}/p.c", "w") as f:
        f.write("""
#include <stdio.h>
#include <stdlib.h>
#include <dlfcn.h>
int main(void) {
    void *(*volatile m)(size_t) = malloc;
    void (*volatile f)(void *) = free;
    int (*owns)(const void *) = (int (*)(const void *))dlsym(RTLD_DEFAULT, "pcpa_owns");
    void *p = m(8192);
    puts(owns && owns(p) ? "ours" : "theirs");
    f(p);
    return 0;
}
""")
    for flags in (["-no-pie", "-fno-pie"], ["-pie", "-fpie"], ["-no-pie", "-fno-pie", "-fno-plt"]):
        r = run(["gcc", *flags, "-o", f"{d}/p", f"{d}/p.c"])
        assert r.returncode == 0, r
        r = run([f"{d}/p"], env={**ALONE, "LD_PRELOAD": PRELOAD})
        assert r.stdout == "ours\n", (flags, r)


@test
def a_static_program_runs_as_without_us():
    requires_release()
    requires("gcc")
    d = tmp()
    with open(f"{d}/p.c", "w") as f:
        f.write("#include <stdio.h>\n#include <stdlib.h>\n"
                "int main(void) { free(malloc(8192)); puts(\"well\"); return 0; }\n")
    r = run(["gcc", "-static", "-o", f"{d}/p", f"{d}/p.c"])
    if r.returncode:
        skip("no static C library")
    r = run([f"{d}/p"], env={**ALONE, "LD_PRELOAD": PRELOAD})
    assert (r.returncode, r.stdout, r.stderr) == (0, "well\n", ""), r


@test
def one_instance_when_the_program_is_linked_with_the_library():
    requires_release()
    pf1 = os.path.join(BENCH, "page_fault1")
    if not os.path.exists(pf1):
        skip("page_fault1 is not built")
    r = run([pf1, "-t", "2", "-s", "0.2"], env={**ALONE, "LD_PRELOAD": PRELOAD})
    assert r.returncode == 0, r
    with open("/dev/null") as null:
        p = spawn([pf1, "-t", "1", "-s", "2"], env={**ALONE, "LD_PRELOAD": PRELOAD}, stdin=null,
                  stdout=subprocess.DEVNULL)

    def segments():
        """the process has its segment"""
        n = sum("pcp" in os.readlink(f) for f in glob.glob(f"/proc/{p.pid}/fd/*")
                if os.path.islink(f))
        return n or p.poll() is not None
    wait_for(segments, 5)
    assert p.poll() is None
    assert segments() == 1, segments()


main()
