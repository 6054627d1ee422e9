# SPDX-License-Identifier: MIT
"""What bench/peers_run measured, as one report: bench.json, bench.md, text, and a chart.

build() makes the report from the figures; every ratio and every yes or no is computed there, from
the medians that the report holds, and nothing else in this file computes any. The others only show:
text() the tables, write() the files.
"""
import json
import os
import platform
import statistics
import subprocess
import time

import peers_svg

QUANTILES = ["p50", "p99", "p99.9", "max"]
METRICS = {"ns": "Time, ns a pair", "cpu_ns": "CPU time of the process, ns a pair"}
APART = ("latency64", "resident")  # patterns with tables of their own


# ---- the machine ----

def first_line(cmd):
    try:
        r = subprocess.run(cmd, capture_output=True, text=True)
    except OSError:
        return None
    return r.stdout.splitlines()[0].strip() if r.returncode == 0 and r.stdout.strip() else None


def cpu_model():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith(("model name", "Model", "Processor")):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_mib():
    with open("/proc/meminfo") as f:
        return int(f.readline().split()[1]) // 1024


def virtual():
    with open("/proc/cpuinfo") as f:
        return any(line.startswith("flags") and " hypervisor" in line for line in f)


def machine(build_dir, load_before, began):
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began)),
        "seconds": round(time.time() - began),
        "cpu": cpu_model(), "cpus": len(os.sched_getaffinity(0)), "virtual": virtual(),
        "memory_mib": memory_mib(), "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(), "c_library": os.confstr("CS_GNU_LIBC_VERSION"),
        "compiler": first_line([os.environ.get("CC", "gcc"), "--version"]),
        "build": os.path.basename(build_dir),
        "load_before": [round(v, 2) for v in load_before],
        "load_after": [round(v, 2) for v in os.getloadavg()],
    }


def package_version(name):
    v = first_line(["dpkg-query", "-W", "-f", "${Version}", name])
    return v or None


# ---- figures ----

def spread(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4)}


def ratio(a, b):
    return round(a / b, 4) if b else None


def result(rows):
    r = {key: spread([row[key] for row in rows]) for key in ("ns", "cpu_ns", "cpu_share",
                                                        "faults_per_1000")}
    r["values_ns"] = [row["ns"] for row in rows]
    if any("same_cpu_pct" in row for row in rows):
        r["same_cpu_pct"] = spread([row.get("same_cpu_pct", 0) for row in rows])
    if all("alloc_zone" in row for row in rows):
        r["zone_per_1000"] = spread([1000 * row["alloc_zone"] / row["asked_pages"] for row in rows])
    return r


def compare(results, subjects, told):
    """Adds the ratios to results, in place; returns (best peer, {ours: ahead of every peer?}).

    told(result) is the figure that is compared; less is better.
    """
    kind = {s["name"]: s["kind"] for s in subjects}
    peers = [n for n in results if kind[n] == "peer"]
    best = min(peers, key=lambda n: told(results[n])) if peers else None
    for r in results.values():
        r["to_rseq"] = ratio(told(r), told(results["rseq"])) if "rseq" in results else None
        r["to_best_peer"] = ratio(told(r), told(results[best])) if best else None
    ahead = {n: all(told(results[n]) < told(results[p]) for p in peers)
             for n in results if kind[n] == "ours" and peers}
    return best, ahead


def pattern_entry(p, rows, failed, subjects, metric):
    entry = {**p, "results": {n: result(r) for n, r in rows.items() if r},
             "failed": {s: why for (q, s), why in failed.items() if q == p["name"]}}
    entry["best_peer"], entry["ahead"] = compare(entry["results"], subjects,
                                                 lambda r: r[metric]["median"])
    return entry


def latency(rows, subjects):
    results = {n: {q: spread([row["latency_ns"][q] for row in r]) for q in QUANTILES}
               for n, r in rows.items() if r}
    best, ahead = compare(results, subjects, lambda r: r["p99.9"]["median"])
    return {"results": results, "best_peer_p99.9": best, "ahead_p99.9": ahead}


def memory(rows, subjects):
    results = {n: dict(r[0]["resident_kib"]) for n, r in rows.items() if r}
    best, ahead = compare(results, subjects, lambda r: r["after"])
    return {"results": results, "best_peer_after": best, "ahead_after": ahead}


def columns(report):
    """What is asked of each of ours: [(text, best peer, {subject: ratio to it}, {subject: ahead})]."""
    out = [(p["text"], p["best_peer"], p["results"], p["ahead"]) for p in report["patterns"]]
    if "latency" in report:
        lat = report["latency"]
        out.append(("single calls, 64 threads: p99.9", lat["best_peer_p99.9"], lat["results"],
                    lat["ahead_p99.9"]))
    return [{"text": text, "best_peer": best, "ahead": ahead,
             "to_best_peer": {n: results[n]["to_best_peer"] for n in ahead}}
            for text, best, results, ahead in out if best]


def ahead_of_all(report):
    """{ours: {columns: n, ahead: n, not_in: [text]}}"""
    out = {}
    for c in report["columns"]:
        for n, ahead in c["ahead"].items():
            row = out.setdefault(n, {"columns": 0, "ahead": 0, "not_in": []})
            row["columns"] += 1
            row["ahead"] += ahead
            if not ahead:
                row["not_in"].append(c["text"])
    return out


def build(subjects, patterns, got, skipped, failed, settings, machine):
    told = []
    for s in subjects:
        row = {k: s.get(k) for k in ("name", "title", "kind", "mode", "page_aligned_pct")}
        row["package"] = s.get("package")
        row["other_mode"] = "env" in s
        row["version"] = package_version(s["package"]) if s.get("package") else None
        if s["name"] in skipped:
            row["skipped"] = skipped[s["name"]]
        told.append(row)
    metric = "cpu_ns" if settings["metric"] == "cpu" else "ns"
    report = {"machine": machine, "settings": settings, "subjects": told, "patterns": [
        pattern_entry(p, got[p["name"]], failed, subjects, metric) for p in patterns
        if p["name"] not in APART]}
    if "latency64" in got:
        report["latency"] = latency(got["latency64"], subjects)
    if "resident" in got:
        report["resident"] = memory(got["resident"], subjects)
    report["columns"] = columns(report)
    report["ahead_of_every_peer"] = ahead_of_all(report)
    return report


# ---- tables ----

def figure(v):
    if v is None:
        return "-"
    return f"{v:.1f}" if abs(v) < 99.95 else f"{v:,.0f}"


def times(v):
    return "-" if v is None else f"{v:.2f}" if v < 99.995 else f"{v:,.0f}"


def between(s):
    return f"{figure(s['median'])} ({figure(s['min'])} to {figure(s['max'])})"


def yes(v):
    return "-" if v is None else "yes" if v else "no"


def table(head, rows):
    rows = [[str(c) for c in r] for r in rows]
    width = [max(len(r[i]) for r in [head] + rows) for i in range(len(head))]
    def line(cells):
        return "| " + " | ".join(c.ljust(width[i]) if i == 0 else c.rjust(width[i])
                                 for i, c in enumerate(cells)) + " |"
    rule = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(width)) + "|"
    return "\n".join([line(head), rule] + [line(r) for r in rows])


def shown(report, where):
    """Subjects with a result in one of these result dictionaries, in order."""
    return [s for s in report["subjects"] if any(s["name"] in r for r in where)]


def metric_of(report):
    return "cpu_ns" if report["settings"]["metric"] == "cpu" else "ns"


def main_table(report, cell):
    """A row for each pattern, a column for each subject."""
    general = report["patterns"]
    cols = shown(report, [p["results"] for p in general])
    return table(["pattern"] + [s["title"] for s in cols],
                 [[p["text"]] + [cell(p["results"][s["name"]]) if s["name"] in p["results"]
                                 else "-" for s in cols] for p in general])


def medians(report, key):
    return main_table(report, lambda r: figure(r[key]["median"]))


def spreads(report):
    return main_table(report, lambda r: f"{figure(r[metric_of(report)]['min'])} to "
                                        f"{figure(r[metric_of(report)]['max'])}")


def summary(report):
    """One line for each of ours, then a table: is it ahead of every peer, and at what ratio?"""
    subjects = [s for s in report["subjects"] if s["name"] in report["ahead_of_every_peer"]]
    title = {s["name"]: s["title"] for s in report["subjects"]}
    lines, rows = [], []
    for s in subjects:
        a = report["ahead_of_every_peer"][s["name"]]
        rest = f" (not: {'; '.join(a['not_in'])})" if a["not_in"] else ""
        lines.append(f"- {s['title']}: ahead of every peer: {yes(not a['not_in'])}, in {a['ahead']} "
                     f"of {a['columns']}{rest}")
    for c in report["columns"]:
        rows.append([c["text"], title[c["best_peer"]]] +
                    [f"{yes(c['ahead'][s['name']])} {times(c['to_best_peer'][s['name']])}"
                     if s["name"] in c["ahead"] else "-" for s in subjects])
    return "\n".join(lines) + "\n\n" + table(
        ["ahead of every peer, x best peer", "best peer"] + [s["title"] for s in subjects], rows)


def verdicts(report):
    """For each subject of ours: a row for each pattern with ratios and yes or no."""
    title = {s["name"]: s["title"] for s in report["subjects"]}
    key, parts = metric_of(report), []
    for s in shown(report, [p["results"] for p in report["patterns"]]):
        if s["kind"] != "ours":
            continue
        rows = []
        for p in report["patterns"]:
            r, best = p["results"].get(s["name"]), p["best_peer"]
            if r:
                rows.append([p["text"], between(r[key]), times(r["to_rseq"]),
                             f"{title[best]} {between(p['results'][best][key])}" if best else "-",
                             times(r["to_best_peer"]), yes(p["ahead"].get(s["name"]))])
        parts.append(f"{s['title']}:\n\n" + table(
            ["pattern", "ns", "x rseq stack", "best peer", "x best peer", "ahead of every peer"],
            rows))
    return "\n\n".join(parts)


def latencies(report):
    lat = report["latency"]
    rows = [[s["title"]] + [figure(lat["results"][s["name"]][q]["median"]) for q in QUANTILES] +
            [yes(lat["ahead_p99.9"].get(s["name"]))] for s in shown(report, [lat["results"]])]
    return table(["single calls, ns"] + QUANTILES + ["p99.9 ahead of every peer"], rows)


def residents(report):
    mem = report["resident"]
    rows = []
    for s in shown(report, [mem["results"]]):
        r = mem["results"][s["name"]]
        rows.append([s["title"]] + [figure(r[k] / 1024) for k in ("start", "peak", "freed", "after")]
                    + [yes(mem["ahead_after"].get(s["name"]))])
    return table(["resident, MiB", "at start", "peak", "all freed", "after rest",
                  "least after rest"], rows)


def faults(report):
    return main_table(report, lambda r: figure(r["faults_per_1000"]["median"]))


def subject_rows(report):
    rows = []
    for s in report["subjects"]:
        state = f"left out: {s['skipped']}" if "skipped" in s else "measured"
        aligned = s["page_aligned_pct"]
        rows.append([s["title"], s["kind"], f"{s['package']} {s['version']}" if s["version"] else
                     s["mode"] or "-", "-" if aligned is None else f"{aligned:.0f} %", state])
    return table(["subject", "kind", "package or mode", "malloc(4096) at a page start", "state"],
                 rows)


def failures(report):
    return [f"{p['text']}, {s}: {why}" for p in report["patterns"]
            for s, why in p["failed"].items()]


def sections(report):
    """(heading, text, table) in order."""
    key = metric_of(report)
    other = "ns" if key == "cpu_ns" else "cpu_ns"
    out = []
    if report["columns"]:
        out.append(("Ahead of every peer: yes or no", f"Compared is: {METRICS[key]}; of single "
                    "calls p99.9.", summary(report)))
    if report["patterns"]:
        out.append((f"{METRICS[key]}, medians", None, medians(report, key)))
    if "latency" in report:
        out.append(("Single calls, 64 threads", "The row \"the clock alone\" is what reading the "
                    "clock twice costs; it is in every other row, too. The greatest values are those "
                    "of the scheduler: a thread that lost its CPU within a call.",
                    latencies(report)))
    if "resident" in report:
        idle = report["settings"]["idle"]
        out.append(("Memory", f"Bursts of 128 MiB, every page touched, all freed, then {idle:g} s "
                    "without a call.", residents(report)))
    if report["patterns"]:
        out += [("Ours one by one", "Medians, with the least and the greatest of the rounds.",
                 verdicts(report)),
                (f"{METRICS[other]}, medians", None, medians(report, other)),
                ("Least and greatest of the rounds", None, spreads(report)),
                ("Page faults in 1000 pairs, medians", None, faults(report))]
    out.append(("Subjects", None, subject_rows(report)))
    return out


def same_cpu(report):
    """How often the two threads of a pattern were seen on one CPU, over all subjects."""
    rows = []
    for p in report["patterns"]:
        got = [r["same_cpu_pct"] for r in p["results"].values() if "same_cpu_pct" in r]
        if got:
            rows.append(f"{p['text']}: {max(s['max'] for s in got):.1f} % of looks at most")
    return "; ".join(rows)


def share_line(report):
    """How much of the CPU time that was there the bare stacks, which never wait, really got."""
    limits = {s["name"] for s in report["subjects"] if s["kind"] == "limit"}
    got = [r["cpu_share"][k] for p in report["patterns"] for n, r in p["results"].items()
           if n in limits for k in ("median", "min")]
    if not got:
        return ""
    return (f"The bare stacks, which never wait, got {100 * statistics.median(got[::2]):.0f} % of "
            f"the CPU time (median; least {100 * min(got[1::2]):.0f} %): the rest went to others on "
            "this machine, and times are longer by about as much.")


def machine_line(report):
    m = report["machine"]
    kind = "virtual machine" if m["virtual"] else "machine"
    return (f"{m['date']}, {kind}, {m['cpus']} CPUs {m['cpu']}, {m['memory_mib']:,} MiB, "
            f"{m['system']} {m['architecture']}, {m['c_library']}, {m['compiler']}, build "
            f"{m['build']}. Load average before {m['load_before'][0]}, after {m['load_after'][0]} "
            "(of one minute; the benchmark itself is in the latter).")


def settings_line(report):
    s = report["settings"]
    by = f"`{s['command']}`: " if s.get("command") else ""
    return (f"{by}{s['rounds']} rounds, {s['time']:g} ms each after {s['warm']:g} ms of warm-up "
            f"({s['daemon_warm']:g} ms with a daemon), {report['machine']['seconds']} s in all.")


def text(report):
    lines = [machine_line(report), settings_line(report), share_line(report)]
    for head, words, body in sections(report):
        lines += ["", f"{head}", ""] + ([words, ""] if words else []) + [body]
    if same_cpu(report):
        lines += ["", f"Two threads on one CPU: {same_cpu(report)}."]
    if failures(report):
        lines += ["", "Not measured:"] + failures(report)
    return "\n".join(lines)


HOW = """# Beside other allocators

Written by `make bench` from the run described below; every figure, ratio and verdict is computed
from `bench.json`, which has all rounds. Do not edit.

![chart](bench.svg)

## How it is measured

    make bench                                # everything, about 11 minutes; rewrites this file
    BENCH_QUICK=1 make bench                  # below a minute, into build/release/bench-quick
    bench/peers_run --patterns pair,cycle128 --subjects api,preload,gperftools,rseq --out /tmp/x

One pair is a block taken and given back. Each figure is from a process of its own (`bench/peers`);
within a round all subjects take turns in a pattern, and each round begins with another subject.
Absolute figures are of this machine: compare ratios.

- Everybody is asked for 4096 bytes (orders 0 to 3: 4096 to 32768) by `malloc`, which is what
  programs do; the pattern with `aligned_alloc(4096, 4096)` asks peers for what our API always gives.
  Every peer here has that call. The last table says whose plain blocks begin at a page anyway.
- Time is CPU time that was there to be used: time x threads that can run at once / pairs; for
  producer and consumer the time from block to block. CPU time is what all threads of the process
  really used: steadier where others use the machine, blind to waiting. `--metric` chooses which is
  compared.
- Producer and consumer hand blocks over through a ring of 1024 places. "Orders 0 to 3 mixed" keeps
  256 live blocks and replaces them in a fixed random order.
- The calls of the API go through the dynamic linker, but not through a stub of the program as those
  of malloc do (an attribute in `pcpalloc.h` asks for that). The inline API (`pcpalloc_inline.h`) and
  the bare stacks are inlined; the latter are limits, not allocators. "rseq stack, called" is one
  behind functions of a shared library: what calls cost that go there, however little is done, and
  so the limit of every allocator that is such a library. Counters and statistics of ours are on in
  every run, and each run fails when they count less than was asked for.
- The compiler can not see into the blocks, so no pair is removed. Only patterns that say "touched"
  write to the blocks: one store a page, the same for all. LIFO unless FIFO is said.
- Ours has two other modes: lists under a lock (`PCPALLOC_MODE=locked`: where the system has no
  restartable sequences), and lists that find a wrong free at once (`PCPALLOC_CHECK=1`: locked, too).
- "Our high 200" and "our high 64" keep our lists that short, so that they overflow in every burst;
  what stands there for the others is the pattern itself.
- Warm-up comes before the timing in each thread, threads start before it and wait for each other.
  Page faults that happen all the same are an allocator's own doing, and are told.
- Two threads are bound to two CPUs. Other numbers of threads are left to the scheduler.
- Ours runs without a daemon (`PCPTUNE_SOCKET=`), and a second time with one and its policy
  `contention` at its defaults.
"""


def markdown(report):
    lines = [HOW, "## This run", "", machine_line(report), "", settings_line(report)]
    if share_line(report):
        lines += ["", share_line(report)]
    if same_cpu(report):
        lines += ["", f"Two threads on one CPU: {same_cpu(report)}."]
    if failures(report):
        lines += ["", "Not measured: " + "; ".join(failures(report)) + "."]
    for head, words, body in sections(report):
        lines += ["", f"## {head}", ""] + ([words, ""] if words else []) + [body]
    return "\n".join(lines) + "\n"


def write(report, where):
    for name, content in (("bench.json", json.dumps(report, indent=1) + "\n"),
                          ("bench.md", markdown(report)),
                          ("bench.svg", peers_svg.chart(report))):
        path = os.path.join(where, name)
        with open(path + ".new", "w") as f:
            f.write(content)
        os.replace(path + ".new", path)
