#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Policies that are not ours: each has a process of its own, and what goes wrong there costs only it."""
from foreign_policy import *


@test
def a_good_one_runs_in_a_process_of_its_own_and_its_log_replays():
    where, d = with_policies("good", default={"policy": "good"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good", policy_state="running")
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    kid, = settled(d, 1)
    with open(f"/proc/{d.proc.pid}/maps") as m:
        assert "good.so" not in m.read(), "its code is not in the daemon"
    with open(f"/proc/{kid}/status") as s:
        text = s.read()
    assert "NoNewPrivs:\t1" in text
    assert os.getsid(kid) == kid
    fds = os.listdir(f"/proc/{kid}/fd")
    assert sorted(fds) == ["0", "1", "2", "3"], fds
    if os.geteuid() == 0:
        assert "Uid:\t65534\t65534" in text, "root's daemon runs it as nobody"
    f.end()
    wait_for(lambda: not children(d))
    assert d.stop() == 0
    assert replays(d, where) > 0


def benched(name, expect, replay=True, **plugin):
    """What becomes of a policy, of the daemon, and of the target beside it."""
    where, d = with_policies((name, DEEDS[name]), plugin=plugin, default={"policy": "contention"},
                             rules=[{"program": "bad", "policy": name}])
    other = Fake(d, name="other", step_ms=5)
    f = Fake(d, name="bad", step_ms=5)
    t = d.target("bad", policy_state="benched")
    assert t["policy"] == "static" and f"{name} was benched" in t["why"], t
    assert re.search(expect, t["why"]), t["why"]
    assert f.dump()["cpus"][0]["high"] == 600, "the last good setting stays"
    wait_for(lambda: d.sql("SELECT count(*) FROM event WHERE kind = 'benched'")[0][0] == 1)
    assert d.sql("SELECT count(*) FROM event WHERE kind = 'policy-breach'")[0][0] == 3
    wait_for(lambda: not children(d))
    alive(d, other)
    assert d.ctl("policy", target="bad", policy="kernel")["state"] == "running"
    end(d, where, f, other, replay=replay)


@test
def a_crash_in_decide_costs_only_that_policy():
    # a sanitizer makes an exit of it, and takes its time for that
    benched("crash", r"signal 11" if VARIANT == "release" else r"signal|status|CPU time")


@test
def an_infinite_loop_is_ended_by_its_cpu_time():
    benched("loop", r"ms of CPU time")


@test
def one_that_never_answers_is_ended_by_the_clock():
    ms = 300 * SLOW  # what it does before it sleeps takes a while, too
    benched("sleeps", f"no answer within {ms} ms", answer_ms=ms)


@test
def an_exit_in_decide_costs_only_that_policy():
    benched("ends", r"ended with status 0" if VARIANT == "release" else r"ended with status")


@test
def one_that_closes_its_socket_is_ended():
    benched("closes", r"closed its socket")


@test
def one_that_speaks_out_of_turn_is_ended():
    benched("babbles", r"nobody asked")


@test
def a_huge_allocation_ends_at_its_limit():
    if VARIANT != "release":
        skip("sanitizers take more address space than a limit allows")
    benched("greedy", r"signal 6", memory_mib=64)


@test
def allocating_without_end_is_refused_at_the_limit():
    if VARIANT != "release":
        skip("sanitizers take more address space than a limit allows")
    # a replay runs here, without a limit
    benched("huge", r"decide returned -12", replay=False, memory_mib=16, call_ms=5000)


@test
def a_high_out_of_range_is_a_broken_contract():
    benched("high", r"value out of range")


@test
def more_changes_than_there_is_room_for_are_a_broken_contract():
    benched("many", r"room is for")


@test
def an_answer_that_took_too_much_cpu_time_counts_and_is_a_broken_contract():
    benched("slow", r"[6-9]\d ms of CPU time|no answer after", call_ms=20)


@test
def what_it_writes_into_its_sample_is_its_own_affair():
    where, d = with_policies(("scribbles", DEEDS["scribbles"]), default={"policy": "scribbles"})
    f = Fake(d, step_ms=5)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    wait_for(lambda: d.sql("SELECT max(seq_last) FROM sample")[0][0] > 20)
    assert d.target("fake")["policy"] == "scribbles"
    end(d, None, f, replay=False)
    assert d.integrity() == "ok"


@test
def a_constructor_that_hangs_or_dies_does_not_keep_the_daemon():
    where, d = with_policies(
        "good", ctor="__attribute__((constructor)) static void c(void) { abort(); }")
    f = Fake(d, step_ms=5)
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "good"})
    assert not r["ok"] and "signal 6" in r["error"], r
    assert d.target("fake")["policy"] == "contention"
    assert d.ctl("policy", target="fake")["why"] == "default"
    build(where, "good", ctor="__attribute__((constructor)) static void c(void) { pause(); }")
    with socketlib.socket(socketlib.AF_UNIX) as s:
        s.settimeout(30 * SLOW)
        s.connect(d.socket + ".ctl")
        s.sendall(b'{"cmd":"policy","target":"fake","policy":"good"}\n{"cmd":"version"}\n')
        for _ in range(5):
            alive(d, f)
        buf = b""
        while buf.count(b"\n") < 2:
            buf += s.recv(65536)
    first, second = (json.loads(x) for x in buf.splitlines())
    assert not first["ok"] and "did not start" in first["error"], first
    assert second["ok"], "requests are answered in their order"
    r = run([PCPTUNED, "--check", "-c", d.config, "--policy-path", path(where)])
    assert r.returncode == 1 or "good" not in r.stdout
    end(d, None, f, replay=False)


@test
def a_policy_by_hand_answers_when_it_is_in_force_or_refused():
    where, d = with_policies("good", default={"policy": "static"})
    f = Fake(d, step_ms=5)
    p = d.ctl("policy", target="fake", policy="good", params={"high": 700})
    assert p["policy"] == "good" and p["state"] == "running" and p["params"]["high"] == 700, p
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 700)
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "params": {"odd": "yes"}})
    assert not r["ok"] and "odd is for others" in r["error"], r
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "good", "params": {"hihg": 1}})
    assert not r["ok"] and 'did you mean "high"' in r["error"], r
    p = d.ctl("policy", target="fake", params={"high": 800})
    assert p["params"] == {"high": 800, "odd": "no"}, p
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 800)
    end(d, where, f)


@test
def mistakes_in_its_parameters_are_found_before_a_start():
    _, d = with_policies("good", start=False, default={"policy": "good", "params": {"high": 1}},
                         rules=[{"program": "x", "policy": "good", "params": {"odd": "yes"}}])
    r = run([PCPTUNED, "--check", "-c", d.config])
    assert r.returncode == 1, r
    assert "high" in r.stderr and "4..100000" in r.stderr and "odd is for others" in r.stderr, r.stderr


@test
def what_the_operator_sets_while_a_policy_thinks_stays():
    where, d = with_policies(("good", "usleep(400000);"), default={"policy": "good"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good")
    for n in range(4):  # it says 600 each time it may, and is asked most of the time
        d.ctl("unset", target="fake")
        time.sleep(0.1)
        d.ctl("set", target="fake", cpu=0, high=300 + n)
        wait_for(lambda: f.dump()["cpus"][0]["high"] == 300 + n)
        time.sleep(0.6)
        assert f.dump()["cpus"][0]["high"] == 300 + n
    end(d, where, f)


@test
def the_log_goes_on_although_its_policy_thinks_nearly_always():
    """What is missing in the log is mended in between, whenever that is."""
    deed = 'if (!getenv("HOME")) usleep(1980000);'  # not in a replay
    where, d = with_policies(("good", deed), default={"policy": "good"})
    f = Fake(d, step_ms=5)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    c = sqlite3.connect(d.db, isolation_level=None, timeout=10)
    c.execute("BEGIN IMMEDIATE")
    wait_for(lambda: d.ctl("version")["log"]["lost_samples"] > 0, 30)
    c.execute("ROLLBACK")
    c.close()
    wait_for(lambda: d.ctl("version")["log"]["state"] == "ok", 20)
    alive(d, f)
    end(d, where, f)


@test
def a_program_or_the_daemon_may_end_while_a_policy_thinks():
    where, d = with_policies(("good", "usleep(300000);"), default={"policy": "good"})
    for n in range(3):
        f = Fake(d, name=f"f{n}", step_ms=5)
        d.target(f"f{n}", policy="good")
        time.sleep(0.35 + 0.1 * n)
        f.end()
    f = Fake(d, name="last", step_ms=5)
    d.target("last", policy="good")
    for n in range(3):  # others come and go, that would have been sampled after it
        Fake(d, name=f"beside{n}", step_ms=5, steps=20).proc.wait(10 * SLOW)
    time.sleep(0.4)
    before = d.ctl("version")["uptime_s"]
    assert d.stop() == 0 and before > 0
    f.end()
    assert d.integrity() == "ok"
    replays(d, where)


@test
def bad_files_are_refused_with_a_reason_and_the_old_policy_goes_on():
    where, d = with_policies("good", default={"policy": "good"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good")
    kids = settled(d, 1)
    bad = {  # what is changed in the source: what the daemon says
        "abi": ("PCPTUNE_POLICY_SIZES,", "PCPTUNE_POLICY_SIZES, .abi = 2,",
                r"abi is 2, this host speaks 1"),
        "size": ("PCPTUNE_POLICY_SIZES,", "PCPTUNE_POLICY_SIZES, .cpu_size = 8,",
                 r"size of struct pcptune_cpu is 8, right is"),
        "symbol": ("pcptune_policy_v1 =", "pcptune_policy_v9 =", r"does not export"),
        "nulls": (".decide = decide,", "", r"is no function of the policy"),
        "table": (".n_reasons = 2,", ".n_reasons = 0,", r"0 reasons, right is"),
        "name": ('.name = "name"', '.name = "other"', r'the name is \"other\"'),
        "state": ("return sizeof(uint32_t);", "return (size_t)1 << 40;", r"bytes of state"),
        "lazy": ("return p[1] ? -EINVAL : 0;", "extern int nowhere(void); return nowhere();",
                 r"undefined symbol: nowhere"),
        "inits": ("return p[1] ? -EINVAL : 0;", "return 1;", r"inits"),
        "endless": ("return p[1] ? -EINVAL : 0;", "exit(3);", 
                    r"ended with status 3" if VARIANT == "release" else r"ended with status"),
    }
    for name, (old, new, says) in bad.items():
        build(where, name, change=(old, new))
        r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": name})
        assert not r["ok"] and re.search(says, r["error"]), (name, r)
        d.target("fake", policy="good", policy_state="running")
    open(where + "/text.so", "w").write("text")
    os.chmod(where + "/text.so", 0o755)
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "text"})
    assert not r["ok"] and "no shared object" in r["error"], r
    os.chmod(where + "/good.so", 0o777)
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "good"})
    assert not r["ok"] and "mode 0777 lets others write it" in r["error"], r
    wait_for(lambda: set(children(d)) == kids)
    end(d, None, f, replay=False)


@test
def a_guard_goes_back_on_the_real_allocator():
    """The policy makes a list much too short for its program; the guard does not let it."""
    where, d = with_policies(
        ("good", "if (*n < 80 || !sample->n_active) { d->reason = 2; return 0; }", 100),
        interval_ms=50, guard={"permille": 100, "ms": 1000},
        default={"policy": "static", "params": {"high": 20000, "rules": "gx"}})
    p = spawn([os.path.join(BENCH, "page_fault1"), "-t", "2", "-m", "16", "-s", "120"],
              env={"PCPTUNE_SOCKET": d.socket, "PCPALLOC_CPUS": "2"}, stdout=subprocess.DEVNULL)

    def high():
        return [c["high"] for c in d.ctl("status")["targets"][0]["zones"][0]["cpus"]]
    d.target("page_fault1", policy="static")
    wait_for(lambda: high()[:2] == [20000, 20000])
    d.ctl("policy", target="page_fault1", policy="good")

    def said(reason):
        return d.sql("SELECT * FROM decision WHERE reason_name = ?", reason)
    wait_for(lambda: said("step"), 30)
    wait_for(lambda: said("guard-traffic") or said("guard-waits"), 30)
    wait_for(lambda: high()[0] == 20000)
    time.sleep(2)
    assert high()[0] == 20000 and len(said("step")) == 1, "that direction is benched"
    p.kill()
    p.wait()
    end(d, where)


@test
def a_canary_of_a_foreign_policy_spreads():
    where, d = with_policies(("good", EVERY_CPU, 20000), interval_ms=50, canary={"ms": 1000},
        default={"policy": "static", "params": {"high": 600, "rules": "gx"}})
    f = Fake(d, cpus=5, step_ms=5)  # four, and the shared slot
    d.target("fake", policy="static")

    def highs():
        zones = d.ctl("status")["targets"][0]["zones"]
        return sorted(c["high"] for c in zones[0]["cpus"] if not c["shared"])
    wait_for(lambda: highs() == [600] * 4)
    d.ctl("policy", target="fake", policy="good", params={"canary_permille": 250})
    wait_for(lambda: highs() == [600] * 3 + [20000], 30)
    wait_for(lambda: highs() == [20000] * 4, 30)
    d.target("fake", policy="good", policy_state="running")
    assert d.sql("SELECT * FROM event WHERE kind = 'canary-spreads'")
    end(d, where, f)


@test
def a_file_that_was_written_anew_takes_over_at_a_reload_and_others_go_on():
    where, d = with_policies("good", "scribbles", default={"policy": "static"},
                             rules=[{"program": "a", "policy": "good"},
                                    {"program": "b", "policy": "scribbles"}])
    fakes = [Fake(d, name=n, step_ms=5) for n in ("a", "b", "c")]
    d.ctl("policy", target="c", policy="good", params={"high": 700})
    for f, high in zip(fakes, (600, 600, 700)):
        wait_for(lambda: f.dump()["cpus"][0]["high"] == high)
    kids = settled(d, 3)
    reloaded(d)
    assert "0 of 3 targets have a new policy" in d.stderr(), "nothing was written"
    # who is started stays as long as he is not in force, and another one goes then
    wait_for(lambda: set(children(d)) == kids)
    build(where, "good", high=900)
    reloaded(d)
    assert "2 of 3 targets have a new policy" in d.stderr()
    wait_for(lambda: fakes[0].dump()["cpus"][0]["high"] == 900)
    wait_for(lambda: d.ctl("policy", target="c")["params"] == {"high": 700, "odd": "no"} and
             len(set(children(d)) - kids) == 2 and len(set(children(d)) & kids) == 1)
    assert d.ctl("policy", target="c")["why"] == "by the operator"
    assert d.sql("SELECT count(*) FROM assignment WHERE policy = 'scribbles'")[0][0] == 1
    end(d, None, *fakes, replay=False)


@test
def a_bad_new_file_leaves_the_old_one_running():
    where, d = with_policies("good", default={"policy": "good"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good")
    kids = settled(d, 1)
    build(where, "good", high=900,
          ctor="__attribute__((constructor)) static void c(void) { abort(); }")
    reloaded(d)
    assert "not reloaded" in d.stderr() and "signal 6" in d.stderr()
    with open(where + "/good.new", "w") as g:
        g.write("no shared object")
    os.chmod(where + "/good.new", 0o755)
    os.rename(where + "/good.new", where + "/good.so")
    reloaded(d)
    assert "no shared object of this machine" in d.stderr()
    wait_for(lambda: set(children(d)) == kids)
    d.target("fake", policy="good", policy_state="running")
    build(where, "good", high=900)
    reloaded(d)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 900)
    end(d, None, f, replay=False)


def installation():
    """A copy of the programs with policies that are ours by their place and name."""
    root = place()
    os.makedirs(root + "/bin")
    shutil.copytree(POLICIES, root + "/lib/pcptune/policies")
    shutil.copy(PCPTUNED, root + "/bin")
    return root


def installed(root, **keys):
    d = Daemon(start=False, interval_ms=20, log={"chunk_ms": 50}, **keys)
    d.program = root + "/bin/pcptuned"
    return d.start()


@test
def one_of_ours_runs_in_the_daemon_and_is_held_to_its_time_too():
    root = installation()
    build(root + "/lib/pcptune/policies", "kernel", deed=DEEDS["slow"])
    build(root + "/lib/pcptune/policies", "good")
    d = installed(root, default={"policy": "kernel"}, plugin={"call_ms": 20},
                  rules=[{"program": "other", "policy": "good"}])
    other = Fake(d, name="other", step_ms=5)
    f = Fake(d, step_ms=5)
    t = d.target("fake", policy_state="benched")
    assert re.search(r"one answer took \d+ ms of CPU time", t["why"]), t
    assert f.dump()["cpus"][0]["high"] == 600
    assert settled(d, 1), "good.so lies at our place and is none of ours"
    end(d, root + "/lib/pcptune/policies", f, other)


@test
def one_of_ours_that_was_written_anew_takes_over_at_a_reload():
    root = installation()
    where = root + "/lib/pcptune/policies"
    build(where, "kernel", high=600)
    d = installed(root, default={"policy": "kernel"})
    f = Fake(d, step_ms=5)
    for high in (600, 900, 1200):
        build(where, "kernel", high=high)
        reloaded(d)
        wait_for(lambda: f.dump()["cpus"][0]["high"] == high)
    assert not children(d)
    end(d, None, f, replay=False)


@test
def its_process_ends_with_the_daemon():
    _, d = with_policies("good", default={"policy": "good"})
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good")
    kids = settled(d, 1)
    d.kill9()
    wait_for(lambda: not any(os.path.exists(f"/proc/{k}") for k in kids))
    f.end()


main()
