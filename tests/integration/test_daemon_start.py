#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Starting, refusing to start, reloading and stopping of pcptuned."""
import glob

from daemon_fake import *


def check(text, *args):
    """pcptuned --check on a file with this text: (exit status, standard error, standard output)"""
    d = tmp()
    path = os.path.join(d, "x.conf")
    with open(path, "w") as f:
        f.write(f'socket = "{d}/sock"; log = {{ path = "{d}/log.db"; }};\n' + text)
    r = run([PCPTUNED, "--check", "-c", path, *args])
    assert sorted(os.listdir(d)) == ["x.conf"], "--check leaves nothing"
    return r.returncode, r.stderr, r.stdout


# text (after the first line), line it must name, words it must hold
BAD = [
    ("intervall_ms = 100;\n", 2, ["intervall_ms", "interval_ms"]),
    ("\ninterval_ms = 5;\n", 3, ["interval_ms", "10"]),
    ('interval_ms = "x";\n', 2, ["interval_ms"]),
    ('on_exit = "never";\n', 2, ["on_exit", "keep", "restore"]),
    ('default = { policy = "contnetion"; };\n', 2, ["contnetion"]),
    ('default = { policy = "contention";\n params = { floorr = 1; }; };\n', 3, ["floorr", "floor"]),
    ('default = { policy = "contention";\n params = { floor = -5; }; };\n', 3, ["floor"]),
    ('rules = ( { program = "a"; policy = "static"; },\n { program = "b"; policy = "nosuch"; } );\n',
     3, ["nosuch"]),
    ("control = { mode = \"0999\"; };\n", 2, ["mode"]),
    ("log = { max_bytes = 1; };\n", 2, ["log"]),
    ("interval_ms = ;\n", 2, []),
]


@test
def mistakes_in_the_configuration_are_named_by_file_and_line():
    for text, line, words in BAD:
        status, err, _ = check(text)
        assert status == 1, (text, status, err)
        assert f"x.conf:{line}:" in err, (text, err)
        for w in words:
            assert w in err, (text, w, err)


@test
def all_mistakes_of_the_rules_are_reported_at_once():
    status, err, _ = check('default = { policy = "nosuch1"; };\n'
                           'rules = ( { program = "a"; policy = "nosuch2"; }, { program = "b"; policy = "nosuch3"; } );\n')
    assert status == 1 and all(f"nosuch{i}" in err for i in (1, 2, 3)), err


@test
def a_policy_file_that_others_can_write_is_refused():
    d = tmp()
    so = os.path.join(d, "static.so")
    shutil.copy(os.path.join(POLICIES, "static.so"), so)
    os.chmod(so, 0o666)
    status, err, _ = check(f'default = {{ policy = "{so}"; }};\n')
    assert status == 1 and "x.conf:2:" in err and "write" in err, err


@test
def check_prints_what_would_be_done():
    status, err, out = check('rules = ( { program = "redis*"; policy = "static"; '
                             'dry_run = true; } );\n')
    assert status == 0, err
    for w in ("sock.ctl", "log.db", "default: policy contention", 'program "redis*"', "dry run"):
        assert w in out, (w, out)


@test
def check_accepts_the_built_in_configuration():
    d = tmp()
    r = run([PCPTUNED, "--check", "--socket", d + "/s", "--db", d + "/l.db"])
    assert r.returncode == 0 and d + "/l.db" in r.stdout, r


@test
def a_file_that_is_not_there_and_wrong_options_are_errors():
    r = run([PCPTUNED, "--check", "-c", "/nonexistent/x.conf"])
    assert r.returncode == 1 and "/nonexistent/x.conf" in r.stderr, r
    assert run([PCPTUNED, "--frobnicate"]).returncode == 2
    assert run([PCPTUNED, "surplus"]).returncode == 2
    r = run([PCPTUNED, "--version"])
    assert r.returncode == 0 and r.stdout.startswith("pcptuned "), r
    r = run([PCPTUNED, "--help"])
    assert r.returncode == 0 and "--foreground" in r.stdout, r


@test
def in_the_background_the_starter_returns_when_the_daemon_listens():
    d = Daemon(start=False)
    ours, its = os.pipe()
    r = run([PCPTUNED, "-c", d.config], pass_fds=(its,))
    os.close(its)
    assert r.returncode == 0 and os.path.exists(d.socket), r
    pid = d.ctl("version")["pid"]
    os.set_blocking(ours, False)
    assert os.read(ours, 1) == b"", "a pipe of the starter's is still open"
    os.close(ours)
    defer(lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, signal.SIGKILL))
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"))
    left = [f for f in os.listdir(d.dir) if f.startswith("sock")]
    assert not left, left


@test
def in_the_background_a_failure_is_the_starters_failure():
    d = Daemon()
    r = run([PCPTUNED, "-c", d.config])
    assert r.returncode == 1 and str(d.proc.pid) in r.stderr, r


@test
def a_second_daemon_is_refused_and_names_the_first():
    d = Daemon()
    for args in (["--foreground"], ["--check"]):
        r = run([PCPTUNED, *args, "-c", d.config])
        assert r.returncode == 1, r
        assert f"pid {d.proc.pid}" in r.stderr and d.config in r.stderr, r.stderr
    assert d.ctl("version")["pid"] == d.proc.pid


@test
def stale_sockets_and_lock_files_are_replaced():
    d = Daemon()
    d.kill9()
    assert os.path.exists(d.socket) and os.path.exists(d.socket + ".lock")
    d.start()
    assert d.stop() == 0
    assert not [f for f in os.listdir(d.dir) if f.startswith("sock")]


@test
def files_that_are_not_stale_sockets_are_left_alone():
    d = Daemon(start=False)
    with open(d.socket, "w") as f:
        f.write("precious")
    r = run([PCPTUNED, "--foreground", "-c", d.config])
    assert r.returncode == 1 and "not a socket" in r.stderr, r
    r = run([PCPTUNED, "--check", "-c", d.config])
    assert r.returncode == 1 and "not a socket" in r.stderr, r
    for option in ("--socket", "--db", "--policy-path", "-c"):
        r = run([PCPTUNED, "--check", option, ""])
        assert r.returncode == 2 and "is empty" in r.stderr, (option, r)
    assert open(d.socket).read() == "precious"
    os.unlink(d.socket)
    with socketlib.socket(socketlib.AF_UNIX) as s:
        s.bind(d.socket)
        s.listen(1)
        r = run([PCPTUNED, "--foreground", "-c", d.config])
        assert r.returncode == 1 and "another program" in r.stderr, r


@test
def a_missing_socket_directory_is_refused_unless_it_is_ours_to_create():
    d = Daemon(start=False)
    d.configure(socket=d.dir + "/no/such/sock")
    r = run([PCPTUNED, "--foreground", "-c", d.config], env={"XDG_RUNTIME_DIR": "/nonexistent"})
    assert r.returncode == 1 and "does not exist" in r.stderr, r
    assert not os.path.exists(d.dir + "/no")
    r = run([PCPTUNED, "--check", "-c", d.config], env={"XDG_RUNTIME_DIR": d.dir})
    assert r.returncode == 0 and "would be created" in r.stdout, r
    assert not os.path.exists(d.dir + "/no")
    p = spawn([PCPTUNED, "--foreground", "-c", d.config], env={"XDG_RUNTIME_DIR": d.dir},
              stderr=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(d.dir + "/no/such/sock"))
    assert os.stat(d.dir + "/no").st_mode & 0o777 == 0o700
    end_process(p)


@test
def a_socket_path_that_is_too_long_is_refused():
    d = Daemon(start=False)
    r = run([PCPTUNED, "--check", "-c", d.config, "--socket", d.dir + "/" + "x" * 120])
    assert r.returncode == 1 and "too long" in r.stderr, r


@test
def a_reload_changes_the_policies_of_the_targets_it_concerns():
    d = Daemon(default={"policy": "static"})
    a, b = Fake(d, name="alpha"), Fake(d, name="beta")
    d.target("beta", policy="static")
    d.configure(rules=[{"program": "al*", "policy": "contention", "params": {"floor": 100}}])
    os.kill(d.proc.pid, signal.SIGHUP)
    t = d.target("alpha", policy="contention")
    assert "rule 1" in t["why"] and d.target("beta")["policy"] == "static"
    assert d.ctl("policy", target="alpha")["params"]["floor"] == 100
    n = wait_for(lambda: d.sql("SELECT count(*) FROM assignment")[0][0] >= 3 and 3)
    os.kill(d.proc.pid, signal.SIGHUP)  # the same again: nothing changes
    wait_for(lambda: d.stderr().count("reloaded") >= 2)
    time.sleep(0.3)
    assert d.sql("SELECT count(*) FROM assignment WHERE policy != 'operator'")[0][0] == n
    a.end()
    b.end()
    d.stop()
    replay_agrees(d)


@test
def a_bad_reload_changes_nothing_and_says_why():
    d = Daemon()
    f = Fake(d)
    d.target("fake", policy="contention")
    good = dict(d.keys)
    for keys, text in (({"default": {"policy": "nosuch"}}, "nosuch"),
                       ({"default": {"policy": "static"}, "interval_ms": 3}, "interval_ms"),
                       ({"default": {"policy": "static"}, "interval_ms": 200}, "restart")):
        d.keys = dict(good)
        d.configure(**keys)
        os.kill(d.proc.pid, signal.SIGHUP)
        wait_for(lambda: "not reloaded" in d.stderr() and text in d.stderr())
        assert d.target("fake")["policy"] == "contention"
    d.keys = good
    d.configure()
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded " + d.config in d.stderr())
    assert f.dump()["lease_ns"] > 0


@test
def reloaded_settings_take_effect():
    d = Daemon(lease_ms=5000, log={"chunk_ms": 60000, "max_bytes": 10000000, "effect_samples": 10})
    f = Fake(d)
    d.configure(lease_ms=60000, max_targets=1, log={"chunk_ms": 100, "max_bytes": 20000000,
                                                    "effect_samples": 3})
    os.kill(d.proc.pid, signal.SIGHUP)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    wait_for(lambda: f.dump()["lease_ns"] > now + 40 * 10**9)
    assert "max_targets" in Fake(d).reply["reason"]
    assert d.ctl("version")["log"]["state"] == "ok"
    wait_for(lambda: d.sql("SELECT count(*) FROM decision WHERE effect_n = 3")[0][0])


@test
def a_stop_restores_or_keeps_what_was_set():
    for on_exit in ("restore", "keep"):
        d = Daemon(on_exit=on_exit)
        f = Fake(d)
        wait_for(lambda: min(c["high"] for c in f.dump()["cpus"]) > 1000)
        before = f.dump()
        assert d.stop() == 0
        after = wait_for(lambda: [x for x in [f.dump()] if x["lease_ns"] in (0, 2**64 - 1)])[0]
        if on_exit == "keep":
            assert after["lease_ns"] == 2**64 - 1
            assert all(a["high"] >= 378 for a in after["cpus"]) and \
                [c["seq"] for c in after["cpus"]] >= [c["seq"] for c in before["cpus"]]
        else:
            assert after["lease_ns"] == 0
            wait_for(lambda: all(c["ack"] == c["seq"] for c in f.dump()["cpus"]))
            after = f.dump()
            assert [c["high"] for c in after["cpus"]] == [378] * 4, after
            assert [c["high_min"] for c in after["cpus"]] == [378] * 4, after
            assert [c["high_max"] for c in after["cpus"]] == [8192] * 4, after
            rows = d.sql("SELECT * FROM decision WHERE reason_name = 'restored-on-exit'")
            assert sorted(r["cpu"] for r in rows) == [0, 1, 2, 3], [dict(r) for r in rows]
        t = d.sql("SELECT * FROM target")[0]
        assert t["end"] == "the daemon stopped"
        assert d.sql("SELECT end_why FROM run")[0][0] == "stopped"
        assert not [x for x in os.listdir(d.dir) if x.startswith("sock")]
        f.end()
        replay_agrees(d)


@test
def the_control_socket_has_its_mode_and_an_unknown_group_is_refused():
    d = Daemon(control={"mode": "0660"})
    assert os.stat(d.socket + ".ctl").st_mode & 0o777 == 0o660
    d.stop()
    d.configure(control={"group": "no-such-group"})
    for how in ("--check", "--foreground"):
        r = run([PCPTUNED, how, "-c", d.config])
        assert r.returncode == 1 and "no-such-group" in r.stderr, r


@test
def a_user_without_a_run_directory_has_one_place_for_all_and_no_trap():
    uid = os.geteuid() or 65534
    place = f"/tmp/pcptune-{uid}"
    if os.path.lexists(place):
        skip(f"{place} is in use")
    defer(lambda: shutil.rmtree(place, ignore_errors=True))
    d = tempfile.mkdtemp(prefix="pcptune-test-", dir="/tmp")
    defer(lambda: shutil.rmtree(d, ignore_errors=True))
    if not os.geteuid():
        os.chown(d, uid, uid)
    env = {k: v for k, v in os.environ.items()
           if k not in ("XDG_RUNTIME_DIR", "PCPTUNE_SOCKET", "XDG_STATE_HOME", "HOME")}
    who = {"env": {**env, "PCPTUNE_POLICY_PATH": POLICIES}, "cwd": d, "text": True,
           "stdin": subprocess.DEVNULL}
    if not os.geteuid():
        who.update(user=uid, group=uid, extra_groups=[])

    def program(*words):
        try:
            p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **who)
        except PermissionError:
            skip(f"another user can not reach {words[0]}")
        defer(end_process, p)
        return p

    def call(*words):
        p = program(*words)
        out, err = p.communicate(timeout=20 * SLOW)
        return p.returncode, out, err

    status, out, err = call(PCPTUNED, "--check")
    if status and "policy" in err:
        skip("another user can not load the policies: " + err)
    assert f"socket: {place}/sock" in out and f"log: {place}/pcptuned.db" in out, (out, err)
    p = program(PCPTUNED, "--foreground", "--db", os.path.join(d, "log.db"))
    wait_for(lambda: os.path.exists(place + "/sock.ctl") or p.poll() is not None)
    assert os.stat(place).st_mode & 0o7777 == 0o700 and os.stat(place).st_uid == uid
    pf = program(os.path.join(BENCH, "page_fault1"), "--threads", "1", "--mib", "4",
                 "--seconds", "20")
    wait_for(lambda: "page_fault1" in call(PCPTUNE, "targets")[1])
    # the same directory, but another user could have put its files there
    os.chmod(place, 0o777)
    status, out, err = call(PCPTUNE, "targets")
    assert status == 1 and "trap" in err and not out, (status, out, err)
    # nor is a log read or written there, and a program runs all the same
    with open(place + "/pcptuned.db", "w"):
        pass
    status, out, err = call(PCPTUNE, "log")
    assert status == 1 and "trap" in err and not out, (status, out, err)
    os.remove(place + "/pcptuned.db")
    status, out, err = call(PCPTUNE, "run", "--json", "-", "--", "true")
    # a sanitizer's runtime can not be loaded into `true`: it crashes there, which is not the matter
    assert status == 0 or VARIANT not in ("release", "debug"), (status, out, err)
    assert json.loads(out)["db"] is None, (status, out, err)
    assert "trap" in json.loads(out)["log_error"] and not glob.glob(place + "/run-*"), (out, err)
    end_process(pf)
    end_process(p)
    for words in ([PCPTUNED, "--check"], [PCPTUNED, "--foreground"]):
        status, out, err = call(*words)
        assert status == 1 and f"{place} is not a directory that only user {uid} can write" in err
    os.rmdir(place)
    with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_SEQPACKET) as s:
        os.mkdir(place)
        os.chmod(place, 0o777)
        s.bind(place + "/sock")
        os.chmod(place + "/sock", 0o777)
        s.listen(8)
        s.settimeout(1)
        status, out, err = call(os.path.join(BENCH, "page_fault1"), "--threads", "1", "--mib", "4",
                                "--seconds", "1")
        assert status == 0, err
        try:
            s.accept()
            raise AssertionError("a program gave its segment to a stranger")
        except TimeoutError:
            pass

@test
def closed_standard_descriptors_are_no_ones():
    d = Daemon(start=False)
    r = run(["sh", "-c", f"exec {PCPTUNED} -c {d.config} <&- >&- 2>&-"])
    assert r.returncode == 0, r
    pid = d.ctl("version")["pid"]
    defer(os.kill, pid, signal.SIGTERM)
    for fd in "012":
        assert os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null"
    r = run([PCPTUNED, "--foreground", "-c", d.config])
    assert r.returncode == 1 and f"pid {pid}" in r.stderr, "it holds its lock"

@test
def a_reload_that_is_asked_for_while_it_starts_waits_until_it_can_be_served():
    d = Daemon(start=False)
    err = open(d.stderr_path, "a")
    p = spawn([PCPTUNED, "--foreground", "-c", d.config], stderr=err,
              preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP}))
    err.close()
    p.send_signal(signal.SIGHUP)
    wait_for(lambda: "reloaded" in d.stderr())
    p.send_signal(signal.SIGHUP)
    wait_for(lambda: d.stderr().count("reloaded") == 2)
    assert p.poll() is None


main()
