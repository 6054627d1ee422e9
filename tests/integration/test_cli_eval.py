#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""eval: policies over traces, as people call it."""
import random

from harness import *

HEADER = "time_ns,cpu,order,blocks\n"
KEYS = ["alloc_zone", "free_zone", "lock_takes", "free_high", "contend_pct", "pages_held_mean",
        "pages_held_peak", "decisions", "turns", "ratio_to_floor", "ratio_to_static"]


def cli_eval(*words, timeout=60):
    return run([PCPTUNE, "eval", *words], env={"PCPTUNE_POLICY_PATH": POLICIES}, timeout=timeout)


def strict_json(text):
    def no_number(word):
        raise AssertionError(f"{word} is no number of JSON")
    return json.loads(text, parse_constant=no_number)


def trace(rows):
    path = os.path.join(tmp(), "t.pct")
    r = run([PCPTUNE, "trace", "import", "-", path],
            input=HEADER + "".join(",".join(map(str, r)) + "\n" for r in rows))
    assert r.returncode == 0, r
    return path


def walk(n=4000, cpus=3):
    rng = random.Random(7)
    return [((i + 1) * 500000, rng.randrange(cpus), 0, rng.choice((-1, 1)) * rng.randrange(1, 400))
            for i in range(n)]


def brute(rows, capacity):
    """(alloc_zone, free_zone) of lists that move single pages."""
    level, took, gave = {}, 0, 0
    for _, c, _, b in rows:
        x = level.get(c, 0) + b
        took += max(0, -x)
        gave += max(0, x - capacity)
        level[c] = min(max(x, 0), capacity)
    return took, gave


@test
def fixed_values_give_what_brute_force_gives():
    rows = walk()
    r = cli_eval("--trace", trace(rows), "--policy", "static", "--set", "static.high=64,512,4096",
                 "--set", "static.batch=1", "--set", "static.generation=g0", "--json")
    assert r.returncode == 0, r
    j = json.loads(r.stdout)
    assert [p["params"]["high"] for p in j["policies"]] == [64, 512, 4096], j
    for p in j["policies"]:
        assert (p["params"]["batch"], p["params"]["rules"]) == (1, "g0"), p
        assert (p["alloc_zone"], p["free_zone"]) == brute(rows, p["params"]["high"] - 1), p
        assert p["ratio_to_floor"] >= p["ratio_to_static"] >= 1, p
        assert all(k in p for k in KEYS), p
    assert j["rows"] == 4000 and j["cpus"] == 3 and j["whole"] is True, j


@test
def the_best_split_is_what_exhaustive_search_finds():
    rng = random.Random(11)
    for budget in (8, 9, 11, 30, 31):
        rows = [((i + 1) * 500000, i % 2, 0, rng.choice((-1, 1)) * rng.randrange(1, 12 if i % 2 else 4))
                for i in range(300)]
        r = cli_eval("--trace", trace(rows), "--policy", "static", "--set", "static.batch=1", "--set",
                     "static.rules=g0", "--budget", str(budget), "--json")
        assert r.returncode == 0, r
        p = json.loads(r.stdout)["policies"][0]
        cpu = [[row for row in rows if row[1] == c] for c in (0, 1)]
        best = min(sum(brute(cpu[0], high - 1)) + sum(brute(cpu[1], budget - high - 1))
                   for high in range(4, budget - 3))
        assert p["memory"] == budget and p["static_split"] == best <= p["moved"], (budget, best, p)


class Lcg:
    """Numbers that are the same with every version of Python."""

    def __init__(self, seed):
        self.x = seed

    def below(self, n):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.x >> 33) % n


def golden_traces():
    """Three kinds of load on four CPUs, ten seconds each."""
    r = Lcg(1)
    yield "walk", [(i * 500000, r.below(4), 0, (2 * r.below(2) - 1) * (1 + r.below(200)))
                   for i in range(20000)]
    r, rows = Lcg(2), []
    for i in range(5000):  # processes that come and go; CPU 3 is idle for half of the time
        c = r.below(3 if i < 2500 else 4)
        n = 1 << 4 + r.below(8)
        rows += [(i * 2000000, c, 0, -n), (i * 2000000 + 900000, c, 0, n)]
    yield "burst", rows
    r, rows = Lcg(3), []
    for i in range(20000):  # orders 0 to 3, some of 9, few without a list
        order = (0, 0, 0, 0, 0, 1, 1, 2, 3, 9)[r.below(10)] if r.below(50) else 4 + r.below(5)
        n = 1 + r.below(120 >> min(order, 6))
        rows.append((i * 500000, r.below(4), order, n if r.below(2) else -n))
    yield "orders", rows


COUNTS = ("alloc_zone", "free_zone", "lock_takes", "free_high", "pages_held_peak", "decisions",
          "turns", "moved", "floor", "static_split")


def golden(name, lines):
    """The lines of tests/golden/NAME, to the last digit."""
    path = os.path.join(ROOT, "tests/golden", name)
    if os.environ.get("PCPTUNE_GOLDEN_UPDATE"):
        with open(path, "w") as f:
            f.writelines(lines)
    with open(path) as f:
        assert f.readlines() == lines, f"{name}: tests/golden/update writes it anew:\n" + \
            "".join(lines)


def counts(policy):
    return " ".join(f"{k}={policy[k]}" for k in COUNTS)


@test
def golden_traces_are_what_they_were():
    for name, rows in golden_traces():
        r = run([PCPTUNE, "trace", "export", golden_trace(name)])
        assert r.stdout == HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows), name


def golden_trace(name):
    return os.path.join(ROOT, "tests/golden", f"eval-{name}.pct")


@test
def tables_are_what_they_were():
    words = ("--policy", "static", "--set", "static.rules=g0,g1,g4,gx", "--set",
             "static.high=400,3000", "--set", "static.batch=31", "--json")
    for name, _ in golden_traces():
        lines = []
        for p in json.loads(cli_eval("--trace", golden_trace(name), *words).stdout)["policies"]:
            assert p["floor"] <= p["static_split"] <= p["moved"], p
            lines.append(f"{p['params']['rules']} high={p['params']['high']}: {counts(p)}\n")
        golden(f"eval-{name}.txt", lines)


BUNDLED = ["coldest", "contention", "fraction", "kernel", "knee", "learn", "lowwater", "shuffle",
           "static"]


@test
def rows_of_any_length_take_no_time():
    most = 1 << 31
    rows = [(0, 0, 0, most), (1000, 0, 0, -most), (2000, 8191, 10, most),
            (2 * 10 ** 8, 8191, 3, -most), ((1 << 63) - 1, 8191, 3, most)]
    r = cli_eval("--trace", trace(rows), "--policy",
                 "static,kernel,contention,fraction,shuffle,lowwater,coldest,knee,learn", "--set",
                 "static.high=64,8388608", "--set", "static.batch=1", "--json")
    assert r.returncode == 0, r
    for p in strict_json(r.stdout)["policies"]:
        assert p["ratio_to_floor"] >= 1 and p["ratio_to_static"] >= 1, p
        if p["policy"] != "static":
            continue
        room = p["params"]["high"] - 1  # g0: orders 3 and 10 have no list
        assert p["alloc_zone"] == most - room + most * 8, p
        assert p["free_zone"] == most - room + most * 8 + most * 1024, p
        assert p["lock_takes"] == 2 * (most - room) + 3 * most, p


@test
def where_no_time_passes_nothing_is_said_of_waiting():
    path = trace([(7, 0, 0, -5), (7, 1, 0, 5)])
    j = strict_json(cli_eval("--trace", path, "--policy", "static,knee", "--json").stdout)
    assert [p["contend_pct"] for p in j["policies"]] == [None, None], j
    assert all(p["alloc_zone"] > 0 and p["pages_held_mean"] > 0 for p in j["policies"]), j
    lines = cli_eval("--trace", path, "--policy", "static").stdout.splitlines()
    assert lines[0].endswith(": 2 rows of 2 CPUs, 0 ns"), lines
    assert lines[2].split()[5] == "-", lines


@test
def every_policy_counts_what_it_did():
    listed = json.loads(run([PCPTUNE, "policies", "--json"],
                            env={"PCPTUNE_POLICY_PATH": POLICIES}).stdout)
    assert sorted(p["name"] for p in listed["policies"]) == BUNDLED, listed
    for name, budget in (("walk", 12000), ("burst", 3000), ("orders", 8000)):
        lines = []
        for words in (("--budget", str(budget)), ()):
            r = cli_eval("--trace", golden_trace(name), "--policy", ",".join(BUNDLED), "--json",
                         *words)
            for p in json.loads(r.stdout)["policies"]:
                if words:  # a refill of order 9 is two blocks, however few pages there may be
                    assert p["pages_held_peak"] <= budget + 4 * 1024, p
                assert p["breaches"] == 0, p
                lines.append(f"{p['policy']} budget={words[1] if words else '-'}: {counts(p)}\n")
        golden(f"eval-policies-{name}.txt", lines)


@test
def the_curve_is_a_lower_bound_of_lists_that_share_a_count():
    for name, rows in golden_traces():
        path = trace(rows)
        points = {p["high"]: p["pages"] for p in json.loads(
            run([PCPTUNE, "curve", "-t", path, "-b", "1", "-j"]).stdout)["total"]["points"]}
        highs = f"static.high=64,512,{max(points)}"
        j = json.loads(cli_eval("-t", path, "-p", "static", "--set", "static.batch=1", "--set",
                                "static.rules=gx", "--set", highs, "-j").stdout)
        for p in j["policies"]:
            least = points[p["params"]["high"]]
            assert p["moved"] >= least, (name, p["params"], p["moved"], least)


@test
def every_combination_is_a_row_in_order():
    path = trace(walk(1000))
    words = ("-t", path, "-p", "kernel,static", "--set", "static.high=100,200", "--set",
             "static.rules=g0,gx", "--set", "kernel.decay_ms=500")
    one = json.loads(cli_eval(*words, "--json", "--threads", "1").stdout)
    many = json.loads(cli_eval(*words, "--json", "--threads", "5").stdout)
    assert one == many
    assert [(p["policy"], p["params"].get("high"), p["params"]["rules"])
            for p in one["policies"]] == [
        ("kernel", None, "g4"), ("static", 100, "g0"), ("static", 100, "gx"),
        ("static", 200, "g0"), ("static", 200, "gx")], one
    text = cli_eval(*words).stdout.splitlines()
    assert text[1].split()[:3] == ["policy", "parameters", "alloc_zone"] and len(text) == 9, text
    assert re.match(r"static +high=100 rules=gx ", text[4]), text


@test
def orders_without_a_list_do_not_count_against_a_policy():
    rows = [(i * 1000000, 0, 5, b) for i, b in enumerate((-3, 3) * 50)]
    j = json.loads(cli_eval("-t", trace(rows + [(10**9, 0, 0, -1)]), "-p", "static", "-j").stdout)
    p = j["policies"][0]
    assert j["unlisted_pages"] == 300 * 32 and p["lock_takes"] == 301, (j, p)
    assert p["moved"] == p["alloc_zone"] + p["free_zone"] - 300 * 32 > 0, p


@test
def a_budget_binds_and_is_checked():
    path = trace(walk())
    j = json.loads(cli_eval("-t", path, "-p", "static", "--set", "static.high=5000", "--budget",
                            "900", "--json").stdout)
    p = j["policies"][0]
    assert p["memory"] == 900 and p["pages_held_peak"] <= 900 and j["budget"] == 900, p
    r = cli_eval("-t", path, "-p", "static", "--budget", "11")
    assert r.returncode == 1 and "at least 4 pages for each of 3 CPUs are needed, 12" in r.stderr, r
    assert not r.stdout, r


@test
def wrong_calls_are_told():
    path = trace(walk(100))
    for words, status, text in (
            (("-p", "static"), 2, "missing: --trace"), (("-t", path), 2, "missing: --policy"),
            (("-t", path, "-p", "statik"), 3, "statik"),
            (("-t", path, "-p", "static", "--set", "kernel.high=1"), 2, "not in --policy"),
            (("-t", path, "-p", "static", "--set", "static.hihg=1"), 2, "high"),
            (("-t", path, "-p", "static", "--set", "static.high=x"), 2, "high"),
            (("-t", path, "-p", "static", "--set", "static.high=,,"), 2, "POLICY.KEY=VALUE"),
            (("-t", path, "-p", "static", "--managed", "9" * 18), 2, "1024 to 2^40 pages"),
            (("-t", path, "-p", "static", "--set", "high=1"), 2, "POLICY.KEY=VALUE"),
            (("-t", path, "-p", ","), 2, "a list of policies"),
            (("-t", path + "x", "-p", "static"), 1, "No such file")):
        r = cli_eval(*words)
        assert r.returncode == status and text in r.stderr and not r.stdout, (words, r)
    # parameters that do not go together: no number where there is none
    r = cli_eval("-t", path, "-p", "static", "--set", "static.high=2,64", "--json")
    bad, good = json.loads(r.stdout)["policies"]
    assert r.returncode == 1 and "high is 4 pages and more" in bad["error"] and r.stderr, r
    assert "alloc_zone" not in bad and good["alloc_zone"] > 0, r


@test
def empty_and_cut_traces_are_told():
    r = cli_eval("-t", trace([]), "-p", "static")
    assert r.returncode == 3 and "nothing was allocated" in r.stderr and not r.stdout, r
    rows = [(i, 0, 0, (-1) ** i * 7) for i in range(70000)]
    path = trace(rows)
    cut_short(path, 40)
    r = cli_eval("-t", path, "-p", "static", "-j")
    j = json.loads(r.stdout)
    assert r.returncode == 1 and j["whole"] is False and j["rows"] == 65536, r
    assert "65536 rows before it are good" in r.stderr, r
    path = trace(rows[:9])
    cut_short(path, 40)
    r = cli_eval("-t", path, "-p", "static")
    assert r.returncode == 1 and "0 rows before it are good" in r.stderr and not r.stdout, r
    assert "nothing was" not in r.stderr, r


main()
