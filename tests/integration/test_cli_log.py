#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""log, explain, targets --db on logs of known content (tests/tools/cli_mklog.c), and check-config."""
import datetime

from harness import *
from cli_fake import DAEMON, Fake
from cli_screen import Screen

MKLOG = os.path.join(TOOLS, "cli_mklog")
ENV = {"PCPTUNE_POLICY_PATH": POLICIES, "TZ": "UTC"}
START = datetime.datetime(2026, 11, 30, 10, tzinfo=datetime.timezone.utc)


def mklog(path=None, n=None):
    path = path or os.path.join(tmp(), "log.db")
    r = run([MKLOG, path, *([str(n)] if n is not None else [])], env=ENV)
    assert r.returncode == 0, r
    return path


def cli(*words, env=None, **kw):
    return run([PCPTUNE, *words], env={**ENV, **(env or {})}, **kw)


def ids(db, *words):
    """What `log` lists, as JSON and as text; both must be the same."""
    j = cli("log", "--db", db, "--json", *words)
    t = cli("log", "--db", db, *words)
    assert j.returncode == t.returncode == 0 and not j.stderr and not t.stderr, (j, t)
    found = [json.loads(l)["id"] for l in j.stdout.splitlines()]
    rows = [int(l.split()[0]) for l in t.stdout.splitlines() if l.split()[0].isdigit()]
    assert rows == found, (rows, found)
    return found


@test
def log_prints_a_row_for_each_decision():
    lines = cli("log", "--db", mklog()).stdout.splitlines()
    assert lines[0].split() == "id time target zone cpu policy outcome change reason".split()
    assert re.match(r" +1  2026-11-30 10:00:00.300  1 page_fault1 +0 +0  contention +"
                    r"applied +high 378 -> 756 +1.5 % of CPU time", lines[1]), lines[1]
    assert re.search(r" 3 .*written +high 756 -> 1244 ", lines[3]), lines[3]
    assert re.search(r" 4 .*operator +superseded +high 1244 -> 100 +set by hand", lines[4])
    assert re.search(r" 5 .*2 sqlite3 +0 +2  static +applied +batch 63 -> 31 +fixed$", lines[5])
    assert re.search(r" 6 .*ghost +drift +high 378 -> 10 +unheard-of \(0, -7\)$", lines[6])
    columns = [l.index(w) for l, w in zip(lines[:3], ("outcome", "applied", "dry-run"))]
    assert len(set(columns)) == 1 and len(lines) == 8, lines
    # the change stands beside the reason; to say it again would only make lines longer
    assert not any(l.count("378 -> 756") > 1 for l in lines), lines


@test
def log_on_a_terminal_keeps_within_its_lines():
    db = mklog()
    wide = cli("log", "--db", db).stdout.split()
    for cols, env in ((40, {}), (80, {}), (118, {}), (250, {}), (250, {"COLUMNS": "118"})):
        s = Screen(PCPTUNE, "log", "--db", db, env={**ENV, "NO_COLOR": "1", **env}, rows=99,
                   cols=cols)
        assert s.end() == 0
        lines = [l.rstrip() for l in s.raw.replace("\r", "").split("\n")]
        most = int(env.get("COLUMNS", cols))
        rows = [l for l in lines if re.match(r" +\d+  2026-", l)]
        below = [l for l in lines if l.startswith(" " * 10) and l not in rows]
        assert len(rows) == 7, lines
        assert all(len(l) <= max(most, 93) for l in rows), (cols, rows)
        assert all(len(l) <= most for l in below), (cols, below)
        assert bool(below) == (most < 250), (cols, lines)
        assert " ".join(lines).split() == wide, "no word is cut or lost"
        if most >= 118:
            at = {re.search(r"(high|batch) [^,]* -> ", l).start() for l in rows}
            assert len(at) == 1, rows


@test
def log_json_has_the_keys_of_the_contract_in_their_order():
    rows = [json.loads(l) for l in cli("log", "--db", mklog(), "--json").stdout.splitlines()]
    want = "id time target cpu zone policy version reason old new applied sample outcome".split()
    assert all(list(r)[:len(want)] == want for r in rows), list(rows[0])
    limits = {"high": 378, "high_min": 63, "high_max": 5000, "batch": 63, "scale_max": 5,
              "rules": "g4"}
    r = rows[0]
    assert r["old"] == limits and r["new"] == {**limits, "high": 756}, r
    assert (r["id"], r["target"], r["cpu"], r["zone"], r["sample"]) == (1, 1, 0, 0, 3), r
    assert (r["policy"], r["version"], r["reason"]) == ("contention", "1.0", "contended"), r
    assert r["applied"] is True and r["outcome"] == "applied" and r["args"] == [15000, 480, 0, 0]
    assert datetime.datetime.fromisoformat(r["time"]) == START + datetime.timedelta(seconds=0.3)
    assert r["before"]["alloc_zone"] == 50000 and r["after"]["held_pages"] == 700, r
    assert [x["applied"] for x in rows] == [True, False, False, False, True, False, False]
    assert rows[2]["new"]["high"] == 1244 and rows[2]["proposed"]["high"] == 9000
    assert "before" not in rows[1] and rows[1]["effect_samples"] == 0


@test
def log_times_are_local_for_people_and_have_a_zone_for_programs():
    db = mklog()
    t = cli("log", "--db", db, env={"TZ": "CET-1"}).stdout.splitlines()[1]
    assert "2026-11-30 11:00:00.300" in t, t
    j = json.loads(cli("log", "--db", db, "--json", env={"TZ": "CET-1"}).stdout.splitlines()[0])
    assert j["time"] == "2026-11-30T11:00:00.300+01:00", j


@test
def log_filters():
    db = mklog()
    assert ids(db) == [1, 2, 3, 4, 5, 6, 7]
    assert ids(db, "--target", "1") == ids(db, "-t", "page_fault1") == [1, 2, 3, 4, 7]
    assert ids(db, "--target", "sqlite3") == [5, 6]
    assert ids(db, "--cpu", "1") == [2, 7]
    assert ids(db, "--zone", "0") == [1, 2, 3, 4, 5, 6, 7]
    assert ids(db, "--zone", "1") == []
    assert ids(db, "--policy", "operator") == [4]
    assert ids(db, "--policy", "contention", "--cpu", "0") == [1, 3]
    assert ids(db, "--reason", "contended") == [1, 3]
    assert ids(db, "--tail", "2") == [6, 7]
    assert ids(db, "--tail", "0") == []
    assert ids(db, "--tail", "100") == [1, 2, 3, 4, 5, 6, 7]
    assert ids(db, "--tail", "1", "--reason", "contended") == [3], "tail counts what is listed"
    assert ids(db, "--tail", "1", "--target", "1", "--cpu", "0") == [4]
    assert ids(db, "--tail", "1", "--zone", "0", "--reason", "contended") == [3]
    assert ids(db, "--tail", "3", "--zone", "1") == ids(db, "--zone", str(2**32)) == []
    assert ids(db, "--since", "2026-11-30T10:00:01Z") == [3, 4, 7]
    assert ids(db, "--since", "2026-11-30 10:00:02") == [7]


@test
def log_with_nothing_to_show_says_so():
    db = mklog()
    r = cli("log", "--db", db, "--reason", "none")
    assert r.returncode == 0 and r.stdout == f"no decisions of this kind in {db}\n", r
    assert cli("log", "--db", db, "--reason", "none", "--json").stdout == ""
    r = cli("log", "--db", db, "--target", "nobody")
    assert r.returncode == 3 and "targets: 1 page_fault1, 2 sqlite3" in r.stderr, r
    assert cli("log", "--db", db, "--target", "77").returncode == 3


@test
def log_shows_events_between_decisions():
    db = mklog()
    lines = cli("log", "--db", db, "--events").stdout.splitlines()
    kinds = [re.search(r"(start|gap): ", l)[1] if l.split()[0] == "event" else l.split()[0]
             for l in lines[1:]]
    assert kinds == ["start", "1", "gap", "2", "3", "4", "5", "6", "7"], kinds
    assert "no sample for 3.0 s" in lines[3], lines[3]
    rows = [json.loads(l) for l in
            cli("log", "--db", db, "--events", "--json").stdout.splitlines()]
    e = [r for r in rows if "event" in r]
    assert [(x["kind"], x["target"]) for x in e] == [("start", 0), ("gap", 1)], e
    tail = cli("log", "--db", db, "--events", "--tail", "1").stdout
    assert "event" not in tail, "events older than the tail"


@test
def log_follows_what_is_added():
    db = mklog()
    p = spawn([PCPTUNE, "log", "--db", db, "--follow", "--json", "--tail", "1"], env=ENV,
              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert json.loads(p.stdout.readline())["id"] == 7
    mklog(db, 2)
    assert [json.loads(p.stdout.readline())["id"] for _ in range(2)] == [8, 9]
    mklog(db, 1)
    row = json.loads(p.stdout.readline())
    assert row["id"] == 10 and row["reason"] == "added", row
    p.stdout.close()  # the reader goes away while nothing is written
    p.wait(10 * SLOW)
    assert p.stderr.read() == ""


@test
def log_follow_keeps_its_filters():
    db = mklog()
    p = spawn([PCPTUNE, "log", "--db", db, "-f", "--json", "--tail", "0", "--reason", "fixed"],
              env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.5)
    mklog(db, 3)
    time.sleep(1)
    p.send_signal(signal.SIGTERM)
    assert p.stdout.read() == "" and p.stderr.read() == ""


@test
def a_long_log_ends_with_its_reader():
    db = mklog()
    mklog(db, 20000)
    r = run(["sh", "-c", f"{PCPTUNE} log --db {db} | head -2; {PCPTUNE} log --db {db} --json | "
                         "head -1"], env=ENV)
    assert len(r.stdout.splitlines()) == 3 and r.stderr == "", r
    assert len(cli("log", "--db", db, "--json").stdout.splitlines()) == 20007
    recent = cli("log", "--db", db, "--json", "--since", "-10m").stdout.splitlines()
    assert len(recent) == (20007 if time.time() < START.timestamp() + 660 else 20000)


@test
def explain_tells_everything():
    out = cli("explain", "1", "--db", (db := mklog())).stdout
    for part in (
            "Decision 1: raise the limit of the page lists of CPU 0 (high) from 378 to 756 pages "
            "in page_fault1.", "The target took it over.",
            "2026-11-30 10:00:00.300, 300.0 ms after the target attached",
            "1 page_fault1 (pid 4321, uid 1000), zone 0, CPU 0",
            "policy      contention 1.0", "parameters  up=2 down=1",
            "chosen by   rule 2, program page_*", "1.5 % of CPU time was waited for the zone lock",
            'reason "contended", arguments 15000 480 0 0', "Sample 3 covers 100.0 ms",
            "100 pages (400.0 KiB) lay on the lists of CPU 0",
            "waited 2.0 ms for zone locks, 2.000 % of the 100.0 ms",
            "Over 10 samples before and as many after", f"pcptune verify --db '{db}'"):
        assert part in out, (part, out)
    for row in (r"high +378 +756 +756 +changed", r"batch +63 +63 +63 +pages that move",
                r"alloc_pages +10,003 +pages +100,030/s +pages allocated by the program",
                r"alloc_zone +50,000 +2,000 ", r"per 1000 +500 +10 ", r"held +1,234 +700 ",
                r"before +none", r"next +3 .*high 756 -> 1244"):
        assert re.search(row, out), (row, out)
    assert "cut" not in out, "nothing was clamped"
    assert out.count("756 -> 1244") == 1, "a change is said once"


@test
def explain_says_what_cut_a_decision():
    out = cli("explain", "3", "--db", mklog()).stdout
    assert re.search(r"high +756 +9000 +1244 +cut", out), out
    assert "at most 2000 pages together (its budget), which left room for 1244" in out, out
    assert "4.000 % of the 100.0 ms" in out, "two CPUs waited; the agent's wait does not count"
    assert "the part of this CPU is 2.000 %" in out, out
    assert re.search(r"before +1 .*\n.*\n +next +4 ", out), out


@test
def explain_of_other_kinds_of_decisions():
    db = mklog()
    out = cli("explain", "2", "--db", db).stdout
    assert "Dry run: nothing was changed." in out and "Its effect was not measured" in out
    out = cli("explain", "4", "--db", db).stdout
    assert "no policy: set by hand" in out and "so there is none to run again" in out, out
    assert "lower the limit" in out, out
    out = cli("explain", "5", "--db", db).stdout
    assert "change the limits of CPU 2 in sqlite3: batch 63 -> 31" in out, out
    assert "Sample 1 is no longer in the log" in out, "the second target has no samples"
    out = cli("explain", "6", "--db", db).stdout
    assert "unheard-of (0, -7)" in out and "Somebody else changed the limits" in out, out
    out = cli("explain", "7", "--db", db).stdout
    assert "Sample 999 is no longer in the log" in out and "before  2  " in out, out


@test
def explain_of_a_decision_before_the_first_sample():
    db = mklog()
    with sqlite3.connect(db) as c:
        c.execute("UPDATE decision SET seq = 0 WHERE id = 4")
    out = cli("explain", "4", "--db", db).stdout
    assert "made before the target was sampled for the first time" in out, out
    assert json.loads(cli("explain", "4", "--db", db, "-j").stdout)["from"] is None


@test
def explain_json_has_it_all():
    j = json.loads(cli("explain", "3", "--db", (db := mklog()), "--json").stdout)
    assert list(j)[:3] == ["id", "time", "target"] and j["id"] == 3 and j["db"] == db
    assert j["from"]["seq"] == 12 and j["from"]["dt_us"] == 100000
    assert j["from"]["contend_pct"] == 4 and j["from"]["cpu_contend_pct"] == 2, j["from"]
    assert j["from"]["values"]["alloc_pages"] == 10012 and j["from"]["values"]["count"] == 100
    assert j["previous"]["id"] == 1 and j["next"]["id"] == 4
    assert "budget" in j["clamp_why"] and j["chosen_by"] == "rule 2, program page_*"
    j = json.loads(cli("explain", "4", "--db", db, "-j").stdout)
    assert j["by_hand"] is True and j["next"] is None
    assert json.loads(cli("explain", "7", "--db", db, "-j").stdout)["from"] is None


@test
def explain_without_the_plug_in_keeps_its_numbers():
    out = cli("explain", "1", "--db", mklog(), env={"PCPTUNE_POLICY_PATH": tmp()}).stdout
    assert "contended (15000, 480)" in out, out
    out = cli("explain", "1", "--db", mklog(), "--policy-path", POLICIES,
              env={"PCPTUNE_POLICY_PATH": tmp()}).stdout
    assert "1.5 % of CPU time was waited" in out, out


@test
def explain_of_what_is_not_there():
    db = mklog()
    r = cli("explain", "99", "--db", db)
    assert r.returncode == 3 and r.stdout == "" and f"{db}: no decision 99" in r.stderr, r
    for word in ("x", "0", "-3", "1.5"):
        r = cli("explain", "--db", db, "--", word)
        assert r.returncode == 2 and "not the number of a decision" in r.stderr, r


@test
def targets_of_a_log():
    db = mklog()
    out = cli("targets", "--db", db).stdout.splitlines()
    assert re.match(r" ?1 +page_fault1 +4321 +1000 +2026-11-30 10:00:00.000 +-", out[1]), out
    assert re.search(r"2026-11-30 10:00:03.000 +closed", out[2]), out
    t = json.loads(cli("targets", "--db", db, "--json").stdout)["targets"]
    assert [x["name"] for x in t] == ["page_fault1", "sqlite3"] and t[0]["detached"] is None
    assert t[1]["end"] == "closed" and t[1]["detached"] == "2026-11-30T10:00:03.000+00:00"


NOBODY = 65534


def as_user(d, *words, env):
    """The CLI as somebody who is not root (whose logs are the system's), owning all of d."""
    if os.geteuid():
        return cli(*words, env=env)
    for base, dirs, files in os.walk(d):
        for name in [".", *dirs, *files]:
            os.chown(os.path.join(base, name), NOBODY, NOBODY)
    try:
        return cli(*words, env=env, user=NOBODY, group=NOBODY, extra_groups=[])
    except PermissionError:
        skip(f"another user can not reach {PCPTUNE}")


@test
def which_log_is_read_when_none_is_named():
    # every directory above must let that user through, which the usual place of tmp() may not
    d = tempfile.mkdtemp(prefix="pcptune-test-", dir="/tmp")
    defer(lambda: shutil.rmtree(d, ignore_errors=True))
    env = {"XDG_STATE_HOME": d, "HOME": d, "PCPTUNE_SOCKET": os.path.join(d, "none")}
    state = os.path.join(d, "pcptune")
    r = as_user(d, "log", env=env)
    assert r.returncode == 1 and "name one with --db" in r.stderr and r.stdout == "", r
    os.makedirs(state)
    for name in ("run-1.db", "run-2.db", "other.db"):
        mklog(os.path.join(state, name))
        time.sleep(0.02)
    r = as_user(d, "explain", "1", "-j", env=env)
    assert r.returncode == 0 and json.loads(r.stdout)["db"] == state + "/run-2.db", r
    mklog(os.path.join(state, "pcptuned.db"))
    os.utime(os.path.join(state, "pcptuned.db"), (1, 1))
    r = as_user(d, "explain", "1", "-j", env=env)
    assert json.loads(r.stdout)["db"] == state + "/pcptuned.db", "the default one wins, old or not"


@test
def the_log_of_a_run_is_found_by_root_too():
    d = tmp()
    if os.path.exists("/var/lib/pcptune"):
        skip("this system has logs of its own")
    env = {"XDG_STATE_HOME": "", "HOME": d, "PCPTUNE_SOCKET": os.path.join(d, "none")}
    db = mklog(os.path.join(d, ".local/state/pcptune/run-20261130-1.db"))
    r = cli("explain", "1", "-j", env=env)
    assert json.loads(r.stdout)["db"] == db and not r.stderr, r
    for words in ("log",), ("explain", "1"), ("verify",):
        assert cli(*words, env=env).stderr.startswith(f"log: {db}\n"), words
        assert f"log: {db}" not in cli(*words, "--db", db, env=env).stderr, words
    s = Screen(PCPTUNE, "log", env={**ENV, **env}, cols=200)
    s.wait(f"log: {db}")
    s.wait("1 page_fault1 .*contention .*high 378 -> 756")
    assert s.end() == 0


@test
def a_directory_that_others_may_write_is_not_searched():
    d = tmp()
    if os.path.exists("/var/lib/pcptune"):
        skip("this system has logs of its own")
    env = {"XDG_STATE_HOME": d, "HOME": d, "PCPTUNE_SOCKET": os.path.join(d, "none")}
    mklog(os.path.join(d, "pcptune/run-1.db"))
    assert cli("explain", "1", env=env).returncode == 0
    os.chmod(os.path.join(d, "pcptune"), 0o777)
    r = cli("explain", "1", env=env)
    assert r.returncode == 1 and "no log" in r.stderr, r


@test
def the_log_of_the_running_daemon_is_read():
    db = mklog()
    f = Fake(version={**DAEMON, "log": {**DAEMON["log"], "path": db}})
    assert json.loads(cli("explain", "1", "-j", "--socket", f.socket).stdout)["db"] == db
    assert len(cli("log", "-j", env={"PCPTUNE_SOCKET": f.socket}).stdout.splitlines()) == 7


@test
def a_socket_that_is_named_means_the_log_of_its_daemon_and_no_other():
    d = tmp()
    env = {"XDG_STATE_HOME": d, "HOME": d}
    os.mkdir(os.path.join(d, "pcptune"))
    mklog(os.path.join(d, "pcptune/run-1.db"))
    for words in (["log"], ["log", "-j"], ["explain", "1"], ["verify"]):
        r = cli(*words, "--socket", os.path.join(d, "none"), env=env)
        assert r.returncode == 1 and "no daemon listens" in r.stderr and not r.stdout, (words, r)
    f = Fake(version=DAEMON)
    r = cli("log", "--socket", f.socket, env=env)
    assert r.returncode == 1 and "keeps no log" in r.stderr, r


@test
def a_damaged_log_is_named_once():
    db = mklog()
    with sqlite3.connect(db) as c:
        page, = c.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'target'").fetchone()
        size, = c.execute("PRAGMA page_size").fetchone()
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    c.close()
    with open(db, "r+b") as f:
        f.seek((page - 1) * size)
        f.write(b"\xff" * 64)
    for words in (["log"], ["verify"], ["curve"], ["targets"], ["explain", "1"], ["advise", "page_fault1"],
                  ["eval", "--policy", "static"]):
        r = cli(*words, "--db", db)
        assert r.returncode == 1 and "malformed" in r.stderr and r.stderr.count(db) == 1, r


@test
def a_tail_of_nothing_is_not_an_empty_log():
    r = cli("log", "--tail", "0", "--db", mklog())
    assert r.returncode == 0 and not r.stdout, r


@test
def a_path_that_is_no_text_is_there_in_json():
    d = os.fsencode(tmp()) + b"/q\xff"
    os.mkdir(d)
    src, trace, db = d + b"/w.csv", d + b"/w.pct", d + b"/log.db"
    with open(src, "w") as f:
        f.write("time_ns,cpu,order,blocks\n1000,0,0,-63\n1500,0,0,63\n")
    os.rename(mklog(), db)
    true = shutil.copy(shutil.which("true"), d + b"/true")
    env = {"PCPTUNE_SOCKET": "/nonexistent/sock"}
    for key, words in (("file", [b"trace", b"import", src, trace]), ("file", [b"trace", b"info", trace]),
                       ("trace", [b"eval", b"--trace", trace, b"--policy", b"static"]),
                       ("source", [b"curve", b"--trace", trace]),
                       ("db", [b"explain", b"--db", db, b"1"]), ("db", [b"verify", b"--db", db]),
                       ("file", [b"check-config", src])):
        r = cli(*words, "--json", env=env)
        assert "/q?/" in json.loads(r.stdout)[key], (words, r)
    r = cli("record", "-q", "-o", d + b"/r.pct", "-j", "-", "--", true, env=env)
    assert "/q?/" in json.loads(r.stdout)["file"], r


@test
def a_log_that_can_not_be_read_is_an_error():
    d = tmp()
    bad = os.path.join(d, "bad.db")
    with open(bad, "w") as f:
        f.write("this is no database\n" * 1000)
    for path in (bad, os.path.join(d, "none.db"), d):
        for words in (["log"], ["explain", "1"], ["targets"], ["log", "--follow"]):
            r = cli(*words, "--db", path)
            assert r.returncode == 1 and r.stdout == "", (path, words, r)
            assert path in r.stderr and len(r.stderr.splitlines()) == 1, (path, words, r)
    assert not os.path.exists(os.path.join(d, "none.db")), "reading makes no file"


@test
def text_in_a_log_of_a_stranger_can_not_steer_the_terminal():
    db = mklog()
    with sqlite3.connect(db) as c:
        evil = "char(27) || '[2J' || char(155) || '31m' || char(13, 7, 10) || 'row' || x'c3'"
        for (table,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for column in c.execute(f"PRAGMA table_info({table})").fetchall():
                if column[2] == "TEXT" and column[5] == 0:
                    c.execute(f"UPDATE {table} SET {column[1]} = CAST({column[1]} || {evil} AS TEXT)")
    for words in (["log"], ["log", "--events"], ["explain", "1"], ["explain", "4"], ["targets"],
                  ["verify"]):
        r = run([PCPTUNE, *words, "--db", db], env=ENV)
        seen = r.stdout + r.stderr
        assert r.returncode == 0 and "[2J" in seen, r
        assert not [c for c in seen if ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160], seen
        assert not any(l.startswith("row") for l in seen.splitlines()), seen
        r = run([PCPTUNE, *words, "--json", "--db", db], env=ENV)
        assert r.returncode == 0 and not r.stderr, r
        for line in r.stdout.splitlines():
            json.loads(line)
    rows = [json.loads(l) for l in cli("log", "--db", db, "--json").stdout.splitlines()]
    assert len(rows) == 7 and all(r["policy"] and r["reason"] and r["version"] for r in rows), rows


@test
def a_schema_of_a_stranger_can_not_steer_the_terminal():
    db = mklog()
    with sqlite3.connect(db) as c:
        c.execute("PRAGMA writable_schema = ON")
        c.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE ' || char(27) || '[2J (', "
                  "name = 'x' || char(27) || '[2J' WHERE name = 'event'")
    r = cli("log", "--db", db)
    assert r.returncode == 1 and db in r.stderr and "\033" not in r.stderr + r.stdout, r


@test
def a_damaged_sample_does_not_hide_the_rest():
    db = mklog()
    with sqlite3.connect(db) as c:
        column = next(r[1] for r in c.execute("PRAGMA table_info(sample)") if r[2] == "BLOB")
        c.execute(f"UPDATE sample SET {column} = x'ffffffffffffffffffffffffff'")
    r = cli("explain", "1", "--db", db)
    assert r.returncode == 0 and "Sample 3 is no longer in the log" in r.stdout, r


# ---- check-config ----

def config(text):
    path = os.path.join(tmp(), "c.conf")
    with open(path, "w") as f:
        f.write(text)
    return path


@test
def check_config_takes_a_good_file():
    path = config('default = { policy = "contention"; };\n'
                  'rules = ( { program = "x*"; policy = "static"; } );\n')
    r = cli("check-config", path)
    assert r.returncode == 0 and "1 rule and" in r.stdout and "contention" in r.stdout, r
    j = json.loads(cli("check-config", "--json", path).stdout)
    assert j["ok"] is True and j["errors"] == [] and len(j["policies"]) == 2, j


@test
def check_config_names_file_line_and_what_is_allowed():
    for text, line, says in (
            ("interval_ms = 100;\nlog = { pth = \"/x\"; };\n", 2, "path"),
            ("interval_ms = \"fast\";\n", 1, "interval_ms"),
            ("interval_ms = 1;\n", 1, "10"),
            ("\n\ndefault = { policy = \"contentoin\"; };\n", 3, "contention"),
            ("default = {\n policy = \"static\";\n params = { hihg = 5; };\n};\n", 3, "high"),
            ("a = \n", 2, "")):
        path = config(text)
        r = cli("check-config", path)
        assert r.returncode == 1 and r.stdout == "", (text, r)
        assert r.stderr.startswith(f"{path}:{line}: ") and says in r.stderr, (text, r.stderr)
        j = json.loads(cli("check-config", path, "--json").stdout)
        assert j["ok"] is False and "\n".join(j["errors"]) + "\n" == r.stderr, (j, r.stderr)


@test
def check_config_of_a_file_that_is_not_there():
    r = cli("check-config", "/nonexistent/c.conf")
    assert r.returncode == 1 and "/nonexistent/c.conf" in r.stderr, r
    assert cli("check-config").returncode == 2


main()
