#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The control socket and what the operator can do with it."""
import math

from daemon_fake import *


def refused(d, code, text, **request):
    r = d.ctl_raw(request)
    assert not r["ok"] and r["code"] == code and text in r["error"], (request, r)


@test
def requests_that_are_wrong_are_refused_with_what_would_be_right():
    d = Daemon()
    f = Fake(d, targets=2, name="twin")
    refused(d, "invalid", "status", cmd="stats")
    refused(d, "invalid", '"target"', cmd="status", targt="x")
    refused(d, "invalid", "cmd", foo=1)
    refused(d, "invalid", "needs the key", cmd="counters")
    refused(d, "invalid", "id", cmd="status", target=True)
    refused(d, "invalid", "number", cmd="set", target=1, cpu=-1, high=100)
    refused(d, "not-found", "twin", cmd="set", target="none", high=100)
    refused(d, "invalid", "names 2 targets", cmd="set", target="twin", high=100)
    refused(d, "invalid", "4 ..", cmd="set", target=f.id, high=1)
    refused(d, "invalid", "1 .. 1024", cmd="set", target=f.id, batch=5000)
    refused(d, "invalid", "nothing to set", cmd="set", target=f.id)
    refused(d, "invalid", "g0 g1 g2", cmd="set", target=f.id, rules="g9")
    refused(d, "invalid", "g0 g1 g2", cmd="set", target=f.id, rules=31)
    refused(d, "invalid", "unknown cmd \"a\u00e4", cmd="a" + "\u00e4" * 40)
    refused(d, "invalid", "has no key \"a\u00e4", cmd="version", **{"a" + "\u00e4" * 40: 1})
    refused(d, "not-found", "no target \"a\u00e4", cmd="set", target="a" + "\u00e4" * 80, high=9)
    refused(d, "invalid", "name of a generation", cmd="set", target=f.id, rules=[])
    refused(d, "invalid", "high_min 200 is above high 100, allowed: high_min <= high <= high_max",
            cmd="set", target=f.id, high=100, high_min=200)
    refused(d, "invalid", "high 300 is above high_max 200", cmd="set", target=f.id, high=300,
            high_max=200)
    refused(d, "invalid", "high_min 300 is above high_max 200", cmd="set", target=f.id,
            high_min=300, high_max=200)
    refused(d, "not-found", "CPUs 0 .. 3", cmd="set", target=f.id, cpu=7, high=100)
    refused(d, "not-found", "twin", cmd="record", target="none")
    refused(d, "invalid", "names 2 targets", cmd="record", target="twin")
    refused(d, "failed", "can not begin to record", cmd="record", target=f.id)
    refused(d, "invalid", "16 hex", cmd="summary", tag="xyz")
    refused(d, "not-found", "", cmd="summary", tag="0123456789abcdef")
    refused(d, "not-found", "nosuch", cmd="policy", target=f.id, policy="nosuch")
    refused(d, "invalid", "floor", cmd="policy", target=f.id, policy="contention",
            params={"florr": 1})
    for line in ("", "{", "[]", "null", '"x"', '{"cmd":5}', '{"cmd":"version","cmd":"version"}'):
        if line:
            assert d.ctl_raw(line)["code"] == "invalid", line
    assert len(d.ctl("status", target="twin")["targets"]) == 2


@test
def status_targets_counters_and_version_have_their_keys():
    d = Daemon()
    f = Fake(d, zones=2, cpus=3, name="keys", tag="00000000000000ff")
    t = d.target("keys")
    for k in ("id name pid uid tag mode policy policy_state why dry_run attached_s cpu_us "
              "contend_pct held_pages decisions zones").split():
        assert k in t, k
    assert t["id"] == f.id and t["pid"] == f.proc.pid and t["uid"] == os.getuid()
    assert t["tag"] == "00000000000000ff" and t["mode"] == "locked"
    assert [z["id"] for z in t["zones"]] == [0, 1]
    for k in ("cpu count high high_min high_max batch scale_max rules alloc_pages free_pages "
              "alloc_zone free_zone refills drains free_high contend_pct pinned drift").split():
        assert k in t["zones"][1]["cpus"][2], k
    line = d.ctl("targets")["targets"][0]
    assert sorted(line) == sorted("id name pid uid policy attached_s held_pages decisions".split())
    def taken():  # from its first step on
        return d.ctl("counters", target="keys")["zones"][1]["cpus"][0]["lock_alloc_taken"]
    wait_for(lambda: taken() > 0)
    assert "malloc_calls" in d.ctl("counters", target="keys")["proc"]
    v = d.ctl("version")
    for k in "version pid uptime_s socket config interval_ms dry_run n_targets log".split():
        assert k in v, k
    assert v["log"]["state"] == "ok" and v["n_targets"] == 1


@test
def contention_is_shown_while_it_lasts_and_no_longer():
    d = Daemon(default={"policy": "static", "params": {"keep": True}})
    f = Fake(d)  # waits 20 us in every fourth burst of a CPU

    def contended():
        t = d.target("fake")
        return t["contend_pct"] and all(c["contend_pct"] > 0 for c in t["zones"][0]["cpus"])
    wait_for(contended)
    t = d.target("fake")
    assert abs(sum(c["contend_pct"] for c in t["zones"][0]["cpus"]) - t["contend_pct"]) < \
        0.5 * t["contend_pct"], t
    f.cmd("rest")
    wait_for(lambda: d.target("fake")["contend_pct"] == 0)
    assert [c["contend_pct"] for c in d.target("fake")["zones"][0]["cpus"]] == [0] * 4


@test
def set_pins_and_is_logged_and_unset_lets_the_policy_go_on():
    d = Daemon(default={"policy": "contention"})
    f = Fake(d)
    r = d.ctl("set", target="fake", cpu=2, high=4000, batch=31)
    assert r["changed"] == 1 and len(r["decisions"]) == 1, r
    wait_for(lambda: f.dump()["cpus"][2]["high"] == 4000)
    cpu = f.dump()["cpus"][2]
    assert cpu["batch"] == 31 and cpu["decision"] == r["decisions"][0], cpu
    row = d.sql("SELECT d.*, a.policy, a.version FROM decision d JOIN assignment a "
                "ON a.id = d.assignment WHERE d.id = ?", r["decisions"][0])[0]
    assert row["reason_name"] == "set-by-operator" and row["policy"] == "operator"
    assert row["clamped_high"] == 4000 and row["cpu"] == 2
    wait_for(lambda: d.sql("SELECT outcome FROM decision WHERE id = ?", row["id"])[0][0] == 2)
    wait_for(lambda: f.dump()["cpus"][0]["high"] > 1000)  # the policy works on the others
    time.sleep(1)
    assert f.dump()["cpus"][2]["high"] == 4000
    cpus = d.target("fake")["zones"][0]["cpus"]
    assert [c["pinned"] for c in cpus] == [False, False, True, False], cpus
    assert d.ctl("unset", target="fake")["changed"] == 1
    assert not any(c["pinned"] for c in d.target("fake")["zones"][0]["cpus"])
    n = f.dump()["cpus"][2]["seq"]
    wait_for(lambda: f.dump()["cpus"][2]["seq"] > n, 15)
    f.end()
    d.stop()
    replay_agrees(d)


@test
def set_on_all_cpus_pins_the_target():
    d = Daemon()
    f = Fake(d, cpus=3)
    r = d.ctl("set", target=f.id, high=500, high_min=500, high_max=500, rules="g0")
    assert r["changed"] == 3
    t = d.target("fake", policy_state="pinned")
    wait_for(lambda: [c["high_max"] for c in f.dump()["cpus"]] == [500] * 3)
    assert t["zones"][0]["cpus"][0]["pinned"]


@test
def two_sets_in_a_row_do_not_lose_the_first():
    d = Daemon(default={"policy": "static"})
    f = Fake(d, step_ms=400)
    d.target("fake")
    d.ctl("set", target="fake", cpu=1, high=777)
    d.ctl("set", target="fake", cpu=1, batch=17)
    wait_for(lambda: (lambda c: c["high"] == 777 and c["batch"] == 17)(f.dump()["cpus"][1]))


@test
def policy_shows_and_changes_the_policy_of_a_target():
    d = Daemon(default={"policy": "static"})
    f = Fake(d)
    p = d.ctl("policy", target="fake")
    assert p["policy"] == "static" and p["state"] == "running" and "params" in p
    p = d.ctl("policy", target="fake", policy="contention", params={"floor": 200})
    assert p["policy"] == "contention" and p["params"]["floor"] == 200, p
    assert p["why"] == "by the operator"
    p = d.ctl("policy", target="fake", params={"floor": 300})
    assert p["policy"] == "contention" and p["params"]["floor"] == 300
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded" in d.stderr())
    assert d.ctl("policy", target="fake")["policy"] == "contention", "a reload leaves it"
    wait_for(lambda: d.sql("SELECT count(*) FROM assignment WHERE policy = 'contention'")[0][0] == 2)
    f.end()
    d.stop()
    replay_agrees(d)


@test
def in_a_dry_run_everything_is_logged_and_nothing_written():
    d = Daemon(dry_run=True)
    f = Fake(d)
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE outcome = 3")[0][0] >= 4)
    time.sleep(2)
    assert [c["seq"] for c in f.dump()["cpus"]] == [0] * 4, f.dump()
    t = d.target("fake")
    assert t["dry_run"] and t["decisions"] >= 4
    n = d.sql("SELECT count(*) FROM decision")[0][0]
    assert n < 60, f"{n} decisions in 2 s: repetitions are not held back"
    f.end()
    d.stop()
    assert not d.sql("SELECT * FROM decision WHERE outcome != 3")
    replay_agrees(d)


@test
def words_that_a_stranger_wrote_are_left_alone_until_the_operator_speaks():
    d = Daemon()
    f = Fake(d)
    wait_for(lambda: f.dump()["cpus"][1]["decision"])
    f.cmd("write 1 123")

    def drifted():
        return [c["drift"] for c in d.target("fake")["zones"][0]["cpus"]] == \
            [False, True, False, False]
    wait_for(drifted)
    seq = f.dump()["cpus"][1]["seq"]
    time.sleep(1.5)
    cpu = f.dump()["cpus"][1]
    assert cpu["seq"] == seq and cpu["word_high"] == 123, cpu
    assert d.sql("SELECT * FROM event WHERE kind = 'drift'")
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE outcome = 6 AND cpu = 1")[0][0])
    d.ctl("set", target="fake", cpu=1, high=999)
    wait_for(lambda: f.dump()["cpus"][1]["high"] == 999)
    cpu = d.target("fake")["zones"][0]["cpus"][1]
    assert cpu["pinned"] and not cpu["drift"], cpu
    f.end()
    d.stop()
    replay_agrees(d)


@test
def a_target_that_never_acknowledges_keeps_its_outcome_and_ends_as_gone():
    d = Daemon()
    f = Fake(d, never_ack=True)
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE outcome = 1")[0][0] >= 4)
    f.end()
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE outcome = 5")[0][0] >= 4)
    assert not d.sql("SELECT * FROM decision WHERE outcome NOT IN (4, 5)")


@test
def what_is_on_its_way_is_what_a_later_change_replaces():
    d = Daemon(default={"policy": "static", "params": {"keep": True}})
    f = Fake(d, never_ack=True)
    wait_for(lambda: d.target("fake")["zones"][0]["cpus"][1]["high"])
    now = d.target("fake")["zones"][0]["cpus"][1]
    for limits in ({"high": 5000, "high_max": 5000, "batch": 40}, {"high": 700},
                   {"high": now["high"], "high_max": now["high_max"], "batch": now["batch"]}):
        d.ctl("set", target="fake", cpu=1, **limits)
    keys = ("high", "high_max", "batch")
    rows = d.sql("SELECT old_high, old_high_max, old_batch, clamped_high, clamped_high_max, "
                 "clamped_batch FROM decision WHERE cpu = 1 ORDER BY id")
    then = tuple(now[k] for k in keys)
    assert [tuple(r) for r in rows] == [
        (*then, 5000, 5000, 40), (5000, 5000, 40, 700, 5000, 40),
        (700, 5000, 40, *then)], rows
    shown = run([PCPTUNE, "log", "--db", d.db, "--cpu", "1"]).stdout.splitlines()
    assert f"high 700 -> {now['high']}" in shown[3] and "nothing" not in "".join(shown), shown
    assert f.dump()["cpus"][1]["word_high"] == now["high"]
    f.end()
    d.stop()
    replay_agrees(d)


@test
def what_is_not_taken_over_is_said_again_less_and_less_often():
    d = Daemon(settle_ms=100, default={"policy": "static"})
    f = Fake(d, never_ack=True)
    start = time.monotonic()
    wait_for(lambda: d.target("fake")["decisions"] >= 4)
    time.sleep(3)
    n = d.sql("SELECT count(*) FROM decision")[0][0]
    # after 0, 100, 300, 700, 1500, 3100, 6300, ... ms
    seconds = time.monotonic() - start
    most = 1 + math.ceil(math.log2(seconds / 0.1 + 1))
    assert 8 <= n <= most * 4, f"{n} decisions in {seconds} s for 4 CPUs"
    assert all(c["waiting"] for c in d.target("fake")["zones"][0]["cpus"][:4])
    # another policy is not kept waiting, nor is the operator
    d.ctl("policy", target="fake", policy="static", params={"high": 500})
    wait_for(lambda: all(c["word_high"] == 500 for c in f.dump()["cpus"]), 2)
    d.ctl("set", target="fake", cpu=1, high=999)
    wait_for(lambda: f.dump()["cpus"][1]["word_high"] == 999, 2)
    f.end()
    d.stop()
    replay_agrees(d)


@test
def outcomes_and_effects_are_filled_in():
    d = Daemon(log={"effect_samples": 5})
    f = Fake(d)

    def measured():
        return d.sql("SELECT * FROM decision WHERE outcome = 2 AND effect_n BETWEEN 1 AND 5 AND "
                     "after_alloc_pages > 0 AND before_alloc_pages > 0")
    rows = wait_for(measured)
    assert f.dump()["cpus"] and rows


@test
def a_client_that_never_reads_is_bounded_and_harms_nobody():
    d = Daemon(control={"max_queue_bytes": 65536})
    f = Fake(d, targets=4, cpus=64)
    s = socketlib.socket(socketlib.AF_UNIX)
    defer(s.close)
    s.connect(d.socket + ".ctl")
    s.setblocking(False)
    sent = 0
    end = time.monotonic() + 3
    while time.monotonic() < end and sent < 4000000:
        try:
            sent += s.send(b'{"cmd":"targets"}\n' * 500)
        except BlockingIOError:
            time.sleep(0.05)
            if sent > 200000:
                break
    rss = [int(x.split()[1]) for x in open(f"/proc/{d.proc.pid}/status") if x.startswith("VmRSS")][0]
    assert rss < 60000 * (8 if VARIANT != "release" else 1), f"{rss} KiB"
    assert d.ctl("version")["n_targets"] == 4
    # what it sent is answered in order once it reads
    s.setblocking(True)
    s.settimeout(10 * SLOW)
    got = b""
    while got.count(b"\n") < 1000:
        got += s.recv(65536)
    assert all(json.loads(x)["ok"] for x in got.split(b"\n")[:1000])
    r = d.ctl_raw({"cmd": "status"})
    assert not r["ok"] and "max_queue_bytes" in r["error"], str(r)[:200]
    assert d.ctl_raw({"cmd": "status", "target": f.id})["ok"]


@test
def lines_that_are_too_long_and_clients_that_are_too_many_are_turned_away():
    d = Daemon(control={"max_clients": 3})
    r = d.ctl_raw('{"cmd":"' + "x" * 70000)
    assert not r["ok"] and "65536" in r["error"], r
    idle = []
    for _ in range(3):
        s = socketlib.socket(socketlib.AF_UNIX)
        s.connect(d.socket + ".ctl")
        defer(s.close)
        idle.append(s)

    def turned_away():
        try:
            return "too many" in d.ctl_raw({"cmd": "version"}).get("error", "")
        except OSError:
            return True
    wait_for(turned_away)
    idle[0].close()
    wait_for(lambda: d.ctl_raw({"cmd": "version"})["ok"])


@test
def silent_clients_make_room():
    d = Daemon(control={"max_clients": 2})
    silent, talks = (socketlib.socket(socketlib.AF_UNIX) for _ in range(2))
    for s in silent, talks:
        s.connect(d.socket + ".ctl")
        s.settimeout(10 * SLOW)
        defer(s.close)

    def other_is_served():
        talks.sendall(b'{"cmd":"version"}\n')
        assert json.loads(talks.recv(65536))["ok"]
        try:
            return d.ctl_raw({"cmd": "version"})["ok"]
        except OSError:
            return False
    wait_for(other_is_served, 30)
    assert silent.recv(1) == b"", "the silent one was closed"
    talks.sendall(b'{"cmd":"version"}\n')
    assert json.loads(talks.recv(65536))["ok"]


@test
def many_requests_in_one_write_are_answered_in_order():
    d = Daemon()
    with socketlib.socket(socketlib.AF_UNIX) as s:
        s.connect(d.socket + ".ctl")
        s.sendall(b'{"cmd":"version"}\n\n{"cmd":"nope"}\n{"cmd":"targets"}\n')
        s.shutdown(socketlib.SHUT_WR)
        got = b""
        while True:
            more = s.recv(65536)
            if not more:
                break
            got += more
    a = [json.loads(x) for x in got.splitlines()]
    assert [x["ok"] for x in a] == [True, False, True], a


@test
def other_users_may_look_but_not_change():
    if os.geteuid() != 0:
        skip("needs root to become another user")
    d = Daemon(control={"mode": "0666"})
    os.chmod(d.dir, 0o755)
    f = Fake(d)
    code = ("import socket,sys,os\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\n"
            "s.connect(sys.argv[1])\n"
            "s.sendall(sys.argv[2].encode()+b'\\n')\nprint(s.recv(1<<20).decode())")

    def as_nobody(**request):
        r = run([sys.executable, "-c", code, d.socket + ".ctl", json.dumps(request)])
        assert r.returncode == 0, r
        return json.loads(r.stdout)
    if not all(os.stat(p).st_mode & 1 for p in (d.dir, os.path.dirname(d.dir))):
        skip("the temporary directory is closed to other users")
    assert as_nobody(cmd="targets")["ok"]
    assert as_nobody(cmd="policy", target=f.id)["ok"]
    for request in (dict(cmd="set", target=f.id, high=100), dict(cmd="unset", target=f.id),
                    dict(cmd="policy", target=f.id, policy="static")):
        r = as_nobody(**request)
        assert not r["ok"] and r["code"] == "denied", r


def ask_to_record(s, target):
    s.sendall(json.dumps({"cmd": "record", "target": target}).encode() + b"\n")


@test
def a_recording_is_a_socket_that_goes_with_the_answer():
    d = Daemon()
    f = Fake(d, records=True)
    d.ctl("status")
    before = descriptors(d.proc.pid)
    s = socketlib.socket(socketlib.AF_UNIX)
    defer(s.close)
    s.settimeout(10 * SLOW)
    s.connect(d.socket + ".ctl")

    def answer(n=1):
        text, fds, _, _ = socketlib.recv_fds(s, 65536, 4)
        for fd in fds:
            defer(os.close, fd)
        while text.count(b"\n") < n:
            text += s.recv(65536)
        return [json.loads(x) for x in text.splitlines()], fds

    ask_to_record(s, f.id)
    a, fds = answer()
    assert a[0]["ok"] and a[0]["result"]["id"] == f.id and len(fds) == 1, (a, fds)
    with socketlib.socket(fileno=os.dup(fds[0])) as end:
        assert end.type == socketlib.SOCK_SEQPACKET and end.family == socketlib.AF_UNIX
    # other answers come without
    s.sendall(b'{"cmd":"version"}\n')
    a, fds = answer()
    assert a[0]["ok"] and not fds, (a, fds)
    # behind an answer that is not out yet it can not go; nothing is mixed up, nothing kept open
    s.sendall(b'{"cmd":"version"}\n{"cmd":"record","target":%d}\n{"cmd":"version"}\n' % f.id)
    a, fds = answer(3)
    assert [x["ok"] for x in a] == [True, bool(fds), True], (a, fds)
    assert fds or "not read yet" in a[1]["error"], a
    # who does not take it has none
    for _ in range(5):
        r = d.ctl_raw({"cmd": "record", "target": f.id})
        assert r["ok"], r
    wait_for(lambda: descriptors(d.proc.pid) <= before + 1)


@test
def a_target_that_does_not_read_its_requests_is_told_from_one_that_does():
    d = Daemon()
    f = Fake(d, records=True)
    before = descriptors(d.proc.pid)

    def full():
        """the connection takes no more requests"""
        r = d.ctl_raw({"cmd": "record", "target": f.id})
        assert r["ok"] or "can not be asked" in r["error"], r
        return not r["ok"]
    wait_for(full, step=0)
    assert d.ctl("status", target=f.id)["targets"][0]["name"] == "fake"
    wait_for(lambda: descriptors(d.proc.pid) <= before + 1)
    f.end()
    wait_for(lambda: not d.ctl("targets")["targets"])

main()
