#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune run` between a program and who started it: signals, terminals, job control, and what
goes on when one of program, run and daemon dies."""
import glob
import pty
import select

from run_program import *


REPORT = """
import os, signal, sys, time
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
          signal.SIGUSR2, signal.SIGWINCH, signal.SIGALRM, signal.SIGRTMIN):
    signal.signal(s, lambda n, f: print(signal.Signals(n).name, flush=True))
print(os.getpid(), flush=True)
end = time.time() + 20
while time.time() < end:
    time.sleep(0.1)
    if os.path.exists(sys.argv[1]):
        sys.exit(9)
"""


@test
def signals_are_passed_on():
    d = tmp()
    p, _ = background(sys.executable, "-c", REPORT, f"{d}/stop")
    p.stdout.readline()
    for s in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH",
              "SIGALRM", "SIGRTMIN"):
        p.send_signal(getattr(signal, s))
        assert p.stdout.readline() == s + "\n", s
    open(f"{d}/stop", "w").close()
    assert p.wait(20) == 9
    assert "exit status 9" in p.stderr.read()


@test
def a_signal_that_ends_the_program_does_not_cost_the_summary():
    p, _ = background("sh", "-c", "echo begun; exec sleep 60")
    assert p.stdout.readline() == "begun\n"
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130
    assert "signal 2" in p.stderr.read()
    assert not glob.glob(os.path.join(runtime_dir(), "pcptune-run-*"))


@test
def ignored_signals_stay_ignored():
    p, _ = background(sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGHUP)"
                      " == signal.SIG_IGN, signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN, "
                      "signal.pthread_sigmask(signal.SIG_BLOCK, []) == set())",
                      preexec_fn=lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN),
                                          signal.signal(signal.SIGCHLD, signal.SIG_IGN)))
    assert p.stdout.readline() == "True True True\n"
    assert p.wait(20) == 0


@test
def stop_and_continue():
    # a job: a group of its own with a parent in the session, so that it can be stopped
    p, _ = background("sh", "-c", "echo $$; exec cat", stdin=subprocess.PIPE,
                      preexec_fn=lambda: os.setpgid(0, 0))
    child = int(p.stdout.readline())

    def state(pid):
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    p.send_signal(signal.SIGTSTP)
    wait_for(lambda: state(child) == "T")
    wait_for(lambda: state(p.pid) == "T")
    p.send_signal(signal.SIGCONT)
    wait_for(lambda: state(child) != "T")
    p.stdin.close()
    assert p.wait(20) == 0


@test
def the_terminal_belongs_to_the_program():
    """^C on a terminal reaches the program once; the summary comes, and the status is its own."""
    requires_release()
    d = tmp()
    code = ("import signal, sys, os, time\nn = []\nsignal.signal(2, lambda *a: n.append(1))\n"
            "print('ready', os.tcgetpgrp(0) == os.getpgrp(), flush=True)\n"
            "t = time.time()\nwhile not n and time.time() < t + 20: time.sleep(0.05)\n"
            "time.sleep(0.5)\n"
            "print('times', len(n)); sys.exit(4)")
    pid, master = pty.fork()
    if pid == 0:
        os.execv(PCPTUNE, [PCPTUNE, "run", "--db", f"{d}/log.db", "--", sys.executable, "-c",
                           code])
    out = b""
    sent = False
    while True:
        try:
            more = os.read(master, 4096)
        except OSError:
            break
        if not more:
            break
        out += more
        if b"ready" in out and not sent:
            sent = True
            time.sleep(0.2)
            os.write(master, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == 4, out
    assert b"ready True" in out and b"times 1\r" in out and b"exit status 4" in out, out


class Terminal:
    """A program on a terminal of its own: type(), and expect() to see a text."""

    def __init__(self, *cmd, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(cmd[0], cmd, {**os.environ, **(env or {})})
        self.out = b""
        self.at = 0
        defer(self.end)

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, text, timeout=10):
        end = time.monotonic() + timeout * SLOW
        while text.encode() not in self.out[self.at:]:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], (text, self.out)
            try:
                self.out += os.read(self.fd, 65536)
            except OSError:
                raise AssertionError((text, self.out))
        self.at = self.out.index(text.encode(), self.at) + len(text)

    def end(self):
        try:
            os.kill(self.pid, signal.SIGHUP)
            os.close(self.fd)
            os.waitpid(self.pid, 0)
        except OSError:
            pass


@test
def job_control_in_a_shell():
    """^Z stops the job as the shell sees it, bg and fg continue it, ^C ends it."""
    requires_release()
    requires("bash")
    d = tmp()
    t = Terminal("bash", "--norc", "--noprofile", "-i", env={"PS1": "ready> "})
    t.expect("ready> ")
    t.type(f"{PCPTUNE} run --db {d}/log.db -- sh -c 'echo be''gun; sleep 4; echo en''ded'\n")
    t.expect("begun")
    time.sleep(0.3)  # a shell that is between vfork and exec can not be stopped
    t.type("\x1a")
    t.expect("Stopped")
    t.expect("ready> ")
    t.type("jobs; fg\n")
    t.expect("Stopped")
    t.expect("ended")
    t.expect("exit status 0")
    t.expect("ready> ")
    t.type(f"{PCPTUNE} run --db {d}/log.db -- sh -c 'echo be''gun; exec sleep 30'\n")
    t.expect("begun")
    t.type("\x03")
    t.expect("signal 2")
    t.expect("ready> ")
    t.type("echo status $?\n")
    t.expect("status 130")


@test
def a_shell_under_run_has_its_own_jobs():
    requires_release()
    requires("bash")
    d = tmp()
    t = Terminal(PCPTUNE, "run", "--db", f"{d}/log.db", "--", "bash", "--norc", "--noprofile",
                 "-i", env={"PS1": "ready> "})
    t.expect("ready> ")
    t.type("sleep 30\n")
    time.sleep(0.3)
    t.type("\x1a")
    t.expect("Stopped")
    t.type("kill %1; fg; exit 3\n")
    t.expect("exit status 3")


@test
def the_private_daemon_ends_when_run_is_killed():
    p, _ = background("sleep", "2")
    daemon = wait_for(lambda: daemon_of(p.pid))
    # until it answers, so that its socket is there
    time.sleep(0.5)
    p.kill()
    p.wait()
    wait_for(lambda: gone(daemon))
    # what is left is an empty directory, and the next run removes it
    left = glob.glob(os.path.join(runtime_dir(), "pcptune-run-*"))
    for path in left:
        os.utime(path, (time.time() - 100, time.time() - 100))
    r, s = tuned("true")
    assert r.returncode == 0, r


@test
def a_daemon_that_dies_is_no_reason_to_stop():
    p, _ = background("sh", "-c", "echo begun; exec cat", stdin=subprocess.PIPE)
    assert p.stdout.readline() == "begun\n"
    daemon = daemon_of(p.pid)
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: gone(daemon))  # its connections end a little before
    p.stdin.close()
    assert p.wait(20) == 0
    err = p.stderr.read()
    assert "not measured" in err and "signal 9" in err, err


@test
def a_program_that_goes_on_in_the_background_is_said_to_live():
    d = tmp()
    code = f"""
import os, time
x = bytearray(900000)
open("{d}/begun", "w").close()
for i in range(400):
    time.sleep(0.05)
    if os.path.exists("{d}/stop"):
        break
os.rename("{d}/begun", "{d}/ended")
"""
    r, s = tuned("sh", "-c", f"{sys.executable} -c '{code}' > /dev/null 2>&1 & "
                 f"while [ ! -e {d}/begun ]; do sleep 0.05; done")
    open(f"{d}/stop", "w").close()
    assert r.returncode == 0 and s["live"] >= 1, s
    assert "1 still running" in r.stderr, r
    wait_for(lambda: os.path.exists(f"{d}/ended"))


main()
