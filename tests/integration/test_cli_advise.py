#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""advise, apply and revert against a daemon."""
from daemon_fake import *


def cli(d, *words):
    return run([PCPTUNE, *words, "--socket", d.socket], env={"PCPTUNE_POLICY_PATH": POLICIES})


def target(d):
    return d.ctl("status")["targets"][0]


def highs(d):
    return [c["high"] for c in target(d)["zones"][0]["cpus"]]


def batches(d):
    return [c["batch"] for c in target(d)["zones"][0]["cpus"]]


def pinned(d):
    return [c["pinned"] for c in target(d)["zones"][0]["cpus"]]


def advised(d, name="web"):
    """Advice on a target whose policy leaves everything alone; retried until the log has enough."""
    def some():
        """advice with rows"""
        r = cli(d, "advise", name, "--json")
        assert r.returncode in (0, 3), r
        j = json.loads(r.stdout) if r.stdout else {}
        return j if len(j.get("rows", ())) == 4 else None
    return wait_for(some, timeout=30, step=0.3)


def start(**keys):
    d = Daemon(default={"policy": "static", "params": {"keep": True}}, **keys)
    return d, Fake(d, cpus=4, name="web")


@test
def advice_is_applied_and_taken_back():
    d, f = start()
    before = highs(d)
    j = advised(d)
    assert j["policy"] == "knee" and j["target"] == {"name": "web", "pid": f.proc.pid}, j
    assert j["then_least_per_s"] <= j["then_per_s"] <= j["then_most_per_s"], j
    assert j["high_now"] == sum(before) and j["high_then"] == sum(
        r["then"]["high"] for r in j["rows"]), j
    assert all(r["why"] and not r["applied"] for r in j["rows"]), j
    assert highs(d) == before, "advice changes nothing"
    text = cli(d, "advise", "web").stdout
    assert f"pcptune apply {int(re.search('pcptune apply ([0-9]+)', text).group(1))}" in text, text

    n = str(j["id"])
    r = cli(d, "apply", n, "--json")
    a = json.loads(r.stdout)
    assert r.returncode == 0 and a["changed"] == 4 and len(a["decisions"]) == 4, r
    wait_for(lambda: highs(d) == [r["then"]["high"] for r in j["rows"]])
    assert all(pinned(d))
    again = cli(d, "apply", n)
    assert again.returncode == 3 and "is in force" in again.stderr, again

    r = cli(d, "revert", n, "--json")
    b = json.loads(r.stdout)
    assert r.returncode == 0 and b["changed"] == 4 and b["left"] == 0, r
    wait_for(lambda: highs(d) == before)
    assert not any(pinned(d))
    again = cli(d, "revert", n)
    assert again.returncode == 3 and "nothing of it is in force" in again.stderr, again
    logged = d.sql("SELECT id FROM decision WHERE id IN (%s)" %
                   ",".join(map(str, a["decisions"] + b["decisions"])))
    assert len(logged) == 8, logged
    replay_agrees(d)


@test
def one_line_of_it_and_what_was_pinned_before():
    d, _ = start()
    j = advised(d)
    cli(d, "set", "web", "--cpu", "1", "batch=40")
    wait_for(lambda: batches(d)[1] == 40)
    n = str(j["id"])
    r = cli(d, "apply", n + ".2")
    assert r.returncode == 0 and "1 of them was pinned with other values" in r.stdout, r
    wait_for(lambda: highs(d)[1] == j["rows"][1]["then"]["high"])
    assert pinned(d) == [False, True, False, False], "the other lines are left alone"
    assert cli(d, "apply", n + ".2").returncode == 3
    rest = json.loads(cli(d, "apply", n, "--json").stdout)
    assert (rest["changed"], rest["pinned_before"]) == (3, 0), rest
    wait_for(lambda: all(pinned(d)))
    assert cli(d, "revert", n + ".1").returncode == 0
    wait_for(lambda: pinned(d) == [False, True, True, True])
    assert cli(d, "revert", n).returncode == 0
    wait_for(lambda: pinned(d) == [False, True, False, False])
    wait_for(lambda: batches(d)[1] == 40)  # pinned before, and with its values


@test
def what_somebody_changed_since_is_left_alone():
    d, _ = start()
    j = advised(d)
    n = str(j["id"])
    assert cli(d, "apply", n).returncode == 0
    wait_for(lambda: highs(d) == [r["then"]["high"] for r in j["rows"]])
    assert cli(d, "set", "web", "--cpu", "2", "high=1234").returncode == 0
    wait_for(lambda: highs(d)[2] == 1234)
    r = cli(d, "revert", n)
    assert r.returncode == 3 and "1 CPU had other values than the advice" in r.stderr, r
    wait_for(lambda: pinned(d) == [False, False, True, False])
    assert highs(d)[2] == 1234


@test
def ids_are_stable_and_wrong_ones_are_told():
    d, f = start()
    j = advised(d)
    end_process(f.proc)
    d.stop()  # from now on the log says the same
    one, two = (json.loads(cli(d, "advise", "web", "--db", d.db, "--json").stdout)
                for _ in range(2))
    d.start()
    assert one["id"] == two["id"] and one["rows"] == two["rows"], (one, two)
    r = cli(d, "apply", str(one["id"]))
    assert r.returncode == 3 and "is no target any more" in r.stderr, r
    for word, status, text in (("x", 2, "not an ID"), ("0", 2, "not an ID"), ("1.0", 2, "not an ID"),
                               ("1.x", 2, "not an ID"), ("999999", 3, "no advice 999999"),
                               (f"{one['id']}.99", 3, "has 4 lines")):
        for verb in ("apply", "revert"):
            r = cli(d, verb, word)
            assert r.returncode == status and text in r.stderr and not r.stdout, (word, r)
    assert j["id"] >= 1


@test
def wrong_targets_times_and_policies_are_told():
    d, _ = start()
    advised(d)
    for words, status, text in ((("nosuch",), 3, 'no target "nosuch"'),
                                (("web", "--policy", "nosuch"), 3, "nosuch"),
                                (("web", "--set", "lamda=1"), 2, "lambda"),
                                (("web", "--set", "x"), 2, "KEY=VALUE"),
                                (("web", "--set", "short_ms=5000", "--set", "long_ms=1000"), 1,
                                 "short_ms is at most long_ms"),
                                (("web", "--from", "2021-01-01", "--to", "2020-01-01"), 2,
                                 "--from is later"),
                                (("web", "--to", "2020-01-01"), 3, "no sample")):
        r = cli(d, "advise", *words)
        assert r.returncode == status and text in r.stderr and not r.stdout, (words, r)
    r = cli(d, "advise", "web", "--policy", "static", "--set", "keep=true")
    assert r.returncode == 0 and "Nothing to change" in r.stdout, r


@test
def damaged_files_are_no_advice():
    d, _ = start()
    n = advised(d)["id"]
    path = os.path.join(d.dir, "advice", f"{n}.json")
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path, "w") as f:
        f.write('{"id": 7')
    r = cli(d, "apply", str(n))
    assert r.returncode == 1 and "damaged" in r.stderr, r


main()
