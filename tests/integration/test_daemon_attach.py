#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The daemon's handshake: who may attach, who is refused and why, and how a target ends."""
import random
import struct

from daemon_fake import *

REASONS = {
    "wire-magic": "magic", "wire-version": "version", "wire-size": "bytes", "wire-layout": "layout",
    "short-hello": "bytes", "long-hello": "bytes", "segment-size": "segment of",
    "no-fd": "0 descriptors", "two-fds": "2 descriptors", "many-fds": "truncated",
    "pipe-fd": "segment", "garbage": "magic", "magic": "magic", "layout": "layout", "size": "size",
    "offset": "cpus_off", "wrap": "cpus_off", "stride": "stride", "cpus-0": "0 CPUs",
    "cpus-100000": "100000 CPUs", "zones": "65 zones", "unsealed": "seals", "short": "100 bytes",
    "slow": "no hello",
}


@test
def broken_hellos_and_segments_are_refused_with_the_reason_and_leave_nothing_open():
    d = Daemon()
    bad(d, "wire-magic")
    before = descriptors(d.proc.pid)
    for kind, text in REASONS.items():
        r = bad(d, kind)
        assert r["status"] > 0 and text in r["reason"], (kind, r)
    for kind in ("hang-up", "die"):
        assert bad(d, kind) is None
    f = Fake(d)
    assert f.reply["status"] == 0, f.reply
    f.end()
    wait_for(lambda: not d.ctl("targets")["targets"])
    wait_for(lambda: descriptors(d.proc.pid) <= before)
    wait_for(lambda: d.sql("SELECT count(*) FROM event WHERE kind = 'refused'")[0][0] >=
             len(REASONS))
    assert d.stop() == 0


@test
def many_silent_connections_do_not_keep_others_out():
    d = Daemon()
    silent = []
    for _ in range(200):
        s = socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_SEQPACKET)
        s.connect(d.socket)
        defer(s.close)
        silent.append(s)
    start = time.monotonic()
    f = Fake(d)
    assert f.reply["status"] == 0, f.reply
    # were they waited for in a row, 2 s each, it would have been 400 s
    assert time.monotonic() - start < len(silent)
    # each of them gets a reply and the end of file
    silent[0].settimeout(10 * SLOW)
    assert len(silent[0].recv(4096)) == 224
    wait_for(lambda: descriptors(d.proc.pid) < 60)


@test
def the_first_sample_counts_from_zero_and_a_short_life_is_counted():
    d = Daemon(interval_ms=60000)
    f = Fake(d, steps=3, step_ms=1, cpus=2, tag="00000000000000a1")
    f.proc.wait(10 * SLOW)
    s = wait_for(lambda: [s for s in [d.ctl("summary", tag="00000000000000a1")] if not s["live"]])[0]
    assert s["targets"] == 1 and s["pages_allocated"] == 3 * 2 * 64, s
    wait_for(lambda: d.sql("SELECT sum(alloc_pages) FROM sample")[0][0] == 3 * 2 * 64)
    t = d.sql("SELECT * FROM target")[0]
    assert t["end"] == "end of file" and t["detached_boot_us"] > 0, dict(t)
    assert not d.sql("SELECT * FROM decision"), "nothing is decided about a target that is gone"


@test
def fifty_short_processes_are_counted_one_by_one():
    d = Daemon()
    for _ in range(50):
        r = run([FAKE, "--socket", d.socket, "--steps", "2", "--step-ms", "1", "--tag", "beef"])
        assert r.returncode == 0, r
    s = d.ctl("summary", tag="000000000000beef")
    assert s["targets"] == 50 and s["pages_allocated"] == 50 * 2 * 4 * 64, s
    wait_for(lambda: d.sql("SELECT count(*) FROM target WHERE end != ''")[0][0] == 50)
    wait_for(lambda: d.sql("SELECT sum(alloc_pages) FROM sample")[0][0] == 50 * 2 * 4 * 64)


@test
def a_killed_target_ends_by_end_of_file():
    d = Daemon()
    f = Fake(d)
    d.target("fake")
    f.kill()
    wait_for(lambda: not d.ctl("targets")["targets"])
    wait_for(lambda: [t for t in d.sql("SELECT * FROM target") if t["end"]])


@test
def a_target_that_talks_after_its_hello_is_detached_alone():
    d = Daemon()
    good = Fake(d, name="good")
    f = Fake(d, name="chatty")
    f.cmd("chatter")
    wait_for(lambda: [t["name"] for t in d.ctl("targets")["targets"]] == ["good"])
    assert good.dump()["lease_ns"] > 0


@test
def the_same_target_attaching_again_replaces_its_old_self():
    d = Daemon()
    f = Fake(d, name="twice")
    d.target("twice")
    with socketlib.socket(socketlib.AF_UNIX):
        again = f.cmd("attach")
    assert again["status"] == 0 and again["id"] != f.id, again
    t = d.target("twice")
    assert t["id"] == again["id"]
    assert len(d.ctl("targets")["targets"]) == 1


@test
def the_same_identity_from_a_second_connection_wins():
    d = Daemon()
    # the start time is part of the identity, so another segment with the same id is another target
    a = Fake(d, name="a", id="1234")
    b = Fake(d, name="b", id="1234")
    assert a.reply["status"] == b.reply["status"] == 0
    assert len(d.ctl("targets")["targets"]) == 2


@test
def a_reconnected_target_counts_from_the_reconnection():
    d = Daemon()
    f = Fake(d, name="re")
    wait_for(lambda: d.target("re")["zones"][0]["cpus"][0]["alloc_pages"] > 1000)
    f.cmd("rest")
    f.cmd("attach")
    t = d.target("re")
    assert t["zones"][0]["cpus"][0]["alloc_pages"] == 0, t
    f.cmd("work 1000")
    wait_for(lambda: d.target("re")["zones"][0]["cpus"][0]["alloc_pages"] > 0)


@test
def targets_beyond_max_targets_are_refused():
    d = Daemon(max_targets=2)
    f = Fake(d, targets=3)
    assert [r["status"] == 0 for r in f.replies] == [True, True, False], f.replies
    assert "max_targets" in f.replies[2]["reason"]


@test
def more_cpus_than_max_cpus_are_refused():
    d = Daemon(max_cpus=8)
    f = Fake(d, cpus=9)
    assert f.reply["status"] > 0 and "9 CPUs" in f.reply["reason"], f.reply


@test
def without_descriptors_the_listener_pauses_and_recovers():
    d = Daemon(start=False)
    script = f'ulimit -n 24; exec "{PCPTUNED}" --foreground -c "{d.config}"'
    p = spawn(["bash", "-c", script], stderr=subprocess.DEVNULL)
    d.proc = p
    wait_for(lambda: os.path.exists(d.socket))
    time.sleep(0.2)
    f = Fake(d, targets=20)
    assert any(r["status"] for r in f.replies), f.replies
    assert f.replies[0]["status"] == 0
    # whoever wants to know why can ask, and a reload has what it needs
    several = [socketlib.socket(socketlib.AF_UNIX) for _ in range(3)]
    for s in several:
        defer(s.close)
        s.settimeout(5 * SLOW)
        s.connect(d.socket + ".ctl")
        s.sendall(b'{"cmd":"targets"}\n')
    assert all(b'"fake"' in s.recv(65536) for s in several)
    p.send_signal(signal.SIGHUP)
    wait_for(lambda: [1 for e in d.sql("SELECT text FROM event WHERE kind LIKE '%reload%'")])
    ticks = open(f"/proc/{p.pid}/stat").read().rsplit(") ", 1)[1].split()
    cpu0 = int(ticks[11]) + int(ticks[12])
    time.sleep(1)
    ticks = open(f"/proc/{p.pid}/stat").read().rsplit(") ", 1)[1].split()
    assert int(ticks[11]) + int(ticks[12]) - cpu0 < 50 * SLOW, "spinning"
    f.end()

    def again():
        """a new target is taken in once descriptors are free"""
        return Fake(d).reply["status"] == 0
    wait_for(again)


@test
def counters_that_go_backwards_do_not_make_nonsense():
    d = Daemon(default={"policy": "static"})
    f = Fake(d, backwards=True)
    time.sleep(2)
    t = d.target("fake")
    for c in t["zones"][0]["cpus"]:
        assert 0 <= c["alloc_zone"] < 10**9, c
    f.end()
    d.stop()
    top = d.sql("SELECT max(alloc_zone), max(alloc_pages), max(held_pages) FROM sample")[0]
    assert max(top) < 10**9, tuple(top)
    assert d.integrity() == "ok"


@test
def segments_full_of_garbage_do_no_harm():
    d = Daemon(interval_ms=10, default={"policy": "contention"})
    bad_ones = Fake(d, targets=4, cpus=16, zones=2, step_ms=3, scribble=True)
    good = Fake(d, name="good")
    assert bad_ones.reply["status"] == 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for t in d.ctl("status")["targets"]:
            d.ctl("counters", target=t["id"])
            if t["name"] == "fake":
                d.ctl("set", target=t["id"], cpu=3, high=500)
                d.ctl("unset", target=t["id"])
        time.sleep(0.05)
    wait_for(lambda: good.dump()["cpus"][0]["high"] > 378)
    bad_ones.end()
    assert d.stop() == 0
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def random_datagrams_with_random_descriptors_do_no_harm():
    d = Daemon()
    rng = random.Random(7)
    before = descriptors(d.proc.pid)
    r, w = os.pipe()
    a, b = socketlib.socketpair()
    null = os.open("/dev/null", os.O_RDWR)
    folder = os.open("/", os.O_RDONLY)
    defer(lambda: (os.close(r), os.close(w), a.close(), b.close(), os.close(null),
                   os.close(folder)))
    hello = struct.pack("<IHHIIQ", 0x50435057, 1, 24, 1, 0, 4096)
    end = time.monotonic() + 2
    n = 0
    while time.monotonic() < end:
        s = socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_SEQPACKET)
        s.connect(d.socket)
        data = bytearray(hello if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 5000)))
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        fds = rng.sample([r, w, a.fileno(), b.fileno(), null, folder], rng.randrange(6))
        try:
            if fds:
                socketlib.send_fds(s, [bytes(data)], fds)
            else:
                s.send(bytes(data))
            for _ in range(rng.randrange(2)):
                s.send(b"more")
        except OSError:
            pass
        s.close()
        n += 1
    assert n > 100
    good = Fake(d)
    assert good.reply["status"] == 0
    good.end()
    wait_for(lambda: descriptors(d.proc.pid) <= before)
    assert d.sql("SELECT count(*) FROM event WHERE kind = 'refused'")[0][0] <= 100


@test
def the_lease_is_renewed_while_the_daemon_lives():
    seconds = 6
    d = Daemon(lease_ms=1000 * seconds)
    f = Fake(d)

    def lease():
        """It holds at a time that had come before the target was asked for it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        until = f.dump()["lease_ns"]
        assert until > now, (until, now)
        return until

    # renewed at half-time: the daemon may be kept from it for three seconds
    first = lease()
    wait_for(lambda: lease() > first)
    wait_for(lambda: lease() > first + seconds * 10**9)


@test
def a_real_program_attaches_and_reconnects_after_a_restart():
    pf = os.path.join(BENCH, "page_fault1")
    if not os.path.exists(pf):
        skip("bench/page_fault1 is not built")
    d = Daemon()
    spawn([pf, "--threads", "1", "--mib", "16", "--seconds", "50"], env={"PCPTUNE_SOCKET": d.socket},
          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t = d.target("page_fault1")
    d.kill9()
    d.start()
    again = wait_for(lambda: [x for x in d.ctl("status")["targets"] if x["name"] == "page_fault1"],
                     20)[0]
    assert again["pid"] == t["pid"]
    wait_for(lambda: sum(c["alloc_pages"] for z in d.target("page_fault1")["zones"]
                         for c in z["cpus"]) > 1000)


@test
def the_operator_hears_of_settings_that_mean_nothing():
    pf = os.path.join(BENCH, "page_fault1")
    d = Daemon()
    for env in ({"PCPALLOC_RULES": "g9", "PCPALLOC_HIGHT": "5"}, {"PCPALLOC_RULES": "g5"}):
        spawn([pf, "--threads", "1", "--mib", "16", "--seconds", "50"],
              env={"PCPTUNE_SOCKET": d.socket, **env}, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(d.ctl("status")["targets"]) == 2)
    assert len(re.findall(r"page_fault1 .*: 2 of the PCPALLOC_ settings in its environment not understood",
                          d.stderr())) == 1 and d.stderr().count("not understood") == 1, d.stderr()


@test
def a_program_that_found_no_room_attaches_when_there_is_some():
    d = Daemon(max_targets=1)
    f = Fake(d)
    assert f.reply["status"] == 0, f.reply
    spawn([os.path.join(BENCH, "page_fault1"), "--threads", "1", "--mib", "16", "--seconds", "50"],
          env={"PCPTUNE_SOCKET": d.socket}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: "max_targets" in d.stderr())
    f.end()
    d.target("page_fault1")


@test
def what_a_program_had_of_its_own_survives_a_crash_of_the_daemon():
    pf = os.path.join(BENCH, "page_fault1")
    d = Daemon(lease_ms=60000)
    spawn([pf, "--threads", "1", "--mib", "64", "--seconds", "50"],
          env={"PCPTUNE_SOCKET": d.socket}, stdout=subprocess.DEVNULL)

    def cpus():
        return [c for t in d.ctl("status")["targets"] for z in t["zones"] for c in z["cpus"]]

    def tuned():
        """contention has changed limits"""
        return [c for c in cpus() if c["rules"] != "g6"]

    d.target("page_fault1")
    wait_for(tuned)
    d.ctl("set", target="page_fault1", high=5000)  # CPUs that were never used, too
    d.kill9()
    d.start()
    d.target("page_fault1")
    assert tuned(), "the lease is long, the values stay until the daemon is back"
    assert d.stop() == 0
    assert d.sql("SELECT count(*) FROM event WHERE text LIKE '%defaults of the program%'")[0][0] == 1
    d.configure(dry_run=True)
    d.start()
    d.target("page_fault1")
    wait_for(lambda: cpus())
    assert not [c for c in cpus() if c["rules"] != "g6" or c["high_min"] == c["high_max"]], cpus()

main()
