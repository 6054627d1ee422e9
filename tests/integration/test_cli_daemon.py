#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every command against the real daemon and a real target: what they say must fit together."""
import struct

from harness import *
from cli_screen import Screen

PAGE_FAULT1 = os.path.join(BENCH, "page_fault1")
KEYS = "cpu count high high_min high_max batch alloc_zone free_high contend_pct".split()


class World:
    """A daemon with one busy target; cli() talks to it."""

    def __init__(self, target_env=None, **keys):
        keys.setdefault("default", {"policy": "static", "params": {"high": 600, "batch": 50}})
        self.d = Daemon(policy_path=POLICIES, **keys)
        self.env = {"PCPTUNE_SOCKET": self.d.socket, "PCPTUNE_POLICY_PATH": POLICIES}
        self.target = spawn([PAGE_FAULT1, "-t", "2", "-m", "8", "-s", "60"],
                            env={**self.env, **(target_env or {})},
                            stdout=subprocess.DEVNULL)
        self.d.target("page_fault1")

    def cli(self, *words):
        return run([PCPTUNE, *words], env=self.env)

    def json(self, *words):
        r = self.cli(*words, "--json")
        assert r.returncode == 0 and not r.stderr, r
        return json.loads(r.stdout)

    def log(self, *words):
        r = self.cli("log", "--json", *words)
        assert r.returncode == 0 and not r.stderr, r
        return [json.loads(l) for l in r.stdout.splitlines()]

    def cpus(self):
        return self.json("status")["targets"][0]["zones"][0]["cpus"]

    def wait_high(self, high):
        def there():
            cpus = self.cpus()
            return cpus and all(c["high"] == high for c in cpus)
        there.__doc__ = f"high {high} on all CPUs"
        wait_for(there)


@test
def status_has_the_keys_of_the_contract():
    w = World()
    w.wait_high(600)
    t = w.json("status")["targets"][0]
    assert all(k in t for k in "id name pid mode policy zones".split()), t
    assert t["name"] == "page_fault1" and t["pid"] == w.target.pid and t["policy"] == "static"
    assert "id" in t["zones"][0]
    for c in t["zones"][0]["cpus"]:
        assert all(k in c for k in KEYS), c

    def shown():
        """each CPU of the object is in the text; one may have come into use meanwhile"""
        text = w.cli("status", "page_fault1").stdout
        return all(re.search(rf"^ +0 +{c['cpu']} +\d+ +600 +600 +600 +50 ", text, re.M)
                   for c in t["zones"][0]["cpus"])
    wait_for(shown)
    assert w.cli("status", str(t["id"])).returncode == 0
    assert w.cli("status", "nobody").returncode == 3


@test
def a_change_by_hand_is_made_shown_logged_explained_and_undone():
    w = World()
    w.wait_high(600)
    cpu = w.cpus()[0]["cpu"]
    r = w.cli("set", "page_fault1", "high=321", "batch=20", "--cpu", str(cpu))
    assert r.returncode == 0, r
    new = int(re.search(r"pcptune explain (\d+)", r.stdout)[1])

    def applied():
        c = next(c for c in w.cpus() if c["cpu"] == cpu)
        return c["high"] == 321 and c["batch"] == 20 and c["pinned"]
    wait_for(applied)
    assert re.search(rf"^ +0 +{cpu} +\d+ +321 .* pinned$", w.cli("status").stdout, re.M)
    row = next(r for r in w.log("--policy", "operator"))
    assert row["id"] == new and row["new"]["high"] == 321 and row["old"]["high"] == 600, row
    wait_for(lambda: w.json("explain", str(new))["outcome"] == "applied")
    out = w.cli("explain", str(new)).stdout
    assert "from 600 to 321 pages in page_fault1" in out and "set by hand" in out, out
    assert f"(pid {w.target.pid}, " in out and "The target took it over." in out, out
    assert w.cli("unset", "page_fault1").returncode == 0
    w.wait_high(600)
    assert not any(c["pinned"] for c in w.cpus())


@test
def a_decision_of_a_policy_is_explained_with_its_sample():
    w = World()
    w.wait_high(600)
    rows = w.log("--policy", "static")
    assert rows and all(r["reason"] == "set" and r["new"]["high"] == 600 for r in rows), rows
    first = wait_for(lambda: (e := w.json("explain", str(rows[0]["id"])))["from"] and e)
    assert first["from"]["seq"] == first["sample"] and first["from"]["dt_us"] > 0
    assert first["params"].startswith("high=600 batch=50"), first
    v = first["from"]["values"]
    assert v["high"] == first["old"]["high"] and v["batch"] == first["old"]["batch"], first
    out = w.cli("explain", str(rows[0]["id"])).stdout
    assert "policy      static" in out and "chosen by   default" in out, out
    assert "the fixed values: high" in out, "the sentence of the plug-in"


@test
def every_generation_of_the_rules_can_be_set():
    w = World()
    w.wait_high(600)
    r = w.cli("set", "page_fault1", "rules=none")
    for name in [*re.search("not one of (.*)", r.stderr)[1].split(", "), "g4-order0", "g1-orders"]:
        r = w.cli("set", "page_fault1", f"rules={name}")
        assert r.returncode == 0, (name, r)

        def adopted():
            return all(c["rules"] == name for c in w.cpus())
        adopted.__doc__ = f"rules {name} on all CPUs"
        wait_for(adopted)


@test
def zones_and_virtual_cpus_are_told_apart():
    w = World(target_env={"PCPALLOC_ZONES": "2", "PCPALLOC_CPUS": "3", "PCPALLOC_SIZE": "64m"})
    w.wait_high(600)
    t = w.json("status")["targets"][0]
    assert [z["id"] for z in t["zones"]] == [0, 1], t
    r = w.cli("set", "page_fault1", "high=222", "--zone", "1", "--cpu", "2")
    assert r.returncode == 0, r
    new = int(re.search(r"pcptune explain (\d+)", r.stdout)[1])
    e = w.json("explain", str(new))
    assert e["from"], e
    assert (e["zone"], e["cpu"], e["new"]["high"]) == (1, 2, 222), e
    assert e["from"]["values"]["high"] == e["old"]["high"], "the sample of another CPU"
    assert "zone 1, CPU 2" in w.cli("explain", str(new)).stdout
    assert new in [x["id"] for x in w.log("--zone", "1")]
    assert new not in [x["id"] for x in w.log("--zone", "0")]


@test
def another_policy_for_a_target():
    w = World()
    w.wait_high(600)
    r = w.cli("policy", "page_fault1", "static", "high=700")
    assert r.returncode == 0 and "high=700" in r.stdout, r
    w.wait_high(700)
    assert "high=700" in w.cli("policy").stdout
    r = w.cli("policy", "page_fault1", "static", "hihg=1")
    assert r.returncode == 2 and "high" in r.stderr, r
    r = w.cli("policy", "page_fault1", "statci")
    assert r.returncode == 3 and 'did you mean "static"?' in r.stderr, r
    w.wait_high(700)
    # 2: a word that is wrong, wherever it was found to be
    for words in (("set", "page_fault1", "high=3"), ("set", "page_fault1", "high=-3"),
                  ("set", "page_fault1", "high=5000", "high_max=300"),
                  ("policy", "page_fault1", "static", "high=3")):
        r = w.cli(*words)
        assert r.returncode == 2 and "high" in r.stderr, (words, r)


@test
def the_log_of_the_daemon_verifies_and_can_be_followed():
    w = World()
    p = spawn([PCPTUNE, "log", "--follow", "--json"], env=w.env, stdout=subprocess.PIPE)
    assert json.loads(p.stdout.readline())["policy"] == "static"
    w.wait_high(600)
    w.cli("set", "page_fault1", "high=444")
    row = wait_for(lambda: (r := json.loads(p.stdout.readline()))["new"]["high"] == 444 and r)
    assert row["outcome"] == "applied", "followed rows wait for their outcome"
    w.d.stop()
    r = w.cli("verify", "--db", w.d.db)
    assert r.returncode == 0 and "0 differ" in r.stdout, r


@test
def check_config_finds_what_the_daemon_finds():
    bad = {"interval_ms": 1}, {"default": {"policy": "statci"}}, {"intervall_ms": 100}, \
        {"default": {"policy": "static", "params": {"hihg": 5}}}, \
        {"default": {"policy": "static", "params": {"high": -1}}}, \
        {"default": {"policy": "kernel", "params": {"high_min": 500, "high_max": 100}}}, \
        {"rules": [{"program": "a", "policy": "no"}, {"program": "b", "policy": "static"}]}, \
        {"default": {"policy": "static", "params": {"high": 2}}}, \
        {"policy_path": "/nonexistent"}, {"control": {"group": "no-such-group"}}, \
        {"socket": "/nonexistent/sock"}, {"log": {"required": True, "path": "/dev/null/log.db"}}
    for keys in bad:
        d = Daemon(start=False, **{"policy_path": POLICIES, **keys})
        ours = run([PCPTUNE, "check-config", d.config])
        its = run([PCPTUNED, "--check", "-c", d.config])
        assert ours.returncode == its.returncode == 1, (keys, ours, its)

        assert ours.stderr == its.stderr != "" and not ours.stdout, (keys, ours, its)
        for line in ours.stderr.splitlines():
            assert re.match(r".*\.conf(:[1-9]\d*)?: |pcptuned: ", line), line
            assert line.count("policy") < 3 and ":0:" not in line, line
    assert "4 pages and more, or 0" in run([PCPTUNE, "check-config", Daemon(
        start=False, policy_path=POLICIES,
        default={"policy": "static", "params": {"high": 2}}).config]).stderr
    d = Daemon(start=False, policy_path=POLICIES, default={"policy": "static"})
    assert run([PCPTUNE, "check-config", d.config]).returncode == 0
    assert run([PCPTUNED, "--check", "-c", d.config]).returncode == 0
    r = run([PCPTUNE, "check-config", "--policy-path", "/nonexistent", d.config])
    assert r.returncode == 1 and "/nonexistent" in r.stderr, r
    # a log that is not required is worth a line, but no mistake
    d = Daemon(start=False, policy_path=POLICIES, log={"path": "/dev/null/log.db"})
    r = run([PCPTUNE, "check-config", d.config])
    assert r.returncode == 0 and "would start without a log" in r.stderr and "fine" in r.stdout, r
    assert len(json.loads(run([PCPTUNE, "check-config", "-j", d.config]).stdout)["notes"]) == 1
    # the file of a daemon that runs is checked for its next reload
    d = Daemon(policy_path=POLICIES, log={"required": True, "path": os.path.join(tmp(), "l.db")})
    r = run([PCPTUNE, "check-config", d.config])
    assert r.returncode == 0 and not r.stderr, r
    r = run([PCPTUNED, "--check", "-c", d.config])
    assert r.returncode == 1 and "serves" in r.stderr, r
    assert run([PCPTUNED, "--reload", "-c", d.config]).returncode == 2


@test
def counters_of_the_target_fit_its_status():
    w = World()
    w.wait_high(600)
    w.target.send_signal(signal.SIGSTOP)
    time.sleep(0.3 * SLOW)
    counters = w.json("counters", "page_fault1")["zones"][0]["cpus"]
    by_cpu = {c["cpu"]: c for c in counters}
    # a CPU that came into use just now may still have what it began with
    assert 600 in [c["high"] for c in w.cpus()]
    for c in w.cpus():
        assert by_cpu[c["cpu"]]["high"] == c["high"], (by_cpu, c)
        assert by_cpu[c["cpu"]]["alloc_zone"] >= c["alloc_zone"] > 0, (by_cpu, c)
    out = w.cli("counters", "page_fault1").stdout
    total = f"{sum(c['alloc_zone'] for c in counters):,}"
    assert re.search(rf"^alloc_zone +pages +{total} ", out, re.M), out
    w.target.send_signal(signal.SIGCONT)


@test
def the_live_view_of_the_real_thing():
    w = World()
    w.wait_high(600)
    s = Screen(PCPTUNE, "status", "--watch=0.2", env=w.env)
    s.wait(r"page_fault1 +0 +\d+ +\d+ +600 +600 +600 +50 ")
    w.cli("set", "page_fault1", "high=333")
    s.wait(r" 333 .* pinned")
    s.keys("q")
    assert s.end() == 0


@test
def version_and_targets_know_the_daemon():
    w = World()
    v = w.json("version")["daemon"]
    assert v["pid"] == w.d.proc.pid and v["log"]["path"] == w.d.db, v
    assert f"pid {w.d.proc.pid}" in w.cli("version").stdout
    t = w.json("targets")["targets"]
    assert [x["pid"] for x in t] == [w.target.pid], t
    end_process(w.target)
    wait_for(lambda: not w.json("targets")["targets"])
    assert w.cli("targets").stdout == "no targets\n"
    # rows that no decision hangs on are written about once a second
    wait_for(lambda: "page_fault1" in w.cli("targets", "--db", w.d.db).stdout)


def write_words(pid, cpu, high):
    """What a stranger would do: new control words of a CPU in the segment, past the daemon."""
    with open(f"/proc/{pid}/maps") as f:
        base = next(int(l.split("-")[0], 16) for l in f
                    if "memfd:" in l and l.split()[2] == "00000000")
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as mem:
        mem.seek(base)
        head = mem.read(128)
        assert head[:8] == b"TPCPSEG1", head
        stride, = struct.unpack_from("<I", head, 68)
        cpus, = struct.unpack_from("<Q", head, 96)
        at = base + cpus + cpu * stride
        mem.seek(at)
        seq, = struct.unpack("<I", mem.read(4))
        mem.seek(at + 4)
        mem.write(struct.pack("<I", high))
        mem.seek(at)
        mem.write(struct.pack("<I", seq + 1))


@test
def drift_is_told_by_status_and_by_the_log():
    w = World()
    w.wait_high(600)
    cpu = w.cpus()[0]["cpu"]
    try:
        write_words(w.target.pid, cpu, 77)
    except PermissionError:
        skip("this system does not let a parent write the memory of its child")
    wait_for(lambda: w.cli("status").returncode == 3)
    out = w.cli("status", "page_fault1").stdout
    assert re.search(rf"^ +0 +{cpu} .* DRIFT$", out, re.M) and "  DRIFT 1" in out, out
    assert w.cli("status", "--json").returncode == 3
    wait_for(lambda: " drift: " in w.cli("log", "--events").stdout)
    w.cli("unset", "page_fault1")
    wait_for(lambda: w.cli("status").returncode == 0)
    w.wait_high(600)


@test
def a_closed_standard_output_is_an_error_and_becomes_no_socket():
    w = World()
    for words in (["status"], ["status", "--json"], ["targets"], ["version"], ["log"]):
        r = run(["sh", "-c", 'exec "$0" "$@" >&-', PCPTUNE, *words], env=w.env)
        assert r.returncode == 1 and "standard output: Bad file descriptor" in r.stderr, (words, r)


main()
