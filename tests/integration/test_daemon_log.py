#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The decision log of the daemon: write-ahead, losses, kills at any moment."""
import random

from daemon_fake import *


def start_limited(d, blocks):
    """The daemon with a limit on the size of every file it writes: what a full disk is like."""
    err = open(d.stderr_path, "a")
    p = subprocess.Popen(["bash", "-c", f'ulimit -f {blocks}; exec "$@"', "x", PCPTUNED,
                          "--foreground", "-c", d.config], stdin=subprocess.DEVNULL, stdout=err,
                         stderr=err)
    err.close()
    defer(end_process, p)
    d.proc = p

    def up():
        try:
            return d.ctl("version")
        except OSError:
            return None
    wait_for(up)


def log_state(d):
    return d.ctl("version")["log"]


@test
def every_applied_decision_is_in_the_log_after_a_kill_at_any_moment():
    rng = random.Random(20261130)
    d = Daemon(interval_ms=20, settle_ms=0, lease_ms=60000)
    f = Fake(d, targets=3, cpus=4, step_ms=5)
    adopted = set()
    rounds = 0
    while rounds < 6 or (len(adopted) <= 50 and rounds < 60):
        rounds += 1
        end = time.monotonic() + rng.uniform(0.05, 0.8)
        while time.monotonic() < end:
            # changes from both sides: the policy's, and many of the operator's
            for t in d.ctl("targets")["targets"]:
                d.ctl("set", target=t["id"], cpu=rng.randrange(4), high=rng.randrange(400, 4000))
            if rng.random() < 0.3:
                d.ctl("unset", target=d.ctl("targets")["targets"][0]["id"])
        d.kill9()
        dump = f.cmd("dump")
        for t in dump["targets"]:
            adopted |= set(t["adopted"])
            adopted |= {c["decision"] for c in t["cpus"]}
        assert d.integrity() == "ok"
        d.start()
        f.cmd("attach", 3)
    adopted.discard(0)
    assert len(adopted) > 50, len(adopted)
    logged = {r[0] for r in d.sql("SELECT id FROM decision")}
    assert adopted <= logged, adopted - logged
    f.end()
    d.stop()
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def the_samples_that_a_decision_came_from_are_in_the_log_with_it():
    d = Daemon(log={"chunk_ms": 60000})
    f = Fake(d)
    wait_for(lambda: f.dump()["cpus"][0]["decision"])
    d.kill9()
    for seq, target in d.sql("SELECT DISTINCT seq, target FROM decision"):
        assert d.sql("SELECT 1 FROM sample WHERE target = ? AND seq_first <= ? AND seq_last >= ?",
                     target, seq, seq), seq
    replay_agrees(d)


@test
def the_log_of_an_ordinary_day_replays_to_the_same_decisions():
    d = Daemon(interval_ms=20)
    a = Fake(d, targets=3, cpus=5, step_ms=7)
    time.sleep(1.5)
    a.cmd("rest")
    b = Fake(d, name="late", step_ms=30, active=500)
    time.sleep(1)
    a.cmd("work 400")
    time.sleep(1)
    a.end()
    time.sleep(0.3)
    assert d.stop() == 0
    assert d.sql("SELECT count(*) FROM decision")[0][0] > 10
    b.end()
    replay_agrees(d)
    gaps = d.sql("SELECT a.seq_last, b.seq_first FROM sample a JOIN sample b ON a.target = b.target "
                 "AND b.seq_first = (SELECT min(seq_first) FROM sample c WHERE c.target = a.target "
                 "AND c.seq_first > a.seq_last) WHERE b.seq_first != a.seq_last + 1")
    assert not gaps, [tuple(g) for g in gaps]


@test
def without_activity_nothing_is_written():
    d = Daemon(default={"policy": "static"}, log={"chunk_ms": 500})
    f = Fake(d, active=0, targets=5)

    def log():
        return *d.sql("SELECT count(*), sum(length(data)) FROM sample")[0], \
            sum(os.path.getsize(d.db + s) for s in ("", "-wal") if os.path.exists(d.db + s))

    def at_rest():
        """what there was to write at the beginning has been written"""
        before = log()
        time.sleep(1)
        return before == log() and before
    n = wait_for(at_rest)
    time.sleep(2)
    assert n == log(), (n, log())
    f.cmd("work 1000")
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > n[0])
    row = d.sql("SELECT max(dt_us) FROM sample")[0][0]
    assert row > 2_000_000, row


@test
def on_a_full_disk_tuning_goes_on_and_losses_are_counted():
    d = Daemon(start=False, interval_ms=20, log={"chunk_ms": 20})
    start_limited(d, 200)  # 1 KiB blocks
    f = Fake(d, cpus=64, step_ms=10)
    wait_for(lambda: log_state(d)["state"] == "lost", 30)
    wait_for(lambda: log_state(d)["lost_samples"] > 5)
    assert log_state(d)["error"]
    seq = f.dump()["cpus"][3]["seq"]
    d.ctl("set", target="fake", cpu=3, high=1234)
    wait_for(lambda: f.dump()["cpus"][3]["high"] == 1234)
    assert f.dump()["cpus"][3]["seq"] > seq
    assert f.dump()["cpus"][3]["decision"] == 0, "not in the log, so without an id"
    assert log_state(d)["lost_decisions"] >= 1
    assert d.stderr().count("can not be written") == 1, "said once"
    d.stop()
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def on_a_full_disk_a_required_log_holds_everything():
    d = Daemon(start=False, interval_ms=20, on_exit="keep", log={"chunk_ms": 20, "required": True})
    start_limited(d, 200)
    f = Fake(d, cpus=64, step_ms=10)
    wait_for(lambda: log_state(d)["state"] == "lost", 30)
    before = f.dump()["cpus"]
    r = d.ctl_raw({"cmd": "set", "target": "fake", "high": 1234})
    assert not r["ok"] and "log.required" in r["error"], r
    assert "held" in d.target("fake")["why"]
    time.sleep(1)
    assert [c["seq"] for c in f.dump()["cpus"]] == [c["seq"] for c in before]
    adopted = {c["decision"] for c in before} - {0} | set(f.dump()["adopted"])
    d.stop()
    logged = {r[0] for r in d.sql("SELECT id FROM decision")}
    assert adopted <= logged, adopted - logged
    replay_agrees(d)


@test
def when_the_log_works_again_the_gap_is_marked_and_the_replay_goes_on():
    d = Daemon(interval_ms=20, log={"chunk_ms": 20})
    f = Fake(d, step_ms=10)
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > 3)
    os.rename(d.db, d.db + ".gone")
    for s in ("-wal", "-shm"):
        if os.path.exists(d.db + s):
            os.unlink(d.db + s)
    wait_for(lambda: os.path.exists(d.db) and log_state(d)["state"] == "ok", 20)
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > 3)
    assert d.sql("SELECT * FROM event WHERE kind = 'log-lost'")
    assert f.dump()["lease_ns"]
    d.ctl("set", target="fake", cpu=0, high=555)
    f.end()
    d.stop()
    assert d.sql("SELECT count(*) FROM target")[0][0] == 1
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def what_was_measured_of_decisions_in_a_log_that_is_gone_is_not_written_to_others():
    d = Daemon(interval_ms=20, default={"policy": "static"}, log={"chunk_ms": 20, "effect_samples": 150})
    f = Fake(d, step_ms=10)
    wait_for(lambda: d.ctl("targets")["targets"][0]["decisions"])
    time.sleep(0.5)
    d.ctl("set", target="fake", high=600)
    last = d.ctl("set", target="fake", high=700)["decisions"][-1]
    assert last > 2
    os.rename(d.db, d.db + ".gone")
    wait_for(lambda: os.path.exists(d.db) and log_state(d)["state"] == "ok", 20)
    d.ctl("set", target="fake", cpu=0, high=800)
    n = d.sql("SELECT max(seq_last) FROM sample")[0][0] or 0
    wait_for(lambda: (d.sql("SELECT max(seq_last) FROM sample")[0][0] or 0) > n + 200, 20)
    f.end()
    assert d.stop() == 0
    assert d.stderr().count("can not be written") == 1, d.stderr()
    assert d.integrity() == "ok"


@test
def a_writer_that_holds_the_log_is_outlived():
    d = Daemon(interval_ms=20, log={"chunk_ms": 20})
    f = Fake(d, step_ms=10)
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > 3)
    c = sqlite3.connect(d.db, isolation_level=None, timeout=10)
    c.execute("BEGIN IMMEDIATE")
    wait_for(lambda: log_state(d)["state"] == "lost", 20)
    wait_for(lambda: log_state(d)["lost_samples"] > 0)
    c.execute("ROLLBACK")
    c.close()
    wait_for(lambda: log_state(d)["state"] == "ok", 20)
    n = d.sql("SELECT count(*) FROM sample")[0][0]
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > n + 3)
    e = d.sql("SELECT text FROM event WHERE kind = 'log-lost'")
    assert len(e) == 1 and "samples" in e[0][0], [tuple(x) for x in e]
    assert d.sql("SELECT count(*) FROM target")[0][0] == 1
    wait_for(lambda: d.sql("SELECT count(*) FROM state")[0][0] >= 1)
    f.end()
    d.stop()
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def a_log_directory_that_can_not_be_written():
    if os.geteuid() == 0:
        # root writes everywhere on an ordinary file system: use one that has no files to write
        where = "/proc/self/x/log.db"
    else:
        base = tmp()
        os.chmod(base, 0o500)
        defer(os.chmod, base, 0o700)
        where = base + "/x/log.db"
    d = Daemon(start=False, log={"path": where, "required": True})
    for how in ("--check", "--foreground"):
        r = run([PCPTUNED, how, "-c", d.config])
        assert r.returncode == 1 and where in r.stderr, r
    d.configure(log={"required": False})
    d.start()
    f = Fake(d)
    wait_for(lambda: f.dump()["cpus"][0]["high"] > 378)
    s = log_state(d)
    assert s["state"] == "lost" and s["lost_samples"] > 0 and s["path"] == where, s
    assert d.stop() == 0


@test
def a_damaged_log_is_set_aside_and_a_new_one_begun():
    d = Daemon()
    f = Fake(d)
    wait_for(lambda: f.dump()["cpus"][0]["decision"])
    d.stop()
    f.end()
    with open(d.db, "r+b") as db:
        db.seek(100)
        db.write(random.Random(1).randbytes(40000))
    d.start()
    assert log_state(d)["state"] == "ok"
    assert [x for x in os.listdir(d.dir) if x.startswith("log.db.damaged")]
    Fake(d)
    wait_for(lambda: d.sql("SELECT count(*) FROM target")[0][0] == 1)


@test
def a_file_that_is_not_a_log_of_ours_is_never_touched():
    d = Daemon(start=False, log={"required": True})
    with sqlite3.connect(d.db) as c:
        c.execute("CREATE TABLE precious (x)")
    before = open(d.db, "rb").read()
    for how in ("--check", "--foreground"):
        r = run([PCPTUNED, how, "-c", d.config])
        assert r.returncode == 1 and "not a log of pcptune" in r.stderr, r
    assert open(d.db, "rb").read() == before


@test
def without_a_log_everything_else_works():
    d = Daemon(log={"enabled": False})
    f = Fake(d)
    wait_for(lambda: f.dump()["cpus"][0]["high"] > 378)
    assert log_state(d)["state"] == "off" and not os.path.exists(d.db)
    assert d.ctl("set", target="fake", cpu=1, high=888)["changed"] == 1
    wait_for(lambda: f.dump()["cpus"][1]["high"] == 888)
    assert d.stop() == 0
    assert not os.path.exists(d.db)


@test
def a_reload_keeps_the_locks_on_the_log():
    d = Daemon()
    f = Fake(d)
    d.configure(log={"max_bytes": 50_000_000})
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded" in d.stderr())
    c = sqlite3.connect(d.db)  # may write; as the last one to close it would remove the journal
    c.execute("SELECT count(*) FROM decision").fetchall()
    c.close()
    assert os.path.exists(d.db + "-wal"), "the daemon writes into a file that is gone"
    ids = d.ctl("set", target=f.id, high=100)["decisions"]
    d.kill9()
    assert d.sql(f"SELECT count(*) FROM decision WHERE id IN ({','.join(map(str, ids))})")[0][0] \
        == len(ids) > 0
    assert d.integrity() == "ok"

@test
def a_log_has_one_writer():
    d = Daemon()
    e = Daemon(start=False, log={"path": d.db, "required": True})
    for more in ([], ["--check"]):
        r = run([PCPTUNED, "--foreground", "-c", e.config, *more])
        assert r.returncode == 1 and f"another pcptuned writes {d.db}: pid {d.proc.pid}, " \
            f"configuration {d.config}" in r.stderr, r
    e.configure(log={"required": False})
    e.start()
    f = Fake(e)
    log = e.ctl("version")["log"]
    assert log["state"] == "lost" and f"pid {d.proc.pid}" in log["error"], log
    assert e.ctl("set", target=f.id, high=100)["decisions"] == [], "not in the other one's log"
    runs = d.sql("SELECT count(*) FROM run")[0][0]
    d.kill9()
    wait_for(lambda: e.ctl("version")["log"]["state"] == "ok", timeout=20)
    assert runs == 1 and e.ctl("set", target=f.id, high=101)["decisions"]
    assert d.integrity() == "ok"
    e.stop()
    assert not os.path.exists(d.db + ".lock"), "a clean stop leaves no lock file"

@test
def a_replay_can_begin_at_a_saved_state_when_older_samples_are_gone():
    d = Daemon(interval_ms=10, log={"chunk_ms": 100})
    Fake(d, step_ms=5)
    saved = wait_for(lambda: d.sql("SELECT max(seq) FROM state WHERE length(state) > 0")[0][0],
                     timeout=120, step=0.5)
    assert 2000 <= saved < 2200, "every 2000 samples, with the next chunk"
    before = d.sql("SELECT count(*) FROM decision")[0][0]
    wait_for(lambda: d.sql("SELECT max(seq_last) FROM sample")[0][0] > saved + 100)
    d.stop()
    with sqlite3.connect(d.db) as c:
        c.execute("DELETE FROM sample WHERE seq_first <= ?", (saved,))
    r = run([PCPTUNE, "verify", "--json", "--db", d.db, "--policy-path", POLICIES])
    v = json.loads(r.stdout)
    assert r.returncode == 0 and v["ok"] and v["samples"] >= 100, v
    assert v["not_derivable"] >= before, v

main()
