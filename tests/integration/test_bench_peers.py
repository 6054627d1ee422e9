#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/peers_run with tiny counts: the shape of its report, and that ratios follow from figures."""
import statistics
import xml.dom.minidom

from harness import *

PEERS = os.path.join(BENCH, "peers")
RUN = os.path.join(ROOT, "bench/peers_run")
TINY = ["--rounds", "3", "--time", "4", "--warm", "2", "--daemon-warm", "300", "--idle", "0.2"]
SUBJECTS = "api,preload,tls,rseq,trylock,glibc,clock"


def compare(*args, expect=0):
    """A report by peers_run in a directory of its own, with the files beside it."""
    out = tmp()
    r = run([sys.executable, RUN, "--out", out, *TINY, *args], env={"B": B})
    assert r.returncode == expect, r
    files = {}
    for name in ("bench.json", "bench.md", "bench.svg"):
        with open(os.path.join(out, name)) as f:
            files[name] = f.read()
    return json.loads(files["bench.json"]), files, r


def one(*args, env=None):
    r = run([PEERS, *args], env={"PCPTUNE_SOCKET": "", **(env or {})})
    assert r.returncode == 0, r
    return json.loads(r.stdout)


def is_spread(s):
    return s["min"] <= s["median"] <= s["max"]


@test
def a_report_has_every_figure_and_its_ratios_follow_from_them():
    requires_release()
    rep, files, r = compare("--patterns", "pair,burst32,burst256,burst256-aligned,mixed,threads2",
                            "--subjects", SUBJECTS)
    assert [p["name"] for p in rep["patterns"]] == ["pair", "burst32", "burst256",
                                                    "burst256-aligned", "mixed", "threads2"]
    kinds = {s["name"]: s["kind"] for s in rep["subjects"]}
    for p in rep["patterns"]:
        res = p["results"]
        assert set(res) >= {"api", "preload", "tls", "trylock", "glibc"}, p
        assert "clock" not in res
        for name, got in res.items():
            assert len(got["values_ns"]) == 3 and is_spread(got["ns"]) and is_spread(got["cpu_ns"])
            assert 0 < got["cpu_share"]["median"] < 1.5, got
            assert got["ns"]["median"] == round(statistics.median(got["values_ns"]), 4) > 0
            assert got["ns"]["max"] == round(max(got["values_ns"]), 4)
            if "rseq" in res:
                want = got["ns"]["median"] / res["rseq"]["ns"]["median"]
                assert abs(got["to_rseq"] - want) <= 1e-4 * max(1, want), (name, got)
            want = got["ns"]["median"] / res[p["best_peer"]]["ns"]["median"]
            assert abs(got["to_best_peer"] - want) <= 1e-4 * max(1, want), (name, got)
        peers = [res[n]["ns"]["median"] for n in res if kinds[n] == "peer"]
        assert set(p["ahead"]) == {"api", "preload"}
        for ours, ahead in p["ahead"].items():
            assert ahead == (res[ours]["ns"]["median"] < min(peers)), p
    for ours, title in (("api", "our API"), ("preload", "our preload")):
        not_in = [p["text"] for p in rep["patterns"] if not p["ahead"][ours]]
        assert rep["ahead_of_every_peer"][ours] == {"columns": 6, "ahead": 6 - len(not_in),
                                                    "not_in": not_in}
        line = (f"- {title}: ahead of every peer: {'no' if not_in else 'yes'}, in "
                f"{6 - len(not_in)} of 6" + (f" (not: {'; '.join(not_in)})" if not_in else ""))
        assert line + "\n" in files["bench.md"] and line + "\n" in r.stdout, line
    for c, p in zip(rep["columns"], rep["patterns"]):
        assert (c["text"], c["best_peer"], c["ahead"]) == (p["text"], p["best_peer"], p["ahead"])
        assert c["to_best_peer"] == {n: p["results"][n]["to_best_peer"] for n in p["ahead"]}
    two = rep["patterns"][-1]["results"]["api"]["same_cpu_pct"]
    assert is_spread(two)
    if len(os.sched_getaffinity(0)) > 1:
        assert two["max"] == 0, two
    assert "load_before" in rep["machine"] and rep["settings"]["rounds"] == 3


@test
def the_chart_is_well_formed_and_has_a_mark_for_each_result():
    requires_release()
    rep, files, _ = compare("--patterns", "pair,burst32", "--subjects", "api,tls,glibc")
    doc = xml.dom.minidom.parseString(files["bench.svg"])
    titles = [t.firstChild.data for t in doc.getElementsByTagName("title")]
    assert len(titles) == sum(len(p["results"]) for p in rep["patterns"]) == 6, titles
    assert "prefers-color-scheme:dark" in files["bench.svg"]


@test
def latencies_and_memory_are_tables_of_their_own():
    requires_release()
    rep, files, _ = compare("--patterns", "latency64,resident", "--subjects", "api,glibc,clock",
                            "--rounds", "1")
    assert rep["patterns"] == []
    assert [c["text"] for c in rep["columns"]] == ["single calls, 64 threads: p99.9"]
    assert rep["columns"][0]["ahead"] == rep["latency"]["ahead_p99.9"]
    lat, mem = rep["latency"], rep["resident"]
    assert set(lat["results"]) == {"api", "glibc", "clock"} and set(mem["results"]) == {"api",
                                                                                         "glibc"}
    for r in lat["results"].values():
        m = [r[q]["median"] for q in ("p50", "p99", "p99.9", "max")]
        assert 0 < m[0] and m == sorted(m), r
    assert lat["ahead_p99.9"] == {"api": lat["results"]["api"]["p99.9"]["median"] <
                                  lat["results"]["glibc"]["p99.9"]["median"]}
    for r in mem["results"].values():
        assert r["start"] < r["peak"] and r["after"] <= r["peak"] and r["peak"] > 128 * 1024, r
    assert "the clock alone" in files["bench.md"] and "after rest" in files["bench.md"]


@test
def a_fixed_high_is_ours_alone_and_the_others_lend_their_figures():
    requires_release()
    rep, _, _ = compare("--patterns", "threads64,threads64-high64", "--subjects",
                        "api,preload,api-checked,tls,glibc", "--rounds", "1")
    plain, high = rep["patterns"]
    assert high["high"] == 64 and set(high["results"]) == {"api", "preload", "tls", "glibc"}
    for n in ("tls", "glibc"):
        assert high["results"][n]["values_ns"] == plain["results"][n]["values_ns"], n
    for n in ("api", "preload"):
        zone = [p["results"][n]["zone_per_1000"]["median"] for p in (plain, high)]
        assert zone[0] < 100 < zone[1], zone
    rep, _, _ = compare("--patterns", "threads64-high64", "--subjects", "api,tls", "--rounds", "1")
    assert set(rep["patterns"][0]["results"]) == {"api", "tls"}, "nobody to borrow from"


@test
def a_peer_that_is_not_there_is_left_out_with_the_reason():
    requires_release()
    rep, files, r = compare("--patterns", "pair", "--lib-dir", tmp(), "--rounds", "1", "--subjects",
                            "api,glibc,jemalloc,gperftools,mimalloc,tbbmalloc")
    skipped = {s["name"]: s["skipped"] for s in rep["subjects"] if "skipped" in s}
    assert set(skipped) == {"jemalloc", "gperftools", "mimalloc", "tbbmalloc"}, skipped
    for s in rep["subjects"]:
        if "skipped" in s:
            assert f"(package {s['package']})" in s["skipped"], s
            assert f"left out: {s['skipped']}" in files["bench.md"]
    assert set(rep["patterns"][0]["results"]) == {"api", "glibc"}


@test
def the_api_is_measured_under_a_daemon_that_attached():
    requires_release()
    # long enough for it to see the program on a machine with other work
    rep, _, _ = compare("--patterns", "burst256", "--subjects", "api,api-daemon,glibc", "--rounds",
                        "1", "--daemon-warm", "3000")
    assert set(rep["patterns"][0]["results"]) == {"api", "api-daemon", "glibc"}


@test
def the_other_metric_is_compared_when_asked_for():
    requires_release()
    rep, files, _ = compare("--patterns", "pair", "--subjects", "api,rseq,glibc", "--metric", "cpu")
    res = rep["patterns"][0]["results"]
    want = res["api"]["cpu_ns"]["median"] / res["glibc"]["cpu_ns"]["median"]
    assert abs(res["api"]["to_best_peer"] - want) <= 1e-4 * max(1, want)
    assert "Compared is: CPU time of the process" in files["bench.md"]


@test
def no_round_begins_that_the_budget_has_no_time_for():
    requires_release()
    rep, _, r = compare("--patterns", "pair", "--subjects", "tls", "--budget", "0")
    assert rep["settings"]["rounds"] == 1 and "no time for round 2 of 3" in r.stderr, r


@test
def a_setting_that_the_library_does_not_have_is_no_subject():
    requires_release()
    with open(os.path.join(B, "lib/libpcpalloc.so"), "rb") as f:
        known = b"PCPALLOC_CHECK\0" in f.read()
    rep, _, _ = compare("--patterns", "pair", "--subjects", "tls,api,api-checked", "--rounds", "1")
    row = next(s for s in rep["subjects"] if s["name"] == "api-checked")
    assert ("skipped" in row) == (not known), row
    assert ("api-checked" in rep["patterns"][0]["results"]) == known


@test
def unknown_names_are_refused():
    for option, what in (("--patterns", "pattern"), ("--subjects", "subject")):
        r = run([sys.executable, RUN, "--out", tmp(), option, "pair,nonsense"], env={"B": B})
        assert r.returncode == 1 and f"no such {what}: nonsense" in r.stderr, r
    for args in (["--pattern", "nonsense"], ["--pattern", "pair"], ["--api", "pcpa"], ["--time", "0"],
                 ["--pattern", "exchange", "--api", "tls", "--threads", "3"],
                 ["--pattern", "pair", "--api", "tls", "more"], ["--nonsense"],
                 ["--high", "1k"]):
        r = run([PEERS, *args])
        assert r.returncode == 3 and r.stderr and not r.stdout, (args, r)


@test
def every_page_that_was_asked_for_is_counted():
    listed = json.loads(run([PEERS, "--list"]).stdout)
    assert len(listed) >= 18
    for p in listed:
        if p["name"] in ("burst32768-touch", "cycle128"):
            continue  # long under a sanitizer, and nothing new
        threads = min(p["threads"], 64 if SLOW == 1 else 8)
        got = one("--pattern", p["name"], "--api", "pcpa", "--time", "2", "--warm", "1", "--idle",
                  "0", "--threads", str(threads))
        assert got["counted_pages"] == got["asked_pages"] > 0, got
        assert got["pairs"] > 0 and got["threads"] == threads, got
        assert got["mode"] in ("locked", "rseq") and got["attached"] is False
        r = run([PEERS, "--pattern", p["name"], "--api", "inline", "--time", "2", "--warm", "1",
                 "--idle", "0", "--threads", str(threads)], env={"PCPTUNE_SOCKET": ""})
        if r.returncode == 2 and "no inline pair" in r.stderr:
            continue
        got = json.loads(r.stdout)
        assert r.returncode == 0 and got["counted_pages"] == got["asked_pages"] > 0, got


@test
def the_compiler_removes_no_pair_of_malloc_and_free():
    requires_release()
    for p in ("pair", "burst32", "mixed", "threads2"):
        got = one("--pattern", p, "--api", "malloc", "--time", "5", env={"LD_PRELOAD": PRELOAD})
        assert got["malloc_from"] == PRELOAD and got["counted_pages"] >= got["asked_pages"] > 0, got


@test
def memory_that_runs_out_is_a_failure_not_a_figure():
    requires_release()
    r = run(["sh", "-c", 'ulimit -v 90000; exec "$0" --pattern cycle128 --api malloc', PEERS])
    assert r.returncode == 1 and "memory ran out" in r.stderr and not r.stdout, r


@test
def what_does_not_end_in_time_is_told_and_a_report_written_all_the_same():
    requires_release()
    rep, files, r = compare("--patterns", "burst256", "--subjects", "api,tls", "--time", "3000",
                            "--timeout", "1", "--idle", "0", expect=1)
    assert "peers_run: api" in r.stderr and "not done within 1 s" in r.stderr, r
    assert rep["patterns"][0]["results"] == {} and "not done within 1 s" in files["bench.md"]
    xml.dom.minidom.parseString(files["bench.svg"])


@test
def a_fixed_high_sends_bursts_to_the_zone():
    small = one("--pattern", "burst256", "--api", "pcpa", "--high", "64", "--time", "20")
    large = one("--pattern", "burst256", "--api", "pcpa", "--high", "1024", "--time", "20")
    assert small["alloc_zone"] / small["asked_pages"] > 0.1, small
    assert large["alloc_zone"] <= 2 * 1024, large  # filled once, however long the run


@test
def without_restartable_sequences_the_bare_stack_says_so():
    r = run([PEERS, "--pattern", "pair", "--api", "rseq"],
            env={"GLIBC_TUNABLES": "glibc.pthread.rseq=0"})
    assert r.returncode == 2 and "restartable sequences" in r.stderr and not r.stdout, r


@test
def page_fault1_takes_no_word_for_an_option():
    for words in (["3"], ["--threads", "0"], ["--nosuch"]):
        r = run([os.path.join(BENCH, "page_fault1"), *words])
        assert r.returncode == 2 and r.stderr and not r.stdout, (words, r)


main()
