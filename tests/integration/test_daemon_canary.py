#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A new policy begins on a share of the CPUs of a program, and spreads or goes back.

The program is a model (tests/tools/fake.h), whose misses follow from `high` alone: real ones wait
for a lock and lose their CPU, and beside others a second does not tell what of that is the
policy's. What comes of that is tested in tests/unit/test_host_canary.c."""
from daemon_fake import *

class World:
    def __init__(self, **keys):
        self.d = Daemon(policy_path=POLICIES, interval_ms=50, log={"chunk_ms": 50},
                        canary={"ms": 1000}, **keys)
        self.p = Fake(self.d, cpus=4, step_ms=5)

    def cpus(self):
        """All four; the last is the slot that CPUs outside the tables share."""
        return self.d.ctl("status")["targets"][0]["zones"][0]["cpus"]

    def events(self, kind):
        return [r[0] for r in self.d.sql("SELECT text FROM event WHERE kind = ?", kind)]

    def ends(self):
        return [r[0] for r in self.d.sql("SELECT kind FROM event WHERE kind LIKE 'canary-%' AND "
                                         "kind != 'canary-measures'")]

    def reload(self, **keys):
        before = self.d.stderr().count("reloaded")
        self.d.configure(**keys)
        os.kill(self.d.proc.pid, signal.SIGHUP)
        wait_for(lambda: self.d.stderr().count("reloaded") > before)

    def end(self):
        self.p.end()
        assert self.d.stop() == 0
        r = run([PCPTUNE, "verify", "--db", self.d.db, "--policy-path", POLICIES, "--json"])
        assert r.returncode == 0 and json.loads(r.stdout)["differ"] == 0, r


@test
def one_that_does_better_spreads_to_all_cpus():
    w = World(default={"policy": "static", "params": {"high": 600}, "canary": 0.5})
    t = w.d.target("fake", policy="static", policy_state="running")
    wait_for(lambda: [c["high"] for c in w.cpus()] == [600] * 4)
    assert not w.events("canary-measures"), "what a program begins with is no change"
    w.reload(default={"policy": "contention", "canary": 0.5})
    w.d.target("fake", policy="contention", policy_state="canary")
    wait_for(lambda: w.events("canary-measures"))
    assert w.events("canary-measures")[0] == "contention begins on 2 of 4 busy CPUs"
    assert wait_for(w.ends, 30) == ["canary-spreads"]
    w.d.target("fake", policy="contention", policy_state="running")
    wait_for(lambda: all(c["high"] > 600 for c in w.cpus()))
    first = w.d.sql("SELECT cpu, min(seq) FROM decision WHERE reason_name != 'set' GROUP BY cpu "
                    "ORDER BY 2")
    spread = w.d.sql("SELECT boot_us FROM event WHERE kind = 'canary-spreads'")[0][0]
    early = w.d.sql("SELECT DISTINCT cpu FROM decision d JOIN assignment a ON a.id = d.assignment "
                    "WHERE a.policy = 'contention' AND d.boot_us < ?", spread)
    assert len(early) == 2 and len(first) == 4, (early, first)
    w.reload()
    assert len(w.events("canary-measures")) == 1, "nothing changed"
    w.end()


@test
def one_that_does_worse_goes_back_to_the_policy_before():
    w = World(default={"policy": "contention"})
    w.d.target("fake", policy="contention")
    wait_for(lambda: len(w.cpus()) == 4 and all(c["high"] > 1000 for c in w.cpus()), 30)
    p = w.d.ctl("policy", target="fake", policy="static",
                params={"high": 100, "rules": "gx", "canary_permille": 500})
    assert p["state"] == "canary" and p["params"]["canary_permille"] == 500, p
    assert wait_for(w.ends, 30) == ["canary-worse"]
    t = w.d.target("fake", policy="contention", policy_state="running")
    assert t["why"] == "the canary of static went back", t
    wait_for(lambda: all(c["high"] > 1000 for c in w.cpus()))
    down = w.d.sql("SELECT DISTINCT cpu FROM decision WHERE reason_name = 'set'")
    back = w.d.sql("SELECT DISTINCT cpu FROM decision WHERE reason_name = 'canary-worse'")
    assert len(down) == 2 and sorted(map(tuple, down)) == sorted(map(tuple, back)), (down, back)
    r = run([PCPTUNE, "log", "--db", w.d.db, "--policy-path", POLICIES])
    assert "canary: " in r.stdout and " as it was" in r.stdout, r
    w.end()


main()
