#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Any one allocation, write, mapping or open of a command fails: it says so, or what it prints is
whole; and a program on our lists runs whatever mapping is refused."""
from nth import *

MKLOG = os.path.join(TOOLS, "cli_mklog")
ROWS = "time_ns,cpu,order,blocks\n" + "".join(
    f"{t * 1000},{t % 3},0,{-63 if t % 2 else 63}\n" for t in range(400))

COMMANDS = {  # words; LOG and TRACE are files that are there, OUT is one that is made
    "log": ("log", "--db", "LOG"),
    "log-json": ("log", "--db", "LOG", "--json"),
    "explain": ("explain", "--db", "LOG", "1"),
    "explain-json": ("explain", "--db", "LOG", "1", "--json"),
    "targets": ("targets", "--db", "LOG"),
    "verify": ("verify", "--db", "LOG"),
    "curve": ("curve", "--trace", "TRACE"),
    "eval": ("eval", "--trace", "TRACE", "--policy", "static,contention"),
    "policies": ("policies",),
    "policies-one": ("policies", "knee", "--json"),
    "check-config": ("check-config", "CONF"),
    "trace-info": ("trace", "info", "TRACE", "--json"),
    "trace-export": ("trace", "export", "TRACE"),
    "trace-import": ("trace", "import", "CSV", "OUT"),
}


# What the system's refusals are called. Some commands go on without a plug-in, and say so.
SAID = re.compile("memory|shared object|Too many open files|No space left|I/O error|"
                  "can not be |could not be ", re.I)
WITHOUT_SENTENCES = ("log", "log-json", "explain", "explain-json")  # of a plug-in: names and numbers


class Files:
    def __init__(self):
        d = self.dir = tmp()
        self.names = {n: os.path.join(d, n.lower()) for n in ("LOG", "TRACE", "CSV", "CONF", "OUT")}
        self.env = {"PCPTUNE_POLICY_PATH": POLICIES, "XDG_RUNTIME_DIR": d, "PCPTUNE_SOCKET": d + "/s"}
        r = run([MKLOG, self.names["LOG"]], env=self.env)
        assert r.returncode == 0, r
        with open(self.names["CSV"], "w") as f:
            f.write(ROWS)
        with open(self.names["CONF"], "w") as f:
            f.write('default = { policy = "static"; params = { high = 500; }; };\n')
        assert run([PCPTUNE, "trace", "import", self.names["CSV"],
                    self.names["TRACE"]]).returncode == 0

    def run(self, words, **env):
        if os.path.exists(self.names["OUT"]):
            os.unlink(self.names["OUT"])
        return run([PCPTUNE] + [self.names.get(w, w) for w in words], env={**self.env, **env})

    def made(self):
        """What OUT holds, None: there is none."""
        if not os.path.exists(self.names["OUT"]):
            return None
        with open(self.names["OUT"], "rb") as f:
            return f.read()


def commands_with(kind, on=False):
    nth, files = Nth(), Files()
    wrong = []
    for name, words in COMMANDS.items():
        whole = files.run(words)
        whole_out = files.made()
        assert whole.returncode == 0, (name, whole)
        bare = files.run(words, PCPTUNE_POLICY_PATH="/nowhere") if name in WITHOUT_SENTENCES else whole
        lines = set((whole.stdout + bare.stdout).splitlines())

        def deed(n):
            r = files.run(words, **nth.env)
            if r.returncode < 0 or r.returncode > 3:
                wrong.append((name, n, f"status {r.returncode}", r.stderr[-300:]))
            elif r.returncode and not SAID.search(r.stderr + r.stdout):
                wrong.append((name, n, "an error and no word", r.stderr[-300:], r.stdout[-200:]))
            elif not r.returncode and not SAID.search(r.stdout + r.stderr) and (
                    not lines.issuperset(r.stdout.splitlines()) or files.made() != whole_out or
                    len(r.stdout.splitlines()) not in (len(whole.stdout.splitlines()),
                                                       len(bare.stdout.splitlines()))):
                wrong.append((name, n, "not whole, and no error", r.stdout[-300:], r.stderr[-200:]))
            elif r.returncode and files.made() not in (None, whole_out):
                wrong.append((name, n, "half a file was left"))
        try:
            nth.each(kind, deed, step=lambda n: 1 if n < 16 else n // 3, on=on, most=100000)
        except AssertionError as e:
            if "no call of kind" not in str(e):
                raise
    assert not wrong, "\n".join(map(str, wrong))


@test
def each_command_survives_any_allocation_that_fails():
    commands_with("memory")


@test
def each_command_survives_any_write_that_fails():
    commands_with("write")
    commands_with("write", on=True)


@test
def each_command_survives_any_open_that_fails():
    commands_with("open")


@test
def each_command_survives_any_mapping_that_fails():
    commands_with("map")


# Half a thousand sizes, from a page to several, kept, given back and taken again.
PROGRAM = """
x = [bytes([i % 256]) * (4096 + 13 * i) for i in range(1500)]
assert all(v == bytes([i % 256]) * (4096 + 13 * i) for i, v in enumerate(x))
del x[::2]
x += [b"y" * 20000 for i in range(500)]
print(sum(map(len, x)))
"""


@test
def a_program_on_our_lists_runs_whatever_mapping_is_refused():
    """What the zone can not have mapped the next malloc serves."""
    requires("/usr/bin/python3")
    nth = Nth()
    env = {**nth.env, "LD_PRELOAD": f"{PRELOAD}:{nth.so}", "NTH_ONLY": "libpcpalloc",
           "PCPTUNE_SOCKET": "", "PYTHONMALLOC": "malloc"}
    for mode in ("rseq", "locked"):
        for on in (False, True):
            def deed(n):
                r = run(["/usr/bin/python3", "-c", PROGRAM], env={**env, "PCPALLOC_MODE": mode})
                assert r.returncode == 0 and r.stdout == "20384500\n" and not r.stderr, (mode, on, n, r)
            nth.each("map", deed, on=on, step=lambda n: 1 if n < 40 else n // 4)


main()
