#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Any one allocation, write, mapping or open of the daemon fails: it says so, or goes on; it lives."""
from foreign_policy import *
from nth import Nth

REQUESTS = (
    {"cmd": "version"},
    {"cmd": "status"},
    {"cmd": "targets"},
    {"cmd": "counters", "target": "fake"},
    {"cmd": "set", "target": "fake", "cpu": 0, "high": 300},
    {"cmd": "set", "target": "fake", "high": 301, "batch": 20},
    {"cmd": "unset", "target": "fake"},
    {"cmd": "policy", "target": "fake"},
    {"cmd": "policy", "target": "fake", "policy": "static", "params": {"high": 400}},
    {"cmd": "policy", "target": "fake", "policy": "knee"},
    {"cmd": "policy", "target": "fake", "policy": "contention", "params": {"canary_permille": 500}},
    {"cmd": "policy", "target": "fake", "policy": "nothing"},
)


class Victim:
    """A daemon that any call may fail for, and a target beside that it has to serve."""

    def __init__(self, **keys):
        self.nth = Nth()
        self.d = Daemon(start=False, interval_ms=20, policy_path=POLICIES,
                        **keys)
        self.d.program = self.nth.program(PCPTUNED)
        self.d.start()
        self.f = Fake(self.d, step_ms=5)
        self.d.target("fake")

    def lives(self):
        assert self.d.proc.poll() is None, (self.d.proc.returncode, self.d.stderr()[-2000:])
        return self.d.ctl("version")

    def ask(self, request):
        """The answer, or None where the connection was closed instead."""
        try:
            return self.d.ctl_raw(request, timeout=20)
        except OSError as e:
            assert not isinstance(e, TimeoutError), request
            return None

    def end(self, where=POLICIES):
        self.lives()
        if not self.d.keys["log"].get("enabled", True):
            self.f.end()
            assert self.d.stop() == 0
            return
        wait_for(lambda: self.lives()["log"]["state"] == "ok", 40)
        alive(self.d, self.f)
        self.f.end()
        assert self.d.stop() == 0
        assert self.d.integrity() == "ok"
        r = run([PCPTUNE, "verify", "--db", self.d.db, "--policy-path", where, "--json"])
        assert r.returncode == 0 and json.loads(r.stdout)["differ"] == 0, r


def members(value):
    """What is where in an answer, whatever the values are."""
    if isinstance(value, dict):
        return {k: members(v) for k, v in value.items()}
    if isinstance(value, list):  # `decisions` is empty where nobody could remember their ids
        return [members(v) for v in value if isinstance(v, (dict, list))]
    return None


def requests_with(kind, requests=REQUESTS, **keys):
    v = Victim(**keys)
    for request in requests:
        whole = members(v.ask(request))

        def deed(n):
            r = v.ask(request)
            assert r is None or r.get("error") or members(r) == whole, (request, n, r, whole)
        v.nth.each(kind, deed, step=lambda n: 1 if n < 60 else n // 12)
        v.lives()
        r = v.ask(request)
        assert r and (r.get("ok") or request.get("policy") == "nothing"), r
    v.end()


@test
def each_request_survives_any_allocation_that_fails():
    requests_with("memory", log={"enabled": False})


@test
def what_is_logged_survives_any_allocation_that_fails():
    requests_with("memory", requests=REQUESTS[5:10], log={"chunk_ms": 50})


@test
def each_request_survives_any_write_that_fails():
    requests_with("write", log={"enabled": False})


@test
def each_request_survives_any_open_that_fails():
    requests_with("open", log={"enabled": False})


def attach_with(kind, **keys):
    """Programs come, are served or refused, and go."""
    v = Victim(**keys)

    def come(n):
        r = run([FAKE, "--socket", v.d.socket, "--name", "guest", "--step-ms", "2", "--steps", "5"],
                timeout=20)
        assert r.returncode in (0, 1), (n, r)
    come(0)
    wait_for(lambda: v.lives()["n_targets"] == 1)
    open_before = descriptors(v.d.proc.pid)
    v.nth.each(kind, come, step=lambda n: 1 if n < 40 else n // 10)
    wait_for(lambda: v.lives()["n_targets"] == 1)
    come(0)
    wait_for(lambda: v.lives()["n_targets"] == 1 and descriptors(v.d.proc.pid) <= open_before)
    v.end()


@test
def an_attachment_survives_any_allocation_that_fails():
    attach_with("memory", log={"enabled": False})


@test
def an_attachment_that_is_logged_survives_any_allocation_that_fails():
    attach_with("memory", log={"chunk_ms": 50})


@test
def an_attachment_survives_any_mapping_that_fails():
    attach_with("map", log={"enabled": False})


@test
def an_attachment_survives_any_write_or_open_that_fails():
    attach_with("write", log={"enabled": False})
    attach_with("open", log={"enabled": False})


def foreign_with(kind):
    """The process of a foreign policy is begun, or it is said why not."""
    where = place()
    build(where, "good")
    v = Victim(log={"enabled": False}, default={"policy": "static"})
    request = {"cmd": "policy", "target": "fake", "policy": where + "/good.so"}

    def choose(n):
        r = v.ask(request)
        assert r is None or r.get("ok") or r.get("error"), (n, r)
    v.nth.each(kind, choose, step=lambda n: 1 if n < 40 else n // 10)
    for _ in range(2):  # a signal whose news could not be written is made up for by the next
        assert v.ask(request)["ok"]
        wait_for(lambda: v.f.dump()["cpus"][0]["high"] == 600)
        assert v.ask({"cmd": "policy", "target": "fake", "policy": "static"})["ok"]
    wait_for(lambda: not children(v.d))
    v.end()


@test
def a_foreign_policy_survives_any_call_of_the_daemon_that_fails():
    for kind in ("memory", "map", "open", "write"):
        foreign_with(kind)


@test
def decisions_and_their_log_survive_any_allocation_that_fails():
    """A policy that changes something all the time, each change on disk before it is made."""
    where = place()
    build(where, "good", """
	if (cpu->high && !(cpu->flags & PCPTUNE_CPU_SETTLING)) {
		struct pcptune_change *c = pcptune_decision_add(d, 0, 1);
		c->high = c->high_min = c->high_max = cpu->high == 600 ? 700 : 600;
		return 0;
	}""")
    v = Victim(log={"chunk_ms": 20}, settle_ms=0, default={"policy": where + "/good.so"})
    v.d.target("fake", policy="good", policy_state="running")

    def wait(n):
        end = time.monotonic() + 0.2
        while not v.nth.fired() and time.monotonic() < end:
            time.sleep(0.005)
    v.nth.each("memory", wait, step=lambda n: 1 if n < 30 else n // 5, most=600, endless=True)
    assert v.f.dump()["cpus"][0]["high"] in (600, 700)
    v.end(where)


@test
def a_reload_survives_any_allocation_that_fails():
    v = Victim(log={"enabled": False}, default={"policy": "static", "params": {"high": 500}})

    def reload(n):
        v.d.configure(default={"policy": "static", "params": {"high": 500 + n}})
        before = v.d.stderr().count("eloaded")
        os.kill(v.d.proc.pid, signal.SIGHUP)
        wait_for(lambda: v.d.stderr().count("eloaded") > before)
    v.nth.each("memory", reload, step=lambda n: 1 if n < 60 else n // 12)
    reload(9000)
    wait_for(lambda: v.f.dump()["cpus"][0]["high"] == 9500)
    v.end()


@test
def a_start_that_fails_for_any_allocation_is_the_starters_to_see():
    nth = Nth()
    d = Daemon(start=False)
    for kind in ("memory", "open"):
        def check(n):
            r = run([PCPTUNED, "--check", "-c", d.config], env=nth.env)
            assert r.returncode in (0, 1), (kind, n, r)
            assert r.returncode == 0 or r.stderr, (kind, n, r)
        nth.each(kind, check, step=lambda n: 1 if n < 40 else n // 8)


main()
