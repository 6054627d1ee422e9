#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune verify` on logs of the real daemon, and `pcptune policies`."""
from harness import *

FAULT = os.path.join(BENCH, "page_fault1")
ALL = ("static", "kernel", "contention", "fraction", "shuffle", "lowwater", "coldest", "learn", "knee")


def logged(policy, *params, seconds=2):
    """The log of page_fault1 under a policy, with a daemon of its own."""
    if not os.path.exists(FAULT):
        skip("bench/page_fault1 is not built")
    db = os.path.join(tmp(), "log.db")
    sets = [w for p in params for w in ("--set", p)]
    r = run([PCPTUNE, "run", "--db", db, "--policy", policy, *sets, "--", FAULT, "-t", "2", "-m", "32",
             "-s", str(seconds), "-w", "1"])
    assert r.returncode == 0, r
    return db


def verify(db, *args):
    r = run([PCPTUNE, "verify", "--db", db, "--json", *args])
    return r, json.loads(r.stdout)


def change(db, sql):
    with sqlite3.connect(db) as c:
        n = c.execute(sql).rowcount
    c.close()
    assert n == 1, (sql, n)


@test
def every_decision_of_every_policy_is_derived():
    requires_release()
    for policy, params in (("static", ()), ("kernel", ()), ("kernel", ("decay_ms=200",)),
                           ("contention", ()), ("contention", ("hold_ms=300", "decay_ms=100")),
                           ("fraction", ()), ("shuffle", ("shuffle_ms=300", "hold_ms=300")),
                           ("lowwater", ("look_ms=200", "hold_ms=300")), ("coldest", ()),
                           ("learn", ("window_ms=200", "settle_ms=100", "worth_us=0")),
                           ("knee", ()), ("knee", ("hold_ms=300", "short_ms=300", "long_ms=1000")),
                           ("contention", ("hold_ms=300", "decay_ms=100", "guard_permille=20", "guard_ms=200"))):
        db = logged(policy, *params)
        r, v = verify(db)
        assert r.returncode == 0, (policy, r)
        assert v["ok"] and v["differ"] == 0 and v["not_derivable"] == 0, (policy, v)
        with sqlite3.connect(db) as c:
            n, = c.execute("SELECT count(*) FROM decision").fetchone()
        c.close()
        assert v["derived"] == n > 0 and v["samples"] > 5, (policy, v, n)
        text = run([PCPTUNE, "verify", "--db", db])
        assert text.returncode == 0 and f"{n} decision{'s' * (n > 1)} re-derived" in text.stdout, text


@test
def a_log_that_is_being_written_can_be_verified():
    requires_release()
    if not os.path.exists(FAULT):
        skip("bench/page_fault1 is not built")
    d = Daemon(default={"policy": "kernel", "params": {"decay_ms": 50}})
    p = spawn([FAULT, "-t", "2", "-m", "32", "-s", "4", "-w", "1"],
              env={"PCPTUNE_SOCKET": d.socket}, stdout=subprocess.DEVNULL)
    n = 0
    while p.poll() is None:
        r, v = verify(d.db)
        assert r.returncode == 0, r
        n = max(n, v["derived"])
        time.sleep(0.02)
    assert n > 10, n


@test
def a_changed_decision_is_found():
    requires_release()
    db = logged("static", "high=1000")
    change(db, "UPDATE decision SET clamped_high = clamped_high + 1 WHERE id = "
               "(SELECT min(id) FROM decision)")
    r, v = verify(db)
    assert r.returncode == 3 and v["differ"] == 1 and not v["ok"], r
    assert "clamped values differ" in v["report"][0], v
    text = run([PCPTUNE, "verify", "--db", db])
    assert text.returncode == 3 and "1 differ" in text.stdout, text


@test
def a_removed_decision_is_found():
    requires_release()
    db = logged("static", "high=1000")
    change(db, "DELETE FROM decision WHERE id = (SELECT min(id) FROM decision)")
    r, v = verify(db)
    assert r.returncode == 3 and v["differ"] == 1, r
    assert "the log has no such decision" in v["report"][0], v


@test
def without_the_policy_nothing_is_derived_and_nothing_differs():
    requires_release()
    db = logged("static", "high=1000")
    r, v = verify(db, "--policy-path", tmp())
    assert r.returncode == 0 and v["derived"] == 0 and v["not_derivable"] > 0, r
    assert "can not be replayed" in v["report"][0] and "--policy-path" in v["report"][0], v


@test
def verify_of_no_log_is_an_error():
    r = run([PCPTUNE, "verify", "--db", "/nonexistent/log.db"])
    assert r.returncode == 1 and "/nonexistent/log.db" in r.stderr and not r.stdout, r
    r = run([PCPTUNE, "verify", "--no-such-option"])
    assert r.returncode == 2, r


@test
def policies_are_listed():
    r = run([PCPTUNE, "policies", "--json"])
    assert r.returncode == 0, r
    found = {p["name"]: p for p in json.loads(r.stdout)["policies"]}
    assert set(found) >= set(ALL), r
    for p in found.values():
        assert p["version"] and p["summary"] and os.path.exists(p["file"]), p
    text = run([PCPTUNE, "policies"])
    assert text.returncode == 0
    for p in found.values():
        assert p["name"] in text.stdout and p["summary"] in text.stdout, text


@test
def a_policy_is_shown_with_parameters_and_reasons():
    for name in ALL:
        r = run([PCPTUNE, "policies", name, "--json"])
        assert r.returncode == 0, r
        p = json.loads(r.stdout)
        assert p["params"] and p["reasons"], p
        text = run([PCPTUNE, "policies", name]).stdout
        for x in p["params"]:
            assert x["name"] in text and x["text"] in text, (x, text)
            assert {"name", "type", "default", "unit", "text"} <= set(x), x
        for x in p["reasons"]:
            assert x["name"] in text and x["sentence"] in text, (x, text)
        assert any(x["change"] for x in p["reasons"]) and not all(x["change"] for x in p["reasons"])


@test
def an_unknown_policy_is_not_found_and_the_nearest_is_named():
    r = run([PCPTUNE, "policies", "contension"])
    assert r.returncode == 3 and 'did you mean "contention"?' in r.stderr and not r.stdout, r


@test
def a_policy_that_others_can_write_is_shown_as_such():
    d = tmp()
    for n in ("static", "kernel"):
        shutil.copy(os.path.join(POLICIES, n + ".so"), d)
        os.chmod(os.path.join(d, n + ".so"), 0o755)
    os.chmod(os.path.join(d, "kernel.so"), 0o777)
    r = run([PCPTUNE, "policies", "--policy-path", d, "--json"])
    assert r.returncode == 1, r
    found = {p["name"]: p for p in json.loads(r.stdout)["policies"]}
    assert "version" in found["static"] and "0777" in found["kernel"]["error"], found
    r = run([PCPTUNE, "policies", "--policy-path", d, "kernel"])
    assert r.returncode == 1 and "kernel.so" in r.stderr and "0777" in r.stderr, r


@test
def no_policies_at_all_is_said():
    d = tmp()
    r = run([PCPTUNE, "policies", "--policy-path", d])
    assert r.returncode == 1 and d in r.stderr, r
    r = run([PCPTUNE, "policies", "--policy-path", d, "--json"])
    assert r.returncode == 1 and json.loads(r.stdout)["policies"] == [] and d in r.stderr, r


main()
