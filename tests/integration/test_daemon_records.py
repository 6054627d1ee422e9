#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records of the band tracker: when they are taken, that they are in the log, and that a policy that
was given them can be replayed."""
from harness import *

FAULT = os.path.join(BENCH, "page_fault1")

# high follows from everything that a record says, so a replay without the same records differs
POLICY = r"""
#include <errno.h>
#include <pcptune/policy.h>

static const struct pcptune_param params[] = {
	{"scale", PCPTUNE_PARAM_INT, 0, 1, 1000, 500, "", "size of the values", 0}};
static const struct pcptune_reason reasons[] = {{1, 0, "record", "as the record said"},
						{2, 1, "none", "no record"}};
static size_t size(const struct pcptune_shape *s, const int64_t *p) { (void)s; (void)p; return 8; }
static int init(void *st, const struct pcptune_shape *s, const int64_t *p)
{
	(void)st; (void)s; (void)p;
	return 0;
}
static uint64_t digest(const struct pcptune_record *r)
{
	uint64_t h = r->flags + r->dt_us + r->refills + r->refilled + r->drains + r->drained;

	h = h * 31 + (uint64_t)r->band.start + r->band.n;
	for (uint32_t i = 0; i < PCPTUNE_BAND_STACK; i++)
		h = h * 31 + (uint64_t)r->band.s[i];
	for (uint32_t i = 0; i < PCPTUNE_BAND_BUCKETS; i++)
		h = h * 31 + r->band.count[i] + 7 * r->band.sum[i];
	return h;
}
static int decide(void *st, const struct pcptune_shape *s, const int64_t *p,
		  const struct pcptune_sample *sm, struct pcptune_decision *d,
		  const struct pcptune_host *h)
{
	uint64_t *seen = st;

	(void)s; (void)h;
	d->reason = 2;
	for (uint32_t i = 0; i < pcptune_sample_n_records(sm); i++) {
		const struct pcptune_record *r = pcptune_sample_record(sm, i);
		struct pcptune_change *c = pcptune_decision_add(d, r->index, 1);

		*seen = *seen * 3 + digest(r);
		c->high = c->high_min = c->high_max = 200 + (uint32_t)(*seen % (uint64_t)p[0]);
	}
	return 0;
}
const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES, .name = "records", .version = "1", .summary = "sets what records say",
	.params = params, .n_params = 1, .reasons = reasons, .n_reasons = 2,
	.state_size = size, .init = init, .decide = decide, .record_ms = 100};
"""


def policy():
    """A policy that asks for records; the path of its file."""
    requires_release()
    requires("gcc")
    d = tmp()
    with open(os.path.join(d, "records.c"), "w") as f:
        f.write(POLICY)
    so = os.path.join(d, "records.so")
    r = run(["gcc", "-std=gnu17", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-I",
             os.path.join(ROOT, "include"), "-o", so, os.path.join(d, "records.c")])
    assert r.returncode == 0, r
    return so


def fault(d, seconds=2):
    if not os.path.exists(FAULT):
        skip("bench/page_fault1 is not built")
    r = run([FAULT, "-t", "2", "-m", "32", "-s", str(seconds), "-w", "0"],
            env={"PCPTUNE_SOCKET": d.socket})
    assert r.returncode == 0, r


def rows(d, sql="SELECT level, seq_first, seq_last, n_records, length(data) FROM record ORDER BY id"):
    with sqlite3.connect(d.db) as c:
        v = c.execute(sql).fetchall()
    c.close()
    return v


@test
def what_a_policy_was_given_is_replayed_bit_for_bit():
    so = policy()
    d = Daemon(default={"policy": so})
    fault(d, seconds=3)
    d.stop()
    n, = rows(d, "SELECT count(*) FROM decision")[0]
    records, = rows(d, "SELECT sum(n_records) FROM record")[0]
    assert n > 1 and records >= n, (n, records)
    r = run([PCPTUNE, "verify", "--db", d.db, "--policy-path", os.path.dirname(so), "--json"])
    v = json.loads(r.stdout)
    assert r.returncode == 0 and v["ok"] and v["derived"] == n and v["not_derivable"] == 0, r
    # the records are what it takes: without them nothing is the same
    with sqlite3.connect(d.db) as c:
        c.execute("DELETE FROM record")
    c.close()
    r = run([PCPTUNE, "verify", "--db", d.db, "--policy-path", os.path.dirname(so), "--json"])
    v = json.loads(r.stdout)
    assert r.returncode == 3 and v["differ"] > 0, r


@test
def a_kill_at_any_moment_leaves_decisions_with_the_records_behind_them():
    so = policy()
    for delay in (0.3, 0.7, 1.1):
        d = Daemon(default={"policy": so}, interval_ms=20, settle_ms=0)
        p = spawn([FAULT, "-t", "2", "-m", "32", "-s", "3", "-w", "0"],
                  env={"PCPTUNE_SOCKET": d.socket}, stdout=subprocess.DEVNULL)
        wait_for(lambda: rows(d, "SELECT count(*) FROM decision")[0][0] > 2)
        time.sleep(delay)
        d.kill9()
        end_process(p)
        r = run([PCPTUNE, "verify", "--db", d.db, "--policy-path", os.path.dirname(so), "--json"])
        v = json.loads(r.stdout)
        assert r.returncode == 0 and v["derived"] > 2 and v["differ"] == 0, r


@test
def they_are_taken_now_and_then_and_at_the_end():
    start = time.monotonic()
    d = Daemon(log={"record_ms": 500})
    fault(d, seconds=3)
    wait_for(lambda: d.ctl("targets")["targets"] == [])
    d.stop()
    v = rows(d)
    records = sum(n for _, _, _, n, _ in v)
    seconds = time.monotonic() - start
    assert all(level == 0 and first <= last for level, first, last, _, _ in v), v
    # two CPUs at most, every half second, and what is left at the end
    assert 4 <= records <= 2 * 2 * seconds + 4, (v, seconds)
    last, = rows(d, "SELECT max(seq_last) FROM sample")[0]
    assert v[-1][2] == last, (v, last)


@test
def a_short_life_has_a_record_too():
    d = Daemon()
    fault(d, seconds=1)
    wait_for(lambda: d.ctl("targets")["targets"] == [])
    d.stop()
    assert sum(r[3] for r in rows(d)) >= 1, rows(d)


@test
def none_are_taken_when_nobody_wants_them():
    d = Daemon(log={"record_ms": 0})
    fault(d, seconds=1)
    wait_for(lambda: d.ctl("targets")["targets"] == [])
    # a reload may ask for them
    d.configure(log={"record_ms": 100})
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded" in d.stderr())
    assert rows(d) == []
    fault(d, seconds=1)
    wait_for(lambda: d.ctl("targets")["targets"] == [])
    d.stop()
    assert sum(r[3] for r in rows(d)) >= 3, rows(d)


main()
