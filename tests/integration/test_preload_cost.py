#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the preload library costs a process that asks for no pages, and what it leaves behind."""
import statistics

from harness import *

TRUE = shutil.which("true") or "/bin/true"


def pages_touched(env):
    """In a life. Time would be that of what else runs; this is what most of the time goes to."""
    pid = os.posix_spawn(TRUE, [TRUE], env)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_minflt


@test
def a_process_without_page_requests_touches_less_than_32_pages_more():
    requires_release()
    plain = {"PATH": os.environ["PATH"]}
    ours = {**plain, "LD_PRELOAD": PRELOAD, "PCPTUNE_SOCKET": "/nonexistent/sock"}
    a, b = ([pages_touched(env) for _ in range(25)] for env in (plain, ours))
    a, b = statistics.median(a), statistics.median(b)
    print(f"# without {a}, with {b}")
    assert a < b < a + 32, (a, b)


@test
def such_a_process_makes_no_zone_no_thread_and_no_descriptor():
    requires_release()
    r = run([sys.executable, "-S", "-c", "pass"])
    assert r.returncode == 0
    # a shell without page-grain requests shows its own maps
    r = run(["sh", "-c", "read -r x < /dev/null; while read -r l; do echo \"$l\"; done "
             "< /proc/self/maps; echo /proc/$$/task/*; echo /proc/$$/fd/*"],
            env={"LD_PRELOAD": PRELOAD, "PCPALLOC_MIN_SIZE": "4m"})
    assert "libpcpalloc-preload" in r.stdout, r
    assert "memfd" not in r.stdout, r.stdout
    assert r.stdout.count("/task/") == 1, r.stdout


def leftovers():
    """Files in the places that we use, and shared memory."""
    found = set()
    for d in {os.environ.get("TMPDIR", "/tmp"), os.environ.get("XDG_RUNTIME_DIR", "/tmp")}:
        found |= {os.path.join(d, n) for n in os.listdir(d) if "pcp" in n}
    found |= {f"/dev/shm/{n}" for n in os.listdir("/dev/shm") if "pcp" in n}
    return found


def open_files(pid):
    """What its descriptors stand for; one that is closed while we look counts as closed."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return found


@test
def a_thousand_short_processes_leave_nothing_behind():
    requires_release()
    before = leftovers()
    d = Daemon()
    api = os.path.join(TOOLS, "preload_api")
    env = {**os.environ, "LD_PRELOAD": PRELOAD, "PCPTUNE_SOCKET": d.socket}
    for i in range(1000):
        cmd = [api, "short"] if i % 2 else [TRUE]
        pid = os.posix_spawn(cmd[0], cmd, env)
        _, status = os.waitpid(pid, 0)
        assert status == 0, (cmd, status)

    def none_left():
        """the daemon has let go of every target"""
        return not d.ctl("targets")["targets"]
    wait_for(none_left)
    fds = open_files(d.proc.pid)
    assert not [f for f in fds if "memfd" in f], fds
    with open(f"/proc/{d.proc.pid}/maps") as f:
        assert "memfd" not in f.read()
    assert d.stop() == 0
    n = d.sql("SELECT count(*) FROM target")[0][0]
    assert n == 500, n
    assert leftovers() - before == set(), leftovers() - before


main()
