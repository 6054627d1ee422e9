# SPDX-License-Identifier: MIT
"""One test program and all that it starts: nothing of it outlives this process.

A sub-reaper: whoever lost its parent becomes our child, whatever session or group it has, so that
the dead are collected at once, as by init, and the living are found when the program has ended.
They are given GRACE s, killed, and named in the report. So are those of a program that has no end
in its time, after it was asked where it is (SIGUSR2, see harness.py).

run.py holds the other end of our standard input: when it goes away, by whatever, all goes.

Usage: supervise.py SECONDS REPORT COMMAND ...     The status is the command's, 128 + n for a signal.
"""
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE = 5


def parents():
    """The parent of each process that is no zombie."""
    r = {}
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                with open(f"/proc/{d}/stat", "rb") as f:
                    fields = f.read().rsplit(b")", 1)[1].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                r[int(d)] = int(fields[1])
    return r


def living():
    """All that descend from us."""
    above = parents()
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in above.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def collect(statuses):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        statuses[pid] = status


class Watch:
    """Wakes at the death of a child and at the end of run.py."""

    def __init__(self):
        self.wake, w = os.pipe()
        for fd in (self.wake, w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(w)
        signal.signal(signal.SIGCHLD, lambda *a: None)
        self.statuses = {}

    def until(self, done, seconds):
        """Collects the dead until done() or the time is over: what done() said."""
        end = time.monotonic() + seconds
        while True:
            collect(self.statuses)
            left = end - time.monotonic()
            if done() or left <= 0:
                return done()
            ready = select.select([self.wake, 0], [], [], min(left, 0.5))[0]
            if 0 in ready:
                kill_all(self)
                os._exit(1)
            if ready:
                os.read(self.wake, 4096)


def kill_all(watch):
    """Some may start others meanwhile."""
    for _ in range(100):
        left = living()
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        collect(watch.statuses)


def main():
    seconds, report, cmd = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    problems = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # run.py has it, too, and goes away
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    watch = Watch()
    program = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, start_new_session=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def ended():
        return program.pid in watch.statuses
    if not watch.until(ended, seconds):
        problems.append(f"no end after {seconds:.0f} s")
        problems += [f"was still running: {command(p)}" for p in sorted(living())]
        if cmd[-1].endswith(".py"):
            os.kill(program.pid, signal.SIGUSR2)
            watch.until(ended, 2)
    elif not watch.until(lambda: not living(), GRACE):
        problems += [f"process left behind: {command(p)}" for p in sorted(living())]
    kill_all(watch)
    with open(report, "w") as f:
        f.write("".join(p + "\n" for p in problems))
    status = os.waitstatus_to_exitcode(watch.statuses.get(program.pid, signal.SIGKILL))
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)  # what is left of Popen would wait for it


main()
