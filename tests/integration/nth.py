# SPDX-License-Identifier: MIT
"""The n-th allocation, write, mapping or open of a program fails, for every n: tests/tools/preload."""
import mmap
import struct

from daemon_fake import *

KINDS = {"memory": 1, "write": 2, "map": 4, "open": 8}
PAGE = struct.Struct("=IIqqq")


class Nth:
    def __init__(self):
        requires("gcc")
        if VARIANT not in ("release", "debug"):
            skip("a sanitizer has an allocator of its own")
        where = tmp()
        self.so = os.path.join(where, "nth.so")
        r = run(["gcc", "-D_GNU_SOURCE", "-fno-builtin", "-O1", "-shared", "-fPIC", "-o", self.so,
                 os.path.join(ROOT, "tests/tools/preload/nth.c")])
        assert r.returncode == 0, r.stderr
        self.path = os.path.join(where, "page")
        with open(self.path, "wb") as f:
            f.write(bytes(4096))
        with open(self.path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 4096)
        defer(self.page.close)
        self.env = {"LD_PRELOAD": self.so, "NTH_FILE": self.path}

    def arm(self, kind, at, on=False):
        struct.pack_into("=q", self.page, 8, 0)
        PAGE.pack_into(self.page, 0, KINDS[kind], on, 0, 0, 0)
        struct.pack_into("=q", self.page, 8, at)

    def disarm(self):
        """How many calls failed."""
        struct.pack_into("=q", self.page, 8, 0)
        return self.fired()

    def program(self, path):
        """That program with all this, for a Daemon."""
        name = os.path.join(os.path.dirname(self.so), os.path.basename(path))
        with open(name, "w") as f:
            f.write("#!/bin/sh\n" + "".join(f"export {k}={v}\n" for k, v in self.env.items()) +
                    f'exec {path} "$@"\n')
        os.chmod(name, 0o755)
        return name

    def fired(self):
        return PAGE.unpack_from(self.page, 0)[4]

    def each(self, kind, deed, first=1, on=False, most=5000, step=lambda n: 1, endless=False):
        """deed(n) with the n-th call failing, for each n until none fails any more, or up to `most`
        where there is no end. How often one failed."""
        n, times = first, 0
        while True:
            self.arm(kind, n, on)
            try:
                deed(n)
            finally:
                fired = self.disarm()
            if not fired:
                assert times, f"no call of kind {kind}"
                return times
            times += 1
            n += step(n)
            if endless and n > most:
                return times
            assert n < most, f"{kind}: no end"
