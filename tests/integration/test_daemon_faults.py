#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Policies that break their contract, stalls, programs that come and go while the log is away."""
from daemon_fake import *

ROGUE = r"""
#include <errno.h>
#include <pcptune/policy.h>
static const struct pcptune_reason reasons[] = {{1, 0, "step", "step"}, {2, 1, "wait", "wait"}};
static size_t state_size(const struct pcptune_shape *s, const int64_t *p)
{ (void)s; (void)p; return sizeof(uint32_t); }
static int init(void *st, const struct pcptune_shape *s, const int64_t *p)
{ (void)st; (void)s; (void)p; return 0; }
static int decide(void *st, const struct pcptune_shape *s, const int64_t *p,
		  const struct pcptune_sample *sample, struct pcptune_decision *d,
		  const struct pcptune_host *h)
{
	uint32_t *n = st;
	(void)s; (void)p; (void)h;
	if (sample->seq > 5)
		return -EIO;
	if (sample->n_active && (*n)++ == 0) {
		struct pcptune_change *c = pcptune_decision_add(d, sample->active[0], 1);
		c->high = 600;
		return 0;
	}
	d->reason = 2;
	return 0;
}
const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES, .name = "rogue", .version = "1", .summary = "breaks its contract",
	.reasons = reasons, .n_reasons = 2, .state_size = state_size, .init = init, .decide = decide,
};
"""


def rogue():
    """A directory of policies: ours, and one that fails from its sixth sample on."""
    requires("gcc")
    d = tmp()
    shutil.copy(os.path.join(POLICIES, "static.so"), d)
    with open(d + "/rogue.c", "w") as f:
        f.write(ROGUE)
    r = run(["gcc", "-shared", "-fPIC", "-I", os.path.join(ROOT, "include"), "-o", d + "/rogue.so",
             d + "/rogue.c"])
    assert r.returncode == 0, r.stderr
    for f in os.listdir(d):
        os.chmod(os.path.join(d, f), 0o644)
    if any(os.stat(p).st_mode & 0o022 and not os.stat(p).st_mode & 0o1000
           for p in (d, os.path.dirname(d))):
        skip("the temporary directory is one that policies are not loaded from")
    return d


@test
def a_policy_that_breaks_its_contract_is_benched_and_static_takes_over():
    where = rogue()
    d = Daemon(policy_path=where, default={"policy": "rogue"})
    f = Fake(d)
    t = d.target("fake", policy_state="benched")
    assert t["policy"] == "static" and "rogue was benched" in t["why"], t
    wait_for(lambda: d.sql("SELECT * FROM event WHERE kind = 'benched'"))
    assert d.sql("SELECT count(*) FROM event WHERE kind = 'policy-breach'")[0][0] == 3
    high = [c["high"] for c in f.dump()["cpus"]]
    assert high[0] == 600, high
    time.sleep(0.5)
    assert [c["high"] for c in f.dump()["cpus"]] == high, "static keeps the values as they are"
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded" in d.stderr())
    assert d.target("fake")["policy_state"] == "benched", "a reload is no pardon"
    p = d.ctl("policy", target="fake", policy="static")
    assert p["state"] == "running", p
    f.end()
    assert d.stop() == 0


@test
def a_stall_is_a_gap_and_no_burst_of_samples():
    d = Daemon(default={"policy": "static"}, log={"chunk_ms": 100})
    f = Fake(d)

    def last():
        return d.sql("SELECT max(seq_last) FROM sample")[0][0]
    wait_for(last)
    os.kill(d.proc.pid, signal.SIGSTOP)
    before = last()
    time.sleep(3)
    start = time.monotonic()
    os.kill(d.proc.pid, signal.SIGCONT)
    wait_for(lambda: d.sql("SELECT * FROM event WHERE kind = 'gap'"))
    time.sleep(0.5)
    after = last()
    # one every 100 ms since then, and some that were not written yet
    assert after - before < 10 * (time.monotonic() - start) + 15, (before, after)
    assert d.sql("SELECT max(dt_us) FROM sample")[0][0] > 2_900_000
    f.end()
    d.stop()
    replay_agrees(d)


@test
def targets_that_come_and_go_while_the_log_is_locked_are_logged_afterwards():
    d = Daemon(interval_ms=20, log={"chunk_ms": 20})
    old = Fake(d, name="old", step_ms=10)
    wait_for(lambda: d.sql("SELECT count(*) FROM sample")[0][0] > 3)
    c = sqlite3.connect(d.db, isolation_level=None, timeout=10)
    c.execute("BEGIN IMMEDIATE")
    wait_for(lambda: d.ctl("version")["log"]["state"] == "lost", 20)
    new = Fake(d, name="new", step_ms=10)
    assert new.reply["status"] == 0 and new.id != old.id
    old.end()
    gone = Fake(d, name="unseen", steps=2, step_ms=1)
    gone.proc.wait(10 * SLOW)
    c.execute("ROLLBACK")
    c.close()
    wait_for(lambda: d.ctl("version")["log"]["state"] == "ok", 20)
    rows = {r["name"]: r["end"] for r in d.sql("SELECT name, end FROM target")}
    assert rows["old"] == "end of file" and rows["new"] == "", rows
    d.ctl("set", target="new", cpu=0, high=444)
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE clamped_high = 444")[0][0] == 1)
    new.end()
    assert d.stop() == 0
    assert d.integrity() == "ok"
    replay_agrees(d)


@test
def a_crowd_comes_and_goes_without_a_trace():
    d = Daemon(interval_ms=20)
    before = descriptors(d.proc.pid)
    for _ in range(3):
        crowd = Fake(d, targets=60, cpus=2)
        assert all(r["status"] == 0 for r in crowd.replies)
        time.sleep(0.3)
        crowd.kill()
    wait_for(lambda: not d.ctl("targets")["targets"])
    wait_for(lambda: descriptors(d.proc.pid) <= before)
    maps = open(f"/proc/{d.proc.pid}/maps").read()
    assert "fake-target" not in maps
    assert wait_for(lambda: d.sql("SELECT count(*) FROM target WHERE end != ''")[0][0] == 180)
    assert d.stop() == 0


@test
def a_terminated_daemon_ends_at_once_however_busy():
    d = Daemon(interval_ms=10)
    f = Fake(d, targets=30, cpus=32, step_ms=10)
    time.sleep(0.5)
    # which waits 10 seconds for it; not one of the targets may be waited for
    assert d.stop() == 0
    assert d.sql("SELECT count(*) FROM target WHERE end = 'the daemon stopped'")[0][0] == 30
    f.end()
    replay_agrees(d)


main()
