#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune record`: a program that is started, its children, its status, and what becomes of the trace;
then targets, which run already."""
import resource

from daemon_fake import *

# 12 KB each: a block of order 2; so many, then gone
PAGES = "x = [bytes(12000) for i in range({n})]\ndel x"


def record(out, *cmd, options=(), **kw):
    requires_release()
    r = run([PCPTUNE, "record", "-o", out, *options, "--", *cmd], **kw)
    return r


def python(n=3000, more=""):
    return [sys.executable, "-c", PAGES.format(n=n) + more]


def info(path):
    r = run([PCPTUNE, "trace", "info", "--json", path])
    assert r.returncode == 0, r
    return json.loads(r.stdout)


@test
def a_real_program_becomes_a_trace():
    d = tmp()
    out = os.path.join(d, "t.pct")
    r = record(out, *python())
    assert r.returncode == 0 and r.stdout == "", r
    assert "1 process in " + out in r.stderr and "full" not in r.stderr, r.stderr
    assert os.listdir(d) == ["t.pct"], os.listdir(d)
    i = info(out)
    # 4 pages each; what else the interpreter wants is little
    assert 12000 <= i["alloc_pages"] < 20000 and i["free_pages"] > 11000, i
    assert i["whole"] and i["backwards"] == 0 and int(i["rows_by_order"]["2"]) >= 3000 / 4, i
    assert f"{i['rows']:,} rows" in r.stderr, (i, r.stderr)
    r = record(out, *python(), options=["--json", out + ".json"])
    with open(out + ".json") as f:
        j = json.load(f)
    assert j["rows"] == info(out)["rows"] and j["programs"] == 1 and j["status"] == 0, j
    assert j["merged"] == 0 and j["bad"] == 0, j


@test
def the_trace_can_be_evaluated():
    out = os.path.join(tmp(), "t.pct")
    record(out, *python())
    r = run([PCPTUNE, "eval", "--trace", out, "--policy", "static,contention", "--policy-path",
             POLICIES, "--json"])
    assert r.returncode == 0, r
    rows = {p["policy"]: p for p in json.loads(r.stdout)["policies"]}
    # lists of the base generation have single pages alone
    assert rows["static"]["alloc_zone"] >= 12000 > rows["contention"]["alloc_zone"] / 2, rows


@test
def children_are_recorded_as_cpus_of_their_own():
    out = os.path.join(tmp(), "t.pct")
    more = "\nimport os, subprocess, sys\nif len(sys.argv) < 2: subprocess.run([sys.executable, '-c', " \
           "'x = [bytes(12000) for i in range(2000)]'], check=True)"
    r = record(out, *python(1000, more))
    assert r.returncode == 0 and "2 processes" in r.stderr, r
    i = info(out)
    assert i["alloc_pages"] >= 12000 and i["cpus"] >= 2, i


@test
def the_status_is_the_programs():
    d = tmp()
    out = os.path.join(d, "t.pct")
    assert record(out, "sh", "-c", "exit 7").returncode == 7
    assert record(out, "sh", "-c", "kill -9 $$").returncode == 128 + 9
    # nothing was allocated, and that is a trace, too
    assert info(out)["rows"] == 0
    assert "no process sent events" in record(out, "true").stderr
    assert record(out, "true", options=["--quiet"]).stderr == ""


@test
def of_a_program_that_is_not_there_is_no_trace():
    d = tmp()
    new, old = os.path.join(d, "new.pct"), os.path.join(d, "old.pct")
    assert record(old, "true").returncode == 0
    with open(old, "rb") as f:
        before = f.read()
    for out in new, old:
        r = record(out, "./does-not-exist")
        assert r.returncode == 127 and "does-not-exist: No such file" in r.stderr, r
        assert "no process sent events" not in r.stderr and "rows" not in r.stderr, r
    with open(old, "rb") as f:
        assert f.read() == before
    assert os.listdir(d) == ["old.pct"], os.listdir(d)


@test
def standard_input_and_output_are_the_programs():
    out = os.path.join(tmp(), "t.pct")
    r = record(out, "cat", input="line\n")
    assert r.stdout == "line\n", r


@test
def a_trace_that_was_cut_is_read_up_to_there():
    out = os.path.join(tmp(), "t.pct")
    record(out, *python())
    whole = info(out)["rows"]
    with open(out, "r+b") as f:
        f.truncate(os.path.getsize(out) - 20)
    r = run([PCPTUNE, "trace", "info", "--json", out])
    j = json.loads(r.stdout)
    assert r.returncode == 1 and not j["whole"] and j["rows"] <= whole, r


@test
def what_can_not_be_written_is_told_before_the_program_runs():
    d = tmp()
    mark = os.path.join(d, "ran")
    r = record(os.path.join(d, "no", "t.pct"), "touch", mark)
    assert r.returncode == 1 and "No such file" in r.stderr and not os.path.exists(mark), r
    r = run([PCPTUNE, "record", "--", "touch", mark])
    assert r.returncode == 2 and "-o FILE" in r.stderr and not os.path.exists(mark), r
    r = run([PCPTUNE, "record", "-o", mark, "-n", "3", "--", "touch", mark])
    assert r.returncode == 2 and "--seconds is for a target" in r.stderr, r


@test
def on_a_full_disk_the_program_is_not_kept_waiting():
    """As far as a file may grow is the disk here, from the moment on that everything runs."""
    requires_release()
    out = os.path.join(tmp(), "t.pct")
    # how long it neither ran nor waited for a CPU, in s
    code = "import sys, time\nprint('ready', flush=True)\nsys.stdin.readline()\n" \
           "def slept():\n" \
           " with open('/proc/thread-self/schedstat') as f:\n" \
           "  return time.monotonic() - sum(map(int, f.read().split()[:2])) / 1e9\n" \
           "t = slept()\n" \
           "for i in range(300):\n x = [bytes(5000) for i in range(2000)]\n del x\n" \
           "print(slept() - t, flush=True)"
    p = spawn([PCPTUNE, "record", "-o", out, "--", sys.executable, "-c", code], stdin=subprocess.PIPE,
              stdout=subprocess.PIPE, stderr=subprocess.PIPE, restore_signals=False)  # no SIGXFSZ
    assert p.stdout.readline() == "ready\n", p.communicate()
    resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (0, 0))
    slept, err = p.communicate("\n", timeout=60 * SLOW)
    assert float(slept) < 2 * SLOW, slept
    assert p.returncode == 1 and "File too large; the trace ends there" in err, (p.returncode, err)
    # nothing is there, or it is the beginning of a trace
    assert os.listdir(os.path.dirname(out)) == ["t.pct"], os.listdir(os.path.dirname(out))


@test
def one_run_tells_what_another_high_would_have_moved():
    """Recorded once, under the rules that a program starts with; then run with limits that it was asked about."""
    requires_release()
    d = tmp()
    out = os.path.join(d, "t.pct")
    walk = [sys.executable, "-c", """
import random
random.seed(5)
keep = []
for r in range(300):
    n = random.randrange(10, 900)
    if random.random() < .5 or len(keep) < n:
        keep += [bytes(random.choice((5000, 9000, 9000, 30000))) for i in range(n)]
    else:
        del keep[-n:]
    if len(keep) > 6000:
        del keep[200:]
"""]
    pin = {"preexec_fn": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})}
    assert record(out, *walk, **pin).returncode == 0
    highs = (252, 1024, 4096)
    r = run([PCPTUNE, "eval", "--trace", out, "--policy", "static", "--policy-path", POLICIES, "--set",
             "static.high=" + ",".join(map(str, highs)), "--set", "static.batch=63", "--set",
             "static.generation=gx", "--json"])
    assert r.returncode == 0, r
    told = {p["params"]["high"]: p["alloc_zone"] for p in json.loads(r.stdout)["policies"]}
    for high in highs:
        js = os.path.join(d, "r.json")
        r = run([PCPTUNE, "run", "--quiet", "--db", os.path.join(d, f"{high}.db"), "--policy", "static",
                 "--set", f"high={high}", "--set", "batch=63", "--set", "rules=gx", "--json", js, "--",
                 *walk], env={"PCPALLOC_HIGH": str(high), "PCPALLOC_BATCH": "63", "PCPALLOC_RULES": "gx"},
                **pin)  # from the first page on, and not only when the daemon has seen it
        assert r.returncode == 0, r
        with open(js) as f:
            real = json.load(f)["alloc_zone"]
        assert real > 50000 and abs(told[high] - real) < 0.05 * real, (high, told, real)
    assert told[4096] < 0.8 * told[252], told


@test
def sqlite_from_start_to_end():
    requires("sqlite3")
    out = os.path.join(tmp(), "t.pct")
    sql = "CREATE TABLE t(a, b);" \
          "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) " \
          "INSERT INTO t SELECT i, hex(zeroblob(100)) FROM n; CREATE INDEX x ON t(b, a);" \
          "SELECT count(*) FROM t;"
    r = record(out, "sqlite3", ":memory:", input=sql)
    assert r.returncode == 0 and r.stdout == "20000\n", r
    r = run([PCPTUNE, "eval", "--trace", out, "--policy", "static,kernel,contention,knee",
             "--policy-path", POLICIES])
    assert r.returncode == 0 and "knee" in r.stdout, r


# ---- targets ----

class Program:
    """A program under the preload library that does what it is told, a line at a time."""

    CODE = """
import os, random, sys
random.seed(5)
keep = []
def take(n): keep.extend(bytes(4096 - 33) for i in range(n))  # a page each
def drop(n): del keep[-n:]
def walk(rounds):
    for r in range(rounds):
        n = random.randrange(10, 900)
        if random.random() < .5 or len(keep) < n:
            keep.extend(bytes(random.choice((5000, 9000, 9000, 30000))) for i in range(n))
        else:
            drop(n)
        if len(keep) > 6000:
            del keep[200:]
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

    def __init__(self, d, **env):
        requires_release()
        self.d = d
        self.proc = spawn([sys.executable, "-c", self.CODE], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE,
                          preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
                          env={"LD_PRELOAD": PRELOAD, "PCPTUNE_SOCKET": d.socket,
                               "PCPALLOC_AGENT": "1", "PCPALLOC_IDLE_MS": "100000",
                               "PCPALLOC_RULES": "gx", **env})
        self.answer("ready")
        self.id = wait_for(lambda: [t for t in d.ctl("targets")["targets"]
                                    if t["pid"] == self.proc.pid])[0]["id"]

    def answer(self, word="done"):
        line = self.proc.stdout.readline()
        assert line == word + "\n", (line, self.proc.poll())

    def do(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()
        self.answer()

    def settle(self):
        """Until the agent has taken over what the policy set."""
        wait_for(lambda: all(c["high"] == 1024 for z in self.d.ctl("counters", target=self.id)["zones"]
                             for c in z["cpus"] if c["high"] and c["alloc_pages"]))

    def counter(self, name):
        return sum(c[name] for z in self.d.ctl("counters", target=self.id)["zones"] for c in z["cpus"])

    def rings(self):
        with open(f"/proc/{self.proc.pid}/maps") as f:
            return f.read().count("pcptune-events")


FIXED = {"high": 1024, "batch": 63, "rules": "gx"}


def fixed():
    """A daemon that sets the same for all."""
    return Daemon(default={"policy": "static", "params": FIXED})


class Recording:
    """`pcptune record TARGET` in the background, from the moment on that the target records."""

    def __init__(self, p, *options):
        self.path = os.path.join(tmp(), "t.pct")
        self.json = self.path + ".json"
        self.proc = spawn([PCPTUNE, "record", "-s", p.d.socket, "-o", self.path, "--json", self.json,
                           *options, str(p.id)], stderr=subprocess.PIPE)
        wait_for(lambda: p.rings() or self.proc.poll() is not None)
        time.sleep(.05)  # the hello is on its way

    def end(self, sig=signal.SIGINT):
        """What is in the trace, which must be whole, and what was said."""
        if sig:
            self.proc.send_signal(sig)
        self.err = self.proc.communicate(timeout=20 * SLOW)[1]
        assert self.proc.returncode == 0, (self.proc.returncode, self.err)
        with open(self.json) as f:
            self.said = json.load(f)
        i = info(self.path)
        assert i["whole"] and i["rows"] == self.said["rows"], (i, self.said)
        assert os.listdir(os.path.dirname(self.path)) and not self.said["bad"], self.said
        return i


def told(path, **values):
    cmd = [PCPTUNE, "eval", "--trace", path, "--policy", "static", "--policy-path", POLICIES, "--json"]
    for k, v in {**FIXED, **values}.items():
        cmd += ["--set", f"static.{k}={v}"]
    r = run(cmd)
    assert r.returncode == 0, r
    return json.loads(r.stdout)["policies"][0]


@test
def a_target_is_recorded_from_here_to_there():
    d = fixed()
    p = Program(d)
    p.settle()
    p.do("take(3000)")
    before = p.counter("alloc_pages"), p.counter("free_pages")
    r = Recording(p)
    assert p.rings() == 1
    p.do("take(500)")
    p.do("drop(1000)")
    i = r.end()
    assert r.said["ended"] == "signal" and not r.said["cut"] and r.said["target"]["id"] == p.id, r.said
    # to the page, but for what went past the lists
    moved = p.counter("alloc_pages") - before[0], p.counter("free_pages") - before[1]
    assert 500 <= i["alloc_pages"] <= moved[0] <= i["alloc_pages"] + 20, (i, moved)
    assert 1000 <= i["free_pages"] <= moved[1] <= i["free_pages"] + 20, (i, moved)
    assert i["level_pages"] > 0 and f"of target {p.id}" in r.err, (i, r.err)
    # nothing is left, and it can be done again
    wait_for(lambda: not p.rings())
    r = Recording(p, "--seconds", "1")
    p.do("take(200)")
    assert r.end(None)["alloc_pages"] >= 200 and r.said["ended"] == "seconds", r.said
    kinds = [e["kind"] for e in d.sql("SELECT kind FROM event")]
    assert kinds.count("record") == 2, kinds


@test
def a_replay_begins_with_what_lay_on_the_lists():
    p = Program(fixed())
    p.settle()
    p.do("take(3000)")
    while p.counter("count") < 600:
        p.do("drop(100)")
    held = p.counter("count")
    before = p.counter("alloc_zone") - p.counter("alloc_direct")
    r = Recording(p)
    p.do(f"take({held - 100})")
    i = r.end()
    assert abs(i["level_pages"] - held) < 20, (i, held)
    # all of them were there
    assert p.counter("alloc_zone") - p.counter("alloc_direct") - before <= 63
    assert told(r.path)["alloc_zone"] <= 63
    # lists that have no room for them never had them
    assert told(r.path, high=100)["alloc_zone"] >= held - 200
    # one who reads movements only takes them for freed first
    text = r.path + ".csv"
    assert run([PCPTUNE, "trace", "export", r.path, text]).returncode == 0
    with open(text) as f:
        rows = [list(map(int, x.split(","))) for x in f.readlines()[1:]]
    assert rows[0][0] == 0 and rows[0][3] > 0, rows[0]
    c = json.loads(run([PCPTUNE, "curve", "--trace", r.path, "--json"]).stdout)["cpus"]
    assert all(x["pages"] == x["pages_least"] == x["pages_most"] for cpu in c for x in cpu["points"]), c


@test
def one_stretch_tells_what_was_measured_and_what_another_high_would_have_moved():
    # so many that it does not matter by how much each of the few large drains at 4096 is early or late
    p = Program(fixed(), PCPALLOC_HIGH="1024", PCPALLOC_BATCH="63", PCPALLOC_RULES="gx")
    p.settle()
    p.do("walk(100)")
    before = p.counter("alloc_zone") - p.counter("alloc_direct")
    r = Recording(p)
    p.do("walk(900)")
    r.end()
    real = p.counter("alloc_zone") - p.counter("alloc_direct") - before
    assert r.said["merged"] == 0, r.said
    assert real > 20000 and abs(told(r.path)["alloc_zone"] - real) < 0.05 * real, (told(r.path), real)
    for high in (252, 4096):
        d = Daemon(default={"policy": "static", "params": {**FIXED, "high": high}})
        q = Program(d, PCPALLOC_HIGH=str(high), PCPALLOC_BATCH="63", PCPALLOC_RULES="gx")
        q.do("walk(100)")
        before = q.counter("alloc_zone") - q.counter("alloc_direct")
        q.do("walk(900)")
        real = q.counter("alloc_zone") - q.counter("alloc_direct") - before
        guess = told(r.path, high=high)["alloc_zone"]
        assert abs(guess - real) < 0.05 * real, (high, guess, real)


@test
def targets_that_go_and_daemons_that_go_leave_a_whole_trace():
    d = fixed()
    p = Program(d)
    r = Recording(p)
    p.do("take(2000)")
    p.proc.kill()
    assert r.end(None)["alloc_pages"] > 1900 and r.said["ended"] == "target", r.said
    assert "the target has gone" in r.err, r.err
    p = Program(d)
    r = Recording(p)
    p.do("take(2000)")
    d.proc.kill()
    assert r.end(None)["alloc_pages"] >= 2000 and r.said["ended"] == "daemon", r.said
    assert "the daemon has gone" in r.err, r.err
    wait_for(lambda: not p.rings())
    p.do("take(2000)")


@test
def a_recorder_that_is_killed_costs_the_program_nothing():
    p = Program(fixed())
    r = Recording(p)
    p.do("take(1000)")
    r.proc.kill()
    wait_for(lambda: not p.rings())
    p.do("drop(1000)")
    r = Recording(p)
    p.do("take(300)")
    assert r.end()["alloc_pages"] >= 300


@test
def a_target_that_is_stopped_is_not_waited_for_without_end():
    p = Program(fixed())
    r = Recording(p)
    p.do("take(1000)")
    p.proc.send_signal(signal.SIGSTOP)

    def stopped():
        """every thread of it is"""
        tasks = f"/proc/{p.proc.pid}/task"
        return all(open(f"{tasks}/{t}/stat").read().rsplit(")", 1)[1].split()[0] == "T"
                   for t in os.listdir(tasks))
    wait_for(stopped)
    i = r.end()
    p.proc.send_signal(signal.SIGCONT)
    assert i["alloc_pages"] > 900 and r.said["cut"] and "may be missing" in r.err, (r.said, r.err)
    wait_for(lambda: not p.rings())
    p.do("drop(1000)")


@test
def a_target_that_forks_goes_on_alone():
    p = Program(fixed())
    r = Recording(p)
    p.do("pid = os.fork() or (take(5000), os.read(0, 1), os._exit(0))")
    p.do("take(700)")
    i = r.end()
    assert 700 <= i["alloc_pages"] < 1500, i
    p.proc.kill()


@test
def what_can_not_be_recorded_is_said():
    d = fixed()
    p = Program(d)
    out = os.path.join(tmp(), "t.pct")

    def refused(status, text, target, *options):
        r = run([PCPTUNE, "record", "-s", d.socket, "-o", out, *options, str(target)])
        assert r.returncode == status and text in r.stderr, (status, text, r)
        assert not os.listdir(os.path.dirname(out)), os.listdir(os.path.dirname(out))

    refused(3, 'no target "nosuch"', "nosuch")
    refused(3, "no target 99999", 99999)
    refused(2, "not a whole number from 1", p.id, "-n", "0")
    r = run([PCPTUNE, "record", "-s", d.socket, "-o", out, "sqlite3", ":memory:"])
    assert r.returncode == 2 and 'stands behind "--"' in r.stderr, r
    r = run([PCPTUNE, "record", "-s", d.socket + "x", "-o", out, "1"])
    assert r.returncode == 1 and "no daemon listens" in r.stderr, r
    r = run([PCPTUNE, "record", "-s", d.socket, "-o", out + "/no/t", str(p.id)])
    assert r.returncode == 1 and "No such file" in r.stderr and not p.rings(), r
    r = Recording(p)
    refused(1, "is being recorded already", p.id)
    p.do("take(100)")
    assert r.end()["alloc_pages"] >= 100
    refused(1, "PCPALLOC_AGENT=0", Program(d, PCPALLOC_AGENT="0").id)
    refused(1, "has no agent thread; it gets one", Program(d, PCPALLOC_AGENT="2").id)
    refused(1, "PCPALLOC_GRAIN=0", Program(d, PCPALLOC_GRAIN="0").id)
    refused(1, "can not begin to record", Fake(d).id)


def open_dir():
    d = tempfile.mkdtemp(prefix="pcptune-test-", dir="/tmp")
    defer(lambda: shutil.rmtree(d, ignore_errors=True))
    os.chmod(d, 0o777)
    return d


@test
def others_may_not_record_it():
    if os.geteuid():
        skip("needs two users")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    try:
        subprocess.run([PCPTUNE, "version"], capture_output=True, **nobody)
    except PermissionError:
        skip(f"another user can not reach {PCPTUNE}")
    # whoever may open the socket, but is not the daemon's user
    there = open_dir()
    d = Daemon(dir=open_dir(), default={"policy": "static", "params": FIXED},
               control={"mode": "0666"})
    p = Program(d)
    r = run([PCPTUNE, "record", "-s", d.socket, "-o", os.path.join(there, "t"), str(p.id)], **nobody)
    assert r.returncode == 1 and "needs the daemon's own user or root" in r.stderr, r
    # the daemon's user, but a target of root's
    d = Daemon(start=False, dir=open_dir(), default={"policy": "static", "params": FIXED})
    d.proc = spawn([PCPTUNED, "--foreground", "-c", d.config], stderr=subprocess.DEVNULL, **nobody)
    wait_for(lambda: os.path.exists(d.socket + ".ctl"))
    p = Program(d)
    cmd = [PCPTUNE, "record", "-s", d.socket, "-o", os.path.join(there, "t"), str(p.id)]
    r = run(cmd, **nobody)
    assert r.returncode == 1 and "is uid 0's; only that user or root may record it" in r.stderr, r
    # root may ask, but the program does not trust that daemon
    r = run(cmd)
    assert r.returncode == 1 and "another user's daemon" in r.stderr and not p.rings(), r
    assert not os.listdir(there), os.listdir(there)


@test
def many_clients_do_not_end_a_recording():
    d = Daemon(default={"policy": "static", "params": FIXED}, control={"max_clients": 2})
    p = Program(d)
    r = Recording(p)
    p.do("take(100)")
    time.sleep(5.2)  # clients that say nothing for 5 s may be replaced
    for _ in range(6):
        s = socketlib.socket(socketlib.AF_UNIX)
        s.connect(d.socket + ".ctl")
        defer(s.close)
    time.sleep(.3)
    assert r.proc.poll() is None
    p.do("take(100)")
    assert r.end()["alloc_pages"] >= 200 and r.said["ended"] == "signal", r.said


main()
