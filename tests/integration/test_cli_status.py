#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""status, targets, set, unset, policy, counters, version against a control socket of our own."""
import termios

from harness import *
from cli_fake import DAEMON, Fake, cpu, refuse, target
from cli_screen import Screen


def cli(fake, *words, **kw):
    return run([PCPTUNE, *words, "--socket", fake.socket], **kw)


def two():
    return {"daemon": DAEMON,
            "targets": [target(3, "page_fault1", [cpu(0), cpu(1, contend_pct=None)]),
                        target(9, "sqlite3", [cpu(5, pinned=True)], dry_run=True)]}


@test
def status_shows_every_value_of_every_cpu():
    r = cli(Fake(status=two()), "status")
    assert r.returncode == 0 and r.stderr == "", r
    lines = r.stdout.splitlines()
    assert lines[0].startswith("3 page_fault1  pid 4003  policy contention (running)  "
                               "held 256 pages (1.0 MiB)  contend% 2.25  decisions 7"), r.stdout
    assert lines[4] == "zone lock held for p50 511 ns, p99 2.0 us, at most 13.1 us", r.stdout
    assert lines[1].split() == ("zone cpu count high high_min high_max batch alloc_zone free_high "
                                "contend% mode").split(), r.stdout
    assert lines[2].split() == ("0 0 10 378 63 3780 63 1,234,567 3 2.50 locked").split(), r.stdout
    assert lines[3].split()[9] == "-", "CPU time not known"
    assert lines[6].startswith("9 sqlite3") and "DRY RUN" in lines[6] and "pinned 1" in lines[6]
    assert lines[8].endswith("locked pinned"), r.stdout
    assert "\x1b" not in r.stdout, "no colour on a pipe"


@test
def status_columns_are_aligned():
    lines = cli(Fake(status=two()), "status").stdout.splitlines()
    ends = [[m.end() for m in re.finditer(r"\S+", l)][:10] for l in lines[1:4]]
    assert ends[0] == ends[1] == ends[2], lines


@test
def status_json_is_the_answer_of_the_daemon():
    r = cli(Fake(status=two()), "status", "--json")
    assert json.loads(r.stdout) == two(), r
    assert len(r.stdout.splitlines()) == 1


@test
def words_that_can_not_be_sent_as_they_are_change_nothing():
    f = Fake(status=two(), set={"changed": 1, "decisions": [1]}, unset={"changed": 1},
             policy={"policy": "static"}, counters={})
    for words in (["status", "a\udcff"], ["counters", "a\udcff"], ["unset", "a\udcff"],
                  ["set", "a\udcff", "high=1"], ["policy", "a\udcff"], ["policy", "a", "p\udcff"],
                  ["policy", "a", "static", "high=\udcff"], ["policy", "a", "static", "\udcff=1"]):
        r = cli(f, *words, errors="surrogateescape")
        assert r.returncode == 2 and "UTF-8" in r.stderr and not r.stdout, (words, r)
    assert not [q for q in f.requests if q["cmd"] != "version"], f.requests


@test
def drift_is_exit_status_3_and_said():
    s = {"daemon": DAEMON, "targets": [target(1, "a", [cpu(0, drift=True)])]}
    r = cli(Fake(status=s), "status")
    assert r.returncode == 3 and "DRIFT 1" in r.stdout and "locked DRIFT" in r.stdout, r
    assert cli(Fake(status=s), "status", "-j").returncode == 3


@test
def a_target_is_asked_for_by_id_or_name():
    f = Fake(status=two())
    for word, sent in (("3", 3), ("sqlite3", "sqlite3")):
        cli(f, "status", word)
        assert f.requests[-1] == {"cmd": "status", "target": sent}, f.requests


@test
def errors_of_the_daemon_are_shown_with_their_exit_status():
    f = Fake(status=lambda r: refuse("not-found", 'no target "x"; targets: 3 page_fault1'))
    r = cli(f, "status", "x")
    assert r.returncode == 3 and r.stdout == "", r
    assert r.stderr == 'pcptune status: no target "x"; targets: 3 page_fault1\n', r
    f = Fake(set=lambda r: refuse("denied", "set needs uid 0"))
    r = cli(f, "set", "x", "high=5")
    assert r.returncode == 1 and "set needs uid 0" in r.stderr, r


@test
def no_daemon_is_said_clearly():
    for words in (["status"], ["targets"], ["set", "a", "high=9"], ["unset", "a"], ["policy"],
                  ["counters", "a"], ["status", "--watch"]):
        r = run([PCPTUNE, *words, "--socket", os.path.join(tmp(), "none")])
        assert r.returncode == 1 and r.stdout == "", r
        assert "no daemon" in r.stderr and "none" in r.stderr, r


@test
def no_targets_and_a_target_that_did_nothing():
    r = cli(Fake(status={"daemon": DAEMON, "targets": []}), "status")
    assert r.returncode == 0 and r.stdout.startswith("no targets"), r
    r = cli(Fake(status={"daemon": DAEMON, "targets": [target(1, "idle", [])]}), "status")
    assert "no CPU was used yet" in r.stdout, r


@test
def losses_of_the_log_and_a_dry_run_come_first():
    log = {**DAEMON["log"], "state": "lost", "lost_samples": 5, "lost_decisions": 2,
           "path": "/l.db", "error": "disk full"}
    s = {"daemon": {**DAEMON, "dry_run": True, "log": log}, "targets": []}
    out = cli(Fake(status=s), "status").stdout.splitlines()
    assert out[0].startswith("dry run") and "disk full; lost: samples 5, decisions 2" in out[1], out


@test
def a_policy_that_was_benched_is_said_with_the_cause():
    t = target(1, "a", [cpu(0)], policy_state="benched", why="contention broke its contract")
    r = cli(Fake(status={"daemon": DAEMON, "targets": [t]}), "status")
    assert "(benched)" in r.stdout and "BENCHED: contention broke its contract" in r.stdout, r


@test
def watch_without_a_terminal_repeats():
    f = Fake(status=two())
    r = cli(f, "status", "--watch", "0.1", "--count", "3")
    assert r.stdout.count("3 page_fault1") == 3 and len(f.requests) == 3, r
    r = cli(f, "status", "--watch=0.1", "--json", "-n", "2")
    assert len([json.loads(l) for l in r.stdout.splitlines()]) == 2, r
    assert cli(f, "status", "--watch=0").returncode == 2
    assert cli(f, "status", "--watch=x").returncode == 2


@test
def watch_ends_quietly_with_its_reader():
    f = Fake(status=two())
    p = spawn([PCPTUNE, "status", "--watch", "0.1", "--socket", f.socket], stdout=subprocess.PIPE,
              stderr=subprocess.PIPE)
    p.stdout.readline()
    p.stdout.close()
    p.wait(20 * SLOW)
    assert p.stderr.read() == "", "a closed pipe is no error message"


# ---- the live view, on a terminal of our own ----

def big():
    """CPU i: count falls, batch rises with i; contend% has its highest value at CPU 41."""
    cpus = [cpu(i, contend_pct=99.0 if i == 41 else 0.5, count=1000 - i, batch=i + 1)
            for i in range(64)]
    return {"daemon": DAEMON, "targets": [target(1, "worker", cpus)]}


def live(f, **kw):
    s = Screen(PCPTUNE, "status", "--watch", "0.2", "--socket", f.socket, **kw)
    s.wait("sorted by place")
    return s


def first_cpu(s):
    """The CPU of the first row below the head."""
    head = next(i for i, l in enumerate(s.lines) if re.search(r"id +target +zone +cpu", l))
    return int(s.lines[head + 1].split()[3])


def wait_first(s, n):
    def there():
        s.read()
        return first_cpu(s) == n
    there.__doc__ = f"CPU {n} in the first row"
    wait_for(there)


@test
def live_view_shows_what_status_shows():
    s = live(Fake(status=two()))
    s.wait("3 page_fault1  pid 4003  policy contention")
    s.wait("9 sqlite3 .* DRY RUN  pinned 1")
    s.wait(r"^ +3 page_fault1 +0 +1 +11 +378 +63 +3780 +63 +1,234,568 +3 +- locked *$")
    s.wait(r"^ +9 sqlite3 .* locked pinned *$")


@test
def live_view_sorts():
    s = live(Fake(status=big()))
    for key, by, first in (("%", "contend%", 41), ("b", "batch", 63), ("c", "count", 0),
                           ("a", "alloc_zone", 63), ("h", "high", 0), ("p", "place", 0)):
        s.keys(key)
        s.wait(f"sorted by {by} ")
        wait_first(s, first)


@test
def live_view_scrolls_within_bounds():
    s = live(Fake(status=big()))
    room = s.rows - 3
    s.keys("jj")
    wait_first(s, 2)
    s.keys("k")
    wait_first(s, 1)
    s.keys("\x1b[A\x1bOA")
    wait_first(s, 0)
    s.keys("kkk")
    s.read(0.2)
    assert first_cpu(s) == 0
    s.keys("j" * 100)
    wait_first(s, 64 - room)
    assert re.search(r" 63 +937 ", s.read()), "the last CPU is in the last row"


@test
def live_view_helps_and_quits():
    f = Fake(status=big())
    s = live(f)
    s.keys("?")
    s.wait("scroll by a line")
    s.keys("?")
    s.wait("worker +0 +3 ")
    s.keys("q")
    assert s.end() == 0
    assert len(f.requests) >= 1 and all(r["cmd"] == "status" for r in f.requests)


@test
def live_view_follows_a_resize():
    s = live(Fake(status=big()), rows=12)
    assert not re.search(r"worker +0 +40 ", s.read(0.5))
    s.resize(50, 130)
    s.wait(r"worker +0 +40 ")
    assert re.search("high_min high_max", s.read())
    s.resize(50, 80)
    s.wait(r"worker +0 +40 +960 +378 +41 +1,234,607 +0.50 locked")
    assert "high_min" not in s.read() and "contend% mode" in s.read(), "what matters most fits in 80"
    s.resize(3, 20)
    s.read(0.5)
    assert s.p.poll() is None, "a tiny terminal is no reason to end"
    s.keys("q")
    assert s.end() == 0


@test
def live_view_lays_out_by_what_matters():
    cpus = [cpu(0, contend_pct=12.5), cpu(1, drift=True), cpu(8, shared=True)]
    f = Fake(status={"daemon": DAEMON,
                     "targets": [target(3, "a-name-of-22-letters-x", cpus)]})
    for cols, there, gone in (
            (130, "id target zone cpu count high high_min high_max batch alloc_zone free_high "
                  "contend% mode", ""),
            (100, "id target zone cpu count high batch alloc_zone contend% mode",
             "high_min high_max free_high"),
            (60, "cpu count high batch alloc_zone contend% mode", "target high_min free_high"),
            (34, "cpu high contend% mode", "alloc_zone target count"),
            (19, "cpu high contend%", "mode count")):
        s = Screen(PCPTUNE, "status", "--watch", "0.2", "--socket", f.socket, cols=cols)
        s.wait(r"^ *(\d.* )?8( .*)? 378 ")
        assert ("sorted by place  ? helps" in s.lines[0]) == (cols >= 60), s.lines
        titles = next(l for l in s.lines if re.search(r"\bcpu\b.*\bhigh\b", l)).split()
        for word in there.split():
            assert word in titles, (cols, word, titles)
        for word in gone.split():
            assert word not in titles, (cols, word, titles)
        text = "\n".join(s.lines)
        if "mode" in there:
            assert re.search(r"locked DRIFT\b", text) and re.search(r"locked shared\b", text), text
        if cols >= 100:
            assert "a-name-of-22-letters-x " in s.lines[-1] + text.split("cpu", 1)[1], text
        # facts of the target: whole words only, on further lines where there is no room
        if cols >= 34:
            for fact in ("pid 4003", "policy contention (running)", "decisions 7", "DRIFT 1"):
                assert fact in text, (cols, fact, text)
        s.keys("m")
        if cols == 60:
            s.wait("high_min +high_max.*free_high")
            assert "contend%" in s.read(), s.lines
            s.keys("m")
            s.wait("count +high +batch")
        s.keys("q")
        assert s.end() == 0


@test
def the_shared_slot_and_the_words_of_the_mode_are_explained():
    f = Fake(status={"daemon": DAEMON, "targets": [target(3, "x", [cpu(0), cpu(8, shared=True)])]})
    r = cli(f, "status")
    assert re.search(r" 8 .* locked shared$", r.stdout, re.M), r
    assert not re.search(r"^ +0 +0 .* shared", r.stdout, re.M) and "locked:" not in r.stdout, r
    s = Screen(PCPTUNE, "status", "--socket", f.socket)
    s.wait("rseq: lists without a lock; locked: with one for each CPU; shared: ")
    assert s.end() == 0


@test
def live_view_survives_its_daemon_and_finds_the_next():
    f = Fake(status=big())
    s = live(f)
    s.wait("worker +0 +3 ")
    f.close()
    s.wait("no answer: .*; trying again")
    s.wait("worker +0 +3 ")
    g = Fake(status=two())
    os.link(g.socket + ".ctl", f.socket + ".ctl")
    defer(os.unlink, f.socket + ".ctl")
    s.wait("page_fault1 +0 +1 ")
    assert "no answer" not in s.read(0.3)


@test
def live_view_says_that_a_target_is_gone():
    f = Fake(status=lambda r: refuse("not-found", 'no target "x"'))
    s = Screen(PCPTUNE, "status", "x", "--watch", "--socket", f.socket)
    s.wait('no answer: no target "x"; trying again')
    s.keys("q")
    assert s.end() == 0


@test
def live_view_gives_the_terminal_back():
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        s = live(Fake(status=big()))
        assert not termios.tcgetattr(s.slave)[3] & termios.ECHO
        s.p.send_signal(sig)
        assert s.end() == 0, sig
        assert termios.tcgetattr(s.slave)[3] & termios.ECHO, "echo is on again"


@test
def a_terminal_that_can_do_nothing_is_refused():
    s = Screen(PCPTUNE, "status", "--watch", "--socket", Fake(status=big()).socket,
               term="no-such-terminal")
    assert s.end() == 1
    assert "TERM=no-such-terminal: not a terminal that can show" in s.read()


@test
def colour_is_for_terminals_and_not_with_no_color():
    f = Fake(status=two())
    s = Screen(PCPTUNE, "status", "--socket", f.socket, term="xterm")
    s.end()
    assert "\x1b[1m3 page_fault1" in s.raw, s.raw
    s = Screen(PCPTUNE, "status", "--socket", f.socket, term="xterm", env={"NO_COLOR": "1"})
    s.end()
    assert "3 page_fault1" in s.raw and "\x1b" not in s.raw, s.raw


# ---- the other verbs that ask the daemon ----

@test
def targets_lists_what_is_attached():
    t = [{"id": 3, "name": "page_fault1", "pid": 5, "uid": 0, "policy": "static",
          "attached_s": 2.5, "held_pages": 16, "decisions": 1}]
    f = Fake(targets={"targets": t})
    out = cli(f, "targets").stdout
    assert "3" in out and "page_fault1" in out and "16 pages (64.0 KiB)" in out, out
    assert json.loads(cli(f, "targets", "--json").stdout) == {"targets": t}
    assert cli(Fake(targets={"targets": []}), "targets").stdout == "no targets\n"


@test
def set_sends_numbers_and_places():
    f = Fake(set={"changed": 2, "decisions": [11, 12]})
    r = cli(f, "set", "web", "high=500", "batch=31", "rules=g1", "--cpu", "3", "--zone", "0")
    assert r.returncode == 0 and "2 CPUs" in r.stdout and "pcptune explain 11" in r.stdout, r
    sent = f.requests[-1]
    assert sent.pop("rules") == 1, "the id of g1"
    assert sent == {"cmd": "set", "target": "web", "zone": 0, "cpu": 3, "high": 500,
                    "batch": 31}, sent
    r = cli(f, "set", "3", "high=1", "--json")
    assert json.loads(r.stdout) == {"changed": 2, "decisions": [11, 12]}, r
    assert "cpu" not in f.requests[-1] and f.requests[-1]["target"] == 3


@test
def set_refuses_wrong_words_before_it_asks():
    f = Fake(set={"changed": 1, "decisions": []})
    for words, says in ((["hihg=3"], 'did you mean "high"'), (["high"], "not KEY=VALUE"),
                        (["high=x"], "not a number from 0"), (["batch=0"], "from 1 to 1024"),
                        (["batch=1025"], "from 1 to 1024"), (["=3"], "not KEY=VALUE"),
                        (["rules=g9"], "not one of g0, g1"), (["high=1", "high=2"], "given twice"),
                        (["high=-1"], "not a number from 0"), ([], "missing"),
                        (["high=1", "--cpu", "x"], "whole number")):
        r = cli(f, "set", "web", *words)
        assert r.returncode == 2 and says in r.stderr, (words, r)
    assert not f.requests


@test
def unset_gives_back():
    f = Fake(unset={"changed": 4})
    r = cli(f, "unset", "web", "-c", "1")
    assert r.returncode == 0 and "4 CPUs" in r.stdout, r
    assert f.requests == [{"cmd": "unset", "target": "web", "cpu": 1}]
    assert cli(f, "unset").returncode == 2


POLICY = {"policy": "contention", "version": "1.0", "params": {"up": 2, "grow": "x2"},
          "why": "rule 1", "state": "running"}


@test
def policy_shows_and_assigns():
    f = Fake(policy=POLICY, targets={"targets": [{"id": 3, "name": "web"}]})
    r = cli(f, "policy")
    assert r.returncode == 0 and "web" in r.stdout and "up=2 grow=x2" in r.stdout, r
    assert json.loads(cli(f, "policy", "-j").stdout)["targets"][0]["name"] == "web"
    r = cli(f, "policy", "web")
    assert "contention 1.0 (running)" in r.stdout and "rule 1" in r.stdout, r
    r = cli(f, "policy", "web", "static", "high=10", "batch=5")
    assert r.returncode == 0, r
    assert f.requests[-1] == {"cmd": "policy", "target": "web", "policy": "static",
                              "params": {"high": "10", "batch": "5"}}, f.requests[-1]
    n = len(f.requests)
    for words, says in ((["high"], "not KEY=VALUE"), (["a=1", "a=2"], "twice")):
        r = cli(f, "policy", "web", "static", *words)
        assert r.returncode == 2 and says in r.stderr, r
    assert len(f.requests) == n


@test
def policy_of_all_leaves_out_a_target_that_ended_meanwhile():
    f = Fake(targets={"targets": [{"id": 3, "name": "web"}, {"id": 4, "name": "gone"}]},
             policy=lambda r: POLICY if r["target"] == 3 else refuse("not-found", "no target 4"))
    r = cli(f, "policy")
    assert r.returncode == 0 and "web" in r.stdout and "gone" not in r.stdout, r


@test
def counters_of_a_target():
    f = Fake(counters={"target": 3, "proc": {"forks": 2},
                       "zones": [{"id": 0, "managed_pages": 4096,
                                  "cpus": [{"cpu": 0, "alloc_zone": 1000, "high": 378},
                                           {"cpu": 4, "alloc_zone": 500, "high": 63}]}]})
    out = cli(f, "counters", "3").stdout
    assert re.search(r"alloc_zone +pages +1,500 +pages taken from the zone", out), out
    assert re.search(r"managed_pages +pages +4,096 ", out) and re.search(r"forks +count +2 ", out)
    out = cli(f, "counters", "3", "--cpus").stdout
    assert re.search(r"alloc_zone +pages +1,500 +1,000 +500 ", out), out
    assert re.search(r"^high +pages +378 +63 ", out, re.M), "a sum of gauges means nothing"
    assert json.loads(cli(f, "counters", "3", "-j").stdout)["proc"] == {"forks": 2}


@test
def version_with_and_without_a_daemon():
    f = Fake()
    out = cli(f, "version").stdout
    assert out.startswith("pcptune 0.") and "pcptuned 0.1.0, pid 77" in out, out
    j = json.loads(cli(f, "version", "--json").stdout)
    assert j["cli"] and j["daemon"] == DAEMON, j
    none = os.path.join(tmp(), "none")
    r = run([PCPTUNE, "version", "--json", "--socket", none])
    assert r.returncode == 0 and json.loads(r.stdout)["daemon"] is None, r
    assert run([PCPTUNE, "--version", "--socket", none]).stdout.count("no daemon") == 1


main()
