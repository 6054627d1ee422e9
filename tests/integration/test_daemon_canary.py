#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A new policy begins on a share of the CPUs of a real program, and spreads or goes back."""
from daemon_fake import *

PAGE_FAULT1 = os.path.join(BENCH, "page_fault1")


class World:
    def __init__(self, **keys):
        self.d = Daemon(policy_path=POLICIES, interval_ms=50, log={"chunk_ms": 50},
                        canary={"ms": 1000}, **keys)
        self.p = spawn([PAGE_FAULT1, "-t", "4", "-m", "16", "-s", "120"],
                       env={"PCPTUNE_SOCKET": self.d.socket, "PCPALLOC_CPUS": "4"},
                       stdout=subprocess.DEVNULL)

    def cpus(self):
        return [c for c in self.d.ctl("status")["targets"][0]["zones"][0]["cpus"]
                if not c["shared"]]

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
        self.p.kill()
        self.p.wait()
        assert self.d.stop() == 0
        r = run([PCPTUNE, "verify", "--db", self.d.db, "--policy-path", POLICIES, "--json"])
        assert r.returncode == 0 and json.loads(r.stdout)["differ"] == 0, r


def world_that_ends_with(kind, begins):
    """begins() until its canary ends so: a second may be too short to tell when the machine has other
    things to do. What a canary makes of what it measured is tested without a clock elsewhere."""
    for _ in range(5):
        w = begins()
        if wait_for(w.ends, 30) == [kind]:
            return w
        w.end()
    raise AssertionError(f"no {kind} in five tries")


def better():
    w = World(default={"policy": "static", "params": {"high": 600}, "canary": 0.5})
    t = w.d.target("page_fault1", policy="static", policy_state="running")
    wait_for(lambda: [c["high"] for c in w.cpus()] == [600] * 4)
    assert not w.events("canary-measures"), "what a program begins with is no change"
    w.reload(default={"policy": "contention", "canary": 0.5})
    w.d.target("page_fault1", policy="contention", policy_state="canary")
    wait_for(lambda: w.events("canary-measures"))
    assert w.events("canary-measures")[0] == "contention begins on 2 of 4 busy CPUs"
    return w


@test
def one_that_does_better_spreads_to_all_cpus():
    w = world_that_ends_with("canary-spreads", better)
    w.d.target("page_fault1", policy="contention", policy_state="running")
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


def worse():
    w = World(default={"policy": "contention"})
    w.d.target("page_fault1", policy="contention")
    wait_for(lambda: len(w.cpus()) == 4 and all(c["high"] > 2000 for c in w.cpus()), 30)
    time.sleep(1)
    p = w.d.ctl("policy", target="page_fault1", policy="static",
                params={"high": 100, "rules": "gx", "canary_permille": 500})
    assert p["state"] == "canary" and p["params"]["canary_permille"] == 500, p
    return w


@test
def one_that_does_worse_goes_back_to_the_policy_before():
    w = world_that_ends_with("canary-worse", worse)
    t = w.d.target("page_fault1", policy="contention", policy_state="running")
    assert t["why"] == "the canary of static went back", t
    wait_for(lambda: all(c["high"] > 1000 for c in w.cpus()))
    down = w.d.sql("SELECT DISTINCT cpu FROM decision WHERE reason_name = 'set'")
    back = w.d.sql("SELECT DISTINCT cpu FROM decision WHERE reason_name = 'canary-worse'")
    assert len(down) == 2 and sorted(map(tuple, down)) == sorted(map(tuple, back)), (down, back)
    r = run([PCPTUNE, "log", "--db", w.d.db, "--policy-path", POLICIES])
    assert "canary: " in r.stdout and " as it was" in r.stdout, r
    w.end()


main()
