# SPDX-License-Identifier: MIT
"""A terminal of our own: a pty, and as much of a VT100 as ncurses needs to draw on one."""
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from harness import defer, spawn, wait_for

SEQUENCE = re.compile(r"\x1b(?:\[([?0-9;]*)([@-~])|([()].)|([=>78DEHMc]))|([\x00-\x1f])|([^\x00-\x1f]+)")


class Screen:
    """cmd on a terminal; .lines is what a person would see, .raw every byte that came."""

    def __init__(self, *cmd, rows=24, cols=130, term="vt100", env=None):
        self.raw = self.rest = ""
        self.master, self.slave = pty.openpty()
        defer(os.close, self.master)
        defer(os.close, self.slave)
        self._size(rows, cols)
        self.p = spawn(cmd, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                       env={"TERM": term, "LC_ALL": "C", **(env or {})}, start_new_session=True,
                       preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def _size(self, rows, cols):
        self.rows, self.cols = rows, cols
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.lines = [" " * cols for _ in range(rows)]
        self.y = self.x = self.top = 0
        self.saved = 0, 0
        self.bottom = rows - 1

    def resize(self, rows, cols):
        """The kernel sends SIGWINCH to the foreground process group of the terminal."""
        self._size(rows, cols)

    def read(self, seconds=0.05):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                more = os.read(self.master, 65536).decode(errors="replace")
                self.raw += more
                self._draw(more)
        return "\n".join(self.lines)

    def wait(self, pattern, timeout=10):
        """Until the screen matches; the match."""
        def there():
            return re.search(pattern, self.read(), re.M)
        try:
            return wait_for(there, timeout)
        except AssertionError:
            raise AssertionError(f"no {pattern!r} on the screen:\n" + self.read()) from None

    def keys(self, keys):
        os.write(self.master, keys.encode())

    def end(self, timeout=10):
        """Exit status; reads what comes until then, so that the program never waits for us."""
        def ended():
            self.read()
            return self.p.poll() is not None
        wait_for(ended, timeout)
        self.read()
        return self.p.returncode

    # ---- the VT100 ----

    def _draw(self, text):
        text = self.rest + text
        at = 0
        while at < len(text):
            m = SEQUENCE.match(text, at)
            if not m:  # the rest of a sequence is still to come
                break
            at = m.end()
            if m[2]:
                self._csi([int(n) if n.isdigit() else 0 for n in m[1].split(";")], m[2])
            elif m[4] == "M":
                self._up()
            elif m[4] == "7":
                self.saved = self.y, self.x
            elif m[4] == "8":
                self.y, self.x = self.saved
            elif m[5]:
                self._control(m[5])
            elif m[6]:
                self._put(m[6])
        self.rest = text[at:]

    def _put(self, s):
        for c in s:
            if self.x >= self.cols:
                self.x = 0
                self._down()
            line = self.lines[self.y]
            self.lines[self.y] = line[:self.x] + c + line[self.x + 1:]
            self.x += 1

    def _down(self):
        if self.y == self.bottom:
            self.lines[self.top:self.bottom + 1] = \
                self.lines[self.top + 1:self.bottom + 1] + [" " * self.cols]
        elif self.y < self.rows - 1:
            self.y += 1

    def _up(self):
        if self.y == self.top:
            self.lines[self.top:self.bottom + 1] = \
                [" " * self.cols] + self.lines[self.top:self.bottom]
        elif self.y:
            self.y -= 1

    def _control(self, c):
        if c == "\r":
            self.x = 0
        elif c == "\n":
            self._down()
        elif c == "\b":
            self.x = max(0, self.x - 1)
        elif c == "\t":
            self.x = min(self.cols - 1, self.x // 8 * 8 + 8)

    def _erase(self, y, a, b):
        line = self.lines[y]
        self.lines[y] = line[:a] + " " * (b - a) + line[b:]

    def _csi(self, n, what):
        first = n[0] or 1
        if what == "H":
            self.y = min(self.rows, first) - 1
            self.x = min(self.cols, (n[1] if len(n) > 1 else 0) or 1) - 1
        elif what == "J":
            self._erase(self.y, self.x if n[0] == 0 else 0, self.cols)
            for y in range(self.y + 1 if n[0] == 0 else 0, self.rows):
                self._erase(y, 0, self.cols)
        elif what == "K":
            self._erase(self.y, 0 if n[0] else self.x, self.x + 1 if n[0] == 1 else self.cols)
        elif what == "A":
            self.y = max(0, self.y - first)
        elif what == "B":
            self.y = min(self.rows - 1, self.y + first)
        elif what == "C":
            self.x = min(self.cols - 1, self.x + first)
        elif what == "D":
            self.x = max(0, self.x - first)
        elif what == "r":
            self.top = first - 1
            self.bottom = (n[1] if len(n) > 1 and n[1] else self.rows) - 1
            self.y = self.x = 0
        elif what not in "mhl":
            raise AssertionError(f"a sequence this VT100 does not know: {n} {what}")
