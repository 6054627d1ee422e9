#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""curve, of traces and of logs."""
import random
import xml.etree.ElementTree

from cli_screen import Screen
from harness import *

MKLOG = os.path.join(TOOLS, "cli_mklog")
HEADER = "time_ns,cpu,order,blocks\n"


def curve(*words):
    return run([PCPTUNE, "curve", *words], env={"PCPTUNE_POLICY_PATH": POLICIES, "TZ": "UTC"})


def trace(rows):
    path = os.path.join(tmp(), "t.pct")
    r = run([PCPTUNE, "trace", "import", "-", path],
            input=HEADER + "".join(f"{t},{c},0,{b}\n" for t, c, b in rows))
    assert r.returncode == 0, r
    return path


def walk(n=3000, cpus=2):
    rng = random.Random(5)
    return [((i + 1) * 1000000, rng.randrange(cpus), rng.choice((-1, 1)) * rng.randrange(1, 300))
            for i in range(n)]


def brute(rows, cpu, capacity):
    level = moved = 0
    for _, c, b in rows:
        if c == cpu:
            level += b
            moved += max(0, -level) + max(0, level - capacity)
            level = min(max(level, 0), capacity)
    return moved


@test
def the_points_are_the_truth():
    rows = walk()
    j = json.loads(curve("--trace", trace(rows), "--batch", "1", "--json").stdout)
    assert [c["cpu"] for c in j["cpus"]] == [0, 1] and j["lower_bound"] is True, j
    for c in j["cpus"]:
        assert len(c["points"]) > 40
        for p in c["points"]:
            assert p["pages"] == p["locks"] == brute(rows, c["cpu"], p["high"] - 1), p
            assert abs(p["pages_per_s"] * j["seconds"] / max(p["pages"], 1) - (p["pages"] > 0)) < 1e-4
        assert c["knee"] in [p["high"] for p in c["points"]] and c["high_now"] is None, c
    for i, p in enumerate(j["total"]["points"]):
        assert p["pages"] == sum(c["points"][i]["pages"] for c in j["cpus"])


@test
def what_passed_the_lists_by_is_told():
    path = os.path.join(tmp(), "t.pct")
    rows = "".join(f"{i},0,{6 * (i % 2)},{(-1) ** (i // 2)}\n" for i in range(100))
    r = run([PCPTUNE, "trace", "import", "-", path], input=HEADER + rows)
    assert r.returncode == 0, r
    text = curve("-t", path).stdout
    assert "\n3,200 pages (98 %) passed the lists by" in text, text
    assert json.loads(curve("-t", path, "-j").stdout)["cpus"][0]["direct_pages"] == 3200
    assert "passed the lists by" not in curve("-t", trace(walk())).stdout


@test
def text_svg_and_one_cpu():
    path = trace(walk())
    svg = path + ".svg"
    r = curve("-t", path, "-c", "1", "--svg", svg)
    assert r.returncode == 0 and "K: knee" in r.stdout and "lower bound" in r.stdout, r
    rows = [l.split() for l in r.stdout.splitlines() if re.match(r" +0 +1 ", l)]
    assert len(rows) == 1 and not re.search(r"^ +0 +0 ", r.stdout, re.M), r.stdout
    root = xml.etree.ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg") and "knee" in "".join(root.itertext())


@test
def a_plot_keeps_within_the_lines_of_a_terminal():
    path = trace(walk())
    plain = curve("-t", path).stdout
    for cols in (40, 60, 77, 78, 200):
        s = Screen(PCPTUNE, "curve", "-t", path, env={"NO_COLOR": "1"}, rows=60, cols=cols)
        assert s.end() == 0
        lines = s.raw.replace("\r", "").split("\n")
        plot = lines[[l.strip() for l in lines].index("pages/s"):]
        plot = plot[:[l.strip()[:2] for l in plot].index("K:")]
        assert max(map(len, plot)) == min(cols, 78), (cols, plot)
        assert "K" in "".join(plot), plot
        assert ("\n".join(plot) in plain) == (cols >= 78), (cols, plot)
        first, last = plot[-1].split()
        assert (f"{first} " in plain) and plain.count(f" {last}\n"), "the ends of the axis stay"


@test
def a_log_says_what_it_can_not_tell():
    db = os.path.join(tmp(), "log.db")
    assert run([MKLOG, db], env={"PCPTUNE_POLICY_PATH": POLICIES}).returncode == 0
    r = curve("--db", db)
    assert r.returncode == 0 and "target 1 page_fault1, 2 CPUs" in r.stdout, r
    assert "the busiest of 2 targets; --target names another" in r.stdout, r
    assert json.loads(curve("--db", db, "-j").stdout)["target"] == {"id": 1, "name": "page_fault1"}
    r = curve("--db", db, "--target", "1")
    assert "busiest" not in r.stdout and r.returncode == 0 and "the sums of an interval" in r.stdout and "^: high now" in r.stdout, r
    j = json.loads(curve("--db", db, "--target", "page_fault1", "--json").stdout)
    assert j["kind"] == "log" and j["samples"] > 0, j
    c = j["cpus"][0]
    assert c["high_now"] == 378 and c["now"]["pages"] <= c["now"]["pages_most"], c
    assert c["measured_pages"] == 5000 * j["samples"], c
    r = curve("--db", db, "--target", "1", "--from", "2027-01-01")
    assert r.returncode == 3 and "nothing was allocated" in r.stderr, r
    r = curve("--db", db, "--target", "nginx")
    assert r.returncode == 3 and "no target \"nginx\"; targets: 1 page_fault1" in r.stderr, r


@test
def of_targets_of_one_name_the_busiest_of_that_time_is_taken():
    path = os.path.join(tmp(), "log.db")
    assert run([MKLOG, path], env={"PCPTUNE_POLICY_PATH": POLICIES}).returncode == 0
    with sqlite3.connect(path) as c:  # the same name again, 100 s later and for half of the time
        for table, shown, key in (("target", "id = 1", "id"), ("sample", "id = 2", "target")):
            names = [n for _, n, *_ in c.execute(f"PRAGMA table_info({table})")]
            values = ["7" if n == key else "NULL" if n == "id" else "wall_us + 100000000" if n == "wall_us" else n
                      for n in names]
            c.execute(f"INSERT INTO {table} SELECT {','.join(values)} FROM {table} WHERE {shown}")
    c.close()
    for when, target in ((), 1), (("--to", "2026-11-30T10:00:30Z"), 1), (("--from", "2026-11-30T10:01:00Z"), 7):
        r = curve("--db", path, "--target", "page_fault1", "--json", *when)
        assert r.returncode == 0 and json.loads(r.stdout)["target"]["id"] == target, (when, r)


@test
def wrong_calls_and_empty_traces():
    path = trace([])
    r = curve("--trace", path)
    assert r.returncode == 3 and "nothing was allocated or freed" in r.stderr and not r.stdout, r
    assert curve("--trace", trace([(5, 0, -3)]), "--cpu", "4").returncode == 3
    r = curve("--trace", trace([(5, 0, -3)]))
    assert r.returncode == 0, r
    for words, text in ((("-t", path, "-d", "x"), "one of them"),
                        (("-t", path, "--batch", "0"), "1 to 1024"),
                        (("-t", path, "--from", "-1m"), "for a log"),
                        (("-d", path, "--from", "-1m", "--to", "-2m"), "--from is later")):
        r = curve(*words)
        assert r.returncode == 2 and text in r.stderr, r
    with open(path, "rb") as f:
        whole = f.read()
    with open(path, "wb") as f:
        f.write(whole[:-3])
    r = curve("--trace", path)
    assert r.returncode == 1 and "byte" in r.stderr and not r.stdout, r


@test
def rows_of_a_quiet_plot_have_labels_of_their_own():
    second = 10**9
    some = [(i * 10 * second, 0, (-1) ** i * 300) for i in range(9)]
    for rows in ([(0, 0, -3), (100 * second, 0, 3)], some, [(0, 0, 3), (5 * second, 0, 2)]):
        r = curve("--trace", trace(rows), "--batch", "1")
        labels = re.findall(r"^ *([\d.]+) \|", r.stdout, re.M)
        assert r.returncode == 0 and labels and len(labels) == len(set(labels)), r.stdout


@test
def of_a_cut_trace_what_came_before_is_shown():
    rows = [(i, 0, (-1) ** i * 70) for i in range(70000)]
    path = trace(rows)
    cut_short(path, 40)
    r = curve("--trace", path, "--batch", "1", "--json")
    j = json.loads(r.stdout)
    assert r.returncode == 1 and "65536 rows before it are good" in r.stderr, r
    assert j["whole"] is False, j["whole"]
    p = j["cpus"][0]["points"][0]
    assert p["pages"] == brute(rows[:65536], 0, p["high"] - 1), p


@test
def a_log_without_targets_has_nothing_to_show():
    db = os.path.join(tmp(), "log.db")
    assert run([os.path.join(TOOLS, "cli_mklog"), db, "0"]).returncode == 0
    for verb in (["curve"], ["eval", "--policy", "static"]):
        r = run([PCPTUNE, *verb, "--db", db], env={"PCPTUNE_POLICY_PATH": POLICIES})
        assert r.returncode == 3 and "has no target" in r.stderr and not r.stdout, r


main()
