# SPDX-License-Identifier: MIT
"""Drives tests/tools/fake_target for the tests of the daemon."""
from harness import *

FAKE = os.path.join(TOOLS, "fake_target")
REPORT = re.compile("ERROR: AddressSanitizer|LeakSanitizer|runtime error:|WARNING: ThreadSanitizer")
_Daemon = Daemon


class Daemon(_Daemon):
    """A daemon whose sanitizer reports, leaks at its end included, fail the test."""

    def start(self):
        defer(self.no_reports)  # runs after the daemon was ended
        return super().start()

    def no_reports(self):
        m = REPORT.search(self.stderr())
        assert not m, self.stderr()[m.start():][:3000]


class Fake:
    """Synthetic targets attached to a daemon; ended with the test."""

    def __init__(self, d, targets=1, **options):
        cmd = [FAKE, "--socket", d if isinstance(d, str) else d.socket, "--targets", str(targets)]
        for k, v in options.items():
            k = "--" + k.replace("_", "-")
            cmd += [k] if v is True else [k, str(v)]
        self.proc = spawn(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.replies = []
        while True:
            line = self.line()
            if line.get("ready"):
                break
            self.replies.append(line)
        self.reply = self.replies[0]
        self.id = self.reply["id"]

    def line(self):
        text = self.proc.stdout.readline()
        assert text, f"fake_target ended with {self.proc.wait()}"
        return json.loads(text)

    def cmd(self, text, answers=1):
        self.proc.stdin.write(text + "\n")
        self.proc.stdin.flush()
        return [self.line() for _ in range(answers)][-1]

    def dump(self, i=0):
        return self.cmd("dump")["targets"][i]

    def end(self):
        self.proc.stdin.close()
        self.proc.wait(10 * SLOW)

    def kill(self):
        self.proc.kill()
        self.proc.wait()


def bad(d, kind):
    """What the daemon says to a broken hello or segment; None: it was not asked."""
    r = run([FAKE, "--socket", d.socket, "--bad", kind])
    assert r.returncode == 0, r
    return json.loads(r.stdout) if r.stdout else None


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def replay_agrees(d):
    """`pcptune verify` re-derives the decisions of the log; only when the command is built."""
    if not os.path.exists(PCPTUNE):
        return
    r = run([PCPTUNE, "verify", "--db", d.db])
    assert r.returncode == 0, (r.stdout, r.stderr)


def alive(d, f):
    """Other targets are sampled and can be changed."""
    def last():
        return d.sql("SELECT max(seq_last) FROM sample WHERE target = ?", f.id)[0][0] or 0
    before = last()
    wait_for(lambda: last() > before)
