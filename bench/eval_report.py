# SPDX-License-Identifier: MIT
"""What bench/eval_run predicted and measured, as docs/eval-table.json and docs/eval-table.md.

row() and build() compute every error, median and yes or no; the others only show them.
"""
import json
import os
import statistics

from peers_report import machine

GOALS = {"log": (5, 15), "trace": (3, 8)}  # median and worst error, per cent


def row(high, runs, told, base):
    """One value of high: what runs came to, and what was told beforehand."""
    values = [s["alloc_zone"] - s["alloc_direct"] for s in runs]
    median = statistics.median(values)
    r = {"high": high, "base": base, "measured": values, "median": median,
         "spread_pct": round(100 * (max(values) - min(values)) / median, 3),
         "refills": statistics.median(s["refills"] for s in runs)}
    for way, value in told.items():
        r[way] = {"told": round(value), "error_pct": round(100 * (value / median - 1), 3)}
    return r


def line(r):
    return (f"high {r['high']}: {r['median']:,.0f} (spread {r['spread_pct']:.2f} %), " + ", ".join(
        f"{way} {r[way]['told']:,} ({r[way]['error_pct']:+.2f} %)" for way in GOALS))


def repeats(r, goals):
    """Whether runs with the same limits agree well enough that anything could be told of them."""
    return r["spread_pct"] <= goals[1]


def summary(rows):
    """Of the rows that are not the run itself: for each way median and worst, and whether met."""
    ret = {}
    for way, goals in GOALS.items():
        counted = [r for r in rows if not r["base"] and repeats(r, goals)]
        errors = sorted(abs(r[way]["error_pct"]) for r in counted)
        beyond = [r for r in counted if abs(r[way]["error_pct"]) > r["spread_pct"]]
        median = round(statistics.median(errors), 2) if errors else 0
        worst = round(errors[-1], 2) if errors else 0
        ret[way] = {"median_pct": median, "worst_pct": worst, "rows": len(errors),
                    "not_counted": sum(not r["base"] for r in rows) - len(errors),
                    "beyond_spread": len(beyond), "median_goal_pct": goals[0],
                    "worst_goal_pct": goals[1], "median_met": median <= goals[0],
                    "worst_met": worst <= goals[1],
                    "over_worst": sum(e > goals[1] for e in errors)}
    return ret


def build(tables, where, settings):
    for t in tables:
        t["summary"] = summary(t["rows"])
    same = [t for t in tables if t["same"]]
    return {"machine": where, "settings": settings,
            "summary": summary([r for t in same for r in t["rows"]]),
            "summary_without_flat": summary([r for t in same if not flat(t) for r in t["rows"]]),
            "flat": [t["program"] for t in same if flat(t)],
            "programs": tables}


def flat(t):
    """Whether it moved the same at each limit, so that there was little to tell."""
    medians = [r["median"] for r in t["rows"]]
    return max(medians) - min(medians) <= max(medians) / 100


def others(report):
    """Programs that are shown, and not held against the goals."""
    return [t["program"] for t in report["programs"] if not t["same"]]


# ---- showing ----

def yes(met):
    return "yes" if met else "**no**"


def verdict(report):
    return "; ".join(
        f"from the {'records of a log' if way == 'log' else 'trace'}: median error "
        f"{s['median_pct']} % (goal {s['median_goal_pct']}: {'met' if s['median_met'] else 'not met'}), "
        f"worst {s['worst_pct']} % (goal {s['worst_goal_pct']}: "
        f"{'met' if s['worst_met'] else 'not met'}, {s['over_worst']} of {s['rows']} rows above"
        + (f"; {s['not_counted']} more differ from run to run by more than that" if s["not_counted"]
           else "") + ")"
        for way, s in report["summary"].items()) + "".join(
        f"; without {name}, whose runs have not the same to do" for name in others(report)) + "." + \
        without_flat(report)


def without_flat(report):
    """Rows in which no limit changes anything are easy to tell: what the others come to alone."""
    s = report["summary_without_flat"]
    return (f" Leaving out {' and '.join(report['flat'])} as well, where no limit changed anything, the "
            f"median errors are {s['log']['median_pct']} and {s['trace']['median_pct']} %."
            if report["flat"] and s["log"]["rows"] else "")


HEAD = """# One run, other limits

Made by `make bench-eval` (`bench/eval_run`); [eval-table.json](eval-table.json) has every run. Each program ran once under policy `static` with `high` = {base} and was recorded once; from the log of the one and the trace of the other `pcptune eval` told what the zone gives to the lists with eight other values of `high`. Then it ran with each of them, {runs} times, in turns. `batch` {batch} and generation `{rules}` (batches that grow, lists of several orders) in all of them, in force from the first page on. Figures are pages from the zone to the lists in a run, whose work is the same each time (where it is not, that is said); what passes the lists by is the same at any `high`, and left out.

Spread: the largest less the smallest of the runs, of their median; an error that is not above it can not be told from chance (*in italics*). Where runs with the same limits differ by more than the goal for the worst error, nobody could tell them; such rows are shown and do not count (`-` behind the error). Nor does the row of {base}, which is the run itself.

"""


def cell(r, way):
    e = r[way]["error_pct"]
    text = f"{e:+.2f}"
    text = f"*{text}*" if abs(e) <= r["spread_pct"] else text
    return f"{r[way]['told']:,} | {text}" + ("" if repeats(r, GOALS[way]) else " -")


def more_at_a_larger_high(rows):
    """A sentence where measured traffic does not fall with high, as that of any fixed batch would."""
    rows = [r for r in rows if not r["base"]]
    odd = [f"{b['high']:,} than at {a['high']:,}" for a, b in zip(rows, rows[1:])
           if b["median"] > a["median"] * (1 + max(1, a["spread_pct"], b["spread_pct"]) / 100)]
    if not odd:
        return ""
    return ("\nMore is moved at " + ", at ".join(odd) + ": a drain is the larger the longer the run of "
            "frees before it, and with the larger `high` that run may just be long enough to take what "
            "is asked for next. Where that falls depends on the order of calls, which a trace has and "
            "records have not.\n")


ALL_THE_SAME = ("\nThe same at each of these limits: what goes to and fro fits on the lists at the least "
                "of them, and the rest is memory that the program takes once and keeps, which no `high` "
                "saves.\n")


def program_text(t):
    lines = [f"## {t['program']}\n\n{t['what'][0].upper()}{t['what'][1:]}. "
             + ("" if t["same"] else "Shown, and not held against the goals. ") + "Trace: "
             f"{t['trace']['rows']:,} rows, {t['trace']['bytes'] / 2**20:.2f} MiB"
             + (f", {t['trace']['merged']:,} events merged" if t["trace"]["merged"] else "") + ".\n",
             "| high | measured | spread % | from the log | error % | from the trace | error % |",
             "|---|---|---|---|---|---|---|"]
    for r in t["rows"]:
        high = f"{r['high']:,}" + (" (the run itself)" if r["base"] else "")
        lines.append(f"| {high} | {r['median']:,.0f} | {r['spread_pct']:.2f} | {cell(r, 'log')} | "
                     f"{cell(r, 'trace')} |")
    return "\n".join(lines) + "\n" + (ALL_THE_SAME if flat(t) else more_at_a_larger_high(t["rows"]))


def summary_text(report):
    lines = ["| program | told from | median error % | goal | met | worst % | goal | met | within the "
             "spread | not counted |", "|---|---|---|---|---|---|---|---|---|---|"]
    for name, told in [(t["program"], t["summary"]) for t in report["programs"]] + \
            [(" but ".join(["**all**", *others(report)]), report["summary"])]:
        for way, s in told.items():
            goals = f"| {name} | {way} | - | {s['median_goal_pct']} | - | - | {s['worst_goal_pct']} | - |"
            if s["rows"]:
                goals = (f"| {name} | {way} | {s['median_pct']:.2f} | {s['median_goal_pct']} | "
                         f"{yes(s['median_met'])} | {s['worst_pct']:.2f} | {s['worst_goal_pct']} | "
                         f"{yes(s['worst_met'])} |")
            lines.append(f"{goals} {s['rows'] - s['beyond_spread']} of {s['rows']} | {s['not_counted']} |")
    return "\n".join(lines) + "\n"


def write(report, docs):
    m = report["machine"]
    with open(os.path.join(docs, "eval-table.json"), "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    with open(os.path.join(docs, "eval-table.md"), "w") as f:
        f.write(HEAD.format(**report["settings"]) + verdict(report)[0].upper() + verdict(report)[1:] +
                "\n\n" + summary_text(report) + "\n" +
                "\n".join(program_text(t) for t in report["programs"]) +
                f"\nMeasured {m['date']} in {m['seconds']} s: {m['cpu']}, {m['cpus']} CPUs, "
                f"{m['system']}, {m['c_library']}; load {m['load_before'][0]} before, "
                f"{m['load_after'][0]} after.\n")
