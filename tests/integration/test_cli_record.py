#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune record`: a real program, its children, its status, and what becomes of the trace."""
from harness import *

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
    r = record(out, "./does-not-exist")
    assert r.returncode == 127 and "does-not-exist: No such file" in r.stderr, r
    # nothing was allocated, and that is a trace, too
    assert info(out)["rows"] == 0
    assert "no process sent events" in r.stderr, r
    assert record(out, "true", options=["--quiet"]).stderr == ""


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


@test
def one_run_tells_what_another_high_would_have_moved():
    """Recorded once, under the rules of 6.7; then run with limits that it was asked about."""
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


main()
