#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which policy has a target while others are on their way: cancelled, chosen again, gone back."""
from foreign_policy import *

SLOW_START = "usleep({0}000); return p[1] ? -EINVAL : 0;"


def with_slow(*others, ms, **keys):
    """As with_policies(), with one of the name `slow` that takes so long to begin."""
    where, d = with_policies(*others, start=False, **keys)
    ms = ms if VARIANT == "release" else 2 * ms  # a test has to do something meanwhile
    build(where, "slow", change=("return p[1] ? -EINVAL : 0;", SLOW_START.format(ms)))
    return where, d.start()


class Client:
    """A connection that sends its requests at once and reads the answers later."""

    def __init__(self, d, *requests):
        self.s = socketlib.socket(socketlib.AF_UNIX)
        defer(self.s.close)
        self.s.settimeout(20 * SLOW)
        self.s.connect(d.socket + ".ctl")
        self.s.sendall("".join(json.dumps(r) + "\n" for r in requests).encode())
        self.file = self.s.makefile()

    def answer(self):
        return json.loads(self.file.readline())


def policies(d):
    """Those that had the target, in order; the operator's hand is one of them."""
    return [r[0] for r in d.sql("SELECT policy FROM assignment ORDER BY id")]


def choose(policy, **params):
    return {"cmd": "policy", "target": "fake", "policy": policy, "params": params}


@test
def a_request_that_waited_behind_another_is_not_run_inside_the_change_that_answers_it():
    """The second client's choice ends the first client's; what that one had to say next comes
    after, and so it is the last word."""
    where, d = with_slow("good", ms=700, default={"policy": "static"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="static")
    for turn in range(3):
        first = Client(d, choose("slow"), choose("slow", high=700 + turn), {"cmd": "version"})
        wait_for(lambda: len(children(d)) == 1 + (turn > 0))
        second = Client(d, choose("good"))
        r = first.answer()
        assert not r["ok"] and "another policy was chosen meanwhile" in r["error"], r
        r = second.answer()
        assert not r["ok"] and "another policy was chosen meanwhile" in r["error"], r
        r = first.answer()
        assert r["ok"] and r["result"]["params"]["high"] == 700 + turn, r
        assert first.answer()["ok"]
        d.target("fake", policy="slow", policy_state="running")
        wait_for(lambda: f.dump()["cpus"][0]["high"] == 700 + turn)
        wait_for(lambda: len(children(d)) == 1)
    end(d, where, f)


@test
def requests_that_waited_are_run_in_their_order_when_a_policy_takes_over():
    where, d = with_slow("good", ms=300, default={"policy": "static"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="static")
    c = Client(d, choose("slow", high=700), choose("good", high=800), choose("static"),
               choose("good", high=900), {"cmd": "set", "target": "fake", "cpu": 0, "high": 500})
    answers = [c.answer() for _ in range(5)]
    assert all(a["ok"] for a in answers), answers
    assert [a["result"]["policy"] for a in answers[:4]] == ["slow", "good", "static", "good"]
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 500)
    assert policies(d) == ["static", "slow", "good", "static", "good", "operator"], policies(d)
    wait_for(lambda: len(children(d)) == 1)
    end(d, where, f)


@test
def a_reload_that_chooses_what_is_in_force_again_cancels_what_was_on_its_way():
    where, d = with_slow(ms=1500, default={"policy": "contention"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="contention")
    reloaded(d, default={"policy": "slow"})  # which tried it in a process of its own first
    settled(d, 1)  # it is being started for the target
    reloaded(d, default={"policy": "contention"})
    d.target("fake", policy="contention", policy_state="running")
    wait_for(lambda: not children(d))
    assert policies(d) == ["contention"], policies(d)
    reloaded(d, default={"policy": "slow"})
    d.target("fake", policy="slow", policy_state="running")
    end(d, where, f)


def sample_runs(d):
    """First and last seq of each chunk of samples, in order."""
    return [tuple(r) for r in d.sql("SELECT seq_first, seq_last FROM sample ORDER BY seq_first")]


@test
def the_sample_that_a_policy_was_asked_about_is_in_the_log_when_another_takes_over():
    where, d = with_policies(("good", "usleep(2000000);"), default={"policy": "static"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="static")
    for high in (300, 400, 500):
        d.ctl("policy", target="fake", policy="good")  # wants 600, and thinks about it
        time.sleep(0.15)
        d.ctl("policy", target="fake", policy="static", params={"high": high})
        wait_for(lambda: f.dump()["cpus"][0]["high"] == high)
    end(d, where, f)
    runs = sample_runs(d)
    assert len(runs) > 3
    for (_, last), (first, _) in zip(runs, runs[1:]):
        assert first == last + 1, runs
    assert d.sql("SELECT count(*) FROM decision WHERE reason_name = 'step'")[0][0] == 0


def highs(d):
    zones = d.ctl("status")["targets"][0]["zones"]
    return sorted(c["high"] for c in zones[0]["cpus"] if not c["shared"])


def ends_of_canaries(d):
    return [r[0] for r in d.sql("SELECT kind FROM event WHERE kind LIKE 'canary-%' AND "
                                "kind != 'canary-measures' ORDER BY id")]


@test
def a_canary_goes_back_to_a_foreign_policy_once():
    where, d = with_policies(("good", EVERY_CPU, 20000), interval_ms=50, canary={"ms": 1000},
                             default={"policy": "good"})
    f = Fake(d, cpus=5, step_ms=5)  # four, and the shared slot
    d.target("fake", policy="good", policy_state="running")
    wait_for(lambda: highs(d) == [20000] * 4, 30)
    d.ctl("policy", target="fake", policy="static",
          params={"high": 100, "rules": "gx", "canary_permille": 500})
    assert wait_for(lambda: ends_of_canaries(d), 30) == ["canary-worse"]
    t = d.target("fake", policy="good", policy_state="running")
    assert t["why"] == "the canary of static went back", t
    wait_for(lambda: highs(d) == [20000] * 4, 30)
    wait_for(lambda: len(children(d)) == 1)
    time.sleep(0.5)
    assert ends_of_canaries(d) == ["canary-worse"]
    # static stands in, as at the beginning, until the process of the other one is ready again
    assert policies(d) == ["static", "good", "static", "static", "good"], policies(d)
    end(d, where, f)


@test
def what_was_chosen_while_a_canary_goes_back_is_not_cancelled_by_it():
    where, d = with_slow(("good", EVERY_CPU, 20000), ms=1500, interval_ms=50, canary={"ms": 1000},
                         default={"policy": "good"})
    f = Fake(d, cpus=5, step_ms=5)  # four, and the shared slot
    d.target("fake", policy="good", policy_state="running")
    wait_for(lambda: highs(d) == [20000] * 4, 30)
    for n, comes in enumerate(("good", "contention"), 1):
        d.ctl("policy", target="fake", policy=comes)
        wait_for(lambda: d.target("fake")["policy_state"] == "running")
        d.ctl("policy", target="fake", policy="static",
              params={"high": 100, "rules": "gx", "canary_permille": 500})
        wait_for(lambda: len(ends_of_canaries(d)) == n, 30)
        assert set(ends_of_canaries(d)) == {"canary-worse"}
        assert d.ctl("policy", target="fake", policy="slow")["state"] == "running"
        wait_for(lambda: policies(d)[-1] == "slow")
        # one of ours is back until then; for another, static stands in
        assert policies(d)[-2] == ("static" if comes == "good" else comes), policies(d)
    wait_for(lambda: len(children(d)) == 1)
    end(d, where, f)


main()
