#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune simulate`: the table, the published rows, wrong words and files."""
import glob

from harness import *

KBUILD = os.path.join(ROOT, "configs/workloads/kbuild.conf")


def short(warm=1, run=1):
    """kbuild for so many seconds, as a file."""
    with open(KBUILD) as f:
        text = f.read()
    text, n = re.subn(r"warm_ns = \d+L;(.*)run_ns = \d+L;",
                      rf"warm_ns = {warm}000000000L;\1run_ns = {run}000000000L;", text, flags=re.S)
    assert n == 1
    path = os.path.join(tmp(), "short.conf")
    with open(path, "w") as f:
        f.write(text)
    return path


# The file as it is reaches all of them, in this shortened form 48 and 54 of 55.
CELLS, ORDERS_LOST = 46, 3


def simulate(*words, **kw):
    return run([PCPTUNE, "simulate", *words], **kw)


@test
def the_same_seed_gives_the_same_bytes():
    w, out = short(), os.path.join(tmp(), "t.json")
    said, files = [], []
    for _ in range(2):
        r = simulate("-w", w, "-c", "16", "-r", "base,p5,g4", "-s", "5", "-n", "2", "-j", out)
        assert r.returncode == 0 and not r.stderr, r
        said.append(r.stdout)
        with open(out) as f:
            files.append(json.load(f))
    assert said[0] == said[1]
    speed = [f.pop("events_per_second") for f in files]
    assert files[0] == files[1] and min(speed) > 0
    r = simulate("-w", w, "-c", "16", "-r", "base,p5,g4", "-s", "6", "-n", "2")
    assert r.returncode == 0 and r.stdout != said[0]


@test
def the_json_has_every_key():
    out = os.path.join(tmp(), "t.json")
    r = simulate("-w", short(), "-c", "4", "-r", "base,p7", "-n", "2", "--json", out)
    assert r.returncode == 0, r
    with open(out) as f:
        j = json.load(f)
    assert set(j) == {"workload", "cpus", "seed", "seeds", "events", "events_per_second", "rows"}
    assert j["cpus"] == 4 and j["seeds"] == 2 and [x["row"] for x in j["rows"]] == ["base", "p7"]
    for x in j["rows"]:
        assert set(x) == {"row", "build_time", "lock_contend", "free_high", "alloc_zone",
                          "pages_held_mean", "pages_held_peak"}, x
        assert all(set(v) == {"mean", "spread"} and v["spread"] >= 0
                   for k, v in x.items() if k != "row")
    base = j["rows"][0]
    assert base["build_time"]["mean"] == base["alloc_zone"]["mean"] == 100, base
    assert j["rows"][1]["pages_held_mean"]["mean"] > base["pages_held_mean"]["mean"]


@test
def the_published_rows_stand_beside_what_was_published():
    requires_release()
    r = simulate("--workload", short(6, 5), "--cpus", "224", "--published", "--seeds", "1",
                 timeout=220)
    assert r.returncode == 0, r
    rows = re.findall(r"^(v[23]) +(\w+) +(\w+) +(.*)$", r.stdout, re.M)
    assert len(rows) == 13, r.stdout
    for series, name, rules, rest in rows:  # published and simulated in turn
        numbers = [float(x) for x in re.findall(r"[\d.]+", rest)]
        assert len(numbers) == 8, rest
        if name == "base":
            assert numbers[0] == numbers[1] == numbers[6] == numbers[7] == 100, rest
    close, cells, held, orders = map(int, re.search(
        r"bounds: (\d+) of (\d+); orderings .* held: (\d+) of (\d+)", r.stdout).groups())
    assert cells == 52 and orders > 40, r.stdout
    assert close >= CELLS and orders - held <= ORDERS_LOST, r.stdout
    assert r.stdout.count(" !") == cells - close, r.stdout


@test
def every_workload_that_comes_with_it_runs():
    names = [os.path.basename(p)[:-5]
             for p in glob.glob(os.path.join(ROOT, "configs/workloads/*.conf"))]
    assert len(names) >= 3 and "kbuild" in names
    page = open(os.path.join(ROOT, "docs/simulate.md")).read()
    for name in names:
        assert f"### {name}\n" in page, name
        r = simulate("-w", name, "-c", "4", "-n", "1", "-r", "g0,g4")
        rows = re.findall(r"^(g0|g4) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", r.stdout, re.M)
        assert r.returncode == 0 and len(rows) == 2, (name, r)
        # lists that tune themselves go to the zone less, whatever the CPUs do
        assert float(rows[1][4]) < float(rows[0][4]) == 100, (name, rows)


@test
def wrong_words_are_refused():
    for words, says in (((), "--workload is missing"), (("-w", "kbuild", "-c", "0"), "1 to 1024"),
                        (("-w", "kbuild", "-c", "1025"), "1 to 1024"),
                        (("-w", "kbuild", "-n", "0"), "1 to 100"),
                        (("-w", "kbuild", "-n", "101"), "1 to 100"),
                        (("-w", "kbuild", "-r", "base,g9"), 'no generation "g9"'),
                        (("-w", "kbuild", "-r", ","), "names of generations"),
                        (("-w", "kbuild", "-p", "-r", "g4"), "leave --rows out"),
                        (("-w", "kbuild", "word"), "")):
        r = simulate(*words)
        assert r.returncode == 2 and says in r.stderr and not r.stdout, (words, r)


@test
def wrong_files_are_named():
    r = simulate("-w", "nosuch")
    assert r.returncode == 1 and "nosuch.conf: No such file" in r.stderr, r
    path = os.path.join(tmp(), "bad.conf")
    with open(path, "w") as f:
        f.write("machine = {\n nodes = 2;\n batch = 0;\n};\n")
    r = simulate("-w", path)
    assert r.returncode == 1, r
    assert f"{path}:3: machine.batch: right is a whole number from 1 to 1024" in r.stderr, r
    r = simulate("-w", short(), "-c", "2", "-r", "g4", "-j", os.path.join(tmp(), "no/where.json"))
    assert r.returncode == 1 and "no/where.json" in r.stderr, r


main()
