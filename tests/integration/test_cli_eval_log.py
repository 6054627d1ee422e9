#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""eval over the records of logs: what is exact, several logs, partial results, and what is not there."""
import gzip

from harness import *

TOOL = os.path.join(TOOLS, "record_log")
MKLOG = os.path.join(TOOLS, "cli_mklog")
ENV = {"PCPTUNE_POLICY_PATH": POLICIES}


def cli_eval(*words, **kw):
    return run([PCPTUNE, "eval", *words], env=ENV, **kw)


def log(name="log.db", dir=None, **keys):
    path = os.path.join(dir or tmp(), name)
    keys = {"version": "1.0", **keys}
    r = run([TOOL, path, *(f"{k}={v}" for k, v in keys.items())])
    assert r.returncode == 0, r
    return path


def table(*words):
    r = cli_eval(*words, "--json")
    assert r.returncode == 0, r
    return json.loads(r.stdout)


FIXED = ("--policy", "static", "--set", "static.rules=g0", "--set", "static.batch=1")


@test
def with_batch_1_another_high_is_told_to_the_page():
    # 64 and so on are edges of the histogram; capacity is high - 1
    logs = {h: log(high=h, batch=1) for h in (65, 513, 1793)}
    truth = {h: table("--db", p, *FIXED)["measured"] for h, p in logs.items()}
    for p in logs.values():
        j = table("--db", p, *FIXED, "--set", "static.high=65,513,1793")
        assert j["as_set"]["error_pct"] == 0 and j["as_set"]["moved"] == j["measured"]["moved"], j
        for row in j["policies"]:
            t = truth[row["params"]["high"]]
            for key in ("alloc_zone", "free_zone", "lock_takes", "moved"):
                assert row[key] == t[key], (key, row, t)
            assert row["free_high"] is None and row["ratio_to_floor"] is None, row
            assert row["ratio_to_static"] >= 1, row
    assert truth[65]["moved"] > 2 * truth[1793]["moved"] > 0, truth


@test
def what_was_merged_tells_the_same_of_fixed_values():
    words = FIXED + ("--set", "static.high=65,513")
    a = table("--db", log(batch=1, high=100, minutes=30, step_ms=60000, period_s=60), *words)
    b = table("--db", log(batch=1, high=100, minutes=30, step_ms=60000, merged=1), *words)
    assert a["records"] == b["records"] and a["steps"] > 0, (a, b)
    for x, y in zip(a["policies"], b["policies"]):
        assert (x["moved"], x["alloc_zone"]) == (y["moved"], y["alloc_zone"]), (x, y)


@test
def fixed_batches_are_near_what_was_measured():
    j = table("--db", log(minutes=30), "--policy", "static")
    assert abs(j["as_set"]["error_pct"]) < 5 and abs(j["recorded"]["error_pct"]) < 5, j
    assert j["recorded_policies"] == ["static"] and j["not_told"]["holes"] == 0, j
    assert j["not_told"]["unrecorded_pages"] == 0 and j["targets"] == 1 and j["cpus"] == 4, j


def near(rows, truth):
    for row in rows:
        t = truth[row["params"]["high"]]
        assert abs(row["moved"] / t["moved"] - 1) < 0.05, (row, t)
        assert 0.8 < row["lock_takes"] / t["lock_takes"] < 1.25, (row, t)


@test
def growing_batches_are_carried_to_another_high():
    keys = {"scale_max": 5, "minutes": 10, "swing": 2000}
    highs = (400, 1000, 3000, 8000)
    for generation, rules in (("g4", 4), ("g1", 1)):
        words = ("--policy", "static", "--set", f"static.rules={generation}", "--set",
                 "static.high=" + ",".join(str(h) for h in highs))
        logs = {h: log(high=h, rules=rules, **keys) for h in highs}
        tables = {h: table("--db", p, *words) for h, p in logs.items()}
        truth = {h: j["measured"] for h, j in tables.items()}
        for j in tables.values():
            assert abs(j["as_set"]["error_pct"]) < 0.5, j["as_set"]
            assert all(row["unknown_batches"] == 0 for row in j["policies"]), j["policies"]
            near(j["policies"], truth)
        # and by a log in which they never grew; that is said
        fixed = table("--db", log(high=1000, **{**keys, "scale_max": 0}), *words)
        assert all(row["unknown_batches"] > 0 for row in fixed["policies"]), fixed["policies"]
        near(fixed["policies"], truth)


@test
def any_number_of_threads_gives_the_same():
    path = log()
    words = ("--db", path, "--policy", "static,kernel,contention,shuffle", "--set",
             "static.high=64,128,256")
    assert cli_eval(*words, "--threads", "1").stdout == cli_eval(*words, "--threads", "3").stdout


@test
def partial_results_merge_to_the_table_of_one_run():
    d = tmp()
    logs = [log(f"{i}.db", d, seed=i, cpus=1 + i, policy=("static", "kernel", "static")[i - 1])
            for i in (1, 2, 3)]
    words = ("--policy", "static,contention", "--set", "static.high=64,1024", "--budget", "5000")
    parts = []
    for i, p in enumerate(logs):
        parts.append(os.path.join(d, f"part{i}"))
        r = cli_eval("--db", p, *words, "--partial")
        assert r.returncode == 0, r
        with open(parts[-1], "w") as f:
            f.write(r.stdout)
    all_at_once = sum((["--db", p] for p in logs), [])
    for form in ((), ("--json",), ("--partial",)):
        one, many = cli_eval(*all_at_once, *words, *form), cli_eval("merge", *parts, *form)
        assert one.returncode == many.returncode == 0, (one, many)
        assert one.stdout == many.stdout and one.stdout, (one, many)
    # merged results can be merged again
    two = os.path.join(d, "two")
    with open(two, "w") as f:
        f.write(cli_eval("merge", *parts[:2], "--partial").stdout)
    assert cli_eval("merge", two, parts[2]).stdout == cli_eval("merge", *parts).stdout
    j = json.loads(cli_eval("merge", *parts, "--json").stdout)
    assert j["targets"] == 3 and j["recorded_policies"] == ["static", "kernel"], j


@test
def sums_over_no_time_have_no_means():
    part = json.loads(cli_eval("--db", log(), "--policy", "static", "--partial").stdout)
    part["log"]["cpu_us"] = part["log"]["covered_ms"] = 0
    path = os.path.join(tmp(), "part")
    with open(path, "w") as f:
        json.dump(part, f)
    j = json.loads(cli_eval("merge", path, "--json").stdout)
    for row in (j["measured"], j["as_set"], j["recorded"], *j["policies"]):
        assert row["contend_pct"] is None and row["pages_held_mean"] is None, row
        assert row["alloc_zone"] > 0, row
    rows = cli_eval("merge", path).stdout.splitlines()[1:6]
    for title in ("contend%", "held mean"):
        at = rows[0].index(title) + len(title) - 1
        assert [r[at] for r in rows[1:]] == ["-"] * 4, rows


@test
def what_can_not_be_merged_is_refused():
    d, path = tmp(), log()
    a, b, c = (os.path.join(d, n) for n in "abc")
    for f, high in ((a, 64), (b, 65)):
        with open(f, "w") as out:
            out.write(cli_eval("--db", path, "--policy", "static", "--set", f"static.high={high}",
                               "--partial").stdout)
    with open(c, "w") as out:
        out.write('{"what": "something else"}')
    r = cli_eval("merge", a, b)
    assert r.returncode == 1 and "other policies, parameters or budget" in r.stderr and not r.stdout, r
    r = cli_eval("merge", a, c)
    assert r.returncode == 1 and "not what eval --partial writes" in r.stderr and not r.stdout, r
    with open(a) as f:
        whole = json.load(f)
    for spoil in (lambda j: j["log"].pop("targets"), lambda j: j["rows"][0]["sums"].update(moved=-1),
                  lambda j: j["rows"][1].update(kind=9), lambda j: j.update(logs=[3])):
        j = json.loads(json.dumps(whole))
        spoil(j)
        with open(c, "w") as out:
            json.dump(j, out)
        r = cli_eval("merge", c)
        assert r.returncode == 1 and "not what eval --partial writes" in r.stderr, r
    for key in ("log", "measured"):
        j = json.loads(json.dumps(whole))
        j[key]["alloc_pages" if key == "log" else "moved"] = (1 << 63) - 1
        with open(c, "w") as out:
            json.dump(j, out)
        r = cli_eval("merge", a, c, "--json")
        assert r.returncode == 1 and "too large to be added" in r.stderr and not r.stdout, r
    r = cli_eval("merge", os.path.join(d, "none"))
    assert r.returncode == 1 and not r.stdout, r
    assert cli_eval("merge").returncode == 2 and cli_eval("merg", a).returncode == 2
    assert cli_eval("merge", a, "--db", path).returncode == 2


@test
def two_policies_take_turns_as_they_did():
    j = table("--db", log(second="kernel"), "--policy", "static")
    assert j["recorded_policies"] == ["static", "kernel"] and "moved" in j["recorded"], j
    r = cli_eval("--db", log(second="nobody"), "--policy", "static", "--json")
    j = json.loads(r.stdout)
    assert r.returncode == 0 and "recorded policy can not be run again" in r.stderr, r
    assert "error" in j["recorded"] and "moved" not in j["recorded"], j


@test
def what_the_log_can_not_tell_is_counted_and_named():
    path = log(hole_at=100, raise_at=300, minutes=10)
    with sqlite3.connect(path) as c:
        c.execute("DELETE FROM record WHERE id = (SELECT max(id) - 3 FROM record)")
    c.close()
    j = table("--db", path, "--policy", "static")
    n = j["not_told"]
    # the row that is gone, and the records that the hole is before
    assert n["holes"] >= 4 + 1 and n["moved_high"] >= 4 and n["unrecorded_pages"] > 0, n
    r = cli_eval("--db", path, "--policy", "static")
    assert "What the log can not tell:" in r.stdout and "records have a hole before them" in r.stdout, r
    assert "records in which high moved" in r.stdout and "in no record" in r.stdout, r
    r = cli_eval("--db", log(), "--policy", "static", "--set", "static.rules=g0,gx")
    assert "lists of other orders" in r.stdout and "    static rules=gx\n" in r.stdout, r
    assert "    static rules=g0\n" not in r.stdout, r
    r = cli_eval("--db", log(free_high=3, minutes=1, cpus=2), "--policy", "static", "--set",
                 "static.rules=g0")
    assert "39 drains by consecutive high-order frees" in r.stdout, r
    assert "What the log can not tell:" not in cli_eval(
        "--db", log(), "--policy", "static", "--set", "static.rules=g0").stdout


@test
def no_number_where_there_is_none():
    d = tmp()
    bare = os.path.join(d, "bare.db")
    assert run([MKLOG, bare], env=ENV).returncode == 0
    r = cli_eval("--db", bare, "--policy", "static")
    assert r.returncode == 3 and "no records" in r.stderr and not r.stdout, r
    # of an older daemon: no such table
    with sqlite3.connect(bare) as c:
        c.executescript("DROP TABLE record; PRAGMA user_version = 1")
    c.close()
    r = cli_eval("--db", bare, "--policy", "static")
    assert r.returncode == 3 and "an older daemon" in r.stderr and not r.stdout, r
    # of a newer one
    with sqlite3.connect(bare) as c:
        c.execute("PRAGMA user_version = 99")
    c.close()
    r = cli_eval("--db", bare, "--policy", "static")
    assert r.returncode == 1 and "newer version" in r.stderr and not r.stdout, r
    # with nothing in it
    path = log(dir=d)
    with sqlite3.connect(path) as c:
        c.executescript("DELETE FROM record; DELETE FROM sample; DELETE FROM assignment; "
                        "DELETE FROM target")
    c.close()
    r = cli_eval("--db", path, "--policy", "static")
    assert r.returncode == 3 and "has no target" in r.stderr and not r.stdout, r
    r = cli_eval("--db", os.path.join(d, "nothing.db"), "--policy", "static")
    assert r.returncode == 1 and not r.stdout, r
    # one log with records and one without: that is said
    both = table("--db", log(), "--db", log("b.db", d, minutes=1), "--policy", "static")
    assert both["targets"] == 2, both


@test
def wrong_calls():
    path = log()
    r = cli_eval("--db", path, "--policy", "static", "--budget", "15")
    assert r.returncode == 1 and "at least 4 pages for each of 4 CPUs, 16" in r.stderr, r
    assert not r.stdout and cli_eval("--db", path, "--policy", "static", "--budget", "16").returncode == 0
    r = cli_eval("--db", path, "--policy", "statik")
    assert r.returncode == 3 and "statik" in r.stderr and not r.stdout, r
    r = cli_eval("--db", path, "--policy", "static", "--set", "static.hihg=5")
    assert r.returncode == 2 and 'did you mean "high"' in r.stderr and not r.stdout, r
    r = cli_eval("--db", path, "--policy", "static", "--target", "nginx")
    assert r.returncode == 3 and 'no target "nginx"' in r.stderr and not r.stdout, r
    for words, text in ((("--policy", "static"), "--trace FILE or --db LOG"),
                        (("--db", path, "--trace", path, "--policy", "static"), "one of them"),
                        (("--db", path), "--policy A,B"),
                        (("--trace", path, "--policy", "static", "--partial"), "for logs")):
        r = cli_eval(*words)
        assert r.returncode == 2 and text in r.stderr and not r.stdout, r


@test
def what_is_given_twice_would_count_twice_and_is_refused():
    path = log()
    link = path + ".link"
    os.symlink(path, link)
    r = cli_eval("--db", path, "--db", link, "--policy", "static")
    assert r.returncode == 2 and "is given twice" in r.stderr and not r.stdout, r
    part = os.path.join(tmp(), "part")
    with open(part, "w") as f:
        f.write(cli_eval("--db", path, "--policy", "static", "--partial").stdout)
    r = cli_eval("merge", part, part)
    assert r.returncode == 2 and "is given twice" in r.stderr and not r.stdout, r


@test
def a_policy_that_there_is_not_is_not_found():
    r = cli_eval("--db", log(), "--policy", "nosuch")
    assert r.returncode == 3 and 'no policy "nosuch"' in r.stderr and not r.stdout, r
    for form in ((), ("--json",)):
        r = run([PCPTUNE, "policies", "--policy-path", tmp(), *form])
        assert r.returncode == 1 and "no policies" in r.stderr, r


@test
def damaged_records_are_left_out_and_counted():
    path = log()
    with sqlite3.connect(path) as c:
        c.execute("UPDATE record SET data = substr(data, 1, 40) WHERE id = 5")
    c.close()
    j = table("--db", path, "--policy", "static")
    assert j["not_told"]["damaged_rows"] == 1 and j["records"] > 100, j["not_told"]


def golden_log(i):
    path = os.path.join(tmp(), f"log-{i}.db")
    with gzip.open(os.path.join(ROOT, f"tests/golden/eval-log-{i}.db.gz")) as f, open(path, "wb") as out:
        shutil.copyfileobj(f, out)
    return path


@test
def tables_of_the_golden_logs_are_what_they_were():
    for i in (1, 2, 3):
        path = golden_log(i)
        r = cli_eval("--db", path, "--policy", "static,kernel,contention,shuffle,lowwater,coldest",
                     "--set", "static.high=64,1024", "--set", "static.rules=g0")
        assert r.returncode == 0 and not r.stderr, r
        lines = r.stdout.replace(path, "LOG").splitlines(keepends=True)
        golden = os.path.join(ROOT, "tests/golden", f"eval-log-{i}.txt")
        if os.environ.get("PCPTUNE_GOLDEN_UPDATE"):
            with open(golden, "w") as f:
                f.writelines(lines)
        with open(golden) as f:
            assert f.readlines() == lines, f"tests/golden/update writes it anew:\n{r.stdout}"


@test
def a_curve_is_made_from_the_same_records():
    path = golden_log(1)
    r = run([PCPTUNE, "curve", "--db", path, "--json"])
    j = json.loads(r.stdout)
    assert r.returncode == 0 and j["basis"] == "records" and j["records"] > 0, r
    for c in j["cpus"]:
        pages = [p["pages"] for p in c["points"]]
        assert pages == sorted(pages, reverse=True) and c["high_now"] == 378, c
        assert all(p["pages_least"] <= p["pages"] <= p["pages_most"] for p in c["points"]), c
        assert c["now"]["pages"] > 0 and c["measured_pages"] > 0, c
    text = run([PCPTUNE, "curve", "synthetic", "--db", path])
    assert text.returncode == 0 and "records of the swings" in text.stdout, text
    r = run([PCPTUNE, "curve", "nobody", "--db", path])
    assert r.returncode == 3 and "no target" in r.stderr, r
    r = run([PCPTUNE, "curve", "a", "--target", "b", "--db", path])
    assert r.returncode == 2, r


@test
def curve_advice_and_eval_say_the_same():
    words = ("--policy", "static", "--set", "static.high=128,512,1024,3072", "--set", "static.rules=")
    for generation, rules, scale_max in (("g4", 4, 5), ("g1", 1, 5), ("gx", 15, 5), ("g0", 0, 0)):
        path = log(high=1000, rules=rules, scale_max=scale_max, swing=2000)
        r = run([PCPTUNE, "curve", "--db", path, "--json"])
        c = json.loads(r.stdout)
        points = {p["high"]: p for p in c["total"]["points"]}
        j = table("--db", path, *words[:-1], words[-1] + generation)
        now = sum(x["now"]["pages"] for x in c["cpus"])
        assert abs(now - j["as_set"]["moved"]) <= 0.001 * now + 10, (now, j["as_set"])
        assert abs(now / j["measured"]["moved"] - 1) < 0.02, (now, j["measured"])
        for row in j["policies"]:
            high = row["params"]["high"]
            p = points[high]
            assert abs(p["pages"] - row["moved"]) <= 0.001 * p["pages"] + 10, (generation, p, row)
            a = json.loads(run([PCPTUNE, "advise", "synthetic", "--db", path, "--from", "2026-01-01",
                                "--policy", "static", "--set", f"high={high}", "--set",
                                f"rules={generation}", "--json"], env=ENV).stdout)
            for key, pages in ("now_per_s", now), ("then_per_s", p["pages"]):
                assert abs(a[key] * a["seconds"] - pages) <= 0.001 * pages + 10, (key, a, pages)


main()
