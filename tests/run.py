#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every test program, in parallel, and counts.

Unit tests are $B/tests/test_*, integration tests tests/integration/test_*.py; all print TAP. Each
program gets a temporary directory of its own (TMPDIR, HOME, XDG_*) and a session of its own, so
that what it leaves behind (files, processes) is seen, counted as a failure and removed.

Usage: tests/run.py [-j N] [-v] [PATTERN ...]     (a pattern is a part of a test's name)
The last line is 'N passed, N failed, N skipped'.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
B = os.path.abspath(os.environ.get("B", os.path.join(ROOT, "build/release")))
VARIANT = os.environ.get("VARIANT", "release")
TIMEOUT = {"release": 240, "debug": 240, "asan": 420, "tsan": 420}.get(VARIANT, 300)
TAP = re.compile(r"^\s*(not ok|ok)\b\s*(?:\d+)?\s*(?:-\s*)?(.*)$")


def programs(patterns):
    names = [os.path.splitext(os.path.basename(p))[0]
             for p in glob.glob(os.path.join(ROOT, "tests/unit/test_*.c"))]
    found = [(n, [os.path.join(B, "tests", n)]) for n in names]
    found += [("integration/" + os.path.basename(p)[:-3], [sys.executable, p])
              for p in glob.glob(os.path.join(ROOT, "tests/integration/test_*.py"))]
    if patterns:
        found = [f for f in found if any(p in f[0] for p in patterns)]
    # long ones first, so that the last to finish is a short one
    return sorted(found, key=lambda f: (not f[0].startswith("integration/"), f[0]))


def environment(tmp):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("PCPTUNE_", "PCPALLOC_", "MAKE", "MFLAGS", "LD_PRELOAD"))}
    # the one choice of mode that a caller may make for the whole run
    if "PCPALLOC_MODE" in os.environ:
        env["PCPALLOC_MODE"] = os.environ["PCPALLOC_MODE"]
    for sub in ("run", "state", "home", "tmp"):
        os.mkdir(os.path.join(tmp, sub), 0o700)
    env.update(B=B, VARIANT=VARIANT, ROOT=ROOT, CMOCKA_MESSAGE_OUTPUT="TAP", LC_ALL="C.UTF-8",
               TMPDIR=os.path.join(tmp, "tmp"), HOME=os.path.join(tmp, "home"),
               XDG_RUNTIME_DIR=os.path.join(tmp, "run"), XDG_STATE_HOME=os.path.join(tmp, "state"),
               PYTHONDONTWRITEBYTECODE="1", TEST_TMP=tmp)
    env.setdefault("ASAN_OPTIONS", "abort_on_error=0:detect_leaks=1:allocator_may_return_null=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    env.setdefault("TSAN_OPTIONS", "halt_on_error=0:exitcode=66:history_size=4")
    return env


def session_members(sid):
    """Processes of a session that are not zombies, with their command lines."""
    left = []
    for d in os.listdir("/proc"):
        if not d.isdigit():
            continue
        try:
            with open(f"/proc/{d}/stat", "rb") as f:
                fields = f.read().rsplit(b")", 1)[1].split()
            if int(fields[3]) == sid and fields[0] not in (b"Z", b"X"):
                with open(f"/proc/{d}/cmdline", "rb") as f:
                    left.append((int(d), f.read().replace(b"\0", b" ").decode(errors="replace")))
        except (OSError, IndexError, ValueError):
            pass
    return left


def left_behind(tmp, sid):
    problems = []
    for _ in range(20):  # what was told to end may need a moment
        procs = session_members(sid)
        if not procs:
            break
        time.sleep(0.1)
    for pid, cmd in procs:
        problems.append(f"process left behind: {cmd.strip()}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for sub in ("run", "tmp"):
        for name in os.listdir(os.path.join(tmp, sub)):
            problems.append(f"file left behind: {sub}/{name}")
    return problems


def run_one(name, cmd):
    tmp = tempfile.mkdtemp(prefix="pcptune-test-")
    start = time.monotonic()
    passed, failed, skipped = [], [], []
    out = ""
    try:
        if not os.path.exists(cmd[-1]):
            return name, [], [f"{name}: not built"], [], "", 0
        p = subprocess.Popen(cmd, cwd=ROOT, env=environment(tmp), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             start_new_session=True)
        try:
            raw, _ = p.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            raw, _ = p.communicate()
            failed.append(f"{name}: no end after {TIMEOUT} s")
        out = raw.decode(errors="replace")
        for line in out.splitlines():
            m = TAP.match(line)
            if not m:
                continue
            title = f"{name}: {m.group(2).strip()}"
            if re.search(r"#\s*SKIP", line, re.I):
                skipped.append(title)
            elif m.group(1) == "not ok":
                failed.append(title)
            else:
                passed.append(title)
        if p.returncode != 0 and not failed:
            failed.append(f"{name}: exit status {p.returncode}")
        if not passed and not failed and not skipped:
            failed.append(f"{name}: ran no test")
        failed += [f"{name}: {x}" for x in left_behind(tmp, p.pid)]
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return name, passed, failed, skipped, out, time.monotonic() - start


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("-j", type=int, default=max(2, os.cpu_count() or 2))
    ap.add_argument("-v", action="store_true", help="print the output of every program")
    ap.add_argument("pattern", nargs="*")
    a = ap.parse_args()
    # a caller in the background may have SIGINT ignored, and what is ignored is inherited
    for sig in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(sig) == signal.SIG_IGN:
            signal.signal(sig, signal.default_int_handler if sig == signal.SIGINT
                          else signal.SIG_DFL)
    todo = programs(a.pattern)
    passed, failed, skipped = [], [], []
    with concurrent.futures.ThreadPoolExecutor(a.j) as pool:
        for f in concurrent.futures.as_completed([pool.submit(run_one, *t) for t in todo]):
            name, p, x, s, out, secs = f.result()
            passed += p
            failed += x
            skipped += s
            word = "FAILED" if x else "ok"
            print(f"{word:6} {name}: {len(p)} passed, {len(x)} failed, {len(s)} skipped"
                  f" ({secs:.1f} s)", flush=True)
            if x or a.v:
                print("\n".join("    " + line for line in out.splitlines()[-200:]), flush=True)
    for s in sorted(skipped):
        print(f"skipped: {s}")
    for x in sorted(failed):
        print(f"FAILED: {x}")
    print(f"variant {VARIANT}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
