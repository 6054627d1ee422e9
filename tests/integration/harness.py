# SPDX-License-Identifier: MIT
"""What integration tests share: TAP, temporary directories, a daemon to talk to.

    from harness import *

    @test
    def a_sentence_about_what_holds():
        d = Daemon()                    # real pcptuned in a directory of its own
        r = run([PCPTUNE, "status", "--json", "--socket", d.socket])
        assert r.returncode == 0, r

    main()

Everything a test starts with Daemon(), spawn() or run() is ended when the test ends; tmp() gives a
directory that is removed. skip("reason") leaves a test out, and says so.
"""
import faulthandler
import json
import linecache
import os
import re
import shutil
import signal
import socket as socketlib
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
B = os.path.abspath(os.environ.get("B", os.path.join(ROOT, "build/release")))
VARIANT = os.environ.get("VARIANT", "release")
PCPTUNE = os.path.join(B, "bin/pcptune")
PCPTUNED = os.path.join(B, "bin/pcptuned")
PRELOAD = os.path.join(B, "lib/libpcpalloc-preload.so")
POLICIES = os.path.join(B, "lib/pcptune/policies")
TOOLS = os.path.join(B, "tests/tools")
BENCH = os.path.join(B, "bench")
SLOW = {"release": 1, "debug": 1, "asan": 4, "tsan": 6}.get(VARIANT, 2)  # factor for time-outs

_tests = []
_cleanup = []
_said = []  # (whose, path) of what processes of this test wrote, shown when it fails


class Skip(Exception):
    pass


def skip(reason):
    raise Skip(reason)


def requires_release():
    """For tests that load our libraries into programs that are not instrumented."""
    if VARIANT not in ("release", "debug"):
        skip(f"the {VARIANT} runtime can not be loaded into programs that were not built with it")


def requires(*programs):
    for p in programs:
        if not shutil.which(p):
            skip(f"{p} is not installed")


def test(fn):
    _tests.append(fn)
    return fn


def defer(fn, *args):
    """fn(*args) when the test that runs now ends."""
    _cleanup.append((fn, args))


def tmp():
    d = tempfile.mkdtemp(prefix="t-")
    defer(lambda: shutil.rmtree(d, ignore_errors=True))
    return d


def wait_for(what, timeout=10.0, step=0.02):
    """Calls what() until it is true (returned) or the time, stretched for slow builds, is over."""
    end = time.monotonic() + timeout * SLOW
    while True:
        r = what()
        if r:
            return r
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout * SLOW:.0f} s: "
                                 f"{getattr(what, '__doc__', None) or what}")
        time.sleep(step)


def run(cmd, timeout=60, env=None, **kw):
    """subprocess.run with text output, a time-out, and extra environment in env."""
    e = dict(os.environ)
    e.update(env or {})
    kw.setdefault("stdin", subprocess.DEVNULL if "input" not in kw else None)
    if kw["stdin"] is None:
        del kw["stdin"]
    return subprocess.run(cmd, text=True, capture_output=True, timeout=timeout * SLOW, env=e, **kw)


def free_port():
    """A TCP port that nobody listens on now, as text."""
    with socketlib.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def cut_short(path, n):
    """The last n bytes of a file are missing."""
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) - n)


def end_process(p, sig=signal.SIGTERM):
    if p.poll() is None:
        p.send_signal(sig)
        try:
            p.wait(10 * SLOW)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
    for f in (p.stdin, p.stdout, p.stderr):
        if f:
            f.close()


def spawn(cmd, env=None, **kw):
    """A process in the background, ended with the test."""
    e = dict(os.environ)
    e.update(env or {})
    kw.setdefault("stdin", subprocess.DEVNULL)
    p = subprocess.Popen(cmd, text=True, env=e, **kw)
    defer(end_process, p)
    return p


def conf(value):
    """A Python value as libconfig text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return f"{value}L" if abs(value) > 2**31 - 1 else str(value)
    if isinstance(value, dict):
        return "{ " + " ".join(f"{k} = {conf(v)};" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "( " + ", ".join(conf(v) for v in value) + " )"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


class Daemon:
    """pcptuned --foreground in a temporary directory; keywords are keys of the configuration."""

    def __init__(self, start=True, args=(), dir=None, **keys):
        self.dir = dir or tmp()
        self.socket = os.path.join(self.dir, "sock")
        self.db = os.path.join(self.dir, "log.db")
        self.config = os.path.join(self.dir, "pcptuned.conf")
        self.stderr_path = os.path.join(self.dir, "stderr")
        self.args = list(args)
        self.program = PCPTUNED
        self.proc = None
        self.keys = {"socket": self.socket, "log": {"path": self.db}}
        self.configure(**keys)
        _said.append(("pcptuned", self.stderr_path))
        if start:
            self.start()

    def configure(self, **keys):
        """Changes keys (groups are merged) and writes the file."""
        for k, v in keys.items():
            if isinstance(v, dict) and isinstance(self.keys.get(k), dict) and k != "default":
                self.keys[k] = {**self.keys[k], **v}
            else:
                self.keys[k] = v
        with open(self.config, "w") as f:
            for k, v in self.keys.items():
                f.write(f"{k} = {conf(v)};\n")

    def start(self):
        err = open(self.stderr_path, "a")
        self.proc = subprocess.Popen([self.program, "--foreground", "-c", self.config, *self.args],
                                     stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        err.close()
        defer(end_process, self.proc)

        def ready():
            """the daemon answers on its control socket"""
            if self.proc.poll() is not None:
                raise AssertionError(f"pcptuned ended with {self.proc.returncode}: {self.stderr()}")
            try:
                return self.ctl("version")
            except OSError:
                return None
        wait_for(ready)
        return self

    def stderr(self):
        with open(self.stderr_path) as f:
            return f.read()

    def ctl_raw(self, request, timeout=10):
        """One request (dict or text line) on a connection of its own; the whole answer as dict."""
        with socketlib.socket(socketlib.AF_UNIX) as s:
            s.settimeout(timeout * SLOW)
            s.connect(self.socket + ".ctl")
            line = request if isinstance(request, str) else json.dumps(request)
            s.sendall(line.encode() + b"\n")
            buf = b""
            while not buf.endswith(b"\n"):
                more = s.recv(65536)
                if not more:
                    raise OSError("end of file on the control socket")
                buf += more
            return json.loads(buf)

    def ctl(self, cmd, **keys):
        """The result of a command; AssertionError with the daemon's text when it failed."""
        r = self.ctl_raw({"cmd": cmd, **keys})
        assert r.get("ok"), r
        return r["result"]

    def target(self, name=None, **expect):
        """Waits until a target (of that name) is there and has these values; its status."""
        def there():
            for t in self.ctl("status")["targets"]:
                if (name is None or t["name"] == name) and \
                        all(t.get(k) == v for k, v in expect.items()):
                    return t
            return None
        there.__doc__ = f"target {name} {expect}"
        return wait_for(there)

    def stop(self):
        end_process(self.proc)
        return self.proc.returncode

    def kill9(self):
        end_process(self.proc, signal.SIGKILL)

    def sql(self, query, *args):
        with sqlite3.connect(f"file:{self.db}?mode=ro", uri=True, timeout=10) as c:
            c.row_factory = sqlite3.Row
            return c.execute(query, args).fetchall()

    def integrity(self):
        return self.sql("PRAGMA integrity_check")[0][0]


def _run_cleanup():
    errors = []
    while _cleanup:
        fn, args = _cleanup.pop()
        try:
            fn(*args)
        except Exception as e:  # a cleanup that fails is a failure of the test
            errors.append(f"cleanup: {e!r}")
    return errors


def _where(e):
    """From which line to which it went, what the test's own variables were, and what it was."""
    own = None
    lines = []
    for frame, at in traceback.walk_tb(e.__traceback__):
        path = frame.f_code.co_filename
        lines.append(f"{os.path.basename(path)}:{at} {frame.f_code.co_name}: "
                     f"{linecache.getline(path, at).strip()}")
        if path != __file__ and path.startswith(os.path.dirname(__file__)):
            own = frame
    plain = (int, float, str, list, tuple, dict, set)
    values = [f"with {k} = {v!r:.200}" for k, v in (own.f_locals if own else {}).items()
              if isinstance(v, plain)]
    return lines[1:] + values[:12] + traceback.format_exception_only(type(e), e)


def _problem(e, seconds):
    """Why a test failed, in short, and what the daemons said last."""
    lines = [f"after {seconds:.1f} s, load average {os.getloadavg()[0]:.1f}"] + _where(e)
    for whose, path in _said:
        try:
            with open(path, errors="replace") as f:
                lines += [f"{whose}: {line}" for line in f.read().splitlines()[-12:]]
        except OSError:
            pass
    return "\n".join(lines)


def main():
    only = sys.argv[1:]
    todo = [t for t in _tests if not only or any(o in t.__name__ for o in only)]
    print(f"1..{len(todo)}", flush=True)
    faulthandler.register(signal.SIGUSR2)  # when it has no end, see supervise.py
    bad = 0
    for i, fn in enumerate(todo, 1):
        title = fn.__name__.replace("_", " ")
        problem = reason = None
        start = time.monotonic()
        try:
            fn()
        except Skip as s:
            reason = str(s)
        except BaseException as e:
            problem = _problem(e, time.monotonic() - start)
        _said.clear()
        errors = _run_cleanup()
        if errors:
            problem = (problem or "") + "\n".join(errors)
        if problem:
            bad += 1
            print(f"not ok {i} - {title}")
            print("\n".join("# " + line for line in problem.splitlines()), flush=True)
        elif reason is not None:
            print(f"ok {i} - {title} # SKIP {reason}", flush=True)
        else:
            print(f"ok {i} - {title} ({time.monotonic() - start:.1f} s)", flush=True)
    sys.exit(1 if bad else 0)
