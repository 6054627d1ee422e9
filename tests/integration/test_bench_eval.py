#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/eval_run in a short form: one run, asked about other limits, and runs with these."""
from harness import *

sys.path.insert(0, os.path.join(ROOT, "bench"))
import eval_report  # noqa: E402
import eval_requests  # noqa: E402


def eval_run(program, **env):
    r = run([sys.executable, os.path.join(ROOT, "bench/eval_run"), program],
            env={"B": B, "RUNS": "1", "SCALE": "0.2", **env}, timeout=300)
    assert r.returncode == 0, r
    rows = {int(m[1].replace(",", "")): tuple(float(x.replace(",", "")) for x in m.groups()[1:]) for m in re.finditer(
        r"high (\d+): ([\d,]+) \(spread [\d.]+ %\), log [\d,]+ \(([-+\d.]+) %\), "
        r"trace [\d,]+ \(([-+\d.]+) %\)", r.stdout)}
    assert len(rows) == 9, r
    return rows, r


@test
def one_run_tells_what_64_virtual_cpus_would_move_at_other_highs():
    requires_release()
    rows, r = eval_run("burst_mix")
    measured = [rows[h][0] for h in sorted(rows)]
    assert measured == sorted(measured, reverse=True) and measured[0] > 4 * measured[-1], rows
    for high, (_, log, trace) in rows.items():
        assert abs(log) < 20 and abs(trace) < 5, (high, rows)
    assert "median error" in r.stdout.splitlines()[-1], r


@test
def a_report_says_what_was_met_and_what_was_not():
    def rows(errors):
        return [eval_report.row(378 << i, [{"alloc_zone": 1100, "alloc_direct": 100, "refills": 50}],
                                {"log": 1000 + 10 * e, "trace": 1000 + 5 * e}, False)
                for i, e in enumerate(errors)]
    near = {"program": "near", "what": "told well", "same": True, "rows": rows([1, -2, 3]),
            "trace": {"rows": 5, "bytes": 100, "merged": 0}}
    far = {"program": "far", "what": "told badly", "same": True, "rows": rows([4, 30, -6]),
           "trace": {"rows": 5, "bytes": 100, "merged": 7}}
    settings = {"base": 2000, "batch": 63, "rules": "gx", "runs": 1, "scale": 1}
    report = eval_report.build([near, far], eval_report.machine(B, (0, 0, 0), time.time()), settings)
    s = report["summary"]
    assert s["log"]["median_pct"] == 3.5 and s["log"]["median_met"], s
    assert s["log"]["worst_pct"] == 30 and not s["log"]["worst_met"] and s["log"]["over_worst"] == 1, s
    assert s["trace"]["median_pct"] == 1.75 and s["trace"]["worst_pct"] == 15, s
    assert near["summary"]["log"]["worst_met"] and not far["summary"]["log"]["worst_met"], report
    d = tmp()
    eval_report.write(report, d)
    with open(os.path.join(d, "eval-table.md")) as f:
        text = f.read()
    assert "not met, 1 of 6 rows above)" in text and "| far | log | 6.00 | 5 | **no** | 30.00" in text, text
    with open(os.path.join(d, "eval-table.json")) as f:
        assert json.load(f) == report
    far["same"] = False
    report = eval_report.build([near, far], report["machine"], settings)
    assert report["summary"]["log"]["worst_pct"] == 3 and report["summary"]["log"]["rows"] == 3, report
    assert "without far, whose runs" in eval_report.verdict(report), report
    assert "| **all** but far | log | 2.00" in eval_report.summary_text(report), report
    assert "not held against" in eval_report.program_text(far), report
    assert report["flat"] == ["near"] and "Leaving out" not in eval_report.verdict(report), report
    assert "The same at each of these limits" in eval_report.program_text(near), report
    far["same"] = True
    far["rows"] += [eval_report.row(9000, [{"alloc_zone": 600, "alloc_direct": 100, "refills": 50}],
                                    {"log": 505, "trace": 505}, False)]
    report = eval_report.build([near, far], report["machine"], settings)
    assert ("Leaving out near as well, where no limit changed anything, the median errors are 5.0 and "
            "2.5 %.") in eval_report.verdict(report), eval_report.verdict(report)


@test
def requests_are_the_same_each_time_and_leave_nothing():
    asked = [c.split(b"\r\n") for c in eval_requests.commands(5000)]
    assert asked == [c.split(b"\r\n") for c in eval_requests.commands(5000)]
    keys = set()
    for c in asked:
        verb, key = c[2], c[4]
        assert verb == b"SET" or key in keys, (verb, key)
        if verb == b"SET":
            assert 1024 <= len(c[6]) == int(c[5][1:]) <= eval_requests.LARGEST, c[:6]
            keys.add(key)
        elif verb == b"DEL":
            keys.remove(key)
    assert not keys and {c[2] for c in asked} == {b"SET", b"GET", b"DEL"}, keys


@test
def rows_that_differ_from_run_to_run_by_more_than_the_goal_are_shown_and_not_counted():
    def runs(*pages):
        return [{"alloc_zone": p, "alloc_direct": 0, "refills": 9} for p in pages]
    told = {"log": 1500, "trace": 1500}
    rows = [eval_report.row(378, runs(1000, 1000, 1010), {"log": 1020, "trace": 990}, False),
            eval_report.row(756, runs(1000, 1090, 1050), told, False),  # 8.6 %
            eval_report.row(1512, runs(1000, 2000, 1500), told, False)]
    s = eval_report.summary(rows)
    assert (s["log"]["rows"], s["log"]["not_counted"], s["log"]["over_worst"]) == (2, 1, 1), s
    assert (s["trace"]["rows"], s["trace"]["not_counted"], s["trace"]["worst_pct"]) == (1, 2, 1), s
    assert eval_report.cell(rows[2], "log") == "1,500 | *+0.00* -", rows
    assert eval_report.cell(rows[1], "log") == "1,500 | +42.86", rows
    empty = eval_report.summary(rows[2:])
    assert empty["log"]["rows"] == 0 and empty["log"]["not_counted"] == 1, empty


@test
def that_a_larger_high_moves_more_is_said():
    def rows(*pages):
        return [eval_report.row(378 << i, [{"alloc_zone": p, "alloc_direct": 0, "refills": 9}],
                                {"log": p, "trace": p}, False) for i, p in enumerate(pages)]
    assert eval_report.more_at_a_larger_high(rows(100, 90, 90, 50)) == ""
    text = eval_report.more_at_a_larger_high(rows(1000, 1400, 900, 905))
    assert text.startswith("\nMore is moved at 756 than at 378: a drain"), text


main()
