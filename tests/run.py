#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every test program, in parallel, and counts.

Unit tests are $B/tests/test_*, integration tests tests/integration/test_*.py; all print TAP. Each
program gets a temporary directory of its own (TMPDIR, HOME, XDG_*) and a process that watches it
(supervise.py), so that what it leaves behind (files, processes) is seen, counted as a failure and
removed. Why tests failed is said once more at the end, in short.

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
SUPERVISE = os.path.join(ROOT, "tests/supervise.py")
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


def left_behind(tmp):
    return [f"file left behind: {sub}/{name}" for sub in ("run", "tmp")
            for name in os.listdir(os.path.join(tmp, sub))]


def short(line):
    return line if len(line) <= 700 else f"{line[:450]} [...] {line[-200:]}"


class Program:
    """A test program that has ended, and what came of it."""

    def __init__(self, name):
        self.name = name
        self.passed, self.failed, self.skipped = [], [], []
        self.out, self.seconds, self.load = "", 0.0, 0.0

    def ended(self, status, problems):
        for line in self.out.splitlines():
            m = TAP.match(line)
            if not m:
                continue
            title = f"{self.name}: {m.group(2).strip()}"
            if re.search(r"#\s*SKIP", line, re.I):
                self.skipped.append(title)
            elif m.group(1) == "not ok":
                self.failed.append(title)
            else:
                self.passed.append(title)
        if problems:
            self.failed += [f"{self.name}: {p}" for p in problems]
        elif status and not self.failed:
            self.failed.append(f"{self.name}: exit status {status}")
        if not self.passed and not self.failed and not self.skipped:
            self.failed.append(f"{self.name}: ran no test")

    def reasons(self):
        """What each test that failed said, and what was said right before; the last lines if none."""
        lines = self.out.splitlines()
        at = [i for i, line in enumerate(lines) if TAP.match(line)] + [len(lines)]
        bad = [k for k, i in enumerate(at[:-1]) if TAP.match(lines[i]).group(1) == "not ok"]
        said = []
        for k in bad:
            before = lines[at[k - 1] + 1 if k else 0:at[k]]
            said += [x for x in before if not x.startswith("#")][-15:]
            said += lines[at[k]:at[k + 1]][:60]
        return [short(x) for x in (said if bad else lines[-40:])]

    def show(self):
        word = "FAILED" if self.failed else "ok"
        print(f"{word:6} {self.name}: {len(self.passed)} passed, {len(self.failed)} failed, "
              f"{len(self.skipped)} skipped ({self.seconds:.1f} s)", flush=True)

    def show_reasons(self):
        print(f"---- {self.name}: {self.seconds:.1f} s, load average {self.load:.1f} on "
              f"{os.cpu_count()} CPUs")
        print("\n".join("    " + line for line in self.reasons()))


running = set()


def supervised(cmd, tmp):
    """Its status, what it wrote, and what was wrong with its end."""
    report = os.path.join(tmp, "report")
    p = subprocess.Popen([sys.executable, SUPERVISE, str(TIMEOUT), report, *cmd], cwd=ROOT,
                         env=environment(tmp), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    running.add(p)
    out = p.stdout.read()
    status = p.wait()
    running.discard(p)
    p.stdin.close()
    p.stdout.close()
    if not os.path.exists(report):
        return status, out, ["was ended from outside"]
    with open(report) as f:
        return status, out, f.read().splitlines()


def run_one(name, cmd):
    r = Program(name)
    if not os.path.exists(cmd[-1]):
        r.failed.append(f"{name}: not built")
        return r
    tmp = tempfile.mkdtemp(prefix="pcptune-test-")
    start = time.monotonic()
    try:
        status, out, problems = supervised(cmd, tmp)
        r.seconds, r.load = time.monotonic() - start, os.getloadavg()[0]
        r.out = out.decode(errors="replace")
        r.ended(status, problems + left_behind(tmp))
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return r


def run_all(todo, jobs, verbose):
    done = []
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        for f in concurrent.futures.as_completed([pool.submit(run_one, *t) for t in todo]):
            r = f.result()
            done.append(r)
            r.show()
            if r.failed or verbose:
                print("\n".join("    " + line for line in r.out.splitlines()[-200:]), flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for p in list(running):  # which ends all that it watches
            p.stdin.close()
    return sorted(done, key=lambda r: r.name)


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
    done = run_all(programs(a.pattern), a.j, a.v)
    passed, failed, skipped = (sum((getattr(r, what) for r in done), [])
                               for what in ("passed", "failed", "skipped"))
    for s in skipped:
        print(f"skipped: {s}")
    # what matters most comes last, since who keeps only a part of this keeps its end
    for r in done:
        if r.failed:
            r.show_reasons()
    for x in failed:
        print(f"FAILED: {x}")
    print(f"variant {VARIANT}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
